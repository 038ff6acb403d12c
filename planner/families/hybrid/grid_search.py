"""The search of layouts of the family ``hybrid``: one branch and bound for every placement on machine groups.

Domain of even cuts, on each machine group by itself: every tensor degree that divides heads and widths, context degree
that splits the sequence, number of stages and virtual stages to which layers can be dealt out (with embedding and head
in a layer's place each), data degree and micro-batch that divide the batch, expert degree that divides the experts;
ZeRO 0 to 3, recomputation, sequence parallelism, GPipe and 1F1B (other schedules where they are pinned, or
the program has them), overlaps, the optimiser on the host, and the order of the degrees on the tiers of the network.
Any number of devices that limits allow.

Domain of other cuts: 1F1B without virtual stages, ZeRO 0 and 1, the optimiser on the devices; the batch is given.

- *Stages.* One machine group (then two stages or more), or several in any order along the pipeline: each has one stage
  or more, which follow each other; tensor, context, data and expert degrees and the micro-batch are those of all
  stages. Ranks of several groups are numbered stage by stage. Layers are cut so that the slowest stage is as quick as
  can be, as far as memory allows (:mod:`planner.models.layouts`).
- *Replicas.* Two groups or more, each with whole replicas of equal degrees and the same cut; each group's replicas do
  their own number of micro-batches, shared out so that the longest of all ``X + (m - w) x + (w - 1) max(f, b)`` is as
  short as can be (the group that ends last, but for waits in the schedule).

Of a pipeline with few cuts all are tried (:mod:`planner.families.hybrid.cost`), and proven; of longer ones the cuts of
the best setting are improved by moving single layers from one stage to another, the best of all pairs each time, which
ends with a cut no worse than any neighbour and is not proven over all cuts. Other cuts into chunks are looked for, and
bounded, in :mod:`planner.families.hybrid.chunks`.

The grid stands in :mod:`planner.families.hybrid.space`, its bounds in :mod:`planner.families.hybrid.bounds`, the walk
in :mod:`planner.solvers.grid`: what it finds is the optimum of the grid, proven, unless it is stopped. Every placement
is bounded by the best layouts of those before it, as many as are asked for. A cut into equal stages on one group is
left to the even ones. Other cuts and numbers of micro-batches that ``predict`` takes are outside of the domain.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, permutations
from math import inf

import numpy as np

from planner.cost import Floats
from planner.families.hybrid.bounds import Bounds, peak_step_s
from planner.families.hybrid.configuration import (
    AWAY,
    CODES_OF_CUTS,
    pinned_cut,
)
from planner.families.hybrid.cost import (
    GroupCost,
    HybridCost,
    Placement,
    cut_columns,
    has_few_cuts,
)
from planner.families.hybrid.cut_bounds import CutBounds
from planner.families.hybrid.even_bounds import EvenBounds, GivenBounds
from planner.families.hybrid.found import GAIN, Found, nothing, with_rows
from planner.families.hybrid.space import Space
from planner.models.layouts import Ints
from planner.search import Search
from planner.solution import Solution, Status
from planner.solvers.grid import (
    MOST_AT_ONCE,
    Columns,
    Grid,
    GridAnswer,
    Point,
    Turn,
    Wanted,
    solve,
    solve_in_turn,
)
from planner.units import Dimension, format_human
from planner.words import percent_words
from planner.worker_pool import FailedTask, Origin, WorkerPool

DOMAIN = (
    "stages of unlike layers, and layouts over several kinds of machines: 1F1B without chunks, ZeRO 0 and 1, stages or "
    "whole replicas of each kind, numbered kind by kind, and a fixed batch; of stages all cuts of the layers where "
    "stages x cuts are 2,000 or fewer, else of each setting the cut whose slowest stage is least, improved by moving "
    "single layers in the best setting only (what another cut could save stands under the headline); of chunks those "
    "dealt out evenly, near a few of the best improved by moving single layers (likewise); of whole replicas the cut "
    "whose slowest stage is least, with micro-batches dealt out for the quickest kind, where near numbers add up to "
    "the batch; on "
    "several kinds together three quarters of each kind's devices or more (unless numbers are limited)"
)
OTHER_CUTS = "hybrid layouts with other cuts of the layers into stages without chunks"  # on one machine group
_MOST_CUTS_AT_ONCE = 400_000
_MOST_GROUPS = 4  # in a layout
_MOST_OF_FIRST = 64  # questions whether time is over: counted, so that the answer is the same on every machine
_MOST_SHARES = 16  # of the time that is left: each of many placements is searched for a while
_MOST_CELLS = 200_000  # stages in one array
_MOST_TASKS = 20_000_000  # stages times micro-batches that one improvement may evaluate: about a second
_MOST_NEIGHBOURS = 20_000_000  # stages of all near cuts of one setting
_AT_ONCE = 32  # cuts evaluated together, the most hopeful ones first
_POLL_S = 0.05
_ON_HOST = ("offload_optimizer", *AWAY)


def bounds_of(cost: HybridCost, search: Search | None = None, memory_limit_bytes: float = inf) -> Bounds:
    """Return the bounds that go with a placement."""
    kind = CutBounds if not cost.is_even else EvenBounds if cost.first.cut is None else GivenBounds
    return kind(cost, search or Search(), memory_limit_bytes)


# -- one placement -----------------------------------------------------------------------------------------------------


def searched(
    cost: HybridCost,
    search: Search,
    *,
    uses_bounds: bool = True,
    is_strict: bool = False,
    memory_limit_bytes: float = inf,
    counts: bool = True,
    before: GridAnswer | None = None,
    dives: bool | None = None,
) -> GridAnswer:
    """Return the best layouts of one placement.

    Parameters
    ----------
    uses_bounds
        Without, every layout is evaluated: slow, and the same answer.
    is_strict
        Whether layouts above the search's cutoff are not wanted at all, whatever the search says of it.
    memory_limit_bytes
        Of an even cut, where that is less than what a device may hold.
    counts
        Whether to count the layouts of the grid.
    before
        The answer to the same question when its time was over, from which the search goes on.
    dives
        As of :func:`planner.solvers.grid.solve`.
    """
    bounds, number = bounds_of(cost, search, memory_limit_bytes), 1 + max(search.num_alternatives, 0)
    group_by, first = bounds.space.group_by, None
    is_begun = before is not None
    if uses_bounds and not is_begun and cost.is_even and bounds.space.is_split:
        # Very many divisors: first an answer from some of them.
        few = bounds_of(cost, search.part(search.left_s / 2), memory_limit_bytes).of_space(bounds.space.narrow)
        wanted = Wanted(num_answers=number, group_by=group_by, counts=False)
        first = solve(few.grid(), few.seconds, few.search, wanted)
    bare = replace(cost, groups=tuple(replace(one) for one in cost.groups))  # without what it has worked out, to travel
    answer = solve(
        bounds.grid(uses_bounds=uses_bounds),
        bounds.seconds,
        search,
        Wanted(
            num_answers=number,
            group_by=group_by,
            most_at_once=MOST_AT_ONCE if cost.is_even else _MOST_CUTS_AT_ONCE,
            is_strict=is_strict or search.is_strict,
            counts=counts and search.has_reasons and not search.is_brief,
            dives=dives,
        ),
        maker=partial(_Grids, [bare], memory_limit_bytes),
        before=before,
    )
    if first is not None and first.solution.objective < answer.solution.objective:  # the time was over before
        bound = min(answer.solution.bound, first.solution.objective)
        best = replace(first.solution, bound=bound, status=Status.FEASIBLE)
        num_asked = answer.num_evaluated + first.num_evaluated
        answer = replace(first, solution=best, num_evaluated=num_asked, rest=answer.rest)
        answer = replace(answer, is_counted=False, num_points=answer.num_evaluated)
    return _no_less_than_peak(answer, cost)


def _no_less_than_peak(answer: GridAnswer, cost: HybridCost) -> GridAnswer:
    """Return an answer that is bounded by what devices take at their peak, should it have been stopped early."""
    solution, peak_s = answer.solution, peak_step_s(cost.groups)
    if solution.bound < peak_s and solution.status in (Status.FEASIBLE, Status.UNKNOWN):
        return replace(answer, solution=replace(solution, bound=min(peak_s, solution.objective)))
    return answer


# -- all placements but even cuts --------------------------------------------------------------------------------------


def placements_of(costs: Sequence[GroupCost]) -> Iterator[HybridCost]:
    """Yield the placements of other cuts: stages on each group, replicas on several, and their stages in any order.

    Replicas come before pipelines: they are searched sooner, and their best bounds the others. On TPUs stages are alike
    (:func:`planner.families.hybrid.configuration.maxtext_rules`), and on one group: XLA compiles one programme for all.
    """
    if pinned_cut(costs[0].problem) is None:  # of a given cut even layouts know all
        yield from (HybridCost((one,), Placement.STAGES) for one in costs if not one.is_tpu)
    several = _several(costs)
    yield from (HybridCost(some, Placement.REPLICAS) for some in several)
    yield from (HybridCost(order, Placement.STAGES) for some in several for order in permutations(some))


def _several(costs: Sequence[GroupCost]) -> list[tuple[GroupCost, ...]]:
    """Return the machine groups that may do one step together; TPUs do with none."""
    open_ones = [one for one in costs if not one.is_tpu]
    return [
        some
        for number in range(2, min(len(open_ones), _MOST_GROUPS) + 1)
        for some in combinations(open_ones, number)
        if costs[0].problem.cluster.of_groups_is_connected({one.machines for one in some if one.machines is not None})
    ]


def cuts_searched(
    costs: Sequence[GroupCost],
    search: Search,
    known_s: Sequence[float],
    on_found: Callable[[list[Found]], None] = lambda found: None,
    on_helped: Callable[[WorkerPool], None] = lambda pool: None,
) -> list[Found]:
    """Return what the search of every other placement found, as far as it is the best or a runner-up asked for.

    Limits of ``search`` are in seconds of a step, as are the layouts known. Nothing is searched where the batch is
    open, or pins leave nothing. Placements that the time never came to are bounded together, by what their devices
    compute at most. ``on_found`` is called with all that was found so far, after each one that found something;
    ``on_helped`` with who helps, once all of them have something to do.
    """
    if costs[0].problem.training.fixed_batch_size is None:
        return []
    placements = [*placements_of(costs)]
    some = {one.placement: one for one in placements if one.placement not in search.skipped}
    is_open = {kind: Space.of(one).is_open for kind, one in some.items()}  # pins leave as much to all of a kind
    last = next((one for one in reversed(placements) if is_open.get(one.placement, False)), None)
    if last is None:
        return []
    found: list[tuple[int, Found]] = []
    together: Iterator[GridAnswer] | None = None
    first: Found | None = None
    count = _Count(search, last)
    number, rows, first_s = max(search.num_alternatives, 0), sorted(known_s), inf
    left = [(at, one) for at, one in enumerate(placements) if is_open.get(one.placement, False)]
    while left:
        if search.is_over and together is None:
            fastest = sorted(costs, key=lambda one: peak_step_s([one]))[:_MOST_GROUPS]
            found.append((left[0][0], Found(cost=left[0][1], answer=nothing(peak_step_s(fastest)))))
            break
        if first is None and len(left[0][1].groups) > 1:
            first, first_s = _first_found(costs, [kind for kind in is_open if is_open[kind]], search, rows)
            if first.rows:  # its placement first: with its layers moved it bounds all others, in whatever order
                left.sort(key=lambda row: row[1] != first.cost)
                on_found([*(one for _, one in found), first])
        index, cost = left[0]
        if together is None and len(cost.groups) > 1 and rows:
            limited = search.part(search.left_s, cutoff=min(search.cutoff, first_s))
            together = _searched_together(costs, left, limited, rows, count, on_helped)
        worst_s = [*rows, *[inf] * (1 + number)][number]
        share_s = search.left_s / min(len(left), _MOST_SHARES)
        part = search.part(share_s, cutoff=min(search.cutoff, worst_s, first_s))
        is_strict = bool(rows) or first_s < inf
        answer = searched(cost, part, is_strict=is_strict, counts=False) if together is None else next(together)
        answer = count.put_in(answer, cost)
        one = _cuts_improved(Found(cost=cost, answer=answer), search, rows)  # its share may be over
        if len(cost.groups) == 1 and search.good_enough < inf and search.has_reasons and not search.is_brief:
            best_s = min([*rows[:1], *(seconds for seconds, _ in one.rows), search.cutoff])
            if best_s < inf or len(costs) > 1:  # else there is no plan that it would be said of
                one = replace(one, all_cuts_s=all_cuts_bound_s(cost, best_s, search))
        found.append((index, one))
        left.pop(0)
        if one.rows:
            rows += [seconds for seconds, _ in one.rows]
            rows.sort()
            on_found([one for _, one in found])
    answers = [one for _, one in sorted(found, key=lambda row: row[0])]
    if first is not None and first.answer.solution.objective < min(rows, default=inf):  # the time was over before
        answers.append(first)
    return answers


@dataclass(slots=True)
class _Count:
    """Counts the layouts of placements, up to the first that has too many: their sum is not known then.

    The last placement, which has most, is counted before any other one. Stages on the same groups in another order are
    as many, if the first of them leaves the same to decide.
    """

    search: Search
    last: HybridCost
    numbers: dict[object, int | None] = field(default_factory=dict)  # of layouts, by what they depend on
    _task: tuple[WorkerPool, int] | None = None  # of a worker that counts them

    @property
    def is_told(self) -> bool:
        """Whether anybody reads how many there are."""
        return self.search.has_reasons and not self.search.is_brief

    def begin(self, pool: WorkerPool, origin: Origin, places: Sequence[int]) -> None:
        """Have a worker count placements, by their places among all: it may take a second."""
        if self.is_told:
            self._task = pool, pool.submit(_counted, origin, (places, self.numbers))

    def put_in(self, answer: GridAnswer, cost: HybridCost) -> GridAnswer:
        """Return an answer with the layouts of its placement."""
        while self._task is not None and not self.search.is_over:
            pool, task = self._task
            for _, counted in pool.poll(_POLL_S, (task,)):
                self.numbers = self.numbers if isinstance(counted, FailedTask) else counted
                self._task = None
        return answer.of_points(self.number_of(cost))

    def number_of(self, cost: HybridCost) -> int | None:
        """Return how many layouts a placement has; None where that is not known."""
        number: int | None = None
        for one in (self.last, cost):
            if not self.is_told or self.search.is_over or None in self.numbers.values():
                return None
            space = Space.of(one)
            shared = [axis for name, axis in space.axes.items() if name not in space.part_names]
            key = (one.placement, frozenset(group.machines for group in one.groups), *shared)
            if key not in self.numbers:
                self.numbers[key] = space.grid().count()
            number = self.numbers[key]
        return number


def _counted(grids: "_Grids", places: Sequence[int], known: Mapping[object, int | None]) -> Mapping[object, int | None]:
    """Return how many layouts placements have, with those that are known; the last of all has most."""
    count = _Count(Search(), grids.placements[max(places)], dict(known))
    for at in places:
        count.number_of(grids.placements[at])
    return count.numbers


def _first_found(
    costs: Sequence[GroupCost], kinds: Sequence[Placement], search: Search, known_s: Sequence[float]
) -> tuple[Found, float]:
    """Return a good layout on several groups, and seconds above which none is wanted of any of them.

    Of those where each group has as many stages, or else replicas, as it has devices for, which are few: of the groups
    that compute most together on which any is better than what is known. Most often it is near the best of all, so that
    the whole grids, which hold it too, are searched with its seconds as their limit. Where what is found depends on the
    order, none is looked for. It is below the most hopeful nodes, most often, so that these are dived into first; where
    some layout is known, the search ends after some questions, since to prove that none is better is the whole grids'.
    """
    number, rows = max(search.num_alternatives, 0), sorted(known_s)
    found = Found(cost=HybridCost((costs[0],), Placement.STAGES), answer=nothing(inf))
    is_ordered, share = search.questions_left is not None or search.good_enough > -inf, search.left_s / _MOST_SHARES
    short = search.part(share)
    for some in [] if is_ordered else sorted(_several(costs), key=peak_step_s):
        for kind in (one for one in (Placement.STAGES, Placement.REPLICAS) if one in kinds and not found.rows):
            cost = HybridCost(some, kind)
            worst_s = [*rows, *[inf] * (1 + number)][number]
            most = _MOST_OF_FIRST if rows else None
            part = short.part(short.left_s, cutoff=min(search.cutoff, worst_s), questions_left=most)
            bounds = bounds_of(cost, part)
            bounds = bounds.of_space(replace(bounds.space, is_full=True))
            wanted = Wanted(
                num_answers=1 + number,
                group_by=bounds.space.group_by,
                most_at_once=_MOST_CUTS_AT_ONCE,
                is_strict=bool(rows) or search.is_strict,
                counts=False,
                dives=True,
            )
            found = Found(cost=cost, answer=solve(bounds.grid(), bounds.seconds, part, wanted))
    rows = sorted([*rows, *(seconds for seconds, _ in found.rows)])
    return found, [*rows, *[inf] * (1 + number)][number] * (1 + GAIN)


def _searched_together(
    costs: Sequence[GroupCost],
    placements: Sequence[tuple[int, HybridCost]],
    search: Search,
    rows: Sequence[float],
    count: _Count,
    on_helped: Callable[[WorkerPool], None],
) -> Iterator[GridAnswer] | None:
    """Return the answers of placements, by their places among all, which a worker pool looks at together.

    None where nobody helps yet, or what is found depends on the order. ``rows``: seconds of layouts, as they are known
    when each answer is taken. ``count``: has a worker count their layouts. ``on_helped``: see
    :func:`cuts_searched`.
    """
    pool, is_ordered = search.pool, search.questions_left is not None or search.good_enough > -inf
    if pool is None or is_ordered or not pool.is_worth(0.0):
        return None
    bare = tuple(replace(one) for one in costs)  # without what they have worked out, to travel
    if (origin := Origin.of(partial(_Grids.of, bare))) is None:
        return None
    turns, grids = [], _Grids.of(costs)
    for index, _ in placements:
        part = search.part(search.left_s)
        grid, seconds = grids(index, part)
        group_by = grids.bounds[index].space.group_by
        turns.append(Turn(index=index, grid=grid, cost=seconds, search=part, group_by=group_by))
    number, places = 1 + max(search.num_alternatives, 0), [index for index, _ in placements]

    def meanwhile() -> None:
        count.begin(pool, origin, places)
        on_helped(pool)

    answers = solve_in_turn(
        turns,
        search,
        origin,
        rows,
        num_answers=number,
        most_at_once=_MOST_CUTS_AT_ONCE,
        meanwhile=meanwhile,
    )
    return (_no_less_than_peak(one, cost) for one, (_, cost) in zip(answers, [*placements], strict=True))


@dataclass(slots=True)
class _Grids:
    """The grids of placements, by their place, each made when it is first asked for; see :func:`searched`."""

    placements: Sequence[HybridCost]
    memory_limit_bytes: float = inf
    bounds: dict[int, Bounds] = field(init=False, default_factory=dict)

    @classmethod
    def of(cls, costs: Sequence[GroupCost]) -> "_Grids":
        """Return those of all placements."""
        return cls([*placements_of(costs)])

    def __call__(self, index: int, search: Search) -> tuple[Grid, Callable[[Columns], Floats]]:
        """Return a grid and the seconds of its points, within the limits of a search."""
        before = self.bounds.get(index)
        if before is None:
            bounds = bounds_of(self.placements[index], search, self.memory_limit_bytes)
        else:
            bounds = before.within(search)
        self.bounds[index] = bounds
        return bounds.grid(), bounds.seconds


def all_cuts_bound_s(cost: HybridCost, best_s: float, search: Search) -> float:
    """Return what no cut that was not tried takes less than, of settings with many cuts; at most ``best_s``.

    The bounds of a placement down to its links count no cut: see :mod:`planner.families.hybrid.bounds`.
    """
    bounds = CutBounds(cost, search)
    layers = cost.parted_layers
    is_few = np.array([has_few_cuts(layers, stages) for stages in range(layers + 1)])

    def seconds(nodes: Columns) -> Floats:
        stages = cost.parts_of(nodes).sum(axis=0)
        return np.where(is_few[stages] | np.isinf(bounds.fits(nodes)), inf, bounds.communication_s(nodes))

    grid, last = bounds.grid(), bounds.all.index(bounds.best_path_s)  # the level before is the last that knows no cut
    part = search.part(search.left_s, good_enough=-inf, cutoff=best_s, num_alternatives=0)
    found_s = solve(
        replace(grid, levels=grid.levels[:last]), seconds, part, Wanted(is_strict=True, counts=False)
    ).solution.bound
    return min(max(found_s, peak_step_s(cost.groups)), best_s)


def other_cuts_s(found: Sequence[Found], bound_s: float) -> float:
    """Return what no cut of the layers into stages on one group takes less than; ``inf`` where no layout has stages.

    ``bound_s`` is of the cuts that were tried.
    """
    known = [one.all_cuts_s for one in found if one.all_cuts_s < inf]
    return min([*known, bound_s]) if known else inf


def cuts_words(cuts_s: float, best_s: float, what: str = OTHER_CUTS) -> list[str]:
    """Return what is known of cuts that were not tried, which take ``cuts_s`` or more."""
    if cuts_s == inf:
        return []
    if cuts_s >= best_s * (1 - GAIN):
        return [f"{what}, also those not tried: proven not to be faster"]
    named, share = format_human(cuts_s, Dimension.TIME), percent_words(1 - cuts_s / best_s)
    return [f"{what}: none takes less than {named} (at most {share} faster); `planner predict` tells of one"]


def searched_on(found: Found, search: Search, known_s: Sequence[float]) -> Found:
    """Return what is found where the search of a placement, which was stopped, goes on; ``known_s``: of all others."""
    answer = found.answer
    if found.cost.is_even:
        return replace(found, answer=searched(found.cost, search, before=answer))
    rows, number = sorted([*known_s, *(seconds for seconds, _ in found.rows)]), max(search.num_alternatives, 0)
    part = search.part(search.left_s, cutoff=min([search.cutoff, [*rows, *[inf] * (1 + number)][number]]))
    none: Solution[Point] = Solution(status=Status.UNKNOWN, objective=inf, bound=answer.solution.bound, value=None)
    left = replace(answer, solution=none, others=())  # its rows may be of cuts that were improved, in no grid
    one = replace(found, answer=searched(found.cost, part, is_strict=bool(rows), before=left))
    more = _cuts_improved(one, part, sorted(known_s))
    both = sorted([*found.rows, *more.rows], key=lambda row: row[0])
    if not both:
        return more
    solution = replace(more.answer.solution, bound=min(more.answer.solution.bound, answer.solution.objective))
    return replace(more, answer=with_rows(replace(more.answer, solution=solution), both, 0))


# -- near cuts ---------------------------------------------------------------------------------------------------------


def _cuts_improved(found: Found, search: Search, known_s: Sequence[float]) -> Found:
    """Return what a search found with the cut of its best setting improved, where not all cuts were tried.

    Whatever number of runners-up is asked for: it must not change the answer. ``known_s``: of all others, in order.
    """
    rows, is_better = found.rows, bool(found.rows) and found.rows[0][0] < min(known_s[:1], default=inf)
    if found.cost.has_replicas or search.good_enough == inf or pinned_cut(found.cost.problem) is not None:
        return found
    if not is_better:
        return found
    better_s, better, asked = _near(found.cost, rows[0][1], rows[0][0], search)
    if better_s < rows[0][0] * (1 - GAIN):
        rows[0] = (better_s, better)
    if asked:
        found = replace(found, answer=with_rows(found.answer, rows, asked))
    if not asked or not search.is_late:
        return found
    solution = found.answer.solution  # a cut that was not come to may be better
    bound = min(solution.bound, peak_step_s(found.cost.groups))
    solution = replace(solution, bound=bound, status=Status.FEASIBLE)
    return replace(found, answer=replace(found.answer, solution=solution))


def even_improved(found: Found, best_s: float, search: Search) -> Found | None:
    """Return the best cut near the even one of one group's best layout; None where none is better than all known.

    Nor on TPUs, whose stages are alike: see :func:`placements_of`.
    """
    cost = HybridCost(found.cost.groups, Placement.STAGES)
    bounds = CutBounds(cost)
    is_open = cost.problem.training.fixed_batch_size is not None and bounds.space.is_open and not cost.first.is_tpu
    if search.is_over or search.good_enough == inf or not is_open:
        return None
    for seconds, row in found.rows[:1]:
        if row["pipeline"] == 1 or any(row[name] for name in _ON_HOST):
            continue
        point = {name: row[name] for name in bounds.space.axes if name in row} | {"stages_0": row["pipeline"]}
        columns = {name: np.array([value]) for name, value in point.items()}
        if bounds.communication_s(columns)[0] >= best_s * (1 - GAIN):
            continue
        is_plain = all(row[name] == code for name, code in CODES_OF_CUTS.items())
        better_s, better, asked = _near(cost, point, seconds if is_plain else inf, search)
        if better is not point and better_s < best_s * (1 - GAIN):
            return Found(cost=cost, answer=with_rows(nothing(inf, is_counted=True), [(better_s, better)], asked))
    return None


def _near(cost: HybridCost, point: Point, seconds: float, search: Search) -> tuple[float, Point, int]:
    """Return the seconds of the best cut found near a setting's, the layout, and how many cuts were evaluated."""
    columns = {name: np.array([value]) for name, value in point.items()}
    stages = int(cost.parts_of(columns).sum())
    if stages == 1 or has_few_cuts(cost.parted_layers, stages):
        return seconds, point, 0
    layers = cost.cut(columns).step.layers[:stages, 0]
    number = cost.batch // (point["data"] * point["microbatch"])
    better_s, cut, asked = improved(point, layers, number, cost.bound_s, cost.seconds, search, seconds)
    if (cut == layers).all():
        return seconds, point, asked
    return better_s, {**point, **{name: int(row[0]) for name, row in cut_columns(cut[:, None]).items()}}, asked


