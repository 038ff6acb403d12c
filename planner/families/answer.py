"""What every family's search ends with: a plan, its status and bound, what the goal counts; or bounds by number."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Protocol, overload

from planner.cost import Floats, Ints
from planner.frozen import frozen
from planner.plan import Alternative, Configuration, Plan, Prediction, Provenance
from planner.problem import Problem
from planner.search import Search
from planner.solution import SAME, Status
from planner.units import Dimension, format_human

TOO_SHORT = "the time limit came before the first answer was found; raise --time-limit."


def no_sample_fits(
    needed_bytes: float, most_bytes: float, device: str, *, samples: int = 1, whole_bytes: float = 0.0
) -> str:
    """Return that no device holds one sample at a time.

    ``most_bytes``: what the largest of them may hold; ``whole_bytes``: what ``samples`` need, which must pass together.
    """
    sizes = (needed_bytes, most_bytes, whole_bytes, max(needed_bytes, whole_bytes) * 1.001)
    size, limit, whole, more = (format_human(one, Dimension.DATA, 4) for one in sizes)
    shared = f"; a share of {samples} samples, which pass together, needs {whole}" if samples > 1 else ""
    return (
        f"No plan fits: even one sample at a time needs {size} on a device, which may hold {limit} ({device}){shared}. "
        f"Raise memory_per_device to {more}, take devices with more memory, or another optimizer or dtype."
    )


def in_company(problem: Problem) -> Problem:
    """Return the question with what links may reach in a cluster that has others, for bounds that hold there."""
    fitted = problem.calibration
    links = fitted.links.in_company(may_change_transport=fitted.transport is None)
    return replace(problem, calibration=replace(fitted, links=links))


@overload
def iterations_of(problem: Problem, global_batch_size: float) -> float: ...
@overload
def iterations_of(problem: Problem, global_batch_size: Floats | Ints) -> Floats | float: ...
def iterations_of(problem: Problem, global_batch_size: Floats | Ints | float) -> Floats | float:
    """Return how many iterations the goal counts: 1, those of an epoch, or those of the whole training.

    An array of batches gives an array.
    """
    training = problem.training
    if problem.goal.name == "iteration_time":
        return 1.0
    samples = float(training.dataset_samples or 0)
    return samples / global_batch_size * ((training.epochs or 1.0) if problem.goal.name == "training_time" else 1.0)


class Costed(Protocol):
    """A configuration and what the goal counts of it."""

    @property
    def configuration(self) -> Configuration:
        """The decisions."""
        ...

    @property
    def objective(self) -> float:
        """In the goal's unit."""
        ...


def alternative_of(name: str, other: Costed, best: Costed, reason: str, *, family: str) -> Alternative:
    """Return a configuration that lost against the best."""
    return Alternative(
        name=name,
        family=family,
        objective=other.objective,
        relative_loss=other.objective / best.objective - 1 if best.objective else 0.0,
        reason=reason,
        configuration=other.configuration,
    )


@frozen
class Searched:
    """What a family's search says of itself.

    ``beyond``: layouts that it leaves out, by name: the objective that none of them beats.
    """

    family: str
    solver: str
    not_modelled: Sequence[str] = ()
    num_candidates: int = 0
    num_solved: int = 0
    beyond: Mapping[str, float] = field(default_factory=dict)


def plan_of(
    problem: Problem,
    searched: Searched,
    *,
    configuration: Configuration,
    prediction: Prediction,
    bound: float,
    explanation: Sequence[str],
    alternatives: Sequence[Alternative] = (),
    warnings: Sequence[str] = (),
) -> Plan:
    """Return the plan of a configuration: its objective is the prediction's, and it is optimal if the bound meets it.

    Parameters
    ----------
    bound
        No configuration of the family does better. One above the objective, by rounding, is lowered to it.
    alternatives
        In any order; they are ranked here.
    """
    objective = prediction.value_of(problem.goal)
    is_proven = objective - bound <= SAME * objective
    return Plan(
        goal=problem.goal,
        status=Status.OPTIMAL if is_proven else Status.FEASIBLE,
        objective=objective,
        bound=objective if is_proven else bound,
        family=searched.family,
        configuration=configuration,
        prediction=prediction,
        explanation=tuple(explanation),
        alternatives=tuple(sorted(alternatives, key=lambda one: one.objective)),
        provenance=Provenance(
            solver=searched.solver,
            versions={},
            input_digest="",
            num_candidates=searched.num_candidates,
            num_solved=searched.num_solved,
        ),
        assumptions=problem.assumptions,
        warnings=tuple(dict.fromkeys([*problem.warnings, *warnings])),  # a family may warn of what the question does
        not_modelled=tuple(searched.not_modelled),
        beyond=searched.beyond,
        problem=problem.resolved,
    )


# --- What no plan takes less than, by the number of machines that it uses
#
# A purchase asks for the best of many numbers of machines. Planning each on its own repeats nearly the same search;
# here a family's search runs once over all of them. Its goal is the least share of a weight that depends on how many
# machines a plan takes, as of the seconds that as much money pays for, among plans below a limit of as many.


@frozen
class CountBounds:
    """The outcome."""

    # entry n - 1: no plan on exactly n machines takes less. Where that is the weight or the limit, none is below it
    bounds_s: Floats
    # of the plan of the least share, of those found; None where none below its weight and its limit was found
    num_machines: int | None = None
    plan: Plan | None = None  # that plan, where the family has it at hand


# ``(problem, weight_s, limit_s, search)``: equal machines, and for n = 1 .. all the seconds of which a plan on n
# is to take the least share, and those from which on it does not matter, neither ever rising with n. None where the
# family cannot tell.
LeastByCount = Callable[[Problem, Floats, Floats, Search], CountBounds | None]
# ``(problem, usd_per_s, more_usd_per_s, within_s, most_usd, search)``: several kinds of machines, and by their name
# what one costs for every second; what every second costs besides; seconds in which the training must be done; and an
# amount from which on it does not matter what it costs. What it costs at least on some machines of every kind.
LeastBeside = Callable[[Problem, Mapping[str, float], float, float, float, Search], float | None]


class LeastParts(Protocol):
    """What says how many device-seconds each part of a training takes at least on machines of one kind beside others.

    ``enough_s``: from which on it does not matter how long all parts take, 0 where the pace alone is wanted;
    ``within_s``: in which it must be done; ``fastest_s``: what all parts take on any device; ``machines``: the fewest
    of all kinds, several numbers, each a row of the result.
    """

    def __call__(
        self,
        problem: Problem,
        *,
        enough_s: float,
        within_s: float,
        fastest_s: float,
        machines: Sequence[int],
    ) -> Floats | None:
        """Return them; None where the family cannot tell."""
        ...
