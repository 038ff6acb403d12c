"""What makes the figures of a question doubtful, said as warnings."""

from collections.abc import Collection, Mapping
from typing import Any

from planner.cluster import Cluster, Device
from planner.cost import Profile
from planner.data.transformer_rates import transformer_rates
from planner.dnn import Dnn
from planner.models.tiers import is_narrowed
from planner.problem import Assumption, Limits, Training
from planner.spec.calibration_block import CalibrationSpec
from planner.spec.source import Notes
from planner.spec.utilisation import note_default_utilisation

__all__ = ["is_fitted", "note_doubts", "note_narrowed", "note_program", "samples_per_device"]

# Of what was assumed, another value whose effect is told: a program that is used as often, links as often measured.
_OTHER_PROGRAM = "torchtitan"
_OTHER_LINKS = 0.7


def note_doubts(
    notes: Notes,
    dnn: Dnn,
    cluster: Cluster,
    calibration: CalibrationSpec,
    measured: Profile | None,
    training: Training,
    *,
    batch_per_device: int,
    is_by_rooflines: bool,
    is_hybrid_alone: bool,
) -> None:
    """Warn of whatever makes the figures doubtful.

    ``is_by_rooflines``: seconds of layers, and shares of links, are those that were fitted to transformers.
    ``is_hybrid_alone``: only the family that has its own of both is asked.
    """
    devices = {group.device.name: group.device for group in cluster.machine_groups}.values()
    _note_unverified(notes, devices)
    if is_by_rooflines and not is_hybrid_alone:
        _note_rooflines(notes, devices)
    elif not is_hybrid_alone:
        if measured is None and calibration.utilisation is None:
            note_default_utilisation(
                notes, dnn, devices, calibration, dtype=training.dtype, batch_per_device=batch_per_device
            )
        _note_utilisation(notes, dnn, calibration)
        _note_links(notes, cluster, calibration)
    _note_shares(notes, dnn, calibration)
    _note_known_error(notes, calibration)
    _note_memory(notes, devices)


def note_narrowed(notes: Notes, cluster: Cluster) -> None:
    """Say first of all that layouts of transformers see a network narrower than some of its links."""
    if is_narrowed(cluster):
        text = (
            "hybrid counts the network between machines as one tier, as wide as its narrowest place: it is neither one "
            "switch nor equal leaf switches under one spine, and machines that are closer to each other gain nothing"
        )
        field = ("cluster", "links" if "nodes" in notes.source.data["cluster"] else "machines")
        notes.key_assumptions.insert(0, Assumption(text=text, field=field, flag=".".join(field)))
        notes.assumptions.insert(0, text)
        notes.warnings.append(text)


def samples_per_device(training: Training, cluster: Cluster, limits: Limits, fixed: Mapping[str, Any]) -> int:
    """Return the samples of a step on one device, where all that may be used share the batch; at least 1."""
    whole = training.fixed_batch_size or training.max_global_batch_size or 1
    most = limits.devices.pinned(fixed.get("num_devices")).most
    used = cluster.num_devices if most is None else min(most, cluster.num_devices)
    return training.batch_per_device or max(1, whole // max(1, used))


def note_program(notes: Notes, calibration: CalibrationSpec) -> None:
    """Say which program the figures of a transformer are those of; another than the default may lack layouts."""
    program = calibration.program
    if "program" not in calibration.model_fields_set:
        notes.key_assumptions.append(
            Assumption(
                text=f"program: {program} trains",
                field=("calibration", "program"),
                flag="calibration.program",
                other=_OTHER_PROGRAM,
            )
        )
        return
    words = (
        ""
        if program == CalibrationSpec.model_fields["program"].default
        else ("; layouts are those of Megatron-Core, and what it lacks is to be pinned or excluded")
    )
    notes.assumptions.append(f"the program that trains: {program} (calibration.program){words}")


def is_fitted(calibration: CalibrationSpec) -> bool:
    """Whether anything about the links was measured."""
    return bool(calibration.bandwidth_efficiency or calibration.curves or calibration.piecewise)


def _note_unverified(notes: Notes, devices: Collection[Device]) -> None:
    """Warn of devices whose figures nobody checked."""
    for device in devices:
        if not device.is_verified:
            notes.warnings.append(f"the figures of {device.name} are unverified ({device.source})")


def _note_rooflines(notes: Notes, devices: Collection[Device]) -> None:
    """Warn of devices with another one's shares."""
    fitted = transformer_rates()["devices"]
    for device in devices:
        if device.name not in fitted:
            notes.warnings.append(
                f"{device.name} is uncalibrated for transformers: the fitted efficiencies are those of another device"
            )


def _note_utilisation(notes: Notes, dnn: Dnn, calibration: CalibrationSpec) -> None:
    """Warn of a utilisation that is more than a device has, or does not count for all families."""
    used = calibration.utilisation
    if dnn.transformer is not None:
        notes.warnings.append(
            "the family hybrid counts with rooflines fitted to transformers, the others with the seconds or the "
            "utilisation that were given: where these disagree, families are not compared alike"
        )
    if used is not None and used > 1:
        notes.warnings.append(
            f"a utilisation of {used:.4g} is above 1: right only for counts of multiply-adds, or algorithms "
            f"that save FLOP"
        )


def _note_shares(notes: Notes, dnn: Dnn, calibration: CalibrationSpec) -> None:
    """Refuse the utilisation of a kind of layer that is not there; warn of shares above 1."""
    by_kind = calibration.utilisation_by_kind
    for kind in by_kind:
        if kind not in {layer.kind for layer in dnn.layers}:
            known = ", ".join(sorted({layer.kind for layer in dnn.layers if layer.num_multiply_adds}))
            notes.fault(
                ("calibration", "utilisation_by_kind", kind),
                f"{dnn.name} has no layer of this kind.",
                f"Known: {known}.",
            )
    for name, share in {"bandwidth_efficiency": calibration.bandwidth_efficiency or 0, **by_kind}.items():
        if share > 1:
            notes.warnings.append(f"calibration: {name} {share:.4g} is above 1")


def _note_known_error(notes: Notes, calibration: CalibrationSpec) -> None:
    """Say how far the calibration was off what it was not fitted to."""
    for one in calibration.known_error:
        where = f", of {one.source}" if one.source else ""
        notes.assumptions.append(
            f"known error of {one.of}, as calibrated: {one.mean:.1%} in the mean, {one.worst:.1%} at worst{where}"
        )


def _note_memory(notes: Notes, devices: Collection[Device]) -> None:
    """Warn of devices that are taken to have memory without end."""
    for device in devices:
        if device.memory_bytes == float("inf"):
            notes.warnings.append(f"the memory of {device.name} is not known: nothing is checked against it")


def _note_links(notes: Notes, cluster: Cluster, calibration: CalibrationSpec) -> None:
    """Warn of links that are taken to reach their nominal rate."""
    if cluster.num_devices > 1 and not is_fitted(calibration):
        notes.warnings.append("the links are uncalibrated: their nominal bandwidth is taken to be reached")
        notes.key_assumptions.append(
            Assumption(
                text="efficiency: links reach 100 % of their nominal bandwidth",
                field=("calibration", "bandwidth_efficiency"),
                flag="calibration.bandwidth_efficiency",
                other=_OTHER_LINKS,
            )
        )
