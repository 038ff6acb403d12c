"""From a family's timeline to the document that is written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import SpecError
from planner.plan import Prediction
from planner.timeline import Timeline, timeline_document
from planner.timelines.breakdown import with_breakdown
from planner.timelines.devices import num_devices, of_each_kind, with_all, with_parts
from planner.timelines.measured import Measured, compared, with_measured
from planner.timelines.thin import MOST_EVENTS, thinned

__all__ = ["MOST_DRAWN", "MOST_ITERATIONS", "Drawn", "drawn_document"]

MOST_DRAWN = 64  # devices that are all drawn unless it is said otherwise
MOST_ITERATIONS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What is drawn: ``all`` devices, one of each of their ``kinds``, or None for what suits their number."""

    devices: str | None = None
    num_iterations: int = 1
    has_parts: bool = True
    most_events: int = MOST_EVENTS


def drawn_document(
    timeline: Timeline,
    prediction: Prediction,
    wanted: Drawn,
    *,
    about: Mapping[str, Any],
    measured: Measured | None = None,
) -> dict[str, Any]:
    """Return the trace of a family's timeline, which holds all iterations already.

    Raises
    ------
    SpecError
        If the rows alone are too many events.
    """
    number = num_devices(timeline)
    is_expanded = wanted.devices == "all" or (wanted.devices is None and number <= MOST_DRAWN)
    comparison = None if measured is None else compared(timeline, measured)
    found = timeline if is_expanded else of_each_kind(timeline)
    found = with_parts(found, has_parts=wanted.has_parts)
    if wanted.has_parts:
        terms, iteration_s = prediction.breakdown_s, prediction.iteration_time_s
        found = with_breakdown(found, terms, iteration_s, wanted.num_iterations)
    if measured is not None:
        found = with_measured(found, measured)
    try:
        found = thinned(found, is_expanded=is_expanded, most=wanted.most_events)
    except ValueError as error:
        raise SpecError(f"--trace-devices: {error} Write --trace-devices kinds.") from None
    if is_expanded:
        found = with_all(found)
    told = {
        **about,
        "iteration_time_s": prediction.iteration_time_s,
        "iterations": wanted.num_iterations,
        "num_devices": number,
        "devices": "all" if is_expanded else "one of each kind",
    }
    if comparison is not None:
        told["measured"] = comparison
    return timeline_document(*found, about=told)
