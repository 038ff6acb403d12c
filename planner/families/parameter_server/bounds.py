"""What a question leaves open to parameter servers, and an objective that no configuration of a box beats.

Rows
    A *site* is the group whose machines serve, whether servers stand on machines that work, and how sums travel: behind
    a barrier or each on its own, beside what. On one site a configuration is a row of whole numbers
    ``(K, w_1..w_G, b_1..b_G)``: servers, working machines of each group, samples of one of their devices. Placement,
    pieces, priority and compression are left to whoever solves a row. A box holds all rows between two.
Constraints
    Devices that work, ``sum d_g w_g``, and machines that work or serve, ``sum w_g (+ K)``, within their limits and as
    pinned; no idle machine that may work, where the number of devices is not open; ``w_s + K <= count_s`` on machines
    of their own, ``K <= w_s`` on working ones; ``b_g`` within memory. Shares make the batch B, or at most the largest
    one allowed, where some devices may have one sample less than their group's share. Shares are *minimal*: none can be
    lowered alone without falling short of B. No other shares need be tried, since nothing gets faster with more samples
    on some device at the same batch.
Sums sent on their own
    Without a barrier all pushes of an iteration arrive before any worker begins its next forward pass, or, where that
    waits layer by layer, its pass through the layers that wait for them: a sum needs them all. So pushes bound an
    iteration as they do behind a barrier; in the latter case they count from the backward pass on, and the forward pass
    from the last layer on that waits for them comes behind. Every single sum is pushed and then pulled
    (:func:`_alone_s` of both). Else pulls go beside pushes, and bound an iteration by what links carry.
Bounds
    Every term of an iteration never decreases with w and b, and never increases with K, but for the batch that is left
    to others. So each is taken at its own best corner of the box, see :func:`lower_bounds`. Where the batch may vary,
    seconds per sample are bounded on shares scaled up to the largest batch, see :func:`_scaled`.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from planner.cluster import MachineGroup
from planner.constraints import memory_limit_bytes
from planner.cost import Floats, Passes
from planner.errors import SpecError
from planner.families.answer import iterations_of
from planner.families.parameter_server.configuration import Way, may_work, ways_of
from planner.families.parameter_server.cost import (
    group_inputs,
    layers_of_tensors,
    network_bytes_per_s,
    network_latency_s,
    packet_queueing_s,
    ready_times_s,
)
from planner.frozen import frozen
from planner.models.activations import data_parallel_memory
from planner.models.data_parallel import gradients_of, standard_maximum
from planner.models.input import Strategy
from planner.models.memory import Precision
from planner.problem import Problem

Numbers = NDArray[np.int64]
Bools = NDArray[np.bool_]
_MOST_PIECES = 12  # tensors that a lower bound looks at; neighbours are merged, and ready with the first of them
_MOST_NUMBERS = 2**21  # in a table of boxes and gradients
_PASSES = 4  # of propagation; more would tighten further, fewer never lose a configuration


@frozen
class Site:
    """Whose machines serve, whether those machines work, too, and how sums travel.

    ``queueing_s``: ``inf`` where the servers' links would saturate the switch, for the reason ``saturated``; then only
    one machine that serves itself, and sends nothing, is left.
    """

    servers: MachineGroup
    co_located: bool
    server_bytes_per_s: float
    latency_s: tuple[float, ...]
    queueing_s: float
    way: Way
    saturated: str = ""


class Space:
    """All configurations of a question, and what bounds them; arrays have an entry for each group that may work.

    Attributes
    ----------
    fixed_batch, fixed_share
        The batch, where it is fixed; the samples of every device, where they are fixed and the batch is not.
    most_batch
        The largest batch.
    is_batch_scaled
        Whether shares and batch may vary, and the goal counts seconds per sample.
    is_equal
        Whether all devices are to have equal shares.
    ways
        In which sums may travel.
    is_cut
        Whether tensors may lie on several servers: sliced by the program, or in pieces that are pinned.
    size_bytes, layers
        Of every tensor, in ready order; the same on all devices. The layer that waits for it.
    devices, counts
        Devices of a machine; machines.
    most_samples
        That a device's memory holds, up to the largest batch.
    computing, update_s
        Forward and backward of a share, and the optimiser's step.
    sample_s
        Seconds of computing a sample that no share in memory is below.
    rates
        Bytes/s of a machine's network.
    starts
        The first tensor of every piece that bounds look at.
    inputs
        Seconds to read, decode and copy one sample on each device of a machine.
    batch_reads_s
        Seconds to read one sample of the whole batch, from a store that all share.
    loads_bytes
        What the fullest of 1, 2, .. servers holds at least.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, training = problem, problem.training
        self.fixed_batch = training.fixed_batch_size
        self.fixed_share = None if self.fixed_batch is not None else training.batch_per_device
        self.most_batch: int = self.fixed_batch or training.max_global_batch_size or 2**31
        is_open = self.fixed_batch is None and self.fixed_share is None
        self.is_batch_scaled = is_open and problem.goal.name != "iteration_time"
        self.is_equal = problem.fixed.get("batch_shares") == "equal"
        self.ways = ways_of(problem)
        self.is_cut = problem.calibration.split_tensors or "partition_bytes" in problem.fixed
        machine_groups = {group.name: group for group in problem.cluster.machine_groups}
        self.groups = [machine_groups[name] for name in may_work(machine_groups, problem.fixed.get("device"))]
        profiles = [problem.profiles[group.device.name] for group in self.groups]
        precision = Precision.of(training.dtype, training.optimizer)
        self.gradients = [
            gradients_of(
                problem.dnn, profile, gradient_bytes=precision.gradient_bytes, unit=problem.calibration.fusion_unit
            )
            for profile in profiles
        ]
        self.size_bytes: Floats = self.gradients[0].size_bytes
        self.layers = layers_of_tensors(problem.dnn, self.gradients[0].names)
        self.devices: Numbers = np.array([group.devices_per_machine for group in self.groups], dtype=np.int64)
        self.counts: Numbers = np.array([group.count for group in self.groups], dtype=np.int64)
        reserve = problem.calibration.memory_reserve_bytes
        use = data_parallel_memory(problem.dnn, precision, reserve_bytes=reserve)
        most = [use.most_samples(memory_limit_bytes(problem, group)) for group in self.groups]
        self.most_samples: Numbers = np.minimum(np.array(most, dtype=float), self.most_batch).astype(np.int64)
        most_at_once = np.maximum(self.most_samples, 1).tolist()
        self.sample_s = np.array([one.sample_s(most) for one, most in zip(profiles, most_at_once, strict=True)])
        self.computing = Passes.stack([forward.plus(backward) for forward, backward in (one.whole for one in profiles)])
        self.update_s = np.array([one.update_s for one in profiles])
        self.rates = np.array([network_bytes_per_s(problem, group) for group in self.groups])
        pieces = min(_MOST_PIECES, len(self.size_bytes))
        starts = np.linspace(0, len(self.size_bytes), pieces, endpoint=False).astype(np.intp)
        self.starts = np.array(sorted(set(starts.tolist())), dtype=np.intp)  # np.unique imports masked arrays
        ones = [group_inputs(problem, group, num_workers=1, share=1.0, whole_batch=0.0) for group in self.groups]
        self.inputs = np.array([(one.read_s, one.decode_s, one.copy_s) for one in ones])
        none = [group_inputs(problem, group, num_workers=1, share=0.0, whole_batch=1.0) for group in self.groups]
        self.batch_reads_s = np.array([one.read_s for one in none])
        self.sites = list(self._sites(machine_groups))
        pinned = problem.fixed.get("num_parameter_servers") or 1
        most_servers = max(
            (max(self.most_servers(site), min(pinned, site.servers.count)) for site in self.sites), default=1
        )
        self.loads_bytes = self._least_loads(most_servers)
        self._shares: dict[bytes, Numbers | None] = {}

    def _sites(self, machine_groups: Mapping[str, MachineGroup]) -> Iterator[Site]:
        """Yield where servers may stand, by what is pinned; machines of their own first."""
        fixed, working = self.problem.fixed, {group.name for group in self.groups}
        for name, group in machine_groups.items():
            if fixed.get("servers") not in (None, name):
                continue
            rate = network_bytes_per_s(self.problem, group)
            waiting_s, saturated = inf, ""
            try:
                waiting_s = packet_queueing_s(self.problem, rate)
            except SpecError as error:
                saturated = error.faults[0].problem.split(". ")[0]
            for co_located in (False, True):
                if fixed.get("co_located") not in (None, co_located) or (co_located and name not in working):
                    continue
                latency_s = tuple(network_latency_s(self.problem.cluster, one.name, name) for one in self.groups)
                for way in self.ways:
                    yield Site(
                        servers=group,
                        co_located=co_located,
                        server_bytes_per_s=rate,
                        latency_s=latency_s,
                        queueing_s=waiting_s,
                        saturated=saturated,
                        way=way,
                    )

    def index_of(self, site: Site) -> int:
        """Return the serving group's place among those that may work, or -1."""
        return next((index for index, group in enumerate(self.groups) if group.name == site.servers.name), -1)

    def most_servers(self, site: Site) -> int:
        """Return the most servers on a site.

        As many as tensors make a plan as fast as it can be where none is split; more are only needed for a number of
        machines that the question asks for at least, of which one works.
        """
        most = site.servers.count
        if self.is_cut:
            return most
        busy = max(self.problem.allowed_machines.least, self.problem.busy_machines)
        asked = 1 if site.co_located else busy - 1
        return min(most, max(1, len(self.size_bytes), asked))

    def _least_loads(self, most_servers: int) -> Floats:
        """Return the bytes that the fullest of 1, 2, .. servers holds at least; whole tensors: m + 1 of m K + 1."""
        numbers = np.arange(1, most_servers + 1)
        even = self.size_bytes.sum() / numbers
        if self.is_cut or not len(self.size_bytes):
            return np.asarray(even)
        down = -np.sort(-self.size_bytes)
        crowded = [float((down[::k] * np.arange(1, len(down[::k]) + 1)).max()) for k in numbers.tolist()]
        most: Floats = np.maximum(even, crowded)
        return most

    # -- single configurations

    def shares_of(self, workers: Numbers) -> Numbers | None:
        """Return minimal shares that are about as fast on every group; None where they cannot make the batch."""
        key = workers.tobytes()  # the same on all sites and for all numbers of servers: most are asked again
        if key not in self._shares:
            self._shares[key] = self._shares_of(workers)
        return self._shares[key]

    def _shares_of(self, workers: Numbers) -> Numbers | None:
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
        low, high = 0.0, float(self.computing.of_each(most[None]).max())
        fewer, shares = self._within(low, most), np.maximum(most, 1)
        if int((number * fewer).sum()) >= batch:
            shares = fewer
        for _ in range(60):
            if int((shares - fewer).sum()) <= 1:  # a sample less would fall short
                break
            middle = (low + high) / 2
            found = self._within(middle, most)
            if int((number * found).sum()) >= batch:
                high, shares = middle, found
            else:
                low, fewer = middle, found
        for index in np.argsort(-self.sample_s, kind="stable").tolist():
            if workers[index] > 0:
                spare = (int((number * shares).sum()) - batch) // int(number[index])
                shares[index] -= min(spare, int(shares[index]) - 1)
        return np.where(workers > 0, shares, 1)

    def _within(self, seconds: float, most: Numbers) -> Numbers:
        """Return how many samples each group computes in so many seconds: at least 1, at most as many as given."""
        found = self.computing.most_samples(np.full((1, len(self.groups)), seconds))[0] * (1 + 1e-12)
        return np.asarray(np.clip(found, 1, np.maximum(most, 1)).astype(np.int64))


