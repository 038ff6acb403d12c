"""What a configuration says beside sizes: angles of rotary positions, figures, activations, and the router.

No count depends on it; launch files do. Source, of what a missing key means, too: ``configuration_*.py`` and
``modeling_*.py`` of each architecture in ``huggingface/transformers`` 5.24; rates and weights of losses that no
configuration names stand in the report that is cited beside them.
"""

import math
from collections.abc import Mapping
from typing import Any, get_args

from planner.importers.huggingface.configuration import Fields, shown
from planner.numerics import Activation, Numerics, Rotary, RotaryScaling, RotaryScalingKind, Routing

__all__ = ["numerics_of", "rotary_of", "routing_of"]

# -- rotary positions --------------------------------------------------------------------------------------------------

_BASES = {
    **dict.fromkeys(("cohere", "ernie4_5", "llama4_text", "olmo3"), 5e5),
    **dict.fromkeys(("gemma3_text", "mixtral", "phimoe"), 1e6),
    "gpt_oss": 1.5e5,
}
_FRACTIONS = {
    **dict.fromkeys(("glm", "glm4", "glm4_moe", "nemotron", "phi"), 0.5),
    **dict.fromkeys(("gpt_neox", "qwen3_next", "stablelm"), 0.25),
}
_INTERLEAVED = {"codegen", "cohere", "deepseek_v2", "deepseek_v3", "ernie4_5", "glm", "glm4", "gptj", "kimi_k2"} | {
    *("deepseek_v32", "llama4_text")
}
_LOCAL_BASES = {"gemma3_text": 1e4}
_WITHOUT_EVERY = {"llama4_text": 4, "smollm3": 4}
_YARN_OF_GPT_OSS = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
_KINDS = get_args(RotaryScalingKind)
_PLAIN = ("default", "mrope", "proportional")


def rotary_of(fields: Fields, *, head_size: int) -> Rotary:
    """Return the rotary positions of an architecture that has them; the first faulty figure is noted."""
    name = fields.architecture
    whole = _table(fields, "rope_parameters")
    local = whole.get("sliding_attention")
    angles = whole.get("full_attention", whole)
    scaling = _table(fields, "rope_scaling") or (angles if isinstance(angles, Mapping) else {})
    if name == "gpt_oss" and not whole and not scaling:
        scaling = _YARN_OF_GPT_OSS
    base = _figure(fields, angles, "rope_theta") or fields.figure(
        _BASES.get(name, 1e4), "rope_theta", "rotary_emb_base", "global_rope_theta"
    )
    local_base = _figure(fields, local, "rope_theta") or fields.figure(_LOCAL_BASES.get(name), "rope_local_base_freq")
    fraction = _figure(fields, angles, "partial_rotary_factor")
    if fraction is None:
        turned = fields.figure(None, "rotary_dim")
        usual = _FRACTIONS.get(name, 1.0) if turned is None else turned / head_size
        fraction = fields.figure(usual, "partial_rotary_factor", "rotary_pct", most=1.0)
    longest = fields.count_or(0, "max_position_embeddings", "n_positions", most=2**40)
    if fields.faults:
        return Rotary()
    return Rotary(
        base=base or 1e4,
        local_base=local_base,
        fraction=min(fraction or 1.0, 1.0),
        is_interleaved=fields.flag("rope_interleave", name in _INTERLEAVED),
        without_every=_without_every(fields),
        longest=longest or None,
        scaling=_scaling(fields, scaling, longest),
    )


def _without_every(fields: Fields) -> int:
    """Return after how many layers one has no positions; 0 where all have, or where they follow no step."""
    usual = _WITHOUT_EVERY.get(fields.architecture)
    if usual is None:
        return 0
    named = fields.wholes("no_rope_layers")  # 1 where there are positions
    if not named:
        return fields.count_or(usual, "no_rope_layer_interval")
    without = [index + 1 for index, has_positions in enumerate(named) if not has_positions]
    if not without:
        return 0
    if without != list(range(without[0], len(named) + 1, without[0])):
        fields.notes.append("layers without positions (no_rope_layers) follow no step, which launch files do not say")
        return 0
    return without[0]


