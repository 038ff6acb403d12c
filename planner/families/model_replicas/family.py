"""The family ``model_replicas``: what a given configuration of asynchronous replicas costs (Adam).

A worker is a machine of one device whose cores run the threads. At each exchange a replica writes its gradients to the
servers, and reads the weights; both are limited by the replicas' and the servers' links (``serialised``), take equally
long, and follow one another, as the weights of a synchronous replica must wait for its gradients. Of several replicas,
which are asynchronous, writes could overlap reads and computation: for them this is conservative. With ``variant:
printed`` reads are charged as the paper prints them, and writes cost nothing. The model is that of
:mod:`planner.models.replicas`, memory that of :mod:`planner.models.replica_memory`; the question's numbers in
them come from :mod:`planner.families.model_replicas.cost`.
"""

from collections.abc import Mapping
from typing import Any

from planner.cluster import Cluster
from planner.errors import Fault, SpecError
from planner.families.model_replicas.cost import (
    NAME,
    ReplicaChoice,
    batch_of,
    exchange_parts_s,
    fastest_threads,
    group_of,
    input_of,
    machines,
    memory_limit_bytes,
    memory_of,
    model_of,
    share_of,
    stages_of,
    staleness_of,
)
from planner.families.parsing import check_inner_links, wrong
from planner.families.timeline_drawing import Drawing, draw_input, peak_memory
from planner.models.input import InputTime, stall_s
from planner.models.replica_segments import LayerChoice, Limits, ReplicaConfiguration, broken_constraints
from planner.models.replicas import EpochTime, Reading, ReplicaModel, Training
from planner.models.ssgd import Strategy
from planner.plan import Prediction
from planner.problem import Problem
from planner.sections import Cell, FamilyView, Placement, Role
from planner.timeline import Timeline, repeated
from planner.units import Dimension, format_human
from planner.words import many

__all__ = [
    "FITTED",
    "NAME",
    "NOT_MODELLED",
    "WORDS",
    "configuration_of",
    "explain",
    "left_out",
    "machines",
    "predict",
    "predicted",
    "timeline",
    "view",
]


# --- A configuration of model replicas as a timeline: what each replica takes for its samples of an iteration, by layer
# The model has seconds of every layer and phase for a sample, of which each layer works on several at a time. Here all
# samples of an iteration go through a layer together: the length of a span is what its phase adds to the iteration, its
# place is not when any one sample is there. Replicas are asynchronous, so that one of them reads while another
# computes.

_NOTE = (
    "replicas are asynchronous: each layer's spans hold all samples of an iteration together, and other replicas read "
    "and write at other times"
)


