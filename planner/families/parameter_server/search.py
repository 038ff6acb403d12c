"""The search of the family ``parameter_server``.

Decisions
    Whose machines serve, on machines of their own or on working ones; how many servers; how many machines of each group
    work, on which shares of the batch; on which server every tensor lies, or that all are sliced; how much of a
    gradient is pushed. The outer ones are numbers in boxes, which are split in the order of their lower bounds
    (:mod:`planner.families.parameter_server.bounds`) by :mod:`planner.solvers.branch_and_bound`, until the least bound
    is no better than the incumbent. A box of one configuration, a row, is solved:
Sliced tensors
    Equal slices on all K servers are best. Servers are equal and, co-located, each has one worker at home. (1) After
    any time t the links of all servers together still have to carry what arrives from then on, so that some server ends
    no sooner than ``t + arriving / (K B)``; equal slices end all servers exactly then. (2) What arrives depends on the
    placement only through the bytes that home workers need not send. What a worker's link has passed on by time t is
    concave in what was handed to it, so that equal parts at home let through the most in total. (3) The fullest server,
    and the worker with the least at home, hold no less than the mean: pulls end soonest, too.
Whole tensors
    :func:`planner.solvers.placement.best_placement`, with its own bound.
Sums sent on their own
    Where ``calibration.max_overlap``, ``fix.overlap`` or ``fix.barrier`` let sums go without a barrier, a row is solved
    by few placements, each costed message by message: sliced, or the placements of programs and the best one behind a
    barrier; then with the layers that run forward sooner first, and with tensors in pieces of the sizes that programs
    send (:data:`_PIECES_BYTES`), placed in turn. What is not reached of the row's bound stays open.
Compression
    :func:`planner.solvers.scalar.minimise` over the share kept, at that placement; pushes take longer the more is kept,
    and compressing takes longer the more is left out.
Proves
    Every objective is the prediction of its configuration. What is left unproven, because a limit struck, because a
    placement's gap is open, or after so many boxes or solved configurations (which is repeatable), stays in the bound.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import ceil, inf

import numpy as np

from planner.constraints import memory_limit_bytes
from planner.cost import Floats
from planner.errors import Fault, InfeasibleError, NoAnswerError, SpecError
from planner.families.answer import TOO_SHORT, Searched, alternative_of, iterations_of, no_sample_fits, plan_of
from planner.families.parameter_server.bounds import Boxes, Site, Space, lower_bounds, root, split, tightened
from planner.families.parameter_server.configuration import (
    NAME,
    ParameterServerConfiguration,
    Way,
    is_sent_alone,
    may_work,
    piece_fault,
    ways_of,
)
from planner.families.parameter_server.cost import NOT_MODELLED, ParameterServerCost, explain
from planner.families.parsing import check_inner_links
from planner.frozen import frozen
from planner.models.activations import data_parallel_memory
from planner.models.compression import Compression
from planner.models.memory import Precision
from planner.models.servers import place_largest_first, place_round_robin
from planner.plan import Alternative, Plan, Prediction
from planner.problem import Problem, Range
from planner.search import Search
from planner.solution import SAME, Solution, Status
from planner.solvers.branch_and_bound import Box, Effort, best_vector
from planner.solvers.placement import Placement, Workers, arrivals, best_placement
from planner.solvers.scalar import minimise
from planner.words import many, size_words

_WORK, _MOST_WORK = 0.1, 1.0  # deterministic seconds of CP-SAT, for one placement and for all; some 6 real ones each
_TABLES = 6  # of tensors and servers, that a placement takes
_RATIO_TOLERANCE = 1e-4  # of seconds, in the search for the share kept
_MOST_RATIOS, _MOST_SURE_RATIOS = 32, 20_000  # shares kept that are tried: where sums go on their own, and else
_MOST_BOXES = 60_000  # that are looked at
_MOST_SOLVED = 600  # configurations whose placement is solved
_AT_A_TIME = 48  # boxes split together
_FEW = 64  # configurations of which some one is given where the time was over before any was solved
_FIRST = 8  # configurations solved before any box is split
_CURVE = 7  # numbers of servers beside the best one, of which the best plan is shown
_MOST_CONFIGURATIONS = 2  # in lockstep, that are tried under every synchronisation
_MOST_STALENESS = 8  # the largest tried; more changes little
_BESIDE = {"overlap", "barrier", "partition_bytes", "priority"}  # pins of workers in lockstep
_PIECES_BYTES = (4_096_000.0, 1_024_000.0)  # BytePS's BYTEPS_PARTITION_BYTES, and a quarter of it
_MOST_KEYED = 60_000  # gradients on their way to servers of all configurations solved whose sums go on their own
_ASSUMED = 4.0  # where asynchronous training is pinned and no limit is given


_Row = tuple[float, int, tuple[int, ...]]  # its bound, its site, and its numbers


@frozen
class Solved:
    """A configuration with what it costs, and what no placement and compression of its row beats."""

    configuration: ParameterServerConfiguration
    prediction: Prediction
    objective: float
    bound: float = 0.0

    @property
    def solution(self) -> "Solution[Solved]":
        """It as a solution."""
        return Solution(status=Status.FEASIBLE, objective=self.objective, bound=self.bound, value=self)


def _evaluated(
    problem: Problem, configuration: ParameterServerConfiguration, is_over: Callable[[], bool] = lambda: False
) -> Solved:
    """Return a configuration with what it costs.

    Raises
    ------
    NoAnswerError
        If it was over before that was known.
    """
    if configuration.num_parameter_servers == 1 and configuration.placement == "sliced":
        configuration = replace(configuration, placement="round_robin")  # the same on one server, and never a slice
    prediction = ParameterServerCost(problem, configuration, is_over).predict()
    return Solved(configuration=configuration, prediction=prediction, objective=prediction.value_of(problem.goal))


class ServerBoxes:
    """Boxes of configurations for :func:`planner.solvers.branch_and_bound.best_vector`, and what was solved of them.

    The kind of a box is the index of its site, its vectors are rows. ``solved``: the best first. ``bounds_of``: the
    bounds of the rows that were solved.
    """

    def __init__(
        self, space: Space, search: Search, *, solved: Sequence[Solved] = (), work: float = _MOST_WORK
    ) -> None:
        self.space, self.search, self.work_left = space, search, work
        self.solved: list[Solved] = list(solved)
        self.bounds_of: dict[tuple[int, ...], float] = {}
        self.num_boxes = 0
        self._keyed_left = _MOST_KEYED
        self.too_many: SpecError | None = None  # why a row was not solved
        self._is_begun = False

    @property
    def least(self) -> float:
        """The best objective."""
        return self.solved[0].objective if self.solved else inf

    def _by_site(self, boxes: Sequence[Box]) -> Iterator[tuple[int, list[int], Boxes]]:
        """Yield the boxes of each site as arrays, with their places."""
        for index in sorted({box.kind for box in boxes}):
            places = [place for place, box in enumerate(boxes) if box.kind == index]
            low = np.array([boxes[place].low for place in places])
            yield index, places, Boxes(low, np.array([boxes[place].high for place in places]))

    def bounds(self, boxes: Sequence[Box], limit: float) -> Floats:
        """Return an objective that none of a box's configurations beats; ``inf`` where its servers saturate."""
        bounds = np.empty(len(boxes))
        for index, places, rows in self._by_site(boxes):
            bounds[places] = lower_bounds(self.space, self.space.sites[index], rows)
        return bounds

    def close_bounds(self, boxes: Sequence[Box], bounds: Floats, limit: float) -> Floats:
        """Return the bounds that there are."""
        return bounds

    def split(self, boxes: Sequence[Box]) -> list[list[Box]]:
        """Return the halves of each box, without what cannot be in any configuration."""
        parts: list[list[Box]] = [[] for _ in boxes]
        for index, places, rows in self._by_site(boxes):
            site = self.space.sites[index]
            owners, kept = tightened(self.space, site, split(self.space, site, rows))
            for owner, box in zip(owners.tolist(), _boxes_of(index, kept), strict=True):
                parts[places[owner % len(places)]].append(box)
        return parts

    def probe(self, boxes: Sequence[Box], limit: float) -> Solution[Solved] | None:
        """Solve, once, the most promising of some configurations all over the boxes, so that boxes can be cut early."""
        if self._is_begun:
            return None
        self._is_begun = True
        candidates: list[_Row] = []
        for index, _, rows in self._by_site(boxes):
            if candidates and self.search.is_late:
                break
            spread = list(self.search.watch(_spread(self.space, self.space.sites[index], rows)))
            candidates += _bounded(self.space, index, spread)
        for number, (bound, index, row) in enumerate(self._in_order(candidates)):
            is_enough = self.least <= self.search.good_enough or bound >= self.least * (1 - SAME)
            if self.solved and (is_enough or number >= _FIRST or bound >= self.search.cutoff or self.search.is_over):
                break
            self.solve(Box(index, row, row), bound, self.least)
        return self.solved[0].solution if self.solved else None

    def _in_order(self, candidates: Sequence[_Row]) -> list[_Row]:
        """Return rows by their bounds; before all the best one of each way, the sooner one is known the earlier."""
        rows = sorted(set(candidates))
        firsts: dict[Way, _Row] = {}
        for row in rows:
            firsts.setdefault(self.space.sites[row[1]].way, row)
        soonest = sorted(firsts, key=lambda way: (way.is_keyed, not way.pulls_early))
        return list(dict.fromkeys([*(firsts[way] for way in soonest), *rows]))

    def solve(self, leaf: Box, bound: float, limit: float) -> Solution[Solved]:
        """Return the best placement and compression of one row; its bound is open where that is not proven."""
        key, row = (leaf.kind, *leaf.low), leaf.low
        if key in self.bounds_of:
            return Solution(status=Status.UNKNOWN, objective=inf, bound=self.bounds_of[key], value=None)
        is_keyed = self.space.sites[leaf.kind].way.is_keyed
        if is_keyed and self._keyed_left <= 0:
            self.bounds_of[key] = bound
            return Solution(status=Status.UNKNOWN, objective=inf, bound=bound, value=None)
        is_whole = not self.space.is_cut and row[0] > 1
        if is_whole and not self.search.fits(_TABLES * 8 * row[0] * len(self.space.size_bytes)):
            self.bounds_of[key] = bound  # whole tensors on so many servers would need tables that do not fit
            return Solution(status=Status.UNKNOWN, objective=inf, bound=bound, value=None)
        try:
            return self._solved(leaf, bound, is_whole=is_whole)
        except (SpecError, NoAnswerError) as error:  # too many messages to be followed, or the time was over
            self.bounds_of[key] = bound
            if isinstance(error, SpecError):
                self.too_many = error
            return Solution(status=Status.UNKNOWN, objective=inf, bound=bound, value=None)

    def solve_as(self, given: ParameterServerConfiguration, way: Way) -> None:
        """Solve the servers, workers and shares of a configuration with sums that travel so."""
        workers, shares = given.workers, given.batch_shares
        names = [group.name for group in self.space.groups]
        row = (
            given.num_parameter_servers,
            *(workers.get(name, 0) for name in names),
            *(shares.get(name, 1) for name in names),
        )
        for index, site in enumerate(self.space.sites):
            if (site.servers.name, site.co_located, site.way) == (given.servers, given.co_located, way):
                self.solve(Box(index, row, row), 0.0, inf)

    def _solved(self, leaf: Box, bound: float, *, is_whole: bool) -> Solution[Solved]:
        """Return the best placement and compression of one row.

        Raises
        ------
        SpecError
            Where sums are sent on their own, and are too many to be followed.
        NoAnswerError
            If the time is over before they were.
        """
        key, row, problem = (leaf.kind, *leaf.low), leaf.low, self.space.problem
        site = self.space.sites[leaf.kind]
        sliced = row_configuration(self.space, site, row)
        if is_whole:
            solved = self._placed(site, sliced, bound)
        else:
            solved = self._evaluated(sliced)
            solved = replace(solved, bound=bound if site.way.is_keyed else solved.objective)
        if site.way.is_keyed:
            solved = self._best_order(solved, site, bound)
        if problem.compression is not None:
            solved = self._compressed(solved, bound if is_whole else max(bound, 0.0), is_keyed=site.way.is_keyed)
        self.bounds_of[key] = solved.bound
        insort(self.solved, solved, key=lambda one: (one.objective, one.configuration.num_parameter_servers))
        return solved.solution

    def _best_order(self, solved: Solved, site: Site, bound: float) -> Solved:
        """Return a row whose sums go alone in the fastest pieces and order; of equals the simplest."""
        fixed, given = self.space.problem.fixed, solved.configuration
        largest_bytes = float(self.space.size_bytes.max(initial=0.0))
        sizes: list[float | None] = [fixed.get("partition_bytes")]
        if sizes == [None] and self.space.problem.calibration.split_tensors:
            sizes += [size for size in _PIECES_BYTES if size < largest_bytes]
        orders = [fixed["priority"]] if "priority" in fixed else [None, True] if site.way.is_forward else [None]
        tried = [solved]
        for size in sizes:
            for order in orders:
                placement = given.placement if size is None else "round_robin"
                one = replace(given, partition_bytes=size, has_priority=order, placement=placement)
                if one != given and tried[0].objective > bound * (1 + SAME):
                    tried += self._if_evaluated(one)
        return replace(_simplest(tried), bound=bound)

    def _if_evaluated(self, configuration: ParameterServerConfiguration) -> list[Solved]:
        """Return one more configuration of a row with what it costs; none beyond what can be followed, or in time."""
        if self.search.is_late:
            return []
        try:
            return [self._evaluated(configuration)]
        except (SpecError, NoAnswerError):
            return []

    def _evaluated(self, configuration: ParameterServerConfiguration) -> Solved:
        """Return a configuration with what it costs; broken off where the search is over."""
        solved = _evaluated(self.space.problem, configuration, lambda: self.search.is_late)
        self._keyed_left -= solved.prediction.details.get("messages", 0)
        return solved

    def _placed(self, site: Site, given: ParameterServerConfiguration, bound: float) -> Solved:
        """Return the best whole placement of a configuration."""
        space, problem = self.space, self.space.problem
        cost = ParameterServerCost(problem, given)
        parts, _ = cost.busy_parts_s()
        others_s = sum(parts.values()) - sum(parts[name] for name in ("forward", "backward", "exposed_push", "pull"))
        names = cost.gradients(cost.groups[0]).names
        workers = Workers(
            counts=list(given.workers.values()),
            bytes_per_s=[space.rates[space.groups.index(group)] for group in cost.groups],
            home_kind=[group.name for group in cost.groups].index(site.servers.name) if site.co_located else None,
        )
        rows, guide = (
            arrivals(
                np.array([cost.ready_s(group) for group in cost.groups]),
                space.size_bytes,
                cost.links.server_bytes_per_s,
                workers,
                least_push_s=parts["forward"] + parts["backward"],
                is_guide=is_guide,
            )
            for is_guide in (False, True)
        )

        def named(placement: Placement) -> ParameterServerConfiguration:
            return replace(given, placement=dict(zip(names, placement, strict=True)))

        def seconds(placement: Placement) -> float:
            parts, _ = ParameterServerCost(problem, named(placement)).busy_parts_s()
            return sum(parts.values()) - others_s

        iterations = float(iterations_of(problem, cost.global_batch_size))
        solution = best_placement(
            rows,
            self.search,
            evaluate=seconds if site.co_located or not rows.is_whole else None,
            guide=guide if site.co_located else None,
            useless=self.least / iterations - others_s,  # waiting for input only adds to it
            most_work=0.0 if site.co_located else min(_WORK, self.work_left),  # a relaxed model rarely proves much
        )
        assert solution.value is not None
        if solution.status is not Status.OPTIMAL:
            self.work_left = max(0.0, self.work_left - _WORK)
        if site.way.is_keyed:
            usual = [place_round_robin(space.size_bytes, num_servers=given.num_parameter_servers)]
            usual += [place_largest_first(space.size_bytes, server_bytes_per_s=cost.links.server_bytes_per_s)]
            tried = [solution.value, *(tuple(one.argmax(axis=1).tolist()) for one in usual)]
            first, *others = dict.fromkeys(map(tuple, tried))
            placed = [self._evaluated(named(first))]
            for one in others:
                placed += self._if_evaluated(named(one))
            return replace(min(placed, key=lambda one: one.objective), bound=bound)
        solved = self._evaluated(named(solution.value))
        if problem.compression is not None:  # the bounds of placements are those of whole gradients
            return solved
        sliced = cost.predict().value_of(problem.goal)  # no placement beats it
        proven = max(bound, sliced, cost.with_input_s(solution.bound + others_s) * iterations)
        is_proven = solution.status is Status.OPTIMAL or proven >= solved.objective * (1 - SAME)
        return replace(solved, bound=solved.objective if is_proven else proven)

    def _compressed(self, placed: Solved, bound: float, *, is_keyed: bool) -> Solved:
        """Return a configuration with the best share of its gradients pushed, or all; of keyed ones a good one."""
        problem = self.space.problem
        option = problem.compression
        assert option is not None

        def pushing(kept: float) -> ParameterServerConfiguration:
            return replace(placed.configuration, compression=Compression(removed=1 - kept, scale_s=option.scale_s))

        def rising(kept: float) -> float:
            """Return the seconds of an iteration but for compressing, in whose rounding they might be lost."""
            if is_keyed:
                prediction = self._evaluated(pushing(kept)).prediction
                return prediction.iteration_time_s - prediction.breakdown_s["compression"]
            parts, _ = ParameterServerCost(problem, pushing(kept)).busy_parts_s()
            return sum(seconds for name, seconds in parts.items() if name != "compression")

        try:
            solution = minimise(
                rising,
                lambda kept: option.scale_s / kept**2,
                1 - option.most_removed,
                1.0,
                tolerance=_RATIO_TOLERANCE,
                search=self.search,
                most_evaluations=_MOST_RATIOS if is_keyed else _MOST_SURE_RATIOS,
            )
        except NoAnswerError:
            return replace(placed, bound=bound)
        best = [] if solution.value is None else self._if_evaluated(pushing(solution.value))
        return replace(min((placed, *best), key=lambda one: one.objective), bound=bound)


