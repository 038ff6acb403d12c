"""A configuration that a user gives: fusion by a named rule or as listed groups, checked against the cluster."""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from planner.families.all_reduce.configuration import NAME, AllReduceConfiguration, Setting
from planner.families.all_reduce.cost import AllReduceCost
from planner.families.all_reduce.fusion import ends_of_rule, exchange_of, listed_groups
from planner.families.all_reduce.mixed_given import mixed_configuration_of
from planner.families.all_reduce.settings import ANY_NUMBER, batches_of, fewest_microbatches
from planner.families.compression import compression_of
from planner.families.faults import wrong
from planner.problem import Problem

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
            NAME, "machines", unknown[0], f"there are no machines {unknown[0]!r}; there are {', '.join(known)}."
        )
    if given["groups"] is not None:
        return mixed_configuration_of(problem, given)
    cost = AllReduceCost(problem, machines)
    setting = replace(_given_setting(cost, given), compression=compression_of(given["compression"]))
    rule = given["fusion_groups"]
    if setting.num_devices == 1:
        return cost.configuration(setting, ())
    if not isinstance(rule, list):
        return cost.configuration(setting, ends_of_rule(exchange_of(cost, setting), rule))
    groups = listed_groups(cost.gradients, cost.transfer_costs(setting), rule, kept=setting.kept)
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
            NAME,
            "num_devices",
            number,
            f"{machines} machines x {devices} devices do not make {number}, or {have}.",
        )
    training, batches = cost.problem.training, batches_of(cost.problem, number, ANY_NUMBER)
    if training.batch_per_device is not None and training.fixed_batch_size is not None:
        batches = [training.batch_per_device * number]  # a configuration may name fewer devices than there are
    batch = given["global_batch_size"] or max(batches, default=0)
    steps = given["gradient_accumulation_steps"]
    if steps is None:
        steps = fewest_microbatches(ceil(batch / number), cost.memory.most_samples(cost.memory_limit_bytes))
    if batch < number or steps > ceil(batch / number):
        raise wrong(
            NAME,
            "global_batch_size",
            batch,
            f"a batch of {batch} cannot be split over {number} devices in {steps} steps.",
        )
    curves = cost.problem.calibration.all_reduce_curves
    if curves and number > 1 and number not in curves:
        known = ", ".join(map(str, sorted(curves)))
        raise wrong(NAME, "num_devices", number, f"calibration.curves hold {known} devices, not {number}.")
    return Setting(num_machines=machines, devices_per_machine=devices, global_batch_size=batch, num_microbatches=steps)
