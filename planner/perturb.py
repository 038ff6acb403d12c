"""The same question on other hardware: one property changed, all else as it was.

What a question fixes stays fixed: the global batch, limits and pins. All-reduces that were measured over all sizes are
changed with their cause as far as it can be told apart: over links ``f`` times as fast a transfer takes what one of
``1/f`` its size takes now, and with start-ups ``f`` times as long, ``f`` times what one of ``1/f`` its size takes. Both
are exact where a transfer takes ``a + bytes / B``.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from planner.cluster import Cluster, Link, MachineGroup, Switch
from planner.cost import Floats, Profile, TransferCost
from planner.frozen import frozen
from planner.problem import Problem, Training


def wider_network(problem: Problem, factor: float) -> Problem:
    """Return the question with every link between machines ``factor`` times as wide, its switch and its hosts, too."""
    fitted = problem.calibration
    curves = _scaled_curves(problem, factor, is_inside=False)
    queue = fitted.queue
    if queue is not None:
        queue = replace(queue, switch_bytes_per_s=queue.switch_bytes_per_s * factor)
    cluster = _rebuilt(problem.cluster, link=lambda link: _wider(link, factor))
    fitted = replace(fitted, all_reduce_curves=curves, queue=queue, links=fitted.links.wider_network(factor))
    return replace(problem, cluster=cluster, calibration=fitted)


def wider_inside(problem: Problem, factor: float) -> Problem:
    """Return the question with every link inside a machine ``factor`` times as wide."""
    curves, fitted = _scaled_curves(problem, factor, is_inside=True), problem.calibration

    def widened(group: MachineGroup) -> MachineGroup:
        return group if group.inside is None else replace(group, inside=_wider(group.inside, factor))

    calibration = replace(fitted, all_reduce_curves=curves, links=fitted.links.wider_inside(factor))
    return replace(problem, cluster=_rebuilt(problem.cluster, group=widened), calibration=calibration)


def faster_devices(problem: Problem, factor: float, names: Iterable[str]) -> Problem:
    """Return the question with devices of these names ``factor`` times as fast in all that they compute."""
    chosen = set(names)
    fitted, compression = problem.calibration, problem.compression
    if chosen >= set(problem.profiles):  # what is calibrated for all devices alike
        if compression is not None:
            compression = replace(compression, scale_s=compression.scale_s / factor)
        fitted = replace(
            fitted,
            activation_s=fitted.activation_s / factor,
            error_s=fitted.error_s / factor,
            multiply_add_s=tuple((size, seconds / factor) for size, seconds in fitted.multiply_add_s),
        )

    def hurried(profiles: Mapping[str, Profile]) -> dict[str, Profile]:
        return {name: one.slower(1 / factor) if name in chosen else one for name, one in profiles.items()}

    slowdowns = problem.transformer_rates.get("slowdowns", {})
    return replace(
        problem,
        profiles=hurried(problem.profiles),
        transformer_rates={
            **problem.transformer_rates,
            "slowdowns": {**slowdowns, **{name: slowdowns.get(name, 1.0) / factor for name in chosen}},
        },
        substitutions=tuple(replace(one, profiles=hurried(one.profiles)) for one in problem.substitutions),
        calibration=fitted,
        compression=compression,
    )


def faster_start(problem: Problem, factor: float) -> Problem:
    """Return the question with ``factor`` times the latency of all links and start-up of all transfers."""
    fitted = problem.calibration
    calibration = replace(
        fitted,
        overhead_s=fitted.overhead_s * factor,
        negotiate_s=fitted.negotiate_s * factor,
        all_reduce_curves={
            number: _Scaled(cost=curve, shrink=factor, times=factor)
            for number, curve in fitted.all_reduce_curves.items()
        },
    )

    def sooner(link: Link) -> Link:
        return replace(link, latency_s=link.latency_s * factor)

    def hastened(group: MachineGroup) -> MachineGroup:
        return group if group.inside is None else replace(group, inside=sooner(group.inside))

    return replace(problem, cluster=_rebuilt(problem.cluster, group=hastened, link=sooner), calibration=calibration)


def faster_input(problem: Problem, factor: float) -> Problem:
    """Return the question with storage, decoding and copying to the device ``factor`` times as fast."""

    def hastened(group: MachineGroup) -> MachineGroup:
        storage = group.storage
        if storage is not None:
            storage = replace(storage, bandwidth_bytes_per_s=storage.bandwidth_bytes_per_s * factor)
        return replace(
            group,
            storage=storage,
            host_link_bytes_per_s=group.host_link_bytes_per_s * factor,
            decode_samples_per_s=group.decode_samples_per_s * factor,
        )

    def reread(profiles: Mapping[str, Profile]) -> dict[str, Profile]:
        return {
            name: replace(one, read_s=None if one.read_s is None else one.read_s / factor)
            for name, one in profiles.items()
        }

    return replace(problem, cluster=_rebuilt(problem.cluster, group=hastened), profiles=reread(problem.profiles))


def larger_devices(problem: Problem, factor: float) -> Problem:
    """Return the question with ``factor`` times the memory of every device."""

    def widened(group: MachineGroup) -> MachineGroup:
        return replace(group, device=replace(group.device, memory_bytes=group.device.memory_bytes * factor))

    return replace(problem, cluster=_rebuilt(problem.cluster, group=widened))


def with_memory(problem: Problem, device: str, memory_bytes: float) -> Problem:
    """Return the question with another memory of one type of device."""

    def changed(group: MachineGroup) -> MachineGroup:
        if group.device.name != device:
            return group
        return replace(group, device=replace(group.device, memory_bytes=memory_bytes))

    return replace(problem, cluster=_rebuilt(problem.cluster, group=changed))


def other_machines(problem: Problem, name: str, change: int) -> Problem:
    """Return the question with so many machines more or less in one group, on the same global batch.

    Where all devices were meant to share that batch, all there are then do; numbers that the user gave stay.

    Raises
    ------
    ValueError
        If the machines that remain, or their number, make no cluster.
    """
    groups = problem.cluster.machine_groups
    group = next(one for one in groups if one.name == name)
    training = _on_devices(problem, group, change)
    return replace(with_counts(problem, {name: group.count + change}), training=training)


def with_counts(problem: Problem, counts: Mapping[str, int]) -> Problem:
    """Return the question with so many machines of some groups, one at least in all; all else stays, the batch too."""
    cluster = problem.cluster
    if gone := {name for name, count in counts.items() if count == 0}:
        cluster = cluster.of_groups({one.name for one in cluster.machine_groups} - gone)
    cluster = _rebuilt(cluster, group=lambda one: replace(one, count=counts.get(one.name, one.count)))
    devices = {one.device.name for one in cluster.machine_groups}
    profiles = {device: profile for device, profile in problem.profiles.items() if device in devices}
    return replace(problem, cluster=cluster, profiles=profiles)


def _on_devices(problem: Problem, group: MachineGroup, change: int) -> Training:
    """Return the training with the same global batch, meant for the devices that there are after a change."""
    training, limits, fixed = problem.training, problem.limits, problem.fixed
    is_given = limits.machines.most is not None or limits.devices.most is not None
    if training.num_devices is None or is_given or not fixed.keys().isdisjoint({"num_devices", "num_machines"}):
        return training
    kinds = {one.device.kind for one in problem.cluster.machine_groups}
    is_idle = fixed.get("device", group.device.name) != group.device.name or (
        group.device.kind == "cpu" and len(kinds) > 1
    )
    more = 0 if is_idle else change * int(fixed.get("devices_per_machine", group.devices_per_machine))
    return replace(
        training,
        batch_per_device=None,
        global_batch_size=training.fixed_batch_size,
        num_devices=training.num_devices + more,
    )


# -- parts -----------------------------------------------------------------------------------------------------------


@frozen
class _Scaled:
    """A measured cost: ``times cost(size / shrink)``."""

    cost: TransferCost
    shrink: float
    times: float = 1.0

    def __call__(self, size_bytes: Floats, /) -> Floats:
        """Return seconds, in the shape of ``size_bytes``."""
        return self.times * self.cost(np.asarray(size_bytes, dtype=np.float64) / self.shrink)


def _scaled_curves(problem: Problem, factor: float, *, is_inside: bool) -> dict[int, TransferCost]:
    """Return the measured all-reduces over links ``factor`` times as fast.

    Those of no more devices than a machine has are taken to run inside one.
    """
    most = most_inside(problem)
    return {
        number: _Scaled(cost=curve, shrink=factor) if (number <= most) is is_inside else curve
        for number, curve in problem.calibration.all_reduce_curves.items()
    }


def most_inside(problem: Problem) -> int:
    """Return the most devices of one machine; 0 where a machine has one, since its all-reduces use the network."""
    most = max(group.devices_per_machine for group in problem.cluster.machine_groups)
    return most if most > 1 else 0


def _rebuilt(
    cluster: Cluster,
    *,
    group: Callable[[MachineGroup], MachineGroup] = lambda one: one,
    link: Callable[[Link], Link] = lambda one: one,
) -> Cluster:
    """Return the same graph with other machine groups or links."""
    return Cluster(
        cluster.name,
        [node if isinstance(node, Switch) else group(node) for node in cluster.nodes.values()],
        [(one, other, link(cable)) for one, other, cable in cluster.links],
        source=cluster.source,
    )


def _wider(link: Link, factor: float) -> Link:
    """Return a link of ``factor`` times the bandwidth."""
    return replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor)
