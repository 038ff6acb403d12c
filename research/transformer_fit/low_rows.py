"""Vendors' measured steps in eight and four bits, read in place, with those in bf16 of the same tables.

Rows of ``megatron-bridge``, ``megatron-bridge-finetune``, ``nemo-24.07-h100`` and its fine-tuning,
``nemo-h100-longseq``, ``nemo-b200-longseq`` and ``torchtitan-h100`` of ``llm/open.csv``. What a row does not tell is
read so:

- *Recomputation*: none. The recipes recompute single cheap modules at most (norms, activations, latent attention's
  up-projection: NVIDIA-NeMo/Megatron-Bridge, ``scripts/performance/configs``); what that takes is left out.
- *Overlaps*: gradients and weights beside computing, tensor-parallel exchange, and ZeRO 1, as in the same folder;
  experts' exchange beside another micro-batch where the recipe turns it on (:data:`_OVERLAPS_EXPERTS`).
- *Gradients* are reduced in bf16 (``grad_reduce_in_fp32 = False`` there).
- *Tokens* are dealt out evenly (``moe_router_force_load_balancing``).
- *CUDA graphs*: by recipe and container (:data:`_GRAPHS`); those of attention and routers alone count as none.
- *Links*: eight devices of a machine, or of an NVLink domain as many trays of four as the planner joins (64 devices of
  256), and 400 Gbit/s a device to others, 800 of B300 and GB300 (machines.csv).
- *Steps* of ``nemo-b200-longseq`` are not printed: they follow from the printed FLOP, which count all scores.
- *torchtitan's fp8*: with a scale for each tensor, which gathers short numbers, or for each row, which gathers bf16
  (torchtitan, ``docs/float8.md``), as its MXFP8 does.
- *torchtitan on B200*: the power was limited to what is not told; what the row in bf16 took says how much slower the
  device was, and that row is no evidence.

Networks come by name; those that nothing here knows are left out (:func:`unread`).
"""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from planner.models.layouts import Recompute
from planner.models.operators import flop_per_sample
from planner.models.programs import MEGATRON_CORE
from planner.models.tiers import Tier
from planner.question.cluster import joined_trays
from planner.trained import FineTuning, Trained
from planner.transformer import Transformer
from planner.zoo import transformers
from research.transformer_fit.rows import Row, read_rows

__all__ = ["LowRow", "fitted_rows", "published_rows", "read_low_rows", "unread"]

