"""Questions without answer: the conflicting set is minimal, and every relaxation is enough and no more than enough."""

import copy
import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pytest import CaptureFixture

import planner
from planner.answer.documents import dump, error_document
from planner.answer.schemas import MODELS
from planner.cli.run import run
from planner.conflicts import Diagnosis, conflicts_of, diagnosed
from planner.constraints import Memory, relaxables
from planner.errors import InfeasibleError, Relaxation, SpecError
from planner.plan import Plan
from planner.problem import Problem, as_meant
from planner.ranking import best_plan
from planner.relaxation import UNITS, least_feasible
from planner.search import Search
from planner.units import Dimension, parse

FAMILIES = [["all_reduce"], ["all_reduce"], ["pipeline"], ["parameter_server"], ["all_reduce", "parameter_server"]]
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
        "calibration": {"bandwidth_efficiency": 1},
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
                "algorithm": st.sampled_from(["ring", "tree", "two_level", "in_network"]),
                "num_stages": st.integers(1, 5),
                "num_parameter_servers": st.integers(1, 5),
            },
        )
    )
    families = draw(st.sampled_from(FAMILIES))
    asked = question(constraints=constraints, fix=fix, families=families)
    asked["cluster"]["machines"][0]["device"]["memory"] = draw(st.sampled_from(["64 MiB", "18 MiB", "10 MiB"]))
    return asked


def loaded(asked: dict[str, Any]) -> Problem | None:
    """The problem, or None where the spec itself is refused."""
    try:
        return planner.load(asked)
    except SpecError:
        return None


def has_plan(problem: Problem) -> bool:
    """Whether there is a plan, by solving the question to its end."""
    try:
        best_plan(problem, Search())
    except InfeasibleError:
        return False
    return True


def diagnosis(problem: Problem) -> Diagnosis:
    """What conflicts in a question without answer."""
    return conflicts_of(problem, best_plan, Search(time_limit_s=600))


def only_step(problem: Problem) -> dict[str, Relaxation]:
    """The relaxations, by field, of a question with one conflict, whose members are each enough."""
    (step,) = diagnosis(problem).steps
    assert all(way.is_enough for way in step.ways)
    return {way.row.field: way.row for way in step.ways}


def edited(asked: dict[str, Any], row: Relaxation, value: str | None) -> dict[str, Any]:
    """The spec with the member's value written into it, or the member left out, as a user would do it."""
    changed = copy.deepcopy(asked)
    section, _, key = row.field.partition(".")
    if row.field.startswith("memory of "):
        changed["cluster"]["machines"][0]["device"]["memory"] = value
    elif section == "families":
        changed["families"].append((value or "").removeprefix("also allow "))
    elif section == "fix":
        if value is None:
            del changed["fix"][key]
        else:
            changed["fix"][key] = int(value) if value.isdigit() else value
    elif key in ("devices", "machines"):
        end = row.given.rsplit(" ", 1)[0].replace(" ", "_")
        both = {name: number for name, number in changed["constraints"][key].items() if "exactly" not in (name, end)}
        changed["constraints"][key] = both if value is None else {**both, end: int(value)}
    else:
        changed["constraints"][key] = int(value) if value is not None and value.isdigit() else value
    return changed


def short_of(row: Relaxation, value: str) -> Iterator[str]:
    """The printed values that lie nearer to the given one than ``value``."""
    if value.isdigit():
        old, new = int(row.given.rsplit(" ", 1)[-1]), int(value)
        yield from (str(one) for one in range(min(old, new), max(old, new) + 1) if one not in (old, new))
    elif len(value.split()) == 2:
        number, unit = value.split()
        digits = next(one.digits for units in UNITS.values() for one in units if one.name == unit)
        yield f"{float(number) - 10.0**-digits:.{digits}f} {unit}"


