"""Make the traces of tests/importers/data: a small network, profiled on the CPU.

python benchmarks/make_traces.py

torch 2.13.0+cpu wrote those that are kept there. Names of files and of the machine are taken out, and so are frames of
Python other than modules; nothing else is changed.
"""

import argparse
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

FOLDER = Path(__file__).parents[1] / "tests" / "importers" / "data"
BATCH_SIZE = 16
NUM_STEPS = 4


class Block(nn.Module):
    """A residual block: what its forward does by itself stands between its modules and behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(8)
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        branch = self.second(torch.relu(self.first(self.norm(image))))
        return image + branch


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        Block(),
        Block(),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def run(path: Path, *, has_modules: bool) -> None:
    """Profile a few steps of training and write the trace."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    image, target = torch.randn(BATCH_SIZE, 3, 32, 32), torch.randint(10, (BATCH_SIZE,))

    def train() -> None:
        optimizer.zero_grad()
        if has_modules:
            output = module(image)
        else:
            output = image
            for name, part in module.named_children():
                with record_function(f"part{name}"):
                    output = part(output)
        nn.functional.cross_entropy(output, target).backward()
        optimizer.step()

    train()
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=NUM_STEPS, repeat=1)
    options: dict[str, Any] = {"with_stack": has_modules, "record_shapes": True, "schedule": schedule}
    with profile(
        activities=[ProfilerActivity.CPU], on_trace_ready=lambda done: done.export_chrome_trace(str(path)), **options
    ) as profiler:
        for _ in range(NUM_STEPS + 1):
            train()
            profiler.step()


def cleaned(trace: dict[str, Any]) -> dict[str, Any]:
    """Return a trace without names of this machine and without frames that are no modules."""
    events = [
        event
        for event in trace["traceEvents"]
        if event.get("cat") != "python_function" or event["name"].startswith("nn.Module: ")
    ]
    for event in events:
        event.get("args", {}).pop("Input Strides", None)
    return {"schemaVersion": trace["schemaVersion"], "displayTimeUnit": "ms", "traceEvents": events}


def main() -> None:
    """Write both traces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    folder_to_fill = parser.parse_args().folder
    for name, has_modules in (("cnn", True), ("cnn_ranges", False)):
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder) / "trace.json"
            run(raw, has_modules=has_modules)
            text = json.dumps(cleaned(json.loads(raw.read_text())), separators=(",", ":"))
        (folder_to_fill / f"{name}.pt.trace.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
