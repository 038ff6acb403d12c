"""1F1B on unlike stages against an event simulation, task by task."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_steps import Events

from planner.models import schedule
from planner.models.schedule import one_forward_one_backward_s, played_s
from planner.models.transformer_schedule import chunk_bound_s, path_bound_s

SECONDS = st.sampled_from([0.0, 0.25, 1.0, 1.5, 2.0, 3.0, 7.0])


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[list[list[float]], int]:
    """Forward, backward, and what is sent both ways, of every stage; and the micro-batches."""
    stages = draw(st.integers(1, 6))
    rows = draw(st.lists(st.lists(SECONDS, min_size=4, max_size=4), min_size=stages, max_size=stages))
    rows[0][3] = rows[-1][2] = 0.0  # nothing goes before the first stage, nor behind the last one
    return rows, draw(st.integers(1, 14))


def simulated_s(rows: list[list[float]], number: int) -> float:
    """The step, task by task: a device that sends does nothing else."""
    events, last = Events(), len(rows) - 1
    for stage, (forward, backward, down, up) in enumerate(rows):
        warm = min(number, len(rows) - stage)
        order = [("F", k) for k in range(warm)]
        for k in range(number):
            order += [("B", k)] + ([("F", warm + k)] if warm + k < number else [])
        for name, k in order:
            if name == "F":
                after = [("down", stage - 1, k)] if stage else []
                events.add(("F", stage, k), forward, [stage], after)
                events.add(("down", stage, k), down, [stage], [("F", stage, k)])
            else:
                after = [("up", stage + 1, k)] if stage < last else [("F", stage, k)]
                events.add(("B", stage, k), backward, [stage], after)
                events.add(("up", stage, k), up, [stage], [("B", stage, k)])
    return max(events.run().values())


@given(st.lists(pipelines(), min_size=1, max_size=4), st.sampled_from([0, 16]))
@settings(max_examples=150)
def test_the_recurrence_is_the_event_simulation(
    both: list[tuple[list[list[float]], int]], columns_per_stage: int
) -> None:
    longest = max(len(rows) for rows, _ in both)
    forward, backward = np.zeros((longest, len(both))), np.zeros((longest, len(both)))
    for column, (rows, _) in enumerate(both):
        for stage, (ahead, back, down, up) in enumerate(rows):
            forward[stage, column], backward[stage, column] = ahead + down, back + up
    stages = np.array([len(rows) for rows, _ in both])
    numbers = np.array([number for _, number in both])
    expected = [simulated_s(rows, number) for rows, number in both]
    with patch.object(schedule, "_COLUMNS_PER_STAGE", columns_per_stage):  # the running maximum, by either way
        assert one_forward_one_backward_s(forward, backward, stages, numbers) == pytest.approx(expected)
    bounds = path_bound_s(forward, backward, stages, numbers)
    assert np.all(bounds <= np.array(expected) * (1 + 1e-12))
    assert np.all(bounds >= 0.5 * np.array(expected))  # of 37,000 drawn at random, the worst was at 0.68


def test_the_bound_is_the_step_where_stages_are_equal() -> None:
    stages, numbers = np.array([4, 4, 1]), np.array([3, 32, 5])
    forward, backward = np.ones((4, 3)), 2 * np.ones((4, 3))
    forward[1:, 2] = backward[1:, 2] = 0.0
    steps = one_forward_one_backward_s(forward, backward, stages, numbers)
    assert steps == pytest.approx([3 * (3 + 3), 3 * (32 + 3), 15])
    assert path_bound_s(forward, backward, stages, numbers) == pytest.approx(steps)


@given(
    st.sampled_from(["interleaved", "zb_v", "dualpipe_v"]),
    st.integers(1, 4),
    st.integers(2, 4),
    st.integers(1, 3),
    st.integers(0, 9_999),
)
def test_no_schedule_of_virtual_stages_is_shorter_than_its_bound(
    name: str, devices: int, chunks: int, rounds: int, seed: int
) -> None:
    rng, chunks = np.random.default_rng(seed), chunks if name == "interleaved" else 2
    sizes: dict[str, Any] = {"schedule": name, "num_devices": devices, "num_microbatches": 2 * devices * rounds}
    forward, backward, weights = rng.integers(0, 9, (3, devices * chunks, 20)).astype(np.float64)
    weights = weights * (name != "interleaved")
    bounds, played = (one(forward, backward, weights, **sizes) for one in (chunk_bound_s, played_s))
    assert np.all(bounds <= played * (1 + 1e-12))
    one = np.ones((devices * chunks, 1))
    bound = chunk_bound_s(one, one, 0 * one, **sizes)
    assert bound == pytest.approx(2 * (2 * devices * rounds * chunks + devices - 1))
