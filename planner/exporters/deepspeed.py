"""The configuration of DeepSpeed 0.19.8: ``ds_config.json``, and the planned stages where there is a pipeline.

Keys, of DeepSpeed 0.19.8: ``deepspeed/runtime/config.py`` (batch, precision, pipeline), ``runtime/zero/config.py``,
``runtime/tensor_parallel/config.py`` (``autotp_size``), ``module_inject/auto_ep_config.py`` (``autoep_size``).
Conditions between them: ``module_inject/auto_ep_folding.py`` (experts), ``runtime/pipe/engine.py`` (ZeRO 0 and 1),
``runtime/sequence_parallel/ulysses_sp.py`` (heads). That gradients are exchanged behind the backward pass without ZeRO:
``runtime/engine.py``, ``allreduce_gradients`` and ``MEMORY_OPT_ALLREDUCE_SIZE``. JSON has no comments: the version
stands in the other files, and in the notes.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError
from planner.exporters.buckets import TensorExchange
from planner.exporters.deepspeed_keys import check_keys
from planner.exporters.deepspeed_pipeline import NAME as PIPELINE
from planner.exporters.deepspeed_pipeline import is_pipeline, pipeline_degrees, pipeline_layout, pipeline_text
from planner.exporters.deepspeed_run import as_run
from planner.exporters.export import Export, Job
from planner.exporters.layouts import Layout, how_to_run, launch_script, layout_of, pins_of, read_layout, stage_layers
from planner.exporters.torchrun import script_words
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.pipeline.configuration import PipelineConfiguration
from planner.transformer import Transformer
from planner.units import Dimension, format_human

__all__ = ["CONFIG", "VERSION", "configuration", "degrees", "export", "recognises", "with_files"]

TARGET, VERSION, CONFIG = "deepspeed", "DeepSpeed 0.19.8", "ds_config.json"
_BUCKET = 500_000_000  # elements; DeepSpeed's own default, and its constant where there is no ZeRO
_MOST_BYTES = 1 << 20
_MOST_COUNT = 1 << 31
_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def export(job: Job) -> Export:
    """Return the configuration, a script that starts it, and the stages of a pipeline.

    Raises
    ------
    InfeasibleError
        For what DeepSpeed cannot run: see :mod:`planner.exporters.deepspeed_run`.
    """
    planned = job.plan.configuration
    if isinstance(planned, PipelineConfiguration):
        layout, files = with_files(pipeline_layout(TARGET, job, planned))
    else:
        layout, files = with_files(layout_of(TARGET, job))
    program = script_words(job.settings.script, f"train.py --deepspeed --deepspeed_config {CONFIG}")
    return Export(
        target=TARGET,
        version=VERSION,
        files={**files, "launch.sh": launch_script(layout, VERSION, program)},
        notes=(f"written for {VERSION}", *layout.notes),
        how_to_run=how_to_run(layout),
    )


def with_files(layout: Layout) -> tuple[Layout, dict[str, str]]:
    """Return a layout as DeepSpeed runs it, with its notes; and the configuration, and the stages where there are any.

    Raises
    ------
    InfeasibleError
        For what DeepSpeed cannot run.
    """
    layout = as_run(layout)
    layout = layout.noted(*_bucket_notes(layout))
    files = {CONFIG: json.dumps(configuration(layout), indent=2) + "\n"}
    if layout.chosen.pipeline > 1:
        blocks = layout.layers
        if layout.network is not None:
            blocks = stage_layers(layout.network.num_layers, layout.chosen)
        files[PIPELINE] = pipeline_text(layout, VERSION, blocks)
    return layout, files


# -- the configuration -------------------------------------------------------------------------------------------------


def configuration(layout: Layout) -> dict[str, Any]:
    """Return the document, of a layout that DeepSpeed runs as it is."""
    chosen = layout.chosen
    found: dict[str, Any] = dict(
        zip(_BATCH, (chosen.global_batch_size, chosen.microbatch, chosen.num_microbatches), strict=True)
    )
    if layout.dtype in {"bf16", "fp16"}:
        found[layout.dtype] = {"enabled": True}
    found["zero_optimization"] = _zero(layout)
    if chosen.tensor > 1 and chosen.pipeline == 1:
        found["tensor_parallel"] = {"autotp_size": chosen.tensor, "tp_overlap_comm": chosen.overlap_tensor}
    if chosen.context > 1:
        found["sequence_parallel_size"] = chosen.context
    if chosen.expert > 1 and chosen.pipeline == 1 and layout.network is not None:
        found["expert_parallel"] = {"enabled": True, "autoep_size": chosen.expert, **_preset(layout.network)}
    if chosen.pipeline > 1:
        interval = int(chosen.recompute == "full")
        found["pipeline"] = {"stages": chosen.pipeline, "activation_checkpoint_interval": interval}
    if chosen.recompute == "full":
        found["activation_checkpointing"] = {"partition_activations": False, "cpu_checkpointing": False}
    return found


def _zero(layout: Layout) -> dict[str, Any]:
    """Return the block of ZeRO."""
    chosen = layout.chosen
    elements = _bucket_elements(layout)
    found: dict[str, Any] = {
        "stage": chosen.zero,
        "overlap_comm": chosen.overlap_data and chosen.zero > 0,
        "contiguous_gradients": True,
        "reduce_bucket_size": elements,
        "allgather_bucket_size": elements,
    }
    if chosen.offload_optimizer:
        found["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return found


def _bucket_elements(layout: Layout) -> int:
    """Return the numbers in a bucket: of the plan's largest group, or as many as leave half of the room on a device.

    Two buckets of two bytes a number are held where exchange overlaps.
    """
    planned = layout.job.plan.configuration
    if isinstance(planned, AllReduceConfiguration):
        if not planned.fusion_groups:  # of one device
            return _BUCKET
        largest = max(group.size_bytes for group in planned.fusion_groups)
        return max(1, min(_BUCKET, round(largest / TensorExchange(layout.job.problem, planned).gradient_bytes)))
    millions = min(layout.room_bytes / 8 / 1e6, _BUCKET / 1e6)
    return max(1, int(millions)) * 1_000_000


def _preset(network: Transformer) -> dict[str, str]:
    """Return the name of the mixture of experts in DeepSpeed's table; nothing where none is like it."""
    if network.latent is not None and network.experts is not None:
        return {"preset_model": "deepseek_v3" if network.experts.has_router_bias else "deepseek_v2"}
    return {"preset_model": "qwen3_moe" if network.has_query_key_norms else "mixtral"} if network.is_gated else {}


