"""The boundary: what a spec may say.

Text with units comes in here and leaves as SI numbers; nothing is checked again later.
"""

from typing import Annotated, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from planner import zoo as networks
from planner.dnn import MOST_LAYERS
from planner.family_names import FamilyName
from planner.spec.calibration_block import CalibrationSpec
from planner.spec.configuration import ConfigurationSpec, RankOrder, ZeroStage
from planner.spec.layers import MOST_SUBSTITUTIONS, LayerSpec, RepeatSpec, SubstitutionSpec
from planner.spec.machines import MOST_DEVICES, ClusterSpec
from planner.spec.transformer import Tokens, TransformerSpec
from planner.spec.values import (
    Bytes,
    Count,
    Dtype,
    File,
    Model,
    Name,
    Positive,
    PositiveBytes,
    Seconds,
    Share,
    Text,
    exactly_one,
    known,
    tag,
    whole,
)

__all__ = ["NETWORK_KEYS", "CompressionOptionSpec", "ConstraintsSpec", "DnnSpec", "RangeSpec", "Spec"]


# Where a network may come from: a spec gives one of them.
NETWORK_KEYS = ("zoo", "onnx", "huggingface", "torch", "profile", "trace", "layers", "transformer")


class DnnSpec(Model):
    """Where the network comes from, and what it is trained with."""

    zoo: Annotated[Name, known(networks.find_name)] | None = None
    onnx: File | None = None
    huggingface: File | None = None
    torch: File | None = None
    profile: File | None = None
    trace: File | None = None
    layers: Annotated[list[LayerSpec], Field(min_length=1, max_length=MOST_LAYERS)] | None = None
    repeats: list[RepeatSpec] = []
    transformer: TransformerSpec | None = None
    sequence_length: Tokens | None = None
    text_only: bool = False
    dimensions: dict[Name, Count] = {}
    name: Name | None = None
    profile_batch: Count | None = None
    profile_device: Name | None = None
    batch_per_device: Count | None = None
    global_batch: Count | None = None
    max_global_batch: Count | None = None
    dataset_samples: Count | None = None
    epochs: Positive | None = None
    sample_bytes: Bytes | None = None
    dtype: Dtype | None = None
    optimizer: Literal["sgd", "momentum", "adam"] | None = None
    substitutions: list[SubstitutionSpec] = []
    warnings: list[Text] = []

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = exactly_one(self, NETWORK_KEYS)
        if self.sequence_length is not None and given not in ("zoo", "huggingface"):
            where = "stands in the transformer" if given == "transformer" else "belongs to a transformer by name"
            raise ValueError(f"sequence_length {where}. Leave it out here.")
        if self.text_only and given != "huggingface":
            raise ValueError("text_only belongs to a Hugging Face configuration. Leave it out here.")
        if self.dimensions and given != "onnx":
            raise ValueError("dimensions belong to an ONNX file. Leave them out here.")
        if self.repeats and given != "layers":
            raise ValueError("repeats belong to layers. Leave them out here.")
        if (number := len(self.substitutions)) > MOST_SUBSTITUTIONS:
            raise ValueError(
                f"{number} substitutions make {2**number} networks to plan. Allow {MOST_SUBSTITUTIONS} at most."
            )
        if self.global_batch is not None and (self.batch_per_device or self.max_global_batch):
            raise ValueError("global_batch fixes the batch; leave out batch_per_device and max_global_batch.")
        for key in ("profile_batch", "profile_device"):
            if getattr(self, key) is not None and given not in ("profile", "trace", "layers"):
                what = {"zoo": "a zoo network", "transformer": "a transformer"}.get(given, f"what {given} names")
                raise ValueError(f"{key} belongs to a measured profile, trace or layers, not to {what}.")
        return self

    @property
    def source(self) -> str:
        """The key that says where the network comes from."""
        return exactly_one(self, NETWORK_KEYS)


class RangeSpec(Model):
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


RangeOf = Annotated[RangeSpec, BeforeValidator(_range, json_schema_input_type=Count | RangeSpec)]


def _staleness(value: object) -> int | str:
    """Return a number of iterations, 0 included, or ``unbounded``."""
    if isinstance(value, str):
        if value == "unbounded":
            return value
        raise ValueError(f"{value!r} is not a whole number. Write 0 or more, or unbounded.")
    return whole(value, least=0)


