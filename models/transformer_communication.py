"""What a transformer's training step communicates under a layout: operations, their bytes and how many there are.

Per device, with T = b s / c tokens of one micro-batch (b samples of s tokens, context degree c), width h, w bytes per
element, tensor degree t:

- **Tensor** ([K] section 4, [N] section 2.3), per layer: an all-reduce of ``w T h`` behind attention and one behind the
  feed-forward part, both ways (one where both read one norm). With sequence parallelism each is a gather and a
  reduce-scatter of the same bytes, and backward gathers the input of the first GEMM of each part once more; that
  gather runs beside the GEMM that does not need it. Routed experts are dispatched before they are gathered, so their
  part is ``top_k`` times as large.
- **Context** ([L]): keys and values of ``T`` tokens pass round a ring in ``c - 1`` steps; backward passes them and
  their gradients.
- **Experts** (D. Lepikhin et al., arXiv 2006.16668): tokens go to their experts and back by all-to-alls of
  ``w T h top_k imbalance`` bytes (a t-th of that under sequence parallelism), twice each way.
- **Recomputation** of whole layers repeats all of a layer's forward communication; selective repeats none ([K] section
  5).
- **Pipeline** ([N] section 4.1): ``w T h`` bytes each way per micro-batch and boundary, per virtual stage; a t-th where
  it is scattered, which needs a gather behind it unless the sequence is split anyhow.
- **Gradients and weights** ([R] sections 5 and 7), per step, over the ``context x data`` ranks that hold the same dense
  weights, or the fewer that hold the same experts. ZeRO 0: an all-reduce of the gradients. 1 and 2: a reduce-scatter of
  the gradients and an all-gather of the updated weights, the same volume. 3: layer by layer an all-gather of the
  weights before forward and another before backward, for every micro-batch where weights are freed in between, and a
  reduce-scatter of the gradients: 1.5 times the volume of one all-reduce. A tied embedding stands on the first and on
  the last stage, which add up its gradient by one all-reduce ([N] section 2.2).

Leaves out single numbers, and norms' gradients under sequence parallelism. Sources: [K] V. Korthikanti et al., arXiv
2205.05198; [N] D. Narayanan et al., SC21, arXiv 2104.04473; [L] H. Liu et al., arXiv 2310.01889; [R] S. Rajbhandari et
al., SC20, arXiv 1910.02054.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.cost import Floats
from planner.models.communication import Group, Operation, operation_s
from planner.models.layouts import Ints, Layouts, Recompute
from planner.models.operators import stage_parameters
from planner.transformer import LayerKind, Transformer

_LOSS_BYTES = 4  # of one token's largest logit, its own logit and its sum, in fp32
_LOSS_REDUCTIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Communication:
    """Equal operations within one kind of group, per micro-batch; arrays of one element a layout.

    Attributes
    ----------
    name
        What for: tensor, context, experts, pipeline, ...
    group
        Which ranks: a key of :func:`planner.models.communication.axes_of`, or ``ends`` of the pipeline.
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


@dataclass(frozen=True, slots=True, eq=False)
class CommunicationTimes:
    """Seconds of some communication per micro-batch, if nothing hides it; arrays of one element a layout."""

    forward_s: Floats
    backward_s: Floats
    hidden_backward_s: Floats
    recomputed_s: Floats

    @property
    def total_s(self) -> Floats:
        """What nothing hides, both ways."""
        return self.forward_s + self.backward_s + self.recomputed_s


def communication_times(
    communicated: Sequence[Communication], groups: Mapping[str, Group]
) -> Mapping[str, CommunicationTimes]:
    """Return the seconds of communication by name: each operation's, times how many there are."""
    found: dict[str, CommunicationTimes] = {}
    for one in communicated:
        seconds = operation_s(one.operation, groups[one.group], one.size_bytes)
        known = found.get(one.name, CommunicationTimes(*[np.zeros(1)] * 4))
        found[one.name] = CommunicationTimes(
            forward_s=known.forward_s + one.forward * seconds,
            backward_s=known.backward_s + one.backward * seconds,
            hidden_backward_s=known.hidden_backward_s + one.hidden_backward * seconds,
            recomputed_s=known.recomputed_s + one.recomputed * seconds,
        )
    return found


# -- layers ------------------------------------------------------------------------------------------------------------


