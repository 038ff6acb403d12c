"""Overrides of torchtitan 0.3.0: one command line on top of one of its own configurations.

Names and meaning of options: ``torchtitan/config/configs.py`` (training, parallelism, compile),
``torchtitan/config/manager.py`` (``--module``, ``--config``, lists) and ``torchtitan/distributed/
activation_checkpoint.py`` (the subcommands) of torchtitan 0.3.0. Conditions between them: ``torchtitan/trainer.py`` (no
CUDA graphs with a pipeline or with experts over ranks; batches), ``torchtitan/distributed/parallel_dims.py`` (products)
and ``torchtitan/distributed/pipeline_parallel.py`` (a pipeline's micro-batches are cut from the local batch).

Every stage is written by the names of its modules (``module_fqns_per_model_part``), even ones, too: torchtitan's own
cut counts embedding and head as a layer each.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.exporters.export import Export, Job
from planner.exporters.layouts import Layout, how_to_run, launch_script, layout_of, pins_of, read_layout, stage_layers
from planner.exporters.shell_flags import flags_of, launched, number_of, wrapped
from planner.exporters.torchrun import script_words
from planner.exporters.torchtitan_networks import flavour_of
from planner.families.hybrid.configuration import ORDER_NAMES, HybridConfiguration
from planner.transformer import Transformer

__all__ = ["VERSION", "as_run", "degrees", "export", "module_names", "recognises"]

TARGET, VERSION = "torchtitan", "torchtitan 0.3.0"
_MODULE = "torchtitan.train"
_TENSOR = "parallelism.tensor_parallel_degree"
_SCHEDULES = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "1f1b"}
_NUMBERS = {"bf16": "bfloat16", "fp32": "float32", "tf32": "float32"}
_SHARDS_GRADIENTS, _SHARDS_WEIGHTS = 2, 3  # stages of ZeRO


def export(job: Job) -> Export:
    """Return the command, with its environment left to the user.

    Raises
    ------
    InfeasibleError
        For networks that are no transformers, numbers that it does not train in, and an optimiser on the host.
    """
    layout = layout_of(TARGET, job, kinds=("gpu",))
    network = layout.network
    if network is None:
        mend = "It has a model of every network that it trains; export to ddp or deepspeed."
        raise layout.refused(f"{job.problem.dnn.name} is not known as a transformer", mend)
    layout = as_run(layout, network)
    options = list(_options(layout, network))
    program = wrapped([script_words(job.settings.script, f"-m {_MODULE}"), *options])
    return Export(
        target=TARGET,
        version=VERSION,
        files={"launch.sh": launch_script(layout, VERSION, program)},
        notes=layout.notes,
        how_to_run=how_to_run(layout),
    )


# -- what it cannot do -------------------------------------------------------------------------------------------------


def as_run(layout: Layout, network: Transformer) -> Layout:
    """Return the layout as torchtitan runs it, every change with its note."""
    if layout.dtype not in _NUMBERS:
        mend = "Write dnn.dtype: bf16."
        raise layout.refused(f"it trains in bfloat16 or float32, not in {layout.dtype}", mend)
    if layout.chosen.offload_optimizer:
        mend = "Pin fix.offload_optimizer: false; or export to deepspeed or megatron."
        raise layout.refused("it moves weights and gradients to the host with the optimiser, or nothing", mend)
    layout = _memory_as_run(_schedule_as_run(layout), network)
    if layout.chosen.overlap_tensor:
        layout = layout.noted(
            "overlapping the tensor-parallel exchange (async TP) needs the compiled model, which is turned on with it"
        )
    if layout.chosen.num_devices > 1 and not layout.chosen.overlap_data:
        layout = layout.noted(
            "FSDP always overlaps gathering and reducing with computation; the plan does not count on it"
        )
    if layout.chosen.order != ORDER_NAMES[0] and layout.is_hybrid:
        order = ORDER_NAMES[0]
        layout = layout.instead(f"ranks are always numbered {order}, from the inside outwards", order=order)
    if network.experts is not None and layout.chosen.tensor > 1:
        layout = layout.noted(
            "its experts are spread over ranks and never cut by the tensor degree, by which the plan cuts them"
        )
    if (program := layout.job.problem.calibration.program) not in {
        "torchtitan",
        "torchtitan-eager",
    } and layout.is_hybrid:
        layout = layout.noted(f"seconds and memory were predicted for {program}; calibration.program: torchtitan")
    return layout.noted(*_network_notes(network))


def _schedule_as_run(layout: Layout) -> Layout:
    """Return the layout with a schedule that torchtitan takes by name."""
    if layout.chosen.schedule == "zero_bubble":
        why = "torch.distributed.pipelining has zero-bubble schedules for two chunks on a device or more; 1F1B here"
        return layout.instead(why, schedule="1f1b")
    return layout


def _memory_as_run(layout: Layout, network: Transformer) -> Layout:
    """Return the layout with the sharding and the recomputation that torchtitan has."""
    chosen = layout.chosen
    if chosen.zero == 1:
        why = "it shards gradients wherever it shards the optimiser's state (FSDP2), so that ZeRO 1 becomes ZeRO 2"
        # With a pipeline the cost model has no ZeRO 2: sharded gradients are held whole until the last micro-batch.
        layout = layout.noted(why) if chosen.pipeline > 1 else layout.instead(why, zero=_SHARDS_GRADIENTS)
    if _shards_anyway(chosen, network):
        why = "it shards weights and gradients, too, where a sequence is split or experts are spread; the plan does not"
        layout = layout.instead(why, zero=_SHARDS_GRADIENTS if chosen.pipeline == 1 else 1)
    if chosen.recompute == "selective":
        layout = layout.noted(
            "its selective checkpointing keeps products and exchanges and computes all else again; the plan's computes "
            "attention's scores again"
        )
    return layout


def _shards_anyway(chosen: HybridConfiguration, network: Transformer) -> bool:
    """Whether a layout of ZeRO 0 is sharded all the same."""
    return chosen.zero == 0 and (chosen.context > 1 or (network.experts is not None and chosen.expert > 1))


def _network_notes(network: Transformer) -> Iterator[str]:
    """Yield what is to be known of the network's configuration."""
    flavour = flavour_of(network)
    if flavour is None:
        yield (
            "none of its configurations has this network: write one (a module with config_registry.py, whose function "
            "returns a Trainer.Config) and give its names to --module and --config; modules are taken to be named "
            "tok_embeddings, layers.N, norm, lm_head"
        )
        return
    if flavour.is_float8:
        yield (
            f"its configuration {flavour.config} computes products in float8 (Float8LinearConverter), faster than the "
            f"plan counts; take the converters out for the planned numbers"
        )
    yield f"its configuration {flavour.config} reads a tokenizer from hf_assets_path, and the data set that it names"


