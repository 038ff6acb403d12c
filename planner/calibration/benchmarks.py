"""Which kind of measurement every file is, told by its content, and all of them read; output of benchmarks of links.

*nccl-tests* (and rccl-tests): ``all_reduce_perf`` and its likes, old versions and new ones. Format: NVIDIA/nccl-tests,
``src/common.cu`` and ``README.md``; older outputs in its issues 29 and 107, newer ones in pull requests 428 of
nebius/soperator and 43 of coreweave/nccl-tests. A line for every rank (``#  Rank  0 Group  0 Pid 1887 on worker-1
device 0``; no ``Group`` in old versions), then a table: ``size count type redop root time algbw busbw #wrong`` and the
last four again for the operation in place. Old versions have no ``root`` and call the last column ``error``;
collectives that do not reduce may lack ``redop``. Sizes are bytes, times microseconds, rates GB/s.

*osu-micro-benchmarks* 5 to 7, ``c/mpi/collective``: ``# OSU MPI Allreduce Latency Test v5.4.0``, a line ``# Size
Avg Latency(us)`` (with ``-f`` also least, most and iterations), then sizes in bytes and microseconds. The number of
ranks is not in it: it is given, or the one number in the file's name. Sizes may have the number of ranks before them,
``8,1024  53.2``, as logs in shyhuai/B-Caffe have.
"""

import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from planner.calibration.tables import (
    MOST_ROWS,
    IterationTime,
    Timing,
    fault,
    read_iteration_document,
    read_iteration_table,
    read_table_timings,
)
from planner.errors import Fault, SpecError
from planner.frozen import frozen
from planner.importers.kinds import IMPORTERS, kind_of
from planner.importers.text import read_text
from planner.letters import visible

# -- nccl-tests --------------------------------------------------------------------------------------------------------

_RANK = re.compile(r"#?\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+(\d+)\s+on\s+(\S+)\s+device", re.IGNORECASE)
_NAME = re.compile(r"(?:Collective test starting:\s*|/|\b)(\w+?)_perf")
_NCCL_NAMES = {
    "all_reduce": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "all_gather": "all_gather",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "sendrecv": "send_receive",
}
_HEADS = ("nThread", "nccl-tests version", "rccl-tests", "Collective test starting")
_FIGURES = 4  # time, algbw, busbw, wrong; twice
_US, _GB = 1e-6, 1e9
_SEEN = 0.5  # GB/s: below, two digits after the point say too little to compare


def is_nccl(text: str) -> bool:
    """Whether a text is output of nccl-tests."""
    return "algbw" in text and "busbw" in text and "size" in text


@frozen
class _Line:
    """A line of the table: GB/s as printed."""

    number: int
    size_bytes: float
    operation: str
    time_s: float
    algorithm: float
    bus: float


def read_nccl(path: Path, text: str, *, num_devices: int | None = None) -> list[Timing]:
    """Return the timings out of place: gradients are kept until they are exchanged.

    Parameters
    ----------
    num_devices
        Where the text lacks the ranks; it must agree with those that it has.

    Raises
    ------
    SpecError
        With the line of everything that is wrong: no ranks, times that contradict the rates beside them, ranks that
        contradict the bus rates.
    """
    faults: list[Fault] = []
    found: list[Timing] = []
    for first, lines in _runs(text.splitlines()):
        rows = [row for number, line in enumerate(lines, first) if (row := _line(path, number, line, faults))]
        rows = [row for row in rows if row.size_bytes > 0]  # of 0 bytes only the call itself is timed
        if len(found) + len(rows) > MOST_ROWS:
            raise SpecError.one(f"more than {MOST_ROWS} lines of a table.", "Give one run a file.", file=path)
        if not rows or faults:
            continue
        ranks, machines = _ranks(path, first, lines)
        number = _nccl_devices(path, rows, ranks, num_devices)
        collective = _collective(path, lines, rows, number)
        _check(path, rows, number, collective)
        found += [
            Timing(
                collective=collective,
                num_devices=number,
                size_bytes=row.size_bytes,
                time_s=row.time_s,
                num_machines=machines if ranks == number else None,
                file=str(path),
                line=row.number,
            )
            for row in rows
        ]
    if faults:
        raise SpecError.of(faults[:50])
    if not found:
        mend = "Give the whole output, with its table."
        raise SpecError.one("there is no line of a table of nccl-tests in it.", mend, file=path)
    return found


