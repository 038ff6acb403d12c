"""Residuals as a picture: in the terminal as text, in a file through matplotlib, an extra that is imported late."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.calibration.fit_all import Fitted
from planner.calibration.read_table import fault
from planner.errors import SpecError
from planner.targets import reason_of, whole
from planner.units import Dimension, format_human

__all__ = ["Residuals", "check_picture", "picture", "residuals_of", "text_plot"]

_BINS = 16
_HALF = 24
_MOST_PANELS = 12
_FORMATS = (".svg", ".png", ".pdf")


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Return the residuals of every fit."""
    found = []
    for curve in fitted.curves:
        predicted = curve.cost(curve.group.size_bytes)
        found.append(
            Residuals(
                title=f"{curve.group.name} ({curve.form})",
                places=tuple(curve.group.size_bytes.tolist()),
                errors=tuple(curve.left_out.tolist()),
                measured_s=tuple(curve.group.time_s.tolist()),
                predicted_s=tuple(predicted.tolist()),
                is_size=True,
            )
        )
    if fitted.utilisation is not None:
        layers = fitted.utilisation.layers
        found.append(_by_time("layers", [one.booked_s for one in layers], [one.predicted_s for one in layers]))
    if fitted.iterations is not None:
        rows = fitted.iterations.rows
        found.append(
            _by_time("iterations", [one.measured_s for one in rows], [one.left_out_s or one.fitted_s for one in rows])
        )
    return found


def _by_time(title: str, measured: Sequence[float], predicted: Sequence[float]) -> Residuals:
    """Return residuals against the measured seconds."""
    pairs = sorted(zip(measured, predicted, strict=True))
    return Residuals(
        title=title,
        places=tuple(one for one, _ in pairs),
        errors=tuple(other / one - 1 for one, other in pairs),
        measured_s=tuple(one for one, _ in pairs),
        predicted_s=tuple(other for _, other in pairs),
        is_size=False,
    )


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
    for number in sorted(set(bins.tolist())):
        mine = errors[bins == number]
        label = format_human(float(places[bins == number][0]), unit)
        lines.append(f"{label:>10} {_bar(mine, limit)} {float(np.median(mine)):+.1%}")
    return "\n".join(lines)


def _bar(errors: Any, limit: float) -> str:
    """Return the line of a bin."""

    def column(error: float) -> int:
        return round(_HALF + _HALF * max(-1.0, min(1.0, error / limit)))

    cells = [" "] * (2 * _HALF + 1)
    cells[_HALF] = "|"
    for at in range(column(float(errors.min())), column(float(errors.max())) + 1):
        cells[at] = "-"
    cells[column(float(np.median(errors)))] = "o"
    return "".join(cells)


def check_picture(path: Path) -> None:
    """Refuse a picture that could not be drawn, before anything is fitted.

    Raises
    ------
    SpecError
        If matplotlib is missing, or the ending is another one.
    """
    if path.suffix.lower() not in _FORMATS:
        problem = f"{path.suffix or 'no ending'!r} is no kind of picture."
        raise SpecError.of([fault(path, None, problem, f"Write {', '.join(_FORMATS)}.", field="--plot")])
    try:
        import matplotlib  # noqa: F401, PLC0415  # an extra, and slow to import
    except ImportError:
        mend = "Install it: pip install 'training-planner[plot]'."
        raise SpecError.of([fault(path, None, "matplotlib is missing.", mend, field="--plot")]) from None


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
        for index, one in enumerate(shown):
            _panel(axes[0][index], axes[1][index], one)
        kind = path.suffix.lower()[1:]
        try:
            with whole(path) as new:
                figure.savefig(new, format=kind, metadata={"Date": None} if kind == "svg" else None)
        except OSError as error:
            raise SpecError.of([fault(path, None, reason_of(error), "Name another file.", field="--plot")]) from None


def _panel(above: Any, below: Any, one: Residuals) -> None:
    """Draw one fit."""
    above.loglog(one.places, one.measured_s, ".", markersize=3, label="measured")
    above.loglog(one.places, one.predicted_s, "-" if one.is_size else "x", linewidth=1, label="predicted")
    above.set_title(one.title)
    above.set_ylabel("seconds")
    above.legend()
    below.axhline(0.0, color="grey", linewidth=0.8)
    below.semilogx(one.places, [100 * error for error in one.errors], ".", markersize=3)
    below.set_xlabel("bytes" if one.is_size else "measured seconds")
    below.set_ylabel("predicted / measured - 1, %")
