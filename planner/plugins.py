"""Distributions of Python that an answer may rest on: this one, its libraries."""

from functools import cache

__all__ = ["planner_version", "version_of"]

OWN = "training-planner"


@cache
def version_of(distribution: str) -> str:
    """Return the version of a distribution; ``not installed`` where a checkout runs that was never installed."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - takes a while

    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def planner_version() -> str:
    """Return the version of this program that answers depend on."""
    return version_of(OWN)
