import doctest
import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import ModelError
from planner.models.asynchronous import (
    AsynchronousRun,
    Synchronisation,
    WorkerKind,
    break_even_epochs,
    samples_per_s_bound,
    simulate,
)
from planner.models.asynchronous_events import play
from planner.models.asynchronous_exchange import Exchange
from planner.models.server_links import Links, iteration_time_s, pull_time_s
from planner.models.stragglers import expected_maximum_s

BSP, SSP, ASP, LOCAL = Synchronisation.BSP, Synchronisation.SSP, Synchronisation.ASP, Synchronisation.LOCAL_SGD
EVERY = [(BSP, 0), (SSP, 0), (SSP, 1), (SSP, 3), (ASP, 0), (LOCAL, 1), (LOCAL, 3)]
NUM_ITERATIONS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """The network and the workers of a question."""

    kinds: tuple[WorkerKind, ...]
    push_bytes: tuple[float, ...] = (0.0,)
    pull_bytes: tuple[float, ...] = (0.0,)
    server_bytes_per_s: tuple[float, ...] = (1.0,)
    latency_s: float = 0.0
    home: tuple[int | None, ...] | None = None

    @property
    def question(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def num_workers(self) -> int:
        return sum(kind.count for kind in self.kinds)

    def run(self, synchronisation: Synchronisation, bound: int = 0, **options: Any) -> AsynchronousRun:
        options = {"num_iterations": NUM_ITERATIONS} | options
        return simulate(**self.question, synchronisation=synchronisation, bound=bound, **options)

    def limit(self, synchronisation: Synchronisation, bound: int = 0) -> float:
        return samples_per_s_bound(Exchange.of(**self.question, synchronisation=synchronisation, bound=bound))

    def round_s(self, num_steps: int = 1) -> float:
        """A synchronous iteration by the model of servers' links: the gradient is one tensor on all servers."""
        workers = [kind for kind in self.kinds for _ in range(kind.count)]
        links = Links(
            server_bytes_per_s=self.server_bytes_per_s,
            worker_bytes_per_s=tuple(worker.link_bytes_per_s for worker in workers),
        )
        if not any(self.push_bytes):  # that model leaves computation out if nothing is pushed
            computed_s = num_steps * max(worker.compute_s for worker in workers)
            return computed_s + pull_time_s([self.pull_bytes], links) + self.latency_s * any(self.pull_bytes)
        ready = [[num_steps * worker.compute_s] for worker in workers]
        exchanged = iteration_time_s(ready, [self.push_bytes], links, parameters_bytes=[self.pull_bytes])
        return exchanged + self.latency_s * (1 + any(self.pull_bytes))

    @property
    def samples(self) -> int:
        return sum(kind.count * kind.samples for kind in self.kinds)


def worker(compute_s: float, *, count: int = 1, samples: int = 1, deviation_s: float = 0.0, link: float = math.inf) -> WorkerKind:  # fmt: skip
    return WorkerKind(count=count, compute_s=compute_s, samples=samples, deviation_s=deviation_s, link_bytes_per_s=link)


amounts = st.sampled_from([0.0, 0.5, 1.0, 3.0])


@st.composite
def instances(
    draw: st.DrawFn,
    links: Sequence[float] = (0.5, 1.0, 4.0, math.inf),
    deviations: Sequence[float] = (0.0,),
    at_home: bool = True,
) -> Instance:
    kinds = st.builds(
        worker,
        st.integers(1, 12).map(float),
        count=st.integers(1, 3),
        samples=st.integers(1, 4),
        deviation_s=st.sampled_from(deviations),
        link=st.sampled_from(links),
    )
    chosen = tuple(draw(st.lists(kinds, min_size=1, max_size=3)))
    if len(links) == 1 or draw(st.booleans()):
        chosen = tuple(replace(kind, link_bytes_per_s=chosen[0].link_bytes_per_s) for kind in chosen)
    size, num_servers = sum(kind.count for kind in chosen), draw(st.integers(1, 3))
    row = st.lists(amounts, min_size=num_servers, max_size=num_servers).map(tuple)
    homes = st.lists(st.none() | st.integers(0, num_servers - 1), min_size=size, max_size=size).map(tuple)
    return Instance(
        kinds=chosen,
        push_bytes=draw(row),
        pull_bytes=draw(row),
        server_bytes_per_s=tuple(draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=num_servers, max_size=num_servers))),
        latency_s=draw(st.sampled_from([0.0, 0.25])),
        home=draw(st.none() | homes) if at_home else None,
    )  # fmt: skip


