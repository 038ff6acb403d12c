"""What a given layout with unlike stages or unlike replicas costs, and how it is told: see docs/hybrid_mixed.md."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.hybrid.cost import HybridCost, cost_of_machines
from planner.families.hybrid.launch import launch_lines, launch_words, options, other_program
from planner.families.hybrid.launch_network import not_expressed
from planner.families.hybrid.mixed_configuration import MixedConfiguration
from planner.families.hybrid.mixed_cost import MixedCost
from planner.families.hybrid.ranges import outside_words
from planner.models.layouts import Ints, Layouts
from planner.models.transformer_memory import TERMS
from planner.models.transformer_mixed import MixedStep
from planner.models.transformer_operators import flop_per_sample
from planner.models.transformer_time import PARTS
from planner.plan import Prediction
from planner.problem import Problem
from planner.units import Dimension, format_human

__all__ = ["Given", "explain", "imbalance_words", "predict", "reserve_words", "warnings"]

_MOST_STAGES = 8  # whose room is printed one by one
_MEASURED = (
    "layouts over several kinds are held against 12 measured steps of one program: ranks agree to 0.9 and times to a "
    "tenth, once its launch floor and its slower devices' shares are fitted to other rows (docs/hybrid_mixed.md)"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Given:
    """A configuration with its costs: the team, its columns, and the step."""

    mixed: MixedCost
    columns: dict[str, Ints]
    step: MixedStep
    numbers: Ints | None

    @classmethod
    def of(cls, problem: Problem, chosen: MixedConfiguration) -> "Given":
        """Return a configuration's costs."""
        names: list[str | None] = [*chosen.groups] or [None]
        costs = tuple(cost_of_machines(problem, name, chosen.global_batch_size) for name in names)
        mixed = MixedCost(costs, is_staged=not chosen.replicas)
        columns = {name: np.array([code]) for name, code in chosen.codes().items()}
        if chosen.replicas:
            parts = [one.data for one in chosen.replicas]
        else:
            parts = [sum(stage.machines == name for stage in chosen.stages) for name in names]
        key = "stages" if mixed.is_staged else "data"
        columns |= {f"{key}_{index}": np.array([part]) for index, part in enumerate(parts)}
        layers = np.array([[one.layers] for one in chosen.stages])
        numbers = np.array([[one.num_microbatches] for one in chosen.replicas]) if chosen.replicas else None
        return cls(
            mixed=mixed, columns=columns, step=mixed.step(mixed.placed(columns), layers, numbers), numbers=numbers
        )

    def class_layouts(self, index: int) -> Layouts:
        """Return the layout as a class of replicas sees it: with that class's micro-batches."""
        layouts = self.mixed.layouts(self.columns)
        arrays = dict(layouts.arrays())
        arrays["num_microbatches"] = self.step.classes[index].num_microbatches
        return Layouts(**arrays)  # type: ignore[arg-type]  # arrays of both kinds, by the name of the field


def predict(problem: Problem, configuration: MixedConfiguration) -> Prediction:
    """Return what a layout costs: seconds by part, and bytes of the device with least room.

    Parts of computing are those of the slowest stage of the kind that ends last.
    """
    given = Given.of(problem, configuration)
    step = given.step
    total_s = step.total_s
    stall_s = float(given.mixed.stalls_s(given.columns, total_s, given.numbers)[0])
    found = step.parts()
    parts = {name: float(found[name][0]) for name in PARTS} | {"input_stall": stall_s}
    iteration_s = sum(parts.values())
    samples, epochs = problem.training.dataset_samples, problem.training.epochs
    epoch_s = None if samples is None else iteration_s * samples / configuration.global_batch_size
    exchange = {name: parts[name] for name in ("tensor", "expert", "context", "pipeline", "data")}
    rows = list(_stage_rows(given))
    fullest = max(rows, key=lambda row: (row["memory_bytes"] / row["limit_bytes"], row["memory_bytes"]))
    return Prediction(
        iteration_time_s=iteration_s,
        epoch_time_s=epoch_s,
        training_time_s=None if epoch_s is None or epochs is None else epoch_s * epochs,
        breakdown_s=parts,
        communication_s=exchange,
        scaling_factor=parts["compute"] / iteration_s,
        communication_to_computation=sum(exchange.values()) / parts["compute"],
        memory_bytes={
            **fullest["terms_bytes"],
            "total": fullest["memory_bytes"],
            "limit": fullest["limit_bytes"],
        },
        relative_error=None,
        details=_details(given, configuration, rows, parts, iteration_s),
    )


