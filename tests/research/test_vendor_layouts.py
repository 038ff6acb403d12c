"""Vendors' layouts as questions of the planner."""

from math import prod
from pathlib import Path

import planner
from research.vendor_layouts import questions

DEGREES = ("tensor_parallel_size", "context_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def test_every_vendors_layout_fills_the_machines_that_its_question_has(data_folder: Path) -> None:
    found = list(questions(data_folder))
    assert len(found) > 60
    assert sum(one.has_experts for one in found) > 20
    for one in found:
        (machines,) = one.question["cluster"]["machines"]
        assert prod(one.pins[degree] for degree in DEGREES) == machines["count"] * machines["devices"], one.name
    first = found[0]
    problem = planner.load({**first.question, "fix": first.pins})
    assert problem.fixed["tensor_parallel_size"] == first.pins["tensor_parallel_size"], first.name


def test_a_name_stands_for_one_question_and_later_quicker_layouts_are_known(data_folder: Path) -> None:
    found = list(questions(data_folder))
    named = {one.name: one.question for one in found}
    assert all(one.question == named[one.name] for one in found)
    replaced = {(one.name.split(",")[0], one.pins["expert_parallel_size"]) for one in found if one.quickest < 0.95}
    assert ("GPT OSS 120B", 64) in replaced  # 10.2 s on B200, and 6.0 s with 8
    assert all(0 < one.quickest <= 1 for one in found)


def test_layouts_of_cut_networks_and_replaced_ones_were_not_tuned_by_hand(data_folder: Path) -> None:
    found = list(questions(data_folder, as_bf16=True))
    untuned = {one.name.split(",")[0] for one in found if one.untuned.startswith("cut")}
    assert "405B(7 layers) x32" in untuned
    assert not any("126 layers" in name or "8B" in name for name in untuned)  # whole networks
    assert all(one.quickest < 0.95 or one.untuned.startswith("cut") for one in found if one.untuned)
    assert sum(not one.untuned for one in found) > 50
