"""Leaps over steady rounds against the same schedules run task by task."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import ModelError
from planner.models import schedule as pipeline_schedule
from planner.models.schedule import MOST_LISTED, PipelineTimes, least_microbatches, played_s, simulate, steady_end_s

# Whole times make ties, close ones make devices drift apart slowly, others are of any size.
seconds = st.one_of(
    st.integers(0, 9).map(float), st.sampled_from([1.0, 0.999, 1.001, 0.9999]), st.floats(1e-6, 10.0, allow_nan=False)
)


@st.composite
def schedules(draw: st.DrawFn, most: int = 150) -> tuple[PipelineTimes, str, int, int]:
    """Times of a pipeline, its schedule, micro-batches and chunks."""
    schedule, p = draw(st.sampled_from(["1f1b", "interleaved"])), draw(st.integers(1, 5))
    chunks = draw(st.integers(2, 3)) if schedule == "interleaved" else 1
    step = p if schedule == "interleaved" else 1
    m = least_microbatches(p, schedule) + step * (draw(st.integers(0, most)) // step)

    def some(number: int) -> list[float]:
        return draw(st.lists(seconds, min_size=number, max_size=number))

    k = p * chunks
    times = PipelineTimes(forward_s=some(k), backward_s=some(k), output_s=some(k - 1), error_s=some(k - 1))
    return times, schedule, m, chunks


def walked_end_s(times: PipelineTimes, schedule: str, m: int, chunks: int) -> list[float]:
    """From task to task; to list the tasks is what makes it do so."""
    with patch.object(pipeline_schedule, "MOST_LISTED", 10**9):
        run = simulate(times, num_microbatches=m, schedule=schedule, chunks_per_device=chunks, with_tasks=True)
    ends: list[float] = run.compute_end_s.tolist()
    return ends


@settings(max_examples=150)
@given(schedules())
def test_a_schedule_with_leaps_ends_when_it_does_task_by_task(asked: tuple[PipelineTimes, str, int, int]) -> None:
    times, schedule, m, chunks = asked
    found = steady_end_s(times, num_microbatches=m, schedule=schedule, chunks_per_device=chunks)
    assert found.tolist() == pytest.approx(walked_end_s(*asked), rel=1e-12)


@settings(max_examples=30)
@given(schedules(), st.integers(10**6, 10**7))
def test_a_million_micro_batches_more_are_leapt_over_in_a_few_rounds(
    asked: tuple[PipelineTimes, str, int, int], more: int
) -> None:
    times, schedule, m, chunks = asked
    p = len(times.forward_s) // chunks
    number = m + more // p * p
    with patch.object(pipeline_schedule, "MOST_TASKS", 200_000):
        run = simulate(times, num_microbatches=number, schedule=schedule, chunks_per_device=chunks)
    work_s = [number * (sum(times.forward_s[d::p]) + sum(times.backward_s[d::p])) for d in range(p)]
    assert run.makespan_s >= max(work_s) * (1 - 1e-12)
    columns = (times.forward_s, times.backward_s, times.output_s, times.error_s)
    # No slower than all tasks and transfers one after another.
    assert run.makespan_s <= number * sum(map(sum, columns)) * (1 + 1e-12)


# The first device gains 1 ms a micro-batch on the second, until the micro-batches in flight hold it up.
DRIFTING = PipelineTimes(
    forward_s=[0.4995, 0.5, 0.25], backward_s=[0.4995, 0.5, 0.25], output_s=[0.0, 0.1], error_s=[0.0, 0.1]
)


def test_devices_that_drift_apart_until_one_has_to_wait_are_followed_exactly() -> None:
    for m in (100, 900, 1100, 4000):
        found = steady_end_s(DRIFTING, num_microbatches=m, schedule="1f1b")
        assert found.tolist() == pytest.approx(walked_end_s(DRIFTING, "1f1b", m, 1), rel=1e-12)


def test_the_whole_numbers_are_exact() -> None:
    """0.1 is no multiple of a power of two in decimals, but its float is one divided by one."""
    found = steady_end_s(PipelineTimes(forward_s=[0.1], backward_s=[0.2]), num_microbatches=10**7, schedule="1f1b")
    above, below = (0.1).as_integer_ratio()
    other_above, other_below = (0.2).as_integer_ratio()
    assert found.tolist() == [10**7 * (above * other_below + other_above * below) / (below * other_below)]


def test_a_schedule_that_does_not_become_regular_in_time_is_refused() -> None:
    with (
        patch.object(pipeline_schedule, "MOST_TASKS", 12),
        pytest.raises(ModelError, match=r"4000 micro-batches are too many to simulate: .* Take fewer"),
    ):
        steady_end_s(DRIFTING, num_microbatches=4000, schedule="1f1b")


def test_gpipe_of_many_micro_batches_takes_its_slowest_stage_each_way() -> None:
    m = 10**7
    times = PipelineTimes(forward_s=[1, 4, 2], backward_s=[3, 2, 5], output_s=[6, 1], error_s=[2, 1])
    run = simulate(times, num_microbatches=m, schedule="gpipe")
    assert run.makespan_s == pytest.approx((1 + 4 + 2 + 6 + 1) + (m - 1) * 6 + (3 + 2 + 5 + 2 + 1) + (m - 1) * 5)


def test_more_tasks_than_can_be_drawn_are_refused() -> None:
    m, times = MOST_LISTED // 4 + 1, PipelineTimes(forward_s=[1, 1], backward_s=[1, 1])
    with pytest.raises(ModelError, match=f"Take {m - 1} micro-batches or fewer"):
        simulate(times, num_microbatches=m, schedule="gpipe", with_tasks=True)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["1f1b", "interleaved", "zb_h1"]),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 60),
    st.data(),
)
def test_many_pipelines_played_together_end_as_each_alone(
    schedule: str, p: int, v: int, turns: int, data: st.DataObject
) -> None:
    chunks, m = (v, turns * p) if schedule == "interleaved" else (1, turns)
    some = st.lists(
        st.lists(st.integers(0, 9).map(float), min_size=2, max_size=2), min_size=p * chunks, max_size=p * chunks
    )
    forward_s, backward_s, weights_s = (np.array(data.draw(some)) for _ in range(3))
    if schedule != "zb_h1":
        weights_s[:] = 0.0
    found = played_s(forward_s, backward_s, weights_s, schedule=schedule, num_devices=p, num_microbatches=m)
    for column, found_s in enumerate(found):
        times = PipelineTimes(
            forward_s=forward_s[:, column].tolist(),
            backward_s=backward_s[:, column].tolist(),
            weights_s=weights_s[:, column].tolist(),
        )
        run = simulate(times, schedule=schedule, num_microbatches=m, chunks_per_device=chunks)
        assert found_s == pytest.approx(run.makespan_s)


@pytest.mark.parametrize("turns", [60, 61, 62, 63, 400, 401])
@pytest.mark.parametrize(
    ("p", "forward_s"), [(3, [2, 1, 2, 1, 2, 1]), (4, [1, 2, 3, 2, 3, 3, 2, 3]), (4, [1, 1, 3, 2, 3, 2, 1, 2])]
)
def test_rounds_that_add_the_same_only_several_together_are_leapt_over(
    p: int, forward_s: list[int], turns: int
) -> None:
    forward, sizes = np.array(forward_s, dtype=float), {"num_microbatches": p * turns, "schedule": "interleaved"}
    found = played_s(forward[:, None], 2 * forward[:, None], **sizes, num_devices=p)  # type: ignore[arg-type]
    times = PipelineTimes(forward_s=forward.tolist(), backward_s=(2 * forward).tolist())
    run = simulate(times, **sizes, chunks_per_device=2)  # type: ignore[arg-type]
    assert found == pytest.approx([run.makespan_s], rel=1e-9)
