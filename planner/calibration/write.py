"""``calibration.yaml``: what was fitted, as a ``calibration`` block that a spec names, with its error and intervals."""

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

import numpy as np

from planner.calibration.curves import Curve
from planner.calibration.fit import Interval, Score
from planner.calibration.fit_all import Fitted
from planner.calibration.fit_cluster import layout_of
from planner.calibration.fit_groups import Law
from planner.calibration.layer_times import FEWEST, Kind
from planner.cost import Affine, TransferCost
from planner.models.collectives import PiecewiseLogLinear
from planner.units import Dimension, format_exact, format_human

__all__ = ["block_of", "calibration_text", "counted", "ends", "known_errors", "shown", "unmeasured"]

_DIGITS = 6
_MOST_UNMEASURED = 64
_MOST_BYTES_PER_S = 1e15
_SIZES = tuple(4.0**power for power in range(4, 18))  # 256 B to 16 GiB, of curves made of a law


def calibration_text(fitted: Fitted, *, date: str = "", is_law_only: bool = False) -> str:
    """Return the file.

    Parameters
    ----------
    date
        Of the measurement, for its source; left out, equal data give equal bytes.
    is_law_only
        Whether to leave out the curves of single numbers of devices, so that the law counts for all.
    """
    head = _comments(fitted, is_law_only=is_law_only)
    block = block_of(fitted, date=date, is_law_only=is_law_only)
    return "".join(f"# {line}".rstrip() + "\n" for line in head) + _yaml(block)


def block_of(fitted: Fitted, *, date: str = "", is_law_only: bool = False) -> dict[str, Any]:
    """Return the ``calibration`` block as plain data."""
    block: dict[str, Any] = dict(fitted.kept)
    if fitted.utilisation is not None:
        block["utilisation"] = _rounded(fitted.utilisation.overall)
        block["utilisation_by_kind"] = {name: _rounded(value) for name, value in fitted.utilisation.by_kind.items()}
    if fitted.cluster_law is not None:
        block |= _parameters(fitted.cluster_law.parameters)
    if fitted.iterations is not None:
        block |= _parameters(fitted.iterations.parameters)
    if not is_law_only:
        block |= _curves(fitted)
    errors = known_errors(fitted, is_law_only=is_law_only)
    if errors:
        block["known_error"] = errors
    block["source"] = f"planner calibrate: {', '.join(fitted.files[:8])}" + (f"; {date}" if date else "")
    return block


def known_errors(fitted: Fitted, *, is_law_only: bool = False) -> list[dict[str, Any]]:
    """Return the cross-validated errors, as the key ``known_error`` has them."""
    rows = []
    curves, law = fitted.used_curves, fitted.cluster_law
    if curves and not is_law_only:
        scores = [curve.score for curve in curves]
        number = sum(score.num_left_out for score in scores)
        mean = sum(score.mean * score.num_left_out for score in scores) / number
        rows.append(_error("links", mean, max(score.worst for score in scores), f"{counted(number, 'size')} left out"))
    if law is not None and law.score is not None:
        of = "links" if is_law_only else "links not measured"
        rows.append(_error(of, law.score.mean, law.score.worst, "numbers of devices left out"))
    if fitted.utilisation is not None and (score := fitted.utilisation.score) is not None:
        rows.append(_error("layers", score.mean, score.worst, f"{counted(score.num_left_out, 'layer')} left out"))
    if fitted.iterations is not None and (score := fitted.iterations.score) is not None:
        rows.append(_error("iterations", score.mean, score.worst, f"{counted(score.num_left_out, 'row')} left out"))
    return rows


def _error(of: str, mean: float, worst: float, source: str) -> dict[str, Any]:
    """Return one known error."""
    return {"of": of, "mean": float(f"{mean:.3g}"), "worst": float(f"{worst:.3g}"), "source": source}


def _rounded(value: float) -> float:
    """Return a number to six digits."""
    return float(f"{value:.{_DIGITS}g}")


def _time(seconds: float) -> str:
    """Return seconds to six digits, with their sign, as microseconds throughout."""
    return f"{1e6 * seconds:.{_DIGITS}g} us"


def _size(size_bytes: float) -> str:
    """Return bytes, exactly."""
    return format_exact(size_bytes, Dimension.DATA)


