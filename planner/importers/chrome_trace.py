"""Seconds of every module, from a trace of torch.profiler (``export_chrome_trace``), plain or compressed by gzip.

Modules are known by their ranges, ``nn.Module: Linear_3``, which the profiler writes with ``with_stack=True``, or,
where there are none, by those of ``record_function``. Each becomes a layer; what a module does between the modules
within it becomes layers of its own. Seconds are medians over the steps that ``profiler.step()`` marks.

Ranges of one thread nest. An operator belongs to the innermost module whose range holds it. A node of the backward pass
has the sequence number of the forward operator that made it, which is the last one that started with this number; nodes
without one (the accumulation of gradients) belong to the node before them on their thread. Where there are kernels,
these count with their own durations, in the place of the call that launched them; else operators do. Kernels of
collectives are left out: they belong to the cluster.

Left out: data flow, of which a trace says nothing (layers are taken for a chain, in order of execution), and what runs
outside of modules, whose share is told. Parameters and outputs are known where the profiler recorded shapes.

Format: "Trace Event Format", Google, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU;
the categories and arguments are those that torch.profiler writes (torch 2.13). Times are microseconds there. Events are
read one by one, so that a large file needs no memory of its own size.
"""

import codecs
import gzip
import json
import re
import sys
import zlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from statistics import median
from typing import IO, Any

from planner.errors import Fault, SpecError
from planner.frozen import frozen
from planner.importers.imported import MeasuredLayer, MeasuredNetwork, UniqueNames, build_measured, first_names
from planner.importers.text import refuse
from planner.letters import visible

MOST_TRACE_BYTES = 2**30  # of text, after decompression
MOST_EVENTS = 3_000_000  # that are kept
_MOST_ELEMENTS = 10_000_000  # of traceEvents, kept or not
_MOST_EVENT = 4 * 2**20  # characters of one event, or of what stands beside the events
_MOST_BLANKS = 2**20  # in a row
_MOST_FAULTS = 20
_MOST_OUTSIDE = 0.1  # of the time of operators, without a word
_CHUNK = 2**20
_NO_BLANK = re.compile(r"[^ \t\r\n]")
_US = 1e-6
_TOLERANCE_S = 1e-6  # ranges are written to the nanosecond, by clocks that differ
_ELEMENT_BYTES = 4  # build_measured counts elements of fp32

_STEP = "ProfilerStep#"
_MODULE = "nn.Module: "
_BACKWARD = "autograd::engine::evaluate_function: "
_SEQUENCE, _EXTERNAL, _CORRELATION = "Sequence number", "External id", "correlation"
_ARGUMENTS = (*(_SEQUENCE, "Fwd thread id", _EXTERNAL, _CORRELATION), *("Input Dims", "Input type", "Concrete Inputs"))
# What is kept, by category. "operator" events carry what GPUs do, too.
_CATEGORIES = {
    "python_function": "python",
    "user_annotation": "annotation",
    "cpu_op": "operator",
    "operator": "operator",
    "kernel": "kernel",
    "gpu_memcpy": "kernel",
    "gpu_memset": "kernel",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
}
_NO_SCOPE = (_STEP, "Optimizer.", "enumerate(DataLoader)", "profiler::", "## ", "DistributedDataParallel")
_ORDER = {"annotation": 0, "module": 1, "operator": 2, "launch": 3}  # of ranges that start and end together
_HINT = (
    "Profile with torch.profiler.profile(with_stack=True, record_shapes=True), call profiler.step() after every "
    "iteration, and export_chrome_trace; or put torch.profiler.record_function(name) around the parts."
)

Key = tuple[str, int]  # module, and which of its parts


@frozen(kw_only=False)
class Event:
    """A range of time on a thread."""

    kind: str  # module, annotation, operator, kernel or launch
    name: str
    thread: tuple[str, str]  # process and thread
    # start_s, duration_s: since the trace's own zero
    start_s: float
    duration_s: float
    args: Mapping[str, Any] = field(default_factory=dict)  # as in the file, those that matter

    @property
    def end_s(self) -> float:
        """When it ends."""
        return self.start_s + self.duration_s

    @property
    def is_scope_annotation(self) -> bool:
        """Whether it is a range of ``record_function`` that may name a part of a network."""
        return self.kind == "annotation" and not self.name.startswith(_NO_SCOPE)

    @property
    def sequence_number(self) -> int:
        """Its sequence number; -1 where it has none."""
        number = self.args.get(_SEQUENCE, -1)
        return number if isinstance(number, int) and not isinstance(number, bool) else -1


