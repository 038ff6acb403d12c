"""Networks written as a spec's ``dnn`` block has them, so that a question, or a file, needs nothing else."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import numpy as np
from pydantic import ValidationError

from planner import data, zoo
from planner.cluster import Cluster
from planner.cost import Profile
from planner.dnn import Dnn, Layer, Repeat
from planner.errors import Fault, SpecError
from planner.importers.imported import Imported, MeasuredLayer, MeasuredNetwork, build_measured
from planner.importers.kinds import kind_of
from planner.letters import visible
from planner.plan import Goal
from planner.problem import Assumption, Training
from planner.question.blocks import ELEMENT_BYTES, BlockSpec, LayerSpec, RunSpec, SubstitutionSpec
from planner.question.source import Notes, Source, faults_of, nearest, read_source
from planner.question.spec import NETWORK_KEYS, DnnSpec, Reading
from planner.question.values import Dtype
from planner.substitution import Substitution, check_fit, ends_of, run_between
from planner.units import Dimension, format_exact
from planner.zoo import transformers
from planner.zoo.builder import Builder
from planner.zoo.transformers import block_of, dnn_of


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


# --- Networks of other programs: which reader takes what, and code of the user's, which runs only if it is named

# Kind of a profile, as its content tells it, and the module and the name of its reader.
PROFILE_KINDS = {
    "graph": ("profiles", "read_graph_profile"),
    "layer_trace": ("profiles", "read_layer_trace"),
    "layer_csv": ("profiles", "read_layer_csv"),
    "chrome_trace": ("chrome_trace", "read_chrome_trace"),
}

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
    if kind not in PROFILE_KINDS:
        problem, mend = f"this is no profile but of the kind {kind}.", f"Write {kind}: instead, under dnn."
        raise SpecError.of([Fault(file=str(path), problem=problem, mend=mend)])
    module, reader = PROFILE_KINDS[kind]
    # Imported late: few questions need more than one.
    found: MeasuredNetwork = getattr(import_module(f"planner.importers.{module}"), reader)(path, batch_size=batch_size)
    return replace(found, warnings=tuple(map(visible, found.warnings)))


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

        return _as_searched(_seen(read_onnx(folder / name, sizes=sizes)))
    if key == "huggingface":
        return _seen(_of_config(folder / name, sequence_length, is_text_only=is_text_only))
    if name != allowed_code:
        problem = f"{name!r} would run code of yours to build the network; a spec alone must not."
        mend = f"Allow it on the command line, --run {name}, or write the network to a file with `planner import`."
        raise SpecError.of([Fault(problem=problem, mend=mend, value=name)])
    from planner.importers.torch_module import read_factory  # noqa: PLC0415

    return _as_searched(_seen(read_factory(name, folder)))


def _of_config(path: Path, sequence_length: int | None, *, is_text_only: bool) -> Imported:
    """Return the transformer of a Hugging Face ``config.json``."""
    from planner.importers.huggingface import read_huggingface  # noqa: PLC0415

    found = read_huggingface(path, sequence_length=sequence_length, is_text_only=is_text_only)
    dnn = dnn_of(found.transformer, found.name, source=f"Hugging Face configuration {path.name}")
    return Imported(dnn=dnn, dtype=found.dtype, notes=found.notes, warnings=found.warnings)


def _seen(found: Imported) -> Imported:
    """Return what a reader gives with every letter of its names and notes seen: they enter here."""
    try:
        dnn = found.dnn.with_visible_names()
    except ValueError as error:
        raise SpecError.of([Fault(problem=f"{error}.", mend="Rename one of them.")]) from None
    notes, warnings = (tuple(visible(line) for line in lines) for lines in (found.notes, found.warnings))
    return replace(found, dnn=dnn, notes=notes, warnings=warnings)


def _as_searched(found: Imported) -> Imported:
    """Return a network without its repeats where it is small enough to be cut anywhere."""
    if len(found.dnn.layers) > MOST_LAYERS_CUT_ANYWHERE or not found.dnn.repeats:
        return found
    return replace(found, dnn=found.dnn.without_repeats())


# --- The ``dnn.substitutions`` of a spec, made into runs of layers and the blocks that may take their place


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A substitution whose block has no seconds on the cluster's devices yet, but those that were measured."""

    name: str
    removed: tuple[str, ...]
    block: Dnn
    measured: Profile | None
    by: str
    note: str


def drafts_of(
    given: Sequence[SubstitutionSpec], dnn: Dnn, *, profile_batch: int, measured: Profile | None, notes: Notes
) -> list[Draft]:
    """Return the substitutions of a network; faults go into ``notes``.

    Parameters
    ----------
    profile_batch, measured
        The network's measured seconds, and the batch they were measured at: the new layers' must be measured, too.
    """
    drafts = []
    for index, spec in enumerate(given):
        at = ("dnn", "substitutions", index)
        draft = notes.attempt(at, lambda spec=spec: _draft(spec, dnn, profile_batch, is_measured=measured is not None))  # type: ignore[misc]
        drafts += [draft] if draft is not None else []
    if not notes.faults:
        notes.attempt(("dnn", "substitutions"), lambda: _check_together(drafts))
    return drafts


