"""Networks by name: fat trees, rails, tori, dragonflies and NVLink domains, drawn round machines that are listed.

Each is a graph of groups of machines, switches and links such as ``nodes`` and ``links`` could draw, in which machines
fill one leaf switch after the other, in the order given. What a topology leaves open is as in the papers and guides:

- *fat tree*: M. Al-Fares, A. Loukissas, A. Vahdat, SIGCOMM 2008, doi:10.1145/1402958.1402967
- *rail-optimised*: NVIDIA DGX SuperPOD reference architecture (RA-11333-001), compute fabric
- *torus*: N. P. Jouppi et al., ISCA 2023, doi:10.1145/3579371.3589350; here the machines of a node hang on a router
- *dragonfly*: J. Kim, W. J. Dally, S. Scott, D. Abts, ISCA 2008, doi:10.1109/ISCA.2008.19
- *NVLink domain*: NVIDIA GB200 NVL72, several machines on one NVLink switch beside the network
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import ceil, prod

from planner.cluster import Cable, Link, MachineGroup, Switch
from planner.question.blocks import MOST_NODES, TopologySpec
from planner.words import many

_NEAR = 0.01  # as a share: how near a drawn oversubscription is to the one that is asked
SWITCHES = ("leaf", "pod", "core", "rail", "node", "router", "domain")  # what their names begin with
_RADIX = 64  # ports of a switch, where nothing says how many there are

Cables = list[tuple[str, str, Cable]]


@dataclass(slots=True)
class Drawn:
    """A graph while it is drawn."""

    nodes: list[MachineGroup | Switch]
    cables: Cables
    card: Link  # the link of a network card, as every machine has it
    reduces: bool  # whether switches add up what passes

    def switch(self, name: str) -> str:
        """Add a switch, and return its name."""
        if len(self.nodes) >= MOST_NODES:
            raise ValueError(f"it has more than {MOST_NODES} switches and groups of machines. Draw larger leaves.")
        self.nodes.append(Switch(name=name, reduces=self.reduces))
        return name

    def join(self, one: str, other: str, link: Link, count: int = 1, *, is_scale_up: bool = False) -> None:
        """Add a link of ``count`` cables."""
        cable = Cable(
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
            latency_s=link.latency_s,
            count=count,
            is_scale_up=is_scale_up,
        )
        self.cables.append((one, other, cable))

    def leaves(self, groups: Sequence[MachineGroup], size: int) -> Iterator[list[MachineGroup]]:
        """Yield groups of machines, added to the graph, ``size`` machines at a time; the last ones may be fewer."""
        leaf: list[MachineGroup] = []
        for group in groups:
            left, parts = group.count, 0
            while left:
                taken = min(left, size - sum(one.count for one in leaf))
                part = group
                if taken < group.count:
                    alias = group.alias and f"{group.alias}-{parts}"
                    part = replace(group, name=f"{group.name}-{parts}", alias=alias, count=taken)
                self.nodes.append(part)
                leaf.append(part)
                left, parts = left - taken, parts + 1
                if sum(one.count for one in leaf) == size:
                    yield leaf
                    leaf = []
        if leaf:
            yield leaf

    def above(self, lower: Sequence[str], name: str, uplinks: int, link: Link, number: int | None) -> list[str]:
        """Return switches above all of some switches, each of which deals ``uplinks`` cables over them evenly."""
        if number is None:
            most = max(1, _RADIX // len(lower))  # cables from each lower switch that one of them has ports for
            each = next(count for count in range(min(most, uplinks), 0, -1) if uplinks % count == 0)
            number = uplinks // each
        elif uplinks % number:
            raise ValueError(
                f"{uplinks} cables upwards from each switch cannot be dealt evenly over {number} switches. Write a "
                f"number of spines that divides them, or another leaf, oversubscription or bandwidth."
            )
        upper = [self.switch(f"{name}-{index}") for index in range(number)]
        for one, other in product(lower, upper):
            self.join(one, other, link, uplinks // number)
        return upper


def drawn(
    spec: TopologySpec, groups: Sequence[MachineGroup], links: Sequence[Link]
) -> tuple[list[MachineGroup | Switch], Cables]:
    """Return the nodes and links of a topology.

    Parameters
    ----------
    groups, links
        The machines that are listed, and the link of each group's network cards.

    Raises
    ------
    ValueError
        If the machines do not fit it.
    """
    if len(set(links)) > 1 or len({group.num_nics for group in groups}) > 1:
        raise ValueError("all machines of a topology need the same network and nics. Draw others by nodes and links.")
    graph = Drawn(nodes=[], cables=[], card=links[0], reduces=spec.reduces)
    draw = {"fat-tree": _fat_tree, "rail-optimised": _rails, "torus": _torus, "dragonfly": _dragonfly}
    draw.get(spec.kind, _domains)(spec, graph, groups)
    return graph.nodes, graph.cables


def _between(spec: TopologySpec, card: Link) -> Link:
    """Return a cable between switches: as said, or as a network card has it."""
    return Link(
        bandwidth_bytes_per_s=spec.bandwidth or card.bandwidth_bytes_per_s,
        latency_s=card.latency_s if spec.latency is None else spec.latency,
    )


def _uplinks(ports: float, downward: float, upward: float, oversubscription: float) -> int:
    """Return how many cables a switch needs upwards, for so many ports downwards of other rates."""
    needed = ports * downward / (oversubscription * upward)
    if needed > MOST_NODES:
        raise ValueError(f"it needs {needed:,.0f} cables upwards from each switch. Is bandwidth right?")
    count = max(1, ceil(needed * (1 - 1e-12)))
    drawn_as = ports * downward / (count * upward)
    if oversubscription > 1 and abs(drawn_as / oversubscription - 1) > _NEAR:
        raise ValueError(
            f"{many(count, 'cable')} of {upward * 8 / 1e9:.4g} Gbit/s above {ports:,.0f} ports of "
            f"{downward * 8 / 1e9:.4g} Gbit/s make an oversubscription of {drawn_as:.4g}, not {oversubscription:.4g}. "
            f"Write oversubscription: {drawn_as:.4g}, or another bandwidth."
        )
    return count


def _refuse_unused(spec: TopologySpec, keys: Sequence[str], why: str) -> None:
    """Refuse what is said of switches that are not there."""
    if given := [key for key in keys if key in spec.model_fields_set and getattr(spec, key) is not None]:
        raise ValueError(f"{why}, so that {' and '.join(given)} would change nothing. Leave it out, or lower leaf.")


def _fat_tree(spec: TopologySpec, graph: Drawn, groups: Sequence[MachineGroup]) -> None:
    """Leaves below spines; with pods, these below cores."""
    card, link, num_nics = graph.card, _between(spec, graph.card), groups[0].num_nics
    size = spec.leaf or max(1, _RADIX // 2 // num_nics)
    leaves: list[str] = []
    for index, leaf in enumerate(graph.leaves(groups, size)):
        leaves.append(graph.switch(f"leaf-{index}"))
        for group in leaf:
            graph.join(group.name, leaves[-1], card, num_nics)
    if len(leaves) == 1:
        _refuse_unused(spec, ("spines", "oversubscription", "pod"), "all machines stand on one leaf switch")
        return
    rate, up = card.bandwidth_bytes_per_s, link.bandwidth_bytes_per_s
    uplinks = _uplinks(size * num_nics, rate, up, spec.oversubscription)
    if spec.pod is not None and spec.pod >= len(leaves):
        _refuse_unused(spec, ("pod", "pod_oversubscription"), f"all {len(leaves)} leaf switches stand in one pod")
    if spec.pod is None:
        graph.above(leaves, "spine", uplinks, link, spec.spines)
        return
    pods = [leaves[first : first + spec.pod] for first in range(0, len(leaves), spec.pod)]
    planes: list[list[str]] = []
    for index, pod in enumerate(pods):
        number = len(planes[0]) if planes else spec.spines
        planes.append(graph.above(pod, f"pod-{index}-spine", uplinks, link, number))
    ports = sum(cable.count or 1 for _, end, cable in graph.cables if end == planes[0][0])
    for index, plane in enumerate(zip(*planes, strict=True)):
        graph.above(list(plane), f"core-{index}", _uplinks(ports, up, up, spec.pod_oversubscription), link, None)


def _rails(spec: TopologySpec, graph: Drawn, groups: Sequence[MachineGroup]) -> None:
    """A switch for the n-th card of every machine of a block; spines join blocks."""
    card, link, num_nics = graph.card, _between(spec, graph.card), groups[0].num_nics
    if num_nics < 2:
        raise ValueError("rails need machines of several network cards. Write nics, or kind: fat-tree.")
    size = spec.leaf or sum(group.count for group in groups)
    rails: list[str] = []
    for block, leaf in enumerate(graph.leaves(groups, size)):
        own = [graph.switch(f"rail-{block}-{index}") for index in range(num_nics)]
        for group, rail in product(leaf, own):
            graph.join(group.name, rail, card)
        rails += own
    if len(rails) == num_nics:
        _refuse_unused(spec, ("spines", "oversubscription"), "all machines stand in one block of rails")
        return
    uplinks = _uplinks(size, card.bandwidth_bytes_per_s, link.bandwidth_bytes_per_s, spec.oversubscription)
    graph.above(rails, "spine", uplinks, link, spec.spines)


def _torus(spec: TopologySpec, graph: Drawn, groups: Sequence[MachineGroup]) -> None:
    """Routers in a grid that closes in every dimension, filled in snake order, so that neighbours follow each other."""
    link, num_nics, total = _between(spec, graph.card), groups[0].num_nics, sum(group.count for group in groups)
    size = spec.leaf or 1
    if prod(spec.dimensions) * size != total:
        each = f" of {size} machines" if size > 1 else ""
        raise ValueError(
            f"a torus of {' x '.join(map(str, spec.dimensions))} nodes{each} has {prod(spec.dimensions) * size} "
            f"machines, and {total} are listed. Mend dimensions, leaf or count."
        )
    places = list(_snake(spec.dimensions))
    names = {place: f"node-{'-'.join(map(str, place))}" for place in places}
    for place, leaf in zip(places, graph.leaves(groups, size), strict=True):
        graph.switch(names[place])
        for group in leaf:
            graph.join(group.name, names[place], graph.card, num_nics)
    for place in places:
        for axis, length in enumerate(spec.dimensions):
            near = (*place[:axis], (place[axis] + 1) % length, *place[axis + 1 :])
            if length > 2 or (length == 2 and place[axis] == 0):
                graph.join(names[place], names[near], link)


def _snake(dimensions: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the places of a grid so that each differs from the one before by one step."""
    if not dimensions:
        yield ()
        return
    for index, rest in enumerate(_snake(dimensions[:-1])):
        last = range(dimensions[-1])
        for place in reversed(last) if index % 2 else last:
            yield (*rest, place)


