import gzip
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import faults_of

from planner.answer.timeline import (
    MOST_EVENTS,
    Trace,
    file_of,
    num_devices,
    of_each_kind,
    thinned,
    timeline_document,
    with_all,
    with_parts,
)
from planner.cases.forms.dag_model import Iteration, run, task_graph
from planner.errors import SpecError
from planner.models.input import Strategy
from planner.timeline import Counter, Flow, Process, Span, Timeline, repeated

times_s = st.floats(0, 3)
COLOURS = {"thread_state_running", "rail_response", "thread_state_iowait", "rail_animation", "cq_build_failed", "olive"}


def span(row: str, start_s: float, end_s: float, **more: Any) -> Span:
    return Span(row=row, name=f"{row} {start_s:g}", start_s=start_s, end_s=end_s, **more)


@given(st.lists(st.tuples(times_s, times_s, times_s), min_size=1, max_size=6), st.sampled_from(Strategy))
def test_what_is_written_is_a_valid_trace(layers: list[tuple[float, float, float]], strategy: Strategy) -> None:
    forward_s, backward_s, all_reduce_s = zip(*layers, strict=True)
    iteration = Iteration.layer_wise(
        forward_s=forward_s, backward_s=backward_s, all_reduce_s=all_reduce_s, read_s=1.7, copy_s=0.1, update_s=0.01
    )
    graph = task_graph(iteration, strategy, num_iterations=3, num_devices=3, is_expanded=True)
    done = run(graph)
    times = zip(done.tasks, done.schedule.start_s.tolist(), done.schedule.end_s.tolist(), strict=True)
    spans = [Span(row=task.resource, name=task.name, start_s=start_s, end_s=end_s) for task, start_s, end_s in times]
    index = {task: position for position, task in enumerate(done.tasks)}
    flows = [
        Flow(source=index[one], target=index[other])
        for one, other in graph.edges
        if set(one.layers) & set(other.layers) and one.resource != other.resource
    ]
    rows = dict.fromkeys(span.row for span in spans)
    assert faults_of(timeline_document(spans, flows, tuple(rows))) == []


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


def test_a_span_may_lie_in_another_and_one_that_overlaps_by_rounding_is_cut() -> None:
    third = 1 / 3
    spans = [
        span("a", 0, 1, kind="outer"),
        span("a", 0, third, is_part=True),
        span("a", third, 2 * third, is_part=True),
        span("a", 2 * third - 1e-12, 1 + 1e-12, is_part=True),
        span("a", 1 - 1e-12, 2),
    ]
    document = timeline_document(spans, [], ["a"])
    assert faults_of(document) == []
    ends = [event["ts"] + event["dur"] for event in document["traceEvents"] if event["ph"] == "X"]
    assert max(ends[:-1]) <= 1e6 + 1e-6
    assert ends[-1] == 2e6


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 1), st.floats(0, 1)), max_size=12))
def test_what_is_not_refused_nests(drawn: list[tuple[str, float, float]]) -> None:
    spans = [span(row, min(one, other), max(one, other)) for row, one, other in drawn]
    try:
        document = timeline_document(spans, [], ["a", "b"])
    except ValueError:
        pairs = [(a, b) for a in spans for b in spans if a is not b and a.row == b.row]
        assert any(a.start_s < b.start_s < a.end_s < b.end_s for a, b in pairs)
    else:
        assert faults_of(document) == []


def test_an_arrow_of_a_stream_leaves_while_its_target_runs() -> None:
    spans = [span("a", 0, 4), span("b", 1, 5), span("b", 6, 7)]
    stream = Flow(source=0, target=1, is_stream=True)
    document = timeline_document(spans, [stream], ["a", "b"])
    assert [event["ts"] for event in document["traceEvents"] if event["ph"] in "sf"] == [2e6, 2e6]
    with pytest.raises(ValueError, match="leads back"):
        timeline_document(spans, [Flow(source=2, target=0, is_stream=True)], ["a", "b"])


DEVICES = Timeline(
    spans=(
        Span(row="each of 3: run", name="work", start_s=0, end_s=2, kind="forward"),
        Span(row="each of 3: run", name="part", start_s=0, end_s=1, kind="layer", is_part=True),
        Span(row="net", name="send", start_s=2, end_s=3, kind="all_reduce"),
    ),
    flows=(Flow(source=0, target=2), Flow(source=1, target=2)),
    rows=("each of 3: run", "net"),
    processes=(
        Process(name="each of 3", rows=("each of 3: run",), count=3, member=("device ", "")),
        Process(name="net", rows=("net",)),
    ),
    counters=(Counter(process="each of 3", name="memory", points=((0.0, {"weights": 1.0}),)),),
)


