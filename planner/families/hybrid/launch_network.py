"""A network as Megatron-LM is told of it: the program, its options, and what it has no words for.

Names of options: ``megatron/training/arguments.py`` at commit 000c4ac (between core 0.14 and 0.16), and of YaRN and of
hybrid patterns with stages, which are younger, that of megatron-core 0.19.2; what they mean:
``megatron/core/transformer/transformer_config.py`` of megatron-core 0.16.1, for the router
``megatron/core/transformer/moe/moe_utils.py`` (``topk_routing_with_score_function``), for rotary positions
``megatron/core/models/common/embeddings`` (``rotary_pos_embedding.py``: the constants of Llama 3.1's scaling;
``yarn_rotary_pos_embedding.py``).

What changes sizes, seconds or bytes and cannot be said is refused (:func:`not_expressed`). A figure that costs nothing
and has no option, such as an end of YaRN's ramp, is named (:func:`missing_options`): the command is written, and what
is left to do stands beside it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from planner.numerics import Rotary, RotaryScaling
from planner.transformer import KINDS, Transformer
from planner.transformer_parts import Experts

POSITIONS: Mapping[str, str] = {"learned": "learned_absolute", "rotary": "rope", "none": "none"}
NORMS: Mapping[str, str] = {"layer_norm": "LayerNorm", "rms_norm": "RMSNorm"}
# Whether it is gated, and the function -> the option; the usual GELU has none.
ACTIVATIONS: Mapping[tuple[bool, str], str] = {
    (True, "silu"): "swiglu",
    (True, "quick_gelu"): "quick-geglu",
    (False, "relu_squared"): "squared-relu",
    (False, "gelu"): "",
    (False, "gelu_tanh"): "",  # its fused GELU with a bias is the one by tanh
}
AUXILIARY_LOSSES: Mapping[str, str] = {
    "none": "none",
    "batch": "aux_loss",
    "sequence": "seq_aux_loss",
    "global_batch": "global_aux_loss",
}
# Constants of the program: of a scaling only the factor is an option, of YaRN the two scales, too.
LLAMA3_SCALING = {"low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "original_length": 8192}
YARN_SCALING = {"beta_fast": 32.0, "beta_slow": 1.0, "original_length": 4096}
_YARN_SCALE, _YARN_SCALE_ALL = 1.0, 0.0  # what it takes where none is given
HYBRID_SPEC = "megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"
_MTP_SHARE = 0.1  # of the loss of multi-token prediction, its default; DeepSeek-V3 took 0.3, then 0.1
_MAMBA = {"conv_kernel": 4, "chunk_size": 128, "has_conv_bias": True}  # constants of its Mamba layers
_MIXERS = {"attention", "window", "delta"}  # of layers with a feed-forward part


def program_of(network: Transformer) -> str:
    """Return the program that trains a network: one whose layers have one part each has a program of its own."""
    return "pretrain_gpt.py" if network.pattern is None else "pretrain_mamba.py"


def number(value: float) -> str:
    """Return a number as an option has it: whole ones without a point.

    >>> number(500000.0), number(1e-06), number(2.5)
    ('500000', '1e-06', '2.5')
    """
    return str(int(value)) if value == int(value) else repr(float(value))


def not_expressed(network: Transformer) -> list[str]:
    """Return what of a network the program cannot train, in a few words each."""
    mixers = dict.fromkeys(KINDS[kind].mixer for kind in network.kind_counts)
    unlike = [one for one in mixers if network.pattern is None and one not in _MIXERS]
    mamba = network.mamba
    names = {
        f"layers of the kind {', '.join(unlike)}": bool(unlike),
        "multi-token prediction beside layers of one part": network.num_mtp_layers > 0 and network.pattern is not None,
        "kernel of attention to tokens that an indexer chooses (its dsa makes all scores)": network.sparse is not None,
        "windows that are chunks": network.has_chunked_windows,
        "windows beside gated delta layers": "window" in mixers and "delta" in mixers,
        "Mamba layers of other makes": mamba is not None
        and any(getattr(mamba, name) != _MAMBA[name] for name in _MAMBA),
        "modulation by a step and a class": network.has_modulation,
        "attention to later tokens": not network.is_causal,
        f"head '{network.head}'": network.head != "language",
        "images": network.image is not None,
        "encoders of images": network.encoder is not None,
        "ALiBi": network.positions == "alibi",
        f"norms '{network.norm_position}'": network.norm_position != "before",
        "layer norms without biases": network.norm == "layer_norm" and not network.has_norm_biases,
        "norm behind the embedding": network.has_embedding_norm,
        "segments": network.num_token_types > 0,
        "norms without scales": not network.has_norm_scales,
        "biases of all matrices but queries, keys and values": network.has_biases and not network.has_qkv_biases,
        "bias of attention's output unlike the others'": network.has_output_bias != network.has_biases,
        "norms over all heads' queries": network.query_key_norm_scales > 2 * network.head_size,
        "bias of the logits": network.has_head_bias,
        "adapters (Megatron-Bridge has: peft=LoRA(...))": network.fine_tuning is not None,
        "frozen parts": network.trained.has_frozen,
    }
    return [name for name, is_so in names.items() if is_so]


def missing_options(network: Transformer, *, has_yarn: bool = True, has_latent_yarn: bool = False) -> list[str]:
    """Return figures of a network that cost nothing, and for which the program has no option, in a few words each.

    ``has_yarn``: whether it can be told every figure of YaRN beside usual attention, as Megatron-LM can from core 0.19
    on; ``has_latent_yarn``: and beside latent attention, as Megatron-Bridge can.
    """
    figures, is_gated = network.numerics, network.is_gated
    names = {
        f"the activation {network.activation}{' of a gate' * is_gated} ({'silu' if is_gated else 'gelu'} is written)": (
            is_gated,
            network.activation,
        )
        not in ACTIVATIONS,
        f"a cap of attention's scores ({figures.attention_softcap})": figures.attention_softcap is not None,
        f"a cap of the logits ({figures.logit_softcap})": figures.logit_softcap is not None,
        f"scores divided by the root of {figures.query_scalar}": figures.query_scalar not in (None, network.head_size),
        f"the embedding times {figures.embedding_scale:g}": figures.embedding_scale != 1,
        f"residuals times {figures.residual_scale:g}": figures.residual_scale != 1,
        f"logits times {figures.logit_scale:g}": figures.logit_scale != 1,
    }
    found = [name for name, is_so in names.items() if is_so]
    if network.rotary is not None:
        found += _missing_of_rotary(
            network, network.rotary, has_latent_yarn if network.latent is not None else has_yarn
        )
    if (experts := network.experts) is not None:
        routing = experts.routing
        if routing.score == "sigmoid" and not routing.is_normalised and experts.top_k > 1:
            found.append("sigmoid scores that do not add up to one")
        if _selects_by_bias(experts) and routing.score != "sigmoid":
            found.append("a router's bias beside softmax scores")
        # Its router has a bias where other matrices have.
        if (experts.has_router_bias and routing.bias == "linear") != network.has_biases:
            found.append(f"a router with{'out' * network.has_biases} a bias, unlike other matrices")
    return found


def without_yarn(network: Transformer) -> Transformer:
    """Return a network as options without YaRN beside usual attention say it: its rotary positions are not scaled."""
    rotary = network.rotary
    if rotary is None or network.latent is not None or rotary.scaling is None or rotary.scaling.kind != "yarn":
        return network
    return replace(network, rotary=replace(rotary, scaling=None))


def _missing_of_rotary(network: Transformer, rotary: Rotary, has_yarn: bool) -> list[str]:
    """Return what of rotary positions has no option."""
    found, scaling = [], rotary.scaling
    if rotary.base != int(rotary.base):
        found.append(f"a base of rotary positions of {rotary.base} (whole numbers only)")
    if rotary.local_base not in (None, rotary.base):
        found.append(f"another base of rotary positions ({rotary.local_base:g}) where there are windows")
    if network.latent is not None and rotary.without_every:
        found.append("layers without positions beside latent attention")
    if scaling is None or scaling.factor == 1 or (has_yarn and scaling.kind == "yarn"):
        return found
    if scaling.kind == "linear" and scaling.factor == int(scaling.factor) and network.latent is None:
        return found
    constants = {"llama3": LLAMA3_SCALING, "yarn": YARN_SCALING}.get(scaling.kind)
    if constants is None or (scaling.kind == "yarn") != (network.latent is not None):
        return [*found, f"scaling of rotary positions of the kind '{scaling.kind}' {scaling.factor:g} here"]
    for name, value in constants.items():
        if (wanted := getattr(scaling, name)) != value:
            found.append(f"{name.replace('_', ' ')} {wanted:g} of the scaling (its constant is {value:g})")
    if scaling.attention_factor is not None:
        found.append(f"a factor of {scaling.attention_factor:g} of scaled rotary positions")
    return found


def network_lines(network: Transformer, dtype: str, chunks: Sequence[int] = ()) -> list[str]:
    """Return the options of a network, a line for each group of them: sizes, parts, latent attention, experts, tokens.

    What :func:`not_expressed` names is left out; kernels and dropout are as they are counted. ``chunks``: layers of
    each virtual stage, which a pattern of layers is cut into, and nothing else here.
    """
    groups: tuple[Callable[[Transformer], list[str]], ...] = (_sizes, _parts, _positions, _latent, _layers)
    lines = [*(group(network) for group in groups), _stack(network, chunks), _mixture(network, dtype), _tokens(network)]
    return [" ".join(group) for group in lines if group]


def _sizes(network: Transformer) -> list[str]:
    """Return the options of sizes."""
    longest = network.rotary.longest if network.rotary is not None else None
    positions = max(network.sequence_length, network.num_positions, longest or 1)
    is_wide = network.latent is None and network.head_size * network.num_heads != network.hidden_size
    return [
        f"--num-layers {network.num_main_layers} --hidden-size {network.hidden_size}",
        f"--ffn-hidden-size {network.feed_forward_size} --num-attention-heads {network.num_heads}",
        *when(
            network.num_kv_heads != network.num_heads,
            f"--group-query-attention --num-query-groups {network.num_kv_heads}",
        ),
        *when(is_wide, f"--kv-channels {network.head_size}"),
        f"--seq-length {network.sequence_length} --max-position-embeddings {positions}",
    ]


def _parts(network: Transformer) -> list[str]:
    """Return the options of what a block is made of."""
    figures = network.numerics
    positions = "yarn" if without_yarn(network) is not network else POSITIONS.get(network.positions)
    activation = ACTIVATIONS.get((network.is_gated, network.activation), "swiglu" if network.is_gated else "")
    return [
        *when(network.positions in POSITIONS, f"--position-embedding-type {positions}"),
        f"--normalization {NORMS[network.norm]} --norm-epsilon {number(figures.norm_epsilon)}",
        *when(figures.has_zero_centred_norms, "--apply-layernorm-1p"),
        *when(bool(activation), f"--{activation}"),
        *when(
            figures.activation_limit is not None,
            f"--activation-func-clamp-value {number(figures.activation_limit or 0)}",
        ),
        *when(figures.gate_offset != 0, f"--glu-linear-offset {number(figures.gate_offset)}"),
        *when(not network.has_biases, "--disable-bias-linear"),
        *when(not network.has_biases and network.has_qkv_biases, "--add-qkv-bias"),
        # Latent attention's narrow layers have norms.
        *when(network.has_query_key_norms or network.latent is not None, "--qk-layernorm"),
        *when(figures.has_query_key_l2_norms, "--qk-l2-norm"),
        *when(not network.has_tied_embeddings, "--untie-embeddings-and-output-weights"),
        # FlashAttention has no heads of two widths, and no sinks: there the program chooses.
        *when(network.latent is None and not network.has_sinks, "--attention-backend flash"),
        "--attention-dropout 0 --hidden-dropout 0 --cross-entropy-loss-fusion",
        f"--init-method-std {number(figures.initial_deviation)}",
    ]


def _positions(network: Transformer) -> list[str]:
    """Return the options of rotary positions."""
    rotary = network.rotary
    if rotary is None:
        return []
    scaling, is_latent = rotary.scaling, network.latent is not None
    found = [
        f"--rotary-base {int(rotary.base)} --rotary-percent {number(1.0 if is_latent else rotary.fraction)}",
        # Latent attention takes its numbers in neighbouring pairs by itself.
        *when(rotary.is_interleaved and not is_latent, "--rotary-interleaved"),
        *when(rotary.without_every > 0 and not is_latent, f"--no-rope-freq {rotary.without_every}"),
    ]
    if is_latent:  # whose own kind is YaRN, by a factor of 40
        is_yarn = scaling is not None and scaling.kind == "yarn"
        return [
            *found,
            f"--rope-type {'yarn' if is_yarn else 'rope'}",
            *(_yarn(scaling) if is_yarn and scaling else []),
        ]
    if scaling is not None and scaling.kind == "llama3":
        found.append(f"--use-rope-scaling --rope-scaling-factor {number(scaling.factor)}")
    elif scaling is not None and scaling.kind == "yarn":
        figures = {"mscale": scaling.scale, "mscale-all-dim": scaling.scale_all}
        found += [
            f"--rotary-scaling-factor {number(scaling.factor)}",
            f"--yarn-original-max-position-embeddings {scaling.original_length}",
            f"--yarn-beta-fast {number(scaling.beta_fast)} --yarn-beta-slow {number(scaling.beta_slow)}",
            *(f"--{name} {number(value)}" for name, value in figures.items() if value is not None),
            f"--{'no-' * (not scaling.is_truncated)}yarn-correction-range-round-to-int",
        ]
    elif scaling is not None and scaling.kind == "linear" and scaling.factor == int(scaling.factor) != 1:
        found.append(f"--rotary-seq-len-interpolation-factor {int(scaling.factor)}")
    return found


def _yarn(scaling: RotaryScaling) -> list[str]:
    """Return the options of YaRN beside latent attention."""
    scale = _YARN_SCALE if scaling.scale is None else scaling.scale
    scale_all = _YARN_SCALE_ALL if scaling.scale_all is None else scaling.scale_all
    return [
        f"--rotary-scaling-factor {number(scaling.factor)}",
        f"--mscale {number(scale)} --mscale-all-dim {number(scale_all)}",
    ]


def _latent(network: Transformer) -> list[str]:
    """Return the options of latent attention."""
    latent = network.latent
    if latent is None:
        return []
    return [
        "--multi-latent-attention",
        *when(latent.query_rank is not None, f"--q-lora-rank {latent.query_rank}"),
        f"--kv-lora-rank {latent.key_value_rank} --qk-head-dim {latent.nope_size}",
        f"--qk-pos-emb-head-dim {latent.rope_size} --v-head-dim {latent.value_size}",
    ]


def _layers(network: Transformer) -> list[str]:
    """Return the options of layers that are no full attention and feed-forward part."""
    found = [
        *when(network.has_sinks, "--softmax-type learnable"),
        *when(network.has_attention_gate, "--attention-output-gate"),
    ]
    if network.num_mtp_layers:
        found.append(f"--mtp-num-layers {network.num_mtp_layers} --mtp-loss-scaling-factor {_MTP_SHARE}")
    mixers = [KINDS[kind].mixer for kind in _main_kinds(network)]
    if network.window is not None and "window" in mixers:  # it counts the tokens before one, not itself
        found.append(f"--window-size {network.window - 1},0")
        if set(mixers) != {"window"}:
            found.append(f"--window-attn-skip-freq '{_pattern(mixers, 'window')}'")
    if (delta := network.delta) is not None:
        found += [
            f"--experimental-attention-variant gated_delta_net --linear-attention-freq '{_pattern(mixers, 'delta')}'",
            f"--linear-num-key-heads {delta.num_key_heads} --linear-key-head-dim {delta.key_size}",
            f"--linear-num-value-heads {delta.num_value_heads} --linear-value-head-dim {delta.value_size}",
            f"--linear-conv-kernel-dim {delta.conv_kernel}",
        ]
    return found


def _stack(network: Transformer, chunks: Sequence[int]) -> list[str]:
    """Return the options of layers of one part, with ``|`` between virtual stages (from core 0.17 on).

    Source: ``megatron/core/models/hybrid/hybrid_layer_allocation.py`` (``select_pipeline_segment``) of megatron-core
    0.19.2: part number c of them is chunk c // stages of stage c % stages.
    """
    pattern, found = network.pattern, []
    if pattern is not None:
        cuts = [0, *accumulate(chunks)]
        parts = "|".join(pattern[start:end] for start, end in pairwise(cuts))
        named = f"--hybrid-layer-pattern '{parts}'" if chunks else f"--hybrid-override-pattern '{pattern}'"
        found.append(f"--is-hybrid-model --spec {HYBRID_SPEC} {named}")
    if (mamba := network.mamba) is not None:
        found += [
            f"--mamba-num-heads {mamba.num_heads} --mamba-head-dim {mamba.head_size}",
            f"--mamba-state-dim {mamba.state_size} --mamba-num-groups {mamba.num_groups}",
        ]
    return found


def _main_kinds(network: Transformer) -> tuple[str, ...]:
    """Return the kinds of the layers but those of multi-token prediction, which follow from them."""
    return network.layer_kinds[: network.num_main_layers]


def _pattern(mixers: Sequence[str], mixer: str) -> str:
    """Return which layers have a mixer, as a list of ones and zeros that is as short as may be."""
    marks = [int(one == mixer) for one in mixers]
    sizes = (size for size in range(1, len(marks) + 1) if len(marks) % size == 0)
    size = next(size for size in sizes if marks == marks[:size] * (len(marks) // size))
    times = len(marks) // size
    return f"[{','.join(map(str, marks[:size]))}]{f'*{times}' * (times > 1)}"


def _mixture(network: Transformer, dtype: str) -> list[str]:
    """Return the options of experts and of their router; how experts are spread is a decision."""
    experts = network.experts
    if experts is None:
        return []
    marks = [int(KINDS[kind].feed_forward == "moe") for kind in _main_kinds(network)]
    pattern = f"[{','.join(map(str, marks))}]"
    if experts.every == 1:
        pattern = f"[0]*{experts.num_dense_first}+[1]*{len(marks) - experts.num_dense_first}"
    routing = experts.routing
    is_soft = routing.score == "softmax"
    return [
        f"--num-experts {experts.num_experts} --moe-router-topk {experts.top_k}",
        *when(
            experts.groups > 1,
            f"--moe-router-num-groups {experts.groups} --moe-router-group-topk {experts.top_groups}",
        ),
        f"--moe-ffn-hidden-size {experts.expert_size}",
        *when(experts.latent_size is not None, f"--moe-latent-size {experts.latent_size}"),
        *when(network.pattern is None and 0 in marks, f"--moe-layer-freq '({pattern})'"),
        *when(
            experts.num_shared > 0,
            f"--moe-shared-expert-intermediate-size {experts.num_shared * experts.shared_size}",
        ),
        *when(experts.has_shared_gate, "--moe-shared-expert-gate"),  # from core 0.16 on
        f"--moe-router-score-function {routing.score}",
        # Scores of the chosen experts add up to one where softmax comes behind the choice.
        *when(is_soft and not routing.is_normalised, "--moe-router-pre-softmax"),
        *when(routing.scale != 1, f"--moe-router-topk-scaling-factor {number(routing.scale)}"),
        *when(
            _selects_by_bias(experts) and not is_soft,
            f"--moe-router-enable-expert-bias --moe-router-bias-update-rate {number(routing.bias_update_rate)}",
        ),
        f"--moe-router-load-balancing-type {AUXILIARY_LOSSES[routing.auxiliary_loss]}",
        *when(routing.auxiliary_loss != "none", f"--moe-aux-loss-coeff {number(routing.auxiliary_coefficient)}"),
        *when(routing.z_loss > 0, f"--moe-z-loss-coeff {number(routing.z_loss)}"),
        *when(routing.is_input_scaled, "--moe-apply-probs-on-input"),
        *when(dtype == "bf16", "--moe-grouped-gemm"),
    ]


def _selects_by_bias(experts: Experts) -> bool:
    """Whether a number for each expert is added for the choice of experts alone."""
    routing = experts.routing
    return routing.bias == "selection" and (experts.has_router_bias or routing.bias_update_rate > 0)


def _tokens(network: Transformer) -> list[str]:
    """Return the options of made-up data, of the network's vocabulary: the tokenizer adds one token, no more rows."""
    return [
        f"--mock-data --tokenizer-type NullTokenizer --vocab-size {network.vocabulary_size - 1}",
        "--make-vocab-size-divisible-by 1",
        "--split 99,1,0 --train-iters 50 --eval-iters 0 --log-interval 1 --lr 1e-4",
    ]


def when(is_so: bool, option: str) -> tuple[str, ...]:
    """Return an option, or none."""
    return (option,) if is_so else ()