def layer_communication(
    transformer: Transformer,
    layouts: Layouts,
    kind: LayerKind,
    *,
    element_bytes: float = 2.0,
    expert_imbalance: float = 1.0,
) -> tuple[Communication, ...]:
    """Return what one layer of a kind communicates for one micro-batch, on one device.

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
    found.append(_communication("experts", "expert", "all_to_all", layouts, routed_bytes / layouts.stream_split, 2, 2))
    return tuple(found)


def _tensor(layouts: Layouts, size_bytes: Floats, halves: ArrayLike, name: str = "tensor") -> tuple[Communication, ...]:
    """Return the all-reduces behind so many parts of a layer, or the gathers and reduce-scatters that replace them."""
    split = layouts.is_sequence_parallel
    reduced, gathered = np.where(split, 0, halves), np.where(split, 2 * np.asarray(halves), 0)
    return (
        _communication(name, "tensor", "all_reduce", layouts, size_bytes, reduced, reduced),
        _communication(name, "tensor", "gather", layouts, size_bytes, gathered, gathered, hidden=gathered / 2),
    )


def _ring(transformer: Transformer, layouts: Layouts, element_bytes: float) -> Communication:
    """Return the keys and values that pass round the ring of a context group; backward their gradients, too."""
    # Fewer heads of keys and values than devices: some hold the same.
    heads = np.maximum(transformer.num_kv_heads / layouts.tensor, 1.0)
    width = heads * (transformer.head_size + transformer.value_head_size)
    steps = layouts.context - 1
    return _communication(
        "context", "context", "send", layouts, element_bytes * _tokens(transformer, layouts) * width, steps, 2 * steps
    )


def _communication(
    name: str,
    group: str,
    operation: Operation,
    layouts: Layouts,
    size_bytes: Floats,
    forward: ArrayLike,
    backward: ArrayLike,
    hidden: ArrayLike = 0.0,
    is_recomputed: bool = True,
) -> Communication:
    """Return equal operations; full recomputation does a layer's forward part again."""
    again = np.where(layouts.recompute == Recompute.FULL, forward, 0) if is_recomputed else 0
    counts = [np.asarray(count, dtype=np.float64) for count in (forward, backward, hidden, again)]
    return Communication(
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


# -- ends of the pipeline, and between its stages ----------------------------------------------------------------------


def first_stage_communication(
    transformer: Transformer, layouts: Layouts, *, element_bytes: float = 2.0
) -> tuple[Communication, ...]:
    """Return what the embedding, split over the vocabulary, communicates for one micro-batch: the sum of its parts.

    Backward needs no sum: every device keeps its rows' gradients. Under sequence parallelism the sum is a
    reduce-scatter, and the error is gathered.
    """
    size_bytes = element_bytes * _tokens(transformer, layouts) * transformer.hidden_size
    split = layouts.is_sequence_parallel
    gathers = np.where(split, 1, 0)
    return (
        _communication("embedding", "tensor", "all_reduce", layouts, size_bytes, 1 - gathers, 0, is_recomputed=False),
        _communication("embedding", "tensor", "gather", layouts, size_bytes, gathers, gathers, is_recomputed=False),
    )


def last_stage_communication(
    transformer: Transformer, layouts: Layouts, *, element_bytes: float = 2.0
) -> tuple[Communication, ...]:
    """Return what the logits, split over the vocabulary, and the loss communicate for one micro-batch.

    Forward: three numbers a token (largest logit, the right word's logit, sum of exponentials); backward: the sum of
    the error behind the logits. Under sequence parallelism that is a gather forward, another hidden one and a
    reduce-scatter.
    """
    tokens = _tokens(transformer, layouts)
    size_bytes = element_bytes * tokens * transformer.hidden_size
    gathers = np.where(layouts.is_sequence_parallel, 1, 0)
    return (
        _communication("logits", "tensor", "all_reduce", layouts, size_bytes, 0, 1 - gathers, is_recomputed=False),
        _communication(
            "logits", "tensor", "gather", layouts, size_bytes, gathers, gathers, gathers, is_recomputed=False
        ),
        _communication(
            "logits", "tensor", "all_reduce", layouts, _LOSS_BYTES * tokens, _LOSS_REDUCTIONS, 0, is_recomputed=False
        ),
    )


def pipeline_communication(
    transformer: Transformer, layouts: Layouts, *, element_bytes: float = 2.0, is_scattered: bool = True
) -> tuple[Communication, ...]:
    """Return what one boundary between stages passes on for one micro-batch: once each way for every virtual stage.

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
    parts = layouts.tensor if is_scattered else layouts.stream_split
    return (
        _communication("pipeline", "pipeline", "send", layouts, size_bytes / parts, sends, sends, is_recomputed=False),
        _communication("pipeline", "tensor", "gather", layouts, size_bytes, gathers, gathers, is_recomputed=False),
    )


# -- gradients and weights of replicas ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaCommunication:
    """What replicas communicate in a step; arrays of one element a layout, or of shape (p, n) where cuts are given.

    Attributes
    ----------
    name, group
        Dense, experts or tied; and which ranks.
    gradient_bytes, weight_bytes
        Of all that is reduced, and of all that is gathered at once, however many pieces it is cut into.
    num_pieces
        Buckets or layers: operations that the bytes are cut into.
    all_reduces, reduce_scatters, gathers
        How often a step does each of them over all the bytes.
    """

    name: str
    group: str
    gradient_bytes: Floats
    weight_bytes: Floats
    num_pieces: Floats
    all_reduces: Floats
    reduce_scatters: Floats
    gathers: Floats

    @property
    def volume_bytes(self) -> Floats:
        """Bytes in all, an all-reduce counted twice: once there and once back."""
        return (2 * self.all_reduces + self.reduce_scatters) * self.gradient_bytes + self.gathers * self.weight_bytes


def replica_communication(
    transformer: Transformer,
    layouts: Layouts,
    *,
    gradient_bytes: float = 2.0,
    weight_bytes: float = 2.0,
    bucket_bytes: float = float("inf"),
    frees_weights: bool = True,
    reduces_every_microbatch: bool = False,
    shards_gradients: bool = True,
    layers: Ints | None = None,
) -> tuple[ReplicaCommunication, ...]:
    """Return what replicas communicate in one step: dense parameters, experts, and a tied embedding.

    Parameters
    ----------
    gradient_bytes, weight_bytes
        Of one parameter, as it travels.
    bucket_bytes
        Largest piece of gradients that is sent at once; ZeRO-3 sends layer by layer.
    frees_weights
        Whether ZeRO-3 frees a layer's weights after use, so that every micro-batch gathers them for each way; else
        they are gathered once a step.
    reduces_every_microbatch
        Whether ZeRO-2 and 3 reduce the gradients of every micro-batch, rather than of the step.
    shards_gradients
        Whether ZeRO-1 reduces by a reduce-scatter; else by an all-reduce, as without ZeRO.
    layers
        Of every stage, shape (p, n), for what each of them communicates; left out: equal stages, and the fullest.
    """
    held = stage_parameters(transformer, layouts)
    dense, experts = held.dense + held.ends, held.experts
    if layers is not None:
        index, share = np.arange(len(layers))[:, None], layouts.pipeline / transformer.num_layers
        is_last = (index == layouts.pipeline - 1) & (index > 0)
        dense = held.dense * share * layers + (index == 0) * held.first + np.where(is_last, held.last, 0.0)
        experts = held.experts * share * layers
    zero, passes = layouts.zero, layouts.num_microbatches
    gathers = np.where(zero == 3, 2 * passes if frees_weights else 1, np.where(zero >= 1, 1, 0))
    is_whole = (zero == 0) | ((zero == 1) & (not shards_gradients))
    scatters = np.where((zero >= 2) & reduces_every_microbatch, passes, np.where(is_whole, 0, 1))
    found = []
    for name, group, parameters in (("dense", "replicas", dense), ("experts", "expert_replicas", experts)):
        reduced = gradient_bytes * parameters
        pieces = np.maximum(transformer.num_layers / layouts.pipeline, 1.0)
        found.append(
            ReplicaCommunication(
                name=name,
                group=group,
                gradient_bytes=reduced,
                weight_bytes=weight_bytes * parameters,
                num_pieces=np.where(zero == 3, pieces, np.maximum(np.ceil(reduced / bucket_bytes), 1.0)),
                all_reduces=np.where(is_whole, 1.0, 0.0),
                reduce_scatters=scatters.astype(np.float64),
                gathers=gathers.astype(np.float64),
            )
        )
    nothing = np.zeros(1)
    tied = ReplicaCommunication(
        name="tied",
        group="ends",
        gradient_bytes=gradient_bytes * held.tied,
        weight_bytes=nothing,
        num_pieces=np.ones(1),
        all_reduces=np.where(layouts.pipeline > 1, 1.0, 0.0),
        reduce_scatters=nothing,
        gathers=nothing,
    )
    return (*found, tied)


def replica_times(
    communicated: Sequence[ReplicaCommunication], groups: Mapping[str, Group]
) -> Mapping[str, tuple[Floats, Floats]]:
    """Return, by name, the seconds of a step's reductions and of its gathers, if nothing hides them."""
    found = {}
    for one in communicated:
        group, pieces = groups[one.group], one.num_pieces
        reduced, gathered = one.gradient_bytes / pieces, one.weight_bytes / pieces
        reduction_s = one.all_reduces * operation_s("all_reduce", group, reduced) + one.reduce_scatters * operation_s(
            "gather", group, reduced
        )
        found[one.name] = (pieces * reduction_s, pieces * one.gathers * operation_s("gather", group, gathered))
    return found
