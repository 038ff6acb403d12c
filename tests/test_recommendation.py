"""The recommended plan: of least risk within the known error of the best one, beside it or in its place."""

from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
from answers import plan_text
from pytest import approx

import planner
from planner.answer.plan import plan_answer
from planner.answer.schemas import PlanDocument
from planner.families import risks_of
from planner.plan import Plan
from planner.planning import answered, view_of
from planner.planning import planned as searched
from planner.problem import Problem
from planner.recommendation import LATE, LITTLE_FREE, with_recommended
from planner.search import Search
from planner.solution import Status
from planner.words import percent_words, size_words

MACHINES = {
    "a100": {"device": "a100-sxm4-80gb", "devices": 8, "inside": "nvlink-3", "network": "8 x 200 Gbit/s"},
    "h100": {"device": "h100-sxm", "devices": 8, "inside": "nvlink-4", "network": "8 x 400 Gbit/s"},
    "h200": {"device": "h200-sxm", "devices": 8, "inside": "nvlink-4", "network": "8 x 400 Gbit/s"},
}
PROGRAMS = {"h200": "torchtitan"}  # no step with virtual stages was measured with it, nor on such devices


@cache
def question(zoo: str, batch: int, kind: str, count: int) -> Problem:
    return planner.load(
        {
            "dnn": {"zoo": zoo, "global_batch": batch},
            "cluster": {"machines": [{"count": count, **MACHINES[kind]}]},
            "families": ["hybrid"],
            "objective": "iteration_time",
            "calibration": {"program": PROGRAMS.get(kind, "megatron-core")},
        }
    )


@cache
def planned(problem_of: tuple[Any, ...]) -> Plan:
    return planner.plan(question(*problem_of))


@cache
def safe_plan(problem_of: tuple[Any, ...]) -> Plan:
    """What is answered where safety is preferred, to what was searched for once."""
    return answered(question(*problem_of), planned(problem_of), Search(), prefers_safe=True)


FULL_AND_OFFLOADED = ("llama3-70b", 512, "a100", 4)  # the best plan has its optimiser on the host, and 0.7 GiB left
CHUNKED = ("llama3-70b", 64, "h200", 4)
SAFE = ("llama3-8b", 128, "a100", 4)  # the best plan has nothing that was not measured, and room
CASES = (FULL_AND_OFFLOADED, CHUNKED, ("llama3-8b", 128, "a100", 1))


def features(problem: Problem, configuration: Any) -> set[str]:
    risks = risks_of("hybrid")
    assert risks is not None
    return {one.words for one in risks.unmeasured(problem, configuration) if one.is_taken}


@pytest.mark.parametrize("asked", CASES)
def test_what_is_recommended_is_safer_and_within_the_known_error(asked: tuple[Any, ...]) -> None:
    problem, plan = question(*asked), planned(asked)
    found = plan.recommended
    assert plan.status is Status.OPTIMAL
    assert found is not None
    again = planner.predict(problem, found.configuration)
    assert found.objective == approx(again.iteration_time_s)
    assert found.relative_loss == approx(found.objective / plan.objective - 1)
    assert 0 <= found.relative_loss <= found.known_error
    assert again.memory_bytes["total"] <= (1 - LITTLE_FREE) * again.memory_bytes["limit"]
    assert not features(problem, found.configuration)
    is_full = plan.prediction.memory_bytes["total"] > (1 - LITTLE_FREE) * plan.prediction.memory_bytes["limit"]
    assert features(problem, plan.configuration) or is_full


def test_no_layout_without_the_risks_is_faster_than_the_recommended_one() -> None:
    plan = planned(FULL_AND_OFFLOADED)
    pinned = planner.load(
        {
            **planned(FULL_AND_OFFLOADED).problem,
            "fix": {"offload_optimizer": False},
            "constraints": {"memory_per_device": "72 GiB", "exclude": {"schedule": ["gpipe"], "zero_stage": [2]}},
        }
    )
    assert plan.recommended is not None
    assert plan.recommended.objective == approx(searched(pinned, Search()).objective, rel=1e-6)


