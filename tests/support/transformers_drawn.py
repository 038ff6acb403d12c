"""Transformers that hypothesis draws: small, and of every make."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from planner.mixers import DeltaNet, LinearAttention, Mamba
from planner.transformer import KINDS, LETTERS, MIXERS, NormPosition, Transformer
from planner.transformer_parts import Experts, Image, LatentAttention, SparseAttention

_sizes = st.integers(1, 12)
_FLAGS = (
    *("is_gated", "has_tied_embeddings", "is_causal", "has_biases", "has_qkv_biases", "has_output_bias"),
    *("has_final_norm", "has_embedding_norm", "has_pooler"),
)


@st.composite
def experts(draw: st.DrawFn, num_layers: int) -> Experts:
    number = draw(st.integers(1, 6))
    shared: dict[str, Any] = draw(st.just({}) | st.builds(lambda size: {"shared_size": size}, _sizes))
    num_shared = draw(st.integers(0, 2))
    return Experts(
        num_experts=number,
        top_k=draw(st.integers(1, number)),
        expert_size=draw(_sizes),
        num_shared=num_shared,
        every=draw(st.integers(1, 3)),
        num_dense_first=draw(st.integers(0, num_layers - 1)),
        has_router_bias=draw(st.booleans()),
        has_shared_gate=num_shared > 0 and draw(st.booleans()),
        latent_size=draw(st.none() | _sizes),
        **shared,
    )


latent_attentions = st.builds(
    LatentAttention,
    query_rank=st.none() | _sizes,
    key_value_rank=_sizes,
    rope_size=_sizes,
    nope_size=_sizes,
    value_size=_sizes,
)


@st.composite
def heads(draw: st.DrawFn) -> dict[str, Any]:
    """The fields of attention, latent or not."""
    groups, per_group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    if draw(st.booleans()):
        return {"num_heads": groups * per_group, "latent": draw(latent_attentions)}
    norms = draw(st.booleans())
    return {
        "num_heads": groups * per_group,
        "num_kv_heads": groups,
        "head_size": draw(_sizes),
        "has_query_key_norms": norms,
        "query_key_norm_span": draw(st.sampled_from(["head", "all_heads"])),
    }


@st.composite
def readers(draw: st.DrawFn) -> dict[str, Any]:
    """The fields of what is read: text or images."""
    if draw(st.booleans()):
        head = draw(st.sampled_from(["language", "masked_language", "none"]))
        bias = draw(st.none() | st.booleans())
        length = draw(st.integers(1, 9))
        return {"vocabulary_size": draw(_sizes), "sequence_length": length, "head": head, "has_head_bias": bias}
    patch = draw(st.integers(1, 3))
    image = Image(
        image_size=patch * draw(st.integers(1, 3)), patch_size=patch, num_classes=3, has_class_token=draw(st.booleans())
    )
    head = draw(st.sampled_from(["classes", "none"]))
    return {"vocabulary_size": 0, "sequence_length": image.num_tokens, "image": image, "head": head}


_small, _chunks = st.integers(1, 3), st.sampled_from([1, 2, 64])


@st.composite
def grouped(draw: st.DrawFn, made: Any, many: str, few: str) -> Any:
    number = draw(_small)
    names = ("head_size", "state_size") if many == "num_heads" else ("key_size", "value_size")
    sizes = {name: draw(_sizes) for name in names}
    heads = {few: number, many: number * draw(_small)}
    return made(**heads, **sizes, conv_kernel=draw(_small), chunk_size=draw(_chunks))


mixers: dict[str, st.SearchStrategy[Any]] = {
    "window": st.just(1),
    "mamba": grouped(Mamba, "num_heads", "num_groups"),
    "delta": grouped(DeltaNet, "num_value_heads", "num_key_heads"),
    "linear": st.builds(
        LinearAttention, num_heads=_small, head_size=_sizes, chunk_size=_chunks, has_gate=st.booleans()
    ),
}


@st.composite
def layers(draw: st.DrawFn, num_layers: int, norm_position: str) -> dict[str, Any]:
    """The fields of what layers are made of: one part each, or mixers and feed-forward parts."""
    if norm_position in ("shared", "parallel") or draw(st.integers(0, 2)):
        found = {"experts": draw(st.none() | experts(num_layers)), "has_attention_gate": draw(st.booleans())}
        if draw(st.booleans()):
            return found
        used = draw(st.lists(st.sampled_from([*MIXERS]), min_size=1, max_size=num_layers))
        sizes: dict[str, Any] = {mixer: draw(mixers[mixer]) for mixer in MIXERS if mixer in used and mixer in mixers}
        attends = "attention" in used or "window" in used
        found |= {"has_attention_gate": attends and draw(st.booleans()), "has_sinks": attends and draw(st.booleans())}
        return {**found, "mixers": tuple(used), **sizes}
    pattern = "".join(draw(st.lists(st.sampled_from([*LETTERS]), min_size=num_layers, max_size=num_layers)))
    return {
        "pattern": pattern,
        "experts": draw(experts(num_layers)) if "E" in pattern else None,
        "mamba": draw(mixers["mamba"]) if "M" in pattern else None,
    }


@st.composite
def transformers(draw: st.DrawFn) -> Transformer:
    num_layers = draw(st.integers(1, 5))
    norm_position: NormPosition = draw(st.sampled_from(["before", "after", "both", "output", "shared", "parallel"]))
    makes: dict[str, Any] = {flag: draw(st.booleans()) for flag in _FLAGS}
    scales = draw(st.sampled_from([True, True, True, False]))
    read = draw(readers())
    predicting = draw(st.sampled_from([0, 0, 1, 2])) if read.get("head") == "language" else 0
    return Transformer(
        num_layers=num_layers + predicting,
        num_mtp_layers=predicting,
        hidden_size=draw(_sizes),
        feed_forward_size=draw(_sizes),
        positions=draw(st.sampled_from(["learned", "rotary", "alibi", "none"])),
        norm=draw(st.sampled_from(["layer_norm", "rms_norm"])),
        norm_position=norm_position,
        has_norm_scales=scales,
        has_norm_biases=scales and draw(st.booleans()),
        num_token_types=draw(st.integers(0, 2)),
        **draw(layers(num_layers, norm_position)),
        **draw(heads()),
        **read,
        **makes,
    )


@st.composite
def modulated(draw: st.DrawFn) -> Transformer:
    """A small transformer that diffuses images."""
    patch = draw(st.integers(1, 3))
    image = Image(image_size=patch * draw(_small), patch_size=patch, num_classes=3, has_class_token=False)
    return Transformer(
        num_layers=draw(_small),
        hidden_size=draw(_sizes),
        vocabulary_size=0,
        sequence_length=image.num_tokens,
        image=image,
        is_causal=False,
        has_norm_scales=draw(st.booleans()),
        is_gated=draw(st.booleans()),
        has_modulation=True,
        **draw(heads()),
    )


@st.composite
def indexed(draw: st.DrawFn) -> Transformer:
    """A small transformer of any make, with an indexer where a layer has full attention."""
    found = draw(transformers())
    if all(KINDS[kind].mixer != "attention" for kind in found.kind_counts):
        return found
    return replace(found, sparse=draw(st.builds(SparseAttention, heads=_small, head_size=_sizes, top_k=_sizes)))
