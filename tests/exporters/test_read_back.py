"""Files by their meaning: what a program is given, read back, has the parameters, the FLOP and the layout of the plan."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hybrid_questions import MOE, TINY
from hypothesis import HealthCheck, given, settings
from layout_jobs import drawn_jobs, even_job, hybrid_of, job_of, uneven_job
from modern_blocks import DEEPSEEK, LLAMA, MODERN, QWEN, as_used

import planner
from planner.errors import InfeasibleError, SpecError
from planner.exporters import degrees_of, export, network_of
from planner.exporters.export import Job
from planner.exporters.layouts import pins_of
from planner.families.hybrid import family as hybrid
from planner.families.hybrid.configuration import HybridConfiguration
from planner.models.operators import flop_per_sample
from planner.transformer import Transformer

FILES = {"megatron": "launch.sh", "megatron-bridge": "recipe.py", "primus": "primus.yaml", "maxtext": "maxtext.yml"}
GEMMA: Mapping[str, Any] = {**{**TINY, **MODERN, "layers": 6, "window": 256}, "mixers": ["window"] * 5 + ["attention"]}
NEMOTRON: Mapping[str, Any] = {
    **{**TINY, **MODERN, "gated": False, "positions": "none", "layers": 6, "pattern": "M-M*-M", "kv_heads": 4},
    "mamba": {"heads": 16, "head_size": 64, "state": 128, "groups": 8},
    "numerics": {"activation": "relu_squared"},
}
PLAIN: Mapping[str, Any] = {**MOE, "biases": False, "norm": "rms_norm"}
BLOCKS = (TINY, PLAIN, LLAMA, QWEN, DEEPSEEK, {**DEEPSEEK, "mtp_layers": 1})
# Decisions that every program writes as they are planned; what it changes beside them is a note.
KEPT = ("tensor", "context", "pipeline", "data", "expert", "microbatch", "recompute", "num_devices")


def read(target: str, job: Job) -> tuple[Transformer, Mapping[str, object]]:
    """The network and the pins of a target's file."""
    path, text = Path(FILES[target]), export(target, job).files[FILES[target]]
    found, network = degrees_of(path, text), network_of(path, text)
    assert found is not None
    assert found[0] == target
    assert network is not None
    return network, found[1]


@pytest.mark.parametrize("target", FILES)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(job=drawn_jobs(BLOCKS))
def test_a_file_read_back_has_the_parameters_flop_and_layout_of_its_plan(target: str, job: Job) -> None:
    planned = job.problem.dnn.transformer
    assert planned is not None
    try:
        network, pins = read(target, job)
    except InfeasibleError as error:
        assert target == "maxtext", error  # whose meshes and blocks are few
        return
    assert network == (as_used(planned) if target == "maxtext" else planned)
    assert network.num_parameters == planned.num_parameters
    assert flop_per_sample(network) == flop_per_sample(planned)
    chosen = hybrid_of(job)
    kept = pins_of(chosen, *KEPT)
    assert {key: pins[key] for key in kept} == kept
    if target != "maxtext" and chosen.schedule == "1f1b":
        assert pins["chunks_per_device"] == chosen.interleave
    if chosen.data * chosen.context > 1 and target != "maxtext" and not chosen.offload_optimizer:
        assert pins["zero_stage"] == chosen.zero
        assert pins["data_parallel_shard_size"] == chosen.shard


@pytest.mark.parametrize("target", [*FILES, "torchtitan", "accelerate"])
def test_copies_of_states_that_some_ranks_share_are_read_back(target: str) -> None:
    path = Path({**FILES, "torchtitan": "launch.sh", "accelerate": "accelerate.yaml"}[target])
    zero = 1 if target in ("megatron-bridge", "primus") else 3
    of_experts = [] if target == "accelerate" else [even_job(QWEN, data=8, expert=2, shard=2, zero=zero)]
    for job in [even_job(LLAMA, data=8, zero=3, shard=4), *of_experts]:
        found = export(target, job)
        assert not any("all data ranks" in note for note in found.notes)
        _, pins = degrees_of(path, found.files[path.name]) or ("", {})
        kept = pins_of(hybrid_of(job), "data", "zero", "shard")
        assert {key: pins[key] for key in kept} == kept


