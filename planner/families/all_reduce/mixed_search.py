"""The search of the family ``all_reduce`` on unlike devices: who takes part, which shares, which fusion, in one proof.

Decisions: how many machines of each group (none, too), and how many devices of each of its machines; where the batch
may vary, the batch; the share of a device of each group; fusion groups; whether and how far gradients are compressed.
Micro-batches are the fewest that fit in each group's memory, as on devices of one type.

Every set of up to eight groups that reach each other is a *team*, with each number that may be the most devices of a
machine. How many devices of each group take part, and batches, are searched for all teams together by branch and bound
over boxes (:mod:`planner.solvers.boxes`, bounds in :mod:`planner.families.all_reduce.mixed_bounds`); a leaf, whose
numbers are fixed, over the ways in which its devices stand in machines (:mod:`planner.families.all_reduce.mixed_team`),
and by enumerating the shares that can beat the incumbent, each with the dynamic programme for fusion
(:mod:`planner.solvers.shares`). It ends with a proof, or after a fixed number of boxes with the bound that is left.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from math import ceil

import numpy as np

from planner.channel import Ends
from planner.cluster import MachineGroup
from planner.errors import InfeasibleError, NoAnswerError
from planner.families.all_reduce import mixed_words as words
from planner.families.all_reduce.compression import compression_line, compression_warnings
from planner.families.all_reduce.configuration import NAME, AllReduceConfiguration
from planner.families.all_reduce.fusion import ends_in_time, fusion_rules, mixed_exchange_of, quick_ends
from planner.families.all_reduce.groups import taking_part
from planner.families.all_reduce.mixed import MixedCost
from planner.families.all_reduce.mixed_boxes import Choice, MixedBoxes
from planner.families.all_reduce.mixed_rows import batches_from, count_ranges
from planner.families.all_reduce.mixed_team import Team
from planner.families.answer import TOO_SHORT, alternative_of, plan_of
from planner.networks import computation_bound
from planner.plan import Alternative, Plan, Prediction
from planner.problem import Problem
from planner.search import Search
from planner.solution import SAME, Status
from planner.solvers.boxes import Found, best_vector
from planner.units import Dimension, format_human

__all__ = ["plan"]

_MOST_GROUPS = 8  # of which all sets are tried
_MOST_BOXES = 20_000
_MOST_BOXES_OF_ALTERNATIVES, _MOST_SOLVED_OF_ALTERNATIVES = 400, 40
_KEPT_INTERVALS = 6
_FIRST_TEAMS = 8  # of which one has a plan, or nothing is known at once


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A choice with its fusion, and what it costs."""

    cost: MixedCost
    configuration: AllReduceConfiguration
    ends: Ends
    prediction: Prediction
    objective: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Other:
    """The best answer of a narrower question, and what it says of the plan's."""

    name: str
    answer: _Answer
    reason: str


def plan(problem: Problem, search: Search, *, not_modelled: Sequence[str]) -> Plan:
    """Return the best plan on unlike devices.

    Raises
    ------
    InfeasibleError
        If nothing fits; the message says what would have to give.
    NoAnswerError
        If the time limit struck before any plan was found.
    """
    if search.is_over:
        raise NoAnswerError(TOO_SHORT)
    search.keep(lambda: _first_plan(problem, not_modelled))
    boxes = MixedBoxes(problem, list(search.watch(_teams(problem), every=8)), search)
    is_whole = not search.is_late
    bound_beyond = _bound_beyond(problem, search)
    told = search.tell if len(taking_part(problem).machine_groups) <= _MOST_GROUPS else None  # else of some sets only
    found = best_vector(
        boxes.roots,
        boxes,
        search,
        split=boxes.split,
        most_boxes=_MOST_BOXES,
        told=told,
        kept=lambda choice: search.keep(lambda: _plan_of(problem, _answer(boxes, choice, is_quick=True), not_modelled)),
    )
    if found.value is None:
        if found.solution.status is Status.INFEASIBLE and is_whole:
            raise InfeasibleError(_why_nothing_fits(problem))
        raise NoAnswerError(TOO_SHORT)
    best, others = _answer(boxes, found.value, is_late=lambda: search.is_late), list[_Other]()
    while True:  # what was cut off before it came to the best is told by a narrower question that did
        others = _decisions(problem, best, search)
        least = min((other.answer for other in others), key=lambda one: one.objective, default=best)
        if least.objective >= best.objective * (1 - SAME):
            break
        best = least
    # Where the time did not come to all teams, nothing is known of theirs but that the samples have to be computed.
    bound = max(found.solution.bound if is_whole else 0.0, computation_bound(problem))
    bound = min(bound, best.objective, max(bound_beyond, computation_bound(problem)))
    decisions = [alternative_of(one.name, one.answer, best, one.reason, family=NAME) for one in others]
    alternatives = [*_fusion_alternatives(best, search), *decisions]
    return plan_of(
        problem,
        family=NAME,
        configuration=best.configuration,
        prediction=best.prediction,
        bound=bound,
        explanation=_why(problem, best, found, alternatives),
        alternatives=alternatives,
        warnings=_warnings(problem, best),
        not_modelled=not_modelled,
        solver="branch and bound over device counts x enumerated shares x dynamic programme over contiguous groups",
        num_candidates=found.num_boxes,
        num_solved=found.num_solved,
    )


