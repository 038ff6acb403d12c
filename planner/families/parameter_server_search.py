"""The search of the family ``parameter_server``.

Decisions: whose machines serve, on machines of their own or on working ones; how many servers; how many machines of
each group work, on which shares of the batch; on which server every tensor lies, or that all are sliced; how much of
a gradient is pushed. The outer ones are numbers in boxes (:mod:`planner.families.parameter_server_boxes`): boxes are
split in the order of their lower bounds, until the least bound is no better than the incumbent. A box of one
configuration is solved:

* *Sliced tensors.* Equal slices on all K servers are best. Servers are equal and, co-located, each has one worker at
  home. (1) After any time t the links of all servers together still have to carry what arrives from then on, so
  that some server ends no sooner than ``t + arriving / (K B)``; equal slices end all servers exactly then. (2) What
  arrives depends on the placement only through the bytes that home workers need not send. What a worker's link has
  passed on by time t is concave in what was handed to it, so that equal parts at home let through the most in total.
  (3) The fullest server, and the worker with the least at home, hold no less than the mean: pulls end soonest, too.
* *Whole tensors*: :func:`planner.solvers.placement.best_placement`, with its own bound.
* *Compression*: :func:`planner.solvers.scalar.minimise` over the share kept, at that placement; pushes take longer the
  more is kept, and compressing takes longer the more is left out.

Every objective is the prediction of its configuration. What is left unproven, because a limit struck, because
a placement's gap is open, or after ``_MOST_BOXES`` boxes or ``_MOST_SOLVED`` solved configurations (which is
repeatable), stays in the bound. Asynchronous training stands in :mod:`planner.families.parameter_server_stale`.
"""

import heapq
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.errors import InfeasibleError, NoAnswerError
from planner.families import parameter_server_words as words
from planner.families.answer import SAME, TOO_SHORT, iterations_of, plan_of
from planner.families.inner_links import check_inner_links
from planner.families.parameter_server import NAME, NOT_MODELLED
from planner.families.parameter_server_boxes import Boxes, Site, Space
from planner.families.parameter_server_cost import ParameterServerConfiguration, ParameterServerCost
from planner.families.parameter_server_infeasible import why_nothing_fits
from planner.families.parameter_server_stale import stale_answer
from planner.models.compression import Compression
from planner.plan import Alternative, Plan, Prediction
from planner.problem import Problem
from planner.search import Search
from planner.solution import Status
from planner.solvers.placement import best_placement
from planner.solvers.placement_rows import Placement, arrivals
from planner.solvers.scalar import minimise

__all__ = ["plan", "row_configuration"]

_MOST_BOXES = 60_000  # that are looked at
_MOST_SOLVED = 600  # configurations whose placement is solved
_AT_A_TIME = 48  # boxes split together
_FIRST = 8  # configurations solved before any box is split
_CURVE = 7  # numbers of servers beside the best one, of which the best plan is shown
_WORK, _MOST_WORK = 0.1, 1.0  # deterministic seconds of CP-SAT, for one placement and for all; some 6 real ones each
_RATIO_TOLERANCE = 1e-4  # of seconds, in the search for the share kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A solved configuration."""

    configuration: ParameterServerConfiguration
    prediction: Prediction
    objective: float
    bound: float


@dataclass(slots=True, kw_only=True)
class Incumbents:
    """What was solved, the best first, and what stayed open."""

    space: Space
    search: Search
    found: list[Found] = field(default_factory=list)
    seen: dict[tuple[int, ...], float] = field(default_factory=dict)  # row with its site -> bound
    open_bound: float = float("inf")
    num_boxes: int = 0
    work_left: float = _MOST_WORK

    @property
    def least(self) -> float:
        """The best objective."""
        return self.found[0].objective if self.found else float("inf")

    @property
    def is_good_enough(self) -> bool:
        """Whether the caller is content."""
        return self.least <= self.search.good_enough

    def useless(self, bound: float) -> bool:
        """Whether nothing with such a bound can be better, or matter."""
        return bool(self.found) and bound >= min(self.least, self.search.cutoff) * (1 - SAME)

    def solve(self, site_index: int, row: Sequence[int], bound: float) -> None:
        """Solve the configuration of a row, unless it was solved; keep its bound open where it is not proven."""
        key = (site_index, *row)
        if key not in self.seen:
            solved = _solve(self, self.space.sites[site_index], row, bound)
            self.seen[key] = solved.bound
            insort(self.found, solved, key=lambda one: (one.objective, one.configuration.num_parameter_servers))
        self.open_bound = min(self.open_bound, self.seen[key])


