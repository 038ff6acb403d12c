"""All that can be fitted to some files, for one question: curves, laws, utilisation, parameters of a family."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner import api, data
from planner.calibration.curves import LEAST_SIZES, Curve, fit_curve, too_few
from planner.calibration.fit_cluster import Links, fit_cluster_law
from planner.calibration.fit_groups import Law, fit_free_law
from planner.calibration.iterations import Iterations, fit_iterations
from planner.calibration.layer_times import Utilisation, fit_utilisation
from planner.calibration.read_collectives import Group, Timing, grouped
from planner.calibration.read_files import Measurements
from planner.calibration.read_layers import LayerTimes, layers_of_profile, read_layer_table
from planner.calibration.read_table import fault
from planner.cluster import Device
from planner.errors import Fault, ModelError, SpecError
from planner.letters import visible
from planner.models.memory import Precision
from planner.problem import Problem
from planner.spec.foreign import read_profile
from planner.units import Dimension, format_human

__all__ = ["Asked", "Fitted", "fit_all"]

USED = "all_reduce"  # the collective that a plan's curves are of


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user says beside the data: the question, the device and type of a profile, its batch."""

    spec: Path | None = None
    form: str | None = None
    device: str | None = None
    dtype: str | None = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What was fitted.

    Attributes
    ----------
    curves
        One for every collective and number of devices.
    law, cluster_law
        Of all-reduces on any number of devices, without and with the question's cluster.
    kept
        Keys of the question's own calibration block that no fit replaces.
    files
        Names of all files that were read.
    """

    curves: tuple[Curve, ...] = ()
    law: Law | None = None
    cluster_law: Law | None = None
    utilisation: Utilisation | None = None
    iterations: Iterations | None = None
    problem: Problem | None = None
    kept: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def used_curves(self) -> tuple[Curve, ...]:
        """Those of all-reduces, which a plan uses."""
        return tuple(curve for curve in self.curves if curve.group.collective == USED)


def fit_all(found: Measurements, asked: Asked) -> Fitted:
    """Return all fits that the measurements allow.

    Raises
    ------
    SpecError
        If a table is too short, a profile lacks its network, its device or its batch, rows lack their question, or
        nothing was measured.
    """
    problem = None if asked.spec is None else api.load(asked.spec)
    curves = _curves(found.timings, asked.form)
    used = [curve.group for curve in curves if curve.group.collective == USED]
    iterations = None
    if found.iterations:
        if problem is None:
            mend = "Add --spec SPEC: the question that the rows change."
            first = found.iterations[0]
            raise SpecError.of([fault(Path(first.file), first.line, "these iterations have no question.", mend)])
        iterations = fit_iterations(found.iterations, problem.resolved)
    result = Fitted(
        curves=curves,
        law=fit_free_law(used),
        cluster_law=None if problem is None or not used else _cluster_law(problem, used),
        utilisation=_utilisation(found, asked, problem),
        iterations=iterations,
        problem=problem,
        files=_files(found),
        notes=(*found.notes, *_beyond(problem, used)),
    )
    return _with_kept(result)


def _beyond(problem: Problem | None, groups: Sequence[Group]) -> list[str]:
    """Say where the question's gradients are larger than anything that was timed."""
    if problem is None or not groups:
        return []
    precision = Precision.of(problem.training.dtype, problem.training.optimizer)
    total = float(problem.dnn.num_trainable * precision.gradient_bytes)
    largest = min(float(group.size_bytes[-1]) for group in groups)
    if total <= largest:
        return []
    sizes = [format_human(one, Dimension.DATA) for one in (total, largest)]
    return [
        f"the gradients of {problem.dnn.name} come to {sizes[0]}, and sizes up to {sizes[1]} were timed: what is "
        f"larger is extrapolated; time larger ones, too"
    ]


def _files(found: Measurements) -> tuple[str, ...]:
    """Return the names of all files, in order."""
    return tuple(dict.fromkeys(visible(path.name) for path in found.files))


def _with_kept(fitted: Fitted) -> Fitted:
    """Return the fits with those keys of the question's calibration that stay as they are."""
    block = {} if fitted.problem is None else dict(fitted.problem.resolved.get("calibration") or {})
    gone = {"source", "known_error"}
    if fitted.used_curves:
        gone |= {"curves", "piecewise"}
    if fitted.utilisation is not None:
        gone |= {"utilisation", "utilisation_by_kind", "flop_per_multiply_add"}
    if fitted.cluster_law is not None:
        gone |= {"overhead", "bandwidth_efficiency", "inside_efficiency"} & {
            name.removesuffix("_s") for name in fitted.cluster_law.parameters
        }
    if fitted.iterations is not None:
        gone |= fitted.iterations.parameters.keys()
    return replace(fitted, kept={key: value for key, value in block.items() if key not in gone})