def test_all_devices_have_a_process_rows_arrows_and_counters_of_their_own() -> None:
    every = with_all(DEVICES)
    assert num_devices(DEVICES) == num_devices(every) == 3
    assert every.rows == ("device 1: run", "device 2: run", "device 3: run", "net")
    document = timeline_document(*every)
    assert faults_of(document) == []
    phases = [event["ph"] for event in document["traceEvents"]]
    assert (phases.count("X"), phases.count("s"), phases.count("C")) == (7, 6, 3)
    assert {e["pid"] for e in document["traceEvents"] if e["ph"] == "C"} == {1, 2, 3}


def test_parts_go_with_their_arrows() -> None:
    plain = with_parts(DEVICES, has_parts=False)
    assert [span.name for span in plain.spans] == ["work", "send"]
    assert plain.flows == (Flow(source=0, target=1),)


def test_of_processes_of_a_kind_the_first_is_kept() -> None:
    rows = ("one: run", "two: run", "net")
    processes = (
        Process(name="one", rows=("one: run",), member=("one", ""), kind="worker"),
        Process(name="two", rows=("two: run",), member=("two", ""), kind="worker"),
        Process(name="net", rows=("net",)),
    )
    spans = tuple(span(row, 0, 1) for row in rows)
    both = Timeline(spans=spans, flows=(Flow(source=0, target=2, is_stream=True),), rows=rows, processes=processes)
    kept = of_each_kind(both)
    assert kept.rows == ("one: run", "net")
    assert kept.flows == (Flow(source=0, target=1, is_stream=True),)


def test_iterations_follow_each_other() -> None:
    three = repeated(DEVICES, 3, 3.0)
    assert [(one.start_s, one.iteration) for one in three.spans if one.name == "send"] == [(2, 0), (5, 1), (8, 2)]
    assert faults_of(timeline_document(*three)) == []
    with pytest.raises(ValueError, match="at least 1 iteration, not 0"):
        repeated(DEVICES, 0, 3.0)


@pytest.mark.parametrize("is_expanded", [False, True])
@pytest.mark.parametrize("most", [25, 40, 200])
def test_a_timeline_is_thinned_to_its_longest_spans_with_a_note(most: int, is_expanded: bool) -> None:
    spans = tuple(
        Span(row="each of 3: run", name=str(index), start_s=index, end_s=index + 1 - 0.01 * index)
        for index in range(30)
    )
    flows = tuple(Flow(source=index, target=index + 1) for index in range(29))
    many = DEVICES._replace(spans=spans, flows=flows)
    few = thinned(many, is_expanded=is_expanded, most=most)
    document = timeline_document(*(with_all(few) if is_expanded else few))
    assert faults_of(document) == []
    assert len(document["traceEvents"]) <= most
    names = [int(one.name) for one in few.spans]
    assert names == list(range(len(names)))  # the first ones are the longest
    is_whole = most == 200 and not is_expanded
    assert (few.notes == ()) == is_whole
    assert is_whole or f"of 30 spans the {30 - len(names)} shortest" in few.notes[0]


def test_rows_that_are_too_many_by_themselves_are_refused() -> None:
    with pytest.raises(ValueError, match="4 devices and links are too many"):
        thinned(DEVICES, is_expanded=True, most=10)


def test_a_file_has_all_rows_though_they_are_more_than_are_drawn_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.answer.timeline._FIRST_EVENTS", 10)

    def draw(most: int) -> Trace:
        try:
            return timeline_document(*with_all(thinned(DEVICES, is_expanded=True, most=most)))
        except ValueError as error:
            raise SpecError(str(error)) from None

    assert file_of(draw, is_packed=False)[1] == draw(MOST_EVENTS)
    monkeypatch.setattr("planner.answer.timeline.MOST_EVENTS", 12)
    with pytest.raises(SpecError, match="are too many to draw"):
        file_of(draw, is_packed=False)


@pytest.mark.parametrize("first", [100, 20_000])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_file_holds_no_more_than_20_mb_and_as_much_as_goes_into_it(
    is_packed: bool, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.answer.timeline.MOST_BYTES", 20_000)
    monkeypatch.setattr("planner.answer.timeline._FIRST_EVENTS", first)
    spans = [replace(span("a", index, index + (index % 7 + 1) / 10), name=f"{index**3}") for index in range(4000)]
    whole = Timeline(spans=tuple(spans), flows=(), rows=("a",))
    content, trace = file_of(
        lambda most: timeline_document(*thinned(whole, is_expanded=False, most=most)), is_packed=is_packed
    )
    assert 17_000 < len(content) <= 20_000
    assert json.loads(gzip.decompress(content) if is_packed else content) == trace
    assert "are left out" in trace["otherData"]["notes"][0]
    assert content == file_of(lambda most: trace, is_packed=is_packed)[0]
