"""Orders of all schedules: valid, with the memory and the bubble that their papers state."""

from collections.abc import Callable
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import ModelError
from planner.models.orders import (
    BACKWARD,
    FORWARD,
    IS_V,
    PUTS_OFF,
    SCHEDULES,
    WEIGHTS,
    WHOLE,
    devices_of,
    fewest_microbatches,
    held_chunks,
    in_flight,
    neighbour_of,
    order_of,
    peak_weight,
    slotted,
)
from planner.models.schedule import PipelineTimes, least_microbatches, played_s, simulate, steady_end_s

Form = Callable[[int, int], list[float]]
NEW = ("zb_h2", "zb_v", "v_half", "v_min", "dualpipe_v")


def chunks_of(schedule: str) -> int:
    return 2 if schedule in IS_V or schedule == "interleaved" else 1


def alike(schedule: str, p: int, f: float = 1.0, b: float = 1.0, w: float = 1.0) -> PipelineTimes:
    """Equal stages, whose devices take f, b and w for a micro-batch."""
    v = chunks_of(schedule)
    share = 1.0 if schedule == "dualpipe" else 1 / v  # each of its copies takes half of the micro-batches
    forward, backward, weights = ([one * share] * (p * v) for one in (f, b, w))
    if schedule in PUTS_OFF:
        return PipelineTimes(forward_s=forward, backward_s=backward, weights_s=weights)
    return PipelineTimes(forward_s=forward, backward_s=[one * 2 for one in backward])


@st.composite
def sizes(draw: st.DrawFn) -> tuple[str, int, int]:
    schedule = draw(st.sampled_from(SCHEDULES))
    p = draw(st.integers(1, 7)) * (2 if schedule == "dualpipe" else 1)
    m = fewest_microbatches(schedule, p) + draw(st.integers(0, 9)) * (2 if schedule == "dualpipe" else 1)
    return schedule, p, m * p if schedule == "interleaved" else m


