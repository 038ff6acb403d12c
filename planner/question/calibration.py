"""The ``calibration`` block of a spec, or the file that it names, made into a :class:`planner.problem.Calibration`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner import data
from planner.cluster import Cluster, Device
from planner.cost import Affine, Profile, TransferCost, Wait
from planner.data.fits import TYPICAL_DEVICE, cnn_utilisation, transformer_rates
from planner.dnn import Dnn
from planner.errors import Fault, SpecError
from planner.importers.text import read_cells
from planner.models.communication import MeasuredCurve, PiecewiseLogLinear, is_narrowed
from planner.models.compute import Constants, Software, optimizer_step_s, profile_from_flop, scaled_to
from planner.models.memory import Precision
from planner.models.transformer_time import device_rates, microbatch_of, transformer_profile
from planner.names import fold
from planner.problem import Assumption, Calibration, Limits, Training
from planner.question.blocks import MOST_POINTS, CalibrationSpec, CurveSpec
from planner.question.source import Notes, Source, faults_of, nearest, read_source
from planner.question.spec import Reading
from planner.units import Dimension, format_exact, parse

UTILISATION = 0.5  # of a device's peak, where nothing was measured
# Of each device, under the hybrid family, where nothing is given. What the driver keeps: 0.75 GiB (PyTorch finds 79.25
# of 80 GiB on an A100, as its messages of lack of memory say). Context and PyTorch's kernels: 1.31 GiB (Hugging Face,
# "Model training anatomy"). NCCL: four communicators of 16 channels, 4 MiB (its NCCL_BUFFSIZE) to send and to receive:
# 0.5 GiB, reckoned. The rest, 0.44 GiB, for pieces of free memory: assumed. Of small devices no more than a twentieth,
# assumed, so that they can be asked about at all.
TRANSFORMER_RESERVE_BYTES = 3.0 * 2**30
TRANSFORMER_RESERVE_SHARE = 0.05


def read_calibration(given: str | CalibrationSpec, source: Source, resolved: dict[str, Any]) -> CalibrationSpec:
    """Return the calibration block, read from its file where the spec names one; put it into the resolved spec."""
    if isinstance(given, CalibrationSpec):
        block, folder, found = source.data.get("calibration", {}), source.folder, given
        _check_program(found.program, source, ("calibration", "program"))
    else:
        own = read_source(source.folder / given)
        block, folder = _of_measurement(own), own.folder
        try:
            found = CalibrationSpec.model_validate(block)
        except ValidationError as error:
            raise SpecError.of(faults_of(error, own, CalibrationSpec)) from None
        _check_program(found.program, own, ("program",))
    curves = [_curve_with_points(curve, folder) for curve in found.curves]
    if block:
        resolved["calibration"] = dict(block)
    if curves:
        resolved["calibration"]["curves"] = [
            {
                "num_devices": curve.num_devices,
                "points": [
                    [format_exact(size, Dimension.DATA), format_exact(seconds, Dimension.TIME)]
                    for size, seconds in curve.points or []
                ],
            }
            for curve in curves
        ]
    return found.model_copy(update={"curves": curves})


def _of_measurement(own: Source) -> dict[str, Any]:
    """Return a file's block; what `planner calibrate --measure --json` wrote is translated into the block's keys."""
    data: dict[str, Any] = own.data
    if data.get("schema") != "planner.calibration/1":
        return data
    try:
        return _translated(data)
    except (KeyError, TypeError):
        problem = "this is no whole measurement: multiply_add or interference lacks rows, or figures of a row."
        mend = "Measure again: planner calibrate --measure --json."
        raise SpecError.of([own.fault(("schema",), problem, mend)]) from None


def _translated(data: dict[str, Any]) -> dict[str, Any]:
    """Return a measurement as a block of a spec has it; KeyError or TypeError where it is not whole."""
    return {
        "cores": data.get("num_cores"),
        "activation": f"{data.get('activation_s')!r} s",
        "error": f"{data.get('error_s')!r} s",
        "multiply_add": [[f"{one['working_set_bytes']!r} B", f"{one['seconds']!r} s"] for one in data["multiply_add"]],
        "interference": [[one["num_threads"], one["factor"]] for one in data["interference"]],
        "source": "planner calibrate --measure",
    }


def calibration_of(spec: CalibrationSpec) -> Calibration:
    """Return the fitted parameters."""
    curves: dict[int, TransferCost] = {}
    for given in spec.piecewise:
        if given.threshold == 0 and given.offset >= 0:  # a straight line, for which solvers are faster
            curves[given.num_devices] = Affine(startup_s=given.offset, per_byte_s=1 / given.bandwidth)
            continue
        curves[given.num_devices] = PiecewiseLogLinear(
            log_slope_s=given.log_slope,
            log_offset_s=given.log_offset,
            per_byte_s=1 / given.bandwidth,
            offset_s=given.offset,
            threshold_bytes=given.threshold,
        )
    for curve in spec.curves:
        if curve.num_devices in curves:
            raise ValueError(f"there are two curves for {curve.num_devices} devices; keep one")
        sizes, seconds = zip(*(curve.points or []), strict=True)
        curves[curve.num_devices] = MeasuredCurve(size_bytes=sizes, seconds=seconds)
    return Calibration(
        bandwidth_efficiency=spec.bandwidth_efficiency or 1.0,
        inside_efficiency=spec.inside_efficiency or spec.bandwidth_efficiency or 1.0,
        overhead_s=spec.overhead,
        negotiate_s=spec.negotiate,
        algorithms=tuple(dict.fromkeys(spec.algorithms)),
        all_reduce_curves=curves,
        aggregation=spec.aggregation,
        wait=Wait(spec.wait),
        timeout_s=float("inf") if spec.timeout is None else spec.timeout,
        fusion_unit=spec.fusion_unit,
        split_tensors=spec.split_tensors,
        strategy=spec.strategy,
        is_prefetch_pipelined=spec.prefetch == "pipelined",
        memory_reserve_bytes=spec.memory_reserve,
        **_transformer_reserve(spec),
        program=spec.program,
        expert_imbalance=spec.expert_imbalance,
        straggler_deviation_s=spec.straggler_deviation,
        queue=None if spec.queue is None else spec.queue.build(),
        utilisation=spec.utilisation or UTILISATION,
        num_cores=spec.cores,
        activation_s=spec.activation,
        error_s=spec.error,
        multiply_add_s=tuple(spec.multiply_add),
        interference=tuple(spec.interference),
    )


def _transformer_reserve(spec: CalibrationSpec) -> dict[str, float]:
    """Return the reserve that is given, even if it is 0, for any device; else a typical one, and a share of memory."""
    if "memory_reserve" in spec.model_fields_set:
        return {"transformer_reserve_bytes": spec.memory_reserve}
    return {
        "transformer_reserve_bytes": TRANSFORMER_RESERVE_BYTES,
        "transformer_reserve_share": TRANSFORMER_RESERVE_SHARE,
    }


def _check_program(name: str, source: Source, path: tuple[str, ...]) -> None:
    """Refuse a program of which nothing is known."""
    if name == CalibrationSpec.model_fields["program"].default:  # known; and the table takes long to read
        return
    known = transformer_rates()["software"]
    if name not in known:
        raise SpecError.of([source.fault(path, f"{name!r} is not a known program.", nearest(name, known), name)])


def _curve_with_points(curve: CurveSpec, folder: Path) -> CurveSpec:
    """Return the curve with its points, read from its file where it names one, sorted by size."""
    if curve.file is None:
        points = sorted(curve.points or [])
    else:
        path = folder / curve.file
        faults, points = [], []
        for number, row in read_cells(path, most_rows=MOST_POINTS):
            if row[0].strip() == "size_bytes":
                continue
            try:
                size, seconds = (float(cell) for cell in row)
                points.append((parse(f"{size!r} B", Dimension.DATA), parse(f"{seconds!r} s", Dimension.TIME)))
            except ValueError:
                mend = "Write size_bytes,seconds, e.g. 4096,0.00012."
                faults.append(Fault(file=str(path), line=number, problem=f"{','.join(row)!r} is no point.", mend=mend))
        if faults:
            raise SpecError.of(faults)
        points.sort()
    return curve.model_copy(update={"points": points})


# --- The share of a device's peak that a network reaches, where a spec does not say: as fitted, or assumed

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


# --- What makes the figures of a question doubtful, said as warnings

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


# --- Seconds of every layer on every device: by FLOP, or scaled from the device on which they were measured

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
