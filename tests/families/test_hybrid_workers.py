"""Layouts on several kinds of machines are the same whoever helps."""

from typing import Any

from shuffled_pool import ShuffledPool

import planner
from planner.plan import Plan

_LINKS = {"network": "100 Gbit/s", "latency": "5 us"}
QUESTION: dict[str, Any] = {
    "dnn": {"zoo": "megatron-1.7b", "global_batch": 12, "dtype": "bf16", "optimizer": "adam"},
    "cluster": {
        "machines": [
            {"device": "h100-sxm", "count": 1, "devices": 2, "inside": "nvlink-4", **_LINKS},
            {"device": "a100-sxm4-80gb", "count": 1, "devices": 2, "inside": "nvlink-3", **_LINKS},
        ]
    },
    "objective": "iteration_time",
    "families": ["hybrid"],
}


def answered(pool: ShuffledPool | None) -> dict[str, Any]:
    """What is found with the help of a pool, without how many layouts were evaluated."""
    plan: Plan = planner.plan(planner.load(QUESTION), num_alternatives=2, pool=pool)
    words = [one for one in plan.explanation if not one.startswith("layouts in the grid")]
    names = ("status", "objective", "bound", "configuration", "prediction", "alternatives")
    return {"words": words, **{name: getattr(plan, name) for name in names}}


def test_a_layout_on_two_kinds_of_machines_is_the_same_whoever_helps() -> None:
    pool = ShuffledPool(seed=1, num_workers=3)
    assert answered(pool) == answered(None)
    assert pool.num_parts > 0
