"""Synchronous SGD on equal devices: equations 1 to 6 of the DAG model, and the steady iterations of four strategies.

Source: S. Shi, Q. Wang, X. Chu and B. Li, A DAG Model of Synchronous Stochastic Gradient Descent in Distributed Deep
Learning, arXiv:1805.03812, sections III and IV. Layers stand in forward order: index 0 is the paper's layer 1, the last
is layer L, nearest the loss. Times of communication run from the start of layer L's backward: ``tau_b(L) = 0``. As a
task graph: :mod:`planner.models.ssgd`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Self

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike

from planner.cost import Floats
from planner.errors import ModelError
from planner.models.communication import Compression
from planner.models.data_parallel import standard_maximum
from planner.models.list_schedule import Schedule, Task, list_schedule, longest_path_s
from planner.models.servers import LayerTimes, ServerNetwork, cut_into_pieces, exchange, num_packets, overlap_layers
from planner.timeline import Flow, Span, Timeline


class Strategy(StrEnum):
    """What a framework lets run at the same time (section IV-C)."""

    NAIVE = "naive"  # one thing after the other
    CNTK = "cntk"  # reads ahead
    MXNET = "mxnet"  # and TensorFlow: reads ahead, and sends gradients during the backward pass
    CAFFE_MPI = "caffe_mpi"  # the same, and copies ahead into a second buffer on the device

    @property
    def reads_ahead(self) -> bool:
        """Whether the next batch is read during an iteration."""
        return self is not Strategy.NAIVE

    @property
    def copies_ahead(self) -> bool:
        """Whether the next batch is copied to the device during an iteration, too."""
        return self is Strategy.CAFFE_MPI

    @property
    def overlaps_gradients(self) -> bool:
        """Whether a gradient is sent as soon as it is ready (wait-free back-propagation)."""
        return self in (Strategy.MXNET, Strategy.CAFFE_MPI)


class Prefetch(StrEnum):
    """Whether one batch may be read while the one before it is copied."""

    SINGLE = "single"  # one thread reads and copies in turn: t_io + t_h2d, as eqs. 3 to 6 have it
    PIPELINED = "pipelined"  # both at once, as the task graph allows: max(t_io, t_h2d)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """One communication task: the gradients of one layer, or of several that were fused.

    Attributes
    ----------
    layers
        Indices of the layers whose gradients it carries; it is ready after the backward of the first of them.
    lag_s
        For which a fusion buffer still waits then (``Wait.EXACT``). A wait that holds the network (``Wait.PAPER``) is
        part of the duration.
    """

    duration_s: float
    layers: tuple[int, ...]
    lag_s: float = 0.0
    name: str = "all-reduce"

    @property
    def ready_layer(self) -> int:
        """The layer whose gradient comes last: the one nearest the input."""
        return min(self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """The seconds of one iteration on each of several equal devices.

    Attributes
    ----------
    forward_s, backward_s
        ``t_f(l)`` and ``t_b(l)`` of each layer, for the whole batch of a device.
    all_reduces
        ``t_c``, in the order of transfer, which is that in which they get ready. Devices that read, copy or train
        alone have none.
    read_s, copy_s, update_s
        ``t_io``, ``t_h2d`` and ``t_u``. Eqs. 3 to 6 have no ``t_u``; here it belongs to the computation.
    names
        Of the layers; empty for none.

    Raises
    ------
    ModelError
        If there is no layer, lengths differ, a time is negative, or an all-reduce carries unknown layers or is not in
        ready order.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    all_reduces: tuple[AllReduce, ...] = ()
    read_s: float = 0.0
    copy_s: float = 0.0
    update_s: float = 0.0
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_layers(self)
        _check_all_reduces(self)

    @classmethod
    def layer_wise(
        cls,
        *,
        forward_s: Sequence[float],
        backward_s: Sequence[float],
        all_reduce_s: Sequence[float],
        read_s: float = 0.0,
        copy_s: float = 0.0,
        update_s: float = 0.0,
        names: Sequence[str] = (),
    ) -> Self:
        """Return the iteration with one all-reduce for every layer with ``t_c(l) > 0``, as the paper has it."""
        if len(all_reduce_s) != len(forward_s):
            raise ModelError(f"all_reduce_s has {len(all_reduce_s)} layers, forward_s has {len(forward_s)}.")
        labels = names or [f"layer {index + 1}" for index in range(len(forward_s))]
        return cls(
            forward_s=tuple(forward_s),
            backward_s=tuple(backward_s),
            all_reduces=tuple(
                AllReduce(duration_s=all_reduce_s[index], layers=(index,), name=f"all-reduce {labels[index]}")
                for index in reversed(range(len(forward_s)))
                if all_reduce_s[index] != 0
            ),
            read_s=read_s,
            copy_s=copy_s,
            update_s=update_s,
            names=tuple(names),
        )

    @property
    def computation_s(self) -> float:
        """``t_f + t_b + t_u``."""
        return sum(self.forward_s) + sum(self.backward_s) + self.update_s

    @property
    def all_reduce_s(self) -> float:
        """``t_c``, the sum."""
        return sum(one.duration_s for one in self.all_reduces)


