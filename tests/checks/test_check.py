"""The checker: it passes what plans say of themselves, and finds every number that was tampered with."""

import copy
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import CaptureFixture, MonkeyPatch

import planner
from planner import channel
from planner.checks import all_reduce, check, check_file, model_replicas, parameter_server, pipeline, report_text
from planner.checks.facts import Facts
from planner.checks.limits import limits_kept
from planner.cli.run import run
from planner.cost import Affine, Wait
from planner.documents import MODELS, dump, plan_document
from planner.errors import SpecError
from planner.families import FAMILIES
from planner.families.answer import plan_of
from planner.models.server_links import Links, push_end_s
from planner.problem import Limits, Problem, Range

LAYERS = [
    {"name": "data", "kind": "input", "output": "40 kB"},
    {"name": "one", "inputs": ["data"], "multiply_adds": 2e7, "parameters": "2 MB", "output": "400 kB"},
    {"name": "two", "inputs": ["one"], "multiply_adds": 3e7, "parameters": "1 MB", "output": "200 kB"},
    {"name": "three", "inputs": ["two"], "multiply_adds": 1e7, "parameters": "500 kB", "output": "4 kB"},
]
BLOCKS: dict[str, dict[str, Any]] = {
    "all_reduce": {"num_devices": 8},
    "parameter_server": {"num_parameter_servers": 2, "co_located": True, "batch_shares": {"machines-0": 4}},
    "pipeline": {"stages": [{"first": "data", "last": "one", "replicas": 3}, {"first": "two", "last": "three"}], "num_microbatches": 4},
    "model_replicas": {"num_parameter_servers": 1, "num_replicas": 1, "num_workers_per_replica": 2},
}  # fmt: skip


def question(devices: int = 2, **changes: Any) -> dict[str, Any]:
    """Four machines, a network of three layers with weights, a batch of 32."""
    device = {"name": "toy", "fp32": "1 TFLOP/s", "memory": "1 GiB"}
    machine = {"count": 4, "devices": devices, "device": device, "network": "10 Gbit/s", "latency": "20 us"}
    machine |= {"inside": "pcie-3-x16"} if devices > 1 else {}
    machine |= {"storage": {"bandwidth": "200 MB/s", "shared": True}, "host_link": "1 GB/s"}
    asked = {
        "dnn": {"layers": LAYERS, "global_batch": 32, "dataset_samples": 10_000, "epochs": 3},
        "cluster": {"machines": [machine]},
        "calibration": {"update": "100 us", "bandwidth_efficiency": 0.9, "overhead": "5 us"},
    }
    return {**asked, **changes}


@cache
def document_of(family: str) -> str:
    """The JSON of a plan of the family: a given configuration, called optimal, as its own bound."""
    asked = question(1 if family == "model_replicas" else 2, configuration={family: BLOCKS[family]})
    if family == "model_replicas":
        asked["dnn"] = {"zoo": "adam-mnist", "global_batch": 32}
    return dump(plan_document(given_plan(planner.load(asked))))


def given_plan(problem: Problem) -> Any:
    """A plan of the configuration that the question holds."""
    assert problem.configuration is not None
    family, block = problem.configuration
    configuration = FAMILIES[family].configuration_of(problem, block)
    prediction = FAMILIES[family].predict(problem, configuration)
    resolved = {key: value for key, value in problem.resolved.items() if key != "configuration"}
    found = plan_of(
        replace(problem, resolved=resolved),
        family=family,
        configuration=configuration,
        prediction=prediction,
        bound=prediction.value_of(problem.goal),
        explanation=(),
        solver="none",
    )
    return replace(found, provenance=replace(found.provenance, input_digest=digest(resolved)))


