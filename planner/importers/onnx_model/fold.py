"""Small whole numbers of an ONNX graph that shapes are made of, computed and put in as constants."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.importers.onnx_model.file import MOST_VALUES, onnx_module, values_of
from planner.importers.onnx_model.plain import Shape, known

__all__ = ["fold"]

Values = NDArray[Any]
_KINDS = "iub"  # whole numbers and truth values


def fold(graph: Any, shapes: dict[str, Shape]) -> int:
    """Turn nodes whose outputs are known small whole numbers into constants; return how many.

    Nothing is done where all shapes are known.
    """
    outputs = [name for node in graph.node if node.op_type != "Constant" for name in node.output if name]
    if all(known(shapes.get(name)) is not None for name in outputs):
        return 0
    numpy_helper = onnx_module("onnx.numpy_helper")
    values: dict[str, Values] = {}
    for tensor in graph.initializer:
        _keep(values, tensor.name, values_of(tensor))
    count = 0
    for node in graph.node:
        if node.op_type == "Constant":
            _keep(values, node.output[0] if node.output else "", _constant(node))
            continue
        found = _value(node, values, shapes)
        if found is None or len(node.output) != 1:
            continue
        _keep(values, node.output[0], found)
        attribute = onnx_module("onnx.helper").make_attribute("value", numpy_helper.from_array(found))
        node.op_type, node.domain = "Constant", ""
        del node.input[:]
        del node.attribute[:]
        node.attribute.append(attribute)
        count += 1
    return count


def _keep(values: dict[str, Values], name: str, found: Values | None) -> None:
    """Remember small whole numbers, and single broken ones."""
    if name and found is not None and (found.dtype.kind in _KINDS or (found.dtype.kind == "f" and found.size == 1)):
        values[name] = found


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


def _value(node: Any, values: dict[str, Values], shapes: dict[str, Shape]) -> Values | None:
    """Return the output of a node, where it is small whole numbers that follow from what is known."""
    if node.domain not in ("", "ai.onnx"):
        return None
    attributes = {one.name: one for one in node.attribute}
    if node.op_type in ("Shape", "Size"):
        shape = known(shapes.get(node.input[0])) if node.input else None
        if shape is None:
            return None
        if node.op_type == "Size":
            return np.array(int(np.prod(shape, dtype=np.float64)), dtype=np.int64)
        start = attributes["start"].i if "start" in attributes else 0
        return np.array(shape[start : attributes["end"].i if "end" in attributes else None], dtype=np.int64)
    rule = _RULES.get(node.op_type)
    if rule is None or any(name and name not in values for name in node.input):
        return None
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(rule([values.get(name) for name in node.input], attributes))
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, ZeroDivisionError, OverflowError, MemoryError):
        return None  # the graph contradicts itself here; the inference says so, or the shape stays unknown
    return found if found.dtype.kind in _KINDS and found.size <= MOST_VALUES else None


Inputs = list[Any]
Attributes = dict[str, Any]


def _axes(inputs: Inputs, attributes: Attributes, position: int) -> tuple[int, ...] | None:
    """Return axes, which newer operator sets give as an input and older ones as an attribute."""
    if len(inputs) > position and inputs[position] is not None:
        return tuple(int(axis) for axis in np.ravel(inputs[position]))
    return tuple(attributes["axes"].ints) if "axes" in attributes else None


def _unsqueeze(inputs: Inputs, attributes: Attributes) -> Values:
    axes = _axes(inputs, attributes, 1) or ()
    return np.asarray(np.expand_dims(inputs[0], axes))


def _squeeze(inputs: Inputs, attributes: Attributes) -> Values:
    return np.asarray(np.squeeze(inputs[0], axis=_axes(inputs, attributes, 1)))


def _slice(inputs: Inputs, attributes: Attributes) -> Values:
    data = inputs[0]
    if len(inputs) > 1:
        starts, ends = np.ravel(inputs[1]), np.ravel(inputs[2])
    else:
        starts, ends = np.array(attributes["starts"].ints), np.array(attributes["ends"].ints)
    axes = _axes(inputs, attributes, 3) or tuple(range(len(starts)))
    steps = np.ravel(inputs[4]) if len(inputs) > 4 and inputs[4] is not None else np.ones_like(starts)
    cut = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts.tolist(), ends.tolist(), steps.tolist(), strict=True):
        stop = None if step < 0 and end < -data.shape[axis] else end
        cut[axis] = slice(start, stop, step)
    return np.asarray(data[tuple(cut)])


def _gather(inputs: Inputs, attributes: Attributes) -> Values:
    return np.asarray(np.take(inputs[0], inputs[1], axis=attributes["axis"].i if "axis" in attributes else 0))


def _concat(inputs: Inputs, attributes: Attributes) -> Values:
    return np.concatenate(inputs, axis=attributes["axis"].i)


def _reshape(inputs: Inputs, attributes: Attributes) -> Values:
    return np.reshape(inputs[0], tuple(int(size) for size in inputs[1]))


def _range(inputs: Inputs, attributes: Attributes) -> Values:
    start, limit, step = (np.ravel(one)[0] for one in inputs)
    if abs(limit - start) > MOST_VALUES * abs(step):
        raise ValueError("too long")
    return np.arange(start, limit, step)


def _filled(inputs: Inputs, attributes: Attributes) -> Values:
    shape = tuple(int(size) for size in np.ravel(inputs[0]))
    value = values_of(attributes["value"].t) if "value" in attributes else np.zeros(1, dtype=np.float32)
    if value is None or np.prod([float(size) for size in shape]) > MOST_VALUES:
        raise ValueError("too large")
    return np.full(shape, np.ravel(value)[0], dtype=value.dtype)


def _expand(inputs: Inputs, attributes: Attributes) -> Values:
    shape = np.broadcast_shapes(inputs[0].shape, tuple(int(size) for size in inputs[1]))
    if np.prod([float(size) for size in shape]) > MOST_VALUES:
        raise ValueError("too large")
    return np.broadcast_to(inputs[0], shape)


def _cast(inputs: Inputs, attributes: Attributes) -> Values:
    return np.asarray(inputs[0]).astype(onnx_module("onnx.helper").tensor_dtype_to_np_dtype(attributes["to"].i))


def _check_broadcast(inputs: Inputs) -> None:
    """Refuse inputs that are small each and would be large together."""
    if np.prod([float(size) for size in np.broadcast_shapes(*(np.shape(one) for one in inputs))]) > MOST_VALUES:
        raise ValueError("too large")


def _divide(inputs: Inputs, attributes: Attributes) -> Values:
    _check_broadcast(inputs)
    one, two = inputs
    if one.dtype.kind == "f":
        return np.asarray(one / two)
    if not np.all(two):
        raise ZeroDivisionError
    return np.asarray(np.trunc(one / two)).astype(one.dtype)  # towards zero, as in C


def _modulo(inputs: Inputs, attributes: Attributes) -> Values:
    _check_broadcast(inputs)
    one, two = inputs
    if not np.all(two):
        raise ZeroDivisionError
    return np.asarray((np.fmod if "fmod" in attributes and attributes["fmod"].i else np.mod)(one, two))


def _reduce(function: Callable[..., Any]) -> Callable[[Inputs, Attributes], Values]:
    """Return the rule of a reduction."""

    def rule(inputs: Inputs, attributes: Attributes) -> Values:
        keeps = attributes["keepdims"].i if "keepdims" in attributes else 1
        return np.asarray(function(inputs[0], axis=_axes(inputs, attributes, 1), keepdims=bool(keeps)))

    return rule


def _of(function: Callable[..., Any]) -> Callable[[Inputs, Attributes], Values]:
    """Return the rule of a function of the inputs alone."""

    def rule(inputs: Inputs, attributes: Attributes) -> Values:
        _check_broadcast(inputs)
        return np.asarray(function(*inputs))

    return rule


_RULES: dict[str, Callable[[Inputs, Attributes], Values]] = {
    "Abs": _of(np.abs),
    "Add": _of(np.add),
    "And": _of(np.logical_and),
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "Div": _divide,
    "Equal": _of(np.equal),
    "Expand": _expand,
    "Gather": _gather,
    "Greater": _of(np.greater),
    "GreaterOrEqual": _of(np.greater_equal),
    "Identity": _of(np.asarray),
    "Less": _of(np.less),
    "LessOrEqual": _of(np.less_equal),
    "Max": _of(lambda *parts: np.max(np.broadcast_arrays(*parts), axis=0)),
    "Min": _of(lambda *parts: np.min(np.broadcast_arrays(*parts), axis=0)),
    "Mod": _modulo,
    "Mul": _of(np.multiply),
    "Neg": _of(np.negative),
    "Not": _of(np.logical_not),
    "Or": _of(np.logical_or),
    "Range": _range,
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _of(np.subtract),
    "Unsqueeze": _unsqueeze,
    "Where": _of(np.where),
    "Floor": _of(np.floor),
    "Ceil": _of(np.ceil),
}
