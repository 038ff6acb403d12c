"""Measured runs beside what is predicted of them: a row each, errors by family, and the regret of choosing so.

An error is predicted / measured - 1, of the median iteration. Regret: among jobs of one session that train the same
network on the same workers, and so differ in what a planner may choose (bucket cap; servers, placement, overlap), how
much longer the one predicted fastest took than the one measured fastest.

A run is predicted from its inputs alone; nothing of the results is read. *All-reduce* (DistributedDataParallel):
profiles alone, links alone, and the buckets that formed, by :mod:`planner.models.ddp`. *Parameter servers*: profiles
alone, links alone, and where every tensor lies, by :mod:`planner.models.exchange`. Here the file's figures become
theirs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from planner.calibration.run_files import (
    AllReduceCurves,
    AllReduceSettings,
    CurvePoint,
    Run,
    RunWorker,
    ServerCurves,
    ServerSettings,
    is_run,
    read_run,
)
from planner.errors import Fault, ModelError, SpecError
from planner.frozen import frozen
from planner.models.communication import MeasuredCurve
from planner.models.ddp import Collectives, DdpConstants, DdpIteration, DdpWorker, iterate, per_byte_s, steadied
from planner.models.exchange import Exchange, Overlap, Servers, Worker
from planner.models.exchange_run import steady
from planner.shown import document_of

SCHEMA = "planner.runs/1"
_MOST_FILES = 10_000
NAMES = {
    "allreduce_emulated": "all-reduce, emulated compute",
    "allreduce_real": "all-reduce, real compute",
    "ps_emulated": "parameter servers, emulated compute",
    "ps_real": "parameter servers, real compute",
}


@frozen
class RunPrediction:
    """Seconds of one iteration and what they consist of (the parts sum to it), with remarks for the reader."""

    iteration_time_s: float
    breakdown_s: Mapping[str, float]
    notes: tuple[str, ...] = ()


@frozen
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

    def to_document(self) -> dict[str, object]:
        """Return the row as plain data."""
        return {
            "job": self.run.job_id,
            "session": self.run.session,
            "family": self.run.family.value,
            **document_of(self, "predicted_s", "measured_s", "error"),
            **document_of(self.prediction, "breakdown_s", "notes"),
        }


@frozen
class FamilyErrors:
    """Absolute relative errors of the runs of one family; ``bias`` is the mean with its sign, ``worst`` a job."""

    family: str
    count: int
    mean: float
    median: float
    largest: float
    bias: float
    worst: str


@frozen
class Regret:
    """Jobs of one session to choose among; ``regret`` is chosen measured / best measured - 1."""

    session: str
    jobs: tuple[str, ...]
    chosen: str
    best: str
    regret: float


@frozen
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

    def to_document(self) -> dict[str, object]:
        """Return everything as plain data, of the schema ``planner.runs/1``."""
        return {
            "schema": SCHEMA,
            "runs": [row.to_document() for row in self.rows],
            "families": [asdict(errors) for errors in self.families],
            "regrets": [document_of(regret, "session", "chosen", "best", "regret", "jobs") for regret in self.regrets],
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
            raise SpecError.one(f"it holds {len(inside)} files.", "Name a smaller folder.", file=path)
        runs = [file for file in inside if is_run(file)]
        if not runs:
            raise SpecError.one("no file of a run is in it.", "Name a folder of such JSON files.", file=path)
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


@frozen
class WorkerParts:
    """A worker's seconds in whole iterations without communication."""

    # before_s, backward_s, update_s: zeroing and forward; backward; the optimiser's step
    before_s: float
    backward_s: float
    update_s: float
    stretch: float  # of the profile's backward pass, which has hooks, to that of whole iterations
    deviation: float  # standard deviation over mean, from the 10th to the 90th percentile


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
_STEADY = 0.02  # of an iteration: by more, and the reader is told


@frozen
class ServerConstants:
    """What no input of a run tells."""

    # of a worker's own time for every key that it pushes, whose backward pass it lengthens. Measured backward passes
    # were 10 to 60 microseconds a key longer
    key_s: float = 45e-6
    # of a worker's own time for every byte that it pushes, where layers compute; sleeping ones lose none. One run
    # computes; its backward passes were 0.8e-9 and 0.9e-9 longer
    copy_s_per_byte: float = 1e-9
    header_bytes: float = 66.0  # of a message: Ethernet, IP and TCP, for one that fills no packet


def predict_servers(run: Run, constants: ServerConstants | None = None) -> RunPrediction:
    """Return the seconds of one iteration of a run with parameter servers and what they consist of.

    Workers that nothing holds together begin evenly spread over what the busiest link needs for an iteration, so that
    those which fall apart in use do.

    Parameters
    ----------
    run
        Its inputs are read, and nothing else.
    constants
        What no input tells; those of measured runs unless given.

    Raises
    ------
    ModelError
        If the run is one with all-reduces.
    """
    exchange = exchange_of(run, constants or ServerConstants())
    found = steady(replace(exchange, stagger_s=exchange.busiest_s / len(exchange.workers)))
    notes = []
    if found.lag > _STEADY:
        notes.append(f"Workers fall apart: the last one begins {found.lag:.0%} of an iteration after the first.")
    if found.spread > _STEADY:
        notes.append(f"Iterations differ by {found.spread:.0%}; the median is given.")
    slowest = max(exchange.workers, key=lambda worker: sum(worker.forward_s) + worker.backward_s)
    forward_s = sum(slowest.forward_s)
    return RunPrediction(
        iteration_time_s=found.iteration_s,
        breakdown_s={
            "forward": forward_s,
            "backward": slowest.backward_s,
            "exposed_communication": found.iteration_s - forward_s - slowest.backward_s,
        },
        notes=tuple(notes),
    )


def exchange_of(run: Run, constants: ServerConstants) -> Exchange:
    """Return what the run exchanges, and when it may; profiles stretched to whole iterations and to what pushing costs.

    A profile of no seconds stays as it is.
    """
    settings, _ = servers_of(run)
    rate = link_rate_bytes_per_s(run)
    workers = []
    for index, worker in enumerate(run.workers):
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
            Worker(
                forward_s=tuple(ahead * layer.forward_s for layer in worker.layers),
                backward_s=backward_s,
                ready_s=tuple(back * ready_s[key.tensor] for key in settings.keys),
                bytes_per_s=rate,
                home=index if settings.is_co_located and index < settings.num_servers else None,
            )
        )
    places = {tensor.name: index for index, layer in enumerate(run.workers[0].layers) for tensor in layer.tensors}
    size_bytes = np.zeros((len(settings.keys), settings.num_servers))
    size_bytes[range(len(settings.keys)), [key.server for key in settings.keys]] = [
        key.size_bytes for key in settings.keys
    ]
    return Exchange(
        workers=tuple(workers),
        servers=(Servers(bytes_per_s=rate),) * settings.num_servers,
        pushed_bytes=size_bytes,
        pulled_bytes=size_bytes,
        key_layer=tuple(places[key.tensor] for key in settings.keys),
        overlap=overlap_of(settings),
        slack=0.0 if settings.has_barrier else None,
        latency_s=message_s(run) / 4,  # a message there and back; requests go behind the last gradient
        message_bytes=constants.header_bytes,
    )


def overlap_of(settings: ServerSettings) -> Overlap:
    """Return what overlaps; behind a barrier no sum is sent early."""
    return Overlap.PUSH if settings.has_barrier and settings.overlap.pulls_early else settings.overlap


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
