"""All that can be fitted to some files, for one question; and laws of all-reduces on any number of devices.

A law gives figures of numbers of devices that were not measured. *Without a cluster*: ``overhead + 2 (N-1) latency +
2 (N-1)/N size / bandwidth`` (ring) or ``overhead + 2 ceil(log2 N) latency + 2 size / bandwidth`` (double binary tree),
whichever errs less; see :mod:`planner.models.communication`. *With the cluster of a question*: its rates and latencies,
with overhead and efficiency fitted; the cheapest of the allowed algorithms counts at every size, as in the family
``all_reduce``, and a share of a link's rate that no timing depends on stays at 1, and is named. The error of either is
of numbers of devices left out whole, one at a time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from planner import api, data
from planner.calibration.benchmarks import Measurements
from planner.calibration.curves import (
    LEAST_SIZES,
    Curve,
    Indices,
    Interval,
    Score,
    fit_curve,
    log_ratio,
    robust_fit,
    score_of,
    spread,
    too_few,
)
from planner.calibration.iterations import Iterations, fit_iterations
from planner.calibration.layer_times import Utilisation, fit_utilisation
from planner.calibration.tables import Group, LayerTimes, Timing, fault, grouped, layers_of_profile, read_layer_table
from planner.cluster import Cluster
from planner.cost import Affine, Floats, TransferCost
from planner.errors import Fault, ModelError, SpecError
from planner.frozen import frozen
from planner.letters import visible
from planner.models.communication import ALL_REDUCES, Participants, cheapest_of
from planner.models.memory import Precision
from planner.problem import Problem
from planner.question.dnn import read_profile
from planner.routes import routes_of
from planner.units import Dimension, format_human

_LEAST_GROUPS = 2
_NOTHING = 1e-3  # of the shortest time: an overhead or latency below this does not show


@frozen
class Law:
    """A law: parameters with units at their ends, 95 % intervals by bootstrap, its scores, and its cost by devices.

    ``score``: of numbers of devices left out whole; None where the others would not determine the parameters.
    ``by_group``: the same of each number of devices.
    """

    name: str
    parameters: Mapping[str, float]
    intervals: Mapping[str, Interval]
    score: Score | None
    by_group: Mapping[int, Score]
    cost_of: Callable[[int], TransferCost]
    notes: tuple[str, ...] = ()


@frozen(kw_only=False)
class Points:
    """All points of all groups, in one array each; ``group`` is the index of a point's group."""

    num_devices: Floats
    size_bytes: Floats
    time_s: Floats
    group: Indices

    @staticmethod
    def of(groups: Sequence[Group]) -> "Points":
        """Return the points of some groups."""
        counts = [len(group.size_bytes) for group in groups]
        return Points(
            np.repeat([float(group.num_devices) for group in groups], counts),
            np.concatenate([group.size_bytes for group in groups]),
            np.concatenate([group.time_s for group in groups]),
            np.repeat(np.arange(len(groups)), counts),
        )

    def at(self, rows: Indices) -> "Points":
        """Return some of the points."""
        return Points(self.num_devices[rows], self.size_bytes[rows], self.time_s[rows], self.group[rows])


