"""Seconds of one all-reduce by its bytes, over equal links or on several machines: by algorithm, or as measured.

Closed forms of D bytes (ring, double binary tree, two levels) are affine in D and come back as
:class:`planner.cost.Affine`; the piecewise log-linear form (eq. 18 of the OSF model) and a measured curve are transfer
costs of their own. All take 0 s for 0 bytes.

Of groups of ranks on the tiers of a cluster: :mod:`planner.models.tiers`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from math import inf

import numpy as np
from numpy.typing import ArrayLike

from planner.cost import Affine, CheapestOf, Floats, TransferCost
from planner.errors import ModelError
from planner.frozen import frozen
from planner.plugins import Registry


@frozen
class Affines:
    """Affine costs of many settings at once: arrays of one shape. A setting of one device costs nothing."""

    startup_s: Floats
    per_byte_s: Floats

    def at(self, index: int) -> Affine:
        """Return one of the costs.

        Parameters
        ----------
        index
            Of the setting, from 0.
        """
        return Affine(startup_s=float(self.startup_s[index]), per_byte_s=float(self.per_byte_s[index]))


def ring_all_reduces(
    *,
    num_devices: ArrayLike,
    bandwidth_bytes_per_s: ArrayLike,
    latency_s: ArrayLike = 0.0,
    overhead_s: ArrayLike = 0.0,
    reduce_bytes_per_s: ArrayLike = inf,
) -> Affines:
    """Return the costs of all-reduces over rings; arguments of any shapes that broadcast.

    Parameters
    ----------
    num_devices
        Devices in the ring; >= 1. One device costs nothing.
    bandwidth_bytes_per_s, latency_s
        Of the slowest link, one direction, per hop.
    overhead_s
        Once per all-reduce: launch and coordination; the whole ``delta`` of eq. 7 where latency is not told apart.
    reduce_bytes_per_s
        Bytes of gradient a device adds up in a second: peak FLOP/s x bytes per number.

    Notes
    -----
    ``overhead + 2 (N-1) latency + 2 (N-1)/N D/beta + (N-1)/N D/(pi s)``: a reduce-scatter, then an all-gather, in N-1
    steps each. Source: T. Liu et al., WWW '22, doi:10.1145/3485447.3511981, eq. 7, with its ``delta`` split into
    overhead and hops; the ring: P. Patarasuk and X. Yuan, J. Parallel Distrib. Comput. 69(2), 2009,
    doi:10.1016/j.jpdc.2008.09.002.

    >>> cost = ring_all_reduces(num_devices=[4], bandwidth_bytes_per_s=1e9).at(0)
    >>> float(cost(np.float64(4e9)))
    6.0
    """
    n = np.asarray(num_devices, dtype=float)
    share = (n - 1) / n  # 0 for one device
    return Affines(
        startup_s=np.where(n > 1, overhead_s + 2 * (n - 1) * np.asarray(latency_s), 0.0),
        per_byte_s=2 * share / np.asarray(bandwidth_bytes_per_s) + share / np.asarray(reduce_bytes_per_s),
    )


def double_binary_tree_all_reduces(
    *,
    num_devices: ArrayLike,
    bandwidth_bytes_per_s: ArrayLike,
    latency_s: ArrayLike = 0.0,
    overhead_s: ArrayLike = 0.0,
    reduce_bytes_per_s: ArrayLike = inf,
) -> Affines:
    """Return the costs of all-reduces over two complementary binary trees, pipelined.

    Parameters
    ----------
    num_devices, bandwidth_bytes_per_s, latency_s, overhead_s, reduce_bytes_per_s
        As for :func:`ring_all_reduces`.

    Notes
    -----
    ``overhead + 2 ceil(log2 N) latency + 2 D/beta + D/(pi s)``: every device is inner node of one tree and leaf of the
    other, so that both directions of its link are busy. Its bandwidth term is the ring's for large N, and
    twice the ring's at N = 2. Source: P. Sanders, J. Speck, J. L. Träff, Parallel Computing 35(12), 2009,
    doi:10.1016/j.parco.2009.09.001. Leaves out the fill of the pipeline, which is short for large buffers.
    """
    n = np.asarray(num_devices, dtype=float)
    per_byte_s = 2 / np.asarray(bandwidth_bytes_per_s) + 1 / np.asarray(reduce_bytes_per_s)
    return Affines(
        startup_s=np.where(n > 1, overhead_s + 2 * np.ceil(np.log2(n)) * np.asarray(latency_s), 0.0),
        per_byte_s=np.where(n > 1, per_byte_s, 0.0),
    )


def two_level_all_reduces(
    *,
    num_machines: ArrayLike,
    devices_per_machine: ArrayLike,
    inside_bytes_per_s: ArrayLike,
    network_bytes_per_s: ArrayLike,
    inside_latency_s: ArrayLike = 0.0,
    network_latency_s: ArrayLike = 0.0,
    overhead_s: ArrayLike = 0.0,
    reduce_bytes_per_s: ArrayLike = inf,
) -> Affines:
    """Return the costs of reduce-scatter inside machines, all-reduce between them, all-gather inside.

    Parameters
    ----------
    num_machines, devices_per_machine
        Both >= 1; one device in all costs nothing.
    inside_bytes_per_s, inside_latency_s
        Of a machine's inner links, one direction, per hop.
    network_bytes_per_s, network_latency_s
        Of a machine: all its network cards together, which the rails of its devices share.
    overhead_s, reduce_bytes_per_s
        As for :func:`ring_all_reduces`.

    Notes
    -----
    Inside: ``2 (g-1) latency + 2 (g-1)/g D/beta_in``. Between: each of g rails reduces D/g over a ring of n machines at
    beta/g, so the g cancels. Equals the flat ring when one level has size 1. Source: M. Cho et al.,
    BlueConnect, IBM J. Res. Dev. 63(6), 2019; Y. Ueno and R. Yokota, CCGRID 2019.
    """
    n, g = np.asarray(num_machines, dtype=float), np.asarray(devices_per_machine, dtype=float)
    inside = ring_all_reduces(
        num_devices=g,
        bandwidth_bytes_per_s=inside_bytes_per_s,
        latency_s=inside_latency_s,
        reduce_bytes_per_s=reduce_bytes_per_s,
    )
    between = ring_all_reduces(
        num_devices=n,
        bandwidth_bytes_per_s=network_bytes_per_s,
        latency_s=network_latency_s,
        reduce_bytes_per_s=np.asarray(reduce_bytes_per_s) * g,
    )
    return Affines(
        startup_s=np.where(n * g > 1, overhead_s, 0.0) + inside.startup_s + between.startup_s,
        per_byte_s=inside.per_byte_s + between.per_byte_s,
    )


@frozen(eq=False)
class Participants:
    """The devices that all-reduce, on how many machines, and the links between them: of one setting or of many."""

    # num_devices, num_machines: of shapes that broadcast with all others; >= 1
    num_devices: ArrayLike
    num_machines: ArrayLike
    devices_per_machine: int  # of the machine that has most
    # network_bytes_per_s, network_latency_s: of a ring between machines, one direction, a machine and a hop: ``inf``
    # and 0 where there is one machine
    network_bytes_per_s: ArrayLike
    network_latency_s: ArrayLike = 0.0
    # the same of trees between machines, which share links otherwise; None: as a ring
    tree_bytes_per_s: ArrayLike | None = None
    # inside_bytes_per_s, inside_latency_s: between the devices of a machine; not read where each has one
    inside_bytes_per_s: ArrayLike = inf
    inside_latency_s: ArrayLike = 0.0
    # overhead_s, reduce_bytes_per_s: as for :func:`ring_all_reduces`
    overhead_s: ArrayLike = 0.0
    reduce_bytes_per_s: ArrayLike = inf
    # whether switches inside machines add up, too, where those of the network do; else rings inside
    inside_reduces: bool = True

    @property
    def flat(self) -> Mapping[str, ArrayLike]:
        """What algorithms that tell no levels apart know: the slowest link, the longest hop."""
        return self._flat(self.network_bytes_per_s)

    @property
    def flat_trees(self) -> Mapping[str, ArrayLike]:
        """The same of trees."""
        return self._flat(self.network_bytes_per_s if self.tree_bytes_per_s is None else self.tree_bytes_per_s)

    def _flat(self, rate: ArrayLike) -> Mapping[str, ArrayLike]:
        latency_s = self.network_latency_s
        if self.devices_per_machine > 1:
            rate = np.minimum(rate, self.inside_bytes_per_s)
            latency_s = np.maximum(latency_s, self.inside_latency_s)
        return {
            "bandwidth_bytes_per_s": rate,
            "latency_s": latency_s,
            "overhead_s": self.overhead_s,
            "reduce_bytes_per_s": self.reduce_bytes_per_s,
        }


def _trees_between_machines(places: Participants) -> Affines:
    """Trees between machines, fed by a chain inside each, as NCCL's are; in one machine, between its devices."""
    spans = np.asarray(places.num_machines) > 1
    trees = double_binary_tree_all_reduces(
        num_devices=np.where(spans, places.num_machines, places.devices_per_machine), **places.flat_trees
    )
    chain_s = np.where(spans, 2 * (places.devices_per_machine - 1) * np.asarray(places.inside_latency_s), 0.0)
    return Affines(startup_s=trees.startup_s + chain_s, per_byte_s=trees.per_byte_s)


