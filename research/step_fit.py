"""Fit what kernels reach of a device's peak and bandwidth to training steps in mixed precision; say how far it is off.

The rows are training steps of image networks of timm on one RTX 3090 in PyTorch 1.12 (automatic mixed precision, two
memory formats), read in place from the folder that ``--data`` or the variable PLANNER_DATA names; their networks come
from ``python -m research.timm_networks``. Least squares of log(predicted / measured), outliers damped. Errors are of
networks left out, a fifth of their families at a time: an architecture's variants leave together. Equal data give
equal bytes.
"""

import argparse
import os
import pickle
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from planner import data
from planner.cost import Floats
from planner.models.kernels import KINDS, Execution, Kernels, Shares, kernel_s, kernels_of
from planner.models.roofline import DeviceLimits
from research import ROOT
from research.bands import band_text
from research.kernel_fit import with_section
from research.timm_networks import STEPS, read_steps

__all__ = ["PARAMETERS", "Step", "collapsed", "fitted", "left_out_errors", "page", "read", "shares_of", "table_text"]

_COMMAND = "make accuracy"
_TABLE, _PAGE = ROOT / "planner" / "data" / "kernel_shares.yaml", ROOT / "docs" / "accuracy_steps.md"
_NETWORKS = ROOT / "build" / "timm"
_DEVICE = "rtx-3090"
_SECTION = "mixed"
_WORST = 15
_FOLDS = 5
_OPTIMIZER_BYTES = 24.0  # of a parameter: gradient, momentum and weight in fp32, read and written
_OPTIMIZER_KERNELS = 4  # for each tensor: PyTorch 1.12 steps one after the other, and unscales gradients before
_SOFT = 0.15  # errors beyond it count linearly
_PULL = 0.1  # of a parameter towards its start, where rows tell little of it


class Parameter(NamedTuple):
    """Where a parameter starts, and the kinds of kernels whose arithmetic or memory share it; else a constant."""

    start: float
    flop: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()


