"""How many parameters a transformer has on one device of a tensor-parallel group: of a block, of both ends, of a stage.

GEMMs are split by columns or by rows as Megatron does (M. Shoeybi et al., arXiv 1909.08053, section 3): queries, keys,
values and the first matrix of a feed-forward part by columns, with their biases; the second matrices by rows, their
biases whole on every device. Norms, routers, narrow layers of latent attention and learned positions are whole. With
fewer heads of keys than devices each device keeps a whole head. Experts are spread over expert x tensor devices. The
vocabulary is padded to a multiple of 128 x tensor, and split.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from planner.cost import Floats
from planner.frozen import frozen
from planner.models import scans
from planner.models.layouts import Layouts
from planner.models.operators import (
    MOST_KEPT,
    PROJECTED,
    ROUTED,
    block_operators,
    embedding_operators,
    head_operators,
)
from planner.trained import QUANTISED_BYTES
from planner.transformer import LOGITS, LayerKind, Transformer

FROZEN_BYTES = 2.0  # of a number that is not trained
_PADDING = 128  # Megatron's --make-vocab-size-divisible-by
COLUMN_SPLIT = frozenset(
    {
        "attention.qkv",
        "attention.query",
        "attention.key_value",
        "attention.gate",
        "mtp.projection",
        "modulation",
        "feed_forward.up",
        "feed_forward.shared.up",
        *scans.COLUMN_SPLIT,
    }
)
_ROW_SPLIT = frozenset({"attention.output", "feed_forward.down", "feed_forward.shared.down", *scans.ROW_SPLIT})
_SPLIT_TENSORS = frozenset({"sinks"})  # of operators that have others, too


def split_share(name: str, layouts: Layouts) -> tuple[bool, Floats]:
    """Return whether an operator's matrix is split by columns rather than by rows, and which part a device has.

    Parameters
    ----------
    name
        Of an operator of a block.
    layouts
        n of them; the part is of shape (n,), or 1 where the matrix is whole.
    """
    if name.startswith(ROUTED):
        return name.endswith(".up"), np.asarray(1 / layouts.expert_tensor)
    is_split = name in COLUMN_SPLIT or name in _ROW_SPLIT
    return name not in _ROW_SPLIT, np.asarray(1 / layouts.tensor) if is_split else np.ones(1)


@frozen
class Parameters:
    """Parameters on one device, one element a layout."""

    shared: Floats  # copied in every data-parallel and context-parallel rank
    routed: Floats  # of experts: copied in ``context x data / expert`` ranks
    largest: Floats  # of the largest matrix
    matrices: Floats  # of all matrices of a block, one expert counted

    @property
    def all(self) -> Floats:
        """Both kinds."""
        return self.shared + self.routed


def block_parameters(
    transformer: Transformer, kind: LayerKind, layouts: Layouts, *, is_frozen: bool | None = None
) -> Parameters:
    """Return the parameters of one block on one device.

    Parameters
    ----------
    transformer, kind
        The network, and the kind of block.
    layouts
        n of them, whose ``tensor``, ``expert`` and ``expert_tensor`` count.
    is_frozen
        Whether of frozen operators, or of others; by default of all.
    """
    split, whole = 1 / layouts.tensor, np.ones(1)
    heads, keys = transformer.num_heads, 2 * transformer.num_kv_heads
    # With fewer heads of keys than devices each keeps a whole one.
    states = (heads * split + keys / np.minimum(layouts.tensor, transformer.num_kv_heads)) / (heads + keys)
    shared = routed = largest = matrices = np.zeros(1)
    for operator in block_operators(transformer, kind):
        if is_frozen is not None and operator.is_frozen != is_frozen:
            continue
        name, is_routed = operator.name, operator.name.startswith(ROUTED)
        by_columns = name in COLUMN_SPLIT or name in scans.HELD_BY_HEADS or (is_routed and name.endswith(".up"))
        for tensor in operator.tensors:
            is_weight = tensor.name == "weight"
            is_split = by_columns or (is_weight and (is_routed or name in _ROW_SPLIT)) or tensor.name in _SPLIT_TENSORS
            share = whole if not is_split else 1 / layouts.expert_tensor if is_routed else split
            held = tensor.num_elements * (states if name == "attention.qkv" else share)
            if is_routed:
                routed = routed + held / layouts.expert
            else:
                shared = shared + held
            if is_weight:
                matrix = held / transformer.experts.num_experts if is_routed and transformer.experts else held
                largest, matrices = np.maximum(largest, matrix), matrices + matrix
    return Parameters(shared=shared, routed=routed, largest=largest, matrices=matrices)


def trained_parameters(transformer: Transformer, kind: LayerKind, layouts: Layouts) -> Parameters:
    """Return the parameters of one block on one device that are trained, adapters among them.

    Both matrices of an adapter are split over the tensor-parallel devices (Megatron-Bridge, ``ParallelLinearAdapter``).

    Parameters
    ----------
    transformer, kind, layouts
        As for :func:`block_parameters`.
    """
    own = block_parameters(transformer, kind, layouts, is_frozen=False)
    if transformer.trained.adapters is None:
        return own
    shared, largest, matrices = own.shared, own.largest, own.matrices
    for one in block_operators(transformer, kind):
        for rank, columns in one.adapters:
            inner = one.product.inner if one.product is not None else 0
            shared = shared + rank * (inner + columns) / layouts.tensor
            matrices = matrices + rank * (inner + columns) / layouts.tensor
            largest = np.maximum(largest, rank * max(inner, columns) / layouts.tensor)
    return replace(own, shared=shared, largest=largest, matrices=matrices)


@lru_cache(maxsize=MOST_KEPT)
def trained_elements(transformer: Transformer, kind: LayerKind) -> tuple[int, int]:
    """Return the parameters of one block that are trained, of all devices: but routed experts', and these.

    Parameters
    ----------
    transformer, kind
        The network, and the kind of block.
    """
    found = [0, 0]
    for one in block_operators(transformer, kind):
        found[one.name.startswith(ROUTED)] += one.trained_elements
    return found[0], found[1]


@lru_cache(maxsize=MOST_KEPT)
def trained_ends(transformer: Transformer) -> tuple[int, int]:
    """Return the same of the embedding, and of the head.

    Parameters
    ----------
    transformer
        The network.
    """
    ends = embedding_operators(transformer), head_operators(transformer)
    embedding, head = (sum(one.trained_elements for one in operators) for operators in ends)
    if transformer.encoder is not None:
        embedding += transformer.encoder.num_trained_parameters
    return embedding, head


def vocabulary_rows(transformer: Transformer, layouts: Layouts) -> Floats:
    """Return the rows of the padded vocabulary on one device, shape (n,).

    Parameters
    ----------
    transformer, layouts
        The network, and n layouts, whose ``tensor`` counts.
    """
    rows = -(-transformer.vocabulary_size // (_PADDING * layouts.tensor)) * _PADDING
    return rows.astype(np.float64)


def embedding_parameters(transformer: Transformer, layouts: Layouts, *, is_trained: bool = False) -> Floats:
    """Return the parameters before the first block, on one device, shape (n,).

    Parameters
    ----------
    transformer, layouts
        As for :func:`vocabulary_rows`.
    is_trained
        Whether of those alone that are trained.
    """
    operators = embedding_operators(transformer)
    others = sum(one.weight_elements for one in operators if one.name != "tokens")
    found = vocabulary_rows(transformer, layouts) * transformer.hidden_size + others
    if is_trained and transformer.trained.is_embedding_frozen:
        found = np.zeros_like(found)
    return found if transformer.encoder is None else found + encoder_parameters(transformer, layouts, is_trained)


def encoder_layouts(transformer: Transformer, layouts: Layouts) -> Layouts:
    """Return layouts as the encoder sees them, whose samples are images.

    It is split over the tensor group alone; every context rank has all images, and neither sequence parallelism nor
    its overlap there is (Megatron-LM, ``examples/multimodal/model.py``: "Vision model and projection do not use SP/CP
    yet"). It is computed again as the layers behind it are (``--recompute-vision``), all of its own where some are.

    Parameters
    ----------
    transformer, layouts
        The network, and n layouts of it.
    """
    one = np.ones(len(layouts), dtype=np.int64)
    return replace(
        layouts.of(slice(None)),
        microbatch=layouts.microbatch * transformer.num_images * one,
        context=one,
        data=layouts.data * layouts.context * one,
        expert=one,
        expert_tensor=layouts.tensor * one,
        sequence_parallel=one == 0,
        overlap_tensor=one == 0,
        overlap_expert=one == 0,
        offload_layers=0 * one,
        offload_modules=0 * one,
    )


def encoder_parameters(transformer: Transformer, layouts: Layouts, is_trained: bool = False) -> Floats:
    """Return the parameters of an encoder on one device, shape (n,): patches whole, blocks and projector split.

    Parameters
    ----------
    transformer, layouts
        As for :func:`vocabulary_rows`; the network has an encoder.
    is_trained
        Whether of those alone that are trained.
    """
    encoder = transformer.encoder
    assert encoder is not None, "asked of a network with an encoder"
    whole = split = 0
    for one in embedding_operators(encoder):
        whole += one.trained_elements if is_trained else one.weight_elements
    for one in head_operators(encoder):
        for tensor in one.tensors if not (is_trained and one.is_frozen) else ():
            is_split = one.name == PROJECTED[0] or (one.name == PROJECTED[1] and tensor.name == "weight")
            whole, split = whole + tensor.num_elements * (not is_split), split + tensor.num_elements * is_split
    held = trained_parameters if is_trained else block_parameters
    blocks = (count * held(encoder, kind, layouts).all for kind, count in encoder.kind_counts.items())
    return np.asarray(sum(blocks, whole + split / layouts.tensor))


def head_parameters(transformer: Transformer, layouts: Layouts, *, is_trained: bool = False) -> Floats:
    """Return the parameters behind the last block, on one device, shape (n,).

    Where the embedding's matrix gives the logits, or depths of multi-token prediction read it, a last stage that is not
    the first one holds a copy of it (Megatron-Core, ``shared_embedding_or_mtp_embedding_weight``).

    Parameters
    ----------
    transformer, layouts
        The network, and n layouts, whose ``tensor``, ``pipeline`` and ``schedule`` count.
    is_trained
        Whether of those alone that are trained.
    """
    rows = vocabulary_rows(transformer, layouts)
    total = np.zeros(1)
    has_copy = transformer.num_mtp_layers and not transformer.has_tied_embeddings
    if has_copy and not (is_trained and transformer.trained.is_embedding_frozen):
        total = total + rows * transformer.hidden_size * (layouts.pipeline > 1)
    for operator in head_operators(transformer):
        if is_trained and operator.is_frozen:
            continue
        if operator.name != LOGITS:
            total = total + operator.weight_elements
            continue
        is_copy = transformer.has_tied_embeddings * layouts.has_ends_together
        has_bias = any(tensor.role == "bias" for tensor in operator.tensors)
        total = total + rows * (transformer.hidden_size * (1 - is_copy) + has_bias)
    return total


@frozen(eq=False)
class StageParameters:
    """Parameters of a stage of an even cut on one device, by what they are; arrays of one element a layout."""

    # dense, experts: of the layers of one stage in the mean of all: all but routed experts, and these; by kind of
    # layer, as :attr:`planner.transformer.Transformer.kind_counts` lists them, shape (kinds, n)
    dense: Floats
    experts: Floats
    # first, last: more on the first stage (embedding), and on the last (head, and a copy of a tied embedding where it
    # is another stage)
    first: Floats
    last: Floats
    tied: Floats  # of the matrix that first and last stage both hold; 0 where there is none or one stage

    @property
    def ends(self) -> Floats:
        """More on the fuller end of the pipeline; what the ends hold together where they are one stage."""
        return np.maximum(self.first, self.last)


def stage_parameters(transformer: Transformer, layouts: Layouts) -> StageParameters:
    """Return the parameters of one stage on one device.

    Parameters
    ----------
    transformer, layouts
        The network, and n layouts of it.
    """
    held = [block_parameters(transformer, kind, layouts) for kind in transformer.kind_counts]
    ends = embedding_parameters(transformer, layouts), head_parameters(transformer, layouts)
    return _of_stages(transformer, layouts, held, ends, is_tied=True)


def trained_stage_parameters(transformer: Transformer, layouts: Layouts) -> StageParameters:
    """Return those of one stage that are trained, adapters among them.

    Parameters
    ----------
    transformer, layouts
        As for :func:`stage_parameters`.
    """
    held = [trained_parameters(transformer, kind, layouts) for kind in transformer.kind_counts]
    ends = (
        embedding_parameters(transformer, layouts, is_trained=True),
        head_parameters(transformer, layouts, is_trained=True),
    )
    return _of_stages(transformer, layouts, held, ends, is_tied=not transformer.trained.is_embedding_frozen)


def _of_stages(
    transformer: Transformer,
    layouts: Layouts,
    held: Sequence[Parameters],
    ends: tuple[Floats, Floats],
    *,
    is_tied: bool,
) -> StageParameters:
    """Return the parameters of a stage from those of a block of each kind, and of both ends.

    ``is_tied``: whether the embedding's matrix counts where both ends hold it.
    """
    counts, nothing = transformer.kind_counts.values(), np.zeros(len(layouts))
    dense, experts = (
        np.array(
            np.broadcast_arrays(
                *(count * getattr(one, name) for one, count in zip(held, counts, strict=True)), nothing
            )[:-1]
        )
        for name in ("shared", "routed")
    )
    first, last = ends
    is_one = layouts.has_ends_together
    is_shared = transformer.has_tied_embeddings and transformer.head in ("language", "masked_language")
    is_shared = is_shared or transformer.num_mtp_layers > 0
    table = vocabulary_rows(transformer, layouts) * transformer.hidden_size
    return StageParameters(
        dense=dense / layouts.pipeline,
        experts=experts / layouts.pipeline,
        first=np.where(is_one, first + last, first),
        last=np.where(is_one, first + last, last),
        tied=np.where(is_one, 0.0, table if is_tied and is_shared else 0.0),
    )


def frozen_bytes(transformer: Transformer, kind: LayerKind, layouts: Layouts) -> tuple[Floats, Floats]:
    """Return the bytes of one block's frozen weights on one device: of all but routed experts, and of these.

    Of two bytes a number; of QLoRA's matrices as :data:`planner.trained.QUANTISED_BYTES` says.

    Parameters
    ----------
    transformer, kind, layouts
        As for :func:`block_parameters`.
    """
    if transformer.trained.is_all:
        return np.zeros(1), np.zeros(1)
    held = block_parameters(transformer, kind, layouts, is_frozen=True)
    shared, routed = FROZEN_BYTES * held.shared, FROZEN_BYTES * held.routed
    if transformer.trained.is_quantised:
        outside, inside = matrix_parameters(transformer, kind, layouts)
        less = FROZEN_BYTES - QUANTISED_BYTES
        shared, routed = shared - less * outside, routed - less * inside
    return shared, routed


def matrix_parameters(transformer: Transformer, kind: LayerKind, layouts: Layouts) -> tuple[Floats, Floats]:
    """Return the numbers of all matrices of one block on one device: but routed experts', and these.

    Parameters
    ----------
    transformer, kind, layouts
        As for :func:`block_parameters`.
    """
    keys, heads = 2 * transformer.num_kv_heads, transformer.num_heads
    states = (heads / layouts.tensor + keys / np.minimum(layouts.tensor, transformer.num_kv_heads)) / (heads + keys)
    outside = inside = np.zeros(1)
    for one in block_operators(transformer, kind):
        numbers = sum(tensor.num_elements for tensor in one.tensors if tensor.name == "weight")
        share = states if one.name == "attention.qkv" else split_share(one.name, layouts)[1]
        if one.name.startswith(ROUTED):
            inside = inside + numbers * share / layouts.expert
        else:
            outside = outside + numbers * share
    return outside, inside
