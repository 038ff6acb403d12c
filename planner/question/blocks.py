"""What a spec may say about layers: those of a network, and those that may take the place of others."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from planner import data
from planner.cluster import Storage
from planner.dnn import MOST_LAYERS, PRODUCT_KINDS, Layer, Operator, OperatorKind, Product, Tensor, Window
from planner.encoders import MOST_MERGED
from planner.problem import USUAL_ALGORITHMS, Queue
from planner.question.transformer import NumericsSpec, RotarySpec, RoutingSpec
from planner.question.values import (
    AlgorithmOf,
    Bytes,
    Count,
    File,
    FlopRate,
    Hertz,
    Model,
    Name,
    Positive,
    PositiveBytes,
    Rate,
    SampleRate,
    Seconds,
    SignedSeconds,
    Text,
    Watts,
    exactly_one,
    known,
    tag,
    whole,
)
from planner.transformer import Transformer
from planner.transformer_parts import (
    MOST_CHANNELS,
    MOST_EXPERTS,
    MOST_FRAMES,
    MOST_HEADS,
    MOST_IMAGES,
    MOST_INNER,
    MOST_PIXELS,
    MOST_TOKENS,
    MOST_WIDTH,
    MOST_WORDS,
)
from planner.transformer_parts import MOST_LAYERS as MOST_TRANSFORMER_LAYERS
from planner.zoo.transformers import transformer_of

ELEMENT_BYTES = 4  # a layer's bytes, where it gives no shape and no tensors, are of fp32

MOST_SUBSTITUTIONS = 6  # every subset of them is a network to plan


class TensorSpec(Model):
    """A stored array of a layer."""

    name: Name
    elements: Count
    role: Literal["weight", "bias", "scale", "shift", "moving"] = "weight"


class WindowSpec(Model):
    """What an output of a convolution or a pool reads."""

    kernel: Count
    stride: Count = 1
    padding: Annotated[int, Field(ge=0, strict=True)] = 0


_SHARES_OF_PRODUCTS = (0.95, 1.05)  # layers of a recurrent module may be unlike; their widths are a mean
_SHARES_OF_SCORES = (0.45, 2.1)  # attention is two products like that of its scores, and half of them if causal


class OperatorSpec(Model):
    """One operator of a layer, of one sample and in elements; ``product``: rows, inner width, columns and count."""

    kind: OperatorKind
    multiply_adds: Annotated[int, Field(ge=0, le=10**18, strict=True)] = 0
    reads: Annotated[int, Field(ge=0, le=10**15, strict=True)] = 0
    writes: Annotated[int, Field(ge=0, le=10**15, strict=True)] = 0
    weights: Annotated[int, Field(ge=0, le=10**15, strict=True)] = 0
    product: tuple[Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)], Count, Count, Count] | None = None
    kernels: Count = 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.product is None:
            if self.multiply_adds:
                raise ValueError("multiply_adds are those of a product. Give product as well.")
            return self
        if self.kind not in PRODUCT_KINDS:
            raise ValueError(
                f"{self.kind} multiplies no matrices. Leave product out, or give a kind of {PRODUCT_KINDS}."
            )
        rows, inner, columns, count = self.product
        share = self.multiply_adds / (rows * inner * columns * count)
        least, most = _SHARES_OF_SCORES if self.kind == "attention" else _SHARES_OF_PRODUCTS
        if not least <= share <= most:
            raise ValueError(
                f"multiply_adds are {share:.3g} times rows x inner x columns x count of product. Make them equal."
            )
        return self

    @classmethod
    def of(cls, operator: Operator) -> dict[str, object]:
        """Return an operator as a spec writes it, less what it need not say."""
        product = operator.product
        row = {
            "kind": operator.kind,
            "multiply_adds": operator.num_multiply_adds,
            "reads": operator.read_elements,
            "writes": operator.written_elements,
            "weights": operator.weight_elements,
            "product": None if product is None else [product.rows, product.inner, product.columns, product.count],
            "kernels": operator.num_kernels,
        }
        return {key: value for key, value in row.items() if value != cls.model_fields[key].default}

    def build(self) -> Operator:
        """Return the operator."""
        product = None
        if self.product is not None:
            rows, inner, columns, count = self.product
            whole = int(rows) if rows.is_integer() else rows
            product = Product(rows=whole, inner=inner, columns=columns, count=count)
        return Operator(
            kind=self.kind,
            num_multiply_adds=self.multiply_adds,
            read_elements=self.reads,
            written_elements=self.writes,
            weight_elements=self.weights,
            product=product,
            num_kernels=self.kernels,
        )


class LayerSpec(Model):
    """One layer, by multiply-adds or by measured seconds of a batch of ``dnn.profile_batch`` samples.

    Its size is said by ``output`` and ``parameters``, bytes of fp32, or by ``shape`` and ``tensors``, in elements;
    ``kept_beside``: what its backward pass reads of a sample beside its output, in bytes where numbers are fp32.
    """

    name: Name
    kind: Name = "operator"
    inputs: list[Name] = []
    forward: Seconds | None = None
    backward: Seconds | None = None
    multiply_adds: Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False, strict=True)] = 0
    parameters: Bytes = 0.0
    output: Bytes = 0.0
    shape: Annotated[list[Count], Field(min_length=1, max_length=8)] | None = None
    tensors: list[TensorSpec] = []
    window: WindowSpec | None = None
    in_place: bool = False
    operators: list[OperatorSpec] = []
    kept_beside: Bytes = 0.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.shape is not None and self.output:
            raise ValueError("shape and output both say how large the output is. Keep one of them.")
        if self.tensors and self.parameters:
            raise ValueError("tensors and parameters both say what is trained. Keep one of them.")
        return self

    def build(self) -> Layer:
        """Return the layer of one sample."""
        num_parameters = round(self.parameters / ELEMENT_BYTES)
        whole = (Tensor(name=f"{self.name}.parameters", num_elements=num_parameters),) if num_parameters else ()
        given = tuple(Tensor(name=one.name, num_elements=one.elements, role=one.role) for one in self.tensors)
        return Layer(
            name=self.name,
            kind=self.kind,
            output_shape=(round(self.output / ELEMENT_BYTES),) if self.shape is None else tuple(self.shape),
            num_multiply_adds=int(self.multiply_adds),
            tensors=given or whole,
            is_in_place=self.in_place,
            kept_beside_bytes=round(self.kept_beside),
            window=None if self.window is None else Window(**self.window.model_dump()),
            operators=tuple(one.build() for one in self.operators),
        )


class RepeatSpec(Model):
    """Consecutive layers that are copies of one block."""

    first: Annotated[int, Field(ge=0, strict=True)]
    layers: Count
    count: Count
    kind: Name = "block"


class RunSpec(Model):
    """All layers on any path from the first to the last."""

    first: Name
    last: Name


def _run(value: object) -> object:
    """Read ``[fc6, ..., fc8]`` as the first and the last layer of a run."""
    if isinstance(value, list) and len(value) == 3 and value[1] == "...":
        return {"first": value[0], "last": value[2]}
    return value


RunOf = Annotated[
    Annotated[list[Name], Field(min_length=1), Tag("<list>")] | Annotated[RunSpec, Tag("<mapping>")],
    Discriminator(tag),
    BeforeValidator(_run),
]


class BlockSpec(Model):
    """Layers that come in. Those that read no layer of the block read what the replaced ones read."""

    layers: Annotated[list[LayerSpec], Field(min_length=1, max_length=MOST_LAYERS)]
    source: Text = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [layer.name for layer in self.layers]
        for layer in self.layers:
            if unknown := [name for name in layer.inputs if name not in names]:
                raise ValueError(
                    f"layer {layer.name!r} reads {unknown[0]!r}, which is not in the block. Leave out its inputs where "
                    f"it reads what the replaced layers read."
                )
            if layer.kind == "input":
                raise ValueError(f"layer {layer.name!r} is an input. Leave it out; the network has its own.")
        return self


class SubstitutionSpec(Model):
    """A run of layers, and the block that may take its place: a shipped one by name, or layers."""

    name: Name
    layers: RunOf
    by: Annotated[
        Annotated[Name, known(data.find_block), Tag("<name>")] | Annotated[BlockSpec, Tag("<mapping>")],
        Discriminator(tag),
    ]


# --- What a spec may say about machines: devices, links, storage, and how a cluster is put together of them

MOST_DEVICES = 2**20
MOST_NODES = 20_000  # written one by one; equal machines are one group


class DeviceSpec(Model):
    """A device that the table does not hold."""

    name: Name
    kind: Name = "gpu"
    fp32: FlopRate | None = None
    tf32: FlopRate | None = None
    fp16: FlopRate | None = None
    bf16: FlopRate | None = None
    fp8: FlopRate | None = None
    fp4: FlopRate | None = None
    memory: Bytes | None = None
    memory_bandwidth: Rate | None = None
    num_multiprocessors: Count | None = None
    power: Watts | None = None
    # alter nothing: specs and plan files written earlier say them
    l2_cache: PositiveBytes | None = None
    clock: Hertz | None = None
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
    Annotated[Name, known(data.inside_link), Tag("<name>")] | Annotated[LinkSpec, Tag("<mapping>")], Discriminator(tag)
]
# The rate of each of a machine's network cards; ``8 x 400 Gbit/s`` says how many there are, too.
CardRate = Annotated[
    Rate,
    WithJsonSchema({"type": "string", "description": "of each network card, e.g. '400 Gbit/s' or '8 x 400 Gbit/s'"}),
]
_CARDS = re.compile(r"\s*(\d{1,12})\s*x\s*(.*)", re.DOTALL)


class MachineSpec(Model):
    """A group of equal machines: of a device, or as they are sold (``machine: dgx-h100``).

    What is left out is that of the machine, or of the device's reference machine.
    """

    name: Name | None = None
    count: Count = 1
    machine: Annotated[Name, known(data.machine)] | None = None
    device: DeviceOf | None = None
    devices: Count | None = None
    devices_per_host: Count | None = None
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
        if self.devices_per_host is not None and self.num_devices % self.devices_per_host:
            raise ValueError(
                f"{self.num_devices} devices are no whole number of hosts with devices_per_host "
                f"{self.devices_per_host}. Write a number that divides {self.num_devices}."
            )
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
    reduces: bool = False

    @model_validator(mode="after")
    def _check_node(self) -> Self:
        given = [key for key in sorted(self.model_fields_set) if getattr(self, key) is not None]
        if self.type == "switch" and (
            beyond := [key for key in given if key not in {"name", "type", "source", "reduces"}]
        ):
            raise ValueError(f"a switch has no {', '.join(beyond)}. Remove it, or write type: machine.")
        if self.type == "machine" and self.reduces:
            raise ValueError(
                "reduces belongs to a switch, which adds up what passes. Remove it, or write type: switch."
            )
        if beyond := [key for key in ("network", "latency") if key in given]:
            mend = "Write bandwidth and latency of its links under links."
            raise ValueError(f"a drawn machine has no {' and '.join(beyond)} of its own. {mend}")
        return self


def _few(value: int) -> int:
    """Return a number of cables, if it is one."""
    if value > MOST_NODES:
        raise ValueError(f"{value} cables are more than {MOST_NODES} side by side. Is the count right?")
    return value


class CableSpec(LinkSpec):
    """A link between two nodes, or ``count`` equal ones side by side.

    At a machine group: of each machine, by so many of its network cards; where no link of the group says how many, the
    cards are dealt over them evenly. ``directed``: from the first end to the second only.
    """

    ends: Annotated[list[Name], Field(min_length=2, max_length=2)]
    count: Annotated[Count, AfterValidator(_few)] | None = None
    directed: bool = False


_Kind = Literal["fat-tree", "rail-optimised", "torus", "dragonfly", "nvlink-domain"]
# What may be said of each kind, beside kind, bandwidth and latency; what must be said comes first.
_TOPOLOGY_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "fat-tree": ((), ("leaf", "spines", "oversubscription", "pod", "pod_oversubscription")),
    "rail-optimised": ((), ("leaf", "spines", "oversubscription")),
    "torus": (("dimensions",), ("leaf",)),
    "dragonfly": (("leaf", "routers"), ("cables",)),
    "nvlink-domain": (("size",), ()),
}


class TopologySpec(Model):
    """A network by name round the machines that are listed.

    ``reduces``: its switches add up what passes. ``bandwidth`` and ``latency`` are those of a cable between switches,
    by default as of a network card; of an NVLink domain of all links of a machine together.
    """

    kind: _Kind
    leaf: Count | None = None
    spines: Count | None = None
    oversubscription: Annotated[Positive, Field(ge=1)] = 1.0
    pod: Count | None = None
    pod_oversubscription: Annotated[Positive, Field(ge=1)] = 1.0
    dimensions: Annotated[list[Count], Field(min_length=1, max_length=6)] = [1]
    routers: Count = 1
    cables: Annotated[Count, AfterValidator(_few)] = 1
    size: Count = 1
    reduces: bool = False
    bandwidth: Rate | None = None
    latency: Seconds | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        needed, others = _TOPOLOGY_KEYS[self.kind]
        known = {*needed, *others, "kind", "bandwidth", "latency", "reduces"}
        given = {key for key in self.model_fields_set if getattr(self, key) is not None}
        if missing := [key for key in needed if key not in given]:
            raise ValueError(
                f"kind {self.kind} needs {' and '.join(missing)}. Add e.g. {_TOPOLOGY_EXAMPLES[self.kind]}."
            )
        if beyond := sorted(given - known):
            raise ValueError(f"kind {self.kind} has no {', '.join(beyond)}. Known: {', '.join(sorted(known))}.")
        if "pod_oversubscription" in given and "pod" not in given:
            raise ValueError("pod_oversubscription belongs to pods. Add e.g. pod: 4, or leave it out.")
        return self


_TOPOLOGY_EXAMPLES = {"torus": "dimensions: [4, 4, 4]", "dragonfly": "leaf: 4, routers: 8", "nvlink-domain": "size: 18"}


def _topology(given: object) -> object:
    """Read ``topology: fat-tree`` as ``topology: {kind: fat-tree}``."""
    return {"kind": given} if isinstance(given, str) else given


class ClusterSpec(Model):
    """The machines: groups on one switch or in a network by name, or any graph of nodes and links, or a testbed."""

    name: Name | None = None
    preset: Annotated[Name, known(data.preset)] | None = None
    machines: Annotated[list[MachineSpec], Field(min_length=1, max_length=MOST_NODES)] | None = None
    topology: Annotated[TopologySpec, BeforeValidator(_topology)] | None = None
    nodes: Annotated[list[NodeSpec], Field(min_length=1, max_length=MOST_NODES)] | None = None
    links: Annotated[list[CableSpec], Field(max_length=10 * MOST_NODES)] | None = None
    source: Text = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        exactly_one(self, ("preset", "machines", "nodes"))
        if self.links is not None and self.nodes is None:
            raise ValueError("links belong to nodes; a machine group has its own network.")
        if self.topology is not None and self.machines is None:
            raise ValueError("topology belongs to machines; draw nodes and links, or list the machines.")
        return self


# --- What a spec may say about a transformer, ``dnn.transformer``; what is left out has the defaults of its fields


def _at_most(most: int) -> AfterValidator:
    """Return what refuses numbers beyond all reason."""

    def check(value: int) -> int:
        if value > most:
            raise ValueError(f"{value} is too large. Write a whole number of at most {most}.")
        return value

    return AfterValidator(check)


def _schema(least: int, most: int) -> WithJsonSchema:
    return WithJsonSchema({"type": "integer", "minimum": least, "maximum": most})


def _number(value: object) -> int:
    """Return a whole number of 0 or more."""
    return 0 if value == 0 and not isinstance(value, bool) else whole(value)


Layers = Annotated[Count, _at_most(MOST_TRANSFORMER_LAYERS), _schema(1, MOST_TRANSFORMER_LAYERS)]
Heads = Annotated[Count, _at_most(MOST_HEADS), _schema(1, MOST_HEADS)]
NumExperts = Annotated[Count, _at_most(MOST_EXPERTS), _schema(1, MOST_EXPERTS)]
Width = Annotated[Count, _at_most(MOST_WIDTH), _schema(1, MOST_WIDTH)]
Inner = Annotated[Count, _at_most(MOST_INNER), _schema(1, MOST_INNER)]
Tokens = Annotated[Count, _at_most(MOST_TOKENS), _schema(1, MOST_TOKENS)]
Words = Annotated[Count, _at_most(MOST_WORDS), _schema(1, MOST_WORDS)]
Pixels = Annotated[Count, _at_most(MOST_PIXELS), _schema(1, MOST_PIXELS)]
SomeLayers = Annotated[
    int, BeforeValidator(_number), _at_most(MOST_TRANSFORMER_LAYERS), _schema(0, MOST_TRANSFORMER_LAYERS)
]
SomeExperts = Annotated[int, BeforeValidator(_number), _at_most(MOST_EXPERTS), _schema(0, MOST_EXPERTS)]
SomeTypes = Annotated[int, BeforeValidator(_number), _at_most(MOST_WORDS), _schema(0, MOST_WORDS)]


class ExpertsSpec(Model):
    """A mixture of experts."""

    count: NumExperts
    top_k: NumExperts
    size: Width
    shared: SomeExperts = 0
    shared_size: Width | None = None
    every: Layers = 1
    dense_first: SomeLayers = 0
    router_bias: bool = False
    shared_gate: bool = False
    groups: NumExperts = 1
    top_groups: NumExperts = 1
    latent: Width | None = None
    routing: RoutingSpec | None = None


class LatentAttentionSpec(Model):
    """Multi-head latent attention."""

    query_rank: Width | None = None
    key_value_rank: Width
    rope_size: Width
    nope_size: Width
    value_size: Width


class SparseAttentionSpec(Model):
    """Attention to chosen tokens."""

    heads: Heads
    head_size: Width
    top_k: Tokens


Channels = Annotated[Count, _at_most(MOST_CHANNELS), _schema(1, MOST_CHANNELS)]
Frames = Annotated[Count, _at_most(MOST_FRAMES), _schema(1, MOST_FRAMES)]


class ImageSpec(Model):
    """Images in patches."""

    size: Pixels
    patch: Pixels
    channels: Channels = 3
    classes: Words = 1000
    class_token: bool = True
    height: Pixels | None = None
    frames: Frames = 1
    patch_bias: bool = True


class EncoderImageSpec(Model):
    """Images that an encoder reads."""

    size: Pixels | None = None
    height: Pixels | None = None
    patch: Pixels | None = None
    channels: Channels | None = None
    class_token: bool | None = None
    frames: Frames | None = None
    patch_bias: bool | None = None


class ProjectorSpec(Model):
    """What makes tokens of an encoder's."""

    hidden: Inner | None = None
    merge: Annotated[Count, _at_most(MOST_MERGED), _schema(1, MOST_MERGED)] | None = None
    pooled: bool | None = None
    norm: Literal["none", "layer_norm", "rms_norm"] | None = None
    norm_first: bool | None = None
    biases: bool | None = None


