"""Pipelines that cut a network between whole blocks only: the costs of a question with a block for a layer.

Where a network repeats its blocks, what lies in one is never cut: the search then handles as many layers as there are
blocks, which is a tenth of the operators of a transformer, and a hundredth of the pairs of cuts. All sums are those of
the layers themselves, so a stage costs what the layers in it cost. What is left out are cuts inside a block.
"""

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.cost import Profile
from planner.dnn import Dnn
from planner.families.pipeline.configuration import PipelineConfiguration
from planner.families.pipeline.cost import PipelineCost, Shape
from planner.models.pipeline_places import StageMachines
from planner.models.pipeline_stages import LayerBytes, StageCosts
from planner.problem import Problem

__all__ = ["BlockCost", "block_starts", "has_whole_blocks"]


def block_starts(dnn: Dnn) -> NDArray[np.int64]:
    """Return the first layers of the pieces that stay whole, and the number of layers; what lies between is a piece.

    Without repeats every layer is a piece.
    """
    if not dnn.repeats:
        return np.arange(len(dnn.layers) + 1)
    starts = {0, len(dnn.layers)}
    for one in dnn.repeats:
        starts.update(range(one.first, one.first + one.num_layers * one.count + 1, one.num_layers))
    return np.array(sorted(starts))


def has_whole_blocks(problem: Problem) -> bool:
    """Whether the network repeats blocks, and no more stages are pinned than it has."""
    pinned = problem.fixed.get("num_stages", 1)
    return bool(problem.dnn.repeats) and pinned < len(block_starts(problem.dnn))


class BlockCost(PipelineCost):
    """What pipelines of whole blocks cost; a "layer" of its shapes is a piece of :func:`block_starts`.

    Names are those of the layers, so that any :class:`PipelineCost` of the question reads its configurations; it reads
    none itself.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.starts = block_starts(problem.dnn)

    @cached_property
    def costs(self) -> StageCosts:
        """What any stage of whole blocks costs."""
        whole = self._by_layers.costs
        return replace(
            whole,
            layers=_merged_bytes(whole.layers, self.starts),
            machines=tuple(_merged_machines(one, self.starts) for one in whole.machines),
        )

    def configuration(self, shape: Shape) -> PipelineConfiguration:
        """Return a shape by the names of the layers at the ends of its stages."""
        firsts, lasts = self.starts[:-1], self.starts[1:] - 1
        layers = [replace(one, first=int(firsts[one.first]), last=int(lasts[one.last])) for one in shape.stages]
        return self._by_layers.configuration(replace(shape, stages=tuple(layers)))

    @cached_property
    def _by_layers(self) -> PipelineCost:
        """The costs by layer, for their names."""
        return PipelineCost(self.problem)


def _merged_bytes(layers: LayerBytes, starts: NDArray[np.int64]) -> LayerBytes:
    """Return the bytes of pieces: sums up to where they start, and what crosses there."""
    return replace(
        layers,
        names=tuple(layers.names[start] for start in starts[:-1]),
        weights_bytes=layers.weights_bytes[starts],
        gradients_bytes=layers.gradients_bytes[starts],
        optimizer_bytes=layers.optimizer_bytes[starts],
        activations_bytes=layers.activations_bytes[starts],
        trainable_share=layers.trainable_share[starts],
        cut_bytes=layers.cut_bytes[starts],
    )


def _merged_machines(machines: StageMachines, starts: NDArray[np.int64]) -> StageMachines:
    """Return machines with the seconds of pieces."""
    profile = machines.profile
    merged = Profile(
        forward_s=np.add.reduceat(profile.forward_s, starts[:-1]),
        backward_s=np.add.reduceat(profile.backward_s, starts[:-1]),
        update_s=profile.update_s,
        origin=profile.origin,
    )
    return replace(machines, profile=merged)
