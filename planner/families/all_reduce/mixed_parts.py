"""What the parts of an iteration cost on unlike devices: memory, computation, communication and input, by group."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from planner.cluster import MachineGroup
from planner.cost import Floats, TransferCost
from planner.families.all_reduce.forms import Ints, Rings, closed_forms, reduce_bytes_per_s
from planner.models.collectives import Affines, delayed
from planner.models.data_parallel import Gradients, Kinds, gradients_of
from planner.models.input import InputTime, input_time
from planner.models.memory import MemoryUse, Precision, data_parallel_memory
from planner.models.ssgd_equations import Strategy
from planner.problem import Problem

__all__ = ["InputRates", "MixedParts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRates:
    """Seconds of input of a group, for every sample of one device; reading a store that all share, of the batch."""

    read_s: float
    read_of_batch_s: float
    decode_s: float
    copy_s: float
    is_pipelined: bool

    def at(self, share: float, batch: float) -> InputTime:
        """Return the input of one iteration."""
        return InputTime(
            read_s=self.read_s * share + self.read_of_batch_s * batch,
            decode_s=self.decode_s * share,
            copy_s=self.copy_s * share,
            is_pipelined=self.is_pipelined,
        )


class MixedParts:
    """Given groups, so many devices of each machine of a group, and what each part of an iteration costs on them."""

    def __init__(self, problem: Problem, names: Sequence[str], devices_per_machine: Sequence[int]) -> None:
        self.problem = problem
        self.cluster = problem.cluster.of_groups(names)
        devices = dict(zip(names, devices_per_machine, strict=True))
        self.groups: tuple[MachineGroup, ...] = self.cluster.machine_groups
        self.names = tuple(group.name for group in self.groups)
        self.devices: Ints = np.array([devices[name] for name in self.names], dtype=np.int64)
        self.precision = Precision.of(problem.training.dtype, problem.training.optimizer)

    def with_devices(self, devices_per_machine: Sequence[int]) -> Self:
        """Return the same groups with other numbers of devices of each machine, in the order of ``groups``."""
        other = copy(self)  # nothing that is cached depends on them
        other.devices = np.array(devices_per_machine, dtype=np.int64)
        return other

    @property
    def strategy(self) -> Strategy:
        """What the framework overlaps."""
        return Strategy(self.problem.calibration.strategy)

    @cached_property
    def memory(self) -> MemoryUse:
        """What a device holds."""
        reserve = self.problem.calibration.memory_reserve_bytes
        return data_parallel_memory(self.problem.dnn, self.precision, reserve_bytes=reserve)

    def memory_limit_bytes(self, group: MachineGroup) -> float:
        """Return what a device of a group may hold: its memory, or the user's limit where that is less."""
        limit = self.problem.limits.memory_per_device_bytes
        return min(group.device.memory_bytes, float("inf") if limit is None else limit)

    @cached_property
    def most_at_a_time(self) -> Ints:
        """Samples that a device of each group holds; 0 where not even one fits."""
        most = [self.memory.most_samples(self.memory_limit_bytes(group)) for group in self.groups]
        return np.array(most, dtype=np.int64)

    def _gradients_on(self, group: MachineGroup) -> Gradients:
        """Return what has to be exchanged, and when it is ready on the devices of a group."""
        profile, unit = self.problem.profiles[group.device.name], self.problem.calibration.fusion_unit
        return gradients_of(self.problem.dnn, profile, gradient_bytes=self.precision.gradient_bytes, unit=unit)

    @cached_property
    def gradients(self) -> Gradients:
        """What has to be exchanged; its ready times are those of the first group."""
        return self._gradients_on(self.groups[0])

    @cached_property
    def kinds(self) -> Kinds:
        """The devices of each group."""
        profiles = [self.problem.profiles[group.device.name] for group in self.groups]
        backward_s = np.array([float(profile.backward_s.sum()) for profile in profiles])
        ready_s = np.array([self._gradients_on(group).ready_s_per_sample for group in self.groups])
        if not self.strategy.overlaps_gradients:
            ready_s = np.broadcast_to(backward_s[:, None], ready_s.shape)
        steps = self.problem.fixed.get("gradient_accumulation_steps")
        return Kinds(
            forward_s=np.array([float(profile.forward_s.sum()) for profile in profiles]),
            backward_s=backward_s,
            update_s=np.array([profile.update_s for profile in profiles]),
            ready_s_per_sample=ready_s,
            most_at_a_time=np.maximum(self.most_at_a_time, 1),
            num_microbatches=None if steps is None else np.full(len(profiles), steps, dtype=np.int64),
        )

    # -- communication -----------------------------------------------------------------------------------------------

    @cached_property
    def _network(self) -> tuple[float, float]:
        """Bandwidth and latency of a ring over machines of all groups."""
        if self.cluster.num_machines == 1:
            return float("inf"), 0.0
        link = self.cluster.ring_link(self.cluster.num_machines)
        return link.bandwidth_bytes_per_s * self.problem.calibration.bandwidth_efficiency, link.latency_s

    def closed_forms(self, num_machines: Ints, num_devices: Ints) -> dict[str, Affines]:
        """Return the costs of the algorithms for many numbers of machines and devices at once.

        None of them falls as machines join. Two levels need equally many devices in every machine.
        """
        inside = [link for link, devices in zip(self.inside_links, self.devices.tolist(), strict=True) if devices > 1]
        return self.forms_of(
            num_machines,
            num_devices,
            most_devices=int(self.devices.max()),
            inside_bytes_per_s=np.array(min((bandwidth for bandwidth, _ in inside), default=float("inf"))),
            inside_latency_s=np.array(max((latency_s for _, latency_s in inside), default=0.0)),
            is_even=len(set(self.devices.tolist())) == 1,
        )

    @cached_property
    def inside_links(self) -> list[tuple[float, float]]:
        """Bytes a second and latency in seconds inside a machine of each group; free where none is given."""
        links = [group.inside for group in self.groups]
        return [(float("inf"), 0.0) if one is None else (one.bandwidth_bytes_per_s, one.latency_s) for one in links]

    def forms_of(
        self,
        num_machines: Ints,
        num_devices: Ints,
        *,
        most_devices: int,
        inside_bytes_per_s: Floats,
        inside_latency_s: Floats,
        is_even: bool,
    ) -> dict[str, Affines]:
        """Return the costs of the algorithms where the links inside machines are given, as numbers or for each row."""
        has_network = num_machines > 1
        rings = Rings(
            num_machines=num_machines,
            num_devices=num_devices,
            most_devices=np.full_like(num_machines, most_devices),
            network_bytes_per_s=np.where(has_network, self._network[0], float("inf")),
            network_latency_s=np.where(has_network, self._network[1], 0.0),
            inside_bytes_per_s=inside_bytes_per_s * self.problem.calibration.inside_efficiency,
            inside_latency_s=inside_latency_s,
            reduce_bytes_per_s=self._reduce_bytes_per_s,
            is_even=is_even,
        )
        return closed_forms(self.problem, rings)

    @cached_property
    def _reduce_bytes_per_s(self) -> float:
        """Bytes of gradient that the slowest device adds up in a second."""
        return min(reduce_bytes_per_s(self.problem, group.device, self.precision) for group in self.groups)

    def transfer_costs(self, num_machines: int, num_devices: int) -> dict[str, TransferCost]:
        """Return the cost of an all-reduce by algorithm; a curve of this many devices goes before."""
        fitted = self.problem.calibration
        if curve := fitted.all_reduce_curves.get(num_devices):
            return {"measured": delayed(curve, fitted.negotiate_s)}
        forms = self.closed_forms(np.array([num_machines]), np.array([num_devices]))
        return {name: costs.at(0) for name, costs in forms.items()}

    # -- input -------------------------------------------------------------------------------------------------------

    def input_rates(self, num_machines: int) -> tuple[InputRates, ...]:
        """Return the input of each group while so many machines read.

        Of a store that all share, each group waits for the whole batch; of one that some share, for as many machines
        like its own.
        """
        return tuple(
            self.rates_of(group, devices, num_machines)
            for group, devices in zip(self.groups, self.devices.tolist(), strict=True)
        )

    def rates_of(self, group: MachineGroup, devices: int, num_machines: int) -> InputRates:
        """Return the input of one group."""
        training = self.problem.training
        one, of_batch = (
            input_time(
                group,
                num_machines=num_machines,
                devices_per_machine=devices,
                batch_per_device=share,
                sample_bytes=training.sample_bytes,
                device_sample_bytes=training.device_sample_bytes,
                whole_batch=batch,
                read_s_per_sample=training.measured_read_s(self.problem.profiles[group.device.name], group),
                is_pipelined=self.problem.calibration.is_prefetch_pipelined,
            )
            for share, batch in ((1.0, 0.0), (0.0, 1.0))
        )
        return InputRates(
            read_s=one.read_s,
            read_of_batch_s=of_batch.read_s,
            decode_s=one.decode_s,
            copy_s=one.copy_s,
            is_pipelined=one.is_pipelined,
        )
