"""Layers cut into chunks otherwise than evenly: bounded, and moved while that helps."""

from dataclasses import replace
from itertools import combinations, product
from math import inf
from typing import Any

import numpy as np
import pytest
from hybrid_questions import MOE, RATES, TINY, question
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from planner.decisions import LAYOUT
from planner.families.hybrid import chunks
from planner.families.hybrid.bounds import fullest_s
from planner.families.hybrid.chunks import (
    OTHER_CHUNKS,
    ChunkBounds,
    NearBounds,
    _Cuts,
    _evenly,
    _starts,
    all_chunks_bound_s,
    dealt_s,
)
from planner.families.hybrid.configuration import COARSE, HybridConfiguration
from planner.families.hybrid.cost import costs_of
from planner.families.hybrid.even_bounds import EvenBounds
from planner.families.hybrid.layer_table import LeastSeconds
from planner.families.hybrid.search import plan
from planner.families.hybrid.space import Space
from planner.models.layouts import Ints, Recompute, Schedule
from planner.models.transformer_time import chunk_passes_s
from planner.question.build import load
from planner.search import Search
from planner.solution import Status
from planner.solvers.grid import Grid, Level
from planner.trained import Trained
from planner.zoo.transformers import dnn_of

_ENDS = ("embedding_s", "embedding_forward_s", "head_s", "head_forward_s")
OF_FOUR_KINDS: dict[str, Any] = {  # some of which take next to nothing, in memory or in time
    **MOE,
    "pattern": "M*-EM-M*-EM",
    "mamba": {"heads": 12, "head_size": 64, "state": 64, "groups": 6},
}


def on_h100(network: str, machines: int, **more: Any) -> dict[str, Any]:
    """A network of the zoo with 64 samples on machines of eight H100."""
    machine = {
        "count": machines,
        "device": "h100-sxm",
        "devices": 8,
        "latency": "5 us",
        "network": "400 Gbit/s",
        **more,
    }
    return {
        "dnn": {"zoo": network, "dtype": "bf16", "global_batch": 64, "optimizer": "adam"},
        "cluster": {"machines": [machine]},
        "objective": "iteration_time",
        "families": ["hybrid"],
    }


@settings(max_examples=6, deadline=None)
@example(seed=0, kind=MOE, memory="3.5 GiB", program="megatron-deepspeed")  # whose ZeRO 1 has buffers of 9 GB
@given(
    program=st.sampled_from(["megatron-core", "megatron-deepspeed"]),
    seed=st.integers(0, 9_999),
    kind=st.sampled_from([TINY, MOE, OF_FOUR_KINDS]),
    memory=st.sampled_from(["80 GiB", "4 GiB", "3.5 GiB", "3.3 GiB"]),
)
def test_no_cut_into_chunks_is_faster_than_its_bounds_and_one_that_fits_has_room(
    program: str, seed: int, kind: dict[str, Any], memory: str
) -> None:
    rng = np.random.default_rng(seed)
    network = {**kind, "layers": 11, "vocabulary": 32000}
    problem = question(
        network,
        batch=16,
        machines=2,
        devices=4,
        memory=memory,
        rates={**RATES, "software": {program: RATES["software"]["megatron-core"]}},
        calibration={"memory_reserve": "0 B", "program": program},
    )
    (cost,) = costs_of(problem)
    bounds, space = ChunkBounds(cost.even), Space.of(cost.even)
    if max(space.axes["interleave"].values) == 1:
        return
    points = points_of(space, rng)
    least_s = all_chunks_bound_s(cost, np.inf, Search())
    for at in range(len(points["tensor"])):
        layout = cost.layouts({name: column[at : at + 1] for name, column in points.items()})
        chunks = int(layout.pipeline[0] * layout.interleave[0])
        if chunks > 11:
            continue
        ends = np.sort(rng.choice(np.arange(1, 11), chunks - 1, replace=False))
        cut = np.diff(ends, prepend=0, append=11)
        if cost.memory(layout, cut.tolist())["total"][0] > cost.memory_limit_bytes:
            continue
        seconds = float(cost.parts(layout, cut)["total"][0])
        node = {name: points[name][at : at + 1] for name in (*COARSE, "microbatch")}
        coarse = {name: column for name, column in node.items() if name != "microbatch"}
        assert least_s <= seconds * (1 + 1e-9)
        assert bounds.seconds(node)[0] <= seconds * (1 + 1e-9)
        assert bounds.fits(coarse)[0] == 0
        first = {name: coarse[name] for name in bounds.space.levels[0]}
        of_first = [(bound, first) for bound in (bounds.pace_s, bounds.linked_pace_s)]
        for bound, below in (*of_first, (bounds.linked_pace_s, coarse), (bounds.layers_s, node)):
            assert bound(below)[0] <= seconds * (1 + 1e-9)


