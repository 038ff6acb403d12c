"""What a spec may say, what is refused and how, and that every fault is told in one pass with its place."""

import json
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.answer.documents import dump
from planner.errors import Fault, SpecError
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.problem import Range
from planner.routes import routes_of

GOOD = """\
dnn: {zoo: vgg16, batch_per_device: 64}
cluster:
  machines:
    - {count: 4, device: rtx-2080-ti, devices: 8, inside: pcie-3-x16, network: 25 Gbit/s, latency: 20 us}
objective: epoch_time
"""


def faults_of(folder: Path, text: str) -> tuple[Fault, ...]:
    file = folder / "spec.yaml"
    file.write_text(text)
    with pytest.raises(SpecError) as error:
        planner.load(file)
    assert error.value.faults, "an error without faults"
    return error.value.faults


def test_a_spec_file_is_read_into_si_units(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(GOOD)
    problem = planner.load(tmp_path / "spec.yaml")
    group = problem.cluster.machine_groups[0]
    assert (group.count, group.devices_per_machine, group.device.name) == (4, 8, "rtx-2080-ti")
    link = routes_of(problem.cluster).ring(4)
    assert (link.bandwidth_bytes_per_s, link.latency_s) == (3.125e9, 20e-6)
    assert (problem.training.num_devices, problem.limits.devices) == (32, Range())
    assert problem.training.fixed_batch_size == 32 * (problem.training.batch_per_device or 0)


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "words"),
    [
        ("zoo: vgg16", "zoom: vgg16", 1, "dnn.zoom", "unknown key 'zoom'. Did you mean 'zoo'?"),
        ("count: 4", "nodes: 4", 4, "cluster.machines.0.nodes", "Did you mean 'count'?"),
        ("devices: 8", "sequence_length: 8", 4, "cluster.machines.0.sequence_length", "Did you mean 'dnn.sequence_length'?"),
        ("devices: 8", "devices_per_machine: 8", 4, "cluster.machines.0.devices_per_machine", "Did you mean 'devices'?"),
        ("network: 25 Gbit/s", "network: 25 Gbit", 4, "cluster.machines.0.network", "Write it per second, e.g. '25 Gbit/s'."),
        ("network: 25 Gbit/s", "network: 25", 4, "cluster.machines.0.network", "25 has no unit. Write e.g. '25 Gbit/s'."),
        ("network: 25 Gbit/s", "network: -25 Gbit/s", 4, "cluster.machines.0.network", "not negative"),
        ("network: 25 Gbit/s", "network: 0 Gbit/s", 4, "cluster.machines.0.network", "greater than 0"),
        ("network: 25 Gbit/s", "network: .nan", 4, "cluster.machines.0.network", "nan has no unit"),
        ("network: 25 Gbit/s, ", "", 4, "cluster.machines.0", "no network between them"),
        ("count: 4", "count: 1000000000", 4, "cluster.machines.0", "8000000000 devices are more than 1048576"),
        ("count: 4", "count: true", 4, "cluster.machines.0.count", "not a whole number"),
        ("count: 4", "count: 0", 4, "cluster.machines.0.count", "too small"),
        ("count: 4", "count: 1.5", 4, "cluster.machines.0.count", "not a whole number"),
        ("vgg16", "vgg16x", 1, "dnn.zoo", "Did you mean 'vgg16'"),
        ("rtx-2080-ti", "rtx-2080", 4, "cluster.machines.0.device", "Did you mean 'rtx-2080-ti'"),
        ("pcie-3-x16", "pcie-9", 4, "cluster.machines.0.inside", "is not a known"),
        ("epoch_time", "epoch-time", 5, "objective", "'iteration_time', 'epoch_time' or 'training_time'"),
        ("epoch_time", "training_time", 1, "dnn.epochs", "Add epochs: 90"),
        ("batch_per_device: 64", "batch_per_device: 64, global_batch: 64", 1, "dnn", "leave out batch_per_device"),
        ("zoo: vgg16", "zoo: vgg16, trace: x.csv", 1, "dnn", "give exactly one of"),
        ("objective: epoch_time", "objective: iteration_time\nconstraints: {devices: {at_most: 16}}", 6, "constraints.devices", "trivially fastest"),
        ("objective: epoch_time", "objective: iteration_time\nconstraints: {machines: {at_most: 3}}", 6, "constraints.machines", "trivially fastest"),
        ("objective: epoch_time", "constraints: {devices: 33}", 5, "constraints.devices", "at least 33 are asked for"),
        ("objective: epoch_time", "families: [pipelines]", 5, "families.0", "'all_reduce'"),
        ("objective: epoch_time", "calibration: {utilisation: 50%}", 5, "calibration.utilisation", "not a number greater than 0"),
        ("objective: epoch_time", "calibration: none.yaml", None, "calibration", "there is no such file"),
        ("objective: epoch_time", "fix: {device: h900}", 5, "fix.device", "is not a known device"),
        ("objective: epoch_time", "configuration: {num_devices: 8}", 5, "configuration.num_devices", "below its family, e.g. all_reduce: {num_devices: ...}"),
        ("objective: epoch_time", "configuration: {num_microbatches: 8}", 5, "configuration.num_microbatches", "below its family, e.g. pipeline: {num_microbatches: ...}"),
        ("zoo: vgg16", "profile: nowhere.graph.txt", None, "dnn.profile", "there is no such file"),
        ("zoo: vgg16", "profile: .", None, "dnn.profile", "this is a folder"),
        ("batch_per_device: 64", "max_global_batch: 64", 5, "objective", "trivially fastest per iteration"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_place_and_its_mend(
    tmp_path: Path, old: str, new: str, line: int | None, field: str, words: str
) -> None:
    text = GOOD.replace(old, new)
    if "max_global" in new:
        text = text.replace("epoch_time", "iteration_time")
    assert text != GOOD
    (fault,) = faults_of(tmp_path, text)
    assert (fault.line, fault.field) == (line, field)
    assert words in str(fault)
    if line is not None:
        assert fault.file.endswith("spec.yaml")


def test_all_faults_of_a_file_are_told_in_one_pass(tmp_path: Path) -> None:
    text = GOOD.replace("zoo: vgg16", "zoom: vgg16").replace("25 Gbit/s", "25 Gbit").replace("count: 4", "count: 0")
    assert [fault.line for fault in faults_of(tmp_path, text)] == [1, 4, 4]
    names = GOOD.replace("vgg16", "vgg61").replace("rtx-2080-ti", "rtx-2081").replace("pcie-3-x16", "pci")
    assert [fault.field for fault in faults_of(tmp_path, names)] == [
        "dnn.zoo", "cluster.machines.0.device", "cluster.machines.0.inside",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"  \n", "the file is empty"),
        (b"\x7fELF\0\0", "this is a binary file"),
        ("dnn: {zoo: 'ö'}".encode("latin-1"), "not UTF-8"),
        (b"dnn: {zoo: vgg16", "not valid YAML"),
        (b"dnn: 1\ndnn: 2\n", "not valid YAML"),
        (b"- a\n- b\n", "a spec is a mapping"),
        (b"just words", "a spec is a mapping"),
        (b"{" * 5000, "nested more than 64 levels deep"),
        (b"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 10)) for i in range(8)), "more than 250000 values"),
    ],
)  # fmt: skip
def test_what_is_no_spec_at_all_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "spec.yaml").write_bytes(content)
    with pytest.raises(SpecError, match=words):
        planner.load(tmp_path / "spec.yaml")


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no such file"):
        planner.load(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="this is a folder"):
        planner.load(tmp_path)


