"""A transformer in the words of Megatron-LM's ``pretrain_gpt.py``, and what of it that program has no words for.

Names of options: ``megatron/training/arguments.py`` of Megatron-LM, at the commit that
:mod:`planner.families.hybrid.launch` names.
"""

from collections.abc import Iterator

from planner.transformer import Transformer

__all__ = ["network_lines", "not_expressed"]

_POSITIONS = {"learned": "learned_absolute", "rotary": "rope", "none": "none"}
_NORMS = {"layer_norm": "LayerNorm", "rms_norm": "RMSNorm"}


def network_lines(network: Transformer, dtype: str) -> list[str]:
    """Return the options of a network, a line for each group of them: sizes, parts, latent attention, experts, tokens.

    What :func:`not_expressed` names is left out.
    """
    groups = (_sizes(network), _parts(network), _latent(network), _experts(network, dtype), _tokens(network))
    return [" ".join(group) for group in map(list, groups) if group]


def not_expressed(network: Transformer) -> list[str]:
    """Return what of a network the program cannot train, in a few words each."""
    names = {
        "attention to later tokens": not network.is_causal,
        f"the head '{network.head}'": network.head != "language",
        "images": network.image is not None,
        "ALiBi": network.positions == "alibi",
        f"norms '{network.norm_position}'": network.norm_position != "before",
        "layer norms without biases": network.norm == "layer_norm" and not network.has_norm_biases,
        "a norm behind the embedding": network.has_embedding_norm,
        "segments": network.num_token_types > 0,
        "norms without scales": not network.has_norm_scales,
        "biases of all matrices but queries, keys and values": network.has_biases and not network.has_qkv_biases,
        "a bias of attention's output unlike the others'": network.has_output_bias != network.has_biases,
        "norms over all heads' queries": network.query_key_norm_scales > 2 * network.head_size,
        "a bias of the logits": network.has_head_bias,
        "a gate of the shared experts": network.experts is not None and network.experts.has_shared_gate,
    }
    return [name for name, is_so in names.items() if is_so]


def _sizes(network: Transformer) -> Iterator[str]:
    """Yield layers, widths, heads and length."""
    yield f"--num-layers {network.num_layers} --hidden-size {network.hidden_size}"
    yield f"--ffn-hidden-size {network.feed_forward_size} --num-attention-heads {network.num_heads}"
    if network.num_kv_heads != network.num_heads:
        yield f"--group-query-attention --num-query-groups {network.num_kv_heads}"
    if network.latent is None and network.head_size * network.num_heads != network.hidden_size:
        yield f"--kv-channels {network.head_size}"
    positions = max(network.sequence_length, network.num_positions)
    yield f"--seq-length {network.sequence_length} --max-position-embeddings {positions}"


def _parts(network: Transformer) -> Iterator[str]:
    """Yield what blocks are made of; kernels and dropout as they are counted."""
    if network.positions in _POSITIONS:
        yield f"--position-embedding-type {_POSITIONS[network.positions]}"
    yield f"--normalization {_NORMS[network.norm]}"
    if network.is_gated:
        yield "--swiglu"
    if not network.has_biases:
        yield "--disable-bias-linear"
        if network.has_qkv_biases:
            yield "--add-qkv-bias"
    if network.has_query_key_norms or network.latent is not None:  # where its narrow layers have norms
        yield "--qk-layernorm"
    if not network.has_tied_embeddings:
        yield "--untie-embeddings-and-output-weights"
    if network.latent is None:
        yield "--attention-backend flash"
    yield "--attention-dropout 0 --hidden-dropout 0 --cross-entropy-loss-fusion"


def _latent(network: Transformer) -> Iterator[str]:
    """Yield latent attention."""
    latent = network.latent
    if latent is not None:
        yield "--multi-latent-attention"
        if latent.query_rank is not None:
            yield f"--q-lora-rank {latent.query_rank}"
        yield f"--kv-lora-rank {latent.key_value_rank} --qk-head-dim {latent.nope_size}"
        yield f"--qk-pos-emb-head-dim {latent.rope_size} --v-head-dim {latent.value_size}"


def _experts(network: Transformer, dtype: str) -> Iterator[str]:
    """Yield the mixture of experts; how they are spread is a decision."""
    experts = network.experts
    if experts is None:
        return
    yield f"--num-experts {experts.num_experts} --moe-router-topk {experts.top_k}"
    yield f"--moe-ffn-hidden-size {experts.expert_size}"
    if network.num_moe_layers < network.num_layers:
        pattern = ",".join("1" if kind == "moe" else "0" for kind in network.layer_kinds)
        first = experts.num_dense_first
        short = f"[0]*{first}+[1]*{network.num_layers - first}" if experts.every == 1 else f"[{pattern}]"
        yield f"--moe-layer-freq '({short})'"
    if experts.num_shared:
        yield f"--moe-shared-expert-intermediate-size {experts.num_shared * experts.shared_size}"
    if experts.has_router_bias:
        yield "--moe-router-score-function sigmoid --moe-router-enable-expert-bias"
        yield "--moe-router-load-balancing-type none"
    else:
        yield "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.01"
    if dtype == "bf16":
        yield "--moe-grouped-gemm"


def _tokens(network: Transformer) -> Iterator[str]:
    """Yield made-up data of the network's vocabulary, to which that tokenizer adds one token."""
    yield f"--mock-data --tokenizer-type NullTokenizer --vocab-size {network.vocabulary_size - 1}"
    yield "--split 99,1,0 --train-iters 50 --eval-iters 0 --log-interval 1 --lr 1e-4"
