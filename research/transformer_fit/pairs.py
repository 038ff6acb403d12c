"""Pairs of measured layouts of one network on the same devices, and whether the model ranks them as they were measured.

An exact search picks what its costs overrate, so that what a decision takes must be right between layouts, however far
off the steps are together. A line has the pairs that differ in the decisions it names; the first of both has more of
the first decision (a larger tensor degree, a larger micro-batch). Repeats of a layout count once, with their mean.

Behind these stand steps of networks with experts that are printed elsewhere (``published.csv``), which no fit has seen;
those of DeepSeek-V3 on B300 decided how much of its peak products reach there.

    python -m research.transformer_fit.pairs --data PATH
"""

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from planner.data.fits import transformer_rates
from planner.models.low_precision import LowFigures
from research.transformer_fit.fit import PRIORS, Table
from research.transformer_fit.low_precision import is_fitted, predicted_s
from research.transformer_fit.low_rows import LowRow, published_rows, read_low_rows
from research.transformer_fit.rows import Row, read_rows

__all__ = ["Pair", "main", "pairs_of", "published_text", "table_text"]

_DECISIONS = ("tensor", "context", "pipeline", "expert", "interleave", "microbatch", "zero", "recompute")
_CLEAR = 0.03  # steps that are nearer to one another are not ranked
_FEWEST = 4  # pairs of a line


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two layouts by the decisions in which they differ: logarithms of the first's step over the second's."""

    device: str
    differing: str
    measured: float
    predicted: float


def pairs_of(rows: Iterable[tuple[Row, object, float]]) -> list[Pair]:
    """Return the pairs of rows, each with its number type and what it is predicted to take.

    Of a pair family, network, type, device, program, batch and the number of devices are the same.
    """
    groups: dict[tuple[object, ...], dict[tuple[int, ...], list[tuple[float, float]]]] = defaultdict(dict)
    for row, kind, predicted in rows:
        given = {name: int(row.layout.get(name, 1)) for name in (*_DECISIONS, "data", "num_microbatches")}
        batch = given["data"] * given["microbatch"] * given["num_microbatches"]
        devices = given["data"] * given["tensor"] * given["context"] * given["pipeline"]
        same = (row.device, row.family, row.transformer, kind, row.software, batch, devices)
        layout = tuple(given[name] for name in _DECISIONS)
        groups[same].setdefault(layout, []).append((row.iteration_s, predicted))
    found = []
    for (device, *_), layouts in groups.items():
        logs = {layout: np.log(steps).mean(axis=0) for layout, steps in layouts.items()}
        for less, more in combinations(sorted(logs), 2):  # sorted: more of the first decision that differs is behind
            names = [name for name, a, b in zip(_DECISIONS, more, less, strict=True) if a != b]
            measured, predicted = (logs[more] - logs[less]).tolist()
            pair = Pair(device=str(device), differing=", ".join(names), measured=measured, predicted=predicted)
            found.append(pair)
    return found


def table_text(found: Sequence[Pair]) -> str:
    """Return a line for each device and set of decisions, and one for all of a device."""
    lines = [
        "| device | differing in | pairs | ranked right | more takes: measured | predicted |",
        "|---|---|---|---|---|---|",
    ]
    by: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for one in found:
        by[one.device, one.differing].append(one)
        by[one.device, "anything"].append(one)
    for (device, differing), some in sorted(by.items()):
        if len(some) < _FEWEST:
            continue
        clear = [one for one in some if abs(one.measured) > _CLEAR]
        right = sum(one.measured * one.predicted > 0 for one in clear) / max(len(clear), 1)
        ways = (np.expm1(np.mean([getattr(one, way) for one in some])) for way in ("measured", "predicted"))
        measured, predicted = ("-" if differing == "anything" else f"{way:+.1%}" for way in ways)
        lines.append(
            f"| {device} | {differing} | {len(some)} | {right:.0%} of {len(clear)} | {measured} | {predicted} |"
        )
    return "\n".join(lines)


def published_text(rows: Sequence[LowRow], predicted: Sequence[float]) -> str:
    """Return a line for each step that is printed elsewhere."""
    lines = ["| network | type | devices | layout | measured | predicted | error |", "|---|---|---|---|---|---|---|"]
    for one, seconds in zip(rows, predicted, strict=True):
        row, layout = one.row, one.row.layout
        degrees = {"t": "tensor", "p": "pipeline", "d": "data", "e": "expert", "v": "interleave", "b": "microbatch"}
        words = " ".join(f"{letter}{layout[name]}" for letter, name in degrees.items())
        words += " overlap" if layout["overlap_expert"] else ""
        devices = layout["tensor"] * layout["pipeline"] * layout["data"]
        cells = (one.model, (one.low or ("bf16",))[0], f"{devices} x {row.device}", words)
        steps = (f"{row.iteration_s:.4g} s", f"{seconds:.4g} s", f"{seconds / row.iteration_s - 1:+.1%}")
        lines.append(f"| {' | '.join((*cells, *steps))} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.transformer_fit.pairs", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("PLANNER_DATA"), help="folder of measured data")
    given = parser.parse_args(arguments)
    if given.data is None or not (given.data / "llm" / "open.csv").is_file():
        print("no measured data: name their folder by --data or PLANNER_DATA.", file=sys.stderr)
        return 2
    shipped = transformer_rates()
    parameters = {}
    for name in PRIORS:
        section, *path = name.split(".")
        value: Any = shipped[section]
        for key in path:
            value = value[key]
        parameters[name] = float(value)
    rows, low = read_rows(given.data), [one for one in read_low_rows(given.data) if is_fitted(one) or one.low is None]
    found: list[tuple[Row, object, float]] = [
        (row, None, step) for row, step in zip(rows, Table(rows).predict(parameters).tolist(), strict=True)
    ]
    figures = LowFigures.of(shipped["low_precision"])
    steps = predicted_s(low, figures).tolist()
    found += [(one.row, one.low, step) for one, step in zip(low, steps, strict=True)]
    elsewhere = published_rows()
    print(table_text(pairs_of(found)), published_text(elsewhere, predicted_s(elsewhere, figures).tolist()), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
