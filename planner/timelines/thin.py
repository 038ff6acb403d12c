"""A timeline of no more events than a viewer bears: the shortest spans are left out, and it is said how many."""

from planner.timeline import Flow, Timeline

__all__ = ["MOST_EVENTS", "thinned"]

MOST_EVENTS = 1_000_000
_OF_A_ROW = 2  # events that name it
_KEPT = "prediction"  # the kind of spans that always stay


def thinned(timeline: Timeline, *, is_expanded: bool, most: int = MOST_EVENTS) -> Timeline:
    """Return a timeline of at most so many events, names included, with a note of what was left out.

    Of spans the shortest go first, and arrows with them; then other arrows, and counters last.

    Parameters
    ----------
    is_expanded
        Whether each kind of device will be drawn as often as it is there.

    Raises
    ------
    ValueError
        If the rows alone are too many.
    """
    owner = {row: one for one in timeline.processes for row in one.rows}
    counts = {row: owner[row].count if is_expanded and row in owner else 1 for row in timeline.rows}
    processes = sum(one.count if is_expanded else 1 for one in timeline.processes) + 1
    left = most - _OF_A_ROW * (processes + sum(counts.values()))
    if left <= 0:
        raise ValueError(f"{processes - 1:,} devices and links are too many to draw.")
    weights = [counts[span.row] for span in timeline.spans]
    points = [
        len(one.points) * next((p.count for p in timeline.processes if is_expanded and p.name == one.process), 1)
        for one in timeline.counters
    ]

    def arrows(flow: Flow) -> int:
        return 2 * max(weights[flow.source], weights[flow.target])

    if sum(weights) + sum(map(arrows, timeline.flows)) + sum(points) <= left:
        return timeline
    order = sorted(range(len(weights)), key=lambda index: _rank(timeline, index))
    kept: set[int] = set()
    for index in order:
        if weights[index] > left:
            break
        left -= weights[index]
        kept.add(index)
    numbers = {old: new for new, old in enumerate(sorted(kept))}
    flows = []
    for flow in timeline.flows:
        if flow.source in numbers and flow.target in numbers and arrows(flow) <= left:
            left -= arrows(flow)
            flows.append(
                Flow(
                    source=numbers[flow.source],
                    target=numbers[flow.target],
                    name=flow.name,
                    is_stream=flow.is_stream,
                )
            )
    counters = []
    for counter, number in zip(timeline.counters, points, strict=True):
        if number <= left:
            left -= number
            counters.append(counter)
    gone = (
        f"thinned to {most:,} events: of {len(weights):,} spans the {len(weights) - len(kept):,} shortest are left "
        f"out, of {len(timeline.flows):,} arrows {len(timeline.flows) - len(flows):,}, of {len(points):,} counters "
        f"{len(points) - len(counters):,}"
    )
    return timeline._replace(
        spans=tuple(timeline.spans[index] for index in sorted(kept)),
        flows=tuple(flows),
        counters=tuple(counters),
        notes=(*timeline.notes, gone),
    )


def _rank(timeline: Timeline, index: int) -> tuple[bool, float, int]:
    """Return the place of a span among those to keep: the prediction's own first, then the longest."""
    span = timeline.spans[index]
    return span.kind != _KEPT, span.start_s - span.end_s, index
