"""Names that a terminal would obey, a format would fill in, or a table would run: no answer and no file passes them on."""

import csv
import json
import shutil
import subprocess
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pytest import CaptureFixture
from ruamel.yaml import YAML

import planner
from planner.cli.run import run
from planner.errors import SpecError
from planner.exporters import TARGETS
from planner.importers import chrome_trace as events
from planner.importers.chrome_trace import read_trace
from planner.letters import table_cell, visible, visible_json
from planner.network_import import import_file

EVIL = "a\x1b[31m\x9b2J\u202e\u2066\u200f\u200b\u2028\u2029\x85\x00\x7f"
BRACES = "x{} {0} {name} {0[a]} %s %(x)d [bold] <b>{{"


def question(name: str) -> dict[str, Any]:
    device = {"name": f"{name} device", "kind": "gpu", "fp32": "10 TFLOP/s", "memory": "16 GiB", "source": name}
    layers = [
        {"name": f"{name} 1", "kind": f"{name} kind", "multiply_adds": 1e9, "parameters": "4 MB", "output": "1 MB"},
        {"name": f"{name} 2", "multiply_adds": 1e9, "parameters": "8 MB", "output": "1 MB", "inputs": [f"{name} 1"]},
        {"name": f"{name} 3", "multiply_adds": 2e9, "parameters": "2 MB", "output": "1 MB", "inputs": [f"{name} 2"]},
    ]
    machines = {"device": device, "devices": 2, "inside": {"bandwidth": "10 GB/s"}, "network": "10 Gbit/s"}
    return {
        "dnn": {"name": name, "layers": layers, "batch_per_device": 8, "dataset_samples": 1000, "warnings": [name]},
        "cluster": {
            "name": f"{name} cluster",
            "source": name,
            "machines": [{"name": f"{name} group", "count": 2, "source": name, **machines}],
        },
        "calibration": {"source": name, "known_error": [{"of": name, "mean": 0.1, "worst": 0.2, "source": name}]},
        "families": ["all_reduce", "parameter_server", "pipeline"],
    }


def is_shown(text: str) -> bool:
    """Whether a text has lines of letters that can be printed, and tabs."""
    return all(letter.isprintable() or letter in "\n\t" for letter in text)


@pytest.fixture(params=[EVIL, BRACES], ids=["controls", "braces"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(question(request.param)))
    return file


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "SPEC", "--out", "OUT/plan.json", "--trace", "OUT/t.json", "--trace-devices", "all", "--top", "3"),
        ("plan", "SPEC", "--json"),
        ("explain", "SPEC"),
        ("show", "dnn", "SPEC"),
        ("show", "cluster", "SPEC"),
    ],
)
def test_no_answer_hands_a_name_to_the_terminal_as_it_is(
    capsys: CaptureFixture[str], spec: Path, arguments: tuple[str, ...]
) -> None:
    given = [one.replace("SPEC", str(spec)).replace("OUT", str(spec.parent)) for one in arguments]
    assert run(given) == 0
    out, err = capsys.readouterr()
    assert is_shown(out), out
    assert is_shown(err), err
    for file in spec.parent.glob("*.json"):
        assert file == spec or is_shown(file.read_text()), file


@pytest.mark.parametrize("family", ["all_reduce", "parameter_server", "pipeline"])
def test_a_timeline_of_every_device_takes_any_name(capsys: CaptureFixture[str], spec: Path, family: str) -> None:
    data = {**json.loads(spec.read_text()), "families": [family]}
    group = data["cluster"]["machines"][0]
    other = {**group, "name": f"{group['name']} b", "device": {**group["device"], "name": "other", "fp32": "7 TFLOP/s"}}
    data["cluster"]["machines"].append(other)
    spec.write_text(json.dumps(data))
    trace = spec.parent / "trace.json"
    assert run(["plan", str(spec), "--trace", str(trace), "--trace-devices", "all"]) == 0, capsys.readouterr().err
    assert is_shown(capsys.readouterr().out)
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_plan_with_such_names_is_read_back_and_is_what_it_says(capsys: CaptureFixture[str], spec: Path) -> None:
    plan = spec.parent / "plan.json"
    assert run(["plan", str(spec), "--out", str(plan)]) == 0
    capsys.readouterr()
    for command in ("check", "predict", "explain", "compare"):
        assert run([command, *[str(plan)] * (1 + (command == "compare"))]) == 0, capsys.readouterr()
        out, err = capsys.readouterr()
        assert is_shown(out + err)


