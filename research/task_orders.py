"""The shortest step of a small pipeline that any order of its tasks has, within a limit of memory; proven by CP-SAT.

**Sets.** Stages k, each on a device; micro-batches j of each line of stages (DualPipe has two lines, one each way).

**Given.** Whole ticks ``f``, ``b``, ``w`` of a forward, a backward and the gradients of the weights, on every stage;
``c`` of a transfer between devices; ``M``, the chunks whose activations a device may hold, from the start of a forward
to the end of its gradients of weights.

**Variables.** The starts of all forwards, backwards and gradients of weights; the end of the step.

**Minimise** the end **subject to**: a device does one task at a time; a forward starts ``c`` after that of the stage
before, a backward ``c`` after that of the stage behind it (the last stage's after its own forward), and gradients of
weights after their backward; no device holds more than M.

*Micro-batches of a line are alike.* Whatever order a stage does them in, dealing out its forwards, backwards and
gradients of weights in the order of their starts keeps all the rules: the j-th forward of a stage starts after j
forwards of the one before have arrived, and as many chunks are held at any time. So they are taken in order, and the
rest is what CP-SAT searches: which kind of task of which stage comes next on each device.

For a few devices and micro-batches. An order is given besides, as a start that is no worse; where it breaks a rule
there is no solution, which is how tests hold the orders of :mod:`planner.models.orders` against these rules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.search import Search
from planner.solution import Status
from planner.solvers.cp_sat import new_model, run

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["Line", "ShortestStep", "shortest_step"]

FORWARD, BACKWARD, WEIGHTS = range(3)
Starts = Mapping[tuple[int, int, int], int]  # by kind, stage and micro-batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A pipeline whose stages are alike."""

    device_of: Sequence[int]  # of each stage
    ends: Sequence[int]  # the last stage of each line of stages; the next one is the first of another line
    num_microbatches: int  # of each line
    ticks: tuple[int, int, int]  # of a forward, a backward and the gradients of the weights
    most_held: int  # chunks that a device may hold
    transfer_ticks: int = 0  # between devices


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestStep:
    """What was proven: ``bound`` ticks that no order is under, and the ``ticks`` of the best one that was found."""

    status: Status
    bound: int
    ticks: int


def shortest_step(
    line: Line, search: Search, *, start: Starts | None = None, is_fixed: bool = False, most_work: float = 60.0
) -> ShortestStep | None:
    """Return the shortest step; None where there is none within the rules.

    Parameters
    ----------
    line
        See the chapter.
    search
        Its limits.
    start
        The starts of all tasks of an order: nothing longer is looked at.
    is_fixed
        Whether these are the starts, to ask whether they keep the rules.
    most_work
        Deterministic seconds, as of :func:`planner.solvers.cp_sat.run`.
    """
    model, tasks = new_model(), _tasks(line)
    end_of = {task: at + line.ticks[task[0]] for task, at in (start or {}).items()}
    horizon = max(end_of.values(), default=0) or sum(line.ticks) * len(tasks)
    starts = {task: model.new_int_var(0, horizon, "") for task in tasks}
    ends = {task: starts[task] + line.ticks[task[0]] for task in tasks}
    _wait(model, line, starts, ends)
    _share(model, line, starts, ends, horizon)
    last = model.new_int_var(0, horizon, "")
    for task in tasks:
        model.add(last >= ends[task])
        if start is not None and is_fixed:
            model.add(starts[task] == start[task])
        elif start is not None:
            model.add_hint(starts[task], start[task])
    model.minimize(last)
    outcome = run(model, search, most_work=most_work, has_presolve=True)
    if not outcome.has_values:
        return None
    found = outcome.solver.value(last)
    return ShortestStep(status=outcome.status, bound=round(outcome.bound), ticks=found)


def _tasks(line: Line) -> list[tuple[int, int, int]]:
    numbers = range(line.num_microbatches)
    return [(kind, stage, j) for kind in range(3) for stage in range(len(line.device_of)) for j in numbers]


def _wait(
    model: "cp_model.CpModel",
    line: Line,
    starts: Mapping[tuple[int, int, int], "cp_model.IntVar"],
    ends: Mapping[tuple[int, int, int], "cp_model.LinearExpr"],
) -> None:
    """Let tasks wait for what they read, and micro-batches of a stage come in order."""
    firsts = {0, *(end + 1 for end in line.ends)}
    for (kind, stage, j), begin in starts.items():
        if j:
            model.add(begin >= ends[kind, stage, j - 1])
        if kind == WEIGHTS:
            model.add(begin >= ends[BACKWARD, stage, j])
        elif kind == BACKWARD and stage in line.ends:
            model.add(begin >= ends[FORWARD, stage, j])
        elif kind == BACKWARD or stage not in firsts:
            before = stage - 1 if kind == FORWARD else stage + 1
            sent = line.transfer_ticks * (line.device_of[before] != line.device_of[stage])
            model.add(begin >= ends[kind, before, j] + sent)


def _share(
    model: "cp_model.CpModel",
    line: Line,
    starts: Mapping[tuple[int, int, int], "cp_model.IntVar"],
    ends: Mapping[tuple[int, int, int], "cp_model.LinearExpr"],
    horizon: int,
) -> None:
    """Let a device do one task at a time, and hold no more than it may."""
    for device in set(line.device_of):
        own = [task for task in starts if line.device_of[task[1]] == device]
        model.add_no_overlap([model.new_fixed_size_interval_var(starts[task], line.ticks[task[0]], "") for task in own])
        kept = []
        for kind, stage, j in own:
            if kind == FORWARD:
                begin, size = starts[kind, stage, j], model.new_int_var(0, horizon, "")
                kept.append(model.new_interval_var(begin, size, ends[WEIGHTS, stage, j], ""))
        model.add_cumulative(kept, [1] * len(kept), line.most_held)
