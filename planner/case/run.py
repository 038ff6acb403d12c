"""Cases: published results, computed again from their inputs, and held against what was published.

A case is a folder. ``case.yaml`` holds inputs and named convention flags, never code and never our answer:

- ``source``: the publication;
- ``questions``: name -> a question as :func:`planner.api.load` takes it, with its ``configuration``; or a ``model``
  block, the inputs of one paper's own model, see :mod:`planner.cases.forms`; or, with a block ``procure``, what to buy
  or rent, whose own price list is the file ``prices.csv`` in the folder;
- ``shared``: what all questions have in common; it is merged under each of them;
- ``quantities``: name -> what to compute from the answers, see :mod:`planner.case.quantities`;
- ``fit``: one parameter of all questions, searched between two bounds until one quantity meets a target;
- ``needs``: files without which the case is skipped, relative to the folder, or measured data as
  ``$PLANNER_DATA/traces/...``; a ``model`` block names these the same way.

``published.csv`` is what was published, a row for every quantity, and how far ours may lie from it: a tolerance is
absolute (``0.5``, in the row's unit; 0 is exact), relative (``1%``), or the way in which the source rounds: ``rounding
0.01`` to the nearest, ``rounding up 1`` to the next one above.

The answer to what to buy or rent is a tree of numbers:

- ``objective.value``, ``objective.bound``, ``objective.gap``;
- ``choice``: what :mod:`planner.procurement.answer` says of the fleet, e.g. ``choice.cost_usd``,
  ``choice.wall_time_s``, ``choice.training_s.training``, ``choice.breakdown_usd.rent``;
- ``machines``: how many of each instance, 0 for every other one of the list; ``num_machines``, ``num_devices``;
- ``relative_margin``: by what share training may take longer until the deadline is missed.

``README.md`` asks the question in its first paragraph, and explains the differences.
"""

import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, Field, ValidationError, model_validator

from planner import api
from planner.case.quantities import Answer, Operand, OperandReader, Value, evaluate, fields_of, scale_of
from planner.cases.forms import model_of
from planner.errors import Fault, InfeasibleError, ModelError, NoAnswerError, SpecError
from planner.frozen import frozen
from planner.letters import visible
from planner.names import find, fold
from planner.procurement.prices import read_price_list
from planner.question.source import Source, faults_of, merged_questions, nearest, read_source
from planner.question.values import Model
from planner.solution import T


@frozen
class CaseRow:
    """One quantity: theirs and ours, in ``unit``, and whether they agree within the tolerance."""

    case: str
    quantity: str
    unit: str
    published: float
    ours: float
    tolerance: str
    class_: str
    ok: bool
    source: str
    reason: str

    @property
    def relative_difference(self) -> float | None:
        """``ours / published - 1``; None where 0 was published."""
        return self.ours / self.published - 1 if self.published else None


