"""Optimisers of transformers: their state, what Muon computes and keeps whole, and questions that name one."""

from typing import Any

import numpy as np
import pytest
from hybrid_questions import TINY
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import planner
from planner.checks import report_text
from planner.errors import SpecError
from planner.families.hybrid import family as hybrid
from planner.models.layouts import Layouts
from planner.models.optimizers import OPTIMIZERS, matrices_of, newton_schulz_flop
from planner.question.spec import HybridSpec
from planner.zoo.transformers import row
from tests.referee.second_physics import check
from tests.referee.second_physics.hybrid import facts_of

MACHINES = {"count": 1, "device": "a100-sxm4-80gb", "devices": 4, "inside": "nvlink-3"}


def question(optimizer: object, **more: Any) -> Any:
    """A small transformer that an optimiser steps."""
    dnn = {"transformer": TINY, "global_batch": 8, "dtype": "bf16", "optimizer": optimizer}
    asked = {"dnn": dnn, "cluster": {"machines": [MACHINES]}, "objective": "iteration_time", "families": ["hybrid"]}
    return planner.load({**asked, **more})


def test_newton_schulz_takes_three_products_an_iteration_whichever_side_is_longer() -> None:
    wide, square = newton_schulz_flop(np.array([2.0, 6.0]), np.array([6.0, 2.0])), newton_schulz_flop(*np.ones((2, 1)))
    by_hand = 5 * (2 * 2 * 6 * 2 + 2 * 2 * 2 * 2 + 2 * 2 * 2 * 6)  # X X', its square, and a sum of both times X
    assert wide.tolist() == [by_hand, by_hand]
    assert square.tolist() == [5 * 6]


def test_tensor_parallelism_leaves_each_device_less_than_its_share_of_the_iterations() -> None:
    whole, split = (matrices_of(row("llama3.1-8b").transformer, "dense", Layouts.one(tensor=t)) for t in (1, 8))
    assert split.flop < whole.flop / 8
    assert whole.largest == 4096 * 2 * 14336


@settings(max_examples=25, deadline=None)
@given(
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    layout=st.fixed_dictionaries(
        {
            **{name: st.sampled_from([1, 2]) for name in ("tensor", "context", "pipeline", "data")},
            "zero": st.sampled_from([0, 1, 2, 3]),
            "offload_optimizer": st.booleans(),
        }
    ),
)
def test_a_second_count_agrees_and_none_keeps_or_takes_more_than_adam(optimizer: str, layout: dict[str, Any]) -> None:
    found = []
    try:
        for name in (optimizer, "adam"):
            problem = question(name)
            chosen = hybrid.configuration_of(problem, HybridSpec.model_validate(layout).model_dump())
            found.append(hybrid.predict(problem, chosen))
            facts = facts_of(problem, chosen.to_document(), found[-1])
            assert [f"{one.name}: {one.text}" for one in facts.findings if not one.is_ok] == []
    except SpecError:  # more devices than there are, or a rule broken
        assume(False)
    own, adam = found
    if optimizer != "muon":  # which computes, and whose rank with the largest matrix has more
        assert own.memory_bytes["total"] <= adam.memory_bytes["total"]
        assert own.iteration_time_s <= adam.iteration_time_s * (1 + 1e-12)


@pytest.mark.parametrize("optimizer", ["muon", "adam_8bit"])
def test_a_plan_is_proven_and_checked(optimizer: str) -> None:
    problem = question(optimizer)
    plan = planner.plan(problem)
    report = check(problem, plan)
    assert report.is_ok, report_text(report)
    assert plan.status == "optimal"


def test_states_may_be_told_apart_from_the_name() -> None:
    problem = question({"name": "adam", "states": "bf16"})
    assert problem.training.optimizer == "adam_bf16"
    with pytest.raises(SpecError, match=r"states 'bf16' of 'muon' are not known\. Write adam with states of"):
        question({"name": "muon", "states": "bf16"})
    with pytest.raises(SpecError, match="it must be 'sgd', 'momentum', 'adam'"):
        question("adamax")


def test_muon_goes_with_whole_matrices_and_with_the_family_that_counts_them() -> None:
    layout = {"data": 4, "zero": 3, "global_batch_size": 8}
    with pytest.raises(SpecError, match="muon steps whole matrices, and ZeRO 3 cuts them"):
        planner.predict(question("muon", configuration={"hybrid": layout}))
    plan = planner.plan(question("muon", families=["hybrid", "all_reduce"]))
    assert plan.family == "hybrid"
    assert any(
        "all_reduce does not count an optimizer that computes with whole matrices" in one for one in plan.explanation
    )
