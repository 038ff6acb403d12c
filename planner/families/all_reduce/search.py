"""The search of the family ``all_reduce``: who takes part, which shares, which fusion, in one proof.

Decisions: how many machines of each kind (none, too), and how many devices of each of its machines; where the batch may
vary, the batch; the share of a device of each kind; fusion groups; whether and how far gradients are compressed.
Micro-batches are the fewest that fit in each kind's memory: more of them leave computation unchanged and shorten the
last backward pass, during which alone communication is hidden.

Every set of up to eight groups of machines that reach each other is a *team*, with each number that may be the most
devices of a machine. On heterogeneous devices each group is a kind of its own, of which any machines take part;
homogeneous ones are one kind, and machines are taken in the order of the ring.

How many devices of each kind take part, and batches, are searched for all teams together by branch and bound over boxes
(:mod:`planner.solvers.branch_and_bound`, bounds in :mod:`planner.families.all_reduce.bounds`). A leaf, whose numbers
are fixed, is searched over the ways in which its devices stand in machines (:mod:`planner.families.all_reduce.team`),
and by enumerating the shares that can beat the incumbent, each with the dynamic programme for fusion
(:mod:`planner.solvers.shares`). It ends with a proof, or after a fixed number of boxes with the bound that is left.

On homogeneous devices all leaves are bounded at once and solved in the order of their bounds. Where the batch may vary,
at a given share and number of micro-batches the largest batch is best, since an epoch has in proportion fewer
iterations; and so is the largest share at a given number of micro-batches, since computation and input grow in
proportion to it, and exposed communication does not grow. That leaves three shares: the maximum's, rounded up and down,
and the largest that fills its micro-batches to the memory's limit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, islice
from math import ceil, inf

import numpy as np

from planner.channel import Ends
from planner.cost import Floats
from planner.errors import InfeasibleError, NoAnswerError
from planner.families.all_reduce import cost as words
from planner.families.all_reduce.bounds import AllReduceBoxes, Choice
from planner.families.all_reduce.configuration import (
    NAME,
    AllReduceConfiguration,
    is_heterogeneous,
    one_type,
    taking_part,
)
from planner.families.all_reduce.cost import NOT_MODELLED, AllReduceCost, Ints
from planner.families.all_reduce.fusion import (
    bucket_rules,
    by_tensor,
    ends_in_time,
    exchange_of,
    fusion_rules,
    quick_ends,
)
from planner.families.all_reduce.team import Team, batches_from
from planner.families.answer import (
    TOO_SHORT,
    CountBounds,
    Searched,
    alternative_of,
    in_company,
    iterations_of,
    no_sample_fits,
    plan_of,
)
from planner.frozen import frozen
from planner.networks import computation_bound
from planner.plan import Alternative, Plan, Prediction
from planner.problem import Problem, Range
from planner.search import Search
from planner.solution import BELOW, SAME, Status
from planner.solvers.branch_and_bound import BestVectors, Box, Effort, best_vector
from planner.units import Dimension, format_human

_MOST_BOXES = 20_000  # of heterogeneous devices
_MOST_BOXES_OF_ALTERNATIVES, _MOST_SOLVED_OF_ALTERNATIVES = 400, 40
_MOST_GROUPS = 8  # of machines, of which all sets are tried
_KEPT_INTERVALS = 6  # of the share of gradients kept on heterogeneous devices, each a team
_FIRST_TEAMS, _FIRST_BOXES = 8, 4096  # of which one has a plan, or nothing is known at once
_FEWEST = tuple(2**one for one in range(1, 13))  # machines of several kinds, at least
_WITHOUT = "without the "
_TELLING = (
    1e-4  # by which a framework's buckets, which cut tensors, are better than the plan's groups, to be worth words
)


@frozen
class _Answer:
    """A choice with its fusion, and what it costs."""

    cost: AllReduceCost
    configuration: AllReduceConfiguration
    ends: Ends
    prediction: Prediction
    objective: float


@frozen
class _Other:
    """Another answer, and what it says of the plan's."""

    name: str
    answer: _Answer
    reason: str