@frozen
class CaseResult:
    """All rows of a case; none, and the reason in ``skipped``, where its data are missing."""

    name: str
    question: str
    readme: str
    rows: tuple[CaseRow, ...] = ()
    fitted: Mapping[str, float] = field(default_factory=dict)
    skipped: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every row is within its tolerance."""
        return all(row.ok for row in self.rows)


def case_names() -> tuple[str, ...]:
    """Return the names of all cases, sorted.

    >>> "osf-joint-fit" in case_names()
    True
    """
    return tuple(sorted(path.parent.name for path in _root().glob("*/case.yaml")))


def _root() -> Path:
    return Path(str(resources.files("planner.cases")))


def run_case(name: str) -> CaseResult:
    """Return a case's rows, computed now.

    Raises
    ------
    SpecError
        For an unknown name, with the nearest ones; or with the faults of the case's files.

    >>> result = run_case("osf-scaling-factor")
    >>> result.rows[0].ours, result.ok
    (0.9, True)
    """
    return run_folder(_root() / find(name, {fold(known): known for known in case_names()}, "case"))


def run_folder(folder: Path) -> CaseResult:
    """Return the rows of a case that lies anywhere."""
    case = read_case(folder)
    readme = text_of(folder / "README.md")
    paragraphs = [" ".join(part.split()) for part in readme.split("\n\n")]
    question = next((part for part in paragraphs if part and not part.startswith("#")), "")
    result = CaseResult(name=folder.name, question=question, readme=readme)
    missing = [path for path in case.spec.needs if not (folder / expanded(path)).exists()]
    if missing:
        return replace(result, skipped=f"{', '.join(missing)}: {why_missing(missing)}")
    fitted = case.fitted()
    answers = case.answers(fitted)

    def row(theirs: PublishedSpec) -> CaseRow:
        """Return one quantity, computed, beside what was published."""
        value = evaluate(case.quantities[theirs.quantity], answers, case.source)
        try:
            ours = value.number / scale_of(theirs.unit, value.dimension)
        except ValueError as error:
            place = (theirs.quantity, "unit")
            raise case.table.error(place, str(error), "Mend the unit.") from None
        is_ok = is_within(ours, theirs.published, theirs.tolerance)
        return CaseRow(case=folder.name, ours=ours, ok=is_ok, **theirs.model_dump())

    return replace(result, rows=tuple(row(one) for one in case.published), fitted=fitted)


def to_document(results: Iterable[CaseResult]) -> dict[str, Any]:
    """Return ``planner.case/1``."""
    found = tuple(results)
    names = ("case", "quantity", "unit", "published", "ours", "relative_difference", "tolerance", "ok")
    rows = [row for result in found for row in result.rows]
    return {
        "schema": "planner.case/1",
        "rows": [{**{name: getattr(row, name) for name in names}, "class": row.class_} for row in rows],
        "skipped": {result.name: result.skipped for result in found if result.skipped is not None},
    }


def format_table(result: CaseResult) -> str:
    """Return a case's rows as a table in Markdown, and its fitted parameter, as its README has them."""
    if result.skipped is not None:
        return f"Skipped: {result.skipped}.\n"
    head = ("quantity", "unit", "published", "ours", "difference", "tolerance", "class", "source", "within")
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head))]
    for row in result.rows:
        difference = "" if row.relative_difference is None else f"{row.relative_difference:+.1%}"
        cells = (row.quantity, row.unit, f"{row.published:g}", f"{row.ours:.5g}", difference, row.tolerance)
        lines.append(f"| {' | '.join((*cells, row.class_, row.source, 'yes' if row.ok else 'NO'))} |")
    for parameter, value in result.fitted.items():
        lines += ["", f"Fitted: `{parameter}` = {value:.5g}"]
    return "\n".join(lines) + "\n"


_DATA = "$PLANNER_DATA/"  # begins the path of measured data, which stay outside
_TOLERANCE = re.compile(r"(rounding |rounding up )?(\d+(?:\.\d+)?)(%)?")
_MOST_WITHOUT_REASON = 0.1  # of the published value
_EXACT = 1e-9  # relative: what floating point may lose
_BUILT_IN = "built-in"
_TIME_LIMIT_S = 300.0
_AS_SOLD = {"calibration": {"bandwidth_efficiency": 1}}  # papers count with the rates of links that they name
# A case asks the same on whatever day it is run; the age of prices is told in a warning, which is no number.
_TODAY = date.max
_Text = Annotated[str, Field(min_length=1)]


class FitSpec(Model):
    """One parameter, searched between two bounds until ``quantity`` is ``target``."""

    parameter: _Text
    between: tuple[float, float]
    quantity: _Text
    target: dict[str, Any]


class CaseSpec(Model):
    """The keys of ``case.yaml``; the blocks of questions and quantities are read by others."""

    source: _Text
    shared: dict[str, Any] = {}
    questions: dict[str, dict[str, Any]] = {}
    fit: FitSpec | None = None
    quantities: Annotated[dict[str, Any], Field(min_length=1)]
    needs: list[_Text] = []


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


_Shown = Annotated[str, Field(min_length=1), AfterValidator(visible)]


class PublishedSpec(Model):
    """One row of ``published.csv``."""

    quantity: _Shown
    unit: _Shown
    published: Annotated[float, Field(allow_inf_nan=False)]
    tolerance: Annotated[str, AfterValidator(_tolerance)]
    class_: Literal["exact", "derived", "fitted", "measured"] = Field(alias="class")
    source: _Shown
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
    columns = tuple(reader.fieldnames or ())
    faults = [
        replace(source.fault((column,), "unknown column.", nearest(column, _COLUMNS)), line=1)
        for column in columns
        if column not in _COLUMNS
    ]
    faults += [
        replace(source.fault((column,), "this column is missing.", "Add it."), line=1)
        for column in _COLUMNS
        if column not in columns and column != "reason"
    ]
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


