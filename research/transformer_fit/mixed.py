"""Predictions of measured steps on machines of several kinds.

``python -m research.transformer_fit.mixed --help`` says how they are printed.

Nothing is fitted to a step on several kinds. Four figures that no other row tells are fitted, each time anew, to the
rows of ``amp-homogeneous``, which ran the same program on T4s alone: two shares of the T4 (:data:`FITTED`), what its
devices reach by way of the host, and the program's launch floor. The V100 has the shares of the A100.

- ``amp-homogeneous``, ``amp-het_cluster`` (D. Li et al., NeurIPS 2022; GPT-2 of 24 blocks, batch 32): four machines of
  4 T4s; and three of 4 V100s with, last in the order of ranks, one of 4 T4s. The published script numbers ranks by
  pipeline, data, tensor from the outside inwards, cuts 30 pieces (embedding, an empty one, 24 blocks, four more) and
  sums gradients in fp32 (``fp32_allreduce``). No recomputation, no ZeRO. Rows that ran out of memory have no time, and
  are left out.
- ``sailor-het`` (Sailor, SOSP 2025): OPT-350M on consumer cards in three mixes; 26 pieces are cut (embedding, 24
  blocks, head). Which card a replica stands on is not told: replicas are taken to fill the cards of the row in its
  order, a tensor group of one kind. The network is named slow and not told: 1 Gbit/s is taken. Reported, without aim.
"""

import argparse
import csv
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.cluster import Device
from planner.cost import Floats
from planner.data.devices import device
from planner.data.fits import transformer_rates
from planner.models.communication import Tier
from planner.models.compute import Constants, DeviceRates, Software, device_shares
from planner.models.layouts import Layouts
from planner.models.transformer_time import DeviceGroup, ReplicaClass, Step, group_seconds
from planner.transformer import Transformer

__all__ = ["FITTED", "MixedRow", "fitted_figures", "predicted_s", "rank_correlation", "read_mixed_rows"]

_MACHINES = {  # by the name in a row: device, inside and outside of a machine in bytes/s, one direction
    "V100": ("v100-sxm2-16g", 150e9, 10e9 / 8),  # NVLink; p3.8xlarge: 10 Gbit/s
    "T4": ("t4", 15.75e9, 50e9 / 8),  # PCIe 3.0 x16; g4dn.12xlarge: 50 Gbit/s
    "RTX-2080": ("rtx-2080-ti", 15.75e9, 1e9 / 8),
    "RTX-3090": ("rtx-3090", 31.5e9, 1e9 / 8),
    "Titan-RTX": ("titan-rtx", 15.75e9, 1e9 / 8),
}
_NO_ROW = "titan-rtx"  # a card that devices.csv lacks; its peak is with fp32 accumulation (NVIDIA's paper on Turing)
_TITAN = Device(
    name=_NO_ROW,
    peak_flop_per_s={"fp16": 130.5e12},
    memory_bandwidth_bytes_per_s=672e9,
    num_multiprocessors=72,
    power_w=280.0,
)
_LATENCY_S = 2e-5  # of a hop of TCP between machines
_SOFTWARE = "megatron-deepspeed"
_TOLD_BY = "amp-homogeneous"
_SCALE = 0.05  # error from which on a row counts less than quadratically
# Where each figure starts, and its least and most: T4 shares of an A100 up to what NVIDIA's guides say is reached; PCIe
# 3.0 x8 to x16 by way of the host; a layer's kernels of PyTorch 1, of 5 to 20 us each.
FITTED: Mapping[str, tuple[float, float, float]] = {
    "product_efficiency": (0.6, 0.2, 0.9),
    "memory_efficiency": (0.7, 0.2, 0.95),
    "inside_bytes_per_s": (6e9, 2e9, 15.75e9),
    "launch_s": (8e-4, 2e-4, 6e-3),
}
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRow:
    """A measured step: kinds of the machines in the order of ranks, degrees, layers of the stages, and its seconds."""

    family: str
    transformer: Transformer
    machines: tuple[str, ...]
    devices_per_machine: int
    tensor: int
    pipeline: int
    data: int
    microbatch: int
    num_microbatches: int
    layers: tuple[int, ...]
    iteration_s: float


