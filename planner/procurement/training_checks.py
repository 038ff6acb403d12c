"""What a training must say, and must not, where its machines are what is asked."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.errors import Fault
from planner.procurement.spec import ProcurementSpec
from planner.spec.question import DnnSpec
from planner.spec.source import Source

__all__ = ["block_faults", "training_faults"]

_UNDER_PROCURE = {
    "deadline": "Write procure.deadline.",
    "machines": "Write procure.machines.",
    "devices": "Write procure.machines, or procure.most_devices.",
}
_Path = tuple[str | int, ...]


def block_faults(source: Source) -> list[Fault]:
    """Return which blocks of a plan's question have no place here."""
    found = []
    if source.data.get("cluster") is not None:
        problem = "the machines are what is asked here, so a cluster has no place."
        mend = "Leave cluster out; say under procure what may be had, e.g. instances, devices and machines."
        found.append(source.fault(("cluster",), problem, mend))
    if source.data.get("objective") is not None:
        mend = "Write procure.objective: cost, time, energy or value_of_time."
        found.append(source.fault(("objective",), "of a purchase it stands under procure.", mend))
    constraints = source.data.get("constraints")
    for key, mend in _UNDER_PROCURE.items():
        if isinstance(constraints, dict) and constraints.get(key) is not None:
            found.append(source.fault(("constraints", key), "of a purchase it is asked under procure.", mend))
    return found


def training_faults(spec: ProcurementSpec, source: Source) -> list[Fault]:
    """Return what is wrong with the trainings, for any machines."""
    return [
        *(fault for path, dnn in _trainings(spec) for fault in _dnn_faults(path, dnn, source)),
        *_job_faults(spec, source),
    ]


def _trainings(spec: ProcurementSpec) -> Iterator[tuple[_Path, DnnSpec]]:
    """Yield every network with its place."""
    if spec.dnn is not None:
        yield ("dnn",), spec.dnn
    for index, job in enumerate(spec.procure.jobs or ()):
        yield ("procure", "jobs", index, "dnn"), job.dnn


def _dnn_faults(path: _Path, dnn: DnnSpec, source: Source) -> Iterator[Fault]:
    """Yield what keeps a training from being asked of any number of any machines."""
    if dnn.global_batch is None and dnn.max_global_batch is None:
        key = "global_batch" if dnn.batch_per_device is None else "batch_per_device"
        problem = "how many machines work is open, so the batch of all of them must be fixed."
        mend = f"Give {_last(path)}.global_batch, e.g. 1024" + (", instead." if dnn.batch_per_device else ".")
        yield source.fault((*path, key), problem, mend, dnn.batch_per_device or "")
    if dnn.profile_device is None and _is_measured(dnn):
        problem = "the network's seconds were measured, and it is not said on which device."
        mend = f"Give {_last(path)}.profile_device, e.g. v100; else they would be taken for those of every device."
        yield source.fault((*path, "profile_device"), problem, mend)


def _last(path: Sequence[str | int]) -> str:
    return str(path[-1])


def _is_measured(dnn: DnnSpec) -> bool:
    """Whether the network comes with measured seconds."""
    layers = dnn.layers or ()
    return bool(dnn.profile or dnn.trace) or any(layer.forward is not None for layer in layers)


def _job_faults(spec: ProcurementSpec, source: Source) -> Iterator[Fault]:
    """Yield what contradicts between jobs."""
    jobs = spec.procure.jobs or []
    total = sum(job.share for job in jobs if job.share < 1)
    if total > 1 + 1e-9:
        problem = f"the jobs that have a share of the machines to themselves take {total:.0%} of them."
        yield source.fault(("procure", "jobs"), problem, "Lower a share.")
    seen: Mapping[str, Any] = {}
    for index, job in enumerate(jobs):
        if job.name in seen:
            problem = f"two jobs are called {job.name!r}."
            yield source.fault(("procure", "jobs", index, "name"), problem, "Give each a name of its own.", job.name)
        seen = {**seen, job.name: job}
    if jobs and spec.procure.deadline is not None:
        problem = "of several jobs each has a deadline of its own."
        yield source.fault(("procure", "deadline"), problem, "Write it as deadline of the jobs that have one.")
