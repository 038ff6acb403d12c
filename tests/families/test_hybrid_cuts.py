"""Cuts of the layers: all of them where they are few, near ones where they are many; and what is said of the rest."""

from itertools import combinations, pairwise
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hybrid_questions import given_layout
from hypothesis import example, given, settings
from hypothesis import strategies as st

import planner
from planner.decisions import parted_depths
from planner.errors import SpecError
from planner.exporters import degrees_of, megatron
from planner.exporters.export import Job
from planner.families.hybrid import family as hybrid
from planner.families.hybrid.configuration import HybridConfiguration, PipelineStage
from planner.families.hybrid.cost import HybridCost, Placement, all_cuts, costs_of, cut_columns, has_few_cuts
from planner.families.hybrid.cut_bounds import CutBounds, slowest_stage_s
from planner.families.hybrid.found import configuration_of_point
from planner.families.hybrid.grid_search import OTHER_CUTS, all_cuts_bound_s, improved
from planner.families.hybrid.search import plan
from planner.models.transformer_interval import LAYER_PARTS
from planner.problem import Problem
from planner.search import Search
from planner.solution import Status

SIZES = {"hidden": 1536, "heads": 12, "sequence_length": 4096, "gated": True, "tied_embeddings": False}
SLOW = {"device": "a100-sxm4-80gb", "inside": "pcie-3-x16", "network": "10 Gbit/s", "latency": "5 us"}
NO_PINS: dict[str, Any] = {}


def question(
    layers: int, batch: int, *, count: int, devices: int, vocabulary: int = 128256, depths: int = 0,
    fix: dict[str, Any] = NO_PINS,
) -> Problem:  # fmt: skip
    """A transformer with a long head on machines that are alike and ill linked; the last layers predict further."""
    network = {**SIZES, "layers": layers - depths, "vocabulary": vocabulary, "mtp_layers": depths}
    dnn = {"transformer": network, "global_batch": batch, "dtype": "bf16", "optimizer": "adam"}
    machines = [{**SLOW, "count": count, "devices": devices}]
    return planner.load(
        {"dnn": dnn, "cluster": {"machines": machines}, "families": ["hybrid"], "fix": dict(fix),
         "objective": "iteration_time"}
    )  # fmt: skip


def with_cut(chosen: HybridConfiguration, layers: tuple[int, ...]) -> HybridConfiguration:
    """The same layout in 1F1B with another cut."""
    codes = {**chosen.codes(), "interleave": 1, "schedule": 1}
    stages = [PipelineStage(layers=one) for one in layers]
    return HybridConfiguration.of(codes, batch=chosen.global_batch_size, stages=stages, replicas=[])


def cuts(layers: int, stages: int) -> list[tuple[int, ...]]:
    """All cuts, written down in the plainest way."""
    return [
        tuple(end - start for start, end in pairwise((0, *ends, layers)))
        for ends in combinations(range(1, layers), stages - 1)
    ]


@given(st.integers(1, 9), st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(0, 99), st.booleans())
@example(2, [2], 0, True)  # each sends once
@settings(deadline=None)
def test_no_cut_has_a_quicker_slowest_stage_than_whole_layers_let_it_be(
    layers: int, parts: list[int], seed: int, sends: bool
) -> None:
    rng, stages = np.random.default_rng(seed), sum(parts)
    layer, sent = rng.uniform(0.2, 2.0, len(parts)), rng.uniform(0.0, 0.5, len(parts)) * sends
    cuts = all_cuts(max(layers, stages), stages)
    ends = [(0, number - 1) for number in parts]
    each = [
        layer[group] * cuts[place] + sent[group] * sum(place_in != end for end in ends[group])
        for place, (group, place_in) in enumerate((k, i) for k, number in enumerate(parts) for i in range(number))
    ]
    best_s = np.max(each, axis=0).min()
    least_s = slowest_stage_s(max(layers, stages), layer[:, None], np.array(parts)[:, None], sent[:, None])[0]
    assert least_s <= best_s * (1 + 1e-9)
    if not sends:  # the least there is, but for what halving leaves
        assert best_s - least_s <= layer.max() / 100


