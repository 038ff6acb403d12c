"""The family model_replicas against every configuration tried, its limits, and what it says."""

from dataclasses import replace
from itertools import product
from math import lcm
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replicas import cost_of, every_chain, every_choice, every_configuration, models, question, questions

import planner
from planner.cost import Floats
from planner.errors import InfeasibleError, SpecError
from planner.families.model_replicas import cost as model_replicas_cost
from planner.families.model_replicas import layers as model_replicas_layers
from planner.families.model_replicas.bound import least_objective
from planner.families.model_replicas.cost import group_of, model_of
from planner.families.model_replicas.family import predict
from planner.families.model_replicas.layers import Layers
from planner.families.model_replicas.search import plan
from planner.families.model_replicas.settings import bound_of
from planner.families.model_replicas.space import search_space, search_space_csv, sum_rule
from planner.models import replica_pairs
from planner.models.model_replicas import ByThreads, Constants, ReplicaModel
from planner.models.replica_configuration import LayerChoice, Limits, ReplicaConfiguration, broken_constraints
from planner.models.replica_pairs import ReplicaPairs
from planner.models.replica_states import Ints, worthwhile_threads
from planner.models.segment_work import SegmentWork
from planner.models.segments import Boundary, Stage, chain_of, remote_counts
from planner.models.stripe_counts import stripe_boundary
from planner.problem import Problem
from planner.search import Search
from planner.solution import Status
from planner.zoo.builder import Builder

# -- layers and maps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_workers", "most_layers", "threads"), [(2, 3, (1,)), (2, 2, (1, 2)), (3, 2, (1,)), (4, 1, (2,))]
)
def test_layers_and_maps_agree_with_every_choice_tried(
    num_workers: int, most_layers: int, threads: tuple[int, ...]
) -> None:
    @given(models(most_layers), st.sampled_from([0.0, 1e-8, 1e-6]))
    @settings(deadline=None, max_examples=20)
    def agrees(model: ReplicaModel, price: float) -> None:
        found = Layers(model, threads, num_workers).best(num_workers, price)
        truth = min(cost_of(model, layers, price) for layers in every_chain(model, num_workers, threads))
        assert found.status is Status.OPTIMAL
        assert found.objective == pytest.approx(truth)
        assert found.value is not None
        assert cost_of(model, found.value, price) == pytest.approx(truth)

    agrees()


def test_three_workers_of_two_layers_replicated_and_partitioned_in_every_way_agree() -> None:
    # Messages dear enough that maps decide: all pairs of (P, R) on four workers, each with all of its maps.
    stages = chain_of(
        Builder((6,)).fully_connected("a", 5, bias=False).fully_connected("b", 4, bias=False).build("n", source="own")
    )
    constants = Constants(
        multiply_add_s=lambda size, partitions: 1e-6, activation_s=0, error_s=0, bandwidth_bytes_per_s=2e6, latency_s=lambda h: 1e-6
    )  # fmt: skip
    model = ReplicaModel(SegmentWork(stages, constants))
    pairs = Layers(model, (1,), 4)._pairs
    for before, after in product(range(len(pairs.states[0].workers)), range(len(pairs.states[1].workers))):
        p, r, _ = pairs.states[0].at(before)
        first = LayerChoice.spread(p, num_replicas=r)
        least = min(
            model.backward(0, first, second).total_s / r + model.forward(1, second, first).total_s / second.num_replicas
            for second in every_choice(4, 4, (1,))
            if (second.num_partitions, second.num_replicas) == pairs.states[1].at(after)[:2]
        )
        assert pairs.pair_s(1, before, after) == pytest.approx(least)


@given(models(), st.integers(1, 9), st.sampled_from([0.0, 1e-8, 1e-6]))
@settings(deadline=None, max_examples=40)
def test_bounds_lie_below_what_they_bound(model: ReplicaModel, num_workers: int, price: float) -> None:
    layers = Layers(model, (1, 2), num_workers)
    pairs = layers._pairs
    slack = 1 + 1e-9
    for layer in range(1, len(model.stages)):
        every = [np.arange(one.workers.size) for one in pairs.states]
        bounds = pairs.bound_s(layer, every[layer - 1], every[layer])
        for before, after in product(every[layer - 1][::5], every[layer][::5]):
            assert bounds[before, after] <= pairs.pair_s(layer, int(before), int(after)) * slack
    found = layers.best(num_workers, price)
    assert layers.bound(num_workers, price) <= found.objective * slack
    assert found.objective == pytest.approx(cost_of(model, found.value or (), price))
    floors = sum(
        float((pairs.floor_s(index) + price * pairs.weight_bytes(index)).min()) for index in range(len(model.stages))
    )
    assert floors <= found.objective * slack