def test_paths_are_relative_to_the_spec(tmp_path: Path) -> None:
    (tmp_path / "curve.csv").write_text("size_bytes,seconds\n1000,0.001\n1e6,0.002\n")
    text = GOOD + "calibration: {curves: [{num_devices: 32, file: curve.csv}]}\n"
    (tmp_path / "spec.yaml").write_text(text)
    problem = planner.load(tmp_path / "spec.yaml")
    assert float(problem.calibration.all_reduce_curves[32](1e6)) == 0.002  # type: ignore[arg-type]
    (tmp_path / "curve.csv").write_text("size_bytes,seconds\n1000,quick\n")
    with pytest.raises(SpecError, match=r"curve\.csv:2: .*is no point"):
        planner.load(tmp_path / "spec.yaml")


def test_a_calibration_file_is_read_and_its_faults_have_its_lines(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(GOOD + "calibration: mine.yaml\n")
    (tmp_path / "mine.yaml").write_text("utilisation: 0.25\noverhead: 3 ms\n")
    assert planner.load(tmp_path / "spec.yaml").calibration.overhead_s == 3e-3
    (tmp_path / "mine.yaml").write_text("utilisation: 0.25\noverhead: 3\n")
    with pytest.raises(SpecError, match=r"mine\.yaml:2:1: overhead: 3 has no unit"):
        planner.load(tmp_path / "spec.yaml")


QUESTIONS: dict[str, dict[str, Any]] = {
    "preset": {"dnn": {"zoo": "vgg16"}, "cluster": {"preset": "osf-testbed"}},
    "nodes": {
        "dnn": {"zoo": "resnet18", "batch_per_device": 8},
        "cluster": {
            "nodes": [{"name": "a", "device": "t4"}, {"name": "b", "device": "t4"}, {"name": "s", "type": "switch"}],
            "links": [{"ends": ["a", "s"], "bandwidth": "1 Gbit/s"}, {"ends": ["b", "s"], "bandwidth": "1 Gbit/s"}],
        },
    },
    "own device": {
        "dnn": {"zoo": "alexnet", "global_batch": 512, "optimizer": "adam", "dtype": "fp16"},
        "cluster": {"machines": [{"count": 2, "device": {"name": "x", "fp16": "9 TFLOP/s", "memory": "8 GiB"}, "network": "1 GB/s"}]},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_resolved_question_alone_gives_the_same_plan(name: str) -> None:
    first = planner.plan(planner.load(QUESTIONS[name]))
    again = planner.plan(planner.load(first.problem))
    assert (again.objective, again.configuration) == (first.objective, first.configuration)


def test_a_plan_file_is_a_question_that_needs_no_other_file(tmp_path: Path) -> None:
    profile = "node1 -- Input -- forward_compute_time=1.5, backward_compute_time=0, activation_size=4096.0, parameter_size=0\n"
    for number in range(2, 6):
        profile += (
            f"node{number} -- Linear(1, 1) -- forward_compute_time=0.{number}37, backward_compute_time=1.{number}1, "
            f"activation_size=40960.0, parameter_size={number}000000.0\n"
        )
        profile += f"\tnode{number - 1} -- node{number}\n"
    (tmp_path / "net.graph.txt").write_text(profile)
    text = GOOD.replace(
        "zoo: vgg16, batch_per_device: 64",
        "profile: net.graph.txt, batch_per_device: 8, profile_batch: 4, dataset_samples: 100",
    )
    (tmp_path / "spec.yaml").write_text(f"{text}\nfamilies: [all_reduce]\n")
    found = planner.plan(planner.load(tmp_path / "spec.yaml"))
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "elsewhere" / "plan.json"
    file.write_text(dump(found.to_dict()))
    problem = planner.load(file)
    assert planner.predict(problem) == found.prediction
    assert planner.plan(problem).configuration == found.configuration
    assert isinstance(found.configuration, AllReduceConfiguration)
    broken = json.loads(file.read_text())
    del broken["configuration"]
    file.write_text(json.dumps(broken))
    with pytest.raises(SpecError, match="the plan lacks configuration"):
        planner.load(file)


def test_a_device_of_a_spec_may_have_the_figures_that_the_table_has() -> None:
    given = {
        **{"name": "x", "fp16": "9 TFLOP/s", "fp8": "18 TFLOP/s", "fp4": "36 TFLOP/s", "memory": "8 GiB"},
        **{"num_multiprocessors": 64, "l2_cache": "32 MiB", "clock": "1.5 GHz", "verified": False},
    }
    question: dict[str, Any] = {"dnn": {"zoo": "vgg16"}, "cluster": {"machines": [{"count": 1, "device": given}]}}
    problem = planner.load({**question, "dnn": {"zoo": "vgg16", "dtype": "fp16"}})
    device = problem.cluster.machine_groups[0].device
    assert dict(device.peak_flop_per_s) == {"fp16": 9e12, "fp8": 18e12, "fp4": 36e12}
    assert device.num_multiprocessors == 64
    assert not any("unverified" in line for line in problem.warnings)
    with pytest.raises(SpecError, match=r"'x' has no fp32 rate \(known: fp16\)\. Set dnn.dtype to one of them"):
        planner.load(question)


@pytest.mark.parametrize("source", [{"zoo": "vgg16"}, {"zoo": "llama2-7b", "fine_tuning": "lora"}])
def test_a_network_has_the_name_that_the_question_gives_it(source: dict[str, Any]) -> None:
    machines = [{"count": 2, "devices": 8, "device": "a100-sxm4-80gb", "network": "100 Gbit/s"}]
    dnn = {**source, "name": "mine", "global_batch": 64}
    problem = planner.load({"dnn": dnn, "cluster": {"machines": machines}})
    assert problem.dnn.name == planner.load(dict(problem.resolved)).dnn.name == "mine"
    plain = planner.load({"dnn": {**source, "global_batch": 64}, "cluster": {"machines": machines}})
    assert problem.dnn.num_multiply_adds == plain.dnn.num_multiply_adds


def test_what_was_assumed_is_said() -> None:
    problem = planner.load(
        {
            "dnn": {"zoo": "vgg16"},
            "cluster": {"machines": [{"count": 2, "devices": 2, "device": "k80", "network": "1 Gbit/s"}]},
        }
    )
    said = " ".join([*problem.assumptions, *(f"{one.text} {one.flag}" for one in problem.key_assumptions)])
    for word in ("pcie-3-x16", "20 us", "32 samples a device", "1,281,167", "epoch_time", "calibration.execution"):
        assert word in said
    assert any("links are uncalibrated" in line for line in problem.warnings)


def test_a_utilisation_above_1_is_warned_of_and_not_refused() -> None:
    problem = planner.load(
        {"dnn": {"zoo": "vgg16"}, "cluster": {"preset": "osf-testbed"}, "calibration": {"utilisation": 1.24}}
    )
    assert any("above 1" in line for line in problem.warnings)


@pytest.mark.parametrize(
    ("line", "field", "words"),
    [
        ("fix: {device: h100-sxm}", "fix.device", "the cluster has no h100-sxm. Write one of rtx-2080-ti."),
        ("fix: {device: h100-sxm, num_stages: 2}", "fix.device", "the cluster has no h100-sxm. Write one of rtx-2080-ti."),
        ("fix: {device: nowhere}", "fix.device", "'nowhere' is not a known device."),
        ("fix: {servers: nowhere}", "fix.servers", "the cluster has no group 'nowhere'. Write one of rtx-2080-ti."),
        ("fix: {substitutions: [nowhere]}", "fix.substitutions", "there is no substitution 'nowhere'."),
        ("fix: {algorithm: nowhere}", "fix.algorithm", "it must be 'ring', 'tree', 'two_level' or 'in_network'"),
        ("fix: {schedule: nowhere}", "fix.schedule", "it must be 'gpipe', '1f1b', 'interleaved', 'zb_h1'"),
        ("families: [nowhere]", "families.0", "it must be 'all_reduce', 'parameter_server'"),
        ("families: [hybird]", "families.0", "Did you mean 'hybrid'?"),
        ("constraints: {max_staleness: -1}", "constraints.max_staleness", "Write a whole number of 0 or more."),
        ("constraints: {max_staleness: some}", "constraints.max_staleness", "Write 0 or more, or unbounded."),
    ],
)  # fmt: skip
def test_a_pin_or_limit_that_names_what_is_not_there_is_refused_with_what_there_is(
    tmp_path: Path, line: str, field: str, words: str
) -> None:
    [fault] = faults_of(tmp_path, GOOD + line + "\n")
    assert (fault.field, fault.line) == (field, 6)
    assert words in str(fault)


@pytest.mark.parametrize("family", ["all_reduce", "parameter_server", "model_replicas", "pipeline"])
def test_a_device_that_is_not_there_is_refused_for_every_family(tmp_path: Path, family: str) -> None:
    [fault] = faults_of(tmp_path, GOOD + f"families: [{family}]\nfix: {{device: h100-sxm}}\n")
    assert fault.field == "fix.device"


@pytest.mark.parametrize("given", ["rtx-2080-ti", "RTX 2080 Ti"])
def test_a_pinned_device_is_found_however_its_name_is_written(tmp_path: Path, given: str) -> None:
    (tmp_path / "spec.yaml").write_text(GOOD + f"fix: {{device: {given}}}\n")
    problem = planner.load(tmp_path / "spec.yaml")
    assert (problem.fixed["device"], problem.training.num_devices) == ("rtx-2080-ti", 32)


@pytest.mark.parametrize(("given", "number"), [("0", 0), ("0.0", 0), ("3", 3), ("unbounded", float("inf"))])
def test_staleness_is_a_whole_number_from_0_on_or_unbounded(tmp_path: Path, given: str, number: float) -> None:
    (tmp_path / "spec.yaml").write_text(GOOD + f"constraints: {{max_staleness: {given}}}\n")
    assert planner.load(tmp_path / "spec.yaml").limits.max_staleness == number


def test_a_layer_with_tensors_and_no_shape_is_read_back_as_it_was_given() -> None:
    tensors = [
        {"name": "fc.weight", "elements": 300, "role": "weight"},
        {"name": "fc.bias", "elements": 3, "role": "bias"},
    ]
    layers: list[dict[str, Any]] = [
        {"name": "input", "kind": "input", "shape": [3, 8, 8]},
        {"name": "fc", "kind": "dense", "multiply_adds": 1e8, "tensors": tensors},
    ]
    machine = {"count": 2, "device": "a100", "network": "10 Gbit/s", "latency": "20 us"}
    asked = {
        "dnn": {"name": "net", "layers": layers, "global_batch": 16},
        "cluster": {"machines": [machine]},
        "families": ["all_reduce"],
        "objective": "iteration_time",
    }
    problem = planner.load(asked)
    document = json.loads(dump(planner.plan(problem).to_dict()))
    (row,) = [one for one in document["problem"]["dnn"]["layers"] if one["name"] == "fc"]
    assert "shape" not in row
    assert planner.load(document["problem"]).dnn.layers == problem.dnn.layers
    assert planner.check(problem, document).is_ok
    assert planner.export(document, "ddp").files


@pytest.mark.parametrize(
    ("block", "meant"),
    [
        ({"fix": {"tensor": 8}}, "tensor_parallel_size"),
        ({"fix": {"PP": 2}}, "pipeline_parallel_size"),
        ({"fix": {"virtual_pipeline_model_parallel_size": 2}}, "chunks_per_device"),
        ({"fix": {"recompute_granularity": "full"}}, "recompute"),
        ({"configuration": {"hybrid": {"microbatch_size": 2}}}, "microbatch"),
    ],
)
def test_what_others_call_a_decision_is_told_by_its_key(block: dict[str, Any], meant: str) -> None:
    question = {"dnn": {"zoo": "gpt3-13b"}, "cluster": {"preset": "osf-testbed"}, **block}
    with pytest.raises(SpecError, match=f"Did you mean '{meant}'"):
        planner.load(question)


def test_a_whole_number_beyond_all_floats_has_no_unit_either() -> None:
    question = {"dnn": {"zoo": "vgg16"}, "cluster": {"machines": [{"device": "t4", "latency": 10**400}]}}
    with pytest.raises(SpecError, match=r"has no unit\. Write e\.g\."):
        planner.load(question)
