"""MaxText: ``maxtext.yml`` on top of its ``base.yml``, and the command that starts it, for TPUs and GPUs.

Keys: ``src/maxtext/configs/base.yml`` of github.com/AI-Hypercomputer/maxtext (release 0.2), and the networks beside it
(``src/maxtext/configs/models``: ``llama3.1-405b``, ``qwen3-*``, ``mixtral-8x7b``, ``deepseek3-671b``, ``gpt3-175b``)
for which block has which parts. A mesh axis is a product of its share within a slice (``ici_*``) and across slices
(``dcn_*``); a slice is what the plan calls a machine. A batch is ``per_device_batch_size`` times all devices times
``gradient_accumulation_steps``. Keys are held against a table of those that ``base.yml`` has (``KNOWN``; others it
refuses), and a test with 0.2.5 installed asks its own reader (``maxtext.configs.pyconfig``), whose conditions stand in
``src/maxtext/configs/types.py``: a mixture of experts alone has one width (``base_mlp_dim``), Muon goes with some
blocks, a ring with GPUs, the pipeline of DeepSeek's block holds the layers with experts alone.

Routing (``src/maxtext/layers/moe.py``, ``get_topk``): scores of the chosen experts pass a softmax, but for DeepSeek's
block, whose sigmoids it makes add up to one and scales by itself (``norm_topk_prob`` would undo the scale); by groups,
and with a bias for the choice alone, it routes where ``model_name`` begins with ``deepseek3``. A named model takes its
sizes from its own file before those of this one, so that the command repeats them.

Products in eight bits are Qwix's on TPUs (``quantization: fp8_full`` with ``use_qwix_quantization``, of
``src/maxtext/layers/quantizations.py``: values in e4m3, gradients in e5m2, in all layers and, where they are asked for,
those of multi-token prediction, but for the router's); on GPUs others do it, of which none is written here.

What it does otherwise: the axis ``fsdp`` shares weights, gradients and state (ZeRO 3), ``data`` copies them, or shares
the optimiser's state alone (``shard_optimizer_over_data``); a pipeline runs the forward passes of all micro-batches
before the first backward one.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import gcd, nextafter, prod
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError
from planner.exporters.export import Export, Exporter, Job, TrainingBlocks, job_name
from planner.exporters.huggingface_config import architecture_of
from planner.exporters.kubernetes import documents_of, yaml_text
from planner.exporters.layouts import Layout, shared_pins, transformer_layout
from planner.exporters.machines import device_of
from planner.exporters.megatron_network import built, figure, named_word, with_points
from planner.exporters.scripts import LATENT, Parsed, comment_lines, in_their_names, is_headed, shipped_words, wrapped
from planner.families.hybrid.configuration import HybridConfiguration, PipelineStage
from planner.numerics import Numerics, Rotary, RotaryScaling, Routing
from planner.transformer import Transformer
from planner.transformer_parts import Experts, LatentAttention

TARGET, VERSION, CONFIG = "maxtext", "MaxText 0.2", "maxtext.yml"
_HEAD = "planner.export/1 maxtext"
_EIGHT_BITS = "fp8_full"  # of Qwix
_NUMBERS = {"bf16": "bfloat16", "fp32": "float32"}
_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd", "muon": "muon"}
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu", "relu": "relu"}
_REMAT = {"none": "minimal_with_context", "selective": "minimal", "full": "full"}
# Kind of decision -> mesh axis, from the innermost tier of the network outwards; sequence parallelism has its own.
_AXES = ("tensor", "tensor_sequence", "context", "expert", "fsdp", "data", "pipeline")
_STRATEGIES = {"all_gather": "all_gather", "ring": "ring"}  # of context ranks, of which the second is for GPUs
_ROUTES = "deepseek3-671b"  # the model that is routed as DeepSeek-V3 is
_MUON = ("deepseek", "qwen3", "llama2")  # blocks that it has dimensions of matrices for
_OSS = Numerics(activation="quick_gelu", activation_limit=7.0, gate_offset=1.0)
_MTP_SHARE = 0.1  # of the loss of multi-token prediction, its default
# Names of keys of ``base.yml`` at commit 000b810, of what a training of a language model is made up of.
_MESH = (f"{where}_{axis}_parallelism" for where in ("ici", "dcn") for axis in _AXES)
KNOWN = frozenset({*shipped_words("maxtext_keys"), *_MESH})
_LLAMA3 = RotaryScaling(kind="llama3", factor=8.0, original_length=8192)  # its constants
_SHARDS_STATE, _SHARDS_GRADIENTS, _SHARDS_WEIGHTS = 1, 2, 3  # stages of ZeRO


def export(job: Job) -> Export:
    """Return the configuration, and a script that every host runs.

    Raises
    ------
    InfeasibleError
        For networks that none of its blocks is like, and for layouts that its mesh cannot have.
    """
    layout, network = transformer_layout(TARGET, job, kinds=("gpu", "tpu"), low=("fp8",))
    if strange := _strange(network):
        raise layout.refused(f"none of its blocks has {', or '.join(strange)}", "Export to megatron, or to deepspeed.")
    layout = _as_run(layout, network)
    if job.settings.script is not None:
        layout = layout.noted("--script: not used, since MaxText brings its own program")
    kind = device_of(job, layout.rows[0]).kind
    sizes = _network_keys(network)
    named = {"model_name": _ROUTES, "override_model_config": True} if _is_routed(network) else {}
    keys = {
        "base_config": "base.yml",
        "run_name": job_name(job),
        "base_output_directory": "./output",
        "hardware": kind,
        **({"attention": "cudnn_flash_te", "max_segments_per_seq": 32} if kind == "gpu" else {}),
        **named,
        **sizes,
        **_layout_keys(layout, network),
        "opt_type": _OPTIMIZERS[job.problem.training.optimizer],
        "dataset_type": "synthetic",
        "steps": 50,
        "learning_rate": 1e-4,
        "enable_checkpointing": False,
    }
    head = [f"{_HEAD}, for {VERSION}: {job.problem.dnn.name}, {layout.chosen.headline}", *layout.notes]
    files = {CONFIG: with_points(yaml_text([keys], head)), "launch.sh": _script(layout, kind, sizes if named else {})}
    how = (f"bash launch.sh   # on every host, in the folder of {CONFIG}",)
    return Export(target=TARGET, version=VERSION, files=files, notes=layout.notes, how_to_run=how)


def _script(layout: Layout, kind: str, repeated: Mapping[str, Any]) -> str:
    """Return the script that starts one process a host: JAX finds the others by itself on TPUs.

    ``repeated``: keys that a named model's own file would say otherwise.
    """
    head = comment_lines([f"{VERSION}: {layout.job.problem.dnn.name}, {layout.chosen.headline}", *layout.notes])
    lines = ["#!/usr/bin/env bash", *head, "set -euo pipefail"]
    if kind == "gpu" and (number := sum(row.num_machines for row in layout.rows)) > 1:
        lines += [
            f': "${{NODE_RANK:?0 to {number - 1}, another on every machine}}"',
            ': "${MASTER_ADDR:?the name or address of the machine with NODE_RANK 0}"',
            f'export JAX_COORDINATOR_IP="$MASTER_ADDR" JAX_COORDINATOR_PORT=12345 NNODES={number}',
            'export NODE_RANK JAX_PROCESS_COUNT="$NNODES"',
        ]
    words = [f'exec python3 -m maxtext.trainers.pre_train.train "$PWD/{CONFIG}"']
    if repeated:
        words += [f"model_name={_ROUTES}", "override_model_config=true"]
        words += [f"{key}={_word(value)}" for key, value in repeated.items() if not isinstance(value, list)]
    return "\n".join([*lines, wrapped(words)]) + "\n"


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- what it cannot do -------------------------------------------------------------------------------------------------


def _block(network: Transformer) -> str | None:
    """Return the decoder block that a network is made of; None where there is none."""
    if network.has_sinks:
        return "gpt_oss" if _is_oss(network) else None
    is_modern = network.positions == "rotary" and network.norm == "rms_norm" and network.is_gated
    experts = network.experts
    if not is_modern:
        is_gpt = network.positions == "learned" and network.norm == "layer_norm" and not network.is_gated
        return "gpt3" if is_gpt and network.has_biases and experts is None and network.latent is None else None
    if network.latent is not None:
        return "deepseek" if experts is not None else None
    if experts is not None:
        return "qwen3_moe" if network.has_query_key_norms else "mixtral"
    return "qwen3" if network.has_query_key_norms else "llama2"


def _is_oss(network: Transformer) -> bool:
    """Whether it is a GPT-OSS: windows in every second layer from the first on, experts everywhere, its gate."""
    figures, mixers = network.numerics, network.mixers
    usual = replace(_OSS, norm_epsilon=figures.norm_epsilon, initial_deviation=figures.initial_deviation)
    is_like = architecture_of(network) == "gpt_oss" and mixers == ("window", "attention")
    return is_like and figures == usual and network.num_layers % len(mixers) == 0


def _is_routed(network: Transformer) -> bool:
    """Whether experts are chosen by groups, or by a bias that does not weigh them."""
    experts = network.experts
    return experts is not None and network.latent is not None and (experts.groups > 1 or experts.has_router_bias)


def _strange(network: Transformer) -> list[str]:
    """Return what of a network none of its blocks has, in a few words each."""
    experts, block, rotary = network.experts, _block(network), network.rotary
    scaling = rotary.scaling if rotary is not None else None
    names = {
        "its positions, norms and feed-forward parts together": block is None,
        "these kinds of layers": block != "gpt_oss"
        and not {kind.removeprefix("mtp+") for kind in network.kind_counts} <= {"dense", "moe"},
        "sinks of attention beside other parts than GPT-OSS's": network.has_sinks and block != "gpt_oss",
        "experts narrower than the stream": network.routed_width != network.hidden_size,
        "attention to tokens that an indexer chooses": network.sparse is not None,
        "a gate of attention": network.has_attention_gate,
        "encoders of images": network.encoder is not None,
        "attention to later tokens": not network.is_causal,
        f"the head '{network.head}'": network.head != "language",
        f"norms '{network.norm_position}'": network.norm_position != "before",
        "norms without scales": not network.has_norm_scales,
        "a norm behind the embedding": network.has_embedding_norm,
        "a bias of the logits": network.has_head_bias,
        "biases beside rotary positions": block not in ("gpt3", "gpt_oss")
        and (network.has_biases or network.has_output_bias),
        "norms over all heads' queries": network.query_key_norm_scales > 2 * network.head_size,
        "heads of keys and values beside learned positions": block == "gpt3"
        and network.num_kv_heads != network.num_heads,
        f"the activation {network.activation}": block != "gpt_oss" and network.activation not in _ACTIVATIONS,
        "a share of a head turned by rotary positions": rotary is not None and rotary.fraction != 1,
        "layers without rotary positions": rotary is not None and rotary.without_every > 0,
        "this scaling of rotary positions": scaling is not None and not _is_scaled(scaling, network),
    }
    if experts is not None:
        names |= {
            "every so-many-th layer with experts": experts.every != 1,
            "dense layers before those with experts": block != "deepseek" and experts.num_dense_first > 0,
            "shared experts": block != "deepseek" and experts.num_shared > 0,
            "shared experts of another width": experts.num_shared > 0 and experts.shared_size != experts.expert_size,
            "a gate of the shared experts": experts.has_shared_gate,
            "a router's bias": block not in ("deepseek", "gpt_oss") and experts.has_router_bias,
            "a bias that follows the load of experts": block != "deepseek" and experts.routing.bias_update_rate > 0,
            "groups of experts": block != "deepseek" and experts.groups > 1,
            f"{experts.routing.score} scores, {'' if experts.routing.is_normalised else 'not '}made to add up to one, "
            f"times {experts.routing.scale:g}": not _has_scores(block, experts.routing),
        }
    return [name for name, is_so in names.items() if is_so]


def _has_scores(block: str | None, routing: Routing) -> bool:
    """Whether a block makes the scores of the chosen experts so."""
    if block != "deepseek":
        return (routing.score, routing.is_normalised, routing.scale) == ("softmax", True, 1)
    return routing.is_normalised == (routing.score == "sigmoid")


def _is_scaled(scaling: RotaryScaling, network: Transformer) -> bool:
    """Whether it has a scaling of rotary positions; that of Llama 3.1 has no figures to be told."""
    if scaling.kind == "yarn":  # whose factor of queries and keys follows from the scaling
        is_told = network.latent is not None or (scaling.scale, scaling.scale_all) == (None, None)
        return is_told and scaling.attention_factor is None
    return scaling.kind == "linear" or scaling == _LLAMA3


def _check_training(layout: Layout, network: Transformer) -> None:
    """Refuse numbers and optimisers that it has not, or not for the network."""
    if layout.dtype not in _NUMBERS:
        raise layout.refused(f"it trains in bf16 or fp32 here, not in {layout.dtype}", "Write dnn.dtype: bf16.")
    if (name := layout.job.problem.training.optimizer) not in _OPTIMIZERS:
        raise layout.refused(f"it has no optimiser {name}", f"Write dnn.optimizer: {' or '.join(_OPTIMIZERS)}.")
    if name == "muon" and (block := _block(network)) not in _MUON:
        raise layout.refused(f"its Muon has no matrices of the block {block}", "Write dnn.optimizer: adam.")
    if (low := layout.job.problem.training.low) is None:
        return
    if device_of(layout.job, layout.rows[0]).kind != "tpu":
        hint = "Write dnn.dtype: bf16; or export to megatron, megatron-bridge, primus or torchtitan."
        raise layout.refused(f"what is written for it has no products in {low.name} but on TPUs", hint)
    if low.wide_layers:
        raise layout.refused("its products in fp8 are those of all layers", "Write dnn.bf16_layers: 0.")


def _as_run(layout: Layout, network: Transformer) -> Layout:
    """Return the layout as MaxText runs it, every change with its note."""
    _check_training(layout, network)
    layout = _with_strategy(layout.with_plain_recomputation())
    chosen = layout.chosen
    if chosen.pipeline > 1 and network.latent is not None and network.experts and network.experts.num_dense_first:
        why = f"its pipeline holds the layers with experts alone, without the first {network.experts.num_dense_first}"
        raise layout.refused(why, "Pin fix.num_stages: 1.")
    if len(chosen.groups) > 1:
        raise layout.refused("it compiles one program for devices of one kind", "Pin fix.device.")
    if not chosen.is_even:
        raise layout.refused(
            "it gives every stage the same number of layers", "Pin a number of stages that divides the layers."
        )
    if chosen.pipeline > 1 and network.num_mtp_layers:
        raise layout.refused("multi-token prediction goes with one stage only", "Pin fix.num_stages: 1.")
    if network.num_layers % (chosen.pipeline * chosen.interleave):
        why = f"its {network.num_layers} layers do not divide by {chosen.pipeline} x {chosen.interleave} stages"
        raise layout.refused(why, "Pin a number of stages that divides them.")
    if chosen.pipeline > 1 and chosen.num_microbatches % chosen.pipeline:
        why = f"its micro-batches are a multiple of the {chosen.pipeline} stages, not {chosen.num_microbatches}"
        raise layout.refused(why, "Pin fix.num_microbatches.")
    if chosen.pipeline > 1 and chosen.schedule != "gpipe":
        why = "its pipeline runs all forward passes before the first backward one (GPipe)"
        layout = layout.instead(why, schedule="gpipe", interleave=1)
    if chosen.data > 1 and chosen.zero == _SHARDS_GRADIENTS:
        why = "where it shares gradients, it shares weights, too (ZeRO 3)"
        layout = layout.instead(why, zero=_SHARDS_WEIGHTS if chosen.pipeline == 1 else _SHARDS_STATE)
    if layout.chosen.zero == _SHARDS_STATE:
        layout = layout.with_whole_shards()
    if network.experts is not None and chosen.expert_tensor != chosen.tensor:
        why = "its experts are cut by the tensor degree, as all else is"
        if network.experts.expert_size % chosen.tensor:
            raise layout.refused(f"{why}, and {network.experts.expert_size} columns do not divide", "Pin another.")
        layout = layout.instead(why, expert_tensor=chosen.tensor)
    if chosen.data % chosen.expert:
        why = f"its experts are spread over data ranks, and {chosen.data} do not divide by {chosen.expert}"
        raise layout.refused(why, "Pin fix.expert_parallel_size to a divisor of the data-parallel degree.")
    return layout.noted(*_left(layout, network)).with_usual_order()


def _with_strategy(layout: Layout) -> Layout:
    """Return the layout whose keys and values reach context ranks as MaxText has it: gathered, on GPUs by a ring."""
    if layout.chosen.context == 1:
        return layout
    is_gpu = device_of(layout.job, layout.rows[0]).kind == "gpu"
    if layout.chosen.context_method == "all_gather" or (is_gpu and layout.chosen.context_method == "ring"):
        return layout
    return layout.instead("its context ranks gather keys and values", context_method="all_gather")


def _left(layout: Layout, network: Transformer) -> list[str]:
    """Return what it does otherwise in ways that no figure is known of."""
    chosen, notes = layout.chosen, []
    if (low := layout.job.problem.training.low) is not None:
        notes.append(
            f"its fp8 (Qwix) has a scale for each channel, found as it is turned; the plan counts {low.recipe}"
        )
    if max(chosen.context, chosen.expert) > 1 and layout.chosen.zero != _SHARDS_WEIGHTS:
        notes.append("ranks that share a sequence, or experts, share the other weights, too (as ZeRO 3 does)")
    if chosen.recompute != "none":
        notes.append("what is computed again is XLA's to choose; remat_policy names the nearest of its kinds")
    if network.experts is not None and network.experts.routing.auxiliary_loss in ("sequence", "global_batch"):
        notes.append("the loss that balances its experts takes means over the tokens of a micro-batch")
    if network.latent is not None and network.rotary is not None and network.rotary.scaling is None:
        notes.append("rotary positions are not scaled: the factor of its YaRN is 1")
    return notes


# -- keys --------------------------------------------------------------------------------------------------------------


def _network_keys(network: Transformer) -> dict[str, Any]:
    figures, experts, latent = network.numerics, network.experts, network.latent
    activation = "sigmoid" if network.has_sinks else _ACTIVATIONS[network.activation]
    is_mixture = experts is not None and experts.num_dense_first == 0  # which has one width
    keys: dict[str, Any] = {
        "decoder_block": _block(network),
        "base_emb_dim": network.hidden_size,
        "base_num_query_heads": network.num_heads,
        "base_num_kv_heads": network.num_kv_heads,
        **({"head_dim": network.head_size} if latent is None else {}),
        "base_mlp_dim": experts.expert_size if experts is not None and is_mixture else network.feed_forward_size,
        "base_num_decoder_layers": network.num_main_layers,
        "mtp_num_layers": network.num_mtp_layers,
        "mtp_loss_scaling_factor": _MTP_SHARE,
        "vocab_size": network.vocabulary_size,
        "max_target_length": network.sequence_length,
        "mlp_activations": [activation, "linear"] if network.is_gated else [activation],
        "logits_via_embedding": network.has_tied_embeddings,
        "normalization_layer_epsilon": figures.norm_epsilon,
        "attention_bias": network.has_qkv_biases,
        "use_qk_norm": network.has_query_key_norms,
        "enable_dropout": False,
    }
    if network.positions == "learned":
        keys["trainable_position_size"] = network.num_positions
    if network.rotary is not None:
        keys |= _rotary_keys(network.rotary, network.sequence_length, is_latent=latent is not None)
    if figures.attention_softcap is not None:
        keys["attn_logits_soft_cap"] = figures.attention_softcap
    if figures.logit_softcap is not None:
        keys["final_logits_soft_cap"] = figures.logit_softcap
    if network.has_sinks:
        keys |= {"attention_sink": True, "sliding_window_size": network.window, "mlp_bias": True}
        keys |= {"mlp_activations_limit": figures.activation_limit, "inhomogeneous_layer_cycle_interval": 2}
    if latent is not None:
        keys |= {"attention_type": "mla", **in_their_names(latent, LATENT), "q_lora_rank": latent.query_rank or 0}
    return keys | (_expert_keys(experts, is_own=latent is not None) if experts is not None else {})


def _rotary_keys(rotary: Rotary, sequence_length: int, *, is_latent: bool) -> dict[str, Any]:
    """Return the keys of rotary positions; latent attention has the scale of YaRN in its scores."""
    scaling = rotary.scaling
    keys: dict[str, Any] = {
        "rope_type": "default",
        "rope_max_timescale": int(rotary.base),
        "max_position_embeddings": rotary.longest or sequence_length,
        "rope_interleave": rotary.is_interleaved,
    }
    if rotary.local_base is not None:
        keys["local_rope_max_timescale"] = int(rotary.local_base)
    if scaling is None:
        return keys
    if scaling.kind == "linear":
        return keys | {"rope_linear_scaling_factor": scaling.factor}
    if scaling.kind == "llama3":
        return keys | {"rope_type": "llama3.1", "rope_use_scale": True}
    return keys | {
        "rope_type": "yarn",
        "rope_factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_length,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        **({"mscale": 1.0 if scaling.scale is None else scaling.scale} if is_latent else {}),
        "rope_truncate": scaling.is_truncated,
        "rope_attention_scaling": not is_latent,
    }


def _expert_keys(experts: Experts, *, is_own: bool) -> dict[str, Any]:
    """Return the keys of experts and their router; ``is_own``: which DeepSeek's block has of its own."""
    routing = experts.routing
    keys: dict[str, Any] = {
        "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.top_k,
        "base_moe_mlp_dim": experts.expert_size,
        "shared_experts": experts.num_shared,
        "first_num_dense_layers": experts.num_dense_first,
        "norm_topk_prob": routing.is_normalised and not is_own,
        "routed_scaling_factor": routing.scale,
        "routed_score_func": routing.score if is_own else "",
        "routed_bias": experts.has_router_bias,
        "routed_bias_update_rate": routing.bias_update_rate,
        "load_balance_loss_weight": routing.auxiliary_coefficient if routing.auxiliary_loss != "none" else 0.0,
    }
    if experts.groups > 1:
        keys |= {"n_routing_groups": experts.groups, "topk_routing_group": experts.top_groups}
    return keys


