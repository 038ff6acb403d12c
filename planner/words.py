"""Figures and terms in words, as all texts have them."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from planner.units import Dimension, format_human

if TYPE_CHECKING:
    from planner.plan import Plan

Item = TypeVar("Item")

SEARCH_SPACE = 'the searched space (see "Search space")'
_TERMS = {
    "exposed_all_reduce": "exposed all-reduce",
    "exposed_wait": "exposed wait for fusion",
    "exposed_negotiate": "exposed negotiation",
    "exposed_misc": "exposed idle channel",
    "misc": "channel idle between transfers",
    "negotiate": "negotiation",
    "compression": "compressing gradients",
    "update": "optimiser's update",
    "optimizer": "optimiser",
    "input_stall": "waiting for input",
    "tensor": "tensor-parallel communication",
    "data": "data-parallel communication",
    "expert": "expert-parallel communication",
    "context": "context-parallel communication",
    "pipeline": "pipeline communication",
    "launch": "kernel launch overhead",
    "activation_offload": "waiting for activations to and from the host",
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


def objective_words(value: float, unit: str) -> str:
    """Return an objective for reading; ``unit``: ``s``, ``usd``, ``J``, or any other as it stands."""
    if unit == "usd":
        return usd_words(value)
    dimension = {"s": Dimension.TIME, "J": Dimension.ENERGY}.get(unit)
    return f"{value:.6g} {unit}" if dimension is None else format_human(value, dimension)


def progress_words(bound: float, incumbent: float, said: Callable[[float], str]) -> str:
    """Return how far a search is: the best so far, and what nothing is below, where anything is proven.

    >>> progress_words(0.0, 2.0, time_words), progress_words(1.5, 2.0, time_words)
    ('2 s', '2 s, none below 1.5 s')
    """
    best = "none yet" if incumbent == float("inf") else said(incumbent)
    return f"{best}, none below {said(bound)}" if bound > 0 else best


def goal_words(name: str) -> str:
    """Return what a goal is, as the subject of a sentence.

    >>> goal_words("epoch_time")
    'an epoch'
    """
    named = {"iteration_time": "an iteration", "epoch_time": "an epoch", "training_time": "the training"}
    return named.get(name, name.replace("_", " "))


def part_words(name: str) -> str:
    """Return a part of a breakdown in words.

    >>> part_words("exposed_all_reduce")
    'exposed all-reduce'
    """
    return name.replace("all_reduce", "all-reduce").replace("_", " ")


def term_words(name: str) -> str:
    """Return a part of a breakdown in words that need no knowledge of the family's own names.

    >>> term_words("data"), term_words("forward")
    ('data-parallel communication', 'forward')
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
    begin = "Recommended as safer, within the known error of the best one" if plan.is_recommended else ""
    end = f"no plan of {searched} takes less than {least} (gap {percent_words(plan.gap)})"
    return f"{begin or 'Best found, not proven'}: {f'{value}; ' * bool(value)}{end}"


def beyond_words(plan: "Plan") -> list[str]:
    """Return what is known of layouts that were not searched, and may be better than the plan."""
    return [
        f"{what} were not searched: they could be at most {percent_words(1 - bound / plan.objective)} faster"
        if bound > 0
        else f"{what} were not all searched, and may be faster"
        for what, bound in plan.beyond.items()
    ]


def not_repeated(lines: Iterable[str], told: Sequence[str]) -> list[str]:
    """Return the lines that stand nowhere else in an answer: no line that was told begins with them.

    >>> not_repeated(["2 links carry nothing", "a tie"], ["2 links carry nothing   (cluster.links)"])
    ['a tie']
    """
    return [line for line in lines if not any(other.startswith(line) for other in told)]


def shown(value: object, most: int = 60) -> str:
    """Return a value as a message shows it, in so many characters.

    >>> shown("as much as there is", 10)
    "'as muc..."
    """
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def capitalised(line: str) -> str:
    """Return a line with its first letter as a sentence has it.

    >>> capitalised("hybrid layouts of H100s")
    'Hybrid layouts of H100s'
    """
    return line[:1].upper() + line[1:]


# --- Numbers of things, lists, and what is left out of them


def many(number: int, what: str) -> str:
    """Return a number of things.

    >>> many(1, "machine"), many(4096, "machine")
    ('1 machine', '4,096 machines')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def joined(words: Sequence[str]) -> str:
    """Return words as a list in a sentence: ``a, b and c``."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def short(text: str, most: int = 40) -> str:
    """Return text of at most so many letters, with an ellipsis where it is longer."""
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def cut(text: str, most: int) -> str:
    """Return text of at most so many letters, with three dots where it is longer, as a terminal shows it."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def clipped(text: str, most: int) -> str:
    """Return text on one line, of at most so many letters, cut between two words with three dots where it is longer.

    >>> clipped("No plan fits: stage 2 needs more.", 20)
    'No plan fits: ...'
    """
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3].rsplit(' ', 1)[0]} ..."


def first_lines(lines: Sequence[str], most: int) -> list[str]:
    """Return the first lines and how many are left out; all, where that would take as many."""
    left = len(lines) - most
    return list(lines) if left <= 1 else [*lines[:most], f"  ... and {left} more; --json has all"]


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most so many items, chosen evenly, the first and the last among them.

    >>> thinned("abcdefg", 4)
    ['a', 'c', 'e', 'g']
    """
    if len(items) <= most:
        return list(items)
    step = (len(items) - 1) / (most - 1)
    return [items[round(index * step)] for index in range(most)]


def few(number: int, shown: int, what: str, where: str) -> str:
    """Return the note of a list that is not shown whole, or nothing.

    >>> few(7000, 60, "layers", "--out plan.json holds all of them")
    '60 of 7,000 layers are shown; --out plan.json holds all of them.'
    """
    return "" if shown >= number else f"{shown:,} of {number:,} {what} are shown; {where}."
