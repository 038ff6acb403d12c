"""What readers of files give: a network, its measured seconds where it has any, and what to know about either.

And what all of them need: names that no layer has yet, and long lists of names cut short.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.cost import Profile
from planner.dnn import MOST_LAYERS, Dnn, Layer, Repeat, Tensor
from planner.letters import visible

_MOST = 1e18  # seconds or bytes
_ELEMENT_BYTES = 4  # profiles of these formats are of fp32


def first_names(names: Iterable[str]) -> str:
    """Return the first five names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - 5} more" if len(every) > 5 else ""
    return ", ".join(every[:5]) + more


class UniqueNames:
    """Names of layers, each given once: a number is appended where another layer has it."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._numbers: Counter[str] = Counter()  # how often a name was wanted again

    def take(self, wanted: str) -> str:
        """Return a name that no layer has yet."""
        name = wanted
        while name in self._used:
            self._numbers[wanted] += 1
            name = f"{wanted}_{self._numbers[wanted] + 1}"
        self._used.add(name)
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A network from a file or a module.

    Attributes
    ----------
    profile
        Seconds of one sample, where they were measured.
    dtype
        Type of the weights as the source has it, in the words of a spec; None where it does not say.
    facts
        Totals that the reader counted beside the network's own, by a name with its unit: ``element_flop``, ....
    notes
        What was assumed; printed as the answer's assumptions.
    warnings
        What makes the figures doubtful: unknown operators by name and number, for one.
    """

    dnn: Dnn
    profile: Profile | None = None
    dtype: str | None = None
    facts: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNetwork:
    """A network, its profile, and what a reader should know about either."""

    dnn: Dnn
    profile: Profile
    warnings: tuple[str, ...] = ()


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
        If the graph is impossible (see :class:`planner.dnn.Dnn`), or a figure is.
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
    profile = Profile(
        forward_s=np.where(is_computed, forward_s, 0.0),
        backward_s=np.array([row.backward_s for row in ordered]) / batch_size,
        read_s=float(forward_s[~is_computed].sum()) or None,
        is_measured=True,
        origin=f"measured: {origin}, batch {batch_size}",
    )
    return MeasuredNetwork(dnn=dnn, profile=profile, warnings=tuple(_warnings(ordered, batch_size)))


def _layer(row: MeasuredLayer, batch_size: int) -> Layer:
    """Return the layer of a row, its output divided among the samples of the batch."""
    if row.layer is not None:
        return row.layer
    num_parameters = round(row.parameter_bytes / _ELEMENT_BYTES)
    return Layer(
        name=row.name,
        kind=row.kind,
        output_shape=(round(row.output_bytes / (_ELEMENT_BYTES * batch_size)),),
        num_multiply_adds=row.num_multiply_adds,
        tensors=(Tensor(name=f"{row.name}.parameters", num_elements=num_parameters),) if num_parameters else (),
        is_in_place=row.is_in_place,
    )


def _warnings(rows: Sequence[MeasuredLayer], batch_size: int) -> list[str]:
    """Return what looks implausible."""
    warnings = []
    uneven = [
        row.name
        for row in rows
        if row.layer is None and row.output_bytes % (_ELEMENT_BYTES * batch_size) and "Size" not in row.name
    ]
    if len(uneven) > len(rows) / 4:
        warnings.append(
            f"the activation sizes of {len(uneven)} of {len(rows)} layers are no multiples of a batch of {batch_size}; "
            f"set dnn.profile_batch to the batch that was measured"
        )
    trained = [row for row in rows if (row.layer.num_trainable > 0 if row.layer else row.parameter_bytes)]
    if odd := [row.name for row in trained if row.backward_s < row.forward_s / 100]:
        warnings.append(f"backward times near zero beside their forward times: {', '.join(odd[:5])}")
    if not any(row.output_bytes or (row.layer and row.layer.num_output_elements) for row in rows):
        warnings.append("the profile has no activation sizes: memory of activations is not counted")
    return warnings
