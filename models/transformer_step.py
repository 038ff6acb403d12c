"""The step of a transformer whatever its cuts and machine groups: 1F1B, ZeRO 0 and 1, without virtual stages.

What a step consists of is told in :mod:`planner.models.transformer_time`, whose even cuts on one group are its
reduction; tests hold one against the other. Source: own composition; the schedule's longest path is that of
:mod:`planner.models.schedule`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np

from planner.cost import Floats
from planner.frozen import frozen
from planner.models.compute import Constants, DeviceRates, Software, move_s
from planner.models.layouts import Bools, Ints, Layouts, layers_by_kind
from planner.models.schedule import one_forward_one_backward_s
from planner.models.tiers import Group, Tier, groups_of
from planner.models.transformer_communication import (
    communication_times,
    pipeline_communication,
    replica_communication,
    replica_times,
)
from planner.models.transformer_interval import (
    LAYER_PARTS,
    LayerFigures,
    behind_schedule_s,
    interval_times,
    layer_counts,
    of_stages,
    optimizer_bytes,
    reached_tiers,
    sum_of,
    whole_matrices_s,
)
from planner.models.transformer_schedule import path_bound_s
from planner.transformer import Transformer


@frozen
class DeviceGroup:
    """The devices of one machine group."""

    tiers: tuple[Tier, ...]  # how they are joined, from the inside outwards, as links are sold
    rates: DeviceRates  # of each
    # between_bytes_per_s, between_latency_s: of one machine to machines of other groups, one direction; infinite where
    # there are none
    between_bytes_per_s: float = inf
    between_latency_s: float = 0.0

    @property
    def joint_tiers(self) -> tuple[Tier, ...]:
        """The same, no wider outside of a machine than the links between groups."""
        rate, latency_s = self.between_bytes_per_s, self.between_latency_s
        if rate == inf:
            return self.tiers
        if len(self.tiers) == 1:
            return (*self.tiers, Tier(size=1, bandwidth_bytes_per_s=rate, latency_s=latency_s, num_rails=1))
        outside = [
            replace(
                tier,
                bandwidth_bytes_per_s=min(tier.bandwidth_bytes_per_s, rate / tier.num_rails),
                latency_s=max(tier.latency_s, latency_s),
            )
            for tier in self.tiers[1:]
        ]
        return (self.tiers[0], *outside)


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupSeconds:
    """Seconds of one micro-batch on devices of a group; arrays of shape (n,), of layers by kind (kinds, n)."""

    layer: Mapping[str, Floats]  # of one layer of each kind, by part
    layer_forward_s: Floats  # of one layer's parts, what falls to the forward pass
    computed_forward_s: Floats  # what one layer's forward pass computes, beside which weights may be gathered
    # embedding_s, head_s, embedding_forward_s, head_forward_s: both ways, and of that forward
    embedding_s: Floats
    head_s: Floats
    embedding_forward_s: Floats
    head_forward_s: Floats
    transfer_s: Floats  # to the next stage on the same group
    # figures, group, own, joint: what they are of: see :func:`group_seconds`
    figures: LayerFigures
    group: DeviceGroup
    own: Layouts
    joint: Layouts

    @cached_property
    def layer_s(self) -> Floats:
        """Of one layer of each kind, both ways."""
        return np.asarray(sum(self.layer.values(), np.zeros(1)))

    @cached_property
    def groups(self) -> Mapping[str, Group]:
        """Groups of the data ranks of all machine groups, as if they stood here, by name."""
        return _joint_groups(self.figures, self.group, self.joint)

    @cached_property
    def between_s(self) -> Floats:
        """To the next stage on another group, as far as this side takes.

        All devices of a machine that hold the stage send or receive at the same time.
        """
        own, group, constants = self.own, self.group, self.figures.constants
        if group.between_bytes_per_s == inf:
            return np.zeros(len(own))
        sharing = np.minimum(group.tiers[0].size, own.tensor * own.context * own.data)
        rate = np.broadcast_to(group.between_bytes_per_s * constants.outside_efficiency / sharing, len(own))[None, :]
        pair = Group(
            num_members=np.full(len(own), 2.0),
            units=np.full(rate.shape, 2.0),
            members=np.ones(rate.shape),
            share_bytes_per_s=rate,
            even_bytes_per_s=rate,
            alone_bytes_per_s=rate,
            latency_s=np.array([[group.between_latency_s + constants.hop_s]]),
        )
        sending = replace(own, pipeline=np.maximum(own.pipeline, 2))  # one stage here has a next one elsewhere
        groups = {**self.figures.groups_of(own), "pipeline": pair}
        times = communication_times(pipeline_communication(self.figures.transformer, sending), groups)
        return constants.send_s + sum_of(own, (one.forward_s for one in times.values()))


def group_seconds(
    transformer: Transformer,
    own: Layouts,
    joint: Layouts,
    group: DeviceGroup,
    *,
    software: Software,
    constants: Constants,
    expert_imbalance: float = 1.0,
) -> GroupSeconds:
    """Return what a micro-batch takes on one group.

    Parameters
    ----------
    transformer
        The network.
    own
        What stands on this group: its own number of stages and of data ranks, at least 1 each.
    joint
        The same with the data ranks of all groups.
    group
        Its devices, and how they are joined.
    software, constants, expert_imbalance
        As of :class:`planner.models.transformer_interval.LayerFigures`.
    """
    figures = LayerFigures(
        transformer=transformer,
        tiers=group.tiers,
        rates=group.rates,
        software=software,
        constants=constants,
        expert_imbalance=expert_imbalance,
    )
    interval, counts = interval_times(figures, own), layer_counts(transformer)
    layer = {name: interval[name] / counts for name in LAYER_PARTS}
    return GroupSeconds(
        layer=layer,
        layer_forward_s=sum_of(own, layer.values())
        * interval["forward"]
        / (interval["compute"] + interval["recompute"]),
        computed_forward_s=interval["forward"] / counts,
        embedding_s=interval["embedding"],
        head_s=interval["head"],
        embedding_forward_s=interval["embedding_forward"],
        head_forward_s=interval["head_forward"],
        transfer_s=interval["transfer"],
        figures=figures,
        group=group,
        own=own,
        joint=joint,
    )


def least_behind_s(group: GroupSeconds, layouts: Layouts, *, hides: bool) -> Floats:
    """Return seconds that some stage of any cut on one group takes at least behind its schedule; shape (n,).

    What nothing hides of replicas' communication, without latencies, and the optimiser without whole matrices are
    convex in the layers of a stage: the most of all stages is no less than that of a stage with the mean of all layers.

    Parameters
    ----------
    group, layouts
        Of :func:`group_seconds`, and what it is of.
    hides
        Whether communication is beside the seconds of layers; else beside as many as it takes.
    """
    exchanged = _of_mean_stage(group.figures, layouts, group.groups)
    return behind_mean_stage_s(group.figures, layouts, exchanged, mean_stage_s(group), hides=hides)


def mean_stage_s(group: GroupSeconds) -> tuple[Floats, Floats]:
    """Return what a stage with the mean of all layers computes forward, and all that it does; shape (n,).

    Of what stands on the group alone: replicas elsewhere change nothing.
    """
    mean = layer_counts(group.figures.transformer) / group.own.pipeline
    return (mean * group.computed_forward_s).sum(axis=0), (mean * group.layer_s).sum(axis=0)


def joint_exchanges_s(figures: LayerFigures, group: DeviceGroup, joint: Layouts) -> tuple[Floats, Floats, Floats]:
    """Return the reductions, the gathers and the optimiser's step of a stage with the mean of all layers; shape (n,).

    They depend on all data ranks together, and not on how many of them stand on the group.

    Parameters
    ----------
    figures, group
        Of the devices.
    joint
        Layouts with the data ranks of all groups.
    """
    exchanged = _of_mean_stage(figures, joint, _joint_groups(figures, group, joint))
    reduced, gathered, stepped_s, _ = np.broadcast_arrays(*exchanged, np.zeros(len(joint)))
    return reduced, gathered, stepped_s


def _joint_groups(figures: LayerFigures, group: DeviceGroup, joint: Layouts) -> Mapping[str, Group]:
    """Return groups of the data ranks of all machine groups, as if they stood on one of them."""
    tiers, summed = figures.summed(reached_tiers(group.joint_tiers, figures.constants))
    return groups_of(tiers, joint, apart=summed)


def behind_mean_stage_s(
    figures: LayerFigures,
    layouts: Layouts,
    exchanged: Sequence[Floats],
    stage_s: Sequence[Floats],
    *,
    hides: bool,
) -> Floats:
    """Return :func:`least_behind_s` by what the stage exchanges and by :func:`mean_stage_s`."""
    (reduced, gathered, stepped_s), (ahead, whole) = exchanged, stage_s
    if not hides:
        ahead, whole = np.maximum(ahead, gathered), np.maximum(ahead, gathered) + np.maximum(whole - ahead, reduced)
    return np.asarray(sum(behind_schedule_s(figures, layouts, (reduced, gathered), ahead, whole)) + stepped_s)


def least_exchanged_s(figures: LayerFigures, layouts: Layouts) -> Floats:
    """Return what replicas exchange in a step, and the optimiser, of the mean of all stages, if nothing hides it.

    Without latencies and the ends, and so what stages take on average at the least; shape (n,).

    Parameters
    ----------
    figures, layouts
        What the layouts share, and n of them.
    """
    return np.asarray(sum(_of_mean_stage(figures, layouts, figures.groups_of(layouts))))


def _of_mean_stage(
    figures: LayerFigures, layouts: Layouts, groups: Mapping[str, Group]
) -> tuple[Floats, Floats, Floats]:
    """Return the reductions, the gathers and the optimiser's step of a stage with the mean of all layers."""
    network, mean = figures.transformer, layer_counts(figures.transformer) / layouts.pipeline
    three = replace(layouts, pipeline=np.full(len(layouts), 3))  # the second one has neither end
    rows = np.stack([0 * mean, mean], axis=1)
    *spread, _ = replica_communication(network, three, figures.reduction, layers=rows)
    free = {one.group: replace(groups[one.group], latency_s=np.zeros((1, 1))) for one in spread}
    times = [*replica_times(spread, free).values()]
    reduced, gathered = (sum((one[way] for one in times), np.zeros((1, 1)))[-1] for way in (0, 1))
    moved = optimizer_bytes(network, figures.software, layouts, mean[:, None], np.zeros((1, 1), dtype=bool))
    return reduced, gathered, move_s(moved[0], figures.rates)


