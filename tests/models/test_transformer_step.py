"""Steps on unlike machines against those on equal ones, and what may never make them slower."""

from dataclasses import replace
from typing import Any
from unittest.mock import PropertyMock, patch

import numpy as np
import pytest
from hybrid_questions import MOE, TINY, question
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from transformer_rates_drawn import GPT, MIXTURE, figures_of

from planner.families.hybrid.cost import GroupCost, costs_of
from planner.models.layer_memory import KERNELS
from planner.models.layouts import EvenCut, Layouts, busiest_stages, dealt_layers
from planner.models.memory import PRECISIONS, CutMemory, memory_bytes, stage_memory_bytes
from planner.models.tiers import Tier, operation_s
from planner.models.transformer_interval import LayerFigures, interval_times
from planner.models.transformer_step import DeviceGroup, ReplicaClass, Step, group_seconds
from planner.models.transformer_time import iteration_times

CLOSED_FORM = 0.003  # by which the closed form of the schedule may stay below its recurrence
LAYOUTS = st.fixed_dictionaries(
    {
        "tensor": st.sampled_from([1, 2]),
        "pipeline": st.sampled_from([2, 4]),
        "data": st.sampled_from([1, 2]),
        "microbatch": st.sampled_from([1, 2]),
        "zero": st.sampled_from([0, 1]),
        "recompute": st.sampled_from([0, 1, 2]),
        "order": st.sampled_from([0, 1, 2, 3, 4]),
        "overlap_data": st.booleans(),
        "num_microbatches": st.sampled_from([1, 4, 9]),
    }
)


def _cost(transformer: dict[str, Any]) -> GroupCost:
    return costs_of(question({**transformer, "tied_embeddings": False}, machines=4, devices=4))[0]


PLAIN, WITH_EXPERTS = _cost(TINY), _cost(MOE)
KNOWN = st.sampled_from([PLAIN, WITH_EXPERTS])


def step(known: GroupCost, layout: Layouts, layers: list[int], kinds: list[DeviceGroup], stages: list[int]) -> Step:
    """A step of one class of replicas, whose stages lie on kinds by their index."""
    shared: dict[str, Any] = {"software": known.software, "constants": known.constants}
    return Step(
        layouts=layout,
        layers=np.array(layers)[:, None],
        groups=[group_seconds(known.transformer, layout, layout, one, **shared) for one in kinds],
        classes=[ReplicaClass(groups=np.array(stages)[:, None], num_microbatches=layout.num_microbatches)],
    )


@settings(max_examples=60, deadline=None)
@given(
    layers=st.integers(3, 17),
    pipeline=st.integers(2, 8),
    data=st.sampled_from([1, 2, 4]),
    number=st.integers(1, 20),
    experts=st.sampled_from([None, {}, {"dense_first": 1}, {"dense_first": 2}, {"every": 2}]),
    zero=st.integers(0, 1),
    overlaps=st.booleans(),
)
def test_layers_that_do_not_divide_take_what_the_general_step_says(
    layers: int, pipeline: int, data: int, number: int, experts: dict[str, int] | None, zero: int, overlaps: bool
) -> None:
    is_mixed = bool(experts)  # layers of both kinds, whose stages are unlike whatever their number
    assume(pipeline <= layers and (is_mixed or layers % pipeline))
    network = TINY if experts is None else {**MOE, "experts": {**MOE["experts"], **experts}}
    known = _cost({**network, "layers": layers})
    layout = Layouts.one(
        pipeline=pipeline, data=data, num_microbatches=number, zero=zero, overlap_data=overlaps, microbatch=2
    )
    kind = DeviceGroup(tiers=known.tiers, rates=known.rates)
    cut = dealt_layers(layers, pipeline)[0].tolist()
    general = step(known, layout, cut, [kind], [0] * pipeline)
    even = known.parts(layout)
    assert float(even["optimizer"][0]) == pytest.approx(float(general.optimizer_s.max()))
    assert float(even["data"][0]) == pytest.approx(float(general.exposed_s.max()), abs=1e-12)
    schedule_s = float((even["total"] - even["optimizer"] - even["data"])[0])
    busy = busiest_stages(known.transformer, layout)
    is_alike = bool(EvenCut.of(layers, layout).is_alike[0] and (not is_mixed or busy.is_alike[0]))
    assert schedule_s == pytest.approx(float(general.class_steps_s[0, 0]), rel=CLOSED_FORM if is_alike else 1e-9)


