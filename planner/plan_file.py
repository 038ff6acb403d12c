"""A plan read back from the file that ``planner plan --out`` wrote; every hostile file is refused in words."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.documents import PlanDocument
from planner.errors import Fault, SpecError
from planner.importers.text import read_text

__all__ = ["is_plan", "read_plan"]

_SCHEMA = "planner.plan/1"
_MEND = "Give a file that `planner plan --out` wrote."
_MOST_FAULTS = 5
_MOST_HEAD = 200  # letters in which a schema stands, if it does


def read_plan(source: Path | Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan's document, checked against its schema.

    Raises
    ------
    SpecError
        If the file cannot be read, is no JSON, is no plan of this version, or lacks something that a plan has.
    """
    file = "" if isinstance(source, Mapping) else str(source)
    document = source if isinstance(source, Mapping) else _parsed(source)
    if not isinstance(document, Mapping) or not isinstance(document.get("schema"), str):
        raise _error(file, "this is no plan.")
    if document["schema"] != _SCHEMA:
        raise _error(file, f"its schema is {document['schema'][:60]!r}, not {_SCHEMA!r}.", field="schema")
    try:
        plan = PlanDocument.model_validate(document)
    except ValidationError as error:
        raise SpecError.of(_faults(error, file)) from None
    for name, value in (("objective.value", plan.objective.value), ("prediction", plan.prediction.iteration_time_s)):
        if not 0 <= value < math.inf:
            raise _error(file, f"a plan takes no {value} s.", field=name)
    return plan.model_dump(by_alias=True)


def is_plan(path: Path) -> bool:
    """Whether a file is to be read as a plan, and not as a spec: JSON, whole or not, with a schema at its top."""
    if path.suffix != ".json" or not path.is_file():
        return False
    text = read_text(path)
    return text.lstrip().startswith("{") and '"schema"' in text[:_MOST_HEAD]


def _parsed(path: Path) -> Any:
    """Return what a JSON file holds."""
    try:
        return json.loads(read_text(path), parse_constant=_refused, parse_float=_finite)
    except json.JSONDecodeError as error:
        fault = Fault(
            file=str(path),
            line=error.lineno,
            column=error.colno,
            problem=f"this is no JSON, or not all of it: {error.msg}.",
            mend=_MEND,
        )
        raise SpecError.of([fault]) from None
    except (RecursionError, ValueError):
        raise _error(str(path), "this JSON is nested too deeply, or holds a number that is none.") from None


def _finite(text: str) -> float:
    """Return a number; refuse one beyond all floats."""
    value = float(text)
    return value if math.isfinite(value) else _refused(text)


def _refused(text: str) -> float:
    """Refuse NaN and infinity, which JSON does not know."""
    raise ValueError(f"{text} is no number")


def _faults(error: ValidationError, file: str) -> list[Fault]:
    """Return what a plan lacks, or has too much, the first few of it."""
    rows = error.errors(include_url=False, include_input=False)
    faults = [
        Fault(
            file=file,
            field=".".join(map(str, row["loc"])),
            problem=f"{row['msg'].rstrip('.')}.",
            mend=f"A plan of {_SCHEMA} looks otherwise. {_MEND}",
        )
        for row in rows[:_MOST_FAULTS]
    ]
    more = len(rows) - len(faults)
    return faults + [Fault(file=file, problem=f"and {more} more such faults.")] * (more > 0)


def _error(file: str, problem: str, field: str = "") -> SpecError:
    """Return the error of one fault."""
    return SpecError.of([Fault(file=file, field=field, problem=problem, mend=_MEND)])
