"""Measured distributed runs: read, predicted from their inputs alone, and held against what they took."""

from planner.calibration.runs.comparison import RunComparison, compare, compare_runs, run_files
from planner.calibration.runs.questions import to_spec
from planner.calibration.runs.run import is_run, read_run
from planner.calibration.runs.run_facts import Run, RunPrediction

__all__ = [
    "Run",
    "RunComparison",
    "RunPrediction",
    "compare",
    "compare_runs",
    "is_run",
    "read_run",
    "run_files",
    "to_spec",
]
