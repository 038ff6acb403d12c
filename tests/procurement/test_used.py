"""The fastest fleet has no machine that its plan leaves idle: such a machine is paid for and brings nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import planner
from planner.families.hybrid.configuration import HybridConfiguration, PipelineStage, ReplicaGroup
from planner.procurement import oracle

LIST = """provider,instance,region,term,device,devices,network_gbit_per_s,usd_per_h,date,source
lab,worker,here,on-demand,quadro-rtx-4000,1,1,0.6,2026-11-01,made up
lab,host,here,on-demand,xeon-e5-2660,1,1,0.1,2026-11-01,made up
"""
# Behind 1 Gbit/s a second worker has to send more than it saves.
DNN = {"zoo": "vgg16", "global_batch": 64, "dataset_samples": 6400, "epochs": 1}


@pytest.mark.parametrize("family", ["all_reduce", "parameter_server"])
def test_the_fastest_fleet_has_no_idle_machine(family: str, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(LIST)
    block = {
        "prices": str(tmp_path / "list.csv"),
        "objective": "time",
        "machines": {"at_most": 4},
        "instances": "worker",
    }
    found = planner.procure({"dnn": DNN, "families": [family], "procure": block}, num_alternatives=0)
    assert found.choice.fleet.headline == "1 x worker"


def test_dedicated_servers_and_workers_are_counted(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(LIST)
    block: dict[str, Any] = {"prices": str(tmp_path / "list.csv"), "objective": "time", "most_types": 2}
    block |= {"machines": {"at_least": 2, "at_most": 6}, "quotas": {"host": 4}}
    fixed = {"num_devices": 2, "num_parameter_servers": 1, "co_located": False}
    question = {"dnn": DNN, "families": ["parameter_server"], "fix": fixed, "procure": block}
    found = planner.procure(question, num_alternatives=0)
    assert found.choice.fleet.num_machines == 3  # two that work, one that serves


STAGES = [PipelineStage(layers=4, machines=name) for name in ("a", "a", "b")]
REPLICAS = [ReplicaGroup(machines=name, data=data, num_microbatches=1) for name, data in (("a", 9), ("b", 3))]


@pytest.mark.parametrize(
    ("chosen", "used"),
    [
        (HybridConfiguration(global_batch_size=12, tensor=2, pipeline=3, data=3, stages=tuple(STAGES)), (2, 1)),
        (HybridConfiguration(global_batch_size=12, tensor=2, data=12, replicas=tuple(REPLICAS)), (3, 1)),
        (HybridConfiguration(global_batch_size=12, tensor=2, data=3, machines="b"), (1, 1)),
    ],
    ids=["stages", "replicas", "one"],
)
def test_a_layout_on_two_kinds_takes_the_machines_that_its_ranks_fill(
    chosen: HybridConfiguration, used: tuple[int, ...]
) -> None:
    offers = tuple(SimpleNamespace(instance=name, devices_per_machine=8) for name in "ab")
    fleet: Any = SimpleNamespace(offers=offers, counts=(4, 4))
    plan: Any = SimpleNamespace(configuration=chosen)
    assert oracle._used(plan, fleet) == used