@frozen
class _Form:
    """Seconds of points as a function of some parameters, and how these are fitted."""

    names: Sequence[str]
    units: Floats  # what parameters of order 1 are multiplied by
    start: Sequence[float]
    lower: Sequence[float]
    upper: Sequence[float]
    nothing: Sequence[float]  # below this, of order 1, a parameter does not show and is 0
    predicted_s: Callable[[Floats, Points], Floats]  # seconds of points, by values in SI units
    tells: Callable[[Points], bool]  # whether points determine the parameters

    def residuals(self, x: Floats, at: Points) -> Floats:
        """Return the log residuals of some points, of parameters of order 1."""
        return log_ratio(self.predicted_s(x * self.units, at), at.time_s)

    def fit(self, at: Points) -> Floats:
        """Return the values that fit some points best."""
        found = robust_fit(
            lambda x: self.residuals(x, at), self.start, lower=self.lower, upper=self.upper, tolerance=1e-6
        )
        return np.asarray(np.where(found < self.nothing, 0.0, found) * self.units)

    def law(self, name: str, groups: Sequence[Group], cost_of: Callable[[Floats, int], TransferCost]) -> Law:
        """Return the law of groups, with its intervals, and its scores of groups left out whole, one at a time."""
        points = Points.of(groups)
        values = self.fit(points)
        ends = np.array(spread(lambda x: self.residuals(x, points), values / self.units)) * self.units[:, None]
        logs: list[float] = []
        by_group = {}
        for index, group in enumerate(groups):
            inside, outside = (points.at(np.flatnonzero(one)) for one in (points.group != index, points.group == index))
            if len(inside.time_s) and self.tells(inside):
                found = log_ratio(self.predicted_s(self.fit(inside), outside), outside.time_s).tolist()
                by_group[group.num_devices] = score_of(found)
                logs += found
        return Law(
            name=name,
            parameters=dict(zip(self.names, values.tolist(), strict=True)),
            intervals={name: (low, high) for name, (low, high) in zip(self.names, ends.tolist(), strict=True)},
            score=score_of(logs) if logs else None,
            by_group=by_group,
            cost_of=partial(cost_of, values),
        )


# -- laws without a cluster ------------------------------------------------------------------------------------------

# How many latencies, and how many times the size over the bandwidth, an all-reduce takes.
_SHAPES: Mapping[str, Callable[[Floats], tuple[Floats, Floats]]] = {
    "ring": lambda number: (2 * (number - 1), 2 * (number - 1) / number),
    "tree": lambda number: (2 * np.ceil(np.log2(number)), np.full_like(number, 2.0)),
}


def fit_free_law(groups: Sequence[Group]) -> Law | None:
    """Return the law of the ring or of the tree; None where fewer than two numbers of devices were measured."""
    if len(groups) < _LEAST_GROUPS:
        return None
    points = Points.of(groups)
    shortest_s, largest = float(points.time_s.min()), int(np.argmax(points.size_bytes))

    def fitted(shape: Callable[[Floats], tuple[Floats, Floats]], name: str) -> tuple[float, Law]:
        """Return a shape's law, and what shapes are compared by: the error of groups left out, else of all."""

        def predicted_s(values: Floats, at: Points) -> Floats:
            hops, share = shape(at.num_devices)
            return np.asarray(values[0] + values[1] * hops + values[2] * share * at.size_bytes)

        def cost_of(values: Floats, num_devices: int) -> TransferCost:
            hops, share = (float(one[0]) for one in shape(np.array([float(num_devices)])))
            overhead_s, latency_s, per_byte_s = values.tolist()
            return Affine(startup_s=overhead_s + latency_s * hops, per_byte_s=per_byte_s * share)

        form = _Form(
            names=("overhead_s", "latency_s", "per_byte_s"),
            units=np.array([shortest_s, shortest_s, points.time_s[largest] / points.size_bytes[largest]]),
            start=[0.5, 0.1, 0.5],
            lower=[0.0] * 3,
            upper=[inf] * 3,
            nothing=[_NOTHING, _NOTHING, 0.0],
            predicted_s=predicted_s,
            tells=lambda inside: len(np.unique(inside.num_devices)) >= _LEAST_GROUPS,  # overhead from latency
        )
        law = form.law(name, groups, cost_of)
        values = np.array(list(law.parameters.values()))
        own = float(np.abs(log_ratio(predicted_s(values, points), points.time_s)).mean())
        return (law.score.loss if law.score else own), law

    _, law = min((fitted(shape, name) for name, shape in _SHAPES.items()), key=lambda pair: pair[0])
    per_byte_s, (low, high) = law.parameters["per_byte_s"], law.intervals["per_byte_s"]
    rate, *ends = (1 / one if one else inf for one in (per_byte_s, high, low))
    note = "with two numbers of devices overhead and latency are told apart by their difference alone"
    kept = ("overhead_s", "latency_s")
    return replace(
        law,
        parameters={**{name: law.parameters[name] for name in kept}, "bandwidth_bytes_per_s": rate},
        intervals={**{name: law.intervals[name] for name in kept}, "bandwidth_bytes_per_s": (ends[0], ends[1])},
        notes=(note,) if len(groups) == _LEAST_GROUPS else (),
    )


