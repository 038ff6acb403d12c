"""Errors of predicted iterations of measured distributed runs, from the file beside this one.

``run_errors.yaml`` is written by ``python -m planner.calibration.runs --write``; ``docs/accuracy_runs.md`` says how
they come about, run by run.
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from planner.yaml_text import plain_yaml

__all__ = ["run_errors"]


@cache
def run_errors() -> Mapping[str, Mapping[str, Any]]:
    """Return, by family of runs: its ``name``, how many ``runs``, and their errors.

    ``mean``, ``median`` and ``largest`` are absolute relative errors; ``regret`` is the mean over so many ``choices``,
    None where there are none.

    >>> 0 < run_errors()["allreduce_emulated"]["mean"] < 0.1
    True
    """
    text = resources.files("planner.data").joinpath("run_errors.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = plain_yaml(text)
    return MappingProxyType({name: MappingProxyType(row) for name, row in found.items()})
