"""Measured runs beside what is predicted of them: a row each, errors by family, and the regret of choosing so.

An error is predicted / measured - 1, of the median iteration. Regret: among jobs of one session that train the same
network on the same workers, and so differ in what a planner may choose (bucket cap; servers, placement, overlap), how
much longer the one predicted fastest took than the one measured fastest.

A run is predicted from its inputs alone; nothing of the results is read. *All-reduce* (DistributedDataParallel):
profiles alone, links alone, and the buckets that formed, by :mod:`planner.models.ddp`. *Parameter servers*: profiles
alone, links alone, and where every tensor lies, by :mod:`planner.models.server_fluid`. Here the file's figures become
theirs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.calibration.run_files import (
    AllReduceCurves,
    AllReduceSettings,
    CurvePoint,
    Overlap,
    Run,
    RunWorker,
    ServerCurves,
    ServerSettings,
    is_run,
    read_run,
)
from planner.errors import Fault, ModelError, SpecError
from planner.models.communication import MeasuredCurve
from planner.models.ddp import Collectives, DdpConstants, DdpIteration, DdpWorker, iterate, per_byte_s, steadied
from planner.models.server_fluid import (
    FIRST_WINDOW_BYTES,
    Exchange,
    ExchangeWorker,
    FairFluid,
    Fluid,
    Transport,
    WindowFluid,
    begins_s,
    routes_of,
)

SCHEMA = "planner.runs/1"
_MOST_FILES = 10_000
NAMES = {
    "allreduce_emulated": "all-reduce, emulated compute",
    "allreduce_real": "all-reduce, real compute",
    "ps_emulated": "parameter servers, emulated compute",
    "ps_real": "parameter servers, real compute",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrediction:
    """Seconds of one iteration and what they consist of (the parts sum to it), with remarks for the reader."""

    iteration_time_s: float
    breakdown_s: Mapping[str, float]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run; ``measured_s`` and ``error`` are None where its file holds no results."""

    run: Run
    prediction: RunPrediction

    @property
    def predicted_s(self) -> float:
        """Seconds of an iteration, predicted."""
        return self.prediction.iteration_time_s

    @property
    def measured_s(self) -> float | None:
        """Seconds of the median iteration, measured."""
        return self.run.measured.median_s if self.run.measured else None

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1."""
        return self.predicted_s / self.run.measured.median_s - 1 if self.run.measured else None

    def to_document(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {
            "job": self.run.job_id,
            "session": self.run.session,
            "family": self.run.family.value,
            "predicted_s": self.predicted_s,
            "measured_s": self.measured_s,
            "error": self.error,
            "breakdown_s": dict(self.prediction.breakdown_s),
            "notes": list(self.prediction.notes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyErrors:
    """Absolute relative errors of the runs of one family; ``bias`` is the mean with its sign, ``worst`` a job."""

    family: str
    count: int
    mean: float
    median: float
    largest: float
    bias: float
    worst: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Jobs of one session to choose among; ``regret`` is chosen measured / best measured - 1."""

    session: str
    jobs: tuple[str, ...]
    chosen: str
    best: str
    regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """All runs, in order of family, session and job."""

    rows: tuple[RunRow, ...]

    @property
    def families(self) -> tuple[FamilyErrors, ...]:
        """The errors of every family that was measured."""
        found = []
        for family in dict.fromkeys(row.run.family.value for row in self.rows):
            rows = [row for row in self.rows if row.run.family.value == family]
            known = {row.run.job_id: row.error for row in rows if row.error is not None}
            if not known:
                continue
            errors = np.array(list(known.values()))
            sizes = np.abs(errors)
            found.append(
                FamilyErrors(
                    family=family,
                    count=len(known),
                    mean=float(sizes.mean()),
                    median=float(np.median(sizes)),
                    largest=float(sizes.max()),
                    bias=float(errors.mean()),
                    worst=max(known, key=lambda job: abs(known[job])),
                )
            )
        return tuple(found)

    @property
    def regrets(self) -> tuple[Regret, ...]:
        """One for every session that measured alternatives: what choosing by prediction costs."""
        found = []
        for rows in _alternatives(row for row in self.rows if row.run.measured):
            measured_s = {row.run.job_id: row.run.measured.median_s for row in rows if row.run.measured}
            chosen = min(rows, key=lambda row: row.predicted_s).run.job_id
            best = min(measured_s, key=lambda job: measured_s[job])
            regret = measured_s[chosen] / measured_s[best] - 1
            session = rows[0].run.session
            found.append(Regret(session=session, jobs=tuple(measured_s), chosen=chosen, best=best, regret=regret))
        return tuple(found)

    def to_document(self) -> dict[str, Any]:
        """Return everything as plain data, of the schema ``planner.runs/1``."""
        return {
            "schema": SCHEMA,
            "runs": [row.to_document() for row in self.rows],
            "families": [asdict(errors) for errors in self.families],
            "regrets": [
                {name: getattr(regret, name) for name in ("session", "chosen", "best", "regret")}
                | {"jobs": list(regret.jobs)}
                for regret in self.regrets
            ],
        }

    def text(self) -> str:
        """Return the tables as text: runs, families, choices, and alternatives of which not all were measured."""
        width = max([len(row.run.job_id) for row in self.rows] + [3])
        lines = [f"{'run':<{width}}  predicted   measured    error"]
        for row in self.rows:
            measured = "         -" if row.measured_s is None else f"{row.measured_s:8.4f} s"
            error = "      -" if row.error is None else f"{row.error:+7.2%}"
            lines.append(f"{row.run.job_id:<{width}} {row.predicted_s:8.4f} s {measured}  {error}")
        if families := self.families:
            width = max(len(NAMES[one.family]) for one in families)
            lines += ["", f"{'family':<{width}}  runs   mean  median  worst    bias  worst run"]
            lines += [
                f"{NAMES[one.family]:<{width}}  {one.count:4}  {one.mean:5.2%}  {one.median:5.2%}  {one.largest:5.2%}"
                f"  {one.bias:+6.2%}  {one.worst}"
                for one in families
            ]
        if regrets := self.regrets:
            lines += ["", "choices within a session"]
            lines += [
                f"{len(one.jobs)} runs of {one.session}: regret {one.regret:.2%}; predicted best {one.chosen}, "
                f"measured best {one.best}"
                for one in regrets
            ]
        rankings = [rows for rows in _alternatives(self.rows) if not all(row.run.measured for row in rows)]
        if rankings:
            lines += ["", "alternatives not all measured, predicted fastest first"]
        for rows in rankings:
            lines.append(f"{len(rows)} runs of {rows[0].run.session}")
            ordered = sorted(rows, key=lambda row: (row.predicted_s, row.run.job_id))
            lines += [f"  {row.predicted_s:8.4f} s  {row.run.job_id}" for row in ordered]
        return "\n".join(lines) + "\n"