# -- equations 1 to 6 ------------------------------------------------------------------------------------------------


def sgd_time_s(iteration: Iteration) -> float:
    """Return ``t_io + t_h2d + t_f + t_b + t_u``: one device, nothing overlapped (eq. 1)."""
    return iteration.read_s + iteration.copy_s + iteration.computation_s


def naive_time_s(iteration: Iteration) -> float:
    """Return eq. 1 ``+ t_c``: several devices, nothing overlapped (eq. 2)."""
    return sgd_time_s(iteration) + iteration.all_reduce_s


def input_bound_s(iteration: Iteration, prefetch: Prefetch = Prefetch.SINGLE) -> float:
    """Return the seconds between two batches, were nothing else slow: the first arm of eqs. 3 to 6."""
    stages = (iteration.read_s, iteration.copy_s)
    return sum(stages) if prefetch is Prefetch.SINGLE else max(stages)


def prefetched_time_s(iteration: Iteration, prefetch: Prefetch = Prefetch.SINGLE) -> float:
    """Return ``max(t_io + t_h2d, t_f + t_b + t_c)``: input overlaps with all the rest (eq. 3)."""
    return max(input_bound_s(iteration, prefetch), iteration.computation_s + iteration.all_reduce_s)


def all_reduce_spans_s(iteration: Iteration) -> list[tuple[float, float]]:
    """Return start ``tau_c`` and end ``mu_c`` of every all-reduce, from the start of layer L's backward.

    Notes
    -----
    ``tau_c(L) = tau_b(L) + t_b(L)``, ``tau_c(l) = max(tau_c(l+1) + t_c(l+1), tau_b(l) + t_b(l))``: one channel, in
    ready order. The paper's text has the inequality of layer 1 alone. It is the recursion of eqs. 8 and 9 of the OSF
    model (:func:`planner.models.data_parallel.unfused_update_time_s`), whose time begins ``t_b(L)`` later.
    """
    ready_s = _backward_ends_s(iteration)
    spans, free_s = [], 0.0
    for one in iteration.all_reduces:
        start_s = max(free_s, ready_s[one.ready_layer] + one.lag_s)
        free_s = start_s + one.duration_s
        spans.append((start_s, free_s))
    return spans


def overlapped_time_s(iteration: Iteration, prefetch: Prefetch = Prefetch.SINGLE, *, is_printed: bool = False) -> float:
    """Return ``max(t_io + t_h2d, t_f + t_b(L) + tau_c(1) - tau_c(L) + t_c(1))``: gradients overlap, too (eq. 4).

    Parameters
    ----------
    is_printed
        With ``tau_c(L) - tau_c(L)``, as it stands in print: the difference vanishes, and with it the backward pass of
        all layers but L.
    """
    first_s = iteration.backward_s[-1]  # tau_c(L), whether or not layer L has parameters
    last_s, duration_s = _layer_1_span(iteration)
    between_s = 0.0 if is_printed else last_s - first_s
    busy_s = sum(iteration.forward_s) + first_s + between_s + duration_s + iteration.update_s
    return max(input_bound_s(iteration, prefetch), busy_s)


