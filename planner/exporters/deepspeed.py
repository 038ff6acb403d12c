"""DeepSpeed 0.19.8: ``ds_config.json``, the script that starts it, and the planned stages where there is a pipeline.

Keys, of DeepSpeed 0.19.8: ``deepspeed/runtime/config.py`` (batch, precision, pipeline), ``runtime/zero/config.py``,
``runtime/tensor_parallel/config.py`` (``autotp_size``), ``module_inject/auto_ep_config.py`` (``autoep_size``).
Conditions between them: ``module_inject/auto_ep_folding.py`` (experts), ``runtime/pipe/engine.py`` (ZeRO 0 and 1),
``runtime/sequence_parallel/ulysses_sp.py`` (heads). That gradients are sent behind the backward pass without ZeRO:
``runtime/engine.py``, ``allreduce_gradients`` and ``MEMORY_OPT_ALLREDUCE_SIZE``. JSON has no comments: the version
stands in the other files, and in the notes. An unknown key at the top level it passes over in silence, so keys that are
read back are held against those that it, or a reader that it calls, asks for; a test with that version installed
records them again.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.decisions import FLAGS
from planner.errors import Fault, SpecError
from planner.exporters.buckets import GradientTensors
from planner.exporters.export import Export, Exporter, Job, TrainingBlocks, refused
from planner.exporters.huggingface_config import CONFIG as MODEL_CONFIG
from planner.exporters.huggingface_config import CONFIG_NOTE, config_text, tuning_beside, tuning_files
from planner.exporters.layouts import (
    Layout,
    layout_export,
    layout_of,
    pinned_by,
    pins_of,
    read_layout,
    time_text,
    with_layers,
)
from planner.exporters.machines import require_kinds, used_machines
from planner.exporters.scripts import Parsed, nested, script_words, shipped_program, shipped_words
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.pipeline.cost import PipelineConfiguration
from planner.transformer import Transformer
from planner.units import Dimension, format_human

TARGET, VERSION, CONFIG, STAGES = "deepspeed", "DeepSpeed 0.19.8", "ds_config.json", "planned_pipeline.py"
_FLAGS = FLAGS["deepspeed"]
_BUCKET = 500_000_000  # elements; DeepSpeed's own default, and its constant where there is no ZeRO
_SHARDS_WEIGHTS, _WEIGHT_BYTES = 3, 2  # the stage of ZeRO, and bytes of a weight that is gathered
_BATCH = ("train_batch_size", _FLAGS["microbatch"], "gradient_accumulation_steps")
KNOWN = shipped_words("deepspeed_keys")  # at the top level
REMOVED = shipped_words("deepspeed_removed_keys")  # which this version refuses


def export(job: Job) -> Export:
    """Return the configuration, a script that starts it, and the stages of a pipeline.

    Raises
    ------
    InfeasibleError
        For what DeepSpeed cannot run: see :func:`as_run`.
    """
    planned = job.plan.configuration
    layout = _pipeline_layout(job, planned) if isinstance(planned, PipelineConfiguration) else layout_of(TARGET, job)
    layout, files = with_files(layout)
    program = script_words(job.settings.script, f"train.py --deepspeed --deepspeed_config {CONFIG}")
    return layout_export(layout, VERSION, program, files=files, notes=[f"written for {VERSION}"])


def with_files(layout: Layout) -> tuple[Layout, dict[str, str]]:
    """Return a layout as DeepSpeed runs it, with its notes; and the configuration, and the stages where there are any.

    Raises
    ------
    InfeasibleError
        For what DeepSpeed cannot run.
    """
    planned = layout.chosen
    layout, copies = _with_secondary_copies(as_run(layout), planned)
    elements = _bucket_elements(layout)
    layout = layout.noted(*_bucket_notes(layout, elements))
    chosen, network = layout.chosen, layout.network
    files = {CONFIG: json.dumps(_document(layout, elements, copies), indent=2) + "\n"}
    if network is not None and chosen.pipeline == 1 and (text := config_text(network, layout.dtype)) is not None:
        layout, files[MODEL_CONFIG] = layout.noted(CONFIG_NOTE), text
    files |= tuning_files(layout.job.problem.dnn.transformer)
    if chosen.pipeline > 1:
        files[STAGES] = shipped_program(
            "planned_pipeline",
            given=_OWN_LAYERS if layout.layers else "embedding, *blocks, norm_and_head",
            before=int(not layout.layers),
            version=VERSION,
            mark=_MARK,
            stages=chosen.pipeline,
            tensor=chosen.tensor,
            data=chosen.data,
            expert=chosen.expert,
            blocks=layout.layers if network is None else chosen.chunk_layers(network.num_layers),
        )
    return layout, files


# -- what it cannot do -------------------------------------------------------------------------------------------------


def as_run(layout: Layout) -> Layout:
    """Return a layout as DeepSpeed runs it: refused where it cannot, changed with a note where it has no word for it.

    Raises
    ------
    InfeasibleError
        For degrees that it does not take together.
    """
    chosen, network = layout.chosen, layout.network
    if network is not None:
        _refuse_together(layout, network)
    if chosen.pipeline > 1:  # the one schedule that a PipelineModule has
        if chosen.schedule != "1f1b":
            layout = layout.instead(f"its pipeline runs 1F1B, not {chosen.schedule}", schedule="1f1b", interleave=1)
        elif chosen.interleave > 1:
            layout = layout.instead("its pipeline has no chunks: one stage on a device", interleave=1)
    if network is None:
        return layout
    # The layers of a pipeline are the user's own, and may split the sequence as Megatron-DeepSpeed's do.
    if chosen.sequence_parallel and chosen.tensor > 1 and chosen.pipeline == 1:
        why = "its tensor parallelism does not split the sequence, and overlaps nothing by that"
        if network.experts is not None:
            layout = layout.noted(f"{why}: norms are computed, and activations kept, on every rank of a tensor group")
        else:
            layout = layout.instead(why, sequence_parallel=False, overlap_tensor=False)
    if chosen.offload_optimizer and chosen.zero == 0:
        layout = layout.instead("it keeps an optimiser on the host from ZeRO 1 on", zero=1)
    if chosen.overlap_data and chosen.pipeline > 1:
        layout = layout.instead("its pipeline exchanges gradients behind the last micro-batch", overlap_data=False)
    elif chosen.overlap_data and layout.chosen.zero == 0 and layout.is_hybrid:
        layout = layout.instead("without ZeRO it exchanges gradients behind the backward pass", overlap_data=False)
    if chosen.context > 1 and chosen.context_method != "ulysses" and network.num_kv_heads % chosen.context == 0:
        layout = layout.instead("it exchanges heads by all-to-alls (Ulysses)", context_method="ulysses")
    layout = layout.with_usual_order().with_whole_layers().with_whole_shards()
    return layout.noted(*_program_notes(layout, network))


def _with_secondary_copies(layout: Layout, planned: HybridConfiguration) -> tuple[Layout, int]:
    """Return over how many ranks a second copy of the weights is spread, for a plan that copies states; 0: none.

    DeepSpeed shards states over all data ranks (its MiCS is gone), and may keep weights a second time within a part of
    them, which the backward pass gathers from (hpZ: G. Wang et al., arXiv 2306.10209, section 3.2;
    ``runtime/zero/partition_parameters.py``).
    """
    chosen, network = layout.chosen, layout.network
    if not planned.shard or chosen.zero < _SHARDS_WEIGHTS or network is None:
        return layout, 0
    if chosen.tensor * chosen.context * chosen.pipeline * chosen.expert > 1 or chosen.data % planned.shard:
        return layout, 0
    held = format_human(bytes_ := _WEIGHT_BYTES * network.num_parameters / planned.shard, Dimension.DATA)
    if bytes_ > layout.free_bytes:
        return layout.noted(f"a second copy of the weights over {planned.shard} ranks (hpZ, {held}) does not fit"), 0
    return layout.noted(
        f"each {planned.shard} neighbouring ranks hold a second copy of the weights (hpZ, {held} of a device), which "
        f"the backward pass gathers from; the seconds are those without it"
    ), planned.shard


def _refuse_together(layout: Layout, network: Transformer) -> None:
    """Refuse degrees that do not go together."""
    chosen = layout.chosen
    elsewhere = "or export to megatron or torchtitan."
    if chosen.context > 1 and (chosen.tensor > 1 or chosen.pipeline > 1):
        why = "it splits a sequence (Ulysses) beside data parallelism only"
        raise layout.refused(why, f"Pin fix.context_parallel_size: 1; {elsewhere}")
    if chosen.context > 1 and network.num_heads % chosen.context:
        why = f"{network.num_heads} heads do not divide by {chosen.context} ranks of a sequence"
        raise layout.refused(why, f"Pin fix.context_parallel_size to a divisor of {network.num_heads}; {elsewhere}")
    if chosen.tensor == 1 or chosen.pipeline > 1:
        return
    if network.experts is not None and chosen.expert == 1:
        hint = "Pin fix.tensor_parallel_size: 1, or an fix.expert_parallel_size of 2 or more."
        raise layout.refused("it splits a network with experts over a tensor degree only if experts are spread", hint)
    if chosen.expert > 1 and chosen.offload_optimizer:
        hint = "Pin fix.tensor_parallel_size: 1; or export to megatron."
        raise layout.refused("it spreads experts over a tensor degree with the optimiser on devices only", hint)


def _program_notes(layout: Layout, network: Transformer) -> list[str]:
    chosen, notes = layout.chosen, []
    if chosen.pipeline > 1:
        notes.append(f"give the network as a list of layers to PlannedPipeline of {STAGES}")
        if chosen.expert > 1:
            notes.append(f"give its blocks experts by deepspeed.moe.layer.MoE(..., ep_size={chosen.expert})")
        if chosen.tensor > 1:
            notes.append(
                "AutoTP does not go with a pipeline: layers must split their own matrices, by the tensor group of "
                "PlannedPipeline's topology (mpu), as those of Megatron-DeepSpeed do"
            )
    elif chosen.tensor > 1:
        notes.append(
            f"tensor parallelism is AutoTP's: a model of Hugging Face's, split by autotp_size {chosen.tensor} when "
            f"deepspeed.initialize is called"
        )
        if chosen.tensor > network.num_kv_heads:
            notes.append(
                f"AutoTP does not copy the {network.num_kv_heads} heads of keys and values: the ranks beyond them have "
                f"no attention to compute, so that attention is slower than planned"
            )
    if chosen.context > 1:
        is_other = chosen.context_method != "ulysses"
        counted = ", where the plan counts the passing of keys and values" if is_other else ""
        notes.append(
            f"the sequence is split by Ulysses{counted}; call UlyssesSPAttentionHF.register_with_transformers(..., "
            f"sequence_parallel_size={chosen.context}) and give its mpu to deepspeed.initialize"
        )
    if chosen.expert > 1 and chosen.expert_tensor > 1 and chosen.pipeline == 1:
        notes.append("experts are spread and never cut by a tensor degree, by which the plan cuts them")
    if chosen.recompute == "full" and chosen.pipeline == 1:
        notes.append("call model.gradient_checkpointing_enable(), or deepspeed.checkpointing.checkpoint on every block")
    if chosen.offload_optimizer:
        notes.append("give deepspeed.ops.adam.DeepSpeedCPUAdam as the optimiser")
    if (name := layout.job.problem.training.optimizer) not in ("adam", "adamw") and layout.is_hybrid:
        notes.append(f"give an optimiser of the kind {name}, for which the plan counts")
    if (program := layout.job.problem.calibration.program) and layout.is_hybrid:
        notes.append(f"seconds and memory were predicted for {program}")
    return notes


def _bucket_elements(layout: Layout) -> int:
    """Return the numbers in a bucket: of the plan's largest group, or as many as leave half of the free memory.

    Two buckets of two bytes a number are held where communication overlaps.
    """
    planned = layout.job.plan.configuration
    if isinstance(planned, AllReduceConfiguration):
        if not planned.fusion_groups:  # of one device
            return _BUCKET
        largest = max(group.size_bytes for group in planned.fusion_groups)
        return max(1, min(_BUCKET, round(largest / GradientTensors(layout.job.problem, planned).gradient_bytes)))
    millions = min(layout.free_bytes / 8 / 1e6, _BUCKET / 1e6)
    return max(1, int(millions)) * 1_000_000


def _prefetched(layout: Layout) -> int | None:
    """Return how many numbers of weights ZeRO 3 gathers ahead: one layer's, as planned, or none; None without it.

    Of a network whose layers are not known as a transformer's that is left to DeepSpeed.
    """
    chosen, network = layout.chosen, layout.network
    if chosen.zero < _SHARDS_WEIGHTS or network is None:
        return None
    largest = max(network.block_parameters(kind) for kind in network.kind_counts)
    return int(largest) // chosen.tensor if chosen.overlap_data else 0


def _bucket_notes(layout: Layout, elements: int) -> list[str]:
    """Return what becomes of the communication of gradients."""
    planned, chosen, notes = layout.job.plan.configuration, layout.chosen, []
    if chosen.data * chosen.context == 1:
        return []
    if chosen.zero:
        held = format_human(elements * 4, Dimension.DATA)
        notes.append(
            f"buckets have {elements:,} numbers; two of them take {held} of a device, which the plan does not count"
        )
    if isinstance(planned, AllReduceConfiguration):
        tensors = GradientTensors(layout.job.problem, planned)
        planned_s = layout.job.plan.prediction.iteration_time_s
        behind_s = tensors.iteration_time_s((len(tensors.size_bytes) - 1,))
        number = len(planned.fusion_groups)
        notes.append(
            f"without ZeRO it exchanges gradients behind the backward pass, up to {_BUCKET:,} numbers at a time: not "
            f"in the plan's {number} group{'s' * (number > 1)}, so that an iteration takes at least "
            f"{time_text(behind_s)}, not {time_text(planned_s)} ({behind_s / planned_s - 1:+.1%}); ddp overlaps. From "
            f"ZeRO 1 on buckets have the size written, that of the plan's largest group, and overlap"
        )
    return notes


# -- the configuration -------------------------------------------------------------------------------------------------


def _document(layout: Layout, elements: int, copies: int) -> dict[str, Any]:
    """Return the document, of a layout that DeepSpeed runs as it is; ``copies``: ranks that share one."""
    chosen, network = layout.chosen, layout.network
    is_pipeline, is_full = chosen.pipeline > 1, chosen.recompute == "full"
    flags: dict[str, Any] = {
        **dict(zip(_BATCH, (chosen.global_batch_size, chosen.microbatch, chosen.num_microbatches), strict=True)),
        layout.dtype: {"enabled": True} if layout.dtype in {"bf16", "fp16"} else None,
        _FLAGS["zero"]: chosen.zero,
        _FLAGS["overlap_data"]: chosen.overlap_data and chosen.zero > 0,
        "zero_optimization.zero_hpz_partition_size": copies or None,
        "zero_optimization.contiguous_gradients": True,
        "zero_optimization.reduce_bucket_size": elements,
        "zero_optimization.allgather_bucket_size": elements,
        "zero_optimization.stage3_prefetch_bucket_size": _prefetched(layout),
        _FLAGS["offload_optimizer"]: {"device": "cpu", "pin_memory": True} if chosen.offload_optimizer else None,
    }
    if chosen.tensor > 1 and not is_pipeline:
        flags |= {_FLAGS["tensor"]: chosen.tensor, _FLAGS["overlap_tensor"]: chosen.overlap_tensor}
    flags[_FLAGS["context"]] = chosen.context if chosen.context > 1 else None
    if chosen.expert > 1 and not is_pipeline and network is not None:
        flags |= {"expert_parallel.enabled": True, _FLAGS["expert"]: chosen.expert}
        flags["expert_parallel.preset_model"] = _preset(network)
    if is_pipeline:
        flags |= {_FLAGS["pipeline"]: chosen.pipeline, "pipeline.activation_checkpoint_interval": int(is_full)}
    flags[_FLAGS["recompute"]] = {"partition_activations": False, "cpu_checkpointing": False} if is_full else None
    return nested(flags)


def _preset(network: Transformer) -> str | None:
    """Return the name of the mixture of experts in DeepSpeed's table; None where none is like it."""
    if network.latent is not None and network.experts is not None:
        return "deepseek_v3" if network.experts.has_router_bias else "deepseek_v2"
    if not network.is_gated:
        return None
    return "qwen3_moe" if network.has_query_key_norms else "mixtral"


