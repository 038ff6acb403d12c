"""Stages that are listed, with chunks and in every schedule: priced, refused, read back, drawn and exported."""

from typing import Any

import numpy as np
import pytest
from hybrid_questions import MOE, TINY, given_layout, question
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_jobs import job_of

from planner.errors import SpecError
from planner.exporters import deepspeed, megatron
from planner.families.hybrid import family as hybrid
from planner.families.hybrid.chunks import chunks_improved
from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.hybrid.cost import HybridCost, Placement, costs_of, cut_columns
from planner.families.hybrid.found import Found, configuration_of_point
from planner.families.hybrid.grid_search import searched
from planner.families.hybrid.search import plan
from planner.search import Search

NINE = {**TINY, "layers": 9}


def listed(layers: tuple[int, ...]) -> list[dict[str, int]]:
    return [{"layers": one} for one in layers]


@settings(max_examples=40, deadline=None)
@given(
    cut=st.lists(st.integers(1, 4), min_size=2, max_size=5),
    data=st.sampled_from([1, 2]),
    zero=st.sampled_from([0, 1]),
    turns=st.integers(1, 6),
    has_experts=st.booleans(),
)
def test_stages_with_other_layers_take_what_the_general_step_says(
    cut: list[int], data: int, zero: int, turns: int, has_experts: bool
) -> None:
    network = {**(MOE if has_experts else TINY), "layers": sum(cut)}
    cost = costs_of(question(network, machines=2, devices=8, batch=turns * data))[0]
    columns = {name: np.array([value]) for name, value in HybridConfiguration(
        global_batch_size=turns * data, pipeline=len(cut), data=data, zero=zero
    ).codes().items()}  # fmt: skip
    layouts = cost.layouts(columns)
    parts = cost.parts(layouts, cut)
    mixed = HybridCost((cost,), Placement.STAGES)
    layers = np.array(cut)[:, None]
    step = mixed.step({**columns, "stages_0": np.array([len(cut)]), **cut_columns(layers)}, layers)
    scheduled_s = float(parts["total"][0] - parts["data"][0] - parts["optimizer"][0])
    assert scheduled_s == pytest.approx(float(step.class_steps_s[0, 0]))
    assert float(parts["data"][0]) == pytest.approx(float(step.exposed_s.max()), abs=1e-12)
    assert float(parts["optimizer"][0]) == pytest.approx(float(step.optimizer_s.max()))
    held = mixed.memory.stage_bytes(layouts, layers)["total"][:, 0]
    assert cost.stage_memory(layouts, cut)["total"] == pytest.approx(held)
    assert cost.memory(layouts, cut)["total"][0] == pytest.approx(held.max())


