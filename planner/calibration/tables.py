"""Tables and profiles of measurements: timings of collectives, seconds of layers, whole iterations.

A table is CSV with named columns, each with its unit in its name (``time_us``, ``size_kib``); every fault is told with
its line and how to mend it. :func:`template` gives a table of each kind to fill in.

*Iterations*: a row is a change of the question and its time. Bare names are keys of ``fix``; a dotted name is a place
in the question (``dnn.batch_per_device``, ``configuration.all_reduce.num_devices``); in YAML, a list ``rows`` whose
``fix``, ``dnn`` and ``configuration`` may be mappings.

*Layers*: from a table, or a profile held against a network. A profile's layers are matched with the network's by name.
Where the names differ they are matched by order among those of the same kind and number of parameters, if both have
equally many of each.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from planner.cost import Floats
from planner.dnn import Dnn, Layer
from planner.errors import Fault, SpecError
from planner.frozen import frozen
from planner.importers.imported import MeasuredNetwork
from planner.importers.text import read_cells
from planner.letters import visible
from planner.question.source import read_source
from planner.shipped import shipped_text
from planner.units import Dimension, parse

MOST_ROWS = 200_000
_MOST_COLUMNS = 64
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_BYTES = {"bytes": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
_UNITS: Mapping[str, Mapping[str, float]] = {"s": _SECONDS, "bytes": _BYTES, "": {"": 1.0}}


def template(kind: str) -> str:
    """Return a table to fill in: ``collectives``, ``layers`` or ``iterations``."""
    return shipped_text("planner.data", f"examples/{kind}.csv")


@frozen
class Column:
    """A column of numbers: its name without unit, its SI unit (``s``, ``bytes`` or none), and what it may hold."""

    name: str
    unit: str = ""
    is_needed: bool = True
    is_whole: bool = False
    least: float = 0.0
    is_least_allowed: bool = False

    @property
    def spellings(self) -> dict[str, float]:
        """Every spelling of the column's name, with what one of its unit is in SI units."""
        return {f"{self.name}_{unit}" if unit else self.name: scale for unit, scale in _UNITS[self.unit].items()}

    @property
    def template(self) -> str:
        """The name in SI units, as templates have it."""
        return f"{self.name}_{self.unit}" if self.unit else self.name

    def value_of(self, text: str) -> float | str:
        """Return a number in the column's range, or what is wrong with it."""
        try:
            value = float(text)
        except ValueError:
            return "not a number"
        if not math.isfinite(value):
            return "not a finite number"
        if value < self.least or (value == self.least and not self.is_least_allowed):
            return f"not {'at least' if self.is_least_allowed else 'more than'} {self.least:g}"
        return "not a whole number" if self.is_whole and value != int(value) else value


@frozen
class Row:
    """One line of a table: numbers in SI units by column, the other cells as text, and the line's number."""

    line: int
    numbers: dict[str, float]
    texts: dict[str, str]


def fault(path: Path, line: int | None, problem: str, mend: str, *, field: str = "", value: object = "") -> Fault:
    """Return a fault of a file."""
    return Fault(file=str(path), line=line, field=field, value=str(value)[:80], problem=problem, mend=mend)


