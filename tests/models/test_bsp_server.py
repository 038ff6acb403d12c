import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import zoo
from planner.cases.forms.bsp_server import (
    BspExchange,
    Inputs,
    accuracy,
    algorithm_1_time_s,
    algorithm_2_time_s,
    answer,
    checked_algorithm_2,
    cpu_time_s,
    equal_workers_time_s,
    equation_32_holds,
    fastest_worker_time_s,
    gpu_time_s,
    segments_time_s,
)
from planner.channel import fifo_end_s
from planner.errors import ModelError

SLACK_S = 1e-9  # of floating point
# Whole numbers: sums are exact, ties are common.
seconds = st.integers(0, 30).map(float)
workers = st.lists(seconds, min_size=1, max_size=6)
paired = st.lists(st.tuples(seconds, seconds), min_size=1, max_size=5)
pushes = st.sampled_from([1, 2, 4, 8])
exchanges = st.builds(
    BspExchange, push_s=st.integers(0, 12).map(float), pull_s=seconds, overhead_s=st.sampled_from([0.0, 0.5])
)


def listing(ready_s: list[float], exchange: BspExchange) -> float:
    """The loop of Algorithms 1 and 2, line by line."""
    ready = sorted(ready_s)
    time_s = ready[0] + exchange.push_s
    for one in ready[1:]:
        time_s = time_s + exchange.push_s if time_s >= one else one + exchange.push_s
    return time_s + len(ready) * exchange.pull_s + exchange.overhead_s


