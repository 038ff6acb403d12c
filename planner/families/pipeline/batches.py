"""Which batches are searched for pipelines where the batch may vary up to a maximum, and what bounds the others.

Of a few batches all are searched; of many only those next below the maximum, in which rounding samples to micro-batches
and replicas costs differently; and, where none of these fits, some smaller ones, which keep less in memory.
"""

from collections.abc import Sequence

import numpy as np

from planner.families.answer import iterations_of
from planner.families.pipeline.domain import Domain

__all__ = ["bound_of_batch", "bound_of_others", "first_batches", "further_batches", "searched_batches_line"]

_MOST_OF_ALL = 32  # batches of which every one is searched
_MOST_OF_MANY = 8  # of more: those next below the maximum
_SMALL = 16  # tried one by one where the largest do not fit


def first_batches(largest: Domain) -> list[int]:
    """Return the batches to search, those of the least bound first; of equals the largest."""
    training = largest.problem.training
    if training.fixed_batch_size is not None or training.batch_per_device is not None:
        return [largest.batch]
    number = largest.batch if largest.batch <= _MOST_OF_ALL else _MOST_OF_MANY
    batches = range(largest.batch, largest.batch - number, -1)
    return sorted(batches, key=lambda batch: (bound_of_batch(largest, batch), -batch))


def further_batches(largest: Domain) -> list[int]:
    """Return the batches to search where none of the first ones fits: halves of the maximum, and small ones."""
    first = first_batches(largest)
    if len(first) in (1, largest.batch):
        return []
    halves = {largest.batch >> power for power in range(largest.batch.bit_length())}
    return sorted({*halves, *range(1, _SMALL + 1)} - set(first), reverse=True)


def bound_of_batch(domain: Domain, batch: int) -> float:
    """Return the objective that no pipeline on a batch beats.

    An iteration takes no less than all devices need for its samples, each computing what it does best, and no less than
    one sample's way through all layers and back, each on the device that is fastest at it.
    """
    profiles = [machines.profile for machines in domain.cost.costs.machines]
    way_s = float(np.min([one.forward_s + one.backward_s for one in profiles], axis=0).sum())
    seconds = max(domain.least_s_per_sample * batch, way_s)
    return seconds * float(iterations_of(domain.problem, batch))


def bound_of_others(largest: Domain, searched: Sequence[int]) -> float:
    """Return the objective that no batch beats that is allowed but was not searched; ``inf`` if there is none.

    The bound of a batch falls or rises with it throughout, as the goal counts iterations or not: its ends are enough.
    """
    training = largest.problem.training
    if training.fixed_batch_size is not None:
        return float("inf")
    left = set(range(1, largest.batch + 1)) - set(searched) if largest.batch <= _MOST_OF_ALL else None
    if left is None:
        most = next(batch for batch in range(largest.batch, 0, -1) if batch not in searched)
        left = {1, most}
    return min((bound_of_batch(largest, batch) for batch in left), default=float("inf"))


def searched_batches_line(largest: Domain, searched: Sequence[int]) -> str:
    """Return which batches were searched, in words."""
    if len(searched) == 1:
        return f"only the batch of {searched[0]} was searched; others up to {largest.batch} are bounded"
    if len(set(searched)) == largest.batch:
        return f"every batch up to {largest.batch} was searched"
    return (
        f"{len(searched)} batches from {min(searched)} to {max(searched)} were searched; others up to {largest.batch} "
        f"are bounded"
    )