StalenessOf = Annotated[
    int | Literal["unbounded"],
    BeforeValidator(_staleness),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"const": "unbounded"}]}),
]


# A section whose keys are all commented out is empty, not wrong.
_EMPTY = BeforeValidator(lambda value: {} if value is None else value)


class ExcludeSpec(Model):
    """Values that decisions must not take, by the keys of ``fix``; the family ``hybrid`` alone takes these."""

    schedule: list[Literal["gpipe", "1f1b", "interleaved"]] = []
    tensor_parallel_size: list[Count] = []
    context_parallel_size: list[Count] = []
    pipeline_parallel_size: list[Count] = []
    data_parallel_size: list[Count] = []
    expert_parallel_size: list[Count] = []
    chunks_per_device: list[Count] = []
    microbatch_size: list[Count] = []
    zero_stage: list[ZeroStage] = []
    recompute: list[Literal["none", "selective", "full"]] = []
    sequence_parallel: list[bool] = []
    overlap_data: list[bool] = []
    overlap_tensor: list[bool] = []
    offload_optimizer: list[bool] = []
    rank_order: list[RankOrder] = []


class ConstraintsSpec(Model):
    """What a plan must respect."""

    devices: RangeOf | None = None
    machines: RangeOf | None = None
    memory_per_device: PositiveBytes | None = None
    deadline: Seconds | None = None
    max_staleness: StalenessOf | None = None
    forbidden_families: list[FamilyName] = []
    exclude: Annotated[ExcludeSpec, _EMPTY] = ExcludeSpec()


class CompressionOptionSpec(Model):
    """Gradients may be compressed: ``time / (1 - removed)**2`` an iteration, and at most so much is left out."""

    time: Seconds
    at_most: Share = 0.99


class FixSpec(Model):
    """Pinned decisions. A pin of what a family does not decide leaves that family out."""

    num_devices: Count | None = None
    num_machines: Count | None = None
    devices_per_machine: Count | None = None
    gradient_accumulation_steps: Count | None = None
    algorithm: Literal["ring", "tree", "two_level"] | None = None
    device: Name | None = None
    batch_shares: Literal["equal"] | None = None
    num_parameter_servers: Count | None = None
    servers: Name | None = None
    co_located: bool | None = None
    synchronisation: Literal["bsp", "ssp", "asp", "local_sgd"] | None = None
    num_replicas: Count | None = None
    num_workers_per_replica: Count | None = None
    num_stages: Count | None = None
    num_microbatches: Count | None = None
    schedule: Literal["gpipe", "1f1b", "interleaved"] | None = None
    tensor_parallel_size: Count | None = None
    context_parallel_size: Count | None = None
    pipeline_parallel_size: Count | None = None
    data_parallel_size: Count | None = None
    expert_parallel_size: Count | None = None
    chunks_per_device: Count | None = None
    microbatch_size: Count | None = None
    zero_stage: ZeroStage | None = None
    recompute: Literal["none", "selective", "full"] | None = None
    zero_bubble: bool | None = None
    sequence_parallel: bool | None = None
    overlap_data: bool | None = None
    overlap_tensor: bool | None = None
    offload_optimizer: bool | None = None
    rank_order: RankOrder | None = None
    substitutions: list[Name] | None = None


CalibrationOf = Annotated[
    Annotated[File, Tag("<name>")] | Annotated[CalibrationSpec, Tag("<mapping>")], Discriminator(tag)
]


class Spec(Model):
    """A whole question."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="planner.spec/1")

    dnn: DnnSpec
    cluster: ClusterSpec
    calibration: Annotated[CalibrationOf, _EMPTY] = CalibrationSpec()
    objective: Literal["iteration_time", "epoch_time", "training_time"] | None = None
    constraints: Annotated[ConstraintsSpec, _EMPTY] = ConstraintsSpec()
    families: Annotated[list[FamilyName], Field(min_length=1)] | None = None
    compression: CompressionOptionSpec | None = None
    fix: Annotated[FixSpec, _EMPTY] = FixSpec()
    configuration: ConfigurationSpec | None = None
    variant: Literal["corrected", "printed"] = "corrected"
