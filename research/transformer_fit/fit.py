"""Fit of the few parameters of :mod:`planner.models.transformer_time` to measured steps.

Minimised is the sum over rows of a robust loss of ``log(predicted / measured)``, each row weighted by one over its
family's number of rows, so that a family counts and not its rows; and the distance of each parameter's logarithm from
its prior, so that no parameter that the rows do not tell runs away. Deterministic: trust-region least squares (scipy)
from the priors.

A device is assumed to wait 40 us (`send_s`) whenever a stage, or one of its chunks, hands a micro-batch on or an error
back, since two kernels are launched and waited for. Such a wait is 10 to 100 us, which rows hardly tell (from a prior
of 50 us a fit goes to 37); without it plans took as many chunks as layers allow.

Tried and dropped: transfers beside computing that slow it down as other exchange does (`contention`): the loss grew by
1.3 %; sharpness 1.5 and 2 (3.4 and 3.3 %, against 3.2 % for 3); no separate accumulation for Megatron-Core (SimuMax's
rows 2.6 % instead of 2.4 %); wider bounds of `inside_efficiency` (0.95), with which collectives end at 0.94 of the
links' bandwidth; a launch floor of layers with routed experts that is 1.6 or 2.4 times as high in two bytes, too, as it
is with short products (3.06 % instead of 3.07 %, but GPT-OSS in bf16, which no fit saw, 8.9 and 9.8 % instead of 8.6 %
too fast); attention on Hopper that is faster in Megatron-Core (3.07 %), and a gap behind each kernel of start-ups that
do not grow with a device's rate (3.28 %; both against 3.08 % of the same rows). A start-up of devices with fp8 alone,
which products measured alone on an H100 put at 0.2 to 0.4 of what the rate tells, comes out at 1.14 (3.06 %): steps do
not bear it out. On Blackwell alone 0.6 leaves SimuMax's rows as they are (2.2 %), and DeepSeek-V3 and Qwen3 in bf16
there, which no fit saw, 5 points less too slow, but GPT-OSS 2 points more too fast.

Megatron-Core cuts tensor-parallel exchange into pieces beside pieces of its own products (user buffers of Transformer
Engine). A contention of its own comes out at 0.41 (0.74 of all else), and leaves 2.98 instead of 3.07 % of families and
3.6 instead of 3.7 % of groups left out, but 6.2 instead of 5.6 % of families left out, as rows hardly tell it from the
share of products. Assumed to be 0.5 it leaves 5.5 % of these (on H100 3.2 instead of 4.2 %), but networks in short
products that are left out are 10.2 instead of 9.1 % off, and GPT-OSS in bf16 10.1 instead of 8.6 % too fast: dropped.
Assumed so of all that Megatron-Core exchanges beside computing, it leaves 2.92 % of families, 3.5 % of groups left out,
5.6 % of families left out (on H100 3.1 %), and 8.7 % of networks in short products, but GPT-OSS in bf16 11.8 % too
fast; with a host that waits for experts' numbers of tokens in bf16, too, 9.2 and 10.8 %: neither is taken so far.

Products on the B200 that SimuMax's rows were measured on reach 0.45 to 0.54 of the peak where they are large (its
``configs/system/b200_bf16_ceperm.json``), where 0.78 was measured elsewhere: its machine has a ratio of its own, and
steps of three networks with experts that NVIDIA and a user print of B200 (``published.csv``) are told to the fit. They
were told 16 to 22 % too slow without; each network left out is now 1 to 2 % off, and all of SimuMax's rows left out 5 %
(16.6 before). What stood against it was GPT-OSS in bf16, 13 % too fast with such products: what its biases of experts
and its clipped gates move had not been counted (:mod:`planner.models.compute`), a seventh of its step; it is 7.4 % too
fast now.

Beside these, tried at once and dropped: a start-up of Blackwell's own (0.63; the loss falls by 0.5 %); steps of GB200
that are printed elsewhere (one 24 % too slow, one 8 % too fast: against B200 the two sources contradict each other by
1.35), with which attention on GB200 falls to 0.26 of the peak; those of H100 (the mean of families 3.16 instead of 3.09
%, Nanotron 3.5 to 5.9 instead of 3.5 to 5.2 %), which are kept to judge by.

All-to-alls of experts between machines reach a share of the network of their own, 0.85 (`exchange_efficiency`), and
half of what is shorter shows where they run beside another micro-batch (`exchange_contention`). Both are assumed and
not fitted: the rows here have Grok-1's alone, five steps. DeepEP's README has 0.87 of a card on four machines and 0.89
on eight; of 0.715 to 0.95 and 0.25 to 0.65, six steps in bf16 between machines (``published.csv``, and GPT-OSS on 64
B200) are told best at 0.8 to 0.85 and 0.45 (3 % off in the root mean square; 9 % at 0.715 and 0.65, the fitted shares
of other collectives), networks in short products that are left out at 0.55 (7.6 %, and 7.9 at 0.4). GPT-OSS's recipes
in bf16 and those that drop tokens name NCCL's all-to-all, which sends a token once for each of its experts, and so are
read; the other recipes of Qwen3-235B on H100 name it, too, but are told 20 to 35 % too slow with it, and 2 % without.
NCCL's all-to-all reaches the share, too: with 0.85 GPT-OSS on 64 B200 is told 3 % too fast, Qwen3-235B that drops
tokens 9 % too slow, and Grok-1 1.8 % off; with the 0.715 of rings 7 and 18 % too slow, and 2.0 % off. What it hides is
that of other collectives: no step tells, and programs that send by NCCL alone (DeepSpeed, Nanotron; torchtitan, whose
`moe_comm_backend` is `standard` unless told otherwise) overlap no experts.

On two machines the cards do not bind DeepEP: 43 GB/s of its README count what stays in a machine (issue 285), so that
21 cross. A device receives 134 to 147 GB/s there, on H800 (links of 200) and on H200 (of 450; issue 493) alike, what
multiprocessors hand on: 130 without the device's own part (`handed_bytes_per_s`), which gives 43, 57 and 49 GB/s on
two, four and eight machines where 43, 58 and 51 were measured (``tests/models/test_group_costs.py``). HybridEP hands
on more: both steps of Qwen3-30B on 16 H100 (Megatron-Bridge, pull request 5094) are 2 % off without that limit, and 11
and 10 % too slow with it. No other step that was measured alters: on four machines and more cards bind.
Inside a machine a device receives 290 GB/s from DeepEP's kernels (337 with its own part, on H20's links of 450; issue
16), and not the 0.85 of links that rings reach (`exchanged_bytes_per_s`): Qwen3-30B on 32 H100 is 3 % too fast with it,
6 % without. On Blackwell, where NVIDIA went over to HybridEP, steps tell no such limit: with 300 GB/s Qwen3-30B on B200
is told 17 % slower, DeepSeek-V3 6 %, which no share of products makes up for.
Two machines of B300 reach 0.4 to 0.55 of a card of 100 GB/s by HybridEP (DeepEP, issue 590), and so no device sends
more than 50 GB/s (`exchange_bytes_per_s`). Inside a machine nothing is hidden unless kernels are captured: steps on
B200 and B300 were slower with experts overlapped, where 0.65 tells 3 % less. What stands against it: steps of 2025 of
DeepSeek-V3 with experts on 64 H100 are 6 and 7 % too fast before the figures of short products are fitted anew.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import inf

import numpy as np

from planner.cost import Floats
from planner.data.devices import device
from planner.models.compute import Constants, DeviceRates, Software, device_shares
from planner.models.layouts import Layouts
from planner.models.transformer_interval import LayerFigures
from planner.models.transformer_time import iteration_times
from research.transformer_fit.rows import Row

__all__ = [
    "MACHINES",
    "PRIORS",
    "SOFTWARE",
    "Parameters",
    "Prior",
    "Table",
    "as_unmeasured",
    "constants_of",
    "described",
    "fit",
    "predict",
    "rates_of",
    "software_of",
    "unmeasured_of",
]

Parameters = Mapping[str, float]

_DEVICES = ("a100-sxm4-80gb", "h100-sxm", "b200-sxm", "gb200")
_SCALE = 0.04  # error from which on a row counts less than quadratically
_STEP = 1e-4  # of a parameter's logarithm, for a slope
_EVALUATIONS = 18  # from the priors
_FEW_EVALUATIONS = 4  # from a fit to a few rows more
_PRIOR_WEIGHT = 0.12  # of a deviation of one prior's width against one row's error of _SCALE in a family of one


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Where a parameter starts, how far it may go, and how sure we are: width of its logarithm."""

    start: float
    low: float
    high: float
    width: float
    source: str


