"""The decisions of the family ``pipeline``: stages by the names of their layers, and the schedule of micro-batches."""

from dataclasses import dataclass
from itertools import groupby
from typing import Any

__all__ = ["NAME", "PipelineConfiguration", "PipelineStage"]

NAME = "pipeline"
_MOST_LISTED = 8  # stages whose replicas stand one by one in a headline


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStage:
    """A stage by names: its first and last layer, its machine group, and how many devices share its micro-batches."""

    first: str
    last: str
    machines: str
    replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfiguration:
    """All decisions of the family.

    Stages cover the layers in order. The interleaved schedule has ``chunks_per_device`` times as many stages as
    devices; stage k then runs on the devices of stage ``k mod p``.
    """

    stages: tuple[PipelineStage, ...]
    num_microbatches: int
    global_batch_size: int
    schedule: str = "1f1b"
    chunks_per_device: int = 1

    @property
    def num_stages(self) -> int:
        """Stages of different devices: p."""
        return len(self.stages) // self.chunks_per_device

    @property
    def num_devices(self) -> int:
        """Devices of all stages."""
        return sum(stage.replicas for stage in self.stages[: self.num_stages])

    @property
    def headline(self) -> str:
        """Stages with their replicas, micro-batches and schedule."""
        numbers = [stage.replicas for stage in self.stages[: self.num_stages]]
        replicas = "-".join(map(str, numbers))
        if len(numbers) > _MOST_LISTED:
            runs = [(number, len(list(same))) for number, same in groupby(numbers)]
            replicas = ", ".join(f"{length} of {number} replica{'s' * (number > 1)}" for number, length in runs)
        stages = f"{self.num_stages} stage{'s' * (self.num_stages > 1)}"
        chunks = f" x {self.chunks_per_device} chunks" if self.chunks_per_device > 1 else ""
        return (
            f"{self.num_devices} device{'s' * (self.num_devices > 1)} ({stages}{chunks}: {replicas}), "
            f"{self.num_microbatches} micro-batch{'es' * (self.num_microbatches > 1)}, {self.schedule}"
        )

    def to_document(self) -> dict[str, Any]:
        """Return the block that ``predict`` reads back."""
        return {
            "stages": [
                {"first": one.first, "last": one.last, "machines": one.machines, "replicas": one.replicas}
                for one in self.stages
            ],
            "num_microbatches": self.num_microbatches,
            "global_batch_size": self.global_batch_size,
            "schedule": self.schedule,
            "chunks_per_device": self.chunks_per_device,
        }
