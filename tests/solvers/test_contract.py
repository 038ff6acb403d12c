"""Every registered solver through the same checks: status, bound and objective fit, and the same seed answers the same.

A function of :mod:`planner.solvers` that returns a solution must stand in ``SOLVERS``; a test compares the two.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from planner import solvers
from planner.channel import schedule
from planner.cost import Affine, Floats
from planner.models.schedule import PipelineTimes, simulate
from planner.search import Search
from planner.solution import Solution, Status
from planner.solvers import branch_and_bound, fusion, matching, placement, scalar, shares
from planner.solvers import chain as layer_chain
from planner.solvers import placement as placement_rows
from planner.solvers.pipeline_bounds import Schedule
from tests.referee import pipeline_cp_sat

NUM_INSTANCES = 6
REFEREES = {"pipeline_cp_sat.best_pipeline"}  # of the tests, held to the same contract


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A question to one solver: how to ask, what a value costs, and by how much the two may differ."""

    solve: Callable[[Search], Solution[Any]]
    cost: Callable[[Any], float]
    tolerance: float = 1e-9


def random_matrix(seed: int) -> Floats:
    """A square matrix of small whole numbers, so that ties are common."""
    draw = np.random.default_rng(seed)
    return draw.integers(0, 9, (4, 4)).astype(float)


def assigned(solver: Callable[..., Solution[Any]], cost: Callable[[Any], float]) -> Instance:
    """The instance of an assignment, which asks for no search."""
    return Instance(solve=lambda search: solver(), cost=cost)


def groups(seed: int) -> Instance:
    draw = np.random.default_rng(seed)
    ready_s, sizes = np.cumsum(draw.random(9)), draw.integers(0, 20, 9).astype(float)
    cost = Affine(startup_s=0.5, per_byte_s=0.1)
    return Instance(
        solve=lambda search: fusion.optimal_groups(ready_s, sizes, cost),
        cost=lambda ends: schedule(ends, ready_s, sizes, cost).finish_s,
    )


def least_sum(seed: int) -> Instance:
    matrix = random_matrix(seed)
    return assigned(lambda: matching.sum_assignment(matrix), lambda chosen: float(matrix[range(4), chosen].sum()))


def greedy(seed: int) -> Instance:
    matrix = random_matrix(seed)
    return assigned(lambda: matching.greedy_assignment(matrix), lambda chosen: float(matrix[range(4), chosen].sum()))


def two_phases(seed: int) -> Instance:
    one, other = random_matrix(seed), random_matrix(seed + 100)
    return assigned(
        lambda: matching.two_phase_assignment(one, other),
        lambda chosen: float(one[range(4), chosen].max() + other[range(4), chosen].max()),
    )


def chain(seed: int) -> Instance:
    draw = np.random.default_rng(seed)
    nodes = [draw.random(4) for _ in range(5)]
    if seed == 1:
        nodes[2] = np.full(4, math.inf)  # a layer without any state: infeasible
    pairs = draw.random((5, 4, 4))

    def cost(path: Sequence[int]) -> float:
        steps = sum(float(pairs[layer, path[layer - 1], path[layer]]) for layer in range(1, 5))
        return sum(float(one[state]) for one, state in zip(nodes, path, strict=True)) + steps

    return Instance(
        solve=lambda search: layer_chain.cheapest_chain(
            nodes,
            [0.5 * one for one in pairs[1:]],
            lambda layer, before, state: float(pairs[layer, before, state]),
            is_over=lambda: search.is_over,
        ),
        cost=cost,
    )


def one_dimension(seed: int) -> Instance:
    draw = np.random.default_rng(seed)
    scale, slope = float(draw.uniform(0.001, 0.1)), float(draw.uniform(0.1, 3))
    return Instance(
        solve=lambda search: scalar.minimise(lambda x: slope * x, lambda x: scale / x**2, 0.01, 1.0, search=search),
        cost=lambda x: slope * x + scale / x**2,
    )


