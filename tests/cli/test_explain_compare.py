"""``planner explain`` and ``planner compare`` as their users meet them, hostile files included."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from answers import explanation_text
from pytest import CaptureFixture

import planner
from planner import explanation, planning
from planner.answer.schemas import MODELS
from planner.cli.run import run
from planner.errors import NoAnswerError
from planner.plan import Plan
from planner.problem import Problem
from planner.ranking import best_plan
from planner.search import Search

SPEC = "dnn: {zoo: alexnet, batch_per_device: 32}\ncluster: {preset: osf-testbed}\nfamilies: [all_reduce]\n"
HEAD = """
dnn:
  zoo: vgg16
  batch_per_device: 32
  substitutions: [{name: head, layers: [fc6, ..., fc8], by: vgg16-conv-head}]
cluster: {preset: osf-testbed}
families: [all_reduce]
"""


def answer(capsys: CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(arguments)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert "a bug of ours" not in err, err
    return code, out, err


def document(capsys: CaptureFixture[str], *arguments: str) -> Any:
    code, out, _ = answer(capsys, *arguments, "--json")
    assert code == 0
    parsed = json.loads(out)
    name = parsed["schema"].removeprefix("planner.").removesuffix("/1")
    jsonschema.validate(parsed, MODELS[name].model_json_schema(by_alias=True))
    return parsed


@pytest.fixture
def spec(tmp_path: Path) -> str:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)
    return str(file)


@pytest.fixture
def plan(capsys: CaptureFixture[str], tmp_path: Path, spec: str) -> str:
    file = str(tmp_path / "plan.json")
    assert answer(capsys, "plan", spec, "--out", file)[0] == 0
    return file


def test_a_plan_and_its_spec_are_explained_alike(capsys: CaptureFixture[str], plan: str, spec: str) -> None:
    of_plan, of_spec = document(capsys, "explain", plan), document(capsys, "explain", spec)
    assert of_plan["sensitivities"] == of_spec["sensitivities"]
    assert of_plan["binding"] == of_spec["binding"]
    code, out, err = answer(capsys, "explain", plan)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) <= 40
    assert "In short: " in out


def test_a_plan_with_substitutions_is_explained_on_its_own_network(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    spec, file = tmp_path / "head.yaml", str(tmp_path / "head.json")
    spec.write_text(HEAD)
    assert answer(capsys, "plan", str(spec), "--out", file)[0] == 0
    found = document(capsys, "explain", file)
    assert found["substitutions"] == ["head"]
    assert [one["substitutions"] for one in found["runners_up"]] == [["head"], []]
    _, out, _ = answer(capsys, "explain", file)
    assert out.startswith("vgg16 on osf-testbed: all_reduce on 32 devices (4 machines x 8), with head\n")
    assert "without head: all_reduce" in out


def test_a_plan_that_claims_too_much_is_explained_as_what_it_is(capsys: CaptureFixture[str], plan: str) -> None:
    stated = json.loads(Path(plan).read_text())
    stated["objective"]["value"] /= 2
    Path(plan).write_text(json.dumps(stated))
    found = document(capsys, "explain", plan)
    assert found["status"] == "feasible"
    assert found["objective"]["value"] == pytest.approx(2 * stated["objective"]["value"])
    assert any("the file says" in warning for warning in found["warnings"])


@pytest.mark.parametrize(
    ("value", "bound", "doubt"),
    [(2.0, 2.0, "this version's cost model says"), (1.0, 1.5, "is above its own"), (1.0, 0.5, "the file says optimal")],
)
def test_a_proof_that_contradicts_itself_or_the_model_is_not_taken_over(
    capsys: CaptureFixture[str], plan: str, value: float, bound: float, doubt: str
) -> None:
    stated = json.loads(Path(plan).read_text())
    true = stated["objective"]["value"]
    stated["objective"].update(value=value * true, bound=bound * true)
    Path(plan).write_text(json.dumps(stated))
    found = document(capsys, "explain", plan)
    assert found["status"] == "feasible"
    assert found["objective"]["value"] == pytest.approx(true)
    assert found["objective"]["bound"] == 0
    _, out, _ = answer(capsys, "explain", plan)
    assert "nothing is proven" in out.splitlines()[1]
    (warnings,) = [line for line in out.splitlines() if line.startswith("Warnings: ")]
    assert doubt in warnings


def test_two_plans_are_compared(capsys: CaptureFixture[str], plan: str, tmp_path: Path) -> None:
    other, file = tmp_path / "other.yaml", str(tmp_path / "other.json")
    other.write_text(SPEC + "constraints: {machines: 2}\n")
    assert answer(capsys, "plan", str(other), "--out", file)[0] == 0
    found = document(capsys, "compare", plan, file)
    assert found["better"] == 0
    assert {"name": "num_machines", "values": [1, 2]} in found["decisions"]
    assert {"name": "constraints.machines", "values": [None, 2]} in found["question"]
    code, out, err = answer(capsys, "compare", plan, file)
    assert (code, err) == (0, "")
    assert "plan.json is better: it saves" in out
    assert len(out.splitlines()) <= 40


def test_files_of_one_name_are_told_apart_by_their_folders(
    capsys: CaptureFixture[str], plan: str, tmp_path: Path
) -> None:
    (tmp_path / "b").mkdir()
    other = tmp_path / "b" / "plan.json"
    stated = json.loads(Path(plan).read_text())
    stated["objective"]["value"] *= 2
    other.write_text(json.dumps(stated))
    _, out, _ = answer(capsys, "compare", plan, str(other))
    assert f"{plan} is better" in out


NO_PLANS = {
    "empty": "",
    "blank": " \n",
    "no JSON": "schema: planner.plan/1\n",
    "a list": "[]",
    "a number": "1",
    "no schema": "{}",
    "another document": '{"schema": "planner.prediction/1"}',
    "an older schema": '{"schema": "planner.plan/0", "problem": {}}',
    "nothing but a schema": '{"schema": "planner.plan/1"}',
    "deep": '{"schema": "planner.plan/1", "problem": ' + "[" * 100_000,
    "no number": '{"schema": "planner.plan/1", "status": NaN}',
    "beyond numbers": '{"schema": "planner.plan/1", "status": 1e999}',
    "long number": '{"schema": "planner.plan/1", "status": ' + "9" * 5000 + "}",
}


@pytest.mark.parametrize("name", NO_PLANS)
def test_a_file_that_is_no_plan_is_refused_in_words(
    capsys: CaptureFixture[str], tmp_path: Path, plan: str, name: str
) -> None:
    file = tmp_path / "bad.json"
    file.write_text(NO_PLANS[name])
    for arguments in (("compare", str(file), plan), ("compare", plan, str(file)), ("explain", str(file))):
        code, out, _ = answer(capsys, *arguments, "--json")
        assert code == 2, arguments
        assert json.loads(out)["kind"] == "input"
        assert str(file) in json.loads(out)["message"]


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.99])
def test_a_truncated_plan_is_refused_with_its_line(
    capsys: CaptureFixture[str], tmp_path: Path, plan: str, cut: float
) -> None:
    text = Path(plan).read_text()
    file = tmp_path / "cut.json"
    file.write_text(text[: int(len(text) * cut)])
    for arguments in (("compare", plan, str(file)), ("explain", str(file))):
        code, _, err = answer(capsys, *arguments)
        assert code == 2
        assert f"{file}:" in err
        assert "not all of it" in err


@pytest.mark.parametrize("name", ["plan", "plan.yaml", "plan.txt", "plan.json.bak"])
def test_a_plan_is_told_by_its_content_whatever_its_name(
    capsys: CaptureFixture[str], tmp_path: Path, plan: str, name: str
) -> None:
    file = tmp_path / name
    stated = json.loads(Path(plan).read_text())
    stated["objective"]["value"] /= 2  # planned anew, it would not say what the file says
    file.write_text(json.dumps(stated, sort_keys=name.endswith("bak")))
    found = document(capsys, "explain", str(file))
    assert any("the file says" in warning for warning in found["warnings"])
    assert document(capsys, "compare", str(file), plan)["saving"] == pytest.approx(0.5)
    assert answer(capsys, "check", str(file))[0] == 1


def test_a_spec_in_json_is_planned_first(capsys: CaptureFixture[str], tmp_path: Path, spec: str) -> None:
    file = tmp_path / "spec.json"
    question = {"dnn": {"zoo": "alexnet", "batch_per_device": 32}, "cluster": {"preset": "osf-testbed"}}
    file.write_text(json.dumps({**question, "families": ["all_reduce"]}))
    assert document(capsys, "explain", str(file)) == document(capsys, "explain", spec)


@pytest.mark.parametrize("name", ["plan", "plan.json", "plan.yaml"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b"\x7fELF\0\0\1", "this is a binary file"),
        (b"\xff\xfe{\0", "this is UTF-16 text"),
        (b'{"schema": "planner.plan/1", "x": "\xe4"}', "this is not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_text_is_refused_in_words(
    capsys: CaptureFixture[str], tmp_path: Path, plan: str, name: str, content: bytes, words: str
) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    file = folder / name
    file.write_bytes(content)
    for arguments in (("explain", str(file)), ("check", str(file)), ("compare", str(file), plan)):
        code, out, err = answer(capsys, *arguments)
        assert (code, out) == (2, "")
        assert f"{file}: {words}" in err


def test_a_plan_that_was_cut_off_is_no_spec_whatever_its_name(
    capsys: CaptureFixture[str], tmp_path: Path, plan: str
) -> None:
    file = tmp_path / "cut"
    file.write_text(Path(plan).read_text()[:300])
    code, _, err = answer(capsys, "explain", str(file))
    assert code == 2
    assert "not all of it" in err


# -- Ctrl-C ----------------------------------------------------------------------------------------------------------


def test_the_first_interruption_ends_the_plan_and_all_questions_after_it(
    capsys: CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    def interrupted(problem: Problem, search: Search) -> Plan:
        found = best_plan(problem, search)
        signal.raise_signal(signal.SIGINT)
        assert search.was_interrupted
        return found

    def never(problem: Problem, search: Search) -> Plan:
        raise AssertionError("a question was asked after the interruption")

    monkeypatch.setattr(planning, "best_plan", interrupted)
    monkeypatch.setattr(explanation, "best_plan", never)
    handler = signal.getsignal(signal.SIGINT)
    found = document(capsys, "explain", spec)  # leaves with 0, as planner plan does with what it has
    assert signal.getsignal(signal.SIGINT) is handler
    assert found["breakdown"]
    assert {one["saving"] for one in found["sensitivities"]} == {None}
    assert {one["note"] for one in found["sensitivities"]} == {"left out: interrupted before it was asked"}
    monkeypatch.setattr(planning, "best_plan", interrupted)
    _, out, _ = answer(capsys, "explain", spec)
    number = len(found["sensitivities"])
    assert f"Interrupted: {number} of {number} changes were left out." in out
    assert len(out.splitlines()) <= 40


def test_what_was_known_when_interrupted_is_kept(monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    asked: list[str] = []

    def interrupted(problem: Problem, search: Search) -> Plan:
        found = best_plan(problem, search)
        asked.append(problem.cluster.name)
        if len(asked) == 2:
            search.interrupt()
        return found

    monkeypatch.setattr(explanation, "best_plan", interrupted)
    explained = planner.explain(planner.load(spec))
    notes = [one.note for one in explained.sensitivities]
    assert len(asked) == sum(one.saving is not None for one in explained.sensitivities) == 2
    assert sum("left out" in note for note in notes) == len(notes) - 2
    assert f"Interrupted: {len(notes) - 2} of {len(notes)} changes were left out." in explanation_text(explained)


def test_a_question_that_was_being_answered_is_left_out_too(monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    def interrupted(problem: Problem, search: Search) -> Plan:
        search.interrupt()
        raise NoAnswerError("too short")

    monkeypatch.setattr(explanation, "best_plan", interrupted)
    notes = {one.note for one in planner.explain(planner.load(spec)).sensitivities}
    assert notes == {"left out: interrupted before it was answered", "left out: interrupted before it was asked"}


def test_the_second_interruption_breaks_off(
    capsys: CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    def interrupted(problem: Problem, search: Search) -> Plan:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the second one was not heard")

    monkeypatch.setattr(planning, "best_plan", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        assert answer(capsys, "explain", spec) == (130, "", "interrupted\n")
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("is_in_a_class", [False, True])
@pytest.mark.parametrize("module", ["planner.cli.run", "typer", "planner.api", "numpy"])
def test_an_interruption_while_modules_are_imported_leaves_one_line(
    module: str, spec: str, *, is_in_a_class: bool
) -> None:
    code = f"""