@frozen
class Case:
    """A case's files, checked; ``table`` knows the lines of ``published.csv``."""

    spec: CaseSpec
    source: Source
    quantities: Mapping[str, Operand]
    target: Value | None
    table: Source
    published: tuple[PublishedSpec, ...]

    def answers(self, changes: Mapping[str, float]) -> dict[str, Answer]:
        """Return all questions, loaded, with some parameters changed."""
        return {name: self._answer(name, changes) for name in self.spec.questions}

    def _answer(self, name: str, changes: Mapping[str, float]) -> Answer:
        """Return one question; its faults speak of this file."""
        shared = merged_questions(_AS_SOLD, self.spec.shared)
        data = merged_questions(shared, self.spec.questions[name])
        for parameter, value in changes.items():
            data = merged_questions(data, _nested(parameter.split("."), value))
        if "model" in data:
            return self._model_answer(name, data["model"])
        if "procure" in data:
            return self._procured(name, data)
        dnn = data.get("dnn")
        for key in ("profile", "trace"):
            if isinstance(dnn, dict) and isinstance(dnn.get(key), str):
                dnn[key] = str(self.source.folder / dnn[key])
        try:
            return Answer(api.load(data))
        except SpecError as error:
            raise SpecError.of(self._placed(name, fault) for fault in error.faults) from None

    def _model_answer(self, name: str, block: Any) -> Answer:
        given = expanded(block) if isinstance(block, dict) else {}
        try:
            inputs, compute = model_of(str(given.pop("name", "")))
            return Answer.of_model(compute(inputs.model_validate(given)))
        except ValidationError as error:
            place = ("questions", name, "model")
            raise SpecError.of(faults_of(error, self.source, inputs, place)) from None
        except ModelError as error:
            place = ("questions", name, "model")
            raise self.source.error(place, str(error), "Mend the inputs.") from None
        except SpecError as error:
            raise SpecError.of(self._placed(name, replace(fault, field="model")) for fault in error.faults) from None

    def _procured(self, name: str, question: Mapping[str, Any]) -> Answer:
        given = question["procure"].get("prices", _BUILT_IN)
        names = [given] if isinstance(given, str) else list(given)
        paths = [one if one == _BUILT_IN else str(self.source.folder / one) for one in names]
        block = {**question["procure"], "prices": paths}
        asked = {**question, "procure": block}
        try:
            found = api.procure(asked, num_alternatives=0, time_limit_s=_TIME_LIMIT_S, today=_TODAY)
        except SpecError as error:
            raise SpecError.of(self._placed(name, fault) for fault in error.faults) from None
        except (InfeasibleError, NoAnswerError) as error:
            place, problem = ("questions", name, "procure"), f"it has no answer: {error}"
            raise self.source.error(place, problem, "Mend the limits.") from None
        document, fleet = found.to_dict(), found.choice.fleet
        custom = [device["name"] for device in block.get("custom_devices") or ()]
        machines: dict[str, int] = {}
        for path in paths:
            file = None if path == _BUILT_IN else Path(path)
            prices = read_price_list(file, today=_TODAY, custom_devices=custom)
            machines |= dict.fromkeys((offer.instance for offer in prices.offers), 0)
        for offer, count in zip(fleet.offers, fleet.counts, strict=True):
            machines[offer.instance] += count
        return Answer.of_model(
            {
                "objective": document["objective"],
                "choice": document["choice"],
                "machines": machines,
                "num_machines": fleet.num_machines,
                "num_devices": fleet.num_devices,
                "relative_margin": found.margin,
            }
        )

    def _placed(self, name: str, fault: Fault) -> Fault:
        """Return a question's fault with its place: in another file, under the question, or else in what is shared."""
        if fault.file:
            return fault
        path = tuple(fault.field.split("."))
        places = [("questions", name, *path), ("shared", *path)]
        place = next((one for one in places if one in self.source.positions), places[0])
        return self.source.locate(replace(fault, field=".".join(("questions", name, *path))), place)

    def fitted(self) -> dict[str, float]:
        """Return the fitted parameter; raise SpecError if no value between the bounds meets the target."""
        fit, target = self.spec.fit, self.target
        if fit is None or target is None:
            return {}
        # Imported here: most cases fit nothing.
        from scipy.optimize import brentq  # noqa: PLC0415

        def excess(value: float) -> float:
            answers = self.answers({fit.parameter: value})
            return evaluate(self.quantities[fit.quantity], answers, self.source).number - target.number

        least, most = fit.between
        if excess(least) * excess(most) > 0:
            problem = f"both {least:g} and {most:g} leave the quantity on the same side of its target."
            raise self.source.error(("fit", "between"), problem, "Widen it.")
        return {fit.parameter: float(brentq(excess, least, most))}


