"""ONNX models: layers, branches, parameters and work of a graph, read from its shapes alone; no weight is ever read.

A multiply-add is counted for every pair of numbers that an operator's definition multiplies and adds up; see
``products``, ``attention`` and ``elements`` for the rules, ``docs/onnx.md`` for what is assumed.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from planner.dnn import Dnn, Layer
from planner.importers.imported import Imported
from planner.importers.onnx_model.file import load_model, refuse
from planner.importers.onnx_model.layers import LayerList
from planner.importers.onnx_model.scope import Scope
from planner.importers.onnx_model.shapes import plain_graph
from planner.importers.onnx_model.sizes import Batch, data_inputs, set_sizes
from planner.importers.repeats import repeats_of

__all__ = ["read_onnx"]

_DTYPES = {"FLOAT": "fp32", "FLOAT16": "fp16", "BFLOAT16": "bf16"}


def read_onnx(path: Path, *, sizes: Mapping[str, int] | None = None) -> Imported:
    """Return the network of an ONNX file.

    Parameters
    ----------
    path
        Of the graph; files with its weights need not be there, but must be meant to lie in its folder.
    sizes
        Of symbolic dimensions by name, for one sample: ``{"sequence": 128}``. A dimension without a name is called by
        its input and axis, ``tokens.1``. The batch needs none.

    Notes
    -----
    ``facts`` holds ``element_flop`` (FLOP of one sample, forward, beside the multiply-adds) and ``num_operators``.
    A file of up to 2 GiB is read whole; the data of its large tensors is thrown away at once.

    Raises
    ------
    SpecError
        If it is no ONNX model that can be read (see :func:`.file.load_model`), a dimension has no
        size, or the graph contradicts itself.
    """
    model = load_model(path)
    batch = set_sizes(model, sizes or {}, path)
    inputs = [one.name for one in data_inputs(model)]
    try:
        scope = Scope(plain_graph(model, path))
        found = LayerList(scope, inputs, batch.size)
        if not any(layer.kind != "input" for layer, _ in found.layers):
            raise ValueError("no operator reads the inputs")
        repeats = repeats_of([layer for layer, _ in found.layers], [reads for _, reads in found.layers])
        dnn = Dnn(path.stem or "onnx", found.layers, source=f"ONNX file {path.name}", repeats=repeats)
    except (ValueError, RecursionError) as error:
        raise refuse(path, f"the graph cannot be: {error}.", "Export the model again, or mend it.") from None
    return Imported(
        dnn=dnn,
        dtype=_dtype(found.parameters.dtypes),
        facts={"element_flop": found.element_flop, "num_operators": found.kinds_of_operators.total()},
        notes=_notes(found, batch),
        warnings=(*batch.warnings, *found.parameters.warnings(), *found.doubts.warnings()),
    )


def _dtype(dtypes: Counter[str]) -> str | None:
    """Return the type of most parameters in the words of a spec."""
    return _DTYPES.get(max(dtypes, key=lambda name: (dtypes[name], name))) if dtypes else None


def _notes(found: LayerList, batch: Batch) -> tuple[str, ...]:
    """Return what was assumed."""
    layers = [layer for layer, _ in found.layers]
    notes = [*batch.notes, *found.parameters.notes(found.unused())]
    if _may_be_folded(layers):
        notes.append(
            "There is no batch norm, and every convolution has a bias: if the network is trained with batch norm, the "
            "export has folded it into the convolutions. Export it in training mode then."
        )
    return tuple(notes)


def _may_be_folded(layers: list[Layer]) -> bool:
    """Whether batch norms may have been folded into convolutions."""
    convolutions = [layer for layer in layers if layer.kind == "convolution"]
    has_biases = all(any(tensor.role == "bias" for tensor in layer.tensors) for layer in convolutions)
    has_norms = any(layer.kind in ("batch_norm", "norm") for layer in layers)
    return bool(convolutions) and has_biases and not has_norms
