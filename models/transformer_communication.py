"""What a transformer's training step communicates under a layout: operations, their bytes and how many there are.

Per device, with T = b s / c tokens of one micro-batch (b samples of s tokens, context degree c), width h, w bytes per
element, tensor degree t:

- **Tensor** ([K] section 4, [N] section 2.3), per layer: an all-reduce of ``w T h`` behind attention and one behind the
  feed-forward part, both ways (one where both read one norm). With sequence parallelism each is a gather and a
  reduce-scatter of the same bytes, and backward gathers the input of the first GEMM of each part once more; that
  gather runs beside the GEMM that does not need it. Routed experts are dispatched before they are gathered, so their
  part is ``top_k`` times as large.
- **Context**, by method. *Ring* ([L]): keys and values of ``T`` tokens pass round a ring in ``c - 1`` steps, beside
  attention; backward passes them and their gradients. *All-gather* (Llama 3, arXiv 2407.21783, section 3.3.2): every
  rank gathers the keys and values of all ``c T`` tokens before attention, again before its backward pass, and reduces
  and scatters their gradients. *Ulysses* (S. A. Jacobs et al., arXiv 2309.14509, section 3.2): an all-to-all of
  queries, keys and values gives each rank whole sequences of a c-th of the heads, and another one takes attention's
  output back; backward does both the other way. *Hierarchical* (J. Fang and S. Zhao, arXiv 2405.07719; Megatron-Core's
  ``a2a+p2p``): all-to-alls among neighbours, as many as share out the heads of keys (:func:`neighbours`), and a ring of
  their groups. Gathers and all-to-alls are exposed. All methods deal out a sequence alike, in two pieces a rank
  (Megatron-Core, ``get_batch_on_this_cp_rank``), which balances causal attention. Layers with windows pass on as much
  in programs that have them so (no ring of Megatron-Core does).
  Mixers whose heads have a state exchange tokens for heads by an all-to-all before and another behind, by any method.
- **Experts** (D. Lepikhin et al., arXiv 2006.16668): tokens go to their experts and back by all-to-alls of
  ``w T h top_k imbalance`` bytes (a t-th of that under sequence parallelism), twice each way. Where a program sends a
  token once to several experts on one device or in one machine, fewer of these bytes leave it.
- **Recomputation** of whole layers repeats all of a layer's forward communication; selective repeats none ([K] section
  5).
- **Pipeline** ([N] section 4.1): ``w T h`` bytes each way per micro-batch and boundary, per virtual stage; a t-th where
  it is scattered, which needs a gather behind it unless the sequence is split anyhow.
- **Gradients and weights** ([R] sections 5 and 7), per step, over the ``context x data`` ranks that hold the same dense
  weights, or the fewer that hold the same experts. ZeRO 0: an all-reduce of the gradients. 1 and 2: a reduce-scatter of
  the gradients and an all-gather of the updated weights, the same volume. 3: layer by layer an all-gather of the
  weights before forward and another before backward, for every micro-batch where weights are freed in between, and a
  reduce-scatter of the gradients: 1.5 times the volume of one all-reduce; in a pipeline once more than there are
  micro-batches, and one reduce-scatter. A tied embedding stands on the first and on
  the last stage, which add up its gradient by one all-reduce ([N] section 2.2).

Leaves out single numbers, and norms' gradients under sequence parallelism. Sources: [K] V. Korthikanti et al., arXiv
2205.05198; [N] D. Narayanan et al., SC21, arXiv 2104.04473; [L] H. Liu et al., arXiv 2310.01889; [R] S. Rajbhandari et
al., SC20, arXiv 1910.02054.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np
from numpy.typing import ArrayLike

from planner.cost import Floats
from planner.frozen import frozen
from planner.mixers import Mamba, Scan
from planner.models.layouts import Bools, ContextMethod, Ints, Layouts, Recompute
from planner.models.parameters import StageParameters, stage_parameters, trained_stage_parameters
from planner.models.recomputation import MODULE_SETS
from planner.models.tiers import Axes, Group, Operation, Spread, axes_of, operation_s
from planner.trained import EMBEDDING
from planner.transformer import KINDS, LayerKind, Transformer

_ELEMENT_BYTES = 2.0  # of one activation, and of one gradient of it
_LOSS_BYTES = 4  # of one token's largest logit, its own logit and its sum, in fp32
_LOSS_REDUCTIONS = 3
_PARTLY = {"replicas": ("shards", "copies"), "expert_replicas": ("expert_shards", "expert_copies")}
_REDUCTIONS: tuple[Operation, Operation] = ("all_reduce", "gather")


@frozen(eq=False)
class Communication:
    """Equal operations within one kind of group, per micro-batch; arrays of one element a layout."""

    name: str  # what for: tensor, context, experts, pipeline, ...
    group: str  # which ranks: a key of :func:`planner.models.tiers.axes_of`, or ``ends`` of the pipeline
    operation: Operation  # ``gather`` stands for an all-gather and for a reduce-scatter, which cost the same
    size_bytes: Floats  # of one operation; of the whole gathered buffer for a gather
    # forward, backward: how many of them
    forward: Floats
    backward: Floats
    hidden_backward: Floats  # how many more that backward computes beside: the repeated gathers of sequence parallelism
    recomputed: Floats  # how many more because of recomputation
    # of an all-to-all: how many members each piece goes to, which travels once to several in one place
    spread: Spread | None = None


@frozen(kw_only=False, eq=False)
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
    """Return the seconds of communication by name: each operation's, times how many there are.

    Parameters
    ----------
    communicated
        Of n layouts.
    groups
        Of the same layouts, by name; see :func:`planner.models.tiers.groups_of`.
    """
    times: dict[str, CommunicationTimes] = {}
    for one in communicated:
        counts = (one.forward, one.backward, one.hidden_backward, one.recomputed)
        seconds = np.zeros(np.shape(one.size_bytes))
        if any(count.any() for count in counts):
            seconds = operation_s(one.operation, groups[one.group], one.size_bytes, one.spread)
        sums = times.get(one.name, CommunicationTimes(*[np.zeros(1)] * 4))
        times[one.name] = CommunicationTimes(
            forward_s=sums.forward_s + one.forward * seconds,
            backward_s=sums.backward_s + one.backward * seconds,
            hidden_backward_s=sums.hidden_backward_s + one.hidden_backward * seconds,
            recomputed_s=sums.recomputed_s + one.recomputed * seconds,
        )
    return times


# -- layers ------------------------------------------------------------------------------------------------------------


def layer_communication(
    transformer: Transformer,
    layouts: Layouts,
    kind: LayerKind,
    *,
    expert_imbalance: float = 1.0,
    spread: Spread | None = None,
    gathered_bytes: float = 2.0,
) -> tuple[Communication, ...]:
    """Return what one layer of a kind communicates for one micro-batch, on one device.

    Parameters
    ----------
    transformer, layouts, kind
        The network, n layouts of it, and the kind of layer.
    expert_imbalance
        Tokens of the fullest device's experts, over the mean; >= 1.
    spread
        How a token that goes once to several experts in one place travels; None: it goes once to each of them.
    gathered_bytes
        Of one activation that tensor groups gather for a product; what they scatter has two bytes. A gather
        and the reduce-scatter that goes with it stand in the table as two of their mean.
    """
    token_bytes = _ELEMENT_BYTES * _tokens(transformer, layouts)
    size_bytes = token_bytes * transformer.hidden_size
    split, of_gathers = layouts.sequence_parallel, (1 + gathered_bytes / _ELEMENT_BYTES) / 2

    def tensor(name: str, bytes_each: Floats, halves: ArrayLike) -> tuple[Communication, Communication]:
        """Return the all-reduces behind so many parts, or the gathers and reduce-scatters that replace them."""
        reduced, gathered = np.where(split, 0, halves), np.where(split, 2 * np.asarray(halves), 0)
        return (
            _communication(name, "tensor", "all_reduce", bytes_each, reduced, reduced),
            _communication(name, "tensor", "gather", bytes_each * of_gathers, gathered, gathered, gathered / 2),
        )

    parts, context = KINDS[kind], _context_communication(transformer, layouts, kind, token_bytes)
    halves = 1 if transformer.norm_position in ("shared", "parallel") else parts.number
    if parts.feed_forward != "moe" or transformer.experts is None:
        communicated: tuple[Communication, ...] = (*tensor("tensor", size_bytes, halves), *context)
    else:
        experts = transformer.experts
        routed_bytes = token_bytes * transformer.routed_width * experts.top_k * expert_imbalance
        # Without sequence parallelism one all-reduce sums the routed and the shared experts' output.
        shared = 1 if experts.num_shared else 0
        sent = _communication("experts", "expert", "all_to_all", routed_bytes / layouts.stream_split, 2, 2)
        communicated = (
            *context,
            *tensor("tensor", size_bytes, np.where(split, halves - 1 + shared, halves)),
            replace(
                tensor("expert_tensor", routed_bytes * (layouts.expert_tensor / layouts.tensor), np.where(split, 1, 0))[
                    1
                ],
                group="expert_tensor",
            ),
            replace(sent, spread=spread),
        )
    if parts.is_prediction:  # an embedding and logits of its own, and what its first product gives, gathered
        ends = (
            *first_stage_communication(transformer, layouts),
            *last_stage_communication(transformer, layouts),
            _communication("tensor", "tensor", "gather", size_bytes, 1, 1),
        )
        communicated = (*communicated, *(replace(one, name="tensor") for one in ends))
    again = _again_shares(transformer, layouts, kind, halves)
    return _run(
        transformer,
        kind,
        [replace(one, recomputed=again.get(one.name, again[""]) * one.forward) for one in communicated],
    )


def _run(transformer: Transformer, part: LayerKind, communicated: Sequence[Communication]) -> tuple[Communication, ...]:
    """Return what a part communicates, without what belongs to a backward pass where it has none."""
    if transformer.learning_of(part) != "front":
        return tuple(communicated)
    nothing = np.zeros(1)
    return tuple(replace(one, backward=nothing, hidden_backward=nothing, recomputed=nothing) for one in communicated)


def _again_shares(transformer: Transformer, layouts: Layouts, kind: LayerKind, halves: int) -> Mapping[str, Floats]:
    """Return, by the name of a layer's communication, how much of its forward part recomputation repeats; "": of all.

    The tensor-parallel one of a feed-forward part that is computed again, and the exchange of its experts.
    """
    whole = np.where(layouts.recompute == Recompute.FULL, 1.0, 0.0)
    modules = np.where(layouts.recompute == Recompute.SELECTIVE, layouts.recompute_modules, 0)
    if not modules.any():
        return {"": whole}
    has = {name: np.array([name in one for one in MODULE_SETS])[modules] for name in ("mlp", "moe", "shared_experts")}
    feed_forward = KINDS[kind].feed_forward
    if feed_forward == "none":
        return {"": whole}
    if feed_forward == "dense" or transformer.experts is None:
        return {"": whole, "tensor": np.where(has["mlp"], 1 / halves, whole)}
    shared = 1 if transformer.experts.num_shared else 0
    parts = np.where(layouts.sequence_parallel, halves - 1 + shared, halves)
    part = np.where(layouts.sequence_parallel, shared, 1) / np.maximum(parts, 1)
    routed = np.where(has["moe"], 1.0, whole)
    again = has["moe"] | (has["shared_experts"] & (shared > 0) & layouts.sequence_parallel)
    return {"": whole, "experts": routed, "expert_tensor": routed, "tensor": np.where(again, part, whole)}


EXPOSED_CONTEXT = "context_exposed"  # that part of the context's communication which nothing runs beside


def neighbours(transformer: Transformer, context: Ints, tensor: Ints) -> Ints:
    """Return how many context ranks share out heads in the hierarchical method: as many as the heads of keys allow.

    Parameters
    ----------
    transformer, context, tensor
        The network, and degrees of shape (n,).
    """
    return np.gcd(context, np.maximum(transformer.num_kv_heads // tensor, 1))


def has_heads(transformer: Transformer, context: Ints, tensor: Ints, method: Ints) -> Bools:
    """Return whether heads can be shared out as a context method asks.

    Ulysses gives each rank whole heads of keys; the hierarchical method shares some out, and leaves some ranks for a
    ring. Transformer Engine asks for the same (``attention/dot_product_attention/context_parallel.py``).

    Parameters
    ----------
    transformer, context, tensor, method
        The network; degrees and a :class:`planner.models.layouts.ContextMethod` each, of shape (n,).
    """
    inner = neighbours(transformer, context, tensor)
    is_some = (inner > 1) & (inner < context)
    is_whole = (inner == context) & (transformer.num_kv_heads % tensor == 0)
    by_method = np.where(method == ContextMethod.ULYSSES, is_whole, is_some)
    return np.asarray((context == 1) | (method < ContextMethod.ULYSSES) | by_method)


def context_axes(transformer: Transformer, layouts: Layouts) -> Mapping[str, Axes]:
    """Return the groups of ranks of the hierarchical context method, where a layout has it.

    Parameters
    ----------
    transformer, layouts
        The network, and n layouts of it; see :func:`planner.models.tiers.axes_of`.
    """
    if not np.any(layouts.context_method >= ContextMethod.HIERARCHICAL):
        return {}
    inner = neighbours(transformer, layouts.context, layouts.tensor)
    ((degree, stride),) = axes_of(layouts)["context"]
    return {"context_inner": ((inner, stride),), "context_outer": ((degree // inner, stride * inner),)}


def context_communication(transformer: Transformer, layouts: Layouts, kind: LayerKind) -> list[Communication]:
    """Return how the context ranks of a layer see each other's keys and values: part of what a layer communicates.

    Parameters
    ----------
    transformer, layouts, kind
        As for :func:`layer_communication`.
    """
    found = _context_communication(transformer, layouts, kind, _ELEMENT_BYTES * _tokens(transformer, layouts))
    return list(_run(transformer, kind, [_with_recomputation(one, layouts) for one in found]))


def _with_recomputation(one: Communication, layouts: Layouts) -> Communication:
    """Return operations with those of a layer's forward part that full recomputation repeats."""
    return replace(one, recomputed=np.where(layouts.recompute == Recompute.FULL, one.forward, 0.0))


