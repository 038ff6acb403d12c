"""The ``dnn`` block of a spec: the network and its measured seconds, what may replace its layers, and the training.

A network is one that is built in, the layers or a transformer's sizes that the spec lists, or what a file of another
program holds. What was read is written back into the resolved question as layers or sizes (:func:`network_block`), so
that this needs no other file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from pydantic import ValidationError

from planner import data, zoo
from planner.cluster import Cluster
from planner.cost import Profile
from planner.dnn import Dnn, Layer, Repeat
from planner.errors import SpecError
from planner.importers.imported import Imported, MeasuredLayer, MeasuredNetwork, build_measured
from planner.importers.kinds import IMPORTERS, kind_of
from planner.letters import visible
from planner.models.low_precision import LOW_TYPES
from planner.names import OF_TRANSFORMERS
from planner.plan import Goal
from planner.problem import Training
from planner.question.blocks import ELEMENT_BYTES, BlockSpec, LayerSpec, OperatorSpec, RunSpec, SubstitutionSpec
from planner.question.low_precision import low_precision_of
from planner.question.source import Source, faults_of, nearest, read_source
from planner.question.spec import NETWORK_KEYS, DnnSpec, Reading
from planner.question.transformer import adapted, frozen
from planner.question.values import Dtype, is_graph
from planner.substitution import Substitution, check_fit, ends_of, run_between
from planner.transformer import Transformer
from planner.units import Dimension, format_exact
from planner.zoo import transformers
from planner.zoo.builder import Builder
from planner.zoo.transformers import block_of, dnn_of, with_encoder, with_mtp_layers

if TYPE_CHECKING:
    import networkx as nx


def network_block(dnn: Dnn, profile: Profile | None = None, *, batch_size: int = 1) -> dict[str, object]:
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
        block["profile_batch"] = batch_size
        # The reading of a sample is the forward time of the first input.
        first = next((layer.name for layer in dnn.layers if layer.kind == "input"), None)
        seconds = ((profile.forward_s * batch_size).tolist(), (profile.backward_s * batch_size).tolist())
        for row, forward_s, backward_s in zip(rows, *seconds, strict=True):
            reading_s = (profile.read_s or 0.0) * batch_size if row["name"] == first else 0.0
            row["forward"] = format_exact(forward_s + reading_s, Dimension.TIME)
            row["backward"] = format_exact(backward_s, Dimension.TIME)
    return block


def transformer_block(transformer: Transformer) -> dict[str, object]:
    """Return the ``dnn`` block of a transformer by its sizes."""
    return {"transformer": block_of(transformer)}


def imported_block(found: Imported, *, batch_size: int = 1) -> dict[str, object]:
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
    flag: dict[str, Any] = {"in_place": True} if layer.is_in_place else {}
    if layer.operators:
        flag["operators"] = [OperatorSpec.of(one) for one in layer.operators]
    if layer.kept_beside_bytes:
        flag["kept_beside"] = f"{layer.kept_beside_bytes} B"
    if LayerSpec.model_validate({**row, **short, **flag}).build() == layer:
        return {**row, **short, **flag}
    if layer.tensors:
        row["tensors"] = [{"name": one.name, "elements": one.num_elements, "role": one.role} for one in layer.tensors]
    window = layer.window
    if window is not None:
        row["window"] = {"kernel": window.kernel, "stride": window.stride, "padding": window.padding}
    shape = {"shape": list(layer.output_shape)} if layer.num_output_elements else {}  # none was given: LayerSpec.build
    return {**row, **shape, **flag}


# --- Networks of other programs; code of the user's runs only if it is named

# Blocks that repeat are kept together by pipelines in larger networks; in smaller ones every cut is tried.
MOST_LAYERS_CUT_ANYWHERE = 256


def read_profile(path: Path, *, batch_size: int) -> MeasuredNetwork:
    """Return the measured network of a profile in any format, which is told by its content.

    Raises
    ------
    SpecError
        If the file cannot be read, or is none.
    """
    kind = kind_of(path) or ("graph" if path.name.endswith((".graph", ".graph.txt")) else "layer_trace")
    if kind not in IMPORTERS:
        problem, mend = f"this is no profile but of the kind {kind}.", f"Write {kind}: instead, under dnn."
        raise SpecError.one(problem, mend, file=path)
    found = IMPORTERS[kind].read(path, batch_size=batch_size)
    if found.profile is None:
        problem, mend = f"no seconds were measured in a file of the kind {kind}.", "Read it with `planner import`."
        raise SpecError.one(problem, mend, file=path)
    return MeasuredNetwork(dnn=found.dnn, profile=found.profile, warnings=tuple(map(visible, found.warnings)))


def read_foreign(
    key: str,
    name: str,
    *,
    folder: Path,
    sizes: Mapping[str, int],
    sequence_length: int | None,
    allowed_code: str | None,
    is_text_only: bool = False,
) -> Imported:
    """Return the network that ``onnx``, ``huggingface`` or ``torch`` names.

    Parameters
    ----------
    name
        A file, relative to ``folder``; of ``torch`` a factory, ``package:function``.
    sizes
        Of an ONNX file's symbolic dimensions.
    is_text_only
        Whether a network of several parts is meant by its text part alone.
    allowed_code
        The factory that the user named on the command line, or in a call: no other is run.
    """
    if key == "onnx":
        from planner.importers.onnx_model import read_onnx  # noqa: PLC0415

        found = read_onnx(folder / name, sizes=sizes)
    elif key == "huggingface":
        from planner.importers.huggingface import read_huggingface  # noqa: PLC0415

        read = read_huggingface(folder / name, sequence_length=sequence_length, is_text_only=is_text_only)
        dnn = dnn_of(read.transformer, read.name, source=f"Hugging Face configuration {(folder / name).name}")
        found = Imported(dnn=dnn, dtype=read.dtype, notes=read.notes, warnings=read.warnings)
    elif name != allowed_code:
        problem = f"{name!r} would run code of yours to build the network; a spec alone must not."
        mend = f"Allow it on the command line, --run {name}, or write the network to a file with `planner import`."
        raise SpecError.one(problem, mend, value=name)
    else:
        from planner.importers.torch_module import read_factory  # noqa: PLC0415

        found = read_factory(name, folder)
    try:  # every letter of names and notes is seen: they enter here
        dnn = found.dnn.with_visible_names()
    except ValueError as error:
        raise SpecError.one(f"{error}.", "Rename one of them.") from None
    if key != "huggingface" and len(dnn.layers) <= MOST_LAYERS_CUT_ANYWHERE and dnn.repeats:
        dnn = dnn.without_repeats()
    notes, warnings = (tuple(visible(line) for line in lines) for lines in (found.notes, found.warnings))
    return replace(found, dnn=dnn, notes=notes, warnings=warnings)


# --- Substitutions: runs of layers, and the blocks that may take their place


def substitutions_of(
    reading: Reading, dnn: Dnn, profile_batch: int, *, is_measured: bool
) -> list[tuple[Substitution, Profile | None]]:
    """Return the allowed substitutions without seconds on any device, and those that were measured of their blocks.

    ``is_measured``: the network's seconds were, at the batch ``profile_batch``; the new layers' must be, too. Faults
    are noted.
    """
    blocks, notes = [], reading.notes
    for index, spec in enumerate(reading.spec.dnn.substitutions):
        at = ("dnn", "substitutions", index)
        made = notes.attempt(at, lambda spec=spec: _substitution(spec, dnn, profile_batch, is_measured=is_measured))  # type: ignore[misc]
        blocks += [made] if made is not None else []
    if blocks and not notes.faults:
        notes.attempt(("dnn", "substitutions"), lambda: _check_together([one for one, _ in blocks]))
    return blocks


def check_names(chosen: Sequence[str], allowed: Sequence[Substitution]) -> None:
    """Refuse names of no substitution, and those that exclude each other.

    Raises
    ------
    ValueError
        With the nearest name, or the layers that are wanted twice.
    """
    known = {one.name: one for one in allowed}
    for name in chosen:
        if name not in known:
            mend = nearest(name, known) if known else "Describe it under dnn.substitutions."
            raise ValueError(f"there is no substitution {name!r}. {mend}")
    for one, other in combinations(dict.fromkeys(chosen), 2):
        if known[one].overlaps(known[other]):
            raise ValueError(f"{one!r} and {other!r} take out the same layers. Keep one of them.")


def _substitution(
    spec: SubstitutionSpec, dnn: Dnn, profile_batch: int, *, is_measured: bool
) -> tuple[Substitution, Profile | None]:
    """Return one substitution and its measured seconds; raise ValueError or SpecError where it has no meaning."""
    names = {layer.name for layer in dnn.layers}
    given = [spec.layers.first, spec.layers.last] if isinstance(spec.layers, RunSpec) else spec.layers
    for name in given:
        if name not in names:
            raise ValueError(f"{dnn.name} has no layer {name!r}. {nearest(name, names)}")
    if isinstance(spec.layers, RunSpec):
        run = run_between(dnn, spec.layers.first, spec.layers.last)
    else:
        run = tuple(layer.name for layer in dnn.layers if layer.name in given)
    if isinstance(spec.by, BlockSpec):
        block = Dnn(spec.name, [(one.build(), one.inputs) for one in spec.by.layers], source=spec.by.source)
        measured = _measured(spec.by.layers, block, profile_batch) if is_measured else None
        if not is_measured and any(layer.forward is not None for layer in spec.by.layers):
            raise ValueError("the block's layers have seconds, the network's are counted; give multiply_adds instead")
        by, note = spec.by.source or "layers of the spec", ""
    else:
        if is_measured:
            raise ValueError(
                f"the network was measured, and {spec.by!r} has no seconds; give its layers with forward and backward"
            )
        run, block = _shipped_block(spec.by, dnn, run)
        measured, by, note = None, spec.by, str(data.block(spec.by)["accuracy"])
    check_fit(dnn, run, block)
    return Substitution(name=spec.name, removed=run, block=block, profiles={}, by=by, note=note), measured


def _shipped_block(name: str, dnn: Dnn, run: tuple[str, ...]) -> tuple[tuple[str, ...], Dnn]:
    """Return a shipped block as it follows a run's entry, and the run.

    A block that reads an image cannot follow a flattening; a flattening that only the run reads then goes with it.
    """
    while True:
        entry, _ = ends_of(dnn, run)
        if entry is None:
            raise ValueError(f"{name!r} needs the shape of what it reads; leave the network's first layer in place")
        before = next(layer for layer in dnn.layers if layer.name == entry)
        try:
            return run, _built(name, before.output_shape)
        except ValueError:
            is_private = set(dnn.graph.successors(entry)) <= set(run)
            if before.kind != "flatten" or not is_private:
                raise
            run = (entry, *run)


def _built(name: str, shape: tuple[int, ...]) -> Dnn:
    """Return a shipped block that reads an output of ``shape``."""
    described = data.block(name)
    builder = Builder(shape)
    makers: Mapping[str, Callable[..., Builder]] = {
        "convolution": builder.conv,
        "relu": builder.relu,
        "global_average_pool": builder.global_average_pool,
        "flatten": builder.flatten,
        "fully_connected": builder.fully_connected,
    }
    for row in described["layers"]:
        makers[row["kind"]](**{key: value for key, value in row.items() if key != "kind"})
    layers = [
        (layer, [one for one in inputs if one != "input"]) for layer, inputs in builder.layers if layer.kind != "input"
    ]
    return Dnn(name, layers, source=described["source"])


def _measured(layers: Sequence[LayerSpec], block: Dnn, batch_size: int) -> Profile:
    """Return the measured seconds of a block; refuse one that lacks them where there is work."""
    for layer in layers:
        if layer.forward is None and (layer.multiply_adds or layer.parameters):
            raise ValueError(f"the network was measured, and {layer.name!r} has no seconds; add forward and backward")
    if all(layer.forward is None for layer in layers):
        raise ValueError(f"the network was measured, and {block.name!r} has no seconds; add forward and backward")
    by_name = {layer.name: layer for layer in layers}
    ordered = [by_name[layer.name] for layer in block.layers]
    return Profile(
        forward_s=np.array([layer.forward or 0.0 for layer in ordered]) / batch_size,
        backward_s=np.array([layer.backward or 0.0 for layer in ordered]) / batch_size,
        is_measured=True,
        origin=f"measured: the spec, batch {batch_size}",
    )


def _check_together(substitutions: Sequence[Substitution]) -> None:
    """Refuse two substitutions of one name, and blocks that may stand in one network and share a layer's name."""
    for one, other in combinations(substitutions, 2):
        if one.name == other.name:
            raise ValueError(f"two substitutions are called {one.name!r}. Give each its own name.")
        if one.overlaps(other):
            continue
        if shared := {layer.name for layer in one.block.layers} & {layer.name for layer in other.block.layers}:
            raise ValueError(
                f"{one.name!r} and {other.name!r} both bring a layer {min(shared)!r}. Call one of them otherwise."
            )