# -- boxes, many at once: without what cannot be in any of them, and how they split ----------------------------------


@frozen(kw_only=False, eq=False)
class Boxes:
    """Many boxes on one site: least and greatest rows, each ``(K, w.., b..)``."""

    low: Numbers
    high: Numbers

    def __len__(self) -> int:
        return len(self.low)

    def of(self, chosen: Bools) -> "Boxes":
        """Return some of the boxes."""
        return Boxes(self.low[chosen], self.high[chosen])

    @property
    def parts(self) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers, Numbers]:
        """The least and greatest K, w and b."""
        g = self.low.shape[1] // 2
        low, high = self.low, self.high
        return low[:, 0], high[:, 0], low[:, 1 : g + 1], high[:, 1 : g + 1], low[:, g + 1 :], high[:, g + 1 :]

    @property
    def are_points(self) -> Bools:
        """Whether they hold one configuration each."""
        return np.asarray((self.low == self.high).all(axis=1))

    @staticmethod
    def together(parts: "Sequence[Boxes]") -> "Boxes":
        """Return all boxes of several sets."""
        return Boxes(np.concatenate([one.low for one in parts]), np.concatenate([one.high for one in parts]))


def root(space: Space, site: Site, num_servers: int | None = None) -> Boxes:
    """Return the box of all configurations of a site, or of those with so many servers."""
    number = space.problem.fixed.get("num_parameter_servers") if num_servers is None else num_servers
    most = space.most_servers(site) if number is None else number
    least = np.full(len(space.groups), space.fixed_share or 1)
    largest = np.maximum(space.most_samples, 1) if space.fixed_share is None else least
    working = np.where(space.most_samples >= least, space.counts, 0)
    low = np.concatenate(([number or 1], 0 * working, least))
    high = np.concatenate(([min(most, site.servers.count)], working, largest))
    return Boxes(low[None, :].astype(np.int64), high[None, :].astype(np.int64))