class EncoderSpec(Model):
    """An encoder of images in front of a language model; of one that has an encoder, what it has otherwise."""

    images: Annotated[Count, _at_most(MOST_IMAGES), _schema(1, MOST_IMAGES)] | None = None
    image: EncoderImageSpec | None = None
    layers: Layers | None = None
    hidden: Width | None = None
    heads: Heads | None = None
    kv_heads: Heads | None = None
    head_size: Width | None = None
    feed_forward: Inner | None = None
    gated: bool | None = None
    positions: Literal["learned", "rotary", "none"] | None = None
    norm: Literal["layer_norm", "rms_norm"] | None = None
    biases: bool | None = None
    norm_biases: bool | None = None
    qkv_biases: bool | None = None
    output_bias: bool | None = None
    query_key_norms: bool | None = None
    final_norm: bool | None = None
    embedding_norm: bool | None = None
    mixers: (
        Annotated[list[Literal["attention", "window"]], Field(min_length=1, max_length=MOST_TRANSFORMER_LAYERS)] | None
    ) = None
    window: Pixels | None = None
    projector: ProjectorSpec | None = None


class MambaSpec(Model):
    """Mamba-2."""

    heads: Heads
    head_size: Width
    state: Count
    groups: Heads = 1
    conv: Count = 4
    chunk: Count = 128
    conv_bias: bool = True


