"""Ways out of too little memory, the frontier of the whole grid, ranges, the reserve."""

from dataclasses import replace
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hybrid_questions import MOE, RATES, TINY, layout, question, whole_grid

import planner
from planner.data.fits import transformer_rates
from planner.errors import InfeasibleError
from planner.families.hybrid.configuration import COARSE
from planner.families.hybrid.cost import costs_of
from planner.families.hybrid.even_bounds import EvenBounds
from planner.families.hybrid.grid_search import bounds_of, searched
from planner.families.hybrid.search import ladder, plan, smallest_memory
from planner.problem import Problem
from planner.search import Search
from research.transformer_fit.low_rows import fitted_rows
from research.transformer_fit.ranges import ranges_of, ranges_text
from research.transformer_fit.rows import Row
from tests.referee import second_physics

pytestmark = pytest.mark.usefixtures("wordless")

# -- ways out ------------------------------------------------------------------------------------------------------------

LARGE = {"layers": 24, "hidden": 8192, "heads": 64, "vocabulary": 32000, "sequence_length": 1024}


def refusal(problem: Problem) -> str:
    """Why there is no plan."""
    with pytest.raises(InfeasibleError) as caught:
        plan(problem, Search())
    return str(caught.value)


def test_the_fewest_machines_that_hold_a_network_are_named_and_no_memory_that_the_card_has_not() -> None:
    text = refusal(question(LARGE, machines=1, devices=1, batch=64))
    assert "memory_per_device" not in text
    number = int(text.split("Take ")[1].split(" machines")[0])
    assert layout(question(LARGE, machines=number, devices=1, batch=64)).num_devices <= number
    assert "are missing" in refusal(question(LARGE, machines=number - 1, devices=1, batch=64))


def test_what_needs_least_memory_is_said_to_be_of_even_layouts_where_other_cuts_might_need_less() -> None:
    pins = dict.fromkeys(("tensor_parallel_size", "chunks_per_device"), 1)
    pins |= {"num_stages": 2, "num_devices": 2, "offload_optimizer": False}
    sizes = {**TINY, "vocabulary": 128_000, "positions": "rotary", "tied_embeddings": False}
    even = question(sizes, machines=1, devices=2, batch=8, fix=pins)
    least, _ = smallest_memory(costs_of(even)[0], Search())  # of which the head's stage needs most
    limits = replace(even.limits, memory_per_device_bytes=least * 0.99)
    assert [one.layers for one in layout(replace(even, limits=limits)).stages] == [3, 1]
    limits = replace(even.limits, memory_per_device_bytes=least * 0.1)
    assert "needs least memory of those on one kind of devices that" in refusal(replace(even, limits=limits))
    assert "needs least memory (" in refusal(question(LARGE, machines=1, devices=1, batch=64))


def test_another_listed_device_is_named_where_one_has_the_memory() -> None:
    text = refusal(question(LARGE, machines=1, devices=1, batch=64, fix={"offload_optimizer": True}))
    assert "'h200-sxm'" in text
    cluster = {"machines": [{"count": 1, "device": "h200-sxm", "devices": 1, "network": "400 Gbit/s"}]}
    assert layout(question(LARGE, cluster=cluster, batch=64, fix={"offload_optimizer": True})).num_devices == 1


@pytest.mark.parametrize(
    ("more", "way"),
    [
        ({"fix": {"recompute": "none"}}, "leave out fix.recompute"),
        ({"constraints": {"exclude": {"recompute": ["full"]}}}, "leave out constraints.exclude.recompute"),
    ],
)
def test_what_stands_in_the_way_is_named_and_dropping_it_helps(more: dict[str, Any], way: str) -> None:
    free = question(machines=1, devices=2, batch=32)
    least, _ = smallest_memory(costs_of(free)[0], Search())
    limits = replace(free.limits, memory_per_device_bytes=least * 1.01)
    asked = replace(question(machines=1, devices=2, batch=32, **more), limits=limits)
    assert way in refusal(asked).replace("Leave", "leave")
    assert layout(replace(free, limits=limits)).recompute == "full"


# Under GPipe the last of four stages has its logits gone with one micro-batch of a replica's samples, not with two.
LOGITS = {"layers": 6, "hidden": 2048, "heads": 4, "head_size": 64, "vocabulary": 50000, "sequence_length": 256}
PINS = {
    "tensor_parallel_size": 1,
    "context_parallel_size": 1,
    "data_parallel_size": 2,
    "num_stages": 4,
    "zero_stage": 3,
}
TITAN = {"memory_reserve": "0 B", "program": "torchtitan"}


