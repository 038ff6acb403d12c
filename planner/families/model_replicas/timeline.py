"""A configuration of model replicas as a timeline: what each replica takes for its samples of an iteration, by layer.

The model has seconds of every layer and phase for a sample, of which each layer works on several at a time. Here all
samples of an iteration go through a layer together: the length of a span is what its phase adds to the iteration, its
place is not when any one sample is there. Replicas are asynchronous, so that one of them reads while another computes.
"""

from typing import Any

from planner.families.timeline_drawing import Drawing, draw_input, peak_memory
from planner.models.input import InputTime
from planner.models.model_replicas import EpochTime
from planner.models.replica_configuration import ReplicaConfiguration
from planner.models.ssgd_equations import Strategy
from planner.plan import Prediction
from planner.timeline import Timeline

__all__ = ["timeline"]

_NOTE = (
    "replicas are asynchronous: each layer's spans hold all samples of an iteration together, and other replicas read "
    "and write at other times"
)


def timeline(
    chosen: ReplicaConfiguration,
    found: EpochTime,
    prediction: Prediction,
    names: list[str],
    *,
    read: InputTime,
    strategy: Strategy,
) -> Timeline:
    """Return what a replica and the servers do in one iteration.

    Parameters
    ----------
    found
        Of the samples of one iteration.
    names
        Of the layers.
    """
    drawing, parts = Drawing(), prediction.breakdown_s
    many, batch = chosen.num_replicas > 1, int(prediction.details["global_batch_size"])
    process = f"each of {chosen.num_replicas} replicas" if many else "the replica"
    rows = [f"{process}: {row}" for row in ("disk", "decode", "PCIe", "compute", "exchange")]
    drawing.process(process, rows, count=chosen.num_replicas, member=("replica ", ""))
    servers = f"each of {chosen.num_servers} servers" if chosen.num_servers > 1 else "the server"
    drawing.process(servers, [f"{servers}: links"])
    compute, exchange = rows[-2], rows[-1]
    lag_s = parts["latency"] / 2
    each: dict[str, Any] = {"bytes": found.read_bytes}
    now_s = drawing.chain(
        exchange, 0.0, [("latency", lag_s, "latency"), ("start of the exchange", parts["overhead"], "overhead")]
    )
    sent = drawing.add(f"{servers}: links", "send weights", now_s, now_s + parts["read"], "read", **each)
    got = drawing.add(exchange, "read weights", now_s, now_s + parts["read"], "read", **each)
    drawing.flow(sent, got, "weights", is_stream=True)
    before = len(drawing.spans)
    now_s = _draw_layers(drawing, compute, now_s + parts["read"], found, names, batch)
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
    draw_input(drawing, process, read, strategy, iteration_s - parts["input_stall"], iteration_s)
    drawing.counter(process, "memory of the fullest worker (bytes)", [(0.0, peak_memory(prediction.memory_bytes))])
    drawing.notes.append(_NOTE)
    return drawing.finished()


def _draw_layers(drawing: Drawing, row: str, now_s: float, found: EpochTime, names: list[str], batch: int) -> float:
    """Draw forward, backward and update of all layers, with the messages that each waits for; return the end."""
    layers = list(zip(names, found.layers, strict=True))
    for direction, ordered in (("forward", layers), ("backward", layers[::-1]), ("update", layers)):
        message = "activations" if direction == "forward" else "errors"
        for name, layer in ordered:
            phase, each = getattr(layer, direction), batch / layer.parallelism
            more = {"layer": name, "direction": direction, "threads_and_replicas": layer.parallelism}
            pieces = [
                (f"receive {message} for {name}", phase.receive_s * each, f"receive_{message}"),
                (f"{direction} {name}", phase.compute_s * each, direction),
            ]
            now_s = drawing.chain(row, now_s, pieces, **more)
    return now_s
