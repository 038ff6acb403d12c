"""What a question of a sweep costs beside its answer: ``python tests/support/sweep_overhead.py QUESTIONS WORKERS``.

Every question is answered at once with a copy of one real answer, so that all that is left is the sweep's own work:
questions put together, keys, claims, the way to the workers and back, one commit each. Prints one JSON object.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sweeps import TODAY, asked, batches

from planner.sweep import engine
from planner.sweep.answers import Answer, Task, answer
from planner.sweep.store import Store
from planner.workers.dask_workers import DaskWorkers

PLAN: list[Answer] = []


def copied(task: Task) -> Answer:
    """Answer with a copy."""
    if not PLAN:
        PLAN.append(answer(task))
    return replace(PLAN[0], key=task.key, wall_s=0.001)


def all_copied(tasks: Sequence[Task], expected: str) -> list[Answer]:
    """Answer a batch with copies."""
    return [copied(task) for task in tasks]


def main(number: int, num_workers: int) -> None:
    """Measure a sweep, and the same again, which finds all its answers there."""
    sweep, found = asked(batches(number)), {"questions": float(number), "workers": float(num_workers)}
    first = sweep.task(0, TODAY)
    assert isinstance(first, Task)
    copied(first)
    engine.answer = copied  # type: ignore[attr-defined]
    begin_s = time.perf_counter()
    workers = engine.OneWorker() if num_workers == 1 else engine.processes(num_workers)
    found["start_s"] = time.perf_counter() - begin_s
    if isinstance(workers, DaskWorkers):
        workers.ask = all_copied
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "s.sqlite") as store:
        for name in ("each_ms", "resumed_ms"):
            begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
            engine.run(sweep, store, workers, today=TODAY)
            found[name] = 1e3 * (time.perf_counter() - begin_s) / number
            found[f"{name[:-3]}_cpu_ms"] = 1e3 * (time.process_time() - begin_cpu_s) / number
    workers.close()
    print(json.dumps({name: round(value, 4) for name, value in found.items()}))


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:3]))
