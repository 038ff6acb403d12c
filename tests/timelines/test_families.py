"""Every family's timeline: a valid trace that ends with the prediction, and whose slices are its terms."""

from collections.abc import Mapping
from typing import Any

import pytest
from hybrid_questions import MOE, TINY
from hybrid_questions import question as hybrid_question
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import every_shape, small_questions
from replicas import every_configuration, questions
from servers import question as server_question
from traces import by_row, end_s, faults_of, spans_of, sum_s

import planner
from planner.answer.timeline import Trace
from planner.api import configuration_of, timeline
from planner.errors import SpecError
from planner.families.hybrid.timeline import Line, StagePass, draw_line
from planner.families.parameter_server.cost import ParameterServerCost
from planner.families.parameter_server.timeline import Push, busy_spans
from planner.families.pipeline.cost import PipelineCost
from planner.families.timeline_drawing import Drawing
from planner.models.layouts import Schedule
from planner.plan import Configuration, Prediction
from planner.problem import Problem

NEAR = 2e-9  # seconds: times are written in nanoseconds
LAYERS: list[dict[str, Any]] = [
    {"name": name, "inputs": [before] if before else [], "forward": forward, "backward": backward, "parameters": size, "output": "1 MB"}
    for name, before, forward, backward, size in (
        ("a", "", "3 ms", "5 ms", "8 MB"),
        ("b", "a", "1 ms", "0 ms", "0 MB"),
        ("c", "b", "4 ms", "9 ms", "60 MB"),
        ("d", "c", "2 ms", "2 ms", "3 MB"),
    )
]  # fmt: skip


def drawn(problem: Problem, configuration: Configuration, family: str, **more: Any) -> tuple[Trace, Prediction]:
    """The trace of a configuration, which is valid, of equal bytes each time, and ends with the prediction."""
    prediction = planner.predict(problem, configuration)
    number = more.get("num_iterations", 1)
    for devices in ("all", "kinds"):
        document = timeline(problem, family, configuration, devices=devices, has_parts=True, **more)
        assert faults_of(document) == []
        assert document == timeline(problem, family, configuration, devices=devices, has_parts=True, **more)
        assert end_s(document) == pytest.approx(number * prediction.iteration_time_s, abs=number * NEAR)
        told = [event for event in document["traceEvents"] if event.get("cat") == "prediction"]
        terms = {name: value for name, value in prediction.breakdown_s.items() if value > NEAR}
        assert {one["name"]: one["args"]["seconds"] for one in told if one["name"] in terms} == terms
    return document, prediction


def asked(problem: Problem, **more: Any) -> tuple[Trace, Prediction, dict[str, list[dict[str, Any]]]]:
    """The trace of the configuration that a question holds."""
    family, configuration = configuration_of(problem)
    document, prediction = drawn(problem, configuration, family, **more)
    return document, prediction, by_row(document)


def last_s(events: list[dict[str, Any]], *kinds: str) -> float:
    """End of the last slice of some kinds."""
    return float(max(event["ts"] + event["dur"] for event in events if event["cat"] in kinds)) / 1e6


def near(value: float, parts: int = 1) -> Any:
    """A sum of so many slices, each rounded to nanoseconds."""
    return pytest.approx(value, abs=parts * NEAR)


# -- all-reduce --------------------------------------------------------------------------------------------------------

MACHINE: dict[str, Any] = {
    "name": "w", "count": 2, "devices": 2, "device": "v100-sxm2-16g", "inside": "nvlink-2", "network": "10 Gbit/s",
    "latency": "20 us",
}  # fmt: skip
SLOW: dict[str, Any] = {**MACHINE, "name": "s", "count": 1, "device": "p100"}
STORES: list[dict[str, Any]] = [{}, {"storage": {"bandwidth": "20 MB/s"}}, {"storage": {"bandwidth": "2 GB/s"}}]
CALIBRATIONS: list[dict[str, Any]] = [
    {},
    {"strategy": "naive"},
    {"strategy": "cntk"},
    {"negotiate": "2 ms"},
    {"wait": "exact", "timeout": "3 ms"},
    {"wait": "paper", "timeout": "3 ms"},
]


