"""Plans of given layouts, drawn or written down, as the exporters take them: nothing is searched."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from hybrid_questions import MOE, TINY, question
from hypothesis import assume
from hypothesis import strategies as st

import planner
from planner import planning
from planner.exporters import deepspeed
from planner.exporters.export import Job
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.hybrid.configuration import ORDER_NAMES, HybridConfiguration, PipelineStage, broken_rule, rules_of
from planner.plan import Configuration, Plan, Provenance
from planner.problem import Problem
from planner.search import Search
from planner.solution import Status
from planner.transformer import Transformer

__all__ = [
    "cnn_job",
    "deepspeed_document",
    "drawn_jobs",
    "even_job",
    "hybrid_of",
    "job_of",
    "listed",
    "planned",
    "uneven_job",
]

_DEVICES = 4  # of a machine


def job_of(problem: Problem, family: str, configuration: Configuration) -> Job:
    """A plan with a given configuration, as if it had been found."""
    prediction = planner.predict(problem, configuration)
    objective = prediction.value_of(problem.goal)
    found = Plan(
        goal=problem.goal,
        status=Status.FEASIBLE,
        objective=objective,
        bound=0.0,
        family=family,
        configuration=configuration,
        prediction=prediction,
        explanation=(),
        alternatives=(),
        provenance=Provenance(solver="given", versions={}, input_digest=""),
    )
    return Job(problem=problem, plan=found)


def hybrid_of(job: Job) -> HybridConfiguration:
    """The layout of a plan of the family hybrid."""
    found = job.plan.configuration
    assert isinstance(found, HybridConfiguration), "of another family"
    return found


def listed(chosen: HybridConfiguration, network: Transformer) -> HybridConfiguration:
    """A layout with the layers of every stage, or chunk, as files say them."""
    stages = tuple(PipelineStage(layers=one) for one in chosen.chunk_layers(network.num_layers))
    return replace(chosen, stages=stages)


def _question(chosen: HybridConfiguration, transformer: Mapping[str, Any], **more: Any) -> Problem:
    """The question of a layout: as many machines as it takes."""
    machines = -(-chosen.num_devices // _DEVICES)
    return question(transformer, machines=machines, devices=_DEVICES, batch=chosen.global_batch_size, **more)


def even_job(transformer: Mapping[str, Any] = TINY, *, num_microbatches: int = 2, **decisions: Any) -> Job:
    """A plan of an even layout, its batch by the number of micro-batches."""
    batch = decisions.get("data", 1) * decisions.get("microbatch", 1) * num_microbatches
    chosen = HybridConfiguration(global_batch_size=batch, **decisions)
    return job_of(_question(chosen, transformer), "hybrid", chosen)


def uneven_job(layers: tuple[int, ...], transformer: Mapping[str, Any] = TINY, **decisions: Any) -> Job:
    """A plan whose stages have these layers, of four micro-batches."""
    batch = decisions.get("data", 1) * decisions.get("microbatch", 1) * 4
    stages = tuple(PipelineStage(layers=one) for one in layers)
    chosen = HybridConfiguration(global_batch_size=batch, pipeline=len(layers), stages=stages, **decisions)
    return job_of(_question(chosen, {**transformer, "layers": sum(layers)}), "hybrid", chosen)


def deepspeed_document(job: Job) -> dict[str, Any]:
    """What DeepSpeed's configuration of a plan says."""
    found: dict[str, Any] = json.loads(deepspeed.export(job).files["ds_config.json"])
    return found


def cnn_job(**more: Any) -> Job:
    """The plan of a network without transformer's sizes, by all-reduce."""
    asked = {"dnn": {"zoo": "resnet50", "batch_per_device": 32}, "cluster": {"preset": "osf-testbed"}}
    problem = planner.load({**asked, "families": ["all_reduce"], **more})
    found = planner.plan(problem)
    assert isinstance(found.configuration, AllReduceConfiguration), "the only family asked for"
    return Job(problem=problem, plan=found)


def planned(fix: Mapping[str, Any], transformer: Mapping[str, Any] = TINY, **more: Any) -> Job:
    """The best plan of a small question under pins, without what stands under its headline, which no target reads."""
    problem = question(transformer, fix=dict(fix), families=["hybrid"], **more)
    return Job(problem=problem, plan=planning.planned(problem, Search()))


@cache
def _networks() -> tuple[tuple[Mapping[str, Any], Transformer], ...]:
    """Small networks as a spec writes them, and their sizes."""
    return _sizes((TINY, MOE, {**TINY, "layers": 6}))


def _sizes(blocks: tuple[Mapping[str, Any], ...]) -> tuple[tuple[Mapping[str, Any], Transformer], ...]:
    """Networks as a spec writes them, and their sizes."""
    sizes = [question(block).dnn.transformer for block in blocks]
    return tuple((block, one) for block, one in zip(blocks, sizes, strict=True) if one is not None)


@st.composite
def drawn_jobs(draw: st.DrawFn, blocks: tuple[Mapping[str, Any], ...] = ()) -> Job:
    """Any layout of a small network, with or without experts, that keeps the rules; its stages may be unlike."""
    transformer, network = draw(st.sampled_from(_sizes(blocks) if blocks else _networks()))
    degrees = {name: draw(st.sampled_from([1, 2, 4])) for name in ("tensor", "pipeline", "microbatch")}
    degrees |= {"context": draw(st.sampled_from([1, 2])), "data": draw(st.sampled_from([1, 2, 3, 4]))}
    layers = network.num_layers
    is_uneven = draw(st.booleans()) and 1 < degrees["pipeline"] <= layers
    number = draw(st.sampled_from([1, 2, 4, 8]))
    decisions: dict[str, Any] = {
        **degrees,
        "expert": draw(st.sampled_from([1, 2, 4])) if "experts" in transformer else 1,
        "interleave": 1 if is_uneven else draw(st.sampled_from([1, 2])),
        "zero": draw(st.integers(0, 1 if is_uneven else 3)) if degrees["data"] * degrees["context"] > 1 else 0,
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "schedule": "1f1b" if is_uneven else draw(st.sampled_from(["1f1b", "gpipe", "zb_h1"])),
        "sequence_parallel": draw(st.booleans()),
        "overlap_data": draw(st.booleans()),
        "overlap_tensor": draw(st.booleans()),
        "offload_optimizer": not is_uneven and draw(st.sampled_from([False, False, True])),
        "order": ORDER_NAMES[0] if is_uneven else draw(st.sampled_from(ORDER_NAMES)),
        "global_batch_size": degrees["data"] * degrees["microbatch"] * number,
    }
    # Copies of fully sharded experts are not every program's.
    if decisions["zero"] and decisions["data"] == 4 and 1 in (decisions["zero"], decisions["expert"]):
        decisions["shard"] = draw(st.sampled_from([0, 2]))
    chosen = HybridConfiguration(**decisions)
    even = {name: value for name, value in chosen.codes().items() if name != "interleave"} | {"interleave": 1}
    codes = {**even, "pipeline": 1, "schedule": 1} if is_uneven else chosen.codes()
    assume(broken_rule(rules_of(network, chosen.global_batch_size), codes) is None)
    if is_uneven:
        cuts = sorted(draw(st.permutations(range(1, layers)))[: chosen.pipeline - 1])
        parts = [end - start for start, end in zip([0, *cuts], [*cuts, layers], strict=True)]
        chosen = HybridConfiguration(**decisions, stages=tuple(PipelineStage(layers=one) for one in parts))
    return job_of(_question(chosen, transformer), "hybrid", chosen)
