"""The network as a ``config.json`` of Hugging Face, for programs that train a model of theirs: DeepSpeed, and FSDP.

Keys: the architectures' ``configuration_*.py`` in huggingface/transformers 5.23, those that ``planner import`` reads.
Architectures written here are Llama, Qwen 2 and 3, Mixtral, Qwen 3 with experts, and DeepSeek-V3; of other networks
there is no file.
"""

import json
from typing import Any

from planner.numerics import Numerics, Rotary, Routing
from planner.transformer import Transformer

__all__ = ["CONFIG", "CONFIG_NOTE", "architecture_of", "config_text"]

CONFIG = "config.json"
CONFIG_NOTE = f"{CONFIG} is the planned network: AutoModelForCausalLM.from_config(AutoConfig.from_pretrained('.'))"
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}
_SCALINGS = {"linear": "linear", "dynamic": "dynamic", "llama3": "llama3", "yarn": "yarn"}
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}


def architecture_of(network: Transformer) -> str | None:
    """Return the architecture that a network is one of; None where none that is written has all of its parts."""
    figures, rotary, experts = network.numerics, network.rotary, network.experts
    plain = Numerics(norm_epsilon=figures.norm_epsilon, initial_deviation=figures.initial_deviation)
    is_plain = (
        rotary is not None
        and (rotary.fraction, rotary.without_every, rotary.local_base) == (1, 0, None)
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
    if not is_plain:
        return None
    if experts is None:
        kinds = {(False, False): "llama", (True, False): "qwen2", (False, True): "qwen3"}
        kind = kinds.get((network.has_qkv_biases, network.has_query_key_norms))
        return kind if network.latent is None else None
    if network.has_qkv_biases or experts.has_shared_gate:
        return None
    if network.latent is not None:
        is_deepseek = experts.routing.score == "sigmoid" and experts.every == 1 and experts.has_router_bias
        return "deepseek_v3" if is_deepseek and experts.shared_size == experts.expert_size else None
    usual = Routing(auxiliary_coefficient=experts.routing.auxiliary_coefficient)
    is_usual = experts.routing.score == usual.score and not experts.num_shared and not experts.has_router_bias
    if not is_usual or experts.groups > 1 or experts.routing.scale != 1:
        return None
    if network.has_query_key_norms:
        return "qwen3_moe" if experts.num_dense_first < experts.every else None
    return "mixtral" if experts.every == 1 and not experts.num_dense_first and experts.routing.is_normalised else None


def _fields(figures: Numerics) -> dict[str, Any]:
    """Return figures by name."""
    return {name: getattr(figures, name) for name in figures.__slots__}


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
    if latent is None:
        keys["head_dim"] = network.head_size
    else:
        keys |= {
            "q_lora_rank": latent.query_rank,
            "kv_lora_rank": latent.key_value_rank,
            "qk_nope_head_dim": latent.nope_size,
            "qk_rope_head_dim": latent.rope_size,
            "v_head_dim": latent.value_size,
            "rope_interleave": network.rotary.is_interleaved,
        }
    if experts is None:
        return json.dumps(keys, indent=2) + "\n"
    routing = experts.routing
    keys["num_experts_per_tok"] = experts.top_k
    if kind == "mixtral":
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
            "topk_method": "noaux_tc",
            "seq_aux": routing.auxiliary_loss == "sequence",
            "aux_loss_alpha": routing.auxiliary_coefficient,
        }
    return json.dumps(keys, indent=2) + "\n"


def _rotary_keys(rotary: Rotary, sequence_length: int) -> dict[str, Any]:
    """Return the keys of rotary positions."""
    keys: dict[str, Any] = {
        "max_position_embeddings": rotary.longest or sequence_length,
        "rope_theta": rotary.base,
    }
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
