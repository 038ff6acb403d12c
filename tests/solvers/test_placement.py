"""Placements of tensors on servers: against every placement tried, the exact model of the links, and their bound."""

import math
from dataclasses import dataclass
from itertools import combinations, product
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.cost import Floats
from planner.models.servers import Links, iteration_time_s, place_largest_first
from planner.search import Search
from planner.solution import Status
from planner.solvers.placement import (
    Arrivals,
    Placement,
    Workers,
    arrivals,
    best_placement,
    improved,
    least_pull_s,
    lower_bound,
    objective,
)
from tests.referee import exhaustive

SLACK_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Tensors in ready order on some kinds of workers, and servers; ``home_kind`` as for ``arrivals``."""

    ready_s: Floats
    size_bytes: Floats
    server_bytes_per_s: tuple[float, ...]
    worker_counts: tuple[int, ...]
    worker_bytes_per_s: tuple[float, ...]
    home_kind: int | None = None

    def arrivals(self) -> Arrivals:
        return arrivals(
            self.ready_s,
            self.size_bytes,
            self.server_bytes_per_s,
            Workers(counts=self.worker_counts, bytes_per_s=self.worker_bytes_per_s, home_kind=self.home_kind),
        )

    def exact_s(self, placement: Placement) -> float:
        """What the model of every link says."""
        servers = len(self.server_bytes_per_s)
        rows: list[Floats] = []
        rates, counts, homes = [], [], []
        for kind, (count, rate) in enumerate(zip(self.worker_counts, self.worker_bytes_per_s, strict=True)):
            at_home = servers if kind == self.home_kind else 0
            entries = [(1, home) for home in range(at_home)] + [(count - at_home, None)] * (count > at_home)
            for number, home in entries:
                rows.append(self.ready_s[kind])
                rates.append(rate)
                counts.append(number)
                homes.append(home)
        links = Links(
            server_bytes_per_s=self.server_bytes_per_s,
            worker_bytes_per_s=tuple(rates),
            worker_counts=tuple(counts),
            worker_homes=tuple(homes),
        )
        placed = np.zeros((len(self.size_bytes), servers))
        placed[np.arange(len(placement)), list(placement)] = self.size_bytes
        pushes_s = iteration_time_s(rows, placed, links)
        # All computing is over before pulls start, also where nothing has to be sent.
        return max(pushes_s, pushes_s + float(self.ready_s.max()) - self._push_s(rows, placed, links))

    def _push_s(self, rows: list[Floats], placed: Floats, links: Links) -> float:
        return iteration_time_s(rows, placed, links, parameters_bytes=np.zeros_like(placed))


@st.composite
def instances(
    draw: st.DrawFn, worker_rates: tuple[float, ...] = (math.inf, 1.0, 4.0), homes: bool = True, most_tensors: int = 6
) -> Instance:
    sizes = draw(st.lists(st.integers(1, 12).map(float), min_size=1, max_size=most_tensors))
    kinds = draw(st.integers(1, 3))
    gaps = st.lists(st.integers(0, 9).map(float), min_size=len(sizes), max_size=len(sizes))
    ready = np.cumsum([draw(gaps) for _ in range(kinds)], axis=1)
    counts = tuple(draw(st.integers(1, 3)) for _ in range(kinds))
    home = draw(st.none() | st.integers(0, kinds - 1)) if homes else None
    rates = st.sampled_from([0.5, 1.0, 2.0, 3.0])
    most = 3 if home is None else counts[home]
    servers = (
        draw(st.lists(rates, min_size=1, max_size=most)) if home is None else [draw(rates)] * draw(st.integers(1, most))
    )
    return Instance(
        ready_s=ready,
        size_bytes=np.array(sizes),
        server_bytes_per_s=tuple(servers),
        worker_counts=counts,
        worker_bytes_per_s=tuple(draw(st.sampled_from(worker_rates)) for _ in range(kinds)),
        home_kind=home,
    )


placements = st.lists(st.integers(0, 99), min_size=6, max_size=6)


@settings(max_examples=150)
@given(instances(worker_rates=(math.inf,)) | instances(homes=False), placements)
def test_the_rows_are_the_model_of_the_links(drawn: Instance, draws: list[int]) -> None:
    placement = tuple(draw % len(drawn.server_bytes_per_s) for draw in draws[: len(drawn.size_bytes)])
    assert objective(drawn.arrivals(), placement) == pytest.approx(drawn.exact_s(placement))


@settings(max_examples=100)
@given(instances(), placements)
def test_the_rows_are_never_above_the_model_where_they_relax_it(drawn: Instance, draws: list[int]) -> None:
    placement = tuple(draw % len(drawn.server_bytes_per_s) for draw in draws[: len(drawn.size_bytes)])
    assert objective(drawn.arrivals(), placement) <= drawn.exact_s(placement) + SLACK_S


def all_at_once(*sizes: float) -> Instance:
    """Three workers that send everything at once to two servers, one of which has half the other's link."""
    return Instance(
        ready_s=np.zeros((1, len(sizes))),
        size_bytes=np.array(sizes),
        server_bytes_per_s=(0.5, 1.0),
        worker_counts=(3,),
        worker_bytes_per_s=(1.0,),
    )


