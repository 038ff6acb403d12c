"""The block ``sweep`` of a question, read and checked; and its questions, put together one at a time.

A *field* is a path in a question, ``cluster.machines.0.network``. A *range* names its values, with their unit, by steps
or by factors. An *axis* is a field that varies, or several that vary together; the *grid* is every combination of the
axes on a base question, the last axis varying fastest.
"""

import hashlib
import json
import math
import re
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from planner.errors import SpecError
from planner.frozen import frozen
from planner.plugins import planner_version
from planner.procurement.question import ProcurementSpec
from planner.question.build import source_of
from planner.question.source import Notes, Source, faults_of, nearest
from planner.question.spec import Spec
from planner.question.values import Model, Name
from planner.sweep.answers import Answer, Task, wrong
from planner.sweep.files import Files
from planner.units import Dimension, parse, plain
from planner.words import shown

MOST_QUESTIONS = 10_000_000
MOST_VALUES = 100_000  # of one field
_DIGEST = 32  # hexadecimal digits of a key: 128 bits
_ODD_PLACES = (("dnn", "file"), ("procure", "jobs", 0, "dnn", "file"))  # read before the model sees them


# -- the sweep ---------------------------------------------------------------------------------------------------------


class SweepSpec(Model):
    """What varies: each field of ``vary`` by itself, those of one part of ``zip`` together; all of them multiply."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="planner.sweep/1")

    vary: dict[Name, Any] = Field(default_factory=dict)
    zip: list[dict[Name, Any]] = Field(default_factory=list)


def question_schema(model: type[Model]) -> dict[str, object]:
    """Return the JSON Schema of a question, with the block ``sweep`` that may stand in it, too."""
    return create_model(model.__name__, __base__=model, sweep=(SweepSpec | None, None)).model_json_schema(by_alias=True)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A checked sweep."""

    grid: "Grid"  # its questions
    files: Files  # what they read
    # time_limit_s, memory_limit_bytes: of each question; the memory: of the process that answers it, None: a share of
    # what its machine has left
    time_limit_s: float
    document: Mapping[str, Any]  # base question and block, as they are stored
    identity: str  # digest of all that its answers depend on: who asks the same again goes on where it stopped
    memory_limit_bytes: float | None = None
    num_workers: int = 1  # processes that share the memory of this machine

    def task(self, position: int, today: date) -> Task | Answer:
        """Return a question of the sweep; where it cannot even be put together, its answer, which says why."""
        limits = self.time_limit_s, self.memory_limit_bytes
        try:
            question, used = self.files.resolved(self.grid.question(position))
        except ValueError as error:
            return wrong(_key(["misplaced", self.identity, position], *limits), SpecError(str(error)))
        except SpecError as error:
            return wrong(_key(["unreadable", self.identity, position], *limits), error)
        return Task(
            key=_key([question, sorted(used.items())], *limits),
            question=question,
            time_limit_s=self.time_limit_s,
            today=today,
            memory_limit_bytes=self.memory_limit_bytes,
            num_workers=self.num_workers,
        )


def load_sweep(
    question: str | Path | Mapping[str, object],
    *,
    time_limit_s: float,
    memory_limit_bytes: float | None = None,
    num_workers: int = 1,
) -> Sweep:
    """Return the sweep that a spec file, or a mapping of the same keys, asks.

    Parameters
    ----------
    question
        With a block ``sweep``.
    time_limit_s, memory_limit_bytes, num_workers
        See :class:`Sweep`.

    Raises
    ------
    SpecError
        With every fault of the block: unknown fields, ranges that are none, too many questions. Questions that are
        wrong one by one are no fault of the sweep; see
        :func:`planner.sweep.engine.refuse_hopeless`.
    """
    source = source_of(question)
    if odd := _odd_keys(source.data):
        raise SpecError.of([source.fault(place, "keys must be text.", "Put the key in quotes.") for place in odd[:20]])
    hint = "cluster.machines.0.count: [1, 2, 4, 8]}."
    if "sweep" not in source.data:
        problem = "there is no block sweep, which says which fields vary."
        raise source.error(("sweep",), problem, f"Add e.g. sweep: {{vary: {{{hint[:-1]}}}.")
    try:
        spec = SweepSpec.model_validate(source.data["sweep"] or {})
    except ValidationError as error:
        raise SpecError.of(faults_of(error, source, SweepSpec, ("sweep",))) from None
    if not spec.vary and not spec.zip:
        raise source.error(("sweep",), "nothing varies.", f"Add e.g. vary: {{{hint}")
    base = {key: value for key, value in source.data.items() if key != "sweep"}
    grid = Grid(base=base, axes=_axes(spec, source, base))
    files = Files(source.folder)
    document = {"question": base, "sweep": source.data["sweep"]}
    named = files.resolved_names([base, *(row for axis in grid.axes for row in axis.rows)])
    return Sweep(
        grid=grid,
        files=files,
        time_limit_s=time_limit_s,
        document=document,
        identity=_key([document, named], time_limit_s, memory_limit_bytes),
        memory_limit_bytes=memory_limit_bytes,
        num_workers=num_workers,
    )


