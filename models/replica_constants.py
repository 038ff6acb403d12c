"""Constants of the Adam model: what the canonical loops and the network take, and what every layer takes.

Source: F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015, doi:10.1145/2783258.2783270, section 4 and eq. 9.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import log

import numpy as np

from planner.errors import ModelError

__all__ = ["ByPartitions", "ByThreads", "ByWorkingSet", "Connections", "Constants", "LayerSeconds"]


@dataclass(frozen=True, slots=True)
class ByPartitions:
    """``C_muladd`` by P, where the cache effect was measured or fitted so."""

    seconds: Mapping[int, float]

    def __call__(self, working_set_bytes: float, num_partitions: int, /) -> float:
        """Return seconds; raise ModelError for a P that is not in the table."""
        if num_partitions not in self.seconds:
            known = ", ".join(map(str, self.seconds))
            raise ModelError(f"C_muladd is known for P = {known}, not for {num_partitions}. Add it.")
        return self.seconds[num_partitions]


@dataclass(frozen=True, slots=True)
class ByWorkingSet:
    """``C_muladd`` by the bytes that a segment's loop touches: straight lines over the logarithm, constant outside.

    >>> ByWorkingSet(((1e3, 1.0), (1e5, 3.0)))(1e5, 1)
    3.0
    """

    points: tuple[tuple[float, float], ...]

    def __call__(self, working_set_bytes: float, num_partitions: int, /) -> float:
        """Return seconds."""
        sizes, seconds = zip(*self.points, strict=True)
        return float(np.interp(log(max(working_set_bytes, 1)), np.log(sizes), seconds))


@dataclass(frozen=True, slots=True)
class ByThreads:
    """``C_interf`` (eq. 9) or ``C_ncost`` by H, straight lines between the points.

    >>> ByThreads(((1, 1.0), (16, 2.5)))(6)
    1.5
    """

    points: tuple[tuple[int, float], ...]

    def __call__(self, num_threads: int, /) -> float:
        """Return the factor or the seconds; raise ModelError outside the points."""
        threads, values = zip(*self.points, strict=True)
        if not threads[0] <= num_threads <= threads[-1]:
            raise ModelError(f"{num_threads} threads: known for {threads[0]} to {threads[-1]} only. Measure there.")
        return float(np.interp(num_threads, threads, values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What the canonical loops and the network take.

    Attributes
    ----------
    multiply_add_s
        ``C_muladd``, of a segment's working set in bytes (weights, what it reads, its neurons) and of P: the cache
        effect, which makes model parallelism super-linear.
    activation_s, error_s
        ``C_act`` and ``C_err``, of a neuron.
    bandwidth_bytes_per_s, number_bytes
        ``C_nbw / 8`` and ``C_bits / 8``.
    latency_s, interference
        ``C_ncost(H)``, and ``C_interf(H) >= 1``.
    """

    multiply_add_s: Callable[[float, int], float]
    activation_s: float
    error_s: float
    bandwidth_bytes_per_s: float
    latency_s: Callable[[int], float]
    number_bytes: float = 4.0
    interference: Callable[[int], float] = lambda _: 1.0


class Connections(StrEnum):
    """``W_c'(l,p)`` of eq. 7, the connections from layer l+1 to a segment.

    A padded or unpadded edge has fewer of them; the paper takes segments to have "roughly the same number".
    """

    COUNTED = "counted"
    EVEN = "even"  # in proportion to the segment's neurons


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSeconds:
    """Measured seconds of a whole layer, of a sample on one thread, in place of counts times ``C_muladd``.

    ``error_s`` is the time of this layer's error terms, which the layer above sends down: none for the last layer.
    Segments share them in proportion to their connections, or to their neurons in a layer that has none.
    """

    forward_s: float
    error_s: float
    update_s: float