def way_of(solved: Solved) -> Way:
    """Return how a configuration's sums travel."""
    return Way(solved.configuration.overlap, solved.configuration.has_barrier)


def _simplest(solved: Sequence[Solved]) -> Solved:
    """Return the first of those that are as fast as the fastest one."""
    least = min(one.objective for one in solved)
    return next(one for one in solved if one.objective <= least * (1 + SAME))


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
        placement="sliced" if space.problem.calibration.split_tensors or not space.is_cut else "round_robin",
        batch_shares={name: b for name, (_, b) in used.items()},
        global_batch_size=int(min(total, space.most_batch)),
        overlap=site.way.overlap,
        has_barrier=site.way.has_barrier,
        partition_bytes=space.problem.fixed.get("partition_bytes") if site.way.is_keyed else None,
        has_priority=space.problem.fixed.get("priority"),
    )


# -- all configurations, and where the search begins -------------------------------------------------------------------


def _boxes_of(site_index: int, rows: Boxes) -> list[Box]:
    """Return the boxes of a site one by one."""
    ends = zip(rows.low.tolist(), rows.high.tolist(), strict=True)
    return [Box(site_index, tuple(low), tuple(high)) for low, high in ends]


def roots_of(space: Space, num_servers: int | None = None, way: Way | None = None) -> list[Box]:
    """Return the boxes of all configurations, or of those with so many servers, or whose sums travel so."""
    return [
        box
        for index, site in enumerate(space.sites)
        if way in (None, site.way)
        for box in _boxes_of(index, tightened(space, site, root(space, site, num_servers))[1])
    ]


