from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import ModelError
from planner.models import schedule as pipeline_schedule
from planner.models.orders import bubble_share, in_flight, order_of, peak_weight
from planner.models.schedule import PipelineTask, PipelineTimes, ScheduleRun, simulate


@dataclass(frozen=True, kw_only=True)
class Line:
    """A pipeline's times, as ``simulate`` takes them."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    output_s: tuple[float, ...]
    error_s: tuple[float, ...]
    sync_s: tuple[float, ...]
    update_s: tuple[float, ...]
    num_microbatches: int
    schedule: str
    chunks: int = 1

    @property
    def p(self) -> int:
        return len(self.forward_s) // self.chunks

    def run(self, changes: Mapping[str, tuple[float, ...]] | None = None, *, with_tasks: bool = False) -> ScheduleRun:
        return simulate(
            PipelineTimes(**{**{name: getattr(self, name) for name in NAMES}, **(changes or {})}),
            num_microbatches=self.num_microbatches,
            schedule=self.schedule,
            chunks_per_device=self.chunks,
            with_tasks=with_tasks,
        )


def free_s(
    forward_s: Sequence[float], backward_s: Sequence[float], m: int, schedule: str, chunks: int = 1
) -> ScheduleRun:
    """A pipeline whose transfers take no time."""
    times = PipelineTimes(forward_s=forward_s, backward_s=backward_s)
    return simulate(times, num_microbatches=m, schedule=schedule, chunks_per_device=chunks)


NAMES = ("forward_s", "backward_s", "output_s", "error_s", "sync_s", "update_s")
seconds = st.integers(0, 9).map(float)


@st.composite
def lines(draw: st.DrawFn, max_devices: int = 4, max_microbatches: int = 6) -> Line:
    schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved"]))
    p = draw(st.integers(1, max_devices))
    chunks = draw(st.integers(1, 3)) if schedule == "interleaved" else 1
    m = draw(st.integers(1, max_microbatches))
    if schedule == "interleaved":
        m = p * draw(st.integers(1, 2))
    k = p * chunks

    def some(number: int) -> tuple[float, ...]:
        return tuple(draw(st.lists(seconds, min_size=number, max_size=number)))

    return Line(
        forward_s=some(k), backward_s=some(k), output_s=some(k - 1), error_s=some(k - 1), sync_s=some(k), update_s=some(k),
        num_microbatches=m, schedule=schedule, chunks=chunks,
    )  # fmt: skip


# -- an independent simulator: longest paths by relaxation over an order that a counter deals out -----------------------


def dealt_order(line: Line, device: int) -> list[tuple[str, int, int]]:
    """A device's tasks: the next forward while fewer than its share of micro-batches are in flight, else a backward."""
    p, m, v = line.p, line.num_microbatches, line.chunks
    if line.schedule == "interleaved":
        most = 2 * (p - device - 1) + (v - 1) * p + 1
        rounds = [range(start, start + p) for start in range(0, m, p)]
        forwards = [(chunk * p + device, j) for group in rounds for chunk in range(v) for j in group]
        backwards = [(chunk * p + device, j) for group in rounds for chunk in reversed(range(v)) for j in group]
    else:
        most = m if line.schedule == "gpipe" else p - device
        forwards = backwards = [(device, j) for j in range(m)]
    order: list[tuple[str, int, int]] = []
    begun = done = 0
    while done < m * v:
        if begun < m * v and begun - done < most:
            order.append(("forward", *forwards[begun]))
            begun += 1
        else:
            order.append(("backward", *backwards[done]))
            done += 1
    return order