class LongestShare:
    """An iteration lasts as long as the slowest kind's share."""

    def __init__(self, seconds: Floats) -> None:
        self.seconds = seconds

    def times_s(self, rows: Any, /) -> Floats:
        found: Floats = (rows * self.seconds).max(axis=1)
        return found

    def least_times_s(self, rows: Any, /) -> Floats:
        return self.times_s(rows)

    def most_shares(self, limit_s: Floats, /) -> Floats:
        found: Floats = np.floor(limit_s[:, None] / self.seconds + 1e-9)
        return found


def batch_shares(seed: int) -> Instance:
    draw = np.random.default_rng(seed)
    cost = LongestShare(draw.uniform(0.5, 3, 3))
    workers = shares.Workers(counts=np.array([2, 1, 3]), batch=17, least=np.ones(3, dtype=np.int64))
    limit_s = 1e-3 if seed == 1 else math.inf  # nothing takes so little: infeasible
    return Instance(
        solve=lambda search: shares.best_shares(workers, cost, limit_s=limit_s, search=search),
        cost=lambda chosen: float(cost.times_s(np.array([chosen]))[0]),
    )


def servers(seed: int) -> Instance:
    draw = np.random.default_rng(seed)
    given = placement_rows.arrivals(
        np.sort(draw.random((1, 6)), axis=1),
        draw.integers(1, 9, 6).astype(float),
        [20.0, 20.0, 35.0],
        placement_rows.Workers(counts=[3], bytes_per_s=[50.0]),
    )
    return Instance(
        solve=lambda search: placement.best_placement(given, search),
        cost=lambda chosen: placement_rows.objective(given, chosen),
    )


class Distance:
    """Vectors cost their distance from a point; one kind costs more throughout."""

    def __init__(self, point: Floats, least: float) -> None:
        self.point, self.least = point, least

    def cost(self, kind: int, vector: Sequence[int]) -> float:
        return float(np.abs(np.array(vector) - self.point).sum()) + 0.1 * kind + 1.0

    def bounds(self, given: Sequence[branch_and_bound.Box], limit: float, /) -> Floats:
        found = []
        for box in given:
            nearest = np.clip(self.point, box.low, box.high)
            bound = float(np.abs(nearest - self.point).sum()) + 0.1 * box.kind + 1.0
            found.append(bound if max(box.high) >= self.least else math.inf)
        return np.array(found)

    def close_bounds(self, given: Sequence[branch_and_bound.Box], bounds: Floats, limit: float, /) -> Floats:
        return bounds

    def probe(self, given: Sequence[branch_and_bound.Box], limit: float, /) -> Solution[Any] | None:
        return None

    def solve(self, leaf: branch_and_bound.Box, bound: float, limit: float, /) -> Solution[Any]:
        cost = self.cost(leaf.kind, leaf.low)
        return Solution(status=Status.OPTIMAL, objective=cost, bound=cost, value=(leaf.kind, leaf.low))


def vectors(seed: int) -> Instance:
    draw = np.random.default_rng(seed)
    cost = Distance(draw.uniform(0, 20, 2), math.inf if seed == 1 else 0.0)  # no box may hold so much: infeasible
    roots = [branch_and_bound.Box(kind, (1, 1), (16, 16)) for kind in range(2)]
    return Instance(
        solve=lambda search: branch_and_bound.best_vector(roots, cost, search).solution,
        cost=lambda value: cost.cost(*value),
    )


