"""Figures and terms in words, as all texts have them."""

from planner.units import Dimension, format_human

__all__ = ["part_words", "size_words", "term_words", "time_words", "usd_words"]

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
