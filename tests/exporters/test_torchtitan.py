"""torchtitan's overrides: the degrees go over exactly, what changes is said, and a script is read back."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layout_jobs import cnn_job, drawn_jobs, even_job, hybrid_of, listed, planned, uneven_job
from modern_blocks import DEEPSEEK, LLAMA, QWEN

from planner.errors import InfeasibleError, SpecError
from planner.exporters import torchtitan
from planner.exporters.export import Job, Settings
from planner.exporters.layouts import layout_of, pins_of
from planner.exporters.scripts import flags_of, launched
from planner.exporters.torchtitan import FLAVOURS, Flavour, flavour_of, module_names
from planner.families.hybrid.configuration import HybridConfiguration
from planner.zoo.transformers import row

LAUNCH = Path("launch.sh")
PREDICTING = {**DEEPSEEK, "mtp_layers": 1, "rotary": {"interleaved": True}}  # several tokens


def flags(job: Job) -> dict[str, list[str]]:
    words, _ = launched(LAUNCH, torchtitan.export(job).files["launch.sh"], "--parallelism.tensor_parallel_degree")
    return flags_of(words)


@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(drawn_jobs((LLAMA, QWEN)))
def test_degrees_go_over_exactly_and_products_hold_and_a_script_is_read_back(job: Job) -> None:
    try:
        text = torchtitan.export(job).files["launch.sh"]
    except InfeasibleError:
        return
    found, chosen = torchtitan.degrees(LAUNCH, text), hybrid_of(job)
    same = ("tensor", "context", "pipeline", "data", "expert", "interleave", "microbatch", "recompute", "num_devices")
    expected = pins_of(chosen, *same)
    assert {name: found[name] for name in expected} == expected
    network = job.problem.dnn.transformer
    assert network is not None
    run = torchtitan.as_run(layout_of("torchtitan", job), network)
    name = "interleaved" if run.chosen.schedule == "1f1b" and run.chosen.interleave > 1 else run.chosen.schedule
    assert found.items() <= {**pins_of(listed(run.chosen, network)), "schedule": name}.items()
    assert (run.chosen == chosen) or run.notes, "nothing changes in silence"
    products_hold(job)


def products_hold(job: Job) -> None:
    """What torchtitan asserts of degrees and batches."""
    found = flags(job)
    number = {
        name.rpartition(".")[2]: int(values[0]) for name, values in found.items() if values and values[0].isdigit()
    }
    shards, copies = number["data_parallel_shard_degree"], number["data_parallel_replicate_degree"]
    inner = number["context_parallel_degree"] * number["tensor_parallel_degree"]
    stages = number["pipeline_parallel_degree"]
    assert copies * shards * inner * stages == layout_of("torchtitan", job).chosen.num_devices
    assert shards * inner % number["expert_parallel_degree"] == 0
    assert number["global_batch_size"] % (number["local_batch_size"] * copies * shards) == 0
    if stages > 1:
        assert number["global_batch_size"] == number["local_batch_size"] * copies * shards
        assert number["local_batch_size"] % number["pipeline_parallel_microbatch_size"] == 0
        assert "training.disable_cuda_graphs" in found


def test_unlike_stages_are_written_module_by_module() -> None:
    parts = flags(uneven_job((1, 3, 2), LLAMA, data=2))["parallelism.module_fqns_per_model_part"]
    assert [part.split(",") for part in parts] == [
        ["tok_embeddings", "layers.0"],
        ["layers.1", "layers.2", "layers.3"],
        ["layers.4", "layers.5", "norm", "lm_head"],
    ]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_every_module_stands_in_one_stage_in_order(layers: list[int]) -> None:
    names = [name for part in module_names(layers) for name in part]
    assert names == ["tok_embeddings", *(f"layers.{index}" for index in range(sum(layers))), "norm", "lm_head"]


@pytest.mark.parametrize(
    ("layers", "pipeline", "interleave"), [(8, 2, 1), (8, 2, 2), (30, 4, 1), (6, 2, 4), (126, 16, 1), (61, 4, 4)]
)
def test_chunks_hold_all_layers_and_the_ends_no_more_than_others(layers: int, pipeline: int, interleave: int) -> None:
    chosen = HybridConfiguration(global_batch_size=16, pipeline=pipeline, interleave=interleave)
    found = chosen.chunk_layers(layers)
    assert len(found) == pipeline * interleave
    assert sum(found) == layers
    assert max(found) - min(found) == (layers % len(found) > 0)
    assert found[-1] == min(found)
    assert layers % len(found) in {0, len(found) - 1} or found[0] == min(found)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("llama3.1-8b", "llama3_8b"),
        ("llama3-8b", None),
        ("llama3.1-405b", "llama3_405b"),
        ("deepseek-v3", None),
        ("llama2-7b", None),
        ("mixtral-8x7b", None),
        ("gpt3-175b", None),
    ],
)
def test_a_network_is_named_by_its_sizes_and_parts(name: str, config: str | None) -> None:
    found = flavour_of(row(name).transformer)
    assert (found.config if found else None) == config


@pytest.mark.parametrize(
    "flavour", [one for one in FLAVOURS if one.module != "deepseek_v3"], ids=lambda one: one.config
)
def test_its_own_configurations_are_read_back_as_the_networks_of_the_zoo_with_their_sizes(flavour: Flavour) -> None:
    options = (
        "--training.global_batch_size 64 --parallelism.tensor_parallel_degree 8 --parallelism.expert_parallel_degree 1"
    )
    for named in (
        f"--module {flavour.module} --config {flavour.config}",
        f"--model.name {flavour.module} --model.flavor {flavour.size} --training.seq_len 2048",
    ):
        found = torchtitan.training(LAUNCH, f"torchrun --nproc-per-node 8 -m torchtitan.train {options} {named}\n")
        assert flavour_of(row(found.dnn["zoo"]).transformer) == flavour
        assert found.dnn.get("dtype") == ("fp8" if flavour.is_float8 else "bf16")
        assert found.dnn.get("sequence_length", 2048) == 2048
        assert not found.warnings


OPTIONS = """
[model]
name = "llama3"
flavor = "70B"
converters = []
[training]
local_batch_size = 8
seq_len = 4096
[parallelism]
data_parallel_shard_degree = {shards}
tensor_parallel_degree = 8
[activation_checkpoint]
mode = "full"
[compile]
enable = {enable}
components = ["model", "loss"]
"""


def test_a_file_of_options_is_read_as_a_command_with_the_same_options() -> None:
    file = Path("llama3_70b.toml")
    text = OPTIONS.format(shards=4, enable="true")
    assert torchtitan.recognises(file, text)
    words = "--model.name llama3 --model.flavor 70B --training.local_batch_size 8 --training.seq_len 4096"
    words += " --parallelism.data_parallel_shard_degree 4 --parallelism.tensor_parallel_degree 8"
    words += " activation-checkpoint:full --compile.enable --compile.components model,loss"
    script = f"torchrun --nnodes 4 --nproc-per-node 8 -m torchtitan.train {words}\n"
    assert torchtitan.degrees(file, text) == torchtitan.degrees(LAUNCH, script)
    assert torchtitan.training(file, text) == torchtitan.training(LAUNCH, script)
    assert torchtitan.training(file, text).dnn["global_batch"] == 32
    eager = torchtitan.training(file, OPTIONS.format(shards=4, enable="false"))
    assert eager.calibration == {"program": "torchtitan-eager"}
    with pytest.raises(SpecError, match="does not say how many"):
        torchtitan.degrees(file, OPTIONS.format(shards=-1, enable="true"))
    with pytest.raises(SpecError, match="no TOML"):
        torchtitan.degrees(file, OPTIONS.format(shards="", enable="true"))


@pytest.mark.parametrize("more", [f"[{'.'.join('a' * 5000)}]\nb = 1\n", f"c = {'[' * 5000}"])
def test_a_file_of_options_that_is_nested_too_deeply_is_refused(more: str) -> None:
    with pytest.raises(SpecError, match="nested too deeply"):
        torchtitan.degrees(Path("deep.toml"), OPTIONS.format(shards=4, enable="true") + more)


def test_a_configuration_whose_network_is_not_known_is_said() -> None:
    words = "torchrun --nproc-per-node 8 -m torchtitan.train --training.global_batch_size 64 --parallelism.tensor_parallel_degree 8"
    words += " --parallelism.expert_parallel_degree 1"
    for name in ("deepseek_v3 --config deepseek_v3_671b", "llama3 --config llama3_9000b"):
        found = torchtitan.training(LAUNCH, f"{words} --module {name}\n")
        assert "zoo" not in found.dnn
        assert found.warnings == ("its network is none that is known here: add it to the block dnn",)


def test_a_network_that_differs_in_one_size_is_not_taken_for_another() -> None:
    network = row("llama3-8b").transformer
    assert flavour_of(replace(network, feed_forward_size=14848)) is None
    assert flavour_of(replace(network, has_query_key_norms=True)) is None
    assert len({one.config for one in FLAVOURS}) == len(FLAVOURS)


def test_what_torchtitan_runs_otherwise_is_noted_with_its_seconds() -> None:
    notes = torchtitan.export(
        even_job(LLAMA, tensor=2, data=4, zero=1, sequence_parallel=True, overlap_data=True)
    ).notes
    assert any("ZeRO 1 becomes ZeRO 2" in note and "an iteration then takes" in note for note in notes)
    notes = torchtitan.export(even_job(LLAMA, pipeline=2, schedule="zb_h1")).notes
    assert any("no schedule zb_h1" in note and "1F1B here" in note for note in notes)
    assert any("stands in planned_torchtitan.py" in note for note in notes), "the network is none of its own"


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (cnn_job, "not known as a transformer"),
        (lambda: even_job(data=2), "none of its models has all parts of transformer"),
        (lambda: even_job(PREDICTING, pipeline=2), "on one stage and one context rank alone"),
        (lambda: even_job(LLAMA, data=2, zero=1, offload_optimizer=True), "moves weights and gradients to the host"),
    ],
)
def test_plans_that_it_cannot_run_are_refused(job, why: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InfeasibleError, match=why):
        torchtitan.export(job())


def test_pins_that_are_read_back_give_the_same_plan() -> None:
    job = planned({"zero_stage": 3, "tensor_parallel_size": 2}, LLAMA)
    pins = torchtitan.degrees(LAUNCH, torchtitan.export(job).files["launch.sh"])
    again = planned(pins, LLAMA)
    assert again.plan.configuration == job.plan.configuration
    assert again.plan.objective == pytest.approx(job.plan.objective)


def test_a_users_program_is_quoted() -> None:
    job = even_job(LLAMA, data=2)
    text = torchtitan.export(replace(job, settings=Settings(script="my.py --name 'a b' $(reboot)"))).files["launch.sh"]
    assert "my.py --name 'a b' '$(reboot)'" in text


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("tensor_parallel_degree 2", "tensor_parallel_degree two", "'two' is no whole number of 1 or more"),
        ("--training.local_batch_size 1", "", "local_batch_size: it is missing"),
        ("set -euo", "set ' -euo", "quotes"),
        ("activation-checkpoint:none", "activation-checkpoint:memory-budget", "recompute: 'memory-budget' is none"),
    ],
)
def test_a_damaged_script_is_refused_with_its_place(old: str, new: str, why: str) -> None:
    text = torchtitan.export(even_job(LLAMA, tensor=2, data=2)).files["launch.sh"]
    assert old in text
    with pytest.raises(SpecError, match=why):
        torchtitan.degrees(LAUNCH, text.replace(old, new))


def test_only_its_own_scripts_are_recognised() -> None:
    text = torchtitan.export(even_job(LLAMA, tensor=2, data=2)).files["launch.sh"]
    assert torchtitan.recognises(LAUNCH, text)
    assert not torchtitan.recognises(Path("launch.yaml"), text)
    assert not torchtitan.recognises(LAUNCH, "torchrun train.py")


@pytest.mark.parametrize(
    ("options", "batch", "pins"),
    [
        ("", 4, {"data_parallel_size": 2, "zero_stage": 3, "pipeline_parallel_size": 1, "microbatch_size": 2}),
        ("--parallelism.data_parallel_replicate_degree 2", 4, {"data_parallel_size": 2, "zero_stage": 0}),
        ("--parallelism.data_parallel_shard_degree -1 --training.global_batch_size 64", 64, {"data_parallel_size": 2}),
        ("--parallelism.pipeline_parallel_degree 2", 2, {"data_parallel_size": 1, "microbatch_size": 1}),
    ],
)
def test_options_that_a_user_leaves_out_are_torchtitans_own(options: str, batch: int, pins: dict[str, int]) -> None:
    """One copy of everything, shards over the devices that are left, and a local batch for each of both."""
    command = "torchrun --nnodes 2 --nproc_per_node=8 -m torchtitan.train --module llama3 --config llama3_70b"
    local = "--training.local_batch_size 2 --parallelism.tensor_parallel_degree 8"
    text = f"{command} {local} {options}\n"
    assert torchtitan.training(LAUNCH, text).dnn["global_batch"] == batch
    found = torchtitan.degrees(LAUNCH, text)
    assert {name: found[name] for name in pins} == pins
    with pytest.raises(SpecError, match=r"16 devices do not divide by 3"):
        torchtitan.degrees(LAUNCH, text.replace("degree 8", "degree 3").replace(options, ""))


def test_an_expert_degree_that_a_configuration_of_experts_may_set_is_said_to_be_unread() -> None:
    text = "torchrun --nproc-per-node 8 -m torchtitan.train --module qwen3 --config qwen3_30b_a3b"
    text += " --training.local_batch_size 2 --parallelism.tensor_parallel_degree 2\n"
    (warning,) = torchtitan.training(LAUNCH, text).warnings
    assert "what qwen3_30b_a3b says of it is not read" in warning
