"""Seconds of one all-reduce, as a function of its bytes.

Closed forms (ring, double binary tree, two levels) are affine and come back as :class:`planner.cost.Affine`; the
piecewise log-linear form (eq. 18 of the OSF model) and a measured curve are transfer costs of their own. All take 0 s
for 0 bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from planner.cost import Affine, Floats, TransferCost
from planner.errors import ModelError

__all__ = [
    "Affines",
    "CheapestOf",
    "MeasuredCurve",
    "PiecewiseLogLinear",
    "cheapest_of",
    "delayed",
    "double_binary_tree_all_reduces",
    "ring_all_reduces",
    "two_level_all_reduces",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Affines:
    """Affine costs of many settings at once: arrays of one shape. A setting of one device costs nothing."""

    startup_s: Floats
    per_byte_s: Floats

    def at(self, index: int) -> Affine:
        """Return one of the costs."""
        return Affine(startup_s=float(self.startup_s[index]), per_byte_s=float(self.per_byte_s[index]))


def ring_all_reduces(
    *,
    num_devices: ArrayLike,
    bandwidth_bytes_per_s: ArrayLike,
    latency_s: ArrayLike = 0.0,
    overhead_s: float = 0.0,
    reduce_bytes_per_s: ArrayLike = float("inf"),
) -> Affines:
    """Return the costs of all-reduces over rings.

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

    Notes ----- ``overhead + 2 (N-1) latency + 2 (N-1)/N D/beta + (N-1)/N D/(pi s)``: a reduce-scatter, then an
    all-gather, in N-1 steps each. Source: T. Liu et al., WWW '22, doi:10.1145/3485447.3511981, eq. 7, with its
    ``delta`` split into overhead and hops; the ring: P. Patarasuk and X. Yuan, J. Parallel Distrib. Comput. 69(2),
    2009, doi:10.1016/j.jpdc.2008.09.002.

    >>> cost = ring_all_reduces(num_devices=[4], bandwidth_bytes_per_s=1e9).at(0)
    >>> float(cost(np.float64(4e9)))
    6.0
    """
    n = np.asarray(num_devices, dtype=float)
    share = (n - 1) / n
    return _where_many(
        n,
        overhead_s + 2 * (n - 1) * np.asarray(latency_s),
        2 * share / np.asarray(bandwidth_bytes_per_s) + share / np.asarray(reduce_bytes_per_s),
    )


def double_binary_tree_all_reduces(
    *,
    num_devices: ArrayLike,
    bandwidth_bytes_per_s: ArrayLike,
    latency_s: ArrayLike = 0.0,
    overhead_s: float = 0.0,
    reduce_bytes_per_s: ArrayLike = float("inf"),
) -> Affines:
    """Return the costs of all-reduces over two complementary binary trees, pipelined; parameters as for the ring.

    Notes
    -----
    ``overhead + 2 ceil(log2 N) latency + 2 D/beta + D/(pi s)``: every device is inner node of one tree and leaf of the
    other, so that both directions of its link are busy. Its bandwidth term is the ring's for large N, and
    twice the ring's at N = 2. Source: P. Sanders, J. Speck, J. L. Träff, Parallel Computing 35(12), 2009,
    doi:10.1016/j.parco.2009.09.001. Leaves out the fill of the pipeline, which is short for large buffers.
    """
    n = np.asarray(num_devices, dtype=float)
    return _where_many(
        n,
        overhead_s + 2 * np.ceil(np.log2(n)) * np.asarray(latency_s),
        2 / np.asarray(bandwidth_bytes_per_s) + 1 / np.asarray(reduce_bytes_per_s),
    )


def two_level_all_reduces(
    *,
    num_machines: ArrayLike,
    devices_per_machine: ArrayLike,
    inside_bytes_per_s: ArrayLike,
    network_bytes_per_s: ArrayLike,
    inside_latency_s: ArrayLike = 0.0,
    network_latency_s: ArrayLike = 0.0,
    overhead_s: float = 0.0,
    reduce_bytes_per_s: ArrayLike = float("inf"),
) -> Affines:
    """Return the costs of reduce-scatter inside machines, all-reduce between them, all-gather inside.

    Parameters
    ----------
    network_bytes_per_s
        Of a machine: all its network cards together, which the rails of its devices share.

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
    return _where_many(n * g, overhead_s + inside.startup_s + between.startup_s, inside.per_byte_s + between.per_byte_s)


