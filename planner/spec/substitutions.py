"""The ``dnn.substitutions`` of a spec, made into runs of layers and the blocks that may take their place."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from planner import data
from planner.cost import Profile
from planner.dnn import Dnn
from planner.spec.layers import BlockSpec, LayerSpec, RunSpec, SubstitutionSpec
from planner.spec.source import Notes, nearest
from planner.substitution import Substitution, check_fit, ends_of, run_between
from planner.units import Dimension, format_exact
from planner.zoo.builder import Builder

__all__ = ["Draft", "check_names", "drafts_of", "per_sample", "substitution_of"]


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
