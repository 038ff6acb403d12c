"""Sweeps of tests: a question that is answered in some milliseconds, and what stands in a store."""

import json
import sqlite3
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from planner.sweep.question import Sweep, load_sweep

TODAY = date(2026, 1, 1)
LAYERS = [
    {"name": "in", "kind": "input", "output": "1 kB"},
    {
        "name": "a",
        "kind": "dense",
        "inputs": ["in"],
        "multiply_adds": 1_000_000,
        "parameters": "4 MB",
        "output": "4 kB",
    },
    {"name": "b", "kind": "dense", "inputs": ["a"], "multiply_adds": 1_000_000, "parameters": "4 MB", "output": "4 kB"},
]
BASE: dict[str, Any] = {
    "dnn": {"layers": LAYERS, "batch_per_device": 8, "dataset_samples": 1000},
    "cluster": {"machines": [{"count": 2, "devices": 1, "device": "v100", "network": "10 Gbit/s", "latency": "5 us"}]},
    "families": ["all_reduce"],
    "fix": {"num_devices": 2},
}
SLOW: dict[str, Any] = {  # some ten seconds for one question
    "dnn": {"zoo": "deepseek-v3", "global_batch": 61_440},
    "cluster": {"machines": [{"machine": "hgx-h100", "count": 12_500}]},
    "families": ["hybrid"],
}


def asked(sweep: Mapping[str, Any], base: Mapping[str, Any] = BASE, *, time_limit_s: float = 60.0) -> Sweep:
    return load_sweep({**base, "sweep": sweep}, time_limit_s=time_limit_s)


def batches(number: int) -> dict[str, Any]:
    """A block of so many cheap questions."""
    return {"vary": {"dnn.batch_per_device": {"from": 1, "to": number, "step": 1}}}


def write_spec(path: Path, sweep: Mapping[str, Any], base: Mapping[str, Any] = BASE) -> Path:
    """A spec file: JSON is YAML, too."""
    path.write_text(json.dumps({**base, "sweep": sweep}), encoding="utf-8")
    return path


def contents(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of a store but wall times, claims and owners; its integrity is checked."""
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        found = {
            table: db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
            for table in ("results", "members", "sweeps")
        }
    db.close()
    return found


def left_over(path: Path) -> tuple[int, int]:
    """How many claims and owners a store holds."""
    with sqlite3.connect(path) as db:
        claims, owners = (db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("claims", "owners"))
    db.close()
    return claims, owners


def num_answered(path: Path) -> int:
    """How many answers a store holds; none where it is not there yet, or has no tables."""
    if not path.exists():
        return 0
    with sqlite3.connect(path, timeout=60) as db:
        has_tables = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'results'").fetchone()[0]
        number: int = db.execute("SELECT count(*) FROM results").fetchone()[0] if has_tables else 0
    db.close()
    return number