@settings(max_examples=120)
@example(all_at_once(10, 5, 8, 1, 6))  # CP-SAT's presolve cuts the optimum off in these two
@example(all_at_once(10, 4, 6, 1, 7))
@given(instances(worker_rates=(math.inf,)) | instances(homes=False))
def test_the_optimum_agrees_with_every_placement_tried(drawn: Instance) -> None:
    rows = drawn.arrivals()
    found = best_placement(rows, Search(), evaluate=drawn.exact_s)
    tensors, servers = len(drawn.size_bytes), len(drawn.server_bytes_per_s)
    truth = exhaustive.best_placement(tensors, servers, lambda tried: objective(rows, tried))
    assert found.status is truth.status is Status.OPTIMAL
    assert found.bound <= truth.objective + SLACK_S
    assert found.objective == pytest.approx(truth.objective)
    assert found.value is not None
    assert drawn.exact_s(found.value) == pytest.approx(found.objective)
    assert lower_bound(rows) <= truth.objective + SLACK_S


@settings(max_examples=40)
@given(instances(most_tensors=4))
def test_the_bound_holds_also_where_rows_relax_the_model(drawn: Instance) -> None:
    found = best_placement(drawn.arrivals(), Search(), evaluate=drawn.exact_s)
    truth = exhaustive.best_placement(len(drawn.size_bytes), len(drawn.server_bytes_per_s), drawn.exact_s)
    assert found.bound <= truth.objective + SLACK_S
    assert truth.objective <= found.objective + SLACK_S
    assert found.status is Status.OPTIMAL  # so few placements are all tried, where the rows prove nothing
    assert found.objective == pytest.approx(truth.objective)


@given(instances(most_tensors=4), st.integers(0, 10_000))
def test_where_the_model_says_more_than_the_rows_few_placements_are_all_tried(drawn: Instance, seed: int) -> None:
    rows, rates = drawn.arrivals(), drawn.server_bytes_per_s

    def evaluate(placement: Placement) -> float:
        held = [[tensor for tensor, at in enumerate(placement) if at == server] for server in range(len(rates))]
        key = sorted(zip(rates, held, strict=True))  # the same whatever equal servers are called
        return objective(rows, placement) + Random(f"{seed} {key}").uniform(2, 30)

    found = best_placement(rows, Search(), evaluate=evaluate)
    truth = exhaustive.best_placement(len(drawn.size_bytes), len(rates), evaluate)
    assert found.status is Status.OPTIMAL
    assert found.bound == found.objective == pytest.approx(truth.objective)


@settings(max_examples=50)
@given(
    st.lists(st.integers(2, 12).map(float), min_size=3, max_size=6),
    st.sampled_from([(0.5, 3.0), (2.0, 2.0), (2.0, 3.0, 0.5)]),
)
def test_the_optimum_of_pushes_alone_is_proven(sizes: list[float], rates: tuple[float, ...]) -> None:
    nothing = [0.0] * len(sizes)
    rows = arrivals(nothing, sizes, rates, Workers(counts=[2], bytes_per_s=[math.inf]), pulled_bytes=nothing)
    found = best_placement(rows, Search())
    truth = exhaustive.best_placement(len(sizes), len(rates), lambda tried: objective(rows, tried))
    assert found.status is Status.OPTIMAL
    assert found.objective == pytest.approx(truth.objective)