def all_reduce_question(
    store: Mapping[str, Any], calibration: Mapping[str, Any], machines: list[dict[str, Any]], **block: Any
) -> Problem:
    return planner.load(
        {
            "dnn": {
                "layers": LAYERS,
                "profile_batch": 4,
                "sample_bytes": "500 kB",
                "profile_device": "v100-sxm2-16g",
                "global_batch": 48,
            },
            "cluster": {"machines": [{**one, **store} for one in machines]},
            "calibration": dict(calibration),
            "configuration": {"all_reduce": block},
        }
    )


@given(
    st.sampled_from(STORES),
    st.sampled_from(CALIBRATIONS),
    st.sampled_from([1, 3]),
    st.sampled_from(["one", "none", {"buffer": "30 MB"}]),
    st.sampled_from([None, {"removed": 0.9, "time": "7 ms"}]),
    st.integers(1, 2),
)
@settings(max_examples=40, deadline=None)
def test_an_all_reduce_iteration_has_its_terms(
    store: dict[str, Any], calibration: dict[str, Any], steps: int, fusion: Any, compression: Any, number: int
) -> None:
    block = {"num_devices": 4, "gradient_accumulation_steps": steps, "fusion_groups": fusion}
    block |= {} if compression is None else {"compression": compression}
    problem = all_reduce_question(store, calibration, [MACHINE], **block)
    _, prediction, rows = asked(problem, num_iterations=number)
    terms, device = prediction.breakdown_s, rows["each of 4 devices: compute"]
    for kind, term in (("forward", "forward"), ("backward", "backward"), ("update", "update"), ("wait", "input_stall")):
        assert sum_s(device, kind) == near(number * terms[term], 2 * steps * number)
    assert sum_s(device, "compression") == near(number * terms.get("compression", 0.0), number)
    assert sum_s(device, "layer") == near(number * (terms["forward"] + terms["backward"]), 10 * steps * number)
    first = [event for event in rows["network"] if event["args"]["iteration"] == 0]
    exposed_s = sum(value for name, value in terms.items() if name.startswith("exposed_"))
    backward_end_s = last_s([event for event in device if event["args"]["iteration"] == 0], "backward")
    assert max(0.0, last_s(first, "all_reduce") - backward_end_s) == near(exposed_s, 3)
    sent = sum(event["args"]["bytes"] for event in first if event["cat"] == "all_reduce")
    assert sent == pytest.approx(prediction.details["gradient_bytes"] * (0.1 if compression else 1.0))
    input_s = prediction.details["input_s"]
    for row, term in (("disk", "read"), ("decode", "decode"), ("PCIe", "copy")):
        assert sum_s(rows.get(f"each of 4 devices: {row}", []), "input") == near(number * input_s[term], number)


@given(
    st.sampled_from(STORES), st.sampled_from(CALIBRATIONS), st.sampled_from([None, {"removed": 0.5, "time": "2 ms"}])
)
@settings(max_examples=15, deadline=None)
def test_unlike_devices_end_together(store: dict[str, Any], calibration: dict[str, Any], compression: Any) -> None:
    groups = {
        "w": {"machines": 2, "batch_per_device": 9, "gradient_accumulation_steps": 2},
        "s": {"machines": 1, "batch_per_device": 6},
    }
    block: dict[str, Any] = {"groups": groups, "fusion_groups": "none", "global_batch_size": 48}
    block |= {} if compression is None else {"compression": compression}
    problem = all_reduce_question(store, calibration, [MACHINE, SLOW], **block)
    _, prediction, rows = asked(problem)
    terms, slowest = prediction.breakdown_s, str(prediction.details["straggler"])
    row = next(events for name, events in rows.items() if name.startswith(slowest) and name.endswith("compute"))
    for term in ("forward", "backward"):
        assert sum_s(row, term) == near(terms[term], 4)
    assert sum_s(row, "wait") == near(terms["input_stall"], 2)
    exposed_s = sum(value for name, value in terms.items() if name.startswith("exposed_"))
    assert last_s(rows["network"], "all_reduce") - last_s(row, "backward") == near(exposed_s, 3)