def _first_plan(problem: Problem, not_modelled: Sequence[str]) -> Plan:
    """Return some plan: for when the time was over before anything was found.

    Raises
    ------
    NoAnswerError
        If the first teams have none.
    """
    boxes = MixedBoxes(problem, list(islice(_teams(problem), _FIRST_TEAMS)), Search())
    for box in boxes.roots:
        if (choice := boxes.first(box)) is not None:
            return _plan_of(problem, _answer(boxes, choice, is_quick=True), not_modelled)
    raise NoAnswerError(TOO_SHORT)


def _plan_of(problem: Problem, best: _Answer, not_modelled: Sequence[str]) -> Plan:
    """Return a plan of which no more is known than what it costs."""
    return plan_of(
        problem,
        family=NAME,
        configuration=best.configuration,
        prediction=best.prediction,
        bound=0.0,
        explanation=[words.binding(best.cost, best.configuration, best.prediction)],
        warnings=_warnings(problem, best),
        not_modelled=not_modelled,
        solver="the first plan that was found",
    )


# -- teams -----------------------------------------------------------------------------------------------------------


def _teams(problem: Problem) -> Iterator[Team]:
    """Yield every team that the question allows, the largest sets first."""
    cluster = taking_part(problem)
    names, (machines, _) = _strongest(problem), count_ranges(problem)
    most = len(names) if machines.most is None else min(len(names), machines.most)  # every group of a set takes part
    for size in range(most, 0, -1):
        for chosen in combinations(names, size):
            if cluster.of_groups_is_connected(chosen):
                groups = [group for group in cluster.machine_groups if group.name in chosen]
                for caps in _caps_of(problem, groups):
                    cost = MixedCost(problem, [group.name for group in groups], caps)
                    if (cost.most_at_a_time > 0).all() and _has_algorithm(cost):
                        yield from _compressed_teams(cost)


def _strongest(problem: Problem) -> list[str]:
    """Return the groups of which all sets are tried: all, or the fastest where there are too many."""
    groups = taking_part(problem).machine_groups
    order = sorted(range(len(groups)), key=lambda index: (-_speed(problem, groups[index]), index))
    kept = set(order[:_MOST_GROUPS])
    return [group.name for index, group in enumerate(groups) if index in kept]


def _speed(problem: Problem, group: MachineGroup) -> float:
    """Return the samples that all devices of a group compute in a second."""
    profile = problem.profiles[group.device.name]
    sample_s = float(profile.forward_s.sum() + profile.backward_s.sum())
    return group.count * group.devices_per_machine / max(sample_s, 1e-30)


def _caps_of(problem: Problem, groups: Sequence[MachineGroup]) -> Iterator[list[int]]:
    """Yield the most devices of a machine of each group, of which some group uses all; or the pinned number."""
    most = [group.devices_per_machine for group in groups]
    pinned = problem.fixed.get("devices_per_machine")
    if pinned is not None:
        if pinned <= min(most):
            yield [pinned] * len(most)
        return
    for cap in range(max(most), 0, -1):
        yield [min(cap, each) for each in most]


def _has_algorithm(cost: MixedCost) -> bool:
    """Whether some allowed algorithm suits the machines; curves always do."""
    one = np.ones(1, dtype=np.int64)
    return bool(cost.problem.calibration.all_reduce_curves) or bool(cost.closed_forms(one, one))


def _compressed_teams(cost: MixedCost) -> Iterator[Team]:
    """Yield a team without compression, and one for each interval of the share kept where gradients may be compressed.

    With a measured curve, which may fall as sizes grow, compression is not weighed.
    """
    yield Team(cost=cost)
    option = cost.problem.compression
    if option is None or cost.problem.calibration.all_reduce_curves or not cost.gradients.names:
        return
    least = 1 - option.most_removed
    if option.scale_s == 0:
        yield Team(cost=cost, kept=(least, least))
        return
    edges = np.geomspace(least, 1.0, _KEPT_INTERVALS + 1).tolist() if least < 1 else [1.0, 1.0]
    for low, high in zip([least, *edges[1:-1]], [*edges[1:-1], 1.0], strict=True):
        yield Team(cost=cost, kept=(low, high))


