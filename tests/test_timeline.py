import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.models.ssgd_dag import timeline
from planner.models.ssgd_equations import Iteration, Strategy
from planner.timeline import Flow, Span, timeline_document

times_s = st.floats(0, 3)
COLOURS = {"thread_state_running", "rail_response", "thread_state_iowait", "rail_animation", "cq_build_failed", "olive"}


def span(row: str, start_s: float, end_s: float, **more: Any) -> Span:
    return Span(row=row, name=f"{row} {start_s:g}", start_s=start_s, end_s=end_s, **more)


def faults_of(document: dict[str, Any]) -> list[str]:
    """What a viewer would draw wrongly, by the rules of the Trace Event Format: found from the JSON alone."""
    events = json.loads(json.dumps(document, allow_nan=False))["traceEvents"]
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    timed = [event for event in events if event["ph"] != "M"]
    faults = [f"{event['name']}: no row" for event in timed if event["tid"] not in named]
    faults += ["not sorted" for one, other in pairwise(timed) if other["ts"] < one["ts"]]
    slices = defaultdict(list)
    for event in timed:
        if event["ph"] == "X":
            slices[event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    for on_row in slices.values():
        on_row.sort()
        faults += [f"{other[2]} overlaps" for one, other in pairwise(on_row) if other[0] < one[1] - 1e-4]
    arrows = defaultdict(list)
    for event in timed:
        if event["ph"] in "sf":
            arrows[event["id"]].append(event)
            if not any(start <= event["ts"] <= end for start, end, _ in slices[event["tid"]]):
                faults.append(f"arrow {event['id']} is bound to no slice")
    for ends in arrows.values():
        if [end["ph"] for end in ends] != ["s", "f"] or ends[1].get("bp") != "e" or ends[0]["name"] != ends[1]["name"]:
            faults.append(f"arrow {ends[0]['id']} is not one arrow")
    return faults


@given(st.lists(st.tuples(times_s, times_s, times_s), min_size=1, max_size=6), st.sampled_from(Strategy))
def test_what_is_written_is_a_valid_trace(layers: list[tuple[float, float, float]], strategy: Strategy) -> None:
    forward_s, backward_s, all_reduce_s = zip(*layers, strict=True)
    iteration = Iteration.layer_wise(
        forward_s=forward_s, backward_s=backward_s, all_reduce_s=all_reduce_s, read_s=1.7, copy_s=0.1, update_s=0.01
    )
    assert faults_of(timeline_document(*timeline(iteration, strategy, num_devices=3, is_expanded=True))) == []


def test_the_validator_finds_what_is_wrong() -> None:
    spans = [span("a", 0, 2), span("b", 2, 3)]
    document = timeline_document(spans, [Flow(source=0, target=1)], ["a", "b"])
    assert faults_of(document) == []
    events = document["traceEvents"]
    first = next(event for event in events if event["ph"] == "X")
    assert faults_of({"traceEvents": [*events, {**first, "ts": 1e6}]}) == ["not sorted", "a 0 overlaps"]
    assert faults_of({"traceEvents": [event for event in events if event["name"] != "b 2"]}) == [
        "arrow 0 is bound to no slice"
    ]
    assert faults_of({"traceEvents": [event for event in events if event["ph"] != "f"]}) == ["arrow 0 is not one arrow"]


def test_rows_come_in_the_order_given_and_are_named() -> None:
    events = timeline_document([], [], ["z", "a"])["traceEvents"]
    assert [event["args"]["name"] for event in events if event["name"] == "thread_name"] == ["z", "a"]
    order = [event["args"]["sort_index"] for event in events if event["name"] == "thread_sort_index"]
    assert order == sorted(order)
    assert all("ts" not in event for event in events)


def test_times_are_microseconds_and_iterations_differ_in_colour() -> None:
    spans = [span("a", 0.5 * index, 0.5 * index + 0.25, iteration=index, kind="computation") for index in range(7)]
    events = [event for event in timeline_document(spans, [], ["a"])["traceEvents"] if event["ph"] == "X"]
    assert (events[1]["ts"], events[1]["dur"], events[1]["cat"]) == (500_000, 250_000, "computation")
    assert events[1]["args"] == {"iteration": 1}
    assert {event["cname"] for event in events} == COLOURS
    assert events[0]["cname"] == events[6]["cname"]


def test_an_arrow_ends_inside_its_spans_where_another_span_touches_them() -> None:
    spans = [span("a", 0, 2), span("a", 2, 4), span("b", 2, 4)]
    events = timeline_document(spans, [Flow(source=0, target=2)], ["a", "b"])["traceEvents"]
    assert [(event["ph"], event["ts"]) for event in events if event["ph"] in "sf"] == [("s", 1e6), ("f", 3e6)]


def test_a_span_of_no_length_may_bear_an_arrow() -> None:
    spans = [span("a", 1, 1), span("b", 1, 1)]
    assert faults_of(timeline_document(spans, [Flow(source=0, target=1)], ["a", "b"])) == []


@pytest.mark.parametrize(
    ("spans", "flows", "rows", "message"),
    [
        ([span("c", 0, 1)], [], ["a", "b"], "'c 0' is on row 'c', which is not among a, b"),
        ([span("a", 2, 1)], [], ["a"], "'a 2' runs from 2 s to 1 s"),
        ([span("a", -1, 1)], [], ["a"], "runs from -1 s to 1 s"),
        ([span("a", 0, float("inf"))], [], ["a"], "to inf s"),
        ([span("a", 0, 2), span("a", 1, 3)], [], ["a"], "on row 'a', 'a 1' starts at 1 s, but 'a 0' ends at 2 s"),
        ([], [], ["a", "a"], "rows must differ: a, a"),
        ([span("a", 0, 1)], [Flow(source=0, target=1)], ["a"], "from span 0 to 1, but there are 1 spans"),
        (
            [span("a", 0, 2), span("b", 1, 3)],
            [Flow(source=0, target=1)],
            ["a", "b"],
            "leads back: 'a 0' ends at 2 s, 'b 1' starts at 1 s",
        ),
    ],
)
def test_what_would_be_drawn_wrongly_is_refused(
    spans: list[Span], flows: list[Flow], rows: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        timeline_document(spans, flows, rows)
