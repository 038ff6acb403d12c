"""Everything that is asked of torch beyond its documented interface, in one place, and what counts as work.

FLOP are those of ``torch.utils.flop_counter.FlopCounterMode`` (torch 2.13, torch/utils/flop_counter.py), which counts 0
for what it has no formula for. Formulas are added for matrix-vector products, for grouped products (the experts of a
mixture: torch.nn.functional.grouped_mm, and the operator of transformers that stands in for it) and for the attention
kernel of CPUs. What is left without a formula is told by name. The formula for the gradients of convolutions forgets
their groups there (a depth-wise one counts as often as it has channels), and is replaced.
"""

import importlib
from collections.abc import Sequence
from math import prod
from typing import Any

from planner.errors import Fault, SpecError

__all__ = [
    "custom_functions",
    "flop_counter",
    "is_random",
    "is_writing",
    "load_torch",
    "name_of",
    "needs_formula",
    "run_without_memory",
]

# Operators that read floating-point numbers and have no products worth counting. Views, copies and what torch tags as
# element by element come on top.
_FREE = frozenset(
    """
    _adaptive_avg_pool2d _adaptive_avg_pool3d _batch_norm_impl_index _batch_norm_no_update _batch_norm_with_update
    _embedding_bag _fused_dropout _fused_rms_norm _is_all_true _local_scalar_dense _log_softmax _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _pack_padded_sequence
    _pad_packed_sequence _prelu_kernel
    _safe_softmax _softmax _sparse_softmax _to_copy _unsafe_index _unsafe_index_put _unsafe_view
    _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
    _weight_norm_interface
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d alias all amax amin aminmax any argmax argmin
    argsort as_strided as_strided_scatter
    avg_pool1d avg_pool2d avg_pool3d bernoulli binary_cross_entropy binary_cross_entropy_with_logits bincount bucketize
    cat channel_shuffle clone col2im constant_pad_nd copy count_nonzero cross_entropy_loss cummax cummin cumprod cumsum
    detach diag_embed diagonal_scatter dropout embedding embedding_bag empty_like equal expand fill flip fmod
    fractional_max_pool2d full_like gather grid_sampler_2d grid_sampler_3d histc huber_loss im2col index index_add
    index_copy index_fill index_put index_reduce index_select isclose kthvalue l1_loss lift_fresh
    linalg_vector_norm
    log_softmax logcumsumexp logsumexp masked_fill masked_scatter masked_select max max_pool2d_with_indices
    max_pool3d_with_indices max_unpool2d mean median min mode mse_loss multi_margin_loss multilabel_margin_loss
    multinomial native_batch_norm native_dropout native_group_norm native_layer_norm new_empty new_empty_strided
    new_full new_ones new_zeros nll_loss_forward nll_loss2d_forward nonzero norm normal one_hot ones_like pad
    pixel_shuffle pixel_unshuffle prod rand_like randn_like randint_like reflection_pad1d reflection_pad2d
    reflection_pad3d repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d
    rms_norm roll rot90 rrelu_with_noise rsub scatter scatter_add scatter_reduce searchsorted select_scatter
    slice_scatter smooth_l1_loss softmax sort split_with_sizes_copy squeeze_copy stack std std_mean sum take topk trace
    tril triu unfold_copy unique_consecutive unique_dim uniform unsafe_split unsafe_split_with_sizes
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_trilinear3d var var_mean zero zeros_like
    """.split()  # noqa: SIM905  # a list of two hundred strings would fill pages
)


_CONVOLUTION_ARGUMENTS = (
    "bias",
    "stride",
    "padding",
    "dilation",
    "transposed",
    "output_padding",
    "groups",
    "output_mask",
)


def load_torch() -> Any:
    """Return the module ``torch``.

    Raises
    ------
    SpecError
        If it is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise SpecError.of(
            [Fault(problem="torch is not installed.", mend="Run pip install 'training-planner[torch]'.")]
        ) from None


def flop_counter(torch: Any) -> Any:
    """Return a ``FlopCounterMode`` that prints nothing and also counts what it has no formula for by itself."""
    counter = importlib.import_module("torch.utils.flop_counter").FlopCounterMode
    return counter(display=False, custom_mapping=_formulas(torch))


def name_of(function: Any) -> tuple[str, str]:
    """Return the library and the name of an operator, ``("aten", "add")``; in-place forms lose their underscore."""
    library, _, name = str(getattr(function, "_schema", function)).split("(")[0].partition("::")
    if not name:  # an operator that takes functions, such as flex_attention
        return "higher_order", str(getattr(function, "__name__", function))
    name = name.split(".")[0]
    return library, name.removesuffix("_") if not name.endswith("__") else name


def needs_formula(torch: Any, function: Any) -> bool:
    """Whether an operator may well do products, so that 0 FLOP of it are worth a warning."""
    library, name = name_of(function)
    if library != "aten":
        return library not in ("prim", "prims", "debugprims")
    tags = getattr(function, "tags", ())
    is_simple = torch.Tag.pointwise in tags or torch.Tag.inplace_view in tags or getattr(function, "is_view", False)
    return not is_simple and name not in _FREE


def run_without_memory(torch: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on the meta device.

    There the grouped product takes bf16 alone (torch 2.13, torch/_meta_registrations.py), while devices take fp32, too:
    it is shown tensors of bf16 instead.
    """
    is_grouped = name_of(function) == ("aten", "_grouped_mm")
    if not is_grouped or args[0].dtype == torch.bfloat16:
        return function(*args, **kwargs)

    def short(value: Any) -> Any:
        is_floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return torch.empty_like(value, dtype=torch.bfloat16) if is_floating else value

    kept = {key: short(value) for key, value in kwargs.items() if key != "out_dtype"}
    result = function(*map(short, args), **kept)
    return torch.empty_like(result, dtype=kwargs.get("out_dtype") or args[0].dtype)


