"""The files that commands are measured on: written anew for every measurement, the same bytes each time."""

import gzip
import json
import random
import shutil
from importlib.util import find_spec
from pathlib import Path

__all__ = ["onnx_folder", "write_inputs", "write_large_inputs"]

_SWEEP = """\
dnn: {{zoo: alexnet, batch_per_device: 32}}
cluster:
  machines: [{{count: 4, devices: 2, device: rtx-2080-ti, network: 10 Gbit/s}}]
families: [all_reduce]
sweep:
  vary:
    dnn.batch_per_device: {{from: 1, to: {batches}, step: 1}}
    cluster.machines.0.network: {{from: 1 Gbit/s, to: 400 Gbit/s, points: {networks}, scale: log}}
"""
_CONFIG = {  # of Llama 3 8B, as its publisher writes it
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "vocab_size": 128256,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_TRACE = Path(__file__).parents[2] / "tests" / "importers" / "data" / "cnn.pt.trace.json.gz"
_NUM_OPERATORS = 800_000


def onnx_folder() -> Path | None:
    """Return the real networks that the onnx package brings; None without it."""
    found = find_spec("onnx")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "backend" / "test" / "data" / "light"


def write_inputs(folder: Path) -> None:
    """Write the files of ordinary size."""
    folder.joinpath("sweep.yaml").write_text(_SWEEP.format(batches=5, networks=4), encoding="utf-8")
    folder.joinpath("config.json").write_text(json.dumps(_CONFIG), encoding="utf-8")
    folder.joinpath("timings.csv").write_text(_timings(), encoding="utf-8")
    light = onnx_folder()
    if light is not None:
        shutil.copy(light / "light_resnet50.onnx", folder / "resnet50.onnx")


def write_large_inputs(folder: Path) -> None:
    """Write a sweep of 10,000 questions, a line of 500 layers, and a trace of some 200 MB."""
    folder.joinpath("sweep_10k.yaml").write_text(_SWEEP.format(batches=100, networks=100), encoding="utf-8")
    folder.joinpath("line_500.yaml").write_text(_line(500), encoding="utf-8")
    _write_trace(folder / "large.pt.trace.json")


def _timings() -> str:
    """Return timings of all-reduces, as `planner calibrate` reads them: affine, and a little noise."""
    noise = random.Random(0)
    lines = ["collective,num_devices,size_bytes,time_s"]
    for num_devices in (2, 4, 8, 16, 32):
        for power in range(10, 30):
            size = 2**power
            seconds = 2 * (num_devices - 1) * (2e-5 + size / num_devices / 3e9) * noise.uniform(0.97, 1.03)
            lines.append(f"all_reduce,{num_devices},{size},{seconds:.9f}")
    return "\n".join(lines) + "\n"


def _line(num_layers: int) -> str:
    """Return a question about a line of layers, no two of them alike."""
    draw = random.Random(1)
    layers = [
        f"    - {{name: layer{index}, kind: fully_connected, multiply_adds: {draw.randint(10**6, 10**9)}, "
        f"parameters: {draw.randint(10, 4000)} kB, output: {draw.randint(4, 400)} kB}}"
        for index in range(num_layers)
    ]
    return "\n".join(
        [
            "dnn:",
            "  batch_per_device: 32",
            "  dataset_samples: 1000000",
            "  layers:",
            *layers,
            "cluster: {preset: osf-testbed}",
            "",
        ]
    )


def _write_trace(path: Path) -> None:
    """Write a trace that torch.profiler wrote, with so many operators of another thread that it is some 200 MB."""
    with gzip.open(_TRACE, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    begins_us = min(one["ts"] for one in events if one["ph"] == "X")
    with path.open("w", encoding="utf-8") as file:
        file.write('{"schemaVersion": 1, "displayTimeUnit": "ms", "traceEvents": [\n')
        for one in events:
            file.write(json.dumps(one) + ",\n")
        for index in range(_NUM_OPERATORS):
            file.write(_operator(begins_us + index / 10, index) + ",\n")
        file.write(_operator(begins_us + _NUM_OPERATORS / 10, _NUM_OPERATORS) + "\n]}\n")


def _operator(start_us: float, index: int) -> str:
    return (
        f'{{"ph": "X", "cat": "cpu_op", "name": "aten::operator_{index % 500}", "pid": 1, "tid": 1, '
        f'"ts": {start_us:.3f}, '
        f'"dur": 0.05, "args": {{"External id": {index}, "Record function id": 0, "Sequence number": {index}, '
        f'"Fwd thread id": 0, "Input Dims": [[32, 64, 56, 56], [64, 64, 3, 3]], "Ev Idx": {index}}}}}'
    )
