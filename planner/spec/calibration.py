"""The ``calibration`` block of a spec, or the file that it names, made into a :class:`planner.problem.Calibration`."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.cost import Affine, TransferCost, Wait
from planner.data.transformer_rates import transformer_rates
from planner.errors import Fault, SpecError
from planner.importers.text import read_cells
from planner.models.collectives import MeasuredCurve, PiecewiseLogLinear
from planner.problem import Calibration
from planner.spec.calibration_block import MOST_POINTS, CalibrationSpec, CurveSpec
from planner.spec.source import Source, faults_of, nearest, read_source
from planner.units import Dimension, format_exact, parse

__all__ = [
    "TRANSFORMER_RESERVE_BYTES",
    "TRANSFORMER_RESERVE_SHARE",
    "UTILISATION",
    "calibration_of",
    "read_calibration",
]

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
