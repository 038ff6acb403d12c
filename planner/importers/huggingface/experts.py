"""Decoders with a mixture of experts, and with latent attention; a row an architecture.

Sources as in :mod:`planner.importers.huggingface.llama`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.importers.huggingface.draft import Draft, Reader
from planner.importers.huggingface.fields import Fields
from planner.importers.huggingface.llama import Make, attention_of, draft_of
from planner.transformer_parts import MOST_EXPERTS, MOST_LAYERS, MOST_WIDTH, Experts, LatentAttention

__all__ = ["READERS"]

_BIASED: dict[str, Any] = {"qkv": ("attention_bias", False), "output": ("attention_bias", False)}
_RMS = {"norm": "rms_norm", "is_gated": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mixture:
    """Keys of a mixture of experts.

    ``count``, ``size``: of routed experts. ``shared_count``, ``shared_size``: of those that every token goes through;
    the count 1 where only a size is named.
    """

    make: Make
    count: tuple[str, ...] = ("num_local_experts", "num_experts")
    size: str = "moe_intermediate_size"
    shared_count: str = ""
    shared_size: str = ""
    has_shared_gate: bool = False


_MIXTURES = {
    "mixtral": _Mixture(make=Make(needs_kv_heads=True), size="intermediate_size"),
    "granitemoe": _Mixture(make=Make(**_BIASED), size="intermediate_size"),
    "phimoe": _Mixture(
        make=Make(
            **_BIASED,
            needs_kv_heads=True,
            head=("lm_head_bias", False),
            fixed={"norm": "layer_norm", "has_norm_biases": True, "is_gated": True},
        ),
        size="intermediate_size",
    ),
    "olmoe": _Mixture(
        make=Make(
            **_BIASED, needs_kv_heads=True, query_key_norms=True, fixed={**_RMS, "query_key_norm_span": "all_heads"}
        ),
        size="intermediate_size",
    ),
    "qwen2_moe": _Mixture(
        make=Make(needs_kv_heads=True, qkv=("qkv_bias", True)),
        shared_size="shared_expert_intermediate_size",
        has_shared_gate=True,
    ),
    "qwen3_moe": _Mixture(make=Make(**_BIASED, needs_kv_heads=True, query_key_norms=True)),
    "glm4_moe": _Mixture(
        make=Make(needs_kv_heads=True, qkv=("attention_bias", False), query_key_norms=("use_qk_norm", False)),
        count=("n_routed_experts", "num_local_experts"),
        shared_count="n_shared_experts",
        shared_size="moe_intermediate_size",
    ),
    "llama4_text": _Mixture(
        make=Make(**_BIASED, needs_kv_heads=True, needs_head_size=True),
        size="intermediate_size",
        shared_size="intermediate_size",
    ),
}
_DEEPSEEK = _Mixture(
    make=Make(),
    count=("n_routed_experts", "num_local_experts"),
    shared_count="n_shared_experts",
    shared_size="moe_intermediate_size",
)


def _experts(fields: Fields, mixture: _Mixture, pattern: Mapping[str, Any]) -> Experts | None:
    """Return the mixture; None where a key is wrong."""
    count = fields.count(*mixture.count, most=MOST_EXPERTS)
    top_k = fields.count("num_experts_per_tok", most=MOST_EXPERTS)
    size = fields.count(mixture.size, most=MOST_WIDTH)
    number, shared_size = 0, size
    if mixture.shared_count:
        number = fields.count_or(0, mixture.shared_count, least=0, most=MOST_EXPERTS)
    elif mixture.shared_size:
        number, shared_size = 1, fields.count(mixture.shared_size, most=MOST_WIDTH)
    if top_k > count:
        mend = f"Write at most {count}."
        fields.fault("num_experts_per_tok", f"{top_k} is more than the {count} experts of a layer.", mend)
    if fields.faults:
        return None
    return Experts(
        num_experts=count,
        top_k=top_k,
        expert_size=size,
        num_shared=number,
        shared_size=shared_size,
        has_shared_gate=mixture.has_shared_gate,
        **pattern,
    )


def _mixed(fields: Fields, sizes: dict[str, Any], mixture: _Mixture, pattern: Mapping[str, Any] | None) -> Draft:
    """Return a draft with experts where the pattern has layers for them, dense where it has none."""
    experts = None if pattern is None else _experts(fields, mixture, pattern)
    return draft_of(fields, {**sizes, "experts": experts})


# -- which layers have experts -----------------------------------------------------------------------------------------


def _every(fields: Fields, num_layers: int) -> dict[str, Any] | None:
    """Return the pattern of experts in every layer."""
    return _pattern(fields, "num_hidden_layers", range(num_layers), num_layers)


def _sparse(fields: Fields, num_layers: int) -> dict[str, Any] | None:
    """Return the pattern of Qwen: every so many layers, but for those that are named."""
    step = fields.count_or(1, "decoder_sparse_step", most=MOST_LAYERS)
    dense = set(fields.wholes("mlp_only_layers"))
    chosen = [index for index in range(num_layers) if (index + 1) % step == 0 and index not in dense]
    return _pattern(fields, "mlp_only_layers", chosen, num_layers)


def _behind(fields: Fields, num_layers: int) -> dict[str, Any] | None:
    """Return the pattern of DeepSeek: all layers behind the first dense ones."""
    first = fields.count_or(0, "first_k_dense_replace", least=0, most=MOST_LAYERS)
    step = fields.count_or(1, "moe_layer_freq", most=MOST_LAYERS)
    chosen = [index for index in range(num_layers) if index >= first and index % step == 0]
    return _pattern(fields, "moe_layer_freq", chosen, num_layers)


def _interleaved(fields: Fields, num_layers: int) -> dict[str, Any] | None:
    """Return the pattern of Llama 4: those that are named, else every so many."""
    step = fields.count_or(1, "interleave_moe_layer_step", most=MOST_LAYERS)
    named = fields.wholes("moe_layers")
    chosen = sorted(set(named)) if named else list(range(step - 1, num_layers, step))
    if chosen and chosen[-1] >= num_layers:
        fields.fault("moe_layers", f"there is no layer {chosen[-1]}: the network has {num_layers}.", "Remove it.")
        return None
    return _pattern(fields, "moe_layers", chosen, num_layers)


def _pattern(fields: Fields, name: str, chosen: Sequence[int], num_layers: int) -> dict[str, Any] | None:
    """Return where layers with experts begin and how often they come; None where there are none.

    ``chosen``: their positions, in order. What no first layer and step describe is refused, under the key ``name``.
    """
    if not chosen:
        return None
    step = chosen[1] - chosen[0] if len(chosen) > 1 else num_layers
    if list(chosen) != list(range(chosen[0], num_layers, step)):
        fields.refuse(name, "layers with experts do not come at a fixed step up to the last; this is not counted here.")
    return {"num_dense_first": chosen[0], "every": step}


# -- architectures -----------------------------------------------------------------------------------------------------


def _plain(name: str) -> Reader:
    """Return the reader of an architecture with experts in every layer."""
    mixture = _MIXTURES[name]

    def read(fields: Fields) -> Draft:
        sizes = attention_of(fields, mixture.make)
        return _mixed(fields, sizes, mixture, _every(fields, sizes["num_layers"]))

    return read


def _qwen(name: str) -> Reader:
    """Return the reader of Qwen's architectures with experts."""
    mixture = _MIXTURES[name]

    def read(fields: Fields) -> Draft:
        sizes = attention_of(fields, mixture.make)
        sizes["feed_forward_size"] = fields.count("intermediate_size")
        return _mixed(fields, sizes, mixture, _sparse(fields, sizes["num_layers"]))

    return read


