"""The file of one measured run, as it stands: JSON of schema version 1, checked field by field.

All of its fields carry their unit. What a prediction does not use (software, machine, traces) is passed over, so that a
file may hold more than is read here. Source: the files' own README.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from planner.calibration.runs.run_facts import (
    AllReduceCurves,
    Bucket,
    CurvePoint,
    IterationParts,
    RunLayer,
    RunNetwork,
    RunTensor,
    ServerCurves,
    ServerKey,
    TogetherPoint,
    TracedIteration,
)
from planner.letters import visible

__all__ = ["RunSpec"]

_Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
_Time = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
_Bytes = Annotated[int, Field(ge=0, le=2**50)]
_Size = Annotated[int, Field(ge=1, le=2**50)]
_Rate = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
_Name = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(visible)]
_MOST_LAYERS = 10_000
_MOST_TENSORS = 100_000
_MOST_WORKERS = 4_096
_MOST_POINTS = 1_000


class _Part(BaseModel):
    """A part of the file; keys that are not known are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=False)


class _TensorSpec(_Part):
    name: _Name
    size_bytes: _Bytes
    gradient_ready_offset_s: _Seconds

    def build(self) -> RunTensor:
        return RunTensor(name=self.name, size_bytes=self.size_bytes, ready_offset_s=self.gradient_ready_offset_s)


class _LayerSpec(_Part):
    name: _Name
    forward_time_s: _Seconds
    backward_time_s: _Seconds | None  # none where no tensor marks its end: it is in the next one's
    tensors: Annotated[list[_TensorSpec], Field(max_length=_MOST_TENSORS)]

    def build(self) -> RunLayer:
        return RunLayer(
            name=self.name,
            forward_s=self.forward_time_s,
            backward_s=self.backward_time_s or 0.0,
            tensors=tuple(tensor.build() for tensor in self.tensors),
        )


class _TotalsSpec(_Part):
    zero_grad_time_s: _Seconds
    forward_time_s: _Time
    backward_time_s: _Time
    update_time_s: _Seconds


class _ProfileSpec(_Part):
    layers: Annotated[list[_LayerSpec], Field(min_length=1, max_length=_MOST_LAYERS)]
    forward_prefix_s: _Seconds
    backward_tail_s: _Seconds
    totals: _TotalsSpec


class _IterationSpec(_Part):
    median_s: _Time
    p10_s: _Time
    p90_s: _Time
    mean_s: _Time
    count: Annotated[int, Field(ge=1)]
    forward_median_s: _Seconds | None = None
    backward_median_s: _Seconds | None = None
    zero_grad_median_s: _Seconds | None = None
    update_median_s: _Seconds | None = None

    def build(self) -> IterationParts:
        return IterationParts(
            median_s=self.median_s,
            p10_s=self.p10_s,
            p90_s=self.p90_s,
            mean_s=self.mean_s,
            count=self.count,
            forward_s=self.forward_median_s,
            backward_s=self.backward_median_s,
            zero_grad_s=self.zero_grad_median_s,
            update_s=self.update_median_s,
        )


class _StandaloneSpec(_Part):
    rank: int | None = None
    worker: int | None = None
    compute_factor: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    profile: _ProfileSpec
    single_worker_iteration: _IterationSpec


class _NetworkSpec(_Part):
    hosts: Annotated[int, Field(ge=1, le=2 * _MOST_WORKERS)]
    link_rate_bytes_per_s: _Rate
    added_one_way_delay_s: _Seconds
    mtu_bytes: _Size
    gso_max_bytes: _Size
    tbf_burst_bytes: _Size
    tbf_limit_bytes: _Size
    tcp_receive_buffer_max_bytes: _Size
    tcp_limit_output_bytes: _Size

    def build(self) -> RunNetwork:
        return RunNetwork(
            hosts=self.hosts,
            link_rate_bytes_per_s=self.link_rate_bytes_per_s,
            delay_s=self.added_one_way_delay_s,
            mtu_bytes=self.mtu_bytes,
            segment_bytes=self.gso_max_bytes,
            burst_bytes=self.tbf_burst_bytes,
            queue_bytes=self.tbf_limit_bytes,
            receive_buffer_bytes=self.tcp_receive_buffer_max_bytes,
            output_limit_bytes=self.tcp_limit_output_bytes,
        )


class _PointSpec(_Part):
    size_bytes: _Size
    time_median_s: _Time
    time_p10_s: _Time
    time_p90_s: _Time
    repetitions: Annotated[int, Field(ge=1)]
    back_to_back_mean_s: _Time | None = None

    def build(self) -> CurvePoint:
        return CurvePoint(
            size_bytes=self.size_bytes,
            median_s=self.time_median_s,
            p10_s=self.time_p10_s,
            p90_s=self.time_p90_s,
            repetitions=self.repetitions,
            back_to_back_s=self.back_to_back_mean_s,
        )


class _TogetherSpec(_Part):
    size_bytes_each: _Size
    time_both_median_s: _Time


_Points = Annotated[list[_PointSpec], Field(min_length=2, max_length=_MOST_POINTS)]
_FewPoints = Annotated[list[_PointSpec], Field(max_length=_MOST_POINTS)]


