"""Measured layers as a table: one line a layer, columns with units, for everybody who has times of their own.

``planner import --template`` prints :data:`LAYER_CSV_TEMPLATE` to start from. Seconds, output bytes and multiply-adds
are of a whole batch; parameters do not depend on it.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from planner.errors import Fault, SpecError
from planner.importers.measured import MeasuredLayer, MeasuredNetwork, build_measured
from planner.importers.rows import doubled, figure_of
from planner.importers.text import read_text

__all__ = ["COLUMNS", "LAYER_CSV_TEMPLATE", "read_layer_csv"]

COLUMNS = (
    "name",
    "kind",
    "inputs",
    "forward_s",
    "backward_s",
    "output_bytes",
    "parameter_bytes",
    "multiply_adds",
)
_NEEDED = ("name", "forward_s", "backward_s")
_FIGURES = COLUMNS[3:]
_EXAMPLES = {"forward_s": "0.00184", "backward_s": "0.00371", "multiply_adds": "3.7e9"}

LAYER_CSV_TEMPLATE = """\
# Measured layers, one a line, figures of a whole batch; name its size in the spec: profile_batch: 32
# name             as you like, each once
# kind             input, convolution, fully_connected, batch_norm, pooling, activation, add, attention, matmul, ...;
#                  an input's forward_s is the reading of the batch
# inputs           the layers that it reads, separated by blanks or semicolons; without this column, the one before it
# forward_s        seconds of the forward pass
# backward_s       seconds of the backward pass: gradients of inputs and of parameters
# output_bytes     of the output, as 4-byte numbers
# parameter_bytes  of what is trained, as 4-byte numbers
# multiply_adds    of the forward pass; may be left out
name,kind,inputs,forward_s,backward_s,output_bytes,parameter_bytes,multiply_adds
data,input,,0.0021,0,19267584,0,0
conv1,convolution,data,0.00184,0.00371,102760448,37632,3776446464
relu1,activation,conv1,0.00012,0.00018,102760448,0,0
pool1,pooling,relu1,0.00021,0.00044,25690112,0,0
fc1,fully_connected,pool1,0.00155,0.0031,128000,802816000,6422528000
"""


def read_layer_csv(path: Path, *, batch_size: int) -> MeasuredNetwork:
    """Return the network and profile of a table of layers.

    Parameters
    ----------
    batch_size
        Samples of the batch that was measured.

    Raises
    ------
    SpecError
        With file, line and column of everything that is wrong, in one pass.
    """
    faults: list[Fault] = []
    lines = _lines(path, faults)
    header = next(lines, (0, []))
    columns = [cell.lower() for cell in header[1]]
    faults += _header_faults(path, header[0], columns)
    rows: list[MeasuredLayer] = []
    for number, cells in lines if not faults else ():
        if len(cells) != len(columns):
            problem = f"{len(cells)} columns instead of {len(columns)}."
            faults.append(Fault(file=str(path), line=number, problem=problem, mend=f"Write {','.join(columns)}."))
            continue
        rows.append(_row(path, number, dict(zip(columns, cells, strict=True)), rows, faults, batch_size))
    faults += doubled(path, rows)
    faults += _unknown_inputs(path, rows)
    if not rows and not faults:
        faults.append(Fault(file=str(path), problem="there is no layer in it.", mend="Write a line for each layer."))
    if not faults:
        try:
            name = path.stem.removesuffix(".layers")
            return build_measured(name, rows, batch_size=batch_size, origin=f"table of layers {path.name}")
        except ValueError as error:
            faults.append(Fault(file=str(path), problem=f"{error}.", mend="Mend the table."))
    raise SpecError.of(faults)


def _lines(path: Path, faults: list[Fault]) -> Iterator[tuple[int, list[str]]]:
    """Give the lines that are no comments, as cells without blanks around them, with their numbers."""
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            (cells,) = csv.reader([line], strict=True)
        except (csv.Error, ValueError) as error:
            mend = "Close the quotation mark."
            faults.append(Fault(file=str(path), line=number, value=line[:80], problem=f"{error}.", mend=mend))
            continue
        yield number, [cell.strip() for cell in cells]


def _header_faults(path: Path, line: int, columns: list[str]) -> list[Fault]:
    """Return what is wrong with the first line."""
    if "name" not in columns:
        problem = "the first line does not name the columns."
        return [Fault(file=str(path), line=line or None, problem=problem, mend=f"Begin with {','.join(COLUMNS)}.")]
    faults = []
    for column in dict.fromkeys(columns):
        if columns.count(column) > 1:
            faults.append(_column_fault(path, line, column, "it stands twice.", "Remove one."))
        elif column not in COLUMNS:
            known = next((one for one in _FIGURES if one.rsplit("_", 1)[0] == column.rsplit("_", 1)[0]), None)
            mend = f"Convert it to {known}." if known else f"Known ones are {', '.join(COLUMNS)}."
            faults.append(_column_fault(path, line, column, "there is no such column.", mend))
    for column in _NEEDED:
        if column not in columns:
            faults.append(_column_fault(path, line, column, "it is missing.", f"Add the column {column}."))
    return faults


def _column_fault(path: Path, line: int, column: str, problem: str, mend: str) -> Fault:
    """Return a fault of a column."""
    return Fault(file=str(path), line=line, field=column[:80], value=column[:80], problem=problem, mend=mend)


def _row(
    path: Path, line: int, cells: dict[str, str], before: list[MeasuredLayer], faults: list[Fault], batch_size: int
) -> MeasuredLayer:
    """Return a layer; an empty figure is 0."""
    if not cells["name"]:
        faults.append(_column_fault(path, line, "name", "it is empty.", "Give every layer a name."))
    figures = {
        column: figure_of(path, line, column, given, faults, example=_EXAMPLES.get(column, "802816"))
        for column in _FIGURES
        if (given := cells.get(column, ""))
    }
    multiply_adds = figures.get("multiply_adds", 0.0)
    chain = (before[-1].name,) if before else ()
    return MeasuredLayer(
        name=cells["name"],
        kind=cells.get("kind") or "operator",
        inputs=tuple(dict.fromkeys(cells["inputs"].replace(";", " ").split())) if "inputs" in cells else chain,
        forward_s=figures.get("forward_s", 0.0),
        backward_s=figures.get("backward_s", 0.0),
        output_bytes=figures.get("output_bytes", 0.0),
        parameter_bytes=figures.get("parameter_bytes", 0.0),
        num_multiply_adds=round(multiply_adds / batch_size) if 0 <= multiply_adds < float("inf") else 0,
        line=line,
    )


def _unknown_inputs(path: Path, rows: list[MeasuredLayer]) -> list[Fault]:
    """Return a fault for every input that is no layer."""
    names = {row.name for row in rows}
    return [
        Fault(
            file=str(path),
            line=row.line,
            field="inputs",
            value=name[:80],
            problem=f"layer {row.name!r} reads {name!r:.80}, which does not exist.",
            mend="Name a layer of this table; names of several inputs hold no blanks.",
        )
        for row in rows
        for name in row.inputs
        if name not in names
    ]
