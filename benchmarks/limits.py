"""Whether limits are kept where questions are hard: ``python benchmarks/limits.py [--only FAMILY/NAME] [--markdown]``.

Every family gets the hardest questions that the program takes, each in a process of its own, with a limit of time and
one of memory; beside them what comes after a search: explanations, pages, traces. Prints seconds from the start of the
process to its end and those of processors, which other programs lengthen less, its peak memory and its exit code (0: an
answer, 1: none exists, 3: a limit came first), and, for searches that are at work when SIGTERM comes, the seconds from
it to the end. What takes longer than the limit and two seconds, or more memory, is marked.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.units import Dimension, parse

__all__ = ["FAMILIES", "Row", "asked_of", "main", "measured", "questions"]

FAMILIES = ("all_reduce", "parameter_server", "model_replicas", "pipeline", "hybrid")
GRACE_S = 2.0
_STUCK_S = 60.0  # after the limit: then it is killed
_KINDS = (
    *("h100-sxm", "h200-sxm", "a100-sxm4-80gb", "a100-sxm4-40gb", "a100-pcie-80gb", "v100-sxm2-32g", "l40s", "t4"),
    *("v100-sxm2-16g", "rtx-2080-ti"),
)
_MACHINE = {"devices": 8, "inside": "nvlink-3", "nics": 8, "network": "200 Gbit/s"}
_SMALL_MACHINE = {"devices": 1, "network": "200 Gbit/s"}  # of model_replicas, which runs one device a machine
_NETWORKS = {"hybrid": "gpt3-175b", "model_replicas": "vgg16"}  # the latter runs chains alone
_LAYERS = 50_000
_BATCH = 10**15
_MOST_DEVICES = 2**20
_LARGE_BYTES = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How a question ended; ``signal_s``: from SIGTERM to the end, where one was sent."""

    family: str
    question: str
    seconds: float
    cpu_s: float
    peak_bytes: int
    code: int
    signal_s: float | None = None

    def cells(self, limit_s: float, limit_bytes: float) -> list[str]:
        is_late = self.seconds > limit_s + GRACE_S if self.signal_s is None else self.signal_s > GRACE_S
        seconds = f"{self.seconds:.1f}" if self.signal_s is None else f"{self.signal_s:.1f} after SIGTERM"
        return [
            self.family,
            self.question,
            seconds + (" (late)" if is_late else ""),
            f"{self.cpu_s:.1f}",
            f"{self.peak_bytes / 2**20:.0f}" + (" (too much)" if self.peak_bytes > limit_bytes else ""),
            str(self.code),
        ]


def _machines(kinds: Sequence[str], count: int, *, is_small: bool) -> list[dict[str, Any]]:
    """Return groups of machines of eight devices; ``is_small``: of eight times as many machines of one."""
    own = {"count": 8 * count, **_SMALL_MACHINE} if is_small else {"count": count, **_MACHINE}
    return [{"name": f"k{one}", "device": kind, **own} for one, kind in enumerate(kinds)]


def _question(family: str, machines: list[dict[str, Any]], **dnn: Any) -> dict[str, Any]:
    """Return a question of one family: of its own network and a batch of 1,536, unless told."""
    found: dict[str, Any] = {"dnn": dict(dnn), "cluster": {"machines": machines}, "families": [family]}
    if not {"layers", "transformer"} & dnn.keys():
        found["dnn"]["zoo"] = _NETWORKS.get(family, "resnet50")
    if not {"global_batch", "max_global_batch"} & dnn.keys():
        found["dnn"]["global_batch"] = 1536
    if family != "hybrid" or "max_global_batch" in dnn:
        found["dnn"]["dataset_samples"] = 1_281_167
        found["objective"] = "epoch_time"
    if family == "model_replicas" and len(machines) > 1:  # it runs equal machines
        found["fix"] = {"device": machines[0]["device"]}
    return found


def _chain(family: str) -> dict[str, Any]:
    """Return a network of as many layers as a question may have."""
    if family == "hybrid":
        sizes = {"layers": 4096, "hidden": 1024, "heads": 16, "sequence_length": 1024, "vocabulary": 32_000}
        return {"transformer": sizes}
    rows = [
        {
            "name": f"l{one}",
            "multiply_adds": 1_000_000 + one % 97,
            "parameters": f"{4000 + one % 89} B",
            "output": f"{1000 + one % 83} B",
        }
        for one in range(_LAYERS)
    ]
    if family == "model_replicas":
        rows = [{"name": "in", "kind": "input", "shape": [100]}]
        for one in range(_LAYERS - 1):
            size = 100 + one % 7
            weights = {"name": "w", "elements": size * 100}
            kind = {"kind": "fully_connected", "shape": [size], "multiply_adds": size * 100, "tensors": [weights]}
            rows.append({"name": f"l{one}", "inputs": [rows[-1]["name"]], **kind})
    return {"layers": rows}