def _scaling(fields: Fields, given: Mapping[str, Any], longest: int) -> RotaryScaling | None:
    """Return how angles are stretched; None where they are not."""
    kind = given.get("rope_type", given.get("type", "default"))
    if kind in _PLAIN:
        return None
    if kind not in _KINDS:
        fields.notes.append(f"rotary positions are scaled by {shown(kind)}, which launch files here do not say")
        return None
    keys = {
        "low_frequency_factor": "low_freq_factor",
        "high_frequency_factor": "high_freq_factor",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "scale": "mscale",
        "scale_all": "mscale_all_dim",
        "attention_factor": "attention_factor",
    }
    figures = {name: found for name, key in keys.items() if (found := _figure(fields, given, key)) is not None}
    factor = _figure(fields, given, "factor") or 1.0
    original = _figure(fields, given, "original_max_position_embeddings")
    if original is None and kind in ("llama3", "yarn"):
        original = longest
    if fields.faults:
        return None
    try:
        return RotaryScaling(
            kind=kind,
            factor=factor,
            original_length=int(original or 0) or None,
            is_truncated=given.get("truncate") is not False,
            **figures,
        )
    except ValueError as error:
        fields.fault("rope_scaling", f"{error}", "Write it as the checkpoint's own config.json has it.")
        return None


def _table(fields: Fields, name: str) -> Mapping[str, Any]:
    """Return a nested object; empty where it is left out."""
    value = fields.values.get(name)
    if value is not None and not isinstance(value, Mapping):
        fields.fault(name, f"{shown(value)} is no object.", 'Write e.g. {"rope_type": "linear", "factor": 2.0}.')
    return value if isinstance(value, Mapping) else {}


def _figure(fields: Fields, table: object, name: str) -> float | None:
    """Return a figure above 0 of a nested object; None where it is left out."""
    value = table.get(name) if isinstance(table, Mapping) else None
    if value is None or (value == 0 and not isinstance(value, bool)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e12:
        key = "rope_scaling" if "rope_scaling" in fields.values else "rope_parameters"
        fields.fault(key, f"{name} is {shown(value)}, no number above 0.", "Write e.g. 8.0.")
        return None
    return float(value)


# -- figures and functions ---------------------------------------------------------------------------------------------

_ACTIVATIONS: dict[str, Activation] = {
    **dict.fromkeys(("silu", "swish"), "silu"),
    "gelu": "gelu",
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python_tanh"), "gelu_tanh"),
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    **dict.fromkeys(("relu2", "relu_squared"), "relu_squared"),
}
_USUAL: dict[str, Activation] = {
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), "gelu_tanh"),
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gpt_neo", "gptj", "codegen", "bloom", "phi", "starcoder2"), "gelu_tanh"),
    **dict.fromkeys(("arcee", "nemotron", "nemotron_h"), "relu_squared"),
    "opt": "relu",
    "gpt_oss": "quick_gelu",
}
_DEVIATIONS = {"nemotron": 0.0134, "starcoder2": 0.018042}
_GEMMAS = ("gemma", "gemma2", "gemma3_text")
_ENCODERS = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "vit")


def numerics_of(fields: Fields, sizes: Mapping[str, Any]) -> Numerics:
    """Return the figures of an architecture; ``sizes`` are the fields of its transformer."""
    name = fields.architecture
    usual_epsilon = 1e-12 if name in _ENCODERS else 1e-6 if sizes.get("norm") == "rms_norm" else 1e-5
    if name in ("gpt_oss", "llama4_text", "glm4_moe", "nemotron_h", "mixtral", "olmo2", "olmo3", "olmoe", "phi3"):
        usual_epsilon = 1e-5
    epsilon = fields.figure(
        usual_epsilon,
        *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps", "norm_epsilon"),
        most=1.0,
    )
    caps = (50.0, 30.0) if name == "gemma2" else (None, None)
    is_gemma, is_granite = name in _GEMMAS, name in ("granite", "granitemoe")
    multiplier = fields.figure(None, "attention_multiplier") if is_granite else None
    scaled = {
        "embedding_scale": math.sqrt(sizes["hidden_size"]) if is_gemma else 1.0,
        "residual_scale": 1.0,
        "logit_scale": 1.0,
    }
    if is_granite:
        scaled["embedding_scale"] = fields.figure(1.0, "embedding_multiplier") or 1.0
        scaled["residual_scale"] = fields.figure(1.0, "residual_multiplier") or 1.0
        scaled["logit_scale"] = 1.0 / (fields.figure(1.0, "logits_scaling") or 1.0)
    if name == "cohere":
        scaled["logit_scale"] = fields.figure(0.0625, "logit_scale") or 1.0
    scalar = fields.figure(256.0 if name in ("gemma2", "gemma3_text") else None, "query_pre_attn_scalar")
    deviation = fields.figure(_DEVIATIONS.get(name, 0.02), "initializer_range", "init_std", most=1.0)
    softcaps = (
        fields.figure(caps[0], "attn_logit_softcapping"),
        fields.figure(caps[1], "final_logit_softcapping"),
    )
    activation = _activation(fields, is_gated=bool(sizes.get("is_gated")))
    limit = fields.figure(7.0, "swiglu_limit") if name == "gpt_oss" else None
    if fields.faults:
        return Numerics()
    return Numerics(
        norm_epsilon=epsilon or usual_epsilon,
        activation=activation,
        activation_limit=limit,
        gate_offset=1.0 if name == "gpt_oss" else 0.0,
        initial_deviation=deviation or 0.02,
        attention_softcap=softcaps[0],
        logit_softcap=softcaps[1],
        query_scalar=scalar if multiplier is None else multiplier**-2,
        has_zero_centred_norms=is_gemma or name in ("nemotron", "qwen3_next"),
        has_query_key_l2_norms=name == "llama4_text" and fields.flag("use_qk_norm", True),
        **scaled,
    )


