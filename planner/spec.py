"""The boundary: what a spec may say.

Text with units comes in here and leaves as SI numbers; nothing is checked again later.
"""

import math
from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from planner import data
from planner import zoo as networks
from planner.cluster import Storage
from planner.errors import SpecError
from planner.problem import Queue
from planner.units import Dimension, example_of, parse

__all__ = [
    "AllReduceSpec",
    "CalibrationSpec",
    "ClusterSpec",
    "ConstraintsSpec",
    "CurveSpec",
    "DeviceSpec",
    "DnnSpec",
    "LinkSpec",
    "MachineSpec",
    "NodeSpec",
    "RangeSpec",
    "Spec",
]

FAMILIES = ("all_reduce",)
MOST_DEVICES = 2**20
_LEAST = 1e-9
_MOST_COUNT = 10**15


def _reader(dimension: Dimension) -> Callable[[object], float]:
    """Return a validator that reads text with a unit of ``dimension``."""

    def read(value: object) -> float:
        if isinstance(value, str):
            return parse(value, dimension)
        raise ValueError(f"{value!r} has no unit. Write e.g. {example_of(dimension)!r}.")

    return read


def _signed_s(value: object) -> float:
    """Return seconds that may be negative: an intercept."""
    if isinstance(value, str) and value.lstrip().startswith("-"):
        return -parse(value.lstrip().removeprefix("-"), Dimension.TIME)
    return _reader(Dimension.TIME)(value)


def _schema(dimension: Dimension) -> WithJsonSchema:
    """Return the JSON Schema of a quantity: text, since a bare number has no unit."""
    return WithJsonSchema({"type": "string", "description": f"{dimension.value}, e.g. {example_of(dimension)}"})


def _positive(value: float) -> float:
    """Refuse zero, and next to nothing, where a division would follow."""
    if value < _LEAST:
        raise ValueError(f"it must be greater than 0, and at least {_LEAST:g} in SI units. Check the unit.")
    return value


def _whole(value: object) -> int:
    """Return a whole number; 1e6 counts as one, true does not."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value != int(value):
        raise ValueError(f"{value!r} is not a whole number. Write e.g. 64.")
    if value > _MOST_COUNT:
        raise ValueError(f"{value!r} is too large. Write a whole number of at most {_MOST_COUNT}.")
    if value < 1:
        raise ValueError(f"{value!r} is too small. Write a whole number of 1 or more.")
    return int(value)


def _number(value: object) -> float:
    """Return a finite number greater than 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{value!r} is not a number greater than 0. Write e.g. 0.5.")
    if not _LEAST <= value <= 1 / _LEAST:
        raise ValueError(f"{value!r} is beyond all reason. Write e.g. 0.5.")
    return float(value)


Bytes = Annotated[float, BeforeValidator(_reader(Dimension.DATA)), _schema(Dimension.DATA)]
Rate = Annotated[float, AfterValidator(_positive), BeforeValidator(_reader(Dimension.RATE)), _schema(Dimension.RATE)]
Seconds = Annotated[float, BeforeValidator(_reader(Dimension.TIME)), _schema(Dimension.TIME)]
FlopRate = Annotated[
    float, AfterValidator(_positive), BeforeValidator(_reader(Dimension.FLOP_RATE)), _schema(Dimension.FLOP_RATE)
]
SampleRate = Annotated[
    float, AfterValidator(_positive), BeforeValidator(_reader(Dimension.SAMPLE_RATE)), _schema(Dimension.SAMPLE_RATE)
]
SignedSeconds = Annotated[float, BeforeValidator(_signed_s), _schema(Dimension.TIME)]
Watts = Annotated[float, BeforeValidator(_reader(Dimension.POWER)), _schema(Dimension.POWER)]
Count = Annotated[int, BeforeValidator(_whole), WithJsonSchema({"type": "integer", "minimum": 1})]
Positive = Annotated[float, BeforeValidator(_number), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})]
Name = Annotated[str, Field(min_length=1)]
Dtype = Literal["fp32", "tf32", "fp16", "bf16"]