def read_rows(
    path: Path, columns: Sequence[Column], *, texts: Sequence[str] = (), has_others: bool = False
) -> list[Row]:
    """Return the rows of a table.

    Parameters
    ----------
    columns, texts
        Columns of numbers, and those of text that may stand beside them.
    has_others
        Whether columns of any other name are taken as text; else they are refused.

    Raises
    ------
    SpecError
        With the line of everything that is wrong, in one pass: no header, a column that is missing, unknown or there in
        two units, a cell that is no number in its range, no row at all, or more than 200,000 rows.
    """
    lines = read_cells(path, most_rows=MOST_ROWS)
    wanted = [*(column.template for column in columns), *texts]
    if len(lines) < 2:
        raise SpecError.one("there is no row below a header.", f"Write the columns {','.join(wanted)}.", file=path)
    at, header = lines[0]
    names = [cell.strip() for cell in header]
    places = _places(path, at, names, columns, texts, has_others=has_others)
    faults: list[Fault] = []
    rows = []
    for line, cells in lines[1:]:
        if len(cells) != len(names):
            problem = f"{len(cells)} cells under {len(names)} columns."
            faults.append(fault(path, line, problem, "Write one cell for each column.", value=",".join(cells)))
            continue
        row = Row(line=line, numbers={}, texts={})
        for index, (name, cell) in enumerate(zip(names, map(str.strip, cells), strict=True)):
            if index not in places:
                row.texts[name] = cell
            elif cell or places[index][0].is_needed:
                column, scale = places[index]
                value = column.value_of(cell)
                if isinstance(value, str):
                    mend = "Write a plain number; its unit belongs into the column's name."
                    faults.append(fault(path, line, f"{cell!r} is {value}.", mend, field=name, value=cell))
                else:
                    row.numbers[column.name] = value * scale
        rows.append(row)
    if faults:
        raise SpecError.of(faults[:50])
    return rows


def _places(
    path: Path, at: int, names: Sequence[str], columns: Sequence[Column], texts: Sequence[str], *, has_others: bool
) -> dict[int, tuple[Column, float]]:
    """Return where every column of numbers stands, and its scale; refuse headers that do not fit."""
    wanted = [*(column.template for column in columns), *texts]
    if len(names) > _MOST_COLUMNS:
        problem = f"{len(names)} columns, more than {_MOST_COLUMNS}."
        raise SpecError.one(problem, f"Write {', '.join(wanted)}.", file=path, line=at)
    faults: list[Fault] = []
    for name in sorted({name for name in names if names.count(name) > 1}):
        faults.append(fault(path, at, f"the column {name!r} stands twice.", "Keep one.", field=name))
    places: dict[int, tuple[Column, float]] = {}  # where every column of numbers stands, and its scale
    known = set(texts)
    for column in columns:
        spellings = column.spellings
        found = [index for index, name in enumerate(names) if name in spellings]
        places |= {index: (column, spellings[names[index]]) for index in found}
        known |= spellings.keys()
        if len(found) > 1:
            problem = f"{' and '.join(names[index] for index in found)} are given: which of the units holds?"
            faults.append(fault(path, at, problem, "Keep one of them.", field=column.name))
        elif not found and column.is_needed:
            mend = f"Name it {column.template}; other units: {', '.join(spellings)}." if column.unit else "Add it."
            faults.append(fault(path, at, f"the column {column.template!r} is missing.", mend, field=column.name))
    for name in () if has_others else (name for name in names if name not in known):
        faults.append(fault(path, at, f"unknown column {name!r}.", f"Known: {', '.join(wanted)}.", field=name))
    if faults:
        raise SpecError.of(faults)
    return places


# -- timings of collectives --------------------------------------------------------------------------------------------

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send_receive")
_MOST_BYTES_PER_S = 1e14  # no machine sends 100 TB a second: the column's unit is wrong
_LARGE_BYTES, _LEAST_BYTES_PER_S = 2**16, 1e4  # nor so few, where the bytes count
_MOST_S = 1e5
_MOST_SIZES = 2000
_SEEN_GB_PER_S = 0.5  # below, two digits after the point say too little to compare
_TIMING_COLUMNS = (
    Column(name="num_devices", is_whole=True, least=2, is_least_allowed=True),
    Column(name="size", unit="bytes"),
    Column(name="time", unit="s"),
    Column(name="repetitions", is_needed=False, is_whole=True),
    Column(name="num_machines", is_needed=False, is_whole=True, least=1, is_least_allowed=True),
    Column(name="algbw_gb_per_s", is_needed=False, is_least_allowed=True),
)


@frozen
class Timing:
    """One measured call: of so many bytes on each of so many devices; ``num_machines`` where it is known."""

    collective: str
    num_devices: int
    size_bytes: float
    time_s: float
    repetitions: float = 1.0
    num_machines: int | None = None
    file: str = ""
    line: int = 0


