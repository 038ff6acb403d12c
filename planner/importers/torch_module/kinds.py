"""What torch calls a module or an operator, in the words of this project for kinds of layers."""

from dataclasses import dataclass
from typing import Any

from planner.dnn import Window

__all__ = ["Work", "chief_of", "kind_of_module", "kind_of_operators", "role_of", "window_of"]

# First match wins: part of a class's name in lower case, and the kind.
_MODULES = (
    ("convtranspose", "convolution"),
    ("conv1d", "convolution"),
    ("conv2d", "convolution"),
    ("conv3d", "convolution"),
    ("batchnorm", "batch_norm"),
    ("norm", "norm"),
    ("pool", "pooling"),
    ("embedding", "embedding"),
    ("dropout", "dropout"),
    ("droppath", "dropout"),
    ("lstm", "recurrent"),
    ("gru", "recurrent"),
    ("rnn", "recurrent"),
    ("flatten", "flatten"),
    ("softmax", "softmax"),
    ("loss", "loss"),
    ("rotary", "rotary"),
)
_ACTIVATIONS = (
    "relu",
    "gelu",
    "silu",
    "mish",
    "sigmoid",
    "tanh",
    "softplus",
    "softsign",
    "elu",
    "selu",
    "celu",
    "glu",
    "hardswish",
    "hardtanh",
    "hardsigmoid",
    "leaky_relu",
    "prelu",
    "logsigmoid",
    "swish",
    "activation",
    "threshold",
)
_OPERATORS = {
    "convolution": "convolution",
    "cat": "concatenate",
    "stack": "concatenate",
    "add": "add",
    "sub": "add",
    "mul": "multiply",
    "div": "multiply",
    "native_dropout": "dropout",
    "bernoulli": "dropout",
    "embedding": "embedding",
    "native_batch_norm": "batch_norm",
    "native_layer_norm": "norm",
    "native_group_norm": "norm",
    "_fused_rms_norm": "norm",
    "topk": "router",
    "mean": "pooling",
    "pow": "activation",
    "clone": "copy",
    "_to_copy": "copy",
    "copy": "copy",
    "nll_loss_forward": "loss",
}
_PRODUCTS = frozenset(
    {
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "mv",
        "addmv",
        "dot",
        "_grouped_mm",
        "grouped_mm_fallback",
        "_scaled_mm",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a layer does: multiply-adds of one sample, whether with parameters, and whether for many tokens."""

    num_multiply_adds: int
    has_weights: bool
    has_tokens: bool

    @property
    def kind(self) -> str:
        """Kind of a product."""
        if not self.has_weights:
            return "attention"
        return "matmul" if self.has_tokens else "fully_connected"


def kind_of_module(module: Any, work: Work) -> str:
    """Return the kind of a layer that is a whole module.

    A linear layer is fully connected where it reads one row of a sample, and a matmul where it reads many (tokens), as
    in the zoo. Source of the names: torch/nn/modules of torch 2.13.
    """
    name = type(module).__name__.lower()
    for part, kind in _MODULES:
        if part in name and not (kind == "convolution" and not hasattr(module, "kernel_size")):
            return kind
    if work.num_multiply_adds:
        return work.kind
    return "activation" if any(part in name for part in _ACTIVATIONS) else "operator"


def kind_of_operators(names: list[str], work: Work) -> str:
    """Return the kind of a layer that is some operators of a module's own; the last one names it."""
    if "scaled_dot_product_attention" in names:
        return "attention"
    if not _PRODUCTS.isdisjoint(names):
        return work.kind
    if work.num_multiply_adds:
        return next((_OPERATORS[name] for name in names if name in _OPERATORS), "operator")
    last = chief_of(names)
    if {"neg", "cat", "mul", "add"} <= set(names):  # halves of a vector, turned
        return "rotary"
    if "softmax" in last:
        return "softmax"
    if "pool" in last:
        return "pooling"
    if "loss" in last:
        return "loss"
    if any(part in last for part in _ACTIVATIONS):
        return "activation"
    return _OPERATORS.get(last, "operator")


def chief_of(names: list[str]) -> str:
    """Return the operator that some operators are called after: the last one that does not merely copy.

    >>> chief_of(["mul", "add", "clone"])
    'add'
    """
    return next((name for name in reversed(names) if _OPERATORS.get(name) != "copy"), names[-1])


def role_of(name: str, num_dimensions: int, kind: str) -> str:
    """Return the role of a trained tensor by its name, its shape and the kind of its layer."""
    own = name.rsplit(".", 1)[-1]
    if kind in ("batch_norm", "norm"):
        return "shift" if "bias" in own else "scale"
    return "bias" if num_dimensions <= 1 and "bias" in own else "weight"


def window_of(module: Any, kind: str) -> Window | None:
    """Return the square window of a convolution or a pool; None where there is none or it is not square."""
    if kind not in ("convolution", "pooling"):
        return None
    sizes = [_square(getattr(module, name, None)) for name in ("kernel_size", "stride", "padding")]
    kernel, stride, padding = sizes
    if kernel is None or stride is None or padding is None or _square(getattr(module, "dilation", 1)) != 1:
        return None
    return Window(kernel=kernel, stride=stride, padding=padding)


def _square(size: Any) -> int | None:
    """Return a size that is the same in both directions."""
    if isinstance(size, int):
        return size
    is_square = isinstance(size, tuple) and len(size) == 2 and size[0] == size[1] and isinstance(size[0], int)
    return size[0] if is_square else None
