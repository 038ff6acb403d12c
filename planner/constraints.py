"""The constraints of a question: one object each, by which searches, checks, conflicts and explanations judge alike.

A *constraint* is what a plan must respect: limits of the user, pins, and facts of the hardware. Its object says how the
spec writes it, what of a plan's usage it limits (:class:`Usage`), whether it holds, in words, and how far it would have
to give. To add one, write its class here, put it into :data:`CONSTRAINTS`, and give its value a field of
:class:`planner.problem.Limits`. One that depends on the machines alone narrows the cluster that is searched
(:meth:`Constraint.narrowed`), so that every family keeps to it; any other has to be read by the families' searches.

The cluster's size, the batch and the network are the question itself, and never dropped; but that a batch per device
leaves no device idle in an iteration is. A device's memory is a fact that other hardware changes. Nor is a staleness
dropped that is not set: nobody is told to train asynchronously who did not ask for it.
"""

# ruff: noqa: D102  # what the methods of a relaxable value do is said once, in Relaxable
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import ceil, floor
from typing import Any, Literal, cast

from planner import perturb
from planner.cluster import Cluster, MachineGroup
from planner.decisions import asked_by, row_of, written
from planner.errors import InfeasibleError, NoAnswerError, Relaxation
from planner.frozen import frozen
from planner.names import FAMILY_NAMES
from planner.plan import Plan, Prediction
from planner.problem import Limits, Problem, RackPower, Range, Training, as_meant, batch_per_device
from planner.relaxation import (
    Asked,
    Relaxable,
    Unit,
    as_written,
    both_ways,
    least_feasible,
    limited,
    relaxation,
    rounded_up,
    tried_each,
    unit_of,
    unknown,
)
from planner.search import Search
from planner.solution import SAME
from planner.units import Dimension, format_exact, format_human, parse
from planner.words import time_words

# --- What a plan uses, and what is said of it


@frozen
class Usage:
    """What a configuration uses of all that is limited."""

    family: str  # its name
    # machines, devices: how many of each group: machines that train or serve, devices that train
    machines: Mapping[str, int]
    devices: Mapping[str, int]
    # on the fullest device of each group; empty where the family models none
    memory_bytes: Mapping[str, float] = field(default_factory=dict)
    staleness: float = 0.0  # by how many iterations a gradient may lag; 0 for synchronous training
    global_batch_size: int = 0  # samples of an iteration
    needed_s: float | None = None  # what a deadline is about, see :func:`needed_s`; None where it is not known
    # what the configuration says about each key of ``fix`` that its family decides
    decisions: Mapping[str, Any] = field(default_factory=dict)


@frozen
class Verdict:
    """Whether one thing is kept, with its name and the words for it."""

    name: str
    is_kept: bool
    words: str


def needed_s(prediction: Prediction) -> float | None:
    """Return the seconds that a deadline is about: the training's, or an epoch's where the epochs are not given."""
    return prediction.epoch_time_s if prediction.training_time_s is None else prediction.training_time_s


def allowed_staleness(problem: Problem) -> float:
    """Return by how many iterations gradients may lag.

    Where the user sets no limit, training is synchronous, unless a pin or the only family asked for is not.
    """
    if problem.limits.max_staleness is not None:
        return problem.limits.max_staleness
    is_asked = problem.fixed.get("synchronisation", "bsp") != "bsp" or problem.families == ("model_replicas",)
    return float("inf") if is_asked else 0.0


def memory_limit_bytes(problem: Problem, group: MachineGroup) -> float:
    """Return what a device of a group may hold: its memory, or the user's limit where that is less."""
    return min(group.device.memory_bytes, allowed_memory_bytes(problem))


def allowed_memory_bytes(problem: Problem) -> float:
    """Return what a device may hold by the user's limit; infinity where there is none."""
    limit = problem.limits.memory_per_device_bytes
    return float("inf") if limit is None else limit


def more_memory(problem: Problem, factor: float) -> Problem:
    """Return the question with ``factor`` times the memory of every device, and of the user's limit on it."""
    allowed = factor * allowed_memory_bytes(problem)
    problem = perturb.larger_devices(problem, factor)
    return limited(problem, memory_per_device_bytes=None if allowed == float("inf") else allowed)


def lockstep(problem: Problem) -> Problem | None:
    """Return the question with synchronous training alone; None where it allows no other, or pins which it is."""
    if not problem.limits.max_staleness or "synchronisation" in problem.fixed:
        return None
    return limited(problem, max_staleness=0.0)


def good_enough(problem: Problem) -> float:
    """Return the objective at which a plan will do: any without a deadline, else one that surely meets it."""
    deadline_s, training = problem.limits.deadline_s, problem.training
    if deadline_s is None:
        return float("inf")
    wanted_s = deadline_s * (1 - SAME)  # a plan that misses it by rounding would be no answer
    epochs = training.epochs or 1.0
    if problem.goal.name == "training_time":
        return wanted_s
    if problem.goal.name == "epoch_time":
        return wanted_s / epochs
    if training.fixed_batch_size and training.dataset_samples:
        return wanted_s / epochs * training.fixed_batch_size / training.dataset_samples
    return float("-inf")


