"""Hold measured runs against their predictions: ``python -m research.runs [--data FOLDER] [--write]``."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from planner.calibration.runs import compare
from planner.errors import PlannerError
from research import ROOT
from research.runs.page import bands_text, page, runs_text

FOLDERS = ("measurements", "measurements_more")  # the latter completes sessions of the former to choices
_PAGE = ROOT / "docs" / "accuracy_runs.md"
_BANDS = ROOT / "planner" / "data" / "run_bands.yaml"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.runs", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("PLANNER_DATA"), help="folder of measured data")
    parser.add_argument("--write", action="store_true", help=f"write {_PAGE.name} and {_BANDS.name} anew")
    given = parser.parse_args(arguments)
    if given.data is None:
        print("no measured data: name their folder by --data or PLANNER_DATA.", file=sys.stderr)
        return 2
    try:
        found = compare(given.data / name for name in FOLDERS if (given.data / name).is_dir())
    except PlannerError as error:
        print(error, file=sys.stderr)
        return 2
    text = page(found)
    print(text, runs_text(found), sep="\n")
    if given.write:
        _PAGE.write_text(text, encoding="utf-8")
        _BANDS.write_text(bands_text(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
