"""What every known architecture of Hugging Face is made of: its sizes as the fields of a transformer.

Decoders written after Llama's (rotary positions, queries, keys and values projected apart) are a row each: which biases
and norms there are, what a missing key means, and which layers have experts. Those with other mixers than attention
have a function each; so have those before Llama, and encoders
(:mod:`planner.importers.huggingface.early_architectures`). Source of every one: the architecture's
``configuration_*.py`` and ``modeling_*.py`` in ``huggingface/transformers`` 5.23, against whose own counts of
parameters they are tested (``tests/heavy/test_huggingface.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

from planner.frozen import frozen
from planner.importers.huggingface.configuration import Fields
from planner.importers.huggingface.drafts import Draft, Reader, is_tied, longest_of, stream_of
from planner.importers.huggingface.early_architectures import EARLY_READERS
from planner.mixers import MOST_CHUNK, MOST_KERNEL, MOST_STATES, DeltaNet, LinearAttention, Mamba
from planner.transformer_parts import (
    MOST_EXPERTS,
    MOST_HEADS,
    MOST_LAYERS,
    MOST_TOKENS,
    MOST_WIDTH,
    Experts,
    LatentAttention,
    SparseAttention,
)
from planner.words import shown

# -- decoders after Llama ----------------------------------------------------------------------------------------------

Flag = bool | tuple[str, bool]  # what is always so, or the key that says it and what it means if left out
Pattern = Callable[[Fields, int], dict[str, Any] | None]  # of so many layers, which have experts


@frozen
class _Mixture:
    """Keys of a mixture of experts.

    ``has_router_bias``: the router's product has a bias.
    ``count``, ``size``: of routed experts. ``shared_count``, ``shared_size``: of those that every token goes through;
    the count 1 where only a size is named. ``is_grouped``: tokens may be limited to some groups of experts.
    """

    pattern: Pattern
    count: tuple[str, ...] = ("num_local_experts", "num_experts")
    size: str = "moe_intermediate_size"
    shared_count: str = ""
    shared_size: str = ""
    has_shared_gate: bool = False
    has_router_bias: bool = False
    is_grouped: bool = False


_RMS = {"norm": "rms_norm", "is_gated": True}


@frozen
class _Row:
    """What an architecture has."""

    is_tied: bool = False  # whether logits use the embedding's matrix where ``tie_word_embeddings`` is left out
    # needs_kv_heads, needs_head_size: whether ``num_key_value_heads`` and ``head_dim`` must be given: ``transformers``
    # would take a fixed number. Where they need not, they follow from the heads
    needs_kv_heads: bool = False
    needs_head_size: bool = False
    # qkv, output, feed_forward, head: biases
    qkv: Flag = False
    output: Flag = False
    feed_forward: Flag = False
    head: Flag = False
    query_key_norms: Flag = False  # whether queries and keys pass norms
    fixed: Mapping[str, Any] = field(default_factory=lambda: _RMS)  # fields of the transformer that are always so
    # the key of a dense feed-forward part's width; empty where there is none: an expert's width stands for it then
    inner: str = "intermediate_size"
    mixture: _Mixture | None = None


def _every_layer(fields: Fields, num_layers: int) -> dict[str, Any] | None:
    return _at(fields, "num_hidden_layers", range(num_layers), num_layers)


def _qwen_layers(fields: Fields, num_layers: int) -> dict[str, Any] | None:
    """Every so many layers, but for those that are named."""
    step = fields.count_or(1, "decoder_sparse_step", most=MOST_LAYERS)
    dense = set(fields.wholes("mlp_only_layers"))
    chosen = [index for index in range(num_layers) if (index + 1) % step == 0 and index not in dense]
    return _at(fields, "mlp_only_layers", chosen, num_layers)


def _deepseek_layers(fields: Fields, num_layers: int) -> dict[str, Any] | None:
    """All layers behind the first dense ones."""
    usual = {"exaone_moe": 1, "glm4_moe_lite": 1, "glm_moe_dsa": 3, "hy_v3": 1}.get(fields.architecture, 0)
    first = fields.count_or(usual, "first_k_dense_replace", least=0, most=MOST_LAYERS)
    step = fields.count_or(1, "moe_layer_freq", most=MOST_LAYERS)
    if types := fields.words("mlp_layer_types"):
        return _at(fields, "mlp_layer_types", [at for at, one in enumerate(types) if one == "sparse"], num_layers)
    if isinstance(flags := fields.get("is_moe_layer"), list):  # of K-EXAONE's publisher
        return _at(fields, "is_moe_layer", [at for at, one in enumerate(flags) if one is True], num_layers)
    chosen = [index for index in range(num_layers) if index >= first and index % step == 0]
    return _at(fields, "moe_layer_freq", chosen, num_layers)


def _llama4_layers(fields: Fields, num_layers: int) -> dict[str, Any] | None:
    """Those that are named, else every so many."""
    step = fields.count_or(1, "interleave_moe_layer_step", most=MOST_LAYERS)
    named = fields.wholes("moe_layers")
    chosen = sorted(set(named)) if named else list(range(step - 1, num_layers, step))
    if chosen and chosen[-1] >= num_layers:
        fields.fault("moe_layers", f"there is no layer {chosen[-1]}: the network has {num_layers}.", "Remove it.")
        return None
    return _at(fields, "moe_layers", chosen, num_layers)


def _ernie_layers(fields: Fields, num_layers: int) -> dict[str, Any] | None:
    """Every so many layers, between a first and a last one."""
    step = fields.count_or(1, "moe_layer_interval", most=MOST_LAYERS)
    first = fields.count_or(1, "moe_layer_start_index", least=0, most=MOST_LAYERS)
    last = fields.values.get("moe_layer_end_index")
    end = num_layers if last in (None, -1) else 1 + fields.count_or(0, "moe_layer_end_index", least=0, most=MOST_LAYERS)
    chosen = [index for index in range(first, min(end, num_layers)) if (index + 1) % step == 0]
    return _at(fields, "moe_layer_interval", chosen, num_layers)


def _at(fields: Fields, name: str, chosen: Sequence[int], num_layers: int) -> dict[str, Any] | None:
    """Return where layers with experts begin and how often they come; None where there are none.

    ``chosen``: their positions, in order. What no first layer and step describe is refused, under the key ``name``.
    """
    if not chosen:
        return None
    step = chosen[1] - chosen[0] if len(chosen) > 1 else num_layers
    if list(chosen) != list(range(chosen[0], num_layers, step)):
        fields.refuse(name, "layers with experts do not come at a fixed step up to the last; this is not counted here.")
    return {"num_dense_first": chosen[0], "every": step}


_BIASES: dict[str, Any] = {"qkv": ("attention_bias", False), "output": ("attention_bias", False)}
_ALL_BIASES: dict[str, Any] = {**_BIASES, "feed_forward": ("mlp_bias", False)}
_USE_BIAS: dict[str, Any] = dict.fromkeys(("qkv", "output", "feed_forward"), ("use_bias", False))
_KV: dict[str, Any] = {"needs_kv_heads": True}
_SIZED: dict[str, Any] = {"needs_kv_heads": True, "needs_head_size": True}
_LAYER_NORM = {"norm": "layer_norm", "has_norm_biases": True}
_BOTH_NORMS = {**_RMS, "norm_position": "both"}
_LLAMA = _Row(**_ALL_BIASES)
_OLMO_2 = _Row(
    **_BIASES, query_key_norms=True, fixed={**_RMS, "norm_position": "output", "query_key_norm_span": "all_heads"}
)
_COHERE = {"norm_position": "shared", "query_key_norm_span": "all_heads"}
_OF_INTERMEDIATE = _Mixture(pattern=_every_layer, size="intermediate_size")
_QWEN_EXPERTS = _Mixture(pattern=_qwen_layers)
_DEEPSEEK_EXPERTS = _Mixture(
    pattern=_deepseek_layers,
    count=("n_routed_experts", "num_local_experts"),
    shared_count="n_shared_experts",
    shared_size="moe_intermediate_size",
    is_grouped=True,
)

_SHARED_EXPERTS = replace(_DEEPSEEK_EXPERTS, count=("num_experts",), shared_count="num_shared_experts")

_QWEN_2 = _Row(**_KV, qkv=True)
_QWEN_3 = _Row(**_BIASES, **_SIZED, query_key_norms=True)
_QWEN_3_MOE = _Row(**_BIASES, **_KV, query_key_norms=True, mixture=_QWEN_EXPERTS)

_ROWS: dict[str, _Row] = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "smollm3": _Row(**_ALL_BIASES, **_KV, is_tied=True),
    "arcee": _Row(**_ALL_BIASES, fixed={"norm": "rms_norm"}),
    "apertus": _Row(**_BIASES, query_key_norms=True, fixed={"norm": "rms_norm"}),
    "mistral": _Row(**_KV),
    "ministral": _Row(**_KV),
    "ministral3": _Row(**_SIZED),
    "phi3": _Row(),
    "qwen2": _QWEN_2,
    "qwen3": _QWEN_3,
    "hunyuan_v1_dense": _Row(**_BIASES, query_key_norms=True),
    "exaone4": _Row(**_KV, query_key_norms=True, fixed={**_RMS, "norm_position": "output"}),
    "ernie4_5": _Row(**_USE_BIAS, **_SIZED, is_tied=True),
    "seed_oss": _Row(
        **_SIZED, qkv=("attention_bias", True), output=("attention_out_bias", False), feed_forward=("mlp_bias", False)
    ),
    "glm": _Row(**_SIZED, qkv=("attention_bias", True)),
    "glm4": _Row(**_SIZED, qkv=("attention_bias", True), fixed=_BOTH_NORMS),
    "gemma": _Row(**_BIASES, **_SIZED, is_tied=True),
    "gemma2": _Row(**_BIASES, **_SIZED, is_tied=True, fixed=_BOTH_NORMS),
    "gemma3_text": _Row(**_BIASES, **_SIZED, is_tied=True, query_key_norms=True, fixed=_BOTH_NORMS),
    "olmo": _Row(
        **_BIASES, fixed={**_LAYER_NORM, "is_gated": True, "has_norm_scales": False, "has_norm_biases": False}
    ),
    "olmo2": _OLMO_2,
    "olmo3": _OLMO_2,
    "cohere": _Row(
        **_BIASES,
        is_tied=True,
        query_key_norms=("use_qk_norm", False),
        fixed={**_LAYER_NORM, **_COHERE, "has_norm_biases": False, "is_gated": True},
    ),
    "cohere2": _Row(
        **_BIASES,
        is_tied=True,
        fixed={**_LAYER_NORM, "norm_position": "shared", "has_norm_biases": False, "is_gated": True},
    ),
    "nemotron": _Row(**_ALL_BIASES, fixed=_LAYER_NORM),
    "starcoder2": _Row(
        **_KV,
        is_tied=True,
        qkv=("use_bias", True),
        output=("use_bias", True),
        feed_forward=("use_bias", True),
        fixed=_LAYER_NORM,
    ),
    "stablelm": _Row(**_KV, qkv=("use_qkv_bias", False), fixed={**_LAYER_NORM, "is_gated": True}),
    "phi": _Row(
        qkv=True,
        output=True,
        feed_forward=True,
        head=True,
        query_key_norms=("qk_layernorm", False),
        fixed={**_LAYER_NORM, "norm_position": "shared"},
    ),
    "mixtral": _Row(**_KV, inner="", mixture=_OF_INTERMEDIATE),
    "granitemoe": _Row(**_BIASES, inner="", mixture=_OF_INTERMEDIATE),
    "phimoe": _Row(
        **_BIASES,
        **_KV,
        head=("lm_head_bias", False),
        fixed={**_LAYER_NORM, "is_gated": True},
        inner="",
        mixture=_OF_INTERMEDIATE,
    ),
    "olmoe": _Row(
        **_BIASES,
        **_KV,
        query_key_norms=True,
        fixed={**_RMS, "query_key_norm_span": "all_heads"},
        inner="",
        mixture=_OF_INTERMEDIATE,
    ),
    "qwen2_moe": _Row(
        **_KV,
        qkv=("qkv_bias", True),
        mixture=replace(_QWEN_EXPERTS, shared_size="shared_expert_intermediate_size", has_shared_gate=True),
    ),
    "qwen3_moe": _QWEN_3_MOE,
    # Text parts of networks that read images, too.
    "qwen2_5_vl_text": _QWEN_2,
    "qwen2_5_omni_text": _QWEN_2,
    "qwen3_vl_text": _QWEN_3,
    "qwen3_vl_moe_text": _QWEN_3_MOE,
    "qwen3_omni_moe_text": _QWEN_3_MOE,
    # A router whose correction is no parameter.
    "glm4_moe": _Row(
        **_KV, qkv=("attention_bias", False), query_key_norms=("use_qk_norm", False), mixture=_DEEPSEEK_EXPERTS
    ),
    "ernie4_5_moe": _Row(
        **_KV,
        is_tied=True,
        mixture=_Mixture(pattern=_ernie_layers, count=("moe_num_experts",), shared_count="moe_num_shared_experts"),
    ),
    "dots1": _Row(**_BIASES, query_key_norms=True, mixture=_DEEPSEEK_EXPERTS),
    "exaone_moe": _Row(**_KV, query_key_norms=True, mixture=_SHARED_EXPERTS),
    "hy_v3": _Row(**_BIASES, **_SIZED, query_key_norms=True, mixture=_SHARED_EXPERTS),
    "solar_open": _Row(
        **_SIZED,
        qkv=("attention_bias", False),
        inner="",
        mixture=replace(_DEEPSEEK_EXPERTS, pattern=_every_layer),
    ),
    "minimax_m2": _Row(
        **_SIZED,
        query_key_norms=True,
        fixed={**_RMS, "query_key_norm_span": "all_heads"},
        inner="",
        mixture=_OF_INTERMEDIATE,
    ),
    # Its dense layers have a width of their own, its norms of queries no scale.
    "llama4_text": _Row(
        **_BIASES,
        **_SIZED,
        inner="intermediate_size_mlp",
        fixed={**_RMS, "has_chunked_windows": True},
        mixture=_Mixture(pattern=_llama4_layers, size="intermediate_size", shared_size="intermediate_size"),
    ),
    # Every head has a learned sink, every matrix but those of the ends a bias.
    "gpt_oss": _Row(
        **_SIZED,
        qkv=("attention_bias", True),
        output=("attention_bias", True),
        feed_forward=True,
        inner="",
        fixed={**_RMS, "has_sinks": True},
        mixture=replace(_OF_INTERMEDIATE, has_router_bias=True),
    ),
}


_SOME_BIASES = "biases of some of these matrices, and not of others, are not counted here."
_CORRECTION = "the router's correction of its scores is a buffer, not a parameter, and is not counted"


def _of_row(row: _Row, fields: Fields) -> Draft:
    if fields.architecture == "apertus":
        fields.notes.append("the two numbers of each layer's activation (xIELU) are not counted")
    if fields.architecture in ("ernie4_5_moe", "exaone_moe", "hy_v3", "solar_open"):
        fields.notes.append(_CORRECTION)
        for name in ("use_bias", "mlp_bias"):
            if fields.flag(name, False):
                fields.refuse(name, _SOME_BIASES)
    sizes = _attention(row, fields)
    inner = row.inner or (row.mixture.size if row.mixture is not None else "intermediate_size")
    sizes["feed_forward_size"] = fields.count(inner)
    if row.mixture is not None:
        sizes["experts"] = _experts(fields, row.mixture, sizes["num_layers"])
    return _rotary_draft(fields, sizes)


def _attention(row: _Row, fields: Fields) -> dict[str, Any]:
    """Return the sizes of a row but for its feed-forward part."""

    def is_so(flag: Flag) -> bool:
        return flag if isinstance(flag, bool) else fields.flag(*flag)

    sizes = stream_of(fields)
    if row.needs_kv_heads and "num_key_value_heads" not in fields.values:
        sizes["num_kv_heads"] = fields.count("num_key_value_heads", most=MOST_HEADS)
    else:
        sizes["num_kv_heads"] = fields.count_or(sizes["num_heads"], "num_key_value_heads", most=MOST_HEADS)
    if row.needs_head_size or fields.get("head_dim") is not None:
        sizes["head_size"] = fields.count("head_dim", most=MOST_WIDTH)
    head = {"has_head_bias": True} if is_so(row.head) else {}
    return {
        **sizes,
        "has_tied_embeddings": fields.flag("tie_word_embeddings", row.is_tied),
        "positions": "rotary",
        "has_biases": is_so(row.feed_forward),
        "has_norm_biases": False,
        "has_qkv_biases": is_so(row.qkv),
        "has_output_bias": is_so(row.output),
        "has_query_key_norms": is_so(row.query_key_norms),
        **head,
        **row.fixed,
    }


def _experts(fields: Fields, mixture: _Mixture, num_layers: int) -> Experts | None:
    """Return the mixture of experts; None where no layer has one, or a key is wrong."""
    pattern = mixture.pattern(fields, num_layers)
    if pattern is None:
        return None
    known = len(fields.faults)
    count = fields.count(*mixture.count, most=MOST_EXPERTS)
    top_k = fields.count("num_experts_per_tok", "moe_k", "moe_topk", most=MOST_EXPERTS)
    are_counted = len(fields.faults) == known  # else what they are held against would be told of a number of ours
    size = fields.count(mixture.size, most=MOST_WIDTH)
    num_shared, shared_size = 0, size
    if mixture.shared_count:
        num_shared = fields.count_or(0, mixture.shared_count, least=0, most=MOST_EXPERTS)
    elif mixture.shared_size:
        num_shared, shared_size = 1, fields.count(mixture.shared_size, most=MOST_WIDTH)
    if are_counted and top_k > count:
        hint = f"Write at most {count}."
        fields.fault("num_experts_per_tok", f"{top_k} is more than the {count} experts of a layer.", hint)
    groups = fields.count_or(1, "n_group", most=MOST_EXPERTS) if mixture.is_grouped else 1
    top_groups = fields.count_or(1, "topk_group", most=MOST_EXPERTS) if mixture.is_grouped else 1
    if are_counted and (count % groups or top_groups > groups or top_k > count * top_groups // groups):
        why = f"{groups} groups of {count} experts, of which a token takes {top_k} from {top_groups}, cannot be."
        fields.fault("n_group", why, "Write groups that divide the experts, and as many of them as hold a token's.")
    if fields.faults:
        return None
    return Experts(
        num_experts=count,
        top_k=top_k,
        expert_size=size,
        num_shared=num_shared,
        shared_size=shared_size,
        has_shared_gate=mixture.has_shared_gate,
        has_router_bias=mixture.has_router_bias,
        groups=groups,
        top_groups=top_groups,
        **pattern,
    )


# What mixes tokens in a layer, by the word of ``layer_types``.
_MIXERS = {
    **dict.fromkeys(("full_attention", "indexed_attention", "global"), "attention"),
    **dict.fromkeys(("sliding_attention", "chunked_attention", "local"), "window"),
}
_DELTA = {**_MIXERS, "linear_attention": "delta"}
# Every so many layers one sees all, where no key names the layers; Gemma 3 and EXAONE 4 have a key for it.
_EVERY_FULL = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2} | dict.fromkeys(
    ("cohere2", "exaone4", "exaone_moe", "llama4_text", "olmo3"), 4
)


def _rotary_draft(fields: Fields, sizes: dict[str, Any]) -> Draft:
    window, mixers = _windows(fields, sizes["num_layers"])
    longest = longest_of(fields, "max_position_embeddings")
    return Draft(sizes=sizes, longest=longest, window=window, mixers=mixers)


def _types(fields: Fields, num_layers: int, known: Mapping[str, str], name: str = "layer_types") -> tuple[str, ...]:
    """Return what mixes the tokens of every layer, as a key has it; empty where it is left out, or wrong."""
    types = fields.words(name)
    unknown = sorted(set(types) - known.keys())
    if unknown:
        fields.refuse(name, f"layers of the type {shown(unknown[0])} are not counted here.")
    if types and not unknown and len(types) != num_layers:
        hint = "Give as many types as layers, or leave them out."
        fields.fault(name, f"these are {len(types)} types of {num_layers} layers.", hint)
    return () if unknown else tuple(known[one] for one in types)


def _windows(fields: Fields, num_layers: int) -> tuple[int | None, tuple[str, ...]]:
    """Return the tokens that a token sees in layers with windowed attention, and what mixes tokens in every layer.

    Layers with another attention than full or windowed are refused. None and nothing where no attention is windowed.
    """
    types = _types(fields, num_layers, _MIXERS)
    names = ("sliding_window", "attention_chunk_size")
    given = fields.get(*names)
    if given is None or given is False or given == 0 or not fields.flag("use_sliding_window", True):
        return None, ()
    window = fields.count(*names, most=2**40)
    if not types:
        types = _usual_mixers(fields, num_layers)
    return (window, types) if "window" in types else (None, ())


def _usual_mixers(fields: Fields, num_layers: int) -> tuple[str, ...]:
    """Return what mixes the tokens of every layer of an architecture with windows that names no types."""
    first = fields.count_or(0, "max_window_layers", least=0, most=2**40)
    if "use_sliding_window" in fields.values and first:  # Qwen2: the first layers see all
        return ("attention",) * min(first, num_layers) + ("window",) * max(num_layers - first, 0)
    step = _EVERY_FULL.get(fields.architecture)
    if step is None:
        return ("window",) * num_layers
    if fields.architecture == "llama4_text":  # layers without positions see all
        step = fields.count_or(step, "no_rope_layer_interval", most=MOST_LAYERS)
        if named := fields.wholes("no_rope_layers"):
            return tuple("window" if has_positions else "attention" for has_positions in named[:num_layers])
    else:
        pattern = fields.get("sliding_window_pattern")
        is_text = isinstance(pattern, str) and pattern  # EXAONE 4: LLLG is a step of 4
        step = len(str(pattern)) if is_text else fields.count_or(step, "sliding_window_pattern")
    return tuple("window" if (index + 1) % step else "attention" for index in range(num_layers))


def _hunyuan_moe(fields: Fields) -> Draft:
    """Return Hunyuan's mixture of experts, whose publisher names some sizes once for each layer."""
    values = dict(fields.values)
    for name in ("moe_intermediate_size", "moe_topk", "num_experts", "num_shared_expert"):
        named = values.get(name)
        if isinstance(named, list) and named:
            values[name] = named[0]
            if any(one != named[0] for one in named):
                fields.refuse(name, "layers whose experts differ are not counted here.")
    fields = replace(fields, values=values)
    if fields.count_or(fields.count("intermediate_size"), "moe_intermediate_size") != values.get("intermediate_size"):
        fields.refuse("moe_intermediate_size", "experts of another width than intermediate_size are not counted here.")
    if fields.count_or(0, "moe_layer_num_skipped", least=0, most=MOST_LAYERS):
        fields.refuse("moe_layer_num_skipped", "layers without experts are not counted here.")
    if fields.flag("use_cla", False) and fields.count_or(1, "cla_share_factor", most=MOST_LAYERS) > 1:
        fields.refuse("use_cla", "layers that take keys and values of the one before are not counted here.")
    if fields.flag("use_mla", False):
        fields.refuse("use_mla", "latent attention of Hunyuan is not counted here.")
    if not fields.flag("use_mixed_mlp_moe", True):
        fields.refuse("use_mixed_mlp_moe", "experts without a shared one are not counted here.")
    values.setdefault("num_shared_expert", 1)
    mixture = replace(_OF_INTERMEDIATE, shared_count="num_shared_expert")
    return _of_row(_Row(**_BIASES, query_key_norms=("use_qk_norm", True), inner="", mixture=mixture), fields)


