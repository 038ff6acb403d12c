"""Fit the constants of DDP's iterations to traced ones: what a copy takes, and by how much sleeping layers wake late.

A trace tells when buckets were ready, when their all-reduces ended and when the backward call came back; iteration
times are not used. Each trace gives a figure of its own; the constant is their median, its interval the medians without
any one session.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter
from scipy.optimize import brentq

from planner.calibration.run_files import Run
from planner.models.ddp import copied_out_s

__all__ = ["FittedConstant", "fit_copy_s_per_byte", "fit_wake_s"]

_MOST_S_PER_BYTE = 1e-7  # ten megabytes a second: no copy is slower


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstant:
    """The median over traces; lowest and highest without any one session; the range of single runs' medians."""

    value: float
    low: float
    high: float
    least_of_runs: float
    most_of_runs: float
    num_runs: int


@dataclass(frozen=True, slots=True)
class TracedBucket:
    """When a bucket was ready, and when its all-reduce ended."""

    ready_offset_s: float
    end_offset_s: float


@dataclass(frozen=True, slots=True)
class TracedIteration:
    """When worker 0 had each bucket, when its all-reduce ended, and when the call of backward came back."""

    backward_call_end_offset_s: float
    buckets: list[TracedBucket]

    @property
    def ready_s(self) -> list[float]:
        """When worker 0 had each bucket."""
        return [bucket.ready_offset_s for bucket in self.buckets]

    @property
    def end_s(self) -> list[float]:
        """When the all-reduce of each bucket ended."""
        return [bucket.end_offset_s for bucket in self.buckets]


def traces_of(run: Run) -> list[TracedIteration]:
    """Return the traces of a run's file whose buckets are those that formed."""
    results = json.loads(Path(run.file).read_text(encoding="utf-8")).get("results") or {}
    traces = TypeAdapter(list[TracedIteration]).validate_python(results.get("traced_iterations_worker0") or [])
    num_buckets = len(run.all_reduce.buckets) if run.all_reduce else 0
    return [trace for trace in traces if len(trace.buckets) == num_buckets > 0]


def fit_copy_s_per_byte(runs: Iterable[Run]) -> FittedConstant | None:
    """Return the seconds of copying a byte out of its bucket, of runs whose gradients are no views of them.

    None where no such run was traced.
    """
    return _fit((run for run in runs if run.all_reduce and not run.all_reduce.is_bucket_view), _copy_s_per_byte)


def fit_wake_s(runs: Iterable[Run]) -> FittedConstant | None:
    """Return by how much a layer gets later for every worker, of emulated runs with several buckets.

    None where no such run was traced.
    """
    known = (run for run in runs if run.all_reduce and not run.family.is_real and len(run.all_reduce.buckets) > 1)
    return _fit(known, _wake_s)


def _fit(runs: Iterable[Run], figure: Callable[[Run, TracedIteration], float]) -> FittedConstant | None:
    """Return the median of a figure of every trace, and how much it depends on single sessions and runs."""
    found = [(run.session, run.job_id, figure(run, trace)) for run in runs for trace in traces_of(run)]
    if not found:
        return None
    sessions, jobs = ({row[place] for row in found} for place in (0, 1))
    without = [[value for session, _, value in found if session != left_out] for left_out in sessions]
    of_runs = [float(np.median([value for _, job, value in found if job == one])) for one in jobs]
    medians = [float(np.median(values)) for values in without if values] or of_runs
    return FittedConstant(
        value=float(np.median([value for *_, value in found])),
        low=min(medians),
        high=max(medians),
        least_of_runs=min(of_runs),
        most_of_runs=max(of_runs),
        num_runs=len(of_runs),
    )


def _copy_s_per_byte(run: Run, trace: TracedIteration) -> float:
    """Return what a copied byte takes so that the last copy ends when the backward call came back."""
    assert run.all_reduce is not None
    sizes = [bucket.size_bytes for bucket in run.all_reduce.buckets]

    def late_s(copy_s_per_byte: float) -> float:
        return copied_out_s(trace.end_s, sizes, copy_s_per_byte) - trace.backward_call_end_offset_s

    return float(brentq(late_s, 0.0, _MOST_S_PER_BYTE, xtol=1e-16)) if late_s(0.0) < 0 else 0.0


def _wake_s(run: Run, trace: TracedIteration) -> float:
    """Return how much later than alone the last bucket was ready after the first, for each layer between and worker."""
    assert run.all_reduce is not None
    layers = run.workers[0].layers
    ready_s = {tensor.name: tensor.ready_offset_s for layer in layers for tensor in layer.tensors}
    first_s, last_s = (max(ready_s[name] for name in run.all_reduce.buckets[place].tensors) for place in (0, -1))
    ends_s = [max(tensor.ready_offset_s for tensor in layer.tensors) for layer in layers if layer.tensors]
    between = sum(first_s < end_s <= last_s for end_s in ends_s)
    later_s = (trace.ready_s[-1] - trace.ready_s[0]) - (last_s - first_s)
    return later_s / max(between, 1) / run.num_workers
