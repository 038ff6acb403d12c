"""What holds of every asynchronous training: bounds, slack, doubled times, seeds; bad input is refused."""

import math
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest
from asynchronous_drawn import ASP, BSP, EVERY, LOCAL, NUM_ITERATIONS, SSP, Instance, instances, worker
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import ModelError
from planner.models.exchange import Discipline


@given(instances(), st.sampled_from(EVERY))
@settings(max_examples=150)
def test_no_run_is_faster_than_the_bound(drawn: Instance, when: tuple[str, int]) -> None:
    run, limit = drawn.run(*when), drawn.limit(*when)
    assert run.samples_per_s <= limit
    # A finite run may begin with work left in queues, or end amid a period: an exchange or two of each worker.
    assert run.measured_samples_per_s <= limit * (1 + 2 / NUM_ITERATIONS)
    if when[0] not in (ASP, SSP):
        assert run.measured_samples_per_s <= limit * (1 + 1e-9)


@given(instances(links=(0.5, 1.0, 4.0), disciplines=[Discipline.FAIR]), st.sampled_from(EVERY))
@settings(max_examples=60)
def test_nor_is_one_whose_links_are_shared_fairly(drawn: Instance, when: tuple[str, int]) -> None:
    assert drawn.run(*when).measured_samples_per_s <= drawn.limit(*when) * (1 + 2 / NUM_ITERATIONS)


@given(instances(deviations=(0.0, 1.0, 5.0)), st.sampled_from(EVERY))
@settings(max_examples=60)
def test_variation_does_not_lift_a_run_above_the_bound(drawn: Instance, when: tuple[str, int]) -> None:
    run, limit = drawn.run(*when, num_iterations=200), drawn.limit(*when)
    assert run.measured_samples_per_s <= limit * 1.15


def test_the_bound_fills_a_link_with_the_exchanges_of_most_samples_first() -> None:
    # A link of 0.4 exchanges a second; alone, a worker does one in 6.5 s.
    busy = Instance(
        workers=(worker(4, samples=2),) * 3 + (worker(4, samples=5),) * 2,
        push_bytes=(5.0, 0),
        pull_bytes=(0, 0),
        server_bytes_per_s=(2, 2),
    )
    assert busy.limit(ASP) == pytest.approx(5 * 2 / 6.5 + 2 * (0.4 - 2 / 6.5))


@given(instances(deviations=(0.0, 2.0)), st.integers(0, 4))
@settings(max_examples=60)
def test_no_worker_starts_more_than_s_iterations_ahead_or_misses_more_than_it_may(drawn: Instance, s: int) -> None:
    run, size = drawn.run(SSP, s), drawn.num_workers
    assert run.most_ahead <= s
    assert run.mean_staleness <= run.most_staleness <= (2 * s + 1) * (size - 1) / size * (s > 0)


@given(instances(deviations=(0.0, 2.0)), st.sampled_from(EVERY))
@settings(max_examples=40)
def test_the_parts_of_a_run_fit_together(drawn: Instance, when: tuple[str, int]) -> None:
    run = drawn.run(*when)
    assert 0 <= run.waiting_share < 1
    assert len(run.cycles) <= NUM_ITERATIONS * drawn.num_workers
    assert all(list(one[1:6]) == sorted(one[1:6]) for one in run.cycles)
    assert (when[0] is ASP) <= (run.waiting_share == 0)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(0, 3))
@settings(max_examples=40)
def test_on_an_idle_network_a_looser_condition_is_never_slower(seconds: list[int], s: int) -> None:
    idle = Instance(workers=tuple(worker(float(one)) for one in seconds))
    rates = [idle.run(*when).measured_samples_per_s for when in ((BSP, 0), (SSP, s), (SSP, s + 1), (ASP, 0))]
    assert rates == pytest.approx(sorted(rates))
    assert rates[0] == pytest.approx(len(seconds) / max(seconds))
    assert rates[-1] == pytest.approx(sum(1 / one for one in seconds))


def test_variation_costs_less_the_more_slack_there_is() -> None:
    noisy = Instance(workers=(worker(10, deviation_s=3),) * 8)
    rates = [noisy.run(*when, num_iterations=1000).samples_per_s for when in ((BSP, 0), (SSP, 1), (SSP, 4), (ASP, 0))]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(8 / 10, rel=0.02)
    assert rates[0] < 0.75 * rates[-1]


