"""What was fitted, as text for a terminal and as a document (``planner.fit/1``)."""

from collections.abc import Mapping
from typing import Any

from planner.calibration.curves import Curve
from planner.calibration.fit import Interval, Score
from planner.calibration.fit_all import Fitted
from planner.calibration.fit_groups import Law
from planner.calibration.iterations import Iterations
from planner.calibration.layer_times import Utilisation
from planner.calibration.plot import residuals_of, text_plot
from planner.calibration.write import block_of, ends, shown, unmeasured
from planner.report import table
from planner.units import Dimension, format_human

__all__ = ["document", "text"]

_MOST_PLOTS = 6
_MOST_ROWS = 40


def text(fitted: Fitted, *, is_law_only: bool = False) -> str:
    """Return the fits for reading: what was chosen, how far it is off, how sure it is, and the residuals."""
    parts = [f"Note: {note}." for note in fitted.notes]
    parts += [_curves_text(fitted)] if fitted.curves else []
    for law in (fitted.law, fitted.cluster_law):
        parts += [] if law is None else [_law_text(law)]
    if numbers := [] if is_law_only else unmeasured(fitted):
        parts.append(f"The law gives the figures of {', '.join(map(str, numbers))} devices, which were not measured.")
    if fitted.used_curves and fitted.cluster_law is None:
        numbers_text = ", ".join(str(curve.group.num_devices) for curve in fitted.used_curves)
        parts.append(
            f"With this calibration the family all_reduce answers for {numbers_text} devices alone; add --spec SPEC, "
            f"and the law gives the figures of the other numbers of devices of its cluster."
        )
    parts += [] if fitted.utilisation is None else [_utilisation_text(fitted.utilisation)]
    parts += [] if fitted.iterations is None else [_iterations_text(fitted.iterations)]
    every = residuals_of(fitted)
    parts += [text_plot(one) for one in every[:_MOST_PLOTS]]
    if len(every) > _MOST_PLOTS:
        parts.append(f"... and {len(every) - _MOST_PLOTS} more; --plot draws twelve, --json has all.")
    return "\n\n".join(parts)


def _percent(score: Score | None) -> str:
    """Return ``1.6% mean, 46% worst``."""
    return "not known" if score is None else f"{score.mean:.1%} mean, {score.worst:.1%} worst"


def _parameter_lines(values: Mapping[str, float], intervals: Mapping[str, Interval]) -> list[str]:
    """Return a line for every parameter."""
    return [
        f"  {name:22} {shown(name, value):>12}   {' to '.join(shown(name, end) for end in intervals[name])}"
        for name, value in values.items()
    ]


def _curves_text(fitted: Fitted) -> str:
    """Return the table of forms, and the parameters."""
    forms = ("affine", "piecewise", "curve")
    rows = [
        {
            "timings": curve.group.name,
            "sizes": len(curve.group.size_bytes),
            **{form: f"{curve.scores[form].mean:.1%}" if form in curve.scores else "too few" for form in forms},
            "chosen": curve.form,
            "worst": f"{curve.score.worst:.1%}",
        }
        for curve in fitted.curves
    ]
    lines = [
        "Mean absolute error of sizes left out, by form; the simplest within a standard error of the best is chosen"
    ]
    lines.append(table(rows))
    for curve in fitted.curves:
        if curve.parameters:
            lines += [f"{curve.group.name}, {curve.form}; 95 % by bootstrap over sizes"]
            lines += _parameter_lines(curve.parameters, curve.intervals)
        lines += [f"{curve.group.name}: {note}." for note in curve.notes]
    return "\n".join(lines)


def _law_text(law: Law) -> str:
    """Return a law."""
    lines = [f"One law for any number of devices: {law.name}; 95 % by bootstrap over all points"]
    lines += _parameter_lines(law.parameters, law.intervals)
    if law.score is not None:
        each = ", ".join(f"{number}: {score.mean:.1%}" for number, score in law.by_group.items())
        lines.append(f"  numbers of devices left out: {_percent(law.score)}; mean of each: {each}")
    return "\n".join([*lines, *(f"  {note}" for note in law.notes)])


def _utilisation_text(found: Utilisation) -> str:
    """Return a utilisation: by kind, and the layers that it explains worst."""
    rows: list[dict[str, object]] = [
        {
            "kind": kind.name,
            "layers": kind.num_layers,
            "share of time": f"{kind.share:.1%}",
            "utilisation": round(kind.utilisation, 4),
            "95 %": ends(kind),
            "without booked layers": round(kind.bare, 4),
        }
        for kind in found.kinds
    ]
    low, high = found.interval
    lines = [
        f"Utilisation of {found.device} ({format_human(found.peak_flop_per_s, Dimension.FLOP_RATE)} in {found.dtype}), "
        f"batch {found.batch_size:g}: {found.overall:.4g} over all layers ({low:.3g} to {high:.3g})",
        table(rows),
        f"  layers left out: {_percent(found.score)}; all kinds scaled by {found.scaled_by:.4g} to keep the sum",
        *(f"  {note}" for note in found.notes),
    ]
    worst = sorted(found.layers, key=lambda one: -abs(one.predicted_s - one.booked_s))[:5]
    lines.append("  furthest off in seconds of a sample:")
    lines += [
        f"    {one.name[:30]:30} {format_human(one.booked_s, Dimension.TIME):>9} measured, "
        f"{format_human(one.predicted_s, Dimension.TIME):>9} predicted"
        for one in worst
    ]
    return "\n".join(lines)


