"""Seconds of one all-reduce by the closed forms, one number at a time."""

from collections.abc import Sequence
from math import ceil, log2

from planner.problem import Problem
from planner.routes import routes_of
from tests.referee.second_physics.facts import groups_of

__all__ = ["all_reduce_s"]


def all_reduce_s(
    problem: Problem,
    algorithm: str,
    size_bytes: float,
    *,
    machines: Sequence[str],
    num_machines: int,
    devices_per_machine: int,
) -> float:
    """Return the seconds of one all-reduce of ``size_bytes`` on equal devices, its start-up and negotiation included.

    ``machines`` names the groups. Forms: ring and two levels of T. Liu et al., WWW '22, eq. 7, double binary tree of
    P. Sanders et al., 2009, with a chain inside each machine; switches that add up, B. Klenk et al., ISCA 2020.
    """
    n, g, fitted = num_machines, devices_per_machine, problem.calibration
    if n * g == 1 or size_bytes == 0:
        return 0.0
    groups = [groups_of(problem)[name] for name in machines]
    network, network_latency_s = float("inf"), 0.0
    if n > 1:
        routes = routes_of(problem.cluster.of_groups(set(machines)))
        link = routes.ring(n)
        rate = routes.tree_bytes_per_s(n) if algorithm == "tree" else link.bandwidth_bytes_per_s
        network = min(fitted.links.network_bytes_per_s(rate, group) for group in groups)
        network_latency_s = link.latency_s
    inside, inside_latency_s = float("inf"), 0.0
    for group in groups:
        if group.inside is not None:
            inside = min(inside, group.inside.bandwidth_bytes_per_s * fitted.links.share_inside(group))
            inside_latency_s = max(inside_latency_s, group.inside.latency_s)
    peak = groups[0].device.peak_flop_per_s.get("fp32")
    number_bytes = 2 if problem.training.dtype in ("fp16", "bf16") else 4
    adds = float("inf") if peak is None or not fitted.aggregation else peak * number_bytes
    overhead_s = fitted.overhead_s + fitted.negotiate_s
    slowest = min(network, inside) if g > 1 else network
    longest_s = max(network_latency_s, inside_latency_s) if g > 1 else network_latency_s
    if algorithm == "ring":
        return overhead_s + _ring_s(n * g, size_bytes, slowest, longest_s, adds)
    if algorithm == "tree":
        nodes = n if n > 1 else g
        chain_s = 2 * (g - 1) * inside_latency_s if n > 1 else 0.0
        sending_s = 2 * size_bytes / slowest + size_bytes / adds
        return overhead_s + chain_s + 2 * ceil(log2(nodes)) * longest_s + sending_s
    if algorithm == "in_network":
        up_and_down_s = (size_bytes / inside * (g + 1) / g + 2 * inside_latency_s if g > 1 else 0.0) + (
            size_bytes / network + 2 * network_latency_s if n > 1 else 0.0
        )
        return overhead_s + up_and_down_s
    within_s = _ring_s(g, size_bytes, inside, inside_latency_s, adds)
    return overhead_s + within_s + _ring_s(n, size_bytes, network, network_latency_s, adds * g)


def _ring_s(number: int, size_bytes: float, bytes_per_s: float, latency_s: float, adds_bytes_per_s: float) -> float:
    """Return a ring's reduce-scatter and all-gather, without start-up; nothing for one member."""
    if number == 1:
        return 0.0
    share = (number - 1) / number
    return 2 * (number - 1) * latency_s + 2 * share * size_bytes / bytes_per_s + share * size_bytes / adds_bytes_per_s
