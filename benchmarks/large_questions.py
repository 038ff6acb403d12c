"""What helpers bring to one large question: ``python benchmarks/large_questions.py QUESTION WORKERS [WORKERS ...]``.

``QUESTION`` is one of :data:`QUESTIONS`; ``WORKERS`` a number, 0 for the search alone, ``real:2`` for two processes of
this machine, whose processor seconds are told, too. Other numbers are reckoned in CPU time (:mod:`virtual_pool`): each
part is worked on once, and comes back when so many workers would have finished it, with 2 s until they are there, 5 ms
for its way, and what each worker has to make once. The asking process, which works beside them, has a core of its own.
So the speed-up shows on a machine that others use, too. Of a sweep each question is a part. Prints one JSON object a
line; ``digest`` is that of the answer without the search's counts, and the same in all lines. ``serial_s`` is of the
reckoned seconds those in which no worker has anything to do. Where 0 came before, ``reckoned`` is how many times as
fast by that reckoning, ``speed_up`` by the clock, and ``inflation`` the work of all processes as a multiple of what one
alone does.
"""

import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from virtual_pool import VirtualPool

import planner
from planner.memory import default_limit_bytes, keep_freed
from planner.sweep.answers import Answer, Task, answer
from planner.sweep.engine import processes, run
from planner.sweep.question import load_sweep
from planner.sweep.report import columns_of, rows_of
from planner.sweep.store import Store
from planner.workers.pool import DaskPool, worker_pool

__all__ = ["QUESTIONS", "measured"]

_START_S, _WAY_S = 2.0, 0.005
_LIMIT_S = 3600.0
_TODAY = date(2026, 11, 21)
_COUNTS = ("layouts in the grid", "layouts evaluated in full")
_NUMBERS = ("num_candidates", "num_solved", "wall_s")


def _layouts(network: str, batch: int, *machines: Mapping[str, Any]) -> dict[str, Any]:
    """Return a question of layouts on machines of eight devices."""
    return {
        "dnn": {"zoo": network, "global_batch": batch, "dtype": "bf16", "optimizer": "adam"},
        "cluster": {"machines": [{"devices": 8, "latency": "5 us", "nics": 8, **one} for one in machines]},
        "objective": "iteration_time",
        "families": ["hybrid"],
    }


def _purchase(dnn: dict[str, Any], **block: Any) -> dict[str, Any]:
    """Return a question of a purchase on the list that ships."""
    return {"dnn": dnn, "procure": block}


_H100 = {"device": "h100-sxm", "inside": "nvlink-4", "network": "400 Gbit/s"}
_A100 = {"device": "a100-sxm4-80gb", "inside": "nvlink-3", "network": "200 Gbit/s"}
_H200 = {"device": "h200-sxm", "inside": "nvlink-4", "network": "400 Gbit/s"}
_B200 = {"device": "b200-sxm", "inside": "nvlink-5", "network": "400 Gbit/s"}
_THREE = ({"count": 64, **_H100}, {"count": 64, **_A100}, {"count": 64, **_H200})
_FOUR = ({"count": 128, **_H100}, {"count": 128, **_A100}, {"count": 64, **_H200}, {"count": 32, **_B200})
_A100_40 = {"device": "a100-sxm4-40gb", "inside": "nvlink-3", "network": "200 Gbit/s"}
_FIVE = (*_FOUR, {"count": 64, **_A100_40})
_RESNET50 = {"zoo": "resnet50", "global_batch": 8192, "dataset_samples": 1_281_167, "epochs": 90}
_LLAMA = {"zoo": "llama3-70b", "global_batch": 1536, "dataset_samples": 5_000_000, "epochs": 1}
QUESTIONS = {
    "layouts": _layouts("gpt3-175b", 1536, {"count": 128, **_H100}, {"count": 128, **_A100}),
    "wide-layouts": _layouts("gpt3-175b", 3072, {"count": 256, **_H100}, {"count": 256, **_A100}),
    "three-kinds": _layouts("gpt3-175b", 1536, *_THREE),
    "four-kinds": _layouts("gpt3-175b", 1536, *_FOUR),
    "five-kinds": _layouts("gpt3-175b", 1536, *_FIVE),
    "fleets": _purchase(_LLAMA, deadline="720 h"),
    "fast-fleets": _purchase(_RESNET50, objective="time", budget="500 USD"),
    "sweep": {
        **_layouts("llama3-70b", 512, {"count": 8, **_H100}),
        "sweep": {
            "vary": {
                "cluster.machines.0.count": [8, 16, 32, 64],
                "cluster.machines.0.network": ["100 Gbit/s", "200 Gbit/s", "400 Gbit/s", "800 Gbit/s"],
                "dnn.global_batch": [256, 512, 1024, 2048],
            }
        },
    },
}


