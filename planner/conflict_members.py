"""The constraints of a question, one by one: how to drop each, and the nearest value of it that would do.

A member changes the :class:`planner.problem.Problem`, and speaks of it by the path of the spec. The cluster's size, the
batch and the network are the question itself, and no members; a device's memory is a fact that other hardware changes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Any, Literal, Protocol, get_args

from planner.conflict_question import as_meant, batch_per_device, exactly, with_memory
from planner.conflict_values import MEMORY_UNITS, TIME_UNITS, first_feasible, least_feasible
from planner.errors import Relaxation
from planner.plan import Plan
from planner.problem import Limits, Problem, Range
from planner.spec import FamilyName
from planner.units import Dimension, format_human, parse

__all__ = ["ALL_FAMILIES", "NAMES_OF_PINS", "Asked", "Member", "members_of"]

ALL_FAMILIES: tuple[str, ...] = get_args(FamilyName)
# What a pin of a name may say; pins of names that the cluster or the network gives are looked up there.
NAMES_OF_PINS = {
    "algorithm": ("ring", "tree", "two_level"),
    "schedule": ("gpipe", "1f1b", "interleaved"),
    "synchronisation": ("bsp", "ssp", "asp", "local_sgd"),
    "co_located": (False, True),
}
_MOST_STALENESS = 1024
_ASYNCHRONOUS = "asynchronous training, whose convergence is not modelled"


class Asked(Protocol):
    """Who answers whether a question has an answer."""

    def is_feasible(self, problem: Problem) -> bool | None:
        """Whether there is a plan; None where a limit struck first."""
        ...

    def best(self, problem: Problem) -> Plan | None:
        """Return the best plan; None where there is none, or a limit struck first."""
        ...


class Member(Protocol):
    """One constraint of the user's, or one fact of the hardware."""

    @property
    def field(self) -> str:
        """Its path in the spec."""
        ...

    @property
    def given(self) -> str:
        """Its value, as the user would write it."""
        ...

    def without(self, problem: Problem) -> Problem:
        """Return the question without it."""
        ...

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Return the nearest values that would do; ``problem`` has no answer with it, and one without it."""
        ...


# -- members -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
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

    def at(self, problem: Problem, value: int | None) -> Problem:
        """Return the question with another end."""
        old: Range = getattr(problem.limits, self.name)
        new = replace(old, least=value) if self.end == "at_least" else replace(old, most=value)  # type: ignore[arg-type]
        return _limited(problem, **{self.name: new})

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        sign, limit = (-1, 1) if self.end == "at_least" else (1, self.most)
        found, is_exact = least_feasible(
            sign * self.value, sign * limit, lambda number: asked.is_feasible(self.at(problem, sign * number))
        )
        if found is None:
            return _unknown(self)
        change = abs(found * sign / self.value - 1)
        return _relaxation(self, [str(found * sign)], is_exact=is_exact, change=change)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exactly:
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
        return _limited(problem, **{self.name: Range()})

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        def is_feasible(number: int) -> bool | None:
            return asked.is_feasible(_limited(problem, **{self.name: Range(least=number, most=number)}))

        return _both_ways(self, self.value, self.most, is_feasible)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    """``constraints.memory_per_device``, or a device's own memory."""

    value_bytes: float
    device: str | None = None

    @property
    def field(self) -> str:
        return "constraints.memory_per_device" if self.device is None else f"memory of {self.device}"

    @property
    def given(self) -> str:
        return format_human(self.value_bytes, Dimension.DATA, 4)

    def without(self, problem: Problem) -> Problem:
        return self.at(problem, float("inf"))

    def at(self, problem: Problem, value_bytes: float) -> Problem:
        """Return the question with so much memory."""
        if self.device is None:
            is_none = value_bytes == float("inf")
            return _limited(problem, memory_per_device_bytes=None if is_none else value_bytes)
        return replace(problem, cluster=with_memory(problem.cluster, self.device, value_bytes))

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Bisect in the unit that is printed, so that the printed value does, and a unit less does not."""
        low_bytes, high_bytes = self.value_bytes, max(2 * self.value_bytes, 2.0**10)
        while not (answer := asked.is_feasible(self.at(problem, high_bytes))):
            if answer is None or high_bytes > 2.0**60:
                return _unknown(self)
            low_bytes, high_bytes = high_bytes, 2 * high_bytes
        unit = next((one for one in MEMORY_UNITS if one.size <= low_bytes), MEMORY_UNITS[-1])
        found, is_exact = least_feasible(
            floor(low_bytes / unit.step),
            ceil(high_bytes / unit.step),
            lambda number: asked.is_feasible(self.at(problem, parse(unit.text(number), Dimension.DATA))),
        )
        if found is None:
            return _unknown(self)
        text, note = unit.text(found), "" if self.device is None else "other hardware"
        change = (
            parse(text, Dimension.DATA) / self.value_bytes - 1 if self.device is None and self.value_bytes else None
        )
        return _relaxation(self, [text], is_exact=is_exact, change=change, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deadline:
    """``constraints.deadline``."""

    value_s: float

    @property
    def field(self) -> str:
        return "constraints.deadline"

    @property
    def given(self) -> str:
        return format_human(self.value_s, Dimension.TIME, 4)

    def without(self, problem: Problem) -> Problem:
        return _limited(problem, deadline_s=None)

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Take what the best plan without it needs, rounded up to what is printed."""
        best = asked.best(self.without(problem))
        needed_s = None if best is None else _needed_s(best)
        if best is None or needed_s is None:
            return _unknown(self)
        unit = next((one for one in TIME_UNITS if one.size <= needed_s), TIME_UNITS[-1])
        number = ceil(needed_s / unit.step) - 1
        while parse(unit.text(number), Dimension.TIME) < needed_s:
            number += 1
        change = needed_s / self.value_s - 1 if self.value_s else None
        return _relaxation(self, [unit.text(number)], is_exact=best.bound >= best.objective, change=change)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staleness:
    """``constraints.max_staleness``, which is 0 unless the user says more."""

    value: int

    @property
    def field(self) -> str:
        return "constraints.max_staleness"

    @property
    def given(self) -> str:
        return str(self.value)

    def without(self, problem: Problem) -> Problem:
        return self.at(problem, float("inf"))

    def at(self, problem: Problem, value: float) -> Problem:
        """Return the question with another limit."""
        return _limited(problem, max_staleness=value)

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        found, is_exact = least_feasible(
            self.value, self.value + _MOST_STALENESS, lambda number: asked.is_feasible(self.at(problem, number))
        )
        if found is None:  # only a family without any limit of its own does
            return _relaxation(self, ["unbounded"], is_exact=False, note=_ASYNCHRONOUS)
        return _relaxation(self, [str(found)], is_exact=is_exact, note=_ASYNCHRONOUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Families:
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
        return ", ".join(name for name in ALL_FAMILIES if name not in self.allowed)

    def without(self, problem: Problem) -> Problem:
        return replace(problem, families=ALL_FAMILIES)

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Try every other family by itself, beside those that are allowed."""
        values, is_exact = [], True
        for name in ALL_FAMILIES:
            if name not in self.allowed:
                answer = asked.is_feasible(replace(problem, families=(*self.allowed, name)))
                is_exact = is_exact and answer is not None
                if answer:
                    values.append(f"also allow {name}")
        return _relaxation(self, values, is_exact=is_exact) if values else _unknown(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pin:
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

    def at(self, problem: Problem, value: Any) -> Problem:
        """Return the question with another value."""
        return replace(problem, fixed={**problem.fixed, self.key: value})

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Look for the nearest numbers both ways, or try all names; where neither is known, leave the pin out."""
        if isinstance(self.value, int) and not isinstance(self.value, bool):
            most = _most_of(self.key, problem)
            return _both_ways(self, self.value, most, lambda number: asked.is_feasible(self.at(problem, number)))
        values, is_exact = [], True
        for name in _names_of(self.key, problem):
            if name != self.value:
                answer = asked.is_feasible(self.at(problem, name))
                is_exact = is_exact and answer is not None
                if answer:
                    values.append(_written(name))
        return _relaxation(self, values or ["leave it out"], is_exact=is_exact)


def _names_of(key: str, problem: Problem) -> Sequence[Any]:
    """Return what a pin of a name may say."""
    groups = problem.cluster.machine_groups
    if key == "device":
        return list(dict.fromkeys(group.device.name for group in groups))
    if key == "servers":
        return [group.name for group in groups]
    return NAMES_OF_PINS.get(key, ())


def _most_of(key: str, problem: Problem) -> int:
    """Return the greatest number that a pin could mean."""
    cluster = problem.cluster
    if key == "devices_per_machine":
        return max(group.devices_per_machine for group in cluster.machine_groups)
    if key == "num_devices":
        return cluster.num_devices
    if key == "num_stages":
        return min(len(problem.dnn.layers), cluster.num_devices)
    if key in ("gradient_accumulation_steps", "num_microbatches"):
        training = as_meant(problem).training
        return training.fixed_batch_size or training.max_global_batch_size or 1
    return cluster.num_machines


def members_of(problem: Problem) -> list[Member]:
    """Return the constraints that a question has; what is dropped first where either of two would do stands first."""
    limits, cluster = problem.limits, problem.cluster
    members: list[Member] = [
        _Memory(value_bytes=device.memory_bytes, device=device.name)
        for device in {group.device.name: group.device for group in cluster.machine_groups}.values()
        if device.memory_bytes < float("inf")
    ]
    if limits.max_staleness < float("inf"):
        members.append(_Staleness(value=int(limits.max_staleness)))
    if set(ALL_FAMILIES) - set(problem.families):
        is_asked = bool(problem.resolved.get("families")) or not problem.resolved.get("constraints")
        members.append(_Families(allowed=problem.families, is_asked=is_asked))
    members += [_Pin(key=key, value=value) for key, value in problem.fixed.items()]
    is_open = batch_per_device(problem) is None
    members += _range_members("devices", limits.devices, cluster.num_devices, is_open=is_open)
    members += _range_members("machines", limits.machines, cluster.num_machines, is_open=is_open)
    if limits.deadline_s is not None:
        members.append(_Deadline(value_s=limits.deadline_s))
    if limits.memory_per_device_bytes is not None:
        members.append(_Memory(value_bytes=limits.memory_per_device_bytes))
    return members


def _range_members(name: Literal["devices", "machines"], allowed: Range, most: int, *, is_open: bool) -> list[Member]:
    """Return the ends that limit anything, or the one number that is allowed.

    ``is_open``: the number of devices is open, so that one at most may become two at most.
    """
    number = exactly(allowed)
    if number is not None and (number > 1 or not is_open):
        return [_Exactly(name=name, value=number, most=most)]
    members: list[Member] = []
    if allowed.least > 1:
        members.append(_End(name=name, end="at_least", value=allowed.least, most=most))
    if allowed.most is not None and allowed.most < most:
        members.append(_End(name=name, end="at_most", value=allowed.most, most=most))
    return members


# -- small helpers -------------------------------------------------------------------------------------------------


def _both_ways(member: Member, value: int, most: int, is_feasible: Callable[[int], bool | None]) -> Relaxation:
    """Return the nearest feasible number above and below a value; what is feasible need not stay so beyond."""
    above, is_exact_above = first_feasible(range(value + 1, most + 1), is_feasible)
    below, is_exact_below = first_feasible(range(min(value - 1, most), 0, -1), is_feasible)
    found = sorted((one for one in (above, below) if one is not None), key=lambda one: abs(one - value))
    if not found:
        return _unknown(member, is_exact=is_exact_above and is_exact_below)
    change = abs(found[0] / value - 1)
    return _relaxation(member, [str(one) for one in found], is_exact=is_exact_above and is_exact_below, change=change)


def _relaxation(
    member: Member, values: Sequence[str], *, is_exact: bool, change: float | None = None, note: str = ""
) -> Relaxation:
    """Return what a member would have to be."""
    return Relaxation(
        field=member.field, given=member.given, values=tuple(values), is_exact=is_exact, change=change, note=note
    )


def _unknown(member: Member, *, is_exact: bool = False) -> Relaxation:
    """Return that no value is known; ``is_exact``: that there is none but leaving the constraint out."""
    note = "no other value does; leave it out" if is_exact else "leave it out; no value was found in time"
    return _relaxation(member, (), is_exact=is_exact, note=note)


def _limited(problem: Problem, **changes: Any) -> Problem:
    """Return the question with other limits."""
    limits: Limits = replace(problem.limits, **changes)
    return replace(problem, limits=limits)


def _needed_s(plan: Plan) -> float | None:
    """Return the seconds that a deadline is about: the training's, or an epoch's where the epochs are not given."""
    prediction = plan.prediction
    return prediction.epoch_time_s if prediction.training_time_s is None else prediction.training_time_s


def _written(value: object) -> str:
    """Return a value as a spec writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list | tuple) else str(value)