# -- the stages of a pipeline, which DeepSpeed takes from the program --------------------------------------------------

_OWN_LAYERS = "*layers"
_MARK = "the planned stages of a pipeline"
_CONSTANT = re.compile(r"^(NUM_[A-Z]+) = (\d{1,9})$", re.MULTILINE)

_BLOCKS = re.compile(r"^BLOCKS_PER_STAGE = .*$", re.MULTILINE)


def _pipeline_layout(job: Job, planned: PipelineConfiguration) -> Layout:
    """Return the layout of a plan of the family ``pipeline``, whose stages are made of a network's own layers.

    Raises
    ------
    InfeasibleError
        If stages have unlike numbers of replicas, or several chunks, or the batch does not divide.
    """
    rows = used_machines(job)
    require_kinds(TARGET, job, rows, "gpu", "cpu")
    replicas = {stage.replicas for stage in planned.stages}
    if len(replicas) > 1:
        listed = ", ".join(str(stage.replicas) for stage in planned.stages)
        hint = "Limit the devices to a multiple of the stages, or forbid the family pipeline."
        raise refused(TARGET, f"all its stages have as many replicas, and those of the plan have {listed}", hint)
    if planned.chunks_per_device > 1:
        why = f"a device has one stage, and the plan gives it {planned.chunks_per_device}"
        raise refused(TARGET, why, "Pin fix.schedule: 1f1b.")
    data, batch = replicas.pop(), planned.global_batch_size
    if batch % (data * planned.num_microbatches):
        hint = f"Write dnn.global_batch as a multiple of {data * planned.num_microbatches}."
        why = f"{batch} samples do not divide by {data} x {planned.num_microbatches} micro-batches"
        raise refused(TARGET, why, hint)
    names = [layer.name for layer in job.problem.dnn.layers]
    counts = tuple(names.index(stage.last) - names.index(stage.first) + 1 for stage in planned.stages)
    chosen = HybridConfiguration(
        global_batch_size=batch,
        pipeline=planned.num_stages,
        data=data,
        microbatch=batch // (data * planned.num_microbatches),
        schedule=planned.schedule,
    )
    return Layout(target=TARGET, job=job, chosen=chosen, rows=rows, layers=counts).noted(
        f"give PlannedPipeline of {STAGES} the {len(names)} layers of the network in the plan's order; each passes one "
        f"value to the next, so that branches must stay within a layer or pass tuples",
        "its pipeline exchanges gradients behind the last micro-batch",
    )