def _alternatives(rows: Iterable[RunRow]) -> list[list[RunRow]]:
    """Return rows that are alternatives of one choice, in order; a row without another is no choice."""
    groups: dict[tuple[object, ...], list[RunRow]] = {}
    for row in rows:
        run = row.run
        network = tuple(sorted((key, str(value)) for key, value in run.model.items()))
        factors = tuple(worker.compute_factor for worker in run.workers)
        groups.setdefault((run.session, run.family, network, factors), []).append(row)
    return [group for group in groups.values() if len(group) > 1]


def compare(paths: Iterable[str | Path]) -> RunComparison:
    """Return predicted against measured for files of runs, or all such files in folders.

    Raises
    ------
    SpecError
        If there is none, or a file is wrong; what is wrong with all files is told at once.
    """
    runs: list[Run] = []
    faults: list[Fault] = []
    for path in run_files(paths):
        try:
            runs.append(read_run(path))
        except SpecError as error:
            faults += error.faults
    if faults:
        raise SpecError.of(faults)
    return compare_runs(runs)


def compare_runs(runs: Iterable[Run]) -> RunComparison:
    """Return predicted against measured for runs that were read."""
    order = {name: place for place, name in enumerate(NAMES)}
    ordered = sorted(runs, key=lambda run: (order[run.family.value], run.session, run.job_id))
    return RunComparison(rows=tuple(RunRow(run=run, prediction=predict(run)) for run in ordered))