@given(st.integers(1, 9), st.integers(1, 9))
def test_all_cuts_are_all_cuts(layers: int, stages: int) -> None:
    if stages > layers:
        assert not has_few_cuts(layers, stages)
        return
    found = [tuple(one) for one in all_cuts(layers, stages).T.tolist()]
    assert sorted(found) == sorted(cuts(layers, stages))
    assert len(found) == comb(layers - 1, stages - 1)


def test_fewer_than_three_quarters_of_the_devices_may_have_unlike_stages() -> None:
    found = plan(question(10, 8, count=2, devices=3), Search())
    pinned = plan(question(10, 8, count=2, devices=3, fix={"num_devices": 3}), Search())
    assert found.prediction.details["num_devices"] == 3
    assert found.objective == pytest.approx(pinned.objective, rel=1e-12)
    assert found.status is Status.OPTIMAL


QUESTIONS = st.builds(
    question,
    st.sampled_from([5, 6, 7]),
    st.sampled_from([2, 4, 6]),
    count=st.sampled_from([1, 2]),
    devices=st.sampled_from([2, 3]),
    vocabulary=st.sampled_from([32000, 128256]),
    depths=st.sampled_from([0, 2, 3]),
    fix=st.sampled_from([NO_PINS, {"microbatch_size": 1}]),
)


@given(QUESTIONS)
@settings(max_examples=5, deadline=None)
def test_no_cut_of_a_short_network_is_faster_than_the_plan(problem: Problem) -> None:
    found = plan(problem, Search(num_alternatives=2))
    assert found.status is Status.OPTIMAL
    chosen = found.configuration
    assert isinstance(chosen, HybridConfiguration)
    network = costs_of(problem)[0].transformer
    layers, depths = network.num_layers, network.num_mtp_layers
    assert parted_depths(depths, chosen.chunk_layers(layers), chosen.pipeline, is_folded=chosen.is_folded) is None
    for stages in range(2, min(layers, problem.cluster.num_devices) + 1):
        for cut in (one for one in cuts(layers, stages) if one[-1] >= depths):
            codes = {**chosen.codes(), "tensor": 1, "context": 1, "data": 1, "pipeline": stages, "microbatch": 1}
            codes |= {"sequence_parallel": 0, "overlap_tensor": 0, "overlap_data": 0, "zero": 0, "order": 0}
            other = HybridConfiguration.of(codes, batch=chosen.global_batch_size, machines=None)
            told = hybrid.predict(problem, with_cut(other, cut))
            if told.memory_bytes["total"] <= told.memory_bytes["limit"]:
                # A cut into equal stages counts as even, whose closed form may be 0.3 % away.
                assert told.iteration_time_s >= found.objective * (1 - (4e-3 if len(set(cut)) == 1 else 1e-9))


@pytest.mark.parametrize("which", range(4))
def test_a_cut_that_just_fits_with_layers_without_experts_first_is_found(which: int) -> None:
    pins = {"num_stages": 3, "tensor_parallel_size": 1, "context_parallel_size": 1, "recompute": "none",
            "chunks_per_device": 1, "schedule": "1f1b"}  # fmt: skip
    base = question(7, 8, count=1, devices=3, fix=pins, vocabulary=32000)
    experts = {"count": 4, "top_k": 2, "size": 4096, "dense_first": 2}
    dnn = {**base.resolved["dnn"], "transformer": {**SIZES, "layers": 7, "vocabulary": 32000, "experts": experts}}
    calibration = {"memory_reserve": "0 B"}

    def limited(memory: float | None) -> Problem:
        constraints = {} if memory is None else {"constraints": {"memory_per_device": f"{memory:.0f} B"}}
        spec = {"dnn": dnn, "cluster": base.resolved["cluster"], "families": ["hybrid"], "fix": pins,
                "objective": "iteration_time", "calibration": calibration}  # fmt: skip
        return planner.load({**spec, **constraints})

    problem = limited(None)
    chosen = plan(problem, Search()).configuration
    assert isinstance(chosen, HybridConfiguration)
    rows = [(hybrid.predict(problem, with_cut(chosen, cut)), cut) for cut in cuts(7, 3)]
    rows.sort(key=lambda row: row[0].iteration_time_s)
    told, _ = rows[which]
    memory = told.memory_bytes["total"] + 1
    best_s = min(one.iteration_time_s for one, _ in rows if one.memory_bytes["total"] <= memory)
    assert plan(limited(memory), Search()).objective <= best_s * (1 + 1e-9)


