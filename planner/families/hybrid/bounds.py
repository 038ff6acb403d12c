"""Bounds of the levels of the grid: seconds that no layout below a node is under, by the cost model itself.

Each rests on one thing that can only make a step longer, and that is left out or set to its best.

**Even cuts** (:class:`EvenBounds`):

- *pace*: links that cost nothing, and the pace of the best micro-batch (:mod:`planner.families.hybrid.layer_table`). A
  stage does its own work for every micro-batch; before its first, the first virtual stages of the devices ahead of it
  have passed, and behind its last they pass back: with the most virtual stages, whose first are shortest;
- *linked pace*: the same with the communication of layers, at the nearest ranks and in the best order; where there are
  experts both of the best way to spread them first, and then of each;
- *fits*: infinite where no recomputation, ZeRO stage or host memory makes a layout fit;
- *layers*: the same as linked pace, of the micro-batch that is decided;
- *ordered*: the same of the best order of ranks, with what replicas then exchange at the least; and once more of the
  schedule and the virtual stages that are decided;
- *room*: the same with the least of recomputation that leaves room in memory; where it leaves room without any, nothing
  is known beyond the levels before;
- *communication*: the real links; no bubble but that of equal micro-batches without waits, such recomputation, all
  overlaps that the rules allow beside what is decided;
- *schedule*: the same with the schedule and its transfers, and any recomputation, ZeRO stage and place of the optimiser
  that fits: the least that the next level has;
- *memory*: what is kept exactly, but for overlaps, which only ever cost memory.

Recomputation only adds work, and more of it than communication can hide behind; communication that overlaps computing
never takes longer than if it does not. Where stages differ much, layers that take less may hide less of what another
stage exchanges: the last three levels look without such overlaps, too.

Virtual stages need micro-batches in multiples of the stages: where there are none such, stages hold layers that are
known, and each is passed as a whole. Which layers, with experts or without, a device holds otherwise depends on its
virtual stages. Where these are open, the bounds take all layers to be of the quicker kind, some device to do the mean
of all, and of k devices with most layers one to have no more of the quicker kind than a k-th of them.

**Any cut on any groups** (:class:`CutBounds`). With ``z_k`` seconds of a layer on group k, ``e_i`` what stage i does
besides, ``T`` the slowest stage and ``X`` the sum of all stages, for one micro-batch. Of layers of both kinds each
counts as ``w`` layers, which are L in all, in proportion to its seconds ``t`` on the first group; ``z_k`` is the less
``t_k / w`` of both kinds on group k, so that no layer takes less than ``w z_k``:

- stages hold no more than ``(T - e_i) / z_i`` layers, so that ``T >= (L + sum e_i / z_i) / sum 1 / z_i``; and ``X >=
  sum e_i + sum l_k z_k`` where the quickest groups hold as many of the L layers as they can, ``l_k <= T sum 1 / z_i``
  over their stages. That falls with T while the bounds below rise: the least of both together counts. The path once
  through all stages that else dwells on the slowest one, i, takes ``X + (m - w) T + (w - 1) max(f, b)`` with ``w =
  min(m, p - i)``, and ``max(f, b) >= T / 2``; so a step takes no less than ``X + (m - (w + 1) / 2) T`` with ``w =
  min(m, p)``. As it holds of every stage, none takes more than ``(S - X) / c_i`` in a step of S seconds, with ``c_i = m
  - (w_i + 1) / 2``, and ``S >= X + (L + sum e_i / z_i) / sum 1 / (c_i z_i)``, where ``l_k <= (S - X) sum 1 / (c_i
  z_i)``: the more stages, the less. For ``m > p`` the path twice through all stages, which dwells on i between, takes
  ``2 X - (sum before i) + (m - 1 - p + i) T``, and so no less than ``2 X + (m - 1 - p) T``, since no stage before i
  takes more than T. With micro-batches at the pace of the best one this counts where all their sizes are multiples of
  the smallest;
- a class of p-stage replicas likewise takes no less than ``X (p - 1) / 2 p + m X / p``; micro-batches in fractions that
  make all classes end together are a bound of any numbers;
- layers are whole, so that of p stages on one group one has ``ceil(L / p)`` or more, and of stages on several none
  more than whole ones in its time (:meth:`CutBounds.whole_s`).

*pace*, *linked pace* and *layers* as above, with as many stages or replicas as could be where they are open. *any
parts*: the real links before it is decided how many replicas are where (:meth:`CutBounds.any_parts_s`).
*communication*: the real links, before and after recomputation is decided, with what is behind the schedule, as some
stage of any cut has; O(groups) a node, whatever the number of stages.
*room*: the same with each recomputation that leaves room for all layers, infinite where none does. *best path*: all is
decided but overlaps and the schedule's waits; *path*: but these waits. The latter two are of the cuts that are tried,
the others of all cuts.

Where a batch has too many divisors to look at all (:attr:`Space.is_split`), *peak* stands in place of both paces: the
FLOP of the network at the highest rate that was fitted. Tests hold every bound against every layout of small grids.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import product
from math import comb, inf, prod
from typing import Any, Self

import numpy as np

from planner.cost import Floats
from planner.errors import InfeasibleError
from planner.families.hybrid.configuration import AWAY, COARSE, CODES_OF_CUTS, OVERLAPS
from planner.families.hybrid.cost import GroupCost, HybridCost, costs_of, has_few_cuts
from planner.families.hybrid.layer_table import Known, LayerTable, LeastSeconds
from planner.families.hybrid.space import Bound, Space
from planner.models.communication import ORDERS
from planner.models.layouts import (
    ANY_CONTEXT_METHOD,
    Bools,
    EvenCut,
    Ints,
    Layouts,
    Recompute,
    Schedule,
    busiest_stages,
    dealt_layers,
    folded_layers,
    layers_by_kind,
    shared_bound_s,
)
from planner.models.offload import OFFLOAD_SETS
from planner.models.operators import flop_per_sample
from planner.models.programs import PROGRAMS
from planner.models.schedule import MOST_ROUNDS
from planner.models.transformer_interval import LAYER_PARTS, mean_layer
from planner.models.transformer_schedule import Stages, lower_bound_s
from planner.models.transformer_step import (
    GroupSeconds,
    behind_mean_stage_s,
    least_behind_s,
    least_exchanged_s,
    mean_stage_s,
)
from planner.models.transformer_time import cut_times
from planner.networks import samples_of
from planner.problem import Problem
from planner.search import Search
from planner.solution import BELOW
from planner.solvers.grid import MOST_AT_ONCE, Axis, Columns, Grid, Level, OverError, Rule, distinct
from planner.transformer import KINDS, Transformer

_ROUNDING = 1 + 1e-12  # of bytes that are added up in another order
_WHOLE = 1 + 1e-9  # of layers in fractions
_MOST_SUMMED = 1 << 12  # terms of the harmonic series: of longer sums, what is left of a difference is too inexact
_HALVES = 8  # of an interval of seconds
_ROUNDS = 2  # of what stages hold by what they pass, and that by what they hold
EVERY_ZERO = (0, 1, 2, 3)
# What nothing that replicas exchange depends on.
_INSIDE_REPLICAS = {"sequence_parallel", "recompute", "recompute_modules", "context_method", "overlap_tensor"}
_EVERY_RECOMPUTE = (0, 1, 2)
_SHARDS_WEIGHTS = 3  # the stage of ZeRO that gathers in every micro-batch
NOTHING_AGAIN = (int(Recompute.NONE), 0)  # is computed again
_BEST = {
    "zero": 0,
    "recompute": 0,
    "recompute_modules": 0,
    "recompute_layers": 0,
    "shard": 0,
    "offload_layers": 0,
    "offload_percent": 100,
    "offload_modules": 0,
    "sequence_parallel": 1,
    "schedule": int(Schedule.ONE_F_ONE_B),
    "interleave": 1,
    "offload_optimizer": 0,
    "overlap_data": 1,
    "overlap_tensor": 1,
    "overlap_expert": 1,
    "order": 0,
    "context_method": ANY_CONTEXT_METHOD,
}
_OF_LAYERS = {"overlap_tensor": "tensor", "overlap_expert": "expert"}  # overlaps within a layer, by whose ranks
_NUMBERED = ("sequence_parallel", "order")  # how ranks lie, which is decided after the replicas of each group
_BEST_OF_CUTS = {**_BEST, **CODES_OF_CUTS}
_MOST_CELLS = 100_000  # stages times layouts in one array
_MOST_PACED = 1 << 14  # nodes whose pace is worked out together: their columns stay in the processor's cache
_MOST_NODES = 10_000  # whose communication is bounded together
_MOST_TASKS = 1 << 23  # stages times micro-batches whose schedules are played in one go
_MOST_SHARED = 100  # layouts whose micro-batches are shared out in one go


# -- what no plan beats, without a search: all devices at the highest rate that was fitted -----------------------------


def lower_bound(problem: Problem) -> float:
    """Return an objective that no plan of the family beats, in the goal's unit; 0 where the family does not apply.

    The FLOP of the network's matrix multiplications at the device's rate of large ones or of attention, whichever is
    higher: none is timed below that (:mod:`planner.models.compute`). A layout may stand on all groups of machines.
    """
    try:
        costs = costs_of(problem)
    except InfeasibleError:
        return 0.0
    return _peak_s(costs, samples_of(problem))


def peak_step_s(costs: Sequence[GroupCost]) -> float:
    """Return seconds that no layout on some groups of machines takes a step less than."""
    return _peak_s(costs, costs[0].batch)


def _peak_s(costs: Sequence[GroupCost], samples: float) -> float:
    """Return seconds that so many samples take at least."""
    flop, rate = flop_per_sample(costs[0].transformer).total_flop, 0.0
    for cost in costs:
        rate += cost.rates.most_flop_per_s * cost.cluster.num_devices
    return samples * flop / rate * BELOW


def fullest_s(transformer: Transformer, layer_s: Floats, stages: Ints) -> Floats:
    """Return seconds of layers that some stage is not under, whatever the cut: shape (2, n).

    Where none has more than ``ceil(L / p)``, so many have as many, and one of these no more layers of the quickest kind
    than their mean. Else one has a layer more.

    Parameters
    ----------
    layer_s
        Of each kind, shape (kinds, n).
    stages
        p, shape (n,).
    """
    most = -(-transformer.num_layers // stages)
    quickest_s, *others = np.sort(layer_s, axis=0)
    second_s = others[0] if others else quickest_s
    number = np.array([*transformer.kind_counts.values()])[np.argmin(layer_s, axis=0)]
    fullest = transformer.num_layers - (most - 1) * stages
    quick = np.array([np.minimum(number // fullest, most), np.minimum(number, most + 1)])
    return np.asarray(quick * quickest_s + (np.array([most, most + 1]) - quick) * second_s)


@dataclass(frozen=True)
class Bounds(ABC):
    """Bounds on the machines of a cost; ``memory_limit_bytes`` in place of the devices' own where that is less.

    They raise :class:`OverError` where the search is over.
    """

    cost: HybridCost
    search: Search = field(default_factory=Search)
    memory_limit_bytes: float = inf

    @classmethod
    def of(cls, cost: HybridCost, search: Search | None = None, memory_limit_bytes: float = inf) -> "Bounds":
        """Return the bounds that go with a placement."""
        kind = CutBounds if not cost.is_even else EvenBounds if cost.first.cut is None else GivenBounds
        return kind(cost, search or Search(), memory_limit_bytes)

    @cached_property
    def space(self) -> Space:
        """What may be chosen."""
        return Space.of(self.cost)

    def of_space(self, space: Space) -> Self:
        """Return the same bounds where less, or something else, may be chosen."""
        found = replace(self)
        vars(found)["space"] = space
        return found

    @property
    @abstractmethod
    def all(self) -> Sequence[Bound | None]:
        """Those of all levels but the last; None where one has none."""

    @abstractmethod
    def seconds(self, nodes: Columns) -> Floats:
        """Return the seconds of points; infinite where they do not fit."""

    @cached_property
    def smallest_microbatch(self) -> int:
        """The fewest samples that a micro-batch may have; 1 where it may have none."""
        return min(self.space.axes["microbatch"].values, default=1)

    @property
    def microbatches(self) -> Sequence[int]:
        """Samples that a micro-batch may have."""
        return self.space.axes["microbatch"].values or (1,)

    @cached_property
    def by_work(self) -> Sequence[int]:
        """What may be computed again: the least work first, and the most memory; all of it last."""
        return sorted(self.space.axes["recompute"].values)

    @cached_property
    def _again(self) -> Sequence[Mapping[str, int]]:
        """What may be computed again: nothing, sets of modules, whole layers; how many of these is told apart."""
        sets = self.space.axes["recompute_modules"].values
        return [
            {"recompute": recompute, "recompute_modules": modules}
            for recompute in self.by_work
            for modules in (sets if recompute == Recompute.SELECTIVE else (0,))
        ]

    @property
    def _most_again(self) -> Sequence[Mapping[str, int]]:
        """What of it takes most work and, where all activations wait on the device, least memory: all, if allowed."""
        return [one for one in self._again if one["recompute"] == Recompute.FULL] or self._again

    @property
    def _context_method(self) -> int:
        """The only method of context parallelism that there may be, or whichever takes least."""
        values = self.space.axes["context_method"].values
        return values[0] if len(values) == 1 else ANY_CONTEXT_METHOD

    def layer_table(self, group: GroupCost, *, has_links: bool, best: Mapping[str, int]) -> LayerTable:
        """Return the least seconds of layers on a machine group, with the best values of decisions that are open."""
        if not has_links:  # nothing overlaps, so that all placements share one table
            best = _BEST
        whole = {**dict.fromkeys(COARSE, 1), **best, "context_method": self._context_method}
        return LayerTable.kept(group, self.space.axes, has_links=has_links, best=whole, split=self._split)

    @cached_property
    def _split(self) -> tuple[int, ...]:
        """Tensor degrees, each with and without sequence parallelism where rules allow it: see :class:`LayerTable`."""
        axes = tuple(self.space.axes[name] for name in ("tensor", "sequence_parallel"))
        pairs = Grid(levels=(Level(axes=axes),), rules=self.space.rules).expand({}, 0)
        return tuple((2 * pairs["tensor"] + pairs["sequence_parallel"]).tolist())

    def grid(self, *, uses_bounds: bool = True) -> Grid:
        """Return the grid with these bounds, or without."""
        return self.space.grid(self.all if uses_bounds else None)

    def _ask(self) -> None:
        """Raise an error where the search is over."""
        if self.search.is_over:
            raise OverError

    def slices(self, length: int, most: int = MOST_AT_ONCE // 8) -> Iterator[slice]:
        """Yield slices of a range, each of at most so many; raise an error where the search is over."""
        for start in range(0, length, most):
            self._ask()
            yield slice(start, min(start + most, length))


def _sharding_is_free(group: GroupCost) -> bool:
    """Whether ZeRO 1 never needs more memory than 0: it has no buffers, and of no weights a copy beside what is shared.

    Where experts' weights are gathered, a device may hold them twice: they may be its own alone.
    """
    has_copies = group.precision.gathers_weights and group.transformer.experts is not None
    return not (group.kernels.shard_buffers_bytes or group.kernels.reduced_bytes or has_copies)


# -- even cuts on one group --------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _evenness(
    network: Transformer,
    pipeline: int,
    interleave: int,
    schedule: int,
    cut: tuple[int, ...] | None,
    *,
    of_experts: bool,
) -> float:
    """Return the layers of the device with fewest over those of the one with most, of the kind where that is least.

    ``cut``: the layers of every virtual stage, where they are not dealt out; ``of_experts``: of kinds with experts.
    """
    is_folded = schedule >= Schedule.ZB_V
    pipeline = pipeline // 2 if schedule == Schedule.DUALPIPE else pipeline
    if cut is None and is_folded:
        cut = tuple(folded_layers(network.num_layers, pipeline).tolist())
    elif cut is None:
        cut = tuple(dealt_layers(network.num_layers, pipeline, interleave).ravel().tolist())
    held = layers_by_kind(network, np.array(cut)).reshape(-1, len(cut) // pipeline, pipeline)
    if is_folded:
        held[:, 1::2] = held[:, 1::2, ::-1].copy()
    counts = held.sum(axis=1)[[KINDS[kind].feed_forward == "moe" or not of_experts for kind in network.kind_counts]]
    return float((counts.min(axis=1) / counts.max(axis=1)).min(initial=1.0))


@dataclass(frozen=True)
class EvenBounds(Bounds):
    """Bounds of even cuts on one group."""

    @property
    def _limit_bytes(self) -> float:
        """What a device may hold."""
        return min(self._group.memory_limit_bytes, self.memory_limit_bytes)

    @property
    def _group(self) -> GroupCost:
        """The cost on the one group."""
        return self.cost.first

    @property
    def all(self) -> Sequence[Bound | None]:
        """See the module."""
        fine: list[Bound] = [self.room_s, self.communication_s, self.schedule_s, self.memory_s]
        return [*self._coarse, self.fits, self.layers_s, self.ordered_s, self.ordered_s, *fine]

    @property
    def _coarse(self) -> Sequence[Bound]:
        """Those of the degrees."""
        spread = [] if self.cost.transformer.experts is None else [self.linked_pace_s]
        return [self.peak_s] if self.space.is_split else [self.pace_s, self.linked_pace_s, *spread]

    @cached_property
    def _ideal(self) -> LayerTable:
        """Layers where links cost nothing."""
        return self.layer_table(self._group, has_links=False, best=_BEST)

    @cached_property
    def _linked(self) -> Mapping[tuple[int, ...], LayerTable]:
        """Layers with the real links, by what is computed again."""
        found = {}
        for one in ({"recompute": int(Recompute.NONE), "recompute_modules": 0}, *self._again):
            row = self._filled({name: np.array([value]) for name, value in one.items()})
            best = {name: int(row[name][0]) for name in _BEST}
            found[tuple(one.values())] = self.layer_table(self._group, has_links=True, best=best)
        return found

    def peak_s(self, nodes: Columns) -> Floats:
        """Return the step at the highest rate that was fitted, whatever the micro-batch."""
        number = nodes["tensor"] * nodes["context"] * nodes["pipeline"] * nodes["data"]
        return np.asarray(peak_step_s([self._group]) * self._group.cluster.num_devices / number)

    def pace_s(self, nodes: Columns) -> Floats:
        """Return the step of the best virtual stages at the pace of the best micro-batch, where links cost nothing."""
        return self._pace_s(nodes, self._ideal)

    def linked_pace_s(self, nodes: Columns) -> Floats:
        """Return the same with the communication of layers."""
        return self._pace_s(nodes, self.linked_table)

    @property
    def linked_table(self) -> LayerTable:
        """Layers with the real links, nothing computed again."""
        return self._linked[NOTHING_AGAIN]

    def _pace_s(self, nodes: Columns, table: LayerTable) -> Floats:
        """Return the same of a table: see :mod:`planner.families.hybrid.layer_table`."""
        self._ask()
        smallest, found = self.smallest_microbatch, np.empty(len(nodes["data"]))
        for part in self.slices(len(found), _MOST_PACED):
            few = {name: column[part] for name, column in nodes.items()}
            samples = self.cost.batch // few["data"]
            each = {**few, "microbatch": np.full(len(samples), smallest)}
            least = table.of_each_sample(few, samples, self.microbatches, self._ask, self._with_experts)
            is_open = (samples >= smallest) & np.isfinite(least.layer_s).all(axis=0)  # some way spreads its experts
            with np.errstate(invalid="ignore"):  # of what is not open
                found[part] = np.where(is_open, self._any_schedule_s(each, least, rounds_of=samples), inf)
        return found

    def _with_experts(self, nodes: dict[str, Ints]) -> tuple[Columns, Ints]:
        """Return nodes in every way that their experts may be spread, and whose they are."""
        free = {name: self.space.axes[name].values for name in ("expert", "expert_tensor") if name not in nodes}
        return self.space.below(nodes, free)

    def layers_s(self, nodes: Columns) -> Floats:
        """Return the step of the best virtual stages with the communication of layers."""
        found = np.empty(len(nodes["tensor"]))
        for part in self.slices(len(found), _MOST_PACED):
            few = {name: column[part] for name, column in nodes.items()}
            found[part] = self._any_schedule_s(few, self.linked_table.of(few, self._ask))
        return found

    def ordered_s(self, nodes: Columns) -> Floats:
        """Return the step of the best order of ranks, with what replicas exchange.

        Tensor ranks are near each other in some orders, and replicas in others. With m micro-batches of x seconds a
        device on average, and R and G of reductions and gathers, no more than x is hidden of these: a step takes no
        less than ``(m - 1) x + R + G``. With ZeRO 3 all of m x may hide some.
        """
        rows, back = self._exchanged.of(nodes, self._least_exchanged)
        number = self.cost.batch // (nodes["data"] * nodes["microbatch"])
        counts = np.array([*self.cost.transformer.kind_counts.values()])
        shown = np.ones(len(number))
        if _SHARDS_WEIGHTS in self.space.axes["zero"].values:
            _, owner = self.space.below(nodes, {"zero": (_SHARDS_WEIGHTS,)})
            shown[owner] = 0.0
        found = np.full(len(number), inf)
        for table, exchanged_s in zip(self._by_order.values(), rows[:, back], strict=True):
            least = table.of(nodes, self._ask)
            computed_s = (number - 1) * (counts @ least.layer_s) + number * (least.embedding_s + least.head_s)
            behind_s = shown * computed_s / nodes["pipeline"] + exchanged_s
            found = np.minimum(found, np.maximum(self._any_schedule_s(nodes, least), behind_s))
        return found

    @cached_property
    def _by_order(self) -> Mapping[tuple[str, ...], LayerTable]:
        """Layers with the real links, nothing computed again, by the order of ranks but for the pipeline's place."""
        axes, best = self.space.axes, self.linked_table.best
        found: dict[tuple[str, ...], LayerTable] = {}
        for one in axes["order"].values:
            order = {**axes, "order": Axis(name="order", values=(one,))}
            names = tuple(name for name in ORDERS[one] if name != "pipeline")
            found.setdefault(names, LayerTable.kept(self._group, order, has_links=True, best=best, split=self._split))
        return found

    @cached_property
    def _exchanged(self) -> Known:
        """By degrees, what replicas exchange at the least in each of these orders."""
        return Known({name: self.space.axes[name].values for name in COARSE}, num_rows=len(self._by_order))

    def _least_exchanged(self, few: Columns) -> Floats:
        """Return what replicas exchange in each order, in shards or not; nothing where other layouts exchange less."""
        size = len(few["tensor"])
        found = np.zeros((len(self._by_order), size))
        if self._folded or len(self.space.axes["shard"].values) > 1:
            return found
        zeros = {min(one, 1) for one in self.space.axes["zero"].values}
        for row, names in enumerate(self._by_order):
            near = {"order": ORDERS.index((*names, "pipeline")), "microbatch": self.smallest_microbatch}
            columns = {**few, **{name: np.full(size, value) for name, value in near.items()}}
            layouts = [self._group.layouts(self._filled({**columns, "zero": np.full(size, one)})) for one in zeros]
            found[row] = np.min([least_exchanged_s(self._group.figures, one) for one in layouts], axis=0)
        return found

    def room_s(self, nodes: Columns) -> Floats:
        """Return the same of the least recomputation that leaves room; infinite where none does."""
        codes, share = self._recomputations(nodes)
        found = np.where(codes == 0, inf, 0.0)
        for place, again in enumerate(self._again):
            if again["recompute"] == Recompute.NONE:
                continue
            at = np.flatnonzero(
                (codes & self._none == 0) & (codes >> place & 1 == 1)
            )  # each that leaves room may be the best
            if not len(at):
                continue
            columns = {name: column[at] for name, column in nodes.items()}
            least = self._linked[tuple(again.values())].of(columns, self._ask)
            if again["recompute"] == Recompute.FULL:
                least = self._linked[NOTHING_AGAIN].of(columns, self._ask).mixed(least, share[at])
            seconds = self._any_schedule_s(columns, least)
            found[at] = np.minimum(np.where(found[at] == 0.0, inf, found[at]), seconds)
        return found

    def _any_schedule_s(self, nodes: Columns, least: LeastSeconds, *, rounds_of: Ints | None = None) -> Floats:
        """Return seconds that no schedule goes below, or not the one that is decided; transfers cost nothing.

        Parameters
        ----------
        least
            Seconds of one micro-batch, of each node.
        rounds_of
            What the stages must divide, where there are virtual stages; left out: the number of micro-batches. Of any
            of their sizes they divide the samples.
        """
        layouts = self._group.layouts(self._filled(nodes))
        if "interleave" not in nodes:  # with the most virtual stages that a device may have a stage waits least
            most = max(self.space.axes["interleave"].values, default=1)
            chunks = np.clip((self.cost.transformer.num_layers + 2) // nodes["pipeline"], 1, most)
            number = layouts.num_microbatches if rounds_of is None else rounds_of
            layouts = replace(layouts, interleave=np.where(number % nodes["pipeline"] == 0, chunks, 1))
        if not self._puts_off:
            return self._passed_s(layouts, least, is_decided="interleave" in nodes)
        found = self._late_s(layouts, least)
        plain = np.flatnonzero(nodes.get("schedule", np.full(len(found), Schedule.ZB_H1)) < Schedule.ZB_H1)
        if len(plain):
            found[plain] = self._passed_s(layouts.of(plain), least.of(plain), is_decided="interleave" in nodes)
        return found

    def _late_s(self, layouts: Layouts, least: LeastSeconds) -> Floats:
        """Return the same where gradients of weights may wait, or virtual stages turn at the last device."""
        if self._folded:  # their first device has both ends, and others share out the rest
            counts = np.array([*self.cost.transformer.kind_counts.values()])
            whole_s = counts @ least.layer_s + least.embedding_s + least.head_s
            return np.asarray(layouts.num_microbatches * whole_s / layouts.pipeline)
        _, stages = self._alike(layouts, least)
        devices = (stages.first, stages.last)
        busiest = np.maximum.reduce([np.broadcast_to(device.both_s, len(layouts)) for device in devices])
        busiest = np.maximum(busiest, np.where(layouts.pipeline > 2, stages.middle.both_s, 0.0))
        if len(least.layer_s) > 1:
            busiest = np.maximum(busiest, self._busiest_s(layouts, least))
        return np.asarray(layouts.num_microbatches * busiest)

    def _passed_s(self, layouts: Layouts, least: LeastSeconds, *, is_decided: bool) -> Floats:
        """Return the same of GPipe and 1F1B: before a stage works, and behind, micro-batches pass those before it.

        ``is_decided``: whether there are no other virtual stages; else layers of several kinds are all alike, or some
        device has the busiest mean.
        """
        is_known = is_decided | (layouts.interleave == 1)
        if len(least.layer_s) > 1 and is_known.all():
            return self._of_stages_s(layouts, least)
        cut, stages = self._alike(layouts, least)
        found = lower_bound_s(stages, layouts, cut)
        if len(least.layer_s) == 1:
            return found
        found = np.maximum(found, layouts.num_microbatches * self._busiest_s(layouts, least))
        known = np.flatnonzero(is_known)
        if len(known):
            found[known] = self._of_stages_s(layouts.of(known), least.of(known))
        return found

    def _of_stages_s(self, layouts: Layouts, least: LeastSeconds) -> Floats:
        """Return the same of stages whose layers are known: a stage does its work for every micro-batch.

        The first virtual stages of those before it are passed once each way.
        """
        busy = busiest_stages(self.cost.transformer, layouts)

        def of_layers(layers: Ints) -> Floats:
            return np.asarray((layers * least.layer_s[:, None]).sum(axis=0))

        is_first, is_last = busy.index == 0, busy.index == layouts.pipeline - 1
        own_s = of_layers(busy.layers) + is_first * least.embedding_s + is_last * least.head_s
        passed_s = of_layers(busy.before) + ~is_first * least.embedding_s
        return np.asarray((layouts.num_microbatches * own_s + passed_s).max(axis=0))

    @property
    def _puts_off(self) -> bool:
        """Whether a schedule may compute gradients of weights later."""
        return max(self.space.axes["schedule"].values, default=0) >= Schedule.ZB_H1

    def _busiest_s(self, layouts: Layouts, least: LeastSeconds) -> Floats:
        """Return seconds of a micro-batch that some device is not under, whatever layers virtual stages give it.

        The mean of all devices; and of those with most layers the one with fewest of the quickest kind.
        """
        network, pipeline, by_kind = self.cost.transformer, layouts.pipeline, least.layer_s
        counts = np.array([*network.kind_counts.values()])
        mean_s = (counts @ by_kind + least.embedding_s + least.head_s) / pipeline
        most = -(-network.num_layers // pipeline)
        fullest = pipeline - (most * pipeline - network.num_layers)
        quick = np.minimum(counts[np.argmin(by_kind, axis=0)] // fullest, most)
        quickest_s, second_s, *_ = np.sort(by_kind, axis=0)
        fullest_s = quick * quickest_s + (most - quick) * second_s
        return np.asarray(np.maximum(mean_s, fullest_s))

    def _alike(self, layouts: Layouts, least: LeastSeconds) -> tuple[EvenCut, Stages]:
        """Return the cuts and devices of layouts as if all layers were of the kind that takes least."""
        cut = EvenCut.of(self.cost.transformer.num_layers, layouts)
        quickest = np.argmin(least.layer_s, axis=0)[None]
        both, ahead = (np.take_along_axis(one, quickest, axis=0)[0] for one in (least.layer_s, least.layer_forward_s))
        ends = ((least.embedding_forward_s, least.embedding_s), (least.head_forward_s, least.head_s))
        times = cut_times(cut, (ahead, both), *ends)
        ahead, both = times["middle"]
        first, last = ((forward, whole - forward) for forward, whole in (times["first"], times["last"]))
        return cut, Stages.of(layouts, ahead, both - ahead, first_extra_s=first, last_extra_s=last)

    @property
    def _some_chunks(self) -> tuple[int, ...]:
        """Numbers of virtual stages that change what devices hold: of layers of one kind those of a V."""
        known = self.space.axes["interleave"].values
        return known if len(self.cost.transformer.kind_counts) > 1 else tuple(one for one in known if one <= 2) or known

    @cached_property
    def _folded(self) -> tuple[int, ...]:
        """Schedules that may be taken and turn at the last device."""
        return tuple(one for one in self.space.axes["schedule"].values if one >= Schedule.ZB_V)

    def fits(self, nodes: Columns) -> Floats:
        """Return infinity where nothing fits, in the smallest micro-batch where that is open, and else 0."""
        return np.where(self._has_room(nodes, self._most_saving), 0.0, inf)

    def _has_room(self, nodes: Columns, again: Sequence[Mapping[str, int]]) -> Bools:
        """Return whether some layout below nodes of the first levels fits, with one of what may be computed again.

        Stages of the fewest chunks are looked at first, and others where these do not fit: of layers of several kinds
        chunks may share them out better.
        """
        found = np.zeros(len(nodes["tensor"]), dtype=bool)
        chunks = self._free_memory.get("interleave", ())
        for one, some in product(again, (chunks[:1], chunks[1:]) if len(chunks) > 1 else (chunks,)):
            if found.all():
                break
            free = {**self._free_memory, **{name: (value,) for name, value in one.items()}}
            free |= {"interleave": some} if some else {}
            left = np.flatnonzero(~found)
            columns = {name: column[left] for name, column in nodes.items()}
            found[left] = self._smallest_memory(columns, free) <= self._limit_bytes * _ROUNDING
        return found

    @property
    def _most_saving(self) -> Sequence[Mapping[str, int]]:
        """What may be computed again among which one needs least memory: all, where that is allowed.

        Or nothing, where activations may wait on the host.
        """
        if any(any(self.space.axes[name].values) for name in AWAY):
            return self._again
        return self._most_again

    @property
    def _none(self) -> int:
        """The bit of computing nothing again; 0 where that is not allowed."""
        return sum(1 << place for place, one in enumerate(self._again) if one["recompute"] == Recompute.NONE)

    @cached_property
    def _rooms(self) -> Known:
        """By degrees and micro-batch, which recomputations leave room, and the share where they are of whole layers."""
        return Known({name: self.space.axes[name].values for name in (*COARSE, "microbatch")}, num_rows=2)

    def _recomputations(self, nodes: Columns) -> tuple[Ints, Floats]:
        """Return which recomputations leave room and may be the best, as bits in the order of :attr:`_again`.

        Where none is needed it is the only one. And the least share of the layers of a stage, where whole ones are.
        """

        def worked_out(few: Columns) -> Floats:
            found, share = np.zeros(len(few["tensor"]), dtype=np.int64), np.zeros(len(few["tensor"]))
            left = np.flatnonzero(self._has_room(few, self._most_saving))
            for place, again in enumerate(self._again):
                if not len(left):
                    break
                columns = {name: column[left] for name, column in few.items()}
                is_full = again["recompute"] == Recompute.FULL
                found[left] |= np.where(is_full or self._has_room(columns, [again]), 1 << place, 0)
                if is_full:
                    share[left] = self._least_share(columns)
                if again["recompute"] == Recompute.NONE:
                    left = left[found[left] == 0]
            return np.array([found.astype(np.float64), share])

        (codes, shares), back = self._rooms.of(nodes, worked_out)
        return np.asarray(codes.astype(np.int64)[back]), np.asarray(shares[back])

    def _least_share(self, nodes: Columns) -> Floats:
        """Return the least share of a stage's layers that must be computed again, where some may be.

        The fullest stage without recomputation holds ``N`` bytes, ``A`` of them activations, of which a share s of
        layers saves no more than ``s A``: so ``s >= (N - limit) / A``. A stage of fewer layers has as many computed
        again, so that the one of most layers may have a share a little less.
        """
        if not any(self.space.axes["recompute_layers"].values):
            return np.ones(len(nodes["tensor"]))
        found = np.full(len(nodes["tensor"]), inf)

        def shares(held: Mapping[str, Floats]) -> Floats:
            return (held["total"] - self._limit_bytes * _ROUNDING) / np.maximum(held["activations"], 1.0)

        on_device = {name: (0,) for name in AWAY if 0 in self.space.axes[name].values}  # as all do that compute again
        self._over_memory(nodes, {**self._free_memory, **on_device}, found, shares)
        layers = self.cost.transformer.num_layers
        most, few = -(-layers // nodes["pipeline"]), 1 + bool(self._folded)
        less = np.where(layers % nodes["pipeline"] > 0, np.maximum(most - few, 0) / most, 1.0)
        return np.asarray(np.clip(found, 0.0, 1.0) * less)

    @cached_property
    def _free_memory(self) -> Mapping[str, Sequence[int]]:
        """Decisions behind the first levels on which memory depends, and their values among which one needs least."""
        plain, schedules = int(Schedule.ONE_F_ONE_B), self.space.axes["schedule"].values
        may_lack = plain not in schedules or PROGRAMS[self._group.program].fills_stages
        free: dict[str, Sequence[int]] = {
            "sequence_parallel": (0, 1),
            # 1F1B keeps no more than the others, but for some that turn at the last device.
            "schedule": schedules if may_lack else (plain, *self._folded),
        }
        if self._folded or len(self.cost.transformer.kind_counts) > 1:  # virtual stages may share layers out better
            free["interleave"] = self._some_chunks
        return free

    def smallest_memory(self, nodes: Columns) -> Floats:
        """Return bytes that no layout below nodes of the first levels is under; infinity where there is none."""
        return self._smallest_memory(nodes, {**self._free_memory, "recompute": _EVERY_RECOMPUTE})

    def communication_s(self, nodes: Columns) -> Floats:
        """Return the seconds with the real links and the smallest bubble.

        Work that is done again takes longer, but may hide more of what replicas exchange: of stages that are unlike
        both may be of some use, so that the least of each part is taken (:meth:`_shown_s`).
        """

        def seconds(columns: Columns) -> Floats:
            parts = self._best_parts(columns)
            busy = sum((parts[name] for name in LAYER_PARTS), np.zeros(len(columns["pipeline"])))
            # Interleaved stages may send beside computing, and what fills a pipeline is no part of this bound.
            is_beside = (columns["interleave"] > 1) & self._group.software.overlaps_transfers
            busy = busy + np.where(is_beside, 0.0, parts["pipeline"])
            interval = self._group.interval(self._group.layouts(self._filled(columns)))
            step = self._any_schedule_s(columns, LeastSeconds.of_interval(self.cost.transformer, interval))
            return np.maximum(busy, step) + self._shown_s(columns, parts["data"]) + parts["optimizer"]

        free: dict[str, Sequence[int]] = {"zero": EVERY_ZERO, "shard": self.space.axes["shard"].values}
        found = np.full(len(nodes["tensor"]), inf)
        columns, owner = self._with_recomputation(nodes)
        if len(owner):
            least = partial(self._of_each_context, seconds=lambda nodes: seconds(self._with_share(nodes)))
            np.minimum.at(found, owner, self._minimum(columns, free, least))
        return found

    def _of_each_method(self, nodes: Columns, seconds: Bound) -> Floats:
        """Return the least seconds of each method of context parallelism, and without each overlap, that are open.

        What takes less in one stage may hide less of what its replicas exchange, and this may be what a step waits for:
        the least of each part is no bound of their sum. Of stages that are nearly equal it is (:func:`_evenness`).
        """
        found = self._of_each_context(nodes, seconds)
        names = [name for name in _OF_LAYERS if name not in nodes and {*self.space.axes[name].values} == {0, 1}]
        shows = {name: (found < inf) & (nodes[_OF_LAYERS[name]] > 1) & self._may_show(nodes, name) for name in names}
        for sets in product((False, True), repeat=len(names)):
            without = [name for name, is_without in zip(names, sets, strict=True) if is_without]
            at = np.flatnonzero(np.logical_and.reduce([shows[name] for name in without])) if without else ()
            if len(at):
                columns = {name: column[at] for name, column in nodes.items()}
                columns |= dict.fromkeys(without, np.zeros(len(at), dtype=np.int64))
                found[at] = np.minimum(found[at], self._of_each_context(columns, seconds))
        return found

    def _shown_s(self, nodes: Columns, data_s: Floats) -> Floats:
        """Return the seconds of what replicas exchange that show, of stages that are unlike the least of any work.

        Behind the most work least shows: without overlaps that are open, and with whole layers computed again.

        Parameters
        ----------
        data_s
            What shows with the work that nodes name.
        """
        at = np.flatnonzero(self._may_show(nodes)) if len(self.cost.transformer.kind_counts) > 1 else ()
        if not len(at):
            return data_s
        found = data_s.copy()
        open_ones = [name for name in _OF_LAYERS if name not in nodes and 0 in self.space.axes[name].values]
        for again in self._most_again:
            more = {**dict.fromkeys(open_ones, 0), **again, "recompute_layers": 0}
            columns = {name: column[at] for name, column in nodes.items()}
            columns |= {name: np.full(len(at), value) for name, value in more.items()}
            found[at] = np.minimum(found[at], self._best_parts(columns)["data"])
        return found

    def _may_show(self, nodes: Columns, overlap: str = "") -> Bools:
        """Return whether layers that take less by an overlap, or by anything, may make a step longer.

        Per second that each layer takes less the busiest stage gains as many as it has layers, and another one shows
        all but the contention's share of as many as it has.
        """
        hidden = 1 - self._group.constants.contention
        first, back = distinct(nodes, ("pipeline", "interleave", "schedule"))
        rows = zip(*(nodes[name][first].tolist() for name in ("pipeline", "interleave", "schedule")), strict=True)
        network, cut = self.cost.transformer, self.cost.first.cut
        found = [_evenness(network, *row, cut, of_experts=overlap == "overlap_expert") < hidden for row in rows]
        return np.array(found, dtype=bool)[back]

    def _of_each_context(self, nodes: Columns, seconds: Bound) -> Floats:
        """Return the same of each method of context parallelism, with all overlaps that are open."""
        methods = self.space.axes["context_method"].values
        if "context_method" in nodes or len(methods) == 1:
            return seconds(nodes)
        if len(self.cost.transformer.kind_counts) == 1 and not self._may_show(nodes).any():
            return seconds(nodes)
        found = np.full(len(nodes["context"]), inf)
        rules = [one for one in self.space.rules if "context_method" in one.names]
        for method in methods:
            asked = {**nodes, "context_method": np.full(len(found), method)}
            holds = [rule.holds(asked) for rule in rules if asked.keys() >= set(rule.names)]
            at = np.flatnonzero(np.logical_and.reduce([np.ones(len(found), dtype=bool), *holds]))
            if len(at):
                columns = {name: column[at] for name, column in asked.items()}
                found[at] = np.minimum(found[at], seconds(columns))
        return found

    def schedule_s(self, nodes: Columns) -> Floats:
        """Return the seconds with the schedule, the best of all recomputation; infinity where nothing fits.

        Computing again may shorten a schedule a little: a floor of launching is shared out to forward and backward as
        computing is, and where the floor is all that counts, more of it then falls to backward.
        """
        names = ("recompute", "recompute_modules", "recompute_layers", "zero", "shard", "offload_optimizer")
        free = {name: self.space.axes[name].values for name in (*names, "offload_percent")}
        return self._minimum(
            nodes, {**free, **self._most_away}, partial(self._of_each_method, seconds=self._without_waits_s)
        )

    @cached_property
    def _most_away(self) -> Mapping[str, Sequence[int]]:
        """Of activations on the host those values among which one leaves most room on the device, whatever goes beside.

        Nothing, all layers that may be, and all modules, or those that go beside experts which are computed again.
        """
        layers, modules = (self.space.axes[name].values for name in AWAY)
        beside = [one for one in modules if not {"expert_fc1", "moe_act"} & {*OFFLOAD_SETS[one]}]
        return {
            "offload_layers": tuple(dict.fromkeys([*layers[:1], *layers[-1:]])),
            "offload_modules": tuple(dict.fromkeys([*modules[:1], *beside[-1:], *modules[-1:]])),
        }

    def _without_waits_s(self, nodes: Columns) -> Floats:
        """Return the seconds with all overlaps, and copies to the host for nothing; infinity where it does not fit."""
        may_wait = any(any(self.space.axes[name].values) for name in AWAY)
        return self._fitting_s(nodes, dict.fromkeys(AWAY, 0) if may_wait else {})

    def memory_s(self, nodes: Columns) -> Floats:
        """Return the seconds with all overlaps; infinity where it does not fit without any."""
        return self._of_each_method(nodes, partial(self._fitting_s, timed={}))

    def _fitting_s(self, nodes: Columns, timed: Mapping[str, int]) -> Floats:
        """Return the same, with other values of some decisions where seconds are counted."""
        found = np.full(len(nodes["tensor"]), inf)
        overlaps = dict.fromkeys(OVERLAPS, 0)
        for part in self.slices(len(found)):
            columns = {name: column[part] for name, column in nodes.items()}
            held = self._group.memory(self._group.layouts(self._filled(columns, overlaps)))["total"]
            fits = np.flatnonzero(held <= self._limit_bytes)
            if len(fits):
                left = {name: one[fits] for name, one in columns.items()}
                left |= {name: np.full(len(fits), value) for name, value in timed.items()}
                layouts = self._group.layouts(self._filled(left))
                found[part][fits] = self._group.parts(layouts, is_exact=False)["total"]
        return found

    def seconds(self, nodes: Columns) -> Floats:
        """Return the seconds of points; infinite where they do not fit."""
        found = np.full(len(nodes["tensor"]), inf)
        for part in self.slices(len(found)):
            layouts = self._group.layouts({name: column[part] for name, column in nodes.items()})
            fits = np.flatnonzero(self._group.memory(layouts)["total"] <= self._limit_bytes)
            if len(fits):
                found[part][fits] = self._group.seconds(layouts.of(fits))
        return found

    def _best_parts(self, columns: Columns) -> dict[str, Floats]:
        """Return the parts of a step at its best, the optimiser where its step is shorter."""
        layouts = self._group.layouts(self._filled(columns))
        parts = self._group.parts(layouts, is_exact=False)
        if 1 in self.space.axes["offload_optimizer"].values:
            shorter = np.minimum(parts["optimizer"], self._group.offload_s(layouts))
            parts["total"] = parts["total"] - parts["optimizer"] + shorter
            parts["optimizer"] = shorter
        return parts

    def _minimum(self, nodes: Columns, free: Mapping[str, Sequence[int]], seconds: Bound) -> Floats:
        """Return the least of what some free decisions give."""
        found = np.full(len(nodes["tensor"]), inf)
        for part in self.slices(len(found), MOST_AT_ONCE // 16):
            columns, owner = self.space.below({name: column[part] for name, column in nodes.items()}, free)
            if len(owner):
                np.minimum.at(found[part], owner, seconds(columns))
        return found

    def _with_recomputation(self, nodes: Columns) -> tuple[dict[str, Ints], Ints]:
        """Return nodes once for each recomputation that leaves room and may be the best; and whose they are."""
        codes, _ = self._recomputations(nodes)
        rows, place = np.nonzero(codes[:, None] >> np.arange(len(self._again)) & 1)
        columns = {name: column[rows] for name, column in nodes.items()}
        for name in ("recompute", "recompute_modules"):
            columns[name] = np.array([one[name] for one in self._again], dtype=np.int64)[place]
        return columns, rows

    def _with_share(self, nodes: Columns) -> dict[str, Any]:
        """Return nodes with the fewest layers, in fractions, that must be computed again where whole ones are."""
        _, share = self._recomputations(nodes)
        is_full = nodes["recompute"] == Recompute.FULL
        most = -(-self.cost.transformer.num_layers // nodes["pipeline"])
        number = np.where(is_full & (share < 1), share * most / nodes.get("interleave", 1), 0.0)
        recompute = np.where(is_full & (share == 0), int(Recompute.NONE), nodes["recompute"])
        return {**nodes, "recompute": recompute, "recompute_layers": number}

    def _smallest_memory(self, nodes: Columns, more: Mapping[str, Sequence[int]]) -> Floats:
        """Return the bytes with the best ZeRO stage, and the optimiser on the host where it may be."""
        found = np.full(len(nodes["tensor"]), inf)
        self._over_memory(nodes, more, found, lambda held: held["total"])
        return found

    def _over_memory(
        self,
        nodes: Columns,
        more: Mapping[str, Sequence[int]],
        found: Floats,
        number_of: Callable[[Mapping[str, Floats]], Floats],
    ) -> None:
        """Lower numbers of nodes to the least of what layouts below them give that may need least memory."""
        free = {**self._most_away, "zero": EVERY_ZERO, "offload_optimizer": (0, 1), **more}
        smallest = np.full(len(found), self.smallest_microbatch)  # needs least, where open
        kept = {"microbatch": smallest, **{name: nodes[name] for name in nodes if name != "order"}}
        for part in self.slices(len(found), MOST_AT_ONCE // 64):
            columns, owner = self.space.below({name: column[part] for name, column in kept.items()}, free)
            rows = self._may_be_smallest(columns)
            columns, owner = {name: column[rows] for name, column in columns.items()}, owner[rows]
            if len(owner):
                layouts = self._group.layouts(self._filled(columns, dict.fromkeys(OVERLAPS, 0)))
                np.minimum.at(found[part], owner, number_of(self._group.memory(layouts)))

    def _filled(self, nodes: Columns, values: Mapping[str, int] | None = None) -> dict[str, Ints]:
        """Return nodes with the decisions that are still open at their best, or at values given.

        What may run beside computing does so, unless a rule on what is decided forbids it.
        """
        length = len(next(iter(nodes.values())))
        best = {**dict.fromkeys(COARSE, 1), **_BEST, "context_method": self._context_method, **(values or {})}
        found = {**{name: np.full(length, value) for name, value in best.items()}, **nodes}
        for name in OVERLAPS:
            if name in nodes or name in (values or {}):
                continue
            if 1 not in self.space.axes[name].values:
                found[name] = np.zeros(length, dtype=np.int64)
            elif 0 in self.space.axes[name].values:
                asked = {**nodes, name: found[name]}
                for rule in self._overlap_rules[name]:
                    if asked.keys() >= set(rule.names):
                        found[name] = np.where(rule.holds(asked), found[name], 0)
        return found

    @cached_property
    def _overlap_rules(self) -> Mapping[str, Sequence[Rule]]:
        """Rules on each overlap and other decisions."""
        return {name: [one for one in self.space.rules if name in one.names] for name in OVERLAPS}

    def _may_be_smallest(self, columns: Columns) -> Bools:
        """Return which layouts may need least memory: sharded ones where they need no more; the host is free."""
        zero, offload_optimizer = columns["zero"], columns["offload_optimizer"] == 1
        is_alone = columns["context"] * columns["data"] == 1
        found = np.ones(len(zero), dtype=bool)
        if 1 in self.space.axes["zero"].values and _sharding_is_free(self._group):
            found &= (zero > 0) | is_alone
        if 1 in self.space.axes["offload_optimizer"].values:
            found &= offload_optimizer | (zero > 1)
        return found


# -- a cut that is given, on one group ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class GivenBounds(EvenBounds):
    """Bounds of layouts whose layers are cut as a pin says: stages and chunks are decided with it.

    The levels that would ask which cut is best have none; *schedule* and *memory* price the cut itself.
    """

    @property
    def all(self) -> Sequence[Bound | None]:
        """See the module."""
        return [*self._coarse, self.fits, self.layers_s, *[None] * 4, self.schedule_s, self.memory_s]

    def _any_schedule_s(self, nodes: Columns, least: LeastSeconds, *, rounds_of: Ints | None = None) -> Floats:
        """Return seconds that no schedule goes below: a device does its own work for every micro-batch.

        Before its first one, the first chunks of the devices ahead of it have passed, and behind its last they pass
        back, but where weights' gradients may wait.
        """
        if self._folded:
            return super()._any_schedule_s(nodes, least, rounds_of=rounds_of)
        cut, chunks = self.cost.first.cut, max(self.space.axes["interleave"].values, default=1)
        held = layers_by_kind(self.cost.transformer, np.array(cut)).reshape(len(least.layer_s), chunks, -1)
        loads, firsts = np.tensordot(held.sum(axis=1).T, least.layer_s, 1), np.tensordot(held[:, 0].T, least.layer_s, 1)
        loads[0] += least.embedding_s
        loads[-1] += least.head_s
        number = self._group.layouts(self._filled(nodes)).num_microbatches
        ahead = np.cumsum(firsts, axis=0) - firsts
        if self._puts_off:
            ahead = np.zeros_like(ahead)
        return np.asarray((number * loads + ahead).max(axis=0))

    def _filled(self, nodes: Columns, values: Mapping[str, int] | None = None) -> dict[str, Ints]:
        """Return the same with the chunks that are given."""
        found = super()._filled(nodes, values)
        if "interleave" not in nodes:
            chunks = max(self.space.axes["interleave"].values, default=1)
            found["interleave"] = np.full_like(found["interleave"], chunks)
        return found


# -- any cut on any groups ---------------------------------------------------------------------------------------------


def _last_stages(number: Ints, stages: Ints) -> Floats:
    """Return the sum of ``1 / c`` of the last stages: of m micro-batches ``c_j = m - (min(m, j) + 1) / 2`` of the j-th.

    That is twice a part of the harmonic series, and a constant from the m-th stage on. Of many micro-batches the part
    is taken from ``H(n) = log n + gamma + 1 / 2 n - 1 / 12 n^2`` and less than ``1 / 120 n^4`` beside.

    Parameters
    ----------
    number, stages
        m; how many of the last, (groups, n).
    """
    early, most = np.minimum(number, stages), np.maximum(2 * number - 2, 1)
    rest = (stages - early) / np.maximum(number - 1, 1)
    sums = np.concatenate([[0.0], np.cumsum(1 / np.arange(1.0, min(most.max(initial=2), _MOST_SUMMED) + 1))])
    known, share = np.minimum(most, len(sums) - 1), np.minimum(early / most, 0.75)  # about half at most, of many
    part = sums[known] - sums[np.maximum(known - early, 0)]
    many = -np.log1p(-share) - share / (2 * most * (1 - share)) * (1 - (2 - share) / (6 * most * (1 - share)))
    return np.asarray(2 * (np.where(most > known, many, part) + rest))


@dataclass(frozen=True)
class CutBounds(Bounds):
    """Bounds of any cut on any groups."""

    @property
    def all(self) -> list[Bound]:
        """See the module."""
        coarse = [self.peak_s] if self.space.is_split else [self.pace_s, self.linked_pace_s]
        return [
            *coarse,
            self.layers_s,
            *([self.any_parts_s] if self.cost.has_replicas else []),
            *[self.layers_s] * len(self.space.devices),
            self.communication_s,
            self.room_s,
            self.communication_s,
            self.best_path_s,
            self.path_s,
        ]

    def peak_s(self, nodes: Columns) -> Floats:
        """Return the step at the highest rates that were fitted, whatever the micro-batch."""
        each = nodes["tensor"] * nodes["context"] * nodes[self.space.shared]
        can = np.all([each <= devices for devices in self.space.devices], axis=0)
        return np.where(can, peak_step_s(self.cost.groups), inf)

    def pace_s(self, nodes: Columns) -> Floats:
        """Return the bound of the best micro-batch's pace where links cost nothing; infinite where there is no room."""
        return self._pace_s(nodes, self._ideal)

    def linked_pace_s(self, nodes: Columns) -> Floats:
        """Return the same with the communication of layers."""
        return self._pace_s(nodes, self._linked)

    @property
    def linked_table(self) -> LayerTable:
        """Layers on the first group with the real links, nothing computed again."""
        return self._linked[0]

    def _pace_s(self, nodes: Columns, tables: Sequence[LayerTable]) -> Floats:
        """Return the same of tables, one a group: see :mod:`planner.families.hybrid.layer_table`."""
        self._ask()
        smallest = self.smallest_microbatch
        samples = (
            self.cost.batch // nodes["data"] if "data" in nodes else np.full(len(nodes["tensor"]), self.cost.batch)
        )
        each = {**nodes, "microbatch": np.full(len(samples), smallest)}
        found = self._layers_s(
            each, [one.of_each_sample(nodes, samples, self.microbatches, self._ask) for one in tables]
        )
        return np.where(samples >= smallest, found, inf)

    def layers_s(self, nodes: Columns) -> Floats:
        """Return the bound with the communication of layers; infinite where a group has no room for a part."""
        self._ask()
        return self._layers_s(nodes, [one.of(nodes, self._ask) for one in self._linked])

    def least_layers_s(self, nodes: Columns) -> Floats:
        """Return z of each group with the communication of layers, see the module; (groups, n)."""
        return self._layers(np.array([one.of(nodes, self._ask).layer_s for one in self._linked]).swapaxes(0, 1))[1]

    @cached_property
    def _ideal(self) -> Sequence[LayerTable]:
        """Layers on each group where links cost nothing."""
        return [self.layer_table(one, has_links=False, best=_BEST_OF_CUTS) for one in self.cost.groups]

    @cached_property
    def _linked(self) -> Sequence[LayerTable]:
        """Layers on each group with the real links."""
        return [self.layer_table(one, has_links=True, best=_BEST_OF_CUTS) for one in self.cost.groups]

    def _layers_s(self, nodes: Columns, least: Sequence[LeastSeconds]) -> Floats:
        """Return the bound of the least seconds of layers and ends on each group."""
        mean, layer = self._layers(np.array([one.layer_s for one in least]).swapaxes(0, 1))
        embedding, head = (np.array([getattr(one, name) for one in least]) for name in ("embedding_s", "head_s"))
        each = nodes["tensor"] * nodes["context"] * nodes[self.space.shared]
        layers = self.cost.transformer.num_layers
        most = self.cost.batch if self.cost.has_replicas else layers
        parts = np.array(
            [
                nodes[name] if name in nodes else np.minimum(devices // each, most)
                for name, devices in zip(self.space.part_names, self.space.devices, strict=True)
            ]
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.cost.has_replicas:
                found = self._replicated_s(nodes, layers * mean + embedding + head, parts)
            else:  # embedding on the first group, head on the last
                fixed = np.zeros_like(layer)
                fixed[0] += embedding[0]
                fixed[-1] += head[-1]
                found = self._step_s(nodes, fixed, parts, layer)
        return np.where((parts >= 1).all(axis=0), found, inf)

    def _step_s(
        self, nodes: Columns, fixed: Floats, parts: Ints, layer: Floats, slowest: Floats | float = 0.0
    ) -> Floats:
        """Return the bound of a step from what its stages do.

        Parameters
        ----------
        fixed
            What the stages of each group do besides layers, all together, (groups, n).
        parts, layer
            Stages of each group, and z, (groups, n).
        slowest
            What the slowest stage takes at least, where more is known of it than by its share of the work.
        """
        number, after = self.cost.batch // (nodes["data"] * nodes["microbatch"]), np.cumsum(parts[::-1], axis=0)[::-1]
        layers, ends = self.cost.transformer.num_layers, fixed.sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            stages, work = np.minimum(after[0], layers), layers + (fixed / layer).sum(axis=0)
            order = np.argsort(layer, axis=0, kind="stable")  # of groups, the quickest first
            ordered = order, np.take_along_axis(layer, order, axis=0)
            pace, warm_up = parts / layer, np.minimum(number, stages)
            slowest = np.maximum(work / pace.sum(axis=0), slowest)
            once = ends + self._passed_s(ordered, pace, slowest, number - (warm_up + 1) / 2)
            found = np.maximum(number * slowest, once)
            pace_i = (_last_stages(number, after) - _last_stages(number, after - parts)) / layer
            each = self._passed_s(ordered, pace_i, work / pace_i.sum(axis=0), 1.0)
            found = np.maximum(found, ends + np.where(number > 1, each, 0.0))
            if self.are_multiples:
                twice = 2 * (ends + self._passed_s(ordered, pace, slowest, (number - 1 - stages) / 2))
                found = np.maximum(found, np.where(number > stages, twice, 0.0))
        return np.asarray(found)

    def _passed_s(
        self, ordered: tuple[Ints, Floats], pace: Floats, low: Floats | float, rounds: Floats | float
    ) -> Floats:
        """Return the least of ``X + c T`` over all T from some seconds on, ends left out.

        In T seconds stages of group k do ``T q_k`` layers at most, and the quickest as many as they can in the least X.
        That falls with T, the more slowly the greater T is, and bends where some groups alone come to do all layers.

        Parameters
        ----------
        ordered
            Which groups are the quickest, and z in this order, (groups, n).
        pace
            q of each group, (groups, n).
        low, rounds
            T at least, and c; (n,).
        """
        layers, (order, each) = self.cost.transformer.num_layers, ordered
        pace, found = np.take_along_axis(pace, order, axis=0).cumsum(axis=0), np.full(each.shape[1], inf)
        for can in pace:  # of groups up to one
            turn = np.maximum(layers / can, low)
            held = np.diff(np.minimum(pace * turn, layers), axis=0, prepend=0)
            passed = np.where(held > 0, held * each, 0.0).sum(axis=0)
            found = np.fmin(found, passed + rounds * turn)
        return found

    @cached_property
    def are_multiples(self) -> bool:
        """Whether all sizes of micro-batches are multiples of the smallest."""
        return not any(size % self.smallest_microbatch for size in self.microbatches)

    def _replicated_s(
        self, nodes: Columns, whole: Floats, parts: Ints | Floats, behind: Floats | float = 0.0
    ) -> Floats:
        """Return the bound of replicas from the sum of all stages of each group, and what is behind; (groups, n)."""
        stages = nodes["pipeline"]
        total = (self.cost.batch // nodes["microbatch"]).astype(np.float64)
        starts = whole * (stages - 1) / (2 * stages) + behind
        return shared_bound_s(parts.astype(np.float64), starts, whole / stages, total)

    def _layers(self, by_kind: Floats) -> tuple[Floats, Floats]:
        """Return seconds of a layer on each group, of shape (kinds, groups, n): their mean, and z; (k, n).

        ``z``: see the module.
        """
        mean = np.array([mean_layer(self.cost.transformer, one) for one in by_kind.swapaxes(0, 1)])
        weights = by_kind[:, 0] / mean[0]
        return mean, (by_kind / weights[:, None]).min(axis=0)

    # -- memory --------------------------------------------------------------------------------------------------------

    def fits(self, nodes: Columns) -> Floats:
        """Return infinity where no recomputation leaves room for all layers, and else 0."""
        found = np.full(len(nodes["tensor"]), inf)
        for again in self._most_again:
            found[self._has_room(nodes, again)] = 0.0
        return found

    def recomputed(self, nodes: Columns) -> Iterator[tuple[Mapping[str, int], Floats, Bools]]:
        """Yield what may be computed again, a layer's least seconds on the first group and whether it has room.

        Of layers of one kind.
        """
        for again in self._again:
            table = self.layer_table(self.cost.first, has_links=True, best={**_BEST_OF_CUTS, **again})
            yield again, table.of(nodes, self._ask).layer_s[0], self._has_room(nodes, again)

    def room_s(self, nodes: Columns) -> Floats:
        """Return the bound with the real links and what is computed again; infinite where there is no room."""
        if self.search.good_enough == inf and self.search.cutoff == inf:  # any layout that fits will do
            return self.fits(nodes)
        found, left = np.full(len(nodes["tensor"]), inf), np.arange(len(nodes["tensor"]))
        for again in self._again:
            columns = {name: column[left] for name, column in nodes.items()}
            if again["recompute"] == Recompute.NONE:  # the bound of the level before is of this one
                has_room = self._has_room(columns, again)
                found[left[has_room]] = 0.0
                left = left[~has_room]
                continue
            columns |= {name: np.full(len(left), value) for name, value in again.items()}
            seconds = self.communication_s(columns)
            near = np.flatnonzero(seconds <= self.search.cutoff)  # of others it does not matter whether they have room
            has_room = self._has_room({name: column[near] for name, column in columns.items()}, again)
            seconds[near[~has_room]] = inf
            found[left] = np.minimum(found[left], seconds)
        return found

    def _has_room(self, nodes: Columns, again: Mapping[str, int]) -> Bools:
        """Return whether there is room for all layers with a recomputation."""
        if self.cost.has_replicas:  # only their number counts, as states are sharded over all of them
            names = self.space.part_names
            whole = np.sum([nodes[name] for name in names], axis=0)
            nodes = {**nodes, **dict.fromkeys(names, np.ones_like(whole)), names[0]: whole - len(names) + 1}
        first, back = distinct(nodes, [name for name in nodes if name != "order"])
        few = {name: column[first] for name, column in nodes.items()}
        few |= {name: np.full(len(first), value) for name, value in again.items()}
        return self._in_parts(few, self._stages(few), self._room)[back] > 0

    def _room(self, nodes: Columns) -> Floats:
        """Return 1 where nodes with about as many stages have room, and else 0."""
        stages = self._stages(nodes)
        is_there = np.arange(int(stages.max(initial=1)))[:, None] < stages
        on = self.cost.stage_groups(nodes, len(is_there))
        zeros = self.space.axes["zero"].values or (0,)
        if "zero" in nodes or (max(zeros) <= 1 and _sharding_is_free(self.cost.first)):
            zeros = (max(zeros),)
        found = np.zeros(len(stages), dtype=bool)
        for zero in reversed(zeros):
            left = np.flatnonzero(~found)
            if not len(left):
                break
            columns = {name: column[left] for name, column in self._filled(nodes, {"zero": zero}).items()}
            most = np.where(is_there[:, left], self.cost.most_layers(columns, on[:, left]), 0)
            enough = most.sum(axis=0) >= self.cost.transformer.num_layers
            found[left] = enough & ((most >= 1) | ~is_there[:, left]).all(axis=0)
        return np.where(found, 1.0, 0.0)

    def _stages(self, nodes: Columns) -> Ints:
        """Return the stages in all."""
        return nodes["pipeline"] if self.cost.has_replicas else self.cost.parts_of(nodes).sum(axis=0)

    def _filled(self, nodes: Columns, values: dict[str, int]) -> dict[str, Ints]:
        """Return nodes with values for the decisions that are open."""
        best = {"recompute": 0, "recompute_modules": 0, "zero": 0, "overlap_data": 0, "overlap_tensor": 0}
        best |= {"context_method": self._context_method, **values}
        length = len(nodes["tensor"])
        return {**{name: np.full(length, value) for name, value in best.items()}, **nodes}

    # -- with the real links -------------------------------------------------------------------------------------------

    def communication_s(self, nodes: Columns) -> Floats:
        """Return the bound with the real links, tensor-parallel communication hidden; nothing recomputed if open."""
        if self.cost.has_replicas and len(nodes["tensor"]):
            whole, _, behind = self.replicas_s(nodes, self.cost.parts_of(nodes))
            return self._replicated_s(nodes, whole, self.cost.parts_of(nodes), behind)
        return self._in_parts(nodes, np.ones_like(nodes["tensor"]), self._communication_s, _MOST_NODES)

    def _communication_s(self, nodes: Columns) -> Floats:
        """Return the same of some nodes with stages."""
        parts = self.cost.parts_of(nodes)
        groups, behind, (transfer, embedding, head), layer = self._linked_s(nodes)
        fixed = 2 * (parts - 1) * transfer  # a boundary inside a group: one stage sends down it, and one up
        fixed[0] += embedding[0]
        fixed[-1] += head[-1]
        for index in range(1, len(groups)):
            fixed[index - 1 : index + 1] += np.maximum(groups[index - 1].between_s, groups[index].between_s)
        stages, slowest = parts.sum(axis=0), np.zeros(len(nodes["tensor"]))
        if len(groups) == 1:  # layers are whole: one stage has their mean number, rounded up
            end = np.minimum(transfer[0] + np.minimum(embedding[0], head[0]), 2 * transfer[0])
            whole = fullest_s(self.cost.transformer, groups[0].layer_s, stages).min(axis=0)
            slowest = whole + np.where(stages > 2, end, transfer[0])
        found = self._step_s(nodes, fixed, parts, layer, slowest)
        if len(groups) > 1 and len(self.cost.transformer.kind_counts) > 1:  # nobody knows which a group has
            return found
        return np.asarray(found + behind.min(axis=0))

    def _linked_s(self, nodes: Columns) -> tuple[Sequence[GroupSeconds], Floats, Floats, Floats]:
        """Return the seconds of each group, what is behind, what stages send and both ends take, and z, (groups, n)."""
        columns = self._at_best(nodes)
        groups = self.cost.group_seconds(columns)
        names, length = ("transfer_s", "embedding_s", "head_s"), len(nodes["tensor"])
        ends = np.array([[np.broadcast_to(getattr(one, name), length) for one in groups] for name in names])
        layer = self._layers(np.array([one.layer_s for one in groups]).swapaxes(0, 1))[1]
        return groups, self._behind_s(columns, groups, is_open="zero" not in nodes), ends, layer

    def whole_s(self, nodes: Columns, low_s: Floats, most_s: float) -> Floats:
        """Return seconds that pipelines on several groups are not under, whatever the cut; infinite above ``most_s``.

        Of layers of one kind, which are whole: in a step of S seconds stage i holds no more of them than it has memory
        for, nor than ``(t - e_i) / z_i``, where t is the least of ``S / m``, ``(S - X) / c_i`` and, for ``m > p``, ``(S
        - 2 X) / (m - 1 - p)`` (see the module). It holds one at least. If all hold fewer than L, it takes longer. X is
        of L layers on the quickest stages, of which none holds more than in a t that is known before.

        Parameters
        ----------
        low_s
            Of another bound.
        """
        if len(self.cost.transformer.kind_counts) > 1:
            return low_s
        layers, stages = self.cost.transformer.num_layers, self._stages(nodes)
        places = np.arange(int(stages.max(initial=1)))[:, None]
        is_there, on = places < stages, self.cost.stage_groups(nodes, len(places))
        groups, behind, (transfer, embedding, head), layer = self._linked_s(nodes)
        between = np.array([np.broadcast_to(one.between_s, len(stages)) for one in groups])
        sent, across, each = (np.take_along_axis(one, on, axis=0) for one in (transfer, between, layer))
        sent[1:] = np.where(on[1:] == on[:-1], sent[1:], np.maximum(across[1:], across[:-1]))
        sent[~is_there] = sent[0] = 0.0
        fixed = sent + np.concatenate([sent[1:], np.zeros_like(sent[:1])])
        fixed[0] += embedding[0]
        fixed[stages - 1, np.arange(len(stages))] += head[-1]
        ends = np.where(is_there, fixed, 0.0).sum(axis=0)
        number = self.cost.batch // (nodes["data"] * nodes["microbatch"])
        others = number - (np.minimum(number, stages - places) + 1) / 2  # c_i
        room = np.where(is_there, self.cost.most_layers(self._filled(nodes, {}), on), 0)
        order = np.argsort(each, axis=0, kind="stable")  # of stages, the quickest first

        def held_in(can_s: Floats) -> Floats:
            return np.asarray(np.minimum(np.floor((can_s - fixed) / each * _WHOLE), room))

        def holds(seconds: Floats) -> Bools:
            with np.errstate(divide="ignore", invalid="ignore"):
                can_s = seconds / number
                for _ in range(_ROUNDS):
                    most = np.take_along_axis(np.maximum(held_in(can_s), 0), order, axis=0).cumsum(axis=0)
                    some = np.diff(np.minimum(most, layers), axis=0, prepend=0)
                    through = ends + np.where(some > 0, some * np.take_along_axis(each, order, axis=0), 0.0).sum(axis=0)
                    can_s = np.fmin(can_s, (seconds - through) / others)  # no number where both are 0
                    if self.are_multiples:
                        often_s = (seconds - 2 * through) / (number - 1 - stages)
                        can_s = np.where(number - 1 > stages, np.minimum(can_s, often_s), can_s)
            held = held_in(can_s)
            enough = held.sum(axis=0) >= layers
            return np.asarray(enough & ((held >= 1) | ~is_there).all(axis=0))

        high_s, least_s = np.full(len(stages), most_s), behind.min(axis=0)
        can = holds(high_s - least_s)
        for _ in range(_HALVES):
            middle_s = (low_s + high_s) / 2
            is_enough = holds(middle_s - least_s)
            low_s, high_s = np.where(is_enough, low_s, middle_s), np.where(is_enough, middle_s, high_s)
        return np.where(can, low_s, inf)

    def _behind_s(self, columns: Columns, groups: Sequence[GroupSeconds], *, is_open: bool) -> Floats:
        """Return what a stage with the mean of all layers takes behind its schedule on each group, shape (groups, n).

        Some stage of any cut has as much: on one group by :func:`planner.models.transformer_step.least_behind_s`, and
        of equal layers on some of several groups, as one has no fewer than the mean.

        Parameters
        ----------
        columns, groups
            Layouts, and their seconds on each group.
        is_open
            Whether the ZeRO stage is.
        """
        zeros = [np.full_like(columns["zero"], one) for one in self.space.axes["zero"].values]
        # Of layers of several kinds what takes longer is not always what a step waits for, and yet hides more.
        hides = len(self.cost.transformer.kind_counts) == 1
        each = [self.cost.layouts({**columns, "zero": one}) for one in (zeros if is_open else [columns["zero"]])]
        return np.array([np.min([least_behind_s(one, two, hides=hides) for two in each], axis=0) for one in groups])

    def _at_best(self, nodes: Columns) -> dict[str, Ints]:
        """Return nodes with the real links, nothing computed again if that is open, and all overlaps."""
        overlaps = max(self.space.axes["overlap_data"].values)
        columns = self._filled(nodes, {"recompute": int(Recompute.NONE), "overlap_data": overlaps})
        return {**columns, "overlap_tensor": self._may_overlap(nodes)}

    def any_parts_s(self, nodes: Columns) -> Floats:
        """Return the bound of replicas with the real links, of the best numbers on each group and order of ranks.

        A step of S seconds with d replicas on each group keeps ``sum d (S - a) / x >= N``, and no replica has less than
        one micro-batch, so that no S is below any a. So the sum only grows with the least a and x that any numbers give
        and with the most replicas of each group: the S that it is N of is no more than that of any.
        """
        each = nodes["tensor"] * nodes["context"] * nodes["pipeline"]
        fine = prod(len(self.space.axes[name].values) for name in _NUMBERED)
        return self._in_parts(nodes, fine * np.maximum(sum(self.space.devices) // each, 1), self._any_parts_s)

    def _any_parts_s(self, nodes: Columns) -> Floats:
        """Return the same of some nodes."""
        names, found = self.space.part_names, np.full(len(nodes["tensor"]), inf)
        rows, owner = self.space.below(nodes, {name: self.space.axes[name].values for name in _NUMBERED})
        shape = (len(names), len(owner))
        (whole, slowest, fewest), (forward, backward, most) = np.full((3, *shape), inf), np.zeros((3, *shape))
        for index, name in enumerate(names):
            columns, whose = self.space.below(rows, {name: self.space.axes[name].values})
            whole_s, slowest_s, forward_s, both_s = self._replica_s(columns, columns[name], index)
            for least, values in ((whole, whole_s), (slowest, slowest_s), (fewest, columns[name])):
                np.minimum.at(least[index], whose, values)
            for highest, values in ((forward, forward_s), (backward, both_s - forward_s), (most, columns[name])):
                np.maximum.at(highest[index], whose, values)
        has_all = np.flatnonzero((most > 0).all(axis=0))
        rows, owner = {name: column[has_all] for name, column in rows.items()}, owner[has_all]
        whole, slowest, fewest, forward, backward, most = (
            one[:, has_all] for one in (whole, slowest, fewest, forward, backward, most)
        )
        alone_s = self._replicated_s(rows, whole, most)
        near = np.flatnonzero(alone_s <= self.search.cutoff)  # of others it does not matter what they exchange
        # What is behind is least beside most computing: a second of it hides one at most, as contention is a share.
        number = (most - fewest).sum(axis=0).astype(np.int64)[near] + 1
        whose = np.repeat(near, number)
        behind = np.full(most.shape, inf)
        total = np.arange(len(whose)) - np.repeat(np.cumsum(number) - number, number)
        total += fewest.sum(axis=0).astype(np.int64)[whose]
        stages_s = np.array([forward, forward + backward]).swapaxes(0, 1)[..., whose]
        columns = {name: column[whose] for name, column in rows.items()}
        for least, values in zip(behind, self._replicas_behind_s(columns, total, stages_s), strict=True):
            np.minimum.at(least, whose, values)
        few = {name: column[near] for name, column in rows.items()}
        linked_s = self._replicated_s(few, whole[:, near], most[:, near], behind[:, near])
        alone_s[near] = np.maximum(alone_s[near], linked_s)
        np.minimum.at(found, owner, alone_s)
        return found

    def replicas_s(self, nodes: Columns, parts: Ints, data: Ints | None = None) -> tuple[Floats, Floats, Floats]:
        """Return X of a replica on each group, its slowest stage and what is behind it, all of shape (groups, n).

        A replica's own seconds depend on how many its group has, and what all exchange on how many there are in all: of
        many pairs of numbers each is asked about once.

        Parameters
        ----------
        parts
            Replicas of each group, which say how far apart the ranks of one are.
        data
            Of all of them, where these are not all.
        """
        shared = [name for name in nodes if name not in (*self.space.part_names, "data")]
        first, back = distinct(nodes, shared)

        def of_each(numbers: Ints) -> tuple[Columns, Ints, Ints]:
            """Return what is shared and the number, once for each different pair of these; and for each node which."""
            at, whose = distinct({"shared": back, "numbers": numbers}, ["shared", "numbers"])
            return {name: nodes[name][first[back[at]]] for name in shared}, numbers[at], whose

        found = []
        for index, own in enumerate(parts):
            columns, number, whose = of_each(own)
            found.append(self._replica_s(columns, number, index)[:, whose])
        whole, slowest, *stage_s = np.array(found).swapaxes(0, 1)
        columns, total, whose = of_each(parts.sum(axis=0) if data is None else data)
        behind = self._replicas_behind_s(columns, total, np.array(stage_s).swapaxes(0, 1), whose)
        return whole, slowest, behind

    def _replica_s(self, nodes: Columns, number: Ints, index: int) -> Floats:
        """Return X of a replica on a group, its slowest stage, and what a mean one does forward and both ways; (4, n).

        Parameters
        ----------
        number
            Replicas of the group.
        """
        columns, found = self._at_best({**nodes, **dict.fromkeys(self.space.part_names, number)}), [np.empty((4, 0))]
        for some in self.slices(len(number), _MOST_NODES):
            few = {name: column[some] for name, column in columns.items()}
            group = self.cost.seconds_on(few, index)
            (whole,), (slowest,) = self._whole_s(few, [group])
            whole = whole + 2 * (few["pipeline"] - 1) * group.transfer_s
            found.append(np.array([whole, np.maximum(slowest, whole / few["pipeline"]), *mean_stage_s(group)]))
        return np.concatenate(found, axis=1)

    def _replicas_behind_s(
        self, nodes: Columns, total: Ints, stages_s: Floats, whose: Ints | slice = slice(None)
    ) -> Floats:
        """Return what is behind the schedule of a replica's mean stage on each group, shape (groups, n).

        Parameters
        ----------
        total
            Replicas of all groups.
        stages_s
            What the stage does forward and both ways on each group, (groups, 2, n).
        whose
            For each of the n, of which node.
        """
        first, *others = self.space.part_names
        parts = {first: total - len(others), **dict.fromkeys(others, np.ones_like(total))}
        columns, hides = self._at_best({**nodes, **parts}), len(self.cost.transformer.kind_counts) == 1
        found = np.full((len(stages_s), stages_s.shape[-1]), inf)
        for zero in self.space.axes["zero"].values if "zero" not in nodes else (None,):
            joint = self.cost.joint(columns if zero is None else {**columns, "zero": np.full_like(total, zero)})
            key = {name: column for name, column in nodes.items() if name not in _INSIDE_REPLICAS}
            key |= {"data": total, "order": joint.order}
            few, back = distinct(key, [*key])
            each, which, one_of_each = joint.of(whose), back[whose], joint.of(few)
            for index, stage_s in enumerate(stages_s):
                exchanged = [one[which] for one in self.cost.joint_exchanges_s(one_of_each, index)]
                figures = self.cost.groups[index].figures
                behind_s = behind_mean_stage_s(figures, each, exchanged, stage_s, hides=hides)
                np.minimum(found[index], behind_s, out=found[index])
        return found

    def _whole_s(self, nodes: Columns, groups: Sequence[LeastSeconds | GroupSeconds]) -> tuple[Floats, Floats]:
        """Return the sum of the stages of a replica on each group, and one that is slowest, without sending."""
        layers = np.array([one.layer_s for one in groups])
        ends = np.array([one.embedding_s + one.head_s for one in groups])
        whole = self.cost.transformer.num_layers * self._layers(layers.swapaxes(0, 1))[0] + ends
        fullest = [fullest_s(self.cost.transformer, one, nodes["pipeline"]).min(axis=0) for one in layers]
        return whole, np.maximum(whole / nodes["pipeline"], fullest)

    def least_replicas_s(self, nodes: Columns, *, has_links: bool = True) -> tuple[Floats, Floats]:
        """Return X of a replica on each group and its slowest stage, both of shape (groups, n), of no micro-batch less.

        Where the micro-batch is open, of the smallest at the pace of the best.
        """
        self._ask()
        tables = self._linked if has_links else self._ideal
        if "microbatch" in nodes:
            return self._whole_s(nodes, [one.of(nodes, self._ask) for one in tables])
        samples = np.full(len(nodes["tensor"]), self.cost.batch)
        each = [one.of_each_sample(nodes, samples, self.microbatches, self._ask) for one in tables]
        return self._whole_s(nodes, each)

    def has_room(self, nodes: Columns, data: Ints) -> Bools:
        """Return whether whole replicas have room on every group; ``data``: all of them."""
        names = self.space.part_names
        parts = {**dict.fromkeys(names, np.ones_like(data)), names[0]: data - len(names) + 1}
        return self._has_room({**nodes, **parts}, {})

    def _may_overlap(self, nodes: Columns) -> Ints:
        """Return where tensor-parallel communication may run beside computing."""
        return ((nodes["tensor"] > 1) & (nodes["sequence_parallel"] > 0)).astype(np.int64)

    def best_path_s(self, nodes: Columns) -> Floats:
        """Return the bound with all overlaps, which never make a step longer and cost no memory here."""
        return self.path_s({**self._filled(nodes, {"overlap_data": 1}), "overlap_tensor": self._may_overlap(nodes)})

    def path_s(self, nodes: Columns) -> Floats:
        """Return the bound with all decided but the schedule's waits; infinite where it does not fit."""
        return self._in_parts(nodes, self._cells(self._stages(nodes)), self.cost.bound_s)

    def _cells(self, stages: Ints) -> Ints:
        """Return the stages of layouts, of all their cuts together where all are tried."""
        if self.cost.has_replicas or not len(stages):
            return stages
        layers, values = self.cost.transformer.num_layers, range(int(stages.max()) + 1)
        table = [one * (comb(layers - 1, one - 1) if has_few_cuts(layers, one) else 1) for one in values]
        return np.array(table)[stages]

    def seconds(self, nodes: Columns) -> Floats:
        """Return the seconds of points; infinite where they do not fit."""
        stages = self._stages(nodes)
        if self.cost.has_replicas:
            return self._in_parts(nodes, stages, self.cost.seconds, _MOST_SHARED)
        rounds = np.minimum(self.cost.batch // (nodes["data"] * nodes["microbatch"]), MOST_ROUNDS)
        found, sizes = np.empty(len(stages)), np.frexp(rounds)[1]
        for size in np.unique(sizes).tolist():  # so that a part is not as slow as its longest schedule
            chosen = np.flatnonzero(sizes == size)
            columns = {name: column[chosen] for name, column in nodes.items()}
            most = min(_MOST_CELLS, _MOST_TASKS >> size)
            found[chosen] = self._in_parts(columns, self._cells(stages[chosen]), self.cost.seconds, most)
        return found

    def _in_parts(
        self, columns: Columns, stages: Ints, function: Callable[[Columns], Floats], most_cells: int = _MOST_CELLS
    ) -> Floats:
        """Return a function of all nodes, asked for some at a time: those with as many stages, or cells, together."""
        order = np.argsort(stages, kind="stable")
        cells, found, start = stages[order], np.empty(len(order)), 0
        while start < len(cells):
            end = min(start + max(1, most_cells // int(cells[start])), len(cells))
            while end > start + 1 and (end - start) * int(cells[end - 1]) > 2 * most_cells:
                end = start + (end - start) // 2
            self._ask()
            chosen = order[start:end]
            found[chosen] = function({name: column[chosen] for name, column in columns.items()})
            start = end
        return found