# -- laws of a cluster -----------------------------------------------------------------------------------------------

_MOST_OVERHEAD_S = 1.0
_START = {"overhead_s": 0.5, "bandwidth_efficiency": 0.7, "inside_efficiency": 0.7}
_SEEN = 0.01  # a share that moves no prediction by this much when it changes by half is not seen


@frozen
class Links:
    """What a law is of: the cluster, the algorithms that may be used, and bytes that a device adds up in a second."""

    cluster: Cluster
    algorithms: tuple[str, ...]
    reduce_bytes_per_s: float = inf

    def costs(self, layout: tuple[int, int], values: Mapping[str, float]) -> list[TransferCost]:
        """Return the cost of every algorithm on so many machines, and devices of each.

        The closed forms are put together as the family ``all_reduce`` does it; a test holds them together.
        """
        machines, devices = layout
        link = routes_of(self.cluster).ring(machines) if machines > 1 else None
        insides = [group.inside for group in self.cluster.machine_groups if group.inside is not None and devices > 1]
        share, inside_share = (values.get(name, 1.0) for name in ("bandwidth_efficiency", "inside_efficiency"))
        net_rate, net_latency_s = (inf, 0.0) if link is None else (link.bandwidth_bytes_per_s * share, link.latency_s)
        in_rate = min((one.bandwidth_bytes_per_s for one in insides), default=inf) * inside_share
        in_latency_s = max((one.latency_s for one in insides), default=0.0)
        participants = Participants(
            num_devices=[machines * devices],
            num_machines=[machines],
            devices_per_machine=devices,
            network_bytes_per_s=net_rate,
            network_latency_s=net_latency_s,
            inside_bytes_per_s=in_rate,
            inside_latency_s=in_latency_s,
            overhead_s=values["overhead_s"],
            reduce_bytes_per_s=self.reduce_bytes_per_s,
        )
        return [ALL_REDUCES[name](participants).at(0) for name in self.algorithms]


def layout_of(cluster: Cluster, num_devices: int, num_machines: int | None = None) -> tuple[int, int] | None:
    """Return machines and devices of each for so many devices: full machines, unless told; None where none fits."""
    inside = min(group.devices_per_machine for group in cluster.machine_groups)
    if num_machines is None:
        num_machines = 1 if num_devices <= inside else num_devices // inside
    devices = num_devices // num_machines
    fits = devices * num_machines == num_devices and devices <= inside and num_machines <= cluster.num_machines
    return (num_machines, devices) if fits else None


