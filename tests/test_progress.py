"""How far a search is, as it tells it: true bounds that only rise, incumbents that only fall, and they meet the plan."""

from itertools import pairwise
from typing import Any

import pytest

import planner

GROUP = {"device": "rtx-2080-ti", "network": "10 Gbit/s", "latency": "20 us"}
SMALL = {"zoo": "alexnet", "global_batch": 128}
EVEN = {"machines": [{**GROUP, "count": 4}]}
MIXED = {
    "machines": [{**GROUP, "name": "a", "count": 2}, {**GROUP, "name": "b", "count": 2, "device": "v100-sxm2-16g"}]
}
QUESTIONS: dict[str, dict[str, Any]] = {
    "all_reduce": {"cluster": EVEN},
    "mixed": {"cluster": MIXED, "families": ["all_reduce"]},
    "parameter_server": {"cluster": EVEN},
    "asynchronous": {"cluster": EVEN, "families": ["parameter_server"], "constraints": {"max_staleness": 4}},
    "model_replicas": {"cluster": EVEN},
    "pipeline": {"cluster": EVEN},
    "pipeline, open batch": {"cluster": EVEN, "families": ["pipeline"], "dnn": {"zoo": "alexnet", "max_global_batch": 64}},
    "all": {"cluster": MIXED, "families": ["all_reduce", "parameter_server", "pipeline"]},
}  # fmt: skip


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_is_told_is_true_and_closes_in(name: str) -> None:
    question = {"dnn": SMALL, "families": [name], **QUESTIONS[name]}
    problem, rows = planner.load(question), []
    found = planner.plan(problem, time_limit_s=30, on_progress=lambda bound, best: rows.append((bound, best)))
    assert rows
    assert all(bound <= best for bound, best in rows)
    assert all(one[0] <= other[0] and one[1] >= other[1] for one, other in pairwise(rows))
    assert rows[-1][1] <= found.objective * (1 + 1e-9)
    assert rows[-1][0] <= found.objective * (1 + 1e-9)
    assert found == planner.plan(problem, time_limit_s=30)  # telling changes nothing


def test_a_part_of_a_search_tells_nobody() -> None:
    rows: list[tuple[float, float]] = []
    search = planner.search.Search(on_progress=lambda bound, best: rows.append((bound, best)))
    search.part(1.0).report(1.0, 2.0)
    assert rows == []
    search.report(1.0, 2.0)
    assert rows == [(1.0, 2.0)]
