"""Figures and terms in words, as pages have them."""

from collections.abc import Mapping

from planner.cluster import Cluster
from planner.letters import visible
from planner.units import Dimension, format_human
from planner.words import size_words, term_words, time_words, usd_words

__all__ = [
    "bit_rate",
    "cluster_words",
    "family_words",
    "goal_words",
    "joined",
    "many",
    "objective",
    "plain",
    "rate",
    "short",
    "size",
    "term",
    "time",
    "usd",
]

_FAMILY_WORDS: Mapping[str, str] = {
    "all_reduce": "data parallelism with all-reduce",
    "parameter_server": "data parallelism with parameter servers",
    "model_replicas": "model replicas with parameter servers",
    "pipeline": "pipeline parallelism",
    "hybrid": "hybrid parallelism",
}


def time(seconds: float) -> str:
    """Return seconds for reading."""
    return time_words(seconds)


def size(size_bytes: float) -> str:
    """Return bytes for reading."""
    return size_words(size_bytes)


def rate(bytes_per_s: float) -> str:
    """Return bytes a second for reading."""
    return format_human(bytes_per_s, Dimension.RATE)


def bit_rate(bytes_per_s: float) -> str:
    """Return the rate of a network as it is sold.

    >>> bit_rate(50e9), bit_rate(1.25e9)
    ('400 Gbit/s', '10 Gbit/s')
    """
    return f"{bytes_per_s * 8 / 1e9:.4g} Gbit/s"


def usd(value: float) -> str:
    """Return dollars for reading."""
    return usd_words(value)


def objective(value: float, unit: str) -> str:
    """Return an objective in its unit."""
    if unit == "J":
        return format_human(value, Dimension.ENERGY)
    return time(value) if unit == "s" else usd(value) if unit == "usd" else f"{value:.6g} {unit}"


def term(name: str) -> str:
    """Return a term of a breakdown in words."""
    return term_words(name)


def goal_words(name: str) -> str:
    """Return what a goal is, as the subject of a sentence: ``an epoch``."""
    return {"iteration_time": "an iteration", "epoch_time": "an epoch", "training_time": "the training"}.get(
        name, name.replace("_", " ")
    )


def family_words(name: str) -> str:
    """Return how a family trains."""
    return _FAMILY_WORDS.get(name, name.replace("_", " "))


_UNNAMED = "cluster"
_MOST_NAMED = 3  # kinds of machines that stand in a sentence


def cluster_words(cluster: Cluster) -> str:
    """Return a cluster by its name, or by its machines where nobody gave it one."""
    if cluster.name != _UNNAMED:
        return cluster.name
    groups = cluster.machine_groups
    if len(groups) > _MOST_NAMED:
        return f"{cluster.num_devices:,} devices in {many(len(groups), 'group')} of machines"
    return joined([f"{group.count:,} x {group.devices_per_machine} {group.device.name}" for group in groups])


def plain(text: str) -> str:
    r"""Return text whose letters are all seen, and stand where they are: what would turn its direction is spelled out.

    A name with one of Unicode's directional formatting characters would turn the rest of the line.

    >>> plain("a\u202eb\x07c"), plain("two\nlines")
    ('a\\u202eb\\x07c', 'two\nlines')
    """
    return visible(text, keep="\n\t")


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