class _Model(BaseModel):
    """Every part of a spec: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _exactly_one(model: BaseModel, keys: tuple[str, ...]) -> str:
    """Return the one key of ``keys`` that is given."""
    given = [key for key in keys if getattr(model, key) is not None]
    if len(given) != 1:
        what = f"{' and '.join(given)} are given" if given else "none is given"
        raise ValueError(f"give exactly one of {', '.join(keys)}; {what}.")
    return given[0]


def _known(find: Callable[[str], object]) -> AfterValidator:
    """Return a validator that refuses names which a look-up refuses, with its words."""

    def check(name: str) -> str:
        try:
            find(name)
        except SpecError as error:
            raise ValueError(" ".join(str(fault) for fault in error.faults)) from None
        return name

    return AfterValidator(check)


class LayerSpec(_Model):
    """One layer, by multiply-adds or by measured seconds of a batch of ``dnn.profile_batch`` samples."""

    name: Name
    kind: Name = "operator"
    inputs: list[str] = []
    forward: Seconds | None = None
    backward: Seconds | None = None
    multiply_adds: Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False, strict=True)] = 0
    parameters: Bytes = 0.0
    output: Bytes = 0.0
    in_place: bool = False


class DnnSpec(_Model):
    """Where the network comes from, and what it is trained with."""

    zoo: Annotated[Name, _known(networks.find_name)] | None = None
    profile: Name | None = None
    trace: Name | None = None
    layers: Annotated[list[LayerSpec], Field(min_length=1)] | None = None
    name: Name | None = None
    profile_batch: Count | None = None
    batch_per_device: Count | None = None
    global_batch: Count | None = None
    max_global_batch: Count | None = None
    dataset_samples: Count | None = None
    epochs: Positive | None = None
    sample_bytes: Bytes | None = None
    dtype: Dtype = "fp32"
    optimizer: Literal["sgd", "momentum", "adam"] = "momentum"

    @model_validator(mode="after")
    def _check(self) -> Self:
        _exactly_one(self, ("zoo", "profile", "trace", "layers"))
        if self.global_batch is not None and (self.batch_per_device or self.max_global_batch):
            raise ValueError("global_batch fixes the batch; leave out batch_per_device and max_global_batch.")
        if self.profile_batch is not None and self.zoo is not None:
            raise ValueError("profile_batch belongs to a measured profile, trace or layers, not to a zoo network.")
        return self


class DeviceSpec(_Model):
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
    source: str = "the spec"


class LinkSpec(_Model):
    """Bandwidth of one direction, and latency per hop."""

    bandwidth: Rate
    latency: Seconds = 0.0


def _shared(value: object) -> bool | int:
    """Return true, false, or by how many machines."""
    return value if isinstance(value, bool) else _whole(value)


SharedBy = Annotated[
    bool | int,
    BeforeValidator(_shared),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 1}]}),
]


class StorageSpec(_Model):
    """A disk in every machine, or one store shared by all, or by so many machines."""

    bandwidth: Rate
    shared: SharedBy = False

    def build(self) -> Storage:
        """Return the storage of a machine."""
        by = None if isinstance(self.shared, bool) else self.shared
        return Storage(bandwidth_bytes_per_s=self.bandwidth, is_shared=bool(self.shared), shared_by=by)


def _tag(value: object) -> str:
    """Tell names, mappings and lists apart, so that faults speak of the one that was meant.

    The tags stand in no path.
    """
    kinds = {str: "<name>", dict: "<mapping>", list: "<list>"}
    return next((tag for kind, tag in kinds.items() if isinstance(value, kind)), "<mapping>")


_Name = Annotated[Name, Tag("<name>")]
DeviceOf = Annotated[
    Annotated[Name, _known(data.device), Tag("<name>")] | Annotated[DeviceSpec, Tag("<mapping>")], Discriminator(_tag)
]
LinkOf = Annotated[
    Annotated[Name, _known(data.inside_link), Tag("<name>")] | Annotated[LinkSpec, Tag("<mapping>")],
    Discriminator(_tag),
]


class MachineSpec(_Model):
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
    source: str = ""

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


class ClusterSpec(_Model):
    """The machines: groups on one switch, or any graph of nodes and links, or a testbed by name."""

    name: Name | None = None
    preset: Annotated[Name, _known(data.preset)] | None = None
    machines: Annotated[list[MachineSpec], Field(min_length=1)] | None = None
    nodes: Annotated[list[NodeSpec], Field(min_length=1)] | None = None
    links: list[CableSpec] | None = None
    source: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _exactly_one(self, ("preset", "machines", "nodes"))
        if self.links is not None and self.nodes is None:
            raise ValueError("links belong to nodes; a machine group has its own network.")
        return self


class CurveSpec(_Model):
    """A measured all-reduce: a CSV file with the columns size_bytes,seconds, or the points themselves."""

    num_devices: Count
    file: Name | None = None
    points: Annotated[list[tuple[Bytes, Seconds]], Field(min_length=2)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _exactly_one(self, ("file", "points"))
        return self


class PiecewiseSpec(_Model):
    """Equation 18, fitted for one number of devices.

    ``log_slope log2 D + log_offset`` below the threshold, ``D / bandwidth + offset`` from there on.
    """

    num_devices: Count
    log_slope: Seconds
    log_offset: SignedSeconds
    bandwidth: Rate
    offset: SignedSeconds = 0.0
    threshold: Bytes


class QueueSpec(_Model):
    """A switch that queues packets (M/M/1): the rate that it forwards, the packet, and the hops over it."""

    switch: Rate
    packet: Annotated[
        float, AfterValidator(_positive), BeforeValidator(_reader(Dimension.DATA)), _schema(Dimension.DATA)
    ] = 1500.0
    hops: Count = 1

    def build(self) -> Queue:
        """Return the queue."""
        return Queue(switch_bytes_per_s=self.switch, packet_bytes=self.packet, num_hops=self.hops)


class CalibrationSpec(_Model):
    """Fitted parameters of devices, links and framework."""

    utilisation: Positive | None = None
    utilisation_by_kind: dict[str, Positive] = {}
    flop_per_multiply_add: Literal[1, 2] = 2
    update: Seconds | None = None
    bandwidth_efficiency: Positive | None = None
    inside_efficiency: Positive | None = None
    overhead: Seconds = 0.0
    negotiate: Seconds = 0.0
    aggregation: bool = True
    algorithms: Annotated[list[Literal["ring", "tree", "two_level"]], Field(min_length=1)] = [
        "ring",
        "tree",
        "two_level",
    ]
    curves: list[CurveSpec] = []
    piecewise: list[PiecewiseSpec] = []
    wait: Literal["none", "exact", "paper"] = "none"
    timeout: Seconds | None = None
    fusion_unit: Literal["layer", "tensor"] = "layer"
    strategy: Literal["naive", "cntk", "mxnet", "caffe_mpi"] = "caffe_mpi"
    prefetch: Literal["pipelined", "single"] = "pipelined"
    memory_reserve: Bytes = 0.0
    straggler_deviation: Seconds = 0.0
    queue: QueueSpec | None = None
    cores: Count = 1
    activation: Seconds = 0.0
    error: Seconds = 0.0
    multiply_add: list[tuple[Bytes, Seconds]] = []
    interference: list[tuple[Count, Positive]] = []
    source: str = ""


class RangeSpec(_Model):
    """How many: exactly, at least, at most."""

    exactly: Count | None = None
    at_least: Count | None = None
    at_most: Count | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.exactly is not None and (self.at_least or self.at_most):
            raise ValueError("exactly leaves nothing for at_least and at_most to say.")
        if (self.at_least or 1) > (self.at_most or MOST_DEVICES):
            raise ValueError(f"at_least {self.at_least} is more than at_most {self.at_most}.")
        return self


def _range(value: object) -> object:
    """Read a bare number as ``exactly``."""
    return {"exactly": value} if isinstance(value, int | float | str) else value


RangeOf = Annotated[RangeSpec, BeforeValidator(_range)]


class ConstraintsSpec(_Model):
    """What a plan must respect."""

    devices: RangeOf | None = None
    machines: RangeOf | None = None
    memory_per_device: Bytes | None = None
    deadline: Seconds | None = None


class FixSpec(_Model):
    """Pinned decisions."""

    num_devices: Count | None = None
    num_machines: Count | None = None
    devices_per_machine: Count | None = None
    gradient_accumulation_steps: Count | None = None
    algorithm: Literal["ring", "tree", "two_level"] | None = None
    device: Name | None = None


class GroupSpec(_Model):
    """One fused all-reduce: the tensors (or layers) that it carries, in the order in which they become ready."""

    tensors: Annotated[list[Name], Field(min_length=1)]
    algorithm: Literal["ring", "tree", "two_level", "measured", "piecewise"] | None = None
    size_bytes: Annotated[float, Field(ge=0)] | None = None


class BufferSpec(_Model):
    """Fusion by a buffer of constant size, as frameworks have it."""

    buffer: Bytes


FusionOf = Annotated[
    Annotated[Literal["none", "one", "optimal", "mg_wfbp", "ada_fusion", "ada_fusion_idle"], Tag("<name>")]
    | Annotated[BufferSpec, Tag("<mapping>")]
    | Annotated[list[GroupSpec], Tag("<list>")],
    Discriminator(_tag),
]
CalibrationOf = Annotated[_Name | Annotated[CalibrationSpec, Tag("<mapping>")], Discriminator(_tag)]


class AllReduceSpec(_Model):
    """The configuration block of the family ``all_reduce``, as ``plan`` prints it."""

    machines: Annotated[list[Name], Field(min_length=1)] | None = None
    num_devices: Count
    num_machines: Count | None = None
    devices_per_machine: Count | None = None
    global_batch_size: Count | None = None
    gradient_accumulation_steps: Count = 1
    fusion_groups: FusionOf = "optimal"


PlacementOf = Annotated[
    Annotated[Literal["round_robin", "largest_first", "sliced"], Tag("<name>")]
    | Annotated[dict[str, Annotated[int, Field(ge=0, strict=True)]], Tag("<mapping>")],
    Discriminator(_tag),
]


class CompressionSpec(_Model):
    """Share of every gradient that is left out, and the seconds ``k`` of ``k / (1 - removed)**2`` that it takes."""

    removed: Annotated[float, Field(ge=0, lt=1)]
    time: Seconds = 0.0


class ParameterServerSpec(_Model):
    """The configuration block of the family ``parameter_server``.

    Workers and shares are by the name of the machine group; tensors are placed by a rule, or each on a server by its
    index.
    """

    num_parameter_servers: Count
    workers: Annotated[dict[str, Count], Field(min_length=1)] | None = None
    servers: Name | None = None
    co_located: bool = False
    placement: PlacementOf = "round_robin"
    batch_shares: dict[str, Count] | None = None
    compression: CompressionSpec | None = None


class ReplicaLayerSpec(_Model):
    """One layer of ``model_replicas``.

    P, H, R, and the worker of every segment, a row for each replica of the layer.
    """

    partitions: Count | None = None
    threads: Count | None = None
    replicas: Count | None = None
    workers: (
        Annotated[
            list[Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Field(min_length=1)]], Field(min_length=1)
        ]
        | None
    ) = None


class ModelReplicasSpec(_Model):
    """The configuration block of the family ``model_replicas``."""

    num_parameter_servers: Count
    num_replicas: Count
    num_workers_per_replica: Count
    samples_per_read: Count | None = None
    layers: Annotated[list[ReplicaLayerSpec], Field(min_length=1)] | None = None


class ConfigurationSpec(_Model):
    """A given configuration, for ``predict``: the block of one family."""

    all_reduce: AllReduceSpec | None = None
    parameter_server: ParameterServerSpec | None = None
    model_replicas: ModelReplicasSpec | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _exactly_one(self, tuple(type(self).model_fields))
        return self

    @property
    def family(self) -> str:
        """The family whose block is given."""
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)


# A section whose keys are all commented out is empty, not wrong.
_EMPTY = BeforeValidator(lambda value: {} if value is None else value)


class Spec(_Model):
    """A whole question."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="planner.spec/1")

    dnn: DnnSpec
    cluster: ClusterSpec
    calibration: Annotated[CalibrationOf, _EMPTY] = CalibrationSpec()
    objective: Literal["iteration_time", "epoch_time", "training_time"] | None = None
    constraints: Annotated[ConstraintsSpec, _EMPTY] = ConstraintsSpec()
    families: Annotated[list[Literal["all_reduce"]], Field(min_length=1)] = ["all_reduce"]
    fix: Annotated[FixSpec, _EMPTY] = FixSpec()
    configuration: ConfigurationSpec | None = None
    variant: Literal["corrected", "printed"] = "corrected"
