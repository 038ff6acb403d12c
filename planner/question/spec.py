"""Configurations in a spec: the block of each family, as ``plan`` prints it and ``predict`` reads it."""

from collections.abc import Mapping
from types import GenericAlias
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    Tag,
    WithJsonSchema,
    create_model,
    model_validator,
)

from planner import zoo as networks
from planner.constraints import CONSTRAINTS, Constraint
from planner.decisions import (
    DECISIONS,
    FLAG,
    LAYOUT,
    NO_MODULES,
    Decision,
    PipelineSchedule,
    ServerOverlap,
    Synchronisation,
)
from planner.dnn import MOST_LAYERS
from planner.frozen import frozen
from planner.names import FAMILY_NAMES
from planner.plugins import named
from planner.problem import Algorithm
from planner.question.blocks import (
    MOST_DEVICES,
    MOST_SUBSTITUTIONS,
    CalibrationSpec,
    ClusterSpec,
    EncoderSpec,
    LayerSpec,
    RepeatSpec,
    SubstitutionSpec,
    Tokens,
    TransformerSpec,
)
from planner.question.source import Notes, Source
from planner.question.transformer import FineTuningOf, FrozenOf
from planner.question.values import (
    Amount,
    Bytes,
    Count,
    FamilyOf,
    File,
    Fp8Recipe,
    Index,
    Model,
    Name,
    OptimizerName,
    OrPlugin,
    Positive,
    PositiveBytes,
    PositiveSeconds,
    Seconds,
    Share,
    Text,
    TrainingDtype,
    Watts,
    exactly_one,
    known,
    tag,
    whole,
)
from planner.units import Dimension


def _type_of(row: Decision) -> Any:
    """Return what a spec may write for a decision, as pydantic reads it."""
    if row.key == "substitutions":
        return list[Name]
    if row.key == "layers_per_stage":
        return Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1), BeforeValidator(_layers_of)]
    if row.is_size:
        return PositiveBytes
    if row.is_count:
        return Count if row.least else Index
    if row.parts:
        return Annotated[str, BeforeValidator(lambda given: _set_of(row, given)), WithJsonSchema(_set_schema(row))]
    if row.names_of is not None:
        return Name
    named_values = bool if row.values == FLAG else Literal[row.values]
    return Annotated[named_values, OrPlugin(row.plugins)] if row.plugins else named_values


def _layers_of(given: Any) -> list[int]:
    if not isinstance(given, list) or not given:
        raise ValueError(f"{given!r} is no list of layers. Write a number for each stage, e.g. [8, 9, 8, 7].")
    return [whole(one, least=0) for one in given]


def _set_of(row: Decision, given: Any) -> Any:
    """Return some names of a set as its values are written, whatever their order: a list, or a text with spaces."""
    listed = given.split() if isinstance(given, str) else given
    if listed == [NO_MODULES] and NO_MODULES in row.values:
        return NO_MODULES
    if not isinstance(listed, list) or not listed or any(one not in row.parts for one in listed):
        raise ValueError(f"it is no set of modules. List some of {', '.join(row.parts)}.")
    return " ".join(name for name in row.parts if name in listed)


def _set_schema(row: Decision) -> dict[str, Any]:
    parts = [*row.parts, *([NO_MODULES] if NO_MODULES in row.values else [])]
    return {"anyOf": [{"type": "array", "items": {"enum": parts}, "minItems": 1}, {"type": "string"}]}