def without_deadline(problem: Problem) -> Problem:
    """Return the question that asks for no time."""
    return limited(problem, deadline_s=None)


def check_deadline(problem: Problem, best: Plan, search: Search) -> None:
    """Refuse the best plan where it misses the deadline; say by how much, if none meets it, or that none was found.

    How far it has to give is said here only where no time is left for the diagnosis, which says it otherwise.
    """
    deadline_s, prediction = problem.limits.deadline_s, best.prediction
    seconds = needed_s(prediction)
    if deadline_s is None or seconds is None or seconds <= deadline_s:
        return

    def apart(seconds: float) -> tuple[str, str]:  # with as many digits as it takes to tell it from the deadline
        for digits in range(3, 17):
            words, limit = (format_human(value, Dimension.TIME, digits) for value in (seconds, deadline_s))
            if words != limit:
                return words, limit
        return f"{seconds!r} s", f"{deadline_s!r} s"

    least_s = seconds * best.bound / best.objective
    what = "an epoch" if prediction.training_time_s is None else "the training"
    if least_s <= deadline_s:
        needed, limit = apart(seconds)
        raise NoAnswerError(
            f"No plan found: {what} takes {needed} with the best one, and constraints.deadline is {limit}: it is "
            f"missed by {time_words(seconds - deadline_s)}. It is only proven that none takes less than "
            f"{time_words(least_s)}. Raise --time-limit."
        )
    least, limit = apart(least_s)
    hint = f"Raise it to {format_human(seconds * 1.001, Dimension.TIME, 4)}" if search.is_over else "Raise it"
    raise InfeasibleError(
        f"No plan fits: {what} takes at least {least}, and constraints.deadline is {limit}: it is missed by at least "
        f"{time_words(least_s - deadline_s)}. {hint}, or add machines."
    )


# --- What every constraint says

Kind = str | Dimension | Mapping[str, str | Dimension] | None


@frozen
class Constraint:
    """One constraint, whatever its value; the methods of each kind below."""

    name: str  # what checks call it: its path in the spec, or what of the cluster it is about
    # how ``constraints`` of a spec writes it: ``range``, a dimension, ``staleness``, ``families`` or ``exclude``; or
    # the kinds of its own keys. None where another block of the spec says it
    kind: Kind = None
    limit: str = ""  # the field of :class:`planner.problem.Limits` that holds its value; empty where there is none
    description: str = ""  # what its key in a spec means, as a sentence: of the schema and of the reference

    @property
    def key(self) -> str:
        """Its key in ``constraints``."""
        return self.name.removeprefix("constraints.")

    def read(self, value: object) -> object:
        """Return the value of a checked spec as :class:`planner.problem.Limits` holds it."""
        return value

    def faults(self, limits: Limits, cluster: Cluster, training: Training) -> Iterator[tuple[str, str, object]]:
        """Yield why its value cannot be asked for: what is wrong, how to mend it, and the value where that helps."""
        yield from ()

    def verdicts(self, problem: Problem, usage: Usage) -> Iterator[Verdict]:
        """Yield whether a plan keeps it."""
        raise NotImplementedError  # each constraint says it; a test walks them all

    def relaxables(self, problem: Problem) -> Iterator[Relaxable]:
        """Yield the values of a question that it consists of, each of which may give way."""
        yield from ()

    def narrowed(self, problem: Problem) -> Problem:
        """Return the question with those machines only that it allows to be used."""
        return problem

    def binding(self, problem: Problem, usage: Usage) -> str:
        """Return in words that a plan uses all that it allows; nothing where it does not bind."""
        return ""


# --- Facts of the cluster, and the batch


class ClusterConstraint(Constraint):
    """Machines and devices of each group: no more than there are."""

    def verdicts(self, problem: Problem, usage: Usage) -> Iterator[Verdict]:
        groups = {group.name: group for group in problem.cluster.machine_groups}
        for name, used in usage.machines.items():
            if name not in groups:
                yield Verdict(name="machines", is_kept=False, words=f"there are no machines {name!r}")
                continue
            most = groups[name].count
            is_kept = 0 <= used <= most
            words = f"{used} of {most}" if is_kept else f"{used} are used, and there are {most}"
            yield Verdict(name=f"machines {name}", is_kept=is_kept, words=words)
        for name, used in usage.devices.items():
            if name in groups:
                most = usage.machines.get(name, 0) * groups[name].devices_per_machine
                is_kept = 1 <= used <= most
                wrong = f"{used} are used, and these machines have {most}"
                words = f"{used} of the {most} in these machines" if is_kept else wrong
                yield Verdict(name=f"devices {name}", is_kept=is_kept, words=words)


