"""What heavy tests share: a real browser, and a library of networks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; run make test-heavy")
    if not CHROMIUM.exists():
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def transformers() -> Any:
    """The library of Hugging Face."""
    return pytest.importorskip("transformers", reason="transformers is not installed; run make test-heavy")
