"""What runs on which device: the devices of every group of machines, with their part in a configuration.

Follows the rules by which the families fill machines: groups in the order of the ring, machines and devices in order,
one stage after the other; ranks of hybrid parallelism by the order that the layout names, the first degree fastest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from planner.cluster import Cluster, MachineGroup
from planner.page.parts import Cell, Role
from planner.page.words import many, size

__all__ = ["Placed", "placed"]

_MOST_ROLES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Who does what.

    Attributes
    ----------
    devices
        Of a group by its name: what each of its devices does, machine after machine; those beyond the end do nothing.
    servers
        Of a group: the servers on each of its machines, by the machine's index.
    roles
        What the colours mean.
    per_machine
        Of a group: devices of each of its machines that count in ``devices``, where not all of them are used.
    """

    devices: Mapping[str, Sequence[Cell]]
    roles: Sequence[Role]
    servers: Mapping[str, Mapping[int, Sequence[Cell]]] = field(default_factory=dict)
    per_machine: Mapping[str, int] = field(default_factory=dict)


def placed(cluster: Cluster, family: str, block: Mapping[str, Any], details: Mapping[str, Any]) -> Placed | None:
    """Return what runs where under a configuration, given as its document; None for a family that is not known here."""
    placers: dict[str, Callable[..., Placed]] = {
        "all_reduce": _all_reduce,
        "parameter_server": _parameter_server,
        "model_replicas": _model_replicas,
        "pipeline": _pipeline,
        "hybrid": _hybrid,
    }
    placer = placers.get(family)
    return None if placer is None else placer(cluster, block, details)


def _replicas(cluster: Cluster, machines: Mapping[str, tuple[int, int, str]], role: Role) -> Placed:
    """Return equal devices: of each group so many machines with so many devices, and what each does in words."""
    devices, per_machine = {}, {}
    for group in cluster.machine_groups:
        if group.name in machines:
            count, each, words = machines[group.name]
            devices[group.name] = [Cell(label="R", words=words, colour=0)] * (count * each)
            per_machine[group.name] = each
    return Placed(devices=devices, roles=(role,), per_machine=per_machine)


def _all_reduce(cluster: Cluster, block: Mapping[str, Any], details: Mapping[str, Any]) -> Placed:
    """Return a replica of the whole network on each device."""
    role = Role(label="R", words="a replica of the whole network; all exchange their gradients", colour=0)
    if "groups" in block:
        machines = {
            name: (one["machines"], one["devices_per_machine"], f"replica, {one['batch_per_device']} samples")
            for name, one in block["groups"].items()
        }
        return _replicas(cluster, machines, role)
    named, left, each = block.get("machines"), block["num_machines"], block["devices_per_machine"]
    machines = {}
    for group in cluster.ring_groups:
        if named and group.name not in named:
            continue
        count = min(left, group.count)
        left -= count
        if count:
            words = f"replica, {details.get('batch_per_device', '?')} samples"
            machines[group.name] = (count, min(each, group.devices_per_machine), words)
    return _replicas(cluster, machines, role)


def _parameter_server(cluster: Cluster, block: Mapping[str, Any], details: Mapping[str, Any]) -> Placed:
    """Return workers on the first machines of their groups, and servers on the first of theirs, or behind them."""
    counts: Mapping[str, int] = block["workers"]
    groups = {group.name: group for group in cluster.machine_groups}
    shares = block.get("batch_shares", {})
    machines = {
        name: (count, groups[name].devices_per_machine, f"worker, {shares.get(name, '?')} samples a device")
        for name, count in counts.items()
    }
    workers = _replicas(cluster, machines, Role(label="R", words="a worker's replica of the whole network", colour=0))
    first = 0 if block["co_located"] else counts.get(block["servers"], 0)
    stored, placement = details.get("server_bytes", ()), block["placement"]
    servers = {}
    for index in range(block["num_parameter_servers"]):
        parts = [size(stored[index])] if index < len(stored) else []
        if isinstance(placement, Mapping):
            parts.append(many(sum(1 for at in placement.values() if at == index), "tensor"))
        words = f"server {index}{': ' if parts else ''}{', '.join(parts)}"
        servers[first + index] = [Cell(label=f"PS {index}", words=words, colour=1)]
    role = Role(label="PS", words="a parameter server; it holds its share of the parameters", colour=1)
    return Placed(
        devices=workers.devices,
        roles=(*workers.roles, role),
        servers={block["servers"]: servers},
        per_machine=workers.per_machine,
    )


def _model_replicas(cluster: Cluster, block: Mapping[str, Any], details: Mapping[str, Any]) -> Placed:
    """Return servers first, then the workers of one replica after the other; one device a machine."""
    del details
    servers, replicas, workers = (
        block[name] for name in ("num_parameter_servers", "num_replicas", "num_workers_per_replica")
    )
    cells = [Cell(label=f"PS {index}", words=f"server {index}", colour=0) for index in range(servers)]
    for replica in range(replicas):
        colour = 1 + replica % 7
        cells += [
            Cell(label=f"R{replica} W{worker}", words=f"replica {replica}, worker {worker}", colour=colour)
            for worker in range(workers)
        ]
    roles = [
        Role(label="PS", words="a parameter server", colour=0),
        Role(
            label="R W",
            words=f"a worker of a replica, which splits the layers over {many(workers, 'worker')}",
            colour=1,
        ),
    ]
    name = next((group.name for group in cluster.machine_groups if group.count >= len(cells)), "")
    return Placed(devices={name: cells}, roles=roles)


