"""Memory held against what others measured; ``pytest -s`` prints the tables of docs/transformer_memory.md.

Layouts and settings are read from the rows; what a row does not say is set here, once for its family, and said.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner import zoo
from planner.models.layouts import Layouts, Recompute
from planner.models.memory import KERNELS, PRECISIONS, Kernels, Precision, memory_bytes
from planner.transformer import Transformer

pytestmark = pytest.mark.measured

GIB = 2**30
# What nvidia-smi shows once PyTorch's kernels are loaded: 1,343 MiB (Hugging Face's documentation of transformers, "Model
# training anatomy"). Buffers of the communication library come on top, and are left out.
CONTEXT_BYTES = 1343 * 2**20
CARD_BYTES = 80e9

# DeepSpeed of early 2022. ZeRO 1 as published; its optimiser for bf16, then in development, kept bf16 gradients, fp32
# sums of them and the whole fp32 copy on every device, and spread the moments alone (deepspeed/runtime/bf16_optimizer.py
# of that time says that it still tracks more than its own partition). We take it from the day when rows that agree in
# everything rise from 44 to 65 GB.
ZERO_1 = PRECISIONS["mixed"]
BF16_OPTIMIZER = Precision(weight_bytes=2, gradient_bytes=10, activation_bytes=2, master_bytes=0, optimizer_bytes=8)
BF16_FROM = "02-28"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured peak (None: not published, or out of memory), and ours."""

    name: str
    measured_gib: float | None
    ours_gib: float
    is_out_of_memory: bool = False

    @property
    def error(self) -> float:
        """Ours over the measured one, less one."""
        assert self.measured_gib is not None
        return self.ours_gib / self.measured_gib - 1


def show(title: str, rows: list[Row]) -> float:
    """Print a table; return the mean absolute error of the rows that have a peak."""
    print(f"\n{title}")
    for row in rows:
        tail = "out of memory" if row.is_out_of_memory else "runs"
        if row.measured_gib is not None:
            tail = f"measured {row.measured_gib:7.2f}  error {row.error:+7.2%}"
        print(f"  {row.name:64s} ours {row.ours_gib:7.2f} GiB  {tail}")
    errors = [abs(row.error) for row in rows if row.measured_gib is not None]
    print(f"  {len(errors)} rows with a peak: mean error {np.mean(errors):.2%}, maximum {max(errors):.2%}")
    return float(np.mean(errors))


def gib(dnn: Transformer, layout: Layouts, precision: Precision, kernels: Kernels, **options: Any) -> float:
    return float(memory_bytes(dnn, layout, precision=precision, kernels=kernels, **options)["total"][0]) / GIB


