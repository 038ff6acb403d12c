"""The network as a ``config.json`` of Hugging Face, for programs that train a model of theirs: DeepSpeed, and FSDP.

Keys: the architectures' ``configuration_*.py`` in huggingface/transformers 5.23, those that ``planner import`` reads.
Architectures written here are Llama, Qwen 2 and 3, Mixtral, Qwen 3 with experts, DeepSeek-V2 and -V3, GLM-4.5, Gemma 2
and 3, and GPT-OSS; of other networks there is no file.
"""

import json
import math
from pathlib import Path
from typing import Any

from planner.exporters.scripts import LATENT, Parsed, in_their_names
from planner.exporters.training_blocks import adapters_of
from planner.numerics import Numerics, Rotary, Routing
from planner.trained import FROZEN_PARTS
from planner.transformer import Transformer

CONFIG = "config.json"
CONFIG_NOTE = f"{CONFIG} is the planned network: AutoModelForCausalLM.from_config(AutoConfig.from_pretrained('.'))"
# PEFT 0.19 reads the first (``peft/tuners/lora/config.py``), transformers the second (``BitsAndBytesConfig``).
ADAPTERS, QUANTISED, FROZEN = "adapter_config.json", "quantization_config.json", "frozen.json"
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
}
_SCALINGS = {"linear": "linear", "dynamic": "dynamic", "llama3": "llama3", "yarn": "yarn"}
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}


def architecture_of(network: Transformer) -> str | None:
    """Return the architecture that a network is one of; None where none that is written has all of its parts."""
    figures, rotary, experts = network.numerics, network.rotary, network.experts
    if network.encoder is not None:
        return None
    if network.norm_position == "both" or network.has_sinks:
        return _windowed_of(network)
    plain = Numerics(norm_epsilon=figures.norm_epsilon, initial_deviation=figures.initial_deviation)
    is_plain = (
        rotary is not None
        and (rotary.without_every, rotary.local_base) == (0, None)
        and network.norm == "rms_norm"
        and network.norm_position == "before"
        and network.has_norm_scales
        and network.is_gated
        and network.is_causal
        and network.activation == "silu"
        and network.head == "language"
        and figures in (plain, Numerics(**{**_fields(plain), "activation": "silu"}))
        and network.kind_counts.keys() <= {"dense", "moe"}
        and not (network.has_biases or network.has_output_bias or network.has_head_bias or network.has_embedding_norm)
        and not (network.has_sinks or network.has_attention_gate or network.window or network.sparse)
        and (not network.has_query_key_norms or network.query_key_norm_span == "head")
    )
    if not is_plain or rotary is None:
        return None
    is_glm = experts is not None and network.latent is None and experts.has_router_bias
    if is_glm and experts is not None and not experts.has_shared_gate and experts.latent_size is None:
        is_like = experts.shared_size == experts.expert_size and experts.every == 1 and experts.num_shared > 0
        return "glm4_moe" if is_like and _is_by_bias(experts.routing) else None
    if rotary.fraction != 1:
        return None
    if experts is None:
        kinds = {(False, False): "llama", (True, False): "qwen2", (False, True): "qwen3"}
        kind = kinds.get((network.has_qkv_biases, network.has_query_key_norms))
        return kind if network.latent is None else None
    if network.has_qkv_biases or experts.has_shared_gate:
        return None
    if network.latent is not None:
        if experts.every > 1 or experts.shared_size != experts.expert_size:
            return None
        if experts.has_router_bias:
            return "deepseek_v3" if experts.routing.score == "sigmoid" else None
        is_second = experts.routing.score == "softmax" and not experts.routing.bias_update_rate
        return "deepseek_v2" if is_second and rotary.is_interleaved else None
    usual = Routing(auxiliary_coefficient=experts.routing.auxiliary_coefficient)
    is_usual = experts.routing.score == usual.score and not experts.num_shared and not experts.has_router_bias
    if not is_usual or experts.groups > 1 or experts.routing.scale != 1:
        return None
    if network.has_query_key_norms:
        return "qwen3_moe" if experts.num_dense_first < experts.every else None
    return "mixtral" if experts.every == 1 and not experts.num_dense_first and experts.routing.is_normalised else None


