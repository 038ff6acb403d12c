"""Writing the JSON contract: plans, predictions and errors as documents, and any document as text.

The schemas that they keep to stand in :mod:`planner.answer.schemas`.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from json.encoder import encode_basestring
from typing import Any

from planner.errors import Fault, InfeasibleError, PlannerError, SpecError
from planner.letters import visible_json
from planner.plan import Predicted


def prediction_document(found: Predicted, problem: Mapping[str, object]) -> dict[str, object]:
    """Return ``planner.prediction/1``; ``problem``: the question, resolved."""
    return {
        "schema": "planner.prediction/1",
        "problem": dict(problem),
        "family": found.family,
        "configuration": found.configuration.to_document(),
        "prediction": found.prediction.to_dict(),
        "explanation": list(found.explanation),
        "assumptions": [*found.key_assumptions, *found.assumptions],
        "warnings": [*found.cautions, *found.warnings],
        "not_modelled": list(found.not_modelled),
    }


def error_document(error: PlannerError, *, kind: str) -> dict[str, Any]:
    """Return ``planner.error/1``."""
    faults = error.faults if isinstance(error, SpecError) else ()
    conflicts = error.conflicts if isinstance(error, InfeasibleError) else ()
    first, *_ = (*faults, Fault(problem=str(error)))

    def told(fault: Fault, *names: str) -> dict[str, Any]:
        return {name: None if getattr(fault, name) == "" else getattr(fault, name) for name in names}

    sets = [{"members": [row.field for row in one.relaxations], "is_minimal": one.is_minimal} for one in conflicts]
    relaxed = [[{**asdict(row), "values": list(row.values)} for row in one.relaxations] for one in conflicts]
    further = [{**one, "relaxations": rows} for one, rows in zip(sets, relaxed, strict=True)][1:]
    return {
        "schema": "planner.error/1",
        "kind": kind,
        "message": str(error),
        **told(first, "file", "line", "field", "value", "mend"),
        "faults": [
            {**told(one, "file", "line", "column", "field", "value"), "problem": one.problem, **told(one, "mend")}
            for one in faults
        ],
        "conflict": sets[0] if sets else None,
        "relaxations": relaxed[0] if relaxed else [],
        "further_conflicts": further,
    }


def dump(document: Mapping[str, object]) -> str:
    """Return a document as JSON text: the same bytes for the same document, and null for what JSON cannot write."""
    return visible_json(_json(document, "\n"))


def _json(value: object, lead: str) -> str:
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


def finite(value: object) -> Any:
    """Return the value with null for what JSON cannot write."""
    if isinstance(value, Mapping):
        return {str(key): finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