def rows_of(folder: Path, family: str) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Yield the rows of a family, each with what its note says."""
    with (folder / "llm" / "open.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            note = dict(part.strip().split("=", 1) for part in row["note"].split(";") if "=" in part)
            if note.get("family") == family:
                yield row, note


# -- Megatron-Core on B200


NETWORKS = {
    "llama3_70b": "llama3-70b",
    "llama3_405b": "llama3.1-405b",
    "deepseekv2": "deepseek-v2",
    "deepseekv3": "deepseek-v3",
}


def b200_row(case: str, peak_gib: float) -> Row:
    """Build a case from its name. Settings: README of the data, and the launch scripts of MooreThreads/SimuMax.

    By these the first layer alone is dense, 405B has 16 heads of keys, the context is spread by an all-to-all exchange.
    """
    name = next(key for key in NETWORKS if case.startswith(key))
    dnn = zoo.build(NETWORKS[name]).transformer
    assert dnn is not None

    def number(key: str, default: int = 1) -> int:
        found = re.search(rf"_{key}(\d+)", case)
        return int(found[1]) if found else default

    tokens = number("seq", 4096)
    fields: dict[str, Any] = {"num_layers": number("l"), "sequence_length": tokens, "num_positions": tokens}
    if dnn.experts is not None:
        fields["experts"] = replace(dnn.experts, num_dense_first=1)
    if name == "llama3_405b":
        fields["num_kv_heads"] = 16
    layout = Layouts.one(
        **{key: number(short) for key, short in (("tensor", "tp"), ("context", "cp"), ("pipeline", "pp"))},
        **{key: number(short) for key, short in (("data", "dp"), ("expert", "ep"), ("num_microbatches", "mbc"))},
        zero=1,
        sequence_parallel=number("tp") > 1,
    )
    ours = gib(replace(dnn, **fields), layout, PRECISIONS["megatron"], KERNELS["megatron-core"])
    return Row(name=case, measured_gib=peak_gib, ours_gib=ours)


def test_peaks_of_megatron_core_are_met(data_folder: Path) -> None:
    with (data_folder / "simumax" / "b200_open.csv").open(newline="") as file:
        rows = [b200_row(row["case"], float(row["peak_memory_gib"])) for row in csv.DictReader(file)]
    assert show("simumax (B200, peak of allocated memory, no reserve)", rows) < 0.015
    assert max(abs(row.error) for row in rows) < 0.015


# -- Megatron, published figures


def test_shares_of_activations_with_each_remedy(data_folder: Path) -> None:
    """Korthikanti et al., figure 7: percent of tensor parallelism's activations; theirs are read off a plot."""
    ways: Mapping[str, dict[str, Any]] = {
        "sequence-parallel": {"sequence_parallel": True},
        "selective": {"recompute": int(Recompute.SELECTIVE)},
        "selective+sequence-parallel": {"recompute": int(Recompute.SELECTIVE), "sequence_parallel": True},
        "full": {"recompute": int(Recompute.FULL)},
    }

    def activations(row: Mapping[str, str], **way: Any) -> float:
        dnn = Transformer(
            num_layers=int(row["layers"]),
            hidden_size=int(row["hidden"]),
            num_heads=int(row["heads"]),
            vocabulary_size=51200,
            sequence_length=int(row["seq_len"]),
        )
        plain: dict[str, Any] = {"tensor": 8, "pipeline": 8, "interleave": 3, "num_microbatches": 64}
        found = memory_bytes(dnn, Layouts.one(**plain, **way), precision=ZERO_1, kernels=KERNELS["megatron-2021"])
        return float(found["activations"][0])

    found = list(rows_of(data_folder, "korthikanti-fig7-memory"))
    assert len(found) == len(ways)
    for row, note in found:
        share = 100 * activations(row, **ways[row["recompute"]]) / activations(row)
        assert share == pytest.approx(float(note["activation_percent_of_tensor_parallel_baseline"]), abs=0.8)


# -- BigScience's sweep: Megatron-DeepSpeed on A100


def split(num_layers: int, num_stages: int, *, has_ends: bool) -> list[int]:
    """Layers of every stage, as even as they go; where the embedding and the head count as a layer each, with them."""
    each, left = divmod(num_layers + 2 * has_ends, num_stages)
    sizes = [each + (stage < left) for stage in range(num_stages)]
    sizes[0] -= has_ends
    sizes[-1] -= has_ends
    return sizes


def bigscience_row(row: Mapping[str, str], note: Mapping[str, str]) -> Row:
    """Build a row. Layers, where missing, follow from the parameters; heads, where missing, are 64 or 96."""
    vocabulary, hidden = int(row["vocab"]), int(row["hidden"])
    layers = int(row["layers"] or round((float(row["params"]) - vocabulary * hidden) / (12 * hidden**2)))
    heads = int(row["heads"] or (96 if hidden % 64 else 64))
    dnn = Transformer(
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        vocabulary_size=vocabulary,
        sequence_length=int(row["seq_len"]),
        positions="alibi",
        has_embedding_norm=True,
    )
    tensor, pipeline, data, samples = (int(row[name]) for name in ("tp", "pp", "dp", "microbatch"))
    layout = Layouts.one(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        microbatch=samples,
        num_microbatches=int(row["global_batch"]) // data // samples,
        zero=1,
        recompute=int(Recompute.FULL),
    )
    is_late = note["date"] >= BF16_FROM
    ours = gib(
        dnn,
        layout,
        BF16_OPTIMIZER if is_late else ZERO_1,
        KERNELS["megatron-2021"],
        pipeline_layers=split(layers, pipeline, has_ends=is_late),
        reserve_bytes=CONTEXT_BYTES,
    )
    peak = note.get("max_memory_gb")
    name = f"{note['date']} {layers} x {hidden} a{row['heads'] or '?'} t{tensor} p{pipeline} d{data} b{samples}"
    return Row(
        name=name,
        measured_gib=float(peak) if peak else None,
        ours_gib=ours,
        is_out_of_memory=note.get("outcome") == "OOM",
    )


