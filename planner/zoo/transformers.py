"""Transformers: a table of published ones, and the graph of layers of any.

The table is ``transformers.yaml``. Its rows are written as the block ``dnn.transformer`` of a spec, so that one can be
copied there and changed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from planner import numerics
from planner.dnn import Dnn, Layer, Repeat
from planner.encoders import Projector
from planner.frozen import frozen
from planner.mixers import DeltaNet, LinearAttention, Mamba, Scan
from planner.numerics import PLAIN, Rotary, part_of, routing_of
from planner.shipped import shipped_text
from planner.transformer import KINDS, Transformer
from planner.transformer_parts import Experts, Image, LatentAttention, SparseAttention
from planner.yaml_text import blocks_of, plain_yaml

if TYPE_CHECKING:
    from planner.models.operators import TransformerOperator

# Key of a spec and of the table -> field.
_FIELDS = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "heads": "num_heads",
    "kv_heads": "num_kv_heads",
    "head_size": "head_size",
    "feed_forward": "feed_forward_size",
    "gated": "is_gated",
    "vocabulary": "vocabulary_size",
    "sequence_length": "sequence_length",
    "tied_embeddings": "has_tied_embeddings",
    "causal": "is_causal",
    "positions": "positions",
    "num_positions": "num_positions",
    "norm": "norm",
    "norm_position": "norm_position",
    "biases": "has_biases",
    "norm_scales": "has_norm_scales",
    "norm_biases": "has_norm_biases",
    "qkv_biases": "has_qkv_biases",
    "output_bias": "has_output_bias",
    "query_key_norms": "has_query_key_norms",
    "query_key_norm_span": "query_key_norm_span",
    "final_norm": "has_final_norm",
    "embedding_norm": "has_embedding_norm",
    "token_types": "num_token_types",
    "head": "head",
    "head_bias": "has_head_bias",
    "pooler": "has_pooler",
}
_EXPERT_FIELDS = {
    "count": "num_experts",
    "top_k": "top_k",
    "size": "expert_size",
    "shared": "num_shared",
    "shared_size": "shared_size",
    "every": "every",
    "dense_first": "num_dense_first",
    "router_bias": "has_router_bias",
    "shared_gate": "has_shared_gate",
    "groups": "groups",
    "top_groups": "top_groups",
}
# The same of fields that a block has only off their defaults: most networks have layers of one or two kinds.
_FIELDS_OF_FEW = {
    "mixers": "mixers",
    "pattern": "pattern",
    "window": "window",
    "chunked_windows": "has_chunked_windows",
    "sinks": "has_sinks",
    "attention_gate": "has_attention_gate",
    "modulation": "has_modulation",
}
# Mixers with sizes of their own: their class, and its fields by key.
_SCANS: Mapping[str, tuple[type[Scan], Mapping[str, str]]] = {
    "mamba": (
        Mamba,
        {
            "heads": "num_heads",
            "head_size": "head_size",
            "state": "state_size",
            "groups": "num_groups",
            "conv": "conv_kernel",
            "chunk": "chunk_size",
            "conv_bias": "has_conv_bias",
        },
    ),
    "linear": (
        LinearAttention,
        {"heads": "num_heads", "head_size": "head_size", "chunk": "chunk_size", "gate": "has_gate"},
    ),
    "delta": (
        DeltaNet,
        {
            "key_heads": "num_key_heads",
            "value_heads": "num_value_heads",
            "key_size": "key_size",
            "value_size": "value_size",
            "conv": "conv_kernel",
            "chunk": "chunk_size",
        },
    ),
}
_IMAGE_FIELDS = {
    "size": "image_size",
    "patch": "patch_size",
    "channels": "num_channels",
    "classes": "num_classes",
    "class_token": "has_class_token",
}
# The same of few images: those of encoders that read videos, and that are no squares.
_FEW_IMAGE_FIELDS = {"height": "image_height", "frames": "frames_per_patch", "patch_bias": "has_patch_bias"}
# The block of an encoder has these keys of a transformer's, and ``image``, ``projector`` and ``images``.
_ENCODER_KEYS = (
    *("layers", "hidden", "heads", "kv_heads", "head_size", "feed_forward", "gated", "positions", "norm", "biases"),
    *("norm_biases", "qkv_biases", "output_bias", "query_key_norms", "final_norm", "embedding_norm", "mixers"),
)
_OF_ENCODERS: Mapping[str, Any] = {"is_causal": False, "head": "projector", "has_tied_embeddings": False}
_PROJECTOR_FIELDS = {
    "hidden": "hidden_size",
    "merge": "merge",
    "pooled": "is_pooled",
    "norm": "norm",
    "norm_first": "is_norm_first",
    "biases": "has_biases",
}


_USUAL_MIXERS = ((), ("attention",))


@frozen
class Row:
    """A published transformer."""

    name: str
    transformer: Transformer
    published: str  # the number of parameters that the source names: exact, or rounded as printed, e.g. ``174.6B``
    source: str  # where the shape stands, and where the number of parameters
    dataset_samples: int | None = None


@cache
def _texts() -> dict[str, str]:
    """Return the text of every row by its name; only a row that is asked for is parsed, which takes its time."""
    return blocks_of(shipped_text("planner.zoo", "transformers.yaml"))


@cache
def _row(name: str) -> dict[str, Any]:
    found: dict[str, Any] = plain_yaml(_texts()[name])[name]
    return found


def row_names() -> tuple[str, ...]:
    """Return the names of the transformers of the table, in its order."""
    return tuple(_texts())


def aliases() -> dict[str, str]:
    """Return other names of rows, such as a checkpoint's own, each with the row's name."""
    lists = ((name, re.search(r"^  aliases: \[(.*)\]$", text, re.MULTILINE)) for name, text in _texts().items())
    return {alias: name for name, found in lists if found is not None for alias in found[1].split(", ")}


def row(name: str) -> Row:
    """Return the row of a name of :func:`row_names`.

    >>> row("gpt3-175b").transformer.num_layers
    96
    """
    found = _row(name)
    return Row(
        name=name,
        transformer=transformer_of(found["transformer"]),
        published=str(found["parameters"]),
        source=found["source"],
        dataset_samples=found.get("dataset_samples"),
    )


def transformer_of(block: Mapping[str, Any]) -> Transformer:
    """Return the transformer that a block of a spec, or of the table, describes; its keys are known to be right.

    Raises
    ------
    ValueError
        If the sizes do not go together; the message says which, and how to mend it.

    >>> sizes = {"layers": 2, "hidden": 8, "heads": 2, "vocabulary": 10, "sequence_length": 4}
    >>> transformer_of(sizes).feed_forward_size
    32
    """
    plain = {field: block[key] for key, field in {**_FIELDS, **_FIELDS_OF_FEW}.items() if block.get(key) is not None}
    if block.get("mtp_layers"):  # they are blocks, too
        plain["num_mtp_layers"] = block["mtp_layers"]
        plain["num_layers"] += block["mtp_layers"]
    if "mixers" in plain:
        plain["mixers"] = tuple(plain["mixers"])
    experts, latent, image = (block.get(key) for key in ("experts", "latent_attention", "image"))
    if experts:
        usual = routing_of(has_router_bias=bool(experts.get("router_bias")))
        routing = part_of(usual, experts.get("routing") or {})
        plain["experts"] = Experts(**_named(experts, {**_EXPERT_FIELDS, "latent": "latent_size"}), routing=routing)
    for key, (made, fields) in _SCANS.items():
        if block.get(key):
            plain[key] = made(**_named(block[key], fields))
    if latent:
        plain["latent"] = LatentAttention(**{"query_rank": None, **latent})
    if block.get("sparse_attention"):
        plain["sparse"] = SparseAttention(**block["sparse_attention"])
    if block.get("encoder"):
        plain["encoder"], plain["num_images"] = _encoder_of(block["encoder"], plain["hidden_size"])
    if image:
        plain["image"] = Image(**_named(image, {**_IMAGE_FIELDS, **_FEW_IMAGE_FIELDS}))
        plain.update(vocabulary_size=0, sequence_length=plain["image"].num_tokens)
    if block.get("rotary"):
        plain["rotary"] = part_of(Rotary(), block["rotary"])
    if block.get("numerics"):
        plain["numerics"] = part_of(PLAIN, block["numerics"])
    return Transformer(**plain)


def _encoder_of(block: Mapping[str, Any], width: int) -> tuple[Transformer, int]:
    """Return the encoder that a block describes, in front of a network of a width, and images of a sample."""
    plain = {_FIELDS.get(key, key): block[key] for key in _ENCODER_KEYS if block.get(key) is not None}
    given = block.get("image") or {}
    for key, where, name in (("size", given, "image.size"), ("patch", given, "image.patch"), *_NEEDED):
        if (block if where is None else where).get(key) is None:
            raise ValueError(f"{name} of the encoder is missing. Add it; a size is not guessed.")
    image = Image(**_named(given, {**_IMAGE_FIELDS, **_FEW_IMAGE_FIELDS}))
    if (window := block.get("window")) is not None:
        if window % image.patch_size:
            raise ValueError(
                f"a window of {window} pixels has no whole number of patches of {image.patch_size}. "
                f"Write a multiple of {image.patch_size}."
            )
        tokens = (window // image.patch_size) ** 2
        plain |= {"window": min(tokens, image.num_tokens), "has_chunked_windows": True}
    if "mixers" in plain:
        plain["mixers"] = tuple(plain["mixers"])
    projector = Projector(output_size=width, **_named(block.get("projector") or {}, _PROJECTOR_FIELDS))
    sizes = {"vocabulary_size": 0, "sequence_length": image.num_tokens, "image": image, "projector": projector}
    return Transformer(**{**plain, **_OF_ENCODERS, **sizes}), block.get("images") or 1


_FOLLOW = {"heads": ("kv_heads", "head_size"), "hidden": ("head_size", "feed_forward")}
_NEEDED = tuple((key, None, key) for key in ("layers", "hidden", "heads"))


def _encoder_block(encoder: Transformer, num_images: int) -> dict[str, Any]:
    image, projector = encoder.image, encoder.projector
    assert image is not None, "an encoder reads images"
    assert projector is not None, "an encoder has a projector"
    block = {key: getattr(encoder, _FIELDS.get(key, key)) for key in _ENCODER_KEYS}
    block["mixers"] = [*encoder.mixers]
    if encoder.window is not None:
        block["window"] = round(encoder.window**0.5) * image.patch_size
    fields = {**_IMAGE_FIELDS, **_FEW_IMAGE_FIELDS}
    block["image"] = {key: getattr(image, field) for key, field in fields.items() if key != "classes"}
    block["projector"] = {key: getattr(projector, field) for key, field in _PROJECTOR_FIELDS.items()}
    if projector.hidden_size is None:
        del block["projector"]["hidden"]
    return {**block, "images": num_images}


def with_encoder(transformer: Transformer, block: Mapping[str, Any]) -> Transformer:
    """Return the transformer with an encoder: that of a block, or its own with what the block says otherwise.

    Raises
    ------
    ValueError
        If it cannot have such a one.
    """
    own = {} if transformer.encoder is None else _encoder_block(transformer.encoder, transformer.num_images)
    parts = {key: {**own.get(key, {}), **(block.get(key) or {})} for key in ("image", "projector")}
    if "size" in (block.get("image") or {}) and "height" not in block["image"]:
        parts["image"].pop("height", None)
    for key, followers in _FOLLOW.items():  # sizes that follow from it, unless they are given again
        if key in block:
            own = {name: value for name, value in own.items() if name not in followers}
    encoder, number = _encoder_of({**own, **block, **parts}, transformer.hidden_size)
    return replace(transformer, encoder=encoder, num_images=number)


def block_of(transformer: Transformer) -> dict[str, object]:
    """Return the block that describes a transformer: :func:`transformer_of` the other way round.

    >>> sizes = {"layers": 2, "hidden": 8, "heads": 2, "vocabulary": 10, "sequence_length": 4}
    >>> transformer_of(block_of(transformer_of(sizes))) == transformer_of(sizes)
    True
    """
    is_image = transformer.image is not None
    left_out = {"vocabulary", "sequence_length"} if is_image else set()
    if transformer.latent is not None:  # which says these itself
        left_out |= {"kv_heads", "head_size"}
    block: dict[str, Any] = {key: getattr(transformer, field) for key, field in _FIELDS.items() if key not in left_out}
    block |= _kinds_block(transformer)
    for key, part, fields in (
        ("experts", transformer.experts, _EXPERT_FIELDS),
        ("image", transformer.image, _IMAGE_FIELDS),
    ):
        if part is not None:
            block[key] = {short: getattr(part, field) for short, field in fields.items()}
    if transformer.image is not None:
        usual_image = Image(image_size=transformer.image.image_size, patch_size=transformer.image.patch_size)
        block["image"] |= {
            key: value
            for key, field in _FEW_IMAGE_FIELDS.items()
            if (value := getattr(transformer.image, field)) != getattr(usual_image, field)
        }
    if transformer.encoder is not None:
        block["encoder"] = _encoder_block(transformer.encoder, transformer.num_images)
    if transformer.latent is not None:
        block["latent_attention"] = {
            key: value for key, value in asdict(transformer.latent).items() if value is not None
        }
    if transformer.sparse is not None:
        block["sparse_attention"] = asdict(transformer.sparse)
    experts = transformer.experts
    if experts is not None:
        usual = routing_of(has_router_bias=experts.has_router_bias)
        block["experts"] |= {"latent": experts.latent_size} if experts.latent_size is not None else {}
        if routing := numerics.block_of(experts.routing, usual):
            block["experts"]["routing"] = routing
    if transformer.rotary is not None and (rotary := numerics.block_of(transformer.rotary)):
        block["rotary"] = rotary
    if figures := numerics.block_of(transformer.numerics):
        block["numerics"] = figures
    return block


def _kinds_block(transformer: Transformer) -> dict[str, Any]:
    """Return what a block says of layers of few networks: mixers, windows, depths of multi-token prediction."""
    block: dict[str, Any] = {}
    for key, field in _FIELDS_OF_FEW.items():
        if (value := getattr(transformer, field)) not in (*_USUAL_MIXERS, None, False):
            block[key] = [*value] if isinstance(value, tuple) else value
    if transformer.num_mtp_layers:
        block |= {"layers": transformer.num_main_layers, "mtp_layers": transformer.num_mtp_layers}
    for key, (_, fields) in _SCANS.items():
        if (scan := getattr(transformer, key)) is not None:
            block[key] = {short: getattr(scan, field) for short, field in fields.items()}
    return block


def _named(block: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """Return a block's values by the names of the fields; what is None is left to its default."""
    return {field: block[key] for key, field in fields.items() if block.get(key) is not None}


