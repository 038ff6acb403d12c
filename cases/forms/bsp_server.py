"""The heterogeneous-PS model on a network of the zoo and the paper's machines, with its counting conventions named.

Source: Y. Zeng et al., Modeling the Training Iteration Time for Heterogeneous Distributed Deep Learning Systems,
Int. J. Intelligent Systems, 2023, doi:10.1155/2023/2663115. Inputs that the authors typed instead of computing are keys
under ``typed``. Its equations 28 to 33, Algorithms 1 and 2: every worker computes, pushes all gradients through the
server's link, which serves one push after the other, and pulls; the pulls come last, all together, and overlap with
nothing. Leaves out the server's own work, latency, and the workers' links.

Equations 3, 4 and 20 to 27 count FLOP and pushes of any network's layers. Every activation is a sigmoid, evaluated as
a Taylor series. Left out are biases in the forward pass, batch norm, and pooling unless a :class:`Counting` adds it.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import AfterValidator, Field, model_validator

from planner import zoo
from planner.cases.forms import Hertz
from planner.channel import fifo_end_s
from planner.cost import Floats
from planner.dnn import Dnn, Layer
from planner.errors import ModelError, SpecError
from planner.frozen import frozen
from planner.importers.text import read_text
from planner.question.values import Count, Model, Name, Positive, Rate, Seconds

Variant = Literal["corrected", "printed"]
BackwardCount = Literal["once", "per_sample"]


def flop_per_weight(num_taylor_terms: int = 20) -> int:
    """Return the backward FLOP of one weight (eqs. 23, 25 and 26); raise ModelError for a series without terms.

    Notes
    -----
    ``6 + sig`` with ``sig = 2 + x`` for the sigmoid and ``x = 1 + 4 i`` for the exponential function's Taylor series.
    Table 1 and every prediction of the paper use 85, that is 19 terms.

    >>> flop_per_weight(), flop_per_weight(19)
    (89, 85)
    """
    if num_taylor_terms < 1:
        raise ModelError(f"a Taylor series has at least 1 term, not {num_taylor_terms}.")
    return 6 + 2 + 1 + 4 * num_taylor_terms


FLOP_PER_WEIGHT = flop_per_weight()  # 89: eq. 23, as the text has it
FLOP_PER_BIAS = 2  # eq. 24


@frozen
class Counting:
    """How the published counts differ from the equations; by default, not at all."""

    # layers whose names contain this text count nothing, e.g. the shortcuts of a ResNet; empty for none
    ignored: str = ""
    # layer -> FLOP per output element that are counted beside the multiply-adds: max pooling
    flop_per_output: Mapping[str, float] = field(default_factory=dict)
    # layer -> output height x width to count instead of the layer's own
    output_pixels: Mapping[str, int] = field(default_factory=dict)
    layer_flop: Mapping[str, float] = field(default_factory=dict)  # layer -> FLOP that were typed instead of counted
    # layer -> input channels (or features) to count its weights with, instead of its own
    input_channels: Mapping[str, int] = field(default_factory=dict)
    # ``printed`` takes eq. 20 at its word, without the width of the output
    variant: Variant = "corrected"

    def layers_of(self, dnn: Dnn) -> tuple[Layer, ...]:
        """Return the layers that count; raise ModelError if a name is none of the network's."""
        named = {*self.flop_per_output, *self.output_pixels, *self.layer_flop, *self.input_channels}
        if unknown := named - {layer.name for layer in dnn.layers}:
            raise ModelError(f"{dnn.name} has no layer {sorted(unknown)[0]!r}, for which a counting is given.")
        return tuple(layer for layer in dnn.layers if not self.ignored or self.ignored not in layer.name)