# -- the options -------------------------------------------------------------------------------------------------------


def _options(layout: Layout, network: Transformer) -> Iterator[str]:
    """Yield the options, each with its values; the subcommand comes last, as tyro wants it."""
    chosen, flavour = layout.chosen, flavour_of(network)
    yield f"--module {flavour.module if flavour else 'your_model'}"
    yield f"--config {flavour.config if flavour else 'your_config'}"
    yield f"--training.seq_len {network.sequence_length}"
    yield f"--training.global_batch_size {chosen.global_batch_size}"
    micro = chosen.microbatch
    yield f"--training.local_batch_size {micro if chosen.pipeline == 1 else micro * chosen.num_microbatches}"
    yield f"--training.mixed_precision_param {_NUMBERS[layout.dtype]}"
    if chosen.pipeline > 1 or chosen.expert > 1:
        yield "--training.disable_cuda_graphs"
    yield from _sharding(chosen)
    yield f"--{_TENSOR} {chosen.tensor}"
    if chosen.tensor > 1:
        yield f"--parallelism.{'' if chosen.sequence_parallel else 'no-'}enable_sequence_parallel"
    yield f"--parallelism.context_parallel_degree {chosen.context}"
    yield f"--parallelism.expert_parallel_degree {chosen.expert}"
    yield f"--parallelism.pipeline_parallel_degree {chosen.pipeline}"
    if chosen.pipeline > 1:
        yield from _pipeline(chosen, network)
    if chosen.overlap_tensor:  # which needs the model compiled; some of its configurations compile the loss alone
        yield "--compile.enable"
        yield "--compile.components model,loss"
    yield f"--compile.{'' if chosen.overlap_tensor else 'no-'}enable_async_tensor_parallel"
    yield f"activation-checkpoint:{chosen.recompute}"


