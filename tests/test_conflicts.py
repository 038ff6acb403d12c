"""Questions without answer: the conflicting set is minimal, and every relaxation is enough and no more than enough."""

import copy
import math
import pickle
import re
import typing
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pytest import CaptureFixture

import planner
from planner.cli.run import run
from planner.conflict_members import NAMES_OF_PINS, members_of
from planner.conflict_question import as_meant
from planner.conflict_values import MEMORY_UNITS, TIME_UNITS, least_feasible
from planner.conflicts import conflict_lines, conflicts_of, diagnosed
from planner.documents import MODELS, dump, error_document
from planner.errors import Conflict, InfeasibleError, NoAnswerError, Relaxation, SpecError
from planner.plan import Plan
from planner.problem import Problem
from planner.ranking import best_plan
from planner.search import Search
from planner.spec import FixSpec
from planner.units import Dimension, parse

LAYERS = [
    {"name": "data", "kind": "input", "output": "40 kB"},
    {"name": "one", "inputs": ["data"], "multiply_adds": 2e6, "parameters": "2 MB", "output": "400 kB"},
    {"name": "two", "inputs": ["one"], "multiply_adds": 3e6, "parameters": "1 MB", "output": "200 kB"},
    {"name": "three", "inputs": ["two"], "multiply_adds": 1e6, "parameters": "500 kB", "output": "4 kB"},
]


def question(**changes: Any) -> dict[str, Any]:
    """Four machines of two devices, and a global batch of 16."""
    device = {"name": "toy", "fp32": "1 TFLOP/s", "memory": "64 MiB"}
    machine = {
        "count": 4,
        "devices": 2,
        "device": device,
        "inside": "pcie-3-x16",
        "network": "10 Gbit/s",
        "latency": "20 us",
    }
    asked = {
        "dnn": {"layers": LAYERS, "global_batch": 16, "dataset_samples": 10_000},
        "cluster": {"machines": [machine]},
    }
    return {**asked, **changes}


def ranges(most: int) -> st.SearchStrategy[dict[str, int]]:
    """A constraint on devices or machines."""
    number = st.integers(1, most)
    both = st.tuples(number, number).map(lambda ends: {"at_least": min(ends), "at_most": max(ends)})
    return st.one_of(
        number.map(lambda one: {"exactly": one}),
        number.map(lambda one: {"at_least": one}),
        number.map(lambda one: {"at_most": one}),
        both,
    )


@st.composite
def tight_questions(draw: st.DrawFn) -> dict[str, Any]:
    """Small questions with many constraints, most of them without answer."""
    constraints = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "devices": ranges(8),
                "machines": ranges(4),
                "memory_per_device": st.sampled_from(["8 MiB", "17 MiB", "19 MiB", "21 MiB", "24 MiB"]),
                "deadline": st.sampled_from(["1 ms", "0.2 s", "2 s", "10 s"]),
            },
        )
    )
    fix = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "num_devices": st.integers(1, 9),
                "num_machines": st.integers(1, 5),
                "devices_per_machine": st.integers(1, 3),
                "gradient_accumulation_steps": st.integers(1, 18),
                "algorithm": st.sampled_from(["ring", "tree", "two_level"]),
            },
        )
    )
    asked = question(constraints=constraints, fix=fix)
    asked["cluster"]["machines"][0]["device"]["memory"] = draw(st.sampled_from(["64 MiB", "18 MiB", "10 MiB"]))
    return asked


def loaded(asked: dict[str, Any]) -> Problem | None:
    """The problem, or None where the spec itself is refused."""
    try:
        return planner.load(asked)
    except SpecError:
        return None


def solve(problem: Problem, search: Search) -> Plan:
    """The best plan of one family, which is quick; which family it is plays no part in how conflicts are found."""
    return best_plan(replace(problem, families=("all_reduce",)), search)


def has_plan(problem: Problem) -> bool:
    """Whether there is a plan, by solving the question to its end."""
    try:
        solve(problem, Search())
    except InfeasibleError:
        return False
    return True


def diagnosis(problem: Problem) -> tuple[Conflict, ...]:
    """What conflicts in a question without answer."""
    return conflicts_of(problem, solve, Search(time_limit_s=600))


