"""The notebooks: run from top to bottom, and every cell shows what stands below it; `make gallery` writes it anew."""

import html
import json
import re
from pathlib import Path
from typing import Any

import notebooks
import pytest

PATHS = sorted(notebooks.FOLDER.glob("*.ipynb"))
MOST_BYTES = 30_000


def shown(cell: dict[str, Any]) -> list[str]:
    """What a cell shows, as text without marks and styles."""
    texts = []
    for output in cell.get("outputs", []):
        parts = [output["text"]] if "text" in output else output["data"].values()
        for part in parts:
            text = re.sub(r"(?s)<style.*?</style>|<[^>]+>", " ", "".join(part))
            texts.append(" ".join(html.unescape(text).split()))
    return texts


@pytest.mark.long  # test_notebook.py and test_python.py have what the cells call
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_stands_there(path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for before, after in zip(notebook["cells"], notebooks.executed(notebook)["cells"], strict=True):
        assert shown(before) == shown(after), "make gallery writes it anew"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_is_small_begins_with_its_title_and_stands_in_the_page_of_scripts(path: Path) -> None:
    assert path.stat().st_size < MOST_BYTES
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["cells"][0]["cell_type"]) == (4, "markdown")
    assert notebook["cells"][0]["source"][0].startswith("# ")
    assert f"notebooks/{path.name}" in (notebooks.FOLDER.parent / "scripting.md").read_text(encoding="utf-8")
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
