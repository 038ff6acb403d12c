"""A question with other limits or pins: what its batch then means, and other memory in its devices."""

from dataclasses import replace

from planner.cluster import Cluster, MachineGroup
from planner.problem import Problem, Range, with_batch_per_device

__all__ = ["as_meant", "batch_per_device", "exactly", "with_memory"]


def as_meant(problem: Problem) -> Problem:
    """Return the question with the global batch that its limits and pins now mean.

    A batch per device is meant for the devices that the limits and pins name, or for all
    (:func:`planner.problem.with_batch_per_device`); hence a change of the one changes the other.
    """
    batch = batch_per_device(problem)
    if batch is None:
        return problem
    meant = with_batch_per_device(problem.training, batch, problem.cluster, problem.limits, problem.fixed)
    return replace(problem, training=meant)


def batch_per_device(problem: Problem) -> int | None:
    """Return the samples of a device where they, with the number of devices, fix the global batch."""
    training = problem.training
    if training.max_global_batch_size is not None:
        return None
    batch = training.batch_per_device or problem.resolved.get("dnn", {}).get("batch_per_device")
    return None if batch is None else int(batch)


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