def plan(problem: Problem, search: Search) -> Plan:
    """Return the best plan of this family, on homogeneous devices with as many runners-up as asked for.

    Raises
    ------
    InfeasibleError
        If nothing fits; the message says what would have to give, and by how much.
    NoAnswerError
        If the time limit struck before any plan was found.
    """
    if search.is_over:
        raise NoAnswerError(TOO_SHORT)
    search.keep(lambda: _first_plan(problem))
    boxes = AllReduceBoxes(problem, list(search.watch(teams_of(problem), every=8)), search)
    num_roots, is_whole, is_one_kind = len(boxes.roots), not search.is_late, not is_heterogeneous(problem)
    found = best_vector(
        boxes.roots,
        boxes,
        search,
        split=boxes.split,
        effort=Effort(
            most_boxes=inf if is_one_kind else _MOST_BOXES,
            most_solved=inf if is_one_kind else _MOST_BOXES,
            num_best=1 + search.num_alternatives * is_one_kind,
        ),
        on_progress=search.report if _tries_all_sets(problem) else lambda bound, objective: None,
        on_better=lambda choice: search.keep(lambda: _quick_plan(problem, _answer(boxes, choice, is_quick=True))),
    )
    if found.value is None:
        if found.solution.status is Status.INFEASIBLE and is_whole:
            raise InfeasibleError(_why_nothing_fits(problem))
        raise NoAnswerError(TOO_SHORT)
    best, *others = (_answer(boxes, choice, is_late=lambda: search.is_late) for _, choice in found.best)
    narrower: list[_Other] = []
    while True:  # what was cut off before it came to the best is told by a narrower question that did
        narrower = _decisions(problem, best, search)
        least = min((other.answer for other in narrower), key=lambda one: one.objective, default=best)
        if least.objective >= best.objective * (1 - SAME):
            break
        best = least
    for one in others:
        devices, machines = one.configuration.num_devices, one.configuration.num_machines
        name = f"{devices} devices on {machines} machine{'s' * (machines > 1)}"
        narrower.append(_Other(name=name, answer=one, reason="each with its best fusion"))
    # Where the time did not come to all teams, nothing is known of theirs but that the samples have to be computed.
    bound = max(found.bound if is_whole else 0.0, computation_bound(problem))
    if not _tries_all_sets(problem):
        bound = min(bound, max(_bound_beyond(problem, best.objective, search), computation_bound(problem)))
    fused = [] if search.is_brief else _by_other_rules(best, lambda: search.is_late)
    narrow = [alternative_of(one.name, one.answer, best, one.reason, family=NAME) for one in narrower]
    return plan_of(
        problem,
        Searched(
            family=NAME,
            not_modelled=NOT_MODELLED,
            solver="branch and bound over device counts x enumerated shares x dynamic programme over contiguous groups",
            num_candidates=found.num_boxes,
            num_solved=found.num_solved,
        ),
        configuration=best.configuration,
        prediction=best.prediction,
        bound=min(bound, best.objective),
        explanation=_why(problem, best, found, narrow, num_roots),
        alternatives=[*fused, *narrow],
        warnings=_warnings(problem, best),
    )


