"""What any routing could get out of a network: maximum concurrent flow, as a linear programme."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
from scipy.optimize import linprog
from scipy.sparse import lil_array

from planner.cluster import Cluster

__all__ = ["best_rate", "shares_of"]

_SINK = "where a transfer ends"  # the group that it starts from may be its end, too


def best_rate(cluster: Cluster, transfers: Mapping[tuple[str, str], float]) -> float:
    """Return the greatest rate at which all transfers, each so many times, fit on the links by the best routing.

    F. Shahrokhi, D. W. Matula, J. ACM 37(2), 1990: flow from each start is kept at every node but its ends, and all
    flows together fit on every direction of a link. Links of a group of machines are taken together: a relaxation.
    """
    arcs = list(cluster.arcs())
    places = {name: place for place, name in enumerate(cluster.graph)}
    nodes = {group.name: group for group in cluster.machine_groups}
    most = []
    for one, other, cable in arcs:
        machines = max(nodes[end].count if end in nodes else 1 for end in (one, other))
        most.append(cable.bandwidth_bytes_per_s * cluster.num_cables(one, other) * machines)
    scale = max(most)  # the solver's tolerances are absolute
    number, size, starts = len(arcs), len(places) + 1, list(dict.fromkeys(start for start, _ in transfers))
    kept = lil_array((len(starts) * size, len(starts) * number + 1))
    together = lil_array((number, kept.shape[1]))
    bounds: list[Any] = []
    for kind, start in enumerate(starts):
        sink = size - 1  # where what comes back to a group, for another machine of it, is taken
        for arc, (one, other, _) in enumerate(arcs):
            column = kind * number + arc
            kept[kind * size + places[one], column] += 1.0
            kept[kind * size + (sink if other == start else places[other]), column] -= 1.0
            together[arc, column] = 1.0
            bounds.append((0, None if one == start or cluster.forwards(one) else 0))  # a group hands nothing on
        for (_, end), times in ((pair, times) for pair, times in transfers.items() if pair[0] == start):
            kept[kind * size + places[start], -1] -= times
            kept[kind * size + (sink if end == start else places[end]), -1] += times
    goal = np.zeros(kept.shape[1])
    goal[-1] = -1.0
    found = linprog(
        goal,
        A_ub=together.toarray(),
        b_ub=[rate / scale for rate in most],
        A_eq=kept.toarray(),
        b_eq=np.zeros(kept.shape[0]),
        bounds=[*bounds, (0.0, None)],
        method="highs",
    )
    assert found.status == 0 and found.x is not None, found.message
    return float(found.x[-1]) * scale


def shares_of(cluster: Cluster, start: str, end: str) -> dict[tuple[str, str], float]:
    """Return what each direction of a link carries of a transfer between machines of two groups.

    All shortest paths are listed; at every place on them the transfer is dealt evenly by cable over what leads on, at
    the start over the equal cards that are fastest together.
    """
    graph: nx.DiGraph[str] = nx.DiGraph()
    for one, other, _ in cluster.arcs():
        if (one == start or (cluster.forwards(one) and one != end)) and (other == end or cluster.forwards(other)):
            graph.add_edge(one, _SINK if other == end else other)
    nearer = {edge for path in nx.all_shortest_paths(graph, start, _SINK) for edge in pairwise(path)}
    rates = {(one, other): cable.bandwidth_bytes_per_s for one, other, cable in cluster.arcs()}
    shares: dict[tuple[str, str], float] = {}

    def walk(place: str, part: float) -> None:
        ways = {(one, end if other == _SINK else other) for one, other in nearer if one == place}
        if place == start:
            together = {
                rates[way]: sum(rates[one] * cluster.num_cables(*one) for one in ways if rates[one] == rates[way])
                for way in ways
            }
            best = max(together, key=lambda rate: (together[rate], rate))
            ways = {way for way in ways if rates[way] == best}
        total = sum(cluster.num_cables(*way) for way in ways)
        for way in ways:
            share = part * cluster.num_cables(*way) / total
            shares[way] = shares.get(way, 0.0) + share
            if way[1] != end:
                walk(way[1], share)

    walk(start, 1.0)
    return shares
