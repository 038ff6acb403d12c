"""The share of a device's peak that a network reaches, where a spec does not say: as fitted, or assumed."""

from collections.abc import Collection, Mapping
from typing import Any

from planner.cluster import Device
from planner.data.cnn_utilisation import cnn_utilisation
from planner.dnn import Dnn
from planner.problem import Assumption
from planner.spec.calibration import UTILISATION
from planner.spec.calibration_block import CalibrationSpec
from planner.spec.source import Notes

__all__ = ["default_utilisation", "note_default_utilisation"]

_SHORT = ("bf16", "fp16")
_KIND = "convolution"
_FITTED_TO = "resnet50"
_UNCALIBRATED = "the devices are uncalibrated: give calibration.utilisation, or a measured profile"


def _fitted(dnn: Dnn, device: str, dtype: str, calibration: CalibrationSpec) -> Mapping[str, Any] | None:
    """Return the fitted row of a device, for convolutional networks in short numbers."""
    is_short = dtype in _SHORT and not calibration.utilisation_by_kind and calibration.flop_per_multiply_add == 2
    is_convolutional = is_short and any(layer.kind == _KIND for layer in dnn.layers)
    return cnn_utilisation().get(device) if is_convolutional and dnn.transformer is None else None


def default_utilisation(dnn: Dnn, device: str, dtype: str, calibration: CalibrationSpec) -> float:
    """Return the share of its peak that a device is taken to reach, where the spec gives none."""
    row = _fitted(dnn, device, dtype, calibration)
    return UTILISATION if row is None else float(row["utilisation"])


def note_default_utilisation(
    notes: Notes,
    dnn: Dnn,
    devices: Collection[Device],
    calibration: CalibrationSpec,
    *,
    dtype: str,
    batch_per_device: float | None,
) -> None:
    """Say what share of its peak each device is taken to reach, and warn where that is uncalibrated."""
    rows = {device.name: _fitted(dnn, device.name, dtype, calibration) for device in devices}
    if not all(rows.values()):
        others = [name for name, row in rows.items() if row is None]
        who = "" if len(others) == len(rows) else f" {', '.join(others)}"
        is_all = len(others) == len(rows)
        notes.key_assumptions.append(
            Assumption(
                text=f"efficiency: {who[1:] or 'the devices'} at {100 * UTILISATION:g} % of the peak",
                field=("calibration", "utilisation"),
                flag="calibration.utilisation",
                other=UTILISATION / 2 if is_all else None,
            )
        )
        notes.warnings.append(_UNCALIBRATED if not who else _UNCALIBRATED.replace("the devices are", f"{who[1:]}:"))
    for name, row in rows.items():
        if row is not None:
            _note_row(notes, name, row, batch_per_device)
            if dnn.name != _FITTED_TO:
                notes.warnings.append(
                    f"the utilisation of {name} was fitted to {_FITTED_TO}: for {dnn.name} it is uncalibrated"
                )


def _note_row(notes: Notes, device: str, row: Mapping[str, Any], batch_per_device: float | None) -> None:
    """Say what a fitted share rests on; warn of fewer samples than were measured."""
    error = "" if row["error"] is None else f", off by up to {row['error']:.1%} for submitters left out"
    notes.assumptions.append(
        f"utilisation of {device}: {row['utilisation']:g}, fitted to {row['num_runs']} MLPerf run"
        f"{'s' * (row['num_runs'] > 1)} of {_FITTED_TO} in 16-bit numbers{error}"
    )
    least = row["batch_per_device"][0]
    if batch_per_device is not None and batch_per_device < least:
        notes.warnings.append(
            f"{batch_per_device:g} samples on a device are fewer than were measured on {device} ({least:g}): each "
            f"takes longer then than this utilisation says, at 16 samples more than twice as long"
        )
