"""What the exchanges of many groups of ranks cost on the tiers of a cluster: one kind of group, one element a layout.

``u_j`` units of tier j hold members of a group of N, ``u_-1 = N`` and at last 1. So ``k_j = u_(j-1) / u_j`` units
exchange on tier j, and a unit below it holds ``M_j = N / u_(j-1)`` members. All groups of a layout do the same at the
same time, so every device gets an equal share ``beta_j`` of what its unit can send on tier j:
``rails x bandwidth / oversubscription / devices of the unit``, never more than the rails next to it, nor than on the
tiers that lie below and are passed on the way; likewise a hop's latency is never shorter than those of the tiers below.

- **Levels** (reduce-scatter from the inside outwards, and all-gather back): on tier j a ring of k_j units over
  ``D / M_j`` bytes: ``2 (k_j - 1) latency_j + 2 (k_j - 1) / k_j D / (M_j beta_j)``. Source: M. Cho et al.,
  BlueConnect, IBM J. Res. Dev. 63(6), 2019.
- **Flat ring**: ``2 (N - 1) / N D / min_j (M_j beta_j)`` over the tiers it crosses: it leaves a unit by the rails of
  all its members in it. A chunk passes ``u_(j-1) - u_j`` hops of tier j each time round. Source: P. Patarasuk and X.
  Yuan, J. Parallel Distrib. Comput. 69(2), 2009.
- **Double tree**: ``2 sum_j ceil(log2 k_j) latency_j + 2 D / min_j (M_j beta_j)``. Source: P. Sanders, J. Speck,
  J. L. Traeff, Parallel Computing 35(12), 2009.
- **All-to-all** of D bytes from each device: by pairs, ``sum_j (u_(j-1) - u_j) latency_j + max_j D_j / beta_j`` with
  ``D_j = D (1 - M_j / N)`` the part that leaves the unit below tier j (inside a machine: that stays in it); tiers work
  at the same time. Or in ``ceil(log2 k_j)`` rounds of half the bytes each, where latency counts. Source: R. Thakur,
  R. Rabenseifner, W. Gropp, Int. J. High Perform. Comput. Appl. 19(1), 2005.

Where sizes do not divide, k_j is the mean of the worst placed group, a fraction; latency is then that of the fraction.
Leaves out: sums on the devices, reduction in switches, contention between kinds of groups.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError
from planner.models.collectives import Affines, ring_all_reduces
from planner.models.layouts import Ints, Layouts
from planner.models.tiers import Axes, Tier, axes_of

__all__ = [
    "Group",
    "all_reduce_s",
    "all_reduces",
    "all_to_all_s",
    "all_to_alls",
    "gather_s",
    "gathers",
    "group_of",
    "groups_of",
    "send",
    "send_s",
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """One kind of group of every layout; arrays of shape (tiers, layouts).

    Attributes
    ----------
    num_members
        N, of shape (layouts,).
    units
        ``k_j``: units of the tier below that exchange on each tier; 1 where the group does not cross it.
    members
        ``M_j``: members in one unit of the tier below.
    share_bytes_per_s
        ``beta_j``: of one device, while all devices use the tier.
    alone_bytes_per_s
        Of one device, while one member of each unit of the tier below uses the tier: a pipeline's neighbours.
    latency_s
        Of one hop.
    """

    num_members: Floats
    units: Floats
    members: Floats
    share_bytes_per_s: Floats
    alone_bytes_per_s: Floats
    latency_s: Floats

    @property
    def is_crossed(self) -> "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]":
        """Whether a group has members in several units of the tier below."""
        return self.units > 1

    def ends(self) -> "Group":
        """Return the groups of two that the first and the last member of each form: they meet on the outermost tier."""
        outer = np.cumsum(self.is_crossed[::-1], axis=0)[::-1] == 1
        is_outermost = outer & self.is_crossed
        # Of each unit below, as many devices join in as there are groups: none shares a rail with its own group.
        return Group(
            num_members=np.minimum(self.num_members, 2.0),
            units=np.where(is_outermost, 2.0, 1.0),
            members=np.ones_like(self.members),
            share_bytes_per_s=self.alone_bytes_per_s,
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
        Degree and stride of each degree; see :func:`planner.models.tiers.axes_of`.
    num_devices
        Devices of each layout; they fill one unit after the other.
    """
    if not tiers:
        raise ModelError("a cluster needs at least one tier.")
    degrees = prod((degree for degree, _ in axes), start=np.ones(1, dtype=np.int64))
    below = np.broadcast_arrays(degrees.astype(np.float64), np.asarray(num_devices, dtype=np.float64))[0]
    num_members, size = below, 1  # devices of a unit below the tier
    rows: list[tuple[Floats, Floats, Floats, Floats]] = []
    for index, tier in enumerate(tiers):
        joined = size * tier.size
        is_outermost = index == len(tiers) - 1
        found = np.ones_like(below) if is_outermost else np.minimum(_units(axes, joined, num_devices), below)
        members = num_members / below
        active = np.minimum(size, num_devices)
        most = min(tier.unit_bytes_per_s, tier.bandwidth_bytes_per_s * max(1.0, tier.num_rails / size))
        share = np.minimum(tier.unit_bytes_per_s / active, most)
        alone = np.minimum(tier.unit_bytes_per_s * members / active, most)
        rows.append((below / found, members, np.broadcast_to(share, below.shape), alone))
        below, size = found, joined
    units, members_of, shares, alones = (np.array(column) for column in zip(*rows, strict=True))
    shares, alones = (np.minimum.accumulate(rates, axis=0) for rates in (shares, alones))
    latency_s = np.maximum.accumulate([[tier.latency_s] for tier in tiers])
    return Group(
        num_members=num_members,
        units=units,
        members=members_of,
        share_bytes_per_s=shares,
        alone_bytes_per_s=alones,
        latency_s=latency_s,
    )