def _by_other_rules(best: _Answer, is_late: Callable[[], bool]) -> list[Alternative]:
    """Return the plan's devices with the groups of papers, and with the buckets of frameworks, which cut tensors.

    Buckets that are better for it are outside of what was searched: their row is that of the same rule between layers,
    and its reason says what they take.
    """
    found: list[Alternative] = []
    of_tensors = by_tensor(best.cost, best.configuration)
    for cost, rules in ((best.cost, fusion_rules), (of_tensors, bucket_rules)):
        exchange, own = exchange_of(cost, best.configuration), exchange_of(best.cost, best.configuration)
        between_layers: dict[str, Ends] = {}
        for name, ends in ({} if exchange is None else rules(exchange, is_late)).items():
            other, number, more = _with_ends(cost, best.configuration, ends), len(ends), ""
            if other.objective < best.objective and own is not None and cost is not best.cost:
                if (saved := 1 - other.objective / best.objective) > _TELLING:
                    more = f", {saved:.2%} less than the plan if cut between tensors (calibration.fusion_unit: tensor)"
                between_layers = between_layers or rules(own, is_late)
                ends = between_layers.get(name, best.ends)  # noqa: PLW2901
                other, number = _with_ends(best.cost, best.configuration, ends), len(ends)
            reason = f"{number} all-reduce{'s' * (number > 1)}{more}"
            found.append(alternative_of(name, other, best, reason, family=NAME))
    return found


def _first_plan(problem: Problem) -> Plan:
    """Return some plan: for when the time was over before anything was found.

    Raises
    ------
    NoAnswerError
        If the first boxes have none.
    """
    is_one_kind = not is_heterogeneous(problem)
    boxes = AllReduceBoxes(problem, list(islice(teams_of(problem), _FIRST_TEAMS)), Search())
    first = list(islice(boxes.root_boxes(), _FIRST_BOXES))
    for box in sorted(first, key=lambda box: -box.high[-1]) if is_one_kind else first:
        if (choice := boxes.first(box)) is not None:
            return _quick_plan(problem, _answer(boxes, choice, is_quick=True))
    raise NoAnswerError(TOO_SHORT)


def _quick_plan(problem: Problem, best: _Answer) -> Plan:
    """Return a plan of which no more is known than what it costs."""
    return plan_of(
        problem,
        Searched(family=NAME, not_modelled=NOT_MODELLED, solver="the first plan that was found"),
        configuration=best.configuration,
        prediction=best.prediction,
        bound=0.0,
        explanation=[words.binding(best.cost, best.configuration, best.prediction)],
        warnings=_warnings(problem, best),
    )


def _tries_all_sets(problem: Problem) -> bool:
    """Whether every set of groups of machines is tried."""
    cluster = taking_part(problem)
    is_uniform = not is_heterogeneous(problem) and cluster.is_uniform
    return is_uniform or len(cluster.machine_groups) <= _MOST_GROUPS


def teams_of(problem: Problem, *, is_one_kind: bool | None = None) -> Iterator[Team]:
    """Yield every team that the question allows, the largest sets first.

    ``is_one_kind``: whether all devices are taken for one kind; None: where they are homogeneous.

    What an iteration costs on a tree of links depends on which groups take part and on how many machines do, not on
    which of their equal machines. Hence all sets of groups are all there is to choose, while they are few; of too many,
    the fastest heterogeneous ones, or all homogeneous ones together.
    """
    cluster, machines, pinned = taking_part(problem), problem.allowed_machines, problem.fixed.get("devices_per_machine")
    is_one_kind = not is_heterogeneous(problem) if is_one_kind is None else is_one_kind
    groups = list(cluster.machine_groups)
    sizes = range(len(groups), 0, -1)
    if is_one_kind and (cluster.is_uniform or len(groups) > _MOST_GROUPS):
        sizes = range(len(groups), len(groups) - 1, -1)
    elif not is_one_kind:  # every group of a set takes part
        seconds = {name: float((one.forward_s + one.backward_s).sum()) for name, one in problem.profiles.items()}
        speeds = [one.count * one.devices_per_machine / max(seconds[one.device.name], 1e-30) for one in groups]
        order = sorted(range(len(groups)), key=lambda index: -speeds[index])
        groups = [groups[index] for index in sorted(order[:_MOST_GROUPS])]
        sizes = range(min(len(groups), len(groups) if machines.most is None else machines.most), 0, -1)
    for size in sizes:
        for chosen in combinations(groups, size):
            names = [group.name for group in chosen]
            if not cluster.of_groups_is_connected(names):
                continue
            most = [group.devices_per_machine for group in chosen]
            if is_one_kind:
                cost, most = AllReduceCost.homogeneous(problem, names if size < len(groups) else ()), [min(most)]
            else:
                cost = AllReduceCost.heterogeneous(problem, names, most)
            if not (cost.most_at_a_time > 0).all():
                continue
            # Of the caps on devices of a machine, some group uses all of its own.
            caps = range(max(most), 0, -1) if pinned is None else [pinned] * (pinned <= min(most))
            for cap in caps:
                team = Team(cost=cost.with_devices([cap if pinned else min(cap, each) for each in most]))
                # Some allowed algorithm has to suit the machines; curves always do.
                if problem.calibration.all_reduce_curves or team.cost.algorithms(is_even=team.is_level):
                    yield team
                    yield from _compressed(team)


