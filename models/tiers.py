"""Tiers of a cluster, and seconds of the collectives of a group of ranks on them.

**Tiers.** Tier 0 joins devices (a machine, or an NVLink domain), tier 1 joins units of tier 0 by rails, and so on
outwards. Ranks are numbered from the innermost degree outwards (D. Narayanan et al., SC21, arXiv 2104.04473, section 3;
orders of degrees: Megatron-Core's ``parallel_state``), so that a group of N ranks with stride S holds the devices
``r, r + S, ..., r + (N - 1) S``: what lies inside a tier follows from N, S and the tier's size alone.

**A group on tiers.** ``u_j`` units of tier j hold members of a group of N, ``u_-1 = N`` and at last 1. So
``k_j = u_(j-1) / u_j`` units communicate on tier j, and a unit below it holds ``M_j = N / u_(j-1)`` members. All groups
of a layout do the same at the same time, so every device gets an equal share ``beta_j`` of what its unit can send on
tier j: ``rails x bandwidth / oversubscription / devices of the unit``, never more than the rails next to it, nor than
on the tiers that lie below and are passed on the way; likewise a hop's latency is never shorter than those of the tiers
below. D is the whole buffer, on each device for an all-reduce, gathered for the others.

- *Levels* (reduce-scatter from the inside outwards, and all-gather back): on tier j a ring of k_j units over
  ``D / M_j`` bytes at ``beta_j``. Source: M. Cho et al., BlueConnect, IBM J. Res. Dev. 63(6), 2019.
- *Flat ring*: of all N members at ``min_j (M_j beta_j)`` over the tiers it crosses: it leaves a unit by the rails of
  all its members in it. A chunk passes ``u_(j-1) - u_j`` hops of tier j each time round. Source: P. Patarasuk and X.
  Yuan, J. Parallel Distrib. Comput. 69(2), 2009, doi:10.1016/j.jpdc.2008.09.002.
- *Double tree*: at the same rate, with ``ceil(log2 k_j)`` hops of tier j down and as many up. Source: P. Sanders, J.
  Speck, J. L. Traeff, Parallel Computing 35(12), 2009, doi:10.1016/j.parco.2009.09.001.
- *All-to-all* of D bytes from each device: by pairs, ``sum_j (u_(j-1) - u_j) latency_j + max_j D_j / beta_j`` with
  ``D_j = D (1 - M_j / N)`` the part that leaves the unit below tier j (inside a machine: that stays in it); tiers work
  at the same time. Or in ``ceil(log2 k_j)`` rounds of half the bytes each, where latency counts. Source: R. Thakur,
  R. Rabenseifner, W. Gropp, Int. J. High Perform. Comput. Appl. 19(1), 2005.

Where sizes do not divide, k_j is the mean of the worst placed group, a fraction; latency is then that of the fraction.
Leaves out: sums on the devices, gathers by switches, contention between kinds of groups.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from math import ceil, inf, prod
from typing import Literal

import numpy as np

from planner.cluster import Cluster, Link
from planner.cost import Floats
from planner.errors import ModelError
from planner.frozen import frozen
from planner.models.communication import Affines, double_binary_tree_all_reduces, ring_all_reduces
from planner.models.layouts import Bools, Ints, Layouts
from planner.routes import Routes, routes_of

# -- tiers of a cluster ------------------------------------------------------------------------------------------------


@frozen
class Tier:
    """How units are joined: devices by the innermost tier, and units of one tier by the next.

    Raises
    ------
    ModelError
        If a number is out of range.
    """

    size: int  # units of the tier below that one unit of this tier joins; of the outermost tier it is not asked
    bandwidth_bytes_per_s: float  # of one rail, one direction; inside a machine: what one device sends
    latency_s: float = 0.0  # of one hop between two units
    # rails by which one unit of the tier below is joined: a machine's network cards, a leaf switch's uplinks
    num_rails: int = 1
    # how many times less all units get together than their rails add up to; 1 for a full fat tree
    oversubscription: float = 1.0
    # ``(stride, share)``: which part of that is left while every unit sends to the one so many further on, ascending;
    # all of it to the next one, and where nothing is said
    by_stride: tuple[tuple[int, float], ...] = ()
    even_share: float = 1.0  # the same while every unit sends to all others; more than 1 where a ring leaves links idle
    # whether its switches add up what passes: an all-reduce then sends everything up once, and the sum comes down
    reduces: bool = False

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

    def most_bytes_per_s(self, num_devices: int) -> float:
        """What one device of a unit of so many sends at most: by its rails, of which it has one or more."""
        return min(self.unit_bytes_per_s, self.bandwidth_bytes_per_s * max(1.0, self.num_rails / num_devices))


def tiers_of(cluster: Cluster) -> tuple[Tier, ...]:
    """Return the tiers of a cluster of equal machines, from the inside outwards.

    One machine is one tier; a network has a tier for each of its levels (:attr:`planner.routes.Routes.units`):
    one for machines on one switch, two for leaf switches below one or several spines, three for pods. A network of
    another shape counts as one tier, as wide as the narrowest place of a ring through all machines; ``by_stride`` and
    ``even_share`` say how much less there is for groups that are no neighbours, and for an all-to-all.

    Parameters
    ----------
    cluster
        Machines and their network.

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
    routes = routes_of(cluster)
    if routes.units is None:
        return inside, _only_tier(routes, machine.num_nics)
    first, *others = routes.units
    tiers = [
        inside,
        Tier(
            size=first.num_machines,
            bandwidth_bytes_per_s=first.machine_bytes_per_s / machine.num_nics,
            latency_s=first.latency_s,
            num_rails=machine.num_nics,
            reduces=cluster.reduces,
        ),
    ]
    for below, unit in zip(routes.units, others, strict=False):
        together = below.num_machines * unit.machine_bytes_per_s
        if unit.alone_bytes_per_s == inf:
            num_rails = below.num_machines * machine.num_nics
            tiers.append(
                Tier(
                    size=unit.num_machines // below.num_machines,
                    bandwidth_bytes_per_s=together / num_rails,
                    latency_s=unit.latency_s,
                    num_rails=num_rails,
                    reduces=cluster.reduces,
                )
            )
            continue
        num_rails = max(1, ceil(together / unit.alone_bytes_per_s * (1 - 1e-12)))
        tiers.append(
            Tier(
                size=unit.num_machines // below.num_machines,
                bandwidth_bytes_per_s=unit.alone_bytes_per_s,
                latency_s=unit.latency_s,
                num_rails=num_rails,
                oversubscription=max(1.0, num_rails * unit.alone_bytes_per_s / together),
                reduces=cluster.reduces,
            )
        )
    return tuple(tiers)


