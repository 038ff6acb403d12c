"""Jobs of Kubeflow on Kubernetes: TFJob with parameter servers; PyTorchJob and TrainJob of equal machines.

A job starts machines; what trains on them comes along in a ConfigMap, as another target wrote it, or, for TFJob, as the
placement of every tensor. Field names: the core API of Kubernetes (v1: Pod, ConfigMap); ``kubeflow.org_tfjobs.yaml``
and ``kubeflow.org_pytorchjobs.yaml`` of kubeflow/training-operator 1.9; ``trainer.kubeflow.org_trainjobs.yaml`` of
kubeflow/trainer 2.3. All are read back in the tests by Kubernetes' and Kubeflow's own clients (kubeflow-training 1.9.4,
kubeflow-trainer-api 2.3.0).

- TFJob is the one job that counts parameter servers; Trainer v2 has no successor for it (kubeflow/trainer issue 2699).
  The operator gives every pod ``TF_CONFIG``, and labels its job and its role, by which servers are kept on machines of
  their own, or on those of workers.
- PyTorchJob's operator gives every pod ``RANK``, the number of its machine, and the address of the first as
  ``MASTER_ADDR``.
- TrainJob's runtime ``torch-distributed``, which Trainer ships, gives every pod the arguments of torchrun as
  ``PET_NODE_RANK``, ``PET_MASTER_ADDR`` and so on, and calls its job and its container ``node``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from planner.decisions import Value, row_of, written
from planner.errors import SpecError
from planner.exporters.export import Export, Exporter, Job, TrainingBlocks, job_name, refused
from planner.exporters.machines import device_of, inner_of, is_one_shape, machine_words, require_kinds, used_machines
from planner.exporters.scripts import Parsed, comment_lines, script_words
from planner.families.parameter_server.configuration import ParameterServerConfiguration
from planner.used_machines import UsedMachines
from planner.yaml_text import MOST_LAUNCH_LETTERS, read_yaml_documents

_OPERATOR = "Kubeflow training operator 1.9, kubeflow.org/v1"
_TRAINER = "Kubeflow Trainer 2.3, trainer.kubeflow.org/v1alpha1"
_FOLDER = "/etc/planner"  # where the files of the launch are found in a container
_MOST_CONFIG_BYTES = 2**20  # of a ConfigMap, as etcd allows
_TORCH_IMAGES = {"": "docker.io/pytorch/pytorch:latest", "amd": "docker.io/rocm/pytorch:latest"}
_TENSORFLOW_IMAGES = {
    "": "docker.io/tensorflow/tensorflow:latest",
    "nvidia": "docker.io/tensorflow/tensorflow:latest-gpu",
    "amd": "docker.io/rocm/tensorflow:latest",
}
_PLACEMENT = "placement.json"
_PROGRAM = "train.py"
_RUNTIME, _NODE = "torch-distributed", "node"
# Key of ``fix`` -> the variable by which servers and workers of a TFJob are told of it.
_SAID = {
    "synchronisation": "PLANNER_SYNCHRONISATION",
    "overlap": "PLANNER_OVERLAP",
    "barrier": "PLANNER_BARRIER",
    "partition_bytes": "BYTEPS_PARTITION_BYTES",
    "priority": "BYTEPS_SERVER_ENABLE_SCHEDULE",
}
_PLACE, _OWN, _SHARED = "planner/servers", "dedicated", "co-located"
# The files of the launch, and shared memory: NCCL and loaders need more than a container's 64 MiB.
_FILES = {"name": "planner", "mountPath": _FOLDER, "readOnly": True}
_MEMORY = {"name": "shm", "emptyDir": {"medium": "Memory"}}
_MEMORY_MOUNT = {"name": "shm", "mountPath": "/dev/shm"}


# -- PyTorchJob and TrainJob -------------------------------------------------------------------------------------------


def _export_torch(job: Job, target: str) -> Export:
    """Return a job of equal machines, and the ConfigMap with the files of the program that trains.

    Raises
    ------
    InfeasibleError
        If its machines are unlike, or serve parameters, or the program cannot run the plan.
    SpecError
        If the program only starts machines itself.
    """
    inner = inner_of(job, target)
    if not is_one_shape(inner.machines):
        words = machine_words(inner.machines)
        raise refused(target, f"all its machines are alike, and this plan takes {words}", "slurm takes unlike ones.")
    row, name, number = inner.machines[0], job_name(job), inner.num_machines
    maker = _maker_of(job, row)
    mounts, volumes = [_FILES, _MEMORY_MOUNT], [_files_volume(name), _MEMORY]
    rank, address = ("$RANK", "$MASTER_ADDR") if target == "pytorchjob" else ("$PET_NODE_RANK", "$PET_MASTER_ADDR")
    # The files come into the working directory, where a launch expects them.
    start = f'export NODE_RANK="{rank}" MASTER_ADDR="{address}"; cp {_FOLDER}/* . && exec bash {inner.scripts[0]}'
    command, image = ["bash", "-c", start], job.settings.image
    if target == "pytorchjob":
        usual = _TORCH_IMAGES.get(maker, _TORCH_IMAGES[""])
        note = f"image: {usual}, unless --image names one with your program in it"
        container = {
            "name": "pytorch",  # the operator looks for this one
            "image": image or usual,
            "command": command,
            "volumeMounts": mounts,
            **_limits("resources", maker, row),
        }
        pod = {"containers": [container], "volumes": volumes}
        document = {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": name},
            "spec": {
                "nprocPerNode": str(row.devices_per_machine),
                "runPolicy": {"cleanPodPolicy": "None"},
                "pytorchReplicaSpecs": {
                    role: {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}
                    for role, count in (("Master", 1), ("Worker", number - 1))
                    if count
                },
            },
        }
    else:
        note = f"image: that of the runtime {_RUNTIME}; --image names yours"
        trainer = {"numNodes": number, "numProcPerNode": row.devices_per_machine, "command": command}
        trainer |= ({"image": image} if image else {}) | _limits("resourcesPerNode", maker, row)
        pod = {"volumes": volumes, "containers": [{"name": _NODE, "volumeMounts": mounts}]}
        # A change of the runtime's pods, wrapped in the job of a job set that it lies in.
        patch = {"replicatedJobs": [{"name": _NODE, "template": {"spec": {"template": {"spec": pod}}}}]}
        document = {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": name},
            "spec": {
                "runtimeRef": {"name": _RUNTIME},
                "trainer": trainer,
                "runtimePatches": [{"manager": "planner", "trainingRuntimeSpec": {"template": {"spec": patch}}}],
            },
        }
    notes = [*inner.export.notes, _device_note([row]), *([] if image else [note])]
    version = _OPERATOR if target == "pytorchjob" else _TRAINER
    return _job_export(job, target, version, files=inner.export.files, document=document, notes=notes)


def _torch_degrees(path: Path, text: str, kind: str) -> Mapping[str, object]:
    """Return the number of devices; the layout stands in the files of the ConfigMap."""
    file = Parsed(path, _document_of(text, kind))
    if kind == "TrainJob":
        return {"num_devices": file.count("spec.trainer.numNodes") * file.count("spec.trainer.numProcPerNode")}
    roles, place = file.value("spec.pytorchReplicaSpecs"), "spec.pytorchReplicaSpecs"
    names = list(roles) if isinstance(roles, dict) and roles else ["Master"]
    number = sum(file.count(f"{place}.{name}.replicas") for name in names)
    return {"num_devices": number * replace(file, is_text=True).count("spec.nprocPerNode")}  # a text, in its own words


def _torch_training(_path: Path, text: str) -> TrainingBlocks:
    """Return nothing but that the files of the ConfigMap, which say how the devices train, are not read."""
    files = [name for one in documents_of(text) if one.get("kind") == "ConfigMap" for name in one.get("data") or ()]
    named = f" ({', '.join(map(str, files))})" if files else ""
    told = f"the number of devices alone is read: the layout stands in what the job starts{named}"
    return TrainingBlocks(warnings=(f"{told}; save that as files of a folder, and import the folder",))


# -- TFJob -------------------------------------------------------------------------------------------------------------


def _export_tfjob(job: Job) -> Export:
    """Return the job, and the ConfigMap with the server of every tensor.

    Raises
    ------
    InfeasibleError
        If the plan has no parameter servers, or unlike workers, or workers that are neither GPUs nor CPUs.
    """
    chosen = job.plan.configuration
    if not isinstance(chosen, ParameterServerConfiguration):
        hint = "Plan with families: [parameter_server] for one that has."
        raise refused("tfjob", f"it has no parameter servers ({job.plan.family})", hint)
    rows = [row for row in used_machines(job) if row.role == "worker"]
    require_kinds("tfjob", job, rows, "gpu", "cpu")
    if not is_one_shape(rows):
        hint = "Plan with workers of one group (fix.device), or start them by hand."
        why = f"all its workers are alike, and this plan takes {machine_words(rows)}"
        raise refused("tfjob", why, hint)
    name, maker, number = job_name(job), _maker_of(job, rows[0]), sum(row.num_machines for row in rows)
    image = job.settings.image or _TENSORFLOW_IMAGES[maker]
    # Python starts the user's program, as the launchers of other targets do, or it starts itself.
    words = script_words(job.settings.script, _PROGRAM)
    words = f"python {words}" if words.startswith("-m ") or words.split()[0].endswith(".py") else words
    said = {
        "synchronisation": chosen.synchronisation,
        "overlap": chosen.overlap,
        "barrier": chosen.has_barrier,
        "partition_bytes": None if chosen.partition_bytes is None else round(chosen.partition_bytes),
        "priority": 1 if chosen.has_priority else None,
    }
    settings = {
        "PLANNER_PLACEMENT": f"{_FOLDER}/{_PLACEMENT}",
        "PLANNER_BATCH_PER_DEVICE": str(max(chosen.batch_shares.values())),
        _SAID["synchronisation"]: chosen.synchronisation,
        "PLANNER_STALENESS": str(chosen.staleness),
        **{_SAID[key]: written(value) for key, value in said.items() if value is not None},
    }
    roles = {}
    for role, count in (("PS", chosen.num_parameter_servers), ("Worker", number)):
        container: dict[str, Any] = {
            "name": "tensorflow",  # the operator looks for this one
            "image": image,
            "command": ["bash", "-c", f"exec {words}"],
            "env": [{"name": key, "value": value} for key, value in settings.items()],
            "volumeMounts": [_FILES],
            **(_limits("resources", maker, rows[0]) if role == "Worker" else {}),
        }
        affinity = _affinity(name, role.lower(), is_shared=chosen.co_located)
        pod = {"affinity": affinity, "containers": [container], "volumes": [_files_volume(name)]}
        roles[role] = {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}
    document = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name, "annotations": {_PLACE: _SHARED if chosen.co_located else _OWN}},
        "spec": {"runPolicy": {"cleanPodPolicy": "Running"}, "tfReplicaSpecs": roles},
    }
    placement: dict[str, Any] = {"num_parameter_servers": chosen.num_parameter_servers}
    if isinstance(chosen.placement, str):
        placement["rule"] = chosen.placement
    else:
        placement["server_of"] = dict(chosen.placement)
    files = {_PLACEMENT: json.dumps(placement, indent=1) + "\n"}
    notes = (*_tfjob_notes(job, chosen, number, image), _device_note(rows))
    return _job_export(job, "tfjob", _OPERATOR, files=files, document=document, notes=notes)


def _affinity(name: str, role: str, *, is_shared: bool) -> dict[str, Any]:
    """Return which pods of the job may share a machine: one of a role; a server joins a worker, or no one."""

    def beside(other: str) -> dict[str, Any]:
        labels = {"training.kubeflow.org/job-name": name, "training.kubeflow.org/replica-type": other}
        return {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}

    key = "requiredDuringSchedulingIgnoredDuringExecution"
    if role == "ps" and is_shared:
        return {"podAntiAffinity": {key: [beside(role)]}, "podAffinity": {key: [beside("worker")]}}
    return {"podAntiAffinity": {key: [beside(role), *([beside("worker")] if role == "ps" else [])]}}


def _tfjob_notes(job: Job, chosen: ParameterServerConfiguration, num_workers: int, image: str) -> list[str]:
    """Return what the job does not say by itself."""
    synchronisations = {
        "bsp": "barrier: tf.distribute's ParameterServerStrategy has none, and a program of its own must wait for all "
        "workers (tf.compat.v1.train.SyncReplicasOptimizer does)",
        "ssp": f"staleness: TensorFlow does not bound it; the program has to wait where it leads by more than "
        f"{chosen.staleness} iterations",
        "asp": "no barrier, as tf.distribute's ParameterServerStrategy works",
        "local_sgd": f"local steps: the program exchanges every {chosen.staleness + 1} iterations by itself",
    }
    notes = [
        f"servers: {chosen.num_parameter_servers}, workers: {num_workers}; TFJob starts them and gives each TF_CONFIG, "
        f"by which the program trains",
        "tensors: TensorFlow places variables by its own rules; PLANNER_PLACEMENT names the file with the plan's, for "
        "tf.device or a partitioner of the program",
        f"sums{chosen.beside}: TensorFlow sends none on its own; the program exchanges by a library that does (BytePS: "
        f"push_pull of every gradient, by the variables BYTEPS_.. here; its CrossBarrier for push_pull_forward)"
        if chosen.sends_alone
        else synchronisations[chosen.synchronisation],
    ]
    if chosen.compression is not None:
        removed = float(chosen.compression.removed)
        notes.append(f"compression: the plan leaves out {removed:.1%} of every gradient; the program has to do so")
    if chosen.global_batch_size is not None:
        notes.append(f"global batch {chosen.global_batch_size}: at most {max(chosen.batch_shares.values())} a device")
    if not job.settings.script:
        notes.append(f"program: {_PROGRAM}, unless --script names yours")
    if not job.settings.image:
        notes.append(f"image: {image}, unless --image names one with your program in it")
    return notes


def _tfjob_degrees(path: Path, text: str, kind: str) -> Mapping[str, object]:
    """Return the number of servers, whether they stand on workers' machines, and what goes to and from them how."""
    file = Parsed(path, _document_of(text, kind))
    number = file.count("spec.tfReplicaSpecs.PS.replicas")
    metadata = file.flags.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    place = annotations.get(_PLACE) if isinstance(annotations, dict) else None
    where = {"co_located": place == _SHARED} if place in (_OWN, _SHARED) else {}
    pods = file.value("spec.tfReplicaSpecs.PS.template.spec.containers", [])
    rows = [Parsed(path, one) for pod in pods if isinstance(pod, Mapping) for one in pod.get("env") or ()]
    told = Parsed(path, {str(row.value("name")): [str(row.value("value"))] for row in rows}, is_text=True)
    return {
        "num_parameter_servers": number,
        **where,
        **{key: _read(told, key, name) for key, name in _SAID.items() if name in told.flags},
    }


