"""Seconds of every layer on every device: by FLOP, or scaled from the device on which they were measured."""

from dataclasses import dataclass, replace

from planner import data
from planner.cluster import Cluster, Device
from planner.cost import Profile
from planner.data.transformer_rates import TYPICAL_DEVICE, transformer_rates
from planner.dnn import Dnn
from planner.models.compute import optimizer_step_s, profile_from_flop, scaled_to
from planner.models.memory import Precision
from planner.models.roofline import Constants
from planner.models.transformer_compute import Software
from planner.models.transformer_profile import device_rates, microbatch_of, transformer_profile
from planner.names import fold
from planner.problem import Calibration, Training
from planner.spec.calibration_block import CalibrationSpec
from planner.spec.doubts import is_fitted
from planner.spec.reading import Reading
from planner.spec.utilisation import default_utilisation

__all__ = ["Profiler", "has_rooflines"]

_FITTED_TYPES = ("bf16", "fp16")


def has_rooflines(dnn: Dnn, dtype: str, calibration: CalibrationSpec) -> bool:
    """Whether seconds of layers come from the fitted rooflines: of transformers in short numbers, if none are given."""
    is_given = calibration.utilisation is not None or calibration.utilisation_by_kind
    return dnn.transformer is not None and bool(dnn.repeats) and dtype in _FITTED_TYPES and not is_given


def with_fitted_links(fitted: Calibration, given: CalibrationSpec) -> Calibration:
    """Return the figures with shares of the links' bandwidth as fitted to transformers, where the spec gives none."""
    shares = transformer_rates()["constants"]
    is_inside_given = given.inside_efficiency is not None
    return replace(
        fitted,
        bandwidth_efficiency=fitted.bandwidth_efficiency if is_fitted(given) else shares["outside_efficiency"],
        inside_efficiency=fitted.inside_efficiency if is_inside_given else shares["inside_efficiency"],
    )


@dataclass(frozen=True, slots=True)
class Profiler:
    """Profiles networks on the devices of one cluster."""

    reading: Reading
    cluster: Cluster
    calibration: CalibrationSpec
    training: Training
    batch_per_device: int

    def profiles(self, dnn: Dnn, measured: Profile | None) -> dict[str, Profile]:
        """Return the seconds of every layer on every device of the cluster."""
        groups = self.cluster.machine_groups
        if measured is None:
            return {group.device.name: self._by_flop(dnn, group.device) for group in groups}
        measured_on = self._profile_device(measured)
        return {
            group.device.name: replace(
                self._scaled(measured, measured_on, group.device), update_s=self._update_s(dnn, group.device)
            )
            for group in groups
        }

    def _by_flop(self, dnn: Dnn, device: Device) -> Profile:
        """Return the seconds of a device that was not measured: a transformer's by rooflines, unless told otherwise."""
        if has_rooflines(dnn, self.training.dtype, self.calibration):
            return self._by_rooflines(dnn, device)
        return profile_from_flop(
            dnn,
            device,
            dtype=self.training.dtype,
            utilisation=self.calibration.utilisation
            or default_utilisation(dnn, device.name, self.training.dtype, self.calibration),
            flop_per_multiply_add=self.calibration.flop_per_multiply_add,
            utilisation_by_kind=self.calibration.utilisation_by_kind,
            update_s=self._update_s(dnn, device),
        )

    def _by_rooflines(self, dnn: Dnn, device: Device) -> Profile:
        """Return the seconds that the family ``hybrid`` counts with, for a device's share of the batch at a time."""
        assert dnn.transformer is not None, "asked by has_rooflines"
        rates = transformer_rates()
        fitted = rates["devices"].get(device.name, rates["devices"][TYPICAL_DEVICE])
        microbatch, program = microbatch_of(dnn.transformer, self.batch_per_device), self.calibration.program
        self.reading.notes.assumptions.append(
            f"seconds of layers and shares of the links' bandwidth, for all families: as fitted to transformers; "
            f"families other than hybrid count with {microbatch} sample{'s' * (microbatch > 1)} at a time on a device, "
            f"pipelines with 2,048 tokens or one sample"
        )
        return transformer_profile(
            dnn,
            microbatch=microbatch,
            rates=device_rates(device, self.training.dtype, fitted),
            software=Software(name=program, **rates["software"][program]),
            constants=Constants(**rates["constants"]),
            update_s=self._update_s(dnn, device),
        )

    def _scaled(self, measured: Profile, measured_on: Device, device: Device) -> Profile:
        """Return measured seconds on another device, and say how, or that they are taken as they are."""
        scaled, note = scaled_to(measured, measured_on, device, dtype=self.training.dtype)
        notes = self.reading.notes
        if note:
            (notes.warnings if scaled is measured else notes.assumptions).append(note)
        return scaled

    def _update_s(self, dnn: Dnn, device: Device) -> float:
        """Return the optimiser's step: as calibrated, else the time to move its memory."""
        if self.calibration.update is not None:
            return self.calibration.update
        precision = Precision.of(self.training.dtype, self.training.optimizer)
        return optimizer_step_s(dnn.num_trainable, device, precision)

    def _profile_device(self, measured: Profile) -> Device:
        """Return the device on which the profile was measured: the one given, the only one, or the first that trains.

        It need not be in the cluster.
        """
        known = {group.device.name: group.device for group in self.cluster.machine_groups}
        first = self.cluster.training_groups()[0].device
        if (given := self.reading.spec.dnn.profile_device) is not None:
            found = known.get(given) or self.reading.notes.attempt(
                ("dnn", "profile_device"), lambda: data.device(given)
            )
            return found or first
        if measured.measured_on and not _is_named(measured.measured_on, first):
            self.reading.notes.warnings.append(
                f"the seconds were measured on {measured.measured_on}, as the trace says, and are taken for those of "
                f"{first.name}; measure there, or set dnn.profile_device to the device that was measured"
            )
        if len(known) > 1:
            self.reading.resolved["dnn"]["profile_device"] = first.name
            self.reading.notes.assumptions.append(
                f"the profile was measured on {first.name}; set dnn.profile_device if it was another device"
            )
        return first


def _is_named(measured_on: str, device: Device) -> bool:
    """Whether a profiler's name of a device, ``Tesla V100-SXM2-16GB``, may mean one of ours, ``v100-sxm2-16g``."""
    if measured_on == "a CPU":
        return device.kind == "cpu"
    parts = device.name.split("-")
    model = next((part for part in parts if any(map(str.isdigit, part))), device.name)
    return device.kind != "cpu" and fold(model) in fold(measured_on)
