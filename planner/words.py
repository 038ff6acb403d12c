"""Figures and terms in words, as all texts have them."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from planner.units import Dimension, format_human

if TYPE_CHECKING:
    from planner.plan import Configuration, Plan
    from planner.problem import Problem

__all__ = [
    "SEARCH_SPACE",
    "beyond_words",
    "capitalised",
    "devices_words",
    "part_words",
    "percent_words",
    "proof_words",
    "size_words",
    "term_words",
    "time_words",
    "untold",
    "usd_words",
]

SEARCH_SPACE = 'the searched space (see "Search space")'
_TERMS = {
    "exposed_all_reduce": "exposed all-reduce",
    "exposed_wait": "exposed wait for fusion",
    "exposed_negotiate": "exposed negotiation",
    "exposed_misc": "exposed idle channel",
    "misc": "channel idle between exchanges",
    "negotiate": "negotiation",
    "compression": "compressing gradients",
    "update": "optimiser's update",
    "optimizer": "optimiser",
    "input_stall": "waiting for input",
    "tensor": "exchange between tensor ranks",
    "data": "exchange between replicas",
    "expert": "exchange between experts",
    "context": "exchange between context ranks",
    "pipeline": "transfers between stages",
    "launch": "starting kernels",
    "start_up": "start-up",
    "failures": "failures and restarts",
    "capital": "share in what is bought",
}


def time_words(seconds: float) -> str:
    """Return seconds for reading, with three digits.

    >>> time_words(0.01234)
    '12.3 ms'
    """
    return format_human(seconds, Dimension.TIME)


def size_words(size_bytes: float) -> str:
    """Return bytes for reading, with three digits.

    >>> size_words(2.5e9)
    '2.33 GiB'
    """
    return format_human(size_bytes, Dimension.DATA)


def usd_words(usd: float) -> str:
    """Return dollars for reading.

    >>> usd_words(1234.5)
    '1,234.50 USD'
    """
    return f"{usd:,.2f} USD"


def part_words(name: str) -> str:
    """Return a part of a breakdown in words.

    >>> part_words("exposed_all_reduce")
    'exposed all-reduce'
    """
    return name.replace("all_reduce", "all-reduce").replace("_", " ")


def term_words(name: str) -> str:
    """Return a part of a breakdown in words that need no knowledge of the family's own names.

    >>> term_words("data"), term_words("forward")
    ('exchange between replicas', 'forward')
    """
    return _TERMS.get(name, part_words(name))


def percent_words(share: float, *, is_signed: bool = False) -> str:
    """Return a share in percent, with three digits, or whole where it is large.

    >>> percent_words(0.12345), percent_words(2.1234, is_signed=True), percent_words(-12.5, is_signed=True)
    ('12.3 %', '+212 %', '-1,250 %')
    """
    percent = 100 * share
    sign = "+" if is_signed else ""
    return f"{percent:{sign},.0f} %" if abs(percent) >= 100 else f"{percent:{sign}.3g} %"  # three digits


def proof_words(plan: "Plan", value: str = "", searched: str = SEARCH_SPACE) -> str:
    """Return what is proven of a plan, and of which space; :func:`beyond_words` tells of what lies outside of it.

    ``value``: the objective, where it is to stand in the sentence.
    """
    if plan.status == "optimal":
        return f"Proven optimal within {searched}{f': {value}' * bool(value)}"
    least = time_words(plan.bound) if plan.goal.unit == "s" else f"{plan.bound:.6g} {plan.goal.unit}"
    end = f"no plan of {searched} takes less than {least} (gap {percent_words(plan.gap)})"
    return f"Best found, not proven: {f'{value}; ' * bool(value)}{end}"


def beyond_words(plan: "Plan") -> list[str]:
    """Return what is known of layouts that were not searched, and may be better than the plan."""
    return [
        f"{what} were not searched: they could be at most {percent_words(1 - bound / plan.objective)} faster"
        if bound > 0
        else f"{what} were not all searched, and may be faster"
        for what, bound in plan.beyond.items()
    ]


def devices_words(configuration: "Configuration", problem: "Problem") -> str:
    """Return how many of the devices a plan takes, and whether another number of them, or of machines, was searched.

    Per epoch or training, and with a global batch, their number is searched, unless the user says it. With a fixed
    batch per device all are used per iteration.
    """
    used, there = getattr(configuration, "num_devices", None), problem.cluster.num_devices
    allowed, meant, batch = problem.allowed_devices, problem.training.num_devices, problem.training.fixed_batch_size
    is_open = problem.is_number_of_devices_open
    if used is None:  # of a family with servers: its headline says how many machines train, and how many serve
        if problem.cluster.num_machines == 1 or problem.allowed_machines.least == problem.allowed_machines.most:
            return ""
        if not is_open:
            return "every machine trains or serves (a batch per device, per iteration: their number was not searched)"
        each = f", on the global batch of {batch:,} that all {meant:,} devices would have" if batch and meant else ""
        return f"the number of machines was searched{each}"
    words = f"on {'all ' if there > 1 else ''}{there:,}" if used == there else f"on {used:,} of {there:,}"
    why = ""
    if there > 1 and not is_open:
        why = " (a batch per device, per iteration: their number was not searched)"
    elif there > 1 and allowed.least != allowed.most:
        each = (
            f", on the global batch of {batch:,} that all {meant:,} would have"
            if batch and meant and used < meant
            else ""
        )
        why = f" (the number was searched{each})"
    return f"{words} device{'s' * (there > 1)}{why}"


def untold(lines: Iterable[str], told: Sequence[str]) -> list[str]:
    """Return the lines that stand nowhere else in an answer: no line that was told begins with them.

    >>> untold(["2 links carry nothing", "a tie"], ["2 links carry nothing   (cluster.links)"])
    ['a tie']
    """
    return [line for line in lines if not any(other.startswith(line) for other in told)]


def capitalised(line: str) -> str:
    """Return a line with its first letter as a sentence has it.

    >>> capitalised("hybrid layouts of H100s")
    'Hybrid layouts of H100s'
    """
    return line[:1].upper() + line[1:]
