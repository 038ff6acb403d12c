"""The cluster, drawn: groups of machines, their devices, and what runs on each."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from planner.cluster import Cluster, MachineGroup
from planner.page.parts import Cell, Drawing, Group, Machine, Role, thinned
from planner.page.placement import Placed, placed
from planner.page.words import bit_rate, cluster_words, many, rate, size, time

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
        caption=f"What runs where on {cluster_words(cluster)}",
        groups=drawn,
        roles=(*found.roles, *idle),
        note=f"{many(left_out, 'group')} of machines are not drawn." if left_out else "",
    )


def _group(cluster: Cluster, group: MachineGroup, found: Placed) -> Group:
    """Return one group of machines."""
    machines = _alike([_machine(group, index, found) for index in range(group.count)], group)
    shown = thinned(machines, _MOST_MACHINES)
    note = ""
    if len(shown) < len(machines):
        kinds = "machines" if len(machines) == group.count else "rows of like machines"
        note = f"{len(shown)} of {len(machines):,} {kinds} are drawn, chosen evenly."
    return Group(
        title=f"{group.name}: {many(group.count, 'machine')} x {group.devices_per_machine} {group.device.name}",
        words="; ".join(_links(cluster, group)),
        machines=shown,
        note=note,
    )


def _alike(machines: Sequence[Machine], group: MachineGroup) -> Sequence[Machine]:
    """Return machines, of more than are drawn those next to each other that do the same as one."""
    if len(machines) <= _MOST_MACHINES:
        return machines
    found: list[Machine] = []
    for _, run in groupby(enumerate(machines), key=lambda one: [(cell.label, cell.colour) for cell in one[1].cells]):
        indices, own = zip(*run, strict=True)
        if len(own) == 1:
            found += own
        else:
            words = f"{len(own):,} machines, each like this"
            note = f"{own[0].note}; {words}" if own[0].note else words
            found.append(replace(own[0], name=f"{group.name} {indices[0]} to {indices[-1]}", note=note))
    return found


def _links(cluster: Cluster, group: MachineGroup) -> list[str]:
    """Return the memory of a group's devices, and its links, in words."""
    words = [] if group.device.memory_bytes == float("inf") else [f"{size(group.device.memory_bytes)} a device"]
    if group.inside is not None:
        words.append(f"inside a machine {rate(group.inside.bandwidth_bytes_per_s)}")
    cards = f"{group.num_nics} x " if group.num_nics > 1 else ""
    for other, data in cluster.graph[group.name].items():
        link = data["link"]
        words.append(f"{cards}{bit_rate(link.bandwidth_bytes_per_s)} to {other}, {time(link.latency_s)} a hop")
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
