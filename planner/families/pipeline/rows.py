"""The stages of one question as arrays, as the search over pipelines asks for them."""

from dataclasses import replace
from functools import cached_property
from math import ceil, prod
from typing import Any

import numpy as np

from planner.cost import Affine, Floats, TransferCost
from planner.families.pipeline.domain import ANY, Domain
from planner.families.pipeline.spots import Run
from planner.models.collectives import CheapestOf
from planner.models.pipeline_places import Place, Stage
from planner.models.ssgd_equations import Strategy
from planner.solvers.pipeline import Choice, Integers, StageSeconds

__all__ = ["StageRows"]

_MOST_MOVES = 3e7  # stages by state in one table of several large groups
_FREE = Affine(startup_s=0.0, per_byte_s=0.0)


class StageRows:
    """The stages of one question with one size of micro-batch.

    ``is_coarse``, for large groups: a choice stands for all numbers of devices with the same share of a micro-batch. It
    uses up as many as the least of them, and takes at most what any of them takes wherever they stand.
    """

    def __init__(self, domain: Domain, number: int) -> None:
        self.domain, self.cost, self.number = domain, domain.cost, number
        self.size = ceil(domain.batch / number)
        self.num_layers, self.num_devices = domain.num_layers, domain.num_devices
        self.is_coarse, self.num_places = domain.is_coarse, domain.spots.num_places
        self._runs = [run for group in range(len(domain.num_devices)) for run in self._runs_of(group)]
        self.choices = tuple(Choice(type_index=group, num_devices=least) for group, least, _ in self._runs)
        self._types = np.array([group for group, _, _ in self._runs])
        self._samples = np.array([ceil(self.size / most) for _, _, most in self._runs])

    def _runs_of(self, group: int) -> list[Run]:
        """Return (group, least, most) of the numbers of devices that a choice stands for."""
        most = min(self.domain.num_devices[group], self.domain.batch // self.number)
        if not self.is_coarse:
            return [(group, one, one) for one in range(1, most + 1)]
        firsts = sorted({ceil(self.size / ceil(self.size / one)) for one in range(1, most + 1)})
        return [(group, one, after - 1) for one, after in zip(firsts, [*firsts[1:], most + 1], strict=True)]

    @cached_property
    def units(self) -> tuple[int, ...]:
        """Devices that tables count as one: 1 but where several large groups would make them too large."""
        if len(self.num_devices) == 1:
            return (1,)
        most = _MOST_MOVES / (len(self._runs) * self.num_layers**2)
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
        """Device-seconds of a micro-batch of the layers in front of each one, on the first group's devices."""
        if not np.isfinite(self.speeds).all():
            return None
        return np.asarray((self._seconds[0][0] + self._seconds[1][0]) * self.size * (1 - 1e-12))

    def place(self, index: int, start: int) -> Place:
        """Return the place of a choice's least devices."""
        return self.domain.spots.place(self._runs[index], start)

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
        strategy, last = Strategy(self.domain.problem.calibration.strategy), self.num_layers - 1
        found, stall_s = [], self.domain.least_stall_s
        for choice in self.choices:
            stage = Stage(first=0, last=last, group=choice.type_index, replicas=choice.num_devices)
            read = self.cost.input(self.domain.shape([stage], self.number, "1f1b"))
            found.append(read.bound_s if strategy.copies_ahead else max(read.read_s, read.decode_s) - stall_s)
        return np.array(found)

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
        size = self.cost.costs.boundary_bytes(np.arange(self.num_layers + 1)) * self.size
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
        """Return, by choice, place and size, a boundary's least seconds whatever stands on its other side."""
        late_s, rates = self._links[0 if is_out else 1]
        found = np.full((*late_s.shape[:2], len(size_bytes)), np.inf)
        for link in range(late_s.shape[2]):
            np.minimum(found, late_s[:, :, link, None] + size_bytes / rates[:, :, link, None], out=found)
        return np.where(size_bytes > 0, found, 0.0)

    def boundary_s(self, cut: int, left: int, place: int, rights: Integers, places: Integers, /) -> Floats:
        """Return the seconds of a micro-batch over a cut, forward and back."""
        if self.is_coarse:
            out_s, in_s = (side[:, 0, cut] for side in self._sides_s)
            sides = np.maximum(out_s[left], in_s[rights])
            return np.array([sides, sides])
        before = self.place(left, place)
        found = [
            self.cost.costs.transfer_s(cut, before, self._after(before, right, start), microbatch_size=self.size)
            for right, start in zip(rights.tolist(), places.tolist(), strict=True)
        ]
        return np.array([found, found])

    def _after(self, before: Place, right: int, start: int) -> Place:
        """Return the place of the stage behind another one; of one group, they stand side by side."""
        place = self.place(right, start)
        return replace(place, start=before.start + before.replicas) if place.group == before.group else place


def _with_zero(sums: Floats) -> Floats:
    """Return sums over 1, 2, ... layers with a leading 0."""
    return np.concatenate((np.zeros((len(sums), 1)), sums), axis=1)