def _compressed(team: Team) -> Iterator[Team]:
    """Yield a team of heterogeneous devices for each interval of the share kept, where gradients may be compressed.

    With a measured curve, which may fall as sizes grow, compression is not weighed. A leaf of homogeneous devices is
    solved with and without.
    """
    option = team.cost.problem.compression
    is_curve = bool(team.cost.problem.calibration.all_reduce_curves)
    if option is None or is_curve or not team.cost.gradients.names or team.cost.is_homogeneous:
        return
    least = 1 - option.most_removed
    if option.scale_s == 0:
        yield replace(team, kept=(least, least))
        return
    edges = np.geomspace(least, 1.0, _KEPT_INTERVALS + 1).tolist() if least < 1 else [1.0, 1.0]
    for low, high in zip([least, *edges[1:-1]], [*edges[1:-1], 1.0], strict=True):
        yield replace(team, kept=(low, high))


def _bound_beyond(problem: Problem, objective: float, search: Search) -> float:
    """Return a bound over the sets that were not tried, where there are too many groups to try all.

    All heterogeneous devices compute, and none waits; every homogeneous machine is as good as the best in everything.
    """
    if is_heterogeneous(problem):
        groups = taking_part(problem).machine_groups
        devices = [group.devices_per_machine for group in groups]
        cost = AllReduceCost.heterogeneous(problem, [group.name for group in groups], devices)
        boxes = AllReduceBoxes(problem, [Team(cost=cost, has_free_links=True)], search)
        return float(boxes.bounds(boxes.roots, float("inf")).min())
    better = replace(problem, cluster=one_type(problem).idealised())
    part = search.part(float("inf"), good_enough=float("-inf"), cutoff=objective)
    boxes = AllReduceBoxes(better, list(part.watch(teams_of(better), every=8)), part)
    if part.is_late or not boxes.roots:
        return 0.0 if part.is_late else float("inf")
    return best_vector(boxes.roots, boxes, part, effort=Effort(most_boxes=inf, most_solved=inf)).bound


def _answer(
    boxes: AllReduceBoxes, choice: Choice, *, is_late: Callable[[], bool] = lambda: False, is_quick: bool = False
) -> _Answer:
    """Return a choice with its best fusion, or a good one where it is late; the cost model says what it costs."""
    cost, compression = boxes.configured(choice)
    bare = cost.configuration(choice.shape.machines, choice.shares, choice.batch, compression=compression)
    ends = choice.ends
    if ends is None:
        exchange = exchange_of(cost, bare)
        ends = quick_ends(exchange) if is_quick else ends_in_time(exchange, is_late)[0]
    return _with_ends(cost, bare, ends)


def _with_ends(cost: AllReduceCost, bare: AllReduceConfiguration, ends: Ends) -> _Answer:
    """Return a configuration with the groups that end at ``ends``."""
    configuration = cost.fused(bare, ends)
    prediction = cost.predict(configuration)
    objective = prediction.value_of(cost.problem.goal)
    return _Answer(cost=cost, configuration=configuration, ends=ends, prediction=prediction, objective=objective)


