"""Configurations in a spec: the block of each family, as ``plan`` prints it and ``predict`` reads it."""

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from planner.family_names import FAMILY_NAMES
from planner.spec.values import Bytes, Count, Index, Model, Name, Seconds, Share, exactly_one, tag

__all__ = [
    "AllReduceSpec",
    "ConfigurationSpec",
    "HybridSpec",
    "ModelReplicasSpec",
    "ParameterServerSpec",
    "PipelineSpec",
    "RankOrder",
    "ZeroStage",
]


ZeroStage = Literal[0, 1, 2, 3]
# Degrees from the innermost tier of the network outwards: the orders of planner.models.tiers.
RankOrder = Literal[
    "tensor-context-data-pipeline",
    "tensor-context-pipeline-data",
    "tensor-pipeline-context-data",
    "context-data-tensor-pipeline",
    "pipeline-tensor-context-data",
]


class GroupSpec(Model):
    """One fused all-reduce: the tensors (or layers) that it carries, in the order in which they become ready."""

    tensors: Annotated[list[Name], Field(min_length=1)]
    algorithm: Literal["ring", "tree", "two_level", "measured", "piecewise"] | None = None
    size_bytes: Annotated[float, Field(ge=0)] | None = None


class BufferSpec(Model):
    """Fusion by a buffer of constant size, as frameworks have it."""

    buffer: Bytes


FusionOf = Annotated[
    Annotated[Literal["none", "one", "optimal", "mg_wfbp", "ada_fusion", "ada_fusion_idle"], Tag("<name>")]
    | Annotated[BufferSpec, Tag("<mapping>")]
    | Annotated[list[GroupSpec], Tag("<list>")],
    Discriminator(tag),
]


class CompressionSpec(Model):
    """Share of every gradient that is left out, and the seconds ``k`` of ``k / (1 - removed)**2`` that it takes."""

    removed: Share
    time: Seconds = 0.0


class GroupShareSpec(Model):
    """What the machines of one group do: how many take part, devices of each, and the largest share of a device."""

    machines: Count
    devices_per_machine: Count | None = None
    batch_per_device: Count
    gradient_accumulation_steps: Count | None = None


class AllReduceSpec(Model):
    """The configuration block of the family ``all_reduce``, as ``plan`` prints it.

    ``groups``, by the name of the group of machines, say what unlike devices do; else ``num_devices`` are all alike.
    ``gradient_accumulation_steps`` left out are the fewest whose samples fit in memory, as ``plan`` takes them.
    """

    machines: Annotated[list[Name], Field(min_length=1)] | None = None
    groups: Annotated[dict[Name, GroupShareSpec], Field(min_length=1)] | None = None
    num_devices: Count | None = None
    num_machines: Count | None = None
    devices_per_machine: Count | None = None
    global_batch_size: Count | None = None
    gradient_accumulation_steps: Count | None = None
    compression: CompressionSpec | None = None
    fusion_groups: FusionOf = "optimal"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.groups is None and self.num_devices is None:
            raise ValueError("give num_devices, or groups where devices differ.")
        if self.groups is not None and (self.machines or self.devices_per_machine):
            raise ValueError("groups say which machines take part: leave out machines and devices_per_machine.")
        return self


PlacementOf = Annotated[
    Annotated[Literal["round_robin", "largest_first", "sliced"], Tag("<name>")]
    | Annotated[dict[str, Index], Tag("<mapping>")],
    Discriminator(tag),
]


class ParameterServerSpec(Model):
    """The configuration block of the family ``parameter_server``.

    Workers and shares are by the name of the machine group; tensors are placed by a rule, or each on a server by its
    index. A share is the largest of its group: some devices have one sample less where shares make more than the batch.
    ``placement`` left out: sliced, where the program cuts tensors (``calibration.split_tensors``), else round robin.
    ``max_staleness`` belongs to ``ssp``, ``local_steps`` to ``local_sgd``.
    """

    num_parameter_servers: Count
    workers: Annotated[dict[Name, Count], Field(min_length=1)] | None = None
    servers: Name | None = None
    co_located: bool = False
    placement: PlacementOf | None = None
    batch_shares: dict[Name, Count] | None = None
    global_batch_size: Count | None = None
    compression: CompressionSpec | None = None
    synchronisation: Literal["bsp", "ssp", "asp", "local_sgd"] = "bsp"
    max_staleness: Index | None = None
    local_steps: Count | None = None


