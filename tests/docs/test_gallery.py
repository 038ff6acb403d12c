"""The gallery: every question is asked again, and its report and its row in the table compared; the long ones in tests/heavy."""

import re
from pathlib import Path

import gallery
import pytest
from docs_commands import read

from planner.families import FAMILIES

NAMES = gallery.names()
TEXT = (gallery.GALLERY / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in gallery.LONG])
def test_a_question_has_the_answer_that_stands_there(name: str) -> None:
    one = gallery.entry(name)
    assert gallery.printed(one) == one.report


def test_every_folder_stands_in_the_tables_once() -> None:
    folders = sorted(path.name for path in gallery.GALLERY.iterdir() if path.is_dir())
    assert sorted(NAMES) == folders
    assert set(gallery.LONG) <= set(folders)


def test_the_tables_have_the_answers_of_the_reports() -> None:
    assert gallery.with_answers(TEXT) == TEXT


def test_all_families_and_all_kinds_of_questions_are_there() -> None:
    answers = [gallery.told(gallery.entry(name).report) for name in NAMES]
    families = {family for *_, told in answers for family in told.split(", ")}
    assert families >= set(FAMILIES)
    assert {call.words[1] for name in NAMES for one in gallery.entry(name).commands for call in one.parts} >= {
        "plan",
        "procure",
        "sweep",
    }
    assert {one.code for name in NAMES for one in gallery.entry(name).commands} == {0, 1}


@pytest.mark.parametrize("name", NAMES)
def test_a_question_says_what_it_asks_what_it_reads_and_what_that_means(name: str) -> None:
    one = gallery.entry(name)
    assert one.commands
    linked = set(re.findall(r"\]\(([\w.-]+)\)", one.text))
    assert linked == {file.name for file in one.inputs} | {gallery.REPORT}
    title, question, *_ = one.text.split("\n\n")
    assert title.startswith("# ")
    assert "?" in question
    assert 2 <= one.text.partition("## What it means")[2].count("\n- ") <= 8


@pytest.mark.parametrize("name", NAMES)
def test_a_spec_is_commented_and_read(name: str) -> None:
    path = gallery.GALLERY / name / "question.yaml"
    assert path.read_text(encoding="utf-8").startswith("# ")
    read(path)


@pytest.mark.parametrize("name", NAMES)
def test_a_report_minds_nothing_twice(name: str) -> None:
    said: list[str] = []
    is_warning = False
    for line in gallery.entry(name).report.splitlines():
        is_warning = line.startswith("  ") if is_warning else line == "Warnings"
        said += [line] if is_warning and line != "Warnings" else []
        if not is_warning:
            assert len(said) == len(set(said))
            said = []


@pytest.mark.parametrize("name", NAMES)
def test_links_to_other_pages_lead_somewhere(name: str) -> None:
    one = gallery.entry(name)
    for link in re.findall(r"\]\((\.\.[\w./-]+)\)", one.text):
        assert (one.folder / link).resolve().is_file(), link


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (
            '$ planner plan x\n\na on b: hybrid on 8 devices: data 8\nProven optimal within the searched space (see "Search space"): 7 s, on all 8 devices.\n',
            ("hybrid on 8 devices: data 8", "proven optimal: 7 s", "hybrid"),
        ),
        (
            "$ planner plan x\n\na on b: pipeline on 8 devices\nBest found, not proven: 7 s, on all 8 devices; no plan takes less than 6 s (gap 14.3 %).\n",
            ("pipeline on 8 devices", "best found, not proven: 7 s (gap 14.3 %)", "pipeline"),
        ),
        (
            '$ planner procure x\n\nRent: 1 x m\nProven optimal within the searched space (see "Search space"): 8 USD.\n\nTrain by\n  all_reduce on 1 device\n',
            ("rent: 1 x m", "proven optimal: 8 USD", "all_reduce"),
        ),
        (
            "$ planner plan x\n\nNo plan fits: these 3 constraints conflict, and no fewer of them: a; b; c.\n",
            ("no plan fits", "proven: these 3 constraints conflict", "all that are allowed"),
        ),
    ],
)
def test_a_report_is_told_in_one_line(report: str, told: tuple[str, str, str]) -> None:
    assert gallery.told(report) == told


def test_what_a_question_writes_stays_out_of_its_folder(tmp_path: Path) -> None:
    one = gallery.entry("network-speeds")
    before = sorted(one.folder.iterdir())
    with gallery.copied(one) as folder:
        (folder / "question.sqlite").touch()
    assert sorted(one.folder.iterdir()) == before
    assert not folder.exists()