# -- parameter servers -------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(["round_robin", "largest_first", "sliced"]),
    st.booleans(),
    st.integers(1, 3),
    st.sampled_from([None, {"removed": 0.75, "time": "4 ms"}]),
    st.sampled_from([{}, {"straggler_deviation": "3 ms"}, {"overhead": "1 ms", "strategy": "naive"}]),
)
@settings(max_examples=30, deadline=None)
def test_a_lockstep_iteration_of_servers_has_its_terms(
    placement: str, is_home: bool, servers: int, compression: Any, calibration: dict[str, Any]
) -> None:
    number = min(servers, 2) if is_home else servers
    block: dict[str, Any] = {
        "num_parameter_servers": number,
        "workers": {"fast": 2, "slow": 2},
        "servers": "fast" if is_home else "hosts",
        "co_located": is_home,
        "placement": placement,
    }
    block |= {} if compression is None else {"compression": compression}
    question = server_question(
        configuration={"parameter_server": block}, calibration={"utilisation": 0.5, **calibration}
    )
    problem = planner.load(question)
    _, prediction, rows = asked(problem)
    cost, terms = ParameterServerCost(problem, configuration_of(problem)[1]), prediction.breakdown_s  # type: ignore[arg-type]
    slow = next(events for name, events in rows.items() if name.startswith("slow") and name.endswith("compute"))
    fast = next(events for name, events in rows.items() if name.startswith("fast") and name.endswith("compute"))
    assert max(sum_s(row, "forward", "backward") for row in (slow, fast)) == near(
        terms["forward"] + terms["backward"], 2
    )
    assert sum_s(slow, "compression") == near(terms["compression"])
    assert sum_s(slow, "update") == near(terms["update"])
    assert sum_s(slow, "latency") == near(terms["latency"] + terms["queueing"], 2)
    assert sum_s(slow, "overhead") == near(terms["overhead"])
    assert sum_s(slow, "wait") == near(terms["stragglers"] + terms["pull"] + terms["input_stall"], 3)
    for index, ended_s in enumerate(prediction.details["server_push_end_s"]):
        received = rows.get(f"server {index}: receive", [])
        size = float(cost.pushed_bytes[:, index].sum() * cost.links.senders[index])
        assert sum(event["args"]["bytes"] for event in received) == pytest.approx(size)
        if received and not is_home:  # else what its own worker computes may come later
            assert last_s(received, "receive") == pytest.approx(ended_s + terms["compression"], rel=1e-6)
        if size:
            assert sum_s(rows[f"server {index}: send"], "pull") == near(terms["pull"])


def test_a_servers_link_is_busy_until_what_waits_is_through_and_carries_all_that_came() -> None:
    """Two workers of 5 B/s each overlap for 2 s on a link of 6 B/s: 8 B wait, then 6 B, which take another second."""
    pushes = [
        Push(start_s=0.0, end_s=4.0, span=None, size_bytes=[20.0], number=1),
        Push(start_s=2.0, end_s=6.0, span=None, size_bytes=[20.0], number=1),
        Push(start_s=10.0, end_s=12.0, span=None, size_bytes=[3.0], number=2),
        Push(start_s=16.0, end_s=16.0, span=None, size_bytes=[24.0], number=1),  # at once: its own worker's
        Push(start_s=18.0, end_s=20.0, span=None, size_bytes=[2.0], number=1),
    ]
    expected = [(0.0, 7.0, 40.0), (10.0, 12.0, 6.0), (16.0, 20.0 + 1 / 3, 26.0)]
    assert list(busy_spans(pushes, 0, 6.0)) == [pytest.approx(row, rel=1e-12) for row in expected]


