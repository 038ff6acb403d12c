"""Limits of the search over asynchronous replicas: what it says when its time is over, and its first good answer."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from replicas import asked_for, models, question

import planner
from planner.cost import Floats
from planner.errors import InfeasibleError
from planner.families.model_replicas import layers as model_replicas_layers
from planner.families.model_replicas.cost import model_of
from planner.families.model_replicas.layers import Layers, most_workers_of_tables, table_bytes
from planner.families.model_replicas.search import bound_of, plan
from planner.families.model_replicas.settings import Setting, are_few, settings_of, some_settings_of
from planner.models import replicas as replica_pairs
from planner.models.replica_segments import Boundary, Ints, Stage, stripe_boundary
from planner.models.replicas import LayerExtremes, ReplicaModel, ReplicaPairs
from planner.problem import Problem
from planner.search import MemoryLimitError, Search
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

    monkeypatch.setattr("planner.models.replica_segments.stripe_boundary", counted)
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


# -- very many machines, layers and threads --------------------------------------------------------------------------


def deep(num_layers: int, **changes: Any) -> Problem:
    """Equal fully-connected layers, one after the other."""
    rows: list[dict[str, Any]] = [{"name": "in", "kind": "input", "shape": [8]}]
    for index in range(num_layers):
        weights = [{"name": "w", "elements": 64}]
        row = {"name": f"f{index}", "kind": "fully_connected", "shape": [8], "multiply_adds": 64, "tensors": weights}
        rows.append({**row, "inputs": [rows[-1]["name"]]})
    asked = question(**changes)
    asked["dnn"] = {"layers": rows, "dataset_samples": 10**15, "global_batch": 10**15}
    return planner.load(asked)


def test_the_settings_of_a_million_machines_are_not_listed() -> None:
    problem = planner.load(question(machine={"count": 1_000_000}, dnn={"global_batch": 10**15}))
    assert not are_few(problem)
    some = list(some_settings_of(problem))
    assert 100 < len(some) < 3_000
    assert len(set(some)) == len(some)
    assert all(one.num_machines <= 1_000_000 for one in some)
    few = planner.load(question(machine={"count": 12}))
    assert are_few(few) and set(some_settings_of(few)) <= set(settings_of(few))


@pytest.mark.parametrize("limits", [{"devices": 999_983}, {"machines": 999_983}, {"devices": {"at_least": 900_000}}])
def test_some_settings_are_where_limits_begin_and_end(limits: dict[str, Any]) -> None:
    asked = question(machine={"count": 1_000_000}, dnn={"global_batch": 10**15}, constraints=limits)
    assert list(some_settings_of(planner.load(asked)))


@pytest.mark.parametrize(("threads", "num_workers"), [((1,), 30), ((1, 2), 12)])
def test_tables_take_no_more_bytes_than_was_said_before_they_were_made(
    threads: tuple[int, ...], num_workers: int
) -> None:
    for problem in (planner.load(question()), planner.load(question(dnn={"zoo": "alexnet"}))):
        model = model_of(problem)
        layers = Layers(model, threads, num_workers, is_memory_ample=False)
        assert layers.best(num_workers, 1e-9).value is not None
        extremes = [vars_of(one) for one in layers._pairs._layers]
        arrays: list[NDArray[Any]] = [
            *layers.own_s,
            *layers._floor_s,
            *layers.read_bytes,
            layers._least_s,
            *layers._pairs._tight.values(),
        ]
        arrays += [one for state in layers.states for one in (state.partitions, state.replicas, state.threads)]
        held = {id(one): one.nbytes for one in [*arrays, *(array for some in extremes for array in some)]}
        assert sum(held.values()) <= table_bytes(model, len(threads), num_workers)


def vars_of(extremes: LayerExtremes) -> list[Floats]:
    phases = [extremes.forward, extremes.backward]
    kept = [array for one in phases for array in (one.seconds, one.numbers, one.least_s, one.least_numbers)]
    return [*kept, extremes.update_s, extremes.largest]


@pytest.mark.parametrize("count", [1_000, 1_000_000])
@pytest.mark.parametrize("threads", [1, 64, 4_096])
def test_no_tables_are_made_that_do_not_fit(count: int, threads: int) -> None:
    for problem in (planner.load(question(machine={"count": count})), deep(5_000, machine={"count": count})):
        model = model_of(problem)
        most = most_workers_of_tables(model, threads, count)
        assert table_bytes(model, threads, most) <= 1 << 27
        assert most * len(model.stages) <= 4_000_000


def test_what_does_not_fit_into_the_memory_limit_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Layers] = []
    monkeypatch.setattr(Layers, "__init__", lambda layers, *arguments, **changes: made.append(layers))
    problem = planner.load(question(machine={"count": 5_000}))
    with pytest.raises(MemoryLimitError, match=r"a table of 7 layers x 4,999 workers of a replica would take"):
        plan(problem, Search(memory_limit_bytes=64 * 2**20, resident=lambda: 50 * 2**20))
    assert not made


def test_a_search_over_deep_networks_reads_the_clock_before_every_table_and_gives_what_it_has() -> None:
    problem = deep(3_000, machine={"count": 9})
    now_s = iter(range(10**9))
    search = Search(time_limit_s=40, clock=lambda: float(next(now_s)))  # forty readings
    found = plan(problem, search)
    assert 0 < found.bound <= found.objective
    assert next(now_s) < 200  # nobody goes on asking much after the end
    best = plan(problem, Search())
    assert found.bound <= best.objective * (1 + 1e-9)


def test_enumerating_settings_reads_the_clock_every_thousand_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def counted(problem: Problem) -> Iterator[Setting]:
        nonlocal made
        for one in settings_of(problem):
            made += 1
            yield one

    monkeypatch.setattr("planner.families.model_replicas.search.settings_of", counted)
    search = Search()
    search.interrupt()
    found = asked_for(search, machine={"count": 3_000}, dnn={"global_batch": 9_600})
    assert made == 1_025
    assert 0 < found.bound <= found.objective


def test_more_cores_than_a_machine_has_are_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"1,000,000,000 cores a machine; model_replicas takes up to 4,096"):
        asked_for(calibration={"cores": 10**9})
