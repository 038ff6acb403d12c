"""Small ONNX graphs for tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT

Dims = Sequence[int | str | None]


def node(op_type: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    """Return a node; names are separated by blanks, ``-`` is an input that is left out."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op_type, names, outputs.split(), **attributes)


def weight(name: str, dims: Sequence[int], dtype: int = FLOAT) -> Any:
    """Return a stored tensor of these dimensions, with no data."""
    return TensorProto(name=name, dims=dims, data_type=dtype)


def integers(name: str, values: Sequence[int]) -> Any:
    """Return a stored list of whole numbers."""
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


def model_of(
    nodes: Sequence[Any],
    inputs: Mapping[str, Dims],
    weights: Mapping[str, Sequence[int]] | Sequence[Any] = (),
    *,
    outputs: str = "y",
    opset: int = 21,
    types: Mapping[str, int] | None = None,
    **more: Any,
) -> Any:
    """Return a model; ``weights`` are stored tensors, or their dimensions by name."""
    if isinstance(weights, Mapping):
        weights = [weight(name, dims) for name, dims in weights.items()]
    kinds = types or {}
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, kinds.get(name, FLOAT), list(dims)) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(name, kinds.get(name, FLOAT), None) for name in outputs.split()],
        list(weights),
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, **more)


def saved(model: Any, folder: Path, name: str = "model.onnx") -> Path:
    """Write a model as it is, with no check, and return its path."""
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path


def light(name: str) -> Path:
    """Return one of the networks that the onnx package brings."""
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"
