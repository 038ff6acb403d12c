"""The command `check`: exit codes, files that hold no plan, and questions that are read as they are predicted."""

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checked import BLOCKS, document_of, question
from pytest import CaptureFixture

import planner
from planner.answer.schemas import MODELS
from planner.checks import check
from planner.cli.run import run
from planner.errors import SpecError
from tests.referee import second_physics


def test_checking_a_plan_loads_no_solver(tmp_path: Path) -> None:
    files = [tmp_path / f"{family}.json" for family in BLOCKS]
    for file in files:
        file.write_text(document_of(file.stem))
    code = (
        "import sys; from planner.cli.run import run; code = max(run(['check', one]) for one in sys.argv[1:]); "
        "print('SOLVERS', *(name for name in sys.modules if name.startswith(('planner.solvers', 'ortools'))))"
        "; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *map(str, files)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rsplit("SOLVERS", 1)[1].split() == []


def test_exit_codes_tell_right_from_wrong_from_no_plan(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(document_of("all_reduce"))
    assert run(["check", str(file)]) == 0
    assert "pass" in capsys.readouterr().out
    wrong = json.loads(document_of("all_reduce"))
    wrong["objective"]["value"] *= 2
    file.write_text(json.dumps(wrong))
    assert run(["check", str(file), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    MODELS["check"].model_validate(document)
    assert document["ok"] is False
    assert any(one["name"] == "objective" and not one["ok"] for one in document["findings"])


def no_plans() -> Iterator[tuple[str, str]]:
    """Texts of files that hold no plan, and a part of the message."""
    plan = json.loads(document_of("all_reduce"))
    yield "", "the file is empty"
    yield "[1, 2]", "this is no plan"
    yield document_of("all_reduce")[:400], "not all of it"
    yield "dnn: {zoo: vgg16}\ncluster: {preset: osf-testbed}\n", "this is no JSON"
    yield '{"dnn": {"zoo": "vgg16"}, "cluster": {"preset": "osf-testbed"}}', "no schema"
    yield document_of("all_reduce").replace('"gap": 0.0', '"gap": 0.0, "gap": 0.1'), "gap: this key stands twice"
    yield json.dumps({**plan, "objective": {**plan["objective"], "bound": float("nan")}}), "objective.bound: nan is not"
    yield json.dumps({**plan, "objective": {**plan["objective"], "value": "1.5"}}), "objective.value: "
    yield json.dumps({**plan, "explanation": [1]}), "explanation.0: "
    yield json.dumps({**plan, "schema": "planner.plan/0"}), "planner.plan/0"
    yield json.dumps({**plan, "schema": "planner.prediction/1"}), "planner.prediction/1"
    yield json.dumps({key: value for key, value in plan.items() if key != "objective"}), "objective"
    yield json.dumps({**plan, "objective": {**plan["objective"], "value": "fast"}}), "objective.value"
    broken = copy.deepcopy(plan)
    broken["problem"]["dnn"] = {"zoo": "vgg61"}
    yield json.dumps(broken), "vgg61"


def test_what_is_no_plan_is_refused_in_words(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    for text, words in no_plans():
        file.write_text(text)
        assert run(["check", str(file)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert words in captured.err
        assert "Traceback" not in captured.err
    assert run(["check", str(tmp_path / "none.json")]) == 2


def test_a_document_of_another_kind_is_refused() -> None:
    with pytest.raises(SpecError, match="no schema"):
        check(planner.load(question()), {})


def test_a_batch_that_does_not_divide_is_read_as_it_is_predicted() -> None:
    rest = {"storage": {"bandwidth": "100 kB/s", "shared": True}, "network": "10 Gbit/s", "latency": "20 us"}
    machines = [
        {"name": "fast", "count": 2, "device": "v100-sxm2-16g", "devices": 1, **rest},
        {"name": "slow", "count": 2, "device": "t4", "devices": 2, **rest},
    ]
    problem = planner.load(
        {
            "dnn": {"zoo": "alexnet", "global_batch": 7, "sample_bytes": "100 kB"},
            "cluster": {"machines": machines},
            "families": ["all_reduce"],
            "fix": {"num_devices": 2, "batch_shares": "equal"},
        }
    )
    plan = planner.plan(problem)
    assert plan.prediction.breakdown_s["input_stall"] > 0
    assert all(finding.is_ok for finding in second_physics.check(problem, plan).findings)


@pytest.mark.parametrize("family", ["all_reduce", "parameter_server", "pipeline"])
@pytest.mark.parametrize("second", ["v100-sxm2-16g", "t4"])
def test_a_store_that_all_share_is_read_as_it_is_predicted_in_every_family(family: str, second: str) -> None:
    rest = {"storage": {"bandwidth": "100 kB/s", "shared": True}, "network": "10 Gbit/s", "latency": "20 us"}
    machines = [
        {"name": name, "count": 1, "device": device, **rest} for name, device in (("a", "v100-sxm2-16g"), ("b", second))
    ]
    problem = planner.load(
        {
            "dnn": {"zoo": "alexnet", "global_batch": 7, "sample_bytes": "100 kB"},
            "cluster": {"machines": machines},
            "families": [family],
            "constraints": {"machines": 2},
        }
    )
    plan = planner.plan(problem)
    assert plan.prediction.breakdown_s["input_stall"] > 0
    assert [finding for finding in second_physics.check(problem, plan).findings if not finding.is_ok] == []
