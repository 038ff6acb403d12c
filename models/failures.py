"""Expected wall time of a run whose machines fail: work, checkpoints, and what failures cost.

Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation
Computer Systems 22(3), 2006, doi:10.1016/j.future.2004.11.016, his complete expression::

    wall = M e^(R/M) (e^((tau + d)/M) - 1) W / tau

for ``W`` seconds of work, a checkpoint written in ``d`` seconds after every ``tau`` seconds of work, ``R`` seconds to
restart, and failures of all machines together ``M`` seconds apart on average, exponentially distributed. A failure
stops the whole run, loses what was done since the last checkpoint, and may come while one is written or while the run
restarts. The number of intervals ``W / tau`` need not be whole. A run shorter than the interval is one segment
with its share of a checkpoint: ``W (1 + d/tau)`` seconds without a failure. ``tau = inf`` is a run without checkpoints.

Times are expected values. An unlucky run takes longer, so a deadline that they just keep is often missed. Left
out: failures that come in bursts or more often in young machines, runs that go on with fewer machines, checkpoints
that are written while training goes on (give the seconds that training stands still), and bad checkpoints.

Everything is element by element: an argument may be one number or an array over fleets, and they broadcast. Whatever
grows beyond floating point is infinite. No time falls when work, a rate, writing or restarting grows.
"""

from collections.abc import Mapping
from math import inf

import numpy as np
from numpy.typing import ArrayLike

from planner.cost import Floats
from planner.errors import ModelError
from planner.frozen import frozen

# Unexpected interruptions while Llama 3 405B was trained: 419 in 54 days on 16,384 GPUs of 2,048 machines. Source: The
# Llama 3 Herd of Models, 2024, arXiv:2407.21783, section 3.3.4 and table 5. Of one GPU, its share of whatever else
# failed with it: 50,700 hours between two of them; so failures grow with the number of devices.
LLAMA3_DEVICE_S = 54 * 86400 * 16384 / 419
_S_PER_H = 3600.0
_SMALL_RATIO = 1e-8  # below, Newton's steps lose more digits than the series
_SMALL_EXPONENT = 1e-3
_LARGE_EXPONENT = 1e3  # e to it is infinite
_NUM_STEPS = 8  # of Newton's method; five reach the last digit


@frozen(eq=False)
class Checkpoints:
    """How a run saves its state."""

    write_s: ArrayLike  # while training stands still
    # work between two checkpoints, > 0; None: whatever is best, no checkpoints included
    interval_s: ArrayLike | None = None


@frozen(eq=False)
class RunTime:
    """Where the expected wall time of runs goes."""

    # start_up_s, training_s, evaluation_s: as given: what they take without a failure
    start_up_s: Floats
    training_s: Floats
    evaluation_s: Floats
    checkpoints_s: Floats  # writing each checkpoint once
    failures_s: Floats  # everything that is done again, and restarts
    interval_s: Floats  # work between checkpoints; infinite where there are none
    num_failures: Floats  # to be expected until the end

    @property
    def parts_s(self) -> Mapping[str, Floats]:
        """The parts, which sum to :attr:`wall_s`."""
        return {
            "start_up": self.start_up_s,
            "training": self.training_s,
            "evaluation": self.evaluation_s,
            "checkpoints": self.checkpoints_s,
            "failures": self.failures_s,
        }

    @property
    def wall_s(self) -> Floats:
        """From the first machine's start to the end of training."""
        with np.errstate(over="ignore"):
            return np.asarray(sum(self.parts_s.values()))

    def repeated(self, num_runs: ArrayLike) -> "RunTime":
        """Return the times of so many such runs, one after another.

        That is not one run as long: without checkpoints a failure loses the run that it strikes, and no other.

        Parameters
        ----------
        num_runs
            0 or more; one number, or one for each fleet.
        """
        num = checked_amounts("num_runs", num_runs)
        return RunTime(
            start_up_s=product(num, self.start_up_s),
            training_s=product(num, self.training_s),
            evaluation_s=product(num, self.evaluation_s),
            checkpoints_s=product(num, self.checkpoints_s),
            failures_s=product(num, self.failures_s),
            interval_s=self.interval_s,
            num_failures=product(num, self.num_failures),
        )


