"""An all-reduce configuration as a timeline: one steady iteration of equal devices, and of the network between them.

:func:`iteration_of` gives the same tasks to the S-SGD task graph, which schedules them by itself.
"""

from collections.abc import Sequence
from math import ceil

from planner.channel import FusionSchedule
from planner.cost import Floats, Wait
from planner.families.all_reduce.configuration import FusionGroup
from planner.families.all_reduce.cost import AllReduceConfiguration, AllReduceCost
from planner.families.timeline_drawing import Drawing, draw_input, draw_pass, layers_of_gradients, peak_memory
from planner.models.ssgd_equations import AllReduce, Iteration
from planner.timeline import Timeline

__all__ = ["draw_microbatches", "draw_transfers", "iteration_of", "timeline"]

_NETWORK = "network"


def timeline(cost: AllReduceCost, configuration: AllReduceConfiguration) -> Timeline:
    """Return what a device and the network do in one iteration; all devices do the same.

    Compressing occupies a device before its last backward pass. A transfer's span is the time in which the channel
    works for it alone; what its buffer waited before is told beside it.
    """
    setting, drawing = cost.setting_of(configuration), Drawing()
    step, read, prediction = cost.step(setting), cost.input(setting), cost.predict(configuration)
    iteration_s, stall_s = prediction.iteration_time_s, prediction.breakdown_s["input_stall"]
    process = f"each of {setting.num_devices} devices" if setting.num_devices > 1 else "the device"
    rows = [f"{process}: {row}" for row in ("disk", "decode", "PCIe", "compute")]
    member = ("device ", "") if setting.num_devices > 1 else None
    drawing.process(process, rows, count=setting.num_devices, member=member)
    drawing.process(_NETWORK, [_NETWORK])
    draw_input(drawing, process, read, cost.strategy, iteration_s - stall_s, iteration_s)
    last = ceil(setting.batch_per_device / setting.num_microbatches)
    names = [layer.name for layer in cost.problem.dnn.layers]
    end_s, sources = draw_microbatches(
        drawing,
        rows[-1],
        names,
        (cost.profile.forward_s, cost.profile.backward_s),
        [*_earlier(setting.batch_per_device - last, setting.num_microbatches - 1), last],
        compression_s=setting.compression_s,
    )
    schedule = None if cost.problem.variant == "printed" else cost.schedule(configuration)
    sent_s = end_s + sum(value for name, value in prediction.breakdown_s.items() if name.startswith("exposed_"))
    if schedule is not None:
        origin_s = end_s - step.last_backward_s
        transfers = draw_transfers(
            drawing, schedule, configuration.fusion_groups, origin_s, cost.problem.calibration.negotiate_s
        )
        layer_of = layers_of_gradients(cost.problem.dnn)
        for group, transfer in zip(configuration.fusion_groups, transfers, strict=True):
            for name in dict.fromkeys(layer_of[one] for one in group.tensors):
                drawing.flow(sources.get(name), transfer, "gradient")
    elif sent_s > end_s:
        drawing.add(_NETWORK, "all-reduce, as printed", end_s, sent_s, "all_reduce")
    pieces = [("update", step.update_s, "update"), ("wait for input", stall_s, "wait")]
    drawing.chain(rows[-1], sent_s, pieces)
    drawing.counter(process, "memory at its peak (bytes)", [(0.0, peak_memory(prediction.memory_bytes))])
    return drawing.finished()


