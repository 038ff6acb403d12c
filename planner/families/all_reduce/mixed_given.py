"""A configuration of unlike devices that a user gives, checked against the cluster and the batch."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.cluster import MachineGroup
from planner.families.all_reduce.configuration import NAME, AllReduceConfiguration
from planner.families.all_reduce.fusion import ends_of_rule, listed_groups, mixed_exchange_of
from planner.families.all_reduce.mixed import MixedCost
from planner.families.all_reduce.settings import fewest_microbatches
from planner.families.compression import compression_of
from planner.families.faults import wrong
from planner.problem import Problem

__all__ = ["mixed_configuration_of"]


def mixed_configuration_of(problem: Problem, given: Mapping[str, Any]) -> AllReduceConfiguration:
    """Return the configuration that a block with ``groups`` means.

    Raises
    ------
    SpecError
        Where a group is unknown or has fewer machines or devices, the groups cannot reach each other, the shares do not
        make the batch, or the fused groups are no partition of the gradients in ready order.
    """
    groups = {group.name: group for group in problem.cluster.machine_groups}
    rows: Mapping[str, Mapping[str, Any]] = given["groups"]
    for name, row in rows.items():
        _check_group(groups, name, row)
    if not problem.cluster.of_groups_is_connected(list(rows)):
        raise wrong(NAME, "groups", ", ".join(rows), "these machines cannot reach each other.")
    devices = [row["devices_per_machine"] or groups[name].devices_per_machine for name, row in rows.items()]
    cost = MixedCost(problem, list(rows), devices)
    ordered = [rows[name] for name in cost.names]
    machines = [row["machines"] for row in ordered]
    shares = [row["batch_per_device"] for row in ordered]
    steps = [
        row["gradient_accumulation_steps"] or fewest_microbatches(row["batch_per_device"], most)
        for row, most in zip(ordered, cost.most_at_a_time.tolist(), strict=True)
    ]
    numbers = [count * each for count, each in zip(machines, cost.devices.tolist(), strict=True)]
    _check_totals(problem, given, sum(machines), sum(numbers))
    compression = compression_of(given["compression"])
    batch = _batch(problem, given, numbers, shares)
    bare = cost.configuration(machines, shares, batch, steps=steps, compression=compression)
    costs = cost.transfer_costs(bare.num_machines, bare.num_devices)
    if bare.num_devices > 1 and not costs:
        text = "two levels need equally many devices in every machine, and no other algorithm is allowed."
        raise wrong(NAME, "groups", ", ".join(rows), text)
    exchange, rule = mixed_exchange_of(cost, bare), given["fusion_groups"]
    if exchange is None:
        return bare
    if isinstance(rule, list):
        kept = 1.0 if compression is None else float(compression.kept)
        return replace(bare, fusion_groups=listed_groups(cost.gradients, costs, rule, kept=kept))
    ends = ends_of_rule(exchange, rule)
    return cost.configuration(machines, shares, batch, steps=steps, ends=ends, compression=compression)


def _check_group(groups: Mapping[str, MachineGroup], name: str, row: Mapping[str, Any]) -> None:
    """Refuse a group that is not there, or does more than it can."""
    key = f"groups.{name}"
    if name not in groups:
        text = f"there are no machines {name!r}; there are {', '.join(groups)}."
        raise wrong(NAME, key, name, text)
    group, devices = groups[name], row["devices_per_machine"]
    if row["machines"] > group.count:
        text = f"there are {group.count} machines {name!r}, not {row['machines']}."
        raise wrong(NAME, f"{key}.machines", row["machines"], text)
    if devices is not None and devices > group.devices_per_machine:
        text = f"a machine {name!r} has {group.devices_per_machine} devices, not {devices}."
        raise wrong(NAME, f"{key}.devices_per_machine", devices, text)
    if (row["gradient_accumulation_steps"] or 1) > row["batch_per_device"]:
        text = f"a share of {row['batch_per_device']} cannot be split into so many micro-batches."
        raise wrong(NAME, f"{key}.gradient_accumulation_steps", row["gradient_accumulation_steps"], text)


def _check_totals(problem: Problem, given: Mapping[str, Any], num_machines: int, num_devices: int) -> None:
    """Refuse numbers that are not those of the groups, or that no curve holds."""
    for key, number in (("num_machines", num_machines), ("num_devices", num_devices)):
        if given[key] not in (None, number):
            raise wrong(NAME, key, given[key], f"the groups have {number} in all.")
    curves = problem.calibration.all_reduce_curves
    if curves and num_devices > 1 and num_devices not in curves:
        known = ", ".join(map(str, sorted(curves)))
        text = f"calibration.curves hold {known} devices, not {num_devices}."
        raise wrong(NAME, "groups", num_devices, text)


def _batch(problem: Problem, given: Mapping[str, Any], numbers: list[int], shares: list[int]) -> int:
    """Return the global batch: the one given, the question's, or all shares in full; checked against the shares."""
    most = sum(number * share for number, share in zip(numbers, shares, strict=True))
    fewest = sum(max(number * (share - 1) + 1, number) for number, share in zip(numbers, shares, strict=True))
    batch = int(given["global_batch_size"] or problem.training.fixed_batch_size or most)
    if not fewest <= batch <= most:
        text = (
            f"the shares make batches of {fewest} to {most} samples, not {batch}: a share is the largest of its group, "
            f"and some devices have one sample less."
        )
        raise wrong(NAME, "global_batch_size", batch, text)
    return batch
