"""The ``cluster`` block of a spec, made into a :class:`planner.cluster.Cluster`.

What a machine leaves out is that of the machine that it names, or of its device's reference machine
(:mod:`planner.data.devices`). A device that is in no such machine, one of the user's or a CPU, has one network card
and PCIe inside. Each is noted as an assumption, and written into the resolved question, so that a plan file means the
same whatever the tables say later.
"""

import re
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from planner import data
from planner.cluster import Cable, Cluster, Device, Link, MachineGroup, Switch
from planner.errors import SpecError
from planner.frozen import frozen
from planner.problem import Assumption
from planner.question.blocks import ClusterSpec, DeviceSpec, LinkSpec, MachineSpec, NodeSpec, TopologySpec
from planner.question.source import Notes
from planner.question.topology import SWITCHES, drawn
from planner.question.values import is_graph
from planner.routes import routes_of
from planner.units import Dimension, format_exact, format_human

_LATENCY_S, _OTHER_LATENCY = 20e-6, "5 us"
_INSIDE = "pcie-3-x16"  # of a device whose own link is not known
# What machines of a device also have inside, where they are not the reference machine.
_OTHER_INSIDE: Mapping[str, Any] = {
    **dict.fromkeys(("nvlink-1", "nvlink-2"), "pcie-3-x16"),
    **dict.fromkeys(("nvlink-3", "xgmi-mi250x"), "pcie-4-x16"),
    **dict.fromkeys(("nvlink-4", "nvlink-4-h800", "nvlink-5", "xgmi-mi300x", "xgmi-mi355x"), "pcie-5-x16"),
    "pcie-5-x16": "pcie-4-x16",
    "pcie-4-x16": "pcie-3-x16",
    "pcie-3-x16": {"bandwidth": "7.875 GB/s"},  # eight lanes, as boards with several cards have them
}

_MOST_LABELS = 3  # of groups of which the same was assumed

_Path = tuple[str | int, ...]


@frozen
class _Assumed:
    """What was assumed of a group of machines: ``begin``, its label and ``end`` make the sentence."""

    begin: str
    label: str
    end: str
    place: _Path
    other: Any


@dataclass(slots=True)
class _Taken:
    """What was assumed about the machines, by what it is about: the network comes first in an answer."""

    network: list[_Assumed] = field(default_factory=list)
    inside: list[_Assumed] = field(default_factory=list)
    latency: list[_Assumed] = field(default_factory=list)
    links: list[Assumption] = field(default_factory=list)

    def assumptions(self) -> Iterator[Assumption]:
        """Yield all of them; what is the same of several groups is one assumption, as it would change for all."""
        same: dict[Any, list[_Assumed]] = {}
        for one in (*self.network, *self.inside, *self.latency):
            same.setdefault((one.begin, one.end, one.place[-1], repr(one.other)), []).append(one)
        for first, *others in same.values():
            labels = [first.label, *(one.label for one in others)]
            more = [f"{len(labels) - _MOST_LABELS} more"] if len(labels) > _MOST_LABELS + 1 else []
            told = [*labels[:_MOST_LABELS], *more] if more else labels
            names = f"{', '.join(told[:-1])} and {told[-1]}" if others else first.label
            yield Assumption(
                text=f"{first.begin}{names}{first.end}",
                field=first.place,
                flag=f"--{first.place[-1]}",
                other=first.other,
                also=tuple(one.place for one in others),
            )
        yield from self.links


# Trays of devices that are sold only in racks whose trays one NVLink domain joins: devices of a tray, trays of a rack.
_TRAYS = {"gb200": (4, 18), "gb300": (4, 18)}


def trays_of_a_rack(device: str, devices_per_machine: int) -> int:
    """Return how many such machines a rack joins to one NVLink domain; 1 where they are no trays of a rack.

    >>> trays_of_a_rack("gb200", 4), trays_of_a_rack("h100-sxm", 8)
    (18, 1)
    """
    devices, trays = _TRAYS.get(device, (0, 1))
    return trays if devices == devices_per_machine else 1