def layer_forward_flop(layer: Layer, *, variant: Variant = "corrected", output_pixels: int | None = None) -> float:
    """Return the FLOP of one sample: ``2 inch kh kw outn outh outw`` (eqs. 3, 4 and 20), 0 without multiply-adds.

    Parameters
    ----------
    variant
        ``printed`` is eq. 20 as it stands, without ``outw``, which Table 1 does have.
    output_pixels
        ``outh outw``, if not the layer's own.

    Notes
    -----
    ``inch kh kw outn`` is the number of weights. Fully-connected layers have ``kh = kw = outh = outw = 1``. The paper
    knows no other layers with multiply-adds; those of a transformer count 2 FLOP each: attention multiplies without
    weights, and an embedding has weights that it does not multiply. A transposed convolution uses its weights at every
    position of its input.
    """
    if layer.kind not in ("convolution", "fully_connected") or not layer.num_weights:
        return 2.0 * layer.num_multiply_adds
    pixels = layer.num_multiply_adds // layer.num_weights if output_pixels is None else output_pixels
    width = layer.output_shape[-1] if len(layer.output_shape) > 1 else 1
    return 2.0 * layer.num_weights * (pixels // width if variant == "printed" and output_pixels is None else pixels)


def forward_flop(dnn: Dnn, counting: Counting | None = None) -> float:
    """Return the FLOP of one sample's forward pass (eq. 21) under a convention."""
    by = counting or Counting()

    def counted(layer: Layer) -> float:
        if layer.name in by.layer_flop:
            return by.layer_flop[layer.name]
        pixels = by.output_pixels.get(layer.name)
        beside = by.flop_per_output.get(layer.name, 0.0) * layer.num_output_elements
        return layer_forward_flop(layer, variant=by.variant, output_pixels=pixels) + beside

    return sum(map(counted, by.layers_of(dnn)))


def counted_weights(dnn: Dnn, counting: Counting | None = None) -> int:
    """Return the number of weights, biases and batch norm left out, under a convention."""
    by, shapes = counting or Counting(), {layer.name: layer.output_shape for layer in dnn.layers}
    total = 0
    for layer in by.layers_of(dnn):
        channels, own = by.input_channels.get(layer.name), layer.num_weights
        total += own if channels is None else own * channels // shapes[dnn.inputs_of(layer.name)[0]][0]
    return total


def num_biases(dnn: Dnn) -> int:
    """Return the number of biases: ``parab`` of eq. 22, which print calls the size of the output tensors."""
    return sum(one.num_elements for layer in dnn.layers for one in layer.tensors if one.role == "bias")


def num_pushes(dnn: Dnn, *, num_unexplained: int) -> int:
    """Return the pushes of an iteration (Table 1): variables, trained or moving, and a few more that the paper found.

    Notes
    -----
    TensorFlow sends every variable on its own. The rest was measured, not modelled: 2, but 3 for AlexNet and 4 for
    OverFeat.
    """
    return sum(len(layer.tensors) for layer in dnn.layers) + num_unexplained


def backward_flop(
    *, num_weights: float, num_biases: float, per_weight: float = FLOP_PER_WEIGHT, per_bias: float = FLOP_PER_BIAS
) -> float:
    """Return the FLOP of one backward pass, whatever the batch (eq. 22); raise ModelError below 0.

    Notes
    -----
    The text takes ``para`` now for all parameters and now for the weights; eqs. 23 and 24 make sense for weights and
    biases. Published figures leave the biases out (``num_biases=0``) and count 85 per weight.

    >>> backward_flop(num_weights=100, num_biases=10)
    8920
    """
    if min(num_weights, num_biases, per_weight, per_bias) < 0:
        raise ModelError(
            f"counts and FLOP must be >= 0, not {num_weights:g} weights of {per_weight:g} FLOP and {num_biases:g} "
            f"biases of {per_bias:g}."
        )
    return num_weights * per_weight + num_biases * per_bias


def iteration_flop(
    *, forward_flop: float, backward_flop: float, batch_size: float, backward: BackwardCount = "once"
) -> float:
    """Return the FLOP of one iteration (eq. 27), ``batch x forward + backward``; raise ModelError for an empty batch.

    Parameters
    ----------
    batch_size
        The worker's own share of the batch; > 0.
    backward
        ``once`` an iteration is the paper's definition; ``per_sample`` is the physical one, since every sample has
        its own error to propagate.

    >>> iteration_flop(forward_flop=10, backward_flop=30, batch_size=4)
    70
    >>> iteration_flop(forward_flop=10, backward_flop=30, batch_size=4, backward="per_sample")
    160
    """
    if not (batch_size > 0 and math.isfinite(batch_size)):
        raise ModelError(f"a worker's share of the batch must be finite and > 0, not {batch_size:g} samples.")
    return batch_size * forward_flop + (batch_size if backward == "per_sample" else 1) * backward_flop


_NUMBER_BYTES = 4  # parameters and gradients are fp32
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_ROUNDING = 1e-9  # relative: what floating point may lose


@frozen
class BspExchange:
    """Seconds for which one worker's exchange occupies the server's link."""

    # push_s, pull_s: all gradients in, all parameters out (eqs. 30 and 31); finite and >= 0
    push_s: float
    pull_s: float
    # start-up of push and pull, once an iteration: section 6.3 measured about 0.5 s, and its predictions take 0
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 <= one < math.inf for one in (self.push_s, self.pull_s, self.overhead_s)):
            raise ModelError(f"{self}: push_s, pull_s and overhead_s must be finite and >= 0.")

    @classmethod
    def of(
        cls, *, gradient_bytes: float, parameter_bytes: float, bandwidth_bytes_per_s: float, overhead_s: float = 0.0
    ) -> "BspExchange":
        """Return ``T_push = G / B`` and ``T_pull = P / B`` (eqs. 31 and 30).

        Parameters
        ----------
        gradient_bytes, parameter_bytes
            ``G`` and ``P``: what one worker pushes and pulls.
        bandwidth_bytes_per_s
            ``B`` of the server's link, per direction; finite and > 0.
        overhead_s
            Start-up of push and pull, once an iteration; finite and >= 0.

        >>> BspExchange.of(gradient_bytes=1e9, parameter_bytes=5e8, bandwidth_bytes_per_s=1.25e8).push_s
        8.0
        """
        _positive("bandwidth_bytes_per_s", bandwidth_bytes_per_s)
        return cls(
            push_s=gradient_bytes / bandwidth_bytes_per_s,
            pull_s=parameter_bytes / bandwidth_bytes_per_s,
            overhead_s=overhead_s,
        )


