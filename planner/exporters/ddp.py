"""Export for PyTorch's DistributedDataParallel: a launch script, and a program that forms the planned buckets.

The planned groups are unequal. DDP closes a bucket as soon as it holds as much as its limit, in the order in which
gradients arrived in the first iteration, and with ``bucket_cap_mb_list`` (pytorch/pytorch#169026; read in
``torch/nn/parallel/distributed.py`` of PyTorch 2.13) every bucket has a limit of its own: with the planned sizes as
limits it forms the planned groups, with no communication hook. Older versions have one constant limit; its best value
is searched for, and what it loses is said. An explicit ``bucket_cap_mb`` holds for the first bucket, too
(pytorch/pytorch#121640); ``torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`` counts without one only.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from planner.exporters.buckets import MIB, Fused, TensorExchange, best_buffer, full_buckets, loss_words, round_size
from planner.exporters.data_parallel import DataParallel, data_parallel_of
from planner.exporters.export import Export, Job
from planner.exporters.machines import device_of
from planner.exporters.nccl import nccl_lines, nccl_notes
from planner.exporters.read_back import count_of, json_of, rows_of
from planner.exporters.torchrun import VERSION, comment_lines, script_words, torchrun_script

__all__ = ["DEFAULT_PROGRAM", "constant_cap", "degrees", "export", "recognises"]

DEFAULT_PROGRAM = '"$HERE/planned_ddp.py" --demo 1'
# So that a user's program, wherever it lies, can import what stands beside the script.
_HERE = ('HERE="$(cd "$(dirname "$0")" && pwd)"', 'export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"')
_SCHEMA = "planner.ddp/1"
_HEAD = "# planner.export/1 ddp"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Caps:
    """Limits of buckets in bytes: the planned ones; the best constant one, its groups, and the seconds with it."""

    planned_bytes: tuple[int, ...]
    constant_mib: float
    constant_bytes: tuple[int, ...]
    constant_s: float
    is_exact: bool


def export(job: Job) -> Export:
    """Return the launch script, the program and its numbers.

    Raises
    ------
    InfeasibleError
        If the plan is not data parallelism alone.
    """
    plan = data_parallel_of(job, "ddp")
    exchange = None if plan.fused is None else TensorExchange(job.problem, plan.fused)
    kind = device_of(job, plan.machines[0]).kind
    caps = None if exchange is None or exchange.exchange is None or job.is_probe else _caps(exchange)
    notes = (
        *_bucket_notes(job, plan, caps),
        *nccl_notes(kind, plan.fused),
        *_share_notes(plan),
        *_own_notes(job, plan),
    )
    program = script_words(job.settings.script, DEFAULT_PROGRAM)
    source = resources.files("planner.exporters").joinpath("planned_ddp.py.txt").read_text(encoding="utf-8")
    files = {
        "launch.sh": launch(job, plan, program, notes),
        "planned_ddp.py": source,
        "planned_ddp.json": json.dumps(_numbers(job, plan, exchange, caps), indent=1) + "\n",
    }
    return Export(target="ddp", version=VERSION, files=files, notes=notes, how_to_run=_how(plan))


def launch(job: Job, plan: DataParallel, program: str, notes: tuple[str, ...]) -> str:
    """Return the script that one machine runs."""
    kind = device_of(job, plan.machines[0]).kind
    head = [
        f"{_HEAD}, for {VERSION}: torchrun and DistributedDataParallel",
        *comment_lines([job.plan.configuration.headline, f"global batch {plan.global_batch_size}", *notes]),
    ]
    return torchrun_script(plan.machines, program, head=head, environment=(*_HERE, *nccl_lines(kind, plan.fused)))


def constant_cap(exchange: TensorExchange) -> tuple[float, Fused]:
    """Return the best constant ``bucket_cap_mb`` in MiB, and the buckets that DDP forms with it."""
    _, fused = best_buffer(exchange, lambda size: full_buckets(exchange.size_bytes, [size]))
    return round_size(fused, float(exchange.size_bytes.sum())), fused


def _caps(exchange: TensorExchange) -> _Caps:
    """Return the limits of a plan with something to exchange."""
    planned = exchange.planned_ends
    sizes = exchange.group_bytes(planned)
    mib, fused = constant_cap(exchange)
    return _Caps(
        planned_bytes=sizes,
        constant_mib=mib,
        constant_bytes=exchange.group_bytes(fused.ends),
        constant_s=exchange.iteration_time_s(fused.ends),
        is_exact=full_buckets(exchange.size_bytes, sizes).ends == planned,
    )


def _numbers(job: Job, plan: DataParallel, exchange: TensorExchange | None, caps: _Caps | None) -> dict[str, Any]:
    """Return what the program reads; sizes in numbers, whose bytes the module knows best."""
    size = exchange.gradient_bytes if exchange else 4
    tensors = (tensor for layer in job.problem.dnn.layers for tensor in layer.tensors if tensor.is_trainable)
    return {
        "schema": _SCHEMA,
        "version": VERSION,
        "family": job.plan.family,
        "num_devices": plan.num_devices,
        "num_machines": sum(row.num_machines for row in plan.machines),
        "global_batch_size": plan.global_batch_size,
        "ranks": [
            {
                "group": row.machines.group,
                "num_machines": row.machines.num_machines,
                "devices_per_machine": row.machines.devices_per_machine,
                "batch_per_device": row.batch_per_device,
                "gradient_accumulation_steps": row.gradient_accumulation_steps,
            }
            for row in plan.ranks
        ],
        "dtype": job.problem.training.dtype,
        "optimizer": job.problem.training.optimizer,
        "gradient_bytes": size,
        "bucket_elements": [one // size for one in caps.planned_bytes] if caps else [],
        "constant_elements": caps.constant_mib * MIB / size if caps else None,
        "constant_bucket_elements": [one // size for one in caps.constant_bytes] if caps else [],
        "tensor_elements": [one.num_elements for one in tensors][::-1],
        "predicted_s": job.plan.prediction.iteration_time_s,
        "predicted_constant_s": caps.constant_s if caps else None,
    }


def _bucket_notes(job: Job, plan: DataParallel, caps: _Caps | None) -> tuple[str, ...]:
    """Return how gradients are fused, and what one constant size would lose."""
    if caps is None:
        why = "one device exchanges nothing" if plan.num_devices == 1 else "the plan does not say how to fuse gradients"
        return (f"buckets: DDP's own, for {why}",)
    planned_s = job.plan.prediction.iteration_time_s
    lost = caps.constant_s / planned_s - 1
    number, constant = len(caps.planned_bytes), len(caps.constant_bytes)
    return (
        f"buckets: the {number} planned group{'s' * (number > 1)}, as limits of bucket_cap_mb_list, in the order of "
        f"sending; from the second iteration on, since the first one finds the order of gradients",
        f"where PyTorch has no bucket_cap_mb_list: best constant bucket_cap_mb {caps.constant_mib:g} (MiB), "
        f"{constant} bucket{'s' * (constant > 1)}, predicted {caps.constant_s:.4g} s, "
        f"{loss_words(lost)}",
    )


def _share_notes(plan: DataParallel) -> tuple[str, ...]:
    """Return what unequal shares ask for."""
    if plan.is_equal:
        return ()
    rows = ", ".join(f"{row.batch_per_device} on {row.machines.group}" for row in plan.ranks)
    return (
        f"samples a device: at most {rows}. A DistributedSampler deals out equal shares: take ShareBatches of "
        f"planned_ddp.py, and multiply the mean loss by its weight(), since DDP averages over devices, not samples",
    )


def _own_notes(job: Job, plan: DataParallel) -> tuple[str, ...]:
    """Return what is left to the user's program."""
    notes = []
    if plan.fused is not None and plan.fused.compression is not None:
        removed = float(plan.fused.compression.removed)
        notes.append(
            f"compression: the plan leaves out {removed:.1%} of every gradient; DDP does so by a communication hook of "
            f"your own (register_comm_hook), which is not written here, and without which iterations take longer"
        )
    if plan.is_recomputed:
        notes.append("recomputation: wrap the blocks in torch.utils.checkpoint.checkpoint; DDP does not do so")
    if any(row.gradient_accumulation_steps > 1 for row in plan.ranks):
        notes.append("gradient accumulation: all passes but the last under no_sync(), as planned_ddp.py has it")
    if plan.fused is not None and job.problem.training.dtype in ("bf16", "fp16"):
        notes.append(
            "short gradients: the plan sends two bytes of each; where weights have four, wrap() of planned_ddp.py "
            "registers PyTorch's own hook that shortens them, over NCCL only"
        )
    if job.problem.training.dtype == "fp16":
        notes.append("fp16: scale the loss by a torch.amp.GradScaler; planned_ddp.py does not")
    if job.problem.taken:
        notes.append(f"the network is the changed one: {', '.join(job.problem.taken)}")
    if job.settings.script is None:
        notes.append("planned_ddp.py runs made-up tensors; --script 'planned_ddp.py --factory MODULE:FUNCTION' yours")
    else:
        notes.append("your program forms the planned buckets by: from planned_ddp import wrap; ddp = wrap(module)")
    return tuple(notes)


