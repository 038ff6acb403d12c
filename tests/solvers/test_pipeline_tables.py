"""What a cutoff, units and passes over many layers leave out of the tables is nothing that a search would give."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.cost import Floats
from planner.search import Search
from planner.solvers import pipeline_tables
from planner.solvers.pipeline_bounds import FLUSHED, Integers, Schedule
from planner.solvers.pipeline_tables import Choice, LeastDevices, Stack, StageSeconds, Tables
from planner.solvers.pipelines import BestFirst, Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Seconds of layers by type, shared by the devices of a stage, with losses; the rest drawn for itself."""

    num_devices: tuple[int, ...]
    choices: tuple[Choice, ...]
    sums_s: Floats  # (2, T, L + 1)
    losses: Floats  # (C, L, L), >= 1
    flush_s: Floats  # (C, L, L)
    cut_s: Floats  # (L + 1)
    room: Integers  # (C, L, L)
    units: tuple[int, ...]

    @property
    def num_layers(self) -> int:
        return len(self.cut_s) - 1

    @property
    def num_places(self) -> tuple[int, ...]:
        return (1,) * len(self.num_devices)

    @property
    def work_s(self) -> Floats:
        return np.asarray(self.sums_s[:, 0].sum(axis=0))

    @property
    def speeds(self) -> tuple[float, ...]:
        seconds = np.diff(self.sums_s.sum(axis=0), axis=1)
        return tuple((seconds[0] / seconds).max(axis=1).tolist())

    @property
    def line_s(self) -> Floats:
        both_s = self.sums_s.sum(axis=0)[[one.type_index for one in self.choices]]
        least = self.losses.min(axis=(1, 2)) / [one.num_devices for one in self.choices]
        return np.asarray(both_s * least[:, None])

    @property
    def floor_s(self) -> Floats:
        return np.zeros(len(self.choices))

    def stages(self, firsts: Integers, lasts: Integers, choices: Integers, places: Integers, /) -> StageSeconds:
        kinds = np.array([one.type_index for one in self.choices])[choices]
        shared = self.losses[choices, firsts, lasts] / np.array([one.num_devices for one in self.choices])[choices]
        forward_s, backward_s = (row[kinds, lasts + 1] - row[kinds, firsts] for row in self.sums_s)
        at = (choices, firsts, lasts)
        return StageSeconds(
            forward_s=forward_s * shared,
            backward_s=backward_s * shared,
            flush_s=self.flush_s[at] + 0.0 * places,
            most_in_flight=self.room[at],
        )

    def out_s(self, lasts: Integers, choices: Integers, places: Integers, used: Integers, /) -> Floats:
        row = self.cut_s[lasts + 1] + 0.0 * (choices + places)
        return np.array([row, row])

    def in_s(self, firsts: Integers, choices: Integers, places: Integers, used: Integers, /) -> Floats:
        row = self.cut_s[firsts] + 0.0 * (choices + places)
        return np.array([row, row])

    def boundary_s(
        self, cuts: Integers, lefts: Integers, left_places: Integers, rights: Integers, places: Integers, /
    ) -> Floats:
        return np.array([self.cut_s[cuts]] * 2)


