"""Per-layer seconds -> utilisation of a device, in general and by kind of layer.

A layer's seconds are ``passes x FLOP / (utilisation x peak)``, with two FLOP a multiply-add and three passes (forward,
and twice that backward), as :mod:`planner.models.compute` predicts them; one pass where only forward was measured.
Layers without multiply-adds cost nothing there, so that what they do cost is booked on the layer before them that has
some (the first ones on the first such layer). Each kind's utilisation is a robust fit to the log ratios of its layers,
a layer counting by its share of the kind's seconds; then all kinds are scaled by one factor, so that the sum of all
seconds is as measured: a plan's iteration depends on it more than on any one layer.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from planner.calibration.curves import Indices, Interval, Score, bootstrap, fold_of, robust_fit, score_of, spread
from planner.calibration.tables import LayerTime, LayerTimes
from planner.cluster import Device
from planner.cost import Floats
from planner.errors import ModelError
from planner.frozen import frozen
from planner.models.operators import BACKWARD_PER_FORWARD
from planner.models.roofline import peak_flop_per_s

_FLOP_PER_MULTIPLY_ADD = 2
_ELEMENT_BYTES = 4
_FAR = 2.0  # a layer that takes so many times its prediction, or less than its part, is named
_SHARE_NAMED = 0.005  # of all seconds: smaller layers are not worth a word
_ODD_BACKWARD = (1.5, 2.5)
FEWEST = 3  # layers of a kind, of which an interval says anything


@frozen
class Kind:
    """Utilisation of one kind of layer, its 95 % interval (bootstrap over layers), and its share of all seconds.

    A kind of fewer than three layers has no interval to speak of: both ends are the figure itself.
    ``bare``: what its own seconds alone would give, without the layers that are booked on it.
    """

    name: str
    utilisation: float
    interval: Interval
    bare: float
    num_layers: int
    share: float


@frozen
class Explained:
    """One layer that has work: its seconds a sample, what was booked on it, and what is predicted."""

    name: str
    kind: str
    measured_s: float
    booked_s: float
    predicted_s: float
    waits_for_memory: bool


@frozen
class Utilisation:
    """What was fitted to one profile."""

    device: str
    dtype: str
    peak_flop_per_s: float
    overall: float  # share of the peak by which the seconds of all layers sum up as measured
    interval: Interval
    kinds: tuple[Kind, ...]
    layers: tuple[Explained, ...]
    score: Score | None  # of layers left out, one at a time, kind by kind; None where no kind has two layers
    scaled_by: float  # the factor by which all kinds were scaled, so that the sum of seconds is as measured
    batch_size: float
    file: str
    notes: tuple[str, ...] = ()

    @property
    def by_kind(self) -> Mapping[str, float]:
        """Utilisation by kind."""
        return {kind.name: kind.utilisation for kind in self.kinds}


def fit_utilisation(times: LayerTimes, device: Device, *, dtype: str) -> Utilisation:
    """Return the utilisation of a device that a profile shows.

    Raises
    ------
    ModelError
        If the device has no rate of that type, or no layer with multiply-adds takes any time.
    """
    peak = peak_flop_per_s(device, dtype)
    is_forward_only = all(layer.backward_s is None for layer in times.layers)
    passes = 1 if is_forward_only else 1 + BACKWARD_PER_FORWARD
    working, booked = _booked(times.layers)
    if not working:
        raise ModelError(f"{times.file}: no layer with multiply-adds takes any time. Check the columns and the units.")
    ideal = np.array([passes * _FLOP_PER_MULTIPLY_ADD * layer.num_multiply_adds / peak for layer in working])
    measured = np.array([layer.seconds for layer in working])
    names = list(dict.fromkeys(layer.kind for layer in working))
    rows = {name: np.array([i for i, layer in enumerate(working) if layer.kind == name]) for name in names}
    robust = {name: _fitted(ideal[rows[name]], booked[rows[name]]) for name in names}
    factor = sum(float(ideal[rows[name]].sum()) / robust[name] for name in names) / float(booked.sum())
    kinds = tuple(
        _kind(name, factor, ideal[rows[name]], booked[rows[name]], measured[rows[name]], booked.sum()) for name in names
    )
    by_kind = {kind.name: kind.utilisation for kind in kinds}
    predicted = ideal / np.array([by_kind[layer.kind] for layer in working])
    # To move a layer's parameters and result through memory once a pass; a lower bound.
    moved = np.array([layer.num_parameters / times.batch_size + layer.num_output_elements for layer in working])
    bound = passes * moved * _ELEMENT_BYTES / device.memory_bandwidth_bytes_per_s
    layers = tuple(
        Explained(
            name=layer.name,
            kind=layer.kind,
            measured_s=float(measured[i]),
            booked_s=float(booked[i]),
            predicted_s=float(predicted[i]),
            waits_for_memory=bool(bound[i] > ideal[i]),
        )
        for i, layer in enumerate(working)
    )
    overall = float(ideal.sum() / booked.sum())
    (interval,) = bootstrap(lambda at: [float(ideal[at].sum() / booked[at].sum())], len(working))
    return Utilisation(
        device=device.name,
        dtype=dtype,
        peak_flop_per_s=peak,
        overall=overall,
        interval=interval,
        kinds=kinds,
        layers=layers,
        score=_score(rows.values(), ideal, booked),
        scaled_by=factor,
        batch_size=times.batch_size,
        file=times.file,
        notes=(*times.notes, *_notes(times, layers, is_forward_only=is_forward_only)),
    )


def _booked(layers: Sequence[LayerTime]) -> tuple[list[LayerTime], Floats]:
    """Return the layers that have work and take time, and their seconds with those of the others."""
    working: list[LayerTime] = []
    seconds: list[float] = []
    early_s = 0.0
    for layer in layers:
        if layer.num_multiply_adds and layer.seconds > 0:
            working.append(layer)
            seconds.append(layer.seconds)
        elif seconds:
            seconds[-1] += layer.seconds
        else:
            early_s += layer.seconds
    if seconds:
        seconds[0] += early_s
    return working, np.array(seconds)


def _log_residuals(ideal: Floats, seconds: Floats) -> tuple[Callable[[Floats], Floats], float]:
    """Return the residuals of one kind's layers as a function of log(utilisation) less a middle, and the middle."""
    logs = np.log(ideal / seconds)
    weights = np.sqrt(seconds / seconds.mean())
    middle = float(np.average(logs, weights=seconds))
    return (lambda x: weights * (x[0] + middle - logs)), middle