def parameters_text(parameters: Mapping[str, float], priors: Mapping[str, Prior]) -> str:
    """Return a table of what was fitted, beside where it started and how far it might go."""
    lines = ["| parameter | fitted | prior | bounds | source of the prior |", "|---|---|---|---|---|"]
    for name, value in parameters.items():
        prior = priors[name]
        lines.append(f"| {name} | {value:.4g} | {prior.start:g} | {prior.low:g} to {prior.high:g} | {prior.source} |")
    return "\n".join(lines)


_MEGATRON: Mapping[str, bool | float] = {
    "has_flash_attention": False,
    "has_dropout": True,
    "has_fused_loss": False,
    "accumulation_bytes": 6,
}
# Layers are wrapped one by one, and recomputed by a checkpoint of torch that is not re-entrant.
_FULLY_SHARDED: Mapping[str, bool | float] = {
    "has_flash_attention": True,
    "has_dropout": False,
    "has_fused_loss": False,
    "accumulation_bytes": 4,
    "bucket_bytes": 2.5e8,
    "reduces_every_microbatch": True,
    "stops_early": True,
}
# Recomputes every second product, and keeps attention. Gradients are reduced in four bytes (``mixed_precision_reduce``
# of torchtitan/config/configs.py takes nothing else), in a pipeline behind its last backward pass.
_TORCHTITAN = {**_FULLY_SHARDED, "gradient_bytes": 4, "reduces_behind_stages": True, "selective_share": 0.5}
SOFTWARE: Mapping[str, Mapping[str, bool | float]] = {
    "megatron-lm": _MEGATRON,
    # From 2022: the product that gives a weight's gradient adds it to the others itself.
    "megatron-lm-fused": {**_MEGATRON, "accumulation_bytes": 0},
    "megatron-deepspeed": {**_MEGATRON, "pads_vocabulary": False},
    # Gradients are added in two bytes, widened, added in four bytes, and cleared; all-reduced in four bytes.
    "megatron-deepspeed-bf16": {**_MEGATRON, "accumulation_bytes": 28, "gradient_bytes": 4, "shards_gradients": False},
    # Attention: FlashAttention written in Triton, which FlashAttention-2 is 1.3 to 2.5 times as fast as (T. Dao, arXiv
    # 2307.08691, section 4.1). Backward it moves 34 bytes a number of the stream more: the gradient of queries is added
    # up in four bytes, cleared, narrowed, and packed with the others; that is a third of what is counted both ways.
    "composer-fsdp": {**_FULLY_SHARDED, "attention_ratio": 0.55, "element_passes": 1.33},
    # Norms, rotary positions and gated activations are chains of kernels, partly in four bytes: 144 bytes a number of
    # the stream forward where fused kernels move 46.
    "torchtitan-eager": {**_TORCHTITAN, "element_passes": 3.1},
    "torchtitan": _TORCHTITAN,
    # A gradient in two bytes is added to its sum in four, which is sent as DDP makes buckets: of 25 MB in two bytes
    # (nanotron/optim/gradient_accumulator.py). The loss is PyTorch's own.
    "nanotron": {
        "has_flash_attention": True,
        "has_dropout": False,
        "has_fused_loss": False,
        "accumulation_bytes": 10,
        "gradient_bytes": 4,
        "bucket_bytes": 5e7,
    },
    "megatron-core": {
        "has_flash_attention": True,
        "has_dropout": False,
        "has_fused_loss": True,
        # Fused into the product that gives a weight's gradient.
        "accumulation_bytes": 0,
        "gradient_bytes": 4,
        # The dispatchers that it recommends for many experts: DeepEP, HybridEP.
        "sends_once": True,
        "overlaps_transfers": True,  # ``overlap_p2p_comm``, on where stages are interleaved
    },
}
_UNSAID = (
    "name",
    "handed_bytes_per_s",
    "exchanged_bytes_per_s",
    "tied_gradient_bytes",
    "end_optimizer_bytes",
    "reduces_copies_once",
    "has_matrix_optimizer",
    "weight_bytes",
    "gathered_bytes",
    "launch_ratio",
    "expert_floor_ratio",
    "expert_launch_s",
    "sends_each_of_tensor",
    "summed_groups",
)  # not in the shipped file: no program there does it otherwise than by default
# Programs that share their launch floor: the host's code is the same, but for a few kernels.
_FLOOR_OF = {
    "megatron-lm-fused": "megatron-lm",
    "megatron-deepspeed-bf16": "megatron-deepspeed",
    "torchtitan-eager": "torchtitan",
}

