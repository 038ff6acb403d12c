"""A sweep that is killed again and again: ``python sweep_kills.py FOLDER QUESTIONS KILLS SEED``, on systems with fork.

Everything is imported once; each run of the sweep is a process of its own, killed by SIGKILL at a random moment after
its first answer or before it. Every question that is begun is noted in a file, so that what was done twice is counted.
Prints one JSON object.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from sweeps import TODAY, asked, batches

from planner.sweep import engine
from planner.sweep.answers import Answer, Task, answer
from planner.sweep.question import Sweep
from planner.sweep.store import Store

_MOST_S = 300  # of one run: no assertion of speed


def work(sweep: Sweep, folder: Path) -> None:
    """Answer the sweep in this process, noting every question that is begun."""
    log = os.open(folder / "begun", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def noted(task: Task) -> Answer:
        os.write(log, f"{task.key}\n".encode())
        return answer(task)

    engine.answer = noted  # type: ignore[attr-defined]
    with Store(folder / "killed.sqlite") as store:
        engine.run(sweep, store, engine.OneWorker(), today=TODAY)


def one_run(sweep: Sweep, folder: Path, delay_s: float | None) -> bool:
    """Run the sweep in a new process; kill it after a while, if one is given. Return whether it was killed."""
    process = os.fork()
    if not process:
        signal.alarm(_MOST_S)  # whatever hangs ends by this signal, and the main process with a failure
        work(sweep, folder)
        os._exit(0)
    if delay_s is not None:
        time.sleep(delay_s)
        os.kill(process, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(process, 0)[1])


def main(folder: Path, number: int, most_kills: int, seed: int) -> None:
    """Kill, until all is answered or there were enough kills; then let it end."""
    lots, sweep = random.Random(seed), asked(batches(number))
    warm = sweep.task(0, TODAY)
    assert isinstance(warm, Task)
    each_s = min(answer(warm).wall_s for _ in range(3))  # imports what a question needs, before any process is made
    num_kills = 0
    while num_kills < most_kills:
        num_kills += one_run(sweep, folder, lots.uniform(0.0, 4 * each_s + 0.05))
    assert not one_run(sweep, folder, None)
    begun = (folder / "begun").read_text().split()
    print(json.dumps({"kills": num_kills, "begun": len(begun), "different": len(set(begun)), "number": number}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(word) for word in sys.argv[2:5]))
