"""The file of one measured run, read, checked field by field, and told in SI units.

JSON of schema version 1, whose fields carry their units; source: the files' own README. What a prediction does not use
(software, machine) is passed over, so that a file may hold more than is read here. Everything but ``Run.measured`` was
known before the run: a prediction reads that, and nothing of the results. Results may be missing.

Each part of the file is one class: under ``alias`` the file's name of a field, where ours is another one.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from planner.errors import SpecError
from planner.frozen import frozen
from planner.importers.text import read_text
from planner.letters import visible
from planner.models.exchange import Overlap
from planner.question.source import Source, faults_of

_MOST_FAULTS = 20  # told at once
_MOST_TENSORS = 100_000
_MOST_WORKERS = 4_096
_MOST_POINTS = 1_000
_Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
_Time = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
_Bytes = Annotated[int, Field(ge=0, le=2**50)]
_Size = Annotated[int, Field(ge=1, le=2**50)]
_Count = Annotated[int, Field(ge=1)]
_Name = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(visible)]
_Path = tuple[str | int, ...]
_Finding = tuple[_Path, str, str]
_LARGE_BYTES = 1 << 20  # from here on a transfer is as fast as the link
_FASTER = 1.5  # than the link: bursts and clocks account for a hundredth or two
_LONGER = 2.0  # a gradient later than the backward pass, which it may be by a hundredth
# A layer without a tensor has no end of its own backward pass: it is in the next one's.
_Backward = Annotated[_Seconds, BeforeValidator(lambda value: 0.0 if value is None else value)]


class RunFamily(StrEnum):
    """How gradients were exchanged, and whether layers computed or slept for their time."""

    ALL_REDUCE_EMULATED = "allreduce_emulated"
    ALL_REDUCE_REAL = "allreduce_real"
    SERVER_EMULATED = "ps_emulated"
    SERVER_REAL = "ps_real"

    @property
    def is_all_reduce(self) -> bool:
        """Whether gradients were all-reduced, rather than sent to servers."""
        return self in (RunFamily.ALL_REDUCE_EMULATED, RunFamily.ALL_REDUCE_REAL)

    @property
    def is_real(self) -> bool:
        """Whether layers computed, on one core a worker."""
        return self in (RunFamily.ALL_REDUCE_REAL, RunFamily.SERVER_REAL)


class _Part(BaseModel):
    """A part of the file; keys that are not known are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, validate_by_alias=True, validate_by_name=True)


class RunTensor(_Part):
    """One parameter tensor; ``ready_offset_s`` counts from the start of the backward pass to its gradient."""

    name: _Name
    size_bytes: _Bytes
    ready_offset_s: _Seconds = Field(alias="gradient_ready_offset_s")


class RunLayer(_Part):
    """One layer on one worker, measured alone and without communication. In forward order; seconds of a whole batch."""

    name: _Name
    forward_s: _Seconds = Field(alias="forward_time_s")
    backward_s: _Backward = Field(alias="backward_time_s")
    tensors: list[RunTensor] = Field(max_length=_MOST_TENSORS)


class _Totals(_Part):
    zero_grad_time_s: _Seconds
    forward_time_s: _Time
    backward_time_s: _Time
    update_time_s: _Seconds


class _Profile(_Part):
    layers: list[RunLayer] = Field(min_length=1, max_length=10_000)
    totals: _Totals


class IterationParts(_Part):
    """Medians of whole iterations without communication; None where the job has no such part.

    ``p10_s`` and ``p90_s`` bound the middle of ``count`` iterations.
    """

    median_s: _Time
    p10_s: _Time
    p90_s: _Time
    mean_s: _Time
    count: _Count
    forward_s: _Seconds | None = Field(None, alias="forward_median_s")
    backward_s: _Seconds | None = Field(None, alias="backward_median_s")
    zero_grad_s: _Seconds | None = Field(None, alias="zero_grad_median_s")
    update_s: _Seconds | None = Field(None, alias="update_median_s")


