"""Exclusions, ties, idle devices, and configurations that are given without a block."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hybrid_questions import TINY, layout, question, whole_grid

import planner
from planner.errors import InfeasibleError, SpecError
from planner.families.hybrid.configuration import PINS, HybridConfiguration
from planner.families.hybrid.cost import costs_of
from planner.families.hybrid.grid_search import searched
from planner.families.hybrid.search import plan
from planner.models.layouts import Schedule
from planner.search import Search
from tests.referee import second_physics

# -- exclusions ----------------------------------------------------------------------------------------------------------

EXCLUSIONS: list[dict[str, list[Any]]] = [
    {"schedule": ["gpipe"]},
    {"schedule": ["1f1b"]},
    {"schedule": ["1f1b", "interleaved"]},
    {"schedule": ["interleaved"]},
    {"tensor_parallel_size": [1, 2]},
    {"recompute": ["none"], "zero_stage": [0, 1]},
    {"rank_order": ["tensor-context-data-pipeline"]},
    {"sequence_parallel": [True], "overlap_data": [False]},
    {"pipeline_parallel_size": [1], "chunks_per_device": [1]},
    {"microbatch_size": [1, 2, 4], "offload_optimizer": [False]},
]


@pytest.mark.usefixtures("wordless")
@pytest.mark.parametrize("excluded", EXCLUSIONS)
def test_excluded_values_are_not_chosen_and_what_is_left_is_the_optimum(excluded: dict[str, list[Any]]) -> None:
    """The referee: every layout of the grid without exclusions, those with excluded values struck out."""
    problem = question(machines=1, batch=8, constraints={"exclude": excluded})
    found = planner.plan(problem)
    report = second_physics.check(problem, found)
    assert report.is_ok, report.findings
    free = replace(problem, excluded={})
    cost = costs_of(problem)[0]
    quick, slow = searched(cost.even, Search()), searched(cost.even, Search(), uses_bounds=False)
    assert quick.solution == slow.solution
    assert quick.solution.objective >= searched(costs_of(free)[0].even, Search()).solution.objective
    names = {key: name for key, name in PINS.items() if key in excluded}
    document = found.configuration.to_document()
    for key, name in names.items():
        assert document[name] not in excluded[key]
    if not set(excluded) & {"rank_order", "zero_stage", "overlap_data", "schedule"}:  # a decision without meaning
        nodes = whole_grid(costs_of(free)[0])
        kept = np.ones(len(nodes["tensor"]), dtype=bool)
        for key, name in names.items():
            codes = [
                ("none", "selective", "full").index(one) if key == "recompute" else int(one) for one in excluded[key]
            ]
            kept &= ~np.isin(nodes[name], codes)
        seconds = cost.seconds(cost.layouts({name: column[kept] for name, column in nodes.items()}))
        assert quick.solution.objective == pytest.approx(float(seconds.min()), rel=1e-12)


def test_a_value_that_is_both_pinned_and_excluded_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"constraints\.exclude\.zero_stage: fix\.zero_stage is 1, which is excluded here"
    ):
        question(constraints={"exclude": {"zero_stage": [1]}}, fix={"zero_stage": 1})
    with pytest.raises(SpecError, match=r"fix\.recompute_layers goes with recompute: full, which is excluded here"):
        question(constraints={"exclude": {"recompute": ["full"]}}, fix={"recompute_layers": 1})


def test_exclusions_that_leave_nothing_are_named_with_what_to_allow() -> None:
    problem = question(constraints={"exclude": {"recompute": ["none", "selective", "full"]}}, families=["hybrid"])
    with pytest.raises(InfeasibleError) as caught:
        planner.plan(problem)
    assert "constraints.exclude.recompute: none, selective, full -> also allow none or also allow" in str(caught.value)
    assert "leaves no value" in str(caught.value)


def test_families_that_take_no_exclusions_say_so() -> None:
    problem = question(constraints={"exclude": {"schedule": ["gpipe"]}})
    lines = planner.plan(problem).explanation
    for family in ("all_reduce", "pipeline", "parameter_server"):
        assert any(line.startswith(family) and "takes no exclusions" in line for line in lines)


# -- ties and idle devices -----------------------------------------------------------------------------------------------


def test_of_schedules_that_cost_the_same_the_launchable_one_is_chosen() -> None:
    """A single micro-batch goes through the stages alike under GPipe and 1F1B."""
    problem = question(machines=1, batch=4, fix={"num_stages": 2, "num_microbatches": 1, "chunks_per_device": 1})
    of_each = [
        searched(costs_of(replace(problem, fixed={**problem.fixed, "schedule": name}))[0].even, Search()).solution
        for name in ("gpipe", "1f1b")
    ]
    assert of_each[0].objective == of_each[1].objective
    best = searched(costs_of(problem)[0].even, Search()).solution.value
    assert best is not None
    assert best["schedule"] == Schedule.ONE_F_ONE_B


def test_idle_devices_are_explained_with_batches_that_use_all() -> None:
    """97 is a prime: its samples go to one replica, or to 97."""
    problem = question(machines=3, devices=8, batch=97)
    found = plan(problem, Search())
    (line,) = [line for line in found.explanation if "stay idle" in line]
    used = found.configuration.num_devices  # type: ignore[attr-defined]  # a layout
    assert line.startswith(f"{24 - used} of 24 devices stay idle: the best layout of all takes")
    batches = [int(part.split(" ")[3]) for part in line.split("; ") if "would use all" in part]
    assert batches[0] < 97 < batches[1]
    for batch in batches:
        assert layout(question(machines=3, devices=8, batch=batch)).num_devices == 24


def test_a_batch_that_no_layout_of_all_devices_divides_is_said_to_be() -> None:
    problem = question({**TINY, "layers": 2}, machines=3, devices=1, batch=8, fix={"context_parallel_size": 1})
    (line,) = [line for line in plan(problem, Search()).explanation if "stay idle" in line]
    assert line.startswith("1 of 3 devices stay idle: no layout of all divides heads and the batch of 8")
    assert "a batch of 9 would use all" in line
    more = question({**TINY, "layers": 2}, machines=3, devices=1, batch=9, fix={"context_parallel_size": 1})
    assert layout(more).num_devices == 3


def test_idle_devices_that_would_slow_things_down_are_explained() -> None:
    tiny = {**TINY, "layers": 2, "hidden": 256, "sequence_length": 128, "vocabulary": 1000}
    found = plan(question(tiny, machines=4, devices=8, batch=32, network="1 Gbit/s"), Search())
    (line,) = [line for line in found.explanation if "stay idle" in line]
    assert "the best layout of all takes" in line
    pinned = question(tiny, machines=4, devices=8, batch=32, network="1 Gbit/s", fix={"num_devices": 32})
    assert plan(pinned, Search()).objective > found.objective


def test_no_word_of_idle_devices_where_all_work() -> None:
    assert not any("stay idle" in line for line in plan(question(machines=1, devices=1), Search()).explanation)


# -- configurations of one's own -----------------------------------------------------------------------------------------


def test_a_configuration_is_predicted_without_a_block_and_by_the_rules() -> None:
    problem = question()
    found = planner.plan(problem)
    assert isinstance(found.configuration, HybridConfiguration)
    again = planner.predict(problem, found.configuration)
    assert again.iteration_time_s == found.prediction.iteration_time_s
    with pytest.raises(SpecError, match="8 heads do not divide by a tensor degree of 3"):
        planner.predict(problem, replace(found.configuration, tensor=3))
    with pytest.raises(SpecError, match=r"configuration\.hybrid\.tensor"):
        planner.predict(problem, replace(found.configuration, tensor=0))
    with pytest.raises(SpecError, match="object is no configuration of a family"):
        planner.predict(problem, object())  # type: ignore[arg-type]  # no configuration


@pytest.mark.parametrize("family", ["all_reduce", "parameter_server"])
def test_configurations_of_all_families_are_predicted_without_a_block(family: str) -> None:
    spec = {"dnn": {"zoo": "alexnet", "global_batch": 64}, "cluster": {"preset": "osf-testbed"}, "families": [family]}
    problem = planner.load({**spec, "constraints": {"machines": {"at_most": 2}}})
    found = planner.plan(problem)
    again = planner.predict(problem, found.configuration)
    assert again.iteration_time_s == pytest.approx(found.prediction.iteration_time_s)


def test_devices_without_a_named_link_have_their_own() -> None:
    def inside(device: str | dict[str, str]) -> float:
        machine = {"count": 2, "device": device, "devices": 8, "network": "400 Gbit/s"}
        asked = {"dnn": {"transformer": TINY, "global_batch": 8}, "cluster": {"machines": [machine]}}
        link = planner.load(asked).cluster.machine_groups[0].inside
        assert link is not None
        return link.bandwidth_bytes_per_s

    assert inside("h100-sxm") == 450e9
    assert inside("rtx-2080-ti") == 15.75e9
    assert inside("mi300x") == 448e9
    assert inside({"name": "mine", "bf16": "100 TFLOP/s", "memory": "80 GiB"}) == 15.75e9