def _activation(fields: Fields, *, is_gated: bool) -> Activation | None:
    """Return the function of the feed-forward part; None where it follows from the gate, or has no name here."""
    name = fields.architecture
    if name == "gpt_oss":  # it says silu, and is a gate of its own: x sigmoid(1.702 x)
        return "quick_gelu"
    usual: Activation = _USUAL.get(name, "silu" if is_gated else "gelu")
    word = fields.word("mlp_hidden_act", "hidden_activation", "hidden_act", "activation_function", "act_fn")
    if name == "gemma":  # whose first configurations say gelu, and mean its approximation
        word = ""
    found = _ACTIVATIONS.get(word) if word else usual
    if found is None:
        fields.notes.append(f"the activation {shown(word)} has no name in launch files here; {usual} stands for it")
        found = usual
    return None if found == ("silu" if is_gated else "gelu") else found


# -- routers -----------------------------------------------------------------------------------------------------------

# Balanced by a bias. Rate and weight: DeepSeek-AI, arXiv 2412.19437, section 4.2; GLM-4.5 team, arXiv 2508.06471,
# section 2.4; NVIDIA, Nemotron 3 Nano, section 2.
_BY_BIAS = ("deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe", "nemotron_h")
_BIAS_RATE, _BESIDE_BIAS = 1e-3, 1e-4
_SEQUENCE = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe")
_NOT_NORMALISED = ("qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text", "olmoe", "deepseek_v2", "llama4_text", "phimoe")
_SCORES = ("softmax", "sigmoid")


def routing_of(fields: Fields) -> Routing:
    """Return how the router of an architecture with experts scores and balances."""
    name = fields.architecture
    word = fields.word("scoring_func") or ("sigmoid" if name in (*_BY_BIAS, "llama4_text") else "softmax")
    if word not in _SCORES:
        fields.fault("scoring_func", f"{shown(word)} is no score of experts.", "Write softmax or sigmoid.")
    is_by_bias = name in _BY_BIAS
    weight = fields.figure(_BESIDE_BIAS if is_by_bias else 1e-3, "aux_loss_alpha", "router_aux_loss_coef")
    scale = fields.figure(2.5 if name in ("deepseek_v3", "deepseek_v32") else 1.0, "routed_scaling_factor")
    z_loss = fields.figure(0.0, "router_z_loss_coef")
    is_normalised = fields.flag("norm_topk_prob", name not in _NOT_NORMALISED)
    is_of_sequence = fields.flag("seq_aux", name in _SEQUENCE)
    if fields.faults:
        return Routing()
    return Routing(
        score="sigmoid" if word == "sigmoid" else "softmax",
        is_normalised=is_normalised,
        scale=scale or 1.0,
        is_input_scaled=name == "llama4_text",
        # Qwen team, arXiv 2505.09388, section 2: over the global batch.
        auxiliary_loss=(
            "none"
            if not weight
            else "sequence"
            if is_of_sequence
            else "global_batch"
            if name.startswith(("qwen3_moe", "qwen3_next", "qwen3_vl_moe"))
            else "batch"
        ),
        auxiliary_coefficient=weight or 0.0,
        bias="linear" if name == "gpt_oss" else "selection",
        bias_update_rate=_BIAS_RATE if is_by_bias else 0.0,
        z_loss=z_loss or 0.0,
    )
