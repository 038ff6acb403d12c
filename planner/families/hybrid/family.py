"""The family ``hybrid``: layouts of a transformer over tensor, context, pipeline, data and expert; what a block means.

Decisions and rules stand in :mod:`planner.families.hybrid.configuration`, costs in :mod:`planner.families.hybrid.cost`,
predictions in :mod:`planner.families.hybrid.prediction`, the search in :mod:`planner.families.hybrid.search`; see
docs/hybrid.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import ModuleType
from typing import Any

import numpy as np

from planner.cost import Floats
from planner.decisions import LAYOUT, parted_depths, written
from planner.errors import Fault, SpecError
from planner.families.answer import CountBounds
from planner.families.hybrid.configuration import (
    MOST_ZERO_OF_CUTS,
    NAME,
    OF_CUTS,
    HybridConfiguration,
    LayoutRule,
    PipelineStage,
    ReplicaGroup,
    broken_rule,
    completed,
    device_rules,
    graph_rules,
    is_spread,
    left_out_words,
    nearest,
    program_rules,
    rules_of,
    training_rules,
    uneven_rules,
)
from planner.families.hybrid.cost import GroupCost, Placement, cost_of_machines, launches_graphs, require, why_not
from planner.families.hybrid.prediction import NOT_MODELLED, explain, predict, timeline, warnings
from planner.families.hybrid.timeline import view
from planner.models.layouts import SCHEDULE_NAMES, Schedule, chunked_layers
from planner.plan import Plan
from planner.problem import Problem
from planner.routes import routes_of
from planner.search import Search
from planner.used_machines import UsedMachines, filled

__all__ = [
    "FITTED",
    "NAME",
    "NOT_LAUNCHED",
    "NOT_MODELLED",
    "WORDS",
    "HybridConfiguration",
    "bound",
    "configuration_of",
    "domain",
    "explain",
    "least_beside_usd",
    "least_by_count",
    "least_parts_s",
    "left_out",
    "machines",
    "predict",
    "risks",
    "search",
    "timeline",
    "view",
    "warnings",
]

WORDS = "hybrid parallelism"  # how it trains
FITTED = ("inside_efficiency", "bandwidth_efficiency")
NOT_LAUNCHED = frozenset({str(Placement.REPLICAS)})  # replicas that do unlike numbers of micro-batches
_FOLDED = tuple(name for name in SCHEDULE_NAMES[Schedule.ZB_V :] if name != "dualpipe")
_DOUBLES = "overlap_expert"  # keeps the activations of one micro-batch more


# -- what a spec's block ``configuration.hybrid`` means: refused with what it breaks and the nearest values ------------


def configuration_of(problem: Problem, given: Mapping[str, Any]) -> HybridConfiguration:
    """Return the configuration that a spec's block means.

    Raises
    ------
    SpecError
        Where the network, the batch, the machines or another decision do not allow one of the decisions.
    """
    layers = 0 if problem.dnn.transformer is None else problem.dnn.transformer.num_layers
    is_folded = given["schedule"] in _FOLDED  # which has two chunks on a device
    given = {**given, "interleave": 2} if is_folded and given["interleave"] == 1 else given
    stages = tuple(PipelineStage(**one) for one in given.get("stages") or ())
    replicas = tuple(ReplicaGroup(**one) for one in given.get("replicas") or ())
    stages = stages or (PipelineStage(layers=layers),) * bool(replicas)
    _raise(_shape_faults(problem, given, stages, replicas))
    _raise(_listed_faults(given, stages, layers))
    if len(stages) == given["pipeline"] < len(stages) * given["interleave"]:
        stages = _folded(stages) if is_folded else _with_chunks(stages, given["interleave"])
    if stages:
        _raise(_depth_faults(problem, given, stages, is_folded=is_folded))
    batch, training = given["global_batch_size"], problem.training
    fixed, most = training.fixed_batch_size, training.max_global_batch_size
    if batch is not None and ((fixed is not None and batch != fixed) or (most is not None and batch > most)):
        text = f"dnn asks for a batch of {fixed or most}."
        raise SpecError.of([_fault("global_batch_size", batch, text, f"Write {fixed or most}.")])
    names = [one.machines for one in (replicas or stages)] or [given["machines"]]
    costs = [cost_of_machines(problem, name, batch) for name in dict.fromkeys(names)]
    found = HybridConfiguration(
        global_batch_size=costs[0].batch,
        machines=given["machines"],
        stages=stages,
        replicas=replicas,
        **completed(problem, given, costs[0].batch),
    )
    _raise(_rule_faults(costs, found))
    _raise(_sum_faults(costs, found))
    is_open = given[_DOUBLES] is None and LAYOUT[_DOUBLES].key not in problem.fixed
    return _that_fits(costs[0], found) if is_open else found


def left_out(problem: Problem, given: Mapping[str, object], configuration: HybridConfiguration) -> tuple[str, ...]:
    """Return what the layout has by default: ``overlap_data: on, as megatron-core has it``."""
    block = configuration.to_document()
    words = left_out_words(problem, given, block)
    is_open = given[_DOUBLES] is None and not block[_DOUBLES]
    # Experts' exchange would be hidden, were there memory for it.
    if is_open and completed(problem, given, configuration.global_batch_size)[_DOUBLES]:
        words.append(f"{_DOUBLES}: off, since devices would not hold a second micro-batch")
    return tuple(words)


def _that_fits(cost: GroupCost, found: HybridConfiguration) -> HybridConfiguration:
    """Return the layout without experts' overlap, which keeps a second micro-batch, where devices hold it only so."""
    if not (found.overlap_expert and found.is_even):
        return found
    without = replace(found, overlap_expert=False)
    held, least = (
        float(cost.memory(cost.layouts({name: np.array([code]) for name, code in one.codes().items()}))["total"][0])
        for one in (found, without)
    )
    return without if held > cost.memory_limit_bytes >= least else found


