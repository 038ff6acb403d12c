"""One law of all-reduces for every number of devices, so that those that were not measured get a figure.

Without a cluster: ``overhead + 2 (N-1) latency + 2 (N-1)/N size / bandwidth`` (ring) or ``overhead + 2 ceil(log2 N)
latency + 2 size / bandwidth`` (double binary tree), whichever errs less; see :mod:`planner.models.collectives`. Its
error is of numbers of devices left out whole, one at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from planner.calibration.fit import Indices, Interval, Score, log_ratio, robust_fit, score_of, spread
from planner.calibration.read_collectives import Group
from planner.cost import Affine, Floats, TransferCost

__all__ = ["Law", "Points", "fit_free_law", "scored"]

_LEAST_GROUPS = 2
_NOTHING = 1e-3  # of the shortest time: an overhead or latency below this does not show


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """A law: parameters with units at their ends, 95 % intervals by bootstrap, its scores, and its cost by devices.

    ``score``: of numbers of devices left out whole; None where the others would not determine the parameters.
    ``by_group``: the same of each number of devices.
    """

    name: str
    parameters: Mapping[str, float]
    intervals: Mapping[str, Interval]
    score: Score | None
    by_group: Mapping[int, Score]
    cost_of: Callable[[int], TransferCost]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Points:
    """All points of all groups, in one array each; ``group`` is the index of a point's group."""

    num_devices: Floats
    size_bytes: Floats
    time_s: Floats
    group: Indices

    @staticmethod
    def of(groups: Sequence[Group]) -> "Points":
        """Return the points of some groups."""
        counts = [len(group.size_bytes) for group in groups]
        return Points(
            np.repeat([float(group.num_devices) for group in groups], counts),
            np.concatenate([group.size_bytes for group in groups]),
            np.concatenate([group.time_s for group in groups]),
            np.repeat(np.arange(len(groups)), counts),
        )

    def at(self, rows: Indices) -> "Points":
        """Return some of the points."""
        return Points(self.num_devices[rows], self.size_bytes[rows], self.time_s[rows], self.group[rows])


def scored(
    points: Points, groups: Sequence[Group], predicted: Callable[[Points, Points], Floats | None]
) -> tuple[Score | None, dict[int, Score]]:
    """Return the score of groups left out whole, together and one by one.

    Parameters
    ----------
    predicted
        Takes the points that stay in and those left out, and returns the latter's seconds by a fit to the former; None
        where those do not determine the parameters.
    """
    logs: list[float] = []
    by_group = {}
    for index, group in enumerate(groups):
        inside, outside = (
            points.at(np.flatnonzero(chosen)) for chosen in (points.group != index, points.group == index)
        )
        seconds = predicted(inside, outside) if len(inside.time_s) else None
        if seconds is not None:
            found = log_ratio(seconds, outside.time_s).tolist()
            by_group[group.num_devices] = score_of(found)
            logs += found
    return (score_of(logs) if logs else None), by_group


def _ring(num_devices: Floats) -> tuple[Floats, Floats]:
    """Return how many latencies, and how many times the size over the bandwidth, a ring takes."""
    return 2 * (num_devices - 1), 2 * (num_devices - 1) / num_devices


def _tree(num_devices: Floats) -> tuple[Floats, Floats]:
    """Return the same of a double binary tree."""
    return 2 * np.ceil(np.log2(num_devices)), np.full_like(num_devices, 2.0)


_SHAPES: Mapping[str, Callable[[Floats], tuple[Floats, Floats]]] = {"ring": _ring, "tree": _tree}


def fit_free_law(groups: Sequence[Group]) -> Law | None:
    """Return the law of the ring or of the tree; None where fewer than two numbers of devices were measured."""
    if len(groups) < _LEAST_GROUPS:
        return None
    points = Points.of(groups)
    shapes = [_FreeShape(name, points, groups) for name in _SHAPES]
    return min(shapes, key=lambda shape: shape.loss).law()


class _FreeShape:
    """The fit of one shape: seconds of overhead, of a latency, and of a byte."""

    def __init__(self, name: str, points: Points, groups: Sequence[Group]) -> None:
        self.name, self.points, self.groups = name, points, groups
        shortest_s = float(points.time_s.min())
        largest = int(np.argmax(points.size_bytes))
        self.units = np.array([shortest_s, shortest_s, points.time_s[largest] / points.size_bytes[largest]])
        self.values = self.fit(points)
        self.score, self.by_group = scored(points, groups, self.left_out)

    @property
    def loss(self) -> float:
        """What shapes are compared by: the error of groups left out, else of all."""
        own = float(np.abs(log_ratio(self.predicted(self.values, self.points), self.points.time_s)).mean())
        return self.score.loss if self.score else own

    def predicted(self, values: Floats, at: Points) -> Floats:
        """Return the seconds of some points."""
        hops, share = _SHAPES[self.name](at.num_devices)
        return np.asarray(values[0] + values[1] * hops + values[2] * share * at.size_bytes)

    def residuals(self, x: Floats, at: Points) -> Floats:
        """Return the log residuals of some points, of parameters of order 1."""
        return log_ratio(self.predicted(x * self.units, at), at.time_s)

    def fit(self, at: Points) -> Floats:
        """Return the parameters that fit some points best."""
        found = robust_fit(lambda x: self.residuals(x, at), [0.5, 0.1, 0.5], tolerance=1e-6)
        return np.asarray(np.where(found < [_NOTHING, _NOTHING, 0.0], 0.0, found) * self.units)

    def left_out(self, inside: Points, outside: Points) -> Floats | None:
        """Return predictions by a fit to the other groups: to two at least, which tell overhead and latency apart."""
        if len(np.unique(inside.num_devices)) < _LEAST_GROUPS:
            return None
        return self.predicted(self.fit(inside), outside)

    def cost_of(self, num_devices: int) -> TransferCost:
        """Return the cost of an all-reduce on so many devices."""
        hops, share = (float(one[0]) for one in _SHAPES[self.name](np.array([float(num_devices)])))
        overhead_s, latency_s, per_byte_s = self.values.tolist()
        return Affine(startup_s=overhead_s + latency_s * hops, per_byte_s=per_byte_s * share)

    def law(self) -> Law:
        """Return the law with its intervals."""
        ends = spread(lambda x: self.residuals(x, self.points), self.values / self.units)
        overhead, latency, per_byte = (
            (low * unit, high * unit) for (low, high), unit in zip(ends, self.units.tolist(), strict=True)
        )
        overhead_s, latency_s, per_byte_s = self.values.tolist()
        rates = tuple(1 / one if one else inf for one in (per_byte[1], per_byte[0], per_byte_s))
        notes = ["with two numbers of devices overhead and latency are told apart by their difference alone"]
        return Law(
            name=self.name,
            parameters={"overhead_s": overhead_s, "latency_s": latency_s, "bandwidth_bytes_per_s": rates[2]},
            intervals={
                "overhead_s": overhead,
                "latency_s": latency,
                "bandwidth_bytes_per_s": (rates[0], rates[1]),
            },
            score=self.score,
            by_group=self.by_group,
            cost_of=self.cost_of,
            notes=tuple(notes) if len(self.groups) == _LEAST_GROUPS else (),
        )