@settings(max_examples=15)
@given(tight_questions())
def test_each_way_out_written_into_the_spec_gives_a_plan_and_no_smaller_one_does(asked: dict[str, Any]) -> None:
    problem = loaded(asked)
    assume(problem is not None)
    assert problem is not None
    assume(not has_plan(problem))
    found = diagnosis(problem)
    free = problem
    for member in relaxables(problem):
        free = member.without(free)
    assert bool(found.steps) == has_plan(free)
    for step in found.steps:
        members = {(one.field, one.given): one for one in relaxables(problem)}
        chosen = {(way.row.field, way.row.given) for way in step.ways}
        alone = problem
        for key, member in members.items():
            alone = alone if key in chosen else member.without(alone)
        assert step.is_minimal and not has_plan(alone)
        assert all(has_plan(members[key].without(alone)) for key in chosen)
        for way in step.ways:
            assert way.is_enough is not None and way.is_enough == way.row.is_enough and way.row.is_exact
            assert way.is_enough == has_plan(way.of(problem))
            if way.is_enough:
                check_written(asked, way.row)
            else:
                assert has_plan(way.of(alone)) and "still" in way.row.note
        last = next((way for way in step.ways if not way.is_enough), None)
        if last is not None and step is not found.steps[-1]:
            asked = edited(asked, last.row, last.row.values[0] if last.row.values else None)
            problem = loaded(asked)
            assert problem is not None and not has_plan(problem)
    if found.steps and not found.end.startswith("More conflicts remain; 4 are listed"):
        assert any(way.is_enough for way in found.steps[-1].ways)


def check_written(asked: dict[str, Any], row: Relaxation) -> None:
    """Each value of a row, written into the spec, gives a plan, and none that is nearer to the given one."""
    for value in row.values or (None,):
        enough = loaded(edited(asked, row, value))
        assert enough is not None and has_plan(enough), (row, value)
        for less in short_of(row, value) if value else ():
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
        ({"fix": {"num_stages": 4}}, "families", ("also allow pipeline",)),
    ],
)
def test_numbers_are_relaxed_to_the_nearest_that_do(
    changes: dict[str, Any], field: str, values: tuple[str, ...]
) -> None:
    row = only_step(planner.load(question(families=["all_reduce"], **changes)))[field]
    assert set(row.values) == set(values)
    assert row.is_exact


@pytest.mark.parametrize(
    ("limit", "memory", "experts"),
    [
        ("3 GiB", "80 GiB", {}),
        ("6 GiB", "80 GiB", {"experts": {"count": 16, "top_k": 2, "size": 1024}}),
        ("90 GiB", "1 GiB", {"experts": {"count": 16, "top_k": 2, "size": 1024}}),
    ],
)
def test_a_transformer_s_memory_raised_to_the_value_named_gives_a_plan_and_a_bit_less_does_not(
    limit: str, memory: str, experts: dict[str, Any]
) -> None:
    # Pieces that experts leave are a share of the device's memory: no device without memory of its own has none.
    sizes = {"layers": 4, "hidden": 1024, "heads": 8, "vocabulary": 32000, "sequence_length": 1024, **experts}
    device = {"name": "toy", "bf16": "100 TFLOP/s", "memory": memory}
    asked = {
        "dnn": {"transformer": sizes, "global_batch": 8},
        "cluster": {"machines": [{"count": 1, "device": device}]},
        "constraints": {"memory_per_device": limit},
        "families": ["hybrid"],
    }
    rows = only_step(planner.load(asked))
    assert len([row for field, row in rows.items() if "memory" in field]) == 1
    for field, row in rows.items():
        assert row.values and row.is_exact, field
        if field != "families":
            check_written(asked, row)


def test_another_device_type_is_named_where_the_pinned_one_has_too_little_memory() -> None:
    asked = question(fix={"device": "small"}, families=["all_reduce"])
    link = {"inside": "pcie-3-x16", "network": "10 Gbit/s"}
    asked["cluster"]["machines"] = [
        {"count": 2, "devices": 2, "device": {"name": "small", "fp32": "1 TFLOP/s", "memory": "8 MiB"}, **link},
        {"count": 2, "devices": 2, "device": {"name": "large", "fp32": "1 TFLOP/s", "memory": "80 MiB"}, **link},
    ]
    rows = only_step(planner.load(asked))
    assert rows.keys() == {"fix.device", "memory of small", "families"}
    assert rows["fix.device"].values == ("large",)
    assert rows["memory of small"].note == "other hardware"


def test_a_batch_per_device_means_the_batch_of_the_relaxed_number_of_devices() -> None:
    asked = question(
        families=["all_reduce"],
        constraints={"devices": 7},
        dnn={"layers": LAYERS, "batch_per_device": 4, "dataset_samples": 9_000},
    )
    problem = planner.load(asked)
    assert [row.values for row in only_step(problem).values()] == [("8", "6"), ("also allow pipeline",)]
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


