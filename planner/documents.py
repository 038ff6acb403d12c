"""Writing the JSON contract: plans, predictions and errors as documents, and any document as text.

The schemas that they keep to stand in :mod:`planner.schemas`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any

from planner.errors import Conflict, Fault, InfeasibleError, PlannerError, SpecError
from planner.letters import visible_json
from planner.plan import Alternative, Plan, Prediction

__all__ = [
    "alternative_document",
    "dump",
    "error_document",
    "finite",
    "plan_document",
    "prediction_document",
]


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return ``planner.plan/1``."""
    return {
        "schema": "planner.plan/1",
        "status": plan.status.value,
        "problem": dict(plan.problem),
        "objective": {"name": plan.goal.field, "value": plan.objective, "bound": plan.bound, "gap": plan.gap},
        "family": plan.family,
        "configuration": plan.configuration.to_document(),
        "substitutions": list(plan.substitutions),
        "prediction": _prediction(plan.prediction),
        "explanation": list(plan.explanation),
        "assumptions": [*plan.key_assumptions, *plan.assumptions],
        "warnings": [*plan.cautions, *filter(None, [plan.instead]), *plan.warnings],
        "not_modelled": list(plan.not_modelled),
        "domain": list(plan.domain),
        "alternatives": [alternative_document(one) for one in plan.alternatives],
        "provenance": {
            "solver": plan.provenance.solver,
            "versions": dict(plan.provenance.versions),
            "input_digest": plan.provenance.input_digest,
            "seed": plan.provenance.seed,
            "num_candidates": plan.provenance.num_candidates,
            "num_solved": plan.provenance.num_solved,
        },
    }


def prediction_document(
    *,
    problem: Mapping[str, Any],
    family: str,
    configuration: Mapping[str, Any],
    prediction: Prediction,
    explanation: Sequence[str],
    assumptions: Sequence[str],
    warnings: Sequence[str],
    not_modelled: Sequence[str],
) -> dict[str, Any]:
    """Return ``planner.prediction/1``."""
    return {
        "schema": "planner.prediction/1",
        "problem": dict(problem),
        "family": family,
        "configuration": dict(configuration),
        "prediction": _prediction(prediction),
        "explanation": list(explanation),
        "assumptions": list(assumptions),
        "warnings": list(warnings),
        "not_modelled": list(not_modelled),
    }


def _prediction(prediction: Prediction) -> dict[str, Any]:
    """Return a prediction's fields in the order of its class."""
    return {
        "iteration_time_s": prediction.iteration_time_s,
        "epoch_time_s": prediction.epoch_time_s,
        "training_time_s": prediction.training_time_s,
        "breakdown_s": dict(prediction.breakdown_s),
        "communication_s": dict(prediction.communication_s),
        "scaling_factor": prediction.scaling_factor,
        "communication_to_computation": prediction.communication_to_computation,
        "memory_bytes": dict(prediction.memory_bytes),
        "cost_usd": prediction.cost_usd,
        "breakdown_usd": dict(prediction.breakdown_usd),
        "relative_error": None if prediction.relative_error is None else dict(prediction.relative_error),
        "details": dict(prediction.details),
    }


def alternative_document(one: Alternative) -> dict[str, Any]:
    """Return what lost, as plans and explanations have it."""
    return {
        "name": one.name,
        "family": one.family,
        "objective": one.objective,
        "relative_loss": one.relative_loss,
        "reason": one.reason,
        "configuration": None if one.configuration is None else one.configuration.to_document(),
        "substitutions": list(one.substitutions),
    }


def error_document(error: PlannerError, *, kind: str) -> dict[str, Any]:
    """Return ``planner.error/1``."""
    faults = error.faults if isinstance(error, SpecError) else ()
    first = faults[0] if faults else Fault(problem=str(error))
    rows = [
        {
            "file": fault.file or None,
            "line": fault.line,
            "column": fault.column,
            "field": fault.field or None,
            "value": fault.value or None,
            "problem": fault.problem,
            "mend": fault.mend or None,
        }
        for fault in faults
    ]
    top = {"file": first.file or None, "line": first.line, "field": first.field or None, "value": first.value or None}
    top["mend"] = first.mend or None
    document = {"schema": "planner.error/1", "kind": kind, "message": str(error), **top, "faults": rows}
    return {**document, **_conflicts(error.conflicts if isinstance(error, InfeasibleError) else ())}


def _conflicts(conflicts: Sequence[Conflict]) -> dict[str, Any]:
    """Return what conflicts, the first set at the top."""
    found = [
        {
            "members": [row.field for row in conflict.relaxations],
            "is_minimal": conflict.is_minimal,
            "relaxations": [
                {
                    "field": row.field,
                    "given": row.given,
                    "values": list(row.values),
                    "is_exact": row.is_exact,
                    "is_enough": row.is_enough,
                    "change": row.change,
                    "note": row.note,
                }
                for row in conflict.relaxations
            ],
        }
        for conflict in conflicts
    ]
    if not found:
        return {"conflict": None, "relaxations": [], "further_conflicts": []}
    first, *others = found
    relaxations = first.pop("relaxations")
    return {"conflict": first, "relaxations": relaxations, "further_conflicts": others}


def dump(document: Mapping[str, Any]) -> str:
    """Return a document as JSON text: the same bytes for the same document, and null for what JSON cannot write."""
    return visible_json(_json(document, "\n"))


def _json(value: Any, lead: str) -> str:
    """Return what ``json.dumps(finite(value), indent=2, ensure_ascii=False)`` does, in a third of the time.

    ``lead``: the line feed and the blanks before what closes the value.
    """
    if isinstance(value, Mapping):
        inner = f"{lead}  "
        rows = [f"{encode_basestring(str(key))}: {_json(part, inner)}" for key, part in value.items()]
        return f"{{{inner}{f',{inner}'.join(rows)}{lead}}}" if rows else "{}"
    if isinstance(value, list | tuple):
        inner = f"{lead}  "
        return f"[{inner}{f',{inner}'.join([_json(part, inner) for part in value])}{lead}]" if value else "[]"
    if isinstance(value, str):
        return encode_basestring(value)
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return repr(value)
    return json.dumps(finite(value), ensure_ascii=False)


def finite(value: Any) -> Any:
    """Return the value with null for what JSON cannot write."""
    if isinstance(value, Mapping):
        return {str(key): finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
