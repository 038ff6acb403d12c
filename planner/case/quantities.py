"""What a case may ask: fields of a prediction or of a network, and formulas over them.

A quantity is ``{question: NAME, field: PATH}`` or ``{formula: NAME, INPUT: ..., ...}``. An input is again one of these
two, or a number with where it stands: ``{value: 9 h, source: section 2}``. A quantity itself is never a number, so that
no case can hold our answer.

A field is a dotted path into :class:`planner.plan.Prediction` (``scaling_factor``, ``details.num_all_reduces``), or
``dnn.X`` and ``dnn.layer.NAME.X`` with X one of weight_bytes (no biases), trainable_bytes, stored_bytes (batch-norm
statistics, too) and multiply_adds, for one sample. Of a question with a ``model`` block it is a path into what that
model answers, see :mod:`planner.cases.forms`; of one with a block ``procure``, see :mod:`planner.case.run`.

The formulas, a closed list:

========================= ============================================== ==============================================
formula                   inputs                                         result
========================= ============================================== ==============================================
``ratio``                 of, to                                         of / to
``change``                from, to                                       to / from - 1
``reduction``             from, to                                       1 - to / from
``exceeds``               larger, smaller                                1 if larger > smaller, else 0
``scaling_factor``        one_worker, many_workers, num_workers          eq. 1 of the OSF model
``ring_bandwidth_term``   size, num_devices, bandwidth                   first term of its eq. 7
``ring_aggregation_term`` size, num_devices, flop_rate, bytes_per_number second term of its eq. 7
========================= ============================================== ==============================================
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cached_property
from typing import Any, Literal

from planner import api
from planner.dnn import Dnn, Layer
from planner.errors import Fault, SpecError
from planner.frozen import frozen
from planner.models.communication import ring_all_reduces
from planner.models.data_parallel import scaling_factor
from planner.plan import Prediction
from planner.problem import Problem
from planner.question.source import Source, nearest
from planner.units import Dimension, parse

_Path = tuple[str, ...]
_NUMBER_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
_SUFFIXES = {"_s": Dimension.TIME, "_bytes": Dimension.DATA, "_usd": Dimension.MONEY}


# -- formulas --------------------------------------------------------------------------------------------------------

_BARE_UNITS = {"1": 1.0, "%": 0.01, "GMAC": 1e9}  # of counts and shares; a MAC is one multiply-add


@frozen(kw_only=False)
class Value:
    """A number in SI units and what it measures; None for a count or a share."""

    number: float
    dimension: Dimension | None = None


def scale_of(unit: str, dimension: Dimension | None) -> float:
    """Return the SI value of one ``unit``; raise ValueError unless it measures the dimension.

    >>> scale_of("MiB", Dimension.DATA), scale_of("%", None)
    (1048576.0, 0.01)
    """
    if dimension is not None:
        return parse(f"1 {unit}", dimension)
    if unit not in _BARE_UNITS:
        raise ValueError(f"{unit!r} is no unit of a bare number. Use one of {', '.join(_BARE_UNITS)}.")
    return _BARE_UNITS[unit]


@frozen
class Formula:
    """A function of its inputs in order, and what each measures; ``alike`` ones measure the same, whatever it is."""

    compute: Callable[..., float]
    inputs: Mapping[str, Dimension | Literal["alike"] | None]
    result: Dimension | None = None

    def apply(self, values: Mapping[str, Value]) -> Value:
        """Return the result; raise ValueError if an input measures the wrong thing."""
        alike = [values[key].dimension for key, wanted in self.inputs.items() if wanted == "alike"]
        for key, wanted in self.inputs.items():
            should = alike[0] if wanted == "alike" else wanted
            if values[key].dimension is not should:
                raise ValueError(
                    f"{key} must be a {should or 'bare number'}, and is a {values[key].dimension or 'bare number'}."
                )
        return Value(self.compute(*(values[key].number for key in self.inputs)), self.result)


def _bandwidth_term_s(size_bytes: float, num_devices: float, bandwidth_bytes_per_s: float) -> float:
    """Return ``2 (N-1) D / (N beta)``."""
    cost = ring_all_reduces(num_devices=[num_devices], bandwidth_bytes_per_s=bandwidth_bytes_per_s)
    return float(cost.per_byte_s[0]) * size_bytes


def _aggregation_term_s(size_bytes: float, num_devices: float, flop_per_s: float, bytes_per_number: float) -> float:
    """Return ``(N-1) D / (N pi s)``."""
    cost = ring_all_reduces(
        num_devices=[num_devices], bandwidth_bytes_per_s=float("inf"), reduce_bytes_per_s=flop_per_s * bytes_per_number
    )
    return float(cost.per_byte_s[0]) * size_bytes


FORMULAS: Mapping[str, Formula] = {
    "ratio": Formula(compute=lambda of, to: of / to, inputs={"of": "alike", "to": "alike"}),
    "change": Formula(compute=lambda before, after: after / before - 1, inputs={"from": "alike", "to": "alike"}),
    "reduction": Formula(compute=lambda before, after: 1 - after / before, inputs={"from": "alike", "to": "alike"}),
    "exceeds": Formula(
        compute=lambda larger, smaller: float(larger > smaller), inputs={"larger": "alike", "smaller": "alike"}
    ),
    "scaling_factor": Formula(
        compute=lambda one, many, number: scaling_factor(one_worker_s=one, many_workers_s=many, num_workers=number),
        inputs={"one_worker": Dimension.TIME, "many_workers": Dimension.TIME, "num_workers": None},
    ),
    "ring_bandwidth_term": Formula(
        compute=_bandwidth_term_s,
        inputs={"size": Dimension.DATA, "num_devices": None, "bandwidth": Dimension.RATE},
        result=Dimension.TIME,
    ),
    "ring_aggregation_term": Formula(
        compute=_aggregation_term_s,
        inputs={
            "size": Dimension.DATA,
            "num_devices": None,
            "flop_rate": Dimension.FLOP_RATE,
            "bytes_per_number": None,
        },
        result=Dimension.TIME,
    ),
}


# -- from text to operands -------------------------------------------------------------------------------------------


@frozen
class Number:
    """A number that the case gives, with its source."""

    value: Value
    source: str


@frozen
class FieldOf:
    """A field of the answer to a question; ``place`` is where the case says so."""

    question: str
    field: str
    place: _Path


@frozen
class Applied:
    """A formula with its inputs."""

    formula: str
    inputs: Mapping[str, "Operand"]
    place: _Path


Operand = Number | FieldOf | Applied


class OperandReader:
    """Reads the blocks of one case file; every fault it finds is kept in ``faults``, with its place."""

    def __init__(self, source: Source) -> None:
        self.faults: list[Fault] = []
        self._source = source

    def quantity(self, block: object, place: _Path) -> Operand | None:
        """Return a field or a formula, or None after noting why it is neither."""
        if not isinstance(block, dict):
            self._fault(place, f"{block!r} is no quantity.", "Write {question: ..., field: ...} or {formula: ...}.")
            return None
        if "formula" in block:
            return self._formula(block, place)
        if self._has_keys(block, ("question", "field"), place):
            return FieldOf(question=str(block["question"]), field=str(block["field"]), place=place)
        return None

    def number(self, block: object, place: _Path) -> Number | None:
        """Return a number with its source, or None after noting what is wrong with it."""
        if not isinstance(block, dict):
            self._fault(place, f"{block!r} has no source.", "Write e.g. {value: 9 h, source: section 2}.")
            return None
        if not self._has_keys(block, ("value", "source"), place):
            return None
        value = _value_of(block["value"])
        if value is None:
            self._fault((*place, "value"), f"{block['value']!r} is no number with a known unit.", "Write e.g. 9 h.")
            return None
        return Number(value=value, source=str(block["source"]))

    def _formula(self, block: Mapping[str, Any], place: _Path) -> Applied | None:
        name = block["formula"]
        formula = FORMULAS.get(name) if isinstance(name, str) else None
        if formula is None:
            self._fault((*place, "formula"), f"unknown formula {name!r}.", nearest(str(name), FORMULAS))
            return None
        if not self._has_keys(block, ("formula", *formula.inputs), place):
            return None
        inputs = {key: self._input(block[key], (*place, key)) for key in formula.inputs}
        found = {key: operand for key, operand in inputs.items() if operand is not None}
        return Applied(formula=name, inputs=found, place=place) if len(found) == len(inputs) else None

    def _input(self, block: Any, place: _Path) -> Operand | None:
        """Return a quantity, or a number with its source."""
        is_quantity = isinstance(block, dict) and ("formula" in block or "question" in block)
        return self.quantity(block, place) if is_quantity else self.number(block, place)

    def _has_keys(self, block: Mapping[str, Any], keys: tuple[str, ...], place: _Path) -> bool:
        """Whether a block has exactly these keys; note what is unknown or missing."""
        unknown, missing = [key for key in block if key not in keys], [key for key in keys if key not in block]
        for key in unknown:
            self._fault((*place, str(key)), f"unknown key {key!r}.", nearest(str(key), keys))
        for key in missing:
            self._fault((*place, key), "this key is missing.", "Add it.")
        return not unknown and not missing

    def _fault(self, place: _Path, problem: str, mend: str) -> None:
        self.faults.append(self._source.fault(place, problem, mend))


def _value_of(given: Any) -> Value | None:
    """Return a bare number, or text with a unit of any dimension; None if it is neither."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        return Value(float(given))
    for dimension in Dimension:
        try:
            return Value(parse(str(given), dimension), dimension)
        except ValueError:  # a unit of another dimension, or none
            continue
    return None


