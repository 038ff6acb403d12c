"""The machines: an undirected graph of machine groups, switches and storage, behind a thin typed wrapper.

A node is a *group* of equal machines, however many; its edge to a switch stands for one such link per machine. A link
between two switches is one link. Mixed devices and mixed links are normal.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import networkx as nx

from planner.shown import Shown
from planner.words import joined, many

__all__ = ["TRAINING_DTYPES", "Cluster", "Device", "Link", "MachineGroup", "Storage", "Switch"]

TRAINING_DTYPES = ("fp32", "tf32", "fp16", "bf16")  # what a network may be trained in; devices have peaks of others too

_UNNAMED = "cluster"
_MOST_NAMED = 3  # kinds of machines that stand in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU, or the cores of a CPU that train together.

    Attributes
    ----------
    peak_flop_per_s
        By data type (fp32, tf32, fp16, bf16, fp8, fp4), dense; a multiply-add counts as two.
    num_multiprocessors
        Streaming multiprocessors, or compute units; None where there are none, or they are not known.
    l2_bytes
        Of the cache that all of them share.
    clock_hz
        The boost clock, at which the peaks hold.
    scale_up_devices, scale_up_bytes_per_s
        How many devices the vendor's own links join at most, and the rate of one of them, one direction; None where
        there are no such links.
    matmul_flop_per_s
        What large matrix products alone in bf16 were measured to reach; None where nobody measured.
    process_nm, has_inline_ecc
        The process that it is made in, as it is sold; and whether check bits lie among the data in its memory.
    source
        Where the figures stand.
    """

    name: str
    kind: str = "gpu"
    peak_flop_per_s: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: float = float("inf")
    memory_bandwidth_bytes_per_s: float = float("inf")
    num_multiprocessors: int | None = None
    l2_bytes: float | None = None
    clock_hz: float | None = None
    scale_up_devices: int | None = None
    scale_up_bytes_per_s: float | None = None
    process_nm: float | None = None
    has_inline_ecc: bool = False
    power_w: float | None = None
    matmul_flop_per_s: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction of a full-duplex link; ``latency_s`` is per hop."""

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineGroup:
    """``count`` equal machines.

    Attributes
    ----------
    inside
        Between two devices of one machine; None where there is one device.
    num_nics
        Network cards of a machine, each with the group's link.
    host_link_bytes_per_s
        From host memory to one device (PCIe); infinite where not modelled.
    decode_samples_per_s
        Samples a second that one machine's host decodes; infinite where not modelled.
    """

    name: str
    count: int
    device: Device
    devices_per_machine: int = 1
    inside: Link | None = None
    num_nics: int = 1
    storage: Storage | None = None
    host_link_bytes_per_s: float = float("inf")
    decode_samples_per_s: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A node that only forwards."""

    name: str


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
        graph: nx.Graph[str] = nx.Graph(name=name)
        for node in nodes:
            if node.name in graph:
                raise ValueError(f"node {node.name!r} stands twice; give every node its own name")
            graph.add_node(node.name, node=node)
        for first, second, link in links:
            for end in (first, second):
                if end not in graph:
                    raise ValueError(f"a link ends at {end!r}, which does not exist. Name one of the nodes, or add it.")
            if first == second:
                raise ValueError(f"a link joins {first!r} to itself; join machines of a group by a switch")
            if graph.has_edge(first, second):
                raise ValueError(f"the link {first!r} - {second!r} stands twice; add the bandwidths into one link")
            graph.add_edge(first, second, link=link)
        self._graph = graph
        nx.freeze(graph)
        if not self.machine_groups:
            raise ValueError("there is no machine")
        names = [group.name for group in self.machine_groups]
        component = nx.node_connected_component(graph, names[0])
        for group in self.machine_groups:
            if group.name not in component:
                raise ValueError(f"machines {group.name!r} are not connected to {names[0]!r}; add a link")
            if group.count > 1 and not graph.degree(group.name):
                raise ValueError(f"the {group.count} machines {group.name!r} have no network between them; add a link")

    @property
    def words(self) -> str:
        """Its name, or its machines where nobody gave it one."""
        if self.name != _UNNAMED:
            return self.name
        groups = self.machine_groups
        if len(groups) > _MOST_NAMED:
            return f"{self.num_devices:,} devices in {many(len(groups), 'group')} of machines"
        return joined([f"{group.count:,} x {group.devices_per_machine} {group.device.name}" for group in groups])

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
        kept = [node for node in self._nodes() if isinstance(node, Switch) or node.name in groups]
        names = {node.name for node in kept}
        links = [
            (one, other, data["link"]) for one, other, data in self._graph.edges(data=True) if {one, other} <= names
        ]
        return Cluster(self.name, kept, links, source=self.source)

    def of_groups_is_connected(self, groups: Collection[str]) -> bool:
        """Whether some of the machine groups still reach each other."""
        switches = {node.name for node in self._nodes() if isinstance(node, Switch)}
        part = self._graph.subgraph(switches | set(groups))
        return set(groups) <= nx.node_connected_component(part, next(iter(groups)))

    def idealised(self) -> "Cluster":
        """Return as many machines, each with the best of every figure that any of them has.

        No set of machines does better.
        """
        groups = self.machine_groups
        links = [data["link"] for _, _, data in self._graph.edges(data=True)]
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
        ends = [("ideal", "switch", _best_link(links))] if links else []
        return Cluster(self.name, [best, Switch(name="switch")], ends, source=self.source)

    def _nodes(self) -> list["MachineGroup | Switch"]:
        """Return the data of all nodes."""
        return [self._graph.nodes[name]["node"] for name in self._graph]

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
        links = {data["link"] for _, _, data in self._graph.edges(data=True)}
        num_switches = sum(isinstance(node, Switch) for node in self._nodes())
        return len(links) <= 1 and num_switches <= 1 and self.has_equal_machines

    @property
    def graph(self) -> "nx.Graph[Any]":
        """The networkx graph itself, frozen."""
        return self._graph

    @cached_property
    def machine_groups(self) -> tuple[MachineGroup, ...]:
        """The groups, in the order given."""
        data = (self._graph.nodes[name]["node"] for name in self._graph)
        return tuple(node for node in data if isinstance(node, MachineGroup))

    @cached_property
    def num_machines(self) -> int:
        """Machines in all groups."""
        return sum(group.count for group in self.machine_groups)

    @cached_property
    def num_devices(self) -> int:
        """Devices in all machines."""
        return sum(group.count * group.devices_per_machine for group in self.machine_groups)

    @cached_property
    def _links(self) -> "nx.Graph[Any]":
        """The widest spanning tree: between any two machines it holds a path of the greatest possible bandwidth."""
        weighted: nx.Graph[str] = nx.Graph()
        weighted.add_nodes_from(self._graph)
        for first, second, data in self._graph.edges(data=True):
            weighted.add_edge(first, second, weight=data["link"].bandwidth_bytes_per_s, link=data["link"])
        tree: nx.Graph[str] = nx.maximum_spanning_tree(weighted)
        return tree

    @cached_property
    def idle_links(self) -> tuple[tuple[str, str, Link], ...]:
        """Links that no ring over any machines crosses, and so carry nothing.

        Beside the widest spanning tree, to switches that lead to no machine, or of a group to all but the widest switch
        that its own machines share.
        """
        used = self._links.copy()
        groups = {group.name: group for group in self.machine_groups}
        leaves = [name for name in used if name not in groups and used.degree(name) <= 1]
        while leaves:
            name = leaves.pop()
            near = list(used[name])
            used.remove_node(name)
            leaves += [other for other in near if other not in groups and used.degree(other) == 1]
        own = {self._widest_edge(group) for group in groups.values() if group.count > 1}
        return tuple(
            (first, second, data["link"])
            for first, second, data in self._graph.edges(data=True)
            if not used.has_edge(first, second) and not {(first, second), (second, first)} & own
        )

    @property
    def idle_share(self) -> float:
        """The share of the bandwidth of all links that idles; a group's counts for all its machines and cards."""
        idle = {frozenset(ends) for *ends, _ in self.idle_links}
        groups = {group.name: group.count * group.num_nics for group in self.machine_groups}
        rates = {
            frozenset((first, second)): data["link"].bandwidth_bytes_per_s
            * max(groups.get(first, 1), groups.get(second, 1))
            for first, second, data in self._graph.edges(data=True)
        }
        return sum(rate for ends, rate in rates.items() if ends in idle) / sum(rates.values()) if rates else 0.0

    def _widest_edge(self, group: MachineGroup) -> tuple[str, str]:
        """Return the edge to the widest switch that the machines of a group share."""
        near = self._links[group.name]
        return group.name, max(near, key=lambda name: near[name]["weight"])

    @cached_property
    def ring_groups(self) -> tuple[MachineGroup, ...]:
        """The groups in the order of a ring: depth-first order of the tree, from the first group on."""
        position = {name: index for index, name in enumerate(self._graph)}
        start = self.machine_groups[0].name
        order = nx.dfs_preorder_nodes(
            self._links, start, sort_neighbors=lambda names: sorted(names, key=position.__getitem__)
        )
        nodes = (self._graph.nodes[name]["node"] for name in order)
        return tuple(node for node in nodes if isinstance(node, MachineGroup))

    def ring_link(self, num_machines: int) -> Link:
        """Return the narrowest bandwidth and the longest hop of a ring over the first ``num_machines`` machines.

        A ring in depth-first order of a tree crosses every link once in each direction, which no order can
        better on a tree; on a graph with cycles the ring is laid on the widest spanning tree. A group's own links count
        once for each of
        its network cards. The latency is the longest path between two neighbours on the ring.
        """
        members: list[MachineGroup] = []
        needed = num_machines
        for group in self.ring_groups:
            if needed > 0:
                members.append(group)
                needed -= group.count
        bandwidth, latency = float("inf"), 0.0
        hops = list(zip(members, [*members[1:], members[0]], strict=True))
        hops += [(group, group) for group in members if group.count > 1]
        for one, other in hops:
            if one is other and (one.count == 1 or num_machines == 1):
                continue
            path_bandwidth, path_latency = self._path(one, other)
            bandwidth, latency = min(bandwidth, path_bandwidth), max(latency, path_latency)
        return Link(bandwidth_bytes_per_s=bandwidth, latency_s=latency)

    def _path(self, one: MachineGroup, other: MachineGroup) -> tuple[float, float]:
        """Return bandwidth and latency from a machine of ``one`` to a machine of ``other``."""
        tree = self._links
        if one is other:  # by way of the widest switch they share; the latency of a hop is the link's
            edges = [self._widest_edge(one)]
        else:
            path = nx.shortest_path(tree, one.name, other.name)
            edges = list(pairwise(path))
        cards = {group.name: group.num_nics for group in (one, other)}
        bandwidth, hop_s, between_s = float("inf"), 0.0, 0.0
        for first, second in edges:
            link: Link = tree.edges[first, second]["link"]
            ends = {first, second} & cards.keys()
            parallel = min((cards[name] for name in ends), default=1)
            bandwidth = min(bandwidth, link.bandwidth_bytes_per_s * parallel)
            if ends:
                hop_s = max(hop_s, link.latency_s)
            else:
                between_s += link.latency_s
        return bandwidth, hop_s + between_s


def _best_link(links: Sequence[Link]) -> Link:
    """Return a link as wide and as quick as the best of ``links``."""
    return Link(
        bandwidth_bytes_per_s=max(link.bandwidth_bytes_per_s for link in links),
        latency_s=min(link.latency_s for link in links),
    )
