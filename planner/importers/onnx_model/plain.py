"""An ONNX graph in plain terms: nodes, tensors and shapes, without the ``onnx`` library.

Dimensions are of the whole batch; None where a shape or a dimension is not known.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from numpy.typing import NDArray

__all__ = ["FLOATS", "QUANTIZED", "Attribute", "OnnxGraph", "OnnxNode", "OnnxTensor", "Shape", "known", "shown"]

Shape = tuple[int | None, ...]
FLOATS = frozenset({"FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"})
_SHORT = {"FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0", "FLOAT4E2M1"}
QUANTIZED = frozenset({"INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4", "INT2", "UINT2", "INT32"} | _SHORT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OnnxTensor:
    """A stored array; ``values`` is kept of small ones only, the data of others is never looked at."""

    name: str
    dims: tuple[int, ...]
    dtype: str
    values: NDArray[Any] | None = None

    @property
    def num_elements(self) -> int:
        """Numbers in it."""
        return prod(self.dims)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OnnxNode:
    """One operator; an input that is left out has the name ``""``."""

    op_type: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: "Mapping[str, Attribute]" = field(default_factory=dict)

    @property
    def graphs(self) -> "tuple[OnnxGraph, ...]":
        """The bodies of a branch or a loop."""
        return tuple(value for value in self.attributes.values() if isinstance(value, OnnxGraph))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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


Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | OnnxTensor | OnnxGraph


def shown(name: str, most: int = 80) -> str:
    """Return a name of the file as messages, layers and tables show it: one line, nothing unprintable, cut."""
    words = "".join(one if one.isprintable() else " " for one in name).split()
    return " ".join(words)[:most]


def known(shape: Shape | None) -> tuple[int, ...] | None:
    """Return a shape of which every dimension is known, or None."""
    if shape is None or any(size is None for size in shape):
        return None
    return tuple(int(size) for size in shape if size is not None)
