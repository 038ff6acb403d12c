"""Timings of collectives: size and seconds by collective and number of devices, from any of the formats read here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from planner.calibration.read_table import Column, fault, read_rows
from planner.cost import Floats
from planner.errors import SpecError

__all__ = ["COLLECTIVES", "TEMPLATE", "Group", "Timing", "grouped", "read_table_timings"]

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send_receive")
_MOST_BYTES_PER_S = 1e14  # no machine sends 100 TB a second: the column's unit is wrong
_LARGE_BYTES, _LEAST_BYTES_PER_S = 2**16, 1e4  # nor so few, where the bytes count
_MOST_S = 1e5
_MOST_SIZES = 2000
_SEEN_GB_PER_S = 0.5  # below, two digits after the point say too little to compare
TEMPLATE = """\
# Timings of collectives for `planner calibrate`. One line a size; repeated sizes are joined by their median.
# collective: all_reduce (the one that a plan uses), reduce_scatter, all_gather, broadcast, reduce, all_to_all.
# size: of the whole buffer on a device. time: of one call. Units stand in the names: time_s, time_ms or time_us;
# size_bytes, size_kib, size_mib, ... May be left out: repetitions (how many calls the time is the mean of),
# num_machines, and algbw_gb_per_s (size over time, to check the units).
collective,num_devices,size_bytes,time_s,repetitions,num_machines
all_reduce,8,1024,0.000031,100,1
all_reduce,8,1048576,0.000121,100,1
all_reduce,8,67108864,0.0043,20,1
"""
_COLUMNS = (
    Column(name="num_devices", is_whole=True, least=2, is_least_allowed=True),
    Column(name="size", unit="bytes"),
    Column(name="time", unit="s"),
    Column(name="repetitions", is_needed=False, is_whole=True),
    Column(name="num_machines", is_needed=False, is_whole=True, least=1, is_least_allowed=True),
    Column(name="algbw_gb_per_s", is_needed=False, is_least_allowed=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Return the timings of a CSV table; see ``TEMPLATE``.

    Raises
    ------
    SpecError
        With the line of everything that is wrong.
    """
    timings, faults = [], []
    for row in read_rows(path, _COLUMNS, texts=("collective",)):
        name = row.texts.get("collective", "all_reduce").lower().replace("-", "_").replace("allreduce", "all_reduce")
        if name not in COLLECTIVES:
            mend = f"Write one of {', '.join(COLLECTIVES)}."
            faults.append(fault(path, row.line, f"unknown collective {name!r}.", mend, field="collective", value=name))
            continue
        if problem := _contradiction(row.numbers):
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


def _contradiction(numbers: Mapping[str, float]) -> str:
    """Return how a row's rate contradicts its size and time, beyond rounding; nothing where it has none."""
    said = numbers.get("algbw_gb_per_s", 0.0)
    rate = numbers["size"] / numbers["time"] / 1e9
    if said < _SEEN_GB_PER_S or 0.9 < rate / said < 1.1:
        return ""
    return f"size over time is {rate:.4g} GB/s, not {said:g}: off by a factor of {said / rate:.4g}."


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
        if problem := _implausible(one):
            mend = "Check the unit in the column's name (time_s, time_us; size_bytes)."
            faults.append(fault(Path(one.file), one.line, problem, mend, field="time", value=one.time_s))
        found.setdefault((one.collective, one.num_devices), []).append(one)
    if faults:
        raise SpecError.of(faults[:50])
    return [_group(*key, rows) for key, rows in sorted(found.items())]


def _implausible(one: Timing) -> str:
    """Return why a timing cannot be, as far as that is certain."""
    rate = one.size_bytes / one.time_s
    if rate > _MOST_BYTES_PER_S or (one.size_bytes >= _LARGE_BYTES and rate < _LEAST_BYTES_PER_S):
        return f"{one.size_bytes:g} bytes in {one.time_s:g} s are {rate:.3g} bytes/s: no link."
    return f"one call of {one.time_s:g} s is longer than a day." if one.time_s > _MOST_S else ""


def _group(collective: str, num_devices: int, rows: Sequence[Timing]) -> Group:
    """Return one group: the median of every size, and what to tell of it."""
    by_size: dict[float, list[Timing]] = {}
    for one in rows:
        by_size.setdefault(one.size_bytes, []).append(one)
    sizes = np.array(sorted(by_size))
    seconds = np.array([_median_s(by_size[size]) for size in sizes.tolist()])
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


def _median_s(rows: Sequence[Timing]) -> float:
    """Return the median time, each row counted as often as it was repeated; the mean of two in the middle."""
    ordered = sorted(rows, key=lambda one: one.time_s)
    weights = np.cumsum([one.repetitions for one in ordered])
    half = weights[-1] / 2
    low = int(np.searchsorted(weights, half))
    high = int(np.searchsorted(weights, half, side="right"))
    return (ordered[low].time_s + ordered[min(high, len(ordered) - 1)].time_s) / 2
