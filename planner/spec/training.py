"""What a spec trains for: batch, data set and types, and what is minimised."""

from planner.cluster import Cluster
from planner.dnn import Dnn
from planner.plan import Goal
from planner.problem import Assumption, Training
from planner.spec.dnn import is_measured
from planner.spec.reading import Reading

__all__ = ["goal_of", "training_of"]

_BATCH = 32
_INPUT_ELEMENT_BYTES = 4
_SHORT = ("bf16", "fp16")  # what transformers are trained in, the first that all devices compute in


def training_of(reading: Reading, dnn: Dnn, profile_batch: int, cluster: Cluster) -> Training:
    """Return the batch, the data set and the types, with what had to be assumed."""
    spec, keep = reading.spec.dnn, reading.resolved["dnn"]
    batch_per_device = spec.batch_per_device
    if batch_per_device is None and spec.global_batch is None and spec.max_global_batch is None:
        batch_per_device = profile_batch if profile_batch > 1 else _BATCH
        keep["batch_per_device"] = batch_per_device
        reading.notes.key_assumptions.append(
            Assumption(
                text=f"batch: {batch_per_device} samples a device", field=("dnn", "batch_per_device"), flag="--batch"
            )
        )
    if batch_per_device and spec.max_global_batch and batch_per_device > spec.max_global_batch:
        reading.notes.fault(
            ("dnn", "max_global_batch"), "it is less than batch_per_device.", "Raise it.", spec.max_global_batch
        )
    dataset_samples = spec.dataset_samples or dnn.dataset_samples
    if spec.dataset_samples is None and dataset_samples is not None:
        keep["dataset_samples"] = dataset_samples
        reading.notes.assumptions.append(f"data set: {dataset_samples:,} samples, as the network is usually trained on")
    device_sample_bytes = dnn.num_input_elements * _INPUT_ELEMENT_BYTES
    dtype, optimizer = _types_of(reading, dnn, cluster)
    return Training(
        batch_per_device=batch_per_device,
        global_batch_size=spec.global_batch,
        max_global_batch_size=spec.max_global_batch,
        dataset_samples=dataset_samples,
        epochs=spec.epochs,
        sample_bytes=device_sample_bytes if spec.sample_bytes is None else spec.sample_bytes,
        is_sample_size_given=spec.sample_bytes is not None,
        device_sample_bytes=device_sample_bytes,
        dtype=dtype,
        optimizer=optimizer,
    )


def _types_of(reading: Reading, dnn: Dnn, cluster: Cluster) -> tuple[str, str]:
    """Return the numbers' type and the optimiser: as given, else fp32 and momentum, for transformers short and Adam."""
    spec, keep, notes = reading.spec.dnn, reading.resolved["dnn"], reading.notes
    devices = [group.device for group in cluster.machine_groups if group.device.kind != "cpu"]
    common = [one for one in _SHORT if devices and all(one in device.peak_flop_per_s for device in devices)]
    if dnn.transformer is None:
        if spec.dtype is None and common and not is_measured(spec):
            _note_precision(reading, "fp32", "", common[0])
        return spec.dtype or "fp32", spec.optimizer or "momentum"
    dtype, optimizer = str(spec.dtype or ""), str(spec.optimizer or "")
    if not dtype:
        keep["dtype"] = dtype = common[0] if common else "fp32"
        _note_precision(
            reading, dtype, ", as transformers are trained on such devices", "fp32" if dtype != "fp32" else None
        )
    if not optimizer:
        keep["optimizer"] = optimizer = "adam"
        notes.assumptions.append("optimizer: adam, as transformers are usually trained")
    return dtype, optimizer


def _note_precision(reading: Reading, dtype: str, why: str, other: str | None) -> None:
    """Note the type of numbers that was assumed."""
    reading.notes.key_assumptions.append(
        Assumption(text=f"precision: {dtype}{why}", field=("dnn", "dtype"), flag="--precision", other=other)
    )


def goal_of(reading: Reading, training: Training) -> Goal:
    """Return what is minimised: what the spec says, else epoch time, else iteration time."""
    name = reading.spec.objective
    if name is None:
        name = "epoch_time" if training.dataset_samples else "iteration_time"
        reading.notes.assumptions.append(f"objective: {name}")
    reading.resolved["objective"] = name
    if name != "iteration_time" and training.dataset_samples is None:
        reading.notes.fault(("dnn",), f"{name} needs the size of the data set.", "Add dataset_samples: 1281167, say.")
    if name == "training_time" and training.epochs is None:
        reading.notes.fault(("dnn",), "training_time needs a number of epochs.", "Add epochs: 90, say.")
    if name == "iteration_time" and training.max_global_batch_size is not None:
        mend = "Ask for epoch_time, or fix dnn.global_batch."
        reading.notes.fault(
            ("objective",),
            "with a batch that may vary, the smallest one is trivially fastest per iteration.",
            mend,
            name,
        )
    return Goal(name=name)