# Their libraries are the same.
_LIBRARIES_OF = {**_FLOOR_OF, "nanotron": "torchtitan"}

# Programs whose products run by PyTorch's own calls of libraries of 2023 and 2024, not by Transformer Engine.
_OLDER = ("composer-fsdp", "torchtitan")
_OLDER_RATIO = Prior(start=0.85, low=0.5, high=1, width=0.15, source="below 1: cuBLAS 12.0 to 12.4 on Hopper")

_GUIDE = "NVIDIA, Matrix Multiplication Background User's Guide"
_CONSTANTS = {
    "startup_width": Prior(
        start=165, low=5, high=600, width=0.4, source="inner widths of 1,024 reach 80 to 90 % of wide ones: 110 to 250"
    ),
    "wave_share": Prior(start=0.6, low=0.05, high=1, width=0.4, source=f"{_GUIDE}: 1 for one tile size"),
    "misaligned_cost": Prior(start=0.5, low=0.05, high=3, width=0.5, source=f"{_GUIDE}: alignment, a factor of 1 to 4"),
    "misaligned_head_cost": Prior(start=1.5, low=0.1, high=8, width=0.7, source=f"{_GUIDE}: as above"),
    "score_bytes": Prior(start=11, low=10, high=12, width=0.05, source="counted: see models/compute.py"),
    "accumulation_ratio": Prior(
        start=1, low=0.85, high=1.15, width=0.1, source="counted: 1; kernels of one tensor each"
    ),
    "head_floor_ratio": Prior(start=1, low=0.3, high=4, width=0.4, source="about as many kernels as a layer"),
    "hop_s": Prior(start=2e-6, low=3e-7, high=8e-6, width=0.5, source="NCCL: some microseconds a step of a ring"),
    "tensor_floor_ratio": Prior(start=0.1, low=0.01, high=0.5, width=0.5, source="two collectives to launch a pass"),
    "contention": Prior(start=0.3, low=0.02, high=1, width=0.4, source="0 hidden fully, 1 not at all"),
    "inside_efficiency": Prior(
        start=0.78, low=0.5, high=0.85, width=0.08, source="nccl-tests on NVSwitch: 230 to 250 of 300 GB/s"
    ),
    "routed_share": Prior(start=0.8, low=0.5, high=1, width=0.15, source="grouped products: 0.7 to 0.95 of one"),
    "outside_efficiency": Prior(start=0.7, low=0.35, high=0.95, width=0.2, source="nccl-tests on InfiniBand"),
}
# What products reach on a family's own machine, over what they reach on others with the same devices.
MACHINES = {
    "simumax-b200": Prior(
        start=0.7, low=0.4, high=1, width=0.15, source="large ones there 0.45 to 0.54, elsewhere 0.78"
    )
}
_SHARES: Mapping[str, Prior | Mapping[str, Prior]] = {
    "product_efficiency": {
        "a100-sxm4-80gb": Prior(start=0.75, low=0.55, high=0.9, width=0.1, source="below devices.csv's measured 0.87"),
        "h100-sxm": Prior(start=0.75, low=0.45, high=0.88, width=0.12, source="devices.csv: 0.80, start-up included"),
        "b200-sxm": Prior(start=0.65, low=0.45, high=0.85, width=0.12, source="below devices.csv's measured 0.78"),
        "gb200": Prior(start=0.65, low=0.45, high=0.85, width=0.12, source="below devices.csv's measured 0.73"),
    },
    "memory_efficiency": Prior(start=0.8, low=0.6, high=0.95, width=0.1, source="STREAM-like kernels"),
    "attention_efficiency": {
        "a100-sxm4-80gb": Prior(
            start=0.55, low=0.2, high=0.8, width=0.2, source="T. Dao, arXiv 2307.08691: 0.5 to 0.7"
        ),
        "h100-sxm": Prior(start=0.4, low=0.15, high=0.8, width=0.15, source="the same kernel: 0.35; J. Shah: 0.75"),
        "b200-sxm": Prior(start=0.4, low=0.15, high=0.8, width=0.3, source="cuDNN: up to 0.6"),
        "gb200": Prior(start=0.4, low=0.15, high=0.8, width=0.3, source="cuDNN: up to 0.6"),
    },
}