@pytest.mark.parametrize(("layers", "depths", "stages"), [(7, 2, 3), (8, 3, 4), (43, 3, 8)])
def test_depths_of_multi_token_prediction_run_in_the_last_stage_as_they_are_launched(
    layers: int, depths: int, stages: int
) -> None:
    """Beside a long head the quickest cuts, of few or of many, would leave one of them in the last stage."""
    pins = {"num_stages": stages, "chunks_per_device": 1}
    problem = question(layers, 16, count=1, devices=stages, depths=depths, vocabulary=200_000, fix=pins)
    found = plan(problem, Search(has_reasons=False))
    chosen = found.configuration
    assert isinstance(chosen, HybridConfiguration)
    cut = chosen.chunk_layers(layers)
    assert cut[-1] == depths
    path = Path("launch.sh")
    read = degrees_of(path, megatron.export(Job(problem=problem, plan=found)).files[path.name])
    assert read is not None and read[1]["layers_per_stage"] == [*cut]
    parted = with_cut(chosen, (*cut[:-2], cut[-2] + 1, depths - 1)).to_document()
    with pytest.raises(SpecError, match=rf"last stage holds {depths - 1} layers, and the last {depths} of multi-token"):
        given_layout(problem, **parted)
    with pytest.raises(SpecError, match=f"Write {depths} or more in the last stage"):
        planner.load({**problem.resolved, "fix": {"layers_per_stage": [*cut[:-2], cut[-2] + 1, depths - 1]}})


def test_replicas_and_stages_of_several_kinds_keep_depths_of_multi_token_prediction_together() -> None:
    kinds = [{**SLOW, "count": 1, "devices": 4, "name": "old"},
             {**SLOW, "count": 1, "devices": 4, "name": "new", "device": "h100-sxm"}]  # fmt: skip
    for pins in ({"num_stages": 8}, {"num_stages": 4, "data_parallel_size": 2}):
        base = question(11, 16, count=1, devices=4, depths=3, vocabulary=200_000)
        fix = {**pins, "num_devices": 8, "tensor_parallel_size": 1}
        problem = planner.load({**base.resolved, "cluster": {"machines": kinds}, "fix": fix})
        chosen = plan(problem, Search(has_reasons=False)).configuration
        assert isinstance(chosen, HybridConfiguration)
        assert len(chosen.groups) == 2 and chosen.chunk_layers(11)[-1] == 3


def pipeline(problem: Problem, stages: int) -> tuple[HybridCost, dict[str, int]]:
    """A plain pipeline over some stages as a point of the search."""
    mixed = HybridCost((costs_of(problem)[0],), Placement.STAGES)
    names = CutBounds(mixed).space.axes
    point = dict.fromkeys(names, 0) | {
        "tensor": 1,
        "context": 1,
        "data": 1,
        "expert": 1,
        "expert_tensor": 1,
        "microbatch": 1,
    }
    return mixed, {**point, "stages_0": stages}


def seconds_of(mixed: HybridCost, point: dict[str, int], layers: Any) -> float:
    columns = {name: np.array([value]) for name, value in point.items()}
    return float(mixed.seconds({**columns, **cut_columns(np.array(layers)[:, None])})[0])


def with_experts(problem: Problem, **experts: int) -> Problem:
    """The same question of a network with experts that take much longer than what they stand in for, in most layers."""
    sizes = {**SIZES, "layers": problem.resolved["dnn"]["transformer"]["layers"], "vocabulary": 32000}
    dnn = {**problem.resolved["dnn"], "transformer": {
        **sizes, "feed_forward": 1536, "experts": {"count": 4, "top_k": 4, "size": 6144, **experts}}}  # fmt: skip
    return planner.load({**problem.resolved, "dnn": dnn})


