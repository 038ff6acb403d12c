"""Measured rows of any format, made into a network and its profile."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost import Profile
from planner.dnn import MOST_LAYERS, Dnn, Layer, Repeat, Tensor
from planner.letters import visible

__all__ = ["MeasuredLayer", "MeasuredNetwork", "build_measured"]

_MOST = 1e18  # seconds or bytes
_ELEMENT_BYTES = 4  # profiles of these formats are of fp32


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayer:
    """One operator as a profile has it: seconds and bytes of a whole batch; parameters do not depend on the batch.

    ``layer``, where it is known exactly, is what one sample costs; it stands for the bytes then.
    """

    name: str
    kind: str
    inputs: tuple[str, ...] = ()
    forward_s: float = 0.0
    backward_s: float = 0.0
    output_bytes: float = 0.0
    parameter_bytes: float = 0.0
    num_multiply_adds: int = 0
    is_in_place: bool = False
    line: int | None = None
    layer: Layer | None = None

    def __post_init__(self) -> None:
        """Spell out what cannot be printed: names enter here, from files of any format."""
        if not (self.name.isprintable() and self.kind.isprintable() and all(map(str.isprintable, self.inputs))):
            object.__setattr__(self, "name", visible(self.name))
            object.__setattr__(self, "kind", visible(self.kind))
            object.__setattr__(self, "inputs", tuple(map(visible, self.inputs)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNetwork:
    """A network, its profile, and what a reader should know about either."""

    dnn: Dnn
    profile: Profile
    warnings: tuple[str, ...] = ()


def build_measured(
    name: str, rows: Sequence[MeasuredLayer], *, batch_size: int, origin: str, repeats: Sequence[Repeat] = ()
) -> MeasuredNetwork:
    """Return the network and its profile per sample.

    Rows of kind ``input`` are no computation: their forward seconds are the reading of the batch.

    Parameters
    ----------
    batch_size
        Samples of the batch that was measured; seconds are taken to grow in proportion.

    Raises
    ------
    ValueError
        If the graph is impossible (see :class:`planner.dnn.Dnn`).
    """
    name, origin = visible(name), visible(origin)
    total_s = sum(row.forward_s + row.backward_s for row in rows if row.kind != "input")
    most = max((max(row.forward_s, row.backward_s, row.output_bytes, row.parameter_bytes) for row in rows), default=0)
    if len(rows) > MOST_LAYERS:
        raise ValueError(f"it has {len(rows)} layers, more than {MOST_LAYERS}; give the file of one network")
    if most > _MOST:
        raise ValueError(f"a figure of {most:g} is beyond all reason; check the units")
    if not total_s and not any(row.num_multiply_adds for row in rows):
        raise ValueError("all layers take 0 s; give the seconds of forward and backward")
    by_name = {row.name: row for row in rows}
    dnn = Dnn(name, [(_layer(row, batch_size), row.inputs) for row in rows], source=origin, repeats=repeats)
    ordered = [by_name[layer.name] for layer in dnn.layers]
    is_computed = np.array([row.kind != "input" for row in ordered])
    forward_s = np.array([row.forward_s for row in ordered]) / batch_size
    backward_s = np.array([row.backward_s for row in ordered]) / batch_size
    read_s = float(forward_s[~is_computed].sum())
    profile = Profile(
        forward_s=np.where(is_computed, forward_s, 0.0),
        backward_s=backward_s,
        read_s=read_s or None,
        is_measured=True,
        origin=f"measured: {origin}, batch {batch_size}",
    )
    return MeasuredNetwork(dnn=dnn, profile=profile, warnings=tuple(_doubts(ordered, batch_size)))


def _layer(row: MeasuredLayer, batch_size: int) -> Layer:
    """Return the layer of a row, its output divided among the samples of the batch."""
    if row.layer is not None:
        return row.layer
    num_parameters = round(row.parameter_bytes / _ELEMENT_BYTES)
    tensors = (Tensor(name=f"{row.name}.parameters", num_elements=num_parameters),) if num_parameters else ()
    return Layer(
        name=row.name,
        kind=row.kind,
        output_shape=(round(row.output_bytes / (_ELEMENT_BYTES * batch_size)),),
        num_multiply_adds=row.num_multiply_adds,
        tensors=tensors,
        is_in_place=row.is_in_place,
    )


def _doubts(rows: Sequence[MeasuredLayer], batch_size: int) -> list[str]:
    """Return warnings about rows that look implausible."""
    doubts = []
    uneven = [
        row.name
        for row in rows
        if row.layer is None and row.output_bytes % (_ELEMENT_BYTES * batch_size) and "Size" not in row.name
    ]
    if len(uneven) > len(rows) / 4:
        doubts.append(
            f"the activation sizes of {len(uneven)} of {len(rows)} layers are no multiples of a batch of {batch_size}; "
            f"set dnn.profile_batch to the batch that was measured"
        )
    odd = [row.name for row in rows if _is_trained(row) and row.backward_s < row.forward_s / 100]
    if odd:
        doubts.append(f"backward times near zero beside their forward times: {', '.join(odd[:5])}")
    if not any(row.output_bytes or (row.layer and row.layer.num_output_elements) for row in rows):
        doubts.append("the profile has no activation sizes: memory of activations is not counted")
    return doubts


def _is_trained(row: MeasuredLayer) -> bool:
    """Whether a row has parameters."""
    return bool(row.parameter_bytes) if row.layer is None else row.layer.num_trainable > 0