@pytest.mark.parametrize("number", [6, 12])
def test_forwards_pass_the_devices_before_the_busiest_one(number: int) -> None:
    """The bound of six devices is neither above a layer a chunk nor so low as without the devices' first layers."""
    network = {**TINY, "layers": 12, "vocabulary": 64, "sequence_length": 4096}
    (cost,) = costs_of(question(network, machines=1, devices=6, batch=number))
    degrees = {**dict.fromkeys((*COARSE, "microbatch"), 1), "pipeline": 6, "interleave": 2, "schedule": 1}
    layout = cost.layouts({name: np.array([degrees.get(name, 0)]) for name in LAYOUT})
    cut = np.ones(12, dtype=np.int64)
    seconds = float(cost.parts(layout, cut)["total"][0])
    nodes = {name: np.array([degrees[name]]) for name in (*COARSE, "microbatch")}
    least_s = float(ChunkBounds(cost.even).seconds(nodes)[0])
    passes = chunk_passes_s(cost.transformer, cost.interval(layout), Schedule.ONE_F_ONE_B, cut[:, None])
    assert 1.07 * number * float(sum(one.sum() for one in passes)) / 6 < least_s <= seconds * (1 + 1e-9)


@pytest.mark.parametrize("schedule", ["interleaved", "dualpipe_v"])
def test_of_any_size_no_more_micro_batches_are_handed_on_than_there_are_large_ones(schedule: str) -> None:
    """Of short samples, 240 in each of four micro-batches: to hand on every one would take longer than to compute."""
    network = {**TINY, "layers": 4, "vocabulary": 64, "sequence_length": 64}
    (cost,) = costs_of(question(network, machines=1, devices=2, batch=960, fix={"schedule": schedule}))
    codes = {"interleaved": Schedule.ONE_F_ONE_B, "dualpipe_v": Schedule.DUALPIPE_V}
    given = {**dict.fromkeys(COARSE, 1), "pipeline": 2, "interleave": 2, "microbatch": 240, "schedule": codes[schedule]}
    layout = cost.layouts({name: np.array([given.get(name, 0)]) for name in LAYOUT})
    seconds = float(cost.parts(layout, np.ones(4, dtype=np.int64))["total"][0])
    bounds, degrees = ChunkBounds(cost.even), {name: np.array([given[name]]) for name in COARSE}
    for bound in (bounds.pace_s, bounds.linked_pace_s):
        assert 0 < bound(degrees)[0] <= seconds * (1 + 1e-9)


