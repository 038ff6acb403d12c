"""What a layout costs on the machines of a question: the models of :mod:`planner.models` with the question's figures.

Seconds: :mod:`planner.models.transformer_time`, an optimiser on the host by :mod:`planner.models.transformer_offload`,
and waiting for input by :mod:`planner.models.input`. Bytes: :mod:`planner.models.transformer_memory`. The figures of
devices and of the program, which ``calibration.program`` names, are fitted to measurements
(:mod:`planner.data.transformer_rates`); what the program keeps: :mod:`planner.models.transformer_programs`.
Efficiencies of links that a spec gives count instead of the fitted ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from planner.cluster import Cluster, MachineGroup
from planner.cost import Floats
from planner.errors import Fault, InfeasibleError, SpecError
from planner.families.hybrid.configuration import layouts_of
from planner.models.input import InputTime, input_time, stall_s
from planner.models.layouts import Layouts
from planner.models.memory import Precision
from planner.models.roofline import Constants, DeviceRates
from planner.models.ssgd_equations import Strategy
from planner.models.tiers import Tier, tiers_of
from planner.models.transformer_activations import Kernels
from planner.models.transformer_compute import Software
from planner.models.transformer_memory import memory_bytes, stage_memory_bytes
from planner.models.transformer_offload import Host, offload_s
from planner.models.transformer_programs import PROGRAMS
from planner.models.transformer_time import PARTS, interval_times, iteration_times
from planner.problem import Problem
from planner.transformer import Transformer

__all__ = ["HybridCost", "cost_of_machines", "costs_of", "transformer_of", "why_not"]

_DTYPES = ("bf16", "fp16")  # that the products are fitted for
_HOST_LINK_BYTES_PER_S = 25e9  # PCIe 4.0 x16 as copies reach it, where the cluster does not say
_HOST_MEMORY_BYTES_PER_S = 200e9  # of a machine: eight channels of DDR4-3200
TYPICAL_DEVICE = "a100-sxm4-80gb"  # whose fitted shares stand in for those of a device without


def transformer_of(problem: Problem) -> Transformer | None:
    """Return the sizes of the question's network, where it is a transformer."""
    return problem.dnn.transformer


def why_not(problem: Problem) -> str | None:
    """Return why the family does not apply, or None."""
    if transformer_of(problem) is None:
        return f"hybrid parallelism splits the blocks of a transformer, and {problem.dnn.name} is not known as one."
    if problem.training.dtype not in _DTYPES:
        return (
            f"hybrid parallelism is fitted to training in {' and '.join(_DTYPES)}, and dnn.dtype is "
            f"{problem.training.dtype}. Write dtype: bf16."
        )
    if problem.training.optimizer != "adam":
        return (
            f"hybrid parallelism counts the state of Adam, and dnn.optimizer is {problem.training.optimizer}. Write "
            f"optimizer: adam."
        )
    if not problem.transformer_rates:
        return "hybrid parallelism needs the fitted figures of transformers, which are missing."
    return None


def costs_of(problem: Problem) -> list["HybridCost"]:
    """Return a cost for all machines, where they are alike; else one for each group, the pinned device's only.

    Raises
    ------
    InfeasibleError
        If the family does not apply.
    """
    if reason := why_not(problem):
        raise InfeasibleError(f"No plan fits: {reason}")
    device = problem.fixed.get("device")
    groups = [one for one in problem.cluster.machine_groups if device in (None, one.device.name)]
    if not groups:
        raise InfeasibleError(f"No plan fits: there are no devices {device!r}, which fix.device asks for.")
    if len(groups) == len(problem.cluster.machine_groups) and problem.cluster.has_equal_machines:
        return [HybridCost(problem, problem.cluster, None)]
    return [HybridCost(problem, problem.cluster.of_groups({one.name}), one.name) for one in groups]


def cost_of_machines(problem: Problem, machines: str | None, batch: int | None = None) -> "HybridCost":
    """Return the cost of a group of machines by its name; None: all of them, which must be alike.

    Raises
    ------
    SpecError
        If there is no such group, or it is left open which one is meant.
    """
    if (reason := why_not(problem)) is not None:
        raise SpecError.of([Fault(field="configuration.hybrid", problem=reason)])
    names = [one.name for one in problem.cluster.machine_groups]
    if machines is None and problem.cluster.has_equal_machines:
        return HybridCost(problem, problem.cluster, None, batch)
    if machines not in names:
        what = "the machines differ, and it is not said which are meant." if machines is None else "there are none."
        mend = f"Write machines: with one of {', '.join(names)}."
        raise SpecError.of([Fault(field="configuration.hybrid.machines", value=str(machines), problem=what, mend=mend)])
    return HybridCost(problem, problem.cluster.of_groups({machines}), machines, batch)