class _Standalone(_Part):
    rank: int | None = None
    worker: int | None = None
    compute_factor: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    profile: _Profile
    single_worker_iteration: IterationParts


class RunNetwork(_Part):
    """Hosts on one switch by full-duplex links of one rate; ``delay_s`` was added to every one-way trip."""

    link_rate_bytes_per_s: Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
    delay_s: _Seconds = Field(alias="added_one_way_delay_s")
    mtu_bytes: _Size
    receive_buffer_bytes: _Size = Field(alias="tcp_receive_buffer_max_bytes")
    output_limit_bytes: _Size = Field(alias="tcp_limit_output_bytes")


class CurvePoint(_Part):
    """Seconds of one transfer of ``size_bytes``; ``back_to_back_s`` is the mean of a train without pauses."""

    size_bytes: _Size
    median_s: _Time = Field(alias="time_median_s")
    p10_s: _Time = Field(alias="time_p10_s")
    p90_s: _Time = Field(alias="time_p90_s")
    repetitions: _Count
    back_to_back_s: _Time | None = Field(None, alias="back_to_back_mean_s")


class TogetherPoint(_Part):
    """Seconds until both of two all-reduces of ``size_bytes`` each, issued together, are done."""

    size_bytes: _Size = Field(alias="size_bytes_each")
    both_s: _Time = Field(alias="time_both_median_s")


_Points = Annotated[list[CurvePoint], Field(min_length=2, max_length=_MOST_POINTS)]
_FewPoints = Annotated[list[CurvePoint], Field(max_length=_MOST_POINTS)]


class AllReduceCurves(_Part):
    """All-reduces alone on the run's links, in its session; ``at_end`` measured again when the session ended."""

    isolated: _Points
    at_end: _FewPoints = Field([], alias="isolated_remeasured_at_session_end")
    together: list[TogetherPoint] = Field([], alias="two_issued_together", max_length=_MOST_POINTS)


class ServerCurves(_Part):
    """Push and pull of one worker alone, and of all workers at once."""

    push_one: _Points = Field(alias="push_one_worker")
    pull_one: _Points = Field(alias="pull_one_worker")
    push_all: _FewPoints = Field([], alias="push_all_workers")
    pull_all: _FewPoints = Field([], alias="pull_all_workers")


_AnyCurves = TypeVar("_AnyCurves", AllReduceCurves, ServerCurves)


class _Curves(_Part):
    allreduce: AllReduceCurves | None = None
    ps: ServerCurves | None = None


class Bucket(_Part):
    """Gradients that travelled together, in order of communication."""

    size_bytes: _Size
    tensors: list[_Name] = Field(min_length=1, max_length=_MOST_TENSORS)


class AllReduceSettings(_Part):
    """How DDP formed and sent its buckets: ``num_concurrent`` collectives may run at once."""

    num_concurrent: Annotated[int, Field(ge=1, le=64)] = Field(alias="concurrent_collectives")
    buckets: list[Bucket] = Field(alias="buckets_used", min_length=1, max_length=_MOST_TENSORS)
    is_bucket_view: bool = Field(False, validation_alias=AliasPath("ddp_logging", "gradient_as_bucket_view"))


class ServerKey(_Part):
    """A tensor or a slice of one, and the server that holds it; in forward order."""

    key: Annotated[int, Field(ge=0)]
    tensor: _Name
    layer: _Name
    size_bytes: _Bytes
    server: Annotated[int, Field(ge=0)]


class ServerSettings(_Part):
    """How gradients travelled to servers and back; behind a barrier no pull is before all pushes of the worker."""

    num_servers: Annotated[int, Field(ge=1, le=_MOST_WORKERS)] = Field(alias="servers")
    keys: list[ServerKey] = Field(min_length=1, max_length=_MOST_TENSORS)
    overlap: Annotated[Overlap, BeforeValidator(lambda word: "none" if word == "seq" else word)]
    has_barrier: bool = Field(alias="barrier_between_push_and_pull")
    is_co_located: bool = Field(alias="colocated")
    partition_bytes: Annotated[int, Field(ge=1)] | None = None
    assignment: str = ""

    @model_validator(mode="after")
    def _servers_exist(self) -> Self:
        if any(key.server >= self.num_servers for key in self.keys):
            raise ValueError(f"a key lies on a server beyond the {self.num_servers} there are. Number servers from 0.")
        return self


