"""The decisions of the family ``all_reduce``, in the form of the block that ``plan`` prints and ``predict`` reads."""

from collections.abc import Collection
from math import ceil
from typing import Any

from planner.cluster import Cluster
from planner.errors import Fault, SpecError
from planner.frozen import frozen
from planner.models.compression import Compression
from planner.problem import Problem
from planner.units import Dimension, format_exact

NAME = "all_reduce"


@frozen
class FusionGroup:
    """One all-reduce: the gradients that it carries, in ready order, and its algorithm."""

    tensors: tuple[str, ...]
    algorithm: str
    size_bytes: float


@frozen
class GroupShare:
    """What the devices of one kind do: how many machines take part, and the largest share of a device.

    ``name``: of the group of machines; empty where all devices of a plan are of one kind.
    """

    name: str
    num_machines: int
    devices_per_machine: int
    batch_per_device: int
    gradient_accumulation_steps: int = 1

    @property
    def num_devices(self) -> int:
        """Devices of the group that take part."""
        return self.num_machines * self.devices_per_machine


@frozen
class AllReduceConfiguration:
    """All decisions of the family."""

    num_devices: int
    num_machines: int
    devices_per_machine: int  # the most of any machine
    global_batch_size: int
    gradient_accumulation_steps: int  # the most of any device
    fusion_groups: tuple[FusionGroup, ...]
    machines: tuple[str, ...] = ()  # the groups that take part, where there are several of one type of device
    groups: tuple[GroupShare, ...] = ()  # what each group does, where devices differ; else empty
    # share of every gradient that is left out, and the seconds that leaving nothing out would take
    compression: Compression | None = None

    @property
    def shares(self) -> tuple[GroupShare, ...]:
        """What the devices of each kind do; equal machines are one group.

        Where the batch does not divide, some devices have one sample less than the share.
        """
        return self.groups or (
            GroupShare(
                name="",
                num_machines=self.num_machines,
                devices_per_machine=self.devices_per_machine,
                batch_per_device=ceil(self.global_batch_size / self.num_devices),
                gradient_accumulation_steps=self.gradient_accumulation_steps,
            ),
        )

    @property
    def kept(self) -> float:
        """The share of every gradient that is sent."""
        return 1.0 if self.compression is None else float(self.compression.kept)

    @property
    def compression_s(self) -> float:
        """The seconds that compressing takes, once an iteration."""
        return 0.0 if self.compression is None else float(self.compression.time_s)

    @property
    def headline(self) -> str:
        """How many devices, and how they stand."""
        if self.groups:
            rows = " + ".join(f"{one.num_machines} {one.name} x {one.devices_per_machine}" for one in self.groups)
            return f"{self.num_devices} device{'s' * (self.num_devices > 1)} ({rows})"
        devices, machines = (
            f"{number} {name}{'s' * (number > 1)}"
            for number, name in ((self.num_devices, "device"), (self.num_machines, "machine"))
        )
        groups = f" of {', '.join(self.machines)}" if self.machines else ""
        return f"{devices} ({machines} x {self.devices_per_machine}{groups})"

    def to_document(self) -> dict[str, object]:
        """Return the block that ``predict`` reads back."""
        fusion_groups = [
            {"tensors": list(group.tensors), "algorithm": group.algorithm, "size_bytes": group.size_bytes}
            for group in self.fusion_groups
        ]
        block: dict[str, Any] = {"machines": list(self.machines)} if self.machines else {}
        block |= {"num_devices": self.num_devices, "num_machines": self.num_machines}
        if self.groups:
            rows = {
                one.name: {
                    "machines": one.num_machines,
                    "devices_per_machine": one.devices_per_machine,
                    "batch_per_device": one.batch_per_device,
                    "gradient_accumulation_steps": one.gradient_accumulation_steps,
                }
                for one in self.groups
            }
            block |= {"groups": rows, "global_batch_size": self.global_batch_size}
        else:
            block |= {
                "devices_per_machine": self.devices_per_machine,
                "global_batch_size": self.global_batch_size,
                "gradient_accumulation_steps": self.gradient_accumulation_steps,
            }
        if self.compression is not None:
            time = format_exact(self.compression.scale_s, Dimension.TIME)
            block["compression"] = {"removed": float(self.compression.removed), "time": time}
        return {**block, "fusion_groups": fusion_groups}


