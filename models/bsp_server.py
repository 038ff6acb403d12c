"""One parameter server and unequal workers in lockstep: the iteration time of the heterogeneous-PS model.

Source: Y. Zeng et al., Modeling the Training Iteration Time for Heterogeneous Distributed Deep Learning Systems,
Int. J. Intelligent Systems, 2023, doi:10.1155/2023/2663115: equations 28 to 33, Algorithms 1 and 2. Every worker
computes, pushes all gradients through the server's link, which serves one push after the other, and pulls; the pulls
come last, all together, and
overlap with nothing. Leaves out the server's own work, latency, and the workers' links (see
:mod:`planner.models.server_links`).
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from planner.cost import Floats
from planner.errors import ModelError
from planner.fifo import fifo_end_s

__all__ = [
    "CheckedTime",
    "Exchange",
    "accuracy",
    "algorithm_1_time_s",
    "algorithm_2_time_s",
    "checked_algorithm_2",
    "cpu_time_s",
    "equal_workers_time_s",
    "equation_32_holds",
    "fastest_worker_time_s",
    "gpu_time_s",
    "segment_ready_s",
    "segments_time_s",
]

_ROUNDING = 1e-9  # relative: what floating point may lose


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Seconds for which one worker's exchange occupies the server's link.

    Attributes
    ----------
    push_s, pull_s
        All gradients in, all parameters out (eqs. 30 and 31); finite and >= 0.
    overhead_s
        Start-up of push and pull, once an iteration: section 6.3 measured about 0.5 s, and its predictions take 0.
    """

    push_s: float
    pull_s: float
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 <= one < math.inf for one in (self.push_s, self.pull_s, self.overhead_s)):
            raise ModelError(f"{self}: push_s, pull_s and overhead_s must be finite and >= 0.")

    @classmethod
    def of(
        cls,
        *,
        gradient_bytes: float,
        parameter_bytes: float,
        bandwidth_bytes_per_s: float,
        overhead_s: float = 0.0,
    ) -> "Exchange":
        """Return ``T_push = G / B`` and ``T_pull = P / B`` (eqs. 31 and 30).

        >>> Exchange.of(gradient_bytes=1e9, parameter_bytes=5e8, bandwidth_bytes_per_s=1.25e8).push_s
        8.0
        """
        _positive("bandwidth_bytes_per_s", bandwidth_bytes_per_s)
        return cls(
            push_s=gradient_bytes / bandwidth_bytes_per_s,
            pull_s=parameter_bytes / bandwidth_bytes_per_s,
            overhead_s=overhead_s,
        )


def _positive(name: str, value: float) -> None:
    """Refuse a rate or count that is not finite and > 0."""
    if not 0 < value < math.inf:
        raise ModelError(f"{name} must be finite and > 0, not {value:g}.")


def _per_worker(name: str, value: ArrayLike) -> Floats:
    """Return one number of seconds for every worker; raise ModelError if there is no worker or no time."""
    seconds = np.asarray(value, dtype=np.float64)
    if seconds.ndim != 1 or not seconds.size:
        raise ModelError(f"{name} has shape {seconds.shape}; give the seconds of at least one worker.")
    if not (np.isfinite(seconds).all() and (seconds >= 0).all()):
        raise ModelError(f"{name} must be finite and >= 0, not {seconds.tolist()}.")
    return seconds


# -- computing -------------------------------------------------------------------------------------------------------


def cpu_time_s(flop: float, *, clock_hz: float, values_per_cycle: float) -> float:
    """Return the computing time on a CPU (eq. 28): ``FLOP / (cpuhz simd)``.

    Parameters
    ----------
    values_per_cycle
        ``simd``: values worked on in one cycle, a fitted real number. The equation has one core.

    >>> cpu_time_s(9.6e9, clock_hz=2e9, values_per_cycle=2.4)
    2.0
    """
    _positive("clock_hz", clock_hz)
    _positive("values_per_cycle", values_per_cycle)
    return flop / (clock_hz * values_per_cycle)