@frozen(eq=False)
class ReplicaClass:
    """Equal replicas: on which group each stage lies (an index, shape (p, n)), and the micro-batches of one step."""

    groups: Ints
    num_microbatches: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """A 1F1B step of n layouts, whatever their cuts and groups.

    Arrays that depend on the stage have it first, shape (p, n); stages that a layout does not have stand behind its
    last one, with 0 layers.
    """

    # degrees, ZeRO stage (0 or 1), recomputation and overlaps; ``data`` of all classes together, ``pipeline`` of all
    # stages
    layouts: Layouts
    layers: Ints  # of each stage, shape (p, n)
    groups: Sequence[GroupSeconds]  # seconds by machine group
    classes: Sequence[ReplicaClass]  # of replicas

    @property
    def _figures(self) -> LayerFigures:
        """What all groups share, of the first."""
        return self.groups[0].figures

    @cached_property
    def kinds(self) -> Ints:
        """Layers of each stage by kind, shape (kinds, p, n)."""
        return layers_by_kind(self._figures.transformer, self.layers)

    @cached_property
    def is_there(self) -> Bools:
        """Whether a layout has a stage."""
        return np.asarray(np.arange(len(self.layers))[:, None] < self.layouts.pipeline)

    @cached_property
    def is_last(self) -> Bools:
        """Whether a stage is a layout's last one."""
        return np.asarray(np.arange(len(self.layers))[:, None] == self.layouts.pipeline - 1)

    @cached_property
    def _is_first(self) -> Bools:
        return np.asarray((np.arange(len(self.layers)) == 0)[:, None])

    def of_group(self, one: ReplicaClass, name: str) -> Floats:
        """Return a figure of the group on which each stage of a class lies, shape (p, n); of layers (kinds, p, n).

        Parameters
        ----------
        one, name
            The class, and a field of :class:`GroupSeconds`.
        """
        figures = [np.asarray(getattr(group, name)) for group in self.groups]
        table = np.array([np.broadcast_to(one, (*one.shape[:-1], len(self.layouts))) for one in figures])
        if table.ndim == 2:
            return np.asarray(np.take_along_axis(table, one.groups, axis=0))
        return np.asarray(np.take_along_axis(table.swapaxes(0, 1), one.groups[None], axis=1))

    def ends_s(self, one: ReplicaClass, way: str = "") -> Floats:
        """Return what embedding and head take on each stage of a class, shape (p, n).

        Parameters
        ----------
        one
            The class.
        way
            Nothing for both ways, or ``_forward``.
        """
        first, last = self.of_group(one, f"embedding{way}_s"), self.of_group(one, f"head{way}_s")
        return np.asarray(self._is_first * first + self.is_last * last)

    def sends_s(self, one: ReplicaClass) -> tuple[Floats, Floats]:
        """Return how long each stage of a class sends: its output forward, and the error back; both of shape (p, n).

        Parameters
        ----------
        one
            The class.
        """
        same = self.of_group(one, "transfer_s")
        down = np.zeros(same.shape)
        crosses = one.groups[:-1] != one.groups[1:]
        down[:-1] = same[:-1]
        if crosses.any():
            other = self.of_group(one, "between_s")
            down[:-1] = np.where(crosses, np.maximum(other[:-1], other[1:]), down[:-1])
        down[:-1] *= self.is_there[1:]
        return down, np.concatenate([np.zeros((1, same.shape[1])), down[:-1]])

    def passes_s(self, one: ReplicaClass) -> tuple[Floats, Floats]:
        """Return forward and backward of one micro-batch on each stage of a class, sending included; shape (p, n).

        Parameters
        ----------
        one
            The class.
        """
        ends, ends_ahead, (down, up) = self.ends_s(one), self.ends_s(one, "_forward"), self.sends_s(one)
        ahead, both = ((self.kinds * self.of_group(one, name)).sum(axis=0) for name in ("layer_forward_s", "layer_s"))
        return ahead + ends_ahead + down, both - ahead + ends - ends_ahead + up

    @cached_property
    def class_steps_s(self) -> Floats:
        """Seconds of each class from the first forward to the last backward, shape (classes, n)."""
        return np.array(
            [
                one_forward_one_backward_s(*self.passes_s(one), self.layouts.pipeline, one.num_microbatches)
                for one in self.classes
            ]
        )

    @cached_property
    def bound_s(self) -> Floats:
        """Seconds that the step is not under, without the schedule's recurrence."""
        rows = [path_bound_s(*self.passes_s(one), self.layouts.pipeline, one.num_microbatches) for one in self.classes]
        return np.asarray(np.max(rows, axis=0) + self.tail_s.max(axis=0))

    @cached_property
    def total_s(self) -> Floats:
        """Seconds of the step."""
        return np.asarray(self.class_steps_s.max(axis=0) + self.tail_s.max(axis=0))

    @cached_property
    def tail_s(self) -> Floats:
        """Communication of replicas that nothing hides, and the optimiser, of each stage, shape (p, n)."""
        return np.asarray(self.exposed_s + self.optimizer_s)

    @cached_property
    def exposed_s(self) -> Floats:
        """Seconds of reductions and gathers that nothing hides, the slowest group of each stage, shape (p, n)."""
        figures, rows = self._figures, []
        *spread, tied = replica_communication(figures.transformer, self.layouts, figures.reduction, layers=self.kinds)
        tied_s = []
        if np.any(tied.gradient_bytes):  # a tied embedding's gradient is added up by the first and the last stage
            for group in self.groups:
                seconds = replica_times([tied], group.groups)["tied"][0]
                tied_s.append(np.broadcast_to(seconds, len(self.layouts)))
        for one in self.classes:
            exposed = np.zeros(self.layers.shape)
            for index, group in enumerate(self.groups):
                is_here = one.groups == index
                if is_here.any():
                    times = replica_times(spread, group.groups).values()
                    reduced, gathered = (sum((row[way] for row in times), np.zeros(1)) for way in (0, 1))
                    ahead, whole = (of_stages(self.kinds, by) for by in (group.computed_forward_s, group.layer_s))
                    shown = behind_schedule_s(figures, self.layouts, (reduced, gathered), ahead, whole)
                    exposed = np.where(is_here, shown[0] + shown[1], exposed)
            exposed = exposed * self.is_there
            if tied_s:
                last = np.take_along_axis(one.groups, (self.layouts.pipeline - 1)[None, :], axis=0)
                both = [np.take_along_axis(np.array(tied_s), end, axis=0)[0] for end in (one.groups[:1], last)]
                exposed = exposed + (self._is_first | self.is_last) * np.maximum(*both)
            rows.append(exposed)
        return np.asarray(np.max(rows, axis=0))

    @cached_property
    def optimizer_s(self) -> Floats:
        """Seconds of the optimiser's step on each stage, on its slowest group, shape (p, n)."""
        network, has_end = self._figures.transformer, self._is_first | self.is_last
        moved = optimizer_bytes(network, self._figures.software, self.layouts, self.kinds, has_end)
        slowest = np.zeros(self.layers.shape)
        for one in self.classes:
            for index, group in enumerate(self.groups):
                took = move_s(moved, group.group.rates)
                took = took + whole_matrices_s(self._figures, group.figures.reached_rates, self.layouts, self.kinds)
                slowest = np.where(one.groups == index, np.maximum(slowest, took), slowest)
        return np.asarray(slowest * self.is_there)

    def parts(self) -> dict[str, Floats]:
        """Return the seconds of the step by part, which sum to the total.

        Parts of computing are those of the slowest stage of the longest class; ``bubble`` is what the schedule takes
        beyond them.
        """
        columns = np.arange(len(self.layouts))
        longest, rows = np.argmax(self.class_steps_s, axis=0), []
        for one in self.classes:
            (forward, backward), (down, up) = self.passes_s(one), self.sends_s(one)
            stage, number = np.argmax(forward + backward, axis=0), one.num_microbatches
            group, layers = one.groups[stage, columns], self.kinds[:, stage, columns]
            row = {}
            for name in LAYER_PARTS:
                table = np.array([each.layer[name] for each in self.groups])
                row[name] = (number * layers * table[group, :, columns].T).sum(axis=0)
            row["compute"] = row["compute"] + number * self.ends_s(one)[stage, columns]
            row["pipeline"] = number * (down + up)[stage, columns]
            rows.append(row)
        parts = {name: np.array([row[name] for row in rows])[longest, columns] for name in rows[0]}
        busy = sum_of(self.layouts, parts.values())
        parts["bubble"] = np.maximum(self.class_steps_s[longest, columns] - busy, 0.0)
        slowest = np.argmax(self.tail_s, axis=0)
        parts["data"], parts["optimizer"] = self.exposed_s[slowest, columns], self.optimizer_s[slowest, columns]
        return parts
