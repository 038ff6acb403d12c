"""The search over pipelines against every pipeline tried, and its bound against the simulation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_bound import bound_s

from planner.cost import Floats
from planner.models.schedule import PipelineTimes, simulate
from planner.search import Search
from planner.solution import Solution, Status
from planner.solvers import chain, pipeline_bounds, pipelines
from planner.solvers.chain import balanced_cuts, balanced_cuts_of
from planner.solvers.pipeline_bounds import Integers, Schedule, Schedules, through
from planner.solvers.pipeline_tables import Choice, PipelineCosts, Stack, StageSeconds, Tables, TablesOfOne
from planner.solvers.pipelines import BestFirst, Frontier, Stage
from tests.referee.exhaustive import PipelineStages, all_groupings, all_pipelines, best_pipeline

whole_s = st.integers(0, 9).map(float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Costs without any structure: every number is drawn for itself, boundaries for every pair of choices and place."""

    num_devices: tuple[int, ...]
    num_places: tuple[int, ...]
    choices: tuple[Choice, ...]
    layer_s: Floats  # (2, C, L, L)
    flush_s: Floats  # (C, A, L, L)
    cut_s: Floats  # (2, L, C, A, C, A)
    room: Integers  # (C, L, L)
    first_s: Floats  # (C,)

    @property
    def num_layers(self) -> int:
        return len(self.layer_s[0, 0])

    @property
    def work_s(self) -> None:
        return None

    @property
    def line_s(self) -> None:
        return None

    @property
    def units(self) -> tuple[int, ...]:
        return (1,) * len(self.num_devices)

    @property
    def speeds(self) -> tuple[float, ...]:
        return (1.0,) * len(self.num_devices)

    @property
    def floor_s(self) -> Floats:
        return self.first_s

    def stages(self, firsts: Integers, lasts: Integers, choices: Integers, places: Integers, /) -> StageSeconds:
        return StageSeconds(
            forward_s=self.layer_s[0, choices, firsts, lasts],
            backward_s=self.layer_s[1, choices, firsts, lasts],
            flush_s=self.flush_s[choices, places, firsts, lasts],
            most_in_flight=self.room[choices, firsts, lasts],
        )

    def out_s(self, lasts: Integers, choices: Integers, places: Integers, used: Integers, /) -> Floats:
        least = self.cut_s.min(axis=(4, 5))[:, np.minimum(lasts + 1, self.num_layers - 1), choices, places]
        return np.where(lasts + 1 < self.num_layers, least, 0.0)

    def in_s(self, firsts: Integers, choices: Integers, places: Integers, used: Integers, /) -> Floats:
        return np.where(firsts > 0, self.cut_s.min(axis=(2, 3))[:, firsts, choices, places], 0.0)

    def boundary_s(
        self, cuts: Integers, lefts: Integers, left_places: Integers, rights: Integers, places: Integers, /
    ) -> Floats:
        return self.cut_s[:, cuts, lefts, left_places, rights, places]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What one configuration takes, read off the drawn numbers one by one."""

    forward_s: list[float]
    backward_s: list[float]
    out_s: list[float]
    back_s: list[float]
    flush_s: list[float]
    fits: bool


def times_of(costs: Drawn, stages: PipelineStages, schedule: Schedule) -> Times:
    index = {(one.type_index, one.num_devices): position for position, one in enumerate(costs.choices)}
    used, n, m = [0] * len(costs.num_devices), len(stages), schedule.num_microbatches
    before: tuple[int, ...] = ()
    rows: list[list[float]] = [[], [], [], [], []]
    fits = True
    for position, (first, last, kind, taken) in enumerate(stages):
        c, place = index[kind, taken], used[kind] % costs.num_places[kind]
        fits &= bool(costs.room[c, first, last] >= (m if schedule.is_gpipe else min(m, n - position)))
        rows[0].append(float(costs.layer_s[0, c, first, last]))
        rows[1].append(float(costs.layer_s[1, c, first, last]))
        rows[4].append(float(costs.flush_s[c, place, first, last]))
        if position:
            rows[2].append(float(costs.cut_s[0, first, *before, c, place]))
            rows[3].append(float(costs.cut_s[1, first, *before, c, place]))
        before = (c, place)
        used[kind] += taken
    return Times(
        forward_s=rows[0], backward_s=rows[1], out_s=rows[2], back_s=rows[3], flush_s=rows[4], fits=fits
    )  # fmt: skip


def simulated_s(times: Times, schedule: Schedule) -> float:
    asked = PipelineTimes(
        forward_s=times.forward_s,
        backward_s=times.backward_s,
        output_s=times.out_s,
        error_s=times.back_s,
        sync_s=times.flush_s,
    )
    name = "gpipe" if schedule.is_gpipe else "1f1b"
    return simulate(asked, num_microbatches=schedule.num_microbatches, schedule=name).makespan_s


def bound_of(times: Times, schedule: Schedule) -> float:
    return bound_s(times.forward_s, times.backward_s, times.out_s, times.back_s, times.flush_s, schedule)


def written_bound_s(times: Times, schedule: Schedule) -> float:
    """E of the first stage, term by term as the chapter writes it, on plain numbers."""
    f, b, n, m = times.forward_s, times.backward_s, len(times.forward_s), schedule.num_microbatches
    held = [m if schedule.is_gpipe else min(m, n - s) for s in range(n)]
    trip_s = first_s = last_s = finish_s = flushed_s = drained_s = 0.0  # R, G, H, F, E, L
    known_drained_s = [0.0] * n
    for s in reversed(range(n)):
        w, k = f[s] + b[s], held[s]
        if s < n - 1:
            cf, cb = times.out_s[s], times.back_s[s]
            firsts, lasts = [cf + cb + first_s], [cf + cb + last_s]
            if schedule.is_gpipe:
                firsts, lasts = [*firsts, m * cf + cb + trip_s], [*lasts, cf + m * cb + trip_s]
            finish_s = max(cf + cb + finish_s, (m - 1) * cf + max(lasts), (m - 1) * cb + max(firsts))
            flushed_s, drained_s = cf + max(flushed_s, (m - 1) * cf + drained_s), cf + drained_s
            trip_s, first_s, last_s = cf + cb + trip_s, max(firsts), max(lasts)
        trip_s += w
        firsts, lasts, finishes, start_s = [w + first_s], [w + last_s], [w + finish_s], (m - 1) * f[s]
        if schedule.is_gpipe:
            firsts, lasts = [*firsts, (m - 1) * f[s] + trip_s], [*lasts, trip_s + (m - 1) * b[s]]
        else:
            firsts, lasts = [*firsts, k * f[s] + b[s]], [*lasts, f[s] + k * b[s]]
            z: list[float] = []
            for t in range(s, n):
                ahead, back = max([*f[: t + 1], *times.out_s[:t]]), max([*b[s : t + 1], *times.back_s[s:t]])
                z.append(sum(f[s : t + 1]) + sum(b[s : t + 1]) + sum(times.out_s[s:t]) + sum(times.back_s[s:t]))
                more = held[t] - 1
                firsts, lasts = [*firsts, z[-1] + more * ahead], [*lasts, z[-1] + more * back]
                ways = [more * (ahead + back) + (m - held[t]) * (f[t] + b[t])]
                ways += [(m - 1) * ahead + more * back, more * ahead + (m - 1) * back]
                finishes.append(z[-1] + max(ways))
            start_s = (m - 1) * max([*f[: s + 1], *times.out_s[:s]])
            if k < m:
                rests = [divmod(m - 1 - k, size) for size in range(1, len(z) + 1)]
                between_s = max(t * one + j * w for (t, j), one in zip(rests, z, strict=True))
                start_s = max(start_s, max(firsts) + between_s)
        first_s, last_s = max(firsts), max(lasts)
        finish_s = max(start_s + last_s, first_s + (m - 1) * b[s], *finishes)
        drained_s = max(last_s + times.flush_s[s], f[s] + drained_s)
        flushed_s = max(finish_s + times.flush_s[s], f[s] + flushed_s, start_s + drained_s)
        known_drained_s[s] = drained_s
        if not schedule.is_gpipe and k < m:
            for d, t in ((d, t) for d in range(n - s) for t in range(s, n)):
                turns, left = divmod(m - 1 - k, d + 1) if d else (0, m - 1 - k)
                onward_s = sum(f[s:t]) + sum(times.out_s[s:t]) + left * (f[t] + b[t]) + known_drained_s[t]
                flushed_s = max(flushed_s, first_s + turns * z[d] + onward_s)
    return flushed_s


def floor_of(costs: Drawn, stages: PipelineStages) -> float:
    index = {(one.type_index, one.num_devices): position for position, one in enumerate(costs.choices)}
    return float(costs.first_s[index[stages[0][2:]]])


@st.composite
def drawn_costs(
    draw: st.DrawFn, most_layers: int = 4, most_devices: tuple[int, ...] = (3, 2), least_layers: int = 1
) -> Drawn:
    """Small whole numbers, so that ties are common; memory that is sometimes short."""
    num_types = draw(st.integers(1, len(most_devices)))
    num_devices = tuple(draw(st.integers(1, most)) for most in most_devices[:num_types])
    num_places = tuple(draw(st.sampled_from([1, 2])) for _ in num_devices)
    choices = tuple(
        Choice(type_index=kind, num_devices=number)
        for kind, most in enumerate(num_devices)
        for number in range(1, most + 1)
    )
    layers, c, a = draw(st.integers(least_layers, most_layers)), len(choices), max(num_places)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scarce, slow, idle = (draw(st.booleans()) for _ in range(3))
    return Drawn(
        num_devices=num_devices,
        num_places=num_places,
        choices=choices,
        layer_s=rng.integers(0, 9, (2, c, layers, layers)).astype(float),
        flush_s=rng.integers(0, 9, (c, a, layers, layers)).astype(float),
        cut_s=rng.integers(0, 9 if slow else 2, (2, layers, c, a, c, a)).astype(float),
        room=rng.integers(0, 5, (c, layers, layers)) if scarce else np.full((c, layers, layers), 99),
        first_s=rng.integers(0, 60, c).astype(float) * idle,
    )


schedules = st.builds(Schedule, num_microbatches=st.integers(1, 6), is_gpipe=st.booleans())


@dataclass(frozen=True, slots=True)
class Repeated:
    """The same costs several times over, as those of several sources."""

    costs: Drawn
    times: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.costs, name)

    @property
    def choices(self) -> tuple[Choice, ...]:
        return self.costs.choices * self.times

    @property
    def floor_s(self) -> Floats:
        return np.tile(self.costs.floor_s, self.times)

    def stages(self, firsts: Integers, lasts: Integers, choices: Integers, places: Integers, /) -> StageSeconds:
        return self.costs.stages(firsts, lasts, choices % len(self.costs.choices), places)

    def out_s(self, lasts: Integers, choices: Integers, places: Integers, used: Integers, /) -> Floats:
        return self.costs.out_s(lasts, choices % len(self.costs.choices), places, used)

    def in_s(self, firsts: Integers, choices: Integers, places: Integers, used: Integers, /) -> Floats:
        return self.costs.in_s(firsts, choices % len(self.costs.choices), places, used)

    def boundary_s(
        self, cuts: Integers, lefts: Integers, left_places: Integers, rights: Integers, places: Integers, /
    ) -> Floats:
        count = len(self.costs.choices)
        return self.costs.boundary_s(cuts, lefts % count, left_places, rights % count, places)


def hold_against_every_pipeline(costs: Drawn, schedule: Schedule, found: Solution[PipelineStages]) -> None:
    def cost(stages: PipelineStages) -> float:
        times = times_of(costs, stages, schedule)
        return max(simulated_s(times, schedule), floor_of(costs, stages)) if times.fits else math.inf

    truth = best_pipeline(costs.num_layers, costs.num_devices, cost)
    assert found.status is truth.status
    assert found.objective == pytest.approx(truth.objective)
    assert found.bound <= found.objective


def simulate_in_order(
    costs: Drawn, schedule: Schedule, *, is_open: bool, tables: TablesOfOne | None = None
) -> Solution[PipelineStages]:
    """Simulate candidates until the next bound is no better than the best of them."""
    numbers = range(1, min(costs.num_layers, sum(costs.num_devices)) + 1)
    ordered = BestFirst(costs, schedule, numbers, Search(), is_open=is_open, tables=tables)
    best, value = math.inf, None
    while (candidate := ordered.next(best)) is not None:
        stages = plain(costs, candidate.stages)
        times = times_of(costs, stages, schedule)
        assert times.fits
        seconds = max(simulated_s(times, schedule), floor_of(costs, stages))
        assert candidate.bound <= seconds + 1e-9
        if seconds < best:
            best, value = seconds, stages
    status = Status.INFEASIBLE if value is None else Status.OPTIMAL
    return Solution(status=status, objective=best, bound=min(best, ordered.bound), value=value)


def plain(costs: Drawn, stages: Sequence[Stage]) -> PipelineStages:
    kinds = [costs.choices[one.choice] for one in stages]
    return tuple(
        (one.first, one.last, kind.type_index, kind.num_devices) for one, kind in zip(stages, kinds, strict=True)
    )


times_s = st.lists(whole_s, min_size=1, max_size=5)


@settings(max_examples=600)
@given(st.data(), st.integers(1, 5), st.builds(Schedule, num_microbatches=st.integers(1, 14), is_gpipe=st.booleans()))
def test_no_simulation_is_below_the_bound(data: st.DataObject, n: int, schedule: Schedule) -> None:
    rows = [data.draw(st.lists(whole_s, min_size=size, max_size=size)) for size in (n, n, n - 1, n - 1, n)]
    times = Times(forward_s=rows[0], backward_s=rows[1], out_s=rows[2], back_s=rows[3], flush_s=rows[4], fits=True)
    assert bound_of(times, schedule) <= simulated_s(times, schedule) + 1e-9


@settings(max_examples=300)
@given(st.data(), st.integers(1, 5), st.builds(Schedule, num_microbatches=st.integers(1, 14), is_gpipe=st.booleans()))
def test_the_bound_is_as_close_as_its_chapter_says(data: st.DataObject, n: int, schedule: Schedule) -> None:
    rows = [data.draw(st.lists(whole_s, min_size=size, max_size=size)) for size in (n, n, n - 1, n - 1, n)]
    times = Times(forward_s=rows[0], backward_s=rows[1], out_s=rows[2], back_s=rows[3], flush_s=rows[4], fits=True)
    assert bound_of(times, schedule) == pytest.approx(written_bound_s(times, schedule), rel=1e-12)


@pytest.mark.parametrize("is_gpipe", [False, True])
def test_the_bound_is_what_gpipe_takes_and_what_most_drawn_pipelines_take(is_gpipe: bool) -> None:
    rng, ratios = np.random.default_rng(7), []
    for _ in range(3_000):
        n, schedule = int(rng.integers(1, 8)), Schedule(num_microbatches=int(rng.integers(1, 20)), is_gpipe=is_gpipe)
        scales = 9 * rng.choice([1, 3, 10], 5)
        rows = [rng.integers(0, scale, size) for scale, size in zip(scales, (n, n, n - 1, n - 1, n), strict=True)]
        rows[4] *= int(rng.choice([1, 5]))
        f, b, out, back, flush = (one.astype(float).tolist() for one in rows)
        times = Times(forward_s=f, backward_s=b, out_s=out, back_s=back, flush_s=flush, fits=True)
        bound, seconds = bound_of(times, schedule), simulated_s(times, schedule)
        assert bound <= seconds + 1e-9
        ratios.append(bound / seconds if seconds else 1.0)
    assert min(ratios) > (1 - 1e-12 if is_gpipe else 0.85)
    assert np.mean(ratios) > (1 - 1e-12 if is_gpipe else 0.995)
    assert np.mean(np.array(ratios) > 1 - 1e-12) > (0.99 if is_gpipe else 0.75)


@pytest.mark.parametrize("is_gpipe", [False, True])
@pytest.mark.parametrize("num_stages", [1, 2, 4, 8])
def test_the_bound_of_equal_stages_is_the_simulation(num_stages: int, is_gpipe: bool) -> None:
    schedule = Schedule(num_microbatches=8, is_gpipe=is_gpipe)
    rows = [[1.0] * num_stages, [2.0] * num_stages, [0.0] * (num_stages - 1), [0.0] * (num_stages - 1)]
    times = Times(
        forward_s=rows[0], backward_s=rows[1], out_s=rows[2], back_s=rows[3], flush_s=[0.5] * num_stages, fits=True
    )
    assert (
        bound_of(times, schedule)
        == pytest.approx(simulated_s(times, schedule))
        == pytest.approx(3 * (7 + num_stages) + 0.5)
    )


def test_uneven_pipelines_behind_a_slow_boundary_are_bounded_by_what_they_take() -> None:
    """AlexNet on 32 devices of 25 Gbit/s: the first stage waits for errors that turn in the second and the third."""
    rows = [
        ([1.52, 0.0, 0.97, 0.01, 0.47, 0.12], [2.83, 0.0, 2.35, 0.01, 1.03, 0.31], [2.36, 0.94, 0.42, 0.42, 0.42], 8),
        ([1.34, 0.0, 0.97, 0.01, 0.53], [2.48, 0.0, 2.35, 0.01, 1.08], [2.36, 0.94, 0.42, 0.21], 8),
        ([1.88, 0.94, 0.02, 0.02, 0.83], [3.52, 2.18, 0.02, 0.02, 1.79], [3.76, 0.67, 0.67, 0.67], 5),
        ([12.81, 2.62, 0.43, 0.22], [22.14, 5.87, 0.9, 0.45], [12.74, 0.42, 0.83], 4),
    ]
    for forward_s, backward_s, sent_s, number in rows:
        flush_s = [12.89, *(31.19 if index == 1 else 1.23 for index in range(1, len(forward_s)))]
        times = Times(
            forward_s=forward_s, backward_s=backward_s, out_s=sent_s, back_s=sent_s, flush_s=flush_s, fits=True
        )
        schedule = Schedule(num_microbatches=number)
        assert bound_of(times, schedule) == pytest.approx(simulated_s(times, schedule))


def test_micro_batches_that_turn_before_the_last_ones_are_bounded_by_what_they_take() -> None:
    """OverFeat on 32 devices: the last micro-batches wait for an early turn, and then for each other a stage later."""
    rows = [
        ([1.64, 4.56, 3.47, 0.32, 0.01, 0.12], [2.94, 8.95, 6.55, 0.68, 0.02, 0.31], [9.36, 3.74, 0.8, 0.21, 0.42], 8),
        ([3.0, 4.1, 3.5, 0.4, 0.1], [5.4, 8.1, 6.6, 0.7, 0.3], [8.34, 3.34, 0.8, 0.4], 9),
    ]
    for forward_s, backward_s, sent_s, number in rows:
        flush_s = [2.25, 21.37, *[3.68] * (len(forward_s) - 2)]
        times = Times(
            forward_s=forward_s, backward_s=backward_s, out_s=sent_s, back_s=sent_s, flush_s=flush_s, fits=True
        )
        schedule = Schedule(num_microbatches=number)
        assert bound_of(times, schedule) == pytest.approx(simulated_s(times, schedule))


def test_the_bound_sees_transfers_that_one_forward_one_backward_cannot_hide() -> None:
    times = Times(forward_s=[1, 1], backward_s=[1, 1], out_s=[3], back_s=[3], flush_s=[0, 0], fits=True)
    schedule = Schedule(num_microbatches=8)
    assert bound_of(times, schedule) == pytest.approx(2 + 4 * (2 + 2 + 6))
    assert bound_of(times, schedule) <= simulated_s(times, schedule)


@settings(max_examples=250)
@given(drawn_costs(), schedules, st.booleans())
def test_simulating_in_the_order_of_bounds_agrees_with_every_pipeline_simulated(
    costs: Drawn, schedule: Schedule, is_open: bool
) -> None:
    hold_against_every_pipeline(costs, schedule, simulate_in_order(costs, schedule, is_open=is_open))


@settings(max_examples=120)
@given(drawn_costs(), st.lists(st.integers(1, 6), min_size=2, max_size=4), st.booleans(), st.booleans())
def test_with_tables_filled_together_every_source_agrees_with_every_pipeline_simulated(
    costs: Drawn, numbers: list[int], is_gpipe: bool, is_open: bool
) -> None:
    count = len(numbers)
    stack = Stack(num_microbatches=tuple(numbers), num_choices=(len(costs.choices),) * count, is_gpipe=is_gpipe)
    most = 0 if is_open else min(costs.num_layers, sum(costs.num_devices))
    tables = Tables(cast(PipelineCosts, Repeated(costs, count)), stack, most, Search())
    for source in range(count):
        schedule = stack.schedule(source)
        found = simulate_in_order(costs, schedule, is_open=is_open, tables=tables.of(source))
        hold_against_every_pipeline(costs, schedule, found)


@settings(max_examples=120)
@given(
    drawn_costs(),
    st.lists(st.integers(1, 6), min_size=2, max_size=4),
    st.booleans(),
    st.booleans(),
    st.sampled_from([math.inf, 1.5, 1.0]),
)
def test_sources_that_are_searched_together_give_what_each_gives_alone(
    costs: Drawn, numbers: list[int], is_gpipe: bool, is_open: bool, share: float
) -> None:
    count = len(numbers)
    stack = Stack(num_microbatches=tuple(numbers), num_choices=(len(costs.choices),) * count, is_gpipe=is_gpipe)
    stages = range(1, min(costs.num_layers, sum(costs.num_devices)) + 1)
    repeated = cast(PipelineCosts, Repeated(costs, count))
    tables = Tables(repeated, stack, 0 if is_open else max(stages), Search())
    alone = [
        BestFirst(costs, stack.schedule(one), stages, Search(), is_open=is_open, tables=tables.of(one))
        for one in range(count)
    ]
    cutoff = share * min(one.bound for one in alone) + 1.0 if share < math.inf else math.inf
    frontier = Frontier(repeated, stack, Search(), is_open=is_open)
    for source in range(count):
        frontier.add(source, tables.of(source), stages, cutoff)
    for source in np.random.default_rng(1).permutation(count).tolist():
        together, given_out, wanted = BestFirst.of(frontier, source), [], []
        while (candidate := together.next(cutoff)) is not None:
            given_out.append((candidate.bound, plain(cast(Drawn, repeated), candidate.stages)))
        while (candidate := alone[source].next(cutoff)) is not None:
            wanted.append((candidate.bound, plain(costs, candidate.stages)))
        assert [bound for bound, _ in given_out] == sorted(bound for bound, _ in given_out)
        assert sorted(given_out) == sorted(wanted)
        assert together.bound >= cutoff


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("num_stages", [1, 3])
def test_many_pipelines_are_bounded_in_parts_as_each_alone(num_stages: int, is_open: bool) -> None:
    count, rng = 11, np.random.default_rng(num_stages)
    columns, sent, rest = rng.random((3, num_stages, count)), rng.random((2, num_stages - 1, count)), rng.random((6, 1))
    m = rng.integers(1, 9, count)
    each = Schedules(num_microbatches=m, is_gpipe=False)
    held = np.minimum(m, np.arange(num_stages, 0, -1)[:, None])
    alone = [
        through(columns[..., i], held[:, i], sent[..., i], rest[:, 0], Schedule(num_microbatches=int(m[i])), is_open=is_open)
        for i in range(count)
    ]  # fmt: skip
    for most in (1, 10, 1_000):
        with patch.object(pipeline_bounds, "_MOST_STAGES", most):
            assert through(columns, held, sent, rest, each, is_open=is_open) == pytest.approx(np.array(alone))
            equal = through(columns, held[:, :1], sent, rest, Schedule(num_microbatches=int(m[0])), is_open=is_open)
            assert equal[0] == pytest.approx(float(alone[0]))
            assert equal.shape == (count,)


@settings(max_examples=60)
@given(drawn_costs(), st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(0, 9), st.booleans())
def test_sources_of_which_too_much_waits_end_with_a_true_bound_and_leave_the_passes_to_others(
    costs: Drawn, numbers: list[int], most: int, is_open: bool
) -> None:
    count, search = len(numbers), Search(questions_left=5_000)
    stack = Stack(num_microbatches=tuple(numbers), num_choices=(len(costs.choices),) * count, is_gpipe=False)
    stages = range(1, min(costs.num_layers, sum(costs.num_devices)) + 1)
    repeated = cast(PipelineCosts, Repeated(costs, count))
    tables = Tables(repeated, stack, 0 if is_open else max(stages), Search())
    with patch.object(pipelines, "_MOST_NODES", most), patch.object(pipelines, "_MOST_EXTENDED", 1):
        frontier = Frontier(repeated, stack, search, is_open=is_open)
        for source in range(count):
            frontier.add(source, tables.of(source), stages, math.inf)
        found = [BestFirst.of(frontier, source) for source in range(count)]
        best_s = [getattr(one.next(1e9), "bound", math.inf) for one in found]
    assert not search.is_counted_out
    for source, (one, given_s) in enumerate(zip(found, best_s, strict=True)):
        first = BestFirst(costs, stack.schedule(source), stages, Search(), is_open=is_open).next(1e9)
        true_s = math.inf if first is None else first.bound
        assert one.bound <= true_s if one.is_too_large else given_s == true_s


@settings(max_examples=250)
@given(drawn_costs(), schedules, st.booleans())
def test_candidates_come_in_the_order_of_their_bounds_and_none_is_left_out(
    costs: Drawn, schedule: Schedule, is_open: bool
) -> None:
    wanted = []
    for stages in all_pipelines(costs.num_layers, costs.num_devices):
        times = times_of(costs, stages, schedule)
        if times.fits:
            wanted.append((max(bound_of(times, schedule), floor_of(costs, stages)), stages))
    numbers = range(1, costs.num_layers + 1)
    ordered = BestFirst(costs, schedule, numbers, Search(), is_open=is_open)
    given_out = []
    while (candidate := ordered.next(math.inf)) is not None:
        given_out.append((candidate.bound, plain(costs, candidate.stages)))
    assert [bound for bound, _ in given_out] == sorted(bound for bound, _ in given_out)
    assert sorted(stages for _, stages in given_out) == sorted(stages for _, stages in wanted)
    assert [bound for bound, _ in given_out] == pytest.approx(sorted(bound for bound, _ in wanted))


@settings(max_examples=60)
@given(drawn_costs(least_layers=4, most_devices=(4,)), st.integers(7, 14), st.booleans())
def test_a_candidates_bound_is_its_own_where_micro_batches_are_many(
    costs: Drawn, num_microbatches: int, is_open: bool
) -> None:
    schedule = Schedule(num_microbatches=num_microbatches)  # terms of several stages come first here
    ordered = BestFirst(costs, schedule, (3, 4), Search(), is_open=is_open)
    while (candidate := ordered.next(math.inf)) is not None:
        stages = plain(costs, candidate.stages)
        own_s = max(bound_of(times_of(costs, stages, schedule), schedule), floor_of(costs, stages))
        assert candidate.bound == pytest.approx(own_s)


@settings(max_examples=25)
@given(drawn_costs(most_layers=6, least_layers=6, most_devices=(4, 4)), schedules)
def test_the_order_of_bounds_agrees_on_six_layers_and_four_devices_of_each_of_two_types(
    costs: Drawn, schedule: Schedule
) -> None:
    def cost(stages: PipelineStages) -> float:
        times = times_of(costs, stages, schedule)
        return max(bound_of(times, schedule), floor_of(costs, stages)) if times.fits else math.inf

    found = BestFirst(costs, schedule, range(1, 7), Search()).next(math.inf)
    truth = best_pipeline(costs.num_layers, costs.num_devices, cost)
    assert (math.inf if found is None else found.bound) == pytest.approx(truth.objective)


@settings(max_examples=150)
@given(drawn_costs(), schedules, st.data(), st.booleans())
def test_limits_on_stages_and_on_devices_used_are_kept_and_lose_nothing(
    costs: Drawn, schedule: Schedule, data: st.DataObject, is_open: bool
) -> None:
    number = data.draw(st.integers(1, costs.num_layers))
    shape = tuple(most + 1 for most in costs.num_devices)
    allowed = np.random.default_rng(data.draw(st.integers(0, 999))).random(shape) < 0.4

    def cost(stages: PipelineStages) -> float:
        times = times_of(costs, stages, schedule)
        used = [0] * len(costs.num_devices)
        for _, _, kind, taken in stages:
            used[kind] += taken
        may = times.fits and len(stages) == number and bool(allowed[tuple(used)])
        return max(bound_of(times, schedule), floor_of(costs, stages)) if may else math.inf

    found = BestFirst(costs, schedule, [number], Search(), allowed=allowed, is_open=is_open).next(math.inf)
    truth = best_pipeline(costs.num_layers, costs.num_devices, cost)
    assert (math.inf if found is None else found.bound) == pytest.approx(truth.objective)


@settings(max_examples=100)
@given(drawn_costs(), schedules, st.integers(0, 12))
def test_what_is_followed_at_once_is_whole_wherever_a_limit_strikes(
    costs: Drawn, schedule: Schedule, num_questions: int
) -> None:
    search = Search()
    ordered = BestFirst(costs, schedule, range(1, costs.num_layers + 1), search)
    search.questions_left = num_questions
    for candidate in ordered.dive(3):
        assert candidate.stages[-1].last == costs.num_layers - 1


def test_a_search_that_is_over_claims_no_bound() -> None:
    costs = Drawn(
        num_devices=(1,), num_places=(1,), choices=(Choice(type_index=0, num_devices=1),), layer_s=np.ones((2, 1, 1, 1)),
        flush_s=np.zeros((1, 1, 1, 1)), cut_s=np.zeros((2, 1, 1, 1, 1, 1)), room=np.ones((1, 1, 1), dtype=int), first_s=np.zeros(1),
    )  # fmt: skip
    over = BestFirst(costs, Schedule(num_microbatches=1), [1], Search(time_limit_s=0.0))
    assert over.next(math.inf) is None
    assert over.bound == 0.0
    done = BestFirst(costs, Schedule(num_microbatches=1), [1], Search())
    assert done.next(math.inf) is not None
    assert done.bound == math.inf


@settings(max_examples=100)
@given(st.data(), st.integers(1, 6), st.integers(1, 4))
def test_cuts_for_runs_of_different_speeds_are_cuts_and_no_longer_than_the_same_for_the_slowest(
    data: st.DataObject, num_layers: int, parts: int
) -> None:
    parts = min(parts, num_layers)
    seconds = data.draw(st.lists(st.integers(0, 9).map(float), min_size=num_layers, max_size=num_layers))
    total = np.concatenate(([0.0], np.cumsum(seconds)))
    speeds = data.draw(st.lists(st.integers(1, 4), min_size=parts, max_size=parts))

    def longest(ends: Sequence[int]) -> float:
        starts = [0, *(end + 1 for end in ends[:-1])]
        return max(sum(seconds[i : j + 1]) / v for v, i, j in zip(speeds, starts, ends, strict=True))

    found = balanced_cuts_of([total / v for v in speeds])
    assert len(found) == parts and list(found) == sorted(set(found)) and found[-1] == num_layers - 1
    same = balanced_cuts(np.array(seconds), parts)
    starts = [0, *(end + 1 for end in same[:-1])]
    most = max(sum(seconds[i : j + 1]) for i, j in zip(starts, same, strict=True)) / min(speeds)
    assert longest(found) <= most * (1 + 1e-9)


@pytest.mark.parametrize(
    ("seconds", "parts"),
    [(np.array([1 - 1.5e-12, 1.0]), 2), (np.full(9_679, 0.217), 1_186), (np.tile([0.3, 0.7, 0.1], 3_000), 1_568)],
)
def test_cuts_of_layers_that_differ_by_rounding_end_and_are_balanced(seconds: Floats, parts: int) -> None:
    with patch.object(chain, "_filled", wraps=chain._filled) as tried:
        ends = balanced_cuts_of([np.concatenate(([0.0], np.cumsum(seconds)))] * parts)
    assert tried.call_count < chain._MOST_TRIALS  # else rounding would keep it from ending
    runs = np.add.reduceat(seconds, [0, *(end + 1 for end in ends[:-1])])
    assert (len(ends), ends[-1]) == (parts, len(seconds) - 1)
    least = max(seconds.max(), seconds.sum() / parts)
    assert least * (1 - 1e-9) <= runs.max() <= least + seconds.max()


@given(st.lists(st.integers(0, 20).map(float), min_size=1, max_size=9), st.data())
def test_balanced_cuts_make_the_longest_run_as_short_as_any_cuts_do(seconds: list[float], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(seconds)))

    def longest(ends: Sequence[int]) -> float:
        starts = [0, *(end + 1 for end in ends[:-1])]
        return max(sum(seconds[i : j + 1]) for i, j in zip(starts, ends, strict=True))

    found = balanced_cuts(np.array(seconds), parts)
    assert len(found) == parts and list(found) == sorted(set(found)) and found[-1] == len(seconds) - 1
    truth = min(longest(ends) for ends in all_groupings(len(seconds)) if len(ends) == parts)
    assert longest(found) == pytest.approx(truth)
