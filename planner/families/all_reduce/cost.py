"""The cost of an all-reduce configuration: one way from a question and its decisions to seconds and bytes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np

from planner import channel
from planner.channel import FusionSchedule
from planner.cost import Profile, TransferCost
from planner.errors import Fault, SpecError
from planner.families.all_reduce.configuration import AllReduceConfiguration, FusionGroup, GroupShare, Setting
from planner.families.all_reduce.forms import Rings, closed_forms, reduce_bytes_per_s
from planner.families.all_reduce.groups import is_mixed, one_type
from planner.models.collectives import Affines, cheapest_of, delayed
from planner.models.data_parallel import Gradients, Step, exposed_s, gradients_of
from planner.models.fusion_wait import buffer_recursion_time_s
from planner.models.input import InputTime, input_time, stall_s
from planner.models.memory import MemoryUse, Precision, data_parallel_memory
from planner.models.overlap import csf
from planner.models.ssgd_equations import Strategy
from planner.plan import Prediction
from planner.problem import Problem

__all__ = [
    "AllReduceConfiguration",
    "AllReduceCost",
    "FusionGroup",
    "GroupShare",
    "Setting",
    "communication_of",
    "fusion_groups_of",
    "schedule_rows",
    "unknown_algorithm",
]


class AllReduceCost:
    """What configurations of one question cost, on one type of device, on some groups of machines or on all.

    Raises
    ------
    SpecError
        If the cluster has several types of device and none is pinned.
    """

    def __init__(self, problem: Problem, machines: Collection[str] = ()) -> None:
        self.problem = problem
        whole = one_type(problem, machines)
        self.cluster = whole.of_groups(machines) if machines else whole
        self.machines = tuple(machines) if len(whole.machine_groups) > 1 or is_mixed(problem) else ()
        self.groups = self.cluster.ring_groups
        self.device = self.groups[0].device
        self.profile: Profile = problem.profiles[self.device.name]
        self.precision = Precision.of(problem.training.dtype, problem.training.optimizer)

    @property
    def strategy(self) -> Strategy:
        """What the framework overlaps."""
        return Strategy(self.problem.calibration.strategy)

    @cached_property
    def gradients(self) -> Gradients:
        """What has to be exchanged."""
        unit = self.problem.calibration.fusion_unit
        return gradients_of(self.problem.dnn, self.profile, gradient_bytes=self.precision.gradient_bytes, unit=unit)

    @cached_property
    def memory(self) -> MemoryUse:
        """What a device holds."""
        reserve = self.problem.calibration.memory_reserve_bytes
        return data_parallel_memory(self.problem.dnn, self.precision, reserve_bytes=reserve)

    @property
    def memory_limit_bytes(self) -> float:
        """What a device may hold: its memory, or the user's limit where that is less."""
        limit = self.problem.limits.memory_per_device_bytes
        return min(self.device.memory_bytes, float("inf") if limit is None else limit)

    # -- communication -----------------------------------------------------------------------------------------------

    def closed_forms(self, num_machines: Sequence[int], devices_per_machine: Sequence[int]) -> dict[str, Affines]:
        """Return the costs of the allowed algorithms for many settings at once, negotiation included."""
        machines, devices = np.array(num_machines), np.array(devices_per_machine)
        fitted = self.problem.calibration
        distinct = sorted(set(machines.tolist()))
        links = {number: self.cluster.ring_link(number) for number in distinct} if distinct[-1:] != [1] else {}
        inside = [group.inside for group in self.groups if group.inside is not None]
        efficiency = fitted.bandwidth_efficiency
        inside_bandwidth = min((link.bandwidth_bytes_per_s for link in inside), default=float("inf"))
        inside_bandwidth *= fitted.inside_efficiency
        inside_latency_s = max((link.latency_s for link in inside), default=0.0)
        one_machine = {1: (float("inf"), 0.0)}
        network = one_machine | {
            number: (link.bandwidth_bytes_per_s * efficiency, link.latency_s)
            for number, link in links.items()
            if number > 1
        }
        net_bandwidth, net_latency_s = np.array([network[number] for number in machines.tolist()]).T
        rings = Rings(
            num_machines=machines,
            num_devices=machines * devices,
            most_devices=devices,
            network_bytes_per_s=net_bandwidth,
            network_latency_s=net_latency_s,
            inside_bytes_per_s=inside_bandwidth,
            inside_latency_s=inside_latency_s,
            reduce_bytes_per_s=self._reduce_bytes_per_s,
        )
        return closed_forms(self.problem, rings)

    @property
    def _reduce_bytes_per_s(self) -> float:
        """Bytes of gradient that a device adds up in a second (eq. 7)."""
        return reduce_bytes_per_s(self.problem, self.device, self.precision)

    def transfer_costs(self, setting: Setting) -> dict[str, TransferCost]:
        """Return the cost of an all-reduce by algorithm.

        A measured or fitted curve of this many devices goes before.
        """
        fitted = self.problem.calibration
        if curve := fitted.all_reduce_curves.get(setting.num_devices):
            return {"measured": delayed(curve, fitted.negotiate_s)}
        forms = self.closed_forms([setting.num_machines], [setting.devices_per_machine])
        return {name: costs.at(0) for name, costs in forms.items()}

    def transfer_cost(self, setting: Setting) -> TransferCost:
        """Return the cost of an all-reduce by its cheapest algorithm."""
        return cheapest_of(list(self.transfer_costs(setting).values()))

    # -- computation and input ---------------------------------------------------------------------------------------

    def step(self, setting: Setting) -> Step:
        """Return the computation of the largest share."""
        return Step.of(
            self.profile, batch_per_device=setting.batch_per_device, num_microbatches=setting.num_microbatches
        )

    def ready_s(self, setting: Setting) -> Any:
        """Return when every gradient may be sent, from the start of the last backward pass."""
        samples = ceil(setting.batch_per_device / setting.num_microbatches)
        if not self.strategy.overlaps_gradients:
            return np.full(len(self.gradients.names), self.step(setting).last_backward_s)
        return self.gradients.ready_s_per_sample * samples

    def input(self, setting: Setting) -> InputTime:
        """Return the time of input: of the slowest group that takes part."""
        training = self.problem.training
        times = [
            input_time(
                group,
                num_machines=setting.num_machines,
                devices_per_machine=setting.devices_per_machine,
                batch_per_device=setting.batch_per_device,
                sample_bytes=training.sample_bytes,
                device_sample_bytes=training.device_sample_bytes,
                whole_batch=setting.global_batch_size,
                read_s_per_sample=training.measured_read_s(self.profile, group),
                is_pipelined=self.problem.calibration.is_prefetch_pipelined,
            )
            for group in self.groups
        ]
        return max(times, key=lambda time: time.bound_s)

    # -- a whole configuration ---------------------------------------------------------------------------------------

    def setting_of(self, configuration: AllReduceConfiguration) -> Setting:
        """Return the decisions but for fusion."""
        return Setting(
            num_machines=configuration.num_machines,
            devices_per_machine=configuration.devices_per_machine,
            global_batch_size=configuration.global_batch_size,
            num_microbatches=configuration.gradient_accumulation_steps,
            compression=configuration.compression,
        )

    def configuration(self, setting: Setting, ends: Sequence[int]) -> AllReduceConfiguration:
        """Return the configuration of a setting and a grouping, each group with its cheapest algorithm."""
        return AllReduceConfiguration(
            num_devices=setting.num_devices,
            num_machines=setting.num_machines,
            devices_per_machine=setting.devices_per_machine,
            global_batch_size=setting.global_batch_size,
            gradient_accumulation_steps=setting.num_microbatches,
            fusion_groups=self._groups(setting, ends) if ends else (),
            machines=self.machines,
            compression=setting.compression,
        )

    def _groups(self, setting: Setting, ends: Sequence[int]) -> tuple[FusionGroup, ...]:
        """Return the groups that end at ``ends``."""
        return fusion_groups_of(self.gradients, ends, self.transfer_costs(setting), kept=setting.kept)

    def schedule(self, configuration: AllReduceConfiguration) -> FusionSchedule | None:
        """Return when every group is sent; None where there is nothing to send."""
        if not configuration.fusion_groups or configuration.num_devices == 1:
            return None
        setting = self.setting_of(configuration)
        costs = self.transfer_costs(setting)
        for group in configuration.fusion_groups:
            if group.algorithm not in costs:
                raise SpecError.of([unknown_algorithm(group.algorithm, costs, setting.num_devices)])
        kept = setting.kept
        seconds = [
            float(costs[group.algorithm](np.float64(group.size_bytes * kept)))  # type: ignore[arg-type]
            for group in configuration.fusion_groups
        ]
        ends = np.cumsum([len(group.tensors) for group in configuration.fusion_groups]) - 1
        fitted = self.problem.calibration
        return channel.schedule(
            tuple(ends.tolist()),
            self.ready_s(setting),
            self.gradients.size_bytes * kept,
            lambda _: np.array(seconds),
            wait=fitted.wait,
            timeout_s=fitted.timeout_s,
        )

    def predict(self, configuration: AllReduceConfiguration) -> Prediction:
        """Return what a configuration costs.

        ``iteration = max(forward + backward + compression + exposed communication + update, input)``; with gradient
        accumulation only the last micro-batch's backward hides communication. Compressing occupies the devices before
        the last backward pass: no gradient gets ready earlier relative to it, so nothing hides it.
        """
        setting, problem = self.setting_of(configuration), self.problem
        step, read = self.step(setting), self.input(setting)
        schedule = self.schedule(configuration)
        negotiate_s = problem.calibration.negotiate_s
        exposed: Mapping[str, float] = dict.fromkeys(("all_reduce", "wait", "negotiate", "misc"), 0.0)
        if problem.variant == "printed":
            finish_s = self._printed_finish_s(setting)
            exposed = {**exposed, "all_reduce": max(0.0, finish_s - step.last_backward_s)}
        elif schedule is not None:
            exposed = exposed_s(schedule, backward_end_s=step.last_backward_s, negotiate_s=negotiate_s)
        compression_s = setting.compression_s
        busy_s = step.computation_s + compression_s + sum(exposed.values()) + step.update_s
        iteration_s = busy_s + stall_s(read, busy_s, self.strategy)
        breakdown = {"forward": step.forward_s, "backward": step.backward_s}
        breakdown |= {"compression": compression_s} if setting.compression is not None else {}
        breakdown |= {f"exposed_{name}": seconds for name, seconds in exposed.items()}
        breakdown |= {"update": step.update_s, "input_stall": iteration_s - busy_s}
        epoch_s = self.epoch_time_s(setting, iteration_s)
        one_transfer_s = float(self.transfer_cost(setting)(np.float64(self.gradients.total_bytes * setting.kept)))  # type: ignore[arg-type]
        memory = self.memory_bytes(setting)
        return Prediction(
            iteration_time_s=iteration_s,
            epoch_time_s=epoch_s,
            training_time_s=None
            if epoch_s is None or problem.training.epochs is None
            else epoch_s * problem.training.epochs,
            breakdown_s=breakdown,
            communication_s=communication_of(schedule, negotiate_s),
            scaling_factor=self._alone_s(setting) / iteration_s,
            communication_to_computation=one_transfer_s / step.computation_s if step.computation_s else float("inf"),
            memory_bytes=memory,
            details=self._details(setting, step, read, schedule, one_transfer_s),
        )

    def _printed_finish_s(self, setting: Setting) -> float:
        """Return when the last transfer ends by eq. 13 as printed, which loses gradients or sends them twice."""
        rule = self.problem.configuration[1]["fusion_groups"] if self.problem.configuration else None
        if not isinstance(rule, Mapping):
            mend = "Write fusion_groups: {buffer: 100 MB}, or leave out variant."
            text = "the printed equation 13 is about a buffer of constant size."
            raise SpecError.of([Fault(field="variant", value="printed", problem=text, mend=mend)])
        ready_s = self.ready_s(setting)
        gaps_s = np.diff(ready_s)[::-1].tolist()
        update_s = buffer_recursion_time_s(
            self.gradients.size_bytes[::-1].tolist(),
            [*gaps_s, 0.0],  # t_b of the layer nearest the loss counts for nothing: time starts at its end
            self.transfer_cost(setting),
            buffer_bytes=rule["buffer"],
            timeout_s=self.problem.calibration.timeout_s,
            is_printed=True,
        )
        return float(ready_s[0]) + update_s

    def _alone_s(self, setting: Setting) -> float:
        """Return the iteration of one device alone with the same share."""
        alone = replace(setting, num_machines=1, devices_per_machine=1, global_batch_size=setting.batch_per_device)
        step = self.step(alone)
        busy_s = step.computation_s + step.update_s
        return busy_s + stall_s(self.input(alone), busy_s, self.strategy)

    def memory_bytes(self, setting: Setting) -> dict[str, float]:
        """Return the bytes on a device, term by term and in total, with what it may hold."""
        samples = ceil(setting.batch_per_device / setting.num_microbatches)
        return self.memory.terms_bytes(samples, limit_bytes=self.memory_limit_bytes)

    def epoch_time_s(self, setting: Setting, iteration_s: float) -> float | None:
        """Return the time of ``dataset / global batch`` iterations; the last batch counts by its share."""
        samples = self.problem.training.dataset_samples
        return None if samples is None else iteration_s * samples / setting.global_batch_size

    def _details(
        self, setting: Setting, step: Step, read: InputTime, schedule: FusionSchedule | None, one_transfer_s: float
    ) -> dict[str, Any]:
        """Return the family's own figures."""
        rows = [] if schedule is None else schedule_rows(schedule)
        return {
            "batch_per_device": setting.batch_per_device,
            "num_all_reduces": len(rows),
            "gradient_bytes": self.gradients.total_bytes,
            "scaling_factor_without_overlap": csf(computation_s=step.computation_s, communication_s=one_transfer_s),
            "last_backward_s": step.last_backward_s,
            "input_s": {"read": read.read_s, "decode": read.decode_s, "copy": read.copy_s},
            "schedule": rows,
        }