def _runs(lines: Sequence[str]) -> list[tuple[int, list[str]]]:
    """Return the runs of a text, each with the number of its first line: a run starts above its header and ranks."""
    found: list[tuple[int, list[str]]] = [(1, [])]
    has_table = False
    for number, line in enumerate(lines, start=1):
        if has_table and line.lstrip("# ").startswith(_HEADS):
            found.append((number, []))
            has_table = False
        has_table = has_table or line.lstrip()[:1].isdigit()
        found[-1][1].append(line)
    return found


def _line(path: Path, number: int, line: str, faults: list[Fault]) -> _Line | None:
    """Return a line of the table, counted from its right end, where all versions agree; None for any other line."""
    cells = line.split()
    if len(cells) < 3 + 2 * _FIGURES or not (cells[0].isdigit() and cells[1].isdigit()):
        return None
    figures = cells[-2 * _FIGURES : -2 * _FIGURES + 3]
    if (wrong := cells[-2 * _FIGURES + 3]).isdigit() and int(wrong):  # old versions print an error here, as 4e-07
        problem = f"{wrong} results of this collective were wrong (#wrong)."
        faults.append(fault(path, number, problem, "Mend the links and run it again, or remove the line.", value=wrong))
        return None
    try:
        time, algorithm, bus = (float(cell) for cell in figures)
    except ValueError:
        return None
    if not (time > 0 and math.isfinite(time) and math.isfinite(algorithm) and math.isfinite(bus)):
        faults.append(fault(path, number, f"a time of {figures[0]} us.", "Remove the line.", value=line.strip()))
        return None
    operation = cells[3] if len(cells) > 3 + 2 * _FIGURES else ""
    return _Line(
        number=number, size_bytes=float(cells[0]), operation=operation, time_s=time * _US, algorithm=algorithm, bus=bus
    )


def _ranks(path: Path, first: int, lines: Sequence[str]) -> tuple[int, int]:
    """Return how many ranks and how many hosts are listed; of several groups, those of the first."""
    seen: dict[tuple[str, str], tuple[str, str]] = {}
    for number, line in enumerate(lines, first):
        if match := _RANK.search(line):
            group, rank, place = match[2] or "0", match[1], (match[3], match[4])
            if seen.setdefault((group, rank), place) != place:
                before = seen[group, rank]
                problem = (
                    f"rank {rank} stands twice, on {before[1]} (process {before[0]}) and {place[1]} (process "
                    f"{place[0]}): these processes ran apart."
                )
                raise SpecError.one(problem, "Build nccl-tests with MPI=1 and run it again.", file=path, line=number)
    least = min((int(group) for group, _ in seen), default=0)
    hosts = [host for (group, _), (_, host) in seen.items() if int(group) == least]
    return len(hosts), len(set(hosts))


def _nccl_devices(path: Path, rows: Sequence[_Line], ranks: int, given: int | None) -> int:
    """Return the number of devices."""
    if ranks and given not in (None, ranks):
        mend = f"Leave out --devices, or write --devices {ranks}."
        raise SpecError.of([fault(path, None, f"{ranks} ranks are listed, not {given}.", mend, value=given)])
    if ranks or given:
        return ranks or given or 0
    wide = max(rows, key=lambda row: row.algorithm)
    ratio = wide.bus / wide.algorithm if wide.algorithm >= _SEEN else 0.0
    likely = f" Its bus rates look like {round(2 / (2 - ratio))} devices." if 1 <= ratio < 1.99 else ""
    problem = "it lists no ranks, so that the number of devices is not known."
    raise SpecError.one(problem, f"Give the whole output, or --devices N.{likely}", file=path)


def _collective(path: Path, lines: Sequence[str], rows: Sequence[_Line], number: int) -> str:
    """Return the collective: as the text or the file's name says, else by the ratio of bus rate to algorithm rate."""
    for text in (*(line for line in lines if "_perf" in line), path.name):
        named = _NAME.search(text)
        if named and named[1] in _NCCL_NAMES:
            return _NCCL_NAMES[named[1]]
    for words, name in (("all_reduce", "all_reduce"), ("allreduce", "all_reduce"), ("all_gather", "all_gather")):
        if words in path.name.lower():
            return name
    wide = max(rows, key=lambda row: row.algorithm)
    share = (number - 1) / number
    ratio = wide.bus / wide.algorithm if wide.algorithm >= _SEEN else 2 * share
    is_reducing = wide.operation not in ("none", "")
    if abs(ratio - 2 * share) <= 0.03 * ratio and (number > 2 or is_reducing):
        return "all_reduce"
    if abs(ratio - share) <= 0.03 * ratio:
        return "reduce_scatter" if is_reducing else "all_gather"
    if abs(ratio - 1) <= 0.03:
        return "reduce" if is_reducing else "broadcast"
    problem = f"busbw is {ratio:.3f} of algbw, as of no collective on {number} devices (all_reduce: {2 * share:.3f})."
    raise SpecError.one(problem, "Give the whole output; check the number of devices.", file=path, line=wide.number)


