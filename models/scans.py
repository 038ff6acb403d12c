"""The operators of mixers whose heads have a state: what they multiply over chunks of tokens, and what they keep.

Of tokens in chunks of Q (of which the last may be shorter), for one head:

- **Mamba-2** (T. Dao and A. Gu, arXiv 2405.21060, section 6 and listing 1), of size P with a state of N numbers each:
  C B' of each group (Q x N x Q), times x (Q x Q x P); the state that a chunk leaves (N x Q x P), and what it gives to
  the next one (Q x N x P). Kept is what enters the convolution and the scan's output: the kernel computes all between
  again (``mamba_split_conv1d_scan_combined`` of mamba-ssm 2.2, which Megatron-Core calls).
- **Gated delta rule** (S. Yang et al., arXiv 2412.06464, section 3.3), keys of size K and values of size V: keys and
  queries times keys (2 of Q x K x Q), the inverse of the former times keys and values (Q x Q x (K + V)), what the
  state gives and learns (2 of Q x K x V) one chunk after another, and what queries read (Q x K x V and Q x Q x V). Kept
  are queries and keys as they are normed and repeated for every value's head, values, and the inverse
  (``chunk_gated_delta_rule`` of flash-linear-attention). The inverse of a triangular Q x Q matrix itself is left out.
- **Linear attention** (Z. Qin et al., arXiv 2401.04658, algorithm 1) of size P: Q x P x Q and Q x Q x P inside a chunk,
  P x Q x P and Q x P x P between chunks.

Half of a product counts that a causal mask leaves half of, as of attention; kernels multiply whole chunks. Heads are
split over tensor-parallel devices, with their groups and columns.
"""

from math import ceil
from typing import TYPE_CHECKING

from planner.dnn import Product, Tensor
from planner.mixers import DeltaNet, LinearAttention, Mamba

if TYPE_CHECKING:
    from planner.models.operators import Operators

SCAN, CONVOLUTION = "scan", "conv1d"
# What is split by heads: matrices by columns, and all that lies between the first product and the last.
COLUMN_SPLIT = frozenset({"mamba.in", "delta.in", "linear.qkv", "linear.gate"})
HELD_BY_HEADS = frozenset(
    {"mamba.conv", "mamba.within", "mamba.gated_norm", "delta.conv", "delta.states", "linear.inner_norm"}
)
ROW_SPLIT = frozenset({"mamba.out", "delta.out", "linear.out"})
BY_HEADS = (
    COLUMN_SPLIT
    | HELD_BY_HEADS
    | {"mamba.scores", "mamba.states", "mamba.between"}
    | {"delta.keys", "delta.scores", "delta.transform", "delta.between", "delta.within", "delta.gated_norm"}
    | {"linear.activation", "linear.scores", "linear.within", "linear.states", "linear.between", "linear.gated"}
)


def _tensors(**elements: int) -> tuple[Tensor, ...]:
    """Return parameters that are no matrices, by their names."""
    return tuple(Tensor(name=name, num_elements=number, role="bias") for name, number in elements.items())


def mamba(part: "Operators", mixer: Mamba, source: str) -> str:
    """Append Mamba-2; return the output of its last product.

    Parameters
    ----------
    part, mixer, source
        What is appended to, the sizes, and what is read.
    """
    tokens, chunk = part.num_tokens, min(mixer.chunk_size, part.num_tokens)
    heads, size, states = mixer.num_heads, mixer.head_size, mixer.state_size
    inner, groups, chunks = mixer.inner_size, mixer.num_groups * states, ceil(tokens / chunk)
    made = part.matmul("mamba.in", source, (part.width, mixer.projected_size), has_bias=False)
    convolved = part.convolve("mamba.conv", made, mixer.conv_size, mixer.conv_kernel, has_bias=mixer.has_conv_bias)
    scores = part.chunks(
        "mamba.scores", (convolved,), mixer.num_groups * chunk, 2 * groups,
        Product(rows=chunk, inner=states, columns=chunk, count=mixer.num_groups * chunks),
        tokens * mixer.num_groups * states * chunk // 2,
    )  # fmt: skip
    state = part.chunks(
        "mamba.states", (convolved,), max(1, round(inner * states / chunk)), inner + groups,
        Product(rows=states, inner=chunk, columns=size, count=heads * chunks),
        tokens * inner * states,
    )  # fmt: skip
    between = part.chunks(
        "mamba.between", (convolved, state), inner, groups + round(inner * states / chunk),
        Product(rows=chunk, inner=states, columns=size, count=heads * chunks),
        tokens * inner * states,
    )  # fmt: skip
    scanned = part.chunks(
        "mamba.within", (scores, convolved, between, made), inner, 2 * inner + mixer.num_groups * chunk,
        Product(rows=chunk, inner=chunk, columns=size, count=heads * chunks),
        tokens * inner * chunk // 2,
        tensors=_tensors(step_bias=heads, decay=heads, skip=heads), is_kept=True,
    )  # fmt: skip
    normed = part.move(
        "mamba.gated_norm", "norm", (scanned, made), inner, input_elements=2 * inner * tokens,
        tensors=(Tensor(name="scale", num_elements=inner, role="scale"),),
    )  # fmt: skip
    return part.matmul("mamba.out", normed, (inner, part.width), has_bias=False)


