"""Synchronous data parallelism: gradients as they get ready, what communication is exposed, and the slowest worker.

**Gradients** become ready in the reverse of the forward order. On one device gradient l of a share of b samples, the
last c of them in the last micro-batch, is ready at ``T(b) - w(c) + r_l(c)``: T are the passes of all micro-batches, w
the backward pass of c samples, ``r_l`` its part up to the gradient. It may be sent when the last device has it.

**Overlap** [L]. Layers are in the paper's order: index 0 is layer 1, the last is layer n, nearest the loss; time 0 is
the end of layer n's backward. ``SF = T_1 / (N T_N)`` (eq. 1), and without overlap the computation over computation and
communication (eq. 2). A buffer of constant size is sent when the next gradient would not fit, or is late (eqs. 12 to
16, as the paper's recursion runs). Any grouping, and all three meanings of the wait, are scheduled by
:func:`planner.channel.schedule`, with which that recursion agrees under ``Wait.PAPER``.

**The slowest of N workers** [Z]: synchronisation times are normal and independent, so the expected maximum is
``E = low + integral from low of (1 - prod F_n)``, of equal workers ``mu + sigma e_N`` (eqs. 7 to 9). Left out: a time
cannot be negative (matters only where sigma is not small beside the mean), and a slow worker stays as likely slow in
the next iteration as any other.

Sources: [L] T. Liu et al., Modeling and Optimizing the Scaling Performance in Distributed Deep Learning Training,
WWW '22, doi:10.1145/3485447.3511981, section 2. [Z] X. Zhang et al., Performance Modeling and Analysis of Distributed
Deep Neural Network Training with Parameter Server, section III-C.
"""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.channel import FusionSchedule
from planner.cost import Floats, Passes, Profile, TransferCost
from planner.dnn import Dnn
from planner.errors import ModelError
from planner.frozen import frozen

Ints = NDArray[np.int64]

_REACH = 12  # standard deviations; less than 1e-32 of a normal lies beyond
_KNOTS = np.arange(-_REACH, _REACH + 0.5, 0.5)
_NODES = 16  # of the rule that integrates between two knots


@frozen
class Gradients:
    """What has to be exchanged, in ready order: names, bytes, and when each is ready in a backward pass."""

    names: tuple[str, ...]
    size_bytes: Floats
    ready: Passes

    @property
    def total_bytes(self) -> float:
        """All gradients."""
        return float(self.size_bytes.sum())


def gradients_of(dnn: Dnn, profile: Profile, *, gradient_bytes: int, unit: str = "layer") -> Gradients:
    """Return the gradients of a network.

    Parameters
    ----------
    dnn, profile
        L layers, and their seconds.
    gradient_bytes
        Bytes of one number.
    unit
        ``layer``: one gradient for every layer with weights; batch norm goes with the layer before it, as
        the OSF model counts layers. ``tensor``: one for every trainable tensor, ready with its layer.
    """
    rows = (dnn.trained_tensors if unit == "tensor" else dnn.trained_layers)[::-1]
    return Gradients(
        names=tuple(name for name, _, _ in rows),
        size_bytes=np.array([float(number * gradient_bytes) for _, number, _ in rows]),
        # Backward of its layer and of all later ones:
        ready=profile.backward.map(
            lambda seconds: np.cumsum(seconds[:, ::-1], axis=1)[:, ::-1][:, [index for _, _, index in rows]]
        ),
    )