@frozen
class Group:
    """All timings of one collective on one number of devices: sizes ascending, the median of each.

    ``notes`` says what was joined, and where a larger transfer was faster.
    """

    collective: str
    num_devices: int
    size_bytes: Floats
    time_s: Floats
    num_machines: int | None = None
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """``all_reduce on 8 devices``."""
        return f"{self.collective} on {self.num_devices} devices"


def read_table_timings(path: Path) -> list[Timing]:
    """Return the timings of a CSV table; see :func:`template`.

    Raises
    ------
    SpecError
        With the line of everything that is wrong.
    """
    timings, faults = [], []
    for row in read_rows(path, _TIMING_COLUMNS, texts=("collective",)):
        name = row.texts.get("collective", "all_reduce").lower().replace("-", "_").replace("allreduce", "all_reduce")
        if name not in COLLECTIVES:
            mend = f"Write one of {', '.join(COLLECTIVES)}."
            faults.append(fault(path, row.line, f"unknown collective {name!r}.", mend, field="collective", value=name))
            continue
        said, rate = row.numbers.get("algbw_gb_per_s", 0.0), row.numbers["size"] / row.numbers["time"] / 1e9
        if said >= _SEEN_GB_PER_S and not 0.9 < rate / said < 1.1:  # beyond rounding
            problem = f"size over time is {rate:.4g} GB/s, not {said:g}: off by a factor of {said / rate:.4g}."
            mend = "Check the units: GB/s are 10**9 bytes/s, of the size over the time."
            faults.append(fault(path, row.line, problem, mend, field="algbw_gb_per_s"))
        machines = row.numbers.get("num_machines")
        timings.append(
            Timing(
                collective=name,
                num_devices=int(row.numbers["num_devices"]),
                size_bytes=row.numbers["size"],
                time_s=row.numbers["time"],
                repetitions=row.numbers.get("repetitions", 1.0),
                num_machines=None if machines is None else int(machines),
                file=str(path),
                line=row.line,
            )
        )
    if faults:
        raise SpecError.of(faults)
    return timings


def grouped(timings: Iterable[Timing]) -> list[Group]:
    """Return the groups, by collective and number of devices.

    Raises
    ------
    SpecError
        If a rate or a time is beyond all reason, which is how a wrong unit shows.
    """
    found: dict[tuple[str, int], list[Timing]] = {}
    faults = []
    for one in timings:
        rate, problem = one.size_bytes / one.time_s, ""
        if rate > _MOST_BYTES_PER_S or (one.size_bytes >= _LARGE_BYTES and rate < _LEAST_BYTES_PER_S):
            problem = f"{one.size_bytes:g} bytes in {one.time_s:g} s are {rate:.3g} bytes/s: no link."
        elif one.time_s > _MOST_S:
            problem = f"one call of {one.time_s:g} s is longer than a day."
        if problem:
            mend = "Check the unit in the column's name (time_s, time_us; size_bytes)."
            faults.append(fault(Path(one.file), one.line, problem, mend, field="time", value=one.time_s))
        found.setdefault((one.collective, one.num_devices), []).append(one)
    if faults:
        raise SpecError.of(faults[:50])
    return [_group(*key, rows) for key, rows in sorted(found.items())]


