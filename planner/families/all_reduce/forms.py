"""Closed forms of all-reduces over machines with devices inside, as the family ``all_reduce`` counts them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Device
from planner.cost import Floats
from planner.models.collectives import (
    Affines,
    double_binary_tree_all_reduces,
    ring_all_reduces,
    two_level_all_reduces,
)
from planner.models.memory import Precision
from planner.problem import Problem

__all__ = ["Rings", "closed_forms", "reduce_bytes_per_s"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rings:
    """Many settings at once: arrays of one shape, or numbers that hold for all.

    ``most_devices`` of any machine are chained inside it. ``is_even``: all machines have equally many, which two levels
    need.
    """

    num_machines: Ints
    num_devices: Ints
    most_devices: Ints
    network_bytes_per_s: Floats
    network_latency_s: Floats
    inside_bytes_per_s: Floats | float
    inside_latency_s: Floats | float
    reduce_bytes_per_s: float
    is_even: bool = True


def closed_forms(problem: Problem, rings: Rings) -> dict[str, Affines]:
    """Return the costs of the allowed algorithms, negotiation included; none where none suits the machines."""
    fitted = problem.calibration
    machines, devices = rings.num_machines, rings.most_devices
    overhead_s = fitted.overhead_s + fitted.negotiate_s
    has_inside = devices > 1
    inside_bytes_per_s = np.where(has_inside, rings.inside_bytes_per_s, float("inf"))
    flat: dict[str, Any] = {
        "num_devices": rings.num_devices,
        "bandwidth_bytes_per_s": np.minimum(rings.network_bytes_per_s, inside_bytes_per_s),
        "latency_s": np.maximum(rings.network_latency_s, np.where(has_inside, rings.inside_latency_s, 0.0)),
        "overhead_s": overhead_s,
        "reduce_bytes_per_s": rings.reduce_bytes_per_s,
    }
    forms = {"ring": ring_all_reduces(**flat)}
    # Trees run between machines, fed by a chain inside each, as NCCL's do; in one machine, between its devices.
    has_network = machines > 1
    trees = double_binary_tree_all_reduces(**{**flat, "num_devices": np.where(has_network, machines, devices)})
    chain_s = np.where(has_network, 2 * (devices - 1) * rings.inside_latency_s, 0.0)
    forms["tree"] = Affines(startup_s=trees.startup_s + chain_s, per_byte_s=trees.per_byte_s)
    if rings.is_even:
        forms["two_level"] = two_level_all_reduces(
            num_machines=machines,
            devices_per_machine=devices,
            inside_bytes_per_s=rings.inside_bytes_per_s,
            network_bytes_per_s=rings.network_bytes_per_s,
            inside_latency_s=rings.inside_latency_s,
            network_latency_s=rings.network_latency_s,
            overhead_s=overhead_s,
            reduce_bytes_per_s=rings.reduce_bytes_per_s,
        )
    pinned = problem.fixed.get("algorithm")
    allowed = [pinned] if pinned else fitted.algorithms
    return {name: forms[name] for name in allowed if name in forms}


def reduce_bytes_per_s(problem: Problem, device: Device, precision: Precision) -> float:
    """Return the bytes of gradient that a device adds up in a second (eq. 7 of the OSF model)."""
    peak = device.peak_flop_per_s.get("fp32")
    if peak is None or not problem.calibration.aggregation:
        return float("inf")
    return peak * precision.gradient_bytes