def _pipeline(cluster: Cluster, block: Mapping[str, Any], details: Mapping[str, Any]) -> Placed:
    """Return the replicas of one stage after the other, on the devices of their groups."""
    del cluster
    stages, chunks = block["stages"], block["chunks_per_device"]
    num_stages = len(stages) // chunks
    devices: dict[str, list[Cell]] = {}
    roles, rows = [], details.get("stages", ())
    for index, stage in enumerate(stages[:num_stages]):
        parts = [f"{one['first']} to {one['last']}" for one in stages[index::num_stages]]
        layers = "; ".join(parts[:2]) + (f" and {len(parts) - 2} chunks more" if len(parts) > 2 else "")
        colour = index % 8
        samples = rows[index].get("samples_per_replica") if index < len(rows) else None
        for replica in range(stage["replicas"]):
            words = f"stage {index + 1}, replica {replica + 1} of {stage['replicas']}"
            words += "" if samples is None else f", {samples} samples of a micro-batch"
            devices.setdefault(stage["machines"], []).append(Cell(label=f"S{index + 1}", words=words, colour=colour))
        roles.append(Role(label=f"S{index + 1}", words=f"stage {index + 1}: layers {layers}", colour=colour))
    return Placed(devices=devices, roles=_few_roles(roles))


def _few_roles(roles: Sequence[Role]) -> list[Role]:
    """Return roles, the last of too many as one."""
    if len(roles) <= _MOST_ROLES:
        return list(roles)
    rest = Role(label="...", words=f"{many(len(roles) - _MOST_ROLES, 'stage')} more, in the table of stages")
    return [*roles[:_MOST_ROLES], rest]


# -- hybrid ----------------------------------------------------------------------------------------------------------


def _hybrid(cluster: Cluster, block: Mapping[str, Any], details: Mapping[str, Any]) -> Placed:
    """Return the ranks with their coordinates."""
    del details
    degrees = {name: int(block[name]) for name in ("tensor", "context", "pipeline", "data")}
    order = [name for name in str(block["order"]).split("-") if name in degrees]
    order += [name for name in degrees if name not in order]
    shown = [name for name in _LETTERS if degrees[name] > 1]
    stages, replicas = block.get("stages"), block.get("replicas")
    cells: dict[str, list[Cell]] = {}
    if replicas:
        number = 0
        for one in replicas:
            ranks = _ranks(degrees | {"data": one["data"]}, order, shown, first={"data": number})
            cells.setdefault(one["machines"], []).extend(ranks)
            number += one["data"]
    elif stages and any(one.get("machines") for one in stages):
        for index, one in enumerate(stages):
            ranks = _ranks(degrees | {"pipeline": 1}, order, shown, first={"pipeline": index})
            cells.setdefault(one["machines"], []).extend(ranks)
    else:
        ranks = _ranks(degrees, order, shown, first={})
        for group in _groups(cluster, block.get("machines")):
            room = group.count * group.devices_per_machine
            cells[group.name], ranks = ranks[:room], ranks[room:]
    return Placed(devices=cells, roles=_hybrid_roles(block, degrees))


def _groups(cluster: Cluster, name: str | None) -> list[MachineGroup]:
    """Return the groups that train: the one of a name, or all."""
    return [group for group in cluster.machine_groups if name in (None, group.name)]


def _ranks(
    degrees: Mapping[str, int], order: Sequence[str], shown: Sequence[str], *, first: Mapping[str, int]
) -> list[Cell]:
    """Return ranks in order, ``shown`` of their coordinates told; ``first`` is added to them."""
    cells = []
    for rank in range(prod(degrees.values())):
        at, rest = {}, rank
        for name in order:
            rest, digit = divmod(rest, degrees[name])
            at[name] = digit + first.get(name, 0) + (name == "pipeline")  # stages count from 1, ranks from 0
        label = " ".join(f"{_LETTERS[name]}{at[name]}" for name in shown) or "R"
        words = ", ".join(f"{_NAMES[name]} {at[name]}" for name in shown) or "a replica of the whole network"
        cells.append(
            Cell(label=label, words=words, colour=(at["pipeline"] - 1 if "pipeline" in shown else at["data"]) % 8)
        )
    return cells


_LETTERS = {"pipeline": "P", "data": "D", "tensor": "T", "context": "C"}
_NAMES = {"pipeline": "stage", "data": "replica", "tensor": "tensor rank", "context": "context rank"}


def _hybrid_roles(block: Mapping[str, Any], degrees: Mapping[str, int]) -> list[Role]:
    """Return what labels and colours mean."""
    if degrees["pipeline"] > 1:
        layers = [one["layers"] for one in block["stages"]] if block.get("stages") else []
        roles = [
            Role(
                label=f"P{index + 1}",
                words=f"stage {index + 1}" + (f": {many(layers[index], 'layer')}" if index < len(layers) else ""),
                colour=index % 8,
            )
            for index in range(degrees["pipeline"])
        ]
    else:
        roles = [Role(label="D0", words="devices of one colour hold a replica together; the colours repeat", colour=0)]
        if degrees["data"] == 1:
            roles = []
    words = {
        "data": "D: replica, with its share of the batch",
        "tensor": "T: rank that holds a slice of every layer",
        "context": "C: rank that holds a slice of every sequence",
    }
    letters = [text for name, text in words.items() if degrees[name] > 1]
    return [*_few_roles(roles), *(Role(label=text[0], words=text[3:]) for text in letters)]