def _stage_rows(given: Given) -> Iterator[dict[str, Any]]:
    """Yield every stage of every class of replicas: where it stands, what it holds and takes."""
    step, mixed = given.step, given.mixed
    for index, one in enumerate(step.classes):
        held = mixed.memory.stage_bytes(given.class_layouts(index), step.layers)
        forward, backward = step.passes_s(one)
        down, up = step.sends_s(one)
        for stage, kind in enumerate(one.kinds[:, 0].tolist()):
            limit, total = float(mixed.limits_bytes[kind]), float(held["total"][stage, 0])
            yield {
                "machines": mixed.names[kind],
                "layers": int(step.layers[stage, 0]),
                "memory_bytes": total,
                "limit_bytes": limit,
                "room_bytes": limit - total if limit < float("inf") else None,
                "terms_bytes": {name: float(held[name][stage, 0]) for name in TERMS},
                "forward_s": float(forward[stage, 0] - down[stage, 0]),
                "backward_s": float(backward[stage, 0] - up[stage, 0]),
                "sent_forward_s": float(down[stage, 0]),
                "sent_backward_s": float(up[stage, 0]),
                "exchange_s": float(step.exposed_s[stage, 0]),
                "optimizer_s": float(step.optimizer_s[stage, 0]),
            }


def _details(
    given: Given,
    chosen: MixedConfiguration,
    rows: list[dict[str, Any]],
    parts: dict[str, float],
    iteration_s: float,
) -> dict[str, Any]:
    """Return the family's own figures."""
    mixed, batch = given.mixed, chosen.global_batch_size
    network, devices = mixed.transformer, list(chosen.devices_of.values())
    machines = [-(-count // one.group.devices_per_machine) for one, count in zip(mixed.costs, devices, strict=True)]
    peak = sum(count * one.rates.peak_flop_per_s for one, count in zip(mixed.costs, devices, strict=True))
    flop = batch * flop_per_sample(network).total_flop
    return {
        "batch_per_device": -(-batch // chosen.num_devices),
        "global_batch_size": batch,
        "num_devices": chosen.num_devices,
        "num_machines": sum(machines),
        "num_microbatches": chosen.num_microbatches,
        "staleness": 0,
        "software": mixed.costs[0].program,
        "bubble": parts["bubble"] / (iteration_s - parts["bubble"]),
        "tokens_per_s": batch * network.sequence_length / iteration_s,
        "flop_utilisation": flop / iteration_s / peak,
        "is_calibrated": all(one.is_calibrated for one in mixed.costs),
        "class_s": [float(seconds[0]) for seconds in given.step.class_steps_s],
        "stages": rows,
        "options": list(options(network, chosen, mixed.costs[0].program)),
        "launch": _launch(mixed.costs, chosen),
    }


def _launch(costs: tuple[HybridCost, ...], chosen: MixedConfiguration) -> list[str]:
    """Return the command that starts a layout; none where Megatron-LM cannot."""
    if chosen.replicas or not_expressed(costs[0].transformer) or not _is_one_size(costs):
        return []
    return list(launch_lines(costs[0].transformer, chosen, **_launched(costs)))


def _is_one_size(costs: tuple[HybridCost, ...]) -> bool:
    """Whether the machines of all kinds have as many devices."""
    return len({one.group.devices_per_machine for one in costs}) == 1


def _launched(costs: tuple[HybridCost, ...]) -> dict[str, Any]:
    """Return what a launcher is told beside network and layout."""
    return {
        "program": costs[0].program,
        "dtype": costs[0].problem.training.dtype,
        "devices_per_machine": costs[0].group.devices_per_machine,
    }


# -- in words --------------------------------------------------------------------------------------------------------


def explain(problem: Problem, configuration: MixedConfiguration, prediction: Prediction) -> tuple[str, ...]:
    """Return what stands where, how long each kind takes, what room is left, and how the layout is launched."""
    given = Given.of(problem, configuration)
    rows, details = prediction.details["stages"], prediction.details
    lines = [configuration.stage_words]
    if configuration.replicas:
        words = [
            f"{one.data} on {one.machines} do {one.num_microbatches} micro-batches each in "
            f"{format_human(seconds, Dimension.TIME)}"
            for one, seconds in zip(configuration.replicas, details["class_s"], strict=True)
        ]
        lines.append(f"replicas: {'; '.join(words)}")
    else:
        lines.append(_slowest_line(rows))
    lines.append(
        f"{details['tokens_per_s']:,.0f} tokens/s; {details['flop_utilisation']:.0%} of the devices' peak goes into "
        f"the network's own FLOP"
    )
    lines += imbalance_words(given.mixed.costs[0])
    lines += _room_lines(rows, prediction.memory_bytes.get("reserve", 0.0))
    lines += _launch_lines(given, configuration)
    lines += warnings(given.mixed, configuration)
    if len(given.mixed.costs) > 1:
        lines.append(_MEASURED)
    return tuple(lines)


def _slowest_line(rows: list[dict[str, Any]]) -> str:
    """Return what each kind's stages take for a micro-batch."""
    both = [row["forward_s"] + row["backward_s"] + row["sent_forward_s"] + row["sent_backward_s"] for row in rows]
    slowest = max(range(len(rows)), key=lambda index: both[index])
    least, most = (format_human(one(both), Dimension.TIME) for one in (min, max))
    where = rows[slowest]["machines"]
    place = f"stage {slowest + 1}" + (f" on {where}" if where is not None else "")
    return f"a micro-batch takes a stage {least} to {most}; {place} is the slowest"


def imbalance_words(cost: HybridCost) -> list[str]:
    """Return a line on experts that get more tokens than others; none where all get as many."""
    if cost.expert_imbalance <= 1:
        return []
    return [
        f"the rank whose experts have most tokens is taken to have {cost.expert_imbalance:g} times the mean "
        f"(calibration.expert_imbalance)"
    ]


def reserve_words(costs: Sequence[HybridCost]) -> list[str]:
    """Return a line where nothing is kept free on a device."""
    if all(one.reserve_bytes for one in costs):
        return []
    return [
        "calibration.memory_reserve is 0: the device's context, buffers of the communication library and pieces of "
        "free memory take some GiB more"
    ]


def _room_lines(rows: list[dict[str, Any]], reserve_bytes: float) -> list[str]:
    """Return the room on the device with least, or that it does not fit."""
    rooms = [row["room_bytes"] for row in rows if row["room_bytes"] is not None]
    if not rooms:
        return []
    least = min((row for row in rows if row["room_bytes"] is not None), key=lambda row: float(row["room_bytes"]))
    where = "" if least["machines"] is None else f" of {least['machines']}"
    if least["room_bytes"] < 0:
        missing = format_human(-least["room_bytes"], Dimension.DATA, 4)
        return [f"it does not fit: a device{where} would hold {missing} more than it may"]
    kept = f", beside a reserve of {format_human(reserve_bytes, Dimension.DATA)}" if reserve_bytes else ""
    if len(rows) <= _MOST_STAGES:
        words = ", ".join(format_human(one, Dimension.DATA) for one in rooms)
        return [f"room on a device, stage by stage{kept}: {words}"]
    return [f"room on a device{kept}: at least {format_human(least['room_bytes'], Dimension.DATA)}{where}"]


def _launch_lines(given: Given, chosen: MixedConfiguration) -> list[str]:
    """Return how a layout is launched, or what Megatron-LM lacks for it."""
    costs = given.mixed.costs
    if other := other_program(costs[0].program):
        return [other]
    if chosen.replicas:
        return [
            "Megatron-LM gives every replica as many micro-batches, so that it cannot launch this layout: a script of "
            "your own must give each replica its own number, and weigh its gradients by its samples; the other "
            f"decisions, in its words: {' '.join(options(costs[0].transformer, chosen))}"
        ]
    lines = []
    if len(costs) > 1:
        names = ", then ".join(str(one) for one in given.mixed.names)
        lines.append(f"ranks are numbered machine by machine, those of {names}: number the machines in that order")
    if not _is_one_size(costs):
        counts = ", ".join(f"{one.group.devices_per_machine} of {one.machines}" for one in costs)
        return [
            *lines,
            f"machines have unlike numbers of devices ({counts}): start each kind with its own --nproc-per-node",
        ]
    return [*lines, *launch_words(costs[0].transformer, chosen, **_launched(costs))]


def warnings(mixed: MixedCost, chosen: HybridConfiguration) -> list[str]:
    """Return what makes the figures doubtful: of another device, memory not known, outside of ranges."""
    found = []
    for name in dict.fromkeys(one.group.device.name for one in mixed.costs if not one.is_calibrated):
        found.append(f"{name} is uncalibrated for transformers: the fitted efficiencies are those of another device")
    if any(limit == float("inf") for limit in mixed.limits_bytes):
        found.append("the memory of a device is not known, so that any layout fits")
    return [*found, *dict.fromkeys(line for one in mixed.costs for line in outside_words(one, chosen))]
