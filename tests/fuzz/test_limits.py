"""Sizes, depths and counts have limits, each with its own words; what is just above is refused, and in little time and memory."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz_parsers import by_name
from onnx_graphs import model_of, node, saved

import planner
from planner import dnn as graphs
from planner.answer.plan_file import read_plan
from planner.calibration.benchmarks import read_files
from planner.errors import SpecError
from planner.importers import chrome_trace as events
from planner.importers import text as texts
from planner.importers.chrome_trace import read_chrome_trace
from planner.importers.huggingface import configuration as configurations
from planner.importers.imported import MeasuredLayer, build_measured
from planner.importers.onnx_model import file as models
from planner.importers.onnx_model import read_onnx
from planner.procurement import prices
from planner.procurement.prices import read_price_list
from planner.question import source
from planner.sweep.question import load_sweep

CLUSTER = {"machines": [{"count": 2, "device": "v100", "network": "10 Gbit/s"}]}
PLAIN = {"dnn": {"zoo": "alexnet", "batch_per_device": 8}, "cluster": CLUSTER}
ALIASES = "a0: &a0 [1, 2, 3]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
MERGES = "m0: &m0 {a: 1}\n" + "".join(
    f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}], k{n}: 1}}\n" for n in range(1, 12)
)


def sparse(path: Path, size: int) -> Path:
    """A file of so many zero bytes that takes no room."""
    with path.open("wb") as stream:
        stream.truncate(size)
    return path


@pytest.mark.parametrize(
    ("read", "name", "most"),
    [
        (planner.load, "spec.yaml", texts.MOST_DOCUMENT_BYTES),
        (read_plan, "plan.json", texts.MOST_DOCUMENT_BYTES),
        (texts.read_text, "net.csv", texts.MOST_BYTES),
        (configurations.read_config, "config.json", configurations.MOST_BYTES),
        (prices.text_of, "prices.csv", prices.MOST_BYTES),
        (read_onnx, "net.onnx", models.MOST_FILE_BYTES),
    ],
)
def test_a_file_that_is_too_large_is_refused_before_it_is_read(
    tmp_path: Path, read: Callable[[Path], object], name: str, most: int
) -> None:
    with pytest.raises(SpecError, match=f"it holds {most + 1} bytes"):
        read(sparse(tmp_path / name, most + 1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x: " + "a" * (4 * 2**20) + "\n", "more than 4194304 letters.*write it as JSON"),
        ("x: [" + "1," * 250_001 + "1]\n", "has 250002 lines and commas, more than 250000.*write it as JSON"),
        (ALIASES, "with what its aliases repeat it has more than 250000 values"),
        ("[" * 100 + "]" * 100, "nested more than 64 levels deep"),
        ('{"a": ' * 100 + "1" + "}" * 100, "nested more than 64 levels deep"),
        ("{" + '"a": [' * 100_000, "."),
    ],
)
def test_yaml_that_would_take_minutes_or_gigabytes_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "spec.yaml").write_text(text)
    with pytest.raises(SpecError, match=words):
        source.read_source(tmp_path / "spec.yaml")


def test_merged_keys_do_not_multiply(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(MERGES)
    assert len(source.read_source(tmp_path / "spec.yaml").data["m11"]) == 12


def test_the_judge_of_changed_inputs_reads_merges_of_merges_too(tmp_path: Path) -> None:
    """It has the library's reader, whose lists double with every merge: this one would never end."""
    levels = "".join(f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}\n" for n in range(1, 80))
    (tmp_path / "spec.yaml").write_text("dnn: {}\nm0: &m0 {a: 1}\n" + levels)
    assert by_name()["spec"].recognises(tmp_path)


