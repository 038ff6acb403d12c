"""Whether anything fits, and how much memory would do, against every pipeline of the domain; answers without a search."""

from itertools import islice
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pipelines import MACHINE, every_shape, is_allowed, layer, question, small_questions

import planner
from planner.errors import InfeasibleError
from planner.families.pipeline import memory as pipeline_memory
from planner.families.pipeline import rows as pipeline_plain
from planner.families.pipeline import search as pipeline_search
from planner.families.pipeline.cost import PipelineCost, Shape
from planner.families.pipeline.domain import Domain
from planner.families.pipeline.memory import (
    Fitting,
    _least_share,
    _lowest_scale,
    _Splits,
    dealt_shares,
    fitting,
    least_memory,
    least_share,
    numbers_of_stages_that_fit,
    states_fit,
    why_nothing_fits,
)
from planner.families.pipeline.rows import quick_shapes
from planner.families.pipeline.search import plan
from planner.problem import Problem
from planner.search import Search


class AnySize(PipelineCost):
    """Costs of devices whose memory never ends."""

    def fits(self, shape: Shape) -> bool:
        return True


def shares(problem: Problem) -> list[tuple[float, Shape]]:
    """What the fullest device of every pipeline holds in parts of its memory, memory alone left aside."""
    cost, found = AnySize(problem), []
    for shape in every_shape(problem, cost):
        if is_allowed(problem, cost, shape):
            found.append((max(row["total"] / row["limit"] for row in cost.memory_bytes(shape)), shape))
    return found


@settings(max_examples=120, deadline=None)
@example(stages=[[(10, 0)], [(6, 4)]], number=2)  # both full: the last one keeps one micro-batch
@example(stages=[[(6, 4)], [(6, 4)]], number=1)  # one micro-batch is all that any stage keeps
@example(stages=[[(8, 1)], [(1, 2), (1, 2), (4, 0)]], number=2)
@given(
    stages=st.lists(
        st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=3), min_size=1, max_size=4
    ),
    number=st.integers(1, 5),
)
def test_no_stages_of_a_device_each_fill_less_than_all_devices_are_known_to(
    stages: list[list[tuple[int, int]]], number: int
) -> None:
    """Of layers' states and what they keep of a sample; the fullest device's share of its memory, and all that is left."""
    layers = np.array([one for stage in stages for one in stage], dtype=np.float64)
    in_flight = [min(number, len(stages) - at) for at in range(len(stages))]
    held = [
        sum(states + count * kept for states, kept in stage) for stage, count in zip(stages, in_flight, strict=True)
    ]
    machines = [SimpleNamespace(memory_limit_bytes=10.0)]
    domain: Any = SimpleNamespace(
        cost=SimpleNamespace(costs=SimpleNamespace(machines=machines)),
        num_devices=(len(stages),),
        schedules=("1f1b",),
        batch=number,
    )
    share, least = max(held) / 10, float(layers[:, 0].sum()) / 10 / len(stages)
    with patch.object(pipeline_memory, "_by_layer", lambda _: (layers[:, 0], layers[:, 1])):
        assert least <= _least_share(domain, number, share) <= share * (1 + 1e-9)
        assert least <= _lowest_scale(domain, number, least) <= share * (1 + 1e-9)


@settings(max_examples=120, deadline=None)
@given(small_questions(), st.sampled_from([4096, 0]))
def test_what_is_said_to_fit_fits_and_the_least_memory_is_that_of_every_pipeline(
    asked: dict[str, Any], most_budgets: int
) -> None:
    problem = planner.load(asked)
    domain, every = Domain(problem), shares(problem)
    if domain.why_empty():
        assert not every
        return
    least = min((share for share, _ in every), default=float("inf"))
    with patch.object(pipeline_memory, "_MOST_BUDGETS", most_budgets):
        found, needed = fitting(domain, Search()), least_memory(domain, Search())
    if found.shape is not None:
        assert domain.allows(found.shape) and least <= 1
    elif found.is_proven:
        assert least > 1
    for share, shape in every:  # numbers of micro-batches are passed over by what each needs at least
        if shape.schedule != "interleaved":
            assert _least_share(domain, shape.num_microbatches, share) <= share * (1 + 1e-9)
            splits, before = _Splits(domain.with_memory(share * (1 + 1e-9)), shape.num_microbatches, Search()), 0
            for k, stage in zip(range(len(shape.stages), 0, -1), shape.stages, strict=True):
                assert splits._ahead(k)[stage.first] <= before
                assert splits._most_layers(k)[stage.first] > stage.last - stage.first
                before += stage.replicas
    if needed is not None:
        assert needed.scale >= least * (1 - 1e-5)
        assert not needed.is_proven or needed.scale == pytest.approx(least, rel=1e-5)
    if len(domain.num_devices) == 1 or (most_budgets and not domain.is_limited):
        assert found.is_proven
        assert (needed is None) == (not every)
        assert needed is None or needed.is_proven


