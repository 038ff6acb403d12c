"""What a transformer's training step exchanges under a layout: operations, their bytes and how many there are.

Per device, with T = b s / c tokens of one micro-batch (b samples of s tokens, context degree c), width h, w bytes per
element, tensor degree t:

- **Tensor** ([K] section 4, [N] section 2.3), per layer: an all-reduce of ``w T h`` behind attention and one behind the
  feed-forward part, both ways (one where both read one norm). With sequence parallelism each is a gather and a
  reduce-scatter of the same bytes, and backward gathers the input of the first product of each part once more; that
  gather runs beside the product that does not need it. Routed experts are dispatched before they are gathered, so
  their part is ``top_k`` times as large.
- **Context** ([L]): keys and values of ``T`` tokens pass round a ring in ``c - 1`` steps; backward passes them and
  their gradients.
- **Experts** (D. Lepikhin et al., arXiv 2006.16668): tokens go to their experts and back by all-to-alls of
  ``w T h top_k imbalance`` bytes (a t-th of that under sequence parallelism), twice each way.
- **Recomputation** of whole layers repeats all of a layer's forward exchange; selective repeats none ([K] section 5).
- **Pipeline** ([N] section 4.1): ``w T h`` bytes each way per micro-batch and boundary, per chunk; a t-th where it is
  scattered, which needs a gather behind it unless the sequence is split anyhow.
- **Gradients and weights** ([R]): see :mod:`planner.models.transformer_replicas`.

Leaves out exchanges of single numbers, and of norms' gradients under sequence parallelism. Sources: [K] V. Korthikanti
et al., arXiv 2205.05198; [N] D. Narayanan et al., SC21, arXiv 2104.04473; [L] H. Liu et al., arXiv 2310.01889; [R] S.
Rajbhandari et al., SC20, arXiv 1910.02054.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from planner.cost import Floats
from planner.models.group_costs import Group, all_reduce_s, all_to_all_s, gather_s, send_s
from planner.models.layouts import Layouts, Recompute
from planner.transformer import LayerKind, Transformer

__all__ = [
    "Exchange",
    "ExchangeTimes",
    "exchange_times",
    "first_stage_exchanges",
    "last_stage_exchanges",
    "layer_exchanges",
    "pipeline_exchanges",
]

Operation = Literal["all_reduce", "gather", "all_to_all", "send"]
_SECONDS: Mapping[str, Callable[[Group, Floats], Floats]] = {
    "all_reduce": all_reduce_s,
    "gather": gather_s,
    "all_to_all": all_to_all_s,
    "send": send_s,
}
_LOSS_BYTES = 4  # of one token's largest logit, its own logit and its sum, in fp32
_LOSS_REDUCTIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchange:
    """Equal operations within one kind of group, per micro-batch; arrays of one element a layout.

    Attributes
    ----------
    name
        What is exchanged: tensor, context, experts, pipeline, ...
    group
        Which ranks: a key of :func:`planner.models.tiers.axes_of`, or ``ends`` of the pipeline.
    operation
        ``gather`` stands for an all-gather and for a reduce-scatter, which cost the same.
    size_bytes
        Of one operation; of the whole gathered buffer for a gather.
    forward, backward
        How many of them.
    hidden_backward
        How many more that backward computes beside: the repeated gathers of sequence parallelism.
    recomputed
        How many more because of recomputation.
    """

    name: str
    group: str
    operation: Operation
    size_bytes: Floats
    forward: Floats
    backward: Floats
    hidden_backward: Floats
    recomputed: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExchangeTimes:
    """Seconds of some exchanges per micro-batch, if nothing hides them; arrays of one element a layout."""

    forward_s: Floats
    backward_s: Floats
    hidden_backward_s: Floats
    recomputed_s: Floats


def exchange_times(exchanges: Sequence[Exchange], groups: Mapping[str, Group]) -> Mapping[str, ExchangeTimes]:
    """Return the seconds of exchanges by name: each operation's, times how many there are."""
    found: dict[str, ExchangeTimes] = {}
    for one in exchanges:
        seconds = _SECONDS[one.operation](groups[one.group], one.size_bytes)
        times = ExchangeTimes(
            forward_s=one.forward * seconds,
            backward_s=one.backward * seconds,
            hidden_backward_s=one.hidden_backward * seconds,
            recomputed_s=one.recomputed * seconds,
        )
        found[one.name] = _sum(found[one.name], times) if one.name in found else times
    return found


