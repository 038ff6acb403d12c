"""Which values of an ONNX graph do not depend on its inputs' numbers, and which stored tensors they are made of.

A value is fixed if it is stored, computed from fixed values alone, or follows from shapes. Weights are found by that
ancestry, not by initialisers alone: they may be constants, made by ``ConstantOfShape``, transposed, cast or dequantised
on their way to the operator that uses them.
"""

from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from planner.importers.onnx_model.plain import OnnxGraph, OnnxNode, OnnxTensor, Shape, known

__all__ = ["Root", "Scope"]

_RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
_OF_SHAPES = {"EyeLike", "Shape", "Size"}  # whatever the numbers
# What these make is a weight where their first input is; what other fixed operators make, where any input is.
_OF_FIRST = {
    "Cast", "CastLike", "DequantizeLinear", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity",
    "Pad", "QuantizeLinear", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
}  # fmt: skip
# Tables of positions, masks and the like: what they are made of is no weight.
_OF_NONE = {
    "And", "Bernoulli", "ConstantOfShape", "Cos", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
    "NonZero", "Not", "Or", "Range", "Shape", "Sin", "Size", "Trilu",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Root:
    """A stored tensor, or one that is filled.

    Attributes
    ----------
    is_initializer
        Whether it is no constant of a node.
    copy_of
        The stored tensor that it is another name of, by an ``Identity``.
    """

    tensor: OnnxTensor
    is_initializer: bool
    is_quantized: bool = False
    copy_of: str = ""

    @property
    def origin(self) -> str:
        """Name under which it is stored."""
        return self.copy_of or self.tensor.name


class Scope:
    """What is known of the values of a graph, or of a body in it.

    Raises
    ------
    ValueError
        If an operator reads a value that nothing before it gives, or gives one that is there already.
    """

    def __init__(self, graph: OnnxGraph, parent: "Scope | None" = None) -> None:
        self.graph = graph
        self._parent = parent
        self._defined: set[str] = set(graph.tensors)
        self._fixed: dict[str, tuple[Root, ...]] = {}
        self._values: dict[str, NDArray[Any]] = {}
        for name, tensor in graph.tensors.items():
            self._store(name, Root(tensor, True))
        self._defined.update(graph.inputs)
        for node in graph.nodes:
            self._add(node)

    def shape_of(self, name: str) -> Shape | None:
        """Return the shape of a value; None where it is not known."""
        if name in self._defined or self._parent is None:
            return self.graph.shapes.get(name)
        return self._parent.shape_of(name)

    def values_of(self, name: str) -> NDArray[Any] | None:
        """Return the numbers of a small stored tensor."""
        if name in self._defined or self._parent is None:
            return self._values.get(name)
        return self._parent.values_of(name)

    def is_fixed(self, name: str) -> bool:
        """Whether the value does not depend on the inputs' numbers."""
        if name in self._defined or self._parent is None:
            return name in self._fixed
        return self._parent.is_fixed(name)

    def roots_of(self, name: str) -> tuple[Root, ...]:
        """Return the stored tensors that a fixed value is made of."""
        if name in self._defined or self._parent is None:
            return self._fixed.get(name, ())
        return self._parent.roots_of(name)

    def is_folded(self, node: OnnxNode) -> bool:
        """Whether all outputs of the operator are fixed, so that it is computed once and not for every sample."""
        return all(self.is_fixed(name) for name in node.outputs if name)

    def reads(self, node: OnnxNode) -> tuple[str, ...]:
        """Return all values that an operator reads, those that its bodies read from outside included."""
        captured = (name for body in node.graphs for name in body.captured())
        return tuple(dict.fromkeys(name for name in (*node.inputs, *captured) if name))

    def _is_defined(self, name: str) -> bool:
        return name in self._defined or (self._parent is not None and self._parent._is_defined(name))

    def _store(self, name: str, root: Root) -> None:
        """Remember a stored tensor."""
        self._fixed[name] = (root,)
        if root.tensor.values is not None:
            self._values[name] = root.tensor.values

    def _add(self, node: OnnxNode) -> None:
        """Remember what is known of an operator's outputs."""
        reads = self.reads(node)
        missing = next((name for name in reads if not self._is_defined(name)), None)
        if missing is not None:
            raise ValueError(f"operator {node.name or node.op_type!r} reads {missing!r}, which nothing before it gives")
        twice = next((name for name in node.outputs if name and name in self._defined), None)
        if twice is not None:
            raise ValueError(f"the value {twice!r} is given twice")
        is_fixed = node.op_type in _OF_SHAPES or all(self.is_fixed(name) for name in reads)
        if node.op_type not in _RANDOM and is_fixed:
            self._fix(node)
        self._defined.update(name for name in node.outputs if name)

    def _fix(self, node: OnnxNode) -> None:
        """Remember the outputs of a fixed operator."""
        if node.op_type == "Constant":
            tensor = node.attributes.get("value", node.attributes.get("sparse_value"))
            if isinstance(tensor, OnnxTensor) and node.outputs:
                self._store(node.outputs[0], Root(replace(tensor, name=node.outputs[0]), False))
                return
        roots = self._filled(node) if node.op_type == "ConstantOfShape" else self._inherited(node)
        for name in node.outputs:
            if name:
                self._fixed[name] = roots

    def _filled(self, node: OnnxNode) -> tuple[Root, ...]:
        """Return a tensor of one value as a stored one, where its shape is stored: models for tests keep weights so."""
        shape = known(self.graph.shapes.get(node.outputs[0])) if node.outputs else None
        is_stored = bool(node.inputs) and any(root.is_initializer for root in self.roots_of(node.inputs[0]))
        if shape is None or not is_stored:
            return ()
        value = node.attributes.get("value")
        dtype = value.dtype if isinstance(value, OnnxTensor) else "FLOAT"
        return (Root(OnnxTensor(name=node.outputs[0], dims=shape, dtype=dtype), True),)

    def _inherited(self, node: OnnxNode) -> tuple[Root, ...]:
        """Return the stored tensors that an operator passes on."""
        if node.op_type in _OF_NONE:
            return ()
        names = self.reads(node)[1:] if node.op_type == "Where" else self.reads(node)
        found = self.roots_of(node.inputs[0]) if node.op_type in _OF_FIRST and node.inputs else None
        if found is None:
            found = tuple(dict.fromkeys(root for name in names for root in self.roots_of(name)))
        if node.op_type == "Identity":
            found = tuple(_renamed(root, node) if root.origin == node.inputs[0] else root for root in found)
        if node.op_type == "DequantizeLinear":
            found = tuple(replace(root, is_quantized=True) for root in found)
        return found


def _renamed(root: Root, node: OnnxNode) -> Root:
    """Return a stored tensor under the name that an ``Identity`` gives it."""
    return replace(root, tensor=replace(root.tensor, name=node.outputs[0]), copy_of=root.origin)
