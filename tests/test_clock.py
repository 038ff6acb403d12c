"""A question is answered alike on a machine that is as slow as may be, as long as the user's limit does not strike."""

from itertools import count
from math import inf
from typing import Any

import pytest

import planner
from planner.errors import PlannerError
from planner.plan import Plan
from planner.planning import plan_of
from planner.ranking import best_plan
from planner.search import Search

SMALL = {"layers": 4, "hidden": 1024, "heads": 16, "vocabulary": 32_000, "sequence_length": 1024}
SERVER = {"device": "h100-sxm", "devices": 4, "inside": "nvlink-4", "network": "400 Gbit/s"}
QUESTIONS: dict[str, dict[str, Any]] = {
    "families that were not asked for": {
        "dnn": {"zoo": "alexnet", "global_batch": 128},
        "cluster": {"machines": [{"count": 4, "device": "rtx-2080-ti", "devices": 1, "network": "1 Gbit/s"}]},
        "families": ["model_replicas"],
    },
    "how much memory a pipeline lacks": {
        "dnn": {"transformer": SMALL, "global_batch": 8, "dtype": "bf16"},
        "cluster": {"machines": [SERVER]},
        "families": ["pipeline"],
        "constraints": {"memory_per_device": "200 MB"},
    },
    "what would let a layout fit": {
        "dnn": {"zoo": "llama3-70b", "global_batch": 8},
        "cluster": {"machines": [SERVER]},
        "families": ["hybrid"],
        "fix": {"tensor_parallel_size": 1},
    },
}


def answered(question: dict[str, Any], second_s: float) -> Plan | str:
    """Return what is answered by a clock that moves on by so many seconds whenever it is read."""
    ticks = count()
    search = Search(time_limit_s=1e12, num_alternatives=2, clock=lambda: second_s * next(ticks))
    try:
        return plan_of(planner.load(question), search)
    except PlannerError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", QUESTIONS)
def test_no_clock_but_the_limit_decides_what_is_answered(name: str) -> None:
    assert answered(QUESTIONS[name], 1e3) == answered(QUESTIONS[name], 0.0)


def test_a_search_that_is_cut_off_by_questions_leaves_nothing_behind_that_the_next_one_meets() -> None:
    """What time cuts off tells another bound every time, where the same work tells the same."""
    cluster = {"preset": "osf-testbed"}
    problem = planner.load({"dnn": {"zoo": "resnet34"}, "cluster": cluster, "families": ["pipeline"]})

    def found() -> tuple[object, ...]:
        plan = best_plan(problem, Search(num_alternatives=2).part(inf, questions_left=600))
        return plan.objective, plan.bound, plan.configuration, plan.explanation, plan.alternatives

    first = found()
    plan_of(planner.load(QUESTIONS["families that were not asked for"]), Search())
    assert found() == first
