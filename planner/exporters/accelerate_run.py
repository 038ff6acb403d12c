"""Which engine of Accelerate's trains a layout, and what that engine makes of it."""

from enum import Enum

from planner.exporters.buckets import MIB, TensorExchange, best_buffer, full_buckets, round_size
from planner.exporters.layouts import Layout, stage_layers
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.hybrid.configuration import ORDER_NAMES
from planner.families.hybrid.launch_network import not_expressed
from planner.units import Dimension, format_human

__all__ = ["Engine", "engine_of", "run_with"]

_SHARDS = 2  # from this stage of ZeRO on gradients are sharded
# Of DDP where nobody says otherwise: the first bucket, and those behind it. A cap that is given holds for all of them
# (torch/nn/parallel/distributed.py of PyTorch 2.13, pytorch/pytorch#121640).
_FIRST_MIB, _CAP_MIB = 1, 25


class Engine(Enum):
    """A ``distributed_type`` of Accelerate's."""

    NO = "NO"
    MULTI_GPU = "MULTI_GPU"
    FSDP = "FSDP"
    DEEPSPEED = "DEEPSPEED"
    MEGATRON_LM = "MEGATRON_LM"


def engine_of(layout: Layout) -> Engine:
    """Return what trains a layout."""
    chosen = layout.chosen
    is_split = chosen.tensor > 1 or chosen.context > 1
    if chosen.pipeline > 1 or (is_split and (chosen.zero < _SHARDS or chosen.expert > 1)):
        return Engine.MEGATRON_LM
    if chosen.zero >= _SHARDS and chosen.expert == 1 and not chosen.offload_optimizer:
        return Engine.FSDP
    if chosen.zero or chosen.offload_optimizer or chosen.expert > 1:
        return Engine.DEEPSPEED
    return Engine.MULTI_GPU if chosen.num_devices > 1 else Engine.NO


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
    return layout.noted(*_batch_notes(layout), *_bucket_notes(layout, engine))


def _batch_notes(layout: Layout) -> list[str]:
    """Return what the program itself must do with the batch."""
    chosen = layout.chosen
    notes = [f"give your DataLoader batch_size={chosen.microbatch}, the samples of a device at a time"]
    if chosen.num_microbatches > 1:
        notes.append(
            f"gradients are accumulated over {chosen.num_microbatches} micro-batches: train within "
            f"accelerator.accumulate(model)"
        )
    return notes


def _bucket_notes(layout: Layout, engine: Engine) -> list[str]:
    """Return what DDP's own buckets lose against the plan's groups."""
    planned = layout.job.plan.configuration
    if engine is not Engine.MULTI_GPU or layout.job.is_probe:
        return []
    if not isinstance(planned, AllReduceConfiguration):
        return ["DDP's buckets have 25 MiB, or what DistributedDataParallelKwargs(bucket_cap_mb=...) says"]
    exchange = TensorExchange(layout.job.problem, planned)
    planned_s = layout.job.plan.prediction.iteration_time_s
    _, best = best_buffer(exchange, lambda limit: full_buckets(exchange.size_bytes, [limit]))
    usual = full_buckets(exchange.size_bytes, [_FIRST_MIB * MIB, _CAP_MIB * MIB])
    cap = round_size(best, float(exchange.size_bytes.sum()))
    words = [
        f"{name}: {format_human(seconds, Dimension.TIME, 4)} ({seconds / planned_s - 1:+.1%})"
        for name, seconds in (
            (f"DDP's own buckets of {_CAP_MIB} MiB", exchange.iteration_time_s(usual.ends)),
            (
                f"with kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb={cap:g})]",
                exchange.iteration_time_s(best.ends),
            ),
        )
    ]
    planned_words = f"{format_human(planned_s, Dimension.TIME, 4)} with the plan's {len(planned.fusion_groups)} groups"
    return [f"an iteration takes {planned_words}, which ddp forms; {'; '.join(words)}"]


def _with_fsdp(layout: Layout) -> Layout:
    """Return the layout as FSDP 2 runs it."""
    chosen = layout.chosen
    if chosen.sequence_parallel and chosen.tensor > 1:
        why = "its tensor parallelism (the model's own plan) does not split the sequence, and overlaps nothing by that"
        layout = layout.instead(why, sequence_parallel=False, overlap_tensor=False)
    layout = _in_order(layout)
    if chosen.tensor > 1:
        layout = layout.noted(
            "load the model with from_pretrained(..., tp_plan='auto', device_mesh=accelerator.torch_device_mesh)"
        )
    if chosen.context > 1:
        layout = layout.noted(
            "train within accelerator.maybe_context_parallel(...), where keys and values are gathered; the plan counts "
            "their passing on"
        )
    if not chosen.overlap_data:
        layout = layout.noted(
            "FSDP always overlaps gathering and reducing with computation; the plan does not count on it"
        )
    return layout


def _with_megatron(layout: Layout) -> Layout:
    """Return the layout as Accelerate's plugin of Megatron-LM runs it."""
    chosen, network = layout.chosen, layout.network
    if chosen.zero >= _SHARDS:
        mend = "Pin fix.zero_stage: 1; or export to megatron."
        raise layout.refused(f"its Megatron-LM plugin has no ZeRO {chosen.zero} beside experts over tensor ranks", mend)
    if layout.dtype not in {"bf16", "fp16"}:
        raise layout.refused("its Megatron-LM plugin trains in bf16 or fp16", "Write dnn.dtype: bf16.")
    if network is not None and (strange := not_expressed(network)):
        raise layout.refused(f"Megatron-LM has no {', no '.join(strange)}", "Choose another target.")
    if chosen.interleave > 1:
        why = "its file has no chunks (MegatronLMPlugin in the program has num_layers_per_virtual_pipeline_stage)"
        layout = layout.instead(why, interleave=1)
    if chosen.schedule != "1f1b":
        layout = layout.instead(f"Megatron-LM runs 1F1B, not {chosen.schedule}", schedule="1f1b")
    if chosen.offload_optimizer and chosen.zero == 0 and chosen.data * chosen.context > 1:
        layout = layout.instead("its optimiser on the host is the distributed one, which is ZeRO 1", zero=1)
    if chosen.overlap_data or chosen.overlap_tensor:
        why = "its file has no overlaps (MegatronLMPlugin has other_megatron_args: overlap_grad_reduce and others)"
        layout = layout.instead(why, overlap_data=False, overlap_tensor=False)
    layout = _in_order(layout)
    layers = stage_layers(network.num_layers, layout.chosen) if network is not None else ()
    if len(set(layers[:-1])) > 1:
        listed = ", ".join(map(str, layers))
        mend = "Export to megatron, torchtitan or deepspeed."
        raise layout.refused(f"all stages but the last are equal in its file, and the plan has {listed} layers", mend)
    return layout.noted(
        f"give MegatronLMDummyDataLoader micro_batch_size={chosen.microbatch}; the plugin trains GPT, BERT and T5 of "
        f"its own, with Megatron-LM installed"
    )


def _in_order(layout: Layout) -> Layout:
    """Return the layout with ranks as they are numbered."""
    if layout.chosen.order == ORDER_NAMES[0] or not layout.is_hybrid:
        return layout
    why = f"ranks are numbered {ORDER_NAMES[0]}, from the inside outwards"
    return layout.instead(why, order=ORDER_NAMES[0])
