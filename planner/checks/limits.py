"""What a configuration uses, read from its block alone, and the verdicts of all constraints on that."""

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any

from planner.checks.report import Finding
from planner.cluster import MachineGroup
from planner.constraints import Usage, memory_limit_bytes, needed_s, verdicts
from planner.decisions import decided_by
from planner.families import FAMILIES
from planner.plan import Configuration, Prediction
from planner.problem import Problem

__all__ = ["groups_of", "limits_kept", "usage_of"]


def groups_of(problem: Problem) -> dict[str, MachineGroup]:
    """Return the machine groups by name."""
    return {group.name: group for group in problem.cluster.machine_groups}


def usage_of(problem: Problem, family: str, configuration: Configuration, found: Prediction) -> Usage:
    """Return what a configuration uses; ``found`` is what it costs."""
    block = configuration.to_document()
    machines: dict[str, int] = {}
    devices: dict[str, int] = {}
    for row in FAMILIES[family].machines(problem, configuration):
        if row.role == "worker":
            machines[row.group] = machines.get(row.group, 0) + row.num_machines
            devices[row.group] = devices.get(row.group, 0) + row.num_devices
        else:
            shared = machines.get(row.group, 0) if row.is_shared else 0
            machines[row.group] = machines.get(row.group, 0) + max(0, row.num_machines - shared)
    # The cost model states the device that is fullest for what it may hold: no other one's limit is broken before.
    total, limit = found.memory_bytes["total"], found.memory_bytes["limit"]
    groups = groups_of(problem)
    fullest = [name for name in devices if memory_limit_bytes(problem, groups[name]) == limit]
    return Usage(
        family=family,
        machines=machines,
        devices=devices,
        memory_bytes=dict.fromkeys(fullest, total),
        decisions={
            "num_devices": sum(devices.values()),
            "num_machines": sum(machines.values()),
            "device": _only([groups[name].device.name for name in devices]),
            **_DECIDED[family](problem, block),
        },
        global_batch_size=int(block.get("global_batch_size") or found.details["global_batch_size"]),
        staleness=_staleness_of(family, block),
        needed_s=needed_s(found),
    )


def _staleness_of(family: str, block: Mapping[str, Any]) -> float:
    """Return by how many iterations a gradient may lag."""
    if block.get("synchronisation") == "asp" or (family == "model_replicas" and block["num_replicas"] > 1):
        return inf
    return float(block.get("max_staleness") or (block.get("local_steps") or 1) - 1)


def _all_reduce(problem: Problem, block: Mapping[str, Any]) -> dict[str, Any]:
    rows = list((block.get("groups") or {}).values())
    used = list(dict.fromkeys(one["algorithm"] for one in block["fusion_groups"]))
    each = [row["devices_per_machine"] for row in rows] or [block["devices_per_machine"]]
    steps = [row.get("gradient_accumulation_steps") or 1 for row in rows] or [block["gradient_accumulation_steps"]]
    return {
        "devices_per_machine": _only(each),
        "gradient_accumulation_steps": max(steps),
        # One device sends nothing, and a measured curve knows no algorithm.
        "algorithm": problem.fixed.get("algorithm") if used in ([], ["measured"]) else _only(used),
        "batch_shares": "equal" if len({row["batch_per_device"] for row in rows}) <= 1 else "unequal",
    }


def _parameter_server(_: Problem, block: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{key: block[key] for key in ("num_parameter_servers", "servers", "co_located")},
        "synchronisation": block.get("synchronisation", "bsp"),
        "batch_shares": "equal" if len(set(block["batch_shares"].values())) == 1 else "unequal",
    }


def _model_replicas(_: Problem, block: Mapping[str, Any]) -> dict[str, Any]:
    return {key: block[key] for key in ("num_parameter_servers", "num_replicas", "num_workers_per_replica")}


def _pipeline(_: Problem, block: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "num_stages": len(block["stages"]) // block["chunks_per_device"],
        **{key: block[key] for key in ("num_microbatches", "schedule")},
    }


def _hybrid(_: Problem, block: Mapping[str, Any]) -> dict[str, Any]:
    numbers = [one["num_microbatches"] for one in block.get("replicas") or ()]
    numbers = numbers or [block["global_batch_size"] // (block["data"] * block["microbatch"])]
    return {**decided_by("hybrid", block), "num_microbatches": _only(numbers)}


# What a configuration's block says about each key of `fix` that its family alone decides.
_DECIDED: Mapping[str, Callable[[Problem, Mapping[str, Any]], dict[str, Any]]] = {
    "all_reduce": _all_reduce,
    "parameter_server": _parameter_server,
    "model_replicas": _model_replicas,
    "pipeline": _pipeline,
    "hybrid": _hybrid,
}


def _only(values: list[Any]) -> Any:
    """Return the value where there is only one, else each once."""
    each = list(dict.fromkeys(values))
    return each[0] if len(each) == 1 else each


def limits_kept(problem: Problem, usage: Usage) -> Iterator[Finding]:
    """Yield whether every limit of the cluster and of the user is kept."""
    for one in verdicts(problem, usage):
        yield Finding(name=one.name, is_ok=one.is_kept, text=one.words)
