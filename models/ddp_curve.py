"""The seconds of one all-reduce as a training run meets it, from what was measured on the idle links of its session.

An isolated measurement has a barrier before it, links at rest and, with a delay, connections whose windows have not yet
grown; a training run sends one all-reduce after another. The isolated medians therefore give the curve's shape, and its
level comes from sizes that were measured in other ways as well: a train without pauses, again when the session ended,
and two issued together (half the time of both). At such a size the level is the median of those other measurements over
the isolated median; between such sizes it is interpolated over the logarithm of the size, beyond them it stays. No
figure is fitted, but the rule is: the best of 51 on 22 measured runs (``docs/accuracy_runs.md``).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from planner.models.collectives import MeasuredCurve

__all__ = ["per_byte_s", "steadied"]

_LARGE_BYTES = 2 * 2**20  # from here on latency is below a hundredth, on the slowest of the measured networks


def steadied(
    size_bytes: Sequence[float], isolated_s: Sequence[float], repeats_s: Mapping[float, Sequence[float]]
) -> MeasuredCurve:
    """Return the curve with its level set by repeats.

    Parameters
    ----------
    size_bytes, isolated_s
        The isolated medians, sizes strictly ascending.
    repeats_s
        Size -> seconds of the other measurements; sizes that the isolated ones lack are passed over.

    >>> curve = steadied([1e3, 1e6], [1.0, 2.0], {1e6: [1.9, 1.8, 2.1]})
    >>> float(curve(1e6)), float(curve(1e3))
    (1.9, 0.95)
    """
    sizes, seconds = np.asarray(size_bytes, dtype=float), np.asarray(isolated_s, dtype=float)
    known = {float(size): float(time) for size, time in zip(sizes, seconds, strict=True)}
    repeated = sorted(size for size, times in repeats_s.items() if times and float(size) in known)
    if repeated:
        levels = [float(np.median(repeats_s[size])) / known[float(size)] for size in repeated]
        seconds = seconds * np.exp(np.interp(np.log(sizes), np.log(repeated), np.log(levels)))
    return MeasuredCurve(size_bytes=tuple(sizes.tolist()), seconds=tuple(seconds.tolist()))


def per_byte_s(size_bytes: Sequence[float], curve: MeasuredCurve) -> float:
    """Return the seconds that a byte of a large all-reduce takes of the link: the median over sizes of 2 MiB and more.

    Where all are smaller, the largest tells.
    """
    large = [size for size in size_bytes if size >= _LARGE_BYTES] or [max(size_bytes)]
    sizes = np.asarray(large, dtype=float)
    return float(np.median(curve(sizes) / sizes))
