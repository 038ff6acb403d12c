"""Data parallelism alone, for the programs that copy the whole network: PyTorch's DDP, and Horovod 0.28.1.

**DDP.** The planned groups are unequal. With ``bucket_cap_mb_list`` (pytorch/pytorch#169026) every bucket has a limit
of its own: with the planned sizes as limits DDP forms the planned groups, with no communication hook. Older versions
have one constant limit, ``bucket_cap_mb``; its best value is searched for, and what it loses is said. How DDP closes
buckets: :mod:`planner.families.all_reduce.fusion`.

**Horovod** wakes once a cycle and fuses the gradients that have got ready since, up to a threshold in bytes. The best
threshold and cycle are searched for together; what they lose against the plan's unequal groups is said. A PyTorch
program can have the groups themselves: ``DistributedOptimizer`` takes lists of parameters (``groups``). Source:
``horovod/common/controller.cc`` (``FuseResponses``, ``TensorFusionThresholdBytes``), ``operations.cc`` (default cycle
1 ms, threshold 128 MB), ``runner/launch.py`` and ``runner/common/util/config_parser.py`` of horovod 0.28.1, its last
release (June 2023).
"""

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from planner.exporters.buckets import GradientTensors, algorithms_of, loss_words, nccl_lines, nccl_notes
from planner.exporters.export import Export, Exporter, Job, refused
from planner.exporters.machines import device_of, num_devices, require_kinds, used_machines
from planner.exporters.scripts import VERSION as PYTORCH
from planner.exporters.scripts import Parsed, comment_lines, how_to_run, script_words, shipped_program, torchrun_script
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.all_reduce.fusion import (
    DDP_CAP_BYTES,
    DDP_FIRST_BYTES,
    MIB,
    Buckets,
    best_size,
    ddp_buckets,
    horovod_buckets,
    ticks_of,
)
from planner.families.hybrid.configuration import HybridConfiguration
from planner.frozen import frozen
from planner.used_machines import UsedMachines

HOROVOD = "Horovod 0.28.1"
_OTHERS: Mapping[str, str] = {
    "parameter_server": "it keeps the parameters on servers",
    "model_replicas": "it splits layers over workers and keeps the parameters on servers",
    "pipeline": "it cuts the network into stages",
}
_DEGREES = ("tensor", "context", "pipeline", "expert")


@frozen
class Ranks:
    """Devices with the same share: machines, the samples of one device, and in how many passes it works them off."""

    machines: UsedMachines
    batch_per_device: int
    gradient_accumulation_steps: int


@frozen
class DataParallel:
    """What data parallelism needs to know."""

    job: Job
    # in the order of the ranks. Shares are the largest: together they may make more than the batch, and then as many
    # devices have one sample less
    ranks: tuple[Ranks, ...]
    global_batch_size: int
    # the configuration with its fusion groups; None where the plan does not say how gradients are fused
    fused: AllReduceConfiguration | None = None
    is_recomputed: bool = False  # whether activations are computed again in the backward pass

    @property
    def machines(self) -> tuple[UsedMachines, ...]:
        """The machines, in the order of the ranks."""
        return tuple(row.machines for row in self.ranks)

    @property
    def num_machines(self) -> int:
        """All machines."""
        return sum(row.num_machines for row in self.machines)

    @property
    def num_devices(self) -> int:
        """All ranks."""
        return num_devices(self.machines)

    @property
    def is_equal(self) -> bool:
        """Whether all devices have the same share in as many passes."""
        shares = {(row.batch_per_device, row.gradient_accumulation_steps) for row in self.ranks}
        return len(shares) == 1 and self.global_batch_size == self.num_devices * self.ranks[0].batch_per_device

    @property
    def tensors(self) -> GradientTensors | None:
        """The gradients as tensors; None where the plan does not say how to fuse them."""
        return None if self.fused is None else GradientTensors(self.job.problem, self.fused)

    @property
    def share_words(self) -> str:
        """The samples of a device, by group of machines."""
        return ", ".join(f"{row.batch_per_device} on {row.machines.group}" for row in self.ranks)


