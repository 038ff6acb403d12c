"""Questions without an answer have a page, too: what conflicts, and how far each constraint would have to give."""

import json
from pathlib import Path

from answers import refusal_page
from pages import read
from purchases import asked, row
from pytest import CaptureFixture

from planner.cli.run import run
from planner.errors import Conflict, InfeasibleError, NoAnswerError, Relaxation

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
TIGHT = {
    "dnn": {"zoo": "alexnet", "global_batch": 2048},
    "cluster": {"machines": [{"count": 8, "device": "rtx-2080-ti", "network": "10 Gbit/s"}]},
    "constraints": {"memory_per_device": "1 GiB", "machines": {"at_most": 2}},
    "families": ["all_reduce"],
    "fix": {"gradient_accumulation_steps": 1},
}


def test_a_question_without_a_plan_leaves_with_1_and_a_page(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    question, page = tmp_path / "tight.json", tmp_path / "tight.html"
    question.write_text(json.dumps(TIGHT))
    assert run(["plan", str(question), "--html", str(page)]) == 1
    told = capsys.readouterr().err
    found = read(page.read_text(encoding="utf-8"))
    assert found.title == "alexnet: no answer"
    header, *rows = found.tables["The constraints, and how far each would have to give, alone"]
    assert header[:3] == ["constraint", "as asked", "would do"]
    assert rows
    for field, given, *_ in rows:
        assert f"{field}: {given}" in told
    assert all(line.strip() in found.text for line in told.splitlines())
    assert "planner plan question.yaml" in found.text
    assert "gradient_accumulation_steps: 1" in found.text


def test_a_limit_that_came_first_leaves_with_3_and_a_page(tmp_path: Path) -> None:
    page = tmp_path / "late.html"
    asked_for = ("plan", "--dnn", "vgg16", "--cluster", "osf-testbed", "--families", "all_reduce")
    assert run([*asked_for, "--time-limit", "1 us", "--html", str(page)]) == 3
    found = read(page.read_text(encoding="utf-8"))
    assert found.title == "vgg16: no answer yet"
    assert "Not proven" in found.text


def test_a_purchase_that_nothing_allows_has_a_page(tmp_path: Path) -> None:
    question, page = tmp_path / "question.json", tmp_path / "fleet.html"
    document = asked(tmp_path / "prices.csv", [row("small")])
    document["procure"]["budget"] = "0.01 USD"
    question.write_text(json.dumps(document))
    assert run(["procure", str(question), "--html", str(page)]) == 1
    found = read(page.read_text(encoding="utf-8"))
    assert "no answer" in found.title
    assert "0.01 USD" in found.text


def test_words_of_an_error_and_of_a_question_are_text() -> None:
    rows = [
        Relaxation(field=EVIL, given=EVIL, values=(EVIL,), is_exact=True, change=0.5, note=EVIL),
        Relaxation(field=EVIL, given=EVIL, values=(), is_exact=False, is_enough=False),
    ]
    conflicts = [Conflict(relaxations=tuple(rows), is_minimal=minimal) for minimal in (True, False)]
    for error in (InfeasibleError.of(EVIL, conflicts), InfeasibleError(EVIL), NoAnswerError(EVIL * 100)):
        page = refusal_page(error, {EVIL: EVIL}, subject=EVIL, commands=[("planner", EVIL)])
        found = read(page)
        assert "<script>alert" not in page
        assert "<img" not in page
        assert EVIL in found.text
        assert found.headings[0][0] == 1


def test_letters_that_turn_the_direction_of_text_are_spelled_out_but_for_the_question() -> None:
    name = "left \u202eright"
    page = refusal_page(InfeasibleError(name), {"name": name}, subject=name)
    assert page.count("\u202e") == 1  # in the question, which is to be copied as it is
    assert "left \\u202eright: no answer" in read(page).title
