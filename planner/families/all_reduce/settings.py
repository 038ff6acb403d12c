"""The settings of the family ``all_reduce`` that a question allows: machines, devices of each, batch, micro-batches."""

from collections.abc import Iterator, Sequence
from math import ceil

from planner.families.all_reduce.cost import AllReduceCost, Setting
from planner.problem import Problem, Range
from planner.units import Dimension, format_human

__all__ = ["ANY_NUMBER", "batches_of", "fewest_microbatches", "settings_of", "shapes_of", "why_nothing_fits"]

ANY_NUMBER = 2**62  # samples at a time, where memory is not asked


def shapes_of(cost: AllReduceCost) -> Iterator[tuple[int, int]]:
    """Yield (machines, devices a machine) within the limits and pins, whatever the batch and the memory."""
    problem, fixed, cluster = cost.problem, cost.problem.fixed, cost.cluster
    allowed, allowed_machines = problem.training_devices, problem.allowed_machines
    most_devices = min(group.devices_per_machine for group in cost.groups)
    curves = problem.calibration.all_reduce_curves
    for machines in _allowed(fixed.get("num_machines"), cluster.num_machines):
        if machines not in allowed_machines:
            continue
        for devices in _allowed(fixed.get("devices_per_machine"), most_devices):
            number = machines * devices
            is_measured = not curves or number == 1 or number in curves
            if number in allowed and is_measured:
                yield machines, devices


def _allowed(pinned: int | None, most: int) -> Sequence[int]:
    """Return 1 to ``most``, or the pinned number if it is one of them."""
    return range(1, most + 1) if pinned is None else [pinned] * (pinned <= most)


def batches_of(problem: Problem, num_devices: int, most_samples: int) -> list[int]:
    """Return the global batches worth trying on so many devices, of which each holds ``most_samples`` at a time."""
    training = problem.training
    if (fixed := training.fixed_batch_size) is not None:
        return [fixed] * (fixed >= num_devices)
    most = training.max_global_batch_size
    if training.batch_per_device is not None:
        batch = training.batch_per_device * num_devices
        return [batch] * (most is None or batch <= most)
    assert most is not None  # the spec gives one of the three
    share = most // num_devices
    steps = problem.fixed.get("gradient_accumulation_steps")
    if steps is not None:
        shares = {min(share, steps * most_samples), min(ceil(most / num_devices), steps * most_samples)}
    else:
        shares = {share, ceil(most / num_devices), share // most_samples * most_samples}
    batches = {min(most, num_devices * one) for one in shares}
    return sorted(batch for batch in batches if batch >= num_devices)


def fewest_microbatches(share: int, most_samples: int) -> int:
    """Return the fewest micro-batches of a share that fit where so many samples do; one where not even one sample fits.

    >>> fewest_microbatches(10, 4), fewest_microbatches(10, 0)
    (3, 1)
    """
    return ceil(share / most_samples) if most_samples else 1


def settings_of(cost: AllReduceCost) -> Iterator[Setting]:
    """Yield every shape with its batches, each in the fewest micro-batches that fit in memory."""
    most_samples = cost.memory.most_samples(cost.memory_limit_bytes)
    if not most_samples:
        return
    pinned = cost.problem.fixed.get("gradient_accumulation_steps")
    for machines, devices in shapes_of(cost):
        for batch in batches_of(cost.problem, machines * devices, most_samples):
            share = ceil(batch / (machines * devices))
            steps = fewest_microbatches(share, most_samples) if pinned is None else pinned
            if steps <= share and ceil(share / steps) <= most_samples:
                yield Setting(
                    num_machines=machines, devices_per_machine=devices, global_batch_size=batch, num_microbatches=steps
                )


def why_nothing_fits(cost: AllReduceCost) -> str:
    """Return which limits leave no candidate, and by how much they would have to give."""
    shapes = list(shapes_of(cost))
    problem = cost.problem
    if not shapes:
        return (
            f"No plan fits: no number of machines and devices meets {' and '.join(_counts_asked_for(cost))} together "
            f"(the cluster has {cost.cluster.num_machines} machines of up to {cost.groups[0].devices_per_machine} "
            f"devices). "
            f"Drop or change one of them."
        )
    shares = [ceil(batch / (m * g)) for m, g in shapes for batch in batches_of(problem, m * g, ANY_NUMBER)]
    if not shares:
        fewest = min(machines * devices for machines, devices in shapes)
        return (
            f"No plan fits: the batch cannot be split over {fewest} devices. Raise it to {fewest} or "
            f"more, or use fewer devices."
        )
    needed = cost.memory.total_bytes(1)
    limit = cost.memory_limit_bytes
    if needed > limit:
        return (
            f"No plan fits: even one sample at a time needs {format_human(needed, Dimension.DATA, 4)} on a device, "
            f"which may hold "
            f"{format_human(limit, Dimension.DATA, 4)} ({cost.device.name}). Raise memory_per_device to "
            f"{format_human(needed * 1.001, Dimension.DATA, 4)}, "
            f"take devices with more memory, or another optimizer or dtype."
        )
    steps = problem.fixed.get("gradient_accumulation_steps")
    share = min(shares)
    most = cost.memory.most_samples(limit)
    return (
        f"No plan fits: with fix.gradient_accumulation_steps: {steps}, the smallest share of {share} samples is "
        f"either less than "
        f"that, or needs more memory than a device has (it holds {most} samples at a time). Use "
        f"{ceil(share / most)} steps."
    )


def _counts_asked_for(cost: AllReduceCost) -> list[str]:
    """Return the limits and pins on numbers of machines and devices that the question has, with their values."""
    limits, fixed = cost.problem.limits, cost.problem.fixed
    asked = [
        f"{name} {allowed.words}"
        for name, allowed in (("constraints.devices", limits.devices), ("constraints.machines", limits.machines))
        if allowed != Range()
    ]
    pins = ("num_devices", "num_machines", "devices_per_machine")
    asked += [f"fix.{name} {fixed[name]}" for name in pins if name in fixed]
    asked += filter(None, [cost.problem.devices_words])
    if curves := cost.problem.calibration.all_reduce_curves:
        asked.append(f"calibration's curves for {', '.join(map(str, sorted(curves)))} devices")
    return asked or ["the cluster"]
