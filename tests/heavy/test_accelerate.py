"""Accelerate's own loader takes the planned files, and its launcher the options that it makes of them."""

from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from heavy_plans import LARGE, plan_of
from layout_jobs import cnn_job, even_job, hybrid_of

from planner.errors import InfeasibleError
from planner.exporters import accelerate
from planner.exporters.export import Job
from planner.exporters.layouts import layout_of

torch = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")


@pytest.fixture(autouse=True)
def _installed() -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed; run make test-heavy")


def load(folder: Path, text: str) -> Any:
    path = folder / "accelerate.yaml"
    path.write_text(text)
    return import_module("accelerate.commands.config.config_args").load_config_from_file(str(path))


def launch_options(folder: Path, text: str) -> Any:
    """The options that ``accelerate launch`` has after it read the file."""
    path = folder / "accelerate.yaml"
    path.write_text(text)
    launch = import_module("accelerate.commands.launch")
    parsed = launch.launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    return launch._validate_launch_command(parsed)[0]  # what launch_command does first


def files_of(job: Job) -> dict[str, str]:
    return dict(accelerate.export(job).files)


JOBS: dict[str, Any] = {
    "NO": even_job,
    "MULTI_GPU": lambda: even_job(data=8, overlap_data=True),
    "MULTI_GPU of a CNN": cnn_job,
    "FSDP": lambda: even_job(data=8, zero=3, recompute="full"),
    "FSDP, ZeRO 2": lambda: even_job(data=4, zero=2),
    "FSDP over tensor ranks": lambda: even_job(tensor=2, data=4, context=2, zero=3),
    "FSDP over copies": lambda: even_job(data=8, zero=3, shard=4),
    "DEEPSPEED": lambda: even_job(data=8, zero=1),
    "MEGATRON_LM": lambda: even_job(tensor=2, pipeline=2, data=2, zero=1, sequence_parallel=True),
}


@pytest.mark.parametrize("name", JOBS)
def test_its_loader_takes_the_file_and_finds_the_machines(name: str, tmp_path: Path) -> None:
    job = JOBS[name]()
    found = load(tmp_path, files_of(job)["accelerate.yaml"])
    assert found.distributed_type.value == name.split(" ", maxsplit=1)[0].strip(",")
    chosen = layout_of("accelerate", job).chosen
    assert found.num_processes == chosen.num_devices
    assert found.num_processes % found.num_machines == 0
    assert found.mixed_precision in {"bf16", "no", None}


@pytest.mark.parametrize("name", JOBS)
def test_every_key_of_a_block_is_an_option_of_its_launcher(name: str, tmp_path: Path) -> None:
    launch = import_module("accelerate.commands.launch")
    known = set(vars(launch.launch_command_parser().parse_args(["train.py"])))
    found = load(tmp_path, files_of(JOBS[name]())["accelerate.yaml"])
    for block in (found.fsdp_config, found.parallelism_config, found.megatron_lm_config, found.deepspeed_config):
        assert set(block) <= known


@pytest.mark.parametrize("name", [one for one in JOBS if one != "NO"])
def test_its_launcher_has_the_planned_degrees(name: str, tmp_path: Path) -> None:
    job = JOBS[name]()
    chosen = layout_of("accelerate", job).chosen
    args = launch_options(tmp_path, files_of(job)["accelerate.yaml"])
    assert args.num_processes == chosen.num_devices
    if name.startswith("FSDP"):
        assert args.use_fsdp
        assert str(args.fsdp_version) == "2"
        assert args.fsdp_reshard_after_forward == (chosen.zero == 3)
    if name.startswith("FSDP over"):
        assert args.use_parallelism_config
        sizes = [getattr(args, f"parallelism_config_{name}_size") for name in ("tp", "cp", "dp_shard", "dp_replicate")]
        shards = chosen.shard or chosen.data
        assert sizes == [chosen.tensor, chosen.context, shards, chosen.data // shards]
    if name == "MEGATRON_LM":
        assert args.use_megatron_lm
        assert (args.megatron_lm_tp_degree, args.megatron_lm_pp_degree) == (chosen.tensor, chosen.pipeline)
        assert args.megatron_lm_num_micro_batches == chosen.num_microbatches
    if name == "DEEPSPEED":
        assert args.use_deepspeed
        assert args.deepspeed_config_file == "ds_config.json"


@pytest.mark.parametrize("name", [one for one in JOBS if one.startswith("FSDP over")])
def test_degrees_make_a_mesh_of_its_own_of_all_devices(name: str, tmp_path: Path) -> None:
    args = launch_options(tmp_path, files_of(JOBS[name]())["accelerate.yaml"])
    config = import_module("accelerate.parallelism_config").ParallelismConfig
    names = {"dp_replicate", "dp_shard", "tp", "cp"}
    found = config(**{f"{name}_size": getattr(args, f"parallelism_config_{name}_size") for name in names})
    assert found.total_size == args.num_processes
    with pytest.raises(ValueError, match="tp_size must be at least 1"):
        config(tp_size=0)


def test_its_plugin_takes_the_options_of_megatron(tmp_path: Path) -> None:
    known = {field.name for field in fields(import_module("accelerate.utils.dataclasses").MegatronLMPlugin)}
    block = load(tmp_path, files_of(JOBS["MEGATRON_LM"]())["accelerate.yaml"]).megatron_lm_config
    assert {name.removeprefix("megatron_lm_") for name in block} <= known


@pytest.mark.parametrize("name", LARGE)
def test_real_plans_are_loaded_or_refused_with_a_reason(name: str, tmp_path: Path) -> None:
    job = plan_of(name)
    try:
        text = files_of(job)["accelerate.yaml"]
    except InfeasibleError as error:
        assert "cannot run this plan" in str(error)
        assert name.startswith("deepseek-v3") or name in {"gpt3-175b-uneven", "mixtral"}, error
        return
    found = load(tmp_path, text)
    assert found.num_processes == hybrid_of(job).num_devices


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("num_machines", "num_machine", "unknown keys.*num_machine"),
        ("MULTI_GPU", "MULTI_GPUS", "not a valid DistributedType"),
    ],
)
def test_a_corrupted_file_is_refused_by_its_loader(old: str, new: str, error: str, tmp_path: Path) -> None:
    text = files_of(even_job(data=8))["accelerate.yaml"]
    assert old in text
    with pytest.raises(ValueError, match=error):
        load(tmp_path, text.replace(old, new))