def joined_trays(device: str, devices_per_machine: int, count: int) -> int:
    """Return how many of so many such machines one NVLink domain joins: as a rack does, or fewer, and all alike.

    >>> joined_trays("gb200", 4, 64), joined_trays("h100-sxm", 8, 64)
    (16, 1)
    """
    most = trays_of_a_rack(device, devices_per_machine)
    return next(one for one in range(min(most, count), 0, -1) if count % one == 0)


def _with_domains(
    spec: ClusterSpec, groups: Sequence[MachineGroup | Switch], notes: Notes, block: MutableMapping[str, Any]
) -> ClusterSpec:
    """Return machines that are trays of a rack in NVLink domains of as many as a rack has, all alike."""
    first = groups[0]
    if spec.topology is not None or spec.machines is None or len(groups) > 1 or isinstance(first, Switch):
        return spec
    size = joined_trays(first.device.name, first.devices_per_machine, first.count)
    most = trays_of_a_rack(first.device.name, first.devices_per_machine)
    if most == 1 or first.count == 1 or notes.faults:
        return spec
    each = f"{first.devices_per_machine} {first.device.name}"
    if size == 1:
        text = f"{first.count} trays of {each} are no NVLink domain: racks of NVL72 join {most} at most, all alike here"
        notes.assume_aloud(text, ("cluster", "machines", 0, "count"), flag="cluster.topology")
        return spec
    topology = {"kind": "nvlink-domain", "size": size}
    block["topology"] = topology
    text = f"{size} trays of {each} are one NVLink domain, as a rack of NVL72 joins {most}"
    notes.assume_aloud(text, ("cluster", "topology"), flag="cluster.topology")
    return spec.model_copy(update={"topology": TopologySpec.model_validate(topology)})


def cluster_of(spec: ClusterSpec, notes: Notes, resolved: MutableMapping[str, Any]) -> Cluster:
    """Return the cluster of a preset, of machine groups on one switch, or of a drawn graph.

    Faults and assumptions are noted, and what was assumed goes into ``resolved``, the resolved question, where the
    cluster of a preset stays by its name.

    Raises
    ------
    SpecError
        Without words of its own, where faults were noted.
    """
    taken, block, name = _Taken(), resolved["cluster"], spec.name
    if spec.preset is not None:
        block, name = data.preset(spec.preset), spec.preset
        spec = ClusterSpec.model_validate(block)
    key, given = ("machines", spec.machines or ()) if spec.nodes is None else ("nodes", spec.nodes)
    is_drawn = key == "nodes"
    is_alone = sum(one.count for one in given if not _is_switch(one)) == 1
    linked = {end for cable in spec.links or () for end in cable.ends}
    nodes: list[MachineGroup | Switch] = []
    links = []
    for index, (machine, own) in enumerate(zip(given, _names_of(given), strict=True)):
        if _is_switch(machine):
            nodes.append(Switch(name=own, reduces=machine.reduces))
            continue
        draft = _Draft(
            machine=machine,
            name=own,
            alias="" if machine.name else f"machines-{index}",
            place=("cluster", key, index),
            keep=block[key][index],
            has_network=not is_alone and (not is_drawn or own in linked),
            notes=notes,
            taken=taken,
        )
        nodes.append(draft.group())
        if not is_drawn and not is_alone:
            links.append((own, "network", draft.link()))
    spec = _with_domains(spec, nodes, notes, block)
    if spec.topology is not None and is_alone:
        notes.fault(("cluster", "topology"), "it joins machines, and there is one.", "Leave it out, or raise count.")
    elif spec.topology is not None and not notes.faults:
        groups, topology = [node for node in nodes if isinstance(node, MachineGroup)], spec.topology
        found = notes.attempt(("cluster", "topology"), lambda: drawn(topology, groups, [link for *_, link in links]))
        nodes, links = found or ([], [])
    elif not is_drawn and not is_alone:
        nodes.append(Switch(name="network"))
    for cable in spec.links or ():
        first, second = cable.ends
        link = Cable(
            bandwidth_bytes_per_s=cable.bandwidth, latency_s=cable.latency, count=cable.count, is_one_way=cable.directed
        )
        links.append((first, second, link))
    if num_open := sum("latency" not in cable.model_fields_set for cable in spec.links or ()):
        text = f"latency of {num_open} of {len(links)} drawn links: 0, as none is given"
        taken.links.append(Assumption(text=text, field=("cluster", "links"), flag="latency under cluster.links"))
    if notes.faults:
        raise SpecError.of([])
    cluster = Cluster(name or "cluster", nodes, links, source=spec.source)
    for one in taken.assumptions():
        flag = "cluster.machines instead of the preset"
        is_preset = block is not resolved["cluster"]
        known = Assumption(text=one.text, field=("cluster", "preset"), flag=flag) if is_preset else one
        notes.key_assumptions.append(known)
        notes.assumptions.append(one.text)
    if is_drawn and block is resolved["cluster"]:
        _note_idle_links(cluster, notes)
    return cluster