def _sum(one: ExchangeTimes, other: ExchangeTimes) -> ExchangeTimes:
    """Return the sum of two."""
    return ExchangeTimes(
        forward_s=one.forward_s + other.forward_s,
        backward_s=one.backward_s + other.backward_s,
        hidden_backward_s=one.hidden_backward_s + other.hidden_backward_s,
        recomputed_s=one.recomputed_s + other.recomputed_s,
    )


# -- layers ------------------------------------------------------------------------------------------------------------


def layer_exchanges(
    transformer: Transformer,
    layouts: Layouts,
    kind: LayerKind,
    *,
    element_bytes: float = 2.0,
    expert_imbalance: float = 1.0,
) -> tuple[Exchange, ...]:
    """Return what one layer of a kind exchanges for one micro-batch, on one device.

    Parameters
    ----------
    element_bytes
        Of one activation, and of one gradient of it.
    expert_imbalance
        Tokens of the fullest device's experts, over the mean; >= 1.
    """
    size_bytes = element_bytes * _tokens(transformer, layouts) * transformer.hidden_size
    halves = 1 if transformer.norm_position in ("shared", "parallel") else 2
    found = [_ring(transformer, layouts, element_bytes)]
    if kind == "dense" or transformer.experts is None:
        return (*_tensor(layouts, size_bytes, halves), *found)
    routed_bytes = size_bytes * transformer.experts.top_k * expert_imbalance
    # Without sequence parallelism one all-reduce sums the routed and the shared experts' output.
    shared = 1 if transformer.experts.num_shared else 0
    split = layouts.is_sequence_parallel
    found += _tensor(layouts, size_bytes, np.where(split, halves - 1 + shared, halves))
    found += _tensor(layouts, routed_bytes, np.where(split, 1, 0), name="expert_tensor")[1:]
    found.append(_exchange("experts", "expert", "all_to_all", layouts, routed_bytes / _split(layouts), 2, 2))
    return tuple(found)


def _tensor(layouts: Layouts, size_bytes: Floats, halves: ArrayLike, name: str = "tensor") -> tuple[Exchange, ...]:
    """Return the all-reduces behind so many parts of a layer, or the gathers and reduce-scatters that replace them."""
    split = layouts.is_sequence_parallel
    reduced, gathered = np.where(split, 0, halves), np.where(split, 2 * np.asarray(halves), 0)
    return (
        _exchange(name, "tensor", "all_reduce", layouts, size_bytes, reduced, reduced),
        _exchange(name, "tensor", "gather", layouts, size_bytes, gathered, gathered, hidden=gathered / 2),
    )


def _ring(transformer: Transformer, layouts: Layouts, element_bytes: float) -> Exchange:
    """Return the keys and values that pass round the ring of a context group; backward their gradients, too."""
    # Fewer heads of keys and values than devices: some hold the same.
    heads = np.maximum(transformer.num_kv_heads / layouts.tensor, 1.0)
    width = heads * (transformer.head_size + transformer.value_head_size)
    steps = layouts.context - 1
    return _exchange(
        "context", "context", "send", layouts, element_bytes * _tokens(transformer, layouts) * width, steps, 2 * steps
    )


def _exchange(
    name: str,
    group: str,
    operation: Operation,
    layouts: Layouts,
    size_bytes: Floats,
    forward: ArrayLike,
    backward: ArrayLike,
    hidden: ArrayLike = 0.0,
    is_recomputed: bool = True,
) -> Exchange:
    """Return an exchange; full recomputation does a layer's forward part again."""
    again = np.where(layouts.recompute == Recompute.FULL, forward, 0) if is_recomputed else 0
    counts = [np.asarray(count, dtype=np.float64) for count in (forward, backward, hidden, again)]
    return Exchange(
        name=name,
        group=group,
        operation=operation,
        size_bytes=np.asarray(size_bytes, dtype=np.float64),
        forward=counts[0],
        backward=counts[1],
        hidden_backward=counts[2],
        recomputed=counts[3],
    )


