"""Measure every command of the program: python -m benchmarks.run --out FILE.json.

Each command runs ``--repeat`` times as a fresh process, after one run that is not counted and writes bytecode. With
``--commit A --commit B`` two commits are measured in turn, A B B A ..., so that whatever else the machine does hits
both alike. ``python -m benchmarks.compare`` reads what is written.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.suite.entries import Entry, entries, preparations
from benchmarks.suite.inputs import onnx_folder, write_inputs, write_large_inputs
from benchmarks.suite.machine import code_of, load, machine
from benchmarks.suite.process import Run, environment, run, user_instructions
from benchmarks.suite.trees import ROOT, Tree, commit_tree, this_tree

SCHEMA = "planner.benchmarks/1"
KERNELS = ("test_fusion.py", "test_planning.py", "test_predictions.py", "test_schedules.py")
_FIGURES = ("wall_s", "cpu_s", "peak_bytes")


class Place:
    """A tree with a folder of its own, in which its commands run."""

    def __init__(self, tree: Tree, folder: Path) -> None:
        self.tree, self.folder = tree, folder
        self.folder.mkdir()
        self.variables = environment(tree.root, folder.with_name(f"{folder.name}-bytecode"))
        self.runs: dict[str, list[Run]] = {}
        self.instructions: dict[str, int | None] = {}

    def command(self, entry: Entry, *, is_tiny: bool = False) -> list[str]:
        arguments = entry.tiny if is_tiny and entry.tiny is not None else entry.arguments
        return [sys.executable, *arguments] if entry.is_python else [sys.executable, "-m", "planner", *arguments]

    def prepare(self, chosen: Sequence[Entry], *, is_large: bool) -> None:
        """Write the files that entries read."""
        write_inputs(self.folder)
        if is_large:
            write_large_inputs(self.folder)
        if is_large and onnx_folder() is not None:
            script = [sys.executable, str(ROOT / "benchmarks" / "suite" / "large_onnx.py"), "large.onnx"]
            run(script, folder=self.folder, variables=self.variables)
        for arguments in preparations(chosen):
            run([sys.executable, "-m", "planner", *arguments], folder=self.folder, variables=self.variables)

    def measure(self, entry: Entry, *, is_tiny: bool, is_counted: bool = True) -> Run:
        for name in entry.removes:
            for path in self.folder.glob(f"{name}*"):
                path.unlink()
        found = run(self.command(entry, is_tiny=is_tiny), folder=self.folder, variables=self.variables)
        if is_counted:
            self.runs.setdefault(entry.name, []).append(found)
        return found

    def count(self, entry: Entry) -> None:
        """Count an entry's instructions, where the machine can."""
        self.instructions[entry.name] = user_instructions(
            self.command(entry), folder=self.folder, variables=self.variables
        )


def measured(entry: Entry, runs: Sequence[Run], instructions: int | None) -> dict[str, Any]:
    """Return the figures of one entry as a document; where it failed, why."""
    failed = next((one for one in runs if one.exit_code not in entry.exit_codes), None)
    found: dict[str, Any] = {
        "arguments": list(entry.arguments),
        "exit_code": runs[0].exit_code if failed is None else failed.exit_code,
        "error": None if failed is None else failed.error,
        "output_sha256": runs[0].output_sha256 if len({one.output_sha256 for one in runs}) == 1 else None,
        "instructions": instructions,
        "num_runs": len(runs),
    }
    for name in _FIGURES:
        values = [getattr(one, name) for one in runs]
        found[name] = {"min": min(values), "median": median(values), "max": max(values)}
    return found


def kernels(place: Place, names: Sequence[str]) -> dict[str, Any]:
    """Return the seconds of functions alone, by pytest-benchmark, of the tree's own ``benchmarks/test_*.py``."""
    files = [str(path) for name in names if (path := place.tree.root / "benchmarks" / name).exists()]
    report = place.folder / "kernels.json"
    if not files:
        return {}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", f"--benchmark-json={report}", *files]
    ended = subprocess.run(
        command, cwd=place.tree.root, env=place.variables, capture_output=True, text=True, check=False
    )
    if not report.exists():
        print(f"no function was measured: {ended.stdout[-500:]}{ended.stderr[-500:]}", file=sys.stderr)
        return {}
    rows = json.loads(report.read_text(encoding="utf-8"))["benchmarks"]
    return {
        row["name"]: {
            "s": {key: row["stats"][key] for key in ("min", "median", "max")},
            "num_runs": row["stats"]["rounds"],
        }
        for row in rows
    }


