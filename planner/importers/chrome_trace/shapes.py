"""Parameters and outputs of operators, from the shapes that torch.profiler records of their inputs.

Only operators whose output follows from their inputs are known here. A profile does not tell which inputs are
parameters: they are known by their place, as the signatures have it (torch/native_functions.yaml of torch 2.13).
"""

import json
from collections.abc import Sequence
from math import prod

from planner.importers.chrome_trace.events import Event

__all__ = ["kind_of", "num_outputs", "num_parameters"]

Shape = tuple[int, ...]

# Operator -> places of its parameters among its inputs.
_PARAMETERS = {
    "aten::linear": (1, 2),
    "aten::conv1d": (1, 2),
    "aten::conv2d": (1, 2),
    "aten::conv3d": (1, 2),
    "aten::conv_transpose2d": (1, 2),
    "aten::batch_norm": (1, 2),
    "aten::layer_norm": (2, 3),
    "aten::rms_norm": (2,),
    "aten::group_norm": (2, 3),
    "aten::embedding": (0,),
    "aten::prelu": (1,),
}
_SAME = (
    "aten::batch_norm",
    "aten::layer_norm",
    "aten::rms_norm",
    "aten::group_norm",
    "aten::relu",
    "aten::relu_",
    "aten::gelu",
    "aten::silu",
    "aten::sigmoid",
    "aten::tanh",
    "aten::dropout",
    "aten::dropout_",
    "aten::softmax",
    "aten::log_softmax",
    "aten::leaky_relu",
    "aten::elu",
    "aten::hardtanh",
    "aten::hardswish",
    "aten::mish",
    "aten::prelu",
    "aten::clone",
    "aten::contiguous",
    "aten::flatten",
    "aten::reshape",
    "aten::view",
    "aten::transpose",
    "aten::permute",
    "aten::scaled_dot_product_attention",
    "aten::neg",
    "aten::to",
)
_BROADCAST = ("aten::add", "aten::add_", "aten::mul", "aten::mul_", "aten::sub", "aten::div")
_KINDS = {
    "conv": "convolution",
    "linear": "fully_connected",
    "batch_norm": "batch_norm",
    "norm": "norm",
    "pool": "pooling",
    "embedding": "embedding",
    "dropout": "dropout",
    "softmax": "softmax",
    "attention": "attention",
    "lstm": "recurrent",
    "gru": "recurrent",
    "relu": "activation",
    "gelu": "activation",
    "silu": "activation",
    "sigmoid": "activation",
    "tanh": "activation",
    "mish": "activation",
    "cat": "concatenate",
    "loss": "loss",
    "matmul": "matmul",
    "mm": "matmul",
    "flatten": "flatten",
    "add": "add",
}


def kind_of(operators: Sequence[Event]) -> str:
    """Return the kind of layer that operators make: of the longest one that has parameters, else of the longest."""
    longest = sorted(operators, key=lambda event: -event.duration_s)
    with_parameters = [event for event in longest if event.name in _PARAMETERS]
    for event in (*with_parameters, *longest):
        name = event.name.removeprefix("aten::")
        for part, kind in _KINDS.items():
            if part in name:
                return kind
    return "operator"


def num_parameters(operators: Sequence[Event]) -> int:
    """Return the parameters that operators read, each shape of an operator once."""
    total = 0
    for event in operators:
        shapes = _shapes(event)
        for place in _PARAMETERS.get(event.name, ()):
            shape = shapes[place] if place < len(shapes) else None
            total += prod(shape) if shape else 0
    return total


def num_outputs(operators: Sequence[Event]) -> int | None:
    """Return the numbers that the last operator puts out, the whole batch; None where that is not known."""
    for event in reversed(operators):
        shapes = _shapes(event)
        if not shapes or shapes[0] is None:
            continue
        return _output(event, shapes, shapes[0])
    return None


def _output(event: Event, shapes: Sequence[Shape | None], first: Shape) -> int | None:
    """Return the size of an operator's output."""
    if event.name in _SAME:
        return prod(first)
    if event.name in _BROADCAST:
        return max(prod(shape) for shape in shapes if shape is not None)
    second = shapes[1] if len(shapes) > 1 else None
    if event.name == "aten::linear" and second:
        return prod(first[:-1]) * second[0]
    if event.name == "aten::embedding" and second is not None:
        return prod(second) * first[-1]
    if event.name in ("aten::conv2d", "aten::max_pool2d", "aten::avg_pool2d"):
        return _windows(event, first, second)
    if event.name in ("aten::adaptive_avg_pool2d", "aten::adaptive_max_pool2d") and len(first) >= 3:
        size = _numbers(event, 1, 2)
        return prod(first[:-2]) * prod(size) if size is not None else None
    return None


def _windows(event: Event, image: Shape, weight: Shape | None) -> int | None:
    """Return the size of what a sliding window leaves; rounding up, and one size of all directions, are left out."""
    if len(image) != 4:
        return None
    if event.name == "aten::conv2d":
        if weight is None or len(weight) != 4:
            return None
        channels = weight[0]
        kernel: Shape = weight[2:]
        places = (3, 4, 5)
    else:
        channels, places = image[1], (2, 3, 4)
        kernel = _numbers(event, 1, 2) or ()
        if not kernel:
            return None
    steps = _numbers(event, places[0], 2) or (kernel if event.name != "aten::conv2d" else None)
    edges = _numbers(event, places[1], 2)
    spread = (1, 1) if event.name == "aten::avg_pool2d" else _numbers(event, places[2], 2)
    if steps is None or edges is None or spread is None or 0 in steps:
        return None
    sizes = [
        (size + 2 * edge - apart * (width - 1) - 1) // step + 1
        for size, edge, apart, width, step in zip(image[2:], edges, spread, kernel, steps, strict=True)
    ]
    return image[0] * channels * prod(sizes) if min(sizes) > 0 else None


def _shapes(event: Event) -> list[Shape | None]:
    """Return the shapes of an operator's inputs; None where one is no tensor. Scalars are no tensors either."""
    given = event.args.get("Input Dims")
    types = event.args.get("Input type")
    if not isinstance(given, list):
        return []
    shapes: list[Shape | None] = []
    for place, shape in enumerate(given):
        is_tensor = not isinstance(types, list) or (
            place < len(types) and types[place] not in ("", "Scalar", "ScalarList")
        )
        is_shape = isinstance(shape, list) and all(
            isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**40 for size in shape
        )
        is_known = is_shape and is_tensor and len(shape) <= 16 and prod(shape) < 2**60
        shapes.append(tuple(shape) if is_known else None)
    return shapes


def _numbers(event: Event, place: int, count: int) -> Shape | None:
    """Return a list of whole numbers among an operator's arguments, such as a stride; None where it is not recorded."""
    given = event.args.get("Concrete Inputs")
    if (
        not isinstance(given, list)
        or place >= len(given)
        or not isinstance(given[place], str)
        or len(given[place]) > 99
    ):
        return None
    try:
        numbers = json.loads(given[place])
    except ValueError:
        return None
    if not isinstance(numbers, list) or not all(type(number) is int and 0 <= number < 2**40 for number in numbers):
        return None
    if len(numbers) == 1:
        numbers *= count
    return tuple(numbers) if len(numbers) == count else None
