"""Operators: matrix products and what moves memory between them, for one sample, and a list of them that grows.

A multiply-add counts 2 FLOP. Backward is twice forward: the gradients of the input and of the weights, or of both
factors where both are activations (D. Narayanan et al., SC21, arXiv 2104.04473, section 5.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from planner.dnn import Tensor

__all__ = ["BACKWARD_PER_FORWARD", "FLOP_PER_MULTIPLY_ADD", "INPUT", "Operator", "OperatorList", "Product"]

FLOP_PER_MULTIPLY_ADD = 2
BACKWARD_PER_FORWARD = 2
INPUT = "input"  # what enters a list of operators


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """``count`` products of a ``rows x inner`` by an ``inner x columns`` matrix, for one sample.

    ``rows`` may be broken: the share of one sample's tokens that an expert gets.
    """

    rows: float
    inner: int
    columns: int
    count: int = 1

    def __str__(self) -> str:
        """Return ``96 x (2048 x 128 x 2048)``: rows, inner width and columns."""
        once = f"{self.rows:.12g} x {self.inner} x {self.columns}"
        return once if self.count == 1 else f"{self.count} x ({once})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator.

    Attributes
    ----------
    name
        Within its part of the network, e.g. ``attention.qkv``.
    kind
        input, embedding, matmul, router, attention (a product of two activations), softmax, norm, rotary, activation,
        dispatch, combine, residual, pooling or loss.
    inputs
        Names of the operators that it reads, or :data:`INPUT`.
    output_shape
        Of one sample: (features, tokens, 1), as an image of one column, so that all that is said of images holds.
    input_elements
        Numbers that it reads for one sample; weights are left out.
    num_multiply_adds
        Of one sample, forward. Half of the product's where attention is causal.
    tensors
        What is trained. Logits that share the embedding's matrix have none, though their product reads it.
    product
        The shape of its matrix product, where it is one.
    is_in_place
        Nothing more is kept for the backward pass: the output overwrites the input, or is computed again there.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    output_shape: tuple[int, ...]
    input_elements: int
    num_multiply_adds: int = 0
    tensors: tuple[Tensor, ...] = ()
    product: Product | None = None
    is_in_place: bool = False

    @property
    def output_elements(self) -> int:
        """Numbers that it puts out for one sample."""
        return prod(self.output_shape)

    @property
    def weight_elements(self) -> int:
        """Parameters, biases included."""
        return sum(tensor.num_elements for tensor in self.tensors)

    @property
    def forward_flop(self) -> int:
        """FLOP of one sample, forward."""
        return FLOP_PER_MULTIPLY_ADD * self.num_multiply_adds

    @property
    def backward_flop(self) -> int:
        """FLOP of one sample, backward."""
        return BACKWARD_PER_FORWARD * self.forward_flop


class OperatorList:
    """Operators in order of execution; each is appended with the names of those it reads, and gives back its own name.

    Parameters
    ----------
    width, num_tokens
        Of the stream that enters, one sample.
    has_scale, has_shift
        Whether norms have a scale, and a shift.
    """

    def __init__(self, *, width: int, num_tokens: int, has_shift: bool, has_scale: bool = True) -> None:
        self.width = width
        self.num_tokens = num_tokens
        self._has_scale = has_scale
        self._has_shift = has_shift
        self._found: dict[str, Operator] = {}

    @property
    def operators(self) -> tuple[Operator, ...]:
        """All there are, in order."""
        return tuple(self._found.values())

    def elements_of(self, name: str) -> int:
        """Return what an operator, or the stream that enters, puts out for one sample."""
        return self._found[name].output_elements if name in self._found else self.width * self.num_tokens

    def append(self, operator: Operator) -> str:
        """Append an operator."""
        self._found[operator.name] = operator
        return operator.name

    def move(
        self,
        name: str,
        kind: str,
        inputs: Sequence[str],
        features: int | None = None,
        *,
        num_tokens: int | None = None,
        input_elements: int | None = None,
        tensors: tuple[Tensor, ...] = (),
        is_in_place: bool = False,
    ) -> str:
        """Append an operator without multiply-adds; by default of the stream's shape, reading its inputs whole."""
        read = sum(map(self.elements_of, inputs)) if input_elements is None else input_elements
        shape = (features or self.width, num_tokens or self.num_tokens, 1)
        return self.append(
            Operator(
                name=name,
                kind=kind,
                inputs=tuple(inputs),
                output_shape=shape,
                input_elements=read,
                tensors=tensors,
                is_in_place=is_in_place,
            )
        )

    def norm(self, name: str, source: str, features: int | None = None, *, num_scales: int | None = None) -> str:
        """Append a norm of the first ``features`` numbers of each token (by default all), with so many scales."""
        whole = self.elements_of(source) // self.num_tokens if features is None else features
        size = num_scales or whole
        shift = (Tensor(name="shift", num_elements=size, role="shift"),) if self._has_shift else ()
        scale = (Tensor(name="scale", num_elements=size, role="scale"),) if self._has_scale else ()
        read = whole * self.num_tokens
        return self.move(name, "norm", (source,), whole, input_elements=read, tensors=(*scale, *shift))

    def table(self, name: str, source: str, num_rows: int, *, is_in_place: bool = False) -> str:
        """Append a look-up in a table, added to the stream where it is in place."""
        weight = Tensor(name="weight", num_elements=num_rows * self.width)
        return self.move(name, "embedding", (source,), tensors=(weight,), is_in_place=is_in_place)

    def matmul(
        self,
        name: str,
        source: str,
        *,
        inner: int,
        columns: int,
        has_bias: bool,
        rows: int | None = None,
        kind: str = "matmul",
        has_weight: bool = True,
    ) -> str:
        """Append the product of ``rows`` tokens (by default all) with an ``inner x columns`` matrix of weights."""
        used = self.num_tokens if rows is None else rows
        weight = (Tensor(name="weight", num_elements=inner * columns),) if has_weight else ()
        bias = (Tensor(name="bias", num_elements=columns, role="bias"),) if has_bias else ()
        return self.append(
            Operator(
                name=name,
                kind=kind,
                inputs=(source,),
                output_shape=(columns, used, 1),
                input_elements=used * inner,
                num_multiply_adds=used * inner * columns,
                tensors=weight + bias,
                product=Product(rows=used, inner=inner, columns=columns),
            )
        )