def document(places: Sequence[Place], chosen: Sequence[Entry], options: argparse.Namespace) -> dict[str, Any]:
    """Measure, and return everything as one document."""
    facts = machine() | {"load_before": load()}
    for place in places:
        place.prepare(chosen, is_large=options.large)
    for entry in chosen:
        if not options.tiny:
            for place in places:  # writes bytecode, and fills the system's caches
                place.measure(entry, is_tiny=options.tiny, is_counted=options.large)
        for index in range(options.repeat if not entry.name.startswith("large/") else 0):
            for place in places if index % 2 == 0 else reversed(places):
                place.measure(entry, is_tiny=options.tiny)
        for place in places if options.instructions else ():
            place.count(entry)
        print(_line(entry, places), file=sys.stderr, flush=True)
    return {
        "schema": SCHEMA,
        "machine": facts | {"load_after": load()},
        "repeat": options.repeat,
        "trees": [
            place.tree.facts
            | {
                "entries": {
                    entry.name: measured(entry, place.runs[entry.name], place.instructions.get(entry.name))
                    for entry in chosen
                },
                "kernels": kernels(place, KERNELS) if options.kernels else {},
            }
            for place in places
        ],
    }


def _line(entry: Entry, places: Sequence[Place]) -> str:
    """Return what is known of an entry, for somebody who waits."""
    rows = [place.runs[entry.name] for place in places]
    failed = any(one.exit_code not in entry.exit_codes for runs in rows for one in runs)
    figures = "   ".join(
        f"{median(one.wall_s for one in runs):7.2f} s {median(one.cpu_s for one in runs):7.2f} s of processors "
        f"{max(one.peak_bytes for one in runs) / 2**20:6.0f} MiB"
        for runs in rows
    )
    return f"{entry.name:36} {figures}{'  FAILED' if failed else ''}"


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line, read."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--commit", action="append", default=[], help="measure this commit; twice: two, in turn")
    parser.add_argument(
        "--tree", action="append", default=[], type=Path, help="measure the code in this folder; likewise"
    )
    parser.add_argument("--repeat", type=int, default=5, help="runs of each command that count; %(default)s")
    parser.add_argument("--only", action="append", default=[], help="groups or entries, e.g. zoo, plan/vgg16")
    parser.add_argument("--large", action="store_true", help="the largest questions, too: once each")
    parser.add_argument("--kernels", action="store_true", help="functions alone, by pytest-benchmark, too")
    parser.add_argument("--instructions", action="store_true", help="count instructions by perf, too")
    parser.add_argument("--tiny", action="store_true", help="the smallest questions: only whether all entries work")
    return parser.parse_args(arguments)


def chosen_of(options: argparse.Namespace) -> list[Entry]:
    all_entries = entries(is_large=options.large)
    return [
        one
        for one in all_entries
        if not options.only or any(one.name == name or one.group == name.rstrip("/") for name in options.only)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write; return 1 where an entry failed."""
    options = options_of(arguments)
    chosen = chosen_of(options)
    if not chosen or options.repeat < 1:
        print("nothing to measure: see --only and --repeat", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="planner-benchmarks-") as name:
        folder = Path(name)
        try:
            trees = [commit_tree(commit, folder / "code") for commit in options.commit]
            trees += [Tree(root=tree.resolve(), facts=code_of(tree)) for tree in options.tree]
            trees = trees or [this_tree()]
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        places = [Place(tree, folder / f"work{index}") for index, tree in enumerate(trees)]
        found = document(places, chosen, options)
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any(one["error"] is not None for tree in found["trees"] for one in tree["entries"].values()))


if __name__ == "__main__":
    sys.exit(main())
