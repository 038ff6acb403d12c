"""Kubeflow's own Python clients read the jobs, and give back all that was written: nothing they do not know is in them."""

import copy
from typing import Any

import pytest
from kubeflow_jobs import job_of

from planner.exporters import export
from planner.exporters.kubernetes import documents_of

kubernetes = pytest.importorskip("kubernetes.client", reason="kubernetes is not installed; run make test-heavy")
models = pytest.importorskip(
    "kubeflow.training.models", reason="kubeflow-training is not installed; run make test-heavy"
)
trainer = pytest.importorskip(
    "kubeflow_trainer_api.models", reason="kubeflow-trainer-api is not installed; run make test-heavy"
)

V1 = {"TFJob": "KubeflowOrgV1TFJob", "PyTorchJob": "KubeflowOrgV1PyTorchJob", "ConfigMap": "V1ConfigMap"}


class Answer:
    def __init__(self, document: dict[str, Any]) -> None:
        import json

        self.data = json.dumps(document)


def read_by_v1(document: dict[str, Any]) -> dict[str, Any]:
    """A document as the training operator's client understands it."""
    client = kubernetes.ApiClient()
    kind = getattr(models, V1[document["kind"]], None) or getattr(kubernetes, V1[document["kind"]])

    def deserialised(data: Any, klass: Any) -> Any:
        """The client looks for its classes by name in its own module alone; the operator's are elsewhere."""
        if isinstance(klass, str) and hasattr(models, klass):
            klass = getattr(models, klass)
        return original(data, klass)

    original = client._ApiClient__deserialize
    client._ApiClient__deserialize = deserialised
    found = client._ApiClient__deserialize(document, kind)
    result: dict[str, Any] = client.sanitize_for_serialization(found)
    return result


def read_by_v2(document: dict[str, Any]) -> dict[str, Any]:
    """A document as the trainer's client understands it."""
    result: dict[str, Any] = trainer.TrainerV1alpha1TrainJob.from_dict(document).to_dict()
    return result


@pytest.mark.parametrize(
    ("name", "target"),
    [("data", "pytorchjob"), ("layout", "pytorchjob"), ("own", "tfjob"), ("shared", "tfjob")],
)
def test_the_training_operators_client_understands_every_key(name: str, target: str) -> None:
    for document in documents_of(next(iter(export(target, job_of(name)).files.values()))):
        assert read_by_v1(document) == document


@pytest.mark.parametrize("name", ["data", "layout"])
def test_the_trainers_client_understands_every_key(name: str) -> None:
    config, job = documents_of(next(iter(export("trainjob", job_of(name)).files.values())))
    assert read_by_v1(config) == config
    assert read_by_v2(job) == job


def test_the_check_can_fail() -> None:
    job = documents_of(next(iter(export("tfjob", job_of("own")).files.values())))[1]
    wrong = copy.deepcopy(job)
    wrong["spec"]["tfReplicaSpec"] = wrong["spec"].pop("tfReplicaSpecs")
    with pytest.raises(ValueError, match="tf_replica_specs"):
        read_by_v1(wrong)
    wrong = copy.deepcopy(job)
    wrong["spec"]["tfReplicaSpecs"]["PS"]["replica"] = 3
    assert read_by_v1(wrong) != wrong
    job = documents_of(next(iter(export("trainjob", job_of("data")).files.values())))[1]
    wrong = copy.deepcopy(job)
    wrong["spec"]["trainer"]["numNodes"] = "two"
    with pytest.raises(ValueError, match="numNodes"):
        read_by_v2(wrong)
