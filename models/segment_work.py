"""What every segment of a chain of layers computes and exchanges, for any number of partitions; seconds of one thread.

Equations 5, 7 and 8 of F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015, doi:10.1145/2783258.2783270, before threads
interfere (eq. 9). Everything is made once for each number of partitions; equal layers share it.
"""

from collections.abc import Hashable, Sequence
from dataclasses import fields
from functools import cache

import numpy as np

from planner.cost import Floats
from planner.models.replica_constants import Connections, Constants, LayerSeconds
from planner.models.segments import Boundary, Counts, Partition, Scheme, Stage, count_boundary, stripes
from planner.models.stripe_counts import stripe_boundary, stripe_channels, stripe_sizes

__all__ = ["SegmentWork"]

_MOST_KEPT = 1 << 14  # pairs of segments of two layers


class SegmentWork:
    """Seconds and counts by layer (``index``) and number of its segments.

    Parameters
    ----------
    scheme
        How layers are partitioned, see :data:`planner.models.segments.Scheme`.
    connections
        How those above a segment are counted.
    seconds
        Measured seconds of every layer, in place of counts; None to count.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        constants: Constants,
        *,
        scheme: Scheme = stripes,
        connections: Connections = Connections.COUNTED,
        seconds: Sequence[LayerSeconds] | None = None,
    ) -> None:
        self.stages = tuple(stages)
        self.constants = constants
        self._scheme = scheme
        self._connections = connections
        self.seconds = None if seconds is None else tuple(seconds)
        first: dict[Hashable, int] = {}
        alike = ((*_without_name(stage), self.shape_before(index)) for index, stage in enumerate(self.stages))
        self._first_alike = [first.setdefault(key, index) for index, key in enumerate(alike)]
        kinds: dict[Hashable, int] = {}
        later = [*self._first_alike[1:], -1]
        measured = self.seconds or (None,) * len(later)
        self._kinds = [
            kinds.setdefault(key, len(kinds)) for key in zip(self._first_alike, later, measured, strict=True)
        ]
        self._boundary = cache(self._make_boundary)
        self._multiply_add_s = cache(self._make_multiply_add_s)
        self.forward_s = cache(self._forward_s)
        self.backward_s = cache(self._backward_s)
        self.update_s = cache(self._update_s)

    @property
    def is_striped(self) -> bool:
        """Whether layers are cut into stripes, and connections are counted."""
        return self._scheme is stripes and self._connections is Connections.COUNTED

    def shape_before(self, index: int) -> tuple[int, ...]:
        """Return the shape of what a layer reads, as the layer before has it."""
        return self.stages[index - 1].output_shape if index else self.stages[0].input_shape

    def alike(self, index: int) -> int:
        """Return a number that layers share which compute and exchange the same, in both directions."""
        return self._kinds[index]

    def boundary(self, index: int, num_before: int, num_segments: int) -> Boundary:
        """Return what passes between a layer and the one before; large ones have megabytes each, and are not kept."""
        made = self._make_boundary if num_before * num_segments > _MOST_KEPT else self._boundary
        return made(self._first_alike[index], num_before, num_segments)

    def num_neurons(self, index: int, num_segments: int) -> Floats:
        """Return ``N_neuron(l,p)``."""
        return self._sizes(self.stages[index].output_shape, num_segments).astype(np.float64)

    # -- seconds of every segment: forward_s, backward_s and update_s

    def _forward_s(self, index: int, num_segments: int) -> Floats:
        """Return eq. 5."""
        own_s = self.num_neurons(index, num_segments) * self.constants.activation_s
        if self.seconds is not None:
            return own_s + self.seconds[index].forward_s * self._share(index, num_segments)
        return own_s + self._multiply_adds_s(index, num_segments)

    def _backward_s(self, index: int, num_segments: int) -> Floats:
        """Return eq. 7: the error terms of a layer's own neurons; the last layer has no connections above it."""
        own_s = self.num_neurons(index, num_segments) * self.constants.error_s
        if index == len(self.stages) - 1:
            return own_s
        above = self._connections_above(index, num_segments)
        if self.seconds is not None:
            share = _shares(above, self.num_neurons(index, num_segments))
            return own_s + self.seconds[index].error_s * share
        return own_s + self._multiply_add_s(self._first_alike[index], num_segments) * above

    def _update_s(self, index: int, num_segments: int) -> Floats:
        """Return eq. 8; weights are not communicated inside a replica."""
        if self.seconds is not None:
            return self.seconds[index].update_s * self._share(index, num_segments)
        return self._multiply_adds_s(index, num_segments)

    # -- counts

    def _sizes(self, shape: tuple[int, ...], num_segments: int) -> Counts:
        """Return the neurons of every segment."""
        if self._scheme is stripes:
            return stripe_sizes(shape, num_segments)
        return Partition.of(shape, num_segments, self._scheme).num_neurons

    def _make_boundary(self, index: int, num_before: int, num_segments: int) -> Boundary:
        """Return what passes between a layer and the one before."""
        stage, shape = self.stages[index], self.shape_before(index)
        if self._scheme is stripes:
            return stripe_boundary(stage, num_before, num_segments, shape)
        before, after = (
            Partition.of(one, number, self._scheme)
            for one, number in ((shape, num_before), (stage.output_shape, num_segments))
        )
        return count_boundary(stage, before, after)

    def _make_multiply_add_s(self, index: int, num_segments: int) -> Floats:
        """Return ``C_muladd`` of every segment, by its working set."""
        shape = self.stages[index].output_shape
        channels = (
            stripe_channels(shape, num_segments)
            if self._scheme is stripes
            else Partition.of(shape, num_segments, self._scheme).num_channels
        )
        weights = self.stages[index].num_weights * channels / shape[0]
        numbers = weights + self.boundary(index, 1, num_segments).needed[:, 0] + self._sizes(shape, num_segments)
        sizes = (numbers * self.constants.number_bytes).tolist()
        return np.array([self.constants.multiply_add_s(size, num_segments) for size in sizes])

    def _multiply_adds_s(self, index: int, num_segments: int) -> Floats:
        """Return ``C_muladd W_c(l,p)``."""
        seconds = self._multiply_add_s(self._first_alike[index], num_segments)
        return seconds * self.boundary(index, 1, num_segments).connections[:, 0]

    def _share(self, index: int, num_segments: int) -> Floats:
        """Return the share of a layer's computation that every segment has."""
        connections = self.boundary(index, 1, num_segments).connections[:, 0].astype(np.float64)
        return _shares(connections, self.num_neurons(index, num_segments))

    def _connections_above(self, index: int, num_segments: int) -> Floats:
        """Return ``W_c'(l,p)``."""
        if self._connections is Connections.COUNTED:
            return np.asarray(self.boundary(index + 1, num_segments, 1).connections[0], dtype=np.float64)
        stage = self.stages[index]
        return self.stages[index + 1].num_connections * self.num_neurons(index, num_segments) / stage.num_neurons


def _without_name(stage: Stage) -> tuple[Hashable, ...]:
    """Return all that a layer is, but for its name."""
    return tuple(getattr(stage, field.name) for field in fields(stage) if field.name != "name")


def _shares(connections: Floats, neurons: Floats) -> Floats:
    """Return every segment's share, by connections or, where there are none, by neurons."""
    weights = connections if connections.any() else neurons
    return np.asarray(weights / weights.sum())