def fields_of(operand: Operand) -> list[FieldOf]:
    """Return every field that an operand needs."""
    if isinstance(operand, Applied):
        return [found for part in operand.inputs.values() for found in fields_of(part)]
    return [operand] if isinstance(operand, FieldOf) else []


# -- from operands to values -----------------------------------------------------------------------------------------


class Answer:
    """A question, loaded, and its prediction, made when first asked for."""

    values: Mapping[str, Any] | None = None

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @classmethod
    def of_model(cls, values: Mapping[str, object]) -> "Answer":
        """Return the answer of a paper's own model (:mod:`planner.cases.forms`): a tree of numbers."""
        answer = cls.__new__(cls)
        answer.values = values
        return answer

    @cached_property
    def prediction(self) -> Prediction:
        """What the question's configuration costs."""
        return api.predict(self.problem)

    def field(self, path: str) -> Value:
        """Return a field by its dotted path; raise ValueError, in words, if there is no such number."""
        parts = path.split(".")
        if self.values is not None:
            return Value(_walk(self.values, parts), _dimension_of(parts))
        if parts[0] == "dnn":
            return Value(self._of_dnn(parts[1:]), _dimension_of(parts[-1:]))  # a layer's name may end in _s
        return Value(_walk(self.prediction, parts), _dimension_of(parts))

    def _of_dnn(self, parts: list[str]) -> float:
        """Return a field of the network or of one of its layers, whose name may contain dots."""
        part: Dnn | Layer = self.problem.dnn
        if parts[:1] == ["layer"]:
            layers = {layer.name: layer for layer in self.problem.dnn.layers}
            name, parts = ".".join(parts[1:-1]), parts[-1:]
            if name not in layers:
                raise ValueError(f"{self.problem.dnn.name} has no layer {name!r}. {nearest(name, layers)}")
            part = layers[name]
        size = _NUMBER_BYTES[self.problem.training.dtype]
        counted = {
            "weight_bytes": part.num_weights * size,
            "trainable_bytes": part.num_trainable * size,
            "stored_bytes": (part.num_trainable + part.num_moving) * size,
            "multiply_adds": part.num_multiply_adds,
        }
        return _walk(counted, parts)