def _context_communication(
    transformer: Transformer, layouts: Layouts, kind: LayerKind, token_bytes: Floats
) -> list[Communication]:
    """Return the same, none of it repeated; nothing of a layer without attention.

    With fewer heads of keys than tensor ranks some of these hold the same.
    """
    context, method, parts = layouts.context, layouts.context_method, KINDS[kind]
    if not parts.has_attention:
        return _of_heads(transformer.scan_of(parts.mixer), layouts, token_bytes)
    keys = np.maximum(transformer.num_kv_heads / layouts.tensor, 1.0)
    pair = token_bytes * keys * (transformer.head_size + transformer.value_head_size)
    ring = np.where(method == ContextMethod.RING, context - 1, 0)
    found = [_communication("context", "context", "send", pair, ring, 2 * ring)]

    def exposed(group: str, operation: Operation, size_bytes: Floats, times: ArrayLike, back: int = 1) -> None:
        backward = back * np.asarray(times)
        found.append(_communication(EXPOSED_CONTEXT, group, operation, size_bytes, times, backward))

    heads = token_bytes * transformer.num_heads / layouts.tensor
    into, out_of = heads * transformer.head_size + pair, heads * transformer.value_head_size
    if np.any(method == ContextMethod.ALL_GATHER):
        exposed("context", "gather", context * pair, np.where(method == ContextMethod.ALL_GATHER, 1, 0), 2)
    if np.any(method == ContextMethod.ULYSSES):
        for size_bytes in (into, out_of):
            exposed("context", "all_to_all", size_bytes, np.where(method == ContextMethod.ULYSSES, 1, 0))
    if np.any(is_both := method == ContextMethod.HIERARCHICAL):
        inner = neighbours(transformer, context, layouts.tensor)
        for size_bytes in (into, out_of):
            exposed("context_inner", "all_to_all", size_bytes, np.where(is_both, 1, 0))
        steps = np.where(is_both, context // inner - 1, 0)  # of inner times as many tokens of as many fewer heads
        found.append(_communication("context", "context_outer", "send", pair, steps, 2 * steps))
    return found


def _of_heads(scan: Scan | None, layouts: Layouts, token_bytes: Floats) -> list[Communication]:
    """Return the exchanges that give each context rank whole samples of some heads, and what comes out back.

    Of Mamba's groups, which are fewer than heads, each rank gets one at least (Megatron-Core,
    ``megatron/core/ssm/mamba_context_parallel.py``). A layer without a mixer has none.
    """
    found = [_communication("context", "context", "send", token_bytes, 0.0, 0.0)]
    if scan is None:
        return found
    width: Floats = scan.projected_size / layouts.tensor
    if isinstance(scan, Mamba):
        groups = scan.num_groups / layouts.tensor
        width = width + 2 * scan.state_size * (np.maximum(groups, layouts.context) - groups)
    is_spread = (layouts.context > 1) * 1.0
    for one in (width, scan.inner_size / layouts.tensor):
        size_bytes = token_bytes * one
        found.append(_communication(EXPOSED_CONTEXT, "context", "all_to_all", size_bytes, is_spread, is_spread))
    return found


def _communication(
    name: str,
    group: str,
    operation: Operation,
    size_bytes: Floats,
    forward: ArrayLike,
    backward: ArrayLike,
    hidden: ArrayLike = 0.0,
) -> Communication:
    """Return equal operations, none of them repeated by recomputation."""
    return Communication(
        name=name,
        group=group,
        operation=operation,
        size_bytes=size_bytes,
        forward=np.asarray(forward, dtype=np.float64),
        backward=np.asarray(backward, dtype=np.float64),
        hidden_backward=np.asarray(hidden, dtype=np.float64),
        recomputed=np.zeros(1),
    )


def _tokens(transformer: Transformer, layouts: Layouts) -> Floats:
    """Return the tokens of one micro-batch on one rank of its context group."""
    return np.asarray(layouts.microbatch * (transformer.sequence_length / layouts.context))


# -- ends of the pipeline, and between its stages ----------------------------------------------------------------------


def first_stage_communication(transformer: Transformer, layouts: Layouts) -> tuple[Communication, ...]:
    """Return what the embedding, split over the vocabulary, communicates for one micro-batch: the sum of its parts.

    Backward needs no sum: every device keeps its rows' gradients. Under sequence parallelism the sum is a
    reduce-scatter, and the error is gathered.

    Parameters
    ----------
    transformer, layouts
        As for :func:`layer_communication`.
    """
    if transformer.projector is not None:  # of an encoder, whose patches are whole on every rank
        return (_communication("embedding", "tensor", "all_reduce", np.zeros(1), 0, 0),)
    size_bytes = _ELEMENT_BYTES * _tokens(transformer, layouts) * transformer.hidden_size
    gathers = np.where(layouts.sequence_parallel, 1, 0)
    found = (
        _communication("embedding", "tensor", "all_reduce", size_bytes, 1 - gathers, 0),
        _communication("embedding", "tensor", "gather", size_bytes, gathers, gathers),
    )
    return _run(transformer, EMBEDDING, found)


def last_stage_communication(transformer: Transformer, layouts: Layouts) -> tuple[Communication, ...]:
    """Return what the logits, split over the vocabulary, and the loss communicate for one micro-batch.

    Forward: three numbers a token (largest logit, the right word's logit, sum of exponentials); backward: the sum of
    the error behind the logits. Under sequence parallelism that is a gather forward, another hidden one and a
    reduce-scatter.

    Parameters
    ----------
    transformer, layouts
        As for :func:`layer_communication`.
    """
    if transformer.projector is not None:  # the sum of its output, and of the error of its input
        width = transformer.projector.output_size, transformer.projector.joined_size(transformer.hidden_size)
        has_error = KINDS[transformer.layer_kinds[-1]].learning != "front"
        rows_bytes = np.asarray(_ELEMENT_BYTES * layouts.microbatch * transformer.image_tokens, dtype=np.float64)
        return (
            _communication("projector", "tensor", "all_reduce", rows_bytes * width[0], 1, 0),
            _communication("projector", "tensor", "all_reduce", rows_bytes * width[1], 0, int(has_error)),
        )
    tokens = _tokens(transformer, layouts)
    size_bytes = _ELEMENT_BYTES * tokens * transformer.hidden_size
    gathers = np.where(layouts.sequence_parallel, 1, 0)
    return (
        _communication("logits", "tensor", "all_reduce", size_bytes, 0, 1 - gathers),
        _communication("logits", "tensor", "gather", size_bytes, gathers, gathers, gathers),
        _communication("logits", "tensor", "all_reduce", _LOSS_BYTES * tokens, _LOSS_REDUCTIONS, 0),
    )


def pipeline_communication(transformer: Transformer, layouts: Layouts) -> tuple[Communication, ...]:
    """Return what one boundary between stages passes on for one micro-batch: once each way for every virtual stage.

    Parameters
    ----------
    transformer, layouts
        As for :func:`layer_communication`.

    Notes
    -----
    The devices of a tensor group, which hold the same, send a part each and gather behind the boundary ([N] section
    4.1). Under sequence parallelism each holds a part, and nothing is gathered.
    """
    size_bytes = _ELEMENT_BYTES * _tokens(transformer, layouts) * transformer.hidden_size
    sends = np.where(layouts.pipeline > 1, layouts.interleave, 0)
    gathers = np.where(layouts.sequence_parallel, 0, sends)
    return (
        _communication("pipeline", "pipeline", "send", size_bytes / layouts.tensor, sends, sends),
        _communication("pipeline", "tensor", "gather", size_bytes, gathers, gathers),
    )


# -- gradients and weights of replicas ---------------------------------------------------------------------------------


@frozen(eq=False)
class ReplicaCommunication:
    """What replicas communicate in a step; arrays of one element a layout, or of shape (p, n) where cuts are given."""

    # name, group: dense, experts or tied; and which ranks
    name: str
    group: str
    # gradient_bytes, weight_bytes: of all that is reduced, and of all that is gathered at once, however many pieces it
    # is cut into
    gradient_bytes: Floats
    weight_bytes: Floats
    num_pieces: Floats  # buckets or layers: operations that the bytes are cut into
    # all_reduces, reduce_scatters, gathers: how often a step does each of them over all the bytes
    all_reduces: Floats
    reduce_scatters: Floats
    gathers: Floats
    # whether only a part of the ranks shares a copy: these scatter and gather, and so often a step the parts are then
    # added up over the copies by all-reduces
    is_partly: Bools
    copies_reduced: Floats


@frozen
class Reduction:
    """How a program adds up gradients of replicas, and gathers their weights."""

    # gradient_bytes, weight_bytes: of one parameter, as it travels
    gradient_bytes: float = 2.0
    weight_bytes: float = 2.0
    bucket_bytes: float = inf  # largest piece of gradients that is sent at once; ZeRO-3 sends layer by layer
    # whether ZeRO-3 frees a layer's weights after use, so that every micro-batch gathers them for each way; else they
    # are gathered once a step
    frees_weights: bool = True
    # whether ZeRO-2 and 3 reduce the gradients of every micro-batch, rather than of the step
    reduces_every_microbatch: bool = False
    reduces_copies_once: bool = False  # whether copies are then added up once a step all the same
    shards_gradients: bool = True  # whether ZeRO-1 reduces by a reduce-scatter; else by an all-reduce, as without ZeRO
    # of one parameter of a tied embedding, between first and last stage; 0: as of any other
    tied_gradient_bytes: float = 0.0


def replica_communication(
    transformer: Transformer,
    layouts: Layouts,
    reduction: Reduction | None = None,
    *,
    layers: Ints | Floats | None = None,
) -> tuple[ReplicaCommunication, ...]:
    """Return what replicas communicate in one step: dense parameters, experts, and a tied embedding.

    Parameters
    ----------
    transformer, layouts
        The network, and n layouts of it.
    reduction
        How the program does it; by default in half precision and in one piece.
    layers
        Of every stage by kind, shape (kinds, p, n), for what each of them communicates; left out: equal stages, and the
        fullest.
    """
    by = reduction or Reduction()
    held = trained_stage_parameters(transformer, layouts)

    def of_stages(held: StageParameters) -> tuple[Floats, Floats]:
        """Return the parameters outside of experts, and theirs."""
        if layers is None:
            return held.dense.sum(axis=0) + held.ends, held.experts.sum(axis=0)
        index = np.arange(layers.shape[1])[:, None]
        is_last = (index == layouts.pipeline - 1) & (index > 0) & ~layouts.is_folded
        share = layouts.pipeline / np.array([*transformer.kind_counts.values()])[:, None]
        dense, experts = (((one * share)[:, None] * layers).sum(axis=0) for one in (held.dense, held.experts))
        return dense + (index == 0) * held.first + np.where(is_last, held.last, 0.0), experts

    trained = of_stages(held)
    # ZeRO 3 gathers frozen weights, too.
    whole = trained if transformer.trained.is_all else of_stages(stage_parameters(transformer, layouts))
    zero, passes = layouts.zero, layouts.num_microbatches
    # In a pipeline FSDP2's backward passes free nothing: those forward passes gather that follow none of them, and
    # those backward passes that follow a forward one, so that m of each gather m + 1 times in any order, as the first
    # is a forward and the last a backward pass. Gradients are reduced behind the last one: see ``_held_zero`` of
    # :mod:`planner.models.memory`.
    is_pipeline = layouts.pipeline > 1
    often = np.where(is_pipeline, passes + 1, 2 * passes)
    gathers = np.where(zero == 3, often if by.frees_weights else 1, np.where(zero >= 1, 1, 0))
    is_whole = (zero == 0) | ((zero == 1) & (not by.shards_gradients))
    scatters = np.where((zero >= 2) & by.reduces_every_microbatch & ~is_pipeline, passes, np.where(is_whole, 0, 1))
    communicated = []
    names = (("dense", "replicas"), ("experts", "expert_replicas"))
    for (name, group), parameters, every in zip(names, trained, whole, strict=True):
        reduced = by.gradient_bytes * parameters
        pieces = np.maximum(transformer.num_layers / layouts.pipeline, 1.0)
        communicated.append(
            ReplicaCommunication(
                name=name,
                group=group,
                gradient_bytes=reduced,
                weight_bytes=by.weight_bytes * np.where(zero == 3, every, parameters),
                num_pieces=np.where(zero == 3, pieces, np.maximum(np.ceil(reduced / by.bucket_bytes), 1.0)),
                all_reduces=np.where(is_whole, 1.0, 0.0),
                reduce_scatters=scatters.astype(np.float64),
                gathers=gathers.astype(np.float64),
                is_partly=(layouts.shard > 0) & (zero > 0),
                copies_reduced=np.minimum(scatters, 1.0) if by.reduces_copies_once else scatters.astype(np.float64),
            )
        )
    nothing = np.zeros(1)
    tied = ReplicaCommunication(
        name="tied",
        group="ends",
        gradient_bytes=(by.tied_gradient_bytes or by.gradient_bytes) * held.tied,
        weight_bytes=nothing,
        num_pieces=np.ones(1),
        all_reduces=np.where(layouts.pipeline > 1, 1.0, 0.0),
        reduce_scatters=nothing,
        gathers=nothing,
        is_partly=np.zeros(1, dtype=bool),
        copies_reduced=nothing,
    )
    return (*communicated, tied)


def replica_times(
    communicated: Sequence[ReplicaCommunication], groups: Mapping[str, Group]
) -> Mapping[str, tuple[Floats, Floats]]:
    """Return, by name, the seconds of a step's reductions and of its gathers, if nothing hides them.

    Parameters
    ----------
    communicated, groups
        Of the same n layouts.
    """
    times = {}
    for one in communicated:
        group, pieces = groups[one.group], one.num_pieces
        reduced, gathered = one.gradient_bytes / pieces, one.weight_bytes / pieces
        whole_s, scattered_s = (operation_s(way, group, reduced) for way in _REDUCTIONS)
        reduction_s = one.all_reduces * whole_s + one.reduce_scatters * scattered_s
        gather_s = one.gathers * operation_s("gather", group, gathered)
        if one.is_partly.any():
            inner, copies = (groups[_PARTLY[one.group][at]] for at in (0, 1))
            part_s = one.reduce_scatters * operation_s("gather", inner, reduced)
            copies_s = one.copies_reduced * operation_s("all_reduce", copies, reduced / inner.num_members)
            reduction_s = np.where(one.is_partly, one.all_reduces * whole_s + part_s + copies_s, reduction_s)
            gather_s = np.where(one.is_partly, one.gathers * operation_s("gather", inner, gathered), gather_s)
        times[one.name] = (pieces * reduction_s, pieces * gather_s)
    return times