def _positive(name: str, value: float) -> None:
    """Refuse a rate or count that is not finite and > 0."""
    if not 0 < value < math.inf:
        raise ModelError(f"{name} must be finite and > 0, not {value:g}.")


def _per_worker(name: str, value: ArrayLike) -> Floats:
    """Return one number of seconds for every worker; raise ModelError if there is no worker or no time."""
    seconds = np.asarray(value, dtype=np.float64)
    if seconds.ndim != 1 or not seconds.size:
        raise ModelError(f"{name} has shape {seconds.shape}; give the seconds of at least one worker.")
    if not (np.isfinite(seconds).all() and (seconds >= 0).all()):
        raise ModelError(f"{name} must be finite and >= 0, not {seconds.tolist()}.")
    return seconds


def cpu_time_s(flop: float, *, clock_hz: float, values_per_cycle: float) -> float:
    """Return the computing time on a CPU (eq. 28): ``FLOP / (cpuhz simd)``.

    Parameters
    ----------
    flop
        Floating-point operations, one multiply-add being two.
    clock_hz
        ``cpuhz``, cycles a second; > 0.
    values_per_cycle
        ``simd``: values worked on in one cycle, a fitted real number; > 0. The equation has one core.

    >>> cpu_time_s(9.6e9, clock_hz=2e9, values_per_cycle=2.4)
    2.0
    """
    _positive("clock_hz", clock_hz)
    _positive("values_per_cycle", values_per_cycle)
    return flop / (clock_hz * values_per_cycle)


def gpu_time_s(flop: float, *, clock_hz: float, num_stream_processors: float, flop_per_cycle: float = 1) -> float:
    """Return the computing time on a GPU (eq. 33): ``FLOP / (gpuhz sp fc)``.

    Parameters
    ----------
    flop
        Floating-point operations, one multiply-add being two.
    clock_hz
        ``gpuhz``, cycles a second; > 0.
    num_stream_processors
        ``sp``; > 0.
    flop_per_cycle
        ``fc`` of one stream processor: 2 with fused multiply-add, else 1.

    >>> gpu_time_s(6e12, clock_hz=1.5e9, num_stream_processors=2000)
    2.0
    """
    _positive("clock_hz", clock_hz)
    _positive("num_stream_processors", num_stream_processors)
    _positive("flop_per_cycle", flop_per_cycle)
    return flop / (clock_hz * num_stream_processors * flop_per_cycle)