def digest(asked: Any) -> str:
    """The digest of a question, as plans carry it."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:16]


def checked(document: dict[str, Any]) -> Any:
    """The report on a document, its question read from itself."""
    return check(planner.load(document["problem"]), document)


@pytest.mark.parametrize("family", sorted(BLOCKS))
def test_what_predict_says_of_a_given_configuration_passes(family: str) -> None:
    report = checked(json.loads(document_of(family)))
    assert report.is_ok, report_text(report)
    assert MODELS["check"].model_validate(report.to_document())
    names = {one.name for one in report.findings}
    assert {"objective", "bound", "gap", "status", "breakdown_s sums up", "batch", "second opinion"} <= names


LINE = [
    {"first": "data", "last": "data"},
    {"first": "one", "last": "one"},
    {"first": "two", "last": "two"},
    {"first": "three", "last": "three"},
]


@pytest.mark.parametrize(
    ("family", "block"),
    [
        ("all_reduce", {"num_devices": 6, "gradient_accumulation_steps": 2, "fusion_groups": "none"}),
        ("all_reduce", {"num_devices": 8, "compression": {"removed": 0.5, "time": "1 ms"}, "fusion_groups": "one"}),
        ("all_reduce", {"num_devices": 1}),
        ("parameter_server", {"num_parameter_servers": 1, "compression": {"removed": 0.25, "time": "1 ms"}}),
        ("parameter_server", {"num_parameter_servers": 3, "co_located": True, "placement": "sliced"}),
        ("parameter_server", {"num_parameter_servers": 2, "placement": "largest_first"}),
        ("pipeline", {"stages": [*LINE[:3], {**LINE[3], "replicas": 3}], "num_microbatches": 8, "schedule": "gpipe"}),
        ("pipeline", {"stages": LINE, "num_microbatches": 7}),
        ("pipeline", {"stages": LINE, "num_microbatches": 6, "schedule": "interleaved", "chunks_per_device": 2}),
        ("pipeline", {"stages": [{"first": "data", "last": "three", "replicas": 8}], "num_microbatches": 1}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("strategy", ["caffe_mpi", "mxnet", "cntk", "naive"])
def test_other_configurations_pass_too_whatever_the_framework_overlaps(
    family: str, block: dict[str, Any], strategy: str
) -> None:
    asked = question(configuration={family: block})
    asked["calibration"] = {**asked["calibration"], "strategy": strategy, "wait": "paper"}
    problem = planner.load(asked)
    report = check(problem, given_plan(problem))
    assert report.is_ok, report_text(report)
    assert "second opinion" in {one.name for one in report.findings}


def test_unlike_devices_pass_with_unequal_shares() -> None:
    fast, slow = {"name": "fast", "fp32": "3 TFLOP/s"}, {"name": "slow", "fp32": "1 TFLOP/s"}
    link = {"devices": 2, "inside": "pcie-3-x16", "network": "10 Gbit/s", "latency": "20 us"}
    machines = [{"name": name, "count": 2, "device": device, **link} for name, device in (("a", fast), ("b", slow))]
    groups = {
        "a": {"machines": 2, "batch_per_device": 6},
        "b": {"machines": 1, "batch_per_device": 4, "gradient_accumulation_steps": 2},
    }
    asked = question(cluster={"machines": machines}, configuration={"all_reduce": {"groups": groups}})
    problem = planner.load(asked)
    report = check(problem, given_plan(problem))
    assert report.is_ok, report_text(report)
    assert "second opinion" in {one.name for one in report.findings}


# -- tampering -----------------------------------------------------------------------------------------------------


def put(*path: str | int, value: Any = None, times: float | None = None) -> Callable[[dict[str, Any]], None]:
    """A change of one value of a document."""

    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = document[path[-1]] * times if times is not None else value

    return change


def asked_for(section: str, key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of the question for which the plan is then said to be made: only the plan's decisions give it away."""

    def change(document: dict[str, Any]) -> None:
        document["problem"].setdefault(section, {})[key] = value
        document["provenance"]["input_digest"] = digest(document["problem"])

    return change


def without_a_tensor(document: dict[str, Any]) -> None:
    document["configuration"]["fusion_groups"][0]["tensors"].pop()