def test_fully_sharded_experts_are_copied_by_younger_versions_of_megatron_core_alone() -> None:
    job = even_job(QWEN, data=8, expert=2, shard=2, zero=3)
    assert any("spread experts in Megatron-LM after core_v0.16 alone" in note for note in export("megatron", job).notes)
    for target in ("megatron-bridge", "primus"):
        with pytest.raises(InfeasibleError, match="copies no shards of spread experts"):
            export(target, job)


def test_what_cannot_copy_states_says_what_it_shards_over_all_ranks_for() -> None:
    """MaxText's optimiser is sharded over all data ranks or none; and all ranks are what a shard of all of them is.

    Accelerate shards over no context ranks alone.
    """
    found = export("accelerate", even_job(LLAMA, data=4, context=2, zero=3, shard=1))
    assert any("it shards over all data ranks" in note for note in found.notes)
    assert "parallelism_config_dp_shard_size: 4" in found.files["accelerate.yaml"]
    notes = export("maxtext", even_job(LLAMA, data=8, zero=1, shard=4)).notes
    assert any("it shards over all data ranks" in note for note in notes)
    for target in ("maxtext", "deepspeed"):
        assert not any(
            "all data ranks" in note for note in export(target, even_job(LLAMA, data=8, zero=1, shard=8)).notes
        )


@pytest.mark.parametrize("target", FILES)
@pytest.mark.parametrize(
    "block", [*BLOCKS, GEMMA, NEMOTRON], ids=["gpt", "moe", "llama", "qwen", "deepseek", "mtp", "gemma", "nemotron"]
)
def test_every_target_takes_the_networks_that_it_has(target: str, block: Mapping[str, Any]) -> None:
    job = even_job(block, data=4, zero=1, recompute="full")
    if target == "maxtext" and block in (PLAIN, GEMMA, NEMOTRON):
        with pytest.raises(InfeasibleError, match=r"none of its blocks has (its positions, norms|these kinds)"):
            read(target, job)
        return
    planned = job.problem.dnn.transformer
    assert planned is not None
    assert read(target, job)[0] == (as_used(planned) if target == "maxtext" else planned)


@pytest.mark.parametrize(
    ("target", "old", "new", "why"),
    [
        ("megatron-bridge", '"num_layers": 4', '"num_layers": "four"', "num-layers: 'four' is no whole number"),
        ("megatron-bridge", "NUM_DEVICES = 4", "DEVICES = 4", "NUM_DEVICES: it is missing"),
        ("megatron-bridge", "TRAIN = {", "TRAIN = [", "it is no Python"),
        ("megatron-bridge", "DDP = {", "DDP = set() and {", "DDP: it is missing, or no mapping of literals"),
        (
            "megatron-bridge",
            '"activation_func": "gelu"',
            '"activation_func": "tanh"',
            "activation_func: 'tanh' is none",
        ),
        ("primus", "num_layers: 4", "num_layers: four", "num-layers: 'four' is no whole number"),
        ("primus", "overrides:", "override:", "overrides: it is missing"),
        ("primus", ": 4 devices", "", "does not say how many devices"),
        ("maxtext", "per_device_batch_size: 1.0", "per_device_batch_size: many", "'many' is no number"),
        ("maxtext", "base_num_decoder_layers: 4", "", "base_num_decoder_layers: it is missing"),
        ("maxtext", "remat_policy: minimal_with_context", "remat_policy: some", "remat_policy: 'some' is none"),
    ],
)
def test_a_damaged_file_is_refused_with_its_place(target: str, old: str, new: str, why: str) -> None:
    path, text = Path(FILES[target]), export(target, even_job(data=4, zero=1)).files[FILES[target]]
    assert old in text
    with pytest.raises(SpecError, match=why):
        degrees_of(path, text.replace(old, new))
        network_of(path, text.replace(old, new))


