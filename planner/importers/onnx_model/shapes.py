"""Shapes of all values of an ONNX graph, by the library's inference, and the graph in plain terms.

The inference stops where a shape is computed by operators that it does not follow (``Where``, ``Equal``, ``Range`` and
the like, as exporters write them). Such small whole numbers are computed here, put into the graph as constants, and the
inference is run again. Operators of ``com.microsoft`` are unknown to it: others with the same output shapes stand in.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.importers.onnx_model.file import onnx_module, refuse, values_of
from planner.importers.onnx_model.fold import fold
from planner.importers.onnx_model.plain import Attribute, OnnxGraph, OnnxNode, OnnxTensor, Shape, known
from planner.importers.onnx_model.stand_ins import with_stand_ins

__all__ = ["plain_graph"]

_MOST_ROUNDS = 12


def plain_graph(model: Any, path: Path) -> OnnxGraph:
    """Return the graph of ``model`` in plain terms, with all shapes that can be found.

    Raises
    ------
    SpecError
        If the graph contradicts itself, as far as the inference notices.
    """
    inferred = _inferred(with_stand_ins(model), path)
    shapes = dict(_shapes(inferred.graph))
    bodies = {id_: dict(_shapes(body)) for id_, body in _bodies(inferred.graph, ())}
    return _plain(model.graph, shapes, bodies, ())


def _inferred(model: Any, path: Path) -> Any:
    """Return the model after inference, repeated as long as folding finds something new."""
    infer = onnx_module("onnx.shape_inference").infer_shapes
    for _ in range(_MOST_ROUNDS):
        try:
            model = infer(model, check_type=False, strict_mode=False, data_prop=True)
        except Exception as error:  # the library raises whatever its C++ part throws
            problem = f"the shapes of its values cannot be found: {' '.join(str(error).split())[:300]}."
            raise refuse(path, problem, "Export the model again, or check it with onnx.checker.") from None
        if not fold(model.graph, dict(_shapes(model.graph))) + _add_loop_shapes(model.graph):
            break
    return model


def _add_loop_shapes(graph: Any) -> int:
    """Give what a loop carries from step to step the shape that its body gives it; return how many got one.

    The library leaves it open, because it might change from step to step.
    """
    known_names = {name for name, shape in _shapes(graph) if known(shape) is not None}
    count = 0
    for node in graph.node:
        for _, body in _graphs_of(node) if node.op_type == "Loop" and node.domain in ("", "ai.onnx") else ():
            inside = dict(_shapes(body))
            for name, result in zip(node.output[: len(node.input) - 2], list(body.output)[1:], strict=False):
                shape = known(inside.get(result.name))
                if not name or name in known_names or shape is None:
                    continue
                for one in [one for one in (*graph.value_info, *graph.output) if one.name == name] or [
                    graph.value_info.add(name=name)
                ]:
                    one.type.tensor_type.elem_type = result.type.tensor_type.elem_type
                    del one.type.tensor_type.shape.dim[:]
                    for size in shape:
                        one.type.tensor_type.shape.dim.add(dim_value=size)
                known_names.add(name)
                count += 1
    return count


def _shapes(graph: Any) -> Iterator[tuple[str, Shape]]:
    """Yield the shape of every value that has one."""
    for one in (*graph.output, *graph.value_info, *graph.input):
        if one.type.HasField("tensor_type") and one.type.tensor_type.HasField("shape"):
            dims = one.type.tensor_type.shape.dim
            yield one.name, tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)
    for tensor in graph.initializer:
        yield tensor.name, tuple(tensor.dims)


Place = tuple[tuple[str, str], ...]  # the outputs of the nodes, and their attributes, that a body lies in


def _bodies(graph: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    """Yield every body with where it is; nodes are told apart by their first output, which folding keeps."""
    for node in graph.node:
        for name, body in _graphs_of(node):
            inner = (*place, (node.output[0] if node.output else "", name))
            yield inner, body
            yield from _bodies(body, inner)


def _graphs_of(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the bodies of a node by the attribute that holds them."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g


def _plain(graph: Any, shapes: dict[str, Shape], bodies: dict[Place, dict[str, Shape]], place: Place) -> OnnxGraph:
    """Return a graph in plain terms."""
    nodes = []
    for node in graph.node:
        inner = {}
        for name, body in _graphs_of(node):
            at = (*place, (node.output[0] if node.output else "", name))
            inner[name] = _plain(body, bodies.get(at, {}), bodies, at)
        nodes.append(
            OnnxNode(
                op_type=node.op_type,
                domain="" if node.domain == "ai.onnx" else node.domain,
                name=node.name,
                inputs=tuple(node.input),
                outputs=tuple(node.output),
                attributes={**dict(_attributes(node)), **inner},
            )
        )
    tensors = [_tensor(tensor, tensor.name) for tensor in graph.initializer]
    tensors += [_sparse(tensor) for tensor in graph.sparse_initializer]
    return OnnxGraph(
        inputs=tuple(one.name for one in graph.input),
        outputs=tuple(one.name for one in graph.output),
        nodes=tuple(nodes),
        tensors={tensor.name: tensor for tensor in tensors},
        shapes={**shapes, **{tensor.name: tensor.dims for tensor in tensors}},
    )


def _attributes(node: Any) -> Iterator[tuple[str, Attribute]]:
    """Yield the attributes that are numbers, texts and tensors."""
    for one in node.attribute:
        kinds = type(one)
        if one.type == kinds.INT:
            yield one.name, int(one.i)
        elif one.type == kinds.FLOAT:
            yield one.name, float(one.f)
        elif one.type == kinds.STRING:
            yield one.name, one.s.decode("utf-8", "replace")
        elif one.type == kinds.INTS:
            yield one.name, tuple(one.ints)
        elif one.type == kinds.FLOATS:
            yield one.name, tuple(one.floats)
        elif one.type == kinds.STRINGS:
            yield one.name, tuple(text.decode("utf-8", "replace") for text in one.strings)
        elif one.type == kinds.TENSOR:
            yield one.name, _tensor(one.t, one.t.name)


def _tensor(tensor: Any, name: str) -> OnnxTensor:
    """Return a tensor; the values of a small one are read where they are in the file and whole."""
    dims, dtype = tuple(tensor.dims), _type_name(tensor.data_type)
    return OnnxTensor(name=name, dims=dims, dtype=dtype, values=values_of(tensor))


def _sparse(tensor: Any) -> OnnxTensor:
    """Return a sparse tensor by what is stored of it."""
    return OnnxTensor(name=tensor.values.name, dims=tuple(tensor.dims), dtype=_type_name(tensor.values.data_type))


def _type_name(data_type: int) -> str:
    """Return the name of a type of elements."""
    try:
        return str(onnx_module().TensorProto.DataType.Name(data_type))
    except ValueError:
        return "UNDEFINED"
