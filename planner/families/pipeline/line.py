"""The line of blocks of a question for the bound of all its pipelines, :mod:`planner.solvers.pipeline_least`."""

from collections.abc import Iterator

import numpy as np

from planner.families.pipeline.domain import ANY, Domain
from planner.search import Search
from planner.solvers.pipeline_least import Line, fits, least_s

__all__ = ["floors_s", "hopeless_numbers"]

_MOST_LAYERS = 1_000  # of which all runs are listed
_TOGETHER = 1.3  # ratio of numbers of micro-batches that one bound is found for


def floors_s(domain: Domain, search: Search) -> Iterator[tuple[list[int], float]]:
    """Yield numbers of micro-batches, the largest first, with seconds that no GPipe or 1F1B of them is below.

    None of a long line; ends before the last one when the search is over.
    """
    if domain.num_layers > _MOST_LAYERS:
        return
    line, numbers = _line(domain), sorted(domain.numbers_of_microbatches, reverse=True)
    while numbers and not search.is_over:
        together = [one for one in numbers if one * _TOGETHER >= numbers[0]]
        numbers = numbers[len(together) :]
        yield together, least_s(line, domain.batch, together[-1], together[0], domain.numbers_of_stages)


def hopeless_numbers(domain: Domain, search: Search) -> set[int]:
    """Return numbers of micro-batches for which no stages fit in memory, whatever their replicas; not all of them.

    With as many micro-batches as stages, or more, 1F1B holds as many in flight: such numbers are told by one of them.
    None of a long line, or when the search is over.
    """
    if domain.num_layers > _MOST_LAYERS:
        return set()
    line, most = _line(domain), max(domain.numbers_of_stages, default=0)
    held = {number: min(number, most) for number in domain.numbers_of_microbatches}
    fit = {low: fits(line, low, domain.numbers_of_stages) for low in search.watch(sorted(set(held.values())), every=1)}
    return {number for number, low in held.items() if not fit.get(low, True)}


def _line(domain: Domain) -> Line:
    """Return the line of layers and devices; the first group's devices have speed 1."""
    costs, layers = domain.cost.costs, np.arange(domain.num_layers)
    firsts, lasts = np.meshgrid(layers, layers, indexing="ij")
    memory = costs.memory(firsts, np.maximum(firsts, lasts), num_samples=1)
    limit = max(one.memory_limit_bytes for one in costs.machines) * domain.memory_scale * (1 + 1e-9)
    free = limit - costs.reserve_bytes - memory.total_bytes(0)
    each = np.broadcast_to(memory.in_flight_bytes, free.shape)
    room = np.where(free < 0, 0, np.divide(free, each, out=np.full(free.shape, float(ANY)), where=each > 0))
    profile = costs.machines[0].profile
    return Line(
        work_s=profile.forward_s + profile.backward_s,
        most_in_flight=np.triu(np.minimum(room, ANY).astype(np.int64)),
        speed=float(np.dot(domain.speeds, domain.num_devices)),
        fastest=max(domain.speeds),
    )
