"""What was fitted: as text, as pictures of residuals, as a document (``planner.fit/1``), and as ``calibration.yaml``.

The file is a ``calibration`` block that a spec names, with its errors and intervals. Pictures in files are drawn by
matplotlib, an extra that is imported late.
"""

from collections.abc import Sequence
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from planner.answer.text import table
from planner.calibration.curves import FORMS, Curve, Score
from planner.calibration.fits import Fitted, Law, layout_of
from planner.calibration.iterations import Iterations
from planner.calibration.layer_times import FEWEST, Kind, Utilisation
from planner.cost import Affine, TransferCost
from planner.errors import SpecError
from planner.frozen import frozen
from planner.models.communication import PiecewiseLogLinear
from planner.shown import document_of
from planner.targets import reason_of, whole
from planner.units import Dimension, format_exact, format_human

_BINS = 16
_HALF = 24
_MOST_PANELS = 12
_FORMATS = (".svg", ".png", ".pdf")
_MOST_PLOTS, _MOST_ROWS = 6, 40  # in text
_DIGITS = 6
_MOST_UNMEASURED = 64
_MOST_BYTES_PER_S = 1e15
_SIZES = tuple(4.0**power for power in range(4, 18))  # 256 B to 16 GiB, of curves made of a law


# -- words -----------------------------------------------------------------------------------------------------------


def _ends(kind: Kind) -> str:
    """Return the interval of a kind of layer; of a single layer there is none."""
    low, high = kind.interval
    if kind.num_layers < FEWEST:
        return f"{'one layer' if kind.num_layers == 1 else 'two layers'}: no interval"
    return f"{low:.3g} to {high:.3g}"


