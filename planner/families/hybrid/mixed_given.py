"""What ``stages`` and ``replicas`` in a block ``configuration.hybrid`` mean; refused with what would mend them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from planner.errors import Fault, SpecError
from planner.families.hybrid.configuration import FLAGS, HybridConfiguration
from planner.families.hybrid.cost import HybridCost, cost_of_machines
from planner.families.hybrid.defaults import completed
from planner.families.hybrid.faults import fault_of, given_batch
from planner.families.hybrid.mixed_configuration import MixedConfiguration, MixedReplicas, MixedStage
from planner.families.hybrid.rules import LayoutRule, broken_rule, nearest, rules_of
from planner.problem import Problem

__all__ = ["configuration_of", "is_mixed"]

_OWN = ("machines", "global_batch_size", "stages", "replicas")
_ARRAYS = {key: name for name, key in FLAGS.items()}
_FIXED = {"schedule": "1f1b", "interleave": 1, "offload_optimizer": False}


def is_mixed(given: Mapping[str, Any]) -> bool:
    """Whether a block says more than one kind of stage, or of replica."""
    return bool(given.get("stages") or given.get("replicas"))


def configuration_of(problem: Problem, given: Mapping[str, Any]) -> MixedConfiguration:
    """Return the configuration that a spec's block means.

    Raises
    ------
    SpecError
        Where the network, the batch, the machines or another decision do not allow one of the decisions.
    """
    network = problem.dnn.transformer
    layers = 0 if network is None else network.num_layers
    rows = given.get("stages") or [{"layers": layers, "machines": None}]
    stages = tuple(MixedStage(layers=one["layers"], machines=one["machines"]) for one in rows)
    replicas = tuple(MixedReplicas(**one) for one in given.get("replicas") or ())
    _raise(_shape_faults(problem, given, stages, replicas))
    names = [one.machines for one in (replicas or stages)]
    batch = given_batch(problem, given["global_batch_size"])
    costs = [cost_of_machines(problem, name, batch) for name in dict.fromkeys(names)]
    block = completed(problem, given, costs[0].batch)
    decisions = {name: value for name, value in block.items() if name not in _OWN}
    found = MixedConfiguration(global_batch_size=costs[0].batch, stages=stages, replicas=replicas, **decisions)
    _raise(_rule_faults(costs, found))
    _raise(_dealt_faults(costs, found, layers))
    return found


def _raise(faults: Iterator[Fault]) -> None:
    """Refuse what has a fault, with the first one."""
    for one in faults:
        raise SpecError.of([one])


def _shape_faults(
    problem: Problem, given: Mapping[str, Any], stages: Sequence[MixedStage], replicas: Sequence[MixedReplicas]
) -> Iterator[Fault]:
    """Yield what is wrong with the lists themselves."""
    if problem.variant != "corrected":
        text = "hybrid parallelism has no printed form."
        yield Fault(field="variant", value=problem.variant, problem=text, mend="Leave it out.")
    if given["machines"] is not None:
        yield fault_of("machines", given["machines"], "stages or replicas say where they stand.", "Leave it out.")
    if len(stages) != given["pipeline"]:
        text = f"there are {given['pipeline']} pipeline stages, and {len(stages)} are listed."
        yield fault_of("stages", len(stages), text, f"Write pipeline: {len(stages)}, or list as many stages.")
    named = [one.machines is not None for one in stages]
    if replicas and any(named):
        yield fault_of("stages", "machines", "whole replicas stand on the machines of replicas.", "Leave machines out.")
    if not replicas and any(named) and not all(named):
        yield fault_of("stages", "machines", "some stages name machines, and others do not.", "Name them in each.")
    runs = [name for name, _ in groupby(one.machines for one in stages)]
    if len(runs) != len(set(runs)):
        text = "stages on one kind of machines must follow each other."
        yield fault_of("stages", ", ".join(str(one) for one in runs), text, "Put them together.")
    names = [one.machines for one in replicas]
    if len(names) != len(set(names)):
        yield fault_of("replicas", ", ".join(names), "a group of machines stands twice.", "Add its replicas up.")
    for key, value in _FIXED.items():
        if given[key] != value:
            text = "stages or replicas that are unlike go with it only."
            yield fault_of(key, given[key], text, f"Write {key}: {str(value).lower()}.")
    if (given["zero"] or 0) > 1:
        yield fault_of("zero", given["zero"], "unlike stages or replicas go with ZeRO 0 and 1.", "Write zero: 1.")


def _rule_faults(costs: Sequence[HybridCost], found: MixedConfiguration) -> Iterator[Fault]:
    """Yield the first rule of layouts that is broken, of those that ask for nothing which differs here."""
    codes, key = found.codes(), ""
    if (broken := broken_rule(_rules(costs[0], found), codes)) is None:
        return
    text, key = broken.words(codes), broken.key
    if key in _ARRAYS:
        given = bool(codes[_ARRAYS[key]])
        yield fault_of(key, given, text, f"Write {key}: {str(not given).lower()}.")
        return
    yield fault_of(key, getattr(found, key), text, _mend(costs, found, broken, key))


def _rules(cost: HybridCost, found: MixedConfiguration) -> list[LayoutRule]:
    """Return the rules of layouts that hold here too."""
    return [one for one in rules_of(cost.transformer, cost.batch) if _applies(one, found)]


def _mend(costs: Sequence[HybridCost], found: MixedConfiguration, broken: LayoutRule, key: str) -> str:
    """Return the nearest values of a decision that keep a rule, and if there are any all others."""
    rules = [*_rules(costs[0], found), _expert_rule(found), _device_rule(costs, found)]
    values = nearest(rules, broken, found.codes(), key)
    listed = " or ".join(f"{one:,}" for one in values)
    return f"The nearest values of {key} that can be: {listed}." if values else "Change another decision."


def _expert_rule(found: MixedConfiguration) -> LayoutRule:
    """Return the rule that experts spread over the ranks of every kind by itself."""

    def uneven(one: Mapping[str, Any]) -> list[Any]:
        return [one["context"] * row.data % one["expert"] for row in found.replicas]

    return LayoutRule(
        key="expert",
        names=("context", "expert"),
        holds=lambda one: np.all([np.equal(rest, 0) for rest in uneven(one)] or [one["expert"] > 0], axis=0),
        words=lambda one: (
            f"an expert degree of {one['expert']} does not divide the ranks on "
            f"{next(row.machines for row, rest in zip(found.replicas, uneven(one), strict=True) if rest)}."
        ),
    )


def _device_rule(costs: Sequence[HybridCost], found: MixedConfiguration) -> LayoutRule:
    """Return the rule that no kind gives more devices than it has."""
    name = "pipeline" if found.replicas else "data"
    each = found.tensor * found.context * getattr(found, name)
    parts = [(devices // each, one) for devices, one in zip(found.devices_of.values(), costs, strict=True)]

    def taken(one: Mapping[str, Any]) -> list[Any]:
        return [part * one["tensor"] * one["context"] * one[name] for part, _ in parts]

    def words(one: Mapping[str, int]) -> str:
        rows = zip(taken(one), parts, strict=True)
        devices, cost = next((number, cost) for number, (_, cost) in rows if number > cost.cluster.num_devices)
        where = "" if cost.machines is None else f" of {cost.machines}"
        return f"the layout takes {devices:,} devices{where}; there are {cost.cluster.num_devices:,}."

    return LayoutRule(
        key="replicas" if found.replicas else "stages",
        names=("tensor", "context", name),
        holds=lambda one: np.all(
            [number <= cost.cluster.num_devices for number, (_, cost) in zip(taken(one), parts, strict=True)], axis=0
        ),
        words=words,
    )


def _applies(rule: LayoutRule, found: HybridConfiguration) -> bool:
    """Whether a rule holds for unlike stages, and for unlike replicas."""
    is_replicated = isinstance(found, MixedConfiguration) and bool(found.replicas)
    return rule.key not in ("pipeline", "interleave") and not (is_replicated and "data" in rule.names)


def _dealt_faults(costs: Sequence[HybridCost], found: MixedConfiguration, layers: int) -> Iterator[Fault]:
    """Yield where layers, replicas, micro-batches or devices do not add up."""
    cut = sum(one.layers for one in found.stages)
    if cut != layers:
        last = found.stages[-1].layers + layers - cut
        mend = f"Write layers: {last} in the last stage." if last > 0 else f"Take layers away until they are {layers}."
        yield fault_of("stages", cut, f"the stages hold {cut} layers, and the network has {layers}.", mend)
    if found.replicas:
        data = sum(one.data for one in found.replicas)
        if data != found.data:
            yield fault_of("data", found.data, f"the replicas add up to {data}.", f"Write data: {data}.")
        samples = sum(one.data * one.num_microbatches for one in found.replicas) * found.microbatch
        if samples != found.global_batch_size:
            text = f"the replicas do {samples} samples of a batch of {found.global_batch_size}."
            yield fault_of("replicas", samples, text, _batch_mend(found))
    codes = found.codes()
    rule = _expert_rule(found)
    if broken_rule([rule], codes) is not None:
        yield fault_of("expert", found.expert, rule.words(codes), _mend(costs, found, rule, "expert"))
    rule = _device_rule(costs, found)
    if broken_rule([rule], codes) is not None:
        keys = ("tensor",) if found.replicas else ("data", "tensor")
        mends = [_mend(costs, found, rule, key) for key in keys]
        mend = next((one for one in mends if one.startswith("The")), "Take fewer.")
        yield fault_of(rule.key, found.num_devices, rule.words(codes), mend)


def _batch_mend(found: MixedConfiguration) -> str:
    """Return micro-batches of one kind, or their size, that make the replicas do the batch."""
    batch, rows = found.global_batch_size, found.replicas
    each = sum(one.data * one.num_microbatches for one in rows)
    for one in reversed(rows):
        left = batch - (each - one.data * one.num_microbatches) * found.microbatch
        if left > 0 and left % (one.data * found.microbatch) == 0:
            return f"Write num_microbatches: {left // (one.data * found.microbatch)} on {one.machines}."
    if batch % each == 0:
        return f"Write microbatch: {batch // each}."
    return "Change num_microbatches, data or microbatch."
