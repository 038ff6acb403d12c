"""The search of the family ``pipeline``.

Domain: every cut of the layers, in their order, into stages, or of whole blocks where the network repeats them
(:mod:`planner.families.pipeline.cost`; inside them where blocks do not fit and no other family answers); for each
stage a machine group and any number of its devices up to the samples of a micro-batch; the fewest micro-batches of
every size; GPipe, 1F1B, and the interleaved schedule with 2 to 16 chunks a device, there with equal replicas of one
group and with the cuts that make the slowest chunk as fast as can be. A pinned number of micro-batches need not divide
the batch. A schedule too long to simulate (:mod:`planner.models.schedule`) is no answer, but its bound still
counts.

Whether anything fits at all is told first (:mod:`planner.families.pipeline.memory`). Each pair of micro-batches and
schedule is a source of shapes in the order of a lower bound of their iteration (:mod:`planner.solvers.pipelines`;
first with the number of stages left open, then by number of stages). The source with the least bound gives the next
shape, which is simulated, until no bound is below the best simulated iteration: that is then the optimum of the domain;
or until none is below the search's cutoff. Quick answers come first (:mod:`planner.families.pipeline.rows`), so that a
limit finds one.

*Large clusters.* With more than ``MOST_REPLICAS`` devices in a group a choice stands for all numbers of devices that
have the same share of a micro-batch: the least of them is simulated, and the bound holds for all. The bound of the
first shape of such a source then stays that of what was not simulated; the status is FEASIBLE where it leaves a gap.

*A batch that may vary up to a maximum.* Each batch is a question of its own; an answer on one is the cutoff of the
next. Which ones are searched, and what bounds the others, is told in :mod:`planner.families.pipeline.domain`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import ceil, log2
from typing import Protocol

import numpy as np

from planner.errors import InfeasibleError, ModelError, NoAnswerError
from planner.families.answer import TOO_SHORT, Searched, iterations_of, plan_of
from planner.families.pipeline.cost import NAME, NOT_MODELLED, Shape, explain, predict
from planner.families.pipeline.domain import (
    CHUNKS,
    Domain,
    bound_of_batch,
    bound_of_others,
    first_batches,
    floors_s,
    further_batches,
    searched_batches_line,
    spread,
)
from planner.families.pipeline.memory import fitting, states_fit, why_nothing_fits
from planner.families.pipeline.rows import Neighbours, PlainSource, passing_s, quick_shapes
from planner.frozen import frozen
from planner.models.input import Strategy
from planner.models.stages import Stage
from planner.plan import Alternative, Plan
from planner.problem import Problem
from planner.search import Search
from planner.solution import SAME
from planner.solvers.branch_and_bound import OpenBoxes
from planner.solvers.pipeline_bounds import Integers, Schedule

_MOST_REPLICAS = 1_024  # of stages up to which every number is a shape of its own
_MOST_ROWS = 500_000  # shapes that are listed
_MOST_COARSE = 12  # shapes of a coarse source: its bound is that of the first, the others may be better answers
_MOST_FIRST = 40  # quick shapes tried before it is asked whether anything fits,
_MOST_FIRST_LIMITED = 600  # or where few numbers of devices are allowed: most shapes are then passed over at once
_LONG_REASON = 50_000  # how often it may be asked whether time is over to find how much memory is missing,
_SHORT_REASON = 2_500  # and where another family answers
_OFTEN_BEST = 8  # micro-batches
_ONE_STAGE = (1, "")


Stacks = dict[tuple[str, tuple[int, ...]], Neighbours]  # of one schedule and as many devices


def sources_of(domain: Domain, search: Search, stacks: Stacks | None = None) -> list["Source"]:
    """Return the sources of all shapes of the domain; ``stacks``: neighbours of those of its parts."""
    sources: list[Source] = []
    stacks = {} if stacks is None else stacks
    # Those that are most often best come first: their answers cut the tables of all others short.
    for number in sorted(domain.numbers_of_microbatches, key=lambda number: abs(log2(number / _OFTEN_BEST))):
        looser = None
        for name in ("1f1b", "gpipe"):
            if name in domain.schedules:
                schedule = Schedule(num_microbatches=number, is_gpipe=name == "gpipe")
                stack = stacks.setdefault((name, domain.num_devices), Neighbours())
                looser = PlainSource(domain, schedule, search, looser, stack)
                sources.append(looser)
    return [*sources, InterleavedSource(domain, search)] if "interleaved" in domain.schedules else sources


def _sources(domain: Domain, cutoff_s: float, search: Search) -> tuple[list["Source"], bool]:
    """Return the sources of all parts of a domain, bounded as far as that is quick; and whether these are all."""
    sources: list[Source] = []
    stacks: Stacks = {}
    for part in domain.parts():
        if search.is_late:
            return sources, False
        own = sources_of(part, search, stacks)
        raise_floors(part, own, cutoff_s, search)
        sources += own
    return sources, True


def raise_floors(domain: Domain, sources: Sequence["Source"], cutoff_s: float, search: Search) -> None:
    """Raise the bounds of sources that are not open yet by what bubbles cost, a few numbers of micro-batches at once.

    Only where blocks are whole, and an answer is known that the whole source may lose to: tables of long lines cost far
    more than this bound does.
    """
    if domain.is_fine or cutoff_s == float("inf"):
        return
    plain = [one for one in sources if isinstance(one, PlainSource)]

    def open_numbers() -> list[int]:
        return sorted({one.schedule.num_microbatches for one in plain if one.bound < cutoff_s})

    def raise_to(least_s: Mapping[int, float]) -> None:
        for source in plain:
            source.least_s = max(source.least_s, least_s.get(source.schedule.num_microbatches, 0.0))

    raise_to(dict(passing_s(domain, open_numbers(), cutoff_s, search)))
    floors = floors_s(domain, open_numbers(), search)
    raise_to({number: least_s for numbers, least_s in floors for number in numbers})


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


@frozen
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
        self._open: OpenBoxes[tuple[int, bool, _Row]] | None = None  # its index, whether it is bounded closely, a row

    @property
    def is_coarse(self) -> bool:
        """Whether its shapes also stand for others."""
        return max(self.domain.num_devices) > _MOST_REPLICAS

    @property
    def bound(self) -> float:
        """Seconds that no shape that has not been given is below."""
        return self.domain.least_s_per_sample * self.domain.batch if self._open is None else self._open.bound

    def next(self, cutoff_s: float, until_s: float) -> Shape | None:
        """Return the next shape below the cutoff, or None where this step only raised the bound, above ``until_s``."""
        if self._open is None:
            rows: OpenBoxes[tuple[int, bool, _Row]] = OpenBoxes()
            for index, (least_s, row) in enumerate(self._rows(cutoff_s)):
                rows.add(least_s, (index, False, row), rank=index)
                if len(rows) > _MOST_ROWS:
                    self.is_too_large = True
                    return None
            if not self.search.is_over:  # else some may be missing
                self._open = rows
            return None
        while self._open.bound < cutoff_s and self._open.bound <= until_s and not self.search.is_over:
            bound_s, (index, is_close, row) = self._open.pop()
            cuts = self.domain.balanced(row.group, row.p * row.chunks, row.replicas)
            shape = self.domain.shape(cuts, row.number, "interleaved", row.chunks)
            if is_close or row.is_coarse:  # what a shape is bounded by closely does not hold for more replicas
                self.bound_of_last = bound_s
                return shape
            close_s = max(bound_s, self._bound_s(shape))
            if close_s < cutoff_s and self.domain.allows(shape):  # what memory it takes is asked of few
                self._open.add(close_s, (index, True, row), rank=index)
        return None

    def _rows(self, cutoff_s: float) -> Iterator[tuple[float, _Row]]:
        """Yield every shape of the domain that would be below the cutoff if transfers and exchanges were free.

        With the seconds that it would take then. Ends before the last one when the search is over.
        """
        domain, costs = self.domain, self.domain.cost.costs
        for group, most in enumerate(domain.num_devices):
            for p in domain.numbers_of_stages:
                near = self._near(group, p, cutoff_s) if 2 <= p <= min(most, domain.num_layers // min(CHUNKS)) else []
                for chunks in CHUNKS if near else ():
                    if self.search.is_over:
                        return
                    if p * chunks > domain.num_layers:
                        break
                    if not states_fit(domain, group, p, chunks, domain.memory_scale):
                        continue
                    cuts = domain.balanced(group, p * chunks, 1)
                    firsts, lasts = np.array([[one.first] for one in cuts]), np.array([[one.last] for one in cuts])
                    for number, replicas, samples in near:
                        # By device, the way to its first task and back from its last, and its work.
                        both_s = costs.forward_s(firsts, lasts, group=group, num_samples=samples)
                        both_s = both_s + costs.backward_s(firsts, lasts, group=group, num_samples=samples)
                        both_s = both_s.reshape(-1, p, len(samples))
                        path_s = np.cumsum(both_s[0], axis=0) - both_s[0]
                        least_s = (path_s + number * both_s.sum(axis=0)).max(axis=0) * (1 - 1e-9)
                        near_rows = np.flatnonzero(least_s < cutoff_s).tolist()
                        fits = partial(self._fits, cuts, chunks, number)
                        # In large groups a row stands for more replicas, too, that hold less.
                        if near_rows and not self.is_coarse and not fits(replicas[near_rows[0]]):
                            near_rows = near_rows[bisect_left(replicas[near_rows], True, key=fits) :]
                        for one in near_rows:
                            if self.search.is_over:
                                return
                            row = _Row(
                                group=group,
                                p=p,
                                chunks=chunks,
                                number=number,
                                replicas=int(replicas[one]),
                                is_coarse=self.is_coarse,
                            )
                            yield float(least_s[one]), row

    def _fits(self, cuts: Sequence[Stage], chunks: int, number: int, replicas: int) -> bool:
        """Whether memory allows so many replicas of each stage: of more each has no more samples, and holds no more."""
        stages = [replace(one, replicas=int(replicas)) for one in cuts]
        return self.domain.fits(self.domain.shape(stages, number, "interleaved", chunks))

    def _near(self, group: int, p: int, cutoff_s: float) -> list[tuple[int, Integers, Integers]]:
        """Return the numbers of micro-batches whose work p devices might do in time, with replicas and their samples.

        The mean device has the p-th part of the work: where that is too much, no cuts are looked for.
        """
        forward, backward = self.domain.cost.costs.machines[group].profile.whole
        whole, near = forward.plus(backward), []
        for number in self.search.watch(self.domain.numbers_of_microbatches):
            if not number % p:
                replicas, samples = self._samples(p, self.domain.num_devices[group], number)
                if number * float(whole(samples[-1])) / p * (1 - 1e-9) < cutoff_s:
                    near.append((number, replicas, samples))
        return near

    def _samples(self, p: int, most: int, number: int) -> tuple[Integers, Integers]:
        """Return numbers of replicas that p stages may have, and a replica's samples of each micro-batch.

        In large groups not all of them: then the samples are those of the most replicas before the next number.
        """
        most = min(most // p, self.domain.batch // number)
        replicas = np.array(spread(most, _MOST_REPLICAS if self.is_coarse else most), dtype=np.int64)
        last = np.append(replicas[1:] - 1, most) if len(replicas) else replicas
        return replicas, -(-ceil(self.domain.batch / number) // last)

    def _bound_s(self, shape: Shape) -> float:
        """Return what no simulation of a shape is below; input bounds it by itself where it is copied ahead."""
        p, v = shape.num_devices_in_line, shape.chunks_per_device
        times = self.domain.cost.times(shape, num_transfers=p - 1)
        rows = (times.forward_s, times.backward_s, times.sync_s, times.update_s)
        forward_s, backward_s, sync_s, update_s = np.array(rows).reshape(4, v, p)
        sent_s = np.array(times.transfer_s)
        head_s = np.concatenate(([0.0], np.cumsum(forward_s[0, :-1] + sent_s)))
        tail_s = np.concatenate(([0.0], np.cumsum(backward_s[0, :-1] + sent_s)))
        ends_s = head_s + shape.num_microbatches * (forward_s + backward_s).sum(axis=0)
        least_s = max(float((ends_s + tail_s).max()), float((ends_s + (sync_s + update_s).sum(axis=0)).max()))
        is_ahead = Strategy(self.domain.problem.calibration.strategy).copies_ahead
        floor_s = self.domain.cost.input(shape).bound_s if is_ahead else 0.0
        return max(least_s + self.domain.least_stall_s, floor_s)


def _kind(shape: Shape) -> tuple[int, str]:
    """Return the number of stages and the schedule, which makes no difference to one stage."""
    return (shape.num_devices_in_line, shape.schedule) if shape.num_devices_in_line > 1 else _ONE_STAGE


@dataclass(slots=True)
class Found:
    """The best shape so far, and the best by number of stages and schedule.

    ``enough_s``: an answer of so many seconds will do; ``needless_s``: one above it matters to nobody. ``is_needed``:
    some answer is wanted in any case. ``on_first`` is called when there is the first one.
    """

    domain: Domain
    enough_s: float
    needless_s: float = float("inf")
    is_needed: bool = True
    on_first: Callable[[], None] = lambda: None
    best: Shape | None = None
    best_s: float = float("inf")
    num_simulated: int = 0
    by_kind: dict[tuple[int, str], tuple[float, Shape]] = field(default_factory=dict)

    @property
    def cutoff_s(self) -> float:
        """Bounds from here on are no better; ``inf`` before the first answer, where that is needed in any case."""
        if self.best is None and self.is_needed:
            return float("inf")
        return min(self.best_s * (1 - SAME), self.needless_s)

    @property
    def is_enough(self) -> bool:
        """Whether the answer is as good as was asked for."""
        return self.best is not None and self.best_s <= self.enough_s

    def try_shape(self, shape: Shape) -> bool:
        """Simulate a shape, if it is allowed, and keep it where it is the best of its kind.

        False where its schedule is beyond what is simulated: then nothing is known of it but its bound.
        """
        if not self.domain.allows(shape):
            return True
        try:
            seconds = self.domain.cost.iteration_time_s(shape)
        except ModelError:
            return False
        self.num_simulated += 1
        kind = _kind(shape)
        if seconds < self.by_kind.get(kind, (float("inf"),))[0]:
            self.by_kind[kind] = (seconds, shape)
        if seconds < self.best_s:
            is_first, self.best, self.best_s = self.best is None, shape, seconds
            if is_first:
                self.on_first()
        return True

    def try_quick(self, search: Search) -> None:
        """Simulate all quick shapes, as far as there is need and time."""
        for shape in quick_shapes(self.domain):
            if self.is_enough or search.is_over:
                return
            self.try_shape(shape)


def plan(problem: Problem, search: Search) -> Plan:
    """Return the best pipeline, with the best of other numbers of stages and schedules that were simulated.

    Raises
    ------
    InfeasibleError
        If nothing fits; the message says what would have to give, and by how much.
    NoAnswerError
        If the time limit struck before the first pipeline that fits was found.
    """
    tried = _all_batches(Domain(problem, skipped=search.skipped), search)
    best = tried.best
    is_alone = search.cutoff == float("inf")  # else a pipeline that needs more cuts loses by far, and is left out
    if best is None and is_alone and not tried.largest.is_fine and not search.is_over:
        tried = _all_batches(Domain(problem, is_fine=True, skipped=search.skipped), search)
        best = tried.best
    if best is None or best.found.best is None:
        raise tried.why_none(search)
    return _plan_of(problem, search, tried, best)


def _plan_of(problem: Problem, search: Search, tried: "_Tried", best: "_Result") -> Plan:
    """Return the plan of the best pipeline."""
    assert best.found.best is not None
    configuration = best.domain.cost.configuration(best.found.best)
    prediction = predict(problem, configuration)
    bound = min(prediction.value_of(problem.goal), tried.bound)
    return plan_of(
        problem,
        Searched(
            family=NAME,
            not_modelled=NOT_MODELLED,
            solver="best-first search on a dynamic programme's bound x simulation of the schedule",
            num_candidates=tried.num_sources,
            num_solved=tried.num_simulated,
        ),
        configuration=configuration,
        prediction=prediction,
        bound=bound,
        explanation=(*explain(problem, configuration, prediction), *_why(best, tried, bound / best.count)),
        alternatives=_alternatives(best.domain, best.found, search.num_alternatives),
    )


@frozen(kw_only=False)
class _Result:
    """What was found on one batch; ``bound`` is an objective, ``count`` the iterations that the goal counts."""

    domain: Domain
    found: Found
    bound: float
    num_sources: int
    count: float

    @property
    def objective(self) -> float:
        """Of the best pipeline; ``inf`` if there is none."""
        return self.found.best_s * self.count


@dataclass(slots=True)
class _Tried:
    """All batches that were searched."""

    largest: Domain
    results: list[_Result] = field(default_factory=list)

    @property
    def best(self) -> _Result | None:
        """The batch with the best pipeline, if there is any."""
        found = (one for one in self.results if one.found.best is not None)
        return min(found, key=lambda one: one.objective, default=None)

    @property
    def objective(self) -> float:
        """Of the best pipeline; ``inf`` if there is none."""
        return min((one.objective for one in self.results), default=float("inf"))

    @property
    def batches(self) -> list[int]:
        """Those that were searched."""
        return [one.domain.batch for one in self.results]

    @property
    def bound(self) -> float:
        """Objective that no pipeline of any batch beats."""
        return min(*(one.bound for one in self.results), bound_of_others(self.largest, self.batches))

    def is_enough_for(self, least: float, search: Search) -> bool:
        """Whether there is an answer, and one of no less than ``least`` is not wanted besides."""
        wanted = min(self.objective, search.cutoff)
        is_enough = self.objective <= search.good_enough or wanted <= least * (1 + SAME)
        return self.objective < float("inf") and is_enough

    @property
    def num_sources(self) -> int:
        """Settings of micro-batches and schedule."""
        return sum(one.num_sources for one in self.results)

    @property
    def num_simulated(self) -> int:
        """Pipelines that were simulated."""
        return sum(one.found.num_simulated for one in self.results)

    def why_none(self, search: Search) -> Exception:
        """Return the error to raise where no pipeline was found; why is not looked for where only asked whether."""
        is_cut_off = self.largest.problem.training.fixed_batch_size is None and search.is_over
        if min(one.bound for one in self.results) < float("inf") or is_cut_off:
            return NoAnswerError(TOO_SHORT)
        if search.good_enough == float("inf") or not search.has_reasons or self.largest.is_equal:
            return InfeasibleError(self.largest.why_empty() or "No plan fits: no pipeline meets all limits and pins.")
        most = _LONG_REASON if search.cutoff == float("inf") else _SHORT_REASON
        part = search.part(search.left_s, questions_left=most)
        if why := self.largest.why_empty():
            return InfeasibleError(why)
        return why_nothing_fits(self.largest, part)


def _all_batches(largest: Domain, search: Search) -> _Tried:
    """Search the batches that may still be better, in the order of their bounds; at least one."""
    tried = _Tried(largest)
    for batch in first_batches(tried.largest):
        if tried.results and (search.is_over or tried.is_enough_for(bound_of_batch(tried.largest, batch), search)):
            break
        tried.results.append(_one_batch(tried, batch, search))
    for batch in further_batches(tried.largest):
        if tried.objective < float("inf") or search.is_over:
            break
        tried.results.append(_one_batch(tried, batch, search))
    return tried


def _one_batch(tried: _Tried, batch: int, search: Search) -> _Result:
    """Return the best pipeline on a batch, as far as it may be better than those on others."""
    largest = tried.largest
    is_largest = batch == largest.batch
    domain = largest if is_largest else largest.of_batch(batch)
    count = float(iterations_of(domain.problem, batch))
    known = tried.objective * (1 - SAME / 2)  # of equals, the first; half, so that rounding leaves them proven
    is_needed = known == float("inf") and (not domain.is_equal or search.cutoff == float("inf"))

    def keep() -> None:
        """Have the best so far as the answer, should the search be broken off."""
        so_far = _Tried(largest, [*tried.results, _Result(domain, found, 0.0, 0, count)])
        if (best := so_far.best) is not None:
            search.keep(lambda: _plan_of(domain.problem, search, so_far, best))

    found = Found(domain, search.good_enough / count, min(search.cutoff, known) / count, is_needed, keep)

    def tell(bound_s: float) -> None:
        """Say what no pipeline of any batch beats: none of this one ``bound_s`` seconds an iteration."""
        search.report(min(bound_s * count, rest), min(found.best_s * count, tried.objective))

    rest = 0.0
    if search.on_progress is not None:
        rest = min([bound_of_others(largest, [*tried.batches, batch]), *(one.bound for one in tried.results)])
    bound_s, num_sources = (float("inf"), 0) if domain.why_empty() else _search(domain, found, search, tell)
    return _Result(domain, found, bound_s * count, num_sources, count)


def _search(domain: Domain, found: Found, search: Search, tell: Callable[[float], None]) -> tuple[float, int]:
    """Return a bound in seconds of an iteration on all that was not simulated, and the number of sources.

    ``tell`` is called with that bound on the way.
    """
    if not _first_answer(domain, found, search):
        return float("inf"), 0
    found.try_quick(search)
    sources, is_whole = _sources(domain, min(found.cutoff_s, found.needless_s), search)
    left: OpenBoxes[int] = OpenBoxes()
    for index, source in enumerate(sources):
        left.add(source.bound, index, rank=index)
    # Of what the shapes of coarse sources stand for, of schedules that are too long, and of sources that are missing.
    least_s = float("inf") if is_whole else domain.least_s_per_sample * domain.batch
    taken = [0] * len(sources)
    while left.bound < found.cutoff_s and not found.is_enough and not search.is_over:
        tell(min(found.best_s, found.needless_s, least_s, left.bound))
        bound_s, index = left.pop()
        source = sources[index]
        if source.bound > bound_s:  # another source's bound has raised it
            if source.bound < found.cutoff_s:
                left.add(source.bound, index, rank=index)
            continue
        following = source.next(found.cutoff_s, left.bound)
        while source.hints and not found.is_enough:
            found.try_shape(source.hints.pop(0))
        if following is not None:
            is_known = found.try_shape(following)
            taken[index] += 1
            if source.is_coarse or not is_known:
                least_s = min(least_s, source.bound_of_last)
        if source.is_too_large:
            least_s = min(least_s, source.bound)
        elif source.bound < found.cutoff_s and not (source.is_coarse and taken[index] >= _MOST_COARSE):
            left.add(source.bound, index, rank=index)
    least_s = min([least_s, *(sources[index].bound for index in left)])
    if not domain.has_all_numbers:  # no pipeline with a number of micro-batches that is not tried is below this
        least_s = min(least_s, domain.least_s_per_sample * domain.batch)
    if found.best is None and found.is_needed:
        return least_s, len(sources)
    return min(found.best_s, found.needless_s, least_s), len(sources)


def _first_answer(domain: Domain, found: Found, search: Search) -> bool:
    """Find any shape that fits, by the quick ones or else by the recursion; return whether there may be one."""
    for shape in islice(quick_shapes(domain), _MOST_FIRST_LIMITED if domain.is_limited else _MOST_FIRST):
        if found.best is not None or search.is_over:
            return True
        found.try_shape(shape)
    if found.best is not None or domain.is_equal:  # then it is asked elsewhere whether anything fits
        return True
    fits = fitting(domain, search)
    if fits.shape is not None:
        found.try_shape(fits.shape)
    return fits.shape is not None or not fits.is_proven


def _why(result: _Result, tried: _Tried, bound_s: float) -> list[str]:
    """Return whether pipelining pays, and how the answer was proven."""
    domain, found = result.domain, result.found
    assert found.best is not None
    lines = []
    is_proven = found.best_s - bound_s <= SAME * found.best_s
    parallel = found.by_kind.get(_ONE_STAGE)
    if parallel is not None:
        seconds, shape = parallel
        replicas = shape.stages[0].replicas
        what = f"data parallelism without overlap (one stage on {replicas} device{'s' * (replicas > 1)})"
        if found.best.num_devices_in_line == 1:
            verdict = "is the best pipeline" if is_proven else "is the best pipeline that was found"
            lines.append(f"pipelining {'does not pay' if is_proven else 'may not pay'} here: {what} {verdict}")
        else:
            lines.append(f"{what} would take {seconds / found.best_s - 1:.1%} longer")
    elif not domain.fits_one_stage:
        lines.append("the whole network fits on no device, so that it must be split into stages")
    rest = "not all others are ruled out by their bounds"
    if is_proven:
        rest = "the others' bounds are no better"
    elif bound_s >= found.needless_s * (1 - SAME):
        rest = "the others' bounds are no better than an answer that is known already"
    lines.append(
        f"settings of micro-batches and schedule: {tried.num_sources:,}; pipelines simulated: "
        f"{tried.num_simulated:,}; {rest}"
    )
    if not domain.has_all_numbers:
        lines.append(
            f"of very many numbers of micro-batches {len(domain.numbers_of_microbatches):,} were tried: the fewest, "
            f"those of the smallest sizes and some between; the others are bounded by what all devices compute"
        )
    if domain.problem.training.fixed_batch_size is None:
        lines.append(searched_batches_line(tried.largest, tried.batches))
    return lines


def _alternatives(domain: Domain, found: Found, number: int) -> list[Alternative]:
    """Return the best simulated pipelines of other numbers of stages or schedules."""
    assert found.best is not None
    count = float(iterations_of(domain.problem, domain.batch))
    best_kind = _kind(found.best)
    rows = []
    for (stages, schedule), (seconds, shape) in sorted(found.by_kind.items(), key=lambda item: (item[1][0], item[0])):
        if (stages, schedule) == best_kind:
            continue
        name = "data parallel, one stage" if stages == 1 else f"{stages} stages, {schedule}"
        configuration = domain.cost.configuration(shape)
        loss = seconds / found.best_s - 1 if found.best_s else 0.0
        rows.append(
            Alternative(
                name=name,
                family=NAME,
                objective=seconds * count,
                relative_loss=loss,
                reason=f"the best that was simulated: {configuration.headline}",
                configuration=configuration,
            )
        )
    kept = rows[: max(number, 0)]
    return kept + [one for one in rows[len(kept) :] if one.name.startswith("data parallel")][:1]
