from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kubeflow_jobs import QUESTIONS, job_of

import planner
from planner.errors import InfeasibleError, SpecError
from planner.exporters import Settings, degrees_of, export
from planner.exporters.kubernetes import documents_of
from planner.exporters.machines import used_machines
from planner.families.parameter_server.configuration import ParameterServerConfiguration
from planner.network_import import import_file

PAIRS = [
    ("data", "pytorchjob"),
    ("data", "trainjob"),
    ("layout", "pytorchjob"),
    ("layout", "trainjob"),
    ("own", "tfjob"),
    ("shared", "tfjob"),
]


def job_document(name: str, target: str, settings: Settings | None = None) -> dict[str, Any]:
    text = next(iter(export(target, job_of(name, settings)).files.values()))
    return documents_of(text)[1]


@pytest.mark.parametrize(("name", "target"), PAIRS)
def test_a_job_has_the_machines_of_the_plan(name: str, target: str) -> None:
    rows = used_machines(job_of(name))
    workers = sum(row.num_machines for row in rows if row.role == "worker")
    spec = job_document(name, target)["spec"]
    if target == "trainjob":
        assert spec["trainer"]["numNodes"] == workers
        assert spec["trainer"]["numProcPerNode"] == rows[0].devices_per_machine
        return
    replicas = spec["pytorchReplicaSpecs" if target == "pytorchjob" else "tfReplicaSpecs"]
    counts = {role: block["replicas"] for role, block in replicas.items()}
    servers = sum(row.num_machines for row in rows if row.role == "server")
    assert sum(counts.values()) == workers + servers
    assert counts.get("PS", 0) == servers
    limits = {role: block["template"]["spec"]["containers"][0].get("resources") for role, block in replicas.items()}
    assert limits["Worker"] == {"limits": {"nvidia.com/gpu": str(rows[0].devices_per_machine)}}
    assert limits.get("PS") is None  # a server trains nothing


@pytest.mark.parametrize(("name", "target"), PAIRS)
def test_a_job_is_read_back_with_the_degrees_of_its_plan(name: str, target: str, tmp_path: Path) -> None:
    job = job_of(name)
    (file, text), *_ = export(target, job).files.items()
    (tmp_path / file).write_text(text)
    found = degrees_of(tmp_path / file, text)
    assert found is not None
    assert found[0] == target
    again = planner.plan(planner.load({**QUESTIONS[name], "fix": {**QUESTIONS[name].get("fix", {}), **found[1]}}))
    assert again.configuration == job.plan.configuration


@pytest.mark.parametrize("target", ["pytorchjob", "trainjob"])
def test_a_job_read_back_says_that_its_files_hold_the_layout(target: str, tmp_path: Path) -> None:
    (file, text), *_ = export(target, job_of("layout")).files.items()
    (tmp_path / file).write_text(text)
    (warning,) = import_file(tmp_path / file).warnings
    assert "the number of devices alone is read" in warning
    assert all(name in warning for name in documents_of(text)[0]["data"])


def test_a_job_of_servers_read_back_says_what_goes_to_and_from_them_how(tmp_path: Path) -> None:
    job = job_of("own")
    way: dict[str, Any] = {
        "overlap": "push_pull",
        "has_barrier": False,
        "partition_bytes": 4_194_304.0,
        "has_priority": True,
    }
    chosen = job.plan.configuration
    assert isinstance(chosen, ParameterServerConfiguration)
    job = replace(job, plan=replace(job.plan, configuration=replace(chosen, **way)))
    text = next(iter(export("tfjob", job).files.values()))
    (tmp_path / "tfjob.yaml").write_text(text)
    found = import_file(tmp_path / "tfjob.yaml")
    said = {"synchronisation": "bsp", "overlap": "push_pull", "barrier": False, "partition_bytes": 4_194_304}
    assert {**said, "priority": True}.items() <= found.block.items()
    assert any("which server has which tensor are not read" in warning for warning in found.warnings)
    with pytest.raises(SpecError, match=r"'half' is none.*Write one of bsp, "):
        degrees_of(tmp_path / "tfjob.yaml", text.replace("value: bsp", "value: half"))


def test_servers_stand_apart_from_workers_or_beside_them_as_planned() -> None:
    def affinity(name: str) -> Mapping[str, Any]:
        servers = job_document(name, "tfjob")["spec"]["tfReplicaSpecs"]["PS"]
        found: Mapping[str, Any] = servers["template"]["spec"]["affinity"]
        return found

    def roles(terms: Mapping[str, Any]) -> set[str]:
        rows = terms["requiredDuringSchedulingIgnoredDuringExecution"]
        return {row["labelSelector"]["matchLabels"]["training.kubeflow.org/replica-type"] for row in rows}

    assert roles(affinity("own")["podAntiAffinity"]) == {"ps", "worker"}
    assert roles(affinity("shared")["podAntiAffinity"]) == {"ps"}
    assert roles(affinity("shared")["podAffinity"]) == {"worker"}