def _bound_beyond(problem: Problem, search: Search) -> float:
    """Return a bound over the sets that were not tried, where there are too many groups: all compute, none waits."""
    groups = taking_part(problem).machine_groups
    if len(groups) <= _MOST_GROUPS:
        return float("inf")
    cost = MixedCost(problem, [group.name for group in groups], [group.devices_per_machine for group in groups])
    boxes = MixedBoxes(problem, [Team(cost=cost, has_free_links=True)], search)
    return float(boxes.bounds(boxes.roots, float("inf")).min())


# -- answers ---------------------------------------------------------------------------------------------------------


def _answer(
    boxes: MixedBoxes, choice: Choice, *, is_late: Callable[[], bool] = lambda: False, is_quick: bool = False
) -> _Answer:
    """Return a choice with its best fusion, or a good one where it is late; the cost model says what it costs."""
    cost, compression = boxes.configured(choice)
    bare = cost.configuration(choice.shape.machines, choice.shares, choice.batch, compression=compression)
    exchange = mixed_exchange_of(cost, bare)
    return _with_ends(cost, bare, quick_ends(exchange) if is_quick else ends_in_time(exchange, is_late)[0])


def _with_ends(cost: MixedCost, bare: AllReduceConfiguration, ends: Ends) -> _Answer:
    """Return a configuration with the groups that end at ``ends``."""
    groups = {one.name: one for one in bare.groups}
    rows = [groups[name] for name in cost.names]
    configuration = cost.configuration(
        [one.num_machines for one in rows],
        [one.batch_per_device for one in rows],
        bare.global_batch_size,
        steps=[one.gradient_accumulation_steps for one in rows],
        ends=ends,
        compression=bare.compression,
    )
    prediction = cost.predict(configuration)
    return _Answer(
        cost=cost,
        configuration=configuration,
        ends=ends,
        prediction=prediction,
        objective=prediction.value_of(cost.problem.goal),
    )


def _why(problem: Problem, best: _Answer, found: Found[Choice], alternatives: Sequence[Alternative]) -> tuple[str, ...]:
    """Return what binds, who waits, what each group is worth, and how the answer was proven."""
    configuration = best.configuration
    lines = [words.binding(best.cost, configuration, best.prediction)]
    lines += words.waiting(best.cost, configuration, best.prediction)
    for device in dict.fromkeys(group.device.name for group in best.cost.groups):
        lines.append(f"seconds of the layers on {device}: {problem.profiles[device].origin}")
    idle = [group.name for group in taking_part(problem).machine_groups if group.name not in best.cost.names]
    lines += [f"the machines {name} stay idle: with any of them no plan was found to be faster" for name in idle]
    for one in alternatives:
        if one.name.startswith(_WITHOUT):
            lines.append(f"{one.name.replace('without', 'leaving out')} would cost {one.relative_loss:+.1%}")
    if configuration.compression is not None:
        lines.append(compression_line(configuration))
    for row in configuration.groups:
        if row.gradient_accumulation_steps > 1 and "gradient_accumulation_steps" not in problem.fixed:
            lines.append(
                f"a device of {row.name} cannot hold its {row.batch_per_device} samples at a time: "
                f"{row.gradient_accumulation_steps} micro-batches"
            )
    samples = sum(row.num_devices * row.batch_per_device for row in configuration.groups)
    if samples > configuration.global_batch_size:
        lines.append(
            f"shares in full would make {samples} samples: {samples - configuration.global_batch_size} devices have "
            f"one less and wait for the others"
        )
    lines.append(
        f"{found.num_boxes:,} boxes of device counts were bounded, and {found.num_solved:,} single counts solved over "
        f"all shares and fusions"
    )
    return tuple(lines)


def _warnings(problem: Problem, best: _Answer) -> list[str]:
    """Return what makes this plan doubtful."""
    return compression_warnings(problem, is_used=best.configuration.compression is not None)


# -- alternatives ----------------------------------------------------------------------------------------------------

_WITHOUT = "without the "


def _fusion_alternatives(best: _Answer, search: Search) -> list[Alternative]:
    """Return what the rules for fusion would cost on the devices of the plan."""
    exchange = mixed_exchange_of(best.cost, best.configuration)
    if exchange is None:
        return []
    rows = []
    for name, ends in fusion_rules(exchange, lambda: search.is_late).items():
        other = _with_ends(best.cost, best.configuration, ends)
        rows.append(alternative_of(name, other, best, f"{len(ends)} all-reduce{'s' * (len(ends) > 1)}", family=NAME))
    return rows