def substitution_of(draft: Draft, profiles: Mapping[str, Profile]) -> Substitution:
    """Return a draft with the seconds of its block by device name."""
    return Substitution(
        name=draft.name,
        removed=draft.removed,
        block=draft.block,
        profiles=profiles,
        by=draft.by,
        note=draft.note,
    )


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


def per_sample(block: dict[str, Any], given: SubstitutionSpec, profile_batch: int) -> dict[str, Any]:
    """Return a substitution as a spec has it, with measured seconds of one sample instead of ``profile_batch``."""
    if not isinstance(given.by, BlockSpec):
        return block
    rows = []
    for raw, layer in zip(block["by"]["layers"], given.by.layers, strict=True):
        seconds = {"forward": layer.forward, "backward": layer.backward}
        texts = {
            key: format_exact(value / profile_batch, Dimension.TIME)
            for key, value in seconds.items()
            if value is not None
        }
        rows.append({**raw, **texts})
    return {**block, "by": {**block["by"], "layers": rows}}


def _draft(spec: SubstitutionSpec, dnn: Dnn, profile_batch: int, *, is_measured: bool) -> Draft:
    """Return one substitution; raise ValueError or SpecError where it has no meaning."""
    run = _run(spec, dnn)
    if isinstance(spec.by, BlockSpec):
        block = _given_block(spec.name, spec.by)
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
    return Draft(name=spec.name, removed=run, block=block, measured=measured, by=by, note=note)


def _run(spec: SubstitutionSpec, dnn: Dnn) -> tuple[str, ...]:
    """Return the layers that a substitution takes out, in the network's order."""
    names = {layer.name for layer in dnn.layers}
    given = [spec.layers.first, spec.layers.last] if isinstance(spec.layers, RunSpec) else spec.layers
    for name in given:
        if name not in names:
            raise ValueError(f"{dnn.name} has no layer {name!r}. {nearest(name, names)}")
    if isinstance(spec.layers, RunSpec):
        return run_between(dnn, spec.layers.first, spec.layers.last)
    return tuple(layer.name for layer in dnn.layers if layer.name in given)


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


def _given_block(name: str, given: BlockSpec) -> Dnn:
    """Return the block of layers that a spec lists."""
    return Dnn(name, [(one.build(), one.inputs) for one in given.layers], source=given.source)


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


def _check_together(drafts: Sequence[Draft]) -> None:
    """Refuse two substitutions of one name, and blocks that may stand in one network and share a layer's name."""
    for one, other in combinations(drafts, 2):
        if one.name == other.name:
            raise ValueError(f"two substitutions are called {one.name!r}. Give each its own name.")
        if not set(one.removed).isdisjoint(other.removed):
            continue
        if shared := {layer.name for layer in one.block.layers} & {layer.name for layer in other.block.layers}:
            raise ValueError(
                f"{one.name!r} and {other.name!r} both bring a layer {min(shared)!r}. Call one of them otherwise."
            )


# --- The network of a spec: built, or read with its measured profile, or made of the layers that the spec lists

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
    published = transformers.row(dnn.name).transformer.num_positions
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
        reading.notes.key_assumptions.append(
            Assumption(
                text=f"batch: {batch_per_device} samples a device", field=("dnn", "batch_per_device"), flag="--batch"
            )
        )
    if batch_per_device and spec.max_global_batch and batch_per_device > spec.max_global_batch:
        reading.notes.fault(
            ("dnn", "max_global_batch"), "it is less than batch_per_device.", "Raise it.", spec.max_global_batch
        )
    dataset_samples = spec.dataset_samples or dnn.dataset_samples
    if spec.dataset_samples is None and dataset_samples is not None:
        keep["dataset_samples"] = dataset_samples
        reading.notes.assumptions.append(f"data set: {dataset_samples:,} samples, as the network is usually trained on")
    device_sample_bytes = dnn.num_input_elements * _INPUT_ELEMENT_BYTES
    dtype, optimizer = _types_of(reading, dnn, cluster)
    return Training(
        batch_per_device=batch_per_device,
        global_batch_size=spec.global_batch,
        max_global_batch_size=spec.max_global_batch,
        dataset_samples=dataset_samples,
        epochs=spec.epochs,
        sample_bytes=device_sample_bytes if spec.sample_bytes is None else spec.sample_bytes,
        is_sample_size_given=spec.sample_bytes is not None,
        device_sample_bytes=device_sample_bytes,
        dtype=dtype,
        optimizer=optimizer,
    )


