"""What purchases ask of layouts: bounds by the number of equal machines, and in company of other kinds.

*By number* (:func:`least_by_count`). Every layout says how many devices it takes, so the grid of layouts on all
machines holds those on fewer machines, too. The search minimises ``seconds(layout) / weight(n)`` over all layouts of
the grid of less than ``limit(n)`` seconds: with the bounds of :mod:`planner.families.hybrid.bounds`, each divided by
the weight of the devices that its node has decided. With the least ratio ``r``, or the bound of it where the time is
over, no layout on n machines takes less than the lesser of ``r weight(n)`` and ``limit(n)``. All layouts up to a ratio
of ``r (1 + s)`` are looked at, so that ``r (1 + s) weight(n)`` holds for those that were not: where money is paid in
whole seconds or hours, two numbers of the same ratio do not cost the same.

Left out: cuts that are not searched anywhere, as of chunks that are moved by single layers (see
:mod:`planner.families.hybrid.grid_search`).

*In company* (:func:`least_parts_s`): the least device-seconds of every part of a training on machines of one kind. On
several kinds of machines each has stages or whole replicas of its own, so that of the embedding, the layers of each
kind and the head every device does some, for some of the samples. What one does takes it no less than the table of
layers says (:mod:`planner.families.hybrid.layer_table`): with the communication of layers at the nearest ranks, nothing
computed again, and the micro-batch and the degrees that suit each part.

**Within a time** T: less than its pace, since

- a *stage* of l layers that take z each, of m micro-batches, sends one way at least, x, and what nothing hides of its
  gradients and its optimiser is a tail ``e(l, d)`` of d data ranks: ``m (l z + x) + e(l, d)`` or more. All kinds have d
  ranks, a divisor of the batch, and ``m = batch / (d b)``. Stages of few layers lose by sending, those of many by their
  tails;
- a *replica* of p stages has ``X = L z + 2 (p - 1) x`` in all, and takes ``(m + (p - 1) / 2) X / p + e(L / p, d)`` or
  more (:mod:`planner.families.hybrid.bounds`), L / p rounded up. Here d counts the replicas of all kinds, which do the
  whole batch in time, each device at the pace of the fastest kind or more slowly, and m any number with ``m (d - 1) b
  <= batch``. Of d from one number up to the next that is tried, reductions are those of the least as if it filled
  machines, and the optimiser's share is that of the most.

The least of that over ``m l z``, or ``m L z / p``, is what any device takes over its pace. Of replicas m is whole, each
has one micro-batch at least, and what they compute again for want of room counts.

*Of two kinds at once* (:func:`least_beside_usd`): what layouts on some machines of both cost at least, by a search over
the grid of all pipelines on both (:class:`Stages`), and over that of whole replicas (:class:`Replicas`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations, product
from math import inf

import numpy as np

from planner.cost import Floats
from planner.errors import InfeasibleError
from planner.families.answer import CountBounds, Searched, in_company, iterations_of, plan_of
from planner.families.hybrid.bounds import Bounds, peak_step_s
from planner.families.hybrid.configuration import NAME
from planner.families.hybrid.cost import GroupCost, HybridCost, Placement, costs_of
from planner.families.hybrid.cut_bounds import CutBounds
from planner.families.hybrid.even_bounds import EvenBounds
from planner.families.hybrid.found import configuration_of_point
from planner.families.hybrid.grid_search import bounds_of
from planner.families.hybrid.layer_table import DEGREES
from planner.families.hybrid.prediction import NOT_MODELLED, explain, predict, warnings
from planner.families.hybrid.space import Bound
from planner.frozen import frozen
from planner.models.balance import shared_bound_s
from planner.models.layouts import Bools, Ints
from planner.models.tiers import ORDERS, axes_of, next_group, packed_group
from planner.models.transformer_communication import communication_times, pipeline_communication
from planner.models.transformer_interval import reached_tiers
from planner.problem import Problem, Range
from planner.routes import routes_of
from planner.search import Search
from planner.solution import BELOW
from planner.solvers.grid import Axis, Columns, Grid, GridAnswer, Level, Rule, Wanted, solve

_MOST_ROWS = 50_000  # stages in one array
_ROOMS_AT_ONCE = 256  # layouts whose memory is looked at
_MIDDLE = 3  # stages, of which the second has neither embedding nor head
_FACTOR = 1.3  # of numbers of replicas that are tried
_ROUND_UP = 1 + 1e-9
_TENSOR_NEAREST = next(index for index, order in enumerate(ORDERS) if order[0] == "tensor")
_DATA_NEAREST = next(index for index, order in enumerate(ORDERS) if order[:2] == ("context", "data"))


def least_parts_s(
    problem: Problem, enough_s: float = 0.0, within_s: float = inf, fastest_s: float = 0.0
) -> Floats | None:
    """Return device-seconds of each part of what the goal counts: embedding, layers of each kind, head.

    Infinite where the family does not apply, for the number format that the machines leave say: then it applies to no
    fleet that has some of them. None where the batch is open.

    Parameters
    ----------
    enough_s
        Of all parts: more than this need not be told apart. 0: the pace alone is wanted.
    within_s
        What the goal counts must be done in.
    fastest_s
        The least of all parts on any kind of device.
    """
    try:
        (cost,) = costs_of(in_company(problem))
    except InfeasibleError:
        return np.array([inf])
    return parts_on(cost, enough_s, within_s, fastest_s)


def parts_on(cost: GroupCost, enough_s: float = 0.0, within_s: float = inf, fastest_s: float = 0.0) -> Floats | None:
    """Return the same on a machine group; None where the batch is open."""
    bounds, problem = EvenBounds(cost.even), cost.problem
    if problem.training.fixed_batch_size is None or bounds.space.is_split:
        return None
    degrees = Level(axes=tuple(bounds.space.axes[name] for name in DEGREES))
    nodes = Grid(levels=(degrees,), rules=bounds.space.rules).expand(_none(), 0)
    samples = np.full(len(nodes["tensor"]), cost.batch)
    if not len(samples):
        return None
    least = bounds.linked_table.of_each_sample(nodes, samples, bounds.microbatches, lambda: None)
    counts = np.array([*cost.transformer.kind_counts.values()])
    parts = np.stack([least.embedding_s, *(counts[:, None] * least.layer_s), least.head_s])
    each_s = (parts * nodes["tensor"] * nodes["context"]).min(axis=1) / bounds.smallest_microbatch  # of a sample
    steps = float(iterations_of(problem, cost.batch))
    found = np.asarray(each_s * cost.batch * steps * BELOW)
    if found.sum() < enough_s and len(counts) == 1:
        rest_s = found.sum() - found[1]
        within = _Within(
            bounds=CutBounds(HybridCost((cost,), Placement.STAGES)),
            rooms=CutBounds(HybridCost((cost,), Placement.REPLICAS)),
            within_s=within_s / steps,
        )
        layers_s = within.least_s((enough_s - rest_s) / steps, fastest_s / steps) * steps * BELOW
        found[1] = max(found[1], layers_s)
    return found


def _none() -> dict[str, Ints]:
    """Return one node of which nothing is decided."""
    return {"": np.zeros(1, dtype=np.int64)}


@dataclass(frozen=True, kw_only=True)
class _Within:
    """Steps that must be done in a time, of a network of one kind of layers; see the module."""

    bounds: CutBounds
    rooms: CutBounds  # of whole replicas
    within_s: float

    @property
    def _layers(self) -> int:
        return self.bounds.cost.transformer.num_layers

    def least_s(self, enough_s: float, fastest_s: float) -> float:
        """Return the least device-seconds of all layers of a step.

        Of degrees and micro-batches at whose pace they take ``enough_s`` or more nothing is worked out: the least is
        then as much.

        Parameters
        ----------
        fastest_s
            Of a step on any kind of device.
        """
        bounds, batch, found_s = self.bounds, self.bounds.cost.batch, enough_s
        for is_replicas in (False, True):
            axes = [bounds.space.axes[name] for name in (*DEGREES, "microbatch")]
            data = Axis(name="data", values=_data_ranks(batch)) if is_replicas else bounds.space.axes["data"]
            rules = tuple(one for one in bounds.space.rules if not (is_replicas and "data" in one.names))
            nodes = Grid(levels=(Level(axes=(*axes, data)),), rules=rules).expand(_none(), 0)
            nodes.pop("")
            each_s = bounds.linked_table.of(nodes, lambda: None).layer_s[0]
            shared = nodes["tensor"] * nodes["context"]
            pace_s = shared * batch / nodes["microbatch"] * self._layers * each_s
            number = batch / nodes["microbatch"] / np.maximum(nodes["data"] - is_replicas, 1)
            if is_replicas:  # each does one micro-batch at least
                most = _next_ranks(nodes["data"], batch) * shared * self._layers * self.within_s
                most = np.where(nodes["data"] * nodes["microbatch"] <= batch, most, 0.0)
            else:
                most = np.where(number * each_s <= self.within_s, inf, 0.0)
            left = np.flatnonzero((pace_s < enough_s) & (most >= fastest_s))
            left = left[np.argsort(pace_s[left], kind="stable")]
            at_once = max(1, _MOST_ROWS // (self._layers * _MIDDLE))
            for start in range(0, len(left), at_once):
                at = left[start : start + at_once]
                if not len(at := at[pace_s[at] < found_s]):
                    break
                few = {name: column[at] for name, column in nodes.items()}
                if is_replicas:
                    found_s = self._roomy(few, each_s[at], number[at], fastest_s, found_s)
                else:
                    found_s = min(found_s, float((pace_s[at] * self._stages(few, each_s[at], number[at])).min()))
        return found_s

    def _roomy(self, nodes: Columns, each_s: Floats, number: Floats, fastest_s: float, found_s: float) -> float:
        """Return the least seconds, or ``found_s`` if that is less, of whole replicas, with what they compute for room.

        Parameters
        ----------
        each_s, number
            Of a layer without; micro-batches at most.
        """
        pace_s = nodes["tensor"] * nodes["context"] * self.bounds.cost.batch / nodes["microbatch"] * self._layers
        alone = {**nodes, "data": np.ones_like(nodes["data"])}  # its kind may have no other replica
        sent_s, stages = _sent_s(self.bounds, alone), np.arange(1, self._layers + 1)[:, None]
        taken_s = pace_s * each_s * self._replicas(nodes, stages, each_s, sent_s, number, fastest_s)
        rows, columns = np.nonzero(taken_s < found_s)
        order = np.argsort(taken_s[rows, columns])
        (name,) = self.rooms.space.part_names
        after = _next_ranks(nodes["data"], self.bounds.cost.batch)  # states are sharded over all of them
        for start in range(0, len(order), _ROOMS_AT_ONCE):
            row, column = (one[order[start : start + _ROOMS_AT_ONCE]] for one in (rows, columns))
            few = {name: one[column] for name, one in nodes.items() if name != "data"}
            few |= {"pipeline": row + 1, name: after[column], "order": np.full_like(row, _DATA_NEAREST)}
            few["sequence_parallel"] = np.full_like(row, max(self.rooms.space.axes["sequence_parallel"].values))
            if taken_s[row[0], column[0]] >= found_s:
                break
            for again, layer_s, has_room in self.rooms.recomputed(few):
                left = np.flatnonzero(has_room & (taken_s[row, column] < found_s))
                if not len(left):
                    continue
                own = {name: one[column[left]] for name, one in nodes.items()}
                own |= {name: np.full(len(left), value) for name, value in again.items()}
                at = column[left]
                over = self._replicas(own, row[None, left] + 1, layer_s[left], sent_s[at], number[at], fastest_s)[0]
                found_s = min(found_s, float((pace_s[at] * layer_s[left] * over).min(initial=inf)))
        return found_s

    def _stages(self, nodes: Columns, each_s: Floats, number: Floats) -> Floats:
        """Return what devices of stages take over their pace at the least, shape (n,); infinite where late.

        Parameters
        ----------
        each_s, number
            Of a layer; micro-batches.
        """
        held, found = np.arange(1, self._layers + 1)[:, None], np.full(len(each_s), inf)
        work_s, sent_s = number * held * each_s, number * _sent_s(self.bounds, nodes)
        for zero in self.bounds.space.axes["zero"].values:
            shown_s, moved_s = _tails_s(self.bounds, {**nodes, "zero": np.full_like(nodes["data"], zero)}, held)
            step_s = work_s + sent_s + shown_s + moved_s
            over = np.where(step_s <= self.within_s * _ROUND_UP, step_s / work_s, inf)
            found = np.minimum(found, over.min(axis=0))
        return found

    def _replicas(
        self, nodes: Columns, stages: Ints, each_s: Floats, sent_s: Floats, number: Floats, fastest_s: float
    ) -> Floats:
        """Return the same of whole replicas, (rows, n).

        Parameters
        ----------
        stages
            Of each replica, (rows, 1) or (rows, n).
        sent_s, number
            What stages send one way; micro-batches at most.
        """
        held, found = -(-self._layers // stages), np.full((len(stages), len(each_s)), inf)
        whole_s = self._layers * each_s + 2 * (stages - 1) * sent_s
        after = _next_ranks(nodes["data"], self.bounds.cost.batch)
        is_enough = after * nodes["tensor"] * nodes["context"] * stages * self.within_s >= fastest_s
        for zero in self.bounds.space.axes["zero"].values:
            columns = {**nodes, "zero": np.full_like(nodes["data"], zero)}
            tail_s = _tails_s(self.bounds, columns, held)[0]
            tail_s = tail_s + _tails_s(self.bounds, {**columns, "data": after}, held)[1]
            filled_s = (stages - 1) / 2 * whole_s / stages + tail_s
            most = np.floor(np.minimum(number, (self.within_s - filled_s) * stages / whole_s) * _ROUND_UP)
            with np.errstate(divide="ignore", invalid="ignore"):
                step_s = most * whole_s / stages + filled_s
                over = step_s * stages / (most * self._layers * each_s)
            found = np.minimum(found, np.where(is_enough & (most > 0), over, inf))
        return found


def _sent_s(bounds: CutBounds, nodes: Columns) -> Floats:
    """Return what stages send one way at least: to the same machines, or to others no quicker than these can send.

    However many stages there are: the next one as near as any order and any place in a machine allow.
    """
    group, axes = bounds.cost.first, bounds.space.axes
    link, length = routes_of(group.cluster).ring(group.cluster.num_machines), len(nodes["tensor"])
    ways = list(product(axes["sequence_parallel"].values, axes["order"].values))
    columns = {name: np.tile(column, len(ways)) for name, column in _filled(bounds, nodes, {"stages_0": 2}).items()}
    columns |= dict(zip(("sequence_parallel", "order"), np.repeat(np.array(ways).T, length, axis=1), strict=True))
    (seconds,) = bounds.cost.group_seconds(columns)
    figures, own = seconds.figures, seconds.own
    ((_, stride),) = axes_of(own)["pipeline"]
    near = replace(own, order=np.full_like(own.order, _TENSOR_NEAREST))
    groups = {
        "pipeline": next_group(figures.reached_tiers, stride),
        "tensor": replace(figures.groups_of(near)["tensor"], latency_s=np.zeros((1, 1))),
    }
    (sent,) = communication_times(pipeline_communication(figures.transformer, own), groups).values()
    reach = replace(seconds.group, between_bytes_per_s=link.bandwidth_bytes_per_s, between_latency_s=link.latency_s)
    between_s = replace(seconds, group=reach, own=near).between_s
    least_s = np.minimum(sent.forward_s + figures.constants.send_s, between_s)
    return np.asarray(np.broadcast_to(least_s, len(ways) * length).reshape(len(ways), length).min(axis=0))


def _tails_s(bounds: CutBounds, nodes: Columns, held: Ints) -> tuple[Floats, Floats]:
    """Return what nothing hides of reductions and gathers, and the optimiser, of a stage of some layers: (rows, n).

    No more replicas, and no other number of stages, reduce and gather in less: replicas fill machines
    (:func:`planner.models.tiers.packed_group`). ``held``: (rows, 1) or (rows, n).
    """
    length, columns = len(nodes["tensor"]), _filled(bounds, nodes, {"order": _DATA_NEAREST})
    layers, back = np.unique(held, axis=0, return_inverse=True)
    many = {name: np.tile(column, len(layers)) for name, column in columns.items()}
    each = np.broadcast_to(layers, (len(layers), length)).ravel()
    step = bounds.cost.step(many, np.stack([each] * _MIDDLE))
    (seconds,) = step.groups
    tiers, axes = reached_tiers(seconds.group.joint_tiers, seconds.figures.constants), axes_of(seconds.joint)
    numbers = {name: np.prod([one for one, _ in axes[name]], axis=0) for name in ("replicas", "expert_replicas")}
    packed = {name: packed_group(tiers, number) for name, number in numbers.items()}
    vars(seconds)["groups"] = {**packed, "ends": packed["replicas"]}  # the stage in the middle has no end
    shown_s, moved_s = (one[1].reshape(len(layers), length)[back] for one in (step.exposed_s, step.optimizer_s))
    return shown_s, moved_s


def _filled(bounds: CutBounds, nodes: Columns, given: Mapping[str, int]) -> Columns:
    """Return nodes as three stages with some decisions, and all overlaps."""
    axes = bounds.space.axes
    best = {"recompute": 0, "recompute_modules": 0, "zero": 0, "context_method": axes["context_method"].values[0]}
    best |= {name: max(axes[name].values) for name in ("overlap_data", "overlap_tensor", "sequence_parallel")}
    columns = {**best, "stages_0": _MIDDLE, **given}
    return {**{name: np.full(len(nodes["tensor"]), value) for name, value in columns.items()}, **nodes}


def _data_ranks(batch: int) -> tuple[int, ...]:
    """Return numbers of replicas on two kinds of machines or more, by about equal factors."""
    found = [2]
    while found[-1] < batch:
        found.append(max(found[-1] + 1, int(found[-1] * _FACTOR)))
    return tuple(found[:-1]) or (2,)


def _next_ranks(data: Ints, batch: int) -> Ints:
    """Return, for numbers of replicas that are tried, the most that each stands for."""
    ladder = np.array([*_data_ranks(batch), max(batch, 2) + 1])
    return ladder[np.minimum(np.searchsorted(ladder, data, side="right"), len(ladder) - 1)] - 1


_DEGREES = ("tensor", "context", "pipeline", "data")
_SHARE_OF_EVEN = 0.6  # of the time
_LOOSE = 0.4  # of the limit: where devices at their peak take less, layouts are likely to be below it
_SLACK = 1e-4  # s


@frozen
class _Limited:
    """The layouts of one placement, in shares of the weight of as many machines as they take.

    ``weight_s``, ``limit_s``: of a step, by the number of machines. ``reached_s``: what the layouts that were looked at
    take, each number's least.
    """

    bounds: Bounds
    weight_s: Floats
    limit_s: Floats
    reached_s: Floats
    devices_per_machine: int

    def num_machines(self, nodes: Columns) -> Ints:
        """Return the machines that nodes take at least: as many as what is decided of their degrees asks for."""
        number = np.ones(len(nodes["tensor"]), dtype=np.int64)
        for name in dict.fromkeys((*_DEGREES, *self.bounds.space.part_names)):
            if name in nodes:
                number = number * nodes[name]
        return -(-number // self.devices_per_machine)

    def shares(self, seconds: Callable[[Columns], Floats]) -> Callable[[Columns], Floats]:
        """Return a function of nodes in shares of their weights; weight and limit never rise with the machines."""

        def share(nodes: Columns) -> Floats:
            machines = self.num_machines(nodes)
            at = np.minimum(machines, len(self.limit_s)) - 1
            found = np.full(len(machines), inf)
            has_any = np.minimum(self.weight_s, self.limit_s)[at] > 0
            left = np.flatnonzero((machines <= len(self.limit_s)) & has_any)
            if len(left):
                columns = {name: column[left] for name, column in nodes.items()} if len(left) < len(found) else nodes
                least_s = seconds(columns)  # infinite where nothing fits, whatever the limit
                weight_s, is_below = self.weight_s[at[left]], least_s < self.limit_s[at[left]]
                found[left] = np.divide(least_s, weight_s, out=np.full(len(left), inf), where=is_below)
            return found

        return share

    def least(self, search: Search, most: float, *, is_loose: bool) -> GridAnswer:
        """Return the layout of the least share below ``most``.

        ``is_loose``: some layout is likely to be far below, so that one is looked for first.
        """

        def lowered(share: Callable[[Columns], Floats]) -> Callable[[Columns], Floats]:
            return lambda nodes: share(nodes) / (1 + _SLACK)

        def seconds(points: Columns) -> Floats:
            found_s = self.bounds.seconds(points)
            np.minimum.at(self.reached_s, self.num_machines(points) - 1, found_s)
            return found_s

        grid = self.bounds.grid()
        levels = tuple(
            Level(axes=level.axes, bound=None if bound is None else lowered(self.shares(bound)))
            for level, bound in zip(grid.levels, _of_limits(self.bounds, grid), strict=True)
        )
        cost, part = self.shares(seconds), search.part(search.left_s, cutoff=most, good_enough=-inf)
        part.pool = None
        wanted = Wanted(counts=False, is_strict=True, dives=is_loose)
        return solve(Grid(levels=levels, rules=grid.rules), cost, part, wanted)


def _of_limits(bounds: Bounds, grid: Grid) -> list[Bound | None]:
    """Return the bounds of levels without asking whether stages fit: limits rule out most, whatever is known."""
    found = [level.bound for level in grid.levels]
    if isinstance(bounds, CutBounds):
        found = [bounds.layers_s if one == bounds.placed_s else one for one in found]
    return found


def least_by_count(problem: Problem, weight_s: Floats, limit_s: Floats, search: Search) -> CountBounds | None:
    """Return what no layout on so many machines takes less than; see :class:`planner.families.answer.CountBounds`."""
    if problem.training.fixed_batch_size is None or not problem.cluster.has_equal_machines:
        return None  # racks of trays are groups of their own, all equal
    try:
        (cost,) = costs_of(problem)
    except InfeasibleError:
        return CountBounds(bounds_s=np.full(len(limit_s), inf))
    steps = float(iterations_of(problem, cost.batch))
    weight_s, limit_s = np.minimum.accumulate(weight_s), np.minimum.accumulate(limit_s)
    bound, least, machines, best, reached_s = 1.0, 1.0, 0, None, np.full(len(limit_s), inf)
    peak_s = peak_step_s([cost]) * len(limit_s) / np.arange(1, len(limit_s) + 1)
    is_loose = bool((peak_s < _LOOSE * np.minimum(weight_s, limit_s) / steps).any())
    even = replace(cost, opens_offload=cost.may_offload).even
    placements = [(even, _SHARE_OF_EVEN), (HybridCost((cost,), Placement.STAGES), 1.0)]
    for placement, share in placements[:1] if cost.is_tpu else placements:  # whose stages are alike
        part = search.part(search.left_s * share)
        limited = _Limited(
            bounds=bounds_of(placement, part),
            weight_s=weight_s / steps,
            limit_s=limit_s / steps,
            reached_s=reached_s,
            devices_per_machine=cost.group.devices_per_machine,
        )
        if not limited.bounds.space.is_open:
            continue
        answer = limited.least(part, least, is_loose=is_loose and least == 1.0)
        bound = min(bound, max(answer.solution.bound, 0.0))  # -inf where it was cut off before anything was bounded
        if (point := answer.solution.value) is not None and answer.solution.objective < least:
            least, best = answer.solution.objective, (placement, point)
            machines = int(limited.num_machines({name: np.array([value]) for name, value in point.items()})[0])
    with np.errstate(invalid="ignore"):
        bounds_s = np.nan_to_num(np.minimum(bound * (1 + _SLACK) * weight_s, limit_s), nan=0.0, posinf=inf)
    bounds_s = np.minimum(bounds_s, reached_s * steps)
    if best is None:
        return CountBounds(bounds_s=bounds_s)
    configuration = configuration_of_point(*best)
    prediction = predict(problem, configuration)
    plan = plan_of(
        problem,
        Searched(
            family=NAME,
            not_modelled=NOT_MODELLED,
            solver="branch and bound on the grid of layouts of any number of machines",
        ),
        configuration=configuration,
        prediction=prediction,
        bound=min(float(bounds_s[machines - 1]), prediction.value_of(problem.goal)),
        explanation=explain(problem, configuration, prediction),
        warnings=warnings(best[0], configuration),
    )
    return CountBounds(bounds_s=bounds_s, num_machines=machines, plan=plan)


# --- Two kinds of machines and what they cost


def least_beside_usd(
    problem: Problem,
    usd_per_s: Mapping[str, float],
    more_usd_per_s: float,
    within_s: float,
    most_usd: float,
    search: Search,
) -> float | None:
    """Return what no layout on both kinds costs less than, at most ``most_usd``; see :data:`LeastBeside`."""
    limits = replace(problem.limits, machines=Range(least=len(usd_per_s)))  # so that each may give as few as it likes
    problem = replace(problem, limits=limits)
    try:
        costs = costs_of(problem)
    except InfeasibleError:
        return most_usd
    if problem.training.fixed_batch_size is None or len(costs) != len(usd_per_s):
        return None
    if any(one.is_tpu for one in costs):  # of one kind alone
        return most_usd
    steps = float(iterations_of(problem, costs[0].batch))
    found = most_usd
    ways: list[tuple[type[Beside], Placement, Sequence[GroupCost]]]
    ways = [(Stages, Placement.STAGES, order) for order in permutations(costs)]
    ways += [(Replicas, Placement.REPLICAS, costs)]  # last: they take the longest
    for kind, placement, order in ways:
        shared = kind(
            bounds=CutBounds(HybridCost(tuple(order), placement)),
            usd_per_s=[usd_per_s[str(one.machines)] * steps for one in order],
            more_usd_per_s=more_usd_per_s * steps,
            within_s=within_s / steps,
        )
        found = min(found, shared.least_usd(search, found))
    return found * BELOW if found < most_usd else most_usd


@frozen
class Beside(ABC):
    """Layouts on several kinds of machines, in what a step on them costs; nothing is assumed of cuts.

    A step of T seconds on n machines of each kind costs ``T (sum_k n_k c_k + v)``.
    """

    bounds: CutBounds
    usd_per_s: Sequence[float]  # of a machine of each kind
    more_usd_per_s: float
    within_s: float

    @abstractmethod
    def grid(self) -> tuple[Grid, Callable[[Columns], Floats]]:
        """Return the grid of these layouts, with bounds in money, and what points cost at least."""

    def least_usd(self, search: Search, most_usd: float) -> float:
        """Return what no layout costs less than in a step, at most ``most_usd``."""
        grid, cost = self.grid()
        part = search.part(search.left_s, cutoff=most_usd, good_enough=-inf)
        part.pool = None
        found = solve(grid, cost, part, Wanted(counts=False, is_strict=True, dives=False, is_proof=True))
        return min(max(found.solution.bound, 0.0), most_usd)


class Stages(Beside):
    """Pipelines whose stages stand on several kinds of machines.

    Where the stages of each kind are known, T is bounded (:class:`CutBounds`) and they
    fill whole machines; in the end their layers are whole. Before, T is of the most stages that kinds have devices for,
    and one stage of each is paid for. Besides, with ``n_k`` stages of each kind, p or fewer in all, that cost ``u_k`` a
    second each, the slowest takes ``T_1 >= L / sum n_k / z_k`` for one of m micro-batches, and the step no less than
    ``m T_1``, ``X + (m - (w + 1) / 2) T_1`` and, of more than p, ``2 X + (m - 1 - p) T_1``, with ``w = min(m, p)``. So
    each second of X costs what the least machines do, and ``T_1`` costs ``L (sum n_k u_k + v) / sum n_k / z_k``: of two
    linear functions of ``n_k`` the ratio is least in a corner of all numbers that are open.
    """

    def usd(self, seconds: Callable[[Columns], Floats]) -> Callable[[Columns], Floats]:
        """Return a function of nodes in money; infinite where they end late."""
        space = self.bounds.space
        kinds = [
            (name, devices, usd)
            for name, (_, devices), usd in zip(space.part_names, space.machines, self.usd_per_s, strict=True)
        ]

        def least(nodes: Columns) -> Floats:
            taken_s, each = seconds(nodes), nodes["tensor"] * nodes["context"] * nodes[space.shared]
            machines_usd = np.full(len(each), self.more_usd_per_s)
            for name, devices, usd in kinds:
                machines_usd += usd * -(-each * nodes.get(name, 1) // devices)
            found = np.multiply(taken_s, machines_usd, out=np.full(len(each), inf), where=taken_s < self.within_s)
            if "microbatch" in nodes and not nodes.keys() >= {*space.part_names}:
                found = np.fmax(found, self._open_usd(nodes, each, machines_usd))  # no number where both are infinite
            return np.asarray(found)

        return least

    def _open_usd(self, nodes: Columns, each: Ints, machines_usd: Floats) -> Floats:
        """Return what steps cost at least of which some kind's stages are open: see the class.

        ``each``: devices of a stage; ``machines_usd``: of the least machines, a second.
        """
        space, layers = self.bounds.space, self.bounds.cost.transformer.num_layers
        number = self.bounds.cost.batch // (nodes["microbatch"] * nodes["data"])
        layer_s = self.bounds.least_layers_s(nodes)
        low = np.array([nodes.get(name, np.ones_like(each)) for name in space.part_names])
        rest = np.minimum(np.array(space.devices)[:, None] // each, layers - low.sum(axis=0) + low)
        high = np.array([nodes.get(name, most) for name, most in zip(space.part_names, rest, strict=True)])
        stage_usd = np.array(self.usd_per_s)[:, None] * each / np.array([one for _, one in space.machines])[:, None]
        most = np.minimum(high.sum(axis=0), layers)
        with np.errstate(divide="ignore", invalid="ignore"):
            corners = np.array([*product(*zip(low, high, strict=True))])
            usd = (corners * stage_usd).sum(axis=1) + self.more_usd_per_s
            slowest_usd = layers * (usd / (corners / layer_s).sum(axis=1)).min(axis=0)
            through_usd = layers * layer_s.min(axis=0) * machines_usd
            found = through_usd + (number - (np.minimum(number, most) + 1) / 2) * slowest_usd
            if self.bounds.are_multiples:
                often_usd = np.where(number > most, 2 * through_usd + (number - 1 - most) * slowest_usd, 0.0)
                found = np.fmax(found, often_usd)
            return np.asarray(np.fmax(found, number * slowest_usd))

    def grid(self) -> tuple[Grid, Callable[[Columns], Floats]]:
        """Return the grid of all pipelines, up to the first bound that knows a cut; layers are whole in the end.

        Stages of the quickest devices are decided first: those of others change little of what the step takes.
        """
        grid, last, space = self.bounds.grid(), self.bounds.all.index(self.bounds.best_path_s), self.bounds.space
        rates = {
            name: one.rates.most_flop_per_s for name, one in zip(space.part_names, self.bounds.cost.groups, strict=True)
        }
        turns = dict(zip(rates, sorted(rates, key=rates.__getitem__, reverse=True), strict=True))
        levels = tuple(
            Level(
                axes=tuple(space.axes[turns.get(axis.name, axis.name)] for axis in level.axes),
                bound=None if bound is None else self.usd(bound),
            )
            for level, bound in zip(grid.levels[:last], _of_limits(self.bounds, grid)[:last], strict=True)
        )

        def seconds(nodes: Columns) -> Floats:
            found = np.where(np.isinf(self.bounds.fits(nodes)), inf, self.bounds.communication_s(nodes))
            left = np.flatnonzero(found < self.within_s)
            few = {name: column[left] for name, column in nodes.items()}
            found[left] = self.bounds.whole_s(few, found[left], self.within_s)
            return found

        return Grid(levels=levels, rules=grid.rules), self.usd(seconds)


class Replicas(Beside):
    """Whole replicas on several kinds of machines, D in all; which kind has how many of them is not decided.

    A replica takes ``g`` devices, and ``h + m x`` seconds or more for m micro-batches, with x of its slowest stage and
    h of what fills it and is behind (:class:`CutBounds`). Kind k has ``b_k`` machines or
    more, as many as hold its first replicas, and each machine holds ``s_k``. In T seconds a replica does no more than
    ``n_k = (T - h_k) / x_k`` micro-batches; what the first machines of all kinds leave of the N of a batch, others do,
    those of the kind that is cheapest for it. So a second costs no less than the least over k of ::

        sum_j b_j c_j + v + (N - sum_j b_j s_j n_j) c_k / (s_k n_k)

    of which T is a multiple: with ``t = T - h_k`` it is ``(t + h_k) (c + K / t)``, which is least at its ends or where
    ``c t^2 = h_k K``. Nor does a second cost less than D replicas do.
    """

    def grid(self) -> tuple[Grid, Callable[[Columns], Floats]]:
        """Return the grid of all replicas: degrees, micro-batch, D, order of ranks, what is computed again, and parts.

        Replicas of the last kind are those that the others leave.
        """
        space, tables, names = self.bounds.space, self.bounds.least_replicas_s, self.bounds.space.part_names
        most, degrees = sum(space.devices), (*DEGREES, "pipeline")

        def axes(*names: str) -> tuple[Axis, ...]:
            return tuple(space.axes[name] for name in names)

        def fits(one: Columns) -> Bools:
            """Return whether every kind has room for its first replicas, and all together for D."""
            devices, number = one["tensor"] * one["context"] * one["pipeline"], self._first(one)
            kinds = np.all([number * devices <= each for each in space.devices], axis=0)
            return np.asarray(kinds & (one["data"] >= number * len(names)) & (one["data"] * devices <= most))

        def divides(one: Columns, name: str) -> Bools:
            return np.asarray((one[name] % self._first(one) == 0) & (one[name] <= one["data"]))

        def linked(one: Columns) -> Floats:
            first = np.broadcast_to(self._first(one), (len(names), len(one["data"])))
            return self._usd(one, *self.bounds.replicas_s(one, first, one["data"]))

        def room(one: Columns) -> Floats:
            return np.where(self.bounds.has_room(one, one["data"]), 0.0, inf)

        data = Axis(name="data", values=tuple(range(len(names), min(most, self._batch) + 1)))
        rules = (
            *(rule for rule in space.rules if not {*names} & {*rule.names}),
            Rule(names=("microbatch", "data"), holds=lambda one: one["microbatch"] * one["data"] <= self._batch),
            Rule(names=(*degrees, "data"), holds=fits),
            *(Rule(names=(*DEGREES, "data", name), holds=partial(divides, name=name)) for name in ("data", *names)),
        )
        levels = (
            Level(axes=axes(*degrees), bound=lambda one: self._usd(one, *tables(one, has_links=False))),
            *(
                Level(axes=some, bound=lambda one: self._usd(one, *tables(one)))
                for some in ((), axes("microbatch"), (data,))
            ),
            Level(axes=axes("sequence_parallel", "order"), bound=linked),
            Level(axes=axes("recompute", "recompute_modules", "zero", "context_method"), bound=linked),
            Level(axes=(), bound=room),
            Level(axes=axes(*names[:-1])),
        )
        return Grid(levels=levels, rules=rules), self._parted_usd

    @property
    def _batch(self) -> int:
        return self.bounds.cost.batch

    def _first(self, nodes: Columns) -> Ints:
        """Return how many replicas a kind has at least, and in multiples of what: those over which experts lie."""
        shared = nodes["expert"] * nodes["expert_tensor"]
        return np.asarray(shared // np.gcd(nodes["tensor"] * nodes["context"], shared))

    def _parted_usd(self, nodes: Columns) -> Floats:
        """Return what a step costs at least where it is decided which kind has how many replicas."""
        *names, last = self.bounds.space.part_names
        left = nodes["data"] - np.sum([nodes[name] for name in names], axis=0)
        found, at = np.full(len(left), inf), np.flatnonzero(left >= self._first(nodes))
        nodes = {**{name: column[at] for name, column in nodes.items()}, last: left[at]}
        parts, number, taken_s = self.bounds.cost.parts_of(nodes), self._batch / nodes["microbatch"], []
        whole_s, slowest_s, behind_s = self.bounds.replicas_s(nodes, parts)
        *starts, often_s = _starts_s(nodes["pipeline"], whole_s, slowest_s, behind_s)
        for start_s in starts:
            rounds_s = _rounds_s(start_s, slowest_s, np.ceil(number / nodes["data"]))
            shared_s = shared_bound_s(parts.astype(np.float64), start_s, slowest_s, number)
            taken_s.append(np.maximum(rounds_s, shared_s))
        step_s = np.where(taken_s[0] < often_s, taken_s[0], np.maximum(taken_s[1], often_s))
        devices = parts * nodes["tensor"] * nodes["context"] * nodes["pipeline"]
        machines = -(-devices // np.array([each for _, each in self.bounds.space.machines])[:, None])
        usd = np.array(self.usd_per_s) @ machines + self.more_usd_per_s
        found[at] = np.where(step_s <= self.within_s, step_s * usd, inf)
        return found

    def _usd(self, nodes: Columns, whole_s: Floats, slowest_s: Floats, behind_s: Floats | float = 0.0) -> Floats:
        """Return what a step costs at least, by X, x and what is behind of a replica of each kind, (kinds, n)."""
        if "microbatch" not in nodes:  # of equal stages alone a bound of one size is one of others
            slowest_s, samples = whole_s / nodes["pipeline"], self._batch / self.bounds.smallest_microbatch
            start_s = _starts_s(nodes["pipeline"], whole_s, slowest_s, behind_s)[0]
            return self._shared_usd(nodes, samples, start_s, slowest_s, (0.0, self.within_s))
        number = self._batch / nodes["microbatch"]
        once_s, twice_s, often_s = _starts_s(nodes["pipeline"], whole_s, slowest_s, behind_s)
        seldom = self._shared_usd(nodes, number, once_s, slowest_s, (0.0, np.minimum(often_s, self.within_s)))
        return np.minimum(seldom, self._shared_usd(nodes, number, twice_s, slowest_s, (often_s, self.within_s)))

    def _shared_usd(
        self,
        nodes: Columns,
        number: Floats | float,
        start_s: Floats,
        each_s: Floats,
        within_s: tuple[Floats | float, Floats | float],
    ) -> Floats:
        """Return the least of the class's formula.

        Parameters
        ----------
        number, start_s, each_s
            N; h and x, of shape (kinds, n).
        within_s
            Between which T lies.
        """
        first, devices = self._first(nodes), nodes["tensor"] * nodes["context"] * nodes["pipeline"]
        held = np.array([each for _, each in self.bounds.space.machines])[:, None] / devices  # s
        usd, machines = np.array(self.usd_per_s)[:, None], np.ceil(first / held * BELOW)  # c, b
        least, most = first * len(usd), np.minimum(sum(self.bounds.space.devices) // devices, number)
        rounds = number / np.maximum(most, 1)
        if "data" in nodes:
            least, rounds = nodes["data"], np.ceil(number / nodes["data"])
        begun, own_usd = machines * held, (machines * usd).sum(axis=0) + self.more_usd_per_s
        second_usd = own_usd + np.maximum(least - begun.sum(axis=0), 0) * (usd / held).min(axis=0)
        low_s = np.maximum(within_s[0], _rounds_s(start_s, each_s, rounds))
        found = np.full(len(devices), inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            for kind, own_s in enumerate(start_s):
                rate, others = usd[kind] * each_s[kind] / held[kind], np.arange(len(usd)) != kind
                pace = (begun / each_s)[others].sum(axis=0)
                left = number - (begun / each_s * (own_s - start_s))[others].sum(axis=0)
                fixed, shared = own_usd - pace * rate - machines[kind] * usd[kind], left * rate  # c, K
                low, high = low_s - own_s, np.minimum(within_s[1] - own_s, shared / (second_usd - fixed))
                turn = np.clip(np.nan_to_num(np.sqrt(np.maximum(own_s * shared / fixed, 0.0))), low, high)
                least_usd = np.min([(one + own_s) * (fixed + shared / one) for one in (low, high, turn)], axis=0)
                found = np.where(low < high, np.minimum(found, least_usd), 0.0)
        return np.where(low_s <= within_s[1], np.maximum(found, low_s * second_usd), inf)


def _starts_s(
    stages: Ints, whole_s: Floats, slowest_s: Floats, behind_s: Floats | float
) -> tuple[Floats, Floats, Floats]:
    """Return h of replicas by the path once through all stages, and twice, and from how many seconds on the latter.

    From then on, as all have done more micro-batches than they have stages: see :mod:`planner.families.hybrid.bounds`.
    """
    once_s, twice_s = whole_s - (stages + 1) / 2 * slowest_s, 2 * whole_s - (stages + 1) * slowest_s
    return once_s + behind_s, twice_s + behind_s, (twice_s + stages * slowest_s + behind_s).max(axis=0)


def _rounds_s(start_s: Floats, each_s: Floats, rounds: Floats | float) -> Floats:
    """Return seconds in which all replicas do a micro-batch, and those of some kind so many."""
    return np.asarray(np.maximum((start_s + each_s).max(axis=0), (start_s + each_s * rounds).min(axis=0)))
