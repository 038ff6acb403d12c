"""The site of the documentation is built, strictly: no link, no heading and no page of the navigation is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed; run make test-heavy")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("index.html", "first_hour.html", "reference/spec.html", "reference/solvers.html"):
        assert (tmp_path / "site" / name).stat().st_size > 10_000
    assert "optimal_groups" in (tmp_path / "site/reference/solvers.html").read_text(encoding="utf-8")