@pytest.mark.parametrize(
    ("block", "layers"),
    [
        ({"pipeline": 2, "interleave": 2, "stages": listed((5, 4))}, (2, 2, 3, 2)),
        ({"pipeline": 2, "interleave": 2, "stages": listed((0, 3, 4, 2))}, (0, 3, 4, 2)),
        ({"pipeline": 3, "schedule": "gpipe", "stages": listed((2, 4, 3))}, (2, 4, 3)),
        ({"pipeline": 3, "schedule": "zb_h1", "stages": listed((2, 4, 3))}, (2, 4, 3)),
        ({"pipeline": 2, "offload_optimizer": True, "stages": listed((3, 6))}, (3, 6)),
        ({"pipeline": 4, "interleave": 2}, (1, 2, 1, 1, 1, 1, 1, 1)),
    ],
)
def test_stages_with_chunks_and_in_any_schedule_are_priced_drawn_and_read_back(
    block: dict[str, Any], layers: tuple[int, ...]
) -> None:
    problem = question(NINE, batch=12, machines=1, devices=4)
    chosen = given_layout(problem, **block)
    assert chosen.chunk_layers(9) == layers
    document = chosen.to_document()
    again = given_layout(problem, **{key: value for key, value in document.items() if key != "machines"})
    assert again == chosen
    found = hybrid.predict(problem, chosen)
    stages = found.details["stages"]
    assert len(stages) == chosen.pipeline and all(len(row["forward_s"]) == chosen.interleave for row in stages)
    assert sum(found.breakdown_s.values()) == pytest.approx(found.iteration_time_s)
    drawn = hybrid.timeline(problem, chosen)
    assert max(one.end_s for one in drawn.spans) == pytest.approx(found.iteration_time_s)
    assert any(one.startswith("layers by ") for one in hybrid.explain(problem, chosen, found))


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"pipeline": 2, "interleave": 2, "stages": listed((3, 3, 3))}, "List the 2 stages, or all 4 chunks"),
        ({"pipeline": 3, "stages": listed((3, 6))}, r"Write pipeline: 2, or list as many stages\."),
        ({"pipeline": 3, "stages": listed((4, 0, 5))}, r"stage 2 of 3 holds no layer.*pipeline: 2 without it"),
        ({"pipeline": 2, "interleave": 2, "stages": listed((4, 0, 4, 1))}, r"chunk 2 of 4 holds no layer"),
        ({"pipeline": 2, "stages": listed((4, 4))}, r"stages hold 8 layers, and the network has 9.*layers: 5 in"),
        (
            {"pipeline": 2, "interleave": 2, "stages": listed((4, 4))},
            r"stages hold 8 layers, and the network has 9.*layers: 5 in the last stage",
        ),
        (
            {"pipeline": 2, "interleave": 2, "stages": listed((4, 4, 4, 1))},
            r"chunks hold 13 layers, and the network has 9.*Take layers away until they are 9",
        ),
        (
            {"pipeline": 2, "interleave": 2, "microbatch": 4, "stages": listed((5, 4))},
            "a number of micro-batches that is a multiple of the stages",
        ),
        ({"pipeline": 2, "interleave": 2, "schedule": "gpipe", "stages": listed((5, 4))}, "with the schedule 1f1b"),
    ],
)
def test_what_is_listed_wrongly_is_refused_with_what_would_do(block: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        given_layout(question(NINE, batch=12, machines=1, devices=4), **block)


@pytest.mark.parametrize(
    ("depths", "stages", "layers", "layout"),
    [
        (1, 3, (1, 1, 2, 3, 1, 1), "Et*1|t*1|t*2|t*3|t*1|mL"),
        (1, 3, (1, 1, 2, 3, 2, 0), "Et*1|t*1|t*2|t*3|t*1m|L"),
        (1, 3, (1, 1, 2, 4, 1, 0), "Et*1|t*1|t*2|t*4|m|L"),
        (1, 2, (3, 3, 3, 0), None),  # on the first device
        (2, 3, (1, 1, 2, 3, 2, 0), "Et*1|t*1|t*2|t*3|mm|L"),
        (2, 3, (1, 1, 2, 3, 1, 1), None),  # of which two chunks have one each
    ],
)
def test_depths_of_multi_token_prediction_run_in_the_chunk_that_is_said(
    depths: int, stages: int, layers: tuple[int, ...], layout: str | None
) -> None:
    problem = question({**TINY, "layers": 9 - depths, "mtp_layers": depths}, batch=12, machines=1, devices=stages)
    listed_ones = {"pipeline": stages, "interleave": 2, "stages": listed(layers)}
    if layout is None:
        with pytest.raises(SpecError, match=f"the last {depths} of multi-token prediction run together"):
            given_layout(problem, **listed_ones)
        return
    job = job_of(problem, "hybrid", given_layout(problem, **listed_ones))
    assert f"--pipeline-model-parallel-layout '{layout}'" in megatron.export(job).files["launch.sh"]


def test_chunks_that_are_listed_or_dealt_out_unevenly_go_to_programs_as_they_are() -> None:
    problem = question(NINE, batch=12, machines=1, devices=2)
    chosen = given_layout(problem, pipeline=2, interleave=2, stages=listed((0, 3, 4, 2)))
    job = job_of(problem, "hybrid", chosen)
    script = megatron.export(job).files["launch.sh"]
    assert "--pipeline-model-parallel-layout 'E|t*3|t*4|t*2L'" in script
    assert "num-layers-per-virtual-pipeline-stage" not in script
    even = given_layout(problem, pipeline=2, interleave=2)
    assert "'Et*2|t*2|t*3|t*2L'" in megatron.export(job_of(problem, "hybrid", even)).files["launch.sh"]
    # A program without chunks gets the layers of each stage.
    pipeline = deepspeed.export(job).files["planned_pipeline.py"]
    assert "(4, 5)" in pipeline


def test_a_layer_is_moved_away_from_the_stage_that_has_a_long_head_and_chunks() -> None:
    network = {**TINY, "layers": 12, "vocabulary": 64000}
    pins = {"num_stages": 2, "tensor_parallel_size": 1, "context_parallel_size": 1, "chunks_per_device": 3,
            "data_parallel_size": 1}  # fmt: skip
    problem = question(network, batch=8, machines=1, devices=2, fix=pins)
    (cost,) = costs_of(problem)
    even = searched(cost.even, Search())
    best_s = even.solution.objective
    found = chunks_improved(Found(cost=cost.even, answer=even), best_s, Search())
    assert found is not None
    ((seconds, point),) = found.rows
    assert seconds < best_s
    chosen = configuration_of_point(found.cost, point)
    prediction = hybrid.predict(problem, chosen)
    assert prediction.iteration_time_s == pytest.approx(seconds)
    assert prediction.memory_bytes["total"] <= prediction.memory_bytes["limit"]
    assert sum(chosen.chunk_layers(12)) == 12 and chosen.interleave == 3
    told = plan(problem, Search())
    assert told.objective <= seconds * (1 + 1e-9)
    assert told.prediction.iteration_time_s == pytest.approx(told.objective)
    assert chunks_improved(Found(cost=cost.even, answer=even), seconds * (1 - 1e-3), Search()) is None
