"""Which machines a plan takes, for the formats that ask for machines: Slurm, SkyPilot, Kubernetes, torchrun."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from planner.cluster import Device, MachineGroup
from planner.exporters.export import Job, refused
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.all_reduce.groups import one_type
from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.hybrid.mixed_configuration import MixedConfiguration
from planner.families.model_replicas.cost import group_of
from planner.families.model_replicas.family import ReplicaChoice
from planner.families.parameter_server.configuration import ParameterServerConfiguration
from planner.families.pipeline.cost import PipelineConfiguration, PipelineCost
from planner.problem import Problem

__all__ = [
    "UsedMachines",
    "device_of",
    "is_one_shape",
    "machine_words",
    "num_devices",
    "require_kinds",
    "used_machines",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedMachines:
    """So many machines of a group, of each of which the plan takes the same number of devices.

    Attributes
    ----------
    group, device
        Names of the group of machines, and of its type of device.
    devices_per_machine
        Those that train; 0 on a machine that serves only.
    role
        ``worker`` where devices train, ``server`` where parameters are kept.
    is_shared
        Whether these machines stand in a row of workers, too: servers on the machines of workers.
    """

    group: str
    device: str
    num_machines: int
    devices_per_machine: int
    role: Literal["worker", "server"] = "worker"
    is_shared: bool = False

    @property
    def num_devices(self) -> int:
        """Devices that train on all of them."""
        return self.num_machines * self.devices_per_machine


_KINDS = {"gpu": "GPUs", "cpu": "CPUs", "tpu": "TPUs"}


def used_machines(job: Job) -> tuple[UsedMachines, ...]:
    """Return the machines of a plan, in the order of its ranks; servers come after the workers.

    A group whose last machine gives fewer devices than the others stands in two rows.
    """
    found = tuple(_FAMILIES[job.plan.family](job.problem, job.plan.configuration))
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


def _all_reduce(problem: Problem, chosen: AllReduceConfiguration) -> Iterator[UsedMachines]:
    """Yield the machines of a data-parallel plan; those of one type are taken in the order of the ring."""
    if chosen.groups:
        devices = {group.name: group.device.name for group in problem.cluster.machine_groups}
        for row in chosen.groups:
            yield UsedMachines(
                group=row.name,
                device=devices[row.name],
                num_machines=row.num_machines,
                devices_per_machine=row.devices_per_machine,
            )
        return
    whole = one_type(problem, chosen.machines)
    cluster = whole.of_groups(chosen.machines) if chosen.machines else whole
    left = chosen.num_machines
    for group in cluster.ring_groups:
        if (number := min(left, group.count)) > 0:
            yield _row(group, number, chosen.devices_per_machine)
            left -= number


def _parameter_server(problem: Problem, chosen: ParameterServerConfiguration) -> Iterator[UsedMachines]:
    """Yield workers by group, all devices of a machine; then the servers."""
    groups = _by_name(problem)
    for name, number in chosen.workers.items():
        yield _row(groups[name], number, groups[name].devices_per_machine)
    yield _servers(groups[chosen.servers], chosen.num_parameter_servers, is_shared=chosen.co_located)


def _model_replicas(problem: Problem, chosen: ReplicaChoice) -> Iterator[UsedMachines]:
    """Yield the workers of all replicas, one device each; then the servers."""
    group, counts = group_of(problem), chosen.configuration
    yield _row(group, counts.num_replicas * counts.num_workers, 1)
    yield _servers(group, counts.num_servers)


def _pipeline(problem: Problem, chosen: PipelineConfiguration) -> Iterator[UsedMachines]:
    """Yield the machines of the stages, group by group in the order in which stages first stand on them."""
    cost = PipelineCost(problem)
    taken: dict[int, int] = {}
    for place in cost.places(cost.shape(chosen))[: chosen.num_stages]:
        taken[place.group] = taken.get(place.group, 0) + place.replicas
    for index, number in taken.items():
        yield from _filled([cost.groups[index]], number)


def _hybrid(problem: Problem, chosen: HybridConfiguration) -> Iterator[UsedMachines]:
    """Yield the machines of a layout, filled one after the other."""
    groups = _by_name(problem)
    counts: Mapping[str | None, int] = {chosen.machines: chosen.num_devices}
    if isinstance(chosen, MixedConfiguration):
        counts = chosen.devices_of
    for name, number in counts.items():
        yield from _filled(problem.cluster.ring_groups if name is None else [groups[name]], number)


_FAMILIES: Mapping[str, Callable[[Problem, Any], Iterator[UsedMachines]]] = {
    "all_reduce": _all_reduce,
    "parameter_server": _parameter_server,
    "model_replicas": _model_replicas,
    "pipeline": _pipeline,
    "hybrid": _hybrid,
}


def _by_name(problem: Problem) -> dict[str, MachineGroup]:
    """Return the groups of machines by their names."""
    return {group.name: group for group in problem.cluster.machine_groups}


def _row(group: MachineGroup, num_machines: int, devices_per_machine: int) -> UsedMachines:
    """Return machines that train."""
    return UsedMachines(
        group=group.name,
        device=group.device.name,
        num_machines=num_machines,
        devices_per_machine=devices_per_machine,
    )


def _servers(group: MachineGroup, number: int, *, is_shared: bool = False) -> UsedMachines:
    """Return machines that serve."""
    return UsedMachines(
        group=group.name,
        device=group.device.name,
        num_machines=number,
        devices_per_machine=0,
        role="server",
        is_shared=is_shared,
    )


def _filled(groups: Iterable[MachineGroup], number: int) -> Iterator[UsedMachines]:
    """Yield so many devices of machines that are filled one after the other; the last may stay partly empty."""
    for group in groups:
        shares = []
        for _ in range(group.count):
            if number <= 0:
                break
            shares.append(min(number, group.devices_per_machine))
            number -= shares[-1]
        for devices, run in groupby(shares):
            yield _row(group, len(list(run)), devices)