class _VirtualWorkers:
    """Workers of a sweep whose time is CPU time: each takes a question when it has done the one before."""

    def __init__(self, number: int) -> None:
        self.free_s, self.parts = [_START_S] * number, list[float]()
        self._answers = list[Answer]()

    @property
    def num_asked(self) -> int:
        return len(self._answers)

    def room(self) -> int:
        return 1

    def submit(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            begin_s = time.thread_time()
            self._answers.append(answer(task))
            self.parts.append(time.thread_time() - begin_s)
            first = self.free_s.index(min(self.free_s))
            self.free_s[first] += self.parts[-1] + _WAY_S

    def poll(self, wait_s: float) -> list[Answer]:
        found, self._answers = self._answers, []
        return found

    def close(self) -> None:
        pass


def _measured_sweep(name: str, workers: str) -> dict[str, Any]:
    """Return what a sweep takes with so many workers."""
    is_real, number = workers.startswith("real:"), int(workers.removeprefix("real:"))
    swept = load_sweep(QUESTIONS[name], time_limit_s=_LIMIT_S)
    with TemporaryDirectory() as folder, Store(Path(folder) / "answers.sqlite") as store:
        virtual = None if is_real else _VirtualWorkers(number or 1)
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        used: Any = virtual or processes(number)
        try:
            run(swept, store, used, today=_TODAY)
        finally:
            used.close()
        wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
        rows = [dict(zip(columns_of(swept.grid), row.cells(), strict=True)) for row in rows_of(swept, store)]
    found = {"question": name, "workers": workers, "wall_s": wall_s, "own_cpu_s": cpu_s, "parts": len(rows)}
    if virtual is not None and number:
        work_s = sum(virtual.parts)
        found |= {"own_cpu_s": cpu_s - work_s, "work_cpu_s": work_s, "longest_s": max(virtual.parts)}
        found["reckoned_s"] = max(*virtual.free_s, _START_S + cpu_s - work_s)
    rounded = {key: round(value, 2) if isinstance(value, float) else value for key, value in found.items()}
    return {**rounded, "digest": _digest(rows)}


def measured(name: str, workers: str) -> dict[str, Any]:
    """Return what a question takes with so many workers."""
    if "sweep" in QUESTIONS[name]:
        return _measured_sweep(name, workers)
    is_real, number = workers.startswith("real:"), int(workers.removeprefix("real:"))
    virtual = VirtualPool(number, start_s=_START_S, overhead_s=_WAY_S) if number and not is_real else None
    with worker_pool(number) if is_real else nullcontext(virtual) as pool:
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        document = _answer(QUESTIONS[name], pool)
        wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
        workers_s = _processes_s(pool) if isinstance(pool, DaskPool) else []
    found = {"question": name, "workers": workers, "status": document["status"], "wall_s": wall_s, "own_cpu_s": cpu_s}
    if virtual is not None:
        took = [seconds for seconds, _ in virtual.parts]
        found |= {
            "reckoned_s": virtual.now_s,
            "serial_s": virtual.serial_s,
            "own_cpu_s": cpu_s - sum(took),
            "parts": len(took),
            "work_cpu_s": sum(took),
            "longest_s": max(took, default=0.0),
            "bytes_a_part": sum(size for _, size in virtual.parts) / max(1, len(took)),
        }
    if isinstance(pool, DaskPool):
        counts = pool.counts
        found |= {
            "parts": counts.tasks,
            "work_cpu_s": counts.work_cpu_s,
            "longest_s": counts.longest_s,
            "start_s": counts.start_s,
            "bytes_a_part": (counts.sent_bytes + counts.returned_bytes) / max(1, counts.tasks),
            "workers_cpu_s": [round(seconds, 1) for seconds in workers_s],
        }
    rounded = {key: round(value, 2) if isinstance(value, float) else value for key, value in found.items()}
    return {**rounded, "digest": _digest(document)}


def _processes_s(pool: DaskPool) -> list[float]:
    """Return the processor seconds of every worker's process, all that it did counted, the longest first."""
    if pool._starting is None:  # the search was over before any was wanted
        return []
    return sorted(pool._starting.result().client.run(time.process_time).values(), reverse=True)


def _answer(question: dict[str, Any], pool: Any) -> dict[str, Any]:
    """Return the answer's document."""
    if "procure" in question:
        found = planner.procure(question, today=_TODAY, time_limit_s=_LIMIT_S, num_alternatives=0, pool=pool)
        return found.to_dict()
    return planner.plan(planner.load(question), time_limit_s=_LIMIT_S, pool=pool).to_dict()


def _digest(document: Any) -> str:
    """Return a digest of an answer without its searches' counts."""
    return hashlib.sha256(json.dumps(_without_counts(document), sort_keys=True, default=str).encode()).hexdigest()[:12]


def _without_counts(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {name: _without_counts(one) for name, one in part.items() if name not in _NUMBERS}
    if isinstance(part, list | tuple):
        kept = [one for one in part if not (isinstance(one, str) and one.startswith(_COUNTS))]
        return [_without_counts(one) for one in kept]
    return part


if __name__ == "__main__":
    keep_freed(default_limit_bytes())  # as the commands do
    alone: dict[str, Any] = {}
    for each in sys.argv[2:]:
        row = measured(sys.argv[1], each)
        alone = row if each == "0" else alone
        if alone and row is not alone:
            row["speed_up"] = round(alone["wall_s"] / row["wall_s"], 2)
            if "work_cpu_s" in row:
                row["inflation"] = round((row["own_cpu_s"] + row["work_cpu_s"]) / alone["own_cpu_s"], 2)
        if alone and "reckoned_s" in row:
            row["reckoned"] = round(alone["own_cpu_s"] / row["reckoned_s"], 2)
        print(json.dumps(row), flush=True)
