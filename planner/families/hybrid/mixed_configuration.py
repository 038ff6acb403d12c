"""The decisions of a hybrid layout with unlike stages or unlike replicas, as a spec writes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

from planner.families.hybrid.configuration import HybridConfiguration

__all__ = ["MixedConfiguration", "MixedReplicas", "MixedStage"]


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
        found = {field.name: getattr(self, field.name) for field in fields(HybridConfiguration)}
        del found["machines"]
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
