"""Whether any pipeline of a question fits in memory, with how much memory one would, and why none does.

For a number of micro-batches, the devices that a stage needs follow from its bytes: each holds its weights whatever the
replicas, and activations by its share of a micro-batch. The fewest devices over all splits are then a recursion
(:mod:`planner.solvers.chain`) that takes milliseconds. 1F1B holds no more than GPipe, so it stands for both
where both may be chosen. Interleaved pipelines are few (``_interleaved``) and tried one by one.

Exact for one group, and for several without limits on devices and machines. With such limits, or with groups so large
that their devices are taken as of one kind, a shape that is found fits, but none may be found where there is one:
``is_proven`` tells.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np

from planner.cost import Floats
from planner.errors import InfeasibleError
from planner.families.pipeline.cost import Shape
from planner.families.pipeline.domain import CHUNKS, Domain, hopeless_numbers
from planner.frozen import frozen
from planner.models.stages import Stage
from planner.search import Search
from planner.solvers.chain import NONE, FewestDevices, Integers
from planner.solvers.pipeline_bounds import Schedule
from planner.units import Dimension, format_human

_MOST_BUDGETS = 4096  # numbers of devices of all groups but one that are told apart
_MOST_BUDGETS_BY_LAYER = 1 << 22  # the same in front of every layer
_MOST_USED = 2_000_000  # numbers of devices of each group that are looked at one by one
_MOST_KNOWN = 2_000_000  # stages, by first and last layer, whose bytes are kept
_MOST_ROWS = 64  # ways to use devices of several groups that are tried to meet limits
_ROUND_UP = 1.0006  # four digits that are printed may be rounded down by half of the last one
_CLOSE = 1e-6  # relative difference at which two amounts of memory are one
_ABOVE = 1.25  # times what is known to be too little, that is tried first
_HALVES = 6  # of an interval between amounts that are too little and may do
_NEAR = 1.02  # ratio of two amounts between which a bisection looks whether the larger one is the least
_MOST_SHARES = 2**12  # of what all devices need together; where that is not enough, nothing may be


@frozen
class Fitting:
    """A pipeline that fits, if one was found; ``is_proven``: that there is one, or none."""

    shape: Shape | None
    is_proven: bool


def fitting(domain: Domain, search: Search) -> Fitting:
    """Return a pipeline that fits in memory and meets all limits and pins."""
    if _outgrows(domain):
        return Fitting(shape=None, is_proven=True)
    is_proven = True
    hopeless = set() if domain.is_fine else hopeless_numbers(domain, search)
    for number in reversed(domain.numbers_of_microbatches):
        if number in hopeless:
            continue
        if search.is_over:
            return Fitting(shape=None, is_proven=False)
        found = _of_number(domain, number, search)
        if found.shape is not None:
            return found
        is_proven = is_proven and found.is_proven
    for shape in _interleaved(domain, search, lambda: domain.memory_scale):
        if domain.allows(shape):
            return Fitting(shape=shape, is_proven=True)
    return Fitting(shape=None, is_proven=is_proven and not search.is_over)


def _outgrows(domain: Domain) -> bool:
    """Whether states are too large for all devices, or of a layer, with activations of one sample, for one device.

    A stage holds all of that of each of its layers, whatever else it does.
    """
    costs, (states, kept) = domain.cost.costs, _by_layer(domain)
    rooms = [max(one.memory_limit_bytes * domain.memory_scale - costs.reserve_bytes, 0.0) for one in costs.machines]
    return bool(
        states.sum() * (1 - _CLOSE) > np.dot(domain.num_devices, rooms)
        or (states + kept).max() * (1 - _CLOSE) > max(rooms)
    )


def _by_layer(domain: Domain) -> tuple[Floats, Floats]:
    """Return the bytes of each layer's weights and states, and of what it keeps of one sample in flight.

    What comes in is another layer's, but of the first one of a stage, which keeps that besides.
    """
    costs, layers = domain.cost.costs, np.arange(domain.num_layers)
    each = costs.memory(layers, layers, num_samples=1)
    states = each.weights_bytes + each.gradients_bytes + each.optimizer_bytes
    return states, each.in_flight_bytes - costs.layers.cut_bytes[layers]


def numbers_of_stages_that_fit(domain: Domain, search: Search) -> list[int]:
    """Return numbers of stages with which something is known to fit, GPipe or 1F1B."""
    found: set[int] = set()
    for number in domain.numbers_of_microbatches:
        splits = _Splits(domain, number, search)
        for num_stages in splits.numbers_of_stages():
            if num_stages not in found and splits.shape(num_stages) is not None:
                found.add(num_stages)
            if search.is_over:
                return sorted(found)
    return sorted(found)


def _of_number(domain: Domain, number: int, search: Search) -> Fitting:
    """Return a pipeline of so many micro-batches that fits, under GPipe or 1F1B."""
    is_proven = True
    kinds = range(len(domain.num_devices))
    tries = [_Splits(domain, number, search)]
    if tries[0].is_pooled:
        tries += [_Splits(domain, number, search, alone=kind) for kind in kinds]
    for splits in tries:
        for num_stages in splits.numbers_of_stages():
            if search.is_over:
                return Fitting(shape=None, is_proven=False)
            if not splits.may_fit(num_stages):
                continue
            if (shape := splits.shape(num_stages)) is not None:
                return Fitting(shape=shape, is_proven=True)
            is_proven = is_proven and splits.is_exact
        is_proven = is_proven and not splits.fewest.is_stopped
        if is_proven:
            break  # not even with all groups taken as one
    return Fitting(shape=None, is_proven=is_proven)


def may_fit(domain: Domain, ends: tuple[int, int], search: Search, least: Integers, ahead: Integers) -> bool:
    """Whether any pipeline of some numbers of micro-batches may fit, under GPipe or 1F1B; True where it was not told.

    Of one group. ``ends``: the least and the most of these numbers; ``least``: devices that a stage has at least, by
    first and last layer; ``ahead``: and all those before a layer.
    """
    splits = _Splits(domain, ends[1], search, least=(least, ahead), fewest=ends[0])
    return any(splits.may_fit(one) for one in splits.numbers_of_stages()) or splits.fewest.is_stopped


class _Splits:
    """All splits for one number of micro-batches, under 1F1B or else GPipe.

    ``is_pooled``: all devices count as of the kind that suits a stage best; ``alone``: only one group may be used;
    ``least``: devices of a stage, by first and last layer, and of all those before a layer; ``fewest``: in place of
    ``number`` as to what is in flight, and how many replicas have a sample of each micro-batch.
    """

    def __init__(
        self,
        domain: Domain,
        number: int,
        search: Search,
        alone: int | None = None,
        least: tuple[Integers, Integers] | None = None,
        fewest: int | None = None,
    ) -> None:
        self.domain, self.number, self._fewest = domain, number, fewest or number
        self._least = None if least is None else least[0]
        self._ahead_in_time = None if least is None else least[1][: domain.num_layers]
        self._known_layers, self._known = (0, 0), list[Floats]()  # first ones, and what is known of them
        self.size = -(-domain.batch // number)
        self.is_plain = bool({"1f1b", "gpipe"} & set(domain.schedules))
        self.schedule = Schedule(num_microbatches=self._fewest, is_gpipe="1f1b" not in domain.schedules)
        groups = range(len(domain.num_devices)) if alone is None else [alone]
        self.groups = sorted(groups, key=lambda group: (-domain.num_devices[group], group))
        counts = [domain.num_devices[group] for group in self.groups]
        budgets = prod(count + 1 for count in counts[1:])
        self.is_pooled = len(counts) > 1 and (
            budgets > _MOST_BUDGETS or budgets * domain.num_layers > _MOST_BUDGETS_BY_LAYER
        )
        counts = [sum(counts)] if self.is_pooled else counts
        self._held_bytes = _by_layer(domain)
        limits = [domain.cost.costs.machines[group].memory_limit_bytes for group in self.groups]
        self._room_bytes = max(limits) * domain.memory_scale * (1 + 1e-12) - domain.cost.costs.reserve_bytes
        self._width = int(self._most_layers(1).max())  # of which the last stage has most, as fewest are in flight
        self.fewest = FewestDevices(domain.num_layers, counts, self._needs, search, self._ahead, self._most_layers)

    @property
    def is_exact(self) -> bool:
        """Whether :meth:`shape` finds one wherever there is one of so many stages."""
        return not self.is_pooled and (len(self.domain.num_devices) == 1 or not self.domain.is_limited)

    def numbers_of_stages(self) -> Iterator[int]:
        """Yield the numbers of stages that the question allows, as long as the layers may fit in so many."""
        for num_stages in range(1, max(self.domain.numbers_of_stages, default=0) + 1):
            if not self.is_plain or not self.fewest.add():
                return
            if num_stages in self.domain.numbers_of_stages:
                yield num_stages

    def may_fit(self, num_stages: int) -> bool:
        """Whether the layers fit on the devices in so many stages, limits and pins of devices left aside."""
        return bool(len(self.fewest.fewest(num_stages)))

    def shape(self, num_stages: int) -> Shape | None:
        """Return a shape of so many stages that fits and meets all limits."""
        if num_stages * max(map(self._most, self.groups)) < self.domain.problem.training_devices.least:
            return None  # not even with a device for each sample
        for row in self.fewest.fewest(num_stages).tolist()[: -_MOST_ROWS - 1 : -1]:
            found = self.fewest.stages(num_stages, row)
            stages = [
                Stage(first=first, last=last, group=self._group(k, first, last, axis), replicas=needed)
                for k, (first, last, axis, needed) in zip(range(num_stages, 0, -1), found, strict=True)
            ]
            if (grown := self._grown(stages)) is not None:
                shape = self.domain.shape(grown, self.number, "gpipe" if self.schedule.is_gpipe else "1f1b")
                if self.domain.allows(shape):
                    return shape
            if not self.domain.is_limited:
                return None  # the widest budgets do not do, only by rounding or as devices were pooled
        return None

    def _group(self, k: int, first: int, last: int, axis: int) -> int:
        """Return the group of a stage: where they are pooled, the one that needs fewest devices."""
        if not self.is_pooled:
            return self.groups[axis]
        return self.groups[int(self._needs_by_group(k, np.array([first]), last - first + 1)[:, 0, -1].argmin())]

    def _grown(self, stages: Sequence[Stage]) -> list[Stage] | None:
        """Return the stages with as many replicas as the limits and pins ask for; None where they cannot have them."""
        domain, grown = self.domain, list(stages)
        if not domain.is_limited:
            return grown
        least, most = [0] * len(domain.num_devices), [0] * len(domain.num_devices)
        for stage in stages:
            least[stage.group] += stage.replicas
            most[stage.group] = min(most[stage.group] + self._most(stage.group), domain.num_devices[stage.group])
        sizes = [high - low + 1 for low, high in zip(least, most, strict=True)]
        if min(sizes) < 1 or prod(sizes) > _MOST_USED:
            return None
        used = np.indices(sizes).reshape(len(sizes), -1) + np.array(least)[:, None]
        allowed = np.flatnonzero(domain.allowed(used))
        if not len(allowed):
            return None
        wanted = used[:, allowed[used[:, allowed].sum(axis=0).argmin()]].tolist()
        for index, stage in enumerate(grown):
            more = min(wanted[stage.group] - least[stage.group], self._most(stage.group) - stage.replicas)
            grown[index] = replace(stage, replicas=stage.replicas + more)
            least[stage.group] += more
        return grown

    def _most(self, group: int) -> int:
        """Return the replicas that a stage may have: each has a sample of every micro-batch."""
        return min(self.domain.num_devices[group], self.domain.batch // self._fewest)

    def _most_layers(self, k: int) -> Integers:
        """Return numbers of layers, by the first one, at least 1: as the k-th stage from the end no longer run fits.

        Whatever its device and replicas: a stage holds the states of all its layers, and the activations of one sample
        for each micro-batch in flight; what is received and sent comes on top.
        """
        (states, kept), layers = self._held_bytes, np.arange(self.domain.num_layers)
        held = states + int(self.schedule.in_flight(np.array(k))) * kept
        until = np.concatenate(([0.0], np.cumsum(np.maximum(held, 0.0))))
        ends = np.searchsorted(until, until[:-1] + max(self._room_bytes, 0.0) + _CLOSE * until[-1], "right")
        return np.asarray(np.maximum(1, ends - 1 - layers))

    def _ahead(self, k: int) -> Integers:
        """Return devices that the layers before each one need at least, where k stages are behind; 0 of several kinds.

        With b samples in a micro-batch and n in flight, r devices of a stage hold ``r S + b n A`` or more of its states
        and what it keeps of a sample, as each has ``b / r`` samples or more. In front of k stages n is that of the
        ``k + 1``-th from the end, or more; sums are over layers, but for what comes in, which is left out.
        """
        found = np.zeros(self.domain.num_layers, dtype=np.int64)
        if len(self.fewest.num_devices) == 1 and self._room_bytes > 0:
            states, kept = self._held_bytes
            held = states + self.size * int(self.schedule.in_flight(np.array(k + 1))) * kept
            before = np.cumsum(held) - held
            found = np.ceil(np.clip(before * (1 - _CLOSE) / self._room_bytes, 0, NONE)).astype(np.int64)
        return found if self._ahead_in_time is None else np.maximum(found, self._ahead_in_time)

    def _needs(self, k: int, firsts: Integers, width: int) -> Integers:
        """Return the devices that stages need, see :mod:`planner.solvers.chain`."""
        found = self._needs_by_group(k, firsts, width)
        return found.min(axis=0, keepdims=True) if self.is_pooled else found

    def _needs_by_group(self, k: int, firsts: Integers, width: int) -> Integers:
        """Return the devices by group, first layer and layers behind it; rounding errs on the side of fewer."""
        in_flight_bytes, error_bytes, *free_bytes = self._bytes(firsts, width)
        each = int(self.schedule.in_flight(np.array(k))) * in_flight_bytes + error_bytes
        rows = []
        for group, free in zip(self.groups, free_bytes, strict=True):
            with np.errstate(divide="ignore", invalid="ignore"):
                samples = np.fmin(free / each, self.size)  # all of them where nothing is kept
                samples = np.floor(samples, out=samples)
                needed = self.size / samples
            needed = np.ceil(needed, out=needed)
            if self._least is not None:
                needed = np.maximum(needed, self._least[firsts[:, None], self._lasts(firsts, width)])
            needed[(samples < 1) | (needed > self._most(group))] = NONE
            rows.append(needed.astype(np.int64))
        return np.array(rows)

    def _lasts(self, firsts: Integers, width: int) -> Integers:
        """Return the last layers of stages by their first ones, and layers behind these."""
        return np.asarray(np.minimum(firsts[:, None] + np.arange(width), self.domain.num_layers - 1))

    def _bytes(self, firsts: Integers, width: int) -> list[Floats]:
        """Return what stages keep of a sample, errors, and by group what weights and states leave free.

        ``firsts``: layers that follow one another. Of short lines all are worked out, once.
        """
        low, high = int(firsts[0]), int(firsts[-1]) + 1
        if not self._known or not self._known_layers[0] <= low < high <= self._known_layers[1]:
            is_short = self.domain.num_layers * self._width <= _MOST_KNOWN
            self._known_layers = (0, self.domain.num_layers) if is_short else (low, high)
            layers, costs = np.arange(*self._known_layers), self.domain.cost.costs
            memory = costs.memory(layers[:, None], self._lasts(layers, self._width), num_samples=1)
            fixed = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes + costs.reserve_bytes
            limits = [costs.machines[group].memory_limit_bytes * self.domain.memory_scale for group in self.groups]
            free = [limit * (1 + 1e-12) - fixed for limit in limits]
            self._known = [np.maximum(memory.in_flight_bytes, 0.0), memory.error_bytes, *free]
        return [rows[low - self._known_layers[0] : high - self._known_layers[0], :width] for rows in self._known]


def _interleaved(domain: Domain, search: Search, most: Callable[[], float]) -> Iterator[Shape]:
    """Yield the interleaved shapes that hold least, by group, stages, chunks and micro-batches; limits are met.

    Left out are those that fill more than ``most()`` times a device, by all that :func:`dealt_shares`,
    :func:`states_fit` or :func:`least_share` knows. Ends before the last one when the search is over.
    """
    if "interleaved" not in domain.schedules:
        return
    for group, devices in enumerate(domain.num_devices):
        dealt_share = dealt_shares(domain, group)
        for p, chunks in product(domain.numbers_of_stages, CHUNKS):
            if not 2 <= p <= devices or p * chunks > domain.num_layers:
                continue
            if search.is_over:
                return
            if dealt_share(p, chunks) * (1 - _CLOSE) > most() or not states_fit(domain, group, p, chunks, most()):
                continue
            for number in domain.numbers_of_microbatches:
                if search.is_over:
                    return
                if number % p == 0 and (replicas := _most_replicas(domain, group, p, number)):
                    cuts = domain.balanced(group, p * chunks, replicas)
                    shape = domain.shape(cuts, number, "interleaved", chunks)
                    if least_share(domain, shape) * (1 - _CLOSE) <= most():
                        yield shape


def _most_replicas(domain: Domain, group: int, p: int, number: int) -> int:
    """Return the most replicas of p stages that have a sample of each micro-batch and meet all limits; 0 if none do."""
    replicas = np.arange(min(domain.num_devices[group] // p, domain.batch // number), 0, -1)
    used = np.zeros((len(domain.num_devices), len(replicas)), dtype=np.int64)
    used[group] = p * replicas
    return max(replicas[domain.allowed(used)].tolist(), default=0)


def dealt_shares(domain: Domain, group: int) -> Callable[[int, int], float]:
    """Return what tells how much of its memory the fullest of p devices fills at least, with so many chunks each.

    Before its first backward device d holds p micro-batches of each of its chunks, one sample of each or more, but for
    the last: of that ``min(p, 2 (p - d) - 1)``. So all together hold p of each layer, less ``p - 1`` at most of those
    of the last ``p // 2`` stages. No run of balanced cuts takes longer than the mean of all and the longest layer
    together, so that these are among the last layers that take ``p // 2`` times as long. The fullest device holds the
    mean of all or more.
    """
    costs, (states, kept) = domain.cost.costs, _by_layer(domain)
    machines = costs.machines[group]
    seconds = np.array(machines.profile.least_s(domain.batch))
    until_s, behind = np.cumsum(seconds[::-1]), np.concatenate(([0.0], np.cumsum(np.maximum(kept, 0.0)[::-1])))

    def share(p: int, chunks: int) -> float:
        most_s = p // 2 * (until_s[-1] / (p * chunks) + seconds.max()) * (1 + _CLOSE)
        few = behind[np.searchsorted(until_s, most_s, "right")]
        held = (states.sum() + p * behind[-1] - (p - 1) * few) / p + costs.reserve_bytes
        return float(held / machines.memory_limit_bytes)

    return share


def states_fit(domain: Domain, group: int, p: int, chunks: int, scale: float) -> bool:
    """Whether weights, gradients and optimiser's states fit on p devices of so many times the memory there is.

    On the fullest of them; micro-batches add. It holds the mean of all or more, which is told without any cuts.
    """
    costs = domain.cost.costs

    def states_bytes(first: Integers, last: Integers) -> Floats:
        held = costs.memory(first, last, num_samples=0)
        return held.weights_bytes + held.gradients_bytes + held.optimizer_bytes

    limit = costs.machines[group].memory_limit_bytes * scale * (1 + 1e-9) - costs.reserve_bytes
    all_of_it = np.zeros(1, dtype=np.int64), np.array([domain.num_layers - 1])
    if states_bytes(*all_of_it)[0] * (1 - _CLOSE) > p * limit:
        return False
    cuts = domain.balanced(group, p * chunks, 1)
    by_chunk = states_bytes(np.array([one.first for one in cuts]), np.array([one.last for one in cuts]))
    return bool(by_chunk.reshape(-1, p).sum(axis=0).max() <= limit)


@frozen
class LeastMemory:
    """With ``scale`` times the memory there is something fits; ``is_proven``: and with less, nothing does."""

    scale: float
    is_proven: bool


def least_memory(domain: Domain, search: Search) -> LeastMemory | None:
    """Return the memory that is missing; None where more of it alone would not do, or no answer came in time.

    Notes
    -----
    Bisection by number of micro-batches, between what :func:`_least_share` rules out and what is found to fit, which
    holds what it does; where both are near to each other, a little less than that is tried at once. A number with which
    nothing fits in a little less than the best so far is passed over, as is one that needs more by itself.
    """
    best, is_proven, least = np.inf, True, _even_share(domain)
    for number in reversed(domain.numbers_of_microbatches):
        if search.is_late:
            break
        if _least_share(domain, number, best) * (1 - _CLOSE) > best:
            continue
        low, high, is_next, is_low_proven = _lowest_scale(domain, number, least) * (1 - _CLOSE), best, True, True
        middle = best * (1 - _CLOSE) if best < np.inf or not least else _ABOVE * low
        while not search.is_over:
            found = _of_number(domain.with_memory(middle), number, search)
            if found.shape is None:
                low, is_low_proven = middle, found.is_proven
            else:
                high = min(_share(domain, found.shape), middle)
            if high <= low * (1 + 2 * _CLOSE):
                break
            is_next = not is_next and high < _NEAR * low
            if high == np.inf:
                middle = 2 * low if low < _MOST_SHARES * least else np.inf
            else:
                middle = high * (1 - _CLOSE) if is_next else (max(low, high / 2) * high) ** 0.5
        best, is_proven = min(best, high), is_proven and is_low_proven
    shares = [best]
    for shape in _interleaved(domain, search, lambda: shares[-1]):
        shares.append(min(shares[-1], _share(domain, shape)))
    if np.isinf(shares[-1]):
        return None
    return LeastMemory(scale=float(shares[-1]), is_proven=is_proven and not search.is_over)


def _even_share(domain: Domain) -> float:
    """Return the states of all layers, of what all devices may hold: with less memory nothing fits."""
    costs, all_of_it = domain.cost.costs, (np.array([0]), np.array([domain.num_layers - 1]))
    held = costs.memory(*all_of_it, num_samples=0)
    states = held.weights_bytes + held.gradients_bytes + held.optimizer_bytes
    return float(states[0] / np.dot(domain.num_devices, [one.memory_limit_bytes for one in costs.machines]))


def _least_share(domain: Domain, number: int, scale: float) -> float:
    """Return what all devices fill at least with so many micro-batches, no stage more than so many times a device.

    With b samples in a micro-batch, ``r_i`` devices of stage i hold ``r_i S_i + b min(n, k_i) A_i`` or more under 1F1B,
    of its states and what it keeps of a sample, if it is the ``k_i``-th from the end; under GPipe ``n`` stands for
    ``min(n, k_i)``. The last k stages hold no more layers than have states for k devices: what all layers before these
    keep counts once for each ``k < n``.
    """
    (states, kept), limits = _by_layer(domain), [one.memory_limit_bytes for one in domain.cost.costs.machines]
    until = np.concatenate(([0.0], np.cumsum(kept)))
    before = np.minimum.accumulate(until[::-1])[::-1]  # what these layers keep, or more of them
    in_flight = number * until[-1]
    if "1f1b" in domain.schedules:
        most = min(max(limits) * scale * (1 + _CLOSE), float(states.sum()))
        held = np.arange(min(number, sum(domain.num_devices))) * most
        ends = len(states) - np.searchsorted(np.cumsum(states[::-1]), held, "right")
        in_flight = np.maximum(before[ends], 0.0).sum()
    return float((states.sum() + -(-domain.batch // number) * in_flight) / np.dot(domain.num_devices, limits))


def _lowest_scale(domain: Domain, number: int, least: float) -> float:
    """Return a scale of memory below which :func:`_least_share` leaves no room; no less than the states' own."""
    low, high = least, 2 * least
    while 0 < high < _MOST_SHARES * least and _least_share(domain, number, high) > high:
        low, high = high, 2 * high
    for _ in range(_HALVES):
        middle = (low + high) / 2
        low, high = (middle, high) if _least_share(domain, number, middle) > middle else (low, middle)
    return low