def _bucket_notes(layout: Layout) -> Iterator[str]:
    """Yield what becomes of the exchange of gradients."""
    planned, chosen = layout.job.plan.configuration, layout.chosen
    if chosen.data * chosen.context == 1:
        return
    if chosen.zero:
        elements = _bucket_elements(layout)
        held = format_human(elements * 4, Dimension.DATA)
        yield f"buckets have {elements:,} numbers; two of them take {held} of a device, which the plan does not count"
    if not isinstance(planned, AllReduceConfiguration):
        return
    exchange = TensorExchange(layout.job.problem, planned)
    planned_s = layout.job.plan.prediction.iteration_time_s
    found_s = exchange.iteration_time_s((len(exchange.size_bytes) - 1,))
    number = len(planned.fusion_groups)
    yield (
        f"without ZeRO it exchanges gradients behind the backward pass, up to {_BUCKET:,} numbers at a time: not in "
        f"the plan's {number} group{'s' * (number > 1)}, so that an iteration takes at least "
        f"{format_human(found_s, Dimension.TIME, 4)}, not {format_human(planned_s, Dimension.TIME, 4)} "
        f"({found_s / planned_s - 1:+.1%}); ddp overlaps. From ZeRO 1 on buckets have the size written, that of the "
        f"plan's largest group, and overlap"
    )


