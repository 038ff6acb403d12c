"""One question, one plan: the ranking's best with its provenance, its known error, or why there is none."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any, get_type_hints

from pydantic import ValidationError

from planner.data.accuracy import with_known_error
from planner.errors import InfeasibleError, SpecError
from planner.families import FAMILIES
from planner.networks import network_of
from planner.plan import Configuration, Plan
from planner.problem import Problem
from planner.ranking import best_plan
from planner.search import Search
from planner.solution import Status
from planner.spec.configuration import ConfigurationSpec

__all__ = ["as_asked", "doubts_of", "part_of", "planned", "refuse_variant", "with_known_error"]


_LEAST_S = 5.0  # for the plan of a fleet that was chosen, whatever time is left


def part_of(search: Search) -> Search:
    """Return a search for the plan of a fleet that was chosen: a few seconds even where the time is over by then."""
    if search.was_interrupted or search.left_s >= _LEAST_S:
        return search.part(search.left_s, num_alternatives=1)
    return Search(time_limit_s=_LEAST_S, memory_limit_bytes=search.memory_limit_bytes, num_alternatives=1)


def as_asked(problem: Problem, configuration: Configuration) -> tuple[str, Configuration]:
    """Return the family of a configuration, and it as its block means it: by the same rules as one of a spec."""
    kinds = {name: get_type_hints(family.predict)["configuration"] for name, family in FAMILIES.items()}
    family = next((name for name, kind in kinds.items() if isinstance(configuration, kind)), None)
    if family is None:
        raise SpecError(f"configuration: {type(configuration).__name__} belongs to no family. Give one of a plan.")
    try:
        block = getattr(ConfigurationSpec.model_validate({family: configuration.to_document()}), family)
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecError(f"configuration.{'.'.join(map(str, first['loc']))}: {first['msg']}.") from None
    given: dict[str, Any] = block.model_dump()
    return family, FAMILIES[family].configuration_of(replace(problem, configuration=(family, given)), given)


def doubts_of(objective: float, stated: Mapping[str, Any], status: str) -> list[str]:
    """Return why a file's proof is not to be trusted: what contradicts the cost model, or itself."""
    value, bound, found = stated["value"], stated["bound"], []
    if abs(objective - value) > 1e-6 * objective:
        found.append(f"the file says {value:.6g} s; this version's cost model says {objective:.6g} s")
    if bound > value * (1 + 1e-6):
        found.append(f"the file's bound, {bound:.6g} s, is above its own {value:.6g} s")
    if status == Status.OPTIMAL and bound < value * (1 - 1e-6):
        found.append(f"the file says optimal, and its bound, {bound:.6g} s, is below its {value:.6g} s")
    return [f"{one}; what it says to be proven is not taken over" for one in found]


def refuse_variant(problem: Problem) -> None:
    """Refuse to plan by a paper's printed equations."""
    if problem.variant != "corrected":
        message = (
            f"variant: {problem.variant!r} is for `planner predict` and cases. Leave it out: a plan keeps "
            f"to the physics."
        )
        raise SpecError(message)


def planned(problem: Problem, search: Search) -> Plan:
    """Return the best plan within a search, with its provenance; why there is none where there is none."""
    try:
        best = best_plan(problem, search)
    except InfeasibleError as error:
        from planner.conflicts.diagnose import diagnosed  # noqa: PLC0415  # late: only where nothing fits

        raise diagnosed(problem, error, best_plan, search) from None
    chosen = network_of(problem, best.substitutions)
    best = replace(best, prediction=with_known_error(chosen, best.family, best.configuration, best.prediction))
    provenance = replace(best.provenance, versions=_versions(), input_digest=_digest(problem))
    return replace(best, provenance=provenance)


@cache
def _versions() -> Mapping[str, str]:
    """Return the versions on which an answer may depend."""
    found = {}
    for name in ("training-planner", "numpy", "scipy", "networkx", "ortools"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a checkout that was never installed
            found[name] = "not installed"
    return MappingProxyType(found)


def _digest(problem: Problem) -> str:
    """Return a digest of the resolved question."""
    text = json.dumps(problem.resolved, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
