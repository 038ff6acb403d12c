"""What a question allows of pipelines: batch, micro-batches, schedules, stages, and devices of each group."""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from math import ceil, inf, isqrt, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats, TransferCost
from planner.errors import InfeasibleError
from planner.families.answer import iterations_of
from planner.families.pipeline.cost import NOT_LAUNCHED, BlockCost, PipelineCost, Shape, has_whole_blocks
from planner.models.input import Strategy
from planner.models.stages import Place, Stage, StageCosts
from planner.problem import Problem, Range
from planner.search import Search
from planner.solvers.chain import Line, balanced_cuts, fits, least_s
from planner.solvers.divisors import divisors

Run = tuple[int, int, int]  # a group, and the least and the most of its devices that a choice stands for

ANY = 2**40  # micro-batches in flight where memory is not short
CHUNKS = range(2, 17)  # a device, interleaved
MOST_REPLICAS = 64  # devices of a group up to which every number of them is tried
MOST_NUMBERS = 4_096  # numbers of micro-batches up to which every one is tried: those of a batch of four million
_MOST_COUNTS = 2_000_000  # numbers of devices of each group that are looked at one by one
_MOST_CELLS = 1 << 26  # of tables that tell all numbers of devices of every group apart: half a gibibyte
_MOST_READERS = 4_096  # numbers of devices in a first stage whose input is looked at one by one
_MOST_KEPT = 1_000_000  # ends of stages of balanced cuts that are remembered
_MOST_LAYERS = 1_000  # of which all runs are listed
_TOGETHER = 1.3  # ratio of numbers of micro-batches that one bound is found for
_MOST_OF_ALL = 32  # batches of which every one is searched
_MOST_OF_MANY = 8  # of more: those next below the maximum
_SMALL = 16  # tried one by one where the largest do not fit


class Spots:
    """Costs of exchanges and links of boundaries by choice and place, each found once.

    Parameters
    ----------
    places
        By group, the devices of a machine.
    is_coarse
        Whether a choice stands for several numbers of devices, wherever they stand.
    """

    def __init__(self, costs: StageCosts, places: Sequence[int], *, is_coarse: bool) -> None:
        self._costs, self._places, self._is_coarse = costs, places, is_coarse
        self._machines, self._latency_s = costs.machines, costs.latency_s
        self.num_places = (1,) * len(places) if is_coarse else tuple(places)
        self.exchanges: list[TransferCost | None] = []
        self._kinds: dict[Any, int] = {}
        self._exchanges: dict[Run, list[int]] = {}
        self._link_kinds: dict[tuple[float, float], int] = {}
        self._links: dict[tuple[Run, bool], list[tuple[int, int]]] = {}

    def place(self, run: Run, start: int) -> Place:
        """Return the place of a choice's least devices."""
        group, least, _ = run
        return Place(group=group, start=start, replicas=least, devices_per_machine=self._places[group])

    def exchanges_of(self, run: Run) -> list[int]:
        """Return which of ``exchanges`` the gradients of a choice take, by place."""
        if run not in self._exchanges:
            self._exchanges[run] = [self._exchange_at(self._at(run, start)) for start in range(max(self.num_places))]
        return self._exchanges[run]

    @property
    def links(self) -> list[tuple[float, float]]:
        """Distinct latencies and rates of links."""
        return list(self._link_kinds)

    def links_of(self, run: Run, *, is_out: bool) -> list[tuple[int, int]]:
        """Return which of ``links`` a boundary behind, or before, a choice could take, by place.

        By the network, and inside the machine, where a device is left there.
        """
        if (run, is_out) in self._links:
            return self._links[run, is_out]
        group, least, most = run
        own, found, kinds = self._machines[group], list[tuple[int, int]](), self._link_kinds
        for a in range(max(self.num_places)):
            spot = self._at(run, a)
            if self._is_coarse:  # the widest place, and room beside it wherever there could be
                stands_on = replace(spot, start=own.devices_per_machine - 1, replicas=most).num_machines
                left = own.devices_per_machine - 1 if least < own.devices_per_machine else 0
            else:
                stands_on, is_one = spot.num_machines, spot.num_machines == 1
                beside = own.devices_per_machine - spot.start - spot.replicas if is_out else spot.start
                left = beside if is_one else 0
            network = float(self._latency_s[group].min()), min(stands_on, own.num_machines) * own.network_bytes_per_s
            inside = (own.inside_latency_s, min(most, left) * own.inside_bytes_per_s) if left > 0 else (inf, inf)
            found.append((kinds.setdefault(network, len(kinds)), kinds.setdefault(inside, len(kinds))))
        self._links[run, is_out] = found
        return found

    def _at(self, run: Run, start: int) -> Place:
        """Return the place of a choice's least devices, where its group has so many places."""
        return self.place(run, start % self.num_places[run[0]])

    def _exchange_at(self, spot: Place) -> int:
        """Return which exchange it is; a new one if there was none like it."""
        curves = self._machines[spot.group].curves
        if self._is_coarse:
            # On whole machines each cost rises with their number: fewer, standing evenly, take no more.
            whole = spot.replicas // spot.devices_per_machine * spot.devices_per_machine
            spot = replace(spot, replicas=max(whole, 1))
            is_free = whole <= spot.devices_per_machine or bool(curves)
        else:
            is_free = spot.replicas == 1
        key = None if is_free else (spot.group, spot.replicas, spot.num_machines, spot.most_per_machine, spot.is_even)
        if key not in self._kinds:
            self._kinds[key] = len(self.exchanges)
            self.exchanges.append(None if is_free else self._machines[spot.group].all_reduce(spot))
        return self._kinds[key]