@pytest.mark.parametrize("stages", [3, 4])
@pytest.mark.parametrize("experts", [None, {"dense_first": 3}, {"every": 2}])
def test_the_cut_of_a_setting_with_few_is_the_best_of_all(stages: int, experts: dict[str, int] | None) -> None:
    problem = question(9, 4, count=1, devices=4)
    mixed, point = pipeline(problem if experts is None else with_experts(problem, **experts), stages)
    columns = {name: np.array([value]) for name, value in point.items()}
    of_all = [seconds_of(mixed, point, one) for one in cuts(9, stages)]
    assert mixed.seconds(columns)[0] == pytest.approx(min(of_all), rel=1e-12)
    assert mixed.bound_s(columns)[0] <= min(of_all) * (1 + 1e-12)
    chosen = configuration_of_point(mixed, point)
    assert not chosen.is_even
    assert seconds_of(mixed, point, [one.layers for one in chosen.stages]) == min(of_all)


@pytest.mark.parametrize("experts", [{"dense_first": 2}, {"dense_first": 3}, {"dense_first": 5}])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_of_layers_of_both_kinds_no_cut_has_a_quicker_slowest_stage(stages: int, experts: dict[str, int]) -> None:
    mixed, point = pipeline(with_experts(question(11, 4, count=1, devices=4), **experts), stages)
    columns = {name: np.array([value]) for name, value in point.items()}

    def slowest_s(layers: Any) -> float:
        step = mixed.step(columns, np.array(layers)[:, None])
        return float(np.sum(step.passes_s(step.classes[0]), axis=0).max())

    found = mixed._cut_balanced(columns).step.layers[:, 0]
    tried = {cut: slowest_s(cut) for cut in cuts(11, stages)}
    assert slowest_s(found) == pytest.approx(min(tried.values()))


def test_a_stage_takes_what_its_own_layers_take() -> None:
    layers = (14, 16, 16, 15)  # of DeepSeek-V3: the first stage has its three layers without experts
    dnn = {"zoo": "deepseek-v3", "global_batch": 1024, "dtype": "bf16", "optimizer": "adam"}
    machines = [{"count": 64, "devices": 4, "device": "gb200", "inside": "nvlink-5", "network": "400 Gbit/s"}]
    block = {"pipeline": 4, "data": 64, "expert": 64, "microbatch": 1, "stages": [{"layers": one} for one in layers]}
    spec = {"dnn": dnn, "cluster": {"machines": machines}, "families": ["hybrid"], "objective": "iteration_time"}
    problem = planner.load({**spec, "configuration": {"hybrid": block}})
    assert problem.configuration is not None
    chosen = hybrid.configuration_of(problem, problem.configuration[1])
    rows = hybrid.predict(problem, chosen).details["stages"]
    cost = costs_of(problem)[0]
    interval = cost.interval(cost.layouts({name: np.array([code]) for name, code in chosen.codes().items()}))
    of_kind = {
        kind: sum(float(interval[name][index, 0]) for name in LAYER_PARTS) / count
        for index, (kind, count) in enumerate(cost.transformer.kind_counts.items())
    }
    assert of_kind["dense"] < 0.95 * of_kind["moe"]
    taken = [of_kind[kind] for kind in cost.transformer.layer_kinds]
    expected = [sum(taken[end - size : end]) for size, end in zip(layers, np.cumsum(layers).tolist(), strict=True)]
    expected[0] += float(interval["embedding"][0])
    expected[-1] += float(interval["head"][0])
    assert [row["forward_s"] + row["backward_s"] for row in rows] == pytest.approx(expected)


def test_moving_layers_ends_where_no_neighbour_is_faster() -> None:
    mixed, point = pipeline(question(16, 6, count=2, devices=4), 8)
    first = np.full(8, 2)
    better_s, cut, asked = improved(point, first, 6, mixed.bound_s, mixed.seconds, Search())
    assert better_s == seconds_of(mixed, point, cut)
    assert cut.sum() == 16 and cut.min() >= 1 and asked > 1
    for one in range(8):
        for other in range(8):
            moved = cut.copy()
            moved[one] -= 1
            moved[other] += 1
            if moved.min() >= 1 and one != other:
                assert seconds_of(mixed, point, moved) >= better_s * (1 - 1e-9)