def _why(
    problem: Problem, best: _Answer, found: BestVectors[Choice], alternatives: Sequence[Alternative], num_settings: int
) -> tuple[str, ...]:
    """Return what binds, who waits, what each group is worth, and how the answer was proven."""
    configuration, cost = best.configuration, best.cost
    lines = [words.binding(cost, configuration, best.prediction), *words.waiting(cost, best.prediction)]
    for device in dict.fromkeys(group.device.name for group in cost.groups):
        of = "" if cost.is_homogeneous else f" on {device}"
        lines.append(f"seconds of the layers{of}: {problem.profiles[device].origin}")
    if not cost.is_homogeneous:
        idle = [group.name for group in taking_part(problem).machine_groups if group.name not in cost.names]
        lines += [f"the machines {name} stay idle: with any of them no plan was found to be faster" for name in idle]
    for one in alternatives:
        if one.name.startswith(_WITHOUT):
            lines.append(f"{one.name.replace('without', 'leaving out')} would cost {one.relative_loss:+.1%}")
    if configuration.compression is not None:
        time = format_human(configuration.compression_s, Dimension.TIME)
        removed = float(configuration.compression.removed)
        lines.append(f"{removed:.1%} of every gradient is left out, which takes {time} an iteration")
    for row in cost.rows_of(configuration):
        if row.gradient_accumulation_steps > 1 and "gradient_accumulation_steps" not in problem.fixed:
            lines.append(
                f"a device{f' of {row.name}' if row.name else ''} cannot hold its {row.batch_per_device} samples at a "
                f"time: {row.gradient_accumulation_steps} micro-batches, whose gradients are added up before they are "
                f"sent"
            )
    samples = sum(row.num_devices * row.batch_per_device for row in configuration.shares)
    if samples > configuration.global_batch_size:
        lines.append(
            f"shares in full would make {samples} samples: {samples - configuration.global_batch_size} devices have "
            f"one less and wait for the others"
        )
    if not cost.is_homogeneous:
        lines.append(
            f"{found.num_boxes:,} boxes of device counts were bounded, and {found.num_solved:,} single counts solved "
            f"over all shares and fusions"
        )
    elif num_settings > 1:
        lines.append(
            f"{num_settings:,} settings (machines, devices of each, batch) are possible; {found.num_solved:,} had to "
            f"be solved, the others' bounds are no better"
        )
    return tuple(lines)


def _warnings(problem: Problem, best: _Answer) -> list[str]:
    """Return what makes a plan doubtful: compression, the want of it, and switches that have to add up."""
    lines = []
    if any(group.algorithm == "in_network" for group in best.configuration.fusion_groups):
        lines.append(
            "in_network: the switches are taken to add up (NVLink SHARP inside machines, InfiniBand SHARP between them)"
            if "in_network" in problem.calibration.algorithms or not problem.cluster.reduces
            else "in_network: the network's switches add up, as the cluster says; inside machines rings do"
        )
    if best.configuration.compression is not None:
        lines.append("gradients lose a part of themselves: what that costs in accuracy is not modelled")
    if problem.compression is not None and problem.calibration.all_reduce_curves:
        lines.append("compression was not weighed: a measured curve need not rise with the size")
    return lines


