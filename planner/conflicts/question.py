"""A question with other limits or pins: what its batch then means, and other memory in its devices."""

from collections.abc import Sequence
from dataclasses import replace

from planner.cluster import Cluster, MachineGroup
from planner.problem import Problem, Range

__all__ = ["as_meant", "batch_per_device", "exactly", "with_memory"]


def as_meant(problem: Problem) -> Problem:
    """Return the question with the global batch that its limits and pins now mean.

    A batch per device is meant for the devices that the limits and pins name, or for all, as
    :mod:`planner.spec.constraints` derives it; hence a change of the one changes the other.
    """
    training, batch = problem.training, batch_per_device(problem)
    if batch is None:
        return problem
    fixed, groups = problem.fixed, problem.cluster.training_groups(problem.fixed.get("device"))
    number = fixed.get("num_devices") or exactly(problem.limits.devices) or _all_devices(problem, groups)
    alike = {(group.device.name, group.devices_per_machine) for group in groups}
    if len(alike) <= 1 or fixed.get("devices_per_machine"):
        meant = replace(training, batch_per_device=batch, global_batch_size=None, num_devices=number)
    else:
        meant = replace(training, batch_per_device=None, global_batch_size=batch * number, num_devices=None)
    return replace(problem, training=meant)


def batch_per_device(problem: Problem) -> int | None:
    """Return the samples of a device where they, with the number of devices, fix the global batch."""
    training = problem.training
    if training.max_global_batch_size is not None:
        return None
    batch = training.batch_per_device or problem.resolved.get("dnn", {}).get("batch_per_device")
    return None if batch is None else int(batch)


def _all_devices(problem: Problem, groups: Sequence[MachineGroup]) -> int:
    """Return how many devices there are, within the machines that are allowed."""
    per_machine = problem.fixed.get("devices_per_machine")
    number = problem.fixed.get("num_machines") or problem.limits.machines.most
    if number is not None:
        return int(number) * int(per_machine or min((group.devices_per_machine for group in groups), default=1))
    return sum(group.count * (per_machine or group.devices_per_machine) for group in groups)


def exactly(allowed: Range) -> int | None:
    """Return the only number that is allowed, if there is one."""
    return allowed.least if allowed.least == allowed.most else None


def with_memory(cluster: Cluster, device: str, memory_bytes: float) -> Cluster:
    """Return the cluster with another memory of one type of device."""
    graph = cluster.graph
    nodes = [data["node"] for _, data in graph.nodes(data=True)]
    changed = [
        replace(node, device=replace(node.device, memory_bytes=memory_bytes))
        if isinstance(node, MachineGroup) and node.device.name == device
        else node
        for node in nodes
    ]
    links = [(one, other, data["link"]) for one, other, data in graph.edges(data=True)]
    return Cluster(cluster.name, changed, links, source=cluster.source)