# Of the functions below: ``compute_s`` are seconds that each worker computes, shape (workers,), in any order;
# ``forward_s`` and ``backward_s`` those of its own share of the batch; all finite and >= 0. ``exchange``: seconds for
# which one worker's push and pull occupy the server's link. ``num_pushes``: ``k``, the equal parts in which a backward
# pass is pushed; >= 1.


def equal_workers_time_s(compute_s: float, exchange: BspExchange, *, num_workers: int) -> float:
    """Return the iteration time with equal workers (eq. 29): ``T_cpu + n T_push + n T_pull``.

    Parameters
    ----------
    compute_s
        Seconds that every worker computes; >= 0.
    exchange
        Seconds for which one worker's push and pull occupy the server's link.
    num_workers
        ``n``; >= 1.

    Raises
    ------
    ModelError
        If there is no worker.
    """
    if num_workers < 1:
        raise ModelError(f"there must be at least 1 worker, not {num_workers}.")
    return compute_s + num_workers * (exchange.push_s + exchange.pull_s) + exchange.overhead_s


def equation_32_holds(compute_s: ArrayLike, *, push_s: float) -> bool:
    """Whether the server's link is never idle after the first push: ``T_1 + (i - 1) T_push >= T_i``, sorted.

    Parameters
    ----------
    compute_s
        Seconds that each worker computes, shape (workers,), in any order; finite and >= 0.
    push_s
        Seconds of one worker's push; >= 0.

    Notes
    -----
    This is when eq. 32 and Algorithm 1 agree. The paper's condition, that communication takes longer than every
    computation, is sufficient but not necessary.

    >>> equation_32_holds([1, 2, 3], push_s=1), equation_32_holds([1, 2, 4], push_s=1)
    (True, False)
    """
    return _first_idle(np.sort(_per_worker("compute_s", compute_s)), push_s) is None


def _first_idle(compute: Floats, push_s: float) -> int | None:
    """Return the first worker, in ascending order, for which the link has to wait; None if it never does."""
    late = compute - (compute[0] + np.arange(len(compute)) * push_s)
    found = np.flatnonzero(late > _ROUNDING * np.maximum(compute, push_s))
    return int(found[0]) if found.size else None


def fastest_worker_time_s(compute_s: ArrayLike, exchange: BspExchange) -> float:
    """Return the iteration time where the link is the bottleneck (eq. 32): ``n T_pull + T_min + n T_push``.

    Raises
    ------
    ModelError
        Where :func:`equation_32_holds` is false: the time would be too short.
    """
    compute = np.sort(_per_worker("compute_s", compute_s))
    index = _first_idle(compute, exchange.push_s)
    if index is not None:
        raise ModelError(
            f"eq. 32 does not hold: worker {index + 1} of {len(compute)} computes until {compute[index]:.4g} s, but "
            f"the pushes before it end at {compute[0] + index * exchange.push_s:.4g} s. Use Algorithm 1."
        )
    return equal_workers_time_s(float(compute[0]), exchange, num_workers=len(compute))


def algorithm_1_time_s(compute_s: ArrayLike, exchange: BspExchange) -> float:
    """Return the iteration time of workers that push when all is computed (Algorithm 1).

    Notes
    -----
    The loop of the listing, ``T = max(T, t_i) + T_push``, is a channel that serves first come first served. Its
    ``simd = 2`` is an input here: no table of the paper uses it.

    >>> algorithm_1_time_s([5, 1, 2], BspExchange(push_s=2, pull_s=1))
    10.0
    """
    compute = np.sort(_per_worker("compute_s", compute_s))
    pushed_s = float(fifo_end_s(compute, exchange.push_s)[-1])
    return pushed_s + len(compute) * exchange.pull_s + exchange.overhead_s


def segment_ready_s(forward_s: ArrayLike, backward_s: ArrayLike, *, num_pushes: int) -> Floats:
    """Return when each of k equal parts of each worker's backward pass is done: ``forward + j / k backward``.

    Returns
    -------
    Floats
        One row per worker, one column per part.

    Raises
    ------
    ModelError
        If the workers of both differ in number, or ``num_pushes`` is less than 1.
    """
    forward, backward = _per_worker("forward_s", forward_s), _per_worker("backward_s", backward_s)
    if forward.shape != backward.shape:
        raise ModelError(f"forward_s of {len(forward)} workers does not go with backward_s of {len(backward)}.")
    if num_pushes < 1:
        raise ModelError(f"num_pushes must be at least 1, not {num_pushes}.")
    return forward[:, None] + backward[:, None] * (np.arange(1, num_pushes + 1) / num_pushes)


