"""Seconds of every layer, with its multiply-adds: from the CSV template, or a profile held against a network.

A profile's layers are matched with the network's by name. Where the names differ they are matched by order among those
of the same kind and number of parameters, if both have equally many of each.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.calibration.read_table import Column, fault, read_rows
from planner.dnn import Dnn, Layer
from planner.errors import Fault, SpecError
from planner.importers.measured import MeasuredNetwork
from planner.letters import visible

__all__ = ["TEMPLATE", "LayerTime", "LayerTimes", "layers_of_profile", "read_layer_table"]

TEMPLATE = """\
# Seconds of layers for `planner calibrate`, in the order of the network. multiply_adds: of one sample, forward; 0 where
# nothing is multiplied and added up. batch: samples that were passed at a time. Times are of the whole batch; other
# units: forward_ms, forward_us. backward and output (bytes of the whole batch's result) may be left out.
layer,kind,multiply_adds,batch,forward_s,backward_s,parameters
conv1,convolution,118013952,32,0.0021,0.0043,9408
bn1,batch_norm,0,32,0.0006,0.0011,128
fc,fully_connected,2048000,32,0.0002,0.0004,2049000
"""
_COLUMNS = (
    Column(name="multiply_adds", is_least_allowed=True),
    Column(name="batch", is_whole=True),
    Column(name="forward", unit="s", is_least_allowed=True),
    Column(name="backward", unit="s", is_needed=False, is_least_allowed=True),
    Column(name="parameters", is_needed=False, is_least_allowed=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """One layer: multiply-adds and seconds of one sample; ``backward_s`` None where it was not measured."""

    name: str
    kind: str
    num_multiply_adds: float
    forward_s: float
    backward_s: float | None
    num_parameters: float = 0.0
    num_output_elements: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """All layers of one profile, in order; ``batch_size`` samples were passed at a time."""

    layers: tuple[LayerTime, ...]
    batch_size: float
    file: str
    notes: tuple[str, ...] = ()


def read_layer_table(path: Path) -> LayerTimes:
    """Return the layers of a CSV table; see ``TEMPLATE``.

    Raises
    ------
    SpecError
        With the line of everything that is wrong: a layer that stands twice, several batches, no multiply-adds at all.
    """
    rows = read_rows(path, _COLUMNS, texts=("layer", "kind"))
    faults: list[Fault] = []
    lines: dict[str, int] = {}
    for row in rows:
        name = row.texts.get("layer", "")
        if not name or name in lines:
            problem = f"layer {name!r} stands twice (first on line {lines[name]})." if name else "no layer's name."
            faults.append(fault(path, row.line, problem, "Give every layer its own name.", field="layer", value=name))
        lines.setdefault(name, row.line)
    batches = sorted({row.numbers["batch"] for row in rows})
    if len(batches) > 1:
        mend = "Write one file for each batch, and calibrate with the one that you train with."
        faults.append(fault(path, None, f"batches of {', '.join(f'{one:g}' for one in batches)}.", mend, field="batch"))
    if not any(row.numbers["multiply_adds"] for row in rows):
        mend = "Count those of the convolutions, products and fully connected layers."
        faults.append(fault(path, None, "no layer has multiply-adds.", mend, field="multiply_adds"))
    if faults:
        raise SpecError.of(faults)
    batch = batches[0]
    layers = tuple(
        LayerTime(
            name=row.texts["layer"],
            kind=row.texts.get("kind", "") or "operator",
            num_multiply_adds=row.numbers["multiply_adds"],
            forward_s=row.numbers["forward"] / batch,
            backward_s=row.numbers["backward"] / batch if "backward" in row.numbers else None,
            num_parameters=row.numbers.get("parameters", 0.0),
        )
        for row in rows
    )
    return LayerTimes(layers=layers, batch_size=batch, file=visible(path.name))


def layers_of_profile(path: Path, found: MeasuredNetwork, dnn: Dnn, *, batch_size: int) -> LayerTimes:
    """Return a profile's seconds with the multiply-adds of a network.

    Raises
    ------
    SpecError
        If fewer than half of the network's multiply-adds are matched by a measured layer.
    """
    measured = found.dnn.layers
    seconds = {
        layer.name: (float(forward), float(backward))
        for layer, forward, backward in zip(measured, found.profile.forward_s, found.profile.backward_s, strict=True)
    }
    partner, how = _partners(measured, dnn)
    matched = sum(layer.num_multiply_adds for layer in partner.values())
    if matched < dnn.num_multiply_adds / 2:
        with_work = [layer.name for layer in dnn.layers if layer.num_multiply_adds]
        problem = (
            f"its layers ({', '.join(layer.name for layer in measured[:3])}, ...) are not those of {dnn.name} "
            f"({', '.join(with_work[:3])}, ...): {matched / max(1, dnn.num_multiply_adds):.0%} of the multiply-adds "
            f"match."
        )
        mend = "Name the network that was profiled in the spec's dnn, or write the table of --template layers."
        raise SpecError.of([fault(path, None, problem, mend)])
    is_forward_only = not any(backward for _, backward in seconds.values())
    kinds = {layer.kind for layer in dnn.layers if layer.num_multiply_adds}
    unknown = {layer.name for layer in measured if layer.kind in kinds and layer.name not in partner}
    layers = tuple(
        LayerTime(
            name=layer.name,
            kind=partner[layer.name].kind if layer.name in partner else layer.kind,
            num_multiply_adds=partner[layer.name].num_multiply_adds if layer.name in partner else 0,
            forward_s=seconds[layer.name][0],
            backward_s=None if is_forward_only else seconds[layer.name][1],
            num_parameters=layer.num_trainable,
            num_output_elements=layer.num_output_elements,
        )
        for layer in measured
        if layer.kind != "input" and layer.name not in unknown
    )
    notes = [how] if how else []
    if unknown:
        names = ", ".join(sorted(unknown)[:6])
        notes.append(f"measured layers that are none of the network's are left out: {names}")
    if matched < dnn.num_multiply_adds:
        notes.append(f"{1 - matched / dnn.num_multiply_adds:.1%} of the network's multiply-adds have no measured layer")
    return LayerTimes(layers=layers, batch_size=batch_size, file=visible(path.name), notes=tuple(notes))


def _partners(measured: Sequence[Layer], dnn: Dnn) -> tuple[dict[str, Layer], str]:
    """Return the network's layer of each measured one that has work, by the latter's name, and how that was found."""
    working = [layer for layer in dnn.layers if layer.num_multiply_adds]
    by_name = {layer.name.lower(): layer for layer in working}
    same = {layer.name: by_name[layer.name.lower()] for layer in measured if layer.name.lower() in by_name}
    if len(same) == len(working):
        return same, ""
    ours, theirs = _by_size(working), _by_size(measured)
    found = {
        one.name: other
        for key, others in ours.items()
        if len(theirs[key]) == len(others)
        for one, other in zip(theirs[key], others, strict=True)
    }
    if sum(layer.num_multiply_adds for layer in found.values()) <= sum(one.num_multiply_adds for one in same.values()):
        return same, ""
    return found, f"names differ: {len(found)} layers are matched by order among those of one kind and size"


def _by_size(layers: Sequence[Layer]) -> defaultdict[tuple[str, int], list[Layer]]:
    """Return layers by kind and number of trained parameters, each list in order."""
    found: defaultdict[tuple[str, int], list[Layer]] = defaultdict(list)
    for layer in layers:
        found[(layer.kind, layer.num_trainable)].append(layer)
    return found