def _priors() -> Iterator[tuple[str, Prior]]:
    """Yield every parameter: ``constants.x``, ``devices.name.x`` and ``software.name.launch_s``."""
    for name, prior in _CONSTANTS.items():
        yield f"constants.{name}", prior
    for device_name in _DEVICES:
        for share, by_device in _SHARES.items():
            prior = by_device if isinstance(by_device, Prior) else by_device[device_name]
            yield f"devices.{device_name}.{share}", prior
    for software in SOFTWARE:
        if software not in _FLOOR_OF:
            launch = Prior(start=7e-4, low=1e-4, high=1.2e-3, width=0.5, source="100 to 200 kernels of 5 us")
            yield f"software.{software}.launch_s", launch
    for family, prior in MACHINES.items():
        yield f"machines.{family}", prior
    for software in _OLDER:
        yield f"software.{software}.fp8_device_ratio", _OLDER_RATIO


PRIORS: Mapping[str, Prior] = dict(_priors())


def constants_of(parameters: Parameters) -> Constants:
    """Return what all devices and software have in common."""
    return Constants(**{name: parameters[f"constants.{name}"] for name in _CONSTANTS})


def rates_of(parameters: Parameters, name: str, figures: Mapping[str, float] | None = None) -> DeviceRates:
    """Return a device's rates, for products of two bytes; ``figures``: what is published of it otherwise."""
    shares = {share: parameters[f"devices.{name}.{share}"] for share in _SHARES}
    return replace(DeviceRates.of(device(name), "bf16", shares), **(figures or {}))  # type: ignore[arg-type]  # fields by their names


