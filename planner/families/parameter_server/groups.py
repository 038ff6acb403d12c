"""What a group of machines offers parameter servers, whatever the configuration: ready times, links, memory, input."""

import numpy as np

from planner.cluster import Cluster, MachineGroup
from planner.cost import Floats
from planner.errors import Fault, ModelError, SpecError
from planner.models.collectives import ring_all_reduces
from planner.models.data_parallel import Gradients
from planner.models.input import InputTime, input_time
from planner.models.server_network import ServerNetwork, queueing_s
from planner.models.ssgd_equations import Strategy
from planner.problem import Problem

__all__ = [
    "group_inputs",
    "memory_limit_bytes",
    "network_bytes_per_s",
    "network_latency_s",
    "packet_queueing_s",
    "ready_times_s",
]

_UNUSED_BYTES_PER_S = 1.0  # of a link that nothing goes over


def ready_times_s(problem: Problem, group: MachineGroup, gradients: Gradients, share: Floats) -> Floats:
    """Return when a machine of the group can push each gradient (last axis), from the iteration's start.

    Parameters
    ----------
    share
        Samples of one of its devices; an array of any shape.

    Notes
    -----
    The devices of a machine add up their gradients over the links inside, one after the other in ready order:
    ``end_j = max(end_(j-1), ready_j) + time_j``.
    """
    profile, shares = problem.profiles[group.device.name], np.asarray(share, dtype=float)[..., None]
    forward_s, backward_s = float(profile.forward_s.sum()), float(profile.backward_s.sum())
    if Strategy(problem.calibration.strategy).overlaps_gradients:
        own_s = (forward_s + gradients.ready_s_per_sample) * shares
    else:
        own_s = np.broadcast_to((forward_s + backward_s) * shares, (*shares.shape[:-1], len(gradients.names)))
    if group.inside is None or group.devices_per_machine == 1:
        return np.asarray(own_s)
    inside = ring_all_reduces(
        num_devices=[group.devices_per_machine],
        bandwidth_bytes_per_s=group.inside.bandwidth_bytes_per_s * problem.calibration.inside_efficiency,
        latency_s=group.inside.latency_s,
    ).at(0)
    done_s = np.cumsum(inside(gradients.size_bytes))
    # The recursion without a loop: the last wait was for some gradient, and from there on the link was busy.
    return np.asarray(np.maximum.accumulate(own_s - np.append(0.0, done_s[:-1]), axis=-1) + done_s)


def network_bytes_per_s(problem: Problem, group: MachineGroup) -> float:
    """Return the bandwidth of a machine's network cards together, at the rate that is reached."""
    edges = list(problem.cluster.graph.edges(group.name, data=True))
    if not edges:  # the only machine of its cluster: its server is at home, and nothing is sent
        return _UNUSED_BYTES_PER_S
    slowest = float(min(data["link"].bandwidth_bytes_per_s for _, _, data in edges))
    return slowest * group.num_nics * problem.calibration.bandwidth_efficiency


def network_latency_s(cluster: Cluster, one: str, other: str) -> float:
    """Return the latency of the way between machines of two groups, as all-reduce counts it from machine to machine."""
    if cluster.num_machines == 1:
        return 0.0
    names = {one, other}
    part = cluster.of_groups(names) if cluster.of_groups_is_connected(names) else cluster
    return part.ring_link(part.num_machines).latency_s


def memory_limit_bytes(problem: Problem, group: MachineGroup) -> float:
    """Return what a device may hold: its memory, or the user's limit where that is less."""
    limit = problem.limits.memory_per_device_bytes
    return min(group.device.memory_bytes, float("inf") if limit is None else limit)


def packet_queueing_s(problem: Problem, server_bytes_per_s: float) -> float:
    """Return a packet's time at the switch, one direction (eqs. 11 and 12 of the GST model); refuse saturation.

    Its arrivals are those of one saturated link, however many workers and servers there are.
    """
    queue = problem.calibration.queue
    if queue is None:
        return 0.0
    network = ServerNetwork(
        num_workers=1,
        bandwidth_bytes_per_s=server_bytes_per_s,
        packet_bytes=queue.packet_bytes,
        switch_packets_per_s=queue.switch_bytes_per_s / queue.packet_bytes,
        num_hops=queue.num_hops,
    )
    try:
        return float(queueing_s(network))
    except ModelError as error:
        raise SpecError.of([Fault(field="calibration.queue", problem=str(error), mend="")]) from None


def group_inputs(
    problem: Problem, group: MachineGroup, *, num_workers: int, share: float, whole_batch: float | None
) -> InputTime:
    """Return the time of a group's input; a store that all share reads the whole batch of all workers.

    ``whole_batch``: None without a barrier, where there is no common batch and a store is shared evenly.
    """
    training = problem.training
    return input_time(
        group,
        num_machines=num_workers,
        devices_per_machine=group.devices_per_machine,
        batch_per_device=share,
        sample_bytes=training.sample_bytes,
        device_sample_bytes=training.device_sample_bytes,
        whole_batch=whole_batch,
        read_s_per_sample=training.measured_read_s(problem.profiles[group.device.name], group),
        is_pipelined=problem.calibration.is_prefetch_pipelined,
    )