def test_a_batch_per_device_that_lets_no_device_be_idle_is_a_constraint_of_its_own() -> None:
    """Three devices, and a tensor degree of 2: nothing but that all must be used stands in the way."""
    network = {"layers": 4, "hidden": 1024, "heads": 8, "vocabulary": 32000, "sequence_length": 1024}
    machine = {"count": 3, "device": "a100-sxm4-80gb", "devices": 1, "network": "200 Gbit/s"}
    asked: dict[str, Any] = {
        "dnn": {"transformer": network, "batch_per_device": 3},
        "cluster": {"machines": [machine]},
        "fix": {"tensor_parallel_size": 2},
        "families": ["hybrid"],
        "objective": "iteration_time",
    }
    with pytest.raises(InfeasibleError) as error:
        planner.plan(planner.load(asked))
    assert "dnn.batch_per_device: 3 on all 3 devices, per iteration -> dnn.global_batch 9" in str(error.value)
    assert "fix.tensor_parallel_size: 2 -> 1" in str(error.value)
    planner.plan(planner.load({**asked, "dnn": {"transformer": network, "global_batch": 9}}))
    planner.plan(planner.load({**asked, "fix": {}}))


def test_a_question_whose_batch_is_too_small_has_no_conflict_and_keeps_the_familys_words() -> None:
    asked = question(dnn={"layers": LAYERS, "global_batch": 1}, fix={"num_devices": 2}, families=["all_reduce"])
    assert only_step(planner.load(asked)).keys() == {"fix.num_devices", "families"}
    problem = planner.load(question())

    def nothing(asked: Problem, search: Search) -> Plan:
        raise InfeasibleError("No plan fits: the batch is empty.")

    assert conflicts_of(problem, nothing, Search()) == Diagnosis()
    error = InfeasibleError("No plan fits: the batch is empty.")
    assert diagnosed(problem, error, nothing, Search()) is error
    assert error.conflicts == ()


def test_the_familys_own_message_ends_the_text() -> None:
    with pytest.raises(
        InfeasibleError, match=r"(?s)^No plan fits: .*This settles it:.*even one sample at a time"
    ) as error:
        planner.plan(planner.load(question(constraints={"memory_per_device": "1 MiB"}, families=["all_reduce"])))
    again = pickle.loads(pickle.dumps(error.value))
    assert str(again) == str(error.value)
    assert again.conflicts == error.value.conflicts != ()


@given(st.integers(-20, 20), st.integers(1, 200), st.data())
def test_bisection_finds_the_least_that_does(low: int, width: int, data: st.DataObject) -> None:
    least = data.draw(st.integers(low + 1, low + width + 5))
    found, is_exact = least_feasible(low, low + width, lambda number: number >= least)
    assert found == (least if least <= low + width else None)
    assert is_exact == (found is not None)


@dataclass
class Threshold:
    """Who answers that a question has an answer from so much memory on, and counts."""

    least_bytes: float
    enough_bytes: float
    asked: int = 0

    def is_feasible(self, problem: Problem) -> bool:
        self.asked += 1
        most = problem.limits.memory_per_device_bytes
        return most is None or most >= self.least_bytes

    def best(self, problem: Problem) -> Plan | None:
        raise AssertionError


@given(st.floats(1.001, 50.0), st.one_of(st.just(1.0), st.floats(0.01, 60.0), st.just(float("inf"))))
def test_memory_that_is_known_to_be_enough_spares_questions_and_alters_no_answer(least: float, known: float) -> None:
    problem = planner.load(question())
    member = Memory(field="constraints.memory_per_device", given="80 GiB", turn=9, value_bytes=80 * 2.0**30)
    rows, numbers = [], []
    for enough in (float("inf"), known):
        oracle = Threshold(least * member.value_bytes, enough * least * member.value_bytes)
        rows.append(member.relaxed(problem, oracle))
        numbers.append(oracle.asked)
    assert rows[0] == rows[1]
    assert numbers[1] <= numbers[0] + 2
    assert numbers[1] == 2 or known != 1.0


@given(st.integers(0, 10**7), st.sampled_from([unit for units in UNITS.values() for unit in units]))
def test_printed_values_are_read_back_as_what_was_tested(number: int, unit: Any) -> None:
    value = parse(unit.text(number), unit.dimension)
    assert value == pytest.approx(number * unit.step)
    assert parse(unit.text(number + 1), unit.dimension) > value


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


