"""A plan carried over to another question: its own configuration, at what it costs there.

What other hardware brings is never worse than to go on as before, as long as that is possible. Whether it is, the
checker judges, so that no limit of the other question is broken unseen.
"""

from dataclasses import replace

from pydantic import ValidationError

from planner.checks import check
from planner.errors import PlannerError
from planner.families import FAMILIES
from planner.networks import asked, network_of
from planner.plan import Plan
from planner.problem import Problem
from planner.solution import Status
from planner.spec.configuration import ConfigurationSpec

__all__ = ["carried"]


def carried(problem: Problem, plan: Plan) -> Plan | None:
    """Return the configuration of another question's plan as a plan of this one; None where it is none here.

    Nothing is proven of it: its bound is 0.
    """
    try:
        found = _recomputed(problem, plan)
        return found if check(asked(problem), found).is_ok else None
    except (PlannerError, ValidationError):  # it means nothing on this hardware
        return None


def _recomputed(problem: Problem, plan: Plan) -> Plan:
    """Return a plan at what its configuration costs here, read anew from its block."""
    block = {plan.family: plan.configuration.to_document()}
    given = getattr(ConfigurationSpec.model_validate(block), plan.family).model_dump()
    network = replace(network_of(asked(problem), plan.substitutions), configuration=(plan.family, given))
    configuration = FAMILIES[plan.family].configuration_of(network, given)
    prediction = FAMILIES[plan.family].predict(network, configuration)
    return replace(
        plan,
        goal=problem.goal,
        status=Status.FEASIBLE,
        objective=prediction.value_of(problem.goal),
        bound=0.0,
        configuration=configuration,
        prediction=prediction,
        alternatives=(),
    )
