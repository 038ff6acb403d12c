"""The CP-SAT programme against the search over pipelines: the same optimum, of the bound and of the simulation."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.models.schedule import PipelineTimes, simulate
from planner.search import Search
from planner.solution import Status
from planner.solvers.pipeline_bounds import Integers, Schedule
from planner.solvers.pipeline_tables import Choice, StageSeconds
from planner.solvers.pipelines import BestFirst, Stage
from tests.referee.exhaustive import PipelineStages, best_pipeline
from tests.referee.pipeline_cp_sat import TICK_S, LinePipeline
from tests.referee.pipeline_cp_sat import best_pipeline as cp_sat_pipeline


class Line:
    """The costs of a LinePipeline, as the search over pipelines asks for them."""

    def __init__(self, data: LinePipeline) -> None:
        self.data, self.num_layers, self.num_devices = data, data.num_layers, tuple(data.num_devices)
        self.num_places = (1,) * len(data.num_devices)
        both_s = np.array(data.forward_s) + np.array(data.backward_s)
        self.line_s = np.concatenate((np.zeros((len(both_s), 1)), np.cumsum(both_s, axis=1)), axis=1)
        work_s = np.array(data.num_devices_of)[:, None] * both_s
        self.units, self.speeds = (1,) * len(self.num_devices), (1.0,) * len(self.num_devices)
        self.floor_s = np.zeros(len(data.type_index))
        self.work_s = np.concatenate(([0.0], np.cumsum(work_s.min(axis=0))))
        self.choices = tuple(
            Choice(type_index=kind, num_devices=number)
            for kind, number in zip(data.type_index, data.num_devices_of, strict=True)
        )

    def stages(self, firsts: Integers, lasts: Integers, choices: Integers, places: Integers, /) -> StageSeconds:
        data = self.data
        forward_s, backward_s, flush_s, each = (
            _prefix(one)[choices, lasts + 1] - _prefix(one)[choices, firsts]
            for one in (data.forward_s, data.backward_s, data.flush_s, data.in_flight_bytes)
        )
        held = _prefix([data.held_bytes])[0]
        free = np.array(data.memory_bytes)[choices] - (held[lasts + 1] - held[firsts])
        room = np.where(free < 0, 0, np.divide(free, each, out=np.full(free.shape, 1e6), where=each > 0))
        return StageSeconds(
            forward_s=forward_s,
            backward_s=backward_s,
            flush_s=flush_s + np.array(data.startup_s)[choices],
            most_in_flight=np.minimum(room, 1e6).astype(np.int64),
        )

    def out_s(self, lasts: Integers, choices: Integers, places: Integers, used: Integers, /) -> np.ndarray:
        row = np.array([*self.data.boundary_s[: self.num_layers - 1], 0.0])[lasts] + 0.0 * (choices + places)
        return np.array([row, row])

    def in_s(self, firsts: Integers, choices: Integers, places: Integers, used: Integers, /) -> np.ndarray:
        row = np.array([0.0, *self.data.boundary_s])[firsts] + 0.0 * (choices + places)
        return np.array([row, row])

    def boundary_s(
        self, cuts: Integers, lefts: Integers, left_places: Integers, rights: Integers, places: Integers, /
    ) -> np.ndarray:
        return np.array([np.array(self.data.boundary_s)[cuts - 1]] * 2)


def _prefix(rows: object) -> np.ndarray:
    return np.concatenate((np.zeros((len(rows), 1)), np.cumsum(np.array(rows), axis=1)), axis=1)  # type: ignore[arg-type]


@st.composite
def lines(draw: st.DrawFn, least_layers: int = 1, most_layers: int = 6, most_devices: int = 4) -> LinePipeline:
    """Whole ticks and bytes, two types of device, memory that may be short."""
    layers = draw(st.integers(least_layers, most_layers))
    num_devices = (draw(st.integers(1, most_devices)), draw(st.integers(1, most_devices)))
    kinds = [(kind, number) for kind, most in enumerate(num_devices) for number in range(1, most + 1)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    speed = (1, draw(st.integers(1, 3)))
    samples = draw(st.sampled_from([2, 4]))

    def seconds(per_sample: Integers) -> list[list[float]]:
        return [
            [float(one) * speed[kind] * math.ceil(samples / number) * TICK_S for one in per_sample]
            for kind, number in kinds
        ]

    stored = rng.integers(0, 5, layers)
    return LinePipeline(
        type_index=[kind for kind, _ in kinds],
        num_devices_of=[number for _, number in kinds],
        num_devices=num_devices,
        forward_s=seconds(rng.integers(0, 9, layers)),
        backward_s=seconds(rng.integers(0, 9, layers)),
        flush_s=[[float(one) * (number > 1) * TICK_S for one in rng.integers(0, 9, layers)] for _, number in kinds],
        startup_s=[float(rng.integers(0, 5)) * (number > 1) * TICK_S for _, number in kinds],
        boundary_s=(rng.integers(0, draw(st.sampled_from([1, 9])), max(layers - 1, 0)) * TICK_S).tolist(),
        held_bytes=rng.integers(0, 9, layers).astype(float).tolist(),
        in_flight_bytes=[[float(one) * math.ceil(samples / number) for one in stored] for _, number in kinds],
        memory_bytes=[draw(st.sampled_from([20.0, 45.0, 500.0]))] * len(kinds),
    )


def makespan_s(data: LinePipeline, schedule: Schedule, stages: PipelineStages) -> float:
    """The simulation, or infinity where a stage does not fit."""
    index = {pair: c for c, pair in enumerate(zip(data.type_index, data.num_devices_of, strict=True))}
    rows: list[list[float]] = [[], [], []]
    m, n = schedule.num_microbatches, len(stages)
    for s, (first, last, *pair) in enumerate(stages):
        c, run = index[pair[0], pair[1]], slice(first, last + 1)
        held = m if schedule.is_gpipe else min(m, n - s)
        if sum(data.held_bytes[run]) + held * sum(data.in_flight_bytes[c][run]) > data.memory_bytes[c]:
            return math.inf
        rows[0].append(sum(data.forward_s[c][run]))
        rows[1].append(sum(data.backward_s[c][run]))
        rows[2].append(sum(data.flush_s[c][run]) + data.startup_s[c])
    sent = [data.boundary_s[last] for _, last, *_ in stages[:-1]]
    name = "gpipe" if schedule.is_gpipe else "1f1b"
    times = PipelineTimes(forward_s=rows[0], backward_s=rows[1], output_s=sent, error_s=sent, sync_s=rows[2])
    return simulate(times, num_microbatches=m, schedule=name).makespan_s


def plain(data: LinePipeline, stages: tuple[Stage, ...]) -> PipelineStages:
    return tuple((one.first, one.last, data.type_index[one.choice], data.num_devices_of[one.choice]) for one in stages)


def simulated_in_order(data: LinePipeline, schedule: Schedule, num_stages: int) -> Iterator[float]:
    ordered, best = BestFirst(Line(data), schedule, [num_stages], Search()), math.inf
    while (candidate := ordered.next(best)) is not None:
        best = min(best, makespan_s(data, schedule, plain(data, candidate.stages)))
        yield best


schedules = st.builds(Schedule, num_microbatches=st.integers(1, 3), is_gpipe=st.booleans())


@settings(max_examples=40)
@given(lines(), schedules, st.data())
def test_the_exact_schedule_agrees_with_the_search_that_simulates_in_the_order_of_bounds(
    data: LinePipeline, schedule: Schedule, drawn: st.DataObject
) -> None:
    most = min(3, data.num_layers, sum(data.num_devices))
    n = drawn.draw(st.integers(1, most))
    truth = min(simulated_in_order(data, schedule, n), default=math.inf)
    found = cp_sat_pipeline(data, schedule, n, Search(), is_scheduled=True)
    assert found.status is (Status.INFEASIBLE if truth == math.inf else Status.OPTIMAL)
    assert found.objective == pytest.approx(truth)
    if found.value is not None:
        assert makespan_s(data, schedule, plain(data, found.value)) == pytest.approx(truth)


@settings(max_examples=15)
@given(lines(least_layers=6), schedules)
def test_the_programme_of_the_bound_is_never_above_the_best_of_every_pipeline_simulated(
    data: LinePipeline, schedule: Schedule
) -> None:
    def cost(stages: PipelineStages) -> float:
        return makespan_s(data, schedule, stages) if len(stages) == 2 else math.inf

    truth = best_pipeline(data.num_layers, data.num_devices, cost)
    found = cp_sat_pipeline(data, schedule, 2, Search(), is_scheduled=False)
    first = BestFirst(Line(data), schedule, [2], Search()).next(math.inf)
    assert (found.status is Status.INFEASIBLE) == (truth.status is Status.INFEASIBLE) == (first is None)
    if first is not None:
        assert found.objective <= first.bound * (1 + 1e-9) <= truth.objective * (1 + 1e-9) ** 2


def test_a_single_stage_takes_its_micro_batches_one_after_another() -> None:
    data = LinePipeline(
        type_index=[0], num_devices_of=[1], num_devices=[1], forward_s=[[3 * TICK_S, 1 * TICK_S]], backward_s=[[2 * TICK_S, 4 * TICK_S]],
        flush_s=[[0.0, 5 * TICK_S]], startup_s=[1 * TICK_S], boundary_s=[7 * TICK_S], held_bytes=[0.0, 0.0], in_flight_bytes=[[1.0, 1.0]],
        memory_bytes=[2.0],
    )  # fmt: skip
    for is_scheduled in (False, True):
        found = cp_sat_pipeline(data, Schedule(num_microbatches=3), 1, Search(), is_scheduled=is_scheduled)
        assert found.objective == pytest.approx(36 * TICK_S)
    none = cp_sat_pipeline(data, Schedule(num_microbatches=3, is_gpipe=True), 1, Search(), is_scheduled=True)
    assert none.status is Status.INFEASIBLE


def test_a_channel_sends_one_micro_batch_at_a_time() -> None:
    data = LinePipeline(
        type_index=[0], num_devices_of=[1], num_devices=[2], forward_s=[[TICK_S, TICK_S]], backward_s=[[TICK_S, TICK_S]],
        flush_s=[[0.0, 0.0]], startup_s=[0.0], boundary_s=[5 * TICK_S], held_bytes=[0.0, 0.0], in_flight_bytes=[[0.0, 0.0]],
        memory_bytes=[1.0],
    )  # fmt: skip
    found = cp_sat_pipeline(data, Schedule(num_microbatches=3, is_gpipe=True), 2, Search(), is_scheduled=True)
    assert found.objective == pytest.approx((1 + 3 * 5 + 1 + 1 + 3 * 5 + 1) * TICK_S)