def _read(told: Parsed, key: str, name: str) -> Value:
    """Return what a variable says of a decision."""
    row = row_of(key)
    if row.is_size:
        return told.count(name)
    words = {"1": True, **{written(one): one for one in row.values}}
    if (text := told.value(name)) not in words:
        raise told.fault(f"{text[:60]!r} is none.", name, f"Write one of {', '.join(map(written, row.values))}.")
    return words[text]


def _tfjob_training(_path: Path, _text: str) -> TrainingBlocks:
    """Return nothing but that the placement of tensors and the shares of the batch are not read."""
    told = "the number of workers, their shares of the batch, and which server has which tensor are not read"
    return TrainingBlocks(warnings=(told,))


# -- what all jobs share -----------------------------------------------------------------------------------------------


def _maker_of(job: Job, row: UsedMachines) -> str:
    """Return whose drivers and images the devices of a row need: nvidia or amd; no one's where CPUs train."""
    device = device_of(job, row)
    if row.devices_per_machine == 0 or device.kind == "cpu":
        return ""
    return "amd" if device.is_amd else "nvidia"


def _limits(key: str, maker: str, row: UsedMachines) -> dict[str, Any]:
    """Return the accelerators that one machine's container asks for, as resource limits; nothing where CPUs train."""
    return {key: {"limits": {f"{maker}.com/gpu": str(row.devices_per_machine)}}} if maker else {}


