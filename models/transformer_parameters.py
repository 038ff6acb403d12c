"""Parameters of a transformer on one device, by how they are spread over the devices of a tensor-parallel group.

Products are split by columns or by rows as Megatron does (M. Shoeybi et al., arXiv 1909.08053, section 3): queries,
keys, values and the first matrix of a feed-forward part by columns, with their biases; the second matrices by rows,
their biases whole on every device. Norms, routers, narrow layers of latent attention and learned positions are whole.
With fewer heads of keys than devices each device keeps a whole head. Experts are spread over expert x tensor devices.
The vocabulary is padded to a multiple of 128 x tensor, and split.
"""

from dataclasses import dataclass

import numpy as np

from planner.cost import Floats
from planner.models.layouts import Layouts
from planner.models.transformer_operators import Operator, block_operators, embedding_operators, head_operators
from planner.transformer import LayerKind, Transformer

__all__ = [
    "COLUMN_SPLIT",
    "PADDING",
    "Parameters",
    "block_parameters",
    "embedding_parameters",
    "head_parameters",
    "vocabulary_rows",
]

PADDING = 128  # Megatron's --make-vocab-size-divisible-by
COLUMN_SPLIT = frozenset(
    {
        "attention.qkv",
        "attention.query",
        "attention.key_value",
        "feed_forward.up",
        "feed_forward.shared.up",
    }
)
_ROW_SPLIT = frozenset({"attention.output", "feed_forward.down", "feed_forward.shared.down"})
_ROUTED = "feed_forward.experts."


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters on one device, one element a layout.

    Attributes
    ----------
    shared
        Copied in every data-parallel and context-parallel rank.
    routed
        Of experts: copied in ``context x data / expert`` ranks.
    largest
        Of the largest matrix.
    matrices
        Of all matrices of a block, one expert counted.
    """

    shared: Floats
    routed: Floats
    largest: Floats
    matrices: Floats

    @property
    def all(self) -> Floats:
        """Both kinds."""
        return self.shared + self.routed


def block_parameters(transformer: Transformer, kind: LayerKind, layouts: Layouts) -> Parameters:
    """Return the parameters of one block on one device."""
    zero = np.zeros(1)
    shared, routed, largest, matrices = zero, zero, zero, zero
    for operator in block_operators(transformer, kind):
        is_routed = operator.name.startswith(_ROUTED)
        for tensor in operator.tensors:
            share = _share(transformer, operator, tensor.name, layouts)
            if is_routed:
                routed = routed + tensor.num_elements * share / layouts.expert
            else:
                shared = shared + tensor.num_elements * share
            if tensor.name == "weight":
                number = transformer.experts.num_experts if is_routed and transformer.experts else 1
                one = tensor.num_elements / number * share
                largest, matrices = np.maximum(largest, one), matrices + one
    return Parameters(shared=shared, routed=routed, largest=largest, matrices=matrices)


def _share(transformer: Transformer, operator: Operator, tensor: str, layouts: Layouts) -> Floats:
    """Return which part of a tensor lies on one device of a tensor-parallel group."""
    name, split = operator.name, 1 / layouts.tensor
    if name == "attention.qkv":
        heads, keys = transformer.num_heads, 2 * transformer.num_kv_heads
        return (heads * split + keys / np.minimum(layouts.tensor, transformer.num_kv_heads)) / (heads + keys)
    is_split = name in COLUMN_SPLIT or (name in _ROW_SPLIT and tensor == "weight")
    if name.startswith(_ROUTED):
        is_split = name.endswith(".up") or tensor == "weight"
    return split if is_split else np.ones(1)


def vocabulary_rows(transformer: Transformer, layouts: Layouts) -> Floats:
    """Return the rows of the padded vocabulary on one device."""
    rows = -(-transformer.vocabulary_size // (PADDING * layouts.tensor)) * PADDING
    return rows.astype(np.float64)


def embedding_parameters(transformer: Transformer, layouts: Layouts) -> Floats:
    """Return the parameters before the first block, on one device."""
    others = sum(one.weight_elements for one in embedding_operators(transformer) if one.name != "tokens")
    return vocabulary_rows(transformer, layouts) * transformer.hidden_size + others


def head_parameters(transformer: Transformer, layouts: Layouts) -> Floats:
    """Return the parameters behind the last block, on one device.

    Where the embedding's matrix gives the logits, a last stage that is not the first one holds a copy of it.
    """
    rows = vocabulary_rows(transformer, layouts)
    found = np.zeros(1)
    for operator in head_operators(transformer):
        if operator.name != "logits":
            found = found + operator.weight_elements
            continue
        is_copy = transformer.has_tied_embeddings * (layouts.pipeline == 1)
        has_bias = any(tensor.role == "bias" for tensor in operator.tensors)
        found = found + rows * (transformer.hidden_size * (1 - is_copy) + has_bias)
    return found
