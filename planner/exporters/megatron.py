"""The command that trains with Megatron-LM's ``pretrain_gpt.py``: ``launch.sh``.

The options themselves are those that a plan prints (:mod:`planner.families.hybrid.launch`, read in
``megatron/training/arguments.py`` at commit 000c4ac). Here they are started on the plan's machines, plans of pure data
parallelism get them, too, and a script is read back. What ``pretrain_gpt.py`` has no word for is refused or noted.

Of the bucket: ``megatron/core/distributed/param_and_grad_buffer.py`` of megatron-core 0.16.1 closes a bucket as soon as
it holds ``--ddp-bucket-size`` numbers, in the reverse order of the network, as PyTorch's DDP does.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from planner.decisions import FLAGS, LAYOUT
from planner.errors import Fault, SpecError
from planner.exporters.buckets import GradientTensors
from planner.exporters.export import Export, Exporter, Job
from planner.exporters.layouts import (
    Layout,
    layout_export,
    read_layout,
    shared_pins,
    time_text,
    transformer_layout,
    with_layers,
)
from planner.exporters.machines import group_of
from planner.exporters.megatron_network import ENDS, is_stack, parts_of_stack, transformer_of
from planner.exporters.scripts import Parsed, launched, script_words, shipped_words
from planner.exporters.training_blocks import training_of_options
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.hybrid.configuration import MOST_ZERO_OF_CUTS, HybridConfiguration, PipelineStage
from planner.families.hybrid.cost import launches_graphs
from planner.families.hybrid.launch import (
    CONTEXT_METHODS,
    OPTIMIZERS,
    SHARDING,
    VERSION,
    Launch,
    has_copies_of_experts,
    keeps_short_weights,
    launch_lines,
    low_precision_options,
    needs_distributed_optimizer,
    options,
    orders_of,
    younger_options,
)
from planner.families.hybrid.launch_network import missing_options, not_expressed, program_of
from planner.families.hybrid.prediction import added_up
from planner.models.low_precision import LOW_TYPES
from planner.models.programs import token_backend
from planner.schedules import NAMED
from planner.transformer import Transformer

__all__ = ["EXPORTERS", "KNOWN", "VERSION", "as_run", "export", "layout_of_options", "options_exporter"]
__all__ += ["recognises", "with_missing_options", "words_of"]

TARGET = "megatron"
_FLAGS = FLAGS["megatron"]
_KEY_VALUE_COPIES = "core_v0.16"
# Options that may be written, so that a misspelt one is found when a script is read back. Source:
# ``megatron/training/arguments.py`` of github.com/NVIDIA/Megatron-LM at commit 000c4ac24f61159c138b0975def722c65245983c
# (between core 0.14 and 0.16); those of a layout were read again for this list in ``_add_distributed_args``,
# ``_add_mixed_precision_args`` and ``_add_network_size_args``. The names that are fields of ``TransformerConfig`` too
# are held against the installed megatron-core by a test.
KNOWN = frozenset({*shipped_words("megatron_options"), *_FLAGS.values()})
_LAYOUT = "pipeline-model-parallel-layout"
_REPEATED = (re.compile(r"\(([^()]+)\)\*(\d{1,9})"), re.compile(r"(.)\*(\d{1,9})"))
_MOST_LETTERS = 20_000  # of a layout


def export(job: Job) -> Export:
    """Return the script that every machine runs.

    Raises
    ------
    InfeasibleError
        For networks that ``pretrain_gpt.py`` cannot train, and for unlike numbers of micro-batches.
    """
    layout, network = transformer_layout(TARGET, job, low=LOW_TYPES)
    hint = f"Give a script of your own these options: {' '.join(options(network, layout.chosen))}"
    layout = with_missing_options(layout, network, program_of(network), hint=hint)
    layout, environment, groups = words_of(layout, network)
    program = " \\\n    ".join([script_words(job.settings.script, program_of(network)), *groups])
    return layout_export(layout, VERSION, program, environment=environment)


def with_missing_options(
    layout: Layout, network: Transformer, program: str, *, hint: str = "Export to ddp, or to deepspeed.", **has: bool
) -> Layout:
    """Return the layout, with options that a program has not in its notes; ``has``: see :func:`missing_options`.

    Raises
    ------
    InfeasibleError
        Where that changes sizes, seconds or bytes.
    """
    if strange := not_expressed(network):
        raise layout.refused(f"its {program} has no {', no '.join(strange)}", hint)
    left = missing_options(network, **has)
    return (
        layout.noted(f"its {program} has no option for {'; for '.join(left)}: set them in its code") if left else layout
    )


def words_of(
    layout: Layout, network: Transformer, *, schedules: Sequence[str] = ()
) -> tuple[Layout, Sequence[str], list[str]]:
    """Return a layout as Megatron-LM runs it, with its notes; lines of its environment, and groups of its options.

    Figures of the network that have no option are not named here: programs that read the same options may have them.

    Parameters
    ----------
    schedules
        Of pipelines, that a program on top of Megatron-LM has beside 1F1B.

    Raises
    ------
    InfeasibleError
        For what Megatron-LM cannot run.
    """
    job = layout.job
    layout, more = _with_buckets(as_run(layout, network, schedules=schedules))
    gradients = job.problem.calibration.gradients
    low = low_precision_options(job.problem.training.low, has_cuda_graphs=launches_graphs(job.problem), network=network)
    _check_optimizer(layout)
    group = group_of(job, layout.rows[0])
    launch = Launch(
        dtype=layout.dtype,
        devices_per_machine=group.host_size,
        gradients=gradients,
        low=low,
        optimizer=job.problem.training.optimizer,
        backend=token_backend(group.device.name, layout.target, layout.chosen.tensor),
        domain_size=group.devices_per_machine,
        added_up="" if layout.target == "primus" else added_up(job.problem, layout.chosen),
    )
    lines = launch_lines(network, layout.chosen, launch)
    start = next(index for index, line in enumerate(lines) if line.startswith("torchrun"))
    groups = [*(line.removesuffix(" \\") for line in lines[start + 1 :]), *more]
    return layout, lines[:start], groups


def _check_optimizer(layout: Layout) -> None:
    """Refuse an optimiser that the program has not, or not for the layout."""
    name, chosen = layout.job.problem.training.optimizer, layout.chosen
    if name not in OPTIMIZERS:
        raise layout.refused(f"it has no optimiser {name}", f"Write dnn.optimizer: {' or '.join(OPTIMIZERS)}.")
    if name == "muon" and (chosen.zero > 1 or chosen.offload_optimizer):
        raise layout.refused("its Muon takes whole matrices, on devices", "Pin fix.zero_stage: 1, or 0.")


def as_run(layout: Layout, network: Transformer, *, schedules: Sequence[str] = ()) -> Layout:
    """Return the layout as Megatron-LM runs it, every change with its note."""
    chosen = layout.chosen
    if chosen.schedule not in ("1f1b", *schedules):
        why = f"it has no schedule {NAMED[chosen.schedule].title}, so that it runs 1F1B"
        layout = layout.instead(why, schedule="1f1b", interleave=1)  # chunks of a V are not interleaved
    if layout.target == TARGET:
        layout = layout.noted(*younger_options(network, layout.chosen))
    elif has_copies_of_experts(chosen):
        why = "its Megatron-FSDP (core 0.16) copies no shards of spread experts"
        raise layout.refused(why, "Pin fix.data_parallel_shard_size: 0, or fix.zero_stage: 1.")
    elif network.pattern is not None and layout.chosen.pipeline > 1:
        layout = _with_plain_stages(layout, network)
    if chosen.order not in orders_of(network, chosen):
        layout = layout.with_usual_order("it numbers the ranks of this layout")
    if chosen.offload_optimizer and chosen.zero == 0 and chosen.data * chosen.context > 1:
        layout = layout.instead("its optimiser on the host is the distributed one, which is ZeRO 1", zero=1)
    is_aware = needs_distributed_optimizer(layout.job.problem.training.optimizer)
    if is_aware and chosen.zero == 0 and chosen.data * chosen.context > 1:
        layout = layout.instead(
            "it keeps moments in short numbers in the distributed optimiser, which is ZeRO 1", zero=1
        )
    training = layout.job.problem.training
    is_short = keeps_short_weights(training.low) and training.optimizer != "muon"
    if is_short and layout.chosen.zero == 0 and chosen.data * chosen.context > 1:
        why = "it keeps weights in short numbers in the distributed optimiser, which is ZeRO 1"
        layout = layout.instead(why, zero=1)
    if chosen.expert > 1 and layout.dtype != "bf16":
        raise layout.refused("it spreads experts in bf16 only", "Write dnn.dtype: bf16.")
    if chosen.tensor > network.num_kv_heads and network.latent is None:
        layout = layout.noted(
            f"a tensor degree of {chosen.tensor} copies the {network.num_kv_heads} heads of keys and values, which "
            f"Megatron-LM does from {_KEY_VALUE_COPIES} on"
        )
    program = layout.job.problem.calibration.program
    if program not in ("megatron-core", layout.target) and layout.is_hybrid:
        layout = layout.noted(f"seconds and memory were predicted for {program}; calibration.program: megatron-core")
    return layout.noted(
        "data are made up (--mock-data), learning rate and number of steps are examples: write your own"
    )


def _with_plain_stages(layout: Layout, network: Transformer) -> Layout:
    """Return the layout with stages as a program for layers of one part has them: no chunks, alike but for the ends."""
    if layout.chosen.interleave > 1:
        layout = layout.instead("its stages of layers of one part have no chunks", interleave=1)
    first, *between, last = layout.chosen.chunk_layers(network.num_layers)
    if len({*between}) <= 1:
        return layout
    why, each = "its stages of layers of one part are alike, but for the first and the last", round(fmean(between))
    last += sum(between) - each * len(between)
    if last < 1 or layout.chosen.zero > MOST_ZERO_OF_CUTS:
        raise layout.refused(why, "Pin a number of stages that divides the layers.")
    layers = [first, *[each] * len(between), last]
    stages = layout.chosen.stages or (PipelineStage(layers=0),) * len(layers)
    cut = (replace(one, layers=number) for one, number in zip(stages, layers, strict=True))
    return layout.instead(why, stages=tuple(cut))


def _with_buckets(layout: Layout) -> tuple[Layout, list[str]]:
    """Return the best constant size of a bucket for a plan's fusion groups, and what it loses."""
    planned = layout.job.plan.configuration
    if not isinstance(planned, AllReduceConfiguration) or planned.num_devices == 1 or layout.job.is_probe:
        return layout, []
    tensors = GradientTensors(layout.job.problem, planned)
    fused = tensors.best_cap
    constant_s, planned_s = tensors.iteration_time_s(fused.ends), layout.job.plan.prediction.iteration_time_s
    elements = max(1, int(min(fused.high_bytes, float(tensors.size_bytes.sum())) // tensors.gradient_bytes))
    words = (
        f"its buckets have one size; the best is {elements:,} numbers, {len(fused.ends)} buckets for the plan's "
        f"{len(planned.fusion_groups)} groups: {time_text(constant_s)} an iteration, not {time_text(planned_s)} "
        f"({constant_s / planned_s - 1:+.1%})"
    )
    return layout.noted(words), [f"--ddp-bucket-size {elements}"]


# -- back again --------------------------------------------------------------------------------------------------------


def recognises(path: Path, text: str) -> bool:
    """Whether this is a script for Megatron-LM."""
    return path.suffix == ".sh" and f"--{_FLAGS['tensor']} " in text


def options_exporter(
    export: Callable[[Job], Export],
    recognises: Callable[[Path, str], bool],
    read: Callable[[Path, str], tuple[Parsed, int]],
    program: str,
) -> Exporter:
    """Return the exporter of a program whose files say what Megatron-LM's options do.

    Parameters
    ----------
    read
        A file as these options, and its number of devices; the data-parallel degree is what the other degrees leave.
    program
        Of the cost model, that trains with them.
    """
    return Exporter(
        export,
        recognises,
        degrees=lambda path, text: shared_pins(layout_of_options(*read(path, text))),
        network=lambda path, text: transformer_of(read(path, text)[0]),
        training=lambda path, text: training_of_options(read(path, text)[0], program),
    )


def _options_of(path: Path, text: str) -> tuple[Parsed, int]:
    """Return the options of a script, all of them known, and its number of devices."""
    command, devices = launched(path, text, f"--{_FLAGS['tensor']}")
    file = Parsed.of_options(path, command[command.index("--num-layers") if "--num-layers" in command else 0 :])
    if unknown := sorted(file.flags.keys() - KNOWN):
        problem, hint = "Megatron-LM has no such option, or planner does not write it.", "Correct its name."
        raise SpecError.of([Fault(file=str(path), field=f"--{name}", problem=problem, mend=hint) for name in unknown])
    return file, devices


def layout_of_options(file: Parsed, devices: int) -> HybridConfiguration:
    """Return the layout that options describe on a number of devices.

    Raises
    ------
    SpecError
        If an option is missing or no number, or the degrees do not divide the devices.
    """
    flags = file.flags
    batch, micro = file.count("global-batch-size"), file.count(_FLAGS["microbatch"])
    if batch % micro:
        raise file.fault(f"{batch} samples do not divide by {micro}.", hint="Correct the batch.")
    stages, interleave = file.count(_FLAGS["pipeline"]), 1
    if _FLAGS["interleave"] in flags:
        ends = sum(f"account-for-{name}-in-pipeline-split" in flags for name in ("embedding", "loss"))
        interleave = max(1, (file.count("num-layers") + ends) // (stages * file.count(_FLAGS["interleave"])))
    elif parts := _parts_of(file):
        interleave = max(1, len(parts) // stages)
    zero = int("use-distributed-optimizer" in flags or file.value("optimizer") == "dist_muon")
    if "use-megatron-fsdp" in flags:
        zero = next((stage for stage, word in SHARDING.items() if word == file.value(_FLAGS["zero"])), 1)
    has_block = file.value("recompute-method") == "block"
    method = file.value(_FLAGS["context_method"], CONTEXT_METHODS["ring"])
    instances = file.count(_FLAGS["shard"], 1)
    found = read_layout(
        file,
        TARGET,
        context_method=next((name for name, word in CONTEXT_METHODS.items() if word == method), method),
        num_devices=devices,
        global_batch_size=batch,
        required=("tensor",),
        interleave=interleave,
        zero=zero,
        recompute_layers=file.count(_FLAGS["recompute_layers"]) if has_block else 0,
        recompute_modules=_modules(file, "recompute_modules"),
        offload_modules=_modules(file, "offload_modules"),
        shard=0,
        offload_percent=_offload_percent(file),
    )
    found = with_layers(file, found, _layers_of(file, stages, interleave), f"--{_LAYOUT}")
    if found.data % instances:
        raise file.fault(f"{found.data} data ranks do not divide by {instances}.", _FLAGS["shard"], "Correct it.")
    return replace(found, shard=found.data // instances if instances > 1 else 0)


def _layers_of(file: Parsed, stages: int, chunks: int) -> list[int]:
    """Return the layers of every virtual stage; none where they do not come out even, which the program refuses.

    As ``get_num_layers_to_build`` of ``megatron/core/transformer/transformer_block.py`` (core 0.16.1) has them.
    """
    if parts := _parts_of(file):
        return parts
    number = file.count("num-layers")
    ends = [file.count(name, least=0) if name in file.flags else None for name in ENDS]
    more = [f"account-for-{name}-in-pipeline-split" in file.flags for name in ("embedding", "loss")]
    between = max(0, stages - sum(one is not None for one in ends))
    each, left = divmod(number + sum(more) - sum(one or 0 for one in ends), max(between, 1))
    first, last = ([] if one is None else [one] for one in ends)
    devices = [*first, *[each] * between, *last]
    if left or (each and not between) or any(one % chunks for one in devices):
        return []
    found = [one // chunks for one in devices] * chunks
    found[0] -= more[0]
    found[-1] -= more[1]
    return found if len(devices) == stages and min(found) >= 0 else []


def _parts_of(file: Parsed) -> list[int]:
    """Return the layers of every virtual stage that an option lists; none where none does."""
    if _LAYOUT in file.flags:
        return layers_of_layout(file, str(file.value(_LAYOUT)))
    parts = parts_of_stack(file) if is_stack(file.flags) else []
    return [len(one) for one in parts] if len(parts) > 1 else []


def layers_of_layout(file: Parsed, text: str) -> list[int]:
    """Return the layers of every part of a layout, those of multi-token prediction among them.

    Embedding ``E``, layers ``t``, prediction ``m`` and loss ``L``, with ``|`` between stages; ``x*n`` and ``(...)*n``
    repeat (``megatron/core/transformer/pipeline_parallel_layer_layout.py``, ``parse_str_to_list``, core 0.16.1).

    Raises
    ------
    SpecError
        If it is no layout.
    """
    found = text.replace(",", "").strip("'\"")
    for pattern in _REPEATED:
        found = pattern.sub(_repeated, found)
    if set(found) - {*"EtmL|"} or len(found) > _MOST_LETTERS:
        raise file.fault(f"{text[:60]!r} is no layout.", f"{file.mark}{_LAYOUT}", "Write, e.g., Et*8|t*9|t*8|t*7L.")
    return [part.count("t") + part.count("m") for part in found.split("|")]


def _repeated(found: re.Match[str]) -> str:
    """Return a part as often as it is said, or as is too long."""
    return found[1] * min(int(found[2]), _MOST_LETTERS // len(found[1]) + 1)


def _modules(file: Parsed, name: str) -> str:
    """Return the set of modules that a file says of a decision; its default where it says none."""
    row, option = LAYOUT[name], _FLAGS[name]
    modules = file.flags.get(option) or []
    if unknown := [one for one in modules if one not in row.parts]:
        hint = f"Write some of {', '.join(row.parts)}."
        raise file.fault(f"{unknown[0][:60]!r} is none.", f"{file.mark}{option}", hint)
    return " ".join(sorted(modules, key=row.parts.index)) or str(row.default)


def _offload_percent(file: Parsed) -> int:
    """Return how much of an optimiser on the host lies there, in percent."""
    option = _FLAGS["offload_percent"]
    found = file.value(option, 1.0)
    try:
        percent = float(found) * 100
    except (TypeError, ValueError):
        percent = -1.0
    if not 1 <= percent <= 100:  # of percent
        raise file.fault(f"{found!r} is no share of 0.01 to 1.", f"{file.mark}{option}", "Write, e.g., 0.5.")
    return round(percent)


EXPORTERS = {TARGET: options_exporter(export, recognises, _options_of, "megatron-core")}
