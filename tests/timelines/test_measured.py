"""A trace on the command line, and a measured one beside it."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from docs_commands import blocks, write
from traces import by_row, end_s, faults_of

import planner
from planner.answer.timeline import MOST_DRAWN, Compared, Drawn, Measured, compared, table_text, trace_of, with_measured
from planner.api import configuration_of, timeline
from planner.cli.run import run
from planner.errors import SpecError
from planner.timeline import Span, Timeline

REAL = Path(__file__).parents[1] / "importers" / "data" / "cnn.pt.trace.json.gz"
SPEC = """
dnn: {{trace: {trace}, profile_batch: 16, batch_per_device: 16}}
cluster:
  machines: [{{count: {count}, device: v100, network: 10 Gbit/s}}]
configuration: {{all_reduce: {{num_devices: {count}}}}}
"""


def layer(name: str, direction: str, start_s: float, end_s: float, row: str = "device") -> Span:
    told = {"layer": name, "direction": direction}
    return Span(row=row, name=f"{direction} {name}", start_s=start_s, end_s=end_s, kind="layer", args=told)


PREDICTED = Timeline(
    spans=(
        layer("a", "forward", 0, 1),
        layer("b", "forward", 1, 3),
        layer("b", "backward", 3, 7),
        layer("a", "backward", 7, 9),
        layer("a", "forward", 9, 10),  # of another micro-batch
        layer("a", "forward", 0, 5, row="other kind"),
    ),
    flows=(),
    rows=("device", "other kind"),
)


def measured(*names: str) -> Measured:
    return Measured(
        origin="here", names=names, forward_s=(1.5,) * len(names), backward_s=(3.0,) * len(names), update_s=0.5
    )


def rows_of(comparison: Compared) -> dict[tuple[str, str], tuple[Any, Any]]:
    return {(row["layer"], row["direction"]): (row["predicted_s"], row["measured_s"]) for row in comparison["rows"]}


def test_layers_are_compared_by_name_on_the_first_device_that_has_them() -> None:
    found = compared(PREDICTED, measured("a", "c"))
    assert found["layers"] == "name"
    assert rows_of(found) == {
        ("a", "forward"): (2, 1.5),
        ("a", "backward"): (2, 3.0),
        ("c", "forward"): (None, 1.5),
        ("c", "backward"): (None, 3.0),
        ("b", "forward"): (2, None),
        ("b", "backward"): (4, None),
        ("all layers", "forward"): (4, 3.0),
        ("all layers", "backward"): (6, 6.0),
    }
    assert [row["ratio"] for row in found["rows"]] == [0.75, 1.5, None, None, None, None, 0.75, 1.0]


def test_layers_of_other_names_are_compared_by_order_where_there_are_as_many() -> None:
    found = compared(PREDICTED, measured("Conv2d_0", "Linear_0"))
    assert found["layers"] == "order"
    assert rows_of(found)["Linear_0", "backward"] == (4, 3.0)
    assert compared(PREDICTED, measured("Conv2d_0"))["layers"] == "none"


def test_the_measured_step_is_a_process_from_the_start_on() -> None:
    both = with_measured(PREDICTED, measured("a", "b"))
    times = {one.name: (one.start_s, one.end_s) for one in both.spans if one.row == "measured: compute"}
    assert times["forward"] == (0, 3)
    assert times["backward a"] == (6, 9)
    assert times["update"] == (9, 9.5)
    assert with_measured(PREDICTED, measured()).rows[-1] == "measured: compute"


def test_the_table_has_a_line_a_layer_and_the_most_different_of_many() -> None:
    lines = table_text(compared(PREDICTED, measured("a", "b"))).splitlines()
    assert "layers matched by name" in lines[0]
    assert lines[2].split() == ["a", "forward", "2", "s", "1.5", "s", "0.75"]
    many = Measured(
        origin="x", names=tuple(f"n{k}" for k in range(80)), forward_s=(*(0.1,) * 79, 9.0), backward_s=(0.0,) * 80
    )
    text = table_text(compared(PREDICTED, many))
    assert "n79" in text
    assert "rows that differ less are in the trace's otherData.measured" in text


def test_all_devices_are_drawn_up_to_a_number_unless_it_is_said_otherwise() -> None:
    spec = {"dnn": {"zoo": "alexnet", "batch_per_device": 8}, "configuration": {"all_reduce": {"num_devices": 80}},
            "cluster": {"machines": [{"count": 80, "device": "v100", "network": "10 Gbit/s"}]}}  # fmt: skip
    problem = planner.load(spec)
    family, configuration = configuration_of(problem)
    drawn = {one: timeline(problem, family, configuration, devices=one)["otherData"] for one in (None, "all", "kinds")}
    assert [drawn[one]["devices"] for one in (None, "all", "kinds")] == ["one of each kind", "all", "one of each kind"]
    assert drawn[None]["num_devices"] == 80 > MOST_DRAWN
    spec["configuration"]["all_reduce"]["num_devices"] = 64  # type: ignore[index]
    problem = planner.load(spec)
    family, configuration = configuration_of(problem)
    document = timeline(problem, family, configuration, devices=None)
    assert document["otherData"]["devices"] == "all"
    assert "device 64: compute" in by_row(document)
    with pytest.raises(SpecError, match="--trace-devices: 'some' is not known"):
        timeline(problem, family, configuration, devices="some")
    with pytest.raises(SpecError, match="--trace-iterations: 0 is not from 1 to 100"):
        timeline(problem, family, configuration, num_iterations=0)


def test_a_trace_of_many_devices_is_thinned_but_still_ends_with_the_prediction() -> None:
    spec = {"dnn": {"zoo": "resnet50", "batch_per_device": 8}, "configuration": {"all_reduce": {"num_devices": 48}},
            "cluster": {"machines": [{"count": 48, "device": "v100", "network": "10 Gbit/s"}]}}  # fmt: skip
    problem = planner.load(spec)
    family, configuration = configuration_of(problem)
    from planner.families import FAMILIES

    prediction = planner.predict(problem, configuration)
    wanted = Drawn(devices="all", most_events=3000)
    document = trace_of(FAMILIES[family].timeline(problem, configuration), prediction, wanted, about={})
    assert faults_of(document) == []
    assert 2000 < len(document["traceEvents"]) <= 3000
    assert "thinned to 3,000 events" in document["otherData"]["notes"][-1]
    own = [event for event in document["traceEvents"] if event.get("cat") == "prediction"]
    assert max(event["ts"] + event["dur"] for event in own) / 1e6 == pytest.approx(prediction.iteration_time_s)
    few = Drawn(devices="all", most_events=100)
    with pytest.raises(SpecError, match=r"too many to draw\. Write --trace-devices kinds"):
        trace_of(FAMILIES[family].timeline(problem, configuration), prediction, few, about={})


def test_the_command_line_puts_a_measured_trace_beside_the_prediction(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    spec, file = tmp_path / "spec.yaml", tmp_path / "trace.json"
    spec.write_text(SPEC.format(trace=REAL, count=2))
    options = ["--trace", str(file), "--measured", str(REAL), "--trace-devices", "kinds", "--trace-iterations", "2"]
    assert run(["predict", str(spec), *options]) == 0
    captured = capsys.readouterr()
    assert "predicted and measured, measured in cnn.pt.trace.json.gz (layers matched by name)" in captured.err
    document = json.loads(file.read_text())
    assert faults_of(document) == []
    rows = by_row(document)
    assert rows["measured: compute"][0]["ts"] == 0
    told = document["otherData"]
    assert (told["iterations"], told["devices"]) == (2, "one of each kind")
    assert end_s(document) == pytest.approx(2 * told["iteration_time_s"])
    both = [row for row in told["measured"]["rows"] if row["predicted_s"] and row["measured_s"]]
    assert len(both) > 4
    for row in both:  # the question's layers are those of the same trace, on the same device
        assert row["ratio"] == pytest.approx(1.0, rel=1e-3)
    first = file.read_bytes()
    assert run(["predict", str(spec), *options]) == 0
    assert file.read_bytes() == first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trace-devices", "all"], "--trace-devices: no trace is asked for. Add --trace FILE"),
        (["--measured", "gone.json"], "no trace is asked for. Add --trace FILE"),
        (["--trace", "t.json", "--trace-devices", "some"], "this is neither all nor kinds. Write one of them"),
        (["--trace", "t.json", "--measured", "gone.json"], "there is no such file. Name the file that torch.profiler"),
        (["--trace", "t.json", "--measured", "."], "this is not a regular file"),
        (["--trace", "t.json", "--measured", "spec.yaml"], "spec.yaml: this is no JSON object"),
        (["--trace", "spec.yaml"], "this is the question itself"),
        (["--trace", "copy.json", "--measured", "copy.json"], "this is the measured trace, which would be overwritten"),
        (["--trace", "t.json", "--trace-iterations", "0"], "trace-iterations"),
    ],
)
def test_what_cannot_be_drawn_is_said_with_its_mend(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(SPEC.format(trace=REAL, count=2))
    Path("copy.json").write_bytes(REAL.read_bytes())
    assert run(["predict", "spec.yaml", *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("t.json").exists()


def test_the_commands_of_the_page_on_timelines_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(REAL.name).write_bytes(REAL.read_bytes())
    page = blocks("docs/timeline.md")
    (spec,) = [block for block in page if block.kind == "yaml"]
    write(spec, tmp_path)
    calls = [call for block in page for command in block.commands for call in command.parts]
    assert len(calls) == 3
    for call in calls:
        assert run(list(call.words[1:])) == 0, capsys.readouterr().err
        trace = Path(call.words[call.words.index("--trace") + 1])
        content = trace.read_bytes()
        document = json.loads(gzip.decompress(content) if trace.suffix == ".gz" else content)
        assert faults_of(document) == []
        told = document["otherData"]
        assert end_s(document) == pytest.approx(told["iterations"] * told["iteration_time_s"])
