"""Synchronous SGD as a graph of computing and communication tasks, over several iterations and four strategies.

Source: S. Shi, Q. Wang, X. Chu and B. Li, A DAG Model of Synchronous Stochastic Gradient Descent in Distributed Deep
Learning, arXiv:1805.03812, section IV and Fig. 1. The paper draws tasks and precedence; which tasks exclude each other
is ours: every device has one disk, one PCIe link and one compute stream, all share one network, and each of these does
one task at a time, in the order of iteration, phase and layer. The same in closed form:
:mod:`planner.models.ssgd_equations`.

Equal devices do the same at the same time, so that one of them stands for all, and the graph does not grow with their
number. Expanded, every device has its own tasks, as in Fig. 1. Buffers for batches that are read ahead are unlimited.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import networkx as nx

from planner.errors import ModelError
from planner.models.list_schedule import Schedule, Task, list_schedule, longest_path_s
from planner.models.ssgd_equations import AllReduce, Iteration, Prefetch, Strategy
from planner.timeline import Flow, Span, Timeline

__all__ = ["Kind", "Run", "SsgdTask", "run", "task_graph", "timeline"]


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