def _bailing_moe(fields: Fields) -> Draft:
    """Return Ling or Ring; those of the second version, which the class or the name says, have norms of queries."""
    is_second = fields.architecture == "bailing_moe_v2" or "V2" in "".join(fields.words("architectures")[:1])
    row = _Row(
        **_KV,
        qkv=("use_qkv_bias", False),
        output=("use_bias", True),
        query_key_norms=("use_qk_norm", is_second),
        mixture=_SHARED_EXPERTS,
    )
    if fields.flag("moe_router_enable_expert_bias", False):
        fields.notes.append(_CORRECTION)
    return _of_row(row, fields)


def _stablelm(fields: Fields) -> Draft:
    """Return StableLM, whose halves may run side by side."""
    if fields.flag("qk_layernorm", False):
        refused = "every head has a norm of its own, without a shift, unlike the other norms; this is not counted here."
        fields.refuse("qk_layernorm", refused)
    draft = _of_row(_ROWS["stablelm"], fields)
    if fields.flag("use_parallel_residual", False):
        draft.sizes["norm_position"] = "shared"
    return draft


def _deepseek(fields: Fields) -> Draft:
    """Return DeepSeek-V2 or V3: latent attention; the router's correction is a buffer, which is not trained."""
    for name in ("attention_bias", "mlp_bias"):
        if fields.flag(name, False):
            fields.refuse(name, _SOME_BIASES)
    # Latent attention has a key for each query, of a size of its own: these two say nothing.
    rest = {name: value for name, value in fields.values.items() if name not in ("num_key_value_heads", "head_dim")}
    sizes = _attention(_Row(), replace(fields, values=rest))
    sizes.pop("num_kv_heads")
    sizes["feed_forward_size"] = fields.count("intermediate_size")
    ranks = {
        "key_value_rank": fields.count("kv_lora_rank", most=MOST_WIDTH),
        "rope_size": fields.count("qk_rope_head_dim", most=MOST_WIDTH),
        "nope_size": fields.count("qk_nope_head_dim", most=MOST_WIDTH),
        "value_size": fields.count("v_head_dim", most=MOST_WIDTH),
    }
    query = None
    # null says that there is none; transformers takes 1536 where it is missing
    if "q_lora_rank" not in fields.values or fields.get("q_lora_rank") is not None:
        query = fields.count("q_lora_rank", most=MOST_WIDTH)
    if not fields.faults:
        sizes["latent"] = LatentAttention(query_rank=query, **ranks)
    if fields.architecture in ("deepseek_v32", "glm_moe_dsa"):
        pattern = fields.get("index_topk_pattern")
        shares = "S" in pattern if isinstance(pattern, str) else "shared" in fields.words("indexer_types")
        if shares or fields.count_or(1, "index_topk_freq", most=MOST_LAYERS) > 1:
            name = next(n for n in ("indexer_types", "index_topk_pattern", "index_topk_freq") if n in fields.values)
            fields.refuse(name, "layers that take the tokens which another one chose are not counted here.")
        indexer = {
            "heads": fields.count("index_n_heads", most=MOST_HEADS),
            "head_size": fields.count("index_head_dim", most=MOST_WIDTH),
            "top_k": fields.count("index_topk", most=MOST_TOKENS),
        }
        sizes["sparse"] = None if fields.faults else SparseAttention(**indexer)
    if fields.architecture not in ("deepseek_v2", "mistral4"):
        fields.notes.append(_CORRECTION)
    sizes["experts"] = _experts(fields, _DEEPSEEK_EXPERTS, sizes["num_layers"])
    return _rotary_draft(fields, sizes)


