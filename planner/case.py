"""Cases: published results, computed again from their inputs, and held against what was published.

A case is a folder. ``case.yaml`` holds inputs and named convention flags, never code and never our answer:

- ``source``: the publication;
- ``questions``: name -> a question as :func:`planner.api.load` takes it, with its ``configuration``; or a ``model``
  block, the inputs of one paper's own model, see :mod:`planner.case_models`;
- ``shared``: what all questions have in common; it is merged under each of them;
- ``quantities``: name -> what to compute from the answers, see :mod:`planner.case_quantities`;
- ``fit``: one parameter of all questions, searched between two bounds until one quantity meets a target;
- ``needs``: files without which the case is skipped, relative to the folder, or measured data as
  ``$PLANNER_DATA/traces/...``; a ``model`` block names these the same way;
- ``rows_from``: measured data instead of questions, quantities and ``published.csv``: a row for each measurement in a
  file that is never copied here, see :mod:`planner.case_models.measured`.

``published.csv`` is what was published, a row for each. A tolerance is absolute (``0.5``, in the row's unit; 0 is
exact), relative (``1%``), or the way in which the source rounds: ``rounding 0.01`` to the nearest, ``rounding up 1``
to the next one above. ``README.md`` asks the question in its first paragraph, and explains the differences.
"""

import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from planner import api
from planner.case_models import model_of
from planner.case_models.measured import MeasuredRow, RowsFrom, measure_of
from planner.case_quantities import Answer, Operand, OperandReader, Value, evaluate, fields_of, scale_of
from planner.errors import Fault, ModelError, SpecError
from planner.names import find, fold
from planner.spec_source import Source, faults_of, nearest, read_source

__all__ = ["CaseResult", "CaseRow", "case_names", "format_table", "run_case", "run_folder", "to_document"]

_TOLERANCE = re.compile(r"(rounding |rounding up )?(\d+(?:\.\d+)?)(%)?")
_MOST_WITHOUT_REASON = 0.1  # of the published value
_DATA = "$PLANNER_DATA/"
_EXACT = 1e-9  # relative: what floating point may lose


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRow:
    """One quantity: theirs and ours, in ``unit``, and whether they agree within the tolerance.

    ``measured`` has the group and the alternatives of a row of ``rows_from``.
    """

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
    measured: MeasuredRow | None = None

    @property
    def relative_difference(self) -> float | None:
        """``ours / published - 1``; None where 0 was published."""
        return self.ours / self.published - 1 if self.published else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """All rows of a case; none, and the reason in ``skipped``, where its data are missing.

    ``rows_from`` is what a case of measured data says about them.
    """

    name: str
    question: str
    readme: str
    rows: tuple[CaseRow, ...] = ()
    fitted: Mapping[str, float] = field(default_factory=dict)
    skipped: str | None = None
    rows_from: RowsFrom | None = None

    @property
    def ok(self) -> bool:
        """Whether every row is within its tolerance."""
        return all(row.ok for row in self.rows)


# -- running cases ---------------------------------------------------------------------------------------------------


def case_names() -> tuple[str, ...]:
    """Return the names of all cases, sorted.

    >>> "osf-joint-fit" in case_names()
    True
    """
    return tuple(sorted(path.parent.name for path in _root().glob("*/case.yaml")))


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
    source, spec = _read_spec(folder)
    case = None if spec.rows_from else _read(spec, source)
    readme = _text_of(folder / "README.md")
    result = CaseResult(name=folder.name, question=_question_of(readme), readme=readme, rows_from=spec.rows_from)
    missing = [path for path in spec.needed if not (folder / _expanded(path)).exists()]
    if missing:
        return replace(result, skipped=f"{', '.join(missing)}: {_why_missing(missing)}")
    if case is None:
        return _measured(result, spec, source)
    fitted = case.fitted()
    answers = case.answers(fitted)
    return replace(result, rows=tuple(case.row(one, answers) for one in case.published), fitted=fitted)


def to_document(results: Iterable[CaseResult]) -> dict[str, Any]:
    """Return ``planner.case/1``."""
    found = tuple(results)
    return {
        "schema": "planner.case/1",
        "rows": [_document_row(row) for result in found for row in result.rows],
        "skipped": {result.name: result.skipped for result in found if result.skipped is not None},
    }