def slow_makespan_s(line: Line) -> float:
    """Relax every end until nothing changes; slow, and as plain as the rules."""
    last = len(line.forward_s) - 1
    before: dict[tuple[str, int, int], list[tuple[str, int, int]]] = defaultdict(list)
    took: dict[tuple[str, int, int], float] = {}
    for device in range(line.p):
        order = dealt_order(line, device)
        for one, other in pairwise(order):
            before[other].append(one)
        for kind, boundary in (("forward", last), ("backward", 0)):
            sent = [(f"{kind} sent", stage, j) for what, stage, j in order if what == kind and stage != boundary]
            for one, other in pairwise(sent):
                before[other].append(one)
        for kind, stage, j in order:
            took[kind, stage, j] = (line.forward_s if kind == "forward" else line.backward_s)[stage]
            if kind == "forward" and stage < last:
                took["forward sent", stage, j] = line.output_s[stage]
                before["forward sent", stage, j].append(("forward", stage, j))
                before["forward", stage + 1, j].append(("forward sent", stage, j))
            if kind == "backward" and stage > 0:
                took["backward sent", stage, j] = line.error_s[stage - 1]
                before["backward sent", stage, j].append(("backward", stage, j))
                before["backward", stage - 1, j].append(("backward sent", stage, j))
            if kind == "backward" and stage == last:
                before["backward", stage, j].append(("forward", stage, j))
    end_s = dict.fromkeys(took, 0.0)
    changed = True
    while changed:
        changed = False
        for task, duration_s in took.items():
            new_s = max((end_s[one] for one in before[task]), default=0.0) + duration_s
            changed |= new_s != end_s[task]
            end_s[task] = new_s
    ends_s = []
    for device in range(line.p):
        computed_s = max(
            end_s["backward", k, j] for k in range(device, last + 1, line.p) for j in range(line.num_microbatches)
        )
        ends_s.append(computed_s + sum(line.sync_s[device :: line.p]) + sum(line.update_s[device :: line.p]))
    return max(ends_s)


@settings(max_examples=300)
@given(lines())
def test_the_simulation_agrees_with_longest_paths_found_by_relaxation(line: Line) -> None:
    assert line.run().makespan_s == pytest.approx(slow_makespan_s(line), abs=1e-9)


@settings(max_examples=50)
@given(lines(max_devices=6, max_microbatches=14))
def test_what_is_reckoned_round_by_round_or_in_closed_form_is_what_runs_task_by_task(line: Line) -> None:
    with patch.object(pipeline_schedule, "_AT_ONCE", 1):
        quick = line.run()
    walked = line.run(with_tasks=True)
    assert quick.compute_end_s.tolist() == pytest.approx(walked.compute_end_s.tolist())
    assert quick.makespan_s == pytest.approx(walked.makespan_s)
    assert quick.makespan_s == pytest.approx(slow_makespan_s(line), abs=1e-9)


# -- what is known of schedules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forward_s", "backward_s", "simulated_s", "closed_form_s"),
    [((2, 1), (2, 1), 8, 10), ((1, 4, 1), (8, 3, 1), 28, 27)],
)
def test_the_closed_form_of_unequal_stages_errs_on_either_side(
    forward_s: tuple[float, ...], backward_s: tuple[float, ...], simulated_s: float, closed_form_s: float
) -> None:
    work_s = [f + b for f, b in zip(forward_s, backward_s, strict=True)]
    assert sum(work_s) + (2 - 1) * max(work_s) == closed_form_s
    assert free_s(forward_s, backward_s, 2, "1f1b").makespan_s == pytest.approx(simulated_s)


@given(st.integers(1, 6), st.integers(1, 4), st.sampled_from([2, 3]), st.integers(1, 5), st.integers(1, 5))
def test_equal_stages_have_the_published_bubble(p: int, rounds: int, v: int, f: int, b: int) -> None:
    for schedule, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved", v)):
        k, m = p * chunks, p * rounds
        run = free_s([f] * k, [b] * k, m, schedule, chunks)
        ideal_s = m * chunks * (f + b)
        assert (run.makespan_s - ideal_s) / ideal_s == pytest.approx((p - 1) / (chunks * m))
        assert bubble_share(schedule, p, m, chunks) == pytest.approx((p - 1) / (chunks * m))


def test_gpipe_has_its_bubble_whatever_the_number_of_micro_batches() -> None:
    for m in range(1, 9):
        assert free_s([1] * 4, [2] * 4, m, "gpipe").makespan_s == pytest.approx(3 * (m + 3))


@given(lines())
def test_in_flight_micro_batches_are_those_between_forward_and_backward(line: Line) -> None:
    distinct = tuple(1.0 + one for one in line.forward_s)  # no task takes 0 s, so that starts and ends tell an order
    run = line.run({"forward_s": distinct, "backward_s": tuple(1.0 + one for one in line.backward_s)}, with_tasks=True)
    spans = {
        (task.kind, task.stage, task.microbatch): task for task in run.tasks if task.kind in ("forward", "backward")
    }
    for stage in range(len(line.forward_s)):
        starts = [spans["forward", stage, j].start_s for j in range(line.num_microbatches)]
        ends = [spans["backward", stage, j].end_s for j in range(line.num_microbatches)]
        peak = max(sum(one <= now for one in starts) - sum(one <= now for one in ends) for now in starts)
        assert run.in_flight[stage] == peak