def _names_of(machines: Sequence[MachineSpec]) -> list[str]:
    """Return what groups of machines are called: by their own names, or by their devices, numbered where those recur.

    No such name is one that a switch has, or that another group's machines have at the leaves of a topology.
    """
    names = [machine.name or _device_name(machine) for machine in machines]
    taken, numbers = {"network", *(machine.name for machine in machines if machine.name)}, dict.fromkeys(names, 0)
    found = []
    for machine, name in zip(machines, names, strict=True):
        own = name
        while machine.name is None and (numbers[name] == 0 or own in taken):
            numbers[name] += 1
            is_first = numbers[name] == 1 and not _is_of_topology(name, numbers)
            own = name if is_first else f"{name} ({numbers[name]})"
        taken.add(own)
        found.append(own)
    return found


def _device_name(machine: MachineSpec) -> str:
    """Return the proper name of a machine's device."""
    if machine.machine is not None:
        return data.machine(machine.machine).device
    given = machine.device
    return given.name if isinstance(given, DeviceSpec) else data.device(str(given)).name


def _is_of_topology(name: str, names: Collection[str]) -> bool:
    """Whether a topology may call a switch so, or some machines of a group of one of ``names``."""
    base, _, number = name.rpartition("-")
    return (number.isdecimal() and base in names) or re.match(rf"({'|'.join(SWITCHES)})-\d", name) is not None


def with_graph(question: Mapping[str, object]) -> dict[str, object]:
    """Return a question as plain data, a networkx graph in it as nodes and links.

    Attributes of a node are the keys of a machine, or ``type: switch``; those of an edge bandwidth, latency and count.
    Edges of a directed graph lead one way; parallel edges that are alike are cables side by side.

    Raises
    ------
    SpecError
        If parallel edges differ, or a node or an edge says nothing of what it is; named here, as its number is no help.
    """
    graph = question.get("cluster")
    if not is_graph(graph):
        return dict(question)
    for node, attributes in graph.nodes(data=True):
        if not attributes:
            problem = f"the node {node!r} has no attributes: it is neither a machine nor a switch."
            raise SpecError.one(problem, f"Add it, e.g. graph.add_node({node!r}, type='switch').", field="cluster")
    for one, other, attributes in graph.edges(data=True):
        if "bandwidth" not in attributes:
            has = f", only {', '.join(map(repr, attributes))}" if attributes else ""
            problem = f"the edge from {one!r} to {other!r} has no bandwidth{has}."
            raise SpecError.one(problem, "Give it one with its unit, e.g. bandwidth='25 Gbit/s'.", field="cluster")
    nodes = [{**attributes, "name": str(node)} for node, attributes in graph.nodes(data=True)]
    cables: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for one, other, attributes in graph.edges(data=True):
        cables.setdefault((one, other), []).append(dict(attributes))
    links = []
    alike = set()
    for (one, other), parallel in cables.items():
        first, *others = parallel
        count = first.get("count") or 1
        if any(cable != first for cable in others) or (others and not isinstance(count, int)):
            mend = "Give parallel edges the same attributes, with a whole number as count, or put a switch between."
            raise SpecError.one(f"edges {one} - {other} differ.", mend, field="cluster")
        link = {**first, "ends": [str(one), str(other)]}
        if others:
            link["count"] = len(parallel) * count
        if graph.is_directed() and cables.get((other, one)) != parallel:
            link["directed"] = True
        elif graph.is_directed() and (other, one) in alike:
            continue  # both ways alike: one link
        alike.add((one, other))
        links.append(link)
    return {**question, "cluster": {"nodes": nodes, "links": links, **({"name": graph.name} if graph.name else {})}}


