"""What binds a configuration of parameter servers, in words."""

from planner.families.parameter_server.configuration import ParameterServerConfiguration
from planner.families.parameter_server.cost import ParameterServerCost
from planner.plan import Prediction
from planner.problem import Problem
from planner.units import Dimension, format_human

__all__ = ["explain"]


def explain(problem: Problem, configuration: ParameterServerConfiguration, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds: computation, the servers' links, a worker's link, stragglers or input."""
    cost, parts = ParameterServerCost(problem, configuration), prediction.breakdown_s
    exchange = ("exposed_push", "pull", "latency", "overhead", "queueing", "compression")
    shares = {
        "computation": parts["forward"] + parts["backward"] + parts["update"],
        "communication": sum(parts.get(name, 0.0) for name in exchange),
        "stragglers": parts["stragglers"],
        "input": parts["input_stall"],
    }
    slowest = max(shares, key=shares.__getitem__)
    lines = [f"{slowest} binds: {shares[slowest] / prediction.iteration_time_s:.0%} of an iteration"]
    if slowest == "communication":
        load_s, own_s = prediction.communication_s["push"], float(_own_bytes(cost)) / min(cost.links.worker_bytes_per_s)
        where, seconds = ("a server's link", load_s) if load_s >= own_s else ("a worker's own link", own_s)
        lines.append(f"{where} carries {format_human(seconds, Dimension.TIME)} of pushes")
    memory = prediction.memory_bytes
    if memory["total"] > memory["limit"]:
        total, limit = (format_human(memory[key], Dimension.DATA) for key in ("total", "limit"))
        lines.append(f"it does not fit: a device would hold {total}, and has {limit}")
    return tuple(lines)


def _own_bytes(cost: ParameterServerCost) -> float:
    """Return the most that one worker pushes over its own link."""
    pushed = cost.pushed_from_bytes
    return max(float(pushed.sum() - (0.0 if home is None else pushed[home])) for home in cost.links.homes)
