"""What holds of every asynchronous training: bounds, slack, doubled times, seeds; bad input is refused."""

import math
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest
from asynchronous_drawn import ASP, BSP, EVERY, LOCAL, NUM_ITERATIONS, SSP, Instance, amounts, instances, worker
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import ModelError
from planner.models.asynchronous import Synchronisation


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


@given(st.integers(1, 5), st.sampled_from([0.5, 3.0, 9.0]), amounts, amounts, st.sampled_from([0.0, 0.25]))
@settings(max_examples=40)
def test_equal_workers_behind_a_barrier_reach_the_bound(
    count: int, compute_s: float, pushed: float, pulled: float, latency_s: float
) -> None:
    even = Instance(
        kinds=(worker(compute_s, count=count, samples=3),),
        push_bytes=(pushed,),
        pull_bytes=(pulled,),
        server_bytes_per_s=(2,),
        latency_s=latency_s,
    )
    for when in ((BSP, 0), (LOCAL, 3)):
        assert even.limit(*when) == pytest.approx(even.run(*when).measured_samples_per_s)


def test_the_bound_of_pulls_leaves_out_the_worker_at_home_and_no_other() -> None:
    pulling = Instance(
        kinds=(worker(4, count=3, samples=2),), pull_bytes=(6,), server_bytes_per_s=(2,), home=(0, None, None)
    )
    assert pulling.limit(BSP) == pytest.approx(6 / (2 * 6 / 2 + 4))
    assert pulling.run(BSP).samples_per_s == pytest.approx(6 / (2 * 6 / 2 + 4))


def test_the_bound_fills_a_link_with_the_exchanges_of_most_samples_first() -> None:
    # A link of 0.4 exchanges a second; alone, a worker does one in 6.5 s.
    busy = Instance(
        kinds=(worker(4, count=3, samples=2), worker(4, count=2, samples=5)),
        push_bytes=(5.0, 0),
        pull_bytes=(0, 0),
        server_bytes_per_s=(2, 2),
    )
    assert busy.limit(ASP) == pytest.approx(5 * 2 / 6.5 + 2 * (0.4 - 2 / 6.5))


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
