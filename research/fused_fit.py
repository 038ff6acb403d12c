"""Fit how much longer tuned programs take than the rooflines of fused kernels say, and say how far that is off.

The rows are MLPerf's runs of ResNet-50 (family ``mlperf-resnet`` of ``llm/open.csv``), read in place from the folder
that ``--data`` or the variable PLANNER_DATA names. A slowdown is measured seconds over those that
:mod:`planner.models.kernels` predicts of kernels that a compiler fused: one figure a device, the geometric mean of its
runs on 16 devices at most with ``LEAST_BATCH`` samples or more on each; and one of all devices, for those that nobody
measured. Exchange and input are part of these runs, so that a plan which adds them counts what they do not hide twice.
Equal data give equal bytes.
"""

import argparse
import csv
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from planner import data
from planner.data.fits import kernel_shares
from planner.models.kernels import Execution, Shares, layer_seconds
from planner.models.roofline import DeviceLimits
from planner.zoo import build
from research import ROOT
from research.bands import band_text

__all__ = ["Run", "left_out_errors", "page", "read_runs", "slowdown", "slowdown_of", "table_text"]

LEAST_BATCH = 100  # samples on a device: with fewer, what an iteration takes whatever its samples shows
MOST_DEVICES = 16  # one machine or two: exchange between machines shows little
FAMILY = "mlperf-resnet"
NETWORK = "resnet50"
_COMMAND = "make accuracy"
_TABLE, _PAGE = ROOT / "planner" / "data" / "fused_steps.yaml", ROOT / "docs" / "accuracy_fused.md"