def test_json_of_more_values_than_yaml_may_have_is_read(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps({"x": [1] * 300_000}))
    assert len(source.read_source(tmp_path / "spec.json").data["x"]) == 300_000


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"schema": "planner.plan/1", "a": ' + "[" * 100_000, '{"a": ' + "9" * 5000 + "}"]
)
def test_a_plan_nested_or_numbered_beyond_reason_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(SpecError, match=r"nested too deeply|no JSON"):
        read_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({**PLAIN, "dnn": {"zoo": "alexnet", "batch_per_device": 10**16}}, "at most 1000000000000000"),
        ({**PLAIN, "dnn": {"layers": [{}] * 50_001}}, "dnn.layers: there may be at most 50000"),
        ({**PLAIN, "cluster": {"nodes": [{}] * 20_001}}, "cluster.nodes: there may be at most 20000"),
        ({**PLAIN, "cluster": {"machines": [{}] * 20_001}}, "cluster.machines: there may be at most 20000"),
        ({**PLAIN, "cluster": {"nodes": [{"name": "a"}], "links": [{}] * 200_001}}, "cluster.links: there may be at most 200000"),
        ({**PLAIN, "cluster": {"machines": [{"device": "v100", "count": 2**21}]}}, "2097152 devices are more than 1048576"),
        ({**PLAIN, "calibration": {"curves": [{"num_devices": 2, "points": [["1 B", "1 s"]] * 10_001}]}}, "points: there may be at most 10000"),
        ({**PLAIN, "dnn": {"transformer": {"layers": 5000, "hidden": 64, "heads": 1, "vocabulary": 9, "sequence_length": 8}}}, "4096"),
    ],
)  # fmt: skip
def test_counts_in_a_question_are_limited(question: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        planner.load(question)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"vary": {"dnn.batch_per_device": {"from": 1, "to": 10**9, "step": 1}}}, "100000 is the most"),
        ({"vary": {f"dnn.{key}": list(range(1, 1001)) for key in ("batch_per_device", "epochs", "dataset_samples")}}, "10000000 is the most"),
        ({"vary": {".".join(["dnn"] * 40): [1]}}, "."),
    ],
)  # fmt: skip
def test_a_sweep_of_too_many_questions_is_refused(block: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        load_sweep({**PLAIN, "sweep": block}, time_limit_s=1.0)


def test_layers_that_all_read_all_others_are_too_many_inputs() -> None:
    many = [
        (graphs.Layer(name=f"l{n}", kind="add", output_shape=(1,)), [f"l{m}" for m in range(n)]) for n in range(1500)
    ]
    with pytest.raises(ValueError, match="1124250 inputs, more than 1000000; give the file of one network"):
        graphs.Dnn("dense", many)


def test_a_profile_of_too_many_layers_is_refused() -> None:
    row = MeasuredLayer(name="a", kind="add", forward_s=1.0)
    with pytest.raises(ValueError, match="it has 50001 layers, more than 50000; give the file of one network"):
        build_measured("net", [row] * 50_001, batch_size=1, origin="a test")


def test_a_curve_of_too_many_points_or_too_long_a_cell_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(
        json.dumps({**PLAIN, "calibration": {"curves": [{"num_devices": 2, "file": "curve.csv"}]}})
    )
    for text, words in (
        ("size_bytes,seconds\n" + "1,0.1\n" * 10_001, "it holds 10001 rows, more than 10000"),
        (
            'size_bytes,seconds\n1,"' + "2" * 140_000 + '"\n',
            "curve.csv:2: calibration: this is no row of CSV: field larger than field limit",
        ),
    ):
        (tmp_path / "curve.csv").write_text(text)
        with pytest.raises(SpecError, match=words):
            planner.load(tmp_path / "spec.json")


def test_a_table_of_measurements_of_too_many_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("collective,num_devices,size_bytes,time_s\n" + "all_reduce,8,1024,0.1\n" * 200_001)
    with pytest.raises(SpecError, match="it holds 200001 rows, more than 200000"):
        read_files([path])


def test_a_price_list_of_too_many_rows_or_too_long_a_cell_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    header = "provider,instance,region,term,device,devices,usd_per_h,date,source\n"
    path.write_text(header + "".join(f"a,b{n},c,on-demand,t4,1,1,2026-01-01,x\n" for n in range(20_001)))
    with pytest.raises(SpecError, match=r"more than 20,?000|20,?000 rows"):
        read_price_list(path)
    path.write_text(header + f"a,{'b' * 3000},c,on-demand,t4,1,1,2026-01-01,x\n")
    with pytest.raises(SpecError, match="2000"):
        read_price_list(path)


def test_a_trace_that_inflates_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_TRACE_BYTES", 8 * 2**20)
    path = tmp_path / "net.json.gz"
    event = '{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1, "pid": 1, "tid": 1},'
    path.write_bytes(gzip.compress(('{"traceEvents": [' + event * 200_000).encode(), 9))
    assert path.stat().st_size < 2**17
    with pytest.raises(SpecError, match=r"it holds more than 8388608 bytes|more than"):
        read_chrome_trace(path, batch_size=1)
    path.write_bytes(gzip.compress(b'{"traceEvents": [{"name": "' + b"a" * 6 * 2**20, 9))
    with pytest.raises(SpecError):
        read_chrome_trace(path, batch_size=1)


def test_a_trace_of_too_many_events_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_EVENTS", 10)
    event = {"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1, "pid": 1, "tid": 1}
    (tmp_path / "net.json").write_text(json.dumps({"traceEvents": [event] * 11}))
    with pytest.raises(SpecError, match="it holds more than 10 events"):
        read_chrome_trace(tmp_path / "net.json", batch_size=1)


def test_an_onnx_graph_of_too_many_operators_or_nested_too_deep_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnx import helper

    monkeypatch.setattr(models, "_MOST_NODES", 5)
    many = [node("Relu", "x" if n == 0 else f"y{n - 1}", f"y{n}") for n in range(6)]
    with pytest.raises(SpecError, match="more than 5 operators"):
        read_onnx(saved(model_of(many, {"x": [1, 4]}, outputs="y5"), tmp_path))
    monkeypatch.undo()
    inner = node("Identity", "x", "y")
    for _ in range(10):
        body = helper.make_graph([inner], "body", [], [helper.make_tensor_value_info("y", 1, None)])
        inner = node("If", "c", "y", then_branch=body, else_branch=body)
    with pytest.raises(SpecError, match="nested more than 8 deep"):
        read_onnx(saved(model_of([inner], {"x": [1, 4], "c": [1]}), tmp_path))


def test_a_configuration_of_too_many_keys_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **{f"k{n}": n for n in range(10_001)}}))
    with pytest.raises(SpecError, match="10002 keys, more than 10000"):
        configurations.read_config(tmp_path / "config.json")