def test_a_recipe_is_never_run(tmp_path: Path) -> None:
    text = export("megatron-bridge", even_job(data=4)).files["recipe.py"]
    mark = tmp_path / "run"
    text = text.replace("NUM_DEVICES = 4", f"NUM_DEVICES = 4\nopen({str(mark)!r}, 'w').close()")
    assert degrees_of(Path("recipe.py"), text) is not None
    assert not mark.exists()


def test_seconds_that_were_predicted_for_a_program_are_said_to_be_anothers_in_other_files_alone() -> None:
    machines = [{"count": 1, "device": "h100-sxm", "devices": 4}]
    asked = {"dnn": {"transformer": TINY, "global_batch": 8}, "cluster": {"machines": machines}, "families": ["hybrid"]}
    plan = planner.plan(planner.load({**asked, "calibration": {"program": "primus"}}))
    assert any("predicted for primus" in note for note in planner.export(plan, "megatron").notes)
    assert not any("predicted for" in note for note in planner.export(plan, "primus").notes)


def test_what_a_program_on_top_of_megatron_has_of_its_own_is_written() -> None:
    job = even_job(pipeline=2, data=2, schedule="zb_h1", num_microbatches=8)
    found = export("primus", job)
    assert "enable_zero_bubble: true" in found.files["primus.yaml"]
    assert "zero_bubble_max_pending_backward: 2" in found.files["primus.yaml"]
    assert not any("ZB-H1" in note for note in found.notes)
    assert any("no schedule ZB-H1" in note for note in export("megatron-bridge", job).notes)
    folded = even_job(pipeline=2, data=2, interleave=2, schedule="v_half", num_microbatches=8)
    text = export("primus", folded).files["primus.yaml"]
    assert "zero_bubble_v_schedule_mem_setup: half" in text
    assert "num_layers_per_virtual_pipeline_stage" not in text
    assert read("primus", folded)[1]["chunks_per_device"] == 2
    assert read("primus", folded)[1]["schedule"] == "v_half"
    assert read("primus", job)[1]["schedule"] == "zb_h1"


def test_a_mesh_is_laid_out_over_machines_from_the_inside() -> None:
    text = export("maxtext", even_job(LLAMA, tensor=2, data=4, zero=3)).files["maxtext.yml"]
    inside, across = "ici_tensor_parallelism: 2", "dcn_fsdp_parallelism: 2"
    assert inside in text
    assert across in text
    assert "ici_fsdp_parallelism: 2" in text
    assert "per_device_batch_size: 0.5" in text


def test_a_network_that_maxtext_has_no_block_for_is_refused_with_what_is_strange() -> None:
    with pytest.raises(InfeasibleError, match="none of its blocks has shared experts"):
        export("maxtext", even_job({**QWEN, "experts": {**QWEN["experts"], "shared": 1}}, data=2))
    with pytest.raises(InfeasibleError, match="this scaling of rotary positions"):
        scaling = {"kind": "llama3", "factor": 32, "original_length": 8192}
        export("maxtext", even_job({**LLAMA, "rotary": {"scaling": scaling}}, data=2))


def test_a_row_of_positions_beyond_the_sample_is_refused_by_a_recipe() -> None:
    with pytest.raises(InfeasibleError, match="a row for each of the 1024 tokens"):
        export("megatron-bridge", even_job({**TINY, "num_positions": 2048}, data=2))