def plan(problem: Problem, search: Search) -> Plan:
    """Return the best plan of this family, and the best ones with other numbers of servers.

    Raises
    ------
    InfeasibleError
        If nothing fits; the message says what would have to give, and by how much.
    NoAnswerError
        If the time limit struck before the first configuration was solved.
    """
    check_inner_links(problem, NAME)
    for group in problem.cluster.machine_groups:
        if not problem.cluster.graph.degree(group.name):
            raise InfeasibleError(
                f"No plan fits: machines {group.name!r} have no network to reach a server. Give them one."
            )
    space = Space(problem)
    if not len(space.size_bytes):
        raise InfeasibleError(
            "No plan fits: the network has no weights, so that there is nothing for a server to hold."
        )
    if search.is_over:
        raise NoAnswerError(TOO_SHORT)
    incumbents = Incumbents(space=space, search=search)
    bound = _searched(incumbents, _roots(space))
    if not incumbents.found:
        raise InfeasibleError(why_nothing_fits(space))
    best = incumbents.found[0]
    is_asked = not incumbents.is_good_enough and best.objective < search.cutoff
    curve = _curve(incumbents) if is_asked else []
    stale = stale_answer(space, [one.configuration for one in incumbents.found], search)
    lines = [*_why(problem, best, incumbents), *_curve_lines(problem, best, curve), *stale.lines]
    others = [_alternative(one, best) for one in curve]
    if stale.best is not None and (stale.is_pinned or stale.objective < best.objective * (1 - SAME)):
        configuration, prediction = stale.best, stale.prediction
        assert prediction is not None
        lines = [*words.explain(problem, configuration, prediction), *stale.lines]
        winner = Found(configuration=configuration, prediction=prediction, objective=stale.objective, bound=0.0)
        others = [_alternative(one, winner, "workers in lockstep") for one in (best, *curve)]
    else:
        configuration, prediction = best.configuration, best.prediction
    return plan_of(
        problem,
        family=NAME,
        configuration=configuration,
        prediction=prediction,
        bound=stale.bound if stale.is_pinned else min(bound, stale.bound),
        explanation=lines,
        alternatives=others,
        warnings=stale.warnings(configuration),
        not_modelled=NOT_MODELLED,
        solver="branch and bound over counts and shares x placement by greedy, bound and CP-SAT",
        num_candidates=incumbents.num_boxes,
        num_solved=len(incumbents.seen),
    )


# -- branch and bound ------------------------------------------------------------------------------------------------


def _roots(space: Space, num_servers: int | None = None) -> list[tuple[int, Boxes]]:
    """Return the boxes of all configurations, by site."""
    roots = [(index, space.tightened(site, space.root(site, num_servers))) for index, site in enumerate(space.sites)]
    return [(index, boxes) for index, boxes in roots if len(boxes)]


def _searched(
    incumbents: Incumbents,
    roots: Iterable[tuple[int, Boxes]],
    most_boxes: int = _MOST_BOXES,
    most_solved: int = _MOST_SOLVED,
) -> float:
    """Solve configurations until nothing is better than the incumbent, or a limit strikes; return the bound.

    Raises
    ------
    NoAnswerError
        If the search is over before the first configuration was solved.
    """
    space, search = incumbents.space, incumbents.search
    roots = list(roots)
    heap: list[tuple[float, int, int, Boxes]] = []
    for index, boxes in roots:
        _push(incumbents, heap, index, boxes)
    _solve_first(incumbents, roots)
    first_boxes, first_solved = incumbents.num_boxes, len(incumbents.seen)
    while heap and not incumbents.useless(heap[0][0]):
        is_enough = incumbents.num_boxes - first_boxes > most_boxes or len(incumbents.seen) - first_solved > most_solved
        if search.is_over or incumbents.is_good_enough or is_enough:
            break
        for index, boxes in _popped(incumbents, heap):
            points = space.is_point(boxes)
            for row, bound in zip(
                boxes.low[points].tolist(),
                space.lower_bounds(space.sites[index], boxes.of(points)).tolist(),
                strict=True,
            ):
                if not incumbents.useless(bound) and not (search.is_over and incumbents.found):
                    incumbents.solve(index, row, bound)
                else:
                    incumbents.open_bound = min(incumbents.open_bound, bound)
            if not points.all():
                site = space.sites[index]
                _push(incumbents, heap, index, space.tightened(site, space.split(site, boxes.of(~points))))
    if not incumbents.found and (heap or roots) and search.is_over:
        raise NoAnswerError(TOO_SHORT)
    left = heap[0][0] if heap else float("inf")
    return min(left, incumbents.open_bound, incumbents.least)


