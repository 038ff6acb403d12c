"""What a spec may say about machines: devices, links, storage, and how a cluster is put together of them."""

from typing import Annotated, Literal, Self

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


class MachineSpec(Model):
    """A group of equal machines."""

    name: Name | None = None
    count: Count = 1
    device: DeviceOf
    devices: Count = 1
    inside: LinkOf | None = None
    network: Rate | None = None
    nics: Count = 1
    latency: Seconds | None = None
    storage: StorageSpec | None = None
    host_link: Rate | None = None
    decode: SampleRate | None = None
    source: Text = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        total = self.count * self.devices
        if total > MOST_DEVICES:
            raise ValueError(f"{total} devices are more than {MOST_DEVICES}. Is count x devices right?")
        return self


class NodeSpec(MachineSpec):
    """A machine group or a switch of a drawn cluster; its links stand under ``links``."""

    name: Name
    type: Literal["machine", "switch"] = "machine"
    device: DeviceOf | None = None  # type: ignore[assignment]  # a switch has none


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