def fit_cluster_law(groups: Sequence[Group], links: Links) -> Law | None:
    """Return the law of a cluster; None where no group fits its machines."""
    layouts = {group.num_devices: layout_of(links.cluster, group.num_devices, group.num_machines) for group in groups}
    used = [group for group in groups if layouts[group.num_devices] is not None]
    if not used:
        return None
    points = Points.of(used)
    shortest_s = float(points.time_s.min())
    names = _names(layout for layout in layouts.values() if layout is not None)

    def form_of(names: Sequence[str]) -> _Form:
        def predicted_s(values: Floats, at: Points) -> Floats:
            named, seconds = dict(zip(names, values.tolist(), strict=True)), np.empty(len(at.time_s))
            for number in np.unique(at.num_devices).tolist():
                rows, layout = at.num_devices == number, layouts[int(number)]
                assert layout is not None, "only groups that fit are used"
                seconds[rows] = np.min([cost(at.size_bytes[rows]) for cost in links.costs(layout, named)], axis=0)
            return seconds

        def tells(inside: Points) -> bool:
            kept = (layouts[int(number)] for number in np.unique(inside.num_devices).tolist())
            return set(names) <= set(_names(layout for layout in kept if layout is not None))

        more = len(names) - 1
        return _Form(
            names=names,
            units=np.array([shortest_s, *[1.0] * more]),
            start=[_START[name] for name in names],
            lower=[0.0, *[1e-4] * more],
            upper=[_MOST_OVERHEAD_S / shortest_s, *[10.0] * more],
            nothing=[0.0] * len(names),
            predicted_s=predicted_s,
            tells=tells,
        )

    form = form_of(names)
    values = form.fit(points)
    unseen = []
    for index, name in enumerate(names[1:], start=1):  # does any timing depend on it?
        step = np.where(np.arange(len(names)) == index, 1.5, 1.0)
        low, high = form.predicted_s(values / step, points), form.predicted_s(values * step, points)
        unseen += [name] * (float(np.abs(np.log(high / low)).max()) <= _SEEN)
    seen = [name for name in names if name not in unseen]

    def cost_of(values: Floats, num_devices: int) -> TransferCost:
        layout = layout_of(links.cluster, num_devices)
        if layout is None:
            raise ValueError(f"{num_devices} devices do not fill machines of the cluster")
        return cheapest_of(links.costs(layout, dict(zip(seen, values.tolist(), strict=True))))

    name = f"cheapest of {', '.join(links.algorithms)}, with the rates and latencies of the spec's cluster"
    law = form_of(seen).law(name, used, cost_of)
    notes = [f"{name} stays at 1: no timing depends on it" for name in unseen]
    if skipped := [str(number) for number, layout in layouts.items() if layout is None]:
        notes.append(f"{', '.join(skipped)} devices do not fill machines of the cluster: not in the law")
    notes += [
        f"{name} {share:.3g} is above 1: the links are faster than the cluster says"
        for name, share in law.parameters.items()
        if name.endswith("efficiency") and share > 1
    ]
    return replace(law, notes=tuple(notes))


def _names(layouts: Iterable[tuple[int, int]]) -> list[str]:
    """Return the parameters that such layouts may depend on."""
    every = list(layouts)
    is_outside, is_inside = any(machines > 1 for machines, _ in every), any(devices > 1 for _, devices in every)
    return ["overhead_s", *["bandwidth_efficiency"] * is_outside, *["inside_efficiency"] * is_inside]


# -- all fits --------------------------------------------------------------------------------------------------------

USED = "all_reduce"  # the collective that a plan's curves are of


@frozen
class Asked:
    """What the user says beside the data: the question, the device and type of a profile, its batch."""

    spec: Path | None = None
    form: str | None = None
    device: str | None = None
    dtype: str | None = None
    batch_size: int | None = None


