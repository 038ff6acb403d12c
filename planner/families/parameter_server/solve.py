"""Single configurations of parameter servers, solved: the best placement and compression of a row, with a bound.

* *Sliced tensors.* Equal slices on all K servers are best. Servers are equal and, co-located, each has one worker at
  home. (1) After any time t the links of all servers together still have to carry what arrives from then on, so
  that some server ends no sooner than ``t + arriving / (K B)``; equal slices end all servers exactly then. (2) What
  arrives depends on the placement only through the bytes that home workers need not send. What a worker's link has
  passed on by time t is concave in what was handed to it, so that equal parts at home let through the most in total.
  (3) The fullest server, and the worker with the least at home, hold no less than the mean: pulls end soonest, too.
* *Whole tensors*: :func:`planner.solvers.placement.best_placement`, with its own bound.
* *Compression*: :func:`planner.solvers.scalar.minimise` over the share kept, at that placement; pushes take longer the
  more is kept, and compressing takes longer the more is left out.

Every objective is the prediction of its configuration.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.families.answer import iterations_of
from planner.families.parameter_server.configuration import ParameterServerConfiguration
from planner.families.parameter_server.cost import ParameterServerCost
from planner.families.parameter_server.space import Site, Space
from planner.models.compression import Compression
from planner.plan import Prediction
from planner.problem import Problem
from planner.search import Search
from planner.solution import SAME, Status
from planner.solvers.placement import best_placement
from planner.solvers.placement_rows import Placement, arrivals
from planner.solvers.scalar import minimise

__all__ = ["Found", "Incumbents", "quickly_solved", "row_configuration"]

_WORK, _MOST_WORK = 0.1, 1.0  # deterministic seconds of CP-SAT, for one placement and for all; some 6 real ones each
_TABLES = 6  # of tensors and servers, that a placement takes
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
    better: Callable[[], None] = lambda: None  # called with every solved one

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
        if key not in self.seen and self._is_too_large(row):
            self.seen[key] = bound
        if key not in self.seen:
            solved = _solve(self, self.space.sites[site_index], row, bound)
            self.seen[key] = solved.bound
            insort(self.found, solved, key=lambda one: (one.objective, one.configuration.num_parameter_servers))
            self.better()
        self.open_bound = min(self.open_bound, self.seen[key])

    def _is_too_large(self, row: Sequence[int]) -> bool:
        """Whether whole tensors on so many servers would need tables that do not fit: then their bound stays open."""
        if self.space.problem.calibration.split_tensors or row[0] == 1:
            return False
        return not self.search.fits(_TABLES * 8 * row[0] * len(self.space.size_bytes))


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


def quickly_solved(space: Space, site: Site, row: Sequence[int]) -> Found:
    """Return a row with slices, or tensors that are dealt out where none may be split."""
    given = row_configuration(space, site, row)
    if not space.problem.calibration.split_tensors:
        given = replace(given, placement="round_robin")
    return _evaluated(space.problem, given)


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
        evaluate=seconds if site.co_located or not rows.is_whole else None,
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
        """Return the seconds of an iteration but for compressing, in whose rounding they might be lost."""
        parts, _ = ParameterServerCost(problem, removed(kept)).busy_parts_s()
        return sum(seconds for name, seconds in parts.items() if name != "compression")

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