def _decisions(problem: Problem, best: _Answer, search: Search) -> list[_Other]:
    """Return the best plan without each group of machines that takes part, and with equal shares."""
    rows: list[_Other] = []
    if len(best.configuration.groups) > 1:
        names = [group.name for group in taking_part(problem).machine_groups]
        for one in best.configuration.groups:
            kept = [name for name in names if name != one.name]
            name = f"{_WITHOUT}{one.num_machines} {one.name} machine{'s' * (one.num_machines > 1)}"
            if taking_part(problem).of_groups_is_connected(kept):
                part = replace(problem, cluster=taking_part(problem).of_groups(kept))
                rows += _best_of(problem, part, name, search)
    is_unequal = len({one.batch_per_device for one in best.configuration.groups}) > 1
    if is_unequal:
        equal = replace(problem, fixed={**problem.fixed, "batch_shares": "equal"})
        rows += _best_of(problem, equal, "equal shares", search)
    return rows


def _best_of(question: Problem, problem: Problem, name: str, search: Search) -> list[_Other]:
    """Return the best plan of a narrower question, found with bounded effort, as a plan of the question itself.

    None where there is none.
    """
    part = search.part(float("inf"), good_enough=float("-inf"))
    if part.is_over:
        return []
    boxes = MixedBoxes(problem, list(part.watch(_teams(problem), every=8)), part)
    if part.is_over or not boxes.roots:
        return []
    found = best_vector(
        boxes.roots,
        boxes,
        part,
        split=boxes.split,
        most_boxes=_MOST_BOXES_OF_ALTERNATIVES,
        most_solved=_MOST_SOLVED_OF_ALTERNATIVES,
    )
    if found.value is None:
        return []
    narrow = _answer(boxes, found.value)
    other = _with_ends(MixedCost.of(question, narrow.configuration.groups), narrow.configuration, narrow.ends)
    proof = "" if found.solution.status is Status.OPTIMAL else ", not proven best"
    return [_Other(name=name, answer=other, reason=f"{other.configuration.headline}{proof}")]


# -- no answer -------------------------------------------------------------------------------------------------------


def _why_nothing_fits(problem: Problem) -> str:
    """Return which limits leave no plan, and how far they would have to give."""
    groups = taking_part(problem).machine_groups
    cost = MixedCost(problem, [group.name for group in groups], [group.devices_per_machine for group in groups])
    needed = cost.memory.total_bytes(1)
    limits = [cost.memory_limit_bytes(group) for group in cost.groups]
    if needed > max(limits):
        size, limit = (format_human(value, Dimension.DATA, 4) for value in (needed, max(limits)))
        return (
            f"No plan fits: even one sample at a time needs {size} on a device, and none may hold more than {limit}. "
            f"Raise memory_per_device to {format_human(needed * 1.001, Dimension.DATA, 4)}, take devices with more "
            f"memory, or another optimizer or dtype."
        )
    boxes = MixedBoxes(problem, [], Search())
    asked = [
        f"{name} {allowed.least} to {'any' if allowed.most is None else allowed.most}"
        for name, allowed in (("machines", boxes.machines), ("devices", boxes.devices))
    ]
    asked += [f"fix.{key} {problem.fixed[key]}" for key in _PINS if key in problem.fixed]
    if curves := problem.calibration.all_reduce_curves:
        asked.append(f"calibration's curves for {', '.join(map(str, sorted(curves)))} devices")
    have = ", ".join(f"{group.count} {group.name} x {group.devices_per_machine}" for group in groups)
    most = batches_from(problem, sum(group.count * group.devices_per_machine for group in groups))[1]
    if most < boxes.devices.least:
        return (
            f"No plan fits: a batch of {most} cannot be split over {boxes.devices.least} devices. Raise it to "
            f"{boxes.devices.least} or more, or use fewer devices."
        )
    return _step_conflict(problem, cost, most) or (
        f"No plan fits: no machines of {have} meet {', '.join(asked)} together. Drop or change one of them."
    )


_PINS = ("devices_per_machine", "gradient_accumulation_steps", "algorithm", "batch_shares")


def _step_conflict(problem: Problem, cost: MixedCost, batch: int) -> str | None:
    """Return why pinned micro-batches leave no plan, or None if they are not the reason."""
    steps = problem.fixed.get("gradient_accumulation_steps")
    if steps is None:
        return None
    counts = np.array([group.count * group.devices_per_machine for group in cost.groups])
    held = int(
        sum(count * min(most, batch) for count, most in zip(counts.tolist(), cost.most_at_a_time.tolist(), strict=True))
    )
    if held * steps >= batch:
        return None
    return (
        f"No plan fits: with fix.gradient_accumulation_steps: {steps}, all devices together hold {held * steps} "
        f"samples of a batch of {batch}. Use {ceil(batch / held)} steps."
    )
