"""One case's files: ``case.yaml``, checked against itself and ``published.csv``, and its questions, loaded.

What the keys mean is said at :mod:`planner.case.run`.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from planner import api
from planner.case.formulas import Value, scale_of
from planner.case.papers import model_of
from planner.case.papers.measured import RowsFrom
from planner.case.procure import procured_values
from planner.case.published import PublishedSpec, is_within, read_published
from planner.case.quantities import Answer, Operand, OperandReader, evaluate, fields_of
from planner.case.rows import CaseRow
from planner.errors import Fault, InfeasibleError, ModelError, NoAnswerError, SpecError
from planner.spec.source import Source, faults_of, nearest, read_source

__all__ = ["DATA", "Case", "CaseSpec", "expanded", "read_case", "read_spec"]

DATA = "$PLANNER_DATA/"  # begins the path of measured data, which stay outside

_Text = Annotated[str, Field(min_length=1)]


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
class Case:
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
        """Return the answer of a paper's own model."""
        given = expanded(block) if isinstance(block, dict) else {}
        try:
            inputs, compute = model_of(str(given.pop("name", "")))
            return Answer.of_model(compute(inputs.model_validate(given)))
        except ValidationError as error:
            place = ("questions", name, "model")
            raise SpecError.of(faults_of(error, self.source, inputs, place)) from None
        except ModelError as error:
            place = ("questions", name, "model")
            raise SpecError.of([self.source.fault(place, str(error), "Mend the inputs.")]) from None
        except SpecError as error:
            raise SpecError.of(self._placed(name, replace(fault, field="model")) for fault in error.faults) from None

    def _procured(self, name: str, data: Mapping[str, Any]) -> Answer:
        """Return the answer to a question of what to buy or rent."""
        try:
            return Answer.of_model(procured_values(data, self.source.folder))
        except SpecError as error:
            raise SpecError.of(self._placed(name, fault) for fault in error.faults) from None
        except (InfeasibleError, NoAnswerError) as error:
            place, problem = ("questions", name, "procure"), f"it has no answer: {error}"
            raise SpecError.of([self.source.fault(place, problem, "Mend the limits.")]) from None

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
            raise SpecError.of([self.source.fault(("fit", "between"), problem, "Widen it.")])
        return {fit.parameter: float(brentq(excess, least, most))}

    def row(self, theirs: PublishedSpec, answers: Mapping[str, Answer]) -> CaseRow:
        """Return one quantity, computed, beside what was published."""
        value = evaluate(self.quantities[theirs.quantity], answers, self.source)
        try:
            ours = value.number / scale_of(theirs.unit, value.dimension)
        except ValueError as error:
            place = (theirs.quantity, "unit")
            raise SpecError.of([self.table.fault(place, str(error), "Mend the unit.")]) from None
        is_ok = is_within(ours, theirs.published, theirs.tolerance)
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


def read_spec(folder: Path) -> tuple[Source, CaseSpec]:
    """Return ``case.yaml``."""
    source = read_source(folder / "case.yaml")
    try:
        return source, CaseSpec.model_validate(source.data)
    except ValidationError as error:
        raise SpecError.of(faults_of(error, source, CaseSpec)) from None


def read_case(spec: CaseSpec, source: Source) -> Case:
    """Return a case's files, checked against themselves and each other."""
    reader = OperandReader(source)
    blocks = spec.quantities or {}
    found = {name: reader.quantity(block, ("quantities", name)) for name, block in blocks.items()}
    quantities = {name: operand for name, operand in found.items() if operand is not None}
    target = reader.number(spec.fit.target, ("fit", "target")) if spec.fit else None
    if faults := reader.faults or list(_unknown_names(spec, quantities, source)):
        raise SpecError.of(faults)
    table, published = read_published(source.folder / "published.csv", quantities)
    if unpublished := [name for name in quantities if (name,) not in table.positions]:
        mend = "Add its row, or drop it here."
        raise SpecError.of(source.fault(("quantities", name), "published.csv lacks it.", mend) for name in unpublished)
    return Case(
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
            yield source.fault((*one.place, "question"), f"there is no question {one.question!r}.", mend)
    for name in spec.questions:
        if name not in {one.question for one in fields}:
            yield source.fault(("questions", name), "no quantity asks it.", "Use it, or drop it.")
    if spec.fit and spec.fit.quantity not in quantities:
        mend = nearest(spec.fit.quantity, quantities)
        yield source.fault(("fit", "quantity"), f"there is no quantity {spec.fit.quantity!r}.", mend)


def expanded(value: Any) -> Any:
    """Return text that begins with ``$PLANNER_DATA/`` as a path below that folder.

    Also in a mapping; the rest as is.
    """
    if isinstance(value, dict):
        return {key: expanded(part) for key, part in value.items()}
    is_path = isinstance(value, str) and value.startswith(DATA)
    return str(Path(os.path.expandvars(value)).resolve()) if is_path else value
