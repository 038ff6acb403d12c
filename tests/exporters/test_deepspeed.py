"""DeepSpeed's configuration: the batch is a product, degrees go over exactly, and what changes is said."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from layout_jobs import (
    cnn_job,
    deepspeed_document,
    drawn_jobs,
    even_job,
    hybrid_of,
    job_of,
    listed,
    planned,
    uneven_job,
)

import planner
from planner.errors import InfeasibleError, SpecError
from planner.exporters import deepspeed
from planner.exporters.deepspeed import KNOWN, REMOVED
from planner.exporters.export import Job
from planner.exporters.layouts import layout_of, pins_of
from planner.families.hybrid.configuration import ORDER_NAMES
from planner.families.pipeline.cost import PipelineConfiguration, PipelineStage

CONFIG, STAGES = Path("ds_config.json"), Path("planned_pipeline.py")


def degrees_of(job: Job) -> dict[str, Any]:
    """What both files together say."""
    files = deepspeed.export(job).files
    found = dict(deepspeed.degrees(CONFIG, files["ds_config.json"]))
    if "planned_pipeline.py" in files:
        found |= deepspeed.degrees(STAGES, files["planned_pipeline.py"])
    return found


@pytest.mark.parametrize("is_probe", [False, True])
def test_what_has_no_room_with_the_decisions_that_it_takes_is_refused_and_told_what_to_pin(is_probe: bool) -> None:
    job = even_job(tensor=2, data=2, microbatch=4, sequence_parallel=True)
    held = job.plan.prediction.memory_bytes["total"]
    tight, roomy = (
        replace(job, problem=replace(job.problem, limits=replace(job.problem.limits, memory_per_device_bytes=limit)))
        for limit in (held, 1.5 * held)
    )
    assert deepspeed.export(replace(roomy, is_probe=is_probe)).files
    with pytest.raises(InfeasibleError, match=r"a device holds 64 MiB too much\. Pin fix\.sequence_parallel: false"):
        deepspeed.export(replace(tight, is_probe=is_probe))


@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(drawn_jobs())
def test_degrees_go_over_exactly_and_the_batch_is_a_product(job: Job) -> None:
    try:
        document = deepspeed_document(job)
    except InfeasibleError:
        return
    chosen, found = hybrid_of(job), degrees_of(job)
    parts = [document[name] for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")]
    assert document["train_batch_size"] == parts[0] * parts[1] * chosen.data == chosen.global_batch_size
    assert document.keys() <= KNOWN
    run = deepspeed.with_files(layout_of("deepspeed", job))[0]
    if "gradient_accumulation_steps" in found:
        assert found == {"num_devices": chosen.data, "gradient_accumulation_steps": chosen.num_microbatches}
        assert chosen.num_devices == chosen.data
    else:
        network = job.problem.dnn.transformer
        assert network is not None
        assert found.items() <= pins_of(listed(run.chosen, network)).items()
        same = pins_of(chosen, "tensor", "context", "pipeline", "data", "expert", "microbatch", "num_devices")
        assert {name: found[name] for name in same} == same
    assert run.chosen == chosen or len(run.notes) > 1, "nothing changes in silence"


def test_a_plan_of_copies_says_what_one_exchange_behind_the_backward_pass_loses() -> None:
    job = cnn_job()
    found = deepspeed.export(job)
    document = json.loads(found.files["ds_config.json"])
    number = job.plan.configuration.to_document()["num_devices"]
    assert document["train_batch_size"] == 32 * number
    assert document["zero_optimization"]["stage"] == 0
    largest = max(group["size_bytes"] for group in job.plan.configuration.to_document()["fusion_groups"])
    assert document["zero_optimization"]["reduce_bucket_size"] == pytest.approx(largest / 4, abs=1), "fp32 gradients"
    assert any("behind the backward pass" in note and "ddp overlaps" in note for note in found.notes)
    assert degrees_of(job) == {"num_devices": number, "gradient_accumulation_steps": 1}


def test_pins_of_a_plan_of_copies_give_the_same_plan() -> None:
    job = cnn_job()
    again = cnn_job(fix=degrees_of(job))
    assert again.plan.configuration == job.plan.configuration


def test_pins_that_are_read_back_give_the_same_plan() -> None:
    exact = {"zero_stage": 2, "sequence_parallel": False, "overlap_tensor": False, "rank_order": ORDER_NAMES[0]}
    job = planned({**exact, "tensor_parallel_size": 2, "context_parallel_size": 1})
    again = planned({**exact, **degrees_of(job)})
    assert again.plan.configuration == job.plan.configuration


def test_what_deepspeed_runs_otherwise_is_noted_with_its_seconds() -> None:
    notes = deepspeed.export(even_job(pipeline=2, interleave=2, num_microbatches=8)).notes
    assert any("no chunks" in note and "an iteration then takes" in note for note in notes)
    notes = deepspeed.export(even_job(pipeline=2, schedule="gpipe", num_microbatches=8)).notes
    assert any("runs 1F1B, not gpipe" in note for note in notes)
    notes = deepspeed.export(even_job(tensor=2, data=2, sequence_parallel=True, overlap_tensor=True)).notes
    assert any("does not split the sequence" in note for note in notes)
    notes = deepspeed.export(even_job(context=2, data=2, zero=1)).notes
    assert any("Ulysses" in note for note in notes)
    notes = deepspeed.export(even_job(data=2, recompute="selective")).notes
    assert any("whole layers again, or nothing; none here" in note for note in notes)
    found = deepspeed_document(even_job(data=2, offload_optimizer=True))["zero_optimization"]
    assert (found["stage"], found["offload_optimizer"]["device"]) == (1, "cpu")


@pytest.mark.parametrize(
    ("decisions", "why"),
    [
        ({"context": 2, "tensor": 2}, "beside data parallelism only"),
        ({"context": 2, "pipeline": 2}, "beside data parallelism only"),
        ({"context": 16}, "8 heads do not divide by 16 ranks"),
    ],
)
def test_degrees_that_do_not_go_together_are_refused(decisions: dict[str, Any], why: str) -> None:
    with pytest.raises(InfeasibleError, match=why):
        deepspeed.export(even_job(**decisions))


def test_plans_of_servers_and_of_unlike_shares_are_refused() -> None:
    asked = {"dnn": {"zoo": "alexnet", "batch_per_device": 32}, "cluster": {"preset": "osf-testbed"}}
    problem = planner.load({**asked, "families": ["parameter_server"]})
    with pytest.raises(InfeasibleError, match=r"of the family parameter_server.*--to tfjob"):
        deepspeed.export(Job(problem=problem, plan=planner.plan(problem, time_limit_s=5.0)))
    job = cnn_job()
    odd = replace(job.plan.configuration, global_batch_size=1001)  # type: ignore[type-var]
    with pytest.raises(InfeasibleError, match=r"unevenly.*dnn\.global_batch: 1024"):
        deepspeed.export(replace(job, plan=replace(job.plan, configuration=odd)))


def test_stages_of_a_pipeline_stand_in_a_module_of_their_own() -> None:
    job = uneven_job((1, 3, 2), tensor=2, data=2, zero=1)
    text = deepspeed.export(job).files["planned_pipeline.py"]
    compile(text, "planned_pipeline.py", "exec")
    assert "BLOCKS_PER_STAGE = (1, 3, 2)" in text
    assert "tensor_parallel" not in deepspeed_document(job), "AutoTP does not go with a pipeline"
    assert degrees_of(job)["tensor_parallel_size"] == 2
    assert degrees_of(job)["num_devices"] == 12


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"zero_optimisation": {}}, "zero_optimisation: DeepSpeed has no such key"),
        ({"amp": {"enabled": True}}, "amp: DeepSpeed has removed this key"),
        ({"train_batch_size": 9}, "9 is no multiple of 1 x 2"),
        ({"train_batch_size": True}, "True is no whole number of 1 or more"),
        ({"zero_optimization": 3}, "it is no mapping"),
        ({"zero_optimization": {"stage": 7}}, "zero_stage: '7' is none"),
        ({"tensor_parallel": {"autotp_size": "2"}}, "'2' is no whole number of 1 or more"),
    ],
)
def test_a_damaged_configuration_is_refused_with_its_key(change: dict[str, Any], why: str) -> None:
    text = json.dumps({**deepspeed_document(even_job(data=4, zero=1)), **change})
    with pytest.raises(SpecError, match=why):
        deepspeed.degrees(CONFIG, text)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, '{"a": ' + '"' + "x" * (1 << 20) + '"}'])
def test_what_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"ds_config\.json"):
        deepspeed.degrees(CONFIG, text)


def test_a_module_without_its_numbers_is_refused() -> None:
    text = deepspeed.export(even_job(pipeline=2)).files["planned_pipeline.py"]
    with pytest.raises(SpecError, match="NUM_DATA: it is missing"):
        deepspeed.degrees(STAGES, text.replace("NUM_DATA = ", "DATA = "))


def test_only_its_own_files_are_recognised() -> None:
    files = deepspeed.export(even_job(pipeline=2)).files
    assert deepspeed.recognises(CONFIG, files["ds_config.json"])
    assert deepspeed.recognises(STAGES, files["planned_pipeline.py"])
    assert not deepspeed.recognises(Path("launch.sh"), files["launch.sh"])
    assert not deepspeed.recognises(CONFIG, "{}")
    assert not KNOWN & REMOVED


def pipeline_job(replicas: tuple[int, int], *, schedule: str = "1f1b") -> Job:
    """A plan of a network of convolutions in two stages, cut behind the fifth layer."""
    machines = [{"count": 1, "device": "v100-sxm2-16gb", "devices": 4, "network": "10 Gbit/s", "latency": "20 us"}]
    asked = {"dnn": {"zoo": "vgg16", "global_batch": 128}, "cluster": {"machines": machines}, "families": ["pipeline"]}
    problem = planner.load({**asked, "objective": "iteration_time"})
    names, where = [layer.name for layer in problem.dnn.layers], problem.cluster.machine_groups[0].name
    cuts = ((names[0], names[4]), (names[5], names[-1]))
    stages = tuple(
        PipelineStage(first=first, last=last, machines=where, replicas=number)
        for (first, last), number in zip(cuts, replicas, strict=True)
    )
    chosen = PipelineConfiguration(stages=stages, num_microbatches=8, global_batch_size=128, schedule=schedule)
    return job_of(problem, "pipeline", chosen)


def test_stages_of_layers_become_a_pipeline_module() -> None:
    job = pipeline_job((2, 2))
    found, read = deepspeed.export(job), degrees_of(job)
    assert (read["pipeline_parallel_size"], read["data_parallel_size"], read["num_devices"]) == (2, 2, 4)
    assert read["microbatch_size"] == 8
    number = len(job.problem.dnn.layers)
    assert f"BLOCKS_PER_STAGE = (5, {number - 5})" in found.files["planned_pipeline.py"]
    assert "num_before=0" in found.files["planned_pipeline.py"]
    assert any(f"the {number} layers of the network" in note for note in found.notes)
    assert any(
        "runs 1F1B, not gpipe" in note for note in deepspeed.export(pipeline_job((2, 2), schedule="gpipe")).notes
    )


def test_stages_that_a_pipeline_module_cannot_have_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="as many replicas, and those of the plan have 3, 1"):
        deepspeed.export(pipeline_job((3, 1)))
    job = pipeline_job((2, 2))
    uneven = replace(job.plan.configuration, global_batch_size=100)  # type: ignore[type-var]
    with pytest.raises(InfeasibleError, match="100 samples do not divide by 2 x 8"):
        deepspeed.export(replace(job, plan=replace(job.plan, configuration=uneven)))


def test_a_plan_with_copies_of_states_keeps_weights_a_second_time_nearby() -> None:
    found = deepspeed.export(even_job(data=8, zero=3, shard=4))
    assert json.loads(found.files["ds_config.json"])["zero_optimization"]["zero_hpz_partition_size"] == 4
    assert any("second copy of the weights (hpZ" in note for note in found.notes)
    assert any("shards over all data ranks" in note for note in found.notes)
    for job in (even_job(data=8, zero=3), even_job(data=8, zero=2, shard=4)):
        assert "zero_hpz_partition_size" not in deepspeed.export(job).files["ds_config.json"]


def test_zero_3_gathers_as_many_weights_ahead_as_a_layer_has_where_communication_overlaps() -> None:
    ahead, none = (
        deepspeed_document(even_job(data=8, zero=3, overlap_data=one))["zero_optimization"][
            "stage3_prefetch_bucket_size"
        ]
        for one in (True, False)
    )
    assert 12 * 1024**2 < ahead < 13 * 1024**2
    assert none == 0
    assert "stage3_prefetch_bucket_size" not in deepspeed_document(even_job(data=8, zero=2))["zero_optimization"]