def _only_tier(routes: Routes, num_nics: int) -> Tier:
    """Return the one tier of a network that has no units."""
    number = routes.cluster.num_machines
    ring = routes.ring(number)
    strides = sorted(
        {*(2**power for power in range(1, number.bit_length())), *(d for d in range(2, number) if number % d == 0)}
    )
    rate = ring.bandwidth_bytes_per_s
    shares = [(stride, min(1.0, routes.shift_bytes_per_s(stride) / rate)) for stride in strides if stride < number]
    return Tier(
        size=number,
        bandwidth_bytes_per_s=rate / num_nics,
        latency_s=ring.latency_s,
        num_rails=num_nics,
        by_stride=tuple(shares),
        even_share=routes.even_bytes_per_s / rate,
    )


def is_narrowed(cluster: Cluster) -> bool:
    """Whether a network counts as one tier that is narrower than the own links of some machine.

    Then pairs of machines that are close to each other are counted as if they were not.

    Parameters
    ----------
    cluster
        Machines and their network; those of several kinds are no tiers, and never narrowed.
    """
    if cluster.num_machines == 1 or not cluster.has_equal_machines or routes_of(cluster).units is not None:
        return False
    own = max(cluster.own_link(group.name).bandwidth_bytes_per_s for group in cluster.machine_groups)
    return routes_of(cluster).ring(cluster.num_machines).bandwidth_bytes_per_s < own


# -- which ranks of a layout communicate, and how far apart they lie ---------------------------------------------------

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