class _Inputs(_Part):
    model: dict[str, object]
    total_size_bytes: _Size
    world_size: Annotated[int, Field(ge=1, le=_MOST_WORKERS)]
    worker_compute_factors: list[float] = Field(min_length=1, max_length=_MOST_WORKERS)
    standalone: list[_Standalone] = Field(min_length=1, max_length=_MOST_WORKERS)
    network: RunNetwork
    communication_time_curves: _Curves
    all_workers_computing_without_communication: list[IterationParts] = []
    allreduce: AllReduceSettings | None = None
    ps: ServerSettings | None = None


class Measured(_Part):
    """What the run took; never read by a prediction."""

    median_s: _Time
    p10_s: _Time
    p90_s: _Time
    count: _Count


class _Results(_Part):
    iteration_time: Measured


class RunSpec(_Part):
    """The whole file."""

    schema_version: Literal[1]
    job_id: _Name
    session_id: _Name
    family: RunFamily
    inputs: _Inputs
    results: _Results | None = None


@frozen
class RunWorker:
    """One worker alone."""

    compute_factor: float  # how many times the base's seconds it computes
    layers: Sequence[RunLayer]  # in forward order
    # forward_s, backward_s, zero_grad_s, update_s: of the profiled iterations (with a hook on every layer and tensor)
    forward_s: float
    backward_s: float
    zero_grad_s: float
    update_s: float
    alone: IterationParts  # iterations of this worker alone, without hooks and without communication


@frozen
class Run:
    """One distributed run."""

    # file, job_id, session: where it came from; runs of one session used the same machines, links and curves
    file: str
    job_id: str
    session: str
    family: RunFamily
    model: Mapping[str, object]
    total_size_bytes: int
    # one for each, by rank; those whose profile is not in the file have that of the same compute factor
    workers: Sequence[RunWorker]
    # iterations of all workers at once, without communication, by rank; empty where not measured
    all_workers: Sequence[IterationParts]
    network: RunNetwork
    # all_reduce, all_reduce_curves, server, server_curves: of the family at hand; None otherwise. Curves are in rising
    # order of size
    all_reduce: AllReduceSettings | None
    all_reduce_curves: AllReduceCurves | None
    server: ServerSettings | None
    server_curves: ServerCurves | None
    measured: Measured | None  # None where the file holds no results

    @property
    def num_workers(self) -> int:
        """Workers that train together."""
        return len(self.workers)


# -- reading ---------------------------------------------------------------------------------------------------------


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
    if faults := [source.fault(*fault) for fault in _contradictions(spec)]:
        raise SpecError.of(faults[:_MOST_FAULTS])
    inputs, curves = spec.inputs, spec.inputs.communication_time_curves
    workers = []
    for rank, factor in enumerate(inputs.worker_compute_factors):
        same = [one for one in inputs.standalone if one.compute_factor == factor]
        own = next((one for one in same if rank in (one.rank, one.worker)), same[0])
        totals = own.profile.totals
        workers.append(
            RunWorker(
                compute_factor=factor,
                layers=own.profile.layers,
                forward_s=totals.forward_time_s,
                backward_s=totals.backward_time_s,
                zero_grad_s=totals.zero_grad_time_s,
                update_s=totals.update_time_s,
                alone=own.single_worker_iteration,
            )
        )
    return Run(
        file=str(path),
        job_id=spec.job_id,
        session=spec.session_id,
        family=spec.family,
        model=inputs.model,
        total_size_bytes=inputs.total_size_bytes,
        workers=tuple(workers),
        all_workers=tuple(inputs.all_workers_computing_without_communication),
        network=inputs.network,
        all_reduce=inputs.allreduce,
        all_reduce_curves=_in_order(curves.allreduce),
        server=inputs.ps,
        server_curves=_in_order(curves.ps),
        measured=spec.results.iteration_time if spec.results else None,
    )


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

    def refuse(word: str) -> float:
        """Refuse NaN and infinities, which JSON does not have."""
        raise ValueError(f"{word} is no figure.")

    try:
        data = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        problem = f"this is not valid JSON: {error.msg}."
        raise SpecError.one(problem, mend, file=path, line=error.lineno, column=error.colno) from None
    except (RecursionError, ValueError) as error:
        problem = str(error) if isinstance(error, ValueError) else "it is nested too deep."
        raise SpecError.one(problem, mend, file=path) from None
    if not isinstance(data, dict):
        raise SpecError.one("a run is a mapping of keys.", mend, file=path)
    return data