@frozen(eq=False)
class Kinds:
    """Several kinds of devices that train on one batch, T of them; L gradients in ready order.

    Shares are asked for K at a time, a row each, so that a search prices many splits of a batch in one call.
    """

    # forward, backward: of the whole network; T of them
    forward: Passes
    backward: Passes
    ready: Passes  # when each gradient is ready in a backward pass; T x L, at most ``backward``
    update_s: Floats  # the optimiser's step; length T
    # samples that a device's memory holds; length T, each >= 1. A larger share is worked off in micro-batches
    most_at_a_time: Ints
    # the number of micro-batches of each kind, length T, where it is pinned; None: the fewest that fit
    num_microbatches: Ints | None = None

    @property
    def sample_s(self) -> Floats:
        """Seconds a sample, both ways, that no device of a kind is below; length T."""
        return self.forward.least_s(self.most_at_a_time) + self.backward.least_s(self.most_at_a_time)

    @property
    def least_shares(self) -> Ints:
        """The smallest share of each kind: a sample for every micro-batch."""
        return np.ones(len(self.update_s), dtype=np.int64) if self.num_microbatches is None else self.num_microbatches

    @property
    def most_shares(self) -> Floats:
        """The largest share of each kind that its memory allows, in so many micro-batches as are pinned."""
        if self.num_microbatches is None:
            return np.full(len(self.update_s), np.inf)
        most: Floats = self.most_at_a_time.astype(float) * self.num_microbatches
        return most

    def microbatches(self, shares: Ints) -> Ints:
        """Return the number of micro-batches of every share; K x T.

        Parameters
        ----------
        shares
            Samples of each kind's device, K rows of them; K x T.
        """
        fewest = -(-shares // self.most_at_a_time)
        return fewest if self.num_microbatches is None else np.broadcast_to(self.num_microbatches, shares.shape)

    def last_samples(self, shares: Ints) -> Ints:
        """Return the samples of the last backward pass, whose gradients are exchanged; K x T.

        Parameters
        ----------
        shares
            Samples of each kind's device, K rows of them; K x T.
        """
        return -(-shares // self.microbatches(shares))

    def computed_s(self, shares: Ints) -> Floats:
        """Return when every kind has computed its share, in seconds from the start of the iteration; K x T.

        Parameters
        ----------
        shares
            Samples of each kind's device, K rows of them; K x T.
        """
        return self.over(self.forward.plus(self.backward), shares)

    def over(self, passes: Passes, shares: Ints) -> Floats:
        """Return the seconds of all micro-batches of every share, which are as equal as they can be; K x T.

        Parameters
        ----------
        passes
            Of one micro-batch: of each kind.
        shares
            Samples of each kind's device, K rows of them; K x T.
        """
        if passes.is_linear:
            return passes.of_each(shares)
        number = self.microbatches(shares)
        fewer, longer = shares // number, shares % number
        seconds: Floats = longer * passes.of_each(fewer + 1) + (number - longer) * passes.of_each(fewer)
        return seconds

    def ready_s(self, shares: Ints) -> Floats:
        """Return when every gradient may be sent: when the last kind of device has it; K x L.

        A device starts its last backward pass that pass's seconds before it has computed all. Never falls as a share
        grows: a larger share takes longer up to every gradient, also where it needs one micro-batch more and the last
        pass is therefore shorter, since all passes before it are longer by as much.

        Parameters
        ----------
        shares
            Samples of each kind's device, K rows of them; K x T.
        """
        ready_s: Floats = self.ready_by_kind_s(shares).max(axis=1)
        return ready_s

    def ready_by_kind_s(self, shares: Ints) -> Floats:
        """Return when each kind of device has every gradient, in seconds; K x T x L.

        Parameters
        ----------
        shares
            Samples of each kind's device, K rows of them; K x T.
        """
        samples = self.last_samples(shares)
        start_s = self.computed_s(shares) - self.backward.of_each(samples)
        ready_s: Floats = start_s[:, :, None] + self.ready.of_each(samples)
        return ready_s

    def most_shares_within(self, limit_s: Floats, tail_s: Floats, update_s: float) -> Floats:
        """Return shares that no device can exceed if the iteration is to end within ``limit_s``; K x T.

        Parameters
        ----------
        limit_s
            Seconds of the iteration; length K.
        tail_s
            Seconds from each gradient's being ready to the end of the last transfer, at least; K x L.
        update_s
            The slowest optimiser's step, after the last transfer.

        Notes
        -----
        A share b is ready with gradient l at ``T(b) - w(c) + r_l(c)``, where c, the samples of the last pass, are at
        most b and at most what memory holds. Each of the two gives a line in b, with the least seconds a sample that
        memory allows; a share within the limit lies below both, and its computation and update end in time. A share
        of one pass has its pieces of straight lines in place of the first.
        """

        def most(seconds: Floats, per_sample_s: Floats | float) -> Floats:
            """Samples that take so long: infinitely many where one takes no time, none where time is short."""
            per_sample = np.broadcast_to(np.asarray(per_sample_s, dtype=float), seconds.shape)
            free = np.where(seconds >= 0, np.inf, -1.0)
            return np.asarray(np.divide(seconds, per_sample, out=free, where=per_sample > 0))

        left_s = limit_s[:, None] - update_s - tail_s
        shares = np.empty((len(limit_s), len(self.update_s)))
        forward_s, backward_s = (one.least_s(self.most_at_a_time) for one in (self.forward, self.backward))
        all_ready_s = self.ready.least_s(self.most_at_a_time)
        for kind, both_s in enumerate((forward_s + backward_s).tolist()):
            ready_s, most_samples = all_ready_s[kind], self.most_at_a_time[kind]
            held_s = (backward_s[kind] - ready_s) * most_samples
            own = most(limit_s - self.update_s[kind], both_s)
            if ready_s.size:
                ahead = most(left_s, forward_s[kind] + ready_s)
                own = np.minimum(own, ahead.min(axis=1))
                own = np.minimum(own, most(left_s + held_s, both_s).min(axis=1))
            if not self.forward.is_linear:
                forward, backward, ready = (one.part(kind) for one in (self.forward, self.backward, self.ready))
                alone = forward.plus(backward).most_samples(limit_s - self.update_s[kind])
                if ready_s.size:
                    until = ready.plus(forward.map(lambda seconds: seconds[:, None]))
                    alone = np.minimum(alone, until.most_samples(left_s).min(axis=1))
                own = np.where(alone < most_samples, np.minimum(own, alone), own)
            shares[:, kind] = own
        # What rounding could take away is given back: these are upper bounds.
        return np.asarray(np.minimum(np.floor(shares * (1 + 1e-12) + 1e-9), self.most_shares))


def exposed_s(schedule: FusionSchedule, *, backward_end_s: float, negotiate_s: float) -> Mapping[str, float]:
    """Return the communication after the backward pass, by what the channel does: it sums to finish - backward_end.

    Parameters
    ----------
    schedule
        When buffers are ready, and transfers start and end, in seconds from the start of the backward pass.
    backward_end_s, negotiate_s
        End of the backward pass on that clock; and what each transfer begins with, in seconds.

    Returns
    -------
    Seconds by name: all_reduce: transfers; negotiate: coordination before each; wait: a full buffer waiting for the
    next gradient; misc: the channel idles.
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


def scaling_factor(*, one_worker_s: float, many_workers_s: float, num_workers: int) -> float:
    """Return ``SF = T_1 / (N T_N)`` for the same whole job ([L], eq. 1).

    Parameters
    ----------
    one_worker_s, many_workers_s, num_workers
        ``T_1`` and ``T_N`` in seconds, and N.

    >>> scaling_factor(one_worker_s=9, many_workers_s=1.25, num_workers=8)
    0.9
    """
    return one_worker_s / (num_workers * many_workers_s)


def csf(*, computation_s: float, communication_s: float) -> float:
    """Return the scaling factor if nothing overlapped, from the communication-to-computation ratio ([L], eq. 2).

    Parameters
    ----------
    computation_s, communication_s
        Of one iteration, in seconds.
    """
    return computation_s / (computation_s + communication_s)


def buffer_recursion_time_s(
    size_bytes: Sequence[float],
    backward_s: Sequence[float],
    cost: TransferCost,
    *,
    buffer_bytes: float,
    timeout_s: float = float("inf"),
    is_printed: bool = False,
) -> float:
    """Return ``T_update`` of equations 12 to 16, layer by layer, exactly as the paper's recursion runs.

    Parameters
    ----------
    size_bytes, backward_s
        ``D(i)`` and ``t_b(i)`` in the paper's order: index 0 is layer 1, the last is layer n, nearest the loss.
    cost
        Seconds of a transfer, by its bytes.
    buffer_bytes, timeout_s
        Of the fusion buffer: its size, and how long it waits for the next gradient.
    is_printed
        Eq. 13 with the printed ``t_b(i)``, where gradients are lost or sent twice; else with ``t_b(i-1)``, as the
        text, eq. 12 and eq. 14 have it.

    Notes
    -----
    Mended: eq. 12 tests ``t_b(i) > timeout`` strictly, like eqs. 13 and 14; eq. 15 sums from i, like eq. 8.
    """
    n = len(size_bytes)
    size = [0.0, *size_bytes]  # 1-based, as printed
    backward = [0.0, *backward_s]
    buffered = [0.0] * (n + 2)
    start_s, wait_s, sent_s = 0.0, 0.0, 0.0  # tau, t_wait and t_update(F) of layer i + 1
    ready_s = 0.0  # S(i)
    for i in range(n, 0, -1):
        is_new = i == n or buffered[i + 1] + size[i] > buffer_bytes or backward[i] > timeout_s
        buffered[i] = size[i] if is_new else buffered[i + 1] + size[i]  # eq. 12
        if i < n:
            ready_s += backward[i]
            start_s = max(start_s + wait_s + sent_s, ready_s)  # eq. 15
        is_late = i > 1 and backward[i - 1] > timeout_s
        is_full = i > 1 and buffered[i] + size[i - 1] > buffer_bytes
        is_flushed = i == 1 or is_full or (backward[i] > timeout_s if is_printed else is_late)
        sent_s = float(cost(np.float64(buffered[i] if is_flushed else 0.0)))  # type: ignore[arg-type]  # eq. 13
        wait_s = timeout_s if is_late else backward[i - 1] if is_full else 0.0  # eq. 14
    return start_s + sent_s  # eq. 16


def expected_maximum_s(mean_s: ArrayLike, sigma_s: ArrayLike) -> float:
    """Return the expected seconds of the slowest of several workers, equal or not ([Z], eqs. 8 and 9).

    Parameters
    ----------
    mean_s, sigma_s
        Of each worker, broadcast against each other; sigma >= 0, and 0 is a worker that never varies.

    Raises
    ------
    ModelError
        If there is no worker, a number is not finite, or a sigma is negative.

    Notes
    -----
    ``low`` is the largest ``mean - 12 sigma``, below which the slowest worker never is. Gauss-Legendre in panels of
    half a standard deviation of every worker, so that a narrow worker among wide ones is not stepped over. This is the
    mean of the density ``N f F^(N-1)`` of eq. 9 where all are equal; print has ``E[f_max]``, the mean of the density
    itself.

    >>> round(expected_maximum_s([10, 10], 1), 6)
    10.56419
    """
    pairs = np.stack(np.broadcast_arrays(np.atleast_1d(mean_s), sigma_s)).reshape(2, -1).astype(float)
    if not pairs.size or not np.isfinite(pairs).all() or (pairs[1] < 0).any():
        raise ModelError(
            f"the slowest of workers with means {pairs[0]} s and sigmas {pairs[1]} s is not defined. Give at least one "
            "worker, finite means, and finite sigmas of 0 or more."
        )
    (mean, sigma), counts = np.unique(pairs, axis=1, return_counts=True)
    return _expected_maximum_s(mean, sigma, counts)


def _expected_maximum_s(mean: Floats, sigma: Floats, counts: ArrayLike) -> float:
    """Return the expected maximum over groups of equal workers."""
    from scipy.special import log_ndtr  # noqa: PLC0415  # heavy, and only models of stragglers need it

    low, high = np.max(mean - _REACH * sigma), np.max(mean + _REACH * sigma)
    knots = np.unique(np.clip(mean[:, None] + sigma[:, None] * _KNOTS, low, high))
    half = np.diff(knots)[:, None] / 2
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    time = knots[:-1, None] + half * (1 + nodes)
    log_all = np.zeros_like(time)  # logarithm of prod F_n: keeps the digits of 1 - F near 1
    for one_mean, one_sigma, count in zip(mean, sigma, np.asarray(counts), strict=True):
        if one_sigma > 0:  # the others have certainly ended at low
            log_all += count * log_ndtr((time - one_mean) / one_sigma)
    return float(low - np.sum(half * weights * np.expm1(log_all)))


@cache
def standard_maximum(num_workers: int) -> float:
    """Return ``e_N``, the expected maximum of N standard normals; 0 for one.

    Parameters
    ----------
    num_workers
        N, at least 1.

    Raises
    ------
    ModelError
        Below one worker.

    >>> [round(standard_maximum(n), 6) for n in (2, 3, 8, 32)]
    [0.56419, 0.846284, 1.4236, 2.069669]
    """
    if num_workers < 1:
        raise ModelError(f"the slowest of {num_workers} workers is not defined. Give 1 or more.")
    return _expected_maximum_s(np.zeros(1), np.ones(1), [num_workers]) if num_workers > 1 else 0.0
