"""Bytes of every stage of a 1F1B pipeline whose stages hold unlike numbers of layers, for many layouts at once.

The bytes of a stage are those of :mod:`planner.models.transformer_memory`. With q micro-batches in flight a stage of n
layers of one sort holds ``base + n (states + q kept)``: exactly a line, since all but the layers' states and
activations does not grow with them. Where a network has layers with experts and layers without, the line is that of the
sort with more bytes: never less than what such a stage holds.

Arrays of shape (p, n): stages first, those that a layout does not have behind its last.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from planner.cost import Floats
from planner.models.layouts import Ints, Layouts
from planner.models.memory import Precision
from planner.models.transformer_activations import Kernels
from planner.models.transformer_memory import stage_bytes_of
from planner.models.transformer_stages import Stage
from planner.transformer import Transformer

__all__ = ["MixedMemory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedMemory:
    """What layouts share; see :func:`planner.models.transformer_memory.memory_bytes`."""

    transformer: Transformer
    precision: Precision
    kernels: Kernels
    reserve_bytes: float
    expert_imbalance: float = 1.0

    def most_layers(self, layouts: Layouts, num_stages: int, limit_bytes: Floats) -> Ints:
        """Return how many layers fit on a device of each stage; below 1 where not even one.

        Parameters
        ----------
        layouts
            ``pipeline`` counts all stages; ``num_microbatches`` those of one replica.
        num_stages
            p: of the longest pipeline.
        limit_bytes
            What a device of each stage may hold, shape (p, n).
        """
        index = np.arange(num_stages)[:, None]
        pipeline, number = layouts.pipeline, layouts.num_microbatches
        in_flight = np.minimum(number, np.maximum(pipeline - index, 1))
        found = np.full(np.broadcast_shapes(in_flight.shape, limit_bytes.shape), np.inf)
        bytes_of = self._bytes_of(layouts)
        for is_moe in self._sorts:
            first = _line(bytes_of, np.zeros_like(pipeline), is_moe)
            middle = _line(bytes_of, np.minimum(1, pipeline - 1), is_moe)
            last = _line(bytes_of, pipeline - 1, is_moe)
            rows = [
                np.where(index == 0, at_first, np.where(index == pipeline - 1, at_last, between))
                for at_first, between, at_last in zip(first, middle, last, strict=True)
            ]
            room = limit_bytes - rows[0]
            fitting = np.floor(room / (rows[1] + in_flight * rows[2]) * (1 + 1e-12))
            found = np.minimum(found, np.where(np.isfinite(limit_bytes), fitting, self.transformer.num_layers))
        return np.asarray(np.clip(found, 0, self.transformer.num_layers), dtype=np.int64)

    @property
    def _sorts(self) -> tuple[bool, ...]:
        """Whether layers have experts, for each sort of layers."""
        kinds = dict.fromkeys(self.transformer.layer_kinds)
        return tuple(kind == "moe" for kind in kinds)

    def _bytes_of(self, layouts: Layouts) -> Callable[[Stage], Mapping[str, Floats]]:
        """Return what gives the bytes of one stage of each layout, by term."""
        return stage_bytes_of(
            self.transformer,
            layouts,
            precision=self.precision,
            kernels=self.kernels,
            reserve_bytes=self.reserve_bytes,
            expert_imbalance=self.expert_imbalance,
        )

    def stage_bytes(self, layouts: Layouts, layers: Ints) -> dict[str, Floats]:
        """Return the bytes of every stage by term, and their total, shape (p, n); 0 where there is no stage."""
        before = np.concatenate([[0], np.cumsum([kind == "moe" for kind in self.transformer.layer_kinds])])
        ends = np.cumsum(layers, axis=0)
        rows, bytes_of = [], self._bytes_of(layouts)
        for index in range(len(layers)):
            moe = before[ends[index]] - before[ends[index] - layers[index]]
            dense = layers[index] - moe
            number = np.minimum(layouts.num_microbatches, np.maximum(layouts.pipeline - index, 1))
            place = np.full(len(layouts), index)
            found = bytes_of(
                Stage(index=place, dense=dense, moe=moe, dense_in_flight=dense * number, moe_in_flight=moe * number)
            )
            rows.append({name: np.where(index < layouts.pipeline, row, 0.0) for name, row in found.items()})
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _line(
    bytes_of: Callable[[Stage], Mapping[str, Floats]], index: Ints, is_moe: bool
) -> tuple[Floats, Floats, Floats]:
    """Return what a stage holds without layers, what one layer adds, and what it adds for each micro-batch."""

    def held(layers: int, in_flight: int) -> Floats:
        counts, nothing = [np.full(len(index), one) for one in (layers, in_flight)], np.zeros_like(index)
        dense, moe = ([nothing, nothing], counts) if is_moe else (counts, [nothing, nothing])
        stage = Stage(index=index, dense=dense[0], moe=moe[0], dense_in_flight=dense[1], moe_in_flight=moe[1])
        return bytes_of(stage)["total"]

    one = held(1, 1)
    kept = held(1, 2) - one
    states = held(2, 2) - one - kept
    # A line: two layers hold the states and the activations of one more.
    return one - states - kept, states, kept