# -- back again --------------------------------------------------------------------------------------------------------


def recognises(path: Path, text: str) -> bool:
    """Whether this is a configuration of DeepSpeed, or the stages that were written beside it."""
    return (path.suffix == ".json" and '"train_micro_batch_size_per_gpu"' in text) or is_pipeline(path, text)


def degrees(path: Path, text: str) -> Mapping[str, Any]:
    """Return the decisions of a configuration as a ``fix`` block pins them.

    Of one that only copies the network these are ``num_devices`` and ``gradient_accumulation_steps``, as the family
    ``all_reduce`` has them; else those of ``hybrid``. Degrees of a tensor-parallel pipeline stand in the module of its
    stages.

    Raises
    ------
    SpecError
        If the text is no such document, has keys that DeepSpeed does not know, or its batch is no product.
    """
    if is_pipeline(path, text):
        return pipeline_degrees(path, text)
    document = _document(path, text)
    check_keys(path, document)
    batch, micro, steps = (_count(path, document, name) for name in _BATCH)
    if batch % (micro * steps):
        mend = "Correct one of the three."
        problem = f"{batch} is no multiple of {micro} x {steps}, the other two of the batch."
        raise SpecError.of([Fault(file=str(path), field=_BATCH[0], value=str(batch), problem=problem, mend=mend)])
    zero, pipeline = _block(path, document, "zero_optimization"), _block(path, document, "pipeline")
    chosen = read_layout(
        path,
        global_batch_size=batch,
        data=batch // (micro * steps),
        tensor=max(1, _count(path, _block(path, document, "tensor_parallel"), "autotp_size", 1)),
        context=_count(path, document, "sequence_parallel_size", 1),
        pipeline=_count(path, pipeline, "stages", 1),
        expert=_count(path, _block(path, document, "expert_parallel"), "autoep_size", 1),
        microbatch=micro,
        zero=_count(path, zero, "stage", 0, least=0),
        recompute="full" if "activation_checkpointing" in document else "none",
        offload_optimizer=bool(zero.get("offload_optimizer")),
    )
    names = ("data", "context", "pipeline", "microbatch", "zero", "recompute", "offload_optimizer")
    is_copy = chosen.num_devices == chosen.data and not (chosen.zero or chosen.expert > 1)
    if is_copy and chosen.recompute == "none":
        return {"num_devices": chosen.data, "gradient_accumulation_steps": steps}
    if chosen.pipeline > 1:
        return pins_of(chosen, *names)
    return pins_of(chosen, *names, "tensor", "expert", "num_devices")


def _document(path: Path, text: str) -> Mapping[str, Any]:
    """Return the document of a text."""
    problem = f"it has more than {_MOST_BYTES:,} characters." if len(text) > _MOST_BYTES else ""
    found: Any = None
    if not problem:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            problem = f"it is no JSON: {error}."
    if not problem and not isinstance(found, dict):
        problem = "it is no mapping of keys."
    if problem:
        raise SpecError.of([Fault(file=str(path), problem=problem, mend="Give a configuration of DeepSpeed.")])
    return dict(found)


def _block(path: Path, document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a block of a document; an empty one where it has none."""
    found = document.get(name, {})
    if not isinstance(found, dict):
        raise SpecError.of(
            [Fault(file=str(path), field=name, value=str(found), problem="it is no mapping.", mend="Write {...}.")]
        )
    return found


def _count(path: Path, block: Mapping[str, Any], name: str, default: int | None = None, *, least: int = 1) -> int:
    """Return a whole number of a block."""
    found = block.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int) or not least <= found < _MOST_COUNT:
        mend = f"Write a whole number of {least} or more."
        problem = f"{found!r} is no such number." if name in block else "it is missing."
        raise SpecError.of([Fault(file=str(path), field=name, value=str(found), problem=problem, mend=mend)])
    return found