@pytest.mark.parametrize(
    ("dtype", "device", "said"),
    [
        ("fp8", "h100-sxm", {"megatron": "--fp8-recipe tensorwise", "megatron-bridge": '"fp8_recipe": "tensorwise"'}),
        ("mxfp8", "gb300", {"megatron": "--fp8-format e4m3 --fp8-recipe mxfp8", "primus": "fp8: e4m3"}),
        ("nvfp4", "gb300", {"megatron": "--fp4-recipe nvfp4", "megatron-bridge": '"fp4": "e2m1"'}),
    ],
)
def test_products_in_eight_or_four_bits_are_written_and_the_file_is_read_back(
    dtype: str, device: str, said: Mapping[str, str]
) -> None:
    machines = [{"count": 1, "device": device, "devices": 4, "network": "400 Gbit/s", "latency": "5 us"}]
    problem = planner.load(
        {
            "dnn": {"transformer": LLAMA, "global_batch": 8, "dtype": dtype, "optimizer": "adam"},
            "cluster": {"machines": machines},
            "objective": "iteration_time",
            "families": ["hybrid"],
        }
    )
    job = job_of(problem, "hybrid", HybridConfiguration(global_batch_size=8, data=4, zero=1))
    for target, words in said.items():
        assert words in export(target, job).files[FILES[target]]
        assert read(target, job)[0] == problem.dnn.transformer
    with pytest.raises(InfeasibleError, match=f"has no products in {dtype}"):
        export("maxtext", job)
    with pytest.raises(InfeasibleError, match=f"has no products in {dtype}"):
        export("deepspeed", job)


def test_weights_in_short_numbers_go_with_a_distributed_optimiser() -> None:
    machines = [{"count": 1, "device": "h100-sxm", "devices": 4, "network": "400 Gbit/s", "latency": "5 us"}]
    problem = planner.load(
        {
            "dnn": {"transformer": LLAMA, "global_batch": 8, "dtype": "fp8", "optimizer": "adam"},
            "cluster": {"machines": machines},
            "objective": "iteration_time",
            "families": ["hybrid"],
        }
    )
    copies = job_of(problem, "hybrid", HybridConfiguration(global_batch_size=8, data=4))
    found = export("megatron", copies)
    assert any("keeps weights in short numbers in the distributed optimiser" in note for note in found.notes)
    assert "--use-distributed-optimizer" in found.files["launch.sh"]
    # What an answer prints stays at copies, and keeps weights in bf16 beside those in fp8.
    assert "--fp8-param-gather" not in " ".join(copies.plan.prediction.details["launch"])
    alone = job_of(problem, "hybrid", HybridConfiguration(global_batch_size=8, tensor=4, sequence_parallel=True))
    words = export("megatron", alone).files["launch.sh"].split()
    assert {"--fp8-param-gather", "--use-distributed-optimizer"} <= {*words}


def test_tokens_go_to_experts_as_the_devices_have_it_and_their_kernels_are_captured_so() -> None:
    for device, backend, name in (("gb300", "hybridep", "HybridEP"), ("b200-sxm", "hybridep", "HybridEP")):
        machines = [{"count": 1, "device": device, "devices": 4, "network": "400 Gbit/s", "latency": "5 us"}]
        problem = planner.load(
            {
                "dnn": {"transformer": QWEN, "global_batch": 8, "dtype": "mxfp8", "optimizer": "adam"},
                "cluster": {"machines": machines},
                "families": ["hybrid"],
            }
        )
        job = job_of(problem, "hybrid", HybridConfiguration(global_batch_size=8, data=4, expert=4, zero=1))
        for text in (export("megatron", job).files["launch.sh"], " ".join(job.plan.prediction.details["launch"])):
            assert f"--moe-flex-dispatcher-backend {backend} --moe-router-dtype fp32" in text
            assert "--cuda-graph-scope attn moe_router moe_preprocess" in text  # not the products, of any number
        said = hybrid.explain(problem, hybrid_of(job), job.plan.prediction)
        assert f"tokens go to their experts by {name}" in " ".join(said)
        assert "use_turbo_deepep" not in export("primus", job).files["primus.yaml"]  # of kernels for AMD's devices
        assert read("primus", job)[0] == problem.dnn.transformer