def read_chrome_trace(path: Path, *, batch_size: int) -> MeasuredNetwork:
    """Return the network, a chain, and the profile of a trace.

    Parameters
    ----------
    batch_size
        Samples of one step, over all its forward passes.

    Raises
    ------
    SpecError
        If the file is no whole trace (see :func:`read_trace`), or has no modules or no times of theirs.
    """
    events, device = read_trace(path)
    has_modules = any(event.kind == "module" for event in events)
    if not has_modules and not any(event.is_scope_annotation for event in events):
        raise refuse(path, f"there are no modules among its {len(events):,} events.", _HINT)
    timeline = Timeline(events, scopes="module" if has_modules else "annotation")
    is_marked = any(event.name.startswith(_STEP) for event in events)
    steps = timeline.steps()
    used = steps[1:] if len(steps) > 3 else steps  # the first one pays for allocations
    parts = sorted(max(used, key=lambda step: len(step.parts)).parts.values(), key=lambda part: part.order_s)
    rows = _rows(parts, used)
    if not any(row.forward_s or row.backward_s for row in rows):
        raise refuse(path, "its modules hold no operators.", _HINT)
    name = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace") or "trace"
    try:
        found = build_measured(name, rows, batch_size=batch_size, origin=f"torch profiler trace {path.name}")
    except ValueError as error:
        raise refuse(path, f"{error}.", "Export it again.") from None
    measured_on = device or ("" if any(event.kind == "kernel" for event in events) else "a CPU")
    update_s = median(step.update_s for step in used)
    return MeasuredNetwork(
        dnn=found.dnn,
        profile=replace(found.profile, update_s=update_s, measured_on=measured_on),
        warnings=(*found.warnings, *_warnings(timeline, used, rows, is_marked=is_marked)),
    )


def _rows(parts: Sequence["Part"], steps: Sequence["Step"]) -> list[MeasuredLayer]:
    """Return the layers in order, each reading the one before it; seconds are medians over the steps that have it."""
    num_parts_of = Counter(part.key[0] for part in parts)
    rows: list[MeasuredLayer] = []
    names = UniqueNames()
    for part in parts:
        name = part.key[0]
        if part.key[1] or num_parts_of[name] > 1:
            words = dict.fromkeys(event.name.removeprefix("aten::").strip("_") for event in part.operators)
            name = f"{name}.{'+'.join(list(words)[:3]) or 'own'}"
        # A module that is called again reads the same parameters.
        first_calls = {(event.name, str(event.args.get("Input Dims"))): event for event in reversed(part.operators)}
        same = [step.parts[part.key] for step in steps if part.key in step.parts]
        rows.append(
            MeasuredLayer(
                name=names.take(name),
                kind=_kind_of(part.operators),
                inputs=(rows[-1].name,) if rows else (),
                forward_s=float(median(one.forward_s for one in same)),
                backward_s=float(median(one.backward_s for one in same)),
                output_bytes=_ELEMENT_BYTES * (_num_outputs(part.operators) or 0),
                parameter_bytes=_ELEMENT_BYTES * sum(map(_num_parameters, first_calls.values())),
            )
        )
    return rows


def _warnings(
    timeline: "Timeline", steps: Sequence["Step"], rows: Sequence[MeasuredLayer], *, is_marked: bool
) -> list[str]:
    """Return what makes the figures doubtful."""
    warnings = ["a trace has no data flow: its layers are taken for a chain, in order of execution"]
    if not is_marked:
        warnings.append("no steps are marked (profiler.step()): each call of the outermost module begins one")
    if len(steps) == 1:
        warnings.append("there is one step in it: figures are no medians")
    inside_s = sum(part.forward_s + part.backward_s for step in steps for part in step.parts.values())
    outside_s = sum(step.outside_s for step in steps)
    if outside_s > _MOST_OUTSIDE * (inside_s + outside_s):
        share = outside_s / (inside_s + outside_s)
        warnings.append(f"{share:.0%} of the time of operators is outside of modules (the loss, copies) and left out")
    if not any(row.backward_s for row in rows):
        warnings.append("there is no backward pass in it")
    if timeline.num_overlaps:
        warnings.append(f"{timeline.num_overlaps} ranges overlap without standing in one another")
    if timeline.num_collectives:
        warnings.append(f"{timeline.num_collectives} kernels of collectives are left out: they belong to the cluster")
    if lost := timeline.num_lost_kernels:
        warnings.append(f"{lost} kernels were launched by no operator in the trace and are left out")
    unknown = [row.name for row in rows if not row.output_bytes]
    if len(unknown) == len(rows):
        warnings.append("no shapes are recorded (record_shapes=True): parameters are not counted either")
    elif unknown:
        warnings.append(f"sizes of outputs are not known: {first_names(unknown)}")
    return warnings


