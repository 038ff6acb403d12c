"""The configuration of Hugging Face Accelerate 1.15: a YAML file, the script that starts it, and DeepSpeed's file.

Keys: ``accelerate/commands/config/config_args.py`` (ClusterConfig; unknown keys are refused there) and, of the blocks,
the options of ``accelerate/commands/launch.py`` whose names they have. Which engine trains is chosen here:

- a copy on every device: MULTI_GPU (``NO`` on one);
- ZeRO 2 and 3: FSDP, version 2, with ``parallelism_config`` for a tensor or context degree;
- ZeRO 1, an optimiser on the host, spread experts: DEEPSPEED, with :mod:`planner.exporters.deepspeed`'s file;
- a pipeline, and tensor or context degrees without sharding: MEGATRON_LM.

The batch is no part of Accelerate's file: the program's data loader has it.
"""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from planner.decisions import FLAGS
from planner.exporters import deepspeed
from planner.exporters.buckets import GradientTensors
from planner.exporters.export import Export, Exporter, Job, TrainingBlocks
from planner.exporters.huggingface_config import tuning_beside, tuning_files
from planner.exporters.kubernetes import documents_of, yaml_text
from planner.exporters.layouts import Layout, layout_of, pinned_by, pins_of, read_layout, shared_pins, time_text
from planner.exporters.machines import device_of, is_one_shape, machine_words, require_kinds
from planner.exporters.scripts import PORT, Parsed, comment_lines, how_to_run, nested, script_words, torchrun_script
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.all_reduce.fusion import DDP_CAP_BYTES, DDP_FIRST_BYTES, MIB, ddp_buckets
from planner.families.hybrid.launch_network import not_expressed

TARGET, VERSION, FILE = "accelerate", "Accelerate 1.15", "accelerate.yaml"
_PRECISION = {"bf16": "bf16", "fp16": "fp16", "fp32": "no", "tf32": "no"}
_SHARDS = 2  # from this stage of ZeRO on gradients are sharded
_FSDP, _PLUGIN = FLAGS["fsdp"], FLAGS["plugin"]


class Engine(Enum):
    """A ``distributed_type`` of Accelerate's."""

    NO = "NO"
    MULTI_GPU = "MULTI_GPU"
    FSDP = "FSDP"
    DEEPSPEED = "DEEPSPEED"
    MEGATRON_LM = "MEGATRON_LM"


def engine_of(layout: Layout) -> Engine:
    """Return what trains a layout: the plainest engine that does it."""
    chosen = layout.chosen
    is_split = chosen.tensor > 1 or chosen.context > 1
    if chosen.pipeline > 1 or (is_split and (chosen.zero < _SHARDS or chosen.expert > 1)):
        return Engine.MEGATRON_LM
    if chosen.zero >= _SHARDS and chosen.expert == 1 and not chosen.offload_optimizer:
        return Engine.FSDP
    if chosen.zero or chosen.offload_optimizer or chosen.expert > 1:
        return Engine.DEEPSPEED
    return Engine.MULTI_GPU if chosen.num_devices > 1 else Engine.NO


def export(job: Job) -> Export:
    """Return the configuration and the script that starts it.

    Raises
    ------
    InfeasibleError
        Where machines have unlike numbers of devices, several CPUs train, or no engine of Accelerate's runs the plan.
    """
    layout = layout_of(TARGET, job)
    if not is_one_shape(layout.rows):
        why = f"it starts as many processes on every machine, and the plan takes {machine_words(layout.rows)}"
        hint = "Pin fix.num_devices to whole machines of one kind; or export to ddp, megatron or torchtitan."
        raise layout.refused(why, hint)
    if layout.chosen.num_devices > 1:  # on CPUs it starts one process, or those of MPI (launch.py, simple_launcher)
        require_kinds(TARGET, job, layout.rows, "gpu")
    engine = engine_of(layout)
    inner: Mapping[str, str] = {}
    if engine is Engine.DEEPSPEED:
        note = f"{deepspeed.CONFIG} is written for {deepspeed.VERSION}"
        layout, inner = deepspeed.with_files(layout.noted(note))
    else:
        layout, inner = run_with(layout, engine), tuning_files(job.problem.dnn.transformer)
    layout, environment = layout.with_sums_in_network()
    head = [f"{VERSION}: {job.problem.dnn.name}, {layout.chosen.headline}", *layout.notes]
    if engine in {Engine.MULTI_GPU, Engine.NO, Engine.FSDP}:
        steps = f"export ACCELERATE_GRADIENT_ACCUMULATION_STEPS={layout.chosen.num_microbatches}"
        environment = (steps, *environment)
    is_one = sum(row.num_machines for row in layout.rows) == 1
    where = "" if is_one else '--machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" '
    program = script_words(job.settings.script, "train.py")
    command = f"accelerate launch --config_file {FILE} {where}{program}"
    script = torchrun_script(
        layout.rows, program, head=comment_lines(head), environment=environment, commands=[command] * len(layout.rows)
    )
    files = {FILE: yaml_text([_document(layout, engine)], head), "launch.sh": script, **inner}
    return Export(target=TARGET, version=VERSION, files=files, notes=layout.notes, how_to_run=how_to_run(layout.rows))