def _where_many(num_devices: Floats, startup_s: Floats, per_byte_s: Floats) -> Affines:
    """Return the costs, 0 where there is one device."""
    many = num_devices > 1
    return Affines(startup_s=np.where(many, startup_s, 0.0), per_byte_s=np.where(many, per_byte_s, 0.0))


def delayed(cost: TransferCost, startup_s: float) -> TransferCost:
    """Return the cost with so many seconds more for every transfer."""
    if isinstance(cost, Affine):
        return Affine(startup_s=cost.startup_s + startup_s, per_byte_s=cost.per_byte_s)
    return _Delayed(cost, startup_s) if startup_s else cost


@dataclass(frozen=True, slots=True)
class _Delayed:
    """A cost and a constant."""

    cost: TransferCost
    startup_s: float

    def __call__(self, size_bytes: Floats, /) -> Floats:
        """Return seconds, in the shape of ``size_bytes``."""
        return np.where(np.asarray(size_bytes) > 0, self.cost(size_bytes) + self.startup_s, 0.0)


def cheapest_of(costs: Sequence[TransferCost]) -> TransferCost:
    """Return the cheapest cost at every size; one of them, where it is the cheapest at all sizes."""
    for cost in costs:
        if isinstance(cost, Affine) and all(_is_never_dearer(cost, other) for other in costs):
            return cost
    return CheapestOf(tuple(costs)) if len(costs) > 1 else costs[0]


def _is_never_dearer(cost: Affine, other: TransferCost) -> bool:
    """Whether both terms of an affine cost are at most the other's."""
    return isinstance(other, Affine) and cost.startup_s <= other.startup_s and cost.per_byte_s <= other.per_byte_s


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCurve:
    """A measured table of size and seconds, interpolated.

    Parameters
    ----------
    size_bytes, seconds
        At least two points, sizes strictly ascending and positive. Noise that makes a larger transfer faster is taken
        out by isotonic
        regression (least squares under monotony), so that the curve never falls.

    Notes
    -----
    Linear between points. Below the smallest size its seconds hold, since what is left there is latency; above
    the largest the slope over the last factor of four goes on, or the mean slope from zero where noise left that flat.
    """

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
        tail = int(np.searchsorted(sizes, sizes[-1] / 4))
        tail = min(tail, len(sizes) - 2)
        is_short = sizes[-1] < 2 * sizes[tail]  # points that near would make a slope of noise
        slope = 0.0 if is_short else float((seconds[-1] - seconds[tail]) / (sizes[-1] - sizes[tail]))
        object.__setattr__(self, "_knots", (sizes, seconds, slope or float(seconds[-1] / sizes[-1])))

    def __call__(self, size_bytes: Floats, /) -> Floats:
        """Return seconds, in the shape of ``size_bytes``."""
        size = np.asarray(size_bytes, dtype=np.float64)
        sizes, seconds, slope = self._knots
        inside: Floats = np.interp(size, sizes, seconds)
        return np.where(size > 0, inside + slope * np.maximum(size - sizes[-1], 0.0), 0.0)


@dataclass(frozen=True, slots=True)
class CheapestOf:
    """The cheapest of several costs for every size: which algorithm an all-reduce of that size would use."""

    costs: tuple[TransferCost, ...]

    def __call__(self, size_bytes: Floats, /) -> Floats:
        """Return seconds, in the shape of ``size_bytes``."""
        return np.min([cost(size_bytes) for cost in self.costs], axis=0)  # type: ignore[no-any-return]
