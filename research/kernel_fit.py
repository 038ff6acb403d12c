"""Fit the shares of peak and bandwidth that kernels in long numbers reach, and say how far they are off.

Single kernels of PyTorch 2.1 on five devices, and whole passes of five transformers on seven, both of NeuSight (S. Lee,
A. Phanishayee, D. Mahajan, ASPLOS '25, doi:10.1145/3669940.3707265), are read in place from the folder that ``--data``
or the variable PLANNER_DATA names. Every error is that of a fit without any row of its device; of a device only
published figures enter. Equal data give equal bytes.

**How the kernels were timed** (``neusight/Dataset/collect.py``): each by itself, between two events, the fastest 5 of
25; so the host's launch is in every figure, and a board that rests in between runs at full clock for the first
milliseconds. Convolutions got zeros for input, which cost little power. ``linear`` and ``bmm`` list batch, rows, *inner
width and columns*, in this order.
"""

import argparse
import csv
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.optimize import least_squares

from planner.cost import Floats
from planner.dnn import Dnn, Layer, Operator, Product
from planner.models.kernels import KINDS, Execution, Kernels, Shares, kernel_s, kernels_of
from planner.models.roofline import INLINE_ECC, DeviceLimits, power_flop_per_s
from planner.transformer import Transformer
from planner.zoo.transformers import dnn_of
from research import ROOT
from research.bands import band_text

__all__ = [
    "Fit",
    "Pass",
    "Rows",
    "fit",
    "left_out",
    "left_out_fits",
    "left_out_passes",
    "page",
    "pass_s",
    "read_kernels",
    "read_passes",
    "section_text",
    "with_matrix_share",
    "with_section",
]

_COMMAND = "python -m research.kernel_fit --write"
_TABLE, _PAGE = ROOT / "planner" / "data" / "kernel_shares.yaml", ROOT / "docs" / "accuracy_kernels.md"
_ROWS_OF_A_FIT = 250  # of an operator and a device: evenly over the list
_BYTES = 4.0
_EXECUTION = Execution.of("fp32", is_fused=False, has_channels_last=True)


# -- devices ---------------------------------------------------------------------------------------------------------


def _limits(
    peak: float, bandwidth: float, processors: int, power: float, process: float, *, is_gddr: bool = False
) -> DeviceLimits:
    """Return a device by what is published: TFLOP/s, GB/s, multiprocessors, W, nm, kind of memory."""
    return DeviceLimits(
        product_flop_per_s=peak * 1e12,
        bytes_per_s=bandwidth * 1e9 * (INLINE_ECC if is_gddr else 1.0),
        num_multiprocessors=processors,
        sustained_flop_per_s=power_flop_per_s(power, process, peak * 1e12),
    )


# Peaks without TF32, which is off.
DEVICES = {
    "Tesla P4": _limits(5.5, 192, 20, 75, 16, is_gddr=True),
    "Tesla P100-PCIE-16GB": _limits(9.3, 732, 56, 250, 16),
    "Tesla T4": _limits(8.1, 320, 40, 70, 12, is_gddr=True),
    "Tesla V100-PCIE-32GB": _limits(14.0, 900, 80, 250, 12),
    "NVIDIA A100-PCIE-40GB": _limits(19.5, 1555, 108, 250, 7),
    "NVIDIA A100 80GB PCIe": _limits(19.5, 1935, 108, 300, 7),
}
# Of AMD's matrix cores, which its fp32 products use. Their kernels were not measured: what the libraries reach of the
# peak is one figure, by the passes on the other of the two.
MATRIX_DEVICES = {
    "AMD Instinct MI100": DeviceLimits(product_flop_per_s=46.1e12, bytes_per_s=1.229e12, num_multiprocessors=120),
    "AMD Instinct MI210": DeviceLimits(product_flop_per_s=45.3e12, bytes_per_s=1.638e12, num_multiprocessors=104),
}
_SAME = {"NVIDIA A100 80GB PCIe": "NVIDIA A100-PCIE-40GB"}  # left out together: the convolutions are of the one


# -- single kernels --------------------------------------------------------------------------------------------------

