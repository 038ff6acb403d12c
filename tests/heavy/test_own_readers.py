"""Megatron-LM's parser and MaxText's reader of configurations take what is written for them, with their conditions.

Both ask for a younger Python than the rest, and live in a room of their own. No device is there: what the parsers ask
of one is answered for them.
"""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hybrid_questions import MOE, TINY
from layout_jobs import even_job, job_of, uneven_job
from modern_blocks import DEEPSEEK, LLAMA, QWEN

import planner
from planner.errors import InfeasibleError
from planner.exporters import export
from planner.exporters.export import Job
from planner.exporters.machines import used_machines
from planner.exporters.scripts import commands_of, launched
from planner.families.hybrid.configuration import HybridConfiguration
from planner.zoo.transformers import block_of, row, row_names

_PYTHON = Path(os.environ.get("PLANNER_NEW", Path(__file__).parents[2] / ".venv-new" / "bin" / "python"))
pytestmark = pytest.mark.skipif(
    not _PYTHON.exists(), reason="the programs ask for Python 3.12: make clean test-heavy where there is one"
)
_ANSWERS = """
import contextlib, io, json, os, sys, types, warnings
warnings.simplefilter("ignore")
def answer(asked):
    for one in asked:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                found = read(one)
            except (Exception, SystemExit) as error:
                found = {"error": f"{type(error).__name__}: {error} {said.getvalue()[-300:]}"}
        print("FOUND", json.dumps(found))
"""
_MEGATRON = """
import torch
torch.cuda.get_device_properties = lambda *a: types.SimpleNamespace(name="B200", major=10, minor=0)
torch.cuda.get_device_capability = lambda *a: (10, 0)
from megatron.training import arguments
for name in ("is_te_min_version", "is_torch_min_version", "is_flashinfer_min_version"):
    setattr(arguments, name, lambda *a, **k: True)
arguments.get_device_arch_version = lambda: 10
def read(one):
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_CPU_OFFLOAD_V1"):
        os.environ.pop(name, None)
    os.environ |= {"WORLD_SIZE": str(one["devices"]), **one["environment"]}
    sys.argv[1:] = one["words"]
    args = arguments.parse_args()
    arguments.validate_args(args, {})
    return {"layers": args.num_layers, "data": args.data_parallel_size,
            "chunks": args.virtual_pipeline_model_parallel_size or 1, "yarn": args.yarn_beta_fast}
answer(json.load(open(sys.argv[1])))
"""
_MAXTEXT = """
import logging
logging.disable(logging.CRITICAL)
asked = json.load(open(sys.argv[1]))
os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={asked[0]['devices']}"}
from maxtext.configs import pyconfig
def read(one):
    more = ["skip_jax_distributed_system=true", "hardware=cpu", f"num_slices={one['machines']}"]
    found = pyconfig.initialize_pydantic(["train", one["path"], *one["words"], *more])
    short = str(found.quantization)
    return {"layers": found.num_decoder_layers, "batch": found.global_batch_size_to_train_on, "short": short}
answer(asked)
"""
NEMOTRON: Mapping[str, Any] = {
    **{**TINY, "gated": False, "positions": "none", "norm": "rms_norm", "biases": False, "layers": 6, "kv_heads": 4},
    "pattern": "M-M*-M",
    "mamba": {"heads": 16, "head_size": 64, "state": 128, "groups": 8},
    "numerics": {"activation": "relu_squared"},
}
BLOCKS = {"gpt": TINY, "moe": MOE, "llama": LLAMA, "qwen": QWEN, "deepseek": DEEPSEEK, "nemotron": NEMOTRON}
LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "copies": {"data": 8},
    "tensor": {"tensor": 2, "data": 4, "zero": 1, "sequence_parallel": True, "overlap_data": True},
    "zero2": {"data": 4, "zero": 2},
    "zero3": {"tensor": 2, "data": 4, "zero": 3, "sequence_parallel": True},
    "shard": {"data": 4, "zero": 1, "shard": 2},
    "gathered": {"context": 2, "data": 2, "zero": 1, "recompute": "full", "context_method": "all_gather"},
    "ulysses": {"context": 2, "data": 2, "zero": 1, "recompute": "selective", "context_method": "ulysses"},
    "stages": {"pipeline": 2, "data": 2, "num_microbatches": 4, "recompute": "full", "recompute_layers": 1},
    "chunks": {"pipeline": 2, "data": 2, "num_microbatches": 4, "interleave": 2},
    "host": {"data": 2, "zero": 1, "offload_optimizer": True},
    "activations": {"data": 2, "zero": 1, "offload_layers": 1},
    "modules": {"data": 2, "zero": 1, "offload_modules": "core_attn attn_proj"},
    "order": {"pipeline": 2, "data": 2, "num_microbatches": 4, "order": "tensor-context-pipeline-data"},
}
EXPERTS: Mapping[str, Any] = {"expert": 2, "data": 4, "zero": 1, "overlap_expert": True}
NUMBERS: Mapping[str, Mapping[str, Any]] = {
    **{name: {"dtype": name} for name in ("fp16", "fp8", "mxfp8", "nvfp4")},
    "ends": {"dtype": "mxfp8", "bf16_layers": 2},
    **{name: {"dtype": "bf16", "optimizer": name} for name in ("muon", "momentum", "adam_bf16", "adam_fp8")},
}


