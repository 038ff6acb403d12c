"""Plans of given configurations for every family, as documents to be checked, whole or tampered with."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import planner
from planner.answer.documents import dump
from planner.families import FAMILIES
from planner.families.answer import Searched, plan_of
from planner.problem import Problem
from tests.referee.second_physics import check

LAYERS = [
    {"name": "data", "kind": "input", "output": "40 kB"},
    {"name": "one", "inputs": ["data"], "multiply_adds": 2e7, "parameters": "2 MB", "output": "400 kB"},
    {"name": "two", "inputs": ["one"], "multiply_adds": 3e7, "parameters": "1 MB", "output": "200 kB"},
    {"name": "three", "inputs": ["two"], "multiply_adds": 1e7, "parameters": "500 kB", "output": "4 kB"},
]
BLOCKS: dict[str, dict[str, Any]] = {
    "all_reduce": {"num_devices": 8},
    "parameter_server": {"num_parameter_servers": 2, "co_located": True, "batch_shares": {"toy": 4}},
    "pipeline": {"stages": [{"first": "data", "last": "one", "replicas": 3}, {"first": "two", "last": "three"}], "num_microbatches": 4},
    "model_replicas": {"num_parameter_servers": 1, "num_replicas": 1, "num_workers_per_replica": 2},
}  # fmt: skip


def question(devices: int = 2, **changes: Any) -> dict[str, Any]:
    """Four machines, a network of three layers with weights, a batch of 32."""
    device = {"name": "toy", "fp32": "1 TFLOP/s", "memory": "1 GiB"}
    machine = {"count": 4, "devices": devices, "device": device, "network": "10 Gbit/s", "latency": "20 us"}
    machine |= {"inside": "pcie-3-x16"} if devices > 1 else {}
    machine |= {"storage": {"bandwidth": "200 MB/s", "shared": True}, "host_link": "1 GB/s"}
    asked = {
        "dnn": {"layers": LAYERS, "global_batch": 32, "dataset_samples": 10_000, "epochs": 3},
        "cluster": {"machines": [machine]},
        "calibration": {"utilisation": 0.5, "update": "100 us", "bandwidth_efficiency": 0.9, "overhead": "5 us"},
    }
    return {**asked, **changes}


@cache
def document_of(family: str) -> str:
    """The JSON of a plan of the family: a given configuration, called optimal, as its own bound."""
    asked = question(1 if family == "model_replicas" else 2, configuration={family: BLOCKS[family]})
    if family == "model_replicas":
        asked["dnn"] = {"zoo": "adam-mnist", "global_batch": 32}
    return dump(given_plan(planner.load(asked)).to_dict())


def given_plan(problem: Problem) -> Any:
    """A plan of the configuration that the question holds."""
    assert problem.configuration is not None
    family, block = problem.configuration
    configuration = FAMILIES[family].configuration_of(problem, block)
    prediction = FAMILIES[family].predict(problem, configuration)
    resolved = {key: value for key, value in problem.resolved.items() if key != "configuration"}
    found = plan_of(
        replace(problem, resolved=resolved),
        Searched(family=family, solver="none"),
        configuration=configuration,
        prediction=prediction,
        bound=prediction.value_of(problem.goal),
        explanation=(),
    )
    return replace(found, provenance=replace(found.provenance, input_digest=digest(resolved)))


def digest(asked: Any) -> str:
    """The digest of a question, as plans carry it."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:16]


def checked(document: dict[str, Any]) -> Any:
    """The report on a document, its question read from itself."""
    return check(planner.load(document["problem"]), document)


def put(*path: str | int, value: Any = None, times: float | None = None) -> Callable[[dict[str, Any]], None]:
    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = document[path[-1]] * times if times is not None else value

    return change


def rebuilt(family: str) -> tuple[Problem, dict[str, Any], Any]:
    """The question, block and prediction of a plan."""
    document = json.loads(document_of(family))
    problem = planner.load(document)
    return problem, document["configuration"], planner.predict(problem)


def numbers(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], float]]:
    """Every number of a document, with its path."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from numbers(part, (*path, key))