@pytest.mark.parametrize(("vocabulary", "stages"), [(16_000, 2), (16_000, 3), (32_000, 2)])
def test_the_best_of_all_cuts_into_chunks_is_little_slower_than_its_bound(vocabulary: int, stages: int) -> None:
    """With a head that takes about as long as a layer, and whole layers to deal out beside it."""
    network, number = {**TINY, "layers": 6, "vocabulary": vocabulary}, 12
    (cost,) = costs_of(question(network, machines=1, devices=stages, batch=number))
    degrees = {**dict.fromkeys((*COARSE, "microbatch"), 1), "pipeline": stages, "schedule": 1}
    best_s = np.inf
    for each in range(2, 8 // stages + 1):
        columns = {name: np.array([{**degrees, "interleave": each}.get(name, 0)]) for name in LAYOUT}
        cuts = np.array([np.diff((0, *ends, 8)) for ends in combinations(range(1, 8), stages * each - 1)]).T
        cuts[[0, -1]] -= 1  # which may have embedding or head alone
        repeated = cost.layouts({name: np.repeat(column, cuts.shape[1]) for name, column in columns.items()})
        best_s = min(best_s, cost.parts(repeated, cuts)["total"].min())
    least_s = ChunkBounds(cost.even).seconds({name: np.array([degrees[name]]) for name in (*COARSE, "microbatch")})[0]
    assert 0.92 * best_s < least_s <= best_s * (1 + 1e-9)


@pytest.mark.parametrize("kind", [TINY, MOE, OF_FOUR_KINDS])
@pytest.mark.parametrize(("stages", "chunks"), [(2, 2), (3, 2), (2, 3)])
def test_in_memory_that_a_cut_just_fits_no_more_layers_are_computed_again_than_it_does(
    kind: dict[str, Any], stages: int, chunks: int
) -> None:
    """All cuts into chunks that have a layer each; and the bound is close: of some cuts it is their number."""
    number = 7
    network = {**kind, "layers": number, **({"pattern": kind["pattern"][:number]} if "pattern" in kind else {})}
    (cost,) = costs_of(question(network, machines=1, devices=3, batch=12))
    memory, missed = ChunkBounds(cost.even)._memory, []
    degrees = {**dict.fromkeys((*COARSE, "microbatch"), 1), "pipeline": stages, "interleave": chunks, "schedule": 1}
    for again, each in ((Recompute.NONE, 0), (Recompute.FULL, 1), (Recompute.FULL, 2), (Recompute.FULL, number)):
        codes = {**degrees, "recompute": int(again), "recompute_layers": each}
        layout, plain = (
            cost.layouts({name: np.array([one.get(name, 0)]) for name in LAYOUT}) for one in (codes, degrees)
        )
        for ends in combinations(range(1, number), stages * chunks - 1):
            cut = np.diff([0, *ends, number])
            on_device = cut.reshape(chunks, stages).sum(axis=0)
            few, many = memory.least_recomputed(plain, float(cost.memory(layout, cut.tolist())["total"][0]))[:, 0]
            computed = np.minimum(on_device, each * chunks).sum()
            missed.append(computed - (few if on_device.max() <= -(-number // stages) else many))
    assert min(missed) >= -1e-6
    assert min(missed) < 1e-6


@pytest.mark.parametrize(("layers", "stages", "chunks"), [(12, 3, 2), (12, 4, 3), (8, 4, 2)])
def test_devices_that_have_all_the_layers_that_they_may_have_take_none_of_the_fullest_one(
    layers: int, stages: int, chunks: int
) -> None:
    """In memory where the first device must compute all of its layers again, and the others have room for more."""
    (cost,) = costs_of(question({**TINY, "layers": layers}, machines=1, devices=stages, batch=12))
    degrees = {**dict.fromkeys((*COARSE, "microbatch"), 1), "pipeline": stages, "interleave": chunks, "schedule": 1}
    plain, again = (
        cost.layouts({name: np.array([{**degrees, "recompute": int(one)}.get(name, 0)]) for name in LAYOUT})
        for one in (Recompute.NONE, Recompute.FULL)
    )
    limit = float(cost.memory(again)["total"][0])
    even, uneven = ChunkBounds(cost.even)._memory.least_recomputed(plain, limit)[:, 0]
    assert uneven < layers / stages <= even


@pytest.mark.parametrize(("pattern", "stages"), [("M*-EM", 2), ("M*-EM", 3), ("M*-EM-M", 3), ("M*-EME", 4)])
def test_some_stage_is_as_busy_as_is_said_however_layers_of_several_kinds_are_shared_out(
    pattern: str, stages: int
) -> None:
    problem = question({**OF_FOUR_KINDS, "pattern": pattern, "layers": len(pattern)}, batch=stages)
    (cost,) = costs_of(problem)
    counts = [*cost.transformer.kind_counts.values()]
    ways = [[one for one in product(range(number + 1), repeat=stages) if sum(one) == number] for number in counts]
    held = np.array([*product(*ways)])  # ways x kinds x stages
    number = held.sum(axis=1)
    most, is_even = -(-len(pattern) // stages), (np.ptp(number, axis=1) <= 1)
    degrees = {**dict.fromkeys((*COARSE, "microbatch", "interleave"), 1), "pipeline": stages}
    layouts = cost.layouts({name: np.array([degrees.get(name, 0)]) for name in LAYOUT})
    bounds, rng, nothing = EvenBounds(cost.even), np.random.default_rng(0), np.zeros(1)
    for _ in range(20):
        layer_s = rng.integers(1, 9, len(counts)).astype(np.float64)
        busiest_s = (held * layer_s[:, None]).sum(axis=1).max(axis=1)
        few, many = fullest_s(cost.transformer, layer_s[:, None], np.array([stages]))[:, 0]
        assert few <= busiest_s[number.max(axis=1) <= most].min()
        assert many <= busiest_s[number.max(axis=1) > most].min()
        least = LeastSeconds(
            layer_s=layer_s[:, None],
            layer_forward_s=layer_s[:, None],
            **dict.fromkeys(_ENDS, nothing),
        )
        assert bounds._busiest_s(layouts, least)[0] <= busiest_s[is_even].min()


@pytest.mark.parametrize(("pattern", "stages", "busiest_s"), [("M*-E", 2, 6), ("M*-MEME", 3, 7), ("M*-EM*-EME", 4, 7)])
def test_the_busiest_stage_has_more_than_the_mean_where_layers_are_whole(
    pattern: str, stages: int, busiest_s: float
) -> None:
    """Of even cuts a stage has that many layers, and not more quick ones than there are: what is said is reached."""
    (cost,) = costs_of(question({**OF_FOUR_KINDS, "pattern": pattern, "layers": len(pattern)}, batch=stages))
    layer_s = np.array([[1.0 if kind == "attention" else 3.0] for kind in cost.transformer.kind_counts])
    degrees = {**dict.fromkeys((*COARSE, "microbatch", "interleave"), 1), "pipeline": stages}
    layouts = cost.layouts({name: np.array([degrees.get(name, 0)]) for name in LAYOUT})
    ends = dict.fromkeys(_ENDS, np.zeros(1))
    least = LeastSeconds(layer_s=layer_s, layer_forward_s=layer_s, **ends)
    assert EvenBounds(cost.even)._busiest_s(layouts, least)[0] == pytest.approx(busiest_s)


def points_of(space: Space, rng: np.random.Generator) -> dict[str, Ints]:
    """A few layouts with chunks, level by level, of all kinds."""
    grid = space.grid()
    nodes: dict[str, Ints] = {}
    for level in range(len(grid.levels)):
        nodes = Grid(levels=(Level(axes=grid.levels[level].axes),), rules=grid.rules).expand(nodes, 0)
        many = len(nodes["tensor"])
        kept = np.ones(many, dtype=bool)
        if "pipeline" in nodes:
            kept &= nodes["pipeline"] > 1
        if "interleave" in nodes:
            kept &= nodes["interleave"] > 1
        some = rng.permutation(np.flatnonzero(kept))[:200]
        nodes = {name: column[some] for name, column in nodes.items()}
    return {name: column[:20] for name, column in nodes.items()}


@settings(max_examples=60, deadline=None)
@given(
    layers=st.integers(0, 7),
    fewest=st.lists(st.integers(0, 2), min_size=2, max_size=4),
    layer_s=st.floats(0.1, 5.0),
    own_s=st.lists(st.floats(0.0, 20.0), min_size=4, max_size=4),
)
@example(layers=7, fewest=[0, 0, 0], layer_s=1.0, own_s=[0.0, 0.0, 2.0, 9.0])  # whole numbers, none of them rounded up
@example(layers=2, fewest=[1, 1], layer_s=1.0, own_s=[5.0, 0.0, 0.0, 0.0])
def test_the_busiest_device_is_the_least_of_all_ways_to_deal_out_layers(
    layers: int, fewest: list[int], layer_s: float, own_s: list[float]
) -> None:
    stages, layers = len(fewest), layers + sum(fewest)
    ways = [
        one
        for one in product(range(layers + 1), repeat=stages)
        if sum(one) == layers and all(number >= least for number, least in zip(one, fewest, strict=True))
    ]
    expected = (np.array(ways) * layer_s + own_s[:stages]).max(axis=1).min()
    rows = np.array([*fewest, *[0] * (4 - stages)])[:, None]
    found = dealt_s(layers, np.array([stages]), np.array([layer_s]), np.array(own_s)[:, None], rows)
    assert found[0] == pytest.approx(expected, rel=1e-6)


def test_the_first_device_of_a_v_has_both_ends_beside_the_layers_that_it_is_dealt() -> None:
    """Of three layers it takes one and the other device two; with an end on each, one device would take two and one."""
    (cost,) = costs_of(question({**TINY, "layers": 3}, machines=1, devices=2, batch=64, fix={"schedule": "zb_v"}))
    nothing, end_s = np.zeros(1), np.array([0.6])
    ahead, ends = dict.fromkeys(("embedding_forward_s", "head_forward_s"), nothing), {"head_s": end_s}
    least = LeastSeconds(layer_s=np.ones((1, 1)), layer_forward_s=np.zeros((1, 1)), embedding_s=end_s, **ahead, **ends)
    degrees = {**dict.fromkeys((*COARSE, "microbatch"), 1), "pipeline": 2, "microbatch": 1}
    nodes = {name: np.array([degrees[name]]) for name in (*COARSE, "microbatch")}
    handed_s = 2 * cost.constants.send_s
    assert ChunkBounds(cost.even)._any_schedule_s(nodes, least)[0] == pytest.approx(64 * (1 + 2 * 0.6 + handed_s))


@pytest.mark.parametrize(("schedule", "passed", "sends"), [("interleaved", 1, 3), ("zb_v", 0, 2)])
def test_the_last_device_waits_for_the_layers_ahead_of_it_but_those_of_the_first_chunk(
    schedule: str, passed: int, sends: int
) -> None:
    """The first chunk may hold the embedding alone; where gradients of weights wait, they are computed meanwhile."""
    (cost,) = costs_of(question({**TINY, "layers": 6}, machines=1, devices=3, batch=6, fix={"schedule": schedule}))
    least = LeastSeconds(layer_s=np.ones((1, 1)), layer_forward_s=np.zeros((1, 1)), **dict.fromkeys(_ENDS, np.zeros(1)))
    nodes = {name: np.array([3 if name == "pipeline" else 1]) for name in (*COARSE, "microbatch")}
    handed_s = 6 * sends * cost.constants.send_s
    assert ChunkBounds(cost.even)._any_schedule_s(nodes, least)[0] == pytest.approx(6 * 2 + passed + handed_s)


def test_layers_are_moved_near_a_layout_once_however_often_it_is_named() -> None:
    (cost,) = costs_of(question({**TINY, "layers": 11, "vocabulary": 32000}, batch=8, machines=1, devices=4))
    near = NearBounds(cost.even)
    points = points_of(near.space, np.random.default_rng(0))
    point = {name: int(column[0]) for name, column in points.items()}
    starts = _starts(cost, [point, dict(reversed(point.items())), {**point, "interleave": 2}], np.inf, Search())
    assert len(starts) == len({(*sorted(one.point.items()), *one.layers.tolist()) for one in starts}) > 0


@settings(max_examples=30, deadline=None)
@given(layers=st.integers(5, 40), stages=st.sampled_from([2, 4]), interleave=st.integers(2, 6))
def test_cuts_from_which_layers_are_moved_are_cuts_that_fit_and_take_what_is_told(
    layers: int, stages: int, interleave: int
) -> None:
    assume(stages * interleave <= layers)
    (cost,) = costs_of(question({**TINY, "layers": layers, "vocabulary": 64000}, batch=8, machines=1, devices=4))
    space = NearBounds(cost.even).space
    point = {name: int(column[0]) for name, column in points_of(space, np.random.default_rng(0)).items()}
    point |= {"tensor": 1, "context": 1, "pipeline": stages, "interleave": interleave, "microbatch": 1}
    (cuts,) = _Cuts.of(cost, [point])
    begun = cuts.ranked(np.inf).priced(np.inf)
    assert 0 < len(begun) <= chunks._MOST_BEGUN and begun[0].fits
    assert begun == sorted(begun, key=lambda one: one.seconds)
    assert not cuts.ranked(np.inf).priced(begun[0].seconds * 0.5)
    for one in begun:
        assert len(one.layers) == stages * interleave and sum(one.layers) == layers
        assert min(one.layers) >= 0 and min(one.layers[1:-1]) > 0
        assert cuts.priced_s(0, one.layers[:, None])[0] == pytest.approx(one.seconds, rel=1e-12)


def test_layers_are_moved_from_cuts_that_count_the_head_as_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPT of 39 billion parameters on 256 H100: from even chunks no single layer moved leads to the best cut."""
    asked = on_h100("megatron-39b", 32)
    found = plan(load(asked), Search(has_reasons=False))
    monkeypatch.setattr(_Cuts, "ends", np.zeros((2, 1), dtype=np.int64))
    from_even = plan(load(asked), Search(has_reasons=False))
    assert found.objective < 0.99 * from_even.objective
    assert found.prediction.iteration_time_s == pytest.approx(found.objective)


def test_layers_are_moved_in_every_order_of_ranks_whatever_is_best_where_layers_are_even() -> None:
    """Nemotron-H 8B on 16 A100: with the stages pinned, another order was found, and a better layout."""
    machines = {"count": 2, "device": "a100-sxm4-80gb", "devices": 8, "network": "400 Gbit/s", "nics": 8}
    network = {"zoo": "nemotron-h-8b", "dtype": "bf16", "optimizer": "adam", "global_batch": 64}
    asked = {"dnn": network, "cluster": {"machines": [{**machines, "latency": "5 us"}]}}
    asked |= {"objective": "iteration_time", "families": ["hybrid"]}
    free = plan(load(asked), Search(has_reasons=False))
    pinned = plan(load({**asked, "fix": {"pipeline_parallel_size": 2}}), Search(has_reasons=False))
    assert free.objective <= pinned.objective * (1 + 1e-9)


def test_single_layers_are_moved_where_cuts_to_begin_with_leave_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of several kinds on 32 H100: chunks of as many of them do unequal work."""
    asked = on_h100("nemotron-h-47b", 4)
    found = plan(load(asked), Search(has_reasons=False))
    monkeypatch.setattr(chunks, "_MOST_IN_ALL", 0)
    unmoved = plan(load(asked), Search(has_reasons=False))
    assert found.objective < 0.999 * unmoved.objective
    assert found.prediction.iteration_time_s == pytest.approx(found.objective)


@pytest.mark.parametrize(("before", "behind"), [(0, 0), (1, 3), (11, 2), (200, 0), (0, 200)])
def test_cuts_to_begin_with_count_ends_as_layers_up_to_all_of_a_chunk(before: int, behind: int) -> None:
    """The encoder of a network that reads images takes as long as many layers: its chunk has none then."""
    cuts = _evenly(80, 8, np.array([[before], [behind]]))
    assert len(cuts) and (cuts.sum(axis=1) == 80).all() and cuts.min() >= 0
    for first, *inner, last in cuts.tolist():
        each = max(inner)
        assert each - min(inner) <= 1
        assert first <= max(each - before, 1) and last <= max(each - behind, 1)


def test_layouts_whose_devices_did_equal_work_would_take_no_longer_than_even_ones() -> None:
    (cost,) = costs_of(question({**TINY, "layers": 11, "vocabulary": 32000}, batch=8, machines=1, devices=4))
    near, even = NearBounds(cost.even), EvenBounds(cost.even)
    points = points_of(near.space, np.random.default_rng(0))
    assert (near.seconds(points) <= even.seconds(points) * (1 + 1e-9)).all()


def test_no_better_layout_is_found_where_its_degrees_are_pinned_or_runners_up_are_asked_for() -> None:
    """Nemotron-4 15B on 16 H100: even layouts are quickest without a pipeline, others with a long head moved apart."""
    asked = on_h100("nemotron-4-15b", 2, nics=8)
    free, *ranked = [plan(load(asked), Search(num_alternatives=number)) for number in (0, 3)]
    assert [one.objective for one in ranked] == pytest.approx([free.objective], rel=1e-12)
    brief = plan(load(asked), Search(is_brief=True))  # near the best even layout and the best without chunks alone
    assert free.objective <= brief.objective * (1 + 1e-9)
    for pins in ({"pipeline_parallel_size": 1}, {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}):
        pinned = plan(load({**asked, "fix": pins}), Search(has_reasons=False))
        assert free.objective <= pinned.objective * (1 + 1e-9)


def test_layers_are_moved_near_the_best_even_layout_whatever_others_of_its_degrees_promise() -> None:
    """Qwen3-32B by torchtitan: DualPipeV is the best even schedule and the best of all, though ZB-V promises more."""
    asked = on_h100("qwen3-32b", 2) | {"calibration": {"program": "torchtitan"}}
    free = plan(load(asked), Search(has_reasons=False))
    pinned = plan(load({**asked, "fix": {"schedule": "dualpipe_v"}}), Search(has_reasons=False))
    assert free.objective <= pinned.objective * (1 + 1e-9)


@pytest.mark.parametrize(("layers", "depths", "stages"), [(8, 2, 2), (8, 1, 2), (14, 2, 3)])
def test_moved_layers_leave_depths_of_multi_token_prediction_together(layers: int, depths: int, stages: int) -> None:
    """Moved as far as that is quickest, one of two would stand in each of two chunks, or one on the first device."""
    network = {**TINY, "layers": layers, "vocabulary": 64_000 * (3 - depths), "mtp_layers": depths}
    pins = {"num_stages": stages, "chunks_per_device": 2, "microbatch_size": 1}
    problem = question(network, batch=12, machines=1, devices=stages, fix=pins)
    chosen = plan(problem, Search(has_reasons=False)).configuration
    assert isinstance(chosen, HybridConfiguration)
    *_, before, last = chosen.chunk_layers(layers + depths)
    assert last >= depths or (last == 0 and before >= depths and stages > 2)


@pytest.mark.parametrize("pin", [{"microbatch_size": 8}, {"expert_tensor_parallel_size": 2}])
def test_pins_that_leave_some_degrees_no_micro_batch_or_no_seconds_are_bounded(pin: dict[str, int]) -> None:
    """Nodes of the coarse levels: a division by no micro-batches, and no number of layers dealt out, broke off."""
    fix = {"context_parallel_size": 1, "recompute": "none", **pin}
    found = plan(question(MOE, machines=4, devices=2, batch=16, network="10 Gbit/s", fix=fix), Search())
    assert found.status is Status.OPTIMAL


def test_frozen_layers_without_room_are_bounded_by_a_number() -> None:
    """Nothing of them is computed again, which takes no time: what never fits is no layout all the same."""
    network = {"layers": 6, "hidden": 256, "heads": 4, "head_size": 128, "vocabulary": 250_000, "sequence_length": 2048}
    problem = question(network, batch=4, devices=4, memory="550 MB")
    transformer = problem.dnn.transformer
    assert transformer is not None
    frozen = replace(transformer, trained=Trained(frozen_layers=1))
    (cost,) = costs_of(replace(problem, dnn=dnn_of(frozen, problem.dnn.name)))
    with np.errstate(all="raise"):
        least_s = all_chunks_bound_s(cost, np.inf, Search())
    assert 0 < least_s < np.inf


def test_what_other_cuts_into_chunks_could_save_is_said() -> None:
    network = {**TINY, "layers": 12, "vocabulary": 64000}
    pins = {"num_stages": 2, "tensor_parallel_size": 1, "context_parallel_size": 1, "data_parallel_size": 1}
    found = plan(question(network, batch=8, machines=1, devices=2, fix=pins), Search())
    assert 0 < found.beyond[OTHER_CHUNKS] <= found.objective
    assert any(line.startswith(OTHER_CHUNKS) for line in found.explanation)


def test_layers_are_moved_between_chunks_near_stages_without_any() -> None:
    """A head of as much work as layers: chunks dealt out evenly lose to uneven stages, and uneven chunks beat both."""
    network = {**TINY, "layers": 14, "vocabulary": 32000}
    pins = {"num_stages": 4, "tensor_parallel_size": 1, "data_parallel_size": 1, "microbatch_size": 1}
    found = plan(question(network, batch=16, machines=1, devices=4, fix=pins), Search())
    chosen = found.configuration
    assert isinstance(chosen, HybridConfiguration)
    assert chosen.interleave > 1 and len(chosen.stages) == 4 * chosen.interleave
    without = plan(question(network, batch=16, machines=1, devices=4, fix={**pins, "chunks_per_device": 1}), Search())
    assert found.objective < without.objective
    assert found.prediction.iteration_time_s == pytest.approx(found.objective)


def test_cuts_that_have_no_room_do_not_pass_over_those_that_have() -> None:
    """Four stages are quicker, and hold more than devices do: so eight were never looked at, and 5 % were lost."""
    asked = {"dnn": {"zoo": "gemma2-9b"}, "cluster": {"preset": "osf-testbed"}, "families": ["hybrid"]}
    fixes: tuple[dict[str, int], ...] = ({}, {"pipeline_parallel_size": 8})
    free, pinned = (plan(load({**asked, "fix": fix}), Search(has_reasons=False)) for fix in fixes)
    assert free.objective <= pinned.objective * (1 + 1e-9)


@pytest.mark.parametrize(
    ("network", "machine", "optimizer", "pins"),
    [
        # The even cut that needs least, with all computed again, lacks 16 MiB: nothing was said to fit.
        (
            {"layers": 10, "hidden": 256, "experts": {"count": 8, "top_k": 2, "size": 256}},
            {"device": "a100-sxm4-80gb", "devices": 4},
            "muon",
            {"pipeline_parallel_size": 2, "tensor_parallel_size": 1},
        ),
        # The first device of a V has both ends of a large vocabulary: a layout ten times as slow was found.
        (
            {"mamba": OF_FOUR_KINDS["mamba"], "pattern": "M*-*M*", "layers": 6, "hidden": 2048, "vocabulary": 256_000},
            {"device": "v100-sxm2-32gb", "devices": 6},
            "adam",
            {"pipeline_parallel_size": 3},
        ),
    ],
)
def test_memory_that_a_moved_cut_just_fits_is_enough_though_even_ones_need_more(
    network: dict[str, Any], machine: dict[str, Any], optimizer: str, pins: dict[str, int]
) -> None:
    small = {"heads": 8, "vocabulary": 32_000, "sequence_length": 256, **network}
    dtype = "fp16" if machine["devices"] == 6 else "bf16"
    cluster = {"machines": [{"count": 1, "network": "10 Gbit/s", "latency": "5 us", **machine}]}
    asked = {
        "dnn": {"transformer": small, "global_batch": 1, "optimizer": optimizer, "dtype": dtype},
        "cluster": cluster,
        "objective": "iteration_time",
        "families": ["hybrid"],
        "calibration": {"program": "torchtitan"},
        "fix": pins,
    }
    known = plan(load({**asked, "fix": {**pins, "chunks_per_device": 2}}), Search(has_reasons=False))
    assert isinstance(known.configuration, HybridConfiguration) and known.configuration.stages
    limit_bytes = int(known.prediction.memory_bytes["total"]) + 1
    limited = {**asked, "constraints": {"memory_per_device": f"{limit_bytes} B"}}
    found = plan(load(limited), Search(has_reasons=False))
    assert found.objective <= known.objective * (1 + 1e-9)
    assert plan(load(limited), Search(good_enough=inf)).objective < inf  # that anything fits is told, too