# -- what its engines cannot do ----------------------------------------------------------------------------------------


def run_with(layout: Layout, engine: Engine) -> Layout:
    """Return a layout as an engine runs it, every change with its note.

    Raises
    ------
    InfeasibleError
        For stages, networks and sharding that it does not have.
    """
    if engine is Engine.MEGATRON_LM:
        return _with_megatron(layout)
    layout = layout.with_whole_layers()
    if engine is Engine.FSDP:
        layout = _with_fsdp(layout)
    elif layout.chosen.recompute == "full":
        layout = layout.noted("call model.gradient_checkpointing_enable()")
    chosen, planned = layout.chosen, layout.job.plan.configuration
    layout = layout.noted(f"give your DataLoader batch_size={chosen.microbatch}, the samples of a device at a time")
    if chosen.num_microbatches > 1:
        layout = layout.noted(
            f"gradients are accumulated over {chosen.num_microbatches} micro-batches: train within "
            f"accelerator.accumulate(model)"
        )
    if engine is not Engine.MULTI_GPU or layout.job.is_probe:
        return layout
    if not isinstance(planned, AllReduceConfiguration):
        return layout.noted("DDP's buckets have 25 MiB, or what DistributedDataParallelKwargs(bucket_cap_mb=...) says")
    # What DDP's own buckets lose against the plan's groups.
    tensors = GradientTensors(layout.job.problem, planned)
    planned_s = layout.job.plan.prediction.iteration_time_s
    best, usual = tensors.best_cap, ddp_buckets(tensors.size_bytes, [DDP_FIRST_BYTES, DDP_CAP_BYTES])
    cap = tensors.mib_of(best)
    words = []
    for name, fused in (
        (f"DDP's own buckets of {DDP_CAP_BYTES // MIB} MiB", usual),
        (f"with kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb={cap:g})]", best),
    ):
        seconds = tensors.iteration_time_s(fused.ends)
        words.append(f"{name}: {time_text(seconds)} ({seconds / planned_s - 1:+.1%})")
    return layout.noted(
        f"an iteration takes {time_text(planned_s)} with the plan's {len(planned.fusion_groups)} groups, which ddp "
        f"forms; {'; '.join(words)}"
    )


def _with_fsdp(layout: Layout) -> Layout:
    chosen = layout.chosen
    if chosen.shard == 1:  # over context ranks alone, which its ``ParallelismConfig`` refuses
        layout = layout.with_whole_shards()
    if chosen.sequence_parallel and chosen.tensor > 1:
        why = "its tensor parallelism (the model's own plan) does not split the sequence, and overlaps nothing by that"
        layout = layout.instead(why, sequence_parallel=False, overlap_tensor=False)
    layout = layout.with_usual_order("ranks are numbered")
    if chosen.tensor > 1:
        layout = layout.noted(
            "load the model with from_pretrained(..., tp_plan='auto', device_mesh=accelerator.torch_device_mesh)"
        )
    if chosen.context > 1:
        if chosen.context_method != "all_gather":
            layout = layout.instead("context ranks gather keys and values", context_method="all_gather")
        layout = layout.noted("train within accelerator.maybe_context_parallel(...)")
    if not chosen.overlap_data:
        layout = layout.noted(
            "FSDP always overlaps gathering and reducing with computation; the plan does not count on it"
        )
    return layout


