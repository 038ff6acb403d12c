"""Flags do what they say: files by their content, ``-`` for stdout, libraries asked for before any search."""

import json
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import pytest
from pytest import CaptureFixture, MonkeyPatch

import planner
from planner.cli.question import ShortQuestion, source_of
from planner.cli.run import run
from planner.errors import SpecError
from planner.network_import import import_file


def event(cat: str, name: str, start: float, length: float, thread: int = 1, args: Any = None) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": length,
        "args": args or {},
    }


def trace_of(path: Path, *, gpu: str = "") -> Path:
    """A trace of one step of one linear layer, on a CPU unless a GPU is named."""
    events = [
        event("user_annotation", "ProfilerStep#1", 0, 100),
        event("python_function", "nn.Module: Linear_0", 2, 10),
        event("cpu_op", "aten::linear", 3, 4, args={"Sequence number": 1, "Input Dims": [[16, 4], [6, 4], [6]]}),
        event(
            "cpu_op",
            "autograd::engine::evaluate_function: AddmmBackward0",
            50,
            8,
            2,
            args={"Sequence number": 1, "Fwd thread id": 1},
        ),
    ]
    properties = {"deviceProperties": [{"id": 0, "name": gpu}]} if gpu else {}
    path.write_text(json.dumps({"schemaVersion": 1, **properties, "traceEvents": events}))
    return path


@pytest.mark.parametrize("name", ["trace.json", "profile", "trace.yaml"])
def test_a_trace_is_known_by_its_content_whatever_its_name(
    tmp_path: Path, capsys: CaptureFixture[str], name: str
) -> None:
    trace = trace_of(tmp_path / name)
    assert source_of(str(trace)) == "profile"
    assert run(["plan", "--dnn", str(trace), "--machines", "2xv100", "--network", "10 Gbit/s", "--batch", "16"]) == 0
    assert "Proven optimal" in capsys.readouterr().out


def test_a_bare_name_is_the_zoo_s_whatever_lies_in_this_folder(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    trace_of(tmp_path / "vgg16")
    monkeypatch.chdir(tmp_path)
    assert source_of("vgg16") == "zoo"
    assert source_of("./vgg16") == "profile"


def test_a_file_that_is_no_network_is_told_so_and_not_that_the_zoo_has_none_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    with pytest.raises(SpecError, match=r"picture\.png: dnn: this file is no network that is known here"):
        source_of(str(tmp_path / "picture.png"))
    assert source_of(str(tmp_path / "none.png")) == "zoo"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--global-batch", "1,024"], "'--global-batch': it must be a whole number, in digits alone, e.g. 1024. Try"),
        (["--epochs", "many"], "'--epochs': it must be a number, e.g. 1.5. Try"),
        (["--top", "101"], "'--top': it must be 100 or less. Try"),
        (["--workers", "0"], "'--workers': it must be 1 or more. Try"),
        (["--precision", "bf16", "--dtype", "fp16"], "--dtype: --precision says another one. Give one of them."),
    ],
)
def test_flags_are_refused_in_the_words_of_this_program(
    capsys: CaptureFixture[str], flags: list[str], words: str
) -> None:
    assert run(["plan", "--dnn", "alexnet", "--machines", "2xv100", "--network", "10 Gbit/s", *flags]) == 2
    assert words in capsys.readouterr().err
    assert run(["plna"]) == 2
    assert capsys.readouterr().err == "command line: No such command 'plna'. Did you mean 'plan'? Try --help.\n"


def test_a_precision_may_be_said_twice() -> None:
    asked = [
        ShortQuestion(dnn="vgg16", machines="2xv100", precision="bf16", dtype=dtype).asked(None)
        for dtype in ("bf16", None, "BF16", "bfloat16")
    ]
    assert all(one == asked[0] for one in asked)
    named = ShortQuestion(dnn="vgg16", machines="2xv100", network="10 Gbit/s", dtype="Float16").asked(None)
    assert planner.load(named).training.dtype == "fp16"


def test_init_with_a_dash_writes_to_stdout_and_makes_no_file(
    tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["init"]) == 0
    expected = capsys.readouterr().out
    assert run(["init", "-"]) == 0
    assert capsys.readouterr().out == expected
    assert not list(tmp_path.iterdir())


