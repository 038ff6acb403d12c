"""An all-reduce configuration as a timeline: the S-SGD task graph of a few iterations, scheduled on its resources."""

from math import ceil

from planner.cost import Wait
from planner.families.all_reduce_cost import AllReduceConfiguration, AllReduceCost
from planner.models.ssgd_dag import timeline as draw
from planner.models.ssgd_equations import AllReduce, Iteration, Prefetch
from planner.timeline import Timeline

__all__ = ["iteration_of", "timeline"]


def timeline(cost: AllReduceCost, configuration: AllReduceConfiguration, *, num_iterations: int = 3) -> Timeline:
    """Return what each resource does when; equal devices share one row."""
    fitted = cost.problem.calibration
    return draw(
        iteration_of(cost, configuration),
        cost.strategy,
        num_iterations=num_iterations,
        num_devices=configuration.num_devices,
        prefetch=Prefetch.PIPELINED if fitted.is_prefetch_pipelined else Prefetch.SINGLE,
    )


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
