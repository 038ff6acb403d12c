import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import planner
from planner import perturb
from planner.answer.documents import dump
from planner.api import plan_of_file
from planner.calibration.measurements import (
    ASSUMED,
    MEASURED,
    MeasurementsToMake,
    measurements_text,
    measurements_to_make,
)
from planner.checks import carried
from planner.errors import SpecError
from planner.explanation import headline
from planner.plan import Plan
from planner.problem import Problem
from planner.search import Search

NARROW = {"count": 4, "device": "v100-sxm2", "network": "3 Gbit/s"}


@cache
def asked() -> tuple[Problem, Plan]:
    """A question near the point where one machine is as good as four."""
    problem = planner.load(
        {
            "dnn": {"zoo": "alexnet", "global_batch": 256},
            "cluster": {"machines": [NARROW]},
            "objective": "iteration_time",
            "families": ["all_reduce"],
        }
    )
    return problem, planner.plan(problem)


def wanted(ranges: dict[str, tuple[float, float]] | None = None) -> MeasurementsToMake:
    problem, plan = asked()
    return measurements_to_make(problem, plan, Search(time_limit_s=120), ranges=ranges)


def at(problem: Problem, plan: Plan) -> float:
    """What a plan's configuration takes on another question."""
    found = carried(problem, replace(plan, provenance=asked()[1].provenance))
    assert found is not None
    return found.objective


def test_at_an_end_where_another_plan_wins_the_regret_is_what_it_saves() -> None:
    problem, plan = asked()
    found = wanted({"network": (0.1, 10.0)})
    row = next(row for row in found.rows if row.name == "network")
    assert row.regret > 0
    worst = 0.0
    for factor in (0.1, 10.0):
        moved = perturb.wider_network(problem, factor)
        worst = max(worst, at(moved, plan) / planner.plan(moved).objective - 1)
    assert row.regret == pytest.approx(worst)


def test_where_the_ranking_turns_both_plans_take_as_long() -> None:
    problem, plan = asked()
    row = next(row for row in wanted({"network": (1.0, 10.0)}).rows if row.name == "network")
    assert row.turns_at is not None
    assert 1 < row.turns_at < 10
    rival = planner.plan(perturb.wider_network(problem, 10.0))
    moved = perturb.wider_network(problem, row.turns_at)
    assert at(moved, plan) == pytest.approx(at(moved, rival), rel=1e-3)


def test_a_range_of_no_width_decides_nothing() -> None:
    figures = {row.name: (1.0, 1.0) for row in wanted({"network": (1.0, 1.0)}).rows}
    found = wanted(figures)
    assert found.deciding == ()
    assert all(row.spread == 0 for row in found.rows)
    assert "Nothing within these ranges" in measurements_text(found)


def test_what_decides_most_stands_first() -> None:
    rows = wanted({"network": (0.1, 10.0)}).rows
    assert [row.regret for row in rows] == sorted((row.regret for row in rows), reverse=True)


def test_a_wider_range_never_matters_less() -> None:
    regrets = [
        next(row.regret for row in wanted({"network": (1.0, high)}).rows if row.name == "network")
        for high in (1.1, 2.0, 4.0, 10.0)
    ]
    assert regrets == sorted(regrets)


def test_what_was_measured_has_the_narrower_range() -> None:
    problem, plan = asked()
    fitted = replace(problem, are_links_calibrated=True, is_computation_measured=True)
    rows = {row.name: row for row in measurements_to_make(fitted, plan, Search(time_limit_s=120)).rows}
    assert (rows["network"].low, rows["network"].high) == MEASURED["network"]
    assert (rows["device:v100-sxm2-16g"].low, rows["device:v100-sxm2-16g"].high) == MEASURED["device"]
    open_rows = {row.name: row for row in wanted().rows}
    assert (open_rows["network"].low, open_rows["network"].high) == ASSUMED["network"]


def test_the_document_is_json_and_says_which_figures_decide() -> None:
    found = wanted({"network": (0.1, 10.0)})
    document: dict[str, Any] = json.loads(json.dumps(found.to_document(), allow_nan=False))
    assert {row["name"] for row in document["rows"] if row["decides"]} == {row.name for row in found.deciding}
    assert "Measure first" in measurements_text(found)


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ({"nettwork": (0.5, 1.0)}, "no such figure"),
        ({"network": (1.2, 1.5)}, "no range"),
        ({"start": (0.0, 1.0)}, "no range"),
    ],
)
def test_a_wrong_range_is_refused_in_words(ranges: dict[str, tuple[float, float]], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        wanted(ranges)


def test_a_plan_from_its_file_is_asked_like_the_plan_itself(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(dump((asked()[1]).to_dict()))
    problem, plan = plan_of_file(path)
    ranges = dict.fromkeys(("device", "start", "inside", "memory", "input"), (1.0, 1.0))
    known = {row.name for row in wanted().rows} | {row.name.partition(":")[0] for row in wanted().rows}
    ranges = {name: one for name, one in ranges.items() if name in known} | {"network": (1.0, 10.0)}
    found = measurements_to_make(problem, plan, Search(time_limit_s=120), ranges=ranges)
    row, same = (next(row for row in one.rows if row.name == "network") for one in (found, wanted(ranges)))
    assert row.rival == same.rival
    assert row.regret == pytest.approx(same.regret)
    assert row.turns_at is not None
    assert row.turns_at == pytest.approx(same.turns_at)
    assert row.turns_at < 10


def test_a_rival_is_told_apart_from_the_plan_in_hand() -> None:
    resnet = {
        "dnn": {"zoo": "resnet50", "batch_per_device": 32},
        "cluster": {"machines": [{"count": 4, "device": "v100-sxm2-16g", "devices": 4, "inside": "nvlink-2", "network": "10 Gbit/s"}]},
        "families": ["all_reduce"],
        "calibration": {"utilisation": 0.5},
    }  # fmt: skip
    problem = planner.load(resnet)
    found = measurements_to_make(
        problem, planner.plan(problem), Search(time_limit_s=120), ranges={"device": (0.6, 1.0)}
    )
    assert found.deciding
    for row in found.deciding:
        assert row.rival != headline(found.plan)
