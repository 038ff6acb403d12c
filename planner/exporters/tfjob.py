"""Export for Kubeflow's TFJob, the one job that counts parameter servers: ``PS: n`` beside ``Worker: m``.

Fields: ``kubeflow.org_tfjobs.yaml`` of kubeflow/training-operator 1.9; read back in the tests by the classes of its own
Python client (kubeflow-training 1.9.4). Trainer v2 has no successor for it (kubeflow/trainer issue 2699). The operator
gives every pod ``TF_CONFIG``, and labels its job and its role, by which servers are kept on machines of their own, or
on those of workers.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError
from planner.exporters.export import Export, Job, job_name, refused
from planner.exporters.kubernetes import (
    FOLDER,
    config_volume,
    device_limits,
    device_note,
    document_of,
    has_document,
    job_export,
    limited,
    maker_of,
)
from planner.exporters.machines import machine_words, require_kinds, used_machines
from planner.exporters.torchrun import script_words
from planner.families.parameter_server.configuration import ParameterServerConfiguration

__all__ = ["VERSION", "degrees", "export", "recognises"]

VERSION = "Kubeflow training operator 1.9, kubeflow.org/v1"
_KIND = "TFJob"
_IMAGES = {
    "": "docker.io/tensorflow/tensorflow:latest",
    "nvidia": "docker.io/tensorflow/tensorflow:latest-gpu",
    "amd": "docker.io/rocm/tensorflow:latest",
}
_PLACEMENT = "placement.json"
_PROGRAM = "train.py"
_JOB, _ROLE = "training.kubeflow.org/job-name", "training.kubeflow.org/replica-type"
_PLACE = "planner/servers"
_OWN, _SHARED = "dedicated", "co-located"


def export(job: Job) -> Export:
    """Return the job, and the ConfigMap with the server of every tensor.

    Raises
    ------
    InfeasibleError
        If the plan has no parameter servers, or unlike workers, or workers that are neither GPUs nor CPUs.
    """
    chosen = job.plan.configuration
    if not isinstance(chosen, ParameterServerConfiguration):
        mend = "Plan with families: [parameter_server] for one that has."
        raise refused("tfjob", f"it has no parameter servers ({job.plan.family})", mend)
    rows = [row for row in used_machines(job) if row.role == "worker"]
    require_kinds("tfjob", job, rows, "gpu", "cpu")
    if len({(row.device, row.devices_per_machine) for row in rows}) > 1:
        words = machine_words(rows)
        mend = "Plan with workers of one group (fix.device), or start them by hand."
        raise refused("tfjob", f"all its workers are alike, and this plan takes {words}", mend)
    name = job_name(job)
    files = {_PLACEMENT: json.dumps(_placement(chosen), indent=1) + "\n"}
    number = sum(row.num_machines for row in rows)
    limits, image = device_limits(job, rows[0]), job.settings.image or _IMAGES[maker_of(job, rows[0])]
    roles = {
        "PS": (chosen.num_parameter_servers, _pod(job, name, chosen, image, {}, "ps")),
        "Worker": (number, _pod(job, name, chosen, image, limits, "worker")),
    }
    document = {
        "apiVersion": "kubeflow.org/v1",
        "kind": _KIND,
        "metadata": {"name": name, "annotations": {_PLACE: _SHARED if chosen.co_located else _OWN}},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running"},
            "tfReplicaSpecs": {
                role: {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}
                for role, (count, pod) in roles.items()
            },
        },
    }
    notes = (*_notes(job, chosen, number, image), device_note(rows))
    return job_export(job, "tfjob", VERSION, files=files, document=document, notes=notes)


def _placement(chosen: ParameterServerConfiguration) -> dict[str, Any]:
    """Return the server of every tensor, or the rule that gives it."""
    if isinstance(chosen.placement, str):
        return {"num_parameter_servers": chosen.num_parameter_servers, "rule": chosen.placement}
    return {"num_parameter_servers": chosen.num_parameter_servers, "server_of": dict(chosen.placement)}


def _pod(
    job: Job, name: str, chosen: ParameterServerConfiguration, image: str, limits: Mapping[str, str], role: str
) -> dict[str, Any]:
    """Return the pod of a role."""
    volume, mount = config_volume(name)
    settings = {
        "PLANNER_PLACEMENT": f"{FOLDER}/{_PLACEMENT}",
        "PLANNER_BATCH_PER_DEVICE": str(max(chosen.batch_shares.values())),
        "PLANNER_SYNCHRONISATION": chosen.synchronisation,
        "PLANNER_STALENESS": str(chosen.staleness),
    }
    container: dict[str, Any] = {
        "name": "tensorflow",  # the operator looks for this one
        "image": image,
        "command": ["bash", "-c", f"exec {_words(job)}"],
        "env": [{"name": key, "value": value} for key, value in settings.items()],
        "volumeMounts": [mount],
    }
    containers = [limited(container, "resources", limits)]
    return {"affinity": _affinity(name, role, chosen), "containers": containers, "volumes": [volume]}


def _words(job: Job) -> str:
    """Return the command of the user's program: Python's, as for the launchers of other targets, or its own."""
    words = script_words(job.settings.script, _PROGRAM)
    return f"python {words}" if words.startswith("-m ") or words.split()[0].endswith(".py") else words


def _affinity(name: str, role: str, chosen: ParameterServerConfiguration) -> dict[str, Any]:
    """Return which pods of the job may share a machine: one of a role; a server joins a worker, or no one."""

    def beside(other: str) -> dict[str, Any]:
        selector = {"matchLabels": {_JOB: name, _ROLE: other}}
        return {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}

    key = "requiredDuringSchedulingIgnoredDuringExecution"
    apart = [beside(role)]
    if role == "ps" and chosen.co_located:
        return {"podAntiAffinity": {key: apart}, "podAffinity": {key: [beside("worker")]}}
    if role == "ps":
        apart.append(beside("worker"))
    return {"podAntiAffinity": {key: apart}}


def _notes(job: Job, chosen: ParameterServerConfiguration, num_workers: int, image: str) -> tuple[str, ...]:
    """Return what the job does not say by itself."""
    notes = [
        f"servers: {chosen.num_parameter_servers}, workers: {num_workers}; TFJob starts them and gives each TF_CONFIG, "
        f"by which the program trains",
        "tensors: TensorFlow places variables by its own rules; PLANNER_PLACEMENT names the file with the plan's, for "
        "tf.device or a partitioner of the program",
    ]
    words = {
        "bsp": "barrier: tf.distribute's ParameterServerStrategy has none, and a program of its own must wait for all "
        "workers (tf.compat.v1.train.SyncReplicasOptimizer does)",
        "ssp": f"staleness: TensorFlow does not bound it; the program has to wait where it leads by more than "
        f"{chosen.staleness} iterations",
        "asp": "no barrier, as tf.distribute's ParameterServerStrategy works",
        "local_sgd": f"local steps: the program exchanges every {chosen.staleness + 1} iterations by itself",
    }
    notes.append(words[chosen.synchronisation])
    if chosen.compression is not None:
        removed = float(chosen.compression.removed)
        notes.append(f"compression: the plan leaves out {removed:.1%} of every gradient; the program has to do so")
    if chosen.global_batch_size is not None:
        notes.append(f"global batch {chosen.global_batch_size}: at most {max(chosen.batch_shares.values())} a device")
    if not job.settings.script:
        notes.append(f"program: {_PROGRAM}, unless --script names yours")
    if not job.settings.image:
        notes.append(f"image: {image}, unless --image names one with your program in it")
    return tuple(notes)


# -- reading it back ---------------------------------------------------------------------------------------------------


def recognises(path: Path, text: str) -> bool:
    """Whether a file is such a job."""
    del path  # whatever its name
    return has_document(text, _KIND)


def degrees(path: Path, text: str) -> Mapping[str, Any]:
    """Return the number of servers, and whether they stand on workers' machines.

    Raises
    ------
    SpecError
        If it has no servers.
    """
    found = document_of(text, _KIND)
    spec, metadata = found.get("spec"), found.get("metadata")
    replicas = spec.get("tfReplicaSpecs") if isinstance(spec, dict) else None
    servers = replicas.get("PS") if isinstance(replicas, dict) else None
    number = servers.get("replicas") if isinstance(servers, dict) else None
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        problem = f"it has {number!r} parameter servers (spec.tfReplicaSpecs.PS.replicas)."
        raise SpecError.of([Fault(file=str(path), problem=problem, mend="Write a whole number of at least 1.")])
    notes = metadata.get("annotations") if isinstance(metadata, dict) else None
    place = notes.get(_PLACE) if isinstance(notes, dict) else None
    block: dict[str, Any] = {"num_parameter_servers": number}
    return block | ({"co_located": place == _SHARED} if place in (_OWN, _SHARED) else {})
