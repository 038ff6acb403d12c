"""The constraints of a question, one by one: how to drop each, and the nearest value of it that would do.

Each changes the :class:`planner.problem.Problem`, and speaks of it by the path of the spec. The cluster's size, the
batch and the network are the question itself, and not listed, but that a batch per device leaves no device idle in an
iteration; a device's memory is a fact that other hardware changes.
Nor is a staleness that is not set: nobody is told to train asynchronously who did not ask for it.
"""

from typing import Literal

from planner.conflicts.choices import Exclusion, Families, Pin
from planner.conflicts.constraint import Constraint, as_written
from planner.conflicts.limits import AllDevices, Deadline, End, Exactly, Memory, Staleness
from planner.conflicts.question import batch_per_device, exactly
from planner.family_names import FAMILY_NAMES
from planner.problem import Problem, Range
from planner.units import Dimension, format_human

__all__ = ["constraints_of"]


def constraints_of(problem: Problem) -> list[Constraint]:
    """Return the constraints that a question has; what is dropped first where either of two would do stands first."""
    limits, cluster = problem.limits, problem.cluster
    devices = {group.device.name: group.device for group in cluster.machine_groups}.values()
    members: list[Constraint] = [
        Memory(value_bytes=one.memory_bytes, device=one.name, given=format_human(one.memory_bytes, Dimension.DATA, 4))
        for one in devices
        if one.memory_bytes < float("inf")
    ]
    if limits.max_staleness is not None and limits.max_staleness < float("inf"):
        members.append(Staleness(value=int(limits.max_staleness)))
    if set(FAMILY_NAMES) - set(problem.families):
        is_asked = bool(problem.resolved.get("families")) or not problem.resolved.get("constraints")
        members.append(Families(allowed=problem.families, is_asked=is_asked))
    members += [Pin(key=key, value=value) for key, value in problem.fixed.items()]
    members += [Exclusion(key=key, values=values) for key, values in problem.excluded.items()]
    is_open = batch_per_device(problem) is None
    members += _range_members("devices", limits.devices, cluster.num_devices, is_open=is_open)
    members += _range_members("machines", limits.machines, cluster.num_machines, is_open=is_open)
    if problem.training_devices != problem.allowed_devices and (batch := batch_per_device(problem)) is not None:
        members.append(AllDevices(batch_per_device=batch, number=problem.training_devices.least))
    if (memory_bytes := limits.memory_per_device_bytes) is not None:
        given = as_written(problem, "memory_per_device", memory_bytes, Dimension.DATA)
        members.append(Memory(value_bytes=memory_bytes, given=given))
    if (deadline_s := limits.deadline_s) is not None:  # last: how long it takes depends on all the others
        members.append(Deadline(value_s=deadline_s, given=as_written(problem, "deadline", deadline_s, Dimension.TIME)))
    return members


def _range_members(
    name: Literal["devices", "machines"], allowed: Range, most: int, *, is_open: bool
) -> list[Constraint]:
    """Return the ends that limit anything, or the one number that is allowed.

    ``is_open``: the number of devices is open, so that one at most may become two at most.
    """
    number = exactly(allowed)
    if number is not None and (number > 1 or not is_open):
        return [Exactly(name=name, value=number, most=most)]
    members: list[Constraint] = []
    if allowed.least > 1:
        members.append(End(name=name, end="at_least", value=allowed.least, most=most))
    if allowed.most is not None and allowed.most < most:
        members.append(End(name=name, end="at_most", value=allowed.most, most=most))
    return members