# -- closed forms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("synchronisation", "bound"), EVERY)
def test_one_worker_does_one_thing_after_the_other(synchronisation: Synchronisation, bound: int) -> None:
    # Its link takes 12 s for 6 bytes, more than either server; the pull 4 s on the first server's link.
    alone = Instance(
        kinds=(worker(5, samples=8, link=0.5),),
        push_bytes=(4, 2),
        pull_bytes=(2, 0),
        server_bytes_per_s=(0.5, 1),
        latency_s=0.25,
    )
    run = alone.run(synchronisation, bound)
    steps = bound if synchronisation is LOCAL else 1
    cycle_s = 5 * steps + 12 + 4 + 2 * 0.25
    assert run.samples_per_s == pytest.approx(8 * steps / cycle_s)
    assert alone.limit(synchronisation, bound) == pytest.approx(8 * steps / cycle_s)
    assert run.mean_staleness == run.most_staleness == run.most_clock_difference == run.waiting_share == 0
    assert run.exchanges_s == pytest.approx(16.5)
    assert run.push_utilisation == pytest.approx((8 / cycle_s, 2 / cycle_s))
    assert run.pull_utilisation == pytest.approx((4 / cycle_s, 0))


@pytest.mark.parametrize(("synchronisation", "bound"), EVERY)
def test_equal_workers_on_an_idle_network_only_compute(synchronisation: Synchronisation, bound: int) -> None:
    run = Instance(kinds=(worker(4, count=5, samples=3),)).run(synchronisation, bound)
    assert run.samples_per_s == pytest.approx(5 * 3 / 4)
    assert run.waiting_share == run.exchanges_s == 0
    assert run.relative_standard_error == pytest.approx(0)


@pytest.mark.parametrize("link", [1.0, math.inf])
@pytest.mark.parametrize(("synchronisation", "bound"), [(ASP, 0), (SSP, 2)])
def test_a_full_link_sets_the_rate(synchronisation: Synchronisation, bound: int, link: float) -> None:
    busy = Instance(kinds=(worker(3, count=8, samples=2, link=link),), push_bytes=(2,), pull_bytes=(1,))
    run = busy.run(synchronisation, bound)
    assert run.samples_per_s == pytest.approx(2 * 1 / 2)
    assert run.push_utilisation == pytest.approx((1,))
    assert run.pull_utilisation == pytest.approx((0.5,))


def test_two_unequal_workers_go_their_own_ways_or_at_the_slow_ones_pace() -> None:
    pair = Instance(kinds=(worker(2), worker(10)))
    assert pair.run(ASP).samples_per_s == pytest.approx(1 / 2 + 1 / 10)
    for s in (0, 1, 5, 1000):
        run = pair.run(SSP, s)
        assert run.samples_per_s == pytest.approx(2 / 10)
        assert run.waiting_share == pytest.approx((8 / 10 + 0) / 2)
        assert run.most_clock_difference == s
    assert pair.run(BSP).samples_per_s == pytest.approx(2 / 10)


def test_workers_that_differ_by_little_are_held_back_too_in_the_long_run() -> None:
    # From a common start the faster one would be 64 ahead only after 6,400 iterations.
    pair = Instance(kinds=(worker(1.0), worker(1.01)))
    assert pair.run(SSP, 64).samples_per_s == pytest.approx(2 / 1.01)


def test_an_asynchronous_workers_update_misses_those_of_all_others() -> None:
    run = Instance(kinds=(worker(4, count=5),), push_bytes=(0.1,), pull_bytes=(0.1,)).run(ASP)
    assert [run.mean_staleness, run.most_staleness] == pytest.approx([4 / 5, 4 / 5])
    assert run.waiting_share == 0


def test_a_slow_workers_update_misses_all_that_a_fast_one_made_meanwhile() -> None:
    # 1 s against 10.2 s: ten or eleven updates in one iteration of the slow worker, and 1 in 10.2 the other way.
    run = Instance(kinds=(worker(1), worker(10.2))).run(ASP, num_iterations=400)
    assert run.most_staleness == pytest.approx(11 / 2)
    per_s = 1 + 1 / 10.2
    assert run.mean_staleness == pytest.approx((1 * (1 / 10.2) + (1 / 10.2) * 10.2) / 2 / per_s, rel=0.02)


# -- with a barrier ----------------------------------------------------------------------------------------------------


