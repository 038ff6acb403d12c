"""What leaves the program about a purchase keeps its published schema, and so does the question to start from."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pytest import CaptureFixture
from ruamel.yaml import YAML

from planner.answer.schemas import MODELS
from planner.cli.run import run


def printed(capsys: CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert run(arguments) == code
    return capsys.readouterr().out


@pytest.fixture
def question(tmp_path: Path, capsys: CaptureFixture[str]) -> Path:
    path = tmp_path / "question.yaml"
    assert run(["init", "--procure", str(path)]) == 0
    assert f"planner procure {path}" in capsys.readouterr().err
    return path


def test_the_question_to_start_from_fits_the_schema_of_questions(question: Path, capsys: CaptureFixture[str]) -> None:
    schema = json.loads(printed(capsys, "schema", "procure"))
    assert schema["title"] == "planner.procure/1"
    data = YAML(typ="safe", pure=True).load(question.read_text())
    jsonschema.validate(data, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "cluster": {}}, schema)


def test_its_answer_fits_the_schema_of_answers_and_passes_its_check(
    question: Path, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    hint, taken = "# providers: [aws, lambda]", "instances: [g5.2xlarge, g6.2xlarge]"  # of a hundred offers
    question.write_text(question.read_text().replace(hint, taken))
    assert taken in question.read_text()
    schema = json.loads(printed(capsys, "schema", "procurement"))
    out = tmp_path / "answer.json"
    text = printed(capsys, "procure", str(question), "--what-if", "--pareto", "--json", "--out", str(out))
    assert out.read_text() == text
    found: dict[str, Any] = json.loads(text)
    jsonschema.validate(found, schema)
    assert found["what_if"]
    assert found["pareto"]["points"]
    assert run(["check", str(out)]) == 0


def test_a_question_without_an_answer_is_an_error_document(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    path = tmp_path / "poor.yaml"
    prices = "provider,instance,region,term,device,devices,usd_per_h,date,source\na,b,c,on-demand,t4,1,1,2026-01-01,d\n"
    (tmp_path / "list.csv").write_text(prices)
    path.write_text(
        "dnn: {zoo: alexnet, global_batch: 64, dataset_samples: 1000000, epochs: 90}\n"
        "procure: {prices: list.csv, budget: 1 USD}\n"
    )
    found = json.loads(printed(capsys, "procure", str(path), "--json", code=1))
    jsonschema.validate(found, MODELS["error"].model_json_schema(by_alias=True))
    assert "no fleet keeps the limits (budget 1.00 USD)" in found["message"]
