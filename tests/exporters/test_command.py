"""The command ``planner export``: what it prints, what it writes, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from exported import planned
from hybrid_questions import TINY
from pytest import CaptureFixture

import planner
from planner.answer.documents import dump
from planner.answer.schemas import MODELS
from planner.cli.run import run
from planner.errors import InfeasibleError, SpecError
from planner.exporters import TARGETS, degrees_of
from planner.exporters.scripts import safe_name, script_words


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(dump(planned("alike").to_dict()))
    return path


def answer(capsys: CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    code = run(["export", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_first_file_is_printed_and_the_rest_is_said_beside_it(plan: Path, capsys: CaptureFixture[str]) -> None:
    code, out, err = answer(capsys, str(plan), "--to", "ddp")
    assert code == 0
    assert out == planner.export(plan, "ddp").files["launch.sh"]
    assert "it needs planned_ddp.py, planned_ddp.json, too" in err
    assert "- buckets: the " in err
    assert "run: NODE_RANK=0" in err


def test_all_files_are_written_and_none_is_overwritten_unless_asked(
    plan: Path, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "folder"
    code, out, _ = answer(capsys, str(plan), "--to", "ddp", "--out", str(folder))
    wanted = planner.export(plan, "ddp").files
    assert code == 0
    assert out.split() == [str(folder / name) for name in wanted]
    assert {path.name: path.read_text() for path in folder.iterdir()} == dict(wanted)
    (folder / "launch.sh").write_text("mine")
    (folder / "planned_ddp.py").unlink()
    code, out, err = answer(capsys, str(plan), "--to", "ddp", "--out", str(folder))
    assert (code, out) == (2, "")
    assert "launch.sh" in err
    assert "--force" in err
    assert not (folder / "planned_ddp.py").exists()  # all or none
    assert (folder / "launch.sh").read_text() == "mine"
    (folder / "tfjob.yaml").write_text("kind: TFJob\n")
    code, _, err = answer(capsys, str(plan), "--to", "ddp", "--out", str(folder), "--force")
    assert code == 0
    assert "holds tfjob.yaml of another export" in err
    assert (folder / "launch.sh").read_text() == wanted["launch.sh"]


def test_a_folder_that_is_a_file_is_an_error_of_the_input(plan: Path, capsys: CaptureFixture[str]) -> None:
    code, _, err = answer(capsys, str(plan), "--to", "ddp", "--out", str(plan))
    assert code == 2
    assert "this folder cannot be made" in err


def test_the_document_keeps_its_schema(plan: Path, capsys: CaptureFixture[str]) -> None:
    code, out, err = answer(capsys, str(plan), "--to", "slurm", "--json")
    document: dict[str, Any] = json.loads(out)
    assert (code, err) == (0, "")
    jsonschema.validate(document, MODELS["export"].model_json_schema(by_alias=True))
    assert document["schema"] == "planner.export/1"
    assert next(iter(document["files"])) == "job.sbatch"


def test_an_unknown_target_is_an_error_with_the_nearest(plan: Path, capsys: CaptureFixture[str]) -> None:
    code, _, err = answer(capsys, str(plan), "--to", "skyplot")
    assert code == 2
    assert "Did you mean 'skypilot'" in err


def test_a_plan_that_a_target_cannot_run_leaves_with_1_and_those_that_can(
    tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    path = tmp_path / "servers.json"
    path.write_text(dump(planned("servers").to_dict()))
    code, out, err = answer(capsys, str(path), "--to", "ddp")
    assert (code, out) == (1, "")
    assert "ddp cannot run this plan" in err
    assert "Targets that can: tfjob." in err
    code, out, _ = answer(capsys, str(path), "--to", "ddp", "--json")
    assert json.loads(out)["kind"] == "infeasible"


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("--script", "train.py 'open", "no closing quotation"),
        ("--script", "train.py\nrm -rf /", "control character"),
        ("--script", " ", "empty"),
        ("--name", "a\x1b[31m", "control character"),
        ("--image", "a\nb: c", "control character"),
    ],
)
def test_settings_that_could_be_something_else_are_refused(
    plan: Path, capsys: CaptureFixture[str], option: str, text: str, words: str
) -> None:
    code, out, err = answer(capsys, str(plan), "--to", "skypilot", option, text)
    assert (code, out) == (2, "")
    assert option in err
    assert words in err


def test_what_is_no_plan_is_refused(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"schema": "planner.spec/1"}')
    code, _, err = answer(capsys, str(path), "--to", "ddp")
    assert code == 2
    assert "planner.plan/1" in err
    assert answer(capsys, str(tmp_path / "none.json"), "--to", "ddp")[0] == 2


def test_a_plan_itself_its_document_and_its_file_give_the_same_files(plan: Path) -> None:
    one = planner.export(plan, "slurm")
    assert planner.export(str(plan), "slurm") == one
    assert planner.export(json.loads(plan.read_text()), "slurm") == one
    assert planner.export(planned("alike"), "slurm") == one


@pytest.mark.parametrize("name", ["servers", "replicas"])
def test_a_target_refuses_the_plans_of_which_its_row_says_that_it_need_not_be_asked(name: str) -> None:
    plan = planned(name)
    unasked = [target for target, row in TARGETS.items() if row.families and plan.family not in row.families]
    assert "megatron" in unasked
    for target in unasked:
        with pytest.raises(InfeasibleError, match="it trains by all-reduce and by degrees"):
            planner.export(plan, target)


def test_every_target_has_its_version_in_its_files_and_can_be_asked_what_a_file_is() -> None:
    transformers = ("megatron", "megatron-bridge", "primus", "torchtitan", "maxtext")
    for target in TARGETS:
        name = {"tfjob": "servers", **dict.fromkeys(transformers, "llama")}.get(target, "alike")
        found = planner.export(planned(name), target)
        assert found.target == target
        assert any(character.isdigit() for character in found.version)
        assert found.files
        assert all("/" not in file and not file.startswith(".") for file in found.files)
        read_back = [degrees_of(Path(file), text) for file, text in found.files.items()]
        assert target in [one[0] for one in read_back if one is not None]
    with pytest.raises(SpecError, match="is not a known target"):
        planner.export(planned("alike"), "../../etc/passwd")
    assert degrees_of(Path("x"), "") is None


def test_the_docs_name_every_target() -> None:
    text = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    assert all(f"`{target}`" in text for target in TARGETS)


def test_words_and_names_of_users_are_quoted() -> None:
    assert script_words("a \"b c\" $(x) ';'", "") == "a 'b c' '$(x)' ';'"
    assert safe_name("../../ETC/Passwd") == "etc-passwd"
    assert safe_name("x" * 500) == "x" * 50
    assert safe_name("日本") == "training"
    assert safe_name("9 lives") == "j-9-lives"


def test_a_plan_that_is_not_what_it_says_is_exported_with_a_warning(plan: Path, capsys: CaptureFixture[str]) -> None:
    document = json.loads(plan.read_text())
    document["prediction"]["iteration_time_s"] /= 2
    plan.write_text(json.dumps(document))
    code, out, err = answer(capsys, str(plan), "--to", "ddp")
    assert code == 0
    assert "torchrun" in out
    assert err.startswith(f"warning: {plan} is not what it says; see: planner check ")


def test_a_setting_that_a_target_has_no_use_for_is_not_dropped_in_silence(
    plan: Path, capsys: CaptureFixture[str]
) -> None:
    code, _, err = answer(capsys, str(plan), "--to", "ddp", "--program", "deepspeed")
    assert code == 2
    assert "--program: ddp trains itself. Leave it out, or export to one of pytorchjob, trainjob, slurm" in err
    code, _, err = answer(capsys, str(plan), "--to", "ddp", "--image", "me/net:1", "--name", "x")
    assert code == 0
    assert "- --image, --name: not used, since ddp starts no containers and names no jobs" in err
    _, _, err = answer(capsys, str(plan), "--to", "skypilot", "--image", "me/net:1", "--name", "x")
    assert "not used" not in err


def test_a_python_before_the_program_is_left_to_the_launcher(plan: Path) -> None:
    for script in ("train.py --x", "python train.py --x", "/usr/bin/python3.12 -u train.py --x"):
        text = planner.export(plan, "ddp", script=script).files["launch.sh"]
        assert text.endswith("--master-port 29500 train.py --x\n")


def test_a_launch_file_that_says_its_network_is_imported_with_it(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    path = tmp_path / "hybrid.json"
    path.write_text(dump(planned("hybrid").to_dict()))
    assert answer(capsys, str(path), "--to", "megatron", "--out", str(tmp_path / "out"))[0] == 0
    assert run(["import", str(tmp_path / "out" / "launch.sh"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, MODELS["import"].model_json_schema(by_alias=True))
    assert document["fix"]["tensor_parallel_size"] == 2
    assert document["dnn"]["transformer"]["hidden"] == 256
    assert run(["import", str(tmp_path / "out" / "launch.sh")]) == 0
    text = capsys.readouterr().out
    assert "    hidden: 256" in text
    assert f"parameters: {document['totals']['parameters']:,.0f}" in text


def test_a_refusal_names_no_target_that_refuses_too(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    machines = {"count": 1, "device": "b200-sxm", "devices": 4, "network": "400 Gbit/s", "latency": "5 us"}
    network = {"transformer": TINY, "global_batch": 8, "dtype": "mxfp8", "fine_tuning": "lora"}
    problem = planner.load({"dnn": network, "cluster": {"machines": [machines]}, "families": ["hybrid"]})
    path = tmp_path / "plan.json"
    path.write_text(dump(planner.plan(problem).to_dict()))
    code, _, err = answer(capsys, str(path), "--to", "deepspeed")
    assert code == 1
    assert "xport to" not in err
    listed = err.split("Targets that can: ")[1].rstrip(".\n").split(", ")
    for target in listed:
        planner.export(path, target)