@frozen
class AllDevices(Relaxable):
    """``dnn.batch_per_device`` where the goal is per iteration, so that no device may be idle."""

    global_batch_size: int

    def without(self, problem: Problem) -> Problem:
        """Return the question on the same global batch, which fewer devices may share."""
        training = as_meant(problem).training
        meant = replace(training, batch_per_device=None, global_batch_size=training.fixed_batch_size, num_devices=None)
        dnn = {key: value for key, value in problem.resolved.get("dnn", {}).items() if key != "batch_per_device"}
        return replace(problem, training=meant, resolved={**problem.resolved, "dnn": dnn})

    def changed(self, problem: Problem, value: str) -> Problem:
        return self.without(problem)

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        note = "fewer devices may then share it"
        return relaxation(self, [f"dnn.global_batch {self.global_batch_size}"], is_exact=True, note=note)


class BatchConstraint(Constraint):
    """The batch that ``dnn`` asks for."""

    def verdicts(self, problem: Problem, usage: Usage) -> Iterator[Verdict]:
        training, batch = problem.training, usage.global_batch_size
        wanted, most = training.fixed_batch_size, training.max_global_batch_size
        words, is_kept = f"{batch} samples an iteration", True
        if wanted is not None and batch != wanted:
            words, is_kept = f"{words}; the question asks for {wanted}", False
        elif most is not None and batch > most:
            words, is_kept = f"{words}; at most {most} are allowed", False
        yield Verdict(name="batch", is_kept=is_kept, words=words)

    def relaxables(self, problem: Problem) -> Iterator[Relaxable]:
        if problem.training_devices != problem.allowed_devices and (batch := batch_per_device(problem)) is not None:
            number = problem.training_devices.least
            given = f"{batch} on all {number} devices, per iteration"
            yield AllDevices(field="dnn.batch_per_device", given=given, turn=7, global_batch_size=batch * number)


# --- How many devices and machines


@frozen
class Number(Relaxable):
    """One end of ``constraints.devices`` or ``constraints.machines``, or the one number that is allowed."""

    name: Literal["devices", "machines"]
    end: Literal["at least", "at most", "exactly"]
    value: int
    most: int  # that there are

    def without(self, problem: Problem) -> Problem:
        if self.end == "exactly":
            return limited(problem, **{self.name: Range()})
        return limited(problem, **{self.name: replace(self._old(problem), **self._ends(None))})

    def changed(self, problem: Problem, value: str) -> Problem:
        return limited(problem, **{self.name: replace(self._old(problem), **self._ends(int(value)))})

    def _old(self, problem: Problem) -> Range:
        return problem.limits.devices if self.name == "devices" else problem.limits.machines

    def _ends(self, value: int | None) -> dict[str, Any]:
        """Return the fields of a range that it sets; None: to what limits nothing."""
        least = {} if self.end == "at most" else {"least": value or 1}
        return least if self.end == "at least" else {**least, "most": value}

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        def is_feasible(number: int) -> bool | None:
            return asked.is_feasible(self.changed(problem, str(number)))

        if self.end == "exactly":
            return both_ways(self, self.value, self.most, is_feasible)
        sign, limit = (-1, 1) if self.end == "at least" else (1, self.most)
        found, is_exact = least_feasible(sign * self.value, sign * limit, lambda number: is_feasible(sign * number))
        if found is None:
            return unknown(self)
        return relaxation(self, [str(found * sign)], is_exact=is_exact, change=abs(found * sign / self.value - 1))


class NumberConstraint(Constraint):
    """How many machines train or serve, or how many devices train."""

    def read(self, value: object) -> object:
        return read_range(cast("Mapping[str, int | None] | None", value))

    def faults(self, limits: Limits, cluster: Cluster, training: Training) -> Iterator[tuple[str, str, object]]:
        least, most = self._allowed(limits).least, self._there_are(cluster)
        if least > most:
            what = f"at least {least} are asked for, and the cluster has {most}."
            yield what, "Ask for fewer, or add machines.", least

    def verdicts(self, problem: Problem, usage: Usage) -> Iterator[Verdict]:
        allowed, used = self._allowed(problem.limits), self._used(usage)
        most = "any number" if allowed.most is None else str(allowed.most)
        verb = "" if used in allowed else "and "
        end = "allowed" if used in allowed else "are allowed"
        words = f"{used} used, {verb}{allowed.least} to {most} {end}"
        yield Verdict(name=self.name, is_kept=used in allowed, words=words)

    def relaxables(self, problem: Problem) -> Iterator[Relaxable]:
        """Yield the ends that limit anything, or the one number that is allowed."""
        allowed, most = self._allowed(problem.limits), self._there_are(problem.cluster)
        is_open = batch_per_device(problem) is None  # then one device at most may become two at most
        name: Literal["devices", "machines"] = "devices" if self.key == "devices" else "machines"
        ends: list[tuple[Literal["at least", "at most", "exactly"], int]] = []
        if allowed.least == allowed.most and (allowed.least > 1 or not is_open):
            ends = [("exactly", allowed.least)]
        else:
            ends += [("at least", allowed.least)] if allowed.least > 1 else []
            ends += [("at most", allowed.most)] if allowed.most is not None and allowed.most < most else []
        for end, value in ends:
            given = f"{end} {value}"
            yield Number(field=self.name, given=given, turn=5, name=name, end=end, value=value, most=most)

    def binding(self, problem: Problem, usage: Usage) -> str:
        allowed, used = self._allowed(problem.limits), self._used(usage)
        is_tight = used == allowed.most and allowed.least < used  # one number only is no limit but the question
        return f"{self.name} binds: {used} used, {allowed.words}" if is_tight else ""

    def _allowed(self, limits: Limits) -> Range:
        return limits.devices if self.key == "devices" else limits.machines

    def _there_are(self, cluster: Cluster) -> int:
        return cluster.num_devices if self.key == "devices" else cluster.num_machines

    def _used(self, usage: Usage) -> int:
        return sum((usage.devices if self.key == "devices" else usage.machines).values())


