"""What a measurement was made on, and of which code."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["code_of", "load", "machine"]

_LIBRARIES = ("numpy", "scipy", "networkx", "ortools", "pydantic", "ruamel.yaml", "typer", "rich", "plotly", "onnx")


def machine() -> dict[str, Any]:
    """Return the facts of this machine and of the libraries that are installed."""
    return {
        "date": datetime.now(tz=UTC).isoformat(timespec="seconds"),
        "processor": _line_of(Path("/proc/cpuinfo"), "model name") or platform.processor(),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": _line_of(Path("/proc/meminfo"), "MemTotal"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": sys.version.split()[0],
        "libraries": {name: _version(name) for name in _LIBRARIES},
    }


def code_of(tree: Path) -> dict[str, Any]:
    """Return the commit of a checkout, and whether files differ from it; nothing where it is none."""
    commit = _git(tree, "rev-parse", "HEAD")
    return {
        "commit": commit,
        "subject": _git(tree, "log", "-1", "--format=%s"),
        "is_changed": bool(commit and _git(tree, "status", "--porcelain", "--untracked-files=no")),
    }


def load() -> float:
    """Return how many processes wanted to run, on average over the last minute: more than the cores blur all times."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")


def _git(tree: Path, *arguments: str) -> str:
    """Return what git says; nothing where it cannot."""
    done = subprocess.run(["git", "-C", str(tree), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _line_of(path: Path, key: str) -> str:
    """Return the value of the first line that begins with a key."""
    lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