def _glm(fields: Fields) -> Draft:
    """Return GLM-4.5: dense layers first, and a router whose correction is no parameter."""
    mixture = _MIXTURES["glm4_moe"]
    sizes = attention_of(fields, mixture.make)
    sizes["feed_forward_size"] = fields.count("intermediate_size")
    return _mixed(fields, sizes, mixture, _behind(fields, sizes["num_layers"]))


def _llama4(fields: Fields) -> Draft:
    """Return the text part of Llama 4: its dense layers have a width of their own, its norms of queries no scale."""
    mixture = _MIXTURES["llama4_text"]
    sizes = attention_of(fields, mixture.make)
    sizes["feed_forward_size"] = fields.count("intermediate_size_mlp")
    return _mixed(fields, sizes, mixture, _interleaved(fields, sizes["num_layers"]))


def _deepseek(fields: Fields) -> Draft:
    """Return DeepSeek-V2 or V3: latent attention; the router's correction is a buffer, which is not trained."""
    for name in ("attention_bias", "mlp_bias"):
        if fields.flag(name, False):
            fields.refuse(name, "biases of some of these matrices, and not of others, are not counted here.")
    # Latent attention has a key for each query, of a size of its own: these two say nothing.
    rest = {name: value for name, value in fields.values.items() if name not in ("num_key_value_heads", "head_dim")}
    plain = Fields(rest, fields.text, fields.file, fields.architecture, fields.faults, fields.notes, fields.warnings)
    sizes = attention_of(plain, _DEEPSEEK.make)
    sizes.pop("num_kv_heads")
    sizes["feed_forward_size"] = fields.count("intermediate_size")
    ranks = {
        "key_value_rank": fields.count("kv_lora_rank", most=MOST_WIDTH),
        "rope_size": fields.count("qk_rope_head_dim", most=MOST_WIDTH),
        "nope_size": fields.count("qk_nope_head_dim", most=MOST_WIDTH),
        "value_size": fields.count("v_head_dim", most=MOST_WIDTH),
    }
    if "q_lora_rank" not in fields.values:  # null says that there is none; transformers takes 1536 where it is missing
        fields.count("q_lora_rank", most=MOST_WIDTH)
    query = None if fields.get("q_lora_rank") is None else fields.count("q_lora_rank", most=MOST_WIDTH)
    if not fields.faults:
        sizes["latent"] = LatentAttention(query_rank=query, **ranks)
    if fields.architecture == "deepseek_v3":
        fields.notes.append("the router's correction of its scores is a buffer, not a parameter, and is not counted")
    return _mixed(fields, sizes, _DEEPSEEK, _behind(fields, sizes["num_layers"]))


READERS: dict[str, Reader] = {
    **{name: _plain(name) for name in ("mixtral", "granitemoe", "phimoe", "olmoe")},
    **{name: _qwen(name) for name in ("qwen2_moe", "qwen3_moe")},
    "glm4_moe": _glm,
    "llama4_text": _llama4,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
}