def _with_megatron(layout: Layout) -> Layout:
    """Return the layout as Accelerate's plugin of Megatron-LM runs it."""
    chosen, network = layout.chosen, layout.network
    if chosen.zero >= _SHARDS:
        why = f"its Megatron-LM plugin has no ZeRO {chosen.zero} beside experts over tensor ranks"
        raise layout.refused(why, "Pin fix.zero_stage: 1; or export to megatron.")
    if layout.dtype not in {"bf16", "fp16"}:
        raise layout.refused("its Megatron-LM plugin trains in bf16 or fp16", "Write dnn.dtype: bf16.")
    if network is not None and (strange := not_expressed(network)):
        raise layout.refused(f"Megatron-LM has no {', no '.join(strange)}", "Choose another target.")
    if chosen.schedule != "1f1b":
        layout = layout.instead(f"Megatron-LM runs 1F1B, not {chosen.schedule}", schedule="1f1b", interleave=1)
    elif chosen.interleave > 1:
        why = "its file has no chunks (MegatronLMPlugin in the program has num_layers_per_virtual_pipeline_stage)"
        layout = layout.instead(why, interleave=1)
    layout = layout.with_plain_recomputation().with_whole_shards()
    if chosen.offload_optimizer and chosen.zero == 0 and chosen.data * chosen.context > 1:
        layout = layout.instead("its optimiser on the host is the distributed one, which is ZeRO 1", zero=1)
    if chosen.overlap_data or chosen.overlap_tensor:
        why = "its file has no overlaps (MegatronLMPlugin has other_megatron_args: overlap_grad_reduce and others)"
        layout = layout.instead(why, overlap_data=False, overlap_tensor=False)
    layout = layout.with_usual_order("ranks are numbered")
    layout = layout.with_ring("its file has no other method of context parallelism")
    layers = layout.chosen.chunk_layers(network.num_layers) if network is not None else ()
    if len(set(layers[:-1])) > 1:
        why = f"all stages but the last are equal in its file, and the plan has {', '.join(map(str, layers))} layers"
        raise layout.refused(why, "Export to megatron, torchtitan or deepspeed.")
    return layout.noted(
        f"give MegatronLMDummyDataLoader micro_batch_size={chosen.microbatch}; the plugin trains GPT, BERT and T5 of "
        f"its own, with Megatron-LM installed"
    )


# -- the configuration -------------------------------------------------------------------------------------------------


def _document(layout: Layout, engine: Engine) -> dict[str, Any]:
    """Return the whole file; texts that YAML 1.1 reads as truth values are quoted."""
    from ruamel.yaml.scalarstring import SingleQuotedScalarString  # noqa: PLC0415  # late, as all of ruamel

    chosen, machines = layout.chosen, sum(row.num_machines for row in layout.rows)
    flags: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": SingleQuotedScalarString(engine.value),
        "num_machines": machines,
        "num_processes": chosen.num_devices,
        "machine_rank": 0,
        "use_cpu": True if device_of(layout.job, layout.rows[0]).kind == "cpu" else None,
    }
    if machines > 1:
        flags |= {"main_process_ip": "FIRST", "main_process_port": PORT, "rdzv_backend": "static", "same_network": True}
    if engine is Engine.DEEPSPEED:  # whose own file has the numbers' type, and refuses a second one
        flags["deepspeed_config.deepspeed_config_file"] = deepspeed.CONFIG
        flags["deepspeed_config.zero3_init_flag"] = chosen.zero == 3  # the stage that shards weights
        flags["deepspeed_config.deepspeed_multinode_launcher"] = "standard" if machines > 1 else None
        return nested(flags)
    flags["mixed_precision"] = SingleQuotedScalarString(_PRECISION[layout.dtype])
    if engine is Engine.FSDP:
        flags |= _fsdp_flags(layout)
    elif engine is Engine.MEGATRON_LM:
        flags |= _megatron_flags(layout)
    return nested(flags)


