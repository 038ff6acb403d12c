"""Boxes of parameter-server configurations: many at once, what none of their configurations beats, and how they split.

A *site* is the group whose machines serve, and whether servers stand on machines that work. On one site a
configuration is a row of whole numbers ``(K, w_1..w_G, b_1..b_G)``: servers, working machines of each group, samples of
one of their devices. A box holds all rows between two of them. Placement and compression are left to whoever solves a
row.

**Constraints.** Devices ``sum d_g w_g`` and machines ``sum w_g (+ K)`` within their limits; ``w_s + K <= count_s`` on
machines of their own, ``K <= w_s`` on working ones; ``b_g`` within memory. Shares make the batch B, or at most the
largest one allowed, where some devices may have one sample less than their group's share. Shares are *minimal*: none
can be lowered alone without falling short of B. No other shares need be tried, since nothing gets faster with more
samples on some device at the same batch.

**Lower bound.** Every term of an iteration never decreases with w and b, and never increases with K, but for the
batch that is left to others. So each is taken at its own best corner of the box, see :meth:`Space.lower_bounds`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np
from numpy.typing import NDArray

from planner.cluster import MachineGroup
from planner.cost import Floats
from planner.families.answer import iterations_of
from planner.families.parameter_server_cost import (
    group_inputs,
    memory_limit_bytes,
    network_bytes_per_s,
    network_latency_s,
    packet_queueing_s,
    ready_times_s,
)
from planner.families.parameter_server_given import may_work
from planner.models.data_parallel import Gradients, gradients_of
from planner.models.memory import Precision, data_parallel_memory
from planner.models.ssgd_equations import Strategy
from planner.models.stragglers import standard_maximum
from planner.problem import Problem

__all__ = ["Boxes", "Site", "Space"]

Numbers = NDArray[np.int64]
_MOST_PIECES = 12  # tensors that a lower bound looks at; neighbours are merged, and ready with the first of them
_PASSES = 4  # of propagation; more would tighten further, fewer never lose a configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Whose machines serve, and whether those machines work, too."""

    servers: MachineGroup
    co_located: bool
    server_bytes_per_s: float
    latency_s: tuple[float, ...]
    queueing_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """Many boxes on one site: least and greatest rows, each ``(K, w.., b..)``."""

    low: Numbers
    high: Numbers

    def __len__(self) -> int:
        return len(self.low)

    def of(self, chosen: "NDArray[np.bool_] | NDArray[np.intp]") -> "Boxes":
        """Return some of the boxes."""
        return Boxes(self.low[chosen], self.high[chosen])

    @staticmethod
    def together(parts: "Sequence[Boxes]") -> "Boxes":
        """Return all boxes of several sets."""
        return Boxes(np.concatenate([one.low for one in parts]), np.concatenate([one.high for one in parts]))