def _push(incumbents: Incumbents, heap: list[tuple[float, int, int, Boxes]], index: int, boxes: Boxes) -> None:
    """Put boxes on the heap, each with its bound, but those that cannot hold anything better."""
    if not len(boxes):
        return
    bounds = incumbents.space.lower_bounds(incumbents.space.sites[index], boxes)
    for one, bound in enumerate(bounds.tolist()):
        incumbents.num_boxes += 1
        if incumbents.useless(bound):
            incumbents.open_bound = min(incumbents.open_bound, bound)
        else:
            heapq.heappush(heap, (bound, incumbents.num_boxes, index, boxes.of(np.array([one]))))


def _popped(incumbents: Incumbents, heap: list[tuple[float, int, int, Boxes]]) -> list[tuple[int, Boxes]]:
    """Return the boxes of the least bounds, together by site; fewer where one of them is a single configuration."""
    taken: dict[int, list[Boxes]] = {}
    for _ in range(_AT_A_TIME):
        if not heap or incumbents.useless(heap[0][0]):
            break
        _, _, index, boxes = heapq.heappop(heap)
        taken.setdefault(index, []).append(boxes)
        if incumbents.space.is_point(boxes).any():
            break
    return [(index, Boxes.together(parts)) for index, parts in taken.items()]


def _solve_first(incumbents: Incumbents, roots: Sequence[tuple[int, Boxes]]) -> None:
    """Solve the most promising of some configurations all over the boxes, so that boxes can be left out early."""
    space, candidates = incumbents.space, []
    for index, boxes in roots:
        rows = _spread(space, space.sites[index], boxes)
        if rows is None:
            continue
        points = space.tightened(space.sites[index], Boxes(rows, rows.copy()))
        points = points.of(space.is_point(points))
        bounds = space.lower_bounds(space.sites[index], points) if len(points) else np.zeros(0)
        candidates += [
            (bound, index, tuple(row)) for bound, row in zip(bounds.tolist(), points.low.tolist(), strict=True)
        ]
    for number, (bound, index, row) in enumerate(sorted(set(candidates))):
        is_over = incumbents.search.is_over or incumbents.is_good_enough or number >= _FIRST
        if incumbents.found and (is_over or incumbents.useless(bound)):
            break
        incumbents.solve(index, row, bound)


