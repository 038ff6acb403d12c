"""The table of constraints: every one can bind, then changes the answer, and is what checks and conflicts judge by."""

from dataclasses import replace
from typing import Any

import pytest
from hybrid_questions import TINY

import planner
from planner.api import load
from planner.checks import check, report_text
from planner.constraints import CONSTRAINTS, Pin, Usage, binding_words, verdicts
from planner.errors import InfeasibleError, SpecError
from planner.families import usage_of
from planner.plan import Plan
from planner.problem import Limits
from planner.question.spec import ConstraintsSpec
from planner.relaxation import both_ways
from planner.solution import Status

LAYERS: list[dict[str, Any]] = [
    {"name": "data", "kind": "input", "output": "12 kB"},
    *(
        {
            "name": f"layer{index}",
            "kind": "fully_connected",
            "inputs": [f"layer{index - 1}" if index else "data"],
            "multiply_adds": 2e8,
            "parameters": "2 MB",
            "output": "400 kB",
        }
        for index in range(4)
    ),
]


def question(**changes: Any) -> dict[str, Any]:
    """Four machines of two devices; keys of ``dnn`` and ``machine`` change those blocks."""
    device = {"name": "toy", "fp32": "1 TFLOP/s", "memory": "1 GB", "memory_bandwidth": "100 GB/s", "power": "300 W"}
    machine = {"count": 4, "devices": 2, "device": device, "inside": "nvlink-3", "network": "10 Gbit/s"}
    asked = {
        "dnn": {"layers": LAYERS, "global_batch": 64, "dataset_samples": 9600, **changes.pop("dnn", {})},
        "cluster": {"machines": [{**machine, "name": "first", "latency": "20 us", **changes.pop("machine", {})}]},
        "calibration": {"utilisation": 0.5, "split_tensors": True},
        "families": ["all_reduce", "parameter_server"],
    }
    return asked | changes


TRANSFORMER = {
    **question(machine={"device": "a100-sxm4-80gb"}),
    "dnn": {"transformer": TINY, "dtype": "bf16", "optimizer": "adam", "global_batch": 16, "dataset_samples": 9600},
    "calibration": {},
    "families": ["hybrid"],
}
STALE = {"families": ["parameter_server"], "constraints": {"max_staleness": "unbounded"}}
# Of every constraint: a question, the same with a tighter value, and what a check calls it.
TIGHTER: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "cluster": (question(), question(machine={"count": 2}), "machines first"),
    "constraints.devices": (question(), question(constraints={"devices": {"at_most": 3}}), "constraints.devices"),
    "constraints.machines": (question(), question(constraints={"machines": {"at_most": 2}}), "constraints.machines"),
    "constraints.memory_per_device": (
        question(),
        question(constraints={"memory_per_device": "30 MB"}),
        "memory first",
    ),
    "constraints.power_per_rack": (
        question(),
        question(constraints={"power_per_rack": {"power": "1 kW", "machines_per_rack": 2}}),
        "constraints.power_per_rack first",
    ),
    "constraints.deadline": (question(), question(constraints={"deadline": "1 ms"}), "constraints.deadline"),
    "constraints.max_staleness": (
        question(**STALE),
        question(**STALE | {"constraints": {"max_staleness": 0}}),
        "constraints.max_staleness",
    ),
    "constraints.forbidden_families": (
        question(),
        question(constraints={"forbidden_families": ["all_reduce"]}),
        "families",
    ),
    "constraints.exclude": (
        TRANSFORMER,
        {**TRANSFORMER, "constraints": {"exclude": {"zero_stage": [1]}}},
        "constraints.exclude.zero_stage",
    ),
    "fix": (question(), question(fix={"num_devices": 4}), "fix.num_devices"),
    "dnn.global_batch": (question(), question(dnn={"global_batch": 48}), "batch"),
}


def faults(asked: dict[str, Any], plan: Plan) -> list[str]:
    return [one.name for one in check(load(asked), plan).faults]


def test_every_constraint_is_tightened_here() -> None:
    assert list(TIGHTER) == [one.name for one in CONSTRAINTS]


@pytest.mark.parametrize("name", TIGHTER)
def test_a_tighter_constraint_breaks_the_plan_and_changes_the_answer(name: str) -> None:
    """The plan without it breaks it, by its name; what is planned under it keeps it, or it is the conflict."""
    loose, tight, called = TIGHTER[name]
    plan = planner.plan(load(loose))
    assert faults(loose, plan) == []
    assert {called, "configuration"} & set(faults(tight, plan))  # a family refuses what the cluster has not
    try:
        other = planner.plan(load(tight))
    except InfeasibleError as error:
        assert name in {row.field for one in error.conflicts for row in one.relaxations}
        return
    assert faults(tight, other) == [], report_text(check(load(tight), other))
    assert (other.family, other.configuration) != (plan.family, plan.configuration)