def algorithm_2_time_s(forward_s: ArrayLike, backward_s: ArrayLike, exchange: BspExchange, *, num_pushes: int) -> float:
    """Return the iteration time of workers that push while they compute (Algorithm 2).

    Notes
    -----
    Algorithm 1 with the end of the first of k parts of the backward pass as ready time (lines 3 and 4; the listing
    drops the indices of ``sp`` and ``fc``). It takes for granted that the link is slower than every backward pass.
    Where it is not, the answer can be less than a worker's own computing time: see :func:`checked_algorithm_2`.
    """
    first = segment_ready_s(forward_s, backward_s, num_pushes=num_pushes)[:, 0]
    return algorithm_1_time_s(first, exchange)


def segments_time_s(forward_s: ArrayLike, backward_s: ArrayLike, exchange: BspExchange, *, num_pushes: int) -> float:
    """Return the iteration time if every part is pushed on its own, no sooner than it is computed.

    Notes
    -----
    Stricter than Algorithm 2, and never less: k parts of ``T_push / k`` a worker on one channel, first come first
    served. Both agree where ``T_push`` is at least every worker's backward pass. Own extension of the paper's Figure 5.
    """
    ready = segment_ready_s(forward_s, backward_s, num_pushes=num_pushes)
    pushed_s = float(fifo_end_s(np.sort(ready, axis=None), exchange.push_s / num_pushes)[-1])
    return pushed_s + len(ready) * exchange.pull_s + exchange.overhead_s


@frozen
class CheckedTime:
    """The segment-level time, Algorithm 2's, and a warning where they differ."""

    iteration_s: float
    algorithm_2_s: float
    warnings: tuple[str, ...] = ()


def checked_algorithm_2(
    forward_s: ArrayLike, backward_s: ArrayLike, exchange: BspExchange, *, num_pushes: int
) -> CheckedTime:
    """Return the time at the level of segments, with a warning where Algorithm 2 departs from it."""
    strict_s = segments_time_s(forward_s, backward_s, exchange, num_pushes=num_pushes)
    simple_s = algorithm_2_time_s(forward_s, backward_s, exchange, num_pushes=num_pushes)
    warnings: tuple[str, ...] = ()
    if not math.isclose(strict_s, simple_s, rel_tol=_ROUNDING):
        longest_s = float(np.max(_per_worker("backward_s", backward_s)))
        text = (
            f"Algorithm 2 gives {simple_s:.4g} s, {strict_s - simple_s:.4g} s too little: it takes for granted that "
            f"a push ({exchange.push_s:.4g} s) lasts as long as every backward pass (up to {longest_s:.4g} s)."
        )
        warnings = (text,)
    return CheckedTime(iteration_s=strict_s, algorithm_2_s=simple_s, warnings=warnings)


def accuracy(*, predicted_s: float, measured_s: float, relative_to: Literal["predicted", "measured"]) -> float:
    """Return ``1 - |PT - MT| / PT`` (Tables 2 to 5) or ``... / MT`` (Tables 6 and 7).

    Parameters
    ----------
    predicted_s, measured_s
        PT and MT, seconds of an iteration; > 0.
    relative_to
        Which of the two the difference is divided by.

    >>> accuracy(predicted_s=4, measured_s=5, relative_to="measured")
    0.8
    """
    base_s = predicted_s if relative_to == "predicted" else measured_s
    _positive(f"{relative_to}_s", base_s)
    return 1 - abs(predicted_s - measured_s) / base_s


def _shares(value: dict[int, float]) -> dict[int, float]:
    """Refuse an empty share of the batch."""
    if least := [size for size in value if size < 1]:
        raise ValueError(f"a batch of {least[0]} samples is too small. Write 1 or more.")
    return value