def _is_by_bias(routing: Routing) -> bool:
    """Whether experts are balanced as DeepSeek-V3's are."""
    return routing.score == "sigmoid" and routing.bias == "selection" and not routing.z_loss


def _windowed_of(network: Transformer) -> str | None:
    """Return which of Gemma 2, Gemma 3 and GPT-OSS a network with norms on both sides, or with sinks, is; or None."""
    figures, rotary, experts = network.numerics, network.rotary, network.experts
    is_plain = (
        rotary is not None
        and (rotary.fraction, rotary.without_every, rotary.is_interleaved) == (1, 0, False)
        and network.norm == "rms_norm"
        and network.has_norm_scales
        and network.sparse is None
        and not network.has_norm_biases
        and network.is_gated
        and network.is_causal
        and network.head == "language"
        and network.latent is None
        and {*network.mixers} <= {"attention", "window"}
        and network.pattern is None
        and not (network.has_head_bias or network.has_embedding_norm or network.has_attention_gate)
        and not (network.has_chunked_windows or network.num_mtp_layers)
    )
    if not is_plain or rotary is None:
        return None
    same: dict[str, Any] = {"norm_epsilon": figures.norm_epsilon, "initial_deviation": figures.initial_deviation}
    if network.has_sinks:
        usual = Numerics(
            **same, activation="quick_gelu", activation_limit=figures.activation_limit or 7.0, gate_offset=1.0
        )
        has_biases = network.has_biases and network.has_qkv_biases and network.has_output_bias
        is_whole = (
            experts is not None
            and (experts.every, experts.num_dense_first, experts.num_shared, experts.groups) == (1, 0, 0, 1)
            and experts.has_router_bias
            and experts.latent_size is None
            and experts.expert_size == network.feed_forward_size
            and experts.routing == Routing(auxiliary_coefficient=experts.routing.auxiliary_coefficient, bias="linear")
        )
        is_oss = is_whole and has_biases and figures == usual and network.norm_position == "before"
        is_oss = is_oss and rotary.local_base is None and not network.has_query_key_norms
        return "gpt_oss" if is_oss else None
    if experts is not None or network.has_biases or network.has_qkv_biases or network.has_output_bias:
        return None
    if not math.isclose(figures.embedding_scale, math.sqrt(network.hidden_size), rel_tol=1e-9):
        return None
    usual = Numerics(
        **same,
        activation="gelu_tanh",
        attention_softcap=figures.attention_softcap,
        logit_softcap=figures.logit_softcap,
        query_scalar=figures.query_scalar,
        embedding_scale=figures.embedding_scale,
        has_zero_centred_norms=True,
    )
    if figures != usual or figures.query_scalar is None:
        return None
    if network.has_query_key_norms:  # with windows on angles of their own
        is_third = network.query_key_norm_span == "head" and rotary.local_base is not None
        return "gemma3_text" if is_third else None
    has_caps = figures.attention_softcap is not None and figures.logit_softcap is not None
    return "gemma2" if has_caps and rotary.local_base is None else None


def _fields(figures: Numerics) -> dict[str, Any]:
    return {name: getattr(figures, name) for name in figures.__dataclass_fields__}


