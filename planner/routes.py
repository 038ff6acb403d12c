"""The routes of a cluster: over which links machines reach each other, and what each link carries.

**Routes.** Traffic takes the shortest paths, counted in links, and all of them (equal-cost multi-path; C. Hopps, RFC
2992; P. Lapukhov et al., RFC 7938, section 3.3): a switch deals it evenly over the cables that lead nearer, a machine
over those of its equal cards that are fastest together (NCCL leaves slower ones idle). Switches forward, and so do
single machines that are cabled to each other; a group of several equal machines does not. Links are full-duplex.

**Loads.** What all transfers of a step put on a direction of a link, in units of what one machine sends, bounds the
rate of all of them: the least of capacity over load. Own links of a group of several machines count for each machine.

- *Ring* over the first n machines: every machine sends to the next one (:meth:`Routes.ring`).
- *Two binary trees* over them, each for half of the bytes, up and down (P. Sanders, J. Speck, J. L. Traeff, Parallel
  Computing 35(12), 2009): each machine sends and receives twice the buffer, a link between switches perhaps less
  (:meth:`Routes.tree_bytes_per_s`).
- *Units*: machines below one switch, switches below one pod, and so on, each sending to the next one at the same time
  (:meth:`Routes.units`).

Leaves out: packets, congestion that hashing of few flows makes, adaptive routing. The best routing there could be, by a
linear programme, is the referee: ``tests/referee/flows.py``.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise, product
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Cable, Cluster, Link, MachineGroup
from planner.cost import Floats
from planner.frozen import frozen

_Ints = NDArray[np.int64]

_MOST_PAIRS = 64  # groups of machines of which all pairs are routed; of more, a ring and its chords
_MOST_ENDS = 512  # that are looked at from one of them
_SINK = -1  # the end of a path: the node that it starts from may be its end, too


@frozen(eq=False)
class Hop:
    """The paths from a machine of one group to a machine of another, or to another one of its own."""

    num_links: int  # on each of the paths
    own_bytes_per_s: float  # what the links of groups of several machines carry, which each machine has to itself
    # arcs, shares: directions of links, and which part of the transfer each of them carries
    arcs: _Ints
    shares: Floats
    latency_s: float  # the slower end, and all links between switches; of the slowest path


@frozen
class Unit:
    """How units of one level are joined: machines by switches, those by pods."""

    num_machines: int  # of one unit of this level
    # what each machine sends, while all send to the next unit of the level below within their own one
    machine_bytes_per_s: float
    # what a unit below sends between switches while no other does; infinite on one switch, where cards alone bind
    alone_bytes_per_s: float
    latency_s: float  # of one hop


@lru_cache(maxsize=64)  # a question has a few clusters, a sweep as many as it has questions
def routes_of(cluster: Cluster) -> "Routes":
    """Return the routes of a cluster, which are found once.

    Parameters
    ----------
    cluster
        Machines and their network.
    """
    return Routes(cluster)


class Routes:
    """Routes and loads of a cluster; a hop is routed when it is first asked for."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        names = list(cluster.nodes)
        index = {name: place for place, name in enumerate(names)}
        groups = {index[group.name]: group for group in cluster.machine_groups}
        self._group_at = groups
        self._places = {group.name: place for place, group in groups.items()}
        self._forwards = [place not in groups or groups[place].count == 1 for place in range(len(names))]
        self._out: list[list[int]] = [[] for _ in names]
        self._in: list[list[int]] = [[] for _ in names]
        self._ends: list[tuple[int, int]] = []
        self._between: dict[tuple[int, int], list[int]] = {}
        links: list[tuple[Link, float, bool]] = []
        for one, other, link in cluster.arcs():
            ends = index[one], index[other]
            for by_node, place in ((self._out, ends[0]), (self._in, ends[1])):
                by_node[place].append(len(self._ends))
            self._between.setdefault(ends, []).append(len(self._ends))
            self._ends.append(ends)
            is_own = any(end in groups and groups[end].count > 1 for end in ends)
            links.append((link, cluster.num_cables(one, other), is_own))
        self._latency_s = [link.latency_s for link, _, _ in links]
        self._card_bytes_per_s = [link.bandwidth_bytes_per_s for link, _, _ in links]
        self._cables = [cables for _, cables, _ in links]
        self._is_own = np.array([is_own for *_, is_own in links], dtype=bool)
        self._capacity = np.array([link.bandwidth_bytes_per_s * cables for link, cables, _ in links])
        self._shared = np.where(self._is_own, inf, self._capacity)  # what transfers of several machines meet on
        self._is_star = len(cluster.links) == len(groups) == len(names) - 1
        self._hops: dict[tuple[int, int], Hop] = {}
        self._links_to: dict[int, dict[int, int]] = {}  # of an end that all machines of a ring come back to
        self._trees: dict[int, float] = {}

    # -- paths ---------------------------------------------------------------------------------------------------------

    def hop(self, one: str, other: str) -> Hop:
        """Return the paths from a machine of one group to a machine of another; of the same one: to the next machine.

        Parameters
        ----------
        one, other
            Names of groups of machines.
        """
        return self._hop(self._places[one], self._places[other])

    def _hop(self, one: int, other: int) -> Hop:
        if (one, other) not in self._hops:
            self._hops[one, other] = self._routed(one, other)
        return self._hops[one, other]

    def _routed(self, one: int, other: int) -> Hop:
        """Return the flow of one transfer over all its shortest paths."""
        layers = self._nearer(one, other)
        flow, late_s, shares, between = {one: 1.0}, {one: 0.0}, dict[int, float](), len(layers) - 1
        ends_s = 0.0
        for depth, arcs_of in enumerate(layers):
            below: dict[int, float] = {}
            later_s: dict[int, float] = {}
            for place, part in flow.items():
                arcs = arcs_of[place]
                if depth == 0:
                    arcs = self._fastest(arcs)
                cables = sum(self._cables[arc] for arc in arcs)
                for arc in arcs:
                    end = self._ends[arc][1] if depth < between else _SINK
                    share = part * self._cables[arc] / cables
                    shares[arc] = shares.get(arc, 0.0) + share
                    below[end] = below.get(end, 0.0) + share
                    is_end = depth in (0, between)
                    ends_s = max(ends_s, self._latency_s[arc]) if is_end else ends_s
                    way_s = late_s[place] + (0.0 if is_end else self._latency_s[arc])
                    later_s[end] = max(later_s.get(end, 0.0), way_s)
            flow, late_s = below, later_s
        found = np.array(sorted(shares), dtype=np.int64)
        parts = np.array([shares[arc] for arc in found.tolist()])
        rates = self._capacity[found] / parts
        return Hop(
            num_links=len(layers),
            own_bytes_per_s=float(rates[self._is_own[found]].min(initial=inf)),
            arcs=found,
            shares=parts,
            latency_s=ends_s + late_s[_SINK],
        )

    def _fastest(self, arcs: list[int]) -> list[int]:
        """Return the links of equal cards that are fastest together."""
        together: dict[float, float] = {}
        for arc in arcs:
            rate = self._card_bytes_per_s[arc]
            together[rate] = together.get(rate, 0.0) + rate * self._cables[arc]
        best = max(together, key=lambda rate: (together[rate], rate))
        return [arc for arc in arcs if self._card_bytes_per_s[arc] == best]

    def _nearer(self, one: int, other: int) -> list[dict[int, list[int]]]:
        """Return for each place on a shortest path, link by link, the directions of links that lead nearer.

        Searched from both ends: what lies behind them need not be looked at.
        """
        if (far := self._links_to.get(other)) is not None:
            return self._layers(far, one, other)
        depths: tuple[dict[int, int], dict[int, int]] = ({one: 0}, {_SINK: 0})
        fronts, met = [[one], [_SINK]], list[int]()
        came: tuple[dict[int, list[tuple[int, int]]], dict[int, list[tuple[int, int]]]] = ({}, {})
        while not met:
            ahead = sum(len(self._out[place]) for place in fronts[0])
            back = sum(len(self._in[other if place == _SINK else place]) for place in fronts[1])
            side = int(ahead > back)  # 0: onwards from the start; 1: back from the end: where fewer links leave
            grown: list[int] = []
            for place in fronts[side]:
                depth = depths[side][place] + 1
                for near, arc in self._neighbours(place, one, other, is_ahead=not side):
                    if near not in depths[side]:
                        depths[side][near] = depth
                        grown.append(near)
                    if depths[side][near] == depth:
                        came[side].setdefault(near, []).append((place, arc))
            if not grown:
                raise ValueError("no path leads from one machine to another; a cluster refuses such a network")
            fronts[side] = grown
            met = [place for place in grown if place in depths[1 - side]]
        layers: list[dict[int, list[int]]] = []
        places = met
        while places != [one]:
            arcs_of: dict[int, list[int]] = {}
            for before, arc in (way for place in places for way in came[0][place]):
                arcs_of.setdefault(before, []).append(arc)
            layers.insert(0, arcs_of)
            places = list(arcs_of)
        places = met
        while places != [_SINK]:
            layers.append({place: [arc for _, arc in came[1][place]] for place in places})
            places = list(dict.fromkeys(after for place in places for after, _ in came[1][place]))
        return layers

    def _counted_to(self, other: int) -> dict[int, int]:
        """Return how many links lie between each place that reaches a group of machines and one of its machines."""
        far, front = {_SINK: 0}, [_SINK]
        while front:
            reached, front = front, []
            for place in reached:
                for arc in self._in[other if place == _SINK else place]:
                    end = self._ends[arc][0]
                    if end not in far:
                        far[end] = far[place] + 1
                        front += [end] if self._forwards[end] and end != other else []
        return far

    def _layers(self, far: Mapping[int, int], one: int, other: int) -> list[dict[int, list[int]]]:
        """Return the same as ``_nearer``, by the links that are left from each place."""
        layers, places = list[dict[int, list[int]]](), [one]
        while places != [_SINK]:
            nearer: dict[int, None] = {}
            arcs_of: dict[int, list[int]] = {}
            for place in places:
                if far[place] == 1:  # of a switch's links to all its machines only those to this one are looked at
                    arcs_of[place] = self._between[place, other]
                    nearer[_SINK] = None
                    continue
                for end, arc in self._neighbours(place, one, other, is_ahead=True):
                    if far.get(end, inf) == far[place] - 1:
                        arcs_of.setdefault(place, []).append(arc)
                        nearer[end] = None
            layers.append(arcs_of)
            places = list(nearer)
        return layers

    def _neighbours(self, place: int, one: int, other: int, *, is_ahead: bool) -> Iterator[tuple[int, int]]:
        """Yield the places that a link leads to, or comes from, and the direction of the link."""
        if is_ahead:
            for arc in self._out[place]:
                end = self._ends[arc][1]
                if end == other:
                    yield _SINK, arc
                elif self._forwards[end] and end != one:
                    yield end, arc
        else:
            for arc in self._in[other if place == _SINK else place]:
                end = self._ends[arc][0]
                if end == one or (self._forwards[end] and end != other):
                    yield end, arc

    # -- rings and trees over the first machines -----------------------------------------------------------------------

    @cached_property
    def order(self) -> tuple[MachineGroup, ...]:
        """The groups in the order of a ring: depth first through a widest spanning tree, or as given if that is wider.

        On a tree depth-first order crosses every link once in each direction, which no order can better.
        """
        given = list(self._group_at)
        places = [self._places[name] for name in self._depth_first()] if len(given) > 1 else given
        if given != places and self.cluster.graph.number_of_edges() >= len(self.cluster.nodes):
            first, second = (self._ring_of(order)[-1] for order in (places, given))
            if (-second.bandwidth_bytes_per_s, second.latency_s) < (-first.bandwidth_bytes_per_s, first.latency_s):
                places = given
        return tuple(self._group_at[place] for place in places)

    def _depth_first(self) -> list[str]:
        """Return the names of the groups, depth first through a widest spanning tree, from the first group on."""
        import networkx as nx  # noqa: PLC0415 - takes a while

        graph = self.cluster.graph
        weighted: nx.Graph[str] = nx.Graph()
        weighted.add_nodes_from(graph)
        weighted.add_weighted_edges_from(
            (one, other, data["link"].bandwidth_bytes_per_s) for one, other, data in graph.edges(data=True)
        )
        position = {name: place for place, name in enumerate(graph)}
        tree: nx.Graph[str] = nx.maximum_spanning_tree(weighted)
        start = self.cluster.machine_groups[0].name
        found = nx.dfs_preorder_nodes(tree, start, sort_neighbors=lambda names: sorted(names, key=position.__getitem__))
        return [name for name in found if name in self._places]

    def ring(self, num_machines: int) -> Link:
        """Return what a ring over the first machines carries, and its longest hop.

        Parameters
        ----------
        num_machines
            Taken group by group, in :attr:`order`; infinitely fast for one.
        """
        group, used = self._taken(num_machines)
        return self._rings[2 * group + (used > 1)]

    def widest_ring(self, num_machines: int) -> Link:
        """Return the best of the rings over so many machines or more: what a bound may count with.

        Parameters
        ----------
        num_machines
            At least so many.
        """
        group, used = self._taken(num_machines)
        return self._widest_from[2 * group + (used > 1)]

    @cached_property
    def _widest_from(self) -> list[Link]:
        """Return, for each of ``_rings``, the best figures of it and of all behind it."""
        widest = accumulate(
            reversed(self._rings),
            lambda best, ring: Link(
                bandwidth_bytes_per_s=max(best.bandwidth_bytes_per_s, ring.bandwidth_bytes_per_s),
                latency_s=min(best.latency_s, ring.latency_s),
            ),
        )
        return list(widest)[::-1]

    def _taken(self, num_machines: int) -> tuple[int, int]:
        """Return the last group that the first machines are of, and how many of its own are taken."""
        place = min(bisect_left(self._machines_up_to, num_machines), len(self.order) - 1)
        count = self.order[place].count
        return place, min(count, num_machines - (self._machines_up_to[place] - count))

    @cached_property
    def _machines_up_to(self) -> list[int]:
        """Return how many machines there are up to each group in :attr:`order`, itself included."""
        return list(accumulate(group.count for group in self.order))

    @cached_property
    def _rings(self) -> list[Link]:
        """Of each number of groups: the ring with one machine of the last group, and with several."""
        return self._ring_of([self._places[group.name] for group in self.order])

    def _ring_of(self, places: list[int]) -> list[Link]:
        """Return the rings over the first groups in an order, see ``_rings``."""
        load, busiest, own, late_s = np.zeros(len(self._capacity)), 0.0, inf, 0.0
        rings: list[Link] = []

        def closed(back: Hop | None) -> Link:
            """Return the ring that the way back closes."""
            rate, latency_s = min(own, 1 / busiest if busiest else inf), late_s
            if back is not None:
                left = self._shared[back.arcs] / (load[back.arcs] + back.shares)
                rate, latency_s = min(rate, back.own_bytes_per_s, float(left.min())), max(latency_s, back.latency_s)
            return Link(bandwidth_bytes_per_s=rate, latency_s=latency_s)

        def laid(hop: Hop) -> None:
            nonlocal busiest, own, late_s
            own, late_s = min(own, hop.own_bytes_per_s), max(late_s, hop.latency_s)
            load[hop.arcs] += hop.shares
            busiest = max(busiest, float((load[hop.arcs] / self._shared[hop.arcs]).max()))

        self._links_to.setdefault(places[0], self._counted_to(places[0]))
        for number, place in enumerate(places):
            if number:
                laid(self._hop(places[number - 1], place))
            back = self._hop(place, places[0]) if number else None
            rings.append(closed(back))
            if self._group_at[place].count > 1:
                inside = self._hop(place, place)
                laid(inside)
                rings.append(closed(back))
            else:
                rings.append(rings[-1])
        return rings

    def tree_bytes_per_s(self, num_machines: int) -> float:
        """Return the rate at which two binary trees over the first machines take ``2 D / rate`` for D bytes.

        Parameters
        ----------
        num_machines
            As for :meth:`ring`.

        Notes
        -----
        The first tree is numbered in order, the second one is its mirror image (an even number of machines) or shifted
        by one, so that inner machines of one are leaves of the other. Up and down both trees, half a buffer each.
        """
        if self._is_star:
            return self.own_bytes_per_s(num_machines)
        if num_machines not in self._trees:
            ranks, up = np.arange(num_machines), _parents(num_machines)
            shifted = num_machines - 1 - ranks if num_machines % 2 == 0 else (ranks + 1) % num_machines
            pairs: list[tuple[_Ints, _Ints]] = []
            for names in (ranks, shifted):
                children, parents = names[up >= 0], names[up[up >= 0]]
                pairs += [(children, parents), (parents, children)]
            senders, receivers = (np.concatenate(column) for column in zip(*pairs, strict=True))
            counts = self._counted(senders, receivers)
            own = min([self.own_bytes_per_s(num_machines), *(self._hop(*pair).own_bytes_per_s for pair in counts)])
            between = self._between_bytes_per_s({pair: number / 2 for pair, number in counts.items()})
            self._trees[num_machines] = min(own, 2 * between)
        return self._trees[num_machines]

    def latency_s(self, names: Iterable[str]) -> float:
        """Return the longest hop between machines of some groups; 0 for a single machine.

        Parameters
        ----------
        names
            Of groups of machines.
        """
        places = {self._places[name] for name in names}
        return max((self._hop(*pair).latency_s for pair in self._pairs() if places.issuperset(pair)), default=0.0)

    def own_bytes_per_s(self, num_machines: int) -> float:
        """Return what the slowest of the first machines sends by its own links; no ring or tree over them does better.

        Parameters
        ----------
        num_machines
            As for :meth:`ring`.
        """
        if num_machines == 1:
            return inf
        group, _ = self._taken(num_machines)
        return self._own_of_first[group]

    @cached_property
    def _own_of_first(self) -> list[float]:
        """Return, for each group in :attr:`order`, what the slowest machine up to there sends by its own links."""
        return list(accumulate((self.cluster.own_link(one.name).bandwidth_bytes_per_s for one in self.order), min))

    # -- loads ---------------------------------------------------------------------------------------------------------

    def _counted(self, senders: _Ints, receivers: _Ints) -> Mapping[tuple[int, int], int]:
        """Return how many machines of each group send to machines of each group, by ranks in :attr:`order`."""
        ends = np.array(self._machines_up_to)
        places = np.array([self._places[group.name] for group in self.order])
        one, other = (places[np.searchsorted(ends, ranks, side="right")] for ranks in (senders, receivers))
        pairs, numbers = np.unique(np.stack((one, other)), axis=1, return_counts=True)
        return {(int(a), int(b)): int(number) for a, b, number in zip(*pairs, numbers, strict=True)}

    def _loads(self, counts: Mapping[tuple[int, int], float]) -> Floats:
        """Return what each direction of a link carries of so many transfers between groups."""
        load = np.zeros(len(self._capacity))
        for (one, other), number in counts.items():
            hop = self._hop(one, other)
            load[hop.arcs] += number * hop.shares
        return load

    def _between_bytes_per_s(self, counts: Mapping[tuple[int, int], float]) -> float:
        """Return the rate of each transfer that shared links leave, so many going on at the same time."""
        load = self._loads(counts)
        used = load > 0
        return float((self._shared[used] / load[used]).min(initial=inf))

    def shift_bytes_per_s(self, stride: int, within: int | None = None) -> float:
        """Return what each machine sends while every one sends to the machine ``stride`` further on.

        Parameters
        ----------
        stride
            In machines, in :attr:`order`.
        within
            Machines of a block that the shift comes back in; None: all. A number that divides all of them.
        """
        counts = self._shifted(stride, within or self.cluster.num_machines)
        own = min((self._hop(*pair).own_bytes_per_s for pair in counts), default=inf)
        return min(own, self._between_bytes_per_s(counts))

    def _shifted(self, stride: int, block: int) -> Mapping[tuple[int, int], int]:
        """Return how many machines of each group send to which, each ``stride`` further on within its block."""
        senders = np.arange(self.cluster.num_machines)
        receivers = senders // block * block + (senders % block + stride) % block
        moves = senders != receivers
        return self._counted(senders[moves], receivers[moves])

    @cached_property
    def even_bytes_per_s(self) -> float:
        """What each machine sends while every one sends equally much to all others: an all-to-all.

        The mean of the loads of all shifts; of very many machines, of some that are evenly spread.
        """
        total = self.cluster.num_machines
        if total == 1:
            return inf
        number = min(total - 1, max(_MOST_PAIRS**2 * 2 // len(self.order), 4))
        strides = sorted({1 + round(step * (total - 2) / max(number - 1, 1)) for step in range(number)})
        counts: dict[tuple[int, int], float] = {}
        senders = np.arange(total)
        for stride in strides:
            for pair, senders_of in self._counted(senders, (senders + stride) % total).items():
                counts[pair] = counts.get(pair, 0.0) + senders_of / len(strides)
        machines = np.ones(len(self._capacity))
        for place, group in self._group_at.items():  # machines of a group send alike, each over links of its own
            for arc in (*self._out[place], *self._in[place]):
                machines[arc] = group.count if self._is_own[arc] else 1
        load = self._loads(counts) / machines
        used = load > 0
        return float((self._capacity[used] / load[used]).min(initial=inf))

    # -- what a network comes to ---------------------------------------------------------------------------------------

    @cached_property
    def units(self) -> tuple[Unit, ...] | None:
        """Levels of equal units, from the inside outwards: fat trees of any height; None where there are none.

        Two machines are of one unit of a level where they are no further apart than it allows. Those of a torus, a
        dragonfly or a ring of switches overlap, and are no units.
        """
        places = [self._places[group.name] for group in self.order]
        counts = [group.count for group in self.order]
        own = [self._distance(place, place) for place, count in zip(places, counts, strict=True) if count > 1]
        far = [self._distance(one, other) for one, other in pairwise(places)]
        levels: list[Unit] = []
        inner = 1
        for reach in sorted({*far, *own}):
            starts = [0, *(place + 1 for place, distance in enumerate(far) if distance > reach)]
            bounds = list(pairwise([*starts, len(places)]))
            size = sum(counts[: bounds[0][1]])
            is_equal = all(sum(counts[first:last]) == size for first, last in bounds) and size % inner == 0
            if not is_equal or max(own, default=reach) > reach or not self._are_units(places, bounds, reach):
                return None
            if size > inner:
                levels.append(self._unit(inner, size))
                inner = size
        return tuple(levels)

    def _distance(self, one: int, other: int) -> tuple[int, float]:
        """Return how far apart machines are: more links are further, and slower cards of their own."""
        hop = self._hop(one, other)
        return hop.num_links, -hop.own_bytes_per_s

    def _are_units(self, places: list[int], bounds: list[tuple[int, int]], reach: tuple[int, float]) -> bool:
        """Whether machines of the same unit, and no others, are so near.

        Of very many groups of machines those from three of them to some hundred, evenly spread, are looked at.
        """
        unit_of = np.repeat(np.arange(len(bounds)), [last - first for first, last in bounds]).tolist()
        number = len(places)
        ends = range(number) if number <= _MOST_PAIRS else (0, number // 2, number - 1)
        step = -(-number // _MOST_ENDS)
        return all(
            (self._distance(places[one], places[other]) <= reach) == (unit_of[one] == unit_of[other])
            for one, other in product(ends, range(0, number, step))
            if one != other
        )

    def _unit(self, inner: int, size: int) -> Unit:
        """Return the level whose units hold ``size`` machines, in units of ``inner`` machines each."""
        hops = [self._hop(*pair) for pair in self._shifted(inner, size)]
        alone = [float((self._shared[hop.arcs] / hop.shares).min(initial=inf)) for hop in hops]
        return Unit(
            num_machines=size,
            machine_bytes_per_s=self.shift_bytes_per_s(inner, size),
            alone_bytes_per_s=min(alone),
            latency_s=max(hop.latency_s for hop in hops),
        )

    @cached_property
    def idle_links(self) -> tuple[tuple[str, str, Cable], ...]:
        """Links that no path between two machines takes; of very many groups of machines none is named."""
        if len(self._group_at) > _MOST_PAIRS:
            return ()
        names = list(self.cluster.nodes)
        used = {
            frozenset(names[end] for end in self._ends[arc])
            for pair in self._pairs()
            for arc in self._hop(*pair).arcs.tolist()
        }
        return tuple(link for link in self.cluster.links if frozenset(link[:2]) not in used)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Yield all pairs of groups whose machines may send to each other."""
        for one, other in product(self._group_at, repeat=2):
            if one != other or self._group_at[one].count > 1:
                yield one, other

    @cached_property
    def is_non_blocking(self) -> bool:
        """Whether no link between switches binds, whatever machines send to whom: their own links bind before it.

        Of each direction of a link the greatest load is counted that machines, which send and receive no faster than
        their own links, can put on it. Exact enough to prove; of very many groups of machines only levels are proven.
        """
        own = {
            place: self.cluster.own_link(group.name).bandwidth_bytes_per_s for place, group in self._group_at.items()
        }
        if self._is_star:
            return True
        if len(self._group_at) > _MOST_PAIRS:  # where there are levels, as much leaves every unit as its machines send
            least = max(own.values()) * (1 - 1e-9)
            return self.units is not None and all(unit.machine_bytes_per_s >= least for unit in self.units)
        if any(self._hop(one, other).own_bytes_per_s < min(own[one], own[other]) for one, other in self._pairs()):
            return False  # cards that do not lead to all machines
        rates = {place: group.count * own[place] for place, group in self._group_at.items()}
        if not all(map(isfinite, rates.values())):
            return False
        row = {place: index for index, place in enumerate(rates)}
        sent, received = np.zeros((2, len(rates), len(self._capacity)))
        for one, other in self._pairs():
            hop = self._hop(one, other)
            for worst in (sent[row[one]], received[row[other]]):
                worst[hop.arcs] = np.maximum(worst[hop.arcs], hop.shares)
        each = np.array(list(rates.values()))
        load = np.minimum(each @ sent, each @ received)
        return bool((load <= self._shared * (1 + 1e-9)).all())


def _parents(number: int) -> _Ints:
    """Return the parent of each machine of a binary tree that is numbered in order; -1 of its root, machine 0."""
    ranks = np.arange(number)
    lowest = ranks & -ranks
    up = (ranks ^ lowest) | (lowest << 1)
    up = np.where(up < number, up, ranks ^ lowest)
    return np.where(ranks > 0, up, -1)