def unmeasured_of(parameters: Parameters, devices: Sequence[str] = _DEVICES) -> dict[str, float]:
    """Return what the shares of some devices tell of others: see :func:`planner.models.compute.device_shares`.

    The share of products is a straight line in logarithms over the FLOP that a joule pays for, and at most what large
    products alone were measured at on any of them; the others are geometric means.
    """
    product, memory, attention = (
        np.log([parameters[f"devices.{name}.{share}"] for name in devices]) for share in _SHARES
    )
    known = [device(name) for name in devices]
    paid = np.log([one.peak_flop_per_s["bf16"] / (one.power_w or inf) for one in known])
    away = paid - paid.mean()
    found = {
        "product_efficiency": np.exp(product.mean()),
        "flop_per_j": np.exp(paid.mean()),
        "exponent": -float(away @ product) / float(away @ away) if len(known) > 1 else 0.0,
        "most_product_efficiency": max((one.matmul_flop_per_s or 0) / one.peak_flop_per_s["bf16"] for one in known),
        "memory_efficiency": np.exp(memory.mean()),
        "attention_ratio": np.exp((attention - product).mean()),
    }
    return {name: float(f"{value:.5g}") for name, value in found.items()}


def as_unmeasured(parameters: Parameters, fitted: Collection[str]) -> dict[str, float]:
    """Return the parameters where the shares of all other devices are what those of some fitted ones tell."""
    law, told = unmeasured_of(parameters, [name for name in _DEVICES if name in fitted]), dict(parameters)
    for name in set(_DEVICES) - set(fitted):
        shares = device_shares(device(name), "bf16", {"devices": {}, "unmeasured": law})
        told |= {f"devices.{name}.{share}": value for share, value in shares.items()}
    return told


