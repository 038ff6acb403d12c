"""What a plan states about itself: figures that belong together, its bound, gap and status, and its question."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from planner.checks.facts import holds
from planner.checks.report import SAME, Finding, agree, agreement
from planner.plan import Prediction
from planner.problem import Problem

__all__ = ["certificate", "stated_figures"]

_NUMBERS = ("iteration_time_s", "epoch_time_s", "training_time_s", "scaling_factor", "communication_to_computation")
_TABLES = ("breakdown_s", "communication_s", "memory_bytes", "breakdown_usd")


def stated_figures(problem: Problem, document: Mapping[str, Any], found: Prediction) -> Iterator[Finding]:
    """Yield whether every figure of the plan is what the cost model says of its configuration."""
    stated, objective = document["prediction"], document["objective"]
    goal = problem.goal
    yield holds(
        "goal",
        objective["name"] == goal.field,
        f"{goal.field}, as the question asks",
        f"the plan minimises {objective['name']}; the question asks for {goal.field}",
    )
    yield agreement("objective", [(goal.field, objective["value"], found.value_of(goal))])
    yield agreement("prediction", [(name, stated[name], getattr(found, name)) for name in _NUMBERS])
    for table in _TABLES:
        old, new = stated[table], getattr(found, table)
        names = list(dict.fromkeys((*old, *new)))
        if names:
            yield agreement(table, [(name, old.get(name, math.nan), new.get(name, math.nan)) for name in names])
    yield _sum("breakdown_s sums up", stated["breakdown_s"], stated["iteration_time_s"])
    if stated["memory_bytes"]:
        terms = {name: size for name, size in stated["memory_bytes"].items() if name not in ("total", "limit")}
        yield _sum("memory_bytes sums up", terms, stated["memory_bytes"]["total"])
    rows = list(_pairs("details", stated["details"], _plain(found.details)))
    if rows:
        yield agreement("details", rows)


def _sum(name: str, terms: Mapping[str, float], whole: float) -> Finding:
    """Return whether terms make up a whole."""
    found = math.fsum(float(one) for one in terms.values())
    is_ok = abs(found - whole) <= SAME * max(abs(whole), math.fsum(abs(float(one)) for one in terms.values()))
    return holds(name, is_ok, f"to {whole:.9g}", f"to {found:.12g}, not to {whole:.12g}")


def _plain(value: Any) -> Any:
    """Return the family's figures as JSON would hold them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _pairs(path: str, stated: Any, found: Any) -> Iterator[tuple[str, float | None, float | None]]:
    """Yield all numbers of nested figures, stated and recomputed; what one side lacks counts as nan."""
    if isinstance(stated, Mapping) or isinstance(found, Mapping):
        old, new = (one if isinstance(one, Mapping) else {} for one in (stated, found))
        for key in dict.fromkeys((*old, *new)):
            yield from _pairs(f"{path}.{key}", old.get(key, math.nan), new.get(key, math.nan))
    elif isinstance(stated, list) or isinstance(found, list):
        old_rows, new_rows = (one if isinstance(one, list) else [] for one in (stated, found))
        for index in range(max(len(old_rows), len(new_rows))):
            pair = [rows[index] if index < len(rows) else math.nan for rows in (old_rows, new_rows)]
            yield from _pairs(f"{path}.{index}", *pair)
    elif isinstance(stated, int | float) or isinstance(found, int | float):
        numbers = [one if isinstance(one, int | float) or one is None else math.nan for one in (stated, found)]
        yield path, numbers[0], numbers[1]
    elif stated != found:
        yield path, math.nan, math.nan


def certificate(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether bound, gap and status are consistent, and whether the question is the one that was planned."""
    objective, status = document["objective"], document["status"]
    value, bound, gap = objective["value"], objective["bound"], objective["gap"]
    is_number = all(math.isfinite(one) and one >= 0 for one in (value, bound))
    yield holds("figures", is_number, "objective and bound are finite", f"objective {value} and bound {bound} are not")
    yield holds(
        "bound",
        bound <= value * (1 + SAME),
        f"{bound:.9g} is no more than the objective",
        f"{bound:.12g} is above the objective {value:.12g}",
    )
    expected = (value - bound) / value if value else 0.0
    is_gap = abs(gap - expected) <= SAME
    yield holds("gap", is_gap, f"{gap:.3g}", f"{gap:.6g} is stated; (objective - bound) / objective is {expected:.6g}")
    is_closed = expected <= SAME
    yield holds(
        "status",
        is_closed == (status == "optimal"),
        f"{status}, as the gap says",
        f"{status} is stated with a gap of {expected:.3g}",
    )
    for index, one in enumerate(document["alternatives"]):
        loss = one["objective"] / value - 1 if value else 0.0
        if not (agree(loss, one["relative_loss"]) or abs(loss - one["relative_loss"]) <= SAME):
            text = f"alternatives.{index}: {one['relative_loss']:.6g} is stated; its objective makes it {loss:.6g}"
            yield Finding(name="alternatives", is_ok=False, text=text)
    digest = hashlib.sha256(json.dumps(document["problem"], sort_keys=True, default=str).encode()).hexdigest()[:16]
    stated = document["provenance"]["input_digest"]
    yield holds(
        "question",
        digest == stated,
        f"the one that was planned ({digest})",
        f"it was changed after planning: its digest is {digest}, and {stated} was planned",
    )