def with_a_tensor_twice(document: dict[str, Any]) -> None:
    document["configuration"]["fusion_groups"][-1]["tensors"].append("three")


def with_only(document: dict[str, Any]) -> None:
    document["problem"]["families"] = ["pipeline"]
    document["provenance"]["input_digest"] = digest(document["problem"])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (put("objective", "value", times=1.01), "objective"),
        (put("objective", "value", times=0.99), "bound"),
        (put("objective", "bound", times=1.0001), "bound"),
        (put("objective", "bound", times=0.9), "gap"),
        (put("objective", "bound", times=0.9), "status"),
        (put("objective", "gap", value=0.2), "gap"),
        (put("objective", "name", value="iteration_time_s"), "goal"),
        (put("status", value="feasible"), "status"),
        (put("prediction", "iteration_time_s", times=0.999), "prediction"),
        (put("prediction", "scaling_factor", value=1.0), "prediction"),
        (put("prediction", "breakdown_s", "backward", times=0.9), "breakdown_s"),
        (put("prediction", "breakdown_s", "update", value=0.0), "breakdown_s sums up"),
        (put("prediction", "memory_bytes", "total", times=0.5), "memory_bytes"),
        (put("prediction", "memory_bytes", "weights", times=0.5), "memory_bytes sums up"),
        (put("prediction", "details", "schedule", 0, "start_s", value=0.0), "details"),
        (put("family", value="pipeline"), "configuration"),
        (put("family", value="magic"), "families"),
        (put("configuration", "num_devices", value=16), "configuration"),
        (put("configuration", "global_batch_size", value=31), "batch"),
        (put("configuration", "gradient_accumulation_steps", value=2), "details"),
        (put("configuration", "fusion_groups", 0, "algorithm", value="tree"), "objective"),
        (put("substitutions", value=["head"]), "substitutions"),
        (put("problem", "dnn", "global_batch", value=64), "question"),
        (put("problem", "cluster", "machines", 0, "network", value="40 Gbit/s"), "question"),
        (without_a_tensor, "configuration"),
        (with_a_tensor_twice, "configuration"),
        (with_only, "families"),
        (asked_for("constraints", "memory_per_device", "1 MiB"), "memory machines-0"),
        (asked_for("constraints", "machines", {"at_most": 3}), "constraints.machines"),
        (asked_for("constraints", "devices", {"exactly": 7}), "constraints.devices"),
        (asked_for("constraints", "deadline", "1 ms"), "constraints.deadline"),
        (asked_for("fix", "num_devices", 4), "fix.num_devices"),
        (asked_for("fix", "num_stages", 2), "fix.num_stages"),
        (asked_for("dnn", "global_batch", 64), "batch"),
    ],
)  # fmt: skip
def test_every_number_that_was_tampered_with_is_found(change: Callable[[dict[str, Any]], None], name: str) -> None:
    document = json.loads(document_of("all_reduce"))
    change(document)
    report = checked(document)
    assert name in {one.name for one in report.faults}, report_text(report)
    assert "FAIL" in report_text(report)


