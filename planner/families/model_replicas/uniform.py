"""Configurations with uniform layers, and the paper's rule for maps: what the paper searches, as in its figure 15.

Uniform: every layer is partitioned over all workers of a replica, none is replicated, all machines left are servers.

Source: F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015, doi:10.1145/2783258.2783270, section 5.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from planner.families.model_replicas.configuration import ReplicaChoice, threads_of
from planner.families.model_replicas.cost import memory_limit_bytes, memory_of, model_of
from planner.families.model_replicas.settings import Setting, objective_of, settings_of
from planner.models.replica_segments import LayerChoice, ReplicaConfiguration
from planner.models.replicas import ReplicaModel
from planner.problem import Problem
from planner.search import Search
from planner.solvers.matching import greedy_assignment, sum_assignment

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
        uniform = setting.configuration((LayerChoice.spread(workers, num_threads=threads),) * len(model.stages))
        if workers not in sample_s:
            per_sample_s = (number * model.layer_time(one, uniform).per_sample_s for one, number in kinds)
            seconds = sum(per_sample_s) * setting.num_replicas
            fits = is_ample or memory.fullest(uniform.layers, workers).total_bytes(1) <= limit_bytes
            sample_s[workers] = seconds if fits else float("inf")
        if sample_s[workers] < float("inf"):
            exchange_s = setting.price_s_per_byte(model.constants.bandwidth_bytes_per_s) * size_bytes
            choice = ReplicaChoice(configuration=uniform, samples_per_read=setting.samples_per_read)
            rows.append((choice, objective_of(problem, setting, sample_s[workers] + exchange_s)))
    return rows


def first_choice(
    problem: Problem, model: ReplicaModel, settings: Sequence[Setting], search: Search
) -> tuple[Setting, ReplicaConfiguration] | None:
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
    return setting, setting.configuration((layer,) * len(stages))


def _kinds(model: ReplicaModel) -> list[tuple[int, int]]:
    """Return one layer of every kind, and how many are alike: in a uniform configuration they cost the same."""
    kinds: dict[tuple[int, bool], list[int]] = {}
    for index in range(len(model.stages)):
        kinds.setdefault((model.work.alike(index), index == 0), []).append(index)
    return [(some[0], len(some)) for some in kinds.values()]


def sum_rule(model: ReplicaModel, layers: Sequence[LayerChoice]) -> tuple[LayerChoice, ...]:
    """Return the same layers, mapped so that each receives the fewest remote activations in sum (section 5.3).

    Each segment on the worker where it receives least; on a conflict the assignment of least sum. A layer lasts as long
    as its slowest segment, which this rule does not look at.
    """
    mapped = list(layers[:1])
    made: dict[tuple[int, LayerChoice, LayerChoice], LayerChoice] = {}
    for index, layer in enumerate(layers[1:], start=1):
        key = (model.work.alike(index), mapped[-1], layer)
        if key not in made:  # equal layers are mapped once
            made[key] = _by_sum(model, index, mapped[-1], layer)
        mapped.append(made[key])
    return tuple(mapped)


def _by_sum(model: ReplicaModel, index: int, before: LayerChoice, layer: LayerChoice) -> LayerChoice:
    """Return a layer, mapped by the sum of what its segments receive, on average, from the layer before."""
    num_places = 1 + max(worker for one in (before, layer) for row in one.workers for worker in row)
    needed = model.work.boundary(index, before.num_partitions, layer.num_partitions).needed
    segments = list(product(range(layer.num_replicas), range(layer.num_partitions)))
    cost = [[0.0] * num_places for _ in range(num_places)]  # rows beyond the segments take what is left
    for row, (r, p) in enumerate(segments):
        cost[row] = [float(needed[p].sum())] * num_places
        meets = range(r, layer.num_replicas * before.num_replicas, layer.num_replicas)
        for k in meets:
            for q, worker in enumerate(before.workers[k % before.num_replicas]):
                cost[row][worker] -= float(needed[p, q]) / len(meets)
    solution = greedy_assignment(cost) if len(segments) == num_places else sum_assignment(cost)
    solution = solution if solution.value is not None else sum_assignment(cost)
    assert solution.value is not None  # costs are finite: there is an assignment
    places = iter(solution.value)
    rows = tuple(tuple(next(places) for _ in range(layer.num_partitions)) for _ in range(layer.num_replicas))
    return replace(layer, workers=rows)
