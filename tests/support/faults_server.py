"""The command line in processes that need no import: ``python faults_server.py REQUESTS ANSWERS``, on systems with fork.

Everything is imported once and each command run once. Then each line of the file descriptor REQUESTS is a request, a
JSON object; a process of its own runs it, and ends as an interpreter does, its streams flushed and its handlers called.
One line of ANSWERS tells how it ended. See :mod:`tests.support.faults` for who asks.
"""

import gc
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any

_MOST_S = 120.0
_POLL_S = 0.002


def begin(request: dict[str, Any], ready: int) -> None:
    """Make this process what was asked for: its folder, streams, limits, user and arguments."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    for number, (name, flags) in enumerate(request["streams"]):
        handle = os.open(name, flags, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    for name, most in request["limits"].items():
        kind = getattr(resource, name)
        resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))
    if request["umask"] is not None:
        os.umask(request["umask"])
    os.environ.update(request["environment"])
    if request["user"] is not None:
        os.setgroups([])
        os.setgid(request["user"])
        os.setuid(request["user"])
    sys.argv = ["planner", *(os.fsdecode(bytes.fromhex(word)) for word in request["arguments"])]
    os.write(ready, b"r")
    os.close(ready)


def wait(process: int, signals: list[tuple[float, int]], begin_s: float) -> tuple[int, bool]:
    """Wait for a process, sending it signals on the way; return its status, and whether it had to be killed."""
    left = sorted(signals)
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return status, False
        now_s = time.monotonic() - begin_s
        if left and left[0][0] <= now_s:
            os.kill(process, left.pop(0)[1])
        elif now_s > _MOST_S:
            os.kill(process, signal.SIGKILL)
            return os.waitpid(process, 0)[1], True
        else:
            time.sleep(min(_POLL_S, max(0.0, left[0][0] - now_s)) if left else _POLL_S)


def main(requests: int, answers: int) -> None:
    """Answer requests until there are no more."""
    from planner.__main__ import main as planner

    planner_run()
    gc.collect()
    gc.freeze()  # so that a process that ends does not touch, and copy, all that was imported
    with os.fdopen(requests) as lines:
        while line := lines.readline():
            request = json.loads(line)
            seen, ready = os.pipe()
            sys.stdout.flush()
            sys.stderr.flush()
            process = os.fork()
            if not process:
                os.close(seen)
                os.close(answers)
                begin(request, ready)
                planner()
                raise SystemExit(70)  # main never returns
            os.close(ready)
            select.select([seen], [], [], _MOST_S)  # one that hangs before it begins is killed below, as any other
            os.close(seen)
            begin_s = time.monotonic()
            status, is_stuck = wait(process, request["signals"], begin_s)
            found = {"code": os.waitstatus_to_exitcode(status), "is_stuck": is_stuck, "s": time.monotonic() - begin_s}
            os.write(answers, (json.dumps(found) + "\n").encode())


def planner_run() -> None:
    """Import what commands import when they run, by running some."""
    from planner.cli.run import run

    streams = sys.stdout, sys.stderr
    with open(os.devnull, "w") as nothing:  # noqa: PTH123
        sys.stdout = sys.stderr = nothing
        try:
            for line in sys.argv[3:]:
                run(json.loads(line))
        finally:
            sys.stdout, sys.stderr = streams


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
