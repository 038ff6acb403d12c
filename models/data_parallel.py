"""One iteration of synchronous data-parallel training: computation, gradients as they get ready, and what is exposed.

Gradients become ready in the reverse of the forward order. Time runs from the start of the (last) backward pass. The
overlap of communication and computation is that of T. Liu et al., WWW '22, doi:10.1145/3485447.3511981, eqs. 3 to 16.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from planner.channel import FusionSchedule
from planner.cost import Floats, Profile
from planner.dnn import Dnn

__all__ = ["Gradients", "Kinds", "Step", "exposed_s", "gradients_of"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """What has to be exchanged, in ready order: names, bytes, and when each is ready, in seconds per sample."""

    names: tuple[str, ...]
    size_bytes: Floats
    ready_s_per_sample: Floats

    @property
    def total_bytes(self) -> float:
        """All gradients."""
        return float(self.size_bytes.sum())


def gradients_of(dnn: Dnn, profile: Profile, *, gradient_bytes: int, unit: str = "layer") -> Gradients:
    """Return the gradients of a network.

    Parameters
    ----------
    gradient_bytes
        Bytes of one number.
    unit
        ``layer``: one gradient for every layer with weights; batch norm goes with the layer before it, as
        the OSF model counts layers. ``tensor``: one for every trainable tensor, ready with its layer.
    """
    after_s = np.cumsum(profile.backward_s[::-1])[::-1]  # backward of this layer and of all later ones
    rows = (dnn.trained_tensors if unit == "tensor" else dnn.trained_layers)[::-1]
    return Gradients(
        names=tuple(name for name, _, _ in rows),
        size_bytes=np.array([float(number * gradient_bytes) for _, number, _ in rows]),
        ready_s_per_sample=after_s[[index for _, _, index in rows]],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Computation of one iteration on the device with the largest share, in ``num_microbatches`` passes.

    Gradients are exchanged during the backward pass of the last micro-batch, which is one of the larger ones.
    """

    forward_s: float
    backward_s: float
    last_backward_s: float
    update_s: float

    @classmethod
    def of(cls, profile: Profile, *, batch_per_device: int, num_microbatches: int = 1) -> "Step":
        """Return the step of a share of ``batch_per_device`` samples."""
        backward_s = float(profile.backward_s.sum())
        return cls(
            forward_s=float(profile.forward_s.sum()) * batch_per_device,
            backward_s=backward_s * batch_per_device,
            last_backward_s=backward_s * ceil(batch_per_device / num_microbatches),
            update_s=profile.update_s,
        )

    @property
    def computation_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kinds:
    """Several kinds of devices that train on one batch, T of them; L gradients in ready order.

    Attributes
    ----------
    forward_s, backward_s
        Of the whole network, per sample; length T.
    update_s
        The optimiser's step; length T.
    ready_s_per_sample
        When each gradient is ready in a backward pass, per sample; T x L, at most ``backward_s``.
    most_at_a_time
        Samples that a device's memory holds; length T, each >= 1. A larger share is worked off in micro-batches.
    num_microbatches
        The number of micro-batches of each kind, length T, where it is pinned; None: the fewest that fit.
    """

    forward_s: Floats
    backward_s: Floats
    update_s: Floats
    ready_s_per_sample: Floats
    most_at_a_time: Ints
    num_microbatches: Ints | None = None

    @property
    def least_shares(self) -> Ints:
        """The smallest share of each kind: a sample for every micro-batch."""
        return np.ones(len(self.forward_s), dtype=np.int64) if self.num_microbatches is None else self.num_microbatches

    @property
    def most_shares(self) -> Floats:
        """The largest share of each kind that its memory allows, in so many micro-batches as are pinned."""
        if self.num_microbatches is None:
            return np.full(len(self.forward_s), np.inf)
        most: Floats = self.most_at_a_time.astype(float) * self.num_microbatches
        return most

    def microbatches(self, shares: Ints) -> Ints:
        """Return the number of micro-batches of every share; K x T, as ``shares``."""
        fewest = -(-shares // self.most_at_a_time)
        return fewest if self.num_microbatches is None else np.broadcast_to(self.num_microbatches, shares.shape)

    def last_samples(self, shares: Ints) -> Ints:
        """Return the samples of the last backward pass, whose gradients are exchanged; K x T."""
        return -(-shares // self.microbatches(shares))

    def computed_s(self, shares: Ints) -> Floats:
        """Return when every kind has computed its share, from the start of the iteration; K x T."""
        seconds: Floats = (self.forward_s + self.backward_s) * shares
        return seconds

    def ready_s(self, shares: Ints) -> Floats:
        """Return when every gradient may be sent: when the last kind of device has it; K x L.

        A device starts its last backward pass ``backward_s`` times that pass's samples before it has computed all.
        Never falls as a share grows: a larger share takes longer up to every gradient, also where it needs one
        micro-batch more and the last pass is therefore shorter, since all passes before it are longer by as much.
        """
        ready_s: Floats = self.ready_by_kind_s(shares).max(axis=1)
        return ready_s

    def ready_by_kind_s(self, shares: Ints) -> Floats:
        """Return when each kind of device has every gradient; K x T x L."""
        samples = self.last_samples(shares)
        start_s = self.computed_s(shares) - self.backward_s * samples
        ready_s: Floats = start_s[:, :, None] + samples[:, :, None] * self.ready_s_per_sample
        return ready_s

    def most_shares_within(self, limit_s: Floats, tail_s: Floats, update_s: float) -> Floats:
        """Return shares that no device can exceed if the iteration is to end within ``limit_s``; K x T.

        Parameters
        ----------
        limit_s
            Length K.
        tail_s
            Seconds from each gradient's being ready to the end of the last transfer, at least; K x L.
        update_s
            The slowest optimiser's step, after the last transfer.

        Notes
        -----
        A share b is ready with gradient l at ``(f + w) b - (w - r_l) c``, where c, the samples of the last pass, are at
        most b and at most what memory holds. Each of the two gives a line in b; a share within the limit lies
        below both, and its computation and update end in time.
        """
        left_s = limit_s[:, None] - update_s - tail_s
        shares = np.empty((len(limit_s), len(self.forward_s)))
        for kind, (forward_s, backward_s) in enumerate(zip(self.forward_s, self.backward_s, strict=True)):
            ready_s, sample_s = self.ready_s_per_sample[kind], forward_s + backward_s
            held_s = (backward_s - ready_s) * self.most_at_a_time[kind]
            own = _shares(limit_s - self.update_s[kind], sample_s)
            if ready_s.size:
                own = np.minimum(own, _shares(left_s, forward_s + ready_s).min(axis=1))
                own = np.minimum(own, _shares(left_s + held_s, sample_s).min(axis=1))
            shares[:, kind] = own
        # What rounding could take away is given back: these are upper bounds.
        most: Floats = np.minimum(np.floor(shares * (1 + 1e-12) + 1e-9), self.most_shares)
        return most


def _shares(seconds: Floats, per_sample_s: Floats | float) -> Floats:
    """Return how many samples take ``seconds``; infinitely many where one takes no time, none where time is short."""
    per_sample = np.broadcast_to(np.asarray(per_sample_s, dtype=float), seconds.shape)
    free = np.where(seconds >= 0, np.inf, -1.0)
    shares: Floats = np.divide(seconds, per_sample, out=free, where=per_sample > 0)
    return shares


def exposed_s(schedule: FusionSchedule, *, backward_end_s: float, negotiate_s: float) -> Mapping[str, float]:
    """Return the communication after the backward pass, by what the channel does: it sums to finish - backward_end.

    all_reduce: transfers; negotiate: coordination before each; wait: a full buffer waiting for the next gradient;
    misc: the channel idles.
    """
    total = dict.fromkeys(("all_reduce", "wait", "negotiate", "misc"), 0.0)
    now, free = backward_end_s, float("-inf")
    for ready, start, end in zip(
        schedule.ready_s.tolist(), schedule.start_s.tolist(), schedule.end_s.tolist(), strict=True
    ):
        spans = (("misc", max(free, ready)), ("wait", start), ("negotiate", min(end, start + negotiate_s)))
        for what, until in (*spans, ("all_reduce", end)):
            total[what] += max(0.0, until - now)
            now = max(now, until)
        free = end
    return total