def _curves(timings: Sequence[Timing], form: str | None) -> tuple[Curve, ...]:
    """Return a fit of every group; refuse those that are too short."""
    groups = grouped(timings)
    least = LEAST_SIZES[form] if form else min(LEAST_SIZES.values())
    faults: list[Fault] = []
    for group in groups:
        if len(group.size_bytes) < least:
            first = next(
                one for one in timings if (one.collective, one.num_devices) == (group.collective, group.num_devices)
            )
            problem, _, mend = too_few(group, form).partition(". ")
            faults.append(fault(Path(first.file), first.line, f"{problem}.", mend))
    if faults:
        raise SpecError.of(faults)
    return tuple(fit_curve(group, form=form) for group in groups)


def _cluster_law(problem: Problem, groups: Sequence[Group]) -> Law | None:
    """Return the law of the question's cluster; gradients are added up as fast as in the family ``all_reduce``."""
    device = problem.cluster.training_groups()[0].device
    precision = Precision.of(problem.training.dtype, problem.training.optimizer)
    peak = device.peak_flop_per_s.get("fp32") if problem.calibration.aggregation else None
    links = Links(
        cluster=problem.cluster,
        algorithms=problem.calibration.algorithms,
        reduce_bytes_per_s=float("inf") if peak is None else peak * precision.gradient_bytes,
    )
    return fit_cluster_law(groups, links)


# -- layers ----------------------------------------------------------------------------------------------------------


def _utilisation(found: Measurements, asked: Asked, problem: Problem | None) -> Utilisation | None:
    """Return what a profile says of its device; None where there is no profile."""
    paths = [*found.layer_tables, *found.profiles]
    if not paths:
        return None
    if len(paths) > 1:
        names = ", ".join(visible(path.name) for path in paths[:6])
        problem_text = f"{len(paths)} profiles of layers: {names}."
        mend = "Give one at a time: a calibration holds one utilisation."
        raise SpecError.of([fault(paths[1], None, problem_text, mend)])
    path = paths[0]
    device = _device(path, asked, problem)
    dtype = asked.dtype or (problem.training.dtype if problem is not None else "fp32")
    times = read_layer_table(path) if path in found.layer_tables else _profile(path, asked, problem)
    try:
        return fit_utilisation(times, device, dtype=dtype)
    except ModelError as error:
        problem_text, _, mend = str(error).partition(". ")
        raise SpecError.of([fault(path, None, f"{problem_text}.", mend)]) from None


def _profile(path: Path, asked: Asked, problem: Problem | None) -> LayerTimes:
    """Return a profile's seconds, with the multiply-adds of the question's network, or its own where it has some."""
    batch = asked.batch_size or (None if problem is None else problem.training.batch_per_device)
    if batch is None:
        raise SpecError.of([fault(path, None, "the batch of the profile is missing.", "Add --batch N.")])
    measured = read_profile(path, batch_size=batch)
    networks = [*([problem.dnn] if problem is not None else []), measured.dnn]
    network = next((one for one in networks if one.num_multiply_adds), None)
    if network is None:
        what = "this profile has no multiply-adds" if problem is None else "the spec's network has no multiply-adds"
        mend = "Add --spec with the network, e.g. dnn: {zoo: resnet50}; or write the table of --template layers."
        raise SpecError.of([fault(path, None, f"{what}.", mend)])
    return layers_of_profile(path, measured, network, batch_size=batch)


def _device(path: Path, asked: Asked, problem: Problem | None) -> Device:
    """Return the device that was profiled."""
    if asked.device is not None:
        groups = () if problem is None else problem.cluster.machine_groups
        own = next((group.device for group in groups if group.device.name == asked.device), None)
        return own or data.device(asked.device)
    devices = {} if problem is None else {one.device.name: one.device for one in problem.cluster.training_groups()}
    if len(devices) != 1:
        what = f"which of {', '.join(devices)} was profiled" if devices else "the device that was profiled"
        raise SpecError.of([fault(path, None, f"it is not known {what}.", "Add --device NAME (planner show devices).")])
    return next(iter(devices.values()))
