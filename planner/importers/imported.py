"""What readers of files give: a network, its measured seconds where it has any, and what to know about either.

And what all of them need: names that no layer has yet, long lists of names cut short, and which consecutive layers of a
network are copies of one block.

*Copies.* Two runs of layers are copies where kinds, shapes, multiply-adds and tensors are equal one by one, and each
layer reads the same places: as many layers back, or the very same layer (a mask that every block reads). What enters
the first copy may come from anywhere before it.

Method: the layers become numbers, equal where layers are alike; all maximal runs with a period are found by comparing
the ranks of sub-sequences of length 1, 2, 4, ... at the anchors 0, p, 2p, ... of every period p, because a run of two
periods or more covers two neighbouring anchors. That takes O(n log^2 n) steps for n layers, in numpy. Runs are split
where the inputs differ, and taken greedily: the one that covers the most layers first, the shorter block first among
equals. That is no proof of the best cover. Source of the anchors: M. Main and R. Lorentz, J. Algorithms 5(3), 1984,
doi:10.1016/0196-6774(84)90021-X.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from planner.cost import Profile
from planner.dnn import MOST_LAYERS, Dnn, Layer, Repeat, Tensor
from planner.frozen import frozen
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


@frozen
class Imported:
    """A network from a file or a module."""

    dnn: Dnn
    profile: Profile | None = None  # seconds of one sample, where they were measured
    # type of the weights as the source has it, in the words of a spec; None where it does not say
    dtype: str | None = None
    # totals that the reader counted beside the network's own, by a name with its unit: ``element_flop``, ....
    facts: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what was assumed; printed as the answer's assumptions
    warnings: tuple[str, ...] = ()  # what makes the figures doubtful: unknown operators by name and number, for one


@frozen
class MeasuredNetwork:
    """A network, its profile, and what a reader should know about either."""

    dnn: Dnn
    profile: Profile
    warnings: tuple[str, ...] = ()


@frozen
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


Ints = NDArray[np.int64]
_MOST_BLOCKS_IN_ONE = 4
Run = tuple[int, int, int]  # period, first layer, layers


def repeats_of(layers: Sequence[Layer], inputs: Sequence[Sequence[str]]) -> tuple[Repeat, ...]:
    """Return the repeated blocks, in order and apart from each other.

    Parameters
    ----------
    layers
        In an order in which every layer stands behind those that it reads, as in ``Dnn.layers``.
    inputs
        The names of the layers that each one reads.

    Notes
    -----
    A block has at least one layer with multiply-adds or tensors. Repeats of one kind, ``block1``, ``block2``, ...,
    hold the same layers.

    Raises
    ------
    ValueError
        If a layer reads one that does not stand before it.
    """
    codes = _codes(layers, inputs)
    if len(codes) < 2:
        return ()
    sources = _sources(layers, inputs)
    works = np.cumsum([0, *(bool(layer.num_multiply_adds or layer.tensors) for layer in layers)])
    runs = [part for run in _primitive(_runs(codes)) for part in _split(run, sources)]
    kinds: dict[tuple[int, ...], str] = {}
    found = []
    for period, first, length in _cover([run for run in runs if works[run[1] + run[0]] > works[run[1]]], len(codes)):
        block = tuple(codes[first : first + period].tolist())
        kind = kinds.setdefault(block, f"block{len(kinds) + 1}")
        found.append(Repeat(first=first, num_layers=period, count=length // period, kind=kind))
    return tuple(found)


def _codes(layers: Sequence[Layer], inputs: Sequence[Sequence[str]]) -> Ints:
    """Return a number for each layer, equal where two layers are alike but for names and the places they read."""
    known: dict[object, int] = {}
    codes = []
    for layer, read in zip(layers, inputs, strict=True):
        tensors = tuple((tensor.num_elements, tensor.role) for tensor in layer.tensors)
        kept = (layer.is_in_place, layer.kept_beside_bytes)
        alike = (layer.kind, layer.output_shape, layer.num_multiply_adds, tensors, *kept, layer.window)
        codes.append(known.setdefault((*alike, len(read)), len(known)))
    return np.array(codes, dtype=np.int64)


def _sources(layers: Sequence[Layer], inputs: Sequence[Sequence[str]]) -> list[tuple[int, ...]]:
    position: dict[str, int] = {}
    sources = []
    for index, (layer, read) in enumerate(zip(layers, inputs, strict=True)):
        missing = next((name for name in read if name not in position), None)
        if missing is not None:
            raise ValueError(f"layer {layer.name!r} reads {missing!r}, which does not stand before it")
        sources.append(tuple(position[name] for name in read))
        position[layer.name] = index
    return sources


def _ranks(codes: Ints) -> list[Ints]:
    """Return for every power of two ``2**level`` the rank of the sub-sequence of that length at each position."""
    ranks = [codes]
    while (size := 2 ** len(ranks)) <= len(codes):
        before = ranks[-1]
        pairs = before[: len(codes) - size + 1] * (int(before.max()) + 1) + before[size // 2 :][: len(codes) - size + 1]
        ranks.append(np.unique(pairs, return_inverse=True)[1].astype(np.int64))
    return ranks


def _common(ranks: list[Ints], first: Ints, second: Ints, *, backward: bool) -> Ints:
    """Return how many layers agree from each pair of positions on, or up to and without them."""
    size = np.zeros_like(first)
    for level in range(len(ranks) - 1, -1, -1):
        rank, step = ranks[level], 2**level
        if backward:
            one, two = first - size - step, second - size - step
        else:
            one, two = first + size, second + size
        inside = (np.minimum(one, two) >= 0) & (np.maximum(one, two) < len(rank))
        equal = rank[np.where(inside, one, 0)] == rank[np.where(inside, two, 0)]
        size = np.where(inside & equal, size + step, size)
    return size


def _runs(codes: Ints) -> list[Run]:
    """Return every maximal run of two periods or more."""
    ranks = _ranks(codes)
    runs: set[Run] = set()
    num_layers = len(codes)
    periods = np.arange(1, num_layers // 2 + 1)
    counts = (num_layers - 1) // periods  # anchors i with i + p inside
    period = np.repeat(periods, counts)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    anchor = (np.arange(len(period)) - np.repeat(starts, counts)) * period
    ahead = _common(ranks, anchor, anchor + period, backward=False)
    behind = _common(ranks, anchor, anchor + period, backward=True)
    is_run = ahead + behind >= period
    for p, at, before, after in zip(*(part[is_run].tolist() for part in (period, anchor, behind, ahead)), strict=True):
        runs.add((p, at - before, before + after + p))
    return sorted(runs)


def _primitive(runs: list[Run]) -> list[Run]:
    """Return the runs without those that merely take several shorter blocks for one.

    Up to four stay, since inputs may differ from copy to copy where layers do not. More would make long runs of short
    blocks take time in proportion to their square.
    """
    shortest: dict[tuple[int, int], int] = {}
    kept = []
    for period, first, length in runs:
        block = shortest.setdefault((first, length), period)
        if period % block or period <= _MOST_BLOCKS_IN_ONE * block:
            kept.append((period, first, length))
    return kept


def _split(run: Run, sources: list[tuple[int, ...]]) -> list[Run]:
    """Return the parts of a run in which each layer also reads what its copy reads."""
    period, first, length = run
    parts, start = [], first
    for index in range(first, first + length - period + 1):
        is_end = index == first + length - period
        if not is_end and _is_copy(sources[index], sources[index + period], period, start, index):
            continue
        if index - start >= period:
            parts.append((period, start, index - start + period))
        start = index + 1
    return parts


def _is_copy(one: tuple[int, ...], two: tuple[int, ...], period: int, start: int, index: int) -> bool:
    """Whether the layer ``period`` behind ``index`` reads what ``index`` does; ``start`` is the run's first layer."""
    for source, later in zip(one, two, strict=True):
        is_alike = later - source == period or later == source
        # The first copy is entered from before the run, where the others are entered from the copy before them.
        is_entry = index < start + period and source < start <= later < start + period
        if not (is_alike or is_entry):
            return False
    return True


def _cover(runs: list[Run], num_layers: int) -> list[Run]:
    """Return runs that do not overlap, cut to whole blocks: the longest first, then the shortest block."""
    heap = [_keyed(run) for run in runs]
    heapq.heapify(heap)
    is_taken = np.zeros(num_layers, dtype=bool)
    chosen = []
    while heap:
        _, period, first, length = heapq.heappop(heap)
        free = ~is_taken[first : first + length]
        if not free.all():
            for at, size in _stretches(free):
                if size >= 2 * period:
                    heapq.heappush(heap, _keyed((period, first + at, size)))
            continue
        used = length // period * period
        is_taken[first : first + used] = True
        chosen.append((period, first, used))
    return sorted(chosen, key=lambda run: run[1])


def _keyed(run: Run) -> tuple[int, int, int, int]:
    """Return a run behind the layers that it covers, negative, for a heap."""
    period, first, length = run
    return (-(length // period * period), period, first, length)


def _stretches(free: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return start and size of every stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], free, [False]]).astype(np.int8)))
    return [(int(start), int(end - start)) for start, end in zip(edges[::2], edges[1::2], strict=True)]