@pytest.mark.parametrize("name", [one for one in TIGHTER if one != "cluster"])
def test_what_a_plan_breaks_is_judged_by_what_its_family_says_that_it_uses(name: str) -> None:
    loose, tight, called = TIGHTER[name]
    plan = planner.plan(load(loose))
    usage = usage_of(load(loose), plan.family, plan.configuration, plan.prediction)
    assert all(one.is_kept for one in verdicts(load(loose), usage))
    assert called in {one.name for one in verdicts(load(tight), usage) if not one.is_kept}


def test_a_limit_that_is_used_up_is_said_to_bind() -> None:
    asked = question(constraints={"machines": {"at_most": 2}})
    plan = planner.plan(load(asked))
    usage = usage_of(load(asked), plan.family, plan.configuration, plan.prediction)
    assert binding_words(load(asked), usage) == ("constraints.machines binds: 2 used, at most 2",)
    assert "constraints.machines binds: 2 used, at most 2" in plan.explanation
    assert "constraints.machines binds: 2 used, at most 2" in planner.explain(load(asked), plan).binding
    assert binding_words(load(asked), Usage(family="all_reduce", machines={"first": 1}, devices={"first": 2})) == ()


def test_a_spec_and_the_limits_have_the_keys_of_the_rows() -> None:
    assert list(ConstraintsSpec.model_fields) == [one.key for one in CONSTRAINTS if one.kind is not None]
    assert set(Limits.__dataclass_fields__) == {one.limit for one in CONSTRAINTS if one.limit}


# -- the power of a rack: machines of two devices of 300 W draw 600 W ---------------------------------------------------


def racks(power: str, machines_per_rack: int, **changes: Any) -> dict[str, Any]:
    limit = {"power_per_rack": {"power": power, "machines_per_rack": machines_per_rack}}
    return question(families=["all_reduce"], constraints=limit, **changes)


@pytest.mark.parametrize(
    ("power", "machines_per_rack", "count", "used"),
    [
        ("1200 W", 2, 4, 4),
        ("1199 W", 2, 4, 2),
        ("1.8 kW", 4, 4, 3),
        ("600 W", 3, 4, 2),  # a rack of three, and one of one
        ("1200 W", 3, 5, 4),
        ("100 kW", 3, 5, 5),
    ],
)
def test_a_rack_runs_as_many_machines_as_its_power_allows(
    power: str, machines_per_rack: int, count: int, used: int
) -> None:
    asked = racks(power, machines_per_rack, machine={"count": count}, dnn={"global_batch": 240})
    plan = planner.plan(load(asked))
    assert plan.status is Status.OPTIMAL
    usage = usage_of(load(asked), plan.family, plan.configuration, plan.prediction)
    assert usage.machines == {"first": used}
    assert faults(asked, plan) == []
    binds = [
        line for line in planner.explain(load(asked), plan).binding if line.startswith("constraints.power_per_rack")
    ]
    assert len(binds) == (used < count)


def test_a_rack_without_power_for_a_machine_says_how_much_one_takes() -> None:
    with pytest.raises(InfeasibleError, match=r"constraints.power_per_rack: 500 W -> 600 W") as caught:
        planner.plan(load(racks("500 W", 2)))
    assert "Raise constraints.power_per_rack.power to 600 W or more" in str(caught.value)


def test_power_conflicts_with_a_number_of_machines_and_both_ways_out_are_told() -> None:
    asked = racks("700 W", 2)
    asked["constraints"]["machines"] = {"at_least": 3}
    with pytest.raises(InfeasibleError) as caught:
        planner.plan(load(asked))
    (conflict,) = caught.value.conflicts
    assert {row.field: row.values for row in conflict.relaxations} == {
        "constraints.machines": ("2",),
        "constraints.power_per_rack": ("1.2 kW",),
    }


def test_a_device_of_unknown_power_cannot_be_limited_by_it() -> None:
    asked = racks("1 kW", 2)
    del asked["cluster"]["machines"][0]["device"]["power"]
    with pytest.raises(SpecError, match=r"constraints.power_per_rack: the power of 'toy' is not known. Write"):
        load(asked)


def test_power_limits_each_group_by_its_own_devices() -> None:
    """Racks of two machines: of the first group one may run, of the second both."""
    asked = racks("700 W", 2)
    machine = asked["cluster"]["machines"][0]
    slow = {**machine, "name": "second", "device": {**machine["device"], "name": "slow", "power": "150 W"}}
    asked["cluster"]["machines"].append(slow)
    plan = planner.plan(load(asked))
    usage = usage_of(load(asked), plan.family, plan.configuration, plan.prediction)
    assert usage.machines == {"first": 2, "second": 4}
    assert faults(asked, plan) == []


def test_the_nearest_number_of_a_pin_may_be_none_at_all() -> None:
    pin = Pin(field="fix.activation_offload_layers", given="4", turn=0, key="activation_offload_layers", value=4)
    assert both_ways(pin, 4, 8, lambda number: number == 0, least=0).values == ("0",)
    assert both_ways(pin, 4, 8, lambda number: number == 0).values == ()
    assert both_ways(replace(pin, value=0), 0, 8, lambda number: number == 2, least=0).values == ("2",)