def _how(plan: DataParallel) -> tuple[str, ...]:
    """Return the command."""
    number = sum(row.num_machines for row in plan.machines)
    if number == 1:
        return ("bash launch.sh",)
    return (f"NODE_RANK=0 MASTER_ADDR=FIRST bash launch.sh   # on every machine, NODE_RANK 0 to {number - 1}",)


# -- reading it back ---------------------------------------------------------------------------------------------------


def recognises(path: Path, text: str) -> bool:
    """Whether a file is ``planned_ddp.json``."""
    del path  # whatever its name
    return text.lstrip().startswith("{") and f'"{_SCHEMA}"' in text[:200]


def degrees(path: Path, text: str) -> Mapping[str, Any]:
    """Return the decisions in ``planned_ddp.json`` as a ``fix`` block has them.

    Shares of unequal devices have no key there, and are planned anew.

    Raises
    ------
    SpecError
        If the file is no such document.
    """
    block = json_of(path, text)
    rows = rows_of(path, block, "ranks")
    found = {key: count_of(path, block, key) for key in ("num_devices", "num_machines")}
    per_machine = {count_of(path, row, "devices_per_machine") for row in rows}
    steps = {count_of(path, row, "gradient_accumulation_steps") for row in rows}
    if block.get("family") == "hybrid":
        shares = {count_of(path, row, "batch_per_device") for row in rows}
        ones = dict.fromkeys((f"{name}_parallel_size" for name in ("tensor", "context", "pipeline", "expert")), 1)
        found = {"num_devices": found["num_devices"], "data_parallel_size": found["num_devices"], **ones}
        return found | ({"microbatch_size": min(shares) // min(steps)} if len(shares) == len(steps) == 1 else {})
    found |= {"devices_per_machine": min(per_machine)} if len(per_machine) == 1 else {}
    return found | ({"gradient_accumulation_steps": min(steps)} if len(steps) == 1 else {})
