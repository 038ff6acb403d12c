"""What was published: the rows of ``published.csv``, and how far ours may lie from them.

A tolerance is absolute (``0.5``, in the row's unit; 0 is exact), relative (``1%``), or the way in which the source
rounds: ``rounding 0.01`` to the nearest, ``rounding up 1`` to the next one above.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from planner.errors import Fault, SpecError
from planner.letters import visible
from planner.spec.source import Source, faults_of, nearest

__all__ = ["PublishedSpec", "is_within", "read_published", "text_of"]

_TOLERANCE = re.compile(r"(rounding |rounding up )?(\d+(?:\.\d+)?)(%)?")
_MOST_WITHOUT_REASON = 0.1  # of the published value
_EXACT = 1e-9  # relative: what floating point may lose


def _bounds(published: float, tolerance: str) -> tuple[float, float]:
    """Return how far ours may lie below and above; raise ValueError if the text is no tolerance.

    >>> _bounds(0.72, "rounding 0.01"), _bounds(12, "rounding up 1"), _bounds(200, "1%")
    ((0.005, 0.005), (1.0, 0.0), (2.0, 2.0))
    """
    found = _TOLERANCE.fullmatch(tolerance)
    if found is None or (found[1] and found[3]):
        raise ValueError(f"{tolerance!r} is no tolerance. Write 0, 0.5, 1%, rounding 0.01 or rounding up 1.")
    size = float(found[2])
    if found[1] == "rounding up ":
        return size, 0.0
    if found[1]:
        return size / 2, size / 2
    size = abs(published) * size / 100 if found[3] else size
    return size, size


def is_within(ours: float, published: float, tolerance: str) -> bool:
    """Whether ours agrees with what was published."""
    below, above = _bounds(published, tolerance)
    slack = _EXACT * max(abs(ours), abs(published))
    return published - below - slack <= ours <= published + above + slack


def _tolerance(text: str) -> str:
    """Refuse text that is no tolerance."""
    _bounds(1.0, text)
    return text


_Text = Annotated[str, Field(min_length=1), AfterValidator(visible)]


class PublishedSpec(BaseModel, extra="forbid", frozen=True):
    """One row of ``published.csv``."""

    quantity: _Text
    unit: _Text
    published: Annotated[float, Field(allow_inf_nan=False)]
    tolerance: Annotated[str, AfterValidator(_tolerance)]
    class_: Literal["exact", "derived", "fitted", "measured"] = Field(alias="class")
    source: _Text
    reason: Annotated[str, AfterValidator(visible)] = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (
            max(_bounds(self.published, self.tolerance)) > _MOST_WITHOUT_REASON * abs(self.published)
            and not self.reason
        ):
            raise ValueError(f"the tolerance {self.tolerance} is above 10 %. Say why in the column reason.")
        return self


_COLUMNS = tuple(info.alias or name for name, info in PublishedSpec.model_fields.items())


def read_published(path: Path, known: Iterable[str]) -> tuple[Source, tuple[PublishedSpec, ...]]:
    """Return the rows and the line of each; raise SpecError with every fault."""
    reader = csv.DictReader(text_of(path).splitlines())
    places: dict[tuple[str | int, ...], tuple[int, int]] = {}
    source = Source(data={}, file=str(path), folder=path.parent, positions=places)
    faults = list(_faults_of_columns(reader.fieldnames or (), source))
    rows: dict[str, PublishedSpec] = {}
    for cells in reader if not faults else ():
        place = (cells["quantity"],)
        is_twice = place in places
        places[place] = (reader.line_num, 1)
        if is_twice or place[0] not in known:
            problem = f"{place[0]!r} stands twice." if is_twice else f"case.yaml defines no quantity {place[0]!r}."
            faults.append(source.fault(place, problem, "Drop it." if is_twice else nearest(place[0], known)))
        try:
            rows[place[0]] = PublishedSpec.model_validate({str(key): value or "" for key, value in cells.items()})
        except ValidationError as error:
            faults += faults_of(error, source, PublishedSpec, place)
    if faults:
        raise SpecError.of(faults)
    return source, tuple(rows.values())


def _faults_of_columns(given: Iterable[str], source: Source) -> Iterator[Fault]:
    """Yield a fault for every column that is missing or unknown."""
    columns = tuple(given)
    for column in columns:
        if column not in _COLUMNS:
            yield replace(source.fault((column,), "unknown column.", nearest(column, _COLUMNS)), line=1)
    for column in _COLUMNS:
        if column not in columns and column != "reason":
            yield replace(source.fault((column,), "this column is missing.", "Add it."), line=1)


def text_of(path: Path) -> str:
    """Return a file's text; raise SpecError if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        fault = Fault(file=str(path), problem="this is no readable text file.", mend="A case needs it, in UTF-8.")
        raise SpecError.of([fault]) from None