def _spread(space: Space, site: Site, boxes: Boxes) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None":
    """Return configurations with few and many servers and workers, on shares that are about as fast on every group."""
    k_low, k_high, w_low, w_high, _, _ = space.parts(boxes)
    least, most = int(k_low.min()), int(k_high.max())
    servers = sorted({*(k for e in range(20) if least <= (k := 2**e) <= most), least, most, (least + most) // 2})
    low, high = w_low.min(axis=0), w_high.max(axis=0)
    sets = [np.ones(len(high), dtype=bool), *(np.arange(len(high)) == one for one in range(len(high)))]
    sets += [np.argsort(np.argsort(space.sample_s, kind="stable")) < size for size in range(2, len(high))]
    rows, serving = [], space.index_of(site)
    for chosen in sets:
        for part in (1.0, 0.75, 0.5, 0.25, 0.1, 0.0):
            workers = np.maximum(np.where(chosen, np.ceil(high * part), 0).astype(np.int64), low)
            if part == 0.0:
                workers = np.maximum(np.where(chosen, np.minimum(high, 1), 0), low)
            for number in servers:
                own = workers.copy()
                if serving >= 0 and not site.co_located:
                    own[serving] = min(own[serving], site.servers.count - number)
                elif serving >= 0 and own[serving] < number:
                    continue
                shares = space.shares_of(own) if (own >= 0).all() else None
                if shares is not None:
                    rows.append([number, *own.tolist(), *shares.tolist()])
    return np.array(rows, dtype=np.int64) if rows else None


# -- one configuration -----------------------------------------------------------------------------------------------


def _solve(incumbents: Incumbents, site: Site, row: Sequence[int], bound: float) -> Found:
    """Return the best placement and compression of one row, its objective that of the prediction."""
    problem = incumbents.space.problem
    given = row_configuration(incumbents.space, site, row)
    if problem.calibration.split_tensors or given.num_parameter_servers == 1:
        placed, bound = _evaluated(problem, given), max(bound, 0.0)
        bound = placed.objective if problem.compression is None else bound
        placed = replace(placed, bound=bound)
    else:
        placed = _placed(incumbents, site, given, bound)
    return placed if problem.compression is None else _compressed(incumbents, placed, bound)


def row_configuration(space: Space, site: Site, row: Sequence[int]) -> ParameterServerConfiguration:
    """Return the configuration of a row, sliced."""
    g = len(space.groups)
    workers, shares = row[1 : g + 1], row[g + 1 :]
    used = {group.name: (w, b) for group, w, b in zip(space.groups, workers, shares, strict=True) if w}
    total = sum(space.devices[index] * w * b for index, (w, b) in enumerate(zip(workers, shares, strict=True)))
    return ParameterServerConfiguration(
        num_parameter_servers=row[0],
        workers={name: w for name, (w, _) in used.items()},
        servers=site.servers.name,
        co_located=site.co_located,
        placement="sliced",
        batch_shares={name: b for name, (_, b) in used.items()},
        global_batch_size=int(min(total, space.most_batch)),
    )


def _evaluated(problem: Problem, configuration: ParameterServerConfiguration) -> Found:
    """Return a configuration with what it costs."""
    if configuration.num_parameter_servers == 1 and configuration.placement == "sliced":
        configuration = replace(configuration, placement="round_robin")  # the same on one server, and never a slice
    prediction = ParameterServerCost(problem, configuration).predict()
    objective = prediction.value_of(problem.goal)
    return Found(configuration=configuration, prediction=prediction, objective=objective, bound=0.0)


def _placed(incumbents: Incumbents, site: Site, given: ParameterServerConfiguration, bound: float) -> Found:
    """Return the best whole placement of a configuration."""
    space, problem = incumbents.space, incumbents.space.problem
    cost = ParameterServerCost(problem, given)
    parts, _ = cost.busy_parts_s()
    others_s = sum(parts.values()) - sum(parts[name] for name in ("forward", "backward", "exposed_push", "pull"))
    names = cost.gradients(cost.groups[0]).names
    rows, guide = (
        arrivals(
            np.array([cost.ready_s(group) for group in cost.groups]),
            space.size_bytes,
            cost.links.server_bytes_per_s,
            worker_counts=list(given.workers.values()),
            worker_bytes_per_s=[space.rates[space.groups.index(group)] for group in cost.groups],
            home_kind=[group.name for group in cost.groups].index(site.servers.name) if site.co_located else None,
            least_push_s=parts["forward"] + parts["backward"],
            is_guide=is_guide,
        )
        for is_guide in (False, True)
    )

    def named(placement: Placement) -> ParameterServerConfiguration:
        return replace(given, placement=dict(zip(names, placement, strict=True)))

    def seconds(placement: Placement) -> float:
        found, _ = ParameterServerCost(problem, named(placement)).busy_parts_s()
        return sum(found.values()) - others_s

    iterations = float(iterations_of(problem, cost.global_batch_size))
    useless_s = incumbents.least / iterations - others_s  # waiting for input only adds to it
    solution = best_placement(
        rows,
        incumbents.search,
        evaluate=seconds if site.co_located else None,
        guide=guide if site.co_located else None,
        useless=useless_s,
        most_work=0.0 if site.co_located else min(_WORK, incumbents.work_left),  # a relaxed model rarely proves much
    )
    assert solution.value is not None
    if solution.status is not Status.OPTIMAL:
        incumbents.work_left = max(0.0, incumbents.work_left - _WORK)
    found = _evaluated(problem, named(solution.value))
    if problem.compression is not None:  # the bounds of placements are those of whole gradients
        return found
    sliced = cost.predict().value_of(problem.goal)  # no placement beats it
    proven = max(bound, sliced, cost.with_input_s(solution.bound + others_s) * iterations)
    is_proven = solution.status is Status.OPTIMAL or proven >= found.objective * (1 - SAME)
    return replace(found, bound=found.objective if is_proven else proven)


def _compressed(incumbents: Incumbents, placed: Found, bound: float) -> Found:
    """Return a configuration with the best share of its gradients pushed, or all of them."""
    problem = incumbents.space.problem
    option = problem.compression
    assert option is not None

    def removed(kept: float) -> ParameterServerConfiguration:
        return replace(placed.configuration, compression=Compression(removed=1 - kept, scale_s=option.scale_s))

    def rising(kept: float) -> float:
        parts, _ = ParameterServerCost(problem, removed(kept)).busy_parts_s()
        return sum(parts.values()) - parts["compression"]

    solution = minimise(
        rising,
        lambda kept: option.scale_s / kept**2,
        1 - option.most_removed,
        1.0,
        tolerance=_RATIO_TOLERANCE,
        search=incumbents.search,
    )
    found = placed if solution.value is None else _evaluated(problem, removed(solution.value))
    return replace(min((placed, found), key=lambda one: one.objective), bound=bound)


# -- what else is shown ----------------------------------------------------------------------------------------------


def _curve(incumbents: Incumbents) -> list[Found]:
    """Return the best plans with other numbers of servers: all of few; else around the best, and doubling."""
    space, search = incumbents.space, incumbents.search
    best = incumbents.found[0].configuration.num_parameter_servers
    most = max(int(boxes.high[:, 0].max()) for _, boxes in _roots(space))
    least = min(int(boxes.low[:, 0].min()) for _, boxes in _roots(space))
    near = [best - 1, best + 1, best // 2, 2 * best, 1, most, best - 2, best + 2, 4 * best, best // 4]
    numbers = [number for number in dict.fromkeys(near) if least <= number <= most and number != best]
    found = []
    for number in numbers[: max(_CURVE, search.num_alternatives)]:
        if search.is_over:
            break
        known = [one for one in incumbents.found if one.configuration.num_parameter_servers == number]
        own = Incumbents(space=space, search=search, found=known[:1], work_left=0.0)
        _searched(own, _roots(space, number), most_boxes=600, most_solved=3)
        found += own.found[:1]
    return sorted(found, key=lambda one: one.configuration.num_parameter_servers)


def _curve_lines(problem: Problem, best: Found, curve: Sequence[Found]) -> list[str]:
    """Return the best seconds found for each number of servers, in one line."""
    if not curve:
        return []
    rows = sorted([*curve, best], key=lambda one: one.configuration.num_parameter_servers)
    texts = (f"{one.configuration.num_parameter_servers}: {one.objective:.4g} {problem.goal.unit}" for one in rows)
    return [
        f"{problem.goal.name.replace('_', ' ')} by the number of servers, the best found for each: {', '.join(texts)}"
    ]


def _why(problem: Problem, best: Found, incumbents: Incumbents) -> list[str]:
    """Return what binds, and how the answer was proven."""
    space = incumbents.space
    lines = list(words.explain(problem, best.configuration, best.prediction))
    origins = dict.fromkeys(problem.profiles[group.device.name].origin for group in space.groups)
    lines.append(f"seconds of the layers: {'; '.join(origins)}")
    chosen = best.configuration
    total = sum(
        chosen.workers[group.name] * group.devices_per_machine * chosen.batch_shares[group.name]
        for group in space.groups
        if group.name in chosen.workers
    )
    if total > (chosen.global_batch_size or total):
        lines.append(f"the shares would make a batch of {total}: some devices have one sample less, and wait")
    lines.append(
        f"{incumbents.num_boxes:,} sets of configurations (servers, workers, shares) were bounded, and "
        f"{len(incumbents.seen):,} configurations solved"
    )
    return lines


def _alternative(other: Found, best: Found, reason: str = "the best with so many servers") -> Alternative:
    """Return one configuration that lost."""
    return Alternative(
        name=other.configuration.headline,
        family=NAME,
        objective=other.objective,
        relative_loss=other.objective / best.objective - 1 if best.objective else 0.0,
        reason=reason,
        configuration=other.configuration,
    )
