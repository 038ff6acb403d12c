"""What a question allows of pipelines: batch, micro-batches, schedules, stages, and devices of each group."""

from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property
from math import ceil, isqrt, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.families.pipeline.blocks import BlockCost, has_whole_blocks
from planner.families.pipeline.cost import PipelineCost, Shape
from planner.families.pipeline.spots import Spots
from planner.models.pipeline_places import Stage
from planner.models.ssgd_equations import Strategy
from planner.problem import Problem, Range
from planner.solvers.pipeline import balanced_cuts

__all__ = ["ANY", "CHUNKS", "MOST_NUMBERS", "MOST_REPLICAS", "Domain", "spread", "table_cells"]

ANY = 2**40  # micro-batches in flight where memory is not short
CHUNKS = range(2, 17)  # a device, interleaved
MOST_REPLICAS = 64  # devices of a group up to which every number of them is tried
MOST_NUMBERS = 4_096  # numbers of micro-batches up to which every one is tried: those of a batch of four million
_MOST_COUNTS = 2_000_000  # numbers of devices of each group that are looked at one by one
_MOST_CELLS = 1 << 26  # of tables that tell all numbers of devices of every group apart: half a gibibyte
_MOST_READERS = 4_096  # numbers of devices in a first stage whose input is looked at one by one
_MOST_KEPT = 1_000_000  # ends of stages of balanced cuts that are remembered


