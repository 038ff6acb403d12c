"""Read the file of one measured run: checked, told field by field what is wrong, in SI units.

The inputs are enough for a prediction; results may be missing.
"""

import json
from pathlib import Path

from pydantic import ValidationError

from planner.calibration.runs.run_contradictions import contradictions
from planner.calibration.runs.run_facts import (
    AllReduceSettings,
    Measured,
    Overlap,
    Run,
    RunFamily,
    RunWorker,
    ServerSettings,
)
from planner.calibration.runs.run_schema import RunSpec
from planner.errors import Fault, SpecError
from planner.importers.text import read_text
from planner.spec.source import Source, faults_of

__all__ = ["is_run", "read_run"]

_MOST_FAULTS = 20  # told at once


def read_run(path: Path) -> Run:
    """Return the run in a file.

    Raises
    ------
    SpecError
        If it is no readable JSON, a field is missing or impossible, or parts contradict one another; with the field,
        the value and how to mend it.
    """
    data = _data(path)
    source = Source(data=data, file=str(path), folder=path.parent, positions={})
    try:
        spec = RunSpec.model_validate(data)
    except ValidationError as error:
        raise SpecError.of(faults_of(error, source, RunSpec)[:_MOST_FAULTS]) from None
    if faults := [source.fault(*fault) for fault in contradictions(spec)]:
        raise SpecError.of(faults[:_MOST_FAULTS])
    return _build(spec, str(path))


def is_run(path: Path) -> bool:
    """Whether a file looks like one of these: a JSON mapping with family, session and inputs. Reads all of it."""
    try:
        return {"family", "session_id", "inputs"} <= _data(path).keys()
    except SpecError:
        return False


def _data(path: Path) -> dict[str, object]:
    """Return the JSON mapping in a file."""
    text = read_text(path)
    mend = "Give the file of one run, as its measurement wrote it."
    try:
        data = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        problem = f"this is not valid JSON: {error.msg}."
        fault = Fault(file=str(path), line=error.lineno, column=error.colno, problem=problem, mend=mend)
        raise SpecError.of([fault]) from None
    except (RecursionError, ValueError) as error:
        problem = str(error) if isinstance(error, ValueError) else "it is nested too deep."
        raise SpecError.of([Fault(file=str(path), problem=problem, mend=mend)]) from None
    if not isinstance(data, dict):
        raise SpecError.of([Fault(file=str(path), problem="a run is a mapping of keys.", mend=mend)])
    return data


def _refuse(word: str) -> float:
    """Refuse NaN and infinities, which JSON does not have."""
    raise ValueError(f"{word} is no figure.")


def _build(spec: RunSpec, file: str) -> Run:
    """Return the run of a checked file."""
    inputs = spec.inputs
    curves = inputs.communication_time_curves
    return Run(
        file=file,
        job_id=spec.job_id,
        session=spec.session_id,
        family=RunFamily(spec.family),
        model=dict(inputs.model),
        total_size_bytes=inputs.total_size_bytes,
        workers=tuple(_worker(spec, rank) for rank in range(inputs.world_size)),
        all_workers=tuple(part.build() for part in inputs.all_workers_computing_without_communication),
        network=inputs.network.build(),
        all_reduce=_all_reduce(spec),
        all_reduce_curves=curves.allreduce.build() if curves.allreduce else None,
        server=_server(spec),
        server_curves=curves.ps.build() if curves.ps else None,
        measured=_measured(spec),
    )


def _worker(spec: RunSpec, rank: int) -> RunWorker:
    """Return a worker by its own profile, or else by the first of the same compute factor."""
    inputs = spec.inputs
    factor = inputs.worker_compute_factors[rank]
    same = [one for one in inputs.standalone if one.compute_factor == factor]
    own = next((one for one in same if rank in (one.rank, one.worker)), same[0])
    totals = own.profile.totals
    return RunWorker(
        rank=rank,
        compute_factor=factor,
        layers=tuple(layer.build() for layer in own.profile.layers),
        forward_s=totals.forward_time_s,
        backward_s=totals.backward_time_s,
        zero_grad_s=totals.zero_grad_time_s,
        update_s=totals.update_time_s,
        forward_prefix_s=own.profile.forward_prefix_s,
        backward_tail_s=own.profile.backward_tail_s,
        alone=own.single_worker_iteration.build(),
    )


def _all_reduce(spec: RunSpec) -> AllReduceSettings | None:
    """Return how DDP formed and sent its buckets."""
    given = spec.inputs.allreduce
    if given is None:
        return None
    return AllReduceSettings(
        cap_mib=given.bucket_cap_mb,
        num_concurrent=given.concurrent_collectives,
        buckets=tuple(bucket.build() for bucket in given.buckets_used),
        is_bucket_view=given.ddp_logging.gradient_as_bucket_view,
    )


def _server(spec: RunSpec) -> ServerSettings | None:
    """Return how gradients travelled to servers."""
    given = spec.inputs.ps
    if given is None:
        return None
    return ServerSettings(
        num_servers=given.servers,
        keys=tuple(key.build() for key in given.keys),
        overlap=Overlap(given.overlap),
        assignment=given.assignment,
        has_barrier=given.barrier_between_push_and_pull,
        is_co_located=given.colocated,
        partition_bytes=given.partition_bytes,
    )


def _measured(spec: RunSpec) -> Measured | None:
    """Return what the run took, where the file says so."""
    if spec.results is None:
        return None
    times = spec.results.iteration_time
    num_buckets = len(spec.inputs.allreduce.buckets_used) if spec.inputs.allreduce else 0
    traces = [trace.build() for trace in spec.results.traced_iterations_worker0]
    return Measured(
        median_s=times.median_s,
        p10_s=times.p10_s,
        p90_s=times.p90_s,
        count=times.count,
        traces=tuple(trace for trace in traces if len(trace.end_s) == num_buckets > 0),
    )
