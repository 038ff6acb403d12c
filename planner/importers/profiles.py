"""Measured layers as text: three formats, one reader each, which all give a network and the seconds of its layers.

- A table of our own, CSV with named columns, for everybody who has times of their own. ``planner import --template``
  prints :func:`template` to start from.
- Layer-wise traces in the format of Table VI of the S-SGD paper: ``Id Name Forward Backward Comm. Size``, microseconds
  and bytes of gradient, separated by commas or blanks, in forward order; a header line may stand. A first layer named
  ``data`` is the reading of the batch. Source: S. Shi et al., arXiv:1805.03812, section VI.
- Operator graphs of PipeDream's profiler. One line an operator, ``node1 -- Conv2d(...) -- forward_compute_time=1.5,
  backward_compute_time=3.0, activation_size=4096.0, parameter_size=512.0``, milliseconds and bytes (a list
  ``[4096.0; 128.0]`` where there are several outputs), and one line an edge, ``node1 -- node2``, in any order. Source:
  D. Narayanan et al., PipeDream, SOSP '19, doi:10.1145/3341301.3359646.

Seconds, output bytes and multiply-adds are of a whole batch. Comments start with ``#``. Every reader names everything
that is wrong with a file in one pass.
"""

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from planner.errors import Fault, SpecError
from planner.importers.imported import MeasuredLayer, MeasuredNetwork, build_measured
from planner.importers.text import read_text
from planner.shipped import shipped_text


class _Reading:
    """A file, and what was found wrong with it so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: list[Fault] = []

    def fault(self, problem: str, hint: str, *, line: int | None = None, field: str = "", value: str = "") -> None:
        """Note what is wrong."""
        place = Fault(file=str(self.path), line=line, field=field[:80], value=value[:80], problem=problem, mend=hint)
        self.faults.append(place)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines that are no comments, without blanks around them, with their numbers."""
        for number, line in enumerate(read_text(self.path).splitlines(), start=1):
            text = line.strip()
            if text and not text.startswith("#"):
                yield number, text

    def figure(self, line: int, column: str, given: str, example: str) -> float:
        """Return a finite number >= 0, or whatever stands there and a fault."""
        try:
            value = float(given)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            problem = f"{given!r:.80} is not a number >= 0."
            self.fault(problem, f"Write e.g. {example}.", line=line, field=column, value=given)
        return value

    def check_names(self, rows: list[MeasuredLayer]) -> None:
        """Note the rows whose name stands twice."""
        counts = Counter(row.name for row in rows)
        for row in rows:
            if counts[row.name] > 1:
                self.fault(f"layer {row.name!r} stands twice.", "Rename one.", line=row.line, value=row.name)

    def built(self, name: str, rows: list[MeasuredLayer], batch_size: int, what: str) -> MeasuredNetwork:
        """Return the network of the rows; raise SpecError where there is a fault, or ValueError where none can be."""
        if self.faults:
            raise SpecError.of(self.faults)
        return build_measured(name, rows, batch_size=batch_size, origin=f"{what} {self.path.name}")


# -- a table of layers -----------------------------------------------------------------------------------------------

COLUMNS = ("name", "kind", "inputs", "forward_s", "backward_s", "output_bytes", "parameter_bytes", "multiply_adds")
_NEEDED = ("name", "forward_s", "backward_s")
_FIGURES = COLUMNS[3:]
_EXAMPLES = {"forward_s": "0.00184", "backward_s": "0.00371", "multiply_adds": "3.7e9"}


def template() -> str:
    """Return a table of layers to start from, with what its columns mean."""
    return shipped_text("planner.importers", "measured_layers.csv")


def read_layer_csv(path: Path, *, batch_size: int) -> MeasuredNetwork:
    """Return the network and profile of a table of layers; an empty figure is 0.

    Parameters
    ----------
    batch_size
        Samples of the batch that was measured.

    Raises
    ------
    SpecError
        With file, line and column of everything that is wrong.
    """
    reading = _Reading(path)
    rows: list[MeasuredLayer] = []
    columns: list[str] | None = None
    for line, cells in _cells(reading):
        if columns is None:
            columns = [cell.lower() for cell in cells]
            _check_header(reading, line, columns)
            if reading.faults:
                break
        elif len(cells) != len(columns):
            problem = f"{len(cells)} columns instead of {len(columns)}."
            reading.fault(problem, f"Write {','.join(columns)}.", line=line)
        else:
            before = (rows[-1].name,) if rows else ()
            rows.append(_csv_row(reading, line, dict(zip(columns, cells, strict=True)), before, batch_size))
    if columns is None:
        _check_header(reading, None, [])
    reading.check_names(rows)
    names = {row.name for row in rows}
    for row in rows:
        for name in row.inputs:
            if name not in names:
                problem = f"layer {row.name!r} reads {name!r:.80}, which does not exist."
                hint = "Name a layer of this table; names of several inputs hold no blanks."
                reading.fault(problem, hint, line=row.line, field="inputs", value=name)
    if not rows and not reading.faults:
        reading.fault("there is no layer in it.", "Write a line for each layer.")
    try:
        return reading.built(path.stem.removesuffix(".layers"), rows, batch_size, "table of layers")
    except ValueError as error:
        raise SpecError.one(f"{error}.", "Mend the table.", file=path) from None


