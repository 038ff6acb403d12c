"""What all jobs of Kubeflow share: containers, what they ask of a machine, files that come with them, and YAML.

Field names: the core API of Kubernetes (v1: Pod, ConfigMap); read back in the tests by Kubernetes' own client.
"""

import re
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from planner.errors import SpecError
from planner.exporters.export import Export, Job, refused
from planner.exporters.machines import device_of
from planner.exporters.torchrun import comment_lines
from planner.used_machines import UsedMachines
from planner.yaml_text import MOST_LAUNCH_LETTERS, read_yaml_documents

__all__ = [
    "FOLDER",
    "MOST_CONFIG_BYTES",
    "config_map",
    "config_volume",
    "device_limits",
    "device_note",
    "document_of",
    "documents_of",
    "has_document",
    "job_export",
    "limited",
    "maker_of",
    "memory_volume",
    "start_command",
    "yaml_text",
]

FOLDER = "/etc/planner"  # where the files of the launch are found in a container
MOST_CONFIG_BYTES = 2**20  # of a ConfigMap, as etcd allows
_VOLUME, _SHARED = "planner", "shm"
_AMD = re.compile(r"mi\d{2,3}")  # how names of its accelerators start


def maker_of(job: Job, row: UsedMachines) -> str:
    """Return whose drivers and images the devices of a row need: nvidia or amd; no one's where CPUs train."""
    device = device_of(job, row)
    if row.devices_per_machine == 0 or device.kind == "cpu":
        return ""
    return "amd" if _AMD.match(device.name) else "nvidia"


def device_limits(job: Job, row: UsedMachines) -> dict[str, str]:
    """Return the accelerators that one machine's container asks for, as resource limits; none where CPUs train."""
    maker = maker_of(job, row)
    return {f"{maker}.com/gpu": str(row.devices_per_machine)} if maker else {}


def limited(block: Mapping[str, Any], key: str, limits: Mapping[str, str]) -> dict[str, Any]:
    """Return a block with limits under a key; as it is without any."""
    return {**block, key: {"limits": dict(limits)}} if limits else dict(block)


def device_note(rows: Sequence[UsedMachines]) -> str:
    """Return that the nodes must be told apart by labels, which every cluster names otherwise."""
    names = ", ".join(dict.fromkeys(row.device for row in rows))
    return (
        f"nodes: Kubernetes counts accelerators and does not name them: the plan is for {names}; where the cluster has "
        f"others, too, add a nodeSelector (nvidia.com/gpu.product, say)"
    )


def config_map(name: str, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the ConfigMap that carries files; their total must stay below :data:`MOST_CONFIG_BYTES`."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(files)}


def config_volume(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the volume of a ConfigMap, and where a container sees it."""
    volume = {"name": _VOLUME, "configMap": {"name": name}}
    return volume, {"name": _VOLUME, "mountPath": FOLDER, "readOnly": True}


def memory_volume() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return shared memory, and where a container sees it: NCCL and loaders need more than a container's 64 MiB."""
    return {"name": _SHARED, "emptyDir": {"medium": "Memory"}}, {"name": _SHARED, "mountPath": "/dev/shm"}


def start_command(script: str, rank: str, address: str) -> list[str]:
    """Return the command of a container that runs a script with the rank and address that the operator gives.

    The files come into the working directory, where a launch expects them.
    """
    text = f'export NODE_RANK="{rank}" MASTER_ADDR="{address}"; cp {FOLDER}/* . && exec bash {script}'
    return ["bash", "-c", text]


def job_export(
    job: Job, target: str, version: str, *, files: Mapping[str, str], document: Mapping[str, Any], notes: Sequence[str]
) -> Export:
    """Return a job and the ConfigMap that it reads, in one file.

    Parameters
    ----------
    files
        Of the ConfigMap.
    document
        The job, whose name is the ConfigMap's, too.

    Raises
    ------
    InfeasibleError
        If the files are larger than a ConfigMap may be.
    """
    if sum(len(text.encode()) for text in files.values()) > MOST_CONFIG_BYTES:
        raise refused(target, "its files are larger than a ConfigMap holds (1 MiB)", "Use slurm or skypilot.")
    head = [f"planner.export/1 {target}, for {version}", job.plan.configuration.headline, *notes]
    text = yaml_text([config_map(document["metadata"]["name"], files), document], head)
    name = f"{target}.yaml"
    return Export(
        target=target, version=version, files={name: text}, notes=tuple(notes), how_to_run=(f"kubectl apply -f {name}",)
    )


def yaml_text(documents: Sequence[Mapping[str, Any]], head: Sequence[str]) -> str:
    """Return YAML documents with comments before the first; files in them stand line by line, as they are."""
    from ruamel.yaml import YAML  # noqa: PLC0415  # late: `planner --help` has no use for it

    writer = YAML(typ="rt", pure=True)
    writer.default_flow_style = False
    writer.width = 4096  # no text is folded
    writer.representer.ignore_aliases = lambda _: True  # equal parts are written twice, not named
    texts = []
    for document in documents:
        stream = StringIO()
        writer.dump(_with_lines(document), stream)
        texts.append(stream.getvalue())
    return "\n".join(comment_lines(head)) + "\n" + "---\n".join(texts)


def _with_lines(part: Any) -> Any:
    """Return a part of a document whose texts of several lines are written as lines."""
    from ruamel.yaml.scalarstring import LiteralScalarString  # noqa: PLC0415

    if isinstance(part, Mapping):
        return {key: _with_lines(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_with_lines(value) for value in part]
    return LiteralScalarString(part) if isinstance(part, str) and "\n" in part else part


def documents_of(text: str) -> list[dict[str, Any]]:
    """Return the mappings among the documents of a YAML file, safely read; none where it is no YAML of a usual size."""
    try:
        found = read_yaml_documents(text, most_letters=MOST_LAUNCH_LETTERS)
    except SpecError:
        return []
    return [one for one in found if isinstance(one, dict)]


def has_document(text: str, kind: str) -> bool:
    """Whether a text holds a document of a kind."""
    return kind in text and any(one.get("kind") == kind for one in documents_of(text))


def document_of(text: str, kind: str) -> dict[str, Any]:
    """Return the first document of a kind; there is one, see :func:`has_document`."""
    return next(one for one in documents_of(text) if one.get("kind") == kind)
