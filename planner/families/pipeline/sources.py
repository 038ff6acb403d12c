"""Sources of pipelines in the order of a lower bound of their iteration: by schedule and number of micro-batches."""

import heapq
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from math import ceil
from typing import Protocol

import numpy as np

from planner.cost import Floats
from planner.families.pipeline.cost import Shape
from planner.families.pipeline.domain import CHUNKS, Domain
from planner.families.pipeline.line import floors_s
from planner.families.pipeline.plain import Neighbours, PlainSource
from planner.models.pipeline_places import Stage
from planner.models.ssgd_equations import Strategy
from planner.search import Search
from planner.solvers.pipeline import Integers, Schedule

__all__ = ["InterleavedSource", "PlainSource", "Source", "raise_floors", "sources_of"]


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


def raise_floors(domain: Domain, sources: Sequence["Source"], cutoff_s: float) -> None:
    """Raise the bounds of sources that are not open yet by what bubbles cost, a few numbers of micro-batches at once.

    Only where blocks are whole, and an answer is known that the whole source may lose to: tables of long lines cost far
    more than this bound does.
    """
    if domain.is_fine or cutoff_s == float("inf"):
        return
    floors = {number: least_s for numbers, least_s in floors_s(domain) for number in numbers}
    for source in sources:
        if isinstance(source, PlainSource):
            source.least_s = max(source.least_s, floors[source.schedule.num_microbatches])


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
    def bound(self) -> float:
        """Seconds that no shape of this source that has not been given is below."""
        ...

    def next(self, cutoff_s: float, until_s: float) -> Shape | None:
        """Return the next shape below the cutoff, or None where this step only raised the bound, above ``until_s``."""
        ...


class InterleavedSource:
    """Interleaved shapes: first all as if transfers and exchanges were free, then those of least bound closely.

    A device computes m micro-batches of all its chunks, after the first one has passed the chunks before its own and
    before the last error passes back through them: ``head + m sum(f + b) + tail``, and then exchanges and updates.
    """

    def __init__(self, domain: Domain, search: Search) -> None:
        self.domain, self.search = domain, search
        self.bound_of_last = 0.0
        self.hints: list[Shape] = []
        self._rows: list[tuple[float, int, bool, Shape]] | None = None  # a heap; whether it is bounded closely

    @property
    def is_coarse(self) -> bool:
        """Whether its shapes also stand for others."""
        return False

    @property
    def bound(self) -> float:
        """Seconds that no shape that has not been given is below."""
        if self._rows is None:
            return self.domain.least_s_per_sample * self.domain.batch
        return self._rows[0][0] if self._rows else float("inf")

    def next(self, cutoff_s: float, until_s: float) -> Shape | None:
        """Return the next shape below the cutoff, or None where this step only raised the bound, above ``until_s``."""
        if self._rows is None:
            rows = [(least_s, index, False, shape) for index, (least_s, shape) in enumerate(self._shapes(cutoff_s))]
            if not self.search.is_over:  # else some may be missing
                self._rows = rows
                heapq.heapify(self._rows)
            return None
        while self._rows and self._rows[0][0] < cutoff_s and self._rows[0][0] <= until_s and not self.search.is_over:
            bound_s, index, is_close, shape = heapq.heappop(self._rows)
            if is_close:
                self.bound_of_last = bound_s
                return shape
            heapq.heappush(self._rows, (max(bound_s, self._bound_s(shape)), index, True, shape))
        return None

    def _shapes(self, cutoff_s: float) -> Iterator[tuple[float, Shape]]:
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
                samples = self._samples(p, most)
                # The mean device has the p-th part of the work: where that is too much, no cuts are looked for.
                near = [one for one, each in samples.items() if one * each[-1] * sum_s / p * (1 - 1e-9) < cutoff_s]
                if not near:
                    continue
                cuts = domain.balanced(group, p * chunks, 1)
                ends = [(stage.first, stage.last) for stage in cuts]
                path_s, work_s = self._paths_s(group, p, cuts)
                for number in near:
                    least_s = samples[number] * float((path_s + number * work_s).max()) * (1 - 1e-9)
                    for one in np.flatnonzero(least_s < cutoff_s).tolist():
                        if self.search.is_over:
                            return
                        stages = [Stage(first=i, last=j, group=group, replicas=one + 1) for i, j in ends]
                        yield float(least_s[one]), domain.shape(stages, number, "interleaved", chunks)

    def _samples(self, p: int, most: int) -> dict[int, Integers]:
        """Return, by number of micro-batches that p stages may have, a replica's samples by number of replicas."""
        batch = self.domain.batch
        return {
            number: -(-ceil(batch / number) // np.arange(1, min(most // p, batch // number) + 1))
            for number in self.domain.numbers_of_microbatches
            if number % p == 0
        }

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
