"""Sources of pipelines in the order of a lower bound of their iteration: by schedule and number of micro-batches."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import ceil
from typing import Protocol

import numpy as np

from planner.cost import Floats
from planner.families.pipeline.cost import Shape
from planner.families.pipeline.domain import CHUNKS, Domain, spread
from planner.families.pipeline.line import floors_s
from planner.families.pipeline.plain import Neighbours, PlainSource
from planner.models.pipeline_places import Stage
from planner.models.ssgd_equations import Strategy
from planner.search import Search
from planner.solvers.pipeline import Integers, Schedule

__all__ = ["InterleavedSource", "PlainSource", "Source", "raise_floors", "sources_of"]

_MOST_REPLICAS = 1_024  # of stages up to which every number is a shape of its own
_MOST_ROWS = 500_000  # shapes that are listed


def sources_of(domain: Domain, search: Search) -> list["Source"]:
    """Return the sources of all shapes of the domain."""
    sources: list[Source] = []
    stacks = {name: Neighbours() for name in ("1f1b", "gpipe")}
    for number in reversed(domain.numbers_of_microbatches):  # small micro-batches have few choices: bounded soonest
        looser = None
        for name in ("1f1b", "gpipe"):
            if name in domain.schedules:
                schedule = Schedule(num_microbatches=number, is_gpipe=name == "gpipe")
                looser = PlainSource(domain, schedule, search, looser, stacks[name])
                sources.append(looser)
    return [*sources, InterleavedSource(domain, search)] if "interleaved" in domain.schedules else sources


def raise_floors(domain: Domain, sources: Sequence["Source"], cutoff_s: float, search: Search) -> None:
    """Raise the bounds of sources that are not open yet by what bubbles cost, a few numbers of micro-batches at once.

    Only where blocks are whole, and an answer is known that the whole source may lose to: tables of long lines cost far
    more than this bound does.
    """
    if domain.is_fine or cutoff_s == float("inf"):
        return
    floors = {number: least_s for numbers, least_s in floors_s(domain, search) for number in numbers}
    for source in sources:
        if isinstance(source, PlainSource):
            source.least_s = max(source.least_s, floors.get(source.schedule.num_microbatches, 0.0))


class Source(Protocol):
    """Shapes in the order of a bound of their iteration.

    Attributes
    ----------
    bound_of_last
        Bound of the shape that was given last.
    hints
        Shapes that the last step came upon, which may be good; to be taken out.
    """

    bound_of_last: float
    hints: list[Shape]

    @property
    def is_coarse(self) -> bool:
        """Whether its shapes also stand for others."""
        ...

    @property
    def is_too_large(self) -> bool:
        """Whether it gives no more shapes, as what it would list does not fit in memory; its bound still holds."""
        ...

    @property
    def bound(self) -> float:
        """Seconds that no shape of this source that has not been given is below."""
        ...

    def next(self, cutoff_s: float, until_s: float) -> Shape | None:
        """Return the next shape below the cutoff, or None where this step only raised the bound, above ``until_s``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """An interleaved shape: stages of one group, chunks a device, micro-batches, and the replicas of every stage.

    ``is_coarse``: it stands for some more replicas, too.
    """

    group: int
    p: int
    chunks: int
    number: int
    replicas: int
    is_coarse: bool