def taking_part(problem: Problem) -> Cluster:
    """Return the machines that may train: of the pinned type of device, and no CPUs beside accelerators.

    Raises
    ------
    SpecError
        If the pinned device is not there, or the machines left cannot reach each other.
    """
    cluster, pinned = problem.cluster, problem.fixed.get("device")
    groups = cluster.machine_groups
    types = list(dict.fromkeys(group.device.name for group in groups))
    if pinned is not None:
        if pinned not in types:
            mend = f"Write one of {', '.join(types)}."
            raise SpecError.of(
                [Fault(field="fix.device", value=pinned, problem=f"{pinned!r} is not in the cluster.", mend=mend)]
            )
        names = [group.name for group in groups if group.device.name == pinned]
    else:
        accelerators = [group.name for group in groups if group.device.kind != "cpu"]
        names = accelerators or [group.name for group in groups]
    if len(names) == len(groups):
        return cluster
    if not cluster.of_groups_is_connected(names):
        text = f"without the other machines, {', '.join(names)} cannot reach each other."
        raise SpecError.of([Fault(field="cluster", problem=text, mend="Join them by a switch, or pin another device.")])
    return cluster.of_groups(names)


def is_heterogeneous(problem: Problem) -> bool:
    """Whether devices of more than one type may train."""
    return len({group.device.name for group in taking_part(problem).machine_groups}) > 1


def one_type(problem: Problem, machines: Collection[str] = ()) -> Cluster:
    """Return the machines of the only type of device: of all that may train, or of those that ``machines`` names.

    Raises
    ------
    SpecError
        If there are several types.
    """
    whole = taking_part(problem)
    groups = [group for group in whole.machine_groups if not machines or group.name in machines]
    types = list(dict.fromkeys(group.device.name for group in groups))
    if len(types) > 1:
        text = f"several types of device take part: {', '.join(types)}."
        mend = "Say what each group does, e.g. groups: {NAME: {machines: 2, batch_per_device: 32}}."
        raise SpecError.of([Fault(field="configuration.all_reduce.groups", problem=text, mend=mend)])
    if not types:
        known = ", ".join(group.name for group in whole.machine_groups)
        text = f"none of {', '.join(machines)} may train."
        raise SpecError.of(
            [Fault(field="configuration.all_reduce.machines", problem=text, mend=f"Name some of {known}.")]
        )
    return whole if len({group.device.name for group in whole.machine_groups}) == 1 else whole.of_device(types[0])


ANY_NUMBER = 2**62  # samples at a time, where memory is not asked


def batches_of(problem: Problem, num_devices: int, most_samples: int) -> list[int]:
    """Return the global batches worth trying on so many devices, of which each holds ``most_samples`` at a time."""
    training = problem.training
    if (fixed := training.fixed_batch_size) is not None:
        return [fixed] * (fixed >= num_devices)
    most = training.max_global_batch_size
    if training.batch_per_device is not None:
        batch = training.batch_per_device * num_devices
        return [batch] * (most is None or batch <= most)
    assert most is not None  # the spec gives one of the three
    share = most // num_devices
    steps = problem.fixed.get("gradient_accumulation_steps")
    if steps is not None:
        shares = {min(share, steps * most_samples), min(ceil(most / num_devices), steps * most_samples)}
    else:
        shares = {share, ceil(most / num_devices), share // most_samples * most_samples}
    batches = {min(most, num_devices * one) for one in shares}
    return sorted(batch for batch in batches if batch >= num_devices)


def fewest_microbatches(share: int, most_samples: int) -> int:
    """Return the fewest micro-batches of a share that fit where so many samples do; one where not even one sample fits.

    >>> fewest_microbatches(10, 4), fewest_microbatches(10, 0)
    (3, 1)
    """
    return ceil(share / most_samples) if most_samples else 1
