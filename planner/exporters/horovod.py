"""Export for Horovod 0.28.1, its last release (June 2023): environment, ``horovodrun``, and the planned groups.

Horovod wakes once a cycle and fuses the gradients that have got ready since, up to a threshold in bytes. The best
threshold and cycle are searched for together; what they lose against the plan's unequal groups is said. A PyTorch
program can have the groups themselves: ``DistributedOptimizer`` takes lists of parameters (``groups``).

Source: ``horovod/common/controller.cc`` (``FuseResponses``, ``TensorFusionThresholdBytes``), ``operations.cc`` (default
cycle 1 ms, threshold 128 MB), ``runner/launch.py`` and ``runner/common/util/config_parser.py`` of horovod 0.28.1.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from planner.channel import Ends
from planner.cost import Floats
from planner.errors import Fault, SpecError
from planner.exporters.buckets import MIB, Fused, TensorExchange, best_size, loss_words, round_size
from planner.exporters.data_parallel import DataParallel, data_parallel_of
from planner.exporters.export import Export, Job, refused
from planner.exporters.read_back import count_of, json_of
from planner.exporters.torchrun import comment_lines, script_words

__all__ = ["VERSION", "cycle_groups", "degrees", "export", "recognises"]

VERSION = "Horovod 0.28.1"
_SCHEMA = "planner.horovod/1"
_CYCLES_MS = (1.0, 2.0, 3.5, 5.0, 10.0, 20.0, 50.0)  # which are tried; shorter than the default, ranks only talk
_PHASES = (0.0, 0.25, 0.5, 0.75)  # of the backward pass in the cycle, which nothing ties to it
_STEP = 1.05  # thresholds closer than this are not told apart


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The best threshold, with its cycle, and the seconds of an iteration then."""

    threshold_mib: float
    cycle_ms: float
    iteration_s: float


def export(job: Job) -> Export:
    """Return the launch script, and the planned groups for a PyTorch program.

    Raises
    ------
    InfeasibleError
        If the plan is not data parallelism alone.
    """
    plan = data_parallel_of(job, "horovod")
    if len({row.gradient_accumulation_steps for row in plan.ranks}) > 1:
        why = "its devices accumulate gradients over unlike numbers of passes, for which Horovod has one number"
        raise refused("horovod", why, "Pin fix.gradient_accumulation_steps.")
    exchange = None if plan.fused is None else TensorExchange(job.problem, plan.fused)
    found = None if exchange is None or exchange.exchange is None or job.is_probe else _best(job, exchange)
    notes = (*_fusion_notes(job, plan, found), *_own_notes(job, plan))
    files = {"launch.sh": _launch(job, plan, found, notes)}
    if exchange is not None and found is not None:
        files["planned_horovod.py"] = _program()
        files["planned_horovod.json"] = json.dumps(_numbers(plan, exchange, found), indent=1) + "\n"
    return Export(target="horovod", version=VERSION, files=files, notes=notes, how_to_run=_how(plan))


# -- fusion ------------------------------------------------------------------------------------------------------------


def cycle_groups(size_bytes: Floats, tick: Floats, threshold_bytes: float) -> Fused:
    """Return the groups of tensors that are fused: ready by the same tick, and together no more than a threshold.

    Parameters
    ----------
    tick
        Of every tensor, the tick after it got ready; nondecreasing.

    Notes
    -----
    A tensor above the threshold goes alone. Leaves out the search further ahead for a smaller tensor that still fits.

    >>> cycle_groups(np.array([4.0, 4, 4, 9, 1]), np.array([1, 1, 1, 2, 2]), 8).ends
    (1, 2, 3, 4)
    """
    ends: list[int] = []
    low, high, held, count = 0.0, float("inf"), 0.0, 0
    sizes, ticks = size_bytes.tolist(), tick.tolist()
    for index, size in enumerate(sizes):
        is_late = index > 0 and ticks[index] != ticks[index - 1]
        if count and (is_late or held + size > threshold_bytes):
            ends.append(index - 1)
            high = high if is_late else min(high, held + size - 1)
            held, count = 0.0, 0
        held, count = held + size, count + 1
        low = max(low, held - 1) if count > 1 else low
    return Fused(ends=(*ends, len(sizes) - 1), low_bytes=low, high_bytes=high)