# -- which module an operator, or a kernel, belongs to -----------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Node:
    """A range in the tree of one thread."""

    event: Event
    scope: "Node | None" = None  # the innermost module around it
    backward: "Node | None" = None  # the outermost node of the backward pass that it is, or stands in
    is_inner: bool = False  # whether it stands in an operator
    is_update: bool = False  # whether it stands in the optimiser's step
    inner_starts_s: list[float] = field(default_factory=list)  # of a module: when the modules directly within begin
    backward_part: Key | None = None  # of an outermost node of the backward pass: the part whose gradient it computes

    @property
    def part(self) -> Key | None:
        """The part of the innermost module around it."""
        if self.scope is None:
            return None
        return (self.scope.event.name, bisect_right(self.scope.inner_starts_s, self.event.start_s))


@dataclass(slots=True)
class Part:
    """What a module does between two modules within, or all of it where there are none.

    ``operators`` are the outermost ones of its forward pass, in order.
    """

    key: Key
    order_s: float
    operators: list[Event] = field(default_factory=list)
    forward_s: float = 0.0
    backward_s: float = 0.0


@dataclass(slots=True)
class Step:
    """An iteration: its parts, and the seconds that no module has, those of the optimiser apart."""

    parts: dict[Key, Part] = field(default_factory=dict)
    outside_s: float = 0.0
    update_s: float = 0.0


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
        self.num_overlaps = self.num_lost_kernels = 0
        self._events, self._scopes = events, scopes
        kernels = [event for event in events if event.kind == "kernel"]
        self._kernels = [event for event in kernels if not re.search("nccl|rccl", event.name, re.IGNORECASE)]
        self.num_collectives = len(kernels) - len(self._kernels)
        threads: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for event in events:
            if event.kind != "kernel":
                threads[event.thread].append(event)
        self._threads = [self._nest(own) for own in threads.values()]
        self._nodes = [node for thread in self._threads for node in thread]
        self._launches: dict[tuple[str, str], Node] = {}
        self._find_backward_parts()

    def _is_scope(self, event: Event) -> bool:
        return event.is_scope_annotation if self._scopes == "annotation" else event.kind == self._scopes

    def _nest(self, events: list[Event]) -> list[Node]:
        """Return the ranges of a thread as nodes, in order of start, each with what stands around it."""
        events.sort(key=lambda event: (event.start_s, -event.duration_s, _ORDER[event.kind]))
        nodes: list[Node] = []
        stack: list[Node] = []
        for event in events:
            while stack and stack[-1].event.end_s <= event.start_s:
                stack.pop()
            node = Node(event)
            if stack:
                around = stack[-1]
                self.num_overlaps += event.end_s > around.event.end_s + _TOLERANCE_S
                node.scope = around if self._is_scope(around.event) else around.scope
                node.backward = around.backward
                node.is_inner = around.is_inner or around.event.kind == "operator"
                node.is_update = around.is_update or around.event.name.startswith("Optimizer.step")
                if self._is_scope(event) and node.scope is not None and not node.is_inner:
                    node.scope.inner_starts_s.append(event.start_s)
            if event.kind == "operator" and event.name.startswith(_BACKWARD) and node.backward is None:
                node.backward = node
            nodes.append(node)
            stack.append(node)
        return nodes

    def _find_backward_parts(self) -> None:
        """Find launches by correlation and operators by external id, and whose gradient a backward node computes."""
        makers: dict[int, Node] = {}
        for node in self._nodes:
            event = node.event
            link = {"launch": _CORRELATION, "operator": _EXTERNAL}.get(event.kind)
            if link is not None and link in event.args:
                self._launches[link, str(event.args[link])] = node
            number = event.sequence_number
            # An operator within the backward pass may make nodes of its own; a node itself bears its maker's number.
            is_autograd = event.args.get("Fwd thread id", 0) != 0
            if event.kind != "operator" or number < 0:
                continue
            if node.backward is None or (node.is_inner and not is_autograd):
                before = makers.get(number)
                if before is None or before.event.start_s <= event.start_s:
                    makers[number] = node
        for thread in self._threads:
            last: Key | None = None
            for node in thread:
                if node.event.name.startswith(_STEP):
                    last = None
                if node.backward is node:
                    number = node.event.sequence_number
                    if number >= 0:
                        maker = makers.get(number)
                        last = maker.part if maker is not None else None
                    node.backward_part = last

    def steps(self) -> list[Step]:
        """Return what happened in each step."""
        windows = self._windows()
        starts = [start_s for start_s, _ in windows]
        steps = [Step() for _ in windows]

        def step_of(node: Node) -> Step | None:
            index = bisect_right(starts, node.event.start_s) - 1
            return steps[index] if index >= 0 and node.event.start_s < windows[index][1] else None

        for node, seconds in self._work():
            if (step := step_of(node)) is None:
                continue
            key = node.part if node.backward is None else node.backward.backward_part
            if key is not None:
                part = step.parts.setdefault(key, Part(key, node.event.start_s))
                part.forward_s += seconds if node.backward is None else 0.0
                part.backward_s += 0.0 if node.backward is None else seconds
            elif node.is_update:
                step.update_s += seconds
            else:
                step.outside_s += seconds
        for node in self._nodes:  # the shapes of forward operators tell the sizes
            if node.event.kind != "operator" or node.is_inner or node.backward is not None:
                continue
            step, key = step_of(node), node.part
            if step is not None and key is not None:
                part = step.parts.setdefault(key, Part(key, node.event.start_s))
                part.operators.append(node.event)
                part.order_s = min(part.order_s, node.event.start_s)
        return steps

    def _windows(self) -> list[tuple[float, float]]:
        """Return when each step begins and ends: at the profiler's marks, else with calls of the outermost module."""
        if marks := sorted({one.start_s: one for one in self._events if one.name.startswith(_STEP)}.items()):
            # Kernels and the backward pass may end behind a mark; the last step has nothing behind it.
            starts, end_s = [start_s for start_s, _ in marks], marks[-1][1].end_s
        else:
            scopes = [event for event in self._events if self._is_scope(event)]
            first = min(scopes, key=lambda event: (event.start_s, -event.duration_s))
            starts = sorted({one.start_s for one in scopes if (one.name, one.thread) == (first.name, first.thread)})
            end_s = float("inf")
        return list(zip(starts, [*starts[1:], end_s], strict=True))

    def _work(self) -> Iterator[tuple[Node, float]]:
        """Yield what takes time: kernels where there are any, else operators that stand in no other."""
        for event in self._kernels:
            node = self._launches.get((_CORRELATION, str(event.args.get(_CORRELATION))))
            node = node or self._launches.get((_EXTERNAL, str(event.args.get(_EXTERNAL))))
            if node is None:
                self.num_lost_kernels += 1
            else:
                yield node, event.duration_s
        if not self._kernels:
            for node in self._nodes:
                if node.event.kind == "operator" and not node.is_inner:
                    yield node, node.event.duration_s