def iteration_timeline(
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


NOT_MODELLED = (
    "convergence under stale weights: more replicas may need more epochs",
    "the servers' own work",
    "the memory of the servers' hosts: parameters and the optimiser's state, once over all servers",
    "workspaces and the framework's own memory, beyond calibration.memory_reserve",
    "cache effects, and threads that slow each other down, unless calibration names measured ones",
)
FITTED = ("utilisation", "bandwidth_efficiency", "overhead")


def predict(problem: Problem, configuration: ReplicaChoice) -> Prediction:
    """Return what a configuration costs; an iteration is the fixed batch, or what replicas train between two reads.

    ``details.staleness``: how many of the other replicas' updates are missing from the weights that a replica computes
    on, counted in its own read intervals.
    """
    return predicted(problem, model_of(problem), configuration)


def predicted(problem: Problem, model: ReplicaModel, configuration: ReplicaChoice) -> Prediction:
    """Return the same by the model of the question, which a search has made already."""
    chosen, share = configuration.configuration, configuration.samples_per_read
    batch = batch_of(problem, chosen.num_replicas, share)
    num_workers = chosen.num_replicas * chosen.num_workers
    found = _iteration(problem, model, configuration, batch)
    parts = _parts_s(problem, found, num_workers, batch)
    iteration_s = sum(parts.values())
    one = ReplicaChoice(configuration=_alone(chosen), samples_per_read=share)
    alone_s = _computation_s(_iteration(problem, model, one, batch).parts_s)
    exchange_s = parts["receive_activations"] + parts["receive_errors"]
    training = problem.training
    epoch_s = None if training.dataset_samples is None else iteration_s * training.dataset_samples / batch
    return Prediction(
        iteration_time_s=iteration_s,
        epoch_time_s=epoch_s,
        training_time_s=None if epoch_s is None or training.epochs is None else epoch_s * training.epochs,
        breakdown_s=parts,
        communication_s={"read": parts["read"], "write": parts["write"], "activations_and_errors": exchange_s},
        scaling_factor=alone_s / (num_workers * iteration_s),
        communication_to_computation=(parts["read"] + parts["write"] + exchange_s) / _computation_s(parts),
        memory_bytes=memory_of(problem, model)
        .fullest(chosen.layers, chosen.num_workers)
        .terms_bytes(1, limit_bytes=memory_limit_bytes(problem)),
        details={
            "batch_per_device": share,
            "global_batch_size": batch,
            "num_workers": num_workers,
            "read_bytes": found.read_bytes * (training.dataset_samples or batch) / batch,
            "staleness": staleness_of(chosen.num_replicas),
            "layers": [
                {"forward_s": one.forward.total_s, "backward_s": one.backward.total_s, "update_s": one.update.total_s}
                for one in found.layers
            ],
        },
    )


def _parts_s(problem: Problem, found: EpochTime, num_workers: int, batch: int) -> dict[str, float]:
    """Return the parts of an iteration: those of the model, and what every family pays beside them."""
    parts = dict(found.parts_s)
    parts["write"] = 0.0 if problem.variant == "printed" else parts["read"]
    parts |= exchange_parts_s(problem)
    read = input_of(problem, num_workers, batch)
    parts["input_stall"] = stall_s(read, sum(parts.values()), Strategy(problem.calibration.strategy))
    return parts


def _computation_s(parts_s: Mapping[str, float]) -> float:
    """Return the seconds of an iteration that are computation."""
    return parts_s["forward"] + parts_s["backward"] + parts_s["update"]


def _iteration(problem: Problem, model: ReplicaModel, configuration: ReplicaChoice, batch: int) -> EpochTime:
    """Return what so many samples take."""
    training = Training(
        num_samples=batch,
        samples_per_read=configuration.samples_per_read,
        reading=Reading.PRINTED if problem.variant == "printed" else Reading.SERIALISED,
    )
    return model.epoch(configuration.configuration, training)


def _alone(chosen: ReplicaConfiguration) -> ReplicaConfiguration:
    """Return one worker with the same threads."""
    layers = tuple(LayerChoice.spread(1, num_threads=layer.num_threads) for layer in chosen.layers)
    return ReplicaConfiguration(num_servers=1, num_replicas=1, num_workers=1, layers=layers)


def explain(problem: Problem, configuration: ReplicaChoice, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds: weights and gradients, messages between workers, computation or input; and whether it fits."""
    del problem, configuration
    parts = prediction.breakdown_s
    shares = {
        "reading weights and writing gradients": parts["read"] + parts["write"] + parts["latency"] + parts["overhead"],
        "messages between workers": parts["receive_activations"] + parts["receive_errors"],
        "computation": parts["forward"] + parts["backward"] + parts["update"] + parts["optimizer"],
        "input": parts["input_stall"],
    }
    slowest = max(shares, key=shares.__getitem__)
    lines = [f"{slowest} binds: {shares[slowest] / prediction.iteration_time_s:.0%} of the time"]
    memory = prediction.memory_bytes
    if memory["total"] > memory["limit"]:
        total, limit = (format_human(memory[key], Dimension.DATA) for key in ("total", "limit"))
        lines.append(f"it does not fit: a worker would hold {total}, and may hold {limit}")
    return tuple(lines)


def timeline(problem: Problem, configuration: ReplicaChoice, *, num_iterations: int = 1) -> Timeline:
    """Return what a replica and the servers do in some iterations."""
    chosen = configuration.configuration
    prediction = predict(problem, configuration)
    batch = prediction.details["global_batch_size"]
    drawn = iteration_timeline(
        chosen,
        _iteration(problem, model_of(problem), configuration, batch),
        prediction,
        [stage.name for stage in stages_of(problem)],
        read=input_of(problem, chosen.num_replicas * chosen.num_workers, batch),
        strategy=Strategy(problem.calibration.strategy),
    )
    return repeated(drawn, num_iterations, prediction.iteration_time_s)


# -- a given configuration -------------------------------------------------------------------------------------------


def configuration_of(problem: Problem, given: Mapping[str, Any]) -> ReplicaChoice:
    """Return the configuration that a spec's block means; raise SpecError with every constraint that it breaks."""
    check_inner_links(problem, NAME)
    stages, group = stages_of(problem), group_of(problem)
    servers, replicas, workers = (
        given[key] for key in ("num_parameter_servers", "num_replicas", "num_workers_per_replica")
    )
    if (used := servers + replicas * workers) > group.count:  # at once: layers are spread over that many workers
        text = (
            f"C1: {servers} servers + {replicas} replicas x {workers} workers = {used} machines; there "
            f"are {group.count}."
        )
        raise wrong(NAME, "num_replicas", replicas, text)
    layers = given["layers"] or [{}] * len(stages)
    if len(layers) != len(stages):
        names = ", ".join(stage.name for stage in stages)
        raise wrong(
            NAME, "layers", len(layers), f"{len(layers)} layers are given; the network has {len(stages)}: {names}."
        )
    chosen = ReplicaConfiguration(
        num_servers=given["num_parameter_servers"],
        num_replicas=given["num_replicas"],
        num_workers=workers,
        layers=tuple(_layer(layer, workers, fastest_threads(problem)) for layer in layers),
    )
    limits = Limits(num_machines=group.count, num_cores=problem.calibration.num_cores)
    if faults := broken_constraints(chosen, limits, stages):
        raise SpecError.of(
            Fault(field=f"configuration.{NAME}", problem=fault, mend="Mend these numbers.") for fault in faults
        )
    share = given["samples_per_read"] or problem.training.batch_per_device or share_of(problem, replicas)
    _check_batch(problem, replicas, share)
    return ReplicaChoice(configuration=chosen, samples_per_read=share)


def left_out(problem: Problem, given: Mapping[str, Any], configuration: ReplicaChoice) -> tuple[str, ...]:
    """Return the threads of layers that do not name theirs."""
    number = fastest_threads(problem)
    if number == 1 or all(one["threads"] is not None for one in given["layers"] or [{"threads": None}]):
        return ()
    return (f"threads: {number} in every layer that names none, which are fastest",)


def _check_batch(problem: Problem, num_replicas: int, samples_per_read: int) -> None:
    """Refuse replicas that train another batch than the question's, or a larger one than it allows."""
    training, batch = problem.training, batch_of(problem, num_replicas, samples_per_read)
    wanted, most = training.global_batch_size, training.max_global_batch_size
    if (wanted is not None and batch != wanted) or (most is not None and batch > most):
        asked = f"at most {most}" if wanted is None else f"{wanted}"
        text = f"{num_replicas} replicas x {samples_per_read} samples make a batch of {batch}; dnn asks for {asked}."
        raise wrong(NAME, "samples_per_read", samples_per_read, text)


def _layer(given: Mapping[str, Any], num_workers: int, most_threads: int) -> LayerChoice:
    """Return one layer's choice: partitioned over all workers unless it says otherwise."""
    threads, replicas = given.get("threads") or most_threads, given.get("replicas") or 1
    if given.get("workers"):
        rows = tuple(tuple(row) for row in given["workers"])
        partitions = given.get("partitions") or len(rows[0])
        if len(rows) != (given.get("replicas") or len(rows)) or {len(row) for row in rows} != {partitions}:
            raise wrong(
                NAME, "layers", rows, f"{partitions} partitions x {replicas} replicas are not what workers list."
            )
        return LayerChoice(num_threads=threads, workers=rows)
    partitions = given.get("partitions") or max(1, num_workers // replicas)
    return LayerChoice.spread(partitions, num_threads=threads, num_replicas=replicas)


WORDS = "model replicas with parameter servers"  # how it trains


def view(cluster: Cluster, block: Mapping[str, Any], prediction: Prediction) -> FamilyView:
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
