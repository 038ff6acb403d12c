"""Quick answers of the search over pipelines: shapes that are often good, so that a limit always finds one."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, permutations

import numpy as np

from planner.families.pipeline.cost import Shape
from planner.families.pipeline.domain import Domain, spread
from planner.models.pipeline_places import Stage
from planner.solvers.pipeline_cuts import balanced_cuts_of

__all__ = ["quick_shapes"]

_MOST_SHAPES = 240  # of one group each
_MOST_STAGES = 8
_MOST_SIMULATED = 1_024  # stages; more take a second or longer, and may be found by the search itself
_MOST_SOON = 64  # stages; of more, those of many micro-batches take a second or longer, too
_MOST_PER_STAGE = 16
_MOST_ORDERS = 6  # of several groups along the line
_STAGES_OF_A_GROUP = (1, 2, 3, 4, 8)
_MICROBATCHES_PER_STAGE = (4, 16)


def quick_shapes(domain: Domain) -> Iterator[Shape]:
    """Yield one stage on every number of devices, balanced stages with equal replicas, and stages over all groups."""
    yield from _one_stage(domain)
    yield from _of_one_group(domain)
    if len(domain.num_devices) > 1:
        yield from _of_all_groups(domain)


def _plain(domain: Domain) -> list[str]:
    """Return the schedules without chunks."""
    return [name for name in domain.schedules if name != "interleaved"]


def _one_stage(domain: Domain) -> Iterator[Shape]:
    """Yield one stage; a bubble does not depend on the schedule then."""
    numbers, plain, last = domain.numbers_of_microbatches, _plain(domain), domain.num_layers - 1
    if not plain or 1 not in domain.numbers_of_stages:
        return

    def shape(group: int, replicas: int, number: int) -> Shape:
        return domain.shape([Stage(first=0, last=last, group=group, replicas=replicas)], number, plain[0])

    for group, most in enumerate(domain.num_devices):  # first what fits on most devices, for the shortest limits
        yield from _fewest(domain, partial(shape, group, min(most, domain.batch)))
    for group, most in enumerate(domain.num_devices):
        for number in sorted({*numbers[:4], numbers[-1]}):
            for replicas in spread(min(most, domain.batch // number), _MOST_SHAPES // 8):
                yield shape(group, replicas, number)
        for replicas in spread(min(most, domain.batch), _MOST_SHAPES // 8):
            yield from _fewest(domain, partial(shape, group, replicas))


def _of_one_group(domain: Domain) -> Iterator[Shape]:
    """Yield stages of one group, as equal as they can be, with equal replicas."""
    plain, budget = _plain(domain), _MOST_SHAPES

    def shape(group: int, p: int, name: str, number: int) -> Shape:
        replicas = min(domain.num_devices[group] // p, domain.batch // number)
        return domain.shape(domain.balanced(group, p, replicas), number, name)

    for group, most in enumerate(domain.num_devices):
        for p in domain.numbers_of_stages:
            if p > most or budget < 0 or (p > _MOST_SIMULATED and p > domain.numbers_of_stages[0]):
                break
            if p > _MOST_STAGES and p & (p - 1):  # powers of 2 alone
                continue
            for name in plain if p <= _MOST_STAGES else plain[:1]:
                numbers = _near(domain, 4 * p)
                if p > _MOST_SOON:
                    shapes = [shape(group, p, name, number) for number in numbers if number <= _MOST_PER_STAGE * p]
                else:
                    shapes = _that_fit(domain, numbers, partial(shape, group, p, name))
                budget -= len(shapes)
                yield from shapes


def _of_all_groups(domain: Domain) -> Iterator[Shape]:
    """Yield stages over all groups, of each as many, cut so that the slowest stage is as fast as can be."""
    groups = range(len(domain.num_devices))

    def shape(line: list[int], each: int, name: str, number: int) -> Shape:
        return domain.shape(_shared(domain, line, each, number), number, name)

    for each in _STAGES_OF_A_GROUP:
        num_stages = each * len(groups)
        is_wanted = num_stages <= domain.num_layers and num_stages in domain.numbers_of_stages
        if not is_wanted or min(domain.most_allowed) < each:
            continue
        numbers = sorted(
            {
                *(one for per in _MICROBATCHES_PER_STAGE for one in _near(domain, per * num_stages)),
                *_near(domain, domain.batch // -(-max(domain.most_allowed) // each))[:1],  # a sample for every device
            }
        )
        for order in islice(permutations(groups), _MOST_ORDERS):
            line = [group for group in order for _ in range(each)]
            for name in _plain(domain):
                yield from _that_fit(domain, numbers, partial(shape, line, each, name))


def _shared(domain: Domain, line: list[int], each: int, number: int) -> list[Stage]:
    """Return stages on these groups, with replicas of each as equal as they can be."""
    size, seen, replicas = -(-domain.batch // number), [0] * len(domain.num_devices), []
    for group in line:
        most = domain.most_allowed[group]
        replicas.append(max(1, min((most + seen[group]) // each, domain.batch // number)))  # so that they sum up to it
        seen[group] += 1
    profiles = [domain.cost.costs.machines[group].profile for group in line]
    totals = [
        np.concatenate(([0.0], np.cumsum(one.forward_s + one.backward_s) * -(-size // r)))
        for one, r in zip(profiles, replicas, strict=True)
    ]
    ends = balanced_cuts_of(totals)
    starts = [0, *(end + 1 for end in ends[:-1])]
    return [
        Stage(first=first, last=last, group=group, replicas=r)
        for first, last, group, r in zip(starts, ends, line, replicas, strict=True)
    ]


def _that_fit(domain: Domain, numbers: list[int], shape: Callable[[int], Shape]) -> list[Shape]:
    """Return the shapes of these numbers of micro-batches; where none fits in memory, that of the fewest that do."""
    shapes = [shape(number) for number in numbers]
    return shapes if any(domain.cost.fits(one) for one in shapes) else _fewest(domain, shape)


def _fewest(domain: Domain, shape: Callable[[int], Shape]) -> list[Shape]:
    """Return the shape of the fewest micro-batches that fit in memory; none if none do."""
    numbers = domain.numbers_of_microbatches
    at = bisect_left(numbers, True, key=lambda number: domain.cost.fits(shape(number)))
    return [shape(number) for number in numbers[at : at + 1]]


def _near(domain: Domain, wanted: int) -> list[int]:
    """Return the numbers of micro-batches next below and above a wish."""
    below = [one for one in domain.numbers_of_microbatches if one <= wanted][-1:]
    return below + [one for one in domain.numbers_of_microbatches if one > wanted][:1]
