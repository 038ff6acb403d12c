"""Shapes of all values of an ONNX graph, by the library's inference, and the graph in plain terms.

The inference stops where a shape is computed by operators that it does not follow (``Where``, ``Equal``, ``Range`` and
the like, as exporters write them). Such small whole numbers are computed by the library's reference implementation, put
into the graph as constants, and the inference is run again. Operators of ``com.microsoft`` are unknown to it: others
with the same output shapes stand in, for shapes only. Names and inputs of those: microsoft/onnxruntime,
docs/ContribOperators.md.

Compared with it, on the models of the ``onnx`` package, exports of torch and transformers, and the graphs of the tests:
``onnxruntime``'s symbolic inference finds no more shapes, refuses a fifth of the graphs, takes five times as long and
brings 160 MB; ``onnxscript``'s folding of constants finds fewer, and takes ten times as long.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from planner.importers.onnx_model.file import MOST_VALUES, bodies_of, onnx_module, values_of
from planner.importers.onnx_model.graph import OnnxGraph, OnnxNode, OnnxTensor, Shape, known
from planner.importers.text import refuse

if TYPE_CHECKING:
    import onnx

MICROSOFT = ("com.microsoft", "com.ms.internal.nhwc")
_ONNX = ("", "ai.onnx")
_MOST_ROUNDS = 12

Values = NDArray[Any]
Place = tuple[tuple[str, str], ...]  # the outputs of the nodes, and their attributes, that a body lies in


def plain_graph(model: "onnx.ModelProto", path: Path) -> OnnxGraph:
    """Return the graph of ``model`` in plain terms, with all shapes that can be found.

    Parameters
    ----------
    model
        An ``onnx.ModelProto`` whose inputs have sizes (see :func:`planner.importers.onnx_model.file.set_sizes`).

    Raises
    ------
    SpecError
        If the graph contradicts itself, as far as the inference notices.
    """
    inferred = _with_stand_ins(model)
    infer = onnx_module("onnx.shape_inference").infer_shapes
    for _ in range(_MOST_ROUNDS):
        try:
            inferred = infer(inferred, check_type=False, strict_mode=False, data_prop=True)
        except Exception as error:  # the library raises whatever its C++ part throws
            problem = f"the shapes of its values cannot be found: {' '.join(str(error).split())[:300]}."
            raise refuse(path, problem, "Export the model again, or check it with onnx.checker.") from None
        if not _fold(inferred) + _add_loop_shapes(inferred.graph):
            break
    bodies: dict[Place, dict[str, Shape]] = {(): _shapes(inferred.graph)}
    bodies.update((place, _shapes(body)) for place, body in _bodies(inferred.graph, ()))
    return _plain(model.graph, bodies, ())


def _shapes(graph: Any) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for one in (*graph.output, *graph.value_info, *graph.input):
        if one.type.HasField("tensor_type") and one.type.tensor_type.HasField("shape"):
            dims = one.type.tensor_type.shape.dim
            shapes[one.name] = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)
    shapes.update((tensor.name, tuple(tensor.dims)) for tensor in graph.initializer)
    return shapes


def _add_loop_shapes(graph: Any) -> int:
    """Give what a loop carries from step to step the shape that its body gives it; return how many got one.

    The library leaves it open, because it might change from step to step.
    """
    known_names = {name for name, shape in _shapes(graph).items() if known(shape) is not None}
    count = 0
    for node in graph.node:
        for _, body in _named_bodies(node) if node.op_type == "Loop" and node.domain in _ONNX else ():
            inside = _shapes(body)
            for name, result in zip(node.output[: len(node.input) - 2], list(body.output)[1:], strict=False):
                shape = known(inside.get(result.name))
                if not name or name in known_names or shape is None:
                    continue
                there = [one for one in (*graph.value_info, *graph.output) if one.name == name]
                for one in there or [graph.value_info.add(name=name)]:
                    one.type.tensor_type.elem_type = result.type.tensor_type.elem_type
                    del one.type.tensor_type.shape.dim[:]
                    for size in shape:
                        one.type.tensor_type.shape.dim.add(dim_value=size)
                known_names.add(name)
                count += 1
    return count


# -- small whole numbers that shapes are made of -----------------------------------------------------------------------

_KINDS = "iub"  # whole numbers and truth values
_BY_ELEMENT = {
    "Abs", "Add", "And", "Ceil", "Div", "Equal", "Floor", "Greater", "GreaterOrEqual", "Identity", "Less",
    "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Sub", "Where",
}  # fmt: skip
_FOLDED = _BY_ELEMENT | {
    "Cast", "Concat", "ConstantOfShape", "Expand", "Gather", "Range", "ReduceMax", "ReduceMin", "ReduceProd",
    "ReduceSum", "Reshape", "Slice", "Squeeze", "Unsqueeze",
}  # fmt: skip


def _fold(model: Any) -> int:
    """Turn nodes whose outputs are known small whole numbers into constants; return how many.

    Nothing is done where all shapes are known.
    """
    graph, shapes = model.graph, _shapes(model.graph)
    outputs = [name for node in graph.node if node.op_type != "Constant" for name in node.output if name]
    if all(known(shapes.get(name)) is not None for name in outputs):
        return 0
    opset = next((one.version for one in model.opset_import if one.domain in _ONNX), 1)
    stored = ((tensor.name, values_of(tensor)) for tensor in graph.initializer)
    values: dict[str, Values] = {name: found for name, found in stored if found is not None and _matters(found)}
    count = 0
    for node in graph.node:
        is_constant = node.op_type == "Constant"
        found = _constant(node) if is_constant else _value(node, values, shapes, opset)
        if found is None or not node.output or not _matters(found):
            continue
        if not is_constant and len(node.output) == 1:
            attribute = onnx_module("onnx.helper").make_attribute(
                "value", onnx_module("onnx.numpy_helper").from_array(found)
            )
            node.op_type, node.domain = "Constant", ""
            del node.input[:]
            del node.attribute[:]
            node.attribute.append(attribute)
            count += 1
        if len(node.output) == 1:
            values[node.output[0]] = found
    return count


def _matters(found: Values) -> bool:
    """Whether shapes may be made of these numbers: whole ones, and single broken ones."""
    return found.dtype.kind in _KINDS or (found.dtype.kind == "f" and found.size == 1)


def _constant(node: Any) -> Values | None:
    """Return the value of a ``Constant`` node."""
    for one in node.attribute:
        if one.name == "value":
            return values_of(one.t)
        if one.name in ("value_int", "value_ints"):
            return np.array(one.i if one.name == "value_int" else list(one.ints), dtype=np.int64)
        if one.name == "value_float":
            return np.array(one.f, dtype=np.float32)
    return None


def _value(node: Any, values: dict[str, Values], shapes: dict[str, Shape], opset: int) -> Values | None:
    """Return the output of a node, where it is small whole numbers that follow from what is known."""
    if node.domain not in _ONNX:
        return None
    if node.op_type in ("Shape", "Size"):
        shape = known(shapes.get(node.input[0])) if node.input else None
        if shape is None:
            return None
        if node.op_type == "Size":
            return np.array(int(np.prod(shape, dtype=np.float64)), dtype=np.int64)
        ends = {one.name: one.i for one in node.attribute}
        return np.array(shape[ends.get("start", 0) : ends.get("end")], dtype=np.int64)
    names = [name for name in node.input if name]
    if node.op_type not in _FOLDED or any(name not in values for name in names):
        return None
    try:
        with np.errstate(all="ignore"):
            if _num_results(node.op_type, [values[name] for name in names]) > MOST_VALUES:
                return None
            onnx = onnx_module()
            alone = onnx.GraphProto(name="alone", node=[node])
            alone.node[0].domain = ""
            alone.input.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names))
            alone.output.extend(onnx.ValueInfoProto(name=name) for name in node.output)
            evaluator = onnx_module("onnx.reference").ReferenceEvaluator(alone, opsets={"": opset})
            found = np.asarray(evaluator.run(None, {name: values[name] for name in names})[0])
    except Exception:  # the graph contradicts itself here; the inference says so, or the shape stays unknown
        return None
    return found if found.dtype.kind in _KINDS and found.size <= MOST_VALUES else None


def _num_results(op_type: str, inputs: list[Values]) -> float:
    """Return how many numbers an operator puts out, before it does; 0 where they are few because its inputs are."""
    shape: tuple[int, ...] = ()
    if op_type == "Range":
        start, limit, step = (float(np.ravel(one)[0]) for one in inputs)
        return abs((limit - start) / step)
    if op_type in ("ConstantOfShape", "Expand"):
        shape = tuple(int(size) for size in np.ravel(inputs[-1]))
    if op_type == "Expand":
        shape = np.broadcast_shapes(inputs[0].shape, shape)
    elif op_type in _BY_ELEMENT:
        shape = np.broadcast_shapes(*(one.shape for one in inputs))
    return float(np.prod([float(size) for size in shape])) if shape else 0


# -- stand-ins for operators of onnxruntime ----------------------------------------------------------------------------

_LIKE_FIRST = {
    "BiasAdd", "BiasDropout", "BiasGelu", "BiasSoftmax", "BiasSplitGelu", "BitmaskDropout", "FastGelu", "Gelu",
    "GroupNorm", "MultiHeadAttention", "DecoderMaskedMultiHeadAttention", "QLinearLeakyRelu", "QLinearSigmoid",
    "QLinearSoftmax", "QuickGelu", "RotaryEmbedding", "SimplifiedLayerNormalization", "SkipGroupNorm",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
}  # fmt: skip
# The operator of ONNX, which inputs it gets, and which attributes.
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


def _with_stand_ins(model: Any) -> Any:
    """Return a copy of the model in which other operators stand for those of ``com.microsoft``."""
    copy = type(model)()
    copy.CopyFrom(model)
    domains = {node.domain for node in _all_nodes(copy.graph)} - {one.domain for one in copy.opset_import}
    for domain in sorted(domains - set(_ONNX)):
        copy.opset_import.add(domain=domain, version=1)  # else the inference stops at the first operator of it
    dims: dict[str, Shape] = {tensor.name: tuple(tensor.dims) for tensor in copy.graph.initializer}
    nodes = []
    for node in copy.graph.node:
        # onnxruntime registers one of its operators under ONNX's domain.
        is_foreign = node.domain in MICROSOFT or (not node.domain and node.op_type == "SimplifiedLayerNormalization")
        nodes += _stand_ins(node, dims, copy.graph) if is_foreign and node.input and node.output else [node]
    kept = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del copy.graph.node[:]
    copy.graph.node.extend(kept)
    return copy


def _all_nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for body in bodies_of(node):
            yield from _all_nodes(body)


def _stand_ins(node: Any, dims: dict[str, Shape], graph: Any) -> list[Any]:
    """Return the nodes that stand for one; itself where there is no rule."""
    make = onnx_module("onnx.helper").make_node
    op_type, inputs, outputs = node.op_type, list(node.input), list(node.output)
    attributes = {one.name: one for one in node.attribute}
    if op_type in _LIKE_FIRST or (op_type == "GroupQueryAttention" and len(inputs) > 1 and inputs[1]):
        found = [make("Identity", inputs[:1], outputs[:1])]
        if op_type.startswith("Skip") and len(outputs) > _SUM_OF_SKIP and outputs[_SUM_OF_SKIP]:
            found.append(make("Identity", inputs[:1], [outputs[_SUM_OF_SKIP]]))
        return found
    if op_type in _RENAMED:
        new, wanted, kept = _RENAMED[op_type]
        stand_in = make(new, [inputs[at] for at in wanted if at < len(inputs)], outputs[:1])
        stand_in.attribute.extend(one for one in node.attribute if one.name in kept)
        return [stand_in]
    if op_type == "FusedMatMul":  # either side may be transposed
        one = "...ki" if "transA" in attributes and attributes["transA"].i else "...ik"
        two = "...jk" if "transB" in attributes and attributes["transB"].i else "...kj"
        # The inference takes an ellipsis only where both have as many axes behind it.
        if len(inputs) > 1 and len(dims.get(inputs[1]) or ()) == 2:
            two = two.removeprefix("...")
        return [make("Einsum", inputs[:2], outputs[:1], equation=f"{one},{two}->...ij")]
    sizes = _matrix(op_type, attributes, [dims.get(name) for name in inputs])
    if sizes is None or min(sizes) < 1:
        return [node]
    weight = onnx_module().TensorProto(name=f"{outputs[0]}.stand_in", dims=sizes, data_type=1)
    graph.initializer.append(weight)
    # Only the width of the output matters; the sum over i and j takes any width of the input.
    return [make("Einsum", [inputs[0], weight.name], outputs[:1], equation="...i,jk->...k")]


def _matrix(op_type: str, attributes: dict[str, Any], dims: list[Shape | None]) -> tuple[int, int] | None:
    """Return the sizes of a matrix that takes the input of an operator to its output; None where they are not known."""
    if op_type in ("Attention", "QAttention"):  # the width of the values
        weight = dims[1] if len(dims) > 1 else None
        if weight is None or len(weight) != 2:
            return None
        sizes = tuple(attributes["qkv_hidden_sizes"].ints) if "qkv_hidden_sizes" in attributes else ()
        return 1, int(sizes[2]) if len(sizes) == 3 else (weight[1] or 0) // 3
    if op_type == "GroupQueryAttention":  # packed; the table of cosines has half of a head's width
        table = dims[7] if len(dims) > 7 else None
        if table is None or len(table) != 2 or table[1] is None or "num_heads" not in attributes:
            return None
        return 1, 2 * table[1] * attributes["num_heads"].i
    if op_type in ("MatMulNBits", "MatMulBnb4") and "K" in attributes and "N" in attributes:
        return attributes["K"].i, attributes["N"].i  # the weight is stored in groups of few bits
    return None


# -- plain terms -----------------------------------------------------------------------------------------------------


def _named_bodies(node: Any) -> list[tuple[str, Any]]:
    return [(attribute.name, attribute.g) for attribute in node.attribute if attribute.HasField("g")]


def _place(node: Any, name: str, outer: Place) -> Place:
    """Return where a body is; nodes are told apart by their first output, which folding keeps."""
    return (*outer, (node.output[0] if node.output else "", name))


def _bodies(graph: Any, outer: Place) -> Iterator[tuple[Place, Any]]:
    """Yield every body with where it is."""
    for node in graph.node:
        for name, body in _named_bodies(node):
            place = _place(node, name, outer)
            yield place, body
            yield from _bodies(body, place)


def _plain(graph: Any, shapes: dict[Place, dict[str, Shape]], place: Place) -> OnnxGraph:
    nodes = []
    for node in graph.node:
        inner = {name: _plain(body, shapes, _place(node, name, place)) for name, body in _named_bodies(node)}
        nodes.append(
            OnnxNode(
                op_type=node.op_type,
                domain="" if node.domain == "ai.onnx" else node.domain,
                name=node.name,
                inputs=tuple(node.input),
                outputs=tuple(node.output),
                attributes={**_attributes(node), **inner},
            )
        )
    tensors = {tensor.name: _tensor(tensor) for tensor in graph.initializer}
    for sparse in graph.sparse_initializer:  # what is stored of it
        name, dtype = sparse.values.name, _type_name(sparse.values.data_type)
        tensors[name] = OnnxTensor(name=name, dims=tuple(sparse.dims), dtype=dtype)
    return OnnxGraph(
        inputs=tuple(one.name for one in graph.input),
        outputs=tuple(one.name for one in graph.output),
        nodes=tuple(nodes),
        tensors=tensors,
        shapes={**shapes.get(place, {}), **{name: tensor.dims for name, tensor in tensors.items()}},
    )


def _attributes(node: Any) -> dict[str, int | float | str | tuple[object, ...] | OnnxTensor]:
    """Return the attributes that are numbers, texts and tensors."""
    found: dict[str, int | float | str | tuple[object, ...] | OnnxTensor] = {}
    for one in node.attribute:
        kinds = type(one)
        if one.type == kinds.INT:
            found[one.name] = int(one.i)
        elif one.type == kinds.FLOAT:
            found[one.name] = float(one.f)
        elif one.type == kinds.STRING:
            found[one.name] = one.s.decode("utf-8", "replace")
        elif one.type in (kinds.INTS, kinds.FLOATS):
            found[one.name] = tuple(one.ints if one.type == kinds.INTS else one.floats)
        elif one.type == kinds.TENSOR:
            found[one.name] = _tensor(one.t)
    return found


def _tensor(tensor: Any) -> OnnxTensor:
    """Return a tensor; the values of a small one are read where they are in the file and whole."""
    dtype = _type_name(tensor.data_type)
    return OnnxTensor(name=tensor.name, dims=tuple(tensor.dims), dtype=dtype, values=values_of(tensor))


def _type_name(data_type: int) -> str:
    try:
        return str(onnx_module().TensorProto.DataType.Name(data_type))
    except ValueError:
        return "UNDEFINED"
