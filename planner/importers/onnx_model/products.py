"""Multiply-adds of the ONNX operators that are sums of products, of the whole batch.

One multiply-add for each pair that the definition multiplies, padding included, as all published totals count it.
Definitions: onnx/onnx, docs/Operators.md; microsoft/onnxruntime, docs/ContribOperators.md.
"""

from collections.abc import Callable, Mapping
from math import prod

from planner.importers.onnx_model.attention import ATTENTION
from planner.importers.onnx_model.plain import known
from planner.importers.onnx_model.view import UnknownShapeError, View, Work

__all__ = ["PRODUCTS"]

Rule = Callable[[View], Work]


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
            _check_sums(view, view.input()[1], weight[1] * view.integer("group", 1))
        return Work(num_outputs * prod(weight[1:]), num_outputs if view.has(bias_at) else 0)

    return rule


def _transposed_convolution(view: View) -> Work:
    """Every input writes one filter: ``M / groups`` channels times the kernel."""
    weight = view.input(1)
    if len(weight) < 3:
        raise UnknownShapeError
    return Work(view.num_inputs() * prod(weight[1:]), view.num_outputs() if view.has(2) else 0)


def _gemm(second_at: int, bias_at: int) -> Rule:
    """``M x K`` by ``K x N``, either transposed."""

    def rule(view: View) -> Work:
        first, second = view.input(0, rank=2), view.input(second_at, rank=2)
        rows, inner = first[::-1] if view.integer("transA") else first
        columns, column = second if view.integer("transB") else second[::-1]
        _check_sums(view, inner, column)
        return Work(rows * inner * columns, rows * columns if view.has(bias_at) else 0)

    return rule


def _matmul(view: View) -> Work:
    """Every output is a sum over the last axis of the first input; leading axes are broadcast in the output."""
    first = view.input(0)
    if not first:
        raise UnknownShapeError
    second = known(view.shape_of(view.node.inputs[1])) if view.has(1) else None
    if view.node.op_type == "MatMul" and second:
        _check_sums(view, first[-1], second[-2] if len(second) > 1 else second[0])
    inner = first[-2] if view.integer("transA") and len(first) > 1 else first[-1]
    return Work(view.num_outputs() * inner)


def _packed_matmul(view: View) -> Work:
    """As above; the weight is stored in groups of few bits, its sizes are the attributes ``K`` and ``N``."""
    return Work(view.num_outputs() * view.integer("K"))


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
    equation = view.text("equation").replace(" ", "")
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


# FLOP of one state beside the products: both biases and the sum of the products (3 a gate), activations and the cell.
PRODUCTS: Mapping[str, Rule] = {
    **ATTENTION,
    "Conv": _convolution(1, 2),
    "ConvInteger": _convolution(1, -1),
    "ConvTranspose": _transposed_convolution,
    "DeformConv": _convolution(1, 3),
    "DynamicQuantizeMatMul": _matmul,
    "Einsum": _einsum,
    "FusedConv": _convolution(1, 2),
    "FusedGemm": _gemm(1, 2),
    "FusedMatMul": _matmul,
    "GRU": _recurrent(3, 3 * 3 + 3 + 5),
    "Gemm": _gemm(1, 2),
    "LSTM": _recurrent(4, 3 * 4 + 5 + 4),
    "MatMul": _matmul,
    "MatMulBnb4": _packed_matmul,
    "MatMulInteger": _matmul,
    "MatMulIntegerToFloat": _matmul,
    "MatMulNBits": _packed_matmul,
    "QGemm": _gemm(3, 6),
    "QLinearConv": _convolution(3, 8),
    "QLinearMatMul": _matmul,
    "RNN": _recurrent(1, 3 + 1),
}
