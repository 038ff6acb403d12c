"""Which machines a plan takes, for every family, and the lines that start a process on each of their devices."""

from dataclasses import replace

import pytest
from exported import planned, question

import planner
from planner.errors import InfeasibleError
from planner.exporters import TARGETS, Job
from planner.exporters.machines import is_one_shape, num_devices, used_machines
from planner.exporters.scripts import torchrun_lines
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.hybrid.configuration import HybridConfiguration
from planner.plan import Plan
from planner.used_machines import UsedMachines


def rows_of(name: str) -> tuple[UsedMachines, ...]:
    return used_machines(Job(problem=planner.load(question(name)), plan=planned(name)))


@pytest.mark.parametrize(
    "name", ["alike", "mixed", "passes", "one", "pipeline", "hybrid", "copies", "servers", "replicas"]
)
def test_as_many_devices_train_as_the_plan_says(name: str) -> None:
    plan, rows = planned(name), rows_of(name)
    document = plan.configuration.to_document()
    counts = {
        "all_reduce": lambda: document["num_devices"],
        "pipeline": lambda: plan.prediction.details["num_devices"],
        "hybrid": lambda: plan.prediction.details["num_devices"],
        "parameter_server": lambda: sum(document["workers"].values()),
        "model_replicas": lambda: document["num_replicas"] * document["num_workers_per_replica"],
    }
    assert num_devices(rows) == counts[plan.family]()
    groups = {group.name: group for group in planner.load(question(name)).cluster.machine_groups}
    for row in rows:
        assert row.device == groups[row.group].device.name
        assert 0 < row.num_machines <= groups[row.group].count
        assert row.devices_per_machine <= groups[row.group].devices_per_machine


def test_servers_come_last_and_train_nothing() -> None:
    *workers, servers = rows_of("servers")
    assert servers.role == "server"
    assert servers.num_machines == planned("servers").configuration.to_document()["num_parameter_servers"]
    assert (servers.num_devices, servers.is_shared) == (0, False)
    assert all(row.role == "worker" for row in workers)


def test_servers_on_the_machines_of_workers_say_so() -> None:
    asked = {**question("servers"), "fix": {"co_located": True}}
    problem = planner.load(asked)
    rows = used_machines(Job(problem=problem, plan=planner.plan(problem)))
    assert rows[-1].is_shared


def test_a_group_whose_last_machine_is_not_full_stands_in_two_rows() -> None:
    plan = planned("hybrid")
    assert isinstance(plan.configuration, HybridConfiguration)
    changed = replace(plan.configuration, tensor=1, context=1, pipeline=3, data=4)
    rows = used_machines(Job(problem=planner.load(question("hybrid")), plan=replace(plan, configuration=changed)))
    assert [(row.num_machines, row.devices_per_machine) for row in rows] == [(1, 8), (1, 4)]
    assert not is_one_shape(rows)


def test_machines_of_one_type_are_taken_group_by_group() -> None:
    (machines,) = question("alike")["cluster"]["machines"]
    cluster = {"machines": [{**machines, "name": "a", "count": 1}, {**machines, "name": "b", "count": 3}]}
    problem = planner.load({**question("alike"), "cluster": cluster, "fix": {"num_machines": 3}})
    plan = planner.plan(problem)
    assert isinstance(plan.configuration, AllReduceConfiguration)
    rows = used_machines(Job(problem=problem, plan=plan))
    assert [(row.group, row.num_machines) for row in rows] == [("a", 1), ("b", 2)]
    assert is_one_shape(rows)


def test_torchrun_starts_every_row_on_its_own_and_one_machine_alone() -> None:
    assert torchrun_lines(rows_of("one"), "x.py") == ("torchrun --standalone --nproc-per-node 1 x.py",)
    first, second = torchrun_lines(rows_of("mixed"), "x.py")
    assert first.startswith("torchrun --nnodes 5 --nproc-per-node 4 ")
    assert second.startswith("torchrun --nnodes 5 --nproc-per-node 2 ")
    assert first.endswith("--master-port 29500 x.py")


def planned_on(device: str, count: int, **network: object) -> Plan:
    """A plan of data parallelism on machines of one device."""
    dnn = {"zoo": "resnet18", "batch_per_device": 8, **network}
    machine = {"count": count, "device": device, "network": "10 Gbit/s"}
    return planner.plan(planner.load({"dnn": dnn, "cluster": {"machines": [machine]}, "families": ["all_reduce"]}))


@pytest.mark.parametrize("device", ["tpu-v4", "trainium1"])
def test_no_target_starts_programs_for_gpus_on_devices_of_another_kind(device: str) -> None:
    plan = planned_on(device, 2, dtype="bf16")
    for target in TARGETS:
        with pytest.raises(InfeasibleError, match=r"No target can\.$"):
            planner.export(plan, target)


def test_accelerate_starts_one_process_on_cpus_and_is_told_so() -> None:
    one, two = (planned_on("dual-xeon-e5-2650-v4", number) for number in (1, 2))
    assert "use_cpu: true" in planner.export(one, "accelerate").files["accelerate.yaml"]
    with pytest.raises(InfeasibleError, match="runs on GPUs, and dual-xeon"):
        planner.export(two, "accelerate")
    launch = planner.export(two, "ddp")
    assert "NCCL" not in launch.files["launch.sh"]
    assert any("gloo, by which CPUs exchange" in note for note in launch.notes)
