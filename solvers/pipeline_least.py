"""A bound of all pipelines of a line of layers at once: what bubbles cost where memory forces many stages.

Sets and data: layers ``0..L-1`` with ``t`` seconds of a sample, forward and backward, on a device of speed 1; devices
whose speeds sum up to N; a batch of B samples in m micro-batches of at most ``b = ceil(B / m)``; for each run of layers
the micro-batches in flight that one device could hold.

Variables: p stages, their cuts, and the replicas of each; ``w_k`` are the seconds of a micro-batch in stage k. A
replica has at least one sample, and r of them share b: ``w_k >= t_k``, ``w_k >= b t_k / r_k``, ``sum r_k <= N``, and at
most b replicas each, so that ``N_p = min(N, p b fastest)`` of them count.

The bound. By the terms (1) and (4) of :mod:`planner.solvers.pipeline_bound`, with A the sum of w before stage s, X the
sum behind it, and ``K = min(m, p - s + 1)`` micro-batches in flight, no iteration is below

- 1F1B, ``K < m``: ``A + (m - K + 1) w_s + 2 X``; ``K = m``: ``A + (m + 1) / 2 w_s + X``, the mean of two terms;
- GPipe: ``A + m w_s + X``.

The mean over all stages is ``sum c_k w_k`` with ``c_k = (p - k + sum of X's factors before k + w_k's factor) / p``, and
by Cauchy and Schwarz ``(sum c_k w_k) (sum b t_k / w_k) >= b (sum sqrt(c_k t_k))**2``; so no iteration is below
``b (sum sqrt(c_k t_k))**2 / N_p``. The least sum over all cuts is a recursion over the layers, from the last one.

*Many m at once.* Of all m from ``low`` to ``high`` one bound is given. ``c_k / m`` falls with m where ``m > p``; where
not, the terms of ``K = m`` are taken for all stages (with ``K < m`` they hold, too: they are less than the mean of the
first terms and ``A + m w_s``), and fall likewise. So the lesser of the values at ``high`` and ``min(high, p)`` counts.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from planner.cost import Floats
from planner.solvers.pipeline_parts import Integers

__all__ = ["Line", "fits", "least_s"]

_MOST_WORK = 1e7  # of one recursion
_ROUNDING = 1 - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of layers and the devices for it.

    Attributes
    ----------
    work_s
        (L,) device-seconds of a sample of each layer, both ways.
    most_in_flight
        (L, L): micro-batches of one sample that fit on a device with layers i to j, both included.
    speed
        Of all devices together.
    fastest
        Speed of the fastest device.
    """

    work_s: Floats
    most_in_flight: Integers
    speed: float
    fastest: float

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.work_s)

    @property
    def width(self) -> int:
        """Layers that a stage holds at most."""
        firsts, lasts = np.nonzero(self.most_in_flight > 0)
        return int((lasts - firsts).max(initial=-1)) + 1


def least_s(line: Line, batch: int, low: int, high: int, numbers_of_stages: Sequence[int]) -> float:
    """Return seconds that no iteration with ``low`` to ``high`` micro-batches is below, GPipe or 1F1B.

    ``inf`` where no cut fits in memory; 0 where the recursion would take too long.

    >>> line = Line(work_s=np.ones(2), most_in_flight=np.diag([9, 9]), speed=2.0, fastest=1.0)
    >>> round(least_s(line, 4, 4, 4, [1, 2]), 2)  # each layer is a stage: a bubble of one micro-batch beside four
    4.95
    """
    most = max(numbers_of_stages, default=0)
    if most * most * line.num_layers * line.width > _MOST_WORK:
        return 0.0
    numbers = np.array(sorted(numbers_of_stages))
    least = np.inf
    for is_gpipe in (False, True):
        sums = _least_sums(line, numbers, low, high, is_gpipe=is_gpipe)
        useful = np.minimum(line.speed, numbers * ceil(batch / low) * line.fastest)
        least = min(least, float((batch * sums**2 / useful).min(initial=np.inf)))
    return least * _ROUNDING


def fits(line: Line, low: int, numbers_of_stages: Collection[int]) -> bool:
    """Whether some cut fits in memory under 1F1B, with ``low`` micro-batches or more of one sample each.

    That is less than any of these pipelines holds, interleaved ones apart. How many devices there are is not asked.

    >>> line = Line(work_s=np.ones(2), most_in_flight=np.diag([1, 1]), speed=2.0, fastest=1.0)
    >>> fits(line, 1, [2]), fits(line, 2, [2])
    (True, False)
    """
    num_layers = line.num_layers
    rest_fits = np.zeros(num_layers + 1, dtype=bool)  # from a layer on, with the stages behind
    rest_fits[-1] = True
    for behind in range(max(numbers_of_stages, default=0)):
        stage_fits = line.most_in_flight >= min(low, behind + 1)
        rest_fits = np.append((stage_fits & rest_fits[1:]).any(axis=1), False)
        if rest_fits[0] and behind + 1 in numbers_of_stages:
            return True
    return False


def _least_sums(line: Line, numbers: Integers, low: int, high: int, *, is_gpipe: bool) -> Floats:
    """Return, by number of stages, the least sum of ``sqrt(c_k t_k / m)`` over all cuts that fit."""
    num_layers, width = line.num_layers, max(line.width, 1)
    sums = np.concatenate(([0.0], np.cumsum(line.work_s)))
    firsts, ends = np.arange(num_layers)[:, None], np.arange(num_layers)[:, None] + np.arange(1, width + 1)[None, :]
    inside = ends <= num_layers
    ends = np.minimum(ends, num_layers)
    root_s = np.where(inside, np.sqrt(np.maximum(sums[ends] - sums[firsts], 0.0)), np.inf)
    room = np.where(inside, line.most_in_flight[firsts, ends - 1], 0)
    found = np.full(len(numbers), np.inf)
    left = np.full((len(numbers), num_layers + 1), np.inf)  # from a layer on, with the stages behind
    left[:, -1] = 0.0
    for behind in range(int(numbers[-1])):
        held = low if is_gpipe else min(low, behind + 1)
        root = np.where(room >= max(held, 1), root_s, np.inf)
        factors = np.sqrt(_factors(numbers, numbers - behind, low, high, is_gpipe=is_gpipe))
        after = left[:, ends]
        with np.errstate(invalid="ignore"):
            best = (factors[:, None, None] * root[None] + after).min(axis=2)
        left = np.concatenate((best, np.full((len(numbers), 1), np.inf)), axis=1)
        is_done = numbers == behind + 1
        found[is_done] = left[is_done, 0]
    return found


def _factors(numbers: Integers, stage: Integers, low: int, high: int, *, is_gpipe: bool) -> Floats:
    """Return ``c_k / m`` by number of stages p, for stage k counted from 1.

    Before the first stage it is as of the first, so that the recursion may run on for numbers that are done.
    """
    k = np.maximum(stage, 1)
    if is_gpipe:
        return (numbers - 1 + high) / (high * numbers)
    few = np.minimum(high, numbers)
    beside = (numbers - 1 + (few + 1) / 2) / few
    plain = (high + 2 * k - 2) / high
    is_plain = low > numbers
    is_beside = high <= numbers
    return np.where(is_plain, plain, np.where(is_beside, beside, np.minimum(plain, beside))) / numbers
