"""What a spec may say about machines: devices, links, storage, and how a cluster is put together of them."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from planner import data
from planner.cluster import Storage
from planner.spec.values import (
    Bytes,
    Count,
    FlopRate,
    Model,
    Name,
    Rate,
    SampleRate,
    Seconds,
    Text,
    Watts,
    exactly_one,
    known,
    tag,
    whole,
)

__all__ = ["MOST_DEVICES", "ClusterSpec", "DeviceSpec", "LinkSpec", "MachineSpec", "NodeSpec", "StorageSpec"]

MOST_DEVICES = 2**20
MOST_NODES = 10_000  # written one by one; equal machines are one group


class DeviceSpec(Model):
    """A device that the table does not hold."""

    name: Name
    kind: Name = "gpu"
    fp32: FlopRate | None = None
    tf32: FlopRate | None = None
    fp16: FlopRate | None = None
    bf16: FlopRate | None = None
    memory: Bytes | None = None
    memory_bandwidth: Rate | None = None
    power: Watts | None = None
    verified: bool = True
    source: Text = "the spec"


class LinkSpec(Model):
    """Bandwidth of one direction, and latency per hop."""

    bandwidth: Rate
    latency: Seconds = 0.0


def _shared(value: object) -> bool | int:
    """Return true, false, or by how many machines."""
    return value if isinstance(value, bool) else whole(value)


SharedBy = Annotated[
    bool | int,
    BeforeValidator(_shared),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 1}]}),
]


class StorageSpec(Model):
    """A disk in every machine, or one store shared by all, or by so many machines."""

    bandwidth: Rate
    shared: SharedBy = False

    def build(self) -> Storage:
        """Return the storage of a machine."""
        by = None if isinstance(self.shared, bool) else self.shared
        return Storage(bandwidth_bytes_per_s=self.bandwidth, is_shared=bool(self.shared), shared_by=by)


DeviceOf = Annotated[
    Annotated[Name, known(data.device), Tag("<name>")] | Annotated[DeviceSpec, Tag("<mapping>")], Discriminator(tag)
]
LinkOf = Annotated[
    Annotated[Name, known(data.inside_link), Tag("<name>")] | Annotated[LinkSpec, Tag("<mapping>")],
    Discriminator(tag),
]
# The rate of each of a machine's network cards; ``8 x 400 Gbit/s`` says how many there are, too.
CardRate = Annotated[
    Rate,
    WithJsonSchema({"type": "string", "description": "of each network card, e.g. '400 Gbit/s' or '8 x 400 Gbit/s'"}),
]
_CARDS = re.compile(r"\s*(\d{1,12})\s*x\s*(.*)", re.DOTALL)


class MachineSpec(Model):
    """A group of equal machines: of a device, or as they are sold (``machine: dgx-h100``).

    What is left out is that of the machine, or of the device's reference machine (:mod:`planner.data.machines`).
    """

    name: Name | None = None
    count: Count = 1
    machine: Annotated[Name, known(data.machine)] | None = None
    device: DeviceOf | None = None
    devices: Count | None = None
    inside: LinkOf | None = None
    network: CardRate | None = None
    nics: Count | None = None
    latency: Seconds | None = None
    storage: StorageSpec | None = None
    host_link: Rate | None = None
    decode: SampleRate | None = None
    source: Text = ""

    @model_validator(mode="before")
    @classmethod
    def _split_network(cls, given: Any) -> Any:
        """Read ``network: 8 x 400 Gbit/s`` as ``nics: 8`` and ``network: 400 Gbit/s``."""
        network = given.get("network") if isinstance(given, dict) else None
        found = _CARDS.fullmatch(network) if isinstance(network, str) else None
        if found is None:
            return given
        nics, said = int(found[1]), given.get("nics")
        if said is not None and str(said).strip() != str(nics):
            raise ValueError(f"network {network!r} has {nics} cards, and nics says {said}. Write one of them.")
        return {**given, "network": found[2], "nics": nics}

    @property
    def num_devices(self) -> int:
        """Devices of one machine: as said, or those of the machine that is named."""
        return self.devices or (data.machine(self.machine).num_devices if self.machine is not None else 1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.machine is not None:
            self._check_machine(data.machine(self.machine))
        elif self.device is None and getattr(self, "type", "machine") == "machine":
            raise ValueError("this machine has no device. Add e.g. device: a100-sxm4-80gb, or machine: dgx-h100.")
        total = self.count * self.num_devices
        if total > MOST_DEVICES:
            raise ValueError(f"{total} devices are more than {MOST_DEVICES}. Is count x devices right?")
        return self

    def _check_machine(self, machine: data.Machine) -> None:
        """Refuse what contradicts the machine that is named."""
        if self.device is not None:
            device = data.device(self.device).name if isinstance(self.device, str) else self.device.name
            if device != machine.device:
                raise ValueError(f"machine {machine.name} has {machine.device}, and device is {device}. Leave one out.")
        if self.num_devices > machine.num_devices:
            raise ValueError(
                f"machine {machine.name} has {machine.num_devices} devices, and devices says {self.devices}. "
                f"Leave devices out, or raise count."
            )


class NodeSpec(MachineSpec):
    """A machine group or a switch of a drawn cluster; its links stand under ``links``."""

    name: Name
    type: Literal["machine", "switch"] = "machine"

    @model_validator(mode="after")
    def _check_node(self) -> Self:
        given = [key for key in sorted(self.model_fields_set) if getattr(self, key) is not None]
        if self.type == "switch" and (beyond := [key for key in given if key not in {"name", "type", "source"}]):
            raise ValueError(f"a switch has no {', '.join(beyond)}. Remove it, or write type: machine.")
        if beyond := [key for key in ("network", "latency") if key in given]:
            mend = "Write bandwidth and latency of its links under links."
            raise ValueError(f"a drawn machine has no {' and '.join(beyond)} of its own. {mend}")
        return self


class CableSpec(LinkSpec):
    """A link between two nodes; at a machine group, one such link for every network card of every machine."""

    ends: Annotated[list[Name], Field(min_length=2, max_length=2)]


class ClusterSpec(Model):
    """The machines: groups on one switch, or any graph of nodes and links, or a testbed by name."""

    name: Name | None = None
    preset: Annotated[Name, known(data.preset)] | None = None
    machines: Annotated[list[MachineSpec], Field(min_length=1, max_length=MOST_NODES)] | None = None
    nodes: Annotated[list[NodeSpec], Field(min_length=1, max_length=MOST_NODES)] | None = None
    links: Annotated[list[CableSpec], Field(max_length=10 * MOST_NODES)] | None = None
    source: Text = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        exactly_one(self, ("preset", "machines", "nodes"))
        if self.links is not None and self.nodes is None:
            raise ValueError("links belong to nodes; a machine group has its own network.")
        return self
