"""What a measured training run consists of, in SI units: workers, links, curves, settings, and what was measured.

Plain frozen data, shared by the readers and the two predictors. Everything but ``Run.measured`` was known before the
run: a prediction reads that, and nothing of the results.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = [
    "AllReduceCurves",
    "AllReduceSettings",
    "Bucket",
    "CurvePoint",
    "IterationParts",
    "Measured",
    "Overlap",
    "Run",
    "RunFamily",
    "RunLayer",
    "RunNetwork",
    "RunPrediction",
    "RunTensor",
    "RunWorker",
    "ServerCurves",
    "ServerKey",
    "ServerSettings",
    "TogetherPoint",
    "TracedIteration",
]


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


class Overlap(StrEnum):
    """What of the exchange with servers may run beside the backward pass."""

    SEQUENTIAL = "seq"
    PUSH = "push"
    PUSH_PULL = "push_pull"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTensor:
    """One parameter tensor; ``ready_offset_s`` counts from the start of the backward pass to its gradient."""

    name: str
    size_bytes: int
    ready_offset_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLayer:
    """One layer on one worker, measured alone and without communication. In forward order; seconds of a whole batch."""

    name: str
    forward_s: float
    backward_s: float
    tensors: tuple[RunTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationParts:
    """Medians of whole iterations without communication; None where the job has no such part.

    ``p10_s`` and ``p90_s`` bound the middle of ``count`` iterations.
    """

    median_s: float
    p10_s: float
    p90_s: float
    mean_s: float
    count: int
    forward_s: float | None = None
    backward_s: float | None = None
    zero_grad_s: float | None = None
    update_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWorker:
    """One worker alone.

    Attributes
    ----------
    rank, compute_factor
        Its place among the workers; how many times the base's seconds it computes.
    layers
        In forward order.
    forward_s, backward_s, zero_grad_s, update_s
        Of the profiled iterations (with a hook on every layer and tensor).
    forward_prefix_s, backward_tail_s
        Before the first layer's forward and after the last gradient.
    alone
        Iterations of this worker alone, without hooks and without communication.
    """

    rank: int
    compute_factor: float
    layers: tuple[RunLayer, ...]
    forward_s: float
    backward_s: float
    zero_grad_s: float
    update_s: float
    forward_prefix_s: float
    backward_tail_s: float
    alone: IterationParts


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNetwork:
    """Hosts on one switch by full-duplex links of one rate; ``delay_s`` was added to every one-way trip."""

    hosts: int
    link_rate_bytes_per_s: float
    delay_s: float
    mtu_bytes: int
    segment_bytes: int  # most that the sender's stack hands to the link at once (GSO)
    burst_bytes: int  # of the token bucket that shapes the link
    queue_bytes: int  # before that token bucket
    receive_buffer_bytes: int
    output_limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Seconds of one transfer of ``size_bytes``; ``back_to_back_s`` is the mean of a train without pauses."""

    size_bytes: int
    median_s: float
    p10_s: float
    p90_s: float
    repetitions: int
    back_to_back_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TogetherPoint:
    """Seconds until both of two all-reduces of ``size_bytes`` each, issued together, are done."""

    size_bytes: int
    both_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceCurves:
    """All-reduces alone on the run's links, in its session; ``at_end`` measured again when the session ended."""

    isolated: tuple[CurvePoint, ...]
    at_end: tuple[CurvePoint, ...]
    together: tuple[TogetherPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCurves:
    """Push and pull of one worker alone, and of all workers at once; in rising order of size."""

    push_one: tuple[CurvePoint, ...]
    pull_one: tuple[CurvePoint, ...]
    push_all: tuple[CurvePoint, ...] = ()
    pull_all: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients that travelled together, in order of communication."""

    size_bytes: int
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceSettings:
    """``cap_mib`` is DDP's bucket cap, None for its default; ``num_concurrent`` collectives may run at once."""

    cap_mib: float | None
    num_concurrent: int
    buckets: tuple[Bucket, ...]
    is_bucket_view: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKey:
    """A tensor or a slice of one, and the server that holds it; in forward order."""

    key: int
    tensor: str
    layer: str
    size_bytes: int
    server: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How gradients travelled to servers and back."""

    num_servers: int
    keys: tuple[ServerKey, ...]
    overlap: Overlap
    assignment: str
    has_barrier: bool  # no pull before all pushes of the worker are done
    is_co_located: bool
    partition_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedIteration:
    """When worker 0 had each bucket, when its all-reduce ended, and when the call of backward came back."""

    ready_s: tuple[float, ...]
    end_s: tuple[float, ...]
    backward_end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the run took; never read by a prediction. ``traces`` are of all-reduce runs alone."""

    median_s: float
    p10_s: float
    p90_s: float
    count: int
    traces: tuple[TracedIteration, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One distributed run.

    Attributes
    ----------
    file, job_id, session
        Where it came from; runs of one session used the same machines, links and curves.
    workers
        One for each, by rank; those whose profile is not in the file have that of the same compute factor.
    all_workers
        Iterations of all workers at once, without communication, by rank; empty where not measured.
    all_reduce, all_reduce_curves, server, server_curves
        Of the family at hand; None otherwise.
    measured
        None where the file holds no results.
    """

    file: str
    job_id: str
    session: str
    family: RunFamily
    model: Mapping[str, object]
    total_size_bytes: int
    workers: tuple[RunWorker, ...]
    all_workers: tuple[IterationParts, ...]
    network: RunNetwork
    all_reduce: AllReduceSettings | None
    all_reduce_curves: AllReduceCurves | None
    server: ServerSettings | None
    server_curves: ServerCurves | None
    measured: Measured | None

    @property
    def num_workers(self) -> int:
        """Workers that train together."""
        return len(self.workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrediction:
    """Seconds of one iteration and what they consist of (the parts sum to it), with remarks for the reader."""

    iteration_time_s: float
    breakdown_s: Mapping[str, float]
    notes: tuple[str, ...] = field(default=())