class InterleavedSource:
    """Interleaved shapes: first all as if transfers and exchanges were free, then those of least bound closely.

    A device computes m micro-batches of all its chunks, after the first one has passed the chunks before its own and
    before the last error passes back through them: ``head + m sum(f + b) + tail``, and then exchanges and updates.

    In large groups a shape stands for all with the same stages and some more replicas, as a choice does elsewhere.
    """

    def __init__(self, domain: Domain, search: Search) -> None:
        self.domain, self.search = domain, search
        self.bound_of_last = 0.0
        self.hints: list[Shape] = []
        self.is_too_large = False
        self._rows: list[tuple[float, int, bool, _Row]] | None = None  # a heap; whether it is bounded closely

    @property
    def is_coarse(self) -> bool:
        """Whether its shapes also stand for others."""
        return max(self.domain.num_devices) > _MOST_REPLICAS

    @property
    def bound(self) -> float:
        """Seconds that no shape that has not been given is below."""
        if self._rows is None:
            return self.domain.least_s_per_sample * self.domain.batch
        return self._rows[0][0] if self._rows else float("inf")

    def next(self, cutoff_s: float, until_s: float) -> Shape | None:
        """Return the next shape below the cutoff, or None where this step only raised the bound, above ``until_s``."""
        if self._rows is None:
            rows = []
            for index, (least_s, row) in enumerate(self._shapes(cutoff_s)):
                rows.append((least_s, index, False, row))
                if len(rows) > _MOST_ROWS:
                    self.is_too_large = True
                    return None
            if not self.search.is_over:  # else some may be missing
                self._rows = rows
                heapq.heapify(self._rows)
            return None
        while self._rows and self._rows[0][0] < cutoff_s and self._rows[0][0] <= until_s and not self.search.is_over:
            bound_s, index, is_close, row = heapq.heappop(self._rows)
            shape = self._shape(row)
            if is_close or row.is_coarse:  # what a shape is bounded by closely does not hold for more replicas
                self.bound_of_last = bound_s
                return shape
            heapq.heappush(self._rows, (max(bound_s, self._bound_s(shape)), index, True, row))
        return None

    def _shape(self, row: _Row) -> Shape:
        """Return a row as a shape."""
        cuts = self.domain.balanced(row.group, row.p * row.chunks, row.replicas)
        return self.domain.shape(cuts, row.number, "interleaved", row.chunks)

    def _shapes(self, cutoff_s: float) -> Iterator[tuple[float, _Row]]:
        """Yield every shape of the domain that would be below the cutoff if transfers and exchanges were free.

        With the seconds that it would take then.

        Ends before the last one when the search is over.
        """
        domain = self.domain
        for group, most in enumerate(domain.num_devices):
            profile = domain.cost.costs.machines[group].profile
            sum_s = float((profile.forward_s + profile.backward_s).sum())
            for p, chunks in product(domain.numbers_of_stages, CHUNKS):
                if not 2 <= p <= most or p * chunks > domain.num_layers:
                    continue
                if self.search.is_over:
                    return
                near = []
                for number in domain.numbers_of_microbatches:
                    if number % p:
                        continue
                    replicas, samples = self._samples(p, most, number)
                    # The mean device has the p-th part of the work: where that is too much, no cuts are looked for.
                    if number * samples[-1] * sum_s / p * (1 - 1e-9) < cutoff_s:
                        near.append((number, replicas, samples))
                if not near:
                    continue
                path_s, work_s = self._paths_s(group, p, domain.balanced(group, p * chunks, 1))
                for number, replicas, samples in near:
                    least_s = samples * float((path_s + number * work_s).max()) * (1 - 1e-9)
                    for one in np.flatnonzero(least_s < cutoff_s).tolist():
                        if self.search.is_over:
                            return
                        yield (
                            float(least_s[one]),
                            _Row(
                                group=group,
                                p=p,
                                chunks=chunks,
                                number=number,
                                replicas=int(replicas[one]),
                                is_coarse=self.is_coarse,
                            ),
                        )

    def _samples(self, p: int, most: int, number: int) -> tuple[Integers, Integers]:
        """Return numbers of replicas that p stages may have, and a replica's samples of each micro-batch.

        In large groups not all of them: then the samples are those of the most replicas before the next number.
        """
        most = min(most // p, self.domain.batch // number)
        replicas = np.array(spread(most, _MOST_REPLICAS if self.is_coarse else most), dtype=np.int64)
        last = np.append(replicas[1:] - 1, most) if len(replicas) else replicas
        return replicas, -(-ceil(self.domain.batch / number) // last)

    def _paths_s(self, group: int, p: int, cuts: Sequence[Stage]) -> tuple[Floats, Floats]:
        """Return, by device and for one sample, the way to its first task and back from its last, and its work."""
        costs = self.domain.cost.costs
        firsts, lasts = np.array([one.first for one in cuts]), np.array([one.last for one in cuts])
        forward_s = costs.forward_s(firsts, lasts, group=group, num_samples=1).reshape(-1, p)
        backward_s = costs.backward_s(firsts, lasts, group=group, num_samples=1).reshape(-1, p)
        both_s = forward_s + backward_s
        return np.concatenate(([0.0], np.cumsum(both_s[0, :-1]))), both_s.sum(axis=0)

    def _bound_s(self, shape: Shape) -> float:
        """Return what no simulation of a shape is below."""
        times, p, v = self.domain.cost.times(shape), shape.num_devices_in_line, shape.chunks_per_device
        rows = (times.forward_s, times.backward_s, times.sync_s, times.update_s)
        forward_s, backward_s, sync_s, update_s = (np.array(one).reshape(v, p) for one in rows)
        sent_s = np.array(times.transfer_s[: p - 1])
        head_s = np.concatenate(([0.0], np.cumsum(forward_s[0, :-1] + sent_s)))
        tail_s = np.concatenate(([0.0], np.cumsum(backward_s[0, :-1] + sent_s)))
        ends_s = head_s + shape.num_microbatches * (forward_s + backward_s).sum(axis=0)
        least_s = max(float((ends_s + tail_s).max()), float((ends_s + (sync_s + update_s).sum(axis=0)).max()))
        floor_s = self.domain.cost.input(shape).bound_s if self._is_ahead else 0.0
        return max(least_s + self.domain.least_stall_s, floor_s)

    @cached_property
    def _is_ahead(self) -> bool:
        """Whether input is copied ahead, so that it bounds an iteration by itself."""
        return Strategy(self.domain.problem.calibration.strategy).copies_ahead
