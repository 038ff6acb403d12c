"""The product in one line: spec -> problem -> family (cost model x solver) -> plan."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from planner.data.accuracy import MEASURED, error_band
from planner.errors import SpecError
from planner.families import FAMILIES
from planner.plan import Configuration, Plan, Prediction
from planner.problem import Problem
from planner.ranking import best_plan
from planner.search import Search
from planner.spec_build import load as load_problem
from planner.timeline import timeline_document

__all__ = ["configuration_of", "load", "plan", "predict", "timeline"]

DEFAULT_TIME_LIMIT_S = 60.0


def load(question: str | Path | Mapping[str, Any]) -> Problem:
    """Return the problem that a spec file (YAML or JSON), a plan file, or a mapping asks.

    Raises
    ------
    SpecError
        With every fault of the text in one pass.
    """
    return load_problem(question)


def plan(problem: Problem, *, num_alternatives: int = 0, time_limit_s: float = DEFAULT_TIME_LIMIT_S) -> Plan:
    """Return the best plan of all families that the question allows.

    Parameters
    ----------
    num_alternatives
        How many runners-up in number of devices to rank, beside the other ways to fuse.
    time_limit_s
        Wall-clock limit; when it strikes, the plan is the best so far, with its bound and gap.

    Raises
    ------
    InfeasibleError
        If no family has an answer; the message says why, and by how much what would have to give.
    NoAnswerError
        If a limit came before any answer.

    >>> import planner
    >>> problem = planner.load({
    ...     "dnn": {"zoo": "resnet50", "batch_per_device": 32},
    ...     "cluster": {"preset": "osf-testbed"},
    ... })
    >>> found = planner.plan(problem)
    >>> found.status.value, found.configuration.num_devices
    ('optimal', 32)
    """
    if problem.variant != "corrected":
        message = (
            f"variant: {problem.variant!r} is for `planner predict` and cases. Leave it out: a plan keeps "
            f"to the physics."
        )
        raise SpecError(message)
    search = Search(time_limit_s=time_limit_s, num_alternatives=num_alternatives)
    with search.interruptible():
        best = best_plan(problem, search)
    best = replace(best, prediction=_with_known_error(problem, best.family, best.configuration, best.prediction))
    provenance = replace(best.provenance, versions=_versions(), input_digest=_digest(problem))
    return replace(best, provenance=provenance)


def predict(problem: Problem, configuration: Configuration | None = None) -> Prediction:
    """Return what a configuration costs: the one given, or the one in the question.

    Raises
    ------
    SpecError
        If neither is there, or it contradicts the cluster or itself.
    """
    family, found = configuration_of(problem)
    chosen = configuration or found
    return _with_known_error(problem, family, chosen, FAMILIES[family].predict(problem, chosen))


def timeline(problem: Problem, family: str, configuration: Configuration) -> dict[str, Any]:
    """Return a configuration's schedule as a Chrome trace, for Perfetto.

    Raises
    ------
    SpecError
        If the family has no schedule to draw.
    """
    found = FAMILIES[family].timeline(problem, configuration)
    if found is None:
        raise SpecError(f"--trace: the family {family} has no schedule to draw. Leave out --trace.")
    return timeline_document(*found)


def configuration_of(problem: Problem) -> tuple[str, Configuration]:
    """Return the family and the configuration that the question holds."""
    if problem.configuration is None:
        message = "configuration: this key is missing. Add the block that `planner plan` prints, or ask `planner plan`."
        raise SpecError(message)
    family, given = problem.configuration
    return family, FAMILIES[family].configuration_of(problem, given)


def _with_known_error(
    problem: Problem, family: str, configuration: Configuration, prediction: Prediction
) -> Prediction:
    """Return the prediction with the error of its like, where whole iterations of the family were measured.

    A band is never borrowed: not for computation that was only estimated, other numbers of devices or other rates, nor
    from measurements of parts of an iteration.
    """
    measured = MEASURED.get(family)
    if measured is None or not problem.is_computation_measured or problem.variant != "corrected":
        return prediction
    block = configuration.to_document()
    rate = problem.cluster.ring_link(block["num_machines"]).bandwidth_bytes_per_s
    dtype = problem.training.dtype
    if not measured.covers(num_devices=block["num_devices"], network_bytes_per_s=rate, dtype=dtype):
        return prediction
    return replace(prediction, relative_error=error_band(family, is_calibrated=problem.are_links_calibrated))


def _versions() -> dict[str, str]:
    """Return the versions on which an answer may depend."""
    found = {}
    for name in ("training-planner", "numpy", "scipy", "networkx", "ortools"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a checkout that was never installed
            found[name] = "not installed"
    return found


def _digest(problem: Problem) -> str:
    """Return a digest of the resolved question."""
    text = json.dumps(problem.resolved, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
