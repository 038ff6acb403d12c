"""Whether a plan respects the cluster, the user's limits and pins: plain comparisons of what it uses."""

from collections.abc import Iterator

from planner.checks.facts import Facts, groups_of, holds
from planner.checks.report import SAME, Finding
from planner.plan import Prediction
from planner.problem import Problem, Range
from planner.units import Dimension, format_human

__all__ = ["limits_kept"]


def limits_kept(problem: Problem, family: str, facts: Facts, found: Prediction) -> Iterator[Finding]:
    """Yield whether every limit of the cluster and of the user is kept."""
    yield holds(
        "families",
        family in problem.families,
        f"{family} is allowed",
        f"{family} is not among the families that may answer: {', '.join(problem.families)}",
    )
    yield from _machines(problem, facts)
    yield _number("constraints.machines", problem.limits.machines, sum(facts.machines.values()))
    yield _number("constraints.devices", problem.limits.devices, sum(facts.devices.values()))
    yield _batch(problem, facts)
    yield from _memory(problem, facts)
    yield _staleness(problem, facts)
    if problem.limits.deadline_s is not None:
        yield _deadline(problem.limits.deadline_s, found)
    yield from _pins(problem, facts)


def _machines(problem: Problem, facts: Facts) -> Iterator[Finding]:
    """Yield whether there are as many machines and devices of each group as are used."""
    groups = groups_of(problem)
    for name, used in facts.machines.items():
        if name not in groups:
            yield Finding(name="machines", is_ok=False, text=f"there are no machines {name!r}")
            continue
        there_are = groups[name].count
        yield holds(
            f"machines {name}",
            0 <= used <= there_are,
            f"{used} of {there_are}",
            f"{used} are used, and there are {there_are}",
        )
    for name, used in facts.devices.items():
        if name in groups:
            most = facts.machines.get(name, 0) * groups[name].devices_per_machine
            yield holds(
                f"devices {name}",
                1 <= used <= most,
                f"{used} of the {most} in these machines",
                f"{used} are used, and these machines have {most}",
            )


def _number(name: str, allowed: Range, used: int) -> Finding:
    """Return whether a number is allowed."""
    most = "any number" if allowed.most is None else str(allowed.most)
    return holds(
        name,
        allowed.least <= used and (allowed.most is None or used <= allowed.most),
        f"{used} used, {allowed.least} to {most} allowed",
        f"{used} used, and {allowed.least} to {most} are allowed",
    )


def _batch(problem: Problem, facts: Facts) -> Finding:
    """Return whether the batch is the one that was asked for, and every device gets a sample of it."""
    training, batch = problem.training, facts.global_batch_size
    wanted, most = training.fixed_batch_size, training.max_global_batch_size
    if wanted is not None and batch != wanted:
        return Finding(name="batch", is_ok=False, text=f"{batch} samples an iteration; the question asks for {wanted}")
    if most is not None and batch > most:
        return Finding(name="batch", is_ok=False, text=f"{batch} samples an iteration; at most {most} are allowed")
    return Finding(name="batch", is_ok=True, text=f"{batch} samples an iteration")


def _memory(problem: Problem, facts: Facts) -> Iterator[Finding]:
    """Yield whether the fullest device of each group holds what it must."""
    groups, limit = groups_of(problem), problem.limits.memory_per_device_bytes
    for name, needed in facts.memory_bytes.items():
        if name not in groups:
            continue
        most = min(groups[name].device.memory_bytes, float("inf") if limit is None else limit)
        texts = [
            format_human(size, Dimension.DATA, 4) if size < float("inf") else "any amount" for size in (needed, most)
        ]
        yield holds(
            f"memory {name}",
            needed <= most * (1 + SAME),
            f"{texts[0]} of {texts[1]}",
            f"a device holds {texts[0]}, and may hold {texts[1]}",
        )


def _staleness(problem: Problem, facts: Facts) -> Finding:
    """Return whether gradients lag no more than is allowed.

    Where the user sets no limit, training is synchronous, unless a pin or the only family asked for is not.
    """
    name, lag, most = "constraints.max_staleness", facts.staleness, problem.limits.max_staleness
    if most is not None:
        wrong = f"gradients may lag by {lag:g}, and {most:g} is allowed"
        return holds(name, lag <= most, f"{lag:g} of at most {most:g}", wrong)
    is_asked = problem.fixed.get("synchronisation", "bsp") != "bsp" or problem.families == ("model_replicas",)
    return holds(
        name,
        lag == 0 or is_asked,
        f"{lag:g}, as asked for" if lag else "0: synchronous",
        f"gradients may lag by {lag:g}; neither constraints.max_staleness nor fix.synchronisation allows that",
    )


def _deadline(deadline_s: float, found: Prediction) -> Finding:
    """Return whether the deadline is met."""
    needed_s = found.epoch_time_s if found.training_time_s is None else found.training_time_s
    if needed_s is None:
        return Finding(name="constraints.deadline", is_ok=False, text="no time to compare it with is known")
    return holds(
        "constraints.deadline",
        needed_s <= deadline_s * (1 + SAME),
        f"{needed_s:.6g} s of {deadline_s:.6g} s",
        f"{needed_s:.6g} s are needed, and {deadline_s:.6g} s are left",
    )


def _pins(problem: Problem, facts: Facts) -> Iterator[Finding]:
    """Yield whether every pin and every exclusion is honoured."""
    for key, wanted in problem.fixed.items():
        if key not in facts.decisions:
            yield Finding(name=f"fix.{key}", is_ok=False, text="the plan's family does not decide this")
            continue
        chosen = facts.decisions[key]
        yield holds(f"fix.{key}", chosen == wanted, f"{chosen}", f"the plan has {chosen}, and {wanted} is pinned")
    for key, values in problem.excluded.items():
        name = f"constraints.exclude.{key}"
        if key not in facts.decisions:
            yield Finding(name=name, is_ok=False, text="the plan's family does not decide this")
            continue
        chosen = facts.decisions[key]
        yield holds(name, chosen not in values, f"{chosen}", f"the plan has {chosen}, which is excluded")
