"""Seconds of every layer on every device: by FLOP, or scaled from the device on which they were measured."""

from dataclasses import dataclass, replace

from planner import data
from planner.cluster import Cluster, Device
from planner.cost import Profile
from planner.dnn import Dnn
from planner.importers.measured import scaled_to
from planner.models.compute import optimizer_step_s, profile_from_flop
from planner.models.memory import Precision
from planner.problem import Training
from planner.spec import CalibrationSpec
from planner.spec_calibration import UTILISATION
from planner.spec_reading import Reading

__all__ = ["Profiler"]


@dataclass(frozen=True, slots=True)
class Profiler:
    """Profiles networks on the devices of one cluster."""

    reading: Reading
    cluster: Cluster
    calibration: CalibrationSpec
    training: Training

    def profiles(self, dnn: Dnn, measured: Profile | None) -> dict[str, Profile]:
        """Return the seconds of every layer on every device of the cluster."""
        groups = self.cluster.machine_groups
        if measured is None:
            return {group.device.name: self._by_flop(dnn, group.device) for group in groups}
        measured_on = self._profile_device()
        return {
            group.device.name: replace(
                self._scaled(measured, measured_on, group.device), update_s=self._update_s(dnn, group.device)
            )
            for group in groups
        }

    def _by_flop(self, dnn: Dnn, device: Device) -> Profile:
        """Return the seconds of a device that was not measured."""
        return profile_from_flop(
            dnn,
            device,
            dtype=self.training.dtype,
            utilisation=self.calibration.utilisation or UTILISATION,
            flop_per_multiply_add=self.calibration.flop_per_multiply_add,
            utilisation_by_kind=self.calibration.utilisation_by_kind,
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

    def _profile_device(self) -> Device:
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
        if len(known) > 1:
            self.reading.resolved["dnn"]["profile_device"] = first.name
            self.reading.notes.assumptions.append(
                f"the profile was measured on {first.name}; set dnn.profile_device if it was another device"
            )
        return first
