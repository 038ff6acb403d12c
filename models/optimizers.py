"""Optimisers: the bytes of their state, and what a step moves, computes and needs whole.

Bytes of state per parameter, beside an fp32 copy of a weight that is kept in another type:

- ``sgd`` none; ``momentum`` one number in fp32; ``adam`` and ``adamw`` two (decoupled decay keeps nothing more);
- ``adam_bf16``, ``adam_fp8``: both moments in two bytes, or in one (Megatron-Core, ``--use-precision-aware-optimizer``
  with ``--exp-avg-dtype`` and ``--exp-avg-sq-dtype``);
- ``adam_8bit``: both moments in one byte, with an fp32 scale for each block of 256 numbers (T. Dettmers et al., arXiv
  2110.02861, section 2; block size of bitsandbytes);
- ``adafactor``: of a matrix the means of rows and of columns, no momentum (N. Shazeer and M. Stern, arXiv 1804.04235,
  sections 3 and 9): 8 bytes for each thousand numbers of a square matrix of a thousand rows, and less of larger ones;
- ``muon``: one momentum in fp32 for matrices inside the blocks; AdamW's two for embedding and head (J. Liu et al.,
  arXiv 2502.16982, sections 2.1 and 2.3). Norms and biases, which AdamW steps as well, are counted as matrices.

A step reads and writes the state, whatever its type.

**Muon** replaces a matrix's momentum by a nearly orthogonal one, by five iterations of Newton and Schulz: of an ``m x
n`` matrix with ``m <= n`` each is three products, ``4 m^2 n + 2 m^3`` FLOP (the same, section 2.1). That needs whole
matrices: ranks that share the state take whole ones each (Megatron-Core's layer-wise distributed optimiser,
``--optimizer dist_muon``), so that gradients are added up by an all-reduce rather than by a reduce-scatter, and the
rank with the largest matrix takes no less than that. A matrix that tensor parallelism splits is treated piece by piece
(its ``--muon-tp-mode blockwise``). Left out: the transposition, and the scaling of an update.
"""

from collections.abc import Mapping

import numpy as np

from planner.cost import Floats
from planner.frozen import frozen
from planner.models.layouts import Layouts
from planner.models.operators import ROUTED, TransformerOperator, block_operators
from planner.models.parameters import split_share
from planner.transformer import LayerKind, Transformer

_BLOCK = 256  # numbers with one scale
_ITERATIONS = 5


_MOVED_STATE = 16.0  # of the bytes that a step of a program moves per parameter: Adam's, read and written


@frozen
class Optimizer:
    """An optimiser."""

    # state_bytes, end_state_bytes: of a parameter; and of one of embedding or head
    state_bytes: float
    end_state_bytes: float
    needs_matrices: bool = False  # whether a step needs whole matrices, and computes with them

    def moved_bytes(self, of_adam_bytes: float) -> float:
        """Return what a step moves per parameter, where that of Adam moves so much.

        Parameters
        ----------
        of_adam_bytes
            Gradients, weights and their copies, and Adam's state.
        """
        return of_adam_bytes - _MOVED_STATE + 2 * self.state_bytes


def _of(state_bytes: float) -> Optimizer:
    """Return one that keeps the same of every parameter."""
    return Optimizer(state_bytes=state_bytes, end_state_bytes=state_bytes)


OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd": _of(0),
    "momentum": _of(4),
    "adam": _of(8),
    "adamw": _of(8),
    "adam_bf16": _of(4),
    "adam_fp8": _of(2),
    "adam_8bit": _of(2 + 2 * 4 / _BLOCK),
    "adafactor": _of(0.008),
    "muon": Optimizer(state_bytes=4, end_state_bytes=8, needs_matrices=True),
}


# -- Newton and Schulz's iterations ------------------------------------------------------------------------------------


@frozen(eq=False)
class Matrices:
    """The matrices of one layer on one device; arrays of one element a layout."""

    flop: Floats  # of the iterations over all of them
    # largest_flop, largest: of those over the one that takes most; and the numbers of the largest
    largest_flop: Floats
    largest: Floats


def matrices_of(transformer: Transformer, kind: LayerKind, layouts: Layouts) -> Matrices:
    """Return what Newton and Schulz's iterations take over one layer's matrices; queries, keys and values are three.

    Parameters
    ----------
    transformer, kind, layouts
        The network, the kind of layer, and n layouts of it.
    """
    flop = largest_flop = largest = np.zeros(1)
    for one in block_operators(transformer, kind):
        if one.is_frozen or one.product is None or not any(tensor.name == "weight" for tensor in one.tensors):
            continue
        count = one.product.count / layouts.expert if one.name.startswith(ROUTED) else np.ones(1)
        for inner, columns in _pieces(transformer, one, layouts):
            each = newton_schulz_flop(inner, columns)
            flop = flop + count * each
            largest_flop, largest = np.maximum(largest_flop, each), np.maximum(largest, inner * columns)
    return Matrices(flop=flop, largest_flop=largest_flop, largest=largest)


def newton_schulz_flop(rows: Floats, columns: Floats) -> Floats:
    """Return the FLOP of all iterations over one matrix: see the opening of this module.

    Parameters
    ----------
    rows, columns
        Of the matrix; of shapes that broadcast.
    """
    small, large = np.minimum(rows, columns), np.maximum(rows, columns)
    return np.asarray(_ITERATIONS * (4 * small**2 * large + 2 * small**3))


def _pieces(transformer: Transformer, one: TransformerOperator, layouts: Layouts) -> list[tuple[Floats, Floats]]:
    """Return the shapes of an operator's matrices on one device."""
    assert one.product is not None, "asked of products alone"
    by_columns, share = split_share(one.name, layouts)
    inner, columns = np.asarray(float(one.product.inner)), np.asarray(float(one.product.columns))
    if one.name == "attention.qkv":
        keys = transformer.num_kv_heads * transformer.head_size / np.minimum(layouts.tensor, transformer.num_kv_heads)
        return [(inner, transformer.num_heads * transformer.head_size * share), *[(inner, np.asarray(keys))] * 2]
    return [(inner, columns * share) if by_columns else (inner * share, columns)]
