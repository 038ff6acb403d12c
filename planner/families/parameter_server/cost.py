"""The cost of a configuration of parameter servers: one way from a question and its decisions to seconds and bytes.

A worker is a machine: its devices add up their gradients over the links inside, in ready order, and the machine pushes
the sums; tensors lie on several servers. The links are those of :mod:`planner.models.servers`: every server and
every worker has its own, full duplex, and a worker needs none to the server on its own machine. Workers run in lockstep
(BSP): behind a barrier pulls come after the last push, and stragglers enter as noise on the workers' times. Without one
every sum is sent on its own, message by message, see :mod:`planner.models.exchange`. Other synchronisations are the
same exchange with a slack, see :mod:`planner.models.asynchronous`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Cluster, MachineGroup
from planner.constraints import memory_limit_bytes
from planner.cost import Floats, Profile
from planner.dnn import Dnn
from planner.errors import Fault, ModelError, SpecError
from planner.families.parameter_server.configuration import NAME, ParameterServerConfiguration, overlap_of
from planner.families.parsing import wrong
from planner.models.activations import data_parallel_memory
from planner.models.asynchronous import Pace, pace
from planner.models.communication import ring_all_reduces
from planner.models.data_parallel import Gradients, gradients_of, standard_maximum
from planner.models.exchange import Discipline, Exchange, Overlap, Servers, Worker
from planner.models.exchange_run import Steady, steady
from planner.models.input import InputTime, Samples, Strategy, input_time, stall_s
from planner.models.memory import Precision
from planner.models.servers import (
    Links,
    place_largest_first,
    place_round_robin,
    place_sliced,
    pull_time_s,
    push_end_s,
    sliced_push_end_s,
    switch_queue_s,
    type_two_s,
)
from planner.plan import Prediction
from planner.problem import Problem
from planner.routes import routes_of
from planner.units import Dimension, format_human

_UNUSED_BYTES_PER_S = 1.0  # of a link that nothing goes over
_MOST_NUMBERS = 2**23  # in a table of tensors and servers
_MOST_MESSAGES = 20_000  # of an iteration, each way
_MOST_WORK = 1_000_000  # messages times connections: some seconds
_MOST_PARTS = 8  # of workers that fall apart: as many as runs were measured with

NOT_MODELLED = (
    "convergence and accuracy: a larger batch, or stale gradients, may need more epochs",
    "the servers' own work, and headers and congestion on the links",
    "the memory of the servers' hosts: parameters and the optimiser's state, once over all servers",
    "handing parameters out again inside a machine of several devices",
    "failures and restarts",
)

# -- what a group of machines offers, whatever the configuration: ready times, links, input --------------------------


def ready_times_s(
    problem: Problem, group: MachineGroup, gradients: Gradients, share: Floats, overlap: str | None = None
) -> Floats:
    """Return when a machine of the group can push each gradient (last axis), from the iteration's start.

    Parameters
    ----------
    share
        Samples of one of its devices; an array of any shape.

    Notes
    -----
    The devices of a machine add up their gradients over the links inside, one after the other in ready order, as the
    family ``all_reduce`` has it: ``end_j = max(end_(j-1), ready_j) + time_j``.
    """
    (forward, backward), shares = problem.profiles[group.device.name].whole, np.asarray(share, dtype=float)
    if overlap_of(problem, overlap).pushes_early:
        own_s = forward.map(lambda seconds: seconds[:, None]).plus(gradients.ready)(shares)
    else:
        computed_s = forward.plus(backward)(shares)
        own_s = np.broadcast_to(computed_s[..., None], (*shares.shape, len(gradients.names)))
    if group.inside is None or group.devices_per_machine == 1:
        return np.asarray(own_s)
    fitted, training = problem.calibration, problem.training
    gradient_bytes = Precision.of(training.dtype, training.optimizer).gradient_bytes
    inside = ring_all_reduces(
        num_devices=[group.devices_per_machine],
        bandwidth_bytes_per_s=fitted.links.inside_bytes_per_s(group),
        latency_s=group.inside.latency_s,
        reduce_bytes_per_s=fitted.reduce_bytes_per_s(group.device, gradient_bytes),
    ).at(0)
    return type_two_s(own_s, inside(gradients.size_bytes))


def network_bytes_per_s(problem: Problem, group: MachineGroup) -> float:
    """Return the bandwidth of a machine's network cards together, at the rate that is reached."""
    if not problem.cluster.links:  # the only machine of its cluster: its server is at home, and nothing is sent
        return _UNUSED_BYTES_PER_S
    own = problem.cluster.own_link(group.name)
    return problem.calibration.links.network_bytes_per_s(own.bandwidth_bytes_per_s, group)