def with_sequence_length(transformer: Transformer, sequence_length: int) -> Transformer:
    """Return the transformer with samples of another length; a table of learned positions grows where it is too short.

    Raises
    ------
    ValueError
        For a network that reads images, or a length beyond all reason.
    """
    if transformer.image is not None:
        raise ValueError("the length of an image's sequence follows from its patches. Leave out sequence_length.")
    positions = max(transformer.num_positions, sequence_length)
    window = transformer.window and min(transformer.window, sequence_length)  # a longer one leaves nothing out, either
    return replace(transformer, sequence_length=sequence_length, num_positions=positions, window=window)


def with_mtp_layers(transformer: Transformer, number: int) -> Transformer:
    """Return the transformer with so many depths of multi-token prediction, whatever it had.

    Raises
    ------
    ValueError
        For a network that predicts no tokens.
    """
    layers = transformer.num_main_layers + number
    return replace(transformer, num_layers=layers, num_mtp_layers=number)


# -- the graph -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)  # a purchase asks for the network of every fleet; it cannot be changed, so one will do
def dnn_of(transformer: Transformer, name: str, *, source: str = "", dataset_samples: int | None = None) -> Dnn:
    """Return the network whose layers are the operators of every block: ``block12.attention.qkv``, counted from 0.

    The scores of attention are in place, as a fused kernel (flash attention) has it: nothing of them is kept.
    """
    # Late, as in `_layers_of`: listing the zoo needs no numpy.
    from planner.models.operators import block_operators, embedding_operators, head_operators  # noqa: PLC0415

    layers = [] if transformer.encoder is None else _encoder_layers(transformer.encoder, transformer.num_images)
    seen = layers[-1][0].name if layers else ""
    layers += _layers_of(embedding_operators(transformer), "embedding", "")
    entry = layers[-1][0].name
    if seen:  # images' tokens
        layers[-1] = (layers[-1][0], (*layers[-1][1], seen))
    kinds, repeats = transformer.layer_kinds, []
    blocks = {kind: block_operators(transformer, kind) for kind in dict.fromkeys(kinds)}
    index = 0
    for kind, run in groupby(kinds):
        count = len(list(run))
        repeats.append(Repeat(first=len(layers), num_layers=len(blocks[kind]), count=count, kind=kind))
        for _ in range(count):
            layers += _layers_of(blocks[kind], f"block{index}", entry)
            index += 1
            if not KINDS[kind].is_prediction:  # whose loss nobody reads
                entry = layers[-1][0].name
    layers += _layers_of(head_operators(transformer), "head", entry)
    return Dnn(name, layers, source=source, dataset_samples=dataset_samples, transformer=transformer, repeats=repeats)


