"""What binds an all-reduce configuration, in words."""

from collections.abc import Mapping

import numpy as np

from planner.families.all_reduce.cost import AllReduceConfiguration, AllReduceCost
from planner.plan import Prediction
from planner.units import Dimension, format_human

__all__ = ["binding", "explain"]


def explain(cost: AllReduceCost, configuration: AllReduceConfiguration, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds, and whether it fits."""
    lines = [binding(cost, configuration, prediction)]
    if prediction.memory_bytes["total"] > cost.memory_limit_bytes:
        total, limit = (format_human(prediction.memory_bytes[key], Dimension.DATA) for key in ("total", "limit"))
        lines.append(f"it does not fit: a device would hold {total}, and may hold {limit}")
    return tuple(lines)


def binding(cost: AllReduceCost, configuration: AllReduceConfiguration, prediction: Prediction) -> str:
    """Return what an iteration's time is spent on most: compute, exposed communication, small messages, or input."""
    breakdown = prediction.breakdown_s
    total_s = prediction.iteration_time_s
    compute_s = breakdown["forward"] + breakdown["backward"] + breakdown["update"]
    exposed_s = sum(seconds for name, seconds in breakdown.items() if name.startswith("exposed_"))
    if breakdown["input_stall"] > 0:
        stages: Mapping[str, float] = prediction.details["input_s"]
        slowest = max(stages, key=stages.__getitem__)
        wait = format_human(breakdown["input_stall"], Dimension.TIME)
        return f"input binds: {slowest} takes {format_human(stages[slowest], Dimension.TIME)}, the devices wait {wait}"
    shares = f"{compute_s / total_s:.0%} computation, {exposed_s / total_s:.0%} exposed communication"
    if exposed_s <= compute_s:
        return f"computation binds: {shares}"
    startup_s = _startup_s(cost, configuration)
    if startup_s > prediction.communication_s["all_reduce"] / 2:
        return f"the latency of small messages binds: {shares}; {startup_s:.3g} s of start-ups"
    return f"exposed communication binds, by its bandwidth: {shares}"


def _startup_s(cost: AllReduceCost, configuration: AllReduceConfiguration) -> float:
    """Return the seconds that the transfers would take if they carried next to nothing."""
    costs = cost.transfer_costs(cost.setting_of(configuration))
    return sum(float(costs[group.algorithm](np.array([1.0]))[0]) for group in configuration.fusion_groups)