@dataclass(slots=True)
class Space:
    """All configurations of a question, and what bounds them."""

    problem: Problem
    groups: list[MachineGroup] = field(init=False)
    sites: list[Site] = field(init=False)
    gradients: list[Gradients] = field(init=False)
    devices: Numbers = field(init=False)
    counts: Numbers = field(init=False)
    most_samples: Numbers = field(init=False)
    sample_s: Floats = field(init=False)
    update_s: Floats = field(init=False)
    rates: Floats = field(init=False)
    starts: NDArray[np.intp] = field(init=False)
    inputs: Floats = field(init=False)
    loads_bytes: Floats = field(init=False)

    def __post_init__(self) -> None:
        problem, cluster = self.problem, self.problem.cluster
        known = {group.name: group for group in cluster.machine_groups}
        self.groups = [known[name] for name in may_work(known, problem.fixed.get("device"))]
        precision = Precision.of(problem.training.dtype, problem.training.optimizer)
        self.gradients = [
            gradients_of(
                problem.dnn,
                problem.profiles[group.device.name],
                gradient_bytes=precision.gradient_bytes,
                unit=problem.calibration.fusion_unit,
            )
            for group in self.groups
        ]
        self.devices = np.array([group.devices_per_machine for group in self.groups], dtype=np.int64)
        self.counts = np.array([group.count for group in self.groups], dtype=np.int64)
        reserve = problem.calibration.memory_reserve_bytes
        use = data_parallel_memory(problem.dnn, precision, reserve_bytes=reserve)
        most = [use.most_samples(memory_limit_bytes(problem, group)) for group in self.groups]
        self.most_samples = np.minimum(np.array(most, dtype=float), self.most_batch).astype(np.int64)
        profiles = [problem.profiles[group.device.name] for group in self.groups]
        self.sample_s = np.array([float(one.forward_s.sum() + one.backward_s.sum()) for one in profiles])
        self.update_s = np.array([one.update_s for one in profiles])
        self.rates = np.array([network_bytes_per_s(problem, group) for group in self.groups])
        pieces = min(_MOST_PIECES, len(self.size_bytes))
        self.starts = np.unique(np.linspace(0, len(self.size_bytes), pieces, endpoint=False).astype(np.intp))
        ones = [group_inputs(problem, group, num_workers=1, share=1.0) for group in self.groups]
        self.inputs = np.array([(one.read_s, one.decode_s, one.copy_s) for one in ones])
        self.sites = list(self._sites(known))
        most_servers = max((self._most_servers(site) for site in self.sites), default=1)
        most_servers = max(most_servers, problem.fixed.get("num_parameter_servers") or 1)
        self.loads_bytes = self._least_loads(most_servers)

    def _sites(self, known: dict[str, MachineGroup]) -> "list[Site]":
        """Return where servers may stand, by what is pinned; machines of their own first."""
        fixed, cluster, found = self.problem.fixed, self.problem.cluster, []
        working = {group.name for group in self.groups}
        for name, group in known.items():
            if fixed.get("servers") not in (None, name):
                continue
            rate = network_bytes_per_s(self.problem, group)
            for co_located in (False, True):
                if fixed.get("co_located") in (None, co_located) and (name in working or not co_located):
                    found.append(
                        Site(
                            servers=group,
                            co_located=co_located,
                            server_bytes_per_s=rate,
                            latency_s=tuple(network_latency_s(cluster, one.name, name) for one in self.groups),
                            queueing_s=packet_queueing_s(self.problem, rate),
                        )
                    )
        return found

    # -- what the question fixes -------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> Floats:
        """Bytes of every tensor, in ready order; the same on all devices."""
        sizes: Floats = self.gradients[0].size_bytes
        return sizes

    @property
    def fixed_batch(self) -> int | None:
        """The batch, where it is fixed."""
        return self.problem.training.fixed_batch_size

    @property
    def fixed_share(self) -> int | None:
        """The samples of every device, where they are fixed and the batch is not."""
        return None if self.fixed_batch is not None else self.problem.training.batch_per_device

    @property
    def most_batch(self) -> int:
        """The largest batch."""
        training = self.problem.training
        return self.fixed_batch or training.max_global_batch_size or 2**31

    @property
    def is_equal(self) -> bool:
        """Whether all devices are to have equal shares."""
        return self.problem.fixed.get("batch_shares") == "equal"

    def index_of(self, site: Site) -> int:
        """Return the serving group's place among those that may work, or -1."""
        return next((index for index, group in enumerate(self.groups) if group.name == site.servers.name), -1)

    def _most_servers(self, site: Site) -> int:
        """Return the most servers on a site; as many as tensors are always enough where none is split."""
        most = site.servers.count
        return most if self.problem.calibration.split_tensors else min(most, max(1, len(self.size_bytes)))

    def _least_loads(self, most_servers: int) -> Floats:
        """Return the bytes that the fullest of 1, 2, .. servers holds at least; whole tensors: m + 1 of m K + 1."""
        numbers = np.arange(1, most_servers + 1)
        even = self.size_bytes.sum() / numbers
        if self.problem.calibration.split_tensors or not len(self.size_bytes):
            return np.asarray(even)
        down = -np.sort(-self.size_bytes)
        crowded = [float((down[::k] * np.arange(1, len(down[::k]) + 1)).max()) for k in numbers.tolist()]
        most: Floats = np.maximum(even, crowded)
        return most

    # -- boxes -------------------------------------------------------------------------------------------------------

    def root(self, site: Site, num_servers: int | None = None) -> Boxes:
        """Return the box of all configurations of a site, or of those with so many servers."""
        number = self.problem.fixed.get("num_parameter_servers") if num_servers is None else num_servers
        most = self._most_servers(site) if number is None else number
        least = np.full(len(self.groups), self.fixed_share or 1)
        largest = np.maximum(self.most_samples, 1) if self.fixed_share is None else least
        working = np.where(self.most_samples >= least, self.counts, 0)
        low = np.concatenate(([number or 1], 0 * working, least))
        high = np.concatenate(([min(most, site.servers.count)], working, largest))
        return Boxes(low[None, :].astype(np.int64), high[None, :].astype(np.int64))

    def parts(self, boxes: Boxes) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers, Numbers]:
        """Return the least and greatest K, w and b."""
        g = len(self.groups)
        low, high = boxes.low, boxes.high
        return low[:, 0], high[:, 0], low[:, 1 : g + 1], high[:, 1 : g + 1], low[:, g + 1 :], high[:, g + 1 :]

    def tightened(self, site: Site, boxes: Boxes) -> Boxes:
        """Return the boxes without what cannot be in any configuration, and without empty ones."""
        boxes = Boxes(boxes.low.copy(), boxes.high.copy())
        for _ in range(_PASSES):
            if not len(boxes):
                break
            self._tighten_counts(site, boxes)
            self._tighten_shares(boxes)
            _, _, w_low, w_high, b_low, b_high = self.parts(boxes)
            absent = w_high <= 0
            b_low[absent], b_high[absent] = 1, 1
            undecided_empty = (b_low > b_high) & (w_low <= 0)
            w_high[undecided_empty] = np.minimum(w_high, 0)[undecided_empty]
            b_low[undecided_empty], b_high[undecided_empty] = 1, 1
            boxes = boxes.of((boxes.low <= boxes.high).all(axis=1) & self._may_make_batch(boxes))
        return boxes

    def _tighten_counts(self, site: Site, boxes: Boxes) -> None:
        """Keep devices and machines within their limits, in place."""
        limits, serving = self.problem.limits, self.index_of(site)
        ones = np.ones(len(self.groups))
        own = 0.0 if site.co_located else 1.0
        most_devices = min(self.most_batch // (self.fixed_share or 1), limits.devices.most or self.most_batch)
        _linear(boxes, np.append(0.0, self.devices), limits.devices.least, most_devices)
        _linear(boxes, np.append(own, ones), limits.machines.least, limits.machines.most)
        _linear(boxes, np.append(0.0, ones), 1, None)
        if serving >= 0:
            row = np.zeros(len(self.groups) + 1)
            row[0], row[serving + 1] = 1.0, -1.0 if site.co_located else 1.0
            _linear(boxes, row, None, 0 if site.co_located else site.servers.count)

    def _tighten_shares(self, boxes: Boxes) -> None:
        """Keep shares minimal and up to the batch, in place."""
        if self.fixed_share is not None:
            return
        _, _, w_low, w_high, b_low, b_high = self.parts(boxes)
        most, fixed = self.most_batch, self.fixed_batch
        if fixed is not None:
            capacity = w_high * self.devices * b_high
            missing = fixed - (capacity.sum(axis=1, keepdims=True) - capacity)
            np.maximum(b_low, -(-missing // np.maximum(w_high * self.devices, 1)), out=b_low, where=w_high > 0)
            np.maximum(w_low, -(-missing // np.maximum(self.devices * b_high, 1)), out=w_low)
        if self.is_equal:
            self._tie_shares(boxes)
            return
        used = w_low * self.devices * b_low
        left = most - 1 - (used.sum(axis=1, keepdims=True) - used)
        largest = np.maximum(left // (np.maximum(w_low, 1) * self.devices) + 1, 1)
        np.minimum(b_high, largest, out=b_high)

    def _tie_shares(self, boxes: Boxes) -> None:
        """Give all groups the same range of shares, in place."""
        _, _, w_low, w_high, b_low, b_high = self.parts(boxes)
        most = np.maximum((w_high * self.devices).sum(axis=1), 1)
        least = np.maximum((w_low * self.devices).sum(axis=1), 1)
        batch = self.fixed_batch
        low = np.where(w_low > 0, b_low, 1).max(axis=1)
        high = np.where(w_low > 0, b_high, 2**31).min(axis=1)
        if batch is not None:
            low = np.maximum(low, -(-batch // most))
        high = np.minimum(high, -(-self.most_batch // least))
        np.maximum(b_low, low[:, None], out=b_low, where=w_high > 0)
        np.minimum(b_high, high[:, None], out=b_high, where=w_high > 0)

    def _may_make_batch(self, boxes: Boxes) -> "NDArray[np.bool_]":
        """Whether the shares can make the batch."""
        if self.fixed_batch is None:
            return np.ones(len(boxes), dtype=bool)
        _, _, _, w_high, _, b_high = self.parts(boxes)
        enough: NDArray[np.bool_] = (w_high * self.devices * b_high).sum(axis=1) >= self.fixed_batch
        return enough

    # -- bounds ------------------------------------------------------------------------------------------------------

    def lower_bounds(self, site: Site, boxes: Boxes) -> Floats:
        """Return, for every box, an objective that none of its configurations beats.

        Pushes end no sooner than any of these: all servers' links as one and with all their bandwidth, from the time on
        when some gradient is ready; the link of one worker; the fullest server's link from the first gradient on; the
        computation of every group that works, and of all machines of the box with the batch in parts as fast as they
        are. Pulls take as long as the busiest link needs. Every gradient of a piece is counted as ready with the
        first one. Compression shrinks each of these alone as it is best, which none does better.
        """
        k_low, k_high, w_low, w_high, b_low, b_high = self.parts(boxes)
        works, serving = w_low > 0, self.index_of(site)
        at_home = np.zeros(len(self.groups))
        if site.co_located:
            at_home[serving] = 1.0
        ready = self._ready_s(b_low)  # boxes x groups x pieces
        sizes = np.add.reduceat(self.size_bytes, self.starts) if len(self.starts) else np.zeros(0)
        still = np.cumsum(sizes[::-1])[::-1]
        pooled = k_high * site.server_bytes_per_s
        load_s = self.loads_bytes[k_high - 1] / site.server_bytes_per_s
        num_workers = self._least_workers(boxes)
        senders = num_workers - float(site.co_located)
        sent = np.maximum(w_low - at_home, 0.0)
        own = np.where((at_home > 0) & (w_low <= k_high[:, None]), 1 - 1 / k_low[:, None], 1.0)
        first_s = np.where(w_high > 0, ready[:, :, 0], np.inf).min(axis=1) if len(sizes) else np.zeros(len(boxes))
        ends = [self._least_compute_s(boxes), self._row_s(first_s, senders * load_s)]
        for group in range(len(self.groups)):
            mine = ready[:, group, :]
            late = ready[:, :, None, :] >= mine[:, None, :, None]  # boxes x groups x thresholds x pieces
            arriving = np.einsum("bgtp,p,bg->bt", late, sizes, sent)
            rows = self._row_s(mine, arriving / pooled[:, None])
            fullest = (late[:, :, 0, 0] * sent).sum(
                axis=1
            ) * load_s  # of what is ready no sooner than the group's first
            rows[:, 0] = np.maximum(rows[:, 0], self._row_s(mine[:, 0], fullest))
            rows = np.maximum(rows, self._row_s(mine, own[:, group, None] * still / self.rates[group]))
            ends.append(np.where(works[:, group], rows.max(axis=1, initial=0.0), 0.0))
        pull_s = np.maximum(
            senders * load_s, (np.where(works, own, 0.0) * self.size_bytes.sum() / self.rates).max(axis=1)
        )
        busy_s = np.max(ends, axis=0) + pull_s + self._constants_s(site, boxes, num_workers)
        seconds = self._with_input_s(boxes, busy_s, num_workers)
        batch = np.minimum((w_high * self.devices * b_high).sum(axis=1), self.most_batch)
        return np.asarray(seconds * iterations_of(self.problem, np.maximum(batch, 1).astype(float)))

    def _ready_s(self, shares: Numbers) -> Floats:
        """Return when each group (second axis) is ready with the first gradient of each piece (last axis)."""
        full = [
            ready_times_s(self.problem, group, gradients, shares[:, index].astype(float))
            for index, (group, gradients) in enumerate(zip(self.groups, self.gradients, strict=True))
        ]
        return np.stack([one[:, self.starts] for one in full], axis=1)

    def _least_workers(self, boxes: Boxes) -> Floats:
        """Return the fewest machines that work."""
        _, _, w_low, w_high, _, b_high = self.parts(boxes)
        least = np.maximum(w_low.sum(axis=1), 1)
        if self.fixed_batch is not None:
            most = np.where(w_high > 0, self.devices * b_high, 1).max(axis=1)
            least = np.maximum(least, -(-self.fixed_batch // most))
        return np.asarray(least, dtype=float)

    def _least_compute_s(self, boxes: Boxes) -> Floats:
        """Return the least forward and backward seconds of the slowest group."""
        _, _, w_low, w_high, b_low, _ = self.parts(boxes)
        own_s = np.where(w_low > 0, b_low * self.sample_s, 0.0).max(axis=1)
        if self.fixed_batch is not None:
            with np.errstate(divide="ignore"):
                rate = (w_high * self.devices / self.sample_s).sum(axis=1)
            own_s = np.maximum(own_s, self.fixed_batch / rate)
        return np.asarray(own_s)

    def _row_s(self, from_s: Floats, sent_s: Floats) -> Floats:
        """Return ``from + kept sent + scale / kept**2`` for the best kept share, or ``from + sent`` uncompressed."""
        option = self.problem.compression
        if option is None:
            return np.asarray(from_s + sent_s)
        with np.errstate(divide="ignore"):
            best = np.cbrt(2 * option.scale_s / np.asarray(sent_s, dtype=float))
        kept = np.clip(best, 1 - option.most_removed, 1.0)
        return np.asarray(from_s + np.minimum(sent_s, sent_s * kept + option.scale_s / kept**2))

    def _constants_s(self, site: Site, boxes: Boxes, num_workers: Floats) -> Floats:
        """Return latency, queueing, stragglers, overhead and the update."""
        k_low, _, w_low, w_high, _, _ = self.parts(boxes)
        fitted, serving = self.problem.calibration, self.index_of(site)
        far = w_low > 0
        if site.co_located:
            far = far.copy()
            far[:, serving] &= (k_low > 1) | (w_low[:, serving] > 1)
        latency_s = np.where(far, np.array(site.latency_s), 0.0).max(axis=1)
        any_update = np.where(w_high > 0, self.update_s, np.inf).min(axis=1)
        update_s = np.maximum(np.where(w_low > 0, self.update_s, 0.0).max(axis=1), any_update)
        noise_s = np.zeros(len(boxes))
        if fitted.straggler_deviation_s:
            noise_s = np.array([standard_maximum(int(number)) for number in num_workers])
        return np.asarray(
            2 * latency_s + 2 * site.queueing_s + fitted.straggler_deviation_s * noise_s + fitted.overhead_s + update_s
        )

    def _with_input_s(self, boxes: Boxes, busy_s: Floats, num_workers: Floats) -> Floats:
        """Return the seconds with what the devices wait for input, which is never less for a busier iteration."""
        _, _, w_low, _, b_low, _ = self.parts(boxes)
        strategy, pipelined = (
            Strategy(self.problem.calibration.strategy),
            self.problem.calibration.is_prefetch_pipelined,
        )
        total_s = busy_s
        for index, group in enumerate(self.groups):
            readers = np.ones(len(boxes))
            if self.problem.training.measured_read_s(self.problem.profiles[group.device.name], group) is None and (
                store := group.storage
            ):
                readers = np.array([float(store.num_readers(int(number))) for number in num_workers])
            read, decode, copy = (one * b_low[:, index] for one in self.inputs[index])
            reading = np.maximum(read * readers, decode) if pipelined else read * readers + decode
            if strategy.copies_ahead:
                with_input = np.maximum(busy_s, np.maximum(reading, copy) if pipelined else reading + copy)
            elif strategy.reads_ahead:
                with_input = np.maximum(busy_s + copy, reading if pipelined else reading + copy)
            else:
                with_input = busy_s + reading + copy
            total_s = np.maximum(total_s, np.where(w_low[:, index] > 0, with_input, busy_s))
        return total_s

    # -- splitting ---------------------------------------------------------------------------------------------------

    def is_point(self, boxes: Boxes) -> "NDArray[np.bool_]":
        """Whether boxes hold one configuration each."""
        return np.asarray((boxes.low == boxes.high).all(axis=1))

    def split(self, site: Site, boxes: Boxes) -> Boxes:
        """Return two halves of every box: of the number on which its seconds may depend most."""
        k_low, k_high, w_low, w_high, b_low, b_high = self.parts(boxes)
        both_s = 2 * self.size_bytes.sum() / site.server_bytes_per_s
        k_effect = np.maximum(w_low.sum(axis=1), 1) * both_s * (1 / k_low - 1 / k_high)
        w_effect = (w_high - w_low) * both_s / k_high[:, None] + (w_low == 0) * self.sample_s * b_low
        b_effect = self.sample_s * (b_high - b_low)
        effect = np.concatenate((k_effect[:, None], w_effect, b_effect), axis=1) + 1e-30
        effect = np.where(boxes.high > boxes.low, effect, -1.0)
        effect[:, 1 + len(self.groups) :][w_low == 0] = -1.0  # whether a group works at all comes before its share
        at, rows = effect.argmax(axis=1), np.arange(len(boxes))
        low, high = boxes.low[rows, at], boxes.high[rows, at]
        middle = np.where(high > 4 * low, np.sqrt(np.maximum(low, 0.0) * high).astype(np.int64), (low + high) // 2)
        middle = np.where(low == 0, 0, np.clip(middle, low, high - 1))
        left, right = Boxes(boxes.low.copy(), boxes.high.copy()), Boxes(boxes.low.copy(), boxes.high.copy())
        left.high[rows, at] = middle
        right.low[rows, at] = middle + 1
        return Boxes.together((left, right))

    # -- single configurations ---------------------------------------------------------------------------------------

    def shares_of(self, workers: Numbers) -> Numbers | None:
        """Return minimal shares that are about as fast on every group; None where they cannot make the batch."""
        if self.fixed_share is not None:
            return np.full(len(workers), self.fixed_share, dtype=np.int64)
        number, most = workers * self.devices, np.where(workers > 0, self.most_samples, 0)
        total = int(number.sum())
        batch = min(self.most_batch, int((number * most).sum()))
        if total > batch or not total or (self.fixed_batch is not None and batch < self.fixed_batch):
            return None
        if self.is_equal:
            share = ceil(batch / total)
            return None if (share > most[workers > 0]).any() else np.where(workers > 0, share, 1)
        low, high = 0.0, float((most * self.sample_s).max())
        for _ in range(60):
            middle = (low + high) / 2
            made = int((number * np.clip(_floor(middle, self.sample_s), 1, most)).sum())
            low, high = (low, middle) if made >= batch else (middle, high)
        shares = np.clip(_floor(high, self.sample_s), 1, np.maximum(most, 1))
        for index in np.argsort(-self.sample_s, kind="stable").tolist():
            if workers[index] > 0:
                spare = (int((number * shares).sum()) - batch) // int(number[index])
                shares[index] -= min(spare, int(shares[index]) - 1)
        return np.where(workers > 0, shares, 1)


def _floor(seconds: float, sample_s: Floats) -> Numbers:
    """Return how many samples fit in so many seconds; as many as may be where a sample takes none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(sample_s > 0, seconds / sample_s * (1 + 1e-12), 2.0**31)
    return np.asarray(np.minimum(found, 2.0**31).astype(np.int64))


def _linear(boxes: Boxes, row: Floats, least: float | None, most: float | None) -> None:
    """Keep ``least <= row (K, w) <= most``, in place; coefficients of any sign."""
    width = len(row)
    low, high = boxes.low[:, :width], boxes.high[:, :width]
    down, up = np.where(row > 0, low, high) * row, np.where(row > 0, high, low) * row
    for index in np.flatnonzero(row).tolist():
        factor = row[index]
        if most is not None:
            room = (most - (down.sum(axis=1) - down[:, index])) / factor
            if factor > 0:
                np.minimum(high[:, index], np.floor(room + 1e-9).astype(np.int64), out=high[:, index])
            else:
                np.maximum(low[:, index], np.ceil(room - 1e-9).astype(np.int64), out=low[:, index])
        if least is not None:
            need = (least - (up.sum(axis=1) - up[:, index])) / factor
            if factor > 0:
                np.maximum(low[:, index], np.ceil(need - 1e-9).astype(np.int64), out=low[:, index])
            else:
                np.minimum(high[:, index], np.floor(need + 1e-9).astype(np.int64), out=high[:, index])
