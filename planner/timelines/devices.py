"""All devices of a timeline, or one of each kind."""

from collections.abc import Mapping
from dataclasses import replace

from planner.timeline import Counter, Flow, Process, Span, Timeline

__all__ = ["num_devices", "of_each_kind", "with_all", "with_parts"]


def num_devices(timeline: Timeline) -> int:
    """Return how many devices a timeline stands for; servers and networks are none."""
    return sum(one.count for one in timeline.processes if one.member)


def of_each_kind(timeline: Timeline) -> Timeline:
    """Return a timeline with the first process of each kind only."""
    first: dict[str, str] = {}
    kept = [one for one in timeline.processes if first.setdefault(one.kind or f"/{one.name}", one.name) == one.name]
    if len(kept) == len(timeline.processes):
        return timeline
    gone = {row for one in timeline.processes if one not in kept for row in one.rows}
    numbers = _numbers([span.row not in gone for span in timeline.spans])
    names = {one.name for one in kept}
    return timeline._replace(
        spans=tuple(span for span in timeline.spans if span.row not in gone),
        flows=_renumbered(timeline.flows, numbers),
        rows=tuple(row for row in timeline.rows if row not in gone),
        processes=tuple(kept),
        counters=tuple(one for one in timeline.counters if one.process in names),
    )


def with_parts(timeline: Timeline, *, has_parts: bool) -> Timeline:
    """Return a timeline with or without the spans that stand inside others; arrows of these go with them."""
    if has_parts:
        return timeline
    numbers = _numbers([not span.is_part for span in timeline.spans])
    spans = tuple(span for span in timeline.spans if not span.is_part)
    return timeline._replace(spans=spans, flows=_renumbered(timeline.flows, numbers))


def with_all(timeline: Timeline) -> Timeline:
    """Return a timeline with every device in a process of its own, in the order of the kinds.

    An arrow between two kinds leads from each device to the one that stands where it does among its own.
    """
    if all(one.count == 1 for one in timeline.processes):
        return timeline
    owner = {row: one for one in timeline.processes for row in one.rows}
    spans: list[Span] = []
    copies: list[list[int]] = []
    for span in timeline.spans:
        process = owner.get(span.row)
        count = process.count if process is not None and process.member else 1
        copies.append(list(range(len(spans), len(spans) + count)))
        spans += [replace(span, row=_row(process, span.row, index)) for index in range(count)]
    flows = [made for flow in timeline.flows for made in _flows(flow, copies[flow.source], copies[flow.target])]
    members = {one.name: _members(one) for one in timeline.processes}
    listed = [made for one in timeline.processes for made in members[one.name]]
    loose = [row for row in timeline.rows if row not in owner]
    return timeline._replace(
        spans=tuple(spans),
        flows=tuple(flows),
        rows=(*(row for one in listed for row in one.rows), *loose),
        processes=tuple(listed),
        counters=tuple(
            Counter(process=made.name, name=one.name, points=one.points)
            for one in timeline.counters
            for made in members[one.process]
        ),
    )


def _members(process: Process) -> list[Process]:
    """Return a process for each device of a kind."""
    if process.count == 1 or not process.member:
        return [process]
    return [
        Process(
            name=_name(process.member, index),
            rows=tuple(_row(process, row, index) for row in process.rows),
            member=(_name(process.member, index), ""),
        )
        for index in range(process.count)
    ]


def _row(process: Process | None, row: str, index: int) -> str:
    """Return the row of one device."""
    if process is None or process.count == 1 or not process.member:
        return row
    return _name(process.member, index) + row.removeprefix(process.name)


def _name(member: tuple[str, str], index: int) -> str:
    """Return the name of one device: others' names may stand beside its number, whatever they hold."""
    before, behind = member
    return f"{before}{index + 1}{behind}"


def _flows(flow: Flow, sources: list[int], targets: list[int]) -> list[Flow]:
    """Return the arrows between all devices of two kinds."""
    most = max(len(sources), len(targets))
    return [
        replace(flow, source=sources[index * len(sources) // most], target=targets[index * len(targets) // most])
        for index in range(most)
    ]


def _numbers(are_kept: list[bool]) -> dict[int, int]:
    """Return the new number of everything that is kept."""
    kept = [index for index, is_kept in enumerate(are_kept) if is_kept]
    return {old: new for new, old in enumerate(kept)}


def _renumbered(flows: tuple[Flow, ...], numbers: Mapping[int, int]) -> tuple[Flow, ...]:
    """Return the arrows of which both spans are kept."""
    return tuple(
        replace(flow, source=numbers[flow.source], target=numbers[flow.target])
        for flow in flows
        if flow.source in numbers and flow.target in numbers
    )