def _key(parts: list[Any], time_limit_s: float, memory_limit_bytes: float | None) -> str:
    """Return a digest of plain data with the version and the limits: what is left of a machine's memory is none."""
    limits = [time_limit_s, *([] if memory_limit_bytes is None else [memory_limit_bytes])]
    text = json.dumps([*parts, planner_version(), *limits], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]


def _odd_keys(data: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where keys stand that are no text, which cannot be sorted among others."""
    found: list[tuple[Any, ...]] = []
    parts = data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, list) else ()
    for key, part in parts:
        if isinstance(data, Mapping) and not isinstance(key, str):
            found.append((*place, key))
        elif isinstance(part, Mapping | list):
            found += _odd_keys(part, (*place, key))
    return found


# -- the grid ----------------------------------------------------------------------------------------------------------


@frozen
class Axis:
    """Fields that vary together: ``rows[i][j]`` is the ``i``-th value of field ``j``."""

    paths: tuple["FieldPath", ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A base question and the axes that vary it; the last axis varies fastest."""

    base: Mapping[str, Any]
    axes: tuple[Axis, ...]

    def __len__(self) -> int:
        """Return how many questions there are."""
        return math.prod(len(axis.rows) for axis in self.axes)

    @cached_property
    def paths(self) -> tuple["FieldPath", ...]:
        """The fields that vary, in the order of the axes."""
        return tuple(path for axis in self.axes for path in axis.paths)

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The fields that vary, as they are written."""
        return tuple(map(path_text, self.paths))

    def values(self, position: int) -> tuple[object, ...]:
        """Return the values of :attr:`fields` in a question."""
        rows: list[tuple[Any, ...]] = []
        for axis in reversed(self.axes):
            position, place = divmod(position, len(axis.rows))
            rows.append(axis.rows[place])
        return tuple(value for row in reversed(rows) for value in row)

    def question(self, position: int) -> dict[str, Any]:
        """Return a question as plain data. It shares parts with others: change none of them.

        Raises
        ------
        ValueError
            If a value has no place, e.g. the third machine of two.
        """
        question: Any = dict(self.base)
        pairs = zip(self.paths, self.values(position), strict=True)
        for path, value in sorted(pairs, key=lambda pair: len(pair[0])):  # whole blocks first, then fields in them
            question = with_value(question, path, value)
        return dict(question)


def _axes(spec: SweepSpec, source: Source, base: Mapping[str, Any]) -> tuple[Axis, ...]:
    """Return the axes in the order in which they stand, or raise all faults at once."""
    notes = Notes(source)
    parts: list[tuple[tuple[str | int, ...], Mapping[str, Any]]] = [
        *((("sweep", "vary"), {name: value}) for name, value in spec.vary.items()),
        *((("sweep", "zip", index), part) for index, part in enumerate(spec.zip)),
    ]
    is_purchase = "procure" in base or any(name.split(".")[0] == "procure" for _, part in parts for name in part)
    model, seen = ProcurementSpec if is_purchase else Spec, set[FieldPath]()
    axes = [_axis(part, place, notes, model, seen) for place, part in parts]
    if notes.faults:
        raise SpecError.of(notes.faults)
    sizes = [len(axis.rows) for axis in axes]
    if math.prod(sizes) > MOST_QUESTIONS:
        product = " x ".join(map(str, sizes))
        problem = f"{product} are {math.prod(sizes)} questions, and {MOST_QUESTIONS} is the most."
        raise source.error(("sweep",), problem, "Vary less, or take larger steps.")
    return tuple(axes)


def _axis(
    part: Mapping[str, Any],
    place: tuple[str | int, ...],
    notes: Notes,
    model: type[Model],
    seen: set["FieldPath"],
) -> Axis:
    """Return the axis of one field, or of several together; note what is wrong."""
    paths: list[FieldPath] = []
    columns: list[list[Any]] = []
    for name, value in part.items():
        here = (*place, name)
        path = notes.attempt(here, lambda name=name: field_path(name))  # type: ignore[misc]  # mypy infers no default
        values = notes.attempt(here, lambda value=value: values_of(value))  # type: ignore[misc]  # as above
        if path is None or values is None:
            continue
        if path in seen:
            notes.fault(here, "this field varies twice.", "Leave one of them out.")
        seen.add(path)
        paths.append(path)
        columns.append(values)
        if _kinds_at(model, path) or tuple(0 if isinstance(step, int) else step for step in path) in _ODD_PLACES:
            continue
        known = next(length for length in range(len(path) - 1, -1, -1) if _kinds_at(model, path[:length]))
        blocks = [kind for kind in _kinds_at(model, path[:known]) if _is_block(kind)]
        names = sorted({name for block in blocks for name in block.model_fields})
        below = ".".join(map(str, path[:known])) or "a question"
        hint = nearest(str(path[known]), names) if names else f"{below} has no keys of its own."
        notes.fault(here, f"unknown key {str(path[known])!r} in {below}.", hint)
    if len({len(column) for column in columns}) > 1:
        sizes = ", ".join(f"{name}: {len(column)}" for name, column in zip(part, columns, strict=False))
        notes.fault(place, f"fields that vary together need as many values each; here {sizes}.", "Add or leave out.")
        return Axis(paths=(), rows=())
    if not part:
        notes.fault(place, "this part of zip is empty.", "Leave it out.")
    return Axis(paths=tuple(paths), rows=tuple(zip(*columns, strict=True)))


# -- fields ------------------------------------------------------------------------------------------------------------

FieldPath = tuple[str | int, ...]

_PART = re.compile(r'"([^"]+)"|([^."\[\]]+)|\[(\d+)\]')
_MOST_PARTS = 32


def field_path(text: str) -> FieldPath:
    """Return the parts of a path: keys between dots, places in lists as numbers, odd keys in double quotes.

    Raises
    ------
    ValueError
        If it is none.

    >>> field_path('procure.quotas."p4d.*"'), field_path("cluster.machines[0].count")
    (('procure', 'quotas', 'p4d.*'), ('cluster', 'machines', 0, 'count'))
    """
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        found = _PART.match(text, at + (1 if parts and text[at] == "." else 0))
        if found is None or (parts and text[at] not in ".[") or len(parts) >= _MOST_PARTS:
            break
        quoted, plain, place = found.groups()
        number = place if place is not None else plain if plain is not None and plain.isdecimal() else None
        parts.append(quoted or plain if number is None else int(number[:9]))
        at = found.end()
    if at < len(text) or not parts or isinstance(parts[0], int):
        raise ValueError(f"{text!r} is no path. Write keys with dots between them, e.g. cluster.machines.0.network.")
    return tuple(parts)


def path_text(path: FieldPath) -> str:
    """Return a path as it is written."""
    return ".".join(f'"{part}"' if isinstance(part, str) and not part.isidentifier() else str(part) for part in path)


def with_value(data: object, path: Sequence[str | int], value: object) -> object:
    """Return data with a value at a path, sharing all that does not change; blocks on the way that lack are made.

    Raises
    ------
    ValueError
        If a part on the way is of the wrong kind, or a list has no such place.
    """
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(head, int):
        if not isinstance(data, list) or head >= len(data):
            size = f"a list of {len(data)}" if isinstance(data, list) else "no list"
            raise ValueError(f"place {head} is asked for, and there is {size}.")
        return [*data[:head], with_value(data[head], rest, value), *data[head + 1 :]]
    if data is not None and not isinstance(data, dict):
        raise ValueError(f"{head!r} is asked for, and there is no block of keys.")
    known = data or {}
    return {**known, head: with_value(known.get(head), rest, value)}


def _kinds_at(kind: Any, path: Sequence[str | int]) -> list[Any]:
    """Return all types that may stand at a path below a type of a question's model, without unions and annotations."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _kinds_at(get_args(kind)[0], path)
    if origin in (Union, types.UnionType):
        return [found for part in get_args(kind) for found in _kinds_at(part, path)]
    if not path or kind is Any:
        return [kind]
    head, rest = path[0], path[1:]
    if origin in (list, tuple, Sequence):
        return _kinds_at(get_args(kind)[0], rest) if isinstance(head, int) else []
    if origin in (dict, Mapping):
        return _kinds_at(get_args(kind)[1], rest) if isinstance(head, str) else []
    if _is_block(kind) and head in kind.model_fields:
        return _kinds_at(kind.model_fields[head].annotation, rest)
    return []


def _is_block(kind: Any) -> bool:
    """Return whether a type is a block of keys."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)


# -- ranges ------------------------------------------------------------------------------------------------------------

_KEYS = {"from", "to", "step", "points", "factor", "scale"}
_MOST_LETTERS = 400  # of a quantity: what is longer is none
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S.*?)\s*", re.ASCII)
_LINEAR_DIGITS, _LOG_DIGITS = 12, 6
_EXAMPLE = "e.g. {from: 10 Gbit/s, to: 400 Gbit/s, points: 6, scale: log}"


def values_of(written: object) -> list[Any]:
    """Return the values that a list or a range names, in its order.

    A range has ``from`` and ``to``, both included, and one of: ``step``; ``factor``; ``points`` with ``scale`` linear
    or log. Its values keep the unit of ``from``; whole numbers stay whole, and none comes twice.

    Raises
    ------
    ValueError
        With what is wrong and how to mend it.

    >>> values_of({"from": "10 Gbit/s", "to": "40 Gbit/s", "factor": 2})
    ['10 Gbit/s', '20 Gbit/s', '40 Gbit/s']
    >>> values_of({"from": 1, "to": 100, "points": 3, "scale": "log"})
    [1, 10, 100]
    """
    if isinstance(written, list):
        if not written:
            raise ValueError("this list is empty. Write at least one value.")
        if len(written) > MOST_VALUES:
            raise ValueError(f"{len(written)} values are more than {MOST_VALUES}. Leave some out.")
        return written
    if not isinstance(written, dict) or "from" not in written:
        raise ValueError(f"{shown(written)} is neither a list nor a range. Write [first, second], or {_EXAMPLE}.")
    if unknown := sorted(str(key) for key in written if key not in _KEYS):
        raise ValueError(f"unknown key {unknown[0]!r} of a range. Write {_EXAMPLE}.")
    ways = [key for key in ("step", "factor", "points") if written.get(key) is not None]
    if len(ways) != 1 or written.get("to") is None:
        raise ValueError(f"a range has from, to, and one of step, factor and points. Write {_EXAMPLE}.")
    if ways[0] != "points" and written.get("scale") is not None:
        raise ValueError("scale belongs to points. Leave it out here.")
    return _between(_ends(written), ways[0], written[ways[0]], written.get("scale"))


def _between(ends: "_Ends", way: str, given: Any, scale: object) -> list[Any]:
    """Return the values of a range by its step, its factor or its points; raise ValueError where it has none."""
    first, last = ends.first, ends.last

    def refuse(number: float, *, is_by_factors: bool = True) -> None:
        """Refuse ranges by factors that start at nothing, and those of more values than anybody means."""
        if is_by_factors and first <= 0:
            raise ValueError(f"a range by factors cannot start at {first:g}. Start above 0, or use step.")
        if not number < MOST_VALUES + 1:
            raise ValueError(f"this range has {number:.6g} values, and {MOST_VALUES} is the most. Use larger steps.")

    if way == "step":  # the last value may fall short of the range's end, by steps as by factors
        step = ends.number(given)
        if step <= 0:
            raise ValueError(f"the step {given!r} leads nowhere. Write more than 0.")
        number = (last - first) / step * (1 + 1e-12) + 1
        refuse(number, is_by_factors=False)
        return ends.written([first + index * step for index in range(int(number))], _LINEAR_DIGITS)
    if way == "factor":
        factor = _Ends(0.0, 0.0, "", None, is_whole=False).number(given)
        if factor <= 1:
            raise ValueError(f"the factor {given!r} leads nowhere. Write more than 1.")
        number = math.log(last / first) / math.log(factor) + 1 + 1e-9 if first > 0 else 0.0
        refuse(number)
        return ends.written([first * factor**index for index in range(int(number))], _LINEAR_DIGITS)
    points = given
    if isinstance(points, bool) or not isinstance(points, int) or points < 2:
        raise ValueError(f"points is {shown(points)}. Write a whole number of 2 or more.")
    if scale not in ("linear", "log"):
        raise ValueError(f"points needs a scale, and it is {shown(scale)}. Write scale: log, or scale: linear.")
    refuse(points, is_by_factors=False)
    shares = [index / (points - 1) for index in range(1, points - 1)]
    if scale == "linear":
        inner, digits = [first + (last - first) * share for share in shares], _LINEAR_DIGITS
    else:
        refuse(points)
        inner, digits = [first * (last / first) ** share for share in shares], _LOG_DIGITS
    begin, end = (ends.written([end], 17)[0] for end in (first, last))
    return list(dict.fromkeys([begin, *ends.written(inner, digits), end]))  # whole ones may become fewer


@frozen(kw_only=False)
class _Ends:
    """The ends of a range as plain numbers in one unit, and how its values are written."""

    first: float
    last: float
    unit: str
    dimension: Dimension | None
    is_whole: bool

    def written(self, numbers: Sequence[float], digits: int) -> list[object]:
        """Return numbers as values of a question, each once; the ends as they are."""
        inner = [float(f"{number:.{digits}g}") for number in numbers]
        if self.is_whole:
            return list(dict.fromkeys(round(number) for number in inner))
        kept = dict.fromkeys(min(number, self.last) for number in inner)
        return [f"{plain(number)} {self.unit}" if self.unit else number for number in kept]

    def number(self, value: object) -> float:
        """Return a value as a number of the range's unit, or a plain finite number."""
        if self.dimension is None:
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
                hint = "Write e.g. 4, or a quantity with its unit at both ends."
                raise ValueError(f"{shown(value)} is no number. {hint}")
            return float(value)
        if not isinstance(value, str):
            raise ValueError(f"{value!r} has no unit. Write e.g. '{value} {self.unit}'.")
        si = parse(value, self.dimension)
        found = _NUMBER.fullmatch(value)
        if found is not None and found[2] == self.unit:
            return float(found[1])
        return float(f"{si / parse(f'1 {self.unit}', self.dimension):.15g}")


def _ends(written: dict[str, Any]) -> _Ends:
    """Return the ends of a range in the unit of the first."""
    first, last = written["from"], written["to"]
    unit, dimension = "", None
    if isinstance(first, str):
        found = _NUMBER.fullmatch(first) if len(first) <= _MOST_LETTERS else None
        dimension = _dimension_of(first) if found else None
        if found is None or dimension is None:
            raise ValueError(f"{shown(first)} is no quantity with a unit that is known. Write e.g. '10 Gbit/s'.")
        unit = found[2]
    is_whole = not unit and all(isinstance(value, int) for value in (first, last, written.get("step") or 0))
    blank = _Ends(0.0, 0.0, unit, dimension, is_whole)
    ends = _Ends(blank.number(first), blank.number(last), unit, dimension, is_whole)
    if ends.first > ends.last:
        raise ValueError(f"the range goes down: from {first} to {last}. Exchange its ends.")
    return ends


def _dimension_of(text: str) -> Dimension | None:
    """Return what a quantity is of, None where its unit is not known."""
    for dimension in Dimension:
        try:
            parse(text, dimension)
        except ValueError:
            continue
        return dimension
    return None
