"""Why no configuration of parameter servers fits, and by how much what would have to give."""

from math import ceil

from planner.errors import InfeasibleError
from planner.families.parameter_server.given import may_work
from planner.families.parameter_server.groups import memory_limit_bytes
from planner.families.parameter_server.space import Space
from planner.models.memory import Precision, data_parallel_memory
from planner.problem import Problem, Range
from planner.units import Dimension, format_human

__all__ = ["check_pins", "why_nothing_fits"]


def check_pins(problem: Problem) -> None:
    """Refuse pinned numbers beyond what the cluster has, before anything of their size is built.

    Raises
    ------
    InfeasibleError
        With the pin, and the most that there is.
    """
    fixed, groups = problem.fixed, {group.name: group for group in problem.cluster.machine_groups}
    may_serve = [group.count for name, group in groups.items() if fixed.get("servers") in (None, name)]
    working = [groups[name] for name in may_work(groups, fixed.get("device"))]
    there_are = {
        "num_parameter_servers": (max(may_serve, default=0), "machines of one group that may serve"),
        "num_machines": (problem.cluster.num_machines, "machines of the cluster"),
        "num_devices": (sum(group.count * group.devices_per_machine for group in working), "devices that may work"),
    }
    for key, (most, what) in there_are.items():
        if most and fixed.get(key, 0) > most:
            raise InfeasibleError(
                f"No plan fits: fix.{key}: {fixed[key]} is more than the {most} {what}. Pin {most} or less."
            )


def why_nothing_fits(space: Space) -> str:
    """Return which limits leave no configuration."""
    problem, devices = space.problem, int((space.counts * space.devices).sum())
    if not space.groups:
        known = ", ".join(sorted({group.device.name for group in problem.cluster.machine_groups}))
        return f"No plan fits: no machine has the device {problem.fixed['device']} ({known}). Pin another one."
    if not space.sites:
        return (
            "No plan fits: no machines may both serve and work as fix.servers and fix.co_located ask. Drop one of them."
        )
    if not space.most_samples.any():
        return _memory_text(space)
    share, batch = space.fixed_share or 1, space.fixed_batch or space.most_batch
    holds = int((space.counts * space.devices * space.most_samples).sum())
    if space.fixed_batch is not None and holds < batch:
        return (
            f"No plan fits: a batch of {batch} on {devices} devices needs {ceil(batch / devices)} samples on each, and "
            f"their memory holds {holds} in all. Lower the batch to {holds}, or add machines."
        )
    fewest = max(space.num_devices.least * share, int(space.devices.min()) * share)
    if batch < fewest:
        text = f"No plan fits: a batch of {batch} is less than {fewest}, one share for each device that must work."
        return f"{text} Raise the batch to {fewest} or more, or use fewer devices."
    if saturated := [site for site in space.sites if site.saturated]:
        names = ", ".join(dict.fromkeys(site.servers.name for site in saturated))
        return (
            f"No plan fits: with servers on {names}, {saturated[0].saturated}. Raise calibration.queue.switch, let "
            "other machines serve, or let one machine serve itself."
        )
    return _counts_text(space)


def _memory_text(space: Space) -> str:
    """Return how much memory one sample needs, and how much the largest device has."""
    problem = space.problem
    precision = Precision.of(problem.training.dtype, problem.training.optimizer)
    reserve = problem.calibration.memory_reserve_bytes
    needed = data_parallel_memory(problem.dnn, precision, reserve_bytes=reserve).total_bytes(1)
    largest = max(space.groups, key=lambda group: memory_limit_bytes(problem, group))
    limit = memory_limit_bytes(problem, largest)
    return (
        f"No plan fits: even one sample at a time needs {format_human(needed, Dimension.DATA, 4)} on a device, which "
        f"may hold {format_human(limit, Dimension.DATA, 4)} ({largest.device.name}). Raise memory_per_device to "
        f"{format_human(needed * 1.001, Dimension.DATA, 4)}, take devices with more memory, or another optimizer or "
        f"dtype."
    )


def _counts_text(space: Space) -> str:
    """Return which numbers of machines, devices and servers were asked for, and how many there are."""
    problem, fixed = space.problem, space.problem.fixed
    limits = {"constraints.devices": problem.limits.devices, "constraints.machines": problem.limits.machines}
    asked = [f"{name} from {one.least} to {one.most or 'all'}" for name, one in limits.items() if one != Range()]
    pins = ("num_parameter_servers", "num_machines", "num_devices", "servers", "co_located", "device", "batch_shares")
    asked += [f"fix.{name}: {fixed[name]}" for name in pins if name in fixed]
    asked += filter(None, [problem.devices_words])
    machines, devices = int(space.counts.sum()), int((space.counts * space.devices).sum())
    return (
        f"No plan fits: no numbers of working machines and servers meet {' and '.join(asked) or 'the batch'} together. "
        f"{machines} machines with {devices} devices may work, and {problem.cluster.num_machines} may serve; servers "
        f"on machines of their own need at least one of them, and co-located ones stand on machines that work; a "
        f"machine that works does so with all its devices. Drop or change one of them."
    )