_KIND = {
    "linear": "matmul",
    "bmm": "batched_matmul",
    "conv": "convolution",
    "add": "addition",
    **dict.fromkeys(("mul", "div", "pow", "relu", "gelu", "tanh"), "element_wise"),
    "softmax": "softmax",
    "ln": "norm",
}
PRODUCTS = ("linear", "bmm", "conv")
OPERATORS = tuple(_KIND)
_STARTS = {"ln": 3.0}  # by itself it takes so much longer than others; three outputs
_TWO_INPUTS = ("add", "mul", "div", "pow")


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Measured kernels of one operator on one device."""

    operator: str
    device: str
    kernels: Kernels
    batch: Floats
    seconds: Floats

    def some(self, most: int) -> "Rows":
        """Return so many rows at most, evenly over the list in the order of what they take."""
        if len(self.seconds) <= most:
            return self
        order = np.argsort(self.seconds, kind="stable")
        taken = order[np.linspace(0, len(order) - 1, most).round().astype(int)]
        kernels = replace(self.kernels, **{one.name: getattr(self.kernels, one.name)[taken] for one in fields(Kernels)})
        return replace(self, kernels=kernels, batch=self.batch[taken], seconds=self.seconds[taken])


def read_kernels(folder: Path) -> list[Rows]:
    """Return the measured kernels, by operator and device."""
    found = []
    for operator in OPERATORS:
        with (folder / "kernels" / f"{operator}_fp32_open.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        for device in DEVICES:
            mine = [row for row in rows if row["device"] == device]
            if mine:
                columns = {key: np.array([float(row[key]) for row in mine]) for key in mine[0] if key not in _TEXT}
                seconds = columns.pop("latency_ms") / 1e3
                batch = columns["b"] if operator == "conv" else np.ones(len(seconds))
                found.append(Rows(operator, device, _kernels(operator, columns), batch, seconds))
    return found


_TEXT = ("operator", "device")


def _kernels(operator: str, of: Mapping[str, Floats]) -> Kernels:
    batch, one = of["b"], np.ones(len(of["b"]))
    rows = inner = columns = count = 0 * one
    weights = 0 * one
    if operator == "conv":
        side = np.floor((of["input_size"] + 2 * of["padding"] - of["kernel_size"]) / of["stride"]) + 1
        rows, inner, columns = side**2, of["input_channel"] * of["kernel_size"] ** 2, of["output_channel"]
        count = one
        moved = of["input_channel"] * of["input_size"] ** 2 + rows * columns
        weights = inner * columns
    elif operator in PRODUCTS:
        count, rows, inner, columns = batch, of["m"], of["n"], of["k"]
        if operator == "linear":
            count, rows, weights = one, batch * rows, inner * columns
        moved = count * (rows * inner + rows * columns + (0 if operator == "linear" else inner * columns))
    else:
        moved = batch * of["h"] * (3 if operator in _TWO_INPUTS else 2)
    kind = np.full(len(one), KINDS.index(_KIND[operator]))
    return Kernels(
        layer=np.zeros(len(one), dtype=int),
        is_backward=np.zeros(len(one), dtype=bool),
        kind=kind,
        rows=rows,
        inner=inner,
        columns=columns,
        count=count,
        grows=np.zeros(len(one), dtype=int),
        sample_elements=moved,
        weight_elements=weights,
        launches=one * _STARTS.get(operator, 1.0),
    )


# -- the fit ---------------------------------------------------------------------------------------------------------

_ALIKE = {"scaling": "element_wise", "multiplication": "element_wise", "group_norm": "norm"}
_MOVED = ("element_wise", "addition", "norm", "softmax")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What is fitted: the shares, and what belongs to kernels measured by themselves."""

    shares: Shares  # of :func:`planner.models.kernels.kernel_s`
    # how long a rested board runs at full clock, by operator: their sizes rest and heat it differently
    burst_s: Mapping[str, float]
    # what a convolution takes more by itself: cuDNN prepares weights and scratch memory by kernels of their own
    prepared_s: float
    matrix_share: float = 1.0  # what products reach on AMD's matrix cores, over what they would elsewhere


# Start, least and most. First what moves memory, then the products of each kind.
_FIRST = {
    **{f"moved.{kind}": (0.7, 0.2, 1.0) for kind in _MOVED},
    "start_us": (10.0, 0.0, 30.0),
    "dispatch_us": (30.0, 10.0, 60.0),
}
_PRODUCT = {
    "flop": (0.88, 0.85, 0.95),  # what large products of cuBLAS reach where power allows
    "moved": (0.7, 0.2, 1.0),
    "startup": (20.0, 0.0, 100.0),
    "waves": (0.5, 0.0, 1.0),
    "loads": (0.5, 0.0, 2.0),
    "burst_ms": (0.5, 0.1, 3.0),
}
_SECOND = {
    "linear": _PRODUCT,
    "bmm": _PRODUCT,
    "conv": {**_PRODUCT, "flop": (0.7, 0.2, 0.95), "winograd": (0.8, 0.2, 1.5), "prepared_us": (60.0, 0.0, 250.0)},
}


