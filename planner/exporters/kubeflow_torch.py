"""What Kubeflow's two jobs for PyTorch share: the program of another target, run on equal machines.

A job of Kubeflow starts machines; what trains on them comes along in a ConfigMap, as another target wrote it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError
from planner.exporters.export import Job, refused
from planner.exporters.inner import Inner, inner_of
from planner.exporters.kubernetes import MOST_CONFIG_BYTES
from planner.exporters.machines import is_one_shape

__all__ = ["equal_machines", "pins"]

_MEND = "Give a file as `planner export` wrote it."


def equal_machines(job: Job, target: str) -> Inner:
    """Return what the machines of a job run, all the same.

    Raises
    ------
    InfeasibleError
        If machines are unlike, or serve parameters, or the program cannot run the plan.
    SpecError
        If the program only starts machines itself.
    """
    found = inner_of(job, target)
    if not is_one_shape(found.machines):
        words = " + ".join(f"{row.num_machines} x {row.devices_per_machine} {row.device}" for row in found.machines)
        raise refused(target, f"all its machines are alike, and this plan takes {words}", "slurm takes unlike ones.")
    if sum(len(text.encode()) for text in found.export.files.values()) > MOST_CONFIG_BYTES:
        raise refused(target, "its files are larger than a ConfigMap holds (1 MiB)", "Use slurm or skypilot.")
    return found


def pins(path: Path, num_machines: Any, devices_per_machine: Any) -> Mapping[str, Any]:
    """Return numbers of a job as a ``fix`` block has them; raise SpecError where they are none."""
    for key, value in (("machines", num_machines), ("devices of a machine", devices_per_machine)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            problem = f"the number of {key} is {value!r}."
            raise SpecError.of([Fault(file=str(path), problem=problem, mend=_MEND)])
    return {"num_devices": num_machines * devices_per_machine}
