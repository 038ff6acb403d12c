"""The adapter of CP-SAT: one worker and a fixed seed, so that equal input gives equal answers; late import.

A model is built by the solver that asks, in integers at a named tick. Every call is bounded by deterministic work,
which is repeatable; the wall clock and Ctrl-C are guards, and stop it from outside. Source of the parameters: OR-Tools,
``sat_parameters.proto``.
"""

import threading
from typing import TYPE_CHECKING

from planner.errors import SolverError
from planner.frozen import frozen
from planner.search import Search
from planner.solution import Status

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_POLL_S = 0.02


@frozen
class Outcome:
    """What a run proved; ``bound`` is the solver's own, in the model's integers.

    After INFEASIBLE, CP-SAT answers 0 to every question, in silence: ask :attr:`has_values` first.
    """

    status: Status
    bound: float
    solver: "cp_model.CpSolver"

    @property
    def has_values(self) -> bool:
        """Whether there is an answer to read."""
        return self.status in (Status.OPTIMAL, Status.FEASIBLE)


def new_model() -> "cp_model.CpModel":
    """Return an empty model; CP-SAT is imported here, and not before.

    Raises
    ------
    SolverError
        If it cannot be imported.
    """
    try:
        from ortools.sat.python import cp_model  # noqa: PLC0415  # late: it brings pandas
    except ImportError as error:  # e.g. beside highspy, whose symbols collide: google/or-tools#5246
        raise SolverError(f"CP-SAT cannot be imported ({error}). Is highspy in the same environment?") from None
    return cp_model.CpModel()


def run(model: "cp_model.CpModel", search: Search, *, most_work: float = 60.0, has_presolve: bool = False) -> Outcome:
    """Solve a model.

    Parameters
    ----------
    model
        In whole numbers of a tick; made by :func:`new_model`.
    search
        Its seed, and what stops it.
    most_work
        Deterministic seconds (about as long as real ones): the limit that is repeatable.
    has_presolve
        Whether to simplify the model first: only of models whose numbers are small, see below.

    Raises
    ------
    SolverError
        If the model is invalid, e.g. beyond 64 bits.
    """
    from ortools.sat.python import cp_model  # noqa: PLC0415

    if fault := model.validate():
        raise SolverError(f"CP-SAT refuses the model: {fault}")
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = search.seed
    # Presolve of 9.15 cuts off optima where coefficients are large: 5 of 278 small placements with numbers up to 2**34
    # ended with a worse "optimum" or none, and 3 of 3,307 with 2**32; without it all are right, and no slower.
    solver.parameters.cp_model_presolve = has_presolve
    solver.parameters.max_deterministic_time = most_work
    solver.parameters.catch_sigint_signal = False  # the search listens, and stops it from outside
    status = _run_beside(solver, model, search)
    names = {
        cp_model.OPTIMAL: Status.OPTIMAL,
        cp_model.FEASIBLE: Status.FEASIBLE,
        cp_model.INFEASIBLE: Status.INFEASIBLE,
        cp_model.UNKNOWN: Status.UNKNOWN,
    }
    if status not in names:
        raise SolverError(f"CP-SAT ended with {solver.status_name(status)}.")
    return Outcome(status=names[status], bound=solver.best_objective_bound, solver=solver)


def _run_beside(solver: "cp_model.CpSolver", model: "cp_model.CpModel", search: Search) -> "cp_model.CpSolverStatus":
    """Return the status of a run in a thread of its own, which this one stops when the search is over."""
    found: list[cp_model.CpSolverStatus] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(solver.solve(model))
        except BaseException as error:  # handed over to the caller, below
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_S)
        if search.is_over:
            solver.stop_search()
    if failed:
        raise failed[0]
    return found[0]
