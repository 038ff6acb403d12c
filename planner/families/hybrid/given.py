"""What a spec's block ``configuration.hybrid`` means: refused with the rule that it breaks and the nearest values."""

from collections.abc import Mapping
from typing import Any

from planner.errors import Fault, SpecError
from planner.families.hybrid.configuration import FLAGS, HybridConfiguration
from planner.families.hybrid.cost import HybridCost, cost_of_machines
from planner.families.hybrid.defaults import completed
from planner.families.hybrid.faults import fault_of, given_batch
from planner.families.hybrid.rules import LayoutRule, broken_rule, nearest, rules_of
from planner.problem import Problem

__all__ = ["configuration_of"]

_ARRAYS = {key: name for name, key in FLAGS.items()}
_OWN = ("machines", "global_batch_size")


def configuration_of(problem: Problem, given: Mapping[str, Any]) -> HybridConfiguration:
    """Return the configuration that a spec's block means.

    Raises
    ------
    SpecError
        Where the network, the batch, the machines or another decision do not allow one of the decisions.
    """
    if problem.variant != "corrected":
        text = "hybrid parallelism has no printed form."
        raise SpecError.of([Fault(field="variant", value=problem.variant, problem=text, mend="Leave it out.")])
    cost = cost_of_machines(problem, given["machines"], given_batch(problem, given["global_batch_size"]))
    found = HybridConfiguration(
        global_batch_size=cost.batch,
        machines=given["machines"],
        **{name: value for name, value in completed(problem, given, cost.batch).items() if name not in _OWN},
    )
    _check(cost, found)
    return found


def _check(cost: HybridCost, found: HybridConfiguration) -> None:
    """Refuse a layout that breaks a rule, with the nearest values that do not."""
    rules, codes = (*rules_of(cost.transformer, cost.batch), _there_are(cost)), found.codes()
    broken = broken_rule(rules, codes)
    if broken is None:
        return
    text, key = broken.words(codes), broken.key
    if key in _ARRAYS:
        given = bool(codes[_ARRAYS[key]])
        raise SpecError.of([fault_of(key, given, text, f"Write {str(not given).lower()}.")])
    values = nearest(rules, broken, codes, key)
    mend = f"The nearest values that can be: {' or '.join(map(str, values))}." if values else "Change another decision."
    raise SpecError.of([fault_of(key, codes[key], text, mend)])


def _there_are(cost: HybridCost) -> LayoutRule:
    """Return the rule that a layout needs no more devices than there are."""
    number = cost.cluster.num_devices
    return LayoutRule(
        key="data",
        names=("tensor", "context", "pipeline", "data"),
        holds=lambda one: one["tensor"] * one["context"] * one["pipeline"] * one["data"] <= number,
        words=lambda one: (
            f"tensor {one['tensor']} x context {one['context']} x pipeline {one['pipeline']} x data {one['data']} take "
            f"{one['tensor'] * one['context'] * one['pipeline'] * one['data']:,} devices; there are {number:,}."
        ),
    )