def exposed_all_reduce_s(iteration: Iteration) -> float:
    """Return ``t_c^no``: how much later than the backward pass the last all-reduce ends; >= 0."""
    spans = all_reduce_spans_s(iteration)
    return max(0.0, spans[-1][1] - _backward_ends_s(iteration)[0]) if spans else 0.0


def wait_free_time_s(iteration: Iteration, prefetch: Prefetch = Prefetch.SINGLE) -> float:
    """Return ``max(t_io + t_h2d, t_f + t_b + t_c^no)`` (eq. 5), which equals eq. 4 as corrected."""
    return max(input_bound_s(iteration, prefetch), iteration.computation_s + exposed_all_reduce_s(iteration))


def speed_up(one: Iteration, many: Iteration, *, num_devices: int, prefetch: Prefetch = Prefetch.SINGLE) -> float:
    """Return ``N_g t_iter-1 / t_iter-Ng``: the samples a second of all devices over those of one (eq. 6).

    Parameters
    ----------
    one, many
        Of one device, without all-reduces, and of ``num_devices``. Their ``read_s`` differ where the devices of a
        machine, or machines, read from the same store: the second subscript of ``t_io`` counts devices in a machine.
    """
    return num_devices * wait_free_time_s(one, prefetch) / wait_free_time_s(many, prefetch)


# -- the four strategies ---------------------------------------------------------------------------------------------


def steady_time_s(iteration: Iteration, strategy: Strategy, prefetch: Prefetch = Prefetch.SINGLE) -> float:
    """Return the time between two updates, once the pipeline of input is full.

    Notes
    -----
    With ``C = t_f + t_b + t_u``, and ``t_c^no`` the sum of ``t_c`` unless gradients overlap (section IV-C)::

                   pipelined prefetch                 a single thread
        naive      t_io + t_h2d + C + t_c             the same
        CNTK       max(t_io, t_h2d + C + t_c)         t_h2d + max(t_io, C + t_c)
        MXNet      max(t_io, t_h2d + C + t_c^no)      t_h2d + max(t_io, C + t_c^no)
        Caffe-MPI  max(t_io, t_h2d, C + t_c^no)       max(t_io + t_h2d, C + t_c^no)

    Caffe-MPI with a single thread is eq. 5. The paper prints no formula for CNTK and MXNet; these are read off its
    task graph: the copy waits for the update, and a single thread reads on only after the copy.
    """
    is_exposed_only = strategy.overlaps_gradients
    all_reduce_s = exposed_all_reduce_s(iteration) if is_exposed_only else iteration.all_reduce_s
    busy_s = iteration.computation_s + all_reduce_s
    if not strategy.reads_ahead:
        return iteration.read_s + iteration.copy_s + busy_s
    if strategy.copies_ahead:
        return max(input_bound_s(iteration, prefetch), busy_s)
    if prefetch is Prefetch.PIPELINED:
        return max(iteration.read_s, iteration.copy_s + busy_s)
    return iteration.copy_s + max(iteration.read_s, busy_s)


def _backward_ends_s(iteration: Iteration) -> list[float]:
    """Return ``tau_b(l) + t_b(l)`` of each layer."""
    ends_s, now_s = [], 0.0
    for seconds in reversed(iteration.backward_s):
        now_s += seconds
        ends_s.append(now_s)
    return ends_s[::-1]


def _layer_1_span(iteration: Iteration) -> tuple[float, float]:
    """Return ``tau_c(1)`` and ``t_c(1)``; without parameters layer 1 sends nothing, in no time, when it could."""
    spans = all_reduce_spans_s(iteration)
    if spans and iteration.all_reduces[-1].ready_layer == 0:
        return spans[-1][0], iteration.all_reduces[-1].duration_s
    return max(spans[-1][1] if spans else 0.0, _backward_ends_s(iteration)[0]), 0.0


