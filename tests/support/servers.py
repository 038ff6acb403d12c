"""Questions for parameter servers: workers of two types, and hosts that may serve."""

from typing import Any

import planner
from planner.plan import Plan

__all__ = ["MIXED", "planned", "question"]

MIXED = [
    {"name": "fast", "count": 2, "device": "v100-sxm2-16g", "network": "10 Gbit/s", "latency": "20 us"},
    {"name": "slow", "count": 2, "device": "quadro-rtx-4000", "network": "10 Gbit/s", "latency": "20 us"},
    {"name": "hosts", "count": 3, "device": "dual-xeon-gold-6126", "network": "25 Gbit/s", "latency": "20 us"},
]


def question(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "dnn": {"zoo": "alexnet", "global_batch": 256},
        "cluster": {"machines": MIXED},
        "calibration": {"utilisation": 0.5},
        "families": ["parameter_server"],
    }
    return {**base, **changes}


def planned(**changes: Any) -> Plan:
    return planner.plan(planner.load(question(**changes)))