def network_latency_s(cluster: Cluster, one: str, other: str) -> float:
    """Return the latency of the way between machines of two groups, as all-reduce counts it from machine to machine."""
    return routes_of(cluster).latency_s({one, other})


def packet_queueing_s(problem: Problem, server_bytes_per_s: float) -> float:
    """Return a packet's time at the switch, one direction (eqs. 11 and 12 of the GST model); refuse saturation.

    Its arrivals are those of one saturated link, however many workers and servers there are.
    """
    queue = problem.calibration.queue
    if queue is None:
        return 0.0
    try:
        return float(
            switch_queue_s(
                server_bytes_per_s,
                packet_bytes=queue.packet_bytes,
                switch_packets_per_s=queue.switch_bytes_per_s / queue.packet_bytes,
                num_hops=queue.num_hops,
            )
        )
    except ModelError as error:
        raise SpecError.of([Fault(field="calibration.queue", problem=str(error), mend="")]) from None


def group_inputs(
    problem: Problem, group: MachineGroup, *, num_workers: int, share: float, whole_batch: float | None
) -> InputTime:
    """Return the time of a group's input; a store that all share reads the whole batch of all workers.

    ``whole_batch``: None without a barrier, where there is no common batch and a store is shared evenly.
    """
    training = problem.training
    return input_time(
        group,
        Samples.of(problem),
        num_machines=num_workers,
        devices_per_machine=group.devices_per_machine,
        batch_per_device=share,
        whole_batch=whole_batch,
        read_s_per_sample=training.measured_read_s(problem.profiles[group.device.name], group),
    )


def layers_of_tensors(dnn: Dnn, names: Sequence[str]) -> NDArray[np.intp]:
    """Return the layer, by its place in the network, that each gradient belongs to."""
    places = {layer.name: place for place, layer in enumerate(dnn.layers)}
    places |= {tensor.name: place for place, layer in enumerate(dnn.layers) for tensor in layer.tensors}
    return np.array([places[name] for name in names], dtype=np.intp)


# -- a configuration --------------------------------------------------------------------------------------------------