def schedule_rows(schedule: FusionSchedule) -> list[dict[str, float]]:
    """Return one row a group: bytes, ready, start, end; seconds from the start of the last backward pass."""
    columns = (schedule.size_bytes, schedule.ready_s, schedule.start_s, schedule.end_s)
    names = ("size_bytes", "ready_s", "start_s", "end_s")
    return [dict(zip(names, row, strict=True)) for row in zip(*(column.tolist() for column in columns), strict=True)]


def communication_of(schedule: FusionSchedule | None, negotiate_s: float) -> dict[str, float]:
    """Return all communication by kind.

    Hidden or not; it sums to the time from the first gradient to the last transfer's end.
    """
    if schedule is None:
        return dict.fromkeys(("all_reduce", "wait", "negotiate", "misc"), 0.0)
    spans = exposed_s(schedule, backward_end_s=float(schedule.ready_s[0]), negotiate_s=negotiate_s)
    return dict(spans)


def fusion_groups_of(
    gradients: Gradients, ends: Sequence[int], costs: Mapping[str, TransferCost], *, kept: float = 1.0
) -> tuple[FusionGroup, ...]:
    """Return the groups that end at ``ends``, each with the algorithm that is cheapest for what of it is sent."""
    if not gradients.names:
        return ()
    names, starts = list(costs), [0, *(end + 1 for end in ends[:-1])]
    sizes = np.add.reduceat(gradients.size_bytes, starts)
    cheapest = np.argmin([costs[name](sizes * kept) for name in names], axis=0).tolist()
    return tuple(
        FusionGroup(tensors=gradients.names[start : end + 1], algorithm=names[chosen], size_bytes=size)
        for start, end, chosen, size in zip(starts, ends, cheapest, sizes.tolist(), strict=True)
    )


def unknown_algorithm(name: str, costs: Mapping[str, TransferCost], num_devices: int) -> Fault:
    """Return the fault of a group whose algorithm has no cost here."""
    problem = f"{name!r} has no cost for {num_devices} devices."
    return Fault(
        field="configuration.all_reduce.fusion_groups", value=name, problem=problem, mend=f"Use {', '.join(costs)}."
    )
