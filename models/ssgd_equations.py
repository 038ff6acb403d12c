"""Synchronous SGD on equal devices: equations 1 to 6 of the DAG model, and the steady iterations of four strategies.

Source: S. Shi, Q. Wang, X. Chu and B. Li, A DAG Model of Synchronous Stochastic Gradient Descent in Distributed Deep
Learning, arXiv:1805.03812, sections III and IV. Layers stand in forward order: index 0 is the paper's layer 1, the last
is layer L, nearest the loss. Times of communication run from the start of layer L's backward: ``tau_b(L) = 0``. As a
task graph: :mod:`planner.models.ssgd_dag`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Self

from planner.errors import ModelError

__all__ = [
    "AllReduce",
    "Iteration",
    "Prefetch",
    "Strategy",
    "all_reduce_spans_s",
    "exposed_all_reduce_s",
    "input_bound_s",
    "naive_time_s",
    "overlapped_time_s",
    "prefetched_time_s",
    "sgd_time_s",
    "speed_up",
    "steady_time_s",
    "wait_free_time_s",
]


class Strategy(StrEnum):
    """What a framework lets run at the same time (section IV-C)."""

    NAIVE = "naive"  # one thing after the other
    CNTK = "cntk"  # reads ahead
    MXNET = "mxnet"  # and TensorFlow: reads ahead, and sends gradients during the backward pass
    CAFFE_MPI = "caffe_mpi"  # the same, and copies ahead into a second buffer on the device

    @property
    def reads_ahead(self) -> bool:
        """Whether the next batch is read during an iteration."""
        return self is not Strategy.NAIVE

    @property
    def copies_ahead(self) -> bool:
        """Whether the next batch is copied to the device during an iteration, too."""
        return self is Strategy.CAFFE_MPI

    @property
    def overlaps_gradients(self) -> bool:
        """Whether a gradient is sent as soon as it is ready (wait-free back-propagation)."""
        return self in (Strategy.MXNET, Strategy.CAFFE_MPI)


class Prefetch(StrEnum):
    """Whether one batch may be read while the one before it is copied."""

    SINGLE = "single"  # one thread reads and copies in turn: t_io + t_h2d, as eqs. 3 to 6 have it
    PIPELINED = "pipelined"  # both at once, as the task graph allows: max(t_io, t_h2d)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """One communication task: the gradients of one layer, or of several that were fused.

    Attributes
    ----------
    layers
        Indices of the layers whose gradients it carries; it is ready after the backward of the first of them.
    lag_s
        For which a fusion buffer still waits then (``Wait.EXACT``). A wait that holds the network (``Wait.PAPER``) is
        part of the duration.
    """

    duration_s: float
    layers: tuple[int, ...]
    lag_s: float = 0.0
    name: str = "all-reduce"

    @property
    def ready_layer(self) -> int:
        """The layer whose gradient comes last: the one nearest the input."""
        return min(self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """The seconds of one iteration on each of several equal devices.

    Attributes
    ----------
    forward_s, backward_s
        ``t_f(l)`` and ``t_b(l)`` of each layer, for the whole batch of a device.
    all_reduces
        ``t_c``, in the order of transfer, which is that in which they get ready. Devices that read, copy or train
        alone have none.
    read_s, copy_s, update_s
        ``t_io``, ``t_h2d`` and ``t_u``. Eqs. 3 to 6 have no ``t_u``; here it belongs to the computation.
    names
        Of the layers; empty for none.

    Raises
    ------
    ModelError
        If there is no layer, lengths differ, a time is negative, or an all-reduce carries unknown layers or is not in
        ready order.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    all_reduces: tuple[AllReduce, ...] = ()
    read_s: float = 0.0
    copy_s: float = 0.0
    update_s: float = 0.0
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_layers(self)
        _check_all_reduces(self)

    @classmethod
    def layer_wise(
        cls,
        *,
        forward_s: Sequence[float],
        backward_s: Sequence[float],
        all_reduce_s: Sequence[float],
        read_s: float = 0.0,
        copy_s: float = 0.0,
        update_s: float = 0.0,
        names: Sequence[str] = (),
    ) -> Self:
        """Return the iteration with one all-reduce for every layer with ``t_c(l) > 0``, as the paper has it."""
        if len(all_reduce_s) != len(forward_s):
            raise ModelError(f"all_reduce_s has {len(all_reduce_s)} layers, forward_s has {len(forward_s)}.")
        labels = names or [f"layer {index + 1}" for index in range(len(forward_s))]
        return cls(
            forward_s=tuple(forward_s),
            backward_s=tuple(backward_s),
            all_reduces=tuple(
                AllReduce(duration_s=all_reduce_s[index], layers=(index,), name=f"all-reduce {labels[index]}")
                for index in reversed(range(len(forward_s)))
                if all_reduce_s[index] != 0
            ),
            read_s=read_s,
            copy_s=copy_s,
            update_s=update_s,
            names=tuple(names),
        )

    @property
    def computation_s(self) -> float:
        """``t_f + t_b + t_u``."""
        return sum(self.forward_s) + sum(self.backward_s) + self.update_s

    @property
    def all_reduce_s(self) -> float:
        """``t_c``, the sum."""
        return sum(one.duration_s for one in self.all_reduces)