class _AllReduceCurvesSpec(_Part):
    isolated: _Points
    isolated_remeasured_at_session_end: _FewPoints = []
    two_issued_together: Annotated[list[_TogetherSpec], Field(max_length=_MOST_POINTS)] = []

    def build(self) -> AllReduceCurves:
        pairs = [
            TogetherPoint(size_bytes=p.size_bytes_each, both_s=p.time_both_median_s) for p in self.two_issued_together
        ]
        return AllReduceCurves(
            isolated=_points(self.isolated),
            at_end=_points(self.isolated_remeasured_at_session_end),
            together=tuple(sorted(pairs, key=lambda pair: pair.size_bytes)),
        )


class _ServerCurvesSpec(_Part):
    push_one_worker: _Points
    pull_one_worker: _Points
    push_all_workers: _FewPoints = []
    pull_all_workers: _FewPoints = []

    def build(self) -> ServerCurves:
        return ServerCurves(
            push_one=_points(self.push_one_worker),
            pull_one=_points(self.pull_one_worker),
            push_all=_points(self.push_all_workers),
            pull_all=_points(self.pull_all_workers),
        )


def _points(points: list[_PointSpec]) -> tuple[CurvePoint, ...]:
    """Return the points in rising order of size; refuse sizes that stand twice."""
    built = sorted((point.build() for point in points), key=lambda point: point.size_bytes)
    return tuple(built)


class _CurvesSpec(_Part):
    allreduce: _AllReduceCurvesSpec | None = None
    ps: _ServerCurvesSpec | None = None


class _BucketSpec(_Part):
    size_bytes: _Size
    tensors: Annotated[list[_Name], Field(min_length=1, max_length=_MOST_TENSORS)]

    def build(self) -> Bucket:
        return Bucket(size_bytes=self.size_bytes, tensors=tuple(self.tensors))


class _LoggingSpec(_Part):
    gradient_as_bucket_view: bool = False


class _AllReduceSpec(_Part):
    bucket_cap_mb: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    concurrent_collectives: Annotated[int, Field(ge=1, le=64)]
    buckets_used: Annotated[list[_BucketSpec], Field(min_length=1, max_length=_MOST_TENSORS)]
    ddp_logging: _LoggingSpec = _LoggingSpec()


class _KeySpec(_Part):
    key: Annotated[int, Field(ge=0)]
    tensor: _Name
    layer: _Name
    size_bytes: _Bytes
    server: Annotated[int, Field(ge=0)]

    def build(self) -> ServerKey:
        return ServerKey(
            key=self.key, tensor=self.tensor, layer=self.layer, size_bytes=self.size_bytes, server=self.server
        )


class _ServerSpec(_Part):
    servers: Annotated[int, Field(ge=1, le=_MOST_WORKERS)]
    keys: Annotated[list[_KeySpec], Field(min_length=1, max_length=_MOST_TENSORS)]
    overlap: Literal["seq", "push", "push_pull"]
    assignment: _Name
    barrier_between_push_and_pull: bool
    colocated: bool
    partition_bytes: _Size | None = None

    @model_validator(mode="after")
    def _servers_exist(self) -> Self:
        if any(key.server >= self.servers for key in self.keys):
            raise ValueError(f"a key lies on a server beyond the {self.servers} there are. Number servers from 0.")
        return self


class _InputsSpec(_Part):
    model: dict[str, object]
    total_size_bytes: _Size
    world_size: Annotated[int, Field(ge=1, le=_MOST_WORKERS)]
    worker_compute_factors: Annotated[list[float], Field(min_length=1, max_length=_MOST_WORKERS)]
    standalone: Annotated[list[_StandaloneSpec], Field(min_length=1, max_length=_MOST_WORKERS)]
    network: _NetworkSpec
    communication_time_curves: _CurvesSpec
    all_workers_computing_without_communication: list[_IterationSpec] = []
    allreduce: _AllReduceSpec | None = None
    ps: _ServerSpec | None = None


class _TimesSpec(_Part):
    median_s: _Time
    p10_s: _Time
    p90_s: _Time
    count: Annotated[int, Field(ge=1)]


class _TracedBucketSpec(_Part):
    ready_offset_s: _Seconds
    end_offset_s: _Seconds


class _TraceSpec(_Part):
    backward_call_end_offset_s: _Seconds
    buckets: Annotated[list[_TracedBucketSpec], Field(max_length=_MOST_TENSORS)]

    def build(self) -> TracedIteration:
        return TracedIteration(
            ready_s=tuple(bucket.ready_offset_s for bucket in self.buckets),
            end_s=tuple(bucket.end_offset_s for bucket in self.buckets),
            backward_end_s=self.backward_call_end_offset_s,
        )


class _ResultsSpec(_Part):
    iteration_time: _TimesSpec
    traced_iterations_worker0: Annotated[list[_TraceSpec], Field(max_length=_MOST_POINTS)] = []


class RunSpec(_Part):
    """The whole file."""

    schema_version: Literal[1]
    job_id: _Name
    session_id: _Name
    family: Literal["allreduce_emulated", "allreduce_real", "ps_emulated", "ps_real"]
    inputs: _InputsSpec
    results: _ResultsSpec | None = None