def config_text(network: Transformer, dtype: str) -> str | None:
    """Return the file; None where no architecture that is written has all parts of the network."""
    kind = architecture_of(network)
    if kind is None or network.rotary is None:
        return None
    experts, latent, figures = network.experts, network.latent, network.numerics
    keys: dict[str, Any] = {
        "architectures": [_CLASSES[kind]],
        "model_type": kind,
        "num_hidden_layers": network.num_layers,
        "hidden_size": network.hidden_size,
        "num_attention_heads": network.num_heads,
        "num_key_value_heads": network.num_kv_heads,
        "intermediate_size": network.feed_forward_size,
        "vocab_size": network.vocabulary_size,
        "hidden_act": "silu",
        "rms_norm_eps": figures.norm_epsilon,
        "initializer_range": figures.initial_deviation,
        "tie_word_embeddings": network.has_tied_embeddings,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": _DTYPES.get(dtype, "bfloat16"),
        **_rotary_keys(network.rotary, network.sequence_length),
    }
    if kind == "llama":
        keys["mlp_bias"] = False
    if kind in ("gemma2", "gemma3_text", "gpt_oss"):
        keys |= _window_keys(network, kind)
    if latent is None:
        keys["head_dim"] = network.head_size
    else:
        keys |= {**in_their_names(latent, LATENT), "rope_interleave": network.rotary.is_interleaved}
    if experts is None:
        return json.dumps(keys, indent=2) + "\n"
    routing = experts.routing
    keys["num_experts_per_tok"] = experts.top_k
    if kind == "gpt_oss":
        keys |= {"num_local_experts": experts.num_experts, "router_aux_loss_coef": routing.auxiliary_coefficient}
    elif kind == "mixtral":
        keys |= {"num_local_experts": experts.num_experts, "intermediate_size": experts.expert_size}
        keys["router_aux_loss_coef"] = routing.auxiliary_coefficient
    elif kind == "qwen3_moe":
        keys |= {
            "num_experts": experts.num_experts,
            "moe_intermediate_size": experts.expert_size,
            "decoder_sparse_step": experts.every,
            "mlp_only_layers": [],
            "norm_topk_prob": routing.is_normalised,
            "router_aux_loss_coef": routing.auxiliary_coefficient,
        }
        if experts.every > 1:
            kinds = enumerate(network.layer_kinds)
            keys |= {"decoder_sparse_step": 1, "mlp_only_layers": [index for index, one in kinds if one == "dense"]}
    else:
        keys |= {
            "n_routed_experts": experts.num_experts,
            "n_shared_experts": experts.num_shared,
            "moe_intermediate_size": experts.expert_size,
            "first_k_dense_replace": experts.num_dense_first,
            "n_group": experts.groups,
            "topk_group": experts.top_groups,
            "norm_topk_prob": routing.is_normalised,
            "routed_scaling_factor": routing.scale,
            "scoring_func": routing.score,
            "topk_method": _METHODS[kind][experts.groups > 1],
            "seq_aux": routing.auxiliary_loss == "sequence",
            "aux_loss_alpha": routing.auxiliary_coefficient,
        }
    if kind == "glm4_moe":
        keys |= {"attention_bias": network.has_qkv_biases, "use_qk_norm": network.has_query_key_norms}
        keys["partial_rotary_factor"] = network.rotary.fraction
    return json.dumps(keys, indent=2) + "\n"


# How experts are chosen, without and with groups of them.
_METHODS = {"deepseek_v2": ("greedy", "group_limited_greedy")} | dict.fromkeys(
    ("deepseek_v3", "glm4_moe"), ("noaux_tc", "noaux_tc")
)
_LAYERS = {"attention": "full_attention", "window": "sliding_attention"}


def _real(value: float | None) -> float | None:
    """Return a figure with its point, which transformers asks for."""
    return None if value is None else float(value)


def _window_keys(network: Transformer, kind: str) -> dict[str, Any]:
    """Return the keys of networks with windows: which layers have them, and figures that others have not."""
    figures, number, rotary = network.numerics, len(network.mixers), network.rotary
    keys: dict[str, Any] = {
        "layer_types": [_LAYERS[network.mixers[index % number]] for index in range(network.num_layers)],
        "sliding_window": network.window or network.sequence_length,
    }
    if kind == "gpt_oss":
        if rotary is not None and rotary.scaling is None:  # else it is stretched as the published ones are
            keys["rope_parameters"] = {"rope_type": "default", "rope_theta": rotary.base}
        return keys | {"attention_bias": True, "swiglu_limit": _real(figures.activation_limit)}
    scalar = figures.query_scalar
    keys |= {
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": None if scalar is None else int(scalar) if scalar == int(scalar) else scalar,
        "attn_logit_softcapping": _real(figures.attention_softcap),
        "final_logit_softcapping": _real(figures.logit_softcap),
    }
    if rotary is not None and rotary.local_base is not None:
        keys["rope_local_base_freq"] = rotary.local_base
    return keys