# --- Memory


@frozen
class Memory(Relaxable):
    """``constraints.memory_per_device``, or a device's own memory."""

    value_bytes: float
    device: str | None = None

    def without(self, problem: Problem) -> Problem:
        """A device has as much as the user lets it hold: more would be left free, and a part of it kept by programs."""
        inf = float("inf")
        return self.at(problem, inf if self.device is None else max(self.value_bytes, allowed_memory_bytes(problem)))

    def changed(self, problem: Problem, value: str) -> Problem:
        return self.at(problem, parse(value, Dimension.DATA))

    def at(self, problem: Problem, value_bytes: float) -> Problem:
        """Return the question with so much memory."""
        if self.device is None:
            is_none = value_bytes == float("inf")
            return limited(problem, memory_per_device_bytes=None if is_none else value_bytes)
        return perturb.with_memory(problem, self.device, value_bytes)

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Bisect in the unit that is printed, so that the printed value does, and a unit less does not.

        What is known to be enough is tried before, with a unit less.
        """
        found, is_exact = None, False
        if self.value_bytes < (known_bytes := asked.enough_bytes) < float("inf"):
            low_bytes, _ = self._doubled(lambda size: size >= known_bytes) or (known_bytes, 0.0)
            unit = unit_of(low_bytes, Dimension.DATA)
            found, is_exact = self._known(problem, asked, unit, ceil(known_bytes / unit.step))
        if found is None:
            bracket = self._doubled(lambda size: asked.is_feasible(self.at(problem, size)))
            if bracket is None:
                return unknown(self)
            unit = unit_of(bracket[0], Dimension.DATA)
            found, is_exact = least_feasible(
                floor(bracket[0] / unit.step),
                ceil(bracket[1] / unit.step),
                lambda number: asked.is_feasible(self.changed(problem, unit.text(number))),
            )
        if found is None:
            return unknown(self)
        text, note = unit.text(found), "" if self.device is None else "other hardware"
        change = (
            parse(text, Dimension.DATA) / self.value_bytes - 1 if self.device is None and self.value_bytes else None
        )
        return relaxation(self, [text], is_exact=is_exact, change=change, note=note)

    def _doubled(self, is_enough: Callable[[float], bool | None]) -> tuple[float, float] | None:
        """Return the first size by doubling that does, and the one before it; None where nobody knows of any."""
        low_bytes, high_bytes = self.value_bytes, max(2 * self.value_bytes, 2.0**10)
        while not (answer := is_enough(high_bytes)):
            if answer is None or high_bytes > 2.0**60:
                return None
            low_bytes, high_bytes = high_bytes, 2 * high_bytes
        return low_bytes, high_bytes

    def _known(self, problem: Problem, asked: Asked, unit: Unit, number: int) -> tuple[int | None, bool]:
        """Return the number of units where it is the least that does, and whether that is proven; else None."""
        answers = [asked.is_feasible(self.changed(problem, unit.text(one))) for one in (number, number - 1)]
        return (number, answers[1] is False) if answers[0] and not answers[1] else (None, False)


class MemoryConstraint(Constraint):
    """What the fullest device of each group holds: within its memory, and within the user's limit."""

    def verdicts(self, problem: Problem, usage: Usage) -> Iterator[Verdict]:
        groups = {group.name: group for group in problem.cluster.machine_groups}
        for name, held in usage.memory_bytes.items():
            if name not in groups:
                continue
            most = memory_limit_bytes(problem, groups[name])
            sizes = [
                format_human(size, Dimension.DATA, 4) if size < float("inf") else "any amount" for size in (held, most)
            ]
            kept = is_within(held, most)
            words = f"{sizes[0]} of {sizes[1]}" if kept else f"a device holds {sizes[0]}, and may hold {sizes[1]}"
            yield Verdict(name=f"memory {name}", is_kept=kept, words=words)

    def relaxables(self, problem: Problem) -> Iterator[Relaxable]:
        for one in {group.device.name: group.device for group in problem.cluster.machine_groups}.values():
            if one.memory_bytes < float("inf"):
                given = format_human(one.memory_bytes, Dimension.DATA, 4)
                field = f"memory of {one.name}"
                yield Memory(field=field, given=given, turn=0, value_bytes=one.memory_bytes, device=one.name)
        if (limit := problem.limits.memory_per_device_bytes) is not None:
            given = as_written(problem, self.key, limit, Dimension.DATA)
            yield Memory(field=self.name, given=given, turn=9, value_bytes=limit)


