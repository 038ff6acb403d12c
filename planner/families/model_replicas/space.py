"""The paper's search space, as in its figure 15: every setting with uniform layers; and the paper's rule for maps.

Uniform: every layer is partitioned over all workers of a replica, none is replicated, all machines left are servers.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from planner.families.model_replicas.configuration import ReplicaChoice
from planner.families.model_replicas.cost import (
    memory_limit_bytes,
    memory_of,
    model_of,
    threads_of,
)
from planner.families.model_replicas.settings import Setting, objective_of, settings_of
from planner.models.model_replicas import ReplicaModel
from planner.models.replica_configuration import LayerChoice, ReplicaConfiguration
from planner.problem import Problem
from planner.search import Search
from planner.solvers.assignment import greedy_assignment, sum_assignment

__all__ = ["first_choice", "search_space", "search_space_csv", "sum_rule"]

_MOST_LAYERS_OF_FIRST = 200  # numbers of partitions times kinds of layers that a first choice looks at
_MOST_PARTITIONS_OF_FIRST = 256


def search_space(
    problem: Problem, num_workers: Sequence[int] | None = None, *, model: ReplicaModel | None = None
) -> list[tuple[ReplicaChoice, float]]:
    """Return every setting with uniform layers and its objective, in the goal's unit.

    Parameters
    ----------
    num_workers
        The workers of a replica to consider, ``(1, 2, 4)`` in the paper; None for all.
    model
        That of the question, where it has been made already.

    Notes
    -----
    The settings are those that a plan may choose from, with the most threads, less those whose workers do not hold
    them. Layers of one number of workers are costed once: N_mr only divides them.

    >>> import planner
    >>> problem = planner.load({
    ...     "dnn": {"zoo": "adam-mnist", "global_batch": 1400},
    ...     "cluster": {"preset": "adam-20"},
    ...     "families": ["model_replicas"],
    ... })
    >>> space = search_space(problem, (1, 2, 4))
    >>> len(space), min(space, key=lambda row: row[1])[0].headline
    (32, '...')
    """
    model, threads = model or model_of(problem), threads_of(problem)[-1]
    memory, limit_bytes = memory_of(problem, model), memory_limit_bytes(problem)
    kinds = _kinds(model)
    is_ample = memory.most_bytes(threads) <= limit_bytes
    size_bytes = sum(stage.num_weights for stage in model.stages) * model.constants.number_bytes
    sample_s: dict[int, float] = {}  # inf where it does not fit
    rows = []
    for setting in settings_of(problem):
        workers = setting.num_workers
        if num_workers is not None and workers not in num_workers:
            continue
        choice = _uniform(model, setting, threads)
        if workers not in sample_s:
            per_sample_s = (number * model.layer_time(one, choice.configuration).per_sample_s for one, number in kinds)
            seconds = sum(per_sample_s) * setting.num_replicas
            fits = is_ample or memory.fullest(choice.configuration.layers, workers).total_bytes(1) <= limit_bytes
            sample_s[workers] = seconds if fits else float("inf")
        if sample_s[workers] < float("inf"):
            exchange_s = setting.price_s_per_byte(model.constants.bandwidth_bytes_per_s) * size_bytes
            rows.append((choice, objective_of(problem, setting, sample_s[workers] + exchange_s)))
    return rows


def first_choice(
    problem: Problem, model: ReplicaModel, settings: Sequence[Setting], search: Search
) -> ReplicaChoice | None:
    """Return the best of some settings with equal layers, all replicated or all cut into stripes; None if none fits.

    An answer for a search that may not come to its own. Layers that are replicated alike meet on their own workers
    alone: R replicas take 1 / R of the time of one, and each worker holds the whole network, so that one worker tells
    what any number of them do. Stripes are tried on few workers.
    """
    memory, limit_bytes = memory_of(problem, model), memory_limit_bytes(problem)
    kinds, stages = _kinds(model), model.stages
    size_bytes = sum(stage.num_weights for stage in stages) * model.constants.number_bytes
    sizes = {1, *(one.num_workers for one in settings if one.num_workers <= _MOST_PARTITIONS_OF_FIRST)}
    if len(sizes) * len(kinds) > _MOST_LAYERS_OF_FIRST:
        sizes = {1}
    times_s: dict[tuple[int, int], float] = {}  # a sample, of those that fit, by partitions and threads
    for partitions, threads in product(sorted(sizes), {threads_of(problem)[0], threads_of(problem)[-1]}):
        layers = (LayerChoice.spread(partitions, num_threads=threads),) * len(stages)
        one = ReplicaConfiguration(num_servers=1, num_replicas=1, num_workers=partitions, layers=layers)
        if times_s and search.is_over:
            break
        if memory.fullest(layers, partitions).total_bytes(1) <= limit_bytes:
            seconds = sum(number * model.layer_time(layer, one).per_sample_s for layer, number in kinds)
            times_s[partitions, threads] = seconds
    best: tuple[float, Setting, tuple[int, int, int]] | None = None
    for setting in settings:
        price = setting.price_s_per_byte(model.constants.bandwidth_bytes_per_s)
        for (partitions, threads), seconds in times_s.items():
            copies = setting.num_workers if partitions == 1 else 1
            if partitions * copies == setting.num_workers:
                objective = objective_of(problem, setting, seconds / copies + price * size_bytes * copies)
                if best is None or objective < best[0]:
                    best = objective, setting, (partitions, copies, threads)
    if best is None:
        return None
    _, setting, (partitions, copies, threads) = best
    layer = LayerChoice.spread(partitions, num_threads=threads, num_replicas=copies)
    chosen = ReplicaConfiguration(
        num_servers=setting.num_servers,
        num_replicas=setting.num_replicas,
        num_workers=setting.num_workers,
        layers=(layer,) * len(stages),
    )
    return ReplicaChoice(configuration=chosen, samples_per_read=setting.samples_per_read)


def search_space_csv(problem: Problem, num_workers: Sequence[int] | None = None) -> str:
    """Return :func:`search_space` as a table: workers, replicas, servers and the goal, a row each."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["num_workers_per_replica", "num_replicas", "num_parameter_servers", problem.goal.field])
    for choice, objective in search_space(problem, num_workers):
        chosen = choice.configuration
        table.writerow([chosen.num_workers, chosen.num_replicas, chosen.num_servers, repr(objective)])
    return text.getvalue()


