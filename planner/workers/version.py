"""The version of this program, which all processes that work together must share."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from planner.errors import PlannerError

__all__ = ["VersionError", "check_version", "planner_version"]


class VersionError(PlannerError):
    """A worker runs another version of this program."""


@cache
def planner_version() -> str:
    """Return the version of this program that answers depend on."""
    try:
        return version("training-planner")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "not installed"


def check_version(expected: str) -> None:
    """Refuse to work for another version than this process runs.

    Raises
    ------
    VersionError
        If it is another one.
    """
    if planner_version() != expected:
        raise VersionError(
            f"a worker runs planner {planner_version()}, and this is {expected}. Install {expected} on the workers."
        )
