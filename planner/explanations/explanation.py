"""Why a plan is as it is: what binds, where its time goes, what other hardware would bring, and who came second."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from planner.documents import alternative_document
from planner.explanations.sensitivity import Sensitivity, headline, sensitivities
from planner.families import FAMILIES
from planner.networks import asked, network_of
from planner.plan import Alternative, Plan
from planner.problem import Problem
from planner.search import Search
from planner.solution import Status
from planner.words import beyond_words

__all__ = ["Explanation", "explain"]

_TIE = 1e-6  # a relative loss below which an alternative says nothing new
_REFUSAL = " gives no plan: "  # as the ranking says it


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A plan explained.

    Attributes
    ----------
    title
        Network and cluster.
    headline
        Family, devices and network of the plan.
    binding
        What its family says that binds.
    breakdown
        Terms of an iteration with their seconds and shares, the largest first.
    sensitivities
        The largest saving first.
    runners_up
        The best plan of each family on each network beside the chosen one, in order of objective.
    refusals
        Families that gave no plan, each with its reason.
    proof
        What is proven, in words.
    """

    title: str
    plan: Plan
    headline: str
    binding: tuple[str, ...]
    breakdown: tuple[tuple[str, float, float], ...]
    sensitivities: tuple[Sensitivity, ...]
    runners_up: tuple[Alternative, ...]
    refusals: tuple[str, ...]
    proof: str
    warnings: tuple[str, ...]

    def to_document(self) -> dict[str, Any]:
        """Return ``planner.explanation/1``."""
        plan = self.plan
        return {
            "schema": "planner.explanation/1",
            "status": plan.status.value,
            "objective": {"name": plan.goal.field, "value": plan.objective, "bound": plan.bound, "gap": plan.gap},
            "family": plan.family,
            "headline": self.headline,
            "substitutions": list(plan.substitutions),
            "binding": list(self.binding),
            "breakdown": [
                {"name": name, "seconds": seconds, "share": share} for name, seconds, share in self.breakdown
            ],
            "sensitivities": [asdict(one) for one in self.sensitivities],
            "runners_up": [alternative_document(one) for one in self.runners_up],
            "refusals": list(self.refusals),
            "proof": self.proof,
            "warnings": list(self.warnings),
        }


def explain(problem: Problem, plan: Plan, search: Search) -> Explanation:
    """Return why a plan of a question is as it is; other hardware is planned anew within the search's limits."""
    question = asked(problem)
    network = network_of(question, plan.substitutions)
    return Explanation(
        title=f"{question.dnn.name} on {question.cluster.name}",
        plan=plan,
        headline=headline(plan),
        binding=FAMILIES[plan.family].explain(network, plan.configuration, plan.prediction),
        breakdown=_breakdown(plan),
        sensitivities=sensitivities(question, plan, search),
        runners_up=_runners_up(plan),
        refusals=tuple(line for line in plan.explanation if _REFUSAL in line),
        proof=_proof(plan),
        warnings=plan.warnings,
    )


def _breakdown(plan: Plan) -> tuple[tuple[str, float, float], ...]:
    """Return the terms of an iteration, the largest first."""
    terms: Mapping[str, float] = plan.prediction.breakdown_s
    total_s = plan.prediction.iteration_time_s
    rows = [(name, seconds, seconds / total_s if total_s else 0.0) for name, seconds in terms.items()]
    return tuple(sorted(rows, key=lambda row: -row[1]))


def _runners_up(plan: Plan) -> tuple[Alternative, ...]:
    """Return the best alternative of each family on each network; one that ties with the plan only where all do."""
    best: dict[tuple[str, tuple[str, ...]], Alternative] = {}
    for one in sorted(plan.alternatives, key=lambda one: (one.relative_loss <= _TIE, one.objective)):
        best.setdefault((one.family, one.substitutions), one)
    return tuple(sorted(best.values(), key=lambda one: one.objective))


def _proof(plan: Plan) -> str:
    """Return what is proven about a plan."""
    if plan.status is Status.OPTIMAL:
        return "; ".join(["no plan of the searched space is better, under this cost model", *beyond_words(plan)])
    if plan.bound <= 0:
        return "nothing is proven of how much better another plan may be"
    return f"no plan is better by more than {plan.gap:.1%}, under this cost model; this one is not proven best"