def is_writing(torch: Any, function: Any) -> bool:
    """Whether an operator writes into a tensor that it is given; one that merely turns its axes does not."""
    is_mutable = getattr(getattr(function, "_schema", None), "is_mutable", False)
    return bool(is_mutable) and torch.Tag.inplace_view not in getattr(function, "tags", ())


def is_random(torch: Any, function: Any) -> bool:
    """Whether the result of an operator is drawn, or is memory that nobody wrote."""
    return torch.Tag.nondeterministic_seeded in function.tags or "empty" in name_of(function)[1]


def custom_functions(torch: Any, ends: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of custom autograd functions behind some tensors."""
    seen: set[Any] = set()
    names: dict[str, None] = {}
    waiting = [out.grad_fn for out in ends]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            names.setdefault(type(node).__name__.removesuffix("Backward"))
        waiting.extend(following for following, _ in node.next_functions)
    return tuple(names)


# -- formulas --------------------------------------------------------------------------------------------------------


def _formulas(torch: Any) -> dict[Any, Any]:
    """Return the added formulas by operator; those of operators that this torch does not have are left out."""
    known = importlib.import_module("torch.utils.flop_counter").flop_registry
    ours = {
        ("aten", "_grouped_mm"): _grouped_flop,
        ("aten", "_scaled_grouped_mm"): _grouped_flop,
        ("transformers", "grouped_mm_fallback"): _grouped_flop,
        ("transformers", "grouped_mm_fallback_backward"): _grouped_backward_flop,
        ("aten", "mv"): _vector_flop,
        ("aten", "dot"): _vector_flop,
        ("aten", "vdot"): _vector_flop,
        ("aten", "addmv"): _added_vector_flop,
        ("aten", "_int_mm"): _vector_flop,
        ("aten", "_scaled_dot_product_flash_attention_for_cpu"): _attention_flop,
        ("aten", "_scaled_dot_product_fused_attention_overrideable"): _attention_flop,
    }
    found: dict[Any, Any] = {torch.ops.aten.convolution_backward: _convolution_backward_flop}
    for (library, name), formula in ours.items():
        operator = getattr(getattr(torch.ops, library), name, None)
        if operator is not None and operator not in known:
            found[operator] = formula
    return found


def _grouped_flop(first: Any, second: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Return ``2 m k n``, times the groups where no side is split among them.

    Either side is a stack of matrices (three dimensions) or one that offsets split: rows of the first, columns of the
    second, or, where both are split, the inner width. All offsets together cover it once.
    """
    *stack, rows, inner = first
    columns = second[-1]
    return int(2 * rows * inner * columns * (stack[0] if stack and len(second) == 3 else 1))


def _grouped_backward_flop(first: Any, second: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Return the FLOP of the gradients of both sides."""
    return 2 * _grouped_flop(first, second)


def _convolution_backward_flop(
    gradient: Any, image: Any, weight: Any, *others: Any, out_shape: Any = None, **named: Any
) -> int:
    """Return the FLOP of the gradients of a convolution's image and weight, each as many as forward.

    ``others`` are :data:`_CONVOLUTION_ARGUMENTS`, the last of which tells which gradients are wanted.
    """
    given = dict(zip(_CONVOLUTION_ARGUMENTS, others, strict=False)) | named
    is_transposed, wanted = given["transposed"], given["output_mask"]
    places = prod((image if is_transposed else gradient)[2:])
    return int(2 * image[0] * places * prod(weight) * sum(map(bool, wanted[:2])))


def _vector_flop(first: Any, second: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Return the FLOP of a matrix, or a vector, times a vector, or a matrix."""
    rows = first[0] if len(first) > 1 else 1
    columns = second[1] if len(second) > 1 else 1
    return int(2 * rows * first[-1] * columns)


def _added_vector_flop(_: Any, first: Any, second: Any, *__: Any, out_shape: Any = None, **___: Any) -> int:
    """Return the FLOP of a vector plus a matrix times a vector."""
    return _vector_flop(first, second)


def _attention_flop(query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Return the FLOP of both products of attention; a mask saves none, as in the formulas of torch."""
    batch, heads, queries, width = query
    return int(2 * batch * heads * queries * key[-2] * (width + value[-1]))