def _two_levels_of_machines(places: Participants) -> Affines:
    return two_level_all_reduces(
        num_machines=places.num_machines,
        devices_per_machine=np.full_like(places.num_machines, places.devices_per_machine),
        inside_bytes_per_s=places.inside_bytes_per_s,
        network_bytes_per_s=places.network_bytes_per_s,
        inside_latency_s=places.inside_latency_s,
        network_latency_s=places.network_latency_s,
        overhead_s=places.overhead_s,
        reduce_bytes_per_s=places.reduce_bytes_per_s,
    )


def _in_network(places: Participants) -> Affines:
    """Switches add up and hand the sum to all: of NVLink inside machines, of the network between them.

    Inside, a device sends what it has and its part of the sum, ``(1 + 1/g) D/beta_in``, in two hops; between machines
    ``D/beta`` up and, at the same time, down. Source: B. Klenk et al., ISCA 2020, doi:10.1109/ISCA45697.2020.00085
    (shared memory, NVLink); R. L. Graham et al., COM-HPC 2016, doi:10.1109/COMHPC.2016.006 (InfiniBand). Leaves out
    what switches can hold: where they cannot, frameworks fall back.
    """
    number, spans = places.devices_per_machine, np.asarray(places.num_machines) > 1
    latency_s = np.where(spans, places.network_latency_s, 0.0)
    per_byte_s = np.where(spans, 1 / np.asarray(places.network_bytes_per_s), 0.0)
    if number > 1:  # a ring there and back, where no switch adds up: half of its hops each way
        hops, part = (1, 1 + 1 / number) if places.inside_reduces else (number - 1, 2 - 2 / number)
        latency_s = latency_s + hops * np.asarray(places.inside_latency_s, dtype=float)
        per_byte_s = per_byte_s + part / np.asarray(places.inside_bytes_per_s)
    is_alone = np.asarray(places.num_devices) <= 1
    return Affines(
        startup_s=np.where(is_alone, 0.0, places.overhead_s + 2 * latency_s),
        per_byte_s=np.where(is_alone, 0.0, per_byte_s),
    )