def _types_of(reading: Reading, dnn: Dnn, cluster: Cluster) -> tuple[str, str]:
    """Return the numbers' type and the optimiser: as given, else fp32 and momentum, for transformers short and Adam."""
    spec, keep, notes = reading.spec.dnn, reading.resolved["dnn"], reading.notes
    devices = [group.device for group in cluster.machine_groups if group.device.kind != "cpu"]
    common = [one for one in _SHORT if devices and all(one in device.peak_flop_per_s for device in devices)]
    if dnn.transformer is None:
        if spec.dtype is None and common and not is_measured(spec):
            _note_precision(reading, "fp32", "", common[0])
        return spec.dtype or "fp32", spec.optimizer or "momentum"
    dtype, optimizer = str(spec.dtype or ""), str(spec.optimizer or "")
    if not dtype:
        keep["dtype"] = dtype = common[0] if common else "fp32"
        _note_precision(
            reading, dtype, ", as transformers are trained on such devices", "fp32" if dtype != "fp32" else None
        )
    if not optimizer:
        keep["optimizer"] = optimizer = "adam"
        notes.assumptions.append("optimizer: adam, as transformers are usually trained")
    return dtype, optimizer


def _note_precision(reading: Reading, dtype: str, why: str, other: str | None) -> None:
    """Note the type of numbers that was assumed."""
    reading.notes.key_assumptions.append(
        Assumption(text=f"precision: {dtype}{why}", field=("dnn", "dtype"), flag="--precision", other=other)
    )


def goal_of(reading: Reading, training: Training) -> Goal:
    """Return what is minimised: what the spec says, else epoch time, else iteration time."""
    name = reading.spec.objective
    if name is None:
        name = "epoch_time" if training.dataset_samples else "iteration_time"
        reading.notes.assumptions.append(f"objective: {name}")
    reading.resolved["objective"] = name
    if name != "iteration_time" and training.dataset_samples is None:
        reading.notes.fault(("dnn",), f"{name} needs the size of the data set.", "Add dataset_samples: 1281167, say.")
    if name == "training_time" and training.epochs is None:
        reading.notes.fault(("dnn",), "training_time needs a number of epochs.", "Add epochs: 90, say.")
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
# In a question that is a mapping the network itself may stand there, too, as :func:`planner.from_torch` returns it:
# ``dnn: {network: found, batch_per_device: 64}``.

_FILE, _NETWORK = "file", "network"
_Path = tuple[str | int, ...]
_Parts = dict[_Path, tuple[Source, _Path]]
_PATHS = ("profile", "trace", "onnx", "huggingface")


def with_networks(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return a question as plain data, a network in it as the block of its layers."""
    given = question.get("dnn")
    found = given.get(_NETWORK) if isinstance(given, Mapping) else given
    if not isinstance(found, Dnn | Imported):
        return dict(question)
    beside = {key: value for key, value in given.items() if key != _NETWORK} if isinstance(given, Mapping) else {}
    imported = found if isinstance(found, Imported) else Imported(dnn=found)
    return {**question, "dnn": {**imported_block(imported), **beside}}


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
        raise SpecError.of([source.fault(at, "this must be the name of a file.", "Write e.g. dnn.yaml.")])
    if also := [key for key in NETWORK_KEYS if key in given]:
        problem = f"{_FILE} and {also[0]} both name a network."
        raise SpecError.of([source.fault((*path, "dnn", also[0]), problem, "Keep one of them.")])
    own = {key: value for key, value in given.items() if key != _FILE}
    block, file, root = _block(source.folder / given[_FILE])
    parts[(*path, "dnn")] = (file, root)
    return {**part, "dnn": {**block, **own}}


def _block(path: Path) -> tuple[dict[str, Any], Source, _Path]:
    """Return a file's block, checked by itself so that faults name the file's own lines, the file, and its place."""
    if (kind := kind_of(path)) is not None:
        key = kind if kind in _PATHS else "profile"
        problem = f"this is no block that `planner import` wrote, but of the kind {kind}."
        raise SpecError.of([Fault(file=str(path), problem=problem, mend=f"Write {key}: instead of {_FILE}:.")])
    found = read_source(path)
    has_key = "dnn" in found.data
    root: _Path = ("dnn",) if has_key else ()
    block = found.data["dnn"] if has_key else found.data
    if not isinstance(block, dict) or _FILE in block:
        problem = "a file cannot name a further file." if isinstance(block, dict) else "this holds no network."
        raise SpecError.of([found.fault(root, problem, "Give what `planner import FILE -o dnn.yaml` wrote.")])
    try:
        DnnSpec.model_validate(block)
    except ValidationError as error:
        raise SpecError.of(faults_of(error, found, DnnSpec, root)) from None
    named = {key: block[key] for key in _PATHS if isinstance(block.get(key), str)}  # relative to this file
    absolute = {key: str((found.folder / name).resolve()) for key, name in named.items()}
    return {**block, **absolute}, found, root
