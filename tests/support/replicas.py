"""Small questions of model replicas, and every configuration of them; shared by the tests of the family."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product
from typing import Any

from hypothesis import strategies as st
from number_of_devices import uses_all

import planner
from planner.dnn import Dnn
from planner.families.model_replicas.configuration import ReplicaChoice
from planner.families.model_replicas.cost import group_of, model_of, threads_of
from planner.families.model_replicas.search import plan
from planner.models.compute import profile_from_flop
from planner.models.model_replicas import ByThreads, Constants, ReplicaModel
from planner.models.replica_configuration import LayerChoice, ReplicaConfiguration
from planner.models.segment_work import SegmentWork
from planner.models.segments import chain_of
from planner.problem import Problem
from planner.search import Search
from planner.zoo.builder import Builder

# -- drawn inputs ----------------------------------------------------------------------------------------------------


@st.composite
def networks(draw: st.DrawFn, most_layers: int = 3) -> Dnn:
    """A chain of one to three layers: fully-connected ones, or a convolution, a pool and a fully-connected one."""
    number = draw(st.integers(1, most_layers))
    if draw(st.booleans()):
        net = Builder((draw(st.integers(1, 2)), draw(st.integers(5, 8)), 5))
        net.conv("conv", draw(st.integers(1, 3)), kernel=draw(st.integers(1, 3)), bias=False)
        if number > 1:
            net.max_pool("pool", kernel=2, stride=draw(st.integers(1, 2)))
        if number > 2:
            net.flatten("flat").fully_connected("fc", draw(st.integers(2, 6)), bias=False)
    else:
        net = Builder((draw(st.integers(2, 9)),))
        for index in range(number):
            net.fully_connected(f"fc{index}", draw(st.integers(1, 7)), bias=False)
    return net.build("drawn", source="own", dataset_samples=100)


@st.composite
def models(draw: st.DrawFn, most_layers: int = 3) -> ReplicaModel:
    """Computation, latency and bytes of like weight; two threads may interfere, and be late."""
    latency = draw(st.sampled_from([0.0, 2e-6, 2e-5]))
    late = ByThreads(((1, latency), (2, latency * draw(st.sampled_from([1.0, 1.5, 3.0])))))
    constants = Constants(
        multiply_add_s=lambda size, partitions: 1e-7,
        activation_s=draw(st.sampled_from([0.0, 1e-7])),
        error_s=draw(st.sampled_from([0.0, 2e-7])),
        bandwidth_bytes_per_s=draw(st.sampled_from([1e6, 1e7, 1e9])),
        latency_s=late,
        interference=ByThreads(((1, 1.0), (2, draw(st.sampled_from([1.0, 1.5, 2.5]))))),
    )
    return ReplicaModel(SegmentWork(chain_of(draw(networks(most_layers))), constants))


def every_choice(num_workers: int, num_rows: int, threads: Sequence[int]) -> Iterator[LayerChoice]:
    """All P, R, H and maps of one layer; no more partitions than two too many."""
    for p in range(1, min(num_workers, num_rows + 2) + 1):
        for r in range(1, num_workers // p + 1):
            for places in permutations(range(num_workers), p * r):
                rows = tuple(places[k * p : (k + 1) * p] for k in range(r))
                for h in threads:
                    yield LayerChoice(num_threads=h, workers=rows)


def cost_of(model: ReplicaModel, layers: Sequence[LayerChoice], price_s_per_byte: float) -> float:
    """Seconds a sample of one replica, and what reading is priced at."""
    configuration = ReplicaConfiguration(num_servers=1, num_replicas=1, num_workers=99, layers=tuple(layers))
    seconds = sum(layer.per_sample_s for layer in model.layer_times(configuration))
    pairs = zip(model.stages, layers, strict=True)
    return seconds + price_s_per_byte * sum(4 * stage.num_weights * layer.num_replicas for stage, layer in pairs)


def every_chain(model: ReplicaModel, num_workers: int, threads: Sequence[int]) -> Iterator[tuple[LayerChoice, ...]]:
    rows = [stage.output_shape[1] if len(stage.output_shape) == 3 else stage.output_shape[0] for stage in model.stages]
    return product(*(list(every_choice(num_workers, number, threads)) for number in rows))


# -- whole questions ------------------------------------------------------------------------------------------------


def question(**changes: Any) -> dict[str, Any]:
    machine = {"name": "w", "count": 4, "device": "xeon-e5-2660", "network": "10 Gbit/s", "latency": "20 us"}
    base: dict[str, Any] = {
        "dnn": {"zoo": "adam-mnist", "global_batch": 120},
        "cluster": {"machines": [machine]},
        "calibration": {"cores": 2, "utilisation": 0.5},
        "families": ["model_replicas"],
    }
    for key, block in changes.items():
        if key == "machine":
            base["cluster"] = {"machines": [{**machine, **block}]}
        else:
            base[key] = {**base.get(key, {}), **block} if isinstance(block, dict) else block
    return base


@st.composite
def questions(draw: st.DrawFn) -> Problem:
    """A tiny network on two to four machines, with any kind of batch, limits and pins."""
    batch = draw(
        st.sampled_from(
            [
                {"global_batch": 12},
                {"global_batch": 7},
                {"max_global_batch": 12},
                {"batch_per_device": 3, "max_global_batch": 9},
                {"batch_per_device": 3},
            ]
        )
    )
    objective = "epoch_time" if "max_global_batch" in batch else draw(st.sampled_from(["epoch_time", "iteration_time"]))
    limits: list[dict[str, Any]] = [{}, {"machines": 4}]
    if objective == "epoch_time" or "batch_per_device" not in batch:  # a range of devices is refused there
        limits += [{"machines": {"at_most": 3}}, {"devices": {"at_least": 2}}]
    asked = question(
        dnn={"global_batch": None, **batch},
        machine={"count": draw(st.integers(2, 4)), "network": f"{draw(st.integers(1, 40))} Mbit/s"},
        objective=objective,
        constraints=draw(st.sampled_from(limits)),
        fix=draw(
            st.sampled_from(
                [
                    {},
                    {"num_replicas": 2},
                    {"num_parameter_servers": 1},
                    {"num_workers_per_replica": 2},
                    {"num_machines": 3},
                    {"num_devices": 2},
                ]
            )
        ),
    )
    if asked["constraints"].get("machines") == 4:
        asked["cluster"]["machines"][0]["count"] = 4
    asked["dnn"] = {key: value for key, value in asked["dnn"].items() if value is not None}
    problem = planner.load(asked)
    net = draw(networks(2))
    device = group_of(problem).device
    profile = profile_from_flop(net, device, dtype="fp32", utilisation=draw(st.sampled_from([1e-7, 1e-6])))
    return replace(problem, dnn=net, profiles={device.name: profile})


def every_configuration(problem: Problem) -> Iterator[ReplicaChoice]:
    """All servers, replicas, workers, P, R and maps within the limits and pins, with the most threads."""
    limits, fixed, most = problem.limits, problem.fixed, group_of(problem).count
    model, threads = model_of(problem), threads_of(problem)[-1:]
    for servers, replicas, workers in product(range(1, most + 1), repeat=3):
        used = servers + replicas * workers
        pins = {
            "num_parameter_servers": servers,
            "num_replicas": replicas,
            "num_workers_per_replica": workers,
            "num_machines": used,
            "num_devices": replicas * workers,
        }
        if used > most or used not in limits.machines or replicas * workers not in limits.devices:
            continue
        if any(fixed.get(name, value) != value for name, value in pins.items()):
            continue
        batch = problem.training.fixed_batch_size or problem.training.max_global_batch_size or 0
        share = batch // replicas
        if uses_all(problem) and not fixed.keys() & {"num_machines", "num_devices"} and used < most:
            continue
        if problem.training.batch_per_device and problem.training.max_global_batch_size:
            share = problem.training.batch_per_device if problem.training.batch_per_device * replicas <= batch else 0
        if not share:
            continue
        for layers in every_chain(model, workers, threads):
            chosen = ReplicaConfiguration(
                num_servers=servers, num_replicas=replicas, num_workers=workers, layers=layers
            )
            yield ReplicaChoice(configuration=chosen, samples_per_read=share)


def asked_for(search: Search | None = None, **changes: Any) -> Any:
    """The plan of the question, with some of its keys changed."""
    return plan(planner.load(question(**changes)), search or Search())