def _iterations_text(found: Iterations) -> str:
    """Return parameters of a family, and every row."""
    lines = [f"Parameters of {found.family}; 95 % from the Jacobian"]
    lines += _parameter_lines(found.parameters, found.intervals)
    lines += [f"  {name:22} left at its default: {why}" for name, why in found.undetermined.items()]
    lines.append(f"  rows left out: {_percent(found.score)}; with the defaults: {_percent(found.default_score)}")
    lines += [f"  {note}" for note in found.notes]
    rows = [
        {
            "row": row.name[:60],
            "measured": format_human(row.measured_s, Dimension.TIME),
            "default": f"{row.default_s / row.measured_s - 1:+.1%}",
            "fitted": f"{row.fitted_s / row.measured_s - 1:+.1%}",
            "left out": "" if row.left_out_s is None else f"{row.left_out_s / row.measured_s - 1:+.1%}",
        }
        for row in found.rows[:_MOST_ROWS]
    ]
    return "\n".join([*lines, table(rows)])


# -- document --------------------------------------------------------------------------------------------------------


def document(fitted: Fitted, *, date: str = "", is_law_only: bool = False) -> dict[str, Any]:
    """Return ``planner.fit/1``; ``calibration`` is the block that the file holds."""
    laws = [law for law in (fitted.law, fitted.cluster_law) if law is not None]
    return {
        "schema": "planner.fit/1",
        "calibration": block_of(fitted, date=date, is_law_only=is_law_only),
        "curves": [_curve_document(curve) for curve in fitted.curves],
        "laws": [_law_document(law) for law in laws],
        "utilisation": None if fitted.utilisation is None else _utilisation_document(fitted.utilisation),
        "iterations": None if fitted.iterations is None else _iterations_document(fitted.iterations),
        "notes": list(fitted.notes),
    }


def _score_document(score: Score | None) -> dict[str, Any] | None:
    """Return a score."""
    if score is None:
        return None
    return {"mean": score.mean, "worst": score.worst, "num_left_out": score.num_left_out}


def _parameters_document(values: Mapping[str, float], intervals: Mapping[str, Interval]) -> dict[str, Any]:
    """Return parameters with the ends of their intervals."""
    return {
        name: {"value": value, "low": intervals[name][0], "high": intervals[name][1]} for name, value in values.items()
    }


def _curve_document(curve: Curve) -> dict[str, Any]:
    """Return one curve with its residuals."""
    return {
        "collective": curve.group.collective,
        "num_devices": curve.group.num_devices,
        "files": list(curve.group.files),
        "form": curve.form,
        "parameters": _parameters_document(curve.parameters, curve.intervals),
        "scores": {name: _score_document(score) for name, score in curve.scores.items()},
        "size_bytes": curve.group.size_bytes.tolist(),
        "measured_s": curve.group.time_s.tolist(),
        "residuals": curve.left_out.tolist(),
        "notes": list(curve.notes),
    }


def _law_document(law: Law) -> dict[str, Any]:
    """Return one law."""
    return {
        "name": law.name,
        "parameters": _parameters_document(law.parameters, law.intervals),
        "score": _score_document(law.score),
        "by_num_devices": {str(number): _score_document(score) for number, score in law.by_group.items()},
        "notes": list(law.notes),
    }


def _utilisation_document(found: Utilisation) -> dict[str, Any]:
    """Return a utilisation with every layer."""
    return {
        "device": found.device,
        "dtype": found.dtype,
        "batch_size": found.batch_size,
        "overall": {"value": found.overall, "low": found.interval[0], "high": found.interval[1]},
        "kinds": [
            {
                "kind": kind.name,
                "utilisation": kind.utilisation,
                "low": kind.interval[0],
                "high": kind.interval[1],
                "bare": kind.bare,
                "num_layers": kind.num_layers,
                "share": kind.share,
            }
            for kind in found.kinds
        ],
        "scaled_by": found.scaled_by,
        "score": _score_document(found.score),
        "layers": [
            {
                "name": one.name,
                "kind": one.kind,
                "measured_s": one.measured_s,
                "booked_s": one.booked_s,
                "predicted_s": one.predicted_s,
                "waits_for_memory": one.waits_for_memory,
            }
            for one in found.layers
        ],
        "notes": list(found.notes),
    }


def _iterations_document(found: Iterations) -> dict[str, Any]:
    """Return parameters of a family with every row."""
    return {
        "family": found.family,
        "parameters": _parameters_document(found.parameters, found.intervals),
        "undetermined": dict(found.undetermined),
        "score": _score_document(found.score),
        "default_score": _score_document(found.default_score),
        "rows": [
            {
                "name": row.name,
                "measured_s": row.measured_s,
                "default_s": row.default_s,
                "fitted_s": row.fitted_s,
                "left_out_s": row.left_out_s,
            }
            for row in found.rows
        ],
        "notes": list(found.notes),
    }
