"""The narrow waist between physics and search: what a cost is, and what a network costs on a device."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.frozen import frozen

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class TransferCost(Protocol):
    """Seconds that one transfer of so many bytes takes; 0 for 0 bytes. Element by element for an array."""

    def __call__(self, size_bytes: Floats, /) -> Floats:
        """Return seconds, in the shape of ``size_bytes``."""
        ...


@frozen
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


@frozen(kw_only=False)
class CheapestOf:
    """The cheapest of several costs for every size: which algorithm an all-reduce of that size would use."""

    costs: tuple[TransferCost, ...]

    def __call__(self, size_bytes: Floats, /) -> Floats:
        """Return seconds, in the shape of ``size_bytes``."""
        return np.min([cost(size_bytes) for cost in self.costs], axis=0)  # type: ignore[no-any-return]


class Wait(StrEnum):
    """When a full fusion buffer is sent: what its wait for the next gradient (eq. 14 of the OSF model) does.

    A buffer that is closed because the next gradient no longer fits is noticed to be full only when that gradient
    arrives.
    """

    NONE = "none"  # the scheduler knows all sizes beforehand and sends at once
    EXACT = "exact"  # the wait runs while the channel is still busy
    PAPER = "paper"  # the wait is added after the channel is free, as eq. 15 is printed


@frozen(eq=False)
class Passes:
    """Seconds of one pass, by the samples that pass together: straight pieces, from 0 s for no sample on.

    They never fall as samples join, and seconds a sample never rise: ``f(a) <= f(b)`` and ``f(b) / b <= f(a) / a`` for
    ``a <= b``. Hence the pieces of a batch never take less than the whole of it, and the seconds a sample at the most
    samples that may pass together bound those of fewer from below. Behind the last piece's start seconds are in
    proportion to samples.
    """

    starts: Floats  # samples at which pieces start, rising from 0; length S
    # base_s, per_sample_s: seconds at a piece's start, and of each sample beyond it; S x whatever the seconds are of
    base_s: Floats
    per_sample_s: Floats

    @classmethod
    def linear(cls, per_sample_s: ArrayLike) -> "Passes":
        """Return seconds in proportion to samples, however many pass together.

        Parameters
        ----------
        per_sample_s
            Of any shape.
        """
        rate = np.asarray(per_sample_s, dtype=np.float64)[None]
        return cls(starts=np.zeros(1), base_s=np.zeros_like(rate), per_sample_s=rate)

    @classmethod
    def through(cls, samples: Floats, seconds: Floats) -> "Passes":
        """Return the straight lines through passes of so many samples.

        Parameters
        ----------
        samples, seconds
            K rising numbers, the first >= 1, and seconds of which the same is true as of the class; K x anything.
        """
        beyond = np.reshape(samples, (-1,) + (1,) * (seconds.ndim - 1))
        starts, base_s = np.concatenate(([0.0], samples)), np.concatenate((np.zeros_like(seconds[:1]), seconds))
        steps = np.diff(np.concatenate((np.zeros_like(beyond[:1]), beyond)), axis=0)
        slopes = np.concatenate((np.diff(base_s, axis=0) / steps, seconds[-1:] / beyond[-1:]))
        return cls(starts=starts, base_s=base_s, per_sample_s=slopes)

    @classmethod
    def stack(cls, rows: "Sequence[Passes]") -> "Passes":
        """Return several as one, the first axis behind the pieces.

        Parameters
        ----------
        rows
            Of equal shapes; their pieces may start elsewhere.
        """
        starts = rows[0].starts
        if any(not np.array_equal(one.starts, starts) for one in rows):
            every = np.concatenate([one.starts for one in rows])
            starts = np.array(sorted(set(every.tolist())), dtype=every.dtype)
            rows = [one._cut_at(starts) for one in rows]
        return cls(
            starts=starts,
            base_s=np.stack([one.base_s for one in rows], axis=1),
            per_sample_s=np.stack([one.per_sample_s for one in rows], axis=1),
        )

    def _cut_at(self, starts: Floats) -> "Passes":
        """Return the same with a piece from each of these starts on, which hold all of its own."""
        at = np.searchsorted(self.starts, starts, side="right") - 1
        return Passes(starts=starts, base_s=self(starts), per_sample_s=self.per_sample_s[at])

    @property
    def is_linear(self) -> bool:
        """Whether a sample takes as long however many pass together."""
        return len(self.starts) == 1

    def map(self, change: Callable[[Floats], Floats]) -> "Passes":
        """Return sums, parts or multiples of the seconds.

        Parameters
        ----------
        change
            A linear function of what comes behind the first axis.
        """
        return Passes(starts=self.starts, base_s=change(self.base_s), per_sample_s=change(self.per_sample_s))

    def part(self, index: int) -> "Passes":
        """Return the seconds of one of the entries that come behind the pieces.

        Parameters
        ----------
        index
            Of the entry.
        """
        return self.map(lambda seconds: seconds[:, index])

    def plus(self, other: "Passes") -> "Passes":
        """Return the seconds of both together, whose pieces start alike.

        Parameters
        ----------
        other
            Of a shape that fits.
        """
        return Passes(
            starts=self.starts,
            base_s=self.base_s + other.base_s,
            per_sample_s=self.per_sample_s + other.per_sample_s,
        )

    def __call__(self, samples: Floats | Ints | float) -> Floats:
        """Return the seconds of passes of so many samples: of the samples' shape, and then that of the seconds."""
        many = np.asarray(samples)
        wide = many.reshape(many.shape + (1,) * (self.per_sample_s.ndim - 1))
        if self.is_linear:
            return np.asarray(self.per_sample_s[0] * wide)
        at = np.searchsorted(self.starts, many, side="right") - 1
        beyond = wide - self.starts[at].reshape(wide.shape)
        return np.asarray(self.base_s[at] + self.per_sample_s[at] * beyond)

    def of_each(self, samples: Floats | Ints) -> Floats:
        """Return the seconds where each of T has samples of its own; K x T and then the seconds' shape behind T.

        Parameters
        ----------
        samples
            K x T, where the seconds' first axis is of length T.
        """
        wide = samples.reshape(samples.shape + (1,) * (self.per_sample_s.ndim - 2))
        if self.is_linear:
            return np.asarray(wide * self.per_sample_s[0])
        at, each = np.searchsorted(self.starts, samples, side="right") - 1, np.arange(samples.shape[-1])
        beyond = wide - self.starts[at].reshape(wide.shape)
        return np.asarray(self.base_s[at, each] + self.per_sample_s[at, each] * beyond)

    def between(
        self, low: tuple[Ints | int, ...], high: tuple[Ints | int, ...], samples: Floats | Ints | float
    ) -> Floats:
        """Return the seconds of what lies between two entries of prefix sums.

        Parameters
        ----------
        low, high
            Indices of the entries, behind the pieces; numbers or arrays, which broadcast with the samples.
        samples
            That pass together.
        """
        if self.is_linear:
            rates = self.per_sample_s[0]
            in_proportion: Floats = (rates[high] - rates[low]) * samples
            return in_proportion
        at = np.searchsorted(self.starts, samples, side="right") - 1
        base_s, slope_s = (one[(at, *high)] - one[(at, *low)] for one in (self.base_s, self.per_sample_s))
        seconds: Floats = base_s + slope_s * (samples - self.starts[at])
        return seconds

    def least_s(self, most: Floats | Ints | float) -> Floats:
        """Return the seconds a sample that no pass of at most so many samples is below; the seconds' shape.

        Parameters
        ----------
        most
            Samples >= 1: a number, or one for each entry of the seconds' first axis.
        """
        if self.is_linear:
            return np.asarray(self.per_sample_s[0])
        many = np.minimum(np.asarray(most, dtype=np.float64), self.starts[-1])  # beyond which nothing changes
        if not many.ndim:
            return np.asarray(self(many) / many)
        return np.asarray(self.of_each(many[None])[0] / many.reshape(many.shape + (1,) * (self.base_s.ndim - 2)))

    def most_samples(self, seconds: Floats) -> Floats:
        """Return the samples of the largest passes that take so long at most: infinitely many where they take no time.

        Parameters
        ----------
        seconds
            Of any shape that ends in that of one pass; negative: less than no sample is returned.
        """
        at = np.zeros(seconds.shape, dtype=np.intp)
        for base_s in self.base_s[1:]:
            at += base_s <= seconds
        index = (at, *np.indices(seconds.shape, sparse=True)[seconds.ndim - self.base_s.ndim + 1 :])
        left, slope = seconds - self.base_s[index], self.per_sample_s[index]
        free = np.where(left >= 0, np.inf, -1.0)
        return np.asarray(self.starts[at] + np.divide(left, slope, out=free, where=slope > 0))


