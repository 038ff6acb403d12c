"""Parameter servers without a barrier, or with a looser one: closed forms, barriers, homes, and a simulation by hand."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest
from asynchronous_drawn import ASP, BSP, EVERY, LOCAL, SSP, Instance, instances, worker
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.models.asynchronous import cycles_s
from planner.models.data_parallel import expected_maximum_s
from planner.models.exchange import Discipline
from planner.models.exchange_run import Run

# -- closed forms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", Discipline)
@pytest.mark.parametrize(("synchronisation", "bound"), EVERY)
def test_one_worker_does_one_thing_after_the_other(synchronisation: str, bound: int, discipline: Discipline) -> None:
    # Its link takes 12 s for 6 bytes, more than either server; the pull 4 s on the first server's link.
    alone = Instance(
        workers=(worker(5, samples=8, link=0.5),),
        push_bytes=(4, 2),
        pull_bytes=(2, 0),
        server_bytes_per_s=(0.5, 1),
        latency_s=0.25,
        discipline=discipline,
    )
    run = alone.run(synchronisation, bound)
    steps = bound if synchronisation is LOCAL else 1
    cycle_s = 5 * steps + 12 + 4 + 2 * 0.25
    assert run.samples_per_s == pytest.approx(8 * steps / cycle_s)
    assert alone.limit(synchronisation, bound) == pytest.approx(8 * steps / cycle_s)
    assert run.mean_staleness == run.most_staleness == run.most_ahead == run.waiting_share == 0


@pytest.mark.parametrize(("synchronisation", "bound"), EVERY)
def test_equal_workers_on_an_idle_network_only_compute(synchronisation: str, bound: int) -> None:
    run = Instance(workers=(worker(4, samples=3),) * 5).run(synchronisation, bound)
    assert run.samples_per_s == pytest.approx(5 * 3 / 4)
    assert run.waiting_share == 0


@pytest.mark.parametrize("link", [1.0, math.inf])
@pytest.mark.parametrize("discipline", Discipline)
@pytest.mark.parametrize(("synchronisation", "bound"), [(ASP, 0), (SSP, 2)])
def test_a_full_link_sets_the_rate(synchronisation: str, bound: int, discipline: Discipline, link: float) -> None:
    workers = (worker(3, samples=2, link=link),) * 8
    busy = Instance(workers=workers, push_bytes=(2,), pull_bytes=(1,), discipline=discipline)
    run = busy.run(synchronisation, bound)
    assert run.samples_per_s == pytest.approx(2 * 1 / 2)


def test_two_unequal_workers_go_their_own_ways_or_at_the_slow_ones_pace() -> None:
    pair = Instance(workers=(worker(2), worker(10)))
    assert pair.run(ASP).samples_per_s == pytest.approx(1 / 2 + 1 / 10)
    for s in (0, 1, 5, 1000):
        run = pair.run(SSP, s)
        assert run.samples_per_s == pytest.approx(2 / 10)
        assert run.waiting_share == pytest.approx((8 / 10 + 0) / 2)
        assert run.most_ahead == s
    assert pair.run(BSP).samples_per_s == pytest.approx(2 / 10)


def test_workers_that_differ_by_little_are_held_back_too_in_the_long_run() -> None:
    # From a common start the faster one would be 64 ahead only after 6,400 iterations.
    pair = Instance(workers=(worker(1.0), worker(1.01)))
    assert pair.run(SSP, 64).samples_per_s == pytest.approx(2 / 1.01)


def test_an_asynchronous_workers_update_misses_those_of_all_others() -> None:
    run = Instance(workers=(worker(4),) * 5, push_bytes=(0.1,), pull_bytes=(0.1,)).run(ASP)
    assert [run.mean_staleness, run.most_staleness] == pytest.approx([4 / 5, 4 / 5])
    assert run.waiting_share == 0


def test_a_slow_workers_update_misses_all_that_a_fast_one_made_meanwhile() -> None:
    # 1 s against 10.2 s: ten or eleven updates in one iteration of the slow worker, and 1 in 10.2 the other way.
    run = Instance(workers=(worker(1), worker(10.2))).run(ASP, num_iterations=400)
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
    pair = Instance(workers=(worker(20, link=1.0), worker(1, link=1 / 9)), push_bytes=(0,), pull_bytes=(1,))
    assert pair.run(BSP).samples_per_s == pytest.approx(2 / (1 + 1 / 9 + 20))
    assert pair.round_s() == pytest.approx(9 + 20)


@given(instances(deviations=(0.0, 2.0)))
@settings(max_examples=40)
def test_no_slack_and_one_local_step_are_bsp_itself(drawn: Instance) -> None:
    assert asdict(drawn.run(SSP, 0)) == asdict(drawn.run(BSP)) == asdict(drawn.run(LOCAL, 1))


def test_local_sgd_misses_what_others_did_since_the_exchange() -> None:
    run = Instance(workers=(worker(1),) * 4).run(LOCAL, 5)
    assert [run.mean_staleness, run.most_staleness] == pytest.approx([2 * 3 / 4, 4 * 3 / 4])


def test_a_round_with_variation_lasts_as_long_as_its_slowest_worker_is_expected_to() -> None:
    noisy = Instance(workers=(worker(10, deviation_s=1),) * 6 + (worker(11, deviation_s=0.5),) * 2)
    run = noisy.run(BSP, num_iterations=2000)
    expected_s = expected_maximum_s([10] * 6 + [11] * 2, [1] * 6 + [0.5] * 2)
    assert run.samples_per_s == pytest.approx(8 / expected_s, rel=0.005)
    assert noisy.run(ASP, num_iterations=2000).samples_per_s == pytest.approx(6 / 10 + 2 / 11, rel=0.005)


# -- homes -------------------------------------------------------------------------------------------------------------


@given(instances(at_home=False, deviations=(0.0, 2.0)), st.sampled_from(EVERY))
@settings(max_examples=60)
def test_a_home_on_a_server_that_holds_nothing_changes_nothing(drawn: Instance, when: tuple[str, int]) -> None:
    # Without homes one link stands for all; with them each is followed on its own.
    number = drawn.num_workers
    homely = replace(
        drawn,
        push_bytes=(*drawn.push_bytes, *((0.0,) * number)),
        pull_bytes=(*drawn.pull_bytes, *((0.0,) * number)),
        server_bytes_per_s=(*drawn.server_bytes_per_s, *((1.0,) * number)),
        home=tuple(range(len(drawn.push_bytes), len(drawn.push_bytes) + number)),
    )
    plain, found = drawn.run(*when, num_iterations=8), homely.run(*when, num_iterations=8)
    assert found.measured_samples_per_s == pytest.approx(plain.measured_samples_per_s)
    assert found.mean_staleness == pytest.approx(plain.mean_staleness)
    assert homely.limit(*when) == pytest.approx(drawn.limit(*when))


def test_of_two_machines_that_serve_each_other_half_the_bytes_cross_the_network() -> None:
    shared = Instance(
        workers=(worker(5, link=1.0),) * 2, push_bytes=(3, 3), pull_bytes=(3, 3), server_bytes_per_s=(1, 1), home=(0, 1)
    )
    assert shared.run(BSP).samples_per_s == pytest.approx(2 / (5 + 3 + 3))
    apart = replace(shared, home=None)
    assert apart.run(BSP).samples_per_s == pytest.approx(2 / (5 + 6 + 6))


def test_a_machine_that_serves_itself_alone_needs_no_network() -> None:
    alone = Instance(workers=(worker(5),), push_bytes=(3,), pull_bytes=(3,), latency_s=1, home=(0,))
    for when in EVERY:
        assert alone.run(*when).samples_per_s == pytest.approx(1 / 5)
        assert alone.limit(*when) == pytest.approx(1 / 5)


# -- against a simulation piece by piece -------------------------------------------------------------------------------


def updates_by_pieces(
    given_: Instance, slack: float, starts: Sequence[tuple[float, int]], num_exchanges: int
) -> list[float]:
    """When each update was applied, if transfers are cut in 400 pieces, each served by each server in its turn."""
    num_pieces, workers = 400, given_.workers
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

    def serve(now: float, direction: int, server: int, size: float) -> float:
        host = home.index(server) if server in home else None
        rate = given_.server_bytes_per_s[server] if host is None else workers[host].bytes_per_s
        link = (direction, server)
        free[link] = max(free[link], now) + size / num_pieces / rate
        return free[link]

    def arrive(now: float, piece: int, direction: int, index: int) -> None:
        ends = [now]
        for server, size in enumerate(sizes(direction, index)):
            if size:
                ends.append(serve(now, direction, server, size))
        own = home[index]
        if own is not None:  # its machine's one link, which the server there uses the other way round
            ends.append(serve(now, 1 - direction, own, sum(sizes(direction, index))))
        if piece == num_pieces - 1:
            heapq.heappush(events, (max(ends), num_pieces, direction, index))

    for index, (start_s, _) in enumerate(starts):
        begin(start_s + workers[index].compute_s, 0, index)
    while len(applied) < num_exchanges:
        now, piece, direction, index = heapq.heappop(events)
        if piece == -1:
            own_s = sum(sizes(direction, index)) / workers[index].bytes_per_s
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
    when: tuple[str, int], home: tuple[int | None, ...] | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    drawn = Instance(
        workers=tuple(worker(float(rng.uniform(1, 9)), link=float(rng.uniform(0.5, 3))) for _ in range(4)),
        push_bytes=tuple(rng.uniform(0, 2, 2).tolist()),
        pull_bytes=tuple(rng.uniform(0, 2, 2).tolist()),
        server_bytes_per_s=tuple(rng.uniform(0.5, 2, 2).tolist()),
        latency_s=0.3,
        home=home,
    )
    exchange = drawn.exchange(*when)
    alone_s = cycles_s(exchange).tolist()
    starts = [(one * index / 4, when[1] * (one < max(alone_s))) for index, one in enumerate(alone_s)]
    run = Run(exchange, [start_s for start_s, _ in starts], ahead=[ahead for _, ahead in starts], is_told=False)
    run.go(lambda: len(run.updates) >= 4 * 6)
    assert exchange.slack is not None
    found = [applied_s for applied_s, _ in run.updates]
    assert found[3::4] == pytest.approx(updates_by_pieces(drawn, exchange.slack, starts, 4 * 6)[3::4], rel=0.01)