# --- The power of a rack


def machine_power_w(group: MachineGroup) -> float:
    """Return what a machine in use draws: all its devices at their rated power, without its host; nan where unknown."""
    return group.devices_per_machine * (float("nan") if group.device.power_w is None else group.device.power_w)


@frozen
class PowerOfRack(Relaxable):
    """The power in ``constraints.power_per_rack``."""

    limit: RackPower

    def without(self, problem: Problem) -> Problem:
        return limited(problem, power_per_rack=None)

    def changed(self, problem: Problem, value: str) -> Problem:
        return limited(problem, power_per_rack=replace(self.limit, power_w=parse(value, Dimension.POWER)))

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Bisect over the powers at which a rack may run one machine more."""
        given_w, most = self.limit.power_w, range(1, self.limit.machines_per_rack + 1)
        steps = {number * machine_power_w(group) for group in problem.cluster.machine_groups for number in most}
        values = [rounded_up(step_w, Dimension.POWER) for step_w in sorted(steps) if step_w > given_w]
        found, is_exact = least_feasible(
            -1, len(values) - 1, lambda index: asked.is_feasible(self.changed(problem, values[index]))
        )
        if found is None:
            return unknown(self)
        change = parse(values[found], Dimension.POWER) / given_w - 1 if given_w else None
        return relaxation(self, [values[found]], is_exact=is_exact, change=change)


class RackPowerConstraint(Constraint):
    """What the machines of one rack draw: a machine in use draws the power of all its devices, any other is off.

    Machines in use are spread evenly over the racks of their group, so that it limits how many of a group are used.
    """

    def read(self, value: object) -> object:
        if value is None:
            return None
        block = cast("Mapping[str, Any]", value)
        return RackPower(power_w=block["power"], machines_per_rack=block["machines_per_rack"])

    def faults(self, limits: Limits, cluster: Cluster, training: Training) -> Iterator[tuple[str, str, object]]:
        unknown_names = [one.device.name for one in cluster.machine_groups if one.device.power_w is None]
        if limits.power_per_rack is not None and unknown_names:
            text = f"the power of {unknown_names[0]!r} is not known."
            yield text, "Write the device's power, e.g. power: 700 W.", None

    def verdicts(self, problem: Problem, usage: Usage) -> Iterator[Verdict]:
        for group, limit in self._limited(problem):
            if used := usage.machines.get(group.name, 0):
                draw_w = self._fullest(group, limit, used) * machine_power_w(group)
                kept = is_within(draw_w, limit.power_w)
                text = (
                    f"{format_human(draw_w, Dimension.POWER, 4)} of {format_human(limit.power_w, Dimension.POWER, 4)}"
                )
                words = f"{text} in the fullest rack of {used} machines" + ("" if kept else ": too much")
                yield Verdict(name=f"{self.name} {group.name}", is_kept=kept, words=words)

    def relaxables(self, problem: Problem) -> Iterator[Relaxable]:
        if (limit := problem.limits.power_per_rack) is not None:
            given = as_written(problem, f"{self.key}.power", limit.power_w, Dimension.POWER)
            yield PowerOfRack(field=self.name, given=given, turn=8, limit=limit)

    def narrowed(self, problem: Problem) -> Problem:
        most = {group.name: self._most(group, limit) for group, limit in self._limited(problem)}
        if most and not any(most.values()):
            least_w = min(machine_power_w(group) for group, _ in self._limited(problem))
            raise InfeasibleError(
                f"No plan fits: no rack may run even one machine. Raise {self.name}.power to "
                f"{rounded_up(least_w, Dimension.POWER)} or more."
            )
        return perturb.with_counts(problem, most) if most else problem

    def binding(self, problem: Problem, usage: Usage) -> str:
        rows = [
            f"{usage.machines[group.name]} of {group.count} machines of {group.name} run, "
            f"{format_human(machine_power_w(group), Dimension.POWER)} each"
            for group, limit in self._limited(problem)
            if usage.machines.get(group.name) == self._most(group, limit) < group.count
        ]
        return f"{self.name} binds: {'; '.join(rows)}" if rows else ""

    def _limited(self, problem: Problem) -> list[tuple[MachineGroup, RackPower]]:
        """Return the groups of machines with the limit, if there is one."""
        limit = problem.limits.power_per_rack
        return [] if limit is None else [(group, limit) for group in problem.cluster.machine_groups]

    def _most(self, group: MachineGroup, limit: RackPower) -> int:
        """Return how many machines of a group may run."""
        draw_w = machine_power_w(group)
        each = floor(limit.power_w * (1 + SAME) / draw_w) if draw_w else limit.machines_per_rack
        racks, rest = divmod(group.count, limit.machines_per_rack)
        return racks * min(each, limit.machines_per_rack) + min(each, rest)

    def _fullest(self, group: MachineGroup, limit: RackPower, used: int) -> int:
        """Return how many machines run in the fullest rack, where they are spread evenly."""
        racks, rest = divmod(group.count, limit.machines_per_rack)
        each = next((one for one in range(limit.machines_per_rack) if racks * one + min(one, rest) >= used), None)
        return limit.machines_per_rack if each is None else each


# --- The deadline


@frozen
class Deadline(Relaxable):
    """``constraints.deadline``."""

    value_s: float

    def without(self, problem: Problem) -> Problem:
        return limited(problem, deadline_s=None)

    def changed(self, problem: Problem, value: str) -> Problem:
        return limited(problem, deadline_s=parse(value, Dimension.TIME))

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Take what the best plan without it needs, rounded up to what is printed."""
        best = asked.best(self.without(problem))
        least_s = None if best is None else needed_s(best.prediction)
        if best is None or least_s is None:
            return unknown(self)
        change = least_s / self.value_s - 1 if self.value_s else None
        nearest = rounded_up(least_s, Dimension.TIME)
        return relaxation(self, [nearest], is_exact=best.bound >= best.objective, change=change)