def _earlier(samples: int, number: int) -> list[int]:
    """Return the samples of all micro-batches but the last, the larger ones behind the others."""
    return [(samples * (index + 1)) // number - (samples * index) // number for index in range(number)]


def draw_microbatches(
    drawing: Drawing,
    row: str,
    names: Sequence[str],
    per_sample_s: tuple[Floats, Floats],
    samples: Sequence[int],
    *,
    compression_s: float = 0.0,
) -> tuple[float, dict[str, int]]:
    """Draw the passes of all micro-batches, each with its layers; compressing goes before the last backward pass.

    Returns
    -------
    The end of the last backward pass, and the spans of its layers by name.
    """
    forward, backward = (one.tolist() for one in per_sample_s)
    now_s, found = 0.0, dict[str, int]()
    for index, number in enumerate(samples):
        microbatch = index + 1 if len(samples) > 1 else None
        layers = [(name, seconds * number) for name, seconds in zip(names, forward, strict=True)]
        now_s, _ = draw_pass(drawing, row, now_s, layers, direction="forward", microbatch=microbatch)
        if index == len(samples) - 1:
            now_s = drawing.chain(row, now_s, [("compress gradients", compression_s, "compression")])
        layers = [(name, seconds * number) for name, seconds in zip(names, backward, strict=True)][::-1]
        now_s, found = draw_pass(drawing, row, now_s, layers, direction="backward", microbatch=microbatch)
    return now_s, found


def draw_transfers(
    drawing: Drawing,
    schedule: FusionSchedule,
    groups: Sequence[FusionGroup],
    origin_s: float,
    negotiate_s: float,
) -> list[int | None]:
    """Draw the all-reduces of all groups, with their negotiation inside; return their spans."""
    found = []
    columns = (schedule.start_s, schedule.end_s, schedule.wait_s, schedule.size_bytes)
    for group, begin_s, end_s, wait_s, size_bytes in zip(groups, *(one.tolist() for one in columns), strict=True):
        start_s, until_s = origin_s + begin_s, origin_s + end_s
        name = f"all-reduce to {group.tensors[-1]}"
        more = {"bytes": size_bytes, "tensors": len(group.tensors), "algorithm": group.algorithm, "wait_s": wait_s}
        found.append(drawing.add(_NETWORK, name, start_s, until_s, "all_reduce", **more))
        if negotiate_s > 0:
            drawing.add(_NETWORK, "negotiate", start_s, min(start_s + negotiate_s, until_s), "negotiate", is_part=True)
    return found


def iteration_of(cost: AllReduceCost, configuration: AllReduceConfiguration) -> Iteration:
    """Return the tasks of one iteration; all micro-batches but the last are drawn as one forward task before it."""
    setting = cost.setting_of(configuration)
    step, read = cost.step(setting), cost.input(setting)
    samples = ceil(setting.batch_per_device / setting.num_microbatches)
    forward_s, backward_s = cost.profile.forward_s * samples, cost.profile.backward_s * samples
    earlier_s = max(0.0, step.computation_s - float(forward_s.sum() + backward_s.sum()))
    return Iteration(
        forward_s=(earlier_s, *forward_s.tolist()),
        backward_s=(0.0, *backward_s.tolist()),
        all_reduces=_all_reduces(cost, configuration),
        read_s=max(read.read_s, read.decode_s),
        copy_s=read.copy_s,
        update_s=step.update_s,
        names=("earlier micro-batches", *(layer.name for layer in cost.problem.dnn.layers)),
    )


def _all_reduces(cost: AllReduceCost, configuration: AllReduceConfiguration) -> tuple[AllReduce, ...]:
    """Return the groups with their durations and waits; layer 0 is the earlier micro-batches."""
    schedule = cost.schedule(configuration)
    if schedule is None:
        return ()
    layer_of = {layer.name: index + 1 for index, layer in enumerate(cost.problem.dnn.layers)}
    for layer in cost.problem.dnn.layers:
        layer_of |= {tensor.name: layer_of[layer.name] for tensor in layer.tensors}
    durations_s, waits_s = schedule.end_s - schedule.start_s, schedule.wait_s
    if cost.problem.calibration.wait is Wait.PAPER:  # the wait holds the channel
        durations_s, waits_s = durations_s + waits_s, waits_s * 0
    return tuple(
        AllReduce(
            duration_s=duration_s,
            layers=tuple(layer_of[name] for name in group.tensors),
            lag_s=wait_s,
            name=f"all-reduce to {group.tensors[-1]}",
        )
        for group, duration_s, wait_s in zip(
            configuration.fusion_groups, durations_s.tolist(), waits_s.tolist(), strict=True
        )
    )