# -- kinds and sizes -------------------------------------------------------------------------------------------------

# Which inputs of an operator are parameters, as the signatures have it (torch/native_functions.yaml of torch 2.13): a
# profile does not tell.
_PARAMETERS = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "conv_transpose2d", "batch_norm"), (1, 2)),
    **dict.fromkeys(("layer_norm", "group_norm"), (2, 3)),
    "rms_norm": (2,),
    "embedding": (0,),
    "prelu": (1,),
}
_SAME_SIZE = {
    "batch_norm", "layer_norm", "rms_norm", "group_norm", "relu", "relu_", "gelu", "silu", "sigmoid", "tanh",
    "dropout", "dropout_", "softmax", "log_softmax", "leaky_relu", "elu", "hardtanh", "hardswish", "mish", "prelu",
    "clone", "contiguous", "flatten", "reshape", "view", "transpose", "permute", "scaled_dot_product_attention",
    "neg", "to",
}  # fmt: skip
_BROADCAST = {"add", "add_", "mul", "mul_", "sub", "div"}
# The first that is a part of the operator's name.
_KINDS = {
    "conv": "convolution",
    "linear": "fully_connected",
    "batch_norm": "batch_norm",
    "norm": "norm",
    "pool": "pooling",
    "embedding": "embedding",
    "dropout": "dropout",
    "softmax": "softmax",
    "attention": "attention",
    "lstm": "recurrent",
    "gru": "recurrent",
    **dict.fromkeys(("relu", "gelu", "silu", "sigmoid", "tanh", "mish"), "activation"),
    "cat": "concatenate",
    "loss": "loss",
    "matmul": "matmul",
    "mm": "matmul",
    "flatten": "flatten",
    "add": "add",
}
Shape = tuple[int, ...]


