"""What each part of the prediction of all-reduce runs is worth, and how near an ordinary question comes.

A part is left out by leaving out of the inputs what it reads, or by a constant of 0, so that no other way of predicting
has to be kept for it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import log

import numpy as np

from planner import api
from planner.calibration.run_files import IterationParts, Run
from planner.calibration.runs import RunRow, ServerConstants, predict_all_reduce, predict_servers
from planner.models.ddp import DdpConstants
from research.runs.questions import to_spec

__all__ = ["Ordinary", "band_errors", "ordinary", "server_errors", "without_parts"]

_FEWEST_SESSIONS = 3

_Change = Callable[[Run], Run]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordinary:
    """A run as an ordinary question: seconds of the buckets that formed, of the best groups, and how many those are."""

    job: str
    given_s: float
    planned_s: float
    num_buckets: int
    num_groups: int


def ordinary(run: Run) -> Ordinary:
    """Return what `planner predict` and `planner plan` answer to the question that an all-reduce run is."""
    problem = api.load(to_spec(run))
    plan = api.plan(problem)
    configuration = plan.configuration.to_document()
    return Ordinary(
        job=run.job_id,
        given_s=api.predict(problem).iteration_time_s,
        planned_s=plan.prediction.iteration_time_s,
        num_buckets=len(run.all_reduce.buckets) if run.all_reduce else 0,
        num_groups=len(configuration["fusion_groups"]),
    )


def server_errors(run: Run) -> tuple[float, float]:
    """Return the errors of a run with servers where keys cost a worker nothing, and of the ordinary family; signed."""
    measured_s = run.measured.median_s if run.measured else float("nan")
    free_s = predict_servers(run, ServerConstants(key_s=0.0)).iteration_time_s
    return free_s / measured_s - 1, api.predict(api.load(to_spec(run))).iteration_time_s / measured_s - 1


def band_errors(rows: Iterable[RunRow]) -> dict[str, dict[str, list[float]]]:
    """Return log(predicted / measured) of runs as ordinary questions, by family of the planner and session.

    Families of few sessions are left out: each has to be told by the others.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row.measured_s is not None:
            problem = api.load(to_spec(row.run))
            logs = found.setdefault(problem.families[0], {}).setdefault(row.run.session, [])
            logs.append(log(api.predict(problem).iteration_time_s / row.measured_s))
    return {family: logs for family, logs in sorted(found.items()) if len(logs) >= _FEWEST_SESSIONS}


def without_parts(runs: Iterable[Run]) -> Mapping[str, float]:
    """Return the mean absolute error of all-reduce runs by what was left out, all and nothing included."""
    known = [run for run in runs if run.measured and run.family.is_all_reduce]
    nothing = DdpConstants(wake_s=0.0, copy_s_per_byte=0.0)
    cases: dict[str, tuple[_Change, DdpConstants]] = {
        "nothing": (lambda run: run, DdpConstants()),
        "level of the curve by repeats": (_isolated, DdpConstants()),
        "computing of all workers at once": (_alone, DdpConstants()),
        "slowest of equal workers": (_steady, DdpConstants()),
        "copies of buckets": (lambda run: run, replace(DdpConstants(), copy_s_per_byte=0.0)),
        "late waking": (lambda run: run, replace(DdpConstants(), wake_s=0.0)),
        "one collective beside another": (_one_at_a_time, DdpConstants()),
        "all of these: the textbook's recursion": (
            lambda run: _one_at_a_time(_steady(_alone(_isolated(run)))),
            nothing,
        ),
    }
    return {name: _mean_error(known, change, constants) for name, (change, constants) in cases.items()}


def _mean_error(runs: list[Run], change: _Change, constants: DdpConstants) -> float:
    errors = [
        predict_all_reduce(change(run), constants).iteration_time_s / run.measured.median_s - 1
        for run in runs
        if run.measured
    ]
    return float(np.abs(errors).mean()) if errors else float("nan")


def _isolated(run: Run) -> Run:
    """Return the run without repeats of its curve."""
    assert run.all_reduce_curves is not None
    return replace(run, all_reduce_curves=run.all_reduce_curves.model_copy(update={"at_end": [], "together": []}))


def _alone(run: Run) -> Run:
    """Return the run without iterations of all workers at once."""
    return replace(run, all_workers=())


def _one_at_a_time(run: Run) -> Run:
    """Return the run with one collective at once."""
    assert run.all_reduce is not None
    return replace(run, all_reduce=run.all_reduce.model_copy(update={"num_concurrent": 1}))


def _steady(run: Run) -> Run:
    """Return the run with workers that do not vary."""
    workers = tuple(replace(worker, alone=_steady_parts(worker.alone)) for worker in run.workers)
    return replace(run, workers=workers, all_workers=tuple(_steady_parts(parts) for parts in run.all_workers))


def _steady_parts(parts: IterationParts) -> IterationParts:
    """Return iterations without spread."""
    return parts.model_copy(update={"p10_s": parts.median_s, "p90_s": parts.median_s})
