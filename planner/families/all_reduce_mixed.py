"""The cost of an all-reduce configuration on unlike devices: several kinds that share one batch unequally.

All devices of a group are equal and have the same share, some of them one sample less; the share of a group is the
largest. Every device computes its share; a gradient is sent when the last kind of device has it; all devices update
when the last transfer has ended, and the slowest update ends the iteration (`planner.models.data_parallel.Kinds`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np

from planner import channel
from planner.channel import FusionSchedule
from planner.cluster import MachineGroup
from planner.cost import TransferCost
from planner.errors import SpecError
from planner.families.all_reduce_configuration import AllReduceConfiguration, GroupShare
from planner.families.all_reduce_cost import communication_of, fusion_groups_of, schedule_rows, unknown_algorithm
from planner.families.all_reduce_forms import Ints, Rings, closed_forms, reduce_bytes_per_s
from planner.models.collectives import Affines, cheapest_of, delayed
from planner.models.compression import Compression
from planner.models.data_parallel import Gradients, Kinds, exposed_s, gradients_of
from planner.models.input import InputTime, input_time, stall_s
from planner.models.memory import MemoryUse, Precision, data_parallel_memory
from planner.models.overlap import csf
from planner.models.ssgd_equations import Strategy
from planner.plan import Prediction
from planner.problem import Problem

__all__ = ["InputRates", "MixedCost"]


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


class MixedCost:
    """What configurations of one question cost on given groups, so many devices of each machine of a group."""

    def __init__(self, problem: Problem, names: Sequence[str], devices_per_machine: Sequence[int]) -> None:
        self.problem = problem
        self.cluster = problem.cluster.of_groups(names)
        devices = dict(zip(names, devices_per_machine, strict=True))
        self.groups: tuple[MachineGroup, ...] = self.cluster.machine_groups
        self.names = tuple(group.name for group in self.groups)
        self.devices: Ints = np.array([devices[name] for name in self.names], dtype=np.int64)
        self.precision = Precision.of(problem.training.dtype, problem.training.optimizer)

    @classmethod
    def of(cls, problem: Problem, groups: Sequence[GroupShare]) -> "MixedCost":
        """Return the cost on the groups of a configuration."""
        return cls(problem, [one.name for one in groups], [one.devices_per_machine for one in groups])

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
        used = zip(self.groups, self.devices.tolist(), strict=True)
        inside = [group.inside for group, devices in used if devices > 1 and group.inside is not None]
        bandwidth = min((link.bandwidth_bytes_per_s for link in inside), default=float("inf"))
        has_network = num_machines > 1
        rings = Rings(
            num_machines=num_machines,
            num_devices=num_devices,
            most_devices=np.full_like(num_machines, int(self.devices.max())),
            network_bytes_per_s=np.where(has_network, self._network[0], float("inf")),
            network_latency_s=np.where(has_network, self._network[1], 0.0),
            inside_bytes_per_s=bandwidth * self.problem.calibration.inside_efficiency,
            inside_latency_s=max((link.latency_s for link in inside), default=0.0),
            reduce_bytes_per_s=min(
                reduce_bytes_per_s(self.problem, group.device, self.precision) for group in self.groups
            ),
            is_even=len(set(self.devices.tolist())) == 1,
        )
        return closed_forms(self.problem, rings)

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
            self._rates(group, devices, num_machines)
            for group, devices in zip(self.groups, self.devices.tolist(), strict=True)
        )

    def _rates(self, group: MachineGroup, devices: int, num_machines: int) -> InputRates:
        """Return the input of one group."""
        training, store = self.problem.training, group.storage
        one = input_time(
            group,
            num_machines=num_machines,
            devices_per_machine=devices,
            batch_per_device=1,
            sample_bytes=training.sample_bytes,
            device_sample_bytes=training.device_sample_bytes,
            read_s_per_sample=training.measured_read_s(self.problem.profiles[group.device.name], group),
            is_pipelined=self.problem.calibration.is_prefetch_pipelined,
        )
        is_measured = training.measured_read_s(self.problem.profiles[group.device.name], group) is not None
        is_common = not is_measured and store is not None and store.is_shared and store.shared_by is None
        return InputRates(
            read_s=0.0 if is_common else one.read_s,
            read_of_batch_s=training.sample_bytes / store.bandwidth_bytes_per_s if is_common and store else 0.0,
            decode_s=one.decode_s,
            copy_s=one.copy_s,
            is_pipelined=one.is_pipelined,
        )

    # -- a whole configuration ---------------------------------------------------------------------------------------

    def configuration(
        self,
        machines: Sequence[int],
        shares: Sequence[int],
        global_batch_size: int,
        *,
        steps: Sequence[int] | None = None,
        ends: Sequence[int] = (),
        compression: Compression | None = None,
    ) -> AllReduceConfiguration:
        """Return the configuration of the groups' machines and shares; each fused group by its cheapest algorithm."""
        if steps is None:
            steps = self.kinds.microbatches(np.array([shares], dtype=np.int64))[0].tolist()
        rows = zip(self.names, machines, self.devices.tolist(), shares, steps, strict=True)
        groups = tuple(
            GroupShare(
                name=name,
                num_machines=number,
                devices_per_machine=devices,
                batch_per_device=share,
                gradient_accumulation_steps=step,
            )
            for name, number, devices, share, step in rows
        )
        num_machines, num_devices = sum(machines), sum(one.num_devices for one in groups)
        kept = 1.0 if compression is None else float(compression.kept)
        costs = self.transfer_costs(num_machines, num_devices)
        return AllReduceConfiguration(
            num_devices=num_devices,
            num_machines=num_machines,
            devices_per_machine=int(self.devices.max()),
            global_batch_size=global_batch_size,
            gradient_accumulation_steps=max(steps),
            fusion_groups=fusion_groups_of(self.gradients, ends, costs, kept=kept) if ends else (),
            groups=groups,
            compression=compression,
        )

    def kinds_of(self, configuration: AllReduceConfiguration) -> tuple[Kinds, Ints]:
        """Return the devices with the micro-batches of a configuration, and the shares as one row."""
        rows = {one.name: one for one in configuration.groups}
        steps = np.array([rows[name].gradient_accumulation_steps for name in self.names], dtype=np.int64)
        shares = np.array([[rows[name].batch_per_device for name in self.names]], dtype=np.int64)
        return replace(self.kinds, num_microbatches=steps), shares

    def straggler(self, configuration: AllReduceConfiguration) -> int:
        """Return the index of the group that computes longest."""
        kinds, shares = self.kinds_of(configuration)
        return int(np.argmax(kinds.computed_s(shares)[0]))

    def schedule(self, configuration: AllReduceConfiguration) -> FusionSchedule | None:
        """Return when every fused group is sent, from the start of the straggler's last backward pass."""
        if not configuration.fusion_groups or configuration.num_devices == 1:
            return None
        kinds, shares = self.kinds_of(configuration)
        slowest = self.straggler(configuration)
        origin_s = kinds.computed_s(shares)[0, slowest] - self._last_backward_s(configuration)
        costs = self.transfer_costs(configuration.num_machines, configuration.num_devices)
        for group in configuration.fusion_groups:
            if group.algorithm not in costs:
                raise SpecError.of([unknown_algorithm(group.algorithm, costs, configuration.num_devices)])
        kept = 1.0 if configuration.compression is None else float(configuration.compression.kept)
        seconds = [
            float(costs[group.algorithm](np.array([group.size_bytes * kept]))[0])
            for group in configuration.fusion_groups
        ]
        ends = np.cumsum([len(group.tensors) for group in configuration.fusion_groups]) - 1
        fitted = self.problem.calibration
        return channel.schedule(
            tuple(ends.tolist()),
            kinds.ready_s(shares)[0] - origin_s,
            self.gradients.size_bytes * kept,
            lambda _: np.array(seconds),
            wait=fitted.wait,
            timeout_s=fitted.timeout_s,
        )

    def _last_backward_s(self, configuration: AllReduceConfiguration) -> float:
        """Return the seconds of the straggler's last backward pass."""
        kinds, shares = self.kinds_of(configuration)
        slowest = self.straggler(configuration)
        return float(kinds.backward_s[slowest] * kinds.last_samples(shares)[0, slowest])

    def predict(self, configuration: AllReduceConfiguration) -> Prediction:
        """Return what a configuration costs.

        ``iteration = max(end of the last transfer, computation of each kind) + update``, and no less than the input of
        any group. The breakdown is that of the straggler, the group that computes longest: what other devices wait for
        it is no term of its own.
        """
        problem, (kinds, shares) = self.problem, self.kinds_of(configuration)
        slowest, schedule = self.straggler(configuration), self.schedule(configuration)
        computed_s = kinds.computed_s(shares)[0]
        compression = configuration.compression
        compression_s = 0.0 if compression is None else float(compression.time_s)
        negotiate_s, last_backward_s = problem.calibration.negotiate_s, self._last_backward_s(configuration)
        exposed: Mapping[str, float] = dict.fromkeys(("all_reduce", "wait", "negotiate", "misc"), 0.0)
        if schedule is not None:
            exposed = exposed_s(schedule, backward_end_s=last_backward_s, negotiate_s=negotiate_s)
        sent_s = float(computed_s[slowest]) + sum(exposed.values())
        end_s = float((computed_s + kinds.update_s).max())
        if schedule is not None:
            finish_s = float(computed_s[slowest]) - last_backward_s + schedule.finish_s
            end_s = max(end_s, finish_s + float(kinds.update_s.max()))
        busy_s = compression_s + end_s
        inputs = self.inputs(configuration)
        iteration_s = busy_s + max(stall_s(read, busy_s, self.strategy) for read in inputs)
        share = int(shares[0, slowest])
        breakdown = {
            "forward": float(kinds.forward_s[slowest]) * share,
            "backward": float(kinds.backward_s[slowest]) * share,
        }
        breakdown |= {"compression": compression_s} if compression is not None else {}
        breakdown |= {f"exposed_{name}": seconds for name, seconds in exposed.items()}
        breakdown |= {"update": max(0.0, end_s - sent_s), "input_stall": iteration_s - busy_s}
        samples = problem.training.dataset_samples
        epoch_s = None if samples is None else iteration_s * samples / configuration.global_batch_size
        epochs = problem.training.epochs
        kept = 1.0 if compression is None else float(compression.kept)
        costs = list(self.transfer_costs(configuration.num_machines, configuration.num_devices).values())
        one_transfer_s = float(cheapest_of(costs)(np.array([self.gradients.total_bytes * kept]))[0])
        return Prediction(
            iteration_time_s=iteration_s,
            epoch_time_s=epoch_s,
            training_time_s=None if epoch_s is None or epochs is None else epoch_s * epochs,
            breakdown_s=breakdown,
            communication_s=communication_of(schedule, negotiate_s),
            scaling_factor=self._alone_s(configuration) / iteration_s,
            communication_to_computation=one_transfer_s / computed_s[slowest] if computed_s[slowest] else float("inf"),
            memory_bytes=self._fullest_bytes(configuration),
            details=self._details(configuration, schedule, inputs, one_transfer_s),
        )

    def inputs(self, configuration: AllReduceConfiguration) -> list[InputTime]:
        """Return the input of one iteration, group by group."""
        shares = {one.name: one for one in configuration.groups}
        total = sum(one.num_devices * one.batch_per_device for one in configuration.groups)
        rates = self.input_rates(configuration.num_machines)
        return [rate.at(shares[name].batch_per_device, total) for name, rate in zip(self.names, rates, strict=True)]

    def _alone_s(self, configuration: AllReduceConfiguration) -> float:
        """Return the iteration if every device worked at the rate that it has alone, without waiting for another."""
        kinds, shares = self.kinds_of(configuration)
        alone_s = kinds.computed_s(shares)[0] + kinds.update_s
        samples, rate = 0, 0.0
        for index, one in enumerate(self._rows(configuration)):
            share = one.batch_per_device
            input_alone = self._rates(self.groups[index], 1, 1).at(share, share)
            busy_s = float(alone_s[index])
            seconds = busy_s + stall_s(input_alone, busy_s, self.strategy)
            samples += one.num_devices * one.batch_per_device
            rate += one.num_devices * one.batch_per_device / seconds
        return samples / rate

    def _rows(self, configuration: AllReduceConfiguration) -> list[GroupShare]:
        """Return a configuration's groups in the order of this cost's."""
        rows = {one.name: one for one in configuration.groups}
        return [rows[name] for name in self.names]

    def memory_bytes(self, configuration: AllReduceConfiguration) -> list[dict[str, float]]:
        """Return the bytes on a device of each group, term by term, with what it may hold."""
        return [
            self.memory.terms_bytes(
                ceil(one.batch_per_device / one.gradient_accumulation_steps),
                limit_bytes=self.memory_limit_bytes(group),
            )
            for group, one in zip(self.groups, self._rows(configuration), strict=True)
        ]

    def _fullest_bytes(self, configuration: AllReduceConfiguration) -> dict[str, float]:
        """Return the bytes on the device that is fullest for what it may hold; of equals, the one with most."""
        return max(self.memory_bytes(configuration), key=lambda one: (one["total"] / one["limit"], one["total"]))

    def _details(
        self,
        configuration: AllReduceConfiguration,
        schedule: FusionSchedule | None,
        inputs: Sequence[InputTime],
        one_transfer_s: float,
    ) -> dict[str, Any]:
        """Return the family's own figures."""
        kinds, shares = self.kinds_of(configuration)
        computed_s = kinds.computed_s(shares)[0].tolist()
        longest = max(inputs, key=lambda one: one.bound_s)
        rows = [] if schedule is None else schedule_rows(schedule)
        slowest = self.straggler(configuration)
        groups = {
            one.name: {
                "num_devices": one.num_devices,
                "batch_per_device": one.batch_per_device,
                "gradient_accumulation_steps": one.gradient_accumulation_steps,
                "computation_s": seconds,
                "memory_bytes": memory["total"],
                "input_s": {"read": read.read_s, "decode": read.decode_s, "copy": read.copy_s},
            }
            for one, seconds, memory, read in zip(
                self._rows(configuration), computed_s, self.memory_bytes(configuration), inputs, strict=True
            )
        }
        return {
            "batch_per_device": max(one.batch_per_device for one in configuration.groups),
            "num_all_reduces": len(rows),
            "gradient_bytes": self.gradients.total_bytes,
            "scaling_factor_without_overlap": csf(computation_s=computed_s[slowest], communication_s=one_transfer_s),
            "last_backward_s": self._last_backward_s(configuration),
            "input_s": {"read": longest.read_s, "decode": longest.decode_s, "copy": longest.copy_s},
            "straggler": self.names[slowest],
            "groups": groups,
            "schedule": rows,
        }