# -- decoders with other mixers than attention -------------------------------------------------------------------------

_QWEN_3_NEXT = _Row(
    **_BIASES,
    **_SIZED,
    query_key_norms=True,
    fixed={**_RMS, "has_attention_gate": True},
    mixture=replace(_QWEN_EXPERTS, shared_size="shared_expert_intermediate_size", has_shared_gate=True),
)


def _qwen3_next(fields: Fields) -> Draft:
    """Return Qwen3-Next or 3.5: gated delta networks, and attention with a gate in every so-many-th layer."""
    row = replace(_QWEN_3_NEXT, mixture=None) if fields.architecture == "qwen3_5_text" else _QWEN_3_NEXT
    if fields.architecture == "qwen3_5_moe_text":  # which has no dense feed-forward part
        row = replace(row, inner="", mixture=row.mixture and replace(row.mixture, pattern=_every_layer))
    sizes = _of_row(row, replace(fields, values={**fields.values, "layer_types": None})).sizes
    num_layers = sizes["num_layers"]
    mixers = _types(fields, num_layers, _DELTA)
    if not mixers:
        step = fields.count_or(4, "full_attention_interval", most=MOST_LAYERS)
        mixers = tuple("delta" if (index + 1) % step else "attention" for index in range(num_layers))
    if "delta" in mixers:
        counts = {
            "num_key_heads": fields.count("linear_num_key_heads", most=MOST_HEADS),
            "num_value_heads": fields.count("linear_num_value_heads", most=MOST_HEADS),
            "key_size": fields.count("linear_key_head_dim", most=MOST_STATES),
            "value_size": fields.count("linear_value_head_dim", most=MOST_STATES),
            "conv_kernel": fields.count_or(4, "linear_conv_kernel_dim", most=MOST_KERNEL),
        }
        sizes["delta"] = _made(fields, DeltaNet, counts, "linear_num_value_heads")
    return Draft(sizes=sizes, longest=longest_of(fields, "max_position_embeddings"), mixers=mixers)