def run_files(paths: Iterable[str | Path]) -> tuple[Path, ...]:
    """Return the files of runs: those named, and those in folders that are named, each once, in order of name.

    Raises
    ------
    SpecError
        If a folder holds none, or more than ten thousand JSON files.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            found[path] = None
            continue
        inside = sorted(path.glob("*.json"))
        if len(inside) > _MOST_FILES:
            fault = Fault(file=str(path), problem=f"it holds {len(inside)} files.", mend="Name a smaller folder.")
            raise SpecError.of([fault])
        runs = [file for file in inside if is_run(file)]
        if not runs:
            mend = "Name a folder of such JSON files."
            raise SpecError.of([Fault(file=str(path), problem="no file of a run is in it.", mend=mend)])
        found |= dict.fromkeys(runs)
    return tuple(found)


_P10_TO_P90 = 2.563  # standard deviations of a normal figure
_FEWEST = 5  # repetitions of which a mean is worth having


def predict(run: Run) -> RunPrediction:
    """Return the prediction of a run.

    Raises
    ------
    ModelError
        If what it gives is beyond the model's range.
    """
    try:
        return predict_all_reduce(run) if run.family.is_all_reduce else predict_servers(run)
    except ModelError as error:
        raise ModelError(f"{run.file}: {error}") from None


# -- all-reduce ------------------------------------------------------------------------------------------------------


def predict_all_reduce(run: Run, constants: DdpConstants | None = None) -> RunPrediction:
    """Return the seconds of one iteration of an all-reduce run and what they consist of.

    Raises
    ------
    ModelError
        If the run is one with parameter servers.
    """
    times = iteration_of(run, constants or DdpConstants())
    ready_s = times.ready_s[0]
    settings, curves = all_reduce_of(run)
    largest_bytes = max(bucket.size_bytes for bucket in settings.buckets)
    notes = []
    if times.computed_s >= times.exchanged_s:
        notes.append("Computation hides all communication.")
    if largest_bytes > curves.isolated[-1].size_bytes:
        beyond = "is beyond the measured curve, which goes on at its last slope."
        notes.append(f"A bucket of {largest_bytes} bytes {beyond}")
    if run.network.delay_s > 0:
        notes.append("Links with a delay vary more than the measured curve tells.")
    return RunPrediction(
        iteration_time_s=times.iteration_time_s,
        breakdown_s={
            "before_backward": times.before_s,
            "backward_before_communication": max(ready_s - times.before_s, 0.0),
            "backward_beside_communication": max(times.computed_s - max(ready_s, times.before_s), 0.0),
            "exposed_communication": max(times.computed_s, times.exchanged_s) - times.computed_s,
            "update": times.update_s,
        },
        notes=tuple(notes),
    )


def iteration_of(run: Run, constants: DdpConstants) -> DdpIteration:
    """Return the whole iteration: when buckets are ready, start and end.

    A worker whose layers sleep for their time loses a share of its backward pass while the link is busy. Every layer
    is late by the same time: of layers that follow one another each ``layer_s`` seconds, a second in which the link is
    busy passes ``1 / (layer_s + late_s)``.
    """
    settings, curves = all_reduce_of(run)
    curve, byte_s = curve_of(curves)
    buckets = Collectives.rings(
        [bucket.size_bytes for bucket in settings.buckets],
        curve,
        per_byte_s=byte_s,
        num_workers=run.num_workers,
        num_concurrent=settings.num_concurrent,
    )
    factors = [worker.compute_factor for worker in run.workers]
    workers = []
    for worker in run.workers:
        parts = worker_parts(run, worker)
        ready_s = {tensor.name: tensor.ready_offset_s for layer in worker.layers for tensor in layer.tensors}
        num_layers = sum(1 for layer in worker.layers if layer.tensors)
        late_s = 0.0 if run.family.is_real else constants.wake_s * run.num_workers * num_layers
        workers.append(
            DdpWorker(  # its profile stretched to whole iterations
                before_s=parts.before_s,
                bucket_offset_s=tuple(
                    parts.stretch * max(ready_s[name] for name in bucket.tensors) for bucket in settings.buckets
                ),
                backward_s=parts.backward_s,
                lost_share=late_s / (worker.backward_s + late_s),
                deviation=parts.deviation,
                num_equal=factors.count(worker.compute_factor),
            )
        )
    return iterate(
        workers,
        buckets,
        update_s=max(worker_parts(run, worker).update_s for worker in run.workers),
        copy_s_per_byte=0.0 if settings.is_bucket_view else constants.copy_s_per_byte,
    )


def curve_of(curves: AllReduceCurves) -> tuple[MeasuredCurve, float]:
    """Return the curve of the session as training meets it, and the seconds of a byte of a large all-reduce."""
    points = curves.isolated
    repeats_s: dict[float, list[float]] = {}
    for again in curves.at_end:
        first = next((point for point in points if point.size_bytes == again.size_bytes), None)
        trains = [p.back_to_back_s for p in (first, again) if p and p.repetitions >= _FEWEST and p.back_to_back_s]
        together = [pair.both_s / 2 for pair in curves.together if pair.size_bytes == again.size_bytes]
        repeats_s[float(again.size_bytes)] = [again.median_s, *trains, *together]
    sizes = [float(point.size_bytes) for point in points]
    curve = steadied(sizes, [point.median_s for point in points], repeats_s)
    return curve, per_byte_s(sizes, curve)


def all_reduce_of(run: Run) -> tuple[AllReduceSettings, AllReduceCurves]:
    """Return what an all-reduce run has, or refuse another one."""
    if run.all_reduce is None or run.all_reduce_curves is None:
        raise ModelError(f"{run.job_id} is a run with parameter servers; it has no all-reduces to predict.")
    return run.all_reduce, run.all_reduce_curves


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """A worker's seconds in whole iterations without communication.

    Attributes
    ----------
    before_s, backward_s, update_s
        Zeroing and forward; backward; the optimiser's step.
    stretch
        Of the profile's backward pass, which has hooks, to that of whole iterations.
    deviation
        Standard deviation over mean, from the 10th to the 90th percentile.
    """

    before_s: float
    backward_s: float
    update_s: float
    stretch: float
    deviation: float


def worker_parts(run: Run, worker: RunWorker) -> WorkerParts:
    """Return what a worker takes in whole iterations without communication.

    They are measured with all workers at once where the file has that, else alone. Workers of one kind differ by chance
    alone, so that the mean of all says more than each one's own.
    """
    alike = [
        part
        for part, other in zip(run.all_workers, run.workers, strict=False)
        if other.compute_factor == worker.compute_factor
    ]
    parts = alike or [worker.alone]

    def mean(name: str) -> float:
        """Return the mean of a part over measured iterations, or the profile's where they do not tell."""
        values = [value for part in parts if (value := getattr(part, name)) is not None]
        return float(np.mean(values)) if values else float(getattr(worker, name))

    backward_s = mean("backward_s")
    spreads = [(part.p90_s - part.p10_s) / _P10_TO_P90 / part.median_s for part in (worker.alone, *parts)]
    return WorkerParts(
        before_s=mean("zero_grad_s") + mean("forward_s"),
        backward_s=backward_s,
        update_s=mean("update_s"),
        stretch=backward_s / worker.backward_s if run.family.is_real else 1.0,  # hooks cost a sleeping layer nothing
        deviation=float(np.median(spreads)),
    )


