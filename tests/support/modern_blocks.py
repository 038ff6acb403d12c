"""Small networks of the kinds of Llama 3.1, Qwen 3 with experts, and DeepSeek-V3, as a spec writes them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hybrid_questions import TINY

from planner.transformer import Transformer

__all__ = ["DEEPSEEK", "LLAMA", "MODERN", "QWEN", "as_used"]

MODERN: dict[str, Any] = {"gated": True, "positions": "rotary", "norm": "rms_norm", "biases": False}
LLAMA: Mapping[str, Any] = {
    **{**TINY, **MODERN, "kv_heads": 4, "tied_embeddings": False},
    "rotary": {"base": 500000, "scaling": {"kind": "llama3", "factor": 8, "original_length": 8192}},
}
QWEN: Mapping[str, Any] = {
    **{**TINY, **MODERN, "kv_heads": 4, "head_size": 64, "query_key_norms": True, "numerics": {"norm_epsilon": 1e-6}},
    "experts": {"count": 8, "top_k": 2, "size": 512, "routing": {"auxiliary_coefficient": 0.001}},
}
DEEPSEEK: Mapping[str, Any] = {
    **{**TINY, **MODERN, "layers": 6, "numerics": {"norm_epsilon": 1e-6}},
    "latent_attention": {"query_rank": 256, "key_value_rank": 128, "rope_size": 64, "nope_size": 64, "value_size": 64},
    "experts": {
        **{"count": 8, "top_k": 2, "size": 512, "shared": 1, "dense_first": 2, "router_bias": True},
        **{"groups": 4, "top_groups": 2},
        "routing": {"score": "sigmoid", "scale": 2.5, "bias_update_rate": 0.001, "auxiliary_loss": "none"},
    },
    "rotary": {
        "interleaved": True,
        "longest": 163840,
        "scaling": {"kind": "yarn", "factor": 40, "original_length": 4096, "scale": 1},
    },
}


def as_used(network: Transformer) -> Transformer:
    """The network, its dense width that of its experts where no layer is dense, as MaxText wants it."""
    if network.experts is None or network.num_moe_layers < network.num_layers:
        return network
    return replace(network, feed_forward_size=network.experts.expert_size)