def _dimension_of(parts: list[str]) -> Dimension | None:
    """Return what a field measures, by the suffixes in its path: ``breakdown_s.forward`` is a time."""
    return next((unit for part in parts for end, unit in _SUFFIXES.items() if part.endswith(end)), None)


def _walk(whole: Any, parts: list[str]) -> float:
    """Return the number at the end of a path through a prediction and its mappings."""
    for part in parts:
        names = list(whole) if isinstance(whole, Mapping) else []
        if isinstance(whole, Prediction):
            names = [one.name for one in fields(whole)]
        if part not in names:
            raise ValueError(f"there is no field {part!r}. {nearest(part, names) if names else ''}".rstrip())
        whole = whole[part] if isinstance(whole, Mapping) else getattr(whole, part)
    if isinstance(whole, bool) or not isinstance(whole, int | float):
        raise ValueError("the field holds no number.")
    return float(whole)


def evaluate(operand: Operand, answers: Mapping[str, Answer], source: Source) -> Value:
    """Return the value of an operand.

    Raises
    ------
    SpecError
        At the operand's place: for an unknown field, inputs of the wrong dimension, or a division by zero.
    """
    if isinstance(operand, Number):
        return operand.value
    try:
        if isinstance(operand, FieldOf):
            return answers[operand.question].field(operand.field)
        values = {key: evaluate(part, answers, source) for key, part in operand.inputs.items()}
        return FORMULAS[operand.formula].apply(values)
    except ZeroDivisionError:
        raise _error(operand, "it divides by zero.", source) from None
    except ValueError as error:
        raise _error(operand, str(error), source) from None


def _error(operand: FieldOf | Applied, problem: str, source: Source) -> SpecError:
    path = (*operand.place, "field" if isinstance(operand, FieldOf) else "formula")
    problem, _, mend = problem.partition(". ")
    return source.error(path, f"{problem.rstrip('.')}.", mend)
