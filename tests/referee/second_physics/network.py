"""The network in plain Python: its gradients in ready order, and what a device keeps of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from planner.cluster import MachineGroup
from planner.cost import Profile
from planner.dnn import Layer
from planner.problem import Problem

__all__ = ["Gradient", "data_parallel_bytes", "gradients_of", "layers_bytes", "pass_s", "stall_s", "total"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """One gradient: its bytes, and the first layer whose backward pass comes before it."""

    name: str
    size_bytes: float
    layer: int


def total(numbers: Iterable[float]) -> float:
    """Return a sum, one after the other."""
    result = 0.0
    for number in numbers:
        result += float(number)
    return result


def _is_mixed(problem: Problem) -> bool:
    """Whether weights and activations are kept in 16 bits."""
    return problem.training.dtype in ("fp16", "bf16")


def gradients_of(problem: Problem) -> list[Gradient]:
    """Return the gradients in ready order: of the last layer first.

    Batch norm goes with the layer with weights before it, unless every tensor counts by itself.
    """
    number_bytes = 2 if _is_mixed(problem) else 4
    by_tensor = problem.calibration.fusion_unit == "tensor"
    rows: list[list[float]] = []
    names: list[str] = []
    for index, layer in enumerate(problem.dnn.layers):
        trained = [tensor for tensor in layer.tensors if tensor.is_trainable]
        if by_tensor:
            for tensor in trained:
                names.append(tensor.name)
                rows.append([tensor.num_elements * number_bytes, index])
        elif trained:
            size = sum(tensor.num_elements for tensor in trained) * number_bytes
            if layer.kind == "batch_norm" and rows:
                rows[-1][0] += size
            else:
                names.append(layer.name)
                rows.append([size, index])
    found = [Gradient(name=name, size_bytes=row[0], layer=int(row[1])) for name, row in zip(names, rows, strict=True)]
    return found[::-1]


def pass_s(profile: Profile, direction: str, samples: int, layers: range | None = None) -> float:
    """Return the seconds of some layers, or of all, in a pass of so many samples."""
    per_sample = getattr(profile, f"{direction}_s")
    run = range(len(per_sample)) if layers is None else layers
    points = [(0.0, 0.0)]
    for many, factors in zip(profile.together, getattr(profile, f"{direction}_factors"), strict=True):
        points.append((many, many * total(float(per_sample[index]) * float(factors[index]) for index in run)))
    for (before, before_s), (after, after_s) in pairwise(points):
        if before <= samples <= after:
            return before_s + (after_s - before_s) * (samples - before) / (after - before)
    return samples * total(float(per_sample[index]) for index in run)


def layers_bytes(problem: Problem, layers: Iterable[Layer]) -> tuple[float, float]:
    """Return what some layers keep on a device: whatever the batch, and for each sample in flight.

    Weights, gradients, fp32 master copies in mixed precision, the optimiser's state, batch-norm statistics in fp32;
    outputs that the backward pass needs.
    """
    state = {"sgd": 0, "momentum": 4, "adam": 8}[problem.training.optimizer]
    size, master = (2, 4) if _is_mixed(problem) else (4, 0)
    fixed, per_sample = 0.0, 0.0
    for layer in layers:
        for tensor in layer.tensors:
            fixed += tensor.num_elements * (2 * size + master + state if tensor.is_trainable else 4)
        per_sample += 0 if layer.is_in_place else layer.num_output_elements * size
        per_sample += layer.kept_beside_bytes * (1 if layer.kind in ("pooling", "dropout") else size / 4)
    return fixed, per_sample


def data_parallel_bytes(problem: Problem, num_samples: int) -> float:
    """Return the bytes of the whole network on one device with so many samples in flight."""
    fixed, per_sample = layers_bytes(problem, problem.dnn.layers)
    return fixed + problem.calibration.memory_reserve_bytes + num_samples * per_sample


def stall_s(
    problem: Problem,
    group: MachineGroup,
    *,
    busy_s: float,
    num_machines: int,
    devices_per_machine: int,
    batch_per_device: float,
    whole_batch: int,
) -> float:
    """Return how long the devices of a group wait for input, by the framework's overlap of reading and copying.

    ``whole_batch``: the samples that all devices together read from a store that all machines share.
    """
    read_s, decode_s, copy_s = input_s(
        problem,
        group,
        num_machines=num_machines,
        devices_per_machine=devices_per_machine,
        batch_per_device=batch_per_device,
        whole_batch=whole_batch,
    )
    is_pipelined, strategy = problem.calibration.is_prefetch_pipelined, problem.calibration.strategy
    reading_s = max(read_s, decode_s) if is_pipelined else read_s + decode_s
    if strategy == "caffe_mpi":  # reads and copies ahead
        bound_s = max(reading_s, copy_s) if is_pipelined else reading_s + copy_s
        return max(0.0, bound_s - busy_s)
    if strategy == "naive":
        return reading_s + copy_s
    late_s = reading_s - busy_s  # the others read ahead, and copy when the work is done
    return max(copy_s, late_s) if is_pipelined else copy_s + max(0.0, late_s)


def input_s(
    problem: Problem,
    group: MachineGroup,
    *,
    num_machines: int,
    devices_per_machine: int,
    batch_per_device: float,
    whole_batch: int,
) -> tuple[float, float, float]:
    """Return seconds of reading, decoding and copying one iteration's samples."""
    training, profile = problem.training, problem.profiles[group.device.name]
    on_machine = batch_per_device * devices_per_machine
    read_s = 0.0
    if profile.read_s is not None and not (group.storage is not None and training.is_sample_size_given):
        read_s = profile.read_s * batch_per_device
    elif group.storage is not None:
        readers = 1
        if group.storage.is_shared:
            readers = min(num_machines, group.storage.shared_by or num_machines)
        samples = on_machine * readers
        if group.storage.is_shared and group.storage.shared_by is None:
            samples = whole_batch
        read_s = samples * training.sample_bytes / group.storage.bandwidth_bytes_per_s
    decode_s = on_machine / group.decode_samples_per_s
    copy_s = batch_per_device * training.device_sample_bytes / group.host_link_bytes_per_s
    return read_s, decode_s, copy_s