def search_boxes(
    boxes: ServerBoxes,
    roots: Sequence[Box],
    *,
    most_boxes: int = _MOST_BOXES,
    most_solved: int = _MOST_SOLVED,
    on_progress: Callable[[float, float], None] = lambda bound, objective: None,
) -> float:
    """Solve configurations until nothing is better than the incumbent, or a limit strikes; return the bound.

    Raises
    ------
    NoAnswerError
        If the search is over before the first configuration was solved.
    """
    outcome = best_vector(
        roots,
        boxes,
        boxes.search,
        split=boxes.split,
        effort=Effort(most_boxes=most_boxes, most_solved=most_solved, at_a_time=_AT_A_TIME),
        on_progress=on_progress,
        on_better=lambda _: boxes.search.keep(lambda: _plan_of(boxes.space.problem, boxes.solved[0])),
    )
    boxes.num_boxes += outcome.num_boxes
    if not boxes.solved and roots and boxes.search.is_over:
        raise NoAnswerError(TOO_SHORT)
    return outcome.bound


def _bounded(space: Space, index: int, rows: Sequence[Sequence[int]]) -> list[_Row]:
    """Return those of the configurations on a site that are possible, each after its bound and its site."""
    if not rows:
        return []
    low = np.array(rows, dtype=np.int64)
    _, points = tightened(space, space.sites[index], Boxes(low, low.copy()))
    points = points.of(points.are_points)
    bounds = lower_bounds(space, space.sites[index], points) if len(points) else np.zeros(0)
    rows_and_bounds = zip(bounds.tolist(), points.low.tolist(), strict=True)
    return [(bound, index, tuple(row)) for bound, row in rows_and_bounds if bound < inf]