def _layout_keys(layout: Layout, network: Transformer) -> dict[str, Any]:
    """Return the keys of a layout: the mesh within a slice and across slices, the batch, and what is computed again."""
    chosen, rows = layout.chosen, layout.rows
    # The chips of a TPU slice reach each other within it, whatever the hosts that they are on.
    groups = {one.name: one for one in layout.job.problem.cluster.machine_groups}
    is_slice = device_of(layout.job, rows[0]).kind == "tpu"
    inside = groups[rows[0].group].devices_per_machine if is_slice else rows[0].devices_per_machine
    shards = 1 if chosen.zero < _SHARDS_GRADIENTS else chosen.shard or chosen.data
    if shards > 1 and shards % chosen.expert:
        why = f"its experts are spread over the {shards} ranks that share weights, and they do not divide"
        raise layout.refused(why, "Pin fix.expert_parallel_size to a divisor of them.")
    degrees = {
        "tensor": 1 if chosen.sequence_parallel else chosen.tensor,
        "tensor_sequence": chosen.tensor if chosen.sequence_parallel else 1,
        "context": chosen.context,
        "expert": chosen.expert,
        "fsdp": shards // chosen.expert if shards > 1 else 1,
        "data": chosen.data // (shards if shards > 1 else chosen.expert),
        "pipeline": chosen.pipeline,
    }
    room, keys, across = min(inside, chosen.num_devices), {}, {}
    for axis in _AXES:
        share = gcd(degrees[axis], room)
        room //= share
        keys[f"ici_{axis}_parallelism"], across[f"dcn_{axis}_parallelism"] = share, degrees[axis] // share
    if room > 1:
        words = " x ".join(str(one) for one in degrees.values() if one > 1)
        why = f"its mesh lays {words} out over slices of {inside}, which they do not fill"
        raise layout.refused(why, "Pin degrees that divide the devices of a machine.")
    each = chosen.microbatch * chosen.data
    is_pipeline = chosen.pipeline > 1
    batch = chosen.global_batch_size if is_pipeline else each
    samples = batch / chosen.num_devices
    if int(chosen.num_devices * samples) < batch:  # as it counts the batch again
        samples = nextafter(samples, float("inf"))
    found: dict[str, Any] = {
        **keys,
        **across,
        "shard_optimizer_over_data": chosen.zero == _SHARDS_STATE,
        "per_device_batch_size": samples,
        "gradient_accumulation_steps": 1 if is_pipeline else chosen.num_microbatches,
        "remat_policy": _REMAT[chosen.recompute],
        "optimizer_memory_host_offload": chosen.offload_optimizer,
        "dtype": _NUMBERS[layout.dtype],
    }
    if layout.job.problem.training.low is not None:
        found |= {"quantization": _EIGHT_BITS, "use_qwix_quantization": True, "quantize_router_proj": False}
        found |= {"quantize_mtp": True} if network.num_mtp_layers else {}
    if chosen.context > 1:
        found["context_parallel_strategy"] = _STRATEGIES[chosen.context_method]
    if is_pipeline:
        chunk = network.num_layers // (chosen.pipeline * chosen.interleave)
        found["num_pipeline_microbatches"] = chosen.num_microbatches
        found["num_layers_per_pipeline_stage"], found["scan_layers"] = chunk, False
    return found