def gpu_time_s(flop: float, *, clock_hz: float, num_stream_processors: float, flop_per_cycle: float = 1) -> float:
    """Return the computing time on a GPU (eq. 33): ``FLOP / (gpuhz sp fc)``.

    Parameters
    ----------
    flop_per_cycle
        ``fc`` of one stream processor: 2 with fused multiply-add, else 1.

    >>> gpu_time_s(6e12, clock_hz=1.5e9, num_stream_processors=2000)
    2.0
    """
    _positive("clock_hz", clock_hz)
    _positive("num_stream_processors", num_stream_processors)
    _positive("flop_per_cycle", flop_per_cycle)
    return flop / (clock_hz * num_stream_processors * flop_per_cycle)


# -- closed forms ----------------------------------------------------------------------------------------------------


def equal_workers_time_s(compute_s: float, exchange: Exchange, *, num_workers: int) -> float:
    """Return the iteration time with equal workers (eq. 29): ``T_cpu + n T_push + n T_pull``."""
    if num_workers < 1:
        raise ModelError(f"there must be at least 1 worker, not {num_workers}.")
    return compute_s + num_workers * (exchange.push_s + exchange.pull_s) + exchange.overhead_s


def equation_32_holds(compute_s: ArrayLike, *, push_s: float) -> bool:
    """Whether the server's link is never idle after the first push: ``T_1 + (i - 1) T_push >= T_i``, sorted.

    Notes
    -----
    This is when eq. 32 and Algorithm 1 agree. The paper's condition, that communication takes longer than every
    computation, is sufficient but not necessary.

    >>> equation_32_holds([1, 2, 3], push_s=1), equation_32_holds([1, 2, 4], push_s=1)
    (True, False)
    """
    return _first_idle(np.sort(_per_worker("compute_s", compute_s)), push_s) is None


def _first_idle(compute: Floats, push_s: float) -> int | None:
    """Return the first worker, in ascending order, for which the link has to wait; None if it never does."""
    late = compute - (compute[0] + np.arange(len(compute)) * push_s)
    found = np.flatnonzero(late > _ROUNDING * np.maximum(compute, push_s))
    return int(found[0]) if found.size else None


def fastest_worker_time_s(compute_s: ArrayLike, exchange: Exchange) -> float:
    """Return the iteration time where the link is the bottleneck (eq. 32): ``n T_pull + T_min + n T_push``.

    Raises
    ------
    ModelError
        Where :func:`equation_32_holds` is false: the time would be too short.
    """
    compute = np.sort(_per_worker("compute_s", compute_s))
    index = _first_idle(compute, exchange.push_s)
    if index is not None:
        raise ModelError(
            f"eq. 32 does not hold: worker {index + 1} of {len(compute)} computes until {compute[index]:.4g} s, but "
            f"the pushes before it end at {compute[0] + index * exchange.push_s:.4g} s. Use Algorithm 1."
        )
    return equal_workers_time_s(float(compute[0]), exchange, num_workers=len(compute))


# -- algorithms ------------------------------------------------------------------------------------------------------


def algorithm_1_time_s(compute_s: ArrayLike, exchange: Exchange) -> float:
    """Return the iteration time of workers that push when all is computed (Algorithm 1).

    Parameters
    ----------
    compute_s
        Of each worker, in any order.

    Notes
    -----
    The loop of the listing, ``T = max(T, t_i) + T_push``, is a channel that serves first come first served. Its
    ``simd = 2`` is an input here: no table of the paper uses it.

    >>> algorithm_1_time_s([5, 1, 2], Exchange(push_s=2, pull_s=1))
    10.0
    """
    compute = np.sort(_per_worker("compute_s", compute_s))
    pushed_s = float(fifo_end_s(compute, exchange.push_s)[-1])
    return pushed_s + len(compute) * exchange.pull_s + exchange.overhead_s