def read_mixed_rows(folder: Path) -> list[MixedRow]:
    """Return the rows of both families that have a time, in the order of the file."""
    with (folder / "llm" / "open.csv").open(encoding="utf-8", newline="") as file:
        rows = [cells for cells in csv.DictReader(file) if cells["iteration_s"]]
    return [row for cells in rows for row in _row_of(cells)]


def _row_of(cells: Mapping[str, str]) -> Iterator[MixedRow]:
    """Yield a row, where it is of one of the families."""
    match = re.match(r"family=([^;]+)", cells["note"])
    family = match.group(1) if match else ""
    if family not in ("amp-homogeneous", "amp-het_cluster", "sailor-het"):
        return
    data, microbatch = int(cells["dp"]), int(cells["microbatch"])
    size = int(cells["tp"]) if family == "sailor-het" else 4
    machines = _machines(cells["gpu_type"], int(cells["gpus"]), size)
    yield MixedRow(
        family=family,
        transformer=Transformer(
            num_layers=int(cells["layers"]),
            hidden_size=int(cells["hidden"]),
            num_heads=int(cells["heads"]),
            num_kv_heads=int(cells["kv_heads"]),
            feed_forward_size=int(cells["ffn"]),
            vocabulary_size=int(cells["vocab"]),
            sequence_length=int(cells["seq_len"]),
        ),
        machines=machines,
        devices_per_machine=size,
        tensor=int(cells["tp"]),
        pipeline=int(cells["pp"]),
        data=data,
        microbatch=microbatch,
        num_microbatches=int(cells["global_batch"]) // (data * microbatch),
        layers=_layers(cells["note"], int(cells["layers"])),
        iteration_s=float(cells["iteration_s"]),
    )