def rate_per_s(counts: ArrayLike, failures_per_h: ArrayLike, interruptions_per_h: ArrayLike = 0.0) -> Floats:
    """Return how often any machine of a fleet fails or is taken away.

    Parameters
    ----------
    counts
        Machines, of shape (kinds, fleets), or (kinds,) for one fleet.
    failures_per_h, interruptions_per_h
        Of one machine; one number, or one for each kind.

    Notes
    -----
    Rates of independent exponential failures add up.

    >>> round(float(rate_per_s([8, 2], 0.001, [0.05, 0]) * 3600), 12)  # an hour
    0.41
    """
    machines = np.asarray(counts, dtype=np.float64)
    each = np.broadcast_to(np.add(failures_per_h, interruptions_per_h), machines.shape[:1])
    return np.asarray(np.tensordot(checked_amounts("a rate", each), machines, axes=1) / _S_PER_H)


def run_time(
    training_s: ArrayLike,
    rate_per_s: ArrayLike,
    *,
    checkpoints: Checkpoints | None = None,
    restart_s: ArrayLike = 0.0,
    start_up_s: ArrayLike = 0.0,
    evaluation_s: ArrayLike = 0.0,
) -> RunTime:
    """Return the expected wall time of runs, part by part.

    Parameters
    ----------
    training_s
        Without failures; infinite where a fleet cannot train.
    rate_per_s
        Of failures and interruptions, all machines together; see :func:`rate_per_s`.
    checkpoints
        None: there are none, and a failure loses the whole run.
    restart_s
        From a failure until training goes on: noticing it, another machine, reading the checkpoint.
    start_up_s
        Before training begins, once; a start-up that fails begins anew.
    evaluation_s
        Of all evaluations during the run. They are work like training: saved and lost with it.

    Raises
    ------
    ModelError
        If a number is negative or not a number, a rate is infinite, or an interval is 0.

    Notes
    -----
    Daly's complete expression, see the opening of this module. As failures come at all times alike, their expected
    number is their rate times the wall time.

    >>> time = run_time(3600, 1 / 7200, checkpoints=Checkpoints(write_s=10, interval_s=600), restart_s=120)
    >>> {name: round(float(part_s), 1) for name, part_s in time.parts_s.items()}
    {'start_up': 0.0, 'training': 3600.0, 'evaluation': 0.0, 'checkpoints': 60.0, 'failures': 223.7}
    """
    points = checkpoints or Checkpoints(write_s=0.0, interval_s=inf)
    training, rate, restart, start_up, evaluation, write, interval = np.broadcast_arrays(
        checked_amounts("training_s", training_s),
        _rate(rate_per_s),
        checked_amounts("restart_s", restart_s),
        checked_amounts("start_up_s", start_up_s),
        checked_amounts("evaluation_s", evaluation_s),
        checked_amounts("write_s", points.write_s),
        checked_amounts("interval_s", inf if points.interval_s is None else points.interval_s),
    )
    if (interval == 0).any():
        raise ModelError("interval_s: 0 s of work between checkpoints is no work. Give more than 0, or none at all.")
    with np.errstate(over="ignore"):  # beyond floating point is infinite
        work = training + evaluation
        if points.interval_s is None:
            interval = _best_s(work, rate, write, restart)
        written_s, lost_s = _overheads_s(work, rate, write, restart, interval)
        lost_s = np.asarray(lost_s + product(start_up, _excess(product(rate, start_up))))
        wall_s = start_up + work + written_s + lost_s
        return RunTime(
            start_up_s=start_up,
            training_s=training,
            evaluation_s=evaluation,
            checkpoints_s=written_s,
            failures_s=lost_s,
            interval_s=interval,
            num_failures=product(rate, wall_s),
        )


def best_interval_s(write_s: ArrayLike, rate_per_s: ArrayLike) -> Floats:
    """Return the work between checkpoints that makes Daly's complete expression least, for a long run.

    Infinite without failures; 0 where a checkpoint costs nothing. It does not depend on the restart time.

    Parameters
    ----------
    write_s
        ``d``: of a checkpoint, while training stands still.
    rate_per_s
        ``1 / M``: of failures of all machines together.

    Notes
    -----
    The derivative by ``tau`` vanishes where ``(1 - x) e^(x + d/M) = 1`` with ``x = tau/M``: with ``x = 1 - e^(-y)``,
    where ``y - 1 + e^(-y) = d/M``. The left side is convex and rises, so that Newton's method falls to the root from
    any start above it. Daly's estimates are the first terms of its series, and ``sqrt(2 d M)`` is the first of all
    (J. W. Young, Commun. ACM 17(9), 1974, doi:10.1145/361147.361115).

    >>> [round(float(best_interval_s(5, 1 / hours / 60))) for hours in (24, 6)]  # minutes; figures 3 and 4 of Daly
    [117, 57]
    """
    write, rate = np.broadcast_arrays(checked_amounts("write_s", write_s), _rate(rate_per_s))
    with np.errstate(over="ignore"):
        return _longest_s(_best_ratio(product(write, rate)), rate)


