"""The decisions of the family ``hybrid``: one layout of a transformer, as a spec writes it and as arrays."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from planner.models.layouts import Layouts
from planner.models.tiers import ORDERS

__all__ = [
    "DECIDED",
    "FLAGS",
    "NAME",
    "ORDER_NAMES",
    "RECOMPUTE_NAMES",
    "SCHEDULE_NAMES",
    "HybridConfiguration",
    "layouts_of",
]

NAME = "hybrid"
RECOMPUTE_NAMES = ("none", "selective", "full")  # by planner.models.layouts.Recompute
SCHEDULE_NAMES = ("gpipe", "1f1b", "zero_bubble")  # by planner.models.layouts.Schedule; 1f1b with chunks is interleaved
ORDER_NAMES = tuple("-".join(order) for order in ORDERS)
FLAGS = {  # of a spec's block, by the name of the array
    "is_sequence_parallel": "sequence_parallel",
    "overlaps_data": "overlap_data",
    "overlaps_tensor": "overlap_tensor",
    "is_offloaded": "offload_optimizer",
}
DECIDED = (
    "tensor",
    "context",
    "pipeline",
    "data",
    "expert",
    "microbatch",
    "recompute",
    "zero",
    "is_sequence_parallel",
    "schedule",
    "interleave",
    "is_offloaded",
    "overlaps_data",
    "overlaps_tensor",
    "order",
)

# The keys of ``fix`` that the family decides, by the decision that they pin; others are told in Space.
PINS: Mapping[str, str] = {
    "tensor_parallel_size": "tensor",
    "context_parallel_size": "context",
    "pipeline_parallel_size": "pipeline",
    "num_stages": "pipeline",
    "data_parallel_size": "data",
    "expert_parallel_size": "expert",
    "chunks_per_device": "interleave",
    "microbatch_size": "microbatch",
    "zero_stage": "zero",
    "recompute": "recompute",
    "sequence_parallel": "is_sequence_parallel",
    "overlap_data": "overlaps_data",
    "overlap_tensor": "overlaps_tensor",
    "offload_optimizer": "is_offloaded",
    "rank_order": "order",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridConfiguration:
    """One layout.

    Attributes
    ----------
    machines
        The group of machines that trains; None where all are alike.
    global_batch_size
        Samples of a step.
    tensor, context, pipeline, data, expert, interleave, microbatch, zero
        As in :class:`planner.models.layouts.Layouts`.
    recompute, schedule, order
        By name: of :data:`RECOMPUTE_NAMES`, :data:`SCHEDULE_NAMES` and :data:`ORDER_NAMES`.
    sequence_parallel, overlap_data, overlap_tensor, offload_optimizer
        Whether.
    """

    global_batch_size: int
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    interleave: int = 1
    microbatch: int = 1
    zero: int = 0
    recompute: str = "none"
    schedule: str = "1f1b"
    sequence_parallel: bool = False
    overlap_data: bool = False
    overlap_tensor: bool = False
    offload_optimizer: bool = False
    order: str = ORDER_NAMES[0]
    machines: str | None = None

    @property
    def num_devices(self) -> int:
        """Devices that train."""
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def num_microbatches(self) -> int:
        """Of one step, on one replica."""
        return self.global_batch_size // (self.data * self.microbatch)

    @property
    def pipeline_layout(self) -> str | None:
        """The layers of every stage as Megatron-LM writes them; None where they are dealt out evenly."""
        return None

    @property
    def headline(self) -> str:
        """The degrees that are not 1, and what goes with them."""
        degrees = ("tensor", "context", "pipeline", "data", "expert")
        listed = [f"{name} {getattr(self, name)}" for name in degrees if getattr(self, name) > 1] or []
        chunks = [f"{self.interleave} chunks"] if self.interleave > 1 else []
        extras = [f"ZeRO {self.zero}"] if self.zero else []
        extras += [f"{self.recompute} recomputation"] if self.recompute != "none" else []
        extras += ["optimiser on the host"] if self.offload_optimizer else []
        batch = f"micro-batches of {self.microbatch}"
        number = f"{self.num_devices} device{'s' * (self.num_devices > 1)}"
        return f"{number}: {', '.join([*listed, *chunks, batch, *extras])}"

    def to_document(self) -> dict[str, Any]:
        """Return the block that ``predict`` reads back."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return found if self.machines is not None else {name: found[name] for name in found if name != "machines"}

    def codes(self) -> dict[str, int]:
        """Return every decision as a number, by the name of its array."""
        found = {name: int(getattr(self, FLAGS.get(name, name))) for name in DECIDED if name not in _NAMED}
        return {**found, **{name: names.index(getattr(self, name)) for name, names in _NAMED.items()}}

    @classmethod
    def of(cls, codes: Mapping[str, int], *, batch: int, machines: str | None) -> "HybridConfiguration":
        """Return the configuration of such numbers."""
        found: dict[str, Any] = {name: int(codes[name]) for name in DECIDED if name not in _NAMED and name not in FLAGS}
        found |= {flag: bool(codes[name]) for name, flag in FLAGS.items()}
        found |= {name: names[codes[name]] for name, names in _NAMED.items()}
        return cls(global_batch_size=batch, machines=machines, **found)


_NAMED = {"recompute": RECOMPUTE_NAMES, "schedule": SCHEDULE_NAMES, "order": ORDER_NAMES}


_MOST_WHOLE = 1 << 20  # samples of a micro-batch


def layouts_of(columns: Mapping[str, Any], batch: int) -> Layouts:
    """Return layouts of columns of numbers, one column a decision; micro-batches follow from the batch."""
    arrays = {name: np.asarray(columns[name]) for name in DECIDED}
    found = {name: array.astype(bool) if name in FLAGS else array for name, array in arrays.items()}
    number = batch // (found["data"] * found["microbatch"])
    if found["microbatch"].max(initial=0) > _MOST_WHOLE:
        found["microbatch"] = found["microbatch"].astype(np.float64)  # times elements it is beyond what integers hold
    return Layouts(num_microbatches=number, **found)