class DeadlineConstraint(Constraint):
    """By when the training, or an epoch, is done."""

    def faults(self, limits: Limits, cluster: Cluster, training: Training) -> Iterator[tuple[str, str, object]]:
        if limits.deadline_s is not None and training.dataset_samples is None:
            yield "a deadline needs the size of the data set.", "Add dnn.dataset_samples.", None

    def verdicts(self, problem: Problem, usage: Usage) -> Iterator[Verdict]:
        limit_s, seconds = problem.limits.deadline_s, usage.needed_s
        if limit_s is None:
            return
        if seconds is None:
            yield Verdict(name=self.name, is_kept=False, words="no time to compare it with is known")
            return
        kept = is_within(seconds, limit_s)
        wrong = f"{seconds:.6g} s are needed, and {limit_s:.6g} s are left"
        yield Verdict(name=self.name, is_kept=kept, words=f"{seconds:.6g} s of {limit_s:.6g} s" if kept else wrong)

    def relaxables(self, problem: Problem) -> Iterator[Relaxable]:
        if (limit_s := problem.limits.deadline_s) is not None:
            given = as_written(problem, self.key, limit_s, Dimension.TIME)
            # Last: how long it takes depends on all the others.
            yield Deadline(field=self.name, given=given, turn=10, value_s=limit_s)


# --- Staleness

_MOST_STALENESS = 1024
_UNBOUNDED = "unbounded"
_ASYNCHRONOUS = "asynchronous training, whose convergence is not modelled"


@frozen
class Staleness(Relaxable):
    """``constraints.max_staleness``, where it is set."""

    value: int

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


class StalenessConstraint(Constraint):
    """By how many iterations gradients may lag."""

    def read(self, value: object) -> object:
        return float("inf") if value == _UNBOUNDED else value

    def verdicts(self, problem: Problem, usage: Usage) -> Iterator[Verdict]:
        lag, most = usage.staleness, problem.limits.max_staleness
        if most is not None:
            wrong = f"gradients may lag by {lag:g}, and {most:g} is allowed"
            words = f"{lag:g} of at most {most:g}" if lag <= most else wrong
            yield Verdict(name=self.name, is_kept=lag <= most, words=words)
            return
        wrong = f"gradients may lag by {lag:g}; neither {self.name} nor fix.synchronisation allows that"
        words = f"{lag:g}, as asked for" if lag else "0: synchronous"
        is_kept = lag <= allowed_staleness(problem)
        yield Verdict(name=self.name, is_kept=is_kept, words=words if is_kept else wrong)

    def relaxables(self, problem: Problem) -> Iterator[Relaxable]:
        most = problem.limits.max_staleness
        if most is not None and most < float("inf"):
            yield Staleness(field=self.name, given=f"{most:g}", turn=1, value=int(most))


# --- Choices: the families that may answer, exclusions and pins

_ALSO = "also allow "
_UNDECIDED = object()  # what a family does not decide


def _decided(name: str, chosen: object, why: str, *, is_kept: bool) -> Verdict:
    """Return whether what a plan decides is what is asked for."""
    if chosen is _UNDECIDED:
        return Verdict(name=name, is_kept=False, words="the plan's family does not decide this")
    return Verdict(name=name, is_kept=is_kept, words=f"{chosen}" if is_kept else f"the plan has {chosen}, {why}")


