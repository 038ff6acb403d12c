"""Layer-wise traces in the format of Table VI of the S-SGD paper.

Columns ``Id Name Forward Backward Comm. Size``, times in microseconds of a whole batch and sizes in bytes of gradient,
separated by commas or blanks, in forward order; a header line and comments (``#``) may stand. A first layer named
``data`` is the reading of the batch. Source: S. Shi et al., arXiv:1805.03812, section VI.
"""

import re
from pathlib import Path

from planner.errors import Fault, SpecError
from planner.importers.measured import MeasuredLayer, MeasuredNetwork, build_measured
from planner.importers.rows import doubled, figure_of
from planner.importers.text import read_text

__all__ = ["read_layer_trace"]

_US = 1e-6
_COLUMNS = ("Id", "Name", "Forward", "Backward", "Comm.", "Size")
_KINDS = {"data": "input", "input": "input", "conv": "convolution", "fc": "fully_connected", "relu": "activation"}
_KINDS |= {"pool": "pooling", "drop": "dropout", "loss": "loss", "bn": "batch_norm"}


def read_layer_trace(path: Path, *, batch_size: int) -> MeasuredNetwork:
    """Return the network, a chain, and the profile of a trace file.

    The measured communication is not used: it belongs to its own cluster.

    Raises
    ------
    SpecError
        With file, line and column name of everything that is wrong, in one pass.
    """
    faults: list[Fault] = []
    rows: list[MeasuredLayer] = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        text = line.strip()
        fields = [part.strip() for part in (text.split(",") if "," in text else text.split())]
        if not text or text.startswith("#") or fields[0].lower() == "id":
            continue
        if len(fields) != len(_COLUMNS):
            problem = f"{len(fields)} columns instead of {len(_COLUMNS)}."
            faults.append(
                Fault(
                    file=str(path), line=number, value=text[:80], problem=problem, mend=f"Write {' '.join(_COLUMNS)}."
                )
            )
            continue
        figures = [
            figure_of(path, number, column, given, faults)
            for column, given in zip(_COLUMNS[2:], fields[2:], strict=True)
        ]
        forward, backward, _, size = figures
        rows.append(_row(fields[1], rows, forward * _US, backward * _US, size, number))
    faults += doubled(path, rows)
    if not rows and not faults:
        faults.append(
            Fault(file=str(path), problem="there is no layer in it.", mend=f"Write lines of {' '.join(_COLUMNS)}.")
        )
    if faults:
        raise SpecError.of(faults)
    try:
        return build_measured(
            path.stem.removesuffix(".trace"), rows, batch_size=batch_size, origin=f"layer-wise trace {path.name}"
        )
    except ValueError as error:
        raise SpecError.of([Fault(file=str(path), problem=f"{error}.", mend="Mend the trace.")]) from None


def _row(
    name: str, before: list[MeasuredLayer], forward_s: float, backward_s: float, size: float, line: int
) -> MeasuredLayer:
    """Return one layer, fed by the one before it."""
    stem = re.match(r"[a-z]+", name.lower())
    return MeasuredLayer(
        name=name,
        kind=_KINDS.get(stem[0] if stem else "", "operator"),
        inputs=(before[-1].name,) if before else (),
        forward_s=forward_s,
        backward_s=backward_s,
        parameter_bytes=size,
        line=line,
    )