def test_layouts_that_ran_out_of_memory_are_refused(data_folder: Path) -> None:
    found = rows_of(data_folder, "bigscience-176b-sweep")
    rows = [bigscience_row(row, note) for row, note in found if row["hidden"]]
    early, late = ([row for row in rows if (row.name >= BF16_FROM) == is_late] for is_late in (False, True))
    show(f"bigscience, before {BF16_FROM} (reserve {CONTEXT_BYTES / GIB:.2f} GiB)", early)
    assert show(f"bigscience, from {BF16_FROM}", late) < 0.04
    refused = [row for row in rows if row.ours_gib * GIB > CARD_BYTES]
    false = [row.name for row in refused if not row.is_out_of_memory]
    missed = [row.name for row in rows if row.is_out_of_memory and row not in refused]
    print(f"  on {CARD_BYTES:.3g} bytes: refused although it ran: {false}; not refused although it did not: {missed}")
    assert len(false) <= 1
    assert len(missed) <= 1


# -- reports without an aim


def test_torchtitan_lies_between_no_and_full_recomputation(data_folder: Path) -> None:
    """Its selective recomputation keeps every second product, which we do not model; bf16 rows are bracketed."""
    rows = []
    for row, note in rows_of(data_folder, "torchtitan-h100"):
        if note.get("peak_memory_gib", "n/a") == "n/a":
            continue
        dnn = zoo.build("llama3.1-70b" if "70B" in row["model"] else "llama3.1-8b").transformer
        assert dnn is not None
        dnn = replace(dnn, sequence_length=int(row["seq_len"]))
        tensor = int(row["tp"])
        ways: dict[str, Any] = {
            "tensor": tensor,
            "data": int(row["dp"]),
            "microbatch": int(row["microbatch"]),
            "zero": 3,
        }
        ways |= {"sequence_parallel": tensor > 1, "overlap_data": True}
        none, full = (
            gib(dnn, Layouts.one(**ways, recompute=int(way)), PRECISIONS["fsdp"], KERNELS["fsdp"])
            for way in (Recompute.NONE, Recompute.FULL)
        )
        peak = float(note["peak_memory_gib"])
        is_full = row["recompute"] == "full"
        name = f"{row['model']} {row['dtype']} x{row['gpus']} b{row['microbatch']} {row['recompute']}"
        rows.append(Row(name=name, measured_gib=peak, ours_gib=full if is_full else none))
        assert full < peak < none
    show("torchtitan (selective as if nothing were computed again)", rows)


def test_sailor_rows_hold_more_than_half_precision_explains(data_folder: Path) -> None:
    """Its trainer's recomputation and precision are not stated: neither is fitted, and the rows are reported."""
    rows = []
    for family in ("sailor-gh200", "sailor-het"):
        for row, note in rows_of(data_folder, family):
            layers = [int(number) for number in note["layers_per_stage"].strip("[]").split(",")]
            layers[0] -= 1  # the embedding and the head count as layers there
            layers[-1] -= 1
            dnn = Transformer(
                num_layers=sum(layers),
                hidden_size=int(row["hidden"]),
                num_heads=int(row["heads"]),
                vocabulary_size=int(row["vocab"]),
                sequence_length=int(row["seq_len"]),
            )
            data, samples = int(row["dp"]), int(row["microbatch"])
            layout = Layouts.one(
                tensor=int(row["tp"]),
                pipeline=int(row["pp"]),
                data=data,
                microbatch=samples,
                num_microbatches=int(row["global_batch"]) // data // samples,
            )
            ours = gib(
                dnn, layout, ZERO_1, KERNELS["megatron-2021"], pipeline_layers=layers, reserve_bytes=CONTEXT_BYTES
            )
            name = f"{row['model']} {row['gpu_type'][:24]} t{row['tp']} p{row['pp']} d{row['dp']} b{row['microbatch']}"
            rows.append(Row(name=name, measured_gib=float(note["max_memory_bytes"]) / GIB, ours_gib=ours))
    show("sailor", rows)
    peaks = [row.measured_gib for row in rows if row.measured_gib is not None]
    ranks = np.argsort(np.argsort(np.array([peaks, [row.ours_gib for row in rows]])))
    correlation = float(np.corrcoef(ranks[0], ranks[1]).item(0, 1))
    print(f"  rank correlation {correlation:.2f}")
    assert correlation > 0.5
