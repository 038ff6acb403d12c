"""What makes the figures of a question doubtful, said as warnings."""

from collections.abc import Collection

from planner.cluster import Cluster, Device
from planner.cost import Profile
from planner.dnn import Dnn
from planner.spec import CalibrationSpec
from planner.spec_calibration import UTILISATION
from planner.spec_source import Notes

__all__ = ["is_fitted", "note_doubts"]


def note_doubts(
    notes: Notes,
    dnn: Dnn,
    cluster: Cluster,
    calibration: CalibrationSpec,
    measured: Profile | None,
    *,
    has_fitted_rates: bool,
) -> None:
    """Warn of whatever makes the figures doubtful; ``has_fitted_rates``: only a family that has its own is asked."""
    devices = {group.device.name: group.device for group in cluster.machine_groups}.values()
    _note_unverified(notes, devices)
    if not has_fitted_rates:
        _note_utilisation(notes, calibration, is_measured=measured is not None)
        _note_links(notes, cluster, calibration)
    _note_shares(notes, dnn, calibration)
    _note_memory(notes, devices)


def is_fitted(calibration: CalibrationSpec) -> bool:
    """Whether anything about the links was measured."""
    return bool(calibration.bandwidth_efficiency or calibration.curves or calibration.piecewise)


def _note_unverified(notes: Notes, devices: Collection[Device]) -> None:
    """Warn of devices whose figures nobody checked."""
    for device in devices:
        if not device.is_verified:
            notes.warnings.append(f"the figures of {device.name} are unverified ({device.source})")


def _note_utilisation(notes: Notes, calibration: CalibrationSpec, *, is_measured: bool) -> None:
    """Warn of a utilisation that is assumed, or more than a device has."""
    used = calibration.utilisation
    if not is_measured and used is None:
        notes.assumptions.append(f"utilisation of the devices: {UTILISATION}")
        notes.warnings.append("the devices are uncalibrated: give calibration.utilisation, or a measured profile")
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


def _note_memory(notes: Notes, devices: Collection[Device]) -> None:
    """Warn of devices that are taken to have memory without end."""
    for device in devices:
        if device.memory_bytes == float("inf"):
            notes.warnings.append(f"the memory of {device.name} is not known: nothing is checked against it")


def _note_links(notes: Notes, cluster: Cluster, calibration: CalibrationSpec) -> None:
    """Warn of networks and links that are not taken as they are."""
    graph = cluster.graph
    if graph.number_of_edges() >= graph.number_of_nodes():
        notes.warnings.append("the network has cycles: rings are laid on its widest spanning tree, other links idle")
    if cluster.num_devices > 1 and not is_fitted(calibration):
        notes.warnings.append("the links are uncalibrated: their nominal bandwidth is taken to be reached")
