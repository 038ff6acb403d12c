"""The family ``parameter_server``: what a given configuration costs.

A worker is a machine: its devices add up their gradients over the links inside, in ready order, and the machine pushes
the sums; tensors lie on several servers. The links are those of :mod:`planner.models.server_links`: every server and
every worker has its own, full duplex, and a worker needs none to the server on its own machine. Workers run in lockstep
(BSP): pulls come after the last push, and stragglers enter as noise on the workers' times; other synchronisations are
simulated, see :mod:`planner.models.asynchronous`. The search stands in
:mod:`planner.families.parameter_server.search`.
"""

from collections.abc import Mapping
from typing import Any

from planner.families.parameter_server import asynchronous_timeline as parameter_server_asynchronous_timeline
from planner.families.parameter_server import given as parameter_server_given
from planner.families.parameter_server import timeline as parameter_server_timeline
from planner.families.parameter_server import words as parameter_server_words
from planner.families.parameter_server.configuration import NAME, ParameterServerConfiguration
from planner.families.parameter_server.cost import ParameterServerCost
from planner.families.parameter_server.machines import machines
from planner.plan import Prediction
from planner.problem import Problem
from planner.timeline import Timeline, repeated

__all__ = [
    "DECISIONS",
    "FITTED",
    "NAME",
    "NOT_MODELLED",
    "TAKES_EXCLUSIONS",
    "ParameterServerConfiguration",
    "configuration_of",
    "explain",
    "left_out",
    "machines",
    "predict",
    "timeline",
]

NOT_MODELLED = (
    "convergence and accuracy: a larger batch, or stale gradients, may need more epochs",
    "the servers' own work, and headers and congestion on the links",
    "the memory of the servers' hosts: parameters and the optimiser's state, once over all servers",
    "handing parameters out again inside a machine of several devices",
    "failures and restarts",
)
DECISIONS = frozenset(
    (
        "num_parameter_servers",
        "servers",
        "co_located",
        "synchronisation",
        "batch_shares",
        "device",
        "num_machines",
        "num_devices",
    )
)
FITTED = ("utilisation", "bandwidth_efficiency", "overhead")
TAKES_EXCLUSIONS = False


def predict(problem: Problem, configuration: ParameterServerConfiguration) -> Prediction:
    """Return what a configuration costs."""
    return ParameterServerCost(problem, configuration).predict()


def timeline(problem: Problem, configuration: ParameterServerConfiguration, *, num_iterations: int = 1) -> Timeline:
    """Return what workers and servers do in some iterations; without a barrier, a stretch of the simulation."""
    cost = ParameterServerCost(problem, configuration)
    if configuration.synchronisation != "bsp":
        return parameter_server_asynchronous_timeline.timeline(cost, num_iterations)
    return repeated(parameter_server_timeline.timeline(cost), num_iterations, cost.predict().iteration_time_s)


def explain(problem: Problem, configuration: ParameterServerConfiguration, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds: computation, the servers' links, a worker's link, stragglers or input."""
    return parameter_server_words.explain(problem, configuration, prediction)


def configuration_of(problem: Problem, given: Mapping[str, Any]) -> ParameterServerConfiguration:
    """Return the configuration that a spec's block means."""
    return parameter_server_given.configuration_of(problem, given)


def left_out(
    problem: Problem, given: Mapping[str, Any], configuration: ParameterServerConfiguration
) -> tuple[str, ...]:
    """Return how tensors are placed on several servers."""
    if given["placement"] is not None or configuration.num_parameter_servers == 1:
        return ()
    return (f"placement: {configuration.placement}, as the program has it; plan looks for the best one",)
