"""Pipelines of one number of micro-batches under GPipe or 1F1B, in the order of a lower bound of their iteration."""

from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from planner.families.pipeline.cost import Shape
from planner.families.pipeline.domain import Domain
from planner.families.pipeline.rows import StageRows
from planner.models.pipeline_places import Stage
from planner.search import Search
from planner.solvers.pipeline import BestFirst, Candidate, PipelineCosts, Schedule, Tables, TablesOfOne, table_bytes

__all__ = ["Neighbours", "PlainSource"]

_NUM_DIVES = 3  # numbers of stages for which the least bound is followed to an answer at once
_MOST_ENTRIES = 4e8  # of a table times choices: what a source by number of stages may cost
_MOST_BYTES = 1 << 30  # of the tables of a source: where they would be larger, it is bounded, but not searched
_MOST_TOGETHER = 5e6  # the same of all tables that are filled together: beyond, longer arrays save no time


@dataclass(frozen=True, slots=True)
class _Filled:
    """The stages of a source as arrays, and what may follow each of them."""

    costs: PipelineCosts
    tables: TablesOfOne


class PlainSource:
    """Shapes of one number of micro-batches under GPipe or 1F1B: bounded ever more closely as they are asked for.

    ``looser``: the source of 1F1B for one of GPipe. While the number of stages is open, each term of GPipe's bound is
    at least that of 1F1B, and memory holds no more: the open bound of the one holds for the other.

    ``neighbours``: sources of the same schedule, whose tables may be filled together with those of this one.
    """

    def __init__(
        self,
        domain: Domain,
        schedule: Schedule,
        search: Search,
        looser: "PlainSource | None" = None,
        neighbours: "Neighbours | None" = None,
    ) -> None:
        self.domain, self.schedule, self.search, self.looser = domain, schedule, search, looser
        self._neighbours = Neighbours() if neighbours is None else neighbours
        self._neighbours.sources.append(self)
        samples = schedule.num_microbatches * ceil(domain.batch / schedule.num_microbatches)
        self.least_s = domain.least_s_per_sample * samples
        self.bound_of_last = self.least_s
        self._levels = [True, False]
        self._filled: _Filled | None = None  # for the next level
        self._found: BestFirst | None = None
        self.is_too_large = False
        self.hints: list[Shape] = []
        self.open_bound_s = self.least_s

    @property
    def is_coarse(self) -> bool:
        """Whether its shapes also stand for others."""
        return self.domain.is_coarse

    @property
    def bound(self) -> float:
        """Seconds that no shape that has not been given is below."""
        if self._found is None:
            return self.least_s if self.looser is None else max(self.least_s, self.looser.open_bound_s)
        return max(self.least_s, self._found.bound + self.domain.least_stall_s)

    def next(self, cutoff_s: float, until_s: float) -> Shape | None:
        """Return the next shape, or None where this step only raised the bound."""
        if self._found is None or self._levels:
            self.least_s = self.bound
            found = self._opened(cutoff_s)
            if found is None:
                self.is_too_large = True
                return None
            self._found = found
            self._levels = self._levels[1:] if self._is_small(self._found.costs) else []
            if self._levels or not self._is_small(self._found.costs):
                self.open_bound_s = self.bound
            self.hints = [self._shape(one) for one in self._found.dive(_NUM_DIVES)]
            return None
        stall_s = self.domain.least_stall_s
        candidate = self._found.next(cutoff_s - stall_s, max(until_s - stall_s, self._found.bound))
        if candidate is None:
            self.is_too_large = self._found.is_too_large
            return None
        self.bound_of_last = candidate.bound + stall_s
        return self._shape(candidate)

    def _shape(self, candidate: Candidate) -> Shape:
        """Return a candidate as a shape."""
        assert self._found is not None
        choices = self._found.costs.choices
        stages = [
            Stage(
                first=one.first,
                last=one.last,
                group=choices[one.choice].type_index,
                replicas=choices[one.choice].num_devices,
            )
            for one in candidate.stages
        ]
        name = "gpipe" if self.schedule.is_gpipe else "1f1b"
        return self.domain.shape(stages, self.schedule.num_microbatches, name)

    def _is_small(self, costs: PipelineCosts) -> bool:
        """Whether the tables by number of stages may be filled."""
        return _size(self.domain, len(costs.choices)) * max(self.domain.numbers_of_stages) <= _MOST_ENTRIES

    def _opened(self, cutoff_s: float) -> BestFirst | None:
        """Return the search on the next level, with its tables filled; None where they do not fit in memory."""
        if self._filled is None:
            self._neighbours.fill(self, cutoff_s)
        if self._filled is None:
            return None
        filled, self._filled = self._filled, None
        return BestFirst(
            filled.costs,
            self.schedule,
            self.domain.numbers_of_stages,
            self.search,
            cutoff=cutoff_s - self.domain.least_stall_s,
            is_open=self._levels[0],
            tables=filled.tables,
        )

    # -- tables filled together --------------------------------------------------------------------------------------

    def take(self, costs: PipelineCosts, tables: TablesOfOne) -> None:
        """Keep the tables of the next level until they are asked for; a cutoff that fell since leaves them true."""
        self._filled = _Filled(costs, tables)

    def needs(self, *, is_open: bool) -> bool:
        """Whether tables of that level come next, if any: GPipe's open ones may be spared by those of 1F1B."""
        is_next = self._filled is None and self._levels[:1] == [is_open]
        return is_next and (not is_open or self.looser is None or self.looser._found is not None)

    @property
    def is_open(self) -> bool:
        """Whether the tables that come next leave the number of stages open."""
        return self._levels[0]

    @cached_property
    def size(self) -> int:
        """Stages of the whole line by state, at most, where choices are single numbers of devices."""
        most = self.domain.batch // self.schedule.num_microbatches
        return _size(self.domain, sum(min(number, most) for number in self.domain.num_devices))


