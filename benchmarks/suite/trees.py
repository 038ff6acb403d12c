"""The code that is measured: this checkout, or commits of it in folders of their own."""

import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.suite.machine import code_of

__all__ = ["ROOT", "Tree", "commit_tree", "this_tree"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Code to measure: ``root`` holds the package, ``facts`` say which commit it is."""

    root: Path
    facts: dict[str, Any]


def this_tree() -> Tree:
    """Return this checkout, as it lies there."""
    return Tree(root=ROOT, facts=code_of(ROOT))


def commit_tree(commit: str, folder: Path) -> Tree:
    """Return a commit, unpacked below a folder: the checkout and its index stay as they are.

    Raises
    ------
    ValueError
        If there is no such commit.
    """
    named = _git("rev-parse", "--verify", f"{commit}^{{commit}}")
    if named.returncode:
        raise ValueError(f"{commit!r} is no commit of {ROOT}")
    full = named.stdout.decode().strip()
    root = folder / full[:12]
    folder.mkdir(exist_ok=True)
    packed = folder / f"{full}.tar"
    _git("archive", f"--output={packed}", full)  # to a file: what this process holds counts as its children's, too
    with tarfile.open(packed) as archive:
        archive.extractall(root, filter="data")
    packed.unlink()
    subject = _git("log", "-1", "--format=%s", full).stdout.decode().strip()
    return Tree(root=root, facts={"commit": full, "subject": subject, "is_changed": False})


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)
