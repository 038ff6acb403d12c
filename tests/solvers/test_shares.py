"""Shares of unlike workers and many dynamic programmes at once, against referees that try everything."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Tensors, affine_costs, log_linear_costs, tensors, timeouts_s

from planner.cost import Affine, Floats, Wait
from planner.models.communication import cheapest_of
from planner.solution import Status
from planner.solvers.fusion import optimal_groups
from planner.solvers.shares import Ints, Workers, best_shares, finish_times_s, repaired
from tests.referee.exhaustive import all_shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """The slowest worker's seconds, ``slope`` a sample; and what the shares cost besides, which no bound knows."""

    slopes: tuple[float, ...]
    extras: tuple[tuple[int, ...], ...]  # of a kind's first, second .. sample, for each kind

    def times_s(self, shares: Ints, /) -> Floats:
        extra_s = [np.cumsum(extra)[shares[:, kind] - 1] for kind, extra in enumerate(self.extras[: len(self.slopes)])]
        times_s: Floats = self.least_times_s(shares) + np.sum(extra_s, axis=0)
        return times_s

    def least_times_s(self, shares: Ints, /) -> Floats:
        times_s: Floats = (shares * np.array(self.slopes)).max(axis=1)
        return times_s

    def most_shares(self, limit_s: Floats, /) -> Floats:
        return np.asarray(np.floor(limit_s[:, None] / np.array(self.slopes) * (1 + 1e-12) + 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Kinds of workers, a batch, and what shares cost."""

    workers: Workers
    cost: Slopes


def drawn(seed: int) -> Instance:
    """An instance by lot: hypothesis alone draws too many whose kinds or extras are alike."""
    lots = np.random.default_rng(seed)
    number = int(lots.integers(1, 4))
    extras = lots.integers(0, 10, (number, 16)) * (lots.random((number, 16)) < 0.5)
    workers = Workers(
        counts=lots.integers(1, 5, number),
        batch=int(lots.integers(1, 17)),
        least=np.ones(number, dtype=np.int64),
        is_monotone=bool(lots.random() < 0.8),
    )
    slopes = tuple(lots.integers(1, 10, number).astype(float).tolist())
    return Instance(workers=workers, cost=Slopes(slopes=slopes, extras=tuple(map(tuple, extras.tolist()))))


instances = st.integers(0, 2**32 - 1).map(drawn)


@settings(max_examples=400)
@given(instances)
def test_the_best_shares_are_as_good_as_all_tried(instance: Instance) -> None:
    workers, cost = instance.workers, instance.cost
    tried = all_shares(tuple(workers.counts.tolist()), workers.batch, workers.batch)
    valid = [row for row in tried if workers.are_valid(np.array([row]))[0]]
    found = best_shares(workers, cost)
    if not valid:
        assert found.status is Status.INFEASIBLE
        return
    truth = min(float(cost.times_s(np.array([row]))[0]) for row in valid)
    assert found.status is Status.OPTIMAL
    assert found.objective == pytest.approx(truth)
    assert found.bound <= found.objective
    assert found.value in valid


@given(instances)
def test_below_the_optimum_there_are_no_shares(instance: Instance) -> None:
    workers, cost = instance.workers, instance.cost
    best = best_shares(workers, cost)
    if best.value is None:
        return
    none = best_shares(workers, cost, limit_s=best.objective)
    assert none.status is Status.INFEASIBLE
    assert none.bound == pytest.approx(best.objective)
    some = best_shares(workers, cost, limit_s=best.objective * (1 + 1e-6))
    assert some.value is not None


def test_shares_are_cut_down_to_the_batch_where_the_most_workers_are() -> None:
    workers = Workers(counts=np.array([1, 4]), batch=20, least=np.array([1, 1]))
    assert repaired(workers, np.array([9.0, 5.0])) == (8, 3)
    assert repaired(workers, np.array([3.0, 4.0])) is None


@settings(max_examples=150)
@given(
    st.lists(tensors(max_size=6, min_size=6), min_size=1, max_size=4),
    st.one_of(affine_costs, log_linear_costs),
    st.sampled_from(list(Wait)),
    timeouts_s,
)
def test_many_rows_end_when_each_would_alone(rows: list[Tensors], cost: Affine, wait: Wait, timeout_s: float) -> None:
    sizes = rows[0].size_bytes
    ready_s = np.array([row.ready_s for row in rows])
    found = finish_times_s(ready_s, sizes, cost, wait=wait, timeout_s=timeout_s)
    for one, row in zip(found.tolist(), rows, strict=True):
        alone = optimal_groups(row.ready_s, sizes, cost, wait=wait, timeout_s=timeout_s)
        assert one == pytest.approx(alone.objective)


@settings(max_examples=100)
@given(
    st.lists(tensors(max_size=5, min_size=5), min_size=2, max_size=2),
    st.lists(st.tuples(affine_costs, affine_costs), min_size=2, max_size=2),
)
def test_rows_may_have_algorithms_of_their_own(rows: list[Tensors], forms: list[tuple[Affine, Affine]]) -> None:
    startup_s = np.array([[one.startup_s for one in pair] for pair in forms])
    per_byte_s = np.array([[one.per_byte_s for one in pair] for pair in forms])
    sizes = rows[0].size_bytes
    found = finish_times_s(np.array([row.ready_s for row in rows]), sizes, (startup_s, per_byte_s))
    for one, row, pair in zip(found.tolist(), rows, forms, strict=True):
        assert one == pytest.approx(optimal_groups(row.ready_s, sizes, cheapest_of(list(pair))).objective)


def test_shares_of_an_endless_batch_are_cut_down_before_they_are_listed() -> None:
    slopes, batch = np.array([1.0, 1.5]), 10**15

    class Linear:
        def times_s(self, shares: Ints) -> Floats:
            assert len(shares) <= 200_000
            found: Floats = (shares * slopes).max(axis=1)
            return found

        least_times_s = times_s

        def most_shares(self, limit_s: Floats) -> Floats:
            found: Floats = np.floor(limit_s[:, None] / slopes)
            return found

    workers = Workers(counts=np.array([3, 2]), batch=batch, least=np.ones(2, dtype=np.int64))
    found = best_shares(workers, Linear(), limit_s=1e15)
    assert found.value is not None
    assert workers.are_valid(np.array([found.value])).all()
