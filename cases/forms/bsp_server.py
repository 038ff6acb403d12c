"""The heterogeneous-PS model on a network of the zoo and the paper's machines, with its counting conventions named.

Source: Y. Zeng et al., Modeling the Training Iteration Time for Heterogeneous Distributed Deep Learning Systems,
Int. J. Intelligent Systems, 2023, doi:10.1155/2023/2663115. Inputs that the authors typed instead of computing are keys
under ``typed``.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from planner import zoo
from planner.cases.forms import Hertz
from planner.cases.forms.training_flop import (
    FLOP_PER_BIAS,
    FLOP_PER_WEIGHT,
    Counting,
    backward_flop,
    counted_weights,
    forward_flop,
    iteration_flop,
    num_biases,
    num_pushes,
)
from planner.errors import Fault, SpecError
from planner.importers.text import read_text
from planner.models.servers import (
    BspExchange,
    accuracy,
    algorithm_1_time_s,
    checked_algorithm_2,
    cpu_time_s,
    equal_workers_time_s,
    equation_32_holds,
    fastest_worker_time_s,
    gpu_time_s,
)
from planner.question.values import Count, Model, Name, Positive, Rate, Seconds

__all__ = ["Inputs", "answer"]

_NUMBER_BYTES = 4  # parameters and gradients are fp32
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _shares(value: dict[int, float]) -> dict[int, float]:
    """Refuse an empty share of the batch."""
    if least := [size for size in value if size < 1]:
        raise ValueError(f"a batch of {least[0]} samples is too small. Write 1 or more.")
    return value


class CountingInput(Model):
    """How FLOP and pushes are counted, see :class:`planner.cases.forms.training_flop.Counting`."""

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
            flop,
            clock_hz=self.clock,
            num_stream_processors=self.stream_processors,
            flop_per_cycle=self.flop_per_cycle,
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
    inputs: Inputs,
    counts: Mapping[str, float],
    compute_s: list[float],
    forward_s: list[float],
    backward_s: list[float],
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
        raise SpecError.of([Fault(problem=problem, mend="Check both names.")])
    columns = [{int(row["batch"]): row[name] for row in found if row[name]} for name in ("measured_s", "predicted_s")]
    measured, predicted = ({size: float(text) for size, text in column.items()} for column in columns)
    return measured, predicted