def _made(fields: Fields, kind: type[Any], counts: Mapping[str, Any], name: str) -> Any:
    """Return a part of these sizes; None where they are faulty, or do not go together, which is noted under a key."""
    if fields.faults:
        return None
    try:
        return kind(**counts)
    except ValueError as error:
        fields.fault(name, f"{error}", "Write it as the checkpoint's own config.json has it.")
        return None


def _minimax(fields: Fields) -> Draft:
    """Return MiniMax-Text-01: experts in all layers, linear attention in all but every so-many-th."""
    row = _Row(**_KV, inner="", mixture=_OF_INTERMEDIATE)
    sizes = _of_row(row, replace(fields, values={**fields.values, "layer_types": None})).sizes
    num_layers = sizes["num_layers"]
    mixers = _types(fields, num_layers, {"full_attention": "attention", "linear_attention": "linear"})
    if kinds := fields.wholes("attn_type_list"):  # of the publisher's own file: 1 is attention
        if len(kinds) != num_layers:
            problem = f"these are {len(kinds)} types of {num_layers} layers."
            fields.fault("attn_type_list", problem, "Give as many types as layers.")
        mixers = mixers or tuple("attention" if one == 1 else "linear" for one in kinds)
    mixers = mixers or tuple("linear" if index % 2 else "attention" for index in range(num_layers))
    if "linear" in mixers:
        head_size = sizes.get("head_size") or sizes["hidden_size"] // sizes["num_heads"]
        chunk = fields.count_or(256, "block_size", most=MOST_CHUNK)
        counts = {"num_heads": sizes["num_heads"], "head_size": head_size, "chunk_size": chunk}
        sizes["linear"] = _made(fields, LinearAttention, counts, "head_dim")
    return Draft(sizes=sizes, longest=longest_of(fields, "max_position_embeddings"), mixers=mixers)


