"""Small questions of model replicas, and every configuration of them; shared by the tests of the family."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product
from typing import Any

from hypothesis import strategies as st
from number_of_devices import uses_all

import planner
from planner.dnn import Dnn
from planner.families.model_replicas.configuration import ReplicaChoice, group_of, threads_of
from planner.families.model_replicas.cost import memory_of, model_of, predict
from planner.families.model_replicas.search import plan
from planner.models.compute import profile_from_flop
from planner.models.replica_segments import (
    ByThreads,
    Constants,
    LayerChoice,
    ReplicaConfiguration,
    SegmentWork,
    chain_of,
    num_stripes,
)
from planner.models.replicas import ReplicaModel
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
    model, threads = model_of(problem), threads_of(problem)[-1:]
    for servers, replicas, workers, share in every_setting(problem):
        for layers in every_chain(model, workers, threads):
            chosen = ReplicaConfiguration(
                num_servers=servers, num_replicas=replicas, num_workers=workers, layers=layers
            )
            yield ReplicaChoice(configuration=chosen, samples_per_read=share)


def every_setting(problem: Problem) -> Iterator[tuple[int, int, int, int]]:
    """All servers, replicas, workers and samples between two reads within the limits and pins."""
    limits, fixed, most = problem.limits, problem.fixed, group_of(problem).count
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
        if share:
            yield servers, replicas, workers, share


# -- questions of tight memory, and every plan of them ----------------------------------------------------------------


def tight_question(seed: int) -> Problem:
    """A tiny network on few machines with one to three threads, without a limit of memory: the same for every seed."""
    lot = random.Random(seed)
    threads = lot.choice([1, 2, 2, 3])
    asked = question(
        dnn={"global_batch": lot.choice([3, 7, 12])},
        machine={
            "count": lot.choice([2, 3, 4, 4, 5]),
            "network": lot.choice(["1 kB/s", "100 kB/s", "1 MB/s", "40 MB/s"]),
            "latency": lot.choice(["0 s", "20 us", "1 ms"]),
        },
        calibration={
            "cores": threads,
            "memory_reserve": lot.choice(["0 B", "100 B"]),
            "interference": [[h, 1 + (h - 1) * lot.choice([0.0, 0.4, 1.3])] for h in range(1, threads + 1)],
        },
        objective=lot.choice(["epoch_time", "iteration_time"]),
        fix=lot.choice([{}, {}, {"num_replicas": 2}, {"num_parameter_servers": 1}, {"num_workers_per_replica": 2}]),
    )
    if lot.random() < 0.3:
        asked["dnn"] |= {"batch_per_device": 3, "max_global_batch": 9}
        del asked["dnn"]["global_batch"]
        asked["objective"] = "epoch_time"
    problem = planner.load(asked)
    machines = group_of(problem).count
    number = lot.choice([1, 1, 2]) if machines > 3 else lot.choice([1, 2, 3])
    number = 1 if machines > 4 else number
    if lot.random() < 0.3:
        net = Builder((lot.randint(1, 2), lot.randint(4, 5), 4))
        net.conv("conv", lot.randint(1, 3), kernel=lot.randint(1, 3), bias=False)
        if number > 1:
            net.max_pool("pool", kernel=2, stride=1)
        if number > 2:
            net.flatten("flat").fully_connected("fc", lot.randint(2, 6), bias=False)
    else:
        net = Builder((lot.randint(1, 9),))
        for index in range(number):
            net.fully_connected(f"fc{index}", lot.randint(1, 7), bias=lot.random() < 0.5)
    built = net.build("drawn", source="own", dataset_samples=100)
    device = group_of(problem).device
    profile = profile_from_flop(built, device, dtype="fp32", utilisation=lot.choice([1e-9, 1e-7, 1e-6]))
    return replace(problem, dnn=built, profiles={device.name: profile})


class TriedPlans:
    """Every plan of a question: what each costs and how much memory its fullest worker holds.

    Of one number of workers, chains of layers are weighed by their own seconds and by the weights that a replica reads.
    Whatever an exchange costs, the best of those that fit is one with the least seconds for the weights that it reads.
    The first layer's segments are on the first workers: workers are equal, and their names alter nothing.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.settings = list(every_setting(problem))
        model = model_of(problem)
        memory, threads = memory_of(problem, model), threads_of(problem)
        self._rows: dict[int, list[tuple[float, int, float, tuple[LayerChoice, ...]]]] = {}
        for workers in {one[2] for one in self.settings}:
            rows = [num_stripes(stage.output_shape) for stage in model.stages]
            first = [one for one in every_choice(workers, rows[0], threads) if one.workers == _in_order(one)]
            others = [list(every_choice(workers, number, threads)) for number in rows[1:]]
            self._rows[workers] = [
                (
                    memory.fullest(layers, workers).total_bytes(1),
                    sum(s.num_weights * one.num_replicas for s, one in zip(model.stages, layers, strict=True)),
                    cost_of(model, layers, 0.0),
                    layers,
                )
                for layers in product(first, *others)
            ]

    @property
    def sizes(self) -> list[float]:
        """The bytes that plans need, each once."""
        return sorted({row[0] for rows in self._rows.values() for row in rows})

    def least(self, limit_bytes: float) -> float:
        """The objective of the best plan that fits; ``inf`` if none does."""
        found = float("inf")
        for servers, replicas, workers, share in self.settings:
            best: dict[int, tuple[float, tuple[LayerChoice, ...]]] = {}
            for size, weights, seconds, layers in self._rows[workers]:
                if size <= limit_bytes and seconds < best.get(weights, (float("inf"),))[0]:
                    best[weights] = (seconds, layers)
            for _, layers in best.values():
                chosen = ReplicaConfiguration(
                    num_servers=servers, num_replicas=replicas, num_workers=workers, layers=layers
                )
                prediction = predict(self.problem, ReplicaChoice(configuration=chosen, samples_per_read=share))
                found = min(found, prediction.value_of(self.problem.goal))
        return found


def _in_order(choice: LayerChoice) -> tuple[tuple[int, ...], ...]:
    """The map of a choice if its segments were on the first workers, one after the other."""
    return LayerChoice.spread(choice.num_partitions, num_replicas=choice.num_replicas).workers


def asked_for(search: Search | None = None, **changes: Any) -> Any:
    """The plan of the question, with some of its keys changed."""
    return plan(planner.load(question(**changes)), search or Search())
