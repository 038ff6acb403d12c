"""A plan read back from the file that ``planner plan --out`` wrote; every hostile file is refused in words.

Whether a file is a plan is told by its content, whatever its name. What is read has the form of ``planner.plan/1``:
every field is there and of its type, no key stands twice, and a number is a number, not text that looks like one. What
the figures say is not judged here, see :mod:`planner.checks`.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.answer.documents import finite
from planner.answer.schemas import PlanDocument, ProcurementDocument
from planner.errors import Fault, SpecError
from planner.importers.text import MOST_DOCUMENT_BYTES, read_text
from planner.letters import visible_data

_SCHEMA, _PROCUREMENT = "planner.plan/1", "planner.procurement/1"
_SPEC = "planner.spec/"  # a question may name its schema, too
_MEND = "Give a file that `planner plan --out` wrote."
_MOST_FAULTS = 5
_MOST_LETTERS = 60  # of a value that is shown
# Of JSON that is cut off, whose first key it is, or of YAML.
_SCHEMA_LINE = re.compile(r"""(?:\A\s*\{\s*|^)["']?schema["']?\s*:\s*["']?(planner\.[a-z]+/)""", re.MULTILINE)


def read_plan(source: Path | Mapping[str, object]) -> dict[str, Any]:
    """Return a plan's document, checked against its schema; ``source`` is a file, or a document that was read.

    The answer to a question of a purchase that holds one plan is read as that plan.

    Raises
    ------
    SpecError
        If the file cannot be read, is no JSON, is no plan of this version, or a field of it is missing or of another
        type.
    """
    file = "" if isinstance(source, Mapping) else str(source)
    document = _numbers(finite(source), file) if isinstance(source, Mapping) else _parsed(source)
    if not isinstance(document, Mapping):
        raise _error(file, "this is no plan.")
    schema = document.get("schema")
    if not isinstance(schema, str):
        raise _error(file, f"this is no plan: {'it has no schema' if schema is None else 'its schema is no text'}.")
    if schema == _PROCUREMENT:
        document, schema = _only_plan(document, file), _SCHEMA
    if schema != _SCHEMA:
        raise _error(file, f"its schema is {_shown(schema)}, not {_SCHEMA!r}.", field="schema")
    try:
        plan = PlanDocument.model_validate(document, strict=True)
    except ValidationError as error:
        raise SpecError.of(_faults(error, file)) from None
    for name, value in (("objective.value", plan.objective.value), ("prediction", plan.prediction.iteration_time_s)):
        if value < 0:
            raise _error(file, f"a plan takes no {value} s.", field=name)
    return _seen(plan.model_dump(by_alias=True))


def _seen(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document whose texts can be printed; questions in it stay as they are, for their digest."""
    found: dict[str, Any] = visible_data(document, but="problem")
    return found


def _only_plan(document: Mapping[str, Any], file: str) -> Mapping[str, Any]:
    """Return the plan in the answer to a question of a purchase."""
    plans = read_procurement(document, file)["choice"]["plans"]
    if len(plans) != 1:
        names = ", ".join(plans) or "no job"
        raise _error(file, f"this holds plans of {names}, not of one training.", field="choice.plans")
    plan: Mapping[str, Any] = next(iter(plans.values()))
    return plan


def read_procurement(source: Path | Mapping[str, object], file: str = "") -> dict[str, Any]:
    """Return the answer to a question of a purchase, checked against its schema; each plan in it, too.

    Raises
    ------
    SpecError
        As :func:`read_plan`.
    """
    file = file if isinstance(source, Mapping) else str(source)
    document = _numbers(finite(source), file) if isinstance(source, Mapping) else _parsed(source)
    try:
        found = ProcurementDocument.model_validate(document, strict=True)
    except ValidationError as error:
        faults = _faults(error, file, _PROCUREMENT)
        mend = "Give a file that `planner procure --out` wrote."
        raise SpecError.of(replace(one, mend=one.mend.replace(_MEND, mend)) for one in faults) from None
    return _seen(found.model_dump(by_alias=True))


def purchase_of(source: Path | Mapping[str, object]) -> dict[str, Any] | None:
    """Return the answer to a question of a purchase as :func:`read_procurement`; None of any other file or document."""
    is_answer = is_procurement(source) if isinstance(source, Path) else source.get("schema") == _PROCUREMENT
    return read_procurement(source) if is_answer else None


def is_procurement(path: Path) -> bool:
    """Whether a file holds the answer to a question of a purchase; not where it cannot be read as JSON."""
    try:
        document = json.loads(read_text(path, most_bytes=MOST_DOCUMENT_BYTES))
    except (ValueError, RecursionError):
        return False
    return isinstance(document, Mapping) and document.get("schema") == _PROCUREMENT


def is_plan(path: Path) -> bool:
    """Whether a file is to be read as a plan, and not as a spec: its content has the schema of an answer at its top.

    So is one that is cut off, or that is no JSON any more: reading it as a plan then says what is wrong with it.

    Raises
    ------
    SpecError
        If the file cannot be read, is empty, or is no text.
    """
    text = read_text(path, most_bytes=MOST_DOCUMENT_BYTES)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        found = _SCHEMA_LINE.search(text)
        return found is not None and found[1] != _SPEC
    schema = document.get("schema") if isinstance(document, Mapping) else None
    return schema is not None and not str(schema).startswith(_SPEC)


def _parsed(path: Path) -> Any:
    """Return what a JSON file holds."""
    try:
        document = json.loads(read_text(path, most_bytes=MOST_DOCUMENT_BYTES), object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise SpecError.one(
            f"this is no JSON, or not all of it: {error.msg}.", _MEND, file=path, line=error.lineno, column=error.colno
        ) from None
    except _TwiceError as error:
        raise _error(str(path), "this key stands twice.", field=str(error)) from None
    except (RecursionError, ValueError):
        raise _error(str(path), "this JSON is nested too deeply, or holds a number that is none.") from None
    return _numbers(document, str(path))


def _numbers(document: Any, file: str) -> Any:
    """Return a document whose numbers are all finite, and no larger than a float can be; refuse any other."""
    faults = [
        Fault(file=file, field=field, problem=f"{_shown(value)} is not a finite number.", mend=_MEND)
        for field, value in _not_finite(document, "")
    ]
    if faults:
        raise SpecError.of(faults[:_MOST_FAULTS])
    return document


class _TwiceError(Exception):
    """A key that stands twice in one object, where one reader takes the first and another the last."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; refuse one with a key that stands twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(next(name for name in names if names.count(name) > 1))
    return found


def _not_finite(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Yield where NaN, infinity, or a number beyond all floats stands: a plan holds none of them."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _not_finite(part, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _not_finite(part, f"{path}.{index}")
    elif isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
        yield path, value


def _faults(error: ValidationError, file: str, schema: str = _SCHEMA) -> list[Fault]:
    """Return what a plan lacks, or has too much, or of another type, the first few of it."""
    rows = error.errors(include_url=False)
    faults = []
    for row in rows[:_MOST_FAULTS]:
        value = "" if row["type"] == "missing" else _shown(row["input"])
        problem = f"{row['msg'].rstrip('.')}{'; got ' if value else ''}{value}."
        mend = f"{'A plan' if schema == _SCHEMA else 'An answer'} of {schema} looks otherwise. {_MEND}"
        faults.append(Fault(file=file, field=".".join(map(str, row["loc"])), value=value, problem=problem, mend=mend))
    more = len(rows) - len(faults)
    return faults + [Fault(file=file, problem=f"and {more} more such faults.", mend=_MEND)] * (more > 0)


def _shown(value: object) -> str:
    """Return a value as text of a few words."""
    try:
        text = repr(value)
    except ValueError:  # beyond what Python writes out
        return "a number of thousands of digits"
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 3]}..."


def _error(file: str, problem: str, field: str = "") -> SpecError:
    return SpecError.one(problem, _MEND, file=file, field=field)