@given(KNOWN, LAYOUTS)
@settings(max_examples=60)
def test_equal_stages_on_one_kind_take_what_the_even_model_says(known: GroupCost, drawn: dict[str, Any]) -> None:
    layout = Layouts.one(**drawn, sequence_parallel=drawn["tensor"] > 1)
    pipeline = drawn["pipeline"]
    kind = DeviceGroup(tiers=known.tiers, rates=known.rates)
    mixed = step(known, layout, [known.transformer.num_layers // pipeline] * pipeline, [kind], [0] * pipeline)
    even = iteration_times(known.figures, layout)
    total_s = float(mixed.total_s[0])
    sent_s = float((layout.num_microbatches * mixed.groups[0].transfer_s)[0])  # by an end, which even stages may count
    assert total_s * (1 - CLOSED_FORM) <= float(even["total"][0]) <= (total_s + sent_s) * (1 + 1e-9)
    assert sum(float(part[0]) for part in mixed.parts().values()) == pytest.approx(total_s)
    assert mixed.bound_s[0] <= mixed.total_s[0] * (1 + 1e-12)
    for name in ("data", "optimizer"):
        assert float(mixed.parts()[name][0]) == pytest.approx(float(even[name][0]), rel=1e-6, abs=1e-12), name


@given(LAYOUTS, st.sampled_from([0.3, 0.7]), st.sampled_from([1e8, 1e10]))
@settings(max_examples=40)
def test_a_quicker_device_or_link_never_makes_a_step_longer(drawn: dict[str, Any], share: float, link: float) -> None:
    known = PLAIN
    layout = Layouts.one(**drawn)
    rates = known.rates
    slow = replace(
        rates,
        peak_flop_per_s=rates.peak_flop_per_s * share,
        memory_bandwidth_bytes_per_s=rates.memory_bandwidth_bytes_per_s * share,
    )
    half = drawn["pipeline"] // 2
    layers, stages = [4 // drawn["pipeline"]] * drawn["pipeline"], [0] * half + [1] * half

    def seconds(other: Any, between_bytes_per_s: float) -> float:
        kinds = [
            DeviceGroup(tiers=known.tiers, rates=one, between_bytes_per_s=between_bytes_per_s) for one in (rates, other)
        ]
        return float(step(known, layout, layers, kinds, stages).total_s[0])

    mixed = seconds(slow, link)
    assert seconds(rates, link) <= mixed * (1 + 1e-9)
    assert seconds(slow, 2 * link) <= mixed * (1 + 1e-9)


@given(KNOWN, LAYOUTS)
@settings(max_examples=40)
def test_as_many_layers_fit_as_their_bytes_allow(known: GroupCost, drawn: dict[str, Any]) -> None:
    layout, kernels = Layouts.one(**drawn), KERNELS["megatron-core"]
    shared: dict[str, Any] = {"precision": PRECISIONS["megatron"], "kernels": kernels, "reserve_bytes": 1e6}
    memory = CutMemory(transformer=known.transformer, **shared)
    pipeline = drawn["pipeline"]
    layers = np.full((pipeline, 1), 4 // pipeline)
    held = memory.stage_bytes(layout, layers)
    expected = stage_memory_bytes(known.transformer, layout, pipeline_layers=layers[:, 0].tolist(), **shared)
    for name, row in held.items():
        assert row[:, 0] == pytest.approx(expected[name]), name
    assert held["total"].max() == pytest.approx(memory_bytes(known.transformer, layout, **shared)["total"][0])
    for slack, fitting in ((1 + 1e-9, 4 // pipeline), (1 - 1e-6, 4 // pipeline - 1)):
        assert np.all(memory.most_layers(layout, pipeline, held["total"] * slack) == fitting)


@settings(max_examples=60, deadline=None)
@given(
    experts=st.sampled_from([{"every": 2}, {"dense_first": 2}, {"dense_first": 3}, {}, None]),
    cut=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    number=st.integers(1, 6),
    zero=st.sampled_from([0, 1]),
    share=st.floats(0.2, 1.2),
)
def test_bytes_of_layers_of_several_kinds_are_those_of_each_stage(
    experts: dict[str, Any] | None, cut: list[int], number: int, zero: int, share: float
) -> None:
    assume(sum(cut) > 3)
    more: dict[str, Any] = {"experts": {**MOE["experts"], **experts}} if experts else {}
    if experts is None:
        more = {"pattern": f"-{'*E-' * sum(cut)}"[: sum(cut)]}
    known = costs_of(question({**MOE, "layers": sum(cut), **more}))[0]
    memory = CutMemory(
        transformer=known.transformer, precision=PRECISIONS["megatron"], kernels=KERNELS["megatron-core"],
        reserve_bytes=1e6,
    )  # fmt: skip
    layout, layers = Layouts.one(pipeline=len(cut), num_microbatches=number, zero=zero, data=2), np.array(cut)[:, None]
    held = memory.stage_bytes(layout, layers)["total"]
    assert memory.held_bytes(layout, layers)[:, 0] == pytest.approx(held[:, 0])
    # What fits is between what may and what must.
    limit = held * share
    possible, certain = (memory.most_layers(layout, len(cut), limit, is_certain=one) for one in (False, True))
    assert np.all(certain <= possible)
    assert np.all(possible[held <= limit] >= layers[held <= limit])
    assert np.all(certain[held > limit] < layers[held > limit])


def test_a_tied_embedding_is_added_up_by_both_ends_and_by_no_other_stage() -> None:
    layout = Layouts.one(pipeline=4, data=2, tensor=2, num_microbatches=4)
    tied, untied = (
        step(known, layout, [1] * 4, [DeviceGroup(tiers=known.tiers, rates=known.rates)], [0] * 4)
        for known in (costs_of(question(TINY, machines=4, devices=4))[0], PLAIN)
    )
    network = tied.groups[0].figures.transformer
    rows = -(-network.vocabulary_size // 256) * 128  # padded, of which each of two devices has a half
    size_bytes = np.array([tied.groups[0].figures.software.gradient_bytes * rows * network.hidden_size])
    added_s = operation_s("all_reduce", tied.groups[0].groups["ends"], size_bytes)[0]
    assert network.has_tied_embeddings and added_s > 0
    assert (tied.exposed_s - untied.exposed_s)[:, 0] == pytest.approx([added_s, 0, 0, added_s])


@given(
    sizes=st.lists(st.sampled_from([3, 4, 8]), min_size=1, max_size=3),
    by_stride=st.sampled_from([(), (), ((2, 0.5), (16, 0.25))]),
    degrees=st.fixed_dictionaries(
        {name: st.sampled_from([1, 2, 4]) for name in ("tensor", "context", "pipeline")}
        | {"data": st.integers(1, 200), "expert": st.sampled_from([1, 2, 8]), "order": st.sampled_from([0, 1, 3, 3])}
    ),
    has_experts=st.booleans(),
)
@example(  # experts alone, whose ranks no longer fill one unit: one data rank fewer is within it
    sizes=[4, 3],
    by_stride=(),
    degrees={"tensor": 1, "context": 1, "pipeline": 1, "data": 16, "expert": 8, "order": 3},
    has_experts=True,
)
@settings(max_examples=200, deadline=None)
def test_data_ranks_beyond_inner_tiers_change_nothing_of_a_micro_batch(
    sizes: list[int], by_stride: tuple[tuple[int, float], ...], degrees: dict[str, int], has_experts: bool
) -> None:
    tiers = tuple(
        Tier(size=size, bandwidth_bytes_per_s=3e11 / 4**index, latency_s=1e-6, num_rails=2, by_stride=by_stride)
        for index, size in enumerate(sizes)
    )
    figures = figures_of(MIXTURE if has_experts else GPT, tiers=tiers)
    layout = Layouts.one(**(degrees if has_experts else {**degrees, "expert": 1}), sequence_parallel=True)
    found = interval_times(figures, layout)
    with patch.object(LayerFigures, "most_data", PropertyMock(return_value=10**9)):
        whole = interval_times(figures, layout)
    for name, seconds in whole.items():
        assert np.array_equal(found[name], seconds), name