def test_on_a_full_network_a_looser_condition_may_be_slower() -> None:
    # Without a barrier the link is full of the updates of fast workers, which stand for few samples.
    mixed = Instance(workers=(worker(1, samples=1), worker(10, samples=5)), push_bytes=(8,))
    assert mixed.run(BSP).samples_per_s == pytest.approx(6 / 18)
    assert mixed.run(ASP, num_iterations=400).samples_per_s < 0.85 * 6 / 18


@given(instances(deviations=(0.0, 2.0)), st.sampled_from(EVERY))
@settings(max_examples=40)
def test_doubling_all_times_halves_the_rate(drawn: Instance, when: tuple[str, int]) -> None:
    kinds = tuple(
        replace(
            kind, forward_s=(2 * kind.compute_s,), deviation_s=2 * kind.deviation_s, bytes_per_s=kind.bytes_per_s / 2
        )
        for kind in drawn.workers
    )
    rates = tuple(rate / 2 for rate in drawn.server_bytes_per_s)
    slow = replace(drawn, workers=kinds, server_bytes_per_s=rates, latency_s=2 * drawn.latency_s)
    fast_run, slow_run = drawn.run(*when), slow.run(*when)
    assert slow_run.measured_samples_per_s == pytest.approx(fast_run.measured_samples_per_s / 2)
    assert slow_run.mean_staleness == fast_run.mean_staleness
    assert slow.limit(*when) == pytest.approx(drawn.limit(*when) / 2)


@given(instances(deviations=(2.0,)), st.sampled_from(EVERY))
@settings(max_examples=20)
def test_the_same_seed_gives_the_same_run(drawn: Instance, when: tuple[str, int]) -> None:
    assert asdict(drawn.run(*when, seed=7)) == asdict(drawn.run(*when, seed=7))


def test_another_seed_gives_another_run() -> None:
    noisy = Instance(workers=(worker(10, deviation_s=3),) * 3)
    rates = {noisy.run(BSP, seed=seed).samples_per_s for seed in range(3)}
    assert len(rates) == 3


def test_a_draw_is_never_negative() -> None:
    # Half of a normal distribution around almost nothing: the mean of what is left is sigma sqrt(2 / pi).
    run = Instance(workers=(worker(1e-9, deviation_s=1.0),)).run(ASP, num_iterations=4000)
    assert 1 / run.measured_samples_per_s == pytest.approx(math.sqrt(2 / math.pi), rel=0.05)


def test_many_workers_are_simulated_for_fewer_iterations() -> None:
    small, large = (Instance(workers=(worker(1),) * count).run(ASP, num_iterations=None) for count in (2, 1000))
    for run, number in ((small, 800), (large, 20_000)):
        assert number * 0.9 < len(run.cycles) <= number


ONE = Instance(workers=(worker(1),))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: replace(worker(1), count=0), "count 0"),
        (lambda: worker(1, samples=0), "samples 0"),
        (lambda: worker(1, deviation_s=-1), "deviation_s is -1"),
        (lambda: worker(1, link=0), "bytes_per_s 0"),
        (lambda: replace(ONE, workers=(worker(0),)).run(ASP), "computes for more than 0 s"),
        (lambda: replace(ONE, workers=()).run(ASP), "has a worker"),
        (lambda: replace(ONE, server_bytes_per_s=(math.inf,)).run(ASP), "finite positive rate"),
        (lambda: replace(ONE, push_bytes=(1, 1)).run(ASP), "a size for each key and server"),
        (lambda: replace(ONE, pull_bytes=(-1,)).run(ASP), "finite and >= 0"),
        (lambda: replace(ONE, latency_s=-1).run(ASP), "latency_s -1"),
        (lambda: replace(ONE, home=(1,)).run(ASP), "at home that there are"),
        (lambda: ONE.run(SSP, -1), "slack -1"),
        (lambda: ONE.run(LOCAL, 0), "num_steps 0"),
        (lambda: ONE.run(ASP, num_iterations=3), "num_iterations is 3. It must be >= 4"),
        (lambda: replace(ONE, workers=(replace(worker(1), count=2),)).run(ASP), "given one by one"),
    ],
)
def test_bad_input_is_refused_with_the_number(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        call()