def _cells(reading: _Reading) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of every line that is CSV, with its number."""
    for line, text in reading.lines():
        try:
            (cells,) = csv.reader([text], strict=True)
        except (csv.Error, ValueError) as error:
            reading.fault(f"{error}.", "Close the quotation mark.", line=line, value=text)
            continue
        yield line, [cell.strip() for cell in cells]


def _check_header(reading: _Reading, line: int | None, columns: list[str]) -> None:
    """Note what is wrong with the first line."""
    if "name" not in columns:
        problem = "the first line does not name the columns."
        reading.fault(problem, f"Begin with {','.join(COLUMNS)}.", line=line)
        return
    for column in dict.fromkeys(columns):
        if columns.count(column) > 1:
            reading.fault("it stands twice.", "Remove one.", line=line, field=column, value=column)
        elif column not in COLUMNS:
            alike = next((one for one in _FIGURES if one.rsplit("_", 1)[0] == column.rsplit("_", 1)[0]), None)
            hint = f"Convert it to {alike}." if alike else f"Known ones are {', '.join(COLUMNS)}."
            reading.fault("there is no such column.", hint, line=line, field=column, value=column)
    for column in _NEEDED:
        if column not in columns:
            reading.fault("it is missing.", f"Add the column {column}.", line=line, field=column, value=column)


def _csv_row(
    reading: _Reading, line: int, cells: dict[str, str], before: tuple[str, ...], batch_size: int
) -> MeasuredLayer:
    """Return a layer, which reads the one ``before`` it where there is no column of inputs."""
    if not cells["name"]:
        reading.fault("it is empty.", "Give every layer a name.", line=line, field="name", value="name")
    figures = dict.fromkeys(_FIGURES, 0.0)
    for column in _FIGURES:
        if given := cells.get(column, ""):
            figures[column] = reading.figure(line, column, given, _EXAMPLES.get(column, "802816"))
    multiply_adds = figures["multiply_adds"]
    return MeasuredLayer(
        name=cells["name"],
        kind=cells.get("kind") or "operator",
        inputs=tuple(dict.fromkeys(cells["inputs"].replace(";", " ").split())) if "inputs" in cells else before,
        forward_s=figures["forward_s"],
        backward_s=figures["backward_s"],
        output_bytes=figures["output_bytes"],
        parameter_bytes=figures["parameter_bytes"],
        num_multiply_adds=round(multiply_adds / batch_size) if 0 <= multiply_adds < float("inf") else 0,
        line=line,
    )


# -- layer-wise traces -----------------------------------------------------------------------------------------------

_US = 1e-6
_TRACE_COLUMNS = ("Id", "Name", "Forward", "Backward", "Comm.", "Size")
_TRACE_KINDS = {
    "data": "input",
    "input": "input",
    "conv": "convolution",
    "fc": "fully_connected",
    "relu": "activation",
    "pool": "pooling",
    "drop": "dropout",
    "loss": "loss",
    "bn": "batch_norm",
}


def read_layer_trace(path: Path, *, batch_size: int) -> MeasuredNetwork:
    """Return the network, a chain, and the profile of a layer-wise trace.

    The measured communication is not used: it belongs to its own cluster.

    Parameters
    ----------
    batch_size
        Samples of the batch that was measured.

    Raises
    ------
    SpecError
        With file, line and column name of everything that is wrong.
    """
    reading = _Reading(path)
    rows: list[MeasuredLayer] = []
    for line, text in reading.lines():
        cells = [part.strip() for part in (text.split(",") if "," in text else text.split())]
        if cells[0].lower() == "id":
            continue
        if len(cells) != len(_TRACE_COLUMNS):
            problem = f"{len(cells)} columns instead of {len(_TRACE_COLUMNS)}."
            reading.fault(problem, f"Write {' '.join(_TRACE_COLUMNS)}.", line=line, value=text)
            continue
        named = zip(_TRACE_COLUMNS[2:], cells[2:], strict=True)
        forward_us, backward_us, _, size_bytes = [reading.figure(line, *cell, "288202") for cell in named]
        stem = re.match(r"[a-z]+", cells[1].lower())
        rows.append(
            MeasuredLayer(
                name=cells[1],
                kind=_TRACE_KINDS.get(stem[0] if stem else "", "operator"),
                inputs=(rows[-1].name,) if rows else (),
                forward_s=forward_us * _US,
                backward_s=backward_us * _US,
                parameter_bytes=size_bytes,
                line=line,
            )
        )
    reading.check_names(rows)
    if not rows and not reading.faults:
        reading.fault("there is no layer in it.", f"Write lines of {' '.join(_TRACE_COLUMNS)}.")
    try:
        return reading.built(path.stem.removesuffix(".trace"), rows, batch_size, "layer-wise trace")
    except ValueError as error:
        raise SpecError.one(f"{error}.", "Mend the trace.", file=path) from None


# -- operator graphs -------------------------------------------------------------------------------------------------

_MS = 1e-3
_OPERATOR = re.compile(r"(?P<name>\S+) -- (?P<text>.*) -- (?P<figures>\w+=.*)", re.DOTALL)
_EDGE = re.compile(r"(?P<first>\S+) -- (?P<second>\S+)")
_GRAPH_FIGURES = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_GRAPH_KINDS = {
    "Conv": "convolution",
    "Linear": "fully_connected",
    "BatchNorm": "batch_norm",
    "ReLU": "activation",
    "Tanh": "activation",
    "MaxPool": "pooling",
    "AvgPool": "pooling",
    "AdaptiveAvgPool": "pooling",
    "Dropout": "dropout",
    "Add": "add",
    "Concat": "concatenate",
    "Input": "input",
    "LSTM": "recurrent",
    "Embedding": "embedding",
}


def read_graph_profile(path: Path, *, batch_size: int) -> MeasuredNetwork:
    """Return the network and profile of an operator graph.

    Operators without parameters stay. Operators keep the order of the numbers in their names; an ``Input``'s forward
    time is reading.

    Parameters
    ----------
    batch_size
        Samples of the batch that was measured.

    Raises
    ------
    SpecError
        With file and line of everything that is wrong.
    """
    reading = _Reading(path)
    rows: dict[str, MeasuredLayer] = {}
    edges: list[tuple[str, str, int]] = []
    for line, text in reading.lines():
        if found := _OPERATOR.fullmatch(text):
            name = found["name"]
            if name in rows:
                problem = f"operator {name!r} stands twice (first on line {rows[name].line})."
                reading.fault(problem, "Rename one.", line=line, value=name)
            else:
                rows[name] = _graph_row(reading, line, found)
        elif edge := _EDGE.fullmatch(text):
            edges.append((edge["first"], edge["second"], line))
        else:
            hint = "Write e.g. node1 -- Linear -- forward_compute_time=1.5, ... or node1 -- node2."
            reading.fault("this is neither an operator nor an edge.", hint, line=line, value=text)
    inputs: dict[str, list[str]] = {name: [] for name in rows}
    for first, second, line in edges:
        for end in (first, second):
            if end not in rows:
                problem = f"the edge names {end!r}, which is no operator of this file."
                reading.fault(problem, "Add its line, or remove the edge.", line=line, value=end)
        if first in rows and second in rows and first not in inputs[second]:
            inputs[second].append(first)
    if not rows and not reading.faults:
        hint = "Give at least one line 'node1 -- Name -- forward_compute_time=...'."
        reading.fault("there is no operator in it.", hint)
    ordered = [replace(rows[name], inputs=tuple(inputs[name])) for name in sorted(rows, key=_natural)]
    name = path.name.removesuffix(".txt").removesuffix(".graph")
    try:
        return reading.built(name, ordered, batch_size, "operator graph")
    except ValueError as error:
        # The message about a cycle writes its edges so.
        arrows = {line: f" {one} -> {two};" if one == two else f" {one} -> {two} -> " for one, two, line in edges}
        line_of_edge = next((line for line, arrow in arrows.items() if arrow in str(error)), None)
        hint = "" if "; " in str(error) else "Mend the profile."
        raise SpecError.one(f"{error}.", hint, file=path, line=line_of_edge) from None


def _graph_row(reading: _Reading, line: int, found: "re.Match[str]") -> MeasuredLayer:
    figures = {}
    for key in _GRAPH_FIGURES:
        given = re.search(rf"{key}=(\[[^\]]*\]|[^,\s]+)", found["figures"])
        value = _sum_of(given[1]) if given else None
        if value is None:
            what = f"{given[1]!r} is not a number >= 0." if given else "it is missing."
            value_given = given[1] if given else ""
            reading.fault(f"{found['name']}: {key}: {what}", f"Write {key}=1.5.", line=line, value=value_given)
        figures[key] = value or 0.0
    text = found["text"].strip()
    return MeasuredLayer(
        name=found["name"],
        kind=next((kind for prefix, kind in _GRAPH_KINDS.items() if text.startswith(prefix)), "operator"),
        forward_s=figures["forward_compute_time"] * _MS,
        backward_s=figures["backward_compute_time"] * _MS,
        output_bytes=figures["activation_size"],
        parameter_bytes=figures["parameter_size"],
        is_in_place="inplace" in text or text.startswith(("View", "Size", "Dropout(p=0)")),
        line=line,
    )


def _sum_of(text: str) -> float | None:
    """Return a finite number >= 0, or the sum of a list of such; None where it is something else."""
    try:
        values = [float(part) for part in text.strip("[]").split(";") if part.strip()]
    except ValueError:
        return None
    value = sum(values)
    return value if math.isfinite(value) and min(values, default=-1) >= 0 else None


def _natural(name: str) -> tuple[int, str]:
    """Return a key that puts node2 before node10."""
    digits = re.search(r"\d+", name)
    return (int(digits[0]) if digits else 0, name)