def _group(collective: str, num_devices: int, rows: Sequence[Timing]) -> Group:
    """Return one group: the median of every size, and what to tell of it."""
    by_size: dict[float, list[Timing]] = {}
    for one in rows:
        by_size.setdefault(one.size_bytes, []).append(one)
    sizes = np.array(sorted(by_size))
    medians_s = []
    for size in sizes.tolist():  # each row counted as often as it was repeated; the mean of two in the middle
        ordered = sorted(by_size[size], key=lambda one: one.time_s)
        weights = np.cumsum([one.repetitions for one in ordered])
        low, high = (int(np.searchsorted(weights, weights[-1] / 2, side=side)) for side in ("left", "right"))
        medians_s.append((ordered[low].time_s + ordered[min(high, len(ordered) - 1)].time_s) / 2)
    seconds = np.array(medians_s)
    notes = []
    if repeated := [size for size, same in by_size.items() if len(same) > 1]:
        spread = max(
            max(one.time_s for one in by_size[size]) / min(one.time_s for one in by_size[size]) for size in repeated
        )
        notes.append(
            f"{len(repeated)} size{'s' * (len(repeated) > 1)} stood several times, up to {spread:.3g} times apart: the "
            f"median is taken"
        )
    if falls := np.flatnonzero(np.diff(seconds) < 0).tolist():
        worst = max(falls, key=lambda index: seconds[index] / seconds[index + 1])
        notes.append(
            f"at {len(falls)} of {len(sizes) - 1} steps a larger transfer was faster, at most by "
            f"{1 - seconds[worst + 1] / seconds[worst]:.1%} ({sizes[worst]:g} to {sizes[worst + 1]:g} bytes)"
        )
    if len(sizes) > _MOST_SIZES:
        kept = np.unique(np.linspace(0, len(sizes) - 1, _MOST_SIZES).round().astype(int))
        notes.append(f"of {len(sizes)} sizes {len(kept)} are kept, evenly")
        sizes, seconds = sizes[kept], seconds[kept]
    machines = {one.num_machines for one in rows}
    if len(machines) > 1:
        notes.append("numbers of machines differ or are missing in places: none is taken over")
    return Group(
        collective=collective,
        num_devices=num_devices,
        size_bytes=sizes,
        time_s=seconds,
        num_machines=machines.pop() if len(machines) == 1 else None,
        files=tuple(dict.fromkeys(Path(one.file).name for one in rows)),
        notes=tuple(notes),
    )


# -- iterations --------------------------------------------------------------------------------------------------------

_PLACES = frozenset({"fix", "dnn", "configuration", "cluster"})
_MOST_ITERATIONS = 1000


@frozen
class IterationTime:
    """One measured iteration: what differs from the question, its median seconds, and where it stands."""

    changes: Mapping[str, Any]
    time_s: float
    file: str
    line: int | None = None

    @property
    def name(self) -> str:
        """The changes in a few words, ``num_devices 4``, without the places they stand in; long values are cut."""

        def words(changes: Mapping[str, Any]) -> list[str]:
            parts = []
            for key, value in changes.items():
                parts += words(value) if isinstance(value, Mapping) else [f"{key} {str(value)[:24]}"]
            return parts

        return ", ".join(words(self.changes)) or "the question as it is"


def read_iteration_table(path: Path) -> list[IterationTime]:
    """Return the rows of a CSV table; see :func:`template`.

    Raises
    ------
    SpecError
        With the line of everything that is wrong.
    """
    rows = read_rows(path, (Column(name="iteration_time", unit="s"),), has_others=True)
    if len(rows) > _MOST_ITERATIONS:
        raise SpecError.one(f"more than {_MOST_ITERATIONS} rows.", "Give the medians of each setting.", file=path)
    found, faults = [], []
    for row in rows:
        changes: dict[str, Any] = {}
        for name, cell in row.texts.items():
            parts = name.split(".") if "." in name else ["fix", name]
            if parts[0] not in _PLACES or not all(parts):
                mend = f"Write a key of fix, or a place below {', '.join(sorted(_PLACES))}."
                faults.append(fault(path, row.line, f"{name!r} is no place in a question.", mend, field=name))
            elif cell:
                place = changes
                for part in parts[:-1]:
                    place = place.setdefault(part, {})
                place[parts[-1]] = _value(cell)
        found.append(
            IterationTime(changes=changes, time_s=row.numbers["iteration_time"], file=str(path), line=row.line)
        )
    if faults:
        raise SpecError.of(faults[:50])
    return found