def _best(job: Job, exchange: TensorExchange) -> _Found:
    """Return the best threshold and cycle, on the mean over the phases of the cycle."""
    total = float(exchange.size_bytes.sum())
    rows = []
    for cycle_ms in _cycles_ms(job):

        def judge(size_bytes: float, cycle_s: float = cycle_ms / 1e3) -> tuple[float, Fused]:
            """Return the mean end of the last transfer, and what is fused in the first phase."""
            runs = [_run(exchange, size_bytes, cycle_s, phase) for phase in _PHASES]
            low, high = max(one.low_bytes for one, _ in runs), min(one.high_bytes for one, _ in runs)
            mean_s = sum(seconds for _, seconds in runs) / len(runs)
            return mean_s, Fused(ends=runs[0][0].ends, low_bytes=low, high_bytes=high)

        rows.append((*best_size(exchange, judge, step=_STEP), cycle_ms))
    finish_s, fused, cycle_ms = min(rows, key=lambda row: (row[0], abs(row[2] - 1)))
    return _Found(
        threshold_mib=round_size(fused, total),
        cycle_ms=cycle_ms,
        iteration_s=_iteration_s(job, exchange, finish_s),
    )


def _cycles_ms(job: Job) -> Sequence[float]:
    """Return the cycles to try: the one that was calibrated, else a range."""
    timeout_s = job.problem.calibration.timeout_s
    return (timeout_s * 1e3,) if 0 < timeout_s < float("inf") else _CYCLES_MS


def _run(exchange: TensorExchange, size_bytes: float, cycle_s: float, phase: float) -> tuple[Fused, float]:
    """Return what is fused, and when the last group has been sent; each waits for the tick after it is ready."""
    assert exchange.exchange is not None  # asked where there is something to send
    tick = np.ceil(exchange.exchange.ready_s / cycle_s - phase)
    fused = cycle_groups(exchange.size_bytes, tick, size_bytes)
    return fused, exchange.finish_s(fused.ends, (tick + phase) * cycle_s)


def _iteration_s(job: Job, exchange: TensorExchange, finish_s: float) -> float:
    """Return the seconds of an iteration whose last transfer ends at ``finish_s`` instead of when the plan's does."""
    found = job.plan.prediction
    backward_s = float(found.details["last_backward_s"])
    planned_s = exchange.finish_s(exchange.planned_ends)
    stall_s = found.breakdown_s["input_stall"]
    busy_s = found.iteration_time_s - stall_s + max(finish_s, backward_s) - max(planned_s, backward_s)
    return max(busy_s, found.iteration_time_s) if stall_s > 0 else busy_s


