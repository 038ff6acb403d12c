"""Memory: what this process holds, what the machine has left, and a ceiling that the system enforces.

Linux says all of it under ``/proc``. Elsewhere the peak stands in for what is held, and half of all memory, where the
system tells that, for what is left.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

OUT_OF_MEMORY = "the memory of this process is used up. Ask a smaller question, or raise --memory-limit."
# Of what is left: a search may overshoot between two looks, and what runs beside it needs something, too.
MEMORY_SHARE = 0.75
_PER_CORE = 4  # workers, of which more only wait for each other
_WORKER_BYTES = 256 * 2**20  # of a worker that has imported all that it needs, and has a little to work on
_ENDLESS_BYTES = 2**62
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of GNU's <malloc.h>
_KEPT_BYTES, _KEPT_SHARE, _KEPT_ARRAY_BYTES = 256 * 2**20, 1 / 8, 32 * 2**20
_UNKNOWN_BYTES = 8 * 2**30  # left on a system that does not tell
_STATM = Path("/proc/self/statm")
_GROUPS = Path("/sys/fs/cgroup")


def resident_bytes() -> int:
    """Return the memory that this process holds now; its peak where the system does not tell, 0 without even that."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        pass
    try:
        import resource  # noqa: PLC0415  # not on Windows
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def default_limit_bytes(num_processes: int = 1) -> float:
    """Return the memory that a process may hold unless told: its part of what is left, and what it holds already."""
    return resident_bytes() + MEMORY_SHARE * available_bytes() / num_processes


def most_workers() -> int:
    """Return how many worker processes this machine works with: a few for each core, memory for their imports."""
    return max(2, min(_PER_CORE * (os.cpu_count() or 1), int(available_bytes() / _WORKER_BYTES)))


def too_many_workers(num_workers: int) -> str:
    """Return why so many worker processes are not started; nothing where they are."""
    if num_workers <= (most := most_workers()):
        return ""
    cores = os.cpu_count() or 1
    return f"{num_workers} are too many for this machine: its {cores} cores and free memory do for {most}"


def available_bytes() -> float:
    """Return the memory that is left: the least that the system and the control groups of this process say.

    Groups of version 2, of version 1, and all above them; what one holds of files it can let go.
    """
    left = float(_UNKNOWN_BYTES)
    with suppress(OSError, ValueError, AttributeError):
        left = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        left = next((float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), left)
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, limit, used = (
                (_GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
                if controllers
                else (_GROUPS, "memory.max", "memory.current")
            )
            place = root / path.lstrip("/")
            while place.is_relative_to(root):
                with suppress(OSError, ValueError):  # no such group from within a container; "max": no limit
                    own = float((place / limit).read_text()) - float((place / used).read_text())
                    with suppress(OSError, ValueError):
                        rows = dict(row.split(" ", 1) for row in (place / "memory.stat").read_text().splitlines())
                        own += float(rows.get("total_inactive_file", rows.get("inactive_file", 0)))
                    left = min(left, max(0.0, own))
                if place == root:
                    break
                place = place.parent
    return left


def lower_ceiling(limit_bytes: float) -> None:
    """Let the system refuse this process more memory than this: Python then raises MemoryError.

    It counts data that may be written alone: address space that is only reserved costs nothing. A safety net for a
    program's own process, not for one in which it is a guest. Nothing happens where the system knows no such limit.
    """
    try:
        import resource  # noqa: PLC0415  # not on Windows

        data_bytes = int(_STATM.read_bytes().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError, IndexError):
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = data_bytes + max(0.0, limit_bytes - resident_bytes())
    if most < _ENDLESS_BYTES and (soft == resource.RLIM_INFINITY or most < soft):
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (int(most), hard))


def keep_freed(limit_bytes: float) -> None:
    """Let this process keep what it frees: arrays of 32 MiB at most, 256 MiB together, an eighth of its limit's rest.

    Searches ask for the same arrays of some megabytes over and over. Given back, each comes anew in pages that the
    system clears: a third of a search's time. For a program's own process, not for one in which it is a guest. Nothing
    happens where the C library is not GNU's.
    """
    try:
        import ctypes  # noqa: PLC0415  # not everywhere

        allocator = ctypes.CDLL(None).mallopt
    except (ImportError, AttributeError, OSError, TypeError):
        return
    allocator(_TRIM_THRESHOLD, int(min(_KEPT_BYTES, max(0.0, limit_bytes - resident_bytes()) * _KEPT_SHARE)))
    allocator(_MMAP_THRESHOLD, _KEPT_ARRAY_BYTES)


@contextmanager
def ceiling_kept() -> Iterator[None]:
    """Leave the ceiling of this process as it was, whatever the block does to it."""
    try:
        import resource  # noqa: PLC0415  # not on Windows

        before = resource.getrlimit(resource.RLIMIT_DATA)
    except (ImportError, AttributeError, OSError):
        yield
        return
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, before)
