"""The networks that a question allows: the one it names, with every subset of the allowed substitutions.

Families plan for one network: they get a problem whose layers and profiles are already exchanged, and need not know.
Substitutions that take out the same layer are alternatives to each other; no network holds both.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import combinations
from math import inf

from planner.problem import Problem
from planner.solution import BELOW
from planner.substitution import Substitution, profile_after, rewrite

_PIN = "substitutions"


def asked(problem: Problem) -> Problem:
    """Return the question as it was asked, with all its networks open."""
    return problem.question or problem


def networks_of(problem: Problem) -> list[Problem]:
    """Return one problem for each network that may be chosen, the one with the fewest substitutions first."""
    if _PIN in problem.fixed:
        return [network_of(problem, problem.fixed[_PIN])]
    if not problem.substitutions:
        return [problem]
    return [
        network_of(problem, [one.name for one in chosen])
        for size in range(len(problem.substitutions) + 1)
        for chosen in combinations(problem.substitutions, size)
        if not any(one.overlaps(other) for one, other in combinations(chosen, 2))
    ]


def network_of(problem: Problem, names: Collection[str]) -> Problem:
    """Return the problem of the network with the substitutions of these names, and with no other to choose."""
    chosen = [one for one in problem.substitutions if one.name in names]
    fixed = {key: value for key, value in problem.fixed.items() if key != _PIN}
    open_problem = replace(problem, substitutions=(), fixed=fixed, question=problem)
    if not chosen:
        return open_problem
    taken = tuple(one.name for one in chosen)
    dnn = problem.dnn
    for one in chosen:
        dnn = rewrite(dnn, one.removed, one.block, name=f"{problem.dnn.name} with {', '.join(taken)}")
    profiles = {
        device: profile_after(problem.dnn, dnn, profile, [(one.block, one.profiles[device]) for one in chosen])
        for device, profile in problem.profiles.items()
    }
    warnings = (*problem.warnings, *(_doubt(one) for one in chosen))
    return replace(open_problem, dnn=dnn, profiles=profiles, taken=taken, warnings=warnings)


def name_of(taken: Sequence[str], best: Sequence[str]) -> str:
    """Return how a network differs from the best one, in words: ``without head``."""
    less = [name for name in best if name not in taken]
    more = [name for name in taken if name not in best]
    parts = [f"with {', '.join(more)}" * bool(more), f"without {', '.join(less)}" * bool(less)]
    return ", ".join(filter(None, parts))


def computation_bound(problem: Problem) -> float:
    """Return what no plan can beat: the samples that the goal counts, over what all devices compute in a second.

    Holds for every family that computes each sample once, on one device, by the problem's profiles: as many together as
    the batch has, where that is the same on any machines. Leaves out communication, input, the optimiser's step, and
    that samples are whole.
    """
    samples, training = samples_of(problem), problem.training
    batch = training.global_batch_size or training.max_global_batch_size
    together = inf if batch is None or training.batch_per_device is not None else batch
    rate = 0.0  # samples a second, of all devices together
    for group in problem.cluster.machine_groups:
        profile = problem.profiles[group.device.name]
        seconds = profile.sample_s(together)
        if seconds <= 0:
            return 0.0
        rate += group.count * group.devices_per_machine / seconds
    return samples / rate * BELOW


def samples_of(problem: Problem) -> float:
    """Return the samples of an iteration, an epoch or the training; 0 where an iteration's may vary."""
    training = problem.training
    if problem.goal.name == "iteration_time":
        return float(training.fixed_batch_size or 0)
    epochs = (training.epochs or 1.0) if problem.goal.name == "training_time" else 1.0
    return float(training.dataset_samples or 0) * epochs


def _doubt(one: Substitution) -> str:
    """Return the warning that belongs to a changed network."""
    said = f"; its source: {one.note}" if one.note else ""
    return f"{one.name} changes the network, and what that does to its accuracy is not modelled{said}"
