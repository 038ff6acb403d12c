"""Seconds of a training step of a transformer on machines of several kinds, or with stages of unlike numbers of layers.

All devices of one stage of one replica are of one kind. Replicas whose stages lie on the same kinds, and which do as
many micro-batches, make a *class*; layers are cut into stages alike in all of them, since they add up gradients.

* *Stage.* The seconds of one layer for one micro-batch on each kind are those of :mod:`planner.models.transformer_time`
  with that kind's devices and tiers; a stage's are these times its layers, and the first has the embedding besides, the
  last the head. Layers of different sorts (with experts and without) count by their mean.
* *Schedule.* 1F1B on unlike stages, exactly (:mod:`planner.models.transformer_mixed_schedule`); a stage that sends
  computes nothing meanwhile. Between two kinds a device has its part of its machine's link, and the slower side counts.
* *Replicas.* Gradients and weights of a stage are exchanged by all its data ranks: as if all of these stood on machines
  of one kind whose links were no wider than those between kinds; the kind that is slowest counts.
* *Step.* The longest class, and then the longest stage's exchange (as far as nothing hides it) and optimiser.

With one kind and equal stages that is the step of :mod:`planner.models.transformer_time`, but for its schedule, which
is a closed form there. Leaves out ZeRO 2 and 3, chunks, other schedules, and an optimiser on the host.

Arrays that depend on the stage have it first: shape (p, n) for n layouts; stages that a layout does not have stand
behind its last, with 0 layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.cost import Floats
from planner.models.layouts import Bools, Ints, Layouts
from planner.models.roofline import Constants, move_s
from planner.models.transformer_compute import Software
from planner.models.transformer_mixed_kinds import LAYER_PARTS, KindSeconds
from planner.models.transformer_mixed_schedule import one_forward_one_backward_s, path_bound_s
from planner.models.transformer_replicas import ReplicaExchange, StageParameters, replica_times, stage_parameters
from planner.transformer import Transformer

__all__ = ["MixedStep", "ReplicaClass"]

_WEIGHT_BYTES = 2.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaClass:
    """Replicas that are alike: on which kind each stage lies (an index, shape (p, n)), and micro-batches of a step."""

    kinds: Ints
    num_microbatches: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedStep:
    """A step of n layouts.

    Attributes
    ----------
    layouts
        Degrees, ZeRO stage, recomputation and overlaps; ``data`` of all classes together, ``pipeline`` of all stages.
    layers
        Of each stage, shape (p, n).
    kinds
        Seconds by kind.
    classes
        Of replicas.
    """

    transformer: Transformer
    layouts: Layouts
    layers: Ints
    kinds: Sequence[KindSeconds]
    classes: Sequence[ReplicaClass]
    software: Software
    constants: Constants

    @cached_property
    def is_there(self) -> Bools:
        """Whether a layout has a stage."""
        return np.asarray(np.arange(len(self.layers))[:, None] < self.layouts.pipeline)

    @cached_property
    def _is_last(self) -> Bools:
        """Whether a stage is a layout's last one."""
        return np.asarray(np.arange(len(self.layers))[:, None] == self.layouts.pipeline - 1)

    @cached_property
    def _is_first(self) -> Bools:
        """Whether a stage is the first."""
        return np.asarray((np.arange(len(self.layers)) == 0)[:, None])

    def of_kind(self, one: ReplicaClass, name: str) -> Floats:
        """Return a figure of the kind on which each stage of a class lies, shape (p, n)."""
        table = np.array([np.broadcast_to(getattr(kind, name), len(self.layouts)) for kind in self.kinds])
        return np.asarray(np.take_along_axis(table, one.kinds, axis=0))

    def ends_s(self, one: ReplicaClass) -> Floats:
        """Return what embedding and head take on each stage of a class, both ways, shape (p, n)."""
        return self._ends(one, "embedding_s", "head_s")

    def _ends(self, one: ReplicaClass, first: str, last: str) -> Floats:
        """Return a figure of the first stage and one of the last, where these stand, shape (p, n)."""
        return np.asarray(self._is_first * self.of_kind(one, first) + self._is_last * self.of_kind(one, last))

    def sends_s(self, one: ReplicaClass) -> tuple[Floats, Floats]:
        """Return how long each stage of a class sends: its output forward, and the error back."""
        same = self.of_kind(one, "transfer_s")
        down = np.zeros(same.shape)
        crosses = one.kinds[:-1] != one.kinds[1:]
        down[:-1] = same[:-1]
        if crosses.any():
            other = self.of_kind(one, "between_s")
            down[:-1] = np.where(crosses, np.maximum(other[:-1], other[1:]), down[:-1])
        down[:-1] *= self.is_there[1:]
        return down, np.concatenate([np.zeros((1, same.shape[1])), down[:-1]])

    def passes_s(self, one: ReplicaClass) -> tuple[Floats, Floats]:
        """Return forward and backward of one micro-batch on each stage of a class, sending included."""
        ends, (down, up) = self.ends_s(one), self.sends_s(one)
        ends_ahead = self._ends(one, "embedding_forward_s", "head_forward_s")
        ahead = self.layers * self.of_kind(one, "layer_forward_s")
        both = self.layers * self.of_kind(one, "layer_s")
        return ahead + ends_ahead + down, both - ahead + ends - ends_ahead + up

    @cached_property
    def class_steps_s(self) -> Floats:
        """Seconds of each class from the first forward to the last backward, shape (classes, n)."""
        rows = [
            one_forward_one_backward_s(*self.passes_s(one), self.layouts.pipeline, one.num_microbatches)
            for one in self.classes
        ]
        return np.array(rows)

    @cached_property
    def bound_s(self) -> Floats:
        """Seconds that the step is not under, without the schedule's recurrence."""
        rows = [path_bound_s(*self.passes_s(one), self.layouts.pipeline, one.num_microbatches) for one in self.classes]
        return np.asarray(np.max(rows, axis=0) + self.tail_s.max(axis=0))

    @cached_property
    def total_s(self) -> Floats:
        """Seconds of the step."""
        return np.asarray(self.class_steps_s.max(axis=0) + self.tail_s.max(axis=0))

    # -- behind the schedule -------------------------------------------------------------------------------------------

    @cached_property
    def tail_s(self) -> Floats:
        """Exchange of replicas that nothing hides, and the optimiser, of each stage, shape (p, n)."""
        return np.asarray(self.exposed_s + self.optimizer_s)

    @cached_property
    def _held(self) -> StageParameters:
        """Parameters on one device."""
        return stage_parameters(self.transformer, self.layouts)

    @cached_property
    def exposed_s(self) -> Floats:
        """Seconds of reductions and gathers that nothing hides, the slowest kind of each stage, shape (p, n)."""
        return np.asarray(np.max([self._exposed_on(one) for one in self.classes], axis=0))

    def _exposed_on(self, one: ReplicaClass) -> Floats:
        """Return the same as it looks from the kinds of one class."""
        found = np.zeros(self.layers.shape)
        for index, kind in enumerate(self.kinds):
            is_here = one.kinds == index
            if is_here.any():
                exchanged = replica_times(self._exchanges, kind.groups).values()
                reduced, gathered = (sum((row[i] for row in exchanged), np.zeros(1)) for i in (0, 1))
                ahead, whole = self.layers * kind.computed_forward_s, self.layers * kind.layer_s
                shown = self._beside(whole - ahead, reduced) + self._beside(ahead, gathered)
                overlaps = self.layouts.overlaps_data & (self.layouts.context * self.layouts.data > 1)
                found = np.where(is_here, np.where(overlaps, shown, reduced + gathered), found)
        return np.asarray(found * self.is_there) + self._tied_s(one)

    def _beside(self, computing: Floats, exchange: Floats) -> Floats:
        """Return what an exchange adds to computing that it runs beside: what is longer, and some of the shorter."""
        both = np.maximum(computing, exchange) + self.constants.contention * np.minimum(computing, exchange)
        return np.asarray(both - computing)

    @cached_property
    def _exchanges(self) -> tuple[ReplicaExchange, ...]:
        """What the data ranks of each stage exchange."""
        held, zero = self._held, self.layouts.zero
        each = self.layouts.pipeline / self.transformer.num_layers
        dense = held.dense * each * self.layers + self._is_first * held.first
        dense = dense + np.where(self._is_last & ~self._is_first, held.last, 0.0)
        found = []
        for name, group, parameters in (
            ("dense", "replicas", dense),
            ("experts", "expert_replicas", held.experts * each * self.layers),
        ):
            reduced = self.software.gradient_bytes * parameters
            found.append(
                ReplicaExchange(
                    name=name,
                    group=group,
                    gradient_bytes=reduced,
                    weight_bytes=_WEIGHT_BYTES * parameters,
                    num_pieces=np.maximum(np.ceil(reduced / self.software.bucket_bytes), 1.0),
                    all_reduces=np.where(zero == 0, 1.0, 0.0),
                    reduce_scatters=np.where(zero > 0, 1.0, 0.0),
                    gathers=np.where(zero > 0, 1.0, 0.0),
                )
            )
        return tuple(found)

    def _tied_s(self, one: ReplicaClass) -> Floats:
        """Return the all-reduce of the tied embedding's gradient, between the first stage and the last."""
        size_bytes = self.software.gradient_bytes * self._held.tied
        if not np.any(size_bytes):
            return np.zeros(self.layers.shape)
        last = np.take_along_axis(one.kinds, (self.layouts.pipeline - 1)[None, :], axis=0)[0]
        nothing = np.zeros(1)
        exchange = ReplicaExchange(
            name="tied",
            group="ends",
            gradient_bytes=size_bytes,
            weight_bytes=nothing,
            num_pieces=np.ones(1),
            all_reduces=np.where(self.layouts.pipeline > 1, 1.0, 0.0),
            reduce_scatters=nothing,
            gathers=nothing,
        )
        rows = [np.broadcast_to(replica_times([exchange], kind.groups)["tied"][0], len(last)) for kind in self.kinds]
        table = np.array(rows)
        slower = np.maximum(
            np.take_along_axis(table, one.kinds[:1], axis=0)[0], np.take_along_axis(table, last[None, :], axis=0)[0]
        )
        return np.asarray((self._is_first | self._is_last) * slower)

    @cached_property
    def optimizer_s(self) -> Floats:
        """Seconds of the optimiser's step on each stage, on its slowest kind, shape (p, n)."""
        network, layouts = self.transformer, self.layouts
        experts = network.experts
        routed = experts.num_experts * network.expert_parameters * network.num_moe_layers if experts else 0
        ends = max(network.embedding_parameters, network.head_parameters)
        both = network.embedding_parameters + network.head_parameters
        blocks = network.num_parameters - both - routed
        ranks = np.where(layouts.zero > 0, layouts.data * layouts.context, 1)
        of_ends = np.where(layouts.pipeline > 1, ends, both) * (self._is_first | self._is_last)
        share = self.layers / network.num_layers
        dense = (blocks * share + of_ends) / layouts.tensor
        spread = np.maximum(ranks / layouts.expert, 1)
        held = dense / ranks + routed * share / (layouts.tensor * layouts.expert) / spread
        found = np.zeros(self.layers.shape)
        for one in self.classes:
            for index, kind in enumerate(self.kinds):
                seconds = move_s(held * self.software.optimizer_bytes, kind.rates)
                found = np.where(one.kinds == index, np.maximum(found, seconds), found)
        return np.asarray(found * self.is_there)

    # -- parts -------------------------------------------------------------------------------------------------------

    def parts(self) -> dict[str, Floats]:
        """Return the seconds of the step by part, which sum to the total.

        Parts of computing are those of the slowest stage of the longest class; ``bubble`` is what the schedule takes
        beyond them.
        """
        number = len(self.layouts)
        rows = [self._class_parts(one) for one in self.classes]
        longest, columns = np.argmax(self.class_steps_s, axis=0), np.arange(number)
        found = {name: np.array([row[name] for row in rows])[longest, columns] for name in rows[0]}
        busy = sum(found.values(), np.zeros(number))
        found["bubble"] = np.maximum(self.class_steps_s[longest, columns] - busy, 0.0)
        slowest = np.argmax(self.tail_s, axis=0)
        found["data"] = self.exposed_s[slowest, columns]
        found["optimizer"] = self.optimizer_s[slowest, columns]
        return found

    def _class_parts(self, one: ReplicaClass) -> dict[str, Floats]:
        """Return the seconds of all micro-batches on the slowest stage of a class, by part."""
        forward, backward = self.passes_s(one)
        stage, columns = np.argmax(forward + backward, axis=0), np.arange(len(self.layouts))
        kind, layers = one.kinds[stage, columns], self.layers[stage, columns]
        found = {}
        for name in LAYER_PARTS:
            table = np.array([np.broadcast_to(each.layer[name], len(columns)) for each in self.kinds])
            found[name] = one.num_microbatches * layers * table[kind, columns]
        found["compute"] = found["compute"] + one.num_microbatches * self.ends_s(one)[stage, columns]
        sent = sum(self.sends_s(one), np.zeros(1))
        found["pipeline"] = one.num_microbatches * sent[stage, columns]
        return found
