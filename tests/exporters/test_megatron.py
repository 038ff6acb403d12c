"""Megatron-LM's command: every option is one that it has, degrees go over exactly, and a script is read back."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from layout_jobs import cnn_job, drawn_jobs, even_job, hybrid_of, job_of, listed, planned, uneven_job

import planner
from planner.errors import InfeasibleError, SpecError
from planner.exporters import maxtext, megatron
from planner.exporters.export import Job
from planner.exporters.layouts import layout_of, pins_of, shared_pins
from planner.exporters.megatron import KNOWN
from planner.exporters.scripts import flags_of, launched
from planner.families.hybrid import prediction
from planner.families.hybrid.configuration import ORDER_NAMES, HybridConfiguration, PipelineStage, ReplicaGroup

LAUNCH, READER = Path("launch.sh"), megatron.EXPORTERS["megatron"]
SMALL = {"layers": 4, "hidden": 1024, "heads": 8, "vocabulary": 32000, "sequence_length": 1024}


def text_of(job: Job) -> str:
    return megatron.export(job).files["launch.sh"]


@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(drawn_jobs())
def test_degrees_go_over_exactly_and_options_are_known_and_a_script_is_read_back(job: Job) -> None:
    text, chosen = text_of(job), hybrid_of(job)
    words, number = launched(LAUNCH, text, "--tensor-model-parallel-size")
    assert flags_of(words[words.index("--num-layers") :]).keys() <= KNOWN
    assert number == chosen.num_devices
    found = READER.degrees(LAUNCH, text)
    network = job.problem.dnn.transformer
    assert network is not None
    run = megatron.as_run(layout_of("megatron", job), network)
    assert found == shared_pins(listed(run.chosen, network))
    same = pins_of(chosen, "tensor", "context", "pipeline", "data", "expert", "interleave", "microbatch", "recompute")
    assert {name: found[name] for name in same} == same
    assert run.chosen == chosen or len(run.notes) > 1, "nothing changes in silence"


def test_pins_that_are_read_back_give_the_same_plan() -> None:
    job = planned({})
    again = planned(READER.degrees(LAUNCH, text_of(job)))
    assert again.plan.configuration == job.plan.configuration
    assert again.plan.objective == pytest.approx(job.plan.objective)


def test_unlike_stages_are_written_as_a_layout() -> None:
    words, _ = launched(LAUNCH, text_of(uneven_job((1, 3, 2), data=2)), "--tensor-model-parallel-size")
    assert flags_of(words)["pipeline-model-parallel-layout"] == ["Et*1|t*3|t*2L"]


def test_a_plan_of_copies_of_a_transformer_gets_the_best_constant_bucket() -> None:
    asked = {
        "dnn": {"transformer": SMALL, "batch_per_device": 4, "dtype": "fp16", "optimizer": "momentum"},
        "cluster": {
            "machines": [
                {"count": 2, "device": "v100-sxm2-16gb", "devices": 4, "network": "10 Gbit/s", "latency": "20 us"}
            ]
        },
        "families": ["all_reduce"],
        "constraints": {"machines": {"exactly": 2}},
        "objective": "iteration_time",
    }
    problem = planner.load(asked)
    job = Job(problem=problem, plan=planner.plan(problem))
    found = megatron.export(job)
    assert any("buckets have one size" in note for note in found.notes)
    words, number = launched(LAUNCH, found.files["launch.sh"], "--tensor-model-parallel-size")
    flags = flags_of(words)
    assert number == 8
    assert int(flags["ddp-bucket-size"][0]) > 0
    assert "overlap-grad-reduce" in flags
    assert flags["optimizer"] == ["sgd"]
    assert READER.degrees(LAUNCH, found.files["launch.sh"])["data_parallel_size"] == 8


def test_what_megatron_runs_otherwise_is_noted_with_its_seconds() -> None:
    notes = megatron.export(even_job(pipeline=2, schedule="gpipe", num_microbatches=8)).notes
    assert any("no schedule GPipe" in note and "an iteration" in note for note in notes)
    notes = megatron.export(even_job(pipeline=2, schedule="zb_h1", num_microbatches=8)).notes
    assert any("no schedule ZB-H1" in note for note in notes)
    notes = megatron.export(even_job(pipeline=2, data=4, order=ORDER_NAMES[-1])).notes
    assert any("numbers the ranks" in note for note in notes)


def test_data_ranks_within_the_pipeline_are_asked_for_only_where_its_groups_can_be_made() -> None:
    inner = ORDER_NAMES[1]
    assert "--use-tp-pp-dp-mapping" in text_of(even_job(pipeline=2, data=4, order=inner))
    split = megatron.export(even_job(pipeline=2, data=4, context=2, order=inner))
    assert "--use-tp-pp-dp-mapping" not in split.files["launch.sh"]
    assert any("numbers the ranks" in note for note in split.notes)


def test_what_it_cannot_run_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="not known as a transformer"):
        megatron.export(cnn_job())
    with pytest.raises(InfeasibleError, match=r"has no ALiBi.*--tensor-model-parallel-size 1"):
        megatron.export(even_job({**SMALL, "positions": "alibi"}, data=2))


def test_replicas_of_unlike_numbers_of_micro_batches_are_refused() -> None:
    kinds = [{"name": "old", "device": "v100-sxm2-32gb"}, {"name": "new", "device": "a100-sxm4-80gb"}]
    machines = [{**kind, "count": 1, "devices": 4, "network": "100 Gbit/s", "latency": "5 us"} for kind in kinds]
    problem = planner.load(
        {
            "dnn": {"transformer": SMALL, "global_batch": 24, "dtype": "fp16", "optimizer": "adam"},
            "cluster": {"machines": machines},
            "objective": "iteration_time",
        }
    )
    rows = (
        ReplicaGroup(machines="old", data=4, num_microbatches=2),
        ReplicaGroup(machines="new", data=4, num_microbatches=4),
    )
    chosen = HybridConfiguration(global_batch_size=24, data=8, stages=(PipelineStage(layers=4),), replicas=rows)
    with pytest.raises(InfeasibleError, match="unlike numbers"):
        megatron.export(job_of(problem, "hybrid", chosen))


def test_replicas_of_equal_numbers_of_micro_batches_are_launched_kind_by_kind() -> None:
    kinds = [{"name": "old", "device": "a100-sxm4-40gb"}, {"name": "new", "device": "a100-sxm4-80gb"}]
    machines = [{**kind, "count": 1, "devices": 4, "network": "100 Gbit/s", "latency": "5 us"} for kind in kinds]
    dnn = {"transformer": SMALL, "global_batch": 24, "dtype": "bf16", "optimizer": "adam"}
    problem = planner.load({"dnn": dnn, "cluster": {"machines": machines}, "objective": "iteration_time"})
    rows = tuple(ReplicaGroup(machines=name, data=2, num_microbatches=6) for name in ("old", "new"))
    cut = (PipelineStage(layers=4),)
    chosen = HybridConfiguration(global_batch_size=24, tensor=2, data=4, stages=cut, replicas=rows)
    found = megatron.export(job_of(problem, "hybrid", chosen))
    assert "--tensor-model-parallel-size 2" in found.files["launch.sh"]
    assert any("give those of old, then new their ranks in this order" in note for note in found.notes)
    assert not any("then takes" in note for note in found.notes)
    with pytest.raises(InfeasibleError, match=r"devices of one kind\. Pin fix\.device"):
        maxtext.export(job_of(problem, "hybrid", chosen))
    two = replace(chosen, data=2, pipeline=2, stages=(PipelineStage(layers=2),) * 2)
    two = replace(two, replicas=tuple(replace(one, data=1, num_microbatches=12) for one in rows))
    with pytest.raises(InfeasibleError, match="pipelines that each stand on another kind"):
        megatron.export(job_of(problem, "hybrid", two))
    for one, is_refused in ((chosen, False), (two, True)):
        lines = prediction.explain(problem, one, prediction.predict(problem, one))
        assert any("cannot launch this layout" in line for line in lines) == is_refused


def test_stages_on_unlike_machines_start_each_kind_with_its_own_number_of_processes() -> None:
    kinds = [
        {"name": "old", "device": "v100-sxm2-32gb", "devices": 4},
        {"name": "new", "device": "a100-sxm4-80gb", "devices": 8},
    ]
    counts = {"old": 2, "new": 1}
    machines = [
        {**kind, "count": counts[str(kind["name"])], "network": "100 Gbit/s", "latency": "5 us"} for kind in kinds
    ]
    problem = planner.load(
        {
            "dnn": {"transformer": SMALL, "global_batch": 16, "dtype": "fp16", "optimizer": "adam"},
            "cluster": {"machines": machines},
            "objective": "iteration_time",
        }
    )
    stages = (PipelineStage(layers=1, machines="old"), PipelineStage(layers=3, machines="new"))
    chosen = HybridConfiguration(global_batch_size=16, pipeline=2, data=8, stages=stages, order=ORDER_NAMES[0])
    job = job_of(problem, "hybrid", chosen)
    found = megatron.export(job)
    assert "--nproc-per-node 4" in found.files["launch.sh"]
    assert "--nproc-per-node 8" in found.files["launch.sh"]
    assert any("give those of old, then new" in note for note in found.notes)
    read = READER.degrees(LAUNCH, found.files["launch.sh"])
    assert (read["num_devices"], read["data_parallel_size"]) == (16, 8)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("--sequence-parallel", "--sequence-paralel", "--sequence-paralel: Megatron-LM has no such option"),
        (
            "--pipeline-model-parallel-size 2",
            "--pipeline-model-parallel-size 3",
            "8 devices do not divide by 2 x 1 x 3",
        ),
        ("--nproc-per-node 4", "--nproc-per-node four", "'four' is no whole number of 1 or more"),
        ("--micro-batch-size 1", "", "micro-batch-size: it is missing"),
        ("--bf16", "--recompute-granularity some", "recompute: 'some' is none"),
    ],
)
def test_a_damaged_script_is_refused_with_its_option(old: str, new: str, why: str) -> None:
    text = text_of(even_job(tensor=2, pipeline=2, data=2, sequence_parallel=True))
    assert old in text
    with pytest.raises(SpecError, match=why):
        READER.degrees(LAUNCH, text.replace(old, new))


def test_only_its_own_scripts_are_recognised() -> None:
    text = text_of(even_job(tensor=2, data=2))
    assert megatron.recognises(LAUNCH, text)
    assert not megatron.recognises(Path("launch.yaml"), text)
    assert not megatron.recognises(LAUNCH, "torchrun train.py")