@given(
    st.sampled_from([{"synchronisation": "asp"}, {"synchronisation": "ssp", "max_staleness": 2}, {"synchronisation": "local_sgd", "local_steps": 3}]),
    st.booleans(),
    st.sampled_from([0, 3]),
    st.integers(1, 3),
)  # fmt: skip
@settings(max_examples=15, deadline=None)
def test_a_stretch_without_a_barrier_shows_every_worker_all_the_time(
    synchronisation: dict[str, Any], is_home: bool, deviation_ms: int, number: int
) -> None:
    block = {
        "num_parameter_servers": 2,
        "workers": {"fast": 2, "slow": 2},
        "servers": "fast" if is_home else "hosts",
        "co_located": is_home,
        **synchronisation,
    }
    calibration = {"utilisation": 0.5, "straggler_deviation": f"{deviation_ms} ms"}
    problem = planner.load(server_question(configuration={"parameter_server": block}, calibration=calibration))
    family, configuration = configuration_of(problem)
    document, prediction = drawn(problem, configuration, family, num_iterations=number)
    every = timeline(problem, family, configuration, devices="all", num_iterations=number)
    rows, length_s = by_row(every), number * prediction.iteration_time_s
    names = {name.rpartition(":")[0] for name in rows if "worker" in name}
    assert len(names) == 4
    for worker in names:
        own = [event for name, events in rows.items() if name.startswith(f"{worker}:") for event in events]
        assert sum(event["dur"] for event in own) / 1e6 == near(length_s, len(own) + 1)
    kinds = {name.rpartition(":")[0] for name in by_row(document) if "worker" in name}
    assert len(kinds) == (3 if is_home else 2) - is_home  # workers beside a server, others of that group, slow ones


# -- model replicas ----------------------------------------------------------------------------------------------------