def delta(part: "Operators", mixer: DeltaNet, source: str) -> str:
    """Append a gated delta network; return the output of its last product.

    Parameters
    ----------
    part, mixer, source
        As for :func:`mamba`.
    """
    tokens, chunk = part.num_tokens, min(mixer.chunk_size, part.num_tokens)
    heads, keys, values, inner = mixer.num_value_heads, mixer.key_size, mixer.value_size, mixer.inner_size
    many, whole = heads * ceil(tokens / chunk), heads * keys
    states = max(1, round(whole * values / chunk))
    made = part.matmul("delta.in", source, (part.width, mixer.projected_size), has_bias=False)
    convolved = part.convolve("delta.conv", made, mixer.conv_size, mixer.conv_kernel, has_bias=False, is_kept=True)
    narrow = mixer.conv_size - inner
    normed = part.move("delta.keys", "norm", (convolved,), 2 * whole, input_elements=narrow * tokens)
    scores = part.chunks(
        "delta.scores", (normed, made), heads * chunk, 2 * whole,
        Product(rows=chunk, inner=keys, columns=chunk, count=2 * many),
        tokens * heads * keys * chunk, is_kept=True,
    )  # fmt: skip
    turned = part.chunks(
        "delta.transform", (scores, normed, convolved), whole + inner, heads * chunk + whole + inner,
        Product(rows=chunk, inner=chunk, columns=keys + values, count=many),
        tokens * heads * chunk * (keys + values) // 2,
    )  # fmt: skip
    state = part.chunks(
        "delta.states", (turned, normed), states + inner, 2 * whole + inner,
        Product(rows=chunk, inner=keys, columns=values, count=2 * many),
        2 * tokens * whole * values, tensors=_tensors(decay=heads, step_bias=heads),
    )  # fmt: skip
    between = part.chunks(
        "delta.between", (state, normed), inner, whole + states,
        Product(rows=chunk, inner=keys, columns=values, count=many),
        tokens * whole * values,
    )  # fmt: skip
    scanned = part.chunks(
        "delta.within", (normed, state, between), inner, 2 * whole + 2 * inner,
        Product(rows=chunk, inner=chunk, columns=values, count=many),
        tokens * inner * chunk // 2, is_kept=True,
    )  # fmt: skip
    gated = part.move(
        "delta.gated_norm", "norm", (scanned, made), inner, input_elements=2 * inner * tokens,
        tensors=(Tensor(name="scale", num_elements=values, role="scale"),),
    )  # fmt: skip
    return part.matmul("delta.out", gated, (inner, part.width), has_bias=False)


def linear(part: "Operators", mixer: LinearAttention, source: str) -> str:
    """Append linear attention; return the output of its last product.

    Parameters
    ----------
    part, mixer, source
        As for :func:`mamba`.
    """
    tokens, chunk = part.num_tokens, min(mixer.chunk_size, part.num_tokens)
    inner, size = mixer.inner_size, mixer.head_size
    many, states = mixer.num_heads * ceil(tokens / chunk), max(1, round(inner * size / chunk))
    made = part.matmul("linear.qkv", source, (part.width, 3 * inner), has_bias=False)
    active = part.move("linear.activation", "activation", (made,), 3 * inner)
    scores = part.chunks(
        "linear.scores", (active,), mixer.num_heads * chunk, 2 * inner,
        Product(rows=chunk, inner=size, columns=chunk, count=many), tokens * inner * chunk // 2,
    )  # fmt: skip
    within = part.chunks(
        "linear.within", (scores, active), inner, mixer.num_heads * chunk + inner,
        Product(rows=chunk, inner=chunk, columns=size, count=many), tokens * inner * chunk // 2,
    )  # fmt: skip
    state = part.chunks(
        "linear.states", (active,), states, 2 * inner,
        Product(rows=size, inner=chunk, columns=size, count=many), tokens * inner * size,
    )  # fmt: skip
    scanned = part.chunks(
        "linear.between", (state, active, within), inner, 2 * inner + states,
        Product(rows=chunk, inner=size, columns=size, count=many), tokens * inner * size, is_kept=True,
    )  # fmt: skip
    last = part.move(
        "linear.inner_norm", "norm", (scanned,), inner, input_elements=inner * tokens,
        tensors=(Tensor(name="scale", num_elements=inner, role="scale"),),
    )  # fmt: skip
    if mixer.has_gate:
        gate = part.matmul("linear.gate", source, (part.width, inner), has_bias=False)
        last = part.move("linear.gated", "activation", (last, gate), inner)
    return part.matmul("linear.out", last, (inner, part.width), has_bias=False)