class CountingInput(Model):
    """How FLOP and pushes are counted, see :class:`Counting`."""

    flop_per_weight: _Amount = FLOP_PER_WEIGHT
    flop_per_bias: _Amount = FLOP_PER_BIAS
    backward: Literal["once", "per_sample"] = "once"
    variant: Literal["corrected", "printed"] = "corrected"
    ignored: str = ""
    flop_per_output: dict[Name, _Amount] = {}
    output_pixels: dict[Name, Count] = {}
    layer_flop: dict[Name, _Amount] = {}
    input_channels: dict[Name, Count] = {}
    unexplained_pushes: Annotated[int, Field(ge=0)] = 0
    sent: Literal["parameters", "weights"] = "parameters"

    def build(self) -> Counting:
        """Return the convention."""
        keys = ("variant", "ignored", "flop_per_output", "output_pixels", "layer_flop", "input_channels")
        return Counting(**{key: getattr(self, key) for key in keys})


class TypedInput(Model):
    """What the authors typed by hand; each wins over what the layers give.

    ``computed_weights`` count in the backward pass alone, ``sent_scalars`` on the link alone.
    """

    forward_flop: _Amount | None = None
    computed_weights: _Amount | None = None
    sent_scalars: _Amount | None = None
    compute: Seconds | None = None


class WorkerInput(Model):
    """Equal workers: a CPU by ``values_per_cycle`` (eq. 28), or a GPU by its stream processors (eq. 33)."""

    count: Count = 1
    clock: Hertz
    values_per_cycle: Positive | None = None
    stream_processors: Count | None = None
    flop_per_cycle: Positive = 1.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.values_per_cycle is None) == (self.stream_processors is None):
            raise ValueError("give values_per_cycle for a CPU, or stream_processors for a GPU.")
        return self

    def time_s(self, flop: float) -> float:
        """Return the seconds of so many FLOP."""
        if self.stream_processors is None:
            return cpu_time_s(flop, clock_hz=self.clock, values_per_cycle=self.values_per_cycle or 0.0)
        return gpu_time_s(
            flop, clock_hz=self.clock, num_stream_processors=self.stream_processors, flop_per_cycle=self.flop_per_cycle
        )


class SheetInput(Model):
    """A table of predicted and measured seconds (net, device, batch, predicted_s, measured_s), and which device."""

    file: Name
    device: Name


Timing = Literal["alone", "equation_29", "equation_32", "algorithm_1", "algorithm_2", "segments"]


class Inputs(Model):
    """A network, how it is counted, and the machines it is trained on; ``batches`` maps a size to measured seconds."""

    dnn: Name
    counting: CountingInput = CountingInput()
    typed: TypedInput = TypedInput()
    workers: list[WorkerInput] = []
    link: Rate | None = None
    overhead: Seconds = 0.0
    timing: Timing = "alone"
    batches: Annotated[dict[int, Seconds], AfterValidator(_shares)] = {}
    sheet: SheetInput | None = None
    accuracy_relative_to: Literal["predicted", "measured"] = "predicted"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.batches or self.sheet) and not self.workers:
            raise ValueError("seconds are asked and there is no worker. Give workers.")
        if self.timing == "alone" and sum(one.count for one in self.workers) > 1:
            raise ValueError("timing alone has one worker. Set timing, or leave one worker.")
        if self.timing != "alone" and self.link is None:
            raise ValueError(f"timing {self.timing} needs the server's link. Give link.")
        if self.timing == "equation_29" and len(self.workers) != 1:
            raise ValueError(f"equation_29 has equal workers, not {len(self.workers)} kinds. Take algorithm_1.")
        if self.timing in ("algorithm_2", "segments") and self.typed.compute is not None:
            raise ValueError(f"timing {self.timing} computes in parts. Leave out typed.compute.")
        return self


def answer(inputs: Inputs) -> Mapping[str, Any]:
    """Return the network's counts, and seconds and accuracy under ``batch_32`` and so on.

    With a sheet also ``largest_difference`` from its predictions, relative, over all its batches.
    """
    counts = _counts(inputs)
    measured, predicted = dict(inputs.batches), dict[int, float]()
    if inputs.sheet:
        measured, predicted = _read_sheet(inputs.sheet, inputs.dnn)
    batches = {size: _batch(inputs, counts, size) for size in {**measured, **predicted}}
    for size, measured_s in measured.items():
        batches[size]["accuracy"] = accuracy(
            predicted_s=batches[size]["iteration_s"], measured_s=measured_s, relative_to=inputs.accuracy_relative_to
        )
    answered: dict[str, Any] = {**counts, **{f"batch_{size}": one for size, one in batches.items()}}
    if predicted:
        ours = {size: batches[size]["iteration_s"] for size in predicted}
        largest = max(abs(ours[size] / theirs - 1) for size, theirs in predicted.items())
        answered["largest_difference"] = round(largest, 12)  # the rest is floating point's
    return answered