@given(questions(), st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_the_layers_of_a_replica_sum_to_the_terms(problem: Problem, which: int) -> None:
    found = [one for _, one in zip(range(200), every_configuration(problem), strict=False)]
    if not found:
        return
    document, prediction = drawn(problem, found[which % len(found)], "model_replicas")
    terms, events = prediction.breakdown_s, spans_of(timeline(problem, "model_replicas", found[which % len(found)]))
    del document
    layers = len(prediction.details["layers"])
    for term in ("forward", "backward", "receive_activations", "receive_errors"):
        assert sum_s(events, term) == near(terms[term], layers)
    assert sum_s(events, "update") == near(terms["update"] + terms["optimizer"], layers + 1)
    assert sum_s(events, "read", "write") == near(2 * (terms["read"] + terms["write"]), 4)  # at both ends
    assert sum_s(events, "latency", "overhead") == near(terms["latency"] + terms["overhead"], 3)
    assert sum_s(events, "wait") == near(terms["input_stall"])


# -- pipelines ---------------------------------------------------------------------------------------------------------


@given(small_questions(), st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_a_pipeline_is_drawn_as_it_is_simulated(question: dict[str, Any], which: int) -> None:
    problem = planner.load({**question, "fix": {}})
    cost = PipelineCost(problem)
    every = zip(range(300), every_shape(problem, cost), strict=False)
    shapes = [
        one for _, one in every if max(k.replicas for k in one.stages) * one.num_microbatches <= one.global_batch_size
    ]
    shape = shapes[which % len(shapes)]
    configuration = cost.configuration(shape)
    drawn(problem, configuration, "pipeline")
    document = timeline(problem, "pipeline", configuration, has_parts=True)
    run, rows = cost.run(shape), by_row(document)
    names = [name for name in rows if name.endswith(")")]
    counters = {event["pid"]: 0.0 for event in document["traceEvents"] if event["ph"] == "C"}
    for event in document["traceEvents"]:
        if event["ph"] == "C":
            counters[event["pid"]] = max(counters[event["pid"]], event["args"]["activations"])
    for index, (name, held) in enumerate(zip(names, cost.memory_bytes(shape), strict=True)):
        passes = 2 * shape.num_microbatches * shape.chunks_per_device
        assert sum_s(rows[name], "forward", "backward") == near(float(run.busy_s[index]), passes)
        assert sum_s(rows[name], "layer") == near(float(run.busy_s[index]), passes * cost.costs.num_layers)
        assert list(counters.values())[index] == pytest.approx(held["activations"])
    if shape.num_devices_in_line > 1:
        arrows = sum(event["ph"] == "s" for event in document["traceEvents"])
        assert arrows >= 2 * shape.num_microbatches * (len(shape.stages) - 1)


# -- hybrid ------------------------------------------------------------------------------------------------------------

LAYOUTS: list[dict[str, Any]] = [
    {"pipeline": 4, "data": 2},
    {"pipeline": 4, "data": 2, "schedule": "gpipe"},
    {"pipeline": 2, "data": 2, "interleave": 2},
    {"pipeline": 4, "data": 2, "schedule": "zb_h1"},
    {
        "pipeline": 2,
        "tensor": 2,
        "data": 2,
        "zero": 1,
        "overlap_data": True,
        "recompute": "full",
        "sequence_parallel": True,
    },
    {"data": 8, "zero": 3, "overlap_data": True},
    {"tensor": 4, "sequence_parallel": True, "microbatch": 2},
]
LAYER_PARTS = ("compute", "recompute", "tensor", "expert", "context", "launch")


@pytest.mark.parametrize("batch", [8, 32])
@pytest.mark.parametrize("block", LAYOUTS, ids=str)
@pytest.mark.parametrize("network", [TINY, MOE], ids=["dense", "experts"])
def test_a_layouts_schedule_has_its_terms(network: dict[str, Any], block: dict[str, Any], batch: int) -> None:
    more = {"expert": 2} if network is MOE and block.get("data", 1) > 1 else {}
    problem = hybrid_question(network, batch=batch, configuration={"hybrid": {"microbatch": 1, **block, **more}})
    asked(problem)
    family, configuration = configuration_of(problem)
    document, prediction = (
        timeline(problem, family, configuration, has_parts=True),
        planner.predict(problem, configuration),
    )
    terms, rows = prediction.breakdown_s, by_row(document)
    stages = [events for name, events in rows.items() if name.endswith(")")]
    assert len(stages) == block.get("pipeline", 1)
    number = sum(event["cat"] in LAYER_PARTS for event in stages[0]) + 10
    passes = ("forward", "backward", "weights", "pipeline")
    busiest = max(stages, key=lambda events: sum_s(events, *passes))
    # A step whose closed form is shorter than its replay is drawn by so much shorter; none of these is.
    assert not any("replay" in note for note in document["otherData"]["notes"])
    busy_s, filling_s = sum(terms[name] for name in LAYER_PARTS) + terms["pipeline"], prediction.details["filling_s"]
    sent_s = prediction.details["filling_transfers_s"]
    assert sum_s(busiest, *passes) == near(busy_s + sent_s, number)
    assert sum_s(busiest, "pipeline") == near(terms["pipeline"] + sent_s, number)
    if block.get("schedule") != "zb_h1":
        for name in LAYER_PARTS:
            shown_s = terms[name] + (filling_s - sent_s) * (name == "expert")
            assert sum_s(busiest, name) == near(shown_s, number)
    scheduled_s = max(last_s(events, *passes) for events in stages)
    assert scheduled_s - busy_s == near(terms["bubble"] - filling_s + sent_s, number)
    for events in stages:
        assert sum_s(events, "data") == near(terms["data"])
        assert sum_s(events, "optimizer") == near(terms["optimizer"])
        assert sum_s(events, "wait") == near(terms["input_stall"])
    peaks: dict[int, float] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "C":
            peaks[event["pid"]] = max(peaks.get(event["pid"], 0.0), sum(event["args"].values()))
    assert list(peaks.values()) == pytest.approx([row["memory_bytes"] for row in prediction.details["stages"]])


TWO_KINDS: dict[str, Any] = {"cluster": {"machines": [
    {"name": "old", "count": 1, "device": "h100-sxm", "devices": 2, "inside": "nvlink-4", "network": "100 Gbit/s", "latency": "5 us"},
    {"name": "new", "count": 1, "device": "a100-sxm4-80gb", "devices": 2, "inside": "nvlink-3", "network": "100 Gbit/s", "latency": "5 us"},
]}}  # fmt: skip
UNLIKE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"pipeline": 2, "data": 2, "stages": [{"layers": 1}, {"layers": 3}]}),
    (TWO_KINDS, {"pipeline": 2, "data": 2, "stages": [{"machines": "old", "layers": 1}, {"machines": "new", "layers": 3}]}),
    (TWO_KINDS, {"data": 4, "stages": [{"layers": 4}], "replicas": [
        {"machines": "old", "data": 2, "num_microbatches": 2}, {"machines": "new", "data": 2, "num_microbatches": 6}]}),
]  # fmt: skip


