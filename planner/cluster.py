"""The machines: a graph of machine groups, switches and storage, behind a thin typed wrapper.

A node is a *group* of equal machines, however many; its edge to a switch stands for such a link of each of them. Links
are full-duplex, but for those that lead one way. Mixed devices and mixed links are normal. What ways machines have to
each other, and how fast they are, is told by :mod:`planner.routes`.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, cast

from planner.frozen import frozen
from planner.shown import Shown
from planner.words import joined, many

if TYPE_CHECKING:
    import networkx as nx

TRAINING_DTYPES = ("fp32", "tf32", "fp16", "bf16")  # what a network may be trained in; devices have peaks of others too

T = TypeVar("T")

_UNNAMED = "cluster"
_OF_GROUPS = {"machines", "groups", "workers", "servers", "batch_shares"}  # keys of configurations that name groups
_MOST_NAMED = 3  # kinds of machines that stand in a sentence


@frozen
class Device:
    """A GPU, or the cores of a CPU that train together."""

    name: str
    kind: str = "gpu"
    # by data type (fp32, tf32, fp16, bf16, fp8, fp4), dense; a multiply-add counts as two
    peak_flop_per_s: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: float = float("inf")
    memory_bandwidth_bytes_per_s: float = float("inf")
    # streaming multiprocessors, or compute units; None where there are none, or they are not known
    num_multiprocessors: int | None = None
    scale_up_bytes_per_s: float | None = None  # by the vendor's own links, one direction; None where there are none
    # process_nm, has_inline_ecc: the process that it is made in, as it is sold; and whether check bits lie among the
    # data in its memory
    process_nm: float | None = None
    has_inline_ecc: bool = False
    power_w: float | None = None
    # what large matrix products alone in bf16 were measured to reach; None where nobody measured
    matmul_flop_per_s: float | None = None
    source: str = ""  # where the figures stand

    @property
    def is_amd(self) -> bool:
        """Whether it is one of AMD's accelerators, all of which are called so."""
        return re.match(r"mi\d{2,3}", self.name) is not None


@frozen
class Link:
    """One direction of a full-duplex link; ``latency_s`` is per hop."""

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0


@frozen
class Cable(Link):
    """A link of the graph, or several equal ones side by side; see :class:`Link` for the figures of each."""

    # how many; at a machine group: network cards of each machine. None: one, or at a machine group as many as its cards
    # come to when they are dealt evenly over those of its links that do not say
    count: int | None = None
    is_one_way: bool = False  # whether it leads from the first end to the second only
    # whether it is of the vendor's own links (NVLink) between machines, and takes no network card
    is_scale_up: bool = False


@frozen
class Storage:
    """Where samples are read from: a disk in every machine, or one store shared by several machines.

    ``shared_by`` is how many machines read from one such store; None: all.
    """

    bandwidth_bytes_per_s: float
    is_shared: bool = False
    shared_by: int | None = None

    def num_readers(self, num_machines: int) -> int:
        """Return how many of ``num_machines`` that read at the same time share one store."""
        return min(num_machines, self.shared_by or num_machines) if self.is_shared else 1


@frozen
class MachineGroup:
    """``count`` equal machines."""

    name: str
    count: int
    device: Device
    alias: str = field(default="", compare=False, repr=False)  # another name that questions and plans may call it by
    devices_per_machine: int = 1
    # of a machine's devices, those that one operating system has (a tray of a rack that NVLink joins); None: all
    devices_per_host: int | None = None
    inside: Link | None = None  # between two devices of one machine; None where there is one device
    num_nics: int = 1  # network cards of a machine, each with the group's link
    storage: Storage | None = None
    host_link_bytes_per_s: float = float("inf")  # from host memory to one device (PCIe); infinite where not modelled
    # samples a second that one machine's host decodes; infinite where not modelled
    decode_samples_per_s: float = float("inf")

    @property
    def host_size(self) -> int:
        """Devices on which one launcher starts processes: of a host, or of a machine that is one."""
        return min(self.devices_per_host or self.devices_per_machine, self.devices_per_machine)


@frozen
class Switch:
    """A node that only forwards.

    ``reduces``: it adds up what passes (SHARP), so that an all-reduce may be done ``in_network``.
    """

    name: str
    reduces: bool = False


