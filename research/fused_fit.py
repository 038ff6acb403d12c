"""Fit how much longer tuned programs take than the rooflines of fused kernels say, and say how far that is off.

The rows are MLPerf's runs of ResNet-50 (family ``mlperf-resnet`` of ``llm/open.csv``), read in place from the folder
that ``--data`` or the variable PLANNER_DATA names. A slowdown is measured seconds over those that
:mod:`planner.models.kernels` predicts of kernels that a compiler fused: one figure a device, the geometric mean of its
runs on 16 devices at most with ``LEAST_BATCH`` samples or more on each; and one of all devices, for those that nobody
measured. Exchange and input are part of these runs, so that a plan which adds them counts what they do not hide twice.
Equal data give equal bytes.
"""

import argparse
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from planner import data
from planner.data.fits import kernel_shares
from planner.models.kernels import DeviceLimits, Execution, Shares, layer_seconds
from planner.zoo import build
from research import ROOT
from research.cnn_fit import FAMILY, LEAST_BATCH, MOST_DEVICES, NETWORK, Run, by_device, errors_text, read_runs

__all__ = ["left_out_errors", "page", "slowdown", "slowdown_of", "table_text"]

_COMMAND = "make accuracy"
_TABLE, _PAGE = ROOT / "planner" / "data" / "fused_steps.yaml", ROOT / "docs" / "accuracy_fused.md"


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
    unseen = _unseen(fitted)
    largest = max(abs(error) for error in unseen.values())
    lines = [
        f"# Steps of ResNet-50 in 16-bit numbers over the rooflines of fused kernels. Written by: {_COMMAND}",
        f"unmeasured: {{slowdown: {_of_devices(fitted.values()):.4f}, error: {math.ceil(1000 * largest) / 1000:.3f}}}",
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