def checked_amounts(name: str, given: ArrayLike) -> Floats:
    """Return numbers of 0 or more, infinite ones included, as an array.

    Parameters
    ----------
    name
        By which the message calls them.
    given
        The numbers, in any shape and unit.

    Raises
    ------
    ModelError
        If one is negative or not a number.
    """
    numbers = np.asarray(given, dtype=np.float64)
    if not (numbers >= 0).all():
        raise ModelError(f"{name}: {numbers[~(numbers >= 0)].flat[0]} is not 0 or more. Give numbers of 0 or more.")
    return numbers


def product(factor: Floats, other: Floats) -> Floats:
    """Return the product, 0 where a factor is 0: also beside an infinite or unknown one. It grows to infinity.

    Parameters
    ----------
    factor, other
        Of shapes that broadcast.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where((factor == 0) | (other == 0), 0.0, factor * other)


def _best_ratio(ratio: Floats) -> Floats:
    """Return the best interval over M, for a write time over M."""
    is_small, is_large = ratio < _SMALL_RATIO, ratio > _LARGE_EXPONENT
    root = np.sqrt(2 * ratio)
    series = root * (1 + root * (1 / 6 + root / 36))  # of y
    target = np.where(is_small | is_large, 1.0, ratio)
    y = target + np.sqrt(2 * target)  # above the root
    for _ in range(_NUM_STEPS):
        slope = -np.expm1(-y)
        y = y - (y - slope - target) / slope
    return np.asarray(-np.expm1(-np.where(is_small, series, np.where(is_large, inf, y))))


def _longest_s(ratio: Floats, rate: Floats) -> Floats:
    """Return ``ratio M``, infinite without failures."""
    return np.asarray(np.divide(ratio, rate, out=np.full(ratio.shape, inf), where=rate > 0))


def _best_s(work: Floats, rate: Floats, write: Floats, restart: Floats) -> Floats:
    """Return the best work between checkpoints for runs of some length; infinite where none are better.

    The expression falls with ``tau`` up to :func:`best_interval_s`, rises from there to ``tau = W``, and falls again
    beyond, where there is less and less of a checkpoint. So that is the best, or none at all.
    """
    if not rate.any():
        return np.full(work.shape, inf)
    best = _longest_s(_best_ratio(product(write, rate)), rate)
    with_s = sum(_overheads_s(work, rate, write, restart, best))
    without_s = sum(_overheads_s(work, rate, write, restart, np.full(work.shape, inf)))
    return np.where((best < work) & (with_s < without_s), best, inf)


def _overheads_s(work: Floats, rate: Floats, write: Floats, restart: Floats, interval: Floats) -> tuple[Floats, Floats]:
    """Return the seconds of writing each checkpoint once, and those that failures cost."""
    finite = np.where(np.isinf(work), 0.0, work)
    written = _share(finite, write, interval)
    beyond = np.where(np.isinf(work), inf, 0.0)
    written_s = np.where(np.isinf(interval), 0.0, written + beyond)
    if not rate.any():  # a tenth of the time of a purchase without failures
        return written_s, np.zeros(written_s.shape)
    segment = np.minimum(interval, finite)
    alive = segment + _share(segment, write, interval)  # seconds that must pass without a failure
    exponent = product(rate, alive)
    again = _excess(exponent)
    grown = product(np.expm1(product(rate, restart)), 1 + again) + again
    lost = product(finite + written, grown)
    return written_s, np.where(rate > 0, lost + beyond, lost)


def _share(work: Floats, write: Floats, interval: Floats) -> Floats:
    """Return ``write work / interval``: the writing that belongs to some work."""
    # The ratio first: it is 1 for one segment, however short. Intervals of 0 are best where writing costs nothing.
    ratio = np.divide(work, interval, out=np.zeros(np.broadcast(work, interval).shape), where=interval > 0)
    return product(write, ratio)


def _excess(exponent: Floats) -> Floats:
    """Return ``(e^z - 1)/z - 1``, by its series where z is small."""
    z = np.where(exponent < _SMALL_EXPONENT, 1.0, exponent)
    series = exponent / 2 * (1 + exponent / 3 * (1 + exponent / 4 * (1 + exponent / 5)))
    large = np.expm1(z) / np.minimum(z, _LARGE_EXPONENT) - 1
    return np.where(exponent < _SMALL_EXPONENT, series, large)


def _rate(given_per_s: ArrayLike) -> Floats:
    """Return rates that were given; refuse infinite ones."""
    rate = checked_amounts("rate_per_s", given_per_s)
    if np.isinf(rate).any():
        raise ModelError("rate_per_s: machines that always fail never start. Give a finite rate.")
    return rate