def format_table(result: CaseResult) -> str:
    """Return a case's rows as a table in Markdown, and its fitted parameter, as its README has them."""
    if result.skipped is not None:
        return f"Skipped: {result.skipped}.\n"
    head = ("quantity", "unit", "published", "ours", "difference", "tolerance", "class", "source", "within")
    rows = [head, tuple("---" for _ in head), *(_cells(row) for row in result.rows)]
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    for parameter, value in result.fitted.items():
        lines += ["", f"Fitted: `{parameter}` = {value:.5g}"]
    return "\n".join(lines) + "\n"


def _cells(row: CaseRow) -> tuple[str, ...]:
    """Return the cells of one row."""
    difference = "" if row.relative_difference is None else f"{row.relative_difference:+.1%}"
    numbers = (row.unit, f"{row.published:g}", f"{row.ours:.5g}", difference)
    return (row.quantity, *numbers, row.tolerance, row.class_, row.source, "yes" if row.ok else "NO")


def _document_row(row: CaseRow) -> dict[str, Any]:
    """Return one row of the document."""
    names = ("case", "quantity", "unit", "published", "ours", "relative_difference", "tolerance", "ok")
    return {**{name: getattr(row, name) for name in names}, "class": row.class_}


def _root() -> Path:
    """Return the folder of all cases."""
    return Path(str(resources.files("planner.cases")))


def _expanded(value: Any) -> Any:
    """Return text that begins with ``$PLANNER_DATA/`` as a path below that folder.

    Also in a mapping; the rest as is.
    """
    if isinstance(value, dict):
        return {key: _expanded(part) for key, part in value.items()}
    is_path = isinstance(value, str) and value.startswith(_DATA)
    return str(Path(os.path.expandvars(value)).resolve()) if is_path else value


def _why_missing(paths: Iterable[str]) -> str:
    """Return why needed files are not there."""
    is_unset = not os.environ.get("PLANNER_DATA") and any(path.startswith(_DATA) for path in paths)
    return "PLANNER_DATA is not set" if is_unset else "no such file"


