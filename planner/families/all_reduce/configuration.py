"""The decisions of the family ``all_reduce``, in the form of the block that ``plan`` prints and ``predict`` reads."""

from dataclasses import dataclass
from math import ceil
from typing import Any

from planner.models.compression import Compression
from planner.units import Dimension, format_exact

__all__ = ["NAME", "AllReduceConfiguration", "FusionGroup", "GroupShare", "Setting"]

NAME = "all_reduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionGroup:
    """One all-reduce: the gradients that it carries, in ready order, and its algorithm."""

    tensors: tuple[str, ...]
    algorithm: str
    size_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShare:
    """What one group of machines does of a mixed plan: how many take part, and the largest share of a device."""

    name: str
    num_machines: int
    devices_per_machine: int
    batch_per_device: int
    gradient_accumulation_steps: int = 1

    @property
    def num_devices(self) -> int:
        """Devices of the group that take part."""
        return self.num_machines * self.devices_per_machine


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceConfiguration:
    """All decisions of the family.

    Attributes
    ----------
    devices_per_machine
        The most of any machine.
    gradient_accumulation_steps
        The most of any device.
    machines
        The groups that take part, where there are several of one type of device.
    groups
        What each group does, where devices differ; else empty.
    compression
        Share of every gradient that is left out, and the seconds that leaving nothing out would take.
    """

    num_devices: int
    num_machines: int
    devices_per_machine: int
    global_batch_size: int
    gradient_accumulation_steps: int
    fusion_groups: tuple[FusionGroup, ...]
    machines: tuple[str, ...] = ()
    groups: tuple[GroupShare, ...] = ()
    compression: Compression | None = None

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

    def to_document(self) -> dict[str, Any]:
        """Return the block that ``predict`` reads back."""
        fusion_groups = [
            {"tensors": list(group.tensors), "algorithm": group.algorithm, "size_bytes": group.size_bytes}
            for group in self.fusion_groups
        ]
        block: dict[str, Any] = {"machines": list(self.machines)} if self.machines else {}
        block |= {"num_devices": self.num_devices, "num_machines": self.num_machines}
        if self.groups:
            block |= {"groups": _group_rows(self.groups), "global_batch_size": self.global_batch_size}
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


def _group_rows(groups: tuple[GroupShare, ...]) -> dict[str, dict[str, int]]:
    """Return what each group does, by its name."""
    return {
        one.name: {
            "machines": one.num_machines,
            "devices_per_machine": one.devices_per_machine,
            "batch_per_device": one.batch_per_device,
            "gradient_accumulation_steps": one.gradient_accumulation_steps,
        }
        for one in groups
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The decisions but for fusion on devices of one type.

    How many machines and devices, which batch, in how many micro-batches, and how gradients are compressed.
    """

    num_machines: int
    devices_per_machine: int
    global_batch_size: int
    num_microbatches: int = 1
    compression: Compression | None = None

    @property
    def kept(self) -> float:
        """The share of every gradient that is sent."""
        return 1.0 if self.compression is None else float(self.compression.kept)

    @property
    def compression_s(self) -> float:
        """The seconds that compressing takes, once an iteration."""
        return 0.0 if self.compression is None else float(self.compression.time_s)

    @property
    def num_devices(self) -> int:
        """Devices in all machines."""
        return self.num_machines * self.devices_per_machine

    @property
    def batch_per_device(self) -> int:
        """The largest share; where the batch does not divide, some devices have one sample less."""
        return ceil(self.global_batch_size / self.num_devices)