def test_the_reasons_name_what_it_does_without_and_what_stays_free() -> None:
    plan = planned(FULL_AND_OFFLOADED)
    found, held = plan.recommended, plan.prediction.memory_bytes
    assert found is not None
    first, second = found.reasons
    assert first.startswith("it does without an optimiser on the host: no step with that was measured")
    assert second.endswith(f"GiB free on the fullest device, the best plan {size_words(held['limit'] - held['total'])}")


def test_virtual_stages_are_a_risk_where_they_were_not_measured_and_none_where_they_were() -> None:
    found, chosen = planned(CHUNKED).recommended, planned(CHUNKED).configuration
    assert chosen.to_document()["interleave"] > 1
    assert found is not None
    assert found.configuration.to_document()["interleave"] == 1
    assert "virtual stages" in found.reasons[0]
    for kind in ("a100", "h100"):
        assert "virtual stages" not in features(question(*CHUNKED[:2], kind, CHUNKED[3]), chosen)


def test_nothing_is_recommended_where_the_best_plan_is_the_safest_within_the_error() -> None:
    plan = planned(SAFE)
    assert not features(question(*SAFE), plan.configuration)
    assert plan.recommended is None
    assert plan.to_dict()["recommended"] is None
    assert "Recommended plan" not in plan_text(plan, question(*SAFE))


def test_what_the_user_pins_is_no_risk_to_leave_out() -> None:
    problem = planner.load({**planned(FULL_AND_OFFLOADED).problem, "fix": {"offload_optimizer": True}})
    found = planner.plan(problem).recommended
    assert found is None or found.configuration.to_document()["offload_optimizer"]


def test_the_answer_that_prefers_safety_is_the_recommended_plan_with_the_gap_to_the_best_one() -> None:
    best, safe = planned(FULL_AND_OFFLOADED), safe_plan(FULL_AND_OFFLOADED)
    assert best.recommended is not None
    assert safe.configuration == best.recommended.configuration
    assert safe.is_recommended
    assert not best.is_recommended
    assert safe.status is Status.FEASIBLE
    assert (safe.objective, safe.bound) == (best.recommended.objective, best.bound)
    assert safe.gap == approx(1 - best.objective / safe.objective)
    assert "the best plan found takes" in safe.explanation[0]
    assert not [line for line in safe.warnings if "optimiser on the host" in line]
    assert [line for line in best.warnings if "optimiser on the host" in line]
    assert planner.check(question(*FULL_AND_OFFLOADED), safe).is_ok


def test_where_the_best_plan_is_the_safest_it_stays_the_answer() -> None:
    safe = safe_plan(SAFE)
    assert safe.status is Status.OPTIMAL
    assert safe.configuration == planned(SAFE).configuration


def test_the_block_stands_right_under_the_plan_and_in_the_document() -> None:
    problem, plan = question(*FULL_AND_OFFLOADED), planned(FULL_AND_OFFLOADED)
    names = [section.name for section in plan_answer(plan, view_of(problem, plan)).sections]
    assert names[names.index("plan") + 1] == "recommended"
    lines = plan_text(plan, problem).splitlines()
    start = lines.index("Recommended plan")
    assert plan.recommended is not None
    assert lines[start + 1].strip() == f"hybrid on {plan.recommended.configuration.headline}"
    assert f"({percent_words(plan.recommended.relative_loss, is_signed=True)}, where" in lines[start + 2]
    reasons = [f"safer: {reason}" for reason in plan.recommended.reasons]
    assert [line.strip() for line in lines[start + 3 : start + 4 + len(reasons)]] == [
        *reasons,
        "ask for it with --prefer-safe",
    ]
    document = plan.to_dict()
    assert PlanDocument.model_validate(document).recommended is not None
    assert document["recommended"]["configuration"] == plan.recommended.configuration.to_document()
    assert document["recommended"]["reasons"] == list(plan.recommended.reasons)
    text = plan_text(safe_plan(FULL_AND_OFFLOADED), problem)
    assert "Recommended as safer, within the known error of the best one" in text


def test_families_whose_features_are_not_known_recommend_nothing() -> None:
    problem = planner.load({"dnn": {"zoo": "vgg16"}, "cluster": {"preset": "osf-testbed"}, "families": ["all_reduce"]})
    assert planner.plan(problem).recommended is None
    assert planner.plan(problem, prefers_safe=True).status is Status.OPTIMAL