class ReplicaLayerSpec(Model):
    """One layer of ``model_replicas``.

    P, H, R, and the worker of every segment, a row for each replica of the layer. ``threads`` left out are those that
    are fastest.
    """

    partitions: Count | None = None
    threads: Count | None = None
    replicas: Count | None = None
    workers: Annotated[list[Annotated[list[Index], Field(min_length=1)]], Field(min_length=1)] | None = None


class ModelReplicasSpec(Model):
    """The configuration block of the family ``model_replicas``."""

    num_parameter_servers: Count
    num_replicas: Count
    num_workers_per_replica: Count
    samples_per_read: Count | None = None
    layers: Annotated[list[ReplicaLayerSpec], Field(min_length=1)] | None = None


class StageSpec(Model):
    """One stage of a pipeline: its first and last layer, the machines it runs on, and its replicas."""

    first: Name
    last: Name
    machines: Name | None = None
    replicas: Count = 1


class PipelineSpec(Model):
    """The configuration block of the family ``pipeline``."""

    stages: Annotated[list[StageSpec], Field(min_length=1)]
    num_microbatches: Count | None = None
    global_batch_size: Count | None = None
    schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b"
    chunks_per_device: Count = 1


class HybridStageSpec(Model):
    """One pipeline stage of a hybrid layout: its layers, and the group of machines that its devices stand on."""

    layers: Count
    machines: Name | None = None


class HybridReplicasSpec(Model):
    """Whole replicas of a hybrid layout on one group of machines: how many, and the micro-batches of each."""

    machines: Name
    data: Count
    num_microbatches: Count


class HybridSpec(Model):
    """The configuration block of the family ``hybrid``: one layout of a transformer.

    ``machines`` names a group where machines differ; the batch is by default the one that ``dnn`` asks for. Where
    stages hold unlike numbers of layers, or stand on machines of several kinds, ``stages`` lists them all; ``replicas``
    say how many whole replicas stand on each kind. ``zero``, ``sequence_parallel`` and the overlaps that are left out
    are what ``plan`` takes by default: on where they mean something (:mod:`planner.families.hybrid.defaults`).
    """

    tensor: Count = 1
    context: Count = 1
    pipeline: Count = 1
    data: Count = 1
    expert: Count = 1
    interleave: Count = 1
    microbatch: Count = 1
    zero: ZeroStage | None = None
    recompute: Literal["none", "selective", "full"] = "none"
    schedule: Literal["gpipe", "1f1b", "zero_bubble"] = "1f1b"
    sequence_parallel: bool | None = None
    overlap_data: bool | None = None
    overlap_tensor: bool | None = None
    offload_optimizer: bool = False
    order: RankOrder = "tensor-context-data-pipeline"
    global_batch_size: Count | None = None
    machines: Name | None = None
    stages: Annotated[list[HybridStageSpec], Field(min_length=1)] | None = None
    replicas: Annotated[list[HybridReplicasSpec], Field(min_length=1)] | None = None


class ConfigurationSpec(Model):
    """A given configuration, for ``predict``: the block of one family, and the substitutions of its network."""

    all_reduce: AllReduceSpec | None = None
    parameter_server: ParameterServerSpec | None = None
    model_replicas: ModelReplicasSpec | None = None
    pipeline: PipelineSpec | None = None
    hybrid: HybridSpec | None = None
    substitutions: list[Name] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        exactly_one(self, FAMILY_NAMES)
        return self

    @property
    def family(self) -> str:
        """The family whose block is given."""
        return next(name for name in FAMILY_NAMES if getattr(self, name) is not None)