def test_a_long_network_with_few_micro_batches_gets_a_better_cut_than_that_of_the_least_slowest_stage() -> None:
    problem = question(61, 8, count=4, devices=4, fix={"num_stages": 12, "tensor_parallel_size": 1})
    found = plan(problem, Search())
    chosen = found.configuration
    assert isinstance(chosen, HybridConfiguration)
    assert not chosen.is_even and not has_few_cuts(61, 12)
    mixed, point = pipeline(problem, 12)
    point |= {name: code for name, code in chosen.codes().items() if name in point}
    columns = {name: np.array([value]) for name, value in point.items()}
    assert found.objective < float(mixed.seconds(columns)[0]) * (1 - 1e-6)
    assert hybrid.predict(problem, chosen).iteration_time_s == pytest.approx(found.objective, rel=1e-12)
    assert found.beyond[OTHER_CUTS] < found.objective
    assert any(line.startswith(OTHER_CUTS) and "at most" in line for line in found.explanation)


@given(st.integers(0, 999))
@settings(max_examples=10, deadline=None)
def test_no_cut_is_faster_than_the_bound_over_all_cuts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stages = 8
    problem = question(24, 8, count=2, devices=4, fix={"num_stages": stages, "tensor_parallel_size": 1})
    mixed, point = pipeline(problem, stages)
    least_s = all_cuts_bound_s(mixed, np.inf, Search())
    ends = np.sort(rng.choice(np.arange(1, 24), stages - 1, replace=False))
    assert least_s <= seconds_of(mixed, point, np.diff(ends, prepend=0, append=24))


def test_where_no_cut_can_be_faster_the_plan_says_so() -> None:
    found = plan(question(10, 8, count=2, devices=3), Search())
    assert any("proven not to be faster" in line for line in found.explanation)


STAGES = [{"layers": 4}, {"layers": 6}]
TWO = [{"machines": "old", "data": 2, "num_microbatches": 1}, {"machines": "new", "data": 2, "num_microbatches": 1}]


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"tensor": 5, "pipeline": 2, "stages": STAGES}, "nearest values of tensor that can be: 4"),
        ({"data": 3, "pipeline": 2, "stages": STAGES}, "nearest values of data that can be: 2 or 4"),
        ({"data": 2, "microbatch": 3, "pipeline": 2, "stages": STAGES}, "nearest values of microbatch that can be: 2 or 4"),
        ({"data": 8, "pipeline": 2, "stages": STAGES}, "nearest values of data that can be: 4"),
        ({"context": 3, "pipeline": 2, "stages": STAGES}, "nearest values of context that can be: 2 or 4"),
        ({"expert": 2, "pipeline": 2, "stages": STAGES}, "nearest values of expert that can be: 1"),
        ({"sequence_parallel": True, "pipeline": 2, "stages": STAGES}, "Write sequence_parallel: false"),
        ({"pipeline": 2, "stages": [{"layers": 4}, {"layers": 4}]}, "Write layers: 6 in the last stage"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_nearest_values(block: dict[str, Any], words: str) -> None:
    problem = question(10, 8, count=2, devices=4)
    with pytest.raises(SpecError, match=words):
        refused(problem, block)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"data": 4, "replicas": TWO}, "Write num_microbatches: 3 on new"),
        ({"tensor": 4, "data": 4, "microbatch": 2, "replicas": TWO}, "nearest values of tensor that can be: 2"),
    ],
)
def test_a_refusal_of_replicas_names_what_would_do(block: dict[str, Any], words: str) -> None:
    machines = [{**SLOW, "name": name, "count": 1, "devices": 4} for name in ("old", "new")]
    machines[1]["device"] = "h100-sxm"
    problem = question(10, 8, count=1, devices=4)
    with pytest.raises(SpecError, match=words):
        refused(planner.load({**problem.resolved, "cluster": {"machines": machines}}), block)


def refused(problem: Problem, block: dict[str, Any]) -> None:
    loaded = planner.load({**problem.resolved, "configuration": {"hybrid": block}})
    assert loaded.configuration is not None
    hybrid.configuration_of(loaded, loaded.configuration[1])
