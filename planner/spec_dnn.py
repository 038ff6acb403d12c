"""The network of a spec: built, or read with its measured profile, or made of the layers that the spec lists."""

from planner import zoo
from planner.cost import Profile
from planner.dnn import Dnn
from planner.importers.graph_profile import read_graph_profile
from planner.importers.layer_trace import read_layer_trace
from planner.importers.measured import MeasuredLayer, MeasuredNetwork, build_measured
from planner.spec_reading import Reading
from planner.spec_substitutions import per_sample
from planner.units import Dimension, format_exact
from planner.zoo.transformers import dnn_of, row

__all__ = ["batch_of_profile", "read_network"]


def batch_of_profile(reading: Reading) -> int:
    """Return the batch at which a measured profile was taken."""
    dnn = reading.spec.dnn
    if dnn.profile_batch is not None:
        return dnn.profile_batch
    is_measured = dnn.profile or dnn.trace or any(layer.forward is not None for layer in dnn.layers or [])
    if not is_measured:
        return 1
    if dnn.batch_per_device is None:
        reading.notes.fault(
            ("dnn",), "the batch at which the profile was measured is missing.", "Add profile_batch: 128, say."
        )
        return 1
    reading.notes.assumptions.append(
        f"the profile was measured at the batch per device asked for, {dnn.batch_per_device}"
    )
    return dnn.batch_per_device


def read_network(reading: Reading, profile_batch: int) -> tuple[Dnn, Profile | None]:
    """Return the network, and its profile where it was measured."""
    dnn = reading.spec.dnn
    if dnn.zoo is not None:
        found_dnn = zoo.build(dnn.zoo, sequence_length=dnn.sequence_length)
        _note_positions(reading, found_dnn)
        return found_dnn, None
    if dnn.transformer is not None:
        return dnn_of(dnn.transformer.build(), dnn.name or "transformer", source="sizes of the spec"), None
    if dnn.profile is not None:
        found = read_graph_profile(reading.source.folder / dnn.profile, batch_size=profile_batch)
    elif dnn.trace is not None:
        found = read_layer_trace(reading.source.folder / dnn.trace, batch_size=profile_batch)
    else:
        found, is_measured = _layers(reading, profile_batch)
        if not is_measured:
            return found.dnn, None
    reading.notes.warnings.extend(found.warnings)
    _inline(reading, found, profile_batch)
    return found.dnn, found.profile


def _note_positions(reading: Reading, dnn: Dnn) -> None:
    """Say aloud that a table of learned positions grew, which adds parameters."""
    length = reading.spec.dnn.sequence_length
    if length is None or dnn.transformer is None or dnn.transformer.positions != "learned":
        return
    published = row(dnn.name).transformer.num_positions
    if published < length:
        reading.notes.assumptions.append(
            f"the table of learned positions grows from {published:,} to {length:,}, and the network with it"
        )


def _layers(reading: Reading, profile_batch: int) -> tuple[MeasuredNetwork, bool]:
    """Return the network of a ``layers:`` block, and whether its seconds were measured."""
    dnn = reading.spec.dnn
    layers = dnn.layers or []
    rows = [
        MeasuredLayer(
            name=layer.name,
            kind=layer.kind,
            inputs=tuple(layer.inputs),
            forward_s=layer.forward or 0.0,
            backward_s=layer.backward or 0.0,
            output_bytes=layer.output * profile_batch,
            parameter_bytes=layer.parameters,
            num_multiply_adds=int(layer.multiply_adds),
            is_in_place=layer.in_place,
        )
        for layer in layers
    ]
    name = dnn.name or "layers"
    origin = reading.source.data["dnn"].get("name", "layers of the spec")
    found = build_measured(name, rows, batch_size=profile_batch, origin=str(origin))
    is_measured = any(layer.forward is not None or layer.backward is not None for layer in layers)
    if is_measured and (counted := [layer.name for layer in layers if layer.multiply_adds and layer.forward is None]):
        raise ValueError(
            f"layer {counted[0]!r} has multiply_adds and no seconds, others have seconds; give seconds of all layers, "
            f"or of none"
        )
    if not is_measured and not found.dnn.num_multiply_adds:
        raise ValueError("no layer has seconds (forward, backward) or multiply_adds; give one or the other")
    return found, is_measured


def _inline(reading: Reading, found: MeasuredNetwork, profile_batch: int) -> None:
    """Put the layers into the resolved spec, seconds and bytes of one sample, so that it needs no other file."""
    profile = found.profile
    inputs = [layer.name for layer in found.dnn.layers if layer.kind == "input"]
    rows = []
    for layer, forward_s, backward_s in zip(
        found.dnn.layers, profile.forward_s.tolist(), profile.backward_s.tolist(), strict=True
    ):
        reading_s = profile.read_s or 0.0 if inputs and layer.name == inputs[0] else 0.0
        row = {
            "name": layer.name,
            "kind": layer.kind,
            "inputs": list(found.dnn.inputs_of(layer.name)),
            "forward": format_exact(forward_s + reading_s, Dimension.TIME),
            "backward": format_exact(backward_s, Dimension.TIME),
            "parameters": f"{layer.num_trainable * 4} B",
            "output": f"{layer.num_output_elements * 4} B",
        }
        rows.append({**row, "in_place": True} if layer.is_in_place else row)
    old = reading.resolved["dnn"]
    kept = {
        key: value for key, value in old.items() if key not in ("profile", "trace", "layers", "profile_batch", "name")
    }
    if given := reading.spec.dnn.substitutions:
        pairs = zip(old["substitutions"], given, strict=True)
        kept["substitutions"] = [per_sample(raw, one, profile_batch) for raw, one in pairs]
    reading.resolved["dnn"] = {"name": found.dnn.name, "layers": rows, "profile_batch": 1, **kept}
