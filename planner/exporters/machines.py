"""Which machines a plan takes, for the formats that ask for machines: Slurm, SkyPilot, Kubernetes, torchrun."""

from collections.abc import Iterable, Sequence

from planner.cluster import Device
from planner.exporters.export import Job, refused
from planner.families import FAMILIES
from planner.used_machines import UsedMachines

__all__ = [
    "device_of",
    "is_one_shape",
    "machine_words",
    "num_devices",
    "require_kinds",
    "used_machines",
]


_KINDS = {"gpu": "GPUs", "cpu": "CPUs", "tpu": "TPUs"}


def used_machines(job: Job) -> tuple[UsedMachines, ...]:
    """Return the machines of a plan, in the order of its ranks; servers come after the workers.

    A group whose last machine gives fewer devices than the others stands in two rows.
    """
    found = tuple(FAMILIES[job.plan.family].machines(job.problem, job.plan.configuration))
    assert sum(row.num_devices for row in found) > 0  # somebody trains
    return found


def is_one_shape(rows: Sequence[UsedMachines]) -> bool:
    """Whether all machines that train give the same number of devices of the same type."""
    return len({(row.device, row.devices_per_machine) for row in rows if row.role == "worker"}) == 1


def machine_words(rows: Iterable[UsedMachines]) -> str:
    """Return machines in words, for refusals: ``2 x 8 h100-sxm + 1 x 4 k80``."""
    return " + ".join(f"{row.num_machines} x {row.devices_per_machine} {row.device}" for row in rows)


def device_of(job: Job, row: UsedMachines) -> Device:
    """Return the type of device of a row."""
    return next(group.device for group in job.problem.cluster.machine_groups if group.name == row.group)


def require_kinds(target: str, job: Job, rows: Iterable[UsedMachines], *kinds: str) -> None:
    """Refuse devices on which what is written for a program does not run: TPUs, say, where it is for GPUs.

    Raises
    ------
    InfeasibleError
        If devices that train are of no such kind.
    """
    for row in rows:
        if row.role == "worker" and (kind := device_of(job, row).kind) not in kinds:
            runs = " and ".join(_KINDS[one] for one in kinds)
            why = f"what is written for it here runs on {runs}, and {row.device} is no such device"
            raise refused(target, why, f"Plan without {_KINDS.get(kind, 'such devices')}.")


def num_devices(rows: Iterable[UsedMachines]) -> int:
    """Return the devices that train: the ranks of a launcher that starts one process a device."""
    return sum(row.num_devices for row in rows)