@given(sizes())
@settings(max_examples=60, deadline=None)
def test_orders_do_every_task_once_and_no_device_waits_for_ever(size: tuple[str, int, int]) -> None:
    schedule, p, m = size
    v = chunks_of(schedule)
    orders, device_of = order_of(schedule, p, m, v), devices_of(schedule, p, v)
    microbatches = range(m // 2 if schedule == "dualpipe" else m)
    kinds = {FORWARD: 1, BACKWARD: 1, WEIGHTS: 1, WHOLE: 2}
    work: dict[tuple[int, int], int] = {}
    for device, order in enumerate(orders):
        assert len(set(order)) == len(order)
        for kind, stage, j in order:
            assert device_of[stage] == device
            work[stage, j] = work.get((stage, j), 0) + kinds[kind]
    assert set(work.values()) == {3 if schedule in PUTS_OFF else 2}
    assert work.keys() == {(stage, j) for stage in range(p * v) for j in microbatches}
    run = simulate(alike(schedule, p), schedule=schedule, num_microbatches=m, chunks_per_device=v, with_tasks=True)
    begins = {(task.kind, task.stage, task.microbatch): task.start_s for task in run.tasks}
    ends = {(task.kind, task.stage, task.microbatch): task.end_s for task in run.tasks}
    for (name, at, number), end_s in ends.items():
        if name == "weights":
            assert end_s > ends["backward", at, number]
        else:
            to = neighbour_of(schedule, p * v, FORWARD if name == "forward" else BACKWARD, at)
            names = ("forward",) if name == "forward" else ("backward", "whole")
            later = [begins[one, to, number] for one in names if to is not None and (one, to, number) in begins]
            assert to is None or (len(later) == 1 and later[0] >= end_s - 1e-9)


@pytest.mark.parametrize(
    ("schedule", "most"),
    [
        ("gpipe", lambda p, m: [m] * p),
        ("1f1b", lambda p, m: [p - d for d in range(p)]),
        ("interleaved", lambda p, m: [(2 * (p - d - 1) + p + 1) / 2 for d in range(p)]),
        ("zb_h1", lambda p, m: [p] * p),  # arXiv:2401.10241, table 2
        ("zb_h2", lambda p, m: [2 * p - 1] * p),
        ("zb_v", lambda p, m: [p] * p),
        ("dualpipe", lambda p, m: [p + 1] * p),  # arXiv:2412.19437, table 2
        ("dualpipe_v", lambda p, m: [p + 1 / 2] * p),  # the same of a line of 2 p stages
    ],
)
@pytest.mark.parametrize("p", [2, 4, 8])
def test_closed_forms_of_memory_are_what_is_counted(schedule: str, most: Form, p: int) -> None:
    m, v = 4 * p, chunks_of(schedule)
    share = 1.0 if schedule == "dualpipe" else 1 / v
    assert peak_weight([share] * (p * v), schedule, p, m, v).tolist() == most(p, m)


def test_a_v_half_holds_about_half_of_1f1b_and_a_v_min_about_a_third() -> None:
    for p in range(2, 25):
        for schedule, part in (("v_half", 2), ("v_min", 3)):
            peak = peak_weight([0.5] * (2 * p), schedule, p, 4 * p, 2).max()
            assert p / part <= peak <= p / part + 1.5


@given(sizes())
@settings(max_examples=60, deadline=None)
def test_what_is_held_of_chunks_is_counted_from_the_whole_order(size: tuple[str, int, int]) -> None:
    schedule, p, m = size
    v = chunks_of(schedule)
    change = {FORWARD: 1, BACKWARD: 0 if schedule in PUTS_OFF else -1, WEIGHTS: -1, WHOLE: -1}
    most = []
    for order, moments in zip(order_of(schedule, p, m, v), held_chunks(schedule, p, m, v), strict=True):
        peak = max(accumulate(change[kind] for kind, _, _ in order))
        assert max(map(sum, moments)) == peak
        for stage in {stage for _, stage, _ in order}:
            most.append((stage, max(accumulate(change[kind] for kind, at, _ in order if at == stage))))
    assert in_flight(schedule, p, m, v) == tuple(one for _, one in sorted(most))


def test_zb_v_has_no_bubble_where_forward_backward_and_weights_take_the_same() -> None:
    for p in (2, 3, 4, 8):
        m = 2 * p + 1
        run = simulate(alike("zb_v", p), schedule="zb_v", num_microbatches=m, chunks_per_device=2, with_tasks=True)
        begin_s = [min(task.start_s for task in run.tasks if task.device == d) for d in range(p)]
        assert np.allclose(run.compute_end_s - begin_s, 3 * m)
    run = simulate(alike("zb_h2", 4), schedule="zb_h2", num_microbatches=8)
    assert np.allclose(run.compute_end_s - np.arange(4), 24)


def test_dualpipe_waits_no_longer_than_its_paper_says() -> None:
    for p, (f, b, w) in ((4, (1.0, 1.0, 1.0)), (8, (1.0, 1.2, 0.8)), (16, (1.0, 1.0, 1.0))):
        times = alike("dualpipe", p, f, b, w)
        run = simulate(times, schedule="dualpipe", num_microbatches=4 * p, chunks_per_device=2)
        bubble_s = (p / 2 - 1) * ((f + b + w) + (b + w) - 3 * w)  # arXiv:2412.19437, table 2; F&B without overlap
        assert run.makespan_s - 4 * p * (f + b + w) <= bubble_s + 1e-9


def test_dualpipe_is_dualpipe_v_on_half_of_the_devices_and_microbatches() -> None:
    p, m = 8, 20
    rng = np.random.default_rng(1)
    forward, backward, weights = rng.uniform(1, 2, (3, p))
    both = PipelineTimes(
        forward_s=[*forward, *forward], backward_s=[*backward, *backward], weights_s=[*weights, *weights]
    )
    half = PipelineTimes(forward_s=forward, backward_s=backward, weights_s=weights)
    whole = simulate(both, schedule="dualpipe", num_microbatches=m, chunks_per_device=2)
    part = simulate(half, schedule="dualpipe_v", num_microbatches=m // 2, chunks_per_device=2)
    assert whole.makespan_s == pytest.approx(part.makespan_s)
    assert whole.compute_end_s[: p // 2].tolist() == pytest.approx(part.compute_end_s.tolist())


@pytest.mark.parametrize("schedule", NEW)
def test_steady_rounds_and_many_pipelines_at_once_end_when_all_tasks_do(schedule: str) -> None:
    rng, v = np.random.default_rng(2), chunks_of(schedule)
    for p, m in ((2, 30), (3, 41), (4, 35)):
        forward, backward, weights = rng.integers(1, 9, (3, p * v, 2)).astype(float)
        played = played_s(forward, backward, weights, schedule=schedule, num_devices=p, num_microbatches=m)
        for n in range(2):
            times = PipelineTimes(
                forward_s=forward[:, n], backward_s=backward[:, n], weights_s=weights[:, n],
                output_s=[0.0] * (p * v - 1), error_s=[0.0] * (p * v - 1),
            )  # fmt: skip
            run = simulate(times, schedule=schedule, num_microbatches=m, chunks_per_device=v, with_tasks=True)
            ends_s = steady_end_s(times, schedule=schedule, num_microbatches=m, chunks_per_device=v)
            assert ends_s.tolist() == pytest.approx(run.compute_end_s.tolist())
            assert played[n] == pytest.approx(run.makespan_s)


@pytest.mark.parametrize("schedule", ["v_half", "v_min"])
def test_slots_are_as_the_six_before_from_the_slot_on_where_rounds_begin(schedule: str) -> None:
    for p in (*range(1, 25), 31, 32, 47, 48, 63, 64):
        m = least_microbatches(p, schedule) + 3
        begin = (least_microbatches(p, schedule) - 2) * 6
        for row in slotted(schedule, p, m):
            at = {slot: task for slot, task in row if begin <= slot < 6 * m}
            later = {slot + 6: (kind, stage, j + 1) for slot, (kind, stage, j) in at.items() if slot + 6 < 6 * m}
            assert later.items() <= at.items()
            assert len(at) == 6 * m - begin


# All that have a steady round: GPipe has a closed form, and DualPipe is DualPipeV on half of the devices.
STEADY = ("1f1b", "interleaved", "zb_h1", *NEW)


@pytest.mark.parametrize("p", [2, 3, 11, 12, 13, 18, 24, 40])
def test_long_pipelines_in_rounds_end_when_all_their_tasks_do(p: int) -> None:
    rng = np.random.default_rng(p)
    for schedule in STEADY:
        v, least = chunks_of(schedule), least_microbatches(p, schedule)
        forward, backward, weights = rng.integers(1, 9, (3, p * v, 1)).astype(float)
        weights *= schedule in PUTS_OFF
        times = PipelineTimes(forward_s=forward[:, 0], backward_s=backward[:, 0], weights_s=weights[:, 0])
        for m in {least, least + 2 * p} if schedule == "interleaved" else {max(2 * p + 4, least), least + 1}:
            orders = order_of(schedule, p, m, v)
            run = simulate(times, schedule=schedule, num_microbatches=m, chunks_per_device=v, with_tasks=True)
            assert len([one for one in run.tasks if one.kind[:4] != "send"]) == sum(map(len, orders))
            ends_s = steady_end_s(times, schedule=schedule, num_microbatches=m, chunks_per_device=v)
            assert ends_s.tolist() == pytest.approx(run.compute_end_s.tolist(), rel=1e-12)
            played = played_s(forward, backward, weights, schedule=schedule, num_devices=p, num_microbatches=m)
            assert played.tolist() == pytest.approx([run.makespan_s], rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("dualpipe", 4, 6, 2), "needs 8 micro-batches or more, not 6"),
        (("dualpipe_v", 4, 7, 2), "needs 8 micro-batches or more, not 7"),
        (("dualpipe", 3, 8, 2), "in pairs"),
        (("zb_v", 4, 8, 1), "two stages a device"),
        (("zb_h2", 4, 8, 2), "one stage a device"),
    ],
)
def test_what_a_schedule_does_not_have_is_refused(arguments: tuple[str, int, int, int], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        order_of(*arguments)
