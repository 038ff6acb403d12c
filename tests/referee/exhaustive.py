"""Referees: obviously right, slow, and for tests only. Exact solvers must agree with them on all small inputs."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, permutations, product

from numpy.typing import ArrayLike

from planner.channel import Ends, as_tensors, schedule, transfer_s
from planner.cost import TransferCost, Wait
from planner.solution import Solution, Status

__all__ = [
    "all_groupings",
    "all_pipelines",
    "all_set_partitions",
    "all_shares",
    "best_assignment",
    "best_chain",
    "best_counts",
    "best_groups",
    "best_partition_of_any_kind",
    "best_pipeline",
    "best_placement",
    "best_trade_offs",
]

Partition = tuple[tuple[int, ...], ...]


def all_groupings(num_tensors: int) -> Iterator[Ends]:
    """Yield the ``ends`` of every contiguous grouping, the fewest groups first.

    >>> list(all_groupings(3))
    [(2,), (0, 2), (1, 2), (0, 1, 2)]
    """
    for num_cuts in range(num_tensors):
        for cuts in combinations(range(num_tensors - 1), num_cuts):
            yield (*cuts, num_tensors - 1)


def best_groups(
    ready_s: ArrayLike,
    size_bytes: ArrayLike,
    cost: TransferCost,
    *,
    wait: Wait = Wait.NONE,
    timeout_s: float = math.inf,
) -> Solution[Ends]:
    """Return the best of all 2**(n-1) contiguous groupings; the referee of `fusion.optimal_groups`."""
    ready, sizes = as_tensors(ready_s, size_bytes)
    finish_s, ends = min(
        (schedule(ends, ready, sizes, cost, wait=wait, timeout_s=timeout_s).finish_s, ends)
        for ends in all_groupings(len(ready))
    )
    return Solution(status=Status.OPTIMAL, objective=finish_s, bound=finish_s, value=ends)


def best_partition_of_any_kind(ready_s: ArrayLike, size_bytes: ArrayLike, cost: TransferCost) -> Solution[Partition]:
    """Return the best grouping of at most 8 tensors, contiguous or not, sent in any order, without waits."""
    ready, sizes = as_tensors(ready_s, size_bytes)
    if len(ready) > 8:
        raise ValueError(f"{len(ready)} tensors are too many to try everything: 8 at most.")

    def finish_s(groups: Partition) -> float:
        free = -math.inf
        for group in groups:
            free = max(free, ready[list(group)].max()) + float(transfer_s(cost, sizes[list(group)].sum())[0])
        return free

    tried = (order for groups in all_set_partitions(len(ready)) for order in permutations(groups))
    objective, best = min((finish_s(groups), groups) for groups in tried)
    return Solution(status=Status.OPTIMAL, objective=objective, bound=objective, value=best)


def all_set_partitions(num_items: int) -> Iterator[Partition]:
    """Yield every way to split ``0..num_items-1`` into groups.

    >>> list(all_set_partitions(2))
    [((0, 1),), ((0,), (1,))]
    """
    if num_items == 0:
        yield ()
        return
    for groups in all_set_partitions(num_items - 1):
        for index, group in enumerate(groups):
            yield (*groups[:index], (*group, num_items - 1), *groups[index + 1 :])
        yield (*groups, (num_items - 1,))


def best_placement(
    num_tensors: int, num_servers: int, cost: Callable[[tuple[int, ...]], float]
) -> Solution[tuple[int, ...]]:
    """Return the best of all ``servers**tensors`` placements; the referee of `placement.best_placement`."""
    seconds, best = min((cost(tried), tried) for tried in product(range(num_servers), repeat=num_tensors))
    return Solution(status=Status.OPTIMAL, objective=seconds, bound=seconds, value=best)


def all_shares(num_devices: tuple[int, ...], batch: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield the largest share of each group of equal devices, where some of a group may have one sample less.

    >>> list(all_shares((2, 1), 4, 3))
    [(1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    """
    for shares in product(range(1, most + 1), repeat=len(num_devices)):
        largest = sum(number * share for number, share in zip(num_devices, shares, strict=True))
        least = sum(number * max(1, share - 1) for number, share in zip(num_devices, shares, strict=True))
        if least <= batch <= largest:
            yield shares


