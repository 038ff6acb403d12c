"""The error of one key of a given configuration."""

from planner.errors import Fault, SpecError

__all__ = ["wrong"]


def wrong(family: str, key: str, value: object, problem: str) -> SpecError:
    """Return the error of ``configuration.family.key``, with the value that was given."""
    field = f"configuration.{family}.{key}"
    return SpecError.of([Fault(field=field, value=str(value), problem=problem, mend="Mend this value.")])