def _decisions(problem: Problem, best: _Answer, search: Search) -> list[_Other]:
    """Return the best plan without each of several groups of machines that take part, and with equal shares."""
    rows: list[_Other] = []
    if len(best.configuration.groups) > 1:
        cluster = taking_part(problem)
        for one in best.configuration.groups:
            kept = [group.name for group in cluster.machine_groups if group.name != one.name]
            name = f"{_WITHOUT}{one.num_machines} {one.name} machine{'s' * (one.num_machines > 1)}"
            if cluster.of_groups_is_connected(kept):
                rows += _best_of(problem, replace(problem, cluster=cluster.of_groups(kept)), name, search)
    if len({one.batch_per_device for one in best.configuration.groups}) > 1:
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
    boxes = AllReduceBoxes(problem, list(part.watch(teams_of(problem, is_one_kind=False), every=8)), part)
    if part.is_over or not boxes.roots:
        return []
    found = best_vector(
        boxes.roots,
        boxes,
        part,
        split=boxes.split,
        effort=Effort(most_boxes=_MOST_BOXES_OF_ALTERNATIVES, most_solved=_MOST_SOLVED_OF_ALTERNATIVES),
    )
    if found.value is None:
        return []
    narrow = _answer(boxes, found.value)
    cost = AllReduceCost.of(question, narrow.configuration)
    other = _with_ends(cost, narrow.configuration, narrow.ends)
    proof = "" if found.solution.status is Status.OPTIMAL else ", not proven best"
    return [_Other(name=name, answer=other, reason=f"{other.configuration.headline}{proof}")]


def _why_nothing_fits(problem: Problem) -> str:
    """Return which limits leave no plan, and by how much they would have to give."""
    groups, fixed, allowed = taking_part(problem).machine_groups, problem.fixed, problem.training_devices
    cost = AllReduceCost.heterogeneous(problem, [group.name for group in groups], [1] * len(groups))
    needed, most_held = cost.memory.total_bytes(1), max(cost.memory_limits_bytes)
    if needed > most_held:
        device = cost.groups[cost.memory_limits_bytes.index(most_held)].device.name
        return no_sample_fits(needed, most_held, device)
    counts, fewest = [group.count * group.devices_per_machine for group in groups], allowed.least
    if not is_heterogeneous(problem):
        numbers = [number for _, number in AllReduceBoxes(problem, list(teams_of(problem)), Search()).numbers()]
        counts, fewest = [max(numbers, default=0)], min(numbers, default=0)
    most = batches_from(problem, sum(group.count * group.devices_per_machine for group in groups))[1]
    if most < fewest:
        return (
            f"No plan fits: a batch of {most} cannot be split over {fewest} devices. Raise it to {fewest} or more, or "
            f"use fewer devices."
        )
    steps = fixed.get("gradient_accumulation_steps")
    if steps is not None and fewest:
        most_each = cost.most_at_a_time.tolist()
        held = sum(count * min(each, most) for count, each in zip(counts, most_each, strict=False))
        is_open = problem.training.fixed_batch_size is None and problem.training.batch_per_device is None
        if held * steps < most and not is_open:
            return (
                f"No plan fits: with fix.gradient_accumulation_steps: {steps}, all devices that may train hold "
                f"{held * steps} samples of a batch of {most}. Use {ceil(most / held)} steps."
            )
        if fewest * steps > most:
            return (
                f"No plan fits: with fix.gradient_accumulation_steps: {steps}, {fewest} devices need a batch of "
                f"{fewest * steps}, and it is {most}. Use {most // fewest} steps or fewer."
            )
    limits = (("constraints.devices", problem.limits.devices), ("constraints.machines", problem.limits.machines))
    asked = [f"{name} {one.words}" for name, one in limits if one != Range()]
    said = ("num_devices", "num_machines", "device")  # in these numbers, and by which machines there are
    asked += [f"fix.{key} {value}" for key, value in fixed.items() if key not in said]
    asked += filter(None, [problem.devices_words])
    if curves := problem.calibration.all_reduce_curves:
        asked.append(f"calibration's curves for {', '.join(map(str, sorted(curves)))} devices")
    have = ", ".join(f"{group.count} {group.name} x {group.devices_per_machine}" for group in groups)
    return (
        f"No plan fits: no number of machines and devices meets {' and '.join(asked) or 'the cluster'} together (there "
        f"are {have}). Drop or change one of them."
    )


# --- Any number of equal machines, held against a weight and a limit for each number