@frozen
class Band:
    """How far seconds that were computed are off: 80 % of measured / predicted - 1 lie from ``low`` to ``high``."""

    low: float
    high: float
    of: str  # what was measured, and left out of the fit
    source: str  # the page that says it
    # share of the errors of each source that the band of all others holds; None where that was not validated
    coverage: float | None
    is_device_measured: bool  # whether training steps of the same kind were measured on the device

    @property
    def from_its_slow_end(self) -> "Band":
        """The band of seconds that are already those of its slow end."""
        return replace(self, low=(1 + self.low) / (1 + self.high) - 1, high=0.0)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Seconds of every layer on one device, in the order of ``Dnn.layers``."""

    # forward_s, backward_s: per sample, where as many pass together as make a difference: no sample takes less. Shape
    # (layers,)
    forward_s: Floats
    backward_s: Floats
    # together, forward_factors, backward_factors: K rising numbers of samples, and how many times as long a sample
    # takes where so many pass together; K x layers. Nothing where a sample takes as long however many pass
    together: tuple[float, ...] = ()
    forward_factors: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    backward_factors: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    update_s: float = 0.0  # the optimiser's step, once an iteration
    read_s: float | None = None  # reading one sample, where it was measured; else None
    is_measured: bool = False  # a measured profile always wins over an estimate, and the plan says which it used
    origin: str = ""  # how the seconds came about, for the reader of a plan
    measured_on: str = ""  # the device that was measured, as the file itself says; empty where it does not
    band: Band | None = None  # how far such seconds are off; None where that is not known

    @classmethod
    def of_passes(
        cls,
        together: Sequence[float],
        forward_s: Floats,
        backward_s: Floats,
        *,
        update_s: float = 0.0,
        origin: str = "",
    ) -> "Profile":
        """Return the profile of passes of several numbers of samples.

        Where a pass would take longer a sample than a smaller one, it is done in such pieces; where it would take less
        time than a smaller one, it takes as long.

        Parameters
        ----------
        together, forward_s, backward_s
            K rising numbers of samples, and the seconds of a pass of so many; K x layers.
        update_s, origin
            Passed on.
        """
        many = np.array(together, dtype=np.float64)[:, None]
        rates = []
        for seconds in (forward_s, backward_s):
            whole_s = np.minimum.accumulate(seconds / many, axis=0) * many
            rates.append(np.maximum.accumulate(whole_s, axis=0) / many)
        factors = [np.divide(rate, rate[-1], out=np.ones_like(rate), where=rate[-1] > 0) for rate in rates]
        return cls(
            forward_s=rates[0][-1],
            backward_s=rates[1][-1],
            together=tuple(many[:, 0].tolist()),
            forward_factors=factors[0],
            backward_factors=factors[1],
            update_s=update_s,
            origin=origin,
        )

    @cached_property
    def forward(self) -> Passes:
        """Seconds of every layer's forward pass, by the samples that pass together."""
        return self._passes(self.forward_s, self.forward_factors)

    @cached_property
    def backward(self) -> Passes:
        """Seconds of every layer's backward pass, by the samples that pass together."""
        return self._passes(self.backward_s, self.backward_factors)

    def _passes(self, per_sample_s: Floats, factors: Floats) -> Passes:
        """Return the passes of one direction."""
        if not self.together:
            return Passes.linear(per_sample_s)
        many = np.array(self.together)
        return Passes.through(many, many[:, None] * factors * per_sample_s)

    @cached_property
    def whole(self) -> tuple[Passes, Passes]:
        """Forward and backward passes of the whole network."""
        return self.forward.map(_sum), self.backward.map(_sum)

    def slower(self, factor: float) -> "Profile":
        """Return the profile of a device that computes and updates as many times as slowly.

        Parameters
        ----------
        factor
            Over 0.
        """
        return replace(
            self,
            forward_s=self.forward_s * factor,
            backward_s=self.backward_s * factor,
            update_s=self.update_s * factor,
        )

    def with_together(self, together: Sequence[float]) -> "Profile":
        """Return the same seconds, stated for passes of so many samples.

        Parameters
        ----------
        together
            Numbers of samples, among them all for which they are stated.
        """
        many = np.array(together, dtype=np.float64)
        stated = Profile.of_passes(together, self.forward(many), self.backward(many))
        return self._with_passes_of(stated)

    def of_pieces(self, starts: Ints) -> "Profile":
        """Return the profile of pieces of the network.

        Parameters
        ----------
        starts
            The first layer of each piece.
        """
        forward_s, backward_s = (np.add.reduceat(one, starts) for one in (self.forward_s, self.backward_s))
        if not self.together:
            return replace(self, forward_s=forward_s, backward_s=backward_s)
        rows = [np.add.reduceat(one.base_s[1:], starts, axis=1) for one in (self.forward, self.backward)]
        pieces = Profile.of_passes(self.together, rows[0], rows[1])
        return self._with_passes_of(pieces)

    def _with_passes_of(self, other: "Profile") -> "Profile":
        """Return this profile with another's seconds of passes."""
        return replace(
            self,
            forward_s=other.forward_s,
            backward_s=other.backward_s,
            together=other.together,
            forward_factors=other.forward_factors,
            backward_factors=other.backward_factors,
        )

    def least_s(self, most: float) -> Floats:
        """Return the seconds a sample of every layer, both ways, that no pass of at most so many samples is below.

        Parameters
        ----------
        most
            Samples >= 1.
        """
        return self.forward.least_s(most) + self.backward.least_s(most)

    def sample_s(self, most: float) -> float:
        """Return the sum of :meth:`least_s` over the layers.

        Parameters
        ----------
        most
            Samples >= 1.
        """
        forward, backward = self.whole
        return float(forward.least_s(most) + backward.least_s(most))


def _sum(seconds: Floats) -> Floats:
    """Return the sum over the layers."""
    return np.asarray(seconds.sum(axis=-1))
