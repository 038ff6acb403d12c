"""The operators of a layer as :class:`planner.dnn.Operator` has them: what each computes and moves for one sample.

The second pass, at twice the batch, tells what is of a sample: what grows is, and what does not is read once, whatever
the batch (weights, tables, masks). Elements are those of floating-point tensors, as they are stored: of one that is
spread over an axis without being copied, its own. What picks rows out of a table reads as many as it puts out.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import prod
from typing import Any

from planner.dnn import Operator, Product
from planner.frozen import frozen
from planner.importers.torch_module.recording import Attention, Operand, Operation

PRODUCTS = frozenset(
    ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "_grouped_mm", "grouped_mm_fallback", "_scaled_mm")
)
_MORE_PRODUCTS = frozenset(("vdot", "_int_mm", "_scaled_grouped_mm", "addbmm", "linear", "matmul"))
_WITH_SUMMAND = frozenset(("addmm", "baddbmm", "addmv", "addbmm"))
_GROUPED = frozenset(("_grouped_mm", "grouped_mm_fallback", "_scaled_grouped_mm"))
_PICKING = frozenset(("embedding", "embedding_bag", "index_select", "gather", "take", "index", "_unsafe_index"))
_KINDS = {
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm", "rms_norm"), "norm"),
    "native_group_norm": "group_norm",
    **dict.fromkeys(("embedding", "embedding_bag", "index_select", "gather", "take"), "embedding"),
    **dict.fromkeys(
        """
        mean sum var var_mean std std_mean amax amin aminmax max min all any argmax argmin prod norm linalg_vector_norm
        logsumexp topk sort argsort kthvalue median mode cumsum cumprod cummax cummin nll_loss_forward
        nll_loss2d_forward cdist trace histc
        """.split(),  # noqa: SIM905  # as in recording.py
        "reduction",
    ),
    **dict.fromkeys(
        """
        cat stack clone copy _to_copy constant_pad_nd pad roll flip rot90 index _unsafe_index index_put
        _unsafe_index_put index_copy index_add index_fill repeat repeat_interleave pixel_shuffle pixel_unshuffle
        channel_shuffle im2col col2im scatter scatter_add scatter_reduce slice_scatter select_scatter diagonal_scatter
        masked_select split_with_sizes_copy squeeze_copy unfold_copy reflection_pad1d reflection_pad2d reflection_pad3d
        replication_pad1d replication_pad2d replication_pad3d grid_sampler_2d grid_sampler_3d tril triu diag_embed
        """.split(),  # noqa: SIM905  # as above
        "copy",
    ),
}
# Views of a part of a tensor. The gradients of one that cuts it whole are put together in one kernel; that of a slice
# is written into zeros (torch/csrc/autograd/FunctionsManual.cpp), and those of further slices are added.
_CUTS = frozenset(("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "unbind"))
_SLICES = frozenset(("slice", "select"))
_PARTS = {"batch_norm": "batch_norm", "softmax": "softmax", "pool": "pooling", "upsample": "copy"}
_FRESH = frozenset(("bernoulli", "zero", "fill", "normal", "uniform"))


@frozen(kw_only=False)
class Step:
    """An operator of a layer in both passes."""

    one: Operation
    two: Operation
    samples: frozenset[int]  # the storages that it reads which depend on the sample
    is_constant: bool  # nothing that it reads does


@frozen(kw_only=False)
class Share:
    """How figures of a pass become those of a sample; without a second pass all that is of a sample grows."""

    batch: int
    is_split: bool

    def of(self, one: int, two: int, *, is_sample: bool) -> tuple[int, int]:
        """Return what is of one sample, and what is there once, of figures at the batch and at twice the batch."""
        growth = two - one if self.is_split else one * is_sample
        growth = min(max(growth, 0), one)
        return -(-growth // self.batch), one - growth


def operators_of(steps: Sequence[Step], share: Share, num_multiply_adds: int) -> list[Operator]:
    """Return the operators of a layer with so many multiply-adds; their sum is that of the layer."""
    found = []
    cuts = [step for step in steps if is_cutting(step.one)]
    steps = [step for step in steps if not is_cutting(step.one)]
    masks = _dropout_masks(steps)
    for step, part in zip(steps, _parts(steps, num_multiply_adds), strict=True):
        if any(out.storage in masks for out in step.one.outputs):
            continue
        operator = _operator(step, share, part)
        if any(storage in masks for storage in step.one.inputs):
            operator = replace(operator, kind="element_wise", read_elements=operator.written_elements)
        if operator.num_multiply_adds or operator.written_elements or operator.weight_elements:
            found.append(operator)
    wholes = [(one.storage, one.offset, one.shape) for one in (step.one.operands[0] for step in cuts)]
    return [*found, *(_cut(step, share, is_first=wholes[at] not in wholes[:at]) for at, step in enumerate(cuts))]


def _cut(step: Step, share: Share, *, is_first: bool) -> Operator:
    """Return what the gradients of parts of a tensor read and write; they come on top of those of other parts."""
    one, two = step.one, step.two
    all_of_it, _ = share.of(one.operands[0].num_elements, two.operands[0].num_elements, is_sample=True)
    own, _ = share.of(one.outputs[0].num_elements, two.outputs[0].num_elements, is_sample=True)
    is_slice = step.one.name in _SLICES
    read = own if is_slice else all_of_it
    return Operator(
        kind="slice",
        read_elements=read + 2 * all_of_it * (not is_first),
        written_elements=all_of_it + own * is_slice + all_of_it * (not is_first),
        num_kernels=1 + is_slice + (not is_first),
    )


def attention_of(one: Attention, two: Attention, share: Share, num_multiply_adds: int) -> Operator:
    """Return a fused attention."""
    dims = [
        (prod(seen.query.shape[:-2]), seen.query.shape[-2], seen.key.shape[-2], seen.query.shape[-1])
        for seen in (one, two)
    ]
    reads = [(first, second) for first, second in zip(one.operands, two.operands, strict=True) if first.is_floating]
    moved = [share.of(first.num_elements, second.num_elements, is_sample=True) for first, second in reads]
    written, _ = share.of(one.result.num_elements, two.result.num_elements, is_sample=True)
    return Operator(
        kind="attention",
        num_multiply_adds=num_multiply_adds,
        read_elements=sum(own for own, _ in moved),
        written_elements=written,
        weight_elements=sum(fixed for _, fixed in moved),
        product=_product_of_sample(dims[0], dims[1], share, grows_by=0),
    )


def is_recurrent(module: object) -> bool:
    """Whether a module is one of torch's recurrent ones."""
    return any(base.__name__ == "RNNBase" for base in type(module).__mro__)