def improved(
    point: Mapping[str, int],
    layers: Ints,
    num_microbatches: int,
    bound_s: Callable[[Columns], Floats],
    seconds: Callable[[Columns], Floats],
    search: Search,
    cutoff_s: float = inf,
) -> tuple[float, Ints, int]:
    """Return the seconds of a cut after single layers were moved while that helps, the cut, and how many were asked.

    Parameters
    ----------
    point
        All decisions but the cut.
    layers
        The first cut, of shape (p,).
    bound_s, seconds
        Of columns with cuts; infinite where one does not fit.
    cutoff_s
        Of a cut that is known: a first move that is no better is not made.

    Stops early once it has evaluated ``_MOST_TASKS`` tasks: counted, so that the answer is the same on every machine;
    or when the search is over.
    """

    def columns(cuts: Ints) -> dict[str, Ints]:
        return {**{name: np.full(cuts.shape[1], value) for name, value in point.items()}, **cut_columns(cuts)}

    best_s, asked = min(float(seconds(columns(layers[:, None]))[0]), cutoff_s), 1
    left = _MOST_TASKS // (len(layers) * max(num_microbatches, 1))
    while asked < left and not search.is_over and len(layers) ** 3 <= _MOST_NEIGHBOURS:
        pairs = [(one, other) for one, other in permutations(range(len(layers)), 2) if layers[one] > 1]
        if not pairs:
            break
        cuts = np.repeat(layers[:, None], len(pairs), axis=1)  # all with one layer moved
        sources, targets = np.array(pairs).T
        cuts[sources, np.arange(len(pairs))] -= 1
        cuts[targets, np.arange(len(pairs))] += 1
        places = np.array_split(np.arange(len(pairs)), -(-cuts.size // _MOST_CELLS))
        bounds = np.concatenate([bound_s(columns(cuts[:, some])) for some in places])
        order = np.argsort(bounds, kind="stable")
        found_s, found = best_s, layers
        for start in range(0, len(order), _AT_ONCE):
            some = order[start : start + _AT_ONCE]
            some = some[bounds[some] < found_s * (1 - GAIN)]
            if not len(some) or asked >= left or search.is_over:
                break
            exact = seconds(columns(cuts[:, some]))
            asked += len(some)
            if exact.min() < found_s * (1 - GAIN):
                found_s, found = float(exact.min()), cuts[:, some[exact.argmin()]]
        if found is layers:
            break
        best_s, layers = found_s, found
    return best_s, layers, asked