def _made_of(fields: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return a base class with such fields: the type and the default of each."""
    return create_model("_Rows", __base__=Model, **fields)  # type: ignore[call-overload]  # the fields are rows


class GroupSpec(Model):
    """One fused all-reduce: the tensors (or layers) that it carries, in the order in which they become ready."""

    tensors: Annotated[list[Name], Field(min_length=1)]
    algorithm: Annotated[Literal[Algorithm, "measured", "piecewise"] | None, OrPlugin("planner.cost_models")] = None
    size_bytes: Annotated[float, Field(ge=0)] | None = None


class BufferSpec(Model):
    """Fusion by a size: a buffer that closes before it, DDP's cap, or Horovod's threshold.

    ``buffer`` closes before a gradient would pass it: the rule of papers. ``bucket_cap`` is ``bucket_cap_mb`` of
    PyTorch's DistributedDataParallel: a bucket closes with the tensor that fills it; ``first`` is the cap of the first
    bucket, by default the same, as PyTorch has it where a program gives ``bucket_cap_mb``. ``fusion_threshold`` and
    ``cycle`` are Horovod's.
    """

    buffer: Bytes | None = None
    bucket_cap: PositiveBytes | None = None
    first: PositiveBytes | None = None
    fusion_threshold: PositiveBytes | None = None
    cycle: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        sizes = [self.buffer, self.bucket_cap, self.fusion_threshold]
        if sum(size is not None for size in sizes) != 1:
            raise ValueError("give one size: buffer (papers), bucket_cap (DDP) or fusion_threshold (Horovod).")
        if self.first is not None and self.bucket_cap is None:
            raise ValueError("first is the cap of DDP's first bucket: give bucket_cap, too, or leave out first.")
        if self.cycle is not None and self.fusion_threshold is None:
            raise ValueError("cycle is Horovod's: give fusion_threshold, too, or leave out cycle.")
        return self


FusionOf = Annotated[
    Annotated[
        Literal[
            "none", "one", "optimal", "mg_wfbp", "ada_fusion", "ada_fusion_idle", "ddp", "horovod", "best_bucket_cap"
        ],
        Tag("<name>"),
    ]
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
    ``max_staleness`` belongs to ``ssp``, ``local_steps`` to ``local_sgd``; ``overlap``, ``barrier``,
    ``partition_bytes`` and ``priority`` to ``bsp``. ``overlap`` left out: ``push`` or ``none``, as
    ``calibration.strategy`` says. ``barrier`` left out: behind ``none`` and ``push``. ``partition_bytes``: tensors are
    cut into pieces of at most so much that go on their own. ``priority``: layers that run forward sooner go first.
    """

    num_parameter_servers: Count
    workers: Annotated[dict[Name, Count], Field(min_length=1)] | None = None
    servers: Name | None = None
    co_located: bool = False
    placement: PlacementOf | None = None
    batch_shares: dict[Name, Count] | None = None
    global_batch_size: Count | None = None
    compression: CompressionSpec | None = None
    synchronisation: Synchronisation = "bsp"
    overlap: ServerOverlap | None = None
    barrier: bool | None = None
    partition_bytes: Bytes | None = None
    priority: bool | None = None
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
    schedule: PipelineSchedule = "1f1b"
    chunks_per_device: Count = 1


class HybridStageSpec(Model):
    """One pipeline stage of a hybrid layout, or one chunk: its layers, and the machines that its devices stand on."""

    layers: Annotated[int, Field(ge=0, strict=True)]
    machines: Name | None = None


class HybridReplicasSpec(Model):
    """Whole replicas of a hybrid layout on one group of machines: how many, and the micro-batches of each."""

    machines: Name
    data: Count
    num_microbatches: Count


def _as_now(value: Any) -> Any:
    """Return the name of a schedule as it is now: ``zero_bubble`` was ZB-H1, when there was no other.

    Raises
    ------
    ValueError
        Of ``interleaved``, which a block says by its chunks.
    """
    if value == "interleaved":
        raise ValueError("interleaved is 1F1B with several chunks. Write schedule: 1f1b, and interleave: 2 or more.")
    return "zb_h1" if value == "zero_bubble" else value


def _of_layout(row: Decision) -> tuple[Any, Any]:
    """Return the type and the default of a layout's key in the block ``hybrid``."""
    kind = Annotated[Literal[row.block_values], BeforeValidator(_as_now)] if row.block_values else _type_of(row)
    kind, default = (kind | None, None) if row.default is None else (kind, row.default)
    return Annotated[kind, Field(description=row.words)], default


class HybridSpec(_made_of({name: _of_layout(row) for name, row in LAYOUT.items()})):  # type: ignore[misc]  # made of rows
    """The configuration block of the family ``hybrid``: one layout of a transformer.

    ``machines`` names a group where machines differ; the batch is by default the one that ``dnn`` asks for. Where
    stages hold unlike numbers of layers, or stand on machines of several kinds, ``stages`` lists them all, or with
    ``interleave`` every chunk, in the order of the network; ``replicas``
    say how many whole replicas stand on each kind. ``zero``, ``sequence_parallel`` and the overlaps that are left out
    are what ``plan`` takes by default: on where they mean something.
    """

    global_batch_size: Count | None = None
    machines: Name | None = None
    stages: Annotated[list[HybridStageSpec], Field(min_length=1)] | None = None
    replicas: Annotated[list[HybridReplicasSpec], Field(min_length=1)] | None = None


class ConfigurationSpec(Model):
    """A given configuration, for ``predict``: the block of one family, and the substitutions of its network.

    The block of a plug-in's family is taken as it is: the family reads it.
    """

    all_reduce: AllReduceSpec | None = None
    parameter_server: ParameterServerSpec | None = None
    model_replicas: ModelReplicasSpec | None = None
    pipeline: PipelineSpec | None = None
    hybrid: HybridSpec | None = None
    substitutions: list[Name] | None = None
    _plugged: dict[str, dict[str, Any]] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        strange = given.keys() - cls.model_fields.keys() if isinstance(given, dict) else set()
        plugged = {
            name: given[name]
            for name in sorted(map(str, strange))
            if isinstance(given.get(name), dict) and name in named("planner.families")
        }
        found = handler({key: value for key, value in given.items() if key not in plugged} if plugged else given)
        found._plugged = plugged
        if len(plugged) != 1 or any(getattr(found, name) is not None for name in FAMILY_NAMES):
            exactly_one(found, FAMILY_NAMES)
        return found

    @property
    def family(self) -> str:
        """The family whose block is given."""
        return next((name for name in FAMILY_NAMES if getattr(self, name) is not None), *self._plugged)

    @property
    def block(self) -> tuple[str, dict[str, object]]:
        """The family, and its block."""
        family = self.family
        return family, self._plugged[family] if family in self._plugged else getattr(self, family).model_dump()


# --- The boundary: what a spec may say
# Text with units comes in here and leaves as SI numbers; nothing is checked again later.

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
    mtp_layers: Count | None = None
    encoder: EncoderSpec | None = None
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
    tokens: Amount | None = None
    samples: Amount | None = None
    sample_bytes: Bytes | None = None
    dtype: TrainingDtype | None = None
    fp8_recipe: Fp8Recipe | None = None
    bf16_layers: Index | None = None
    optimizer: OptimizerName | None = None
    fine_tuning: FineTuningOf | None = None
    frozen: FrozenOf | None = None
    packed: Tokens | None = None
    substitutions: list[SubstitutionSpec] = []
    warnings: list[Text] = []

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = exactly_one(self, NETWORK_KEYS)
        if self.sequence_length is not None and given not in ("zoo", "huggingface"):
            where = "stands in the transformer" if given == "transformer" else "belongs to a transformer by name"
            raise ValueError(f"sequence_length {where}. Leave it out here.")
        if self.mtp_layers is not None and given not in ("zoo", "huggingface", "transformer"):
            raise ValueError("mtp_layers belong to a transformer. Leave them out here.")
        if self.encoder is not None and given not in ("zoo", "huggingface", "transformer"):
            raise ValueError("an encoder stands in front of a transformer. Leave it out here.")
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
        lengths = [key for key in ("epochs", "tokens", "samples") if getattr(self, key) is not None]
        if len(lengths) > 1:
            raise ValueError(f"{' and '.join(lengths)} both say how long the training is. Give one of them.")
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


_EXCLUDABLE: Mapping[str, tuple[Any, Any]] = {
    row.key: (GenericAlias(list, _type_of(row)), []) for row in DECISIONS if row.excluded_by
}


class ExcludeSpec(_made_of(_EXCLUDABLE)):  # type: ignore[misc]  # made of rows
    """Values that decisions must not take, by the keys of ``fix``; the family ``hybrid`` alone takes these."""


_QUANTITIES: Mapping[str, Any] = {
    Dimension.DATA: PositiveBytes,
    Dimension.TIME: Seconds,
    Dimension.POWER: Watts,
    "count": Count,
}
_KINDS: Mapping[str, tuple[Any, Any]] = {
    **{dimension: (kind | None, None) for dimension, kind in _QUANTITIES.items()},
    "range": (RangeOf | None, None),
    "staleness": (StalenessOf | None, None),
    "families": (list[FamilyOf], []),
    "exclude": (Annotated[ExcludeSpec, _EMPTY], ExcludeSpec()),
}


def _of_constraint(one: Constraint) -> tuple[Any, Any]:
    """Return the type and the default of a constraint's key; all parts of a mapping have to be given."""
    if isinstance(one.kind, Mapping):
        parts = {key: (_QUANTITIES[part], ...) for key, part in one.kind.items()}
        made = create_model(f"{one.key.title().replace('_', '')}Spec", __base__=Model, **parts)  # type: ignore[call-overload]  # fields are rows
        kind, default = made | None, None
    else:
        kind, default = _KINDS[str(one.kind)]
    return (Annotated[kind, Field(description=one.description)] if one.description else kind), default


_CONSTRAINTS = {one.key: _of_constraint(one) for one in CONSTRAINTS if one.kind is not None}


class ConstraintsSpec(_made_of(_CONSTRAINTS)):  # type: ignore[misc]  # made of rows
    """What a plan must respect."""


class CompressionOptionSpec(Model):
    """Gradients may be compressed: ``time / (1 - removed)**2`` an iteration, and at most so much is left out."""

    time: Seconds
    at_most: Share = 0.99


_PINNABLE = {row.key: (Annotated[_type_of(row) | None, Field(description=row.words)], None) for row in DECISIONS}


class FixSpec(_made_of(_PINNABLE)):  # type: ignore[misc]  # made of rows
    """Pinned decisions. A pin of what a family does not decide leaves that family out."""


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
    families: Annotated[list[FamilyOf], Field(min_length=1)] | None = None
    compression: CompressionOptionSpec | None = None
    fix: Annotated[FixSpec, _EMPTY] = FixSpec()
    configuration: ConfigurationSpec | None = None
    variant: Literal["corrected", "printed"] = "corrected"


# --- What every part of building a problem reads and writes


@frozen(kw_only=False)
class Reading:
    """One question as it is read."""

    # spec, source: what is asked, checked, and its text
    spec: Spec
    source: Source
    notes: Notes  # faults, assumptions and warnings on the way
    resolved: dict[str, Any]  # the spec with nothing left to look up or to assume; filled on the way
