"""A layer graph as a line: an order that breaks no edge, and what crosses every cut of it.

The order is that of ``Dnn.layers``: topological, ties by insertion, so every edge leads forward. A stage of a pipeline
is a run of consecutive layers; every edge then stays in its stage or leads to a later one. What crosses a cut are the
outputs of the *distinct producers* before it that some layer behind it still reads: a tensor that two later layers read
crosses once, and one that skips over whole stages is relayed by each of them. Other orders of the same graph may cross
less; choosing among them is left out.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.dnn import Dnn

__all__ = ["Linearisation", "linearise"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Linearisation:
    """The order of the layers and, for each, how long its output is needed.

    Attributes
    ----------
    names
        Of the L layers, in order.
    last_reader
        By layer, the position of the last layer that reads its output; its own position where none does.
    output_elements
        By layer, of one sample.
    cut_elements
        L - 1 numbers: elements of one sample that cross the cut behind each layer but the last.
    """

    names: tuple[str, ...]
    last_reader: NDArray[np.int64]
    output_elements: NDArray[np.int64]
    cut_elements: NDArray[np.int64]

    def producers_across(self, cut: int) -> tuple[int, ...]:
        """Return the layers whose outputs cross the cut behind layer ``cut``."""
        before = np.arange(cut + 1)
        return tuple(before[self.last_reader[: cut + 1] > cut].tolist())

    def relayed_by(self, first: int, last: int) -> tuple[int, ...]:
        """Return the earlier layers whose outputs the stage ``first`` to ``last`` must pass on to later ones."""
        before = np.arange(first)
        return tuple(before[self.last_reader[:first] > last].tolist())


def linearise(dnn: Dnn) -> Linearisation:
    """Return the network as a line.

    Notes
    -----
    The output of layer u crosses the cuts ``u .. last_reader(u) - 1``: one difference array, summed up, gives all cuts
    in ``O(V + E)``.
    """
    position = {layer.name: index for index, layer in enumerate(dnn.layers)}
    last_reader = np.arange(len(dnn.layers))
    for source, target in dnn.graph.edges:
        index = position[source]
        last_reader[index] = max(last_reader[index], position[target])
    elements = np.array([layer.num_output_elements for layer in dnn.layers], dtype=np.int64)
    change = np.zeros(len(elements) + 1, dtype=np.int64)
    np.add.at(change, np.arange(len(elements)), elements)
    np.add.at(change, last_reader, -elements)
    return Linearisation(
        names=tuple(position),
        last_reader=last_reader,
        output_elements=elements,
        cut_elements=np.cumsum(change)[: len(elements) - 1],
    )