# -- parameter servers ----------------------------------------------------------------------------------------------

_LARGE_BYTES = 1 << 20  # from here on a transfer is as fast as the link
_SMALL_BYTES = 4096  # up to here it is as slow as a message
_LEAST_MESSAGE_S = 1e-4  # two processes of one host take as long
_HEADERS_BYTES, _FRAME_BYTES = 52, 14  # IP and TCP with time stamps, inside a frame; Ethernet's own, around it
_FINE_STEP_S, _COARSE_STEP_S = 3e-4, 1e-3
_FINE_UNTIL_S = 2.0  # of the busiest link: from here on steps grow with it; measured iterations have half of that
_SETTLING = 3  # iterations before those that count
_COUNTED = 4  # even: workers may take turns
_COUNTED_UNSTEADY = 12  # where those differ: one of them says little
_STEADY = 0.02  # by how much of an iteration they may differ


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConstants:
    """What no input of a run tells; fitted to 13 measured runs of 9 sessions, which it describes and no others.

    Attributes
    ----------
    window_share
        Of the receiver's buffer that a connection may have unacknowledged: half, as Linux holds ready for payload
        (``net.ipv4.tcp_adv_win_scale`` of 1). Kept because it fits best of 0.4 to 1.
    pause_s
        After each of which a connection without traffic halves its window. Fitted; one run, of eight
        workers that push and pull at once, sets it. It also stands in for losses, which the model leaves out: Linux
        itself halves windows after 0.2 s.
    stagger_share
        Between the first iterations of two workers, of what the busiest link needs for an iteration over the number of
        workers. Not fitted: of 1 they begin evenly spread, so that those which fall apart in use do, on links of any
        rate. From 0.5 on, the one run that tells is in the steady state that was measured.
    key_s
        Of a worker's own time for every key that it pushes, whose backward pass it lengthens. Fitted, 0 to 60e-6.
    copy_s_per_byte
        Of a worker's own time for every byte that it pushes, where layers compute; sleeping ones lose none. One run
        computes; its backward passes were 0.8e-9 and 0.9e-9 longer.
    header_bytes
        Of a message: Ethernet, IP and TCP, for one that fills no packet.
    """

    window_share: float = 0.5
    pause_s: float = 0.03
    stagger_share: float = 1.0
    key_s: float = 45e-6
    copy_s_per_byte: float = 1e-9
    header_bytes: float = 66.0