class Cluster(Shown):
    """Machines and the network between them.

    Parameters
    ----------
    nodes
        Machine groups and switches; names are unique.
    links
        ``(name, name, link)``.
    source
        Where the description comes from.

    Raises
    ------
    ValueError
        If a name is used twice or unknown, there is no machine, machines are not connected, or a link joins a node to
        itself.
    """

    def __init__(
        self,
        name: str,
        nodes: Sequence[MachineGroup | Switch],
        links: Iterable[tuple[str, str, Link]],
        *,
        source: str = "",
    ) -> None:
        self.name = name
        self.source = source
        self.nodes: dict[str, MachineGroup | Switch] = {}
        for node in nodes:
            if node.name in self.nodes:
                raise ValueError(f"node {node.name!r} stands twice; give every node its own name")
            self.nodes[node.name] = node
        # Of each node, by its neighbours, the cables between the two by the way that they lead.
        self._arcs: dict[str, dict[str, dict[tuple[str, str], Cable]]] = {name: {} for name in self.nodes}
        cables: list[tuple[str, str, Cable]] = []
        for first, second, link in links:
            cable = (
                link
                if isinstance(link, Cable)
                else Cable(bandwidth_bytes_per_s=link.bandwidth_bytes_per_s, latency_s=link.latency_s)
            )
            for end in (first, second):
                if end not in self.nodes:
                    raise ValueError(f"a link ends at {end!r}, which does not exist. Name one of the nodes, or add it.")
            if first == second:
                raise ValueError(f"a link joins {first!r} to itself; join machines of a group by a switch")
            cables.append((first, second, cable))
            ways = [(first, second)] if cable.is_one_way else [(first, second), (second, first)]
            arcs = self._arcs[first].setdefault(second, {})
            if any(way in arcs for way in ways):
                raise ValueError(f"the link {first!r} - {second!r} stands twice; say how many there are by count")
            arcs.update(dict.fromkeys(ways, cable))
            self._arcs[second][first] = arcs
        self.links = tuple(cables)
        if not self.machine_groups:
            raise ValueError("there is no machine")
        self._check_cards()
        self._check_ways()

    def _check_cards(self) -> None:
        """Refuse links of a machine group that its cards cannot be dealt over evenly."""
        for group in self.machine_groups:
            open_cards, num_open = self._open_cards(group)
            if open_cards < 0:
                needed = group.num_nics - open_cards
                raise ValueError(
                    f"{many(group.num_nics, 'network card')} of {group.name!r} cannot hold {many(needed, 'cable')}; "
                    f"write nics: {needed}, or fewer by count"
                )
            if num_open and group.num_nics > 1 and (open_cards < num_open or open_cards % num_open):
                raise ValueError(
                    f"{group.num_nics} network cards of {group.name!r} cannot be dealt evenly over its "
                    f"{many(num_open, 'link')} that say no count; write the cards of each link by count, or change nics"
                )

    def _check_ways(self) -> None:
        """Refuse machines that cannot reach each other, there and back."""
        first, *others = self.machine_groups
        reached = [self._reached(first.name, is_back=is_back) for is_back in (False, True)]
        for group in others:
            if not any(group.name in found for found in reached):
                raise ValueError(f"machines {group.name!r} are not connected to {first.name!r}; add a link")
            for found, (start, end) in zip(reached, ((first, group), (group, first)), strict=True):
                if group.name not in found:
                    raise ValueError(
                        f"no way leads from machines {start.name!r} to {end.name!r}: links are one-way, or end at a "
                        f"group of several machines, which forwards nothing. Add a link, or a switch"
                    )
        for group in self.machine_groups:
            near = self._arcs[group.name]
            if group.count == 1 or any(self.forwards(name) and len(arcs) > 1 for name, arcs in near.items()):
                continue
            if group.name not in self._reached(group.name, is_back=False):
                why = ": its links are one-way" if any(len(arcs) == 1 for arcs in near.values()) else ""
                mend = "add one back" if why else "add a link to a switch" if near else "add a link"
                raise ValueError(f"the {group.count} machines {group.name!r} have no network between them{why}; {mend}")

    def _reached(self, start: str, *, is_back: bool) -> set[str]:
        """Return the nodes that a machine of a group reaches, or that reach it: its own group if another of it can."""
        found: set[str] = set()
        places = [start]
        while places:
            place = places.pop()
            for near, arcs in self._arcs[place].items():
                way = (near, place) if is_back else (place, near)
                if way in arcs and near not in found:
                    found.add(near)
                    if self.forwards(near):
                        places.append(near)
        return found

    @property
    def words(self) -> str:
        """Its name, or its machines where nobody gave it one."""
        if self.name != _UNNAMED:
            return self.name
        groups = self.machine_groups
        if len(groups) > _MOST_NAMED:
            return f"{self.num_devices:,} devices in {many(len(groups), 'group')} of machines"
        return joined([f"{group.count:,} x {group.devices_per_machine} {group.device.name}" for group in groups])

    def __repr__(self) -> str:
        """Return its machines, with its name where it has one."""
        return f"<Cluster {self.name!r}: {self.num_devices:,} devices>"

    def with_names(self, block: T, *, is_name: bool = False) -> T:
        """Return a configuration's block, or what a pin says, with the groups of machines by their own names.

        Parameters
        ----------
        is_name
            Whether the block is such a name, a list of them, or a mapping by them.
        """
        found: object = block
        if not self._names:
            return block
        if isinstance(block, Mapping):
            found = {
                self._names.get(key, key) if is_name else key: self.with_names(value, is_name=key in _OF_GROUPS)
                for key, value in block.items()
            }
        elif isinstance(block, list):
            found = [self.with_names(one, is_name=is_name) for one in block]
        elif is_name and isinstance(block, str):
            found = self._names.get(block, block)
        return cast("T", found)

    @cached_property
    def _names(self) -> Mapping[str, str]:
        """The names of the groups that have aliases, by these."""
        groups = self.machine_groups
        return {group.alias: group.name for group in groups if group.alias and group.alias not in self.nodes}

    def training_groups(self, device: str | None = None) -> list[MachineGroup]:
        """Return the groups whose devices may train: of one type, if named, and no CPUs beside accelerators."""
        groups = [group for group in self.machine_groups if device in (None, group.device.name)]
        has_accelerator = any(group.device.kind != "cpu" for group in groups)
        return [group for group in groups if not (has_accelerator and group.device.kind == "cpu")]

    def of_device(self, name: str) -> "Cluster":
        """Return the same network with the machines of one device type only."""
        return self.of_groups({group.name for group in self.machine_groups if group.device.name == name})

    def of_groups(self, groups: Collection[str]) -> "Cluster":
        """Return the same network with some of the machine groups only."""
        kept = [node for node in self.nodes.values() if isinstance(node, Switch) or node.name in groups]
        names = {node.name for node in kept}
        links = [(one, other, cable) for one, other, cable in self.links if {one, other} <= names]
        return Cluster(self.name, kept, links, source=self.source)

    def of_groups_is_connected(self, groups: Collection[str]) -> bool:
        """Whether some of the machine groups still reach each other."""
        try:
            self.of_groups(groups)
        except ValueError:
            return False
        return True

    def forwards(self, name: str) -> bool:
        """Whether a node hands on what is for others: a switch, or a single machine."""
        node = self.nodes[name]
        return isinstance(node, Switch) or node.count == 1

    @cached_property
    def reduces(self) -> bool:
        """Whether all switches add up what passes, so that an all-reduce may be done in the network."""
        switches = [node for node in self.nodes.values() if isinstance(node, Switch)]
        return bool(switches) and all(switch.reduces for switch in switches)

    def arcs(self) -> Iterator[tuple[str, str, Cable]]:
        """Yield every direction of every link."""
        for first, second, cable in self.links:
            yield first, second, cable
            if not cable.is_one_way:
                yield second, first, cable

    def num_cables(self, first: str, second: str) -> int:
        """Return how many equal cables lead from one node to the other; from or to a machine group: of each machine."""
        cable = self._arcs[first][second][first, second]
        if cable.count is not None:
            return cable.count
        found = [
            self._cards_of_link[node.name]
            for end in (first, second)
            if isinstance(node := self.nodes[end], MachineGroup)
        ]
        return min(found, default=1)

    @cached_property
    def _cards_of_link(self) -> dict[str, int]:
        """Of each group: how many cards of a machine each link has that does not say."""
        found = {}
        for group in self.machine_groups:
            open_cards, num_open = self._open_cards(group)
            found[group.name] = max(1, open_cards // num_open) if num_open else 1
        return found

    def _open_cards(self, group: MachineGroup) -> tuple[int, int]:
        """Return a machine's cards that no link claims by its count, and how many links say none."""
        edges = [arcs.values() for arcs in self._arcs[group.name].values()]
        cards = [cables for cables in edges if not any(cable.is_scale_up for cable in cables)]
        claimed = sum(max(cable.count or 0 for cable in cables) for cables in cards)
        return group.num_nics - claimed, sum(any(cable.count is None for cable in cables) for cables in cards)

    def own_link(self, name: str) -> Link:
        """Return what a machine of a group sends by those of its equal cards that are fastest together, and their hop.

        Infinite where the group has no link.
        """
        together: dict[float, float] = {}
        latency_s: dict[float, float] = {}
        for arcs in self._arcs[name].values():
            rate, link = min(
                ((cable.bandwidth_bytes_per_s * self.num_cables(*way), cable) for way, cable in arcs.items()),
                key=lambda pair: pair[0],
            )
            card = link.bandwidth_bytes_per_s
            together[card] = together.get(card, 0.0) + rate
            latency_s[card] = max(latency_s.get(card, 0.0), link.latency_s)
        if not together:
            return Link(bandwidth_bytes_per_s=float("inf"))
        best = max(together, key=lambda rate: (together[rate], rate))
        return Link(bandwidth_bytes_per_s=together[best], latency_s=latency_s[best])

    def idealised(self) -> "Cluster":
        """Return as many machines, each with the best of every figure that any of them has.

        No set of machines does better.
        """
        groups = self.machine_groups
        links = [cable for _, _, cable in self.links]
        insides = [group.inside for group in groups if group.inside is not None]
        stores = [group.storage for group in groups]
        best = MachineGroup(
            name="ideal",
            count=self.num_machines,
            device=groups[0].device,
            devices_per_machine=max(group.devices_per_machine for group in groups),
            inside=_best_link(insides) if insides else None,
            num_nics=max(group.num_nics for group in groups),
            storage=None
            if None in stores
            else max(filter(None, stores), key=lambda store: store.bandwidth_bytes_per_s),
            host_link_bytes_per_s=max(group.host_link_bytes_per_s for group in groups),
            decode_samples_per_s=max(group.decode_samples_per_s for group in groups),
        )
        if any(store is not None and not store.is_shared for store in stores) and best.storage is not None:
            best = replace(best, storage=replace(best.storage, is_shared=False))
        ends = []
        if links:
            link, together = _best_link(links), max(self.own_link(group.name).bandwidth_bytes_per_s for group in groups)
            rate = max(link.bandwidth_bytes_per_s, together / best.num_nics)
            ends = [("ideal", "switch", replace(link, bandwidth_bytes_per_s=rate))]
        return Cluster(self.name, [best, Switch(name="switch")], ends, source=self.source)

    @cached_property
    def has_equal_machines(self) -> bool:
        """Whether all machines are alike, but for the links between them."""
        alike = [replace(group, name="", count=1) for group in self.machine_groups]
        return all(group == alike[0] for group in alike)

    @cached_property
    def is_uniform(self) -> bool:
        """Whether any set of machines is as good as any other of its size.

        Equal ones with equal links to one switch.
        """
        links = {_slowest(arcs) for near in self._arcs.values() for arcs in near.values()}
        num_switches = sum(isinstance(node, Switch) for node in self.nodes.values())
        return len(links) <= 1 and num_switches <= 1 and self.has_equal_machines

    @cached_property
    def graph(self) -> "nx.Graph[str]":
        """The same as a networkx graph, frozen."""
        import networkx as nx  # noqa: PLC0415 - takes a while

        graph: nx.Graph[str] = nx.Graph(name=self.name)
        graph.add_nodes_from((name, {"node": node}) for name, node in self.nodes.items())
        for first, second, _ in self.links:
            arcs = self._arcs[first][second]
            graph.add_edge(first, second, arcs=arcs, link=_slowest(arcs))
        nx.freeze(graph)
        return graph

    @cached_property
    def machine_groups(self) -> tuple[MachineGroup, ...]:
        """The groups, in the order given."""
        return tuple(node for node in self.nodes.values() if isinstance(node, MachineGroup))

    @cached_property
    def num_machines(self) -> int:
        """Machines in all groups."""
        return sum(group.count for group in self.machine_groups)

    @cached_property
    def num_devices(self) -> int:
        """Devices in all machines."""
        return sum(group.count * group.devices_per_machine for group in self.machine_groups)


def _slowest(arcs: Mapping[tuple[str, str], Cable]) -> Cable:
    """Return the slower one of the cables that lead there and back."""
    return min(arcs.values(), key=lambda one: one.bandwidth_bytes_per_s)


def _best_link(links: Sequence[Link]) -> Link:
    """Return a link as wide and as quick as the best of ``links``."""
    return Link(
        bandwidth_bytes_per_s=max(link.bandwidth_bytes_per_s for link in links),
        latency_s=min(link.latency_s for link in links),
    )