_DEVICES = {  # as submissions name them
    "NVIDIA A100-PCIe-80GB": "a100-pcie-80gb",
    "NVIDIA A100-SXM-80GB": "a100-sxm4-80gb",
    "NVIDIA A100-SXM-40GB": "a100-sxm4-40gb",
    "NVIDIA A100-SXM4-40GB": "a100-sxm4-40gb",
    "NVIDIA H100-PCIe": "h100-pcie",
    "NVIDIA H100-PCIe-80GB": "h100-pcie",
    "H100-SXM-80GB": "h100-sxm",
    "NVIDIA A30": "a30",
    "NVIDIA A30-PCIE-24GB": "a30",
    "NVIDIA L4": "l4",
    "NVIDIA L40": "l40",
    "TPU-v4": "tpu-v4",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One submission's training of ResNet-50; ``samples_per_s`` of one device."""

    device: str
    submitter: str
    num_devices: int
    batch_per_device: float
    samples_per_s: float
    is_logged: bool

    @property
    def is_fitted(self) -> bool:
        """Whether the fit takes it: few devices, and enough samples on a device."""
        return self.num_devices <= MOST_DEVICES and self.batch_per_device >= LEAST_BATCH


def read_runs(folder: Path) -> list[Run]:
    """Return the runs on devices that are listed.

    Notes
    -----
    The throughput is the logged one, where a submission logs it; else the samples of all epochs over the time to train,
    which holds the evaluations: 0.3 to 7 % less where both are known.
    """
    with (folder / "llm" / "open.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if f"family={FAMILY};" in row["note"]]
    return [_run(row) for row in rows if row["gpu_type"] in _DEVICES]


def _run(row: Mapping[str, str]) -> Run:
    note = dict(re.findall(r"(\w+)=([^;]*)", row["note"]))
    num_devices, is_logged = int(row["gpus"]), note["logged_throughput"] != "None"
    logged = float(note["logged_throughput"]) / num_devices if is_logged else 0.0
    return Run(
        device=_DEVICES[row["gpu_type"]],
        submitter=note["submitter"],
        num_devices=num_devices,
        batch_per_device=int(row["global_batch"]) / num_devices,
        samples_per_s=logged if is_logged else float(note["images_per_s_per_gpu_derived"]),
        is_logged=is_logged,
    )


def by_device(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the runs of each device, in the order of the devices' names."""
    found: dict[str, list[Run]] = {}
    for one in runs:
        found.setdefault(one.device, []).append(one)
    return dict(sorted(found.items()))


def errors_text(errors: Sequence[float]) -> str:
    """Return mean, largest and the ends, as cells of a table."""
    if not errors:
        return "one submitter | | |"
    sizes = [abs(error) for error in errors]
    return f"{math.fsum(sizes) / len(sizes):.1%} | {max(sizes):.1%} | {min(errors):+.1%} | {max(errors):+.1%}"


@cache
def slowdown(run: Run) -> float:
    """Return measured seconds over those of the rooflines."""
    device = data.device(run.device)
    dtype = "fp16" if "fp16" in device.peak_flop_per_s else "bf16"
    execution = Execution.of(dtype, is_fused=True, has_channels_last=True)
    batch, shares = run.batch_per_device, Shares.of(kernel_shares(dtype))
    both = layer_seconds(build(NETWORK), batch, DeviceLimits.of(device, dtype), shares, execution)
    return batch / run.samples_per_s / sum(float(seconds.sum()) for seconds in both)


def slowdown_of(runs: Iterable[Run]) -> float:
    """Return the geometric mean, which is least squares of log(predicted / measured)."""
    logs = [math.log(slowdown(one)) for one in runs]
    return math.exp(math.fsum(logs) / len(logs))


def left_out_errors(runs: Sequence[Run]) -> list[float]:
    """Return predicted / measured - 1 of the seconds of a device's runs, by a fit without those of their submitter."""
    errors = []
    for one in runs:
        others = [other for other in runs if other.submitter != one.submitter]
        if others:
            errors.append(slowdown_of(others) / slowdown(one) - 1)
    return errors


def _of_devices(devices: Iterable[Sequence[Run]]) -> float:
    """Return the geometric mean over devices, each as heavy."""
    logs = [math.log(slowdown_of(mine)) for mine in devices]
    return math.exp(math.fsum(logs) / len(logs))


def _unseen(fitted: Mapping[str, Sequence[Run]]) -> dict[str, float]:
    """Return predicted / measured - 1 of each device by the others' slowdown."""
    return {
        name: _of_devices(others for other, others in fitted.items() if other != name) / slowdown_of(mine) - 1
        for name, mine in fitted.items()
    }


# -- what is written -------------------------------------------------------------------------------------------------


def table_text(runs: Sequence[Run]) -> str:
    """Return ``planner/data/fused_steps.yaml``."""
    fitted = by_device(one for one in runs if one.is_fitted)
    unseen = {name: [error] for name, error in _unseen(fitted).items()}
    seen = {device: errors for device, mine in fitted.items() if (errors := left_out_errors(mine))}
    lines = [
        f"# Steps of ResNet-50 in 16-bit numbers over the rooflines of fused kernels. Written by: {_COMMAND}",
        "# Bands are of measured / predicted - 1; coverage: the share of errors in the band of all other devices.",
        f"unmeasured: {{slowdown: {_of_devices(fitted.values()):.4f}, {_band_row(unseen)}}}  # of devices left out",
        f"measured: {{{_band_row(seen)}}}  # of submitters left out",
        "devices:",
    ]
    for device, mine in fitted.items():
        errors = [abs(error) for error in left_out_errors(mine)]
        error = f"{math.ceil(1000 * max(errors)) / 1000:.3f}" if errors else "null"
        sizes = [one.batch_per_device for one in mine]
        lines.append(
            f"  {device}: {{slowdown: {slowdown_of(mine):.4f}, error: {error}, num_runs: {len(mine)}, "
            f"batch_per_device: [{min(sizes):g}, {max(sizes):g}]}}"
        )
    return "\n".join(lines) + "\n"


def _band_row(errors: Mapping[str, Sequence[float]]) -> str:
    """Return the band of some errors, and its coverage."""
    logs = {name: np.log1p(mine).tolist() for name, mine in errors.items()}
    return ", ".join(f"{name}: {value}" for name, value in band_text(logs).items())


_HEAD = f"""\
# Accuracy: compiled networks in 16-bit numbers

Written by `{_COMMAND}`; a test fails when it is stale.

How much longer does a step of ResNet-50 take than the rooflines of fused kernels say (`models/kernels.py`), and how far
off is that for submitters whose runs the fit did not see, and for devices that it did not see? Runs: MLPerf Training
2.0 to 4.0 (`{FAMILY}` in the folder that `PLANNER_DATA` names). An error is predicted / measured - 1, of seconds.
Fitted are runs on {MOST_DEVICES} devices or fewer with {LEAST_BATCH} samples or more on each.

These figures multiply the seconds of networks in bf16 or fp16 with `calibration.execution: compiled`: each device
its own, any other device the mean of those below, whose error is the last column.

"""
_FEW = f"""
## Few samples on a device, many devices

Errors of the same figures on runs that were not fitted: fewer than {LEAST_BATCH} samples on a device, or more than
{MOST_DEVICES} devices. Their exchange is not in the figures; a plan with fewer samples on a device than were measured
warns of it.

"""
_TAIL = """
What the rows cannot tell: kinds of layer (one network was run), other networks, and exchange apart from computing.
Throughput is the logged one, or the samples of all epochs over the time to train, evaluations included. Devices that
are not listed in `planner/data/devices.csv` (Gaudi 2, RTX A5000, Bow IPU) are passed over.
"""


def page(runs: Sequence[Run]) -> str:
    """Return ``docs/accuracy_fused.md``."""
    head = "| device | runs | submitters | samples on a device | slowdown | mean | largest | from | to | unseen |"
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    fitted = by_device(one for one in runs if one.is_fitted)
    unseen = _unseen(fitted)
    for device, mine in fitted.items():
        sizes = sorted({one.batch_per_device for one in mine})
        span = f"{sizes[0]:g} to {sizes[-1]:g}" if len(sizes) > 1 else f"{sizes[0]:g}"
        submitters = len({one.submitter for one in mine})
        lines.append(
            f"| `{device}` | {len(mine)} | {submitters} | {span} | {slowdown_of(mine):.3f} | "
            f"{errors_text(left_out_errors(mine))} | {unseen[device]:+.1%} |"
        )
    few = ["| device | devices | samples on a device | error |", "| --- | --- | --- | --- |"]
    for one in sorted((one for one in runs if not one.is_fitted), key=lambda one: (one.device, -one.batch_per_device)):
        known = fitted.get(one.device)
        error = f"{slowdown_of(known) / slowdown(one) - 1:+.1%}" if known else "no figure"
        few.append(f"| `{one.device}` | {one.num_devices} | {one.batch_per_device:g} | {error} |")
    return _HEAD + "\n".join(lines) + "\n" + _FEW + "\n".join(few) + "\n" + _TAIL


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.fused_fit", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("PLANNER_DATA"), help="folder of measured data")
    parser.add_argument("--write", action="store_true", help=f"write {_TABLE.name} and {_PAGE.name} anew")
    given = parser.parse_args(arguments)
    if given.data is None or not (given.data / "llm" / "open.csv").is_file():
        print("no measured data: name their folder by --data or PLANNER_DATA.", file=sys.stderr)
        return 2
    runs = read_runs(given.data)
    print(page(runs))
    if given.write:
        _TABLE.write_text(table_text(runs), encoding="utf-8")
        _PAGE.write_text(page(runs), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