def test_balanced_loads_are_not_the_best_placement() -> None:
    # 18 bytes, two servers, one of twice the link: 12 and 6 are in balance, which only the last tensor on the slow server
    # makes. It is late there: 6 + 6/1 s, then 6 s of pulls. With 13 and 5 bytes all is over after 15.5 s.
    drawn = Instance(
        ready_s=np.array([[1.0, 3.0, 3.0, 6.0]]),
        size_bytes=np.array([5.0, 5.0, 2.0, 6.0]),
        server_bytes_per_s=(2.0, 1.0),
        worker_counts=(1,),
        worker_bytes_per_s=(math.inf,),
    )
    rates = np.array(drawn.server_bytes_per_s)

    def drain_s(placement: Placement) -> Floats:
        loads: Floats = np.bincount(placement, weights=drawn.size_bytes, minlength=2) / rates
        return loads

    best = best_placement(drawn.arrivals(), Search())
    truth = exhaustive.best_placement(4, 2, drawn.exact_s)
    assert best.status is Status.OPTIMAL
    assert best.objective == pytest.approx(truth.objective) == pytest.approx(15.5)
    in_balance = [tried for tried in product(range(2), repeat=4) if np.ptp(drain_s(tried)) == 0]
    assert in_balance == [(0, 0, 0, 1)]
    assert drawn.exact_s(in_balance[0]) == pytest.approx(18)


@given(instances(homes=False))
def test_relabelled_equal_servers_and_doubled_times_change_nothing_else(drawn: Instance) -> None:
    rows = drawn.arrivals()
    once = best_placement(rows, Search())
    again = best_placement(rows, Search())
    assert once == again
    twice = Instance(
        ready_s=2 * drawn.ready_s,
        size_bytes=drawn.size_bytes,
        server_bytes_per_s=tuple(rate / 2 for rate in drawn.server_bytes_per_s[::-1]),
        worker_counts=drawn.worker_counts,
        worker_bytes_per_s=tuple(rate / 2 for rate in drawn.worker_bytes_per_s),
    )
    assert best_placement(twice.arrivals(), Search()).objective == pytest.approx(2 * once.objective)


def test_a_large_placement_is_closer_to_its_bound_than_largest_first() -> None:
    rng = np.random.default_rng(3)
    drawn = Instance(
        ready_s=np.sort(rng.uniform(0, 3, (2, 120)), axis=1),
        size_bytes=rng.lognormal(1, 1.5, 120),
        server_bytes_per_s=(40.0,) * 7,
        worker_counts=(3, 2),
        worker_bytes_per_s=(math.inf, math.inf),
    )
    rows = drawn.arrivals()
    found = best_placement(rows, Search(), most_work=1.0)
    simple = place_largest_first(drawn.size_bytes, server_bytes_per_s=drawn.server_bytes_per_s).argmax(axis=1)
    assert found.value is not None
    assert found.bound <= found.objective <= objective(rows, tuple(simple.tolist()))
    assert found.gap < 0.02


@settings(max_examples=100)
@given(
    st.lists(st.integers(1, 40).map(lambda size: 32.0 * size), min_size=1, max_size=6),
    st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=1, max_size=3),
)
def test_pulls_take_at_least_what_some_tensors_that_are_whole_do(sizes: list[float], rates: list[float]) -> None:
    rows = arrivals(np.zeros(len(sizes)), sizes, rates, Workers(counts=[3], bytes_per_s=[math.inf]))
    bound, even = least_pull_s(rows), 3 * sum(sizes) / sum(rates)
    loads = [sum(some) for number in range(1, len(sizes) + 1) for some in combinations(sizes, number)]
    longest = [3 * load / rate for load, rate in product(loads, rates)]
    assert bound == pytest.approx(min(one for one in longest if one >= bound * (1 - 1e-12)))
    tried = product(range(len(rates)), repeat=len(sizes))
    held = [
        [sum(size for size, at in zip(sizes, one, strict=True) if at == s) for s in range(len(rates))] for one in tried
    ]
    truth = min(max(3 * load / rate for load, rate in zip(loads, rates, strict=True)) for loads in held)
    assert even * (1 - 1e-12) <= bound <= truth * (1 + 1e-12)
    if len(rates) == 2 and rates[0] == rates[1]:
        assert bound == pytest.approx(truth)


def test_of_many_large_tensors_pulls_take_at_least_an_even_part() -> None:
    sizes = np.arange(4001.0, 6001.0) * 1001
    rows = arrivals(np.zeros(2000), sizes, [1.0, 1.0], Workers(counts=[1], bytes_per_s=[math.inf]))
    assert least_pull_s(rows) == sizes.sum() / 2
    rows = arrivals(np.zeros(2), [1.5, 2.0], [1.0, 1.0], Workers(counts=[1], bytes_per_s=[math.inf]))
    assert least_pull_s(rows) == 2.0


def test_a_search_that_is_over_returns_a_placement_and_a_bound() -> None:
    search = Search()
    search.interrupt()
    rng = np.random.default_rng(5)
    rows = arrivals(
        np.cumsum(rng.uniform(0, 1, (1, 30)), axis=1),
        rng.uniform(1, 9, 30),
        [5.0] * 4,
        Workers(counts=[4], bytes_per_s=[math.inf]),
    )
    found = best_placement(rows, search)
    assert found.value is not None
    assert lower_bound(rows) == found.bound <= found.objective