class Neighbours:
    """The sources of one schedule.

    Passes over small tables are so short that calls of numpy would take most of the time. So tables of several sources
    are filled together: those that will be needed, too, unless better answers are found first, by least bound.
    """

    def __init__(self) -> None:
        self.sources: list[PlainSource] = []
        self._most = 1  # sources at once: twice as many every time, as the first ones lower the cutoff of all others

    def fill(self, asking: PlainSource, cutoff_s: float) -> None:
        """Fill the tables of a source's next level, and with them those of others; none where they are too large."""
        domain, found = asking.domain, self._together(asking, cutoff_s)
        rows = StageRows(domain, [one.schedule.num_microbatches for one in found])
        stack, num_stages = rows.stack(is_gpipe=asking.schedule.is_gpipe), 0
        if not asking.is_open:
            num_stages = max(domain.numbers_of_stages)
        needed_bytes = table_bytes(rows, stack, num_stages)
        if needed_bytes > _MOST_BYTES or not asking.search.fits(needed_bytes):
            return
        tables = Tables(
            rows,
            stack,
            num_stages,
            asking.search,
            cutoff_s - domain.least_stall_s,
            _allowed(domain),
        )
        for index, one in enumerate(found):
            one.take(rows.of(index), tables.of(index))

    def _together(self, asking: PlainSource, cutoff_s: float) -> list[PlainSource]:
        """Return the sources whose tables are to be filled with those of the one that asks for it, this one first."""
        if asking.is_coarse:  # choices and units differ by source, and tables are large
            return [asking]
        others = [one for one in self.sources if one is not asking and one.needs(is_open=asking.is_open)]
        found, size = [asking], asking.size
        for one in sorted(others, key=lambda one: one.bound):
            size += one.size
            if len(found) >= self._most or size > _MOST_TOGETHER or one.bound >= cutoff_s:
                break
            found.append(one)
        self._most *= 2
        return found


def _size(domain: Domain, num_choices: int) -> int:
    """Return the stages of the whole line by state, at most."""
    return prod(number + 1 for number in domain.num_devices) * domain.num_layers**2 * num_choices


def _allowed(domain: Domain) -> NDArray[np.bool_] | None:
    """Return which numbers of devices may be used; None for coarse choices, which may use more than they count."""
    if domain.is_coarse or not domain.is_limited:
        return None
    return domain.allowed(np.indices([number + 1 for number in domain.num_devices]))