def _mamba_hybrid(fields: Fields) -> Draft:
    """Return Bamba or Granite 4: Mamba-2 or attention, and behind either a feed-forward part or experts."""
    is_granite = fields.architecture == "granitemoehybrid"
    row = _Row(**_BIASES, inner="shared_intermediate_size") if is_granite else _Row(**_ALL_BIASES)
    sizes = _of_row(row, replace(fields, values={**fields.values, "layer_types": None})).sizes
    num_layers = sizes["num_layers"]
    known = {key: {"M": "mamba", "*": "attention"}[letter] for key, letter in _LETTERS.items() if letter in "M*"}
    if is_granite:
        name = "layer_types" if fields.get("layer_types") is not None else "layers_block_type"
        mixers = _types(fields, num_layers, known, name) or ("mamba",) * num_layers
        if fields.word("position_embedding_type") != "rope":
            sizes["positions"] = "none"
        if fields.count("num_local_experts", least=0, most=MOST_EXPERTS):
            mixture = _Mixture(pattern=_every_layer, size="intermediate_size", shared_size="shared_intermediate_size")
            sizes["experts"] = _experts(fields, mixture, num_layers)
    else:
        full = set(fields.wholes("attn_layer_indices"))
        mixers = tuple("attention" if index in full else "mamba" for index in range(num_layers))
    if "mamba" in mixers:
        sizes["mamba"] = _mamba(fields, sizes["hidden_size"])
    return Draft(sizes=sizes, longest=longest_of(fields, "max_position_embeddings"), mixers=mixers)