class Domain:
    """What the question allows: micro-batches, schedules, numbers of stages, and devices of each group; one batch.

    ``batch``: one that may be chosen; by default the largest. ``is_fine``: whether repeated blocks may be cut inside;
    by default only where more stages are pinned than there are blocks.
    """

    def __init__(
        self, problem: Problem, *, batch: int | None = None, memory_scale: float = 1.0, is_fine: bool = False
    ) -> None:
        self.problem, self.memory_scale = problem, memory_scale
        self.is_fine = is_fine or not has_whole_blocks(problem)
        self.cost = PipelineCost(problem) if self.is_fine else BlockCost(problem)
        training = problem.training
        most = training.max_global_batch_size
        if training.batch_per_device is not None and training.fixed_batch_size is None:
            devices = max(1, min(problem.cluster.num_devices, (most or ANY) // training.batch_per_device))
            most = training.batch_per_device * devices
        self.batch = int(batch or training.fixed_batch_size or most or 1)
        self._balanced: dict[tuple[int, int], tuple[int, ...]] = {}
        self.num_layers = self.cost.costs.num_layers
        self.num_devices = tuple(self._most(group.count, group.devices_per_machine) for group in self.cost.groups)
        self.places = tuple(group.devices_per_machine for group in self.cost.groups)
        most_stages = min(self.num_layers, sum(self.num_devices))
        pinned = problem.fixed.get("num_stages")
        self.numbers_of_stages = range(1, most_stages + 1) if pinned is None else range(pinned, pinned + 1)
        if pinned is not None and not 1 <= pinned <= most_stages:
            self.numbers_of_stages = range(0)

    def with_memory(self, scale: float) -> "Domain":
        """Return the same domain, where devices have so many times their memory."""
        other = copy(self)
        other.memory_scale = scale
        return other

    @property
    def _device_limits(self) -> tuple[Range, Range]:
        """Numbers of devices and machines in all, pins included."""
        return self.problem.training_devices, self.problem.allowed_machines

    def _most(self, count: int, devices_per_machine: int) -> int:
        """Return the devices of a group that may be used at most."""
        devices, machines = self._device_limits
        most = min(count, machines.most or count) * devices_per_machine
        return min(most, devices.most or most)

    def num_machines(self, used: Any) -> Any:
        """Return the machines that so many devices of each group stand on."""
        return sum(-(-one // places) for one, places in zip(used, self.places, strict=True))

    def allowed(self, used: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the question allows so many devices of each group; groups along the first axis."""
        mask: NDArray[np.bool_] = used.sum(axis=0) > 0
        for number, limit in zip((used.sum(axis=0), self.num_machines(used)), self._device_limits, strict=True):
            mask &= (number >= limit.least) & (number <= (limit.most or ANY))
        return mask

    @cached_property
    def is_coarse(self) -> bool:
        """Whether a choice stands for several numbers of devices: there are too many to try each, or to tell apart."""
        states = prod(number + 1 for number in self.num_devices)
        cells = states * table_cells(self.num_layers, sum(self.num_devices))
        return max(self.num_devices, default=0) > MOST_REPLICAS or (len(self.num_devices) > 1 and cells > _MOST_CELLS)

    @cached_property
    def spots(self) -> Spots:
        """What stages have of the network by where they stand; shared by all sizes of micro-batches."""
        return Spots(self.cost.costs, self.places, is_coarse=self.is_coarse)

    @property
    def is_limited(self) -> bool:
        """Whether not every number of the devices may be used."""
        return any(limit != Range() for limit in self._device_limits)

    @cached_property
    def most_allowed(self) -> tuple[int, ...]:
        """Devices of each group, as many in all as limits and pins allow with some of every group, if they do."""
        sizes = [number + 1 for number in self.num_devices]
        if not self.is_limited or prod(sizes) > _MOST_COUNTS:
            return self.num_devices
        used = np.indices(sizes).reshape(len(sizes), -1)
        used = used[:, self.allowed(used) & used.all(axis=0)]
        return tuple(used[:, used.sum(axis=0).argmax()].tolist()) if used.size else self.num_devices

    def allows(self, shape: Shape) -> bool:
        """Whether limits, pins and memory allow a shape."""
        line = shape.stages[: shape.num_devices_in_line]
        used = [sum(one.replicas for one in line if one.group == index) for index in range(len(self.num_devices))]
        most = self.batch // shape.num_microbatches
        return (
            all(one <= have for one, have in zip(used, self.num_devices, strict=True))
            and bool(self.allowed(np.array(used)))
            and len(line) in self.numbers_of_stages
            and all(one.replicas <= most for one in line)
            and all(row["total"] <= row["limit"] * self.memory_scale for row in self.cost.memory_bytes(shape))
        )

    @cached_property
    def numbers_of_microbatches(self) -> list[int]:
        """The fewest micro-batches of every size, some ``2 sqrt(batch)`` numbers, or the pinned one.

        A micro-batch counts as the largest, hence more of the same size take no less time, and keep no less in memory.
        Of very large batches only some of them: the smallest sizes, the fewest micro-batches, and a part of those
        between, evenly on a logarithmic scale.
        """
        pinned = self.problem.fixed.get("num_microbatches")
        if pinned is not None:
            return [pinned] * (1 <= pinned <= self.batch)
        root = int(self.batch**0.5) + 1
        ends: Iterable[int] = range(1, root + 1)
        if not self.has_all_numbers:
            few = max(1, MOST_NUMBERS // 4)
            ends = [*range(1, few + 1), *(int(one) for one in np.geomspace(few, root, few))]
        sizes = {*(one for one in ends if one <= self.batch), *(ceil(self.batch / one) for one in ends)}
        return sorted({ceil(self.batch / size) for size in sizes})

    @property
    def has_all_numbers(self) -> bool:
        """Whether the fewest micro-batches of every size are tried."""
        return "num_microbatches" in self.problem.fixed or 2 * (isqrt(self.batch) + 1) <= MOST_NUMBERS

    @property
    def schedules(self) -> tuple[str, ...]:
        """Those that may be chosen."""
        pinned = self.problem.fixed.get("schedule")
        return ("1f1b", "gpipe", "interleaved") if pinned is None else (pinned,)

    def why_empty(self) -> str | None:
        """Return which counts leave nothing to choose from, or None."""
        if not self.cost.groups or not self._has_allowed:
            words = f" ({self.problem.devices_words})" if self.problem.devices_words else ""
            return (
                f"No plan fits: no number of machines and devices meets all limits and pins{words}. Drop or change one "
                f"of them."
            )
        if not self.numbers_of_stages:
            most = min(self.num_layers, sum(self.num_devices))
            return (
                f"No plan fits: fix.num_stages is {self.problem.fixed['num_stages']}, and {self.num_layers} layers on "
                f"{sum(self.num_devices)} devices make 1 to {most} stages. Change it."
            )
        if not self.numbers_of_microbatches:
            pinned = self.problem.fixed["num_microbatches"]
            return f"No plan fits: fix.num_microbatches is {pinned}, and the batch has {self.batch} samples. Lower it."
        return None

    @property
    def _has_allowed(self) -> bool:
        """Whether any numbers of devices are allowed; taken for granted where there are too many to look at all."""
        sizes = [number + 1 for number in self.num_devices]
        return prod(sizes) > _MOST_COUNTS or bool(self.allowed(np.indices(sizes)).any())

    @property
    def fits_one_stage(self) -> bool:
        """Whether the whole network fits on a device of any group, in the smallest micro-batches."""
        number, last = max(self.numbers_of_microbatches), self.num_layers - 1
        return any(
            self.cost.fits(self.shape([Stage(first=0, last=last, group=group, replicas=1)], number, "1f1b"))
            for group in range(len(self.num_devices))
        )

    # -- bounds of a whole question ----------------------------------------------------------------------------------

    @cached_property
    def least_s_per_sample(self) -> float:
        """Seconds a sample that no pipeline is below: all devices compute all the time, each what it does best."""
        profile = self.cost.costs.machines[0].profile
        rate = float(np.dot(self.speeds, self.num_devices))
        return float((profile.forward_s + profile.backward_s).sum()) / rate if np.isfinite(rate) and rate else 0.0

    @cached_property
    def speeds(self) -> tuple[float, ...]:
        """How many times as fast as the first group's a device of each group is, at the layer that suits it best."""
        profiles = [machines.profile for machines in self.cost.costs.machines]
        seconds = np.array([one.forward_s + one.backward_s for one in profiles])
        first = np.maximum(seconds[0], 1e-300)
        return tuple((first / np.maximum(seconds, 1e-300)).max(axis=1).tolist())

    # -- shapes -----------------------------------------------------------------------------------------------

    def shape(self, stages: Sequence[Stage], number: int, schedule: str, chunks: int = 1) -> Shape:
        """Return a shape with the question's batch."""
        return Shape(
            stages=tuple(stages),
            num_microbatches=number,
            global_batch_size=self.batch,
            schedule=schedule,
            chunks_per_device=chunks,
        )

    def balanced(self, group: int, num_parts: int, replicas: int) -> list[Stage]:
        """Return stages of one group, as equal as they can be."""
        ends = self._balanced.get((group, num_parts))
        if ends is None:
            profile = self.cost.costs.machines[group].profile
            ends = balanced_cuts(profile.forward_s + profile.backward_s, num_parts)
            if (len(self._balanced) + 1) * self.num_layers <= _MOST_KEPT:
                self._balanced[group, num_parts] = ends
        starts = [0, *(end + 1 for end in ends[:-1])]
        return [Stage(first=i, last=j, group=group, replicas=replicas) for i, j in zip(starts, ends, strict=True)]

    @cached_property
    def least_stall_s(self) -> float:
        """Seconds of input that no iteration hides, where the framework does not copy ahead."""
        if Strategy(self.problem.calibration.strategy).copies_ahead or sum(self.num_devices) > _MOST_READERS:
            return 0.0
        last, least = self.num_layers - 1, float("inf")
        for group, most in enumerate(self.num_devices):
            for replicas in spread(min(most, self.batch), ANY):
                shape = self.shape([Stage(first=0, last=last, group=group, replicas=replicas)], 1, "1f1b")
                least = min(least, self.cost.stall_s(shape, float("inf")))
        return least

    @cached_property
    def floors_s(self) -> tuple[tuple[float, ...], ...]:
        """Seconds that an iteration takes at least to bring the samples to its first stage, by group and devices."""
        return tuple(
            tuple(self._floor_s(group, replicas) for replicas in range(1, most + 1))
            for group, most in enumerate(self.num_devices)
        )

    def _floor_s(self, group: int, replicas: int) -> float:
        """Return it for so many devices of a group: how many micro-batches there are makes no difference."""
        stage = Stage(first=0, last=self.num_layers - 1, group=group, replicas=replicas)
        read = self.cost.input(self.shape([stage], 1, "1f1b"))
        if Strategy(self.problem.calibration.strategy).copies_ahead:
            return read.bound_s
        return max(read.read_s, read.decode_s) - self.least_stall_s


def table_cells(num_layers: int, num_choices: int) -> int:
    """Return the numbers that a table whose number of stages is open keeps of each state, and of what may follow it."""
    return 14 * (num_layers + 1) + 10 * num_choices


def spread(most: int, number: int) -> list[int]:
    """Return 1 to ``most``, or about so many of them, evenly on a logarithmic scale."""
    if most <= number:
        return list(range(1, most + 1))
    return sorted({int(one) for one in np.round(np.geomspace(1, most, max(number, 2)))})