def _in_order(curves: _AnyCurves | None) -> _AnyCurves | None:
    """Return curves with their points in rising order of size."""
    if curves is None:
        return None
    ordered = {name: sorted(points, key=lambda point: point.size_bytes) for name, points in curves}
    return curves.model_copy(update=ordered)


# -- contradictions --------------------------------------------------------------------------------------------------


def _contradictions(spec: RunSpec) -> list[_Finding]:
    """Return where the parts do not fit together: path, problem, mend; the first of each kind."""
    first = spec.inputs.standalone[0].profile.layers
    sizes = {tensor.name: tensor.size_bytes for layer in first for tensor in layer.tensors}
    found = [*_of_workers(spec.inputs), *_of_profiles(spec.inputs, set(sizes))]
    key = "allreduce" if spec.family.is_all_reduce else "ps"
    what = f"a run of the family {spec.family} needs it."
    if getattr(spec.inputs, key) is None:
        found.append((("inputs", key), what, "Add it."))
    if getattr(spec.inputs.communication_time_curves, key) is None:
        found.append((("inputs", "communication_time_curves", key), what, "Add the curves of this session."))
    return [*found, *_of_curves(spec.inputs), *_of_tensors(spec.inputs, sizes)]


def _of_workers(inputs: _Inputs) -> Iterator[_Finding]:
    """Yield factors that are too few or without a profile, iterations and servers that are not one for each worker."""
    number, factors = inputs.world_size, inputs.worker_compute_factors
    if len(factors) != number:
        problem = f"it has {len(factors)} factors for {number} workers."
        yield ("inputs", "worker_compute_factors"), problem, "Give one for each worker."
    profiled = {one.compute_factor for one in inputs.standalone}
    for rank, factor in enumerate(factors):
        if factor not in profiled:
            problem = f"no profile in inputs.standalone has the compute factor {factor:g} of worker {rank}."
            yield ("inputs", "worker_compute_factors", rank), problem, "Add the profile of such a worker."
    together = inputs.all_workers_computing_without_communication
    if together and len(together) != number:
        path = ("inputs", "all_workers_computing_without_communication")
        yield path, f"it has {len(together)} workers of {number}.", "Give one for each worker, or none."
    if inputs.ps is not None and inputs.ps.is_co_located and inputs.ps.num_servers > number:
        problem = f"{inputs.ps.num_servers} servers share the hosts of {number} workers."
        yield ("inputs", "ps", "servers"), problem, "Give each of them a worker's host, or set colocated to false."


def _of_profiles(inputs: _Inputs, names: set[str]) -> Iterator[_Finding]:
    """Yield profiles of another network than the first, without tensors, or with gradients after the backward pass."""
    first = inputs.standalone[0].profile.layers
    if not names:
        path: _Path = ("inputs", "standalone", 0, "profile", "layers")
        yield path, "no layer has a tensor.", "Profile a network that has parameters."
    for index, one in enumerate(inputs.standalone):
        path = ("inputs", "standalone", index, "profile", "layers")
        tensors = [tensor for layer in one.profile.layers for tensor in layer.tensors]
        if len({tensor.name for tensor in tensors}) < len(tensors):
            yield path, "a tensor stands in it twice.", "Name each tensor once."
        if names != {tensor.name for tensor in tensors}:
            yield path, "it has other tensors than the first profile.", "Profile the same network."
        elif [layer.name for layer in one.profile.layers] != [layer.name for layer in first]:
            yield path, "it has other layers than the first profile.", "Profile the same network."
        backward_s = one.profile.totals.backward_time_s
        late = next((tensor for tensor in tensors if tensor.ready_offset_s > _LONGER * backward_s), None)
        if late:
            problem = (
                f"the gradient of {late.name!r} is ready after {late.ready_offset_s:g} s of a backward pass "
                f"that takes {backward_s:g} s."
            )
            yield path, problem, "Give both in seconds."