@dataclass(frozen=True)
class HybridCost:
    """Costs on equal machines.

    Attributes
    ----------
    cluster
        Of these machines alone.
    machines
        The name of their group, where the question has others.
    given_batch
        Samples of a step, where a configuration says so.
    """

    problem: Problem
    cluster: Cluster
    machines: str | None
    given_batch: int | None = None

    # -- what the question says ----------------------------------------------------------------------------------------

    @cached_property
    def transformer(self) -> Transformer:
        """The network."""
        found = transformer_of(self.problem)
        assert found is not None, "asked by why_not"
        return found

    @cached_property
    def batch(self) -> int:
        """Samples of a step: the batch, or the largest that is allowed."""
        training = self.problem.training
        if self.given_batch is not None:
            return self.given_batch
        if training.fixed_batch_size is not None:
            return training.fixed_batch_size
        most = training.max_global_batch_size or 1
        each = training.batch_per_device
        return most if each is None else each * max(1, min(self.cluster.num_devices, most // each))

    @property
    def group(self) -> MachineGroup:
        """One of the groups, which are alike."""
        return self.cluster.machine_groups[0]

    @cached_property
    def tiers(self) -> tuple[Tier, ...]:
        """How the devices are joined."""
        return tiers_of(self.cluster)

    @property
    def memory_limit_bytes(self) -> float:
        """What a device may hold."""
        limit = self.problem.limits.memory_per_device_bytes
        return min(self.group.device.memory_bytes, float("inf") if limit is None else limit)

    # -- fitted figures ------------------------------------------------------------------------------------------------

    @cached_property
    def is_calibrated(self) -> bool:
        """Whether the device is one whose shares were fitted."""
        return self.group.device.name in self.problem.transformer_rates["devices"]

    @cached_property
    def rates(self) -> DeviceRates:
        """The device's figures; one that was not fitted has the shares of a typical one."""
        device, fitted = self.group.device, self.problem.transformer_rates["devices"]
        shares: dict[str, Any] = dict(fitted[device.name if self.is_calibrated else TYPICAL_DEVICE])
        peaks = device.peak_flop_per_s
        return DeviceRates(
            name=device.name,
            peak_flop_per_s=peaks.get(self.problem.training.dtype) or max(peaks.values(), default=1.0),
            memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
            **{name: value for name, value in shares.items() if name in DeviceRates.__slots__},
        )

    @property
    def program(self) -> str:
        """The name of the program that trains."""
        return self.problem.calibration.program

    @cached_property
    def software(self) -> Software:
        """What it takes; where gradients are kept in shards, every micro-batch must reduce them."""
        fields = {**self.problem.transformer_rates["software"][self.program], "reduces_every_microbatch": True}
        return Software(name=self.program, **fields)

    @cached_property
    def constants(self) -> Constants:
        """What all devices have in common; efficiencies of links that the spec gives come first."""
        found = Constants(**self.problem.transformer_rates["constants"])
        given = self.problem.calibration
        if given.bandwidth_efficiency != 1:
            found = replace(found, outside_efficiency=given.bandwidth_efficiency)
        if given.inside_efficiency != 1:
            found = replace(found, inside_efficiency=given.inside_efficiency)
        return found

    @property
    def expert_imbalance(self) -> float:
        """Tokens of the rank whose experts have most, over the mean; 1 for a network without experts."""
        return self.problem.calibration.expert_imbalance if self.transformer.experts is not None else 1.0

    @property
    def precision(self) -> Precision:
        """Bytes of weights, gradients and state."""
        return PROGRAMS[self.program].precision

    @property
    def kernels(self) -> Kernels:
        """What the program keeps of activations."""
        return PROGRAMS[self.program].kernels

    @property
    def reserve_bytes(self) -> float:
        """What a device keeps for itself."""
        return self.problem.calibration.transformer_reserve_of(self.group.device.memory_bytes)

    @cached_property
    def host(self) -> Host:
        """The host of a device."""
        link = self.group.host_link_bytes_per_s
        return Host(
            link_bytes_per_s=link if link < float("inf") else _HOST_LINK_BYTES_PER_S,
            memory_bytes_per_s=_HOST_MEMORY_BYTES_PER_S / self.group.devices_per_machine,
        )

    # -- costs of many layouts -----------------------------------------------------------------------------------------

    def layouts(self, columns: Mapping[str, Any]) -> Layouts:
        """Return layouts of columns of numbers."""
        return layouts_of(columns, self.batch)

    def memory(self, layouts: Layouts) -> Mapping[str, Floats]:
        """Return the bytes of each layout's fullest stage, by term, and their total."""
        return memory_bytes(
            self.transformer,
            layouts,
            precision=self.precision,
            kernels=self.kernels,
            reserve_bytes=self.reserve_bytes,
            expert_imbalance=self.expert_imbalance,
        )

    def stage_memory(self, layout: Layouts) -> Mapping[str, Floats]:
        """Return the bytes of every stage of one layout."""
        return stage_memory_bytes(
            self.transformer,
            layout,
            precision=self.precision,
            kernels=self.kernels,
            reserve_bytes=self.reserve_bytes,
            expert_imbalance=self.expert_imbalance,
        )

    def parts(self, layouts: Layouts, tiers: Sequence[Tier] | None = None) -> dict[str, Floats]:
        """Return the seconds of a step by part, and their total, input left out."""
        found = dict(
            iteration_times(
                self.transformer,
                layouts,
                tiers=self.tiers if tiers is None else tiers,
                rates=self.rates,
                software=self.software,
                constants=self.constants,
                expert_imbalance=self.expert_imbalance,
            )
        )
        if np.any(layouts.is_offloaded):
            found["optimizer"] = np.where(layouts.is_offloaded, self.offload_s(layouts), found["optimizer"])
            found["total"] = sum((found[name] for name in PARTS), np.zeros(len(layouts)))
        return found

    def interval(self, layouts: Layouts) -> Mapping[str, Floats]:
        """Return the seconds of one micro-batch through all layers, by part, of both ends, and of one transfer."""
        return interval_times(
            self.transformer,
            layouts,
            tiers=self.tiers,
            rates=self.rates,
            software=self.software,
            constants=self.constants,
            expert_imbalance=self.expert_imbalance,
        )

    def offload_s(self, layouts: Layouts) -> Floats:
        """Return the seconds of an optimiser on the host."""
        return offload_s(
            self.transformer,
            layouts,
            self.host,
            gradient_bytes=self.software.gradient_bytes,
            weight_bytes=self.precision.weight_bytes,
            optimizer_bytes=self.software.optimizer_bytes,
        )

    def seconds(self, layouts: Layouts) -> Floats:
        """Return the seconds of a step, input included."""
        total = self.parts(layouts)["total"]
        return np.asarray(total + self.stalls_s(layouts, total))

    # -- input -------------------------------------------------------------------------------------------------------

    def stalls_s(self, layouts: Layouts, busy_s: Floats) -> Floats:
        """Return how long devices wait for samples: one reader for each data rank."""
        values, back = np.unique(np.broadcast_to(layouts.data, len(layouts)), return_inverse=True)
        times = [self.input_time(int(one)) for one in values]
        strategy = Strategy(self.problem.calibration.strategy)
        if strategy.copies_ahead:
            return np.maximum(np.array([one.bound_s for one in times])[back] - busy_s, 0.0)
        return np.array([stall_s(times[at], float(busy), strategy) for at, busy in zip(back, busy_s, strict=True)])

    def input_time(self, readers: int) -> InputTime:
        """Return the input's seconds of a step where so many devices read an equal part of the batch each."""
        training, group = self.problem.training, self.group
        num_machines = min(self.cluster.num_machines, readers)
        return input_time(
            group,
            num_machines=num_machines,
            devices_per_machine=min(group.devices_per_machine, -(-readers // num_machines)),
            batch_per_device=self.batch / readers,
            sample_bytes=training.sample_bytes,
            device_sample_bytes=training.device_sample_bytes,
            is_pipelined=self.problem.calibration.is_prefetch_pipelined,
        )
