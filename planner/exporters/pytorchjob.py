"""Export for Kubeflow's PyTorchJob: equal machines, each of which runs the launch of another target.

Fields: ``kubeflow.org_pytorchjobs.yaml`` of kubeflow/training-operator 1.9; read back in the tests by the classes of
its own Python client (kubeflow-training 1.9.4). The operator gives every pod ``RANK``, the number of its machine, and
the address of the first as ``MASTER_ADDR``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.exporters.export import Export, Job
from planner.exporters.kubeflow_torch import EqualMachines, export_equal, pins
from planner.exporters.kubernetes import (
    config_volume,
    document_of,
    has_document,
    limited,
    memory_volume,
    start_command,
)

__all__ = ["VERSION", "degrees", "export", "recognises"]

VERSION = "Kubeflow training operator 1.9, kubeflow.org/v1"
_KIND = "PyTorchJob"
_IMAGES = {"": "docker.io/pytorch/pytorch:latest", "amd": "docker.io/rocm/pytorch:latest"}


def export(job: Job) -> Export:
    """Return the job, and the ConfigMap that it reads.

    Raises
    ------
    InfeasibleError
        If its machines are unlike, or have parameter servers.
    """
    return export_equal(
        job,
        "pytorchjob",
        VERSION,
        describe=lambda machines: _document(machines, job.settings.image or _image(machines)),
        image=lambda machines: f"{_image(machines)}, unless --image names one with your program in it",
    )


def _image(machines: EqualMachines) -> str:
    """Return the public image for the devices."""
    return _IMAGES.get(machines.maker, _IMAGES[""])


def _document(machines: EqualMachines, image: str) -> dict[str, Any]:
    """Return the job."""
    volume, mount = config_volume(machines.name)
    memory, memory_mount = memory_volume()
    container = {
        "name": "pytorch",  # the operator looks for this one
        "image": image,
        "command": start_command(machines.script, "$RANK", "$MASTER_ADDR"),
        "volumeMounts": [mount, memory_mount],
    }
    pod = {"containers": [limited(container, "resources", machines.limits)], "volumes": [volume, memory]}
    roles = {"Master": 1, "Worker": machines.num_machines - 1}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": _KIND,
        "metadata": {"name": machines.name},
        "spec": {
            "nprocPerNode": str(machines.row.devices_per_machine),
            "runPolicy": {"cleanPodPolicy": "None"},
            "pytorchReplicaSpecs": {
                role: {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}
                for role, count in roles.items()
                if count
            },
        },
    }


def recognises(path: Path, text: str) -> bool:
    """Whether a file is such a job."""
    del path  # whatever its name
    return has_document(text, _KIND)


def degrees(path: Path, text: str) -> Mapping[str, Any]:
    """Return the number of devices; the layout stands in the files of the ConfigMap.

    Raises
    ------
    SpecError
        If the numbers are missing.
    """
    spec = document_of(text, _KIND).get("spec")
    spec = spec if isinstance(spec, dict) else {}
    replicas = spec.get("pytorchReplicaSpecs")
    roles = replicas.values() if isinstance(replicas, dict) else ()
    counts = [role.get("replicas") for role in roles if isinstance(role, dict)]
    whole = [count for count in counts if isinstance(count, int)]
    number = sum(whole) if len(whole) == len(counts) == len(roles) else None
    each = str(spec.get("nprocPerNode", ""))
    return pins(path, number, int(each) if each.isascii() and each.isdigit() else each)
