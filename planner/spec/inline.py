"""Networks written as a spec's ``dnn`` block has them, so that a question, or a file, needs nothing else."""

from typing import Any, get_args

from planner.cost import Profile
from planner.dnn import Dnn, Layer
from planner.importers.imported import Imported
from planner.spec.layers import ELEMENT_BYTES, LayerSpec
from planner.spec.values import Dtype
from planner.units import Dimension, format_exact
from planner.zoo.transformers import block_of

__all__ = ["imported_block", "network_block"]


def network_block(dnn: Dnn, profile: Profile | None = None, *, batch_size: int = 1) -> dict[str, Any]:
    """Return the block of a network: its sizes where it is a transformer, else its layers, with measured seconds.

    Seconds are of a batch, all other figures of one sample.
    """
    if dnn.transformer is not None and profile is None:
        return {"name": dnn.name, "transformer": block_of(dnn.transformer)}
    rows = [_row(dnn, layer) for layer in dnn.layers]
    block: dict[str, Any] = {"name": dnn.name, "layers": rows}
    if dnn.repeats:
        block["repeats"] = [
            {"first": one.first, "layers": one.num_layers, "count": one.count, "kind": one.kind} for one in dnn.repeats
        ]
    if profile is not None:
        _add_seconds(rows, dnn, profile, batch_size)
        block["profile_batch"] = batch_size
    return block


def imported_block(found: Imported, *, batch_size: int = 1) -> dict[str, Any]:
    """Return the block of a network of another program, with its type of numbers and what makes it doubtful.

    ``batch_size``: that was measured, and that measured seconds are written for.
    """
    block = network_block(found.dnn, found.profile, batch_size=batch_size)
    if found.dtype in get_args(Dtype):
        block["dtype"] = found.dtype
    return {**block, "warnings": list(found.warnings)} if found.warnings else block


def _row(dnn: Dnn, layer: Layer) -> dict[str, Any]:
    """Return one layer: in bytes where these say all, else by shape and tensors."""
    row: dict[str, Any] = {"name": layer.name, "kind": layer.kind, "inputs": list(dnn.inputs_of(layer.name))}
    if layer.num_multiply_adds:
        row["multiply_adds"] = layer.num_multiply_adds
    counts = {"parameters": layer.num_trainable, "output": layer.num_output_elements}
    short = {key: f"{count * ELEMENT_BYTES} B" for key, count in counts.items() if count}
    flag = {"in_place": True} if layer.is_in_place else {}
    if LayerSpec.model_validate({**row, **short, **flag}).build() == layer:
        return {**row, **short, **flag}
    if layer.tensors:
        row["tensors"] = [{"name": one.name, "elements": one.num_elements, "role": one.role} for one in layer.tensors]
    window = layer.window
    if window is not None:
        row["window"] = {"kernel": window.kernel, "stride": window.stride, "padding": window.padding}
    return {**row, "shape": list(layer.output_shape), **flag}


def _add_seconds(rows: list[dict[str, Any]], dnn: Dnn, profile: Profile, batch_size: int) -> None:
    """Put the measured seconds in; the reading of a sample is the forward time of the first input."""
    inputs = [layer.name for layer in dnn.layers if layer.kind == "input"]
    per_batch = ((profile.forward_s * batch_size).tolist(), (profile.backward_s * batch_size).tolist())
    seconds = zip(*per_batch, strict=True)
    for row, (forward_s, backward_s) in zip(rows, seconds, strict=True):
        reading_s = (profile.read_s or 0.0) * batch_size if inputs and row["name"] == inputs[0] else 0.0
        row["forward"] = format_exact(forward_s + reading_s, Dimension.TIME)
        row["backward"] = format_exact(backward_s, Dimension.TIME)