def _own_name(event: Event) -> str:
    """Return the name of an operator of torch's own; empty of another library's."""
    return event.name.removeprefix("aten::") if event.name.startswith("aten::") else ""


def _kind_of(operators: Sequence[Event]) -> str:
    """Return the kind of layer that operators make: of the longest one that has parameters, else of the longest."""
    longest = sorted(operators, key=lambda event: (_own_name(event) not in _PARAMETERS, -event.duration_s))
    for event in longest:
        name = event.name.removeprefix("aten::")
        if kind := next((kind for part, kind in _KINDS.items() if part in name), ""):
            return kind
    return "operator"


def _num_parameters(event: Event) -> int:
    shapes = _shapes(event)
    places = (place for place in _PARAMETERS.get(_own_name(event), ()) if place < len(shapes))
    return sum(prod(shape) for place in places if (shape := shapes[place]))


def _num_outputs(operators: Sequence[Event]) -> int | None:
    """Return the numbers that the last operator puts out, the whole batch; None where that is not known."""
    last = next((event for event in reversed(operators) if _shapes(event)[:1] not in ([], [None])), None)
    if last is None:
        return None
    name, shapes = _own_name(last), _shapes(last)
    first, second = shapes[0] or (), shapes[1] if len(shapes) > 1 else None
    if name in _SAME_SIZE:
        return prod(first)
    if name in _BROADCAST:
        return max(prod(shape) for shape in shapes if shape is not None)
    if name == "linear" and second:
        return prod(first[:-1]) * second[0]
    if name == "embedding" and second is not None:
        return prod(second) * first[-1]
    if name in ("conv2d", "max_pool2d", "avg_pool2d"):
        return _num_windows(last, name, first, second)
    if name in ("adaptive_avg_pool2d", "adaptive_max_pool2d") and len(first) >= 3:
        size = _numbers(last, 1)
        return prod(first[:-2]) * prod(size) if size is not None else None
    return None


def _num_windows(event: Event, name: str, image: Shape, weight: Shape | None) -> int | None:
    """Return the size of what a sliding window leaves; rounding up, and one size of all directions, are left out."""
    is_convolution = name == "conv2d"
    if len(image) != 4 or (is_convolution and (weight is None or len(weight) != 4)):
        return None
    if is_convolution and weight is not None:
        channels, kernel, place = weight[0], weight[2:], 3
    else:
        channels, kernel, place = image[1], _numbers(event, 1) or (), 2
    steps = _numbers(event, place) or (None if is_convolution else kernel)
    edges = _numbers(event, place + 1)
    spread = (1, 1) if name == "avg_pool2d" else _numbers(event, place + 2)
    if not kernel or steps is None or edges is None or spread is None or 0 in steps:
        return None
    sizes = [
        (size + 2 * edge - apart * (width - 1) - 1) // step + 1
        for size, edge, apart, width, step in zip(image[2:], edges, spread, kernel, steps, strict=True)
    ]
    return image[0] * channels * prod(sizes) if min(sizes) > 0 else None


def _shapes(event: Event) -> list[Shape | None]:
    """Return the shapes of an operator's inputs; None where one is no tensor. Scalars are no tensors either."""
    given, types = event.args.get("Input Dims"), event.args.get("Input type")
    shapes: list[Shape | None] = []
    for place, shape in enumerate(given if isinstance(given, list) else []):
        is_tensor = not isinstance(types, list) or types[place : place + 1] not in (
            [],
            [""],
            ["Scalar"],
            ["ScalarList"],
        )
        is_shape = isinstance(shape, list) and all(type(size) is int and 0 <= size < 2**40 for size in shape)
        is_known = is_tensor and is_shape and len(shape) <= 16 and prod(shape) < 2**60
        shapes.append(tuple(shape) if is_known else None)
    return shapes


