"""A hierarchical cluster as tiers, and which ranks of a layout lie how far apart.

Tier 0 joins devices (a machine, or a NVLink domain), tier 1 joins units of tier 0 by rails, and so on outwards. Ranks
are numbered from the innermost degree outwards, so that a group of N ranks with stride S holds the devices
``r, r + S, ..., r + (N - 1) S``: what lies inside a tier follows from N, S and the tier's size alone.

Sources: the numbering: D. Narayanan et al., SC21, arXiv 2104.04473, section 3; orders of degrees: Megatron-Core's
``parallel_state``, whose default is tensor, context, data, pipeline from the inside outwards.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from planner.cluster import Cluster, Link, MachineGroup, Switch
from planner.errors import ModelError
from planner.models.layouts import Ints, Layouts

__all__ = ["DEGREES", "ORDERS", "Axes", "Tier", "axes_of", "is_narrowed", "tiers_of"]

DEGREES = ("tensor", "context", "data", "pipeline")
# From the innermost degree outwards; ``Layouts.order`` is an index. Context lies next to data but for order 1, inside.
ORDERS: tuple[tuple[str, ...], ...] = (
    ("tensor", "context", "data", "pipeline"),
    ("tensor", "context", "pipeline", "data"),
    ("tensor", "pipeline", "context", "data"),
    ("context", "data", "tensor", "pipeline"),
    ("pipeline", "tensor", "context", "data"),
)
# [order, degree, other]: whether the other degree lies inside the degree.
_IS_INSIDE = np.array(
    [[[order.index(other) < order.index(degree) for other in DEGREES] for degree in DEGREES] for order in ORDERS]
)

Axes = tuple[tuple[Ints, Ints], ...]  # degree and stride of each degree that a group extends over


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """How units are joined: devices by the innermost tier, and units of one tier by the next.

    Attributes
    ----------
    size
        Units of the tier below that one unit of this tier joins; of the outermost tier it is not asked.
    bandwidth_bytes_per_s
        Of one rail, one direction; inside a machine: what one device sends.
    latency_s
        Of one hop between two units.
    num_rails
        Rails by which one unit of the tier below is joined: a machine's network cards, a leaf switch's uplinks.
    oversubscription
        How many times less all units get together than their rails add up to; 1 for a full fat tree.
    """

    size: int
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    num_rails: int = 1
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        if self.size < 1 or self.num_rails < 1:
            raise ModelError(f"a tier joins 1 unit or more by 1 rail or more, not {self.size} by {self.num_rails}.")
        if not (self.bandwidth_bytes_per_s > 0 and 0 <= self.latency_s < inf):
            raise ModelError(
                f"a tier's bandwidth must be > 0 bytes/s and its latency finite and >= 0 s, not "
                f"{self.bandwidth_bytes_per_s} and {self.latency_s}."
            )
        if not 1 <= self.oversubscription < inf:
            raise ModelError(f"oversubscription must be 1 or more, not {self.oversubscription}.")

    @property
    def unit_bytes_per_s(self) -> float:
        """What one unit of the tier below sends by all its rails, while all others do so too."""
        return self.num_rails * self.bandwidth_bytes_per_s / self.oversubscription


def axes_of(layouts: Layouts) -> Mapping[str, Axes]:
    """Return which ranks exchange what: by kind of group, degree and stride of the degrees that it extends over.

    ``tensor``, ``context``, ``data``, ``pipeline``: of one degree. ``replicas``: all that hold the same dense weights
    (context x data; ZeRO shards over them). ``expert``: the ranks over which a layer's experts are spread, the
    innermost of the replicas. ``expert_replicas``: those that hold the same experts.
    """
    degrees = {name: getattr(layouts, name) for name in DEGREES}
    stride = {name: _stride(name, degrees, layouts.order) for name in DEGREES}
    context, data = degrees["context"], degrees["data"]
    in_context = np.gcd(layouts.expert, context)
    in_data = layouts.expert // in_context
    axes: dict[str, Axes] = {name: ((degrees[name], stride[name]),) for name in DEGREES}
    axes["replicas"] = ((context, stride["context"]), (data, stride["data"]))
    axes["expert"] = ((in_context, stride["context"]), (in_data, stride["data"]))
    axes["expert_replicas"] = (
        (context // in_context, stride["context"] * in_context),
        (np.maximum(data // in_data, 1), stride["data"] * in_data),
    )
    return axes


def _stride(name: str, degrees: Mapping[str, Ints], order: Ints) -> Ints:
    """Return the product of the degrees that lie inside one."""
    row = DEGREES.index(name)
    found = np.ones(1, dtype=np.int64)
    for column, other in enumerate(DEGREES):
        found = found * np.where(_IS_INSIDE[order, row, column], degrees[other], 1)
    return found


# -- from a cluster ----------------------------------------------------------------------------------------------------


def tiers_of(cluster: Cluster) -> tuple[Tier, ...]:
    """Return the tiers of a cluster of equal machines.

    One machine is one tier. Machines on one switch are two. Machines on leaf switches, as many on each, that hang on
    one switch more are three; the uplinks of a leaf are its rail. Any other network counts as one tier, as wide as the
    narrowest place of a ring through all machines (:meth:`planner.cluster.Cluster.ring_link`).

    Raises
    ------
    ModelError
        If machines are not alike.
    """
    if not cluster.has_equal_machines:
        names = ", ".join(group.name for group in cluster.machine_groups)
        raise ModelError(
            f"tensor, pipeline and data degrees are mapped on equal machines only; {names} differ. "
            f"Choose one kind of them."
        )
    machine = cluster.machine_groups[0]
    link = machine.inside or Link(bandwidth_bytes_per_s=inf)
    inside = Tier(
        size=machine.devices_per_machine, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s, latency_s=link.latency_s
    )
    if cluster.num_machines == 1:
        return (inside,)
    leaves = _leaves(cluster)
    if leaves is not None:
        return (inside, *leaves)
    ring = cluster.ring_link(cluster.num_machines)
    rail_bytes_per_s = ring.bandwidth_bytes_per_s / machine.num_nics
    between = Tier(
        size=cluster.num_machines,
        bandwidth_bytes_per_s=rail_bytes_per_s,
        latency_s=ring.latency_s,
        num_rails=machine.num_nics,
    )
    return (inside, between)


def is_narrowed(cluster: Cluster) -> bool:
    """Whether a network counts as one tier that is narrower than the own links of some machine.

    Then pairs of machines that are close to each other are counted as if they were not.
    """
    if cluster.num_machines == 1 or not cluster.has_equal_machines or _leaves(cluster) is not None:
        return False
    groups = {group.name: group.num_nics for group in cluster.machine_groups}
    own = [
        data["link"].bandwidth_bytes_per_s * max(groups.get(one, 1), groups.get(other, 1))
        for one, other, data in cluster.graph.edges(data=True)
        if one in groups or other in groups
    ]
    return cluster.ring_link(cluster.num_machines).bandwidth_bytes_per_s < max(own, default=0.0)


def _leaves(cluster: Cluster) -> tuple[Tier, Tier] | None:
    """Return the tiers of leaf switches under one spine, or None where the network is not of that shape."""
    graph = cluster.graph
    nodes = [graph.nodes[name]["node"] for name in graph]
    if len(nodes) != graph.number_of_edges() + 1:
        return None  # no tree
    up: set[Link] = set()
    down: set[Link] = set()
    machines_of: Counter[str] = Counter()
    for one, other, data in graph.edges(data=True):
        groups = [graph.nodes[end]["node"] for end in (one, other)]
        machines = [node for node in groups if isinstance(node, MachineGroup)]
        if len(machines) > 1:
            return None
        (down if machines else up).add(data["link"])
        if machines:
            machines_of[other if machines[0].name == one else one] += machines[0].count
    spines = [node.name for node in nodes if isinstance(node, Switch) and node.name not in machines_of]
    is_tree = len(spines) == 1 and set(graph[spines[0]]) == set(machines_of)
    if not is_tree or (len(up), len(down), len(set(machines_of.values()))) != (1, 1, 1):
        return None
    leaf, spine = next(iter(down)), next(iter(up))
    machine = cluster.machine_groups[0]
    return (
        Tier(
            size=next(iter(machines_of.values())),
            bandwidth_bytes_per_s=leaf.bandwidth_bytes_per_s,
            latency_s=leaf.latency_s,
            num_rails=machine.num_nics,
        ),
        Tier(
            size=len(machines_of),
            bandwidth_bytes_per_s=spine.bandwidth_bytes_per_s,
            latency_s=leaf.latency_s + 2 * spine.latency_s,
        ),
    )