def _check(path: Path, rows: Sequence[_Line], number: int, collective: str) -> None:
    """Refuse times that contradict their rates, and bus rates of another number of devices."""
    faults = []
    for row in rows:
        rate = row.size_bytes / row.time_s / _GB
        if row.algorithm >= _SEEN and not 0.9 < rate / row.algorithm < 1.1:
            problem = (
                f"{row.size_bytes:g} bytes in {row.time_s:g} s are {rate:.4g} GB/s, and algbw says {row.algorithm:g}: "
                f"sizes, times and rates contradict each other by a factor of {row.algorithm / rate:.4g}."
            )
            mend = "Times are microseconds, sizes bytes, rates GB/s; give the output as it was printed."
            faults.append(fault(path, row.number, problem, mend, field="time"))
        expected = 2 * (number - 1) / number
        is_off = row.algorithm >= _SEEN and abs(row.bus / row.algorithm - expected) > 0.05 * expected
        if collective == "all_reduce" and is_off and not faults:
            problem = f"busbw is {row.bus / row.algorithm:.3f} of algbw; {number} devices make it {expected:.3f}."
            faults.append(fault(path, row.number, problem, "Check the number of devices, or the collective."))
    if faults:
        raise SpecError.of(faults[:50])


# -- osu-micro-benchmarks ----------------------------------------------------------------------------------------------

_HEAD = re.compile(r"#[ \t]*OSU MPI(?:-\w+)?[ \t]+(?:Persistent[ \t]+)?(.+?)[ \t]+(\w+) Test\b", re.I)
_OSU_COLUMNS = re.compile(r"#[ \t]*Size\b(.*)")
_GAP = re.compile(r"\s{2,}|(?<=\))\s+")
_OSU_NAMES = {
    "allreduce": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce-scatter": "reduce_scatter",
    "allgather": "all_gather",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "all-to-all": "all_to_all",
    "alltoall": "all_to_all",
}
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def is_osu(text: str) -> bool:
    """Whether a text is output of an OSU micro-benchmark."""
    return _HEAD.search(text) is not None


def read_osu(path: Path, text: str, *, num_devices: int | None = None) -> list[Timing]:
    """Return the timings: the average over the ranks.

    Parameters
    ----------
    num_devices
        Number of ranks; where it is left out, the one number in the file's name, or the one before the sizes.

    Raises
    ------
    SpecError
        With the line of everything that is wrong: above all no, or contradicting, numbers of ranks.
    """
    lines = text.splitlines()
    at, head = next((at, match) for at, line in enumerate(lines) if (match := _HEAD.search(line)))  # as is_osu asks
    collective = _OSU_NAMES.get(head[1].lower())
    if collective is None or head[2].lower() != "latency":
        what = "blocking collective" if head[1].lower().startswith("non-blocking") else "collective"
        problem = f"this is the test {head[1]} {head[2]}, not the latency of a {what}."
        raise SpecError.of([fault(path, None, problem, f"Give one of {', '.join(_OSU_NAMES)}.", value=head[0])])
    faults: list[Fault] = []
    scale, repeated = _osu_columns(path, lines)
    # Above the head stands what MPI has to say, and the job's script.
    rows = [
        row
        for number, line in enumerate(lines[at:], start=at + 1)
        if (row := _osu_row(path, number, line, scale, repeated, faults))
    ]
    if not rows and not faults:
        faults.append(fault(path, None, "there is no line of size and latency.", "Give the whole output."))
    if len(rows) > MOST_ROWS:
        faults = [fault(path, None, f"more than {MOST_ROWS} lines.", "Give one run a file.")]
    if faults:
        raise SpecError.of(faults[:50])
    number = _osu_devices(path, rows, num_devices)
    return [
        Timing(
            collective=collective,
            num_devices=number,
            size_bytes=size_bytes,
            time_s=time_s,
            repetitions=repetitions,
            file=str(path),
            line=line,
        )
        for line, size_bytes, time_s, repetitions, _ in rows
        if size_bytes > 0
    ]


