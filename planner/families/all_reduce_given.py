"""A configuration that a user gives: fusion by a named rule or as listed groups, checked against the cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from planner.channel import Ends
from planner.families.all_reduce_cost import AllReduceConfiguration, AllReduceCost, FusionGroup, Setting
from planner.families.all_reduce_fusion import best_ends, fusion_rules, one_transfer_s
from planner.families.all_reduce_settings import ANY_NUMBER, batches_of
from planner.families.faults import wrong
from planner.problem import Problem
from planner.solvers.fusion_heuristics import constant_buffer

__all__ = ["configuration_of"]


def configuration_of(problem: Problem, given: Mapping[str, Any]) -> AllReduceConfiguration:
    """Return the configuration that a spec's block means.

    ``fusion_groups`` may list the groups, or name a rule: none, one, optimal, mg_wfbp, ada_fusion, ada_fusion_idle, or
    ``{buffer: 25 MiB}``.

    Raises
    ------
    SpecError
        Where the numbers contradict one another or the cluster, or the groups are no partition of the gradients in
        ready order.
    """
    machines = given["machines"] or ()
    known = [group.name for group in problem.cluster.machine_groups]
    if unknown := [name for name in machines if name not in known]:
        raise wrong(
            "all_reduce", "machines", unknown[0], f"there are no machines {unknown[0]!r}; there are {', '.join(known)}."
        )
    cost = AllReduceCost(problem, machines)
    setting = _given_setting(cost, given)
    rule = given["fusion_groups"]
    if setting.num_devices == 1:
        return cost.configuration(setting, ())
    if not isinstance(rule, list):
        return cost.configuration(setting, _ends_of_rule(cost, setting, rule))
    groups = _given_groups(cost, setting, rule)
    return replace(cost.configuration(setting, (len(cost.gradients.names) - 1,)), fusion_groups=groups)


def _given_setting(cost: AllReduceCost, given: Mapping[str, Any]) -> Setting:
    """Return the setting of a given configuration, checked against the cluster."""
    number = given["num_devices"]
    most = min(group.devices_per_machine for group in cost.groups)
    devices, machines = given["devices_per_machine"], given["num_machines"]
    if devices is None and machines is None:
        machines = next((m for m in range(ceil(number / most), cost.cluster.num_machines + 1) if not number % m), 0)
    machines = machines or (number // devices if devices else 0)
    devices = devices or (number // machines if machines else 0)
    if machines * devices != number or machines > cost.cluster.num_machines or devices > most or not number:
        have = f"the cluster has {cost.cluster.num_machines} machines of {most} {cost.device.name}"
        raise wrong(
            "all_reduce",
            "num_devices",
            number,
            f"{machines} machines x {devices} devices do not make {number}, or {have}.",
        )
    batch = given["global_batch_size"] or max(batches_of(cost.problem, number, ANY_NUMBER), default=0)
    steps = given["gradient_accumulation_steps"]
    if batch < number or steps > ceil(batch / number):
        raise wrong(
            "all_reduce",
            "global_batch_size",
            batch,
            f"a batch of {batch} cannot be split over {number} devices in {steps} steps.",
        )
    curves = cost.problem.calibration.all_reduce_curves
    if curves and number > 1 and number not in curves:
        known = ", ".join(map(str, sorted(curves)))
        raise wrong("all_reduce", "num_devices", number, f"calibration.curves hold {known} devices, not {number}.")
    return Setting(num_machines=machines, devices_per_machine=devices, global_batch_size=batch, num_microbatches=steps)


def _ends_of_rule(cost: AllReduceCost, setting: Setting, rule: str | Mapping[str, float]) -> Ends:
    """Return the groups of a named rule or a constant buffer."""
    if isinstance(rule, Mapping):
        sizes, timeout_s = cost.gradients.size_bytes, cost.problem.calibration.timeout_s
        return constant_buffer(sizes, rule["buffer"], cost.ready_s(setting), timeout_s)
    if rule == "optimal":
        return best_ends(cost, setting)
    names = {"none": "no fusion", "one": "one buffer", "mg_wfbp": "MG-WFBP", "ada_fusion": "adaFusion"}
    names["ada_fusion_idle"] = "adaFusion, idle waiting only"
    return fusion_rules(cost, setting)[names[rule]]


def _given_groups(cost: AllReduceCost, setting: Setting, rows: Sequence[Mapping[str, Any]]) -> tuple[FusionGroup, ...]:
    """Return listed groups, checked to be all gradients in ready order."""
    names = [name for row in rows for name in row["tensors"]]
    known = list(cost.gradients.names)
    if names != known:
        stranger = next((name for name in names if name not in known), None)
        missing = next((name for name in known if name not in names), None)
        what = (
            f"{stranger!r} is no gradient of this network"
            if stranger
            else f"{missing!r} is in no group"
            if missing
            else ""
        )
        what = what or "they are not in ready order, or one stands twice"
        raise wrong(
            "all_reduce",
            "fusion_groups",
            len(rows),
            f"the groups are not the network's {len(known)} gradients, last layer first: {what}.",
        )
    sizes = dict(zip(known, cost.gradients.size_bytes.tolist(), strict=True))
    costs = cost.transfer_costs(setting)
    groups = []
    for row in rows:
        size = sum(sizes[name] for name in row["tensors"])
        cheapest = min(costs, key=lambda name: one_transfer_s(costs[name], size))  # used at once
        groups.append(
            FusionGroup(tensors=tuple(row["tensors"]), algorithm=row["algorithm"] or cheapest, size_bytes=size)
        )
    return tuple(groups)
