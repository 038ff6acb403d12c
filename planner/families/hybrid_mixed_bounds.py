"""Bounds of the levels of a team's grid: seconds that no layout below a node is under.

With ``z_k`` seconds of a layer on kind k, ``e_i`` what stage i does besides, ``T`` the slowest stage and ``X`` the sum
of all stages, for one micro-batch:

- stages hold no more than ``(T - e_i) / z_i`` layers, so that ``T >= (L + sum e_i / z_i) / sum 1 / z_i``; and ``X >=
  sum e_i + L min z_k``. The path once through all stages that else dwells on the slowest one, i, takes ``X + (m - w) T
  + (w - 1) max(f, b)`` with ``w = min(m, p - i)``, and ``max(f, b) >= T / 2``; so a step takes no less than ``X +
  (m - (w + 1) / 2) T`` with ``w = min(m, p)``.
- a class of p-stage replicas likewise takes no less than ``X (p - 1) / 2 p + m X / p``; micro-batches in fractions that
  make all classes end together are a bound of any numbers.

*ideal*: with links that cost nothing and nothing computed again, and as many stages or replicas as could be where they
are open. *exchange*: the real links. *fits*: infinite where not even the best recomputation leaves room for all layers.
*best path*: all is decided but overlaps and the schedule's waits; *path*: but these waits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from planner.cost import Floats
from planner.families.hybrid_mixed_cost import MixedCost
from planner.families.hybrid_mixed_space import MixedSpace
from planner.models.layouts import Ints, Layouts, Recompute
from planner.models.tiers import Tier
from planner.models.transformer_mixed import MixedStep, ReplicaClass
from planner.models.transformer_mixed_batches import relaxed_s
from planner.models.transformer_time import interval_times
from planner.solvers.grid import Columns

__all__ = ["MixedBounds", "in_parts"]

_IDEAL_TIERS = (Tier(size=1, bandwidth_bytes_per_s=float("inf")),)
_MOST_CELLS = 100_000  # stages times layouts in one array
_MOST_CODES = 1 << 62
_MOST_DEALT = 500  # layouts whose micro-batches are dealt out in one go
_FEW = ("tensor", "context", "expert", "microbatch")


def in_parts(
    columns: Columns, stages: Ints, function: Callable[[Columns], Floats], most_cells: int = _MOST_CELLS
) -> Floats:
    """Return a function of all nodes, asked for some at a time: those with as many stages together."""
    order = np.argsort(stages, kind="stable")
    found = np.empty(len(order))
    for part in _slices(stages[order], most_cells):
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


def _distinct(nodes: Columns, names: Sequence[str]) -> tuple[Ints, Ints]:
    """Return the index of one node of each combination of some decisions, and for each node which."""
    code = np.zeros(len(nodes["tensor"]), dtype=np.int64)
    for name in names:
        size = int(nodes[name].max(initial=0)) + 1
        if int(code.max(initial=0)) >= _MOST_CODES // size:
            code = np.unique(code, return_inverse=True)[1]
        code = code * size + nodes[name]
    _, first, back = np.unique(code, return_index=True, return_inverse=True)
    return first, back


@dataclass(frozen=True)
class MixedBounds:
    """Bounds for a team."""

    cost: MixedCost

    @cached_property
    def space(self) -> MixedSpace:
        """What may be chosen."""
        return MixedSpace(self.cost)

    @property
    def all(self) -> list[Callable[[Columns], Floats] | None]:
        """Those of all levels but the last."""
        return [
            self.ideal_s,
            *[self.ideal_s] * len(self.space.devices),
            self.exchange_s,
            self.fits,
            self.best_path_s,
            self.path_s,
        ]

    # -- with links that cost nothing ----------------------------------------------------------------------------------

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
        first, back = _distinct(nodes, _FEW)
        tensor, context, expert, microbatch = (nodes[name][first] for name in _FEW)
        layouts = replace(
            Layouts.one().of(np.zeros(len(first), dtype=np.int64)),
            tensor=tensor,
            context=context,
            expert=expert,
            data=expert,
            microbatch=microbatch,
            is_sequence_parallel=np.ones(len(first), dtype=bool),
        )
        rows = []
        for one in self.cost.costs:
            found = interval_times(
                self.cost.transformer,
                layouts,
                tiers=_IDEAL_TIERS,
                rates=one.rates,
                software=one.software,
                constants=replace(one.constants, hop_s=0.0),
                expert_imbalance=one.expert_imbalance,
            )
            layer = (found["compute"] + found["launch"]) / self.cost.transformer.num_layers
            rows.append((layer[back], found["embedding"][back], found["head"][back]))
        layer, embedding, head = (np.array(column) for column in zip(*rows, strict=True))
        return layer, embedding, head

    # -- memory --------------------------------------------------------------------------------------------------------

    def fits(self, nodes: Columns) -> Floats:
        """Return infinity where no recomputation leaves room for all layers, and else 0."""
        if not self.cost.is_staged:  # of replicas only their number counts, as states are spread over all of them
            names = self.space.part_names
            whole = np.sum([nodes[name] for name in names], axis=0)
            nodes = {**nodes, **dict.fromkeys(names, np.ones_like(whole)), names[0]: whole - len(names) + 1}
        first, back = _distinct(nodes, [name for name in nodes if name != "order"])
        few = {name: column[first] for name, column in nodes.items()}
        return in_parts(few, self._stages(few), self._fits)[back]

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
        """Return the bound with the real links, nothing computed again and the tensor-parallel exchange hidden."""
        return in_parts(nodes, self._stages(nodes), self._exchange_s)

    def _exchange_s(self, nodes: Columns) -> Floats:
        """Return the same of nodes with about as many stages."""
        columns = self._filled(nodes, {"recompute": int(Recompute.NONE)})
        columns["overlaps_tensor"] = ((nodes["tensor"] > 1) & (nodes["is_sequence_parallel"] > 0)).astype(np.int64)
        placed = self.cost.placed(columns)
        bare = self.cost.step(placed, np.zeros(placed.stage_kinds.shape, dtype=np.int64))
        layers, there = self.cost.transformer.num_layers, placed.is_there
        if self.cost.is_staged:
            own = bare.classes[0]
            layer, fixed = bare.of_kind(own, "layer_s"), self._fixed_s(bare.classes[0], bare)
            rates = np.where(there, 1 / layer, 0.0)
            slowest = (layers + (rates * fixed).sum(axis=0)) / rates.sum(axis=0)
            fastest = np.where(there, layer, np.inf).min(axis=0)
            return self._step_s(nodes, slowest, fixed.sum(axis=0) + layers * fastest, placed.layouts.pipeline)
        whole = [
            layers * np.broadcast_to(kind.layer_s, len(placed.layouts)) + self._fixed_s(one, bare).sum(axis=0)
            for kind, one in zip(placed.kinds, bare.classes, strict=True)
        ]
        return self._replicated_s(nodes, np.array(whole), self.cost.parts_of(nodes))

    @staticmethod
    def _fixed_s(one: ReplicaClass, bare: MixedStep) -> Floats:
        """Return what each stage of a class does besides its layers, 0 where there is none."""
        return np.asarray((bare.ends_s(one) + sum(bare.sends_s(one), np.zeros(1))) * bare.is_there)

    def best_path_s(self, nodes: Columns) -> Floats:
        """Return the bound with all overlaps, which never make a step longer and cost no memory here."""
        columns = self._filled(nodes, {"overlaps_data": 1})
        columns["overlaps_tensor"] = ((nodes["tensor"] > 1) & (nodes["is_sequence_parallel"] > 0)).astype(np.int64)
        return self.path_s(columns)

    def path_s(self, nodes: Columns) -> Floats:
        """Return the bound with all decided but the schedule's waits; infinite where it does not fit."""
        return in_parts(nodes, self._stages(nodes), self.cost.bound_s)

    def seconds(self, nodes: Columns) -> Floats:
        """Return the seconds of points."""
        stages = self._stages(nodes)
        if self.cost.is_staged:
            return in_parts(nodes, stages, self.cost.seconds)
        return in_parts(nodes, stages, self.cost.seconds, _MOST_DEALT)