@settings(max_examples=60, deadline=None)
@given(small_questions(), st.integers(1, 3), st.integers(1, 2), st.floats(0.1, 3.0))
def test_states_fit_where_the_fullest_device_of_the_cuts_holds_them(
    asked: dict[str, Any], p: int, chunks: int, part: float
) -> None:
    domain = Domain(planner.load(asked))
    if p * chunks > domain.num_layers:
        return
    for group in range(len(domain.num_devices)):
        shape = domain.shape(domain.balanced(group, p * chunks, 1), p, "1f1b" if chunks == 1 else "interleaved", chunks)
        rows = domain.cost.memory_bytes(shape)
        held = max(
            (row["weights"] + row["gradients"] + row["optimizer"] + row["reserve"]) / row["limit"] for row in rows
        )
        assert not states_fit(domain, group, p, chunks, held * min(part, 1 - 1e-6))
        assert states_fit(domain, group, p, chunks, held * max(part, 1 + 1e-12))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6), st.integers(0, 9)), min_size=4, max_size=14),
    st.integers(2, 4),
    st.integers(2, 4),
    st.integers(1, 3),
    st.integers(1, 2),
)
def test_interleaved_devices_hold_what_is_known_without_the_order_of_tasks(
    rows: list[tuple[int, int, int]], p: int, chunks: int, rounds: int, replicas: int
) -> None:
    layers = [layer(index, seconds, f"{4 * size} MB", f"{kept} MB") for index, (seconds, size, kept) in enumerate(rows)]
    domain = Domain(planner.load(question(len(rows), dnn={"layers": layers, "global_batch": 64})))
    if p * chunks > domain.num_layers:
        return
    shape = domain.shape(domain.balanced(0, p * chunks, replicas), rounds * p, "interleaved", chunks)
    share = fullest(domain, shape)
    assert least_share(domain, shape) <= share * (1 + 1e-12)
    assert dealt_shares(domain, 0)(p, chunks) <= share * (1 + 1e-12)


@pytest.mark.parametrize("num_microbatches", [4, 16])
def test_bounds_of_what_interleaved_devices_hold_are_tight(num_microbatches: int) -> None:
    kept = [200] + [100] * 63  # the first layer has no input of another one, which all other chunks keep, too
    layers = [layer(index, 2, "1 MB", f"{size} MB") for index, size in enumerate(kept)]
    domain = Domain(planner.load(question(64, dnn={"layers": layers, "global_batch": 16})))
    shape = domain.shape(domain.balanced(0, 16, 1), num_microbatches, "interleaved", 4)
    assert least_share(domain, shape) == pytest.approx(fullest(domain, shape), rel=1e-9)
    if num_microbatches == 16:
        assert dealt_shares(domain, 0)(4, 4) > 0.5 * fullest(domain, shape)


def test_the_last_devices_keep_fewer_micro_batches_of_their_last_chunk() -> None:
    kept = {25: 4, 27: 6, 29: 10, 31: 60}  # of sixteen devices: 13, 9, 5 micro-batches, and one
    layers = [layer(index, 2, "1 kB", f"{kept.get(index, 0)} MB") for index in range(32)]
    domain = Domain(planner.load(question(32, dnn={"layers": layers, "global_batch": 32})))
    shape = domain.shape(domain.balanced(0, 32, 1), 32, "interleaved", 2)
    assert dealt_shares(domain, 0)(16, 2) <= fullest(domain, shape)


def fullest(domain: Domain, shape: Shape) -> float:
    """What the fullest device of a pipeline holds in parts of its memory."""
    return max(row["total"] / row["limit"] for row in domain.cost.memory_bytes(shape))


@settings(max_examples=60, deadline=None)
@given(small_questions())
def test_numbers_of_stages_that_are_said_to_fit_are_those_of_every_pipeline(asked: dict[str, Any]) -> None:
    problem = planner.load({**asked, "fix": {}})
    if Domain(problem).why_empty():
        return
    found = set(numbers_of_stages_that_fit(Domain(problem), Search()))
    plain = [(share, shape) for share, shape in shares(problem) if shape.schedule != "interleaved"]
    truth = {len(shape.stages) for share, shape in plain if share <= 1}
    assert found <= truth
    if len(problem.cluster.machine_groups) == 1 or not Domain(problem).is_limited:
        assert found == truth


def no_search(*_: object, **__: object) -> None:
    raise AssertionError("tables were filled")


def large(num_layers: int, memory: str, **changes: Any) -> dict[str, Any]:
    """Layers of 100 MB of parameters on 8 machines of 4 devices."""
    layers = [layer(index, 2, "100 MB", "4 kB") for index in range(num_layers)]
    asked = question(num_layers, dnn={"layers": layers, "global_batch": 64}, cluster={"machines": [{**MACHINE, "count": 8, "devices": 4}]}, **changes)  # fmt: skip
    return {**asked, "constraints": {"memory_per_device": memory}}


