"""Layer replacement: a run of layers taken out of a network, and a block of others put in its place.

A graph rewrite and nothing else: what the new layers cost stands in the block's profiles, what they do to the accuracy
of the network is not modelled. The idea of exchanging layers whose gradients are large is that of T. Liu et al.,
WWW 2022, doi:10.1145/3485447.3511981, section 4.1.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from planner.cost import Profile
from planner.dnn import Dnn, Layer
from planner.frozen import frozen


@frozen
class Substitution:
    """One allowed replacement."""

    name: str
    removed: tuple[str, ...]  # the layers that it takes out, in the network's order
    block: Dnn  # the layers that come in; those of them that read nothing read what the removed ones read
    profiles: Mapping[str, Profile]  # seconds of the block's layers, per sample, by device name
    by: str = "layers of the spec"  # what the block is called, for the reader
    note: str = ""  # what its source says about the accuracy of the changed network, or nothing

    def overlaps(self, other: "Substitution") -> bool:
        """Whether both take out some one layer, so that a network holds at most one of them."""
        return not set(self.removed).isdisjoint(other.removed)


def run_between(dnn: Dnn, first: str, last: str) -> tuple[str, ...]:
    """Return all layers on any path from ``first`` to ``last``, both included, in the network's order.

    Raises
    ------
    ValueError
        If no path leads from one to the other.
    """
    import networkx as nx  # noqa: PLC0415 - takes a while

    graph: nx.DiGraph[Any] = dnn.graph  # the library's functions ask for nodes of any kind
    if first != last and not nx.has_path(graph, first, last):
        raise ValueError(f"no path leads from {first!r} to {last!r}; name them in the order of the network")
    between = ({first} | nx.descendants(graph, first)) & ({last} | nx.ancestors(graph, last))
    return tuple(layer.name for layer in dnn.layers if layer.name in between)


def ends_of(dnn: Dnn, run: Collection[str]) -> tuple[str | None, str]:
    """Return the one layer outside that a run reads, None if it reads no layer, and the one inside that others read.

    A run with one such layer on either side is convex: a path that left it and came back would close a cycle.

    Raises
    ------
    ValueError
        If the run is not connected, reads several layers, or is read in several places.
    """
    import networkx as nx  # noqa: PLC0415 - takes a while

    graph, inside = dnn.graph, set(run)
    ordered = [layer.name for layer in dnn.layers if layer.name in inside]
    if not nx.is_weakly_connected(graph.subgraph(inside)):
        raise ValueError(f"the layers {_some(ordered)} do not hang together; name all layers between them, too")
    read = [source if source not in inside else "" for name in ordered for source in dnn.inputs_of(name) or (None,)]
    entries = list(dict.fromkeys(source for source in read if source != ""))
    if len(entries) != 1:
        many = _some([source or "the input" for source in entries])
        raise ValueError(f"the layers {_some(ordered)} read {many}; take a run that reads one layer only")
    exits = [name for name in ordered if not graph.out_degree(name) or set(graph.successors(name)) - inside]
    if len(exits) != 1:
        raise ValueError(f"{_some(exits)} are all read outside the run; take a run with one layer at its end")
    return entries[0], exits[0]


def check_fit(dnn: Dnn, run: Collection[str], block: Dnn) -> None:
    """Refuse a block that cannot take a run's place.

    Raises
    ------
    ValueError
        If the run has not one beginning and one end, or holds the network's input; if the block ends in several layers,
        in another shape, or uses a name that the network keeps.
    """
    layers = {layer.name: layer for layer in dnn.layers}
    if inputs := [name for name in run if layers[name].kind == "input"]:
        raise ValueError(f"{inputs[0]!r} is the network's input; leave it out of the run")
    _, last = ends_of(dnn, run)
    old, new = layers[last], _end_of(block)
    if not _same_shape(old.output_shape, new.output_shape):
        raise ValueError(
            f"the block ends in {_shape(new)} at {new.name!r}, the run that it replaces in {_shape(old)} at {last!r}; "
            f"give both one shape (an output of 4 B is one element)"
        )
    if clash := [layer.name for layer in block.layers if layer.name in layers and layer.name not in run]:
        raise ValueError(f"the network keeps a layer {clash[0]!r}; call the block's layer otherwise")


def rewrite(dnn: Dnn, run: Collection[str], block: Dnn, *, name: str) -> Dnn:
    """Return the network ``name``, with a block in place of a run that :func:`check_fit` let pass."""
    entry, last = ends_of(dnn, run)
    end = _end_of(block).name
    rows: list[tuple[Layer, Sequence[str]]] = []
    is_placed = False
    for layer in dnn.layers:
        if layer.name not in run:
            rows.append((layer, [end if name == last else name for name in dnn.inputs_of(layer.name)]))
        elif not is_placed:
            reads: tuple[str, ...] = () if entry is None else (entry,)
            rows += [(one, block.inputs_of(one.name) or reads) for one in block.layers]
            is_placed = True
    return Dnn(name, rows, source=dnn.source, dataset_samples=dnn.dataset_samples)


def profile_after(before: Dnn, after: Dnn, profile: Profile, blocks: Sequence[tuple[Dnn, Profile]]) -> Profile:
    """Return the seconds of a rewritten network: of kept layers as they were, of new ones as their block has them.

    The optimiser's step moves memory, so that it grows in proportion to the number of parameters.
    """
    column = {layer.name: index for index, layer in enumerate(before.layers)}
    parts = [profile, *(own for _, own in blocks)]
    together = tuple(sorted({number for one in parts for number in one.together}))
    parts = [one.with_together(together) if together else one for one in parts]
    offset = len(before.layers)
    for block, _ in blocks:
        column |= {layer.name: offset + index for index, layer in enumerate(block.layers)}
        offset += len(block.layers)
    chosen = [column[layer.name] for layer in after.layers]
    share = after.num_trainable / before.num_trainable if before.num_trainable else 1.0

    seconds = ("forward_s", "backward_s", *(("forward_factors", "backward_factors") if together else ()))
    taken: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in parts], axis=-1)[..., chosen] for name in seconds
    }
    return replace(profile, **taken, together=together, update_s=profile.update_s * share)


def _end_of(block: Dnn) -> Layer:
    """Return the one layer of a block that none of its own layers reads."""
    ends = [layer for layer in block.layers if not block.graph.out_degree(layer.name)]
    if len(ends) != 1:
        names = _some([layer.name for layer in ends])
        raise ValueError(f"the block ends in several layers, {names}; let one of them read the others")
    return ends[0]


def _same_shape(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two outputs are alike; a shape of one number, as bytes give it, tells the elements alone."""
    if min(len(one), len(other)) == 1:
        return int(np.prod(one)) == int(np.prod(other))
    return one == other


def _shape(layer: Layer) -> str:
    """Return ``512x7x7 (25,088 elements)``."""
    return f"{'x'.join(map(str, layer.output_shape))} ({layer.num_output_elements:,} elements)"


def _some(names: Sequence[str]) -> str:
    """Return a few names."""
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:2])}, ..., {names[-1]}"