def _value(cell: str) -> object:
    """Return a cell as a truth value, a whole number, a number, or text."""
    if cell in ("true", "false"):
        return cell == "true"
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def read_iteration_document(path: Path) -> list[IterationTime]:
    """Return the rows of a YAML document ``rows: [{fix: {...}, iteration_time: 182 ms}]``.

    Raises
    ------
    SpecError
        With the line of everything that is wrong.
    """
    source = read_source(path)
    rows = source.data.get("rows")
    if not isinstance(rows, list) or not rows or len(rows) > _MOST_ITERATIONS:
        mend = "Write e.g. rows: [{fix: {num_devices: 4}, iteration_time: 182 ms}]."
        raise source.error(("rows",), f"this is no list of 1 to {_MOST_ITERATIONS} rows.", mend)
    faults: list[Fault] = []
    found = []
    for index, row in enumerate(rows):
        at: tuple[str | int, ...] = ("rows", index)
        line, _ = source.positions.get(at) or (None, None)
        if not isinstance(row, dict):
            mend = "Write {fix: {num_devices: 4}, iteration_time: 182 ms}."
            faults.append(source.fault(at, "a row is a mapping.", mend))
            continue
        given = row.get("iteration_time")
        try:
            time_s = parse(given, Dimension.TIME) if isinstance(given, str) else math.nan
            problem = "" if time_s > 0 else f"{given!r} is no time of more than 0 with its unit."
        except ValueError as error:
            time_s, problem = 1.0, str(error)
        if problem:
            faults.append(source.fault((*at, "iteration_time"), problem, "Write e.g. 182 ms.", given))
        for key, value in row.items():
            if key != "iteration_time" and (key not in _PLACES or not isinstance(value, dict)):
                mend = f"Known: iteration_time, and mappings {', '.join(sorted(_PLACES))}."
                faults.append(source.fault((*at, key), f"{key!r} is no mapping that a row may hold.", mend))
        changes = {key: value for key, value in row.items() if key in _PLACES}
        found.append(IterationTime(changes=changes, time_s=time_s, file=source.file, line=line))
    if faults:
        raise SpecError.of(faults[:50])
    return found


# -- layers ------------------------------------------------------------------------------------------------------------

_LAYER_COLUMNS = (
    Column(name="multiply_adds", is_least_allowed=True),
    Column(name="batch", is_whole=True),
    Column(name="forward", unit="s", is_least_allowed=True),
    Column(name="backward", unit="s", is_needed=False, is_least_allowed=True),
    Column(name="parameters", is_needed=False, is_least_allowed=True),
)


@frozen
class LayerTime:
    """One layer: multiply-adds and seconds of one sample; ``backward_s`` None where it was not measured."""

    name: str
    kind: str
    num_multiply_adds: float
    forward_s: float
    backward_s: float | None
    num_parameters: float = 0.0
    num_output_elements: float = 0.0

    @property
    def seconds(self) -> float:
        """Of all passes."""
        return self.forward_s + (self.backward_s or 0.0)


@frozen
class LayerTimes:
    """All layers of one profile, in order; ``batch_size`` samples were passed at a time."""

    layers: tuple[LayerTime, ...]
    batch_size: float
    file: str
    notes: tuple[str, ...] = ()


def read_layer_table(path: Path) -> LayerTimes:
    """Return the layers of a CSV table; see :func:`template`.

    Raises
    ------
    SpecError
        With the line of everything that is wrong: a layer that stands twice, several batches, no multiply-adds at all.
    """
    rows = read_rows(path, _LAYER_COLUMNS, texts=("layer", "kind"))
    faults: list[Fault] = []
    lines: dict[str, int] = {}
    for row in rows:
        name = row.texts.get("layer", "")
        if not name or name in lines:
            problem = f"layer {name!r} stands twice (first on line {lines[name]})." if name else "no layer's name."
            faults.append(fault(path, row.line, problem, "Give every layer its own name.", field="layer", value=name))
        lines.setdefault(name, row.line)
    batches = sorted({row.numbers["batch"] for row in rows})
    if len(batches) > 1:
        mend = "Write one file for each batch, and calibrate with the one that you train with."
        faults.append(fault(path, None, f"batches of {', '.join(f'{one:g}' for one in batches)}.", mend, field="batch"))
    if not any(row.numbers["multiply_adds"] for row in rows):
        mend = "Count those of the convolutions, products and fully connected layers."
        faults.append(fault(path, None, "no layer has multiply-adds.", mend, field="multiply_adds"))
    if faults:
        raise SpecError.of(faults)
    batch = batches[0]
    layers = tuple(
        LayerTime(
            name=row.texts["layer"],
            kind=row.texts.get("kind", "") or "operator",
            num_multiply_adds=row.numbers["multiply_adds"],
            forward_s=row.numbers["forward"] / batch,
            backward_s=row.numbers["backward"] / batch if "backward" in row.numbers else None,
            num_parameters=row.numbers.get("parameters", 0.0),
        )
        for row in rows
    )
    return LayerTimes(layers=layers, batch_size=batch, file=visible(path.name))


