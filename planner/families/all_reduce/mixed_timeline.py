"""An all-reduce configuration of unlike devices as a timeline: a process for each kind, one for the network."""

from planner.families.all_reduce.configuration import AllReduceConfiguration, GroupShare
from planner.families.all_reduce.mixed import MixedCost
from planner.families.all_reduce.timeline import draw_microbatches, draw_transfers
from planner.families.timeline_drawing import Drawing, draw_input, layers_of_gradients, peak_memory
from planner.timeline import Timeline

__all__ = ["timeline"]

_NETWORK = "network"


def timeline(cost: MixedCost, configuration: AllReduceConfiguration) -> Timeline:
    """Return what each kind of device and the network do in one iteration.

    It starts for all at the same time, and ends for all when the slowest has updated and its input has come.
    """
    drawing, prediction = Drawing(), cost.predict(configuration)
    by_name = {one.name: one for one in configuration.groups}
    processes = [_process(drawing, by_name[name]) for name in cost.names]
    drawing.process(_NETWORK, [_NETWORK])
    ends_s, sources = _draw_passes(drawing, cost, configuration, processes)
    sent_s = _draw_network(drawing, cost, configuration, sources)
    iteration_s = prediction.iteration_time_s
    busy_s = iteration_s - prediction.breakdown_s["input_stall"]
    kinds, memory = cost.kinds, cost.memory_bytes(configuration)
    for index, process in enumerate(processes):
        begin_s = max(sent_s, ends_s[index])
        row, update_s = f"{process}: compute", float(kinds.update_s[index])
        drawing.add(row, "update", begin_s, min(begin_s + update_s, iteration_s), "update")
        drawing.add(row, "wait for input", busy_s, iteration_s, "wait")
        draw_input(drawing, process, cost.inputs(configuration)[index], cost.strategy, busy_s, iteration_s)
        drawing.counter(process, "memory at its peak (bytes)", [(0.0, peak_memory(memory[index]))])
    return drawing.finished()


def _process(drawing: Drawing, one: GroupShare) -> str:
    """Announce the devices of a group; return the process's name."""
    many = one.num_devices > 1
    name = f"{one.name}: each of {one.num_devices} devices" if many else f"{one.name}: the device"
    rows = [f"{name}: {row}" for row in ("disk", "decode", "PCIe", "compute")]
    drawing.process(name, rows, count=one.num_devices, member=(f"{one.name}: device ", ""))
    return name


def _draw_passes(
    drawing: Drawing, cost: MixedCost, configuration: AllReduceConfiguration, processes: list[str]
) -> tuple[list[float], list[dict[str, int]]]:
    """Draw the passes of every kind; return their ends, and the spans of the last backward pass by layer."""
    kinds, shares = cost.kinds_of(configuration)
    last, steps = kinds.last_samples(shares)[0].tolist(), kinds.microbatches(shares)[0].tolist()
    compression = configuration.compression
    names = [layer.name for layer in cost.problem.dnn.layers]
    ends_s, sources = [], []
    for index, (process, share) in enumerate(zip(processes, shares[0].tolist(), strict=True)):
        profile = cost.problem.profiles[cost.groups[index].device.name]
        left, number = share - last[index], steps[index] - 1
        earlier = [left * (one + 1) // number - left * one // number for one in range(number)]
        end_s, found = draw_microbatches(
            drawing,
            f"{process}: compute",
            names,
            (profile.forward_s, profile.backward_s),
            [*earlier, last[index]],
            compression_s=0.0 if compression is None else float(compression.time_s),
        )
        ends_s.append(end_s)
        sources.append(found)
    return ends_s, sources


def _draw_network(
    drawing: Drawing, cost: MixedCost, configuration: AllReduceConfiguration, sources: list[dict[str, int]]
) -> float:
    """Draw the all-reduces, with an arrow from each kind's gradients; return the end of the last, 0 without any."""
    schedule = cost.schedule(configuration)
    if schedule is None:
        return 0.0
    kinds, shares = cost.kinds_of(configuration)
    slowest, compression = cost.straggler(configuration), configuration.compression
    origin_s = float(kinds.computed_s(shares)[0, slowest])
    origin_s -= float(kinds.backward_s[slowest] * kinds.last_samples(shares)[0, slowest])
    origin_s += 0.0 if compression is None else float(compression.time_s)
    negotiate_s = cost.problem.calibration.negotiate_s
    transfers = draw_transfers(drawing, schedule, configuration.fusion_groups, origin_s, negotiate_s)
    layer_of = layers_of_gradients(cost.problem.dnn)
    for group, transfer in zip(configuration.fusion_groups, transfers, strict=True):
        for name in dict.fromkeys(layer_of[one] for one in group.tensors):
            for found in sources:
                drawing.flow(found.get(name), transfer, "gradient")
    return origin_s + schedule.finish_s
