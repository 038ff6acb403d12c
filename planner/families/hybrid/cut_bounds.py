"""Bounds of any cut on any groups: see :mod:`planner.families.hybrid.bounds`.

With ``z_k`` seconds of a layer on group k, ``e_i`` what stage i does besides, ``T`` the slowest stage and ``X`` the sum
of all stages, for one micro-batch. Of layers of both kinds each counts as ``w`` layers, which are L in all, in
proportion to its seconds ``t`` on the first group; ``z_k`` is the less ``t_k / w`` of both kinds on group k, so that no
layer takes less than ``w z_k``:

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
- a class of p-stage replicas likewise takes no less than ``X (p - 1) / 2 p + m X / p``, nor than ``X + (m - (p + 1) /
  2) T``; micro-batches in fractions that make all classes end together are a bound of any numbers;
- layers are whole, so that of p stages on one group one has ``ceil(L / p)`` or more, and of stages on several none
  more than whole ones in its time (:func:`slowest_stage_s`, :meth:`CutBounds.whole_s`).

*pace*, *linked pace* and *layers* as of even cuts (:mod:`planner.families.hybrid.even_bounds`), with as many stages or
replicas as could be where they are open. *any parts*: the real links before it is decided how many replicas are where
(:meth:`CutBounds.any_parts_s`).
*communication*: the real links, before and after recomputation is decided, with what is behind the schedule, as some
stage of any cut has; O(groups) a node, whatever the number of stages. *near*: the same, and of pipelines on several
groups whether whole layers go into stages as these have memory and seconds within the cutoff.
*room*: the same with each recomputation that leaves room for all layers, infinite where none does. *best path*: all is
decided but overlaps and the schedule's waits; *path*: but these waits. The latter two are of the cuts that are tried,
the others of all cuts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import comb, inf, prod

import numpy as np

from planner.cost import Floats
from planner.families.hybrid.bounds import BEST, Bounds, fullest_s, peak_step_s, sharding_is_free
from planner.families.hybrid.configuration import CODES_OF_CUTS
from planner.families.hybrid.cost import has_few_cuts
from planner.families.hybrid.layer_table import LayerTable, LeastSeconds
from planner.families.hybrid.space import Bound
from planner.frozen import frozen
from planner.models.balance import shared_bound_s
from planner.models.layouts import Bools, Ints, Recompute
from planner.models.schedule import MOST_ROUNDS
from planner.models.transformer_interval import mean_layer
from planner.models.transformer_step import (
    GroupSeconds,
    behind_mean_stage_s,
    least_behind_s,
    mean_stage_s,
)
from planner.solution import SAME
from planner.solvers.grid import Columns, distinct

_WHOLE = 1 + 1e-9  # of layers in fractions
_MOST_SUMMED = 1 << 12  # terms of the harmonic series: of longer sums, what is left of a difference is too inexact
_HALVES = 8  # of an interval of seconds
_ROUNDS = 2  # of what stages hold by what they pass, and that by what they hold
# What nothing that replicas exchange depends on.
_INSIDE_REPLICAS = {"sequence_parallel", "recompute", "recompute_modules", "context_method", "overlap_tensor"}
_NUMBERED = ("sequence_parallel", "order")  # how ranks lie, which is decided after the replicas of each group
_BEST_OF_CUTS = {**BEST, **CODES_OF_CUTS}
_MOST_CELLS = 100_000  # stages times layouts in one array
_MOST_NODES = 10_000  # whose communication is bounded together
_MOST_TASKS = 1 << 23  # stages times micro-batches whose schedules are played in one go
_MOST_SHARED = 100  # layouts whose micro-batches are shared out in one go


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


def slowest_stage_s(num_layers: int, layer: Floats, parts: Ints, sent: Floats) -> Floats:
    """Return what the slowest stage of any cut takes at least, as layers are whole, and each stage has one.

    In T seconds a stage of group k holds no more than ``floor((T - e) / t)`` layers, with e twice what it sends inside
    the group, or once at the group's ends. Where all together hold fewer than L, some stage takes longer: halving finds
    a T of which that is so, but for less than ``2**-8`` of the slowest group's layer.

    Parameters
    ----------
    num_layers
        L.
    layer
        t, of the kind of layer that takes least, (groups, n).
    parts, sent
        Stages of each group, or, of nothing sent, no fewer; seconds of a boundary between two; (groups, n).
    """
    ends, at_ends = np.where(parts > 1, sent, 0.0), np.minimum(parts, 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = (parts / layer).sum(axis=0)
        low_s = np.maximum((layer + ends).max(axis=0), num_layers / pace)
        # Of seconds in which stages do all layers in fractions, and a layer's beside, as many whole ones are done.
        high_s = layer.max(axis=0) + (num_layers + 2 * (parts * sent / layer).sum(axis=0)) / pace
        for _ in range(_HALVES):
            middle_s = (low_s + high_s) / 2
            inside, outside = ((middle_s - one) / layer * _WHOLE for one in (2 * sent, ends))
            held = (parts - at_ends) * np.maximum(np.floor(inside), 0) + at_ends * np.floor(outside)
            is_enough = held.sum(axis=0) >= num_layers
            low_s, high_s = np.where(is_enough, low_s, middle_s), np.where(is_enough, middle_s, high_s)
    return np.asarray(low_s)


@frozen
class _Linked:
    """Seconds of stages with the real links, nothing computed again if that is open; arrays of shape (groups, n)."""

    by_kind_s: Floats  # of layers, (kinds, groups, n)
    transfer_s: Floats  # to the next stage on the same group,
    between_s: Floats  # or on another one, as far as this side takes
    # of the first group, and of the last: (n,)
    embedding_s: Floats
    head_s: Floats

    def of(self, rows: Ints) -> "_Linked":
        """Return those of some nodes."""
        return _Linked(**{one.name: getattr(self, one.name)[..., rows] for one in fields(self)})


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
            *[self.layers_s] * (len(self.space.devices) - 1),
            self.layers_s if self.cost.has_replicas else self.placed_s,
            self.near_s,
            self.room_s,
            self.near_s,
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
            each, [one.of_each_sample(nodes, samples, self.microbatches, self._ask_uncounted) for one in tables]
        )
        return np.where(samples >= smallest, found, inf)

    def layers_s(self, nodes: Columns) -> Floats:
        """Return the bound with the communication of layers; infinite where a group has no room for a part."""
        self._ask()
        return self._layers_s(nodes, [one.of(nodes, self._ask_uncounted) for one in self._linked], is_whole=True)

    def placed_s(self, nodes: Columns) -> Floats:
        """Return the same of stages; where no answer is known yet, infinite where nothing leaves room for all layers.

        Where one is known, its seconds rule out most by themselves.
        """
        found = self.layers_s(nodes)
        if self.search.cutoff < inf:
            return found
        values = self.space.axes["sequence_parallel"].values
        columns, owner = self.space.below(nodes, {"sequence_parallel": values})
        room = np.full(len(found), inf)
        if len(owner):
            np.minimum.at(room, owner, self.fits({**columns, "order": np.zeros_like(owner)}))
        return np.asarray(np.maximum(found, room))

    def least_layers_s(self, nodes: Columns) -> Floats:
        """Return z of each group with the communication of layers, see the module; (groups, n)."""
        return self._layers(
            np.array([one.of(nodes, self._ask_uncounted).layer_s for one in self._linked]).swapaxes(0, 1)
        )[1]

    @cached_property
    def _ideal(self) -> Sequence[LayerTable]:
        """Layers on each group where links cost nothing."""
        return [self.layer_table(one, has_links=False, best=_BEST_OF_CUTS) for one in self.cost.groups]

    @cached_property
    def _linked(self) -> Sequence[LayerTable]:
        """Layers on each group with the real links."""
        return [self.layer_table(one, has_links=True, best=_BEST_OF_CUTS) for one in self.cost.groups]

    def _layers_s(self, nodes: Columns, least: Sequence[LeastSeconds], *, is_whole: bool = False) -> Floats:
        """Return the bound of the least seconds of layers and ends on each group.

        ``is_whole``: whether layers count as whole ones; not where the micro-batch is open, of which stages take parts.
        """
        by_kind = np.array([one.layer_s for one in least]).swapaxes(0, 1)
        mean, layer = self._layers(by_kind)
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
                slowest = slowest_stage_s(layers, by_kind.min(axis=0), parts, np.zeros_like(layer)) if is_whole else 0.0
                found = self._step_s(nodes, fixed, parts, layer, slowest)
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
        self,
        nodes: Columns,
        whole: Floats,
        parts: Ints | Floats,
        behind: Floats | float = 0.0,
        slowest: Floats | None = None,
    ) -> Floats:
        """Return the bound of replicas from the sum of all stages of each group, and what is behind; (groups, n).

        Of what the slowest stage takes at least, m micro-batches take no less than ``X + (m - (w + 1) / 2) T`` either,
        with w of no more than p, nor than m.
        """
        stages, replicas = nodes["pipeline"], parts.astype(np.float64)
        total = (self.cost.batch // nodes["microbatch"]).astype(np.float64)
        starts = whole * (stages - 1) / (2 * stages) + behind
        found = shared_bound_s(replicas, starts, whole / stages, total)
        if slowest is None:
            return found
        starts = whole - slowest * (stages + 1) / 2 + behind
        return np.maximum(found, shared_bound_s(replicas, starts, slowest, total))

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
            yield again, table.of(nodes, self._ask_uncounted).layer_s[0], self._has_room(nodes, again)

    def room_s(self, nodes: Columns) -> Floats:
        """Return the bound with the real links and what is computed again; infinite where there is no room."""
        if self.search.good_enough == inf and self.search.cutoff == inf:  # any layout that fits will do
            return self.fits(nodes)
        found, left = np.full(len(nodes["tensor"]), inf), np.arange(len(nodes["tensor"]))
        none = [one for one in self._again if one["recompute"] == Recompute.NONE]
        for again in none:  # the bound of the level before is of this one
            has_room = self._has_room(nodes, again)
            found[has_room] = 0.0
            left = np.flatnonzero(~has_room)
        others = [one for one in self._again if one not in none]
        if len(others) > 1 and len(left):  # of what has no room in any way, no seconds are asked for
            left = left[self.fits({name: column[left] for name, column in nodes.items()}) == 0.0]
        if not others or not len(left):
            return found
        owner = np.tile(left, len(others))  # all at once: few nodes take as long as many
        columns = {name: column[owner] for name, column in nodes.items()}
        for name in others[0]:
            columns[name] = np.repeat(np.array([one[name] for one in others], dtype=np.int64), len(left))
        seconds = self.communication_s(columns)
        near = np.flatnonzero(seconds <= self.search.cutoff)  # of others it does not matter whether they have room
        has_room = self._has_room({name: column[near] for name, column in columns.items()}, {})
        seconds[near[~has_room]] = inf
        np.minimum.at(found, owner, seconds)
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
        found = np.zeros(len(stages), dtype=bool)
        for zero in self._open_zeros[:1] if "zero" in nodes else self._open_zeros:
            left = np.flatnonzero(~found)
            if not len(left):
                break
            columns = {name: column[left] for name, column in self._filled(nodes, {"zero": zero}).items()}
            most = np.where(is_there[:, left], self.cost.most_layers(columns, on[:, left]), 0)
            enough = most.sum(axis=0) >= self.cost.transformer.num_layers
            found[left] = enough & ((most >= 1) | ~is_there[:, left]).all(axis=0)
        return np.where(found, 1.0, 0.0)

    @cached_property
    def _open_zeros(self) -> Sequence[int]:
        """Stages of ZeRO one of which leaves most room where they are open, the highest first."""
        zeros = self.space.axes["zero"].values or (0,)
        return [max(zeros)] if max(zeros) <= 1 and sharding_is_free(self.cost.first) else sorted(zeros, reverse=True)

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
            whole, slowest, behind = self.replicas_s(nodes, self.cost.parts_of(nodes))
            return self._replicated_s(nodes, whole, self.cost.parts_of(nodes), behind, slowest)
        return self._in_parts(nodes, np.ones_like(nodes["tensor"]), self._communication_s, _MOST_NODES)

    def _communication_s(self, nodes: Columns) -> Floats:
        """Return the same of some nodes with stages."""
        return self._of_links_s(nodes, self._linked_s(nodes))[0]

    def _of_links_s(self, nodes: Columns, linked: "_Linked") -> tuple[Floats, Floats]:
        """Return the same, and what is behind a stage on some group at least; 0 of nodes above the cutoff without."""
        parts = self.cost.parts_of(nodes)
        fixed = 2 * (parts - 1) * linked.transfer_s  # a boundary inside a group: one stage sends down it, and one up
        fixed[0] += linked.embedding_s
        fixed[-1] += linked.head_s
        for index in range(1, len(parts)):
            fixed[index - 1 : index + 1] += np.maximum(linked.between_s[index - 1], linked.between_s[index])
        stages = parts.sum(axis=0)
        if len(parts) == 1:  # layers are whole: one stage has their mean number, rounded up
            (transfer,) = linked.transfer_s
            end = np.minimum(transfer + np.minimum(linked.embedding_s, linked.head_s), 2 * transfer)
            whole = fullest_s(self.cost.transformer, linked.by_kind_s[:, 0], stages).min(axis=0)
            slowest = whole + np.where(stages > 2, end, transfer)
        else:
            quickest = linked.by_kind_s.min(axis=0)
            slowest = slowest_stage_s(self.cost.transformer.num_layers, quickest, parts, linked.transfer_s)
        found = self._step_s(nodes, fixed, parts, self._layers(linked.by_kind_s)[1], slowest)
        behind = np.zeros(len(stages))
        if len(parts) == 1 or len(self.cost.transformer.kind_counts) == 1:  # else nobody knows which a group has
            near = np.flatnonzero(found <= self.search.cutoff)
            if len(near):
                behind[near] = self._behind_s({name: column[near] for name, column in nodes.items()})
        return np.asarray(found + behind), behind

    def _linked_s(self, nodes: Columns) -> "_Linked":
        """Return the seconds of each group with the real links.

        Those of a group depend on its own stages, whatever the others have: of many nodes that agree in these each is
        asked about once.
        """
        columns, names = self._at_best(nodes), self.space.part_names
        back, rows = distinct(columns, [name for name in columns if name not in names])[1], []
        for index, name in enumerate(names):
            first, which = distinct({"shared": back, name: columns[name]}, ["shared", name])
            group = self.cost.seconds_on({one: column[first] for one, column in columns.items()}, index)
            ends = (group.transfer_s, group.between_s, group.embedding_s, group.head_s)
            rows.append((group.layer_s[:, which], *(np.broadcast_to(one, len(first))[which] for one in ends)))
        by_kind, transfer, between, embedding, head = zip(*rows, strict=True)
        return _Linked(
            by_kind_s=np.array(by_kind).swapaxes(0, 1),
            transfer_s=np.array(transfer),
            between_s=np.array(between),
            embedding_s=embedding[0],
            head_s=head[-1],
        )

    def whole_s(self, nodes: Columns, low_s: Floats, most_s: float) -> Floats:
        """Return seconds that pipelines on several groups are not under, whatever the cut; infinite above ``most_s``.

        Parameters
        ----------
        low_s
            Of another bound.
        """
        if len(self.cost.transformer.kind_counts) > 1:
            return low_s
        holds = self._holding(nodes, self._linked_s(nodes), self._behind_s(nodes))
        high_s = np.full(len(low_s), most_s)
        can = holds(high_s)
        for _ in range(_HALVES):
            middle_s = (low_s + high_s) / 2
            is_enough = holds(middle_s)
            low_s, high_s = np.where(is_enough, low_s, middle_s), np.where(is_enough, middle_s, high_s)
        return np.where(can, low_s, inf)

    def _holding(self, nodes: Columns, linked: "_Linked", behind_s: Floats) -> Callable[[Floats], Bools]:
        """Return what says in which seconds pipelines on several groups may do all layers, whatever the cut.

        Of layers of one kind, which are whole: in a step of S seconds stage i holds no more of them than it has memory
        for, nor than ``(t - e_i) / z_i``, where t is the least of ``S / m``, ``(S - X) / c_i`` and, for ``m > p``, ``(S
        - 2 X) / (m - 1 - p)`` (see the module). It holds one at least. If all hold fewer than L, it takes longer. X is
        of L layers on the quickest stages, of which none holds more than in a t that is known before. Where it is open
        what is computed again or sharded, no stage takes less than with nothing computed again, nor has more room than
        with what leaves most.
        """
        layers, stages = self.cost.transformer.num_layers, self._stages(nodes)
        places = np.arange(int(stages.max(initial=1)))[:, None]
        is_there, on = places < stages, self.cost.stage_groups(nodes, len(places))
        by_group = linked.transfer_s, linked.between_s, self._layers(linked.by_kind_s)[1]
        sent, across, each = (np.take_along_axis(one, on, axis=0) for one in by_group)
        sent[1:] = np.where(on[1:] == on[:-1], sent[1:], np.maximum(across[1:], across[:-1]))
        sent[~is_there] = sent[0] = 0.0
        fixed = sent + np.concatenate([sent[1:], np.zeros_like(sent[:1])])
        fixed[0] += linked.embedding_s
        fixed[stages - 1, np.arange(len(stages))] += linked.head_s
        ends = np.where(is_there, fixed, 0.0).sum(axis=0)
        number = self.cost.batch // (nodes["data"] * nodes["microbatch"])
        others = number - (np.minimum(number, stages - places) + 1) / 2  # c_i
        room = np.where(is_there, self._most_room(nodes, on), 0)
        order = np.argsort(each, axis=0, kind="stable")  # of stages, the quickest first

        def held_in(can_s: Floats) -> Floats:
            return np.asarray(np.minimum(np.floor((can_s - fixed) / each * _WHOLE), room))

        def holds(step_s: Floats) -> Bools:
            seconds = step_s - behind_s
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

        return holds

    def _most_room(self, nodes: Columns, on: Ints) -> Ints:
        """Return how many layers fit on each stage, with what of the decisions that are open leaves most room.

        Parameters
        ----------
        on
            The index of each stage's group, (p, n).
        """
        open_ones = [{"zero": one} for one in (self._open_zeros if "zero" not in nodes else ())] or [{}]
        again = self._most_again if "recompute" not in nodes else [{}]
        ways = [{**one, **other} for one in open_ones for other in again]
        return np.asarray(np.max([self.cost.most_layers(self._filled(nodes, one), on) for one in ways], axis=0))

    def near_s(self, nodes: Columns) -> Floats:
        """Return the bound with the real links, above the cutoff also where whole layers take longer than that."""
        is_counted = not self.cost.has_replicas and len(self.cost.groups) > 1 and self.search.cutoff < inf
        if not is_counted or len(self.cost.transformer.kind_counts) > 1:
            return self.communication_s(nodes)
        return self._in_parts(nodes, np.ones_like(nodes["tensor"]), self._near_s, _MOST_NODES)

    def _near_s(self, nodes: Columns) -> Floats:
        """Return the same of some nodes with stages of equal layers on several groups."""
        linked, above_s = self._linked_s(nodes), self.search.cutoff * (1 + SAME)
        found, behind = self._of_links_s(nodes, linked)
        near = np.flatnonzero(found <= self.search.cutoff)

        def least_s(some: Columns) -> Floats:
            few, at = {name: column for name, column in some.items() if name}, some[""]
            can = self._holding(few, linked.of(at), behind[at])(np.full(len(at), above_s))
            return np.where(can, 0.0, above_s)

        few = {**{name: column[near] for name, column in nodes.items()}, "": near}
        found[near] = np.maximum(found[near], self._in_parts(few, self._stages(few), least_s))
        return found

    def _behind_s(self, nodes: Columns) -> Floats:
        """Return what a stage with the mean of all layers takes behind its schedule on some group at least, (n,).

        Some stage of any cut has as much: on one group by :func:`planner.models.transformer_step.least_behind_s`, and
        of equal layers on some of several groups, as one has no fewer than the mean. It depends on the stages of the
        group, and on how many there are in all.
        """
        columns, names, whole = self._at_best(nodes), self.space.part_names, self._stages(nodes)
        back = distinct(columns, [name for name in columns if name not in names])[1]
        zeros = self.space.axes["zero"].values if "zero" not in nodes else (None,)
        # Of layers of several kinds what takes longer is not always what a step waits for, and yet hides more.
        hides, found = len(self.cost.transformer.kind_counts) == 1, np.full(len(whole), inf)
        for index, name in enumerate(names):
            first, which = distinct({"shared": back, name: columns[name], "whole": whole}, ["shared", name, "whole"])
            few = {one: column[first] for one, column in columns.items()}
            group = self.cost.seconds_on(few, index)
            for zero in zeros:
                each = few if zero is None else {**few, "zero": np.full_like(few["zero"], zero)}
                behind_s = least_behind_s(group, self.cost.layouts(each), hides=hides)
                np.minimum(found, behind_s[which], out=found)
        return found

    def _at_best(self, nodes: Columns) -> dict[str, Ints]:
        """Return nodes with the real links, nothing computed again if that is open, and all overlaps."""
        overlaps = max(self.space.axes["overlap_data"].values)
        columns = self._filled(nodes, {"recompute": int(Recompute.NONE), "overlap_data": overlaps})
        return {**columns, "overlap_tensor": self._may_overlap(nodes)}

    def any_parts_s(self, nodes: Columns) -> Floats:
        """Return the bound of replicas with the real links, of the best numbers on each group and order of ranks.

        A step of S seconds with d replicas on each group keeps ``sum d (S - a) / x >= N``, and no replica has less than
        one micro-batch, so that no S is below any a. So the sum only grows with the least a and x that any numbers give
        and with the most replicas of each group: the S that it is N of is no more than that of any. So does the sum of
        ``d ((S - X - behind) / T + (p + 1) / 2)``, the same of the slowest stage (:meth:`_replicated_s`).
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
            np.minimum.at(fewest[index], whose, columns[name])
            np.maximum.at(most[index], whose, columns[name])
            alike = np.minimum(columns[name], self.cost.groups[index].figures.most_data)
            at, _ = distinct({"whose": whose, name: alike}, ["whose", name])
            columns, whose = {name: column[at] for name, column in columns.items()}, whose[at]
            whole_s, slowest_s, forward_s, both_s = self._replica_s(columns, columns[name], index)
            for least, values in ((whole, whole_s), (slowest, slowest_s)):
                np.minimum.at(least[index], whose, values)
            for highest, values in ((forward, forward_s), (backward, both_s - forward_s)):
                np.maximum.at(highest[index], whose, values)
        has_all = np.flatnonzero((most > 0).all(axis=0))
        rows, owner = {name: column[has_all] for name, column in rows.items()}, owner[has_all]
        whole, slowest, fewest, forward, backward, most = (
            one[:, has_all] for one in (whole, slowest, fewest, forward, backward, most)
        )
        alone_s = self._replicated_s(rows, whole, most, slowest=slowest)
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
        linked_s = self._replicated_s(few, whole[:, near], most[:, near], behind[:, near], slowest[:, near])
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
            columns, number, whose = of_each(np.minimum(own, self.cost.groups[index].figures.most_data))
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
            return self._whole_s(nodes, [one.of(nodes, self._ask_uncounted) for one in tables])
        samples = np.full(len(nodes["tensor"]), self.cost.batch)
        each = [one.of_each_sample(nodes, samples, self.microbatches, self._ask_uncounted) for one in tables]
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
        """Return the bound with all overlaps, which cost no memory here, or without those of tensor-parallel ranks.

        With these each layer takes less, and yet a step may take longer: it has another cut, or other numbers of
        micro-batches for each group, which are chosen without what replicas exchange.
        """
        open_ones, overlaps = self._filled(nodes, {"overlap_data": 1}), self._may_overlap(nodes)
        found = self.path_s({**open_ones, "overlap_tensor": overlaps})
        at = np.flatnonzero((overlaps > 0) & (0 in self.space.axes["overlap_tensor"].values))
        if len(at):
            without = {name: column[at] for name, column in open_ones.items()}
            found[at] = np.minimum(found[at], self.path_s({**without, "overlap_tensor": np.zeros_like(at)}))
        return found

    def path_s(self, nodes: Columns) -> Floats:
        """Return the bound with all decided but the schedule's waits; infinite where it does not fit."""
        return self._in_parts(nodes, self._cells(self._stages(nodes)), self.cost.bound_s)

    def _cells(self, stages: Ints) -> Ints:
        """Return the stages of layouts, of all their cuts together where all are tried."""
        if self.cost.has_replicas or not len(stages):
            return stages
        layers, values = self.cost.parted_layers, range(int(stages.max()) + 1)
        table = [one * (comb(layers - 1, one - 1) if has_few_cuts(layers, one) else 1) for one in values]
        return np.array(table)[stages]

    def seconds(self, nodes: Columns) -> Floats:
        """Return the seconds of points; infinite where they do not fit."""
        stages = self._stages(nodes)
        if self.cost.has_replicas:
            return self._in_parts(nodes, np.ones_like(stages), self.cost.seconds, _MOST_SHARED)
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
