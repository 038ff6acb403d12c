from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cluster import Device, MachineGroup, Storage
from planner.models.input import InputTime, Samples, Strategy, input_time, stall_s


def test_a_store_that_some_machines_share_divides_by_those_at_most() -> None:
    store = Storage(bandwidth_bytes_per_s=1e9, is_shared=True, shared_by=4)
    assert [store.num_readers(machines) for machines in (1, 3, 4, 16)] == [1, 3, 4, 4]
    assert Storage(bandwidth_bytes_per_s=1e9, is_shared=True).num_readers(16) == 16
    assert Storage(bandwidth_bytes_per_s=1e9).num_readers(16) == 1


NFS = Storage(bandwidth_bytes_per_s=1.1e9, is_shared=True)  # cluster 1 of the S-SGD paper, Table II
SSD = Storage(bandwidth_bytes_per_s=367.3e6)  # cluster 2
IMAGE_BYTES = 110_000.0  # a JPEG of about 110 kB
TENSOR_BYTES = 3 * 224 * 224 * 4.0
SAMPLES = Samples(stored_bytes=IMAGE_BYTES, copied_bytes=TENSOR_BYTES)
stages_s = st.floats(0, 100)


def group(storage: Storage | None, *, pcie: float = 15e9, decode: float = float("inf")) -> MachineGroup:
    return MachineGroup(
        name="machines",
        count=4,
        device=Device(name="gpu"),
        devices_per_machine=4,
        storage=storage,
        host_link_bytes_per_s=pcie,
        decode_samples_per_s=decode,
    )


def input_of(
    machines: MachineGroup,
    *,
    num_machines: int = 1,
    devices_per_machine: int = 1,
    batch_per_device: float = 32,
    read_s_per_sample: float | None = None,
) -> InputTime:
    return input_time(
        machines,
        SAMPLES,
        num_machines=num_machines,
        devices_per_machine=devices_per_machine,
        batch_per_device=batch_per_device,
        read_s_per_sample=read_s_per_sample,
    )


def test_a_shared_store_serves_all_readers_of_cluster_1() -> None:
    # ResNet-50, batch 32, 4 machines of 4 K80: 512 images of 110 kB from NFS at 1.1 GB/s.
    found = input_of(group(NFS), num_machines=4, devices_per_machine=4)
    assert found.read_s == pytest.approx(512 * 110e3 / 1.1e9)
    assert found.read_s == pytest.approx(0.0512)


def test_a_local_disk_serves_its_own_machine_of_cluster_2() -> None:
    found = input_of(group(SSD), num_machines=4, devices_per_machine=4)
    assert found.read_s == pytest.approx(128 * 110e3 / 367.3e6)


def test_copies_go_over_every_devices_own_link() -> None:
    found = input_of(group(SSD), num_machines=4, devices_per_machine=4)
    assert found.copy_s == pytest.approx(32 * 602_112 / 15e9)


machines_and_devices = st.tuples(st.integers(1, 64), st.integers(1, 16))


@given(machines_and_devices, st.integers(1, 512))
def test_reading_scales_with_those_that_read_at_the_same_time(shape: tuple[int, int], batch: int) -> None:
    num_machines, devices = shape

    def read_s(storage: Storage, num_machines: int, devices: int) -> float:
        return input_of(
            group(storage), num_machines=num_machines, devices_per_machine=devices, batch_per_device=batch
        ).read_s

    assert read_s(NFS, num_machines, devices) == pytest.approx(num_machines * devices * read_s(NFS, 1, 1))
    assert read_s(SSD, num_machines, devices) == pytest.approx(devices * read_s(SSD, 1, 1))


@given(machines_and_devices)
def test_a_machines_host_decodes_for_its_devices(shape: tuple[int, int]) -> None:
    num_machines, devices = shape
    found = input_of(group(None, decode=2000), num_machines=num_machines, devices_per_machine=devices)
    assert found.decode_s == pytest.approx(devices * 32 / 2000)
    assert found.read_s == 0


def test_what_is_not_modelled_takes_no_time() -> None:
    machines = group(None, pcie=float("inf"))
    assert input_of(machines).bound_s == 0


def test_measured_reading_is_taken_as_it_was_measured() -> None:
    found = input_of(group(NFS), num_machines=4, devices_per_machine=4, read_s_per_sample=1.2 / 1024)
    assert found.read_s == pytest.approx(32 * 1.2 / 1024)


@given(stages_s, stages_s, stages_s)
def test_stages_take_their_sum_in_turn_and_the_slowest_in_a_pipeline(read: float, decode: float, copy: float) -> None:
    single, pipelined = (
        InputTime(read_s=read, decode_s=decode, copy_s=copy, is_pipelined=is_pipelined).bound_s
        for is_pipelined in (False, True)
    )
    assert single == pytest.approx(read + decode + copy)
    assert pipelined == max(read, decode, copy)
    assert pipelined <= single


@pytest.mark.parametrize("whole_batch", [0, 7, 511, 512])
def test_a_store_that_all_share_reads_the_whole_batch_and_a_disk_what_its_machine_takes(whole_batch: int) -> None:
    def read_s(storage: Storage) -> float:
        return input_time(
            group(storage), SAMPLES, num_machines=4, devices_per_machine=4, batch_per_device=32, whole_batch=whole_batch
        ).read_s

    assert read_s(NFS) == pytest.approx(whole_batch * IMAGE_BYTES / NFS.bandwidth_bytes_per_s)
    assert read_s(SSD) == pytest.approx(128 * IMAGE_BYTES / SSD.bandwidth_bytes_per_s)
    assert read_s(replace(NFS, shared_by=2)) == pytest.approx(256 * IMAGE_BYTES / NFS.bandwidth_bytes_per_s)


@pytest.mark.parametrize(
    ("strategy", "is_pipelined", "busy_s", "waited_s"),
    [
        ("naive", True, 10, 4),  # the slower of reading and decoding, and then the copy
        ("naive", False, 10, 6),
        ("cntk", True, 1, 2),  # reading ends later than the work by more than the copy takes
        ("cntk", True, 2.5, 1),
        ("mxnet", False, 1, 5),  # one thread: the copy, and what reading and decoding take beyond the work
        ("mxnet", False, 10, 1),
        ("caffe_mpi", True, 1, 2),
        ("caffe_mpi", False, 1, 5),
        ("caffe_mpi", True, 10, 0),
    ],
)
def test_devices_wait_for_what_a_framework_does_not_do_ahead(
    strategy: str, is_pipelined: bool, busy_s: float, waited_s: float
) -> None:
    time = InputTime(read_s=3, decode_s=2, copy_s=1, is_pipelined=is_pipelined)
    assert stall_s(time, busy_s, Strategy(strategy)) == pytest.approx(waited_s)
