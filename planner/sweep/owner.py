"""Who works on a store: told apart so that what a killed sweep had begun is free at once, without any clock."""

import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Owner", "is_alive", "this_process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One run of a sweep: ``born`` tells its process from a later one of the same number."""

    name: str
    host: str
    process: int
    born: str


def this_process() -> Owner:
    """Return the owner that this process is; a new one with every call."""
    process = os.getpid()
    return Owner(name=uuid.uuid4().hex, host=socket.gethostname(), process=process, born=_born(process) or "")


def is_alive(owner: Owner) -> bool | None:
    """Return whether an owner's process lives; None where it is on another host."""
    if owner.host != socket.gethostname():
        return None
    if owner.born:
        return _born(owner.process) == owner.born
    try:
        os.kill(owner.process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _born(process: int) -> str | None:
    """Return when a process was started, in ticks of its host since which start; None where the system does not say."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}:{fields[19]}"
    except (OSError, IndexError):
        return None
