"""Why no pipeline of a question fits, and what would have to give."""

from dataclasses import replace

from planner.families.pipeline.domain import Domain
from planner.families.pipeline.memory import LeastMemory, least_memory, numbers_of_stages_that_fit
from planner.search import Search
from planner.units import Dimension, format_human

__all__ = ["why_nothing_fits"]

_ROUND_UP = 1.0006  # four digits that are printed may be rounded down by half of the last one


def why_nothing_fits(domain: Domain, search: Search) -> str:
    """Return how much memory the best of all splits lacks, or that memory is not what is missing."""
    least = least_memory(domain, search)
    numbers = _numbers(domain, search)
    if least is None and not search.is_over and domain.schedules == ("interleaved",):
        return (
            f"No plan fits: the interleaved schedule needs 2 stages or more of different devices, 2 chunks of layers "
            f"or more for each, and micro-batches in multiples of the stages; no way to cut {domain.num_layers} layers "
            f"for a batch of {domain.batch} meets all limits and pins. Allow another schedule, or drop one of them."
        )
    if least is None and not search.is_over:
        most = domain.batch // min(domain.numbers_of_microbatches)
        return (
            f"No plan fits: no stages use as many devices and machines as limits and pins ask. {domain.num_layers} "
            f"layers make at most {max(domain.numbers_of_stages)} stages, and a batch of {domain.batch} gives each at "
            f"most {most} replicas. Drop or change a limit or a pin{_or_stages(domain, numbers)}."
        )
    needed, enough = _amounts(domain, least)
    ways = [] if enough is None else [f"raise memory_per_device (or take devices with more memory) to {enough}"]
    ways += [_stages_words(domain, numbers)] if numbers else []
    text = f"No plan fits: {needed}."
    if not domain.is_fine:
        ways += ["allow pipeline alone (families: [pipeline]), which then cuts blocks, too"]
    return f"{text} {ways[0][0].upper()}{' or '.join(ways)[1:]}." if ways else text


def _amounts(domain: Domain, least: LeastMemory | None) -> tuple[str, str | None]:
    """Return what the stages need, and how much would do."""
    limits = [one.memory_limit_bytes for one in domain.cost.costs.machines]
    devices = ", ".join(
        f"{format_human(limit, Dimension.DATA, 4)} on {group.device.name!r}"
        for limit, group in zip(limits, domain.cost.groups, strict=True)
    )
    if least is None:
        return f"whatever the stages, a device needs more memory than it may use ({devices})", None
    if len(set(limits)) == 1:
        has = f"{format_human(limits[0] * least.scale, Dimension.DATA, 4)} on a device, which may use {devices}"
        enough = format_human(limits[0] * least.scale * _ROUND_UP, Dimension.DATA, 4)
    else:
        has, enough = f"{least.scale:.4g} times the memory there is ({devices})", f"{least.scale * _ROUND_UP:.4g} times"
    if least.is_proven:
        return f"for any split{'' if domain.is_fine else ' between blocks'}, some stage needs at least {has}", enough
    return f"the best split that was found needs {has}", enough


def _numbers(domain: Domain, search: Search) -> list[int]:
    """Return numbers of stages that would fit, where they are pinned to one that does not; the nearest first."""
    pinned = domain.problem.fixed.get("num_stages")
    if pinned is None:
        return []
    free = replace(
        domain.problem, fixed={key: value for key, value in domain.problem.fixed.items() if key != "num_stages"}
    )
    found = numbers_of_stages_that_fit(Domain(free, is_fine=domain.is_fine), search)
    return sorted(found, key=lambda one: (abs(one - pinned), one))


def _stages_words(domain: Domain, numbers: list[int]) -> str:
    """Return the pin as it should be."""
    return f"change fix.num_stages from {domain.problem.fixed['num_stages']} to {numbers[0]}"


def _or_stages(domain: Domain, numbers: list[int]) -> str:
    """Return the pin as it should be, as the end of a sentence."""
    return f", or {_stages_words(domain, numbers)}" if numbers else ""
