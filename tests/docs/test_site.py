"""The site of the documentation: every page stands in its navigation, and its reference has a sentence for every key."""

import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from docs_commands import ROOT

from planner.cli.show import Document
from planner.sweep.answers import Outcome

NAVIGATION = re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)


@cache
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_of_the_site", ROOT / "docs/reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_stands_in_the_navigation_once() -> None:
    docs = ROOT / "docs"
    written = {path.relative_to(docs).as_posix() for path in (*docs.glob("*.md"), docs / "gallery/README.md")}
    assert sorted(NAVIGATION) == sorted({*written, *reference().pages()}), "give it a line in mkdocs.yml"


def test_links_lead_from_the_first_page_to_every_other() -> None:
    docs, seen, left = ROOT / "docs", set[Path](), {ROOT / "docs/index.md"}
    while left:
        seen.add(page := left.pop())
        links = re.findall(r"\]\(([^)#:]+\.md)", page.read_text(encoding="utf-8"))
        left |= {path for link in links if (path := (page.parent / link).resolve()).is_relative_to(docs)} - seen
    assert sorted(set(docs.glob("*.md")) - seen) == []


@pytest.mark.parametrize("name", ["spec", "procure"])
def test_every_key_of_a_question_has_a_sentence(name: str) -> None:
    told = reference().sentences()
    blocks = reference().blocks_of(name)
    lacking = [f"{block}.{key}" for block, keys in blocks.items() for key in keys if not told.get(block, {}).get(key)]
    assert lacking == [], "say in docs/keys.yaml what it means"


def test_no_sentence_is_of_a_key_that_is_gone() -> None:
    blocks: dict[str, set[str]] = {}
    for name in ("spec", "procure"):
        for block, keys in reference().blocks_of(name).items():
            blocks.setdefault(block, set()).update(keys)
    told = reference().sentences()
    assert set(told) == set(blocks)
    borrowed = set(told["fix"])  # `constraints.exclude` borrows the sentences of `fix`
    gone = [f"{block}.{key}" for block, keys in told.items() for key in keys if key not in blocks[block] | borrowed]
    assert gone == [], "delete it from docs/keys.yaml"


def test_the_reference_has_every_command_and_every_document() -> None:
    pages = reference().pages()
    assert {f"## planner {name}" for name in ("plan", "procure", "export", "import")} <= set(
        pages["reference/commands.md"].splitlines()
    )
    documents = {each.value for each in Document} - {"spec", "procure"}
    assert set(re.findall(r"^## (\w+)$", pages["reference/documents.md"], re.MULTILINE)) == documents


@pytest.mark.parametrize("name", list(Outcome))
def test_every_outcome_of_a_sweep_is_explained(name: Outcome) -> None:
    text = (ROOT / "docs/sweep.md").read_text(encoding="utf-8")
    assert re.search(rf"^\|[^|]*`{name}`", text, re.MULTILINE)
