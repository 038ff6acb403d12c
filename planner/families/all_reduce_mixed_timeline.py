"""An all-reduce configuration of unlike devices as a timeline: a row for each kind of device, one for the network."""

from collections.abc import Iterator
from dataclasses import replace

from planner.families.all_reduce_configuration import AllReduceConfiguration, GroupShare
from planner.families.all_reduce_mixed import MixedCost
from planner.timeline import Flow, Span, Timeline

__all__ = ["timeline"]

_NETWORK = "network"


def timeline(cost: MixedCost, configuration: AllReduceConfiguration, *, num_iterations: int = 3) -> Timeline:
    """Return what each kind of device and the network do when, in steady iterations.

    Each iteration starts when the one before it has ended on the slowest device, as the prediction counts it. All
    micro-batches but the last, and compressing, are drawn as one span before the last one; input is not drawn: it only
    delays the next iteration.
    """
    period_s = cost.predict(configuration).iteration_time_s
    rows = {one.name: _row(one) for one in configuration.groups}
    spans: list[Span] = []
    flows: list[Flow] = []
    for iteration in range(num_iterations):
        first = len(spans)
        spans += [
            replace(span, end_s=min(span.end_s, (iteration + 1) * period_s))  # by rounding they could end after it
            for span in _iteration(cost, configuration, rows, iteration, iteration * period_s)
        ]
        flows += _flows(configuration, spans, first)
    return Timeline(spans=tuple(spans), flows=tuple(flows), rows=(*rows.values(), _NETWORK))


def _row(one: GroupShare) -> str:
    """Return the name of a group's row."""
    return f"{one.name}: each of {one.num_devices} devices" if one.num_devices > 1 else f"{one.name}: the device"


def _iteration(
    cost: MixedCost, configuration: AllReduceConfiguration, rows: dict[str, str], iteration: int, start_s: float
) -> Iterator[Span]:
    """Yield the spans of one iteration: all kinds of device, then the network, then the updates."""
    kinds, shares = cost.kinds_of(configuration)
    samples, computed_s = kinds.last_samples(shares)[0].tolist(), kinds.computed_s(shares)[0].tolist()
    compression = configuration.compression
    compressed_s = start_s + (0.0 if compression is None else float(compression.time_s))
    done_s: list[float] = []
    for index, name in enumerate(cost.names):
        layers = _layers(cost, index, samples[index])
        last_s = sum(seconds for _, seconds in layers)
        now_s = compressed_s + max(0.0, computed_s[index] - last_s)
        if now_s > start_s:
            text = "earlier micro-batches" if compression is None else "compressing, earlier micro-batches"
            yield _span(rows[name], text, start_s, now_s, iteration)
        for layer, seconds in layers:
            if seconds > 0:
                yield _span(rows[name], layer, now_s, now_s + seconds, iteration)
            now_s += seconds
        done_s.append(now_s)
    sent_s = start_s
    schedule = cost.schedule(configuration)
    if schedule is not None:
        slowest = cost.straggler(configuration)
        origin_s = compressed_s + computed_s[slowest] - float(kinds.backward_s[slowest] * samples[slowest])
        times = zip(configuration.fusion_groups, schedule.start_s.tolist(), schedule.end_s.tolist(), strict=True)
        for group, begin_s, end_s in times:
            if end_s > begin_s:
                name = f"all-reduce to {group.tensors[-1]}"
                yield _span(_NETWORK, name, origin_s + begin_s, origin_s + end_s, iteration, kind="communication")
            sent_s = max(sent_s, origin_s + end_s)
    for index, name in enumerate(cost.names):
        if kinds.update_s[index] > 0:
            begin_s = max(sent_s, done_s[index])
            yield _span(rows[name], "update", begin_s, begin_s + float(kinds.update_s[index]), iteration)


def _layers(cost: MixedCost, index: int, samples: int) -> list[tuple[str, float]]:
    """Return the layers of a kind's last micro-batch, forward and then backward, with their seconds."""
    profile = cost.problem.profiles[cost.groups[index].device.name]
    names = [layer.name for layer in cost.problem.dnn.layers]
    forward = [(f"forward {name}", float(s) * samples) for name, s in zip(names, profile.forward_s, strict=True)]
    backward = [(f"backward {name}", float(s) * samples) for name, s in zip(names, profile.backward_s, strict=True)]
    return [*forward, *reversed(backward)]


def _flows(configuration: AllReduceConfiguration, spans: list[Span], first: int) -> Iterator[Flow]:
    """Yield an arrow from every kind's last backward span before an all-reduce to it."""
    sends = [index for index in range(first, len(spans)) if spans[index].row == _NETWORK]
    for send in sends:
        before: dict[str, int] = {}
        for index in range(first, len(spans)):
            span = spans[index]
            if span.name.startswith("backward ") and span.end_s <= spans[send].start_s:
                before[span.row] = index
        yield from (Flow(source=source, target=send) for source in before.values())


def _span(row: str, name: str, start_s: float, end_s: float, iteration: int, *, kind: str = "computation") -> Span:
    """Return a span, its name with the iteration's number."""
    return Span(row=row, name=f"{name} #{iteration + 1}", start_s=start_s, end_s=end_s, iteration=iteration, kind=kind)
