"""Seconds to bring samples to the devices: reading, decoding, copying. They bound every family alike.

Source: S. Shi et al., A DAG model of synchronous SGD, arXiv:1805.03812, tables II and V (``t_io = D/B_io``,
``t_h2d = D/B_pcie``, storage shared by the machines that read it), and section IV-C on what frameworks let run at the
same time; the decode rate is our own term.
"""

from enum import StrEnum

from planner.cluster import MachineGroup
from planner.frozen import frozen
from planner.problem import Problem


class Strategy(StrEnum):
    """What a framework lets run at the same time (section IV-C)."""

    NAIVE = "naive"  # one thing after the other
    CNTK = "cntk"  # reads ahead
    MXNET = "mxnet"  # and TensorFlow: reads ahead, and sends gradients during the backward pass
    CAFFE_MPI = "caffe_mpi"  # the same, and copies ahead into a second buffer on the device

    @property
    def reads_ahead(self) -> bool:
        """Whether the next batch is read during an iteration."""
        return self is not Strategy.NAIVE

    @property
    def copies_ahead(self) -> bool:
        """Whether the next batch is copied to the device during an iteration, too."""
        return self is Strategy.CAFFE_MPI

    @property
    def overlaps_gradients(self) -> bool:
        """Whether a gradient is sent as soon as it is ready (wait-free back-propagation)."""
        return self in (Strategy.MXNET, Strategy.CAFFE_MPI)


@frozen
class InputTime:
    """Seconds of one iteration's reading, decoding and copying, and whether they overlap one another."""

    read_s: float
    decode_s: float
    copy_s: float
    is_pipelined: bool = True

    @property
    def bound_s(self) -> float:
        """Seconds between two batches.

        The slowest stage of a pipeline, or the sum where one thread does all in turn.
        """
        stages = (self.read_s, self.decode_s, self.copy_s)
        return max(stages) if self.is_pipelined else sum(stages)


def stall_s(time: InputTime, busy_s: float, strategy: Strategy) -> float:
    """Return how long devices that work for ``busy_s`` wait for input in a steady iteration.

    A framework that reads and copies ahead waits only for what takes longer than the work; one that copies when the
    work is done waits for the copy, and for reading that takes longer; a naive one waits for everything
    (S. Shi et al., section IV-C).

    Parameters
    ----------
    time
        Of one iteration's input.
    busy_s
        That the devices compute and communicate in an iteration.
    strategy
        What the framework does ahead.
    """
    if strategy.copies_ahead:
        return max(0.0, time.bound_s - busy_s)
    reading_s = max(time.read_s, time.decode_s) if time.is_pipelined else time.read_s + time.decode_s
    if strategy.reads_ahead:
        late_s = reading_s - busy_s
        return max(time.copy_s, late_s) if time.is_pipelined else time.copy_s + max(0.0, late_s)
    return reading_s + time.copy_s


@frozen
class Samples:
    """How samples come to the devices."""

    # stored_bytes, copied_bytes: of one sample as stored, and as copied to the device
    stored_bytes: float
    copied_bytes: float
    is_pipelined: bool = True  # whether reading, decoding and copying overlap one another

    @classmethod
    def of(cls, problem: Problem) -> "Samples":
        """Return those of a question.

        Parameters
        ----------
        problem
            The question.
        """
        training = problem.training
        return cls(
            stored_bytes=training.sample_bytes,
            copied_bytes=training.device_sample_bytes,
            is_pipelined=problem.calibration.is_prefetch_pipelined,
        )


def input_time(
    group: MachineGroup,
    samples: Samples,
    *,
    num_machines: int,
    devices_per_machine: int,
    batch_per_device: float,
    whole_batch: float | None = None,
    read_s_per_sample: float | None = None,
) -> InputTime:
    """Return the seconds of input for one iteration.

    Parameters
    ----------
    group
        The machines: their storage, processors and host links.
    samples
        How they come to the devices.
    num_machines, devices_per_machine
        Those that read at the same time: a shared store divides by the machines, a machine's disk by its devices.
    batch_per_device
        Samples of one iteration on one device.
    whole_batch
        Samples that all machines read together, each once: the sum of the devices' shares, at most the global batch.
        A store that all share reads them. None: as many on every machine as on this one.
    read_s_per_sample
        Measured reading of one device's sample; then storage and sample size are not asked.
    """
    on_machine = batch_per_device * devices_per_machine
    read_s = 0.0
    if read_s_per_sample is not None:
        read_s = read_s_per_sample * batch_per_device
    elif group.storage is not None:
        is_common = group.storage.is_shared and group.storage.shared_by is None
        if whole_batch is None or not is_common:
            number = on_machine * group.storage.num_readers(num_machines)
        else:
            number = whole_batch
        read_s = number * samples.stored_bytes / group.storage.bandwidth_bytes_per_s
    return InputTime(
        read_s=read_s,
        decode_s=on_machine / group.decode_samples_per_s,
        copy_s=batch_per_device * samples.copied_bytes / group.host_link_bytes_per_s,
        is_pipelined=samples.is_pipelined,
    )
