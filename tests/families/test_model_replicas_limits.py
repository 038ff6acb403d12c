"""Limits of the search over asynchronous replicas: what it says when its time is over, and its first good answer."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replicas import asked_for, models, question

import planner
from planner.cost import Floats
from planner.families.model_replicas import layers as model_replicas_layers
from planner.families.model_replicas.cost import model_of
from planner.families.model_replicas.layers import Layers
from planner.families.model_replicas.settings import bound_of
from planner.models import replica_pairs
from planner.models.model_replicas import ReplicaModel
from planner.models.replica_pairs import ReplicaPairs
from planner.models.replica_states import Ints
from planner.models.segments import Boundary, Stage
from planner.models.stripe_counts import stripe_boundary
from planner.search import Search
from planner.solution import Status


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