def _counts(inputs: Inputs) -> dict[str, float]:
    """Return FLOP, weights, pushes and numbers sent of the network."""
    dnn, by, typed = zoo.build(inputs.dnn), inputs.counting, inputs.typed
    counting = by.build()
    weights = _first(typed.computed_weights, counted_weights(dnn, counting))
    backward = backward_flop(
        num_weights=weights, num_biases=num_biases(dnn), per_weight=by.flop_per_weight, per_bias=by.flop_per_bias
    )
    return {
        "forward_flop": _first(typed.forward_flop, forward_flop(dnn, counting)),
        "backward_flop": backward,
        "num_pushes": num_pushes(dnn, num_unexplained=by.unexplained_pushes),
        "num_sent": _first(typed.sent_scalars, dnn.num_weights if by.sent == "weights" else dnn.num_trainable),
    }


def _first(typed: float | None, counted: float) -> float:
    """Return what was typed, or else what was counted."""
    return counted if typed is None else typed


def _batch(inputs: Inputs, counts: Mapping[str, float], size: int) -> dict[str, Any]:
    """Return the seconds of one batch size, which is each worker's own."""
    total = iteration_flop(
        forward_flop=counts["forward_flop"],
        backward_flop=counts["backward_flop"],
        batch_size=size,
        backward=inputs.counting.backward,
    )
    forward = size * counts["forward_flop"]
    workers = [one for one in inputs.workers for _ in range(one.count)]
    compute_s = [_first(inputs.typed.compute, one.time_s(total)) for one in workers]
    if inputs.timing == "alone":
        return {"iteration_s": compute_s[0] + inputs.overhead, "compute_s": compute_s[0]}
    forward_s = [one.time_s(forward) for one in workers]
    backward_s = [one.time_s(total - forward) for one in workers]
    return _distributed(inputs, counts, compute_s, forward_s, backward_s)


def _distributed(
    inputs: Inputs, counts: Mapping[str, float], compute_s: list[float], forward_s: list[float], backward_s: list[float]
) -> dict[str, Any]:
    """Return the seconds with a server: the ones asked for, those of the segments, and whether eq. 32 holds."""
    sent_bytes = counts["num_sent"] * _NUMBER_BYTES
    exchange = BspExchange.of(
        gradient_bytes=sent_bytes,
        parameter_bytes=sent_bytes,
        bandwidth_bytes_per_s=inputs.link or 0.0,
        overhead_s=inputs.overhead,
    )
    checked = checked_algorithm_2(forward_s, backward_s, exchange, num_pushes=int(counts["num_pushes"]))
    times = {
        "equation_29": lambda: equal_workers_time_s(compute_s[0], exchange, num_workers=len(compute_s)),
        "equation_32": lambda: fastest_worker_time_s(compute_s, exchange),
        "algorithm_1": lambda: algorithm_1_time_s(compute_s, exchange),
        "algorithm_2": lambda: checked.algorithm_2_s,
        "segments": lambda: checked.iteration_s,
    }
    return {
        "iteration_s": times[inputs.timing](),
        "segments_s": checked.iteration_s,
        "algorithm_2_warnings": len(checked.warnings),
        "equation_32_holds": int(equation_32_holds(compute_s, push_s=exchange.push_s)),
    }


def _read_sheet(sheet: SheetInput, dnn: str) -> tuple[dict[int, float], dict[int, float]]:
    """Return measured and predicted seconds by batch size; not every batch was measured."""
    rows = csv.DictReader(read_text(Path(sheet.file)).splitlines())
    found = [row for row in rows if (row["net"], row["device"]) == (dnn, sheet.device)]
    if not found:
        problem = f"{sheet.file} has no row of {dnn!r} on {sheet.device!r}."
        raise SpecError.one(problem, "Check both names.")
    columns = [{int(row["batch"]): row[name] for row in found if row[name]} for name in ("measured_s", "predicted_s")]
    measured, predicted = ({size: float(text) for size, text in column.items()} for column in columns)
    return measured, predicted
