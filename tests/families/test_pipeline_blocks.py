"""Pipelines of whole blocks: the costs are those of the layers, and cuts lie between blocks."""

from typing import Any

import numpy as np
import pytest

import planner
from planner.errors import InfeasibleError
from planner.families.pipeline import search as pipeline_search
from planner.families.pipeline.cost import BlockCost, PipelineCost, block_starts
from planner.families.pipeline.domain import Domain
from planner.models.stages import Stage
from planner.problem import Problem
from planner.search import Search
from planner.zoo import build

SMALL = {"layers": 6, "hidden": 1024, "heads": 16, "vocabulary": 32000, "sequence_length": 1024}
MACHINES = [{"count": 2, "device": "a100-sxm4-80gb", "devices": 2, "inside": "nvlink-3", "network": "200 Gbit/s"}]


def question(**more: Any) -> Problem:
    asked = {"dnn": {"transformer": SMALL, "global_batch": 16}, "cluster": {"machines": MACHINES}, **more}
    return planner.load({"families": ["pipeline"], **asked})


def test_pieces_are_embedding_blocks_and_head() -> None:
    dnn = build("gpt3-13b")
    starts, (run,) = block_starts(dnn), dnn.repeats
    assert len(starts) - 1 == 40 + 2
    assert (starts[0], starts[-1]) == (0, len(dnn.layers))
    assert set(np.diff(starts[1:-1]).tolist()) == {run.num_layers}
    assert np.diff(block_starts(build("vgg16"))).tolist() == [1] * len(build("vgg16").layers)


def test_a_stage_of_blocks_costs_what_its_layers_cost() -> None:
    problem = question()
    blocks, layers = BlockCost(problem), PipelineCost(problem)
    domain = Domain(problem)
    for cut in range(blocks.costs.num_layers - 1):
        stages = [
            Stage(first=0, last=cut, group=0, replicas=1),
            Stage(first=cut + 1, last=blocks.costs.num_layers - 1, group=0, replicas=2),
        ]
        shape = domain.shape(stages, 8, "1f1b")
        same = layers.shape(blocks.configuration(shape))
        assert blocks.iteration_time_s(shape) == pytest.approx(layers.iteration_time_s(same))
        for one, other in zip(blocks.memory_bytes(shape), layers.memory_bytes(same), strict=True):
            assert one == pytest.approx(other)


def test_the_search_cuts_between_blocks_and_states_what_predict_gives() -> None:
    problem = question(fix={"num_stages": 3})
    plan = planner.plan(problem)
    starts = block_starts(problem.dnn)
    names = {layer.name: index for index, layer in enumerate(problem.dnn.layers)}
    assert all(names[stage.first] in starts for stage in plan.configuration.stages)  # type: ignore[attr-defined]
    assert planner.predict(problem, plan.configuration).iteration_time_s == pytest.approx(plan.objective)


def test_more_stages_than_blocks_are_cut_inside_them() -> None:
    machines = [{**MACHINES[0], "count": 8}]
    problem = question(fix={"num_stages": 12}, cluster={"machines": machines})
    assert Domain(problem).is_fine
    assert not Domain(question()).is_fine
    found = planner.plan(problem, time_limit_s=20)
    assert found.configuration.num_stages == 12  # type: ignore[attr-defined]


@pytest.mark.parametrize("memory", [None, "1500 MiB", "1200 MiB"])
def test_an_answer_that_is_known_changes_neither_the_optimum_nor_makes_the_bound_wrong(memory: str | None) -> None:
    problem = question(constraints={"memory_per_device": memory} if memory else {})
    alone = pipeline_search.plan(problem, Search())
    assert alone.bound == pytest.approx(alone.objective)
    for share in (0.8, 0.95, 1.02, 1.3):
        found = pipeline_search.plan(problem, Search(cutoff=share * alone.objective))
        assert found.bound <= alone.objective * (1 + 1e-9)
        assert found.bound >= min(share, 1) * alone.objective * (1 - 1e-9)
        if share > 1:
            assert found.objective == pytest.approx(alone.objective)


def test_blocks_that_do_not_fit_are_cut_only_where_no_other_family_answers() -> None:
    whole = planner.plan(question(fix={"num_stages": 4})).prediction.details["stages"]
    most = max(row["memory_bytes"] for row in whole)
    for share in (0.6, 0.5, 0.4, 0.3, 0.25):
        problem = question(constraints={"memory_per_device": f"{int(most * share)} B"})
        try:
            pipeline_search.plan(problem, Search(cutoff=1e9))
        except InfeasibleError as error:
            assert "between blocks" in str(error)
            assert "families: [pipeline]" in str(error)
            break
    else:
        pytest.fail("blocks should not fit in a quarter of what they take")