def _text_of(path: Path) -> str:
    """Return a file's text; raise SpecError if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        fault = Fault(file=str(path), problem="this is no readable text file.", mend="A case needs it, in UTF-8.")
        raise SpecError.of([fault]) from None


def _question_of(readme: str) -> str:
    """Return the first paragraph below the title."""
    paragraphs = [" ".join(part.split()) for part in readme.split("\n\n")]
    return next((part for part in paragraphs if part and not part.startswith("#")), "")


# -- what was published ----------------------------------------------------------------------------------------------


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


def _is_within(ours: float, published: float, tolerance: str) -> bool:
    """Whether ours agrees with what was published."""
    below, above = _bounds(published, tolerance)
    slack = _EXACT * max(abs(ours), abs(published))
    return published - below - slack <= ours <= published + above + slack


def _tolerance(text: str) -> str:
    """Refuse text that is no tolerance."""
    _bounds(1.0, text)
    return text


_Text = Annotated[str, Field(min_length=1)]


class PublishedSpec(BaseModel, extra="forbid", frozen=True):
    """One row of ``published.csv``."""

    quantity: _Text
    unit: _Text
    published: Annotated[float, Field(allow_inf_nan=False)]
    tolerance: Annotated[str, AfterValidator(_tolerance)]
    class_: Literal["exact", "derived", "fitted", "measured"] = Field(alias="class")
    source: _Text
    reason: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (
            max(_bounds(self.published, self.tolerance)) > _MOST_WITHOUT_REASON * abs(self.published)
            and not self.reason
        ):
            raise ValueError(f"the tolerance {self.tolerance} is above 10 %. Say why in the column reason.")
        return self


_COLUMNS = tuple(info.alias or name for name, info in PublishedSpec.model_fields.items())


def _read_published(path: Path, known: Iterable[str]) -> tuple[Source, tuple[PublishedSpec, ...]]:
    """Return the rows and the line of each; raise SpecError with every fault."""
    reader = csv.DictReader(_text_of(path).splitlines())
    source = Source(data={}, file=str(path), folder=path.parent, positions={})
    faults = list(_faults_of_columns(reader.fieldnames or (), source))
    rows: dict[str, PublishedSpec] = {}
    for cells in reader if not faults else ():
        place = (cells["quantity"],)
        is_twice = place in source.positions
        source.positions[place] = (reader.line_num, 1)
        if is_twice or place[0] not in known:
            problem = f"{place[0]!r} stands twice." if is_twice else f"case.yaml defines no quantity {place[0]!r}."
            faults.append(_fault(source, place, problem, "Drop it." if is_twice else nearest(place[0], known)))
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
            yield replace(_fault(source, (column,), "unknown column.", nearest(column, _COLUMNS)), line=1)
    for column in _COLUMNS:
        if column not in columns and column != "reason":
            yield replace(_fault(source, (column,), "this column is missing.", "Add it."), line=1)


# -- one case --------------------------------------------------------------------------------------------------------


class FitSpec(BaseModel, extra="forbid", frozen=True):
    """One parameter, searched between two bounds until ``quantity`` is ``target``."""

    parameter: _Text
    between: tuple[float, float]
    quantity: _Text
    target: dict[str, Any]


class CaseSpec(BaseModel):
    """The keys of ``case.yaml``; the blocks of questions and quantities are read by others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: _Text
    shared: dict[str, Any] = {}
    questions: dict[str, dict[str, Any]] = {}
    fit: FitSpec | None = None
    quantities: Annotated[dict[str, Any], Field(min_length=1)] | None = None
    needs: list[_Text] = []
    rows_from: RowsFrom | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.quantities is None) == (self.rows_from is None):
            raise ValueError("give either quantities or rows_from.")
        if self.rows_from and (self.questions or self.shared or self.fit):
            raise ValueError("rows_from leaves nothing for questions, shared and fit to say.")
        return self

    @property
    def needed(self) -> tuple[str, ...]:
        """All files without which there is no answer."""
        return (*self.needs, *([self.rows_from.path] if self.rows_from else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A case's files, checked; ``table`` knows the lines of ``published.csv``."""

    name: str
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
        data = _merged(self.spec.shared, self.spec.questions[name])
        for parameter, value in changes.items():
            data = _merged(data, _nested(parameter.split("."), value))
        if "model" in data:
            return self._model_answer(name, data["model"])
        dnn = data.get("dnn")
        for key in ("profile", "trace"):
            if isinstance(dnn, dict) and isinstance(dnn.get(key), str):
                dnn[key] = str(self.source.folder / dnn[key])
        try:
            return Answer(api.load(data))
        except SpecError as error:
            raise SpecError.of(self._placed(name, fault) for fault in error.faults) from None

    def _model_answer(self, name: str, block: Any) -> Answer:
        """Return the answer of a paper's own model."""
        given = _expanded(block) if isinstance(block, dict) else {}
        try:
            inputs, compute = model_of(str(given.pop("name", "")))
            return Answer.of_model(compute(inputs.model_validate(given)))
        except ValidationError as error:
            place = ("questions", name, "model")
            raise SpecError.of(faults_of(error, self.source, inputs, place)) from None
        except ModelError as error:
            place = ("questions", name, "model")
            raise SpecError.of([_fault(self.source, place, str(error), "Mend the inputs.")]) from None
        except SpecError as error:
            raise SpecError.of(self._placed(name, replace(fault, field="model")) for fault in error.faults) from None

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
            raise SpecError.of([_fault(self.source, ("fit", "between"), problem, "Widen it.")])
        return {fit.parameter: float(brentq(excess, least, most))}

    def row(self, theirs: PublishedSpec, answers: Mapping[str, Answer]) -> CaseRow:
        """Return one quantity, computed, beside what was published."""
        value = evaluate(self.quantities[theirs.quantity], answers, self.source)
        try:
            ours = value.number / scale_of(theirs.unit, value.dimension)
        except ValueError as error:
            place = (theirs.quantity, "unit")
            raise SpecError.of([_fault(self.table, place, str(error), "")]) from None
        is_ok = _is_within(ours, theirs.published, theirs.tolerance)
        return CaseRow(case=self.name, ours=ours, ok=is_ok, **theirs.model_dump())


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both mappings in one, key by key at every depth; ``above`` wins.

    >>> _merged({"dnn": {"zoo": "vgg16", "batch_per_device": 32}}, {"dnn": {"zoo": "vgg19"}})
    {'dnn': {'zoo': 'vgg19', 'batch_per_device': 32}}
    """
    result = deepcopy(dict(below))
    for key, value in above.items():
        old = result.get(key)
        is_deep = isinstance(old, dict) and isinstance(value, Mapping)
        result[key] = _merged(old, value) if is_deep else deepcopy(value)  # type: ignore[arg-type]
    return result


def _nested(keys: Iterable[str], value: object) -> dict[str, Any]:
    """Return the value inside as many mappings as there are keys.

    >>> _nested(["calibration", "utilisation"], 0.5)
    {'calibration': {'utilisation': 0.5}}
    """
    first, *rest = keys
    return {first: _nested(rest, value) if rest else value}


def _read_spec(folder: Path) -> tuple[Source, CaseSpec]:
    """Return ``case.yaml``."""
    source = read_source(folder / "case.yaml")
    try:
        return source, CaseSpec.model_validate(source.data)
    except ValidationError as error:
        raise SpecError.of(faults_of(error, source, CaseSpec)) from None


def _read(spec: CaseSpec, source: Source) -> _Case:
    """Return a case's files, checked against themselves and each other."""
    reader = OperandReader(source)
    blocks = spec.quantities or {}
    found = {name: reader.quantity(block, ("quantities", name)) for name, block in blocks.items()}
    quantities = {name: operand for name, operand in found.items() if operand is not None}
    target = reader.number(spec.fit.target, ("fit", "target")) if spec.fit else None
    if faults := reader.faults or list(_unknown_names(spec, quantities, source)):
        raise SpecError.of(faults)
    table, published = _read_published(source.folder / "published.csv", quantities)
    if unpublished := [name for name in quantities if (name,) not in table.positions]:
        mend = "Add its row, or drop it here."
        raise SpecError.of(
            _fault(source, ("quantities", name), "published.csv lacks it.", mend) for name in unpublished
        )
    return _Case(
        name=source.folder.name,
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
            yield _fault(source, (*one.place, "question"), f"there is no question {one.question!r}.", mend)
    for name in spec.questions:
        if name not in {one.question for one in fields}:
            yield _fault(source, ("questions", name), "no quantity asks it.", "Use it, or drop it.")
    if spec.fit and spec.fit.quantity not in quantities:
        mend = nearest(spec.fit.quantity, quantities)
        yield _fault(source, ("fit", "quantity"), f"there is no quantity {spec.fit.quantity!r}.", mend)


def _fault(source: Source, path: tuple[str, ...], problem: str, mend: str) -> Fault:
    """Return a fault with its place."""
    return source.locate(Fault(field=".".join(path), problem=problem, mend=mend), path)


# -- measured data ---------------------------------------------------------------------------------------------------


def _measured(result: CaseResult, spec: CaseSpec, source: Source) -> CaseResult:
    """Return the rows of measured data, each predicted in every way that the case names."""
    assert spec.rows_from is not None
    given, place = spec.rows_from, ("rows_from", "inputs")
    inputs, measure = measure_of(given.model)
    path = Path(_expanded(given.path))
    try:
        found = measure(inputs.model_validate(given.inputs), path)
    except ValidationError as error:
        raise SpecError.of(faults_of(error, source, inputs, place)) from None
    except (KeyError, ValueError, OSError) as error:
        fault = Fault(file=str(path), problem=f"the case cannot read it: {error}.", mend=f"Read {spec.source}")
        raise SpecError.of([fault]) from None
    if not found.rows:
        fault = Fault(file=str(path), problem="there is no measurement in it.", mend=f"Read {spec.source}")
        raise SpecError.of([fault])
    rows = tuple(_measured_row(result.name, row, given) for row in found.rows)
    return replace(result, rows=rows, fitted=found.fitted)


def _measured_row(case: str, row: MeasuredRow, given: RowsFrom) -> CaseRow:
    """Return one measurement beside its prediction, judged as its evaluation says."""
    judged = given.evaluations[row.evaluation]
    return CaseRow(
        case=case,
        quantity=row.quantity,
        unit=row.unit,
        published=row.measured,
        ours=row.predicted,
        tolerance=judged.tolerance,
        class_="measured",
        ok=_is_within(row.predicted, row.measured, judged.tolerance),
        source=given.path.removeprefix(_DATA),
        reason=judged.reason,
        measured=row,
    )
