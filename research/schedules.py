"""Pictures of pipeline schedules, their bubbles and memory, and how far each is from the best order there can be.

``python -m research.schedules --write`` writes the tables of ``docs/schedules.md`` and the pictures in
``docs/schedules/``. Nothing is measured: orders are those of :mod:`planner.models.orders`, seconds their longest paths,
optima those of :mod:`research.task_orders`. Equal versions of OR-Tools give equal bytes.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape

from planner.models.orders import IS_V, PUTS_OFF, SCHEDULES, devices_of, peak_weight
from planner.models.schedule import PipelineTimes, ScheduleRun, simulate
from planner.schedules import NAMED, runs_words
from planner.search import Search
from planner.solution import Status
from research import ROOT, page_with
from research.task_orders import BACKWARD, FORWARD, WEIGHTS, Line, ShortestStep, shortest_step

__all__ = ["CASES", "Case", "optima_text", "picture", "table_text"]

_PAGE = ROOT / "docs" / "schedules.md"
_PICTURES = ROOT / "docs" / "schedules"
_WORK = 120.0  # deterministic seconds of one optimum
_DRAWN = (4, 8)  # devices and micro-batches of a picture


@dataclass(frozen=True, kw_only=True)
class Case:
    """A schedule of p devices and m micro-batches, whose chunks take whole ticks."""

    schedule: str
    num_devices: int
    num_microbatches: int
    ticks: tuple[int, int, int] = (1, 1, 1)

    @property
    def chunks(self) -> int:
        """Stages of a device."""
        return 2 if self.schedule in IS_V or self.schedule == "interleaved" else 1

    @property
    def number_of_stages(self) -> int:
        """Of all devices; of DualPipe those of both copies."""
        return self.num_devices * self.chunks

    @property
    def each(self) -> int:
        """Micro-batches of every stage."""
        return self.num_microbatches // (2 if self.schedule == "dualpipe" else 1)

    @property
    def work(self) -> int:
        """Ticks that a device computes."""
        return self.chunks * self.each * sum(self.ticks)

    @property
    def unit(self) -> int:
        """Ticks of a micro-batch on a device."""
        return sum(self.ticks) * (1 if self.schedule == "dualpipe" else self.chunks)

    @cached_property
    def run(self) -> ScheduleRun:
        """The schedule, played."""
        forward, backward, weights = self.ticks
        is_split, number = self.schedule in PUTS_OFF, self.number_of_stages
        times = PipelineTimes(
            forward_s=[forward] * number,
            backward_s=[backward + weights * (not is_split)] * number,
            weights_s=[weights * is_split] * number,
        )
        return simulate(
            times,
            schedule=self.schedule,
            num_microbatches=self.num_microbatches,
            chunks_per_device=self.chunks,
            with_tasks=True,
        )

    @property
    def held(self) -> int:
        """Chunks that the fullest device holds."""
        ones = [1.0] * self.number_of_stages
        return int(peak_weight(ones, self.schedule, self.num_devices, self.num_microbatches, self.chunks).max())

    @property
    def memory(self) -> float:
        """The same in activations of a micro-batch on a device, as 1F1B counts them."""
        return self.held / (1 if self.schedule == "dualpipe" else self.chunks)

    @property
    def starts(self) -> dict[tuple[int, int, int], int]:
        """When every task starts, its gradients of weights by themselves."""
        found, (_, backward, _) = {}, self.ticks
        for task in self.run.tasks:
            assert task.microbatch is not None, "nothing is exchanged or updated"
            start, key = round(task.start_s), (task.stage, task.microbatch)
            if task.kind == "forward":
                found[(FORWARD, *key)] = start
            elif task.kind == "weights":
                found[(WEIGHTS, *key)] = start
            else:
                found[(BACKWARD, *key)] = start
                if task.kind == "whole" or self.schedule not in PUTS_OFF:
                    found[(WEIGHTS, *key)] = start + backward
        return found

    def best(self, *, is_fixed: bool = False, most_work: float = _WORK) -> ShortestStep | None:
        """Return the shortest step of any order in no more memory; ``is_fixed``: whether this one keeps the rules."""
        stages, p = self.number_of_stages, self.num_devices
        line = Line(
            device_of=devices_of(self.schedule, p, self.chunks),
            ends=(p - 1, stages - 1) if self.schedule == "dualpipe" else (stages - 1,),
            num_microbatches=self.each,
            ticks=self.ticks,
            most_held=self.held,
        )
        return shortest_step(line, Search(), start=self.starts, is_fixed=is_fixed, most_work=most_work)


def _case(schedule: str, p: int, m: int, ticks: tuple[int, int, int] = (1, 1, 1)) -> Case:
    return Case(schedule=schedule, num_devices=p, num_microbatches=m, ticks=ticks)


CASES = (
    _case("gpipe", 4, 8),
    _case("1f1b", 4, 8),
    _case("interleaved", 2, 4),
    _case("zb_h1", 4, 8),
    _case("zb_h2", 4, 8),
    _case("zb_v", 4, 8),
    _case("v_half", 4, 6),
    _case("v_min", 4, 8),
    _case("dualpipe", 4, 8),
    _case("dualpipe_v", 3, 6),
    _case("zb_h1", 3, 6, (2, 3, 1)),
    _case("zb_v", 3, 6, (2, 3, 1)),
)


# -- tables ------------------------------------------------------------------------------------------------------------


def table_text() -> str:
    """Return what each schedule holds and wastes, and who has it."""
    rows = ["| schedule | `fix.schedule` | activations, 4 and 8 devices | bubble, 4 and 8 devices | runs in |"]
    rows.append("|---|---|---|---|---|")
    for name in SCHEDULES:
        cases = [_case(name, p, 4 * p) for p in (4, 8)]
        held = ", ".join(f"{one.memory:.3g}" for one in cases)
        bubbles = ", ".join(f"{(one.run.makespan_s - one.work) / one.unit:.3g}" for one in cases)
        named = NAMED[name]
        rows.append(f"| {named.title} ({named.source}) | `{name}` | {held} | {bubbles} | {runs_words(name)} |")
    return "\n".join(rows)


def optima_text() -> str:
    """Return how far each case is from the best order in as much memory."""
    rows = ["| schedule | devices x micro-batches | F, B, W | held at most | its step | best step | above the best |"]
    rows.append("|---|---|---|---|---|---|---|")
    for case in CASES:
        best = case.best()
        assert best is not None, f"{case.schedule} breaks a rule"
        step, is_proven = round(case.run.makespan_s), best.status is Status.OPTIMAL
        words = f"{best.ticks}" if is_proven else f"{best.bound} to {best.ticks}"
        rows.append(
            f"| {NAMED[case.schedule].title} | {case.num_devices} x {case.num_microbatches} | "
            f"{', '.join(map(str, case.ticks))} | {case.held} | {step} | {words} | {step / best.ticks - 1:.1%} |"
        )
    return "\n".join(rows)


# -- pictures ----------------------------------------------------------------------------------------------------------

_SLOT, _ROW, _LEFT, _TOP, _WIDTH = 18, 24, 78, 30, 1290
_COLOURS = {"forward": "#2f6fb5", "backward": "#1f8a5b", "weights": "#c9b458", "whole": "#1f8a5b"}
_PALE = {"forward": "#a9c8ea", "backward": "#a5dcc3", "weights": "#efe6bf", "whole": "#a5dcc3"}
_WORDS = {"forward": "forward", "backward": "backward", "weights": "gradients of weights"}


def picture(case: Case) -> str:
    """Return a schedule as SVG: a row a device, a box a task with its micro-batch, pale of a device's second stage."""
    run, scale = case.run, _SLOT * 6 / case.unit  # a micro-batch of a device is as long in all of them
    height = _TOP + _ROW * case.num_devices + 8
    title = f"{NAMED[case.schedule].title}, {case.num_devices} devices, {case.num_microbatches} micro-batches"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">',
        "<style>text { font: 11px system-ui, Helvetica, Arial, sans-serif; } .name { fill: #1f2328; font-size: 12px; }",
        ".on { fill: #ffffff; text-anchor: middle; } .off { fill: #1f2328; text-anchor: middle; }",
        "rect { stroke: #ffffff; stroke-width: 1; }</style>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        *_legend(case),
    ]
    for device in range(case.num_devices):
        y = _TOP + _ROW * device
        lines.append(f'<text class="name" x="6" y="{y + 16}">device {device + 1}</text>')
        lines.append(
            f'<rect x="{_LEFT}" y="{y}" width="{round(run.makespan_s * scale)}" height="{_ROW - 2}" fill="#eceff2"/>'
        )
    for task in run.tasks:
        assert task.microbatch is not None, "nothing is exchanged or updated"
        is_second = task.stage >= case.num_devices
        fill = (_PALE if is_second else _COLOURS)[task.kind]
        x, y = _LEFT + task.start_s * scale, _TOP + _ROW * task.device
        size = (task.end_s - task.start_s) * scale
        kind = "off" if is_second or task.kind == "weights" else "on"
        lines.append(f'<rect x="{x:g}" y="{y}" width="{size:g}" height="{_ROW - 2}" fill="{fill}"/>')
        lines.append(f'<text class="{kind}" x="{x + size / 2:g}" y="{y + 15}">{task.microbatch + 1}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _legend(case: Case) -> Iterator[str]:
    """Yield what the colours mean."""
    x = _LEFT
    kinds = [kind for kind in _WORDS if kind != "weights" or case.schedule in PUTS_OFF]
    entries = [(_COLOURS[kind], _WORDS[kind]) for kind in kinds]
    if case.chunks > 1:
        second = "the copy the other way" if case.schedule == "dualpipe" else "the second chunk"
        entries.append((_PALE["forward"], f"pale: of {second}"))
    for colour, words in entries:
        yield f'<rect x="{x}" y="8" width="12" height="12" fill="{colour}"/>'
        yield f'<text class="name" x="{x + 17}" y="18">{words}</text>'
        x += 34 + 7 * len(words)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.schedules", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {_PAGE.name} and its pictures anew")
    given = parser.parse_args(arguments)
    texts = {"schedules": table_text(), "optima": optima_text()}
    print("\n\n".join(texts.values()))
    if given.write:
        page = _PAGE.read_text(encoding="utf-8")
        for part, text in texts.items():
            page = page_with(page, part, text)
        _PAGE.write_text(page, encoding="utf-8")
        for name in SCHEDULES:
            _PICTURES.joinpath(f"{name}.svg").write_text(picture(_case(name, *_DRAWN)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
