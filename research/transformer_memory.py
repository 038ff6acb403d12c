"""Memory of a transformer's training against what others measured: how far off, by source, and what fits and what not.

Layouts and settings are read from the rows; what a row does not say is set here, once for its source, and said. Nothing
is fitted. Equal data give equal bytes.

    python -m research.transformer_memory --data PATH --write
"""

import argparse
import csv
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from planner import zoo
from planner.data.devices import device
from planner.models.layer_memory import Kernels
from planner.models.layouts import Layouts, Recompute
from planner.models.low_precision import NUMBER_TYPES
from planner.models.memory import Precision, memory_bytes
from planner.models.programs import PROGRAMS, Program
from planner.models.recomputation import MODULE_SETS
from planner.question.calibration import EXPERT_PIECES_SHARE, TRANSFORMER_RESERVE_BYTES
from planner.transformer import Transformer
from research import ROOT, page_with
from research.transformer_fit.low_rows import read_low_rows
from research.transformer_fit.rows import Row, read_rows

__all__ = ["Peak", "failures", "fits", "main", "page_text", "peaks", "rows_of", "vendor_fits"]

GIB = 2**30
# What nvidia-smi shows once PyTorch's kernels are loaded: 1,343 MiB (Hugging Face's documentation of transformers,
# "Model training anatomy"). Buffers of the communication library come on top, and are left out.
CONTEXT_BYTES = 1343 * 2**20
_PAGE = ROOT / "docs" / "transformer_memory.md"
_A100 = "a100-sxm4-80gb"
# BigScience trained in fp16 with ZeRO 1; "from now on", says its section of 28 February, with DeepSpeed's optimiser for
# bf16, then in development, and with the embedding and the head as a layer each.
_BF16_FROM = "02-28"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What a device held in a step, and what it holds by the model; None: out of memory, or not published."""

    source: str
    name: str
    measured_gib: float | None
    ours_gib: float
    is_out_of_memory: bool = False

    @property
    def error(self) -> float:
        """Ours over the measured one, less one."""
        assert self.measured_gib is not None
        return self.ours_gib / self.measured_gib - 1


def rows_of(folder: Path, family: str) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Yield the rows of a family, each with what its note says."""
    with (folder / "llm" / "open.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            note = dict(part.strip().split("=", 1) for part in row["note"].split(";") if "=" in part)
            if note.get("family") == family:
                yield row, note


def peaks(folder: Path) -> list[Peak]:
    """Return every row that tells a peak, or that it ran out of memory."""
    return [*_b200(folder), *_bridge(), *_bigscience(folder), *_torchtitan(folder), *_sailor(folder)]


def _gib(dnn: Transformer, layout: Layouts, precision: Precision, kernels: Kernels, **options: Any) -> float:
    return float(memory_bytes(dnn, layout, precision=precision, kernels=kernels, **options)["total"][0]) / GIB


# -- Megatron-Core on B200 ---------------------------------------------------------------------------------------------

_ZOO = {
    "llama3_70b": "llama3-70b",
    "llama3_405b": "llama3.1-405b",
    "deepseekv2": "deepseek-v2",
    "deepseekv3": "deepseek-v3",
}


def _b200(folder: Path) -> Iterator[Peak]:
    """Yield the cases of SimuMax, whose settings are in their names, the README of the data and its launch scripts.

    By these the first layer alone is dense, 405B has 16 heads of keys, the context is spread by an all-to-all exchange.
    Of which version Megatron-Core was nobody says; the peaks say that it weighted what experts put out, as versions
    before 0.12 do: 0.2 % off in the mean with that kept, 0.5 % without.
    """
    with (folder / "simumax" / "b200_open.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            case, program = row["case"], PROGRAMS["megatron-core"]
            name = next(key for key in _ZOO if case.startswith(key))
            dnn = zoo.build(_ZOO[name]).transformer
            assert dnn is not None
            given = {key: int(number) for key, number in re.findall(r"(?<=_)(tp|cp|pp|dp|ep|l|mbc|seq)(\d+)", case)}
            tokens = given.get("seq", 4096)
            fields: dict[str, Any] = {"num_layers": given["l"], "sequence_length": tokens, "num_positions": tokens}
            if dnn.experts is not None:
                fields["experts"] = replace(dnn.experts, num_dense_first=1)
            if name == "llama3_405b":
                fields["num_kv_heads"] = 16
            degrees = {"tensor": "tp", "context": "cp", "pipeline": "pp", "data": "dp", "expert": "ep"}
            layout = Layouts.one(
                **{key: given.get(short, 1) for key, short in degrees.items()},
                num_microbatches=given["mbc"],
                zero=1,
                sequence_parallel=given.get("tp", 1) > 1,
            )
            # Buffers of the exchange are no tensors of PyTorch, and not in what it has allocated.
            kernels = replace(program.kernels, weighs_activations=False, dispatch_bytes=0.0)
            ours = _gib(replace(dnn, **fields), layout, program.precision, kernels)
            measured = float(row["peak_memory_gib"])
            yield Peak(source="SimuMax, Megatron-Core on B200", name=case, measured_gib=measured, ours_gib=ours)


# -- Megatron-Bridge: experts on 16 H100, bf16, one sequence a micro-batch ---------------------------------------------

# Network, tokens, expert degree, modules computed again, whether Adam's moments were there, which the first step makes;
# the peak of rank 0 in GB. Megatron-Bridge, skills/nemo-mbridge-perf-activation-recompute ("Matched H100 Evidence") and
# skills/nemo-mbridge-perf-moe-dispatcher-selection, of August and May 2026.
_BRIDGE: Sequence[tuple[str, int, int, tuple[str, ...], bool, float]] = (
    ("qwen3-30b-a3b", 4096, 16, (), True, 61.351),
    ("nemotron-3-nano-30b-a3b", 8192, 8, (), False, 66.297),
    ("nemotron-3-nano-30b-a3b", 8192, 8, ("moe_act",), False, 62.103),
    ("nemotron-3-nano-30b-a3b", 8192, 8, ("moe",), True, 64.653),
    ("nemotron-3-nano-30b-a3b", 8192, 8, ("layernorm", "moe"), True, 63.639),
)


def _bf16_gradients(program: Program) -> Precision:
    """Return what vendors' recipes keep: gradients in bf16, and whole master copies.

    All of Megatron-Bridge 0.3 have ``use_precision_aware_optimizer = False``.
    """
    assert program.bf16_gradients is not None, "Megatron-Core's"
    return replace(program.bf16_gradients, spared_bytes=0)


def _bridge() -> Iterator[Peak]:
    """Yield peaks of mixtures of experts, as PyTorch allocated; gradients are in bf16 (its recipes)."""
    program, number = PROGRAMS["megatron-core"], {frozenset(one): index for index, one in enumerate(MODULE_SETS)}
    bf16_gradients = _bf16_gradients(program)
    for name, tokens, expert, modules, has_moments, measured in _BRIDGE:
        dnn = zoo.build(name).transformer
        assert dnn is not None
        layout = Layouts.one(data=16, expert=expert, zero=1)
        if modules:
            again = {"recompute": int(Recompute.SELECTIVE), "recompute_modules": number[frozenset(modules)]}
            layout = Layouts.one(data=16, expert=expert, zero=1, **again)
        precision = bf16_gradients if has_moments else replace(bf16_gradients, optimizer_bytes=0.0)
        kernels = replace(program.kernels, dispatch_bytes=0.0)
        yield Peak(
            source="Megatron-Bridge, experts on H100",
            name=f"{name} e{expert} {' '.join(modules)}",
            measured_gib=measured * 1e9 / GIB,
            ours_gib=_gib(replace(dnn, sequence_length=tokens), layout, precision, kernels),
        )


# -- BigScience's sweep: Megatron-DeepSpeed on A100 --------------------------------------------------------------------


def _split(num_layers: int, num_stages: int, *, has_ends: bool) -> list[int]:
    """Return the layers of stages as even as they go; ``has_ends``: embedding and head are a layer each, with them."""
    each, left = divmod(num_layers + 2 * has_ends, num_stages)
    sizes = [each + (stage < left) for stage in range(num_stages)]
    sizes[0] -= has_ends
    sizes[-1] -= has_ends
    return sizes


def _bigscience(folder: Path) -> Iterator[Peak]:
    """Yield the rows; layers, where missing, follow from the parameters; heads, where missing, are 64 or 96."""
    for row, note in rows_of(folder, "bigscience-176b-sweep"):
        if not row["hidden"]:
            continue
        vocabulary, hidden = int(row["vocab"]), int(row["hidden"])
        layers = int(row["layers"] or round((float(row["params"]) - vocabulary * hidden) / (12 * hidden**2)))
        dnn = Transformer(
            num_layers=layers,
            hidden_size=hidden,
            num_heads=int(row["heads"] or (96 if hidden % 64 else 64)),
            vocabulary_size=vocabulary,
            sequence_length=int(row["seq_len"]),
            positions="alibi",
            has_embedding_norm=True,
        )
        tensor, pipeline, data, samples = (int(row[name]) for name in ("tp", "pp", "dp", "microbatch"))
        is_late, peak = note["date"] >= _BF16_FROM, note.get("max_memory_gb")
        program = PROGRAMS["megatron-deepspeed-bf16" if is_late else "megatron-deepspeed"]
        ours = _gib(
            dnn,
            Layouts.one(
                tensor=tensor,
                pipeline=pipeline,
                data=data,
                microbatch=samples,
                num_microbatches=int(row["global_batch"]) // data // samples,
                zero=1,
                recompute=int(Recompute.FULL),
            ),
            program.precision,
            program.kernels,
            pipeline_layers=_split(layers, pipeline, has_ends=is_late),
            reserve_bytes=CONTEXT_BYTES,
        )
        yield Peak(
            source=f"BigScience, {'from 28 February, bf16' if is_late else 'before, fp16'}",
            name=f"{note['date']} {layers} x {hidden} a{row['heads'] or '?'} t{tensor} p{pipeline} d{data} b{samples}",
            measured_gib=float(peak) if peak else None,
            ours_gib=ours,
            is_out_of_memory=note.get("outcome") == "OOM",
        )


# -- torchtitan --------------------------------------------------------------------------------------------------------


def _torchtitan(folder: Path) -> Iterator[Peak]:
    """Yield the rows, which tell what the allocator reserved, pieces included.

    In December 2024 its loss was not compiled: "TODO: compiling loss function causes CUDA errors" (train.py); compiled
    models now have it compiled, too.
    """
    for row, note in rows_of(folder, "torchtitan-h100"):
        if note.get("peak_memory_gib", "n/a") == "n/a":
            continue
        dnn = zoo.build("llama3.1-70b" if "70B" in row["model"] else "llama3.1-8b").transformer
        assert dnn is not None
        tensor, is_old = int(row["tp"]), "202412" in row["source"]
        is_eager = "compile" not in row["note"] and tensor == 1
        program = PROGRAMS["torchtitan-eager" if is_eager else "torchtitan"]
        layout = Layouts.one(
            tensor=tensor,
            data=int(row["dp"]),
            microbatch=int(row["microbatch"]),
            zero=3,
            sequence_parallel=tensor > 1,
            overlap_data=True,
            recompute=int(Recompute[row["recompute"].upper()]),
        )
        kernels = replace(program.kernels, is_loss_fused=program.kernels.is_loss_fused and not is_old)
        ours = _gib(replace(dnn, sequence_length=int(row["seq_len"])), layout, program.precision, kernels)
        yield Peak(
            source=f"torchtitan, {row['recompute']} recomputation, {'2024' if is_old else '2025'}",
            name=f"{row['model']} {row['dtype']} x{row['gpus']} b{row['microbatch']}{' eager' * is_eager}",
            measured_gib=float(note["peak_memory_gib"]),
            ours_gib=ours,
        )


# -- Sailor ------------------------------------------------------------------------------------------------------------


def _sailor(folder: Path) -> Iterator[Peak]:
    """Yield its trainer's rows, taken to train in half precision without recomputation, which they do not say."""
    for family in ("sailor-gh200", "sailor-het"):
        for row, note in rows_of(folder, family):
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
            data, samples, program = int(row["dp"]), int(row["microbatch"]), PROGRAMS["megatron-lm"]
            layout = Layouts.one(
                tensor=int(row["tp"]),
                pipeline=int(row["pp"]),
                data=data,
                microbatch=samples,
                num_microbatches=int(row["global_batch"]) // data // samples,
            )
            options: dict[str, Any] = {"pipeline_layers": layers, "reserve_bytes": CONTEXT_BYTES}
            name = f"{row['model']} {row['gpu_type'][:24]} t{row['tp']} p{row['pp']} d{row['dp']} b{row['microbatch']}"
            yield Peak(
                source="Sailor",
                name=name,
                measured_gib=float(note["max_memory_bytes"]) / GIB,
                ours_gib=_gib(dnn, layout, program.precision, program.kernels, **options),
            )


# -- what fits ---------------------------------------------------------------------------------------------------------


def fits(folder: Path) -> dict[str, list[tuple[str, float, float]]]:
    """Return steps that ran, by source: what each is, and the GiB it takes and has, what a device keeps left out.

    Of a device with experts without what lies in pieces.

    Those of the fit, with their own programs; of BigScience's sweep as :func:`peaks` reads them.
    """
    found: dict[str, list[tuple[str, float, float]]] = {}
    for row in read_rows(folder):
        if row.family != "bigscience-176b-sweep":
            has = _without_pieces_gib(row)
            found.setdefault(row.family, []).append((" ".join(row.group[1:]), _fitted_gib(row), has))
    has = device(_A100).memory_bytes / GIB
    for one in _bigscience(folder):
        if not one.is_out_of_memory:
            found.setdefault(one.source, []).append((one.name, one.ours_gib - CONTEXT_BYTES / GIB, has))
    return found


def _without_pieces_gib(row: Row) -> float:
    """Return what the device of a row has, less what lies in pieces between arrays of experts."""
    share = EXPERT_PIECES_SHARE if row.transformer.experts is not None else 0.0
    return (1 - share) * device(row.device).memory_bytes / GIB


def _fitted_gib(row: Row) -> float:
    """Return what a row of the fit takes."""
    program = PROGRAMS[row.software]
    precision = _bf16_gradients(program) if row.has_bf16_gradients else program.precision
    return _gib(row.transformer, row.layouts(), precision, program.kernels)


def vendor_fits(folder: Path) -> list[tuple[str, tuple[float, float, float], float]]:
    """Return vendors' layouts of the tables in eight and four bits, each once: its name, what it takes and has, in GiB.

    It takes so much without recomputation, which the rows do not state; with the modules that leave most room; and with
    whole layers computed again. What a device keeps is left out, and with experts what lies in pieces.
    """
    found = {}
    for one in read_low_rows(folder):
        program = PROGRAMS[one.row.software].in_type(None if one.low is None else NUMBER_TYPES[one.low])
        precision = _bf16_gradients(program) if one.row.has_bf16_gradients else program.precision
        layouts = one.row.layouts()
        layouts = replace(layouts, overlap_expert=np.array([False]))  # left open, it is off where there is no room
        sets = np.arange(len(MODULE_SETS))
        many = replace(
            layouts.of(np.zeros(len(sets), dtype=np.int64)),
            recompute=np.full(len(sets), int(Recompute.SELECTIVE)),
            recompute_modules=sets,
        )
        ways = (layouts, many, replace(layouts, recompute=np.array([int(Recompute.FULL)])))
        held = [
            memory_bytes(one.row.transformer, way, precision=precision, kernels=program.kernels)["total"].min() / GIB
            for way in ways
        ]
        told = {key: number for key, number in one.row.layout.items() if key != "overlap_expert"}
        name = " ".join((*one.row.group[1:3], one.row.group[4], *(f"{key} {n}" for key, n in told.items())))
        has = _without_pieces_gib(one.row)
        found[name, one.is_lora] = name, (float(held[0]), float(held[1]), float(held[2])), has
    return list(found.values())


def failures(folder: Path) -> list[Peak]:
    """Return the rows that ran out of memory, on devices of 80 GiB."""
    return [one for one in _bigscience(folder) if one.is_out_of_memory]


# -- the page ----------------------------------------------------------------------------------------------------------

_KNOWN = {
    "SimuMax, Megatron-Core on B200": "allocated; experts' outputs and placeholders were settled with these in view",
    "Megatron-Bridge, experts on H100": "allocated; graphs of attention and Mamba layers hold some more",
    "BigScience, before, fp16": "what nvidia-smi showed; DeepSpeed's buffers for ZeRO are those of its default buckets",
    "BigScience, from 28 February, bf16": "the same; DeepSpeed's bf16 optimiser of that time",
    "torchtitan, selective recomputation, 2024": "what the allocator reserved, 96 GB cards; the loss not compiled",
    "torchtitan, full recomputation, 2024": "the same, of 70B; the rows do not say what else is held",
    "torchtitan, selective recomputation, 2025": "everything compiled",
    "Sailor": "the rows say neither what is computed again nor how the optimiser keeps its state",
}


def page_text(folder: Path) -> str:
    """Return the written part of the page."""
    lines = ["| rows | n | bias | mean error | maximum | what is known of them |", "|---|---|---|---|---|---|"]
    every = [one for one in peaks(folder) if one.measured_gib is not None]
    for source, known in _KNOWN.items():
        errors = [one.error for one in every if one.source == source]
        sizes = [abs(error) for error in errors]
        cells = (f"{100 * fmean(errors):+.1f} %", f"{100 * fmean(sizes):.1f} %", f"{100 * max(sizes):.1f} %")
        lines.append(f"| {source} | {len(errors)} | {' | '.join(cells)} | {known} |")
    reserves = CONTEXT_BYTES / GIB, TRANSFORMER_RESERVE_BYTES / GIB
    lines += [
        "",
        "Does a step fit? **Refused**: the model says that it takes more than the device has, beside a reserve of "
        f"{reserves[0]:.1f} GiB (the context alone) or {reserves[1]:g} GiB (what is assumed).",
        "",
        f"| steps | n | refused, {reserves[0]:.1f} GiB | refused, {reserves[1]:g} GiB |",
        "|---|---|---|---|",
    ]
    never: list[str] = []
    for source, ran in (whole := fits(folder)).items():
        counts = [sum(takes + kept > has for _, takes, has in ran) for kept in reserves]
        if any(counts):
            lines.append(f"| ran: {source} | {len(ran)} | {counts[0]} | {counts[1]} |")
        else:
            never.append(source)
    lines.append(f"| ran: the other {len(never)} families | {sum(len(whole[one]) for one in never)} | 0 | 0 |")
    failed, has = failures(folder), device(_A100).memory_bytes / GIB
    counts = [sum(one.ours_gib + kept - reserves[0] > has for one in failed) for kept in reserves]
    lines.append(f"| out of memory: BigScience | {len(failed)} | {counts[0]} | {counts[1]} |")
    missed = [f"{one.name} ({one.ours_gib:.1f} GiB)" for one in failed if one.ours_gib <= has]
    vendors = vendor_fits(folder)
    kept = reserves[1]
    counts = [sum(min(takes[:ways]) + kept <= has for _, takes, has in vendors) for ways in (1, 2, 3)]
    lines += [
        "",
        "Vendors' layouts of Megatron-Bridge and NeMo in eight and four bits, with those in bf16 beside them, which do "
        f"not state recomputation: of {len(vendors)} distinct ones {counts[0]} fit without any beside {kept:g} GiB, "
        f"{counts[1]} with modules computed again at most, {counts[2]} with whole layers.",
    ]
    lines += ["", f"Out of memory and not refused: {'; '.join(missed) or 'none'}."]
    return "\n".join(lines)


def _rows_text(every: Sequence[Peak]) -> str:
    lines = []
    for one in every:
        tail = "out of memory" if one.is_out_of_memory else "runs"
        if one.measured_gib is not None:
            tail = f"measured {one.measured_gib:7.2f}  error {one.error:+7.2%}"
        lines.append(f"{one.source:44s} {one.name:64s} ours {one.ours_gib:7.2f} GiB  {tail}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.transformer_memory", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("PLANNER_DATA"), help="folder of measured data")
    parser.add_argument("--write", action="store_true", help=f"write its part of {_PAGE.name} anew")
    given = parser.parse_args(arguments)
    if given.data is None or not (given.data / "llm" / "open.csv").is_file():
        print("no measured data: name their folder by --data or PLANNER_DATA.", file=sys.stderr)
        return 2
    text = page_text(given.data)
    print(_rows_text(peaks(given.data)), text, sep="\n\n")
    if given.write:
        page = page_with(_PAGE.read_text(encoding="utf-8"), "research/transformer_memory.py", text)
        _PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
