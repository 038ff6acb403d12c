"""What the families' timelines share: a drawing in the making, passes through layers, input, and memory."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.dnn import Dnn
from planner.models.input import InputTime, Strategy
from planner.timeline import Counter, Flow, Process, Span, Timeline


class Drawing:
    """Spans, arrows and counters of one iteration, added one by one; what takes no time is not drawn."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.notes: list[str] = []
        self._flows: list[Flow] = []
        self._processes: list[Process] = []
        self._counters: list[Counter] = []

    def process(
        self, name: str, rows: Sequence[str], *, count: int = 1, member: tuple[str, str] | None = None, kind: str = ""
    ) -> None:
        """Announce a process with its rows, which are shown in this order."""
        self._processes.append(Process(name=name, rows=tuple(rows), count=count, member=member, kind=kind))

    def add(
        self, row: str, name: str, start_s: float, end_s: float, kind: str, *, is_part: bool = False, **args: object
    ) -> int | None:
        """Add a span; return its index, or None where it takes no time."""
        if end_s <= start_s:
            return None
        told = {key: value for key, value in args.items() if value is not None}
        self.spans.append(Span(row=row, name=name, start_s=start_s, end_s=end_s, kind=kind, is_part=is_part, args=told))
        return len(self.spans) - 1

    def mark(self, row: str, name: str, at_s: float, kind: str, **args: object) -> int:
        """Add a span that takes no time; return its index."""
        self.spans.append(Span(row=row, name=name, start_s=at_s, end_s=at_s, kind=kind, args=args))
        return len(self.spans) - 1

    def chain(self, row: str, start_s: float, pieces: Sequence[tuple[str, float, str]], **args: object) -> float:
        """Add spans one after the other, by name, seconds and kind; return the end of the last."""
        for name, seconds, kind in pieces:
            self.add(row, name, start_s, start_s + seconds, kind, is_part=False, **args)
            start_s += seconds
        return start_s

    def flow(self, source: int | None, target: int | None, name: str, *, is_stream: bool = False) -> None:
        """Add an arrow, where both spans are there."""
        if source is not None and target is not None:
            self._flows.append(Flow(source=source, target=target, name=name, is_stream=is_stream))

    def counter(self, process: str, name: str, points: Sequence[tuple[float, Mapping[str, float]]]) -> None:
        """Add a counter."""
        self._counters.append(Counter(process=process, name=name, points=tuple(points)))

    def finished(self) -> Timeline:
        """Return the timeline; rows on which nothing runs are left out, and so are processes without rows."""
        used = {span.row for span in self.spans}
        processes = []
        for one in self._processes:
            rows = tuple(row for row in one.rows if row in used)
            if rows:
                kept = Process(name=one.name, rows=rows, count=one.count, member=one.member, kind=one.kind)
                processes.append(kept)
        names = {one.name for one in processes}
        return Timeline(
            spans=tuple(self.spans),
            flows=tuple(self._flows),
            rows=tuple(row for one in processes for row in one.rows),
            processes=tuple(processes),
            counters=tuple(one for one in self._counters if one.process in names),
            notes=tuple(dict.fromkeys(self.notes)),
        )


def draw_pass(
    drawing: Drawing,
    row: str,
    start_s: float,
    layers: Sequence[tuple[str, float]],
    *,
    direction: str,
    microbatch: int | None = None,
) -> tuple[float, dict[str, int]]:
    """Draw a forward or backward pass, with its layers inside; return its end, and the layers' spans by name.

    Parameters
    ----------
    layers
        Names and seconds, in the order in which they run.
    direction
        ``forward`` or ``backward``.
    microbatch
        Its number from 1 on, where there are several.
    """
    number = "" if microbatch is None else f" {microbatch}"
    end_s = start_s + sum(seconds for _, seconds in layers)
    shared: dict[str, Any] = {"microbatch": microbatch}
    drawing.add(row, f"{direction}{number}", start_s, end_s, direction, **shared)
    found: dict[str, int] = {}
    now_s = start_s
    for name, seconds in layers:
        more: dict[str, Any] = {"is_part": True, "layer": name, "direction": direction, **shared}
        index = drawing.add(row, f"{direction} {name}", now_s, min(now_s + seconds, end_s), "layer", **more)
        now_s += seconds
        if index is not None:
            found[name] = index
    return end_s, found


def draw_input(
    drawing: Drawing, process: str, read: InputTime, strategy: Strategy, busy_s: float, iteration_s: float
) -> None:
    """Draw how the next samples come in a steady iteration: read, decoded, and copied to the device.

    Rows are ``disk``, ``decode`` and ``PCIe`` of the process; see :func:`planner.models.input.stall_s`.
    """
    start_s = 0.0 if strategy.reads_ahead or strategy.copies_ahead else busy_s
    decode_s = start_s if read.is_pipelined else start_s + read.read_s
    copy_s = iteration_s - read.copy_s
    if strategy.copies_ahead:
        copy_s = start_s if read.is_pipelined else decode_s + read.decode_s
    for name, row, begin_s, seconds in (
        ("read", "disk", start_s, read.read_s),
        ("decode", "decode", decode_s, read.decode_s),
        ("copy", "PCIe", copy_s, read.copy_s),
    ):
        drawing.add(f"{process}: {row}", name, begin_s, begin_s + seconds, "input")


def layers_of_gradients(dnn: Dnn) -> dict[str, str]:
    """Return the layer of every gradient, which bears the name of a layer or of a tensor."""
    found = {layer.name: layer.name for layer in dnn.layers}
    return found | {tensor.name: layer.name for layer in dnn.layers for tensor in layer.tensors}


def peak_memory(memory_bytes: Mapping[str, float]) -> dict[str, float]:
    """Return the terms of what a device holds at its peak, for a counter."""
    return {name: value for name, value in memory_bytes.items() if name not in ("total", "limit")}