def software_of(parameters: Parameters, name: str) -> Software:
    """Return what a training program does, by itself."""
    floor = parameters[f"software.{_FLOOR_OF.get(name, name)}.launch_s"]
    ratio = parameters.get(f"software.{_LIBRARIES_OF.get(name, name)}.fp8_device_ratio", 1.0)
    return Software(name=name, launch_s=floor, fp8_device_ratio=ratio, **SOFTWARE[name])  # type: ignore[arg-type]  # fields by their names


def described(parameters: Parameters) -> dict[str, dict[str, object]]:
    """Return all that :mod:`planner.models.transformer_time` is told, by section, as the shipped file holds it."""
    constants = {one.name: parameters[f"constants.{one.name}"] for one in fields(Constants) if one.name in _CONSTANTS}
    devices = {name: {share: parameters[f"devices.{name}.{share}"] for share in _SHARES} for name in _DEVICES}
    software = {}
    for name in SOFTWARE:
        one = software_of(parameters, name)
        software[name] = {each.name: getattr(one, each.name) for each in fields(Software) if each.name not in _UNSAID}
    return {
        "constants": {**constants},
        "devices": {**devices},
        "unmeasured": {**unmeasured_of(parameters)},
        "machines": {name: parameters[f"machines.{name}"] for name in MACHINES},
        "software": {**software},
    }


class Table:
    """Rows, those of one network, device, network and software together, so that one call predicts them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = tuple(rows)
        together: dict[tuple[object, ...], list[int]] = {}
        for index, row in enumerate(self.rows):
            figures = tuple(sorted(row.device_figures.items()))
            told = (
                row.family in MACHINES,
                row.transformer,
                row.device,
                figures,
                row.tiers,
                row.software,
                row.has_bf16_gradients,
                row.sends_each,
                row.has_hybrid,
            )
            together.setdefault(told, []).append(index)
        self._sweeps = [(np.array(indices), _joined([self.rows[i] for i in indices])) for indices in together.values()]

    def predict(self, parameters: Parameters, changed: str = "", known: Floats | None = None) -> Floats:
        """Return the seconds of every row.

        Parameters
        ----------
        changed, known
            The one parameter that differs from those of which ``known`` is the answer: what it does not touch stays.
        """
        constants = constants_of(parameters)
        found = np.zeros(len(self.rows)) if known is None else known.copy()
        for indices, layouts in self._sweeps:
            row = self.rows[indices[0]]
            if changed and not _touches(changed, row):
                continue
            rates = rates_of(parameters, row.device, row.device_figures)
            if row.family in MACHINES:
                slower = parameters[f"machines.{row.family}"]
                rates = replace(rates, product_efficiency=rates.product_efficiency * slower)
            found[indices] = iteration_times(
                LayerFigures(
                    transformer=row.transformer,
                    rates=rates,
                    tiers=row.tiers,
                    software=row.told(software_of(parameters, row.software)),
                    constants=constants,
                ),
                layouts,
            )["total"]
        return found

    @cached_property
    def measured_s(self) -> Floats:
        """Seconds measured, of every row."""
        return np.array([row.iteration_s for row in self.rows])

    @cached_property
    def weights(self) -> Floats:
        """One over the number of rows of a row's family; small families count for less than one."""
        counts = Counter(row.family for row in self.rows)
        return np.array([min(counts[row.family], 5) / 5 / counts[row.family] for row in self.rows])


