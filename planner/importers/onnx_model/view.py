"""What a rule sees of an ONNX operator: known shapes, attributes and small constants, or a clear refusal."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from numpy.typing import NDArray

from planner.importers.onnx_model.plain import OnnxNode, Shape, known

__all__ = ["UnknownShapeError", "View", "Work"]


class UnknownShapeError(Exception):
    """A shape that a rule needs is not known, or is none that the operator can have."""


@dataclass(frozen=True, slots=True)
class Work:
    """Of a whole batch, forward: multiply-adds of products, and FLOP of all else."""

    multiply_adds: int = 0
    element_flop: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        """Return both together."""
        return Work(self.multiply_adds + other.multiply_adds, self.element_flop + other.element_flop)

    def __mul__(self, count: int) -> "Work":
        """Return ``count`` times the work."""
        return Work(self.multiply_adds * count, self.element_flop * count)


@dataclass(frozen=True, slots=True)
class View:
    """One operator as its rule sees it."""

    node: OnnxNode
    shape_of: Callable[[str], Shape | None]
    values_of: Callable[[str], NDArray[Any] | None]

    def has(self, position: int) -> bool:
        """Whether the input at ``position`` is given."""
        return position < len(self.node.inputs) and bool(self.node.inputs[position])

    def input(self, position: int = 0, *, rank: int | None = None) -> tuple[int, ...]:
        """Return the shape of an input; raise UnknownShapeError where it is not known or of another rank."""
        return self._shape(self.node.inputs, position, rank)

    def output(self, position: int = 0) -> tuple[int, ...]:
        """Return the shape of an output; raise UnknownShapeError where it is not known."""
        return self._shape(self.node.outputs, position, None)

    def _shape(self, names: tuple[str, ...], position: int, rank: int | None) -> tuple[int, ...]:
        shape = known(self.shape_of(names[position])) if position < len(names) and names[position] else None
        if shape is None or (rank is not None and len(shape) != rank):
            raise UnknownShapeError
        return shape

    def num_inputs(self, position: int = 0) -> int:
        """Return the elements of an input."""
        return prod(self.input(position))

    def num_outputs(self) -> int:
        """Return the elements of the first output."""
        return prod(self.output())

    def integer(self, name: str, default: int = 0) -> int:
        """Return an attribute that is a whole number."""
        value = self.node.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def text(self, name: str, default: str = "") -> str:
        """Return an attribute that is a text."""
        value = self.node.attributes.get(name, default)
        return value if isinstance(value, str) else default

    def integers(self, name: str) -> tuple[int, ...]:
        """Return an attribute of whole numbers; empty where it is not given."""
        value = self.node.attributes.get(name, ())
        return tuple(int(one) for one in value if isinstance(one, int)) if isinstance(value, tuple) else ()
