"""Many changed inputs in limited processes, and the table of what became of them."""

import multiprocessing
import os
import resource
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from time import monotonic

from fuzz_judge import READ_S, Outcome, Parser, Verdict, judged, limited, made

__all__ = ["Found", "run", "table", "tasks_of"]

_HUNG_S = READ_S * 12  # on the clock: then not even a signal is heeded
_TOLD = 5000
_Task = tuple[int, int]  # a parser's index, and the number of its input


@dataclass(slots=True)
class Found:
    """What became of the inputs of one parser."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    num_recognised: int = 0
    slowest_s: float = 0.0
    slowest: int = 0
    used_s: float = 0.0
    defects: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    details: dict[str, str] = field(default_factory=dict)

    def add(self, number: int, verdict: Verdict) -> None:
        self.outcomes[verdict.outcome] += 1
        self.num_recognised += verdict.is_recognised
        self.used_s += verdict.used_s
        if verdict.used_s > self.slowest_s:
            self.slowest_s, self.slowest = verdict.used_s, number
        if verdict.outcome is Outcome.DEFECT:
            self.defects[verdict.signature].append(number)
            self.details.setdefault(verdict.signature, verdict.detail)


def tasks_of(parsers: Sequence[Parser], num_inputs: int) -> list[_Task]:
    """Return so many inputs, shared out among parsers, in an order in which all of them go on alike."""
    total = sum(parser.share for parser in parsers)
    counts = [round(num_inputs * parser.share / total) for parser in parsers]
    counts[0] += num_inputs - sum(counts)
    places = [((number + 0.5) / count, index, number) for index, count in enumerate(counts) for number in range(count)]
    return [(index, number) for _, index, number in sorted(places)]


def _work(parsers: Sequence[Parser], tasks: Sequence[_Task], seed: object, channel: Connection) -> None:
    """Judge inputs one by one, telling each before and after."""
    limited()
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    for index, number in tasks:
        channel.send((index, number, None))
        files, draw = made(parsers[index], seed, number)
        channel.send((index, number, judged(parsers[index], files, draw)))
    channel.send((-1, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, None))


@dataclass(slots=True)
class _Worker:
    """A process at work on a part of the tasks; ``next`` is the position of the first that is not done."""

    tasks: Sequence[_Task]
    process: BaseProcess
    channel: Connection
    next: int = 0
    began_s: float = 0.0
    is_done: bool = False
    peak_bytes: int = 0


def _start(parsers: Sequence[Parser], tasks: Sequence[_Task], seed: object) -> _Worker:
    """Start a process: forked, so that what the parsers need is there already."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(parsers, tasks, seed, theirs), daemon=True)
    process.start()
    theirs.close()
    return _Worker(tasks=tasks, process=process, channel=ours, began_s=monotonic())


def _verdicts(worker: _Worker) -> Iterator[tuple[int, int, Verdict]]:
    """Yield what a worker tells, until it is silent for half a second or gone."""
    try:
        while worker.channel.poll(0.5):
            index, number, verdict = worker.channel.recv()
            if index < 0:
                worker.is_done, worker.peak_bytes = True, number
                return
            if verdict is None:
                worker.began_s = monotonic()
            else:
                worker.next += 1
                yield index, number, verdict
    except (EOFError, OSError):
        worker.process.join(5)


def run(
    parsers: Sequence[Parser],
    tasks: Sequence[_Task],
    *,
    seed: object,
    num_workers: int = 1,
    told: Callable[[Sequence[Found]], None] = lambda found: None,
) -> tuple[list[Found], int]:
    """Return what became of the inputs of every parser, and the most bytes that a process took.

    ``told`` is called with what is known after every five thousand inputs.

    A process that dies, or that no signal reaches, is a defect of the input that it was at; another one takes its place.
    """
    found = [Found() for _ in parsers]
    workers = [_start(parsers, tasks[first::num_workers], seed) for first in range(num_workers)]
    peak_bytes = num_done = 0
    while workers:
        worker = workers.pop(0)
        for index, number, verdict in _verdicts(worker):
            found[index].add(number, verdict)
            num_done += 1
            if num_done % _TOLD == 0:
                told(found)
        is_hung = monotonic() - worker.began_s > _HUNG_S
        if worker.is_done:
            worker.process.join()
            peak_bytes = max(peak_bytes, worker.peak_bytes)
        elif worker.process.is_alive() and not is_hung:
            workers.append(worker)
        else:
            worker.process.kill()
            worker.process.join()
            index, number = worker.tasks[worker.next]
            what = f"no answer in {_HUNG_S:g} s" if is_hung else f"the process ended with {worker.process.exitcode}"
            found[index].add(number, Verdict(outcome=Outcome.DEFECT, is_recognised=True, signature=what))
            workers.append(_start(parsers, worker.tasks[worker.next + 1 :], seed))
    return found, peak_bytes


def table(parsers: Sequence[Parser], found: Sequence[Found]) -> str:
    """Return the counts of every parser and of all, as a table in Markdown."""
    rows = [(parser.name, one) for parser, one in zip(parsers, found, strict=True)]
    total = Found()
    for one in found:
        total.outcomes.update(one.outcomes)
        total.num_recognised += one.num_recognised
        total.slowest_s = max(total.slowest_s, one.slowest_s)
    lines = [
        "| parser | inputs | accepted | refused by values | by form | unread | reached validation | slowest | defects |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, one in [*rows, ("**all**", total)]:
        number = sum(one.outcomes.values())
        counts: Mapping[Outcome, int] = one.outcomes
        cells = [counts[each] for each in (Outcome.ACCEPTED, Outcome.VALUES, Outcome.FORM, Outcome.UNREAD)]
        share = f"{one.num_recognised / number:.1%}" if number else ""
        texts = [
            f"{number:,}",
            *(f"{cell:,}" for cell in cells),
            share,
            f"{one.slowest_s:.1f} s",
            f"{counts[Outcome.DEFECT]:,}",
        ]
        lines.append(f"| {name} | {' | '.join(texts)} |")
    return "\n".join(lines)
