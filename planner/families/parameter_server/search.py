"""The search of the family ``parameter_server``.

Decisions: whose machines serve, on machines of their own or on working ones; how many servers; how many machines of
each group work, on which shares of the batch; on which server every tensor lies, or that all are sliced; how much of
a gradient is pushed. The outer ones are numbers in boxes (:mod:`planner.families.parameter_server.boxes`): boxes are
split in the order of their lower bounds (:mod:`planner.families.parameter_server.bounds`), until the least bound is no
better than the incumbent (:mod:`planner.families.parameter_server.branch`). A box of one configuration is solved
(:mod:`planner.families.parameter_server.solve`).

Every objective is the prediction of its configuration. What is left unproven, because a limit struck, because
a placement's gap is open, or after so many boxes or solved configurations (which is repeatable), stays in the bound.
Asynchronous training stands in :mod:`planner.families.parameter_server.stale`.
"""

from collections.abc import Sequence

from planner.errors import InfeasibleError, NoAnswerError
from planner.families.answer import TOO_SHORT, alternative_of, plan_of
from planner.families.inner_links import check_inner_links
from planner.families.parameter_server import words
from planner.families.parameter_server.branch import first_rows, roots_of, search_boxes
from planner.families.parameter_server.family import NAME, NOT_MODELLED
from planner.families.parameter_server.infeasible import check_pins, why_nothing_fits
from planner.families.parameter_server.solve import Found, Incumbents, quickly_solved
from planner.families.parameter_server.space import Space
from planner.families.parameter_server.stale import check_staleness, stale_answer
from planner.plan import Alternative, Plan
from planner.problem import Problem
from planner.search import Search
from planner.solution import SAME

__all__ = ["plan"]

_CURVE = 7  # numbers of servers beside the best one, of which the best plan is shown


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
    check_staleness(problem)
    check_pins(problem)
    space = Space(problem)
    search.keep(lambda: _first_plan(space))
    if not len(space.size_bytes):
        raise InfeasibleError(
            "No plan fits: the network has no weights, so that there is nothing for a server to hold."
        )
    if search.is_over:
        raise NoAnswerError(TOO_SHORT)
    incumbents = Incumbents(space=space, search=search)
    incumbents.better = lambda: search.keep(lambda: _plan_of(problem, incumbents.found[0]))
    told = None if problem.limits.max_staleness else search.tell  # asynchronous ones are not among these
    bound = search_boxes(incumbents, roots_of(space), told=told)
    if not incumbents.found:
        raise InfeasibleError(why_nothing_fits(space))
    best = incumbents.found[0]
    is_asked = not incumbents.is_good_enough and best.objective < search.cutoff
    curve = _curve(incumbents) if is_asked else []
    if curve and (least := min(curve, key=lambda one: one.objective)).objective < best.objective * (1 - SAME):
        curve = [best, *(one for one in curve if one is not least)]  # the search was cut off before it
        best = least
        incumbents.found.insert(0, best)
    stale = stale_answer(space, [one.configuration for one in incumbents.found], search)
    lines = [*_why(problem, best, incumbents), *_curve_lines(problem, best, curve), *stale.lines]
    others = [_alternative(one, best) for one in curve]
    if stale.best is not None and (stale.is_pinned or stale.objective < best.objective * (1 - SAME)):
        configuration, prediction = stale.best, stale.prediction
        assert prediction is not None
        lines = [*words.explain(problem, configuration, prediction), *stale.lines]
        winner = Found(configuration=configuration, prediction=prediction, objective=stale.objective, bound=0.0)
        others = [_alternative(one, winner, "workers in lockstep") for one in (best, *curve)]
        if stale.is_pinned:  # which workers in lockstep do not keep to
            tried = [
                Found(configuration=one, prediction=cost, objective=value, bound=0.0)
                for value, one, cost in stale.others
            ]
            others = [_alternative(one, winner, "the best in lockstep, with another staleness") for one in tried]
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


def _first_plan(space: Space) -> Plan:
    """Return some plan: for when the time was over before anything was solved.

    Raises
    ------
    NoAnswerError
        If no configuration is at hand.
    """
    for site_index, row in first_rows(space):
        return _plan_of(space.problem, quickly_solved(space, space.sites[site_index], row))
    raise NoAnswerError(TOO_SHORT)


def _plan_of(problem: Problem, found: Found) -> Plan:
    """Return a plan of which no more is known than what it costs."""
    return plan_of(
        problem,
        family=NAME,
        configuration=found.configuration,
        prediction=found.prediction,
        bound=0.0,
        explanation=words.explain(problem, found.configuration, found.prediction),
        not_modelled=NOT_MODELLED,
        solver="the first configuration that was found",
    )


# -- what else is shown ------------------------------------------------------------------------------------------------


def _curve(incumbents: Incumbents) -> list[Found]:
    """Return the best plans with other numbers of servers: all of few; else around the best, and doubling."""
    space, search = incumbents.space, incumbents.search
    best = incumbents.found[0].configuration.num_parameter_servers
    most = max(int(boxes.high[:, 0].max()) for _, boxes in roots_of(space))
    least = min(int(boxes.low[:, 0].min()) for _, boxes in roots_of(space))
    near = [best - 1, best + 1, best // 2, 2 * best, 1, most, best - 2, best + 2, 4 * best, best // 4]
    numbers = [number for number in dict.fromkeys(near) if least <= number <= most and number != best]
    found = []
    for number in numbers[: max(_CURVE, search.num_alternatives)]:
        if search.is_over:
            break
        known = [one for one in incumbents.found if one.configuration.num_parameter_servers == number]
        own = Incumbents(space=space, search=search, found=known[:1], work_left=0.0)
        search_boxes(own, roots_of(space, number), most_boxes=600, most_solved=3)
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
    lines += dict.fromkeys(
        f"no servers for other machines stand on {site.servers.name}: {site.saturated}"
        for site in space.sites
        if site.saturated
    )
    lines.append(
        f"{incumbents.num_boxes:,} sets of configurations (servers, workers, shares) were bounded, and "
        f"{len(incumbents.seen):,} configurations solved"
    )
    return lines


def _alternative(other: Found, best: Found, reason: str = "the best with so many servers") -> Alternative:
    """Return one configuration that lost."""
    return alternative_of(other.configuration.headline, other, best, reason, family=NAME)
