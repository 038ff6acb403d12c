"""Referees: obviously right, slow, and for tests only. Exact solvers must agree with them on all small inputs."""

import math
from collections.abc import Iterator
from itertools import combinations, permutations

from numpy.typing import ArrayLike

from planner.channel import Ends, as_tensors, schedule, transfer_s
from planner.cost import TransferCost, Wait
from planner.solution import Solution, Status

__all__ = ["all_groupings", "all_set_partitions", "best_groups", "best_partition_of_any_kind"]

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
