"""Pages by question, the page of schemas and the pages of the families: all is there, and editors find no fault in it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from docs_commands import ROOT, blocks, missing, pages
from docs_renew import renewed
from jsonschema import Draft202012Validator
from pytest import CaptureFixture, MonkeyPatch
from ruamel.yaml import YAML

from planner.cli.run import run
from planner.cli.show import Document
from planner.families import FAMILIES

DOCS = ROOT / "docs"
QUESTIONS = (
    "how_many_servers",
    "which_buckets",
    "which_network",
    "which_layout",
    "buy_or_rent",
    "why_infeasible",
    "can_i_trust_it",
)
SPECS = ("spec", "procure")


def text_of(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


# -- pages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "printed", "now", "lost"),
    [
        ("time 7 s\n...\n", "time  8 s\nmore\n", "time  8 s\n...\n", []),
        ("...\nforward 70 ms\n", "head\nforward 80 ms\n", "...\nforward 80 ms\n", []),
        ("a plan\nits cost\n", "a plan\nnew words\nits cost\n", "a plan\n...\nits cost\n", []),
        ("a plan\nits cost\n", "a plan\n", "a plan\n", ["its cost"]),
        ("Mind: ...\n", "Mind: other words\n", "Mind: ...\n", []),
    ],
)
def test_a_page_is_renewed_and_leaves_out_what_it_left_out(shown: str, printed: str, now: str, lost: list[str]) -> None:
    assert renewed(shown, printed) == (now, lost)
    assert missing(now, printed) == []


@pytest.mark.parametrize("page", QUESTIONS)
def test_a_page_asks_and_answers(page: str) -> None:
    text = text_of(page)
    assert re.match(r"# .+\?\n\n> .+\?", text), "it begins with the question, as a user says it"
    assert sum(len(block.commands) for block in blocks(f"docs/{page}.md")) >= 2
    assert re.search(r"^## (What would make it wrong|Before you spend money on it)$", text, re.MULTILINE)
    assert any(f"({family}.md" in text for family in FAMILIES) or "(procure.md" in text


def test_the_tutorial_shows_every_part_of_the_work() -> None:
    calls = [call for block in blocks("docs/first_hour.md") for command in block.commands for call in command.parts]
    assert {call.words[1] for call in calls if call.program == "planner"} >= {
        *("plan", "calibrate", "compare", "explain", "procure", "export", "sweep", "check")
    }


# -- schemas ---------------------------------------------------------------------------------------------------------


def printed_schema(name: str, capsys: CaptureFixture[str]) -> dict[str, Any]:
    """What ``planner schema`` prints."""
    assert run(["schema", name]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("name", [one.value for one in Document])
def test_what_a_schema_says_names_nothing_of_python(name: str, capsys: CaptureFixture[str]) -> None:
    """Editors show it to whoever writes a spec."""
    assert re.findall(r":[a-z]+:`[^`]*`", json.dumps(printed_schema(name, capsys))) == []


def test_editors_find_no_fault_in_the_questions_of_any_page(capsys: CaptureFixture[str]) -> None:
    validators = {name: Draft202012Validator(printed_schema(name, capsys)) for name in SPECS}
    texts = {
        f"{block.page}:{block.line}": block.text for page in pages() for block in blocks(page) if block.kind == "yaml"
    }
    texts |= {str(path): path.read_text(encoding="utf-8") for path in DOCS.rglob("question.yaml")}
    questions = {where: YAML(typ="safe").load(text) for where, text in texts.items()}
    whole = {where: data for where, data in questions.items() if "procure" in data or {"dnn", "cluster"} <= data.keys()}
    assert len(whole) > 50
    for where, data in whole.items():
        found = [*validators["procure" if "procure" in data else "spec"].iter_errors(data)]
        assert found == [], f"{where}: {found[0].message}"


@pytest.mark.parametrize("page", QUESTIONS)
def test_editors_find_no_fault_in_what_a_page_says_in_passing(page: str, capsys: CaptureFixture[str]) -> None:
    validators = {name: Draft202012Validator(printed_schema(name, capsys)) for name in SPECS}
    training = {"dnn": {"zoo": "vgg16", "batch_per_device": 32}}
    spec = {**training, "cluster": {"preset": "osf-testbed"}}
    prose = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(r"`(\w+: [^`]+)`", prose):
        data = YAML(typ="safe").load(line)
        in_spec = validators["spec"].is_valid({**spec, **data})
        assert in_spec or validators["procure"].is_valid({**training, "procure": data}), line


@pytest.mark.parametrize(
    "broken",
    ["sweep: {vari: {cluster.machines.0.count: [1, 2]}}", "sweep: [1, 2]", "families: [all_reduces]", "dnn: {zoo: 3}"],
)
def test_editors_find_faults(broken: str, capsys: CaptureFixture[str]) -> None:
    whole = "dnn: {zoo: vgg16, batch_per_device: 32}\ncluster: {preset: osf-testbed}\n"
    validator = Draft202012Validator(printed_schema("spec", capsys))
    assert validator.is_valid(YAML(typ="safe").load(whole))
    assert not validator.is_valid(YAML(typ="safe").load(whole) | YAML(typ="safe").load(broken))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A plan, as a file has it."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    short = ["--dnn", "resnet18", "--machines", "2x1xt4", "--network", "10 Gbit/s", "--batch", "32"]
    assert run(["plan", *short, "--families", "all_reduce", "--out", str(path)]) == 0
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def procurement(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answer to what to rent, as a file has it."""
    folder = tmp_path_factory.mktemp("procurement")
    limits = {"providers": ["lambda"], "as_of": "any", "devices": ["a10"], "most_devices": 2}
    question = {"dnn": {"zoo": "resnet18", "global_batch": 64, "epochs": 1}, "procure": limits}
    (folder / "question.json").write_text(json.dumps(question), encoding="utf-8")
    assert run(["procure", str(folder / "question.json"), "--out", str(folder / "answer.json")]) == 0
    found: dict[str, Any] = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    return found