@given(instances(links=(2.0,), at_home=False) | instances(links=(math.inf,), at_home=False), st.integers(1, 4))
@settings(max_examples=60)
def test_bsp_and_local_sgd_are_the_model_of_servers_links(drawn: Instance, num_steps: int) -> None:
    assert drawn.run(BSP).samples_per_s == pytest.approx(drawn.samples / drawn.round_s())
    found = drawn.run(LOCAL, num_steps).samples_per_s
    assert found == pytest.approx(num_steps * drawn.samples / drawn.round_s(num_steps))


@given(instances(at_home=False))
@settings(max_examples=60)
def test_where_workers_links_differ_a_round_is_no_longer(drawn: Instance) -> None:
    assert drawn.run(BSP).measured_samples_per_s >= drawn.samples / drawn.round_s() * (1 - 1e-9)


def test_a_worker_whose_pull_ends_early_computes_early() -> None:
    # Links of 1 and 1/9 B/s for 1 byte: pulls end at 1.11 and 9 s, all computation at 1.11 + 20 and 9 + 1.
    pair = Instance(kinds=(worker(20, link=1.0), worker(1, link=1 / 9)), push_bytes=(0,), pull_bytes=(1,))
    assert pair.run(BSP).samples_per_s == pytest.approx(2 / (1 + 1 / 9 + 20))
    assert pair.round_s() == pytest.approx(9 + 20)


@given(instances(deviations=(0.0, 2.0)))
@settings(max_examples=40)
def test_no_slack_and_one_local_step_are_bsp_itself(drawn: Instance) -> None:
    assert asdict(drawn.run(SSP, 0)) == asdict(drawn.run(BSP)) == asdict(drawn.run(LOCAL, 1))


def test_local_sgd_misses_what_others_did_since_the_exchange() -> None:
    run = Instance(kinds=(worker(1, count=4),)).run(LOCAL, 5)
    assert [run.mean_staleness, run.most_staleness] == pytest.approx([2 * 3 / 4, 4 * 3 / 4])


def test_a_round_with_variation_lasts_as_long_as_its_slowest_worker_is_expected_to() -> None:
    noisy = Instance(kinds=(worker(10, count=6, deviation_s=1), worker(11, count=2, deviation_s=0.5)))
    run = noisy.run(BSP, num_iterations=2000)
    expected_s = expected_maximum_s([10] * 6 + [11] * 2, [1] * 6 + [0.5] * 2)
    assert run.relative_standard_error < 0.005
    assert run.samples_per_s == pytest.approx(8 / expected_s, rel=5 * run.relative_standard_error)
    assert noisy.run(ASP, num_iterations=2000).samples_per_s == pytest.approx(6 / 10 + 2 / 11, rel=0.005)


# -- homes -------------------------------------------------------------------------------------------------------------


@given(instances(at_home=False, deviations=(0.0, 2.0)), st.sampled_from(EVERY))
@settings(max_examples=60)
def test_a_home_on_a_server_that_holds_nothing_changes_nothing(
    drawn: Instance, when: tuple[Synchronisation, int]
) -> None:
    # Without homes one link stands for all; with them each is followed on its own.
    homely = replace(
        drawn,
        push_bytes=(*drawn.push_bytes, 0.0),
        pull_bytes=(*drawn.pull_bytes, 0.0),
        server_bytes_per_s=(*drawn.server_bytes_per_s, 1.0),
        home=(len(drawn.server_bytes_per_s),) * drawn.num_workers,
    )
    plain, found = drawn.run(*when, num_iterations=8), homely.run(*when, num_iterations=8)
    assert found.measured_samples_per_s == pytest.approx(plain.measured_samples_per_s)
    assert found.mean_staleness == pytest.approx(plain.mean_staleness)
    assert homely.limit(*when) == pytest.approx(drawn.limit(*when))


def test_of_two_machines_that_serve_each_other_half_the_bytes_cross_the_network() -> None:
    shared = Instance(
        kinds=(worker(5, count=2),), push_bytes=(3, 3), pull_bytes=(3, 3), server_bytes_per_s=(1, 1), home=(0, 1)
    )
    assert shared.run(BSP).samples_per_s == pytest.approx(2 / (5 + 3 + 3))
    apart = replace(shared, home=None)
    assert apart.run(BSP).samples_per_s == pytest.approx(2 / (5 + 6 + 6))


