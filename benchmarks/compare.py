"""Compare two measurements: python -m benchmarks.compare BEFORE.json AFTER.json, or one file with two commits.

A figure of a command is its median over the runs. Runs of the same code scatter, so a ratio counts as a change only
where no run of the one is within the runs of the other, and it is more than ``--least`` away from 1.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Row", "compared", "table", "trees_of"]

_WORDS = {"cpu_s": "seconds of processors", "wall_s": "wall seconds", "peak_bytes": "greatest resident memory"}
_UNITS = {"cpu_s": (1.0, "s"), "wall_s": (1.0, "s"), "peak_bytes": (2.0**20, "MiB"), "s": (1e-3, "ms")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of one command, before and after; ``low`` and ``high``: what the ratio may be, by single runs."""

    name: str
    figure: str
    before: float
    after: float
    low: float
    high: float
    is_same_output: bool | None
    num_runs: int

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before

    def verdict(self, least: float) -> str:
        """Return whether it changed, in a word; of single runs nobody knows."""
        if self.num_runs < 2:
            return ""
        if self.low > 1 and self.ratio > 1 + least:
            return "WORSE"
        return "better" if self.high < 1 and self.ratio < 1 / (1 + least) else ""


def trees_of(paths: Sequence[Path]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the two measured trees of one file, or the first ones of two.

    Raises
    ------
    ValueError
        If a file is no measurement, or there are not two trees.
    """
    documents = []
    for path in paths:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or found.get("schema") != "planner.benchmarks/1":
            raise ValueError(f"{path} is not what `python -m benchmarks.run` writes")
        documents.append(found)
    trees = documents[0]["trees"] if len(documents) == 1 else [one["trees"][0] for one in documents]
    if len(trees) != 2:
        raise ValueError("two measurements are needed: two files, or one of two commits")
    before, after = trees
    return before, after


def compared(before: Mapping[str, Any], after: Mapping[str, Any], figures: Sequence[str]) -> Iterator[Row]:
    """Yield the figures of all commands that both trees have, and that answered in both."""
    for name, one in before["entries"].items():
        other = after["entries"].get(name)
        if other is None or one["error"] is not None or other["error"] is not None:
            continue
        hashes = one["output_sha256"], other["output_sha256"]
        is_same = None if None in hashes else hashes[0] == hashes[1]
        for figure in figures:
            yield _row(name, figure, (one, other), is_same)
    for name, one in before["kernels"].items():
        if name in after["kernels"]:
            yield _row(name, "s", (one, after["kernels"][name]), None)


def _row(name: str, figure: str, sides: tuple[Mapping[str, Any], Mapping[str, Any]], is_same: bool | None) -> Row:
    before, after = (one[figure] for one in sides)
    return Row(
        name=name,
        figure=figure,
        before=before["median"],
        after=after["median"],
        low=after["min"] / before["max"],
        high=after["max"] / before["min"],
        is_same_output=is_same,
        num_runs=min(one["num_runs"] for one in sides),
    )


def table(rows: Sequence[Row], least: float) -> str:
    lines = [
        "| command | before | after | ratio | by single runs | | stdout |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        scale, unit = _UNITS[row.figure]
        output = {None: "", True: "same", False: "differs"}[row.is_same_output]
        digits = 0 if unit == "MiB" else 2
        lines.append(
            f"| {row.name} | {row.before / scale:.{digits}f} {unit} | {row.after / scale:.{digits}f} {unit} | "
            f"{row.ratio:.2f} | {row.low:.2f} to {row.high:.2f} | {row.verdict(least)} | {output} |"
        )
    return "\n".join(lines)


def _told(tree: Mapping[str, Any]) -> str:
    changed = " with changes" if tree["is_changed"] else ""
    return f"{tree['commit'][:12] or 'no commit'}{changed}: {tree['subject'][:100]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison; 2 where there is none."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--figure", action="append", default=[], choices=list(_WORDS), help="all, if left out")
    parser.add_argument("--least", type=float, default=0.03, help="ratios closer to 1 are no change; %(default)s")
    options = parser.parse_args(arguments)
    try:
        before, after = trees_of(options.files[:2])
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"before: {_told(before)}\nafter:  {_told(after)}")
    for figure in options.figure or list(_WORDS):
        print(f"\n{_WORDS[figure]}\n")
        print(table([row for row in compared(before, after, [figure]) if row.figure == figure], options.least))
    if kernels := [row for row in compared(before, after, []) if row.figure == "s"]:
        print(f"\nfunctions alone\n\n{table(kernels, options.least)}")
    for name, one in after["entries"].items():
        if one["error"] is not None:
            print(f"\n{name} failed: exit code {one['exit_code']}, {one['error']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
