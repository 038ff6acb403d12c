"""Assumptions that change an answer stand under its headline, with their effect and the flag that sets them."""

from dataclasses import replace
from typing import Any

import pytest
from answers import plan_text

import planner
from planner.plan import Plan
from planner.planning import MOST_ASSUMPTIONS, weigh_assumptions
from planner.problem import Assumption, Problem
from planner.search import Search

SPEC: dict[str, Any] = {
    "dnn": {"zoo": "vgg16", "batch_per_device": 32},
    "cluster": {"machines": [{"count": 4, "devices": 8, "device": "rtx-2080-ti", "network": "25 Gbit/s"}]},
    "families": ["all_reduce"],
}


@pytest.fixture(scope="module")
def problem() -> Problem:
    return planner.load(SPEC)


@pytest.fixture(scope="module")
def plan(problem: Problem) -> Plan:
    return planner.plan(problem)


def test_no_assumption_that_changes_the_answer_hides_behind_the_breakdown(problem: Problem, plan: Plan) -> None:
    lines = plan_text(plan, problem).splitlines()
    start, end = lines.index("Assumptions"), lines.index("Where an iteration's time goes")
    told = lines[start + 1 : end - 1]
    assert start < end
    assert 1 < len(told) <= MOST_ASSUMPTIONS
    assert all(line.startswith("  ") and line.endswith(")") for line in told)
    assert any(
        "transport: tcp, which reaches 89 % of the network's rate" in line and "; with rdma: " in line for line in told
    )
    assert any("(--precision)" in line for line in told)
    (minor,) = [line for line in lines if line.startswith("Also assumed: ")]
    assert not any(line.strip() in minor for line in told)


def test_the_network_cards_are_no_second_assumption(plan: Plan) -> None:
    assert plan.key_assumptions[0].startswith("a machine of rtx-2080-ti has one network card of 25 Gbit/s, as in ")
    assert plan.key_assumptions[0].endswith("; with 2: -42.3 %   (--nics)")


def test_the_effect_is_no_other_than_that_of_the_question_with_the_other_value(plan: Plan) -> None:
    other = planner.load({**SPEC, "calibration": {"transport": "rdma"}})
    change = planner.predict(other, plan.configuration).value_of(plan.goal) / plan.objective - 1
    (line,) = [one for one in plan.key_assumptions if "transport: " in one]
    assert f"with rdma: {100 * change:+.3g} %" in line


def test_no_larger_effect_stands_below_a_smaller_one(plan: Plan) -> None:
    known = [line for line in plan.key_assumptions[1:] if line.rpartition(": ")[2][0] in "+-"]
    sizes = [abs(float(line.rpartition(": ")[2].partition(" %")[0])) for line in known]
    assert len(sizes) > 1
    assert sizes == sorted(sizes, reverse=True)


def test_no_assumption_is_missing_from_the_document(plan: Plan) -> None:
    document = plan.to_dict()
    assert tuple(document["assumptions"]) == (*plan.key_assumptions, *plan.assumptions)


def test_what_the_user_says_is_no_assumption() -> None:
    given = {**SPEC, "dnn": {**SPEC["dnn"], "dtype": "fp32"}, "calibration": {"utilisation": 0.5}}
    flags = {one.flag for one in planner.load(given).key_assumptions}
    assert not flags & {"--precision", "calibration.utilisation", "--batch"}


def test_a_transformer_assumes_no_precision_sequence_or_program_in_silence() -> None:
    cluster = {"machines": [{"devices": 8, "device": "a100-sxm4-80gb"}]}
    found = planner.load({"dnn": {"zoo": "megatron-1.7b", "global_batch": 64}, "cluster": cluster})
    others = {one.flag: one.other for one in found.key_assumptions}
    assert others["--precision"] == "fp32"
    assert others["--sequence-length"] == 4096
    assert others["calibration.program"] == "torchtitan"
    given = {"zoo": "megatron-1.7b", "global_batch": 64, "dtype": "bf16", "sequence_length": 512, "optimizer": "adam"}
    said = planner.load({"dnn": given, "cluster": cluster, "calibration": {"program": "megatron-core"}})
    assert not {one.flag for one in said.key_assumptions} & others.keys() - {"--nics", "--inside", "--network"}