_ALL_S = 1.0  # of a weight


def least_by_count(problem: Problem, weight_s: Floats, limit_s: Floats, search: Search) -> CountBounds | None:
    """Return what no plan on so many equal machines takes less than; see :class:`planner.families.answer.CountBounds`.

    All settings (machines, devices of each, batch) are bounded at once and solved in the order of the shares that their
    bounds are of the weight of as many machines, until no bound is below the best of these shares.
    """
    if is_heterogeneous(problem) or len(problem.cluster.machine_groups) != 1:
        return None
    boxes = AllReduceBoxes(problem, list(search.watch(teams_of(problem), every=8)), search)
    leaves, limit_s, weight_s = boxes.roots, np.minimum.accumulate(limit_s), np.minimum.accumulate(weight_s)
    if search.is_late or not all(leaf.is_leaf for leaf in leaves):
        return None
    if not leaves:
        return CountBounds(bounds_s=np.full(len(limit_s), inf))

    def machines_of(leaf: Box) -> int:
        return -(-leaf.low[-1] // boxes.teams[leaf.kind].most)

    machines = np.array([machines_of(leaf) for leaf in leaves], dtype=np.int64)
    at = np.minimum(machines, len(limit_s)) - 1
    within, weights = np.where(machines <= len(limit_s), limit_s[at], 0.0), weight_s[at]
    bounds = boxes.bounds(leaves, inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where((bounds < within) & (weights > 0), bounds / weights, inf)
    best, best_machines, least = _ALL_S, None, inf
    for place in np.argsort(shares, kind="stable").tolist():
        if shares[place] >= best:
            least = min(least, float(shares[place]))
            break
        if search.is_late:
            least = min(least, float(shares[place]))
            break
        weight, limit = float(weights[place]), float(within[place])
        found = boxes.solve(leaves[place], float(bounds[place]), min(best * weight, limit))
        least = min(least, found.bound / weight if found.bound < limit else inf)
        if found.objective < min(best * weight, limit):
            best, best_machines = found.objective / weight, int(machines[place])
    with np.errstate(invalid="ignore"):
        bounds_s = np.nan_to_num(np.minimum(min(least, best) * weight_s, limit_s), nan=0.0, posinf=inf)
    own_s = np.full(len(limit_s), inf)
    np.minimum.at(own_s, at, np.where(machines <= len(limit_s), bounds * BELOW, inf))
    return CountBounds(bounds_s=np.maximum(bounds_s, own_s), num_machines=best_machines)


# --- Machines of one kind beside others


def least_parts_s(problem: Problem, enough_s: float, within_s: float, machines: Sequence[int]) -> Floats | None:
    """Return what devices of one kind take at least of a training, beside others: (numbers, 1).

    See :data:`planner.families.answer.LeastParts`. Who has a share of u samples, or one less, is ready with gradient l
    at r_l(u), and all gradients from l on, in however many transfers, take no less than one transfer of all their bytes
    does over the fewest machines there are: an iteration takes ``T(u) = max_l(r_l(u) + tail_l)`` and the update, or
    more. So n devices do at most ``n u`` samples in it, and whatever they do of a batch takes them ``T(u) / u`` a
    sample or more: the least of that, of the u of which T(u) ends in time.
    """
    name = problem.cluster.machine_groups[0].name
    known = _by_share(in_company(problem), name, machines if enough_s > 0 else (), within_s)
    if known is None or problem.training.fixed_batch_size is None:
        return None
    shares, whole_s = known
    steps = float(iterations_of(problem, problem.training.fixed_batch_size))
    each_s = np.where(whole_s <= within_s / steps * (1 + SAME), whole_s / shares, inf).min(axis=1, initial=inf)
    found = np.broadcast_to(each_s if enough_s > 0 else each_s[0], len(machines))[:, None]
    return np.asarray(found * problem.training.fixed_batch_size * steps * BELOW)


def _by_share(problem: Problem, name: str, machines: Sequence[int], within_s: float) -> tuple[Ints, Floats] | None:
    """Return shares u of a device, and T(u) over at least so many machines, (numbers, shares); without, one row.

    Of :func:`least_parts_s`; those that compute longer than a training may take are left out.
    """
    training = problem.training
    if training.fixed_batch_size is None or problem.compression is not None:
        return None
    cost = AllReduceCost.heterogeneous(problem, [name], [1])
    if problem.calibration.all_reduce_curves or not cost.algorithms(is_even=True):
        return None
    batch, steps = training.fixed_batch_size, float(iterations_of(problem, training.fixed_batch_size))
    shares = np.arange(1, batch + 1)[:, None]
    ended_s = (cost.kinds.computed_s(shares) + cost.kinds.update_s)[:, 0]
    is_open = (ended_s <= within_s / steps * (1 + SAME)) & (cost.most_at_a_time[0] > 0)
    shares, ended_s = shares[is_open], ended_s[is_open]
    sizes, found = cost.gradients.size_bytes, np.tile(ended_s, (max(len(machines), 1), 1))
    if len(machines) and len(sizes) and len(shares):
        tails_s = cost.least_transfers_s(np.array(machines), np.cumsum(sizes[::-1])[::-1])
        ready_s = cost.kinds.ready_s(shares) + float(cost.kinds.update_s.max())
        found = np.array([np.maximum(ended_s, (ready_s + tail_s).max(axis=1)) for tail_s in tails_s])
    return shares[:, 0], found


def least_beside_usd(
    problem: Problem, usd_per_s: Mapping[str, float], more_usd_per_s: float, within_s: float, most_usd: float
) -> float | None:
    """Return what a training costs at least on some machines of every kind.

    See :data:`planner.families.answer.LeastBeside`. Where no device of kind k has more than u_k samples, an iteration
    takes ``T >= T_k(u_k)`` (:func:`least_parts_s`). A device of it costs c_k a second, and a batch of B all of them
    ``T (v + B min_k c_k / u_k)`` or more: no less than that of one kind and some share of it. Some device of every kind
    has a sample. Of N to M machines N of the cheapest are paid at least, and some u_k is so large that M do the batch.
    """
    batch, groups = problem.training.fixed_batch_size, problem.cluster.machine_groups
    if batch is None or {group.name for group in groups} != usd_per_s.keys() or len(groups) != len(usd_per_s):
        return None
    steps, cheapest = float(iterations_of(problem, batch)), min(usd_per_s.values())

    def least(machines: Sequence[int]) -> float | None:
        tables = [known for one in groups if (known := _by_share(problem, one.name, machines, within_s)) is not None]
        if len(tables) < len(groups):
            return None
        found = inf
        for row, fewest in enumerate(machines or (len(groups),)):
            most = machines[row + 1] - 1 if row + 1 < len(machines) else inf
            begin_s, does_s = 0.0, inf
            for group, (shares, whole_s) in zip(groups, tables, strict=True):
                begin_s = max(begin_s, float(whole_s[row].min(initial=inf)))
                does = shares * group.devices_per_machine * most >= batch
                does_s = min(does_s, float(whole_s[row, does].min(initial=inf)))
            for group, (shares, whole_s) in zip(groups, tables, strict=True):
                taken_s = np.maximum(whole_s[row], max(begin_s, does_s)) * steps
                usd_of_batch = batch / shares * usd_per_s[group.name] / group.devices_per_machine
                usd = taken_s * (np.maximum(usd_of_batch, fewest * cheapest) + more_usd_per_s)
                found = min(found, float(usd[taken_s <= within_s * (1 + SAME)].min(initial=inf)))
        return found * BELOW

    found = least(())
    if found is not None and found < most_usd:
        found = least([number for number in _FEWEST if number <= sum(group.count for group in groups)])
    return None if found is None else min(found, most_usd)