def test_every_tensor_has_the_server_of_the_plan() -> None:
    import json

    job = job_of("own")
    text = next(iter(export("tfjob", job).files.values()))
    given = json.loads(documents_of(text)[0]["data"]["placement.json"])
    assert given["server_of"] == job.plan.configuration.to_document()["placement"]


def test_a_hostile_script_stays_words_and_a_hostile_name_becomes_a_name() -> None:
    settings = Settings(script="train.py '; reboot #' $(reboot)", name="../X; y", image="r.example/i:1")
    found = job_document("shared", "tfjob", settings)
    container = found["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["bash", "-c", "exec python train.py '; reboot #' '$(reboot)'"]
    assert container["image"] == "r.example/i:1"
    assert found["metadata"]["name"] == "x-y"


def test_images_and_accelerators_are_of_the_devices_maker() -> None:
    def container(device: str, kind: str) -> dict[str, Any]:
        machine = {"count": 3, "device": device, "network": "10 Gbit/s"}
        asked = {**QUESTIONS["own"], "cluster": {"machines": [machine]}, "fix": {"num_parameter_servers": 1}}
        problem = planner.load(
            {**asked, "families": [kind]} if kind == "parameter_server" else {**asked, "families": [kind], "fix": {}}
        )
        target = "tfjob" if kind == "parameter_server" else "pytorchjob"
        (text,) = planner.export(planner.plan(problem), target).files.values()
        spec = documents_of(text)[1]["spec"]
        replicas = spec["tfReplicaSpecs"]["Worker"] if target == "tfjob" else spec["pytorchReplicaSpecs"]["Master"]
        found: dict[str, Any] = replicas["template"]["spec"]["containers"][0]
        return found

    assert container("v100-sxm2", "parameter_server")["image"].endswith("/tensorflow:latest-gpu")
    assert "resources" not in container("dual-xeon-e5-2650-v4", "parameter_server")
    assert container("mi300x", "all_reduce")["resources"] == {"limits": {"amd.com/gpu": "1"}}
    assert container("mi300x", "all_reduce")["image"] == "docker.io/rocm/pytorch:latest"
    assert container("v100-sxm2", "all_reduce")["resources"] == {"limits": {"nvidia.com/gpu": "1"}}


@pytest.mark.parametrize("target", ["pytorchjob", "trainjob"])
def test_every_machine_has_shared_memory_for_its_processes(target: str) -> None:
    (text,) = export(target, job_of("data")).files.values()
    assert text.count("mountPath: /dev/shm") == text.count("medium: Memory") == (2 if target == "pytorchjob" else 1)


@pytest.mark.parametrize(
    ("name", "target", "said"),
    [
        ("data", "tfjob", "no parameter servers"),
        ("own", "pytorchjob", "tfjob has them"),
        ("shared", "trainjob", "tfjob"),
    ],
)
def test_what_a_job_cannot_run_is_refused_with_what_can(name: str, target: str, said: str) -> None:
    with pytest.raises(InfeasibleError, match=said):
        export(target, job_of(name))


def test_unlike_machines_are_refused() -> None:
    from planner.exporters import Job

    machines = [
        {"name": "a", "count": 2, "device": "v100-sxm2", "network": "10 Gbit/s"},
        {"name": "b", "count": 2, "device": "rtx-2080-ti", "network": "10 Gbit/s"},
    ]
    problem = planner.load(
        {
            "dnn": {"zoo": "resnet50", "global_batch": 256},
            "cluster": {"machines": machines},
            "families": ["all_reduce"],
            "fix": {"num_devices": 4},
        }
    )
    with pytest.raises(InfeasibleError, match="slurm takes unlike ones"):
        export("pytorchjob", Job(problem=problem, plan=planner.plan(problem)))


def test_a_program_that_only_starts_machines_trains_nothing() -> None:
    with pytest.raises(SpecError, match="--program"):
        export("pytorchjob", job_of("data", Settings(program="slurm")))


@pytest.mark.parametrize(
    "text",
    [
        "kind: TFJob\n",
        "kind: TFJob\nspec: {tfReplicaSpecs: {PS: {replicas: 0}}}\n",
        "kind: TFJob\nspec: {tfReplicaSpecs: {PS: {replicas: true}}}\n",
        "kind: PyTorchJob\nspec: 3\n",
        "kind: PyTorchJob\nspec: {nprocPerNode: auto, pytorchReplicaSpecs: {Master: {replicas: 1}}}\n",
        "kind: PyTorchJob\nspec: {nprocPerNode: '8', pytorchReplicaSpecs: {Master: {}}}\n",
        "kind: TrainJob\nspec: {trainer: {numNodes: 2}}\n",
    ],
)
def test_a_job_without_its_numbers_is_refused_in_words(text: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"job\.yaml"):
        degrees_of(tmp_path / "job.yaml", text)
