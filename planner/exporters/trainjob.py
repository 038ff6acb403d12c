"""Export for Kubeflow's TrainJob (Trainer v2), which follows PyTorchJob and TFJob: equal machines, no servers.

Fields: ``trainer.kubeflow.org_trainjobs.yaml`` of kubeflow/trainer 2.3, read back in the tests by the classes of its
own Python client (kubeflow-trainer-api 2.3.0). The runtime ``torch-distributed`` that Trainer ships gives every pod the
arguments of torchrun as ``PET_NODE_RANK``, ``PET_MASTER_ADDR`` and so on, and calls its job and its container ``node``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.exporters.export import Export, Job
from planner.exporters.kubeflow_torch import equal_machines, pins
from planner.exporters.kubernetes import (
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

VERSION = "Kubeflow Trainer 2.3, trainer.kubeflow.org/v1alpha1"
_FILE = "trainjob.yaml"
_RUNTIME, _NODE = "torch-distributed", "node"


def export(job: Job) -> Export:
    """Return the job, and the ConfigMap that it reads.

    Raises
    ------
    InfeasibleError
        If its machines are unlike, or have parameter servers.
    """
    inner, name = equal_machines(job, "trainjob"), job_name(job)
    machines = inner.machines[0]
    volume, mount = config_volume(name)
    trainer: dict[str, Any] = {
        "numNodes": inner.num_machines,
        "numProcPerNode": machines.devices_per_machine,
        "command": start_command(inner.scripts[0], "$PET_NODE_RANK", "$PET_MASTER_ADDR"),
    }
    if job.settings.image:
        trainer["image"] = job.settings.image
    if limits := device_limits(job, machines):
        trainer["resourcesPerNode"] = {"limits": limits}
    pod = {"volumes": [volume], "containers": [{"name": _NODE, "volumeMounts": [mount]}]}
    document = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"name": _RUNTIME},
            "trainer": trainer,
            "runtimePatches": [{"manager": "planner", "trainingRuntimeSpec": {"template": {"spec": _patch(pod)}}}],
        },
    }
    notes = (*inner.export.notes, device_note([machines]), *_image_note(job))
    head = [f"planner.export/1 trainjob, for {VERSION}", job.plan.configuration.headline, *notes]
    files = {_FILE: yaml_text([config_map(name, inner.export.files), document], head)}
    return Export(
        target="trainjob", version=VERSION, files=files, notes=notes, how_to_run=(f"kubectl apply -f {_FILE}",)
    )


def _patch(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return a change of the runtime's pods, wrapped in the job of a job set that it lies in."""
    return {"replicatedJobs": [{"name": _NODE, "template": {"spec": {"template": {"spec": dict(pod)}}}}]}


def _image_note(job: Job) -> tuple[str, ...]:
    """Return what image is taken, where none was given."""
    return () if job.settings.image else (f"image: that of the runtime {_RUNTIME}; --image names yours",)


def recognises(path: Path, text: str) -> bool:
    """Whether a file is such a job."""
    del path  # whatever its name
    return "TrainJob" in text and any(one.get("kind") == "TrainJob" for one in documents_of(text))


def degrees(path: Path, text: str) -> Mapping[str, Any]:
    """Return the number of devices; the layout stands in the files of the ConfigMap.

    Raises
    ------
    SpecError
        If the numbers are missing.
    """
    spec = next(one for one in documents_of(text) if one.get("kind") == "TrainJob").get("spec")
    trainer = spec.get("trainer") if isinstance(spec, dict) else None
    block = trainer if isinstance(trainer, dict) else {}
    return pins(path, block.get("numNodes"), block.get("numProcPerNode"))
