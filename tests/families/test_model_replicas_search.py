"""The family model_replicas against every configuration tried, its limits, and what it says."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replicas import asked_for, every_configuration, question, questions

import planner
from planner.errors import InfeasibleError, SpecError
from planner.families.model_replicas import configuration as model_replicas_configuration
from planner.families.model_replicas.configuration import group_of
from planner.families.model_replicas.cost import model_of, predict
from planner.families.model_replicas.search import plan
from planner.families.model_replicas.settings import least_objective
from planner.models.replica_segments import Limits, broken_constraints, chain_of
from planner.problem import Problem
from planner.search import Search
from planner.solution import Status
from tests.referee import second_physics

# -- a whole plan ----------------------------------------------------------------------------------------------------


@given(questions())
@settings(deadline=None, max_examples=30)
def test_a_plan_agrees_with_every_configuration_tried(problem: Problem) -> None:
    values = [predict(problem, choice).value_of(problem.goal) for choice in every_configuration(problem)]
    if not values:
        with pytest.raises(InfeasibleError, match="No plan fits"):
            plan(problem, Search())
        return
    found = plan(problem, Search())
    assert found.status is Status.OPTIMAL
    assert found.objective == pytest.approx(min(values))
    assert found.bound <= found.objective
    chosen = found.configuration.configuration  # type: ignore[attr-defined]
    limits = Limits(num_machines=group_of(problem).count, num_cores=problem.calibration.num_cores)
    assert broken_constraints(chosen, limits, model_of(problem).stages) == ()
    for alternative in found.alternatives:
        assert alternative.configuration is not None
        assert alternative.objective == pytest.approx(
            predict(problem, alternative.configuration).value_of(problem.goal)  # type: ignore[arg-type]
        )
        assert alternative.relative_loss >= -1e-9


@given(questions(), st.booleans())
@settings(deadline=None, max_examples=40)
def test_what_no_plan_beats_lies_below_every_configuration_tried(problem: Problem, is_counted: bool) -> None:
    if is_counted:  # a cache effect: small segments are faster
        table = ((1e1, 1e-7), (1e4, 3e-7))
        problem = replace(problem, calibration=replace(problem.calibration, multiply_add_s=table))
    least = least_objective(problem)
    values = [predict(problem, choice).value_of(problem.goal) for choice in every_configuration(problem)]
    assert all(least <= value for value in values)
    if values:
        assert least > 0


def test_a_plan_is_read_back_by_predict_and_costs_the_same() -> None:
    found = asked_for(machine={"count": 7}, dnn={"zoo": "adam-imagenet22k"})
    block = found.configuration.to_document()
    again = planner.predict(
        planner.load(
            question(machine={"count": 7}, dnn={"zoo": "adam-imagenet22k"}, configuration={"model_replicas": block})
        )
    )
    assert again.epoch_time_s == pytest.approx(found.objective)


def test_the_same_question_gets_the_same_plan() -> None:
    documents = [asked_for(machine={"count": 9}).configuration.to_document() for _ in range(2)]
    assert documents[0] == documents[1]


def test_more_machines_or_a_wider_network_never_hurt() -> None:
    times = [asked_for(machine={"count": count}).objective for count in (2, 4, 8, 16)]
    assert times == sorted(times, reverse=True)
    slow, fast = (asked_for(machine={"network": rate}).objective for rate in ("1 Gbit/s", "10 Gbit/s"))
    assert fast <= slow


def test_a_machine_that_would_not_help_as_a_server_stays_idle_unless_it_is_asked_for() -> None:
    found = asked_for(
        machine={"count": 20},
        fix={"num_workers_per_replica": 2, "num_replicas": 2},
        constraints={"max_staleness": "unbounded"},
    )
    assert found.configuration.configuration.num_servers == 4
    assert any("12 machines stay idle" in line for line in found.explanation)
    forced = asked_for(
        machine={"count": 20}, fix={"num_workers_per_replica": 2, "num_replicas": 2}, constraints={"machines": 20}
    )
    assert forced.configuration.configuration.num_servers == 16
    assert forced.objective == pytest.approx(found.objective)


@pytest.mark.parametrize("pinned", [{"num_machines": 5}, {"num_devices": 2}, {"num_machines": 7, "num_devices": 3}])
def test_pins_of_machines_and_devices_mean_what_the_same_constraints_do(pinned: dict[str, int]) -> None:
    constraints = {name.removeprefix("num_"): number for name, number in pinned.items()}
    chosen, same = asked_for(machine={"count": 8}, fix=pinned), asked_for(machine={"count": 8}, constraints=constraints)
    assert chosen.configuration == same.configuration
    one = chosen.configuration.configuration
    devices = one.num_replicas * one.num_workers
    used = {"num_machines": one.num_servers + devices, "num_devices": devices}
    assert {name: used[name] for name in pinned} == pinned
    problem = planner.load(question(machine={"count": 8}, fix=pinned))
    assert second_physics.check(problem, planner.plan(problem)).is_ok


@pytest.mark.parametrize(
    ("dnn", "share", "words"),
    [
        ({"max_global_batch": 100}, 60, r"2 replicas x 60 samples make a batch of 120; dnn asks for at most 100"),
        ({"batch_per_device": 60, "max_global_batch": 100}, None, r"a batch of 120; dnn asks for at most 100"),
        ({"global_batch": 100}, 49, r"2 replicas x 49 samples make a batch of 98; dnn asks for 100"),
    ],
)
def test_a_given_configuration_trains_the_batch_that_was_asked_for(
    dnn: dict[str, Any], share: int | None, words: str
) -> None:
    block = {"num_parameter_servers": 1, "num_replicas": 2, "num_workers_per_replica": 1, "samples_per_read": share}
    asked = {**question(configuration={"model_replicas": block}), "dnn": {"zoo": "adam-mnist", **dnn}}
    with pytest.raises(SpecError, match=words):
        planner.predict(planner.load(asked))
    block["samples_per_read"] = 50
    assert planner.predict(planner.load(asked)).details["global_batch_size"] == 100


# -- staleness, limits, reasons --------------------------------------------------------------------------------------


def test_replicas_beside_one_another_need_leave_to_be_stale() -> None:
    both: dict[str, Any] = {"families": ["all_reduce", "model_replicas"], "fix": {"num_replicas": 2}}
    with pytest.raises(InfeasibleError, match=r"fix.num_replicas is 2; .*max_staleness is 0. Set it to unbounded"):
        asked_for(**both)
    found = asked_for(**both, constraints={"max_staleness": "unbounded"})
    assert found.configuration.configuration.num_replicas == 2
    assert found.prediction.details["staleness"] == {"mean": 1.0, "most": None}
    assert any("unbounded staleness" in warning for warning in found.warnings)
    alone = asked_for(families=["all_reduce", "model_replicas"])
    assert alone.configuration.configuration.num_replicas == 1
    assert alone.prediction.details["staleness"] == {"mean": 0.0, "most": 0.0}
    assert any("synchronous: constraints.max_staleness is 0" in line for line in alone.explanation)
    assert not any("unbounded staleness" in warning for warning in alone.warnings)


def test_under_a_fixed_batch_asynchrony_gains_nothing_and_is_not_chosen() -> None:
    free = asked_for(machine={"count": 9})
    stale = [asked_for(machine={"count": 9}, fix={"num_replicas": number}) for number in (2, 4)]
    assert free.configuration.configuration.num_replicas == 1
    assert all(free.objective <= one.objective * (1 + 1e-9) for one in stale)


def test_replicas_that_read_after_samples_of_their_own_are_chosen() -> None:
    dnn = {"zoo": "adam-mnist", "batch_per_device": 6, "max_global_batch": 1000}
    asked = {**question(machine={"count": 9}), "dnn": dnn}
    found = plan(planner.load(asked), Search())
    assert found.configuration.configuration.num_replicas > 1  # type: ignore[attr-defined]
    assert found.configuration.samples_per_read == 6  # type: ignore[attr-defined]
    assert any("unbounded staleness" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machine": {"count": 2}, "fix": {"num_parameter_servers": 2}}, "at least 3 machines with fix.num_parameter_servers 2; there are 2"),
        ({"constraints": {"machines": {"at_most": 1}}}, "at least 2 machines; constraints.machines allows 1. Raise"),
        ({"fix": {"num_replicas": 3, "num_workers_per_replica": 2}}, "3 replicas x 2 workers need at least 7 machines"),
        ({"dnn": {"global_batch": 1}, "fix": {"num_replicas": 2}}, "a batch of 1 leaves some of 2 replicas without a sample"),
        ({"fix": {"num_machines": 9}}, "on up to 4 machines meet fix.num_machines 9 together"),
        ({"fix": {"num_machines": 3, "num_workers_per_replica": 3}}, "need at least 4 machines with fix.num_workers_per_replica 3; fix.num_machines allows 3"),
        ({"fix": {"num_devices": 4}}, "fix.num_devices 4 together"),
        ({"fix": {"num_machines": 3}, "constraints": {"machines": {"at_most": 2}}}, "constraints.machines at most 2 and fix.num_machines 3 together"),
        ({"constraints": {"machines": 4, "devices": 4}}, "machines exactly 4 and constraints.devices exactly 4 together"),
        ({"machine": {"devices": 2}}, "one device a machine; these have 2"),
        ({"dnn": {"zoo": "resnet18"}}, "takes a chain"),
        ({"machine": {"count": 1}}, "no network|at least 2 machines"),
    ],
)  # fmt: skip
def test_a_question_without_an_answer_is_told_why(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InfeasibleError, match=words):
        asked_for(**changes)


def test_machines_of_two_kinds_need_a_pin_and_then_get_a_plan() -> None:
    machine = {"count": 3, "network": "10 Gbit/s"}
    mixed = {
        "machines": [
            {**machine, "name": "a", "device": "xeon-e5-2660"},
            {**machine, "name": "b", "device": "v100-sxm2-16g"},
        ]
    }
    with pytest.raises(InfeasibleError, match=r"one group of equal machines. Pin fix.device"):
        asked_for(cluster=mixed)
    assert asked_for(cluster=mixed, fix={"device": "v100-sxm2-16g"}).configuration.configuration.num_workers <= 2


def test_a_chain_that_does_not_begin_with_its_input_is_refused() -> None:
    layer = {"name": "a", "kind": "fully_connected", "multiply_adds": 1e6, "parameters": "4 kB", "output": "40 B"}
    with pytest.raises(InfeasibleError, match="'a' comes first and is of kind 'fully_connected'"):
        plan(
            planner.load({**question(), "dnn": {"layers": [layer], "global_batch": 8, "dataset_samples": 10}}), Search()
        )


def test_measured_seconds_of_the_layers_are_those_of_one_worker() -> None:
    layers = [
        {"name": "in", "kind": "input", "output": "400 B"},
        {
            "name": "a",
            "kind": "fully_connected",
            "inputs": ["in"],
            "forward": "2 ms",
            "backward": "5 ms",
            "parameters": "4 kB",
            "output": "40 B",
        },
        {
            "name": "b",
            "kind": "fully_connected",
            "inputs": ["a"],
            "forward": "1 ms",
            "backward": "3 ms",
            "parameters": "4 kB",
            "output": "8 B",
        },
    ]
    dnn = {"layers": layers, "profile_batch": 1, "global_batch": 8, "dataset_samples": 8}
    block = {
        "num_parameter_servers": 1,
        "num_replicas": 1,
        "num_workers_per_replica": 1,
        "layers": [{"threads": 2}] * 2,
    }
    found = planner.predict(planner.load({**question(), "dnn": dnn, "configuration": {"model_replicas": block}}))
    parts = found.breakdown_s
    assert parts["forward"] == pytest.approx(8 * 3e-3)
    assert parts["backward"] + parts["update"] == pytest.approx(8 * 8e-3)


def test_the_chain_is_read_once_a_prediction_and_not_once_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(model_replicas_configuration, "chain_of", lambda dnn: asked.append(1) or chain_of(dnn))  # type: ignore[func-returns-value]
    found = asked_for(machine={"count": 16})
    num_predictions = found.provenance.num_solved + len(found.alternatives)
    assert num_predictions < found.provenance.num_candidates
    assert len(asked) <= 1 + num_predictions
