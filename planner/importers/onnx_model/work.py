"""Work of ONNX operators, forward, of the whole batch, and which of them could not be counted.

A multiply-add is counted for every pair of numbers that an operator's definition multiplies and adds up, padding
included, as all published totals count it. Of attention: scores and their product with the values, for every head and
every pair of a query and a key that it may look at, the widths of a head's key and value. Where it is causal, a query
looks at the keys up to its own place, and the queries are the last places.

Beside them, every addition, product, comparison and every function such as ``exp`` is one FLOP of an element.
Definitions: onnx/onnx, docs/Operators.md; microsoft/onnxruntime, docs/ContribOperators.md.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

from planner.frozen import frozen
from planner.importers.onnx_model.graph import OnnxGraph, OnnxNode, Scope, known, shown
from planner.importers.onnx_model.shapes import MICROSOFT

_CONTROL = ("If", "Loop", "Scan")
_MOST_TRIPS = 10**6  # exporters write the largest number for "until a condition fails"
_MOST_WORK = 10**18


class UnknownShapeError(Exception):
    """A shape that a rule needs is not known, or is none that the operator can have."""


@frozen(kw_only=False)
class Work:
    """Of a whole batch, forward: multiply-adds of products, and FLOP of all else."""

    multiply_adds: int = 0
    element_flop: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        """Return both together."""
        return Work(self.multiply_adds + other.multiply_adds, self.element_flop + other.element_flop)


@frozen(kw_only=False)
class View:
    """One operator as its rule sees it: with known shapes, or a clear refusal."""

    node: OnnxNode
    scope: Scope

    def has(self, position: int) -> bool:
        """Whether the input at ``position`` is given."""
        return position < len(self.node.inputs) and bool(self.node.inputs[position])

    def input(self, position: int = 0, *, rank: int | None = None) -> tuple[int, ...]:
        """Return the shape of an input; raise UnknownShapeError where it is not known or of another rank."""
        shape = known(self.scope.shape_of(self.node.inputs[position])) if self.has(position) else None
        if shape is None or (rank is not None and len(shape) != rank):
            raise UnknownShapeError
        return shape

    def output(self) -> tuple[int, ...]:
        """Return the shape of the first output; raise UnknownShapeError where it is not known."""
        name = self.node.outputs[0] if self.node.outputs else ""
        shape = known(self.scope.shape_of(name)) if name else None
        if shape is None:
            raise UnknownShapeError
        return shape

    def num_outputs(self) -> int:
        """Return the elements of the first output."""
        return prod(self.output())


Rule = Callable[[View], Work]

# -- sums of products ------------------------------------------------------------------------------------------------


def _check_sums(view: View, first: int, second: int) -> None:
    """Refuse a product that sums over two different numbers of elements: the inference of shapes lets it pass."""
    if first != second:
        name = view.node.name or view.node.op_type
        raise ValueError(f"{view.node.op_type} {name!r} multiplies rows of {first} numbers by columns of {second}")


def _convolution(weight_at: int, bias_at: int) -> Rule:
    """Every output reads one filter: ``C / groups`` channels times the kernel, of as many axes as there are."""

    def rule(view: View) -> Work:
        weight, num_outputs = view.input(weight_at), view.num_outputs()
        if len(weight) < 3:
            raise UnknownShapeError
        if not view.node.domain and len(view.input()) > 1:  # onnxruntime has convolutions with their channels last
            _check_sums(view, view.input()[1], weight[1] * view.node.integer("group", 1))
        return Work(num_outputs * prod(weight[1:]), num_outputs if view.has(bias_at) else 0)

    return rule


def _transposed_convolution(view: View) -> Work:
    """Every input writes one filter: ``M / groups`` channels times the kernel."""
    weight = view.input(1)
    if len(weight) < 3:
        raise UnknownShapeError
    return Work(prod(view.input()) * prod(weight[1:]), view.num_outputs() if view.has(2) else 0)


def _gemm(second_at: int, bias_at: int) -> Rule:
    """``M x K`` by ``K x N``, either transposed."""

    def rule(view: View) -> Work:
        first, second = view.input(0, rank=2), view.input(second_at, rank=2)
        rows, inner = first[::-1] if view.node.integer("transA") else first
        columns, column = second if view.node.integer("transB") else second[::-1]
        _check_sums(view, inner, column)
        return Work(rows * inner * columns, rows * columns if view.has(bias_at) else 0)

    return rule


def _matmul(view: View) -> Work:
    """Every output is a sum over the last axis of the first input; leading axes are broadcast in the output."""
    first = view.input(0)
    if not first:
        raise UnknownShapeError
    second = known(view.scope.shape_of(view.node.inputs[1])) if view.has(1) else None
    if view.node.op_type == "MatMul" and second:
        _check_sums(view, first[-1], second[-2] if len(second) > 1 else second[0])
    inner = first[-2] if view.node.integer("transA") and len(first) > 1 else first[-1]
    return Work(view.num_outputs() * inner)


def _packed_matmul(view: View) -> Work:
    """As above; the weight is stored in groups of few bits, its sizes are the attributes ``K`` and ``N``."""
    return Work(view.num_outputs() * view.node.integer("K"))


def _einsum(view: View) -> Work:
    """One pass over all indices for every two operands, from left to right, as they are multiplied and added up.

    Without a sum it is a product by elements.
    """
    terms, output = _einsum_terms(view)
    sizes: dict[str, int] = {}
    for labels, position in zip(terms, range(len(terms)), strict=True):
        for label, size in zip(labels, view.input(position), strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    if len(terms) == 1:
        return Work(0, prod(sizes.values()))
    work, left = Work(), terms[0]
    for position, labels in enumerate(terms[1:], start=1):
        both = dict.fromkeys((*left, *labels))
        later = {label for term in terms[position + 1 :] for label in term} | set(output)
        kept = tuple(label for label in both if label in later)
        cost = prod(sizes[label] for label in both)
        work += Work(cost) if len(kept) < len(both) else Work(0, cost)
        left = kept
    return work


def _einsum_terms(view: View) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Return the labels of every input and of the output; an ellipsis' axes are numbers from behind."""
    equation = view.node.text("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    texts = left.split(",")
    letters = left.replace(",", "").replace("...", "")
    if len(texts) != len(view.node.inputs) or (letters and not letters.isalpha()):
        raise UnknownShapeError
    terms = []
    for position, text in enumerate(texts):
        num_hidden = len(view.input(position)) - len(text.replace("...", ""))
        if num_hidden < 0 or (num_hidden and "..." not in text) or text.count(".") not in (0, 3):
            raise UnknownShapeError
        hidden = tuple(str(-axis) for axis in range(num_hidden, 0, -1))
        before, _, after = text.partition("...")
        terms.append((*before, *(hidden if "..." in text else ()), *after))
    every = [label for term in terms for label in term]
    if arrow:
        most = tuple(dict.fromkeys(label for label in every if label.startswith("-")))
        return terms, (*right.replace("...", ""), *(most if "..." in right else ()))
    return terms, tuple(label for label in dict.fromkeys(every) if label.startswith("-") or every.count(label) == 1)


def _recurrent(num_gates: int, flop_per_state: int) -> Rule:
    """Every step multiplies its input and the last state by all gates' matrices, in every direction."""

    def rule(view: View) -> Work:
        x, weight, recurrence = view.input(0, rank=3), view.input(1, rank=3), view.input(2, rank=3)
        num_steps = x[0] * x[1]  # of all samples, whichever comes first
        if weight[1] != num_gates * recurrence[2]:
            raise UnknownShapeError
        states = num_steps * weight[0] * recurrence[2]
        return Work(num_steps * (prod(weight) + prod(recurrence)), states * flop_per_state)

    return rule


# -- attention -------------------------------------------------------------------------------------------------------

_SOFTMAX_FLOP = 6  # a score: its scale, and five of the softmax


def _attend(num_samples: int, heads: tuple[int, int, int], num_queries: int, num_keys: int, *, causal: bool) -> Work:
    """Return the work of one attention; ``heads``: how many, and the widths of a head's key and value."""
    num_heads, key_size, value_size = heads
    pairs = num_queries * num_keys
    if causal:
        if num_keys < num_queries:
            raise UnknownShapeError
        pairs -= num_queries * (num_queries - 1) // 2
    pairs *= num_samples * num_heads
    return Work(pairs * (key_size + value_size), pairs * _SOFTMAX_FLOP)


def _standard_attention(view: View) -> Work:
    """``Attention`` of ONNX itself: states of three axes, with the heads side by side, or four."""
    query, key, value = view.input(0), view.input(1), view.input(2)
    past = view.input(4, rank=4)[2] if view.has(4) else 0
    num_heads, num_kv_heads = view.node.integer("q_num_heads"), view.node.integer("kv_num_heads")
    causal = bool(view.node.integer("is_causal"))
    if len(query) == 4 and len(key) == 4 and len(value) == 4:
        heads = (query[1], query[3], value[3])
        return _attend(query[0], heads, query[2], key[2] + past, causal=causal)
    if len(query) == 3 and len(value) == 3 and num_heads > 0 and num_kv_heads > 0:
        heads = (num_heads, query[2] // num_heads, value[2] // num_kv_heads)
        return _attend(query[0], heads, query[1], key[1] + past, causal=causal)
    raise UnknownShapeError


def _packed_attention(bias_at: int, past_at: int) -> Rule:
    """``Attention`` of com.microsoft: it multiplies its input by the matrix of queries, keys and values first."""

    def rule(view: View) -> Work:
        num_samples, num_queries, width = view.input(0, rank=3)
        columns = view.input(1, rank=2)[1]
        num_heads = view.node.integer("num_heads")
        sizes = view.node.integers("qkv_hidden_sizes") or (columns // 3,) * 3
        if num_heads < 1 or len(sizes) != 3:
            raise UnknownShapeError
        past = view.input(past_at, rank=5)[3] if view.has(past_at) else 0
        projected = num_samples * num_queries * columns
        heads = (num_heads, sizes[0] // num_heads, sizes[2] // num_heads)
        causal = bool(view.node.integer("unidirectional"))
        return Work(projected * width, projected if view.has(bias_at) else 0) + _attend(
            num_samples, heads, num_queries, num_queries + past, causal=causal
        )

    return rule


def _multi_head_attention(view: View) -> Work:
    """``MultiHeadAttention``: queries, keys and values apart, or packed along a fourth or fifth axis."""
    query, num_heads = view.input(0), view.node.integer("num_heads")
    if num_heads < 1 or len(query) not in (3, 5):
        raise UnknownShapeError
    num_keys, key_size = query[1], query[4] if len(query) == 5 else query[2] // num_heads
    value_size = key_size
    if view.has(1):
        key = view.input(1)
        num_keys = key[2] if len(key) == 4 else key[1]
    if view.has(2):
        value = view.input(2)
        value_size = value[3] if len(value) == 4 else value[-1] // num_heads
    if view.has(6):
        num_keys += view.input(6, rank=4)[2]
    causal = bool(view.node.integer("unidirectional"))
    return _attend(query[0], (num_heads, key_size, value_size), query[1], num_keys, causal=causal)


def _grouped_attention(view: View) -> Work:
    """``GroupQueryAttention``, which is causal; without keys the queries hold all three."""
    num_samples, num_queries, width = view.input(0, rank=3)
    num_heads, num_kv_heads = view.node.integer("num_heads"), view.node.integer("kv_num_heads")
    if num_heads < 1 or num_kv_heads < 1:
        raise UnknownShapeError
    size = width // (num_heads if view.has(1) else num_heads + 2 * num_kv_heads)
    num_keys = num_queries + (view.input(3, rank=4)[2] if view.has(3) else 0)
    return _attend(num_samples, (num_heads, size, size), num_queries, num_keys, causal=True)


# -- element by element ----------------------------------------------------------------------------------------------

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
_FREE = frozenset({
    "BitmaskDropout", "Cast", "CastLike", "CenterCropPad", "Col2Im", "Compress", "Concat", "ConcatFromSequence",
    "Constant", "ConstantOfShape", "DepthToSpace", "Dropout", "Expand", "EyeLike", "Flatten", "Gather",
    "GatherElements", "GatherND", "Identity", "MaxUnpool", "NonZero", "OneHot", "Optional", "OptionalGetElement",
    "OptionalHasElement", "Pad", "Range", "Reshape", "ReverseSequence", "Scatter", "ScatterElements", "ScatterND",
    "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "Shape",
    "Size", "Slice", "SpaceToDepth", "Split", "SplitToSequence", "Squeeze", "TensorScatter", "Tile", "Transpose",
    "Trilu", "Unsqueeze",
})  # fmt: skip


def _per_output(flop: int) -> Rule:
    return lambda view: Work(0, flop * view.num_outputs())


def _per_input(flop: int) -> Rule:
    return lambda view: Work(0, flop * prod(view.input()))


def _of_many(view: View) -> Work:
    """Sum, mean, largest and smallest of several tensors."""
    return Work(0, (len(view.node.inputs) - 1 + (view.node.op_type == "Mean")) * view.num_outputs())


def _pool(view: View) -> Work:
    """Every output reads a window."""
    return Work(0, view.num_outputs() * max(1, prod(view.node.integers("kernel_shape"))))


def _local_response(view: View) -> Work:
    """The squares of ``size`` channels and their sum, then a scale, an addend, a power and a division."""
    return Work(0, (2 * view.node.integer("size", 1) + 3) * view.num_outputs())


def _resize(view: View) -> Work:
    """Nearest neighbours are copied; linear and cubic sums take 2 or 4 of them along every axis that changes."""
    mode = view.node.text("mode", "nearest")
    taps = {"linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}.get(mode, 0)
    changed = sum(one != two for one, two in zip(view.input(), view.output(), strict=False))
    return Work(0, 2 * taps**changed * view.num_outputs() if taps and changed else 0)


def _sampled(view: View) -> Work:
    """A grid of places, each a weighted sum of 4 or 16 neighbours; a region of interest takes 4 a place."""
    taps = 16 if "cubic" in view.node.text("mode") else 4
    return Work(0, 2 * taps * view.num_outputs())


# -- all rules -------------------------------------------------------------------------------------------------------

# FLOP of one state beside the products: both biases and the sum of the products (3 a gate), activations and the cell.
_RULES: Mapping[str, Rule] = {
    **{name: _per_output(flop) for name, flop in _PER_OUTPUT.items()},
    **{name: _per_input(flop) for name, flop in _PER_INPUT.items()},
    **dict.fromkeys(_FREE, lambda _: Work()),
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), _of_many),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool", "QLinearAveragePool"), _pool),
    **dict.fromkeys(("GridSample", "MaxRoiPool", "RoiAlign"), _sampled),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("DynamicQuantizeMatMul", "FusedMatMul", "MatMul", "MatMulInteger"), _matmul),
    **dict.fromkeys(("MatMulIntegerToFloat", "QLinearMatMul"), _matmul),
    **dict.fromkeys(("MatMulBnb4", "MatMulNBits"), _packed_matmul),
    "LRN": _local_response,
    "Attention": _standard_attention,
    "GroupQueryAttention": _grouped_attention,
    "MultiHeadAttention": _multi_head_attention,
    "QAttention": _packed_attention(2, 8),
    "Conv": _convolution(1, 2),
    "ConvInteger": _convolution(1, -1),
    "ConvTranspose": _transposed_convolution,
    "DeformConv": _convolution(1, 3),
    "Einsum": _einsum,
    "FusedConv": _convolution(1, 2),
    "FusedGemm": _gemm(1, 2),
    "GRU": _recurrent(3, 3 * 3 + 3 + 5),
    "Gemm": _gemm(1, 2),
    "LSTM": _recurrent(4, 3 * 4 + 5 + 4),
    "QGemm": _gemm(3, 6),
    "QLinearConv": _convolution(3, 8),
    "RNN": _recurrent(1, 3 + 1),
}
# Where it is another operator than ONNX's own of the name.
_MICROSOFT_RULES: Mapping[str, Rule] = {"Attention": _packed_attention(2, 4)}


def _rule_of(node: OnnxNode) -> Rule | None:
    """Return the rule of an operator; None where there is none."""
    if node.domain in MICROSOFT:
        return _MICROSOFT_RULES.get(node.op_type) or _RULES.get(node.op_type)
    return None if node.domain else _RULES.get(node.op_type)


def is_counted(node: OnnxNode) -> bool:
    """Whether there is a rule for the operator, or it is known to compute nothing."""
    return _rule_of(node) is not None or node.op_type in _CONTROL


# -- one operator, and the bodies in it --------------------------------------------------------------------------------


@dataclass
class Uncounted:
    """Operators that count no work, or not surely what they do, by name and number."""

    unknown: Counter[str] = field(default_factory=Counter)
    shapeless: Counter[str] = field(default_factory=Counter)
    unsized: Counter[str] = field(default_factory=Counter)
    bodies: Counter[str] = field(default_factory=Counter)

    def warnings(self) -> list[str]:
        """Return what to tell."""
        found = []
        for counter, one, many in (
            (self.unknown, "operator of an unknown kind counts no work", "operators of unknown kinds count no work"),
            (
                self.shapeless,
                "operator whose shapes are not known counts no work",
                "operators whose shapes are not known count no work",
            ),
            (
                self.unsized,
                "operator whose output's size is not known keeps no activations",
                "operators whose outputs' sizes are not known keep no activations",
            ),
        ):
            ordered = sorted(counter.items(), key=lambda pair: (-pair[1], pair[0]))
            listed = ", ".join(f"{name} ({count})" for name, count in ordered[:20])
            more = f" and {len(ordered) - 20} more kinds" if ordered[20:] else ""
            if total := counter.total():
                found.append(f"{total} {one if total == 1 else many}: {listed}{more}.")
        bodies = [f"{what} ({count})." if count > 1 else f"{what}." for what, count in sorted(self.bodies.items())]
        more_bodies = [f"{len(bodies) - 20} more loops and branches are counted so."] if bodies[20:] else []
        return [*found, *bodies[:20], *more_bodies]


def work_of(node: OnnxNode, scope: Scope, uncounted: Uncounted) -> Work:
    """Return the work of one operator; what is not known is noted in ``uncounted``, and counts 0.

    Raises
    ------
    ValueError
        For work beyond all reason.
    """
    if not node.domain and node.op_type in _CONTROL:
        return _control(node, scope, uncounted)
    name = shown(f"{node.domain}.{node.op_type}" if node.domain else node.op_type)
    rule = _rule_of(node)
    if rule is None:
        uncounted.unknown[name] += 1
        return sum((_body(graph, scope, uncounted) for graph in node.graphs), Work())
    try:
        work = rule(View(node, scope))
        if min(work.multiply_adds, work.element_flop) < 0:
            raise UnknownShapeError  # an attribute that is no size
    except (UnknownShapeError, OverflowError, ZeroDivisionError):
        uncounted.shapeless[name] += 1
        return Work()
    return _checked(work, node)


def _checked(work: Work, node: OnnxNode) -> Work:
    """Refuse work beyond all reason."""
    if work.multiply_adds > _MOST_WORK or work.element_flop > _MOST_WORK:
        raise ValueError(f"operator {node.name or node.op_type!r} would take more than {_MOST_WORK:.0e} operations")
    return work


def _control(node: OnnxNode, scope: Scope, uncounted: Uncounted) -> Work:
    """Return the work of a branch, of which the dearer side counts, or of a loop's body as often as it runs."""
    bodies = [_body(graph, scope, uncounted) for graph in node.graphs]
    label = shown(node.name or node.op_type)
    if node.op_type == "If":
        uncounted.bodies[f"Of the branch {label!r} the side with more work is counted"] += 1
        return max(bodies, key=lambda work: (work.multiply_adds, work.element_flop), default=Work())
    trips = _trips(node, scope)
    if trips is None:
        uncounted.bodies[f"It is not known how often the loop {label!r} runs: its body is counted once"] += 1
        trips = 1
    else:
        uncounted.bodies[f"The body of the loop {label!r} is counted {trips} times"] += 1
    once = sum(bodies, Work())
    return _checked(Work(trips * once.multiply_adds, trips * once.element_flop), node)


def _trips(node: OnnxNode, scope: Scope) -> int | None:
    """Return how often a loop runs; None where it is not known."""
    if node.op_type == "Loop":
        values = scope.values_of(node.inputs[0]) if node.inputs and node.inputs[0] else None
        if values is None or values.size != 1 or values.dtype.kind not in "iu":
            return None
        count = int(values.ravel()[0])
        return count if 0 <= count <= _MOST_TRIPS else None
    num_scanned = node.integer("num_scan_inputs")
    if not 1 <= num_scanned <= len(node.inputs):
        return None
    axes = node.integers("scan_input_axes") or (0,)
    try:
        return View(node, scope).input(len(node.inputs) - num_scanned)[axes[0]]
    except (UnknownShapeError, IndexError):
        return None


def _body(graph: OnnxGraph, parent: Scope, uncounted: Uncounted) -> Work:
    scope = Scope(graph, parent)
    return sum((work_of(node, scope, uncounted) for node in graph.nodes if not scope.is_folded(node)), Work())