def _of_curves(inputs: _Inputs) -> Iterator[_Finding]:
    """Yield sizes that stand twice in a curve, and transfers that no link of this rate can carry in their time."""
    curves, number = inputs.communication_time_curves, inputs.world_size
    named = []  # path, points, bytes that cross a link for each of a transfer's
    if curves.allreduce:
        named.append((("allreduce", "isolated"), curves.allreduce.isolated, 2 * (number - 1) / number))
    if curves.ps:
        named.append((("ps", "push_one_worker"), curves.ps.push_one, 1.0))
        named.append((("ps", "pull_one_worker"), curves.ps.pull_one, 1.0))
    rate_bytes_per_s = inputs.network.link_rate_bytes_per_s
    for key, points, share in named:
        path = ("inputs", "communication_time_curves", *key)
        if len({point.size_bytes for point in points}) < len(points):
            yield path, "a size stands twice in this curve.", "Keep one time for each size."
        for index, point in enumerate(points):
            least_s = share * point.size_bytes / rate_bytes_per_s
            if point.size_bytes >= _LARGE_BYTES and point.median_s * _FASTER < least_s:
                problem = (
                    f"{point.size_bytes} bytes in {point.median_s:g} s is faster than links of "
                    f"{rate_bytes_per_s:g} bytes a second, which take {least_s:g} s."
                )
                yield (*path, index, "time_median_s"), problem, "Give seconds, and the rate in bytes."
                break


def _of_tensors(inputs: _Inputs, sizes: Mapping[str, int]) -> Iterator[_Finding]:
    """Yield buckets and keys that do not hold each tensor of the network, once, with all of its bytes."""

    def unlike(path: _Path, held: Collection[str]) -> list[_Finding]:
        """Return what is said of tensors that are on one side alone."""
        unknown, missing = sorted(set(held) - sizes.keys()), sorted(sizes.keys() - set(held))
        if not unknown and not missing:
            return []
        what = f"tensor {unknown[0]!r} is not in the profile" if unknown else f"tensor {missing[0]!r} is missing"
        return [(path, f"{what}.", "Name each tensor of inputs.standalone, and no other.")]

    if inputs.allreduce:
        path: _Path = ("inputs", "allreduce", "buckets_used")
        held = [name for bucket in inputs.allreduce.buckets for name in bucket.tensors]
        if len(set(held)) < len(held):
            yield path, "a tensor stands in two buckets.", "Name each tensor once."
        others = unlike(path, held)
        yield from others
        for index, bucket in enumerate(() if others else inputs.allreduce.buckets):
            sum_bytes = sum(sizes[name] for name in bucket.tensors)
            if sum_bytes and bucket.size_bytes != sum_bytes:  # one of empty tensors alone may have any
                problem = f"it is a bucket of {bucket.size_bytes} bytes; its tensors have {sum_bytes}."
                yield (*path, index, "size_bytes"), problem, "Give the sum of its tensors."
                break
    if inputs.ps:
        path, given = ("inputs", "ps", "keys"), Counter[str]()
        for key in inputs.ps.keys:
            given[key.tensor] += key.size_bytes
        others = unlike(path, given)
        yield from others
        wrong = None if others else next((name for name in sizes if given[name] != sizes[name]), None)
        if wrong is not None:
            problem = f"the keys of {wrong!r} hold {given[wrong]} bytes; the profile has {sizes[wrong]}."
            yield path, problem, "Let a tensor's keys hold all of its bytes."
