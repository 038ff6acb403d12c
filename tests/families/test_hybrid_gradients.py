"""Gradients in bf16: bytes, seconds, the checker, the command and the words follow what the user asks of the program."""

from typing import Any

import pytest
from hybrid_questions import MOE, TINY
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import planner
from planner.checks import report_text
from planner.errors import SpecError
from planner.exporters.export import Job, export
from planner.families.hybrid import family as hybrid
from planner.plan import Prediction
from planner.problem import Problem
from planner.question.spec import HybridSpec
from tests.referee.second_physics import check
from tests.referee.second_physics.hybrid import facts_of

pytestmark = pytest.mark.usefixtures("wordless")

MACHINES = {"count": 2, "device": "a100-sxm4-80gb", "devices": 4, "inside": "nvlink-3", "network": "25 Gbit/s"}


def question(gradients: str | None, transformer: dict[str, Any] = TINY, *, dtype: str = "bf16", **more: Any) -> Problem:
    """A small transformer whose gradients the program keeps in a type."""
    calibration = {} if gradients is None else {"gradients": gradients}
    return planner.load(
        {
            "dnn": {"transformer": transformer, "global_batch": 16, "dtype": dtype, "optimizer": "adam"},
            "cluster": {"machines": [MACHINES]},
            "objective": "iteration_time",
            "families": ["hybrid"],
            **more,
            "calibration": calibration | more.get("calibration", {}),
        }
    )


def predicted(problem: Problem, layout: dict[str, Any]) -> tuple[dict[str, Any], Prediction, tuple[str, ...]]:
    """The block of a layout, whole, what the family says of it, and in words."""
    chosen = hybrid.configuration_of(problem, HybridSpec.model_validate(layout).model_dump())
    found = hybrid.predict(problem, chosen)
    return chosen.to_document(), found, hybrid.explain(problem, chosen, found)


LAYOUTS = st.fixed_dictionaries(
    {
        "tensor": st.sampled_from([1, 2]),
        "context": st.sampled_from([1, 2]),
        "pipeline": st.sampled_from([1, 2]),
        "data": st.sampled_from([1, 2, 4]),
        "microbatch": st.sampled_from([1, 2]),
        "zero": st.sampled_from([0, 1, 2, 3]),
        "recompute": st.sampled_from(["none", "full"]),
        "offload_optimizer": st.booleans(),
    }
)


@settings(max_examples=60, deadline=None)
@example(layout={"zero": 3, "offload_optimizer": False}, transformer=TINY)  # FSDP of one rank
@given(layout=LAYOUTS, transformer=st.sampled_from([TINY, MOE]))
def test_bf16_halves_the_gradients_of_the_distributed_optimiser_and_never_takes_longer(
    layout: dict[str, Any], transformer: dict[str, Any]
) -> None:
    try:
        (block, short, _), (_, whole, _) = (predicted(question(one, transformer), layout) for one in ("bf16", "fp32"))
    except SpecError:  # more devices than there are, or a rule broken
        assume(False)
        raise
    ranks, is_offloaded = block["data"] * block["context"], block["offload_optimizer"]
    is_told = block["zero"] == 1 or (block["zero"] == 0 and ranks == 1)
    share = 0.5 if is_told or is_offloaded else 1.5  # others widen theirs beside
    assert short.memory_bytes["gradients"] == pytest.approx(share * whole.memory_bytes["gradients"])
    is_joined = is_told and not is_offloaded  # master copies, of a weight and two bytes more
    assert is_joined is ("--use-precision-aware-optimizer" in " ".join(short.details["launch"]) and not is_offloaded)
    kept = (2 + 8) / (4 + 8) if is_joined else 1.0
    assert short.memory_bytes["optimizer"] == pytest.approx(kept * whole.memory_bytes["optimizer"])
    for term in ("weights", "activations", "temporary", "reserve"):
        assert short.memory_bytes[term] == whole.memory_bytes[term]
    assert short.iteration_time_s <= whole.iteration_time_s * (1 + 1e-12)
    problem = question("bf16", transformer)
    assert [f"{one.name}: {one.text}" for one in facts_of(problem, block, short).findings if not one.is_ok] == []