def questions(family: str) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the hard questions of a family, by name; each is made when it is called."""

    def asked(kinds: Sequence[str], count: int, *, is_deep: bool = False, **dnn: Any) -> Callable[[], dict[str, Any]]:
        machines = _machines(kinds, count, is_small=family == "model_replicas")
        return lambda: _question(family, machines, **dnn, **(_chain(family) if is_deep else {}))

    few, most = (_KINDS[:1], 8), _MOST_DEVICES // 8
    found = {
        "10 kinds of machines": asked(_KINDS, 32),
        "4,096 layers" if family == "hybrid" else "50,000 layers": asked(*few, is_deep=True),
        "a million devices": asked(_KINDS[:1], most),
        "batch of 10^15": asked(*few, global_batch=_BATCH),
        "open batch up to 10^15": asked(*few, max_global_batch=_BATCH),
        "all of these": asked(_KINDS, most // len(_KINDS), is_deep=True, global_batch=_BATCH),
    }
    if family == "hybrid":
        found["GPT-3 on 4 kinds"] = asked(_KINDS[:4], 32)
    if family == "pipeline":
        found["batch of 10^13"] = asked(*few, global_batch=10**13)
        found["open batch up to 10^13"] = asked(*few, max_global_batch=10**13)
    return found


def _commands(path: Path, family: str, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield what is asked of a question: the name of the row, and the command."""
    yield name, ["plan", str(path), "--json"]
    if name in ("50,000 layers", "4,096 layers", "a million devices"):
        page, trace = path.with_suffix(".html"), path.with_suffix(".trace")
        yield f"{name}: text, page", ["plan", str(path), "--html", str(page), "--no-explain"]
        yield f"{name}: trace", ["plan", str(path), "--trace", str(trace)]
        yield f"{name}: explain", ["explain", str(path)]
    if name == "10 kinds of machines":
        yield f"{name}: explain", ["explain", str(path)]
        yield f"{name}: page", ["plan", str(path), "--html", str(path.with_suffix(".html")), "--no-explain"]


def asked_of(only: Sequence[str]) -> list[tuple[str, str, Callable[[], dict[str, Any]]]]:
    """Return family, name and question of all that are asked for; of all, where nothing is."""
    found = [(family, name, one) for family in FAMILIES for name, one in questions(family).items()]
    return [one for one in found if not only or any(f"{one[0]}/{one[1]}".startswith(part) for part in only)]


def measured(
    command: Sequence[str], limits: Sequence[str], *, stuck_s: float, signal_after_s: float | None = None
) -> tuple[float, float, int, int, float | None]:
    """Return seconds, those of processors, peak bytes, exit code and seconds since a signal of one process."""
    begin_s, sent_s = time.perf_counter(), None
    with subprocess.Popen(
        [sys.executable, "-m", "planner", *command, *limits], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        killer = threading.Timer(stuck_s, process.kill)
        killer.start()
        if signal_after_s is not None:
            time.sleep(signal_after_s)
            sent_s = time.perf_counter()
            os.kill(process.pid, signal.SIGTERM)  # Popen's own would take the exit status from wait4
        _, status, usage = os.wait4(process.pid, 0)
        end_s = time.perf_counter()
        process.returncode = os.waitstatus_to_exitcode(status)
        killer.cancel()
    latency_s = None if sent_s is None else end_s - sent_s
    cpu_s = usage.ru_utime + usage.ru_stime
    return end_s - begin_s, cpu_s, usage.ru_maxrss * 1024, process.returncode, latency_s


def _rows(
    chosen: Sequence[tuple[str, str, Callable[[], dict[str, Any]]]], time_limit: str, memory_limit: str, folder: Path
) -> Iterator[Row]:
    """Yield how every question ended."""
    stuck_s = parse(time_limit, Dimension.TIME) + _STUCK_S
    limits = ["--time-limit", time_limit, "--memory-limit", memory_limit]
    for number, (family, name, make) in enumerate(chosen):
        path = folder / f"{number}.json"
        path.write_text(json.dumps(make()))
        for row, command in _commands(path, family, name):
            seconds, cpu_s, peak_bytes, code, _ = measured(command, limits, stuck_s=stuck_s)
            yield Row(family=family, question=row, seconds=seconds, cpu_s=cpu_s, peak_bytes=peak_bytes, code=code)
        long = ["--time-limit", "1 h", "--memory-limit", memory_limit]
        begun_s = 5.0 if path.stat().st_size > _LARGE_BYTES else 2.0  # it is loaded by then, and searches
        seconds, cpu_s, peak_bytes, code, latency_s = measured(
            ["plan", str(path), "--json"], long, stuck_s=stuck_s, signal_after_s=begun_s
        )
        if seconds >= begun_s + 0.2:  # else it was over by then
            yield Row(
                family=family,
                question=f"{name}: SIGTERM",
                seconds=seconds,
                cpu_s=cpu_s,
                peak_bytes=peak_bytes,
                code=code,
                signal_s=latency_s,
            )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", action="append", default=[], help="e.g. pipeline, or 'pipeline/10 kinds'")
    parser.add_argument("--time-limit", default="2 s")
    parser.add_argument("--memory-limit", default="2 GiB")
    parser.add_argument("--markdown", action="store_true", help="a table in Markdown")
    given = parser.parse_args(arguments)
    limit_s, limit_bytes = parse(given.time_limit, Dimension.TIME), parse(given.memory_limit, Dimension.DATA)
    edge = "| " if given.markdown else ""
    heads = ["family", "question", "seconds", "of processors", "MiB", "exit code"]
    print(edge + " | ".join(heads) + edge[::-1])
    if given.markdown:
        print("| " + " | ".join(["---", "---", "--:", "--:", "--:", "--:"]) + " |")
    with tempfile.TemporaryDirectory() as folder:
        for row in _rows(asked_of(given.only), given.time_limit, given.memory_limit, Path(folder)):
            print(edge + " | ".join(row.cells(limit_s, limit_bytes)) + edge[::-1], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