@pytest.mark.parametrize(("more", "block"), UNLIKE, ids=["cuts", "kinds", "replicas"])
def test_unlike_stages_and_replicas_have_their_terms(more: dict[str, Any], block: dict[str, Any]) -> None:
    problem = hybrid_question(batch=16, configuration={"hybrid": {"microbatch": 1, **block}}, **more)
    _, prediction, _ = asked(problem)
    family, configuration = configuration_of(problem)
    document, terms = timeline(problem, family, configuration, has_parts=True), prediction.breakdown_s
    stages = [events for name, events in by_row(document).items() if name.endswith(")")]
    assert len(stages) == len(prediction.details["stages"])
    passes = ("forward", "backward", "pipeline")
    scheduled_s = max(last_s(events, *passes) for events in stages)
    behind_s = terms["data"] + terms["optimizer"] + terms["input_stall"]
    assert scheduled_s == near(prediction.iteration_time_s - behind_s, 3)
    for events, row in zip(stages, prediction.details["stages"], strict=True):
        assert sum_s(events, "data") == near(row["exchange_s"])
        assert sum_s(events, "optimizer") == near(row["optimizer_s"])
    number = sum(len(events) for events in stages)
    busy_s = sum(terms[name] for name in LAYER_PARTS) + terms["pipeline"]
    sums = [sum_s(events, *passes) for events in stages]
    assert min(abs(one - busy_s) for one in sums) < number * NEAR


def test_a_schedule_whose_closed_form_is_shorter_than_its_replay_is_shortened_and_says_so() -> None:
    one = StagePass(seconds=1.0, sent_s=0.0, parts_s={"compute": 0.75, "tensor": 0.25})
    line = Line(
        names=["a", "b"],
        forward=[[one], [one]],
        backward=[[one], [one]],
        num_microbatches=2,
        schedule=Schedule.ONE_F_ONE_B,
    )
    drawings = {seconds: Drawing() for seconds in (None, 5.7)}
    for seconds, drawing in drawings.items():
        drawing.process("a", ["a"])
        drawing.process("b", ["b"])
        counts = draw_line(drawing, line, seconds)
        assert [change for _, change in counts[0]] == [1, 1, -1, -1]
    plain, shorter = (drawing.finished() for drawing in drawings.values())
    assert max(span.end_s for span in plain.spans) == 6
    assert plain.notes == ()
    assert shorter.notes == ("times of the schedule are 0.95 of the replay's, as the closed form has it",)
    assert [span.end_s for span in shorter.spans] == pytest.approx([0.95 * span.end_s for span in plain.spans])
    assert sum(span.end_s - span.start_s for span in plain.spans if span.kind == "tensor") == pytest.approx(8 * 0.25)


def test_parts_of_many_micro_batches_are_left_out_and_too_many_are_refused() -> None:
    block = {"hybrid": {"pipeline": 4, "data": 2, "microbatch": 1}}
    tiny = {**TINY, "hidden": 64, "sequence_length": 64}
    problem = hybrid_question(tiny, batch=20_000, configuration=block)
    family, configuration = configuration_of(problem)
    document = timeline(problem, family, configuration, has_parts=True)
    assert "there are too many micro-batches to draw what stands inside" in str(document["otherData"]["notes"])
    assert end_s(document) == pytest.approx(document["otherData"]["iteration_time_s"], abs=NEAR)
    problem = hybrid_question(tiny, batch=200_000, configuration=block)
    family, configuration = configuration_of(problem)
    with pytest.raises(
        SpecError, match=r"100000 micro-batches through 4 stages are too many tasks to draw\. Take 62500"
    ):
        timeline(problem, family, configuration)
