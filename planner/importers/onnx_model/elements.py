"""FLOP of the ONNX operators that work element by element, of the whole batch, and which operators only move data.

Every addition, product, comparison and every function such as ``exp`` is one FLOP. Definitions: onnx/onnx,
docs/Operators.md.
"""

from collections.abc import Callable, Mapping
from math import prod

from planner.importers.onnx_model.view import View, Work

__all__ = ["ELEMENTS", "FREE"]

Rule = Callable[[View], Work]

# FLOP of one element of the output.
_PER_OUTPUT = {
    **dict.fromkeys(
        (
            "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd",
            "BitwiseNot", "BitwiseOr", "BitwiseXor", "Bernoulli", "BiasAdd", "Binarizer", "Ceil", "Cos", "Cosh",
            "Div", "Equal", "Erf", "Exp", "Floor", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less",
            "LessOrEqual", "Log", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "QLinearAdd", "QLinearMul",
            "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Reciprocal", "Relu", "Round",
            "Sign", "Sin", "Sinh", "Sqrt", "Sub", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor",
        ),
        1,
    ),
    **dict.fromkeys(("Clip", "DequantizeLinear", "LeakyRelu", "PRelu", "QLinearLeakyRelu", "Shrink"), 2),
    **dict.fromkeys(("BatchNormalization", "BiasDropout"), 2),  # moving statistics: one factor, one addend
    **dict.fromkeys(("Elu", "Softplus", "Softsign", "LpNormalization", "RotaryEmbedding"), 3),
    **dict.fromkeys(("Celu", "HardSigmoid", "Mish", "QuantizeLinear", "Selu", "Sigmoid", "QLinearSigmoid"), 4),
    **dict.fromkeys(("Gelu", "HardSwish", "LogSoftmax", "QuickGelu", "Softmax", "QLinearSoftmax", "Swish"), 5),
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization", "MeanVarianceNormalization"), 5),
    **dict.fromkeys(("BiasGelu", "BiasSoftmax", "BiasSplitGelu", "DynamicQuantizeLinear"), 6),
    "SkipSimplifiedLayerNormalization": 6,
    **dict.fromkeys(("GroupNorm", "GroupNormalization", "InstanceNormalization", "LayerNormalization"), 7),
    **dict.fromkeys(("SkipGroupNorm", "SkipLayerNormalization"), 8),
    "EmbedLayerNormalization": 9,
    "FastGelu": 9,
}  # fmt: skip
# FLOP of one element of the input.
_PER_INPUT = {
    **dict.fromkeys(
        (
            "ArgMax", "ArgMin", "CumProd", "CumSum", "GlobalAveragePool", "GlobalMaxPool", "Hardmax",
            "NegativeLogLikelihoodLoss", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "TopK",
            "QLinearGlobalAveragePool",
        ),
        1,
    ),
    **dict.fromkeys(("GlobalLpPool", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare"), 2),
    "ReduceLogSumExp": 3,
    "SoftmaxCrossEntropyLoss": 6,
}  # fmt: skip
# Nothing is computed: data stay, are moved, copied or chosen.
FREE = frozenset({
    "BitmaskDropout", "Cast", "CastLike", "CenterCropPad", "Col2Im", "Compress", "Concat", "ConcatFromSequence",
    "Constant", "ConstantOfShape", "DepthToSpace", "Dropout", "Expand", "EyeLike", "Flatten", "Gather",
    "GatherElements", "GatherND", "Identity", "MaxUnpool", "NonZero", "OneHot", "Optional", "OptionalGetElement",
    "OptionalHasElement", "Pad", "Range", "Reshape", "ReverseSequence", "Scatter", "ScatterElements", "ScatterND",
    "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "Shape",
    "Size", "Slice", "SpaceToDepth", "Split", "SplitToSequence", "Squeeze", "TensorScatter", "Tile", "Transpose",
    "Trilu", "Unsqueeze",
})  # fmt: skip


def _per_output(flop: int) -> Rule:
    """Return the rule of an operator that does ``flop`` for every output."""
    return lambda view: Work(0, flop * view.num_outputs())


def _per_input(flop: int) -> Rule:
    """Return the rule of an operator that does ``flop`` for every element of its first input."""
    return lambda view: Work(0, flop * view.num_inputs())


def _of_many(view: View) -> Work:
    """Sum, mean, largest and smallest of several tensors."""
    return Work(0, (len(view.node.inputs) - 1 + (view.node.op_type == "Mean")) * view.num_outputs())


def _pool(view: View) -> Work:
    """Every output reads a window."""
    return Work(0, view.num_outputs() * max(1, prod(view.integers("kernel_shape"))))


def _local_response(view: View) -> Work:
    """The squares of ``size`` channels and their sum, then a scale, an addend, a power and a division."""
    return Work(0, (2 * view.integer("size", 1) + 3) * view.num_outputs())


def _resize(view: View) -> Work:
    """Nearest neighbours are copied; linear and cubic sums take 2 or 4 of them along every axis that changes."""
    mode = view.text("mode", "nearest")
    taps = {"linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}.get(mode, 0)
    changed = sum(one != two for one, two in zip(view.input(), view.output(), strict=False))
    return Work(0, 2 * taps**changed * view.num_outputs() if taps and changed else 0)


def _sampled(view: View) -> Work:
    """A grid of places, each a weighted sum of 4 or 16 neighbours; a region of interest takes 4 a place."""
    taps = 16 if "cubic" in view.text("mode") else 4
    return Work(0, 2 * taps * view.num_outputs())


ELEMENTS: Mapping[str, Rule] = {
    **{name: _per_output(flop) for name, flop in _PER_OUTPUT.items()},
    **{name: _per_input(flop) for name, flop in _PER_INPUT.items()},
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), _of_many),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool", "QLinearAveragePool"), _pool),
    **dict.fromkeys(("GridSample", "MaxRoiPool", "RoiAlign"), _sampled),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "LRN": _local_response,
}
