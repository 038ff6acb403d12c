"""What Kubeflow's two jobs for PyTorch share: the program of another target, run on equal machines.

A job of Kubeflow starts machines; what trains on them comes along in a ConfigMap, as another target wrote it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError
from planner.exporters.export import Export, Job, job_name, refused
from planner.exporters.kubernetes import device_limits, device_note, job_export, maker_of
from planner.exporters.machines import is_one_shape, machine_words
from planner.exporters.programs_inside import inner_of
from planner.used_machines import UsedMachines

__all__ = ["EqualMachines", "export_equal", "pins"]

_MEND = "Give a file as `planner export` wrote it."


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualMachines:
    """So many equal machines: the job's name, one row that stands for all, the script of each, and what it asks for.

    ``maker``: see :func:`planner.exporters.kubernetes.maker_of`.
    """

    name: str
    num_machines: int
    row: UsedMachines
    script: str
    limits: Mapping[str, str]
    maker: str


def export_equal(
    job: Job,
    target: str,
    version: str,
    *,
    describe: Callable[[EqualMachines], Mapping[str, Any]],
    image: Callable[[EqualMachines], str],
) -> Export:
    """Return a job of equal machines.

    Parameters
    ----------
    describe
        Gives the document of the job.
    image
        Gives what is run in where the user names no image, in words.

    Raises
    ------
    InfeasibleError
        If machines are unlike, or serve parameters, or the program cannot run the plan.
    SpecError
        If the program only starts machines itself.
    """
    inner = inner_of(job, target)
    if not is_one_shape(inner.machines):
        words = machine_words(inner.machines)
        raise refused(target, f"all its machines are alike, and this plan takes {words}", "slurm takes unlike ones.")
    row = inner.machines[0]
    found = EqualMachines(
        name=job_name(job),
        num_machines=inner.num_machines,
        row=row,
        script=inner.scripts[0],
        limits=device_limits(job, row),
        maker=maker_of(job, row),
    )
    notes = [*inner.export.notes, device_note([row])]
    notes += [] if job.settings.image else [f"image: {image(found)}"]
    return job_export(job, target, version, files=inner.export.files, document=describe(found), notes=notes)


def pins(path: Path, num_machines: Any, devices_per_machine: Any) -> Mapping[str, Any]:
    """Return numbers of a job as a ``fix`` block has them; raise SpecError where they are none."""
    for key, value in (("machines", num_machines), ("devices of a machine", devices_per_machine)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            problem = f"the number of {key} is {value!r}."
            raise SpecError.of([Fault(file=str(path), problem=problem, mend=_MEND)])
    return {"num_devices": num_machines * devices_per_machine}
