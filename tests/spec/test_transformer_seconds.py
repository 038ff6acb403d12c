"""What families other than hybrid count with for a transformer, and what the answer says of it."""

from typing import Any

import pytest

import planner
from planner.data.fits import transformer_rates
from planner.families.pipeline.cost import PipelineCost
from planner.problem import Problem

FAMILIES = ["all_reduce", "pipeline", "hybrid"]


def question(
    device: str = "a100-sxm4-80gb", *, dnn: dict[str, Any] | None = None, families: list[str] = FAMILIES, **more: Any
) -> Problem:
    machines = [{"count": 2, "device": device, "devices": 8, "network": "200 Gbit/s"}]
    asked = {"zoo": "bert-large", "global_batch": 512, **(dnn or {})}
    return planner.load({"dnn": asked, "cluster": {"machines": machines}, "families": families, **more})


def says(lines: tuple[str, ...], words: str) -> bool:
    return any(words in line for line in lines)


def test_seconds_and_shares_of_links_are_those_that_were_fitted() -> None:
    problem, constants = question(), transformer_rates()["constants"]
    assert "fitted rooflines of a100-sxm4-80gb" in problem.profiles["a100-sxm4-80gb"].origin
    assert problem.calibration.links.network_share == constants["outside_efficiency"]
    assert problem.calibration.links.inside_share == constants["inside_efficiency"]
    assert says(problem.assumptions, "as fitted to transformers")
    assert not says(problem.warnings, "uncalibrated")


def test_one_device_computes_as_long_by_every_family() -> None:
    one: dict[str, Any] = {"constraints": {"devices": 1}, "dnn": {"global_batch": 32}}
    plans = [planner.plan(question(families=[name], **one)) for name in ("all_reduce", "hybrid")]
    exchanged, hybrid = (plan.prediction.breakdown_s for plan in plans)
    computing = [exchanged["forward"] + exchanged["backward"], hybrid["compute"] + hybrid["launch"]]
    assert plans[1].configuration.to_document()["microbatch"] == 32
    assert computing[0] == pytest.approx(computing[1], rel=1e-3)  # more samples are never slower, each
    assert exchanged["update"] == pytest.approx(hybrid["optimizer"])


def test_a_pipeline_counts_with_the_few_samples_of_a_micro_batch() -> None:
    problem = question()
    costs, last = PipelineCost(problem).costs, len(problem.dnn.layers) - 1
    one_s, four_s = (float(costs.forward_s(0, last, group=0, num_samples=number)) for number in (1, 4))
    assert one_s < four_s < 0.7 * 4 * one_s


def test_a_utilisation_that_is_given_counts_and_is_said_not_to_count_for_hybrid() -> None:
    problem = question(calibration={"utilisation": 0.4})
    assert "0.4 of the bf16 peak" in problem.profiles["a100-sxm4-80gb"].origin
    assert problem.calibration.links.inside_share == transformer_rates()["constants"]["inside_efficiency"]
    assert says(problem.warnings, "families are not compared alike")


def test_shares_of_links_that_are_given_count() -> None:
    fitted = question(calibration={"bandwidth_efficiency": 0.5}).calibration.links
    assert (fitted.network_share, fitted.inside_share) == (
        0.5,
        transformer_rates()["constants"]["inside_efficiency"],
    )


def test_long_numbers_take_the_rooflines_of_any_network_s_kernels() -> None:
    problem = question(dnn={"dtype": "fp32"})
    assert problem.profiles["a100-sxm4-80gb"].origin == "rooflines of a100-sxm4-80gb's kernels"
    assert says(problem.warnings, "no training steps were measured there")


def test_a_device_with_another_one_s_shares_is_named() -> None:
    assert says(question("v100-sxm2-16g", dnn={"dtype": "fp16"}).warnings, "is uncalibrated for transformers")


def test_hybrid_alone_is_not_compared_with_others() -> None:
    assert not says(question(families=["hybrid"]).warnings, "families")
