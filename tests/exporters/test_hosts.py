"""Machines of several hosts: racks that NVLink joins, of which launchers know every tray by itself."""

from pathlib import Path

import pytest

from planner.cli.run import run
from planner.cluster import Device, MachineGroup
from planner.used_machines import UsedMachines, by_host

RACK = MachineGroup(name="racks", count=4, device=Device(name="gb300"), devices_per_machine=72, devices_per_host=4)


def rows(number: int, devices: int) -> list[tuple[int, int]]:
    found = by_host([UsedMachines.training(RACK, number, devices)], [RACK])
    return [(one.num_machines, one.devices_per_machine) for one in found]


@pytest.mark.parametrize(
    ("number", "devices", "hosts"),
    [(2, 72, [(36, 4)]), (1, 6, [(1, 4), (1, 2)]), (2, 6, [(1, 4), (1, 2)] * 2), (3, 4, [(3, 4)]), (2, 3, [(2, 3)])],
)
def test_racks_are_launched_tray_by_tray_in_the_order_of_ranks(
    number: int, devices: int, hosts: list[tuple[int, int]]
) -> None:
    assert rows(number, devices) == hosts
    assert sum(count * each for count, each in hosts) == number * devices


def test_servers_stay_whole_machines() -> None:
    (row,) = by_host([UsedMachines.serving(RACK, 2)], [RACK])
    assert row == UsedMachines.serving(RACK, 2)


def test_a_plan_on_racks_is_launched_with_as_many_processes_as_a_tray_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, plan = tmp_path / "spec.yaml", tmp_path / "plan.json"
    racks = "{machines: [{machine: gb200-nvl72}]}"
    spec.write_text(f"dnn: {{zoo: llama3-8b, global_batch: 144}}\ncluster: {racks}\nfix: {{num_devices: 72}}\n")
    assert run(["plan", str(spec), "--no-explain", "--json", "--out", str(plan)]) == 0
    capsys.readouterr()
    assert run(["export", str(plan), "--to", "slurm", "--out", str(tmp_path / "slurm")]) == 0
    script = next((tmp_path / "slurm").glob("*.sbatch")).read_text()
    assert "--nodes=18" in script
    assert "--nproc-per-node 4" in "".join(one.read_text() for one in (tmp_path / "slurm").glob("*.sh"))


def test_hosts_that_do_not_fill_a_machine_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "spec.yaml"
    machine = "{count: 1, device: gb200, devices: 72, devices_per_host: 5}"
    spec.write_text(f"dnn: {{zoo: llama3-8b, global_batch: 8}}\ncluster: {{machines: [{machine}]}}\n")
    assert run(["plan", str(spec)]) == 2
    assert "devices_per_host 5. Write a number that divides 72." in capsys.readouterr().err