def _fsdp_flags(layout: Layout) -> dict[str, Any]:
    chosen = layout.chosen
    flags: dict[str, Any] = {
        "fsdp_config.fsdp_version": 2,
        _FSDP["zero"]: chosen.zero == 3,  # ZeRO 3 frees weights after the forward pass
        _FSDP["recompute"]: chosen.recompute == "full",
        "fsdp_config.fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_config.fsdp_offload_params": False,
        "fsdp_config.fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    if chosen.tensor > 1 or chosen.context > 1 or chosen.num_copies > 1:
        own, copies = "parallelism_config.parallelism_config_", chosen.num_copies
        flags |= {_FSDP["data"]: copies, _FSDP["shard"]: chosen.data // copies}
        flags |= {_FSDP["tensor"]: chosen.tensor, _FSDP["context"]: chosen.context}
        flags |= {f"{own}cp_backend": "torch", f"{own}cp_comm_strategy": "allgather"}
        flags |= {f"{own}sp_size": 1, f"{own}sp_backend": "deepspeed"}
    return flags


def _megatron_flags(layout: Layout) -> dict[str, Any]:
    chosen, network = layout.chosen, layout.network
    own, is_full = "megatron_lm_config.megatron_lm_", chosen.recompute == "full"
    has_experts = network is not None and network.experts is not None
    flags: dict[str, Any] = {
        _PLUGIN["tensor"]: chosen.tensor,
        _PLUGIN["pipeline"]: chosen.pipeline,
        f"{own}num_micro_batches": chosen.num_microbatches,
        _PLUGIN["sequence_parallel"]: chosen.sequence_parallel,
        _PLUGIN["zero"]: chosen.zero > 0 or chosen.offload_optimizer,
        _PLUGIN["context"]: chosen.context,
        _PLUGIN["expert"]: chosen.expert,
        f"{own}gradient_clipping": 1.0,
        _PLUGIN["expert_tensor"]: chosen.expert_tensor if has_experts else None,
        # recompute_activations would mean selective, whatever else is said
        _PLUGIN["recompute"]: None if chosen.recompute == "none" else chosen.recompute,
        f"{own}recompute_method": "uniform" if is_full else None,
        f"{own}recompute_num_layers": 1 if is_full else None,
        _PLUGIN["offload_optimizer"]: chosen.offload_optimizer or None,
        f"{own}use_precision_aware_optimizer": chosen.offload_optimizer or None,
    }
    if network is not None and chosen.pipeline > 1:
        layers = chosen.chunk_layers(network.num_layers)
        flags[f"{own}decoder_last_pipeline_num_layers"] = layers[-1] if layers[-1] != layers[0] else None
    return flags


# -- back again --------------------------------------------------------------------------------------------------------


def recognises(path: Path, text: str) -> bool:
    """Whether this is a configuration of Accelerate's."""
    return path.suffix in {".yaml", ".yml"} and "distributed_type:" in text and "num_processes:" in text


def degrees(path: Path, text: str) -> Mapping[str, object]:
    """Return the layout of a configuration as a ``fix`` block pins it.

    Of an engine that has a file of its own (DeepSpeed), and of a copy on every device, it is the number of devices
    alone; micro-batches are known for Megatron-LM only.
    """
    documents = documents_of(text)
    if not documents:
        raise Parsed(path, {}).fault("it is no YAML document of a usual size.")
    file = Parsed(path, documents[0])
    number, kind = file.count("num_processes"), str(file.value("distributed_type"))
    if kind == Engine.FSDP.value:
        copies = file.count(_FSDP["data"], 1)
        chosen = read_layout(
            file,
            "fsdp",
            num_devices=number,
            shard=file.count(_FSDP["shard"], 1) if copies > 1 else 0,
            zero=3 if file.value(_FSDP["zero"], True) else 2,
            recompute="full" if file.value(_FSDP["recompute"]) else "none",
        )
        return pins_of(chosen, *pinned_by("fsdp"))
    if kind == Engine.MEGATRON_LM.value:
        chosen = read_layout(
            file,
            "plugin",
            num_devices=number,
            required=("tensor", "pipeline"),
            zero=int(bool(file.value(_PLUGIN["zero"]))),
        )
        microbatches = {"num_microbatches": file.count("megatron_lm_config.megatron_lm_num_micro_batches")}
        return {**shared_pins(chosen, *pinned_by("plugin")), **microbatches}
    return {"num_devices": number}


def training(path: Path, text: str) -> TrainingBlocks:
    """Return the numbers of a configuration, and the adapters that stand beside it."""
    file, dnn = Parsed(path, next(iter(documents_of(text)), {})), {}
    if (precision := file.value("mixed_precision")) is not None:
        kinds = {"bf16": "bf16", "fp16": "fp16", "no": "fp32"}
        if str(precision) not in kinds:
            raise file.fault(
                f"{str(precision)[:60]!r} is none.", "mixed_precision", f"Write one of {', '.join(kinds)}."
            )
        dnn["dtype"] = kinds[str(precision)]
    why = "its optimiser and its batch are the program's own: write dnn.optimizer and dnn.global_batch"
    return TrainingBlocks(dnn={**dnn, **tuning_beside(path)}, warnings=(why,))


EXPORTERS = {TARGET: Exporter(export, recognises, degrees, training=training)}
