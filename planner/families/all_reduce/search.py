"""The search of the family ``all_reduce``.

Candidates are all sets of unlike machine groups, and on each all pairs (machines m, devices a machine g) that the
limits allow; each has few batches worth trying and, by the memory, one number of micro-batches. A lower bound on each
candidate's objective is computed for all of them at once. They are solved in the order of that bound, each by the
dynamic programme of :mod:`planner.solvers.fusion`, until the next bound is no better than the incumbent. Hence the
answer is the optimum over all candidates and all contiguous groupings.

Two reductions, neither of which loses anything:

* *Micro-batches*: the fewest that fit in memory. More of them leave computation unchanged and shorten the last backward
  pass, during which alone communication is hidden.
* *Batch that may vary up to a maximum*: at a given share and number of micro-batches the largest batch is best, since
  an epoch has in proportion fewer iterations; and so is the largest share at a given number of micro-batches, since
  computation and input grow in proportion to it, and exposed communication does not grow. That leaves three shares: the
  maximum's, rounded up and down, and the largest that fills its micro-batches to the memory's limit.
"""

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from math import ceil

import numpy as np

from planner.channel import Ends
from planner.cost import Affine, Floats
from planner.errors import InfeasibleError, NoAnswerError
from planner.families.all_reduce import mixed_search as all_reduce_mixed_search
from planner.families.all_reduce import words
from planner.families.all_reduce.compression import (
    best_compressed,
    compression_line,
    compression_warnings,
    kept_intervals,
)
from planner.families.all_reduce.cost import AllReduceConfiguration, AllReduceCost, Setting
from planner.families.all_reduce.family import NAME, NOT_MODELLED
from planner.families.all_reduce.fusion import best_ends, ends_in_time, exchange_of, fusion_rules, quick_ends
from planner.families.all_reduce.groups import is_mixed
from planner.families.all_reduce.settings import settings_of, why_nothing_fits
from planner.families.answer import TOO_SHORT, alternative_of, iterations_of, plan_of
from planner.plan import Alternative, Plan, Prediction
from planner.problem import Problem
from planner.search import Search
from planner.solution import SAME
from planner.solvers.fusion import optimal_groups

__all__ = ["plan"]

