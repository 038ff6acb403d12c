"""Processes of tests, and ports for them. None can outlast its test: what hangs is killed, so that the test that waits for it fails by name.

The time is no assertion of speed, only longer than any machine should need.
"""

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["GUARD_S", "free_port", "guarded"]

GUARD_S = 300.0


def free_port() -> int:
    """A port of the loopback on which nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def guarded(*processes: "subprocess.Popen[str]") -> Iterator[None]:
    """Kill processes when the block ends, and those that still run after ``GUARD_S``: who reads from them goes on then.

    ``with Popen(...)`` alone waits without end for a process that does not heed its signal, after a failure, too.
    """

    def kill() -> None:
        for process in processes:
            process.kill()

    timer = threading.Timer(GUARD_S, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        kill()
        for process in processes:
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None and not stream.closed:
                    stream.close()
            process.wait(GUARD_S)