def _check_layers(iteration: Iteration) -> None:
    """Refuse lengths that differ, and times that are no times."""
    num_layers = len(iteration.forward_s)
    if not num_layers or len(iteration.backward_s) != num_layers or len(iteration.names) not in (0, num_layers):
        raise ModelError(
            f"forward_s, backward_s and names (or none) must be of the same layers, and of one at least, "
            f"not {num_layers}, {len(iteration.backward_s)} and {len(iteration.names)}."
        )
    named = [("read_s", iteration.read_s), ("copy_s", iteration.copy_s), ("update_s", iteration.update_s)]
    named += [(f"forward_s of layer {index}", seconds) for index, seconds in enumerate(iteration.forward_s)]
    named += [(f"backward_s of layer {index}", seconds) for index, seconds in enumerate(iteration.backward_s)]
    for one in iteration.all_reduces:
        named += [(f"duration_s of {one.name!r}", one.duration_s), (f"lag_s of {one.name!r}", one.lag_s)]
    for what, seconds in named:
        if not 0 <= seconds < math.inf:
            raise ModelError(f"{what} must be finite and >= 0, not {seconds}.")


def _check_all_reduces(iteration: Iteration) -> None:
    """Refuse all-reduces of unknown layers, and an order in which one would wait for a later one's gradients."""
    num_layers = len(iteration.forward_s)
    for one in iteration.all_reduces:
        if not one.layers or not all(0 <= layer < num_layers for layer in one.layers):
            raise ModelError(f"{one.name!r} carries layers {one.layers}, but there are layers 0 to {num_layers - 1}.")
    for before, after in pairwise(iteration.all_reduces):
        if before.ready_layer < after.ready_layer:
            raise ModelError(
                f"{before.name!r} waits for layer {before.ready_layer} and stands before {after.name!r}, which waits "
                f"for layer {after.ready_layer}. Give all-reduces in ready order, from the last layer to the first."
            )


# --- Synchronous SGD as a graph of computing and communication tasks, over several iterations and four strategies
# Source: S. Shi, Q. Wang, X. Chu and B. Li, A DAG Model of Synchronous Stochastic Gradient Descent in Distributed Deep
# Learning, arXiv:1805.03812, section IV and Fig. 1. The paper draws tasks and precedence; which tasks exclude each
# other
# is ours: every device has one disk, one PCIe link and one compute stream, all share one network, and each of these
# does
# one task at a time, in the order of iteration, phase and layer. The same in closed form:
# :mod:`planner.models.ssgd`.
#
# Equal devices do the same at the same time, so that one of them stands for all, and the graph does not grow with their
# number. Expanded, every device has its own tasks, as in Fig. 1. Buffers for batches that are read ahead are unlimited.


class Kind(StrEnum):
    """The phases of an iteration, in their order."""

    READ = "read"
    COPY = "copy"
    FORWARD = "forward"
    BACKWARD = "backward"
    ALL_REDUCE = "all_reduce"
    UPDATE = "update"


