"""What trains on machines that another program starts: the files of another target, one script for each machine.

The scripts are run on every machine with ``NODE_RANK`` and ``MASTER_ADDR`` in their environment, as those of ddp,
deepspeed, accelerate, megatron and torchtitan expect it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.errors import Fault, SpecError
from planner.exporters.export import Export, Job, refused
from planner.exporters.machines import UsedMachines, used_machines
from planner.exporters.registry import export as export_to
from planner.exporters.registry import target_of

__all__ = ["Inner", "inner_of"]

_PROGRAMS: Mapping[str, str] = {"all_reduce": "ddp", "hybrid": "megatron"}
_STARTERS = ("slurm", "skypilot", "tfjob", "pytorchjob", "trainjob")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """The files of the program, its machines, and the script of each row of them."""

    export: Export
    machines: tuple[UsedMachines, ...]
    scripts: tuple[str, ...]

    @property
    def num_machines(self) -> int:
        """All machines."""
        return sum(row.num_machines for row in self.machines)

    @property
    def num_devices(self) -> int:
        """All devices that train."""
        return sum(row.num_devices for row in self.machines)


def inner_of(job: Job, target: str) -> Inner:
    """Return what trains: the program that was asked for, else DDP or Megatron-LM by the family of the plan.

    Raises
    ------
    SpecError
        If that is no program which trains.
    InfeasibleError
        If the program cannot run the plan, or the plan has parameter servers.
    """
    rows = used_machines(job)
    if any(row.role == "server" for row in rows):
        raise refused(target, "it has parameter servers, which no program that it starts here knows", "tfjob has them.")
    asked = job.settings.program
    if asked is None and job.plan.family not in _PROGRAMS:
        mend = "Name one by --program."
        raise refused(target, f"no program is known here that trains a plan of the family {job.plan.family}", mend)
    program = _PROGRAMS[job.plan.family] if asked is None else target_of(asked)
    if program in _STARTERS:
        problem = f"{program!r} starts machines, as {target} does, and trains nothing itself."
        mend = "Name ddp, horovod, deepspeed, accelerate, megatron or torchtitan."
        raise SpecError.of([Fault(file="command line", field="--program", value=program, problem=problem, mend=mend)])
    found = export_to(program, job)
    return Inner(export=found, machines=rows, scripts=_scripts(found, rows, target))


def _scripts(found: Export, rows: Sequence[UsedMachines], target: str) -> tuple[str, ...]:
    """Return the script that the machines of each row run."""
    names = [name for name in found.files if name.endswith(".sh")]
    if len(names) == 1:
        return (names[0],) * len(rows)
    if len(names) == len(rows):
        return tuple(names)
    raise refused(target, f"{found.target} has {len(names)} scripts for {len(rows)} kinds of machines", "Name another.")