def _fitted(ideal: Floats, seconds: Floats) -> float:
    """Return one kind's utilisation."""
    residuals, middle = _log_residuals(ideal, seconds)
    found = robust_fit(residuals, [0.0], lower=[-20.0], upper=[20.0])
    return math.exp(float(found[0]) + middle)


def _kind(name: str, factor: float, ideal: Floats, booked: Floats, measured: Floats, total_s: float) -> Kind:
    """Return one kind's figures, times the factor that keeps the sum."""
    residuals, middle = _log_residuals(ideal, booked)
    found = _fitted(ideal, booked)
    low = high = math.log(found) - middle
    if len(ideal) >= FEWEST:
        ((low, high),) = spread(residuals, np.array([low]), lower=[-20.0])
        high = min(high, 20.0)
    return Kind(
        name=name,
        utilisation=found * factor,
        interval=(math.exp(low + middle) * factor, math.exp(high + middle) * factor),
        bare=_fitted(ideal, measured) * factor,
        num_layers=len(ideal),
        share=float(booked.sum() / total_s),
    )


def _score(kinds: Iterable[Indices], ideal: Floats, seconds: Floats) -> Score | None:
    """Return the score of layers left out, one at a time, each predicted by the others of its kind."""
    logs = []
    for rows in kinds:
        for place in range(len(rows) if len(rows) > 1 else 0):
            kept = rows[fold_of(len(rows), np.array([place]))]
            at = rows[place]
            logs.append(math.log(ideal[at] / _fitted(ideal[kept], seconds[kept]) / seconds[at]))
    return score_of(logs) if logs else None


def _notes(times: LayerTimes, layers: Sequence[Explained], *, is_forward_only: bool) -> list[str]:
    """Say what the figures cannot explain."""
    notes = []
    if is_forward_only:
        notes.append("backward was not measured: it is taken to be twice forward")
    total_s = sum(layer.seconds for layer in times.layers)
    idle = [layer for layer in times.layers if not layer.num_multiply_adds and layer.seconds > 0]
    if idle:
        share = sum(layer.seconds for layer in idle) / total_s
        kinds = ", ".join(sorted({layer.kind for layer in idle}))
        notes.append(
            f"layers without multiply-adds ({len(idle)}: {kinds}) take {share:.1%} of the time: they wait for memory, "
            f"and are booked on the layers before them"
        )
    slow = [one for one in layers if one.waits_for_memory and one.booked_s > _SHARE_NAMED * total_s]
    if slow:
        names = ", ".join(one.name for one in slow[:6])
        notes.append(f"wait for memory at this batch, more than they compute: {names}; their utilisation moves with it")
    far = [
        one
        for one in layers
        if not 1 / _FAR < one.booked_s / one.predicted_s < _FAR and one.booked_s > _SHARE_NAMED * total_s
    ]
    if far:
        names = ", ".join(f"{one.name} ({one.booked_s / one.predicted_s:.2g} times)" for one in far[:6])
        notes.append(f"not explained by their kind's utilisation, measured over predicted: {names}")
    forward_s = sum(layer.forward_s for layer in times.layers)
    ratio = (total_s - forward_s) / forward_s if forward_s and not is_forward_only else 2.0
    if not _ODD_BACKWARD[0] <= ratio <= _ODD_BACKWARD[1]:
        notes.append(f"backward takes {ratio:.2f} times forward; predictions take it to be twice")
    return notes
