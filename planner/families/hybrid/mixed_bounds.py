"""Bounds of the levels of a team's grid: seconds that no layout below a node is under.

With ``z_k`` seconds of a layer on kind k, ``e_i`` what stage i does besides, ``T`` the slowest stage and ``X`` the sum
of all stages, for one micro-batch:

- stages hold no more than ``(T - e_i) / z_i`` layers, so that ``T >= (L + sum e_i / z_i) / sum 1 / z_i``; and ``X >=
  sum e_i + L min z_k``. The path once through all stages that else dwells on the slowest one, i, takes ``X + (m - w) T
  + (w - 1) max(f, b)`` with ``w = min(m, p - i)``, and ``max(f, b) >= T / 2``; so a step takes no less than ``X +
  (m - (w + 1) / 2) T`` with ``w = min(m, p)``.
- a class of p-stage replicas likewise takes no less than ``X (p - 1) / 2 p + m X / p``; micro-batches in fractions that
  make all classes end together are a bound of any numbers.

- layers are whole, so that of p stages on one kind one has ``ceil(L / p)`` or more.

*ideal*: the layers' own exchange as the best order of ranks has it, other links cost nothing, nothing is computed
again, and there are as many stages or replicas as could be where they are open. *exchange*: the real links, before and
after recomputation is decided; O(kinds) a node, whatever the number of stages. *fits*: infinite where not even the best
recomputation leaves room for all layers. *best path*: all is decided but overlaps and the schedule's waits; *path*: but
these waits. The latter two are of the cuts that are tried, the others of all cuts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import comb

import numpy as np

from planner.cost import Floats
from planner.families.hybrid.cost import HybridCost
from planner.families.hybrid.least import least_step_s
from planner.families.hybrid.mixed_cost import MixedCost
from planner.families.hybrid.mixed_cuts import has_few_cuts
from planner.families.hybrid.mixed_space import MixedSpace
from planner.models.layouts import Ints, Layouts, Recompute
from planner.models.tiers import ORDERS
from planner.models.transformer_mixed_batches import relaxed_s
from planner.models.transformer_mixed_kinds import LAYER_PARTS
from planner.models.transformer_mixed_schedule import MOST_ROUNDS
from planner.models.transformer_time import interval_times
from planner.search import Search
from planner.solvers.grid import Columns, OverError, distinct

__all__ = ["MixedBounds", "in_parts"]

_MOST_CELLS = 100_000  # stages times layouts in one array
_MOST_NODES = 10_000  # whose exchange is bounded together
_MOST_TASKS = 1 << 23  # stages times micro-batches whose schedules are played in one go
_MOST_DEALT = 100  # layouts whose micro-batches are dealt out in one go
_FEW = ("tensor", "context", "expert", "microbatch")


def in_parts(
    columns: Columns,
    stages: Ints,
    function: Callable[[Columns], Floats],
    search: Search,
    most_cells: int = _MOST_CELLS,
) -> Floats:
    """Return a function of all nodes, asked for some at a time: those with as many stages, or cells, together.

    Raises
    ------
    OverError
        Where the search is over.
    """
    order = np.argsort(stages, kind="stable")
    found = np.empty(len(order))
    for part in _slices(stages[order], most_cells):
        if search.is_over:
            raise OverError
        chosen = order[part]
        found[chosen] = function({name: column[chosen] for name, column in columns.items()})
    return found


def _slices(stages: Ints, most_cells: int) -> Iterator[slice]:
    """Yield slices of pipelines in order of length, each of a bounded number of stages in all."""
    start = 0
    while start < len(stages):
        size = max(1, most_cells // int(stages[start]))
        end = min(start + size, len(stages))
        while end > start + 1 and (end - start) * int(stages[end - 1]) > 2 * most_cells:
            end = start + (end - start) // 2
        yield slice(start, end)
        start = end


@dataclass(frozen=True)
class MixedBounds:
    """Bounds for a team; those that take long raise :class:`OverError` where the search is over."""

    cost: MixedCost
    search: Search = field(default_factory=Search)

    @cached_property
    def space(self) -> MixedSpace:
        """What may be chosen."""
        return MixedSpace(self.cost)

    @property
    def all(self) -> list[Callable[[Columns], Floats] | None]:
        """Those of all levels but the last."""
        return [
            *([self.peak_s] if self.space.is_split else []),
            self.ideal_s,
            *[self.ideal_s] * len(self.space.devices),
            self.exchange_s,
            self.fits,
            self.exchange_s,
            self.best_path_s,
            self.path_s,
        ]

    # -- with links that cost nothing ----------------------------------------------------------------------------------

    def peak_s(self, nodes: Columns) -> Floats:
        """Return the step at the highest rates that were fitted, whatever the micro-batch."""
        each = nodes["tensor"] * nodes["context"] * nodes["data" if self.cost.is_staged else "pipeline"]
        can = np.all([each <= devices for devices in self.space.devices], axis=0)
        return np.where(can, least_step_s(self.cost.costs), np.inf)

    def ideal_s(self, nodes: Columns) -> Floats:
        """Return the bound of nodes whose links cost nothing; infinite where a kind has no room for a part."""
        layer, embedding, head = self._ideal_layers(nodes)
        parts = self._most_parts(nodes)
        layers = self.cost.transformer.num_layers
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.cost.is_staged:
                found = self._staged_ideal_s(nodes, layer, parts, embedding[0], head[-1])
            else:
                whole = layers * layer + embedding + head
                found = self._replicated_s(nodes, whole, parts)
        return np.where((parts >= 1).all(axis=0), found, np.inf)

    def _staged_ideal_s(self, nodes: Columns, layer: Floats, parts: Ints, first: Floats, last: Floats) -> Floats:
        """Return the same of stages: embedding on the first kind, head on the last."""
        layers = self.cost.transformer.num_layers
        slowest = (layers + first / layer[0] + last / layer[-1]) / (parts / layer).sum(axis=0)
        through = first + last + layers * layer.min(axis=0)
        return self._step_s(nodes, slowest, through, np.minimum(parts.sum(axis=0), layers))

    def _step_s(self, nodes: Columns, slowest: Floats, through: Floats, stages: Ints) -> Floats:
        """Return the bound of a step from the slowest stage and the sum of all."""
        number = self.cost.batch // (nodes["data"] * nodes["microbatch"])
        warm_up = np.minimum(number, stages)
        return np.asarray(np.maximum(number * slowest, through + (number - (warm_up + 1) / 2) * slowest))

    def _replicated_s(self, nodes: Columns, whole: Floats, parts: Ints) -> Floats:
        """Return the bound of replicas from the sum of all stages of each kind, shape (kinds, n)."""
        stages = nodes["pipeline"]
        total = (self.cost.batch // nodes["microbatch"]).astype(np.float64)
        starts = whole * (stages - 1) / (2 * stages)
        return relaxed_s(parts.astype(np.float64), starts, whole / stages, total)

    def _most_parts(self, nodes: Columns) -> Ints:
        """Return the stages or replicas of each kind, or the most that there can be, shape (kinds, n)."""
        each = nodes["tensor"] * nodes["context"] * nodes["data" if self.cost.is_staged else "pipeline"]
        most = self.cost.transformer.num_layers if self.cost.is_staged else self.cost.batch
        return np.array(
            [
                nodes[name] if name in nodes else np.minimum(devices // each, most)
                for name, devices in zip(self.space.part_names, self.space.devices, strict=True)
            ]
        )

    def _ideal_layers(self, nodes: Columns) -> tuple[Floats, Floats, Floats]:
        """Return the seconds of a layer, an embedding and a head on each kind, shape (kinds, n)."""
        if self.space.is_split:  # too many to know them all
            first, back = distinct(nodes, _FEW)
            few = {name: nodes[name][first] for name in _FEW}
            layer, embedding, head = np.array([self._kind_layers(one, few) for one in self.cost.costs]).swapaxes(0, 1)
            return layer[:, back], embedding[:, back], head[:, back]
        codes, table = self._known_layers
        layer, embedding, head = table[:, :, np.searchsorted(codes, self._code(nodes))]
        return layer, embedding, head

    def _code(self, nodes: Columns) -> Ints:
        """Return one number for the decisions on which a layer's seconds depend here."""
        code = np.zeros(len(nodes["tensor"]), dtype=np.int64)
        for name in _FEW:
            values = self.space.axes[name].values
            code = code * len(values) + np.searchsorted(values, nodes[name])
        return code

    @cached_property
    def _known_layers(self) -> tuple[Ints, Floats]:
        """The numbers of all such decisions, in order, and the seconds of each, shape (3, kinds, n)."""
        nodes = self.space.grid().expand({}, 0)
        codes, first = np.unique(self._code(nodes), return_index=True)
        few = {name: nodes[name][first] for name in _FEW}
        return codes, np.array([self._kind_layers(one, few) for one in self.cost.costs]).swapaxes(0, 1)

    def _kind_layers(self, one: HybridCost, few: Columns) -> Floats:
        """Return the least seconds of a layer, an embedding and a head on one kind over all orders, shape (3, n)."""
        axes, found = self.space.axes, []
        # Of one stage the pipeline's place in an order does not matter.
        if self.search.is_over:
            raise OverError
        orders = {tuple(one for one in ORDERS[index] if one != "pipeline"): index for index in axes["order"].values}
        for is_parallel, order in product(axes["is_sequence_parallel"].values, orders.values()):
            size = len(few["tensor"])
            layouts = replace(
                Layouts.one().of(np.zeros(size, dtype=np.int64)),
                tensor=few["tensor"],
                context=few["context"],
                expert=few["expert"],
                microbatch=few["microbatch"],
                data=few["expert"],
                order=np.full(size, order),
                is_sequence_parallel=np.full(size, bool(is_parallel)),
                overlaps_tensor=(few["tensor"] > 1) & bool(is_parallel),
            )
            times = interval_times(
                self.cost.transformer,
                layouts,
                tiers=one.tiers,
                rates=one.rates,
                software=one.software,
                constants=one.constants,
                expert_imbalance=one.expert_imbalance,
            )
            layer = sum((times[name] for name in LAYER_PARTS), np.zeros(size)) / self.cost.transformer.num_layers
            found.append(np.array([layer, times["embedding"], times["head"]]))
        return np.asarray(np.min(found, axis=0))

    # -- memory --------------------------------------------------------------------------------------------------------

    def fits(self, nodes: Columns) -> Floats:
        """Return infinity where no recomputation leaves room for all layers, and else 0."""
        if not self.cost.is_staged:  # of replicas only their number counts, as states are spread over all of them
            names = self.space.part_names
            whole = np.sum([nodes[name] for name in names], axis=0)
            nodes = {**nodes, **dict.fromkeys(names, np.ones_like(whole)), names[0]: whole - len(names) + 1}
        first, back = distinct(nodes, [name for name in nodes if name != "order"])
        few = {name: column[first] for name, column in nodes.items()}
        return in_parts(few, self._stages(few), self._fits, self.search)[back]

    def _fits(self, nodes: Columns) -> Floats:
        """Return the same of nodes with about as many stages."""
        axes, length = self.space.axes, len(nodes["tensor"])
        stages = self._stages(nodes)
        is_there = np.arange(int(stages.max(initial=1)))[:, None] < stages
        kinds = self._stage_kinds(nodes, len(is_there))
        can = np.zeros(length, dtype=bool)
        for recompute in axes["recompute"].values:
            columns = self._filled(nodes, {"zero": max(axes["zero"].values), "recompute": recompute})
            most = np.where(is_there, self.cost.most_layers(columns, kinds), 0)
            enough = most.sum(axis=0) >= self.cost.transformer.num_layers
            can |= enough & ((most >= 1) | ~is_there).all(axis=0)
        return np.where(can, 0.0, np.inf)

    def _stages(self, nodes: Columns) -> Ints:
        """Return the stages in all."""
        parts = [nodes[name] for name in self.space.part_names]
        return np.asarray(sum(parts) if self.cost.is_staged else nodes["pipeline"])

    def _stage_kinds(self, nodes: Columns, number: int) -> Ints:
        """Return the kind of each stage; of replicas any."""
        index, length = np.arange(number)[:, None], len(nodes["tensor"])
        found = np.zeros((number, length), dtype=np.int64)
        if self.cost.is_staged:
            ends = np.cumsum([nodes[name] for name in self.space.part_names], axis=0)
            for end in ends[:-1]:
                found = found + (index >= end)
        return found

    def _filled(self, nodes: Columns, values: dict[str, int]) -> dict[str, Ints]:
        """Return nodes with values for the decisions that are open."""
        best = {"recompute": 0, "zero": 0, "overlaps_data": 0, "overlaps_tensor": 0, **values}
        length = len(nodes["tensor"])
        return {**{name: np.full(length, value) for name, value in best.items()}, **nodes}

    # -- with the real links -------------------------------------------------------------------------------------------

    def exchange_s(self, nodes: Columns) -> Floats:
        """Return the bound with the real links, the tensor-parallel exchange hidden; nothing computed again if open."""
        return in_parts(nodes, np.ones_like(nodes["tensor"]), self._exchange_s, self.search, _MOST_NODES)

    def _exchange_s(self, nodes: Columns) -> Floats:
        """Return the same of some nodes."""
        columns = self._filled(nodes, {"recompute": int(Recompute.NONE)})
        columns["overlaps_tensor"] = ((nodes["tensor"] > 1) & (nodes["is_sequence_parallel"] > 0)).astype(np.int64)
        kinds, layers, parts = (
            self.cost.kind_seconds(columns),
            self.cost.transformer.num_layers,
            self.cost.parts_of(nodes),
        )
        layer, transfer, embedding, head = (
            np.array([np.broadcast_to(getattr(one, name), len(nodes["tensor"])) for one in kinds])
            for name in ("layer_s", "transfer_s", "embedding_s", "head_s")
        )
        if not self.cost.is_staged:
            sent = 2 * (nodes["pipeline"] - 1) * transfer
            return self._replicated_s(nodes, layers * layer + embedding + head + sent, parts)
        fixed = 2 * (parts - 1) * transfer  # a boundary inside a kind: one stage sends down it, and one up
        fixed[0] += embedding[0]
        fixed[-1] += head[-1]
        for index in range(1, len(kinds)):
            fixed[index - 1 : index + 1] += np.maximum(kinds[index - 1].between_s, kinds[index].between_s)
        slowest = (layers + (fixed / layer).sum(axis=0)) / (parts / layer).sum(axis=0)
        stages = parts.sum(axis=0)
        if len(kinds) == 1:  # layers are whole: one stage has their mean, rounded up
            least = np.minimum(transfer[0] + np.minimum(embedding[0], head[0]), 2 * transfer[0])
            slowest = np.maximum(slowest, -(-layers // stages) * layer[0] + np.where(stages > 2, least, transfer[0]))
        return self._step_s(nodes, slowest, fixed.sum(axis=0) + layers * layer.min(axis=0), stages)

    def best_path_s(self, nodes: Columns) -> Floats:
        """Return the bound with all overlaps, which never make a step longer and cost no memory here."""
        columns = self._filled(nodes, {"overlaps_data": 1})
        columns["overlaps_tensor"] = ((nodes["tensor"] > 1) & (nodes["is_sequence_parallel"] > 0)).astype(np.int64)
        return self.path_s(columns)

    def path_s(self, nodes: Columns) -> Floats:
        """Return the bound with all decided but the schedule's waits; infinite where it does not fit."""
        return in_parts(nodes, self._cells(self._stages(nodes)), self.cost.bound_s, self.search)

    def _cells(self, stages: Ints) -> Ints:
        """Return the stages of layouts, of all their cuts together where all are tried."""
        if not self.cost.is_staged or not len(stages):
            return stages
        layers, values = self.cost.transformer.num_layers, range(int(stages.max()) + 1)
        return np.array([one * (comb(layers - 1, one - 1) if has_few_cuts(layers, one) else 1) for one in values])[
            stages
        ]

    def seconds(self, nodes: Columns) -> Floats:
        """Return the seconds of points."""
        stages = self._stages(nodes)
        if not self.cost.is_staged:
            return in_parts(nodes, stages, self.cost.seconds, self.search, _MOST_DEALT)
        rounds = np.minimum(self.cost.batch // (nodes["data"] * nodes["microbatch"]), MOST_ROUNDS)
        found, sizes = np.empty(len(stages)), np.frexp(rounds)[1]
        for size in np.unique(sizes).tolist():  # so that a part is not as slow as its longest schedule
            chosen = np.flatnonzero(sizes == size)
            columns = {name: column[chosen] for name, column in nodes.items()}
            most = min(_MOST_CELLS, _MOST_TASKS >> size)
            found[chosen] = in_parts(columns, self._cells(stages[chosen]), self.cost.seconds, self.search, most)
        return found