# -- equations 1 to 6 ------------------------------------------------------------------------------------------------


def sgd_time_s(iteration: Iteration) -> float:
    """Return ``t_io + t_h2d + t_f + t_b + t_u``: one device, nothing overlapped (eq. 1)."""
    return iteration.read_s + iteration.copy_s + iteration.computation_s


def naive_time_s(iteration: Iteration) -> float:
    """Return eq. 1 ``+ t_c``: several devices, nothing overlapped (eq. 2)."""
    return sgd_time_s(iteration) + iteration.all_reduce_s


def input_bound_s(iteration: Iteration, prefetch: Prefetch = Prefetch.SINGLE) -> float:
    """Return the seconds between two batches, were nothing else slow: the first arm of eqs. 3 to 6."""
    stages = (iteration.read_s, iteration.copy_s)
    return sum(stages) if prefetch is Prefetch.SINGLE else max(stages)


def prefetched_time_s(iteration: Iteration, prefetch: Prefetch = Prefetch.SINGLE) -> float:
    """Return ``max(t_io + t_h2d, t_f + t_b + t_c)``: input overlaps with all the rest (eq. 3)."""
    return max(input_bound_s(iteration, prefetch), iteration.computation_s + iteration.all_reduce_s)


def all_reduce_spans_s(iteration: Iteration) -> list[tuple[float, float]]:
    """Return start ``tau_c`` and end ``mu_c`` of every all-reduce, from the start of layer L's backward.

    Notes
    -----
    ``tau_c(L) = tau_b(L) + t_b(L)``, ``tau_c(l) = max(tau_c(l+1) + t_c(l+1), tau_b(l) + t_b(l))``: one channel, in
    ready order. The paper's text has the inequality of layer 1 alone. It is the recursion of eqs. 8 and 9 of the OSF
    model (:func:`planner.models.overlap.unfused_update_time_s`), whose time begins ``t_b(L)`` later.
    """
    ready_s = _backward_ends_s(iteration)
    spans, free_s = [], 0.0
    for one in iteration.all_reduces:
        start_s = max(free_s, ready_s[one.ready_layer] + one.lag_s)
        free_s = start_s + one.duration_s
        spans.append((start_s, free_s))
    return spans


def overlapped_time_s(iteration: Iteration, prefetch: Prefetch = Prefetch.SINGLE, *, is_printed: bool = False) -> float:
    """Return ``max(t_io + t_h2d, t_f + t_b(L) + tau_c(1) - tau_c(L) + t_c(1))``: gradients overlap, too (eq. 4).

    Parameters
    ----------
    is_printed
        With ``tau_c(L) - tau_c(L)``, as it stands in print: the difference vanishes, and with it the backward pass of
        all layers but L.
    """
    first_s = iteration.backward_s[-1]  # tau_c(L), whether or not layer L has parameters
    last_s, duration_s = _layer_1_span(iteration)
    between_s = 0.0 if is_printed else last_s - first_s
    busy_s = sum(iteration.forward_s) + first_s + between_s + duration_s + iteration.update_s
    return max(input_bound_s(iteration, prefetch), busy_s)


def exposed_all_reduce_s(iteration: Iteration) -> float:
    """Return ``t_c^no``: how much later than the backward pass the last all-reduce ends; >= 0."""
    spans = all_reduce_spans_s(iteration)
    return max(0.0, spans[-1][1] - _backward_ends_s(iteration)[0]) if spans else 0.0


def wait_free_time_s(iteration: Iteration, prefetch: Prefetch = Prefetch.SINGLE) -> float:
    """Return ``max(t_io + t_h2d, t_f + t_b + t_c^no)`` (eq. 5), which equals eq. 4 as corrected."""
    return max(input_bound_s(iteration, prefetch), iteration.computation_s + exposed_all_reduce_s(iteration))


def speed_up(one: Iteration, many: Iteration, *, num_devices: int, prefetch: Prefetch = Prefetch.SINGLE) -> float:
    """Return ``N_g t_iter-1 / t_iter-Ng``: the samples a second of all devices over those of one (eq. 6).

    Parameters
    ----------
    one, many
        Of one device, without all-reduces, and of ``num_devices``. Their ``read_s`` differ where the devices of a
        machine, or machines, read from the same store: the second subscript of ``t_io`` counts devices in a machine.
    """
    return num_devices * wait_free_time_s(one, prefetch) / wait_free_time_s(many, prefetch)


