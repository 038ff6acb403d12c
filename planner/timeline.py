"""What runs where and when: spans on rows, arrows between spans, counters; what any model that knows it fills in.

Nothing here is of a family, nor of the file that is made of it: see :mod:`planner.answer.timeline`.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, NamedTuple

from planner.frozen import frozen


@frozen
class Span:
    """What runs on a row from ``start_s`` to ``end_s``."""

    row: str
    name: str
    start_s: float
    end_s: float
    iteration: int = 0
    kind: str = "task"  # a category to filter by
    is_part: bool = False  # whether it stands inside another span of its row
    # what else is known of it, in plain values: bytes, layer, micro-batch
    args: Mapping[str, Any] = field(default_factory=dict)


@frozen
class Flow:
    """An arrow between two spans, by their indices.

    The source ends before the target starts; or, where ``is_stream``, the target takes in what the source still sends,
    and only ends no sooner than the source starts.
    """

    source: int
    target: int
    name: str = "gradient"
    is_stream: bool = False


@frozen
class Process:
    """Rows that are shown together."""

    name: str
    rows: tuple[str, ...]  # each begins with ``name``
    # count, member: of how many equal devices this is one, and the name of each: what stands before and behind its
    # number from 1 on; no ``member`` for what is no device. ``name`` is the one that stands for all
    count: int = 1
    member: tuple[str, str] | None = None
    kind: str = ""  # processes of the same kind do alike, if not at the same time; empty: of its own kind


@frozen
class Counter:
    """Quantities of a process over time: from each time on, the values of its series."""

    process: str
    name: str
    points: tuple[tuple[float, Mapping[str, float]], ...]


class Timeline(NamedTuple):
    """A schedule; rows are in the order to show them in. ``notes``: what is drawn how."""

    spans: tuple[Span, ...]
    flows: tuple[Flow, ...]
    rows: tuple[str, ...]
    processes: tuple[Process, ...] = ()
    counters: tuple[Counter, ...] = ()
    notes: tuple[str, ...] = ()


def repeated(one: Timeline, num_iterations: int, period_s: float) -> Timeline:
    """Return a timeline of one iteration, which begins at 0, as so many that follow each other.

    Raises
    ------
    ValueError
        Unless there is at least one.
    """
    if num_iterations < 1:
        raise ValueError(f"there must be at least 1 iteration, not {num_iterations}.")
    if num_iterations == 1:
        return one
    spans: list[Span] = []
    flows: list[Flow] = []
    points: list[list[tuple[float, Mapping[str, float]]]] = [[] for _ in one.counters]
    for index in range(num_iterations):
        late_s, first = index * period_s, len(spans)
        flows += [replace(flow, source=flow.source + first, target=flow.target + first) for flow in one.flows]
        spans += [
            replace(span, start_s=span.start_s + late_s, end_s=span.end_s + late_s, iteration=index)
            for span in one.spans
        ]
        for found, counter in zip(points, one.counters, strict=True):
            found += [(at_s + late_s, values) for at_s, values in counter.points]
    counters = tuple(replace(counter, points=tuple(found)) for counter, found in zip(one.counters, points, strict=True))
    return one._replace(spans=tuple(spans), flows=tuple(flows), counters=counters)