def read(program: str, asked: list[Mapping[str, Any]], folder: Path) -> list[Mapping[str, Any]]:
    """What a program makes of each file, or its error."""
    path = folder / "asked.json"
    path.write_text(json.dumps(asked))
    done = subprocess.run(
        [str(_PYTHON), "-c", _ANSWERS + program, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    found = [json.loads(one.removeprefix("FOUND ")) for one in done.stdout.splitlines() if one.startswith("FOUND ")]
    assert len(found) == len(asked), done.stderr[-3000:]
    return found


def of_megatron(job: Job) -> Mapping[str, Any]:
    """The options, devices and environment of a job for Megatron-LM."""
    text = export("megatron", job).files["launch.sh"]
    words, devices = launched(Path("launch.sh"), text, "--tensor-model-parallel-size")
    begin = next(index for index, one in enumerate(words) if one.startswith("pretrain_"))
    lines = (one.removeprefix("export ").split("=") for one in text.splitlines() if one.startswith("export "))
    return {"words": words[begin + 1 :], "devices": devices, "environment": dict(lines)}


def jobs() -> dict[str, Callable[[], Job]]:
    """Every layout of every make of network, numbers and optimisers, uneven stages, the zoo."""
    found: dict[str, Callable[[], Job]] = {}
    for name, block in BLOCKS.items():
        layers = (2, 3, 1) if "pattern" in block else (2, 1, 1)
        found |= {f"{name} {layout}": partial(even_job, block, **one) for layout, one in LAYOUTS.items()}
        found |= {f"{name} {numbers}": partial(trained, block, one) for numbers, one in NUMBERS.items()}
        found[f"{name} tpu"] = partial(on_tpus, block)
        found[f"{name} uneven"] = partial(uneven_job, layers, block, data=2)
        if "experts" in block:
            found[f"{name} experts"] = partial(even_job, block, **EXPERTS)
    return found | {name: partial(of_zoo, name) for name in row_names()}


def on_tpus(block: Mapping[str, Any]) -> Job:
    """A plan whose products are in eight bits on TPUs, in one slice."""
    machines = [{"count": 1, "device": "tpu-v7", "devices": 4, "inside": "ici-v7"}]
    dnn = {"transformer": block, "global_batch": 16, "dtype": "fp8"}
    problem = planner.load({"dnn": dnn, "cluster": {"machines": machines}})
    return job_of(problem, "hybrid", HybridConfiguration(global_batch_size=16, data=4, zero=3))


def of_zoo(name: str) -> Job:
    return even_job(block_of(row(name).transformer), data=8, zero=1)


def trained(block: Mapping[str, Any], training: Mapping[str, Any]) -> Job:
    """A plan in other numbers, or with another optimiser."""
    machines = [{"count": 1, "device": "gb300", "devices": 4, "network": "400 Gbit/s", "latency": "5 us"}]
    dnn = {"transformer": block, "global_batch": 16, "optimizer": "adam", **training}
    problem = planner.load({"dnn": dnn, "cluster": {"machines": machines}})
    return job_of(problem, "hybrid", HybridConfiguration(global_batch_size=16, data=4, zero=1))


def test_the_parser_of_megatron_takes_every_command_with_its_conditions(tmp_path: Path) -> None:
    asked: dict[str, tuple[Job, Mapping[str, Any]]] = {}
    for name, make in jobs().items():
        try:
            job = make()
            asked[name] = (job, of_megatron(job))
        except InfeasibleError:
            continue
    assert len(asked) > 150
    answers = dict(zip(asked, read(_MEGATRON, [one for _, one in asked.values()], tmp_path), strict=True))
    assert not {name: one["error"] for name, one in answers.items() if "error" in one}
    for name, (job, _) in asked.items():
        chosen, network = job.plan.configuration, job.problem.dnn.transformer
        assert isinstance(chosen, HybridConfiguration)
        assert network is not None
        assert answers[name]["layers"] == network.num_main_layers
        assert answers[name]["data"] == chosen.data
        if "chunks" in name:
            assert answers[name]["chunks"] == 2
    assert answers["gpt-oss-20b"]["yarn"] == 32


def test_the_reader_of_maxtext_takes_every_configuration(tmp_path: Path) -> None:
    asked: dict[str, tuple[Job, Mapping[str, Any]]] = {}
    for name, make in jobs().items():
        try:
            job = make()
            files = export("maxtext", job).files
        except InfeasibleError:
            continue
        chosen = job.plan.configuration
        assert isinstance(chosen, HybridConfiguration)
        folder = tmp_path / name
        folder.mkdir()
        for file, text in files.items():
            (folder / file).write_text(text)
        (words,) = [line for line in commands_of(folder / "launch.sh", files["launch.sh"]) if "exec" in line]
        place = next(index for index, word in enumerate(words) if word.endswith("maxtext.yml"))
        machines = sum(used.num_machines for used in used_machines(job))
        one = {"devices": chosen.num_devices, "machines": machines, "batch": chosen.global_batch_size}
        asked[name] = (job, {**one, "path": str(folder / "maxtext.yml"), "words": words[place + 1 :]})
    assert len(asked) > 60
    for devices in {one["devices"] for _, one in asked.values()}:
        part = {name: both for name, both in asked.items() if both[1]["devices"] == devices}
        answers = dict(zip(part, read(_MAXTEXT, [one for _, one in part.values()], tmp_path), strict=True))
        assert not {name: one["error"] for name, one in answers.items() if "error" in one}
        for name, (job, said) in part.items():
            network = job.problem.dnn.transformer
            assert network is not None
            short = "QuantizationType.FP8_FULL" if job.problem.training.low is not None else "QuantizationType.NONE"
            assert answers[name] == {"layers": network.num_main_layers, "batch": said["batch"], "short": short}