def test_a_machine_that_serves_itself_alone_needs_no_network() -> None:
    alone = Instance(kinds=(worker(5),), push_bytes=(3,), pull_bytes=(3,), latency_s=1, home=(0,))
    for when in EVERY:
        assert alone.run(*when).samples_per_s == pytest.approx(1 / 5)
        assert alone.limit(*when) == pytest.approx(1 / 5)


# -- against a simulation piece by piece -------------------------------------------------------------------------------


def updates_by_pieces(
    given_: Instance, slack: float, starts: Sequence[tuple[float, int]], num_exchanges: int
) -> list[float]:
    """When each update was applied, if transfers are cut in 400 pieces, each served by each server in its turn."""
    num_pieces, workers = 400, [kind for kind in given_.kinds for _ in range(kind.count)]
    home = given_.home or (None,) * len(workers)
    free = {(direction, server): 0.0 for direction in range(2) for server in range(len(given_.push_bytes))}
    clock, waiting, applied = [ahead for _, ahead in starts], set[int](), list[float]()
    events: list[tuple[float, int, int, int]] = []  # time; -1 begins, a piece, or after all pieces: done; direction

    def sizes(direction: int, index: int) -> list[float]:
        row = given_.pull_bytes if direction else given_.push_bytes
        return [0.0 if server == home[index] else size for server, size in enumerate(row)]

    def begin(now: float, direction: int, index: int) -> None:
        delay_s = given_.latency_s if sum(sizes(direction, index)) else 0.0
        heapq.heappush(events, (now + delay_s, -1, direction, index))

    def arrive(now: float, piece: int, direction: int, index: int) -> None:
        ends = [now]
        for server, size in enumerate(sizes(direction, index)):
            if size:
                link = (direction, server)
                free[link] = max(free[link], now) + size / num_pieces / given_.server_bytes_per_s[server]
                ends.append(free[link])
        if piece == num_pieces - 1:
            heapq.heappush(events, (max(ends), num_pieces, direction, index))

    for index, (start_s, _) in enumerate(starts):
        begin(start_s + workers[index].compute_s, 0, index)
    while len(applied) < num_exchanges:
        now, piece, direction, index = heapq.heappop(events)
        if piece == -1:
            own_s = sum(sizes(direction, index)) / workers[index].link_bytes_per_s
            for one in range(num_pieces):
                heapq.heappush(events, (now + own_s * (one + 1) / num_pieces, one, direction, index))
        elif piece < num_pieces:
            arrive(now, piece, direction, index)
        elif direction:
            begin(now + workers[index].compute_s, 0, index)
        else:
            applied.append(now)
            clock[index] += 1
            waiting.add(index)
            for one in sorted(one for one in waiting if clock[one] - min(clock) <= slack):
                waiting.discard(one)
                begin(now, 1, one)
    return applied


