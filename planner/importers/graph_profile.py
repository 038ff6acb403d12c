"""Profiled operator graphs in the text format of PipeDream's profiler.

One line an operator, ``node1 -- Conv2d(...) -- forward_compute_time=1.5, backward_compute_time=3.0,
activation_size=4096.0, parameter_size=512.0``, times in ms and sizes in bytes of the whole batch (a list ``[4096.0;
128.0]`` where there are several outputs), and one line an edge, ``node1 -- node2``, in any order. Comments start with
``#``. Source of the format: D. Narayanan et al., PipeDream, SOSP '19, doi:10.1145/3341301.3359646.
"""

import math
import re
from dataclasses import replace
from pathlib import Path

from planner.errors import Fault, SpecError
from planner.importers.measured import MeasuredLayer, MeasuredNetwork, build_measured
from planner.importers.text import read_text

__all__ = ["read_graph_profile"]

_MS = 1e-3
_OPERATOR = re.compile(r"(?P<name>\S+) -- (?P<text>.*) -- (?P<figures>\w+=.*)", re.DOTALL)
_EDGE = re.compile(r"(?P<first>\S+) -- (?P<second>\S+)")
_FIGURES = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_KINDS = {
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
    """Return the network and profile of a graph file.

    Operators without parameters stay. Operators keep the order of the numbers in their names; an ``Input``'s forward
    time is reading.

    Raises
    ------
    SpecError
        With file and line of everything that is wrong with it, in one pass.
    """
    faults: list[Fault] = []
    rows: dict[str, MeasuredLayer] = {}
    edges: list[tuple[str, str, int]] = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if operator := _OPERATOR.fullmatch(text):
            _add_operator(operator, rows, number, faults, path)
        elif edge := _EDGE.fullmatch(text):
            edges.append((edge["first"], edge["second"], number))
        else:
            faults.append(
                _fault(
                    path,
                    number,
                    text,
                    "this is neither an operator nor an edge.",
                    "Write e.g. node1 -- Linear -- forward_compute_time=1.5, ... or node1 -- node2.",
                )
            )
    inputs = _inputs(rows, edges, faults, path)
    if not rows and not faults:
        faults.append(
            _fault(
                path,
                None,
                "",
                "there is no operator in it.",
                "Give at least one line 'node1 -- Name -- forward_compute_time=...'.",
            )
        )
    if faults:
        raise SpecError.of(faults)
    ordered = [replace(rows[name], inputs=tuple(inputs[name])) for name in sorted(rows, key=_natural)]
    name = path.name.removesuffix(".txt").removesuffix(".graph")
    try:
        return build_measured(name, ordered, batch_size=batch_size, origin=f"operator graph {path.name}")
    except ValueError as error:
        at = next((line for first, second, line in edges if _step(first, second) in str(error)), None)
        mend = "" if "; " in str(error) else "Mend the profile."
        raise SpecError.of([_fault(path, at, "", f"{error}.", mend)]) from None


def _step(first: str, second: str) -> str:
    """Return how the message about a cycle writes an edge of it."""
    return f" {first} -> ..." if first == second else f" {first} -> {second} -> "


def _add_operator(
    found: "re.Match[str]", rows: dict[str, MeasuredLayer], number: int, faults: list[Fault], path: Path
) -> None:
    """Parse one operator's line into ``rows``, or add what is wrong with it to ``faults``."""
    name, text = found["name"], found["text"].strip()
    if name in rows:
        first = rows[name].line
        faults.append(
            _fault(path, number, name, f"operator {name!r} stands twice (first on line {first}).", "Rename one.")
        )
        return
    figures = {}
    for key in _FIGURES:
        given = re.search(rf"{key}=(\[[^\]]*\]|[^,\s]+)", found["figures"])
        value = _number(given[1]) if given else None
        if value is None:
            what = f"{given[1]!r} is not a number >= 0." if given else "it is missing."
            faults.append(
                _fault(path, number, given[1] if given else "", f"{name}: {key}: {what}", f"Write {key}=1.5.")
            )
        figures[key] = value or 0.0
    rows[name] = MeasuredLayer(
        name=name,
        kind=next((kind for prefix, kind in _KINDS.items() if text.startswith(prefix)), "operator"),
        forward_s=figures["forward_compute_time"] * _MS,
        backward_s=figures["backward_compute_time"] * _MS,
        output_bytes=figures["activation_size"],
        parameter_bytes=figures["parameter_size"],
        is_in_place="inplace" in text or text.startswith(("View", "Size", "Dropout(p=0)")),
        line=number,
    )


def _number(text: str) -> float | None:
    """Return a finite number >= 0, or the sum of a list of such; None where it is something else."""
    try:
        values = [float(part) for part in text.strip("[]").split(";") if part.strip()]
    except ValueError:
        return None
    value = sum(values)
    return value if math.isfinite(value) and min(values, default=-1) >= 0 else None


def _inputs(
    rows: dict[str, MeasuredLayer], edges: list[tuple[str, str, int]], faults: list[Fault], path: Path
) -> dict[str, list[str]]:
    """Return the inputs of every operator; edges that end nowhere become faults."""
    inputs: dict[str, list[str]] = {name: [] for name in rows}
    for first, second, number in edges:
        for end in (first, second):
            if end not in rows:
                faults.append(
                    _fault(
                        path,
                        number,
                        end,
                        f"the edge names {end!r}, which is no operator of this file.",
                        "Add its line, or remove the edge.",
                    )
                )
        if first in rows and second in rows and first not in inputs[second]:
            inputs[second].append(first)
    return inputs


def _natural(name: str) -> tuple[int, str]:
    """Return a key that puts node2 before node10."""
    digits = re.search(r"\d+", name)
    return (int(digits[0]) if digits else 0, name)


def _fault(path: Path, line: int | None, value: str, problem: str, mend: str) -> Fault:
    """Return a fault in this file."""
    return Fault(file=str(path), line=line, value=value[:80], problem=problem, mend=mend)