def _dragonfly(spec: TopologySpec, graph: Drawn, groups: Sequence[MachineGroup]) -> None:
    """Groups of routers that are all joined, and one cable or more between every two groups."""
    link, num_nics = _between(spec, graph.card), groups[0].num_nics
    routers: list[str] = []
    for index, leaf in enumerate(graph.leaves(groups, spec.leaf or 1)):
        routers.append(graph.switch(f"router-{index}"))
        for group in leaf:
            graph.join(group.name, routers[-1], graph.card, num_nics)
    parts = [routers[first : first + spec.routers] for first in range(0, len(routers), spec.routers)]
    for part in parts:
        for one, other in combinations(part, 2):
            graph.join(one, other, link)
    for left, right in combinations(range(len(parts)), 2):  # the k-th other group hangs on the k-th router, in turn
        first, second = parts[left][(right - 1) % len(parts[left])], parts[right][left % len(parts[right])]
        graph.join(first, second, link, spec.cables)


def _domains(spec: TopologySpec, graph: Drawn, groups: Sequence[MachineGroup]) -> None:
    """An NVLink switch for each domain of machines, and the network for all."""
    num_nics = groups[0].num_nics
    for index, leaf in enumerate(list(graph.leaves(groups, spec.size))):
        domain = graph.switch(f"domain-{index}")
        for group in leaf:
            rate = spec.bandwidth or (group.device.scale_up_bytes_per_s or 0.0) * group.devices_per_machine
            if not rate:
                raise ValueError(f"no scale-up link of {group.device.name} is known. Write bandwidth, of one machine.")
            latency_s = group.inside.latency_s if group.inside else 0.0
            link = Link(bandwidth_bytes_per_s=rate, latency_s=latency_s if spec.latency is None else spec.latency)
            graph.join(group.name, domain, link, is_scale_up=True)
    graph.switch("network")
    for group in [node for node in graph.nodes if isinstance(node, MachineGroup)]:
        graph.join(group.name, "network", graph.card, num_nics)
