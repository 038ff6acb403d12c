"""Schedules of layouts: predicted, drawn, checked, refused, pinned and searched."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hybrid_questions import MOE, TINY, question
from layout_jobs import even_job
from modern_blocks import LLAMA

import planner
from planner.decisions import LayoutSchedule
from planner.errors import InfeasibleError, SpecError
from planner.exporters import accelerate, deepspeed, megatron, torchtitan
from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.hybrid.family import configuration_of
from planner.families.hybrid.prediction import predict, timeline
from planner.families.hybrid.search import plan
from planner.plan import Plan
from planner.problem import Problem
from planner.question.spec import HybridSpec
from planner.search import Search
from tests.referee.second_physics.hybrid import facts_of

pytestmark = pytest.mark.usefixtures("wordless")

NAMES = get_args(LayoutSchedule)
NEW = NAMES[3:]
EIGHT = {**TINY, "layers": 8}
UNLIKE = {**MOE, "layers": 9, "experts": {"count": 4, "top_k": 2, "size": 512, "every": 2}}


def given(problem: Problem, **block: Any) -> Any:
    return configuration_of(problem, HybridSpec(**block).model_dump())


def schedule_of(found: Plan) -> str:
    assert isinstance(found.configuration, HybridConfiguration)
    return found.configuration.schedule


@pytest.mark.parametrize("transformer", [EIGHT, UNLIKE], ids=["alike", "unlike"])
@pytest.mark.parametrize("schedule", NEW)
def test_a_layout_in_any_schedule_is_checked_and_drawn_as_predicted(schedule: str, transformer: dict[str, Any]) -> None:
    problem = question(transformer, batch=48)
    chosen = given(problem, pipeline=4, data=2, microbatch=1, schedule=schedule, zero=1)
    found = predict(problem, chosen)
    facts = facts_of(problem, chosen.to_document(), found)
    assert not [one.text for one in facts.findings if not one.is_ok]
    drawn = timeline(problem, chosen)
    assert not [note for note in drawn.notes if "of the replay's" in note]
    assert len(found.details["stages"]) == 4


def test_what_a_schedule_holds_and_waits_is_in_the_order_of_their_papers() -> None:
    problem = question({**EIGHT, "vocabulary": 128}, batch=96)
    found = {name: predict(problem, given(problem, pipeline=4, data=2, schedule=name)) for name in NAMES}
    held = {name: one.memory_bytes["activations"] for name, one in found.items()}
    bubble_s = {name: one.breakdown_s["bubble"] for name, one in found.items()}
    assert held["v_min"] < held["v_half"] < held["zb_v"] < held["dualpipe_v"] < held["zb_h2"] < held["gpipe"]
    assert bubble_s["zb_v"] < bubble_s["zb_h2"] <= bubble_s["zb_h1"] < bubble_s["1f1b"]
    weights = {name: one.memory_bytes["weights"] for name, one in found.items()}
    assert weights["dualpipe"] > 1.9 * weights["1f1b"]


@pytest.mark.parametrize(
    ("block", "field", "words"),
    [
        ({"pipeline": 4, "schedule": "dualpipe", "data": 2, "microbatch": 1}, "schedule", "8 micro-batches"),
        ({"pipeline": 2, "schedule": "dualpipe_v", "data": 2, "microbatch": 2}, "schedule", "4 micro-batches"),
        ({"pipeline": 3, "schedule": "dualpipe"}, "pipeline", "do not pair off"),
        ({"schedule": "zb_v"}, "pipeline", "there is one stage"),
        ({"pipeline": 2, "schedule": "zb_v", "interleave": 3}, "interleave", "interleave is 2, not 3"),
        ({"pipeline": 4, "schedule": "v_min"}, "interleave", "fewer than 4 stages x 2 chunks"),
    ],
)
def test_what_a_schedule_does_not_have_is_refused(block: dict[str, Any], field: str, words: str) -> None:
    problem = question({**TINY, "layers": 6}, batch=12)
    with pytest.raises(SpecError, match=words) as refused:
        given(problem, **block)
    assert f"configuration.hybrid.{field}" in str(refused.value)
    if field == "schedule":
        assert "What it can be: " in str(refused.value)


# Its authors' own schedulers take any number of micro-batches for the five that put gradients of weights off, GPipe and
# 1F1B; both DualPipes need twice the stages, chunks a multiple of them, and PyTorch's 1F1B one for each stage.
@pytest.mark.parametrize(
    ("schedule", "batch", "program", "needs"),
    [
        ("interleaved", 6, "megatron-core", "a multiple of 4"),
        ("dualpipe", 6, "megatron-core", "8 or more"),
        ("dualpipe_v", 7, "torchtitan", "8 or more"),
        ("1f1b", 3, "torchtitan", "4 or more"),
        *((name, 3, "megatron-core", "") for name in ("gpipe", "1f1b", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min")),
    ],
)
def test_a_pinned_schedule_with_too_few_micro_batches_is_refused_with_the_number_that_would_do(
    schedule: str, batch: int, program: str, needs: str
) -> None:
    asked = question(EIGHT, batch=batch, fix={"schedule": schedule, "pipeline_parallel_size": 4, "microbatch_size": 1})
    rates = {**asked.transformer_rates["software"], "torchtitan": asked.transformer_rates["software"]["megatron-core"]}
    asked = replace(
        asked,
        calibration=replace(asked.calibration, program=program),
        transformer_rates={**asked.transformer_rates, "software": rates},
    )
    if not needs:
        assert schedule_of(plan(asked, Search())) == schedule
        return
    with pytest.raises(InfeasibleError, match=f"schedule {schedule} of 4 stages needs {needs} micro-batches, and a"):
        plan(asked, Search())


def test_stages_that_do_not_pair_off_are_told_of_dualpipe() -> None:
    asked = question(EIGHT, batch=16, fix={"schedule": "dualpipe", "pipeline_parallel_size": 3})
    with pytest.raises(InfeasibleError, match=r"pipeline_parallel_size is 3: DualPipe .* 3 stages do not pair off"):
        plan(asked, Search())


@pytest.mark.parametrize("schedule", NEW)
def test_a_pinned_schedule_is_planned(schedule: str) -> None:
    found = plan(question(EIGHT, batch=16, fix={"schedule": schedule}), Search())
    assert schedule_of(found) == schedule


def test_a_search_takes_the_schedules_of_the_program_and_no_others() -> None:
    asked = question({**EIGHT, "vocabulary": 128}, batch=16, network="1 Gbit/s")
    calibration = replace(asked.calibration, program="torchtitan")
    rates = {
        **asked.transformer_rates,
        "software": {"torchtitan": asked.transformer_rates["software"]["megatron-core"]},
    }
    titan = replace(asked, calibration=calibration, transformer_rates=rates, fixed={"pipeline_parallel_size": 4})
    found = plan(titan, Search())
    assert schedule_of(found) in ("zb_v", "dualpipe_v")
    without = replace(titan, excluded={"schedule": ("zb_v", "dualpipe_v")})
    assert plan(without, Search()).objective > found.objective
    core = plan(replace(asked, fixed={"pipeline_parallel_size": 4}), Search())
    assert schedule_of(core) == "1f1b"


def test_the_older_word_for_zb_h1_is_still_read() -> None:
    problem = question(EIGHT, batch=16)
    assert given(problem, pipeline=2, schedule="zero_bubble").schedule == "zb_h1"


def test_a_block_says_interleaved_by_its_chunks() -> None:
    with pytest.raises(ValueError, match="Write schedule: 1f1b, and interleave: 2 or more"):
        HybridSpec.model_validate({"schedule": "interleaved"})


def test_a_network_that_is_no_transformer_has_none_of_them() -> None:
    machines = [{"count": 1, "device": "a100-sxm4-80gb", "devices": 4, "network": "25 Gbit/s"}]
    problem = planner.load(
        {
            "dnn": {"zoo": "vgg16", "global_batch": 64},
            "cluster": {"machines": machines},
            "families": ["pipeline"],
            "fix": {"schedule": "zb_v"},
        }
    )
    with pytest.raises(InfeasibleError, match="which only layouts of transformers have"):
        planner.plan(problem)


@pytest.mark.parametrize("schedule", NEW)
def test_every_launch_file_runs_a_schedule_that_its_program_has(schedule: str) -> None:
    chunks = 1 if schedule in ("zb_h2", "dualpipe") else 2
    job = even_job(pipeline=2, schedule=schedule, interleave=chunks, num_microbatches=8)
    for module in (megatron, deepspeed, accelerate):
        assert any("runs 1F1B" in note for note in module.export(job).notes)
    written = even_job(LLAMA, pipeline=2, schedule=schedule, interleave=chunks, num_microbatches=8)
    text = torchtitan.export(written).files["launch.sh"]
    name = {"zb_v": "ZBVZeroBubble", "dualpipe_v": "DualPipeV"}.get(schedule, "1F1B")
    assert f"pipeline_parallel_schedule {name}" in text
    read = torchtitan.degrees(Path("train.sh"), text)
    assert read["schedule"] == (schedule if schedule in ("zb_v", "dualpipe_v") else "1f1b")


def test_torchtitan_runs_fewer_micro_batches_than_stages_as_gpipe() -> None:
    few = torchtitan.export(even_job(LLAMA, pipeline=2, num_microbatches=1))
    assert "pipeline_parallel_schedule GPipe" in few.files["launch.sh"]
    assert any("a micro-batch for each stage" in note for note in few.notes)


@pytest.mark.parametrize(("schedule", "chunks"), [("zb_h1", 1), ("v_half", 2)])
def test_torchtitan_says_once_that_it_runs_gpipe_for_a_schedule_it_lacks(schedule: str, chunks: int) -> None:
    few = torchtitan.export(even_job(LLAMA, pipeline=2, schedule=schedule, interleave=chunks, num_microbatches=1))
    assert "pipeline_parallel_schedule GPipe" in few.files["launch.sh"]
    (note,) = [one for one in few.notes if "1F1B" in one]
    assert note.startswith(f"torch.distributed.pipelining has no schedule {schedule}, and its 1F1B needs")
    assert "GPipe here" in note


def test_a_way_out_names_schedules_of_the_program_alone() -> None:
    document = {
        "dnn": {"transformer": EIGHT, "global_batch": 3, "dtype": "bf16", "optimizer": "adam"},
        "cluster": {"machines": [{"count": 1, "device": "h100-sxm", "devices": 4, "network": "200 Gbit/s"}]},
        "families": ["hybrid"],
        "calibration": {"program": "torchtitan"},
        "fix": {"schedule": "1f1b", "pipeline_parallel_size": 4},
    }
    with pytest.raises(InfeasibleError, match=r"fix.schedule: 1f1b -> gpipe or zb_v\n"):
        planner.plan(planner.load(document))


ON_TWO_KINDS: dict[str, Any] = {
    "dnn": {"transformer": EIGHT, "global_batch": 2, "dtype": "bf16", "optimizer": "adam"},
    "cluster": {
        "machines": [
            {"name": one, "count": 1, "device": one, "devices": 2, "inside": "nvlink-3", "network": "200 Gbit/s"}
            for one in ("h100-sxm", "a100-sxm4-80gb")
        ]
    },
    "families": ["hybrid"],
    "calibration": {"program": "torchtitan"},
}


@pytest.mark.parametrize("fix", [{"schedule": "1f1b"}, {}], ids=["pinned", "open"])
def test_stages_on_two_kinds_of_machines_are_told_of_too_few_micro_batches(fix: dict[str, str]) -> None:
    asked = planner.load({**ON_TWO_KINDS, "fix": {"pipeline_parallel_size": 4, **fix}})
    words = "1f1b of 4 stages needs 4 or more micro-batches, and a batch of 2 has 2 at most. Raise dnn.global_batch or"
    with pytest.raises(InfeasibleError, match=words):
        plan(asked, Search())
    more = {**ON_TWO_KINDS, "dnn": {**ON_TWO_KINDS["dnn"], "global_batch": 4}}
    found = plan(planner.load({**more, "fix": {"pipeline_parallel_size": 4, **fix}}), Search())
    assert schedule_of(found) == "1f1b"


def test_as_many_stages_as_devices_of_two_kinds_are_said_to_be_possible() -> None:
    asked = planner.load({**ON_TWO_KINDS, "fix": {"pipeline_parallel_size": 5}})
    with pytest.raises(InfeasibleError, match="is 5, and it can be 1, 2, 3, 4"):
        plan(asked, Search())


def test_a_pipeline_of_twelve_stages_in_v_half_is_planned() -> None:
    machines = [{"count": 2, "device": "h100-sxm", "devices": 8, "inside": "nvlink-4", "network": "400 Gbit/s"}]
    document = {
        "dnn": {
            "transformer": {**TINY, "layers": 24, "tied_embeddings": False},
            "global_batch": 64,
            "dtype": "bf16",
            "optimizer": "adam",
        },
        "cluster": {"machines": machines},
        "families": ["hybrid"],
        "calibration": {"program": "primus"},
        "fix": {"pipeline_parallel_size": 12, "schedule": "v_half"},
    }
    found = plan(planner.load(document), Search())
    assert schedule_of(found) == "v_half"


@pytest.mark.parametrize(("program", "is_uneven"), [("torchtitan", True), ("primus", False)])
def test_layers_are_moved_between_chunks_of_a_v_where_the_program_can_run_that(program: str, is_uneven: bool) -> None:
    network = {**LLAMA, "layers": 32, "vocabulary": 128_000, "sequence_length": 1024}
    machines = [{"count": 1, "device": "mi300x", "devices": 4}]
    fix = {"schedule": "zb_v", "pipeline_parallel_size": 4}
    asked = {"dnn": {"transformer": network, "global_batch": 32, "dtype": "bf16"}, "cluster": {"machines": machines}}
    found = planner.plan(
        {
            **asked,
            "families": ["hybrid"],
            "calibration": {"program": program},
            "fix": fix,
            "objective": "iteration_time",
        }
    )
    assert bool(found.configuration.stages) == is_uneven  # type: ignore[attr-defined]
    assert not any("1F1B" in note for note in planner.export(found, program).notes)


@pytest.mark.parametrize(
    ("schedule", "network", "stages", "words"),
    [
        ("zb_v", {"layers": 8}, 3, "8 layers do not divide into those of 3 stages"),
        ("v_half", {"layers": 15}, 4, "15 layers do not divide into those of 4 stages"),
        ("zb_h1", {"layers": 8, "tied_embeddings": True}, 2, "an output layer of its own alone"),
    ],
)
def test_schedules_that_primus_asserts_not_to_run_are_refused_of_it_alone(
    schedule: str, network: dict[str, Any], stages: int, words: str
) -> None:
    machines = [{"count": 1, "device": "mi300x", "devices": 4}]
    sizes = {**TINY, "tied_embeddings": False, **network}
    asked = {"dnn": {"transformer": sizes, "global_batch": 16, "dtype": "bf16"}, "cluster": {"machines": machines}}
    fix = {"schedule": schedule, "pipeline_parallel_size": stages}
    of_all = {**asked, "families": ["hybrid"], "objective": "iteration_time", "fix": fix}
    with pytest.raises(InfeasibleError, match=words):
        plan(planner.load({**of_all, "calibration": {"program": "primus"}}), Search())
    assert schedule_of(plan(planner.load({**of_all, "calibration": {"program": "torchtitan"}}), Search())) == schedule


def test_layers_pinned_unevenly_are_refused_where_the_program_asserts_equal_chunks() -> None:
    asked = {
        "dnn": {"transformer": {**TINY, "layers": 8, "tied_embeddings": False}, "global_batch": 16, "dtype": "bf16"},
        "cluster": {"machines": [{"count": 1, "device": "mi300x", "devices": 4}]},
        "families": ["hybrid"],
        "objective": "iteration_time",
        "fix": {"schedule": "zb_v", "pipeline_parallel_size": 2, "layers_per_stage": [3, 2, 2, 1]},
    }
    found = plan(planner.load({**asked, "calibration": {"program": "torchtitan"}}), Search())
    assert [one.layers for one in found.configuration.stages] == [3, 2, 2, 1]  # type: ignore[attr-defined]
    of_primus = planner.load({**asked, "calibration": {"program": "primus"}})
    with pytest.raises(InfeasibleError, match="layers_per_stage"):
        planner.plan(of_primus)
    with pytest.raises(SpecError, match="primus has equal chunks, and their layers differ"):
        planner.predict(of_primus, found.configuration)