def edited(asked: dict[str, Any], row: Relaxation, value: str) -> dict[str, Any]:
    """The spec with the member's value written into it, as a user would do it."""
    changed = copy.deepcopy(asked)
    section, _, key = row.field.partition(".")
    if row.field.startswith("memory of "):
        changed["cluster"]["machines"][0]["device"]["memory"] = value
    elif section == "fix":
        changed["fix"][key] = int(value) if value.isdigit() else value
    elif key in ("devices", "machines"):
        end = row.given.rsplit(" ", 1)[0].replace(" ", "_")
        both = {name: number for name, number in changed["constraints"][key].items() if "exactly" not in (name, end)}
        changed["constraints"][key] = {**both, end: int(value)}
    else:
        changed["constraints"][key] = value
    return changed


def short_of(row: Relaxation, value: str) -> Iterator[str]:
    """The printed values that lie nearer to the given one than ``value``."""
    if value.isdigit():
        old, new = int(row.given.rsplit(" ", 1)[-1]), int(value)
        yield from (str(one) for one in range(min(old, new), max(old, new) + 1) if one not in (old, new))
    elif " " in value:
        number, unit = value.split()
        digits = next(one.digits for one in (*MEMORY_UNITS, *TIME_UNITS) if one.name == unit)
        yield f"{float(number) - 10.0**-digits:.{digits}f} {unit}"


@settings(max_examples=60)
@given(tight_questions())
def test_a_conflict_is_minimal_and_each_relaxation_is_just_enough(asked: dict[str, Any]) -> None:
    problem = loaded(asked)
    assume(problem is not None)
    assert problem is not None
    assume(not has_plan(problem))
    members = {(member.field, member.given): member for member in members_of(problem)}
    conflicts = diagnosis(problem)
    free = problem
    for member in members.values():
        free = member.without(free)
    assert bool(conflicts) == has_plan(free)
    for conflict in conflicts:
        assert conflict.is_minimal
        chosen = {(row.field, row.given) for row in conflict.relaxations}
        alone = problem
        for key, member in members.items():
            alone = alone if key in chosen else member.without(alone)
        assert not has_plan(alone)
        assert all(has_plan(members[key].without(alone)) for key in chosen)
    rows = [row for conflict in conflicts for row in conflict.relaxations]
    for row in rows:
        member = members[row.field, row.given]
        assert row.is_enough == has_plan(as_meant(member.without(problem)))
        assert row.is_exact
        for value in row.values if row.is_enough else ():
            enough = loaded(edited(asked, row, value))
            assert enough is not None and has_plan(enough), (row, value)
            for less in short_of(row, value):
                nearly = loaded(edited(asked, row, less))
                assert nearly is None or not has_plan(nearly), (row, less)


@pytest.mark.parametrize(
    ("changes", "field", "values"),
    [
        ({"fix": {"num_devices": 7}}, "fix.num_devices", ("8", "6")),
        ({"fix": {"num_machines": 6}}, "fix.num_machines", ("4",)),
        ({"constraints": {"devices": {"at_least": 7}, "machines": {"at_most": 3}}}, "constraints.devices", ("6",)),
        ({"constraints": {"devices": {"at_least": 7}, "machines": {"at_most": 3}}}, "constraints.machines", ("4",)),
        ({"constraints": {"devices": {"exactly": 7}}}, "constraints.devices", ("8", "6")),
        ({"fix": {"num_stages": 4}}, "fix.num_stages", ()),
    ],
)
def test_numbers_are_relaxed_to_the_nearest_that_do(
    changes: dict[str, Any], field: str, values: tuple[str, ...]
) -> None:
    (conflict,) = diagnosis(planner.load(question(**changes)))
    row = next(row for row in conflict.relaxations if row.field == field)
    assert set(row.values) == set(values)
    assert row.is_exact