def _nested(keys: Iterable[str], value: object) -> dict[str, Any]:
    """Return the value inside as many mappings as there are keys.

    >>> _nested(["calibration", "utilisation"], 0.5)
    {'calibration': {'utilisation': 0.5}}
    """
    first, *rest = keys
    return {first: _nested(rest, value) if rest else value}


def read_case(folder: Path) -> Case:
    """Return a case's files, checked against themselves and each other.

    Raises
    ------
    SpecError
        With every fault.
    """
    source = read_source(folder / "case.yaml")
    try:
        spec = CaseSpec.model_validate(source.data)
    except ValidationError as error:
        raise SpecError.of(faults_of(error, source, CaseSpec)) from None
    reader = OperandReader(source)
    found = {name: reader.quantity(block, ("quantities", name)) for name, block in spec.quantities.items()}
    quantities = {name: operand for name, operand in found.items() if operand is not None}
    target = reader.number(spec.fit.target, ("fit", "target")) if spec.fit else None
    if faults := reader.faults or list(_unknown_names(spec, quantities, source)):
        raise SpecError.of(faults)
    table, published = read_published(folder / "published.csv", quantities)
    if unpublished := [name for name in quantities if (name,) not in table.positions]:
        mend = "Add its row, or drop it here."
        raise SpecError.of(source.fault(("quantities", name), "published.csv lacks it.", mend) for name in unpublished)
    return Case(
        spec=spec,
        source=source,
        quantities=quantities,
        target=target.value if target else None,
        table=table,
        published=published,
    )


def _unknown_names(spec: CaseSpec, quantities: Mapping[str, Operand], source: Source) -> Iterator[Fault]:
    """Yield a fault for every name that nothing bears, and for every question that no quantity asks."""
    fields = [one for operand in quantities.values() for one in fields_of(operand)]
    for one in fields:
        if one.question not in spec.questions:
            mend = nearest(one.question, spec.questions)
            yield source.fault((*one.place, "question"), f"there is no question {one.question!r}.", mend)
    for name in spec.questions:
        if name not in {one.question for one in fields}:
            yield source.fault(("questions", name), "no quantity asks it.", "Use it, or drop it.")
    if spec.fit and spec.fit.quantity not in quantities:
        mend = nearest(spec.fit.quantity, quantities)
        yield source.fault(("fit", "quantity"), f"there is no quantity {spec.fit.quantity!r}.", mend)


def expanded(value: T) -> T:
    """Return text that begins with ``$PLANNER_DATA/`` as a path below that folder.

    Also in a mapping; the rest as is.
    """
    found: object = value
    if isinstance(value, dict):
        found = {key: expanded(part) for key, part in value.items()}
    elif isinstance(value, str) and value.startswith(_DATA):
        found = str(Path(os.path.expandvars(value)).resolve())
    return cast("T", found)


def why_missing(paths: Iterable[str]) -> str:
    """Return why needed files are not there."""
    is_unset = not os.environ.get("PLANNER_DATA") and any(path.startswith(_DATA) for path in paths)
    return "PLANNER_DATA is not set" if is_unset else "no such file"


def text_of(path: Path) -> str:
    """Return a file's text; raise SpecError if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise SpecError.one("this is no readable text file.", "A case needs it, in UTF-8.", file=path) from None