def _rotary_keys(rotary: Rotary, sequence_length: int) -> dict[str, Any]:
    keys: dict[str, Any] = {"max_position_embeddings": rotary.longest or sequence_length, "rope_theta": rotary.base}
    scaling = rotary.scaling
    if scaling is None:
        return keys
    table: dict[str, Any] = {"rope_type": _SCALINGS[scaling.kind], "factor": scaling.factor}
    if scaling.original_length is not None:
        table["original_max_position_embeddings"] = scaling.original_length
    if scaling.kind == "llama3":
        table |= {"low_freq_factor": scaling.low_frequency_factor, "high_freq_factor": scaling.high_frequency_factor}
    if scaling.kind == "yarn":
        table |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
        more = {
            "mscale": scaling.scale,
            "mscale_all_dim": scaling.scale_all,
            "attention_factor": scaling.attention_factor,
        }
        table |= {key: value for key, value in more.items() if value is not None}
        table |= {} if scaling.is_truncated else {"truncate": False}
    return keys | {"rope_scaling": table}


# -- adapters ----------------------------------------------------------------------------------------------------------


def tuning_files(network: Transformer | None) -> dict[str, str]:
    """Return what is trained: adapters as PEFT reads them, with weights in four bits, or frozen parts; else nothing.

    QLoRA's numbers are NormalFloats with scales that have scales (arXiv 2305.14314, section 3).
    """
    tuning = None if network is None else network.fine_tuning
    if network is not None and network.trained.has_frozen:
        said = {"layers": network.trained.frozen_layers, "parts": list(network.trained.frozen_parts)}
        return {FROZEN: json.dumps({key: value for key, value in said.items() if value}, indent=2) + "\n"}
    if tuning is None:
        return {}
    keys: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": tuning.rank,
        "lora_alpha": tuning.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(tuning.modules),
    }
    files = {ADAPTERS: json.dumps(keys, indent=2) + "\n"}
    if tuning.is_quantised:
        four = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
        files[QUANTISED] = json.dumps({**four, "bnb_4bit_compute_dtype": "bfloat16"}, indent=2) + "\n"
    return files


def tuning_beside(path: Path) -> dict[str, object]:
    """Return the block ``fine_tuning`` or ``frozen`` of what stands beside a file; none where nothing does.

    Raises
    ------
    SpecError
        If what stands there is no configuration of adapters, or of frozen parts, or both stand there.
    """
    found: dict[str, Any] = {}
    if (file := _beside(path, ADAPTERS)) is not None:
        method = "qlora" if path.with_name(QUANTISED).is_file() else "lora"
        names = {"rank": "r", "alpha": "lora_alpha", "targets": "target_modules"}
        found["fine_tuning"] = adapters_of(file, file.flags, **names, method=method)
    if (file := _beside(path, FROZEN)) is not None:
        if found:
            raise file.fault(f"adapters ({ADAPTERS}) freeze all of the network already.", hint="Remove one of the two.")
        parts = file.value("parts", [])
        if not isinstance(parts, list) or not all(one in FROZEN_PARTS for one in parts):
            raise file.fault(f"{str(parts)[:60]!r} are no parts.", "parts", f"Write some of {', '.join(FROZEN_PARTS)}.")
        layers = file.count("layers", 0, least=0)
        if not layers and not parts:
            raise file.fault("it freezes nothing.", hint="Write layers: 2, or parts; or leave this file out.")
        found["frozen"] = {key: value for key, value in (("layers", layers), ("parts", parts)) if value}
    return found


def _beside(path: Path, name: str) -> Parsed | None:
    """Return the JSON of another name beside a file; None where there is none."""
    beside = path.with_name(name)
    try:
        return Parsed.of_json(beside, beside.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Parsed(beside, {}).fault(f"it cannot be read: {error}.") from None