import sys

class Attribute:
    def __set_name__(self, owner, name):
        raise KeyboardInterrupt

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            if {is_in_a_class}:
                type("Made", (), {{"attribute": Attribute()}})  # Python 3.11 makes a RuntimeError of it
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
sys.argv[1:] = ["explain", {spec!r}]
from planner.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_missing_files_and_folders_are_refused(capsys: CaptureFixture[str], tmp_path: Path, plan: str) -> None:
    for file in (tmp_path / "none.json", tmp_path):
        for arguments in (("compare", plan, str(file)), ("explain", str(file))):
            assert answer(capsys, *arguments)[0] == 2


def test_a_plan_whose_question_was_spoiled_is_refused(capsys: CaptureFixture[str], plan: str) -> None:
    stated = json.loads(Path(plan).read_text())
    changes: list[dict[str, Any]] = [
        {"family": "telepathy"},
        {"problem": {}},
        {"configuration": {"num_devices": 10**6}},
        {"substitutions": ["x"]},
    ]
    for change in changes:
        Path(plan).write_text(json.dumps({**stated, **change}))
        code, _, err = answer(capsys, "explain", plan)
        assert (code, bool(err)) == (2, True), change


def test_limits_without_a_unit_are_refused(capsys: CaptureFixture[str], plan: str) -> None:
    code, _, err = answer(capsys, "explain", plan, "--time-limit", "5")
    assert code == 2
    assert "--time-limit" in err


def test_a_spec_without_an_answer_has_no_explanation(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC + "constraints: {deadline: 1 us}\n")
    assert answer(capsys, "explain", str(file))[0] == 1
