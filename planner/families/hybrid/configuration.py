"""The decisions of the family ``hybrid``: one layout of a transformer, as a spec writes it and as arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

import numpy as np

from planner.decisions import DECISIONS, LAYOUT, LayoutDecisions
from planner.errors import Fault, SpecError
from planner.models.layouts import Layouts
from planner.problem import Problem

NAME = "hybrid"
RECOMPUTE_NAMES = LAYOUT["recompute"].names  # by planner.models.layouts.Recompute
SCHEDULE_NAMES = LAYOUT["schedule"].names  # by planner.models.layouts.Schedule; 1f1b with chunks is interleaved
ORDER_NAMES = LAYOUT["order"].names  # by planner.models.communication.ORDERS
# The keys of ``fix`` whose value is that of one decision of a layout; what else the family decides is told in Space.
PINS: Mapping[str, str] = {row.key: row.block[NAME] for row in DECISIONS if NAME in row.block and not row.block_values}


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridConfiguration(LayoutDecisions):
    """One layout.

    Attributes
    ----------
    machines
        The group of machines that trains; None where all are alike.
    global_batch_size
        Samples of a step.
    """

    global_batch_size: int
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
        found = {"global_batch_size": self.global_batch_size, **{name: getattr(self, name) for name in LAYOUT}}
        return found if self.machines is None else {**found, "machines": self.machines}

    def codes(self) -> dict[str, int]:
        """Return every decision as a number."""
        return {name: row.code(getattr(self, name)) for name, row in LAYOUT.items()}

    @classmethod
    def of(cls, codes: Mapping[str, int], *, batch: int, machines: str | None) -> "HybridConfiguration":
        """Return the configuration of such numbers."""
        found: dict[str, Any] = {name: row.decoded(codes[name]) for name, row in LAYOUT.items()}
        return cls(global_batch_size=batch, machines=machines, **found)


_MOST_WHOLE = 1 << 20  # samples of a micro-batch


def layouts_of(columns: Mapping[str, Any], batch: int) -> Layouts:
    """Return layouts of columns of numbers, one column a decision; micro-batches follow from the batch."""
    arrays = {name: np.asarray(columns[name]) for name in LAYOUT}
    found = {name: array.astype(bool) if LAYOUT[name].is_flag else array for name, array in arrays.items()}
    number = batch // (found["data"] * found["microbatch"])
    if found["microbatch"].max(initial=0) > _MOST_WHOLE:
        found["microbatch"] = found["microbatch"].astype(np.float64)  # times elements it is beyond what integers hold
    return Layouts(num_microbatches=number, **found)


# --- The decisions of a hybrid layout with unlike stages or unlike replicas, as a spec writes them


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedStage:
    """One pipeline stage: its layers, and the group of machines of all its devices (None where that is not asked)."""

    layers: int
    machines: str | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the entry that ``predict`` reads back."""
        return {"layers": self.layers} if self.machines is None else {"machines": self.machines, "layers": self.layers}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedReplicas:
    """Whole replicas on one group of machines: how many, and the micro-batches of each."""

    machines: str
    data: int
    num_microbatches: int

    def to_document(self) -> dict[str, Any]:
        """Return the entry that ``predict`` reads back."""
        return {"machines": self.machines, "data": self.data, "num_microbatches": self.num_microbatches}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedConfiguration(HybridConfiguration):
    """One layout whose stages, or whose replicas, are unlike; ``machines`` is None.

    Attributes
    ----------
    stages
        One for each of ``pipeline``, in order; they name machines where there are several kinds and no ``replicas``.
    replicas
        Empty, or one for each kind of machines; they add up to ``data``.
    """

    stages: tuple[MixedStage, ...]
    replicas: tuple[MixedReplicas, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups of machines that train, in the order of the pipeline; none where all are alike."""
        names = [one.machines for one in (self.replicas or self.stages)]
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def devices_of(self) -> Mapping[str | None, int]:
        """Devices by group; all stand under None where machines are alike."""
        each = self.tensor * self.context
        found: dict[str | None, int] = {}
        if self.replicas:
            for one in self.replicas:
                found[one.machines] = found.get(one.machines, 0) + each * self.pipeline * one.data
            return found
        for stage in self.stages:
            found[stage.machines] = found.get(stage.machines, 0) + each * self.data
        return found

    @property
    def num_microbatches(self) -> int:
        """Of one step, on the replica that does most."""
        if self.replicas:
            return max(one.num_microbatches for one in self.replicas)
        return self.global_batch_size // (self.data * self.microbatch)

    @property
    def pipeline_layout(self) -> str | None:
        """The layers of every stage as Megatron-LM writes them: embedding, layers, head; None for one stage."""
        if self.pipeline == 1:
            return None
        return f"E{'|'.join(f't*{one.layers}' for one in self.stages)}L"

    @property
    def headline(self) -> str:
        """The degrees that are not 1, and what is unlike."""
        plain = HybridConfiguration(**{field.name: getattr(self, field.name) for field in fields(HybridConfiguration)})
        if self.replicas:
            rows = [f"{one.data} on {one.machines} x {one.num_microbatches} micro-batches" for one in self.replicas]
            return f"{plain.headline}; replicas: {', '.join(rows)}"
        return f"{plain.headline}; {self.stage_words}"

    @property
    def stage_words(self) -> str:
        """The layers of the stages, in short."""
        runs = []
        for (name, layers), run in groupby(self.stages, key=lambda one: (one.machines, one.layers)):
            count = len(list(run))
            times = f"{count} x {layers}" if count > 1 else str(layers)
            runs.append((name, times))
        words = [
            f"{', '.join(times for _, times in run)}" + (f" on {name}" if name is not None else "")
            for name, run in ((name, list(run)) for name, run in groupby(runs, key=lambda one: one[0]))
        ]
        return f"layers by stage: {'; '.join(words)}"

    def to_document(self) -> dict[str, Any]:
        """Return the block that ``predict`` reads back."""
        found = HybridConfiguration.to_document(self)
        found["stages"] = [one.to_document() for one in self.stages]
        return found | ({"replicas": [one.to_document() for one in self.replicas]} if self.replicas else {})

    @classmethod
    def mixed(
        cls,
        codes: Mapping[str, int],
        *,
        batch: int,
        stages: Sequence[MixedStage],
        replicas: Sequence[MixedReplicas] = (),
    ) -> "MixedConfiguration":
        """Return the configuration of decisions as numbers, and of what is unlike."""
        plain = HybridConfiguration.of(codes, batch=batch, machines=None)
        known = {field.name: getattr(plain, field.name) for field in fields(HybridConfiguration)}
        return cls(**known, stages=tuple(stages), replicas=tuple(replicas))


# --- What is wrong with a block ``configuration.hybrid``, key by key


def given_batch(problem: Problem, given: int | None) -> int | None:
    """Return the batch that is given, checked against the one asked for."""
    fixed, most = problem.training.fixed_batch_size, problem.training.max_global_batch_size
    if given is not None and ((fixed is not None and given != fixed) or (most is not None and given > most)):
        text = f"dnn asks for a batch of {fixed or most}."
        raise SpecError.of([fault_of("global_batch_size", given, text, f"Write {fixed or most}.")])
    return given


def fault_of(key: str, value: object, problem: str, mend: str) -> Fault:
    """Return what is wrong with one key of the block."""
    written = str(value).lower() if isinstance(value, bool) else str(value)
    return Fault(field=f"configuration.{NAME}.{key}", value=written, problem=problem, mend=mend)