def _numbers(event: Event, place: int) -> Shape | None:
    """Return two whole numbers among an operator's arguments, such as a stride; None where they are not recorded."""
    given = event.args.get("Concrete Inputs")
    text = given[place] if isinstance(given, list) and place < len(given) else None
    if not isinstance(text, str) or len(text) > 99:
        return None
    try:
        numbers = json.loads(text)
    except ValueError:
        return None
    if not isinstance(numbers, list) or not all(type(number) is int and 0 <= number < 2**40 for number in numbers):
        return None
    numbers = numbers * 2 if len(numbers) == 1 else numbers
    return tuple(numbers) if len(numbers) == 2 else None


# -- the file --------------------------------------------------------------------------------------------------------


def read_trace(path: Path) -> tuple[list[Event], str]:
    """Return the events that say something about modules, operators or kernels, in the file's order, and the device.

    The device is the name of the GPU that was traced; empty where the file names none.

    Raises
    ------
    SpecError
        If the file cannot be read, is no trace, is cut off, holds more than 1 GiB of text or 3,000,000 such events, or
        has times that cannot be (up to 20 of them are told).
    """
    events: list[Event] = []
    faults: list[Fault] = []
    try:
        with _opened(path) as stream:
            reader = _Reader(path, stream)
            for number, found in enumerate(reader.events(), start=1):
                event = _event(path, number, found, faults)
                if event is not None:
                    events.append(event)
                if len(events) > MOST_EVENTS:
                    raise refuse(path, f"it holds more than {MOST_EVENTS:,} events.", "Profile fewer steps.")
                if len(faults) >= _MOST_FAULTS:
                    break
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise refuse(path, f"the compressed file is damaged or cut off: {error}.", "Export it again.") from None
    except UnicodeDecodeError:
        raise refuse(path, "this is not UTF-8 text.", "Give the file that export_chrome_trace wrote.") from None
    except OSError as error:
        problem = f"it cannot be read: {error.strerror or error}."
        raise refuse(path, problem, "Check the path and its permissions.") from None
    if faults:
        raise SpecError.of(faults)
    return events, reader.device


def _opened(path: Path) -> gzip.GzipFile | IO[bytes]:
    """Return the file as a stream of bytes, decompressed."""
    if not path.is_file():
        problem = "this is not a regular file." if path.exists() else "there is no such file."
        raise refuse(path, problem, "Name the file that export_chrome_trace wrote.")
    with path.open("rb") as stream:
        is_compressed = stream.read(2) == b"\x1f\x8b"
    if (size := path.stat().st_size) > MOST_TRACE_BYTES:
        raise refuse(path, f"it holds {size} bytes, more than {MOST_TRACE_BYTES}.", "Profile fewer steps.")
    return gzip.open(path) if is_compressed else path.open("rb")


def _event(path: Path, number: int, found: Any, faults: list[Fault]) -> Event | None:
    """Return what an element of ``traceEvents`` is; None where it does not matter, or is wrong."""
    if not isinstance(found, dict) or found.get("ph") != "X":
        return None
    kind = _CATEGORIES.get(str(found.get("cat")))
    name = str(found.get("name"))
    if kind is None or (kind == "python" and not name.startswith(_MODULE)):
        return None
    if kind == "python":
        kind, name = "module", name.removeprefix(_MODULE)
    times = []
    for key in ("ts", "dur"):
        value: Any = found.get(key)
        # Sums of times stay exact to a nanosecond below 2**53 ns.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) < 2**53 or (key == "dur" and value < 0):  # NaN is not below anything
            hint = "Export the trace again, or remove the event."
            problem = f"event {number} ({name[:40]!r}): {value!r:.40} is no time" + (" >= 0." if key == "dur" else ".")
            faults.append(Fault(file=str(path), field=key, value=f"{value!r:.40}", problem=problem, mend=hint))
            return None
        times.append(float(value) * _US)
    given = found.get("args")
    args = {key: given[key] for key in _ARGUMENTS if key in given} if isinstance(given, dict) else {}
    thread = (sys.intern(str(found.get("pid"))), sys.intern(str(found.get("tid"))))
    return Event(kind, sys.intern(visible(name)), thread, times[0], times[1], args)


