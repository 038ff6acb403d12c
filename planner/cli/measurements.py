"""``planner calibrate --plan-measurements``: what to measure, so that a decision rests on it."""

import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["print_measurements"]

_RANGE = re.compile(r"(?P<name>[^=]+)=(?P<low>[0-9.]{1,9}?)\.\.(?P<high>[0-9.]{1,9})")


def print_measurements(
    questions: Sequence[Path], ranges: Sequence[str], *, time_limit: str, memory_limit: str | None, json: bool
) -> None:
    """Print which measurements would sharpen the decision of a spec, or of a plan, most."""
    import planner
    from planner.api import plan_of_file
    from planner.calibration.wanted import measurements_wanted
    from planner.calibration.wanted_report import measurements_text
    from planner.cli.output import limit_bytes, limit_s
    from planner.cli.question import flag_fault
    from planner.documents import dump
    from planner.plan_file import is_plan
    from planner.search import Search

    if len(questions) != 1:
        mend = "Name one spec, or one plan that `planner plan --out` wrote."
        raise flag_fault("--plan-measurements", f"{len(questions)} files are given.", mend)
    given = _ranges(ranges)
    seconds, most_bytes = limit_s(time_limit), limit_bytes(memory_limit)
    search = Search(time_limit_s=seconds, memory_limit_bytes=most_bytes)
    if is_plan(questions[0]):
        problem, plan = plan_of_file(questions[0])
    else:
        problem = planner.load(questions[0])
        # Half of the time is for the questions that are asked anew.
        plan = planner.plan(problem, time_limit_s=seconds / 2, memory_limit_bytes=most_bytes)
    with search.interruptible():
        found = measurements_wanted(problem, plan, search, ranges=given)
    print(dump(found.to_document()) if json else measurements_text(found))


def _ranges(given: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the ranges of ``network=0.8..1.1``."""
    from planner.cli.question import flag_fault

    found = {}
    for one in given:
        match = _RANGE.fullmatch(one)
        try:
            found[match["name"] if match else ""] = (float(match["low"]), float(match["high"])) if match else (0.0, 0.0)
        except ValueError:
            match = None
        if match is None:
            raise flag_fault("--range", f"{one!r} is no range.", "Write e.g. --range network=0.8..1.1.", one)
    return found