# -- back again --------------------------------------------------------------------------------------------------------


def degrees(path: Path, text: str) -> Mapping[str, object]:
    """Return the layout of a configuration as a ``fix`` block pins it."""
    return shared_pins(_layout_of(_read(path, text)))


def _read(path: Path, text: str) -> Parsed:
    """Return the keys of a configuration, all of them known."""
    file = Parsed(path, next(iter(documents_of(text)), {}))
    if unknown := sorted(str(key) for key in file.flags if key not in KNOWN):
        problem, hint = "MaxText's base.yml has no such key, or planner does not know it.", "Correct its name."
        raise SpecError.of([Fault(file=str(path), field=key[:60], problem=problem, mend=hint) for key in unknown])
    return file


def _layout_of(file: Parsed) -> HybridConfiguration:
    axes = {axis: file.count(f"ici_{axis}_parallelism") * file.count(f"dcn_{axis}_parallelism") for axis in _AXES}
    number = prod(axes.values())
    share = file.value("per_device_batch_size")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < float("inf"):
        raise file.fault(f"{str(share)[:60]!r} is no number.", "per_device_batch_size", "Write e.g. 0.5.")
    data = axes["fsdp"] * axes["data"] * axes["expert"]
    steps = file.count("gradient_accumulation_steps")
    if (stages := axes["pipeline"]) > 1:
        steps *= file.count("num_pipeline_microbatches")
    batch = round(share * number) * (steps if stages == 1 else 1)
    if batch % (data * steps):
        problem = f"a batch of {batch} does not divide by {data} data ranks and {steps} micro-batches."
        raise file.fault(problem, "per_device_batch_size", "Correct the batch.")
    recompute = named_word(file, "remat_policy", _REMAT, "full")
    layers = file.count("base_num_decoder_layers")
    chunk = file.count("num_layers_per_pipeline_stage", layers) if stages > 1 else layers
    chunks = max(1, layers // (stages * chunk))
    tensor, shards = axes["tensor"] * axes["tensor_sequence"], axes["fsdp"] * axes["expert"]
    # Ranks of the axes ``context`` and ``expert`` share weights, too (``logical_axis_rules``: ``embed``).
    shares_state = file.value("shard_optimizer_over_data") is True
    is_shared = axes["fsdp"] > 1 or (shards * axes["context"] > 1 and not shares_state)
    return HybridConfiguration(
        global_batch_size=batch,
        tensor=tensor,
        expert_tensor=tensor if "num_experts" in file.flags else 1,
        context=axes["context"],
        context_method=named_word(file, "context_parallel_strategy", _STRATEGIES, "all_gather")
        if axes["context"] > 1
        else "ring",
        pipeline=stages,
        data=data,
        expert=axes["expert"],
        interleave=chunks,
        stages=(PipelineStage(layers=chunk),) * (stages * chunks if stages > 1 else 0),
        microbatch=batch // (data * steps),
        shard=shards if is_shared and axes["data"] > 1 else 0,
        zero=_SHARDS_WEIGHTS if is_shared else int(shares_state),
        recompute=recompute,
        schedule="gpipe" if stages > 1 else "1f1b",
        sequence_parallel=axes["tensor_sequence"] > 1,
        offload_optimizer=file.value("optimizer_memory_host_offload") is True,
    )


def training(path: Path, text: str) -> TrainingBlocks:
    """Return the numbers, optimiser and batch of a configuration; AdamW is read as ``adam``, which counts the same."""
    file = _read(path, text)
    names = {name: word for name, word in _OPTIMIZERS.items() if name != "adamw"}
    dtype, short = named_word(file, "dtype", _NUMBERS, "bfloat16"), file.value("quantization", "")
    if short not in ("", None, _EIGHT_BITS):
        raise file.fault(f"{str(short)[:60]!r} is not read.", "quantization", f"Write {_EIGHT_BITS}, or leave it out.")
    return TrainingBlocks(
        dnn={
            "global_batch": _layout_of(file).global_batch_size,
            "dtype": "fp8" if short == _EIGHT_BITS else dtype,
            "optimizer": named_word(file, "opt_type", names, "adamw"),
        }
    )


def network(path: Path, text: str) -> Transformer:
    """Return the network of a configuration."""
    file = _read(path, text)
    block, activations = str(file.value("decoder_block")), file.value("mlp_activations")
    is_gpt, is_oss, is_latent = block == "gpt3", block == "gpt_oss", file.value("attention_type") == "mla"
    known = [*_ACTIVATIONS.values(), *(["sigmoid"] if is_oss else [])]
    if not isinstance(activations, list) or activations[:1] not in [[one] for one in known]:
        raise file.fault(f"{str(activations)[:60]!r} are none.", "mlp_activations", "Write e.g. [silu, linear].")
    is_gated = len(activations) > 1
    usual = "silu" if is_gated else "gelu"
    numerics = _OSS if is_oss else Numerics(activation=None if activations[0] == usual else activations[0])
    sizes: dict[str, Any] = {
        "num_layers": file.count("base_num_decoder_layers") + file.count("mtp_num_layers", 0, least=0),
        "num_mtp_layers": file.count("mtp_num_layers", 0, least=0),
        "hidden_size": file.count("base_emb_dim"),
        "num_heads": file.count("base_num_query_heads"),
        "feed_forward_size": file.count("base_mlp_dim"),
        "vocabulary_size": file.count("vocab_size"),
        "sequence_length": file.count("max_target_length"),
        "positions": "learned" if is_gpt else "rotary",
        "norm": "layer_norm" if is_gpt else "rms_norm",
        "is_gated": is_gated,
        "has_tied_embeddings": file.value("logits_via_embedding") is True,
        "has_biases": is_gpt or is_oss,
        "has_norm_biases": is_gpt,
        "has_qkv_biases": is_gpt or is_oss or file.value("attention_bias") is True,
        "has_query_key_norms": file.value("use_qk_norm") is True,
        "numerics": replace(
            numerics,
            norm_epsilon=figure(file, "normalization_layer_epsilon", 1e-5),
            activation_limit=figure(file, "mlp_activations_limit", 7.0) if is_oss else None,
            attention_softcap=figure(file, "attn_logits_soft_cap", 0.0) or None,
            logit_softcap=figure(file, "final_logits_soft_cap", 0.0) or None,
        ),
        "experts": _experts_of(file) if "num_experts" in file.flags else None,
    }
    if is_oss:
        sizes |= {"has_sinks": True, "window": file.count("sliding_window_size"), "mixers": ("window", "attention")}
    if is_gpt:
        sizes["num_positions"] = file.count("trainable_position_size", sizes["sequence_length"])
    else:
        sizes["rotary"] = _rotary_of(file, sizes["sequence_length"])
    if is_latent:
        ranks = {here: file.count(there) for here, there in LATENT.items() if here != "query_rank"}
        query_rank = file.count(LATENT["query_rank"], 0, least=0) or None
        sizes["latent"] = built(file, LatentAttention, **ranks, query_rank=query_rank)
    else:
        sizes |= {"num_kv_heads": file.count("base_num_kv_heads"), "head_size": file.count("head_dim")}
    return built(file, Transformer, **sizes)


def _rotary_of(file: Parsed, sequence_length: int) -> Rotary:
    """Return the rotary positions that keys describe."""
    longest, kind = file.count("max_position_embeddings", sequence_length), file.value("rope_type", "default")
    scaling: RotaryScaling | None = None
    if kind == "llama3.1":
        scaling = _LLAMA3
    elif kind == "yarn":
        scaling = built(
            file,
            RotaryScaling,
            kind="yarn",
            factor=figure(file, "rope_factor", 40.0),
            original_length=file.count("original_max_position_embeddings", 4096),
            beta_fast=figure(file, "beta_fast", 32.0),
            beta_slow=figure(file, "beta_slow", 1.0),
            scale=None if file.value("rope_attention_scaling") is True else figure(file, "mscale", 1.0),
            is_truncated=file.value("rope_truncate", True) is True,
        )
    elif (factor := figure(file, "rope_linear_scaling_factor", 1.0)) != 1:
        scaling = built(file, RotaryScaling, kind="linear", factor=factor)
    return built(
        file,
        Rotary,
        base=figure(file, "rope_max_timescale", 10_000.0),
        local_base=figure(file, "local_rope_max_timescale", 0.0) or None,
        is_interleaved=file.value("rope_interleave", True) is True,
        longest=None if longest == sequence_length else longest,
        scaling=scaling,
    )


def _experts_of(file: Parsed) -> Experts:
    weight = figure(file, "load_balance_loss_weight", 0.0)
    loss = {"auxiliary_loss": "batch", "auxiliary_coefficient": weight} if weight else {"auxiliary_loss": "none"}
    if file.value("decoder_block") == "gpt_oss":
        loss = {"auxiliary_coefficient": weight, "bias": "linear"}
    said = str(file.value("routed_score_func", "") or "softmax")
    if said not in ("softmax", "sigmoid"):
        raise file.fault(f"{said[:60]!r} is none.", "routed_score_func", "Write softmax or sigmoid.")
    score = "sigmoid" if said == "sigmoid" else "softmax"
    routing = built(
        file,
        Routing,
        score=score,
        # DeepSeek's sigmoids always add up to one; elsewhere norm_topk_prob says it of what a softmax has made so.
        is_normalised=score == "sigmoid" or file.value("attention_type") != "mla",
        scale=figure(file, "routed_scaling_factor", 1.0),
        bias_update_rate=figure(file, "routed_bias_update_rate", 0.0),
        **loss,
    )
    return built(
        file,
        Experts,
        num_experts=file.count("num_experts"),
        top_k=file.count("num_experts_per_tok"),
        expert_size=file.count("base_moe_mlp_dim"),
        num_shared=file.count("shared_experts", 0, least=0),
        num_dense_first=file.count("first_num_dense_layers", 0, least=0),
        has_router_bias=file.value("routed_bias") is True,
        groups=file.count("n_routing_groups", 1),
        top_groups=file.count("topk_routing_group", 1),
        routing=routing,
    )


EXPORTERS = {TARGET: Exporter(export, partial(is_headed, head=_HEAD), degrees, network, training)}
