"""The DAG model of synchronous SGD on equal devices: its equations 1 to 6, its task graph, and the graph's schedule.

Source: S. Shi, Q. Wang, X. Chu and B. Li, A DAG Model of Synchronous Stochastic Gradient Descent in Distributed Deep
Learning, arXiv:1805.03812, sections III and IV, and Fig. 1. Layers stand in forward order: index 0 is the paper's layer
1, the last is layer L, nearest the loss. Times of communication run from the start of layer L's backward:
``tau_b(L) = 0``.

**The graph.** The paper draws tasks and precedence; which tasks exclude each other is ours: every device has one disk,
one PCIe link and one compute stream, all share one network, and each of these does one task at a time, in the order of
iteration, phase and layer. Equal devices do the same at the same time, so that one of them stands for all, and the
graph does not grow with their number. Expanded, every device has its own tasks, as in Fig. 1. Buffers for batches that
are read ahead are unlimited.

**Its schedule.** Whenever a resource is free it starts, of the tasks that are ready for it, the one with the smallest
priority, ties by index; it never waits for a better one (list scheduling: R. L. Graham, SIAM J. Appl. Math. 17(2),
1969, doi:10.1137/0117039). With one resource only, and priorities by ready time, this is the first-come-first-served
channel of :mod:`planner.channel`. Orders of pipelines are fixed instead: :mod:`planner.models.schedule`.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from itertools import accumulate, pairwise
from typing import Self

import networkx as nx
import numpy as np

from planner.cost import Floats
from planner.errors import ModelError
from planner.frozen import frozen
from planner.models.input import Strategy


class Prefetch(StrEnum):
    """Whether one batch may be read while the one before it is copied."""

    SINGLE = "single"  # one thread reads and copies in turn: t_io + t_h2d, as eqs. 3 to 6 have it
    PIPELINED = "pipelined"  # both at once, as the task graph allows: max(t_io, t_h2d)


@frozen
class AllReduce:
    """One communication task: the gradients of one layer, or of several that were fused."""

    duration_s: float
    # indices of the layers whose gradients it carries; it is ready after the backward of the first of them
    layers: tuple[int, ...]
    # for which a fusion buffer still waits then (``Wait.EXACT``). A wait that holds the network (``Wait.PAPER``) is
    # part of the duration
    lag_s: float = 0.0
    name: str = "all-reduce"

    @property
    def ready_layer(self) -> int:
        """The layer whose gradient comes last: the one nearest the input."""
        return min(self.layers)


@frozen
class Iteration:
    """The seconds of one iteration on each of several equal devices.

    Raises
    ------
    ModelError
        If there is no layer, lengths differ, a time is negative, or an all-reduce carries unknown layers or is not in
        ready order.
    """

    # forward_s, backward_s: ``t_f(l)`` and ``t_b(l)`` of each layer, for the whole batch of a device
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    # ``t_c``, in the order of transfer, which is that in which they get ready. Devices that read, copy or train alone
    # have none
    all_reduces: tuple[AllReduce, ...] = ()
    # read_s, copy_s, update_s: ``t_io``, ``t_h2d`` and ``t_u``. Eqs. 3 to 6 have no ``t_u``; here it belongs to the
    # computation
    read_s: float = 0.0
    copy_s: float = 0.0
    update_s: float = 0.0
    names: tuple[str, ...] = ()  # of the layers; empty for none

    def __post_init__(self) -> None:
        """Check what the equations rely on."""
        num_layers = len(self.forward_s)
        if not num_layers or len(self.backward_s) != num_layers or len(self.names) not in (0, num_layers):
            raise ModelError(
                f"forward_s, backward_s and names (or none) must be of the same layers, and of one at least, "
                f"not {num_layers}, {len(self.backward_s)} and {len(self.names)}."
            )
        named = [("read_s", self.read_s), ("copy_s", self.copy_s), ("update_s", self.update_s)]
        named += [(f"forward_s of layer {index}", seconds) for index, seconds in enumerate(self.forward_s)]
        named += [(f"backward_s of layer {index}", seconds) for index, seconds in enumerate(self.backward_s)]
        for one in self.all_reduces:
            named += [(f"duration_s of {one.name!r}", one.duration_s), (f"lag_s of {one.name!r}", one.lag_s)]
        for what, seconds in named:
            if not 0 <= seconds < math.inf:
                raise ModelError(f"{what} must be finite and >= 0, not {seconds}.")
        for one in self.all_reduces:
            if not one.layers or not all(0 <= layer < num_layers for layer in one.layers):
                raise ModelError(
                    f"{one.name!r} carries layers {one.layers}, but there are layers 0 to {num_layers - 1}."
                )
        for before, after in pairwise(self.all_reduces):
            if before.ready_layer < after.ready_layer:
                raise ModelError(
                    f"{before.name!r} waits for layer {before.ready_layer} and stands before {after.name!r}, which "
                    f"waits for layer {after.ready_layer}. Give all-reduces in ready order, from the last layer to the "
                    f"first."
                )

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
    model (T. Liu et al., WWW '22), whose time begins ``t_b(L)`` later.
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
    spans = all_reduce_spans_s(iteration)
    if spans and iteration.all_reduces[-1].ready_layer == 0:
        last_s, duration_s = spans[-1][0], iteration.all_reduces[-1].duration_s
    else:  # without parameters layer 1 sends nothing, in no time, when it could
        last_s, duration_s = max(spans[-1][1] if spans else 0.0, _backward_ends_s(iteration)[0]), 0.0
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
    return list(accumulate(reversed(iteration.backward_s)))[::-1]


# -- the task graph --------------------------------------------------------------------------------------------------


class Kind(StrEnum):
    """The phases of an iteration, in their order."""

    READ = "read"
    COPY = "copy"
    FORWARD = "forward"
    BACKWARD = "backward"
    ALL_REDUCE = "all_reduce"
    UPDATE = "update"


_RANKS = {kind: rank for rank, kind in enumerate(Kind)}


@frozen
class SsgdTask:
    """A node of the graph."""

    kind: Kind
    iteration: int
    # within its phase: layers from the input in the forward pass, from the loss in the backward pass, all-reduces as
    # they are sent
    order: int = 0
    layers: tuple[int, ...] = ()  # which it computes, or whose gradients it carries
    name: str
    # what does it. The one update of an iteration stands on the first device; the others idle meanwhile
    resource: str
    duration_s: float
    lag_s: float = 0.0  # between its last predecessor's end and its earliest start

    @property
    def priority(self) -> tuple[int, int, int]:
        """Iteration, phase, and order within the phase."""
        return self.iteration, _RANKS[self.kind], self.order


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
    num_layers = len(iteration.forward_s)
    names = iteration.names or [f"layer {layer + 1}" for layer in range(num_layers)]
    one_for_all = "the device" if num_devices == 1 else f"each of {num_devices} devices"
    devices = [f"device {index}" for index in range(num_devices)] if is_expanded else [one_for_all]
    graph: nx.DiGraph[SsgdTask] = nx.DiGraph()
    steps: list[tuple[list[list[SsgdTask]], SsgdTask]] = []  # what each device does, and the update
    for index in range(num_iterations):
        task = partial(SsgdTask, iteration=index)
        lanes = []
        for device in devices:
            lane = [
                task(kind=Kind.READ, name="read", resource=f"{device}: disk", duration_s=iteration.read_s),
                task(kind=Kind.COPY, name="copy", resource=f"{device}: PCIe", duration_s=iteration.copy_s),
            ]
            ahead = [(Kind.FORWARD, layer, seconds) for layer, seconds in enumerate(iteration.forward_s)]
            back = [(Kind.BACKWARD, layer, seconds) for layer, seconds in enumerate(iteration.backward_s)]
            for order, (kind, layer, seconds) in [*enumerate(ahead), *enumerate(reversed(back))]:
                name, resource = f"{kind} {names[layer]}", f"{device}: compute"
                lane.append(
                    task(kind=kind, order=order, layers=(layer,), name=name, resource=resource, duration_s=seconds)
                )
            lanes.append(lane)
        sent = [
            task(
                kind=Kind.ALL_REDUCE,
                order=order,
                layers=one.layers,
                name=one.name,
                resource="network",
                duration_s=one.duration_s,
                lag_s=one.lag_s,
            )
            for order, one in enumerate(iteration.all_reduces if num_devices > 1 else ())
        ]
        update = task(kind=Kind.UPDATE, name="update", resource=f"{devices[0]}: compute", duration_s=iteration.update_s)
        graph.add_nodes_from([*(one for lane in lanes for one in lane), *sent, update])
        for lane in lanes:
            graph.add_edges_from([*pairwise(lane), (lane[-1], update)])
            for one in sent:
                graph.add_edges_from((lane[-1 - layer], one) for layer in one.layers)
                if not strategy.overlaps_gradients:
                    graph.add_edge(lane[-1], one)
        graph.add_edges_from((one, update) for one in sent)
        steps.append((lanes, update))
    for (lanes_before, updated), (lanes, _) in pairwise(steps):
        for (old_read, old_copy, *_), (read, copy, first_forward, *_) in zip(lanes_before, lanes, strict=True):
            graph.add_edge(updated, first_forward)
            if not strategy.reads_ahead:
                graph.add_edge(updated, read)
                continue
            graph.add_edge(old_copy if prefetch is Prefetch.SINGLE else old_read, read)
            if not strategy.copies_ahead:
                graph.add_edge(updated, copy)
    return graph


# -- its schedule ----------------------------------------------------------------------------------------------------


@frozen
class Task:
    """One task; tasks are known by their index in a sequence."""

    duration_s: float  # finite and >= 0; the resource is held for all of it
    resource: str
    # indices of the tasks that must have ended; all smaller than the task's own, so that there is no cycle
    after: tuple[int, ...] = ()
    priority: tuple[int, ...] = ()  # smaller goes first
    # from the end of the last predecessor, or from 0 if there is none, to the earliest start; nothing is held
    lag_s: float = 0.0


@frozen(eq=False)
class Schedule:
    """Start and end of every task, by its index."""

    start_s: Floats
    end_s: Floats

    @property
    def makespan_s(self) -> float:
        """End of the last task; 0 if there is none."""
        return float(self.end_s.max(initial=0.0))


def list_schedule(tasks: Sequence[Task]) -> Schedule:
    """Return when each task runs: ``O((V + E) log V)``. Proves nothing about the best makespan.

    Raises
    ------
    ModelError
        If a time is negative or not finite, or a task does not stand after its predecessors.

    >>> tasks = [Task(duration_s=2, resource="a"), Task(duration_s=3, resource="b", after=(0,)),
    ...          Task(duration_s=1, resource="b")]
    >>> list_schedule(tasks).end_s.tolist()
    [2.0, 5.0, 1.0]
    """
    _check_tasks(tasks)
    start_s = [0.0] * len(tasks)
    num_open = [len(task.after) for task in tasks]
    followers: list[list[int]] = [[] for _ in tasks]
    for index, task in enumerate(tasks):
        for before in task.after:
            followers[before].append(index)
    # Events: time, index, whether the task ends; else it gets ready.
    events = [(task.lag_s, index, False) for index, task in enumerate(tasks) if not task.after]
    heapq.heapify(events)
    waiting: dict[str, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
    busy: set[str] = set()
    while events:
        now = events[0][0]
        touched: dict[str, None] = {}  # an ordered set: the order of a set of texts differs between runs
        while events and events[0][0] == now:
            _, index, is_end = heapq.heappop(events)
            resource = tasks[index].resource
            touched[resource] = None
            if not is_end:
                heapq.heappush(waiting[resource], (tasks[index].priority, index))
                continue
            busy.discard(resource)
            for follower in followers[index]:
                num_open[follower] -= 1
                if not num_open[follower]:
                    heapq.heappush(events, (now + tasks[follower].lag_s, follower, False))
        for resource in touched:
            if resource not in busy and waiting[resource]:
                index = heapq.heappop(waiting[resource])[1]
                start_s[index] = now
                busy.add(resource)
                heapq.heappush(events, (now + tasks[index].duration_s, index, True))
    starts_s = np.array(start_s, dtype=np.float64)
    return Schedule(start_s=starts_s, end_s=starts_s + [task.duration_s for task in tasks])


def _check_tasks(tasks: Sequence[Task]) -> None:
    """Refuse times that are no times, and predecessors that do not come first."""
    for index, task in enumerate(tasks):
        for what, seconds in (("duration_s", task.duration_s), ("lag_s", task.lag_s)):
            if not 0 <= seconds < float("inf"):
                raise ModelError(f"task {index}: {what} must be finite and >= 0, not {seconds}.")
        for before in task.after:
            if not 0 <= before < index:
                raise ModelError(
                    f"task {index} of {len(tasks)} comes after task {before}, which must stand before it. "
                    f"Give tasks in topological order, numbered from 0."
                )


@frozen(eq=False)
class Run:
    """A graph's tasks, and when each runs."""

    tasks: tuple[SsgdTask, ...]
    schedule: Schedule

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
    return Run(tasks=tuple(graph), schedule=list_schedule(listed))