@pytest.mark.parametrize(
    ("transformer", "more"),
    [
        (TINY, {}),
        (MOE, {}),
        (TINY, {"fix": {"num_microbatches": 2}}),  # of other degrees other sizes
        (TINY, {"batch": 12, "constraints": {"exclude": {"microbatch_size": [1]}}}),
        ({**LOGITS, "tied_embeddings": False}, {"machines": 2, "batch": 4, "fix": PINS, "calibration": TITAN}),
    ],
)
def test_the_smallest_memory_is_that_of_the_whole_grid(transformer: dict[str, Any], more: dict[str, Any]) -> None:
    rates = {**RATES, "software": transformer_rates()["software"]}
    cost = costs_of(question(transformer, **{"machines": 1, "rates": rates, **more}))[0]
    least, found = smallest_memory(cost, Search())
    held = cost.memory(cost.layouts(whole_grid(cost)))["total"]
    assert least == pytest.approx(float(held.min()), rel=1e-9)
    assert found is not None


def test_the_smallest_memory_counts_modules_that_are_computed_again_beside_those_that_wait_on_the_host() -> None:
    sizes = {"query_rank": 256, "key_value_rank": 128, "rope_size": 32, "nope_size": 64, "value_size": 64}
    network = {**MOE, "kv_heads": 8, "positions": "rotary", "latent_attention": sizes, "sequence_length": 8192}
    pins = {"tensor_parallel_size": 1, "context_parallel_size": 1, "pipeline_parallel_size": 1, "microbatch_size": 1}
    (cost,) = costs_of(question(network, machines=1, devices=2, host_link="50 GB/s", fix=pins))
    cost = replace(cost, opens_offload=True)
    points = whole_grid(cost)
    held = cost.memory(cost.layouts(points))["total"]
    bounds, at = bounds_of(cost.even), [held.argmin()]
    assert points["recompute_modules"][at] > 0
    assert isinstance(bounds, EvenBounds)
    assert bounds.smallest_memory({name: points[name][at] for name in (*COARSE, "microbatch")}) <= held[at] * (
        1 + 1e-12
    )
    assert smallest_memory(cost, Search())[0] == pytest.approx(float(held.min()), rel=1e-12)


def test_a_question_of_whether_anything_fits_tries_no_ways() -> None:
    with pytest.raises(InfeasibleError, match="no layout fits in the memory of a device"):
        plan(question(memory="50 MiB"), Search(good_enough=float("inf")))


def test_where_the_smallest_degrees_have_no_layout_at_all_that_is_said() -> None:
    sizes = {"layers": 8, "hidden": 1024, "heads": 16, "vocabulary": 8000, "sequence_length": 512, "positions": "none"}
    orders = ["tensor-context-pipeline-data", "tensor-pipeline-context-data"]
    spec = {
        "dnn": {"transformer": sizes, "dtype": "bf16", "optimizer": "adam", "global_batch": 8},
        "cluster": {"machines": [{"count": 2, "device": "l40s", "devices": 4, "network": "100 Gbit/s"}]},
        "calibration": {"program": "megatron-deepspeed"},
        "objective": "iteration_time",
        "constraints": {
            "memory_per_device": "2 GiB",
            "exclude": {"recompute": ["full"], "rank_order": orders},
        },
        "families": ["hybrid"],
        "fix": {"num_devices": 8, "schedule": "interleaved", "sequence_parallel": False},
    }
    with pytest.raises(InfeasibleError, match="No plan fits"):
        plan(planner.load(spec), Search())


# -- the frontier --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("transformer", "network"), [(TINY, "200 Gbit/s"), (MOE, "10 Gbit/s")])
def test_every_rung_is_the_fastest_layout_that_needs_as_little(transformer: dict[str, Any], network: str) -> None:
    problem = question(transformer, machines=2, devices=2, batch=4, network=network)
    cost = costs_of(problem)[0]
    best = searched(cost.even, Search()).solution.value
    assert best is not None
    rows, is_whole = ladder(cost, best, Search())
    assert is_whole
    nodes = whole_grid(cost)
    layouts = cost.layouts(nodes)
    seconds, held = cost.seconds(layouts), cost.memory(layouts)["total"]
    for own_s, own_bytes, _ in rows:
        assert own_s == pytest.approx(float(seconds[held <= own_bytes * (1 + 1e-12)].min()), rel=1e-12)
    assert all(one[0] < other[0] and other[1] <= 0.9 * one[1] for one, other in pairwise(rows))
    assert held.min() >= 0.9 * rows[-1][1]


def test_the_frontier_stands_among_the_alternatives_where_it_is_asked_for() -> None:
    problem = question(families=["hybrid"])
    assert not any(one.name.startswith("in ") for one in planner.plan(problem).alternatives)
    found = planner.plan(problem, has_frontier=True)
    rungs = [one for one in found.alternatives if one.name.startswith("in ")]
    assert rungs
    assert second_physics.check(problem, found).is_ok
    for one in rungs:
        assert one.configuration is not None
        assert planner.predict(problem, one.configuration).iteration_time_s == pytest.approx(one.objective)


# -- ranges and reserve --------------------------------------------------------------------------------------------------

