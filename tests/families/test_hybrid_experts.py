"""Experts that are whole on every rank, or cut as all else is: rules, bytes, seconds, the search and what launches it."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hybrid_questions import MOE, given_layout, question
from hypothesis import given
from hypothesis import strategies as st
from transformer_rates_drawn import MIXTURE, SOFTWARE, TIERS, figures_of

from planner.errors import InfeasibleError, SpecError
from planner.families.hybrid import family as hybrid
from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.hybrid.launch import options
from planner.families.hybrid.search import plan
from planner.models.layouts import Layouts
from planner.models.memory import PRECISIONS, memory_bytes
from planner.models.parameters import block_parameters
from planner.models.tiers import axes_of
from planner.models.transformer_communication import layer_communication
from planner.models.transformer_interval import interval_times
from planner.models.transformer_time import PARTS, iteration_times
from planner.search import Search
from planner.transformer import Transformer

WIDE = replace(MIXTURE, sequence_length=4096, num_positions=4096)
degrees = st.sampled_from([1, 2, 4])


def layouts_of(tensor: int, **more: int) -> list[Layouts]:
    """One layout for each way to cut experts."""
    ways = [one for one in (1, 2, 4, 8) if tensor % one == 0]
    return [Layouts.one(tensor=tensor, sequence_parallel=tensor > 1, expert_tensor=one, **more) for one in ways]


@given(tensor=degrees, context=degrees, data=degrees, expert=st.sampled_from([1, 2, 4, 8]))
def test_every_device_has_its_part_of_experts_and_each_part_as_many_copies(
    tensor: int, context: int, data: int, expert: int
) -> None:
    whole = block_parameters(MIXTURE, "moe", Layouts.one()).routed
    for layout in layouts_of(tensor, context=context, data=data, expert=expert):
        if tensor * context * data % int((layout.expert * layout.expert_tensor)[0]):
            continue
        axes = {name: np.prod([degree for degree, _ in one], axis=0)[0] for name, one in axes_of(layout).items()}
        assert axes["expert"] == expert
        assert axes["expert"] * axes["expert_tensor"] * axes["expert_replicas"] == tensor * context * data
        held = block_parameters(MIXTURE, "moe", layout).routed
        assert held * tensor * context * data == pytest.approx(whole * axes["expert_replicas"], rel=1e-3)


@given(expert=st.sampled_from([1, 2, 4, 8]), tensor=st.sampled_from([2, 4]))
def test_whole_experts_multiply_as_much_and_gather_nothing(expert: int, tensor: int) -> None:
    whole, *_, cut = layouts_of(tensor, data=8, expert=expert, microbatch=2)

    def seconds(layout: Layouts) -> Any:
        return interval_times(figures_of(WIDE), layout)["compute"].sum(axis=0)

    # The same FLOP, by wider matrices and fewer tokens, or the other way round.
    assert 0.6 * seconds(cut) < seconds(whole) < 1.4 * seconds(cut)
    sent = {one.name + one.operation: one for one in layer_communication(WIDE, whole, "moe")}
    gathered = {one.name + one.operation: one for one in layer_communication(WIDE, cut, "moe")}
    assert sent["expertsall_to_all"].size_bytes == gathered["expertsall_to_all"].size_bytes
    assert gathered["expert_tensorgather"].size_bytes == tensor * sent["expert_tensorgather"].size_bytes


@given(expert=st.sampled_from([1, 2, 8]), zero=st.sampled_from([0, 1, 2, 3]))
def test_whole_experts_take_as_much_memory_where_all_states_are_shared_out(expert: int, zero: int) -> None:
    whole, cut = (
        memory_bytes(
            WIDE,
            Layouts.one(tensor=4, sequence_parallel=True, data=8, expert=spread, expert_tensor=each, zero=zero),
            precision=PRECISIONS["megatron"],
        )
        for spread, each in ((expert, 1), (expert, 4))
    )
    for least, name in ((1, "optimizer"), (2, "gradients"), (3, "weights")):
        if zero >= least:
            assert whole[name] == pytest.approx(cut[name], rel=1e-3)
        else:
            assert whole[name] > cut[name]


def test_an_expert_degree_may_span_tensor_ranks_where_experts_are_whole() -> None:
    devices = {"count": 2, "device": "a100-sxm4-80gb", "devices": 8, "inside": "nvlink-3", "network": "400 Gbit/s"}
    many = {**MOE, "experts": {"count": 16, "top_k": 2, "size": 1024}}
    problem = question(many, cluster={"machines": [devices]})
    layout = {"tensor": 2, "data": 8, "expert": 16, "sequence_parallel": True, "microbatch": 1}
    with pytest.raises(SpecError, match="the expert degree 16, of 2 devices each, does not divide"):
        given_layout(problem, **layout, expert_tensor=2)
    found = given_layout(problem, **layout, expert_tensor=1)
    assert given_layout(problem, **layout) == found  # left out: whole, as cut ones do not spread
    assert hybrid.predict(problem, found).iteration_time_s > 0
    network = problem.dnn.transformer
    assert isinstance(network, Transformer)
    text = " ".join(options(network, found))
    assert "--expert-model-parallel-size 16" in text
    assert "--expert-tensor-parallel-size 1" in text


def test_a_layout_that_leaves_it_out_cuts_experts_as_all_else_and_no_network_without_them() -> None:
    of_experts = given_layout(question(MOE), tensor=2, data=2, sequence_parallel=True, microbatch=1)
    dense = given_layout(question(), tensor=2, data=2, microbatch=1)
    titan = question(MOE, calibration={"program": "torchtitan"})
    whole = given_layout(titan, tensor=2, data=2, sequence_parallel=True, microbatch=1)
    assert (of_experts.expert_tensor, dense.expert_tensor, whole.expert_tensor) == (2, 1, 1)
    with pytest.raises(SpecError, match="a tensor degree of experts of 2 is asked for"):
        given_layout(question(), tensor=2, data=2, expert_tensor=2, microbatch=1)
    with pytest.raises(SpecError, match="experts 2 does not divide the tensor degree 1"):
        given_layout(question(MOE), tensor=1, data=4, expert_tensor=2, microbatch=1)


def test_a_plan_takes_whole_experts_where_they_are_quicker_and_as_it_is_told() -> None:
    best = plan(question(MOE, fix={"tensor_parallel_size": 2}), Search())
    assert isinstance(best.configuration, HybridConfiguration)
    found = {}
    for number in (1, 2):
        pins = {"tensor_parallel_size": 2, "expert_tensor_parallel_size": number}
        one = plan(question(MOE, fix=pins), Search())
        assert isinstance(one.configuration, HybridConfiguration)
        assert one.configuration.expert_tensor == number
        found[number] = one.prediction.iteration_time_s
    assert best.prediction.iteration_time_s == pytest.approx(min(found.values()))


def test_wide_and_deep_layouts_of_many_experts_have_finite_seconds() -> None:
    many = replace(WIDE, experts=replace(WIDE.experts, num_experts=64, top_k=8))  # type: ignore[type-var]  # it has experts
    layout = Layouts.one(
        tensor=2, sequence_parallel=True, pipeline=4, data=32, expert=64, expert_tensor=1, num_microbatches=8, zero=1
    )
    assert np.isfinite(iteration_times(figures_of(many), layout)["total"]).all()


# -- exchange beside another micro-batch's computing -------------------------------------------------------------------


@given(num_microbatches=st.sampled_from([1, 2, 8, 64]), expert=st.sampled_from([2, 4, 8]))
def test_what_is_hidden_never_makes_a_step_longer_and_one_micro_batch_alone_hides_nothing(
    num_microbatches: int, expert: int
) -> None:
    spread = (replace(TIERS[0], size=1), TIERS[1])  # inside a machine nothing is hidden
    figures = replace(figures_of(WIDE, tiers=spread), software=replace(SOFTWARE, sends_once=True))
    for degrees in ({"data": 8}, {"data": 8, "pipeline": 2, "interleave": 2}):
        if num_microbatches % degrees.get("pipeline", 1):
            continue
        off, on = (
            iteration_times(
                figures,
                Layouts.one(**degrees, expert=expert, num_microbatches=num_microbatches, overlap_expert=flag),
            )
            for flag in (False, True)
        )
        assert on["expert"] < off["expert"]
        assert on["compute"] == off["compute"]
        if num_microbatches <= degrees.get("pipeline", 1):
            assert on["total"] == pytest.approx(off["total"], rel=1e-3)
        else:
            assert on["total"] < off["total"]
        assert on["total"] == pytest.approx(sum(on[name] for name in PARTS))


def test_it_is_on_where_it_can_be_and_refused_where_not() -> None:
    batch: dict[str, Any] = {"data": 4, "expert": 2, "microbatch": 1}
    assert given_layout(question(MOE), **batch).overlap_expert
    assert not given_layout(question(MOE), data=4, microbatch=1).overlap_expert
    assert not given_layout(question(MOE), **batch, recompute="full").overlap_expert
    assert not given_layout(question(MOE), pipeline=2, data=2, expert=2, microbatch=1).overlap_expert
    assert given_layout(question(MOE), pipeline=2, interleave=2, data=2, expert=2, microbatch=1).overlap_expert
    with pytest.raises(SpecError, match="not recomputed in full"):
        given_layout(question(MOE), **batch, recompute="full", overlap_expert=True)
    with pytest.raises(SpecError, match="several chunks each: 1 is too few"):
        given_layout(question(MOE), pipeline=2, data=2, expert=2, microbatch=1, overlap_expert=True)
    with pytest.raises(SpecError, match="only with 1F1B"):
        given_layout(question(MOE), **batch, schedule="gpipe", overlap_expert=True)
    with pytest.raises(SpecError, match="only with ZeRO 0 and 1"):
        given_layout(question(MOE), **batch, zero=2, overlap_expert=True)
    for network in (question(MOE), question()):
        with pytest.raises(SpecError, match="only where experts are spread: the expert degree is 1"):
            given_layout(network, data=4, microbatch=1, overlap_expert=True)
    with pytest.raises(SpecError, match="torchtitan has no overlap_expert"):
        given_layout(question(MOE, calibration={"program": "torchtitan"}), **batch, overlap_expert=True)


def test_a_plan_takes_it_or_leaves_it_as_memory_and_pins_say() -> None:
    """Four of eight experts on as many devices exchange enough for it to pay."""
    network = {**MOE, "experts": {**MOE["experts"], "count": 8, "top_k": 4}}
    pins = {"tensor_parallel_size": 1, "expert_parallel_size": 8, "pipeline_parallel_size": 1}
    asked = partial(question, network, batch=16)
    found = {flag: plan(asked(fix={**pins, "overlap_expert": flag}), Search()) for flag in (False, True)}
    best = plan(asked(fix=pins), Search())
    times = {flag: one.prediction.iteration_time_s for flag, one in found.items()}
    assert times[True] < times[False]
    assert best.prediction.iteration_time_s == pytest.approx(times[True])
    with pytest.raises(InfeasibleError):
        plan(asked(fix={**pins, "overlap_expert": True, "recompute": "full"}), Search())
