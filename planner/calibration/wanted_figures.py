"""The figures that a plan rests on: within which range each is known, how to move it, and how to measure it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.explanations import perturb
from planner.plan import Plan
from planner.problem import Problem
from planner.units import Dimension, format_human

__all__ = ["ASSUMED", "MEASURED", "Figure", "figures_of", "range_of"]

# Factors on what is counted with, by what was measured. Assumed: links reach 60 to 110 % of what they are sold by (an
# all-reduce of large messages seldom reaches less, see docs/accuracy.md), a device 60 to 160 % of the speed that a
# utilisation of a half gives (30 to 80 % of its peak), start-ups four times as long, input 70 to 140 %.
ASSUMED: Mapping[str, tuple[float, float]] = {
    "network": (0.6, 1.1),
    "inside": (0.6, 1.1),
    "device": (0.6, 1.6),
    "start": (0.5, 4.0),
    "input": (0.7, 1.4),
    "memory": (0.9, 1.0),
}
# What a measurement leaves open: runs of one day and the next differ by so much.
MEASURED: Mapping[str, tuple[float, float]] = {
    "network": (0.95, 1.05),
    "inside": (0.95, 1.05),
    "device": (0.97, 1.03),
    "start": (0.8, 1.25),
    "input": (0.7, 1.4),
    "memory": (0.9, 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of a question: how to move it by a factor, and how to measure it."""

    name: str
    kind: str
    words: str
    moved: Callable[[float], Problem]
    is_measured: bool
    how: str


def range_of(figure: Figure) -> tuple[float, float]:
    """Return the range of a figure that the user gave none for."""
    return (MEASURED if figure.is_measured else ASSUMED)[figure.kind]


def figures_of(problem: Problem, plan: Plan) -> list[Figure]:
    """Return the figures that a question rests on; those that can play no part are left out."""
    devices = f"{_devices(plan)} devices"
    is_linked = problem.are_links_calibrated
    found = []
    if problem.cluster.graph.number_of_edges():
        found.append(
            Figure(
                name="network",
                kind="network",
                words="what links between machines reach",
                moved=lambda factor: perturb.wider_network(problem, factor),
                is_measured=is_linked,
                how=f"time all-reduces of {_sizes(plan)} over {devices}, e.g. with nccl-tests: planner calibrate reads "
                f"its output",
            )
        )
    if any(group.inside is not None and group.devices_per_machine > 1 for group in problem.cluster.machine_groups):
        found.append(
            Figure(
                name="inside",
                kind="inside",
                words="what links inside a machine reach",
                moved=lambda factor: perturb.wider_inside(problem, factor),
                is_measured=is_linked,
                how=f"time all-reduces of {_sizes(plan)} inside one machine: planner calibrate reads nccl-tests",
            )
        )
    found += [_device(problem, name) for name in problem.profiles]
    if problem.cluster.num_devices > 1:
        found.append(
            Figure(
                name="start",
                kind="start",
                words="start-up of transfers",
                moved=lambda factor: perturb.faster_start(problem, factor),
                is_measured=is_linked,
                how=f"time all-reduces of 1 KB to 64 KB over {devices}: planner calibrate reads nccl-tests",
            )
        )
    return found + _rest(problem, plan)


def _device(problem: Problem, name: str) -> Figure:
    """Return the speed of one type of device."""
    return Figure(
        name=f"device:{name}",
        kind="device",
        words=f"the speed of {name}",
        moved=lambda factor: perturb.faster_devices(problem, factor, [name]),
        is_measured=problem.is_computation_measured,
        how=f"time forward and backward of each layer on one {name} (planner import --template, or a trace of "
        f"PyTorch's profiler)",
    )


def _rest(problem: Problem, plan: Plan) -> list[Figure]:
    """Return input and memory, where they can play a part."""
    found = []
    groups = problem.cluster.machine_groups
    rates = [rate for group in groups for rate in (group.host_link_bytes_per_s, group.decode_samples_per_s)]
    if any(math.isfinite(rate) for rate in rates) or any(group.storage is not None for group in groups):
        found.append(
            Figure(
                name="input",
                kind="input",
                words="reading, decoding and copying of samples",
                moved=lambda factor: perturb.faster_input(problem, factor),
                is_measured=False,
                how="time a loader that reads, decodes and copies, and trains nothing",
            )
        )
    total = plan.prediction.memory_bytes.get("total")
    if total and any(math.isfinite(group.device.memory_bytes) for group in groups):
        found.append(
            Figure(
                name="memory",
                kind="memory",
                words="room in a device's memory",
                moved=lambda factor: perturb.more_memory(problem, factor),
                is_measured=False,
                how=f"run one iteration of the plan and read the peak of allocated memory (predicted: "
                f"{format_human(total, Dimension.DATA)})",
            )
        )
    return found


def _devices(plan: Plan) -> int:
    """Return the devices of a plan."""
    block = plan.configuration.to_document()
    return int(getattr(plan.configuration, "num_devices", block.get("num_devices", 2)))


def _sizes(plan: Plan) -> str:
    """Return the sizes of a plan's messages, where it says them."""
    groups = plan.configuration.to_document().get("fusion_groups") or ()
    sizes = sorted(group["size_bytes"] for group in groups)
    if not sizes:
        return "1 MB to 1 GB"
    low, high = (format_human(size, Dimension.DATA) for size in (sizes[0], sizes[-1]))
    return low if low == high else f"{low} to {high}"
