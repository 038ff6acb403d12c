"""The prediction itself as a process of the timeline: an iteration, and where its time goes."""

from collections.abc import Mapping

from planner.timeline import Process, Span, Timeline

__all__ = ["with_breakdown"]

_PROCESS = "prediction"
_ROW = "prediction: where the time goes"


def with_breakdown(
    timeline: Timeline, breakdown_s: Mapping[str, float], iteration_time_s: float, num_iterations: int
) -> Timeline:
    """Return a timeline with the prediction's terms before all else, in their order, inside each iteration.

    They sum to the iteration; their places on this row are not when they occur.
    """
    spans: list[Span] = []
    for index in range(num_iterations):
        start_s, end_s = index * iteration_time_s, (index + 1) * iteration_time_s
        shared = {"row": _ROW, "iteration": index, "kind": "prediction"}
        whole = {"seconds": iteration_time_s}
        spans.append(Span(name=f"iteration {index + 1}", start_s=start_s, end_s=end_s, args=whole, **shared))  # type: ignore[arg-type]
        for name, seconds in breakdown_s.items():
            until_s = min(start_s + seconds, end_s)
            if until_s > start_s:
                told = {"seconds": seconds}
                spans.append(Span(name=name, start_s=start_s, end_s=until_s, is_part=True, args=told, **shared))  # type: ignore[arg-type]
            start_s = max(until_s, start_s)
    return timeline._replace(
        spans=(*timeline.spans, *spans),
        rows=(_ROW, *timeline.rows),
        processes=(Process(name=_PROCESS, rows=(_ROW,)), *timeline.processes),
    )