def test_in_flight_counts_are_those_of_the_literature() -> None:
    assert in_flight("1f1b", 4, 8) == (4, 3, 2, 1)
    assert in_flight("1f1b", 4, 2) == (2, 2, 2, 1)
    assert in_flight("gpipe", 4, 8) == (8, 8, 8, 8)
    for p, v in ((8, 3), (35, 3), (4, 2)):  # L layers' worth times 1 + (p - 1) / (p v) on the first device
        chunks_held = peak_weight([1.0] * (p * v), "interleaved", p, 2 * p, v)[0]
        assert chunks_held / (p * v) == pytest.approx(1 + (p - 1) / (p * v))


@given(lines())
def test_a_device_never_holds_more_than_its_stages_peaks_together(line: Line) -> None:
    weights = [1.0 + k for k in range(len(line.forward_s))]
    peaks = peak_weight(weights, line.schedule, line.p, line.num_microbatches, line.chunks)
    counts = in_flight(line.schedule, line.p, line.num_microbatches, line.chunks)
    for device in range(line.p):
        stages = range(device, len(weights), line.p)
        assert peaks[device] <= sum(weights[k] * counts[k] for k in stages) + 1e-9
        assert peaks[device] >= max(weights[k] * counts[k] for k in stages) - 1e-9


# -- properties --------------------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 8), st.data())
def test_the_peak_of_many_micro_batches_is_that_of_the_whole_order(
    p: int, chunks: int, rounds: int, data: st.DataObject
) -> None:
    """The order of a device is looked at in part only; here it is walked to its end."""
    m = p * rounds
    weights = data.draw(st.lists(st.integers(0, 9).map(float), min_size=p * chunks, max_size=p * chunks))
    held = peak_weight(weights, "interleaved", p, m, chunks)
    counts = in_flight("interleaved", p, m, chunks)
    for device, order in enumerate(order_of("interleaved", p, m, chunks)):
        weight, most, now, peaks = 0.0, 0.0, defaultdict[int, int](int), defaultdict[int, int](int)
        for is_backward, stage, _ in order:
            sign = -1 if is_backward else 1
            weight += sign * weights[stage]
            now[stage] += sign
            most, peaks[stage] = max(most, weight), max(peaks[stage], now[stage])
        assert held[device] == pytest.approx(most)
        assert all(counts[stage] == peak for stage, peak in peaks.items())


@given(lines(), st.sampled_from(NAMES), st.data())
def test_no_longer_task_ends_an_iteration_earlier(line: Line, name: str, data: st.DataObject) -> None:
    times = list(getattr(line, name))
    if not times:
        return
    times[data.draw(st.integers(0, len(times) - 1))] += data.draw(st.integers(1, 5))
    assert line.run({name: tuple(times)}).makespan_s >= line.run().makespan_s


@given(lines())
def test_doubling_every_time_doubles_the_makespan(line: Line) -> None:
    doubled = {name: tuple(2 * one for one in getattr(line, name)) for name in NAMES}
    assert line.run(doubled).makespan_s == pytest.approx(2 * line.run().makespan_s)


@given(lines(max_devices=1))
def test_one_stage_takes_its_work_and_its_exchange(line: Line) -> None:
    free = (0.0,) * (len(line.forward_s) - 1)
    work_s = line.num_microbatches * (sum(line.forward_s) + sum(line.backward_s))
    assert line.run({"output_s": free, "error_s": free}).makespan_s == pytest.approx(
        work_s + sum(line.sync_s) + sum(line.update_s)
    )


@given(lines())
def test_the_makespan_is_at_least_fill_work_and_drain_of_every_stage(line: Line) -> None:
    """SPEC 7: head + m (f + b) + tail, and with the exchange in place of the tail."""
    m, run = line.num_microbatches, line.run()
    if line.chunks > 1:
        return
    for stage in range(line.p):
        work_s = m * (line.forward_s[stage] + line.backward_s[stage])
        head_s = sum(line.forward_s[:stage]) + sum(line.output_s[:stage])
        tail_s = sum(line.backward_s[:stage]) + sum(line.error_s[:stage])
        own_s = line.sync_s[stage] + line.update_s[stage]
        assert run.makespan_s >= head_s + work_s + max(own_s, tail_s + line.sync_s[0] + line.update_s[0]) - 1e-9
    assert run.makespan_s == pytest.approx(float(run.end_s.max()))
    assert (run.idle_s >= -1e-9).all()