def _counted(number: int, noun: str) -> str:
    """Return ``1 size``, ``2 sizes``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def _percent(score: Score | None, form: str = "{mean} mean, {worst} worst") -> str:
    """Return ``1.6% mean, 46% worst``."""
    return "not known" if score is None else form.format(mean=f"{score.mean:.1%}", worst=f"{score.worst:.1%}")


def _parameter_lines(fit: Curve | Law | Iterations, form: str = "  {name:22} {value:>12}   {interval}") -> list[str]:
    """Return a line for every parameter: its value and interval in units for reading, by the end of its name."""

    def shown(name: str, value: float) -> str:
        if name.endswith("per_byte_s"):
            return f"{value * 1e9:.4g} s/GB"
        ends = {"_bytes_per_s": Dimension.RATE, "_bytes": Dimension.DATA, "_s": Dimension.TIME}
        ends["overhead"] = Dimension.TIME
        dimension = next((dimension for end, dimension in ends.items() if name.endswith(end)), None)
        if dimension is None:
            return f"{value:.4g}"
        return ("-" if value < 0 else "") + format_human(abs(value), dimension)

    lines = []
    for name, value in fit.parameters.items():
        interval = " to ".join(shown(name, end) for end in fit.intervals[name])
        lines.append(form.format(name=name, value=shown(name, value), interval=interval))
    return lines


# -- residuals -------------------------------------------------------------------------------------------------------


@frozen
class Residuals:
    """Predicted / measured - 1 of one fit: ``places`` are bytes, or seconds where ``is_size`` is false.

    Of sizes and rows, each left out of its fit where that was done; of layers, of the fit to all.
    """

    title: str
    places: tuple[float, ...]
    errors: tuple[float, ...]
    measured_s: tuple[float, ...]
    predicted_s: tuple[float, ...]
    is_size: bool


def residuals_of(fitted: Fitted) -> list[Residuals]:
    """Return the residuals of every fit: of curves against bytes, of layers and rows against the measured seconds."""
    found = [
        Residuals(
            title=f"{curve.group.name} ({curve.form})",
            places=tuple(curve.group.size_bytes.tolist()),
            errors=tuple(curve.left_out.tolist()),
            measured_s=tuple(curve.group.time_s.tolist()),
            predicted_s=tuple(curve.cost(curve.group.size_bytes).tolist()),
            is_size=True,
        )
        for curve in fitted.curves
    ]
    by_time: dict[str, list[tuple[float, float]]] = {}
    if fitted.utilisation is not None:
        by_time["layers"] = [(layer.booked_s, layer.predicted_s) for layer in fitted.utilisation.layers]
    if fitted.iterations is not None:
        by_time["iterations"] = [(row.measured_s, row.left_out_s or row.fitted_s) for row in fitted.iterations.rows]
    for title, pairs in by_time.items():
        measured_s, predicted_s = zip(*sorted(pairs), strict=True)
        errors = tuple(after / before - 1 for before, after in sorted(pairs))
        found.append(
            Residuals(
                title=title,
                places=measured_s,
                errors=errors,
                measured_s=measured_s,
                predicted_s=predicted_s,
                is_size=False,
            )
        )
    return found


def text_plot(found: Residuals) -> str:
    """Return a plot of at most sixteen lines: the median residual of every step of size, and the range of the rest.

    ``o`` is the median of a bin of sizes (or of times), ``-`` reaches from its least to its greatest residual.
    """
    places, errors = np.array(found.places), np.array(found.errors)
    logs = np.log2(places)
    edges = np.linspace(logs[0], logs[-1], _BINS + 1)
    bins = np.clip(np.digitize(logs, edges) - 1, 0, _BINS - 1)
    limit = max(0.01, float(np.abs(np.median(errors)) * 2), float(np.percentile(np.abs(errors), 95)))
    what, unit = ("size", Dimension.DATA) if found.is_size else ("measured time", Dimension.TIME)
    scale = f"{-limit:+.0%}".ljust(_HALF) + "0" + f"{limit:+.0%}".rjust(_HALF)
    lines = [f"Residuals of {found.title}: predicted / measured - 1 against {what}", f"{'':>10} {scale}"]

    def column(error: float) -> int:
        return round(_HALF + _HALF * max(-1.0, min(1.0, error / limit)))

    for number in sorted(set(bins.tolist())):
        mine = errors[bins == number]
        middle, cells = float(np.median(mine)), [" "] * (2 * _HALF + 1)
        cells[_HALF] = "|"
        for at in range(column(float(mine.min())), column(float(mine.max())) + 1):
            cells[at] = "-"
        cells[column(middle)] = "o"
        label = format_human(float(places[bins == number][0]), unit)
        lines.append(f"{label:>10} {''.join(cells)} {middle:+.1%}")
    return "\n".join(lines)


def check_picture(path: Path) -> None:
    """Refuse a picture that could not be drawn, before anything is fitted.

    Raises
    ------
    SpecError
        If matplotlib is missing, or the ending is another one.
    """
    if path.suffix.lower() not in _FORMATS:
        problem = f"{path.suffix or 'no ending'!r} is no kind of picture."
        raise SpecError.one(problem, f"Write {', '.join(_FORMATS)}.", file=path, field="--plot")
    try:
        import matplotlib  # noqa: F401, PLC0415  # an extra, and slow to import
    except ImportError:
        mend = "Install it: pip install 'training-planner[plot]'."
        raise SpecError.one("matplotlib is missing.", mend, file=path, field="--plot") from None


def picture(found: Sequence[Residuals], path: Path) -> None:
    """Write a picture of all fits, .svg, .png or .pdf: measured and predicted seconds above, residuals below.

    Raises
    ------
    SpecError
        As :func:`check_picture`; if the file cannot be written.
    """
    check_picture(path)
    import matplotlib as library  # noqa: PLC0415

    library.use("Agg")
    from matplotlib.figure import Figure  # noqa: PLC0415

    shown = list(found)[:_MOST_PANELS]
    # A fixed salt and no date, so that equal data give equal bytes.
    with library.rc_context({"svg.hashsalt": "planner", "font.size": 8}):
        figure = Figure(figsize=(3.6 * len(shown), 5.0), layout="constrained")
        axes = figure.subplots(2, len(shown), squeeze=False, sharex="col")
        for one, above, below in zip(shown, *axes, strict=True):
            above.loglog(one.places, one.measured_s, ".", markersize=3, label="measured")
            above.loglog(one.places, one.predicted_s, "-" if one.is_size else "x", linewidth=1, label="predicted")
            above.set_title(one.title)
            above.set_ylabel("seconds")
            above.legend()
            below.axhline(0.0, color="grey", linewidth=0.8)
            below.semilogx(one.places, [100 * error for error in one.errors], ".", markersize=3)
            below.set_xlabel("bytes" if one.is_size else "measured seconds")
            below.set_ylabel("predicted / measured - 1, %")
        kind = path.suffix.lower()[1:]
        try:
            with whole(path) as new:
                figure.savefig(new, format=kind, metadata={"Date": None} if kind == "svg" else None)
        except OSError as error:
            raise SpecError.one(reason_of(error), "Name another file.", file=path, field="--plot") from None


# -- calibration.yaml ------------------------------------------------------------------------------------------------


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
    from ruamel.yaml import YAML  # noqa: PLC0415  # late: `planner --help` has no use for it

    writer = YAML(typ="safe", pure=True)  # keys of the block a line each, what is inside them on lines of their own
    writer.default_flow_style = None
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.width = 120
    out = StringIO()
    writer.dump(block, out)
    return "".join(f"# {line}".rstrip() + "\n" for line in head) + out.getvalue()


def block_of(fitted: Fitted, *, date: str = "", is_law_only: bool = False) -> dict[str, object]:
    """Return the ``calibration`` block as plain data."""
    block: dict[str, object] = dict(fitted.kept)
    if fitted.utilisation is not None:
        block["utilisation"] = _rounded(fitted.utilisation.overall)
        block["utilisation_by_kind"] = {name: _rounded(value) for name, value in fitted.utilisation.by_kind.items()}
    for fit in (fitted.cluster_law, fitted.iterations):
        for name, value in {} if fit is None else fit.parameters.items():
            key = name.removesuffix("_s")
            block[key] = _time(value) if key == "overhead" else _rounded(value)
    if not is_law_only:
        block |= _curves_block(fitted)
    errors = known_errors(fitted, is_law_only=is_law_only)
    if errors:
        block["known_error"] = errors
    block["source"] = f"planner calibrate: {', '.join(fitted.files[:8])}" + (f"; {date}" if date else "")
    return block


def known_errors(fitted: Fitted, *, is_law_only: bool) -> list[dict[str, object]]:
    """Return the cross-validated errors, as the key ``known_error`` has them."""
    rows: list[dict[str, object]] = []

    def add(of: str, mean: float, worst: float, source: str) -> None:
        rows.append({"of": of, "mean": float(f"{mean:.3g}"), "worst": float(f"{worst:.3g}"), "source": source})

    curves, law = fitted.used_curves, fitted.cluster_law
    if curves and not is_law_only:
        scores = [curve.score for curve in curves]
        number = sum(score.num_left_out for score in scores)
        mean = sum(score.mean * score.num_left_out for score in scores) / number
        add("links", mean, max(score.worst for score in scores), f"{_counted(number, 'size')} left out")
    if law is not None and law.score is not None:
        of = "links" if is_law_only else "links not measured"
        add(of, law.score.mean, law.score.worst, "numbers of devices left out")
    for of, noun, fit in (("layers", "layer", fitted.utilisation), ("iterations", "row", fitted.iterations)):
        if fit is not None and (score := fit.score) is not None:
            add(of, score.mean, score.worst, f"{_counted(score.num_left_out, noun)} left out")
    return rows


def _rounded(value: float) -> float:
    """Return a number to six digits."""
    return float(f"{value:.{_DIGITS}g}")


def _time(seconds: float) -> str:
    """Return seconds to six digits, with their sign, as microseconds throughout."""
    return f"{1e6 * seconds:.{_DIGITS}g} us"


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


def _curves_block(fitted: Fitted) -> dict[str, Any]:
    """Return the keys ``piecewise`` and ``curves``; a straight line is a piece whose threshold is 0."""
    costs: list[tuple[int, TransferCost, Sequence[float]]] = [
        (curve.group.num_devices, curve.cost, curve.group.size_bytes.tolist()) for curve in fitted.used_curves
    ]
    if fitted.cluster_law is not None:
        costs += [(number, fitted.cluster_law.cost_of(number), _SIZES) for number in unmeasured(fitted)]
    piecewise, curves = [], []
    for number, fitted_cost, sizes in sorted(costs, key=lambda one: one[0]):
        cost = fitted_cost
        if isinstance(cost, Affine):
            per_byte_s, offset_s = cost.per_byte_s, cost.startup_s
            cost = PiecewiseLogLinear(
                log_slope_s=0.0, log_offset_s=0.0, per_byte_s=per_byte_s, offset_s=offset_s, threshold_bytes=0.0
            )
        if isinstance(cost, PiecewiseLogLinear):
            rate = min(1 / cost.per_byte_s if cost.per_byte_s else np.inf, _MOST_BYTES_PER_S)
            row: dict[str, Any] = {
                "num_devices": number,
                "log_slope": _time(cost.log_slope_s),
                "log_offset": _time(cost.log_offset_s),
                "bandwidth": format_exact(_rounded(rate), Dimension.RATE),
                "offset": _time(cost.offset_s),
                "threshold": format_exact(cost.threshold_bytes, Dimension.DATA),
            }
            piecewise.append(row)
            continue
        seconds = np.asarray(cost(np.asarray(sizes)), dtype=float).tolist()
        points = [
            [format_exact(size, Dimension.DATA), _time(time_s)] for size, time_s in zip(sizes, seconds, strict=True)
        ]
        curves.append({"num_devices": number, "points": points})
    return {key: rows for key, rows in (("piecewise", piecewise), ("curves", curves)) if rows}


def _comments(fitted: Fitted, *, is_law_only: bool) -> list[str]:
    """Return what stands above the block: where it is from, how it was chosen, how far off and how sure it is."""

    def intervals(fit: Curve | Law | Iterations) -> list[str]:
        return _parameter_lines(fit, "  {name}: {value} ({interval})")

    def errors(score: Score | None) -> str:
        return _percent(score, "mean {mean}, worst {worst}")

    lines = [
        "Written by planner calibrate. Name this file in a spec: calibration: calibration.yaml",
        "Errors are predicted / measured - 1, absolute, of what was left out of the fit; intervals are 95 %.",
    ]
    for curve in () if is_law_only else fitted.used_curves:
        group, sizes = curve.group, curve.group.size_bytes
        span = " to ".join(format_human(float(one), Dimension.DATA) for one in (sizes[0], sizes[-1]))
        forms = ", ".join(f"{form} {errors(one)}" for form, one in curve.scores.items())
        lines += ["", f"{group.name}: {_counted(len(sizes), 'size')}, {span}, from {', '.join(group.files[:4])}"]
        lines += [f"  form {curve.form}; {forms}", *intervals(curve), *(f"  {note}" for note in curve.notes)]
    if others := [curve.group.name for curve in fitted.curves if curve not in fitted.used_curves]:
        lines += ["", f"Fitted, and not in this file, since a plan has no use for it: {', '.join(others)}."]
    if law := fitted.cluster_law or fitted.law:
        lines += ["", f"Law for any number of devices: {law.name}"]
        lines += [] if law.score is None else [f"  numbers of devices left out: {errors(law.score)}"]
        lines += [*intervals(law), *(f"  {note}" for note in law.notes)]
        if fitted.cluster_law is None:
            lines.append("  not in this file: it needs a cluster (--spec)")
        elif numbers := [] if is_law_only else unmeasured(fitted):
            lines.append(f"  gives the figures of {', '.join(map(str, numbers))} devices, which were not measured")
    if (found := fitted.utilisation) is not None:
        head = f"Utilisation of {found.device} in {found.dtype}, from {found.file}, batch {found.batch_size:g}"
        lines += ["", f"{head}: {found.overall:.4g} ({' to '.join(f'{end:.4g}' for end in found.interval)})"]
        for kind in found.kinds:
            number = _counted(kind.num_layers, "layer")
            lines.append(
                f"  {kind.name}: {kind.utilisation:.4g} ({_ends(kind)}), {number}, {kind.share:.1%} of the time"
            )
        lines += [] if found.score is None else [f"  layers left out: {errors(found.score)}"]
        lines += [f"  {note}" for note in found.notes]
    if (rows := fitted.iterations) is not None:
        lines += ["", f"Parameters of {rows.family}, fitted to {len(rows.rows)} iterations", *intervals(rows)]
        lines += [f"  {name}: left at its default, since {why}" for name, why in rows.undetermined.items()]
        if rows.score is not None:
            lines.append(f"  rows left out: {errors(rows.score)}; with the defaults {errors(rows.default_score)}")
        lines += [f"  {note}" for note in rows.notes]
    if fitted.kept:
        lines += ["", f"As the spec has them: {', '.join(fitted.kept)}."]
    return lines


# -- text ------------------------------------------------------------------------------------------------------------


def text(fitted: Fitted, *, is_law_only: bool = False) -> str:
    """Return the fits for reading: what was chosen, how far it is off, how sure it is, and the residuals."""
    parts = [f"Note: {note}." for note in fitted.notes]
    parts += [_curves_text(fitted)] if fitted.curves else []
    for law in (fitted.law, fitted.cluster_law):
        if law is not None:
            lines = [f"One law for any number of devices: {law.name}; 95 % by bootstrap over all points"]
            lines += _parameter_lines(law)
            if law.score is not None:
                each = ", ".join(f"{number}: {score.mean:.1%}" for number, score in law.by_group.items())
                lines.append(f"  numbers of devices left out: {_percent(law.score)}; mean of each: {each}")
            parts.append("\n".join([*lines, *(f"  {note}" for note in law.notes)]))
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


def _curves_text(fitted: Fitted) -> str:
    """Return the table of forms, and the parameters."""
    rows = [
        {
            "timings": curve.group.name,
            "sizes": len(curve.group.size_bytes),
            **{form: f"{curve.scores[form].mean:.1%}" if form in curve.scores else "too few" for form in FORMS},
            "chosen": curve.form,
            "worst": f"{curve.score.worst:.1%}",
        }
        for curve in fitted.curves
    ]
    head = "Mean absolute error of sizes left out, by form; the simplest within a standard error of the best is chosen"
    lines = [head, table(rows)]
    for curve in fitted.curves:
        if curve.parameters:
            lines += [f"{curve.group.name}, {curve.form}; 95 % by bootstrap over sizes", *_parameter_lines(curve)]
        lines += [f"{curve.group.name}: {note}." for note in curve.notes]
    return "\n".join(lines)


def _utilisation_text(found: Utilisation) -> str:
    """Return a utilisation: by kind, and the layers that it explains worst."""
    rows: list[dict[str, object]] = [
        {
            "kind": kind.name,
            "layers": kind.num_layers,
            "share of time": f"{kind.share:.1%}",
            "utilisation": round(kind.utilisation, 4),
            "95 %": _ends(kind),
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
        "  furthest off in seconds of a sample:",
    ]
    for one in sorted(found.layers, key=lambda one: -abs(one.predicted_s - one.booked_s))[:5]:
        measured, predicted = (format_human(seconds, Dimension.TIME) for seconds in (one.booked_s, one.predicted_s))
        lines.append(f"    {one.name[:30]:30} {measured:>9} measured, {predicted:>9} predicted")
    return "\n".join(lines)


def _iterations_text(found: Iterations) -> str:
    """Return parameters of a family, and every row."""
    lines = [f"Parameters of {found.family}; 95 % from the Jacobian", *_parameter_lines(found)]
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


def document(fitted: Fitted, *, date: str = "", is_law_only: bool = False) -> dict[str, object]:
    """Return ``planner.fit/1``; ``calibration`` is the block that the file holds."""

    def score(found: Score | None) -> dict[str, Any] | None:
        """Return a score."""
        return None if found is None else document_of(found, "mean", "worst", "num_left_out")

    def parameters(found: Curve | Law | Iterations) -> dict[str, Any]:
        """Return parameters with the ends of their intervals."""
        ends = found.intervals
        return {
            name: {"value": value, "low": ends[name][0], "high": ends[name][1]}
            for name, value in found.parameters.items()
        }

    utilisation, iterations = fitted.utilisation, fitted.iterations
    return {
        "schema": "planner.fit/1",
        "calibration": block_of(fitted, date=date, is_law_only=is_law_only),
        "curves": [
            {
                **document_of(curve.group, "collective", "num_devices", "files"),
                "form": curve.form,
                "parameters": parameters(curve),
                "scores": {name: score(one) for name, one in curve.scores.items()},
                "size_bytes": curve.group.size_bytes.tolist(),
                "measured_s": curve.group.time_s.tolist(),
                "residuals": curve.left_out.tolist(),
                "notes": list(curve.notes),
            }
            for curve in fitted.curves
        ],
        "laws": [
            {
                "name": law.name,
                "parameters": parameters(law),
                "score": score(law.score),
                "by_num_devices": {str(number): score(one) for number, one in law.by_group.items()},
                "notes": list(law.notes),
            }
            for law in (fitted.law, fitted.cluster_law)
            if law is not None
        ],
        "utilisation": None
        if utilisation is None
        else {
            **document_of(utilisation, "device", "dtype", "batch_size"),
            "overall": {"value": utilisation.overall, "low": utilisation.interval[0], "high": utilisation.interval[1]},
            "kinds": [
                {
                    "kind": kind.name,
                    "utilisation": kind.utilisation,
                    "low": kind.interval[0],
                    "high": kind.interval[1],
                    **document_of(kind, "bare", "num_layers", "share"),
                }
                for kind in utilisation.kinds
            ],
            "scaled_by": utilisation.scaled_by,
            "score": score(utilisation.score),
            "layers": [asdict(one) for one in utilisation.layers],
            "notes": list(utilisation.notes),
        },
        "iterations": None
        if iterations is None
        else {
            "family": iterations.family,
            "parameters": parameters(iterations),
            "undetermined": dict(iterations.undetermined),
            "score": score(iterations.score),
            "default_score": score(iterations.default_score),
            "rows": [asdict(row) for row in iterations.rows],
            "notes": list(iterations.notes),
        },
        "notes": list(fitted.notes),
    }