_LETTERS = {
    **dict.fromkeys(("mamba", "linear_attention"), "M"),
    **dict.fromkeys(("attention", "full_attention"), "*"),
    "mlp": "-",
    "moe": "E",
}


def _nemotron_h(fields: Fields) -> Draft:
    """Return Nemotron-H: layers of one part each, Mamba-2, attention without positions, feed-forward or experts."""
    pattern = fields.word("hybrid_override_pattern")
    words = fields.words("layers_block_type") or fields.words("layer_types")
    if not pattern and words:
        if unknown := sorted(set(words) - _LETTERS.keys()):
            fields.refuse("layers_block_type", f"layers of the type {shown(unknown[0])} are not counted here.")
        pattern = "".join(_LETTERS.get(one, "-") for one in words)
    if not pattern:
        hint = 'Add it, as the checkpoint\'s own config.json has it, e.g. "M-M*-".'
        fields.fault("hybrid_override_pattern", "it is missing, and nemotron_h needs it.", hint)
    elif strange := sorted(set(pattern) - set("M*-E")):
        problem = f"it has a layer {shown(strange[0])}, which nobody knows."
        fields.fault("hybrid_override_pattern", problem, "Write M, *, - and E alone, one letter a layer.")
    number = fields.count_or(len(pattern) or 1, "num_hidden_layers", most=MOST_LAYERS)
    if pattern and number != len(pattern):
        problem = f"there are {number} layers, and the pattern has {len(pattern)} letters."
        fields.fault("num_hidden_layers", problem, "Give as many letters as layers.")
    stream = stream_of(replace(fields, values={**fields.values, "num_hidden_layers": number}))
    stream["num_kv_heads"] = fields.count("num_key_value_heads", most=MOST_HEADS)
    stream["head_size"] = fields.count("head_dim", "attention_head_dim", most=MOST_WIDTH)
    if "-" in pattern or fields.get("intermediate_size") is not None:
        stream["feed_forward_size"] = fields.count("intermediate_size")
    for name in ("use_bias", "attention_bias", "mlp_bias"):
        if fields.flag(name, False):
            fields.refuse(name, _SOME_BIASES)
    if "M" in pattern:
        stream["mamba"] = _mamba(fields)
    if "E" in pattern:
        mixture = _Mixture(
            pattern=lambda _fields, _layers: {},
            count=("n_routed_experts", "num_local_experts"),
            shared_size="moe_shared_expert_intermediate_size",
            is_grouped=True,
        )
        stream["experts"] = _experts(fields, mixture, number)
        if fields.get("moe_latent_size") is not None:
            latent = fields.count("moe_latent_size", most=MOST_WIDTH)
            stream["experts"] = stream["experts"] and replace(stream["experts"], latent_size=latent)
    sizes = {
        **stream,
        "pattern": pattern,
        "norm": "rms_norm",
        "positions": "none",
        "has_biases": False,
        "has_norm_biases": False,
        "has_tied_embeddings": is_tied(fields, False),
    }
    return Draft(sizes=sizes, longest=longest_of(fields, "max_position_embeddings"))


