"""How far a sweep is: a bar on stderr with rate and time left, where that is a terminal; else nothing."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from planner.sweep.engine import Done, Told

__all__ = ["progress"]


@contextmanager
def progress() -> Iterator[Told]:
    """Yield what the engine tells its progress to."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console  # noqa: PLC0415  # late: only a terminal pays for it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("sweep", total=None, rate="")
        is_begun = False

        def tell(done: Done) -> None:
            nonlocal is_begun
            if not is_begun:  # what was answered before says nothing about the rate
                is_begun = True
                bar.reset(line, total=done.number, completed=done.num_answered)
            speed = bar.tasks[0].speed
            rate = "" if not speed else f"{speed:.1f}/s" if speed >= 1 else f"{60 * speed:.1f}/min"
            bar.update(line, completed=done.num_answered, rate=rate)

        yield tell