def _tokens(transformer: Transformer, layouts: Layouts) -> Floats:
    """Return the tokens of one micro-batch on one rank of its context group."""
    tokens: Floats = layouts.microbatch * (transformer.sequence_length / layouts.context)
    return tokens


def _split(layouts: Layouts) -> Floats:
    """Return over how many devices the sequence is split by sequence parallelism."""
    return np.where(layouts.is_sequence_parallel, layouts.tensor, 1).astype(np.float64)


# -- ends of the pipeline, and between its stages ----------------------------------------------------------------------


def first_stage_exchanges(
    transformer: Transformer, layouts: Layouts, *, element_bytes: float = 2.0
) -> tuple[Exchange, ...]:
    """Return what the embedding, split over the vocabulary, exchanges for one micro-batch: the sum of its parts.

    Backward needs no sum: every device keeps its rows' gradients. Under sequence parallelism the sum is a
    reduce-scatter, and the error is gathered.
    """
    size_bytes = element_bytes * _tokens(transformer, layouts) * transformer.hidden_size
    split = layouts.is_sequence_parallel
    gathers = np.where(split, 1, 0)
    return (
        _exchange("embedding", "tensor", "all_reduce", layouts, size_bytes, 1 - gathers, 0, is_recomputed=False),
        _exchange("embedding", "tensor", "gather", layouts, size_bytes, gathers, gathers, is_recomputed=False),
    )


def last_stage_exchanges(
    transformer: Transformer, layouts: Layouts, *, element_bytes: float = 2.0
) -> tuple[Exchange, ...]:
    """Return what the logits, split over the vocabulary, and the loss exchange for one micro-batch.

    Forward: three numbers a token (largest logit, the right word's logit, sum of exponentials); backward: the sum of
    the error behind the logits. Under sequence parallelism that is a gather forward, another hidden one and a
    reduce-scatter.
    """
    tokens = _tokens(transformer, layouts)
    size_bytes = element_bytes * tokens * transformer.hidden_size
    gathers = np.where(layouts.is_sequence_parallel, 1, 0)
    return (
        _exchange("logits", "tensor", "all_reduce", layouts, size_bytes, 0, 1 - gathers, is_recomputed=False),
        _exchange("logits", "tensor", "gather", layouts, size_bytes, gathers, gathers, gathers, is_recomputed=False),
        _exchange(
            "logits", "tensor", "all_reduce", layouts, _LOSS_BYTES * tokens, _LOSS_REDUCTIONS, 0, is_recomputed=False
        ),
    )


def pipeline_exchanges(
    transformer: Transformer, layouts: Layouts, *, element_bytes: float = 2.0, is_scattered: bool = True
) -> tuple[Exchange, ...]:
    """Return what one boundary between stages passes on for one micro-batch: once each way for every chunk.

    Parameters
    ----------
    is_scattered
        Whether the devices of a tensor group, which hold the same, send a part each and gather behind the boundary
        ([N] section 4.1). Under sequence parallelism each holds a part, and nothing is gathered.
    """
    size_bytes = element_bytes * _tokens(transformer, layouts) * transformer.hidden_size
    has_pipeline = layouts.pipeline > 1
    sends = np.where(has_pipeline, layouts.interleave, 0)
    gathers = np.where(layouts.is_sequence_parallel, 0, sends) if is_scattered else 0
    parts = layouts.tensor if is_scattered else _split(layouts)
    return (
        _exchange("pipeline", "pipeline", "send", layouts, size_bytes / parts, sends, sends, is_recomputed=False),
        _exchange("pipeline", "tensor", "gather", layouts, size_bytes, gathers, gathers, is_recomputed=False),
    )
