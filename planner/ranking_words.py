"""What a ranking says: why the losers lost, what changed networks bring, and what stale gradients may cost."""

from collections.abc import Mapping, Sequence

from planner.family_names import OF_TRANSFORMERS
from planner.networks import asked, name_of
from planner.plan import Alternative, Plan, Prediction
from planner.problem import Problem
from planner.solution import SAME, Status
from planner.words import part_words, percent_words, time_words

__all__ = ["about_networks", "about_overlap", "about_staleness", "is_asynchronous", "ranked_alternative"]


_TOLD = 0.0005  # share of the best plan's objective that is told apart from nothing
_COMPUTATION = ("forward", "backward", "update", "compute", "optimizer")


def ranked_alternative(one: Plan, best: Plan) -> Alternative:
    """Return a plan that lost."""
    network = name_of(one.substitutions, best.substitutions)
    kind = " (asynchronous)" if is_asynchronous(one.prediction) and not is_asynchronous(best.prediction) else ""
    kind = " (synchronous)" if is_asynchronous(best.prediction) and not is_asynchronous(one.prediction) else kind
    return Alternative(
        name=f"{network}{': ' if network else ''}{one.family}{kind}: {one.configuration.headline}",
        family=one.family,
        objective=one.objective,
        relative_loss=one.objective / best.objective - 1 if best.objective else 0.0,
        reason=f"{_weakness(one.prediction)}{_how_sure(one, best)}",
        configuration=one.configuration,
        substitutions=one.substitutions,
    )


def _how_sure(one: Plan, best: Plan) -> str:
    """Return in words that a loser is not proven to be the best of its family, where that is so."""
    if one.status is Status.OPTIMAL:
        return ""
    least = one.bound / best.objective - 1 if best.objective else 0.0
    if least < -SAME:
        return "; not proven"
    return f"; the best of its family: {least:+.1%} or more" if least >= _TOLD else "; none of its family is faster"


def _weakness(prediction: Prediction) -> str:
    """Return what a plan spends most on beside computation, in a few words."""
    parts = {name: seconds for name, seconds in prediction.breakdown_s.items() if name not in _COMPUTATION}
    total_s = prediction.iteration_time_s
    worst = max(parts, key=parts.__getitem__, default="")
    if not worst or not total_s or parts[worst] < 0.005 * total_s:
        return "next to nothing but computation"
    return f"{parts[worst] / total_s:.0%} of its time is {part_words(worst)}"


def about_networks(problem: Problem, best: Plan, losers: Sequence[Plan], *, is_proven: bool) -> list[str]:
    """Return which substitutions were taken, and what the network as given would cost."""
    allowed = asked(problem).substitutions
    if not best.substitutions:
        if not allowed or "substitutions" in problem.fixed:
            return []
        verdict = "would make it faster" if is_proven else "was found to make it faster"
        return [f"the network stays as given: no substitution ({', '.join(one.name for one in allowed)}) {verdict}"]
    lines = [
        f"{one.name}: {one.removed[0]} to {one.removed[-1]} ({len(one.removed)} layers) replaced by {one.by}"
        for one in allowed
        if one.name in best.substitutions
    ]
    if given := [one for one in losers if not one.substitutions]:
        plain = min(given, key=lambda one: one.objective)
        loss = plain.objective / best.objective - 1
        lines.append(f"{name_of((), best.substitutions)}: {loss:+.0%}, with {plain.family} as its best")
    return lines


def about_overlap(problem: Problem, best: Plan, losers: Sequence[Plan]) -> list[str]:
    """Return what the lead over the family that follows measurements of transformers may rest on alone.

    The others hide all communication that may run beside computing; measurements show more of it.
    """
    rivals = [one.objective for one in losers if one.family == OF_TRANSFORMERS]
    if problem.dnn.transformer is None or best.family == OF_TRANSFORMERS or problem.is_computation_measured:
        return []
    words = f"the family {best.family} assumes perfect overlap of communication with computing"
    if not rivals or not best.objective:
        return [f"{words}; measurements of transformers show less"]
    lead = percent_words(1 - best.objective / min(rivals))
    return [f"{words}. Its lead of {lead} over {OF_TRANSFORMERS} may come from that alone"]


def is_asynchronous(prediction: Prediction) -> bool:
    """Whether gradients may be stale; ``most`` None means that nothing bounds it."""
    staleness = prediction.details.get("staleness", 0)
    most = staleness["most"] if isinstance(staleness, Mapping) else staleness
    return most is None or bool(most > 0)


def about_staleness(plans: Sequence[Plan]) -> tuple[list[str], list[str]]:
    """Return what to know where asynchronous and synchronous plans stand beside each other, and the warning.

    Stale gradients usually need more epochs, of which no cost model here knows; what can be said is how many more they
    may need until the best synchronous plan is as fast.
    """
    stale = [one for one in plans if is_asynchronous(one.prediction)]
    if not stale:
        return [], []
    waiting = min((one for one in plans if one not in stale), key=lambda one: one.objective, default=None)
    warning = f"{stale[0].family} is asynchronous here: stale gradients may need more epochs, which is not modelled"
    if waiting is None:
        return ["no synchronous plan was found to compare with"], [warning]
    lines = []
    for one in dict.fromkeys(plan.family for plan in stale):
        fastest = min(plan.objective for plan in stale if plan.family == one)
        ratio = waiting.objective / fastest
        if ratio > 1:
            lines.append(
                f"{one} is asynchronous: it wins as long as it needs less than {_times(ratio)} times the epochs of the "
                f"best synchronous plan ({waiting.family}, {time_words(waiting.objective)})"
            )
        else:
            lines.append(f"{one} is asynchronous and no faster than the best synchronous plan ({waiting.family})")
    return lines, [warning]


def _times(ratio: float) -> str:
    """Return a factor with enough digits to tell it from 1."""
    return f"{ratio:.2f}" if ratio >= 1.05 else f"{ratio:.4f}"