def _ends_bytes(exchange: TensorExchange, ends: Ends) -> list[int]:
    """Return the numbers in each group."""
    return [size // exchange.gradient_bytes for size in exchange.group_bytes(ends)]


# -- the files ---------------------------------------------------------------------------------------------------------


def _launch(job: Job, plan: DataParallel, found: _Found | None, notes: Sequence[str]) -> str:
    """Return the script that runs on one machine and reaches the others by ssh."""
    hosts = ",".join(
        f"HOST{index}:{row.devices_per_machine}"
        for index, row in enumerate(row for row in plan.machines for _ in range(row.num_machines))
    )
    several = sum(row.num_machines for row in plan.machines) > 1
    place = '-H "$HOSTS" ' if several else ""
    program = script_words(job.settings.script, "train.py")
    lines = [
        "#!/usr/bin/env bash",
        f"# planner.export/1 horovod, for {VERSION} (June 2023, no release since: prefer ddp for anything new)",
        *comment_lines([job.plan.configuration.headline, f"global batch {plan.global_batch_size}", *notes]),
        "set -euo pipefail",
        *([f': "${{HOSTS:?machines and devices, e.g. {_short(hosts)}}}"'] if several else []),
        *_environment(plan, found),
        f"exec horovodrun -np {plan.num_devices} {place}--no-autotune python {program}",
    ]
    return "\n".join(lines) + "\n"


def _short(hosts: str) -> str:
    """Return the first few of a list of hosts."""
    parts = hosts.split(",")
    return ",".join(parts[:4]) + (",..." if len(parts) > 4 else "")


def _environment(plan: DataParallel, found: _Found | None) -> list[str]:
    """Return the variables that Horovod reads."""
    if found is None:
        return []
    lines = [
        f"export HOROVOD_FUSION_THRESHOLD={round(found.threshold_mib * MIB)}",
        f"export HOROVOD_CYCLE_TIME={found.cycle_ms:g}",
    ]
    if _algorithms(plan) == ["two_level"]:
        lines.append("export HOROVOD_HIERARCHICAL_ALLREDUCE=1")
    return [*lines, 'if [ "${PLANNED_GROUPS:-0}" = 1 ]; then export HOROVOD_DISABLE_GROUP_FUSION=1; fi']


def _algorithms(plan: DataParallel) -> list[str]:
    """Return the algorithms of the plan's groups, each once."""
    return [] if plan.fused is None else list(dict.fromkeys(group.algorithm for group in plan.fused.fusion_groups))


def _fusion_notes(job: Job, plan: DataParallel, found: _Found | None) -> tuple[str, ...]:
    """Return what the threshold loses, and how to get the planned groups."""
    if found is None or plan.fused is None:
        return ("fusion: Horovod's defaults; the plan does not say how to fuse gradients, or exchanges none",)
    lost = found.iteration_s / job.plan.prediction.iteration_time_s - 1
    number = len(plan.fused.fusion_groups)
    notes = [
        f"best constant HOROVOD_FUSION_THRESHOLD {found.threshold_mib:g} MiB with a cycle of {found.cycle_ms:g} ms: "
        f"predicted {found.iteration_s:.4g} s, {loss_words(lost)}",
        f"the {number} planned group{'s' * (number > 1)} themselves, with PyTorch: from planned_horovod import groups; "
        f"hvd.DistributedOptimizer(optimizer, groups=groups(module)), and PLANNED_GROUPS=1 bash launch.sh",
    ]
    algorithms = _algorithms(plan)
    if len(algorithms) > 1:
        notes.append(
            f"algorithms: the plan takes {', '.join(algorithms)} by group; Horovod has one for all "
            f"(HOROVOD_HIERARCHICAL_ALLREDUCE), which is left to it"
        )
    elif algorithms and algorithms[0] in ("ring", "tree"):
        notes.append(f"algorithm: {algorithms[0]}; Horovod's all-reduce is NCCL's, which chooses by itself")
    return tuple(notes)


def _own_notes(job: Job, plan: DataParallel) -> list[str]:
    """Return what is left to the user's program."""
    notes = []
    steps = plan.ranks[0].gradient_accumulation_steps
    if steps > 1:
        notes.append(f"gradient accumulation: hvd.DistributedOptimizer(..., backward_passes_per_step={steps})")
    if not plan.is_equal:
        rows = ", ".join(f"{row.batch_per_device} on {row.machines.group}" for row in plan.ranks)
        notes.append(
            f"samples a device: at most {rows}. Deal them out so, and multiply the mean loss of a device by its "
            f"samples x {plan.num_devices} / {plan.global_batch_size}, since Horovod averages over devices"
        )
    if plan.fused is not None and plan.fused.compression is not None:
        removed = float(plan.fused.compression.removed)
        notes.append(
            f"compression: the plan leaves out {removed:.1%} of every gradient; Horovod's own Compression can only "
            f"shorten numbers to fp16"
        )
    if plan.is_recomputed:
        notes.append("recomputation: Horovod has none; your framework's checkpointing does it")
    if job.problem.training.dtype in ("fp16", "bf16"):
        notes.append(
            "short gradients: hvd.DistributedOptimizer(..., compression=hvd.Compression.fp16), or short weights"
        )
    if job.problem.taken:
        notes.append(f"the network is the changed one: {', '.join(job.problem.taken)}")
    if job.settings.script is None:
        notes.append("train.py stands for your program; name it by --script")
    return notes


def _program() -> str:
    """Return the file that makes groups of parameters."""
    return resources.files("planner.exporters").joinpath("planned_horovod.py.txt").read_text(encoding="utf-8")


def _numbers(plan: DataParallel, exchange: TensorExchange, found: _Found) -> dict[str, Any]:
    """Return the groups, and what is read back."""
    rows = plan.machines
    return {
        "schema": _SCHEMA,
        "version": VERSION,
        "num_devices": plan.num_devices,
        "num_machines": sum(row.num_machines for row in rows),
        "gradient_accumulation_steps": plan.ranks[0].gradient_accumulation_steps,
        "fusion_threshold_bytes": round(found.threshold_mib * MIB),
        "cycle_time_ms": found.cycle_ms,
        "predicted_s": found.iteration_s,
        "group_elements": _ends_bytes(exchange, exchange.planned_ends),
    }


def _how(plan: DataParallel) -> tuple[str, ...]:
    """Return the command."""
    several = sum(row.num_machines for row in plan.machines) > 1
    hosts = f"HOSTS=first:{plan.machines[0].devices_per_machine},... " if several else ""
    return (f"{hosts}bash launch.sh",)


# -- reading it back ---------------------------------------------------------------------------------------------------


def recognises(path: Path, text: str) -> bool:
    """Whether a file is ``planned_horovod.json``."""
    del path  # whatever its name
    return text.lstrip().startswith("{") and f'"{_SCHEMA}"' in text[:200]


def degrees(path: Path, text: str) -> Mapping[str, Any]:
    """Return the decisions in ``planned_horovod.json`` as a ``fix`` block has them.

    Raises
    ------
    SpecError
        If the file is no such document.
    """
    block = json_of(path, text)
    keys = ("num_devices", "num_machines", "gradient_accumulation_steps")
    found = {key: count_of(path, block, key) for key in keys}
    if found["num_machines"] > found["num_devices"]:
        problem = f"{found['num_machines']} machines hold more than {found['num_devices']} devices."
        raise SpecError.of([Fault(file=str(path), field="num_machines", problem=problem, mend="Export the plan anew.")])
    return found