PipelineStages = tuple[tuple[int, int, int, int], ...]  # (first layer, last layer, device type, devices) of each stage


def all_pipelines(num_layers: int, num_devices: Sequence[int], first: int = 0) -> Iterator[PipelineStages]:
    """Yield every way to cut layers ``first..num_layers-1`` into stages and give each some devices of one type.

    >>> list(all_pipelines(2, [1]))
    [((0, 1, 0, 1),)]
    """
    if first == num_layers:
        yield ()
        return
    for last, (kind, most) in product(range(first, num_layers), enumerate(num_devices)):
        for taken in range(1, most + 1):
            left = [number - taken * (index == kind) for index, number in enumerate(num_devices)]
            for rest in all_pipelines(num_layers, left, last + 1):
                yield ((first, last, kind, taken), *rest)


def best_pipeline(
    num_layers: int, num_devices: Sequence[int], cost: Callable[[PipelineStages], float]
) -> Solution[PipelineStages]:
    """Return the cheapest of all pipelines, where ``cost`` is ``inf`` for one that does not fit."""
    objective, best = min((cost(stages), stages) for stages in all_pipelines(num_layers, num_devices))
    if objective == math.inf:
        return Solution(status=Status.INFEASIBLE, objective=math.inf, bound=math.inf, value=None)
    return Solution(status=Status.OPTIMAL, objective=objective, bound=objective, value=best)


def best_assignment(cost: Callable[[tuple[int, ...]], float], size: int) -> Solution[tuple[int, ...]]:
    """Return the best of all permutations (the column of every row); the referee of `assignment`."""
    objective, best = min((cost(columns), columns) for columns in permutations(range(size)))
    return Solution(status=Status.OPTIMAL, objective=objective, bound=objective, value=best)


def best_chain(cost: Callable[[tuple[int, ...]], float], num_states: Sequence[int]) -> Solution[tuple[int, ...]]:
    """Return the best of all choices of one state for every layer; the referee of `layer_chain`."""
    objective, best = min((cost(path), path) for path in product(*map(range, num_states)))
    return Solution(status=Status.OPTIMAL, objective=objective, bound=objective, value=best)


CountCriteria = Callable[[int, tuple[int, ...]], Sequence[float] | None]  # None: not allowed
CountPoint = tuple[tuple[float, ...], int, tuple[int, ...]]  # criteria, root, counts


def _all_counts(most: Sequence[Sequence[int]], criteria: CountCriteria) -> Iterator[CountPoint]:
    """Yield every allowed choice of a root and of counts from 1 to its largest."""
    for root, largest in enumerate(most):
        for counts in product(*(range(1, high + 1) for high in largest)):
            found = criteria(root, counts)
            if found is not None:
                yield tuple(found), root, counts


def best_counts(most: Sequence[Sequence[int]], criteria: CountCriteria) -> Solution[CountPoint]:
    """Return the point of the least first criterion; the referee of `count_boxes.best_counts`."""
    best = min(_all_counts(most, criteria), default=None)
    if best is None:
        return Solution(status=Status.INFEASIBLE, objective=math.inf, bound=math.inf, value=None)
    return Solution(status=Status.OPTIMAL, objective=best[0][0], bound=best[0][0], value=best)


def best_trade_offs(most: Sequence[Sequence[int]], criteria: CountCriteria) -> list[tuple[float, float]]:
    """Return all pairs of the first two criteria that no other one dominates; the referee of `count_boxes`."""
    pairs = {(found[0], found[1]) for found, _, _ in _all_counts(most, criteria)}
    return sorted(one for one in pairs if not any(a <= one[0] and b <= one[1] and (a, b) != one for a, b in pairs))
