"""Measured training steps, read in place: which rows of the data can be predicted, and under which settings.

A row is used if it tells its layout. What no row tells (links, software, what a family's rows have in common) stands in
:data:`FAMILIES`; where a family's rows are read otherwise than they are recorded, its ``reading`` says so and why.
Families that are not named there are left out: :data:`LEFT_OUT` says why.

Rows that contradict each other, or that no steady model can meet:

- ``vtrain-multi``, 3.6 billion parameters, tensor degree 8, 8 replicas: one micro-batch of 64 takes 9.84 s, two of 32
  take 4.97 s, 32 of 2 take 8.88 s, 16 of 4 take 5.62 s. 39.1 billion, tensor degree 4, 8 stages: micro-batches of 2, 3,
  4, 6 take 16.1, 17.6, 17.4, 16.1 s, though the bubble grows from 15 to 44 % of the work; tensor degree 2: 21.9, 19.1,
  23.1 s at 2, 3, 6. These six are predicted 12 to 34 % too fast, and most of the family 1 to 10 % too slow.
- ``vtrain-single``, width 2048, tensor degree 4: a layer takes 2.99 ms at a micro-batch of 1 and 2.75 ms at 2; width
  1024, degree 2: 3.58 ms at 2 and 3.18 ms at 4.
- ``bigscience-176b-sweep``: 106 layers, 96 heads, the same layout takes 112.7 s on 27 February and 118.8 s on the 28th.
  Micro-batches of 2 and 4, which decide regret, differ by less: 1.3 % (118.8, 120.3 s), 3.0 % (107.1, 110.3 s), 4.8 %
  (111.7, 117.1 s). 72 layers of 128 heads: 114.0 s at 2 and 137.5 s at 4. 112 heads take 14 % longer than 64, 32 2 %.
- ``llm-foundry-a100``: 30 billion parameters, one sequence a micro-batch: 299.6 s at 8,192 tokens, 105.7 s at 4,096;
  760 million parameters take 8 to 10 % longer a token at sequences of 512 and 1,024 than at 2,048.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from planner.models.compute import Software
from planner.models.layouts import Layouts, Recompute
from planner.models.programs import ALL_TO_ALL, DEEPEP, DEEPEP_BYTES_PER_S, MEGATRON_CORE, token_backend
from planner.models.tiers import Tier
from planner.transformer import Transformer
from planner.transformer_parts import Experts
from planner.zoo import transformers
from research.nanotron_runs import GLOBAL_BATCH, LATENCY_S, NETWORKS, SEQUENCE_LENGTH, Run, read_runs

__all__ = ["FAMILIES", "LEFT_OUT", "Family", "Row", "read_rows"]

_RECOMPUTE = {
    "full": Recompute.FULL,
    "selective": Recompute.SELECTIVE,
    "selective+sequence-parallel": Recompute.SELECTIVE,
    "none": Recompute.NONE,
    "": Recompute.NONE,
}
_DEVICES = {"A100": "a100-sxm4-80gb", "H100": "h100-sxm", "B200": "b200-sxm"}
_INSIDE = {
    "a100-sxm4-80gb": 300e9,
    "h100-sxm": 450e9,
    "b200-sxm": 900e9,
    "gb200": 900e9,
}  # bytes/s, one direction (links.csv)
_MACHINE = 8  # devices
_BOARDS_BYTES_PER_S = 31.5e9  # of a device to another board, one direction: PCI Express 4.0 x16 (links.csv)
_MANY = 4096  # machines: more than any row has


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the rows of one family have in common."""

    software: str  # name of the training program
    machine_bytes_per_s: float  # of one machine's network, one direction
    # fields of the transformer beside those that a row tells, or in their place
    sizes: Mapping[str, object] = field(default_factory=dict)
    # default_heads, default_microbatch: where a row tells none; 0: such a row is left out
    default_heads: int = 0
    default_microbatch: int = 0
    overlap_data: bool = False  # whether gradients and weights are exchanged beside computing
    never_recomputes: bool = False  # whether nothing is recomputed, whatever a row says
    # devices that links of their own join; several boards of a machine exchange by PCI Express
    devices_per_board: int = _MACHINE
    # what is published of its devices otherwise: fields of :class:`planner.models.compute.DeviceRates`
    device_figures: Mapping[str, float] = field(default_factory=dict)
    reading: str = ""  # how the rows are read otherwise than they are recorded, and why


