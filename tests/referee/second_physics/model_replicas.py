"""Model replicas: the constraints C1 to C4 of the Adam model, its sum over the layers, and the memory of workers."""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.checks import Finding
from planner.plan import Prediction
from planner.problem import Problem
from tests.referee.second_physics.facts import Facts, holds
from tests.referee.second_physics.replica_memory import fullest_bytes

__all__ = ["facts_of"]


def facts_of(problem: Problem, block: Mapping[str, Any], found: Prediction) -> Facts:
    """Return what a plan of replicas uses, by its block alone; ``found`` gives a sample's seconds in each layer."""
    group = _group(problem)
    servers, replicas = block["num_parameter_servers"], block["num_replicas"]
    workers = block["num_workers_per_replica"]
    findings = tuple(_segments(problem, block, found))
    is_sound = all(one.is_ok for one in findings)
    return Facts(
        family="model_replicas",
        machines={group: servers + replicas * workers},
        devices={group: replicas * workers},
        memory_bytes={group: fullest_bytes(problem, block)} if is_sound else {},
        decisions={
            "num_parameter_servers": servers,
            "num_replicas": replicas,
            "num_workers_per_replica": workers,
            "num_machines": servers + replicas * workers,
            "num_devices": replicas * workers,
            "device": next(one.device.name for one in problem.cluster.machine_groups if one.name == group),
        },
        global_batch_size=_batch(problem, block),
        staleness=0.0 if replicas == 1 else float("inf"),
        iteration_s=_iteration_s(problem, block, found),
        findings=findings,
    )


def _group(problem: Problem) -> str:
    """Return the only group of machines, or the one of the pinned device."""
    pinned = problem.fixed.get("device")
    names = [group.name for group in problem.cluster.machine_groups if pinned in (None, group.device.name)]
    return names[0]


def _batch(problem: Problem, block: Mapping[str, Any]) -> int:
    """Return the samples of an iteration: the fixed batch if replicas share it, or what they train between reads."""
    replicas, samples = int(block["num_replicas"]), int(block["samples_per_read"])
    fixed = problem.training.fixed_batch_size
    return fixed if fixed is not None and samples == fixed // replicas else samples * replicas


def _iteration_s(problem: Problem, block: Mapping[str, Any], found: Prediction) -> float | None:
    """Return reading, writing, the sum over layers of phases over Q(l) = H R N_mr, and the wait for input."""
    rows = found.details.get("layers", [])
    if len(rows) != len(block["layers"]):
        return None
    batch, seconds = _batch(problem, block), 0.0
    for layer, row in zip(block["layers"], rows, strict=True):
        parallelism = layer["threads"] * layer["replicas"] * block["num_replicas"]
        seconds += (row["forward_s"] + row["backward_s"] + row["update_s"]) / parallelism * batch
    return seconds + sum(
        found.breakdown_s[name] for name in ("read", "write", "latency", "overhead", "optimizer", "input_stall")
    )


def _segments(problem: Problem, block: Mapping[str, Any], found: Prediction) -> Iterator[Finding]:
    """Yield whether every layer's segments have workers of their own, and no more threads than cores."""
    workers, cores = block["num_workers_per_replica"], problem.calibration.num_cores
    number = len(found.details.get("layers", []))
    yield holds(
        "layers",
        len(block["layers"]) == number,
        f"all {number} of the chain",
        f"{len(block['layers'])} are given; the chain has {number}",
    )
    for index, layer in enumerate(block["layers"]):
        rows = layer["workers"]
        placed = [worker for row in rows for worker in row]
        faults = []
        if not 1 <= layer["threads"] <= cores:
            faults.append(f"C2: {layer['threads']} threads on {cores} cores")
        if len(placed) != len(set(placed)) or any(not 0 <= worker < workers for worker in placed):
            faults.append(f"C3: its segments are not on different ones of {workers} workers")
        if len(rows) != layer["replicas"] or any(len(row) != layer["partitions"] for row in rows):
            faults.append(f"C4: {layer['partitions']} partitions x {layer['replicas']} replicas are not what is mapped")
        if faults:
            yield Finding(name=f"layers.{index}", is_ok=False, text="; ".join(faults))