_RANKS = {kind: rank for rank, kind in enumerate(Kind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SsgdTask:
    """A node of the graph.

    Attributes
    ----------
    order
        Within its phase: layers from the input in the forward pass, from the loss in the backward pass, all-reduces as
        they are sent.
    layers
        Which it computes, or whose gradients it carries.
    resource
        What does it. The one update of an iteration stands on the first device; the others idle meanwhile.
    lag_s
        Between its last predecessor's end and its earliest start.
    """

    kind: Kind
    iteration: int
    order: int = 0
    layers: tuple[int, ...] = ()
    name: str
    resource: str
    duration_s: float
    lag_s: float = 0.0

    @property
    def is_communication(self) -> bool:
        """Whether a disk or an interconnect does it, and not a device (section IV-A)."""
        return self.kind in (Kind.READ, Kind.COPY, Kind.ALL_REDUCE)

    @property
    def priority(self) -> tuple[int, int, int]:
        """Iteration, phase, and order within the phase."""
        return self.iteration, _RANKS[self.kind], self.order


# -- the graph -------------------------------------------------------------------------------------------------------


def task_graph(
    iteration: Iteration,
    strategy: Strategy,
    *,
    num_iterations: int = 1,
    num_devices: int = 2,
    prefetch: Prefetch = Prefetch.SINGLE,
    is_expanded: bool = False,
) -> "nx.DiGraph[SsgdTask]":
    """Return the tasks of some iterations and their precedence; nodes stand in a topological order.

    Parameters
    ----------
    num_devices
        All equal; one alone has no all-reduces.
    is_expanded
        Whether every device has its own tasks; else one device stands for all.

    Raises
    ------
    ModelError
        Unless there is at least one iteration and one device.

    Notes
    -----
    Within an iteration: read -> copy -> forward of layers 1 to L -> backward of L to 1, on every device; the backward
    of a layer, on every device -> its all-reduce -> update; backward of 1 -> update. Where gradients do not overlap:
    backward of 1 -> every all-reduce. From one iteration to the next: update -> forward of 1; update -> read (naive) or
    -> copy (CNTK, MXNet); read -> read, or copy -> read where a single thread does both (but for naive).

    >>> layers = Iteration.layer_wise(forward_s=[1, 1, 1], backward_s=[2, 2, 2], all_reduce_s=[1, 1, 1])
    >>> len(task_graph(layers, Strategy.CAFFE_MPI, num_devices=4, is_expanded=True))  # T0 to T35 of Fig. 1
    36
    """
    if num_iterations < 1 or num_devices < 1:
        raise ModelError(f"there must be at least 1 iteration and 1 device, not {num_iterations} and {num_devices}.")
    devices = [f"device {index}" for index in range(num_devices)] if is_expanded else [_one_for_all(num_devices)]
    all_reduces = iteration.all_reduces if num_devices > 1 else ()
    steps = [_step_of(iteration, all_reduces, index, devices) for index in range(num_iterations)]
    graph: nx.DiGraph[SsgdTask] = nx.DiGraph()
    for step in steps:
        graph.add_nodes_from(step.tasks())
        graph.add_edges_from(_edges_within(step, strategy))
    for before, after in pairwise(steps):
        graph.add_edges_from(_edges_between(before, after, strategy, prefetch))
    return graph


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """What one device does in one iteration; ``backward`` begins with the last layer."""

    read: SsgdTask
    copy: SsgdTask
    forward: tuple[SsgdTask, ...]
    backward: tuple[SsgdTask, ...]

    def tasks(self) -> tuple[SsgdTask, ...]:
        """All, one after the other."""
        return self.read, self.copy, *self.forward, *self.backward


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One iteration on all devices."""

    lanes: tuple[_Lane, ...]
    all_reduces: tuple[SsgdTask, ...]
    update: SsgdTask

    def tasks(self) -> Iterator[SsgdTask]:
        """Yield all tasks, none before one that it waits for."""
        for lane in self.lanes:
            yield from lane.tasks()
        yield from self.all_reduces
        yield self.update


def _edges_within(step: _Step, strategy: Strategy) -> Iterator[tuple[SsgdTask, SsgdTask]]:
    """Yield the precedence inside an iteration."""
    for lane in step.lanes:
        yield from pairwise(lane.tasks())
        last = lane.backward[-1]
        yield last, step.update
        for one in step.all_reduces:
            yield from ((lane.backward[-1 - layer], one) for layer in one.layers)
            if not strategy.overlaps_gradients:
                yield last, one
    yield from ((one, step.update) for one in step.all_reduces)


def _edges_between(
    before: _Step, after: _Step, strategy: Strategy, prefetch: Prefetch
) -> Iterator[tuple[SsgdTask, SsgdTask]]:
    """Yield the precedence from one iteration to the next."""
    for old, new in zip(before.lanes, after.lanes, strict=True):
        yield before.update, new.forward[0]
        if not strategy.reads_ahead:
            yield before.update, new.read
            continue
        yield (old.copy if prefetch is Prefetch.SINGLE else old.read), new.read
        if not strategy.copies_ahead:
            yield before.update, new.copy


def _step_of(iteration: Iteration, all_reduces: Sequence[AllReduce], index: int, devices: Sequence[str]) -> _Step:
    """Return the tasks of one iteration."""
    return _Step(
        lanes=tuple(_lane_of(iteration, index, device) for device in devices),
        all_reduces=tuple(
            SsgdTask(
                kind=Kind.ALL_REDUCE,
                iteration=index,
                order=order,
                layers=one.layers,
                name=one.name,
                resource="network",
                duration_s=one.duration_s,
                lag_s=one.lag_s,
            )
            for order, one in enumerate(all_reduces)
        ),
        update=_task(Kind.UPDATE, index, "update", f"{devices[0]}: compute", iteration.update_s),
    )


def _lane_of(iteration: Iteration, index: int, device: str) -> _Lane:
    """Return the tasks of one device."""
    num_layers = len(iteration.forward_s)
    names = iteration.names or [f"layer {layer + 1}" for layer in range(num_layers)]

    def layer_task(kind: Kind, layer: int, order: int, seconds: float) -> SsgdTask:
        resource = f"{device}: compute"
        return _task(kind, index, f"{kind} {names[layer]}", resource, seconds, order=order, layers=(layer,))

    return _Lane(
        read=_task(Kind.READ, index, "read", f"{device}: disk", iteration.read_s),
        copy=_task(Kind.COPY, index, "copy", f"{device}: PCIe", iteration.copy_s),
        forward=tuple(layer_task(Kind.FORWARD, layer, layer, time) for layer, time in enumerate(iteration.forward_s)),
        backward=tuple(
            layer_task(Kind.BACKWARD, num_layers - 1 - order, order, time)
            for order, time in enumerate(reversed(iteration.backward_s))
        ),
    )


def _task(
    kind: Kind,
    iteration: int,
    name: str,
    resource: str,
    seconds: float,
    *,
    order: int = 0,
    layers: tuple[int, ...] = (),
) -> SsgdTask:
    """Return a task of a device."""
    return SsgdTask(
        kind=kind, iteration=iteration, order=order, layers=layers, name=name, resource=resource, duration_s=seconds
    )


def _one_for_all(num_devices: int) -> str:
    """Return the name of the device that stands for all."""
    return "the device" if num_devices == 1 else f"each of {num_devices} devices"


# -- its schedule ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """A graph's tasks, when each runs, and the length of the longest path, below which no schedule gets."""

    tasks: tuple[SsgdTask, ...]
    schedule: Schedule
    longest_path_s: float

    @property
    def makespan_s(self) -> float:
        """End of the last iteration."""
        return self.schedule.makespan_s

    @property
    def update_ends_s(self) -> tuple[float, ...]:
        """End of each iteration's update, with which its result is there."""
        ends = zip(self.tasks, self.schedule.end_s.tolist(), strict=True)
        return tuple(end_s for task, end_s in ends if task.kind is Kind.UPDATE)

    @property
    def steady_time_s(self) -> float:
        """Time between the last two updates.

        Raises
        ------
        ModelError
            If there are fewer than two.
        """
        if len(self.update_ends_s) < 2:
            raise ModelError("a steady iteration needs 2 iterations at least, not 1.")
        return self.update_ends_s[-1] - self.update_ends_s[-2]


def run(graph: "nx.DiGraph[SsgdTask]") -> Run:
    """Return the list schedule of a task graph."""
    positions = {task: position for position, task in enumerate(graph)}
    listed = [
        Task(
            duration_s=task.duration_s,
            resource=task.resource,
            after=tuple(positions[before] for before in graph.predecessors(task)),
            priority=task.priority,
            lag_s=task.lag_s,
        )
        for task in graph
    ]
    return Run(tasks=tuple(graph), schedule=list_schedule(listed), longest_path_s=longest_path_s(listed))


def timeline(
    iteration: Iteration,
    strategy: Strategy,
    *,
    num_iterations: int = 3,
    num_devices: int = 2,
    prefetch: Prefetch = Prefetch.SINGLE,
    is_expanded: bool = False,
) -> Timeline:
    """Return the schedule to draw: a row for every resource, an arrow from every gradient to its all-reduce.

    Parameters are those of :func:`task_graph`. Tasks that take no time are left out.
    """
    graph = task_graph(
        iteration,
        strategy,
        num_iterations=num_iterations,
        num_devices=num_devices,
        prefetch=prefetch,
        is_expanded=is_expanded,
    )
    done = run(graph)
    places: dict[SsgdTask, int] = {}
    spans: list[Span] = []
    for task, start_s, end_s in zip(done.tasks, done.schedule.start_s, done.schedule.end_s, strict=True):
        if task.duration_s > 0:
            places[task] = len(spans)
            spans.append(_span(task, float(start_s), float(end_s)))
    flows = [
        Flow(source=places[task], target=places[one])
        for task, one in graph.edges
        if task.kind is Kind.BACKWARD and set(task.layers) & set(one.layers) and task in places and one in places
    ]
    rows = dict.fromkeys(task.resource for task in done.tasks)
    return Timeline(spans=tuple(spans), flows=tuple(flows), rows=tuple(rows))


def _span(task: SsgdTask, start_s: float, end_s: float) -> Span:
    """Return what a task looks like."""
    return Span(
        row=task.resource,
        name=f"{task.name} #{task.iteration + 1}",
        start_s=start_s,
        end_s=end_s,
        iteration=task.iteration,
        kind="communication" if task.is_communication else "computation",
    )


# --- Where the time of an iteration goes, for one configuration or a whole grid: section V-C of the GST model
# Source: X. Zhang et al., Performance Modeling and Analysis of Distributed Deep Neural Network Training with Parameter
# Server. Composes its pipelines, network, stragglers and compression; all configurations are computed at once, by
# broadcasting. The paper names the speed-up and the communication-to-computation ratio and defines neither; definitions
# are at :class:`Evaluation`.


class Bottleneck(StrEnum):
    """What keeps an iteration from being shorter, in the order of :data:`BOTTLENECKS`."""

    INPUT = "input"
    COMPUTATION = "computation"
    PUSH = "push"
    AGGREGATION = "aggregation"
    PULL = "pull"


BOTTLENECKS = tuple(Bottleneck)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """One worker's iteration at compute speed 1.

    Attributes
    ----------
    size_bytes, backward_s
        Of every layer's gradient, and of its backward pass, in backward order; at least one layer.
    forward_s, update_s, input_s
        Of the whole network. Input takes the same at every compute speed: it is storage's.

    Raises
    ------
    ModelError
        If a number is negative or not finite, or nothing is computed.
    """

    size_bytes: Floats
    backward_s: Floats
    forward_s: float
    update_s: float = 0.0
    input_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no ratio is defined for."""
        for name in ("size_bytes", "backward_s", "forward_s", "update_s", "input_s"):
            values = np.asarray(getattr(self, name))
            if not (np.isfinite(values) & (values >= 0)).all():
                raise ModelError(f"{name} is {values}. It must be finite and not negative.")
        if not self.compute_s > 0:
            raise ModelError("forward, backward and update take 0 s. Ratios need some computation.")

    @property
    def compute_s(self) -> float:
        """Forward, backward and update."""
        return self.forward_s + float(np.sum(self.backward_s)) + self.update_s

    def in_pieces(self, piece_bytes: float) -> "Workload":
        """Return the same with every gradient cut into pieces."""
        sizes, times = cut_into_pieces(self.size_bytes, self.backward_s, piece_bytes)
        return replace(self, size_bytes=sizes, backward_s=times)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """Arrays of one shape, a number for each configuration.

    Attributes
    ----------
    iteration_time_s
        A steady iteration: all but the first, which also shows all of its input.
    computation_s, exposed_s
        Forward, backward and update; and the communication and aggregation that the backward pass does not hide.
    input_s, straggling_s
        Input that is not hidden, and what the slowest worker takes longer than the mean, ``sigma e_N``.
    speed_up
        Samples a second against one worker without servers: ``N T_1 / T_N``, at most N.
    communication_to_computation
        ``exposed_s / computation_s``. Where nothing else delays, the speed-up is ``N / (1 + ratio)``.
    bottleneck_index
        Into :data:`BOTTLENECKS`: the resource that is busy for longest, which bounds the iteration from below
        however well all overlap; ties go to the first.
    """

    iteration_time_s: Floats
    computation_s: Floats
    exposed_s: Floats
    input_s: Floats
    first_input_s: float
    straggling_s: float
    speed_up: Floats
    communication_to_computation: Floats
    bottleneck_index: np.ndarray[tuple[int, ...], np.dtype[np.intp]]

    def epoch_time_s(self, num_iterations: int) -> Floats:
        """Return eq. 9 for equal iterations: the steady ones, and the input of the first that nothing hides."""
        return num_iterations * self.iteration_time_s + (self.first_input_s - self.input_s)


def evaluate(
    workload: Workload,
    network: ServerNetwork,
    *,
    compute_speed: ArrayLike = 1.0,
    sigma_s: float = 0.0,
    compression: Compression | None = None,
) -> Evaluation:
    """Return the time of an iteration and its parts.

    Parameters
    ----------
    compute_speed
        How many times faster than the workload says; > 0. Arrays of it, of the network's bandwidth and of the
        compression's ratio broadcast against each other.
    sigma_s
        Of one worker's time from barrier to barrier, the paper's tunable parameter. It does not shrink with speed.
    compression
        Its time is shared out over the layers by their packets.

    Raises
    ------
    ModelError
        Where the barrier link is saturated, the speed is not positive, or sigma is negative.

    Notes
    -----
    ``max(input, computation + exposed) + sigma e_N``: with equal iterations, eqs. 1 to 9 come to this one line.
    """
    speed = np.asarray(compute_speed, dtype=np.float64)
    if not ((speed > 0).all() and sigma_s >= 0):
        raise ModelError(f"compute_speed is {speed} and sigma_s {sigma_s}. Give > 0, and 0 or more.")
    packets = num_packets(workload.size_bytes, network.packet_bytes)
    layers = _layer_times(workload, network, packets, speed, compression)
    overlapped = overlap_layers(layers)
    computation_s, exposed_s = workload.compute_s / speed, overlapped.exposed_s
    rest_s = computation_s + exposed_s
    input_s = np.maximum(0.0, workload.input_s - rest_s)
    straggling_s = sigma_s * standard_maximum(network.num_workers)
    iteration_time_s = rest_s + input_s + straggling_s
    busy = (computation_s, *(np.sum(one, axis=-1) for one in (layers.push_s, layers.aggregate_s, layers.pull_s)))
    return Evaluation(
        iteration_time_s=iteration_time_s,
        computation_s=computation_s,
        exposed_s=exposed_s,
        input_s=input_s,
        first_input_s=workload.input_s,
        straggling_s=straggling_s,
        speed_up=network.num_workers * np.maximum(workload.input_s, computation_s) / iteration_time_s,
        communication_to_computation=exposed_s / computation_s,
        bottleneck_index=np.argmax(np.stack(np.broadcast_arrays(workload.input_s, *busy)), axis=0),
    )


def _layer_times(
    workload: Workload, network: ServerNetwork, packets: Floats, speed: Floats, compression: Compression | None
) -> LayerTimes:
    """Return the seconds of every layer, with compression as a part of the push."""
    kept = 1.0 if compression is None else compression.kept[..., None]
    sent = exchange(network, packets * kept)
    push_s = sent.push_s
    if compression is not None:
        push_s = push_s + compression.time_s[..., None] * packets / np.maximum(packets.sum(), 1.0)
    backward_s = workload.backward_s / speed[..., None]
    return LayerTimes(backward_s=backward_s, push_s=push_s, aggregate_s=sent.aggregate_s, pull_s=sent.pull_s)