class LinearAttentionSpec(Model):
    """Linear attention with a decay."""

    heads: Heads
    head_size: Width
    chunk: Count = 256
    gate: bool = True


class DeltaNetSpec(Model):
    """A gated delta network."""

    key_heads: Heads
    value_heads: Heads
    key_size: Width
    value_size: Width
    conv: Count = 4
    chunk: Count = 64


class TransformerSpec(Model):
    """A transformer by its sizes."""

    layers: Layers
    hidden: Width
    heads: Heads
    kv_heads: Heads | None = None
    head_size: Width | None = None
    feed_forward: Inner | None = None
    gated: bool | None = None
    vocabulary: Words | None = None
    sequence_length: Tokens | None = None
    tied_embeddings: bool | None = None
    causal: bool | None = None
    positions: Literal["learned", "rotary", "alibi", "none"] | None = None
    num_positions: Tokens | None = None
    norm: Literal["layer_norm", "rms_norm"] | None = None
    norm_position: Literal["before", "after", "both", "output", "shared", "parallel"] | None = None
    biases: bool | None = None
    norm_scales: bool | None = None
    norm_biases: bool | None = None
    qkv_biases: bool | None = None
    output_bias: bool | None = None
    query_key_norms: bool | None = None
    query_key_norm_span: Literal["head", "all_heads"] | None = None
    final_norm: bool | None = None
    embedding_norm: bool | None = None
    token_types: SomeTypes | None = None
    head: Literal["language", "masked_language", "classes", "patches", "none"] | None = None
    head_bias: bool | None = None
    pooler: bool | None = None
    experts: ExpertsSpec | None = None
    latent_attention: LatentAttentionSpec | None = None
    sparse_attention: SparseAttentionSpec | None = None
    image: ImageSpec | None = None
    rotary: RotarySpec | None = None
    numerics: NumericsSpec | None = None
    mixers: (
        Annotated[
            list[Literal["attention", "window", "mamba", "linear", "delta"]],
            Field(min_length=1, max_length=MOST_TRANSFORMER_LAYERS),
        ]
        | None
    ) = None
    pattern: Annotated[str, Field(min_length=1, max_length=MOST_TRANSFORMER_LAYERS)] | None = None
    window: Tokens | None = None
    chunked_windows: bool | None = None
    sinks: bool | None = None
    attention_gate: bool | None = None
    modulation: bool | None = None
    mamba: MambaSpec | None = None
    linear: LinearAttentionSpec | None = None
    delta: DeltaNetSpec | None = None
    mtp_layers: SomeLayers | None = None
    encoder: EncoderSpec | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        text = {"vocabulary": self.vocabulary, "sequence_length": self.sequence_length}
        for key, value in text.items():
            if self.image is None and value is None:
                raise ValueError(f"{key} is missing. Add it; only a network that reads images has none.")
            if self.image is not None and value is not None:
                raise ValueError(f"{key} belongs to a network that reads text. Leave it out where there is an image.")
        self.build()
        return self

    def build(self) -> Transformer:
        """Return the transformer; raise ValueError where the sizes do not go together."""
        return transformer_of(self.model_dump(exclude_none=True))


