"""What a pipeline is made of, for solvers: choices, stages, schedules, and what they cost.

The formulation stands at the head of :mod:`planner.solvers.pipeline_bound`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats

__all__ = [
    "Candidate",
    "Choice",
    "Integers",
    "PipelineCosts",
    "Schedule",
    "Schedules",
    "Stack",
    "Stage",
    "StageSeconds",
]

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A stage on ``num_devices`` devices of type ``type_index``."""

    type_index: int
    num_devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers ``first`` to ``last`` (inclusive), by the choice of index ``choice``."""

    first: int
    last: int
    choice: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """``num_microbatches`` in the order of GPipe, or else of 1F1B."""

    num_microbatches: int
    is_gpipe: bool = False

    def in_flight(self, num_left: Integers) -> Integers:
        """Return the micro-batches in flight in a stage, by the number of stages from it to the last."""
        m = self.num_microbatches
        return np.full_like(num_left, m) if self.is_gpipe else np.minimum(num_left, m)

    def part(self, which: Integers | NDArray[np.bool_] | slice) -> "Schedule":
        """Return the schedule of some stages of many: the same for all."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedules:
    """A :class:`Schedule` of each of many stages: one order, and ``num_microbatches`` by stage."""

    num_microbatches: Integers
    is_gpipe: bool

    def in_flight(self, num_left: Integers) -> Integers:
        """Return the micro-batches in flight; the last axis of what is left goes by stage, or is 1."""
        m = self.num_microbatches
        if self.is_gpipe:
            return np.broadcast_to(m, np.broadcast_shapes(m.shape, num_left.shape))
        return np.minimum(num_left, m)

    def part(self, which: Integers | NDArray[np.bool_] | slice) -> "Schedules":
        """Return the schedules of some of the stages."""
        return Schedules(num_microbatches=self.num_microbatches[which], is_gpipe=self.is_gpipe)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Sources of pipelines on the same devices and in one order, whose tables are filled together.

    Attributes
    ----------
    num_microbatches
        By source.
    num_choices
        By source: costs list the choices of the first one, then those of the next, and so on.
    """

    num_microbatches: tuple[int, ...]
    num_choices: tuple[int, ...]
    is_gpipe: bool = False

    @classmethod
    def of(cls, schedule: Schedule, costs: "PipelineCosts") -> "Stack":
        """Return a stack of one."""
        number, is_gpipe = schedule.num_microbatches, schedule.is_gpipe
        return cls(num_microbatches=(number,), num_choices=(len(costs.choices),), is_gpipe=is_gpipe)

    def __len__(self) -> int:
        return len(self.num_microbatches)

    def schedule(self, source: int) -> Schedule:
        """Return the schedule of a source."""
        return Schedule(num_microbatches=self.num_microbatches[source], is_gpipe=self.is_gpipe)

    def schedules(self, sources: Integers) -> Schedule | Schedules:
        """Return the schedule of each of many stages, by their sources; one for all where there is but one."""
        if len(self) == 1:
            return self.schedule(0)
        return Schedules(num_microbatches=np.array(self.num_microbatches)[sources], is_gpipe=self.is_gpipe)

    @property
    def sources(self) -> Integers:
        """Sources by choice."""
        return np.repeat(np.arange(len(self)), self.num_choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """What stages take, as arrays of one shape.

    Attributes
    ----------
    forward_s, backward_s
        Of one micro-batch.
    flush_s
        After the last backward.
    most_in_flight
        Micro-batches that fit in memory; 0 where not even one does.
    """

    forward_s: Floats
    backward_s: Floats
    flush_s: Floats
    most_in_flight: Integers

    def part(self, which: NDArray[np.bool_]) -> "StageSeconds":
        """Return some of the stages."""
        return StageSeconds(
            forward_s=self.forward_s[which],
            backward_s=self.backward_s[which],
            flush_s=self.flush_s[which],
            most_in_flight=self.most_in_flight[which],
        )


class PipelineCosts(Protocol):
    """What the stages and boundaries of one network, cluster and size of micro-batch take; or of a :class:`Stack`.

    Indices are arrays that broadcast: ``firsts`` and ``lasts`` of layers, both inclusive, ``choices``, and ``places``:
    where on a machine the first of a stage's devices stands.
    """

    @property
    def num_layers(self) -> int:
        """L."""
        ...

    @property
    def num_devices(self) -> Sequence[int]:
        """By type."""
        ...

    @property
    def num_places(self) -> Sequence[int]:
        """Devices on a machine, by type."""
        ...

    @property
    def choices(self) -> Sequence[Choice]:
        """What a stage may run on."""
        ...

    @property
    def units(self) -> Sequence[int]:
        """By type, devices that tables count as one, rounded down for every stage: 1, or more where they get large."""
        ...

    @property
    def work_s(self) -> Floats | None:
        """L + 1 seconds of one micro-batch that layers ``0..l-1`` take at least on a device of speed 1; or unknown.

        Of a stack (K, L + 1), by source. So many devices of a type are, together, at most as fast as so many times its
        speed.
        """
        ...

    @property
    def speeds(self) -> Sequence[float]:
        """By type."""
        ...

    @property
    def floor_s(self) -> Floats:
        """(C,): no pipeline whose first stage runs by this choice takes less."""
        ...

    def stages(self, firsts: Integers, lasts: Integers, choices: Integers, places: Integers, /) -> StageSeconds:
        """Return what stages take."""
        ...

    def out_s(self, lasts: Integers, choices: Integers, places: Integers, /) -> Floats:
        """Return (2, ...) seconds that no boundary behind a stage is below, of one micro-batch, forward and back.

        0 behind the last layer.
        """
        ...

    def in_s(self, firsts: Integers, choices: Integers, places: Integers, /) -> Floats:
        """Return (2, ...) seconds that no boundary before a stage is below; 0 before the first layer."""
        ...

    def boundary_s(self, cut: int, left: int, place: int, rights: Integers, places: Integers, /) -> Floats:
        """Return (2, len(rights)) seconds of a micro-batch over the cut before layer ``cut``, forward and back.

        From a stage by choice ``left`` whose first device stands at ``place`` to one by each of the choices ``rights``,
        whose first devices stand at ``places``; one of the same type has the devices that follow.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A complete configuration and the lower bound of its makespan."""

    bound: float
    stages: tuple[Stage, ...]