def _share(domain: Domain, shape: Shape) -> float:
    """Return what the fullest device holds, in parts of what it may."""
    return float(max(row["total"] / row["limit"] for row in domain.cost.memory_bytes(shape)))


def least_share(domain: Domain, shape: Shape) -> float:
    """Return no more than :func:`_share` of an interleaved shape, without the order of its tasks.

    Device d of p does ``2 (p - d - 1) + (v - 1) p + 1`` forwards, or all there are, before its first backward: it holds
    as many micro-batches then, each of the chunk that holds least or more.
    """
    p, v, costs = shape.num_devices_in_line, shape.chunks_per_device, domain.cost.costs
    held = domain.cost.stage_memory(shape)
    states = held.weights_bytes + held.gradients_bytes + held.optimizer_bytes + held.error_bytes
    forwards = np.minimum(2 * (p - np.arange(p) - 1) + (v - 1) * p + 1, shape.num_microbatches * v)
    least = states.reshape(v, p).sum(axis=0) + forwards * held.in_flight_bytes.reshape(v, p).min(axis=0)
    limits = np.array([costs.machines[one.group].memory_limit_bytes for one in shape.stages[:p]])
    return float(((least + costs.reserve_bytes) / limits).max())


def why_nothing_fits(domain: Domain, search: Search) -> InfeasibleError:
    """Return how much memory the best of all splits lacks, or that memory is not what is missing."""
    least, pinned = least_memory(domain, search), domain.problem.fixed.get("num_stages")
    stages = []  # the nearest number of stages that would fit, where they are pinned to one that does not
    if pinned is not None:
        fixed = {key: value for key, value in domain.problem.fixed.items() if key != "num_stages"}
        numbers = numbers_of_stages_that_fit(
            Domain(replace(domain.problem, fixed=fixed), is_fine=domain.is_fine), search
        )
        stages = [
            f"change fix.num_stages from {pinned} to {number}"
            for number in sorted(numbers, key=lambda one: (abs(one - pinned), one))[:1]
        ]
    if least is None and not search.is_over and domain.schedules == ("interleaved",):
        return InfeasibleError(
            f"No plan fits: the interleaved schedule needs 2 stages or more of different devices, 2 chunks of layers "
            f"or more for each, and micro-batches in multiples of the stages; no way to cut {domain.num_layers} layers "
            f"for a batch of {domain.batch} meets all limits and pins. Allow another schedule, or drop one of them."
        )
    if least is None and not search.is_over:
        most = domain.batch // min(domain.numbers_of_microbatches)
        return InfeasibleError(
            f"No plan fits: no stages use as many devices and machines as limits and pins ask. {domain.num_layers} "
            f"layers make at most {max(domain.numbers_of_stages)} stages, and a batch of {domain.batch} gives each at "
            f"most {most} replicas. Drop or change a limit or a pin{''.join(f', or {one}' for one in stages)}."
        )
    needed, enough = _amounts(domain, least if search.left_s else None)  # else what was found depends on the machine
    ways = [] if enough is None else [f"raise memory_per_device (or take devices with more memory) to {enough}"]
    ways += stages
    text = f"No plan fits: {needed}."
    if not domain.is_fine:
        ways += ["allow pipeline alone (families: [pipeline]), which then cuts blocks, too"]
    text = f"{text} {ways[0][0].upper()}{' or '.join(ways)[1:]}." if ways else text
    limits = {one.memory_limit_bytes for one in domain.cost.costs.machines}
    if least is None or enough is None or len(limits) != 1:
        return InfeasibleError.of(text, enough_bytes=np.inf)
    return InfeasibleError.of(text, enough_bytes=limits.pop() * least.scale)


def _amounts(domain: Domain, least: LeastMemory | None) -> tuple[str, str | None]:
    """Return what the stages need, and how much would do."""
    limits = [one.memory_limit_bytes for one in domain.cost.costs.machines]
    devices = ", ".join(
        f"{format_human(limit, Dimension.DATA, 4)} on {group.device.name!r}"
        for limit, group in zip(limits, domain.cost.groups, strict=True)
    )
    if least is None:
        return f"whatever the stages, a device needs more memory than it may use ({devices})", None
    if len(set(limits)) == 1:
        has = f"{format_human(limits[0] * least.scale, Dimension.DATA, 4)} on a device, which may use {devices}"
        enough = format_human(limits[0] * least.scale * _ROUND_UP, Dimension.DATA, 4)
    else:
        has, enough = f"{least.scale:.4g} times the memory there is ({devices})", f"{least.scale * _ROUND_UP:.4g} times"
    if least.is_proven:
        return f"for any split{'' if domain.is_fine else ' between blocks'}, some stage needs at least {has}", enough
    return f"the best split that was found needs {has}", enough