def axes_of(layouts: Layouts) -> Mapping[str, Axes]:
    """Return which ranks communicate: by kind of group, degree and stride of the degrees that it extends over.

    ``tensor``, ``context``, ``data``, ``pipeline``: of one degree. ``replicas``: all that hold the same dense weights
    (context x data; ZeRO shards over them). ``expert_tensor``: those that share the products of one expert, the
    innermost of a tensor group. ``expert``: the ranks over which a layer's experts are spread, the innermost of what is
    left of a tensor group and of the replicas. ``expert_replicas``: those that hold the same experts. Where some layout
    shards states over a part of the data ranks: ``shards``, ``expert_shards``, those of replicas that share a copy, the
    innermost, and ``copies``, ``expert_copies``, those that hold the same part of it.

    Parameters
    ----------
    layouts
        n of them; degrees and strides are of shape (n,).
    """
    degrees: dict[str, Ints] = {name: getattr(layouts, name) for name in DEGREES}
    stride: dict[str, Ints] = {}
    for row, name in enumerate(DEGREES):  # the product of the degrees that lie inside
        inside = [np.where(_IS_INSIDE[layouts.order, row, i], degrees[one], 1) for i, one in enumerate(DEGREES)]
        stride[name] = prod(inside, start=np.ones(1, dtype=np.int64))
    context, data, whole = degrees["context"], degrees["data"], layouts.expert_tensor
    between = degrees["tensor"] // whole  # tensor ranks that hold unlike experts, or copies
    in_tensor = np.gcd(layouts.expert, between)
    in_context = np.gcd(layouts.expert // in_tensor, context)
    in_data = layouts.expert // (in_tensor * in_context)
    partly: dict[str, Axes] = {}
    if layouts.shard.any():
        shard = np.where(layouts.shard > 0, layouts.shard, data)
        copies = ((data // shard, stride["data"] * shard),)
        partly = {
            "shards": ((context, stride["context"]), (shard, stride["data"])),
            "copies": copies,
            "expert_shards": (
                (between // in_tensor, stride["tensor"] * whole * in_tensor),
                (context // in_context, stride["context"] * in_context),
                (np.maximum(shard // in_data, 1), stride["data"] * in_data),
            ),
            "expert_copies": copies,
        }
    return {
        **partly,
        **{name: ((degrees[name], stride[name]),) for name in DEGREES},
        "replicas": ((context, stride["context"]), (data, stride["data"])),
        "expert_tensor": ((whole, stride["tensor"]),),
        "expert": ((in_tensor, stride["tensor"] * whole), (in_context, stride["context"]), (in_data, stride["data"])),
        "expert_replicas": (
            (between // in_tensor, stride["tensor"] * whole * in_tensor),
            (context // in_context, stride["context"] * in_context),
            (np.maximum(data // in_data, 1), stride["data"] * in_data),
        ),
    }


@frozen(eq=False)
class Group:
    """One kind of group of every layout; arrays of shape (tiers, layouts)."""

    num_members: Floats  # N, of shape (layouts,)
    units: Floats  # ``k_j``: units of the tier below that communicate on each tier; 1 where the group does not cross it
    members: Floats  # ``M_j``: members in one unit of the tier below
    share_bytes_per_s: Floats  # ``beta_j``: of one device, while all devices use the tier
    even_bytes_per_s: Floats  # the same while all send to all members of their groups
    # of one device, while one member of each unit of the tier below uses the tier: a pipeline's neighbours
    alone_bytes_per_s: Floats
    latency_s: Floats  # of one hop
    # whether the switches of each tier add up, shape (tiers, 1)
    reduces: Bools = field(default_factory=lambda: np.zeros((1, 1), dtype=bool))
    # of operations that were asked for, by their name and spread
    costs: dict[tuple[str, "Spread | None"], tuple["Affines", ...]] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def is_crossed(self) -> Bools:
        """Whether a group has members in several units of the tier below."""
        return np.asarray(self.units > 1)

    @property
    def path_s(self) -> Floats:
        """Latency of all hops through a group: ``u_(j-1) - u_j`` of each tier."""
        hops = self.num_members / self.members * (1 - 1 / self.units)
        return np.asarray((hops * self.latency_s).sum(axis=0))

    @property
    def slowest_bytes_per_s(self) -> Floats:
        """What a ring or a tree through all members carries; infinite for one member."""
        return np.asarray(np.where(self.is_crossed, self.members * self.share_bytes_per_s, inf).min(axis=0))

    def ends(self) -> "Group":
        """Return the groups of two that the first and the last member of each form: they meet on the outermost tier."""
        is_outermost = (np.cumsum(self.is_crossed[::-1], axis=0)[::-1] == 1) & self.is_crossed
        # Of each unit below, as many devices join in as there are groups: none shares a rail with its own group.
        return Group(
            num_members=np.minimum(self.num_members, 2.0),
            units=np.where(is_outermost, 2.0, 1.0),
            members=np.ones_like(self.members),
            share_bytes_per_s=self.alone_bytes_per_s,
            even_bytes_per_s=self.alone_bytes_per_s,
            alone_bytes_per_s=self.alone_bytes_per_s,
            latency_s=self.latency_s,
        )


def group_of(tiers: Sequence[Tier], axes: Axes, num_devices: Ints) -> Group:
    """Return the groups that extend over some degrees.

    Parameters
    ----------
    tiers
        From the inside outwards. The outermost one joins whatever is left, however many its ``size`` says.
    axes
        Degree and stride of each degree, of shape (n,); see :func:`axes_of`.
    num_devices
        Devices of each layout, of shape (n,); they fill one unit after the other.

    Raises
    ------
    ModelError
        If there is no tier.
    """
    if not tiers:
        raise ModelError("a cluster needs at least one tier.")
    degrees = prod((degree for degree, _ in axes), start=np.ones(1, dtype=np.int64))
    below = np.broadcast_arrays(degrees.astype(np.float64), np.asarray(num_devices, dtype=np.float64))[0]
    num_members, size = below, 1  # devices of a unit below the tier
    rates: tuple[Floats, ...] = ()
    found = np.empty((5, len(tiers), *below.shape))
    for index, tier in enumerate(tiers):
        joined = size * tier.size
        units = np.ones_like(below)
        if index < len(tiers) - 1:
            units = np.minimum(_units(axes, joined, num_devices), below)
        members = num_members / below
        active = np.minimum(size, num_devices)
        most = tier.most_bytes_per_s(size)
        share = np.minimum(tier.unit_bytes_per_s / active, most)
        alone = np.minimum(tier.unit_bytes_per_s * members / active, most)
        inner, rates = rates, (share * _strided(tier, axes, size), share * tier.even_share, alone)
        if inner:  # none is greater than that of the tiers inside; accumulating over so few rows takes far longer
            rates = tuple(map(np.minimum, rates, inner))
        for column, row in zip(found, (below / units, members, *rates), strict=True):
            column[index] = row
        below, size = units, joined
    units_of, members_of, shares, evens, alones = found
    return Group(
        num_members=num_members,
        units=units_of,
        members=members_of,
        share_bytes_per_s=shares,
        even_bytes_per_s=evens,
        alone_bytes_per_s=alones,
        latency_s=np.maximum.accumulate([[tier.latency_s] for tier in tiers]),
        reduces=np.array([[tier.reduces] for tier in tiers]),
    )


def packed_group(tiers: Sequence[Tier], num_members: Ints) -> Group:
    """Return groups of so many members, of which none of as many or more takes less for its reductions and gathers.

    A unit holds no more than its own devices, so that ``v_j = u_j / N`` is ``max(1 / N, 1 / size_j)`` or more: here it
    is as much, in fractions of units, without latencies, and every neighbour is the next one. Levels take
    ``sum_j (v_(j-1) - v_j) / beta_j``: no less with a greater v_j, as no beta is greater than those inside of it; and
    of the least v no term falls with N. Real groups may take less with N: of 15 some have 5 in a machine of 8, of 16
    all have 8. What switches add up takes half as long as a ring at the least: twice the rate of all tiers.

    Parameters
    ----------
    tiers, num_members
        From the inside outwards; N, of shape (n,).
    """
    factor, below = 1 + any(tier.reduces for tier in tiers), np.asarray(num_members, dtype=np.float64)
    size, rows = 1, []
    for index, tier in enumerate(tiers):
        inner, size = size, size * tier.size
        units = np.maximum(num_members / size, 1.0) if index < len(tiers) - 1 else np.ones_like(below)
        most = tier.most_bytes_per_s(inner)
        share = np.full(below.shape, factor * min(tier.unit_bytes_per_s / inner, most))
        rows.append((below / units, num_members / below, share))
        below = units
    units_of, members, shares = (np.array(column) for column in zip(*rows, strict=True))
    rates = np.minimum.accumulate(shares, axis=0)
    return Group(
        num_members=np.asarray(num_members, dtype=np.float64),
        units=units_of,
        members=members,
        share_bytes_per_s=rates,
        even_bytes_per_s=rates,
        alone_bytes_per_s=rates,
        latency_s=np.zeros((len(tiers), 1)),
    )


def next_group(tiers: Sequence[Tier], stride: Ints) -> Group:
    """Return pairs so many devices apart, of which no longer chain with as great a stride passes anything on sooner.

    A pair is in one unit that has room for it; real chains also leave units that their own devices do not divide. Of a
    longer chain a unit has no more members than fit.

    Parameters
    ----------
    tiers, stride
        From the inside outwards; of shape (n,).
    """
    below, size, rows = np.full(len(stride), 2.0), 1, []
    for index, tier in enumerate(tiers):
        inner, size = size, size * tier.size
        units = np.where((2 * stride <= size) | (index == len(tiers) - 1), 1.0, 2.0)
        most = tier.most_bytes_per_s(inner)
        rows.append((below / units, np.minimum(tier.unit_bytes_per_s * np.maximum(inner / stride, 1.0) / inner, most)))
        below = units
    units_of, rates = (np.array(column) for column in zip(*rows, strict=True))
    rates = np.minimum.accumulate(rates, axis=0)
    return Group(
        num_members=np.full(len(stride), 2.0),
        units=units_of,
        members=np.ones_like(units_of),
        share_bytes_per_s=rates,
        even_bytes_per_s=rates,
        alone_bytes_per_s=rates,
        latency_s=np.maximum.accumulate([[tier.latency_s] for tier in tiers]),
    )


def _strided(tier: Tier, axes: Axes, size: int) -> Floats:
    """Return which part of a tier's rate is left for groups whose neighbours lie several units of ``size`` apart.

    Of a stride that the tier says nothing of, the lesser of those next to it.
    """
    share = np.ones(1)
    if not tier.by_stride:
        return share
    strides, shares = (np.array(column, dtype=np.float64) for column in zip((1, 1.0), *tier.by_stride, strict=True))
    for degree, stride in axes:
        apart = np.maximum(stride // size, 1)
        above = np.minimum(np.searchsorted(strides, apart), len(strides) - 1)
        below = np.maximum(np.searchsorted(strides, apart, side="right") - 1, 0)
        share = share * np.where(degree * stride > size, np.minimum(shares[above], shares[below]), 1.0)
    return share


def _units(axes: Axes, size: int, num_devices: Ints) -> Floats:
    """Return how many units of ``size`` devices the worst placed group touches.

    Blocks of N S ranks start at multiples of ``gcd(size, N S)`` in their first unit, at worst at the last of these.
    Exact for one degree, and for several that divide or are divided by ``size``.
    """
    number = np.ones(1)
    for degree, stride in axes:
        block = degree * stride
        touched = -((np.gcd(size, block) - size - block) // size)
        number = number * np.where(stride >= size, degree, np.minimum(degree, touched))
    return np.where(num_devices <= size, 1.0, number)


def groups_of(
    tiers: Sequence[Tier],
    layouts: Layouts,
    more: Mapping[str, Axes] | None = None,
    apart: Mapping[str, Sequence[Tier]] | None = None,
) -> Mapping[str, Group]:
    """Return every kind of group of some layouts: those of :func:`axes_of`, and the ``ends`` of the pipeline.

    Parameters
    ----------
    tiers, layouts
        As for :func:`group_of` and :func:`axes_of`.
    more
        Other groups by name.
    apart
        The tiers of groups that reach other bandwidths than the rest, by name.
    """
    return _Groups(tuple(tiers), {**axes_of(layouts), **(more or {})}, layouts.num_devices, apart or {})


@frozen(kw_only=False, eq=False)
class _Groups(Mapping[str, Group]):
    """Groups by name, worked out when they are asked for first: most are asked for a few kinds alone."""

    tiers: tuple[Tier, ...]
    axes: Mapping[str, Axes]
    num_devices: Ints
    apart: Mapping[str, Sequence[Tier]]
    known: dict[str, Group] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Group:
        """Return the groups of a kind."""
        if name not in self.known:
            tiers = self.apart.get(name, self.tiers)
            self.known[name] = (
                self["pipeline"].ends() if name == "ends" else group_of(tiers, self.axes[name], self.num_devices)
            )
        return self.known[name]

    def __iter__(self) -> Iterator[str]:
        """Yield all names."""
        yield from (*self.axes, "ends")

    def __len__(self) -> int:
        """Return how many kinds there are."""
        return len(self.axes) + 1


# -- collectives of a group: see the opening of this module ------------------------------------------------------------


def all_reduces(group: Group) -> tuple[Affines, ...]:
    """Return the costs of an all-reduce over levels, over a flat ring and over two trees; and where switches add up.

    On a tier whose switches do, a level sends its part once up and gets the sum, in two hops, in place of a ring's
    ``2 (k - 1) / k`` times and ``2 (k - 1)`` hops (R. L. Graham et al., COM-HPC 2016, doi:10.1109/COMHPC.2016.006).

    Parameters
    ----------
    group
        Of n layouts; costs are of shape (n,).
    """
    hops_s = np.ceil(np.log2(group.units)) * group.latency_s
    tree = double_binary_tree_all_reduces(
        num_devices=group.num_members,
        bandwidth_bytes_per_s=group.slowest_bytes_per_s,
        overhead_s=2 * hops_s.sum(axis=0),
    )
    levels, flat = _rings(group)
    if not group.reduces.any():
        return levels, flat, tree
    rate = group.members * group.share_bytes_per_s
    ring = ring_all_reduces(num_devices=group.units, bandwidth_bytes_per_s=rate, latency_s=group.latency_s)
    is_added = group.reduces & (group.units > 2)  # of two units a ring does as well
    startup_s, per_byte_s = np.where(is_added, 2 * group.latency_s, ring.startup_s), ring.per_byte_s
    per_byte_s = np.where(is_added, 1 / rate, per_byte_s)
    switched = Affines(startup_s=startup_s.sum(axis=0), per_byte_s=per_byte_s.sum(axis=0))
    return levels, flat, tree, switched


def gathers(group: Group) -> tuple[Affines, Affines]:
    """Return the costs of an all-gather, or of a reduce-scatter, over levels and over a flat ring.

    Parameters
    ----------
    group
        As for :func:`all_reduces`, whose halves these are.
    """
    levels, flat = _rings(group)
    return (
        Affines(startup_s=levels.startup_s / 2, per_byte_s=levels.per_byte_s / 2),
        Affines(startup_s=flat.startup_s / 2, per_byte_s=flat.per_byte_s / 2),
    )


def _rings(group: Group) -> tuple[Affines, Affines]:
    """Return the costs of an all-reduce over levels and over a flat ring."""
    levels = ring_all_reduces(
        num_devices=group.units,
        bandwidth_bytes_per_s=group.members * group.share_bytes_per_s,
        latency_s=group.latency_s,
    )
    flat = ring_all_reduces(
        num_devices=group.num_members, bandwidth_bytes_per_s=group.slowest_bytes_per_s, overhead_s=2 * group.path_s
    )
    return Affines(startup_s=levels.startup_s.sum(axis=0), per_byte_s=levels.per_byte_s.sum(axis=0)), flat


@frozen(kw_only=False)
class Spread:
    """How many members of a group each piece of an all-to-all goes to."""

    # members, drawn evenly: a piece travels once to each device that has any of them, and once to each unit, whose
    # member on the same rail hands it on (DeepEP; DeepSeek-AI, arXiv 2412.19437, section 3.2.2)
    copies: int = 1
    # parts, most_parts: all members in order are so many parts, and those of a piece are of at most so many of them:
    # node-limited routing (the same, section 2.1.2)
    parts: int = 1
    most_parts: int = 1
    # handed_bytes_per_s, handed_from: the most that a device receives of what its multiprocessors hand on, where the
    # group crosses this tier or one outside of it
    handed_bytes_per_s: float = inf
    handed_from: int = 1

    def reached(self, units: Floats) -> Floats:
        """Return the units of so many, the own one included, that a piece reaches on average; shape of ``units``."""
        none_of = np.ones_like(units)  # that a unit of one part or more holds none of the piece's parts
        for part in range(self.most_parts):
            none_of = none_of * np.maximum(self.parts - self.parts / units - part, 0.0) / (self.parts - part)
        is_finer = units >= self.parts
        open_units = np.where(is_finer, units * self.most_parts / self.parts, units * (1 - none_of))
        return np.asarray(open_units * (1 - (1 - 1 / open_units) ** self.copies))


def all_to_alls(group: Group, spread: Spread | None = None) -> tuple[Affines, Affines]:
    """Return the costs of an all-to-all of D bytes from each device, its own part included: by pairs, and in rounds.

    Parameters
    ----------
    group
        As for :func:`all_reduces`.
    spread
        To how many members each piece goes; by default to one.
    """
    spread = spread or Spread()
    units = group.num_members / group.members
    outside = np.where(group.is_crossed, (1 - 1 / units) * spread.reached(units) / spread.copies, 0.0)
    inner = np.concatenate([outside[1:], np.zeros_like(outside[:1])])
    if spread.copies > 1:  # handed on: all but what comes to the right device at once
        below = np.concatenate([group.members[1:], np.ones_like(outside[:1])])
        inner = np.where(inner > 0, outside / below, 0.0)
    inside = np.where(np.arange(len(outside))[:, None] == 0, outside - inner, outside)
    # Received of all members alike, however they are placed: no group takes less for being spread.
    received = (1 - 1 / group.num_members) * spread.reached(group.num_members) / spread.copies
    is_handed = group.is_crossed[spread.handed_from :].any(axis=0)
    handed_s = np.where(is_handed, received / spread.handed_bytes_per_s, 0.0)
    depth = np.ceil(np.log2(group.units))
    by_pairs_s, in_rounds_s = inside / group.even_bytes_per_s, depth / 2 / group.even_bytes_per_s
    return (
        Affines(startup_s=group.path_s, per_byte_s=np.maximum(by_pairs_s.max(axis=0), handed_s)),
        Affines(
            startup_s=(depth * group.latency_s).sum(axis=0), per_byte_s=np.maximum(in_rounds_s.sum(axis=0), handed_s)
        ),
    )


def send(group: Group) -> tuple[Affines]:
    """Return the cost of a transfer from one member to the next, over the slowest boundary that the group has.

    Parameters
    ----------
    group
        As for :func:`all_reduces`.
    """
    return (
        Affines(
            startup_s=np.where(group.is_crossed, group.latency_s, 0.0).max(axis=0),
            per_byte_s=np.where(group.is_crossed, 1 / group.alone_bytes_per_s, 0.0).max(axis=0),
        ),
    )


Operation = Literal["all_reduce", "gather", "all_to_all", "send"]
_COSTS: Mapping[Operation, Callable[[Group], tuple[Affines, ...]]] = {
    "all_reduce": all_reduces,
    "gather": gathers,
    "send": send,
}


def operation_s(operation: Operation, group: Group, size_bytes: Floats, spread: Spread | None = None) -> Floats:
    """Return the seconds of an operation by the quickest of its algorithms; 0 for 0 bytes.

    Parameters
    ----------
    operation
        ``gather`` stands for an all-gather and for a reduce-scatter, which cost the same.
    group
        Of n layouts.
    size_bytes
        D, of shape (n,): on each device, or gathered; of an all-to-all what each device sends to all members, its own
        part included; of one transfer to the next member.
    spread
        Of an all-to-all: see :func:`all_to_alls`.
    """
    if (operation, spread) not in group.costs:
        found = all_to_alls(group, spread) if operation == "all_to_all" else _COSTS[operation](group)
        group.costs[operation, spread] = found
    first, *others = group.costs[operation, spread]
    seconds = first.startup_s + first.per_byte_s * size_bytes
    for cost in others:
        seconds = np.minimum(seconds, cost.startup_s + cost.per_byte_s * size_bytes)
    return np.where(size_bytes > 0, seconds, 0.0)
