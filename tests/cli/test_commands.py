"""The command line as its users meet it: what goes to stdout and stderr, and the exit codes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pytest import CaptureFixture
from ruamel.yaml import YAML

import planner
from planner import planning
from planner.answer.schemas import MODELS
from planner.cli.run import run
from planner.errors import NoAnswerError
from planner.networks import computation_bound
from planner.plan import Plan
from planner.problem import Problem
from planner.search import Search

SHORT = ("plan", "--dnn", "resnet50", "--machines", "4x8xrtx-2080-ti", "--network", "25 Gbit/s")


def answer(capsys: CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    code = run(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def document(capsys: CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """The one document on stdout, valid under its own published schema."""
    found, out, _ = answer(capsys, *arguments, "--json")
    assert found == code
    parsed = json.loads(out)
    name = parsed["schema"].removeprefix("planner.").removesuffix("/1")
    jsonschema.validate(parsed, MODELS[name].model_json_schema(by_alias=True))
    return parsed


def test_a_short_question_is_answered_in_forty_lines(capsys: CaptureFixture[str]) -> None:
    code, out, err = answer(capsys, *SHORT)
    assert (code, err) == (0, "")
    assert out.startswith(
        "resnet50 on cluster: all_reduce on 32 devices (4 machines x 8)\n"
        'Proven optimal within the searched space (see "Search space"): epoch time'
    )
    assert "\nSearch space: " in out
    assert len(out.splitlines()) <= 50
    assert "buckets of 25 MiB (PyTorch DDP's default)" in out


def test_a_plan_as_json_is_the_contract(capsys: CaptureFixture[str]) -> None:
    plan = document(capsys, *SHORT)
    assert plan["status"] == "optimal"
    assert plan["objective"]["gap"] == 0
    prediction = plan["prediction"]
    assert sum(prediction["breakdown_s"].values()) == pytest.approx(prediction["iteration_time_s"])
    assert prediction["relative_error"] is None
    groups = plan["configuration"]["fusion_groups"]
    assert len(groups) == prediction["details"]["num_all_reduces"]


def test_equal_questions_give_equal_bytes_in_two_processes() -> None:
    command = [sys.executable, "-m", "planner", *SHORT, "--json", "--top", "3"]
    first, second = (
        subprocess.run(command, capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    )
    assert first == second


def test_a_plan_can_be_written_predicted_and_planned_again(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan = document(capsys, *SHORT, "--out", str(file))
    assert json.loads(file.read_text()) == plan
    prediction = document(capsys, "predict", str(file))
    assert prediction["prediction"] == plan["prediction"]
    assert document(capsys, "plan", str(file))["configuration"] == plan["configuration"]
    code, out, _ = answer(capsys, "predict", str(file))
    assert code == 0
    assert "as given" in out


def test_a_prediction_of_what_does_not_fit_says_so_in_its_first_line(
    capsys: CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "spec.json"
    for zoo, fits in (("llama2-70b", False), ("qwen3-0.6b", True)):
        asked = {
            "dnn": {"zoo": zoo, "global_batch": 8},
            "cluster": {"machines": [{"count": 1, "device": "a100-sxm4-80gb", "devices": 8}]},
            "configuration": {"hybrid": {"data": 8, "global_batch_size": 8}},
        }
        file.write_text(json.dumps(asked))
        _, out, _ = answer(capsys, "predict", str(file))
        assert ("does not fit in memory" in out.splitlines()[0]) is not fits


def test_out_that_cannot_be_written_is_an_error_of_the_input(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = answer(capsys, *SHORT, "--out", str(tmp_path / "no" / "plan.json"))
    assert code == 2
    assert "cannot be written" in err


def test_top_ranks_other_numbers_of_devices(capsys: CaptureFixture[str]) -> None:
    plan = document(capsys, *SHORT, "--global-batch", "1024", "--top", "4")
    names = [one["name"] for one in plan["alternatives"]]
    assert sum(" devices on " in name for name in names) == 4
    losses = {one["name"]: one["relative_loss"] for one in plan["alternatives"]}
    assert list(losses.values()) == sorted(losses.values())
    assert min(losses.values()) >= -1e-12


@pytest.mark.parametrize(
    ("arguments", "code", "kind", "words"),
    [
        (("plan",), 2, "input", "there is no question"),
        (("plan", "none.yaml"), 2, "input", "there is no such file"),
        (("plan", "--dnn", "vgg61", "--cluster", "osf-testbed"), 2, "input", "'vgg61' is not a known network"),
        (("plan", "--dnn", "vgg16", "--cluster", "osf"), 2, "input", "is not a known"),
        (("plan", "--dnn", "vgg16", "--machines", "4-8-a100"), 2, "input", "Write machines x devices x type"),
        (("plan", "--dnn", "vgg16", "--machines", "4xrtx-3090"), 2, "input", "no network between them"),
        (("plan", "--dnn", "vgg16", "--machines", "1000000000xa100", "--network", "1 GB/s"), 2, "input", "are more than"),
        (("plan", "--dnn", "vgg16", "--machines", "4xa100", "--network", "25 Gbit"), 2, "input", "Write it per second"),
        (("plan", "x.yaml", "--dnn", "vgg16"), 2, "input", "a spec and flags are given"),
        ((*SHORT, "--batch", "many"), 2, "input", "--batch"),
        ((*SHORT, "--time-limit", "1"), 2, "input", "The unit is missing"),
        ((*SHORT, "--time-limit", "0 s"), 3, "limit", "time limit"),
        ((*SHORT, "--nonsense"), 2, "input", "--nonsense"),
        (("predict", "none.yaml"), 2, "input", "there is no such file"),
        (("case", "no-such-case"), 2, "input", "no-such-case"),
        (("show", "devices", "h900"), 2, "input", "h900"),
        (("nonsense",), 2, "input", "nonsense"),
    ],
)  # fmt: skip
def test_errors_have_their_exit_code_as_text_and_as_one_document(
    capsys: CaptureFixture[str], arguments: tuple[str, ...], code: int, kind: str, words: str
) -> None:
    found, out, err = answer(capsys, *arguments)
    assert (found, out) == (code, "")
    assert words in err
    assert "Traceback" not in err
    error = document(capsys, *arguments, code=code)
    assert error["schema"] == "planner.error/1"
    assert error["kind"] == kind
    assert words in error["message"]


def test_infeasible_questions_leave_with_1(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "tight.yaml"
    file.write_text("dnn: {zoo: vgg16}\ncluster: {preset: osf-testbed}\nconstraints: {memory_per_device: 1 GiB}\n")
    code, out, err = answer(capsys, "plan", str(file))
    assert (code, out) == (1, "")
    assert err.startswith("No plan fits")
    assert document(capsys, "plan", str(file), code=1)["kind"] == "infeasible"


def test_faults_of_a_file_all_come_with_file_line_value_and_mend(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("dnn: {zoo: vgg16}\ncluster:\n  machines:\n    - {count: 0, device: a100, network: 25 Gbit}\n")
    error = document(capsys, "plan", str(file), code=2)
    assert [(fault["line"], fault["field"], fault["value"]) for fault in error["faults"]] == [
        (4, "cluster.machines.0.count", "0"),
        (4, "cluster.machines.0.network", "'25 Gbit'"),
    ]
    assert all(fault["mend"] and fault["file"] == str(file) for fault in error["faults"])


def test_init_writes_a_spec_that_plans_and_fits_the_schema(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    assert run(["init", str(file)]) == 0
    capsys.readouterr()
    assert document(capsys, "plan", str(file))["status"] == "optimal"
    code, schema, _ = answer(capsys, "schema")
    assert code == 0
    jsonschema.validate(YAML(typ="safe", pure=True).load(file.read_text()), json.loads(schema))
    code, _, err = answer(capsys, "init", str(file))
    assert code == 2
    assert "this file exists" in err
    assert run(["init"]) == 0


@pytest.mark.parametrize("name", ["spec", *MODELS])
def test_every_schema_is_a_schema(capsys: CaptureFixture[str], name: str) -> None:
    code, out, _ = answer(capsys, "schema", name)
    assert code == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(out))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("dnn",), "resnet152"),
        (("dnn", "vgg16"), "138,357,544"),
        (("cluster",), "osf-testbed"),
        (("cluster", "osf-testbed"), "devices: 32"),
        (("devices",), "rtx-2080-ti"),
        (("devices",), "scale-up"),
        (("devices", "2080ti"), "13.45 TFLOP/s"),
        (("devices", "H100"), "1830 MHz"),
        (("links",), "nvlink-4"),
    ],
)
def test_show_prints_what_is_built_in(capsys: CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    code, out, _ = answer(capsys, "show", *arguments)
    assert code == 0
    assert words in out
    assert document(capsys, "show", *arguments)["rows"]


def test_one_device_is_shown_with_the_units_of_its_figures_and_its_source(capsys: CaptureFixture[str]) -> None:
    rows = document(capsys, "show", "devices", "gb200")["rows"]
    shown = {row["field"]: row["value"] for row in rows}
    assert shown["fp4 peak, dense"] == "10000 TFLOP/s"
    assert shown["L2 cache"] == "126 MiB"
    assert (shown["multiprocessors"], shown["scale-up domain, devices"]) == ("152", "72")
    assert "NVIDIA" in shown["source"]
    assert all(value for value in shown.values())


def test_an_unknown_device_is_not_shown_and_the_nearest_name_is(capsys: CaptureFixture[str]) -> None:
    code, _, err = answer(capsys, "show", "devices", "rtx-5091")
    assert code == 2
    assert "rtx-5090" in err


def test_show_reads_spec_files(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    run(["init", str(tmp_path / "spec.yaml")])
    capsys.readouterr()
    for what, words in (("dnn", "conv1_1"), ("cluster", "rtx-2080-ti")):
        code, out, _ = answer(capsys, "show", what, str(tmp_path / "spec.yaml"))
        assert code == 0
        assert words in out


def test_cases_are_listed_and_run(capsys: CaptureFixture[str]) -> None:
    code, out, _ = answer(capsys, "case")
    assert code == 0
    names = out.split()
    assert "osf-scaling-factor" in names
    case = document(capsys, "case", "osf-scaling-factor")
    assert all(row["ok"] for row in case["rows"])
    code, out, _ = answer(capsys, "case", "osf-scaling-factor")
    assert code == 0
    assert "0.9" in out


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m planner show devices | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert done.stderr == ""


PIPEDREAM = ("--machines", "4x4xv100-sxm2-32g", "--network", "10 Gbit/s", "--nics", "1")


@pytest.mark.measured
@pytest.mark.parametrize(
    ("name", "batch", "family"), [("resnet50", 128, "all_reduce"), ("vgg16", 128, "pipeline"), ("alexnet", 256, None)]
)
def test_measured_operator_graphs_are_planned(
    capsys: CaptureFixture[str], data_folder: Path, name: str, batch: int, family: str | None
) -> None:
    file = data_folder / "traces" / "pipedream" / f"{name}.graph.txt"
    plan = document(capsys, "plan", "--dnn", str(file), *PIPEDREAM, "--batch", str(batch))
    assert plan["status"] == "optimal"
    assert plan["objective"]["name"] == "iteration_time_s"
    assert family in (None, plan["family"])


@pytest.mark.measured
def test_a_recurrent_network_is_a_pipeline_even_where_the_limit_strikes(
    capsys: CaptureFixture[str], data_folder: Path
) -> None:
    file = data_folder / "traces" / "pipedream" / "gnmt.graph.txt"
    flags = ("--dnn", str(file), *PIPEDREAM, "--batch", "64")
    plan = document(capsys, "plan", *flags, "--time-limit", "8 s")
    alone = document(capsys, "plan", *flags, "--families", "all_reduce")
    assert (plan["family"], alone["status"]) == ("pipeline", "optimal")
    assert plan["objective"]["value"] < alone["objective"]["value"] / 2
    # How far the proof comes depends on the clock; no less than what is known without any search.
    least = computation_bound(planner.load(plan["problem"]))
    assert 0 < least <= plan["objective"]["bound"] <= plan["objective"]["value"]


def test_the_shipped_trace_is_planned(capsys: CaptureFixture[str]) -> None:
    file = Path(__file__).parents[2] / "planner" / "data" / "examples" / "alexnet-k80.trace.txt"
    plan = document(capsys, "plan", "--dnn", str(file), "--cluster", "dag-k80", "--batch", "1024")
    assert plan["status"] == "optimal"
    assert plan["prediction"]["iteration_time_s"] == pytest.approx(16.83, rel=0.1)


def test_a_trace_shows_devices_and_links_as_rows_and_arrows_between_them(
    capsys: CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "trace.json"
    plan = document(capsys, *SHORT, "--trace", str(file), "--trace-devices", "kinds")
    events = json.loads(file.read_text())["traceEvents"]
    rows = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"each of 32 devices: compute", "network"} <= rows
    transfers = [event for event in events if event["ph"] == "X" and event["name"].startswith("all-reduce")]
    assert len(transfers) == len(plan["configuration"]["fusion_groups"])
    assert sum(event["ph"] == "s" for event in events) == sum(event["ph"] == "f" for event in events) > 0


FAMILY_SPECS = {
    "parameter_server": "dnn: {zoo: vgg16, batch_per_device: 32}\ncluster: {preset: gst-1g}\n"
    "configuration: {parameter_server: {num_parameter_servers: 1}}\n",
    "model_replicas": "dnn: {zoo: adam-mnist, batch_per_device: 70}\ncluster: {preset: adam-20}\n"
    "calibration: {cores: 16}\n"
    "configuration: {model_replicas: {num_parameter_servers: 2, num_replicas: 9, num_workers_per_replica: 2}}\n",
}


@pytest.mark.parametrize("family", FAMILY_SPECS)
def test_every_family_is_predicted_and_reads_back_what_it_prints(
    capsys: CaptureFixture[str], tmp_path: Path, family: str
) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(FAMILY_SPECS[family])
    first = document(capsys, "predict", str(file))
    prediction = first["prediction"]
    assert sum(prediction["breakdown_s"].values()) == pytest.approx(prediction["iteration_time_s"])
    assert prediction["relative_error"] is None
    file.write_text(json.dumps({**first["problem"], "configuration": {family: first["configuration"]}}))
    second = document(capsys, "predict", str(file))
    assert (second["prediction"], second["configuration"]) == (prediction, first["configuration"])
    code, out, _ = answer(capsys, "predict", str(file))
    assert code == 0
    assert "as given" in out
    code, _, _ = answer(capsys, "predict", str(file), "--trace", str(tmp_path / "t.json"))
    assert code == 0
    assert json.loads((tmp_path / "t.json").read_text())["otherData"]["family"] == family


WORKERS = "num_parameter_servers: 2, num_replicas: 1, num_workers_per_replica: 2"


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ("num_parameter_servers: 3, num_replicas: 9, num_workers_per_replica: 2", "C1: 3 servers"),
        (WORKERS + ", layers: [{threads: 17}, {}, {}, {}, {}, {}, {}]", "C2: "),
        (WORKERS + ", layers: [{partitions: 3}, {}, {}, {}, {}, {}, {}]", "C3: "),
        (WORKERS + ", layers: [{workers: [[0, 0]]}, {}, {}, {}, {}, {}, {}]", "C3: "),
        (WORKERS + ", layers: [{}]", "the network has 7"),
    ],
)
def test_a_replica_configuration_that_breaks_a_constraint_names_it(
    capsys: CaptureFixture[str], tmp_path: Path, block: str, words: str
) -> None:
    file = tmp_path / "spec.yaml"
    head = FAMILY_SPECS["model_replicas"].split("configuration")[0]
    file.write_text(f"{head}configuration: {{model_replicas: {{{block}}}}}\n")
    code, _, err = answer(capsys, "predict", str(file))
    assert code == 2
    assert words in err


@pytest.mark.parametrize(("parameters", "is_known"), [("102.4 MB", True), ("12 MB", False), ("1.36 GB", False)])
def test_a_measured_network_of_the_measured_size_carries_the_known_error(
    capsys: CaptureFixture[str], tmp_path: Path, parameters: str, is_known: bool
) -> None:
    layers = f"[{{name: a, forward: 20 ms, backward: 40 ms, parameters: {parameters}, output: 4 kB}}]"
    file = tmp_path / "spec.yaml"
    file.write_text(
        f"dnn: {{layers: {layers}, profile_batch: 32, batch_per_device: 32}}\n"
        "cluster: {machines: [{count: 4, devices: 4, device: rtx-2080-ti, inside: pcie-3-x16, network: 100 Gbit/s}]}\n"
        "objective: iteration_time\nfamilies: [all_reduce]\n"
    )
    found = document(capsys, "plan", str(file))["prediction"]["relative_error"]
    assert (found is not None and found["from"] == "measured-hkbu-resnet50") is is_known


def test_an_estimate_carries_no_error_and_neither_does_another_network(capsys: CaptureFixture[str]) -> None:
    file = Path(__file__).parents[2] / "planner" / "data" / "examples" / "alexnet-k80.trace.txt"
    plan = document(capsys, "plan", "--dnn", str(file), "--cluster", "dag-k80", "--batch", "1024")
    assert plan["prediction"]["relative_error"] is None
    assert document(capsys, *SHORT)["prediction"]["relative_error"] is None


@pytest.mark.parametrize("command", [SHORT, ("procure", "--dnn", "resnet50", "--global-batch", "64")])
@pytest.mark.parametrize("address", ["nonsense", "", "tcp://127.0.0.1", "tcp://a b:8786"])
def test_what_is_no_address_of_a_scheduler_is_refused_though_a_short_search_asks_none(
    capsys: CaptureFixture[str], command: tuple[str, ...], address: str
) -> None:
    code, out, err = answer(capsys, *command, "--scheduler", address)
    assert (code, out) == (2, "")
    assert f"--scheduler': {address!r} is no address of a scheduler" in err


@pytest.mark.parametrize(
    "command", [SHORT, ("procure", "--dnn", "resnet50", "--global-batch", "64"), ("sweep", "none.yaml")]
)
def test_a_scheduler_where_nobody_listens_is_refused_though_a_short_search_asks_none(
    capsys: CaptureFixture[str], command: tuple[str, ...]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        code, out, err = answer(capsys, *command, "--scheduler", address)
    assert (code, out) == (2, "")
    assert f"--scheduler: {address}: no Dask scheduler answers there" in err


@pytest.mark.parametrize("argument", ["--json", "--top=1"])
def test_a_search_that_is_stopped_before_any_answer_says_so_and_leaves_as_interrupted(
    capsys: CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    def stopped(problem: Problem, search: Search) -> Plan:
        signal.raise_signal(signal.SIGINT)
        assert search.was_interrupted
        raise NoAnswerError("nothing yet")

    monkeypatch.setattr(planning, "planned", stopped)
    code, out, err = answer(capsys, *SHORT, argument)
    assert code == 130
    assert "it was stopped before any answer was found" in (out if argument == "--json" else err)


@pytest.mark.parametrize(
    "command", [SHORT, ("procure", "--dnn", "resnet50", "--global-batch", "64"), ("sweep", "none.yaml")]
)
def test_what_cannot_be_a_host_is_refused(capsys: CaptureFixture[str], command: tuple[str, ...]) -> None:
    for place in ("a..b:8786", f"{'a' * 70}:8786", f"127.0.0.1:{'9' * 5000}"):
        code, out, err = answer(capsys, *command, "--scheduler", f"TCP://{place}")
        assert (code, out) == (2, ""), place
        assert "no Dask scheduler answers there" in err


@pytest.mark.parametrize(
    "command", [SHORT, ("procure", "--dnn", "resnet50", "--global-batch", "64"), ("sweep", "none.yaml")]
)
def test_two_kinds_of_workers_at_once_are_refused(capsys: CaptureFixture[str], command: tuple[str, ...]) -> None:
    code, out, err = answer(capsys, *command, "--workers", "2", "--scheduler", "tcp://127.0.0.1:8786")
    assert (code, out) == (2, "")
    assert "Give one of the two" in err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert re.fullmatch(r"planner \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        (("--nics", "2"), ("cluster", "machines", 0, "nics"), 2),
        (("--precision", "fp16"), ("dnn", "dtype"), "fp16"),
        (("--sequence-length", "128"), ("dnn", "sequence_length"), 128),
        (("--network", "2 x 100 Gbit/s"), ("cluster", "machines", 0, "nics"), 2),
    ],
)
def test_no_spec_is_needed_for_cards_precision_and_sequence(
    capsys: CaptureFixture[str], flags: tuple[str, ...], key: tuple[str | int, ...], value: object
) -> None:
    question = (
        "plan",
        "--dnn",
        "bert-base",
        "--machines",
        "2xdgx-h100",
        "--global-batch",
        "64",
        "--families",
        "all_reduce",
    )
    found: Any = document(capsys, *question, *flags)["problem"]
    for part in key:
        found = found[part]
    assert found == value


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--machines", "4xdgx-h1000"), "--machines: 'dgx-h1000' is not a known device or machine. Did you mean"),
        (("--machines", "1x16xh100-sxm"), "HGX H100 has 8, and nvlink-4 reaches no further"),
        (("--machines", "2x8xh100-sxm", "--nics", "4", "--network", "8 x 400 Gbit/s"), "has 8 cards, and nics says 4"),
        (("--machines", "2x8xh100-sxm", "--nics", "0"), "too small"),
        (
            ("--machines", "2x8xh100-sxm", "--precision", "fp9"),
            "it must be 'fp32', 'tf32', 'fp16', 'bf16', 'fp8', 'mxfp8' or 'nvfp4'",
        ),
        (("--cluster", "osf-testbed", "--nics", "4"), "--cluster describes the machines already"),
    ],
)
def test_a_machine_or_a_flag_that_means_nothing_is_refused(
    capsys: CaptureFixture[str], flags: tuple[str, ...], words: str
) -> None:
    code, out, err = answer(capsys, "plan", "--dnn", "bert-base", "--global-batch", "64", *flags)
    assert (code, out) == (2, "")
    assert words in err


def test_show_machines_tells_where_each_figure_stands(capsys: CaptureFixture[str]) -> None:
    rows = document(capsys, "show", "machines")["rows"]
    assert all(row["source"] for row in rows)
    assert "32" in answer(capsys, "show", "machines", "p5.48xlarge")[1]
