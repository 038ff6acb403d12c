"""The plan of the family ``hybrid``: the best layout of all placements, why it is best, and why there is none.

Machine groups are searched by even cuts one by one, and then other cuts of each and placements on several of them
(:mod:`planner.families.hybrid.grid_search`). Runners-up differ in a degree.

*A batch that may vary up to a maximum.* Only the maximum is searched; smaller ones are bounded by the devices' peak.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from math import inf
from typing import cast

import numpy as np

from planner.decisions import LAYOUT, row_of
from planner.errors import InfeasibleError, NoAnswerError, PlannerError
from planner.families.answer import TOO_SHORT, Searched, iterations_of, plan_of
from planner.families.hybrid.bounds import lower_bound, peak_step_s
from planner.families.hybrid.chunks import OTHER_CHUNKS, all_chunks_bound_s, chunks_improved
from planner.families.hybrid.configuration import (
    COARSE,
    NAME,
    PINS,
    HybridConfiguration,
    LayoutRule,
    broken_rule,
    graph_rules,
    maxtext_rules,
    microbatches_a_stage,
    module_rule,
    pinned_cut,
    program_rules,
)
from planner.families.hybrid.cost import GroupCost, HybridCost, Placement, costs_of, has_few_cuts, launches_graphs
from planner.families.hybrid.even_bounds import EvenBounds
from planner.families.hybrid.found import Found, configuration_of_point, nothing
from planner.families.hybrid.grid_search import (
    OTHER_CUTS,
    bounds_of,
    cuts_searched,
    cuts_words,
    even_improved,
    other_cuts_s,
    placements_of,
    searched,
    searched_on,
)
from planner.families.hybrid.prediction import NOT_MODELLED, explain, predict, warnings
from planner.families.hybrid.risk import IDLE, WITH_DEGREES
from planner.families.hybrid.space import Space
from planner.plan import Alternative, Plan
from planner.problem import Limits, Problem, Range
from planner.search import Search
from planner.solution import SAME
from planner.solvers.grid import Axis, Columns, Grid, Level, OverError, Point
from planner.units import Dimension, format_human
from planner.worker_pool import FailedTask, Origin, WorkerPool

_MOST_LAYOUTS = 400_000  # of a frontier
_AT_ONCE = 20_000
_FEW_AT_ONCE = 32
_MOST_WORDS = 5
_SHARE_OF_CUTS = 0.5  # of the time that is left, where even cuts are not done
_STEP = 0.95  # of the memory of the layout printed before
_RUNG = 0.9  # of the memory of the layout before
_MOST_BATCHES = 4  # that are tried: a number, not a time, so that the answer is the same on every machine
_MOST_QUESTIONS = 2_000  # of whether time is over: counted, for the same reason
_MOST_DEVICES = 1 << 17
_MOST_MICROBATCHES = 64  # sizes that are looked at together
_MOST_LISTED = 3
_MOST_VALUES = 12  # that are listed
_LAYERS_A_S = 13_000  # times devices: of layouts over several kinds of machines, about
_MOST_TRIED = 400  # questions of whether time is over, for all relaxations together
_NEAR = 1.05  # times a strict cutoff that an even layout may take
_POLL_S = 0.05
_ROUND_UP = 1.0006  # four digits that are printed may be rounded down by half of the last one


def plan(problem: Problem, search: Search) -> Plan:
    """Return the best layout, with the best of other degrees.

    Raises
    ------
    InfeasibleError
        If the network is no transformer, or no layout fits; the message says how much is missing.
    NoAnswerError
        If the time limit struck before the first layout that fits was found.
    """
    costs = costs_of(problem)
    # What pins break in every layout is said before any is set up: conflict lists ask for dozens of other values.
    ever = *graph_rules(launches_graphs(problem), costs[0].transformer), module_rule(costs[0].transformer)
    if (barred := _broken_pin(problem, ever)) is not None:
        raise InfeasibleError(f"No plan fits: fix.{barred[0]} is {problem.fixed[barred[0]]}: {barred[1]}")
    count = float(iterations_of(problem, costs[0].batch))
    if search.pool is not None and search.pool.is_worth(_long_s(costs)):
        search.pool.room()  # who helps is started while even cuts are searched

    def keep(so_far: Sequence[Found]) -> None:
        """Have the best so far as the answer, should the search be broken off."""
        best = _best(so_far)
        if best.answer.solution.value is not None:
            search.keep(lambda: _plan_of(problem, search, so_far, best, 0.0, count, inf))

    found = _even_found(costs, search, count, keep)
    if not _is_enough(found, search, count):
        found = _with_activations_away(found, search, count)
        keep(list(found))
    if _is_enough(found, search, count):  # no other layouts are wanted
        best = _best(found)
        return _plan_of(
            problem, search, found, best, min(peak_step_s(costs), best.answer.solution.objective), count, inf
        )
    known_s = [seconds for one in found for seconds, _ in one.rows]
    share_s = search.left_s * (_SHARE_OF_CUTS if any(one.answer.rest for one in found) else 1.0)
    rest = search.part(share_s, good_enough=search.good_enough / count, cutoff=search.cutoff / count)
    even = list(found)
    idle = _Idle(search)

    def look(more: Sequence[Found]) -> None:
        keep([*even, *more])
        idle.begin(_best([*even, *more]))

    found += cuts_searched(costs, rest, known_s, look, idle.use)
    found = _gone_on(found, search, count)
    even = found[: len(costs)]
    rest = search.part(search.left_s, good_enough=search.good_enough / count, cutoff=search.cutoff / count)
    best_s = min(
        [search.cutoff / count if search.is_strict else inf, *(one.answer.solution.objective for one in found)]
    )
    has_open_cuts = pinned_cut(problem) is None
    near = [even_improved(one, best_s, rest) for one in even if has_open_cuts]
    best_s = min([best_s, *(one.answer.solution.objective for one in near if one is not None)])
    chunks_s = _chunks_bound_s(even, best_s, rest)
    near += [
        chunks_improved(one, best_s, rest, _stages_on(one.cost.first, [*found, *near])) for one in even if has_open_cuts
    ]
    is_cut_short = has_open_cuts and search.good_enough < inf and rest.is_late
    found += [one for one in near if one is not None]
    bound_s = min(one.answer.solution.bound for one in found)
    if is_cut_short:  # moving layers is of the search, so that what it might still find is not ruled out
        is_bounded = search.has_reasons and not search.is_brief
        bound_s = min(bound_s, *([chunks_s, other_cuts_s(found, bound_s)] if is_bounded else [peak_step_s(costs)]))
    best = _best(found)
    keep(found)
    if best.answer.solution.value is None:
        if bound_s < inf:
            raise NoAnswerError(TOO_SHORT)
        opened = [replace(one, opens_offload=one.may_offload) for one in costs]
        raise why_nothing_fits(opened, search)
    return _plan_of(problem, search, _with_even_counted(found, search), best, bound_s, count, chunks_s, idle)


def _even_found(
    costs: Sequence[GroupCost], search: Search, count: float, keep: Callable[[Sequence[Found]], None]
) -> list[Found]:
    """Return what even cuts give on each group, up to the first that is good enough."""
    found: list[Found] = []
    for index, cost in enumerate(costs):
        known = min((one.answer.solution.objective for one in found), default=inf)
        if _is_passed_over(cost, found, search):
            found.append(Found(cost=cost.even, answer=nothing(peak_step_s([cost]))))
            continue
        part = search.part(
            search.left_s / (len(costs) + 1 - index),
            good_enough=search.good_enough / count,
            cutoff=min(_even_cutoff_s(search, count), known),
        )
        found.append(Found(cost=cost.even, answer=searched(cost.even, part, counts=False)))
        keep(list(found))
        if _is_enough(found, search, count):
            break
    return found


def _is_enough(found: Sequence[Found], search: Search, count: float) -> bool:
    """Whether any answer is good enough."""
    seconds = min(one.answer.solution.objective for one in found)
    return seconds < inf and seconds <= search.good_enough / count


def _even_cutoff_s(search: Search, count: float) -> float:
    """Return the seconds above which no even layout matters.

    Near one that takes a little longer than a strict cutoff there may be one with chunks that does not.
    """
    return search.cutoff / count * (_NEAR if search.is_strict else 1.0)


def _is_passed_over(cost: GroupCost, found: Sequence[Found], search: Search) -> bool:
    """Whether devices of a group take longer at their peak than all answers that are asked for, the last one included.

    So do all layouts on it alone, whatever their cut.
    """
    rows, number = sorted(seconds for one in found for seconds, _ in one.rows), max(search.num_alternatives, 0)
    return len(rows) > number and peak_step_s([cost]) > rows[number]


def _long_s(costs: Sequence[GroupCost]) -> float:
    """Return the CPU seconds that the search of layouts over several kinds of machines takes, about, where all is open.

    0 where it may be short.
    """
    problem = costs[0].problem
    if len(costs) == 1 or problem.fixed or problem.training.fixed_batch_size is None:
        return 0.0
    devices = sum(one.cluster.num_devices for one in costs)
    return devices * costs[0].transformer.num_layers / _LAYERS_A_S


def _chunks_bound_s(even: Sequence[Found], best_s: float, search: Search) -> float:
    """Return what no cut into chunks takes less than; infinite where nothing is asked beside the best layout."""
    is_asked = search.good_enough < inf and search.has_reasons and not search.is_brief
    is_asked &= pinned_cut(even[0].cost.problem) is None
    return min([all_chunks_bound_s(one.cost.first, best_s, search) for one in even] if is_asked else [inf])


def _stages_on(group: GroupCost, found: Sequence[Found | None]) -> list[tuple[float, Point]]:
    """Return the best layouts of stages without chunks that stand on one group alone."""
    closed = replace(group, opens_offload=False)  # as stages are searched
    some = [one for one in found if one is not None and not one.cost.is_even and len(one.cost.groups) == 1]
    on_it = [one for one in some if replace(one.cost.first, opens_offload=False) == closed]
    return [row for one in on_it for row in one.rows]


def _with_activations_away(found: Sequence[Found], search: Search, count: float) -> list[Found]:
    """Return what even cuts give where activations may wait on the host.

    A layout that has them there is never faster than the same one without, were there room; but it may be where the
    best one without computes nothing again: this may have no room for other degrees.
    """
    after = list(found)
    for index, one in enumerate(found):
        opened = replace(one.cost.first, opens_offload=True)
        if not opened.may_offload or Space.of(opened.even).known_axes == Space.of(one.cost).known_axes:
            continue
        best_s = min(other.answer.solution.objective for other in after)
        part = search.part(
            search.left_s / (len(found) - index + 1),
            good_enough=search.good_enough / count,
            cutoff=min(
                _even_cutoff_s(search, count), best_s * (1 - SAME / 2)
            ),  # half: rounding leaves the best one proven
        )
        answer = searched(opened.even, part, is_strict=best_s < inf, counts=False)
        if answer.solution.value is None:
            bound = min(answer.solution.bound, one.answer.solution.bound)
            solution = replace(one.answer.solution, bound=bound)
            after[index] = replace(one, answer=replace(one.answer, solution=solution))
            continue
        rows = [row for row in one.rows if any(row[1][name] != answer.solution.value[name] for name in COARSE)]
        others = sorted([*answer.others, *rows], key=lambda row: row[0])[: max(search.num_alternatives, 0)]
        after[index] = Found(cost=opened.even, answer=replace(answer, others=tuple(others)))
    return after


def _with_even_counted(found: Sequence[Found], search: Search) -> list[Found]:
    """Return what is found with the layouts of even cuts counted, where those of all others are: it may take a second.

    Of some alone their number is not told.
    """
    is_told = search.has_reasons and not search.is_brief
    if not is_told or not all(one.answer.is_counted for one in found if not one.cost.is_even):
        return [*found]
    return [
        replace(one, answer=one.answer.of_points(Space.of(one.cost).grid().count()))
        if one.cost.is_even and not one.answer.is_counted and not search.is_late
        else one
        for one in found
    ]


def _gone_on(found: Sequence[Found], search: Search, count: float) -> list[Found]:
    """Return what is found where searches that were ended by their shares of the time go on, in what is left of it."""
    after = list(found)
    for index, one in enumerate(found):
        known_s = [seconds for other in after if other is not one for seconds, _ in other.rows]
        best_s = min([*known_s, *(seconds for seconds, _ in one.rows)], default=inf)
        is_done = not one.answer.rest or one.answer.solution.bound >= best_s or best_s <= search.good_enough / count
        if is_done or search.is_late:
            continue
        earlier_s = [other.answer.solution.objective for other in after[:index]] if one.cost.is_even else []
        part = search.part(
            search.left_s / sum(bool(other.answer.rest) for other in after[index:]),
            good_enough=search.good_enough / count,
            cutoff=min([search.cutoff / count, *earlier_s]),
        )
        after[index] = searched_on(one, part, known_s)
    return after


def _best(found: Sequence[Found]) -> Found:
    """Return where the best layout is; of equally good ones the even cut on one group is the simpler."""
    return min(found, key=lambda one: one.answer.solution.objective * (1 + SAME * (not one.cost.is_even)))


def _plan_of(
    problem: Problem,
    search: Search,
    found: Sequence[Found],
    best: Found,
    bound_s: float,
    count: float,
    chunks_s: float,
    idle: "_Idle | None" = None,
) -> Plan:
    """Return the plan of the best layout; ``chunks_s``: no cut into chunks takes less; infinite if unknown."""
    objective_s, point = best.rows[0]
    configuration = configuration_of_point(best.cost, point)
    prediction = predict(problem, configuration)
    bound = min(bound_s * count, prediction.value_of(problem.goal))
    if problem.training.fixed_batch_size is None:
        bound = min(bound, lower_bound(problem))
    is_proven = objective_s - bound_s <= SAME * objective_s
    cuts_s = other_cuts_s(found, bound_s)
    more: list[str] = []
    if _has_more(search):
        more = frontier_words(best.cost.first, point, search) if configuration.is_even else []
        more += idle_words(best.cost, configuration, search, idle or _Idle(search))
    rows = sorted([(seconds, one, at) for one in found for seconds, at in one.rows], key=lambda row: row[0])
    others = [row for row in rows if row[2] is not point][: max(search.num_alternatives, 0)]
    alternatives = [
        _alternative(one, at, seconds, objective_s, count, "the best of these degrees") for seconds, one, at in others
    ]
    rungs, ladder_words = _rungs(best, count, search) if configuration.is_even else ([], [])
    # Of stages on several groups whose cuts are many only one of each setting was tried: no bound is of all.
    has_open_cuts = len(best.cost.groups) > 1 and not best.cost.has_replicas and pinned_cut(problem) is None
    has_open_cuts &= not has_few_cuts(best.cost.parted_layers, configuration.pipeline)
    num_points, num_evaluated = _numbers(found)
    answer = plan_of(
        problem,
        Searched(
            family=NAME,
            not_modelled=NOT_MODELLED,
            solver="branch and bound on the grid of layouts",
            num_candidates=num_points,
            num_solved=num_evaluated,
            beyond={OTHER_CUTS: 0.0 if has_open_cuts else cuts_s * count, OTHER_CHUNKS: chunks_s * count},
        ),
        configuration=configuration,
        prediction=prediction,
        bound=bound,
        explanation=(
            *explain(problem, configuration, prediction),
            *more,
            *ladder_words,
            *_counts(problem, found, is_proven, best.cost.batch),
            *cuts_words(cuts_s, objective_s),
            *cuts_words(chunks_s, objective_s, OTHER_CHUNKS),
        ),
        alternatives=[*alternatives, *rungs],
        warnings=warnings(best.cost, configuration),
    )
    return replace(answer, domain=_ON_TPUS) if any(one.cost.first.is_tpu for one in found) else answer


_ON_TPUS = (
    f"{NAME} on TPUs: layouts that MaxText runs as they are planned, where no pin asks for another: GPipe with equal "
    f"stages of layers of one kind, no chunks, no experts' exchange beside another micro-batch, no modules computed "
    f"again by themselves, experts over data ranks and cut as all else is, slices of one kind that the mesh fills",
)


def _numbers(found: Sequence[Found]) -> tuple[int, int]:
    """Return how many layouts there are, and were evaluated; as many where they were not all counted."""
    evaluated = sum(one.answer.num_evaluated for one in found)
    is_counted = all(one.answer.is_counted for one in found)
    return sum(one.answer.num_points for one in found) if is_counted else evaluated, evaluated


def _counts(problem: Problem, found: Sequence[Found], is_proven: bool, batch: int) -> list[str]:
    """Return how many layouts there are, were ruled out and were evaluated."""
    points, evaluated = _numbers(found)
    rest = "ruled out by their bounds" if is_proven else "ruled out by their bounds or not come to"
    lines = [f"layouts in the grid: {points:,}; {rest}: {points - evaluated:,}; evaluated in full: {evaluated:,}"]
    if not all(one.answer.is_counted for one in found):
        lines = [f"layouts evaluated in full: {evaluated:,}; those of the whole grid are too many to count in the time"]
    if problem.training.fixed_batch_size is None:
        lines.append(f"only the largest batch, {batch}, was searched; smaller ones are bounded")
    return lines


def _alternative(
    found: Found, point: Point, seconds: float, best_s: float, count: float, reason: str, start: str = ""
) -> Alternative:
    """Return one layout beside the best."""
    configuration = configuration_of_point(found.cost, point)
    return Alternative(
        name=start + found.name_of(point),
        family=NAME,
        objective=seconds * count,
        relative_loss=max(seconds / best_s - 1, 0.0) if best_s else 0.0,
        reason=f"{reason}: {configuration.headline}",
        configuration=configuration,
    )


# -- time against memory: layouts that no other beats in both ----------------------------------------------------------
#
# Of the best layout's degrees all, for the explanation. Of the whole grid (*ladder*): the fastest layout, the fastest
# of those that need a tenth less memory than it, and so on until none fits. Each is the proven optimum of the search
# under that limit: no layout that needs as little is faster. Between two rungs there may be others on the frontier.

Row = tuple[float, float, Point]  # seconds, bytes, layout


def frontier(cost: GroupCost, best: Point, search: Search | None = None) -> list[Row]:
    """Return the layouts with the degrees of ``best`` that none beats in both, fastest first.

    Every layout with these degrees that the question allows, and that fits, is evaluated. Empty where they are too
    many, or the search is over before all are evaluated.
    """
    space = Space.of(cost.even)
    axes = tuple(Axis(name=name, values=(best[name],)) if name in COARSE else axis for name, axis in space.axes.items())
    grid = Grid(levels=(Level(axes=axes),), rules=space.rules)
    number = grid.count()
    if number is None or number > _MOST_LAYOUTS:
        return []
    columns, fitting = grid.expand({}, 0), []
    for start in range(0, number, _AT_ONCE):
        if search is not None and search.is_over:
            return []
        layouts = cost.layouts({name: column[start : start + _AT_ONCE] for name, column in columns.items()})
        held = cost.memory(layouts)["total"]
        fits = np.flatnonzero(held <= cost.memory_limit_bytes)
        if len(fits):
            fitting.append((fits + start, held[fits], cost.seconds(layouts.of(fits))))
    if not fitting:
        return []
    places, held, seconds = (np.concatenate(rows) for rows in zip(*fitting, strict=True))
    order = np.lexsort([held, seconds])
    smallest = np.minimum.accumulate(held[order])
    is_new = np.concatenate([[True], smallest[1:] < smallest[:-1]])
    return [
        (float(seconds[at]), float(held[at]), {name: int(column[places[at]]) for name, column in columns.items()})
        for at in order[is_new].tolist()
    ]


def frontier_words(cost: GroupCost, best: Point, search: Search) -> list[str]:
    """Return a line with a few layouts of the frontier; none where time is over."""
    kept: list[Row] = []
    for row in [] if search.is_over else frontier(cost, best, search):
        if not kept or row[1] <= _STEP * kept[-1][1]:
            kept.append(row)
    if len(kept) < 2:  # the best alone
        return []
    words = [
        f"{format_human(seconds, Dimension.TIME)} in {format_human(held, Dimension.DATA)}"
        for seconds, held, _ in kept[:_MOST_WORDS]
    ]
    return [f"{WITH_DEGREES}: {'; '.join(words)}"]


def ladder(cost: GroupCost, best: Point, search: Search) -> tuple[list[Row], bool]:
    """Return the fastest layout under each limit, the best first; and whether no limit was missed.

    A layout as fast as the one before, with less memory, takes its place. No rung is faster than the one before, so
    that a search ends with the first layout as fast as that.
    """

    def row_of(point: Point) -> Row:
        layouts = cost.layouts({name: np.array([value]) for name, value in point.items()})
        return float(cost.seconds(layouts)[0]), float(cost.memory(layouts)["total"][0]), point

    rows = [row_of(best)]
    while not search.is_over:
        seconds, held, _ = rows[-1]
        part = search.part(search.left_s, num_alternatives=0, good_enough=seconds, cutoff=inf)
        answer = searched(cost.even, part, memory_limit_bytes=_RUNG * held).solution
        if answer.value is None and answer.bound == inf:
            return rows, True
        if answer.value is None or answer.objective > max(answer.bound, seconds):
            return rows, False
        row = row_of(answer.value)
        rows = [*(rows[:-1] if row[0] <= seconds else rows), row]
    return rows, False


def _rungs(best: Found, count: float, search: Search) -> tuple[list[Alternative], list[str]]:
    """Return the fastest even layouts of less and less memory, where they are asked for, and a line about them."""
    if not search.has_frontier or search.good_enough == inf or search.is_brief:
        return [], []
    best_s, best_point = best.rows[0]
    rows, is_whole = ladder(best.cost.first, best_point, search)
    reason = "no layout that needs as little is faster"
    found = [
        _alternative(best, point, seconds, best_s, count, reason, f"in {format_human(held, Dimension.DATA)}: ")
        for seconds, held, point in rows
        if point is not best_point
    ]
    end = "until none fits" if is_whole else "as far as the time went"
    return found, [f"time against memory over the whole grid, each time a tenth less, {end}: {len(found)} layouts more"]


# -- why a layout uses fewer devices than it may, and which batch would use all: each answer is searched for -----------


@dataclass(slots=True)
class _Idle:
    """Knows the best layout of all devices, of the groups of one placement.

    A worker looks for it while placements are still searched: of the groups of the best layout so far, where the best
    of all is most often. Of others it is looked for when it is asked for. The search of it has so many questions, so
    that it finds the same wherever it is.
    """

    search: Search
    _pool: WorkerPool | None = None
    _of_all: HybridCost | None = None  # that is looked for
    _task: tuple[WorkerPool, int] | None = None

    def use(self, pool: WorkerPool) -> None:
        """Have who helps look for it."""
        self._pool = pool

    def begin(self, best: Found) -> None:
        """Have a worker look for it, once, where the best layout so far leaves devices idle."""
        cost, pool = best.cost, self._pool
        if pool is None or self._task is not None or cost.is_even or not _has_more(self.search):
            return
        _, most = _most_devices(cost)
        if most <= configuration_of_point(cost, best.rows[0][1]).num_devices:
            return
        self._of_all = _of_devices(cost, most, Space.of(cost).device_limits[0].most)
        if (origin := Origin.of(partial(replace, self._of_all))) is not None:
            limits = self.search.memory_limit_bytes, self.search.is_strict
            self._task = pool, pool.submit(_best_of_all, origin, limits)

    def best_of(self, of_all: HybridCost, part: Search) -> tuple[float, Point] | None:
        """Return its seconds, and it; None where there is none, or it is not proven in time.

        ``part``: in which it is looked for here.
        """
        while self._task is not None and self._of_all == of_all and not self.search.is_late:
            pool, task = self._task
            for _, found in pool.poll(_POLL_S, (task,)):
                self._task = None
                if not isinstance(found, FailedTask):
                    return cast("tuple[float, Point] | None", found)
        return _proven(of_all, part)


def _best_of_all(of_all: HybridCost, memory_limit_bytes: float | None, is_strict: bool) -> tuple[float, Point] | None:
    """Return the best layout of all devices, as :func:`idle_words` looks for it."""
    search = Search(memory_limit_bytes=memory_limit_bytes, is_strict=is_strict, questions_left=_MOST_QUESTIONS)
    return _proven(of_all, search)


def _has_more(search: Search) -> bool:
    """Whether more is asked than whether any layout fits, or which is best."""
    return search.good_enough < inf and search.has_reasons and not search.is_brief


def _most_devices(cost: HybridCost) -> tuple[int, int]:
    """Return how many devices machines have, and a layout may have; 0 if machines of several groups are limited."""
    space = Space.of(cost)
    devices, machines = space.device_limits
    there = sum(space.devices)
    if cost.is_even:
        ((num_machines, each),) = space.machines
        there = min(num_machines, machines.most or num_machines) * each
    elif machines.most is not None:  # it is open of which
        there = 0
    return there, min(there, devices.most or there)


def idle_words(cost: HybridCost, chosen: HybridConfiguration, search: Search, known: _Idle) -> list[str]:
    """Return a line where devices that may train stay idle, of the groups that train; none otherwise."""
    space, (there, most) = Space.of(cost), _most_devices(cost)
    devices = space.device_limits[0]
    if chosen.num_devices >= most or search.is_over:
        return []
    idle = f"{most - chosen.num_devices:,} of {most:,} devices"
    if not chosen.is_even and most == there:  # else it is open of which group
        rows = [
            (name, own, chosen.devices_of.get(name, 0)) for name, own in zip(cost.names, space.devices, strict=True)
        ]
        idle = ", ".join(
            f"{own - used:,} of {own:,} devices" + ("" if name is None else f" of {name}")
            for name, own, used in rows
            if used < own
        )
    asked = None if cost.is_even else _MOST_QUESTIONS
    part = search.part(search.left_s, num_alternatives=0, good_enough=-inf, cutoff=inf, questions_left=asked)
    of_all = _of_devices(cost, most, devices.most)
    such = "" if cost.is_even else "such "
    if (found := known.best_of(of_all, part)) is not None:
        name = configuration_of_point(of_all, found[1]).headline
        why = f"the best {such}layout of all takes {format_human(found[0], Dimension.TIME)} ({name})"
    elif Space.of(of_all).grid().count() == 0:
        what = f"heads and the batch of {space.batch:,}" if cost.is_even else "heads and batch"
        why = f"no {such}layout of all divides {what}"
    else:
        why = f"no {such}layout of all fits, or none was proven the best in time"
    return [f"{idle} {IDLE}: {'; '.join([why, *(_batches(cost, space, most, part) if cost.is_even else [])])}"]


def _of_devices(cost: HybridCost, least: int, most: int | None) -> HybridCost:
    """Return the cost of the same question with other limits to the number of devices."""
    problem = replace(cost.problem, limits=replace(cost.problem.limits, devices=Range(least=least, most=most)))
    return replace(cost, groups=tuple(replace(one, problem=problem) for one in cost.groups))


def _proven(cost: HybridCost, search: Search, *, is_strict: bool = False) -> tuple[float, Point] | None:
    """Return the seconds of the best layout, and it; None where there is none, or it is not proven in time.

    ``is_strict``: as of :func:`planner.families.hybrid.grid_search.searched`.
    """
    try:
        solution = searched(cost, search, is_strict=is_strict, counts=False).solution
    except PlannerError:
        return None
    if solution.value is None or solution.objective > solution.bound:
        return None
    return solution.objective, solution.value


def _batches(cost: HybridCost, space: Space, number: int, search: Search) -> Iterator[str]:
    """Yield batches, the nearest one below and above of those tried, whose best layout uses all devices."""
    degrees = replace(space, batch=number).grid().levels[0].axes  # any data degree divides such a batch
    others = np.ones(1, dtype=np.int64)
    for axis in degrees:
        if axis.name in ("tensor", "context", "pipeline"):
            others = np.unique(np.multiply.outer(others, np.array(axis.values, dtype=np.int64)))
    replicas = number // others[number % others == 0]
    multiples = {*(space.batch // replicas * replicas).tolist(), *(-(-space.batch // replicas) * replicas).tolist()}
    nearest = sorted(multiples - {0, space.batch}, key=lambda one: (abs(one - space.batch), one))
    sides: set[bool] = set()
    for batch in nearest[:_MOST_BATCHES]:
        if search.is_over:
            return
        is_above = batch > space.batch
        other = replace(cost, groups=(replace(cost.first, given_batch=batch),))
        if is_above in sides or (seconds := _least_of_all(other, number, search)) == inf:
            continue
        sides.add(is_above)
        yield f"a batch of {batch:,} would use all, at {format_human(seconds / batch, Dimension.TIME)} a sample"


def _least_of_all(cost: HybridCost, number: int, search: Search) -> float:
    """Return the seconds of the best layout where it uses so many devices, which are all; infinite if it does not.

    A good layout of fewer devices is looked for first: most often it is faster than all that use them all.
    """
    devices = cost.problem.limits.devices
    fewer = _of_devices(cost, max(devices.least, 1), number - 1)
    part = search.part(search.left_s, good_enough=inf)
    known_s = searched(fewer, part, counts=False, dives=True).solution.objective
    part = search.part(search.left_s, cutoff=known_s)
    found = _proven(_of_devices(cost, number, devices.most), part, is_strict=known_s < inf)
    if found is None:
        return inf
    all_s, _ = found
    part = search.part(search.left_s, good_enough=all_s * (1 - SAME), cutoff=all_s)
    solution = searched(fewer, part, is_strict=True, counts=False).solution
    return inf if min(solution.objective, solution.bound) < all_s else all_s


# -- why no layout fits, and relaxations with which one would, each of them tried --------------------------------------


def why_nothing_fits(costs: Sequence[GroupCost], search: Search) -> InfeasibleError:
    """Return how much memory the layout lacks that needs least, or that it is not memory which is missing.

    Where only asked whether anything fits, nothing else is tried.
    """
    if search.good_enough == inf:
        return InfeasibleError("No plan fits: no layout fits in the memory of a device, or none keeps all limits.")
    if all(Space.of(cost.even).grid().count() == 0 for cost in costs):
        return InfeasibleError(_no_layout(costs))
    if search.is_brief:
        return InfeasibleError("No plan fits: no layout fits in the memory of a device.")
    rows = [(*smallest_memory(cost, search), cost) for cost in costs]
    needed, chosen, cost = min(rows, key=lambda row: row[0] / row[2].memory_limit_bytes)
    if chosen is None:
        return InfeasibleError(
            "No plan fits: no layout fits in the memory of a device. Raise memory_per_device, or add devices."
        )
    limit = cost.memory_limit_bytes
    texts = [format_human(one, Dimension.DATA, 4) for one in (needed, limit, needed - limit)]
    words = ", or ".join(relaxations(cost, needed, search))
    words = words or "make the network or its sequence smaller: nothing else that was tried would do"
    is_fixed = cost.problem.training.fixed_batch_size is not None
    others = (Space.of(one) for one in placements_of(costs) if is_fixed)
    which = "least memory"
    if any(space.is_open and space.grid().count() != 0 for space in others):  # none fits, but some may lack less
        which = "least memory of those on one kind of devices that share layers out evenly"
    text = (
        f"No plan fits: the layout that needs {which} ({chosen.headline}) takes {texts[0]} on a device of "
        f"{cost.group.device.name!r}, which may use {texts[1]}: {texts[2]} are missing. "
        f"{words[:1].upper()}{words[1:]}."
    )
    enough = needed if limit < cost.group.device.memory_bytes else _device_bytes(cost, needed)
    return InfeasibleError.of(text, enough_bytes=enough if len(costs) == 1 else inf)


def _device_bytes(cost: GroupCost, needed_bytes: float) -> float:
    """Return the memory of a device that holds so much: all terms but the reserve are the same on it."""
    held, has_experts = needed_bytes - cost.reserve_bytes, cost.transformer.experts is not None
    return float(cost.problem.calibration.transformer_memory_for(held, has_experts=has_experts))


def _no_layout(costs: Sequence[GroupCost]) -> str:
    """Return which decision has no value left, or that they do not go together."""
    spaces = [Space.of(cost.even) for cost in costs]
    space, problem = spaces[0], spaces[0].problem
    rules = (*space.layout_rules, *program_rules(problem.calibration.program))
    broken, why = _broken_pin(problem, rules) or ("", "")
    free = [replace(one, problem=replace(problem, fixed={}, excluded={})) for one in spaces]
    for key, name in PINS.items():
        values = dict.fromkeys(value for one in free for value in one.axes[name].values)
        if key in problem.fixed and not any(set(one.axes[name].values) & set(values) for one in spaces):
            most = _most_on_several(costs, name)
            if most and 1 < problem.fixed[key] <= most:
                continue
            each = sorted({*values, *range(2, most + 1)}) if most else [*values]
            some = [str(LAYOUT[name].decoded(one)) for one in each[:_MOST_VALUES]]
            listed = ", ".join(some) + ", ..." * (len(each) > _MOST_VALUES)
            end = f": {why}" if key == broken else ". Change it."
            return f"No plan fits: fix.{key} is {problem.fixed[key]}, and it can be {listed}{end}"
    if broken:
        return f"No plan fits: fix.{broken} is {problem.fixed[broken]}: {why}"
    for key in problem.excluded:
        if not any(one.axes[PINS.get(key, key)].values for one in spaces):
            return f"No plan fits: constraints.exclude.{key} leaves no value. Allow one of them."
    if lacking := _lacking_schedule(costs):
        return f"No plan fits: {lacking}"
    words = f", and {problem.devices_words}" if problem.devices_words else ""
    if any(_unlike_numbers(cost) for cost in costs):
        words += f", and on TPUs MaxText runs {_ALIKE} alone (fix.num_stages allows others, which nothing launches)"
    if len(costs) > 1 and any(cost.is_tpu for cost in costs):
        words += ", and MaxText trains on TPUs of one kind alone"
    devices = [one.devices for one in spaces]
    return (
        f"No plan fits: no layout of up to {sum(map(sum, devices)):,} devices meets all limits and pins: degrees must "
        f"divide heads and the batch of {space.batch:,}, each stage holds a layer{words}. Drop or change one of them."
    )


def _broken_pin(problem: Problem, rules: Sequence[LayoutRule]) -> tuple[str, str] | None:
    """Return the pin to change first and why, where pins break a rule whatever else is decided; else None."""
    keys = {name: key for key, name in PINS.items() if key in problem.fixed}
    if problem.fixed.get("schedule") in LAYOUT["schedule"].names:
        keys["schedule"] = "schedule"
    codes = {name: LAYOUT[name].code(problem.fixed[key]) for name, key in keys.items()}
    rule = broken_rule([one for one in rules if {*one.names} <= codes.keys()], codes)
    return None if rule is None else (keys[rule.key], rule.words(codes))


def _most_on_several(costs: Sequence[GroupCost], name: str) -> int:
    """Return the most stages (``pipeline``) or replicas (``data``) of a layout on several groups; 0 without any."""
    if name not in ("pipeline", "data") or costs[0].problem.training.fixed_batch_size is None:
        return 0
    has_replicas = name == "data"
    listed = takewhile(lambda one: one.has_replicas or len(one.groups) == 1, placements_of(costs))
    several = [one for one in listed if one.has_replicas]  # pipelines stand on the same groups
    placement = Placement.REPLICAS if has_replicas else Placement.STAGES
    if not several or not Space.of(replace(several[0], placement=placement)).is_open:  # pins leave as much to all
        return 0
    most = max(sum(Space.of(one).devices) for one in several)
    return min(most, costs[0].batch if has_replicas else several[0].parted_layers)


def _lacking_schedule(costs: Sequence[GroupCost]) -> str:
    """Return the stages or micro-batches that the pinned schedule needs, where no layout has them; else nothing."""
    space = Space.of(costs[0].even)
    batch, stages = space.batch, [one for one in space.axes["pipeline"].values if one > 1]
    is_on_several = bool(stages) and min(stages) > max(sum(Space.of(one.even).devices) for one in costs)
    name = space.problem.fixed.get("schedule", "1f1b" if is_on_several else "")
    is_multiple = name == "interleaved"
    each = 1 if is_multiple else microbatches_a_stage(name, space.problem.calibration.program)
    if not each:
        return ""
    if stages and name == "dualpipe" and all(one % 2 for one in stages):
        return f"DualPipe pairs its stages, and {stages[0]} do not pair off. Write an even fix.pipeline_parallel_size."
    shares = {one * size for one in space.axes["data"].values for size in space.axes["microbatch"].values}
    numbers = {batch // one for one in shares if batch % one == 0}
    if not stages or any(n >= each * one and (n % one == 0 or not is_multiple) for n in numbers for one in stages):
        return ""
    ways = ", lower fix.pipeline_parallel_size, or drop fix.schedule"
    if is_on_several:  # where there is no other schedule
        ways = " or lower fix.pipeline_parallel_size"
    return (
        f"the schedule {name} of {min(stages)} stages needs {'a multiple of ' * is_multiple}{each * min(stages)}"
        f"{' or more' * (not is_multiple)} micro-batches, and a batch of {batch:,} has {max(numbers, default=0):,} at "
        f"most. Raise dnn.global_batch{ways}."
    )


def relaxations(cost: GroupCost, needed_bytes: float, search: Search) -> Iterator[str]:
    """Yield what would let a layout fit, in the words of an order; nothing that was not tried, or has no time left.

    Parameters
    ----------
    needed_bytes
        That a device holds in any layout that the question allows, at least.
    """
    part, problem = search.part(search.left_s, questions_left=_MOST_TRIED), cost.problem
    if needed_bytes * _ROUND_UP <= cost.group.device.memory_bytes:  # the user's limit is what stands in the way
        yield f"raise memory_per_device to {format_human(needed_bytes * _ROUND_UP, Dimension.DATA, 4)}"
    yield from _unlike_stages(cost, part)
    yield from _without_pins(cost, part)
    yield from _more_machines(cost, part)
    limit = problem.limits.memory_per_device_bytes
    if limit is not None and limit < needed_bytes:
        return
    smallest = _device_bytes(cost, needed_bytes)  # listed ones of as much, the smallest first
    enough = sorted((size, name) for name, size in problem.listed_memory_bytes.items() if smallest <= size < inf)
    if enough:
        names = [f"{name!r} ({format_human(size, Dimension.DATA)})" for size, name in enough[:_MOST_LISTED]]
        size = format_human(smallest * _ROUND_UP, Dimension.DATA, 4)
        yield f"take as many devices of {size} or more, e.g. {', '.join(names)}"


_ALIKE = "equal stages of layers of one kind"


def _unlike_numbers(cost: GroupCost) -> list[int]:
    """Return the numbers of stages on TPUs that are not searched, since these would not be alike; none elsewhere."""
    pins = {key for key, name in PINS.items() if name == "pipeline"}
    if not cost.is_tpu or pins & cost.problem.fixed.keys() or pinned_cut(cost.problem) is not None:
        return []
    space = Space.of(cost.even)
    rules = maxtext_rules(cost.transformer, cost.batch, space.machines[0][1])
    (alike,) = (one for one in rules if one.names == ("pipeline",))
    numbers = np.array(space.axes["pipeline"].values)
    return [int(one) for one in numbers[~np.asarray(alike.holds({"pipeline": numbers}))]]


def _unlike_stages(cost: GroupCost, search: Search) -> Iterator[str]:
    """Yield the fewest stages that are not alike, on TPUs, of which a layout fits once they are pinned."""
    for number in search.watch(_unlike_numbers(cost), every=1):
        pinned = replace(cost.problem, fixed={**cost.problem.fixed, "num_stages": number})
        if smallest_memory(replace(cost, problem=pinned), search)[0] <= cost.memory_limit_bytes:
            yield f"pin fix.num_stages: {number} (MaxText runs {_ALIKE} alone: nothing launches these)"
            return


def _without_pins(cost: GroupCost, search: Search) -> Iterator[str]:
    """Yield a pin or an exclusion without which a layout fits; where none does alone, all that cost memory."""
    problem = cost.problem
    keys = [*PINS, "layers_per_stage", "num_microbatches", "num_devices", "num_machines", "schedule"]
    alone = [("fix", key) for key in keys if key in problem.fixed]
    alone += [("constraints.exclude", key) for key in keys if key in problem.excluded]
    together = [one for one in alone if row_of(one[1]).takes_memory]
    for tried in [*([one] for one in alone), together if len(together) > 1 else []]:
        if not tried or search.is_over:
            continue
        if smallest_memory(replace(cost, problem=_without(problem, tried)), search)[0] <= cost.memory_limit_bytes:
            yield f"leave out {' and '.join(f'{where}.{key}' for where, key in tried)}"
            return


def _without(problem: Problem, left_out: Iterable[tuple[str, str]]) -> Problem:
    """Return the question without some pins and exclusions."""
    pins = {key for where, key in left_out if where == "fix"}
    bans = {key for where, key in left_out if where == "constraints.exclude"}
    return replace(
        problem,
        fixed={key: value for key, value in problem.fixed.items() if key not in pins},
        excluded={key: value for key, value in problem.excluded.items() if key not in bans},
    )


def _more_machines(cost: GroupCost, search: Search) -> Iterator[str]:
    """Yield the fewest machines of this group that hold the network, all else as asked: memory alone is looked at.

    More machines allow all that fewer allow, so that the fewest are found by doubling and halving.
    """
    each, limits = cost.group.devices_per_machine, cost.problem.limits
    free_limits: Limits = replace(limits, devices=Range(), machines=Range())
    free = _without(cost.problem, [("fix", "num_devices"), ("fix", "num_machines")])
    open_cost = replace(cost, problem=replace(free, limits=free_limits))

    def fitting(num_machines: int) -> HybridConfiguration | None:
        needed, found = smallest_memory(open_cost, search, num_machines)
        return found if needed <= cost.memory_limit_bytes else None

    low, high, found = cost.cluster.num_machines, 2 * cost.cluster.num_machines, None
    while found is None:
        if search.is_over or high * each > _MOST_DEVICES:
            return
        found = fitting(high)
        low, high = (low, high) if found else (high, 2 * high)
    while high - low > 1 and not search.is_over:
        middle = (low + high) // 2
        if better := fitting(middle):
            high, found = middle, better
        else:
            low = middle
    less = "" if high - low == 1 else " (whether fewer do was not found in time)"
    machines = f"{high} machines of {each}" if each > 1 else f"{high} machines"
    yield f"take {machines} {cost.group.device.name!r}{less}, e.g. {found.headline}"


def smallest_memory(
    cost: GroupCost, search: Search, num_machines: int | None = None
) -> tuple[float, HybridConfiguration | None]:
    """Return bytes that no even layout is under, and the layout that needs them; none where time is over before one.

    ``num_machines``: in place of those that there are.
    """
    bounds = bounds_of(cost.even, search)
    assert isinstance(bounds, EvenBounds)
    if num_machines is not None:
        machines = ((num_machines, cost.group.devices_per_machine),)
        bounds = bounds.of_space(replace(bounds.space, machines=machines))
    best, chosen = inf, dict[str, int]()
    parts = (
        {name: column[start : start + _AT_ONCE] for name, column in nodes.items()}
        for nodes in _coarse(bounds)
        for start in range(0, len(nodes["tensor"]), _AT_ONCE)
    )
    for part in parts:
        try:
            least = bounds.states_bytes(part)
            order = np.argsort(least, kind="stable")
            for start in range(0, len(order), _FEW_AT_ONCE):  # what all else takes is asked of few
                some = np.sort(order[start : start + _FEW_AT_ONCE])
                some = some[least[some] < best]
                if not len(some):
                    break
                few = _with_stages(bounds, {name: column[some] for name, column in part.items()})
                bytes_of = bounds.smallest_memory(few)
                for at in np.argsort(bytes_of, kind="stable").tolist():
                    if bytes_of[at] >= best * (1 - SAME):
                        break
                    held, codes = _least_below(
                        cost, bounds, {name: column[at : at + 1] for name, column in few.items()}
                    )
                    if held < best:
                        best, chosen = held, codes
        except OverError:
            break
        if search.is_over:
            break
    return best, configuration_of_point(cost.even, chosen) if chosen else None


def _with_stages(bounds: EvenBounds, nodes: Columns) -> Columns:
    """Return those of some degrees that go with a schedule and chunks: what layouts hold is asked of the best alone."""
    axes = bounds.space.axes
    _, owner = bounds.space.below(nodes, {name: axes[name].values for name in ("schedule", "interleave")})
    rows = np.unique(owner)
    return {name: column[rows] for name, column in nodes.items()}


def _least_below(cost: GroupCost, bounds: EvenBounds, node: Columns) -> tuple[float, dict[str, int]]:
    """Return the bytes of the layout below a node that needs least, and its decisions; infinite where there is none."""
    grid = bounds.space.grid()
    left = tuple(axis for axis in grid.axes if axis.name not in node)
    points = replace(grid, levels=(Level(axes=left),)).expand(node, 0)
    if not len(points["tensor"]):
        return inf, {}
    held = cost.memory(cost.layouts(points))["total"]
    at = int(np.argmin(held))
    return float(held[at]), {name: int(column[at]) for name, column in points.items()}


def _coarse(bounds: EvenBounds) -> Iterator[Columns]:
    """Yield degrees and micro-batches, some at a time.

    Of each degrees the smallest micro-batch that they may have, which needs least memory under 1F1B: of larger ones
    stages hold as many samples or more. All of them where virtual stages are asked for, which may ask for a number of
    micro-batches, too, or other schedules than 1F1B.
    """
    space, is_any = bounds.space, bounds.may_need_less or min(bounds.space.axes["interleave"].values, default=1) > 1
    level = Level(axes=tuple(space.axes[name] for name in COARSE))
    left: Columns = replace(space.grid(), levels=(level,)).expand({}, 0)
    smallest, *others = space.axes["microbatch"].values or (1,)
    starts = range(0, len(others), _MOST_MICROBATCHES)
    for some in ([smallest], *(others[at : at + _MOST_MICROBATCHES] for at in starts)):
        nodes, owner = space.below(left, {"microbatch": some})
        if not is_any:
            which, first = np.unique(owner, return_index=True)
            nodes = {name: column[first] for name, column in nodes.items()}
            left = {name: np.delete(column, which) for name, column in left.items()}
        yield nodes
        if not len(left["tensor"]):
            return