def machines(problem: Problem, configuration: HybridConfiguration) -> Iterator[UsedMachines]:
    """Yield the machines of a layout, filled one after the other."""
    groups = {group.name: group for group in problem.cluster.machine_groups}
    for name, number in configuration.devices_of.items():
        yield from filled(routes_of(problem.cluster).order if name is None else [groups[name]], number)


def _with_chunks(stages: Sequence[PipelineStage], chunks: int) -> tuple[PipelineStage, ...]:
    """Return the chunks of stages in the order of the network, each stage's layers dealt out to its chunks."""
    layers = chunked_layers([one.layers for one in stages], chunks)
    return tuple(replace(stages[index % len(stages)], layers=int(one)) for index, one in enumerate(layers.ravel()))


def _folded(stages: Sequence[PipelineStage]) -> tuple[PipelineStage, ...]:
    """Return the chunks of stages that turn at the last device, in the order of the network."""
    down = [replace(one, layers=one.layers // 2) for one in stages]
    return (*down, *(replace(one, layers=one.layers - one.layers // 2) for one in stages[::-1]))


def _fault(key: str, value: object, problem: str, mend: str) -> Fault:
    """Return what is wrong with one key of the block."""
    return Fault(field=f"configuration.{NAME}.{key}", value=written(value), problem=problem, mend=mend)


def _raise(faults: Iterator[Fault]) -> None:
    """Refuse what has a fault, with the first one."""
    for one in faults:
        raise SpecError.of([one])


def _shape_faults(
    problem: Problem, given: Mapping[str, Any], stages: Sequence[PipelineStage], replicas: Sequence[ReplicaGroup]
) -> Iterator[Fault]:
    """Yield what is wrong with the lists of stages and replicas themselves."""
    if problem.variant != "corrected":
        text = "hybrid parallelism has no printed form."
        yield Fault(field="variant", value=problem.variant, problem=text, mend="Leave it out.")
    if not stages:
        return
    if given["machines"] is not None:
        yield _fault("machines", given["machines"], "stages or replicas say where they stand.", "Leave it out.")
    named = [one.machines is not None for one in stages]
    if replicas and any(named):
        yield _fault("stages", "machines", "whole replicas stand on the machines of replicas.", "Leave machines out.")
    if not replicas and any(named) and not all(named):
        yield _fault("stages", "machines", "some stages name machines, and others do not.", "Name them in each.")
    runs = [name for name, _ in groupby(one.machines for one in stages)]
    if len(runs) != len(set(runs)):
        text = "stages on one kind of machines must follow each other."
        yield _fault("stages", ", ".join(str(one) for one in runs), text, "Put them together.")
    names = [one.machines for one in replicas]
    if len(names) != len(set(names)):
        yield _fault("replicas", ", ".join(names), "a group of machines stands twice.", "Add its replicas up.")
    for key, value in OF_CUTS.items() if replicas or len(runs) > 1 else ():
        if given[key] not in (None, value):
            text = "stages on several kinds of machines, and replicas, go with it only."
            yield _fault(key, given[key], text, f"Write {key}: {written(value)}.")
    if (given["zero"] or 0) > MOST_ZERO_OF_CUTS:
        yield _fault("zero", given["zero"], "unlike stages or replicas go with ZeRO 0 and 1.", "Write zero: 1.")


def _listed_faults(given: Mapping[str, Any], stages: Sequence[PipelineStage], layers: int) -> Iterator[Fault]:
    """Yield that other numbers of stages or chunks are listed, that one is empty, or that they hold other layers."""
    if not stages or not layers:
        return
    chunks = given["pipeline"] * given["interleave"]
    if len(stages) not in (given["pipeline"], chunks):
        text, mend = f"there are {given['pipeline']} pipeline stages, and {len(stages)} are listed.", "as many stages"
        if given["interleave"] > 1:
            text = f"there are {given['pipeline']} pipeline stages of {given['interleave']} chunks, and {len(stages)} "
            text, mend = f"{text}are listed.", f"all {chunks} chunks in the order of the network"
            yield _fault("stages", len(stages), text, f"List the {given['pipeline']} stages, or {mend}.")
        yield _fault("stages", len(stages), text, f"Write pipeline: {len(stages)}, or list {mend}.")
    is_chunked = len(stages) == chunks > given["pipeline"]
    for index, one in enumerate(stages):
        if not one.layers and not (is_chunked and index in (0, chunks - 1)):
            what = f"{'chunk' if is_chunked else 'stage'} {index + 1} of {len(stages)} holds no layer"
            mend = "Write 1 or more" if is_chunked else f"Write 1 or more, or pipeline: {len(stages) - 1} without it"
            yield _fault(f"stages.{index + 1}.layers", 0, f"{what}, and each holds one at least.", f"{mend}.")
    cut = sum(one.layers for one in stages)
    if cut != layers:
        last, name = stages[-1].layers + layers - cut, "chunk" if is_chunked else "stage"
        mend = f"Write layers: {last} in the last {name}." if last > 0 else f"Take layers away until they are {layers}."
        yield _fault("stages", cut, f"the {name}s hold {cut} layers, and the network has {layers}.", mend)


def _depth_faults(
    problem: Problem, given: Mapping[str, Any], chunks: Sequence[PipelineStage], *, is_folded: bool
) -> Iterator[Fault]:
    """Yield that chunks part the depths of multi-token prediction, or have them on the first device."""
    depths = 0 if problem.dnn.transformer is None else problem.dnn.transformer.num_mtp_layers
    layers = [one.layers for one in chunks]
    if (fault := parted_depths(depths, layers, given["pipeline"], is_folded=is_folded)) is not None:
        text, mend = fault
        yield _fault(f"stages.{len(layers)}.layers", layers[-1], text, mend)


def _rules(cost: GroupCost, found: HybridConfiguration) -> list[LayoutRule]:
    """Return the rules of layouts, but those that ask for equal layers where they differ, or for equal replicas."""
    rules = (
        *rules_of(cost.transformer, cost.batch, is_dealt=found.is_even, program=cost.program),
        *(uneven_rules(cost.program) if len({one.layers for one in found.stages}) > 1 else ()),
        *program_rules(cost.program),
        *training_rules(cost.problem.training),
        *graph_rules(launches_graphs(cost.problem), cost.transformer),
        *device_rules(cost.group.device.kind),
    )
    return [one for one in rules if not (found.replicas and "data" in one.names)]


def _rule_faults(costs: Sequence[GroupCost], found: HybridConfiguration) -> Iterator[Fault]:
    """Yield the first rule that is broken; of an even cut also that there are so many devices."""
    codes, rules = found.codes(), _rules(costs[0], found)
    broken = broken_rule([*rules, _device_rule(costs, found)] if found.is_even else rules, codes)
    if broken is None:
        return
    key, text = broken.key, broken.words(codes)
    if LAYOUT[key].is_flag:
        other = written(not codes[key])
        yield _fault(key, bool(codes[key]), text, f"Write {other}." if found.is_even else f"Write {key}: {other}.")
        return
    yield _fault(key, codes[key], text, _mend(costs, found, broken, key))


def _mend(costs: Sequence[GroupCost], found: HybridConfiguration, broken: LayoutRule, key: str) -> str:
    """Return the nearest values of a decision that keep a rule, and if there are any all others."""
    rules = [*_rules(costs[0], found), _expert_rule(found), _device_rule(costs, found)]
    values = nearest(rules, broken, found.codes(), key)
    if not values:
        return "Change another decision."
    if LAYOUT[key].names:
        return f"What it can be: {', '.join(str(LAYOUT[key].decoded(one)) for one in values)}."
    if found.is_even:
        return f"The nearest values that can be: {' or '.join(map(str, values))}."
    return f"The nearest values of {key} that can be: {' or '.join(f'{one:,}' for one in values)}."


def _expert_rule(found: HybridConfiguration) -> LayoutRule:
    """Return the rule that experts spread over the ranks of every kind by itself."""

    def uneven(one: Mapping[str, Any]) -> list[Any]:
        return [~np.asarray(is_spread(one, one["context"] * row.data)) for row in found.replicas]

    return LayoutRule(
        key="expert",
        names=("tensor", "context", "expert", "expert_tensor"),
        holds=lambda one: ~np.any(uneven(one) or [one["expert"] < 1], axis=0),
        words=lambda one: (
            f"an expert degree of {one['expert']} does not divide the ranks on "
            f"{next(row.machines for row, rest in zip(found.replicas, uneven(one), strict=True) if rest)}."
        ),
    )


def _device_rule(costs: Sequence[GroupCost], found: HybridConfiguration) -> LayoutRule:
    """Return the rule that no group gives more devices than it has."""
    shared = "pipeline" if found.replicas else "data"
    there = [one.cluster.num_devices for one in costs]
    each = found.tensor * found.context * getattr(found, shared)
    parts = [number // each for number in found.devices_of.values()]

    def taken(one: Mapping[str, Any]) -> list[Any]:
        whole = one["tensor"] * one["context"] * one[shared]
        return [whole * part for part in ([one["pipeline"]] if found.is_even else parts)]

    def words(one: Mapping[str, int]) -> str:
        devices, cost = next(row for row in zip(taken(one), costs, strict=True) if row[0] > row[1].cluster.num_devices)
        most = f"there are {cost.cluster.num_devices:,}."
        if found.is_even:
            degrees = " x ".join(f"{name} {one[name]}" for name in ("tensor", "context", "pipeline", "data"))
            return f"{degrees} take {devices:,} devices; {most}"
        where = "" if cost.machines is None else f" of {cost.machines}"
        return f"the layout takes {devices:,} devices{where}; {most}"

    return LayoutRule(
        key="data" if found.is_even else "replicas" if found.replicas else "stages",
        names=("tensor", "context", shared, *(["pipeline"] if found.is_even else [])),
        holds=lambda one: np.all([number <= most for number, most in zip(taken(one), there, strict=True)], axis=0),
        words=words,
    )


def _sum_faults(costs: Sequence[GroupCost], found: HybridConfiguration) -> Iterator[Fault]:
    """Yield where the micro-batches or devices of stages and replicas do not add up."""
    if found.is_even:
        return
    if found.replicas:
        data = sum(one.data for one in found.replicas)
        if data != found.data:
            yield _fault("data", found.data, f"the replicas add up to {data}.", f"Write data: {data}.")
        samples = sum(one.data * one.num_microbatches for one in found.replicas) * found.microbatch
        if samples != found.global_batch_size:
            text = f"the replicas do {samples} samples of a batch of {found.global_batch_size}."
            yield _fault("replicas", samples, text, _batch_mend(found))
    codes = found.codes()
    rule = _expert_rule(found)
    if broken_rule([rule], codes) is not None:
        yield _fault("expert", found.expert, rule.words(codes), _mend(costs, found, rule, "expert"))
    rule = _device_rule(costs, found)
    if broken_rule([rule], codes) is not None:
        mends = [_mend(costs, found, rule, key) for key in (("tensor",) if found.replicas else ("data", "tensor"))]
        mend = next((one for one in mends if one.startswith("The")), "Take fewer.")
        yield _fault(rule.key, found.num_devices, rule.words(codes), mend)


def _batch_mend(found: HybridConfiguration) -> str:
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


# --- Its search, imported when it is asked for: what costs a given plan needs no solver


def search(problem: Problem, search: Search) -> Plan:
    """Return the best plan of the family; see :class:`planner.families.Family`."""
    require(problem)  # before what searches is imported
    from planner.families.hybrid.search import plan  # noqa: PLC0415

    return plan(problem, search)


def bound(problem: Problem) -> float:
    """Return what no plan beats, whatever is searched."""
    if why_not(problem) is not None:
        return 0.0
    from planner.families.hybrid import bounds  # noqa: PLC0415

    return bounds.lower_bound(problem)


def least_by_count(problem: Problem, weight_s: Floats, limit_s: Floats, search: Search) -> CountBounds | None:
    """Return what no plan beats by the number of equal machines that it uses, all numbers at once."""
    from planner.families.hybrid import purchases  # noqa: PLC0415

    return purchases.least_by_count(problem, weight_s, limit_s, search)


def least_parts_s(
    problem: Problem, *, enough_s: float, within_s: float, fastest_s: float, machines: Sequence[int]
) -> Floats | None:
    """Return device-seconds that each part of a training takes at least, in company of other kinds of machines."""
    from planner.families.hybrid import purchases  # noqa: PLC0415

    found = purchases.least_parts_s(problem, enough_s, within_s, fastest_s)
    return None if found is None else np.tile(found, (len(machines), 1))


def least_beside_usd(
    problem: Problem,
    usd_per_s: Mapping[str, float],
    more_usd_per_s: float,
    within_s: float,
    most_usd: float,
    search: Search,
) -> float | None:
    """Return what a training costs at least on two kinds of machines at once."""
    from planner.families.hybrid import purchases  # noqa: PLC0415

    return purchases.least_beside_usd(problem, usd_per_s, more_usd_per_s, within_s, most_usd, search)


def risks() -> ModuleType:
    """Return what is known of how far its predictions may be trusted; see :class:`planner.families.Risks`."""
    from planner.families.hybrid import risk  # noqa: PLC0415

    return risk


def domain() -> str:
    """Return what the search covers, where ``predict`` accepts more."""
    from planner.families.hybrid.grid_search import DOMAIN  # noqa: PLC0415
    from planner.families.hybrid.space import MOST_UNLIKE_CHUNKS  # noqa: PLC0415

    return (
        "on one kind of machines layers dealt out to stages and chunks as evenly as whole layers go (to "
        f"more than {MOST_UNLIKE_CHUNKS} chunks a device only where they divide), and "
        "GPipe, 1F1B and further schedules that the program has (others only where fix.schedule asks for them); "
        f"{DOMAIN}"
    )
