"""The stages of one question as arrays, as the search over pipelines asks for them."""

from collections.abc import Sequence
from functools import cached_property
from math import ceil, prod
from typing import Any

import numpy as np

from planner.cost import Affine, Floats, TransferCost
from planner.families.pipeline.domain import ANY, Domain, spread, table_cells
from planner.families.pipeline.spots import Run
from planner.models.collectives import CheapestOf
from planner.solvers.pipeline import Choice, Integers, PipelineCosts, Stack, StageSeconds

__all__ = ["StageRows"]

_MOST_MOVES = 3e7  # stages by state in one table of several large groups
_MOST_CELLS = 2e7  # numbers in one table of large groups
_MOST_LISTED = 4e6  # states with a choice each that are listed for one table
_MOST_RUNS = 512  # choices of one group
_FREE = Affine(startup_s=0.0, per_byte_s=0.0)


class StageRows:
    """The stages of one question with one size of micro-batch; or with several, whose choices follow one another.

    ``is_coarse``, for large groups: a choice stands for all numbers of devices with the same share of a micro-batch. It
    uses up as many as the least of them, and takes at most what any of them takes wherever they stand.
    """

    def __init__(self, domain: Domain, numbers: Sequence[int]) -> None:
        self.domain, self.cost, self.numbers = domain, domain.cost, tuple(numbers)
        self.sizes = np.array([ceil(domain.batch / number) for number in self.numbers])
        self.num_layers, self.num_devices = domain.num_layers, domain.num_devices
        self.is_coarse, self.num_places = domain.is_coarse, domain.spots.num_places
        each = [self._runs_of(number) for number in self.numbers]
        self.num_choices = tuple(len(runs) for runs in each)
        self._runs = [run for runs in each for run in runs]
        self.choices = tuple(Choice(type_index=group, num_devices=least) for group, least, _ in self._runs)
        self._types = np.array([group for group, _, _ in self._runs])
        self._sizes = np.repeat(self.sizes, self.num_choices)
        self._samples = -(-self._sizes // np.array([most for _, _, most in self._runs]))

    def of(self, source: int) -> PipelineCosts:
        """Return the stages with one size of micro-batch."""
        return self if len(self.numbers) == 1 else _RowsOfOne(self, source)

    def stack(self, *, is_gpipe: bool) -> Stack:
        """Return the sources of one schedule."""
        return Stack(num_microbatches=self.numbers, num_choices=self.num_choices, is_gpipe=is_gpipe)

    def _runs_of(self, number: int) -> list[Run]:
        """Return (group, least, most) of the numbers of devices that a choice of so many micro-batches stands for."""
        return [run for group in range(len(self.num_devices)) for run in self._runs_in(group, number)]

    def _runs_in(self, group: int, number: int) -> list[Run]:
        """Return those of one group."""
        most, size = min(self.domain.num_devices[group], self.domain.batch // number), ceil(self.domain.batch / number)
        if not self.is_coarse:
            return [(group, one, one) for one in range(1, most + 1)]
        firsts = _firsts(size, most)
        return [(group, one, after - 1) for one, after in zip(firsts, [*firsts[1:], most + 1], strict=True)]

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
        seconds = np.diff(self._seconds[0] + self._seconds[1], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(seconds[:1] > 0, seconds[:1] / seconds, 0.0)
        return tuple(ratios.max(axis=1).tolist())

    @cached_property
    def work_s(self) -> Floats | None:
        """Device-seconds of a micro-batch of the layers before each one, on the first group's; rows by its size."""
        if not np.isfinite(self.speeds).all():
            return None
        found = (self._seconds[0][0] + self._seconds[1][0]) * self.sizes[:, None] * (1 - 1e-12)
        return np.asarray(found if len(self.numbers) > 1 else found[0])

    @cached_property
    def _exchanges(self) -> tuple[list[TransferCost | None], Integers]:
        """Distinct costs of exchanging gradients, and which of them by choice and place."""
        spots = self.domain.spots
        kinds, index = np.unique([spots.exchanges_of(run) for run in self._runs], return_inverse=True)
        return [spots.exchanges[kind] for kind in kinds], index.reshape(len(self._runs), -1)

    def stages(self, firsts: Integers, lasts: Integers, choices: Integers, places: Integers, /) -> StageSeconds:
        """Return what stages take."""
        kinds = self._types[choices]
        forward_s, backward_s, share = (
            row[kinds, lasts + 1] - row[kinds, firsts] for row in (self._seconds[0], self._seconds[1], self._update_s)
        )
        samples = self._samples[choices]
        size = np.asarray(self.cost.costs.gradient_bytes(firsts, lasts), dtype=np.float64)
        return StageSeconds(
            forward_s=forward_s * samples,
            backward_s=backward_s * samples,
            flush_s=self._sync_s(size, self._exchanges[1][choices, places]) + share,
            most_in_flight=self._room(firsts, lasts, kinds, samples),
        )

    @cached_property
    def _seconds(self) -> tuple[Floats, Floats]:
        """Prefix sums over the layers of forward and backward seconds of a sample, by group."""
        costs, lasts = self.cost.costs, np.arange(self.num_layers)
        groups = range(len(self.num_devices))
        forward_s = [costs.forward_s(0, lasts, group=group, num_samples=1) for group in groups]
        backward_s = [costs.backward_s(0, lasts, group=group, num_samples=1) for group in groups]
        return _with_zero(np.array(forward_s)), _with_zero(np.array(backward_s))

    @cached_property
    def _update_s(self) -> Floats:
        """Prefix sums of the update's seconds, by group."""
        lasts, groups = np.arange(self.num_layers), range(len(self.num_devices))
        return _with_zero(np.array([self.cost.costs.update_s(0, lasts, group=group) for group in groups]))

    def _sync_s(self, size_bytes: Floats, kinds: Integers) -> Floats:
        """Return the seconds of exchanges, each by the cost of its kind."""
        if (lines := self._affines) is not None:
            startups_s, slopes_s = lines
            each = [a[kinds] + b[kinds] * size_bytes for a, b in zip(startups_s, slopes_s, strict=True)]
            least: Floats = np.minimum.reduce(each)
            return np.where(size_bytes > 0, least, 0.0)
        size_bytes, kinds = np.broadcast_arrays(size_bytes, kinds)
        found = np.zeros(size_bytes.shape)
        for kind, cost in enumerate(self._exchanges[0]):
            mine = kinds == kind
            if cost is not None and mine.any():
                found[mine] = cost(size_bytes[mine])
        return found

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

    def _room(self, firsts: Integers, lasts: Integers, kinds: Integers, samples: Integers) -> Integers:
        """Return the micro-batches in flight that fit; rounding errs on the side of more."""
        memory = self.cost.costs.memory(firsts, lasts, num_samples=samples)
        limit = self._limits_bytes[kinds]
        free = limit * (1 + 1e-12) - self.cost.costs.reserve_bytes - memory.total_bytes(0)
        each = np.broadcast_to(memory.in_flight_bytes, free.shape)
        many = np.divide(free, each, out=np.full(free.shape, float(ANY)), where=each > 0)
        return np.where(free < 0, 0, np.minimum(many, ANY)).astype(np.int64)

    @cached_property
    def _limits_bytes(self) -> Floats:
        """What a device may hold, by group."""
        return np.array([one.memory_limit_bytes for one in self.cost.costs.machines]) * self.domain.memory_scale

    @cached_property
    def floor_s(self) -> Floats:
        """Iterations with so many devices in their first stage take at least what bringing the samples takes."""
        if self.is_coarse:
            return np.zeros(len(self.choices))
        return np.array([self.domain.floors_s[one.type_index][one.num_devices - 1] for one in self.choices])

    @cached_property
    def _links(self) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        """Latencies and rates that a boundary behind, or before, a stage could have, by choice, place and link."""
        return self._links_of(is_out=True), self._links_of(is_out=False)

    def _links_of(self, *, is_out: bool) -> tuple[Floats, Floats]:
        """Return latencies and rates to every group by the network, and inside the machine where a device is left."""
        late_s, rates = zip(*(self.domain.spots.links_of(run, is_out=is_out) for run in self._runs), strict=True)
        return np.array(late_s), np.array(rates)

    @cached_property
    def _sides_s(self) -> tuple[Floats, Floats]:
        """Least seconds of a boundary behind, and before, a stage by choice, place and cut, 0 at both ends."""
        size = self.cost.costs.boundary_bytes(np.arange(self.num_layers + 1)) * self._sizes[:, None]
        return self._side_s(size, is_out=True), self._side_s(size, is_out=False)

    def out_s(self, lasts: Integers, choices: Integers, places: Integers, /) -> Floats:
        """Return the seconds that no boundary behind a stage is below."""
        found = self._sides_s[0][choices, places, lasts + 1]
        return np.broadcast_to(found, (2, *found.shape))

    def in_s(self, firsts: Integers, choices: Integers, places: Integers, /) -> Floats:
        """Return the seconds that no boundary before a stage is below."""
        found = self._sides_s[1][choices, places, firsts]
        return np.broadcast_to(found, (2, *found.shape))

    def _side_s(self, size_bytes: Floats, *, is_out: bool) -> Floats:
        """Return, by choice, place and cut, a boundary's least seconds whatever stands on its other side."""
        late_s, rates = self._links[0 if is_out else 1]
        size_bytes = size_bytes[:, None]
        found = np.full((*late_s.shape[:2], size_bytes.shape[-1]), np.inf)
        for link in range(late_s.shape[2]):
            np.minimum(found, late_s[:, :, link, None] + size_bytes / rates[:, :, link, None], out=found)
        return np.where(size_bytes > 0, found, 0.0)

    def boundary_s(self, cut: int, left: int, place: int, rights: Integers, places: Integers, /) -> Floats:
        """Return the seconds of a micro-batch over a cut, forward and back."""
        if self.is_coarse:
            out_s, in_s = (side[:, 0, cut] for side in self._sides_s)
            sides = np.maximum(out_s[left], in_s[rights])
            return np.array([sides, sides])
        size_bytes = float(self.cost.costs.boundary_bytes(cut)) * int(self._sizes[left])
        if not size_bytes > 0:
            return np.zeros((2, len(rights)))
        before, spots = self._runs[left], self.domain.spots
        pairs = zip(rights.tolist(), places.tolist(), strict=True)
        links = [spots.between(before, place, self._runs[right], start) for right, start in pairs]
        late_s, rates = np.array(links).reshape(-1, 2).T
        found = late_s + size_bytes / rates
        return np.array([found, found])


class _RowsOfOne:
    """The stages with one of several sizes of micro-batch."""

    def __init__(self, rows: StageRows, source: int) -> None:
        self._rows, self._source = rows, source
        self._begin = sum(rows.num_choices[:source])
        self._end = self._begin + rows.num_choices[source]
        self.num_layers, self.num_devices, self.num_places = rows.num_layers, rows.num_devices, rows.num_places
        self.choices, self.floor_s = rows.choices[self._begin : self._end], rows.floor_s[self._begin : self._end]
        self.units, self.speeds = rows.units, rows.speeds

    @property
    def work_s(self) -> Floats | None:
        """Device-seconds of the layers in front of each one."""
        return None if self._rows.work_s is None else self._rows.work_s[self._source]

    def stages(self, firsts: Integers, lasts: Integers, choices: Integers, places: Integers, /) -> StageSeconds:
        """Return what stages take."""
        return self._rows.stages(firsts, lasts, choices + self._begin, places)

    def out_s(self, lasts: Integers, choices: Integers, places: Integers, /) -> Floats:
        """Return the seconds that no boundary behind a stage is below."""
        return self._rows.out_s(lasts, choices + self._begin, places)

    def in_s(self, firsts: Integers, choices: Integers, places: Integers, /) -> Floats:
        """Return the seconds that no boundary before a stage is below."""
        return self._rows.in_s(firsts, choices + self._begin, places)

    def boundary_s(self, cut: int, left: int, place: int, rights: Integers, places: Integers, /) -> Floats:
        """Return the seconds of a micro-batch over a cut, forward and back."""
        return self._rows.boundary_s(cut, left + self._begin, place, rights + self._begin, places)


def _firsts(size: int, most: int) -> list[int]:
    """Return the least numbers of devices, up to a limit, that have each share of so many samples.

    Where there are too many shares, numbers evenly on a logarithmic scale: then several shares are one choice.
    """
    found, one = list[int](), 1
    while one <= most:
        if len(found) == _MOST_RUNS:
            return spread(most, _MOST_RUNS)
        found.append(one)
        share = -(-size // one)
        one = most + 1 if share == 1 else (size - 1) // (share - 1) + 1
    return found


def _with_zero(sums: Floats) -> Floats:
    """Return sums over 1, 2, ... layers with a leading 0."""
    return np.concatenate((np.zeros((len(sums), 1)), sums), axis=1)