def _sharding(chosen: HybridConfiguration) -> Iterator[str]:
    """Yield how data ranks share weights, gradients and state, or copy them."""
    copies = chosen.zero == 0
    yield f"--parallelism.data_parallel_replicate_degree {chosen.data if copies else 1}"
    yield f"--parallelism.data_parallel_shard_degree {1 if copies else chosen.data}"
    if not copies:
        yield f"--parallelism.fsdp_reshard_after_forward {'always' if chosen.zero == _SHARDS_WEIGHTS else 'never'}"


def _pipeline(chosen: HybridConfiguration, network: Transformer) -> Iterator[str]:
    """Yield the schedule, the micro-batches, and the modules of every chunk."""
    name = {"gpipe": "GPipe", "1f1b": "1F1B" if chosen.interleave == 1 else "Interleaved1F1B"}[chosen.schedule]
    yield f"--parallelism.pipeline_parallel_schedule {name}"
    yield f"--parallelism.pipeline_parallel_microbatch_size {chosen.microbatch}"
    parts = module_names(stage_layers(network.num_layers, chosen))
    yield f"--parallelism.module_fqns_per_model_part {' '.join(','.join(part) for part in parts)}"


def module_names(layers: Sequence[int]) -> list[list[str]]:
    """Return the names of the modules of every chunk, by how many layers it has.

    >>> module_names((1, 2))
    [['tok_embeddings', 'layers.0'], ['layers.1', 'layers.2', 'norm', 'lm_head']]
    """
    ends = [sum(layers[: index + 1]) for index in range(len(layers))]
    parts = [[f"layers.{index}" for index in range(end - count, end)] for end, count in zip(ends, layers, strict=True)]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts


# -- back again --------------------------------------------------------------------------------------------------------


def recognises(path: Path, text: str) -> bool:
    """Whether this is a script for torchtitan."""
    return path.suffix == ".sh" and f"--{_TENSOR} " in text


def degrees(path: Path, text: str) -> Mapping[str, Any]:
    """Return the layout of a script as a ``fix`` block pins it.

    Raises
    ------
    SpecError
        If an option is missing or no number.
    """
    command, _ = launched(path, text, f"--{_TENSOR}")
    flags = flags_of(command)

    def number(name: str, default: int | None = None) -> int:
        return number_of(path, flags, name, default)

    parallel = "parallelism."
    copies, shards = (number(f"{parallel}data_parallel_{kind}_degree") for kind in ("replicate", "shard"))
    stages = number(f"{parallel}pipeline_parallel_degree")
    local = number("training.local_batch_size")
    micro = number(f"{parallel}pipeline_parallel_microbatch_size") if stages > 1 else local
    parts = flags.get(f"{parallel}module_fqns_per_model_part", [])
    freed = flags.get(f"{parallel}fsdp_reshard_after_forward", [""])[0]
    chosen = read_layout(
        path,
        global_batch_size=number("training.global_batch_size"),
        tensor=number(_TENSOR),
        context=number(f"{parallel}context_parallel_degree"),
        pipeline=stages,
        data=copies * shards,
        expert=number(f"{parallel}expert_parallel_degree"),
        interleave=max(1, len([one for one in parts if not one.startswith("activation-checkpoint:")]) // stages),
        microbatch=micro,
        zero=_stage_of_zero(freed, stages),
        recompute=next(
            (one.rpartition(":")[2] for one in command if one.startswith("activation-checkpoint:")), "selective"
        ),
        sequence_parallel=f"{parallel}enable_sequence_parallel" in flags,
        overlap_tensor="compile.enable_async_tensor_parallel" in flags,
    )
    names = ("tensor", "context", "pipeline", "data", "expert", "interleave", "microbatch", "zero", "recompute")
    return pins_of(chosen, *names, "sequence_parallel", "overlap_tensor", "num_devices")


def _stage_of_zero(freed: str, stages: int) -> int:
    """Return the stage of ZeRO: weights kept over a pipeline are planned as ZeRO 1, the most it has there."""
    if not freed:
        return 0
    if freed == "always":
        return _SHARDS_WEIGHTS
    return _SHARDS_GRADIENTS if stages == 1 else 1
