import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from planner.cost import Floats
from planner.errors import ModelError
from planner.models.failures import Checkpoints, RunTime, best_interval_s, rate_per_s, run_time

ROUNDING = 1e-11
# Ordinary numbers, nothing at all, and what is beyond all machines.
amounts = st.just(0.0) | st.floats(1e-6, 1e7) | st.floats(0, 1e308)
rates = st.just(0.0) | st.floats(1e-9, 10) | st.floats(0, 1e300)
intervals = st.none() | st.floats(1e-3, 1e7) | st.floats(1e-300, 1e300) | st.just(math.inf)


@st.composite
def questions(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of run_time, by name; checkpoints as write_s and interval_s, or neither."""
    asked: dict[str, Any] = {name: draw(amounts) for name in ("training_s", "restart_s", "start_up_s", "evaluation_s")}
    asked["rate_per_s"] = draw(rates)
    if draw(st.booleans()):
        asked |= {"write_s": draw(amounts), "interval_s": draw(intervals)}
    return asked


def time_of(asked: dict[str, Any]) -> RunTime:
    given_ones = dict(asked)
    write_s, interval_s = given_ones.pop("write_s", None), given_ones.pop("interval_s", None)
    checkpoints = None if write_s is None else Checkpoints(write_s=write_s, interval_s=interval_s)
    return run_time(**given_ones, checkpoints=checkpoints)


def daly_s(work_s: float, mean_s: float, write_s: float, interval_s: float, restart_s: float) -> float:
    """His complete expression, as it is printed."""
    segment = math.expm1((interval_s + write_s) / mean_s)
    return mean_s * math.exp(restart_s / mean_s) * segment * work_s / interval_s


@pytest.mark.parametrize("interval_s", [30, 600, 7000])
@pytest.mark.parametrize("restart_s", [0, 45, 4000])
@pytest.mark.parametrize("mean_s", [900, 86400, 1e9])
def test_the_wall_time_is_dalys_complete_expression(interval_s: float, restart_s: float, mean_s: float) -> None:
    time = run_time(7000, 1 / mean_s, checkpoints=Checkpoints(write_s=20, interval_s=interval_s), restart_s=restart_s)
    assert float(time.wall_s) == pytest.approx(daly_s(7000, mean_s, 20, interval_s, restart_s))
    assert float(time.training_s) == 7000
    assert float(time.checkpoints_s) == pytest.approx(7000 / interval_s * 20)


@pytest.mark.parametrize("mean_s", ["1e15", "1e9", "1.0001e6", "0.9999e6", "1e4", "10"])
def test_what_failures_cost_keeps_its_digits_where_they_are_rare(mean_s: str) -> None:
    mean, restart, segment = Decimal(mean_s), Decimal(90), Decimal(1000)
    truth = mean * (restart / mean).exp() * ((segment / mean).exp() - 1) - segment
    time = run_time(1000, 1 / float(mean_s), restart_s=90)
    assert float(time.failures_s) == pytest.approx(float(truth), rel=1e-11, abs=0)


def replayed_s(rng: np.random.Generator, work_s: float, mean_s: float, points: Checkpoints | None, restart_s: float, start_up_s: float) -> tuple[float, int]:  # fmt: skip
    """One run, event by event, against failures that come on the wall clock whatever the run is doing."""
    clock_s, failure_s, num_failures = 0.0, float(rng.exponential(mean_s)), 0

    def passes(length_s: float) -> bool:
        nonlocal clock_s, failure_s, num_failures
        if clock_s + length_s <= failure_s:
            clock_s += length_s
            return True
        clock_s, num_failures = failure_s, num_failures + 1
        failure_s += float(rng.exponential(mean_s))
        return False

    while not passes(start_up_s):
        pass
    interval_s = float(points.interval_s) if points else work_s  # type: ignore[arg-type]
    write_s = float(points.write_s) if points else 0.0  # type: ignore[arg-type]
    saved_s = 0.0
    while saved_s < work_s:
        if passes(interval_s + write_s):
            saved_s += interval_s
        else:
            while not passes(restart_s):
                pass
    return clock_s, num_failures


@pytest.mark.parametrize(
    ("work_s", "mean_s", "points", "restart_s", "start_up_s"),
    [
        (20, 6, Checkpoints(write_s=0.5, interval_s=2), 1, 0.25),
        (20, 40, Checkpoints(write_s=0.5, interval_s=5), 1, 4),
        (12, 3, Checkpoints(write_s=0, interval_s=1), 2, 3),
        (9, 10, None, 3, 1),
        (6, 2, None, 0.5, 0),
    ],
)
def test_the_wall_time_is_the_mean_of_runs_replayed_with_drawn_failures(
    work_s: float, mean_s: float, points: Checkpoints | None, restart_s: float, start_up_s: float
) -> None:
    rng = np.random.default_rng(11)
    runs = np.array([replayed_s(rng, work_s, mean_s, points, restart_s, start_up_s) for _ in range(10_000)])
    time = run_time(work_s, 1 / mean_s, checkpoints=points, restart_s=restart_s, start_up_s=start_up_s)
    error_s, error = 3 * runs.std(axis=0) / math.sqrt(len(runs))
    assert float(time.wall_s) == pytest.approx(runs[:, 0].mean(), abs=error_s)
    assert float(time.num_failures) == pytest.approx(runs[:, 1].mean(), abs=error)


@settings(max_examples=300)
@given(questions())
def test_parts_are_not_negative_and_sum_to_the_wall_time(asked: dict[str, Any]) -> None:
    time = time_of(asked)
    parts = [float(part_s) for part_s in time.parts_s.values()]
    assert all(part_s >= 0 for part_s in parts)
    assert float(time.wall_s) == sum(parts)
    assert float(time.num_failures) >= 0


@settings(max_examples=500)
@given(questions(), st.data())
@example({"training_s": 0.0, "rate_per_s": 1e300, "restart_s": 1e308, "start_up_s": 0.0, "evaluation_s": 0.0}, None)
def test_more_work_failures_writing_or_restarting_never_shortens_a_run(asked: dict[str, Any], data: Any) -> None:
    names = [name for name in asked if name != "interval_s"]
    name = data.draw(st.sampled_from(names)) if data else "training_s"
    more = data.draw(st.floats(1, 3) | st.floats(1, 1e10)) * asked[name] + data.draw(st.sampled_from([0, 1e-9, 1, 1e6])) if data else 1.0  # fmt: skip
    more = min(more, 1e300 if name == "rate_per_s" else 1.7e308)
    longer = time_of(asked | {name: max(more, asked[name])})
    assert float(longer.wall_s) >= float(time_of(asked).wall_s) * (1 - ROUNDING)


@settings(max_examples=300)
@given(st.floats(1, 1e6), st.floats(1e-8, 1), st.floats(0, 1e3), st.floats(0, 1e3), st.floats(1e-2, 1e7))
def test_no_interval_and_no_run_without_checkpoints_beats_the_best(
    work_s: float, rate: float, write_s: float, restart_s: float, interval_s: float
) -> None:
    best, given_one = (
        run_time(work_s, rate, checkpoints=Checkpoints(write_s=write_s, interval_s=interval), restart_s=restart_s)
        for interval in (None, interval_s)
    )
    assert float(best.wall_s) <= float(given_one.wall_s) * (1 + ROUNDING)
    assert float(best.wall_s) <= float(run_time(work_s, rate, restart_s=restart_s).wall_s) * (1 + ROUNDING)


@given(st.floats(10, 1e6), st.floats(1e-6, 1), st.floats(0, 1e3), st.floats(0, 10))
def test_the_best_is_reached_by_the_interval_that_is_named(
    work_s: float, rate: float, write_s: float, restart_s: float
) -> None:
    best = run_time(work_s, rate, checkpoints=Checkpoints(write_s=write_s), restart_s=restart_s)
    interval_s = max(float(best.interval_s), 1e-12)  # 0 where writing costs nothing
    again = run_time(work_s, rate, checkpoints=Checkpoints(write_s=write_s, interval_s=interval_s), restart_s=restart_s)
    assert float(again.wall_s) == pytest.approx(float(best.wall_s), rel=1e-9)


def test_the_best_interval_is_that_of_a_fine_search() -> None:
    for write_s, mean_s in [(5, 15), (30, 3600), (600, 100), (1e-3, 1e5)]:
        guess = float(best_interval_s(write_s, 1 / mean_s))
        tried = guess * np.linspace(0.9, 1.1, 20_001)
        walls_s = run_time(1e7, 1 / mean_s, checkpoints=Checkpoints(write_s=write_s, interval_s=tried)).wall_s
        assert guess == pytest.approx(tried[np.argmin(walls_s)], rel=1e-4)


@given(st.floats(-13, 6))
def test_the_best_interval_solves_its_equation(exponent: float) -> None:
    ratio = 10**exponent
    share = float(best_interval_s(ratio, 1))
    if share < 0.5:
        left = sum(share**k / k for k in range(2, 60))  # -log(1 - x) - x without its cancellation
        assert left == pytest.approx(ratio, rel=1e-8, abs=0)
    elif share < 1 - 1e-3:
        assert -math.log1p(-share) - share == pytest.approx(ratio, rel=1e-9)
    else:
        assert 1 - share == pytest.approx(math.exp(-1 - ratio), abs=1e-5)


@pytest.mark.parametrize(("mean_min", "published_min", "tolerance"), [(1440, 117, 0.5), (360, 57, 0.5), (15, 9.1, 0.1)])
def test_the_best_interval_is_that_of_dalys_figures(mean_min: float, published_min: float, tolerance: float) -> None:
    # Captions of figures 3 to 5: his estimate of the optimum, for dumps of 5 minutes.
    assert float(best_interval_s(5, 1 / mean_min)) == pytest.approx(published_min, abs=tolerance)


@pytest.mark.parametrize("ratio", [1e-4, 1e-6, 1e-8, 1e-12, 1e-16])
def test_young_is_the_limit_of_short_writing(ratio: float) -> None:
    mean_s = 3600.0
    young_s = math.sqrt(2 * ratio * mean_s * mean_s)
    # The next term of the series is 2/3 of the ratio's root of a half.
    assert float(best_interval_s(ratio * mean_s, 1 / mean_s)) == pytest.approx(young_s, rel=math.sqrt(ratio / 2))


def test_without_failures_a_run_takes_its_work_and_its_checkpoints() -> None:
    every = run_time(1000, 0, checkpoints=Checkpoints(write_s=6, interval_s=400), evaluation_s=200, start_up_s=50)
    assert {name: float(part_s) for name, part_s in every.parts_s.items()} == pytest.approx(
        {"start_up": 50, "training": 1000, "evaluation": 200, "checkpoints": 18, "failures": 0}
    )
    best = run_time(1000, 0, checkpoints=Checkpoints(write_s=6))
    assert float(best.wall_s) == 1000
    assert math.isinf(best.interval_s)


def test_writing_that_costs_nothing_loses_no_work() -> None:
    time = run_time(1000, 0.01, checkpoints=Checkpoints(write_s=0), restart_s=10)
    assert float(time.interval_s) == 0
    assert float(time.wall_s) == pytest.approx(1000 * math.exp(0.1))


def test_evaluation_is_lost_like_training() -> None:
    points = Checkpoints(write_s=5, interval_s=100)
    apart = run_time(700, 0.001, checkpoints=points, evaluation_s=300, restart_s=20)
    assert float(apart.wall_s) == pytest.approx(float(run_time(1000, 0.001, checkpoints=points, restart_s=20).wall_s))


def test_a_run_shorter_than_the_interval_is_one_segment_with_its_share_of_writing() -> None:
    time = run_time(50, 0.01, checkpoints=Checkpoints(write_s=10, interval_s=100))
    assert float(time.wall_s) == pytest.approx(100 * math.expm1(0.55))


def test_a_hopeless_run_is_infinite_and_says_why() -> None:
    lost = run_time([1e6, 1e6, 0], [1, 1e300, 1], restart_s=[0, 1e300, 1e300])
    assert np.isinf(lost.wall_s).tolist() == [True, True, False]
    assert np.isinf(lost.failures_s).tolist() == [True, True, False]
    assert lost.training_s.tolist() == [1e6, 1e6, 0]
    saved = run_time(1e6, 1, checkpoints=Checkpoints(write_s=1e-3))
    assert float(saved.wall_s) < 1.1e6


@pytest.mark.parametrize("points", [None, Checkpoints(write_s=1), Checkpoints(write_s=1, interval_s=60), Checkpoints(write_s=0)])  # fmt: skip
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_a_fleet_that_cannot_train_takes_forever(points: Checkpoints | None, rate: float) -> None:
    time = run_time(math.inf, rate, checkpoints=points, restart_s=5)
    assert math.isinf(time.wall_s)
    assert not any(np.isnan(part_s) for part_s in time.parts_s.values())


@given(st.lists(questions().filter(lambda asked: asked.get("interval_s")), min_size=1, max_size=4))
def test_many_fleets_at_once_are_each_alone(many: list[dict[str, Any]]) -> None:
    def together(name: str) -> Floats:
        return np.array([asked[name] for asked in many])

    walls_s = time_of({name: together(name) for name in many[0]}).wall_s
    assert walls_s.tolist() == [float(time_of(asked).wall_s) for asked in many]


def test_runs_one_after_another_take_each_its_time() -> None:
    one = run_time([20, math.inf], 0.1, restart_s=3, start_up_s=2, evaluation_s=1)
    month = one.repeated(30)
    assert {name: part_s[0] for name, part_s in month.parts_s.items()} == pytest.approx(
        {name: 30 * part_s[0] for name, part_s in one.parts_s.items()}
    )
    assert month.wall_s.tolist() == pytest.approx([30 * one.wall_s[0], math.inf])
    assert month.num_failures.tolist() == pytest.approx([30 * one.num_failures[0], math.inf])
    assert month.wall_s[0] < run_time(600, 0.1, restart_s=3, start_up_s=60, evaluation_s=30).wall_s / 1e20
    assert one.repeated(0).wall_s.tolist() == [0, 0]


@pytest.mark.parametrize("interval_s", [None, 60, [60, 70, 80]])
def test_shapes_broadcast(interval_s: ArrayLike | None) -> None:
    points = Checkpoints(write_s=np.array([[1.0], [2.0]]), interval_s=interval_s)
    time = run_time(1000, [0.0, 0.001, 0.01], checkpoints=points)
    assert {part.shape for part in (*time.parts_s.values(), time.wall_s, time.interval_s, time.num_failures)} == {(2, 3)}  # fmt: skip


def test_rates_of_all_machines_add_up() -> None:
    assert (rate_per_s([[8, 0, 16], [1, 1, 0]], [0.001, 0.01], [0.05, 0]) * 3600).tolist() == pytest.approx([0.418, 0.01, 0.816])  # fmt: skip
    assert float(rate_per_s([3, 4], 0.5)) == pytest.approx(3.5 / 3600)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"training_s": -1, "rate_per_s": 0}, "training_s: -1.0 is not 0 or more"),
        ({"training_s": 1, "rate_per_s": math.nan}, "rate_per_s: nan is not 0 or more"),
        ({"training_s": 1, "rate_per_s": math.inf}, "always fail"),
        ({"training_s": 1, "rate_per_s": 0, "restart_s": [3, -2]}, "restart_s: -2.0"),
        ({"training_s": 1, "rate_per_s": 0, "checkpoints": Checkpoints(write_s=1, interval_s=0)}, "interval_s: 0 s"),
    ],
)
def test_impossible_numbers_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        run_time(**arguments)


@pytest.mark.parametrize("wrong", [-0.1, math.nan])
def test_an_impossible_rate_of_a_machine_is_refused(wrong: ArrayLike) -> None:
    with pytest.raises(ModelError, match="a rate"):
        rate_per_s([1, 2], wrong)