PARAMETERS: Mapping[str, Parameter] = {
    "convolution": Parameter(0.8, ("convolution",)),
    "grouped": Parameter(0.3, ("grouped_convolution",)),
    "depthwise": Parameter(0.3, ("depthwise_convolution",)),
    "matmul": Parameter(0.8, ("matmul", "recurrent")),
    "batched": Parameter(0.4, ("batched_matmul", "attention")),
    "images": Parameter(0.5, (), ("convolution", "grouped_convolution", "depthwise_convolution")),
    "tokens": Parameter(0.5, (), ("matmul", "batched_matmul", "attention", "recurrent")),
    "windows": Parameter(0.5, (), ("pooling",)),
    "elements": Parameter(
        0.8,
        (),
        (
            "batch_norm",
            "norm",
            "group_norm",
            "softmax",
            "element_wise",
            "scaling",
            "multiplication",
            "addition",
            "reduction",
            "embedding",
            "copy",
            "slice",
        ),
    ),
    "startup": Parameter(60.0),
    "start_s": Parameter(1e-5),
    "wide_groups": Parameter(0.1),
}
_LOADS = 0.0  # of tiles: these rows do not tell it
_WAVES = 1.0  # all of the last one
_CONVERSION = 2.0  # each number is read once more and written once more
_MOST_SHARE = 1.25  # clocks go beyond those that peaks are published for, and caches spare the memory
_MOST = {"startup": 1000.0}
_DISPATCH_S = 1.0e-5
_SHARPNESS = 2.0  # a step's kernels overlap less than those that are timed alone
_LIMITS = DeviceLimits.of(data.device(_DEVICE), "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One measured step, and its kernels, equal ones together: ``times`` how many."""

    network: str
    memory_format: str
    batch: int
    seconds: float
    num_parameters: int
    num_tensors: int
    kernels: Kernels
    times: Floats

    @property
    def family(self) -> str:
        """The letters that its name begins with, less those of who trained it."""
        name = re.sub(r"^(tf|gluon|legacy|swsl|ssl|ig|jx|ens_adv|adv)_", "", self.network)
        found = re.match(r"[a-z]+", name)
        return name if found is None else found.group(0)


def collapsed(kernels: Kernels) -> tuple[Kernels, Floats]:
    """Return unlike kernels, and how often each stands."""
    names = [one.name for one in fields(Kernels) if one.name not in ("layer", "is_backward")]
    table = np.array([getattr(kernels, name) for name in names], dtype=float).T
    rows, times = np.unique(table, axis=0, return_counts=True)
    whole = ("kind", "grows")
    columns = {
        name: column.astype(int) if name in whole else column for name, column in zip(names, rows.T, strict=True)
    }
    nothing = np.zeros(len(rows), dtype=int)
    return Kernels(layer=nothing, is_backward=nothing.astype(bool), **columns), times.astype(float)


def read(folder: Path, networks: Path = _NETWORKS) -> list[Step]:
    """Return the measured steps whose networks are there."""
    steps, known = [], {}
    for row in read_steps(folder):
        path = networks / f"{row['model']}@{row['image_size']}.pickle"
        if not path.exists():
            continue
        if path not in known:
            dnn = pickle.loads(path.read_bytes())  # written by research.timm_networks
            known[path] = (dnn, *collapsed(kernels_of(dnn, is_mixed=True)))
        dnn, kernels, times = known[path]
        steps.append(
            Step(
                network=row["model"],
                memory_format=row["memory_format"],
                batch=int(row["batch_size"]),
                seconds=float(row["step_s"]),
                num_parameters=dnn.num_trainable,
                num_tensors=dnn.num_trainable_tensors,
                kernels=kernels,
                times=times,
            )
        )
    return steps


def shares_of(values: Mapping[str, float]) -> Shares:
    """Return the shares that the parameters' values make."""
    flop = {kind: values[name] for name, row in PARAMETERS.items() for kind in row.flop}
    moved = {kind: values[name] for name, row in PARAMETERS.items() for kind in row.moved}
    return Shares(
        flop=flop,
        moved=moved,
        startup=dict.fromkeys(flop, values["startup"]),
        waves=dict.fromkeys(flop, _WAVES),
        loads=dict.fromkeys(flop, _LOADS),
        dispatch_s=_DISPATCH_S,
        sharpness=_SHARPNESS,
        startup_flop_per_s=_LIMITS.product_flop_per_s / _LIMITS.num_multiprocessors,
        conversion=_CONVERSION,
        start_s=values["start_s"],
        wide_groups=values["wide_groups"],
    )


class Stacked:
    """Steps of one memory format as one list of kernels, so that a set of shares is tried at once."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self._of = np.concatenate([np.full(len(one.times), at) for at, one in enumerate(steps)])
        columns = {
            one.name: np.concatenate([getattr(step.kernels, one.name) for step in steps]) for one in fields(Kernels)
        }
        self._kernels, self._times = Kernels(**columns), np.concatenate([one.times for one in steps])
        self._batch = np.array([one.batch for one in steps], dtype=float)[self._of]
        has_channels_last = steps[0].memory_format == "nhwc"
        self._execution = Execution.of("fp16", is_fused=False, has_channels_last=has_channels_last)
        parameters = np.array([one.num_parameters for one in steps], dtype=float)
        self._update_s = parameters * _OPTIMIZER_BYTES / _LIMITS.bytes_per_s
        self._tensors = np.array([one.num_tensors for one in steps], dtype=float)

    def seconds(self, shares: Shares) -> Floats:
        """Return the predicted seconds of each step."""
        took = kernel_s(self._kernels, self._batch, _LIMITS, shares, self._execution) * self._times
        number = len(self.steps)
        device_s = np.bincount(self._of, took, number) + self._update_s
        launches = np.bincount(self._of, self._kernels.launches * self._times, number)
        host_s: Floats = (launches + _OPTIMIZER_KERNELS * self._tensors) * shares.dispatch_s
        return np.maximum(device_s, host_s)


def _stacks(steps: Sequence[Step]) -> list[Stacked]:
    """Return the steps by memory format."""
    formats = sorted({one.memory_format for one in steps})
    return [Stacked([one for one in steps if one.memory_format == name]) for name in formats]


def _logs(stacks: Sequence[Stacked], shares: Shares) -> Floats:
    """Return log(predicted / measured) of all steps."""
    found = [np.log(one.seconds(shares) / np.array([step.seconds for step in one.steps])) for one in stacks]
    return np.concatenate(found)


def fitted(steps: Sequence[Step]) -> dict[str, float]:
    """Return the parameters' values."""
    names, start = list(PARAMETERS), np.log([row.start for row in PARAMETERS.values()])
    stacks = _stacks(steps)

    def residuals(point: Floats) -> Floats:
        values = dict(zip(names, np.exp(point).tolist(), strict=True))
        return np.concatenate([_logs(stacks, shares_of(values)), _PULL * (point - start)])

    most = np.log([_MOST.get(name, _MOST_SHARE) for name in names])
    bounds = (np.full(len(names), -np.inf), most)
    found = least_squares(
        residuals, start, bounds=bounds, loss="soft_l1", f_scale=_SOFT, max_nfev=20, xtol=1e-4, ftol=1e-5
    )
    return dict(zip(names, np.exp(found.x).tolist(), strict=True))


def left_out_errors(steps: Sequence[Step]) -> dict[tuple[str, str], float]:
    """Return log(predicted / measured) of every step, by network and memory format, from fits without its family."""
    families = sorted({one.family for one in steps})
    errors: dict[tuple[str, str], float] = {}
    for fold in range(_FOLDS):
        out = set(families[fold::_FOLDS])
        values = fitted([one for one in steps if one.family not in out])
        stacks = _stacks([one for one in steps if one.family in out])
        logs = _logs(stacks, shares_of(values))
        own = [(step.network, step.memory_format) for stack in stacks for step in stack.steps]
        errors.update(zip(own, logs.tolist(), strict=True))
    return errors


def _by_family(steps: Sequence[Step], logs: Mapping[tuple[str, str], float]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for one in steps:
        found.setdefault(one.family, []).append(logs[one.network, one.memory_format])
    return found


# -- what is written -------------------------------------------------------------------------------------------------


def table_text(values: Mapping[str, float], by_family: Mapping[str, Sequence[float]]) -> str:
    """Return the section of ``planner/data/kernel_shares.yaml`` that this program writes."""
    shares, logs = shares_of(values), [one for mine in by_family.values() for one in mine]
    rows = [f"{_SECTION}:  # from {len(logs)} training steps on one {_DEVICE}; written by: {_COMMAND}"]
    for one in fields(Shares):
        value = getattr(shares, one.name)
        if isinstance(value, Mapping):
            shown = ", ".join(f"{kind}: {value[kind]:.4g}" for kind in KINDS if kind in value)
            rows.append(f"  {one.name}: {{{shown}}}")
        else:
            rows.append(f"  {one.name}: {value:.4g}")
    sizes = np.abs(np.exp(logs) - 1)
    rows.append("  error:  # of networks left out")
    rows += [f"    {name}: {value:.3f}" for name, value in (("mean", sizes.mean()), ("median", np.median(sizes)))]
    rows += [f"    {name}: {value}" for name, value in band_text(by_family).items()]
    rows += [f"    device: {_DEVICE}"]
    rows += [f'    of: "training steps of image networks left out, eager, mixed precision, {_DEVICE}"']
    return "\n".join(rows) + "\n"


_HEAD = f"""\
# Accuracy: training steps of image networks

Written by `{_COMMAND}`; a test fails when it is stale.

How far off are the rooflines of kernels (`models/kernels.py`) for networks that the fit did not see? Steps: timm's
networks on one RTX 3090, PyTorch 1.12, eager, automatic mixed precision, with channels last (`nhwc`) and contiguous
(`nchw`) images (`{STEPS}` in the folder that `PLANNER_DATA` names). Each network is read by `planner.from_torch`. A
fifth of all families of networks is left out at a time. An error is predicted / measured - 1, of the seconds of a step.

"""


def page(steps: Sequence[Step], values: Mapping[str, float], logs: Mapping[tuple[str, str], float]) -> str:
    """Return ``docs/accuracy_steps.md``."""
    from scipy.stats import spearmanr  # noqa: PLC0415  # late: only a report pays for it

    rows = [
        "| steps | number | mean | median | 80 % lie between | rank correlation |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, chosen in (
        ("all", list(steps)),
        *((form, [one for one in steps if one.memory_format == form]) for form in ("nchw", "nhwc")),
    ):
        if not chosen:
            continue
        own = np.array([logs[one.network, one.memory_format] for one in chosen])
        sizes, (low, high) = np.abs(np.exp(own) - 1), np.quantile(np.exp(own) - 1, (0.1, 0.9))
        measured = np.array([one.seconds / one.batch for one in chosen])
        rank = spearmanr(measured, measured * np.exp(own)).statistic
        errors = f"{sizes.mean():.1%} | {np.median(sizes):.1%} | {low:+.1%}, {high:+.1%}"
        rows.append(f"| {name} | {len(own)} | {errors} | {rank:.3f} |")
    by_family = {name: np.expm1(mine) for name, mine in _by_family(steps, logs).items()}
    worst = sorted(by_family, key=lambda name: -abs(float(np.mean(by_family[name]))))[:_WORST]
    shown = [f"| {name} | {len(by_family[name])} | {np.mean(by_family[name]):+.1%} |" for name in worst]
    parameters = [f"| `{name}` | {value:.4g} |" for name, value in values.items()]
    return (
        _HEAD
        + "\n".join(rows)
        + "\n\n## Families that are furthest off\n\n| family | steps | mean error |\n| --- | --- | --- |\n"
        + "\n".join(shown)
        + "\n\n## Parameters\n\nShares of the peak or of the bandwidth, and constants (`models/kernels.py`).\n\n"
        + "| parameter | value |\n| --- | --- |\n"
        + "\n".join(parameters)
        + "\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.step_fit", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("PLANNER_DATA"), help="folder of measured data")
    parser.add_argument("--networks", type=Path, default=_NETWORKS, help="what research.timm_networks wrote")
    parser.add_argument("--write", action="store_true", help=f"write {_TABLE.name} and {_PAGE.name} anew")
    given = parser.parse_args(arguments)
    if given.data is None or not (given.data / STEPS).is_file():
        print("no measured data: name their folder by --data or PLANNER_DATA.", file=sys.stderr)
        return 2
    steps = read(given.data, given.networks)
    if not steps:
        print(f"no networks in {given.networks}: run python -m research.timm_networks first.", file=sys.stderr)
        return 2
    values = fitted(steps)
    logs = left_out_errors(steps)
    text = page(steps, values, logs)
    print(text)
    if given.write:
        _TABLE.write_text(
            with_section(_TABLE.read_text(encoding="utf-8"), table_text(values, _by_family(steps, logs))),
            encoding="utf-8",
        )
        _PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