# --- The block ``calibration`` of a spec: shares of the peak, measured curves, the laws of links, known errors

MOST_POINTS = 10_000  # of a measured curve


class CurveSpec(Model):
    """A measured all-reduce: a CSV file with the columns size_bytes,seconds, or the points themselves."""

    num_devices: Count
    file: File | None = None
    points: Annotated[list[tuple[Bytes, Seconds]], Field(min_length=2, max_length=MOST_POINTS)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        exactly_one(self, ("file", "points"))
        return self


class PiecewiseSpec(Model):
    """Equation 18, fitted for one number of devices.

    ``log_slope log2 D + log_offset`` below the threshold, ``D / bandwidth + offset`` from there on.
    """

    num_devices: Count
    log_slope: Seconds
    log_offset: SignedSeconds
    bandwidth: Rate
    offset: SignedSeconds = 0.0
    threshold: Bytes


class QueueSpec(Model):
    """A switch that queues packets (M/M/1): the rate that it forwards, the packet, and the hops over it."""

    switch: Rate
    packet: PositiveBytes = 1500.0
    hops: Count = 1

    def build(self) -> Queue:
        """Return the queue."""
        return Queue(switch_bytes_per_s=self.switch, packet_bytes=self.packet, num_hops=self.hops)


class KnownErrorSpec(Model):
    """How far a fit was off what it did not see: mean and largest of absolute predicted / measured - 1."""

    of: Name
    mean: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    worst: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    source: Text = ""


class CalibrationSpec(Model):
    """Fitted parameters of devices, links and framework."""

    utilisation: Positive | None = None
    utilisation_by_kind: dict[Name, Positive] = {}
    flop_per_multiply_add: Literal[1, 2] = 2
    update: Seconds | None = None
    bandwidth_efficiency: Positive | None = None
    inside_efficiency: Positive | None = None
    transport: Literal["tcp", "rdma"] | None = None
    overhead: Seconds = 0.0
    negotiate: Seconds = 0.0
    aggregation: bool = True
    algorithms: Annotated[list[AlgorithmOf], Field(min_length=1)] = [*USUAL_ALGORITHMS]
    curves: list[CurveSpec] = []
    piecewise: list[PiecewiseSpec] = []
    wait: Literal["none", "exact", "paper"] = "none"
    timeout: Seconds | None = None
    fusion_unit: Literal["layer", "tensor"] = "layer"
    split_tensors: bool = False
    max_overlap: Literal["push_pull", "push_pull_forward"] | None = None
    strategy: Literal["naive", "cntk", "mxnet", "caffe_mpi"] = "caffe_mpi"
    prefetch: Literal["pipelined", "single"] = "pipelined"
    memory_reserve: Bytes = 0.0
    program: Name = "megatron-core"
    gradients: Literal["fp32", "bf16"] | None = None
    cuda_graphs: bool | None = None
    execution: Literal["eager", "compiled"] | None = None
    memory_format: Literal["contiguous", "channels_last"] | None = None
    pessimistic: bool = False
    expert_imbalance: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    straggler_deviation: Seconds = 0.0
    queue: QueueSpec | None = None
    cores: Count = 1
    activation: Seconds = 0.0
    error: Seconds = 0.0
    multiply_add: list[tuple[Bytes, Seconds]] = []
    interference: list[tuple[Count, Positive]] = []
    known_error: list[KnownErrorSpec] = []
    source: Text = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.execution is not None and (self.utilisation is not None or self.utilisation_by_kind):
            raise ValueError("execution and utilisation both say how long layers take. Keep one of them.")
        if self.execution is not None and self.flop_per_multiply_add != 2:
            raise ValueError("flop_per_multiply_add is of a utilisation. Leave it out beside execution.")
        if self.memory_format is not None and (self.utilisation is not None or self.utilisation_by_kind):
            raise ValueError("memory_format alters nothing where a utilisation is given. Keep one of them.")
        return self