def _touches(parameter: str, row: Row) -> bool:
    """Return whether a parameter may change the seconds of rows of this network, device and software."""
    kind, name = parameter.split(".")[:2]
    if kind != "constants":
        shared = (_FLOOR_OF.get(row.software), _LIBRARIES_OF.get(row.software))
        return name in (row.device, row.software, row.family, *shared)
    software = SOFTWARE[row.software]
    if name == "routed_share":
        return row.transformer.experts is not None
    if name == "misaligned_cost":
        return not software.get("pads_vocabulary", True)
    if name in ("score_bytes", "misaligned_head_cost"):
        return not software["has_flash_attention"]
    return name != "accumulation_ratio" or software["accumulation_bytes"] != 0


def _joined(rows: Sequence[Row]) -> Layouts:
    each = [row.layouts().arrays() for row in rows]
    return Layouts(**{name: np.concatenate([one[name] for one in each]) for name in each[0]})


def fit(table: Table, near: Parameters | None = None) -> dict[str, float]:
    """Return the parameters that fit a table best; ``near``: where to begin, if not at the priors."""
    from scipy.optimize import least_squares  # noqa: PLC0415  # late: only a fit pays for it

    names = list(PRIORS)
    start, low, high, width = (
        np.array([getattr(PRIORS[name], key) for name in names]) for key in ("start", "low", "high", "width")
    )
    measured, root = np.log(table.measured_s), np.sqrt(table.weights)

    def named(logs: Floats) -> dict[str, float]:
        return dict(zip(names, map(float, np.exp(logs)), strict=True))

    def residuals_of(predicted_s: Floats, logs: Floats) -> Floats:
        error = (np.log(predicted_s) - measured) / _SCALE
        robust = np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1))
        return np.concatenate([root * robust, _PRIOR_WEIGHT * (logs - np.log(start)) / width])

    def residuals(logs: Floats) -> Floats:
        return residuals_of(table.predict(named(logs)), logs)

    def slopes(logs: Floats) -> Floats:
        """Forward differences; a device's or a program's figure moves its own rows only."""
        known = table.predict(named(logs))
        base, columns = residuals_of(known, logs), []
        for index, name in enumerate(names):
            moved = logs.copy()
            moved[index] += _STEP
            columns.append((residuals_of(table.predict(named(moved), name, known), moved) - base) / _STEP)
        return np.stack(columns, axis=1)

    bounds = (np.log(low) - 1e-9, np.log(high) + 1e-9)
    first = np.log(start) if near is None else np.log([near[name] for name in names])
    most = _EVALUATIONS if near is None else _FEW_EVALUATIONS
    done = least_squares(residuals, first, jac=slopes, bounds=bounds, x_scale=width, max_nfev=most)
    return {name: float(f"{value:.5g}") for name, value in zip(names, np.exp(done.x), strict=True)}


def predict(table: Table, parameters: Parameters) -> Floats:
    """Return predicted over measured, less 1, of every row."""
    return np.asarray(table.predict(parameters) / table.measured_s - 1, dtype=float)
