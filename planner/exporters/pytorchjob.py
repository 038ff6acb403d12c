"""Export for Kubeflow's PyTorchJob: equal machines, each of which runs the launch of another target.

Fields: ``kubeflow.org_pytorchjobs.yaml`` of kubeflow/training-operator 1.9; read back in the tests by the classes of
its own Python client (kubeflow-training 1.9.4). The operator gives every pod ``RANK``, the number of its machine, and
the address of the first as ``MASTER_ADDR``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.exporters.export import Export, Job
from planner.exporters.kubeflow_torch import equal_machines, pins
from planner.exporters.kubernetes import (
    IMAGE,
    config_map,
    config_volume,
    device_limits,
    device_note,
    documents_of,
    job_name,
    start_command,
    yaml_text,
)

__all__ = ["VERSION", "degrees", "export", "recognises"]

VERSION = "Kubeflow training operator 1.9, kubeflow.org/v1"
_FILE = "pytorchjob.yaml"


def export(job: Job) -> Export:
    """Return the job, and the ConfigMap that it reads.

    Raises
    ------
    InfeasibleError
        If its machines are unlike, or have parameter servers.
    """
    inner, name = equal_machines(job, "pytorchjob"), job_name(job)
    machines = inner.machines[0]
    limits = device_limits(job, machines)
    volume, mount = config_volume(name)
    container: dict[str, Any] = {
        "name": "pytorch",  # the operator looks for this one
        "image": job.settings.image or IMAGE,
        "command": start_command(inner.scripts[0], "$RANK", "$MASTER_ADDR"),
        "volumeMounts": [mount, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    if limits:
        container["resources"] = {"limits": limits}
    shared = {"name": "shm", "emptyDir": {"medium": "Memory"}}  # NCCL and loaders need more than a container's 64 MiB
    spec = {"containers": [container], "volumes": [volume, shared]}
    roles = {"Master": 1, "Worker": inner.num_machines - 1}
    replicas = {
        role: {"replicas": count, "restartPolicy": "Never", "template": {"spec": spec}}
        for role, count in roles.items()
        if count
    }
    document = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "nprocPerNode": str(machines.devices_per_machine),
            "runPolicy": {"cleanPodPolicy": "None"},
            "pytorchReplicaSpecs": replicas,
        },
    }
    notes = (*inner.export.notes, device_note([machines]), *_image_note(job))
    head = [f"planner.export/1 pytorchjob, for {VERSION}", job.plan.configuration.headline, *notes]
    files = {_FILE: yaml_text([config_map(name, inner.export.files), document], head)}
    return Export(
        target="pytorchjob", version=VERSION, files=files, notes=notes, how_to_run=(f"kubectl apply -f {_FILE}",)
    )


def _image_note(job: Job) -> tuple[str, ...]:
    """Return what image is taken, where none was given."""
    return () if job.settings.image else (f"image: {IMAGE}, unless --image names one with your program in it",)


def recognises(path: Path, text: str) -> bool:
    """Whether a file is such a job."""
    del path  # whatever its name
    return "PyTorchJob" in text and any(one.get("kind") == "PyTorchJob" for one in documents_of(text))


def degrees(path: Path, text: str) -> Mapping[str, Any]:
    """Return the number of devices; the layout stands in the files of the ConfigMap.

    Raises
    ------
    SpecError
        If the numbers are missing.
    """
    spec = next(one for one in documents_of(text) if one.get("kind") == "PyTorchJob").get("spec")
    spec = spec if isinstance(spec, dict) else {}
    replicas = spec.get("pytorchReplicaSpecs")
    roles = replicas.values() if isinstance(replicas, dict) else ()
    counts = [role.get("replicas") for role in roles if isinstance(role, dict)]
    whole = [count for count in counts if isinstance(count, int)]
    number = sum(whole) if len(whole) == len(counts) == len(roles) else None
    each = str(spec.get("nprocPerNode", ""))
    return pins(path, number, int(each) if each.isascii() and each.isdigit() else each)
