"""Accelerate's file: the engine that fits the layout, its degrees, and the same read back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hybrid_questions import MOE
from hypothesis import HealthCheck, given, settings
from layout_jobs import cnn_job, drawn_jobs, even_job, hybrid_of, planned, uneven_job

from planner.errors import InfeasibleError, SpecError
from planner.exporters import accelerate
from planner.exporters.accelerate import Engine, engine_of, run_with
from planner.exporters.buckets import GradientTensors
from planner.exporters.deepspeed import as_run
from planner.exporters.export import Job
from planner.exporters.layouts import layout_of, pins_of
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.all_reduce.fusion import MIB, ddp_buckets
from planner.families.hybrid.configuration import ORDER_NAMES
from planner.units import Dimension, format_human

FILE = Path("accelerate.yaml")


def text_of(job: Job) -> str:
    return accelerate.export(job).files["accelerate.yaml"]


@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(drawn_jobs())
def test_degrees_go_over_exactly_and_are_read_back(job: Job) -> None:
    try:
        text = text_of(job)
    except InfeasibleError:
        return
    layout, chosen = layout_of("accelerate", job), hybrid_of(job)
    engine = engine_of(layout)
    assert f"distributed_type: '{engine.value}'" in text
    run = as_run(layout) if engine is Engine.DEEPSPEED else run_with(layout, engine)
    found = dict(accelerate.degrees(FILE, text))
    assert found["num_devices"] == chosen.num_devices
    assert found.pop("num_microbatches", chosen.num_microbatches) == chosen.num_microbatches
    assert found.items() <= pins_of(run.chosen).items()
    assert run.chosen == chosen or run.notes, "nothing changes in silence"


@pytest.mark.parametrize(
    ("decisions", "engine"),
    [
        ({}, Engine.NO),
        ({"data": 4}, Engine.MULTI_GPU),
        ({"data": 4, "zero": 1}, Engine.DEEPSPEED),
        ({"data": 4, "zero": 1, "offload_optimizer": True}, Engine.DEEPSPEED),
        ({"data": 4, "zero": 2}, Engine.FSDP),
        ({"data": 4, "zero": 3, "tensor": 2}, Engine.FSDP),
        ({"data": 4, "tensor": 2}, Engine.MEGATRON_LM),
        ({"data": 4, "context": 2, "zero": 1}, Engine.MEGATRON_LM),
        ({"data": 2, "pipeline": 2}, Engine.MEGATRON_LM),
    ],
)
def test_the_engine_is_the_plainest_that_does_it(decisions: dict[str, Any], engine: Engine) -> None:
    assert engine_of(layout_of("accelerate", even_job(**decisions))) is engine


def test_the_file_of_deepspeed_comes_along() -> None:
    found = accelerate.export(even_job(data=4, zero=1))
    assert "deepspeed_config_file: ds_config.json" in found.files["accelerate.yaml"]
    assert '"stage": 1' in found.files["ds_config.json"]
    assert "mixed_precision" not in found.files["accelerate.yaml"], "DeepSpeed's own file says it"


def test_micro_batches_and_buckets_of_copies_are_left_to_the_program_with_what_they_lose() -> None:
    found = accelerate.export(cnn_job())
    assert any("batch_size=32" in note for note in found.notes)
    assert any("DDP's own buckets of 25 MiB" in note and "bucket_cap_mb=" in note for note in found.notes)
    assert "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=1" in found.files["launch.sh"]
    assert accelerate.degrees(FILE, found.files["accelerate.yaml"]) == {"num_devices": 32}


def test_a_cap_that_is_given_holds_for_the_first_bucket_too() -> None:
    job = cnn_job()
    planned_one = job.plan.configuration
    assert isinstance(planned_one, AllReduceConfiguration)
    note = next(one for one in accelerate.export(job).notes if "bucket_cap_mb=" in one)
    cap_mib = float(note.partition("bucket_cap_mb=")[2].partition(")")[0])
    exchange = GradientTensors(job.problem, planned_one)
    seconds = exchange.iteration_time_s(ddp_buckets(exchange.size_bytes, [cap_mib * MIB]).ends)
    assert note.partition(")]: ")[2].startswith(format_human(seconds, Dimension.TIME, 4))
    best_s = min(
        exchange.finish_s(ddp_buckets(exchange.size_bytes, [size * MIB]).ends) for size in (0.5, 1, 5, 20, 25, 50, 100)
    )
    assert exchange.finish_s(ddp_buckets(exchange.size_bytes, [cap_mib * MIB]).ends) <= best_s


def test_pins_that_are_read_back_give_the_same_plan() -> None:
    exact = {"overlap_data": False, "overlap_tensor": False, "rank_order": ORDER_NAMES[0], "zero_stage": 1}
    job = planned({**exact, "pipeline_parallel_size": 2, "chunks_per_device": 1})
    pins = accelerate.degrees(FILE, text_of(job))
    again = planned({**exact, "chunks_per_device": 1, **pins})
    assert again.plan.configuration == job.plan.configuration


def test_what_the_engine_runs_otherwise_is_noted_with_its_seconds() -> None:
    notes = accelerate.export(even_job(pipeline=2, interleave=2, num_microbatches=8)).notes
    assert any("no chunks" in note and "an iteration then takes" in note for note in notes)
    notes = accelerate.export(even_job(tensor=2, data=2, zero=3, sequence_parallel=True)).notes
    assert any("does not split the sequence" in note for note in notes)
    notes = accelerate.export(even_job(tensor=2, data=2, overlap_data=True)).notes
    assert any("no overlaps" in note for note in notes)


def test_stages_that_are_unlike_but_for_the_last_are_refused() -> None:
    assert "megatron_lm_decoder_last_pipeline_num_layers: 1" in text_of(uneven_job((2, 2, 1)))
    with pytest.raises(InfeasibleError, match=r"all stages but the last are equal.*1, 3, 2 layers"):
        accelerate.export(uneven_job((1, 3, 2)))


def test_machines_with_unlike_numbers_of_devices_are_refused() -> None:
    job = even_job(data=3, microbatch=2)  # of machines with four devices
    assert "num_processes: 3" in text_of(job)
    with pytest.raises(InfeasibleError, match="as many processes on every machine"):
        accelerate.export(even_job(data=6))


def test_experts_over_tensor_ranks_with_sharded_gradients_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="no ZeRO 2"):
        accelerate.export(even_job(MOE, tensor=2, data=4, expert=2, zero=2, sequence_parallel=True))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("num_processes: 8", "num_processes: many", "num_processes: 'many' is no whole number"),
        ("num_processes: 8", "num_processes: 9", "9 devices do not divide by 2 x 1 x 2"),
        ("megatron_lm_tp_degree: 2", "megatron_lm_tp: 2", "megatron_lm_tp_degree: it is missing"),
        ("megatron_lm_config:\n", "megatron_lm_config: [1]\nrest:\n", "megatron_lm_config: it is no mapping"),
        ("compute_environment", "compute_environment: [", "no YAML document"),
    ],
)
def test_a_damaged_file_is_refused_with_its_key(old: str, new: str, why: str) -> None:
    text = text_of(even_job(tensor=2, pipeline=2, data=2))
    assert old in text
    with pytest.raises(SpecError, match=why):
        accelerate.degrees(FILE, text.replace(old, new, 1))


def test_only_its_own_files_are_recognised() -> None:
    files = accelerate.export(even_job(data=4)).files
    assert accelerate.recognises(FILE, files["accelerate.yaml"])
    assert not accelerate.recognises(Path("launch.sh"), files["launch.sh"])
    assert not accelerate.recognises(FILE, "kind: TFJob")


def test_a_users_program_is_quoted() -> None:
    job = even_job(data=4)
    asked = replace(job, settings=replace(job.settings, script="my.py --name 'a b' $(reboot)"))
    assert "my.py --name 'a b' '$(reboot)'" in accelerate.export(asked).files["launch.sh"]