def _spread(space: Space, site: Site, boxes: Boxes) -> Iterator[list[int]]:
    """Yield configurations with few and many servers and workers, on shares that are about as fast on every group."""
    k_low, k_high, w_low, w_high, _, _ = boxes.parts
    least, most = int(k_low.min()), int(k_high.max())
    servers = sorted({*(k for e in range(20) if least <= (k := 2**e) <= most), least, most, (least + most) // 2})
    low, high = w_low.min(axis=0), w_high.max(axis=0)
    sets = [np.ones(len(high), dtype=bool), *(np.arange(len(high)) == one for one in range(len(high)))]
    sets += [np.argsort(np.argsort(space.sample_s, kind="stable")) < size for size in range(2, len(high))]
    serving = space.index_of(site)
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
                    yield [number, *own.tolist(), *shares.tolist()]


# -- asynchronous training, tried where staleness is allowed, and said so ----------------------------------------------
# ``constraints.max_staleness`` is the most that s of SSP(s), and H - 1 of local SGD(H), may be; ASP needs it unbounded.
# It holds for pins, too. Where it is not set, a pinned synchronisation is itself the permission, and nothing else is.
#
# The configurations of the best plans in lockstep are simulated under SSP(s), s = 1, 2, 4, .. up to the limit, under
# local SGD with H - 1 of the same numbers, and under ASP where any lag is allowed. That is a choice of few, not a
# search. The bound is true of all configurations: a batch takes no less than all machines need that compute all the
# time.


@frozen
class Asynchronous:
    """Configurations without a barrier, the best first, a bound on all there are, and what there is to say of the best.

    ``is_pinned``: workers may not be in lockstep.
    """

    tried: tuple[Solved, ...]
    bound: float
    is_pinned: bool
    lines: tuple[str, ...]


def _check_staleness(problem: Problem) -> None:
    """Refuse a pinned synchronisation whose gradients lag by more than the user allows, with both values."""
    pinned, most = problem.fixed.get("synchronisation", "bsp"), problem.limits.max_staleness
    least = {"bsp": 0.0, "asp": inf}.get(pinned, 1.0)
    if most is None or least <= most:
        return
    lag, wanted = ("without limit", "unbounded") if least == inf else ("by 1 iteration or more", "1 or more")
    others = "ssp, local_sgd or bsp" if most >= 1 else "bsp"
    raise InfeasibleError(
        f"No plan fits: fix.synchronisation is {pinned}, under which gradients lag {lag}, and "
        f"constraints.max_staleness is {most:g}. Set it to {wanted}, or pin {others}."
    )


def _asynchronous(space: Space, lockstep: Sequence[Solved], search: Search) -> Asynchronous | None:
    """Return the best plans in lockstep without their barrier, where the question allows that."""
    problem, pinned = space.problem, space.problem.fixed.get("synchronisation")
    most = problem.limits.max_staleness
    if most is None:
        most = 0.0 if pinned is None else _ASSUMED
    if pinned == "bsp" or most <= 0 or _BESIDE & problem.fixed.keys():
        return None
    lags = [lag for lag in (1, 2, 4, 8) if lag <= min(most, _MOST_STALENESS)]
    kinds = [(kind, lag) for kind in ("ssp", "local_sgd") if pinned in (None, kind) for lag in lags]
    if pinned == "asp" or (pinned is None and most == inf):
        kinds.append(("asp", 0))
    if not kinds:
        return None
    tried: list[Solved] = []
    for synchronous in lockstep[:_MOST_CONFIGURATIONS]:
        for kind, staleness in kinds:
            if tried and search.is_over:
                break
            chosen = replace(
                synchronous.configuration,
                synchronisation=kind,
                staleness=staleness,
                overlap=None,
                has_barrier=None,
                partition_bytes=None,
                has_priority=None,
            )
            tried.append(_evaluated(problem, chosen))
    least = min(one.objective for one in tried)
    tried.sort(key=lambda one: max(one.objective, least * (1 + SAME)))  # of those that are alike the first: less stale
    best, synchronous_s = tried[0], lockstep[0].objective
    staleness = best.prediction.details["staleness"]
    lines = [
        f"{best.configuration.headline}: asynchronous, gradients lag {staleness['mean']:.2g} iterations in the mean, "
        f"{staleness['most']:.2g} at most"
    ]
    if best.objective < synchronous_s:
        lines.append(
            f"against the best plan in lockstep it wins as long as it needs less than "
            f"{synchronous_s / best.objective:.2f} times the epochs"
        )
    else:
        times = f"{synchronous_s / best.objective:.2f}"
        lines.append(f"the best plan in lockstep takes {times} times as long, and is not stale")
    if pinned and problem.limits.max_staleness is None:
        up_to = "" if pinned == "asp" else f"; up to {_ASSUMED:.0f} was tried"
        lines.append(f"constraints.max_staleness is not set: the pin fix.synchronisation allows any{up_to}")
    per_s = float(sum(space.counts * space.devices / space.sample_s)) if space.sample_s.all() else inf
    all_busy = float(space.most_batch / per_s * iterations_of(problem, space.most_batch)) if per_s else 0.0
    return Asynchronous(
        tried=tuple(tried), bound=min(all_busy, best.objective), is_pinned=bool(pinned), lines=tuple(lines)
    )


# -- why no configuration fits, and by how much what would have to give ------------------------------------------------


def _check_pins(problem: Problem) -> None:
    """Refuse pins that contradict one another, and numbers beyond what the cluster has, before anything is built."""
    fixed, groups = problem.fixed, {group.name: group for group in problem.cluster.machine_groups}
    if fixed.get("barrier") and is_sent_alone(fixed.get("overlap"), None):
        raise InfeasibleError(
            f"No plan fits: fix.overlap: {fixed['overlap']} sends sums early, and behind fix.barrier: true none is. "
            f"Pin overlap none or push, or barrier: false."
        )
    if (pins := sorted(_BESIDE & fixed.keys())) and fixed.get("synchronisation", "bsp") != "bsp":
        raise InfeasibleError(
            f"No plan fits: fix.{pins[0]} says how workers in lockstep exchange, and fix.synchronisation is "
            f"{fixed['synchronisation']}. Drop one of them."
        )
    alone = [key for key in ("partition_bytes", "priority") if fixed.get(key)]
    if alone and not ways_of(problem):
        text = "it is about sums that are sent on their own, and behind a barrier none is."
        mend = "Set calibration.max_overlap, or pin an overlap that sends sums early, or barrier: false."
        if in_way := [key for key in ("barrier", "overlap") if fixed.get(key)]:
            mend = (
                f"Drop fix.{in_way[0]}{' and set calibration.max_overlap' * (problem.calibration.max_overlap is None)}."
            )
        raise SpecError.of([Fault(field=f"fix.{alone[0]}", value=fixed[alone[0]], problem=text, mend=mend)])
    may_serve = [group.count for name, group in groups.items() if fixed.get("servers") in (None, name)]
    working = [groups[name] for name in may_work(groups, fixed.get("device"))]
    there_are = {
        "num_parameter_servers": (max(may_serve, default=0), "machines of one group that may serve"),
        "num_machines": (problem.cluster.num_machines, "machines of the cluster"),
        "num_devices": (sum(group.count * group.devices_per_machine for group in working), "devices that may work"),
    }
    for key, (most, what) in there_are.items():
        if most and fixed.get(key, 0) > most:
            raise InfeasibleError(
                f"No plan fits: fix.{key}: {fixed[key]} is more than the {most} {what}. Pin {most} or less."
            )


def _why_nothing_fits(space: Space) -> InfeasibleError:
    """Return which limits leave no configuration."""
    problem, devices = space.problem, int((space.counts * space.devices).sum())
    if not space.sites:
        return InfeasibleError(
            "No plan fits: no machines may both serve and work as fix.servers and fix.co_located ask. Drop one of them."
        )
    if not space.most_samples.any():
        return _without_memory(space)
    share, batch = space.fixed_share or 1, space.fixed_batch or space.most_batch
    holds = int((space.counts * space.devices * space.most_samples).sum())
    if space.fixed_batch is not None and holds < batch:
        return InfeasibleError(
            f"No plan fits: a batch of {batch} on {devices} devices needs {ceil(batch / devices)} samples on each, and "
            f"their memory holds {holds} in all. Lower the batch to {holds}, or add machines."
        )
    fewest = max(problem.allowed_devices.least * share, int(space.devices.min()) * share)
    if batch < fewest:
        text = f"No plan fits: a batch of {batch} is less than {fewest}, one share for each device that must work."
        return InfeasibleError(f"{text} Raise the batch to {fewest} or more, or use fewer devices.")
    if saturated := [site for site in space.sites if site.saturated]:
        names = ", ".join(dict.fromkeys(site.servers.name for site in saturated))
        return InfeasibleError(
            f"No plan fits: with servers on {names}, {saturated[0].saturated}. Raise calibration.queue.switch, let "
            "other machines serve, or let one machine serve itself."
        )
    return InfeasibleError(_counts_text(space))


def _without_memory(space: Space) -> InfeasibleError:
    """Return how much memory one sample needs, a device's share of the batch, and how much the largest device has."""
    problem = space.problem
    precision = Precision.of(problem.training.dtype, problem.training.optimizer)
    reserve = problem.calibration.memory_reserve_bytes
    memory = data_parallel_memory(problem.dnn, precision, reserve_bytes=reserve)
    samples = space.fixed_share or (1 if space.fixed_batch is None else ceil(space.fixed_batch / _most_workers(space)))
    needed, whole = memory.total_bytes(1), memory.total_bytes(samples)
    largest = max(space.groups, key=lambda group: memory_limit_bytes(problem, group))
    limit = memory_limit_bytes(problem, largest)
    return InfeasibleError.of(
        no_sample_fits(needed, limit, largest.device.name, samples=samples, whole_bytes=whole),
        enough_bytes=whole if len(space.groups) == 1 else inf,
    )


def _most_workers(space: Space) -> int:
    """Return the devices that may work: none of machines that only serve, and no more than limits and pins allow."""
    problem = space.problem
    machines, devices = problem.allowed_machines.most, problem.allowed_devices.most
    found = []
    for site in space.sites:
        serving = 0 if site.co_located else problem.fixed.get("num_parameter_servers", 1)
        counts = [group.count - serving * (group is site.servers) for group in space.groups]
        each = np.sort(np.repeat(space.devices, np.maximum(counts, 0)))[::-1]
        found.append(int(each[: None if machines is None else max(0, machines - serving)].sum()))
    return max(1, min(max(found), max(found) if devices is None else devices))


def _counts_text(space: Space) -> str:
    """Return which numbers of machines, devices and servers were asked for, and how many there are."""
    problem, fixed = space.problem, space.problem.fixed
    limits = {"constraints.devices": problem.limits.devices, "constraints.machines": problem.limits.machines}
    asked = [f"{name} from {one.least} to {one.most or 'all'}" for name, one in limits.items() if one != Range()]
    pins = ("num_parameter_servers", "num_machines", "num_devices", "servers", "co_located", "device", "batch_shares")
    asked += [f"fix.{name}: {fixed[name]}" for name in pins if name in fixed]
    asked += filter(None, [problem.devices_words])
    machines, devices = int(space.counts.sum()), int((space.counts * space.devices).sum())
    return (
        f"No plan fits: no numbers of working machines and servers meet {' and '.join(asked) or 'the batch'} together. "
        f"{machines} machines with {devices} devices may work, and {problem.cluster.num_machines} may serve; servers "
        f"on machines of their own need at least one of them, and co-located ones stand on machines that work; a "
        f"machine that works does so with all its devices. Drop or change one of them."
    )


# -- the answer --------------------------------------------------------------------------------------------------------


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
    _check_staleness(problem)
    _check_pins(problem)
    space = Space(problem)
    search.keep(lambda: _first_plan(space))
    if not len(space.size_bytes):
        raise InfeasibleError(
            "No plan fits: the network has no weights, so that there is nothing for a server to hold."
        )
    if search.is_over:
        raise NoAnswerError(TOO_SHORT)
    piece_bytes = problem.fixed.get("partition_bytes")
    if piece_bytes is not None and (fault := piece_fault(space.size_bytes, piece_bytes)):
        text, mend = fault
        raise SpecError.of([Fault(field="fix.partition_bytes", value=size_words(piece_bytes), problem=text, mend=mend)])
    boxes, silent = ServerBoxes(space, search), bool(problem.limits.max_staleness)
    bound = search_boxes(  # asynchronous ones are not among these
        boxes,
        roots_of(space),
        on_progress=(lambda bound, objective: None) if silent else search.report,
    )
    if not boxes.solved:
        raise boxes.too_many or _why_nothing_fits(space)
    best = boxes.solved[0]
    curve = _curve(boxes) if search.good_enough < best.objective < search.cutoff else []
    if curve and (least := min(curve, key=lambda one: one.objective)).objective < best.objective * (1 - SAME):
        curve = [best, *(one for one in curve if one is not least)]  # the search was cut off before it
        best = least
        boxes.solved.insert(0, best)
    ways = _by_way(boxes) if len(space.ways) > 1 else []
    if ways and (simplest := _simplest([*ways, best])) is not best:
        best = simplest
        boxes.solved.insert(0, best)
    lines, warnings = [*_why(problem, best, boxes), *_curve_lines(problem, best, curve)], []
    if len(ways) > 1:
        texts = (f"{way_of(one).words(problem)}: {one.objective:.4g} {problem.goal.unit}" for one in ways)
        lines.append(f"{problem.goal.name.replace('_', ' ')} by what goes beside computing: {', '.join(texts)}")
    others = [_alternative(one, best, "the best with so many servers") for one in curve]
    others += [
        _alternative(one, best, f"the best with {way_of(one).words(problem)}")
        for one in ways
        if way_of(one) != way_of(best)
    ]
    winner, stale = best, _asynchronous(space, boxes.solved, search)
    if stale is not None:
        bound = stale.bound if stale.is_pinned else min(bound, stale.bound)
        lines += stale.lines
    if stale is not None and (stale.is_pinned or stale.tried[0].objective < best.objective * (1 - SAME)):
        winner = stale.tried[0]
        lines = [*explain(problem, winner.configuration, winner.prediction), *stale.lines]
        others = [_alternative(one, winner, "workers in lockstep") for one in (best, *curve)]
        if stale.is_pinned:  # which workers in lockstep do not keep to
            reason = "the best in lockstep, with another staleness"
            others = [_alternative(one, winner, reason) for one in stale.tried[1:]]
        warnings.append(
            f"{winner.configuration.synchronisation} is asynchronous: its seconds compare with those of synchronous "
            f"plans only as far as it needs no more epochs, which is not modelled"
        )
    return plan_of(
        problem,
        Searched(
            family=NAME,
            not_modelled=NOT_MODELLED,
            solver="branch and bound over counts and shares x placement by greedy, bound and CP-SAT",
            num_candidates=boxes.num_boxes,
            num_solved=len(boxes.bounds_of),
        ),
        configuration=winner.configuration,
        prediction=winner.prediction,
        bound=bound,
        explanation=lines,
        alternatives=others,
        warnings=warnings,
    )


def _first_plan(space: Space) -> Plan:
    """Return some plan: for when the time was over before anything was solved.

    Raises
    ------
    NoAnswerError
        If no configuration is at hand.
    """
    rows = []
    for box in roots_of(space):
        whole, number = Boxes(np.array([box.low]), np.array([box.high])), max(4, _FEW // len(space.sites))
        spread = list(islice(_spread(space, space.sites[box.kind], whole), number))
        rows += _bounded(space, box.kind, spread)
    few_servers = [space.sites[index].way.is_keyed * row[0] for _, index, row in rows]  # of sums on their own: at once
    for _, (_, index, row) in sorted(zip(few_servers, rows, strict=True)):
        given = row_configuration(space, space.sites[index], row)
        if not space.problem.calibration.split_tensors or given.partition_bytes is not None:
            given = replace(given, placement="round_robin")
        try:
            return _plan_of(space.problem, _evaluated(space.problem, given))
        except SpecError:  # even so too many messages to be followed
            continue
    raise NoAnswerError(TOO_SHORT)


def _plan_of(problem: Problem, solved: Solved) -> Plan:
    """Return a plan of which no more is known than what it costs."""
    return plan_of(
        problem,
        Searched(family=NAME, not_modelled=NOT_MODELLED, solver="the first configuration that was found"),
        configuration=solved.configuration,
        prediction=solved.prediction,
        bound=0.0,
        explanation=explain(problem, solved.configuration, solved.prediction),
    )


def _curve(boxes: ServerBoxes) -> list[Solved]:
    """Return the best plans with other numbers of servers: all of few; else around the best, and doubling."""
    space, search = boxes.space, boxes.search
    best = boxes.solved[0].configuration.num_parameter_servers
    roots = roots_of(space)
    least, most = min(box.low[0] for box in roots), max(box.high[0] for box in roots)
    near = [best - 1, best + 1, best // 2, 2 * best, 1, most, best - 2, best + 2, 4 * best, best // 4]
    numbers = [number for number in dict.fromkeys(near) if least <= number <= most and number != best]
    curve = []
    for number in numbers[: max(_CURVE, search.num_alternatives)]:
        if search.is_over:
            break
        solved = [one for one in boxes.solved if one.configuration.num_parameter_servers == number]
        own = ServerBoxes(space, search, solved=solved[:1], work=0.0)
        search_boxes(own, roots_of(space, number), most_boxes=600, most_solved=3)
        curve += own.solved[:1]
    return sorted(curve, key=lambda one: one.configuration.num_parameter_servers)


def _by_way(boxes: ServerBoxes) -> list[Solved]:
    """Return the best plan found for each way of sums; the best plan's servers and workers are tried for all."""
    space, search, best = boxes.space, boxes.search, boxes.solved[0].configuration
    found = []
    for way in space.ways:
        solved = [one for one in boxes.solved if way_of(one) == way][:1]
        own = ServerBoxes(space, search, solved=solved, work=0.0)
        if not search.is_over:
            own.solve_as(best, way)
            search_boxes(own, roots_of(space, way=way), most_boxes=600, most_solved=3)
        found += own.solved[:1]
    return found


def _curve_lines(problem: Problem, best: Solved, curve: Sequence[Solved]) -> list[str]:
    """Return the best seconds found for each number of servers, in one line."""
    if not curve:
        return []
    rows = sorted([*curve, best], key=lambda one: one.configuration.num_parameter_servers)
    texts = (f"{one.configuration.num_parameter_servers}: {one.objective:.4g} {problem.goal.unit}" for one in rows)
    return [
        f"{problem.goal.name.replace('_', ' ')} by the number of servers, the best found for each: {', '.join(texts)}"
    ]


def _why(problem: Problem, best: Solved, boxes: ServerBoxes) -> list[str]:
    """Return what binds, and how the answer was proven."""
    space = boxes.space
    lines = list(explain(problem, best.configuration, best.prediction))
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
    lines += dict.fromkeys(
        f"no servers for other machines stand on {site.servers.name}: {site.saturated}"
        for site in space.sites
        if site.saturated
    )
    lines.append(
        f"{boxes.num_boxes:,} sets of configurations (servers, workers, shares) were bounded, and "
        f"{many(len(boxes.bounds_of), 'configuration')} solved"
    )
    return lines


def _alternative(other: Solved, best: Solved, reason: str) -> Alternative:
    """Return one configuration that lost."""
    return alternative_of(other.configuration.headline, other, best, reason, family=NAME)