def _parameters(values: Mapping[str, float]) -> dict[str, Any]:
    """Return fitted parameters as a block has them."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = name.removesuffix("_s")
        found[key] = _time(value) if key == "overhead" else _rounded(value)
    return found


# -- curves ----------------------------------------------------------------------------------------------------------


def unmeasured(fitted: Fitted) -> list[int]:
    """Return the numbers of devices of the question's cluster that get their figure from the law, 64 at most."""
    law, problem = fitted.cluster_law, fitted.problem
    if law is None or problem is None or not fitted.used_curves:
        return []
    measured = {curve.group.num_devices for curve in fitted.used_curves}
    inside = min(group.devices_per_machine for group in problem.cluster.machine_groups)
    whole = [*range(2, inside + 1), *(inside * number for number in range(2, problem.cluster.num_machines + 1))]
    left = [number for number in dict.fromkeys(whole) if number not in measured and layout_of(problem.cluster, number)]
    if len(left) > _MOST_UNMEASURED:  # powers of two, and those between them in even steps
        step = len(left) / _MOST_UNMEASURED
        kept = {left[int(step * index)] for index in range(_MOST_UNMEASURED // 2)}
        powers = {number for number in left if number & (number - 1) == 0}
        left = sorted({*sorted(kept)[: _MOST_UNMEASURED - len(powers)], *powers, left[-1]})
    return left


def _curves(fitted: Fitted) -> dict[str, Any]:
    """Return the keys ``piecewise`` and ``curves``."""
    costs: list[tuple[int, TransferCost, Sequence[float]]] = [
        (curve.group.num_devices, curve.cost, curve.group.size_bytes.tolist()) for curve in fitted.used_curves
    ]
    if fitted.cluster_law is not None:
        costs += [(number, fitted.cluster_law.cost_of(number), _SIZES) for number in unmeasured(fitted)]
    piecewise, curves = [], []
    for number, cost, sizes in sorted(costs, key=lambda one: one[0]):
        if isinstance(cost, Affine | PiecewiseLogLinear):
            piecewise.append(_formula(number, cost))
        else:
            seconds = np.asarray(cost(np.asarray(sizes)), dtype=float).tolist()
            points = [[_size(size), _time(time_s)] for size, time_s in zip(sizes, seconds, strict=True)]
            curves.append({"num_devices": number, "points": points})
    return {key: rows for key, rows in (("piecewise", piecewise), ("curves", curves)) if rows}


def _formula(number: int, cost: Affine | PiecewiseLogLinear) -> dict[str, Any]:
    """Return a row of ``piecewise``; a straight line is one whose threshold is 0."""
    if isinstance(cost, Affine):
        cost = PiecewiseLogLinear(
            log_slope_s=0.0, log_offset_s=0.0, per_byte_s=cost.per_byte_s, offset_s=cost.startup_s, threshold_bytes=0.0
        )
    rate = min(1 / cost.per_byte_s if cost.per_byte_s else np.inf, _MOST_BYTES_PER_S)
    return {
        "num_devices": number,
        "log_slope": _time(cost.log_slope_s),
        "log_offset": _time(cost.log_offset_s),
        "bandwidth": format_exact(_rounded(rate), Dimension.RATE),
        "offset": _time(cost.offset_s),
        "threshold": _size(cost.threshold_bytes),
    }


# -- text ------------------------------------------------------------------------------------------------------------


def _yaml(block: Mapping[str, Any]) -> str:
    """Return plain data as YAML: keys of the block a line each, what is inside them on lines of their own."""
    from ruamel.yaml import YAML  # noqa: PLC0415  # late: `planner --help` has no use for it

    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = None
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.width = 120
    out = StringIO()
    writer.dump(dict(block), out)
    return out.getvalue()


def _comments(fitted: Fitted, *, is_law_only: bool) -> list[str]:
    """Return what stands above the block: where it is from, how it was chosen, how far off and how sure it is."""
    lines = [
        "Written by planner calibrate. Name this file in a spec: calibration: calibration.yaml",
        "Errors are predicted / measured - 1, absolute, of what was left out of the fit; intervals are 95 %.",
    ]
    for curve in () if is_law_only else fitted.used_curves:
        lines += ["", *_curve_lines(curve)]
    if others := [curve.group.name for curve in fitted.curves if curve not in fitted.used_curves]:
        lines += ["", f"Fitted, and not in this file, since a plan has no use for it: {', '.join(others)}."]
    if fitted.cluster_law is not None:
        lines += ["", *_law_lines(fitted.cluster_law)]
        if numbers := [] if is_law_only else unmeasured(fitted):
            lines.append(f"  gives the figures of {', '.join(map(str, numbers))} devices, which were not measured")
    elif fitted.law is not None:
        lines += ["", *_law_lines(fitted.law), "  not in this file: it needs a cluster (--spec)"]
    lines += _utilisation_lines(fitted) + _iteration_lines(fitted)
    if fitted.kept:
        lines += ["", f"As the spec has them: {', '.join(fitted.kept)}."]
    return lines


def _curve_lines(curve: Curve) -> list[str]:
    """Return the comments of a curve."""
    group, sizes = curve.group, curve.group.size_bytes
    span = " to ".join(format_human(float(one), Dimension.DATA) for one in (sizes[0], sizes[-1]))
    lines = [f"{group.name}: {counted(len(sizes), 'size')}, {span}, from {', '.join(group.files[:4])}"]
    lines.append(f"  form {curve.form}; {', '.join(f'{form} {_score(score)}' for form, score in curve.scores.items())}")
    lines += _interval_lines(curve.parameters, curve.intervals)
    return lines + [f"  {note}" for note in curve.notes]


def _law_lines(law: Law) -> list[str]:
    """Return the comments of a law."""
    lines = [f"Law for any number of devices: {law.name}"]
    if law.score is not None:
        lines.append(f"  numbers of devices left out: {_score(law.score)}")
    return [*lines, *_interval_lines(law.parameters, law.intervals), *(f"  {note}" for note in law.notes)]


def _utilisation_lines(fitted: Fitted) -> list[str]:
    """Return the comments of a utilisation."""
    found = fitted.utilisation
    if found is None:
        return []
    low, high = found.interval
    lines = [
        "",
        f"Utilisation of {found.device} in {found.dtype}, from {found.file}, batch {found.batch_size:g}: "
        f"{found.overall:.4g} ({low:.4g} to {high:.4g})",
    ]
    for kind in found.kinds:
        lines.append(
            f"  {kind.name}: {kind.utilisation:.4g} ({ends(kind)}), {counted(kind.num_layers, 'layer')}, "
            f"{kind.share:.1%} of the time"
        )
    if found.score is not None:
        lines.append(f"  layers left out: {_score(found.score)}")
    return lines + [f"  {note}" for note in found.notes]


def _iteration_lines(fitted: Fitted) -> list[str]:
    """Return the comments of parameters fitted to iterations."""
    found = fitted.iterations
    if found is None:
        return []
    lines = ["", f"Parameters of {found.family}, fitted to {len(found.rows)} iterations"]
    lines += _interval_lines(found.parameters, found.intervals)
    lines += [f"  {name}: left at its default, since {why}" for name, why in found.undetermined.items()]
    if found.score is not None:
        lines.append(f"  rows left out: {_score(found.score)}; with the defaults {_score(found.default_score)}")
    return lines + [f"  {note}" for note in found.notes]


def _interval_lines(values: Mapping[str, float], intervals: Mapping[str, Interval]) -> list[str]:
    """Return parameters with their intervals, in units for reading."""
    return [
        f"  {name}: {shown(name, value)} ({' to '.join(shown(name, end) for end in intervals[name])})"
        for name, value in values.items()
    ]


def ends(kind: Kind) -> str:
    """Return the interval of a kind of layer; of a single layer there is none."""
    low, high = kind.interval
    if kind.num_layers < FEWEST:
        return f"{'one layer' if kind.num_layers == 1 else 'two layers'}: no interval"
    return f"{low:.3g} to {high:.3g}"


def counted(number: int, noun: str) -> str:
    """Return ``1 size``, ``2 sizes``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def shown(name: str, value: float) -> str:
    """Return a parameter for reading, by the unit at the end of its name."""
    for suffix, dimension in (
        ("_bytes_per_s", Dimension.RATE),
        ("per_byte_s", None),
        ("_bytes", Dimension.DATA),
        ("_s", Dimension.TIME),
        ("overhead", Dimension.TIME),
    ):
        if name.endswith(suffix):
            if dimension is None:
                return f"{value * 1e9:.4g} s/GB"
            return ("-" if value < 0 else "") + format_human(abs(value), dimension)
    return f"{value:.4g}"


def _score(score: Score) -> str:
    """Return ``mean 1.6 %, worst 46 %``."""
    return f"mean {score.mean:.1%}, worst {score.worst:.1%}"