def data_parallel_of(job: Job, target: str) -> DataParallel:
    """Return a plan as data parallelism.

    Raises
    ------
    InfeasibleError
        If it is something else, or more than that, or its devices are neither GPUs nor CPUs.
    """
    family, chosen = job.plan.family, job.plan.configuration
    if family in _OTHERS or not isinstance(chosen, AllReduceConfiguration | HybridConfiguration):
        raise refused(
            target,
            _OTHERS.get(family, "it trains in a way of its own"),
            "Ask `planner plan` with families: [all_reduce] for one that can.",
        )
    rows = used_machines(job)
    require_kinds(target, job, rows, "gpu", "cpu")
    shares: dict[str | None, tuple[int, int]] = {}  # samples of a device, and passes, by group of machines
    if isinstance(chosen, AllReduceConfiguration):
        shares[None] = (-(-chosen.global_batch_size // chosen.num_devices), chosen.gradient_accumulation_steps)
        shares |= {group.name: (group.batch_per_device, group.gradient_accumulation_steps) for group in chosen.groups}
    else:
        if split := chosen.more_than_a_copy:
            why = f"every device would hold the whole network, and the plan has {', '.join(split)}"
            hint = "Pin all degrees but data to 1, and fix.zero_stage: 0, for one that copies the network."
            raise refused(target, why, hint)
        steps: dict[str | None, int] = {None: chosen.num_microbatches}
        steps |= {row.machines: row.num_microbatches for row in chosen.replicas}
        shares = {name: (number * chosen.microbatch, number) for name, number in steps.items()}
    ranks = []
    for row in rows:
        samples, number = shares.get(row.group, shares[None])
        ranks.append(Ranks(machines=row, batch_per_device=samples, gradient_accumulation_steps=number))
    return DataParallel(
        job=job,
        ranks=tuple(ranks),
        global_batch_size=chosen.global_batch_size,
        fused=chosen if isinstance(chosen, AllReduceConfiguration) else None,
        is_recomputed=isinstance(chosen, HybridConfiguration) and chosen.is_recomputed,
    )


# -- DDP ---------------------------------------------------------------------------------------------------------------


def _export_ddp(job: Job) -> Export:
    """Return the launch script, a program that forms the planned buckets, and its numbers."""
    plan = data_parallel_of(job, "ddp")
    tensors = plan.tensors
    size = tensors.gradient_bytes if tensors else 4
    kind, planned_s = device_of(job, plan.machines[0]).kind, job.plan.prediction.iteration_time_s
    planned_bytes: tuple[int, ...] = ()
    constant_bytes: tuple[int, ...] = ()
    cap_mib = constant_s = default_s = None
    if tensors is None or tensors.exchange is None or job.is_probe:
        why = "one device exchanges nothing" if plan.num_devices == 1 else "the plan does not say how to fuse gradients"
        notes = [f"buckets: DDP's own, for {why}"]
    else:
        planned_bytes = tensors.group_bytes(tensors.planned_ends)
        best, usual = tensors.best_cap, ddp_buckets(tensors.size_bytes, [DDP_FIRST_BYTES, DDP_CAP_BYTES])
        constant_s, default_s = tensors.iteration_time_s(best.ends), tensors.iteration_time_s(usual.ends)
        cap_mib, constant_bytes = tensors.mib_of(best), tensors.group_bytes(best.ends)
        number, constant, first = len(planned_bytes), len(constant_bytes), DDP_FIRST_BYTES // MIB
        rest = "" if constant_s <= default_s else "; its first bucket makes it better than any constant, so it is kept"
        notes = [
            f"buckets: the {number} planned group{'s' * (number > 1)}, as limits of bucket_cap_mb_list, in the order "
            f"of sending; from the second iteration on, since the first one finds the order of gradients",
            f"where PyTorch has no bucket_cap_mb_list: best constant bucket_cap_mb {cap_mib:g} (MiB; of the first "
            f"bucket, too), {constant} bucket{'s' * (constant > 1)}, predicted {constant_s:.4g} s, "
            f"{loss_words(constant_s / planned_s - 1)}",
            f"DDP's default there ({first} MiB, then {DDP_CAP_BYTES // MIB} MiB): {len(usual.ends)} "
            f"bucket{'s' * (len(usual.ends) > 1)}, predicted {default_s:.4g} s, "
            f"{loss_words(default_s / planned_s - 1)}{rest}",
        ]
    notes += [*nccl_notes(kind, plan.fused), *_ddp_notes(plan)]
    # So that a user's program, wherever it lies, can import what stands beside the script.
    here = ('HERE="$(cd "$(dirname "$0")" && pwd)"', 'export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"')
    # Ours stands beside the script, which is started from the folder of the user's module.
    program = script_words(job.settings.script, "planned_ddp.py --demo 1")
    program = re.sub(r"^planned_ddp\.py(?= |$)", '"$HERE/planned_ddp.py"', program)
    script = torchrun_script(
        plan.machines,
        program,
        head=[
            f"# planner.export/1 ddp, for {PYTORCH}: torchrun and DistributedDataParallel",
            *comment_lines([job.plan.configuration.headline, f"global batch {plan.global_batch_size}", *notes]),
        ],
        environment=(*here, *nccl_lines(kind, plan.fused)),
    )
    trained = [tensor for layer in job.problem.dnn.layers for tensor in layer.tensors if tensor.is_trainable]
    numbers = {
        "schema": "planner.ddp/1",
        "version": PYTORCH,
        "family": job.plan.family,
        "num_devices": plan.num_devices,
        "num_machines": plan.num_machines,
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
        # Sizes in numbers, whose bytes the module knows best.
        "gradient_bytes": size,
        "bucket_elements": [held // size for held in planned_bytes],
        "bucket_cap_mb": cap_mib,
        "constant_elements": None if cap_mib is None else cap_mib * MIB / size,
        "constant_bucket_elements": [held // size for held in constant_bytes],
        "tensor_elements": [tensor.num_elements for tensor in trained][::-1],
        "predicted_s": planned_s,
        "predicted_constant_s": constant_s,
        "predicted_default_s": default_s,
        "is_default_better": constant_s is not None and default_s is not None and default_s < constant_s,
    }
    files = {
        "launch.sh": script,
        "planned_ddp.py": shipped_program("planned_ddp"),
        "planned_ddp.json": json.dumps(numbers, indent=1) + "\n",
    }
    return Export(target="ddp", version=PYTORCH, files=files, notes=tuple(notes), how_to_run=how_to_run(plan.machines))


def _ddp_notes(plan: DataParallel) -> list[str]:
    """Return what is left to the user's program."""
    notes, training = [], plan.job.problem.training
    if not plan.is_equal:
        notes.append(
            f"samples a device: at most {plan.share_words}. A DistributedSampler deals out equal shares: take "
            f"ShareBatches of planned_ddp.py, and multiply the mean loss by its weight(), since DDP averages over "
            f"devices, not samples"
        )
    if plan.fused is not None and plan.fused.compression is not None:
        notes.append(
            f"compression: the plan leaves out {float(plan.fused.compression.removed):.1%} of every gradient; DDP does "
            f"so by a communication hook of your own (register_comm_hook), which is not written here, and without "
            f"which iterations take longer"
        )
    if plan.is_recomputed:
        notes.append("recomputation: wrap the blocks in torch.utils.checkpoint.checkpoint; DDP does not do so")
    if any(row.gradient_accumulation_steps > 1 for row in plan.ranks):
        notes.append("gradient accumulation: all passes but the last under no_sync(), as planned_ddp.py has it")
    if plan.fused is not None and training.dtype in ("bf16", "fp16"):
        notes.append(
            "short gradients: the plan sends two bytes of each; where weights have four, wrap() of planned_ddp.py "
            "registers PyTorch's own hook that shortens them, over NCCL only, and takes caps of twice as many bytes"
        )
    if training.dtype == "fp16":
        notes.append("fp16: scale the loss by a torch.amp.GradScaler; planned_ddp.py does not")
    if plan.job.problem.taken:
        notes.append(f"the network is the changed one: {', '.join(plan.job.problem.taken)}")
    script = plan.job.settings.script
    if script is None:
        notes.append("planned_ddp.py runs made-up tensors; --script 'planned_ddp.py --factory MODULE:FUNCTION' yours")
    elif "planned_ddp.py" not in script:
        notes.append("your program forms the planned buckets by: from planned_ddp import wrap; ddp = wrap(module)")
    return notes


def _recognises(target: str, path: Path, text: str) -> bool:
    """Whether a file is the target's table, ``planned_ddp.json`` say, whatever its name."""
    return text.lstrip().startswith("{") and f'"planner.{target}/1"' in text[:200]


def _ddp_degrees(path: Path, text: str) -> Mapping[str, object]:
    """Return the decisions in ``planned_ddp.json``; shares of unequal devices have no key of ``fix``."""
    file = Parsed.of_json(path, text)
    rows = file.rows("ranks")
    found = {key: file.count(key) for key in ("num_devices", "num_machines")}
    per_machine = {row.count("devices_per_machine") for row in rows}
    steps = {row.count("gradient_accumulation_steps") for row in rows}
    if file.value("family") == "hybrid":
        shares = {row.count("batch_per_device") for row in rows}
        ones = {f"{name}_parallel_size": 1 for name in _DEGREES}
        found = {"num_devices": found["num_devices"], "data_parallel_size": found["num_devices"], **ones}
        return found | ({"microbatch_size": min(shares) // min(steps)} if len(shares) == len(steps) == 1 else {})
    found |= {"devices_per_machine": min(per_machine)} if len(per_machine) == 1 else {}
    return found | ({"gradient_accumulation_steps": min(steps)} if len(steps) == 1 else {})


# -- Horovod -----------------------------------------------------------------------------------------------------------

_CYCLES_MS = (1.0, 2.0, 3.5, 5.0, 10.0, 20.0, 50.0)  # which are tried; shorter than the default, ranks only talk
_PHASES = (0.0, 0.25, 0.5, 0.75)  # of the backward pass in the cycle, which nothing ties to it
_STEP = 1.05  # thresholds closer than this are not told apart


@frozen
class _Threshold:
    """The best threshold, with its cycle, and the seconds of an iteration then."""

    mib: float
    cycle_ms: float
    iteration_time_s: float


def _export_horovod(job: Job) -> Export:
    """Return the launch script, and the planned groups for a PyTorch program."""
    plan = data_parallel_of(job, "horovod")
    if len({row.gradient_accumulation_steps for row in plan.ranks}) > 1:
        why = "its devices accumulate gradients over unlike numbers of passes, for which Horovod has one number"
        raise refused("horovod", why, "Pin fix.gradient_accumulation_steps.")
    tensors = None if job.is_probe else plan.tensors
    best = None if tensors is None or tensors.exchange is None else _best_threshold(job, tensors)
    notes = _horovod_notes(plan, best)
    environment = []
    if best is not None:
        environment += [f"export HOROVOD_FUSION_THRESHOLD={round(best.mib * MIB)}"]
        environment += [f"export HOROVOD_CYCLE_TIME={best.cycle_ms:g}"]
        if algorithms_of(plan.fused) == ["two_level"]:
            environment.append("export HOROVOD_HIERARCHICAL_ALLREDUCE=1")
        environment.append('if [ "${PLANNED_GROUPS:-0}" = 1 ]; then export HOROVOD_DISABLE_GROUP_FUSION=1; fi')
    each = [row.devices_per_machine for row in plan.machines for _ in range(row.num_machines)]
    hosts, place, before = [], "", ""
    if len(each) > 1:  # the script runs on one machine and reaches the others by ssh
        shown = ",".join(f"HOST{index}:{number}" for index, number in enumerate(each[:4])) + ",..." * (len(each) > 4)
        hosts, place = [f': "${{HOSTS:?machines and devices, e.g. {shown}}}"'], '-H "$HOSTS" '
        before = f"HOSTS=first:{each[0]},... "
    lines = [
        "#!/usr/bin/env bash",
        f"# planner.export/1 horovod, for {HOROVOD} (June 2023, no release since: prefer ddp for anything new)",
        *comment_lines([job.plan.configuration.headline, f"global batch {plan.global_batch_size}", *notes]),
        "set -euo pipefail",
        *hosts,
        *environment,
        f"exec horovodrun -np {plan.num_devices} {place}--no-autotune python "
        f"{script_words(job.settings.script, 'train.py')}",
    ]
    files = {"launch.sh": "\n".join(lines) + "\n"}
    if tensors is not None and best is not None:
        numbers = {
            "schema": "planner.horovod/1",
            "version": HOROVOD,
            "num_devices": plan.num_devices,
            "num_machines": plan.num_machines,
            "gradient_accumulation_steps": plan.ranks[0].gradient_accumulation_steps,
            "fusion_threshold_bytes": round(best.mib * MIB),
            "cycle_time_ms": best.cycle_ms,
            "predicted_s": best.iteration_time_s,
            "group_elements": [size // tensors.gradient_bytes for size in tensors.group_bytes(tensors.planned_ends)],
        }
        files["planned_horovod.py"] = shipped_program("planned_horovod")
        files["planned_horovod.json"] = json.dumps(numbers, indent=1) + "\n"
    run = (f"{before}bash launch.sh",)
    return Export(target="horovod", version=HOROVOD, files=files, notes=tuple(notes), how_to_run=run)


def _best_threshold(job: Job, tensors: GradientTensors) -> _Threshold:
    """Return the best threshold and cycle, on the mean over the phases of the cycle."""
    assert tensors.exchange is not None  # asked where there is something to send
    ready_s, timeout_s = tensors.exchange.ready_s, job.problem.calibration.timeout_s
    rows = []
    for cycle_ms in (timeout_s * 1e3,) if 0 < timeout_s < float("inf") else _CYCLES_MS:

        def judge(size_bytes: float, cycle_s: float = cycle_ms / 1e3) -> tuple[float, Buckets]:
            """Return the mean end of the last transfer, and what is fused in the first phase."""
            groups, finish_s = [], 0.0
            for phase in _PHASES:
                tick = ticks_of(ready_s, cycle_s, phase)  # each waits for it
                groups.append(horovod_buckets(tensors.size_bytes, tick, size_bytes))
                finish_s += tensors.finish_s(groups[-1].ends, (tick + phase) * cycle_s)
            low, high = max(one.low_bytes for one in groups), min(one.high_bytes for one in groups)
            return finish_s / len(groups), Buckets(ends=groups[0].ends, low_bytes=low, high_bytes=high)

        rows.append((*best_size(tensors.size_bytes, judge, step=_STEP), cycle_ms))
    finish_s, fused, cycle_ms = min(rows, key=lambda row: (row[0], abs(row[2] - 1)))
    # The seconds of an iteration whose last transfer ends then instead of when the plan's does.
    plan = job.plan.prediction
    backward_s, stall_s = float(plan.details["last_backward_s"]), plan.breakdown_s["input_stall"]
    planned_s = tensors.finish_s(tensors.planned_ends)
    busy_s = plan.iteration_time_s - stall_s + max(finish_s, backward_s) - max(planned_s, backward_s)
    return _Threshold(
        mib=tensors.mib_of(fused),
        cycle_ms=cycle_ms,
        iteration_time_s=max(busy_s, plan.iteration_time_s) if stall_s > 0 else busy_s,
    )


def _horovod_notes(plan: DataParallel, best: _Threshold | None) -> list[str]:
    """Return what the threshold loses, how to get the planned groups, and what is left to the user's program."""
    notes, problem = [], plan.job.problem
    if best is None or plan.fused is None:
        notes.append("fusion: Horovod's defaults; the plan does not say how to fuse gradients, or exchanges none")
    else:
        lost = best.iteration_time_s / plan.job.plan.prediction.iteration_time_s - 1
        number, algorithms = len(plan.fused.fusion_groups), algorithms_of(plan.fused)
        notes += [
            f"best constant HOROVOD_FUSION_THRESHOLD {best.mib:g} MiB with a cycle of {best.cycle_ms:g} ms: "
            f"predicted {best.iteration_time_s:.4g} s, {loss_words(lost)}",
            f"the {number} planned group{'s' * (number > 1)} themselves, with PyTorch: from planned_horovod import "
            f"groups; hvd.DistributedOptimizer(optimizer, groups=groups(module)), and PLANNED_GROUPS=1 bash launch.sh",
        ]
        if len(algorithms) > 1:
            notes.append(
                f"algorithms: the plan takes {', '.join(algorithms)} by group; Horovod has one for all "
                f"(HOROVOD_HIERARCHICAL_ALLREDUCE), which is left to it"
            )
        elif algorithms and algorithms[0] != "two_level":
            notes.append(f"algorithm: {algorithms[0]}; Horovod's all-reduce is NCCL's, which chooses by itself")
    steps = plan.ranks[0].gradient_accumulation_steps
    if steps > 1:
        notes.append(f"gradient accumulation: hvd.DistributedOptimizer(..., backward_passes_per_step={steps})")
    if not plan.is_equal:
        notes.append(
            f"samples a device: at most {plan.share_words}. Deal them out so, and multiply the mean loss of a device "
            f"by its samples x {plan.num_devices} / {plan.global_batch_size}, since Horovod averages over devices"
        )
    if plan.fused is not None and plan.fused.compression is not None:
        notes.append(
            f"compression: the plan leaves out {float(plan.fused.compression.removed):.1%} of every gradient; "
            f"Horovod's own Compression can only shorten numbers to fp16"
        )
    if plan.is_recomputed:
        notes.append("recomputation: Horovod has none; your framework's checkpointing does it")
    if problem.training.dtype in ("fp16", "bf16"):
        notes.append(
            "short gradients: hvd.DistributedOptimizer(..., compression=hvd.Compression.fp16), or short weights"
        )
    if problem.taken:
        notes.append(f"the network is the changed one: {', '.join(problem.taken)}")
    if plan.job.settings.script is None:
        notes.append("train.py stands for your program; name it by --script")
    return notes


def _horovod_degrees(path: Path, text: str) -> Mapping[str, object]:
    """Return the decisions in ``planned_horovod.json``."""
    file = Parsed.of_json(path, text)
    found = {key: file.count(key) for key in ("num_devices", "num_machines", "gradient_accumulation_steps")}
    if found["num_machines"] > found["num_devices"]:
        problem = f"{found['num_machines']} machines hold more than {found['num_devices']} devices."
        raise file.fault(problem, "num_machines", "Export the plan anew.")
    return found


EXPORTERS = {
    "ddp": Exporter(_export_ddp, partial(_recognises, "ddp"), _ddp_degrees),
    "horovod": Exporter(_export_horovod, partial(_recognises, "horovod"), _horovod_degrees),
}