def halves(pairs: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [forward for forward, _ in pairs], [backward for _, backward in pairs]


# -- one channel -----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=8))
def test_a_channel_is_never_idle_while_a_job_waits(jobs: list[tuple[float, float]]) -> None:
    ready, duration = halves(sorted(jobs))
    end = fifo_end_s(ready, duration)
    assert all(end >= np.add(ready, duration))
    assert all(np.diff(end) >= duration[1:])
    # Closed form of the recursion: the last idle moment is some job's ready time.
    assert end[-1] == max(start + sum(duration[index:]) for index, start in enumerate(ready))


@pytest.mark.parametrize(
    ("ready", "duration", "message"),
    [([], 1, "at least one job"), ([0, math.nan], 1, "must be finite"), ([0, 1], [1, -1], r"-1.* finite and >= 0")],
)
def test_a_bad_job_is_refused(ready: list[float], duration: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fifo_end_s(ready, duration)  # type: ignore[arg-type]


# -- Algorithm 1 and the closed forms --------------------------------------------------------------------------------


@given(workers, exchanges)
def test_algorithm_1_is_its_listing(compute_s: list[float], exchange: BspExchange) -> None:
    assert algorithm_1_time_s(compute_s, exchange) == pytest.approx(listing(compute_s, exchange))


@given(workers, exchanges)
def test_the_order_of_workers_does_not_count(compute_s: list[float], exchange: BspExchange) -> None:
    assert algorithm_1_time_s(compute_s, exchange) == algorithm_1_time_s(compute_s[::-1], exchange)


@given(seconds, exchanges, st.integers(1, 8))
def test_equation_29_is_algorithm_1_of_equal_workers(compute_s: float, exchange: BspExchange, num_workers: int) -> None:
    found = equal_workers_time_s(compute_s, exchange, num_workers=num_workers)
    assert found == pytest.approx(algorithm_1_time_s([compute_s] * num_workers, exchange))


@given(workers, exchanges)
def test_equation_32_holds_exactly_where_it_is_algorithm_1(compute_s: list[float], exchange: BspExchange) -> None:
    short_s = equal_workers_time_s(min(compute_s), exchange, num_workers=len(compute_s))
    is_equal = algorithm_1_time_s(compute_s, exchange) == pytest.approx(short_s)
    assert equation_32_holds(compute_s, push_s=exchange.push_s) == is_equal
    if is_equal:
        assert fastest_worker_time_s(compute_s, exchange) == pytest.approx(short_s)


@given(workers, seconds)
def test_the_papers_condition_suffices(compute_s: list[float], extra_s: float) -> None:
    assert equation_32_holds(compute_s, push_s=max(compute_s) + extra_s)


def test_the_papers_condition_is_not_necessary() -> None:
    assert equation_32_holds([10, 11, 12], push_s=1)  # every computation is far longer than the pushes
    assert not equation_32_holds([10, 11, 13], push_s=1)


def test_equation_32_is_refused_where_it_would_be_too_short() -> None:
    with pytest.raises(ModelError, match=r"worker 3 of 3 computes until 13 s, but the pushes before it end at 12 s"):
        fastest_worker_time_s([13, 10, 11], BspExchange(push_s=1, pull_s=1))


@given(workers, exchanges, st.integers(0, 5), seconds)
def test_nothing_gets_faster_by_more_work(
    compute_s: list[float], exchange: BspExchange, index: int, extra_s: float
) -> None:
    before = algorithm_1_time_s(compute_s, exchange)
    slower = list(compute_s)
    slower[index % len(slower)] += extra_s
    longer = BspExchange(push_s=exchange.push_s + extra_s, pull_s=exchange.pull_s, overhead_s=exchange.overhead_s)
    assert algorithm_1_time_s(slower, exchange) >= before
    assert algorithm_1_time_s([*compute_s, extra_s], exchange) >= before
    assert algorithm_1_time_s(compute_s, longer) >= before + extra_s


@given(workers, exchanges)
def test_between_the_bounds_of_computing_and_sending(compute_s: list[float], exchange: BspExchange) -> None:
    pushing = algorithm_1_time_s(compute_s, exchange) - len(compute_s) * exchange.pull_s - exchange.overhead_s
    sending = len(compute_s) * exchange.push_s
    assert max(max(compute_s) + exchange.push_s, min(compute_s) + sending) <= pushing <= max(compute_s) + sending


@given(workers, exchanges)
def test_twice_the_seconds_take_twice_as_long(compute_s: list[float], exchange: BspExchange) -> None:
    double = BspExchange(push_s=2 * exchange.push_s, pull_s=2 * exchange.pull_s, overhead_s=2 * exchange.overhead_s)
    found = algorithm_1_time_s([2 * one for one in compute_s], double)
    assert found == pytest.approx(2 * algorithm_1_time_s(compute_s, exchange))


def test_figure_4() -> None:
    # The second worker waits for the first, the third starts a new burst, the fourth waits for it.
    assert algorithm_1_time_s([1, 2, 9, 10], BspExchange(push_s=3, pull_s=1)) == 9 + 3 + 3 + 4


# -- Algorithm 2 and its segments ------------------------------------------------------------------------------------


@given(paired, exchanges, pushes)
def test_algorithm_2_is_its_listing(pairs: list[tuple[float, float]], exchange: BspExchange, k: int) -> None:
    forward_s, backward_s = halves(pairs)
    first = [forward + backward / k for forward, backward in pairs]
    found = algorithm_2_time_s(forward_s, backward_s, exchange, num_pushes=k)
    assert found == pytest.approx(listing(first, exchange))


@given(paired, exchanges)
def test_one_push_is_algorithm_1(pairs: list[tuple[float, float]], exchange: BspExchange) -> None:
    forward_s, backward_s = halves(pairs)
    whole = algorithm_1_time_s([sum(pair) for pair in pairs], exchange)
    assert algorithm_2_time_s(forward_s, backward_s, exchange, num_pushes=1) == pytest.approx(whole)
    assert segments_time_s(forward_s, backward_s, exchange, num_pushes=1) == pytest.approx(whole)


@given(paired, exchanges, pushes)
def test_segments_take_at_least_algorithm_2_and_every_workers_own_time(
    pairs: list[tuple[float, float]], exchange: BspExchange, k: int
) -> None:
    forward_s, backward_s = halves(pairs)
    strict = segments_time_s(forward_s, backward_s, exchange, num_pushes=k)
    pulls = len(pairs) * exchange.pull_s + exchange.overhead_s
    own = max(
        forward + max(backward + exchange.push_s / k, backward / k + exchange.push_s) for forward, backward in pairs
    )
    assert strict >= algorithm_2_time_s(forward_s, backward_s, exchange, num_pushes=k) - SLACK_S
    assert strict >= own + pulls - SLACK_S
    # A push in one piece at the end is never sooner.
    assert strict <= algorithm_1_time_s([sum(pair) for pair in pairs], exchange) + SLACK_S


@given(paired, seconds, pushes)
def test_algorithm_2_is_right_where_a_push_outlasts_every_backward_pass(
    pairs: list[tuple[float, float]], extra_s: float, k: int
) -> None:
    forward_s, backward_s = halves(pairs)
    exchange = BspExchange(push_s=max(backward_s) + extra_s, pull_s=1)
    checked = checked_algorithm_2(forward_s, backward_s, exchange, num_pushes=k)
    assert checked.iteration_s == pytest.approx(checked.algorithm_2_s)
    assert checked.warnings == ()


def test_algorithm_2_can_be_less_than_the_computation_and_then_warns() -> None:
    checked = checked_algorithm_2([1], [8], BspExchange(push_s=2, pull_s=0), num_pushes=4)
    assert checked.algorithm_2_s == 1 + 2 + 2 < 1 + 8
    assert checked.iteration_s == 1 + 8 + 0.5
    (warning,) = checked.warnings
    assert "Algorithm 2 gives 5 s, 4.5 s too little" in warning
    assert "a push (2 s) lasts as long as every backward pass (up to 8 s)" in warning


# -- seconds ---------------------------------------------------------------------------------------------------------


def test_overhead_is_added_once() -> None:
    compute = [3.0, 4.0]
    plain, late = (BspExchange(push_s=1, pull_s=1, overhead_s=overhead) for overhead in (0, 0.5))
    for time_s in (algorithm_1_time_s, fastest_worker_time_s):
        assert time_s(compute, late) - time_s(compute, plain) == pytest.approx(0.5)


def test_fused_multiply_add_halves_the_time() -> None:
    one, two = (gpu_time_s(1e12, clock_hz=1.5e9, num_stream_processors=2304, flop_per_cycle=each) for each in (1, 2))
    assert one == pytest.approx(2 * two)


@given(st.floats(0.1, 100), st.floats(0.1, 100))
def test_accuracy_is_1_where_prediction_and_measurement_agree_and_less_elsewhere(one_s: float, other_s: float) -> None:
    assert accuracy(predicted_s=one_s, measured_s=one_s, relative_to="predicted") == 1
    of_predicted = accuracy(predicted_s=one_s, measured_s=other_s, relative_to="predicted")
    assert of_predicted == accuracy(predicted_s=other_s, measured_s=one_s, relative_to="measured") <= 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: algorithm_1_time_s([], BspExchange(push_s=1, pull_s=1)), "at least one worker"),
        (lambda: algorithm_1_time_s([1, -2], BspExchange(push_s=1, pull_s=1)), r"must be finite and >= 0, not \[1.0, -2.0\]"),
        (lambda: equal_workers_time_s(1, BspExchange(push_s=1, pull_s=1), num_workers=0), "at least 1 worker, not 0"),
        (lambda: BspExchange(push_s=-1, pull_s=1), r"push_s=-1, .* finite and >= 0"),
        (lambda: BspExchange.of(gradient_bytes=1, parameter_bytes=1, bandwidth_bytes_per_s=0), "bandwidth_bytes_per_s .* not 0"),
        (lambda: cpu_time_s(1, clock_hz=0, values_per_cycle=1), "clock_hz must be finite and > 0, not 0"),
        (lambda: gpu_time_s(1, clock_hz=1, num_stream_processors=0), "num_stream_processors must be finite and > 0"),
        (lambda: accuracy(predicted_s=1, measured_s=0, relative_to="measured"), "measured_s must be finite and > 0"),
        (lambda: segments_time_s([1], [1], BspExchange(push_s=1, pull_s=1), num_pushes=0), "at least 1, not 0"),
        (lambda: segments_time_s([1], [1, 2], BspExchange(push_s=1, pull_s=1), num_pushes=1), "1 workers does not go with .* 2"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_the_constraint_and_the_number(call: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        call()  # type: ignore[operator]


# -- a case's inputs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batches": {"0": "1 s"}}, "a batch of 0 samples is too small"),
        ({"workers": []}, "there is no worker"),
        ({"workers": [{"clock": "2 GHz"}]}, "give values_per_cycle for a CPU, or stream_processors"),
        ({"workers": [{"clock": "0 Hz", "values_per_cycle": 2}]}, "greater than 0"),
        ({"workers": [{"clock": "2 GHz", "values_per_cycle": 2, "count": 2}]}, "timing alone has one worker"),
        ({"timing": "algorithm_1"}, "needs the server's link"),
        ({"timing": "algorithm_2", "link": "1 Gbps", "typed": {"compute": "1 s"}}, "Leave out typed.compute"),
        (
            {
                "timing": "equation_29",
                "link": "1 Gbps",
                "workers": [{"clock": "2 GHz", "values_per_cycle": 2}, {"clock": "1 GHz", "values_per_cycle": 2}],
            },
            "has equal workers, not 2 kinds",
        ),
    ],
)
def test_a_case_with_bad_inputs_is_refused(change: dict[str, object], message: str) -> None:
    good = {"dnn": "alexnet", "batches": {"32": "1 s"}, "workers": [{"clock": "2 GHz", "values_per_cycle": 2}]}
    assert Inputs.model_validate(good).timing == "alone"
    with pytest.raises(ValueError, match=message):
        Inputs.model_validate(good | change)


def test_by_default_a_case_counts_as_the_text_does() -> None:
    given = {"dnn": "vgg16", "batches": {"8": "9 s"}, "workers": [{"clock": "2 GHz", "values_per_cycle": 2}]}
    found, dnn = answer(Inputs.model_validate(given)), zoo.build("vgg16")
    assert found["forward_flop"] == 2 * dnn.num_multiply_adds
    assert found["backward_flop"] == 89 * dnn.num_weights + 2 * (dnn.num_trainable - dnn.num_weights)
    assert found["num_sent"] == dnn.num_trainable
    each = answer(Inputs.model_validate(given | {"counting": {"backward": "per_sample"}}))
    extra_s = each["batch_8"]["iteration_s"] - found["batch_8"]["iteration_s"]
    assert extra_s == pytest.approx(7 * found["backward_flop"] / 4e9)


# The authors' sheet: clocks, and the values a cycle that they fitted.
VALUES_PER_CYCLE = {
    ("alexnet", "2.0"): 2.6, ("vgg11", "2.0"): 2.4, ("vgg16", "2.0"): 2.4, ("vgg19", "2.0"): 2.4,
    ("alexnet", "2.2"): 2.6, ("vgg11", "2.2"): 2.4, ("vgg16", "2.2"): 2.4, ("vgg19", "2.2"): 2.5,
}  # fmt: skip
WEIGHTS = {"alexnet": 61_827_776, "vgg11": 133e6, "vgg16": 138e6, "vgg19": 144e6}  # the VGGs' rounded by hand
SIGMOIDS = {"flop_per_output": {**{f"conv{i}": 83 for i in range(1, 6)}, **{f"fc{i}": 83 for i in (6, 7, 8)}}}
POOLS = {"flop_per_output": {f"pool{i}": 4 for i in range(1, 6)}}


@pytest.mark.measured
def test_every_prediction_of_the_authors_sheet(data_folder: Path) -> None:
    with (data_folder / "traces" / "zeng2023" / "standalone.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 80
    for row in rows:
        dnn = row["net"]
        worker: dict[str, object] = {"clock": "1.545 GHz", "stream_processors": 2304}
        if "Xeon" in row["device"]:
            clock = row["device"].removesuffix("GHz").split()[-1]
            worker = {"clock": f"{clock} GHz", "values_per_cycle": VALUES_PER_CYCLE[dnn, clock]}
        inputs = Inputs.model_validate(
            {
                "dnn": dnn,
                "counting": {"flop_per_weight": 85, "flop_per_bias": 0, **(SIGMOIDS if dnn == "alexnet" else POOLS)},
                "typed": {"computed_weights": WEIGHTS[dnn]},
                "workers": [worker],
                "batches": {row["batch"]: "1 s"},
            }
        )
        ours = answer(inputs)[f"batch_{row['batch']}"]["iteration_s"]
        assert ours == pytest.approx(float(row["predicted_s"]), rel=1e-12), row


@pytest.mark.measured
def test_the_sheet_has_2_4_values_a_cycle_where_table_2_needs_2_1(data_folder: Path) -> None:
    text = (data_folder / "traces" / "zeng2023" / "standalone.csv").read_text(encoding="utf-8")
    (row,) = (line.split(",") for line in text.splitlines() if line.startswith("vgg11,Xeon E5-2620 2.0GHz,32,"))
    assert float(row[3]) == pytest.approx(103.85, abs=0.005)
    assert float(row[3]) * 2.4 / 2.1 == pytest.approx(118.68, abs=0.011)