def _is_switch(machine: MachineSpec) -> TypeGuard[NodeSpec]:
    """Whether a node of a drawn cluster is no machine."""
    return isinstance(machine, NodeSpec) and machine.type == "switch"


def _note_idle_links(cluster: Cluster, notes: Notes) -> None:
    """Say first of all which links of a drawn cluster no path between machines takes: they carry nothing."""
    idle = routes_of(cluster).idle_links
    if not idle or cluster.num_machines == 1:
        return
    names = ", ".join(f"{first} - {second} ({_bits(link)})" for first, second, link in idle[:3])
    more = f" and {len(idle) - 3} more" if len(idle) > 3 else ""
    all_links = cluster.graph.number_of_edges()
    text = (
        f"{len(idle)} of the {all_links} links drawn {'carries' if len(idle) == 1 else 'carry'} nothing: "
        f"{names}{more}. Paths between machines have as few links as can be, and start at a machine's fastest cards"
    )
    notes.key_assumptions.insert(0, Assumption(text=text, field=("cluster", "links"), flag="cluster.links"))
    notes.assumptions.insert(0, text)
    notes.warnings.append(text)


@dataclass(slots=True, kw_only=True)
class _Draft:
    """One group of machines while it is built."""

    machine: MachineSpec
    # name, alias: as it is called, and may be called where nobody named it
    name: str
    alias: str
    # place, keep: where the group stands in the question, and its mapping in the resolved one
    place: _Path
    keep: dict[str, Any]
    has_network: bool  # whether a network joins it to others
    notes: Notes
    taken: _Taken
    device: Device = field(init=False)  # by its name, or as the spec describes it
    # the machine that figures are taken from: the named one, or the device's, the largest where none that is sold has
    # as many devices; None of a user's device or a CPU
    reference: data.Machine | None = field(init=False)

    def __post_init__(self) -> None:
        """Look up the device and the reference machine."""
        machine, given = self.machine, self.machine.device
        self.reference = None if machine.machine is None else data.machine(machine.machine)
        name = self.reference.device if self.reference is not None else str(given)
        place = (*self.place, "device")
        found = self.notes.attempt(
            place, lambda: _device_of(given) if isinstance(given, DeviceSpec) else data.device(name)
        )
        self.device = found or Device(name="unknown")
        if self.reference is None and not isinstance(given, DeviceSpec):
            sold = data.machines_of(self.device.name)
            fitting = data.reference_machine(self.device.name, machine.num_devices)
            self.reference = fitting or max(sold, key=lambda one: one.num_devices, default=None)

    def group(self) -> MachineGroup:
        """Return the group; write what was taken from elsewhere into the resolved question."""
        machine, sold, num_devices = self.machine, self.reference, self.machine.num_devices
        if machine.machine is not None:
            named = data.machine(machine.machine)
            self.keep.pop("machine", None)
            self.keep.update(device=named.device, devices=num_devices)
            self.notes.assumptions.append(_machine_words(machine.machine, named, num_devices))
        if sold and not sold.is_pcie and num_devices > sold.num_devices and machine.inside is None:
            reach = f"{sold.inside} reaches no further" if sold.inside else "it has one device"
            problem = (
                f"no machine of {num_devices} {sold.device} is sold; {sold.title} has {sold.num_devices}, and {reach}."
            )
            mend = f"Write more machines of {sold.num_devices}, or say what joins all devices of one"
            self.notes.fault((*self.place, "devices"), problem, f"{mend}: --inside, key inside.", num_devices)
        is_alone = machine.devices is None and machine.machine is None and machine.count > 1
        if is_alone and sold and not sold.is_pcie and 1 < sold.num_devices <= 2 * machine.count:
            name, number = self.device.name, min(sold.num_devices, machine.count)
            self.notes.warnings.append(
                f"{machine.count} machines with one {name} each, as no number of devices is given; {sold.title} has "
                f"{sold.num_devices}: for such machines write {-(-machine.count // number)}x{number}x{name}"
            )
        inside, host_link = self._inside()
        return MachineGroup(
            name=self.name,
            alias=self.alias,
            count=machine.count,
            device=self.device,
            devices_per_machine=num_devices,
            devices_per_host=machine.devices_per_host or self._host_devices(),
            inside=inside,
            num_nics=self._num_nics(),
            storage=machine.storage.build() if machine.storage else None,
            host_link_bytes_per_s=machine.host_link or host_link,
            decode_samples_per_s=machine.decode or float("inf"),
        )

    def _host_devices(self) -> int | None:
        """Return the devices of a host, where the reference machine has several hosts that its link inside joins."""
        reference = self.reference
        return (
            None
            if reference is None or reference.devices_per_host == reference.num_devices
            else (reference.devices_per_host)
        )

    def link(self) -> Link:
        """Return the link of each network card: as said, or as the reference machine has it."""
        machine, reference = self.machine, self.reference
        rate = machine.network
        if rate is None:
            rate = None if reference is None else reference.nic_bytes_per_s
            if rate is None:
                total, hint = machine.count * machine.num_devices, "Add e.g. network: 25 Gbit/s"
                if reference is not None and machine.num_devices < total <= reference.num_devices and reference.inside:
                    hint += f"; or write 1x{total}x{self.device.name} for those that {reference.inside} joins"
                self.notes.fault(self.place, "several machines, and no network between them.", f"{hint}.")
                return Link(bandwidth_bytes_per_s=1.0)
            self.keep["network"] = format_exact(rate, Dimension.RATE)
            if machine.machine is None:
                half = f"{rate * 4 / 1e9:.12g} Gbit/s"
                end = f" has {_bits(rate)}{_as_in(reference)}"
                self._assume(self.taken.network, "each network card of ", end, "network", half)
        latency_s = machine.latency
        if latency_s is None:
            latency_s = _LATENCY_S
            self.keep["latency"] = format_exact(latency_s, Dimension.TIME)
            end = f": {format_human(latency_s, Dimension.TIME)} per hop"
            self._assume(self.taken.latency, "network latency of ", end, "latency", _OTHER_LATENCY)
        return Link(bandwidth_bytes_per_s=rate, latency_s=latency_s)

    def _assume(self, among: list[_Assumed], begin: str, end: str, key: str, other: Any) -> None:
        """Note what was assumed at a key of the group, whose name stands between ``begin`` and ``end``."""
        among.append(_Assumed(begin=begin, label=self.name, end=end, place=(*self.place, key), other=other))

    def _inside(self) -> tuple[Link | None, float]:
        """Return the link inside a machine, and the rate from its host to a device: a PCIe link by name is both."""
        machine, reference = self.machine, self.reference
        if isinstance(machine.inside, LinkSpec):
            return Link(bandwidth_bytes_per_s=machine.inside.bandwidth, latency_s=machine.inside.latency), float("inf")
        if machine.inside is None and machine.num_devices == 1:
            return None, float("inf")
        name = machine.inside or (None if reference is None else reference.inside)
        if name is None:
            name = data.link_of(self.device.name) or _INSIDE
            link = data.inside_link(name)
            self.keep["inside"] = {"bandwidth": format_exact(link.bandwidth_bytes_per_s, Dimension.RATE)}
            other = "pcie-4-x16" if name == _INSIDE else _OTHER_INSIDE.get(name)
            self._assume(self.taken.inside, "devices inside ", f" are linked by {name}", "inside", other)
            return link, float("inf")
        if machine.inside is None:
            self.keep["inside"] = name
            if machine.machine is None:
                end = f" are linked by {name}{_as_in(reference)}"
                self._assume(self.taken.inside, "devices inside ", end, "inside", _OTHER_INSIDE.get(name))
        found = data.inside_link(name)
        return found, found.bandwidth_bytes_per_s if name.startswith("pcie") else float("inf")

    def _num_nics(self) -> int:
        """Return the network cards of a machine: as said, as its reference machine has them, or one."""
        machine, reference = self.machine, self.reference
        num_devices = machine.num_devices
        if machine.network is not None and machine.nics is not None and "nics" not in self.keep:  # 8 x 400 Gbit/s
            self.keep["network"] = format_exact(machine.network, Dimension.RATE)
        num_nics = machine.nics or (1 if reference is None else reference.nics_of(num_devices))
        self.keep["nics"] = num_nics
        if machine.nics or not self.has_network or machine.machine is not None or (num_devices == 1 and num_nics == 1):
            return num_nics
        rate = machine.network or (reference.nic_bytes_per_s if reference else None)
        each = "" if rate is None else f" of {_bits(rate)}"
        many = f"{num_nics} network cards{each} each" if num_nics > 1 else f"one network card{each}"
        total = "" if rate is None or num_nics == 1 else f", {_bits(rate * num_nics)} together"
        end = f" has {many}{total}{_as_in(reference)}"
        if reference is not None and num_devices != reference.num_devices:
            end += f" ({reference.num_nics} for {reference.num_devices} devices)"
        other = 1 if num_nics > 1 else num_devices if reference is None else 2
        self._assume(self.taken.network, "a machine of ", end, "nics", other)
        return num_nics


