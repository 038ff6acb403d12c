"""What a question leaves open to parameter servers: who may serve and work, how many, on which shares.

A *site* is the group whose machines serve, and whether servers stand on machines that work. On one site a
configuration is a row of whole numbers ``(K, w_1..w_G, b_1..b_G)``: servers, working machines of each group, samples of
one of their devices. Placement and compression are left to whoever solves a row.
"""

from dataclasses import dataclass, field
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from planner.cluster import MachineGroup
from planner.cost import Floats
from planner.errors import SpecError
from planner.families.parameter_server.given import may_work
from planner.families.parameter_server.groups import (
    group_inputs,
    memory_limit_bytes,
    network_bytes_per_s,
    network_latency_s,
    packet_queueing_s,
)
from planner.models.data_parallel import Gradients, gradients_of
from planner.models.memory import Precision, data_parallel_memory
from planner.problem import Problem, Range

__all__ = ["Numbers", "Site", "Space"]

Numbers = NDArray[np.int64]
_MOST_PIECES = 12  # tensors that a lower bound looks at; neighbours are merged, and ready with the first of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Whose machines serve, and whether those machines work, too.

    ``queueing_s``: ``inf`` where the servers' links would saturate the switch, for the reason ``saturated``; then only
    one machine that serves itself, and sends nothing, is left.
    """

    servers: MachineGroup
    co_located: bool
    server_bytes_per_s: float
    latency_s: tuple[float, ...]
    queueing_s: float
    saturated: str = ""


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
    inputs: Floats = field(init=False)  # of one sample on each device of a machine
    batch_reads_s: Floats = field(init=False)  # of one sample of the whole batch, from a store that all share
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
        ones = [group_inputs(problem, group, num_workers=1, share=1.0, whole_batch=0.0) for group in self.groups]
        self.inputs = np.array([(one.read_s, one.decode_s, one.copy_s) for one in ones])
        none = [group_inputs(problem, group, num_workers=1, share=0.0, whole_batch=1.0) for group in self.groups]
        self.batch_reads_s = np.array([one.read_s for one in none])
        self.sites = list(self._sites(known))
        pinned = problem.fixed.get("num_parameter_servers") or 1
        most_servers = max(
            (max(self.most_servers(one), min(pinned, one.servers.count)) for one in self.sites), default=1
        )
        self.loads_bytes = self._least_loads(most_servers)

    def _sites(self, known: dict[str, MachineGroup]) -> "list[Site]":
        """Return where servers may stand, by what is pinned; machines of their own first."""
        fixed, cluster, found = self.problem.fixed, self.problem.cluster, []
        working = {group.name for group in self.groups}
        for name, group in known.items():
            if fixed.get("servers") not in (None, name):
                continue
            rate = network_bytes_per_s(self.problem, group)
            waiting_s, saturated = inf, ""
            try:
                waiting_s = packet_queueing_s(self.problem, rate)
            except SpecError as error:
                saturated = error.faults[0].problem.split(". ")[0]
            for co_located in (False, True):
                if fixed.get("co_located") in (None, co_located) and (name in working or not co_located):
                    found.append(
                        Site(
                            servers=group,
                            co_located=co_located,
                            server_bytes_per_s=rate,
                            latency_s=tuple(network_latency_s(cluster, one.name, name) for one in self.groups),
                            queueing_s=waiting_s,
                            saturated=saturated,
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
    def is_batch_scaled(self) -> bool:
        """Whether shares and batch may vary, and the goal counts seconds per sample."""
        is_open = self.fixed_batch is None and self.fixed_share is None
        return is_open and self.problem.goal.name != "iteration_time"

    @property
    def is_equal(self) -> bool:
        """Whether all devices are to have equal shares."""
        return self.problem.fixed.get("batch_shares") == "equal"

    @property
    def num_machines(self) -> Range:
        """How many machines may work or serve, by the limit and the pin."""
        return self.problem.allowed_machines

    @property
    def num_devices(self) -> Range:
        """How many devices may work, by the limit and the pin."""
        return self.problem.allowed_devices

    def index_of(self, site: Site) -> int:
        """Return the serving group's place among those that may work, or -1."""
        return next((index for index, group in enumerate(self.groups) if group.name == site.servers.name), -1)

    def most_servers(self, site: Site) -> int:
        """Return the most servers on a site.

        As many as tensors make a plan as fast as it can be where none is split; more are only needed for a number of
        machines that the question asks for at least, of which one works.
        """
        most = site.servers.count
        if self.problem.calibration.split_tensors:
            return most
        busy = max(self.num_machines.least, self.problem.busy_machines)
        asked = 1 if site.co_located else busy - 1
        return min(most, max(1, len(self.size_bytes), asked))

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