@pytest.mark.parametrize(
    ("dtype", "optimizer", "spared_bytes"),
    [("bf16", "adamw", 2), ("bf16", "sgd", 0), ("fp8", "adam", 0)],
    ids=["adam", "sgd", "fp8"],
)
def test_half_of_a_master_copy_is_kept_where_adam_reads_the_rest_off_weights_in_bf16(
    dtype: str, optimizer: str, spared_bytes: int
) -> None:
    dnn = {"transformer": TINY, "global_batch": 16, "dtype": dtype, "optimizer": optimizer}
    cluster = {"machines": [{**MACHINES, "device": "h100-sxm"}]}
    held = {}
    for gradients in ("bf16", "fp32"):
        _, found, _ = predicted(question(gradients, dnn=dnn, cluster=cluster), {"data": 8, "zero": 1})
        held[gradients] = found.memory_bytes["optimizer"]
        is_told = "--use-precision-aware-optimizer" in " ".join(found.details["launch"])
        assert is_told is (gradients == "bf16" and optimizer != "sgd")
    kept_bytes = 4 if optimizer == "sgd" else 12
    assert held["bf16"] / held["fp32"] == pytest.approx((kept_bytes - spared_bytes) / kept_bytes)


def test_gradients_of_many_ranks_travel_in_half_the_bytes() -> None:
    layout = {"data": 8, "zero": 1, "overlap_data": False}
    data_s = [predicted(question(one), layout)[1].communication_s["data"] for one in ("bf16", "fp32")]
    assert data_s[0] < 0.8 * data_s[1]  # weights, gathered back, stay as they are


def test_a_plan_with_gradients_in_bf16_is_proven_checked_and_told() -> None:
    problem = question("bf16", MOE)
    plan = planner.plan(problem)
    report = check(problem, plan)
    assert report.is_ok, report_text(report)
    assert plan.objective <= planner.plan(question(None, MOE)).objective
    assert "gradients are kept and reduced in bf16 (calibration.gradients)" in plan.assumptions
    assert any("--bf16 --grad-reduce-in-bf16" in line for line in plan.prediction.details["launch"])


def test_what_the_program_does_by_itself_is_fp32() -> None:
    plain, stated = (planner.plan(question(one)) for one in (None, "fp32"))
    assert plain.objective == stated.objective
    assert plain.prediction.memory_bytes == stated.prediction.memory_bytes
    assert not any("--grad-reduce-in-bf16" in line for line in stated.prediction.details["launch"])


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ({"data": 8, "zero": 1}, {"--use-distributed-optimizer", "--use-precision-aware-optimizer"}),
        ({"pipeline": 2}, {"--use-distributed-optimizer", "--use-precision-aware-optimizer"}),
        ({"data": 8, "zero": 0}, set()),
        ({"data": 8, "zero": 2}, {"--use-distributed-optimizer"}),
        ({"data": 8, "zero": 1, "offload_optimizer": True}, {"--use-distributed-optimizer"} | {"--use-precision-aware-optimizer"}),
    ],
    ids=["shared", "alone", "whole", "fsdp", "host"],
)  # fmt: skip
def test_the_command_says_it_once(layout: dict[str, Any], options: set[str]) -> None:
    words = " ".join(predicted(question("bf16"), layout)[1].details["launch"]).split()
    assert words.count("--grad-reduce-in-bf16") == 1
    for name in ("--use-distributed-optimizer", "--use-precision-aware-optimizer"):
        assert words.count(name) == (name in options)


def test_the_exported_script_says_it() -> None:
    problem = question("bf16", fix={"data_parallel_size": 8})
    found = export("megatron", Job(problem=problem, plan=planner.plan(problem)))
    assert "--grad-reduce-in-bf16" in found.files["launch.sh"]


@pytest.mark.parametrize(
    ("asked", "what", "mend"),
    [
        (
            {"calibration": {"program": "torchtitan"}},
            "torchtitan keeps gradients in a type of its own",
            "megatron-core",
        ),
        ({"dtype": "fp16"}, "go with numbers in bf16", "dnn.dtype: bf16"),
    ],
)
def test_what_cannot_be_is_refused_with_where_what_and_how(asked: dict[str, Any], what: str, mend: str) -> None:
    with pytest.raises(SpecError, match=what) as caught:
        question("bf16", **asked)
    (fault,) = caught.value.faults
    assert fault.field == "calibration.gradients"
    assert mend in str(fault.mend)


def test_families_that_ask_for_no_program_warn() -> None:
    problem = question("bf16", families=["all_reduce"])
    assert any("calibration.gradients alters nothing" in one for one in problem.warnings)


def test_a_layout_that_bf16_would_make_fit_is_told_so_and_others_are_not() -> None:
    layout = {"data": 8, "zero": 1}
    held = [predicted(question(one), layout)[1].memory_bytes["total"] for one in ("fp32", "bf16")]
    between, below = f"{sum(held) / 2 / 1e6} MB", f"{0.9 * held[1] / 1e6} MB"
    for limit, gradients, is_hinted in ((between, None, True), (below, None, False), (between, "fp32", False)):
        words = predicted(question(gradients, constraints={"memory_per_device": limit}), layout)[2]
        (line,) = [one for one in words if one.startswith("it does not fit")]
        assert ("calibration.gradients: bf16" in line) == is_hinted
