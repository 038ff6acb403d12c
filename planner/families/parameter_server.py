"""The family ``parameter_server``: what a given configuration costs.

Workers run in lockstep (BSP), tensors lie on several servers. A worker is a machine: its devices add up their gradients
over the links inside, in ready order, and the machine pushes the sums. The links are those of
:mod:`planner.models.server_links`: every server and every worker has its own, full duplex;
pulls come after the last push. Stragglers enter as noise on the workers' times.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np

from planner.cluster import MachineGroup
from planner.cost import Floats, Profile
from planner.errors import Fault, ModelError, SpecError
from planner.families.faults import wrong
from planner.families.inner_links import check_inner_links
from planner.fifo import fifo_end_s
from planner.models.collectives import ring_all_reduces
from planner.models.compression import Compression
from planner.models.data_parallel import Gradients, gradients_of
from planner.models.input import InputTime, input_time, stall_s
from planner.models.memory import Precision, data_parallel_memory
from planner.models.server_links import (
    Links,
    place_largest_first,
    place_round_robin,
    place_sliced,
    pull_time_s,
    push_end_s,
)
from planner.models.server_network import ServerNetwork, queueing_s
from planner.models.ssgd_equations import Strategy
from planner.models.stragglers import standard_maximum
from planner.plan import Prediction
from planner.problem import Problem
from planner.timeline import Timeline
from planner.units import Dimension, format_exact, format_human

__all__ = [
    "DECISIONS",
    "NAME",
    "NOT_MODELLED",
    "ParameterServerConfiguration",
    "configuration_of",
    "explain",
    "predict",
    "timeline",
]

NAME = "parameter_server"
NOT_MODELLED = (
    "convergence and accuracy: a larger batch may need more epochs",
    "the servers' own work, and latency, headers and congestion on the links",
    "the share of a co-located server that needs no network, and its memory",
    "handing parameters out again inside a machine of several devices",
    "failures and restarts",
)
DECISIONS = frozenset(("num_parameter_servers", "servers", "co_located", "synchronisation", "batch_shares", "device"))
_PLACEMENTS = ("round_robin", "largest_first", "sliced")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterServerConfiguration:
    """All decisions of the family.

    Attributes
    ----------
    workers
        Machines of each group that work, by the group's name.
    servers
        The group whose machines serve.
    placement
        A rule, or the server of every tensor.
    batch_shares
        Samples of one device, by the group's name.
    compression
        Share of every gradient that is not pushed, and the seconds that leaving nothing out would take.
        Pulls are whole.
    """

    num_parameter_servers: int
    workers: Mapping[str, int]
    servers: str
    co_located: bool
    placement: str | Mapping[str, int]
    batch_shares: Mapping[str, int]
    compression: Compression | None = None

    @property
    def headline(self) -> str:
        """How many workers and servers."""
        workers = " + ".join(f"{count} {name}" for name, count in self.workers.items())
        place = "on the same machines" if self.co_located else f"on {self.servers}"
        many = "s" * (self.num_parameter_servers > 1)
        return f"{workers} as workers, {self.num_parameter_servers} server{many} {place}"

    def to_document(self) -> dict[str, Any]:
        """Return the block that ``predict`` reads back."""
        return {
            "num_parameter_servers": self.num_parameter_servers,
            "workers": dict(self.workers),
            "servers": self.servers,
            "co_located": self.co_located,
            "placement": self.placement if isinstance(self.placement, str) else dict(self.placement),
            "batch_shares": dict(self.batch_shares),
            **({} if self.compression is None else {"compression": _compression_block(self.compression)}),
        }


class ParameterServerCost:
    """What one configuration of a question costs."""

    def __init__(self, problem: Problem, configuration: ParameterServerConfiguration) -> None:
        self.problem = problem
        self.configuration = configuration
        self.precision = Precision.of(problem.training.dtype, problem.training.optimizer)
        groups = {group.name: group for group in problem.cluster.machine_groups}
        self.groups = [groups[name] for name in configuration.workers]
        self.server_group = groups[configuration.servers]

    @property
    def num_workers(self) -> int:
        """Machines that work."""
        return sum(self.configuration.workers.values())

    @property
    def global_batch_size(self) -> int:
        """Samples of one iteration; where they do not divide, some devices have one less than their share."""
        if self.problem.training.global_batch_size is not None:
            return self.problem.training.global_batch_size
        workers, shares = self.configuration.workers, self.configuration.batch_shares
        return sum(workers[group.name] * group.devices_per_machine * shares[group.name] for group in self.groups)

    @property
    def strategy(self) -> Strategy:
        """What the framework overlaps."""
        return Strategy(self.problem.calibration.strategy)

    def profile(self, group: MachineGroup) -> Profile:
        """Return the seconds of the layers on a group's devices."""
        return self.problem.profiles[group.device.name]

    def gradients(self, group: MachineGroup) -> Gradients:
        """Return the gradients with their ready times on a group's devices."""
        return gradients_of(
            self.problem.dnn,
            self.profile(group),
            gradient_bytes=self.precision.gradient_bytes,
            unit=self.problem.calibration.fusion_unit,
        )

    def compute_s(self, group: MachineGroup) -> tuple[float, float]:
        """Return forward and backward seconds of a group's share."""
        share, profile = self.configuration.batch_shares[group.name], self.profile(group)
        return float(profile.forward_s.sum()) * share, float(profile.backward_s.sum()) * share

    def ready_s(self, group: MachineGroup) -> Floats:
        """Return when a machine of the group can push each gradient, from the iteration's start."""
        gradients = self.gradients(group)
        forward_s, _ = self.compute_s(group)
        own_s = forward_s + gradients.ready_s_per_sample * self.configuration.batch_shares[group.name]
        if not self.strategy.overlaps_gradients:
            own_s = np.full(len(own_s), sum(self.compute_s(group)))
        if group.inside is None or group.devices_per_machine == 1:
            return own_s
        inside = ring_all_reduces(
            num_devices=[group.devices_per_machine],
            bandwidth_bytes_per_s=group.inside.bandwidth_bytes_per_s * self.problem.calibration.inside_efficiency,
            latency_s=group.inside.latency_s,
        ).at(0)
        return fifo_end_s(own_s, inside(gradients.size_bytes))

    @cached_property
    def links(self) -> Links:
        """The links of servers and workers, at the rate that is reached."""
        efficiency = self.problem.calibration.bandwidth_efficiency
        rates = {group.name: self._rate(group) * efficiency for group in (*self.groups, self.server_group)}
        return Links(
            server_bytes_per_s=(rates[self.server_group.name],) * self.configuration.num_parameter_servers,
            worker_bytes_per_s=tuple(
                rates[group.name] for group in self.groups for _ in range(self.configuration.workers[group.name])
            ),
        )

    def _rate(self, group: MachineGroup) -> float:
        """Return the bandwidth of a machine's network cards together."""
        edges = list(self.problem.cluster.graph.edges(group.name, data=True))
        if not edges:
            raise ModelError(f"machines {group.name!r} have no network: a server cannot be reached. Give them one.")
        return float(min(data["link"].bandwidth_bytes_per_s for _, _, data in edges)) * group.num_nics

    @cached_property
    def placed_bytes(self) -> Floats:
        """Bytes of each tensor (row) on each server (column)."""
        sizes, placement = self.gradients(self.groups[0]).size_bytes, self.configuration.placement
        if placement == "round_robin":
            return place_round_robin(sizes, num_servers=self.configuration.num_parameter_servers)
        if placement == "largest_first":
            return place_largest_first(sizes, server_bytes_per_s=self.links.server_bytes_per_s)
        if placement == "sliced":
            return place_sliced(sizes, server_bytes_per_s=self.links.server_bytes_per_s)
        assert not isinstance(placement, str)
        placed = np.zeros((len(sizes), self.configuration.num_parameter_servers))
        for row, name in enumerate(self.gradients(self.groups[0]).names):
            placed[row, placement[name]] = sizes[row]
        return placed

    @property
    def pushed_bytes(self) -> Floats:
        """What each tensor pushes to each server, after compression."""
        compression = self.configuration.compression
        return self.placed_bytes if compression is None else self.placed_bytes * float(compression.kept)

    def _queueing_s(self) -> float:
        """Return a packet's time at the switch, one direction (eqs. 11 and 12 of the GST model); refuse saturation."""
        queue = self.problem.calibration.queue
        if queue is None:
            return 0.0
        network = ServerNetwork(
            num_workers=self.num_workers,
            num_servers=self.configuration.num_parameter_servers,
            bandwidth_bytes_per_s=min(self.links.server_bytes_per_s),
            packet_bytes=queue.packet_bytes,
            switch_packets_per_s=queue.switch_bytes_per_s / queue.packet_bytes,
            num_hops=queue.num_hops,
        )
        try:
            return float(queueing_s(network))
        except ModelError as error:
            raise SpecError.of([Fault(field="calibration.queue", problem=str(error), mend="")]) from None

    def predict(self) -> Prediction:
        """Return what the configuration costs: ``max(pushes after computation, then pulls, update; input)``."""
        slowest = max(self.groups, key=lambda group: sum(self.compute_s(group)))
        forward_s, backward_s = self.compute_s(slowest)
        ready = np.array([self.ready_s(group) for group in self.groups for _ in range(self._count(group))])
        servers_s = push_end_s(ready, self.pushed_bytes, self.links)
        pushed_s = max(float(servers_s.max()), forward_s + backward_s)
        fitted, compression = self.problem.calibration, self.configuration.compression
        straggling_s = fitted.straggler_deviation_s * standard_maximum(self.num_workers)
        parts = {
            "forward": forward_s,
            "backward": backward_s,
            "exposed_push": pushed_s - forward_s - backward_s,
            "compression": 0.0 if compression is None else float(compression.time_s),
            "pull": pull_time_s(self.placed_bytes, self.links),
            "queueing": 2 * self._queueing_s(),
            "stragglers": straggling_s,
            "overhead": fitted.overhead_s,
            "update": self.profile(slowest).update_s,
        }
        busy_s = sum(parts.values())
        parts["input_stall"] = max(stall_s(time, busy_s, self.strategy) for time in self._inputs())
        iteration_s = busy_s + parts["input_stall"]
        return self._prediction(parts, iteration_s, servers_s)

    def _count(self, group: MachineGroup) -> int:
        """Return how many machines of a group work."""
        return self.configuration.workers[group.name]

    def _prediction(self, parts: Mapping[str, float], iteration_s: float, servers_s: Floats) -> Prediction:
        """Return the prediction of a breakdown."""
        training = self.problem.training
        samples = training.dataset_samples
        epoch_s = None if samples is None else iteration_s * samples / self.global_batch_size
        alone_s = parts["forward"] + parts["backward"]
        load_s = self.pushed_bytes.sum(axis=0) * self.num_workers / np.array(self.links.server_bytes_per_s)
        return Prediction(
            iteration_time_s=iteration_s,
            epoch_time_s=epoch_s,
            training_time_s=None if epoch_s is None or training.epochs is None else epoch_s * training.epochs,
            breakdown_s=parts,
            communication_s={"push": float(load_s.max()), "pull": parts["pull"], "wait": parts["stragglers"]},
            scaling_factor=(alone_s + parts["update"]) / iteration_s,
            communication_to_computation=(float(load_s.max()) + parts["pull"]) / alone_s if alone_s else float("inf"),
            memory_bytes=self._memory(),
            details={
                "batch_per_device": max(self.configuration.batch_shares.values()),
                "global_batch_size": self.global_batch_size,
                "num_workers": self.num_workers,
                "gradient_bytes": float(self.placed_bytes.sum()),
                "server_bytes": self.placed_bytes.sum(axis=0).tolist(),
                "server_push_end_s": servers_s.tolist(),
            },
        )

    def _memory(self) -> dict[str, float]:
        """Return the bytes on the fullest worker's device."""
        reserve = self.problem.calibration.memory_reserve_bytes
        use = data_parallel_memory(self.problem.dnn, self.precision, reserve_bytes=reserve)
        shares = self.configuration.batch_shares
        fullest = max(self.groups, key=lambda group: use.total_bytes(shares[group.name]) / group.device.memory_bytes)
        return use.terms_bytes(shares[fullest.name], limit_bytes=fullest.device.memory_bytes)

    def _inputs(self) -> list[InputTime]:
        """Return the time of input of every group; a shared store is one store for all workers."""
        training = self.problem.training
        return [
            input_time(
                group,
                num_machines=self.num_workers,
                devices_per_machine=group.devices_per_machine,
                batch_per_device=self.configuration.batch_shares[group.name],
                sample_bytes=training.sample_bytes,
                device_sample_bytes=training.device_sample_bytes,
                read_s_per_sample=training.measured_read_s(self.profile(group), group),
                is_pipelined=self.problem.calibration.is_prefetch_pipelined,
            )
            for group in self.groups
        ]