def layers_of_profile(path: Path, found: MeasuredNetwork, dnn: Dnn, *, batch_size: int) -> LayerTimes:
    """Return a profile's seconds with the multiply-adds of a network.

    Raises
    ------
    SpecError
        If fewer than half of the network's multiply-adds are matched by a measured layer.
    """
    measured = found.dnn.layers
    seconds = {
        layer.name: (float(forward), float(backward))
        for layer, forward, backward in zip(measured, found.profile.forward_s, found.profile.backward_s, strict=True)
    }
    partner, how = _partners(measured, dnn)
    matched = sum(layer.num_multiply_adds for layer in partner.values())
    if matched < dnn.num_multiply_adds / 2:
        with_work = [layer.name for layer in dnn.layers if layer.num_multiply_adds]
        problem = (
            f"its layers ({', '.join(layer.name for layer in measured[:3])}, ...) are not those of {dnn.name} "
            f"({', '.join(with_work[:3])}, ...): {matched / max(1, dnn.num_multiply_adds):.0%} of the multiply-adds "
            f"match."
        )
        mend = "Name the network that was profiled in the spec's dnn, or write the table of --template layers."
        raise SpecError.one(problem, mend, file=path)
    is_forward_only = not any(backward for _, backward in seconds.values())
    kinds = {layer.kind for layer in dnn.layers if layer.num_multiply_adds}
    unknown = {layer.name for layer in measured if layer.kind in kinds and layer.name not in partner}
    layers = tuple(
        LayerTime(
            name=layer.name,
            kind=partner[layer.name].kind if layer.name in partner else layer.kind,
            num_multiply_adds=partner[layer.name].num_multiply_adds if layer.name in partner else 0,
            forward_s=seconds[layer.name][0],
            backward_s=None if is_forward_only else seconds[layer.name][1],
            num_parameters=layer.num_trainable,
            num_output_elements=layer.num_output_elements,
        )
        for layer in measured
        if layer.kind != "input" and layer.name not in unknown
    )
    notes = [how] if how else []
    if unknown:
        names = ", ".join(sorted(unknown)[:6])
        notes.append(f"measured layers that are none of the network's are left out: {names}")
    if matched < dnn.num_multiply_adds:
        notes.append(f"{1 - matched / dnn.num_multiply_adds:.1%} of the network's multiply-adds have no measured layer")
    return LayerTimes(layers=layers, batch_size=batch_size, file=visible(path.name), notes=tuple(notes))


def _partners(measured: Sequence[Layer], dnn: Dnn) -> tuple[dict[str, Layer], str]:
    """Return the network's layer of each measured one that has work, by the latter's name, and how that was found."""
    working = [layer for layer in dnn.layers if layer.num_multiply_adds]
    by_name = {layer.name.lower(): layer for layer in working}
    same = {layer.name: by_name[layer.name.lower()] for layer in measured if layer.name.lower() in by_name}
    if len(same) == len(working):
        return same, ""
    ours, theirs = _by_size(working), _by_size(measured)
    found = {
        layer.name: other
        for key, others in ours.items()
        if len(theirs.get(key, ())) == len(others)
        for layer, other in zip(theirs[key], others, strict=True)
    }
    if sum(layer.num_multiply_adds for layer in found.values()) <= sum(one.num_multiply_adds for one in same.values()):
        return same, ""
    return found, f"names differ: {len(found)} layers are matched by order among those of one kind and size"


def _by_size(layers: Sequence[Layer]) -> dict[tuple[str, int], list[Layer]]:
    """Return layers by kind and number of trained parameters, each list in order."""
    found: dict[tuple[str, int], list[Layer]] = {}
    for layer in layers:
        found.setdefault((layer.kind, layer.num_trainable), []).append(layer)
    return found