def _mamba(fields: Fields, hidden_size: int | None = None) -> Mamba | None:
    """Return Mamba-2's sizes; None where they are faulty.

    ``hidden_size``: of a network whose inner width is this times ``mamba_expand``, whatever its heads are.
    """
    if fields.flag("mamba_proj_bias", False):
        fields.refuse("mamba_proj_bias", _SOME_BIASES)
    heads = fields.count("mamba_num_heads", "mamba_n_heads", most=MOST_HEADS)
    if hidden_size is None:
        head_size = fields.count("mamba_head_dim", most=MOST_WIDTH)
    else:
        inner = hidden_size * fields.count_or(2, "mamba_expand")
        head_size = inner // heads
        if inner % heads or fields.values.get("mamba_d_head", "auto") not in ("auto", None, head_size):
            problem = f"{heads} heads of this width are not {inner:,} wide, hidden_size times mamba_expand."
            fields.fault("mamba_d_head", problem, 'Write "auto" and a number of heads that divides it.')
    counts = {
        "num_heads": heads,
        "head_size": head_size,
        "state_size": fields.count("ssm_state_size", "mamba_d_state", most=MOST_STATES),
        "num_groups": fields.count("n_groups", "mamba_n_groups", most=MOST_HEADS),
        "conv_kernel": fields.count_or(4, "conv_kernel", "mamba_d_conv", most=MOST_KERNEL),
        "chunk_size": fields.count_or(
            128 if hidden_size is None else 256, "chunk_size", "mamba_chunk_size", most=MOST_CHUNK
        ),
        "has_conv_bias": fields.flag("use_conv_bias", True) and fields.flag("mamba_conv_bias", True),
    }
    found: Mamba | None = _made(fields, Mamba, counts, "n_groups")
    return found


READERS: dict[str, Reader] = {
    **{name: partial(_of_row, row) for name, row in _ROWS.items()},
    "stablelm": _stablelm,
    "hunyuan_v1_moe": _hunyuan_moe,
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2"), _bailing_moe),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _qwen3_next),
    **dict.fromkeys(("bamba", "granitemoehybrid"), _mamba_hybrid),
    "minimax": _minimax,
    "nemotron_h": _nemotron_h,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "deepseek_v32": _deepseek,
    "kimi_k2": _deepseek,
    "glm4_moe_lite": _deepseek,
    "glm_moe_dsa": _deepseek,
    "mistral4": _deepseek,
    **EARLY_READERS,
}