def segment_ready_s(forward_s: ArrayLike, backward_s: ArrayLike, *, num_pushes: int) -> Floats:
    """Return when each of k equal parts of each worker's backward pass is done: ``forward + j / k backward``.

    Parameters
    ----------
    forward_s, backward_s
        Of each worker, for its own share of the batch.
    num_pushes
        ``k``; >= 1.

    Returns
    -------
    Floats
        One row per worker, one column per part.
    """
    forward, backward = _per_worker("forward_s", forward_s), _per_worker("backward_s", backward_s)
    if forward.shape != backward.shape:
        raise ModelError(f"forward_s of {len(forward)} workers does not go with backward_s of {len(backward)}.")
    if num_pushes < 1:
        raise ModelError(f"num_pushes must be at least 1, not {num_pushes}.")
    return forward[:, None] + backward[:, None] * (np.arange(1, num_pushes + 1) / num_pushes)


def algorithm_2_time_s(forward_s: ArrayLike, backward_s: ArrayLike, exchange: Exchange, *, num_pushes: int) -> float:
    """Return the iteration time of workers that push while they compute (Algorithm 2).

    Notes
    -----
    Algorithm 1 with the end of the first of k parts of the backward pass as ready time (lines 3 and 4; the listing
    drops the indices of ``sp`` and ``fc``). It takes for granted that the link is slower than every backward pass.
    Where it is not, the answer can be less than a worker's own computing time: see :func:`checked_algorithm_2`.
    """
    first = segment_ready_s(forward_s, backward_s, num_pushes=num_pushes)[:, 0]
    return algorithm_1_time_s(first, exchange)


def segments_time_s(forward_s: ArrayLike, backward_s: ArrayLike, exchange: Exchange, *, num_pushes: int) -> float:
    """Return the iteration time if every part is pushed on its own, no sooner than it is computed.

    Notes
    -----
    Stricter than Algorithm 2, and never less: k parts of ``T_push / k`` a worker on one channel, first come first
    served. Both agree where ``T_push`` is at least every worker's backward pass. Own extension of the paper's Figure 5.
    """
    ready = segment_ready_s(forward_s, backward_s, num_pushes=num_pushes)
    pushed_s = float(fifo_end_s(np.sort(ready, axis=None), exchange.push_s / num_pushes)[-1])
    return pushed_s + len(ready) * exchange.pull_s + exchange.overhead_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTime:
    """The segment-level time, Algorithm 2's, and a warning where they differ."""

    iteration_s: float
    algorithm_2_s: float
    warnings: tuple[str, ...] = ()


def checked_algorithm_2(
    forward_s: ArrayLike, backward_s: ArrayLike, exchange: Exchange, *, num_pushes: int
) -> CheckedTime:
    """Return the time at the level of segments, with a warning where Algorithm 2 departs from it."""
    strict_s = segments_time_s(forward_s, backward_s, exchange, num_pushes=num_pushes)
    simple_s = algorithm_2_time_s(forward_s, backward_s, exchange, num_pushes=num_pushes)
    warnings: tuple[str, ...] = ()
    if not math.isclose(strict_s, simple_s, rel_tol=_ROUNDING):
        longest_s = float(np.max(_per_worker("backward_s", backward_s)))
        text = (
            f"Algorithm 2 gives {simple_s:.4g} s, {strict_s - simple_s:.4g} s too little: it takes for granted that "
            f"a push ({exchange.push_s:.4g} s) lasts as long as every backward pass (up to {longest_s:.4g} s)."
        )
        warnings = (text,)
    return CheckedTime(iteration_s=strict_s, algorithm_2_s=simple_s, warnings=warnings)


def accuracy(*, predicted_s: float, measured_s: float, relative_to: Literal["predicted", "measured"]) -> float:
    """Return ``1 - |PT - MT| / PT`` (Tables 2 to 5) or ``... / MT`` (Tables 6 and 7).

    >>> accuracy(predicted_s=4, measured_s=5, relative_to="measured")
    0.8
    """
    base_s = predicted_s if relative_to == "predicted" else measured_s
    _positive(f"{relative_to}_s", base_s)
    return 1 - abs(predicted_s - measured_s) / base_s