# The algorithms of an all-reduce by the names of planner.decisions.Algorithm; those of the second need equally many
# devices on every machine.
ALL_REDUCES: Registry[Callable[[Participants], Affines]] = Registry(
    "planner.cost_models",
    {
        "ring": lambda places: ring_all_reduces(num_devices=places.num_devices, **places.flat),
        "tree": _trees_between_machines,
        "two_level": _two_levels_of_machines,
        "in_network": _in_network,
    },
    needs=["__call__"],
)
EVEN_ALL_REDUCES = frozenset({"two_level", "in_network"})


def delayed(cost: TransferCost, startup_s: float) -> TransferCost:
    """Return a cost with a start-up more for every transfer of more than 0 bytes; source: the caller's own.

    Parameters
    ----------
    cost
        Seconds by bytes.
    startup_s
        What each transfer takes besides.
    """
    if isinstance(cost, Affine):
        return Affine(startup_s=cost.startup_s + startup_s, per_byte_s=cost.per_byte_s)
    return _Delayed(cost, startup_s) if startup_s else cost


@frozen(kw_only=False)
class _Delayed:
    cost: TransferCost
    startup_s: float

    def __call__(self, size_bytes: Floats, /) -> Floats:
        """Return seconds, in the shape of ``size_bytes``."""
        return np.where(np.asarray(size_bytes) > 0, self.cost(size_bytes) + self.startup_s, 0.0)