READERS = {
    "check": ["check", "FILE"],
    "explain": ["explain", "FILE", "--time-limit", "20 s"],
    "compare": ["compare", "FILE", "FILE"],
    "predict": ["predict", "FILE"],
    "export": ["export", "FILE", "--to", "ddp", "--script", "train.py", "--out", "launch"],
    "calibrate --plan-measurements": ["calibrate", "--plan-measurements", "FILE", "--time-limit", "20 s"],
}


@pytest.mark.parametrize("name", ["plan", "procurement"])
def test_an_answer_is_read_by_those_that_stand_there(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    named = re.sub(r"\s+", " ", text_of("schemas"))
    assert all(f"`{reader}`" in named for reader in READERS)
    monkeypatch.chdir(tmp_path)
    Path("answer.json").write_text(json.dumps(request.getfixturevalue(name)), encoding="utf-8")
    for words in READERS.values():
        assert run(["answer.json" if word == "FILE" else word for word in words]) == 0, words


def test_plans_of_several_trainings_are_not_predicted(
    procurement: dict[str, Any], tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    choice = procurement["choice"]
    (plan,) = choice["plans"].values()
    several = {**procurement, "choice": {**choice, "plans": {"a": plan, "b": plan}}}
    (tmp_path / "answer.json").write_text(json.dumps(several), encoding="utf-8")
    assert run(["predict", str(tmp_path / "answer.json")]) == 2
    assert "does not hold the plan of one training" in capsys.readouterr().err


def check(plan: Mapping[str, Any], path: Path) -> int:
    """The exit code of ``planner check`` for a plan in a file."""
    (path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    return run(["check", str(path / "plan.json")])


def test_a_plan_of_a_release_that_knew_fewer_fields_is_read(plan: dict[str, Any], tmp_path: Path) -> None:
    assert check(plan, tmp_path) == 0
    assert check({key: value for key, value in plan.items() if key != "substitutions"}, tmp_path) == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"schema": "planner.plan/2"}, "'planner.plan/2', not 'planner.plan/1'"), ({"colour": "red"}, "colour")],
)
def test_what_is_not_of_this_version_is_refused_by_name(
    changes: Mapping[str, str], words: str, plan: dict[str, Any], tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    assert check({**plan, **changes}, tmp_path) == 2
    assert words in capsys.readouterr().err


def test_a_plan_in_which_a_figure_was_changed_fails(
    plan: dict[str, Any], tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    objective = {**plan["objective"], "value": plan["objective"]["value"] * 0.99, "bound": 0.0, "gap": 1.0}
    assert check({**plan, "status": "feasible", "objective": objective}, tmp_path) == 1
    assert "FAIL" in capsys.readouterr().out.upper()


# -- the pages of the families -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_of_a_family_has_choice_mathematics_proof_and_limits(family: str) -> None:
    text = text_of(family)
    parts = dict(re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert {"What is chosen", "The mathematics", "What is proven", "What is left out"} <= set(parts)
    assert len(re.findall(r"^(?:- |\| `)", parts["What is chosen"], re.MULTILINE)) >= 4
    equations = re.findall(r"^\((\d)\) ", parts["The mathematics"], re.MULTILINE)
    assert len(equations) >= 4
    assert re.search(r"doi:10\.|arXiv:\d", parts["The mathematics"])
    sources = re.findall(r"^- (.*?): ", parts["The mathematics"], re.MULTILINE)
    assert {number for each in sources for number in re.findall(r"\((\d)\)", each)} == {*equations}, "whose is which?"
