"""Every block of every page: commands run, lines of Python run, specs and tables are read, documents keep their schema.

What a page shows is held here, or by the test that the tables of ``docs_pages`` name; nothing else is left out.
"""

import re
import tomllib
from pathlib import Path

import docs_pages
import pytest
from docs_commands import KINDS, OTHERS, PLANNER, ROOT, Block, blocks, blocks_of, follow, missing, pages
from pytest import CaptureFixture, MonkeyPatch

ALL = [block for page in pages() for block in blocks(page)]
MEASURED = [block for block in ALL if docs_pages.is_measured(block)]
TESTS = sorted({*docs_pages.ELSEWHERE.values(), docs_pages.GALLERY})


@pytest.mark.parametrize("page", docs_pages.followed())
def test_what_stands_on_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    docs_pages.follow_page(page, tmp_path, capsys)


@pytest.mark.measured
@pytest.mark.parametrize("block", MEASURED, ids=lambda block: f"{block.page}:{block.line}")
def test_commands_on_measured_data_print_what_stands_there(
    block: Block, data_folder: Path, tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    assert data_folder.is_dir()
    monkeypatch.chdir(tmp_path)
    docs_pages.stand(block, tmp_path, {}, capsys)


# -- nothing is left out ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", ALL, ids=lambda block: f"{block.page}:{block.line}")
def test_a_block_says_what_it_is(block: Block) -> None:
    assert block.kind in KINDS
    for command in block.commands:
        for call in command.parts:
            assert call.program in (*PLANNER, "cat", "cd", "mkdir", *OTHERS), call.program


def test_what_no_test_runs_has_its_reason() -> None:
    programs = {call.program for block in ALL for command in block.commands for call in command.parts}
    assert programs & set(OTHERS) == set(docs_pages.NOT_RUN)


@pytest.mark.parametrize("test", TESTS)
def test_a_test_that_follows_pages_names_them(test: str) -> None:
    text = (ROOT / test).read_text(encoding="utf-8")
    for page in {page for (page, _), named in docs_pages.ELSEWHERE.items() if named == test}:
        assert Path(page).name in text, f"{test} does not follow {page}"


def test_the_tables_name_blocks_that_are_there() -> None:
    here = {docs_pages.place_of(block) for block in ALL}
    for table in (docs_pages.ELSEWHERE, docs_pages.WITHIN):
        assert set(table) <= here, set(table) - here
    assert {*docs_pages.FILES} <= set(pages())
    assert set(docs_pages.LONG) <= {(block.page, command.text) for block in ALL for command in block.commands}


def test_targets_of_make_and_extras_of_pip_exist() -> None:
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    calls = [call for block in ALL for command in block.commands for call in command.parts]
    assert {word for call in calls if call.program == "make" for word in call.words[1:]} <= targets
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in pages())
    assert set(re.findall(r"`make ([\w-]+)`", text)) <= targets
    assert set(re.findall(r"(?:training-planner|\.)\[(\w+)\]'", text)) <= set(extras)


# -- the machinery ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "printed", "lost"),
    [
        ("a\nb\n", "a\nb\n", []),
        ("a\n...\n", "a\nb\nc\n", []),
        ("a\n...\nc\n", "a\nb\nc\n", []),
        ("M: ...\n", "M: x\n", []),
        ("a\nc\n", "a\nb\nc\n", ["c", "(printed, and not shown: b)"]),
        ("a\n", "a\nb\n", ["(printed, and not shown: b)"]),
        ("...\nb\na\n...\n", "a\nb\n", ["a"]),
    ],
)
def test_the_comparison_finds_what_differs(shown: str, printed: str, lost: list[str]) -> None:
    assert missing(shown, printed) == lost


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("```yaml\na: 1\n```\n", "yaml", ""),
        ('```yaml title="b.yaml"\na: 1\n```\n', "yaml", "b.yaml"),
        ("Put this into `b.yaml`:\n\n```yaml\na: 1\n```\n", "yaml", "b.yaml"),
        ("Put these rows\ninto `c.csv`:\n\n```csv\na\n```\n", "csv", "c.csv"),
        ("<!-- file: b.yaml -->\n```yaml\na: 1\n```\n", "yaml", "b.yaml"),
        ("```python\n# nets.py\nx = 1\n```\n", "python", "nets.py"),
        ("```\nplanner plan x\n```\n", "sh", ""),
        ("```\na + b\n```\n", "text", ""),
    ],
)
def test_a_block_is_what_stands_around_it(text: str, kind: str, name: str) -> None:
    (block,) = blocks_of(text)
    assert (block.kind, block.name) == (kind, name)


def test_commands_are_taken_apart_as_a_shell_does() -> None:
    (block,) = blocks_of(
        "<!-- exit 1 -->\n<!-- needs json -->\n```console\n"
        "$ NO_COLOR=1 planner plan 'a b.yaml' \\\n  --json | cat   # why\nno\n$ planner x > y && cd z\n```\n"
    )
    first, second = block.commands
    assert (first.code, first.needs, first.printed) == (1, "json", "no\n")
    (call,) = first.parts
    assert (call.environment, call.words) == ({"NO_COLOR": "1"}, ("planner", "plan", "a b.yaml", "--json"))
    one, other = second.parts
    assert (one.words, one.into, other.words) == (("planner", "x"), "y", ("cd", "z"))


def test_a_command_that_ends_otherwise_is_found(capsys: CaptureFixture[str]) -> None:
    (block,) = blocks_of("```sh\nplanner show dnn no-such-net\n```\n")
    with pytest.raises(AssertionError, match="no-such-net"):
        follow(block.commands[0], capsys)