def predict_servers(run: Run, constants: ServerConstants | None = None, *, ideal: bool = False) -> RunPrediction:
    """Return the seconds of one iteration of a run with parameter servers and what they consist of.

    Parameters
    ----------
    run
        Its inputs are read, and nothing else.
    constants
        What no input tells; those fitted to measured runs unless given.
    ideal
        Share links max-min fairly, as if connections had no windows and queues.

    Raises
    ------
    ModelError
        If the run is one with all-reduces.
    """
    constants = constants or ServerConstants()
    exchange, busy_s = exchange_of(run, constants), busiest_link_s(run)
    routes = routes_of(exchange, link_rate_bytes_per_s(run))
    coarser = max(1.0, busy_s / _FINE_UNTIL_S)  # where iterations take many steps, so that the work is bounded
    transport = Transport(
        window_bytes=max(constants.window_share * run.network.receive_buffer_bytes, FIRST_WINDOW_BYTES),
        pause_s=constants.pause_s,
        round_trip_s=message_s(run),
        largest_output_bytes=float(run.network.output_limit_bytes),
        fine_step_s=coarser * _FINE_STEP_S,
        coarse_step_s=coarser * _COARSE_STEP_S,
    )
    for counted in (_COUNTED, _COUNTED_UNSTEADY):
        fluid: Fluid = FairFluid(routes) if ideal else WindowFluid(routes, transport)
        starts_s = begins_s(exchange, routes, fluid, num_iterations=_SETTLING + counted + 1)
        periods_s = np.diff(starts_s[:, _SETTLING:], axis=1)
        iteration_time_s = float(np.median(periods_s))
        spread = float(np.ptp(periods_s)) / iteration_time_s
        if spread <= _STEADY:
            break
    notes = []
    lag = float(np.ptp(starts_s[:, -1])) / iteration_time_s
    if lag > _STEADY:
        notes.append(f"Workers fall apart: the last one begins {lag:.0%} of an iteration after the first.")
    if spread > _STEADY:
        notes.append(f"Iterations differ by {spread:.0%}; the median is given.")
    if busy_s > 5 * _FINE_UNTIL_S:
        notes.append(f"A link is busy for {busy_s:.0f} s: steps of time are coarse, and the steady state is uncertain.")
    slowest = max(exchange.workers, key=lambda worker: sum(worker.forward_s) + worker.backward_s)
    forward_s = sum(slowest.forward_s)
    return RunPrediction(
        iteration_time_s=iteration_time_s,
        breakdown_s={
            "forward": forward_s,
            "backward": slowest.backward_s,
            "exposed_communication": iteration_time_s - forward_s - slowest.backward_s,
        },
        notes=tuple(notes),
    )


