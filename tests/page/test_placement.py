"""What runs where: every device of a configuration is placed once, by the rules of its family."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.answer.drawing import drawing_of
from planner.cluster import Cluster, Device, Link, MachineGroup, Switch
from planner.families import FAMILIES
from planner.plan import Prediction
from planner.sections import Cell, Drawing, Placement

sizes = st.integers(1, 4)
ORDERS = ("tensor-context-data-pipeline", "tensor-context-pipeline-data")


def cluster(*groups: tuple[str, int, int]) -> Cluster:
    """Groups of so many machines with so many devices, on one switch."""
    made = [
        MachineGroup(name=name, count=count, device=Device(name="gpu"), devices_per_machine=each)
        for name, count, each in groups
    ]
    links = [(group.name, "switch", Link(bandwidth_bytes_per_s=1e9, latency_s=1e-5)) for group in made]
    return Cluster("cluster", [*made, Switch(name="switch")], links)


def placed(where: Cluster, family: str, block: dict[str, Any], details: dict[str, Any]) -> Placement:
    """Where a configuration's document says that its parts run."""
    prediction = Prediction(
        iteration_time_s=1.0,
        epoch_time_s=None,
        training_time_s=None,
        breakdown_s={},
        communication_s={},
        scaling_factor=1.0,
        communication_to_computation=0.0,
        memory_bytes={},
        details=details,
    )
    return FAMILIES[family].view(where, block, prediction).placement()


def drawn(where: Cluster, family: str, block: dict[str, Any]) -> Drawing:
    return drawing_of(where, placed(where, family, block, {}))


def layout(**changed: Any) -> dict[str, Any]:
    return {"tensor": 1, "context": 1, "pipeline": 1, "data": 1, "order": ORDERS[0], **changed}


def cells(where: Cluster, family: str, block: dict[str, Any]) -> list[Cell]:
    found = placed(where, family, block, {})
    return [cell for group in where.machine_groups for cell in found.devices.get(group.name, ())]


@given(sizes, sizes, sizes, sizes, st.sampled_from(ORDERS))
def test_every_rank_of_a_layout_has_its_own_place(
    tensor: int, context: int, pipeline: int, data: int, order: str
) -> None:
    block = layout(tensor=tensor, context=context, pipeline=pipeline, data=data, order=order)
    number = tensor * context * pipeline * data
    found = cells(cluster(("a", number, 2), ("b", 1, 1)), "hybrid", block)
    assert len({cell.words for cell in found}) == len(found) == number
    assert len({cell.label for cell in found}) == number


def test_the_first_degree_of_the_order_changes_from_device_to_device() -> None:
    found = cells(cluster(("a", 1, 8)), "hybrid", layout(tensor=2, pipeline=2, data=2))
    assert [cell.label for cell in found] == [
        "P1 D0 T0",
        "P1 D0 T1",
        "P1 D1 T0",
        "P1 D1 T1",
        "P2 D0 T0",
        "P2 D0 T1",
        "P2 D1 T0",
        "P2 D1 T1",
    ]


def test_stages_on_unlike_machines_stand_on_theirs() -> None:
    stages = [{"machines": "b", "layers": 3}, {"machines": "a", "layers": 5}]
    found = placed(cluster(("a", 1, 4), ("b", 1, 4)), "hybrid", layout(tensor=2, pipeline=2, stages=stages), {})
    assert {name: {cell.words.split(",")[0] for cell in given} for name, given in found.devices.items()} == {
        "b": {"stage 1"},
        "a": {"stage 2"},
    }
    assert [role.words for role in found.roles][:2] == ["stage 1: 3 layers", "stage 2: 5 layers"]


def test_replicas_on_unlike_machines_are_numbered_on() -> None:
    replicas = [
        {"machines": "a", "data": 1, "num_microbatches": 2},
        {"machines": "b", "data": 2, "num_microbatches": 1},
    ]
    found = cells(
        cluster(("a", 1, 2), ("b", 1, 4)), "hybrid", layout(tensor=2, data=3, replicas=replicas, stages=[{"layers": 4}])
    )
    assert Counter(cell.label.split()[0] for cell in found) == {"D0": 2, "D1": 2, "D2": 2}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(1, 3))
def test_stages_of_a_pipeline_follow_each_other(replicas: list[int], chunks: int) -> None:
    stages = [
        {"first": "x", "last": "y", "machines": "a", "replicas": count} for _ in range(chunks) for count in replicas
    ]
    found = cells(cluster(("a", 9, 3)), "pipeline", {"stages": stages, "chunks_per_device": chunks})
    assert [cell.label for cell in found] == [
        f"S{index + 1}" for index, count in enumerate(replicas) for _ in range(count)
    ]


@pytest.mark.parametrize(("is_together", "at"), [(True, {0: "PS 0", 1: "PS 1"}), (False, {2: "PS 0", 3: "PS 1"})])
def test_servers_stand_on_the_first_workers_or_behind_them(is_together: bool, at: dict[int, str]) -> None:
    block = {
        "num_parameter_servers": 2,
        "workers": {"a": 2},
        "servers": "a",
        "co_located": is_together,
        "placement": {"w": 0, "b": 1, "c": 1},
    }
    found = placed(cluster(("a", 4, 1)), "parameter_server", block, {"server_bytes": [1024.0, 2048.0]})
    assert {index: given[0].label for index, given in found.servers["a"].items()} == at
    assert found.servers["a"][max(at)][0].words == "server 1: 2 KiB, 2 tensors"


@given(st.integers(1, 3000), st.integers(1, 40))
def test_a_drawing_stays_small_and_says_what_it_leaves_out(machines: int, devices: int) -> None:
    block = {"num_devices": machines, "num_machines": machines, "devices_per_machine": 1}
    found = drawn(cluster(("a", machines, devices)), "all_reduce", block)
    (group,) = found.groups
    if machines > 24:
        (one,) = group.machines
        assert one.name == f"a 0 to {machines - 1}"
        assert f"{machines:,} machines, each like this" in one.note
    else:
        assert len(group.machines) == machines
    assert not group.note
    for machine in group.machines:
        assert len(machine.cells) == min(devices, 16)
        assert (f"16 of {devices} devices" in machine.note) == (devices > 16)
        assert sum(cell.colour is not None for cell in machine.cells) == 1


@given(st.integers(1, 60), st.integers(1, 3))
def test_machines_that_do_the_same_stand_together_and_none_is_missed(stages: int, replicas: int) -> None:
    names = [f"l{index}" for index in range(stages)]
    block = {
        "stages": [{"first": name, "last": name, "machines": "a", "replicas": replicas} for name in names],
        "chunks_per_device": 1,
    }
    found = drawn(cluster(("a", stages * replicas, 1)), "pipeline", block)
    (group,) = found.groups
    is_drawn_one_by_one = stages * replicas <= 24
    assert len(group.machines) == min(24, stages * (replicas if is_drawn_one_by_one else 1))
    assert bool(group.note) == (not is_drawn_one_by_one and stages > 24)
    if not is_drawn_one_by_one and replicas > 1:
        assert group.machines[0].name == f"a 0 to {replicas - 1}"
        assert group.machines[-1].name.endswith(f"to {stages * replicas - 1}")
