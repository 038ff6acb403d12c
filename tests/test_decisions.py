"""The table of decisions: every row is alive, every block and pin is a row, and what is pinned is what is planned."""

import json
from functools import cache
from typing import Any, get_args

import pytest
from hybrid_questions import CHAIN, MOE

import planner
from planner import planning
from planner.checks import check, report_text
from planner.decisions import DECISIONS, LAYOUT, Decision, row_of, written
from planner.errors import InfeasibleError, PlannerError
from planner.families.hybrid.configuration import HybridConfiguration
from planner.models.layouts import Layouts
from planner.names import FAMILY_NAMES
from planner.plan import Plan
from planner.problem import Problem
from planner.question.spec import ConfigurationSpec, ExcludeSpec, FixSpec, HybridSpec
from planner.search import Search

pytestmark = pytest.mark.usefixtures("wordless")

# What a block says beside rows: forms of its own, and the batch, which the question's `dnn` decides.
OWN_FORM = {
    "all_reduce": {"machines", "groups", "global_batch_size", "compression", "fusion_groups"},
    "parameter_server": {"workers", "placement", "batch_shares", "global_batch_size", "compression"},
    "model_replicas": {"samples_per_read", "layers"},
    "pipeline": {"stages", "global_batch_size"},
    "hybrid": {"global_batch_size", "machines", "stages", "replicas"},
}
# How far the gradients of a synchronisation may lag: a part of it.
OF_OTHERS = {"max_staleness", "local_steps"}  # what a decision needs besides
ALONE = {"partition_bytes", "priority"}  # of sums that are sent on their own
WIDENING = {"overlap", "barrier", "partition_bytes"}  # to what is searched only where it is pinned
PAIRS = [(row, family) for row in DECISIONS for family in row.families]


def question(family: str, key: str) -> dict[str, Any]:
    """Four machines of two devices, on which every decision of a family matters; of two kinds where they are pinned."""
    dnn: dict[str, Any] = {"layers": CHAIN}
    device: Any = {"name": "toy", "fp32": "1 TFLOP/s", "memory": "1 GB", "memory_bandwidth": "100 GB/s"}
    other: Any = {**device, "name": "slow", "fp32": "300 GFLOP/s" if family == "all_reduce" else "900 GFLOP/s"}
    calibration: dict[str, Any] = {"utilisation": 0.5}
    if family == "hybrid":
        dnn = {"transformer": MOE, "dtype": "bf16", "optimizer": "adam"}
        device, other, calibration = "a100-sxm4-80gb", "h100-sxm", {}
    if family == "model_replicas":
        calibration["cores"] = 4
    if key in ALONE:
        calibration |= {"split_tensors": True, "max_overlap": "push_pull_forward"}
    machine = {
        "name": "first",
        "count": 4,
        "devices": 1 if family == "model_replicas" else 2,
        "device": device,
        "network": "1 Gbit/s" if key in ("algorithm", "synchronisation", *ALONE) else "10 Gbit/s",
        "latency": "20 us",
        "inside": "nvlink-3",
    }
    machines = [{**machine, "count": 2}, {**machine, "count": 2, "name": "second", "device": other}]
    is_mixed = key in ("device", "servers", "batch_shares")
    return {
        "dnn": {**dnn, "global_batch": 16, "dataset_samples": 960},
        "cluster": {"machines": machines if is_mixed else [machine]},
        "calibration": calibration,
        "families": [family],
    }


def planned(family: str, key: str) -> tuple[Problem, Plan | None]:
    """The plan where nothing is pinned; None where a pin is needed for one."""
    return asked(json.dumps(question(family, key)))


@cache
def asked(text: str) -> tuple[Problem, Plan | None]:
    """The same of a question, which most keys of a family share."""
    problem = planner.load(json.loads(text))
    try:
        return problem, planning.planned(problem, Search())
    except InfeasibleError:
        return problem, None


def tried(row: Decision, problem: Problem) -> list[Any]:
    """Values worth pinning: all names, or some numbers up to the greatest."""
    if row.is_size:
        return ["1 MB", "1.5 MB"]
    if row.is_count or row.key == "zero_stage":
        return [one for one in (0, 1, 2, 3, 8) if (one > 0 or row.values) and one <= row.maximum(problem)]
    return list(row.choices(problem))[: 3 if row.parts else None]  # of sets a few


