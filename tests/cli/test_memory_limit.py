"""``--memory-limit``: where it stands, what it refuses, and that beyond it there is an exit code and no traceback."""

import json
from pathlib import Path

import pytest

from planner import planning, targets
from planner.cli.output import check_outputs
from planner.cli.run import run
from planner.memory import resident_bytes
from planner.sweep.question import load_sweep

QUESTION = {
    "dnn": {"zoo": "alexnet", "global_batch": 64},
    "cluster": {"machines": [{"count": 2, "device": "rtx-2080-ti", "network": "10 Gbit/s"}]},
    "families": ["all_reduce"],
}


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "question.json"
    path.write_text(json.dumps(QUESTION))
    return str(path)


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_a_limit_above_what_the_program_holds_changes_no_answer(
    command: str, spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for options in ([], ["--memory-limit", f"{resident_bytes() + 2**31} B"]):
        assert run([command, spec, "--json", *options]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]


@pytest.mark.parametrize(("text", "code"), [("1 MiB", 3), ("2 furlongs", 2), ("", 2), ("-1 GiB", 2), ("1e400 B", 2)])
@pytest.mark.parametrize("command", ["plan", "predict", "explain", "procure", "sweep"])
def test_a_limit_below_what_the_program_holds_or_none_is_refused(
    command: str, text: str, code: int, spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, spec, "--memory-limit", text]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "--memory-limit: " in err
    assert "Traceback" not in err


def test_python_refused_memory_is_a_limit_and_no_bug(
    spec: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(planning, "asked", lambda problem: bytearray(2**40))
    code = run(["plan", spec, "--memory-limit", f"{resident_bytes() + 2**29} B"])
    assert code == 3
    assert "--memory-limit" in capsys.readouterr().err
    assert len(bytearray(2**30)) == 2**30  # the ceiling is gone with the command


def test_a_limit_that_is_given_belongs_to_the_identity_of_a_sweep_and_a_default_does_not() -> None:
    question = {**QUESTION, "sweep": {"vary": {"dnn.global_batch": [32, 64]}}}
    given = [load_sweep(question, time_limit_s=1.0, memory_limit_bytes=one).identity for one in (None, None, 2.0**31)]
    assert given[0] == given[1] != given[2]
    other = load_sweep(question, time_limit_s=1.0, num_workers=4)
    assert other.identity == given[0]


def test_words_of_a_question_that_are_no_files_are_not_compared_with_every_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [{"name": f"l{one}", "parameters": f"{4 * one} B"} for one in range(2000)]
    spec, out = tmp_path / "question.json", tmp_path / "plan.json"
    spec.write_text(json.dumps({**QUESTION, "dnn": {"layers": layers, "global_batch": 64}}))
    out.write_text("")
    compared: list[Path] = []

    def differs(path: Path, other: Path) -> bool:
        compared.append(other)
        return False

    monkeypatch.setattr(targets, "_is_same", differs)
    check_outputs({"--out": out}, spec)
    assert 0 < len(compared) < 10


def test_a_page_of_very_many_layers_leaves_out_the_schedule_and_says_so(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import planner.answer.plan

    monkeypatch.setattr(planner.answer.plan, "_MOST_LAYERS", 5)
    page = tmp_path / "page.html"
    assert run(["plan", spec, "--html", str(page), "--no-explain"]) == 0
    assert "too many to draw what runs when" in page.read_text()
