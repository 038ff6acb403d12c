"""Compression of gradients: what it saves on the wire, what it costs to compute, and the best ratio.

Source: X. Zhang et al., Performance Modeling and Analysis of Distributed Deep Neural Network Training with Parameter
Server, section V-C. The ratio ``r`` is the share of the gradient that is *removed*: packets are multiplied by 1 - r,
and compressing takes ``k / (1 - r)^2``, the text's "inverse square" in the only reading with an optimum (``k / r^2``
falls with r, as does the transfer). Left out: decompression, and what a lossy gradient does to convergence.
"""

from math import inf

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError
from planner.frozen import frozen


@frozen(eq=False)
class Compression:
    """A ratio, or an array of them, and the seconds ``k`` of passing over the gradient without removing anything.

    Raises
    ------
    ModelError
        Unless ``0 <= removed < 1`` and ``scale_s >= 0``.
    """

    removed: float | Floats
    scale_s: float

    def __post_init__(self) -> None:
        share = np.asarray(self.removed)
        if not ((share >= 0) & (share < 1)).all():
            raise ModelError(f"removed is {self.removed}. It must be a share from 0 to below 1: 1 sends nothing.")
        if not 0 <= self.scale_s < inf:
            raise ModelError(f"scale_s is {self.scale_s}. It must be finite and not negative.")

    @property
    def kept(self) -> Floats:
        """The share that is sent."""
        return np.asarray(1 - np.asarray(self.removed))

    @property
    def time_s(self) -> Floats:
        """Seconds of compressing one worker's whole gradient; they join the push."""
        return np.asarray(self.scale_s / self.kept**2)


@frozen
class OptimalCompression:
    """The best ratio and its proof."""

    # removed, time_s: the ratio ``r*`` and the seconds with it
    removed: float  # 0: compressing is best done without removing anything, that is, not at all
    time_s: float
    bound_s: float  # no ratio takes less; equals ``time_s`` up to rounding
    pays: bool  # whether it beats not compressing, which takes ``A`` and saves k itself


def optimal_compression(*, scale_s: float, transfer_s: float) -> OptimalCompression:
    """Return the ratio that minimises ``A (1 - r) + k / (1 - r)^2``.

    Parameters
    ----------
    scale_s, transfer_s
        ``k`` and ``A``, both > 0.

    Raises
    ------
    ModelError
        If one is not positive: without k the more is removed the better, and no best ratio exists.

    Notes
    -----
    With ``x = 1 - r`` the time is convex, and ``x* = (2k/A)^(1/3)`` where that is below 1, else 1. Proof: by the
    inequality of the means ``Ax/2 + Ax/2 + k/x^2 >= 3 (A^2 k / 4)^(1/3)``, met at x*; for ``2k >= A`` the
    tangent at 1 falls, so no x <= 1 takes less than ``A + k``. It pays where ``27 k < 4 A``.

    Exact only where all of A scales with the packets. Start-up, queueing and the part hidden behind the backward
    pass do not: then scan the ratio with :func:`planner.cases.forms.gst.evaluate`.

    >>> round(optimal_compression(scale_s=0.032, transfer_s=1).removed, 9)
    0.6
    """
    if not (0 < scale_s < inf and 0 < transfer_s < inf):
        raise ModelError(f"scale_s is {scale_s} and transfer_s {transfer_s}. Both must be positive and finite.")
    kept = min(1.0, float(np.cbrt(2 * scale_s / transfer_s)))
    means_s = 3 * float(np.cbrt(scale_s) * np.cbrt(transfer_s / 2) ** 2)
    return OptimalCompression(
        removed=1 - kept,
        time_s=transfer_s * kept + scale_s / kept**2,
        bound_s=means_s if kept < 1 else transfer_s + scale_s,
        pays=27 * scale_s < 4 * transfer_s,
    )


def optimal_scale_s(*, removed: float, transfer_s: float) -> float:
    """Return the ``k`` for which a ratio is the best one: ``A (1 - r)^3 / 2``.

    Parameters
    ----------
    removed, transfer_s
        The ratio ``r`` and the seconds ``A`` without compression.
    """
    return float(transfer_s * Compression(removed=removed, scale_s=0.0).kept ** 3 / 2)
