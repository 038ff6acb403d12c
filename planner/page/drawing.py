"""The cluster, drawn: groups of machines, their devices, and what runs on each."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.cluster import Cluster, MachineGroup
from planner.page.parts import Cell, Drawing, Group, Machine, Role, thinned
from planner.page.placement import Placed, placed
from planner.page.words import many, rate, size, time

__all__ = ["drawing_of"]

_MOST_MACHINES = 24  # of a group
_MOST_GROUPS = 16
_MOST_DEVICES = 16  # of a machine
_IDLE = Cell(label="\N{MIDDLE DOT}", words="idle")


def drawing_of(cluster: Cluster, family: str, block: Mapping[str, Any], details: Mapping[str, Any]) -> Drawing | None:
    """Return the cluster with what runs where; None where the family is not known here."""
    found = placed(cluster, family, block, details)
    if found is None:
        return None
    groups = thinned(cluster.machine_groups, _MOST_GROUPS)
    drawn = [_group(cluster, group, found) for group in groups]
    is_idle = any(_IDLE in machine.cells for group in drawn for machine in group.machines)
    idle = (Role(label=_IDLE.label, words="a device that does nothing"),) if is_idle else ()
    left_out = len(cluster.machine_groups) - len(groups)
    return Drawing(
        caption=f"What runs where on {cluster.name}",
        groups=drawn,
        roles=(*found.roles, *idle),
        note=f"{many(left_out, 'group')} of machines are not drawn." if left_out else "",
    )


def _group(cluster: Cluster, group: MachineGroup, found: Placed) -> Group:
    """Return one group of machines."""
    indices = thinned(range(group.count), _MOST_MACHINES)
    note = ""
    if len(indices) < group.count:
        note = f"{len(indices)} of {group.count:,} machines are drawn, chosen evenly."
    return Group(
        title=f"{group.name}: {many(group.count, 'machine')} x {group.devices_per_machine} {group.device.name}",
        words="; ".join(_links(cluster, group)),
        machines=[_machine(group, index, found) for index in indices],
        note=note,
    )


def _links(cluster: Cluster, group: MachineGroup) -> list[str]:
    """Return the memory of a group's devices, and its links, in words."""
    words = [] if group.device.memory_bytes == float("inf") else [f"{size(group.device.memory_bytes)} a device"]
    if group.inside is not None:
        words.append(f"inside a machine {rate(group.inside.bandwidth_bytes_per_s)}")
    cards = f"{group.num_nics} x " if group.num_nics > 1 else ""
    for other, data in cluster.graph[group.name].items():
        link = data["link"]
        words.append(f"{cards}{rate(link.bandwidth_bytes_per_s)} to {other}, {time(link.latency_s)} a hop")
    return words


def _machine(group: MachineGroup, index: int, found: Placed) -> Machine:
    """Return one machine with its devices and servers."""
    cells: Sequence[Cell] = found.devices.get(group.name, ())
    used = found.per_machine.get(group.name, group.devices_per_machine)
    own = [*cells[index * used : (index + 1) * used]]
    own += [_IDLE] * (group.devices_per_machine - len(own))
    shown = thinned(own, _MOST_DEVICES)
    servers = found.servers.get(group.name, {}).get(index, ())
    note = f"{len(shown)} of {group.devices_per_machine} devices" if len(shown) < group.devices_per_machine else ""
    return Machine(name=f"{group.name} {index}", cells=[*servers, *shown], note=note)
