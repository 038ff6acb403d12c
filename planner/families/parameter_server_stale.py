"""Asynchronous training among the plans of ``parameter_server``: tried where staleness is allowed, and said so.

The configurations of the best plans in lockstep are simulated under SSP(s), s = 1, 2, 4, .. up to the limit, under
local SGD with H - 1 of the same numbers, and under ASP where no limit is set. That is a choice of few, not a search.
The bound is true of all configurations: a batch takes no less than all machines need that compute all the time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from planner.families.answer import iterations_of
from planner.families.parameter_server_boxes import Space
from planner.families.parameter_server_cost import ParameterServerConfiguration, ParameterServerCost
from planner.plan import Prediction
from planner.search import Search

__all__ = ["Stale", "stale_answer"]

_MOST_CONFIGURATIONS = 2  # in lockstep, that are tried under every synchronisation
_MOST_STALENESS = 8  # the largest tried; more changes little
_ASSUMED = 4.0  # where asynchronous training is pinned and no limit is given


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """The best asynchronous configuration that was tried, if any was allowed."""

    best: ParameterServerConfiguration | None = None
    prediction: Prediction | None = None
    objective: float = inf
    bound: float = inf
    is_pinned: bool = False
    lines: tuple[str, ...] = ()

    def warnings(self, chosen: ParameterServerConfiguration) -> tuple[str, ...]:
        """Return the warning that belongs to a plan without a barrier; none for a plan in lockstep."""
        if chosen.synchronisation == "bsp":
            return ()
        return (
            f"{chosen.synchronisation} is asynchronous: its seconds compare with those of synchronous plans only as "
            f"far as it needs no more epochs, which is not modelled",
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
    objective, best, prediction = min(tried, key=lambda one: one[0])
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
    if pinned and not problem.limits.max_staleness:
        lines.append(f"no constraints.max_staleness is given: up to {_ASSUMED:.0f} was tried")
    return Stale(
        best=best,
        prediction=prediction,
        objective=objective,
        bound=min(_bound(space), objective),
        is_pinned=bool(pinned),
        lines=tuple(lines),
    )


def _kinds(pinned: str | None, most: float) -> Iterator[tuple[str, int]]:
    """Yield every synchronisation that is allowed, with its staleness."""
    if pinned == "bsp" or (pinned is None and most <= 0):
        return
    most = most or _ASSUMED
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