def _osu_columns(path: Path, lines: Sequence[str]) -> tuple[float, int | None]:
    """Return seconds of the latencies' unit, and which column holds the iterations, by the table's header.

    Raises
    ------
    SpecError
        If the unit is unknown, or the first column of figures is no latency.
    """
    for number, line in enumerate(lines, start=1):
        if head := _OSU_COLUMNS.search(line):
            titles = [title for title in _GAP.split(head[1].strip()) if title]
            found = re.fullmatch(r"(?:Avg )?Latency\s*\((\w+)\)", titles[0] if titles else "")
            if found is None:
                problem = f"the column after the size is {titles[0] if titles else 'nothing'!r}, not a latency."
                mend = "Give the latency test of a blocking collective."
                raise SpecError.of([fault(path, number, problem, mend, value=line)])
            if found[1] not in _UNITS:
                problem = f"latencies in {found[1]!r}."
                raise SpecError.of([fault(path, number, problem, f"Known: {', '.join(_UNITS)}.", value=found[1])])
            return _UNITS[found[1]], titles.index("Iterations") + 1 if "Iterations" in titles else None
    return _UNITS["us"], None


def _osu_row(
    path: Path, number: int, line: str, scale: float, repeated: int | None, faults: list[Fault]
) -> tuple[int, float, float, float, int | None] | None:
    """Return line, bytes, seconds, iterations and the number before the size; None for what is no line of a table."""
    text = line.strip()
    if text[:1] not in "-+." and not text[:1].isdigit():  # comments, and what MPI says in between
        return None
    if text.strip("-+. ") == "":
        return None
    cells = text.split()
    before, _, size = cells[0].rpartition(",")
    try:
        size_bytes, time_s = float(size), float(cells[1]) * scale
        ranks = int(before) if before else None
        repetitions = float(cells[repeated]) if repeated is not None and len(cells) > repeated else 1.0
    except (ValueError, IndexError):
        mend = "Give the output as it was printed: a size and a latency a line."
        faults.append(fault(path, number, f"{text[:60]!r} is no line of size and latency.", mend, value=text))
        return None
    if not (size_bytes >= 0 and time_s > 0 and math.isfinite(size_bytes) and math.isfinite(time_s)):
        problem = f"{size_bytes:g} bytes in {cells[1]}: sizes and latencies are finite and more than 0."
        faults.append(fault(path, number, problem, "Remove the line.", value=text))
        return None
    return number, size_bytes, time_s, max(1.0, repetitions), ranks


def _osu_devices(path: Path, rows: Sequence[tuple[int, float, float, float, int | None]], given: int | None) -> int:
    """Return the number of ranks; refuse none, and those that contradict."""
    told = {ranks: line for line, _, _, _, ranks in reversed(rows) if ranks is not None}
    digits = {int(text) for text in re.findall(r"\d+", path.stem)}
    hint = digits.pop() if len(digits) == 1 else None
    found = given or hint
    if len(told) > 1 or (told and found is not None and found not in told):
        ranks, line = next((one for one in told.items() if one[0] != found), next(iter(told.items())))
        problem = f"the sizes have {ranks} before them; expected {found or 'one number throughout'}."
        raise SpecError.of([fault(path, line, problem, "Give --devices N, or mend the lines.", value=ranks)])
    found = found or next(iter(told), None)
    if found is None or found < 2:
        problem = "the number of ranks is not in this format."
        mend = "Give --devices N, or put it into the file's name as its only number, e.g. allreduce8.log."
        raise SpecError.of([fault(path, None, problem, mend, value=found or "")])
    return found


# -- all files ---------------------------------------------------------------------------------------------------------

_MOST_FILES = 1000
_RUN_KEYS = ("session_id", "family", "inputs")
_HEADER_ROWS = 50  # comments before a header


class Kind(StrEnum):
    """What a file holds."""

    RUN = "run"
    OSU = "osu"
    NCCL = "nccl"
    COLLECTIVES = "collectives"
    LAYERS = "layers"
    ITERATIONS = "iterations"
    ITERATION_DOCUMENT = "iteration document"
    PROFILE = "profile"