def recurrent_of(module: Any, num_steps: int, num_multiply_adds: int) -> Operator:
    """Return a recurrent module of so many steps; each number of its matrices is multiplied once a row and step."""
    weights = [weight for group in module.all_weights for weight in group]
    tokens = max(1, num_multiply_adds // sum(weight.numel() for weight in weights if weight.dim() == 2))
    directions = 2 if module.bidirectional else 1
    steps = num_steps if num_steps and tokens % num_steps == 0 else tokens
    rows, count, columns = tokens // steps, steps * module.num_layers * directions, int(weights[0].shape[0])
    return Operator(
        kind="recurrent",
        num_multiply_adds=num_multiply_adds,
        read_elements=tokens * module.input_size,
        written_elements=tokens * directions * (module.proj_size or module.hidden_size),
        weight_elements=sum(weight.numel() for weight in weights),
        product=Product(rows=rows, inner=num_multiply_adds // (rows * count * columns), columns=columns, count=count),
        num_kernels=count,
    )


def is_cutting(operation: Operation) -> bool:
    """Whether an operator gives views of parts of a floating-point tensor."""
    if (operation.name not in _CUTS and operation.name not in _SLICES) or not operation.operands:
        return False
    whole, part = operation.operands[0], operation.outputs[:1]
    return whole.is_floating and all(one.num_elements < whole.num_elements for one in part)


def moved_elements(operation: Operation) -> int:
    """Return the elements that an operator reads and writes in a pass; a view of a part does neither."""
    if is_cutting(operation):
        return 0
    read = sum(operation.operands[at].num_elements for at in _reads(operation))
    return read + sum(one.num_elements for one in _written_by(operation))


# -- one operator ------------------------------------------------------------------------------------------------------


def _parts(steps: Sequence[Step], num_multiply_adds: int) -> list[int]:
    """Return the multiply-adds of each step: in proportion to what of its FLOP grows with the batch."""
    flop = [0 if step.is_constant else step.one.flop for step in steps]
    growth = [0 if step.is_constant else step.two.flop - step.one.flop for step in steps]
    is_regular = any(growth) and all(0 <= more <= once for more, once in zip(growth, flop, strict=True))
    ends = [0, *accumulate(growth if is_regular else flop)]
    return [
        num_multiply_adds * end // (ends[-1] or 1) - num_multiply_adds * start // (ends[-1] or 1)
        for start, end in pairwise(ends)
    ]


def _dropout_masks(steps: Sequence[Step]) -> set[int]:
    """Return the storages of masks that devices draw, scale and multiply by in one kernel: those of a plain dropout."""
    found: set[int] = set()
    for draw, scale, apply in zip(steps, steps[1:], steps[2:], strict=False):
        is_dropout = (draw.one.name, scale.one.name, apply.one.name) == ("bernoulli", "div", "mul")
        mask, out = scale.one.outputs[0], apply.one.outputs[0]
        is_whole = mask.num_elements == out.num_elements and not apply.one.is_writing
        if is_dropout and is_whole and mask.storage in apply.one.inputs:
            found |= {mask.storage, draw.one.outputs[0].storage}
    return found


def _operator(step: Step, share: Share, num_multiply_adds: int) -> Operator:
    one, two = step.one, step.two
    product = _product(step, share) if num_multiply_adds else None
    writes = zip(_written_by(one), _written_by(two), strict=True)
    written = _sum(share.of(a.num_elements, b.num_elements, is_sample=not step.is_constant) for a, b in writes)
    reads = ((one.operands[at], two.operands[at]) for at in _reads(one))
    read = _sum(share.of(a.num_elements, b.num_elements, is_sample=a.storage in step.samples) for a, b in reads)
    if one.name in _PICKING:
        read = (written[0], written[1])
    is_fixed = not (read[0] or written[0])
    return Operator(
        kind=_kind(step, share),
        num_multiply_adds=num_multiply_adds,
        read_elements=read[0],
        written_elements=written[0],
        weight_elements=read[1] + (written[1] if is_fixed else 0),
        product=product,
    )


def _sum(pairs: Any) -> tuple[int, int]:
    own = fixed = 0
    for more, once in pairs:
        own, fixed = own + more, fixed + once
    return own, fixed


def _reads(operation: Operation) -> list[int]:
    """Return the positions of the floating-point tensors that an operator reads, each once."""
    name = operation.name
    if name in _FRESH or name.endswith("_like") or name.startswith("new_") or "empty" in name:
        return []
    start = 1 if name == "copy" and operation.is_writing else 0
    found: dict[tuple[int, int, tuple[int, ...]], int] = {}
    for at, one in enumerate(operation.operands[start:], start):
        if one.is_floating:
            found.setdefault((one.storage, one.offset, one.shape), at)
    return list(found.values())


def _written_by(operation: Operation) -> list[Operand]:
    """Return the floating-point tensors that an operator writes; statistics of norms are left out."""
    if "empty" in operation.name:
        return []
    outputs = operation.outputs[:1] if "norm" in operation.name else operation.outputs
    return [one for one in outputs if one.is_floating]


def _kind(step: Step, share: Share) -> str:
    one, two = step.one, step.two
    name = one.name
    if "convolution" in name:
        return "convolution"
    if name.startswith("_scaled_dot_product"):
        return "attention"
    if name in PRODUCTS or name in _MORE_PRODUCTS or one.flop:
        first, second = _factors(one)
        both = first is not None and second is not None and {first.storage, second.storage} <= step.samples
        return "batched_matmul" if both and name not in _GROUPED else "matmul"
    found = _KINDS.get(name) or next((kind for part, kind in _PARTS.items() if part in name), "element_wise")
    if name in ("add", "sub", "rsub", "mul", "div"):
        factors = [(each.storage, each.offset, each.shape) for each in one.operands if each.is_floating]
        if name in ("mul", "div"):
            return "scaling" if len(factors) == 1 else "multiplication" if len({*factors}) > 1 else found
        return "addition" if {storage for storage, _, _ in factors} <= step.samples else found
    if found == "pooling" and "unpool" in name:
        return "copy"
    if found == "batch_norm":  # the statistics of weights, and those of every sample by itself, are other kernels
        small, large = one.outputs[0].shape, two.outputs[0].shape
        is_over_samples = not step.is_constant and (not share.is_split or (len(small) > 0 and large[0] == 2 * small[0]))
        return found if is_over_samples else "norm"
    return found


# -- products ----------------------------------------------------------------------------------------------------------

_Dims = tuple[int, int, int, int]  # count, rows, columns, inner


def _factors(operation: Operation) -> tuple[Operand | None, Operand | None]:
    """Return the two tensors that are multiplied."""
    operands = operation.operands[operation.name in _WITH_SUMMAND :]
    return (operands[0], operands[1]) if len(operands) > 1 else (None, None)


def _product(step: Step, share: Share) -> Product | None:
    one, two = _dims(step.one), _dims(step.two)
    if one is None or two is None:
        return None
    first, second = step.one.operands[step.one.name in _WITH_SUMMAND :][:2]
    both = {first.storage, second.storage} <= step.samples
    grows_by = 0 if both and one[0] > 1 else 1
    if step.one.name in PRODUCTS and first.storage not in step.samples:
        grows_by = 2
    product = _product_of_sample(one, two, share, grows_by=grows_by)
    if product is not None and step.one.name in _GROUPED and len(first.shape) != len(second.shape):
        return replace(product, rows=product.rows / product.count)  # the rows of all, of which each expert has its part
    return product


def _dims(operation: Operation) -> _Dims | None:
    """Return count, rows, columns and inner width of the products of a pass."""
    first, second = _factors(operation)
    if first is None or second is None or not operation.outputs:
        return None
    a, b, out, name = first.shape, second.shape, operation.outputs[0].shape, operation.name
    if "convolution" in name:
        is_transposed, groups = operation.settings
        rows = a[0] * prod((a if is_transposed else out)[2:])
        if is_transposed:
            return groups, rows, prod(b[1:]), b[0] // groups
        return groups, rows, b[0] // groups, prod(b[1:])
    if name.startswith("_scaled_dot_product"):
        return prod(a[:-2]), a[-2], b[-2], a[-1]
    if name in _GROUPED and len(a) == 2 and len(b) == 2:  # offsets split the inner width
        return out[0], a[0], b[1], -(-a[1] // out[0])
    if name in _GROUPED and min(len(a), len(b)) == 2:
        return (b[0], a[0], b[-1], a[-1]) if len(a) == 2 else (a[0], b[-1], a[1], a[-1])
    if not a or not b:
        return None
    rows = a[-2] if len(a) > 1 else 1
    columns = b[-1] if len(b) > 1 else 1
    return prod(a[:-2]), rows, columns, a[-1]


def _product_of_sample(one: _Dims, two: _Dims, share: Share, *, grows_by: int) -> Product | None:
    """Return the products of one sample; ``grows_by``: which of the four is the batch's, where there is no second pass.

    What has the columns of all samples is turned, so that its rows are theirs.
    """
    if share.is_split:
        grown = [at for at in range(4) if two[at] != one[at]]
        if not grown:
            return None
        grows_by = grown[0]
    count, rows, columns, inner = one
    if grows_by == 0 and count % share.batch == 0:
        return Product(rows=rows, inner=inner, columns=columns, count=count // share.batch)
    if grows_by == 2:
        rows, columns = columns, rows
    if grows_by == 3:
        return Product(rows=rows, inner=-(-inner // share.batch), columns=columns, count=count)
    whole, rest = divmod(rows, share.batch)
    return Product(rows=rows / share.batch if rest else whole, inner=inner, columns=columns, count=count)
