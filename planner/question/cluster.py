"""The ``cluster`` block of a spec, made into a :class:`planner.cluster.Cluster`.

What a machine leaves out is that of the machine that it names, or of its device's reference machine
(:mod:`planner.data.devices`). A device that is in no such machine, one of the user's or a CPU, has one network card
and PCIe inside. Each is noted as an assumption, and written into the resolved question, so that a plan file means the
same whatever the tables say later.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from planner import data
from planner.cluster import Cluster, Device, Link, MachineGroup, Switch
from planner.errors import SpecError
from planner.problem import Assumption
from planner.question.blocks import ClusterSpec, DeviceSpec, LinkSpec, MachineSpec
from planner.question.source import Notes
from planner.units import Dimension, format_exact, format_human
from planner.words import percent_words

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


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True)
class ClusterBuilder:
    """Builds one cluster; faults and assumptions go into ``notes``, and what was assumed into ``resolved``.

    ``resolved`` is the resolved question; the cluster of a preset stays there by its name.
    """

    notes: Notes
    resolved: MutableMapping[str, Any]

    def build(self, spec: ClusterSpec) -> Cluster:
        """Return the cluster of a preset, of machine groups, or of a drawn graph."""
        taken = _Taken()
        if spec.preset is not None:
            given = data.preset(spec.preset)
            cluster = self._of_machines(ClusterSpec.model_validate(given), spec.preset, given, taken)
            places: _Path = ("cluster", "preset")
            for one in taken.assumptions():
                self._note(Assumption(text=one.text, field=places, flag="cluster.machines instead of the preset"))
            return cluster
        block = self.resolved["cluster"]
        if spec.machines is not None:
            cluster = self._of_machines(spec, spec.name or "cluster", block, taken)
        else:
            cluster = self._of_nodes(spec, block, taken)
        for one in taken.assumptions():
            self._note(one)
        self._note_idle_links(cluster)
        return cluster

    def _note(self, one: Assumption) -> None:
        """Note what was assumed: under the headline of an answer, and among all its assumptions."""
        self.notes.key_assumptions.append(one)
        self.notes.assumptions.append(one.text)

    def _note_idle_links(self, cluster: Cluster) -> None:
        """Say first of all which links of a drawn cluster no ring crosses: they carry nothing in any plan."""
        idle = cluster.idle_links
        if not idle or cluster.num_machines == 1:
            return
        names = ", ".join(f"{first} - {second} ({_bits(link)})" for first, second, link in idle[:3])
        more = f" and {len(idle) - 3} more" if len(idle) > 3 else ""
        all_links = cluster.graph.number_of_edges()
        text = (
            f"{len(idle)} of the {all_links} links drawn {'carries' if len(idle) == 1 else 'carry'} nothing, "
            f"{percent_words(cluster.idle_share)} of the bandwidth: {names}{more}. "
            f"Two machines communicate on one path, in the widest spanning tree"
        )
        self.notes.key_assumptions.insert(0, Assumption(text=text, field=("cluster", "links"), flag="cluster.links"))
        self.notes.assumptions.insert(0, text)
        self.notes.warnings.append(text)

    def _of_machines(self, spec: ClusterSpec, name: str, block: dict[str, Any], taken: _Taken) -> Cluster:
        """Return machine groups on one switch."""
        machines = spec.machines or []
        is_alone = sum(machine.count for machine in machines) == 1
        groups, links = [], []
        for index, machine in enumerate(machines):
            draft = _Draft(
                machine=machine,
                name=machine.name or f"machines-{index}",
                place=("cluster", "machines", index),
                keep=block["machines"][index],
                has_network=not is_alone,
                is_only=len(machines) == 1,
                notes=self.notes,
                taken=taken,
            )
            groups.append(draft.group())
            if not is_alone:
                links.append((draft.name, "network", draft.link()))
        if self.notes.faults:
            raise SpecError.of([])
        if is_alone:
            return Cluster(name, groups, [], source=spec.source)
        return Cluster(name, [*groups, Switch(name="network")], links, source=spec.source)

    def _of_nodes(self, spec: ClusterSpec, block: dict[str, Any], taken: _Taken) -> Cluster:
        """Return a drawn cluster."""
        is_alone = sum(node.count for node in spec.nodes or () if node.type == "machine") == 1
        linked = set() if is_alone else {end for cable in spec.links or () for end in cable.ends}
        nodes: list[MachineGroup | Switch] = []
        for index, node in enumerate(spec.nodes or []):
            if node.type == "switch":
                nodes.append(Switch(name=node.name))
                continue
            draft = _Draft(
                machine=node,
                name=node.name,
                place=("cluster", "nodes", index),
                keep=block["nodes"][index],
                has_network=node.name in linked,
                is_only=False,
                notes=self.notes,
                taken=taken,
            )
            nodes.append(draft.group())
        links = [
            (cable.ends[0], cable.ends[1], Link(bandwidth_bytes_per_s=cable.bandwidth, latency_s=cable.latency))
            for cable in spec.links or []
        ]
        if open_links := [cable for cable in spec.links or () if "latency" not in cable.model_fields_set]:
            text = f"latency of {len(open_links)} of {len(links)} drawn links: 0, as none is given"
            flag = "latency under cluster.links"
            taken.links.append(Assumption(text=text, field=("cluster", "links"), flag=flag))
        if self.notes.faults:
            raise SpecError.of([])
        return Cluster(spec.name or "cluster", nodes, links, source=spec.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """One group of machines while it is built.

    Attributes
    ----------
    place, keep
        Where the group stands in the question, and its mapping in the resolved one.
    has_network, is_only
        Whether a network joins it to others; whether the cluster has no other group.
    """

    machine: MachineSpec
    name: str
    place: _Path
    keep: dict[str, Any]
    has_network: bool
    is_only: bool
    notes: Notes
    taken: _Taken

    def group(self) -> MachineGroup:
        """Return the group; write what was taken from elsewhere into the resolved question."""
        machine = self.machine
        device = self.notes.attempt((*self.place, "device"), self._device) or Device(name="unknown")
        if machine.machine is not None:
            named = data.machine(machine.machine)
            self.keep.pop("machine", None)
            self.keep.update(device=named.device, devices=machine.num_devices)
            self.notes.assumptions.append(_machine_words(machine.machine, named, machine.num_devices))
        self._check_sold()
        inside, host_link = self._inside()
        return MachineGroup(
            name=self.name,
            count=machine.count,
            device=device,
            devices_per_machine=machine.num_devices,
            inside=inside,
            num_nics=self._num_nics(),
            storage=machine.storage.build() if machine.storage else None,
            host_link_bytes_per_s=machine.host_link or host_link,
            decode_samples_per_s=machine.decode or float("inf"),
        )

    def link(self) -> Link:
        """Return the link of each network card: as said, or as the reference machine has it."""
        machine, reference = self.machine, self._reference
        rate = machine.network
        if rate is None:
            rate = None if reference is None else reference.nic_bytes_per_s
            if rate is None:
                self.notes.fault(
                    self.place, "several machines, and no network between them.", "Add e.g. network: 25 Gbit/s."
                )
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

    @property
    def _device_name(self) -> str:
        """The proper name of the device."""
        given = self.machine.device
        if self.machine.machine is not None:
            return data.machine(self.machine.machine).device
        return data.device(given).name if isinstance(given, str) else "" if given is None else given.name

    @property
    def _label(self) -> str:
        """What the group is called in an assumption: the user's name for it, or its device."""
        if self.machine.name or self.is_only:
            return self.machine.name or self._device_name
        return f"{self.name} ({self._device_name})"

    @property
    def _reference(self) -> data.Machine | None:
        """The machine that figures are taken from: the named one, or the device's; None of a user's device or a CPU.

        Where none that is sold has as many devices, the largest.
        """
        if self.machine.machine is not None:
            return data.machine(self.machine.machine)
        if not isinstance(self.machine.device, str):
            return None
        fitting = data.reference_machine(self._device_name, self.machine.num_devices)
        return fitting or max(data.machines_of(self._device_name), key=lambda one: one.num_devices, default=None)

    def _assume(self, among: list[_Assumed], begin: str, end: str, key: str, other: Any) -> None:
        """Note what was assumed at a key of the group, whose label stands between ``begin`` and ``end``."""
        among.append(_Assumed(begin=begin, label=self._label, end=end, place=(*self.place, key), other=other))

    def _check_sold(self) -> None:
        """Refuse more devices in a machine than any has that is sold, if it is not said what joins them."""
        sold, num_devices = self._reference, self.machine.num_devices
        if sold is None or sold.is_pcie or num_devices <= sold.num_devices or self.machine.inside is not None:
            return
        reach = f"{sold.inside} reaches no further" if sold.inside else "it has one device"
        self.notes.fault(
            (*self.place, "devices"),
            f"no machine of {num_devices} {sold.device} is sold; {sold.title} has {sold.num_devices}, and {reach}.",
            f"Write more machines of {sold.num_devices}, or say what joins all devices of one: --inside, key inside.",
            num_devices,
        )

    def _device(self) -> Device:
        """Return a device by name, or as the spec describes it."""
        given = self.machine.device
        if not isinstance(given, DeviceSpec):
            return data.device(self._device_name)
        peaks = {dtype: getattr(given, dtype) for dtype in ("fp32", "tf32", "fp16", "bf16")}
        return Device(
            name=given.name,
            kind=given.kind,
            peak_flop_per_s={dtype: peak for dtype, peak in peaks.items() if peak is not None},
            memory_bytes=float("inf") if given.memory is None else given.memory,
            memory_bandwidth_bytes_per_s=given.memory_bandwidth or float("inf"),
            power_w=given.power,
            is_verified=given.verified,
            source=given.source,
        )

    def _inside(self) -> tuple[Link | None, float]:
        """Return the link inside a machine, and the rate from its host to a device: a PCIe link by name is both."""
        machine, reference = self.machine, self._reference
        if isinstance(machine.inside, LinkSpec):
            return Link(bandwidth_bytes_per_s=machine.inside.bandwidth, latency_s=machine.inside.latency), float("inf")
        if machine.inside is None and machine.num_devices == 1:
            return None, float("inf")
        name = machine.inside or (None if reference is None else reference.inside)
        if name is None:
            name = data.link_of(self._device_name) or _INSIDE
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
        machine, reference = self.machine, self._reference
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


def with_former_defaults(question: Mapping[str, Any]) -> dict[str, Any]:
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
    if reference is None:
        return ""
    return f", as in {reference.title}{'' if reference.is_verified else ' (unverified)'}"


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