# -- the four strategies ---------------------------------------------------------------------------------------------


def steady_time_s(iteration: Iteration, strategy: Strategy, prefetch: Prefetch = Prefetch.SINGLE) -> float:
    """Return the time between two updates, once the pipeline of input is full.

    Notes
    -----
    With ``C = t_f + t_b + t_u``, and ``t_c^no`` the sum of ``t_c`` unless gradients overlap (section IV-C)::

                   pipelined prefetch                 a single thread
        naive      t_io + t_h2d + C + t_c             the same
        CNTK       max(t_io, t_h2d + C + t_c)         t_h2d + max(t_io, C + t_c)
        MXNet      max(t_io, t_h2d + C + t_c^no)      t_h2d + max(t_io, C + t_c^no)
        Caffe-MPI  max(t_io, t_h2d, C + t_c^no)       max(t_io + t_h2d, C + t_c^no)

    Caffe-MPI with a single thread is eq. 5. The paper prints no formula for CNTK and MXNet; these are read off its
    task graph: the copy waits for the update, and a single thread reads on only after the copy.
    """
    is_exposed_only = strategy.overlaps_gradients
    all_reduce_s = exposed_all_reduce_s(iteration) if is_exposed_only else iteration.all_reduce_s
    busy_s = iteration.computation_s + all_reduce_s
    if not strategy.reads_ahead:
        return iteration.read_s + iteration.copy_s + busy_s
    if strategy.copies_ahead:
        return max(input_bound_s(iteration, prefetch), busy_s)
    if prefetch is Prefetch.PIPELINED:
        return max(iteration.read_s, iteration.copy_s + busy_s)
    return iteration.copy_s + max(iteration.read_s, busy_s)


def _backward_ends_s(iteration: Iteration) -> list[float]:
    """Return ``tau_b(l) + t_b(l)`` of each layer."""
    ends_s, now_s = [], 0.0
    for seconds in reversed(iteration.backward_s):
        now_s += seconds
        ends_s.append(now_s)
    return ends_s[::-1]


def _layer_1_span(iteration: Iteration) -> tuple[float, float]:
    """Return ``tau_c(1)`` and ``t_c(1)``; without parameters layer 1 sends nothing, in no time, when it could."""
    spans = all_reduce_spans_s(iteration)
    if spans and iteration.all_reduces[-1].ready_layer == 0:
        return spans[-1][0], iteration.all_reduces[-1].duration_s
    return max(spans[-1][1] if spans else 0.0, _backward_ends_s(iteration)[0]), 0.0


def _check_layers(iteration: Iteration) -> None:
    """Refuse lengths that differ, and times that are no times."""
    num_layers = len(iteration.forward_s)
    if not num_layers or len(iteration.backward_s) != num_layers or len(iteration.names) not in (0, num_layers):
        raise ModelError(
            f"forward_s, backward_s and names (or none) must be of the same layers, and of one at least, "
            f"not {num_layers}, {len(iteration.backward_s)} and {len(iteration.names)}."
        )
    named = [("read_s", iteration.read_s), ("copy_s", iteration.copy_s), ("update_s", iteration.update_s)]
    named += [(f"forward_s of layer {index}", seconds) for index, seconds in enumerate(iteration.forward_s)]
    named += [(f"backward_s of layer {index}", seconds) for index, seconds in enumerate(iteration.backward_s)]
    for one in iteration.all_reduces:
        named += [(f"duration_s of {one.name!r}", one.duration_s), (f"lag_s of {one.name!r}", one.lag_s)]
    for what, seconds in named:
        if not 0 <= seconds < math.inf:
            raise ModelError(f"{what} must be finite and >= 0, not {seconds}.")


def _check_all_reduces(iteration: Iteration) -> None:
    """Refuse all-reduces of unknown layers, and an order in which one would wait for a later one's gradients."""
    num_layers = len(iteration.forward_s)
    for one in iteration.all_reduces:
        if not one.layers or not all(0 <= layer < num_layers for layer in one.layers):
            raise ModelError(f"{one.name!r} carries layers {one.layers}, but there are layers 0 to {num_layers - 1}.")
    for before, after in pairwise(iteration.all_reduces):
        if before.ready_layer < after.ready_layer:
            raise ModelError(
                f"{before.name!r} waits for layer {before.ready_layer} and stands before {after.name!r}, which waits "
                f"for layer {after.ready_layer}. Give all-reduces in ready order, from the last layer to the first."
            )
