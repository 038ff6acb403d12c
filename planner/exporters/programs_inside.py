"""What trains on machines that another program starts: the files of another target, one script for each machine.

The scripts are run on every machine with ``NODE_RANK`` and ``MASTER_ADDR`` in their environment, as those of ddp,
deepspeed, accelerate, megatron and torchtitan expect it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.errors import Fault, InfeasibleError, PlannerError, SpecError
from planner.exporters.export import Export, Job, Settings, refused
from planner.exporters.machines import num_devices, used_machines
from planner.exporters.registry import TARGETS, target_of
from planner.exporters.registry import export as export_to
from planner.used_machines import UsedMachines

__all__ = ["Inner", "inner_of", "refusal_of"]

# Of a family, the programs that are tried where none is named: the first that can run the plan is taken.
_PROGRAMS: Mapping[str, Sequence[str]] = {
    "all_reduce": ("ddp",),
    "hybrid": ("megatron", "deepspeed", "torchtitan"),
    "pipeline": ("deepspeed",),
}
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
        return num_devices(self.machines)


def inner_of(job: Job, target: str) -> Inner:
    """Return what trains: the program that was asked for, else the first that can of those for the plan's family.

    Raises
    ------
    SpecError
        If that is no program which trains.
    InfeasibleError
        If the program cannot run the plan, or the plan has parameter servers.
    """
    rows = used_machines(job)
    if any(row.role == "server" for row in rows):
        mend = (
            "tfjob has them." if job.plan.family == "parameter_server" else "Plan with families: [all_reduce, hybrid]."
        )
        raise refused(target, "it has parameter servers, which no program that it starts here knows", mend)
    asked = job.settings.program
    inside = replace(job, settings=Settings(script=job.settings.script))  # the other settings are those of the outside
    found = _first(inside) if asked is None else export_to(_program(asked, target), inside)
    return Inner(export=found, machines=rows, scripts=_scripts(found, rows, target))


def refusal_of(job: Job) -> str | None:
    """Return None where some target can launch a plan, else what the first program for its family said.

    Targets that only start machines come last: they run what the programs before them can.
    """
    own = _PROGRAMS.get(job.plan.family, ())
    why: str | None = None
    for target in dict.fromkeys([*own, *TARGETS]):
        try:
            export_to(target, replace(job, is_probe=True))
        except PlannerError as error:
            why = why or f"{f'with {target}, ' * (target in own)}{_reason(str(error), target)}"
        else:
            return None
    return why


def _reason(refusal: str, target: str) -> str:
    """Return why a target refuses a plan, without how to mend it."""
    return refusal.removeprefix(f"{target} cannot run this plan: ").partition(". ")[0].rstrip(".")


def _first(job: Job) -> Export:
    """Return what the first program writes that can run a plan; raise what the very first one said, if none can."""
    refusals = []
    for program in _PROGRAMS[job.plan.family]:
        try:
            return export_to(program, job)
        except InfeasibleError as error:
            refusals.append(error)
    raise refusals[0]


def _program(asked: str, target: str) -> str:
    """Return the proper name of the program that was asked for; raise SpecError if it is none which trains."""
    program = target_of(asked)
    if program in _STARTERS:
        problem = f"{program!r} starts machines, as {target} does, and trains nothing itself."
        mend = "Name ddp, horovod, deepspeed, accelerate, megatron or torchtitan."
        raise SpecError.of([Fault(file="command line", field="--program", value=program, problem=problem, mend=mend)])
    return program


def _scripts(found: Export, rows: Sequence[UsedMachines], target: str) -> tuple[str, ...]:
    """Return the script that the machines of each row run."""
    names = [name for name in found.files if name.endswith(".sh")]
    if len(names) == 1:
        return (names[0],) * len(rows)
    if len(names) == len(rows):
        return tuple(names)
    raise refused(target, f"{found.target} has {len(names)} scripts for {len(rows)} kinds of machines", "Name another.")