def test_another_device_type_is_named_where_the_pinned_one_has_too_little_memory() -> None:
    asked = question(fix={"device": "small"})
    link = {"inside": "pcie-3-x16", "network": "10 Gbit/s"}
    asked["cluster"]["machines"] = [
        {"count": 2, "devices": 2, "device": {"name": "small", "fp32": "1 TFLOP/s", "memory": "8 MiB"}, **link},
        {"count": 2, "devices": 2, "device": {"name": "large", "fp32": "1 TFLOP/s", "memory": "80 MiB"}, **link},
    ]
    (conflict,) = diagnosis(planner.load(asked))
    rows = {row.field: row for row in conflict.relaxations}
    assert rows.keys() == {"fix.device", "memory of small"}
    assert rows["fix.device"].values == ("large",)
    assert rows["memory of small"].note == "other hardware"


def test_a_batch_per_device_means_the_batch_of_the_relaxed_number_of_devices() -> None:
    asked = question(
        constraints={"devices": 7}, dnn={"layers": LAYERS, "batch_per_device": 4, "dataset_samples": 9_000}
    )
    problem = planner.load(asked)
    (conflict,) = diagnosis(problem)
    assert [row.values for row in conflict.relaxations] == [("8", "6")]
    assert as_meant(problem) == problem


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"fix": {"num_devices": 6}},
        {"constraints": {"machines": 3}},
        {"constraints": {"devices": 4}},
        {"fix": {"devices_per_machine": 1}},
        {"fix": {"num_machines": 2}},
    ],
)
def test_the_batch_of_a_question_is_derived_as_the_spec_derives_it(changes: dict[str, Any]) -> None:
    small = {"name": "small", "fp32": "1 TFLOP/s"}
    for machines in (1, 2):
        asked = question(dnn={"layers": LAYERS, "batch_per_device": 4}, **changes)
        asked["cluster"]["machines"] += [
            {"count": 2, "devices": 3, "device": small, "network": "1 GB/s", "inside": "pcie-3-x16"}
        ] * (machines - 1)
        problem = planner.load(asked)
        assert as_meant(problem).training == problem.training


def test_where_two_constraints_each_forbid_all_plans_both_are_reported() -> None:
    asked = question(constraints={"memory_per_device": "1 MiB", "deadline": "1 ms"})
    conflicts = diagnosis(planner.load(asked))
    assert [[row.field for row in conflict.relaxations] for conflict in conflicts] == [
        ["constraints.memory_per_device"],
        ["constraints.deadline"],
    ] or [[row.field for row in conflict.relaxations] for conflict in conflicts] == [
        ["constraints.deadline"],
        ["constraints.memory_per_device"],
    ]
    assert not any(row.is_enough for conflict in conflicts for row in conflict.relaxations)
    assert "conflict 2 of 2" in "\n".join(conflict_lines(conflicts))


def test_a_question_whose_batch_is_too_small_has_no_conflict_and_keeps_the_familys_words() -> None:
    asked = question(dnn={"layers": LAYERS, "global_batch": 1}, fix={"num_devices": 2})
    (conflict,) = diagnosis(planner.load(asked))
    assert [row.field for row in conflict.relaxations] == ["fix.num_devices"]
    problem = planner.load(question())
    broken = replace(problem, training=replace(problem.training, global_batch_size=0))
    assert diagnosis(broken) == ()
    error = InfeasibleError("No plan fits: the batch is empty.")
    assert diagnosed(broken, error, solve, Search()) is error
    assert error.conflicts == ()


def test_the_familys_own_message_ends_the_text() -> None:
    with pytest.raises(
        InfeasibleError, match=r"(?s)^No plan fits: .*This settles it:.*even one sample at a time"
    ) as error:
        planner.plan(planner.load(question(constraints={"memory_per_device": "1 MiB"}, families=["all_reduce"])))
    again = pickle.loads(pickle.dumps(error.value))
    assert str(again) == str(error.value)
    assert again.conflicts == error.value.conflicts != ()