# -- back again --------------------------------------------------------------------------------------------------------


def recognises(path: Path, text: str) -> bool:
    """Whether this is a configuration of DeepSpeed, or the stages that were written beside it."""
    is_stages = path.suffix == ".py" and _MARK in text
    return is_stages or (path.suffix == ".json" and f'"{_FLAGS["microbatch"]}"' in text)


def degrees(path: Path, text: str) -> Mapping[str, object]:
    """Return the decisions of a configuration, or of its stages, as a ``fix`` block pins them; nothing of it is run.

    Of a configuration that only copies the network these are ``num_devices`` and ``gradient_accumulation_steps``, as
    the family ``all_reduce`` has them; of stages of a network's own layers those of the family ``pipeline``; else those
    of ``hybrid``. Degrees of a tensor-parallel pipeline stand in the module of its stages.
    """
    if path.suffix == ".py":
        file = Parsed(path, dict(_CONSTANT.findall(text)), is_text=True)
        names = ("STAGES", "TENSOR", "DATA", "EXPERT")
        stages, tensor, data, expert = (file.count(f"NUM_{name}") for name in names)
        chosen = HybridConfiguration(global_batch_size=1, pipeline=stages, tensor=tensor, data=data, expert=expert)
        if _OWN_LAYERS in text:
            return {"num_stages": chosen.pipeline, "num_devices": chosen.num_devices}
        blocks = [int(one) for one in re.findall(r"\d{1,6}", (_BLOCKS.search(text) or [""])[0])]
        chosen = with_layers(file, chosen, blocks, "BLOCKS_PER_STAGE")
        return pins_of(chosen, "pipeline", "tensor", "data", "expert", "num_devices")
    file = Parsed.of_json(path, text)
    faults = []
    for key in file.flags:
        if key in REMOVED:
            problem, hint = "DeepSpeed has removed this key.", "Leave it out."
        elif key not in KNOWN:
            problem, hint = (
                "DeepSpeed has no such key, and passes over it in silence.",
                "Correct its name, or leave it out.",
            )
        else:
            continue
        faults.append(Fault(file=str(path), field=key, problem=problem, mend=hint))
    if faults:
        raise SpecError.of(faults)
    batch, micro, steps = (file.count(name) for name in _BATCH)
    if batch % (micro * steps):  # as DeepSpeedConfig._batch_assertion does
        problem = f"{batch} is no multiple of {micro} x {steps}, the other two of the batch."
        raise file.fault(problem, _BATCH[0], "Correct one of the three.")
    chosen = read_layout(
        file,
        TARGET,
        global_batch_size=batch,
        data=batch // (micro * steps),
        recompute="full" if _FLAGS["recompute"] in file.flags else "none",
    )
    is_copy = chosen.num_devices == chosen.data and not (chosen.zero or chosen.expert > 1)
    if is_copy and chosen.recompute == "none":
        return {"num_devices": chosen.data, "gradient_accumulation_steps": steps}
    # Overlaps follow from the rest; and of a pipeline these stand in the module of its stages.
    elsewhere = ("tensor", "expert", "num_devices") if chosen.pipeline > 1 else ()
    pinned = [name for name in pinned_by(TARGET) if not name.startswith("overlap") and name not in elsewhere]
    return pins_of(chosen, *pinned)


def training(path: Path, text: str) -> TrainingBlocks:
    """Return the numbers and batch of a configuration, and the adapters that stand beside it."""
    if path.suffix == ".py":
        return TrainingBlocks()
    file = Parsed.of_json(path, text)
    kinds = [name for name in ("bf16", "fp16") if file.value(f"{name}.enabled", default=False) is True]
    dnn: dict[str, Any] = {"global_batch": file.count(_BATCH[0]), "dtype": kinds[0] if kinds else "fp32"}
    why = "its optimiser is the program's own: write dnn.optimizer"
    return TrainingBlocks(dnn={**dnn, **tuning_beside(path)}, warnings=(why,))


EXPORTERS = {TARGET: Exporter(export, recognises, degrees, training=training)}