_FAMILIES = (
    "megatron-bridge",
    "megatron-bridge-finetune",
    "nemo-24.07-h100",
    "nemo-24.07-h100-finetune",
    "nemo-h100-longseq",
    "nemo-b200-longseq",
    "torchtitan-h100",
)
_TITAN = "torchtitan-h100"
_LOW: Mapping[str, tuple[str, str]] = {
    "fp8": ("fp8", "current"),
    "fp8-cs": ("fp8", "current"),
    "fp8 (finer blocks)": ("fp8", "blockwise"),
    "fp8-mx": ("mxfp8", "mxfp8"),
    "mxfp8": ("mxfp8", "mxfp8"),
    "mxfp8-rceil": ("mxfp8", "mxfp8"),
    "nvfp4": ("nvfp4", "nvfp4"),
    "fp8-tensorwise": ("fp8", "current"),
    "fp8-rowwise": ("fp8", "current"),
}
_ROWWISE = "fp8-rowwise"  # one scale for a row, torchao's recipe of that name
_DELAYED = "nemo-"  # of 2024: ``fp8_hybrid`` of NeMo's recipes is delayed scaling
_MACHINES: Mapping[str, tuple[str, int, float, float]] = {  # device, devices of a machine, NVLink's and cards' bytes/s
    "H100-SXM-80GB": ("h100-sxm", 8, 450e9, 50e9),
    "H800-SXM-80GB": ("h800-sxm", 8, 200e9, 50e9),
    "H100-SXM-96GB-HBM2e-500W": ("h100-sxm", 8, 450e9, 50e9),
    "B200-SXM-180GB": ("b200-sxm", 8, 900e9, 50e9),
    "B300-SXM": ("b300-sxm", 8, 900e9, 100e9),
    "GB200": ("gb200", 4, 900e9, 50e9),
    "GB300": ("gb300", 4, 900e9, 100e9),
}
_LIMITED_H100 = {"peak_flop_per_s": 912e12, "memory_bandwidth_bytes_per_s": 2.4e12}  # as rows.py has it
_MANY = 4096
_OVERLAPS_EXPERTS = (  # ``moe_a2a_overlap`` of recipes: network, device, from which container on
    ("Qwen3_235B_a22B", "h100-sxm", "25.11"),
    ("GPT OSS 120B", "gb300", "26.06"),
    ("DeepSeekV3", "h100-sxm", "25.09"),
    ("DeepSeekV3", "b300-sxm", "26.06"),
)
_SENDS_EACH = ("GPT OSS 120B",)  # ``moe_token_dispatcher_type`` of recipes in bf16: "alltoall"
_EACH = ("alltoall", "tokendrop")  # that notes say; nothing else drops tokens
# ``cuda_graph_impl``: network, device, from which container on; of experts where they are fused, else of all but these.
_GRAPHS = (
    ("GPT OSS 120B", "gb300", "26.06", "whole"),
    ("Qwen3_30B_a3B", "gb200", "26.06", "whole"),
    ("DeepSeekV3", "b300-sxm", "26.06", "whole"),
    ("Nemotron_3_Nano", "gb300", "26.02", "whole"),
    ("Nemotron_3_Nano", "b200-sxm", "26.02", "whole"),
    ("Nemotron_3_Super", "b300-sxm", "26.02", "whole"),
    ("Nemotron_3_Ultra", "gb200", "26.08", "whole"),
    ("LLAMA3_8B", "gb300", "25.11", "whole"),
)
_LLAMA = {
    "positions": "rotary",
    "norm": "rms_norm",
    "is_gated": True,
    "has_biases": False,
    "has_tied_embeddings": False,
}
_ZOO = {
    "DeepSeekV3": "deepseek-v3",
    "Nemotron_3_Nano": "nemotron-3-nano-30b-a3b",
    "Nemotron_3_Super": "nemotron-3-super-120b-a12b",
    "Nemotron_3_Ultra": "nemotron-3-ultra-550b-a55b",
    "GPT OSS 120B": "gpt-oss-120b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
}
_WIDE_LAYERS = {("Nemotron_3_Super", "nvfp4"): 14}  # ``num_layers_at_end_in_bf16`` of its recipe
_OTHERS: Mapping[str, Mapping[str, object]] = {  # where a row's sizes do not say all
    "GPT3-20B": {"positions": "learned"},
    "Nemotron-8B": {"positions": "rotary", "has_biases": False, "has_tied_embeddings": False, "norm": "layer_norm"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRow:
    """One measured step."""

    row: Row  # as :mod:`planner.models.transformer_time` is told it; its software is Megatron-Core's or torchtitan's
    # model, container: as they are printed; of NeMo's rows the family, of torchtitan's nothing
    model: str
    container: str
    low: tuple[str, str] | None  # type and recipe; None: bf16
    graphs: str = ""  # ``whole``, ``lost`` (by one container) or nothing: what CUDA graphs launch
    wide_layers: int = 0  # whose products stay in bf16
    is_tensorwise: bool = False  # whether torchtitan has one scale for a whole tensor; it has one for a row else
    is_reference: bool = False  # whether the row says how slow a device of limited power was
    is_lora: bool = False  # whether most parameters were frozen, which is not counted


def read_low_rows(folder: Path) -> list[LowRow]:
    """Return all rows that can be predicted, in the order of the file."""
    return [row for cells in _cells(folder) if (row := _row(cells)) is not None]


def published_rows() -> list[LowRow]:
    """Return steps that vendors and others print outside of the tables, of networks with experts."""
    with (Path(__file__).parent / "published.csv").open(encoding="utf-8", newline="") as file:
        return [row for cells in csv.DictReader(file) if (row := _row(cells)) is not None]


def fitted_rows(folder: Path) -> list[Row]:
    """Return all rows that a fit in two bytes reads: of B200 those that are printed elsewhere, too.

    Of it else one machine alone tells. Steps of GB200 there contradict each other (0.81 and 1.1 times as long as on
    B200, by two sources), and those of H100 are kept to judge by.
    """
    name = "published-b200"
    found = [one for one in published_rows() if one.low is None and one.row.device == "b200-sxm"]
    return [*read_rows(folder), *(replace(one.row, family=name, group=(name, one.model)) for one in found)]


def unread(folder: Path) -> dict[str, int]:
    """Return how many rows of each network cannot be predicted."""
    found: dict[str, int] = {}
    for cells in _cells(folder):
        if _row(cells) is None:
            found[cells["model"]] = found.get(cells["model"], 0) + 1
    return found


def _cells(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of these families that are in eight or four bits, and those in bf16 of Megatron-Bridge."""
    with (folder / "llm" / "open.csv").open(encoding="utf-8", newline="") as file:
        for cells in csv.DictReader(file):
            name = _noted(cells, "family")
            is_titan_wide = name == _TITAN and cells["dtype"] == "bf16" and "power-limited" not in cells["note"]
            if name in _FAMILIES and not is_titan_wide:
                yield cells


def _noted(cells: Mapping[str, str], key: str) -> str:
    """Return what a row's note says of a key; nothing where it does not."""
    match = re.search(rf"\b{key}=([^;]+)", cells["note"])
    return match.group(1).strip() if match else ""


def _network(cells: Mapping[str, str]) -> Transformer | None:
    """Return the network of a row; None where it is not known."""
    model, length = cells["model"], int(cells["seq_len"])
    name = _ZOO.get(model, "")
    if name in transformers.row_names():
        whole = transformers.row(name).transformer
        return replace(whole, sequence_length=length, num_positions=max(whole.num_positions, length))
    if not cells["layers"] or model in _ZOO:
        return None
    heads = int(cells["heads"])
    return Transformer(
        num_layers=int(cells["layers"]),
        hidden_size=int(cells["hidden"]),
        num_heads=heads,
        num_kv_heads=int(cells["kv_heads"] or heads),
        feed_forward_size=int(cells["ffn"]),
        vocabulary_size=int(cells["vocab"]),
        sequence_length=length,
        **_OTHERS.get(model, _LLAMA),  # type: ignore[arg-type]  # fields by their names
    )


def _row(cells: Mapping[str, str]) -> LowRow | None:
    """Return a row, or None where its network is not known."""
    network = _network(cells)
    family, model, container = _noted(cells, "family"), cells["model"], _noted(cells, "container")
    if network is None:
        return None
    device, each, inside, card = _MACHINES[cells["gpu_type"]]
    domain = each * joined_trays(device, each, max(1, int(cells["gpus"]) // each))
    degrees = {key: int(cells[name] or 1) for key, name in (("tensor", "tp"), ("pipeline", "pp"), ("context", "cp"))}
    data = int(cells["gpus"]) // (degrees["tensor"] * degrees["pipeline"] * degrees["context"])
    microbatch, batch, is_titan = int(cells["microbatch"] or 1), int(cells["global_batch"]), family == _TITAN
    measured = float(cells["iteration_s"] or 0)
    if not measured:
        flop = batch * flop_per_sample(network, has_full_attention=True).total_flop
        measured = flop / (int(cells["gpus"]) * float(cells["tflops_per_gpu"]) * 1e12)
    low = _LOW.get(cells["dtype"])
    if low is not None and low[0] == "fp8" and family.startswith(_DELAYED):
        low = ("fp8", "delayed")
    if low == ("fp8", "blockwise") and device != "h100-sxm":
        low = ("mxfp8", "mxfp8")
    has_tensor = degrees["tensor"] > 1
    recompute = {"full": Recompute.FULL, "selective": Recompute.SELECTIVE}.get(cells["recompute"], Recompute.NONE)
    is_limited = "500W" in cells["gpu_type"]
    graphs = next(
        (kind for name, on, since, kind in _GRAPHS if (name, on) == (model, device) and _is_since(container, since)), ""
    )
    if container == "26.06.01" and model == "GPT OSS 120B":
        graphs = "lost"
    overlaps_experts = _noted(cells, "overlap") == "experts" or any(
        (name, on) == (model, device) and _is_since(container, since) for name, on, since in _OVERLAPS_EXPERTS
    )
    is_lora = "lora" in cells["note"].lower()
    if is_lora:  # the recipes' own: rank 16 beside queries, keys and values
        adapters = FineTuning(method="lora", rank=16, alpha=32, targets=("qkv",))
        network = replace(network, trained=Trained(adapters=adapters))
    row = Row(
        family=family,
        group=(family, model, device, container, cells["dtype"], cells["gpus"], cells["global_batch"]),
        transformer=network,
        device=device,
        tiers=(
            Tier(size=domain, bandwidth_bytes_per_s=inside),
            Tier(size=_MANY, bandwidth_bytes_per_s=card, num_rails=domain),
        ),
        software="torchtitan" if is_titan else MEGATRON_CORE,
        layout={
            **degrees,
            "data": data,
            "expert": int(cells["ep"] or 1),
            "expert_tensor": 1,
            "interleave": int(cells["interleave"] or 1),
            "microbatch": microbatch,
            "num_microbatches": max(1, batch // (data * microbatch)),
            "zero": 3 if is_titan else 1,
            "recompute": int(recompute),
            "sequence_parallel": has_tensor,
            "overlap_data": True,
            "overlap_tensor": has_tensor and (not is_titan or "async" in cells["note"].lower()),
            "overlap_expert": overlaps_experts,
        },
        iteration_s=measured,
        device_figures=_LIMITED_H100 if is_limited else {},
        has_bf16_gradients=not is_titan,
        sends_each=any(word in cells["note"] for word in _EACH) or (model in _SENDS_EACH and low is None),
        has_hybrid="hybridep" in cells["note"],
    )
    return LowRow(
        row=row,
        model=model,
        container=container or family,
        low=low,
        graphs=graphs,
        wide_layers=_WIDE_LAYERS.get((model, cells["dtype"]), 0),
        is_tensorwise=is_titan and low == ("fp8", "current") and cells["dtype"] != _ROWWISE,
        is_reference="power-limited" in cells["note"] and low is None,
        is_lora=is_lora,
    )


def _is_since(container: str, since: str) -> bool:
    """Return whether a container is of a month or later; those without a number are not."""
    return bool(re.match(r"\d\d\.\d\d", container)) and container >= since
