"""The narrow waist between physics and search: what a cost is, and what a network costs on a device."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Affine", "Floats", "Profile", "TransferCost", "Wait"]

Floats = NDArray[np.float64]


class TransferCost(Protocol):
    """Seconds that one transfer of so many bytes takes; 0 for 0 bytes. Element by element for an array."""

    def __call__(self, size_bytes: Floats, /) -> Floats:
        """Return seconds, in the shape of ``size_bytes``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """The commonest :class:`TransferCost`: a start-up and so many seconds a byte; nothing is sent for 0 bytes.

    A class of its own, because solvers are faster and bounds tighter where the cost is known to be affine. Both numbers
    are finite and >= 0.

    >>> Affine(startup_s=1.0, per_byte_s=0.5)(np.array([0.0, 4.0])).tolist()
    [0.0, 3.0]
    """

    startup_s: float
    per_byte_s: float

    def __post_init__(self) -> None:
        if not (0 <= self.startup_s < math.inf and 0 <= self.per_byte_s < math.inf):
            raise ValueError(f"{self}: startup_s and per_byte_s must be finite and >= 0.")

    def __call__(self, size_bytes: Floats, /) -> Floats:
        """Return ``startup_s + per_byte_s size_bytes``, and 0 for 0."""
        size = np.asarray(size_bytes, dtype=np.float64)
        return np.where(size > 0, self.startup_s + self.per_byte_s * size, 0.0)


class Wait(StrEnum):
    """When a full fusion buffer is sent: what its wait for the next gradient (eq. 14 of the OSF model) does.

    A buffer that is closed because the next gradient no longer fits is noticed to be full only when that gradient
    arrives.
    """

    NONE = "none"  # the scheduler knows all sizes beforehand and sends at once
    EXACT = "exact"  # the wait runs while the channel is still busy
    PAPER = "paper"  # the wait is added after the channel is free, as eq. 15 is printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Seconds of every layer on one device, per sample, in the order of ``Dnn.layers``.

    Attributes
    ----------
    forward_s, backward_s
        Per sample; a batch multiplies them.
    update_s
        The optimiser's step, once an iteration.
    read_s
        Reading one sample, where it was measured; else None.
    is_measured
        A measured profile always wins over an estimate, and the plan says which it used.
    few_samples_factor
        How many times as long a sample takes where few pass at a time, as in a pipeline's micro-batches; >= 1.
    origin
        How the seconds came about, for the reader of a plan.
    measured_on
        The device that was measured, as the file itself says; empty where it does not.
    """

    forward_s: Floats
    backward_s: Floats
    update_s: float = 0.0
    read_s: float | None = None
    is_measured: bool = False
    few_samples_factor: float = 1.0
    origin: str = ""
    measured_on: str = ""