def _files_volume(name: str) -> dict[str, Any]:
    """Return the volume of the ConfigMap that carries the files of the launch."""
    return {"name": _FILES["name"], "configMap": {"name": name}}


def _device_note(rows: Sequence[UsedMachines]) -> str:
    """Return that the nodes must be told apart by labels, which every cluster names otherwise."""
    names = ", ".join(dict.fromkeys(row.device for row in rows))
    return (
        f"nodes: Kubernetes counts accelerators and does not name them: the plan is for {names}; where the cluster has "
        f"others, too, add a nodeSelector (nvidia.com/gpu.product, say)"
    )


def _job_export(
    job: Job, target: str, version: str, *, files: Mapping[str, str], document: Mapping[str, Any], notes: Sequence[str]
) -> Export:
    """Return a job and the ConfigMap of the same name that it reads, in one file."""
    if sum(len(text.encode()) for text in files.values()) > _MOST_CONFIG_BYTES:
        raise refused(target, "its files are larger than a ConfigMap holds (1 MiB)", "Use slurm or skypilot.")
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": job_name(job)}, "data": dict(files)}
    head = [f"planner.export/1 {target}, for {version}", job.plan.configuration.headline, *notes]
    name = f"{target}.yaml"
    return Export(
        target=target,
        version=version,
        files={name: yaml_text([config, document], head)},
        notes=tuple(notes),
        how_to_run=(f"kubectl apply -f {name}",),
    )