@pytest.mark.parametrize("when", [(BSP, 0), (SSP, 1), (SSP, 2), (ASP, 0)])
@pytest.mark.parametrize("home", [None, (0, 1, None, None)])
@pytest.mark.parametrize("seed", range(3))
def test_piece_by_piece_the_same_updates_are_applied_at_the_same_times(
    when: tuple[Synchronisation, int], home: tuple[int | None, ...] | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    drawn = Instance(
        kinds=tuple(worker(float(rng.uniform(1, 9)), link=float(rng.uniform(0.5, 3))) for _ in range(4)),
        push_bytes=tuple(rng.uniform(0, 2, 2).tolist()),
        pull_bytes=tuple(rng.uniform(0, 2, 2).tolist()),
        server_bytes_per_s=tuple(rng.uniform(0.5, 2, 2).tolist()),
        latency_s=0.3,
        home=home,
    )
    exchange = Exchange.of(**drawn.question, synchronisation=when[0], bound=when[1])
    cycles_s = exchange.cycles_s()
    starts = [(one * index / 4, when[1] * (one < max(cycles_s))) for index, one in enumerate(cycles_s)]
    found = play(exchange, num_exchanges=4 * 6, num_warm_up=4, seed=0).rounds_s
    assert found == pytest.approx(updates_by_pieces(drawn, exchange.slack, starts, 4 * 6)[3::4], rel=0.01)


# -- properties --------------------------------------------------------------------------------------------------------


@given(instances(), st.sampled_from(EVERY))
@settings(max_examples=150)
def test_no_run_is_faster_than_the_bound(drawn: Instance, when: tuple[Synchronisation, int]) -> None:
    run, limit = drawn.run(*when), drawn.limit(*when)
    assert run.samples_per_s <= limit
    # A finite run may begin with work left in queues, or end amid a period: an exchange or two of each worker.
    assert run.measured_samples_per_s <= limit * (1 + 2 / NUM_ITERATIONS)
    if when[0] not in (ASP, SSP):
        assert run.measured_samples_per_s <= limit * (1 + 1e-9)


@given(instances(deviations=(0.0, 1.0, 5.0)), st.sampled_from(EVERY))
@settings(max_examples=60)
def test_variation_does_not_lift_a_run_above_the_bound(drawn: Instance, when: tuple[Synchronisation, int]) -> None:
    run, limit = drawn.run(*when, num_iterations=200), drawn.limit(*when)
    assert run.measured_samples_per_s <= limit * 1.15


def test_where_iterations_vary_the_first_push_begins_before_the_mean_and_the_bound_knows() -> None:
    # 24 s of pushes; of eight iterations of 10 s, varying by 5 s, the shortest is of about 3 s.
    noisy = Instance(kinds=(worker(10, count=8, deviation_s=5),), push_bytes=(3,))
    run = noisy.run(BSP, num_iterations=500)
    assert 0.95 * run.measured_samples_per_s > 8 / (10 + 24)
    assert run.measured_samples_per_s <= noisy.limit(BSP)


@given(instances(deviations=(0.0, 2.0)), st.integers(0, 4))
@settings(max_examples=60)
def test_no_worker_starts_more_than_s_iterations_ahead_or_misses_more_than_it_may(drawn: Instance, s: int) -> None:
    run, size = drawn.run(SSP, s), drawn.num_workers
    assert run.mean_clock_difference <= run.most_clock_difference <= s
    assert run.mean_staleness <= run.most_staleness <= (2 * s + 1) * (size - 1) / size * (s > 0)


@given(instances(deviations=(0.0, 2.0)), st.sampled_from(EVERY))
@settings(max_examples=40)
def test_the_parts_of_a_run_fit_together(drawn: Instance, when: tuple[Synchronisation, int]) -> None:
    run = drawn.run(*when)
    assert 0 <= run.waiting_share < 1
    assert run.exchanges_s >= 0
    assert run.num_exchanges == NUM_ITERATIONS * drawn.num_workers
    assert all(0 <= share <= 1 for share in run.push_utilisation + run.pull_utilisation)
    assert (when[0] is ASP) <= (run.waiting_share == 0)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(0, 3))
@settings(max_examples=40)
def test_on_an_idle_network_a_looser_condition_is_never_slower(seconds: list[int], s: int) -> None:
    idle = Instance(kinds=tuple(worker(float(one)) for one in seconds))
    rates = [idle.run(*when).measured_samples_per_s for when in ((BSP, 0), (SSP, s), (SSP, s + 1), (ASP, 0))]
    assert rates == pytest.approx(sorted(rates))
    assert rates[0] == pytest.approx(len(seconds) / max(seconds))
    assert rates[-1] == pytest.approx(sum(1 / one for one in seconds))


def test_variation_costs_less_the_more_slack_there_is() -> None:
    noisy = Instance(kinds=(worker(10, count=8, deviation_s=3),))
    rates = [noisy.run(*when, num_iterations=1000).samples_per_s for when in ((BSP, 0), (SSP, 1), (SSP, 4), (ASP, 0))]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(8 / 10, rel=0.02)
    assert rates[0] < 0.75 * rates[-1]


def test_on_a_full_network_a_looser_condition_may_be_slower() -> None:
    # Without a barrier the link is full of the updates of fast workers, which stand for few samples.
    mixed = Instance(kinds=(worker(1, samples=1), worker(10, samples=5)), push_bytes=(8,))
    assert mixed.run(BSP).samples_per_s == pytest.approx(6 / 18)
    assert mixed.run(ASP, num_iterations=400).samples_per_s < 0.85 * 6 / 18


@given(instances(deviations=(0.0, 2.0)), st.sampled_from(EVERY))
@settings(max_examples=40)
def test_doubling_all_times_halves_the_rate(drawn: Instance, when: tuple[Synchronisation, int]) -> None:
    kinds = tuple(
        replace(
            kind,
            compute_s=2 * kind.compute_s,
            deviation_s=2 * kind.deviation_s,
            link_bytes_per_s=kind.link_bytes_per_s / 2,
        )
        for kind in drawn.kinds
    )
    rates = tuple(rate / 2 for rate in drawn.server_bytes_per_s)
    slow = replace(drawn, kinds=kinds, server_bytes_per_s=rates, latency_s=2 * drawn.latency_s)
    fast_run, slow_run = drawn.run(*when), slow.run(*when)
    assert slow_run.measured_samples_per_s == pytest.approx(fast_run.measured_samples_per_s / 2)
    assert slow_run.mean_staleness == fast_run.mean_staleness
    assert slow.limit(*when) == pytest.approx(drawn.limit(*when) / 2)