def test_no_search_is_needed_to_know_that_nothing_fits() -> None:
    with (
        patch.object(pipeline_plain, "Tables", no_search),
        pytest.raises(InfeasibleError, match="for any split, some stage needs at least"),
    ):
        plan(planner.load(large(30, "100 MB")), Search())


def test_what_a_split_that_was_found_in_some_time_needs_is_not_told() -> None:
    domain = Domain(planner.load(large(30, "100 MB")))
    now = iter(range(10_000))
    late = Search(time_limit_s=9, clock=lambda: float(next(now)))
    words = "No plan fits: whatever the stages, a device needs more memory than it may use (95.37 MiB on"
    why = why_nothing_fits(domain, late)
    assert str(why).startswith(words)
    assert why.enough_bytes == float("inf")


def test_a_layer_that_no_device_holds_is_known_before_any_split() -> None:
    problem = planner.load(large(3, "100 MB"))  # of 100 MB weights alone; all devices together hold 3.2 GB
    with patch.object(pipeline_memory, "_Splits", no_search):
        assert fitting(Domain(problem), Search()) == Fitting(shape=None, is_proven=True)


def test_any_plan_is_given_at_once_where_only_many_stages_fit() -> None:
    problem = planner.load(large(30, "1500 MB"))
    with patch.object(pipeline_plain, "Tables", no_search):
        found = plan(problem, Search(good_enough=float("inf")))
    assert found.configuration.to_document()["stages"][1:]
    assert found.prediction.memory_bytes["total"] <= found.prediction.memory_bytes["limit"]


def test_more_devices_than_stages_can_use_are_not_blamed_on_memory() -> None:
    asked = question(2, dnn={"global_batch": 1}, cluster={"machines": [{**MACHINE, "count": 4, "devices": 1}]})
    with pytest.raises(InfeasibleError, match="no stages use as many devices") as caught:
        plan(planner.load({**asked, "fix": {"num_devices": 4}}), Search())
    assert "memory" not in str(caught.value)
    one = question(1)
    with pytest.raises(InfeasibleError, match="the interleaved schedule needs"):
        plan(planner.load({**one, "fix": {"schedule": "interleaved"}}), Search())


@settings(max_examples=100, deadline=None)
@given(small_questions(), st.floats(0.3, 2.0), st.sampled_from(["all", "one", "none"]))
def test_a_cutoff_costs_no_better_plan_and_proves_that_there_is_none(
    asked: dict[str, Any], share: float, quick: str
) -> None:
    """Also where the first answers are poor, or where none is found before the search proper."""
    problem = planner.load(asked)
    try:
        truth = plan(problem, Search()).objective
    except InfeasibleError:
        return
    most = {"all": None, "one": 1, "none": 0}[quick]
    unknown = Fitting(shape=None, is_proven=False)
    with (
        patch.object(pipeline_search, "quick_shapes", lambda domain: islice(quick_shapes(domain), most)),
        patch.object(pipeline_search, "fitting", fitting if quick != "none" else lambda *_: unknown),
    ):
        found = plan(problem, Search(cutoff=truth * share))
    assert found.bound <= truth * (1 + 1e-9) <= found.objective * (1 + 1e-9) ** 2
    if share <= 1:
        assert found.bound >= truth * share * (1 - 1e-9)
    else:
        assert found.objective == pytest.approx(truth)


def test_the_least_memory_of_interleaved_pipelines_is_told_where_they_alone_may_be_chosen() -> None:
    asked = question(4, dnn={"layers": [layer(index, 2, "100 MB", "4 kB") for index in range(4)], "global_batch": 4})
    asked["fix"] = {"schedule": "interleaved", "num_stages": 2}
    with pytest.raises(InfeasibleError, match="needs at least") as caught:
        plan(planner.load({**asked, "constraints": {"memory_per_device": "200 MB"}}), Search())
    amount, unit = str(caught.value).split(" to ")[1].rstrip(".").split(" ")
    enough = {**asked, "constraints": {"memory_per_device": f"{amount} {unit}"}}
    assert plan(planner.load(enough), Search()).objective > 0
    less = {**asked, "constraints": {"memory_per_device": f"{float(amount) * 0.997} {unit}"}}
    with pytest.raises(InfeasibleError):
        plan(planner.load(less), Search())


def test_where_all_bounds_reach_the_cutoff_no_more_than_the_cutoff_is_claimed() -> None:
    problem = planner.load(question(4, fix={"num_microbatches": 4, "schedule": "1f1b"}))
    truth = plan(problem, Search()).objective
    with patch.object(pipeline_search, "quick_shapes", lambda domain: islice(quick_shapes(domain), 1)):
        found = plan(problem, Search(cutoff=truth * 0.6))
    assert found.objective > truth * 1.1
    assert found.bound == pytest.approx(truth * 0.6)
    assert any("no better than an answer that is known" in line for line in found.explanation)