class Domain:
    """What the question allows: micro-batches, schedules, numbers of stages, and devices of each group; one batch.

    ``batch``: one that may be chosen; by default the largest. ``is_fine``: whether repeated blocks may be cut inside;
    by default only where more stages are pinned than there are blocks. ``skipped``: as of
    :attr:`planner.search.Search.skipped`.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        batch: int | None = None,
        is_fine: bool = False,
        skipped: frozenset[str] = frozenset(),
    ) -> None:
        self.problem, self.memory_scale, self.skipped = problem, 1.0, skipped
        self.is_equal = skipped >= NOT_LAUNCHED  # whether all devices have equal shares, see Shape.is_equal
        self.replicas: int | None = None  # of every stage; None: any
        self.is_fine = is_fine or not has_whole_blocks(problem)
        self.cost = PipelineCost(problem) if self.is_fine else BlockCost(problem)
        training = problem.training
        most = training.max_global_batch_size
        if training.batch_per_device is not None and training.fixed_batch_size is None:
            devices = max(1, min(problem.cluster.num_devices, (most or ANY) // training.batch_per_device))
            most = training.batch_per_device * devices
        self.batch = int(batch or training.fixed_batch_size or most or 1)
        self._balanced: dict[tuple[int, int], tuple[int, ...]] = {}
        self.num_layers = self.cost.costs.num_layers
        some, few = self._device_limits
        counts = [min(one.count, few.most or one.count) * one.devices_per_machine for one in self.cost.groups]
        self.num_devices = tuple(min(count, some.most or count) for count in counts)
        self.places = tuple(group.devices_per_machine for group in self.cost.groups)

    def of_batch(self, batch: int) -> "Domain":
        """Return the same domain of another batch."""
        return Domain(self.problem, batch=batch, is_fine=self.is_fine, skipped=self.skipped)

    def with_memory(self, scale: float) -> "Domain":
        """Return the same domain, where devices have so many times their memory."""
        other = copy(self)
        other.memory_scale = scale
        return other

    def parts(self) -> Iterator["Domain"]:
        """Yield domains that have all its shapes between them: where shares are equal, one for each number of replicas.

        Each is searched as if the others were not there; what is worked out of the network is shared.
        """
        if not self.is_equal:
            yield self
            return
        assert self.spots is not None  # before it is copied
        for replicas in divisors(self.batch, max(self.num_devices)):
            part = copy(self)
            for name in ("numbers_of_microbatches", "numbers_of_stages", "least_s_per_sample"):
                part.__dict__.pop(name, None)
            part.replicas, part.num_devices = replicas, tuple(one // replicas * replicas for one in self.num_devices)
            if part.numbers_of_stages and part.numbers_of_microbatches:
                yield part

    @cached_property
    def numbers_of_stages(self) -> range:
        """Those that may be chosen."""
        pinned = self.problem.fixed.get("num_stages")
        most = min(self.num_layers, sum(number // (self.replicas or 1) for number in self.num_devices))
        if pinned is None:
            return range(1, most + 1)
        return range(pinned, pinned + 1) if 1 <= pinned <= most else range(0)

    def most_replicas(self, most: int, number: int) -> int:
        """Return the most replicas up to a limit that may share each of a number of micro-batches."""
        samples = self.batch // number
        return divisors(samples, most)[-1] if self.is_equal else min(most, samples)

    def some_replicas(self, most: int, number: int, few: int) -> list[int]:
        """Return about so many of the numbers of replicas up to a limit that may share each of some micro-batches."""
        samples = self.batch // number
        return divisors(samples, most)[-few:] if self.is_equal else spread(min(most, samples), few)

    @property
    def _device_limits(self) -> tuple[Range, Range]:
        """Numbers of devices and machines in all, pins included."""
        return self.problem.training_devices, self.problem.allowed_machines

    def num_machines(self, used: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the machines that so many devices of each group stand on."""
        return np.asarray(sum(-(-one // places) for one, places in zip(used, self.places, strict=True)))

    def allowed(self, used: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the question allows so many devices of each group; groups along the first axis."""
        mask: NDArray[np.bool_] = used.sum(axis=0) > 0
        for number, limit in zip((used.sum(axis=0), self.num_machines(used)), self._device_limits, strict=True):
            mask &= (number >= limit.least) & (number <= (limit.most or ANY))
        return mask

    @cached_property
    def is_coarse(self) -> bool:
        """Whether a choice stands for several numbers of devices: there are too many to try each, or to tell apart."""
        states = prod(number + 1 for number in self.num_devices)
        cells = states * table_cells(self.num_layers, sum(self.num_devices))
        return max(self.num_devices, default=0) > MOST_REPLICAS or (len(self.num_devices) > 1 and cells > _MOST_CELLS)

    @cached_property
    def spots(self) -> Spots:
        """What stages have of the network by where they stand; shared by all sizes of micro-batches."""
        return Spots(self.cost.costs, self.places, is_coarse=self.is_coarse)

    @property
    def is_limited(self) -> bool:
        """Whether not every number of the devices may be used."""
        return any(limit != Range() for limit in self._device_limits)

    @cached_property
    def most_allowed(self) -> tuple[int, ...]:
        """Devices of each group, as many in all as limits and pins allow with some of every group, if they do."""
        sizes = [number + 1 for number in self.num_devices]
        if not self.is_limited or prod(sizes) > _MOST_COUNTS:
            return self.num_devices
        used = np.indices(sizes).reshape(len(sizes), -1)
        used = used[:, self.allowed(used) & used.all(axis=0)]
        return tuple(used[:, used.sum(axis=0).argmax()].tolist()) if used.size else self.num_devices

    def allows(self, shape: Shape) -> bool:
        """Whether limits, pins and memory allow a shape."""
        line = shape.stages[: shape.num_devices_in_line]
        used = [sum(one.replicas for one in line if one.group == index) for index in range(len(self.num_devices))]
        most = self.batch // shape.num_microbatches
        return (
            (shape.is_equal or not self.is_equal)
            and all(one <= have for one, have in zip(used, self.num_devices, strict=True))
            and bool(self.allowed(np.array(used)))
            and len(line) in self.numbers_of_stages
            and all(one.replicas <= most for one in line)
            and self.fits(shape)
        )

    def fits(self, shape: Shape) -> bool:
        """Whether memory allows a shape."""
        return all(row["total"] <= row["limit"] * self.memory_scale for row in self.cost.memory_bytes(shape))

    @cached_property
    def numbers_of_microbatches(self) -> list[int]:
        """The fewest micro-batches of every size, some ``2 sqrt(batch)`` numbers, or the pinned one.

        A micro-batch counts as the largest, hence more of the same size take no less time, and keep no less in memory.
        Of very large batches only some of them: the smallest sizes, the fewest micro-batches, and a part of those
        between, evenly on a logarithmic scale. Where shares are equal, all that divide a replica's samples.
        """
        pinned = self.problem.fixed.get("num_microbatches")
        if self.is_equal:
            return [one for one in divisors(self.most_samples) if pinned in (None, one)]
        if pinned is not None:
            return [pinned] * (1 <= pinned <= self.batch)
        root = int(self.batch**0.5) + 1
        ends: Iterable[int] = range(1, root + 1)
        if not self.has_all_numbers:
            few = max(1, MOST_NUMBERS // 4)
            ends = [*range(1, few + 1), *(int(one) for one in np.geomspace(few, root, few))]
        sizes = {*(one for one in ends if one <= self.batch), *(ceil(self.batch / one) for one in ends)}
        return sorted({ceil(self.batch / size) for size in sizes})

    @property
    def has_all_numbers(self) -> bool:
        """Whether the fewest micro-batches of every size are tried."""
        is_few = 2 * (isqrt(self.batch) + 1) <= MOST_NUMBERS
        return is_few or self.is_equal or "num_microbatches" in self.problem.fixed

    @property
    def schedules(self) -> tuple[str, ...]:
        """Those that may be chosen."""
        pinned = self.problem.fixed.get("schedule")
        known = ("1f1b", "gpipe", "interleaved")
        if pinned is not None and pinned not in known:
            raise InfeasibleError(
                f"No plan fits: fix.schedule is {pinned}, which only layouts of transformers have (hybrid); other "
                f"networks run {', '.join(known)}."
            )
        left = known[:2] if self.is_equal else known
        return left if pinned is None else tuple(one for one in left if one == pinned)

    def why_empty(self) -> str | None:
        """Return which counts leave nothing to choose from, or None."""
        sizes = [number + 1 for number in self.num_devices]  # of very many, some are taken to be allowed
        if not self.cost.groups or not (prod(sizes) > _MOST_COUNTS or self.allowed(np.indices(sizes)).any()):
            words = f" ({self.problem.devices_words})" if self.problem.devices_words else ""
            return (
                f"No plan fits: no number of machines and devices meets all limits and pins{words}. Drop or change one "
                f"of them."
            )
        if not self.numbers_of_stages:
            most = min(self.num_layers, sum(self.num_devices))
            return (
                f"No plan fits: fix.num_stages is {self.problem.fixed['num_stages']}, and {self.num_layers} layers on "
                f"{sum(self.num_devices)} devices make 1 to {most} stages. Change it."
            )
        if not self.numbers_of_microbatches:
            pinned = self.problem.fixed["num_microbatches"]
            return f"No plan fits: fix.num_microbatches is {pinned}, and the batch has {self.batch} samples. Lower it."
        return None

    @property
    def fits_one_stage(self) -> bool:
        """Whether the whole network fits on a device of any group, in the smallest micro-batches."""
        number, last = max(self.numbers_of_microbatches), self.num_layers - 1
        return any(
            self.cost.fits(self.shape([Stage(first=0, last=last, group=group, replicas=1)], number, "1f1b"))
            for group in range(len(self.num_devices))
        )

    @property
    def most_samples(self) -> int:
        """The samples of an iteration that a replica has at most."""
        return self.batch // (self.replicas or 1)

    @cached_property
    def least_s_per_sample(self) -> float:
        """Seconds a sample that no pipeline is below: all devices compute all the time, each what it does best."""
        most = self.most_samples
        rate = float(np.dot(self.speeds_at(most), self.num_devices))
        return float(self.sample_s(most)[0].sum()) / rate if np.isfinite(rate) and rate else 0.0

    def sample_s(self, most: int) -> Floats:
        """Return the least seconds of a sample of every layer, both ways, in passes of at most so many; by group."""
        return np.array([machines.profile.least_s(most) for machines in self.cost.costs.machines])

    def speeds_at(self, most: int) -> tuple[float, ...]:
        """Return how many times as fast as the first group's a device of each is, at the layer that suits it best.

        In passes of so many samples; where fewer pass, the first group's device may be slower than that counts.
        """
        seconds = self.sample_s(most)
        first = np.maximum(seconds[0], 1e-300)
        return tuple((first / np.maximum(seconds, 1e-300)).max(axis=1).tolist())

    def shape(self, stages: Sequence[Stage], number: int, schedule: str, chunks: int = 1) -> Shape:
        """Return a shape with the question's batch."""
        return Shape(
            stages=tuple(stages),
            num_microbatches=number,
            global_batch_size=self.batch,
            schedule=schedule,
            chunks_per_device=chunks,
        )

    def balanced(self, group: int, num_parts: int, replicas: int) -> list[Stage]:
        """Return stages of one group, as equal as they can be."""
        ends = self._balanced.get((group, num_parts))
        if ends is None:
            ends = balanced_cuts(self.cost.costs.machines[group].profile.least_s(self.batch), num_parts)
            if (len(self._balanced) + 1) * self.num_layers <= _MOST_KEPT:
                self._balanced[group, num_parts] = ends
        starts = [0, *(end + 1 for end in ends[:-1])]
        return [Stage(first=i, last=j, group=group, replicas=replicas) for i, j in zip(starts, ends, strict=True)]

    @cached_property
    def least_stall_s(self) -> float:
        """Seconds of input that no iteration hides, where the framework does not copy ahead."""
        if Strategy(self.problem.calibration.strategy).copies_ahead or sum(self.num_devices) > _MOST_READERS:
            return 0.0
        last, least = self.num_layers - 1, float("inf")
        for group, most in enumerate(self.num_devices):
            for replicas in spread(min(most, self.batch), ANY):
                shape = self.shape([Stage(first=0, last=last, group=group, replicas=replicas)], 1, "1f1b")
                least = min(least, self.cost.stall_s(shape, float("inf")))
        return least

    @cached_property
    def floors_s(self) -> tuple[tuple[float, ...], ...]:
        """Seconds that an iteration takes at least to bring the samples to its first stage, by group and devices."""
        copies_ahead = Strategy(self.problem.calibration.strategy).copies_ahead
        floors: list[tuple[float, ...]] = []
        for group, most in enumerate(self.num_devices):
            row = []
            for replicas in range(1, most + 1):  # how many micro-batches there are makes no difference
                stage = Stage(first=0, last=self.num_layers - 1, group=group, replicas=replicas)
                read = self.cost.input(self.shape([stage], 1, "1f1b"))
                late_s = max(read.read_s, read.decode_s)
                row.append(read.bound_s if copies_ahead else late_s - self.least_stall_s)
            floors.append(tuple(row))
        return tuple(floors)


def table_cells(num_layers: int, num_choices: int) -> int:
    """Return the numbers that a table whose number of stages is open keeps of each state, and of what may follow it."""
    return 14 * (num_layers + 1) + 10 * num_choices


def spread(most: int, number: int) -> list[int]:
    """Return 1 to ``most``, or about so many of them, evenly on a logarithmic scale."""
    if most <= number:
        return list(range(1, most + 1))
    return sorted({int(one) for one in np.round(np.geomspace(1, most, max(number, 2)))})


def floors_s(domain: Domain, some: Iterable[int], search: Search) -> Iterator[tuple[list[int], float]]:
    """Yield some numbers of micro-batches, the largest first, with seconds that no GPipe or 1F1B of them is below.

    None of a long line; ends before the last one when the search is over.
    """
    if domain.num_layers > _MOST_LAYERS:
        return
    numbers = sorted(some, reverse=True)
    while numbers and not search.is_over:
        together = [one for one in numbers if one * _TOGETHER >= numbers[0]]
        numbers = numbers[len(together) :]
        line = _line(domain, together[-1])
        yield together, least_s(line, domain.batch, together[-1], together[0], domain.numbers_of_stages)


def hopeless_numbers(domain: Domain, search: Search) -> set[int]:
    """Return numbers of micro-batches for which no stages fit in memory, whatever their replicas; not all of them.

    With as many micro-batches as stages, or more, 1F1B holds as many in flight: such numbers are told by one of them.
    None of a long line, or when the search is over.
    """
    if domain.num_layers > _MOST_LAYERS:
        return set()
    line, most = _line(domain, 1), max(domain.numbers_of_stages, default=0)
    held = {number: min(number, most) for number in domain.numbers_of_microbatches}
    fit = {low: fits(line, low, domain.numbers_of_stages) for low in search.watch(sorted(set(held.values())), every=1)}
    return {number for number, low in held.items() if not fit.get(low, True)}


def _line(domain: Domain, fewest: int) -> Line:
    """Return the line of layers and devices, in so many micro-batches or more; the first group's have speed 1."""
    costs, layers = domain.cost.costs, np.arange(domain.num_layers)
    firsts, lasts = np.meshgrid(layers, layers, indexing="ij")
    memory = costs.memory(firsts, np.maximum(firsts, lasts), num_samples=1)
    limit = max(one.memory_limit_bytes for one in costs.machines) * domain.memory_scale * (1 + 1e-9)
    free = limit - costs.reserve_bytes - memory.total_bytes(0)
    each = np.broadcast_to(memory.in_flight_bytes, free.shape)
    room = np.where(free < 0, 0, np.divide(free, each, out=np.full(free.shape, float(ANY)), where=each > 0))
    samples = ceil(domain.most_samples / fewest)
    speeds = domain.speeds_at(samples)
    return Line(
        work_s=domain.sample_s(samples)[0],
        most_in_flight=np.triu(np.minimum(room, ANY).astype(np.int64)),
        speed=float(np.dot(speeds, domain.num_devices)),
        fastest=max(speeds),
    )


# Where the batch may vary, of a few batches all are searched; of many only those next below the maximum, in which
# rounding samples to micro-batches and replicas costs differently; and, where none of these fits, some smaller ones,
# which keep less in memory.


def first_batches(largest: Domain) -> list[int]:
    """Return the batches to search, those of the least bound first; of equals the largest."""
    training = largest.problem.training
    if training.fixed_batch_size is not None or training.batch_per_device is not None:
        return [largest.batch]
    number = largest.batch if largest.batch <= _MOST_OF_ALL else _MOST_OF_MANY
    batches = range(largest.batch, largest.batch - number, -1)
    return sorted(batches, key=lambda batch: (bound_of_batch(largest, batch), -batch))


def further_batches(largest: Domain) -> list[int]:
    """Return the batches to search where none of the first ones fits: halves of the maximum, and small ones."""
    first = first_batches(largest)
    if len(first) in (1, largest.batch):
        return []
    halves = {largest.batch >> power for power in range(largest.batch.bit_length())}
    return sorted({*halves, *range(1, _SMALL + 1)} - set(first), reverse=True)


def bound_of_batch(domain: Domain, batch: int) -> float:
    """Return the objective that no pipeline on a batch beats.

    An iteration takes no less than all devices need for its samples, each computing what it does best, and no less than
    one sample's way through all layers and back, each on the device that is fastest at it.
    """
    way_s = float(domain.sample_s(1).min(axis=0).sum())
    seconds = max(domain.least_s_per_sample * batch, way_s)
    return seconds * float(iterations_of(domain.problem, batch))


def bound_of_others(largest: Domain, searched: Sequence[int]) -> float:
    """Return the objective that no batch beats that is allowed but was not searched; ``inf`` if there is none.

    The bound of a batch falls or rises with it throughout, as the goal counts iterations or not: its ends are enough.
    """
    training = largest.problem.training
    if training.fixed_batch_size is not None:
        return float("inf")
    left = set(range(1, largest.batch + 1)) - set(searched) if largest.batch <= _MOST_OF_ALL else None
    if left is None:
        most = next(batch for batch in range(largest.batch, 0, -1) if batch not in searched)
        left = {1, most}
    return min((bound_of_batch(largest, batch) for batch in left), default=float("inf"))


def searched_batches_line(largest: Domain, searched: Sequence[int]) -> str:
    """Return which batches were searched, in words."""
    if len(searched) == 1:
        return f"only the batch of {searched[0]} was searched; others up to {largest.batch} are bounded"
    if len(set(searched)) == largest.batch:
        return f"every batch up to {largest.batch} was searched"
    return (
        f"{len(searched)} batches from {min(searched)} to {max(searched)} were searched; others up to {largest.batch} "
        f"are bounded"
    )
