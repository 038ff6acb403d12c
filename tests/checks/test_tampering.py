"""Every number of a plan that was tampered with is found, and whatever stands in a field there is a verdict."""

import copy
import json
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from checked import BLOCKS, digest, document_of, numbers, put
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.answer.documents import dump
from planner.checks import report_text
from planner.errors import SpecError
from planner.procurement.check import check_file


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
        (asked_for("constraints", "memory_per_device", "1 MiB"), "memory toy"),
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
    report = planner.check(planner.load(document["problem"]), document)
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


# A prediction may claim no error: there is then nothing to compare.
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
    report = planner.check(planner.load(document["problem"]), document)
    assert not report.is_ok
    assert any(str(path[-1]) in one.text or "null" in one.text for one in report.faults), report_text(report)


@pytest.mark.parametrize("family", sorted(BLOCKS))
@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000], ids=["400 digits", "below", "5000 digits"])
def test_a_number_beyond_all_floats_in_a_mapping_is_refused_wherever_it_stands(family: str, value: int) -> None:
    problem = planner.load(json.loads(document_of(family))["problem"])
    for path in places(json.loads(document_of(family))):
        document = json.loads(document_of(family))
        put(*path, value=value)(document)
        with pytest.raises(SpecError, match="not a finite number") as error:
            planner.check(problem, document)
        assert error.value.faults[0].field == ".".join(map(str, path))


@pytest.mark.parametrize("value", [{}, [], "x", True])
def test_a_detail_of_another_kind_fails(value: Any) -> None:
    document = json.loads(document_of("all_reduce"))
    put("prediction", "details", "schedule", 0, "size_bytes", value=value)(document)
    assert "details" in {one.name for one in planner.check(planner.load(document["problem"]), document).faults}


# -- every number ----------------------------------------------------------------------------------------------------

TOY = {
    "count": 2,
    "devices": 2,
    "device": {"name": "toy", "fp32": "1 TFLOP/s", "memory": "1 GiB"},
    "network": "1 Gbit/s",
    "latency": "20 us",
    "inside": "pcie-3-x16",
}
SLOW = {**TOY, "name": "slow", "device": {"name": "slow", "fp32": "0.7 TFLOP/s", "memory": "1 GiB"}}
NETWORK = {
    "layers": [
        {"name": "data", "kind": "input", "output": "40 kB"},
        {"name": "one", "inputs": ["data"], "multiply_adds": 2e9, "parameters": "2 MB", "output": "400 kB"},
        {"name": "two", "inputs": ["one"], "multiply_adds": 3e9, "parameters": "1 MB", "output": "4 kB"},
    ],
    "global_batch": 16,
    "dataset_samples": 1000,
}
ONE, TWO = {"machines": [TOY]}, {"machines": [{**TOY, "name": "fast"}, SLOW]}
BERT = {"zoo": "bert-base", "global_batch": 16, "sequence_length": 128, "dataset_samples": 1000}
A100 = {"name": "m", "devices": 4, "device": "a100-sxm4-40gb", "inside": "nvlink-3", "network": "100 Gbit/s"}
V100 = {**A100, "name": "k", "device": "v100-sxm2-32g", "inside": "nvlink-2"}
ALONE = {key: value for key, value in TOY.items() if key not in ("devices", "inside")}
PLANNED: dict[str, dict[str, Any]] = {
    "all_reduce": {"dnn": NETWORK, "cluster": ONE, "compression": {"time": "1 ms", "at_most": 0.9}},
    "all_reduce on unlike devices": {"dnn": NETWORK, "cluster": TWO},
    "parameter_server": {"dnn": NETWORK, "cluster": TWO, "fix": {"num_parameter_servers": 2}},
    "parameter_server without a barrier": {"dnn": NETWORK, "cluster": ONE, "constraints": {"max_staleness": 2}},
    "model_replicas": {
        "dnn": {"zoo": "adam-mnist", "global_batch": 32, "dataset_samples": 1000},
        "cluster": {"machines": [ALONE]},
    },
    "pipeline": {"dnn": NETWORK, "cluster": ONE},
    "hybrid": {"dnn": BERT, "cluster": {"machines": [{**A100, "count": 2}]}},
    "hybrid on unlike devices": {"dnn": BERT, "cluster": {"machines": [A100, V100]}},
}
# Numbers that nothing else in a plan is made of: any other makes as good a plan.
FREE = {
    "seed": "what the search draws lots with",
    "num_candidates": "how much was looked at, which takes the search again",
    "num_solved": "how much was looked at, which takes the search again",
}
# Of losers alone, whose prediction does not stand in the plan: other values that cost exactly the same.
AS_GOOD = {"gradient_accumulation_steps": "what is sent at the end in one piece waits for the last micro-batch anyway"}
ROUNDING = 2e-9  # figures that are closer are the same


def changed(value: float) -> list[float]:
    """A number changed by a little and by much, of its own type."""
    found = [value + 1, 2 * value, -value] if isinstance(value, int) else [1.01 * value, value + 1, 2 * value, -value]
    return [one for one in dict.fromkeys(found) if abs(one - value) > ROUNDING * abs(value)]


@pytest.mark.parametrize("name", PLANNED)
def test_no_number_of_a_plan_or_of_what_lost_to_it_can_be_changed_unseen(name: str) -> None:
    calibration = {"utilisation": 0.5, "bandwidth_efficiency": 1}
    problem = planner.load({**PLANNED[name], "families": [name.split(maxsplit=1)[0]], "calibration": calibration})
    whole = json.loads(dump(planner.plan(problem).to_dict()))
    assert planner.check(problem, whole).is_ok, report_text(planner.check(problem, whole))
    unseen = []
    # The plan alone, and what lost to it one by one: of each change all alternatives would be costed again.
    for document in [{**whole, "alternatives": some} for some in ([], *([one] for one in whole["alternatives"]))]:
        text, losers = json.dumps(document), document["alternatives"]
        parts = {"alternatives": losers} if losers else {key: one for key, one in document.items() if key != "problem"}
        assert planner.check(problem, document).is_ok, report_text(planner.check(problem, document))
        for place, (path, value) in enumerate(numbers(parts)):
            found = changed(value)
            for other in {found[place % len(found)], found[(place + 1 - bool(losers)) % len(found)]}:
                put(*path, value=other)(document)
                try:
                    report = planner.check(problem, document)
                except SpecError:
                    continue
                finally:
                    put(*path, value=value)(document)
                is_free = path[-1] in FREE and other >= 0
                is_free |= bool(losers) and path[-1] in AS_GOOD and other >= 1
                if report.is_ok and not is_free:
                    unseen.append((path, value, other))
        assert json.dumps(document) == text
    assert unseen == []


@pytest.mark.parametrize("key", ["coverage", "low", "high"])
def test_a_band_of_errors_is_that_of_the_data_that_ship(key: str) -> None:
    machines = [{"count": 2, "devices": 4, "device": "a100-sxm4-80gb", "inside": "nvlink-3", "network": "100 Gbit/s"}]
    asked = {"dnn": {**BERT, "zoo": "llama-2-7b", "dtype": "bf16"}, "cluster": {"machines": machines}}
    problem = planner.load({**asked, "families": ["hybrid"]})
    document = json.loads(dump(planner.plan(problem).to_dict()))
    assert document["prediction"]["relative_error"] is not None
    assert planner.check(problem, document).is_ok
    put("prediction", "relative_error", key, value=1.5)(document)
    assert [one.name for one in planner.check(problem, document).faults] == ["relative_error"]