def test_what_a_limit_leaves_open_is_not_called_minimal_nor_exact() -> None:
    """The oracle answers every question but the first few by 'no answer in time'."""
    problem = planner.load(question(constraints={"memory_per_device": "1 MiB"}, fix={"num_devices": 4}))
    for known in range(1, 8):
        left = [known]

        def hurried(asked: Problem, search: Search, left: list[int] = left) -> Plan:
            left[0] -= 1
            if left[0] < 0:
                raise NoAnswerError("the time limit")
            return solve(asked, search)

        conflicts = conflicts_of(problem, hurried, Search(time_limit_s=600))
        rows = [row for conflict in conflicts for row in conflict.relaxations]
        assert rows and all(conflict.is_minimal is (known > 1) for conflict in conflicts)
        assert not any(row.is_exact for row in rows)
        text = "\n".join(conflict_lines(conflicts))
        assert "a limit struck" in text or "no value was found in time" in text
        if not all(conflict.is_minimal for conflict in conflicts):
            assert "not proven minimal" in text


def test_without_any_time_the_error_is_the_familys_alone() -> None:
    problem = planner.load(question(constraints={"memory_per_device": "1 MiB"}))
    assert conflicts_of(problem, solve, Search(time_limit_s=0)) == ()


@given(st.integers(-20, 20), st.integers(1, 200), st.data())
def test_bisection_finds_the_least_that_does(low: int, width: int, data: st.DataObject) -> None:
    least = data.draw(st.integers(low + 1, low + width + 5))
    found, is_exact = least_feasible(low, low + width, lambda number: number >= least)
    assert found == (least if least <= low + width else None)
    assert is_exact == (found is not None)


@given(st.integers(0, 10**7), st.sampled_from([*MEMORY_UNITS, *TIME_UNITS]))
def test_printed_values_are_read_back_as_what_was_tested(number: int, unit: Any) -> None:
    value = parse(unit.text(number), unit.dimension)
    assert value == pytest.approx(number * unit.step)
    assert parse(unit.text(number + 1), unit.dimension) > value


def test_every_pin_of_a_name_is_known_here() -> None:
    for key, field in FixSpec.model_fields.items():
        kinds = [kind for kind in typing.get_args(field.annotation) if kind is not type(None)]
        named = [value for kind in kinds for value in typing.get_args(kind) if isinstance(value, str)]
        if len(named) > 1:
            assert sorted(NAMES_OF_PINS[key]) == sorted(named), key


def test_the_document_of_an_error_carries_the_conflict_and_keeps_its_schema(
    capsys: CaptureFixture[str], tmp_path: Path
) -> None:
    import json

    file = tmp_path / "tight.json"
    asked = question(constraints={"devices": {"at_least": 7}, "machines": {"at_most": 3}}, families=["all_reduce"])
    file.write_text(json.dumps(asked))
    assert run(["plan", str(file), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    MODELS["error"].model_validate(document)
    assert document["conflict"] == {"members": ["constraints.devices", "constraints.machines"], "is_minimal": True}
    rows = {row["field"]: row for row in document["relaxations"]}
    assert rows["constraints.machines"]["values"] == ["4"]
    assert rows["constraints.machines"]["change"] == pytest.approx(1 / 3)
    assert document["further_conflicts"] == []
    assert run(["plan", str(file)]) == 1
    assert "constraints.machines: at most 3 -> 4" in capsys.readouterr().err


def test_an_error_without_conflict_has_none_in_its_document() -> None:
    document = error_document(SpecError("wrong"), kind="input")
    assert document["conflict"] is None
    assert document["relaxations"] == []
    assert MODELS["error"].model_validate_json(dump(document))


def test_the_deadline_named_is_the_optimum_rounded_up() -> None:
    tight = planner.load(question(constraints={"deadline": "1 ms"}))
    (conflict,) = diagnosis(tight)
    (row,) = conflict.relaxations
    best = solve(planner.load(question()), Search())
    needed_s = best.prediction.epoch_time_s
    assert needed_s is not None
    named_s = parse(row.values[0], Dimension.TIME)
    assert needed_s <= named_s <= needed_s * 1.02
    assert math.isclose(row.change or 0.0, needed_s / 1e-3 - 1)


def test_the_example_of_the_documentation_is_what_the_command_prints(
    capsys: CaptureFixture[str], tmp_path: Path
) -> None:
    page = (Path(__file__).parent.parent / "docs" / "infeasible.md").read_text()
    asked, printed = re.findall(r"```\w*\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "tight.yaml"
    file.write_text(asked)
    assert run(["plan", str(file)]) == 1
    assert capsys.readouterr().err == printed