@frozen
class Families(Relaxable):
    """The families that may answer: ``families``, less ``constraints.forbidden_families``."""

    allowed: tuple[str, ...]

    def without(self, problem: Problem) -> Problem:
        return replace(problem, families=FAMILY_NAMES)

    def changed(self, problem: Problem, value: str) -> Problem:
        return replace(problem, families=(*self.allowed, value.removeprefix(_ALSO)))

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Try every other family by itself, beside those that are allowed."""
        others = [f"{_ALSO}{name}" for name in FAMILY_NAMES if name not in self.allowed]
        return tried_each(self, problem, others, asked)


class FamiliesConstraint(Constraint):
    """Which families may answer."""

    def verdicts(self, problem: Problem, usage: Usage) -> Iterator[Verdict]:
        wrong = f"{usage.family} is not among the families that may answer: {', '.join(problem.families)}"
        is_kept = usage.family in problem.families
        yield Verdict(name="families", is_kept=is_kept, words=f"{usage.family} is allowed" if is_kept else wrong)

    def relaxables(self, problem: Problem) -> Iterator[Relaxable]:
        if set(FAMILY_NAMES) - set(problem.families):
            is_asked = bool(problem.resolved.get("families")) or not problem.resolved.get("constraints")
            others = [name for name in FAMILY_NAMES if name not in problem.families]
            field, given = ("families", problem.families) if is_asked else (self.name, others)
            yield Families(field=field, given=", ".join(given), turn=2, allowed=problem.families)


@frozen
class Exclusion(Relaxable):
    """One key of ``constraints.exclude``, with all its values."""

    key: str
    values: tuple[Any, ...]

    def without(self, problem: Problem) -> Problem:
        return self._excluding(problem, ())

    def changed(self, problem: Problem, value: str) -> Problem:
        allowed = value.removeprefix(_ALSO)
        return self._excluding(problem, tuple(one for one in self.values if written(one) != allowed))

    def _excluding(self, problem: Problem, values: tuple[Any, ...]) -> Problem:
        """Return the question with other values excluded."""
        others = {key: kept for key, kept in problem.excluded.items() if key != self.key}
        return replace(problem, excluded={**others, self.key: values} if values else others)

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Try to allow each value by itself."""
        return tried_each(self, problem, [f"{_ALSO}{written(one)}" for one in self.values], asked)


class ExclusionConstraint(Constraint):
    """No excluded value is taken."""

    def verdicts(self, problem: Problem, usage: Usage) -> Iterator[Verdict]:
        for key, values in problem.excluded.items():
            chosen = usage.decisions.get(key, _UNDECIDED)
            yield _decided(f"{self.name}.{key}", chosen, "which is excluded", is_kept=chosen not in values)

    def relaxables(self, problem: Problem) -> Iterator[Relaxable]:
        for key, values in problem.excluded.items():
            given = ", ".join(map(written, values))
            yield Exclusion(field=f"{self.name}.{key}", given=given, turn=4, key=key, values=values)


