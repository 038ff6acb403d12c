"""Plans of every family to be exported, each planned once, and a shell that runs what was exported on no machines."""

import os
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from modern_blocks import MODERN

import planner
from planner.plan import Plan

_ONE_KIND = {
    "count": 4,
    "device": "v100-sxm2-16g",
    "devices": 8,
    "inside": "nvlink-2",
    "network": "25 Gbit/s",
    "nics": 1,
}
_NEW = {
    "name": "new",
    "count": 2,
    "device": "v100-sxm2-16g",
    "devices": 4,
    "inside": "nvlink-2",
    "network": "100 Gbit/s",
    "nics": 1,
}
_OLD = {"name": "old", "count": 3, "device": "k80", "devices": 2, "inside": "pcie-3-x16", "network": "100 Gbit/s"}
_HOSTS = {"name": "hosts", "count": 2, "device": "dual-xeon-e5-2650-v4", "devices": 1, "network": "10 Gbit/s"}
_SMALL = {
    "layers": 4,
    "hidden": 256,
    "heads": 4,
    "vocabulary": 1000,
    "sequence_length": 128,
}
QUESTIONS: Mapping[str, dict[str, Any]] = {
    "alike": {
        "dnn": {"zoo": "vgg16", "batch_per_device": 32},
        "cluster": {"machines": [_ONE_KIND]},
        "calibration": {"utilisation": 0.5, "bandwidth_efficiency": 1},
    },
    "mixed": {
        "dnn": {"zoo": "resnet50", "global_batch": 500},
        "cluster": {"machines": [_NEW, _OLD]},
        "fix": {"num_machines": 5},
    },
    "passes": {
        "dnn": {"zoo": "alexnet", "global_batch": 512},
        "cluster": {"machines": [_ONE_KIND]},
        "fix": {"num_devices": 8, "num_machines": 2, "gradient_accumulation_steps": 3},
    },
    "one": {
        "dnn": {"zoo": "alexnet", "global_batch": 64},
        "cluster": {"machines": [_ONE_KIND]},
        "fix": {"num_devices": 1},
    },
    "servers": {
        "dnn": {"zoo": "alexnet", "global_batch": 256},
        "cluster": {"machines": [{**_OLD, "devices": 1}, _HOSTS]},
        "families": ["parameter_server"],
        "fix": {"co_located": False},
    },
    "replicas": {
        "dnn": {"zoo": "adam-mnist", "global_batch": 256},
        "cluster": {"machines": [{**_HOSTS, "count": 4}]},
        "families": ["model_replicas"],
    },
    "pipeline": {
        "dnn": {"zoo": "vgg16", "global_batch": 64},
        "cluster": {"machines": [{**_ONE_KIND, "count": 1}]},
        "families": ["pipeline"],
        "fix": {"num_stages": 3},
    },
    "hybrid": {
        "dnn": {"transformer": _SMALL, "global_batch": 64, "dtype": "bf16", "optimizer": "adam"},
        "cluster": {"machines": [{**_ONE_KIND, "device": "a100-sxm4-80gb"}]},
        "families": ["hybrid"],
        "fix": {"tensor_parallel_size": 2, "num_devices": 16},
    },
    "llama": {
        "dnn": {"transformer": {**_SMALL, **MODERN}, "global_batch": 64, "dtype": "bf16", "optimizer": "adam"},
        "cluster": {"machines": [{**_ONE_KIND, "device": "a100-sxm4-80gb"}]},
        "families": ["hybrid"],
        "fix": {"tensor_parallel_size": 2, "num_devices": 16},
    },
    "copies": {
        "dnn": {"transformer": _SMALL, "global_batch": 64, "dtype": "bf16", "optimizer": "adam"},
        "cluster": {"machines": [{**_ONE_KIND, "device": "a100-sxm4-80gb"}]},
        "families": ["hybrid"],
        "fix": {
            "num_devices": 16,
            "data_parallel_size": 16,
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "zero_stage": 0,
            "microbatch_size": 2,
            "offload_optimizer": False,
        },
    },
}


def question(name: str) -> dict[str, Any]:
    """A question by its name, about iterations."""
    return {"objective": "iteration_time", "families": ["all_reduce"], **QUESTIONS[name]}


@cache
def planned(name: str) -> Plan:
    return planner.plan(planner.load(question(name)), time_limit_s=30)


def written(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def run_shell(folder: Path, script: str, programs: Mapping[str, str], **variables: str) -> list[str]:
    """What a script prints, line by line, with made-up programs in place of those on the path."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (bin_folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (bin_folder / name).chmod(0o755)
    environment = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "HOME": str(folder), **variables}
    done = subprocess.run(
        ["bash", script], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# Prints its arguments one by one in brackets, so that a word is seen to be one.
TELLS = "printf '[%s]' \"$@\"; echo"