# --- The network of a spec

# What the layers themselves say, or a transformer's sizes, in a spec that needs no other file.
_REPLACED = (
    *("profile", "trace", "onnx", "huggingface", "torch", "dimensions", "sequence_length", "text_only"),
    "mtp_layers",
    "encoder",
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
    """Return the network with what is trained of it, and its profile where it was measured; note it as resolved.

    Raises
    ------
    SpecError
        If it cannot have these adapters, or these frozen parts.
    """
    network, profile = _read_network(reading, profile_batch)
    if (length := reading.spec.dnn.packed) is not None:
        network = _packed(network, profile, length)
    key, asked, resolved = "", reading.spec.dnn, reading.resolved["dnn"]
    if asked.name is not None:
        network, resolved["name"] = network.named(asked.name), asked.name
    try:
        if asked.fine_tuning is not None:
            key = "fine_tuning"
            network, resolved[key] = adapted(asked.fine_tuning, network, profile)
        if asked.frozen is not None:
            key = "frozen"
            network, resolved[key] = frozen(asked.frozen, network, profile)
    except ValueError as error:
        problem, _, mend = str(error).partition(". ")
        raise SpecError.one(f"{problem}.", mend, field=f"dnn.{key}") from None
    return network, profile


def _packed(dnn: Dnn, profile: Profile | None, length: int) -> Dnn:
    """Return a network whose samples are packed with documents of a length."""
    try:
        if dnn.transformer is None or profile is not None:
            why = "its seconds were measured" if dnn.transformer is not None else "it is not known as a transformer"
            raise ValueError(f"{dnn.name} reads no packs of documents that are counted: {why}. Leave packed out.")
        network = replace(dnn.transformer, document_length=length)
    except ValueError as error:
        problem, _, mend = str(error).partition(". ")
        raise SpecError.one(f"{problem}.", mend, field="dnn.packed", value=str(length)) from None
    return dnn_of(network, dnn.name, source=dnn.source, dataset_samples=dnn.dataset_samples)


def check_training(reading: Reading, training: Training) -> None:
    """Refuse an optimiser of adapters that is not counted, and a configuration of a family that does not count all."""
    has_adapters, configured = reading.spec.dnn.fine_tuning is not None, reading.spec.configuration
    has_frozen = reading.spec.dnn.frozen is not None
    if has_adapters and training.optimizer == "muon":
        problem, mend = "adapters are stepped by none that needs whole matrices here.", "Write optimizer: adam."
        reading.notes.fault(("dnn", "optimizer"), problem, mend, "muon")
    still = "training by adapters" if has_adapters else "training with frozen parts" if has_frozen else ""
    own_words = training.own_words or still
    if own_words and configured is not None and configured.family != OF_TRANSFORMERS:
        problem = f"{configured.family} does not count {own_words}."
        reading.notes.fault(("configuration", configured.family), problem, f"Write {OF_TRANSFORMERS}.")


def _read_network(reading: Reading, profile_batch: int) -> tuple[Dnn, Profile | None]:
    """Return the same, trained whole."""
    dnn, notes = reading.spec.dnn, reading.notes
    profile: Profile | None = None
    if dnn.zoo is not None:
        network = _seeing(dnn, _predicting(dnn, zoo.build(dnn.zoo, sequence_length=dnn.sequence_length)))
        _note_sequence(reading, network, ("dnn", "sequence_length"))
        return network, None
    if dnn.transformer is not None:
        network = dnn_of(dnn.transformer.build(), dnn.name or "transformer", source="sizes of the spec")
        return _seeing(dnn, _predicting(dnn, network)), None
    if dnn.layers is not None:
        found, has_seconds = _layers(reading, profile_batch)
        if not has_seconds:
            return found.dnn, None
        network, profile, warnings = found.dnn, found.profile, found.warnings
    elif (file := dnn.profile or dnn.trace) is not None:
        measured = read_profile(reading.source.folder / file, batch_size=profile_batch)
        network, profile, warnings = measured.dnn, measured.profile, measured.warnings
    else:
        imported = read_foreign(
            dnn.source,
            str(getattr(dnn, dnn.source)),
            folder=reading.source.folder,
            sizes=dnn.dimensions,
            sequence_length=dnn.sequence_length,
            allowed_code=reading.source.allowed_code,
            is_text_only=dnn.text_only,
        )
        network, warnings = _seeing(dnn, _predicting(dnn, imported.dnn)), imported.warnings
        if not network.num_multiply_adds:
            raise ValueError(
                "the network has no multiply-adds, so that nothing is known of its time; give one that has"
            )
        # what says how depths that predict further tokens are asked for is no news to who asks for them
        told = (note for note in imported.notes if dnn.mtp_layers is None or "dnn.mtp_layers" not in note)
        notes.assumptions.extend(told)
        if dnn.dtype is None and imported.dtype in get_args(Dtype):
            notes.assumptions.append(f"dtype: {imported.dtype}, as the weights are stored")
            reading.resolved["dnn"]["dtype"] = imported.dtype
    notes.warnings.extend(warnings)
    # The network goes into the resolved spec, figures of one sample, so that it needs no other file.
    kept = {key: value for key, value in reading.resolved["dnn"].items() if key not in _REPLACED}
    if dnn.substitutions:
        pairs = zip(kept["substitutions"], dnn.substitutions, strict=True)
        kept["substitutions"] = [_per_sample(raw, one, profile_batch) for raw, one in pairs]
    reading.resolved["dnn"] = {**network_block(network, profile), **kept}
    if dnn.huggingface is not None:
        _note_sequence(reading, network, ("dnn", "transformer", "sequence_length"))
    if profile is None and warnings:  # of another program's file: they hold for whoever reads the answer, too
        reading.resolved["dnn"]["warnings"] = list(warnings)
    return network, profile


def _predicting(spec: DnnSpec, network: Dnn) -> Dnn:
    """Return the network with the layers of multi-token prediction that a spec adds, which no row of the zoo has."""
    if spec.mtp_layers is None:
        return network
    if network.transformer is None:
        raise ValueError(f"{network.name} predicts no tokens. Leave out mtp_layers.")
    try:
        transformer = with_mtp_layers(network.transformer, spec.mtp_layers)
    except ValueError as error:
        problem, _, mend = str(error).partition(". ")
        raise SpecError.one(f"{problem}.", mend, field="dnn.mtp_layers") from None
    return dnn_of(transformer, network.name, source=network.source, dataset_samples=network.dataset_samples)


def _seeing(spec: DnnSpec, network: Dnn) -> Dnn:
    """Return the network with the encoder of images that a spec adds, or with its own as the spec has it.

    Raises
    ------
    SpecError
        If it cannot have such a one.
    """
    if spec.encoder is None:
        return network
    try:
        if network.transformer is None:
            raise ValueError(f"{network.name} is not known as a transformer. Leave out encoder.")
        transformer = with_encoder(network.transformer, spec.encoder.model_dump(exclude_none=True))
    except ValueError as error:
        problem, _, mend = str(error).partition(". ")
        raise SpecError.one(f"{problem}.", mend, field="dnn.encoder") from None
    return dnn_of(transformer, network.name, source=network.source, dataset_samples=network.dataset_samples)


def _note_sequence(reading: Reading, dnn: Dnn, field: tuple[str, ...]) -> None:
    """Note the length of the sequences of a network that reads text, where only the network itself says it.

    Where the spec says it, a table of learned positions may grow, which adds parameters.
    """
    sizes, length = dnn.transformer, reading.spec.dnn.sequence_length
    if length is not None and reading.spec.dnn.zoo is not None and sizes is not None and sizes.positions == "learned":
        published = transformers.row(dnn.name).transformer.num_positions
        if published < length:
            reading.notes.assumptions.append(
                f"the table of learned positions grows from {published:,} to {length:,}, and the network with it"
            )
    if length is None and sizes is not None and sizes.image is None:
        length = sizes.sequence_length
        text = f"sequence length: {length:,} tokens, as the network has it"
        reading.notes.assume_aloud(text, field, flag="--sequence-length", other=2 * length)


def _per_sample(block: dict[str, Any], given: SubstitutionSpec, profile_batch: int) -> dict[str, Any]:
    """Return a substitution as a spec has it, with measured seconds of one sample instead of ``profile_batch``."""
    if not isinstance(given.by, BlockSpec):
        return block
    rows = []
    for raw, layer in zip(block["by"]["layers"], given.by.layers, strict=True):
        measured = {"forward": layer.forward, "backward": layer.backward}
        seconds = {key: value / profile_batch for key, value in measured.items() if value is not None}
        rows.append({**raw, **{key: format_exact(value, Dimension.TIME) for key, value in seconds.items()}})
    return {**block, "by": {**block["by"], "layers": rows}}


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
    end, number = 0, len(dnn.layers or ())
    for one in dnn.repeats:
        if one.first < end:
            raise ValueError(f"the repeat from layer {one.first} on overlaps the one before; give them in order")
        end = one.first + one.layers * one.count
    if end > number:
        raise ValueError(f"repeats reach to layer {end}, there are {number}; mend first, layers or count")
    return tuple(Repeat(first=one.first, num_layers=one.layers, count=one.count, kind=one.kind) for one in dnn.repeats)


# --- What a spec trains for: batch, data set and types, and what is minimised

_BATCH = 32
_INPUT_ELEMENT_BYTES = 4
_SHORT = ("bf16", "fp16")  # what transformers are trained in, the first that all devices compute in


def training_of(reading: Reading, dnn: Dnn, profile_batch: int, cluster: Cluster) -> Training:
    """Return the batch, the data set and the types, with what had to be assumed."""
    spec, keep = reading.spec.dnn, reading.resolved["dnn"]
    batch_per_device = spec.batch_per_device
    if batch_per_device is None and spec.global_batch is None and spec.max_global_batch is None:
        batch_per_device = profile_batch if profile_batch > 1 else _BATCH
        keep["batch_per_device"] = batch_per_device
        text = f"batch: {batch_per_device} samples a device"
        reading.notes.assume_aloud(text, ("dnn", "batch_per_device"), flag="--batch")
    if batch_per_device and spec.max_global_batch and batch_per_device > spec.max_global_batch:
        reading.notes.fault(
            ("dnn", "max_global_batch"), "it is less than batch_per_device.", "Raise it.", spec.max_global_batch
        )
    dataset_samples, epochs = spec.dataset_samples or dnn.dataset_samples, spec.epochs
    if (num_samples := _samples_of(reading, dnn)) is not None:
        dataset_samples, epochs = (
            spec.dataset_samples or num_samples,
            num_samples / (spec.dataset_samples or num_samples),
        )
    elif spec.dataset_samples is None and dataset_samples is not None:
        keep["dataset_samples"] = dataset_samples
        reading.notes.assumptions.append(f"data set: {dataset_samples:,} samples, as the network is usually trained on")
    device_sample_bytes = dnn.num_input_elements * _INPUT_ELEMENT_BYTES
    dtype, optimizer = _types_of(reading, dnn, cluster)
    return Training(
        batch_per_device=batch_per_device,
        global_batch_size=spec.global_batch,
        max_global_batch_size=spec.max_global_batch,
        dataset_samples=dataset_samples,
        epochs=epochs,
        sample_bytes=device_sample_bytes if spec.sample_bytes is None else spec.sample_bytes,
        is_sample_size_given=spec.sample_bytes is not None,
        device_sample_bytes=device_sample_bytes,
        dtype=dtype,
        optimizer=optimizer,
        low=low_precision_of(reading, dnn, cluster),
    )


def _samples_of(reading: Reading, dnn: Dnn) -> int | None:
    """Return how many samples a training reads in all, where tokens or samples say it; of tokens the last one whole."""
    spec = reading.spec.dnn
    if spec.tokens is None:
        return spec.samples
    if dnn.transformer is None:
        mend = "Give dnn.samples, or epochs of a data set."
        reading.notes.fault(("dnn", "tokens"), "the network reads no tokens.", mend, spec.tokens)
        return None
    return max(1, -(-spec.tokens // dnn.transformer.sequence_length))


def _types_of(reading: Reading, dnn: Dnn, cluster: Cluster) -> tuple[str, str]:
    """Return the numbers' type and the optimiser: as given, else fp32 and momentum, for transformers short and Adam."""
    spec, keep, notes = reading.spec.dnn, reading.resolved["dnn"], reading.notes
    dtype, optimizer = str(spec.dtype or ""), str(spec.optimizer or "")
    if dtype in LOW_TYPES:  # of products alone
        dtype = _SHORT[0]
    devices = [group.device for group in cluster.machine_groups if group.device.kind != "cpu"]
    short = next((one for one in _SHORT if devices and all(one in device.peak_flop_per_s for device in devices)), None)
    if dnn.transformer is None:
        if spec.dtype is None and short is not None and not is_measured(spec):
            notes.assume_aloud("precision: fp32", ("dnn", "dtype"), flag="--precision", other=short)
        return dtype or "fp32", optimizer or "momentum"
    if not dtype:
        keep["dtype"] = dtype = short or "fp32"
        text = f"precision: {dtype}, as transformers are trained on such devices"
        notes.assume_aloud(text, ("dnn", "dtype"), flag="--precision", other=None if dtype == "fp32" else "fp32")
    if not optimizer:
        keep["optimizer"] = optimizer = "adam"
        notes.assumptions.append("optimizer: adam, as transformers are usually trained")
    return dtype, optimizer


def goal_of(reading: Reading, training: Training, *, reads_tokens: bool) -> Goal:
    """Return what is minimised: what the spec says, else epoch time, else iteration time."""
    name = reading.spec.objective
    if name is None:
        name = "epoch_time" if training.dataset_samples else "iteration_time"
        if reading.spec.dnn.tokens is not None or reading.spec.dnn.samples is not None:
            name = "training_time"
        reading.notes.assumptions.append(f"objective: {name}")
    reading.resolved["objective"] = name
    if name == "training_time" and training.epochs is None:
        length = "tokens" if reads_tokens else "epochs"
        mend = "Add tokens: 300B, say, or epochs." if reads_tokens else "Add epochs: 90, say, or samples."
        reading.notes.fault(("dnn", length), "it is not said how long the training is.", mend)
    elif name != "iteration_time" and training.dataset_samples is None:
        mend = "Add dataset_samples: 1281167, say."
        if reads_tokens:
            mend = "Add dataset_samples, how many sequences an epoch has; or, in place of epochs, tokens: 300B, say."
        reading.notes.fault(("dnn",), f"{name} needs the size of the data set.", mend)
    if name == "iteration_time" and training.max_global_batch_size is not None:
        mend = "Ask for epoch_time, or fix dnn.global_batch."
        reading.notes.fault(
            ("objective",),
            "with a batch that may vary, the smallest one is trivially fastest per iteration.",
            mend,
            name,
        )
    return Goal(name=name)


# --- ``dnn: {file: dnn.yaml}``: a network that ``planner import`` wrote, with what the spec says beside it
# In a question that is a mapping the network itself may stand there, too, as :func:`planner.from_torch` returns it, or
# as a graph of networkx: ``dnn: {network: found, batch_per_device: 64}``.

_FILE, _NETWORK = "file", "network"
_Path = tuple[str | int, ...]
_Parts = dict[_Path, tuple[Source, _Path]]
_PATHS = ("profile", "trace", "onnx", "huggingface")


def with_networks(question: Mapping[str, object]) -> dict[str, object]:
    """Return a question as plain data, a network in it, or a networkx graph of layers, as the block of its layers.

    Attributes of a node are the keys of a layer, and edges lead to the layers that read it; attributes of the graph are
    further keys of the block. The graph of a :class:`planner.dnn.Dnn` will do, too.

    Raises
    ------
    SpecError
        If the graph is not directed, or says something of an edge.
    """
    given = question.get("dnn")
    found = given.get(_NETWORK) if isinstance(given, Mapping) else given
    if is_graph(found):
        block = _of_graph(found)
    elif isinstance(found, Dnn | Imported):
        block = imported_block(found if isinstance(found, Imported) else Imported(dnn=found))
    else:
        return dict(question)
    beside = {key: value for key, value in given.items() if key != _NETWORK} if isinstance(given, Mapping) else {}
    return {**question, "dnn": {**block, **beside}}


def _of_graph(graph: "nx.Graph[Any]") -> dict[str, Any]:
    import networkx as nx  # noqa: PLC0415 - takes a while

    if not isinstance(graph, nx.DiGraph):
        problem = "edges of a network lead from a layer to those that read it, and this graph has no directions."
        raise SpecError.one(problem, "Give a networkx.DiGraph.", field="dnn")
    nodes = dict(graph.nodes(data=True))
    if nodes and all(isinstance(attributes.get("layer"), Layer) for attributes in nodes.values()):
        rows = [(one["layer"], tuple(graph.predecessors(node))) for node, one in nodes.items()]
        return network_block(Dnn(graph.name, rows))
    for layer, reader, attributes in graph.edges(data=True):
        if attributes:
            problem = (
                f"the edge from {layer!r} to {reader!r} has {next(iter(attributes))!r}; edges only say who reads whom."
            )
            raise SpecError.one(problem, "Give what a layer puts out as its `output`.", field="dnn")
    if (bare := next((node for node, attributes in nodes.items() if not attributes), None)) is not None:
        problem = f"the node {bare!r} has no attributes: only edges name it, or a layer would cost nothing."
        raise SpecError.one(problem, f"Add it, e.g. graph.add_node({bare!r}, kind='add', output='1 MB').", field="dnn")
    layers = [
        {**attributes, "name": str(node), "inputs": list(map(str, graph.predecessors(node)))}
        for node, attributes in nodes.items()
    ]
    return {**graph.graph, "layers": layers}


def with_network_files(source: Source) -> Source:
    """Return the question with every network that stands in a file; keys of the question win over the file's.

    Raises
    ------
    SpecError
        If a file cannot be read, its block is wrong, or the question names another network, too.
    """
    parts: _Parts = {}
    data = _with_file(source.data, source, (), parts)
    procure = data.get("procure")
    jobs = procure.get("jobs") if isinstance(procure, dict) else None
    if isinstance(procure, dict) and isinstance(jobs, list):
        path = ("procure", "jobs")
        rows = [_with_file(job, source, (*path, index), parts) for index, job in enumerate(jobs)]
        data = {**data, "procure": {**procure, "jobs": rows}}
    return replace(source, data=data, parts=parts)


def _with_file(part: Any, source: Source, path: _Path, parts: _Parts) -> Any:
    """Return a part of a question with the network of its file, if it names one; note which file that is."""
    given = part.get("dnn") if isinstance(part, dict) else None
    if not isinstance(given, dict) or _FILE not in given:
        return part
    at = (*path, "dnn", _FILE)
    if not isinstance(given[_FILE], str) or not given[_FILE]:
        raise source.error(at, "this must be the name of a file.", "Write e.g. dnn.yaml.")
    if also := [key for key in NETWORK_KEYS if key in given]:
        problem = f"{_FILE} and {also[0]} both name a network."
        raise source.error((*path, "dnn", also[0]), problem, "Keep one of them.")
    own = {key: value for key, value in given.items() if key != _FILE}
    block, file, root = _block(source.folder / given[_FILE])
    parts[(*path, "dnn")] = (file, root)
    return {**part, "dnn": {**block, **own}}


def _block(path: Path) -> tuple[dict[str, Any], Source, _Path]:
    """Return a file's block, checked by itself so that faults name the file's own lines, the file, and its place."""
    if (kind := kind_of(path)) is not None:
        key = kind if kind in _PATHS else "profile"
        problem = f"this is no block that `planner import` wrote, but of the kind {kind}."
        raise SpecError.one(problem, f"Write {key}: instead of {_FILE}:.", file=path)
    found = read_source(path)
    has_key = "dnn" in found.data
    root: _Path = ("dnn",) if has_key else ()
    block = found.data["dnn"] if has_key else found.data
    if not isinstance(block, dict) or _FILE in block:
        problem = "a file cannot name a further file." if isinstance(block, dict) else "this holds no network."
        raise found.error(root, problem, "Give what `planner import FILE -o dnn.yaml` wrote.")
    try:
        DnnSpec.model_validate(block)
    except ValidationError as error:
        raise SpecError.of(faults_of(error, found, DnnSpec, root)) from None
    named = {key: block[key] for key in _PATHS if isinstance(block.get(key), str)}  # relative to this file
    absolute = {key: str((found.folder / name).resolve()) for key, name in named.items()}
    return {**block, **absolute}, found, root
