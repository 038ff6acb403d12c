"""The scripts of all programs that train by degrees: a shell runs them as they stand, with a launcher that only tells."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from layout_jobs import cnn_job, even_job, job_of, uneven_job
from modern_blocks import LLAMA

import planner
from planner.exporters import accelerate, deepspeed, megatron, torchtitan
from planner.exporters.export import Export, Job
from planner.exporters.scripts import commands_of
from planner.families.hybrid.configuration import HybridConfiguration, PipelineStage

EXPORTS: dict[str, Callable[[Job], Export]] = {
    "torchtitan": torchtitan.export,
    "deepspeed": deepspeed.export,
    "megatron": megatron.export,
    "accelerate": accelerate.export,
}
TELLS = '#!/usr/bin/env bash\nprintf "%s\\n" "$(basename "$0")" "$@"\n'


def run(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script beside launchers that print what they were given, a line for each word."""
    for name in ("torchrun", "accelerate"):
        (folder / name).write_text(TELLS)
        (folder / name).chmod(0o755)
    (folder / "launch.sh").write_text(script)
    path = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "launch.sh"], cwd=folder, env={**path, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("target", EXPORTS)
def test_a_shell_gives_the_launcher_the_words_that_are_read_back(target: str, tmp_path: Path) -> None:
    job = even_job(LLAMA, tensor=2, pipeline=2, data=1, zero=0, num_microbatches=4)
    text = EXPORTS[target](job).files["launch.sh"]
    done = run(text, tmp_path)
    assert done.returncode == 0, done.stderr
    words = next(one for one in commands_of(Path("launch.sh"), text) if one[0] == "exec")
    assert done.stdout.splitlines() == words[1:]


@pytest.mark.parametrize("target", EXPORTS)
def test_on_several_machines_each_says_its_own_number(target: str, tmp_path: Path) -> None:
    text = EXPORTS[target](even_job(LLAMA, data=8, zero=1, overlap_data=True)).files["launch.sh"]
    missing = run(text, tmp_path)
    assert missing.returncode != 0
    assert "NODE_RANK" in missing.stderr
    done = run(text, tmp_path, NODE_RANK="1", MASTER_ADDR="first")
    assert done.returncode == 0, done.stderr
    assert {"1", "first"} <= set(done.stdout.splitlines())


@pytest.mark.parametrize("target", ["torchtitan", "megatron", "deepspeed"])
def test_unlike_machines_start_their_own_number_of_processes(target: str, tmp_path: Path) -> None:
    kinds = {"old": ("v100-sxm2-32gb", 4, 2), "new": ("a100-sxm4-80gb", 8, 1)}
    machines = [
        {"name": name, "device": device, "devices": number, "count": count, "network": "100 Gbit/s", "latency": "5 us"}
        for name, (device, number, count) in kinds.items()
    ]
    problem = planner.load(
        {
            "dnn": {"transformer": LLAMA, "global_batch": 16, "dtype": "fp16", "optimizer": "adam"},
            "cluster": {"machines": machines},
            "objective": "iteration_time",
        }
    )
    stages = (PipelineStage(layers=1, machines="old"), PipelineStage(layers=3, machines="new"))
    chosen = HybridConfiguration(global_batch_size=16, pipeline=2, data=8, stages=stages)
    job = job_of(problem, "hybrid", chosen)
    if target == "torchtitan":  # which has no fp16
        with pytest.raises(planner.errors.InfeasibleError, match="not in fp16"):
            torchtitan.export(job)
        return
    text = EXPORTS[target](job).files["launch.sh"]
    for rank, processes in (("0", "4"), ("1", "4"), ("2", "8")):
        words = run(text, tmp_path, NODE_RANK=rank, MASTER_ADDR="first").stdout.splitlines()
        assert words[words.index("--nproc-per-node") + 1] == processes
        assert words[words.index("--nnodes") + 1] == "3"


@pytest.mark.parametrize("target", EXPORTS)
def test_its_version_stands_in_every_file_that_has_comments(target: str) -> None:
    found = EXPORTS[target](uneven_job((2, 2, 1), LLAMA, zero=0))
    for name, text in found.files.items():
        if not name.endswith(".json"):
            assert found.version in text, name
    assert found.target == target


@pytest.mark.parametrize("target", ["torchtitan", "megatron"])
def test_a_network_of_convolutions_is_for_others(target: str) -> None:
    with pytest.raises(planner.errors.InfeasibleError, match="resnet50 is not known as a transformer"):
        EXPORTS[target](cnn_job())
