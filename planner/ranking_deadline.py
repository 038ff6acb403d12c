"""A plan that misses the deadline: refused, with by how much it is missed and what is proven of it."""

from planner.errors import InfeasibleError, NoAnswerError
from planner.plan import Plan
from planner.problem import Problem
from planner.search import Search
from planner.units import Dimension, format_human
from planner.words import time_words

__all__ = ["check_deadline"]


def check_deadline(problem: Problem, best: Plan, search: Search) -> None:
    """Refuse a plan that misses the deadline; say by how much, if no plan meets it, or that none was found.

    How far it has to give is said here only where no time is left for the diagnosis, which says it otherwise.
    """
    deadline_s, prediction = problem.limits.deadline_s, best.prediction
    needed_s = prediction.epoch_time_s if prediction.training_time_s is None else prediction.training_time_s
    if deadline_s is None or needed_s is None or needed_s <= deadline_s:
        return
    least_s = needed_s * best.bound / best.objective
    what = "an epoch" if prediction.training_time_s is None else "the training"
    if least_s <= deadline_s:
        needed, limit = _apart(needed_s, deadline_s)
        raise NoAnswerError(
            f"No plan found: {what} takes {needed} with the best one, and constraints.deadline is {limit}: it is "
            f"missed by {time_words(needed_s - deadline_s)}. It is only proven that none takes less than "
            f"{time_words(least_s)}. Raise --time-limit."
        )
    least, limit = _apart(least_s, deadline_s)
    mend = f"Raise it to {format_human(needed_s * 1.001, Dimension.TIME, 4)}" if search.is_over else "Raise it"
    raise InfeasibleError(
        f"No plan fits: {what} takes at least {least}, and constraints.deadline is {limit}: it is missed by at least "
        f"{time_words(least_s - deadline_s)}. {mend}, or add machines."
    )


def _apart(seconds: float, other_s: float) -> tuple[str, str]:
    """Return two different times with as many digits as it takes to tell them apart; :func:`format_human` has 3."""
    for digits in range(3, 17):
        one, other = (format_human(value, Dimension.TIME, digits) for value in (seconds, other_s))
        if one != other:
            return one, other
    return f"{seconds!r} s", f"{other_s!r} s"
