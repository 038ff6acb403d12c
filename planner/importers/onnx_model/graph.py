"""An ONNX graph in plain terms, without the ``onnx`` library, and what is known of the values in it.

Dimensions are of the whole batch; None where a shape or a dimension is not known. A value is fixed if it is stored,
computed from fixed values alone, or follows from shapes. Weights are found by that ancestry, not by initialisers alone:
they may be constants, made by ``ConstantOfShape``, transposed, cast or dequantised on their way to the operator that
uses them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.frozen import frozen

Shape = tuple[int | None, ...]
FLOATS = frozenset({"FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"})
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


def shown(name: str, most: int = 80) -> str:
    """Return a name of the file as messages, layers and tables show it: one line, nothing unprintable, cut."""
    words = "".join(one if one.isprintable() else " " for one in name).split()
    return " ".join(words)[:most]


def known(shape: Shape | None) -> tuple[int, ...] | None:
    """Return a shape of which every dimension is known, or None."""
    if shape is None or any(size is None for size in shape):
        return None
    return tuple(int(size) for size in shape if size is not None)


@frozen(eq=False)
class OnnxTensor:
    """A stored array; ``values`` is kept of small ones only, the data of others is never looked at."""

    name: str
    dims: tuple[int, ...]
    dtype: str
    values: NDArray[np.generic] | None = None

    @property
    def num_elements(self) -> int:
        """Numbers in it."""
        return prod(self.dims)


@frozen(eq=False)
class OnnxNode:
    """One operator; an input that is left out has the name ``""``. Attributes of other kinds are left out."""

    op_type: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: "Mapping[str, int | float | str | tuple[object, ...] | OnnxTensor | OnnxGraph]" = field(
        default_factory=dict
    )

    @property
    def graphs(self) -> "tuple[OnnxGraph, ...]":
        """The bodies of a branch or a loop."""
        return tuple(value for value in self.attributes.values() if isinstance(value, OnnxGraph))

    @property
    def reads(self) -> tuple[str, ...]:
        """All values that it reads, those that its bodies read from outside included."""
        captured = (name for body in self.graphs for name in body.captured())
        return tuple(dict.fromkeys(name for name in (*self.inputs, *captured) if name))

    def integer(self, name: str, default: int = 0) -> int:
        """Return an attribute that is a whole number."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def text(self, name: str, default: str = "") -> str:
        """Return an attribute that is a text."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, str) else default

    def integers(self, name: str) -> tuple[int, ...]:
        """Return an attribute of whole numbers; empty where it is not given."""
        value = self.attributes.get(name, ())
        return tuple(one for one in value if isinstance(one, int)) if isinstance(value, tuple) else ()


@frozen(eq=False)
class OnnxGraph:
    """A graph or a body: nodes in order, and what is known of the values by name."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[OnnxNode, ...]
    tensors: Mapping[str, OnnxTensor]
    shapes: Mapping[str, Shape]

    def captured(self) -> Iterator[str]:
        """Yield the names that the graph reads and nothing in it gives."""
        own = {*self.inputs, *self.tensors}
        for node in self.nodes:
            reads = [*node.inputs, *(name for body in node.graphs for name in body.captured())]
            yield from (name for name in reads if name and name not in own)
            own.update(node.outputs)
        yield from (name for name in self.outputs if name not in own)


@frozen(kw_only=False)
class Root:
    """A stored tensor, or one that is filled."""

    tensor: OnnxTensor
    is_initializer: bool  # whether it is no constant of a node
    is_quantized: bool = False
    copy_of: str = ""  # the stored tensor that it is another name of, by an ``Identity``

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
        self._defined = {*graph.tensors, *graph.inputs}
        self._fixed: dict[str, tuple[Root, ...]] = {name: (Root(one, True),) for name, one in graph.tensors.items()}
        self._values = {name: one.values for name, one in graph.tensors.items() if one.values is not None}
        for node in graph.nodes:
            self._add(node)

    def _home(self, name: str) -> "Scope":
        """Return the scope that a value belongs to; the outermost one where it is in none."""
        return self if name in self._defined or self._parent is None else self._parent._home(name)

    def shape_of(self, name: str) -> Shape | None:
        """Return the shape of a value; None where it is not known."""
        return self._home(name).graph.shapes.get(name)

    def values_of(self, name: str) -> NDArray[np.generic] | None:
        """Return the numbers of a small stored tensor."""
        return self._home(name)._values.get(name)

    def is_fixed(self, name: str) -> bool:
        """Whether the value does not depend on the inputs' numbers."""
        return name in self._home(name)._fixed

    def roots_of(self, name: str) -> tuple[Root, ...]:
        """Return the stored tensors that a fixed value is made of."""
        return self._home(name)._fixed.get(name, ())

    def is_folded(self, node: OnnxNode) -> bool:
        """Whether all outputs of the operator are fixed, so that it is computed once and not for every sample."""
        return all(self.is_fixed(name) for name in node.outputs if name)

    def _add(self, node: OnnxNode) -> None:
        """Remember what is known of an operator's outputs."""
        reads = node.reads
        missing = next((name for name in reads if name not in self._home(name)._defined), None)
        if missing is not None:
            raise ValueError(f"operator {node.name or node.op_type!r} reads {missing!r}, which nothing before it gives")
        twice = next((name for name in node.outputs if name and name in self._defined), None)
        if twice is not None:
            raise ValueError(f"the value {twice!r} is given twice")
        is_fixed = node.op_type in _OF_SHAPES or all(self.is_fixed(name) for name in reads)
        constant = node.attributes.get("value", node.attributes.get("sparse_value"))
        if not is_fixed or node.op_type in _RANDOM:
            pass
        elif node.op_type == "Constant" and isinstance(constant, OnnxTensor) and node.outputs:
            name = node.outputs[0]
            self._fixed[name] = (Root(replace(constant, name=name), False),)
            if constant.values is not None:
                self._values[name] = constant.values
        else:
            roots = self._roots(node, reads)
            self._fixed.update((name, roots) for name in node.outputs if name)
        self._defined.update(name for name in node.outputs if name)

    def _roots(self, node: OnnxNode, reads: tuple[str, ...]) -> tuple[Root, ...]:
        """Return the stored tensors that a fixed operator passes on."""
        first = self.roots_of(node.inputs[0]) if node.inputs else ()
        if node.op_type == "ConstantOfShape":  # models for tests keep weights so, where the shape is stored
            shape = known(self.graph.shapes.get(node.outputs[0])) if node.outputs else None
            if shape is None or not any(root.is_initializer for root in first):
                return ()
            value = node.attributes.get("value")
            dtype = value.dtype if isinstance(value, OnnxTensor) else "FLOAT"
            return (Root(OnnxTensor(name=node.outputs[0], dims=shape, dtype=dtype), True),)
        if node.op_type in _OF_NONE:
            return ()
        names = reads[1:] if node.op_type == "Where" else reads
        found = first
        if node.op_type not in _OF_FIRST or not node.inputs:
            found = tuple(dict.fromkeys(root for name in names for root in self.roots_of(name)))
        if node.op_type == "Identity":
            new = node.outputs[0] if node.outputs else ""
            return tuple(
                replace(root, tensor=replace(root.tensor, name=new), copy_of=root.origin)
                if root.origin == node.inputs[0]
                else root
                for root in found
            )
        if node.op_type == "DequantizeLinear":
            return tuple(replace(root, is_quantized=True) for root in found)
        return found