@given(lines())
def test_every_task_runs_once_in_turn_and_after_its_input(line: Line) -> None:
    run = line.run(with_tasks=True)
    rows: dict[tuple[int, str], list[PipelineTask]] = defaultdict(list)
    ends: dict[tuple[str, int, int | None], float] = {}
    for task in run.tasks:
        rows[task.device, task.kind if task.kind.startswith("send") else "device"].append(task)
        ends[task.kind, task.stage, task.microbatch] = task.end_s
    for tasks in rows.values():
        assert all(one.end_s <= other.start_s for one, other in pairwise(tasks))
    last = len(line.forward_s) - 1
    for task in run.tasks:
        j, k = task.microbatch, task.stage
        if task.kind == "forward" and k > 0:
            assert task.start_s >= ends.get(("send_output", k - 1, j), ends["forward", k - 1, j])
        if task.kind == "backward":
            sent = (
                ends["forward", k, j] if k == last else ends.get(("send_error", k + 1, j), ends["backward", k + 1, j])
            )
            assert task.start_s >= sent
    counted = [task for task in run.tasks if task.kind in ("forward", "backward")]
    assert (
        len(counted)
        == 2 * line.num_microbatches * (last + 1)
        == len({(one.kind, one.stage, one.microbatch) for one in counted})
    )
    assert max((task.end_s for task in run.tasks), default=0.0) == pytest.approx(run.makespan_s)
    assert run.busy_s.tolist() == pytest.approx(
        [sum(one.end_s - one.start_s for one in counted if one.device == device) for device in range(line.p)]
    )


def test_chunks_of_a_device_share_its_channels() -> None:
    free = free_s([1] * 4, [1] * 4, 2, "interleaved", 2)
    slow = simulate(
        PipelineTimes(forward_s=[1] * 4, backward_s=[1] * 4, output_s=[9, 0, 9]),
        num_microbatches=2,
        schedule="interleaved",
        chunks_per_device=2,
    )
    # Device 0 sends two micro-batches of two chunks: four transfers of 9 s, one after another.
    assert slow.makespan_s >= free.makespan_s + 4 * 9 - 4
    assert slow.makespan_s > 1 + 4 * 9


def test_the_order_does_not_depend_on_any_time() -> None:
    assert order_of("1f1b", 2, 2) == (
        ((False, 0, 0), (False, 0, 1), (True, 0, 0), (True, 0, 1)),
        ((False, 1, 0), (True, 1, 0), (False, 1, 1), (True, 1, 1)),
    )
    assert [stage for _, stage, _ in order_of("interleaved", 2, 2, 2)[0]] == [0, 0, 2, 2, 2, 2, 0, 0]
    assert in_flight("interleaved", 2, 4, 2) == (4, 3, 2, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schedule": "interleaved", "num_microbatches": 3}, "multiples of its 2 devices, not 3"),
        ({"schedule": "zigzag"}, "no schedule 'zigzag'"),
        ({"chunks_per_device": 2}, "only the interleaved schedule has chunks"),
        ({"num_microbatches": 0}, "0 micro-batches"),
        ({"schedule": "zb_h1", "chunks_per_device": 2}, "zb_h1 has one stage a device, not 2"),
        ({"output_s": [1.0, 2.0]}, "output_s has 2 entries; 2 stages need 1"),
        ({"error_s": [-1.0]}, "error_s must be finite and >= 0"),
        ({"weights_s": [0.0, 1.0]}, "1f1b puts no gradients of weights off"),
        ({"sync_s": [1.0]}, "sync_s has 1 entries; 2 stages need 2"),
        ({"update_s": [1.0, float("nan")]}, "update_s must be finite and >= 0"),
        ({"chunks_per_device": 3}, "2 stages are no multiple of 3"),
        ({"chunks_per_device": 0}, "2 stages are no multiple of 0"),
    ],
)
def test_impossible_schedules_are_refused(change: dict[str, object], words: str) -> None:
    names = (*NAMES, "weights_s")
    times = {name: change[name] for name in change if name in names}
    asked = {"num_microbatches": 2, "schedule": "1f1b", **{name: change[name] for name in change if name not in names}}
    with pytest.raises(ModelError, match=words):
        simulate(PipelineTimes(forward_s=[1, 1], backward_s=[1, 1], **times), **asked)  # type: ignore[arg-type]


def test_a_pipeline_of_no_stages_is_refused() -> None:
    with pytest.raises(ModelError, match="at least one stage"):
        free_s([], [], 1, "1f1b")
