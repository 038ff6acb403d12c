"""Export for Kubeflow's TrainJob (Trainer v2), which follows PyTorchJob and TFJob: equal machines, no servers.

Fields: ``trainer.kubeflow.org_trainjobs.yaml`` of kubeflow/trainer 2.3, read back in the tests by the classes of its
own Python client (kubeflow-trainer-api 2.3.0). The runtime ``torch-distributed`` that Trainer ships gives every pod the
arguments of torchrun as ``PET_NODE_RANK``, ``PET_MASTER_ADDR`` and so on, and calls its job and its container ``node``.
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

VERSION = "Kubeflow Trainer 2.3, trainer.kubeflow.org/v1alpha1"
_KIND, _RUNTIME, _NODE = "TrainJob", "torch-distributed", "node"


def export(job: Job) -> Export:
    """Return the job, and the ConfigMap that it reads.

    Raises
    ------
    InfeasibleError
        If its machines are unlike, or have parameter servers.
    """
    return export_equal(
        job,
        "trainjob",
        VERSION,
        describe=lambda machines: _document(machines, job.settings.image),
        image=lambda _: f"that of the runtime {_RUNTIME}; --image names yours",
    )


def _document(machines: EqualMachines, image: str | None) -> dict[str, Any]:
    """Return the job."""
    (volume, mount), (memory, memory_mount) = config_volume(machines.name), memory_volume()
    trainer = {
        "numNodes": machines.num_machines,
        "numProcPerNode": machines.row.devices_per_machine,
        "command": start_command(machines.script, "$PET_NODE_RANK", "$PET_MASTER_ADDR"),
        **({"image": image} if image else {}),
    }
    pod = {"volumes": [volume, memory], "containers": [{"name": _NODE, "volumeMounts": [mount, memory_mount]}]}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": _KIND,
        "metadata": {"name": machines.name},
        "spec": {
            "runtimeRef": {"name": _RUNTIME},
            "trainer": limited(trainer, "resourcesPerNode", machines.limits),
            "runtimePatches": [{"manager": "planner", "trainingRuntimeSpec": {"template": {"spec": _patch(pod)}}}],
        },
    }


def _patch(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return a change of the runtime's pods, wrapped in the job of a job set that it lies in."""
    return {"replicatedJobs": [{"name": _NODE, "template": {"spec": {"template": {"spec": dict(pod)}}}}]}


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
    trainer = spec.get("trainer") if isinstance(spec, dict) else None
    block = trainer if isinstance(trainer, dict) else {}
    return pins(path, block.get("numNodes"), block.get("numProcPerNode"))
