"""Text that the OSU micro-benchmarks print: ``osu_allreduce`` and other collectives.

Format: osu-micro-benchmarks 5 to 7, ``c/mpi/collective``: ``# OSU MPI Allreduce Latency Test v5.4.0``, a line ``#
Size       Avg Latency(us)`` (with ``-f`` also least, most and iterations), then sizes in bytes and microseconds. The
number of ranks is not in it: it is given, or the one number in the file's name. Sizes may have the number of ranks
before them, ``8,1024  53.2``, as logs in shyhuai/B-Caffe have.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from planner.calibration.read_collectives import Timing
from planner.calibration.read_table import MOST_ROWS, fault
from planner.errors import Fault, SpecError

__all__ = ["is_osu", "read_osu"]

_HEAD = re.compile(r"#[ \t]*OSU MPI(?:-\w+)?[ \t]+(?:Persistent[ \t]+)?(.+?)[ \t]+(\w+) Test\b", re.I)
_COLUMNS = re.compile(r"#[ \t]*Size\b(.*)")
_GAP = re.compile(r"\s{2,}|(?<=\))\s+")
_NAMES = {
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
    collective = _NAMES.get(head[1].lower())
    if collective is None or head[2].lower() != "latency":
        what = "blocking collective" if head[1].lower().startswith("non-blocking") else "collective"
        problem = f"this is the test {head[1]} {head[2]}, not the latency of a {what}."
        raise SpecError.of([fault(path, None, problem, f"Give one of {', '.join(_NAMES)}.", value=head[0])])
    faults: list[Fault] = []
    scale, repeated = _columns(path, lines)
    # Above the head stands what MPI has to say, and the job's script.
    rows = [
        row
        for number, line in enumerate(lines[at:], start=at + 1)
        if (row := _row(path, number, line, scale, repeated, faults))
    ]
    if not rows and not faults:
        faults.append(fault(path, None, "there is no line of size and latency.", "Give the whole output."))
    if len(rows) > MOST_ROWS:
        faults = [fault(path, None, f"more than {MOST_ROWS} lines.", "Give one run a file.")]
    if faults:
        raise SpecError.of(faults[:50])
    number = _devices(path, rows, num_devices)
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


def _columns(path: Path, lines: Sequence[str]) -> tuple[float, int | None]:
    """Return seconds of the latencies' unit, and which column holds the iterations, by the table's header.

    Raises
    ------
    SpecError
        If the unit is unknown, or the first column of figures is no latency.
    """
    for number, line in enumerate(lines, start=1):
        if head := _COLUMNS.search(line):
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


def _row(
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


def _devices(path: Path, rows: Sequence[tuple[int, float, float, float, int | None]], given: int | None) -> int:
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
