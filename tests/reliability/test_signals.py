"""Signals at any moment: the exit code says which, or there is an answer; never a traceback, a part of a file or a temporary one."""

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path

from fault_commands import QUICK, Writer
from faults import Ended, Server, temporary_of, wrong_of

Fresh = Callable[[], Path]
# The system's own end, less the signal's number: while the interpreter takes itself apart, all is said and written.
ENDS = {number: (128 + number, -number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


def struck(server: Server, folder: Path, writer: Writer, number: signal.Signals, after_s: float) -> Ended:
    """Run a command, send it a signal, and check all that must hold."""
    if not writer.is_folder:
        (folder / f"t{writer.suffix}").write_bytes(b"old")
    ended = server.run(*writer.words(f"t{writer.suffix}"), folder=folder, signals=[(after_s, int(number))])
    assert not wrong_of(ended, (0, 1, 3, *ENDS[number])), (writer.name, number, after_s)
    assert not temporary_of(folder), (writer.name, number, after_s)
    if not writer.is_folder:
        written = (folder / f"t{writer.suffix}").read_bytes()
        assert written == b"old" or json.loads(written), (writer.name, after_s)
    return ended


def test_signals_at_random_moments_leave_an_answer_or_nothing(server: Server, fresh: Fresh) -> None:
    lots = random.Random(29)
    for writer in QUICK:
        whole_s = server.run(*writer.words(f"t{writer.suffix}"), folder=fresh()).wall_s
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            struck(server, fresh(), writer, number, lots.uniform(0.0, 1.1 * whole_s))


def test_sigterm_ends_a_search_with_its_best_so_far(server: Server, fresh: Fresh) -> None:
    folder = fresh()
    line = "plan --dnn gpt3-175b --machines 128x8xa100-80g --network 200_Gbit/s --inside nvlink-3 --global-batch 1536 --families hybrid"
    arguments = [word.replace("_", " ") for word in line.split()]
    for number in (signal.SIGINT, signal.SIGTERM):
        ended = server.run(*arguments, folder=folder, signals=[(0.5, int(number)), (60.0, int(signal.SIGKILL))])
        assert not wrong_of(ended, (0, 3, *ENDS[number]))
