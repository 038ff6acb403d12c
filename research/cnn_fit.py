"""Fit the utilisation of devices that train convolutional networks in short numbers, and say how far it is off.

The rows are MLPerf's runs of ResNet-50 (family ``mlperf-resnet`` of ``llm/open.csv``), read in place from the folder
that ``--data`` or the variable PLANNER_DATA names. Utilisation is what a device reaches of its published dense peak of
16-bit numbers, with two FLOP a multiply-add and backward twice forward: one figure a device, the geometric mean of its
runs on 16 devices at most with ``LEAST_BATCH`` samples or more on each. Exchange and input are part of these runs, so
that a plan which adds them counts what they do not hide twice. Equal data give equal bytes.
"""

import argparse
import csv
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner import data
from planner.zoo import build
from research import ROOT

__all__ = [
    "FAMILY",
    "LEAST_BATCH",
    "MOST_DEVICES",
    "NETWORK",
    "Run",
    "by_device",
    "errors_text",
    "left_out_errors",
    "page",
    "read_runs",
    "table_text",
    "utilisation_of",
]

LEAST_BATCH = 100  # samples on a device: with fewer, what an iteration takes whatever its samples shows
MOST_DEVICES = 16  # one machine or two: exchange between machines shows little
FAMILY = "mlperf-resnet"
_COMMAND = "make accuracy"
_TABLE, _PAGE = ROOT / "planner" / "data" / "cnn_utilisation.yaml", ROOT / "docs" / "accuracy_cnn.md"
NETWORK = "resnet50"
_PASSES = 3  # forward, and twice that backward
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

    @property
    def utilisation(self) -> float:
        """Share of the device's peak."""
        multiply_adds = sum(layer.num_multiply_adds for layer in build(NETWORK).layers)
        peaks = data.device(self.device).peak_flop_per_s
        return 2 * _PASSES * multiply_adds * self.samples_per_s / (peaks.get("fp16") or peaks["bf16"])


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
    """Return a row of the file as a run."""
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


def utilisation_of(runs: Iterable[Run]) -> float:
    """Return the geometric mean, which is least squares of log(predicted / measured)."""
    logs = [math.log(one.utilisation) for one in runs]
    return math.exp(math.fsum(logs) / len(logs))


def left_out_errors(runs: Sequence[Run]) -> list[float]:
    """Return predicted / measured - 1 of the seconds of a device's runs, by a fit without those of their submitter."""
    errors = []
    for one in runs:
        others = [other for other in runs if other.submitter != one.submitter]
        if others:
            errors.append(one.utilisation / utilisation_of(others) - 1)
    return errors


# -- what is written -------------------------------------------------------------------------------------------------


def by_device(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the runs of each device, in the order of the devices' names."""
    found: dict[str, list[Run]] = {}
    for one in runs:
        found.setdefault(one.device, []).append(one)
    return dict(sorted(found.items()))


def table_text(runs: Sequence[Run]) -> str:
    """Return ``planner/data/cnn_utilisation.yaml``."""
    lines = [f"# Utilisation of devices by ResNet-50 in 16-bit numbers. Written by: {_COMMAND}", "devices:"]
    for device, mine in by_device(one for one in runs if one.is_fitted).items():
        errors = [abs(error) for error in left_out_errors(mine)]
        error = f"{math.ceil(1000 * max(errors)) / 1000:.3f}" if errors else "null"
        sizes = [one.batch_per_device for one in mine]
        lines.append(
            f"  {device}: {{utilisation: {utilisation_of(mine):.4f}, error: {error}, num_runs: {len(mine)}, "
            f"batch_per_device: [{min(sizes):g}, {max(sizes):g}]}}"
        )
    return "\n".join(lines) + "\n"


_HEAD = f"""\
# Accuracy: convolutional networks in 16-bit numbers

Written by `{_COMMAND}`; a test fails when it is stale.

How much of its peak does a device reach that trains ResNet-50, and how far off is that figure for submitters whose runs
the fit did not see? Runs: MLPerf Training 2.0 to 4.0 (`{FAMILY}` in the folder that `PLANNER_DATA` names).
Utilisation is of the dense 16-bit peak, two FLOP a multiply-add, backward twice forward. An error is
predicted / measured - 1, of seconds. Fitted are runs on {MOST_DEVICES} devices or fewer with {LEAST_BATCH} samples or
more on each.

These figures are the default of `calibration.utilisation` for networks with convolutions in bf16 or fp16 on the devices
below. On any other device, and in fp32, a plan says that the devices are uncalibrated.

"""
_FEW = f"""
## Few samples on a device, many devices

Errors of the same figures on runs that were not fitted: fewer than {LEAST_BATCH} samples on a device, or more than
{MOST_DEVICES} devices. What an iteration takes whatever its samples, exchange included, is not in the figures, so that
the prediction is too fast; a plan with fewer samples on a device than were measured warns of it.

"""
_TAIL = """
What the rows cannot tell: kinds of layer (one network was run), other networks, and exchange apart from computing.
Throughput is the logged one, or the samples of all epochs over the time to train, evaluations included. Devices that
are not listed in `planner/data/devices.csv` (Gaudi 2, RTX A5000, Bow IPU) are passed over.
"""


def page(runs: Sequence[Run]) -> str:
    """Return ``docs/accuracy_cnn.md``."""
    head = "| device | runs | submitters | samples on a device | utilisation | mean | largest | from | to |"
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    fitted = by_device(one for one in runs if one.is_fitted)
    for device, mine in fitted.items():
        sizes = sorted({one.batch_per_device for one in mine})
        span = f"{sizes[0]:g} to {sizes[-1]:g}" if len(sizes) > 1 else f"{sizes[0]:g}"
        submitters = len({one.submitter for one in mine})
        lines.append(
            f"| `{device}` | {len(mine)} | {submitters} | {span} | {utilisation_of(mine):.3f} | "
            f"{errors_text(left_out_errors(mine))} |"
        )
    few = ["| device | devices | samples on a device | error |", "| --- | --- | --- | --- |"]
    for one in sorted((one for one in runs if not one.is_fitted), key=lambda one: (one.device, -one.batch_per_device)):
        known = fitted.get(one.device)
        error = f"{one.utilisation / utilisation_of(known) - 1:+.1%}" if known else "no figure"
        few.append(f"| `{one.device}` | {one.num_devices} | {one.batch_per_device:g} | {error} |")
    return _HEAD + "\n".join(lines) + "\n" + _FEW + "\n".join(few) + "\n" + _TAIL


def errors_text(errors: Sequence[float]) -> str:
    """Return mean, largest and the ends, as cells of a table."""
    if not errors:
        return "one submitter | | |"
    sizes = [abs(error) for error in errors]
    return f"{math.fsum(sizes) / len(sizes):.1%} | {max(sizes):.1%} | {min(errors):+.1%} | {max(errors):+.1%}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.cnn_fit", description=__doc__)
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