def test_a_deadline_gets_one_way_out_whether_or_not_time_is_left_for_the_diagnosis() -> None:
    tight = planner.load(question(constraints={"deadline": "1 ms"}))
    with pytest.raises(InfeasibleError) as caught:
        planner.plan(tight)
    ((row,),) = (one.relaxations for one in caught.value.conflicts)
    text = str(caught.value)
    assert text.count(row.values[0]) == 1
    assert "Raise it, or add machines." in text

    class Late(Search):
        """A search whose time is over, and whose families answer all the same."""

        @property
        def is_over(self) -> bool:
            return True

    with pytest.raises(InfeasibleError, match=r"Raise it to [\d.]+ \w+, or add machines\."):
        best_plan(tight, Late())


def test_a_question_that_every_family_refuses_for_one_field_is_wrong_input_and_no_conflict(
    capsys: CaptureFixture[str], tmp_path: Path
) -> None:
    device = question()["cluster"]["machines"][0]["device"]
    nodes = [{"name": name, "device": device, "count": 2} for name in ("a", "b")]
    switches = [{"name": name, "type": "switch"} for name in ("s", "t")]
    ends = {("a", "s"): 10, ("b", "t"): 10, ("s", "t"): 1}
    links = [{"ends": list(pair), "bandwidth": f"{rate} Gbit/s"} for pair, rate in ends.items()]
    families = ["parameter_server", "pipeline"]
    asked = question(cluster={"nodes": [*nodes, *switches], "links": links}, families=families)
    (tmp_path / "spec.json").write_text(dump(asked))
    assert run(["plan", str(tmp_path / "spec.json")]) == 2
    assert "cluster.links" in capsys.readouterr().err


def test_the_deadline_named_is_the_optimum_rounded_up() -> None:
    tight = planner.load(question(constraints={"deadline": "1 ms"}))
    (row,) = only_step(tight).values()
    best = best_plan(planner.load(question()), Search())
    needed_s = best.prediction.epoch_time_s
    assert needed_s is not None
    named_s = parse(row.values[0], Dimension.TIME)
    assert needed_s <= named_s <= needed_s * 1.02
    assert math.isclose(row.change or 0.0, needed_s / 1e-3 - 1)


@pytest.mark.parametrize(
    ("dnn", "fix", "given"),
    [
        ({"optimizer": "muon"}, {"optimizer_offload_percent": 100}, "100"),
        (
            {"optimizer": "muon"},
            {"optimizer_offload_percent": 100, "offload_optimizer": True},
            "100 with fix.offload_optimizer: true",
        ),
        ({"zoo": "alexnet"}, {"recompute_modules": ["mlp"]}, "mlp"),
    ],
)
def test_what_a_pin_asks_for_gives_way_with_it(dnn: dict[str, Any], fix: dict[str, Any], given: str) -> None:
    """What nobody wrote is no constraint, and no other value of it is a way out, as the pin contradicts that."""
    sizes = {"layers": 2, "hidden": 256, "heads": 4, "vocabulary": 1000, "sequence_length": 128}
    network = dnn if "zoo" in dnn else {**dnn, "transformer": sizes}
    asked = {
        "dnn": {**network, "global_batch": 8},
        "cluster": {"machines": [{"count": 1, "device": "h100-sxm", "devices": 2}]},
        "objective": "iteration_time",
    }
    with pytest.raises(InfeasibleError) as caught:
        planner.plan({**asked, "fix": fix})
    (conflict,) = caught.value.conflicts
    key = next(iter(fix))
    assert [(one.field, one.given, one.values) for one in conflict.relaxations] == [(f"fix.{key}", given, ())]
    assert "leave it out" in conflict.relaxations[0].note
    assert f"does not decide fix.{key}, which is pinned" in str(caught.value) or "muon" in str(caught.value)
    planner.plan(asked)


def test_two_pins_that_ask_for_unlike_decisions_are_told_of() -> None:
    fix = {"recompute_modules": ["mlp"], "recompute_layers": 2}
    words = r"fix.recompute_layers: it goes with recompute: full, and fix.recompute_modules with recompute: selective"
    with pytest.raises(SpecError, match=words):
        planner.load({"dnn": {"zoo": "llama3.2-1b"}, "cluster": {"preset": "osf-testbed"}, "fix": fix})
