"""Predict a run of DistributedDataParallel from its inputs: profiles alone, links alone, and the buckets that formed.

Nothing of the results is read. The physics stand in :mod:`planner.models.ddp_iteration`,
:mod:`planner.models.ddp_ring` and :mod:`planner.models.ddp_curve`; here the file's figures become theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.calibration.runs.run_facts import (
    AllReduceCurves,
    AllReduceSettings,
    IterationParts,
    Run,
    RunPrediction,
    RunWorker,
)
from planner.errors import ModelError
from planner.models.collectives import MeasuredCurve
from planner.models.ddp_curve import per_byte_s, steadied
from planner.models.ddp_iteration import DdpConstants, DdpIteration, DdpWorker, iterate
from planner.models.ddp_ring import Collectives

__all__ = ["WorkerParts", "curve_of", "iteration_of", "predict", "settings_of", "worker_parts"]

_P10_TO_P90 = 2.563  # standard deviations of a normal figure
_FEWEST = 5  # repetitions of which a mean is worth having


def predict(run: Run, constants: DdpConstants | None = None) -> RunPrediction:
    """Return the seconds of one iteration of an all-reduce run and what they consist of.

    Raises
    ------
    ModelError
        If the run is one with parameter servers.
    """
    times = iteration_of(run, constants or DdpConstants())
    ready_s = times.ready_s[0]
    end_s = max(times.computed_s, times.exchanged_s)
    breakdown_s = {
        "before_backward": times.before_s,
        "backward_before_communication": max(ready_s - times.before_s, 0.0),
        "backward_beside_communication": max(times.computed_s - max(ready_s, times.before_s), 0.0),
        "exposed_communication": end_s - times.computed_s,
        "update": times.update_s,
    }
    return RunPrediction(iteration_time_s=times.iteration_time_s, breakdown_s=breakdown_s, notes=_notes(run, times))


def iteration_of(run: Run, constants: DdpConstants) -> DdpIteration:
    """Return the whole iteration: when buckets are ready, start and end."""
    settings, curves = settings_of(run)
    curve, byte_s = curve_of(curves)
    buckets = Collectives.rings(
        [bucket.size_bytes for bucket in settings.buckets],
        curve,
        per_byte_s=byte_s,
        num_workers=run.num_workers,
        num_concurrent=settings.num_concurrent,
    )
    return iterate(
        _workers(run, settings, constants),
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


def settings_of(run: Run) -> tuple[AllReduceSettings, AllReduceCurves]:
    """Return what an all-reduce run has, or refuse another one."""
    if run.all_reduce is None or run.all_reduce_curves is None:
        raise ModelError(f"{run.job_id} is a run with parameter servers; it has no all-reduces to predict.")
    return run.all_reduce, run.all_reduce_curves


def _workers(run: Run, settings: AllReduceSettings, constants: DdpConstants) -> list[DdpWorker]:
    """Return every worker as the model takes it."""
    factors = [worker.compute_factor for worker in run.workers]
    return [
        _worker(run, worker, settings, _lost_share(run, worker, constants), factors.count(worker.compute_factor))
        for worker in run.workers
    ]


def _lost_share(run: Run, worker: RunWorker, constants: DdpConstants) -> float:
    """Return the seconds that the backward pass loses for every second in which the link is busy; below 1.

    Every layer is late by the same time: of layers that follow one another each ``layer_s`` seconds, a second in which
    the link is busy passes ``1 / (layer_s + late_s)``.
    """
    if run.family.is_real:
        return 0.0
    layers = sum(1 for layer in worker.layers if layer.tensors)
    late_s = constants.wake_s * run.num_workers * layers
    return late_s / (worker.backward_s + late_s)


def _worker(run: Run, worker: RunWorker, settings: AllReduceSettings, lost_share: float, num_equal: int) -> DdpWorker:
    """Return one worker, its profile stretched to whole iterations."""
    parts = worker_parts(run, worker)
    ready_s = {tensor.name: tensor.ready_offset_s for layer in worker.layers for tensor in layer.tensors}
    return DdpWorker(
        before_s=parts.before_s,
        bucket_offset_s=tuple(parts.stretch * max(ready_s[name] for name in one.tensors) for one in settings.buckets),
        backward_s=parts.backward_s,
        lost_share=lost_share,
        deviation=parts.deviation,
        num_equal=num_equal,
    )


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
    backward_s = _mean(parts, "backward_s", worker.backward_s)
    spreads = [(part.p90_s - part.p10_s) / _P10_TO_P90 / part.median_s for part in (worker.alone, *parts)]
    return WorkerParts(
        before_s=_mean(parts, "zero_grad_s", worker.zero_grad_s) + _mean(parts, "forward_s", worker.forward_s),
        backward_s=backward_s,
        update_s=_mean(parts, "update_s", worker.update_s),
        stretch=backward_s / worker.backward_s if run.family.is_real else 1.0,  # hooks cost a sleeping layer nothing
        deviation=float(np.median(spreads)),
    )


def _mean(parts: Sequence[IterationParts], name: str, otherwise: float) -> float:
    """Return the mean of a part over measured iterations, or the profile's where they do not tell."""
    values = [value for part in parts if (value := getattr(part, name)) is not None]
    return float(np.mean(values)) if values else otherwise


def _notes(run: Run, times: DdpIteration) -> tuple[str, ...]:
    """Return what a reader should know about this prediction."""
    settings, curves = settings_of(run)
    largest = max(bucket.size_bytes for bucket in settings.buckets)
    notes = []
    if times.computed_s >= times.exchanged_s:
        notes.append("Computation hides all communication.")
    if largest > curves.isolated[-1].size_bytes:
        notes.append(f"A bucket of {largest} bytes is beyond the measured curve, which goes on at its last slope.")
    if run.network.delay_s > 0:
        notes.append("Links with a delay vary more than the measured curve tells.")
    return tuple(notes)
