"""What a plan must respect: the limits and families of a spec, and the devices that its batch is meant for."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner import data
from planner.cluster import Cluster
from planner.family_names import FAMILY_NAMES
from planner.plan import Goal
from planner.problem import Limits, Range, Training, with_batch_per_device
from planner.spec.question import RangeSpec
from planner.spec.reading import Reading

__all__ = ["excluded_of", "families_of", "fixed_of", "limits_of", "with_devices"]


def fixed_of(reading: Reading, cluster: Cluster) -> dict[str, Any]:
    """Return the pinned decisions, a device by its proper name; refuse devices and groups that are not there."""
    fixed = {key: value for key, value in reading.spec.fix.model_dump().items() if value is not None}
    devices = tuple(dict.fromkeys(group.device.name for group in cluster.machine_groups))
    if (device := fixed.get("device")) is not None and device not in devices:  # the spec's own keep their names
        fixed["device"] = reading.notes.attempt(("fix", "device"), lambda: data.device(device).name)
        if fixed["device"] not in (None, *devices):
            _refuse(reading, "device", f"the cluster has no {fixed['device']}.", device, devices)
    groups = tuple(group.name for group in cluster.machine_groups)
    if (servers := fixed.get("servers")) is not None and servers not in groups:
        _refuse(reading, "servers", f"the cluster has no group {servers!r}.", servers, groups)
    stages = {fixed[key] for key in ("num_stages", "pipeline_parallel_size") if key in fixed}
    if len(stages) > 1:
        problem = "it contradicts fix.num_stages, which means the same."
        reading.notes.fault(("fix", "pipeline_parallel_size"), problem, "Give one.", fixed["pipeline_parallel_size"])
    return fixed


def excluded_of(reading: Reading, fixed: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the excluded values, each once; refuse a value that is pinned, too."""
    given = reading.spec.constraints.exclude.model_dump()
    excluded = {key: tuple(dict.fromkeys(values)) for key, values in given.items() if values}
    for key, values in excluded.items():
        if fixed.get(key) in values:
            what = f"fix.{key} asks for {fixed[key]}, which is excluded here."
            reading.notes.fault(("constraints", "exclude", key), what, "Give one of both.", fixed[key])
    return excluded


def _refuse(reading: Reading, key: str, problem: str, given: str, known: Sequence[str]) -> None:
    """Note that a pin names what is not there, and what there is."""
    reading.notes.fault(("fix", key), problem, f"Write one of {', '.join(known)}.", given)


def with_devices(
    reading: Reading, training: Training, cluster: Cluster, limits: Limits, fixed: Mapping[str, Any], goal: Goal
) -> Training:
    """Return the training with the devices that a batch per device is meant for; refuse a trivial question."""
    given, batch = reading.spec.constraints, training.batch_per_device
    if batch is None or training.max_global_batch_size is not None:
        return training
    is_open = any(one is not None and one.exactly is None for one in (given.devices, given.machines))
    if is_open and goal.name == "iteration_time" and "num_devices" not in fixed:
        name = "machines" if given.devices is None or given.devices.exactly is not None else "devices"
        problem = "with a fixed batch per device, fewer devices are trivially fastest per iteration."
        mend = "Ask for epoch_time, fix dnn.global_batch, or say how many exactly."
        reading.notes.fault(("constraints", name), problem, mend)
        return training
    meant = with_batch_per_device(training, batch, cluster, limits, fixed)
    if meant.num_devices is None:
        whole = meant.global_batch_size or 0
        reading.notes.assumptions.append(
            f"global batch: {whole}, {batch} samples for each of {whole // batch} unequal devices; how many of them "
            f"work, and on which shares, is planned"
        )
    return meant


def limits_of(reading: Reading, cluster: Cluster, training: Training) -> Limits:
    """Return the limits; refuse those that no plan can meet."""
    given = reading.spec.constraints
    devices, machines = _range(given.devices), _range(given.machines)
    for name, wanted, most in (
        ("devices", devices, cluster.num_devices),
        ("machines", machines, cluster.num_machines),
    ):
        if wanted.least > most:
            what = f"at least {wanted.least} are asked for, and the cluster has {most}."
            reading.notes.fault(("constraints", name), what, "Ask for fewer, or add machines.", wanted.least)
    if given.deadline is not None and training.dataset_samples is None:
        reading.notes.fault(
            ("constraints", "deadline"), "a deadline needs the size of the data set.", "Add dnn.dataset_samples."
        )
    return Limits(
        devices=devices,
        machines=machines,
        memory_per_device_bytes=given.memory_per_device,
        deadline_s=given.deadline,
        max_staleness=float("inf") if given.max_staleness == "unbounded" else given.max_staleness,
    )


def families_of(reading: Reading) -> tuple[str, ...]:
    """Return the families that may answer; refuse to forbid all that are asked for."""
    asked = reading.spec.families or FAMILY_NAMES
    forbidden = reading.spec.constraints.forbidden_families
    if not (allowed := tuple(name for name in asked if name not in forbidden)):
        reading.notes.fault(
            ("constraints", "forbidden_families"), f"no family is left of {', '.join(asked)}.", "Allow one."
        )
    return allowed


def _range(given: RangeSpec | None) -> Range:
    """Return the range of a constraint; everything where there is none."""
    if given is None:
        return Range()
    if given.exactly is not None:
        return Range(least=given.exactly, most=given.exactly)
    return Range(least=given.at_least or 1, most=given.at_most)