def _machines(text: str, number: int, size: int) -> tuple[str, ...]:
    """Return the kind of every machine of so many devices, from ``12xV100+4xT4 (...)`` or from ``T4 (...)``."""
    names = text.split("(", maxsplit=1)[0]
    found: list[str] = []
    for count, name in re.findall(r"(\d+)x([A-Za-z0-9-]+)", names) or [(number, names.strip())]:
        found += [name] * (int(count) // size)
    return tuple(found)


def _layers(note: str, layers: int) -> tuple[int, ...]:
    """Return the blocks of every stage: of AMP's cuts those of the pieces 2 to 25, of Sailor's counts all but ends."""
    if match := re.search(r"layer_partition=\[([\d ]+)\]", note):
        cuts = [min(max(int(one) - 2, 0), layers) for one in match.group(1).split()]
        return tuple(np.diff(cuts).tolist())
    match = re.search(r"layers_per_stage=\[([\d, ]+)\]", note)
    counts = [int(one) for one in match.group(1).split(",")] if match else [layers + 2]
    counts[0] -= 1
    counts[-1] -= 1
    return tuple(counts)


# -- predictions -------------------------------------------------------------------------------------------------------


def fitted_figures(rows: Sequence[MixedRow]) -> dict[str, float]:
    """Return the figures :data:`FITTED` that come nearest to the rows on T4s alone.

    Minimised is the sum of a robust loss of ``log(predicted / measured)``; deterministic.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415  # late: only a report pays for it

    own = [row for row in rows if row.family == _TOLD_BY]
    start, low, high = np.log(np.array(list(FITTED.values()))).T

    def errors(logarithms: Floats) -> Floats:
        figures = dict(zip(FITTED, np.exp(logarithms).tolist(), strict=True))
        return np.array([np.log(predicted_s(row, figures) / row.iteration_s) for row in own])

    found = least_squares(
        errors, start, bounds=(low, high), diff_step=[1e-3] * len(start), loss="soft_l1", f_scale=_SCALE
    )
    return dict(zip(FITTED, np.exp(found.x).tolist(), strict=True))


def predicted_s(row: MixedRow, figures: Figures) -> float:
    """Return the seconds of a row's step, with the figures :data:`FITTED`."""
    names = tuple(dict.fromkeys(row.machines))
    given = transformer_rates()
    program = {**given["software"][_SOFTWARE], "gradient_bytes": 4.0, "launch_s": figures["launch_s"]}
    software, constants = Software(name=_SOFTWARE, **program), Constants(**given["constants"])
    layouts = Layouts.one(
        tensor=row.tensor,
        pipeline=row.pipeline,
        data=row.data,
        microbatch=row.microbatch,
        num_microbatches=row.num_microbatches,
    )
    shared: dict[str, Any] = {"software": software, "constants": constants}
    slowest = min(_MACHINES[name][2] for name in names) if len(names) > 1 else float("inf")
    kinds = [
        group_seconds(row.transformer, layouts, layouts, _kind(name, row, slowest, figures), **shared) for name in names
    ]
    step = Step(
        layouts=layouts,
        layers=np.array(row.layers)[:, None],
        groups=kinds,
        classes=list(_classes(row, names)),
    )
    return float(step.total_s[0])


def _kind(name: str, row: MixedRow, slowest: float, figures: Figures) -> DeviceGroup:
    """Return machines of one kind; between two kinds the slower link counts."""
    known, inside, outside = _MACHINES[name]
    tiers = (
        Tier(
            size=row.devices_per_machine,
            bandwidth_bytes_per_s=figures["inside_bytes_per_s"] if name == "T4" else inside,
        ),
        Tier(size=len(row.machines), bandwidth_bytes_per_s=outside, latency_s=_LATENCY_S),
    )
    rates = _rates(known, figures)
    return DeviceGroup(tiers=tiers, rates=rates, between_bytes_per_s=slowest, between_latency_s=_LATENCY_S)


def _rates(name: str, figures: Figures) -> DeviceRates:
    """Return a device's published figures, with the shares that fitted devices tell, or of the T4 its own."""
    known = _TITAN if name == _NO_ROW else device(name)
    shares = device_shares(known, "fp16", transformer_rates())
    if name == "t4":
        shares |= {key: figures[key] for key in ("product_efficiency", "memory_efficiency")}
    return DeviceRates.of(known, "fp16", shares)


def _classes(row: MixedRow, names: Sequence[str]) -> Iterator[ReplicaClass]:
    """Yield the replicas that lie on the same kinds, once each: ranks are pipeline, data, tensor inwards."""
    columns = {}
    for data in range(row.data):
        ranks = [(stage * row.data + data) * row.tensor for stage in range(row.pipeline)]
        columns[tuple(names.index(row.machines[rank // row.devices_per_machine]) for rank in ranks)] = True
    for column in columns:
        yield ReplicaClass(groups=np.array(column)[:, None], num_microbatches=np.array([row.num_microbatches]))


def rank_correlation(rows: Sequence[MixedRow], figures: Figures) -> float:
    """Return Spearman's correlation of predicted and measured seconds."""
    from scipy.stats import spearmanr  # noqa: PLC0415  # late: only a report pays for it

    predicted, measured = [predicted_s(row, figures) for row in rows], [row.iteration_s for row in rows]
    return float(spearmanr(predicted, measured).statistic)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print every row with its prediction, and the rank correlation by family; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.transformer_fit.mixed", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("PLANNER_DATA"), help="folder of measured data")
    given = parser.parse_args(arguments)
    if given.data is None or not (given.data / "llm" / "open.csv").is_file():
        print("no measured data: name their folder by --data or PLANNER_DATA.", file=sys.stderr)
        return 2
    rows = read_mixed_rows(given.data)
    figures = fitted_figures(rows)
    print(f"Fitted to {_TOLD_BY}: {', '.join(f'{name} {value:.3g}' for name, value in figures.items())}", end="\n\n")
    print("| family | tensor | stages | data | micro-batch | layers | measured s | predicted s |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        degrees = f"{row.tensor} | {row.pipeline} | {row.data} | {row.microbatch}"
        listed = " ".join(map(str, row.layers))
        print(f"| {row.family} | {degrees} | {listed} | {row.iteration_s:.2f} | {predicted_s(row, figures):.2f} |")
    print()
    for family in dict.fromkeys(row.family for row in rows):
        own = [row for row in rows if row.family == family]
        ratios = np.array([predicted_s(row, figures) / row.iteration_s - 1 for row in own])
        print(
            f"{family}: {len(own)} rows, rank correlation {rank_correlation(own, figures):.2f}, "
            f"mean error {100 * np.abs(ratios).mean():.0f} %, bias {100 * ratios.mean():+.0f} %"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
