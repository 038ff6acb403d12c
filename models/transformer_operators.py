"""The operators of a transformer in order of execution: the embedding, one block of each kind, and the head.

A part is a list of operators that read one another by name; what enters it is called ``input``, what leaves a block is
its last operator. The products count as :mod:`planner.models.operators` says. Counted and left out: see there, and in
:mod:`planner.models.transformer_blocks`.
"""

from dataclasses import dataclass, replace

from planner.dnn import Tensor
from planner.models.operators import BACKWARD_PER_FORWARD, INPUT, Operator, OperatorList, Product
from planner.models.transformer_blocks import block_operators, list_for
from planner.transformer import Image, LayerKind, Transformer

__all__ = [
    "Flop",
    "Operator",
    "Part",
    "Product",
    "block_operators",
    "embedding_operators",
    "flop_per_sample",
    "head_operators",
    "parts",
]

_LOGITS = "logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Operators that stand ``count`` times in the network; ``kind`` is that of a block, else None."""

    name: str
    operators: tuple[Operator, ...]
    kind: LayerKind | None = None
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Flop:
    """FLOP of one sample."""

    forward_flop: int
    backward_flop: int

    @property
    def total_flop(self) -> int:
        """Both ways."""
        return self.forward_flop + self.backward_flop


def parts(transformer: Transformer) -> tuple[Part, ...]:
    """Return the embedding, one block of each kind with its count, and the head.

    The blocks stand in the order of ``Transformer.layer_kinds``, a head without operators is left out.
    """
    kinds = transformer.layer_kinds
    blocks = [
        Part(name=f"block ({kind})", kind=kind, count=kinds.count(kind), operators=block_operators(transformer, kind))
        for kind in dict.fromkeys(kinds)
    ]
    embedding = Part(name="embedding", operators=embedding_operators(transformer))
    head = Part(name="head", operators=head_operators(transformer))
    return (embedding, *blocks, head) if head.operators else (embedding, *blocks)


def flop_per_sample(
    transformer: Transformer,
    *,
    has_full_attention: bool = False,
    has_logits: bool = True,
    recomputes_blocks: bool = False,
) -> Flop:
    """Return the FLOP of one sample's forward and backward pass.

    Parameters
    ----------
    has_full_attention
        Count all scores although attention is causal: kernels without a mask compute them, and most papers count them.
    has_logits
        Whether the product with the vocabulary counts.
    recomputes_blocks
        Whether backward computes every block's forward pass again (full recomputation).

    Notes
    -----
    For a GPT with full attention the sum is ``72 s L h^2 (1 + s / 6h + V / 12Lh)``, with recomputation
    ``96 s L h^2 (1 + s / 6h + V / 16Lh)`` (D. Narayanan et al., SC21, arXiv 2104.04473, section 5.1): the six products
    of a block and the logits, nothing else.
    """
    counted = replace(transformer, is_causal=transformer.is_causal and not has_full_attention)
    blocks = others = 0
    for part in parts(counted):
        flop = part.count * sum(one.forward_flop for one in part.operators if has_logits or one.name != _LOGITS)
        blocks, others = (blocks, others + flop) if part.kind is None else (blocks + flop, others)
    forward = blocks + others
    again = blocks if recomputes_blocks else 0
    return Flop(forward_flop=forward, backward_flop=BACKWARD_PER_FORWARD * forward + again)


# -- before the blocks, and behind -----------------------------------------------------------------------------------


def embedding_operators(transformer: Transformer) -> tuple[Operator, ...]:
    """Return what stands before the first block; the first operator is the sample itself."""
    part = list_for(transformer)
    if transformer.image is None:
        last = part.move(INPUT, "input", (), 1)
        last = part.table("tokens", last, transformer.vocabulary_size)
    else:
        last = _patches(part, transformer.image)
    if transformer.positions == "learned":
        last = part.table("positions", last, transformer.num_positions, is_in_place=True)
    if transformer.num_token_types:
        last = part.table("token_types", last, transformer.num_token_types, is_in_place=True)
    if transformer.has_embedding_norm:
        part.norm("norm", last)
    return part.operators


def _patches(part: OperatorList, image: Image) -> str:
    """Append the image, its patches as tokens, and the token of the class."""
    shape = (image.num_channels, image.image_size, image.image_size)
    last = part.append(Operator(name=INPUT, kind="input", inputs=(), output_shape=shape, input_elements=0))
    last = part.matmul(
        "patches", last, inner=image.patch_elements, columns=part.width, has_bias=True, rows=image.num_patches
    )
    if not image.has_class_token:
        return last
    token = Tensor(name="weight", num_elements=part.width)
    return part.move("class_token", "embedding", (last,), tensors=(token,), is_in_place=True)


def head_operators(transformer: Transformer) -> tuple[Operator, ...]:
    """Return what stands behind the last block; nothing where that is the end."""
    part, image = list_for(transformer), transformer.image
    last = part.norm("norm", INPUT) if transformer.has_final_norm else INPUT
    ends = _logits(part, transformer, last)
    if image is not None:
        if not image.has_class_token:
            last = part.move("pooling", "pooling", (last,), num_tokens=1)
        if transformer.head == "classes":
            size = image.num_classes
            ends.append(part.matmul("classes", last, inner=part.width, columns=size, has_bias=True, rows=1))
    if transformer.has_pooler:
        pooled = part.matmul("pooler", last, inner=part.width, columns=part.width, has_bias=True, rows=1)
        pooled = part.move("pooler_activation", "activation", (pooled,), num_tokens=1)
        if transformer.head == "masked_language":
            ends.append(part.matmul("next_sentence", pooled, inner=part.width, columns=2, has_bias=True, rows=1))
    if ends:
        part.append(
            Operator(
                name="loss",
                kind="loss",
                inputs=tuple(ends),
                output_shape=(1,),
                input_elements=sum(map(part.elements_of, ends)),
            )
        )
    return part.operators


def _logits(part: OperatorList, transformer: Transformer, last: str) -> list[str]:
    """Append the logits of every token, if the network has any, and what stands before them alone."""
    is_masked = transformer.head == "masked_language"
    if not is_masked and transformer.head != "language":
        return []
    if is_masked:
        last = part.matmul("transform", last, inner=part.width, columns=part.width, has_bias=True)
        last = part.norm("transform_norm", part.move("transform_activation", "activation", (last,)))
    return [
        part.matmul(
            _LOGITS,
            last,
            inner=part.width,
            columns=transformer.vocabulary_size,
            has_bias=transformer.has_head_bias,
            has_weight=not transformer.has_tied_embeddings,
        )
    ]