def stages(seed: int) -> Instance:
    draw = np.random.default_rng(seed)
    forward_s, backward_s = draw.integers(1, 9, (2, 4)) * 1e-3
    data = pipeline_cp_sat.LinePipeline(
        type_index=[0], num_devices_of=[1], num_devices=[2],
        forward_s=[forward_s.tolist()], backward_s=[backward_s.tolist()], flush_s=[[0.0] * 4], startup_s=[0.0],
        boundary_s=[1e-3] * 3, held_bytes=[1.0] * 4, in_flight_bytes=[[1.0] * 4],
        memory_bytes=[0.5 if seed == 1 else 100.0],  # half a byte holds no layer: infeasible
    )  # fmt: skip
    asked = Schedule(num_microbatches=3)

    def cost(chosen: Sequence[Any]) -> float:
        runs = [slice(one.first, one.last + 1) for one in chosen]
        forwards = [float(forward_s[run].sum()) for run in runs]
        backwards = [float(backward_s[run].sum()) for run in runs]
        between = [1e-3] * (len(chosen) - 1)
        times = PipelineTimes(forward_s=forwards, backward_s=backwards, output_s=between, error_s=between)
        return simulate(times, num_microbatches=3, schedule="1f1b").makespan_s

    return Instance(
        solve=lambda search: pipeline_cp_sat.best_pipeline(data, asked, 2, search, is_scheduled=True),
        cost=cost,
        tolerance=1e-4,  # seconds are whole ticks there
    )


SOLVERS: dict[str, Callable[[int], Instance]] = {
    "fusion.optimal_groups": groups,
    "matching.sum_assignment": least_sum,
    "matching.greedy_assignment": greedy,
    "matching.two_phase_assignment": two_phases,
    "chain.cheapest_chain": chain,
    "scalar.minimise": one_dimension,
    "shares.best_shares": batch_shares,
    "placement.best_placement": servers,
    "branch_and_bound.best_vector": vectors,
    "pipeline_cp_sat.best_pipeline": stages,
}
CASES = [(name, seed) for name in SOLVERS for seed in range(NUM_INSTANCES)]


def test_every_solver_that_is_registered_is_held_to_the_contract() -> None:
    found = set()
    for room in solvers.__all__:
        module = getattr(solvers, room)
        functions = inspect.getmembers(module, inspect.isfunction)
        for name in [name for name, one in functions if one.__module__ == module.__name__ and not name.startswith("_")]:
            answer = (
                str(inspect.signature(getattr(module, name)).return_annotation)
                if inspect.isfunction(getattr(module, name))
                else ""
            )
            if "Solution" in answer or "BestVectors" in answer:
                found.add(f"{room}.{name}")
    assert found == SOLVERS.keys() - REFEREES


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_status_bound_and_objective_fit_together(name: str, seed: int) -> None:
    asked = SOLVERS[name](seed)
    found = asked.solve(Search())
    if found.value is None:
        assert found.status in (Status.INFEASIBLE, Status.UNKNOWN)
        assert found.objective == math.inf or name == "shares.best_shares"  # which looks below a limit only
        return
    assert found.status in (Status.OPTIMAL, Status.FEASIBLE)
    assert found.bound <= found.objective * (1 + 1e-9)
    assert found.objective == pytest.approx(asked.cost(found.value), rel=asked.tolerance)
    if found.status is Status.OPTIMAL:
        assert found.bound == pytest.approx(found.objective, rel=1e-6)


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_the_same_question_and_seed_give_the_same_answer(name: str, seed: int) -> None:
    first, second = (SOLVERS[name](seed).solve(Search(seed=3)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    "name",
    ["chain.cheapest_chain", "shares.best_shares", "branch_and_bound.best_vector", "pipeline_cp_sat.best_pipeline"],
)
def test_what_has_no_answer_is_proven_to_have_none(name: str) -> None:
    found = SOLVERS[name](1).solve(Search())
    assert found.status is Status.INFEASIBLE
    assert found.value is None


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_no_other_search_beats_a_bound(name: str, seed: int) -> None:
    """A search that is over before it starts still gives a true bound."""
    over = Search(time_limit_s=0)
    best, hurried = SOLVERS[name](seed).solve(Search()), SOLVERS[name](seed).solve(over)
    if best.value is not None:
        assert hurried.bound <= best.objective * (1 + 1e-9)
        assert hurried.value is None or hurried.objective >= best.bound * (1 - 1e-9)
