"""What was assumed for the user and may change the answer, each with its effect on the configuration that was found.

The configuration is predicted anew on the question with one assumption replaced by its likeliest other value. That is
no new search: for the other value another configuration may be better.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any

from pydantic import ValidationError

from planner.errors import PlannerError
from planner.families import FAMILIES
from planner.networks import asked, network_of
from planner.plan import Configuration
from planner.problem import Assumption, Problem
from planner.search import Search
from planner.spec.build import load
from planner.spec.configuration import ConfigurationSpec
from planner.words import percent_words

__all__ = ["MOST_ASSUMPTIONS", "WeighedAssumptions", "weigh_assumptions"]

MOST_ASSUMPTIONS = 5  # under a headline
_TELLING = 0.005  # relative change of the objective; what changes it less is a minor assumption
_IMPOSSIBLE = _TELLING  # what is not modelled at all comes after what changes the objective
_GRACE_S = 1.0  # for the effects, where the search took all of its time
_MOST_LAYERS = 5_000  # of a network that gets this grace
_NETWORK = ("nics", "network", "links")  # places of a spec that say what joins machines, but for its latency
_NETWORK_PLACE = 1  # in the order of assumptions


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedAssumptions:
    """Those that change the answer, a line each with effect and flag, the most important first; and the minor ones."""

    key: tuple[str, ...]
    minor: tuple[str, ...]


def weigh_assumptions(
    problem: Problem, family: str, configuration: Configuration, objective: float, search: Search
) -> WeighedAssumptions:
    """Return the assumptions of a question, ordered by their effect on the objective of a configuration.

    Links that were left out come first, then the network's cards and rate, whatever their effect; what has no other
    value to compare with is a minor one. After an
    interruption, or once the time is over, no effect is computed, and none is told.

    Parameters
    ----------
    problem
        With the network that the configuration trains.
    search
        Whose time is left for this.
    """
    rest = search.part(inf)
    if not search.was_interrupted and search.left_s < _GRACE_S and len(problem.dnn.layers) <= _MOST_LAYERS:
        rest = Search(time_limit_s=_GRACE_S)
    rows: list[tuple[int, float, str]] = []
    minor: list[str] = []
    for one in problem.key_assumptions:
        effect = _Effect.unknown()
        if not rest.is_over:
            make = partial(_effect, problem, family, configuration, objective, one)
            effect = search.bounded(make, effect)
        place = _place(one)
        has_little = effect.size < _TELLING if effect.is_known else one.other is None
        if has_little and place > _NETWORK_PLACE:
            minor.append(f"{one.text} ({one.flag})")
        else:
            rows.append((place, effect.size, f"{one.text}{effect.words}   ({one.flag})"))
    rows.sort(key=lambda row: (row[0], -row[1]))  # stable: equals stay as they were noted
    texts = [text for *_, text in rows]
    told = {one.text for one in problem.key_assumptions}
    others = [one for one in problem.assumptions if one not in told]
    return WeighedAssumptions(key=tuple(texts[:MOST_ASSUMPTIONS]), minor=(*texts[MOST_ASSUMPTIONS:], *minor, *others))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Effect:
    """What another value does: its words, and how much it matters; infinitely, where devices lack the memory."""

    words: str
    size: float
    is_known: bool = True

    @classmethod
    def unknown(cls) -> "_Effect":
        """Return what was not computed: it comes after all that was."""
        return cls(words="", size=-1.0, is_known=False)


def _effect(problem: Problem, family: str, configuration: Configuration, objective: float, one: Assumption) -> _Effect:
    """Return what the other value of an assumption does to a configuration."""
    if one.other is None or not objective:
        return _Effect.unknown()
    begin = f"; with {_value_words(one.other)}: "
    try:
        value, missing_bytes = _predicted(problem, family, configuration, one)
    except LookupError:
        return _Effect.unknown()
    except (PlannerError, ValidationError):
        return _Effect(words=f"{begin}another configuration is needed", size=_IMPOSSIBLE)
    if missing_bytes > 0:
        return _Effect(words=f"{begin}does not fit in memory", size=inf)
    change = value / objective - 1
    words = percent_words(change, is_signed=True) if abs(change) >= _TELLING / 10 else "no change"
    return _Effect(words=f"{begin}{words}", size=abs(change))


def _predicted(problem: Problem, family: str, configuration: Configuration, one: Assumption) -> tuple[float, float]:
    """Return the objective of a configuration with another assumption, and the bytes that a device then lacks."""
    block = {family: configuration.to_document()}
    given: dict[str, Any] = getattr(ConfigurationSpec.model_validate(block), family).model_dump()
    question: dict[str, Any] = dict(problem.resolved)
    for place in (one.field, *one.also):
        question = _with_value(question, place, one.other)
    question.pop("configuration", None)
    changed = network_of(asked(load(question)), problem.taken)
    chosen = FAMILIES[family].configuration_of(replace(changed, configuration=(family, given)), given)
    found = FAMILIES[family].predict(changed, chosen)
    held = found.memory_bytes
    return found.value_of(problem.goal), held["total"] - held["limit"] if "total" in held and "limit" in held else 0.0


def _with_value(tree: Mapping[str, Any], path: Sequence[str | int], value: Any) -> dict[str, Any]:
    """Return a question with another value at a place; raise LookupError where there is no such place.

    Only what stands on the way is copied. A block that is missing is added, a row of a list is not.
    """
    root: dict[str, Any] = dict(tree)
    current: Any = root
    for key, after in pairwise(path):
        inner = current.get(key, {} if isinstance(after, str) else None) if isinstance(current, dict) else current[key]
        if not isinstance(inner, list if isinstance(after, int) else dict):
            raise LookupError(key)
        current[key] = inner = inner.copy()
        current = inner
    current[path[-1]] = value
    return root


def _value_words(value: Any) -> str:
    """Return another value in a few words."""
    if isinstance(value, Mapping):
        value = value.get("bandwidth", ", ".join(f"{name} {part}" for name, part in value.items()))
    if isinstance(value, float) and 0 < value <= 1:
        return percent_words(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _place(one: Assumption) -> int:
    """Return 0 of links that were left out, 1 of the network's cards and rate, 2 of anything else."""
    if one.flag == "cluster.links":
        return 0
    is_network = one.flag != "--latency" and any(part in _NETWORK for part in one.field)
    return _NETWORK_PLACE if is_network else _NETWORK_PLACE + 1