def _kinds(model: ReplicaModel) -> list[tuple[int, int]]:
    """Return one layer of every kind, and how many are alike: in a uniform configuration they cost the same."""
    kinds: dict[tuple[int, bool], list[int]] = {}
    for index in range(len(model.stages)):
        kinds.setdefault((model.work.alike(index), index == 0), []).append(index)
    return [(some[0], len(some)) for some in kinds.values()]


def _uniform(model: ReplicaModel, setting: Setting, num_threads: int) -> ReplicaChoice:
    """Return the uniform configuration of a setting."""
    configuration = ReplicaConfiguration.uniform(
        num_workers=setting.num_workers,
        num_replicas=setting.num_replicas,
        num_servers=setting.num_servers,
        num_threads=num_threads,
        num_layers=len(model.stages),
    )
    return ReplicaChoice(configuration=configuration, samples_per_read=setting.samples_per_read)


# -- the paper's rule for maps ---------------------------------------------------------------------------------------


def sum_rule(model: ReplicaModel, layers: Sequence[LayerChoice]) -> tuple[LayerChoice, ...]:
    """Return the same layers, mapped so that each receives the fewest remote activations in sum (section 5.3).

    Each segment on the worker where it receives least; on a conflict the assignment of least sum. A layer lasts as long
    as its slowest segment, which this rule does not look at.
    """
    mapped: list[LayerChoice] = []
    made: dict[tuple[int, LayerChoice, LayerChoice], LayerChoice] = {}
    for index, layer in enumerate(layers):
        if index == 0:
            mapped.append(layer)
            continue
        key = (model.work.alike(index), mapped[-1], layer)
        if key not in made:  # equal layers are mapped once
            made[key] = _by_sum(model, index, mapped[-1], layer)
        mapped.append(made[key])
    return tuple(mapped)


def _by_sum(model: ReplicaModel, index: int, before: LayerChoice, layer: LayerChoice) -> LayerChoice:
    """Return a layer, mapped by the sum of what its segments receive from the layer before."""
    num_places = 1 + max(worker for one in (before, layer) for row in one.workers for worker in row)
    needed = model.work.boundary(index, before.num_partitions, layer.num_partitions).needed
    cost = [[0.0] * num_places for _ in range(num_places)]  # rows beyond the segments take what is left
    for row, (r, p) in enumerate((r, p) for r in range(layer.num_replicas) for p in range(layer.num_partitions)):
        cost[row] = _received(needed[p].tolist(), r, layer.num_replicas, before, num_places)
    found = greedy_assignment(cost) if row + 1 == num_places else sum_assignment(cost)
    found = found if found.value is not None else sum_assignment(cost)
    assert found.value is not None  # costs are finite: there is an assignment
    places = iter(found.value)
    rows = tuple(tuple(next(places) for _ in range(layer.num_partitions)) for _ in range(layer.num_replicas))
    return replace(layer, workers=rows)


def _received(needed: Sequence[int], r: int, num_replicas: int, before: LayerChoice, num_places: int) -> list[float]:
    """Return what a segment of layer replica r receives of a sample, on average, on every worker."""
    steps = range(r, num_replicas * before.num_replicas, num_replicas)
    costs = [float(sum(needed))] * num_places
    for k in steps:
        for q, worker in enumerate(before.workers[k % before.num_replicas]):
            costs[worker] -= needed[q] / len(steps)
    return costs
