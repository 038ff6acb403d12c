"""All-reduces of one network's layers, as logged in training, by the all-reduce curve of the same number of nodes.

A log has a line for every parameter: ``[id, fp32 elements, backward us, all-reduce us]``, even ids weights, odd ids the
biases of the same layers, in forward order; a fifth column has the all-reduces of a run that merges layers, booked on
the last layer that joins, as gradients get ready in the reverse order. With five columns a bias travels with its
weight.
A log may hold several tables; the last one is meant. Evaluations: see :func:`measure`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from planner.models.communication import MeasuredCurve
from planner.question.values import Count, Model, Name
from research.measured import Measured, MeasuredRow, Parameters, fit_logs, left_out

__all__ = ["Inputs", "measure"]

_US = 1e-6
_ELEMENT_BYTES = 4
_ROW = re.compile(r"\] \[([-+.\deE, ]+)\]")


class LogInput(Model):
    """A log and its number of nodes; ``is_repeated``: its fifth column merges nothing, but repeats the fourth."""

    file: Name
    num_nodes: Count
    is_repeated: bool = False


class Inputs(Model):
    """The logs, by the name of the run, and the curve of every number of nodes."""

    logs: Annotated[dict[str, LogInput], Field(min_length=1)]
    curves: dict[int, Name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What one line of the result is about: all-reduces of some sizes, one after the other."""

    run: str
    num_nodes: int
    what: str
    sizes_bytes: tuple[float, ...]
    measured_s: float
    is_merged: bool = False


def measure(inputs: Inputs, path: Path) -> Measured:
    """Return the rows of three evaluations.

    curve alone
        The curve of as many nodes, nothing fitted.
    other numbers of nodes
        The curve times one factor, fitted to the layers of the other numbers of nodes.
    repetition
        The same all-reduces, measured twice: the error of a prediction that knows the answer.
    """
    curves = {number: _curve(path / file) for number, file in inputs.curves.items()}
    sent, repeated = [], []
    for run, log in inputs.logs.items():
        table = _table(path / log.file)
        sent += list(_layers(run, log, table))
        repeated += list(_repeated(run, log, table))
        sent += list(_merged(run, log, table))

    def predicted_s(one: Sent, parameters: Parameters) -> float:
        return parameters[0] * float(np.sum(curves[one.num_nodes](np.array(one.sizes_bytes))))

    def fit(rows: Sequence[Sent]) -> Parameters:
        return fit_logs(rows, predicted_s, start=(1.0,), most=(100.0,))

    rows = _rows("curve alone", ((one, predicted_s(one, (1.0,))) for one in sent))
    found = left_out(sent, lambda one: one.num_nodes, lambda rest: fit([one for one in rest if not one.is_merged]))
    rows += _rows("other numbers of nodes", ((one, predicted_s(one, factor)) for one, factor in found))
    rows += _rows("repetition", repeated)
    return Measured(
        rows=tuple(rows), fitted={"factor on the curve": fit([one for one in sent if not one.is_merged])[0]}
    )


# -- what was sent ---------------------------------------------------------------------------------------------------


def _layers(run: str, log: LogInput, table: Sequence[Sequence[float]]) -> Iterable[Sent]:
    """Yield the all-reduces of every layer: one of weight and bias, or two where the log has no fifth column."""
    for weight, bias in zip(table[::2], table[1::2], strict=True):
        sizes = (weight[1] * _ELEMENT_BYTES, bias[1] * _ELEMENT_BYTES)
        yield Sent(
            run=run,
            num_nodes=log.num_nodes,
            what=f"layer {weight[0] / 2:.0f}",
            sizes_bytes=sizes if len(weight) == 4 else (sum(sizes),),
            measured_s=(weight[3] + bias[3]) * _US,
        )


def _merged(run: str, log: LogInput, table: Sequence[Sequence[float]]) -> Iterable[Sent]:
    """Yield the merged all-reduces, the last layer's first."""
    if len(table[0]) == 4 or log.is_repeated:
        return
    held_bytes = 0.0
    for weight, bias in zip(table[-2::-2], table[::-2], strict=True):
        held_bytes += (weight[1] + bias[1]) * _ELEMENT_BYTES
        if weight[4]:
            yield Sent(
                run=run,
                num_nodes=log.num_nodes,
                what=f"merged up to layer {weight[0] / 2:.0f}",
                sizes_bytes=(held_bytes,),
                measured_s=(weight[4] + bias[4]) * _US,
                is_merged=True,
            )
            held_bytes = 0.0


def _repeated(run: str, log: LogInput, table: Sequence[Sequence[float]]) -> Iterable[tuple[Sent, float]]:
    """Yield every layer with the seconds of a second measurement."""
    if log.is_repeated:
        for one, weight, bias in zip(_layers(run, log, table), table[::2], table[1::2], strict=True):
            yield one, (weight[4] + bias[4]) * _US


# -- rows ------------------------------------------------------------------------------------------------------------


def _rows(evaluation: str, found: Iterable[tuple[Sent, float]]) -> list[MeasuredRow]:
    """Return a row for every all-reduce, and for the sum of every run, layer by layer and merged."""
    pairs = list(found)
    rows = [_row(evaluation, one, predicted_s) for one, predicted_s in pairs]
    for run, is_merged in dict.fromkeys((one.run, one.is_merged) for one, _ in pairs):
        own = [(one, seconds) for one, seconds in pairs if (one.run, one.is_merged) == (run, is_merged)]
        choice = "merged" if is_merged else "layer by layer"
        rows.append(
            MeasuredRow(
                evaluation=evaluation,
                quantity=f"{evaluation}: {run}, sum, {choice}",
                group=f"{own[0][0].num_nodes} nodes, sums",
                unit="ms",
                measured=1e3 * sum(one.measured_s for one, _ in own),
                predicted=1e3 * sum(seconds for _, seconds in own),
                setting=run,
                choice=choice,
            )
        )
    return rows


def _row(evaluation: str, one: Sent, predicted_s: float) -> MeasuredRow:
    return MeasuredRow(
        evaluation=evaluation,
        quantity=f"{evaluation}: {one.run}, {one.what}",
        group=f"{one.num_nodes} nodes, {'merged' if one.is_merged else 'layers'}",
        unit="ms",
        measured=1e3 * one.measured_s,
        predicted=1e3 * predicted_s,
    )


# -- files -----------------------------------------------------------------------------------------------------------


def _table(path: Path) -> list[list[float]]:
    """Return the last table of a log, sorted by parameter."""
    found = [_ROW.search(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [[float(cell) for cell in match[1].split(",")] for match in found if match]
    start = max(index for index, row in enumerate(rows) if row[0] == 0)
    return rows[start:]


def _curve(path: Path) -> MeasuredCurve:
    """Return an all-reduce latency test: size in bytes, in some files after the number of nodes, and microseconds."""
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [line for line in lines if len(line) == 2 and line[0] != "#"]
    return MeasuredCurve(
        size_bytes=tuple(float(size.rsplit(",", 1)[-1]) for size, _ in rows),
        seconds=tuple(float(latency) * _US for _, latency in rows),
    )
