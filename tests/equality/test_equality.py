"""The answers of before a rebuilding are the answers after it: a sample in every run, all with ``make equality``.

`optimal` objectives are equal but for rounding, other answers no worse in objective or bound, what has no answer still
has none, and predictions are equal in every part. Which of several equally good configurations is told may change; how
often it did stands at the end of the report. A row whose physics changes on purpose is recorded anew, see ``record``.
"""

import copy
import json
import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from tests.equality.asking import Question, answer, differences, recorded

RECORDED = recorded()
SAMPLED = 100
LONG = ("cases", "gallery", "zoo")  # the whole run asks them; other tests have their own of these


def asked_now() -> list[str]:
    """Return the names of what is asked: all, or a sample that has some of every kind."""
    if os.environ.get("EQUALITY") == "all":
        return list(RECORDED)
    kinds: dict[str, list[str]] = defaultdict(list)
    for name, (question, _) in RECORDED.items():
        if name.partition("-")[0] not in LONG:
            kinds[question.kind].append(name)
    number = sum(map(len, kinds.values()))
    return [name for names in kinds.values() for name in names[:: max(1, number // SAMPLED)]]


@pytest.mark.parametrize("name", asked_now())
def test_an_answer_is_as_good_as_recorded(name: str, record_property: Callable[[str, object], None]) -> None:
    question, before = RECORDED[name]
    now = answer(question)
    hard, soft = differences(before, now)
    assert not hard, "\n".join([*hard, "", json.dumps(question.to_row()), f"before: {before}", f"now: {now}"])
    if soft:
        record_property("equality", ", ".join(soft))


def test_all_kinds_of_answers_are_recorded() -> None:
    answers = [found for _, found in RECORDED.values()]
    assert len(answers) >= 1300
    assert {found["exit"] for found in answers} == {0, 1, 2}
    assert {found.get("status") for found in answers} == {"optimal", "feasible", None}
    families = {one for found in answers for one in found.get("family", "").split(",")}
    assert families >= {"all_reduce", "parameter_server", "model_replicas", "pipeline", "hybrid"}
    assert sum(found.get("status") == "optimal" for found in answers) >= 400


def _changed(command: str, change: Callable[[dict[str, Any]], object]) -> tuple[list[str], list[str]]:
    """Return what differs once the first recorded answer of a command is changed."""
    before = next(found for question, found in RECORDED.values() if question.words[0] == command and not found["exit"])
    now = copy.deepcopy(before)
    change(now)
    assert differences(before, before) == ([], [])
    return differences(before, now)


@pytest.mark.parametrize(
    ("command", "change"),
    [
        ("plan", lambda found: found.update(value=found["value"] * (1 - 1e-8), bound=found["bound"] * (1 - 1e-8))),
        ("plan", lambda found: found.update(value=found["value"] * (1 + 1e-8))),
        ("plan", lambda found: found.update(bound=found["bound"] * (1 - 1e-8))),
        ("plan", lambda found: found.update(status="feasible")),
        ("plan", lambda found: found.update(exit=1, kind="infeasible")),
        ("plan", lambda found: found.update(objective="training_time_s")),
        ("predict", lambda found: found["prediction"].update(iteration_time_s=1.0)),
        ("predict", lambda found: found["prediction"]["memory_bytes"].popitem()),
        ("procure", lambda found: found.update(value=found["value"] / 2)),
        ("sweep", lambda found: found["rows"][0].update(status="limit")),
        ("sweep", lambda found: found["rows"].pop()),
        ("case", lambda found: found["quantities"].popitem()),
        ("show", lambda found: next(iter(found["totals"].values())).append(1)),
    ],
)
def test_a_changed_answer_is_seen(command: str, change: Callable[[dict[str, Any]], object]) -> None:
    hard, _ = _changed(command, change)
    assert hard


def test_another_configuration_that_is_as_good_is_told_and_no_fault() -> None:
    assert _changed("plan", lambda found: found.update(configuration="another")) == ([], ["configuration"])


def test_an_answer_without_proof_may_become_better_and_not_worse() -> None:
    before = next(found for _, found in RECORDED.values() if found.get("status") == "feasible")
    better = {**before, "value": before["bound"], "status": "optimal"}
    assert differences(before, better) == ([], [])
    assert differences(before, {**before, "value": before["value"] * 1.01})[0]
    assert differences(before, {**before, "bound": before["bound"] * 0.99})[0]


def test_a_row_is_read_as_it_was_written() -> None:
    for question, _ in RECORDED.values():
        assert Question.of(question.to_row()) == question
