"""What a plan asks of a program that trains one network by degrees: the layout, and what changes where it has no word.

An exporter starts with :func:`layout_of`, changes by :meth:`Layout.instead` what its program cannot do, and writes what
is left. So that nothing is dropped, every change is a note; where the cost model knows what it costs, the note says it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.errors import Fault, InfeasibleError, SpecError
from planner.exporters.export import Job, refused
from planner.exporters.machines import device_of, require_kinds, used_machines
from planner.exporters.torchrun import comment_lines, torchrun_script
from planner.families import FAMILIES
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.hybrid.configuration import RECOMPUTE_NAMES, HybridConfiguration
from planner.families.hybrid.mixed_configuration import MixedConfiguration
from planner.plan import Prediction
from planner.transformer import Transformer
from planner.units import Dimension, format_human
from planner.used_machines import UsedMachines

__all__ = [
    "Layout",
    "how_to_run",
    "launch_script",
    "layout_of",
    "pins_of",
    "read_layout",
    "shared_pins",
    "stage_layers",
]

_HYBRID, _ALL_REDUCE = "hybrid", "all_reduce"
_MOST_ZERO = 3
_SAME = 5e-4  # shares of an iteration below this are not worth a figure
# Of every decision of a layout, the key of ``fix`` that pins it.
_PINS: Mapping[str, str] = {
    "tensor": "tensor_parallel_size",
    "context": "context_parallel_size",
    "pipeline": "pipeline_parallel_size",
    "data": "data_parallel_size",
    "expert": "expert_parallel_size",
    "interleave": "chunks_per_device",
    "microbatch": "microbatch_size",
    "zero": "zero_stage",
    "recompute": "recompute",
    "sequence_parallel": "sequence_parallel",
    "overlap_data": "overlap_data",
    "overlap_tensor": "overlap_tensor",
    "offload_optimizer": "offload_optimizer",
    "num_devices": "num_devices",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A layout that a program is to run.

    Attributes
    ----------
    target
        The exporter's name, for refusals.
    chosen
        The decisions; of a plan of the family ``all_reduce`` those of data parallelism alone.
    rows
        The machines, in the order of ranks.
    notes
        What was changed against the plan, and what is left to the user.
    layers
        Of a plan of the family ``pipeline``: how many layers of the network each stage has; else empty.
    """

    target: str
    job: Job
    chosen: HybridConfiguration
    rows: tuple[UsedMachines, ...]
    notes: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()

    @property
    def network(self) -> Transformer | None:
        """The transformer's sizes; None for a network that is known, or cut into stages, by its layers only."""
        return None if self.layers else self.job.problem.dnn.transformer

    @property
    def dtype(self) -> str:
        """Of the numbers, as a spec has it."""
        return self.job.problem.training.dtype

    @property
    def is_hybrid(self) -> bool:
        """Whether the family ``hybrid`` made the plan, so that its cost model knows every change."""
        return self.job.plan.family == _HYBRID

    def noted(self, *notes: str) -> "Layout":
        """Return the layout with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def refused(self, why: str, mend: str) -> InfeasibleError:
        """Return the error of a layout that the program cannot run."""
        return refused(self.target, why, mend)

    def with_whole_layers(self) -> "Layout":
        """Return the layout with recomputation of whole layers, or none."""
        if self.chosen.recompute != "selective":
            return self
        kind = "none" if self.fits(recompute="none") else "full"
        return self.instead(f"it computes whole layers again, or nothing; {kind} here", recompute=kind)

    def instead(self, why: str, **changes: Any) -> "Layout":
        """Return the layout with other decisions, and a note of why and of what that costs.

        Raises
        ------
        InfeasibleError
            If a device would then hold more than it may.
        """
        changed = replace(self.chosen, **changes)
        if not self.is_hybrid:
            return replace(self, chosen=changed).noted(why)
        found = _predicted(self.job, changed)
        missing_bytes = _missing_bytes(found)
        if missing_bytes > 0:
            short = format_human(missing_bytes, Dimension.DATA)
            raise self.refused(f"{why}, and then a device holds {short} too much", "Choose another target.")
        return replace(self, chosen=changed).noted(f"{why}: {_cost_words(self.job, found)}")

    @property
    def room_bytes(self) -> float:
        """What is left of the memory of the fullest device; infinite where it is not counted."""
        return -_missing_bytes(_predicted(self.job, self.chosen)) if self.is_hybrid else float("inf")

    def fits(self, **changes: Any) -> bool:
        """Whether devices hold the layout with other decisions; True where that is not counted."""
        return not self.is_hybrid or _missing_bytes(_predicted(self.job, replace(self.chosen, **changes))) <= 0


def layout_of(target: str, job: Job, *, kinds: Sequence[str] = ("gpu", "cpu")) -> Layout:
    """Return what a plan asks of a program that starts one process a device and gives all the same work.

    Parameters
    ----------
    kinds
        Of devices that the program runs on.

    Raises
    ------
    InfeasibleError
        For plans of other families and other devices, and where devices have unlike shares of the batch.
    """
    family, chosen = job.plan.family, job.plan.configuration
    rows = used_machines(job) if family in {_HYBRID, _ALL_REDUCE} else ()
    require_kinds(target, job, rows, *kinds)
    if isinstance(chosen, AllReduceConfiguration):
        return _data_parallel(target, job, chosen, rows)
    if not isinstance(chosen, HybridConfiguration):
        mend = "Plan with families: [all_reduce, hybrid]."
        if family == "parameter_server":
            mend = f"`planner export --to tfjob` starts its machines. {mend}"
        raise refused(target, f"it trains by all-reduce and by degrees, and the plan is of the family {family}", mend)
    if isinstance(chosen, MixedConfiguration) and chosen.replicas:
        raise refused(
            target,
            "it gives every replica the same number of micro-batches, and those of the plan do unlike numbers",
            "Pin fix.device, or limit the machines to one kind; or weigh gradients by samples in a script of your own.",
        )
    found = Layout(target=target, job=job, chosen=chosen, rows=rows)
    if isinstance(chosen, MixedConfiguration) and len(chosen.groups) > 1:
        order = ", then ".join(chosen.groups)
        found = found.noted(f"stages stand on unlike machines: give those of {order} their ranks in this order")
    return found


def _data_parallel(target: str, job: Job, chosen: AllReduceConfiguration, rows: tuple[UsedMachines, ...]) -> Layout:
    """Return the layout of a plan that copies the network to every device."""
    batch, number = chosen.global_batch_size, chosen.num_devices
    if batch % number or len({(one.batch_per_device) for one in chosen.groups}) > 1:
        raise refused(
            target,
            f"it gives all devices as many samples, and the plan shares {batch:,} out over {number:,} unevenly",
            f"Write dnn.global_batch: {-(-batch // number) * number}, or fix.batch_shares: equal; or export to ddp.",
        )
    share = batch // number
    steps = next(n for n in range(chosen.gradient_accumulation_steps, share + 1) if share % n == 0)
    found = Layout(
        target=target,
        job=job,
        chosen=HybridConfiguration(
            global_batch_size=batch, data=number, microbatch=share // steps, overlap_data=number > 1
        ),
        rows=rows,
    )
    if found.dtype == "tf32":
        found = found.noted('TF32 is turned on in the program: torch.set_float32_matmul_precision("high")')
    if steps != chosen.gradient_accumulation_steps:
        found = found.noted(
            f"{share} samples of a device do not divide by {chosen.gradient_accumulation_steps} micro-batches; "
            f"{steps} are written"
        )
    if chosen.compression is not None:
        found = found.noted(
            f"the plan leaves out {chosen.compression.removed:.0%} of every gradient; {target} has no option for that: "
            f"a hook of your own must do it, or gradients go whole"
        )
    algorithms = sorted({group.algorithm for group in chosen.fusion_groups})
    if number > 1 and algorithms:
        is_cpu = device_of(job, rows[0]).kind == "cpu"
        who = "gloo chooses by itself" if is_cpu else "NCCL chooses by itself, or by NCCL_ALGO for all"
        found = found.noted(f"the plan's all-reduces go by {', '.join(algorithms)}; {who}")
    return found


def stage_layers(layers: int, chosen: HybridConfiguration) -> tuple[int, ...]:
    """Return the transformer's layers of every chunk, in the order of the network; chunk k runs on rank ``k mod p``.

    Embedding and head count as a layer each where layers do not divide by the chunks.

    >>> stage_layers(30, HybridConfiguration(global_batch_size=8, pipeline=4)), stage_layers(
    ...     8, HybridConfiguration(global_batch_size=8, pipeline=2, interleave=2)
    ... )
    ((7, 8, 8, 7), (2, 2, 2, 2))
    """
    if isinstance(chosen, MixedConfiguration):
        return tuple(stage.layers for stage in chosen.stages)
    chunks = chosen.pipeline * chosen.interleave
    if layers % chunks == 0:
        return (layers // chunks,) * chunks
    each = (layers + 2) // chunks
    return (each - 1, *(each,) * (chunks - 2), each - 1)


def launch_script(layout: Layout, version: str, program: str, environment: Sequence[str] = ()) -> str:
    """Return ``launch.sh``: what it is and what to know, and one process a device on every machine."""
    head = comment_lines([f"{version}: {layout.job.problem.dnn.name}, {layout.chosen.headline}", *layout.notes])
    return torchrun_script(layout.rows, program, head=head, environment=environment)


def how_to_run(layout: Layout) -> tuple[str, ...]:
    """Return the command that starts ``launch.sh``."""
    number = sum(row.num_machines for row in layout.rows)
    if number == 1:
        return ("bash launch.sh",)
    return (f"NODE_RANK=0 MASTER_ADDR=FIRST bash launch.sh   # on every machine, NODE_RANK 0 to {number - 1}",)


def read_layout(path: Path, **decisions: Any) -> HybridConfiguration:
    """Return a layout that was read from a file.

    Raises
    ------
    SpecError
        If a stage of ZeRO or a kind of recomputation is none.
    """
    known: Mapping[str, Sequence[Any]] = {"zero": range(_MOST_ZERO + 1), "recompute": RECOMPUTE_NAMES}
    for name, values in known.items():
        if name in decisions and decisions[name] not in values:
            mend = f"Write one of {', '.join(map(str, values))}."
            problem = f"{str(decisions[name])[:60]!r} is none."
            raise SpecError.of([Fault(file=str(path), field=_PINS[name], problem=problem, mend=mend)])
    return HybridConfiguration(**decisions)


def pins_of(chosen: HybridConfiguration, *names: str) -> dict[str, Any]:
    """Return decisions as a ``fix`` block pins them: those named, or all.

    >>> pins_of(HybridConfiguration(global_batch_size=8, tensor=2), "tensor", "num_devices")
    {'tensor_parallel_size': 2, 'num_devices': 2}
    """
    return {_PINS[name]: getattr(chosen, name) for name in names or _PINS}


def shared_pins(chosen: HybridConfiguration, *names: str) -> dict[str, Any]:
    """Return pins as :func:`pins_of`, less the stage of ZeRO where one data and context rank has nothing to share."""
    found = pins_of(chosen, *names)
    if chosen.data * chosen.context == 1:
        found.pop(_PINS["zero"], None)
    return found


def _predicted(job: Job, chosen: HybridConfiguration) -> Prediction:
    """Return what other decisions cost by the same cost model."""
    return FAMILIES[_HYBRID].predict(job.problem, chosen)


def _missing_bytes(found: Prediction) -> float:
    """Return how much more the fullest device would hold than it may; 0 or less where all fit."""
    rooms = [row["room_bytes"] for row in found.details["stages"] if row["room_bytes"] is not None]
    return -min(rooms, default=float("inf"))


def _cost_words(job: Job, found: Prediction) -> str:
    """Return the seconds of a changed layout beside those of the plan."""
    planned_s, now_s = job.plan.prediction.iteration_time_s, found.iteration_time_s
    share = now_s / planned_s - 1
    if abs(share) < _SAME:
        return "an iteration then takes as long as planned"
    words = f"an iteration then takes {format_human(now_s, Dimension.TIME, 4)}, not the plan's "
    return f"{words}{format_human(planned_s, Dimension.TIME, 4)} ({share:+.1%})"
