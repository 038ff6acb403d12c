"""Pipelines as CP-SAT programmes: the same question asked another way, to check the search over pipelines.

Sets: layers ``l``, stages ``s = 0..n-1`` in order, choices ``c`` of a device type and a number of devices.
Data: ``f[c][l]``, ``b[c][l]`` forward and backward seconds of a layer for one micro-batch; ``y[c][l]`` seconds a layer
adds to what a stage does once at its end, and ``z[c]`` what it takes besides; ``x[l]`` seconds of a boundary behind
layer l, each way; ``g[l]`` bytes that a layer holds for good, and ``a[c][l]`` for each micro-batch in flight, of which
``M[c]`` fit; ``N[t]`` devices of type t. All seconds are rounded up to whole ticks of ``TICK_S``, bytes up to whole
numbers.

Variables: ``in[l,s]``, layer l is in stage s; ``is[s,c]``, stage s runs by choice c; from them, by products of the two
written as implications on times: ``F[s]``, ``B[s]``, ``Y[s]``, ``X[s]`` of every stage and boundary.

Constraints: every layer is in one stage, every stage has a layer and one choice; ``in`` moves to the same or the next
stage from layer to layer; ``sum_s devices(s, t) <= N[t]``; memory of stage s with ``min(m, n - s)`` micro-batches in
flight (1F1B) or m (GPipe).

Objective, one of two:

- *schedule*: the makespan. Starts of every forward and backward of every stage and micro-batch, and of every transfer;
  the order on a device (1F1B or GPipe) and on a channel is fixed, so precedences ``start >= start + duration`` are all
  there is, and no disjunction is needed.
- *bound*: some terms of F and E of :mod:`planner.solvers.pipeline_bounds`, all linear:
  ``finish[s] >= m (F[s] + B[s])``, ``finish[s] >= F + B + 2 X[s] + finish[s+1]``, ``all[s] >= finish[s] + Y[s]``,
  ``all[s] >= F + X[s] + all[s+1]``. It is below the bound of the search, which has more terms.

Both are least at the least values that their constraints allow, so that the minimum is the makespan or the bound
itself. For tests: a dozen layers and devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any

from planner.search import Search
from planner.solution import Solution, Status
from planner.solvers.cp_sat import new_model, run
from planner.solvers.pipeline_bounds import Schedule
from planner.solvers.pipelines import Stage

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["TICK_S", "LinePipeline", "best_pipeline"]

TICK_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePipeline:
    """The data above, in seconds and bytes; by choice and then by layer."""

    type_index: Sequence[int]
    num_devices_of: Sequence[int]
    num_devices: Sequence[int]
    forward_s: Sequence[Sequence[float]]
    backward_s: Sequence[Sequence[float]]
    flush_s: Sequence[Sequence[float]]
    startup_s: Sequence[float]
    boundary_s: Sequence[float]
    held_bytes: Sequence[float]
    in_flight_bytes: Sequence[Sequence[float]]
    memory_bytes: Sequence[float]

    @property
    def num_layers(self) -> int:
        return len(self.forward_s[0])


def best_pipeline(
    data: LinePipeline, schedule: Schedule, num_stages: int, search: Search, *, is_scheduled: bool
) -> Solution[tuple[Stage, ...]]:
    """Return the best pipeline of exactly ``num_stages`` stages.

    Parameters
    ----------
    is_scheduled
        Whether the objective is the makespan of the schedule; else the bound.

    Returns
    -------
    Solution
        ``objective`` and ``bound`` in seconds, of times rounded up to ticks: above the true ones by no more than a tick
        for each duration on a chain. ``bound`` is that of the rounded problem.
    """
    programme = _Programme(data, schedule, num_stages)
    goal = programme.schedule_makespan() if is_scheduled else programme.bound()
    programme.model.minimize(goal)
    outcome = run(programme.model, search)
    if not outcome.has_values:
        is_none = outcome.status is Status.INFEASIBLE
        return Solution(
            status=outcome.status, objective=float("inf"), bound=float("inf") if is_none else 0.0, value=None
        )
    return Solution(
        status=outcome.status,
        objective=outcome.solver.value(goal) * TICK_S,
        bound=outcome.bound * TICK_S,
        value=programme.stages(outcome.solver),
    )


def _ticks(seconds: float) -> int:
    """Return whole ticks, rounded up, but for what rounding of numbers alone adds."""
    return ceil(seconds / TICK_S - 1e-6)


class _Programme:
    """Variables and constraints, in the order of the formulation."""

    def __init__(self, data: LinePipeline, schedule: Schedule, num_stages: int) -> None:
        self.data, self.schedule, self.num_stages = data, schedule, num_stages
        self.model = new_model()
        self.choices = range(len(data.type_index))
        self.stage_range = range(num_stages)
        self.has = [[self.model.new_bool_var(f"in[{i},{s}]") for s in self.stage_range] for i in range(data.num_layers)]
        self.runs = [[self.model.new_bool_var(f"is[{s},{c}]") for c in self.choices] for s in self.stage_range]
        self.most_ticks = self._most_ticks()
        self._assign()
        self._hold()
        self.forward = [self._time(s, data.forward_s) for s in self.stage_range]
        self.backward = [self._time(s, data.backward_s) for s in self.stage_range]
        self.flush = [self._time(s, data.flush_s, data.startup_s) for s in self.stage_range]
        self.boundary = [self._boundary(s) for s in range(num_stages - 1)]

    def _most_ticks(self) -> int:
        """Return a makespan that nothing exceeds: all work and transfers, one after another, by the slowest choice."""
        data, m = self.data, self.schedule.num_microbatches
        worst = sum(
            max(_ticks(row[i]) for row in rows)
            for rows in (data.forward_s, data.backward_s)
            for i in range(data.num_layers)
        )
        once = sum(max(_ticks(row[i]) for row in data.flush_s) for i in range(data.num_layers))
        once += self.num_stages * max(_ticks(one) for one in data.startup_s)
        return m * (worst + 2 * sum(_ticks(one) for one in data.boundary_s)) + once + 1

    def _assign(self) -> None:
        """Put every layer into one stage, in order, and give every stage one choice."""
        model, has = self.model, self.has
        for i, row in enumerate(has):
            model.add_exactly_one(row)
            for s in self.stage_range:
                if i:
                    model.add_bool_or([*has[i - 1][max(0, s - 1) : s + 1], row[s].negated()])
        model.add(has[0][0] == 1)
        model.add(has[-1][-1] == 1)
        for s in self.stage_range:
            model.add_exactly_one(self.runs[s])
        for kind, number in enumerate(self.data.num_devices):
            taken = [
                self.data.num_devices_of[c] * self.runs[s][c]
                for s in self.stage_range
                for c in self.choices
                if self.data.type_index[c] == kind
            ]
            model.add(sum(taken) <= number)

    def _hold(self) -> None:
        """Keep every stage within the memory of its devices."""
        data, m = self.data, self.schedule.num_microbatches
        for s in self.stage_range:
            held = m if self.schedule.is_gpipe else min(m, self.num_stages - s)
            for c in self.choices:
                if data.memory_bytes[c] == float("inf"):
                    continue
                needed = [ceil(data.held_bytes[i] + held * data.in_flight_bytes[c][i]) for i in range(data.num_layers)]
                total = sum(size * self.has[i][s] for i, size in enumerate(needed))
                self.model.add(total <= int(data.memory_bytes[c])).only_enforce_if(self.runs[s][c])

    def _time(self, s: int, by_layer: Sequence[Sequence[float]], startup_s: Sequence[float] | None = None) -> Any:
        """Return the ticks of a stage: the sum over its layers, by its choice."""
        found = self.model.new_int_var(0, self.most_ticks, "")
        for c in self.choices:
            total = sum(_ticks(seconds) * self.has[i][s] for i, seconds in enumerate(by_layer[c]))
            extra = _ticks(startup_s[c]) if startup_s else 0
            self.model.add(found == total + extra).only_enforce_if(self.runs[s][c])
        return found

    def _boundary(self, s: int) -> Any:
        """Return the ticks of a micro-batch over the boundary behind a stage."""
        found = self.model.new_int_var(0, self.most_ticks, "")
        for i in range(self.data.num_layers - 1):
            ends = [self.has[i][s], self.has[i + 1][s].negated()]
            self.model.add(found == _ticks(self.data.boundary_s[i])).only_enforce_if(ends)
        return found

    def bound(self) -> Any:
        """Return the bound, which the objective makes as small as its terms allow."""
        m, model = self.schedule.num_microbatches, self.model
        finish: Any = 0
        total: Any = 0
        for s in reversed(self.stage_range):
            boundary = self.boundary[s] if s + 1 < self.num_stages else 0
            work = self.forward[s] + self.backward[s]
            finish_here, total_here = (model.new_int_var(0, self.most_ticks, "") for _ in range(2))
            model.add(finish_here >= m * work)
            model.add(finish_here >= work + 2 * boundary + finish)
            model.add(total_here >= finish_here + self.flush[s])
            model.add(total_here >= self.forward[s] + boundary + total)
            finish, total = finish_here, total_here
        return total

    def schedule_makespan(self) -> Any:
        m, n, model = self.schedule.num_microbatches, self.num_stages, self.model

        def starts(number: int) -> list[list["cp_model.IntVar"]]:
            return [[model.new_int_var(0, self.most_ticks, "") for _ in range(m)] for _ in range(number)]

        forward, backward, out, back = starts(n), starts(n), starts(n - 1), starts(n - 1)
        for s in self.stage_range:
            tasks = [
                (backward[s][j], self.backward[s]) if is_back else (forward[s][j], self.forward[s])
                for is_back, j in self._order(s)
            ]
            for (start, length), (following, _) in pairwise(tasks):
                model.add(following >= start + length)
        for s, boundary in enumerate(self.boundary):
            for j in range(m):
                model.add(out[s][j] >= forward[s][j] + self.forward[s])
                model.add(forward[s + 1][j] >= out[s][j] + boundary)
                model.add(back[s][j] >= backward[s + 1][j] + self.backward[s + 1])
                model.add(backward[s][j] >= back[s][j] + boundary)
                if j:
                    model.add(out[s][j] >= out[s][j - 1] + boundary)
                    model.add(back[s][j] >= back[s][j - 1] + boundary)
        makespan = model.new_int_var(0, self.most_ticks, "makespan")
        for s in self.stage_range:
            model.add(makespan >= backward[s][m - 1] + self.backward[s] + self.flush[s])
        return makespan

    def _order(self, s: int) -> list[tuple[bool, int]]:
        """Return a device's tasks: whether backward, and the micro-batch."""
        m = self.schedule.num_microbatches
        ahead = m if self.schedule.is_gpipe else min(m, self.num_stages - s)
        tasks = [(False, j) for j in range(ahead)]
        for j in range(m):
            tasks += [(True, j), (False, j + ahead)] if j + ahead < m else [(True, j)]
        return tasks

    def stages(self, solver: "cp_model.CpSolver") -> tuple[Stage, ...]:
        found = []
        for s in self.stage_range:
            mine = [i for i, row in enumerate(self.has) if solver.value(row[s])]
            choice = next(c for c in self.choices if solver.value(self.runs[s][c]))
            found.append(Stage(first=mine[0], last=mine[-1], choice=choice))
        return tuple(found)