@frozen
class Pin(Relaxable):
    """One key of ``fix``."""

    key: str
    value: Any

    def without(self, problem: Problem) -> Problem:
        gone = {self.key, *asked_by({self.key: self.value})}
        own = {key: value for key, value in problem.fixed.items() if key not in gone}
        return replace(problem, fixed={**asked_by(own), **own})

    def changed(self, problem: Problem, value: str) -> Problem:
        if self.is_number:
            return self.at(problem, int(value))
        return self.at(problem, next(one for one in row_of(self.key).choices(problem) if written(one) == value))

    @property
    def is_number(self) -> bool:
        """Whether the key takes a number."""
        return isinstance(self.value, int) and not isinstance(self.value, bool)

    def at(self, problem: Problem, value: object) -> Problem:
        """Return the question with another value."""
        own = {key: one for key, one in problem.fixed.items() if key not in _unsaid(problem)} | {self.key: value}
        return replace(problem, fixed={**asked_by(own), **own})

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Look for the nearest numbers both ways, or try all names; where none does, leave the pin out."""
        if self.is_number:
            row = row_of(self.key)
            most = row.maximum(problem)

            def is_any_feasible(numbers: Sequence[int]) -> bool | None:
                others = (*sorted({*range(most + 1)} - {*numbers}), *problem.excluded.get(self.key, ()))
                return asked.is_feasible(
                    replace(self.without(problem), excluded={**problem.excluded, self.key: others})
                )

            return both_ways(
                self,
                self.value,
                most,
                lambda number: asked.is_feasible(self.at(problem, number)),
                is_any_feasible if set(problem.families) <= set(row.excluded_by) else None,
                least=row.least,
            )
        names = [written(name) for name in row_of(self.key).choices(problem)]
        return tried_each(self, problem, [name for name in names if name != written(self.value)], asked)


def _unsaid(problem: Problem) -> set[str]:
    """Return the pins that no one wrote: another one asks for them."""
    return asked_by(problem.fixed).keys() - (problem.resolved.get("fix") or {}).keys()


_COPIES = {"activation_offload_layers": 0, "activation_offload_modules": "none"}  # pins, and what copies nothing


@frozen
class CudaGraphs(Relaxable):
    """``calibration.cuda_graphs``, beside pinned copies of activations to the host, which no graph holds."""

    def without(self, problem: Problem) -> Problem:
        return replace(problem, calibration=replace(problem.calibration, cuda_graphs=False))

    def changed(self, problem: Problem, value: str) -> Problem:
        return self.without(problem)

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        return relaxation(self, ["false"], is_exact=True)


class PinConstraint(Constraint):
    """Every pin is kept; beside some, what they do not go with may give way, too."""

    def verdicts(self, problem: Problem, usage: Usage) -> Iterator[Verdict]:
        for key, wanted in problem.fixed.items():
            chosen = usage.decisions.get(key, _UNDECIDED)
            value = format_exact(wanted, Dimension.DATA) if row_of(key).is_size else wanted
            yield _decided(f"fix.{key}", chosen, f"and {value} is pinned", is_kept=chosen == value)

    def relaxables(self, problem: Problem) -> Iterator[Relaxable]:
        for key, value in problem.fixed.items():
            if key in asked_by(problem.fixed):  # it goes with the pin that asks for it
                continue
            given = format_exact(value, Dimension.DATA) if row_of(key).is_size else written(value)
            for other, wanted in asked_by({key: value}).items():
                given += f" with fix.{other}: {written(wanted)}" * (other not in _unsaid(problem))
            yield Pin(field=f"fix.{key}", given=given, turn=3, key=key, value=value)
        is_copied = any(problem.fixed.get(key, none) != none for key, none in _COPIES.items())
        asked = problem.calibration.cuda_graphs
        if is_copied and (asked or (asked is None and problem.training.low is not None)):
            given = "true" if asked else "true, as it is with products in short numbers"
            yield CudaGraphs(field="calibration.cuda_graphs", given=given, turn=5)


# --- The table

CONSTRAINTS: tuple[Constraint, ...] = (
    ClusterConstraint(name="cluster"),
    NumberConstraint(
        name="constraints.devices", kind="range", limit="devices", description="How many devices may be used."
    ),
    NumberConstraint(
        name="constraints.machines",
        kind="range",
        limit="machines",
        description="How many machines may be used, those that only serve included.",
    ),
    MemoryConstraint(
        name="constraints.memory_per_device",
        kind=Dimension.DATA,
        limit="memory_per_device_bytes",
        description="Memory of a device that a plan may use.",
    ),
    RackPowerConstraint(
        name="constraints.power_per_rack",
        kind={"power": Dimension.POWER, "machines_per_rack": "count"},
        limit="power_per_rack",
        description="The most that the machines of one rack may draw. Machines of a group stand in racks of so many; "
        "those in use are spread evenly over the racks and draw the power of all their devices (device.power, or the "
        "device table; the host is not counted: leave room for it), all others are off.",
    ),
    DeadlineConstraint(
        name="constraints.deadline",
        kind=Dimension.TIME,
        limit="deadline_s",
        description="The most that the objective's time may be.",
    ),
    StalenessConstraint(
        name="constraints.max_staleness",
        kind="staleness",
        limit="max_staleness",
        description="Iterations by which gradients may lag; allows training without a barrier.",
    ),
    FamiliesConstraint(
        name="constraints.forbidden_families", kind="families", description="Families that are left out."
    ),
    ExclusionConstraint(
        name="constraints.exclude", kind="exclude", description="Values that decisions of `hybrid` must not take."
    ),
    PinConstraint(name="fix"),
    BatchConstraint(name="dnn.global_batch"),
)


# --- The upper limits of what to buy or rent


@frozen
class FleetLimit:
    """An upper limit on a fleet: its key in ``procure``, and what of the fleet's usage it limits, counted in what."""

    key: str
    criterion: str
    dimension: Dimension

    @property
    def field(self) -> str:
        """Its path in the question."""
        return f"procure.{self.key}"


# A month is the deadline of jobs that share their machines month after month.
FLEET_LIMITS: tuple[FleetLimit, ...] = (
    FleetLimit(key="budget", criterion="spent", dimension=Dimension.MONEY),
    FleetLimit(key="capital", criterion="capital", dimension=Dimension.MONEY),
    FleetLimit(key="deadline", criterion="time", dimension=Dimension.TIME),
    FleetLimit(key="power", criterion="power", dimension=Dimension.POWER),
    FleetLimit(key="budget_rate", criterion="spending", dimension=Dimension.MONEY_RATE),
)


def is_within(value: float, limit: float) -> bool:
    """Whether a value is within an upper limit; one that is met exactly is, whatever rounding makes of it."""
    return value <= limit * (1 + SAME)


def read_range(value: Mapping[str, int | None] | None) -> Range:
    """Return the range that a checked spec gives; everything where there is none."""
    if value is None:
        return Range()
    if (exactly := value["exactly"]) is not None:
        return Range(least=exactly, most=exactly)
    return Range(least=value["at_least"] or 1, most=value["at_most"])


# --- All constraints together


def verdicts(problem: Problem, usage: Usage) -> Iterator[Verdict]:
    """Yield, of every constraint of a question, whether a plan that uses so much keeps it."""
    for one in CONSTRAINTS:
        yield from one.verdicts(problem, usage)


def relaxables(problem: Problem) -> list[Relaxable]:
    """Return the values of a question that may give way; of two that would both do, the one that is dropped first."""
    found = [value for one in CONSTRAINTS for value in one.relaxables(problem)]
    return sorted(found, key=lambda value: value.turn)


def narrowed(problem: Problem) -> Problem:
    """Return the question with those machines only that its constraints allow to be used."""
    for one in CONSTRAINTS:
        problem = one.narrowed(problem)
    return problem


def binding_words(problem: Problem, usage: Usage) -> tuple[str, ...]:
    """Return the limits of which a plan uses all, in words."""
    return tuple(words for one in CONSTRAINTS if (words := one.binding(problem, usage)))
