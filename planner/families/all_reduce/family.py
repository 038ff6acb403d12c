"""The family ``all_reduce``: synchronous data parallelism, what a given configuration costs.

How many devices, which batch in how many passes, how unlike devices share it, how gradients are fused and compressed.
The search stands in :mod:`planner.families.all_reduce.search`; nothing here imports a solver before a configuration
names a rule.
"""

from collections.abc import Mapping
from typing import Any

from planner.families.all_reduce import given as all_reduce_given
from planner.families.all_reduce import mixed_timeline as all_reduce_mixed_timeline
from planner.families.all_reduce import mixed_words, words
from planner.families.all_reduce import timeline as all_reduce_timeline
from planner.families.all_reduce.configuration import NAME, AllReduceConfiguration
from planner.families.all_reduce.cost import AllReduceCost
from planner.families.all_reduce.machines import machines
from planner.families.all_reduce.mixed import MixedCost
from planner.plan import Prediction
from planner.problem import Problem
from planner.timeline import Timeline, repeated

__all__ = [
    "DECISIONS",
    "FITTED",
    "NAME",
    "NOT_MODELLED",
    "TAKES_EXCLUSIONS",
    "configuration_of",
    "explain",
    "left_out",
    "machines",
    "predict",
    "timeline",
]

NOT_MODELLED = (
    "convergence and accuracy: a larger batch may need more epochs",
    "variation between iterations, failures and restarts",
    "workspaces and the framework's own memory, beyond calibration.memory_reserve",
    "contention with other jobs on the network",
    "what leaving out parts of gradients does to accuracy, and decompressing them",
)
DECISIONS = frozenset(
    (
        "num_devices",
        "num_machines",
        "devices_per_machine",
        "gradient_accumulation_steps",
        "algorithm",
        "device",
        "batch_shares",
    )
)
FITTED = ("utilisation", "bandwidth_efficiency", "overhead")
TAKES_EXCLUSIONS = False


def predict(problem: Problem, configuration: AllReduceConfiguration) -> Prediction:
    """Return what a configuration costs."""
    if configuration.groups:
        return MixedCost.of(problem, configuration.groups).predict(configuration)
    return AllReduceCost(problem, configuration.machines).predict(configuration)


def explain(problem: Problem, configuration: AllReduceConfiguration, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds a configuration, and whether it fits."""
    if configuration.groups:
        return mixed_words.explain(MixedCost.of(problem, configuration.groups), configuration, prediction)
    return words.explain(AllReduceCost(problem, configuration.machines), configuration, prediction)


def timeline(problem: Problem, configuration: AllReduceConfiguration, *, num_iterations: int = 1) -> Timeline:
    """Return what devices and the network do in some steady iterations."""
    if configuration.groups:
        drawn = all_reduce_mixed_timeline.timeline(MixedCost.of(problem, configuration.groups), configuration)
    else:
        drawn = all_reduce_timeline.timeline(AllReduceCost(problem, configuration.machines), configuration)
    return repeated(drawn, num_iterations, predict(problem, configuration).iteration_time_s)


def configuration_of(problem: Problem, given: Mapping[str, Any]) -> AllReduceConfiguration:
    """Return the configuration that a spec's block means."""
    return all_reduce_given.configuration_of(problem, given)


def left_out(problem: Problem, given: Mapping[str, Any], configuration: AllReduceConfiguration) -> tuple[str, ...]:
    """Return the micro-batches of devices that cannot hold their samples at a time."""
    steps = configuration.gradient_accumulation_steps
    if given["groups"] is not None or given["gradient_accumulation_steps"] is not None or steps == 1:
        return ()
    return (f"gradient_accumulation_steps: {steps}, the fewest that fit in memory",)
