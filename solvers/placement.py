"""Tensors on parameter servers: which server holds which, so that pushes and pulls end soonest; with a bound.

**Sets.** Tensors j, kinds of equal workers k (``m_k`` of them), servers s.

**Given.** Bytes ``p_j``; the time ``r_kj`` from which on worker k can push tensor j, nondecreasing in j; links ``B_s``
and ``B_k``. A worker's own link serves first come first served, so that it sends tensor j from ``a_kj`` to ``b_kj``
at a constant rate, wherever tensors lie. For any time t let ``c_j(t)`` be the workers from which j arrives at or after
t, counted in part where it is under way.

**Variables.** ``x_js`` in {0, 1}: server s holds tensor j; ``push``; ``pull``.

**Minimise** ``push + pull`` **subject to**

=====================================================  =====================================================
``sum_s x_js = 1``                                     every tensor is on one server
``push >= t + sum_j c_j(t) p_j x_js / B_s``            for every s and every t among all ``a_kj``, ``b_kj``
``pull >= n sum_j p_j x_js / B_s``                     for every s; ``n`` workers pull at the same time
``push >= least_push_s``, ``pull >= least_pull_s``     ends of computing, the workers' own links
=====================================================  =====================================================

*Why this is the queue.* A link that never idles while bytes wait ends at the largest ``t + (bytes arriving from t on) /
B_s``, reached at the start or end of some transfer to s. The rows also hold for transfers that do not go to s: there
they say no more than the end of s, if anything arrives at s later, since that starts after t; else no more than t, when
something still arrives at another server, so that ``push`` is at least t all the same.

*A server on a machine that works* hears nothing of its own worker over its link, so that n is one less. The other
workers that have a server at home send all but what lies there, which depends on the placement; here they send
as soon as they have computed. That relaxes the model, so that the bound stays true; ``evaluate`` is asked for the
objective, and the gap says what the relaxation cost. Everywhere else the rows are the model itself, also for workers
that are ready at different times and for workers' links that bind.

**Bounds**, before any search: all servers as one (``t + sum_j c_j(t) p_j / sum_s B_s``), and tensors are whole: of
``m S + 1`` tensors, ``m + 1`` are on one server.

**Search.** Greedy starts, improved by moves and swaps; then CP-SAT, if a gap is left. Its seconds are whole numbers of
``tick_s``, all rounded down, so that its bound holds here. Of servers with equal links, the first r + 1 are enough for
the largest r + 1 tensors. A model beyond ``_MOST_TERMS`` terms leaves rows out, which relaxes it, too. Where the rows
relax the model and there are few placements, all of them are evaluated instead.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from planner.cost import Floats
from planner.search import Search
from planner.solution import SAME, Solution, Status
from planner.solvers.cp_sat import new_model, run
from planner.solvers.placement_moves import improved, starts, thinned
from planner.solvers.placement_rows import Arrivals, Placement, least_pull_s, least_push_s, lower_bound, objective

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["best_placement"]

TICKS = 2**36  # in the incumbent's objective: ten tensors, rounded down, lose less than 1e-9 of it
_MOST_TERMS = 150_000  # of a CP-SAT model
_FEW = 130  # placements, all of which are evaluated: five tensors on three equal servers have 41, six 122


def best_placement(
    given: Arrivals,
    search: Search,
    *,
    evaluate: Callable[[Placement], float] | None = None,
    enough: float = float("-inf"),
    useless: float = float("inf"),
    most_work: float = 2.0,
    guide: Arrivals | None = None,
) -> Solution[Placement]:
    """Return the best placement.

    Parameters
    ----------
    evaluate
        The exact model, where it says more than the rows; it is never less than them.
    enough
        An objective with which the caller is content.
    useless
        An objective that the caller has already: nothing is proven beyond it, and the search ends as soon as
        the bound reaches it.
    most_work
        Deterministic seconds of CP-SAT.
    guide
        What moves and swaps are judged by, where the rows relax the model.

    Returns
    -------
    Solution
        OPTIMAL only where the bound meets the objective; FEASIBLE with its bound otherwise.

    Notes
    -----
    A greedy start looks at ``rows x tensors x servers`` numbers, and a round of swaps at up to four million.
    """
    cost = evaluate or (lambda placement: objective(given, placement))
    bound, best, least = lower_bound(given), None, float("inf")
    thin = thinned(guide or given)
    for start in starts(thin, search):
        found = improved(thin, start, search)
        seconds = cost(found)
        if best is None or seconds < least:
            best, least = found, seconds
        if least <= max(bound * (1 + SAME), enough) or search.is_over:
            break
    assert best is not None  # there is always a greedy start
    if evaluate is not None and least > max(bound * (1 + SAME), enough) and not search.is_over:
        for placement in _all_if_few(given):
            seconds = cost(placement)
            best, least = (placement, seconds) if seconds < least else (best, least)
            bound = least  # once all have been tried
    is_open = objective(given, best) > bound * (1 + SAME)  # else the rows themselves prove no more
    if least > max(bound * (1 + SAME), enough) and is_open and bound < useless and most_work and not search.is_over:
        best, least, bound = _proven(given, best, least, bound, cost, search, most_work)
    is_proven = least <= bound * (1 + SAME)
    return Solution(
        status=Status.OPTIMAL if is_proven else Status.FEASIBLE,
        objective=least,
        bound=min(bound, least),
        value=best,
    )


def _all_if_few(given: Arrivals) -> list[Placement]:
    """Return all placements but for the names of equal servers, if they are few; else none."""
    servers = _equal_servers(given.server_bytes_per_s)
    found: list[Placement] = [()]
    for _ in given.size_bytes:
        found = [
            (*one, server)
            for one in found
            for server in range(given.num_servers)
            # The first unused one of equal servers stands for all of them.
            if servers[server] == 0 or server in one or _twin_before(given, server) in one
        ]
        if len(found) > _FEW:
            return []
    return found


def _twin_before(given: Arrivals, server: int) -> int:
    """Return the last earlier server with an equal link, or -1."""
    rates = given.server_bytes_per_s
    return max((one for one in range(server) if rates[one] == rates[server]), default=-1)


# -- proof -----------------------------------------------------------------------------------------------------------


def _proven(
    given: Arrivals,
    best: Placement,
    least: float,
    bound: float,
    cost: Callable[[Placement], float],
    search: Search,
    most_work: float,
) -> tuple[Placement, float, float]:
    """Return the best placement that CP-SAT finds, its objective, and the better of both bounds."""
    order, servers = np.argsort(-given.size_bytes, kind="stable"), _equal_servers(given.server_bytes_per_s)
    if len(order) * given.num_servers * 2 > _MOST_TERMS:
        return best, least, bound
    best = _first_come(best, order.tolist(), given.server_bytes_per_s)
    tick_s = objective(given, best) / TICKS
    model, at = _model(given, best, tick_s, order.tolist(), servers)
    outcome = run(model, search, most_work=most_work)
    if outcome.status is Status.INFEASIBLE:  # it contradicts the incumbent, and is not to be trusted
        return best, least, bound
    bound = max(bound, min(outcome.bound * tick_s, least))
    if outcome.has_values:
        found = tuple(
            next(server for server, literal in enumerate(row) if literal is not None and outcome.solver.value(literal))
            for row in at
        )
        seconds = cost(found)
        if seconds < least:
            best, least = found, seconds
    return best, least, bound


def _model(
    given: Arrivals, best: Placement, tick_s: float, order: list[int], servers: list[int]
) -> tuple["cp_model.CpModel", "list[list[cp_model.IntVar | None]]"]:
    """Return the model, and the literal of each tensor (row) on each server, None where symmetry rules it out."""
    model = new_model()
    num_tensors, num_servers = len(order), given.num_servers
    at: list[list[cp_model.IntVar | None]] = [[None] * num_servers for _ in range(num_tensors)]
    for rank, tensor in enumerate(order):
        for server in range(num_servers):
            if servers[server] <= rank:
                at[tensor][server] = literal = model.new_bool_var(f"x_{tensor}_{server}")
                model.add_hint(literal, best[tensor] == server)
        model.add_exactly_one(literal for literal in at[tensor] if literal is not None)
    push = model.new_int_var(int(least_push_s(given) / tick_s), TICKS + num_tensors, "push")
    pull = model.new_int_var(int(least_pull_s(given) / tick_s), TICKS + num_tensors, "pull")
    rates, sent = given.server_bytes_per_s, given.sent_bytes
    for row in _rows_that_may_bind(given):
        _at_least(model, push, given.from_s[row], sent[row], at, rates, tick_s)
    _at_least(model, pull, 0.0, given.num_pullers * given.size_bytes, at, rates, tick_s)
    model.add(push + pull <= TICKS + num_tensors)  # the incumbent, rounded down, is one such
    model.minimize(push + pull)
    return model, at


def _at_least(
    model: "cp_model.CpModel",
    end: "cp_model.IntVar",
    from_s: float,
    sent_bytes: Floats,
    at: "list[list[cp_model.IntVar | None]]",
    rates: Floats,
    tick_s: float,
) -> None:
    """Add ``end >= from + sum_j sent_j x_js / B_s`` for every server, all numbers rounded down to ticks."""
    for server, rate in enumerate(rates.tolist()):
        ticks = np.floor(sent_bytes / rate / tick_s).astype(np.int64).tolist()
        terms = [
            (number, literal)
            for number, row in zip(ticks, at, strict=True)
            if number and (literal := row[server]) is not None
        ]
        model.add(end >= int(from_s / tick_s) + sum(number * literal for number, literal in terms))


def _rows_that_may_bind(given: Arrivals) -> list[int]:
    """Return the times at which some server could be later than the bound; evenly fewer where there are too many."""
    latest = given.from_s + given.sent_bytes.sum(axis=1) / given.server_bytes_per_s.min()
    rows = np.flatnonzero(latest > least_push_s(given))
    most = max(1, _MOST_TERMS // (len(given.size_bytes) * given.num_servers) - 1)
    if len(rows) > most:
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, most).round().astype(int))]
    found: list[int] = rows.tolist()
    return found


def _equal_servers(rates: Floats) -> list[int]:
    """Return how many earlier servers have a link equal to each one's."""
    seen: dict[float, int] = {}
    found = []
    for rate in rates.tolist():
        found.append(seen.get(rate, 0))
        seen[rate] = found[-1] + 1
    return found


def _first_come(placement: Placement, order: Sequence[int], rates: Floats) -> Placement:
    """Return an equal placement in which servers of equal links are first used in the order of their indices."""
    unused = {
        rate: [server for server, one in enumerate(rates.tolist()) if one == rate] for rate in set(rates.tolist())
    }
    name_of: dict[int, int] = {}
    for tensor in order:
        server = placement[tensor]
        if server not in name_of:
            name_of[server] = unused[float(rates[server])].pop(0)
    return tuple(name_of[server] for server in placement)