def experts_job(group: Mapping[str, Any], **decisions: Any) -> Job:
    """A layout of a network with experts on machines of a group."""
    machines = [{"network": "400 Gbit/s", "latency": "5 us", **group}]
    question = {
        "dnn": {"transformer": {**QWEN, "experts": {**QWEN["experts"], "count": 48}}, "global_batch": 96},
        "cluster": {"machines": machines},
        "families": ["hybrid"],
    }
    chosen = HybridConfiguration(global_batch_size=96, zero=1, **decisions)
    return job_of(planner.load(question), "hybrid", chosen)


@pytest.mark.parametrize(
    ("device", "megatron", "is_primus_own"),
    [
        ("h100-sxm", "flex --moe-flex-dispatcher-backend deepep --moe-router-dtype fp32", False),
        ("h200-sxm", "flex --moe-flex-dispatcher-backend deepep --moe-router-dtype fp32", False),
        ("h100-pcie", "alltoall", False),
        ("a100-sxm4-80gb", "alltoall", False),
        ("mi300x", "alltoall", True),
        ("mi250x", "alltoall", False),
    ],
)
def test_tokens_go_by_collectives_to_experts_where_a_program_has_no_kernels_for_the_device(
    device: str, megatron: str, is_primus_own: bool
) -> None:
    job = experts_job({"count": 2, "device": device, "devices": 4}, data=8, expert=8)
    for text in (export("megatron", job).files["launch.sh"], " ".join(job.plan.prediction.details["launch"])):
        assert f"--moe-token-dispatcher-type {megatron}" in text
        assert ("flex" in text) == (megatron != "alltoall")
        assert "HYBRID_EP" not in text
    assert ("DeepEP" in " ".join(hybrid.explain(job.problem, hybrid_of(job), job.plan.prediction))) == (
        megatron != "alltoall"
    )
    assert ("use_turbo_deepep: true" in export("primus", job).files["primus.yaml"]) == is_primus_own
    assert read("primus", job)[0] == read("megatron", job)[0] == job.problem.dnn.transformer


