"""Text that nccl-tests (and rccl-tests) print: ``all_reduce_perf`` and its likes, old versions and new ones.

Format: NVIDIA/nccl-tests, ``src/common.cu`` and ``README.md``; older outputs in its issues 29 and 107, newer ones in
pull requests 428 of nebius/soperator and 43 of coreweave/nccl-tests. A line for every rank (``#  Rank  0 Group  0 Pid
1887 on worker-1 device 0``; no ``Group`` in old versions), then a table: ``size count type redop root time algbw busbw
#wrong`` and the last four again for the operation in place. Old versions have no ``root`` and call the last column
``error``; collectives that do not reduce may lack ``redop``. Sizes are bytes, times microseconds, rates GB/s.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.calibration.read_collectives import Timing
from planner.calibration.read_table import MOST_ROWS, fault
from planner.errors import Fault, SpecError

__all__ = ["is_nccl", "read_nccl"]

_RANK = re.compile(r"#?\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+(\d+)\s+on\s+(\S+)\s+device", re.IGNORECASE)
_NAME = re.compile(r"(?:Collective test starting:\s*|/|\b)(\w+?)_perf")
_NAMES = {
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
            raise SpecError.of([fault(path, None, f"more than {MOST_ROWS} lines of a table.", "Give one run a file.")])
        if rows and not faults:
            found += _timings(path, first, lines, rows, num_devices)
    if faults:
        raise SpecError.of(faults[:50])
    if not found:
        mend = "Give the whole output, with its table."
        raise SpecError.of([fault(path, None, "there is no line of a table of nccl-tests in it.", mend)])
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


def _timings(
    path: Path, first: int, lines: Sequence[str], rows: Sequence["_Line"], num_devices: int | None
) -> list[Timing]:
    """Return the timings of one run."""
    ranks, machines = _ranks(path, first, lines)
    number = _devices(path, rows, ranks, num_devices)
    collective = _collective(path, lines, rows, number)
    _check(path, rows, number, collective)
    return [
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
        number=number,
        size_bytes=float(cells[0]),
        operation=operation,
        time_s=time * _US,
        algorithm=algorithm,
        bus=bus,
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
                raise SpecError.of([fault(path, number, problem, "Build nccl-tests with MPI=1 and run it again.")])
    least = min((int(group) for group, _ in seen), default=0)
    hosts = [host for (group, _), (_, host) in seen.items() if int(group) == least]
    return len(hosts), len(set(hosts))


def _devices(path: Path, rows: Sequence[_Line], ranks: int, given: int | None) -> int:
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
    raise SpecError.of([fault(path, None, problem, f"Give the whole output, or --devices N.{likely}")])


def _collective(path: Path, lines: Sequence[str], rows: Sequence[_Line], number: int) -> str:
    """Return the collective: as the text or the file's name says, else by the ratio of bus rate to algorithm rate."""
    for text in (*(line for line in lines if "_perf" in line), path.name):
        named = _NAME.search(text)
        if named and named[1] in _NAMES:
            return _NAMES[named[1]]
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
    raise SpecError.of([fault(path, wide.number, problem, "Give the whole output; check the number of devices.")])


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