def cheapest_of(costs: Sequence[TransferCost]) -> TransferCost:
    """Return the cheapest cost at every size; one of them, where it is the cheapest at all sizes.

    Parameters
    ----------
    costs
        At least one: of the algorithms that may be chosen from.
    """
    affine = [cost for cost in costs if isinstance(cost, Affine)]
    if len(affine) == len(costs):
        startup_s, per_byte_s = min(one.startup_s for one in affine), min(one.per_byte_s for one in affine)
        for cost in affine:
            if cost.startup_s == startup_s and cost.per_byte_s == per_byte_s:
                return cost
    return CheapestOf(tuple(costs)) if len(costs) > 1 else costs[0]


@frozen
class PiecewiseLogLinear:
    """Eq. 18 of the OSF model: logarithmic below the bandwidth-delay product, linear from there on.

    ``a1 log2 D + b1`` for D < threshold, ``a2 D + b2`` otherwise, never below 0, and 0 for 0 bytes. It is continuous at
    the threshold only where it was fitted so; a larger transfer may then cost less than a smaller one.
    """

    log_slope_s: float
    log_offset_s: float
    per_byte_s: float
    offset_s: float
    threshold_bytes: float

    def __call__(self, size_bytes: Floats, /) -> Floats:
        """Return seconds, in the shape of ``size_bytes``."""
        size = np.asarray(size_bytes, dtype=np.float64)
        small = self.log_slope_s * np.log2(np.where(size > 0, size, 1.0)) + self.log_offset_s
        large = self.per_byte_s * size + self.offset_s
        seconds = np.maximum(np.where(size < self.threshold_bytes, small, large), 0.0)
        return np.where(size > 0, seconds, 0.0)


@frozen
class MeasuredCurve:
    """A measured table of size and seconds, interpolated.

    Raises
    ------
    ModelError
        Where the table is no such thing.

    Notes
    -----
    Linear between points. Below the smallest size its seconds hold, since what is left there is latency; above
    the largest the slope over the last factor of four goes on, or the mean slope from zero where noise left that flat.
    """

    # size_bytes, seconds: at least two points, sizes strictly ascending and positive. Noise that makes a larger
    # transfer faster is taken out by isotonic regression (least squares under monotony), so that the curve never falls
    size_bytes: tuple[float, ...]
    seconds: tuple[float, ...]
    _knots: tuple[Floats, Floats, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the table and make it monotone, once."""
        sizes, seconds = np.asarray(self.size_bytes, dtype=float), np.asarray(self.seconds, dtype=float)
        if len(sizes) < 2 or len(sizes) != len(seconds):
            raise ModelError(
                f"a measured curve needs at least two points of size and seconds; this one has {len(sizes)} sizes "
                f"and {len(seconds)} seconds."
            )
        if not (np.isfinite(sizes).all() and sizes[0] > 0 and (np.diff(sizes) > 0).all()):
            raise ModelError("the sizes of a measured curve must be positive, finite and strictly ascending.")
        if not (np.isfinite(seconds).all() and (seconds >= 0).all()):
            raise ModelError("the seconds of a measured curve must be finite and not negative.")
        if (np.diff(seconds) < 0).any():
            from scipy.optimize import isotonic_regression  # noqa: PLC0415  # 0.4 s of import, seldom needed

            seconds = np.asarray(isotonic_regression(seconds).x)
        tail = min(int(np.searchsorted(sizes, sizes[-1] / 4)), len(sizes) - 2)
        is_short = sizes[-1] < 2 * sizes[tail]  # points that near would make a slope of noise
        slope = 0.0 if is_short else float((seconds[-1] - seconds[tail]) / (sizes[-1] - sizes[tail]))
        object.__setattr__(self, "_knots", (sizes, seconds, slope or float(seconds[-1] / sizes[-1])))

    def __call__(self, size_bytes: Floats, /) -> Floats:
        """Return seconds, in the shape of ``size_bytes``."""
        size = np.asarray(size_bytes, dtype=np.float64)
        sizes, seconds, slope = self._knots
        inside: Floats = np.interp(size, sizes, seconds)
        return np.where(size > 0, inside + slope * np.maximum(size - sizes[-1], 0.0), 0.0)
