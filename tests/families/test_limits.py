"""Limits of time and memory in the families' searches: work between two readings, tables before they are made, ends."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import planner
from planner import ranking
from planner.cost import Floats
from planner.errors import NoAnswerError
from planner.families.all_reduce import bounds as mixed_bounds
from planner.families.all_reduce import search as all_reduce_search
from planner.families.all_reduce import search as mixed_search
from planner.families.all_reduce.bounds import AllReduceBoxes
from planner.families.parameter_server import bounds, cost
from planner.families.parameter_server import search as parameter_server_search
from planner.families.parameter_server.bounds import Space
from planner.families.parameter_server.cost import ready_times_s as whole_ready_times_s
from planner.plan import Plan
from planner.problem import Problem
from planner.search import LateError, Search
from tests.referee import second_physics

KINDS = ("v100-sxm2-16g", "rtx-2080-ti", "t4", "a100-pcie-80gb")
NETWORK = {"devices": 2, "network": "10 Gbit/s", "latency": "10 us", "inside": "pcie-3-x16"}
UNLIKE = {"machines": [{"name": f"k{one}", "count": 3, "device": kind, **NETWORK} for one, kind in enumerate(KINDS)]}
EQUAL = {"machines": [{"name": "w", "count": 4, "device": "rtx-2080-ti", **NETWORK}]}


class Clock:
    """Goes on by a second with every reading, and notes how much was done between two of them."""

    def __init__(self) -> None:
        self.now_s, self.work, self.most_work, self.work_after = 0.0, 0, 0, 0
        self.end_s = float("inf")

    def __call__(self) -> float:
        self.most_work = max(self.most_work, self.work)
        self.now_s, self.work = self.now_s + 1.0, 0
        return self.now_s

    def count(self, number: int = 1) -> None:
        self.work += number
        self.work_after += number * (self.now_s > self.end_s)

    def search(self, time_limit_s: float) -> Search:
        self.end_s = self.now_s + time_limit_s + 1
        return Search(time_limit_s=time_limit_s, clock=self)


def chain(num_layers: int, cluster: dict[str, Any], family: str, batch: int = 1536, **others: Any) -> Problem:
    layers = [
        {
            "name": f"l{one}",
            "multiply_adds": 1_000_000 + one % 97,
            "parameters": f"{4000 + one % 89} B",
            "output": "1 kB",
        }
        for one in range(num_layers)
    ]
    dnn = {"layers": layers, "global_batch": batch, "dataset_samples": 100_000}
    return planner.load({"dnn": dnn, "cluster": cluster, "families": [family], **others})


def zoo(cluster: dict[str, Any], family: str) -> Problem:
    dnn = {"zoo": "alexnet", "global_batch": 512}
    return planner.load({"dnn": dnn, "cluster": cluster, "families": [family]})


# -- work between two readings of the clock ---------------------------------------------------------------------------


def test_teams_of_unlike_machines_are_not_all_bounded_once_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, problem = Clock(), zoo(UNLIKE, "all_reduce")
    least = mixed_bounds.Bounds._least

    def counted(*arguments: Any) -> Floats:
        clock.count()
        return least(*arguments)

    monkeypatch.setattr(mixed_bounds.Bounds, "_least", counted)
    found = ranking.best_plan(problem, clock.search(8.0))
    assert clock.most_work <= 16  # probes of eight boxes at most
    assert clock.work_after <= 64
    whole = planner.plan(problem)
    assert found.status.value == "feasible"
    assert found.bound <= whole.objective <= found.objective


def test_servers_are_not_all_tried_once_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, problem = Clock(), zoo(UNLIKE, "parameter_server")
    shares_of = Space.shares_of

    def counted(*arguments: Any) -> Any:
        clock.count()
        return shares_of(*arguments)

    monkeypatch.setattr(Space, "shares_of", counted)
    found = ranking.best_plan(problem, clock.search(8.0))
    assert clock.most_work <= 96  # 64 between two questions, and those of the solved ones
    assert clock.work_after <= 128
    assert found.bound <= found.objective


def test_gradients_are_not_grouped_to_the_end_once_the_time_is_over() -> None:
    clock, problem = Clock(), chain(3000, EQUAL, "all_reduce")
    found = ranking.best_plan(problem, clock.search(8.0))
    whole = planner.plan(problem)
    assert 8 < clock.now_s < 40
    assert found.bound <= whole.objective * (1 + 1e-9)
    assert whole.objective <= found.objective * (1 + 1e-9)
    assert found.objective <= whole.objective * 1.1


# -- tables before they are made --------------------------------------------------------------------------------------


def test_ready_times_of_many_boxes_and_layers_are_never_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = chain(50_000, EQUAL, "parameter_server")
    sizes: list[int] = []

    def sized(problem: Problem, group: Any, gradients: Any, share: Floats, overlap: str | None) -> Floats:
        sizes.append(len(share) * len(gradients.names))
        return whole_ready_times_s(problem, group, gradients, share, overlap)

    monkeypatch.setattr(bounds, "ready_times_s", sized)
    with suppress(NoAnswerError):  # a busy machine gives it no time for an answer
        planner.plan(problem, time_limit_s=0.5)
    assert sizes
    assert max(sizes) <= 2**21


def test_slices_on_many_servers_are_no_table_of_tensors_and_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = {"machines": [{"name": "w", "count": 4000, "device": "rtx-2080-ti", "network": "10 Gbit/s"}]}
    block = {
        "num_parameter_servers": 3000,
        "workers": {"w": 4000},
        "servers": "w",
        "co_located": True,
        "placement": "sliced",
    }
    shares = {"batch_shares": {"w": 1}, "global_batch_size": 4000}
    problem = chain(3000, machines, "parameter_server", 4000, configuration={"parameter_server": {**block, **shares}})

    def table(*arguments: Any, **others: Any) -> Floats:
        raise AssertionError("a table of 3,000 tensors and 3,000 servers")

    monkeypatch.setattr(cost, "place_sliced", table)
    found = planner.predict(problem)
    monkeypatch.undo()
    monkeypatch.setattr(cost, "_MOST_NUMBERS", 2**40)
    assert found.iteration_time_s == pytest.approx(planner.predict(problem).iteration_time_s, rel=1e-9)


def test_tables_of_kinds_boxes_and_layers_are_made_in_parts() -> None:
    problem = chain(5000, UNLIKE, "all_reduce")
    team = next(mixed_search.teams_of(problem))
    boxes = AllReduceBoxes(problem, [team], Search())
    assert 8 * boxes.most_rows(team) * 5000 * len(KINDS) * 8 <= 2**28


def test_what_does_not_fit_ends_with_the_best_so_far_and_names_the_limit() -> None:
    search = Search(memory_limit_bytes=2.0**30, resident=lambda: 2**30)
    with pytest.raises(NoAnswerError):
        ranking.best_plan(zoo(EQUAL, "all_reduce"), search)
    assert search.part(1.0).is_over


# -- broken off --------------------------------------------------------------------------------------------------------


def late(*arguments: Any, **others: Any) -> Any:
    raise LateError


CASES: list[tuple[str, Any, str, dict[str, Any]]] = [
    ("all_reduce", all_reduce_search, "best_vector", EQUAL),
    ("all_reduce", mixed_search, "best_vector", UNLIKE),
    ("parameter_server", parameter_server_search, "search_boxes", EQUAL),
    ("parameter_server", parameter_server_search, "search_boxes", UNLIKE),
]


@pytest.mark.parametrize(("family", "module", "name", "cluster"), CASES)
def test_a_search_that_is_broken_off_before_any_answer_still_gives_one(
    monkeypatch: pytest.MonkeyPatch, family: str, module: Any, name: str, cluster: dict[str, Any]
) -> None:
    problem = zoo(cluster, family)
    whole = planner.plan(problem)
    monkeypatch.setattr(module, name, late)
    found: Plan = planner.plan(problem)
    assert found.status.value == "feasible"
    assert found.bound <= whole.objective * (1 + 1e-9)
    assert whole.objective <= found.objective * (1 + 1e-9)
    assert any("broken off" in line for line in found.warnings)
    monkeypatch.undo()
    assert second_physics.check(problem, found).is_ok


def test_the_best_of_the_boxes_is_kept_for_when_the_search_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = zoo(EQUAL, "parameter_server")
    whole = planner.plan(problem)
    monkeypatch.setattr(parameter_server_search, "_curve", late)
    found = planner.plan(problem)
    assert found.objective == pytest.approx(whole.objective, rel=1e-9)
    assert found.bound <= found.objective


def test_quick_groups_are_never_better_than_the_best_and_hold_all_gradients() -> None:
    from planner.families.all_reduce.cost import AllReduceCost
    from planner.families.all_reduce.fusion import ends_in_time, exchange_of, quick_ends

    problem = chain(300, EQUAL, "all_reduce")
    whole = AllReduceCost.homogeneous(problem, devices_per_machine=2)
    bare = whole.configuration([4], [8], 64)
    exchange = exchange_of(whole, bare)
    assert exchange is not None
    is_late: Callable[[], bool] = lambda: True  # noqa: E731
    best, is_best = ends_in_time(exchange, is_late)  # few gradients are grouped all the same
    assert is_best
    quick = quick_ends(exchange)
    assert quick[-1] == best[-1] == 299
    seconds = [whole.predict(whole.fused(bare, ends)).iteration_time_s for ends in (best, quick)]
    assert seconds[0] <= seconds[1] * (1 + 1e-12)
    assert np.isfinite(seconds).all()