SIZES = {
    "devices": [1, 8],
    "hidden size": [512, 2048],
    "layers": [2, 8],
    "sequence length": [512, 4096],
    "vocabulary": [32000, 32000],
    "tensor degree": [1, 8],
    "stages": [1, 8],
    "micro-batch": [1, 8],
    "context degree": [1, 8],
    "experts": [0, 0],
}


def told(problem: Problem, **more: Any) -> list[str]:
    """The lines about ranges of a plan: in its warnings, and in what explains it."""
    found = plan(problem, Search(**more))
    lines = [line for line in found.warnings if line.startswith("outside of what was measured")]
    assert lines == [line for line in found.explanation if line.startswith("outside of what was measured")]
    return lines


def test_what_lies_outside_of_the_measurements_is_named() -> None:
    ranges = {"a100-sxm4-80gb": {"rows": 1, "sizes": SIZES, "software": ["megatron-core"]}}
    rates = {**RATES, "ranges": ranges}
    assert told(question(rates=rates)) == []
    (line,) = told(question({**MOE, "hidden": 4096}, rates=rates))
    assert "hidden size 4,096 (512 to 2,048)" in line
    assert "experts 4 (all 0)" in line
    (line,) = told(question({**TINY, "vocabulary": 256000}, rates=rates))
    assert line.endswith(": vocabulary 256,000 (all 32,000)")
    assert told(question({**TINY, "vocabulary": 31900}, rates=rates)) == []  # filled up, it is as large
    (line,) = told(question(rates=rates, fix={"offload_optimizer": True}))
    assert line.endswith(": an optimiser on the host")
    strange = {"a100-sxm4-80gb": {**ranges["a100-sxm4-80gb"], "software": ["torchtitan"]}}
    (line,) = told(question(rates={**rates, "ranges": strange}))
    assert "the program megatron-core (torchtitan)" in line


def test_a_typical_reserve_is_kept_unless_another_is_given() -> None:
    spec = {
        "dnn": {"transformer": TINY, "global_batch": 8, "dtype": "bf16", "optimizer": "adam"},
        "cluster": {"machines": [{"count": 1, "device": "a100-sxm4-80gb", "devices": 4, "network": "200 Gbit/s"}]},
        "objective": "iteration_time",
        "families": ["hybrid"],
    }
    found = planner.plan(planner.load(spec))
    assert found.prediction.memory_bytes["reserve"] == 3 * 2**30
    routed = {**spec, "dnn": {**spec["dnn"], "transformer": {**TINY, "experts": {"count": 4, "top_k": 2, "size": 256}}}}  # type: ignore[dict-item]
    with_experts = planner.load(routed)
    assert planner.plan(with_experts).prediction.memory_bytes["reserve"] == pytest.approx(
        3 * 2**30 + 0.042 * 80 * 2**30
    )
    kept = with_experts.calibration
    for held in (1e8, 5e9, 60e9):
        size = kept.transformer_memory_for(held, has_experts=True)
        assert size - kept.transformer_reserve_of(size, has_experts=True) == pytest.approx(held)
    assert any("beside a reserve of 3 GiB" in line for line in found.explanation)
    given = planner.load({**spec, "calibration": {"memory_reserve": "1 GiB"}})
    assert planner.plan(given).prediction.memory_bytes["reserve"] == 2**30
    nothing = planner.plan(planner.load({**spec, "calibration": {"memory_reserve": "0 B"}}))
    assert nothing.prediction.memory_bytes["reserve"] == 0
    assert any("memory_reserve is 0" in line for line in nothing.warnings)


def test_ranges_are_the_least_and_the_most_of_each_device() -> None:
    network = question(TINY).dnn.transformer
    experts = question(MOE).dnn.transformer
    assert network is not None
    assert experts is not None
    shared: dict[str, Any] = {"family": "own", "group": (), "device": "a100-sxm4-80gb", "tiers": (), "iteration_s": 1.0}
    one = {"tensor": 1, "context": 1, "pipeline": 2, "data": 4, "microbatch": 1}
    rows = [
        Row(**shared, transformer=network, software="b", layout=one),
        Row(**shared, transformer=network, software="b", layout={**one, "tensor": 4}),
        Row(**shared, transformer=experts, software="a", layout=one),
    ]
    (found,) = ranges_of(rows).values()
    families = found["families"]
    assert isinstance(families, dict)
    assert families == {"own": {name: found[name] for name in ("rows", "sizes", "software")}}
    sizes = found["sizes"]
    assert isinstance(sizes, dict)
    assert found["software"] == ["b", "a"]
    assert (sizes["devices"], sizes["tensor degree"], sizes["experts"]) == ([8, 32], [1, 4], [0, 4])
    assert sizes.keys() == SIZES.keys()


@pytest.mark.measured
def test_the_ranges_that_ship_are_those_of_the_data(data_folder: Path) -> None:
    text = resources.files("planner.data").joinpath("transformer_ranges.yaml").read_text(encoding="utf-8")
    assert ranges_text(fitted_rows(data_folder)) == text, "run: make accuracy"
