"""Operators that the inference of shapes knows, in the place of those of ``com.microsoft``: same output shapes.

For shapes only: nothing is counted from the copy. Names and inputs of the operators: microsoft/onnxruntime,
docs/ContribOperators.md.
"""

from collections.abc import Callable, Iterator
from typing import Any

from planner.importers.onnx_model.file import onnx_module
from planner.importers.onnx_model.plain import Shape

__all__ = ["MICROSOFT", "with_stand_ins"]

MICROSOFT = ("com.microsoft", "com.ms.internal.nhwc")
_LIKE_FIRST = {
    "BiasAdd", "BiasDropout", "BiasGelu", "BiasSoftmax", "BiasSplitGelu", "BitmaskDropout", "FastGelu", "Gelu",
    "GroupNorm", "MultiHeadAttention", "DecoderMaskedMultiHeadAttention", "QLinearLeakyRelu", "QLinearSigmoid",
    "QLinearSoftmax", "QuickGelu", "RotaryEmbedding", "SimplifiedLayerNormalization", "SkipGroupNorm",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
}  # fmt: skip
_RENAMED = {
    "DynamicQuantizeMatMul": ("MatMul", (0, 1), ()),
    "FusedConv": ("Conv", (0, 1, 2), ("kernel_shape", "strides", "pads", "dilations", "group", "auto_pad")),
    "FusedGemm": ("Gemm", (0, 1, 2), ("transA", "transB")),
    "MatMulIntegerToFloat": ("MatMul", (0, 1), ()),
    "QLinearAdd": ("Add", (0, 3), ()),
    "QLinearMul": ("Mul", (0, 3), ()),
    "EmbedLayerNormalization": ("Gather", (2, 0), ()),
}
_SUM_OF_SKIP = 3  # an output of the Skip... norms: the sum before the norm


def with_stand_ins(model: Any) -> Any:
    """Return a copy of the model in which other operators stand for those of ``com.microsoft``."""
    copy = type(model)()
    copy.CopyFrom(model)
    imported = {one.domain for one in copy.opset_import}
    for domain in sorted({node.domain for node in _nodes(copy.graph)} - imported - {"", "ai.onnx"}):
        copy.opset_import.add(domain=domain, version=1)  # else the inference stops at the first operator of it
    if not any(_is_foreign(node) for node in copy.graph.node):
        return copy
    dims: dict[str, Shape] = {tensor.name: tuple(tensor.dims) for tensor in copy.graph.initializer}
    nodes = []
    for node in copy.graph.node:
        nodes.extend(_stand_ins(node, dims, copy.graph) if _is_foreign(node) else [node])
    kept = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del copy.graph.node[:]
    copy.graph.node.extend(kept)
    return copy


def _is_foreign(node: Any) -> bool:
    """Whether an operator is one of onnxruntime's own; it registers one of them under ONNX's domain."""
    return node.domain in MICROSOFT or (not node.domain and node.op_type == "SimplifiedLayerNormalization")


def _nodes(graph: Any) -> Iterator[Any]:
    """Yield all nodes of a graph and of the bodies in it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _stand_ins(node: Any, dims: dict[str, Shape], graph: Any) -> list[Any]:
    """Return the nodes that stand for one; itself where there is no rule."""
    make = onnx_module("onnx.helper").make_node
    inputs, outputs = list(node.input), list(node.output)
    if not inputs or not outputs:
        return [node]
    if node.op_type in _LIKE_FIRST:
        found = [make("Identity", inputs[:1], outputs[:1])]
        if node.op_type.startswith("Skip") and len(outputs) > _SUM_OF_SKIP and outputs[_SUM_OF_SKIP]:
            found.append(make("Identity", inputs[:1], [outputs[_SUM_OF_SKIP]]))
        return found
    if node.op_type in _RENAMED:
        op_type, wanted, kept = _RENAMED[node.op_type]
        stand_in = make(op_type, [inputs[at] for at in wanted if at < len(inputs)], outputs[:1])
        stand_in.attribute.extend(one for one in node.attribute if one.name in kept)
        return [stand_in]
    if node.op_type == "GroupQueryAttention" and len(inputs) > 1 and inputs[1]:
        return [make("Identity", inputs[:1], outputs[:1])]
    rule = _BY_WIDTH.get(node.op_type)
    attributes = {one.name: one for one in node.attribute}
    sizes = rule(attributes, [dims.get(name) for name in inputs]) if rule else None
    if node.op_type == "FusedMatMul":
        is_matrix = len(inputs) > 1 and len(dims.get(inputs[1]) or ()) == 2
        return [_einsum(make, attributes, inputs, outputs, is_matrix=is_matrix)]
    if sizes is None or min(sizes) < 1:
        return [node]
    weight = onnx_module().TensorProto(name=f"{outputs[0]}.stand_in", dims=sizes, data_type=1)
    graph.initializer.append(weight)
    # Only the width of the output matters; the sum over i and j takes any width of the input.
    return [make("Einsum", [inputs[0], weight.name], outputs[:1], equation="...i,jk->...k")]


def _einsum(
    make: Callable[..., Any], attributes: dict[str, Any], inputs: list[str], outputs: list[str], *, is_matrix: bool
) -> Any:
    """Return a product of matrices of which either may be transposed."""
    one = "...ki" if "transA" in attributes and attributes["transA"].i else "...ik"
    two = "...jk" if "transB" in attributes and attributes["transB"].i else "...kj"
    # The inference takes an ellipsis only where both have as many axes behind it.
    second = two.removeprefix("...") if is_matrix else two
    return make("Einsum", inputs[:2], outputs[:1], equation=f"{one},{second}->...ij")


def _packed(attributes: dict[str, Any], dims: list[Shape | None]) -> tuple[int, int] | None:
    """Return the matrix that takes the input of ``Attention`` to its output: the width of the values."""
    weight = dims[1] if len(dims) > 1 else None
    if weight is None or len(weight) != 2:
        return None
    columns = weight[1] or 0
    sizes = tuple(attributes["qkv_hidden_sizes"].ints) if "qkv_hidden_sizes" in attributes else ()
    return 1, int(sizes[2]) if len(sizes) == 3 else columns // 3


def _grouped(attributes: dict[str, Any], dims: list[Shape | None]) -> tuple[int, int] | None:
    """Return the same for packed queries, keys and values; the table of cosines has half of a head's width."""
    table = dims[7] if len(dims) > 7 else None
    if table is None or len(table) != 2 or table[1] is None or "num_heads" not in attributes:
        return None
    return 1, 2 * table[1] * attributes["num_heads"].i


def _of_attributes(attributes: dict[str, Any], dims: list[Shape | None]) -> tuple[int, int] | None:
    """Return the matrix of a product with a weight in groups of few bits: its sizes are attributes."""
    if "K" not in attributes or "N" not in attributes:
        return None
    return attributes["K"].i, attributes["N"].i


_BY_WIDTH: dict[str, Callable[[dict[str, Any], list[Shape | None]], tuple[int, int] | None]] = {
    "Attention": _packed,
    "QAttention": _packed,
    "GroupQueryAttention": _grouped,
    "MatMulNBits": _of_attributes,
    "MatMulBnb4": _of_attributes,
}
