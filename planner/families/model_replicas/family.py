"""The family ``model_replicas``: what a given configuration of asynchronous replicas costs, and what an answer shows.

The timeline: the model has seconds of every layer and phase for a sample, of which each layer works on several at a
time. Here all samples of an iteration go through a layer together: the length of a span is what its phase adds to the
iteration, its place is not when any one sample is there. Replicas are asynchronous, so that one of them reads while
another computes.
"""

from collections.abc import Mapping
from typing import Any

from planner.cluster import Cluster
from planner.families.model_replicas.configuration import (
    NAME,
    ReplicaChoice,
    configuration_of,
    left_out,
    machines,
    stages_of,
)
from planner.families.model_replicas.cost import NOT_MODELLED, explain, input_of, iteration, model_of, predict
from planner.families.timeline_drawing import Drawing, draw_input, peak_memory
from planner.models.input import Strategy
from planner.plan import Plan, Prediction
from planner.problem import Problem
from planner.search import Search
from planner.sections import Cell, FamilyView, Placement, Role
from planner.timeline import Timeline, repeated
from planner.words import many

__all__ = [
    "FITTED",
    "NAME",
    "NOT_MODELLED",
    "WORDS",
    "bound",
    "configuration_of",
    "domain",
    "explain",
    "left_out",
    "machines",
    "predict",
    "search",
    "timeline",
    "view",
]

WORDS = "model replicas with parameter servers"  # how it trains
FITTED = ("utilisation", "bandwidth_efficiency", "overhead")
_NOTE = (
    "replicas are asynchronous: each layer's spans hold all samples of an iteration together, and other replicas read "
    "and write at other times"
)


def timeline(problem: Problem, configuration: ReplicaChoice, *, num_iterations: int = 1) -> Timeline:
    """Return what a replica and the servers do in some iterations."""
    chosen, prediction = configuration.configuration, predict(problem, configuration)
    epoch = iteration(problem, model_of(problem), configuration)
    drawing, parts, batch = Drawing(), prediction.breakdown_s, int(prediction.details["global_batch_size"])
    process = f"each of {chosen.num_replicas} replicas" if chosen.num_replicas > 1 else "the replica"
    rows = [f"{process}: {row}" for row in ("disk", "decode", "PCIe", "compute", "exchange")]
    drawing.process(process, rows, count=chosen.num_replicas, member=("replica ", ""))
    servers = f"each of {chosen.num_servers} servers" if chosen.num_servers > 1 else "the server"
    drawing.process(servers, [f"{servers}: links"])
    compute, exchange = rows[-2], rows[-1]
    lag_s = parts["latency"] / 2
    each: dict[str, Any] = {"bytes": epoch.read_bytes}
    now_s = drawing.chain(
        exchange, 0.0, [("latency", lag_s, "latency"), ("start of the exchange", parts["overhead"], "overhead")]
    )
    sent = drawing.add(f"{servers}: links", "send weights", now_s, now_s + parts["read"], "read", **each)
    got = drawing.add(exchange, "read weights", now_s, now_s + parts["read"], "read", **each)
    drawing.flow(sent, got, "weights", is_stream=True)
    before, now_s = len(drawing.spans), now_s + parts["read"]
    layers = list(zip((stage.name for stage in stages_of(problem)), epoch.layers, strict=True))
    for direction, ordered in (("forward", layers), ("backward", layers[::-1]), ("update", layers)):
        message = "activations" if direction == "forward" else "errors"
        for name, layer in ordered:
            phase, passes = getattr(layer, direction), batch / layer.parallelism
            pieces = [
                (f"receive {message} for {name}", phase.receive_s * passes, f"receive_{message}"),
                (f"{direction} {name}", phase.compute_s * passes, direction),
            ]
            more = {"layer": name, "direction": direction, "threads_and_replicas": layer.parallelism}
            now_s = drawing.chain(compute, now_s, pieces, **more)
    drawing.flow(got, before if len(drawing.spans) > before else None, "weights")
    last = len(drawing.spans) - 1 if len(drawing.spans) > before else None
    now_s = drawing.chain(exchange, now_s, [("latency", lag_s, "latency")])
    wrote = drawing.add(exchange, "write gradients", now_s, now_s + parts["write"], "write", **each)
    came = drawing.add(f"{servers}: links", "receive gradients", now_s, now_s + parts["write"], "write", **each)
    drawing.flow(last, wrote, "gradients")
    drawing.flow(wrote, came, "gradients", is_stream=True)
    now_s = drawing.chain(compute, now_s + parts["write"], [("optimiser", parts["optimizer"], "update")])
    drawing.chain(compute, now_s, [("wait for input", parts["input_stall"], "wait")])
    iteration_s = prediction.iteration_time_s
    read = input_of(problem, chosen.num_replicas * chosen.num_workers, batch)
    strategy = Strategy(problem.calibration.strategy)
    draw_input(drawing, process, read, strategy, iteration_s - parts["input_stall"], iteration_s)
    drawing.counter(process, "memory of the fullest worker (bytes)", [(0.0, peak_memory(prediction.memory_bytes))])
    drawing.notes.append(_NOTE)
    return repeated(drawing.finished(), num_iterations, iteration_s)


def view(cluster: Cluster, block: Mapping[str, object], prediction: Prediction) -> FamilyView:
    """Return what a configuration's document shows."""
    del prediction
    return FamilyView(placement=lambda: _placement(cluster, block))


def _placement(cluster: Cluster, block: Mapping[str, Any]) -> Placement:
    """Return servers first, then the workers of one replica after the other; one device a machine."""
    servers, replicas, workers = (
        block[name] for name in ("num_parameter_servers", "num_replicas", "num_workers_per_replica")
    )
    cells = [Cell(label=f"PS {index}", words=f"server {index}", colour=0) for index in range(servers)]
    cells += [
        Cell(label=f"R{replica} W{worker}", words=f"replica {replica}, worker {worker}", colour=1 + replica % 7)
        for replica in range(replicas)
        for worker in range(workers)
    ]
    splits = f"a worker of a replica, which splits the layers over {many(workers, 'worker')}"
    roles = [Role(label="PS", words="a parameter server", colour=0), Role(label="R W", words=splits, colour=1)]
    name = next((group.name for group in cluster.machine_groups if group.count >= len(cells)), "")
    return Placement(devices={name: cells}, roles=roles)


# --- Its search, imported when it is asked for: what costs a given plan needs no solver


def search(problem: Problem, search: Search) -> Plan:
    """Return the best plan of the family; see :class:`planner.families.Family`."""
    from planner.families.model_replicas.search import plan  # noqa: PLC0415

    return plan(problem, search)


def bound(problem: Problem) -> float:
    """Return what no plan beats, whatever is searched."""
    from planner.families.model_replicas import settings  # noqa: PLC0415

    return settings.least_objective(problem)


def domain() -> str:
    """Return what the search covers, where ``predict`` accepts more."""
    return "each layer's segments are stripes of equal size"