LEAVES: list[Any] = [None, "x", True, -1, 0, 1e308, 10**400, float("nan"), float("-inf"), [], {}]


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every part of a document, whole lists and mappings included."""
    if path:
        yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places(part, (*path, key))


@cache
def with_a_loser(family: str) -> str:
    """The JSON of the plan of a family, and of itself as an alternative."""
    document = json.loads(document_of(family))
    document["alternatives"] = [
        {
            "name": "itself",
            "family": family,
            "objective": document["objective"]["value"],
            "relative_loss": 0.0,
            "reason": "it ties",
            "configuration": copy.deepcopy(document["configuration"]),
            "substitutions": [],
        }
    ]
    return json.dumps(document)


@pytest.mark.parametrize("family", sorted(BLOCKS))
@settings(max_examples=80)
@given(st.data())
def test_whatever_stands_in_a_field_there_is_a_verdict_or_a_fault(family: str, data: st.DataObject) -> None:
    document = json.loads(with_a_loser(family))
    path = data.draw(st.sampled_from(list(places(document))))
    section = data.draw(st.sampled_from([path, path[:1], path[:2]]))  # deep lists would be drawn nearly always
    put(*section, value=data.draw(st.sampled_from(LEAVES)))(document)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(document, file)
        file.flush()
        try:
            report = check_file(Path(file.name))
        except SpecError as error:
            assert error.faults  # anything else that is raised fails this test
            for fault in error.faults:  # a question may name another file, which is then the one that is at fault
                assert fault.problem
                assert fault.file == file.name or fault.field.startswith("problem")
            return
    if section[0] in ("objective", "prediction", "configuration", "status", "family", "problem"):
        unchanged = json.loads(with_a_loser(family))
        assert not report.is_ok or document[section[0]] == unchanged[section[0]] or section[-1] in SILENT, section


# What the objective does not rest on and nothing else in the plan repeats.
SILENT = {"relative_error"}


@pytest.mark.parametrize(
    ("family", "path"),
    [
        ("all_reduce", ("prediction", "memory_bytes", "weights")),
        ("all_reduce", ("prediction", "details", "schedule", 0, "size_bytes")),
        ("all_reduce", ("configuration", "num_machines")),
        ("all_reduce", ("configuration", "devices_per_machine")),
        ("all_reduce", ("configuration", "fusion_groups", 0, "size_bytes")),
        ("parameter_server", ("configuration", "batch_shares")),
        ("pipeline", ("configuration", "global_batch_size")),
        ("pipeline", ("configuration", "stages", 0, "machines")),
        ("model_replicas", ("configuration", "layers", 0, "threads")),
        ("model_replicas", ("configuration", "samples_per_read")),
    ],
)
def test_a_null_where_a_figure_belongs_fails(family: str, path: tuple[str | int, ...]) -> None:
    document = json.loads(document_of(family))
    put(*path)(document)
    report = checked(document)
    assert not report.is_ok
    assert any(str(path[-1]) in one.text or "null" in one.text for one in report.faults), report_text(report)


@pytest.mark.parametrize("value", [{}, [], "x", True])
def test_a_detail_of_another_kind_fails(value: Any) -> None:
    document = json.loads(document_of("all_reduce"))
    put("prediction", "details", "schedule", 0, "size_bytes", value=value)(document)
    assert "details" in {one.name for one in checked(document).faults}


# -- what lost -----------------------------------------------------------------------------------------------------


def with_losers(family: str, plan: dict[str, Any], *others: dict[str, Any], **limits: Any) -> dict[str, Any]:
    """The document of a given configuration, called optimal, and of others that are said to have lost to it."""
    documents: list[dict[str, Any]] = []
    for block in (plan, *others):
        asked = question(configuration={family: block}, constraints=limits)
        documents.append(json.loads(dump(plan_document(given_plan(planner.load(asked))))))
    first = documents[0]
    first["alternatives"] = [
        {
            "name": "another",
            "family": family,
            "objective": one["objective"]["value"],
            "relative_loss": one["objective"]["value"] / first["objective"]["value"] - 1,
            "reason": "",
            "configuration": one["configuration"],
            "substitutions": [],
        }
        for one in documents[1:]
    ]
    return first


SERVERS = {"num_parameter_servers": 1, "workers": {"machines-0": 2}}


def test_an_alternative_that_is_better_than_the_plan_fails() -> None:
    many, few = {"num_devices": 8}, {"num_devices": 2}
    assert checked(with_losers("all_reduce", many, few)).is_ok
    report = checked(with_losers("all_reduce", few, many))
    assert [one.name for one in report.faults] == ["ranking"], report_text(report)
    assert "less than the bound" in report_text(report)
    document = with_losers("all_reduce", few, many)
    put("objective", "bound", value=0.0)(document)  # then only the plan itself is in its way
    put("objective", "gap", value=1.0)(document)
    put("status", value="feasible")(document)
    report = checked(document)
    assert [one.name for one in report.faults] == ["ranking"], report_text(report)
    assert "less than the plan's" in report_text(report)


def test_an_alternative_without_a_configuration_is_ranked_by_what_it_states() -> None:
    document = with_losers("all_reduce", {"num_devices": 8}, {"num_devices": 2})
    put("alternatives", 0, "configuration")(document)
    assert checked(document).is_ok
    put("alternatives", 0, "objective", value=document["objective"]["value"] / 2)(document)
    put("alternatives", 0, "relative_loss", value=-0.5)(document)
    assert [one.name for one in checked(document).faults] == ["ranking"]


def test_an_alternative_that_ties_but_for_rounding_passes() -> None:
    document = with_losers("all_reduce", {"num_devices": 8}, {"num_devices": 8})
    put("alternatives", 0, "objective", times=1 - 1e-10)(document)
    put("alternatives", 0, "relative_loss", value=-1e-10)(document)
    assert checked(document).is_ok


def test_an_asynchronous_alternative_is_not_ranked_with_a_synchronous_plan() -> None:
    stale = {**SERVERS, "synchronisation": "local_sgd", "local_steps": 4}
    document = with_losers("parameter_server", SERVERS, stale, max_staleness=3)
    assert document["alternatives"][0]["objective"] < document["objective"]["bound"]
    report = checked(document)
    assert report.is_ok, report_text(report)
    two = {**SERVERS, "num_parameter_servers": 2}
    report = checked(with_losers("parameter_server", SERVERS, two))
    assert [one.name for one in report.faults] == ["ranking"], report_text(report)
    slow = {**two, "synchronisation": "local_sgd", "local_steps": 2}
    report = checked(with_losers("parameter_server", slow, stale, max_staleness=3))  # both are asynchronous
    assert [one.name for one in report.faults] == ["ranking"], report_text(report)


def test_an_alternative_that_costs_something_else_fails() -> None:
    document = with_losers("all_reduce", {"num_devices": 8}, {"num_devices": 2})
    put("alternatives", 0, "objective", times=2.0)(document)
    put("alternatives", 0, "relative_loss", value=2 * (document["alternatives"][0]["relative_loss"] + 1) - 1)(document)
    assert [one.name for one in checked(document).faults] == ["alternatives.0"]
    put("alternatives", 0, "configuration", "num_devices", value=10**6)(document)
    assert "alternatives.0" in {one.name for one in checked(document).faults}


# The configuration is also refused where it is rebuilt; these look at what the checker itself makes of the block.
@pytest.mark.parametrize(
    ("family", "change", "name"),
    [
        ("all_reduce", put("fusion_groups", 0, "tensors", value=["one"]), "gradients"),
        ("all_reduce", put("fusion_groups", 0, "size_bytes", value=1.0), "fusion_groups.0"),
        ("all_reduce", put("num_machines", value=5), "machines machines-0"),
        ("all_reduce", put("devices_per_machine", value=3), "devices machines-0"),
        ("all_reduce", put("num_devices", value=7), "devices in all"),
        ("all_reduce", put("global_batch_size", value=7), "shares"),
        ("parameter_server", put("workers", "machines-0", value=5), "machines machines-0"),
        ("parameter_server", put("batch_shares", "machines-0", value=3), "shares"),
        ("parameter_server", put("placement", value={"one": 0, "two": 1}), "placement"),
        ("parameter_server", put("placement", value={"one": 0, "two": 1, "three": 2}), "placement"),
        ("parameter_server", put("co_located", value=False), "machines machines-0"),
        ("parameter_server", put("synchronisation", value="asp"), "constraints.max_staleness"),
        ("pipeline", put("stages", 1, "first", value="three"), "layers"),
        ("pipeline", put("stages", 0, "last", value="two"), "layers"),
        ("pipeline", put("stages", 0, "replicas", value=8), "machines machines-0"),
        ("pipeline", put("num_microbatches", value=33), "schedule"),
        ("pipeline", put("chunks_per_device", value=2), "schedule"),
        ("pipeline", put("global_batch_size", value=31), "batch"),
        ("model_replicas", put("num_replicas", value=2), "constraints.max_staleness"),
        ("model_replicas", put("num_workers_per_replica", value=4), "machines machines-0"),
        ("model_replicas", put("layers", 0, "threads", value=2), "layers.0"),
        ("model_replicas", put("layers", 0, "workers", value=[[0, 0]]), "layers.0"),
    ],
)
def test_a_broken_configuration_is_told_by_the_checkers_own_code(
    family: str, change: Callable[[dict[str, Any]], None], name: str
) -> None:
    problem, block, found = rebuilt(family)
    change(block)
    facts = FACTS[family](problem, block, found)
    faults = {one.name for one in (*facts.findings, *limits_kept(problem, family, facts, found)) if not one.is_ok}
    assert name in faults


FACTS = {
    "all_reduce": all_reduce.facts_of,
    "parameter_server": parameter_server.facts_of,
    "pipeline": pipeline.facts_of,
    "model_replicas": model_replicas.facts_of,
}


def rebuilt(family: str) -> tuple[Problem, dict[str, Any], Any]:
    """The question, block and prediction of a plan."""
    document = json.loads(document_of(family))
    problem = planner.load(document)
    return problem, document["configuration"], planner.predict(problem)


def test_the_limits_are_judged_by_what_is_used() -> None:
    problem, _, found = rebuilt("all_reduce")
    facts = Facts(
        machines={"machines-0": 2}, devices={"machines-0": 4}, memory_bytes={"machines-0": 2.0**20},
        decisions={"num_devices": 4}, global_batch_size=32, staleness=2.0,
    )  # fmt: skip
    limits = Limits(devices=Range(least=5), machines=Range(most=1), memory_per_device_bytes=2.0**19, max_staleness=1)
    tight = replace(problem, limits=limits, fixed={"num_devices": 5}, families=("pipeline",))
    faults = {one.name for one in limits_kept(tight, "all_reduce", facts, found) if not one.is_ok}
    assert faults == {
        "families",
        "constraints.machines",
        "constraints.devices",
        "memory machines-0",
        "constraints.max_staleness",
        "fix.num_devices",
    }


# -- the second opinion --------------------------------------------------------------------------------------------


def test_a_cost_model_that_forgets_the_queue_is_found(monkeypatch: MonkeyPatch) -> None:
    asked = question(configuration={"all_reduce": {"num_devices": 8, "fusion_groups": "none"}})
    honest = channel.schedule

    def without_queue(ends: Any, ready_s: Any, sizes: Any, cost: Any, **options: Any) -> Any:
        found = honest(ends, ready_s, sizes, cost, **options)
        seconds = found.end_s - found.start_s
        return replace(found, start_s=found.ready_s, end_s=found.ready_s + seconds)

    problem = planner.load(asked)
    assert check(problem, given_plan(problem)).is_ok
    monkeypatch.setattr(channel, "schedule", without_queue)
    report = check(problem, given_plan(problem))
    assert [one.name for one in report.faults] == ["second opinion"]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=6),
    st.sampled_from(list(Wait)),
    st.sampled_from([float("inf"), 0.0, 2.5]),
    st.data(),
)
def test_the_channel_replayed_agrees_with_the_schedule(
    tensors: list[tuple[int, int]], wait: Wait, timeout_s: float, data: st.DataObject
) -> None:
    ready_s = np.cumsum([float(gap) for gap, _ in tensors])
    sizes = np.array([float(size) for _, size in tensors])
    ends = sorted({*data.draw(st.sets(st.integers(0, len(tensors) - 1))), len(tensors) - 1})
    cost = Affine(startup_s=1.0, per_byte_s=0.5)
    found = channel.schedule(tuple(ends), ready_s, sizes, cost, wait=wait, timeout_s=timeout_s)
    problem = rebuilt("all_reduce")[0]
    fitted = replace(problem, calibration=replace(problem.calibration, wait=wait, timeout_s=timeout_s))
    counts = np.diff([-1, *ends]).tolist()
    replayed_s = all_reduce.replay_s(fitted, counts, ready_s.tolist(), (found.end_s - found.start_s).tolist())
    assert replayed_s == pytest.approx(found.finish_s)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0, 5), st.sampled_from([0.0, 1.0, 2.5]), st.floats(0.5, 5)), min_size=1, max_size=6),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_the_queue_at_a_link_agrees_with_its_closed_form(
    arrivals: list[tuple[float, float, float]], bytes_per_s: float
) -> None:
    rows = [(start_s, start_s + seconds, size) for start_s, seconds, size in arrivals]

    def after(moment: float) -> float:
        left = 0.0
        for start_s, end_s, size in rows:
            share = (
                1.0
                if moment <= start_s
                else 0.0
                if moment > end_s or end_s == start_s
                else (end_s - moment) / (end_s - start_s)
            )
            left += size * share
        return left

    moments = [moment for row in rows for moment in row[:2]]
    expected_s = max(moment + after(moment) / bytes_per_s for moment in moments)
    assert parameter_server.queue_end_s(rows, bytes_per_s) == pytest.approx(expected_s)


def test_pushes_replayed_agree_with_the_model_of_the_links() -> None:
    links = Links(server_bytes_per_s=(2.0,), worker_bytes_per_s=(1.0, 4.0))
    ready = np.array([[0.0, 1.0], [0.5, 3.0]])
    ends_s = push_end_s(ready, np.array([[2.0], [4.0]]), links)
    rows = [(0.0, 2.0, 2.0), (2.0, 6.0, 4.0), (0.5, 1.0, 2.0), (3.0, 4.0, 4.0)]
    assert parameter_server.queue_end_s(rows, 2.0) == pytest.approx(float(ends_s[0]))


@pytest.mark.parametrize(
    ("forward_s", "backward_s", "schedule", "expected_s"),
    [
        ((2.0, 1.0), (2.0, 1.0), "1f1b", 8.0),
        ((2.0, 1.0), (2.0, 1.0), "gpipe", 10.0),
        ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), "gpipe", 8.0),
        ((1.0,), (3.0,), "1f1b", 8.0),
    ],
)
def test_the_replayed_pipeline_ends_when_counted_by_hand(
    forward_s: tuple[float, ...], backward_s: tuple[float, ...], schedule: str, expected_s: float
) -> None:
    number = len(forward_s)
    orders = pipeline.orders_of(schedule, number, 2, 1)
    free = [0.0] * number
    assert pipeline.makespan_s(orders, forward_s, backward_s, free, free) == expected_s


# -- the command ---------------------------------------------------------------------------------------------------


def test_checking_a_plan_loads_no_solver(tmp_path: Path) -> None:
    for family in sorted(BLOCKS):
        file = tmp_path / f"{family}.json"
        file.write_text(document_of(family))
        code = (
            "import sys; from planner.cli.run import run; code = run(['check', sys.argv[1]]); "
            "print('SOLVERS', *(name for name in sys.modules if name.startswith(('planner.solvers', 'ortools'))))"
            "; sys.exit(code)"
        )
        done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.rsplit("SOLVERS", 1)[1].split() == []


def test_exit_codes_tell_right_from_wrong_from_no_plan(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(document_of("all_reduce"))
    assert run(["check", str(file)]) == 0
    assert "pass" in capsys.readouterr().out
    wrong = json.loads(document_of("all_reduce"))
    wrong["objective"]["value"] *= 2
    file.write_text(json.dumps(wrong))
    assert run(["check", str(file), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    MODELS["check"].model_validate(document)
    assert document["ok"] is False
    assert any(one["name"] == "objective" and not one["ok"] for one in document["findings"])


def no_plans() -> Iterator[tuple[str, str]]:
    """Texts of files that hold no plan, and a part of the message."""
    plan = json.loads(document_of("all_reduce"))
    yield "", "the file is empty"
    yield "[1, 2]", "this is no plan"
    yield document_of("all_reduce")[:400], "not all of it"
    yield "dnn: {zoo: vgg16}\ncluster: {preset: osf-testbed}\n", "this is no JSON"
    yield '{"dnn": {"zoo": "vgg16"}, "cluster": {"preset": "osf-testbed"}}', "no schema"
    yield document_of("all_reduce").replace('"gap": 0.0', '"gap": 0.0, "gap": 0.1'), "gap: this key stands twice"
    yield json.dumps({**plan, "objective": {**plan["objective"], "bound": float("nan")}}), "objective.bound: nan is not"
    yield json.dumps({**plan, "objective": {**plan["objective"], "value": "1.5"}}), "objective.value: "
    yield json.dumps({**plan, "explanation": [1]}), "explanation.0: "
    yield json.dumps({**plan, "schema": "planner.plan/0"}), "planner.plan/0"
    yield json.dumps({**plan, "schema": "planner.prediction/1"}), "planner.prediction/1"
    yield json.dumps({key: value for key, value in plan.items() if key != "objective"}), "objective"
    yield json.dumps({**plan, "objective": {**plan["objective"], "value": "fast"}}), "objective.value"
    broken = copy.deepcopy(plan)
    broken["problem"]["dnn"] = {"zoo": "vgg61"}
    yield json.dumps(broken), "vgg61"


def test_what_is_no_plan_is_refused_in_words(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    for text, words in no_plans():
        file.write_text(text)
        assert run(["check", str(file)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert words in captured.err
        assert "Traceback" not in captured.err
    assert run(["check", str(tmp_path / "none.json")]) == 2


def test_a_document_of_another_kind_is_refused() -> None:
    with pytest.raises(SpecError, match="no schema"):
        check(planner.load(question()), {})


def test_a_batch_that_does_not_divide_is_read_as_it_is_predicted() -> None:
    rest = {"storage": {"bandwidth": "100 kB/s", "shared": True}, "network": "10 Gbit/s", "latency": "20 us"}
    machines = [
        {"name": "fast", "count": 2, "device": "v100-sxm2-16g", "devices": 1, **rest},
        {"name": "slow", "count": 2, "device": "t4", "devices": 2, **rest},
    ]
    problem = planner.load(
        {
            "dnn": {"zoo": "alexnet", "global_batch": 7, "sample_bytes": "100 kB"},
            "cluster": {"machines": machines},
            "families": ["all_reduce"],
            "fix": {"num_devices": 2, "batch_shares": "equal"},
        }
    )
    plan = planner.plan(problem)
    assert plan.prediction.breakdown_s["input_stall"] > 0
    assert all(finding.is_ok for finding in planner.check(problem, plan).findings)


@pytest.mark.parametrize("family", ["all_reduce", "parameter_server", "pipeline"])
@pytest.mark.parametrize("second", ["v100-sxm2-16g", "t4"])
def test_a_store_that_all_share_is_read_as_it_is_predicted_in_every_family(family: str, second: str) -> None:
    rest = {"storage": {"bandwidth": "100 kB/s", "shared": True}, "network": "10 Gbit/s", "latency": "20 us"}
    machines = [
        {"name": name, "count": 1, "device": device, **rest} for name, device in (("a", "v100-sxm2-16g"), ("b", second))
    ]
    problem = planner.load(
        {
            "dnn": {"zoo": "alexnet", "global_batch": 7, "sample_bytes": "100 kB"},
            "cluster": {"machines": machines},
            "families": [family],
            "constraints": {"machines": 2},
        }
    )
    plan = planner.plan(problem)
    assert plan.prediction.breakdown_s["input_stall"] > 0
    assert [finding for finding in planner.check(problem, plan).findings if not finding.is_ok] == []
