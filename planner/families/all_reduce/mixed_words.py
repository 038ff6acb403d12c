"""What binds an all-reduce configuration of unlike devices, in words."""

import numpy as np

from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.all_reduce.mixed import MixedCost
from planner.plan import Prediction
from planner.units import Dimension, format_human

__all__ = ["binding", "explain", "waiting"]


def explain(cost: MixedCost, configuration: AllReduceConfiguration, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds, who waits for whom, and whether it fits."""
    lines = [binding(cost, configuration, prediction), *waiting(cost, configuration, prediction)]
    for group, memory in zip(cost.groups, cost.memory_bytes(configuration), strict=True):
        if memory["total"] > memory["limit"]:
            total, limit = (format_human(memory[key], Dimension.DATA) for key in ("total", "limit"))
            lines.append(f"it does not fit: a device of {group.name} would hold {total}, and may hold {limit}")
    return tuple(lines)


def binding(cost: MixedCost, configuration: AllReduceConfiguration, prediction: Prediction) -> str:
    """Return what an iteration's time is spent on most."""
    breakdown, total_s = prediction.breakdown_s, prediction.iteration_time_s
    compute_s = breakdown["forward"] + breakdown["backward"] + breakdown["update"] + breakdown.get("compression", 0.0)
    exposed_s = sum(seconds for name, seconds in breakdown.items() if name.startswith("exposed_"))
    if breakdown["input_stall"] > 0:
        inputs = {name: one.bound_s for name, one in zip(cost.names, cost.inputs(configuration), strict=True)}
        slowest = max(inputs, key=inputs.__getitem__)
        wait = format_human(breakdown["input_stall"], Dimension.TIME)
        return f"input binds: that of {slowest} takes {format_human(inputs[slowest], Dimension.TIME)}, all wait {wait}"
    shares = f"{compute_s / total_s:.0%} computation, {exposed_s / total_s:.0%} exposed communication"
    if exposed_s <= compute_s:
        return f"computation binds: {shares}"
    costs = cost.transfer_costs(configuration.num_machines, configuration.num_devices)
    startup_s = sum(float(costs[group.algorithm](np.array([1.0]))[0]) for group in configuration.fusion_groups)
    if startup_s > prediction.communication_s["all_reduce"] / 2:
        return f"the latency of small messages binds: {shares}; {startup_s:.3g} s of start-ups"
    return f"exposed communication binds, by its bandwidth: {shares}"


def waiting(cost: MixedCost, configuration: AllReduceConfiguration, prediction: Prediction) -> tuple[str, ...]:
    """Return which group computes longest, and how much of that the others are idle for."""
    if len(cost.names) == 1:
        return ()
    groups = prediction.details["groups"]
    slowest = prediction.details["straggler"]
    longest_s = groups[slowest]["computation_s"]
    if not longest_s:
        return ()
    rows = [
        f"{name} {row['batch_per_device']} samples in {format_human(row['computation_s'], Dimension.TIME)}"
        for name, row in groups.items()
    ]
    idle = [
        f"{name} {1 - row['computation_s'] / longest_s:.0%}"
        for name, row in groups.items()
        if name != slowest and row["computation_s"] < longest_s * (1 - 5e-3)
    ]
    waits = f"; {slowest} computes longest, idle meanwhile: {', '.join(idle)}" if idle else "; they end together"
    return (f"each device computes: {', '.join(rows)}{waits}",)