def groups_of(tiers: Sequence[Tier], layouts: Layouts) -> Mapping[str, Group]:
    """Return every kind of group of some layouts: those of ``axes_of``, and the ``ends`` of the pipeline."""
    num_devices = layouts.num_devices
    groups = {name: group_of(tiers, axes, num_devices) for name, axes in axes_of(layouts).items()}
    return {**groups, "ends": groups["pipeline"].ends()}


def _units(axes: Axes, size: int, num_devices: Ints) -> Floats:
    """Return how many units of ``size`` devices the worst placed group touches.

    Blocks of N S ranks start at multiples of ``gcd(size, N S)`` in their first unit, at worst at the last of these.
    Exact for one degree, and for several that divide or are divided by ``size``.
    """
    found = np.ones(1)
    for degree, stride in axes:
        block = degree * stride
        touched = -((np.gcd(size, block) - size - block) // size)
        found = found * np.where(stride >= size, degree, np.minimum(degree, touched))
    return np.where(num_devices <= size, 1.0, found)


# -- collectives: D is the whole buffer, on each device for an all-reduce, gathered for the others ---------------------


def gathers(group: Group) -> tuple[Affines, Affines]:
    """Return the costs of an all-gather, or of a reduce-scatter, over levels and over a flat ring."""
    levels, flat, _ = all_reduces(group)
    return _halved(levels), _halved(flat)


def all_reduces(group: Group) -> tuple[Affines, Affines, Affines]:
    """Return the costs of an all-reduce over levels, over a flat ring and over two trees."""
    levels = ring_all_reduces(
        num_devices=group.units,
        bandwidth_bytes_per_s=group.members * group.share_bytes_per_s,
        latency_s=group.latency_s,
    )
    slowest = _slowest_bytes_per_s(group)
    n = group.num_members
    depth = np.ceil(np.log2(group.units))
    flat = Affines(startup_s=2 * _path_s(group), per_byte_s=2 * (n - 1) / n / slowest)
    tree = Affines(startup_s=2 * (depth * group.latency_s).sum(axis=0), per_byte_s=2 / slowest)
    return Affines(startup_s=levels.startup_s.sum(axis=0), per_byte_s=levels.per_byte_s.sum(axis=0)), flat, tree


def all_to_alls(group: Group) -> tuple[Affines, Affines]:
    """Return the costs of an all-to-all of D bytes from each device, its own part included: by pairs, and in rounds."""
    outside = np.where(group.is_crossed, 1 - group.members / group.num_members, 0.0)
    inner = np.concatenate([outside[1:], np.zeros_like(outside[:1])])
    inside = np.where(np.arange(len(outside))[:, None] == 0, outside - inner, outside)
    per_byte_s = (inside / group.share_bytes_per_s).max(axis=0)
    depth = np.ceil(np.log2(group.units))
    rounds_s = (depth / 2 / group.share_bytes_per_s).sum(axis=0)
    pairs = Affines(startup_s=_path_s(group), per_byte_s=per_byte_s)
    return pairs, Affines(startup_s=(depth * group.latency_s).sum(axis=0), per_byte_s=rounds_s)


def send(group: Group) -> Affines:
    """Return the cost of a transfer from one member to the next, over the slowest boundary that the group has."""
    per_byte_s = np.where(group.is_crossed, 1 / group.alone_bytes_per_s, 0.0)
    return Affines(
        startup_s=np.where(group.is_crossed, group.latency_s, 0.0).max(axis=0), per_byte_s=per_byte_s.max(axis=0)
    )


def all_reduce_s(group: Group, size_bytes: Floats) -> Floats:
    """Return the seconds of an all-reduce of so many bytes by the quickest way."""
    return _cheapest_s(all_reduces(group), size_bytes)


def gather_s(group: Group, size_bytes: Floats) -> Floats:
    """Return the seconds of an all-gather, or of a reduce-scatter, of so many bytes by the quickest way."""
    return _cheapest_s(gathers(group), size_bytes)


def all_to_all_s(group: Group, size_bytes: Floats) -> Floats:
    """Return the seconds in which every device sends so many bytes, its own part included, evenly to all members."""
    return _cheapest_s(all_to_alls(group), size_bytes)


def send_s(group: Group, size_bytes: Floats) -> Floats:
    """Return the seconds of a transfer of so many bytes to the next member."""
    return _cheapest_s((send(group),), size_bytes)


def _cheapest_s(costs: Sequence[Affines], size_bytes: Floats) -> Floats:
    """Return the seconds of the cheapest cost; 0 for 0 bytes."""
    found = costs[0].startup_s + costs[0].per_byte_s * size_bytes
    for cost in costs[1:]:
        found = np.minimum(found, cost.startup_s + cost.per_byte_s * size_bytes)
    return np.where(size_bytes > 0, found, 0.0)


def _halved(cost: Affines) -> Affines:
    """Return half of an all-reduce over rings: its reduce-scatter or its all-gather."""
    return Affines(startup_s=cost.startup_s / 2, per_byte_s=cost.per_byte_s / 2)


def _path_s(group: Group) -> Floats:
    """Return the latency of all hops through a group: ``u_(j-1) - u_j`` of each tier."""
    hops = group.num_members / group.members * (1 - 1 / group.units)
    path_s: Floats = (hops * group.latency_s).sum(axis=0)
    return path_s


def _slowest_bytes_per_s(group: Group) -> Floats:
    """Return what a ring through all members carries; infinite for one member."""
    rates = np.where(group.is_crossed, group.members * group.share_bytes_per_s, np.inf)
    slowest: Floats = rates.min(axis=0)
    return slowest
