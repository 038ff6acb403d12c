"""The network of a spec: built, or read with its measured profile, or made of the layers that the spec lists."""

from typing import get_args

from planner import zoo
from planner.cost import Profile
from planner.dnn import Dnn, Repeat
from planner.importers.measured import MeasuredLayer, MeasuredNetwork, build_measured
from planner.problem import Assumption
from planner.spec.foreign import read_foreign, read_profile
from planner.spec.inline import network_block
from planner.spec.question import DnnSpec
from planner.spec.reading import Reading
from planner.spec.substitutions import per_sample
from planner.spec.values import Dtype
from planner.zoo.transformers import dnn_of, row

__all__ = ["batch_of_profile", "is_measured", "read_network"]

# What the layers themselves say, or a transformer's sizes, in a spec that needs no other file.
_REPLACED = (
    *("profile", "trace", "onnx", "huggingface", "torch", "dimensions", "sequence_length", "text_only"),
    *("layers", "repeats", "profile_batch", "name"),
)


def is_measured(dnn: DnnSpec) -> bool:
    """Whether the seconds of the layers are given."""
    return bool(dnn.profile or dnn.trace or any(layer.forward is not None for layer in dnn.layers or []))


def batch_of_profile(reading: Reading) -> int:
    """Return the batch at which a measured profile was taken."""
    dnn = reading.spec.dnn
    if dnn.profile_batch is not None:
        return dnn.profile_batch
    if not is_measured(dnn):
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
    """Return the network, and its profile where it was measured; put what was read into the resolved spec."""
    dnn = reading.spec.dnn
    if dnn.zoo is not None:
        found_dnn = zoo.build(dnn.zoo, sequence_length=dnn.sequence_length)
        _note_positions(reading, found_dnn)
        _note_sequence(reading, found_dnn, ("dnn", "sequence_length"))
        return found_dnn, None
    if dnn.transformer is not None:
        return dnn_of(dnn.transformer.build(), dnn.name or "transformer", source="sizes of the spec"), None
    if dnn.layers is not None:
        found, is_measured = _layers(reading, profile_batch)
        if not is_measured:
            return found.dnn, None
        network, profile, warnings = found.dnn, found.profile, found.warnings
    elif (file := dnn.profile or dnn.trace) is not None:
        measured = read_profile(reading.source.folder / file, batch_size=profile_batch)
        network, profile, warnings = measured.dnn, measured.profile, measured.warnings
    else:
        network, warnings = _imported(reading)
        profile = None
    reading.notes.warnings.extend(warnings)
    _inline(reading, network, profile, profile_batch)
    if dnn.huggingface is not None:
        _note_sequence(reading, network, ("dnn", "transformer", "sequence_length"))
    if profile is None and warnings:  # of another program's file: they hold for whoever reads the answer, too
        reading.resolved["dnn"]["warnings"] = list(warnings)
    return network, profile


def _imported(reading: Reading) -> tuple[Dnn, tuple[str, ...]]:
    """Return the network of a file of another program, or of a module, and what makes it doubtful."""
    dnn = reading.spec.dnn
    found = read_foreign(
        dnn.source,
        str(getattr(dnn, dnn.source)),
        folder=reading.source.folder,
        sizes=dnn.dimensions,
        sequence_length=dnn.sequence_length,
        allowed_code=reading.source.allowed_code,
        is_text_only=dnn.text_only,
    )
    if not found.dnn.num_multiply_adds:
        raise ValueError("the network has no multiply-adds, so that nothing is known of its time; give one that has")
    reading.notes.assumptions.extend(found.notes)
    if dnn.dtype is None and found.dtype in get_args(Dtype):
        reading.notes.assumptions.append(f"dtype: {found.dtype}, as the weights are stored")
        reading.resolved["dnn"]["dtype"] = found.dtype
    return found.dnn, found.warnings


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


def _note_sequence(reading: Reading, dnn: Dnn, field: tuple[str, ...]) -> None:
    """Note the length of the sequences of a network that reads text, where only the network itself says it."""
    sizes = dnn.transformer
    if reading.spec.dnn.sequence_length is not None or sizes is None or sizes.image is not None:
        return
    length = sizes.sequence_length
    text = f"sequence length: {length:,} tokens, as the network has it"
    reading.notes.key_assumptions.append(Assumption(text=text, field=field, flag="--sequence-length", other=2 * length))


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
            layer=layer.build(),
        )
        for layer in layers
    ]
    name = dnn.name or "layers"
    origin = dnn.name or "layers of the spec"
    found = build_measured(name, rows, batch_size=profile_batch, origin=origin, repeats=_repeats(dnn))
    is_measured = any(layer.forward is not None or layer.backward is not None for layer in layers)
    if is_measured and (counted := [layer.name for layer in layers if layer.multiply_adds and layer.forward is None]):
        raise ValueError(
            f"layer {counted[0]!r} has multiply_adds and no seconds, others have seconds; give seconds of all layers, "
            f"or of none"
        )
    if not is_measured and not found.dnn.num_multiply_adds:
        raise ValueError("no layer has seconds (forward, backward) or multiply_adds; give one or the other")
    return found, is_measured


def _repeats(dnn: DnnSpec) -> tuple[Repeat, ...]:
    """Return the repeats that a spec names; refuse those that lie outside of its layers, or overlap."""
    end = 0
    for one in dnn.repeats:
        if one.first < end:
            raise ValueError(f"the repeat from layer {one.first} on overlaps the one before; give them in order")
        end = one.first + one.layers * one.count
    if end > len(dnn.layers or ()):
        raise ValueError(
            f"repeats reach to layer {end}, there are {len(dnn.layers or ())}; mend first, layers or count"
        )
    return tuple(Repeat(first=one.first, num_layers=one.layers, count=one.count, kind=one.kind) for one in dnn.repeats)


def _inline(reading: Reading, dnn: Dnn, profile: Profile | None, profile_batch: int) -> None:
    """Put the network into the resolved spec, figures of one sample, so that it needs no other file."""
    old = dict(reading.resolved["dnn"])
    if given := reading.spec.dnn.substitutions:
        pairs = zip(old["substitutions"], given, strict=True)
        old["substitutions"] = [per_sample(raw, one, profile_batch) for raw, one in pairs]
    block = network_block(dnn, profile)
    reading.resolved["dnn"] = {**block, **{key: value for key, value in old.items() if key not in _REPLACED}}
