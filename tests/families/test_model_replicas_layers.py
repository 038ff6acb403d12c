"""Layers and maps of asynchronous replicas against every choice tried, and the paper's space and rule."""

from dataclasses import replace
from itertools import product
from math import lcm
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replicas import asked_for, cost_of, every_chain, every_choice, models, question

import planner
from planner.families.model_replicas import layers as model_replicas_layers
from planner.families.model_replicas.cost import predict
from planner.families.model_replicas.layers import Layers
from planner.families.model_replicas.search import plan, search_space, sum_rule
from planner.models.replica_segments import (
    ByThreads,
    Constants,
    LayerChoice,
    Limits,
    ReplicaConfiguration,
    SegmentWork,
    Stage,
    broken_constraints,
    chain_of,
)
from planner.models.replicas import ReplicaModel, worthwhile_threads
from planner.search import Search
from planner.solution import Status
from planner.zoo.builder import Builder
from tests.referee.segments import remote_counts


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


@given(models(), st.integers(2, 7))
@settings(deadline=None, max_examples=30)
def test_bounds_are_the_costs_where_messages_are_free(model: ReplicaModel, num_workers: int) -> None:
    free = replace(model.constants, bandwidth_bytes_per_s=1e30, latency_s=lambda _: 0.0)
    pairs = Layers(ReplicaModel(SegmentWork(model.stages, free)), (1, 2), num_workers)._pairs
    for layer in range(1, len(model.stages)):
        every = [np.arange(one.workers.size) for one in pairs.states[layer - 1 : layer + 1]]
        costs = [[pairs.pair_s(layer, int(before), int(after)) for after in every[1]] for before in every[0]]
        np.testing.assert_allclose(pairs.bound_s(layer, *every), costs, rtol=1e-9, atol=1e-20)


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


def test_the_space_of_uniform_layers_is_what_predict_says_and_no_plan_is_worse() -> None:
    problem = planner.load(question(machine={"count": 9}))
    space = search_space(problem)
    assert len(space) == sum(8 // workers for workers in range(1, 9))
    for choice, objective in space:
        assert objective == pytest.approx(predict(problem, choice).epoch_time_s)
    found = plan(problem, Search())
    assert found.objective <= min(objective for _, objective in space) * (1 + 1e-9)
    assert any(f"of {len(space)} settings with uniform layers the best takes" in line for line in found.explanation)


def test_the_space_has_every_setting_with_its_best_number_of_servers() -> None:
    space = search_space(planner.load(question(machine={"count": 5})), (1, 2))
    rows = [
        (one.num_workers, one.num_replicas, one.num_servers) for one in (choice.configuration for choice, _ in space)
    ]
    assert rows == [(1, 1, 1), (2, 1, 2), (1, 2, 2), (2, 2, 1), (1, 3, 2), (1, 4, 1)]


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
