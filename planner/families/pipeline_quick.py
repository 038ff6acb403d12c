"""Quick answers of the search over pipelines: shapes that are often good, so that a limit always finds one."""

from collections.abc import Iterator
from itertools import islice, permutations

import numpy as np

from planner.families.pipeline_cost import Shape
from planner.families.pipeline_domain import Domain, spread
from planner.models.pipeline_stages import Stage
from planner.solvers.pipeline_cuts import balanced_cuts_of

__all__ = ["quick_shapes"]

_MOST_SHAPES = 240  # of one group each
_MOST_STAGES = 8
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
    for group, most in enumerate(domain.num_devices):
        for number in sorted({*numbers[:4], numbers[-1]}):
            for replicas in spread(min(most, domain.batch // number), _MOST_SHAPES // 8):
                yield domain.shape([Stage(first=0, last=last, group=group, replicas=replicas)], number, plain[0])


def _of_one_group(domain: Domain) -> Iterator[Shape]:
    """Yield stages of one group, as equal as they can be, with equal replicas."""
    plain, budget = _plain(domain), _MOST_SHAPES
    for group, most in enumerate(domain.num_devices):
        for p in domain.numbers_of_stages:
            if p > most or budget < 0:
                break
            if p > _MOST_STAGES and p & (p - 1):  # powers of 2 alone
                continue
            for number in _near(domain, 4 * p):
                for name in plain if p <= _MOST_STAGES else plain[:1]:
                    budget -= 1
                    stages = domain.balanced(group, p, min(most // p, domain.batch // number))
                    yield domain.shape(stages, number, name)


def _of_all_groups(domain: Domain) -> Iterator[Shape]:
    """Yield stages over all groups, of each as many, cut so that the slowest stage is as fast as can be."""
    groups = range(len(domain.num_devices))
    for each in _STAGES_OF_A_GROUP:
        num_stages = each * len(groups)
        if num_stages > domain.num_layers or num_stages not in domain.numbers_of_stages:
            continue
        numbers = sorted({one for per in _MICROBATCHES_PER_STAGE for one in _near(domain, per * num_stages)})
        for order in islice(permutations(groups), _MOST_ORDERS):
            for number in numbers:
                if stages := _shared(domain, [group for group in order for _ in range(each)], each, number):
                    for name in _plain(domain):
                        yield domain.shape(stages, number, name)


def _shared(domain: Domain, line: list[int], each: int, number: int) -> list[Stage] | None:
    """Return stages on these groups, with equal replicas of each; None where a group has too few devices."""
    size = -(-domain.batch // number)
    replicas = [min(domain.num_devices[group] // each, domain.batch // number) for group in line]
    if not min(replicas):
        return None
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


def _near(domain: Domain, wanted: int) -> list[int]:
    """Return the numbers of micro-batches next below and above a wish."""
    below = [one for one in domain.numbers_of_microbatches if one <= wanted][-1:]
    return below + [one for one in domain.numbers_of_microbatches if one > wanted][:1]