@frozen
class Fitted:
    """What was fitted."""

    curves: tuple[Curve, ...] = ()  # one for every collective and number of devices
    # law, cluster_law: of all-reduces on any number of devices, without and with the question's cluster
    law: Law | None = None
    cluster_law: Law | None = None
    utilisation: Utilisation | None = None
    iterations: Iterations | None = None
    problem: Problem | None = None
    # keys of the question's own calibration block that no fit replaces
    kept: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()  # names of all files that were read
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
    curves = _fitted_curves(found.timings, asked.form)
    used = [curve.group for curve in curves if curve.group.collective == USED]
    cluster_law, iterations = None, None
    if problem is not None and used:  # gradients are added up as fast as in the family all_reduce
        precision = Precision.of(problem.training.dtype, problem.training.optimizer)
        device = problem.cluster.training_groups()[0].device
        links = Links(
            cluster=problem.cluster,
            algorithms=problem.calibration.algorithms,
            reduce_bytes_per_s=problem.calibration.reduce_bytes_per_s(device, precision.gradient_bytes),
        )
        cluster_law = fit_cluster_law(used, links)
    if found.iterations:
        if problem is None:
            mend = "Add --spec SPEC: the question that the rows change."
            first = found.iterations[0]
            raise SpecError.one("these iterations have no question.", mend, file=first.file, line=first.line)
        iterations = fit_iterations(found.iterations, problem.resolved)
    notes = list(found.notes)
    if problem is not None and used:
        total = float(problem.dnn.num_trainable * precision.gradient_bytes)
        largest = min(float(group.size_bytes[-1]) for group in used)
        if total > largest:
            sizes = [format_human(one, Dimension.DATA) for one in (total, largest)]
            notes.append(
                f"the gradients of {problem.dnn.name} come to {sizes[0]}, and sizes up to {sizes[1]} were timed: what "
                f"is larger is extrapolated; time larger ones, too"
            )
    fitted = Fitted(
        curves=curves,
        law=fit_free_law(used),
        cluster_law=cluster_law,
        utilisation=_utilisation(found, asked, problem),
        iterations=iterations,
        problem=problem,
        files=tuple(dict.fromkeys(visible(path.name) for path in found.files)),
        notes=tuple(notes),
    )
    block = {} if problem is None else dict(problem.resolved.get("calibration") or {})
    gone = {"source", "known_error"}
    if used:
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


def _fitted_curves(timings: Sequence[Timing], form: str | None) -> tuple[Curve, ...]:
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


# -- layers ----------------------------------------------------------------------------------------------------------


def _utilisation(found: Measurements, asked: Asked, problem: Problem | None) -> Utilisation | None:
    """Return what a profile says of its device; None where there is no profile."""
    paths = [*found.layer_tables, *found.profiles]
    if not paths:
        return None
    if len(paths) > 1:
        names = ", ".join(visible(path.name) for path in paths[:6])
        mend = "Give one at a time: a calibration holds one utilisation."
        raise SpecError.one(f"{len(paths)} profiles of layers: {names}.", mend, file=paths[1])
    path = paths[0]
    if asked.device is not None:
        groups = () if problem is None else problem.cluster.machine_groups
        own = next((group.device for group in groups if group.device.name == asked.device), None)
        device = own or data.device(asked.device)
    else:
        devices = {} if problem is None else {one.device.name: one.device for one in problem.cluster.training_groups()}
        if len(devices) != 1:
            what = f"which of {', '.join(devices)} was profiled" if devices else "the device that was profiled"
            raise SpecError.one(f"it is not known {what}.", "Add --device NAME (planner show devices).", file=path)
        device = next(iter(devices.values()))
    dtype = asked.dtype or (problem.training.dtype if problem is not None else "fp32")
    times = read_layer_table(path) if path in found.layer_tables else _profile(path, asked, problem)
    try:
        return fit_utilisation(times, device, dtype=dtype)
    except ModelError as error:
        what, _, mend = str(error).partition(". ")
        raise SpecError.one(f"{what}.", mend, file=path) from None


def _profile(path: Path, asked: Asked, problem: Problem | None) -> LayerTimes:
    """Return a profile's seconds, with the multiply-adds of the question's network, or its own where it has some."""
    batch = asked.batch_size or (None if problem is None else problem.training.batch_per_device)
    if batch is None:
        raise SpecError.one("the batch of the profile is missing.", "Add --batch N.", file=path)
    measured = read_profile(path, batch_size=batch)
    networks = [*([problem.dnn] if problem is not None else []), measured.dnn]
    network = next((one for one in networks if one.num_multiply_adds), None)
    if network is None:
        what = "this profile has no multiply-adds" if problem is None else "the spec's network has no multiply-adds"
        mend = "Add --spec with the network, e.g. dnn: {zoo: resnet50}; or write the table of --template layers."
        raise SpecError.one(f"{what}.", mend, file=path)
    return layers_of_profile(path, measured, network, batch_size=batch)
