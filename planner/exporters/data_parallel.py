"""A plan as data parallelism alone: what every device trains, for the programs that copy the whole network."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.exporters.export import Job, refused
from planner.exporters.machines import num_devices, require_kinds, used_machines
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.hybrid.mixed_configuration import MixedConfiguration
from planner.used_machines import UsedMachines

__all__ = ["DataParallel", "Ranks", "data_parallel_of"]

_OTHERS: Mapping[str, str] = {
    "parameter_server": "it keeps the parameters on servers",
    "model_replicas": "it splits layers over workers and keeps the parameters on servers",
    "pipeline": "it cuts the network into stages",
}
_DEGREES = ("tensor", "context", "pipeline", "expert")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Devices with the same share: machines, the samples of one device, and in how many passes it works them off."""

    machines: UsedMachines
    batch_per_device: int
    gradient_accumulation_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """What data parallelism needs to know.

    Attributes
    ----------
    ranks
        In the order of the ranks. Shares are the largest: together they may make more than the batch, and then as many
        devices have one sample less.
    fused
        The configuration with its fusion groups; None where the plan does not say how gradients are fused.
    is_recomputed
        Whether activations are computed again in the backward pass.
    """

    ranks: tuple[Ranks, ...]
    global_batch_size: int
    fused: AllReduceConfiguration | None = None
    is_recomputed: bool = False

    @property
    def machines(self) -> tuple[UsedMachines, ...]:
        """The machines, in the order of the ranks."""
        return tuple(row.machines for row in self.ranks)

    @property
    def num_devices(self) -> int:
        """All ranks."""
        return num_devices(self.machines)

    @property
    def is_equal(self) -> bool:
        """Whether all devices have the same share in as many passes."""
        shares = {(row.batch_per_device, row.gradient_accumulation_steps) for row in self.ranks}
        return len(shares) == 1 and self.global_batch_size == self.num_devices * self.ranks[0].batch_per_device


def data_parallel_of(job: Job, target: str) -> DataParallel:
    """Return a plan as data parallelism.

    Raises
    ------
    InfeasibleError
        If it is something else, or more than that, or its devices are neither GPUs nor CPUs.
    """
    if job.plan.family not in _OTHERS:
        require_kinds(target, job, used_machines(job), "gpu", "cpu")
    chosen = job.plan.configuration
    if isinstance(chosen, AllReduceConfiguration):
        return _of_all_reduce(job, chosen)
    if isinstance(chosen, HybridConfiguration):
        return _of_hybrid(job, chosen, target)
    raise refused(target, _OTHERS[job.plan.family], "Ask `planner plan` with families: [all_reduce] for one that can.")


def _of_all_reduce(job: Job, chosen: AllReduceConfiguration) -> DataParallel:
    """Return a plan of the family ``all_reduce``."""
    share = -(-chosen.global_batch_size // chosen.num_devices)
    shares = {one.name: (one.batch_per_device, one.gradient_accumulation_steps) for one in chosen.groups}
    alike = (share, chosen.gradient_accumulation_steps)
    ranks = []
    for row in used_machines(job):
        samples, steps = shares.get(row.group, alike)
        ranks.append(Ranks(machines=row, batch_per_device=samples, gradient_accumulation_steps=steps))
    return DataParallel(ranks=tuple(ranks), global_batch_size=chosen.global_batch_size, fused=chosen)


def _of_hybrid(job: Job, chosen: HybridConfiguration, target: str) -> DataParallel:
    """Return a layout that only copies the network."""
    split = [f"{name} {getattr(chosen, name)}" for name in _DEGREES if getattr(chosen, name) > 1]
    split += [f"ZeRO {chosen.zero}"] if chosen.zero else []
    split += ["the optimiser's state in host memory"] if chosen.offload_optimizer else []
    if split:
        mend = "Pin 1 and fix.zero_stage: 0 for one that copies the network."
        raise refused(target, f"every device would hold the whole network, and the plan has {', '.join(split)}", mend)
    steps: Mapping[str, int] = {}
    if isinstance(chosen, MixedConfiguration):
        steps = {one.machines: one.num_microbatches for one in chosen.replicas}
    ranks = []
    for row in used_machines(job):
        number = steps.get(row.group, chosen.num_microbatches)
        samples = number * chosen.microbatch
        ranks.append(Ranks(machines=row, batch_per_device=samples, gradient_accumulation_steps=number))
    return DataParallel(
        ranks=tuple(ranks), global_batch_size=chosen.global_batch_size, is_recomputed=chosen.recompute != "none"
    )