@given(models(), st.sampled_from([0.0, 1e-8, 1e-6]), st.sampled_from([1, 10**6]), st.booleans())
@settings(deadline=None, max_examples=40)
def test_too_many_states_to_compare_at_once_give_the_same_answer_or_a_bound_below_it(
    model: ReplicaModel, price: float, most_pairs: int, is_start_poor: bool
) -> None:
    truth = Layers(model, (1, 2), 7).best(7, price)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_replicas_layers, "_FEW_PAIRS", 0)
        patch.setattr(model_replicas_layers, "_MOST_PAIRS", most_pairs)
        if is_start_poor:  # the first answer then leaves much to win, and its bound must not cut that off
            patch.setattr(Layers, "_is_round", lambda self, layer, some, workers: np.arange(len(some)) == 0)
        found = Layers(model, (1, 2), 7).best(7, price)
    assert found.bound <= truth.objective * (1 + 1e-9)
    assert found.objective >= truth.objective * (1 - 1e-9)
    assert found.objective == pytest.approx(cost_of(model, found.value or (), price))
    if most_pairs > 1:
        assert found.status is Status.OPTIMAL
        assert found.objective == pytest.approx(truth.objective)


@given(models(), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.randoms())
@settings(deadline=None, max_examples=60)
def test_messages_of_replicas_are_those_of_every_sample_in_turn(
    model: ReplicaModel, r_before: int, p_before: int, r_after: int, p_after: int, random: Any
) -> None:
    if len(model.stages) < 2:
        return
    places = [random.sample(range(12), p * r) for p, r in ((p_before, r_before), (p_after, r_after))]
    before, after = (
        LayerChoice(num_threads=1, workers=tuple(tuple(place[k * p : (k + 1) * p]) for k in range(r)))
        for place, p, r in zip(places, (p_before, p_after), (r_before, r_after), strict=True)
    )
    needed = model.work.boundary(1, p_before, p_after).needed
    samples = lcm(r_before, r_after)
    total = sum(
        remote_counts(needed, after.workers[k % r_after], before.workers[k % r_before]).sum() for k in range(samples)
    )
    assert model.forward(1, after, before).num_received == pytest.approx(total / samples)


@pytest.mark.parametrize(
    ("interference", "latency", "kept"),
    [
        (((1, 1.0), (4, 1.0)), ((1, 1.0), (4, 1.0)), (4,)),  # no interference: the most threads
        (((1, 1.0), (4, 8.0)), ((1, 0.0), (4, 0.0)), (1,)),  # threads that lose, and nothing to wait for
        (((1, 1.0), (4, 8.0)), ((1, 1.0), (4, 1.0)), (1, 2, 3, 4)),  # computation wants one, latency four
    ],
)
def test_threads_that_are_never_best_are_left_out(
    interference: tuple[tuple[int, float], ...], latency: tuple[tuple[int, float], ...], kept: tuple[int, ...]
) -> None:
    constants = Constants(
        multiply_add_s=lambda size, partitions: 1e-7, activation_s=0, error_s=0, bandwidth_bytes_per_s=1e9,
        latency_s=ByThreads(latency), interference=ByThreads(interference),
    )  # fmt: skip
    stages: tuple[Stage, ...] = chain_of(Builder((4,)).fully_connected("a", 4).build("n", source="own"))
    assert worthwhile_threads(ReplicaModel(SegmentWork(stages, constants)), (1, 2, 3, 4)) == kept


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


def asked_for(search: Search | None = None, **changes: Any) -> Any:
    return plan(planner.load(question(**changes)), search or Search())


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
    assert planner.check(problem, planner.plan(problem)).is_ok


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
    monkeypatch.setattr(model_replicas_cost, "chain_of", lambda dnn: asked.append(1) or chain_of(dnn))  # type: ignore[func-returns-value]
    found = asked_for(machine={"count": 16})
    num_predictions = found.provenance.num_solved + len(found.alternatives)
    assert num_predictions < found.provenance.num_candidates
    assert len(asked) <= 1 + num_predictions


# -- the search's own limits -----------------------------------------------------------------------------------------


def test_a_search_that_is_over_gives_its_first_answer_with_a_true_bound() -> None:
    search = Search()
    search.interrupt()
    best = asked_for(machine={"count": 12}).objective
    stopped = asked_for(search, machine={"count": 12})
    assert stopped.bound <= best * (1 + 1e-9) <= stopped.objective * (1 + 2e-9)


def test_a_search_that_is_over_bounds_no_further_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def counted(*arguments: Any) -> float:
        asked.append(bound_of(*arguments))
        return asked[-1]

    monkeypatch.setattr("planner.families.model_replicas.search.bound_of", counted)
    search = Search()
    search.interrupt()
    stopped = asked_for(search, machine={"count": 12})
    assert len(asked) == 1 < stopped.provenance.num_candidates
    assert stopped.bound <= asked_for(machine={"count": 12}).objective * (1 + 1e-9)