def _fit_of(values: Mapping[str, float]) -> Fit:
    """Return the parameters in SI; what is not among them has its start."""
    starts = {f"{operator}.{key}": row[0] for operator, asked in _SECOND.items() for key, row in asked.items()}
    given = {**{key: row[0] for key, row in _FIRST.items()}, **starts, **values}

    def products(key: str) -> dict[str, float]:
        """Return a figure of each kind of product."""
        return {_KIND[operator]: given[f"{operator}.{key}"] for operator in _SECOND}

    shares = Shares(
        flop=products("flop"),
        moved={
            **{kind: given[f"moved.{kind}"] for kind in _MOVED},
            **{kind: given[f"moved.{other}"] for kind, other in _ALIKE.items()},
            **products("moved"),
        },
        start_s=given["start_us"] / 1e6,
        dispatch_s=given["dispatch_us"] / 1e6,
        startup=products("startup"),
        waves=products("waves"),
        loads=products("loads"),
        winograd=given["conv.winograd"],
    )
    burst_s = {operator: given[f"{operator}.burst_ms"] / 1e3 for operator in _SECOND}
    return Fit(shares=shares, burst_s=burst_s, prepared_s=given["conv.prepared_us"] / 1e6)


def measured_alone_s(rows: Rows, fitted: Fit) -> Floats:
    """Return what a kernel takes that is launched and waited for by itself: about the longer of host and device."""
    device = DEVICES[rows.device]
    if rows.operator == "conv":  # of zeros
        device = replace(device, sustained_flop_per_s=math.inf)
    took = kernel_s(
        rows.kernels, rows.batch, device, fitted.shares, _EXECUTION, burst_s=fitted.burst_s.get(rows.operator, 0.0)
    )
    host = fitted.shares.dispatch_s
    if rows.operator == "conv":
        took = took + fitted.prepared_s
    return np.asarray((took**8 + host**8) ** (1 / 8), dtype=float)


def fit(rows: Sequence[Rows]) -> Fit:
    """Return the least squares of log(predicted / measured), rows far off counting less, every device alike."""
    some = [one.some(_ROWS_OF_A_FIT) for one in rows]
    found = _solved([one for one in some if one.operator not in PRODUCTS], _FIRST, {}, loss="cauchy", scale=0.05)
    for operator, asked in _SECOND.items():
        mine = {f"{operator}.{key}": row for key, row in asked.items()}
        found = _solved([one for one in some if one.operator == operator], mine, found)
    return _fit_of(found)


def _solved(
    rows: Sequence[Rows],
    asked: Mapping[str, tuple[float, float, float]],
    known: Mapping[str, float],
    *,
    loss: Literal["soft_l1", "cauchy"] = "soft_l1",
    scale: float = 0.2,
) -> dict[str, float]:
    """Return the values asked for, and those known.

    Errors far beyond ``scale`` count little: hosts differ by tens of microseconds.
    """
    start, least, most = (np.array(each) for each in zip(*asked.values(), strict=True))

    def errors(values: Floats) -> Floats:
        fitted = _fit_of({**known, **dict(zip(asked, values * start, strict=True))})
        return np.concatenate([np.log(measured_alone_s(one, fitted) / one.seconds) for one in rows])

    solved = least_squares(
        errors,
        start / start,
        bounds=(least / start, most / start),
        loss=loss,
        f_scale=scale,
        max_nfev=25,
        diff_step=np.full(len(start), 1e-3),
    )
    return {**known, **dict(zip(asked, (float(value) for value in solved.x * start), strict=True))}


def left_out_fits(rows: Sequence[Rows]) -> dict[str, Fit]:
    """Return the fit without each device, and that with all of them by the name ""."""
    fits = {"": fit(rows)}
    for device in DEVICES:
        same = (device, _SAME.get(device, device))
        if _SAME.get(device) in fits:
            fits[device] = fits[_SAME[device]]
        else:
            fits[device] = fit([one for one in rows if _SAME.get(one.device, one.device) not in same])
    return fits


