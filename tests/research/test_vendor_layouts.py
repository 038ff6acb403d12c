"""Vendors' layouts as questions of the planner."""

from math import prod
from pathlib import Path

import planner
from research.vendor_layouts import questions

DEGREES = ("tensor_parallel_size", "context_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def test_every_vendors_layout_fills_the_machines_that_its_question_has(data_folder: Path) -> None:
    found = list(questions(data_folder))
    assert len(found) > 60
    assert sum(has_experts for *_, has_experts in found) > 20
    for name, question, pins, _ in found:
        (machines,) = question["cluster"]["machines"]
        assert prod(pins[degree] for degree in DEGREES) == machines["count"] * machines["devices"], name
    name, question, pins, _ = found[0]
    problem = planner.load({**question, "fix": pins})
    assert problem.fixed["tensor_parallel_size"] == pins["tensor_parallel_size"], name