def _encoder_layers(encoder: Transformer, number: int) -> list[tuple[Layer, tuple[str, ...]]]:
    """Return the layers of an encoder, through which a sample sends a number of images."""
    from planner.models.operators import block_operators, embedding_operators, head_operators  # noqa: PLC0415

    found = _layers_of(embedding_operators(encoder), "encoder.embedding", "")
    for index, kind in enumerate(encoder.layer_kinds):
        found += _layers_of(block_operators(encoder, kind), f"encoder.block{index}", found[-1][0].name)
    found += _layers_of(head_operators(encoder), "encoder", found[-1][0].name)
    named = {layer.name: "images" for layer, _ in found if layer.kind == "input"}
    return [
        (
            replace(
                layer,
                name=named.get(layer.name, layer.name),
                output_shape=(*layer.output_shape[:-1], layer.output_shape[-1] * number),
                num_multiply_adds=layer.num_multiply_adds * number,
            ),
            tuple(named.get(name, name) for name in inputs),
        )
        for layer, inputs in found
    ]


def _layers_of(
    operators: Sequence["TransformerOperator"], prefix: str, entry: str
) -> list[tuple[Layer, tuple[str, ...]]]:
    """Return the operators of one part as layers, each with the layers that it reads; ``entry`` is what enters."""
    from planner.models.operators import INPUT  # noqa: PLC0415

    # The network's input is called so in every network.
    own = {one.name: one.name if one.kind == "input" else f"{prefix}.{one.name}" for one in operators}
    named = {INPUT: entry, **own}
    return [
        (
            Layer(
                name=own[one.name],
                kind=one.kind,
                output_shape=one.output_shape,
                num_multiply_adds=one.num_multiply_adds,
                tensors=tuple(replace(tensor, name=f"{own[one.name]}.{tensor.name}") for tensor in one.tensors),
                is_in_place=one.is_in_place,
            ),
            tuple(named[name] for name in one.inputs),
        )
        for one in operators
    ]