@st.composite
def lines(draw: st.DrawFn) -> Line:
    num_devices = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    layers = draw(st.integers(1, 6))
    choices = tuple(
        Choice(type_index=kind, num_devices=r) for kind, most in enumerate(num_devices) for r in range(1, most + 1)
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    seconds = rng.integers(1, 9, (2, len(num_devices), layers)).astype(float)
    c, is_wasteful, is_scarce = len(choices), draw(st.booleans()), draw(st.booleans())
    cut_s = rng.integers(0, 4, layers + 1).astype(float) * draw(st.booleans())
    cut_s[[0, -1]] = 0.0
    return Line(
        num_devices=num_devices,
        choices=choices,
        sums_s=np.concatenate((np.zeros((2, len(num_devices), 1)), np.cumsum(seconds, axis=2)), axis=2),
        losses=1.0 + rng.random((c, layers, layers)) * is_wasteful,
        flush_s=rng.integers(0, 9, (c, layers, layers)).astype(float) * is_wasteful,
        cut_s=cut_s,
        room=rng.integers(0, 5, (c, layers, layers)) if is_scarce else np.full((c, layers, layers), 99),
        units=tuple(draw(st.sampled_from([1, 1, 2, 3])) for _ in num_devices),
    )


def below(
    line: Line, schedule: Schedule, cutoff: float, most: float, *, is_open: bool, tables: Tables | None = None
) -> list[Candidate]:
    """All candidates with a bound below ``most`` of a search whose tables know a cutoff."""
    numbers = range(1, min(line.num_layers, sum(line.num_devices)) + 1)
    filled = None if tables is None else tables.of(0)
    ordered = BestFirst(line, schedule, numbers, Search(), cutoff=cutoff, is_open=is_open, tables=filled)
    found = []
    while (candidate := ordered.next(most)) is not None:
        found.append(candidate)
    assert ordered.bound >= most
    return found


def plain(found: list[Candidate]) -> list[tuple[float, tuple[tuple[int, int, int], ...]]]:
    return sorted(
        (round(one.bound, 9), tuple((stage.first, stage.last, stage.choice) for stage in one.stages)) for one in found
    )


schedules = st.builds(Schedule, num_microbatches=st.integers(1, 6), is_gpipe=st.booleans())


@settings(max_examples=60, deadline=None)
@given(lines(), schedules, st.booleans(), st.integers(0, 12), st.sampled_from([1, 7, 200_000]))
def test_a_table_is_the_same_however_many_layers_and_stages_are_looked_at_together(
    line: Line, schedule: Schedule, is_open: bool, rank: int, most_at_once: int
) -> None:
    some = sorted(one.bound for one in below(line, schedule, math.inf, math.inf, is_open=is_open))[: rank + 1]
    tables, cutoff = [], some[-1] * (1 + 1e-6) if some else 1.0
    for most_stages, most_pairs in ((200_000, 1_000_000), (most_at_once, 1_000_000), (most_at_once, 1)):
        with (
            patch.object(pipeline_tables, "_MOST_AT_ONCE", most_stages),
            patch.object(pipeline_tables, "_MOST_PAIRS", most_pairs),
        ):
            tables.append(Tables(line, Stack.of(schedule, line), most_stages_of(line, is_open), Search(), cutoff))
    assert np.array_equal(tables[0].entries, tables[1].entries)
    assert np.array_equal(tables[0].entries, tables[2].entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(Line):
    """A line with micro-batches of several sizes, each with its own choices, losses, exchanges and room."""

    sizes: tuple[int, ...]
    num_choices: tuple[int, ...]

    @property
    def work_s(self) -> Floats:
        found = self.sums_s[:, 0].sum(axis=0) * np.array(self.sizes)[:, None]
        return np.asarray(found if len(self.sizes) > 1 else found[0])

    def of(self, source: int) -> "Sizes":
        low = sum(self.num_choices[:source])
        mine = slice(low, low + self.num_choices[source])
        return replace(
            self,
            choices=self.choices[mine],
            losses=self.losses[mine],
            flush_s=self.flush_s[mine],
            room=self.room[mine],
            sizes=self.sizes[source : source + 1],
            num_choices=self.num_choices[source : source + 1],
        )


@st.composite
def many_sizes(draw: st.DrawFn) -> Sizes:
    line, sizes = draw(lines()), tuple(draw(st.lists(st.integers(1, 3), min_size=2, max_size=4)))
    c, layers = len(line.choices), line.num_layers
    kept = [sorted(draw(st.sets(st.integers(0, c - 1), min_size=1))) for _ in sizes]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    losses = [size * line.losses[rows] * (1.0 + rng.random((len(rows), layers, layers)) * draw(st.booleans()))
              for size, rows in zip(sizes, kept, strict=True)]  # fmt: skip
    every = [row for rows in kept for row in rows]
    return Sizes(
        num_devices=line.num_devices,
        choices=tuple(line.choices[row] for row in every),
        sums_s=line.sums_s,
        losses=np.concatenate(losses),
        flush_s=line.flush_s[every],
        cut_s=line.cut_s,
        room=line.room[every],
        units=line.units,
        sizes=sizes,
        num_choices=tuple(len(rows) for rows in kept),
    )


def most_stages_of(line: Line, is_open: bool) -> int:
    return 0 if is_open else min(line.num_layers, sum(line.num_devices))


@settings(max_examples=150, deadline=None)
@given(
    many_sizes(),
    st.lists(st.integers(1, 6), min_size=4, max_size=4),
    st.booleans(),
    st.booleans(),
    st.sampled_from([math.inf, 0.9, 1.0, 1.2, 2.0]),
    st.sampled_from([(1, 1), (7, 1_000_000), (200_000, 1_000_000)]),
    st.integers(0, 99),
)
def test_tables_filled_together_are_those_filled_alone(
    line: Sizes,
    numbers: list[int],
    is_gpipe: bool,
    is_open: bool,
    slack: float,
    limits: tuple[int, int],
    drawn: int,
) -> None:
    """To the bit, in short and long passes."""
    shape = tuple(number + 1 for number in line.num_devices)
    allowed = np.random.default_rng(drawn).random(shape) < 0.7 if set(line.units) == {1} else None
    stack = Stack(num_microbatches=tuple(numbers[: len(line.sizes)]), num_choices=line.num_choices, is_gpipe=is_gpipe)
    rate = sum(number * speed for number, speed in zip(line.num_devices, line.speeds, strict=True))
    least = min(m * float(one[-1]) / rate for m, one in zip(stack.num_microbatches, line.work_s, strict=True))
    most, cutoff = most_stages_of(line, is_open), 1.5 * slack * least + 4.0
    with patch.multiple(pipeline_tables, _MOST_AT_ONCE=limits[0], _MOST_PAIRS=limits[1]):
        together = Tables(line, stack, most, Search(), cutoff, allowed)
    for source in range(len(stack)):
        one, schedule = line.of(source), stack.schedule(source)
        alone = Tables(one, Stack.of(schedule, one), most, Search(), cutoff, allowed).of(0)
        assert np.array_equal(together.of(source).entries, alone.entries)
        assert np.array_equal(together.of(source).is_viable, alone.is_viable)


def test_tables_that_a_limit_cuts_short_claim_nothing_for_any_of_their_sources() -> None:
    layer_s = np.broadcast_to(np.arange(3.0), (2, 1, 3))
    line = Sizes(
        num_devices=(1,), choices=(Choice(type_index=0, num_devices=1),) * 2, sums_s=layer_s, losses=np.ones((2, 2, 2)),
        flush_s=np.zeros((2, 2, 2)), cut_s=np.zeros(3), room=np.full((2, 2, 2), 9), units=(1,), sizes=(1, 1), num_choices=(1, 1),
    )  # fmt: skip
    stack = Stack(num_microbatches=(1, 2), num_choices=(1, 1))
    for search, bounds in ((Search(questions_left=0), [0.0, 0.0]), (Search(), [4.0, 8.0])):
        tables = Tables(line, stack, 1, search)
        found = [
            BestFirst(line.of(source), stack.schedule(source), [1], Search(), tables=tables.of(source))
            for source in range(2)
        ]
        assert [one.bound for one in found] == bounds


@settings(max_examples=200, deadline=None)
@given(
    lines(),
    schedules,
    st.booleans(),
    st.integers(0, 12),
    st.sampled_from([1, 7, 200_000]),
    st.sampled_from([0, 20_000_000]),
)
def test_a_cutoff_units_passes_and_viable_stages_lose_no_candidate_below_the_cutoff(
    line: Line, schedule: Schedule, is_open: bool, rank: int, most_at_once: int, most_viable: int
) -> None:
    every = below(line, schedule, math.inf, math.inf, is_open=is_open)
    assume_some = sorted(one.bound for one in every)[: rank + 1]
    cutoff = assume_some[-1] * (1 + 1e-6) if assume_some else 1.0
    with patch.multiple(pipeline_tables, _MOST_AT_ONCE=most_at_once, _MOST_VIABLE=most_viable):
        kept = below(line, schedule, cutoff, cutoff, is_open=is_open)
    assert plain(kept) == plain([one for one in every if one.bound < cutoff])


@settings(max_examples=120, deadline=None)
@given(lines(), schedules, st.booleans(), st.integers(0, 12))
def test_tables_of_the_stages_that_open_ones_of_one_forward_one_backward_left_lose_no_candidate_below_the_cutoff(
    line: Line, schedule: Schedule, is_open: bool, rank: int
) -> None:
    some = sorted(one.bound for one in below(line, schedule, math.inf, math.inf, is_open=is_open))[: rank + 1]
    cutoff = some[-1] * (1 + 1e-6) if some else 1.0
    looser = Stack.of(Schedule(num_microbatches=schedule.num_microbatches), line)
    known = Tables(line, looser, 0, Search(), cutoff * (1 + 1e-6)).of(0).is_viable[0]
    stack, most = Stack.of(schedule, line), most_stages_of(line, is_open)
    every, part = (Tables(line, stack, most, Search(), cutoff, viable=viable) for viable in (None, known))
    found, same = (below(line, schedule, cutoff, cutoff, is_open=is_open, tables=one) for one in (every, part))
    assert plain(found) == plain(same)
    assert not (part.is_alive & ~every.is_alive).any()
    assert (part.entries >= every.entries)[:, part.is_alive].all()
    assert not (part.of(0).is_viable & ~every.of(0).is_viable).any()


@pytest.mark.parametrize(("room", "fits"), [(1, False), (2, True)])
def test_under_gpipe_a_stage_counts_that_has_just_room_for_all_micro_batches(room: int, fits: bool) -> None:
    line = equal_layers(3, [1])
    line = replace(line, room=np.full_like(line.room, room))
    looser, schedule = (Schedule(num_microbatches=2, is_gpipe=is_gpipe) for is_gpipe in (False, True))
    viable = Tables(line, Stack.of(looser, line), 0, Search(), 1e3).of(0).is_viable[0]
    assert viable.any()
    tables = Tables(line, Stack.of(schedule, line), 0, Search(), 1e3, viable=viable)
    assert bool(below(line, schedule, 1e3, 1e3, is_open=True, tables=tables)) == fits


def test_the_way_of_the_stages_ahead_leaves_what_follows_less_of_the_cutoff() -> None:
    """6 equal layers on 4 devices by one or two: 4 micro-batches of 2 s a layer on one of them, below 30 s."""
    line = equal_layers(6, [1, 2])
    stack = Stack.of(Schedule(num_microbatches=4), line)
    tables = Tables(line, stack, 0, Search(), 30.0)
    # Ahead of layer 3: one device takes 6 s of each, two 3 s, one and two behind it 2 + 2 s; none is left of four.
    assert tables._slack_s[3] == pytest.approx([0, 24, 27, 26, 0])
    # Ahead of layer 4 one device would take 8 s: 32 s of all.
    assert tables._slack_s[4] == pytest.approx([0, 0, 26, 25, 0])
    assert tables._slack_s[0] == pytest.approx([30, 0, 0, 0, 0])
    assert np.isinf(Tables(line, stack, 0, Search())._slack_s).all()


@pytest.mark.parametrize("is_open", [True, False])
def test_what_stages_do_after_their_last_backward_takes_nothing_of_the_way_back(is_open: bool) -> None:
    """Two layers on a device each; the last one flushes for 9 s, while errors pass back through the first."""
    line = equal_layers(2, [1])
    line = replace(line, num_devices=(2,), flush_s=np.broadcast_to([[0.0, 9.0], [0.0, 9.0]], (1, 2, 2)))
    every = below(line, Schedule(num_microbatches=2), math.inf, math.inf, is_open=is_open)
    split = [one for one in every if len(one.stages) == 2]
    cutoff = split[0].bound * (1 + 1e-6)
    assert plain(below(line, Schedule(num_microbatches=2), cutoff, cutoff, is_open=is_open)) == plain(split)


def test_where_devices_are_counted_in_units_a_stage_of_fewer_leads_to_states_that_no_move_does() -> None:
    """Two stages of one device each, where two count as one: neither takes a unit, and yet one unit is left of two."""
    line = replace(equal_layers(2, [1]), units=(2,))
    every = below(line, Schedule(num_microbatches=4), math.inf, math.inf, is_open=True)
    cutoff = every[0].bound * (1 + 1e-6)
    assert len(every[0].stages) == 2
    assert plain(below(line, Schedule(num_microbatches=4), cutoff, cutoff, is_open=True)) == plain(every[:1])


def equal_layers(layers: int, sizes: Sequence[int]) -> Line:
    """Layers of a second each way, without loss, on 4 devices by stages of some numbers of them."""
    return Line(
        num_devices=(4,),
        choices=tuple(Choice(type_index=0, num_devices=size) for size in sizes),
        sums_s=np.broadcast_to(np.arange(layers + 1.0), (2, 1, layers + 1)),
        losses=np.ones((len(sizes), layers, layers)),
        flush_s=np.zeros((len(sizes), layers, layers)),
        cut_s=np.zeros(layers + 1),
        room=np.full((len(sizes), layers, layers), 99),
        units=(1,),
    )


def test_where_whole_layers_need_more_devices_than_there_are_no_stage_is_looked_at() -> None:
    """5 equal layers on 4 devices that take one or more each: a quarter of the work is less than any of two layers."""
    line = equal_layers(5, [1])
    stack = Stack.of(Schedule(num_microbatches=100), line)
    assert Tables(line, stack, 0, Search(), cutoff=100 * 2 * 1.9).num_tried == 0
    assert Tables(line, stack, 0, Search(), cutoff=100 * 2 * 2.1).is_alive[0, 0, 0]
    assert [LeastDevices.of(line, stack, 100 * 2 * most).line for most in (1.9, 2.1, math.inf)] == [5.0, 3.0, 1.0]


def test_it_is_asked_whether_anything_fits_on_the_devices_that_the_cutoff_leaves_a_stage() -> None:
    """6 equal layers on 4 devices by one or two: a stage of two layers in time has one device, one of four has two."""
    line, asked = equal_layers(6, [1, 2]), []

    def fits(least: Integers, ahead: Integers) -> bool:
        asked.append((least, ahead))
        return False

    tables = Tables(line, Stack.of(Schedule(num_microbatches=100), line), 0, Search(), 100 * 2 * 2.1, None, [fits])
    ((least, ahead),) = asked
    assert least[0].tolist() == [1, 1, 2, 2, 5, 5] and ahead.tolist() == [0, 1, 1, 2, 2, 3, 3]
    assert tables.is_complete and not tables.num_tried and not tables.is_alive[0, 0, 0]


@settings(max_examples=80, deadline=None)
@given(many_sizes(), st.booleans(), st.integers(0, 99))
def test_sources_of_which_nothing_fits_are_left_out_and_the_others_are_as_alone(
    line: Sizes, is_gpipe: bool, drawn: int
) -> None:
    line = replace(line, num_devices=line.num_devices[:1], units=(1,), sums_s=line.sums_s[:, :1])
    kept = [number for number, one in enumerate(line.choices) if one.type_index == 0]
    numbers = np.repeat(np.arange(len(line.sizes)), line.num_choices)[kept]
    line = replace(
        line,
        choices=tuple(line.choices[one] for one in kept),
        losses=line.losses[kept],
        flush_s=line.flush_s[kept],
        room=line.room[kept],
        num_choices=tuple(np.bincount(numbers, minlength=len(line.sizes)).tolist()),
    )
    assume(min(line.num_choices))
    rng = np.random.default_rng(drawn)
    answers = (rng.random(len(line.sizes)) < 0.5).tolist()
    microbatches = tuple(rng.integers(1, 6, len(line.sizes)).tolist())
    stack = Stack(num_microbatches=microbatches, num_choices=line.num_choices, is_gpipe=is_gpipe)
    fits = [lambda least, ahead, answer=answer: answer for answer in answers]
    tables = Tables(line, stack, 0, Search(), 60.0, fits=fits)
    for source, answer in enumerate(answers):
        one, found = line.of(source), tables.of(source)
        alone = Tables(one, Stack.of(stack.schedule(source), one), 0, Search(), 60.0)
        if answer:
            assert np.array_equal(found.entries, alone.of(0).entries)
            assert tables.num_tried[source] == alone.num_tried[0]
        else:
            assert not tables.num_tried[source] and not found.is_viable.any()


def test_large_tables_start_with_zeros_and_keep_what_is_written() -> None:
    with patch.object(pipeline_tables, "_LARGE_BYTES", 0):
        found = pipeline_tables._zeros((3, 700))
    assert found.shape == (3, 700) and not found.any()
    found[2, 5] = 7.0
    assert found.sum() == 7.0


def test_large_tables_need_no_kernel_with_large_pages_and_say_that_memory_is_short() -> None:
    with patch("mmap.MADV_NOHUGEPAGE", -1):  # refused, as by a kernel that has none
        assert not pipeline_tables._zeros((1 << 20,)).any()
    with pytest.raises(MemoryError):
        pipeline_tables._zeros((1 << 50,))


def test_layers_whose_stages_all_end_behind_them_are_filled_in_one_pass() -> None:
    """64 equal layers on 4 devices with a cutoff near the best: stages hold about 16 layers, so few passes suffice."""
    layers = 64
    line = equal_layers(layers, [1, 2, 3, 4])
    passes = []
    fill = Tables._add

    def counted(self: Tables, stages: pipeline_tables._Stages) -> None:
        passes.append(len(stages.after))
        fill(self, stages)

    schedule, perfect_s = Schedule(num_microbatches=8), 8 * 2 * 64 / 4
    with patch.object(Tables, "_add", counted):
        stack = Stack.of(schedule, line)
        tables = Tables(line, stack, 0, Search(), cutoff=perfect_s * 1.05)
        assert len(passes) < layers / 4
        assert tables.entries[FLUSHED, 0, 0, 0] == perfect_s
        passes.clear()
        Tables(line, stack, 0, Search())
        assert len(passes) == layers