def predict(problem: Problem, configuration: ParameterServerConfiguration) -> Prediction:
    """Return what a configuration costs."""
    return ParameterServerCost(problem, configuration).predict()


def timeline(problem: Problem, configuration: ParameterServerConfiguration) -> Timeline | None:
    """Return None: transfers share the links at changing rates, so that there are no tasks to draw."""
    del problem, configuration
    return None


def explain(problem: Problem, configuration: ParameterServerConfiguration, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds: computation, the servers' links, a worker's link, stragglers or input."""
    cost, parts = ParameterServerCost(problem, configuration), prediction.breakdown_s
    network_s = parts["exposed_push"] + parts["pull"]
    shares = {
        "computation": parts["forward"] + parts["backward"] + parts["update"],
        "communication": network_s + parts["overhead"] + parts["queueing"] + parts["compression"],
        "stragglers": parts["stragglers"],
        "input": parts["input_stall"],
    }
    slowest = max(shares, key=shares.__getitem__)
    lines = [f"{slowest} binds: {shares[slowest] / prediction.iteration_time_s:.0%} of an iteration"]
    if slowest == "communication":
        load_s = max(prediction.details["server_bytes"]) * cost.num_workers / min(cost.links.server_bytes_per_s)
        own_s = prediction.details["gradient_bytes"] / min(cost.links.worker_bytes_per_s)
        where, seconds = ("a server's link", load_s) if load_s >= own_s else ("a worker's own link", own_s)
        lines.append(f"{where} carries {format_human(seconds, Dimension.TIME)} of pushes")
    memory = prediction.memory_bytes
    if memory["total"] > memory["limit"]:
        total, limit = (format_human(memory[key], Dimension.DATA) for key in ("total", "limit"))
        lines.append(f"it does not fit: a device would hold {total}, and has {limit}")
    return tuple(lines)


# -- a given configuration -------------------------------------------------------------------------------------------


def configuration_of(problem: Problem, given: Mapping[str, Any]) -> ParameterServerConfiguration:
    """Return the configuration that a spec's block means.

    Raises
    ------
    SpecError
        Where it names machines that there are not, more of them than there are, or no batch that can be shared.
    """
    check_inner_links(problem, NAME)
    if problem.variant != "corrected":
        text = "the printed forms of the parameter-server papers are asked in their cases."
        raise SpecError.of([Fault(field="variant", value=problem.variant, problem=text, mend="Leave it out.")])
    groups = {group.name: group for group in problem.cluster.machine_groups}
    servers = given["servers"] or list(groups)[-1]
    _known("servers", servers, groups)
    num_servers, co_located = given["num_parameter_servers"], given["co_located"]
    workers = given["workers"] or _other_machines(groups, servers, 0 if co_located else num_servers)
    for name in workers:
        _known("workers", name, groups)
    _check_machines(groups, workers, servers, num_servers, co_located=co_located)
    shares = _shares(problem, groups, workers, given)
    return ParameterServerConfiguration(
        num_parameter_servers=num_servers,
        workers=workers,
        servers=servers,
        co_located=co_located,
        placement=_placement(problem, groups[next(iter(workers))], given["placement"], num_servers),
        batch_shares=shares,
        compression=_compression(given["compression"]),
    )


def _compression(given: Mapping[str, Any] | None) -> Compression | None:
    """Return the compression of a block."""
    return None if given is None else Compression(removed=given["removed"], scale_s=given["time"])


def _compression_block(compression: Compression) -> dict[str, Any]:
    """Return the block that a spec reads back."""
    return {"removed": float(compression.removed), "time": format_exact(compression.scale_s, Dimension.TIME)}


def _other_machines(groups: Mapping[str, MachineGroup], servers: str, num_servers: int) -> dict[str, int]:
    """Return all machines that are not needed as servers; dedicated CPUs beside GPUs do not work."""
    counts = {name: group.count - (num_servers if name == servers else 0) for name, group in groups.items()}
    has_accelerator = any(group.device.kind != "cpu" for group in groups.values())
    return {
        name: count
        for name, count in counts.items()
        if count > 0 and not (has_accelerator and groups[name].device.kind == "cpu")
    }


def _check_machines(
    groups: Mapping[str, MachineGroup], workers: Mapping[str, int], servers: str, num_servers: int, *, co_located: bool
) -> None:
    """Refuse more machines than there are."""
    if not workers:
        raise wrong(NAME, "workers", "", f"no machine is left to work beside {num_servers} servers.")
    for name, group in groups.items():
        working, serving = workers.get(name, 0), num_servers if name == servers else 0
        used = max(working, serving) if co_located else working + serving
        if used > group.count:
            text = f"{working} workers and {serving} servers need {used} machines of {name!r}, which has {group.count}."
            raise wrong(NAME, "workers", working, text)


def _shares(
    problem: Problem, groups: Mapping[str, MachineGroup], workers: Mapping[str, int], given: Mapping[str, Any]
) -> dict[str, int]:
    """Return the samples of one device of each group: as given, or the batch in equal parts."""
    if given["batch_shares"] is not None:
        shares = dict(given["batch_shares"])
        if set(shares) != set(workers):
            raise wrong(
                NAME, "batch_shares", shares, f"shares are needed for {', '.join(workers)}, and for nothing else."
            )
        total = sum(count * groups[name].devices_per_machine * shares[name] for name, count in workers.items())
        wanted, most = problem.training.global_batch_size, problem.training.max_global_batch_size
        if (wanted is not None and total != wanted) or (most is not None and total > most):
            raise wrong(
                NAME, "batch_shares", total, f"the shares make a batch of {total}; dnn asks for {wanted or most}."
            )
        return shares
    training = problem.training
    if training.batch_per_device is not None:
        return dict.fromkeys(workers, training.batch_per_device)
    batch = training.global_batch_size or training.max_global_batch_size or 0
    devices = sum(count * groups[name].devices_per_machine for name, count in workers.items())
    if batch < devices:
        raise wrong(
            NAME, "batch_shares", batch, f"a batch of {batch} leaves some of {devices} devices without a sample."
        )
    is_fixed = training.global_batch_size is not None
    return dict.fromkeys(workers, ceil(batch / devices) if is_fixed else batch // devices)


def _placement(
    problem: Problem, group: MachineGroup, given: str | Mapping[str, int], num_servers: int
) -> str | Mapping[str, int]:
    """Return a placement, checked: every gradient on one of the servers."""
    if isinstance(given, str):
        return given
    names = gradients_of(
        problem.dnn, problem.profiles[group.device.name], gradient_bytes=1, unit=problem.calibration.fusion_unit
    ).names
    if missing := [name for name in names if name not in given]:
        raise wrong(NAME, "placement", missing[0], f"{missing[0]!r} is on no server.")
    if unknown := [name for name in given if name not in names]:
        raise wrong(NAME, "placement", unknown[0], f"{unknown[0]!r} is no gradient of this network.")
    if beyond := {name: index for name, index in given.items() if not 0 <= index < num_servers}:
        name, index = next(iter(beyond.items()))
        raise wrong(NAME, "placement", index, f"{name!r} is on server {index}; there are {num_servers}, from 0 on.")
    return dict(given)


def _known(key: str, name: str, groups: Mapping[str, MachineGroup]) -> None:
    """Refuse the name of machines that there are not."""
    if name not in groups:
        raise wrong(NAME, key, name, f"there are no machines {name!r}; there are {', '.join(groups)}.")