class _Reader:
    """Reads JSON from a stream, an element of ``traceEvents`` at a time."""

    def __init__(self, path: Path, stream: gzip.GzipFile | IO[bytes]) -> None:
        self._path, self._stream = path, stream
        self._decoder, self._decode = json.JSONDecoder(), codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at, self._num_bytes, self._is_end = "", 0, 0, False
        self.device = ""

    def events(self) -> Iterator[Any]:
        """Give the elements of ``traceEvents``, or of the list that is the whole file."""
        first = self._next()
        if first == "[":
            yield from self._elements()
            return
        if first != "{":
            raise self._no_trace("this is no JSON object")
        while self._next() != "}":
            self._at -= 1
            key = self._value()
            if not isinstance(key, str) or self._next() != ":":
                raise self._no_trace("this is no JSON object")
            if key == "traceEvents":
                if self._next() != "[":
                    raise self._no_trace("traceEvents is no list")
                yield from self._elements()
                return  # what torch writes behind them is of no use here
            value = self._value()
            if key == "deviceProperties" and isinstance(value, list) and value and isinstance(value[0], dict):
                self.device = visible(str(value[0].get("name", "")))[:80]
            if self._next() not in ("}", ","):
                raise self._no_trace("this is no JSON object")
            self._at -= self._text[self._at - 1] == "}"
        raise self._no_trace("there is no list traceEvents in it")

    def _elements(self) -> Iterator[Any]:
        """Give the elements of a list whose bracket was read."""
        count = 0
        if self._next() == "]":
            return
        self._at -= 1
        while True:
            yield self._value(count)
            count += 1
            if count > _MOST_ELEMENTS:
                raise refuse(self._path, f"it holds more than {_MOST_ELEMENTS:,} events.", "Profile fewer steps.")
            mark = self._next(count)
            if mark == "]":
                return
            if mark != ",":
                raise self._no_trace(f"event {count} is followed by {mark!r}")

    def _no_trace(self, problem: str) -> SpecError:
        return refuse(self._path, f"{problem}.", "Give the file that torch.profiler's export_chrome_trace wrote.")

    def _more(self) -> bool:
        """Read on; False at the end."""
        if self._is_end:
            return False
        data = self._stream.read(_CHUNK)
        self._num_bytes += len(data)
        if self._num_bytes > MOST_TRACE_BYTES:
            raise refuse(self._path, f"it holds more than {MOST_TRACE_BYTES} bytes of text.", "Profile fewer steps.")
        self._is_end = not data
        self._text = self._text[self._at :] + self._decode.decode(data, final=self._is_end)
        self._at = 0
        return True

    def _next(self, count: int = 0) -> str:
        """Return the next character that is no blank."""
        num_blanks = 0
        while True:
            found = _NO_BLANK.search(self._text, self._at)
            begin, self._at = self._at, found.start() if found else len(self._text)
            num_blanks += self._at - begin
            if num_blanks > _MOST_BLANKS:
                problem = f"there are more than {_MOST_BLANKS} blanks in a row in it."
                raise refuse(self._path, problem, "Export it again.")
            if self._at < len(self._text):
                self._at += 1
                return self._text[self._at - 1]
            if not self._more():
                raise self._cut_off(count)

    def _value(self, count: int = 0) -> Any:
        self._next(count)
        self._at -= 1
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except RecursionError:
                raise self._no_trace(f"event {count + 1} is nested too deeply") from None
            except ValueError as error:
                if len(self._text) - self._at > _MOST_EVENT:
                    raise self._no_trace(f"event {count + 1} is no JSON, or is longer than {_MOST_EVENT}") from None
                if self._more():
                    continue
                if "delimiter" in str(error) or "Expecting" in str(error) or "Unterminated" in str(error):
                    raise self._cut_off(count) from None
                raise self._no_trace(f"event {count + 1} is no JSON") from None
            if end < len(self._text) or not self._more():  # a number may go on in the next piece
                self._at = end
                return value

    def _cut_off(self, count: int) -> SpecError:
        return refuse(
            self._path, f"the file ends in the middle, behind {count} whole events, or is no JSON.", "Export it again."
        )