def test_what_no_program_launches_gives_way_to_what_one_does_on_all_the_machines() -> None:
    machines = [{"count": 1, "name": kind, **MACHINES[kind], "devices": 4} for kind in ("a100", "h100")]
    problem = planner.load(
        {
            "dnn": {"zoo": "llama3-8b", "global_batch": 32},
            "cluster": {"machines": machines},
            "families": ["hybrid"],
            "objective": "iteration_time",
            "fix": {"context_parallel_size": 1, "recompute": "none"},
        }
    )
    plan = planner.plan(problem)
    assert plan.configuration.to_document()["replicas"]
    assert "no target of `planner export` can launch this plan" in plan.cautions[0]
    assert plan.recommended is not None
    assert not plan.recommended.configuration.to_document().get("replicas")
    assert plan.recommended.reasons[0].startswith("a target of `planner export` can launch it")
    assert plan.instead == ""
    safe = answered(problem, plan, Search(), prefers_safe=True)
    assert not [line for line in safe.cautions if "can launch" in line]
    assert planner.export(safe, "megatron").files


def test_a_recommendation_that_was_tampered_with_is_found_out() -> None:
    problem, document = question(*FULL_AND_OFFLOADED), planned(FULL_AND_OFFLOADED).to_dict()
    assert planner.check(problem, document).is_ok
    cheaper = {**document["recommended"], "objective": 0.9 * document["recommended"]["objective"]}
    report = planner.check(problem, {**document, "recommended": cheaper})
    assert [one.name for one in report.findings if not one.is_ok] == ["recommended"]


@cache
def slow_plan() -> Plan:
    """The best plan on half of the devices whose passes are all computed again."""
    pins = {"offload_optimizer": True, "recompute": "full", "data_parallel_size": 1, "num_devices": 16}
    return searched(planner.load({**planned(FULL_AND_OFFLOADED).problem, "fix": pins}), Search())


def test_what_is_found_on_the_way_and_is_faster_takes_the_place_of_the_best_plan_and_of_what_was_said_of_it() -> None:
    problem, slow = question(*FULL_AND_OFFLOADED), slow_plan()
    beyond = "layouts that were not searched"
    said = ["time against memory with these degrees: 2 s in 1 GiB", "16 of 32 devices stay idle: of one kind"]
    said += [f"{beyond}: none takes less than 1 ms (at most 99 % faster)"]
    kept = "layouts in the grid: 7"
    slow = replace(slow, explanation=(*slow.explanation, *said, kept), beyond={beyond: 1e-3})
    found = with_recommended(problem, slow, Search(time_limit_s=30))
    assert found.bound <= found.objective < slow.objective
    assert found.alternatives[0].configuration == slow.configuration
    assert found.alternatives[0].relative_loss == approx(slow.objective / found.objective - 1)
    assert planner.predict(problem, found.configuration).iteration_time_s == approx(found.objective)
    assert found.recommended is None or found.recommended.objective >= found.objective
    assert kept in found.explanation
    assert not {*said} & {*found.explanation}


def test_a_faster_plan_that_nothing_launches_has_its_own_reason_and_the_former_beside_it() -> None:
    problem = question(*FULL_AND_OFFLOADED)
    slow = slow_plan()

    def refuses(job: Any) -> str | None:
        return None if job.plan.configuration == slow.configuration else "a reason of its own"

    with patch("planner.recommendation.refusal_of", refuses):
        found = answered(problem, slow, Search(time_limit_s=30))
    assert found.objective < slow.objective
    assert found.cautions[0].endswith("can launch this plan: a reason of its own")
    assert slow.configuration.headline in found.instead


def test_it_is_said_where_no_time_was_left_for_plans_of_less_risk() -> None:
    problem = question(*FULL_AND_OFFLOADED)
    bare = replace(planned(FULL_AND_OFFLOADED), recommended=None, alternatives=())
    assert LATE not in bare.cautions
    assert LATE in with_recommended(problem, bare, Search(time_limit_s=0.0)).cautions
