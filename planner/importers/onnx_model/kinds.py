"""What a layer made of an ONNX operator is called, looks like and keeps."""

import re
from math import prod

from planner.dnn import Window
from planner.importers.onnx_model.plain import OnnxNode
from planner.importers.onnx_model.scope import Scope
from planner.importers.onnx_model.view import UnknownShapeError, View

__all__ = ["is_in_place", "kind_of", "sample_shape", "window_of"]

_KINDS = {
    **dict.fromkeys(("Conv", "ConvInteger", "ConvTranspose", "DeformConv", "FusedConv", "QLinearConv"), "convolution"),
    **dict.fromkeys(("BatchNormalization",), "batch_norm"),
    **dict.fromkeys(
        (
            "GroupNorm", "GroupNormalization", "InstanceNormalization", "LRN", "LayerNormalization", "LpNormalization",
            "MeanVarianceNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "SkipGroupNorm",
            "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
        ),
        "norm",
    ),
    **dict.fromkeys(
        (
            "AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool", "MaxRoiPool",
            "QLinearAveragePool", "QLinearGlobalAveragePool", "RoiAlign",
        ),
        "pooling",
    ),
    **dict.fromkeys(
        (
            "BiasGelu", "BiasSplitGelu", "Celu", "Clip", "Elu", "Erf", "FastGelu", "Gelu", "HardSigmoid", "HardSwish",
            "LeakyRelu", "Mish", "PRelu", "QLinearLeakyRelu", "QLinearSigmoid", "QuickGelu", "Relu", "Selu", "Sigmoid",
            "Softplus", "Softsign", "Swish", "Tanh", "ThresholdedRelu",
        ),
        "activation",
    ),
    **dict.fromkeys(("Add", "QLinearAdd", "Sum"), "add"),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "QLinearSoftmax", "Softmax"), "softmax"),
    **dict.fromkeys(("BitmaskDropout", "Dropout"), "dropout"),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), "recurrent"),
    **dict.fromkeys(("Attention", "GroupQueryAttention", "MultiHeadAttention", "QAttention"), "attention"),
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), "loss"),
    "Concat": "concatenate",
    "EmbedLayerNormalization": "embedding",
    "RotaryEmbedding": "rotary",
    "If": "branch",
}  # fmt: skip
_PRODUCTS = {
    "DynamicQuantizeMatMul", "Einsum", "FusedGemm", "FusedMatMul", "Gemm", "MatMul", "MatMulBnb4", "MatMulInteger",
    "MatMulIntegerToFloat", "MatMulNBits", "QGemm", "QLinearMatMul",
}  # fmt: skip
_OVERWRITES = {"Clip", "LeakyRelu", "Relu"}  # as PyTorch does with inplace=True
_VIEWS = {"Flatten", "Identity", "Reshape", "Split", "Squeeze", "Unsqueeze"}
_POOLS = {"AveragePool", "LpPool", "MaxPool", "QLinearAveragePool"}


def kind_of(node: OnnxNode, scope: Scope, output_shape: tuple[int, ...]) -> str:
    """Return the kind of a layer in the words of the zoo; the operator's own name in small letters where it has none.

    A product with weights is ``fully_connected`` where a sample is one row, else ``matmul``; a product of two
    activations is ``attention``, as in the zoo's transformers.
    """
    if node.op_type in _PRODUCTS:
        if not any(scope.is_fixed(name) for name in node.inputs[:4] if name):
            return "attention"
        return "fully_connected" if len(output_shape) == 1 else "matmul"
    if node.op_type.startswith("Gather") and node.inputs and scope.is_fixed(node.inputs[0]):
        return "embedding"
    return _KINDS.get(node.op_type) or _plain_kind(node.op_type)


def _plain_kind(op_type: str) -> str:
    """Return an operator's own name in small letters, at most 40."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", op_type).lower()
    return re.sub(r"\W+", "_", words)[:40].strip("_") or "operator"


def is_in_place(node: OnnxNode, scope: Scope) -> bool:
    """Whether an operator keeps nothing more for the backward pass: views, ReLU and sums that overwrite an input."""
    if node.op_type in _OVERWRITES or node.op_type in _VIEWS:
        return True
    if node.op_type not in ("Add", "Sum") or not node.outputs:
        return False
    output = scope.shape_of(node.outputs[0])
    moving = [name for name in node.inputs if name and not scope.is_fixed(name)]
    return output is not None and any(scope.shape_of(name) == output for name in moving)


def sample_shape(shape: tuple[int, ...], batch_size: int, *, has_channels_first: bool = False) -> tuple[int, ...]:
    """Return the shape of one sample's part as :class:`planner.dnn.Layer` has it.

    The dimension of the batch goes: the first one if it is the batch or a multiple of it (tokens of all samples in a
    row), else the first that is. What remains is (features,); (features, tokens, 1) of two dimensions, the last one
    being features, or the first one where an operator has its channels first; three as they are; of more the inner ones
    are taken together.
    """
    rest = list(shape)
    exact = [axis for axis, size in enumerate(rest) if size == batch_size]
    multiple = [axis for axis, size in enumerate(rest) if size % batch_size == 0]
    if exact:
        del rest[exact[0]]
    elif multiple:
        rest[multiple[0]] //= batch_size
    rest = rest or [1]
    if len(rest) == 2:
        return (rest[0], rest[1], 1) if has_channels_first else (rest[1], rest[0], 1)
    return tuple(rest) if len(rest) <= 3 else (rest[0], prod(rest[1:-1]), rest[-1])


def window_of(view: View) -> Window | None:
    """Return the window of a convolution or a pool, where it is square; the padding is the leading one."""
    node = view.node
    is_convolution = _KINDS.get(node.op_type) == "convolution" and node.op_type != "ConvTranspose"
    if not is_convolution and node.op_type not in _POOLS:
        return None
    try:
        kernels = view.integers("kernel_shape") or view.input(3 if node.op_type == "QLinearConv" else 1)[2:]
        sizes, results = view.input()[2:], view.output()[2:]
    except UnknownShapeError:
        return None
    strides = view.integers("strides") or (1,) * len(kernels)
    dilations = view.integers("dilations") or (1,) * len(kernels)
    if not len(kernels) == len(strides) == len(dilations) == len(sizes) == len(results) == 2:
        return None
    spans = [(kernel - 1) * dilation + 1 for kernel, dilation in zip(kernels, dilations, strict=True)]
    pads = view.integers("pads")[:2] or (0, 0)
    if (mode := view.text("auto_pad", "NOTSET")) in ("SAME_UPPER", "SAME_LOWER"):
        rows = zip(sizes, results, strides, spans, strict=True)
        total = [max(0, (result - 1) * stride + span - size) for size, result, stride, span in rows]
        pads = tuple(one // 2 if mode == "SAME_UPPER" else one - one // 2 for one in total)
    if len({*spans}) > 1 or len({*strides}) > 1 or len({*pads}) > 1 or min(*spans, *strides) < 1 or min(pads) < 0:
        return None
    return Window(kernel=spans[0], stride=strides[0], padding=pads[0])