def test_show_alone_lists_what_can_be_shown(capsys: CaptureFixture[str]) -> None:
    assert run(["show"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[2:8]] == [
        "dnn",
        "cluster",
        "devices",
        "links",
        "machines",
        "prices",
    ]
    assert run(["show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["what"] == "dnn"


@pytest.mark.parametrize(("one", "same"), [("dgx-h100", "1xdgx-h100"), ("2 x 4 x h100", "2x4xh100")])
def test_machines_are_not_refused_for_how_people_write_them(one: str, same: str) -> None:
    first, second = (ShortQuestion(dnn="vgg16", machines=machines).asked(None) for machines in (one, same))
    assert first == second


@pytest.fixture
def without(monkeypatch: MonkeyPatch) -> Any:
    """Hides libraries as if they were not installed, and forbids every search."""
    find = PathFinder.find_spec

    def hide(*names: str) -> None:
        def find_others(name: str, *given: Any) -> ModuleSpec | None:
            return None if name.split(".", maxsplit=1)[0] in names else find(name, *given)

        monkeypatch.setattr(PathFinder, "find_spec", staticmethod(find_others))
        for name in names:
            monkeypatch.delitem(__import__("sys").modules, name, raising=False)
        monkeypatch.setattr(planner.api, "plan", None)

    return hide


@pytest.mark.parametrize(
    ("missing", "extra", "options"),
    [("distributed", "distributed", ["--workers", "2"]), ("cryptography", "distributed", ["--workers", "2"])],
)
def test_a_missing_library_is_named_with_its_extra_before_the_search(
    without: Any, capsys: CaptureFixture[str], missing: str, extra: str, options: list[str]
) -> None:
    without(missing)
    assert run(["plan", "--dnn", "vgg16", "--cluster", "osf-testbed", *options]) == 2
    err = capsys.readouterr().err
    assert missing in err
    assert f"training-planner[{extra}]" in err


def test_an_imported_trace_keeps_the_batch_that_was_measured(tmp_path: Path) -> None:
    found = import_file(trace_of(tmp_path / "trace.json"), batch_size=16)
    assert found.block["profile_batch"] == 16
    (layer,) = found.block["layers"]
    assert (layer["forward"], layer["backward"]) == ("4 us", "8 us")
    question = {
        "dnn": {**found.block, "batch_per_device": 16},
        "cluster": {"machines": [{"count": 2, "device": "v100", "network": "10 Gbit/s"}]},
    }
    problem = planner.load(question)
    (profile,) = problem.profiles.values()
    assert "batch 16" in profile.origin
    assert profile.forward_s.tolist() == [4e-06 / 16]


@pytest.mark.parametrize(
    ("gpu", "device", "given", "words"),
    [
        ("", "v100", {}, "measured on a CPU, as the trace says, and are taken for those of v100"),
        (
            "NVIDIA A100-SXM4-40GB",
            "v100",
            {},
            "measured on NVIDIA A100-SXM4-40GB, as the trace says, and are taken for",
        ),
        ("Tesla V100-SXM2-16GB", "v100", {}, ""),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti", {}, ""),
        ("NVIDIA A100-SXM4-40GB", "v100", {"profile_device": "a100"}, ""),
    ],
)
def test_seconds_of_another_device_are_not_taken_without_a_warning(
    tmp_path: Path, gpu: str, device: str, given: dict[str, str], words: str
) -> None:
    trace = trace_of(tmp_path / "trace.json", gpu=gpu)
    cluster = {"machines": [{"count": 2, "device": device, "network": "10 Gbit/s"}]}
    problem = planner.load({"dnn": {"profile": str(trace), "batch_per_device": 16, **given}, "cluster": cluster})
    told = [line for line in problem.warnings if "as the trace says" in line]
    assert len(told) == bool(words)
    assert all(words in line and line.count("v100") for line in told)
    if not given and words:
        assert any("measured on" in line for line in import_file(trace, batch_size=16).warnings)


def test_what_is_shown_of_a_cluster_has_no_line_without_a_value(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    spec = tmp_path / "own.yaml"
    spec.write_text("dnn: {zoo: resnet18}\ncluster: {machines: [{count: 1, devices: 2, device: rtx-3090}]}\n")
    assert run(["show", "cluster", str(spec)]) == 0
    assert not any(line.rstrip().endswith(":") for line in capsys.readouterr().out.splitlines())
    assert run(["show", "cluster", "osf-testbed"]) == 0
    assert "source: Liu et al." in capsys.readouterr().out