def test_a_tensor_behind_another_on_its_workers_link_reaches_an_idle_server_late() -> None:
    # The slow server hears nothing until the first tensor is through, after 4 s: 4 + 4 / 0.5 s, then 8 s of pulls.
    drawn = Instance(
        ready_s=np.array([[0.0, 0.0]]),
        size_bytes=np.array([4.0, 4.0]),
        server_bytes_per_s=(3.0, 0.5),
        worker_counts=(1,),
        worker_bytes_per_s=(1.0,),
    )
    assert objective(drawn.arrivals(), (0, 1)) == pytest.approx(drawn.exact_s((0, 1))) == pytest.approx(20)


def test_times_and_tensors_are_no_table_however_many_they_are() -> None:
    number = 4000
    sizes, ready = 1.0 + np.arange(number) % 7, np.linspace(0.0, 1.0, number)
    given = arrivals(ready, sizes, [1e4, 1e4], Workers(counts=[3], bytes_per_s=[1e4]))
    assert given.senders.size <= 2**23
    assert not given.is_whole
    found = best_placement(
        given, Search(questions_left=0), evaluate=lambda placement: 10.0 + objective(given, placement)
    )
    assert found.value is not None
    assert len(found.value) == number
    assert found.status is Status.FEASIBLE


@given(st.integers(20, 60), st.integers(0, 10_000))
def test_of_many_tensors_no_time_is_left_out_while_the_table_is_small(number: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = Instance(
        ready_s=np.cumsum(rng.uniform(0.2, 3, (2, number)), axis=1),
        size_bytes=rng.integers(2, 9, number).astype(float),
        server_bytes_per_s=(3.0, 5.0),
        worker_counts=(2, 3),
        worker_bytes_per_s=(math.inf, math.inf),
    )
    placement = tuple(rng.integers(0, 2, number).tolist())
    assert drawn.arrivals().is_whole
    assert objective(drawn.arrivals(), placement) == pytest.approx(drawn.exact_s(placement))


def test_tensors_are_dealt_out_where_the_time_does_not_come_to_them() -> None:
    readings = iter(range(10**9))
    search = Search(time_limit_s=3.0, clock=lambda: float(next(readings)))
    sizes = 1.0 + np.arange(3000) % 5
    given = arrivals(np.zeros(3000), sizes, [1.0, 1.0, 1.0], Workers(counts=[1], bytes_per_s=[10.0]))
    found = best_placement(given, search)
    assert next(readings) < 20
    assert found.value is not None
    assert set(found.value) == {0, 1, 2}


@given(
    st.lists(st.integers(2, 5), min_size=2, max_size=4),
    st.sampled_from([0.5, 3.0]),
    st.integers(2, 9).map(float),
    st.integers(2, 5).map(float),
)
def test_equal_tensors_that_links_share_in_proportion_meet_the_bound(
    shares: list[int], bytes_per_s_each: float, size_bytes: float, ready_s: float
) -> None:
    sizes = np.full(sum(shares), size_bytes)
    drawn = Instance(
        ready_s=np.full((1, len(sizes)), ready_s),
        size_bytes=sizes,
        server_bytes_per_s=tuple(number * bytes_per_s_each for number in shares),
        worker_counts=(3,),
        worker_bytes_per_s=(math.inf,),
    )
    placement = tuple(np.repeat(np.arange(len(shares)), shares).tolist())
    rows = drawn.arrivals()
    assert objective(rows, placement) == pytest.approx(ready_s + 2 * 3 * size_bytes / bytes_per_s_each)
    assert lower_bound(rows) == pytest.approx(objective(rows, placement))


@settings(max_examples=150)
@given(instances(), placements)
def test_an_improved_placement_is_not_bettered_by_a_move_or_swap_of_a_busiest_server(
    drawn: Instance, draws: list[int]
) -> None:
    rows, servers = drawn.arrivals(), range(len(drawn.server_bytes_per_s))
    start = tuple(draw % len(servers) for draw in draws[: len(drawn.size_bytes)])
    found = improved(rows, start, Search())
    least = objective(rows, found)
    assert least <= objective(rows, start)
    for tensor, server in product(range(len(found)), servers):
        moved = (*found[:tensor], server, *found[tensor + 1 :])
        assert objective(rows, moved) >= least * (1 - SLACK_S)
    for one, other in product(range(len(found)), repeat=2):
        swapped = list(found)
        swapped[one], swapped[other] = found[other], found[one]
        assert objective(rows, tuple(swapped)) >= least * (1 - SLACK_S)
