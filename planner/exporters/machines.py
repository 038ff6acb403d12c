"""Which machines a plan takes, and what trains on them where another program starts them.

Slurm, SkyPilot and Kubernetes start machines; the files of another target train on them. Its scripts are run on every
machine with ``NODE_RANK`` and ``MASTER_ADDR`` in their environment, as those of ddp, deepspeed, accelerate, megatron
and torchtitan expect it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from planner.cluster import Device, MachineGroup
from planner.errors import InfeasibleError, SpecError
from planner.exporters.export import (
    PROGRAMS,
    TARGETS,
    Export,
    Job,
    OtherDeviceError,
    Settings,
    export,
    refused,
    target_of,
)
from planner.families import FAMILIES
from planner.frozen import frozen
from planner.used_machines import UsedMachines, by_host

_KINDS = {"gpu": "GPUs", "cpu": "CPUs", "tpu": "TPUs"}


def used_machines(job: Job) -> tuple[UsedMachines, ...]:
    """Return the hosts of a plan, in the order of its ranks; servers come after the workers.

    A machine of several hosts (a rack that NVLink joins) stands there host by host. A group whose last machine gives
    fewer devices than the others stands in two rows.
    """
    whole = FAMILIES[job.plan.family].machines(job.problem, job.plan.configuration)
    rows = tuple(by_host(whole, job.problem.cluster.machine_groups))
    assert sum(row.num_devices for row in rows) > 0  # somebody trains
    return rows


def is_one_shape(rows: Sequence[UsedMachines]) -> bool:
    """Whether all machines that train give the same number of devices of the same type."""
    return len({(row.device, row.devices_per_machine) for row in rows if row.role == "worker"}) == 1


def machine_words(rows: Iterable[UsedMachines]) -> str:
    """Return machines in words, for refusals: ``2 x 8 h100-sxm + 1 x 4 k80``."""
    return " + ".join(f"{row.num_machines} x {row.devices_per_machine} {row.device}" for row in rows)


def group_of(job: Job, row: UsedMachines) -> MachineGroup:
    """Return the group of machines of a row."""
    return next(group for group in job.problem.cluster.machine_groups if group.name == row.group)


def device_of(job: Job, row: UsedMachines) -> Device:
    """Return the type of device of a row."""
    return group_of(job, row).device


def num_devices(rows: Iterable[UsedMachines]) -> int:
    """Return the devices that train: the ranks of a launcher that starts one process a device."""
    return sum(row.num_devices for row in rows)


def require_kinds(target: str, job: Job, rows: Iterable[UsedMachines], *kinds: str) -> None:
    """Refuse devices on which what is written for a program does not run: TPUs, say, where it is for GPUs.

    Raises
    ------
    InfeasibleError
        If devices that train are of no such kind.
    """
    for row in rows:
        if row.role == "worker" and (kind := device_of(job, row).kind) not in kinds:
            runs = " and ".join(_KINDS[name] for name in kinds)
            why = f"what is written for it here runs on {runs}, and {row.device} is no such device"
            raise OtherDeviceError(str(refused(target, why, f"Plan without {_KINDS.get(kind, 'such devices')}.")))


@frozen
class Inner:
    """The files of the program that trains, its machines, and the script of each row of them."""

    export: Export
    machines: tuple[UsedMachines, ...]
    scripts: tuple[str, ...]

    @property
    def num_machines(self) -> int:
        """All machines."""
        return sum(row.num_machines for row in self.machines)


def inner_of(job: Job, target: str) -> Inner:
    """Return what trains: the program that was asked for, else the first that can of those for the plan's family.

    Raises
    ------
    SpecError
        If that is no program which trains.
    InfeasibleError
        If the program cannot run the plan, or the plan has parameter servers.
    """
    rows, family = used_machines(job), job.plan.family
    if any(row.role == "server" for row in rows):
        hint = "tfjob has them." if family == "parameter_server" else "Plan with families: [all_reduce, hybrid]."
        raise refused(target, "it has parameter servers, which no program that it starts here knows", hint)
    inside = replace(job, settings=Settings(script=job.settings.script))  # the other settings are those of the outside
    if job.settings.program is not None:
        program = target_of(job.settings.program)
        if TARGETS[program].starts_machines or program == "tfjob":
            problem = f"{program!r} starts machines, as {target} does, and trains nothing itself."
            hint = "Name ddp, horovod, deepspeed, accelerate, megatron, megatron-bridge, primus, torchtitan or maxtext."
            raise SpecError.of_option("--program", problem, hint, value=program)
        files = export(program, inside)
    else:
        files = _first(target, inside)
    names = [name for name in files.files if name.endswith(".sh")]
    if len(names) not in (1, len(rows)):
        why = f"{files.target} has {len(names)} scripts for {len(rows)} kinds of machines"
        raise refused(target, why, "Name another.")
    return Inner(export=files, machines=rows, scripts=tuple(names * len(rows))[: len(rows)])


def _first(target: str, job: Job) -> Export:
    """Return what the first program writes that can run a plan; raise what the very first one said, if none can."""
    refusals = []
    for program in PROGRAMS.get(job.plan.family, ()):
        try:
            return export(program, job)
        except InfeasibleError as error:
            refusals.append(error)
    none = refused(target, f"no program is known that trains by {job.plan.family}", "Name one with --program.")
    raise refusals[0] if refusals else none
