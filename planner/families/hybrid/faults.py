"""What is wrong with a block ``configuration.hybrid``, key by key."""

from planner.errors import Fault, SpecError
from planner.families.hybrid.configuration import NAME
from planner.problem import Problem

__all__ = ["fault_of", "given_batch"]


def given_batch(problem: Problem, given: int | None) -> int | None:
    """Return the batch that is given, checked against the one asked for."""
    fixed, most = problem.training.fixed_batch_size, problem.training.max_global_batch_size
    if given is not None and ((fixed is not None and given != fixed) or (most is not None and given > most)):
        text = f"dnn asks for a batch of {fixed or most}."
        raise SpecError.of([fault_of("global_batch_size", given, text, f"Write {fixed or most}.")])
    return given


def fault_of(key: str, value: object, problem: str, mend: str) -> Fault:
    """Return what is wrong with one key of the block."""
    written = str(value).lower() if isinstance(value, bool) else str(value)
    return Fault(field=f"configuration.{NAME}.{key}", value=written, problem=problem, mend=mend)
