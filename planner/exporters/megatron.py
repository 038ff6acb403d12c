"""The command that trains with Megatron-LM's ``pretrain_gpt.py``: ``launch.sh``.

The options themselves are those that a plan prints (:mod:`planner.families.hybrid.launch`, read in
``megatron/training/arguments.py`` at commit 000c4ac). Here they are started on the plan's machines, plans of pure data
parallelism get them, too, and a script is read back. What ``pretrain_gpt.py`` has no word for is refused or noted.

Of the bucket: ``megatron/core/distributed/param_and_grad_buffer.py`` of megatron-core 0.16.1 closes a bucket as soon as
it holds ``--ddp-bucket-size`` numbers, in the reverse order of the network, as PyTorch's DDP does.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError
from planner.exporters.buckets import TensorExchange, best_buffer, full_buckets
from planner.exporters.export import Export, Job
from planner.exporters.layouts import Layout, how_to_run, launch_script, layout_of, read_layout, shared_pins
from planner.exporters.megatron_arguments import KNOWN
from planner.exporters.shell_flags import flags_of, launched, number_of
from planner.exporters.torchrun import script_words
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.hybrid.configuration import ORDER_NAMES
from planner.families.hybrid.launch import VERSION as FROM
from planner.families.hybrid.launch import launch_lines, options, orders_of
from planner.families.hybrid.launch_network import not_expressed
from planner.transformer import Transformer
from planner.units import Dimension, format_human

__all__ = ["VERSION", "as_run", "command_of", "degrees", "export", "recognises"]

TARGET, VERSION = "megatron", FROM
_PROGRAM, _TENSOR = "pretrain_gpt.py", "--tensor-model-parallel-size"
_SGD = {"sgd": "--optimizer sgd", "momentum": "--optimizer sgd"}
_KEY_VALUE_COPIES = "core_v0.16"
_ZERO = {"optim_grads": 2, "optim_grads_params": 3}


def export(job: Job) -> Export:
    """Return the script that every machine runs.

    Raises
    ------
    InfeasibleError
        For networks that ``pretrain_gpt.py`` cannot train, and for unlike numbers of micro-batches.
    """
    layout = layout_of(TARGET, job, kinds=("gpu",))
    network = _network_of(layout)
    layout = as_run(layout, network)
    layout, more = _buckets(layout)
    more += [_SGD[job.problem.training.optimizer]] if job.problem.training.optimizer in _SGD else []
    environment, groups = command_of(layout, network)
    program = " \\\n    ".join([script_words(job.settings.script, _PROGRAM), *groups, *more])
    return Export(
        target=TARGET,
        version=VERSION,
        files={"launch.sh": launch_script(layout, VERSION, program, environment)},
        notes=layout.notes,
        how_to_run=how_to_run(layout),
    )


def command_of(layout: Layout, network: Transformer) -> tuple[list[str], list[str]]:
    """Return the lines of the environment, and the options in groups."""
    lines = launch_lines(network, layout.chosen, dtype=layout.dtype, devices_per_machine=1)
    start = next(index for index, line in enumerate(lines) if line.startswith("torchrun"))
    return list(lines[:start]), [line.removesuffix(" \\") for line in lines[start + 1 :]]


# -- what it cannot do -------------------------------------------------------------------------------------------------


def _network_of(layout: Layout) -> Transformer:
    """Return the network, which ``pretrain_gpt.py`` must be able to train."""
    network = layout.network
    if network is None:
        mend = "Export to ddp, or to deepspeed."
        raise layout.refused(f"{layout.job.problem.dnn.name} is not known as a transformer", mend)
    if strange := not_expressed(network):
        given = " ".join(options(network, layout.chosen))
        raise layout.refused(
            f"its {_PROGRAM} has no {', no '.join(strange)}", f"Give a script of your own these options: {given}"
        )
    return network


def as_run(layout: Layout, network: Transformer) -> Layout:
    """Return the layout as Megatron-LM runs it, every change with its note."""
    chosen = layout.chosen
    if chosen.schedule != "1f1b":
        name = {"gpipe": "GPipe", "zero_bubble": "zero-bubble"}[chosen.schedule]
        layout = layout.instead(f"it has no {name} schedule, so that it runs 1F1B", schedule="1f1b")
    if chosen.order not in orders_of(chosen) and layout.is_hybrid:
        why = f"it numbers the ranks of this layout {ORDER_NAMES[0]}, from the inside outwards"
        layout = layout.instead(why, order=ORDER_NAMES[0])
    if chosen.offload_optimizer and chosen.zero == 0 and chosen.data * chosen.context > 1:
        layout = layout.instead("its optimiser on the host is the distributed one, which is ZeRO 1", zero=1)
    if chosen.expert > 1 and layout.dtype != "bf16":
        raise layout.refused("it spreads experts in bf16 only", "Write dnn.dtype: bf16.")
    if chosen.tensor > network.num_kv_heads and network.latent is None:
        layout = layout.noted(
            f"a tensor degree of {chosen.tensor} copies the {network.num_kv_heads} heads of keys and values, which "
            f"Megatron-LM does from {_KEY_VALUE_COPIES} on"
        )
    if (program := layout.job.problem.calibration.program) != "megatron-core" and layout.is_hybrid:
        layout = layout.noted(f"seconds and memory were predicted for {program}; calibration.program: megatron-core")
    return layout.noted(
        "data are made up (--mock-data), learning rate and number of steps are examples: write your own"
    )


def _buckets(layout: Layout) -> tuple[Layout, list[str]]:
    """Return the best constant size of a bucket for a plan's fusion groups, and what it loses."""
    planned = layout.job.plan.configuration
    if not isinstance(planned, AllReduceConfiguration) or planned.num_devices == 1 or layout.job.is_probe:
        return layout, []
    exchange = TensorExchange(layout.job.problem, planned)
    _, fused = best_buffer(exchange, lambda limit: full_buckets(exchange.size_bytes, [limit]))
    found_s, planned_s = exchange.iteration_time_s(fused.ends), layout.job.plan.prediction.iteration_time_s
    size_bytes = min(fused.high_bytes, float(exchange.size_bytes.sum()))
    elements = max(1, int(size_bytes // exchange.gradient_bytes))
    number = len(planned.fusion_groups)
    words = (
        f"its buckets have one size; the best is {elements:,} numbers, {len(fused.ends)} buckets for the plan's "
        f"{number} groups: {format_human(found_s, Dimension.TIME, 4)} an iteration, not "
        f"{format_human(planned_s, Dimension.TIME, 4)} ({found_s / planned_s - 1:+.1%})"
    )
    return layout.noted(words), [f"--ddp-bucket-size {elements}"]


# -- back again --------------------------------------------------------------------------------------------------------


def recognises(path: Path, text: str) -> bool:
    """Whether this is a script for Megatron-LM."""
    return path.suffix == ".sh" and f"{_TENSOR} " in text


def degrees(path: Path, text: str) -> Mapping[str, Any]:
    """Return the layout of a script as a ``fix`` block pins it.

    The data-parallel degree is not an option: it is what the launcher's devices leave.

    Raises
    ------
    SpecError
        If an option is unknown, missing or no number, or the degrees do not divide the devices.
    """
    command, devices = launched(path, text, _TENSOR)
    flags = flags_of(command[command.index("--num-layers") if "--num-layers" in command else 0 :])
    if unknown := sorted(flags.keys() - KNOWN):
        problem, mend = "Megatron-LM has no such option, or planner does not write it.", "Correct its name."
        raise SpecError.of([Fault(file=str(path), field=f"--{one}", problem=problem, mend=mend) for one in unknown])

    def number(name: str, default: int | None = None) -> int:
        return number_of(path, flags, name, default)

    tensor, stages = number("tensor-model-parallel-size"), number("pipeline-model-parallel-size")
    context, batch, micro = number("context-parallel-size", 1), number("global-batch-size"), number("micro-batch-size")
    if devices % (tensor * context * stages) or batch % micro:
        problem = f"{devices} devices do not divide by {tensor} x {context} x {stages}, or {batch} samples by {micro}."
        raise SpecError.of([Fault(file=str(path), problem=problem, mend="Correct the degrees.")])
    chosen = read_layout(
        path,
        global_batch_size=batch,
        tensor=tensor,
        context=context,
        pipeline=stages,
        data=devices // (tensor * context * stages),
        expert=number("expert-model-parallel-size", 1),
        interleave=_chunks(path, flags, stages),
        microbatch=micro,
        zero=_zero(flags),
        recompute=flags.get("recompute-granularity", ["none"])[0],
        sequence_parallel="sequence-parallel" in flags,
        overlap_data="overlap-grad-reduce" in flags,
        overlap_tensor="tp-comm-overlap" in flags,
        offload_optimizer="optimizer-cpu-offload" in flags,
    )
    return shared_pins(chosen)


def _chunks(path: Path, flags: Mapping[str, Sequence[str]], stages: int) -> int:
    """Return the chunks of layers on a device."""
    each = number_of(path, flags, "num-layers-per-virtual-pipeline-stage", 1)
    if "num-layers-per-virtual-pipeline-stage" not in flags:
        return 1
    ends = sum(f"account-for-{name}-in-pipeline-split" in flags for name in ("embedding", "loss"))
    return max(1, (number_of(path, flags, "num-layers") + ends) // (stages * each))


def _zero(flags: Mapping[str, Sequence[str]]) -> int:
    """Return the stage of ZeRO."""
    if "use-megatron-fsdp" in flags:
        return _ZERO.get(flags.get("data-parallel-sharding-strategy", [""])[0], 1)
    return int("use-distributed-optimizer" in flags)
