"""Nanotron's published sweep on H100s, as it is read: ``llm/nanotron_h100_open.csv``, and what its rows do not tell.

A row is a layout (tensor x stages x replicas x micro-batch x ZeRO) of one of four networks on 8 to 512 devices, with
its tokens per second, or without any where it crashed. The network between machines is not told: eight links of 400
Gbit/s are taken, with the latency of the Elastic Fabric Adapter, on which its authors rent machines of that kind.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "DEVICES_PER_MACHINE",
    "FILE",
    "GLOBAL_BATCH",
    "HEALTHY",
    "LATENCY_S",
    "NETWORKS",
    "SEQUENCE_LENGTH",
    "Run",
    "read_runs",
]

FILE = Path("llm") / "nanotron_h100_open.csv"
GLOBAL_BATCH, DEVICES_PER_MACHINE = 256, 8
HEALTHY = 0.25  # of the peak: below, runs are slow by what no model of a layout holds
LATENCY_S = 20e-6  # of a hop between machines
# Layers, hidden size, heads, feed-forward size, whether embeddings are tied: its script scaling_benchmarks.py.
_SIZES = {
    "1B": (16, 2048, 32, 8192, True),
    "3B": (28, 3072, 32, 8192, True),
    "8B": (32, 4096, 32, 14336, False),
    "80B": (80, 8192, 64, 28672, False),
}
SEQUENCE_LENGTH = 4096
NETWORKS: Mapping[str, Mapping[str, Any]] = {  # by the keys of a question
    name: {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "feed_forward": feed_forward,
        "vocabulary": 131_072,
        "gated": True,
        "positions": "rotary",
        "norm": "rms_norm",
        "biases": False,
        "tied_embeddings": is_tied,
    }
    for name, (layers, hidden, heads, feed_forward, is_tied) in _SIZES.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row: ``iteration_s`` is None where it crashed; ``mfu`` and ``memory_bytes`` as printed, else nan."""

    model: str
    nodes: int
    tensor: int
    pipeline: int
    data: int
    microbatch: int
    zero: int
    iteration_s: float | None
    mfu: float
    memory_bytes: float

    @property
    def is_healthy(self) -> bool:
        """Whether it has a time, and is not slow for reasons outside of any layout."""
        return self.iteration_s is not None and self.mfu >= HEALTHY

    @property
    def layout(self) -> tuple[str | int, ...]:
        """What tells it from others, but for repeats."""
        return (self.model, self.nodes, self.tensor, self.pipeline, self.data, self.microbatch, self.zero)


def read_runs(folder: Path) -> list[Run]:
    """Return all rows, in the order of the file."""
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        return [
            Run(
                model=cells["model"],
                nodes=int(cells["nodes"]),
                tensor=int(cells["tp"]),
                pipeline=int(cells["pp"]),
                data=int(cells["dp"]),
                microbatch=int(cells["mbs"]),
                zero=int(cells["zero"]),
                iteration_s=float(cells["iteration_s"]) if cells["status"] == "ok" else None,
                mfu=float(cells["mfu_pct"]) / 100,
                memory_bytes=float(cells["memory_gb"]) * 1e9,
            )
            for cells in csv.DictReader(file)
        ]
