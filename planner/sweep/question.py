"""The block ``sweep`` of a question, read and checked: which fields vary, over what, and what is asked of each."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, ValidationError, create_model

from planner.errors import SpecError
from planner.procurement.spec import ProcurementSpec
from planner.spec.network_file import with_networks
from planner.spec.question import Spec
from planner.spec.source import Notes, Source, faults_of, nearest, read_source
from planner.spec.values import Model, Name
from planner.sweep.answers import Answer, Task, wrong
from planner.sweep.files import Files
from planner.sweep.grid import Axis, Grid
from planner.sweep.paths import FieldPath, accepts, field_path, names_at
from planner.sweep.values import values_of
from planner.workers.version import planner_version

__all__ = ["MOST_QUESTIONS", "Sweep", "SweepSpec", "load_sweep", "question_schema"]

MOST_QUESTIONS = 10_000_000
_DIGEST = 32  # hexadecimal digits of a key: 128 bits
_ODD_PLACES = (("dnn", "file"), ("procure", "jobs", 0, "dnn", "file"))  # read before the model sees them


class SweepSpec(Model):
    """What varies: each field of ``vary`` by itself, those of one part of ``zip`` together; all of them multiply."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="planner.sweep/1")

    vary: dict[Name, Any] = Field(default_factory=dict)
    zip: list[dict[Name, Any]] = Field(default_factory=list)


def question_schema(model: type[Model]) -> dict[str, Any]:
    """Return the JSON Schema of a question, with the block ``sweep`` that may stand in it, too."""
    return create_model(model.__name__, __base__=model, sweep=(SweepSpec | None, None)).model_json_schema(by_alias=True)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A checked sweep.

    Attributes
    ----------
    grid
        Its questions.
    files
        What they read.
    time_limit_s, memory_limit_bytes
        Of each question; the memory: of the process that answers it, None: a share of what its machine has left.
    num_workers
        Processes that share the memory of this machine.
    document
        Base question and block, as they are stored.
    identity
        Digest of all that its answers depend on: who asks the same again goes on where it stopped.
    """

    grid: Grid
    files: Files
    time_limit_s: float
    document: Mapping[str, Any]
    identity: str
    memory_limit_bytes: float | None = None
    num_workers: int = 1

    def task(self, position: int, today: date) -> Task | Answer:
        """Return a question of the sweep; where it cannot even be put together, its answer, which says why."""
        try:
            question, used = self.files.resolved(self.grid.question(position))
        except ValueError as error:
            return wrong(self._key(["misplaced", self.identity, position]), SpecError(str(error)))
        except SpecError as error:
            return wrong(self._key(["unreadable", self.identity, position]), error)
        key = self._key([question, sorted(used.items())])
        return Task(
            key=key,
            question=question,
            time_limit_s=self.time_limit_s,
            today=today,
            memory_limit_bytes=self.memory_limit_bytes,
            num_workers=self.num_workers,
        )

    def _key(self, parts: list[Any]) -> str:
        """Return the key of a question: with the version that answers it and the limits that it has."""
        return _digest([*parts, planner_version(), *_limits(self.time_limit_s, self.memory_limit_bytes)])


def _limits(time_limit_s: float, memory_limit_bytes: float | None) -> list[float]:
    """Return the limits that are part of a key: what is left of a machine's memory is not."""
    return [time_limit_s, *([] if memory_limit_bytes is None else [memory_limit_bytes])]


def load_sweep(
    question: str | Path | Mapping[str, Any],
    *,
    time_limit_s: float,
    memory_limit_bytes: float | None = None,
    num_workers: int = 1,
) -> Sweep:
    """Return the sweep that a spec file, or a mapping of the same keys, asks.

    Raises
    ------
    SpecError
        With every fault of the block: unknown fields, ranges that are none, too many questions. Questions that are
        wrong one by one are no fault of the sweep; see :func:`planner.sweep.preflight.refuse_hopeless`.
    """
    if isinstance(question, Mapping):
        source = Source(data=with_networks(question), file="", folder=Path(), positions={})
    else:
        source = read_source(Path(question))
    if odd := _odd_keys(source.data):
        raise SpecError.of([source.fault(place, "keys must be text.", "Put the key in quotes.") for place in odd[:20]])
    if "sweep" not in source.data:
        mend = "Add e.g. sweep: {vary: {cluster.machines.0.count: [1, 2, 4, 8]}}."
        problem = "there is no block sweep, which says which fields vary."
        raise SpecError.of([source.fault(("sweep",), problem, mend)])
    spec = _checked(source)
    base = {key: value for key, value in source.data.items() if key != "sweep"}
    grid = Grid(base=base, axes=_axes(spec, source, base))
    files = Files(source.folder)
    document = {"question": base, "sweep": source.data["sweep"]}
    named = files.resolved_names([base, *(row for axis in grid.axes for row in axis.rows)])
    identity = _digest([document, named, planner_version(), *_limits(time_limit_s, memory_limit_bytes)])
    return Sweep(
        grid=grid,
        files=files,
        time_limit_s=time_limit_s,
        document=document,
        identity=identity,
        memory_limit_bytes=memory_limit_bytes,
        num_workers=num_workers,
    )


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