def tightened(space: Space, site: Site, boxes: Boxes) -> tuple[Numbers, Boxes]:
    """Return the boxes without what cannot be in any configuration, but for empty ones, after the places they had."""
    places, boxes = np.arange(len(boxes)), Boxes(boxes.low.copy(), boxes.high.copy())
    for _ in range(_PASSES):
        if not len(boxes):
            break
        _tighten_counts(space, site, boxes)
        if space.fixed_share is None:
            _tighten_shares(space, boxes)
        _, _, w_low, w_high, b_low, b_high = boxes.parts
        absent = w_high <= 0
        b_low[absent], b_high[absent] = 1, 1
        undecided_empty = (b_low > b_high) & (w_low <= 0)
        w_high[undecided_empty] = np.minimum(w_high, 0)[undecided_empty]
        b_low[undecided_empty], b_high[undecided_empty] = 1, 1
        is_possible: Bools = np.asarray((boxes.low <= boxes.high).all(axis=1))
        if space.fixed_batch is not None:
            is_possible &= (w_high * space.devices * b_high).sum(axis=1) >= space.fixed_batch
        places, boxes = places[is_possible], boxes.of(is_possible)
    return places, boxes


def _tighten_counts(space: Space, site: Site, boxes: Boxes) -> None:
    """Keep devices and machines within their limits, in place."""
    problem, serving = space.problem, space.index_of(site)
    devices, machines = problem.allowed_devices, problem.allowed_machines
    ones = np.ones(len(space.groups))
    own = 0.0 if site.co_located else 1.0
    most_devices = min(space.most_batch // (space.fixed_share or 1), devices.most or space.most_batch)
    _linear(boxes, np.append(0.0, space.devices), devices.least, most_devices)
    _linear(boxes, np.append(own, ones), machines.least, machines.most)
    _linear(boxes, np.append(own if serving >= 0 else 0.0, ones), problem.busy_machines, None)
    _linear(boxes, np.append(0.0, ones), 1, None)
    if serving >= 0:
        row = np.zeros(len(space.groups) + 1)
        row[0], row[serving + 1] = 1.0, -1.0 if site.co_located else 1.0
        _linear(boxes, row, None, 0 if site.co_located else site.servers.count)


def _tighten_shares(space: Space, boxes: Boxes) -> None:
    """Keep shares minimal and up to the batch, and equal where they are to be, in place."""
    _, _, w_low, w_high, b_low, b_high = boxes.parts
    most, fixed = space.most_batch, space.fixed_batch
    if fixed is not None:
        capacity = w_high * space.devices * b_high
        missing = fixed - (capacity.sum(axis=1, keepdims=True) - capacity)
        np.maximum(b_low, -(-missing // np.maximum(w_high * space.devices, 1)), out=b_low, where=w_high > 0)
        np.maximum(w_low, -(-missing // np.maximum(space.devices * b_high, 1)), out=w_low)
    if space.is_equal:
        most_devices = np.maximum((w_high * space.devices).sum(axis=1), 1)
        least_devices = np.maximum((w_low * space.devices).sum(axis=1), 1)
        low = np.where(w_low > 0, b_low, 1).max(axis=1)
        if fixed is not None:
            low = np.maximum(low, -(-fixed // most_devices))
        high = np.minimum(np.where(w_low > 0, b_high, 2**31).min(axis=1), -(-most // least_devices))
        np.maximum(b_low, low[:, None], out=b_low, where=w_high > 0)
        np.minimum(b_high, high[:, None], out=b_high, where=w_high > 0)
        return
    used = w_low * space.devices * b_low
    left = most - 1 - (used.sum(axis=1, keepdims=True) - used)
    largest = np.maximum(left // (np.maximum(w_low, 1) * space.devices) + 1, 1)
    np.minimum(b_high, largest, out=b_high)


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


def split(space: Space, site: Site, boxes: Boxes) -> Boxes:
    """Return two halves of every box: of the number on which its seconds may depend most.

    Shares do not matter where one group alone makes a batch that varies: its seconds per sample are best on the largest
    share of the box, which is what their bound is made of.
    """
    k_low, k_high, w_low, w_high, b_low, b_high = boxes.parts
    both_s = 2 * space.size_bytes.sum() / site.server_bytes_per_s
    k_effect = np.maximum(w_low.sum(axis=1), 1) * both_s * (1 / k_low - 1 / k_high)
    w_effect = (w_high - w_low) * both_s / k_high[:, None] + (w_low == 0) * space.sample_s * b_low
    is_alone = ((w_high > 0).sum(axis=1, keepdims=True) == 1) & space.is_batch_scaled
    b_effect = space.sample_s * np.where(is_alone, 0.0, b_high - b_low)
    effect = np.concatenate((k_effect[:, None], w_effect, b_effect), axis=1) + 1e-30
    effect = np.where(boxes.high > boxes.low, effect, -1.0)
    effect[:, 1 + len(space.groups) :][w_low == 0] = -1.0  # whether a group works at all comes before its share
    at, rows = effect.argmax(axis=1), np.arange(len(boxes))
    low, high = boxes.low[rows, at], boxes.high[rows, at]
    middle = np.where(high > 4 * low, np.sqrt(np.maximum(low, 0.0) * high).astype(np.int64), (low + high) // 2)
    middle = np.where(low == 0, 0, np.clip(middle, low, high - 1))
    left, right = Boxes(boxes.low.copy(), boxes.high.copy()), Boxes(boxes.low.copy(), boxes.high.copy())
    left.high[rows, at] = middle
    right.low[rows, at] = middle + 1
    return Boxes.together((left, right))


# -- bounds ------------------------------------------------------------------------------------------------------------


def lower_bounds(space: Space, site: Site, boxes: Boxes) -> Floats:
    """Return, for every box, an objective that none of its configurations beats.

    Pushes end no sooner than any of these: all servers' links as one and with all their bandwidth, from the time on
    when some gradient is ready; the link of one worker; the fullest server's link from the first gradient on; the
    computation of every group that works, and of all machines of the box with the batch in parts as fast as they
    are. Pulls take as long as the busiest link needs, behind pushes or beside them. Every gradient of a piece is
    counted as ready with the first one. Compression shrinks each of these alone as it is best, which none does better.
    """
    k_low, k_high, w_low, w_high, b_low, b_high = boxes.parts
    batch, shares = _scaled(space, boxes)
    works, serving = w_low > 0, space.index_of(site)
    at_home = np.zeros(len(space.groups))
    if site.co_located:
        at_home[serving] = 1.0
    ready = _ready_s(space, site, shares)  # boxes x groups x pieces
    sizes = np.add.reduceat(space.size_bytes, space.starts) if len(space.starts) else np.zeros(0)
    still = np.cumsum(sizes[::-1])[::-1]
    pooled = k_high * site.server_bytes_per_s
    load_s = space.loads_bytes[k_high - 1] / site.server_bytes_per_s
    num_workers = np.maximum(w_low.sum(axis=1), 1).astype(float)  # at least
    if space.fixed_batch is not None:
        on_machine = np.where(w_high > 0, space.devices * b_high, 1).max(axis=1)
        num_workers = np.maximum(num_workers, -(-space.fixed_batch // on_machine))
    waits_s, noise_s, pauses_s = _constants_s(space, site, boxes, num_workers)
    behind, chains_s = _alone_s(space, site, boxes, shares, num_workers, pauses_s)
    behind_s = behind.min(axis=1) if len(space.starts) else np.zeros(len(boxes))
    from_here_s = np.minimum.accumulate(behind[:, ::-1], axis=1)[:, ::-1]
    senders = num_workers - float(site.co_located)
    sent = np.maximum(w_low - at_home, 0.0)
    own = np.where((at_home > 0) & (w_low <= k_high[:, None]), 1 - 1 / k_low[:, None], 1.0)
    first_s = np.where(w_high > 0, ready[:, :, 0], np.inf).min(axis=1) if len(sizes) else np.zeros(len(boxes))
    compute_s = np.where(works, space.computing.of_each(shares), 0.0).max(axis=1)
    if space.fixed_batch is not None or space.is_batch_scaled:
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(w_high > 0, w_high * space.devices / space.sample_s, 0.0).sum(axis=1)
            compute_s = np.maximum(compute_s, np.where(rate > 0, batch / rate, 0.0))
    ends = [compute_s, _row_s(space, first_s, senders * load_s) + behind_s]
    for group in range(len(space.groups)):
        mine = ready[:, group, :]
        late = ready[:, :, None, :] >= mine[:, None, :, None]  # boxes x groups x thresholds x pieces
        arriving = np.einsum("bgtp,p,bg->bt", late, sizes, sent)
        last_s = np.where(late, behind[:, None, None, :], np.inf).min(axis=(1, 3))  # behind what is late
        rows = _row_s(space, mine, arriving / pooled[:, None]) + last_s
        fullest = (late[:, :, 0, 0] * sent).sum(axis=1) * load_s  # of what is ready no sooner than the group's first
        rows[:, 0] = np.maximum(rows[:, 0], _row_s(space, mine[:, 0], fullest) + behind_s)
        rows = np.maximum(rows, _row_s(space, mine, own[:, group, None] * still / space.rates[group]) + from_here_s)
        ends.append(np.where(works[:, group], rows.max(axis=1, initial=0.0), 0.0))
    pull_s = np.maximum(
        senders * load_s, (np.where(works, own, 0.0) * space.size_bytes.sum() / space.rates).max(axis=1)
    )
    if site.way.is_keyed:
        busy_s = _joined(space, site, boxes, (ends, pull_s, chains_s), num_workers, (waits_s, pauses_s)) + noise_s
    else:
        busy_s = np.max(ends, axis=0) + pull_s + waits_s + noise_s + pauses_s
    read = batch
    if space.fixed_batch is None and not space.is_batch_scaled:  # the fewest samples of an iteration
        each = np.where(w_high > 0, space.devices * b_low, np.inf).min(axis=1)
        fewest = np.maximum(
            (w_low * space.devices * b_low).sum(axis=1), num_workers * np.where(np.isfinite(each), each, 0.0)
        )
        read = np.minimum(fewest, space.most_batch)
    seconds = _with_input_s(space, boxes, shares, read, busy_s, num_workers)
    return np.asarray(seconds * iterations_of(space.problem, np.maximum(batch, 1.0)))


def _joined(
    space: Space,
    site: Site,
    boxes: Boxes,
    seconds: tuple[Sequence[Floats], Floats, Floats],
    num_workers: Floats,
    constants_s: tuple[Floats, Floats],
) -> Floats:
    """Return the seconds of an iteration without noise and input, where every sum is sent on its own.

    Parameters
    ----------
    seconds
        Ends of computing (the first) and of pushes; of pulls; of single sums.
    constants_s
        Latency with queueing, and what every iteration pauses.
    """
    (ends, pull_s, chains_s), (waits_s, pauses_s) = seconds, constants_s
    is_compressed = space.problem.compression is not None
    if site.co_located and not is_compressed:
        # Pushes of the worker and pulls from the server leave a machine by one link: S - held + (n - 1) held.
        held_bytes = space.loads_bytes[boxes.high[:, 0] - 1]
        both_bytes = space.size_bytes.sum() + (num_workers - 2) * held_bytes
        pull_s = np.maximum(pull_s, np.where(num_workers > 1, both_bytes, 0.0) / site.server_bytes_per_s)
    far_s = np.zeros(len(boxes)) if site.co_located else waits_s  # what binds may be a worker that has all at home
    pushed_s = [] if is_compressed and site.way.is_forward else [end + far_s for end in ends[1:]]  # compressing: beside
    if not site.way.is_forward:
        pushed_s, chains_s = [end + pauses_s for end in pushed_s], chains_s + pauses_s
    return np.asarray(np.max([ends[0] + pauses_s, *pushed_s, chains_s + far_s, pull_s], axis=0))


def _alone_s(
    space: Space, site: Site, boxes: Boxes, shares: Floats, num_workers: Floats, pauses_s: Floats
) -> tuple[Floats, Floats]:
    """Return what comes behind the sums of each piece, and the longest way of a single sum, with what is behind it.

    A sum is complete when the gradients of all senders have gone over its server's link, and each over its worker's.
    Of the workers away from it the one that begins its next pass first pulls it; the pass goes on from the sum's layer.
    The same holds for the workers of one group alone. They pull together: all where servers stand elsewhere; else those
    without a server, which share what leaves one, and whose own links are not full of it where they are more than
    servers, so that none gets it faster. Of cut tensors the last piece may be small: no time for pulls is counted.

    Returns
    -------
    behind, chains
        Boxes x pieces, 0 where the next pass waits for all sums. Boxes, 0 where sums go behind a barrier, wait to be
        asked for, or are compressed.
    """
    _, k_high, w_low, w_high, _, _ = boxes.parts
    behind, chains_s = np.zeros((len(boxes), len(space.starts))), np.zeros(len(boxes))
    if not site.way.pulls_early or space.problem.compression is not None or not len(space.size_bytes):
        return behind, chains_s
    may, is_cut = w_high > 0, space.is_cut
    workers = np.where(
        may.sum(axis=1, keepdims=True) == 1, may * num_workers[:, None], w_low
    )  # of each group, at least
    sending, pulling = workers.copy(), workers.copy()
    if site.co_located:
        serving = space.index_of(site)
        sending[:, serving] = np.maximum(workers[:, serving] - 1, 0)
        pulling[:, serving] = np.where(workers[:, serving] > 2 * k_high, workers[:, serving] - k_high, 0)
    # Seconds of a byte of a tensor: its gradients to the server, of all groups and of each alone; its sum to each.
    per_server_s = (1 / k_high if is_cut else np.ones(len(boxes)))[:, None] / site.server_bytes_per_s
    senders = num_workers - float(site.co_located)
    own_s = 0.0 if is_cut and site.co_located else 1 / space.rates
    pushed_s = np.maximum(sending * per_server_s, own_s)
    home = 1 - 1 / boxes.parts[0][:, None] if site.co_located else 1.0  # what a worker of those with servers sends
    all_pushed_s = np.maximum(sending / (k_high[:, None] * site.server_bytes_per_s), home / space.rates)
    still_bytes = np.cumsum(space.size_bytes[::-1])[::-1]  # of what is ready no sooner
    pulled_s = np.zeros_like(pushed_s) if is_cut else np.maximum(pulling * per_server_s, 1 / space.rates)
    first_pulled_s = np.where(senders > 0, np.where(may, pulled_s, np.inf).min(axis=1, initial=np.inf), 0.0)
    at_a_time = max(1, _MOST_NUMBERS // len(space.size_bytes))
    for first in range(0, len(boxes), at_a_time):
        rows = slice(first, first + at_a_time)
        any_s = np.full((len(may[rows]), len(space.size_bytes)), np.inf)  # until a gradient is ready somewhere
        tails_s, longest_s = any_s.copy(), np.zeros_like(any_s)
        for index, group in enumerate(space.groups):
            ready_s, tail_s = _own_ready_s(space, site, index, shares[rows, index]), np.zeros_like(any_s)
            if site.way.is_forward:
                forward = space.problem.profiles[group.device.name].forward(shares[rows, index])
                from_layer_s = np.cumsum(forward[:, ::-1], axis=1)[:, ::-1]
                from_layer_s[:, 0] += pauses_s[rows]
                tail_s = from_layer_s[:, space.layers]
            alone_s = ready_s + space.size_bytes * (pushed_s + pulled_s)[rows, index, None] + tail_s
            last_s = np.minimum.accumulate(tail_s[:, ::-1], axis=1)[:, ::-1]
            together_s = ready_s + still_bytes * all_pushed_s[rows, index, None] + last_s
            alone_s = np.maximum(alone_s, together_s)
            longest_s = np.where(sending[rows, index, None] > 0, np.maximum(longest_s, alone_s), longest_s)
            any_s = np.where(may[rows, index, None], np.minimum(any_s, ready_s), any_s)
            tails_s = np.where(may[rows, index, None], np.minimum(tails_s, tail_s), tails_s)
        all_s = senders[rows, None] * per_server_s[rows] + first_pulled_s[rows, None]
        chains_s[rows] = np.maximum(longest_s, any_s + space.size_bytes * all_s + tails_s).max(axis=1)
        behind[rows] = np.minimum.reduceat(tails_s, space.starts, axis=1)
    return behind, chains_s


def _scaled(space: Space, boxes: Boxes) -> tuple[Floats, Floats]:
    """Return the largest batch of each box, and the least shares with which it could be made.

    Where the batch may vary, an iteration of the batch B on shares b takes no less than B / Z of one of the largest
    batch Z on shares b Z / B: every term is a part that grows no faster than the shares, and a constant. Hence Z bounds
    the seconds per sample, on shares ``b_g Z / B >= low_g Z / (w_g d_g low_g + what the others can take at most)``.
    """
    _, _, _, w_high, b_low, b_high = boxes.parts
    most, least = w_high * space.devices * b_high, b_low.astype(float)
    total = most.sum(axis=1)
    batch = np.minimum(total, space.most_batch).astype(float)
    if not space.is_batch_scaled:
        return batch, least
    taken = w_high * space.devices * b_low + (total[:, None] - most)
    return batch, np.maximum(least, least * batch[:, None] / np.maximum(taken, 1))


def _own_ready_s(space: Space, site: Site, index: int, shares: Floats) -> Floats:
    """Return when a group is ready with each gradient (last axis), as :func:`_ready_s` counts it."""
    group = space.groups[index]
    times_s = ready_times_s(space.problem, group, space.gradients[index], shares, site.way.overlap)
    if site.way.is_forward:
        forward, _ = space.problem.profiles[group.device.name].whole
        return np.asarray(times_s - forward(shares)[:, None])
    return times_s


def _ready_s(space: Space, site: Site, shares: Floats) -> Floats:
    """Return when each group (second axis) is ready with the first gradient of each piece (last axis).

    From the beginning of a forward pass; from that of the backward pass, where the next forward pass waits by layers.
    """
    at_a_time = max(1, _MOST_NUMBERS // max(1, len(space.size_bytes)))  # a box has a row of all gradients
    ready = np.empty((len(shares), len(space.groups), len(space.starts)))
    for index in range(len(space.groups)):
        for first in range(0, len(shares), at_a_time):
            rows = slice(first, first + at_a_time)
            ready[rows, index] = _own_ready_s(space, site, index, shares[rows, index])[:, space.starts]
    return ready


def _row_s(space: Space, from_s: Floats, sent_s: Floats) -> Floats:
    """Return ``from + kept sent + scale / kept**2`` for the best kept share, or ``from + sent`` uncompressed."""
    option = space.problem.compression
    if option is None:
        return np.asarray(from_s + sent_s)
    sent = np.asarray(sent_s, dtype=float)
    ratio = np.divide(2 * option.scale_s, sent, out=np.full(sent.shape, np.inf), where=sent > 0)  # send all of nothing
    kept = np.clip(np.cbrt(ratio), 1 - option.most_removed, 1.0)
    return np.asarray(from_s + np.minimum(sent_s, sent_s * kept + option.scale_s / kept**2))


def _constants_s(space: Space, site: Site, boxes: Boxes, num_workers: Floats) -> tuple[Floats, Floats, Floats]:
    """Return latency with queueing; stragglers; overhead and the update."""
    k_low, _, w_low, w_high, _, _ = boxes.parts
    fitted, serving = space.problem.calibration, space.index_of(site)
    far = w_low > 0
    if site.co_located:
        far = far.copy()
        far[:, serving] &= (k_low > 1) | (w_low[:, serving] > 1)
    latency_s = np.where(far, np.array(site.latency_s), 0.0).max(axis=1)
    exchanges = (num_workers > 1) | far.any(axis=1) | (not site.co_located)
    may_be_one = ((w_high > 0) & (space.devices == 1)).any(axis=1) & ~((w_low > 0) & (space.devices > 1)).any(axis=1)
    overhead_s = np.where(exchanges | ~may_be_one, fitted.overhead_s, 0.0)
    any_update = np.where(w_high > 0, space.update_s, np.inf).min(axis=1)
    update_s = np.maximum(np.where(w_low > 0, space.update_s, 0.0).max(axis=1), any_update)
    noise_s = np.zeros(len(boxes))
    if fitted.straggler_deviation_s:
        noise_s = np.array([standard_maximum(int(number)) for number in num_workers])
    waits_s = 2 * latency_s + np.where(exchanges, 2 * site.queueing_s, 0.0)
    return np.asarray(waits_s), fitted.straggler_deviation_s * noise_s, np.asarray(overhead_s + update_s)


def _with_input_s(
    space: Space, boxes: Boxes, shares: Floats, whole_batch: Floats, busy_s: Floats, num_workers: Floats
) -> Floats:
    """Return the seconds with what the devices wait for input, which is never less for a busier iteration."""
    _, _, w_low, _, _, _ = boxes.parts
    problem, fitted = space.problem, space.problem.calibration
    strategy, pipelined = Strategy(fitted.strategy), fitted.is_prefetch_pipelined
    total_s = busy_s
    for index, group in enumerate(space.groups):
        readers = np.ones(len(boxes))
        is_measured = problem.training.measured_read_s(problem.profiles[group.device.name], group) is not None
        if group.storage and not is_measured:
            readers = np.array([float(group.storage.num_readers(int(number))) for number in num_workers])
        read, decode, copy = (one * shares[:, index] for one in space.inputs[index])
        read = read * readers + space.batch_reads_s[index] * whole_batch
        reading = np.maximum(read, decode) if pipelined else read + decode
        if strategy.copies_ahead:
            with_input = np.maximum(busy_s, np.maximum(reading, copy) if pipelined else reading + copy)
        elif strategy.reads_ahead:
            with_input = np.maximum(busy_s + copy, reading if pipelined else reading + copy)
        else:
            with_input = busy_s + reading + copy
        total_s = np.maximum(total_s, np.where(w_low[:, index] > 0, with_input, busy_s))
    return total_s
