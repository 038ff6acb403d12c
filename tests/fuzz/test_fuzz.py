"""A small part of ``python -m tests.fuzz``: changed inputs of every parser whose seeds need no search."""

import subprocess
import sys
from pathlib import Path
from random import Random

import fuzz_seeds
import pytest
from fuzz_changes import changed
from fuzz_judge import Outcome, Parser, Verdict, judged
from fuzz_parsers import PARSERS
from fuzz_run import Found, table, tasks_of
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.errors import PlannerError

ROOT = Path(__file__).parents[2]
_SEARCHED = {"spec, configuration", "plan", "launch file", "measurements"}  # tried in tests/heavy/test_fuzz.py
PARTS = ";".join(parser.name for parser in PARSERS if parser.name not in _SEARCHED)


def test_changed_inputs_give_nothing_but_clean_errors() -> None:
    """In processes of their own, with limits of memory and time."""
    command = [sys.executable, "-m", "tests.fuzz", "--inputs", "300", "--seed", "20261121", "--parsers", PARTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "| **all** | 300 |" in done.stdout


@settings(max_examples=25)
@given(st.randoms(use_true_random=False))
def test_a_changed_question_is_loaded_or_refused_in_words(draw: Random) -> None:
    """Hypothesis draws the changes here, and makes those that break something as few as it can."""
    question = changed(draw.choice(fuzz_seeds.QUESTIONS), draw, fuzz_seeds.vocabulary(fuzz_seeds.QUESTIONS))
    if not isinstance(question, dict):
        return
    try:
        planner.load(question)
    except PlannerError as error:
        assert str(error).strip()


# -- the judge itself ------------------------------------------------------------------------------------------------


def _verdict(read: object, *, limit_s: float = 5.0) -> Verdict:
    """What is said of a reader that does one thing."""
    assert callable(read)
    parser = Parser(
        name="made up", make=lambda draw: {}, recognises=lambda folder: True, read=lambda folder, draw: read(), share=1
    )
    return judged(parser, {"file": b""}, Random(0), limit_s=limit_s)


def _raising(error: BaseException) -> object:
    def read() -> None:
        raise error

    return read


def test_the_judge_finds_what_is_no_clean_error() -> None:
    from planner.errors import Fault, SpecError

    def endless() -> None:
        while True:
            pass

    def warns() -> None:
        import warnings

        warnings.warn("a number overflowed", RuntimeWarning, stacklevel=1)

    def wrong(problem: str) -> SpecError:
        return SpecError.of([Fault(problem=problem, file="spec.yaml", mend="Add it.")])

    broken = {
        "KeyError": _raising(KeyError("x")),
        "MemoryError": _raising(MemoryError()),
        "SystemExit": _raising(SystemExit(0)),
        "an empty message": _raising(SpecError("")),
        "a fault without a place": _raising(SpecError.of([Fault(problem="wrong.", mend="Mend it.")])),
        "a fault without a mend": _raising(SpecError.of([Fault(problem="wrong.", file="spec.yaml")])),
        "letters that cannot be printed": _raising(SpecError("\x1b[31m")),
        "more than": _raising(SpecError("x" * 50_000)),
        "RuntimeWarning": warns,
    }
    for words, read in broken.items():
        found = _verdict(read)
        assert found.outcome is Outcome.DEFECT, words
        assert words in found.signature
    assert _verdict(endless, limit_s=0.2).outcome is Outcome.DEFECT
    assert _verdict(lambda: None).outcome is Outcome.ACCEPTED
    assert _verdict(_raising(wrong("it is 5."))).outcome is Outcome.VALUES
    assert _verdict(_raising(wrong("unknown key 'x'."))).outcome is Outcome.FORM


def test_an_input_is_the_same_each_time_and_its_files_differ_from_its_seeds() -> None:
    from fuzz_judge import made

    parser = PARSERS[0]
    one, other = (made(parser, 7, 3)[0] for _ in range(2))
    assert one == other
    assert made(parser, 8, 3)[0] != one


def test_inputs_are_shared_out_among_all_parsers() -> None:
    tasks = tasks_of(PARSERS, 1000)
    assert len(tasks) == 1000
    assert {index for index, _ in tasks} == set(range(len(PARSERS)))
    assert len(set(tasks)) == 1000


def test_the_table_counts_what_was_found() -> None:
    found = Found()
    found.add(0, Verdict(outcome=Outcome.ACCEPTED, is_recognised=True, used_s=1.5))
    found.add(1, Verdict(outcome=Outcome.DEFECT, is_recognised=False, signature="KeyError x.py:1", used_s=0.5))
    text = table(PARSERS[:1], [found])
    assert "| spec | 2 | 1 | 0 | 0 | 0 | 50.0% | 1.5 s | 1 |" in text
    assert found.defects == {"KeyError x.py:1": [1]}


@pytest.mark.parametrize("parser", [one for one in PARSERS if one.name not in _SEARCHED], ids=lambda one: one.name)
def test_the_form_that_counts_as_reached_is_that_of_most_inputs_and_not_of_noise(
    parser: Parser, tmp_path: Path
) -> None:
    files = parser.make(Random(1))
    for name in files:
        (tmp_path / name).write_bytes(b"\xff\xfe nothing of the kind")
    try:
        is_noise_recognised = parser.recognises(tmp_path)
    except Exception:  # libraries of others raise anything at noise: they do not recognise it either
        is_noise_recognised = False
    assert not is_noise_recognised
