"""One rule for all families: per epoch the number of devices is searched, per iteration of a fixed batch on each all are used."""

from typing import Any

import pytest
from hybrid_questions import RATES, TINY, question, whole_grid
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.errors import SpecError
from planner.families import FAMILIES
from planner.families.hybrid.cost import costs_of
from planner.families.hybrid.search import plan as hybrid_plan
from planner.plan import Plan
from planner.problem import Problem, Range
from planner.search import Search

FEW = "on a network this slow one machine is faster than three"
MACHINE: dict[str, Any] = {
    "name": "m", "count": 3, "devices": 2, "device": {"name": "d", "fp32": "0.01 TFLOP/s", "bf16": "0.01 TFLOP/s"},
    "network": "1 Mbit/s", "inside": {"bandwidth": "25 Gbit/s", "latency": "20 us"},
}  # fmt: skip
LAYERS: list[dict[str, Any]] = [
    {"name": "data", "kind": "input", "output": "12 kB"},
    {
        "name": "one",
        "kind": "fully_connected",
        "inputs": ["data"],
        "multiply_adds": 2.3e8,
        "parameters": "10 MB",
        "output": "4 kB",
    },
]


def asked(family: str, objective: str, **changes: Any) -> dict[str, Any]:
    """A network that is trained fastest on few of the devices."""
    devices = 1 if family == "model_replicas" else 2
    if family == "hybrid":
        network = {**TINY, "hidden": 64, "vocabulary": 256, "sequence_length": 64}
        dnn: dict[str, Any] = {"transformer": network, "dtype": "bf16", "optimizer": "adam"}
    else:
        dnn = {"layers": LAYERS}
    return {
        "dnn": {**dnn, "dataset_samples": 1000, "batch_per_device": 3},
        "cluster": {"machines": [{**MACHINE, "devices": devices}]},
        "calibration": {} if family == "hybrid" else {"utilisation": 1},
        "families": [family],
        "objective": objective,
        **changes,
    }


def planned(question: dict[str, Any]) -> tuple[Problem, Plan]:
    problem = planner.load(question)
    return problem, FAMILIES[question["families"][0]].search(problem, Search())


def used(problem: Problem, found: Plan) -> tuple[int, int]:
    """Devices that train or serve, and machines they stand on."""
    rows = list(FAMILIES[found.family].machines(problem, found.configuration))
    return sum(row.num_devices for row in rows), sum(row.num_machines for row in rows if not row.is_shared)


@pytest.mark.parametrize("family", FAMILIES.own)
def test_a_batch_per_device_does_not_force_devices_into_an_epoch(family: str) -> None:
    problem, found = planned(asked(family, "epoch_time"))
    number = problem.cluster.num_devices
    whole = {key: value for key, value in asked(family, "epoch_time")["dnn"].items() if key != "batch_per_device"}
    _, same = planned(asked(family, "epoch_time", dnn={**whole, "global_batch": 3 * number}))
    assert found.objective == pytest.approx(same.objective)
    assert found.bound <= found.objective
    assert problem.devices_words == ""
    if family != "model_replicas":  # which needs a second machine to serve
        assert used(problem, found)[1] == 1, FEW


@pytest.mark.parametrize("family", FAMILIES.own)
def test_no_machine_is_idle_in_an_iteration_of_a_fixed_batch_per_device(family: str) -> None:
    problem, found = planned(asked(family, "iteration_time"))
    number = problem.cluster.num_devices
    assert used(problem, found)[1] == 3
    if family not in ("model_replicas", "parameter_server"):
        assert used(problem, found)[0] == number
    assert problem.devices_words == (
        f"all {number} devices are used: a time per iteration with a fixed batch per device"
    )
    whole = {key: value for key, value in asked(family, "epoch_time")["dnn"].items() if key != "batch_per_device"}
    open_problem, free = planned(asked(family, "iteration_time", dnn={**whole, "global_batch": 3 * number}))
    assert open_problem.devices_words == ""
    assert free.objective <= found.objective * (1 + 1e-9)


@pytest.mark.parametrize("family", ["all_reduce", "pipeline", "hybrid"])
def test_numbers_that_are_asked_for_stay_in_both_cases(family: str) -> None:
    for objective in ("epoch_time", "iteration_time"):
        problem, found = planned(asked(family, objective, constraints={"devices": 4}))
        assert used(problem, found)[0] == 4
        assert problem.training.fixed_batch_size == 12
    problem, found = planned(asked(family, "epoch_time", constraints={"machines": {"at_most": 2}}))
    assert used(problem, found)[1] <= 2
    assert problem.training.fixed_batch_size == 12


def test_a_range_of_devices_is_refused_only_where_the_fewest_would_be_trivially_fastest() -> None:
    for limits in ({"devices": {"at_most": 4}}, {"machines": {"at_least": 2}}):
        assert planner.load(asked("all_reduce", "epoch_time", constraints=limits)).is_number_of_devices_open
        with pytest.raises(SpecError, match="trivially fastest"):
            planner.load(asked("all_reduce", "iteration_time", constraints=limits))


def test_unequal_devices_share_a_global_batch_whose_devices_are_searched() -> None:
    other = {**MACHINE, "name": "n", "device": {"name": "e", "fp32": "0.02 TFLOP/s"}}
    problem, found = planned(asked("all_reduce", "iteration_time", cluster={"machines": [MACHINE, other]}))
    assert problem.is_number_of_devices_open
    assert problem.training.fixed_batch_size == 36
    assert used(problem, found)[1] == 1, FEW


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 2]), st.sampled_from(["epoch_time", "iteration_time"]))
def test_the_best_layout_is_that_of_all_numbers_of_devices_or_of_all_devices(
    machines: int, devices: int, batch: int, objective: str
) -> None:
    dnn = {"transformer": TINY, "batch_per_device": batch, "dtype": "bf16", "optimizer": "adam", "dataset_samples": 960}
    problem = question(machines=machines, devices=devices, dnn=dnn, objective=objective, rates=RATES)
    free = question(machines=machines, devices=devices, batch=batch * machines * devices)
    cost = costs_of(free)[0]
    points = whole_grid(cost)
    if objective == "iteration_time":
        number = points["tensor"] * points["context"] * points["pipeline"] * points["data"]
        points = {name: column[number == machines * devices] for name, column in points.items()}
    layouts = cost.layouts(points)
    fits = cost.memory(layouts)["total"] <= cost.memory_limit_bytes
    count = 1 if objective == "iteration_time" else 960 / (batch * machines * devices)
    found = hybrid_plan(problem, Search())
    assert found.objective == pytest.approx(float(cost.seconds(layouts)[fits].min()) * count)
    assert found.bound <= found.objective


def test_ranges_tell_what_is_left_of_the_devices() -> None:
    problem = planner.load(asked("all_reduce", "iteration_time"))
    assert problem.training_devices == Range(least=6, most=6)
    assert problem.busy_machines == 3
    pinned = planner.load(asked("parameter_server", "iteration_time", fix={"num_devices": 2}))
    assert (pinned.training_devices, pinned.busy_machines) == (Range(least=2, most=2), 1)
    searched = planner.load(asked("all_reduce", "epoch_time"))
    assert (searched.training_devices, searched.busy_machines) == (Range(), 0)