def test_a_search_that_is_over_does_not_compare_many_states(monkeypatch: pytest.MonkeyPatch) -> None:
    most: list[int] = []
    bound_s = ReplicaPairs.bound_s

    def counted(pairs: ReplicaPairs, layer: int, before: Ints, after: Ints) -> Floats:
        most.append(len(before) * len(after))
        return bound_s(pairs, layer, before, after)

    monkeypatch.setattr(ReplicaPairs, "bound_s", counted)
    monkeypatch.setattr(replica_pairs, "_MOST_KEPT", 0)
    monkeypatch.setattr(model_replicas_layers, "_FEW_PAIRS", 400)
    layers = Layers(model_of(planner.load(question(machine={"count": 40}))), (1,), 40)
    truth = layers.best(40, 1e-9)
    in_full, most[:] = max(most), []
    stopped = layers.best(40, 1e-9, is_over=lambda: True)
    assert max(most) < in_full
    assert stopped.value is not None
    assert stopped.status is Status.FEASIBLE
    assert stopped.bound <= truth.objective * (1 + 1e-9) <= stopped.objective * (1 + 2e-9)


def test_tables_of_many_workers_are_not_made_by_one_number_of_partitions_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def counted(stage: Stage, before: int, number: int, shape: tuple[int, ...]) -> Boundary:
        asked.append(number)
        return stripe_boundary(stage, before, number, shape)

    monkeypatch.setattr("planner.models.segment_work.stripe_boundary", counted)
    model = model_of(planner.load(question(machine={"count": 40})))
    layers = Layers(model, (1,), 500)
    assert layers.bound(500, 1e-9) > 0
    assert len(asked) <= len(model.stages)


@given(models(), st.integers(1, 9), st.sampled_from([0.0, 1e-9, 1e-8, 1e-6, 1.0]))
@settings(deadline=None, max_examples=60)
def test_the_bound_of_a_setting_is_the_least_over_all_replicas_of_a_layer(
    model: ReplicaModel, num_workers: int, price: float
) -> None:
    layers = Layers(model, (1, 2), 9)
    replicas = np.arange(1, num_workers + 1)
    every = layers._least_s[:, num_workers // replicas] / replicas + price * layers._weight_bytes[:, None] * replicas
    assert layers.bound(num_workers, price) == pytest.approx(float(every.min(axis=1).sum()), rel=1e-12)


def test_a_search_ends_with_an_answer_that_is_good_enough() -> None:
    best = asked_for(machine={"count": 12})
    some = asked_for(Search(good_enough=float("inf")), machine={"count": 12})
    assert some.provenance.num_solved == 1
    assert some.bound <= best.objective * (1 + 1e-9)


def test_runners_up_differ_in_servers_replicas_or_workers() -> None:
    found = asked_for(Search(num_alternatives=3), machine={"count": 9})
    names = [one.name for one in found.alternatives]
    assert len(names) == len(set(names)) == 5
    assert {"uniform layers", "maps by the least sum of messages"} < set(names)
    assert found.configuration.headline not in names


def test_many_workers_get_an_answer_and_a_bound_below_it() -> None:
    found = asked_for(Search(time_limit_s=2), machine={"count": 200, "latency": "1 us"}, dnn={"global_batch": 9600})
    assert 0 < found.bound <= found.objective
    assert found.objective < asked_for(machine={"count": 16}, dnn={"global_batch": 9600}).objective


# -- the paper's space and rule --------------------------------------------------------------------------------------


def test_the_space_of_uniform_layers_is_what_predict_says_and_no_plan_is_worse() -> None:
    problem = planner.load(question(machine={"count": 9}))
    space = search_space(problem)
    assert len(space) == sum(8 // workers for workers in range(1, 9))
    for choice, objective in space:
        assert objective == pytest.approx(predict(problem, choice).epoch_time_s)
    found = plan(problem, Search())
    assert found.objective <= min(objective for _, objective in space) * (1 + 1e-9)
    assert any(f"of {len(space)} settings with uniform layers the best takes" in line for line in found.explanation)


def test_the_space_is_a_table_too() -> None:
    problem = planner.load(question(machine={"count": 5}))
    head, *rows = search_space_csv(problem, (1, 2)).splitlines()
    assert head == "num_workers_per_replica,num_replicas,num_parameter_servers,epoch_time_s"
    assert [row.rsplit(",", 1)[0] for row in rows] == ["1,1,1", "2,1,2", "1,2,2", "2,2,1", "1,3,2", "1,4,1"]
    assert float(rows[0].rsplit(",", 1)[1]) == pytest.approx(search_space(problem, (1, 2))[0][1])


@given(models(), st.integers(1, 5))
@settings(deadline=None, max_examples=30)
def test_the_papers_maps_have_the_least_sum_and_never_beat_the_best_ones(model: ReplicaModel, num_workers: int) -> None:
    best = Layers(model, (1,), num_workers).best(num_workers, 1e-7).value
    assert best is not None
    by_sum = sum_rule(model, best)
    assert cost_of(model, by_sum, 1e-7) >= cost_of(model, best, 1e-7) * (1 - 1e-9)
    configuration = ReplicaConfiguration(num_servers=1, num_replicas=1, num_workers=num_workers, layers=by_sum)
    assert broken_constraints(configuration, Limits(num_machines=99, num_cores=1), model.stages) == ()
    if len(model.stages) > 1:
        ours, theirs = (model.forward(1, one[1], one[0]).num_received for one in (best, by_sum))
        assert theirs <= ours + 1e-9


def test_the_first_setting_is_solved_whatever_the_limit() -> None:
    assert asked_for(Search(time_limit_s=0)).objective > 0
