"""Measured data are read in place, from the folder that PLANNER_DATA names; the report ends with how many tests used it."""

import gc
import os
from collections import Counter
from math import ceil
from pathlib import Path

import pytest
from hypothesis import settings

from planner.__main__ import COLLECTED

# Machines are shared and noisy: no test is judged by its time. The same examples in every run, a sixth of those that a
# test asks for, 4 at least; all of them with HYPOTHESIS_PROFILE=all, as `make test-heavy` has it, and others with =explore.
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "few")
settings.register_profile("few", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("all", settings.get_profile("few"))
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(PROFILE)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let a property be tried on a sixth of its examples, and on four where it has as many, unless all are asked for."""
    properties = (item for item in items if PROFILE == "few" and item.get_closest_marker("hypothesis"))
    for test in {item.obj for item in properties if isinstance(item, pytest.Function)}:
        asked = test._hypothesis_internal_use_settings  # what the plug-in of Hypothesis reads, too
        few = max(ceil(asked.max_examples / 6), min(asked.max_examples, 4))
        test._hypothesis_internal_use_settings = settings(asked, max_examples=few)


def pytest_collection() -> None:
    """Look for no garbage while tests are collected: there is none."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave twelve thousand tests out of each search for garbage, and search as seldom as the program: a tenth less."""
    gc.freeze()
    gc.set_threshold(*COLLECTED)
    gc.enable()


@pytest.fixture
def wordless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans be what their search found: no safer one beside it, no assumptions weighed, no words on idle devices.

    Each of these is another search, together half of the time of small questions, and none changes a layout.
    """
    monkeypatch.setattr("planner.families.hybrid.search.idle_words", lambda *_: [])
    monkeypatch.setattr("planner.planning.answered", lambda _problem, plan, *_, **__: plan)


@pytest.fixture
def data_folder() -> Path:
    """The folder of measured data; without it the test is skipped, and the reason is shown."""
    name = os.environ.get("PLANNER_DATA")
    if not name:
        pytest.skip("PLANNER_DATA is not set: measured data are read in place")
    folder = Path(name)
    assert folder.is_dir(), f"PLANNER_DATA={name} is no folder"
    return folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """End the report with the number of data tests that ran and that were skipped."""
    ran = {
        report.nodeid
        for outcome in ("passed", "failed", "error")
        for report in terminalreporter.getreports(outcome)
        if "measured" in getattr(report, "keywords", {})
    }
    skipped = {
        report.nodeid
        for report in terminalreporter.getreports("skipped")
        if "measured" in getattr(report, "keywords", {})
    }
    terminalreporter.write_line(f"data tests: {len(ran)} ran, {len(skipped)} skipped")
    told = [
        str(value)
        for report in terminalreporter.getreports("passed")
        for key, value in getattr(report, "user_properties", [])
        if key == "equality"
    ]
    if told:
        words = "; ".join(f"{number} in {what}" for what, number in sorted(Counter(told).items()))
        terminalreporter.write_line(f"equality: {len(told)} answers are as good as recorded and differ: {words}")
