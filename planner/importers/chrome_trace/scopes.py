"""Which module's forward or backward pass an operator, or a kernel, belongs to.

Ranges of one thread nest. An operator belongs to the innermost module whose range holds it; where a module has modules
within, the operators between two of them are a part of their own, in their place. A node of the backward pass has the
sequence number of the forward operator that made it, which is the last one that started with this number; nodes without
one (the accumulation of gradients) belong to the node before them on their thread. Where there are kernels, these count
with their own durations, in the place of the call that launched them; else operators do. Kernels of collectives are
left out.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from planner.importers.chrome_trace.events import Event

__all__ = ["BACKWARD", "Part", "Step", "Timeline", "is_scope_annotation"]

BACKWARD = "autograd::engine::evaluate_function: "
_SEQUENCE = "Sequence number"
_EXTERNAL = "External id"
_CORRELATION = "correlation"
_TOLERANCE_S = 1e-6  # ranges are written to the nanosecond, by clocks that differ
_NO_SCOPE = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)", "profiler::", "## ", "DistributedDataParallel")
_ORDER = {"annotation": 0, "module": 1, "operator": 2, "launch": 3}  # of ranges that start and end together

Key = tuple[str, int]  # module, and which of its parts


@dataclass(slots=True, eq=False)
class Node:
    """A range in the tree of one thread.

    Attributes
    ----------
    scope
        The innermost module around it.
    backward
        The outermost node of the backward pass that it is, or stands in.
    is_inner
        Whether it stands in an operator.
    is_update
        Whether it stands in the optimiser's step.
    inner_starts_s
        Of a module: when the modules directly within begin.
    """

    event: Event
    scope: "Node | None" = None
    backward: "Node | None" = None
    is_inner: bool = False
    is_update: bool = False
    inner_starts_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Part:
    """Operators of a module between two modules within, or all of them where there are none.

    Attributes
    ----------
    operators
        The outermost operators of its forward pass, in order.
    """

    key: Key
    order_s: float
    operators: list[Event] = field(default_factory=list)
    forward_s: float = 0.0
    backward_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """An iteration: its parts in order of first use, and the seconds that no module has."""

    parts: Mapping[Key, Part]
    outside_s: float
    update_s: float


def is_scope_annotation(event: Event) -> bool:
    """Whether a range of ``record_function`` may name a part of a network."""
    return event.kind == "annotation" and not event.name.startswith(_NO_SCOPE)


class Timeline:
    """Every thread's ranges as a tree.

    Parameters
    ----------
    events
        Of a whole trace.
    scopes
        The kind of event that names modules: ``module``, or ``annotation`` where there is none.
    """

    def __init__(self, events: Sequence[Event], *, scopes: str) -> None:
        self.num_overlaps = 0
        self.num_lost_kernels = 0
        self._scopes = scopes
        kernels = [event for event in events if event.kind == "kernel"]
        self.kernels = [event for event in kernels if not _is_collective(event)]
        self.num_collectives = len(kernels) - len(self.kernels)
        self._threads: dict[tuple[str, str], list[Node]] = {}
        for thread, own in _by_thread(event for event in events if event.kind != "kernel").items():
            self._threads[thread] = self._nest(own)
        self._launches: dict[tuple[str, str], Node] = {}
        self._makers: dict[int, Node] = {}
        self._backward_parts: dict[int, Key | None] = {}
        self._index()

    def steps(self, windows: Sequence[tuple[float, float]]) -> list[Step]:
        """Return what happened in each window of time; windows do not overlap."""
        found: list[dict[Key, Part]] = [{} for _ in windows]
        outside = [0.0] * len(windows)
        update = [0.0] * len(windows)
        starts = [start_s for start_s, _ in windows]
        for node, seconds in self._work():
            at = bisect_right(starts, node.event.start_s) - 1
            if at < 0 or node.event.start_s >= windows[at][1]:
                continue
            key, is_backward = self._place(node)
            if key is None:
                update[at] += seconds if node.is_update else 0.0
                outside[at] += 0.0 if node.is_update else seconds
                continue
            part = found[at].setdefault(key, Part(key=key, order_s=node.event.start_s))
            if is_backward:
                part.backward_s += seconds
            else:
                part.forward_s += seconds
        for thread in self._threads.values():
            for node in thread:
                self._note_operator(node, starts, windows, found)
        return [Step(*fields) for fields in zip(found, outside, update, strict=True)]

    # -- trees -------------------------------------------------------------------------------------------------------

    def _nest(self, events: list[Event]) -> list[Node]:
        """Return the ranges of a thread as nodes, in order of start, each with what stands around it."""
        events.sort(key=lambda event: (event.start_s, -event.duration_s, _ORDER[event.kind]))
        nodes: list[Node] = []
        stack: list[Node] = []
        for event in events:
            while stack and stack[-1].event.end_s <= event.start_s:
                stack.pop()
            if stack and event.end_s > stack[-1].event.end_s + _TOLERANCE_S:
                self.num_overlaps += 1
            node = self._below(stack[-1], event) if stack else Node(event)
            if event.kind == "operator" and event.name.startswith(BACKWARD) and node.backward is None:
                node.backward = node
            nodes.append(node)
            stack.append(node)
        return nodes

    def _below(self, around: Node, event: Event) -> Node:
        """Return a node within another."""
        node = Node(
            event,
            scope=around if self._is_scope(around.event) else around.scope,
            backward=around.backward,
            is_inner=around.is_inner or around.event.kind == "operator",
            is_update=around.is_update or around.event.name.startswith("Optimizer.step"),
        )
        if self._is_scope(event) and node.scope is not None and not node.is_inner:
            node.scope.inner_starts_s.append(event.start_s)
        return node

    def _is_scope(self, event: Event) -> bool:
        """Whether a range is a module."""
        return is_scope_annotation(event) if self._scopes == "annotation" else event.kind == self._scopes

    def _index(self) -> None:
        """Find operators by external id, launches by correlation, and makers of backward nodes by sequence number."""
        for node in (node for nodes in self._threads.values() for node in nodes):
            args, kind = node.event.args, node.event.kind
            link = {"launch": _CORRELATION, "operator": _EXTERNAL}.get(kind)
            if link is not None and link in args:
                self._launches[link, str(args[link])] = node
            if kind != "operator":
                continue
            number = _number_of(node)
            if number >= 0 and (node.backward is None or (node.is_inner and not _is_autograd(node))):
                before = self._makers.get(number)
                if before is None or before.event.start_s <= node.event.start_s:
                    self._makers[number] = node
        for nodes in self._threads.values():
            self._follow_backward(nodes)

    def _follow_backward(self, nodes: Sequence[Node]) -> None:
        """Find the part of every outermost node of a thread's backward pass."""
        last: Key | None = None
        for node in nodes:
            if node.event.name.startswith("ProfilerStep#"):
                last = None
            if node.backward is node:
                if _number_of(node) >= 0:
                    maker = self._makers.get(_number_of(node))
                    last = _part_of(maker) if maker is not None else None
                self._backward_parts[id(node)] = last

    def _work(self) -> Iterator[tuple[Node, float]]:
        """Give what takes time: kernels where there are any, else operators that stand in no other."""
        for event in self.kernels:
            node = self._launches.get((_CORRELATION, str(event.args.get(_CORRELATION))))
            node = node or self._launches.get((_EXTERNAL, str(event.args.get(_EXTERNAL))))
            if node is None:
                self.num_lost_kernels += 1
            else:
                yield node, event.duration_s
        if not self.kernels:
            for node in (node for nodes in self._threads.values() for node in nodes):
                if node.event.kind == "operator" and not node.is_inner:
                    yield node, node.event.duration_s

    def _place(self, node: Node) -> tuple[Key | None, bool]:
        """Return the part that a range belongs to, and whether to its backward pass."""
        if node.backward is not None:
            return self._backward_parts.get(id(node.backward)), True
        return _part_of(node), False

    def _note_operator(
        self, node: Node, starts: Sequence[float], windows: Sequence[tuple[float, float]], found: list[dict[Key, Part]]
    ) -> None:
        """Add an outermost operator of a forward pass to its part: its shapes tell the sizes."""
        if node.event.kind != "operator" or node.is_inner or node.backward is not None:
            return
        at = bisect_right(starts, node.event.start_s) - 1
        key = _part_of(node)
        if at >= 0 and node.event.start_s < windows[at][1] and key is not None:
            part = found[at].setdefault(key, Part(key=key, order_s=node.event.start_s))
            part.operators.append(node.event)
            part.order_s = min(part.order_s, node.event.start_s)


def _is_collective(event: Event) -> bool:
    """Whether a kernel exchanges data between devices: what that takes belongs to the cluster it ran on."""
    return "nccl" in event.name.lower() or "rccl" in event.name.lower()


def _part_of(node: Node) -> Key | None:
    """Return the part of the innermost module around a range."""
    if node.scope is None:
        return None
    return (node.scope.event.name, bisect_right(node.scope.inner_starts_s, node.event.start_s))


def _number_of(node: Node) -> int:
    """Return a range's sequence number; -1 where it has none."""
    number = node.event.args.get(_SEQUENCE, -1)
    return number if isinstance(number, int) and not isinstance(number, bool) else -1


def _is_autograd(node: Node) -> bool:
    """Whether an operator is a node of the backward pass itself, ``AddmmBackward0``, which bears its maker's number."""
    return "Fwd thread id" in node.event.args and node.event.args["Fwd thread id"] != 0


def _by_thread(events: Iterable[Event]) -> dict[tuple[str, str], list[Event]]:
    """Return the events of every thread."""
    found: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        found[event.thread].append(event)
    return found