_MPT = {"positions": "alibi", "has_biases": False, "norm": "layer_norm"}
_LLAMA = {
    "positions": "rotary",
    "norm": "rms_norm",
    "is_gated": True,
    "has_biases": False,
    "has_tied_embeddings": False,
}
FAMILIES: Mapping[str, Family] = {
    "vtrain-single": Family(
        software="megatron-deepspeed",
        machine_bytes_per_s=100e9,
        sizes={"vocabulary_size": 50257},
        never_recomputes=True,
        reading="nothing recomputed: else products alone would run at 94 % of an A100's peak or more; 50,257 words, "
        "not filled up, the default of vTrain's settings, which those of the rows keep (51,200 is the table's guess)",
    ),
    "vtrain-multi": Family(software="megatron-deepspeed", machine_bytes_per_s=100e9),
    "korthikanti-table5": Family(software="megatron-lm-fused", machine_bytes_per_s=200e9),
    "sc21-table1": Family(software="megatron-lm", machine_bytes_per_s=200e9),
    "sc21-table2": Family(software="megatron-lm", machine_bytes_per_s=200e9),
    "megatron-readme-1T": Family(
        software="megatron-lm",
        machine_bytes_per_s=200e9,
        default_microbatch=1,
        reading="micro-batch of 1, as in the published script",
    ),
    "mt-nlg-530b": Family(software="megatron-deepspeed-bf16", machine_bytes_per_s=200e9),
    "bigscience-176b-sweep": Family(
        software="megatron-deepspeed-bf16",
        machine_bytes_per_s=50e9,
        sizes={"positions": "alibi", "has_embedding_norm": True},
        default_heads=64,
        devices_per_board=4,
        reading="64 heads where none are recorded, as in the section that compares others with them; a machine of two "
        "boards of four devices ('NVLink 4 inter-gpu connects'), joined by PCI Express",
    ),
    "llm-foundry": Family(software="composer-fsdp", machine_bytes_per_s=400e9, sizes=_MPT, overlap_data=True),
    "llm-foundry-a100": Family(software="composer-fsdp", machine_bytes_per_s=200e9, sizes=_MPT, overlap_data=True),
    "torchtitan-h100": Family(
        software="torchtitan",
        machine_bytes_per_s=400e9,
        sizes=_LLAMA,
        overlap_data=True,
        # "2.4 TB/sec"; limited to 500 W, with a peak "between SXM and NVL", 989 and 835 TFLOP/s: the mean.
        device_figures={"peak_flop_per_s": 912e12, "memory_bandwidth_bytes_per_s": 2.4e12},
        reading="bf16 rows only, the B200 row left out (its power is limited); sequence parallel above tensor degree "
        "1, and compiled; else as the row says; devices of 912 TFLOP/s and 2.4 TB/s",
    ),
    "simumax-b200": Family(
        software="megatron-core",
        machine_bytes_per_s=400e9,
        reading="first layer of the cut DeepSeek-V3 dense, as its memory says",
    ),
}
LEFT_OUT: Mapping[str, str] = {
    "korthikanti-table4-layer": "one layer, no step",
    "megatron-readme-2020": "no micro-batch, vocabulary or sequence length; recomputation assumed by the table's maker",
    "megascale-175b": "no micro-batch; interleaving and recomputation from memory; another block and optimiser",
    "megatron-bridge, nemo-*, mlperf-*": "recomputation not told; most in 8 bits or less",
    "sailor-*, amp-*": "uneven stages and mixed devices; held against the model by themselves: docs/hybrid_mixed.md",
    "bigscience-v100, metis-profile": "no sizes; single layers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured step. ``group``: family, network, devices and batch; within it only the layout differs.

    ``has_bf16_gradients``: whether the program is told to keep and reduce gradients in bf16. ``sends_each``: whether
    tokens go to their experts by NCCL's all-to-all, once for each of them, and not by DeepEP or HybridEP;
    ``has_hybrid``: whether it is HybridEP, though no more than eight devices are joined by NVLink.
    """

    family: str
    group: tuple[str, ...]
    transformer: Transformer
    device: str
    tiers: tuple[Tier, ...]
    software: str
    layout: Mapping[str, int | bool]
    iteration_s: float
    device_figures: Mapping[str, float] = field(default_factory=dict)
    has_bf16_gradients: bool = False
    sends_each: bool = False
    has_hybrid: bool = False

    def told(self, software: Software) -> Software:
        """Return what the row's program does, told as there."""
        backend = token_backend(self.device, software.name, int(self.layout.get("tensor", 1)))
        is_each = self.sends_each or backend == ALL_TO_ALL
        return replace(
            software,
            gradient_bytes=2.0 if self.has_bf16_gradients else software.gradient_bytes,
            sends_once=software.sends_once and not is_each,
            handed_bytes_per_s=inf if self.has_hybrid else software.handed_bytes_per_s,
            exchanged_bytes_per_s=DEEPEP_BYTES_PER_S if backend == DEEPEP and not self.has_hybrid else inf,
        )

    def layouts(self) -> Layouts:
        """Return the row's layout, alone."""
        return Layouts.one(**self.layout)

    def without_program(self) -> "Row":
        """Return the row as it is asked by a user who names no program: Megatron-Core, and what that has is on."""
        is_split = int(self.layout.get("tensor", 1)) > 1
        on = {"overlap_data": True, "overlap_tensor": is_split, "sequence_parallel": is_split}
        return replace(self, software=MEGATRON_CORE, layout={**self.layout, **on})


def read_rows(folder: Path) -> list[Row]:
    """Return all rows that can be predicted, in the order of the files."""
    with (folder / "llm" / "open.csv").open(encoding="utf-8", newline="") as file:
        found = [row for cells in csv.DictReader(file) if (row := _row_of(cells)) is not None]
    with (folder / "simumax" / "b200_open.csv").open(encoding="utf-8", newline="") as file:
        found += [_simumax_row(cells) for cells in csv.DictReader(file)]
    with (folder / "llm" / "recipes_bf16_open.csv").open(encoding="utf-8", newline="") as file:
        found += [_recipe_row(cells) for cells in csv.DictReader(file)]
    found += [_nanotron_row(run) for run in read_runs(folder) if run.is_healthy and run.pipeline == 1]
    return found


def _family_of(cells: Mapping[str, str]) -> str:
    """Return the family of a row; LLM Foundry's rows are one for each device."""
    match = re.search(r"family=([^;]+)", cells["note"])
    name = match.group(1).strip() if match else ""
    return f"{name}-a100" if name == "llm-foundry" and "A100" in cells["gpu_type"] else name


def _number(cells: Mapping[str, str], name: str, default: int) -> int:
    """Return a whole number of a cell, or a default where it is empty."""
    return int(float(cells[name])) if cells[name] else default


def _row_of(cells: Mapping[str, str]) -> Row | None:
    """Return a row of the table, or None where it cannot be predicted."""
    name = _family_of(cells)
    family = FAMILIES.get(name)
    is_told = all(cells[key] for key in ("iteration_s", "layers", "hidden", "tp", "pp", "dp"))
    if family is None or not is_told or cells["dtype"] not in ("fp16", "bf16", "amp_bf16"):
        return None
    heads = _number(cells, "heads", family.default_heads)
    microbatch = _number(cells, "microbatch", family.default_microbatch)
    is_quoted = name == "sc21-table2" and cells["zero"] == "3"  # of other settings, rounded to days
    is_limited = "power-limited" in cells["note"]
    if not heads or not microbatch or is_quoted or is_limited:
        return None
    device = next(known for short, known in _DEVICES.items() if short in cells["gpu_type"])
    layout = _layout(name, family, cells, microbatch)
    if int(cells["global_batch"]) % (int(layout["data"]) * microbatch):
        return None
    return Row(
        family=name,
        group=(
            name,
            cells["model"],
            str(cells["layers"]),
            str(heads),
            cells["seq_len"],
            cells["gpus"],
            cells["global_batch"],
        ),
        transformer=_transformer(family, cells, heads),
        device=device,
        tiers=_tiers(device, family),
        software=_software(name, family, cells),
        layout=layout,
        iteration_s=float(cells["iteration_s"]),
        device_figures=family.device_figures,
    )


def _software(name: str, family: Family, cells: Mapping[str, str]) -> str:
    is_eager = name == "torchtitan-h100" and "torch.compile" not in cells["note"] and "TP" not in cells["note"]
    return "torchtitan-eager" if is_eager else family.software


def _tiers(device: str, family: Family) -> tuple[Tier, ...]:
    """Return the links of a family's machines."""
    rail_bytes_per_s, size = family.machine_bytes_per_s / _MACHINE, family.devices_per_board
    boards = (Tier(size=_MACHINE // size, bandwidth_bytes_per_s=_BOARDS_BYTES_PER_S, num_rails=size),)
    return (
        Tier(size=size, bandwidth_bytes_per_s=_INSIDE[device]),
        *(boards if size < _MACHINE else ()),
        Tier(size=_MANY, bandwidth_bytes_per_s=rail_bytes_per_s, num_rails=_MACHINE),
    )


def _transformer(family: Family, cells: Mapping[str, str], heads: int) -> Transformer:
    told = {
        "num_layers": int(cells["layers"]),
        "hidden_size": int(cells["hidden"]),
        "num_heads": heads,
        "num_kv_heads": _number(cells, "kv_heads", heads),
        "feed_forward_size": _number(cells, "ffn", 4 * int(cells["hidden"])),
        "vocabulary_size": _number(cells, "vocab", 51200),
        "sequence_length": int(cells["seq_len"]),
    }
    return Transformer(**{**told, **family.sizes})  # type: ignore[arg-type]  # fields by their names


def _layout(name: str, family: Family, cells: Mapping[str, str], microbatch: int) -> dict[str, int | bool]:
    data, tensor = int(cells["dp"]), int(cells["tp"])
    recompute = Recompute.NONE if family.never_recomputes else _RECOMPUTE[cells["recompute"]]
    return {
        "tensor": tensor,
        "context": _number(cells, "cp", 1),
        "pipeline": int(cells["pp"]),
        "data": data,
        "interleave": _number(cells, "interleave", 1),
        "microbatch": microbatch,
        "num_microbatches": int(cells["global_batch"]) // (data * microbatch),
        "zero": _number(cells, "zero", 0),
        "recompute": int(recompute),
        "sequence_parallel": "sequence" in cells["recompute"] or (name == "torchtitan-h100" and tensor > 1),
        "overlap_data": family.overlap_data,
        "overlap_tensor": "async TP" in cells["note"],
    }


# -- the rows of SimuMax ---------------------------------------------------------------------------------------------

_ZOO = {
    "llama3_70b": "llama3-70b",
    "llama3_405b": "llama3.1-405b",
    "deepseekv2": "deepseek-v2",
    "deepseekv3": "deepseek-v3",
}


def _simumax_row(cells: Mapping[str, str]) -> Row:
    """Return a row of SimuMax's table, whose name holds its settings."""
    case, family = cells["case"], FAMILIES["simumax-b200"]
    given = dict(_settings(case))
    tensor, expert = given.get("tp", 1), given.get("ep", 1)
    data, microbatches = given.get("dp", 1), given["mbc"]
    return Row(
        family="simumax-b200",
        group=("simumax-b200", re.sub(r"_mbc\d+_cef", "", case)),
        transformer=_cut(case, given["l"], given.get("seq", 4096)),
        device="b200-sxm",
        tiers=_tiers("b200-sxm", family),
        software=family.software,
        layout={
            "tensor": tensor,
            "context": given.get("cp", 1),
            "pipeline": given.get("pp", 1),
            "data": data,
            "expert": expert,
            "microbatch": 1,
            "num_microbatches": microbatches,
            "zero": 1,
            "sequence_parallel": tensor > 1,
        },
        iteration_s=float(cells["iteration_s"]),
    )


def _settings(case: str) -> Iterator[tuple[str, int]]:
    """Yield the settings that a case's name holds."""
    for key, value in re.findall(r"_(tp|cp|pp|dp|ep|l|mbc|seq)(\d+)(?=_|$)", case.replace("_", "__")):
        yield key, int(value)


def _cut(case: str, num_layers: int, sequence_length: int) -> Transformer:
    """Return a published network, cut to fewer layers."""
    name = next(known for short, known in _ZOO.items() if case.startswith(short))
    whole = transformers.row(name).transformer
    experts = whole.experts and replace(whole.experts, num_dense_first=1)
    return replace(
        whole,
        num_layers=num_layers,
        sequence_length=sequence_length,
        num_positions=max(whole.num_positions, sequence_length),
        experts=experts,
    )


# -- vendors' recipes ------------------------------------------------------------------------------------------------

# Recipes reduce gradients in bf16: ``optim.grad_sync_dtype: bf16`` of Llama 3 8B and 405B in NVIDIA's
# NeMo-Framework-Launcher (examples/training/llama/h100/llama3_8b_bf16.sh, llama3_405b_bf16.sh), whose batches and 72
# machines they have, and of Grok-1 (grok1/grok1_314b.yaml of dgxc-benchmarking), which NeMo hands on as
# ``grad_reduce_in_fp32=False``. Nemotron 15B at first did not (nemotron/nemotron4-15b-synth.yaml there: none, fp32); of
# its later one the files do not tell, and with gradients in fp32 it would need 80.2 GiB of a device before any context.
_FP32_15B = "@1b9bb6b"
_OF_EXPERTS = {"count": "num_experts", "top_k": "top_k", "size": "expert_size"}
_OF_NETWORK = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "heads": "num_heads",
    "kv_heads": "num_kv_heads",
    "feed_forward": "feed_forward_size",
    "vocabulary": "vocabulary_size",
    "gated": "is_gated",
    "tied_embeddings": "has_tied_embeddings",
    "biases": "has_biases",
    "positions": "positions",
    "norm": "norm",
}


def _network(told: Mapping[str, Any], sequence_length: int) -> Transformer:
    sizes: dict[str, Any] = {_OF_NETWORK[key]: value for key, value in told.items() if key != "experts"}
    if "experts" in told:
        sizes["experts"] = Experts(**{_OF_EXPERTS[key]: value for key, value in told["experts"].items()})
    return Transformer(**sizes, sequence_length=sequence_length)


def _recipe_row(cells: Mapping[str, str]) -> Row:
    """Return a recipe of a vendor, whose overlaps are on; a family is a vendor's network on a device.

    NeMo, which Grok-1's are for, has no other all-to-all than NCCL's.
    """
    recipe, device = cells["recipe"], cells["device"]
    name = f"recipes-{device.split('-')[0]}-{re.match('[0-9A-Za-z]+', recipe)[0].lower()}"  # type: ignore[index]  # any has
    degrees = ("tensor", "context", "pipeline", "data", "expert", "interleave", "microbatch", "zero")
    layout: dict[str, int | bool] = {key: int(cells[key]) for key in degrees}
    has_tensor = layout["tensor"] > 1
    rail_bytes_per_s = float(cells["network_gbit_per_s_per_gpu"]) / 8 * 1e9
    domain = int(cells["gpus_per_nvlink_domain"])
    return Row(
        family=name,
        group=(name, recipe),
        transformer=_network(json.loads(cells["transformer_json"]), int(cells["sequence_length"])),
        device=device,
        tiers=(
            Tier(size=domain, bandwidth_bytes_per_s=_INSIDE[device]),
            Tier(size=_MANY, bandwidth_bytes_per_s=rail_bytes_per_s, num_rails=domain),
        ),
        software=MEGATRON_CORE,
        layout={
            **layout,
            "num_microbatches": int(cells["global_batch"]) // (layout["data"] * layout["microbatch"]),
            "sequence_parallel": has_tensor,
            "overlap_data": True,
            "overlap_tensor": has_tensor,
        },
        iteration_s=float(cells["step_s"]),
        has_bf16_gradients=not (recipe.startswith("15B") and cells["source"].endswith(_FP32_15B)),
        sends_each=True,
    )


# -- nanotron's sweep ------------------------------------------------------------------------------------------------


def _nanotron_row(run: Run) -> Row:
    """Return a run of one stage; a family is a network."""
    assert run.iteration_s is not None, "it has run"
    name, has_tensor = f"nanotron-{run.model.lower()}", run.tensor > 1
    inside, outside = _tiers("h100-sxm", FAMILIES["llm-foundry"])
    return Row(
        family=name,
        group=(name, str(run.nodes)),
        transformer=_network(NETWORKS[run.model], SEQUENCE_LENGTH),
        device="h100-sxm",
        tiers=(inside, replace(outside, latency_s=LATENCY_S)),
        software="nanotron",
        layout={
            "tensor": run.tensor,
            "pipeline": run.pipeline,
            "data": run.data,
            "microbatch": run.microbatch,
            "num_microbatches": GLOBAL_BATCH // (run.data * run.microbatch),
            "zero": run.zero,
            "sequence_parallel": has_tensor,
            "overlap_data": True,
            "overlap_tensor": has_tensor,
        },
        iteration_s=run.iteration_s,
    )
