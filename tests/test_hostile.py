"""Inputs that nobody should write: each gets its exit code, one JSON document, and no traceback."""

import json
from pathlib import Path
from typing import Any

import pytest
from pytest import CaptureFixture

from planner.cli.run import run

GOOD = "dnn: {zoo: vgg16}\ncluster: {preset: osf-testbed}\n"
LAYERS = "dnn: {{layers: [{layers}], dataset_samples: 10}}\ncluster: {{preset: osf-testbed}}\n"


def answer(capsys: CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = run([*arguments, "--json"])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert "a bug of ours" not in err, err
    return code, json.loads(out)


HOSTILE = {
    "merge": "x: &x {zoo: vgg16}\ndnn:\n  <<: *x\ncluster: {preset: osf-testbed}\n",
    "keys of numbers": "1: 2\n" + GOOD,
    "a mapping as key": "{a: b}: c\n" + GOOD,
    "duplicate keys": GOOD + "dnn: {zoo: vgg19}\n",
    "a name for a section": "dnn: vgg16\ncluster: osf-testbed\n",
    "nothing in a section": "dnn:\ncluster:\n",
    "all times zero": LAYERS.format(layers="{name: a, forward: 0 s}"),
    "mixed layers": LAYERS.format(layers="{name: a, multiply_adds: 1e9, parameters: 4 MB}, {name: b, forward: 1 ms, inputs: [a]}"),
    "infinite work": LAYERS.format(layers="{name: a, multiply_adds: .inf}"),
    "work as text": LAYERS.format(layers="{name: a, multiply_adds: '12'}"),
    "a layer reading itself": LAYERS.format(layers="{name: a, multiply_adds: 1e9, inputs: [a]}"),
    "a layer reading nothing": LAYERS.format(layers="{name: a, multiply_adds: 1e9, inputs: [b]}"),
    "no layers": LAYERS.format(layers=""),
    "intercept of no number": GOOD + "calibration: {piecewise: [{num_devices: 32, log_slope: 1 ms, log_offset: .nan, bandwidth: 1 GB/s, threshold: 1 MB}]}\n",
    "no points": GOOD + "calibration: {curves: [{num_devices: 32, points: []}]}\n",
    "equal points": GOOD + "calibration: {curves: [{num_devices: 32, points: [[1 kB, 1 ms], [1 kB, 2 ms]]}]}\n",
    "two curves": GOOD + "calibration: {curves: [{num_devices: 8, points: [[1 kB, 1 ms], [1 MB, 2 ms]]}, {num_devices: 8, points: [[1 kB, 1 ms], [1 MB, 2 ms]]}]}\n",
    "next to no bandwidth": "dnn: {zoo: vgg16}\ncluster: {machines: [{count: 2, device: k80, network: 1e-300 B/s}]}\n",
    "next to no utilisation": GOOD + "calibration: {utilisation: 1e-320}\n",
    "more epochs than time": "dnn: {zoo: vgg16, epochs: 1e308}\ncluster: {preset: osf-testbed}\nobjective: training_time\n",
    "a type the device lacks": "dnn: {zoo: vgg16, dtype: bf16}\ncluster: {preset: dag-k80}\n",
    "kind of no layer": GOOD + "calibration: {utilisation_by_kind: {conv: 0.5}}\n",
    "links to nowhere": "dnn: {zoo: vgg16}\ncluster: {nodes: [{name: a, device: k80}, {name: b, device: k80}]}\n",
    "a cable to itself": "dnn: {zoo: vgg16}\ncluster: {nodes: [{name: a, device: k80}], links: [{ends: [a, a], bandwidth: 1 GB/s}]}\n",
    "a plan of the wrong kind": '{"schema": "planner.plan/1", "problem": {}, "family": [], "configuration": {}}',
    "a plan of an unknown family": '{"schema": "planner.plan/1", "problem": {}, "family": "x", "configuration": {}}',
    "printed": GOOD + "variant: printed\n",
    "groups and machines": GOOD + "configuration: {all_reduce: {machines: [x], groups: {x: {machines: 1, batch_per_device: 1}}}}\n",
    "brackets without end": "[" * 3000,
    "lists in lists": GOOD + "notes: " + "[" * 100 + "]" * 100,
    "rows in rows": GOOD + "notes:\n  " + "- " * 100 + "1\n",
    "no group": GOOD + "configuration: {all_reduce: {groups: {}}}\n",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("command", ["plan", "predict"])
def test_a_hostile_spec_is_refused_in_words(
    capsys: CaptureFixture[str], tmp_path: Path, name: str, command: str
) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(HOSTILE[name])
    code, document = answer(capsys, command, str(file))
    assert code == 2, document
    assert document["schema"] == "planner.error/1"
    assert document["message"]


@pytest.mark.parametrize("name", ["brackets without end", "lists in lists", "rows in rows"])
def test_what_is_nested_too_deeply_is_told_by_its_depth(capsys: CaptureFixture[str], tmp_path: Path, name: str) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(HOSTILE[name])
    code, document = answer(capsys, "plan", str(file))
    assert code == 2
    assert "nested more than 64 levels deep" in document["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--cluster", "osf-testbed", "--network", "1 Mbit/s"),
        ("--cluster", "osf-testbed", "--latency", "nonsense"),
        ("--machines", "9" * 5000 + "xk80"),
        ("--machines", "0xk80"),
        ("--machines", "1x1xk80", "--top", "101"),
    ],
)
def test_hostile_flags_are_refused_in_words(capsys: CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    code, document = answer(capsys, "plan", "--dnn", "vgg16", *arguments)
    assert code == 2
    assert document["kind"] == "input"


@pytest.mark.parametrize(
    "graph",
    [
        "node1 -- Linear(1, 1) -- forward_compute_time=0, backward_compute_time=0, activation_size=4, parameter_size=4\n",
        "node1 -- Linear(1, 1) -- forward_compute_time=1e308, backward_compute_time=1, activation_size=4, parameter_size=4\n",
        "node1 -- Linear(1, 1) -- forward_compute_time=1, backward_compute_time=1, activation_size=4, parameter_size=1e308\n",
    ],
)
def test_hostile_profiles_are_refused_in_words(capsys: CaptureFixture[str], tmp_path: Path, graph: str) -> None:
    file = tmp_path / "net.graph.txt"
    file.write_text(graph)
    code, document = answer(capsys, "plan", "--dnn", str(file), "--cluster", "osf-testbed", "--batch", "4")
    assert code == 2
    assert str(file) in document["message"]


def test_sections_whose_keys_are_all_commented_out_are_empty(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(GOOD + "constraints:\n  # deadline: 1 h\nfix:\ncalibration:\n")
    assert answer(capsys, "plan", str(file))[0] == 0


def test_names_and_numbers_are_refused_in_one_pass(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(
        "dnn: {zoo: vgg16x, batch_per_device: x}\ncluster: {machines: [{count: 2, device: rtx-20, network: 25 Gbit}]}\n"
    )
    _, document = answer(capsys, "plan", str(file))
    fields = ["dnn.zoo", "dnn.batch_per_device", "cluster.machines.0.device", "cluster.machines.0.network"]
    assert [fault["field"] for fault in document["faults"]] == fields


def test_measured_reading_binds_the_shipped_trace_on_its_own_testbed(capsys: CaptureFixture[str]) -> None:
    trace = Path(__file__).parents[1] / "planner" / "data" / "examples" / "alexnet-k80.trace.txt"
    code, plan = answer(capsys, "plan", "--dnn", str(trace), "--cluster", "dag-k80", "--batch", "1024")
    assert code == 0
    assert plan["prediction"]["details"]["input_s"]["read"] == pytest.approx(1.2)