_MOST_GROUPS = 8  # of unlike machines, of which all sets are tried
_FIRST = 4096  # settings, of which the one with the most devices is given where the time was over before any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """One setting on some groups of machines, with the lower bound of its objective."""

    cost: AllReduceCost
    setting: Setting
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A solved candidate."""

    cost: AllReduceCost
    setting: Setting
    ends: Ends
    configuration: AllReduceConfiguration
    prediction: Prediction
    objective: float
    bound: float = float("inf")  # of the setting, where compression leaves something open


def plan(problem: Problem, search: Search) -> Plan:
    """Return the best plan of this family, and as many runners-up in number of devices as asked for.

    Raises
    ------
    InfeasibleError
        If nothing fits; the message says what would have to give, and by how much.
    NoAnswerError
        If the time limit struck before the first candidate was solved.
    """
    if is_mixed(problem):
        return all_reduce_mixed_search.plan(problem, search, not_modelled=NOT_MODELLED)
    whole = AllReduceCost(problem)
    search.keep(lambda: _first_plan(whole))
    candidates = [one for cost in _sets_of_groups(whole) for one in _candidates(cost, search)]
    candidates.sort(key=lambda one: (one.bound, one.setting.num_devices, len(one.cost.machines)))
    if not candidates:
        raise InfeasibleError(why_nothing_fits(whole))
    found, bound = _search(candidates, search, is_told=_tries_all_sets(whole))
    best = found[0]
    bound = min([bound, best.objective, _bound_of_other_sets(whole, best, search), *(one.bound for one in found)])
    cost, num_solved = best.cost, len(found)
    return plan_of(
        problem,
        family=NAME,
        configuration=best.configuration,
        prediction=best.prediction,
        bound=bound,
        explanation=_why(cost, best, len(candidates), num_solved),
        alternatives=[
            *_fusion_alternatives(cost, best, search),
            *_other_settings(best, found[1 : search.num_alternatives + 1]),
        ],
        warnings=compression_warnings(problem, is_used=best.setting.compression is not None),
        not_modelled=NOT_MODELLED,
        solver="bounded enumeration x dynamic programme over contiguous groups",
        num_candidates=len(candidates),
        num_solved=num_solved,
    )


def _first_plan(whole: AllReduceCost) -> Plan:
    """Return some plan: for when the time was over before any candidate was solved.

    Raises
    ------
    NoAnswerError
        If there is no setting.
    """
    settings = list(islice(settings_of(whole), _FIRST))
    if not settings:
        raise NoAnswerError(TOO_SHORT)
    setting = max(settings, key=lambda one: one.num_devices)
    found = _found(whole, setting, quick_ends(exchange_of(whole, setting)))
    return plan_of(
        whole.problem,
        family=NAME,
        configuration=found.configuration,
        prediction=found.prediction,
        bound=0.0,
        explanation=[words.binding(whole, found.configuration, found.prediction)],
        not_modelled=NOT_MODELLED,
        solver="the first setting, grouped by a rule",
    )


def _search(candidates: Sequence[_Candidate], search: Search, *, is_told: bool) -> tuple[list[_Found], float]:
    """Return what was solved, the best first, and a bound on all that was not.

    ``is_told``: whether there are no other candidates, so that it may be told how far the search is.
    """
    found: list[_Found] = []
    num_alternatives = search.num_alternatives
    for candidate in candidates:
        has_enough = len(found) > num_alternatives
        enough = found[num_alternatives].objective * (1 - SAME) if has_enough else float("inf")
        if candidate.bound >= enough:
            break
        if found and (found[0].objective <= search.good_enough or candidate.bound >= search.cutoff):
            return found, candidate.bound
        if search.is_over:
            if found:
                return found, candidate.bound
            raise NoAnswerError(TOO_SHORT)
        if has_enough and _relaxed(candidate) >= enough:
            continue
        least = found[0].objective if found else float("inf")
        solved = _solve(candidate, search, enough, least)
        insort(found, solved, key=lambda one: (one.objective, one.setting.num_devices))
        if is_told:
            search.tell(min([candidate.bound, *(one.bound for one in found)]), found[0].objective)
    return found, float("inf")


# -- candidates ------------------------------------------------------------------------------------------------------


def _sets_of_groups(whole: AllReduceCost) -> Iterator[AllReduceCost]:
    """Yield the costs on every set of machine groups, the whole one first.

    What an iteration costs on a tree of links depends on which groups take part and on how many machines do, not
    on which of their equal machines. Hence all sets of groups are all there is to choose, while they are few.
    """
    yield whole
    names = [group.name for group in whole.cluster.machine_groups]
    if not whole.cluster.is_uniform and len(names) <= _MOST_GROUPS:
        for size in range(1, len(names)):
            for chosen in combinations(names, size):
                if whole.cluster.of_groups_is_connected(chosen):
                    yield AllReduceCost(whole.problem, chosen)


def _candidates(cost: AllReduceCost, search: Search) -> list[_Candidate]:
    """Return every setting that the question allows and the memory holds, with its lower bound."""
    settings = []
    for setting in settings_of(cost):
        settings.append(setting)
        if not len(settings) % 4096 and search.is_over:
            raise NoAnswerError(TOO_SHORT)
    if not settings:
        return []
    bounds = _lower_bounds(cost, settings)
    return [
        _Candidate(cost=cost, setting=one, bound=bound) for one, bound in zip(settings, bounds.tolist(), strict=True)
    ]


def _lower_bounds(cost: AllReduceCost, settings: Sequence[Setting]) -> Floats:
    """Return, for every setting, an objective that no grouping can beat.

    An iteration lasts at least as long as its input, and as computation and update with what communication is exposed.
    Whatever the groups, all gradients from some one on, in ready order, are sent after that one is ready. However they
    are split, that takes no less than one transfer of all their bytes, since the least of affine costs is concave.
    Nothing is counted where the cost is a curve.
    """
    shares = np.array([one.batch_per_device for one in settings], dtype=float)
    micro = np.array([ceil(one.batch_per_device / one.num_microbatches) for one in settings], dtype=float)
    profile = cost.profile
    backward_s = float(profile.backward_s.sum())
    step_s = (float(profile.forward_s.sum()) + backward_s) * shares
    exposed_s = np.zeros(len(settings))
    if not cost.problem.calibration.all_reduce_curves:
        exposed_s = np.full(len(settings), np.inf)
        for kept, compression_s in kept_intervals(cost.problem):
            late_s = np.maximum(_least_finish_s(cost, settings, micro, kept) - micro * backward_s, 0.0)
            exposed_s = np.minimum(exposed_s, late_s + compression_s)
    busy_s = step_s + exposed_s + profile.update_s
    input_s = np.array([cost.input(one).bound_s for one in settings])
    batches = np.array([one.global_batch_size for one in settings], dtype=float)
    bounds: Floats = np.maximum(busy_s, input_s) * iterations_of(cost.problem, batches)
    return bounds


def _least_finish_s(cost: AllReduceCost, settings: Sequence[Setting], micro: Floats, kept: float) -> Floats:
    """Return, for every setting, the earliest end of all transfers, from the start of the last backward pass.

    ``kept`` is the share of all bytes that is sent.
    """
    machines, devices = zip(*((one.num_machines, one.devices_per_machine) for one in settings), strict=True)
    forms = list(cost.closed_forms(machines, devices).values())
    gradients = cost.gradients
    still_bytes = np.cumsum(gradients.size_bytes[::-1])[::-1] * kept
    finish_s = np.zeros(len(settings))
    for ready_s, size_bytes in zip(gradients.ready_s_per_sample.tolist(), still_bytes.tolist(), strict=True):
        transfer_s = np.min([form.startup_s + form.per_byte_s * size_bytes for form in forms], axis=0)
        finish_s = np.maximum(finish_s, micro * ready_s + transfer_s)
    return finish_s


def _relaxed(candidate: _Candidate) -> float:
    """Return a closer bound on one candidate, some twenty times as fast as solving it.

    The best groups under an affine cost below all algorithms', which has the least start-up and the least seconds a
    byte.
    """
    cost, setting = candidate.cost, candidate.setting
    fitted = cost.problem.calibration
    forms = list(cost.transfer_costs(setting).values())
    affine = [form for form in forms if isinstance(form, Affine)]
    may_compress = cost.problem.compression is not None
    if setting.num_devices == 1 or len(affine) < len(forms) or not cost.gradients.names or may_compress:
        return candidate.bound
    below = Affine(startup_s=min(one.startup_s for one in affine), per_byte_s=min(one.per_byte_s for one in affine))
    gradients, ready_s = cost.gradients, cost.ready_s(setting)
    solution = optimal_groups(ready_s, gradients.size_bytes, below, wait=fitted.wait, timeout_s=fitted.timeout_s)
    step = cost.step(setting)
    busy_s = step.computation_s + step.update_s + max(0.0, solution.bound - step.last_backward_s)
    iterations = float(iterations_of(cost.problem, setting.global_batch_size))
    return max(candidate.bound, busy_s * iterations)


def _solve(candidate: _Candidate, search: Search, enough: float, least: float = float("inf")) -> _Found:
    """Return the best grouping of one setting, its objective re-evaluated by the cost model.

    Where gradients may be compressed, with the best share kept, unless that is proven to be no better than ``enough``;
    one that is proven to lose against ``least`` is only roughly the best.
    """
    cost, setting = candidate.cost, candidate.setting
    ends, is_best = ends_in_time(exchange_of(cost, setting), lambda: search.is_late)
    plain = _found(cost, setting, ends)
    if not is_best:
        return replace(plain, bound=_relaxed(candidate))
    compressed, bound_s = best_compressed(
        cost,
        setting,
        search,
        limit_s=_limit_s(cost, setting, min(enough, plain.objective)),
        least_s=_limit_s(cost, setting, least),
    )
    bound = bound_s * float(iterations_of(cost.problem, setting.global_batch_size))
    if compressed is None:
        return replace(plain, bound=bound)
    other = _found(cost, compressed, best_ends(exchange_of(cost, compressed)))
    return replace(min(plain, other, key=lambda one: one.objective), bound=bound)


def _limit_s(cost: AllReduceCost, setting: Setting, objective: float) -> float:
    """Return the seconds of an iteration at which a setting has an objective."""
    return objective / float(iterations_of(cost.problem, setting.global_batch_size))


def _found(cost: AllReduceCost, setting: Setting, ends: Ends) -> _Found:
    """Return a setting and grouping with what it costs."""
    configuration = cost.configuration(setting, ends)
    prediction = cost.predict(configuration)
    return _Found(
        cost=cost,
        setting=setting,
        ends=ends,
        configuration=configuration,
        prediction=prediction,
        objective=prediction.value_of(cost.problem.goal),
    )


def _tries_all_sets(whole: AllReduceCost) -> bool:
    """Whether every set of groups of machines is tried."""
    return whole.cluster.is_uniform or len(whole.cluster.machine_groups) <= _MOST_GROUPS


def _bound_of_other_sets(whole: AllReduceCost, best: _Found, search: Search) -> float:
    """Return a bound over the sets of machines that were not tried, where there are too many groups to try all.

    Every machine is then taken to be as good as the best one in everything.
    """
    if _tries_all_sets(whole):
        return float("inf")
    better = AllReduceCost(replace(whole.problem, cluster=whole.cluster.idealised()))
    bound = float("inf")
    for candidate in sorted(_candidates(better, search), key=lambda one: one.bound):
        if candidate.bound >= min(bound, best.objective):
            break
        if search.is_over:
            return min(bound, candidate.bound)
        solved = _solve(candidate, search, float("inf"))
        bound = min(bound, solved.objective, solved.bound)
    return bound


def _why(cost: AllReduceCost, best: _Found, num_candidates: int, num_solved: int) -> tuple[str, ...]:
    """Return what binds, how much of it, and how the answer was proven."""
    prediction = best.prediction
    lines = [words.binding(cost, best.configuration, prediction)]
    lines.append(f"seconds of the layers: {cost.profile.origin}")
    setting = best.setting
    if setting.compression is not None:
        lines.append(compression_line(setting))
    if setting.num_microbatches > 1 and "gradient_accumulation_steps" not in cost.problem.fixed:
        lines.append(
            f"a device cannot hold its {setting.batch_per_device} samples at a time: {setting.num_microbatches} "
            f"micro-batches, "
            f"whose gradients are added up before they are exchanged"
        )
    if setting.global_batch_size % setting.num_devices:
        lines.append(
            f"{setting.num_devices} devices do not divide the batch: some have one sample less and wait for the others"
        )
    if num_candidates > 1:
        lines.append(
            f"{num_candidates:,} settings (machines, devices of each, batch) are possible; {num_solved:,} had to "
            f"be solved, "
            f"the others' bounds are no better"
        )
    return tuple(lines)


# -- alternatives ---------------------------------------------------------------------------------------------------


def _fusion_alternatives(cost: AllReduceCost, best: _Found, search: Search) -> list[Alternative]:
    """Return what the rules for fusion would cost on the devices of the plan."""
    exchange = exchange_of(cost, best.setting)
    if exchange is None:
        return []
    rows = []
    for name, ends in fusion_rules(exchange, lambda: search.is_late).items():
        other = _found(cost, best.setting, ends)
        reason = f"{len(ends)} all-reduce{'s' * (len(ends) > 1)}"
        rows.append(alternative_of(name, other, best, reason, family=NAME))
    return rows


def _other_settings(best: _Found, others: Sequence[_Found]) -> list[Alternative]:
    """Return the runners-up in number of devices."""
    reason = "each with its best fusion"
    return [alternative_of(_devices(other.setting), other, best, reason, family=NAME) for other in others]


def _devices(setting: Setting) -> str:
    """Return ``32 devices on 4 machines``."""
    return f"{setting.num_devices} devices on {setting.num_machines} machine{'s' * (setting.num_machines > 1)}"