@pytest.mark.parametrize("tensor", [1, 2])
def test_a_step_is_told_as_its_launch_files_send_tokens(tensor: int) -> None:
    decisions = {"sequence_parallel": tensor > 1, "data": 8 // tensor, "expert": 8 // tensor, "tensor": tensor}
    slow = {"network": "100 Gbit/s"}  # which binds, so that what travels once to a machine tells
    job = experts_job({"count": 2, "device": "mi300x", "devices": 4, **slow}, **decisions)
    chosen, seconds = hybrid_of(job), {}
    for program in ("megatron-core", "primus"):  # each copy by RCCL; once to a machine by kernels of its own
        calibration = replace(job.problem.calibration, program=program)
        found = planner.predict(replace(job.problem, calibration=calibration), chosen)
        seconds[program] = found.breakdown_s["expert"]
    ratio, text = seconds["megatron-core"] / seconds["primus"], export("primus", job).files["primus.yaml"]
    if tensor == 1:
        assert 1 < ratio <= 2  # a token has two experts
        assert "use_turbo_deepep: true" in text
    else:  # its kernels are for whole ranks alone
        assert ratio == pytest.approx(1)
        assert "moe_token_dispatcher_type: alltoall" in text and "deepep" not in text


@pytest.mark.parametrize(
    ("group", "expert", "ranks", "domain", "is_wide"),
    [
        ({"count": 2, "device": "b200-sxm", "devices": 8}, 4, 4, 8, 0),
        ({"count": 2, "device": "b200-sxm", "devices": 8}, 16, 8, 8, 0),
        ({"count": 1, "device": "gb300", "devices": 16, "devices_per_host": 4}, 16, 16, 16, 1),
        ({"count": 2, "device": "gb300", "devices": 12, "devices_per_host": 4}, 8, 4, 12, 1),  # the second is cut
    ],
)
def test_hybridep_is_told_which_ranks_nvlink_joins(
    group: Mapping[str, Any], expert: int, ranks: int, domain: int, is_wide: int
) -> None:
    number = group["count"] * group["devices"] // 8 * 8
    job = experts_job(group, data=number, expert=expert)
    line = f"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN={ranks} NVLINK_DOMAIN_SIZE={domain} USE_MNNVL={is_wide}"
    for target in ("megatron", "megatron-bridge"):
        assert f"export {line}\n" in export(target, job).files["launch.sh"]
    assert f"export {line}" in job.plan.prediction.details["launch"]
    cut = {"tensor": 2, "expert_tensor": 2, "sequence_parallel": True}  # ranks of a cut expert are of the group, too
    if expert == 4:
        line = line.replace("DOMAIN=4", "DOMAIN=8")
        assert line in export("megatron", experts_job(group, data=number // 2, expert=expert, **cut)).files["launch.sh"]
    alone = experts_job(group, data=number)
    assert "HYBRID_EP" not in export("megatron", alone).files["launch.sh"]


def test_sinks_are_not_asked_of_flash_attention() -> None:
    sinks = {**GEMMA, "sinks": True, "mixers": ["window", "attention"]}
    assert "--attention-backend flash" not in export("megatron", even_job(sinks, data=2)).files["launch.sh"]
    assert "--attention-backend flash" in export("megatron", even_job(GEMMA, data=2)).files["launch.sh"]


def with_optimizer(name: str, **decisions: Any) -> Job:
    job = even_job(LLAMA, **decisions)
    return replace(job, problem=replace(job.problem, training=replace(job.problem.training, optimizer=name)))


@pytest.mark.parametrize(
    ("name", "zero", "said"),
    [
        ("adam", 1, "--use-distributed-optimizer"),
        ("adam_bf16", 1, "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"),
        ("adam_fp8", 0, "--use-precision-aware-optimizer --exp-avg-dtype fp8"),
        ("muon", 1, "--optimizer dist_muon"),
        ("muon", 0, "--optimizer muon"),
    ],
)
def test_an_optimiser_is_written_and_none_is_silently_adam(name: str, zero: int, said: str) -> None:
    job = with_optimizer(name, data=4, zero=zero, overlap_data=True)
    text = export("megatron", job).files["launch.sh"]
    assert said in text
    assert ("use-distributed-optimizer" in text) == (name != "muon")
    assert read("megatron", job)[1].get("zero_stage", 0) == max(zero, int(name == "adam_fp8"))
    assert read("megatron-bridge", job)[0] == job.problem.dnn.transformer


@pytest.mark.parametrize(("name", "zero"), [("adam", 1), ("adam_bf16", 1), ("muon", 1), ("muon", 0), ("sgd", 1)])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_the_command_of_an_answer_has_the_options_of_the_exported_one(dtype: str, name: str, zero: int) -> None:
    machines = [{"count": 1, "device": "h100-sxm", "devices": 4, "network": "400 Gbit/s", "latency": "5 us"}]
    problem = planner.load(
        {
            "dnn": {"transformer": LLAMA, "global_batch": 8, "dtype": dtype, "optimizer": name},
            "cluster": {"machines": machines},
            "objective": "iteration_time",
            "families": ["hybrid"],
        }
    )
    job = job_of(problem, "hybrid", HybridConfiguration(global_batch_size=8, data=4, zero=zero))
    printed = job.plan.prediction.details
    start = next(index for index, line in enumerate(printed["launch"]) if line.startswith("torchrun"))
    text = export("megatron", job).files["launch.sh"]
    for line in printed["launch"][start + 1 :]:
        assert line.removesuffix(" \\") in text
    assert {option.partition(" ")[0] for option in printed["options"]} <= {*text.split()}
    assert ("--optimizer" in text) == (name in ("muon", "sgd"))
    assert ("--fp8-recipe" in text) == (dtype == "fp8")


@pytest.mark.parametrize("target", FILES)
def test_an_optimiser_that_a_program_has_not_is_refused(target: str) -> None:
    with pytest.raises(InfeasibleError, match="has no optimiser adafactor"):
        export(target, with_optimizer("adafactor", data=4))


def test_a_pattern_of_layers_is_cut_where_its_chunks_begin() -> None:
    odd = {**NEMOTRON, "layers": 7, "pattern": "M-M*-M-"}
    job = uneven_job((2, 4, 1), odd, data=2)
    text = export("megatron", job).files["launch.sh"]
    assert "--hybrid-layer-pattern 'M-|M*-M|-'" in text
    assert "pretrain_mamba.py" in text
    assert not {"--pipeline-model-parallel-layout", "--decoder-first-pipeline-num-layers"} & {*text.split()}
    network, pins = read("megatron", job)
    assert network == job.problem.dnn.transformer
    assert pins["layers_per_stage"] == [2, 4, 1]
    chunks = even_job(NEMOTRON, pipeline=2, data=2, interleave=3, num_microbatches=4)
    assert "--hybrid-layer-pattern 'M|-|M|*|-|M'" in export("megatron", chunks).files["launch.sh"]
    assert read("megatron", chunks)[1]["chunks_per_device"] == 3


@pytest.mark.parametrize("target", ["megatron-bridge", "primus"])
def test_where_a_pattern_is_not_cut_stages_of_one_part_differ_at_the_ends_alone(target: str) -> None:
    odd = {**NEMOTRON, "layers": 7, "pattern": "M-M*-M-"}
    job = uneven_job((2, 4, 1), odd, data=2)
    assert read(target, job)[1]["layers_per_stage"] == [2, 4, 1]
    found = export(target, even_job(NEMOTRON, pipeline=2, data=2, interleave=3, num_microbatches=4))
    assert any("have no chunks" in note for note in found.notes)
    four = {**NEMOTRON, "layers": 10, "pattern": "M-M*-M-M-M"}
    unlike = uneven_job((3, 1, 3, 3), four, data=2)
    assert any("alike, but for the first and the last" in note for note in export(target, unlike).notes)
    assert read(target, unlike)[1]["layers_per_stage"] == [3, 2, 2, 3]


def test_yarn_beside_usual_attention_has_options() -> None:
    scaling = {"kind": "yarn", "factor": 32.0, "original_length": 4096, "truncated": False}
    job = even_job({**LLAMA, "rotary": {"base": 150000.0, "scaling": scaling}}, data=4)
    found = export("megatron", job)
    assert "--position-embedding-type yarn" in found.files["launch.sh"]
    assert any("from core_v0.19 on" in note for note in found.notes)
    for target in ("megatron", "megatron-bridge"):
        assert read(target, job)[0] == job.problem.dnn.transformer
    assert any("of the kind 'yarn' 32" in note for note in export("primus", job).notes)


def test_the_overlap_of_experts_is_read_back() -> None:
    job = even_job(PLAIN, expert=2, data=4, overlap_expert=True)
    assert read("megatron", job)[1]["overlap_expert"] is True


def test_a_slice_of_tpus_is_one_mesh_within() -> None:
    machines = [{"count": 2, "device": "tpu-v5p", "devices": 16, "network": "100 Gbit/s", "latency": "10 us"}]
    problem = planner.load(
        {
            "dnn": {"transformer": LLAMA, "global_batch": 32, "dtype": "bf16", "optimizer": "adam"},
            "cluster": {"machines": machines},
            "objective": "iteration_time",
            "families": ["hybrid"],
        }
    )
    job = job_of(problem, "hybrid", HybridConfiguration(global_batch_size=32, data=32, zero=3))
    text = export("maxtext", job).files["maxtext.yml"]
    assert "ici_fsdp_parallelism: 16" in text
    assert "dcn_fsdp_parallelism: 2" in text
    assert "hardware: tpu" in text