def test_two_plans_are_not_told_apart_by_names_as_they_are(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    """Not by those of their files, nor by what their questions, which stay as they are written, have of each."""
    plans = [tmp_path / f"{index}{EVIL[:12]}.json" for index in range(2)]
    for plan, name in zip(plans, ("plain", EVIL), strict=True):
        asked = {**question(name), "families": ["all_reduce"]}
        (tmp_path / "spec.json").write_text(json.dumps(asked))
        assert run(["plan", str(tmp_path / "spec.json"), "--out", str(plan)]) == 0
    assert is_shown("".join(capsys.readouterr()))
    for option in ((), ("--json",)):
        assert run(["compare", *map(str, plans), *option]) == 0
        assert is_shown("".join(capsys.readouterr()))


def test_every_launch_file_can_be_read_by_its_program(capsys: CaptureFixture[str], spec: Path) -> None:
    plan = spec.parent / "plan.json"
    assert run(["plan", str(spec), "--out", str(plan)]) == 0
    written = 0
    for target in TARGETS:
        folder = spec.parent / target
        code = run(
            ["export", str(plan), "--to", target, "--out", str(folder), "--image", "img", "--script", "train.py"]
        )
        assert code in (0, 1, 2), capsys.readouterr()
        out, err = capsys.readouterr()
        assert is_shown(out + err)
        for file in folder.glob("*") if folder.is_dir() else ():
            text = file.read_text()
            assert is_shown(text), file
            written += 1
            if file.suffix in (".yaml", ".yml"):
                assert list(YAML(typ="safe", pure=True).load_all(StringIO(text)))
            elif file.suffix == ".json":
                json.loads(text)
            elif file.suffix == ".py":
                compile(text, str(file), "exec")
            elif file.suffix == ".sh" and (shell := shutil.which("bash")):
                subprocess.run([shell, "-n", str(file)], check=True)
    assert written


def test_a_profile_s_names_are_spelled_out_where_they_enter(tmp_path: Path) -> None:
    table = tmp_path / "net.csv"
    table.write_text('name,forward_s,backward_s,output_bytes\n"a\x1b[31m",0.1,0.2,8\n"b\u202e",0.1,0.2,8\n')
    found = import_file(table, batch_size=4)
    assert found.dnn is not None
    assert [layer.name for layer in found.dnn.layers] == [r"a\x1b[31m", r"b\u202e"]
    trace = tmp_path / "t.trace.txt"
    trace.write_text("Id Name Forward Backward Comm. Size\n0 data\u200b 1 0 0 0\n1 conv\u202e1 1 2 3 4\n")
    found = import_file(trace, batch_size=4)
    assert found.dnn is not None
    assert [layer.name for layer in found.dnn.layers] == [r"data\u200b", r"conv\u202e1"]


def test_a_file_s_own_name_is_spelled_out(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    table = tmp_path / "net\x1b[31m\u202e.csv"
    table.write_text("name,forward_s,backward_s,output_bytes\na,0.1,0.2,8\nb,0.1,0.2,8\n")
    code = run(["plan", "--dnn", str(table), "--cluster", "osf-testbed", "--batch", "4"])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert is_shown(out + err)
    assert r"net\x1b[31m\u202e" in out
    spec = tmp_path / "spec.json"
    spec.write_text(
        json.dumps({"dnn": {"trace": table.name, "batch_per_device": 4}, "cluster": {"preset": "osf-testbed"}})
    )
    assert run(["predict", str(spec)]) == 2
    assert is_shown(capsys.readouterr().err)


def test_names_that_become_equal_are_refused_and_none_is_dropped() -> None:
    data = question("net")
    data["dnn"]["layers"][0]["name"] = "net 2\x1b"
    data["dnn"]["layers"][1]["name"] = "net 2\\x1b"
    data["dnn"]["layers"][1]["inputs"] = []
    data["dnn"]["layers"][2]["inputs"] = []
    with pytest.raises(SpecError, match="stands twice"):
        planner.load(data)


def test_a_table_of_a_sweep_holds_no_formula(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    names = ["=1+1", "+cmd", "-cmd|x", "@sum", "\tx", "\rx", "plain", "-1.5", EVIL]
    data = {**question("net"), "sweep": {"vary": {"dnn.name": names}}}
    spec, out = tmp_path / "sweep.json", tmp_path / "rows.csv"
    spec.write_text(json.dumps(data))
    store = tmp_path / "store.sqlite"
    assert run(["sweep", str(spec), "--store", str(store), "--export", str(out)]) == 0, capsys.readouterr().err
    printed = capsys.readouterr()
    assert is_shown(printed.out + printed.err)
    rows = list(csv.DictReader(StringIO(out.read_text(), newline="")))
    found = [row["dnn.name"] for row in rows]
    assert found == ["'=1+1", "'+cmd", "'-cmd|x", "'@sum", r"\tx", r"\rx", "plain", "-1.5", visible(EVIL)]
    assert is_shown(out.read_text())
    assert all(float(row["objective"]) > 0 for row in rows)


def test_numbers_of_a_table_stay_numbers() -> None:
    given = [-1.5, "-1.5", "-1e-3", "+2", "=2", "-x", None, True, "a-b"]
    assert [table_cell(one) for one in given] == [-1.5, "-1.5", "-1e-3", "+2", "'=2", "'-x", None, True, "a-b"]


def test_what_is_spelled_out_stays_as_it_is() -> None:
    assert visible(visible(EVIL)) == visible(EVIL)
    assert json.loads(visible_json(json.dumps(EVIL, ensure_ascii=False))) == EVIL
    assert visible("Größe 网络 naïve") == "Größe 网络 naïve"


def test_a_trace_that_is_too_large_is_refused_by_its_size(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    with file.open("wb") as stream:
        stream.write(b'{"traceEvents": [')
        stream.truncate(3 * 2**29)
    with pytest.raises(SpecError, match="it holds 1610612736 bytes, more than 1073741824"):
        read_trace(file)


def test_blanks_without_end_are_refused_before_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(b'{"traceEvents": [' + b" " * (64 * 2**20))
    read: list[int] = []
    more = events._Reader._more

    def counted(reader: events._Reader) -> bool:
        read.append(1)
        return more(reader)

    monkeypatch.setattr(events._Reader, "_more", counted)
    with pytest.raises(SpecError, match="more than 1048576 blanks in a row"):
        read_trace(file)
    assert len(read) < 5


def test_elements_that_are_no_events_are_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MOST_ELEMENTS", 1000)
    file = tmp_path / "trace.json"
    file.write_text('{"traceEvents": [' + "0," * 2000 + "0]}")
    with pytest.raises(SpecError, match="more than 1,000 events"):
        read_trace(file)