def _device_of(given: DeviceSpec) -> Device:
    peaks = {dtype: getattr(given, dtype) for dtype in ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")}
    return Device(
        name=given.name,
        kind=given.kind,
        peak_flop_per_s={dtype: peak for dtype, peak in peaks.items() if peak is not None},
        memory_bytes=float("inf") if given.memory is None else given.memory,
        memory_bandwidth_bytes_per_s=given.memory_bandwidth or float("inf"),
        num_multiprocessors=given.num_multiprocessors,
        power_w=given.power,
        source=given.source,
    )


def with_former_defaults(question: Mapping[str, object]) -> dict[str, object]:
    """Return the question in a plan file, in which what it leaves out about machines is what was assumed for it.

    Since reference machines are known, plan files say everything about their machines. One that was written before
    lacks ``nics`` and perhaps ``inside``, and meant one network card, and the device's own link or PCIe 3 inside, which
    did not bind copies from the host.
    """
    cluster = question.get("cluster")
    if not isinstance(cluster, Mapping):
        return dict(question)
    found = dict(cluster)
    for key in ("machines", "nodes"):
        if isinstance(groups := cluster.get(key), list):
            found[key] = [_as_formerly(group) for group in groups]
    return {**question, "cluster": found}


def _as_formerly(group: Any) -> Any:
    """Return a group of machines of a plan file with the defaults of then."""
    if not isinstance(group, dict) or "nics" in group or "machine" in group or group.get("type") == "switch":
        return group
    found = {**group, "nics": 1}
    if group.get("inside") is None and group.get("devices", 1) != 1:
        device = group.get("device")
        try:
            name = data.link_of(data.device(device).name) if isinstance(device, str) else None
        except SpecError:  # the question is refused for its device in any case
            name = None
        rate = data.inside_link(name or _INSIDE).bandwidth_bytes_per_s
        found["inside"] = {"bandwidth": format_exact(rate, Dimension.RATE)}
    return found


def _as_in(reference: data.Machine | None) -> str:
    """Return where a figure is taken from."""
    return "" if reference is None else f", as in {reference.title}"


def _machine_words(name: str, one: data.Machine, num_devices: int) -> str:
    """Return what a machine is that was named, and what of it is used."""
    cards = f"{one.num_nics} network cards" if one.num_nics > 1 else "one network card"
    rate = "" if one.nic_bytes_per_s is None else f" of {_bits(one.nic_bytes_per_s)}"
    inside = f", {one.inside} inside" if one.inside else ""
    part = (
        "" if num_devices == one.num_devices else f"; here {num_devices} devices and {one.nics_of(num_devices)} cards"
    )
    return f"{name} is {one.title}: {one.num_devices} {one.device}{inside}, {cards}{rate}{part} ({one.source})"


def _bits(rate: float | Link) -> str:
    """Return the rate of a network as it is sold."""
    bytes_per_s = rate.bandwidth_bytes_per_s if isinstance(rate, Link) else rate
    return f"{bytes_per_s * 8 / 1e9:,.4g} Gbit/s" if bytes_per_s * 8 < 1e13 else f"{bytes_per_s * 8 / 1e12:,.4g} Tbit/s"
