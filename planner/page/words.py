"""Figures and terms in words, as pages have them."""

from collections.abc import Mapping

from planner.units import Dimension, format_human

__all__ = ["FAMILY_WORDS", "goal_words", "joined", "many", "objective", "rate", "short", "size", "term", "time", "usd"]

FAMILY_WORDS: Mapping[str, str] = {
    "all_reduce": "data parallelism with all-reduce",
    "parameter_server": "data parallelism with parameter servers",
    "model_replicas": "model replicas with parameter servers",
    "pipeline": "pipeline parallelism",
    "hybrid": "hybrid parallelism",
}
_TERMS = {
    "exposed_all_reduce": "exposed all-reduce",
    "exposed_wait": "exposed wait for fusion",
    "exposed_negotiate": "exposed negotiation",
    "exposed_misc": "exposed idle channel",
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


def time(seconds: float) -> str:
    """Return seconds for reading."""
    return format_human(seconds, Dimension.TIME)


def size(size_bytes: float) -> str:
    """Return bytes for reading."""
    return format_human(size_bytes, Dimension.DATA)


def rate(bytes_per_s: float) -> str:
    """Return bytes a second for reading."""
    return format_human(bytes_per_s, Dimension.RATE)


def usd(value: float) -> str:
    """Return dollars for reading."""
    return f"{value:,.2f} USD"


def objective(value: float, unit: str) -> str:
    """Return an objective in its unit."""
    if unit == "J":
        return format_human(value, Dimension.ENERGY)
    return time(value) if unit == "s" else usd(value) if unit == "usd" else f"{value:.6g} {unit}"


def term(name: str) -> str:
    """Return a term of a breakdown in words."""
    return _TERMS.get(name, name.replace("all_reduce", "all-reduce").replace("_", " "))


def goal_words(name: str) -> str:
    """Return what a goal is, as the subject of a sentence: ``an epoch``."""
    return {"iteration_time": "an iteration", "epoch_time": "an epoch", "training_time": "the training"}.get(
        name, name.replace("_", " ")
    )


def many(number: int, what: str) -> str:
    """Return a number of things.

    >>> many(1, "machine"), many(4096, "machine")
    ('1 machine', '4,096 machines')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def short(text: str, most: int = 40) -> str:
    """Return text of at most so many letters."""
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def joined(lines: list[str]) -> str:
    """Return words as a list in a sentence: ``a, b and c``."""
    return lines[0] if len(lines) == 1 else f"{', '.join(lines[:-1])} and {lines[-1]}" if lines else ""