@frozen
class Measurements:
    """What all files hold together; profiles and layer tables are read later, beside their network."""

    timings: tuple[Timing, ...] = ()
    iterations: tuple[IterationTime, ...] = ()
    layer_tables: tuple[Path, ...] = ()
    profiles: tuple[Path, ...] = ()
    runs: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def expanded(paths: Sequence[Path]) -> list[Path]:
    """Return the files, those of folders in the order of their names; hidden ones and folders in folders are left out.

    Raises
    ------
    SpecError
        If a folder is empty, or there are more than 1,000 files.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
        inside = [one for one in inside if one.name.lower() not in ("readme.md", "readme", "license", "sources.md")]
        if not inside:
            raise SpecError.one("there is no file in this folder.", "Name the files themselves.", file=path)
        found += inside
    if len(found) > _MOST_FILES:
        raise SpecError.one(f"{len(found)} files, more than {_MOST_FILES}.", "Give them in parts.", file=paths[0])
    return list(dict.fromkeys(found))


def kind_of_file(path: Path) -> tuple[Kind, str]:
    """Return a file's kind and its text.

    Raises
    ------
    SpecError
        If nothing here can read it.
    """
    profile = kind_of(path)
    if profile == "chrome_trace":  # may be compressed, which is no text
        return Kind.PROFILE, ""
    text = read_text(path)
    if text.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            data = json.loads(text)
            if isinstance(data, dict) and all(key in data for key in _RUN_KEYS):
                return Kind.RUN, text
    if is_osu(text):
        return Kind.OSU, text
    if is_nccl(text):
        return Kind.NCCL, text
    lines = [line for line in text.split("\n", _HEADER_ROWS)[:_HEADER_ROWS] if line.strip()]
    first = next((line for line in lines if not line.lstrip().startswith("#")), "")
    header = {cell.strip().strip('"') for cell in first.split(",")}  # of a CSV table
    if any(name.startswith("iteration_time") for name in header) and len(header) > 1:
        return Kind.ITERATIONS, text
    if "layer" in header and "multiply_adds" in header:
        return Kind.LAYERS, text
    if {"num_devices", "collective"} & header and any(re.match(r"(size|time)", name) for name in header):
        return Kind.COLLECTIVES, text
    if re.search(r"^rows:", text, re.MULTILINE) and "iteration_time" in text:
        return Kind.ITERATION_DOCUMENT, text
    if profile in IMPORTERS.own:
        return Kind.PROFILE, text
    problem = "its content is of no kind that is known here."
    mend = (
        "Give output of nccl-tests or osu-micro-benchmarks, a profile of layers, a measured run, or a table "
        "as `planner calibrate --template collectives` (or layers, iterations) prints it."
    )
    raise SpecError.one(problem, mend, file=path)


def read_files(paths: Sequence[Path], *, num_devices: int | None = None) -> Measurements:
    """Return what the files hold.

    Parameters
    ----------
    num_devices
        Of timings whose format does not say it.

    Raises
    ------
    SpecError
        With what is wrong in all of them.
    """
    timings: list[Timing] = []
    iterations: list[IterationTime] = []
    found: dict[Kind, list[Path]] = {}
    notes, faults = [], []
    for path in expanded(paths):
        try:
            kind, text = kind_of_file(path)
            found.setdefault(kind, []).append(path)
            if kind is Kind.OSU:
                rows = read_osu(path, text, num_devices=num_devices)
                if rows and not num_devices:
                    notes.append(f"{visible(path.name)}: {rows[0].num_devices} devices, as its name or its lines say")
                timings += rows
            elif kind is Kind.NCCL:
                timings += read_nccl(path, text, num_devices=num_devices)
            elif kind is Kind.COLLECTIVES:
                timings += read_table_timings(path)
            elif kind is Kind.ITERATIONS:
                iterations += read_iteration_table(path)
            elif kind is Kind.ITERATION_DOCUMENT:
                iterations += read_iteration_document(path)
        except SpecError as error:
            faults += list(error.faults)
    if faults:
        raise SpecError.of(faults[:50])
    return Measurements(
        timings=tuple(timings),
        iterations=tuple(iterations),
        layer_tables=tuple(found.get(Kind.LAYERS, ())),
        profiles=tuple(found.get(Kind.PROFILE, ())),
        runs=tuple(found.get(Kind.RUN, ())),
        files=tuple(path for paths_of in found.values() for path in paths_of),
        notes=tuple(notes),
    )
