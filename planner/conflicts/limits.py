"""The members of a conflict that are limits: devices, machines, memory, the deadline and staleness."""

# ruff: noqa: D102  # what the methods of a member do is said once, in planner.conflicts.constraint.Constraint

from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Literal

from planner.conflicts.constraint import Asked, both_ways, limited, relaxation, unknown
from planner.conflicts.question import as_meant, with_memory
from planner.conflicts.values import MEMORY_UNITS, TIME_UNITS, least_feasible
from planner.errors import Relaxation
from planner.plan import Plan
from planner.problem import Problem, Range
from planner.units import Dimension, parse

__all__ = ["AllDevices", "Deadline", "End", "Exactly", "Memory", "Staleness"]

_MOST_STALENESS = 1024
_UNBOUNDED = "unbounded"
_ASYNCHRONOUS = "asynchronous training, whose convergence is not modelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end of ``constraints.devices`` or ``constraints.machines``: at least, or at most."""

    name: Literal["devices", "machines"]
    end: Literal["at_least", "at_most"]
    value: int
    most: int  # that there are

    @property
    def field(self) -> str:
        return f"constraints.{self.name}"

    @property
    def given(self) -> str:
        return f"{self.end.replace('_', ' ')} {self.value}"

    def without(self, problem: Problem) -> Problem:
        return self.at(problem, 1 if self.end == "at_least" else None)

    def changed(self, problem: Problem, value: str) -> Problem:
        return self.at(problem, int(value))

    def at(self, problem: Problem, value: int | None) -> Problem:
        """Return the question with another end."""
        old: Range = getattr(problem.limits, self.name)
        new = replace(old, least=value) if self.end == "at_least" else replace(old, most=value)  # type: ignore[arg-type]
        return limited(problem, **{self.name: new})

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        sign, limit = (-1, 1) if self.end == "at_least" else (1, self.most)
        found, is_exact = least_feasible(
            sign * self.value, sign * limit, lambda number: asked.is_feasible(self.at(problem, sign * number))
        )
        if found is None:
            return unknown(self)
        change = abs(found * sign / self.value - 1)
        return relaxation(self, [str(found * sign)], is_exact=is_exact, change=change)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactly:
    """``constraints.devices`` or ``constraints.machines`` where one number only is allowed."""

    name: Literal["devices", "machines"]
    value: int
    most: int

    @property
    def field(self) -> str:
        return f"constraints.{self.name}"

    @property
    def given(self) -> str:
        return f"exactly {self.value}"

    def without(self, problem: Problem) -> Problem:
        return limited(problem, **{self.name: Range()})

    def changed(self, problem: Problem, value: str) -> Problem:
        return self.at(problem, int(value))

    def at(self, problem: Problem, value: int) -> Problem:
        """Return the question with another number."""
        return limited(problem, **{self.name: Range(least=value, most=value)})

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        return both_ways(self, self.value, self.most, lambda number: asked.is_feasible(self.at(problem, number)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AllDevices:
    """``dnn.batch_per_device`` where the goal is per iteration, so that no device may be idle."""

    batch_per_device: int
    number: int

    @property
    def field(self) -> str:
        return "dnn.batch_per_device"

    @property
    def given(self) -> str:
        return f"{self.batch_per_device} on all {self.number} devices, per iteration"

    def without(self, problem: Problem) -> Problem:
        """Return the question on the same global batch, which fewer devices may share."""
        training = as_meant(problem).training
        meant = replace(training, batch_per_device=None, global_batch_size=training.fixed_batch_size, num_devices=None)
        dnn = {key: value for key, value in problem.resolved.get("dnn", {}).items() if key != "batch_per_device"}
        return replace(problem, training=meant, resolved={**problem.resolved, "dnn": dnn})

    def changed(self, problem: Problem, value: str) -> Problem:
        return self.without(problem)

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        whole = self.batch_per_device * self.number
        return relaxation(self, [f"dnn.global_batch {whole}"], is_exact=True, note="fewer devices may then share it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """``constraints.memory_per_device``, or a device's own memory."""

    value_bytes: float
    given: str
    device: str | None = None

    @property
    def field(self) -> str:
        return "constraints.memory_per_device" if self.device is None else f"memory of {self.device}"

    def without(self, problem: Problem) -> Problem:
        return self.at(problem, float("inf"))

    def changed(self, problem: Problem, value: str) -> Problem:
        return self.at(problem, parse(value, Dimension.DATA))

    def at(self, problem: Problem, value_bytes: float) -> Problem:
        """Return the question with so much memory."""
        if self.device is None:
            is_none = value_bytes == float("inf")
            return limited(problem, memory_per_device_bytes=None if is_none else value_bytes)
        return replace(problem, cluster=with_memory(problem.cluster, self.device, value_bytes))

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Bisect in the unit that is printed, so that the printed value does, and a unit less does not."""
        low_bytes, high_bytes = self.value_bytes, max(2 * self.value_bytes, 2.0**10)
        while not (answer := asked.is_feasible(self.at(problem, high_bytes))):
            if answer is None or high_bytes > 2.0**60:
                return unknown(self)
            low_bytes, high_bytes = high_bytes, 2 * high_bytes
        unit = next((one for one in MEMORY_UNITS if one.size <= low_bytes), MEMORY_UNITS[-1])
        found, is_exact = least_feasible(
            floor(low_bytes / unit.step),
            ceil(high_bytes / unit.step),
            lambda number: asked.is_feasible(self.changed(problem, unit.text(number))),
        )
        if found is None:
            return unknown(self)
        text, note = unit.text(found), "" if self.device is None else "other hardware"
        change = (
            parse(text, Dimension.DATA) / self.value_bytes - 1 if self.device is None and self.value_bytes else None
        )
        return relaxation(self, [text], is_exact=is_exact, change=change, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """``constraints.deadline``."""

    value_s: float
    given: str

    @property
    def field(self) -> str:
        return "constraints.deadline"

    def without(self, problem: Problem) -> Problem:
        return limited(problem, deadline_s=None)

    def changed(self, problem: Problem, value: str) -> Problem:
        return limited(problem, deadline_s=parse(value, Dimension.TIME))

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Take what the best plan without it needs, rounded up to what is printed."""
        best = asked.best(self.without(problem))
        needed_s = None if best is None else _needed_s(best)
        if best is None or needed_s is None:
            return unknown(self)
        unit = next((one for one in TIME_UNITS if one.size <= needed_s), TIME_UNITS[-1])
        number = ceil(needed_s / unit.step) - 1
        while parse(unit.text(number), Dimension.TIME) < needed_s:
            number += 1
        change = needed_s / self.value_s - 1 if self.value_s else None
        return relaxation(self, [unit.text(number)], is_exact=best.bound >= best.objective, change=change)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """``constraints.max_staleness``, where it is set."""

    value: int

    @property
    def field(self) -> str:
        return "constraints.max_staleness"

    @property
    def given(self) -> str:
        return str(self.value)

    def without(self, problem: Problem) -> Problem:
        return self.at(problem, float("inf"))

    def changed(self, problem: Problem, value: str) -> Problem:
        return self.at(problem, float("inf") if value == _UNBOUNDED else int(value))

    def at(self, problem: Problem, value: float) -> Problem:
        """Return the question with another limit."""
        return limited(problem, max_staleness=value)

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        most = self.value + _MOST_STALENESS
        found, is_exact = least_feasible(self.value, most, lambda number: asked.is_feasible(self.at(problem, number)))
        if found is None:  # only training that nothing bounds does: ``problem`` has an answer without this member
            is_exact = asked.is_feasible(self.at(problem, most)) is False
            note = f"no number up to {most} does; {_ASYNCHRONOUS}" if is_exact else _ASYNCHRONOUS
            return relaxation(self, [_UNBOUNDED], is_exact=is_exact, note=note)
        return relaxation(self, [str(found)], is_exact=is_exact, note=_ASYNCHRONOUS)


def _needed_s(plan: Plan) -> float | None:
    """Return the seconds that a deadline is about: the training's, or an epoch's where the epochs are not given."""
    prediction = plan.prediction
    return prediction.epoch_time_s if prediction.training_time_s is None else prediction.training_time_s