def test_what_no_longer_fits_or_is_not_possible_has_no_figure(problem: Problem, plan: Plan) -> None:
    tight = planner.load({**SPEC, "constraints": {"memory_per_device": "3.5 GiB"}})
    odd = (
        Assumption(text="batch", field=("dnn", "dtype"), flag="--a", other="fp7"),
        Assumption(text="place", field=("cluster", "machines", 7, "devices"), flag="--b", other=2),
        Assumption(text="optimizer", field=("dnn", "optimizer"), flag="--c", other="adam"),
    )
    asked = replace(tight, key_assumptions=odd)
    found = weigh_assumptions(asked, plan.family, plan.configuration, plan.objective, Search(time_limit_s=60))
    assert not found.cautions
    assert found.key == (
        "optimizer; with adam: does not fit in memory   (--c)",
        "batch; with fp7: another configuration is needed   (--a)",
        "place   (--b)",
    )


def test_after_an_interruption_nothing_more_is_computed(problem: Problem, plan: Plan) -> None:
    search = Search(time_limit_s=60)
    search.interrupt()
    found = weigh_assumptions(problem, plan.family, plan.configuration, plan.objective, search)
    assert found.key
    assert not any("with" in line for line in found.key)
    number = sum(one.other is not None for one in problem.key_assumptions)
    assert found.cautions == (
        f"what {number} of the assumptions would change was not computed: the search was stopped",
    )


def test_no_assumption_is_told_twice(problem: Problem) -> None:
    twice = replace(problem, assumptions=(*problem.assumptions, *(one.text for one in problem.key_assumptions)))
    told = planner.plan(twice)
    assert not set(told.assumptions) & {one.text for one in problem.key_assumptions}


def test_the_headline_says_whether_the_number_of_devices_was_searched() -> None:
    wide = planner.load({**SPEC, "calibration": {"bandwidth_efficiency": 1}})
    headline = plan_text(planner.plan(wide), wide).splitlines()[1]
    assert "on 24 of 32 devices (the number was searched, on the global batch" in headline
    slow = planner.load({**SPEC, "calibration": {"utilisation": 0.3}})
    assert "on all 32 devices (the number was searched)." in plan_text(planner.plan(slow), slow).splitlines()[1]
    pinned = planner.load({**SPEC, "fix": {"num_devices": 8}})
    assert plan_text(planner.plan(pinned), pinned).splitlines()[1].endswith("on 8 of 32 devices.")
    iteration = planner.load({**SPEC, "objective": "iteration_time"})
    assert (
        plan_text(planner.plan(iteration), iteration)
        .splitlines()[1]
        .endswith("on all 32 devices (a batch per device, per iteration: their number was not searched).")
    )


@pytest.mark.parametrize("family", ["parameter_server", "model_replicas"])
@pytest.mark.parametrize(
    ("objective", "words"),
    [
        (
            "epoch_time",
            ", the number of machines was searched, on the global batch of 24 that all 3 devices would have.",
        ),
        (
            "iteration_time",
            ", every machine trains or serves (a batch per device, per iteration: their number was not searched).",
        ),
    ],
)
def test_families_with_servers_do_not_hide_whether_the_number_of_machines_was_searched(
    family: str, objective: str, words: str
) -> None:
    problem = planner.load(
        {
            "dnn": {"zoo": "alexnet", "batch_per_device": 8, "dataset_samples": 2400},
            "cluster": {"machines": [{"count": 3, "device": "t4", "network": "10 Gbit/s"}]},
            "families": [family],
            "objective": objective,
        }
    )
    assert plan_text(planner.plan(problem), problem).splitlines()[1].endswith(words)


def test_no_line_of_an_answer_stands_in_two_sections() -> None:
    nodes = [{"name": name, "count": 2, "device": "h100-sxm", "devices": 8} for name in "ab"]
    switches = [{"name": name, "type": "switch"} for name in "st"]
    rates = {"s": "400 Gbit/s", "t": "200 Gbit/s"}  # slower cards beside faster ones stay idle
    links = [{"ends": [name, end], "bandwidth": rates[end], "latency": "5 us"} for name in "ab" for end in "st"]
    problem = planner.load(
        {
            "dnn": {"zoo": "llama-2-7b", "global_batch": 64},
            "cluster": {"nodes": [*nodes, *switches], "links": links},
            "families": ["hybrid"],
        }
    )
    text = plan_text(planner.plan(problem), problem)
    assert text.count("carry nothing") == text.count("outside of what was measured") == 1