def exchange_of(run: Run, constants: ServerConstants) -> Exchange:
    """Return what the run exchanges, and when it may; profiles stretched to whole iterations and to what pushing costs.

    A profile of no seconds stays as it is.
    """
    settings, _ = servers_of(run)
    workers = []
    for worker in run.workers:
        parts = worker_parts(run, worker)
        profiled_s = sum(layer.backward_s for layer in worker.layers)
        backward_s = profiled_s * parts.stretch + constants.key_s * len(settings.keys)
        if run.family.is_real:
            backward_s += constants.copy_s_per_byte * run.total_size_bytes
        ready_s = {tensor.name: tensor.ready_offset_s for layer in worker.layers for tensor in layer.tensors}
        forward_s = sum(layer.forward_s for layer in worker.layers)
        ahead = parts.before_s / forward_s if forward_s > 0 else 1.0
        back = backward_s / profiled_s if profiled_s > 0 else 1.0
        workers.append(
            ExchangeWorker(
                forward_s=tuple(ahead * layer.forward_s for layer in worker.layers),
                backward_s=backward_s,
                ready_s=tuple(back * ready_s[key.tensor] for key in settings.keys),
            )
        )
    places = {tensor.name: index for index, layer in enumerate(run.workers[0].layers) for tensor in layer.tensors}
    message = message_s(run)
    return Exchange(
        workers=tuple(workers),
        key_bytes=tuple(float(key.size_bytes) for key in settings.keys),
        key_server=tuple(key.server for key in settings.keys),
        key_layer=tuple(places[key.tensor] for key in settings.keys),
        num_servers=settings.num_servers,
        is_co_located=settings.is_co_located,
        pushes_early=settings.overlap is not Overlap.SEQUENTIAL,
        pulls_early=settings.overlap in (Overlap.PUSH_PULL, Overlap.PUSH_PULL_FORWARD),
        forwards_early=settings.overlap is Overlap.PUSH_PULL_FORWARD,
        has_barrier=settings.has_barrier,
        header_bytes=constants.header_bytes,
        latency_s=message / 2,
        # A server's threads run one at a time: handing over a sum takes it what a small message takes, less the way.
        hand_over_s=max(message - 2 * run.network.delay_s, 0.0),
        stagger_s=constants.stagger_share * busiest_link_s(run) / run.num_workers,
    )


def link_rate_bytes_per_s(run: Run) -> float:
    """Return the payload that a link carries in a second, by the session's own curves of large transfers.

    Curves of all workers at once tell it where they share one server's link, those of one worker otherwise. Where they
    hold no large transfer, it is what full frames carry.
    """
    settings, curves = servers_of(run)

    def rates(num_workers: int, *named: Sequence[CurvePoint]) -> list[float]:
        """Return the rates of large transfers; none where there is none."""
        large = [point for curve in named for point in curve if point.size_bytes >= _LARGE_BYTES]
        return [num_workers * point.size_bytes / point.median_s for point in large]

    found: list[float] = []
    if run.num_workers > 1 and not settings.is_co_located and curves.push_all and curves.pull_all:
        found = rates(run.num_workers, curves.push_all, curves.pull_all)
    found = found or rates(1, curves.push_one, curves.pull_one)
    if not found:
        mtu_bytes = run.network.mtu_bytes
        share = max(mtu_bytes - _HEADERS_BYTES, 1) / (mtu_bytes + _FRAME_BYTES)
        return share * run.network.link_rate_bytes_per_s
    return min(float(np.median(found)), run.network.link_rate_bytes_per_s)


def busiest_link_s(run: Run) -> float:
    """Return the seconds for which the busiest link, in its busier direction, carries payload in an iteration."""
    settings, _ = servers_of(run)
    num_workers = run.num_workers
    held = np.zeros(settings.num_servers)
    np.add.at(held, [key.server for key in settings.keys], [key.size_bytes for key in settings.keys])
    if settings.is_co_located:
        # Pushes of the other workers arrive at a server's host, and its own worker's sums of the other servers.
        most_bytes = max(float((held * (num_workers - 2)).max() + held.sum()), 0.0)
    else:
        most_bytes = max(float(held.max()) * num_workers, float(held.sum()))
    return most_bytes / link_rate_bytes_per_s(run)


def message_s(run: Run) -> float:
    """Return the seconds of a message without a payload worth naming, there and back, by the session's own curves.

    Where they hold large transfers alone, it is what these take beyond their bytes at the rate of the link.
    """
    _, curves = servers_of(run)
    points = [*curves.push_one, *curves.pull_one]
    small_s = [point.median_s for point in points if point.size_bytes <= _SMALL_BYTES]
    if small_s:
        return float(np.median(small_s))
    rate_bytes_per_s = link_rate_bytes_per_s(run)
    beyond_s = min(point.median_s - point.size_bytes / rate_bytes_per_s for point in points)
    return max(beyond_s, 2 * run.network.delay_s, _LEAST_MESSAGE_S)


def servers_of(run: Run) -> tuple[ServerSettings, ServerCurves]:
    """Return what a run with parameter servers has, or refuse another one."""
    if run.server is None or run.server_curves is None:
        raise ModelError(f"{run.job_id} is a run of all-reduces; it has no parameter servers to predict.")
    return run.server, run.server_curves
