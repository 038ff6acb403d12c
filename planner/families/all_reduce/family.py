"""The family ``all_reduce``: synchronous data parallelism, what a given configuration costs.

How many devices, which batch in how many passes, how heterogeneous devices share it, how gradients are fused and
compressed. The search stands in :mod:`planner.families.all_reduce.search`; nothing here imports a solver before a
configuration names a rule.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

from planner.channel import FusionSchedule
from planner.cluster import Cluster, MachineGroup
from planner.cost import Floats
from planner.families.all_reduce import cost as words
from planner.families.all_reduce.configuration import (
    ANY_NUMBER,
    NAME,
    AllReduceConfiguration,
    batches_of,
    fewest_microbatches,
    one_type,
)
from planner.families.all_reduce.cost import NOT_MODELLED, AllReduceCost, cut_as
from planner.families.all_reduce.fusion import by_tensor, ends_of_rule, exchange_of, is_by_tensor, listed_groups
from planner.families.answer import CountBounds
from planner.families.parsing import compression_of, wrong
from planner.families.timeline_drawing import Drawing, draw_input, draw_pass, layers_of_gradients, peak_memory
from planner.plan import Plan, Prediction
from planner.problem import Problem
from planner.routes import routes_of
from planner.search import Search
from planner.sections import FamilyView, Gantt, Placement, Role, Table, replicas_on
from planner.timeline import Timeline, repeated
from planner.used_machines import UsedMachines
from planner.words import cut, few, first_lines, many, short, size_words, term_words, thinned, time_words

__all__ = [
    "FITTED",
    "NAME",
    "NOT_MODELLED",
    "WORDS",
    "configuration_of",
    "domain",
    "explain",
    "least_beside_usd",
    "least_by_count",
    "least_parts_s",
    "left_out",
    "machines",
    "predict",
    "search",
    "timeline",
    "view",
]

FITTED = ("utilisation", "bandwidth_efficiency", "overhead")
_MOST_GROUPS = 40  # fusion groups, each a row of the plot
_MOST_LISTED = 200  # in its table
_MOST_LINES = 4  # on a terminal
WORDS = "data parallelism with all-reduce"  # how it trains
_NETWORK = "network"


def _heterogeneous(problem: Problem, given: Mapping[str, Any]) -> AllReduceConfiguration:
    """Return the configuration that a block with ``groups`` means.

    Raises
    ------
    SpecError
        Where a group is unknown or has fewer machines or devices, the groups cannot reach each other, the shares do not
        make the batch, or the fused groups are no partition of the gradients in ready order.
    """
    groups = {group.name: group for group in problem.cluster.machine_groups}
    rows: Mapping[str, Mapping[str, Any]] = given["groups"]
    for name, row in rows.items():
        _check_group(groups, name, row)
    if not problem.cluster.of_groups_is_connected(list(rows)):
        raise wrong(NAME, "groups", ", ".join(rows), "these machines cannot reach each other.")
    devices = [row["devices_per_machine"] or groups[name].devices_per_machine for name, row in rows.items()]
    cost = AllReduceCost.heterogeneous(problem, list(rows), devices)
    ordered = [rows[name] for name in cost.names]
    machines = [row["machines"] for row in ordered]
    shares = [row["batch_per_device"] for row in ordered]
    steps = [
        row["gradient_accumulation_steps"] or fewest_microbatches(row["batch_per_device"], most)
        for row, most in zip(ordered, cost.most_at_a_time.tolist(), strict=True)
    ]
    numbers = [count * each for count, each in zip(machines, cost.devices.tolist(), strict=True)]
    for key, number in (("num_machines", sum(machines)), ("num_devices", sum(numbers))):
        if given[key] not in (None, number):
            raise wrong(NAME, key, given[key], f"the groups have {number} in all.")
    _check_curves(problem, "groups", sum(numbers))
    most = sum(number * share for number, share in zip(numbers, shares, strict=True))
    fewest = sum(max(number * (share - 1) + 1, number) for number, share in zip(numbers, shares, strict=True))
    batch = int(given["global_batch_size"] or problem.training.fixed_batch_size or most)
    if not fewest <= batch <= most:
        text = (
            f"the shares make batches of {fewest} to {most} samples, not {batch}: a share is the largest of its group, "
            f"and some devices have one sample less."
        )
        raise wrong(NAME, "global_batch_size", batch, text)
    compression = compression_of(given["compression"])
    bare = cost.configuration(machines, shares, batch, steps=steps, compression=compression)
    if bare.num_devices > 1 and not cost.transfer_costs_of(bare):
        text = "two levels need equally many devices in every machine, and no other algorithm is allowed."
        raise wrong(NAME, "groups", ", ".join(rows), text)
    return _fused(cost, bare, given["fusion_groups"])


def _fused(
    cost: AllReduceCost, bare: AllReduceConfiguration, rule: str | Mapping[str, float] | list[Mapping[str, Any]]
) -> AllReduceConfiguration:
    """Return a configuration with the groups that are listed, or that a rule makes."""
    if exchange_of(cost, bare) is None:
        return bare
    if isinstance(rule, list):
        cost = AllReduceCost.of(cut_as(cost.problem, [name for row in rule for name in row["tensors"]]), bare)
        return replace(bare, fusion_groups=listed_groups(cost.gradients, cost.transfer_costs_of(bare), rule, bare.kept))
    cost = by_tensor(cost, bare) if is_by_tensor(rule) else cost
    return cost.fused(bare, ends_of_rule(exchange_of(cost, bare), rule))


def _check_group(groups: Mapping[str, MachineGroup], name: str, row: Mapping[str, Any]) -> None:
    """Refuse a group that is not there, or does more than it can."""
    key = f"groups.{name}"
    if name not in groups:
        text = f"there are no machines {name!r}; there are {', '.join(groups)}."
        raise wrong(NAME, key, name, text)
    group, devices = groups[name], row["devices_per_machine"]
    if row["machines"] > group.count:
        text = f"there are {group.count} machines {name!r}, not {row['machines']}."
        raise wrong(NAME, f"{key}.machines", row["machines"], text)
    if devices is not None and devices > group.devices_per_machine:
        text = f"a machine {name!r} has {group.devices_per_machine} devices, not {devices}."
        raise wrong(NAME, f"{key}.devices_per_machine", devices, text)
    if (row["gradient_accumulation_steps"] or 1) > row["batch_per_device"]:
        text = f"a share of {row['batch_per_device']} cannot be split into so many micro-batches."
        raise wrong(NAME, f"{key}.gradient_accumulation_steps", row["gradient_accumulation_steps"], text)


def _check_curves(problem: Problem, key: str, num_devices: int) -> None:
    """Refuse a number of devices that no measured curve holds, where there are curves."""
    curves = problem.calibration.all_reduce_curves
    if curves and num_devices > 1 and num_devices not in curves:
        known = ", ".join(map(str, sorted(curves)))
        raise wrong(NAME, key, num_devices, f"calibration.curves hold {known} devices, not {num_devices}.")


def configuration_of(problem: Problem, given: Mapping[str, Any]) -> AllReduceConfiguration:
    """Return the configuration that a spec's block means.

    ``fusion_groups`` may list the groups, name a rule (none, one, optimal, mg_wfbp, ada_fusion, ada_fusion_idle; of
    frameworks ddp, horovod, best_bucket_cap), or give a size: ``{buffer: 25 MiB}``, ``{bucket_cap: 25 MiB}`` or
    ``{fusion_threshold: 64 MiB, cycle: 1 ms}``.

    Raises
    ------
    SpecError
        Where the numbers contradict one another or the cluster, or the groups are no partition of the gradients in
        ready order.
    """
    machines = given["machines"] or ()
    known = [group.name for group in problem.cluster.machine_groups]
    if unknown := [name for name in machines if name not in known]:
        raise wrong(
            NAME, "machines", unknown[0], f"there are no machines {unknown[0]!r}; there are {', '.join(known)}."
        )
    if given["groups"] is not None:
        return _heterogeneous(problem, given)
    cost = AllReduceCost.homogeneous(problem, machines)
    num_machines, devices, batch, steps = _numbers(cost, given)
    cost = cost.with_devices([devices])
    shares, compression = [ceil(batch / (num_machines * devices))], compression_of(given["compression"])
    bare = cost.configuration([num_machines], shares, batch, steps=[steps], compression=compression)
    return _fused(cost, bare, given["fusion_groups"])


def _numbers(cost: AllReduceCost, given: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Return machines, devices of each, batch and micro-batches that are given, checked against the cluster."""
    number = given["num_devices"]
    most = min(group.devices_per_machine for group in cost.groups)
    devices, machines = given["devices_per_machine"], given["num_machines"]
    if devices is None and machines is None:
        machines = next((m for m in range(ceil(number / most), cost.cluster.num_machines + 1) if not number % m), 0)
    machines = machines or (number // devices if devices else 0)
    devices = devices or (number // machines if machines else 0)
    if machines * devices != number or machines > cost.cluster.num_machines or devices > most or not number:
        have = f"the cluster has {cost.cluster.num_machines} machines of {most} {cost.groups[0].device.name}."
        why = f"no number of them makes {number} with equally many devices of each"
        if machines * devices:
            why = f"{machines} machines x {devices} devices do not make {number}, or are too many"
        raise wrong(NAME, "num_devices", number, f"{why}: {have}")
    training, batches = cost.problem.training, batches_of(cost.problem, number, ANY_NUMBER)
    if training.batch_per_device is not None and training.fixed_batch_size is not None:
        batches = [training.batch_per_device * number]  # a configuration may name fewer devices than there are
    batch = given["global_batch_size"] or max(batches, default=training.fixed_batch_size or 0)
    steps = given["gradient_accumulation_steps"]
    if steps is None:
        steps = fewest_microbatches(ceil(batch / number), int(cost.most_at_a_time[0]))
    if batch < number:
        raise wrong(NAME, "num_devices", number, f"a batch of {batch} has no sample for each of {number} devices.")
    if steps > ceil(batch / number):
        raise wrong(
            NAME,
            "global_batch_size",
            batch,
            f"a batch of {batch} cannot be split over {number} devices in {steps} steps.",
        )
    _check_curves(cost.problem, "num_devices", number)
    return machines, devices, batch, steps


def machines(problem: Problem, configuration: AllReduceConfiguration) -> Iterator[UsedMachines]:
    """Yield the machines of a data-parallel plan; those of one type are taken in the order of the ring."""
    if configuration.groups:
        groups = {group.name: group for group in problem.cluster.machine_groups}
        for row in configuration.groups:
            yield UsedMachines.training(groups[row.name], row.num_machines, row.devices_per_machine)
        return
    whole = one_type(problem, configuration.machines)
    cluster = whole.of_groups(configuration.machines) if configuration.machines else whole
    left = configuration.num_machines
    for group in routes_of(cluster).order:
        if (number := min(left, group.count)) > 0:
            yield UsedMachines.training(group, number, configuration.devices_per_machine)
            left -= number


def _drawn(cost: AllReduceCost, configuration: AllReduceConfiguration) -> Timeline:
    """Return what the devices of each kind and the network do in one steady iteration: a process each.

    An iteration starts for all at the same time, and ends for all when the slowest has updated and its input has come.
    Compressing occupies a device before its last backward pass. A transfer's span is the time in which the channel
    works for it alone; what its buffer waited before is told beside it.
    """
    drawing, prediction = Drawing(), cost.predict(configuration)
    processes = []
    for row in cost.rows_of(configuration):
        of, many = f"{row.name}: " * bool(row.name), row.num_devices > 1
        process = f"{of}each of {row.num_devices} devices" if many else f"{of}the device"
        rows = [f"{process}: {one}" for one in ("disk", "decode", "PCIe", "compute")]
        member = (f"{of}device ", "") if many or row.name else None
        drawing.process(process, rows, count=row.num_devices, member=member)
        processes.append(process)
    drawing.process(_NETWORK, [_NETWORK])
    passes = [_draw_microbatches(drawing, cost, configuration, index, name) for index, name in enumerate(processes)]
    _, begin_s, last_s = cost.straggler(configuration)
    begin_s += configuration.compression_s
    schedule, sent_s = cost.schedule(configuration), 0.0
    if cost.problem.variant == "printed" and cost.is_homogeneous:
        schedule, sent_s = None, begin_s + last_s + prediction.breakdown_s["exposed_all_reduce"]
        drawing.add(_NETWORK, "all-reduce, as printed", begin_s + last_s, sent_s, "all_reduce")
    if schedule is not None:
        sent_s = begin_s + schedule.finish_s
        spans = _draw_transfers(drawing, cost, configuration, schedule, begin_s)
        layer_of = layers_of_gradients(cost.problem.dnn)
        for group, span in zip(configuration.fusion_groups, spans, strict=True):
            for name in dict.fromkeys(layer_of[one] for one in group.tensors):
                for _, sources in passes:
                    drawing.flow(sources.get(name), span, "gradient")
    iteration_s = prediction.iteration_time_s
    busy_s = iteration_s - prediction.breakdown_s["input_stall"]
    inputs, memory = cost.inputs(configuration), cost.memory_bytes(configuration)
    for index, process in enumerate(processes):
        ready_s = max(sent_s, passes[index][0])
        line, update_s = f"{process}: compute", cost.device_kinds[index].profile.update_s
        drawing.add(line, "update", ready_s, min(ready_s + update_s, iteration_s), "update")
        drawing.add(line, "wait for input", busy_s, iteration_s, "wait")
        draw_input(drawing, process, inputs[index], cost.strategy, busy_s, iteration_s)
        drawing.counter(process, "memory at its peak (bytes)", [(0.0, peak_memory(memory[index]))])
    return drawing.finished()


def _draw_microbatches(
    drawing: Drawing, cost: AllReduceCost, configuration: AllReduceConfiguration, index: int, process: str
) -> tuple[float, dict[str, int]]:
    """Draw the passes of one kind's micro-batches, each with its layers, the larger ones behind the others.

    Returns
    -------
    The end of the last backward pass, and the spans of its layers by name.
    """
    kinds, shares = cost.kinds_of(configuration)
    share, last = int(shares[0, index]), int(kinds.last_samples(shares)[0, index])
    number = int(kinds.microbatches(shares)[0, index]) - 1
    samples = [(share - last) * (one + 1) // number - (share - last) * one // number for one in range(number)]
    profile, row = cost.device_kinds[index].profile, f"{process}: compute"
    names = [layer.name for layer in cost.problem.dnn.layers]
    now_s, found = 0.0, dict[str, int]()
    for place, size in enumerate([*samples, last]):
        microbatch = place + 1 if number else None
        layers = list(zip(names, profile.forward(size).tolist(), strict=True))
        now_s, _ = draw_pass(drawing, row, now_s, layers, direction="forward", microbatch=microbatch)
        if place == number:
            now_s = drawing.chain(row, now_s, [("compress gradients", configuration.compression_s, "compression")])
        layers = list(zip(names, profile.backward(size).tolist(), strict=True))[::-1]
        now_s, found = draw_pass(drawing, row, now_s, layers, direction="backward", microbatch=microbatch)
    return now_s, found


def _draw_transfers(
    drawing: Drawing,
    cost: AllReduceCost,
    configuration: AllReduceConfiguration,
    schedule: FusionSchedule,
    origin_s: float,
) -> list[int | None]:
    """Draw the all-reduces of all groups, with their negotiation inside; return their spans."""
    found, negotiate_s = [], cost.problem.calibration.negotiate_s
    columns = (schedule.start_s, schedule.end_s, schedule.wait_s, schedule.size_bytes)
    rows = zip(configuration.fusion_groups, *(one.tolist() for one in columns), strict=True)
    for group, begin_s, end_s, wait_s, size_bytes in rows:
        start_s, until_s = origin_s + begin_s, origin_s + end_s
        name = f"all-reduce to {group.tensors[-1]}"
        more = {"bytes": size_bytes, "tensors": len(group.tensors), "algorithm": group.algorithm, "wait_s": wait_s}
        found.append(drawing.add(_NETWORK, name, start_s, until_s, "all_reduce", **more))
        if negotiate_s > 0:
            drawing.add(_NETWORK, "negotiate", start_s, min(start_s + negotiate_s, until_s), "negotiate", is_part=True)
    return found


def predict(problem: Problem, configuration: AllReduceConfiguration) -> Prediction:
    """Return what a configuration costs."""
    return AllReduceCost.of(problem, configuration).predict(configuration)


def explain(problem: Problem, configuration: AllReduceConfiguration, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds a configuration, and whether it fits."""
    return words.explain(AllReduceCost.of(problem, configuration), configuration, prediction)


def timeline(problem: Problem, configuration: AllReduceConfiguration, *, num_iterations: int = 1) -> Timeline:
    """Return what devices and the network do in some steady iterations."""
    cost = AllReduceCost.of(problem, configuration)
    return repeated(_drawn(cost, configuration), num_iterations, cost.predict(configuration).iteration_time_s)


def left_out(problem: Problem, given: Mapping[str, object], configuration: AllReduceConfiguration) -> tuple[str, ...]:
    """Return the micro-batches of devices that cannot hold their samples at a time."""
    steps = configuration.gradient_accumulation_steps
    if given["groups"] is not None or given["gradient_accumulation_steps"] is not None or steps == 1:
        return ()
    return (f"gradient_accumulation_steps: {steps}, the fewest that fit in memory",)


def view(cluster: Cluster, block: Mapping[str, Any], prediction: Prediction) -> FamilyView:
    """Return what a configuration's document and its prediction show."""
    placement = partial(_placement, cluster, block, prediction.details)
    groups, rows = block.get("fusion_groups"), prediction.details.get("schedule")
    if groups is None:
        return FamilyView(placement=placement)
    if not groups or not rows:
        return FamilyView(placement=placement, lines=["No gradients to exchange."], told=None)
    both = list(zip(groups, rows, strict=True))
    return FamilyView(
        placement=placement,
        blocks=lambda: [_fusion_chart(both, prediction.details)],
        lines=_fusion_lines(both, prediction),
        told=None,
    )


def _placement(cluster: Cluster, block: Mapping[str, Any], details: Mapping[str, Any]) -> Placement:
    """Return a replica of the whole network on each device, machines in the order of the ring."""
    role = Role(label="R", words="a replica of the whole network; all-reduces add up the gradients of all", colour=0)
    if "groups" in block:
        machines = {
            name: (one["machines"], one["devices_per_machine"], f"replica, {one['batch_per_device']} samples")
            for name, one in block["groups"].items()
        }
        return replicas_on(cluster, machines, role)
    named, left, each = block.get("machines"), block["num_machines"], block["devices_per_machine"]
    machines = {}
    for group in routes_of(cluster).order:
        count = 0 if named and group.name not in named else min(left, group.count)
        left -= count
        if count:
            words = f"replica, {details.get('batch_per_device', '?')} samples"
            machines[group.name] = (count, min(each, group.devices_per_machine), words)
    return replicas_on(cluster, machines, role)


def _fusion_chart(both: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], details: Mapping[str, Any]) -> Gantt:
    """Return the gradients' timeline: when each group is ready, and when it is sent."""
    shown, listed = thinned(both, _MOST_GROUPS), thinned(both, _MOST_LISTED)
    names = []
    kinds: dict[str, list[tuple[int, float, float, str]]] = {"ready, waits": [], "all-reduce": []}
    for index, (group, row) in enumerate(shown):
        more = f" + {len(group['tensors']) - 1}" if len(group["tensors"]) > 1 else ""
        names.append(f"{group['tensors'][-1]}{more} ({size_words(row['size_bytes'])})")
        if row["start_s"] > row["ready_s"]:
            kinds["ready, waits"].append((index, row["ready_s"], row["start_s"], f"{names[index]} waits"))
        kinds["all-reduce"].append((index, row["start_s"], row["end_s"], f"{names[index]} is sent"))
    table = Table(
        caption="Fusion groups in the order in which they are sent",
        columns=("sent after the gradient of", "gradients", "algorithm", "size", "ready", "from", "to"),
        rows=[
            (
                short(str(group["tensors"][-1]), 80),
                str(len(group["tensors"])),
                str(group["algorithm"]),
                size_words(row["size_bytes"]),
                *(time_words(row[key]) for key in ("ready_s", "start_s", "end_s")),
            )
            for group, row in listed
        ],
        numbers=(1, 3, 4, 5, 6),
        note=few(len(both), len(listed), "groups", "--json has all of them"),
    )
    last_s = max(row["end_s"] for _, row in both)
    return Gantt(
        caption="Fusion groups over the gradients' timeline",
        alt=f"Timeline of {many(len(shown), 'fusion group')}: each waits until it is ready, then for "
        f"the channel; the last ends after {time_words(last_s)}.",
        names=names,
        kinds=kinds,
        title="time since the backward pass began",
        marks={"end of the backward pass": details["last_backward_s"]} if "last_backward_s" in details else {},
        table=table,
        note=few(len(both), len(shown), "groups", "the table has more"),
    )


def _fusion_lines(both: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], prediction: Prediction) -> list[str]:
    """Return the groups in the order in which they are sent, a line each."""
    parts = ", ".join(
        f"{term_words(name)} {time_words(seconds)}" for name, seconds in prediction.communication_s.items() if seconds
    )
    size = size_words(prediction.details["gradient_bytes"])
    lines = [
        f"{len(both)} all-reduce{'s' * (len(both) > 1)} of {size} in all, hidden or not: {parts}",
        "  send after gradient of     carrying                          size        from         to",
    ]
    rows = []
    for group, row in both:
        tensors = group["tensors"]
        carried = f"{len(tensors)} gradient{'s' * (len(tensors) > 1)} by {group['algorithm']}"
        size, start, end = size_words(row["size_bytes"]), time_words(row["start_s"]), time_words(row["end_s"])
        rows.append(f"  {cut(tensors[-1], 26):26} {cut(carried, 30):30} {size:>10} {start:>10} {end:>10}")
    return [*lines, *first_lines(rows, _MOST_LINES)]


# --- Its search, imported when it is asked for: what costs a given plan needs no solver


def search(problem: Problem, search: Search) -> Plan:
    """Return the best plan of the family; see :class:`planner.families.Family`."""
    from planner.families.all_reduce.search import plan  # noqa: PLC0415

    return plan(problem, search)


def least_by_count(problem: Problem, weight_s: Floats, limit_s: Floats, search: Search) -> CountBounds | None:
    """Return what no plan beats by the number of equal machines that it uses, all numbers at once."""
    from planner.families.all_reduce import search as its  # noqa: PLC0415

    return its.least_by_count(problem, weight_s, limit_s, search)


def least_parts_s(
    problem: Problem, *, enough_s: float, within_s: float, fastest_s: float, machines: Sequence[int]
) -> Floats | None:
    """Return device-seconds that a training takes at least, in company of other kinds of machines."""
    from planner.families.all_reduce import search as its  # noqa: PLC0415

    return its.least_parts_s(problem, enough_s, within_s, machines)


def least_beside_usd(
    problem: Problem,
    usd_per_s: Mapping[str, float],
    more_usd_per_s: float,
    within_s: float,
    most_usd: float,
    search: Search,
) -> float | None:
    """Return what a training costs at least on two kinds of machines at once; without a search."""
    from planner.families.all_reduce import search as its  # noqa: PLC0415

    return its.least_beside_usd(problem, usd_per_s, more_usd_per_s, within_s, most_usd)


def domain() -> str:
    """Return what the search covers, where ``predict`` accepts more."""
    return (
        "gradients grouped in the order in which they become ready; as many devices of each machine of a "
        "group, and on devices of one type as many of each machine that takes part"
    )