def decided(plan: Plan) -> dict[str, Any]:
    return plan.configuration.to_document()


@pytest.mark.parametrize(("row", "family"), PAIRS, ids=[f"{row.key}-{family}" for row, family in PAIRS])
def test_a_pin_changes_the_plan_or_is_refused_with_a_reason(
    row: Decision, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that no search reads leaves every plan as it is, and fails here; so does a pin that is not kept."""
    monkeypatch.setattr("planner.conflicts.diagnosed", lambda problem, error, *_: error)  # tests of conflicts ask that
    problem, base = planned(family, row.key)
    changed = []
    for value in tried(row, problem):
        pinned = planner.load({**question(family, row.key), "fix": {row.key: value}})
        try:
            plan = planning.planned(pinned, Search())
        except PlannerError as error:
            assert str(error), (row.key, value)
            continue
        report = check(pinned, plan)
        assert report.is_ok, report_text(report)
        block = row.block.get(family)
        if block in decided(plan) and not row.block_values:
            assert decided(plan)[block] == value
        assert base is None or row.key in WIDENING or plan.objective >= base.bound * (1 - 1e-9)
        changed.append(base is None or decided(plan) != decided(base))
    assert any(changed), f"no value of fix.{row.key} changes the plan of {family}"


@pytest.mark.parametrize("row", [row for row in DECISIONS if row.excluded_by], ids=lambda row: row.key)
def test_a_value_that_is_excluded_is_not_planned(row: Decision) -> None:
    for family in row.excluded_by:
        _, base = planned(family, row.key)
        assert base is not None
        said = decided(base).get(row.block.get(family, ""), row.default)  # left out where that is its default
        chosen = "1f1b" if row.key == "schedule" else said
        excluding = {**question(family, row.key), "constraints": {"exclude": {row.key: [chosen]}}}
        plan = planning.planned(planner.load(excluding), Search())
        assert check(planner.load(excluding), plan).is_ok
        assert decided(plan) != decided(base)


def test_substitutions_are_pinned_whatever_the_family() -> None:
    assert [row.key for row in DECISIONS if not row.families] == ["substitutions"]


def test_keys_stand_once_and_families_are_those_there_are() -> None:
    assert len({row.key for row in DECISIONS}) == len(DECISIONS)
    for row in DECISIONS:
        assert set(row.families) | set(row.block) | set(row.excluded_by) <= set(FAMILY_NAMES)
        assert row.words
        assert bool(row.values) + (row.maximum_of is not None) + (row.names_of is not None) == 1, row.key


def test_a_spec_pins_and_excludes_what_the_rows_say() -> None:
    assert list(FixSpec.model_fields) == [row.key for row in DECISIONS]
    assert list(ExcludeSpec.model_fields) == [row.key for row in DECISIONS if row.excluded_by]


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_every_key_of_a_block_is_a_row_or_has_a_form_of_its_own(family: str) -> None:
    (kind,) = (one for one in get_args(ConfigurationSpec.model_fields[family].annotation) if one is not type(None))
    rows = {row.block[family]: row for row in DECISIONS if family in row.block}
    assert kind.model_fields.keys() - OF_OTHERS == rows.keys() | OWN_FORM[family]


def test_a_layout_has_the_same_decisions_in_spec_plan_and_cost_model() -> None:
    assert list(HybridSpec.model_fields)[: len(LAYOUT)] == list(LAYOUT)
    document = HybridConfiguration(global_batch_size=8).to_document()
    assert list(document) == ["global_batch_size", *(name for name, row in LAYOUT.items() if row.is_shown_always)]
    assert set(Layouts.__dataclass_fields__) - {"num_microbatches"} == set(LAYOUT)
    assert row_of("tensor_parallel_size") is LAYOUT["tensor"]


@pytest.mark.parametrize("name", LAYOUT)
def test_codes_of_a_layout_lead_back_to_its_values(name: str) -> None:
    row = LAYOUT[name]
    for value in row.block_values or row.values or (1, 2, 7):
        assert row.decoded(row.code(value)) == value
        assert written(value) in (str(value), str(value).lower())