@given(instances(deviations=(2.0,)), st.sampled_from(EVERY))
@settings(max_examples=20)
def test_the_same_seed_gives_the_same_run(drawn: Instance, when: tuple[Synchronisation, int]) -> None:
    assert asdict(drawn.run(*when, seed=7)) == asdict(drawn.run(*when, seed=7))


def test_another_seed_gives_another_run() -> None:
    noisy = Instance(kinds=(worker(10, count=3, deviation_s=3),))
    rates = {noisy.run(BSP, seed=seed).samples_per_s for seed in range(3)}
    assert len(rates) == 3


@given(instances(), st.sampled_from(EVERY))
@settings(max_examples=30)
def test_a_kind_of_two_is_two_kinds_of_one(drawn: Instance, when: tuple[Synchronisation, int]) -> None:
    singles = replace(drawn, kinds=tuple(replace(kind, count=1) for kind in drawn.kinds for _ in range(kind.count)))
    assert asdict(singles.run(*when)) == asdict(drawn.run(*when))


def test_a_draw_is_never_negative() -> None:
    # Half of a normal distribution around almost nothing: the mean of what is left is sigma sqrt(2 / pi).
    run = Instance(kinds=(worker(1e-9, deviation_s=1.0),)).run(ASP, num_iterations=4000)
    assert 1 / run.measured_samples_per_s == pytest.approx(math.sqrt(2 / math.pi), rel=0.05)


def test_many_workers_are_simulated_for_fewer_iterations() -> None:
    small, large = (Instance(kinds=(worker(1, count=count),)).run(ASP, num_iterations=None) for count in (2, 1000))
    assert (small.num_exchanges, large.num_exchanges) == (800, 20_000)


def test_a_run_that_is_faster_by_half_may_need_half_as_many_epochs_more() -> None:
    assert break_even_epochs(samples_per_s=150, synchronous_samples_per_s=100) == 1.5
    with pytest.raises(ModelError, match="samples_per_s 0"):
        break_even_epochs(samples_per_s=0, synchronous_samples_per_s=100)


def test_the_page_for_users_shows_what_comes_out() -> None:
    page = Path(__file__).parents[2] / "docs" / "asynchronous.md"
    text = page.read_text().replace("```", "")  # a fence would be taken for output
    failed, tried = doctest.DocTestRunner().run(doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0))
    assert tried > 5
    assert failed == 0


ONE = Instance(kinds=(worker(1),))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: worker(1, count=0), "count 0"),
        (lambda: worker(1, samples=0), "samples 0"),
        (lambda: worker(0), "compute_s is 0"),
        (lambda: worker(math.inf), "compute_s is inf"),
        (lambda: worker(1, deviation_s=-1), "deviation_s is -1"),
        (lambda: worker(1, link=0), "link_bytes_per_s is 0"),
        (lambda: replace(ONE, kinds=()).run(ASP), "there is no worker"),
        (lambda: replace(ONE, server_bytes_per_s=()).run(ASP), r"server_bytes_per_s must be .* > 0, not \[\]"),
        (lambda: replace(ONE, server_bytes_per_s=(math.inf,)).run(ASP), r"not \[inf\]"),
        (lambda: replace(ONE, push_bytes=(1, 1)).run(ASP), "push_bytes must be 1 finite numbers"),
        (lambda: replace(ONE, pull_bytes=(-1,)).run(ASP), "pull_bytes must be 1 finite numbers"),
        (lambda: replace(ONE, latency_s=-1).run(ASP), "latency_s is -1"),
        (lambda: replace(ONE, home=(0, 0)).run(ASP), "home has 2 entries for 1 workers"),
        (lambda: replace(ONE, home=(1,)).run(ASP), "home names server 1 of 1"),
        (lambda: ONE.run(SSP, -1), "bound is -1 under ssp. It must be >= 0"),
        (lambda: ONE.run(LOCAL, 0), "bound is 0 under local_sgd. It must be >= 1"),
        (lambda: ONE.run(ASP, num_iterations=3), "num_iterations is 3. It must be >= 4"),
    ],
)
def test_bad_input_is_refused_with_the_number(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        call()
