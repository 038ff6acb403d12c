"""Two plans side by side: what is said of them adds up, and what is not comparable is called so."""

import copy
from typing import Any

import pytest
from answers import comparison_text
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import planner
from planner.answer.comparison import Comparison
from planner.answer.schemas import ComparisonDocument
from planner.errors import SpecError

NAMES = ("a.json", "b.json")


def document(**more: Any) -> dict[str, Any]:
    question: dict[str, Any] = {
        "dnn": {"zoo": "alexnet", "batch_per_device": 32},
        "cluster": {"preset": "osf-testbed"},
        "families": ["all_reduce"],
        "constraints": {"machines": 4},
        "calibration": {"bandwidth_efficiency": 1},
    }
    for key, value in more.items():
        question[key] = {**question[key], **value} if key == "dnn" else value
    return planner.plan(planner.load(question)).to_dict()


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return document()


def edited(plan: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A copy with some values at dotted paths (dots written as __) replaced."""
    found = copy.deepcopy(plan)
    for path, value in more.items():
        *parents, last = path.split("__")
        part = found
        for parent in parents:
            part = part[parent]
        part[last] = value
    return found


def terms_add_up(found: Comparison) -> bool:
    difference = sum(term.difference_s for term in found.terms)
    return difference == pytest.approx(found.objectives[1] - found.objectives[0], abs=1e-9 * max(found.objectives))


def test_a_plan_is_no_better_than_itself(plain: dict[str, Any]) -> None:
    found = planner.compare(plain, plain)
    assert (found.better, found.saving) == (None, 0)
    assert (found.decisions, found.question, found.warnings) == ((), (), ())
    assert all(term.difference_s == 0 for term in found.terms)
    assert "Both take the same." in comparison_text(found, NAMES)


def test_a_slower_network_costs_what_its_terms_say(plain: dict[str, Any]) -> None:
    machine = {"count": 4, "device": "rtx-2080-ti", "devices": 8, "inside": "pcie-3-x16", "network": "1 Gbit/s"}
    slow = document(cluster={"machines": [machine]})
    found = planner.compare(plain, slow)
    assert found.better == 0
    assert found.saving == pytest.approx(1 - plain["objective"]["value"] / slow["objective"]["value"])
    assert found.terms[0].name == "exposed_all_reduce"
    assert terms_add_up(found)
    assert "cluster.preset" in [one.name for one in found.question]
    assert found.warnings == ()
    assert planner.compare(slow, plain).better == 1


@given(st.integers(1, 4), st.sampled_from([32, 64]), st.sampled_from(["sgd", "adam"]))
@settings(max_examples=12)
def test_terms_always_add_up_to_the_difference(machines: int, batch: int, optimizer: str) -> None:
    one = document(constraints={"machines": machines})
    other = document(dnn={"batch_per_device": batch, "optimizer": optimizer})
    found = planner.compare(one, other)
    assert terms_add_up(found)
    sizes = [abs(term.difference_s) for term in found.terms]
    assert sizes == sorted(sizes, reverse=True)
    assert any("global batches differ" in warning for warning in found.warnings) == (32 * 8 * machines != 32 * batch)


def test_decisions_are_listed_one_by_one(plain: dict[str, Any]) -> None:
    other = edited(plain, family="parameter_server", substitutions=["head"], configuration__num_devices=16)
    rows = {one.name: one.values for one in planner.compare(plain, other).decisions}
    assert rows == {
        "family": ("all_reduce", "parameter_server"),
        "substitutions": ("none", "head"),
        "num_devices": (32, 16),
    }


def test_another_grouping_of_equal_size_is_no_equal_grouping(plain: dict[str, Any]) -> None:
    groups = copy.deepcopy(plain["configuration"]["fusion_groups"])
    groups[0]["algorithm"] = "another"
    (row,) = planner.compare(plain, edited(plain, configuration__fusion_groups=groups)).decisions
    assert row.values == (f"{len(groups)} entries", f"{len(groups)} entries, other ones")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"objective__name": "iteration_time_s"}, "do not minimise the same: epoch_time_s and iteration_time_s"),
        ({"configuration__global_batch_size": 2048}, "the global batches differ, 1024 and 2048"),
        ({"problem__dnn__zoo": "vgg16"}, "dnn.zoo differs, alexnet and vgg16"),
        ({"substitutions": ["head"]}, "accuracy is not modelled"),
        ({"prediction__details__staleness": {"mean": 1.0, "most": None}}, "the second plan is asynchronous"),
        ({"prediction__details__staleness": 2}, "the second plan is asynchronous"),
        ({"status": "feasible", "objective__gap": 0.25}, "gap 25.0%"),
    ],
)
def test_what_is_not_comparable_is_called_so(plain: dict[str, Any], change: dict[str, Any], words: str) -> None:
    found = planner.compare(plain, edited(plain, **change))
    assert any(words in warning for warning in found.warnings)
    assert words in comparison_text(found, NAMES)


def test_plans_for_different_objectives_have_no_winner(plain: dict[str, Any]) -> None:
    other = edited(plain, objective__name="iteration_time_s", objective__value=0.1)
    found = planner.compare(plain, other)
    assert (found.better, found.saving, found.terms) == (None, 0, ())
    assert "Neither is better" in comparison_text(found, NAMES)


def test_plans_of_two_networks_have_no_winner(plain: dict[str, Any]) -> None:
    found = planner.compare(plain, edited(plain, problem__dnn__zoo="vgg16", objective__value=0.1))
    assert (found.better, found.saving) == (None, 0)
    assert "Neither is better: they train different networks." in comparison_text(found, NAMES)


@pytest.mark.parametrize(
    ("objective", "one", "other", "reason"),
    [
        (
            "iteration_time_s",
            {"sequence_length": 4096},
            {"sequence_length": 8192},
            "dnn.sequence_length 4096 and 8192",
        ),
        ("epoch_time_s", {"dataset_samples": 1000}, {"dataset_samples": 50}, "dnn.dataset_samples 1000 and 50"),
        ("training_time_s", {"epochs": 1.0}, {"epochs": 90.0}, "dnn.epochs 1.0 and 90.0"),
        ("training_time_s", {"tokens": "1T"}, {"tokens": "10B"}, "dnn.tokens 1T and 10B"),
        ("epoch_time_s", {"epochs": 1.0}, {"epochs": 90.0}, None),
        ("iteration_time_s", {"dataset_samples": 1000}, {"dataset_samples": 50}, None),
        ("epoch_time_s", {"sequence_length": 4096}, {}, None),
        ("training_time_s", {"tokens": 9e9, "sequence_length": 4096}, {"tokens": 9e9, "sequence_length": 8192}, None),
    ],
)
def test_plans_that_train_for_different_work_have_no_winner(
    plain: dict[str, Any], objective: str, one: dict[str, Any], other: dict[str, Any], reason: str | None
) -> None:
    asked = plain["problem"]["dnn"]
    slow = edited(plain, objective__name=objective, objective__value=2.0, problem__dnn={**asked, **one})
    quick = edited(plain, objective__name=objective, objective__value=1.0, problem__dnn={**asked, **other})
    found = planner.compare(slow, quick)
    assert found.better == (1 if reason is None else None)
    if reason is not None:
        assert f"Neither is better: they do not train the same amount ({reason})." in comparison_text(found, NAMES)


def test_iterations_of_different_batches_are_compared_by_the_sample(plain: dict[str, Any]) -> None:
    def iteration(samples: int, seconds: float) -> dict[str, Any]:
        goal = {"objective__name": "iteration_time_s", "objective__value": seconds}
        return edited(plain, configuration__global_batch_size=samples, **goal)

    large, small = iteration(512, 12.0), iteration(256, 8.0)
    found = planner.compare(large, small)
    assert found.sample_s == (12 / 512, 8 / 256)
    assert found.better == 0
    assert found.saving == pytest.approx(0.25)
    text = comparison_text(found, NAMES)
    assert "it saves 25.00% of what" in text
    assert "takes for a sample." in text
    assert planner.compare(large, iteration(512, 8.0)).better == 1
    even = planner.compare(iteration(512, 16.0), small)
    assert even.better is None
    assert "Both take the same for a sample" in comparison_text(even, NAMES)


def test_a_comparison_of_long_questions_is_forty_lines_at_most(plain: dict[str, Any]) -> None:
    problem = {**plain["problem"], **{f"key-{index}": {"a": index} for index in range(30)}}
    layers = {**plain["problem"]["dnn"], "layers": [{"name": str(index)} for index in range(50)]}
    other = edited(plain, problem=problem, problem__dnn=layers)
    other["configuration"] |= {f"decision-{index}": index for index in range(30)}
    found = planner.compare(plain, other)
    assert len(comparison_text(found, NAMES).splitlines()) <= 40
    assert ("50 values differ", "") in [one.values for one in found.question if one.name == "dnn.layers"]


def test_a_comparison_keeps_its_contract(plain: dict[str, Any]) -> None:
    other = edited(plain, objective__value=plain["objective"]["value"] * 2, configuration__num_devices=16)
    found = planner.compare(plain, other)
    stated = found.to_dict()
    read = ComparisonDocument.model_validate(stated)
    assert read.model_dump(by_alias=True, mode="json") == stated
    assert read.better == 0
    assert read.saving == pytest.approx(0.5)
    assert [one.objective.value for one in read.plans] == list(found.objectives)
    assert [(one.name, one.values) for one in read.decisions] == [("num_devices", (32, 16))]
    assert [one.difference_s for one in read.terms] == [one.difference_s for one in found.terms]
    with pytest.raises(ValidationError, match="saving"):
        ComparisonDocument.model_validate({key: value for key, value in stated.items() if key != "saving"})


@pytest.mark.parametrize(
    "change",
    [
        {"problem__dnn": "alexnet"},
        {"problem": {}},
        {"prediction__iteration_time_s": 0},
        {"objective__value": 0},
        {"configuration": {}},
    ],
)
def test_odd_plans_that_keep_the_contract_are_compared_all_the_same(
    plain: dict[str, Any], change: dict[str, Any]
) -> None:
    other = edited(plain, **change)
    assert comparison_text(planner.compare(plain, other), NAMES)
    assert comparison_text(planner.compare(other, plain), NAMES)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "planner.plan/0"},
        {"schema": 1},
        {"family": []},
        {"prediction": {}},
        {"objective__value": -1},
        {"objective__value": float("inf")},
    ],
)
def test_a_document_that_is_no_plan_is_refused(plain: dict[str, Any], change: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="planner plan --out"):
        planner.compare(plain, edited(plain, **change))


def test_purchases_are_compared_by_what_was_minimised_there() -> None:
    market = {"providers": ["aws"], "devices": ["v100-sxm2-16g"], "as_of": "any"}
    question: dict[str, Any] = {"dnn": {"zoo": "resnet50", "global_batch": 1024, "epochs": 2}, "procure": market}
    cheap, quick = (
        planner.procure({**question, "procure": {**market, **limit}})
        for limit in ({"deadline": "1 d"}, {"objective": "time", "budget": "100 USD"})
    )
    found = planner.compare(cheap, {**cheap.to_dict(), "objective": {**cheap.to_dict()["objective"], "value": 1e6}})
    assert found.objective_names == ("cost_usd", "cost_usd")
    assert found.better == 0
    assert comparison_text(found, NAMES).count("USD") == 2
    energy = {**cheap.to_dict(), "objective": {**cheap.to_dict()["objective"], "name": "energy", "value": 3.6e6}}
    assert planner.compare(energy, energy).objective_names == ("energy_j", "energy_j")
    assert "energy 1 kWh" in comparison_text(planner.compare(energy, energy), NAMES)
    other = planner.compare(cheap, quick.to_dict())
    assert other.better is None
    assert {"fleet", "procure.budget"} <= {one.name for one in (*other.decisions, *other.question)}
    assert sum(one.seconds[0] for one in other.terms) == pytest.approx(cheap.choice.training_s["training"])
