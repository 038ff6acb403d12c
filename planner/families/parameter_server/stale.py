"""Asynchronous training among the plans of ``parameter_server``: tried where staleness is allowed, and said so.

``constraints.max_staleness`` is the most that s of SSP(s), and H - 1 of local SGD(H), may be; ASP needs it unbounded.
It holds for pins, too. Where it is not set, a pinned synchronisation is itself the permission, and nothing else is.

The configurations of the best plans in lockstep are simulated under SSP(s), s = 1, 2, 4, .. up to the limit, under
local SGD with H - 1 of the same numbers, and under ASP where any lag is allowed. That is a choice of few, not a search.
The bound is true of all configurations: a batch takes no less than all machines need that compute all the time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from planner.errors import InfeasibleError
from planner.families.answer import iterations_of
from planner.families.parameter_server.configuration import ParameterServerConfiguration
from planner.families.parameter_server.cost import ParameterServerCost
from planner.families.parameter_server.space import Space
from planner.plan import Prediction
from planner.problem import Problem
from planner.search import Search

__all__ = ["Stale", "check_staleness", "stale_answer"]

_MOST_CONFIGURATIONS = 2  # in lockstep, that are tried under every synchronisation
_MOST_STALENESS = 8  # the largest tried; more changes little
_ASSUMED = 4.0  # where asynchronous training is pinned and no limit is given


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """The best asynchronous configuration that was tried, if any was allowed, and the others with their objectives."""

    best: ParameterServerConfiguration | None = None
    prediction: Prediction | None = None
    objective: float = inf
    bound: float = inf
    is_pinned: bool = False
    lines: tuple[str, ...] = ()
    others: tuple[tuple[float, ParameterServerConfiguration, Prediction], ...] = ()

    def warnings(self, chosen: ParameterServerConfiguration) -> tuple[str, ...]:
        """Return the warning that belongs to a plan without a barrier; none for a plan in lockstep."""
        if chosen.synchronisation == "bsp":
            return ()
        return (
            f"{chosen.synchronisation} is asynchronous: its seconds compare with those of synchronous plans only as "
            f"far as it needs no more epochs, which is not modelled",
        )


def check_staleness(problem: Problem) -> None:
    """Refuse a pinned synchronisation whose gradients lag by more than the user allows.

    Raises
    ------
    InfeasibleError
        With both values, and what would have to give.
    """
    pinned, most = problem.fixed.get("synchronisation", "bsp"), problem.limits.max_staleness
    least = {"bsp": 0.0, "asp": inf}.get(pinned, 1.0)
    if most is None or least <= most:
        return
    lag, wanted = ("without limit", "unbounded") if least == inf else ("by 1 iteration or more", "1 or more")
    others = "ssp, local_sgd or bsp" if most >= 1 else "bsp"
    raise InfeasibleError(
        f"No plan fits: fix.synchronisation is {pinned}, under which gradients lag {lag}, and "
        f"constraints.max_staleness is {most:g}. Set it to {wanted}, or pin {others}."
    )


def stale_answer(space: Space, lockstep: Sequence[ParameterServerConfiguration], search: Search) -> Stale:
    """Return the best of the given configurations without a barrier, where the question allows that."""
    problem, pinned = space.problem, space.problem.fixed.get("synchronisation")
    kinds = list(_kinds(pinned, problem.limits.max_staleness))
    if not kinds:
        return Stale()
    tried: list[tuple[float, ParameterServerConfiguration, Prediction]] = []
    for configuration in lockstep[:_MOST_CONFIGURATIONS]:
        for kind, staleness in kinds:
            if tried and search.is_over:
                break
            chosen = replace(configuration, synchronisation=kind, staleness=staleness)
            prediction = ParameterServerCost(problem, chosen).predict()
            tried.append((prediction.value_of(problem.goal), chosen, prediction))
    (objective, best, prediction), *others = sorted(tried, key=lambda one: one[0])
    synchronous = ParameterServerCost(problem, lockstep[0]).predict().value_of(problem.goal)
    staleness = prediction.details["staleness"]
    lines = [
        f"{best.headline}: asynchronous, gradients lag {staleness['mean']:.2g} iterations in the mean, "
        f"{staleness['most']:.2g} at most"
    ]
    if objective < synchronous:
        lines.append(
            f"against the best plan in lockstep it wins as long as it needs less than {synchronous / objective:.2f} "
            f"times the epochs"
        )
    else:
        lines.append(f"the best plan in lockstep takes {synchronous / objective:.2f} times as long, and is not stale")
    if pinned and problem.limits.max_staleness is None:
        tried_up_to = "" if pinned == "asp" else f"; up to {_ASSUMED:.0f} was tried"
        lines.append(f"constraints.max_staleness is not set: the pin fix.synchronisation allows any{tried_up_to}")
    return Stale(
        best=best,
        prediction=prediction,
        objective=objective,
        bound=min(_bound(space), objective),
        is_pinned=bool(pinned),
        lines=tuple(lines),
        others=tuple(others),
    )


def _kinds(pinned: str | None, most: float | None) -> Iterator[tuple[str, int]]:
    """Yield every synchronisation that is allowed, with its staleness: by the limit, or by a pin where none is set."""
    if most is None:
        most = 0.0 if pinned is None else _ASSUMED
    if pinned == "bsp" or most <= 0:
        return
    for kind in ("ssp", "local_sgd"):
        number = 1
        while pinned in (None, kind) and number <= min(most, _MOST_STALENESS):
            yield kind, number
            number *= 2
    if pinned == "asp" or (pinned is None and most == inf):
        yield "asp", 0


def _bound(space: Space) -> float:
    """Return what no configuration beats: every device of every machine computes all the time, and nothing waits."""
    per_s = float(sum(space.counts * space.devices / space.sample_s)) if space.sample_s.all() else inf
    batch = space.most_batch
    return float(batch / per_s * iterations_of(space.problem, batch)) if per_s else 0.0
