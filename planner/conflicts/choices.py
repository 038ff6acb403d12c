"""The members of a conflict that are choices: the families that may answer, and the keys of ``fix``."""

# ruff: noqa: D102  # what the methods of a member do is said once, in planner.conflicts.constraint.Constraint

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, get_args

from planner.conflicts.constraint import Asked, both_ways, relaxation, unknown
from planner.conflicts.question import as_meant
from planner.errors import Relaxation
from planner.family_names import FAMILY_NAMES
from planner.problem import Problem
from planner.spec.configuration import RankOrder, ZeroStage

__all__ = ["NAMES_OF_PINS", "Exclusion", "Families", "Pin"]

# What a pin of a name may say; pins of names that the cluster or the network gives are looked up there.
NAMES_OF_PINS = {
    "algorithm": ("ring", "tree", "two_level"),
    "schedule": ("gpipe", "1f1b", "interleaved"),
    "synchronisation": ("bsp", "ssp", "asp", "local_sgd"),
    "co_located": (False, True),
    "recompute": ("none", "selective", "full"),
    "rank_order": get_args(RankOrder),
    **dict.fromkeys(("zero_bubble", "sequence_parallel", "overlap_data", "overlap_tensor"), (False, True)),
    "offload_optimizer": (False, True),
}
_ALSO = "also allow "


@dataclass(frozen=True, slots=True, kw_only=True)
class Families:
    """The families that may answer: ``families``, less ``constraints.forbidden_families``."""

    allowed: tuple[str, ...]
    is_asked: bool  # by the key families; else some are forbidden

    @property
    def field(self) -> str:
        return "families" if self.is_asked else "constraints.forbidden_families"

    @property
    def given(self) -> str:
        if self.is_asked:
            return ", ".join(self.allowed)
        return ", ".join(name for name in FAMILY_NAMES if name not in self.allowed)

    def without(self, problem: Problem) -> Problem:
        return replace(problem, families=FAMILY_NAMES)

    def changed(self, problem: Problem, value: str) -> Problem:
        return replace(problem, families=(*self.allowed, value.removeprefix(_ALSO)))

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Try every other family by itself, beside those that are allowed."""
        others = [f"{_ALSO}{name}" for name in FAMILY_NAMES if name not in self.allowed]
        answers = [asked.is_feasible(self.changed(problem, value)) for value in others]
        values = [value for value, answer in zip(others, answers, strict=True) if answer]
        is_exact = None not in answers
        return relaxation(self, values, is_exact=is_exact) if values else unknown(self, is_exact=is_exact)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One key of ``fix``."""

    key: str
    value: Any

    @property
    def field(self) -> str:
        return f"fix.{self.key}"

    @property
    def given(self) -> str:
        return _written(self.value)

    def without(self, problem: Problem) -> Problem:
        return replace(problem, fixed={key: value for key, value in problem.fixed.items() if key != self.key})

    def changed(self, problem: Problem, value: str) -> Problem:
        if self.is_number:
            return self.at(problem, int(value))
        return self.at(problem, next(one for one in _names_of(self.key, problem) if _written(one) == value))

    @property
    def is_number(self) -> bool:
        """Whether the key takes a number."""
        return isinstance(self.value, int) and not isinstance(self.value, bool)

    def at(self, problem: Problem, value: Any) -> Problem:
        """Return the question with another value."""
        return replace(problem, fixed={**problem.fixed, self.key: value})

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Look for the nearest numbers both ways, or try all names; where none does, leave the pin out."""
        if self.is_number:
            most = _most_of(self.key, problem)
            return both_ways(self, self.value, most, lambda number: asked.is_feasible(self.at(problem, number)))
        names = [name for name in _names_of(self.key, problem) if _written(name) != self.given]
        answers = [asked.is_feasible(self.at(problem, name)) for name in names]
        values = [_written(name) for name, answer in zip(names, answers, strict=True) if answer]
        is_exact = None not in answers
        return relaxation(self, values, is_exact=is_exact) if values else unknown(self, is_exact=is_exact)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """One key of ``constraints.exclude``, with all its values."""

    key: str
    values: tuple[Any, ...]

    @property
    def field(self) -> str:
        return f"constraints.exclude.{self.key}"

    @property
    def given(self) -> str:
        return ", ".join(map(_written, self.values))

    def without(self, problem: Problem) -> Problem:
        return self._excluding(problem, ())

    def changed(self, problem: Problem, value: str) -> Problem:
        allowed = value.removeprefix(_ALSO)
        return self._excluding(problem, tuple(one for one in self.values if _written(one) != allowed))

    def _excluding(self, problem: Problem, values: tuple[Any, ...]) -> Problem:
        """Return the question with other values excluded."""
        others = {key: kept for key, kept in problem.excluded.items() if key != self.key}
        return replace(problem, excluded={**others, self.key: values} if values else others)

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Try to allow each value by itself."""
        values = [f"{_ALSO}{_written(one)}" for one in self.values]
        answers = [asked.is_feasible(self.changed(problem, value)) for value in values]
        enough = [value for value, answer in zip(values, answers, strict=True) if answer]
        is_exact = None not in answers
        return relaxation(self, enough, is_exact=is_exact) if enough else unknown(self, is_exact=is_exact)


def _names_of(key: str, problem: Problem) -> Sequence[Any]:
    """Return what a pin of a name may say."""
    groups = problem.cluster.machine_groups
    if key == "device":
        return list(dict.fromkeys(group.device.name for group in groups))
    if key == "servers":
        return [group.name for group in groups]
    if key == "substitutions":
        return [
            [one.name for one in chosen]
            for size in range(len(problem.substitutions) + 1)
            for chosen in combinations(problem.substitutions, size)
            if not any(one.overlaps(other) for one, other in combinations(chosen, 2))
        ]
    return NAMES_OF_PINS.get(key, ())


def _most_of(key: str, problem: Problem) -> int:
    """Return the greatest number that a pin could mean."""
    cluster = problem.cluster
    if key == "devices_per_machine":
        return max(group.devices_per_machine for group in cluster.machine_groups)
    if key == "num_devices":
        return cluster.num_devices
    if key == "zero_stage":
        return int(max(get_args(ZeroStage)))
    if key.endswith("_parallel_size"):
        return cluster.num_devices
    if key == "chunks_per_device":
        return len(problem.dnn.layers)
    if key == "num_stages":
        return min(len(problem.dnn.layers), cluster.num_devices)
    if key in ("gradient_accumulation_steps", "num_microbatches", "microbatch_size"):
        training = as_meant(problem).training
        return training.fixed_batch_size or training.max_global_batch_size or 1
    return cluster.num_machines


def _written(value: object) -> str:
    """Return a value as a spec writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list | tuple) else str(value)
