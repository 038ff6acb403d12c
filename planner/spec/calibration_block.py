"""The block ``calibration`` of a spec: shares of the peak, measured curves, the laws of links, known errors."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from planner.problem import Queue
from planner.spec.values import (
    Bytes,
    Count,
    File,
    Model,
    Name,
    Positive,
    PositiveBytes,
    Rate,
    Seconds,
    SignedSeconds,
    Text,
    exactly_one,
)

__all__ = ["MOST_POINTS", "CalibrationSpec", "CurveSpec", "KnownErrorSpec", "PiecewiseSpec", "QueueSpec"]


MOST_POINTS = 10_000  # of a measured curve


class CurveSpec(Model):
    """A measured all-reduce: a CSV file with the columns size_bytes,seconds, or the points themselves."""

    num_devices: Count
    file: File | None = None
    points: Annotated[list[tuple[Bytes, Seconds]], Field(min_length=2, max_length=MOST_POINTS)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        exactly_one(self, ("file", "points"))
        return self


class PiecewiseSpec(Model):
    """Equation 18, fitted for one number of devices.

    ``log_slope log2 D + log_offset`` below the threshold, ``D / bandwidth + offset`` from there on.
    """

    num_devices: Count
    log_slope: Seconds
    log_offset: SignedSeconds
    bandwidth: Rate
    offset: SignedSeconds = 0.0
    threshold: Bytes


class QueueSpec(Model):
    """A switch that queues packets (M/M/1): the rate that it forwards, the packet, and the hops over it."""

    switch: Rate
    packet: PositiveBytes = 1500.0
    hops: Count = 1

    def build(self) -> Queue:
        """Return the queue."""
        return Queue(switch_bytes_per_s=self.switch, packet_bytes=self.packet, num_hops=self.hops)


class KnownErrorSpec(Model):
    """How far a fit was off what it did not see: mean and largest of absolute predicted / measured - 1."""

    of: Name
    mean: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    worst: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    source: Text = ""


class CalibrationSpec(Model):
    """Fitted parameters of devices, links and framework."""

    utilisation: Positive | None = None
    utilisation_by_kind: dict[Name, Positive] = {}
    flop_per_multiply_add: Literal[1, 2] = 2
    update: Seconds | None = None
    bandwidth_efficiency: Positive | None = None
    inside_efficiency: Positive | None = None
    overhead: Seconds = 0.0
    negotiate: Seconds = 0.0
    aggregation: bool = True
    algorithms: Annotated[list[Literal["ring", "tree", "two_level"]], Field(min_length=1)] = [
        "ring",
        "tree",
        "two_level",
    ]
    curves: list[CurveSpec] = []
    piecewise: list[PiecewiseSpec] = []
    wait: Literal["none", "exact", "paper"] = "none"
    timeout: Seconds | None = None
    fusion_unit: Literal["layer", "tensor"] = "layer"
    split_tensors: bool = False
    strategy: Literal["naive", "cntk", "mxnet", "caffe_mpi"] = "caffe_mpi"
    prefetch: Literal["pipelined", "single"] = "pipelined"
    memory_reserve: Bytes = 0.0
    program: Name = "megatron-core"
    expert_imbalance: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    straggler_deviation: Seconds = 0.0
    queue: QueueSpec | None = None
    cores: Count = 1
    activation: Seconds = 0.0
    error: Seconds = 0.0
    multiply_add: list[tuple[Bytes, Seconds]] = []
    interference: list[tuple[Count, Positive]] = []
    known_error: list[KnownErrorSpec] = []
    source: Text = ""
