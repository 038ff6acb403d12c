"""Stages of a question as arrays, and shapes under GPipe or 1F1B: by their bounds, or quickly.

:class:`StageRows` is what :mod:`planner.solvers.pipeline_tables` asks for; :class:`PlainSource` gives shapes of one
number of micro-batches in the order of a lower bound of their iteration; :func:`quick_shapes` those that are often
good, so that a limit always finds one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice, permutations
from math import ceil, expm1, inf, log1p, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost import Affine, CheapestOf, Floats, Passes, TransferCost
from planner.families.pipeline.cost import Shape
from planner.families.pipeline.domain import ANY, Domain, Run, spread, table_cells
from planner.families.pipeline.memory import may_fit
from planner.models.stages import Stage
from planner.search import Search
from planner.solution import BELOW
from planner.solvers.chain import balanced_cuts_of
from planner.solvers.pipeline_bounds import NOTHING, Integers, Schedule, through
from planner.solvers.pipeline_tables import (
    Choice,
    LeastDevices,
    PipelineCosts,
    Stack,
    StageSeconds,
    Tables,
    TablesOfOne,
    table_bytes,
)
from planner.solvers.pipelines import BestFirst, Candidate, Frontier

_MOST_MOVES = 3e7  # stages by state in one table of several large groups
_MOST_CELLS = 2e7  # numbers in one table of large groups
_MOST_LISTED = 4e6  # states with a choice each that are listed for one table
_MOST_RUNS = 512  # choices of one group
# Of sources by bounds:
_NUM_DIVES = 3  # numbers of stages for which the least bound is followed to an answer at once
_MOST_FUTILE = 256  # stages that are followed, by level, by dives that find nothing better, or hardly
_LITTLE = 0.99  # of the best answer's seconds
_MOST_ENTRIES = 4e8  # of a table times choices: what a source by number of stages may cost,
_MOST_TRIED = 3e7  # or stages that the cutoff left to the open table, by number of stages
_MOST_BYTES = 7 << 28  # of the tables of a source, most never written: larger, it is bounded, but not searched
_MOST_TOGETHER = 5e6  # the same of all tables that are filled together: beyond, longer arrays save no time
_MOST_PASSED = 1e6  # choices times layers that are looked at together
_NEAR = 1.15  # ratio of numbers of micro-batches that memory is asked for together
_MOST_SHARED = 5e5  # entries of tables that are filled together, by layer, state and number of stages,
_MOST_COARSE_SHARED = 5e6  # or of large groups, which stages reach few of
# Of quick shapes:
_MOST_SHAPES = 240  # of one group each
_MOST_STAGES = 8
_MOST_SIMULATED = 1_024  # stages; more take a second or longer, and may be found by the search itself
_MOST_SOON = 64  # stages; of more, those of many micro-batches take a second or longer, too
_MOST_PER_STAGE = 16
_MOST_ORDERS = 6  # of several groups along the line
_STAGES_OF_A_GROUP = (1, 2, 3, 4, 8)
_MICROBATCHES_PER_STAGE = (4, 16)
_COLUMNS = ("forward_s", "backward_s", "flush_s")  # f, b and y
_NONE = 1e-6  # for no machine: what it would take is finite, so that no times are nan
_FREE = Affine(startup_s=0.0, per_byte_s=0.0)


class StageRows:
    """The stages of one question with one size of micro-batch; or with several, whose choices follow one another.

    ``is_coarse``, for large groups: a choice stands for all numbers of devices with the same share of a micro-batch. It
    uses up as many as the least of them, and takes at most what any of them takes wherever they stand.

    ``replicas``: of every stage, by number of micro-batches; by default the domain's.
    """

    def __init__(self, domain: Domain, numbers: Sequence[int], replicas: Sequence[int | None] = ()) -> None:
        self.domain, self.cost, self.numbers = domain, domain.cost, tuple(numbers)
        self._replicas = tuple(replicas) or (domain.replicas,) * len(self.numbers)
        self.sizes = np.array([ceil(domain.batch / number) for number in self.numbers])
        self.num_layers, self.num_devices = domain.num_layers, domain.num_devices
        self.is_coarse, self.num_places = domain.is_coarse, domain.spots.num_places
        each = [self._runs_of(number, equal) for number, equal in zip(self.numbers, self._replicas, strict=True)]
        self.num_choices = tuple(len(runs) for runs in each)
        self._runs = [run for runs in each for run in runs]
        self.choices = tuple(Choice(type_index=group, num_devices=least) for group, least, _ in self._runs)
        self._types = np.array([group for group, _, _ in self._runs])
        self._size_index = np.repeat(np.arange(len(self.sizes)), self.num_choices)
        self._sizes = self.sizes[self._size_index]
        self._samples = -(-self._sizes // np.array([most for _, _, most in self._runs]))

    def stack(self, *, is_gpipe: bool) -> Stack:
        """Return the sources of one schedule."""
        return Stack(num_microbatches=self.numbers, num_choices=self.num_choices, is_gpipe=is_gpipe)

    def _runs_of(self, number: int, equal: int | None) -> list[Run]:
        """Return (group, least, most) of the numbers of devices that a choice of so many micro-batches stands for."""
        runs, size = list[Run](), ceil(self.domain.batch / number)
        if equal is not None:
            return [(group, equal, equal) for group, count in enumerate(self.num_devices) if count]
        for group, count in enumerate(self.num_devices):
            most = min(count, self.domain.batch // number)
            if not self.is_coarse:
                runs += [(group, one, one) for one in range(1, most + 1)]
                continue
            firsts = _firsts(size, most)
            runs += [(group, first, after - 1) for first, after in zip(firsts, [*firsts[1:], most + 1], strict=True)]
        return runs

    @cached_property
    def units(self) -> tuple[int, ...]:
        """Devices that tables count as one: 1 but where large groups would make them too large."""
        most = min(_MOST_CELLS / table_cells(self.num_layers, len(self._runs)), _MOST_LISTED / len(self._runs))
        if len(self.num_devices) > 1:
            most = min(most, _MOST_MOVES / (len(self._runs) * self.num_layers**2))
        units = [1] * len(self.num_devices)
        while self.is_coarse and prod(n // q + 1 for n, q in zip(self.num_devices, units, strict=True)) > most:
            widest = max(range(len(units)), key=lambda group: self.num_devices[group] // units[group])
            if self.num_devices[widest] // units[widest] <= 1:
                break
            units[widest] *= 2
        return tuple(units)

    @cached_property
    def speeds(self) -> tuple[float, ...]:
        """How many times as fast as the first group's a device is at the layer that suits it best."""
        seconds = np.diff(self._both(self.sizes // self._shares), axis=2)  # sizes x groups x layers
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(seconds[:, :1] > 0, seconds[:, :1] / seconds, 0.0)
        return tuple(ratios.max(axis=(0, 2)).tolist())

    @cached_property
    def work_s(self) -> Floats | None:
        """Device-seconds of a micro-batch of the layers before each one, on the first group's; rows by its size.

        Where the replicas are known, of all of them, each with its share; else as if one had all: longer passes take
        no more a sample.
        """
        if not np.isfinite(self.speeds).all():
            return None
        shares = self._shares
        found = shares[:, None] * self._both.part(0)(self.sizes // shares) * (1 - 1e-12)
        return np.asarray(found if len(self.numbers) > 1 else found[0])

    @property
    def _shares(self) -> Integers:
        """Into how many equal parts a micro-batch is known to be shared out, by its size."""
        return np.array([equal or 1 for equal in self._replicas])

    @property
    def line_s(self) -> Floats:
        """Seconds of a micro-batch, both ways, of the layers before each one; by choice."""
        sums, lines, beyond = self._sums
        at = lines[:, None] + np.arange(self.num_layers + 1)
        found: Floats = sums[0][at] + sums[2][at] + (sums[1][at] + sums[3][at]) * beyond[:, None]
        return found

    @cached_property
    def _exchanges(self) -> tuple[list[TransferCost | None], Integers]:
        """Distinct costs of exchanging gradients, and which of them by choice and place."""
        spots = self.domain.spots
        kinds, index = np.unique([spots.exchanges_of(run) for run in self._runs], return_inverse=True)
        return [spots.exchanges[kind] for kind in kinds], index.reshape(len(self._runs), -1)

    def stages(self, firsts: Integers, lasts: Integers, choices: Integers, places: Integers, /) -> StageSeconds:
        """Return what stages take; memory's rounding errs on the side of more micro-batches in flight."""
        costs, (sums, lines, beyond) = self.cost.costs, self._sums
        line, extra, samples = lines[choices], beyond[choices], self._samples[choices]
        before, until = sums.take(line + firsts, axis=1), sums.take(line + lasts + 1, axis=1)
        forward, per_forward, backward, per_backward, update_s = until - before
        memory = costs.memory(firsts, lasts, num_samples=samples)
        size_bytes: Floats = memory.gradients_bytes
        kinds = self._exchanges[1]
        exchanges = kinds.take(choices * kinds.shape[1] + places)
        if (lines_s := self._affines) is not None:
            startups_s, slopes_s = (one.take(exchanges, axis=1) for one in lines_s)
            sync_s = np.where(size_bytes > 0, (startups_s + slopes_s * size_bytes).min(axis=0), 0.0)
        else:
            size_bytes, exchanges = np.broadcast_arrays(size_bytes, exchanges)
            sync_s = np.zeros(size_bytes.shape)
            for kind, cost in enumerate(self._exchanges[0]):
                mine = exchanges == kind
                if cost is not None and mine.any():
                    sync_s[mine] = cost(size_bytes[mine])
        free = self._limits_bytes[choices] - costs.reserve_bytes - memory.total_bytes(0)
        each = np.broadcast_to(memory.in_flight_bytes, free.shape)
        many = np.divide(free, each, out=np.full(free.shape, float(ANY)), where=each > 0)
        return StageSeconds(
            forward_s=forward + per_forward * extra,
            backward_s=backward + per_backward * extra,
            flush_s=sync_s + update_s,
            most_in_flight=np.where(free < 0, 0, np.minimum(many, ANY)).astype(np.int64),
        )

    @cached_property
    def _passes(self) -> tuple[Passes, Passes]:
        """Prefix sums over the layers of forward and backward passes; groups x (layers + 1)."""
        forward, backward = zip(*self.cost.costs.passes, strict=True)
        return Passes.stack(forward), Passes.stack(backward)

    @property
    def _both(self) -> Passes:
        """Those of both ways together."""
        return self._passes[0].plus(self._passes[1])

    @cached_property
    def _sums(self) -> tuple[Floats, Integers, Floats]:
        """What is summed up over the layers, by line; the line of each choice; and its samples beyond the line's start.

        A line holds, of the layers before each one and behind the last, seconds of a forward pass at its start and of
        each sample beyond it, those of a backward pass, and those of the update. One for each group and piece of its
        passes, one behind the other: tables ask for so many stages that every look-up counts.
        """
        forward, backward = self._passes
        pieces = np.searchsorted(forward.starts, self._samples, side="right") - 1
        of_lines, index = np.unique(np.stack((pieces, self._types)), axis=1, return_inverse=True)
        piece, group = of_lines
        rows = [one[piece, group] for way in (forward, backward) for one in (way.base_s, way.per_sample_s)]
        costs, lasts, groups = self.cost.costs, np.arange(self.num_layers), range(len(self.num_devices))
        updates_s = np.array([[0.0, *costs.update_s(0, lasts, group=one).tolist()] for one in groups])
        sums = np.array([*rows, updates_s[group]]).reshape(len(rows) + 1, -1)
        return sums, index.reshape(-1) * (self.num_layers + 1), self._samples - forward.starts[pieces]

    @cached_property
    def _affines(self) -> tuple[Floats, Floats] | None:
        """Start-ups and seconds a byte of the affine costs of which each kind is the cheapest; None if some are not."""
        rows: list[tuple[Any, ...]] = []
        for cost in self._exchanges[0]:
            parts = (_FREE,) if cost is None else cost.costs if isinstance(cost, CheapestOf) else (cost,)
            rows.append(parts)
        if not all(isinstance(one, Affine) for parts in rows for one in parts):
            return None
        most = max(len(parts) for parts in rows)
        full = [[*parts, *(parts[-1:] * (most - len(parts)))] for parts in rows]
        startups_s = np.array([[one.startup_s for one in parts] for parts in full]).T
        return startups_s, np.array([[one.per_byte_s for one in parts] for parts in full]).T

    @cached_property
    def _limits_bytes(self) -> Floats:
        """What a device may hold, by choice, rounded up."""
        limits = np.array([one.memory_limit_bytes for one in self.cost.costs.machines]) * self.domain.memory_scale
        return np.asarray(limits[self._types] * (1 + 1e-12))

    @cached_property
    def floor_s(self) -> Floats:
        """Iterations with so many devices in their first stage take at least what bringing the samples takes."""
        if self.is_coarse:
            return np.zeros(len(self.choices))
        return np.array([self.domain.floors_s[one.type_index][one.num_devices - 1] for one in self.choices])

    @cached_property
    def _links(self) -> tuple[Floats, Integers]:
        """Seconds of boundaries by size of micro-batch, link and cut, one after the other, 0 at both ends.

        And where those of a boundary begin: behind a stage or before it; by the network of all its machines, or inside
        the machine, where a device is left there; by choice and place.
        """
        spots, num_cuts = self.domain.spots, self.num_layers + 1
        kinds = np.array([[spots.links_of(run, is_out=is_out) for run in self._runs] for is_out in (True, False)])
        late_s, rates = np.array(spots.links).T[..., None]
        size_bytes = (self.cost.costs.boundary_bytes(np.arange(num_cuts)) * self.sizes[:, None])[:, None]
        seconds = np.where(size_bytes > 0, late_s + size_bytes / rates, 0.0)
        begins = (self._size_index[:, None, None] * len(rates) + kinds) * num_cuts
        return seconds.reshape(-1), np.ascontiguousarray(np.moveaxis(begins, -1, 1)).reshape(2, 2, -1)

    def _link_s(
        self, cuts: Integers, choices: Integers, places: Integers | int, *, is_out: bool
    ) -> tuple[Floats, Floats]:
        """Return the seconds of boundaries behind, or before, stages: by the network, and inside the machine."""
        seconds, begins = self._links
        spot = choices * max(self.num_places) + places
        network, inside = begins[int(not is_out)]
        return seconds.take(network.take(spot) + cuts), seconds.take(inside.take(spot) + cuts)

    @cached_property
    def _far_s(self) -> list[Floats]:
        """By group, least seconds to or from so many of its machines; by the other group, size, machines and cut."""
        size_bytes = self.cost.costs.boundary_bytes(np.arange(self.num_layers + 1)) * self.sizes[:, None, None]
        rows = []
        for group, late_s in zip(self.cost.costs.machines, self.cost.costs.latency_s.T, strict=True):
            machines = np.maximum(np.arange(group.num_machines + 1), _NONE)[:, None]
            seconds = late_s[:, None, None, None] + size_bytes / (machines * group.network_bytes_per_s)
            rows.append(np.where(size_bytes > 0, seconds, 0.0))
        return rows

    def _side_s(self, cuts: Integers, choices: Integers, places: Integers, used: Integers, *, is_out: bool) -> Floats:
        """Return the seconds that no boundary behind, or before, a stage is below.

        By the network they are no less than what the machines take that are left for the stage on its other side.
        """
        found, inside_s = self._link_s(cuts, choices, places, is_out=is_out)
        if not self.is_coarse:
            own, size, far_s = self._types[choices], self._size_index[choices], list[Floats]()
            for group, (each, number) in enumerate(zip(self.domain.places, used, strict=True)):
                machines = -(-self.num_devices[group] // each) - number // each if is_out else -(-number // each)
                far_s.append(self._far_s[group][own, size, machines, cuts])
            found = np.maximum(found, far_s[0] if len(far_s) == 1 else np.minimum.reduce(far_s))
        found = np.minimum(found, inside_s)
        return np.broadcast_to(found, (2, *found.shape))

    def out_s(self, lasts: Integers, choices: Integers, places: Integers, used: Integers, /) -> Floats:
        """Return the seconds that no boundary behind a stage is below."""
        return self._side_s(lasts + 1, choices, places, used, is_out=True)

    def in_s(self, firsts: Integers, choices: Integers, places: Integers, used: Integers, /) -> Floats:
        """Return the seconds that no boundary before a stage is below."""
        return self._side_s(firsts, choices, places, used, is_out=False)

    def boundary_s(
        self, cuts: Integers, lefts: Integers, left_places: Integers, rights: Integers, places: Integers, /
    ) -> Floats:
        """Return the seconds of a micro-batch over cuts, forward and back."""
        if self.is_coarse:
            out_s, in_s = self._link_s(cuts, lefts, 0, is_out=True), self._link_s(cuts, rights, 0, is_out=False)
            sides = np.maximum(np.minimum(*out_s), np.minimum(*in_s))
            return np.array([sides, sides])
        costs, each = self.cost.costs, np.array(self.domain.places)
        numbers = np.array([one.num_devices for one in self.choices])
        group, other, left, right = self._types[lefts], self._types[rights], numbers[lefts], numbers[rights]
        # As StageCosts.boundary_link has it.
        inside_s, inside, network = np.array(
            [(one.inside_latency_s, one.inside_bytes_per_s, one.network_bytes_per_s) for one in costs.machines]
        ).T
        is_inside = (group == other) & (left_places + left + right <= each[group])
        machines, others = -(-(left_places + left) // each[group]), -(-(places + right) // each[other])
        rate = np.minimum(machines * network[group], others * network[other])
        rate = np.where(is_inside, inside[group] * np.minimum(left, right), rate)
        size_bytes = costs.boundary_bytes(cuts) * self._sizes[lefts]
        late_s = np.where(is_inside, inside_s[group], costs.latency_s[group, other])
        found = np.where(size_bytes > 0, late_s + size_bytes / rate, 0.0)
        return np.array([found, found])


def _firsts(size: int, most: int) -> list[int]:
    """Return the least numbers of devices, up to a limit, that have each share of so many samples.

    Where there are too many shares, numbers evenly on a logarithmic scale: then several shares are one choice.
    """
    firsts, one = list[int](), 1
    while one <= most:
        if len(firsts) == _MOST_RUNS:
            return spread(most, _MOST_RUNS)
        firsts.append(one)
        share = -(-size // one)
        one = most + 1 if share == 1 else (size - 1) // (share - 1) + 1
    return firsts


class PlainSource:
    """Shapes of one number of micro-batches under GPipe or 1F1B: bounded ever more closely as they are asked for.

    ``looser``: the source of 1F1B for one of GPipe. While the number of stages is open, each term of GPipe's bound is
    at least that of 1F1B, and memory holds no more: the open bound of the one holds for the other.

    ``neighbours``: sources of the same schedule, whose tables may be filled together with those of this one.
    """

    def __init__(
        self,
        domain: Domain,
        schedule: Schedule,
        search: Search,
        looser: "PlainSource | None" = None,
        neighbours: "Neighbours | None" = None,
    ) -> None:
        self.domain, self.schedule, self.search, self.looser = domain, schedule, search, looser
        self._neighbours = Neighbours() if neighbours is None else neighbours
        self._neighbours.sources.append(self)
        samples = schedule.num_microbatches * ceil(domain.batch / schedule.num_microbatches)
        self.least_s = domain.least_s_per_sample * samples
        self.bound_of_last = self.least_s
        # Under GPipe all micro-batches are in flight in every stage: with the number of stages no term of it rises.
        is_any = "num_stages" not in domain.problem.fixed
        self._levels = [True] if schedule.is_gpipe and is_any else [True, False]
        # Of the next level, until they are asked for: with the stages that were tried, and the cutoff.
        self._filled: tuple[Frontier, int, TablesOfOne, int, float] | None = None
        self._viable: NDArray[np.bool_] | None = None  # of the open level
        self._found: BestFirst | None = None
        self.is_too_large = False
        self.hints: list[Shape] = []
        self.open_bound_s = self.least_s

    @property
    def is_coarse(self) -> bool:
        """Whether its shapes also stand for others."""
        return self.domain.is_coarse

    @property
    def bound(self) -> float:
        """Seconds that no shape that has not been given is below."""
        if self._found is None:
            return self.least_s if self.looser is None else max(self.least_s, self.looser.open_bound_s)
        return max(self.least_s, self._found.bound + self.domain.least_stall_s)

    def next(self, cutoff_s: float, until_s: float) -> Shape | None:
        """Return the next shape, or None where this step only raised the bound."""
        if self._found is None or self._levels:
            self.least_s = self.bound
            self.forget(cutoff_s)
            if self._filled is None:
                self._neighbours.fill(self, cutoff_s)
            if self._filled is None:
                self.is_too_large = True
                return None
            (frontier, index, tables, num_tried, _), self._filled = self._filled, None
            if self.is_open:
                self._viable = tables.is_viable[0]
            # The tables by number of stages come next, where they may be filled.
            is_last = not self._levels[1:]
            is_small = is_last or self._is_small(frontier.stack.num_choices[index], num_tried)
            if is_last and not self.is_coarse:
                frontier, index = self._neighbours.frontier(self, cutoff_s)
            elif is_last or not is_small:
                frontier = Frontier(frontier.costs, frontier.stack, self.search, is_open=self.is_open)
            frontier.add(index, tables, self.domain.numbers_of_stages, cutoff_s - self.domain.least_stall_s)
            self._found = BestFirst.of(frontier, index)
            self._levels = self._levels[1:] if is_small else []
            if self._levels or not is_small:
                self.open_bound_s = self.bound
            num_steps, is_last = max(self.domain.numbers_of_stages), not self._levels
            is_promising = is_last or self.domain.replicas is None
            if is_promising and self._neighbours.dives(num_steps, cutoff_s, is_last=is_last):
                dives = self._found.dive(_NUM_DIVES, cutoff_s - self.domain.least_stall_s)
                self.hints = [self._shape(one) for one in dives]
            return None
        stall_s = self.domain.least_stall_s
        candidate = self._found.next(cutoff_s - stall_s, max(until_s - stall_s, self._found.bound))
        if candidate is None:
            self.is_too_large = self._found.is_too_large
            return None
        self.bound_of_last = candidate.bound + stall_s
        return self._shape(candidate)

    def _shape(self, candidate: Candidate) -> Shape:
        """Return a candidate as a shape."""
        assert self._found is not None
        choices = self._found.costs.choices
        stages = [
            Stage(
                first=one.first,
                last=one.last,
                group=choices[one.choice].type_index,
                replicas=choices[one.choice].num_devices,
            )
            for one in candidate.stages
        ]
        name = "gpipe" if self.schedule.is_gpipe else "1f1b"
        return self.domain.shape(stages, self.schedule.num_microbatches, name)

    def take(self, frontier: Frontier, index: int, tables: TablesOfOne, num_tried: int, cutoff_s: float) -> None:
        """Keep the tables of the next level until they are asked for; a cutoff that fell since leaves them true.

        ``num_tried``: stages that were looked at for them, and, but in large groups, for others filled with them.
        """
        self._filled = frontier, index, tables, num_tried, cutoff_s

    def forget(self, cutoff_s: float) -> None:
        """Let go tables of large groups for another cutoff: of a lower one far less is left, and better answers few."""
        if self._filled is not None and self.is_coarse and self._filled[-1] != cutoff_s:
            self._filled = None

    def _is_small(self, num_choices: int, num_tried: int) -> bool:
        """Whether tables by number of stages may be filled, too: few stages in all, or few that the cutoff left."""
        most = max(self.domain.numbers_of_stages)
        if _size(self.domain, num_choices) * most <= _MOST_ENTRIES:
            return True
        if num_tried * most > _MOST_TRIED:
            return False
        rows = StageRows(self.domain, [self.schedule.num_microbatches])
        return _has_room(rows, rows.stack(is_gpipe=self.schedule.is_gpipe), most, self.search)

    def needs(self, *, is_open: bool) -> bool:
        """Whether tables of that level come next, if any: GPipe's open ones may be spared by those of 1F1B."""
        is_next = self._filled is None and self._levels[:1] == [is_open]
        return is_next and (not is_open or self.looser is None or self.looser._found is not None)

    @property
    def viable(self) -> NDArray[np.bool_] | None:
        """Stages that may be part of a better pipeline, by the open level, or there by that of 1F1B; None: not known.

        A number of stages, known, only adds terms to the bound, and lets memory hold no more.
        """
        known = self.looser if self.is_open else self
        found = None if known is None else known._viable
        return found if found is not None and found.flags.writeable else None

    @property
    def is_open(self) -> bool:
        """Whether the tables that come next leave the number of stages open."""
        return self._levels[0]

    @cached_property
    def size(self) -> int:
        """Stages of the whole line by state, at most, where choices are single numbers of devices."""
        most = self.domain.batch // self.schedule.num_microbatches
        most = most if self.domain.replicas is None else 1
        return _size(self.domain, sum(min(number, most) for number in self.domain.num_devices))

    @property
    def num_entries(self) -> int:
        """Of the tables that come next."""
        left = 1 if self.is_open else max(self.domain.numbers_of_stages) + 1
        return left * (self.domain.num_layers + 1) * prod(number + 1 for number in self.domain.num_devices)


def passing_s(domain: Domain, numbers: Sequence[int], cutoff_s: float, search: Search) -> Iterator[tuple[int, float]]:
    """Yield numbers of micro-batches with seconds that no GPipe or 1F1B of them is below; till the search is over.

    Each stage waits for a micro-batch from those before it, and back. With ``w_i`` of a micro-batch in stage i of n,
    and X in all, a step takes ``m w_i + sum of w_j over j < i`` or more. The most of these is least where all are
    equal, with ``X = (1 - (1 - 1 / m)^n)`` times it.

    Infinite where below the cutoff whole layers and whole samples need more devices than there are, or with what memory
    asks for besides: asked of large groups, whose tables are filled one by one. Of several numbers memory is asked for
    together: each of the largest one's samples, which are fewest, and in flight as of the smallest, which keeps least;
    with the fewest devices that any of them needs for a stage in time.
    """
    most_stages = max(domain.numbers_of_stages)
    for together in _in_parts(domain, numbers):
        if search.is_over:
            return
        rows = StageRows(domain, together)
        stack = rows.stack(is_gpipe=False)
        layer_s = np.minimum.reduceat(np.diff(rows.line_s, axis=1), stack.starts)
        found = BELOW * layer_s.sum(axis=1)
        if domain.is_coarse and len(domain.num_devices) == 1 and cutoff_s < inf:
            least = LeastDevices.of(rows, stack, cutoff_s - domain.least_stall_s)
            found[least.line > domain.num_devices[0]] = inf
            for some in _alike(together, np.flatnonzero(found < inf)):
                ends = together[some[0]], together[some[-1]]
                if not may_fit(domain, ends, search, least.stage[some].min(axis=0), least.ahead[some].min(axis=0)):
                    found[some] = inf
        for number, whole_s in zip(together, found.tolist(), strict=True):
            yield number, whole_s / (1.0 if number == 1 else -expm1(most_stages * log1p(-1 / number)))


def _alike(numbers: Sequence[int], places: Integers) -> Iterator[list[int]]:
    """Yield places of rising numbers, those of numbers that differ little together."""
    some: list[int] = []
    for place in places.tolist():
        if some and numbers[place] > _NEAR * numbers[some[0]]:
            yield some
            some = []
        some.append(place)
    if some:
        yield some


def _in_parts(domain: Domain, numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yield numbers of micro-batches whose choices are looked at together."""
    together, size = list[int](), 0
    for number in numbers:
        choices = sum(min(count, domain.batch // number, _MOST_RUNS) for count in domain.num_devices)
        if together and (size + choices) * domain.num_layers > _MOST_PASSED:
            yield together
            together, size = [], 0
        together.append(number)
        size += choices
    if together:
        yield together


class Neighbours:
    """The sources of one schedule.

    Passes over small tables are so short that calls of numpy would take most of the time. So tables of several sources
    are filled together: those that will be needed, too, unless better answers are found first, by least bound.
    """

    def __init__(self) -> None:
        self.sources: list[PlainSource] = []
        # Sources at once, by level: twice as many every time, as the first ones lower the cutoff of all others.
        self._most = {True: 1, False: 1}
        self._share = 1.0  # of their stages that the cutoff left in the last tables
        self._frontiers: dict[PlainSource, tuple[Frontier, int]] = {}
        # By whether it is the last level: steps of dives that found little, and the cutoff of the last one.
        self._futile = {True: (0, inf), False: (0, inf)}

    def dives(self, num_steps: int, cutoff_s: float, *, is_last: bool) -> bool:
        """Whether to follow the least bound of a level: not where that found little often."""
        num_futile, last_s = self._futile[is_last]
        num_futile = 0 if cutoff_s < _LITTLE * last_s else num_futile + num_steps
        self._futile[is_last] = num_futile, cutoff_s
        return num_futile <= _MOST_FUTILE

    def fill(self, asking: PlainSource, cutoff_s: float) -> None:
        """Fill the tables of a source's next level, and with them those of others; none where they are too large."""
        together, is_of_one = [asking], len(asking.domain.num_devices) == 1
        if is_of_one or not asking.is_coarse:  # else speeds of groups differ by source, and tables are large
            for one in self.sources:
                one.forget(cutoff_s)
            others = [one for one in self.sources if one is not asking and one.needs(is_open=asking.is_open)]
            size, shared = asking.size * self._share, _MOST_COARSE_SHARED if asking.is_coarse else _MOST_SHARED
            most = min(self._most[asking.is_open], shared // asking.num_entries)
            for one in sorted(others, key=lambda one: one.bound):
                size += one.size * self._share
                if len(together) >= most or size >= _MOST_TOGETHER or one.bound >= cutoff_s:
                    break
                together.append(one)
            self._most[asking.is_open] *= 2
        domain = max((one.domain for one in together), key=lambda one: max(one.numbers_of_stages))
        num_stages = 0 if asking.is_open else max(domain.numbers_of_stages)
        while True:
            rows, stack = self._rows(together)
            is_single = len(together) == 1  # else units are as of each alone
            if (is_single or max(rows.units) == 1) and _has_room(rows, stack, num_stages, asking.search):
                break
            if is_single:
                return
            together = together[: len(together) // 2]
            self._most[asking.is_open] = len(together)
        allowed = None
        if domain.is_limited and not domain.is_coarse:  # coarse choices may use more than they count
            allowed = domain.allowed(np.indices([number + 1 for number in domain.num_devices]))
        fits = None
        if asking.is_coarse and is_of_one:  # memory is asked where tables are large
            fits = [partial(may_fit, domain, (number, number), asking.search) for number in stack.num_microbatches]
        known = [one.viable for one in together if one.viable is not None]
        viable = np.concatenate(known) if len(known) == len(together) else None
        tables = Tables(rows, stack, num_stages, asking.search, cutoff_s - domain.least_stall_s, allowed, fits, viable)
        num_tried = int(tables.num_tried.sum())
        self._share = num_tried / sum(one.size for one in together)
        frontier = Frontier(rows, stack, asking.search, is_open=asking.is_open)
        for index, one in enumerate(together):
            own = int(tables.num_tried[index]) if asking.is_coarse else num_tried
            one.take(frontier, index, tables.of(index), own, cutoff_s)

    def frontier(self, asking: PlainSource, cutoff_s: float) -> tuple[Frontier, int]:
        """Return where the last level of a source is searched, and its index there: with those that may be needed yet.

        Passes over few pipelines, too, are mostly calls of numpy.
        """
        if asking not in self._frontiers:
            others = (one for one in self.sources if one not in self._frontiers and one.bound < cutoff_s)
            together = list(dict.fromkeys([asking, *others]))
            rows, stack = self._rows(together)
            frontier = Frontier(rows, stack, asking.search, is_open=asking.is_open)
            self._frontiers.update((one, (frontier, index)) for index, one in enumerate(together))
        return self._frontiers[asking]

    @staticmethod
    def _rows(together: Sequence[PlainSource]) -> tuple[StageRows, Stack]:
        """Return the stages of some sources."""
        domain = max((one.domain for one in together), key=lambda one: max(one.numbers_of_stages))
        numbers = [one.schedule.num_microbatches for one in together]
        rows = StageRows(domain, numbers, [one.domain.replicas for one in together])
        return rows, rows.stack(is_gpipe=together[0].schedule.is_gpipe)


def _has_room(costs: PipelineCosts, stack: Stack, num_stages: int, search: Search) -> bool:
    """Whether tables fit in memory, before they are made."""
    needed_bytes = table_bytes(costs, stack, num_stages)
    return needed_bytes <= _MOST_BYTES and search.fits(needed_bytes)


def _size(domain: Domain, num_choices: int) -> int:
    """Return the stages of the whole line by state, at most."""
    return prod(number + 1 for number in domain.num_devices) * domain.num_layers**2 * num_choices


def quick_shapes(domain: Domain) -> Iterator[Shape]:
    """Yield one stage, two stages, balanced stages with equal replicas, stages over all groups, and two chunks each."""
    yield from _one_stage(domain)
    yield from _two_stages(domain)
    yield from _of_one_group(domain)
    if len(domain.num_devices) > 1:
        yield from _of_all_groups(domain)
    yield from _with_two_chunks(domain)


def _plain(domain: Domain) -> list[str]:
    """Return the schedules without chunks."""
    return [name for name in domain.schedules if name != "interleaved"]


def _one_stage(domain: Domain) -> Iterator[Shape]:
    """Yield one stage; a bubble does not depend on the schedule then."""
    numbers, plain, last = domain.numbers_of_microbatches, _plain(domain), domain.num_layers - 1
    if not plain or 1 not in domain.numbers_of_stages:
        return

    def shape(group: int, replicas: int, number: int) -> Shape:
        return domain.shape([Stage(first=0, last=last, group=group, replicas=replicas)], number, plain[0])

    for group, most in enumerate(domain.num_devices):  # first what fits on most devices, for the shortest limits
        yield from _fewest(domain, partial(shape, group, min(most, domain.batch)))
    for group, most in enumerate(domain.num_devices):
        for number in sorted({*numbers[:4], numbers[-1]}):
            for replicas in domain.some_replicas(most, number, _MOST_SHAPES // 8):
                yield shape(group, replicas, number)
        for replicas in domain.some_replicas(most, 1, _MOST_SHAPES // 8):
            yield from _fewest(domain, partial(shape, group, replicas))


def _two_stages(domain: Domain) -> Iterator[Shape]:
    """Yield, for few micro-batches, two stages on all devices of a group: of least bound of all cuts and replicas.

    Where the last layers have most of the weights, few devices that compute them spare the others their exchange.
    """
    if domain.is_equal or domain.is_coarse or 2 not in domain.numbers_of_stages or "1f1b" not in domain.schedules:
        return
    for number in _near(domain, 2 * 2):
        rows, schedule = StageRows(domain, [number]), Schedule(num_microbatches=number)
        types, sizes = (
            np.array([getattr(one, name) for one in rows.choices]) for name in ("type_index", "num_devices")
        )
        for group, most in enumerate(domain.num_devices):
            mine = np.flatnonzero(types == group)
            left = mine[(sizes[mine] < most) & (most - sizes[mine] <= sizes[mine].max())]
            cuts, left = (grid.ravel() for grid in np.meshgrid(np.arange(1, domain.num_layers), left))
            right, none, place = mine[most - sizes[left] - 1], np.zeros_like(left), sizes[left] % domain.places[group]
            first = rows.stages(none, cuts - 1, left, none)
            last = rows.stages(cuts, none + domain.num_layers - 1, right, place)
            sent = rows.boundary_s(cuts, left, none, right, place)
            columns = np.array([[getattr(one, name) for one in (first, last)] for name in _COLUMNS])
            held = schedule.in_flight(np.array([2, 1]))
            bounds = through(columns, held[:, None], sent[:, None], NOTHING[:, None], schedule)
            fits = (first.most_in_flight >= held[0]) & (last.most_in_flight >= held[1])
            if fits.any():
                best = int(np.where(fits, bounds, np.inf).argmin())
                cut, replicas = int(cuts[best]), int(sizes[left[best]])
                before = Stage(first=0, last=cut - 1, group=group, replicas=replicas)
                after = Stage(first=cut, last=domain.num_layers - 1, group=group, replicas=most - replicas)
                yield domain.shape([before, after], number, "1f1b")


def _of_one_group(domain: Domain) -> Iterator[Shape]:
    """Yield stages of one group, as equal as they can be, with equal replicas."""
    plain, budget = _plain(domain), _MOST_SHAPES

    def shape(group: int, p: int, name: str, number: int) -> Shape:
        replicas = domain.most_replicas(domain.num_devices[group] // p, number)
        return domain.shape(domain.balanced(group, p, replicas), number, name)

    for group, most in enumerate(domain.num_devices):
        for p in domain.numbers_of_stages:
            if p > most or budget < 0 or (p > _MOST_SIMULATED and p > domain.numbers_of_stages[0]):
                break
            if p > _MOST_STAGES and p & (p - 1):  # powers of 2 alone
                continue
            for name in plain if p <= _MOST_STAGES else plain[:1]:
                numbers = _near(domain, 4 * p)
                if p > _MOST_SOON:
                    shapes = [shape(group, p, name, number) for number in numbers if number <= _MOST_PER_STAGE * p]
                else:
                    shapes = _that_fit(domain, numbers, partial(shape, group, p, name))
                budget -= len(shapes)
                yield from shapes


def _with_two_chunks(domain: Domain) -> Iterator[Shape]:
    """Yield interleaved stages of one group, two chunks a device, with equal replicas: of powers of two."""
    if "interleaved" not in domain.schedules:
        return
    for group, most in enumerate(domain.num_devices):
        for p in domain.numbers_of_stages:
            if p < 2 or p & (p - 1) or p > min(most, domain.num_layers // 2, _MOST_SOON):
                continue
            fewer = [one for one in domain.numbers_of_microbatches if not one % p]
            at = bisect_right(fewer, 4 * p)
            for number in fewer[max(at - 1, 0) : at + 1]:
                replicas = domain.most_replicas(most // p, number)
                yield domain.shape(domain.balanced(group, 2 * p, replicas), number, "interleaved", 2)


def _of_all_groups(domain: Domain) -> Iterator[Shape]:
    """Yield stages over all groups, of each as many, cut so that the slowest stage is as fast as can be."""
    groups = range(len(domain.num_devices))

    def shape(line: list[int], each: int, name: str, number: int) -> Shape:
        return domain.shape(_shared(domain, line, each, number), number, name)

    for each in _STAGES_OF_A_GROUP:
        num_stages = each * len(groups)
        is_wanted = num_stages <= domain.num_layers and num_stages in domain.numbers_of_stages
        if not is_wanted or min(domain.most_allowed) < each:
            continue
        numbers = sorted(
            {
                *(one for per in _MICROBATCHES_PER_STAGE for one in _near(domain, per * num_stages)),
                *_near(domain, domain.batch // -(-max(domain.most_allowed) // each))[:1],  # a sample for every device
            }
        )
        for order in islice(permutations(groups), _MOST_ORDERS):
            line = [group for group in order for _ in range(each)]
            for name in _plain(domain):
                yield from _that_fit(domain, numbers, partial(shape, line, each, name))


def _shared(domain: Domain, line: list[int], each: int, number: int) -> list[Stage]:
    """Return stages on these groups, with replicas of each as equal as they can be."""
    size, seen, replicas = -(-domain.batch // number), [0] * len(domain.num_devices), []
    for group in line:
        most = domain.most_allowed[group]
        replicas.append(max(1, min((most + seen[group]) // each, domain.batch // number)))  # so that they sum up to it
        seen[group] += 1
    if domain.is_equal:
        replicas = [domain.most_replicas(min(replicas), number)] * len(line)
    passes = [domain.cost.costs.passes[group] for group in line]
    totals = [forward.plus(backward)(-(-size // r)) for (forward, backward), r in zip(passes, replicas, strict=True)]
    ends = balanced_cuts_of(totals)
    starts = [0, *(end + 1 for end in ends[:-1])]
    return [
        Stage(first=first, last=last, group=group, replicas=r)
        for first, last, group, r in zip(starts, ends, line, replicas, strict=True)
    ]


def _that_fit(domain: Domain, numbers: list[int], shape: Callable[[int], Shape]) -> list[Shape]:
    """Return the shapes of these numbers of micro-batches; where none fits in memory, that of the fewest that do."""
    shapes = [shape(number) for number in numbers]
    return shapes if any(domain.cost.fits(one) for one in shapes) else _fewest(domain, shape)


def _fewest(domain: Domain, shape: Callable[[int], Shape]) -> list[Shape]:
    """Return the shape of the fewest micro-batches that fit in memory; none if none do."""
    numbers = domain.numbers_of_microbatches
    at = bisect_left(numbers, True, key=lambda number: domain.cost.fits(shape(number)))
    return [shape(number) for number in numbers[at : at + 1]]


def _near(domain: Domain, wanted: int) -> list[int]:
    """Return the numbers of micro-batches next below and above a wish."""
    below = [one for one in domain.numbers_of_microbatches if one <= wanted][-1:]
    return below + [one for one in domain.numbers_of_microbatches if one > wanted][:1]