def _digest(value: Any) -> str:
    """Return a digest of plain data."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]


def _checked(source: Source) -> SweepSpec:
    """Return the block, its own keys checked."""
    try:
        spec = SweepSpec.model_validate(source.data["sweep"] or {})
    except ValidationError as error:
        raise SpecError.of(faults_of(error, source, SweepSpec, ("sweep",))) from None
    if not spec.vary and not spec.zip:
        mend = "Add e.g. vary: {cluster.machines.0.count: [1, 2, 4, 8]}."
        raise SpecError.of([source.fault(("sweep",), "nothing varies.", mend)])
    return spec


def _axes(spec: SweepSpec, source: Source, base: Mapping[str, Any]) -> tuple[Axis, ...]:
    """Return the axes in the order in which they stand, or raise all faults at once."""
    notes = Notes(source)
    is_purchase = "procure" in base or any(name.split(".")[0] == "procure" for name in _names(spec))
    model = ProcurementSpec if is_purchase else Spec
    seen: set[FieldPath] = set()
    axes = [_axis({name: given}, ("sweep", "vary"), notes, model, seen) for name, given in spec.vary.items()] + [
        _axis(part, ("sweep", "zip", index), notes, model, seen) for index, part in enumerate(spec.zip)
    ]
    if notes.faults:
        raise SpecError.of(notes.faults)
    number = 1
    for axis in axes:
        number *= len(axis.rows)
    if number > MOST_QUESTIONS:
        sizes = " x ".join(str(len(axis.rows)) for axis in axes)
        problem = f"{sizes} are {number} questions, and {MOST_QUESTIONS} is the most."
        raise SpecError.of([source.fault(("sweep",), problem, "Vary less, or take larger steps.")])
    return tuple(axes)


def _names(spec: SweepSpec) -> Iterator[str]:
    """Yield the paths of all fields that vary."""
    yield from spec.vary
    for part in spec.zip:
        yield from part


def _axis(
    part: Mapping[str, Any],
    place: tuple[str | int, ...],
    notes: Notes,
    model: type[Model],
    seen: set[FieldPath],
) -> Axis:
    """Return the axis of one field, or of several together; note what is wrong."""
    paths: list[FieldPath] = []
    columns: list[list[Any]] = []
    for name, given in part.items():
        path = notes.attempt((*place, name), lambda name=name: field_path(name))  # type: ignore[misc]
        values = notes.attempt((*place, name), lambda given=given: values_of(given))  # type: ignore[misc]
        if path is None or values is None:
            continue
        _check_field(path, (*place, name), notes, model, seen)
        paths.append(path)
        columns.append(values)
    if len({len(column) for column in columns}) > 1:
        sizes = ", ".join(f"{name}: {len(column)}" for name, column in zip(part, columns, strict=False))
        notes.fault(place, f"fields that vary together need as many values each; here {sizes}.", "Add or leave out.")
        return Axis(paths=(), rows=())
    if not part:
        notes.fault(place, "this part of zip is empty.", "Leave it out.")
    return Axis(paths=tuple(paths), rows=tuple(zip(*columns, strict=True)))


def _check_field(
    path: FieldPath, place: tuple[str | int, ...], notes: Notes, model: type[Model], seen: set[FieldPath]
) -> None:
    """Note a field that no question has, or that varies twice."""
    if path in seen:
        notes.fault(place, "this field varies twice.", "Leave one of them out.")
    seen.add(path)
    if accepts(model, path) or tuple(0 if isinstance(part, int) else part for part in path) in _ODD_PLACES:
        return
    known = next(length for length in range(len(path) - 1, -1, -1) if accepts(model, path[:length]))
    names = names_at(model, path[:known])
    below = ".".join(map(str, path[:known])) or "a question"
    mend = nearest(str(path[known]), names) if names else f"{below} has no keys of its own."
    notes.fault(place, f"unknown key {str(path[known])!r} in {below}.", mend)