def yaml_text(documents: Sequence[Mapping[str, object]], head: Sequence[str]) -> str:
    """Return YAML documents with comments before the first; files in them stand line by line, as they are."""
    from ruamel.yaml import YAML  # noqa: PLC0415  # late: `planner --help` has no use for it
    from ruamel.yaml.scalarstring import LiteralScalarString  # noqa: PLC0415

    def with_lines(part: object) -> Any:
        """Return a part of a document whose texts of several lines are written as lines."""
        if isinstance(part, Mapping):
            return {key: with_lines(value) for key, value in part.items()}
        if isinstance(part, list):
            return [with_lines(value) for value in part]
        return LiteralScalarString(part) if isinstance(part, str) and "\n" in part else part

    writer = YAML(typ="rt", pure=True)
    writer.default_flow_style = False
    writer.width = 4096  # no text is folded
    writer.representer.ignore_aliases = lambda _: True  # equal parts are written twice, not named
    texts = []
    for document in documents:
        stream = StringIO()
        writer.dump(with_lines(document), stream)
        texts.append(stream.getvalue())
    return "\n".join(comment_lines(head)) + "\n" + "---\n".join(texts)


def documents_of(text: str) -> list[dict[str, Any]]:
    """Return the mappings among the documents of a YAML file, safely read; none where it is no YAML of a usual size."""
    try:
        documents = read_yaml_documents(text, most_letters=MOST_LAUNCH_LETTERS)
    except SpecError:
        return []
    return [document for document in documents if isinstance(document, dict)]


def _document_of(text: str, kind: str) -> dict[str, Any]:
    """Return the first document of a kind; an empty one where there is none."""
    return next((document for document in documents_of(text) if document.get("kind") == kind), {})


def _exporter(kind: str) -> Exporter:
    """Return what writes and reads jobs of a kind, whatever the name of their file."""
    is_tfjob = kind == "TFJob"

    def recognises(path: Path, text: str) -> bool:
        return kind in text and bool(_document_of(text, kind))

    return Exporter(
        export=_export_tfjob if is_tfjob else partial(_export_torch, target=kind.lower()),
        recognises=recognises,
        degrees=partial(_tfjob_degrees if is_tfjob else _torch_degrees, kind=kind),
        training=_tfjob_training if is_tfjob else _torch_training,
    )


EXPORTERS = {kind.lower(): _exporter(kind) for kind in ("TFJob", "PyTorchJob", "TrainJob")}