def left_out(rows: Sequence[Rows], fits: Mapping[str, Fit]) -> dict[tuple[str, str], Floats]:
    """Return predicted / measured - 1 of every row, by operator and device, by the fit without that device."""
    return {(one.operator, one.device): measured_alone_s(one, fits[one.device]) / one.seconds - 1 for one in rows}


# -- whole passes of transformers ------------------------------------------------------------------------------------

# As Hugging Face's configurations of these runs have them (``scripts/asplos/data/DLmodel_configs``); all scores are
# computed, masked ones too.
_NETWORKS = {
    "bert_large": Transformer(
        num_layers=24,
        hidden_size=1024,
        num_heads=16,
        vocabulary_size=30522,
        sequence_length=512,
        is_causal=False,
        norm_position="after",
        has_embedding_norm=True,
        num_token_types=2,
        has_pooler=True,
        head="none",
    ),
    **{
        name: Transformer(
            num_layers=layers,
            hidden_size=width,
            num_heads=heads,
            vocabulary_size=words,
            sequence_length=tokens,
            is_causal=False,
        )
        for name, layers, width, heads, words, tokens in (
            ("gpt2_large", 36, 1280, 20, 50257, 1024),
            ("gpt3_xl", 24, 3072, 24, 50257, 2048),
            ("gpt3_27", 32, 2560, 32, 50257, 2048),
            ("opt_13", 24, 2048, 32, 50272, 2048),
        )
    },
}
_IN_STEP_S = 4e-6  # what a kernel takes whatever its size where others follow: own choice
_MASK = 0.25  # a byte for each number
# Kernels that go over the scores besides softmax: what each reads and writes of them.
_SCORES = {
    "bert_large": ((1, 1), (1, 1)),  # divided; mask added
    "opt_13": ((1, 1), (1, 1)),  # mask added; no less than the least number
}
_SCORES_OF_GPT = ((1, 1), (1 + _MASK, 1))  # divided; chosen by the mask
# Of gelu as GPT-2 writes it: 0.5 x (1 + tanh(c (x + 0.044715 x^3))), a kernel each.
_GELU_NEW = ((1, 1), (1, 1), (1, 1), (2, 1), (1, 1), (1, 1), (1, 1), (2, 1))
# Rows that the allocator slows down: forward takes as long as backward, or longer, where memory is all but full.
_FULL = (("AMD Instinct MI210", "gpt2_large", "train", 4), ("AMD Instinct MI210", "gpt3_xl", "train", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A measured forward pass or training step without its optimiser."""

    device: str
    network: str
    mode: str
    is_fused: bool
    batch: int
    seconds: float

    @property
    def is_full(self) -> bool:
        """Whether memory is all but full, so that the allocator is measured as well."""
        return (self.device, self.network, self.mode, self.batch) in _FULL


def read_passes(folder: Path) -> list[Pass]:
    """Return the passes on one device; mixtures of experts are left out."""
    path = folder / "training_steps" / "transformers_fp32_one_gpu_open.csv"
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] in _NETWORKS and row["option"] in ("", "fusion")]
    return [
        Pass(
            device=row["device"].replace("_", " "),
            network=row["model"],
            mode=row["mode"],
            is_fused=row["option"] == "fusion",
            batch=int(row["batch"]),
            seconds=float(row["step_ms"]) / 1e3,
        )
        for row in rows
    ]


@cache
def _network(name: str, *, trains: bool, is_fused: bool) -> Dnn:
    """Return a network whose layers are the kernels that PyTorch launches without fusing attention."""
    sizes = _NETWORKS[name]
    if trains and name == "bert_large":
        sizes = replace(sizes, head="masked_language", has_head_bias=True)
    dnn = dnn_of(sizes, name)
    layers = [
        (
            replace(layer, operators=_eager(layer, name, sizes, trains=trains, is_fused=is_fused)),
            dnn.inputs_of(layer.name),
        )
        for layer in dnn.layers
    ]
    return Dnn(name, layers)


def _eager(layer: Layer, name: str, sizes: Transformer, *, trains: bool, is_fused: bool) -> tuple[Operator, ...]:
    """Return the operators of a layer where they are not those that follow from its kind."""
    part = layer.name.split(".", 1)[-1]
    tokens, heads, width = sizes.sequence_length, sizes.num_heads, sizes.hidden_size
    size, stream, scores = sizes.head_size, tokens * width, heads * tokens**2
    dropped = (_moving(stream, (1, 1 + _MASK)),) if trains else ()
    if part == "attention.scores":
        copies = Operator(kind="copy", read_elements=3 * stream, written_elements=3 * stream, num_kernels=3)
        return (copies, _batched(Product(rows=tokens, inner=size, columns=tokens, count=heads)))
    if part == "attention.context":
        copy = Operator(kind="copy", read_elements=stream, written_elements=stream)
        return (_batched(Product(rows=tokens, inner=tokens, columns=size, count=heads)), copy)
    if part == "attention.softmax":
        around = () if is_fused else _SCORES.get(name, _SCORES_OF_GPT)
        if trains:
            around = (*around, (1, 1 + _MASK))
        softmax = Operator(kind="softmax", read_elements=scores, written_elements=scores)
        return (*(_moving(scores, each) for each in around), softmax)
    if part == "feed_forward.activation" and name.startswith("gpt") and not is_fused:
        return tuple(_moving(layer.num_output_elements, each) for each in _GELU_NEW)
    if part in ("attention.add", "feed_forward.add"):
        return (*dropped, Operator(kind="addition", read_elements=2 * stream, written_elements=stream))
    return layer.operators


def _moving(elements: int, moves: tuple[float, float]) -> Operator:
    """Return an element-wise kernel by how often it reads and writes so many numbers."""
    read, written = moves
    return Operator(
        kind="element_wise", read_elements=round(read * elements), written_elements=round(written * elements)
    )


def _batched(product: Product) -> Operator:
    """Return a product of two activations."""
    rows, inner, columns, count = int(product.rows), product.inner, product.columns, product.count
    return Operator(
        kind="batched_matmul",
        num_multiply_adds=rows * inner * columns * count,
        read_elements=count * inner * (rows + columns),
        written_elements=count * rows * columns,
        product=product,
    )


def pass_s(one: Pass, fitted: Fit) -> float:
    """Return the seconds of a pass: all kernels, one after the other, and in training the gradients added up.

    The loss is outside what was timed of forward, and its gradient inside.
    """
    dnn = _network(one.network, trains=one.mode == "train", is_fused=one.is_fused)
    kernels, device = kernels_of(dnn), DEVICES.get(one.device)
    if device is None:
        device = MATRIX_DEVICES[one.device]
        device = replace(device, product_flop_per_s=device.product_flop_per_s * fitted.matrix_share)
    shares = replace(fitted.shares, start_s=_IN_STEP_S)
    took = kernel_s(kernels, one.batch, device, shares, _EXECUTION)
    is_loss = np.array([layer.kind == "loss" for layer in dnn.layers])[kernels.layer]
    forward = float(took[~kernels.is_backward & ~is_loss].sum())
    if one.mode != "train":
        return forward
    weights = sum(layer.num_trainable for layer in dnn.layers)
    added = 3 * _BYTES * weights / (device.bytes_per_s * shares.moved["addition"])
    return forward + float(took[kernels.is_backward].sum()) + added


def with_matrix_share(fitted: Fit, passes: Sequence[Pass]) -> Fit:
    """Return the fit with the share of matrix cores that is right for these passes' mean logarithm."""
    mine = [one for one in passes if one.device in MATRIX_DEVICES and not one.is_full]
    least, most = 0.05, 1.0
    for _ in range(20):
        middle = replace(fitted, matrix_share=(least + most) / 2)
        too_slow = sum(math.log(pass_s(one, middle) / one.seconds) for one in mine) > 0
        least, most = (middle.matrix_share, most) if too_slow else (least, middle.matrix_share)
    return replace(fitted, matrix_share=(least + most) / 2)


def left_out_passes(passes: Sequence[Pass], fits: Mapping[str, Fit]) -> list[float]:
    """Return predicted / measured - 1 of every pass, by the fit without its device.

    Parameters
    ----------
    passes, fits
        All, and the fit without each device that has kernels; that with all of them has the name "".
    """
    by_device = dict(fits)
    for device in MATRIX_DEVICES:
        others = [one for one in passes if one.device != device]
        by_device[device] = with_matrix_share(fits[""], others)
    return [pass_s(one, by_device[one.device]) / one.seconds - 1 for one in passes]


# -- what is written -------------------------------------------------------------------------------------------------

_SECTION = "fp32"
_LISTED = ("t4", "v100-pcie-16gb", "a100-pcie-40gb")  # of the devices, those that planner/data/devices.csv lists


def section_text(rows: Sequence[Rows], passes: Sequence[Pass], fits: Mapping[str, Fit]) -> str:
    """Return the section of ``planner/data/kernel_shares.yaml`` that is of long numbers, with errors of passes."""
    fitted = with_matrix_share(fits[""], passes)
    convolutions = {
        device: np.log1p(errors).tolist()
        for (operator, device), errors in left_out(rows, fits).items()
        if operator == "conv"
    }
    by_device: dict[str, list[float]] = {}
    for one, error in zip(passes, left_out_passes(passes, fits), strict=True):
        if not one.is_full:
            by_device.setdefault(one.device, []).append(math.log1p(error))
    errors = np.expm1([one for mine in by_device.values() for one in mine])
    shares = fitted.shares
    lines = [f"{_SECTION}:  # written by: {_COMMAND}"]
    for name in ("flop", "moved", "startup", "waves", "loads"):
        row = ", ".join(f"{kind}: {value:.4g}" for kind, value in getattr(shares, name).items())
        lines.append(f"  {name}: {{{row}}}")
    lines += [
        f"  winograd: {shares.winograd:.4g}",
        f"  start_s: {_IN_STEP_S:.4g}",
        f"  dispatch_s: {shares.dispatch_s:.4g}",
        f"  matrix_share: {fitted.matrix_share:.4g}",
        "  error:  # of devices left out",
        f"    mean: {np.abs(errors).mean():.3f}",
        f"    median: {np.median(np.abs(errors)):.3f}",
        *(f"    {name}: {value}" for name, value in band_text(by_device).items()),
        f"    device: {' '.join(_LISTED)}",
        '    of: "passes of transformers on devices left out, fp32, PyTorch"',
        "  convolutions:  # single kernels, on devices left out: no step of such networks was measured",
        *(f"    {name}: {value}" for name, value in band_text(convolutions).items()),
        '    of: "single convolutions on devices left out, fp32: steps of such networks were not measured"',
    ]
    return "\n".join(lines) + "\n"


def with_section(text: str, section: str) -> str:
    """Return a table with its section of that name exchanged, or with it at the end; the others stay as they are."""
    name = section.split(":", 1)[0]
    kept: list[str] = []
    is_old = False
    for line in text.splitlines(keepends=True):
        if line[:1].strip():
            is_old = line.startswith(f"{name}:")
        if not is_old:
            kept.append(line)
    return "".join(kept) + section


_HEAD = f"""\
# Accuracy: kernels and transformers in long numbers

Written by `{_COMMAND}`; a test fails when it is stale.

How far off are the seconds of a kernel, and of a whole pass of a transformer, in fp32, on a device that the fit never
saw? An error is predicted / measured - 1. Every one below is that of a fit without any row of its device: of the device
only published figures enter (peak, bandwidth, multiprocessors, power, process). Set by hand with these devices in view,
so left out of nothing: the energy of a FLOP by process, what GDDR memory loses to its check bits, and what a kernel
takes among others. Data: NeuSight (ASPLOS '25), PyTorch 2.1, in `kernels` and `training_steps` of the folder that
`PLANNER_DATA` names; TF32 is off.

## Single kernels

Median of the sizes of errors, and in brackets the median error. Below about 50 us a figure is what the host takes to
launch, which differs between the hosts of these devices and stands in no datasheet.

"""
_PASSES = """
## Whole passes

No pass has a part in the fit, but for one figure: what AMD's products reach of their matrix cores is that of the other
of the two devices. Mean of the sizes of errors, smallest and largest error.

"""
_FORMULA = """
## The fitted figures

A kernel takes about the longer of its arithmetic and of moving its bytes, and a start. Arithmetic: whole tiles in whole
waves, the tile that does best; a tile's loads, by its edges; and a start of the inner width. A rate is the smaller of
the share of the peak and of what the board's power pays for (`power_flop_per_s` in `models/roofline.py`). Convolutions
of 3 x 3 and stride 1 take Winograd's algorithm where it is faster. The figures stand in
`planner/data/kernel_shares.yaml` (`fp32`).
"""
_TAIL = """
What does not fit: P4 and P100 slow down where the inner width of a `linear` is beyond about 10,000. FFT convolutions,
and which tile a library takes in place of the best, are left out. All convolutions measured are 3 x 3, stride 1.
"""


def page(rows: Sequence[Rows], passes: Sequence[Pass], fits: Mapping[str, Fit]) -> str:
    """Return ``docs/accuracy_kernels.md``."""
    errors = left_out(rows, fits)
    text = _HEAD + _kernel_table(errors) + _PASSES + _pass_table(passes, left_out_passes(passes, fits))
    full = [f"`{one.network}`, {one.mode}, batch {one.batch}, on {one.device}" for one in passes if one.is_full]
    text += f"\nLeft out, as memory is all but full and forward takes as long as backward: {'; '.join(full)}.\n"
    return text + _FORMULA + _TAIL


def _kernel_table(errors: Mapping[tuple[str, str], Floats]) -> str:
    """Return the errors of kernels, a row an operator."""
    devices = [device for device in DEVICES if device not in _SAME]
    short = [device.removeprefix("NVIDIA ").removeprefix("Tesla ") for device in devices]
    lines = [f"| operator | rows | {' | '.join(short)} | all |", "| --- " * (len(devices) + 3) + "|"]
    for operator in OPERATORS:
        mine = {_SAME.get(device, device): each for (name, device), each in errors.items() if name == operator}
        cells = [f"{np.median(np.abs(mine[one])):.1%} ({np.median(mine[one]):+.1%})" for one in devices]
        together = np.concatenate(list(mine.values()))
        lines.append(f"| `{operator}` | {len(together)} | {' | '.join(cells)} | {np.median(np.abs(together)):.1%} |")
    for title, taken in (("products", PRODUCTS), ("all", OPERATORS)):
        cells = []
        for device in devices:
            mine_ = [each for (name, one), each in errors.items() if _SAME.get(one, one) == device and name in taken]
            cells.append(f"{np.median(np.abs(np.concatenate(mine_))):.1%}")
        together = np.concatenate([each for (name, _), each in errors.items() if name in taken])
        lines.append(f"| {title} | {len(together)} | {' | '.join(cells)} | {np.median(np.abs(together)):.1%} |")
    return "\n".join(lines) + "\n"


def _pass_table(passes: Sequence[Pass], errors: Sequence[float]) -> str:
    """Return the errors of passes, a row a device and mode."""
    named = [(one, error) for one, error in zip(passes, errors, strict=True) if not one.is_full]
    lines = ["| device | pass | rows | mean | from | to |", "| --- | --- | --- | --- | --- | --- |"]
    for device in sorted({one.device for one in passes}):
        for title, mode, is_fused in _MODES:
            lines += _pass_row(
                device,
                title,
                [e for one, e in named if (one.device, one.mode, one.is_fused) == (device, mode, is_fused)],
            )
    for title, mode, is_fused in _MODES:
        lines += _pass_row("all", title, [e for one, e in named if (one.mode, one.is_fused) == (mode, is_fused)])
    return "\n".join([*lines, *_pass_row("all", "all", [error for _, error in named])]) + "\n"


_MODES = (("forward", "inf", False), ("forward, compiled", "inf", True), ("training", "train", False))


def _pass_row(device: str, title: str, errors: Sequence[float]) -> list[str]:
    """Return a row, or none where nothing was measured."""
    if not errors:
        return []
    mean = math.fsum(abs(error) for error in errors) / len(errors)
    return [f"| {device} | {title} | {len(errors)} | {mean:.1%} | {min(errors):+.1%} | {max(errors):+.1%} |"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.kernel_fit", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("PLANNER_DATA"), help="folder of measured data")
    parser.add_argument("--write", action="store_true", help=f"write {_TABLE.name} and {_PAGE.name} anew")
    given = parser.parse_args(arguments)
    if given.data is None or not (given.data / "kernels" / "linear_fp32_open.csv").is_file():
        print("no measured data: name their folder by --data or PLANNER_DATA.", file=sys.stderr)
        return 2
    rows, passes = read_kernels(given.data), read_passes(given.data)
    fits = left_out_fits(rows)
    text = page(rows, passes, fits)
    print(text)
    if given.write:
        known = _TABLE.read_text(encoding="utf-8") if _TABLE.is_file() else ""
        section = section_text(rows, passes, fits)
        _TABLE.write_text(with_section(known, section), encoding="utf-8")
        _PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