class ParameterServerCost:
    """What one configuration of a question costs."""

    def __init__(
        self,
        problem: Problem,
        configuration: ParameterServerConfiguration,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.problem, self.is_over = problem, is_over
        self.configuration = configuration
        self.precision = Precision.of(problem.training.dtype, problem.training.optimizer)
        self.strategy = Strategy(problem.calibration.strategy)
        groups = {group.name: group for group in problem.cluster.machine_groups}
        self.groups = [groups[name] for name in configuration.workers]
        self.server_group = groups[configuration.servers]
        self.num_workers = sum(configuration.workers.values())
        compression = configuration.compression
        self.kept = 1.0 if compression is None else float(compression.kept)  # share of all gradients that is pushed
        self.compression_s = 0.0 if compression is None else float(compression.time_s)
        self._gradients: dict[str, Gradients] = {}  # by device

    @property
    def most_samples(self) -> int:
        """Samples of one iteration if every device had its group's largest share."""
        workers, shares = self.configuration.workers, self.configuration.batch_shares
        return sum(workers[group.name] * group.devices_per_machine * shares[group.name] for group in self.groups)

    @property
    def global_batch_size(self) -> int:
        """Samples of one iteration; where they do not divide, some devices have one less than their share."""
        fixed = self.configuration.global_batch_size or self.problem.training.global_batch_size
        return self.most_samples if fixed is None else fixed

    def profile(self, group: MachineGroup) -> Profile:
        """Return the seconds of the layers on a group's devices."""
        return self.problem.profiles[group.device.name]

    def gradients(self, group: MachineGroup) -> Gradients:
        """Return the gradients with their ready times on a group's devices."""
        if group.device.name not in self._gradients:
            self._gradients[group.device.name] = gradients_of(
                self.problem.dnn,
                self.profile(group),
                gradient_bytes=self.precision.gradient_bytes,
                unit=self.problem.calibration.fusion_unit,
            )
        return self._gradients[group.device.name]

    def compute_s(self, group: MachineGroup) -> tuple[float, float]:
        """Return forward and backward seconds of a group's share."""
        share, (forward, backward) = self.configuration.batch_shares[group.name], self.profile(group).whole
        return float(forward(share)), float(backward(share))

    def ready_s(self, group: MachineGroup) -> Floats:
        """Return when a machine of the group can push each gradient, from the iteration's start."""
        share = np.array(float(self.configuration.batch_shares[group.name]))
        return ready_times_s(self.problem, group, self.gradients(group), share, self.configuration.overlap)

    def inputs(self) -> Iterator[InputTime]:
        """Yield the time of input of every group."""
        is_lockstep = self.configuration.synchronisation == "bsp"
        batch = min(self.most_samples, self.global_batch_size) if is_lockstep else None
        for group in self.groups:
            share = self.configuration.batch_shares[group.name]
            yield group_inputs(self.problem, group, num_workers=self.num_workers, share=share, whole_batch=batch)

    # -- network

    @cached_property
    def entries(self) -> list[tuple[MachineGroup, int, int | None]]:
        """Workers that are alike: their group, how many they are, and the server on their machine."""
        entries: list[tuple[MachineGroup, int, int | None]] = []
        for group in self.groups:
            count = self.configuration.workers[group.name]
            serves = self.configuration.co_located and group.name == self.configuration.servers
            at_home = min(count, self.configuration.num_parameter_servers) if serves else 0
            entries += [(group, 1, server) for server in range(at_home)]
            entries += [(group, count - at_home, None)] * (count > at_home)
        return entries

    @cached_property
    def links(self) -> Links:
        """The links of servers and workers, at the rate that is reached."""
        rates = {group.name: network_bytes_per_s(self.problem, group) for group in (*self.groups, self.server_group)}
        return Links(
            server_bytes_per_s=(rates[self.server_group.name],) * self.configuration.num_parameter_servers,
            worker_bytes_per_s=tuple(rates[group.name] for group, _, _ in self.entries),
            worker_counts=tuple(count for _, count, _ in self.entries),
            worker_homes=tuple(home for _, _, home in self.entries),
        )

    @property
    def uses_network(self) -> bool:
        """Whether anything is sent; not where the only server is on the only worker's own machine."""
        return self.configuration.num_parameter_servers > 1 or any(home is None for _, _, home in self.entries)

    @property
    def overhead_s(self) -> float:
        """The library's start-up of an exchange; none where one device keeps its gradients."""
        is_alone = not self.uses_network and self.groups[0].devices_per_machine == 1
        return 0.0 if is_alone else self.problem.calibration.overhead_s

    @property
    def queueing_s(self) -> float:
        """A packet's time at the switch, one direction; none where nothing is sent."""
        return packet_queueing_s(self.problem, min(self.links.server_bytes_per_s)) if self.uses_network else 0.0

    @property
    def latency_s(self) -> float:
        """The longest way of a gradient over the network; 0 where nothing is sent."""
        is_one = self.configuration.num_parameter_servers == 1
        far = [group.name for group, _, home in self.entries if home is None or not is_one]
        cluster, servers = self.problem.cluster, self.server_group.name
        return max((network_latency_s(cluster, name, servers) for name in dict.fromkeys(far)), default=0.0)

    # -- what lies on servers, and what is pushed to them

    @property
    def is_counted_by_kinds(self) -> bool:
        """Whether all servers hold equal slices, and are too many for a table of tensors and servers."""
        size_bytes = self.gradients(self.groups[0]).size_bytes
        is_too_large = self.configuration.num_parameter_servers * len(size_bytes) > _MOST_NUMBERS
        return self.configuration.placement == "sliced" and is_too_large

    @cached_property
    def pieces(self) -> NDArray[np.intp]:
        """In how many pieces each tensor goes: as many as its bytes need, of at most so many each."""
        size_bytes, most_bytes = self.gradients(self.groups[0]).size_bytes, self.configuration.partition_bytes
        if most_bytes is None:
            return np.ones(len(size_bytes), dtype=np.intp)
        return np.asarray(np.maximum(np.ceil(size_bytes / most_bytes), 1).astype(np.intp))

    @property
    def piece_bytes(self) -> Floats:
        """Bytes of each piece of each tensor: full ones, and what is left behind them."""
        size_bytes, most_bytes = self.gradients(self.groups[0]).size_bytes, self.configuration.partition_bytes
        if most_bytes is None:
            return size_bytes
        sizes = np.full(int(self.pieces.sum()), float(most_bytes))
        sizes[np.cumsum(self.pieces) - 1] = size_bytes - (self.pieces - 1) * most_bytes
        return sizes

    @cached_property
    def placed_pieces_bytes(self) -> Floats:
        """Bytes of each piece of each tensor (row) on each server (column)."""
        gradients, placement = self.gradients(self.groups[0]), self.configuration.placement
        num_servers = self.configuration.num_parameter_servers
        sizes = self.piece_bytes
        if placement == "round_robin":
            return place_round_robin(sizes, num_servers=num_servers)
        if placement == "largest_first":
            return place_largest_first(sizes, server_bytes_per_s=self.links.server_bytes_per_s)
        if placement == "sliced":
            return place_sliced(sizes, server_bytes_per_s=self.links.server_bytes_per_s)
        assert not isinstance(placement, str)
        placed = np.zeros((len(sizes), num_servers))
        placed[np.arange(len(sizes)), np.repeat([placement[name] for name in gradients.names], self.pieces)] = sizes
        return placed

    @cached_property
    def placed_bytes(self) -> Floats:
        """Bytes of each tensor (row) on each server (column)."""
        return np.add.reduceat(self.placed_pieces_bytes, np.cumsum(self.pieces) - self.pieces)

    @cached_property
    def held_bytes(self) -> Floats:
        """Bytes that each server holds."""
        if self.is_counted_by_kinds:
            servers = self.configuration.num_parameter_servers
            return np.full(servers, float(self.gradients(self.groups[0]).size_bytes.sum()) / servers)
        return np.asarray(self.placed_bytes.sum(axis=0))

    @property
    def pushed_bytes(self) -> Floats:
        """What each tensor pushes to each server, after compression."""
        return self.placed_bytes if self.configuration.compression is None else self.placed_bytes * self.kept

    @property
    def pushed_from_bytes(self) -> Floats:
        """Bytes that each server receives from a worker, after compression."""
        if self.is_counted_by_kinds:
            return self.held_bytes * self.kept
        return np.asarray(self.pushed_bytes.sum(axis=0))

    @property
    def pull_s(self) -> float:
        """Seconds in which all workers pull everything."""
        return pull_time_s(self.held_bytes[None, :], self.links)

    def _push_end_s(self) -> tuple[Floats, float]:
        """Return when each server has received everything, and when the last gradient was ready."""
        rows = {group.name: self.ready_s(group) for group in self.groups}
        last_s = max(float(row.max(initial=0.0)) for row in rows.values())
        if not self.is_counted_by_kinds:
            ready = np.array([rows[group.name] for group, _, _ in self.entries])
            return push_end_s(ready, self.pushed_bytes, self.links), last_s
        chosen = self.configuration
        ends = sliced_push_end_s(
            list(rows.values()),
            self.gradients(self.groups[0]).size_bytes * self.kept,
            num_servers=chosen.num_parameter_servers,
            server_bytes_per_s=self.links.server_bytes_per_s[0],
            worker_bytes_per_s=[network_bytes_per_s(self.problem, group) for group in self.groups],
            worker_counts=[chosen.workers[name] for name in rows],
            home_kind=list(rows).index(chosen.servers) if chosen.co_located else None,
        )
        return ends, last_s

    # -- sums that are sent without waiting for all gradients

    @property
    def overlap(self) -> Overlap:
        """What goes over links beside computing."""
        return overlap_of(self.problem, self.configuration.overlap)

    @property
    def is_keyed(self) -> bool:
        """Whether every sum is sent on its own, in lockstep without a barrier, over links that are used."""
        return self.configuration.sends_alone and self.uses_network

    @property
    def pauses_s(self) -> dict[str, float]:
        """Seconds of every iteration beside passes and links, by part."""
        return {
            "compression": self.compression_s,
            "overhead": self.overhead_s,
            "update": max(self.profile(group).update_s for group in self.groups),
        }

    @cached_property
    def keyed(self) -> Exchange:
        """The exchange, message by message, of workers and servers by kind."""
        kinds, servers, columns = self.kinds
        number = int((columns > 0).sum()) * len(kinds)
        if number > _MOST_MESSAGES or number * len(kinds) * len(servers) > _MOST_WORK:
            slice_them = "" if self.configuration.placement == "sliced" else "Slice tensors (placement: sliced); or "
            mend = f"{slice_them}take fewer servers, larger pieces, or a barrier."
            mend = mend[0].upper() + mend[1:]
            text = f"{number:,} gradients on their way to servers are more than can be followed one by one."
            raise wrong(NAME, "overlap", self.overlap.value, text, mend)
        rates = dict(zip((id(group) for group, _, _ in self.entries), self.links.worker_bytes_per_s, strict=True))
        workers = []
        for group, count, home in kinds:
            share, profile = self.configuration.batch_shares[group.name], self.profile(group)
            forward = profile.forward(share)
            workers.append(
                Worker(
                    count=count,
                    forward_s=tuple(forward.tolist()),
                    backward_s=float(profile.backward(share).sum()),
                    ready_s=tuple(np.repeat(self.ready_s(group) - float(forward.sum()), self.pieces).tolist()),
                    bytes_per_s=rates[id(group)],
                    home=home,
                )
            )
        places = layers_of_tensors(self.problem.dnn, self.gradients(self.groups[0]).names)
        found = Exchange(
            workers=tuple(workers),
            servers=tuple(servers),
            pushed_bytes=columns * self.kept,
            pulled_bytes=columns,
            key_layer=tuple(np.repeat(places, self.pieces).tolist()),
            overlap=self.overlap,
            discipline=Discipline.PRIORITY if self.configuration.has_priority else Discipline.FAIR,
            latency_s=self.latency_s + self.queueing_s,
            pause_s=sum(self.pauses_s.values()),
        )
        return found if self.overlap.pulls_early else replace(found, stagger_s=found.busiest_s / len(workers))

    @cached_property
    def kinds(self) -> tuple[list[tuple[MachineGroup, int, int | None]], list[Servers], Floats]:
        """Return kinds of workers with the kind of servers at their home, kinds of servers, and what each one holds.

        Sums that are sent at once keep workers of a group together. Else they fall apart: some single ones, or as many
        parts of equal size, stand for all.
        """
        chosen, rate, entries = self.configuration, self.links.server_bytes_per_s[0], self.entries
        number, homes = chosen.num_parameter_servers, [home for _, _, home in self.entries if home is not None]
        is_sliced, falls_apart = chosen.placement == "sliced", not self.overlap.pulls_early
        are_few = number <= _MOST_PARTS and int(self.pieces.sum()) * number * _MOST_PARTS <= _MOST_MESSAGES
        if not is_sliced or (falls_apart and are_few):
            servers, columns = [Servers(bytes_per_s=rate)] * number, self.placed_pieces_bytes
        else:
            size_bytes = self.piece_bytes
            counts = [count for count in (len(homes), number - len(homes)) if count]
            servers = [Servers(count=count, bytes_per_s=rate) for count in counts]
            columns = np.repeat(size_bytes[:, None] / number, len(counts), axis=1)
            if homes:
                group = next(one for one, _, home in entries if home is not None)
                entries = [(group, len(homes), 0), *(entry for entry in entries if entry[2] is None)]
        if not falls_apart:
            return entries, servers, columns
        kinds: list[tuple[MachineGroup, int, int | None]] = [entry for entry in entries if entry[2] is not None]
        for group, count, _ in (entry for entry in entries if entry[2] is None):
            parts = min(count, max(1, _MOST_PARTS // len(entries)))
            kinds += [(group, len(part), None) for part in np.array_split(np.arange(count), parts)]
        return kinds, servers, columns

    @cached_property
    def run(self) -> Steady:
        """What iterations of that exchange come to."""
        return steady(self.keyed, self.is_over)

    def _predict_keyed(self) -> Prediction:
        """Return what a configuration costs whose sums are sent on their own."""
        slowest = max(self.groups, key=lambda group: sum(self.compute_s(group)))
        forward_s, backward_s = self.compute_s(slowest)
        run, pauses_s = self.run, self.pauses_s
        exposed_s = max(run.iteration_s - forward_s - backward_s - sum(pauses_s.values()), 0.0)
        deviation_s = self.problem.calibration.straggler_deviation_s
        pushed_s = min(run.pushed_s, exposed_s)
        parts = {
            "forward": forward_s,
            "backward": backward_s,
            "exposed_push": pushed_s,
            "pull": exposed_s - pushed_s,
            "stragglers": deviation_s and deviation_s * standard_maximum(self.num_workers),
            **pauses_s,
        }
        busy_s = sum(parts.values())
        parts["input_stall"] = self.with_input_s(busy_s) - busy_s
        messages = int((self.keyed.pushed_bytes > 0).sum()) * len(self.keyed.workers)
        details = {"overlap": self.overlap.value, "barrier": False, "lag": run.lag, "messages": messages}
        return self._prediction(parts, details)

    # -- time

    def predict(self) -> Prediction:
        """Return what the configuration costs.

        Without a barrier an iteration is the time in which each share of the batch is worked through once.
        """
        if self.is_keyed:
            return self._predict_keyed()
        if self.configuration.synchronisation == "bsp":
            parts, servers_s = self.busy_parts_s()
            busy_s = sum(parts.values())
            parts["input_stall"] = self.with_input_s(busy_s) - busy_s
            return self._prediction(parts, {"server_push_end_s": servers_s.tolist()})
        staleness = {"mean": self.pace.mean_staleness, "most": self.pace.most_staleness}
        details = {"synchronisation": self.configuration.synchronisation, "staleness": staleness}
        return self._prediction(self._paced_parts_s(), details)

    def with_input_s(self, busy_s: float) -> float:
        """Return the seconds of an iteration that is busy for so long, with what the slowest input adds."""
        return busy_s + max(stall_s(time, busy_s, self.strategy) for time in self.inputs())

    def busy_parts_s(self) -> tuple[dict[str, float], Floats]:
        """Return where the time of an iteration goes but for waiting for input, and every server's end of pushes."""
        slowest = max(self.groups, key=lambda group: sum(self.compute_s(group)))
        forward_s, backward_s = self.compute_s(slowest)
        servers_s, ready_s = self._push_end_s()
        pushed_s = max(float(servers_s.max()), forward_s + backward_s, ready_s)
        deviation_s = self.problem.calibration.straggler_deviation_s
        return {
            "forward": forward_s,
            "backward": backward_s,
            "exposed_push": pushed_s - forward_s - backward_s,
            "compression": self.compression_s,
            "pull": self.pull_s,
            "latency": 2 * self.latency_s,
            "queueing": 2 * self.queueing_s,
            "stragglers": deviation_s and deviation_s * standard_maximum(self.num_workers),
            "overhead": self.overhead_s,
            "update": max(self.profile(group).update_s for group in self.groups),
        }, servers_s

    def _own_parts_s(self) -> dict[str, dict[str, float]]:
        """Return the seconds of one iteration of each group's worker, without what is exchanged."""
        seconds = {}
        for group, time in zip(self.groups, self.inputs(), strict=True):
            forward_s, backward_s = self.compute_s(group)
            parts = {"forward": forward_s, "backward": backward_s, "update": self.profile(group).update_s}
            parts["exposed_push"] = max(float(self.ready_s(group).max(initial=0.0)) - forward_s - backward_s, 0.0)
            parts["overhead"] = self.overhead_s
            parts["compression"] = self.compression_s
            parts["input_stall"] = stall_s(time, sum(parts.values()), self.strategy)
            seconds[group.name] = parts
        return seconds

    @cached_property
    def pace(self) -> Pace:
        """The pace of workers without a barrier, those of an entry after those of the one before it.

        Pushes begin when all is computed: they do not overlap with the backward pass, as those of BSP do.
        """
        chosen, links, own_s = self.configuration, self.links, self._own_parts_s()
        workers = [
            Worker(
                forward_s=(sum(own_s[group.name].values()),),
                backward_s=0.0,
                ready_s=(0.0,),
                bytes_per_s=rate,
                home=home,
                deviation_s=self.problem.calibration.straggler_deviation_s,
                samples=group.devices_per_machine * chosen.batch_shares[group.name],
            )
            for (group, count, home), rate in zip(self.entries, links.worker_bytes_per_s, strict=True)
            for _ in range(count)
        ]
        is_local = chosen.synchronisation == "local_sgd"
        return pace(
            Exchange(
                workers=tuple(workers),
                servers=tuple(Servers(bytes_per_s=rate) for rate in links.server_bytes_per_s),
                pushed_bytes=self.pushed_from_bytes[None, :],
                pulled_bytes=self.held_bytes[None, :],
                key_layer=(0,),
                overlap=Overlap.NONE,
                slack=inf if chosen.synchronisation == "asp" else 0 if is_local else chosen.staleness,
                discipline=Discipline.FIFO,
                num_steps=chosen.staleness + 1 if is_local else 1,
                latency_s=self.latency_s + self.queueing_s,
            )
        )

    def _paced_parts_s(self) -> dict[str, float]:
        """Return where the time of an iteration goes without a barrier.

        Of the mean worker's time a part is its own work, a part is what the synchronisation holds it back
        (``stragglers``), and the rest are exchanges (``exposed_push``).
        """
        round_s, seconds, waiting = (
            self.most_samples / self.pace.samples_per_s,
            self._own_parts_s(),
            self.pace.waiting_share,
        )
        own = {
            name: sum(count * seconds[group.name][name] for group, count, _ in self.entries)
            / self.num_workers
            / round_s
            for name in seconds[self.groups[0].name]
        }
        working = sum(own.values())
        scale = min(1.0, (1 - waiting) / working) if working else 1.0
        shares = {name: share * scale for name, share in own.items()}
        shares["stragglers"] = waiting
        shares["exposed_push"] += max(0.0, 1 - sum(shares.values()))
        total = sum(shares.values())
        return {name: round_s * (share / total) for name, share in shares.items()}

    def _prediction(self, parts: Mapping[str, float], details: Mapping[str, Any]) -> Prediction:
        """Return the prediction of a breakdown."""
        training, iteration_s, shares = self.problem.training, sum(parts.values()), self.configuration.batch_shares
        samples = training.dataset_samples
        epoch_s = None if samples is None else iteration_s * samples / self.global_batch_size
        alone_s = max(sum(self.compute_s(group)) for group in self.groups)
        update_s = max(self.profile(group).update_s for group in self.groups)
        push_s = float((self.pushed_from_bytes * self.links.senders / np.array(self.links.server_bytes_per_s)).max())
        reserve = self.problem.calibration.memory_reserve_bytes
        memory = data_parallel_memory(self.problem.dnn, self.precision, reserve_bytes=reserve)
        limits = {group.name: memory_limit_bytes(self.problem, group) for group in self.groups}
        fullest = max(limits, key=lambda name: memory.total_bytes(shares[name]) / limits[name])
        return Prediction(
            iteration_time_s=iteration_s,
            epoch_time_s=epoch_s,
            training_time_s=None if epoch_s is None or training.epochs is None else epoch_s * training.epochs,
            breakdown_s=parts,
            communication_s={"push": push_s, "pull": self.pull_s, "wait": parts["stragglers"]},
            scaling_factor=(alone_s + update_s) / iteration_s,
            communication_to_computation=(push_s + self.pull_s) / alone_s if alone_s else float("inf"),
            memory_bytes=memory.terms_bytes(shares[fullest], limit_bytes=limits[fullest]),
            details={
                "batch_per_device": max(shares.values()),
                "global_batch_size": self.global_batch_size,
                "num_workers": self.num_workers,
                "gradient_bytes": float((self.held_bytes if self.is_counted_by_kinds else self.placed_bytes).sum()),
                "server_bytes": self.held_bytes.tolist(),
                **details,
            },
        )


def explain(problem: Problem, configuration: ParameterServerConfiguration, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds: computation, the servers' links, a worker's link, stragglers or input."""
    cost, parts = ParameterServerCost(problem, configuration), prediction.breakdown_s
    exchange = ("exposed_push", "pull", "latency", "overhead", "queueing", "compression")
    shares = {
        "computation": parts["forward"] + parts["backward"] + parts["update"],
        "communication": sum(parts.get(name, 0.0) for name in exchange),
        "stragglers": parts["stragglers"],
        "input": parts["input_stall"],
    }
    slowest = max(shares, key=shares.__getitem__)
    lines = [f"{slowest} binds: {shares[slowest] / prediction.iteration_time_s:.0%} of an iteration"]
    if slowest == "communication":
        pushed = cost.pushed_from_bytes
        own_bytes = max(float(pushed.sum() - (0.0 if home is None else pushed[home])) for home in cost.links.homes)
        load_s, own_s = prediction.communication_s["push"], own_bytes / min(cost.links.worker_bytes_per_s)
        where, seconds = ("a server's link", load_s) if load_s >= own_s else ("a worker's own link", own_s)
        lines.append(f"{where} carries {format_human(seconds, Dimension.TIME)} of pushes")
    memory = prediction.memory_bytes
    if memory["total"] > memory["limit"]:
        total, limit = (format_human(memory[key], Dimension.DATA) for key in ("total", "limit"))
        lines.append(f"it does not fit: a device would hold {total}, and has {limit}")
    return tuple(lines)
