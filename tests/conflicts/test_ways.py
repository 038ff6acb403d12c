"""What a diagnosis claims, on made-up questions whose conflicts overlap at will, and what it says when time is short."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import planner
from planner.conflicts import conflicts_of, diagnosed, diagnosis_lines
from planner.constraints import relaxables
from planner.errors import InfeasibleError, NoAnswerError
from planner.plan import Plan
from planner.problem import Problem
from planner.search import Search

KEYS = ("num_devices", "num_machines", "num_parameter_servers", "num_replicas", "num_workers_per_replica")
FREE = planner.load(
    {
        "dnn": {"zoo": "alexnet", "global_batch": 32},
        "cluster": {"machines": [{"count": 6, "device": "rtx-2080-ti", "network": "10 Gbit/s"}]},
    }
)
Clause = Mapping[str, int]
SOME = Plan.__new__(Plan)  # a plan of which nobody asks anything


@st.composite
def questions(draw: st.DrawFn) -> tuple[dict[str, int], list[Clause]]:
    """Pins and clauses, the first of which leaves no plan."""
    pins = draw(st.dictionaries(st.sampled_from(KEYS), st.integers(1, 5), min_size=1))
    keys = draw(st.lists(st.sampled_from(sorted(pins)), min_size=1, max_size=3, unique=True))
    first = {key: draw(st.integers(0, pins[key] - 1)) for key in keys}
    others = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 5), min_size=1, max_size=3)
    return pins, [first, *draw(st.lists(others, max_size=4))]


def pinned(pins: Mapping[str, int]) -> Problem:
    return replace(FREE, fixed=dict(pins))


class Clauses:
    """An oracle: no plan where, for all keys of some clause, a number above the clause's is pinned."""

    def __init__(self, clauses: list[Clause], answers: float = float("inf")) -> None:
        self.clauses = clauses
        self.answers = answers
        self.times_s: list[float] = []

    def has_plan(self, problem: Problem) -> bool:
        pins: Mapping[str, Any] = problem.fixed
        return not any(all(pins.get(key, 0) > most for key, most in one.items()) for one in self.clauses)

    def __call__(self, problem: Problem, search: Search) -> Plan:
        self.times_s.append(search.time_limit_s)
        self.answers -= 1
        if self.answers < 0:
            raise NoAnswerError("the time limit")
        if self.has_plan(problem):
            return SOME
        raise InfeasibleError("No plan fits.")


@given(questions())
def test_every_conflict_is_minimal_and_every_way_out_does_what_is_said_of_it(
    question: tuple[dict[str, int], list[Clause]],
) -> None:
    oracle, problem = Clauses(question[1]), pinned(question[0])
    found = conflicts_of(problem, oracle, Search(time_limit_s=600))
    for number, step in enumerate(found.steps):
        assert not oracle.has_plan(problem)
        chosen = {way.row.field.removeprefix("fix.") for way in step.ways}
        alone = {key: value for key, value in problem.fixed.items() if key in chosen}
        assert step.is_minimal and not oracle.has_plan(pinned(alone))
        for way in step.ways:
            key = way.row.field.removeprefix("fix.")
            rest = {name: value for name, value in problem.fixed.items() if name != key}
            assert oracle.has_plan(pinned({name: value for name, value in alone.items() if name != key}))
            assert way.is_enough is oracle.has_plan(pinned(rest)) and way.row.is_exact
            given = problem.fixed[key]
            does = [value for value in range(1, given) if oracle.has_plan(pinned({**problem.fixed, key: value}))]
            if way.is_enough:
                assert way.row.values == tuple(str(value) for value in does[-1:])
            assert oracle.has_plan(way.of(pinned(alone)))
        if number + 1 < len(found.steps):
            problem = next(way for way in step.ways if not way.is_enough).of(problem)
    assert any(way.is_enough for way in found.steps[-1].ways) or found.end.startswith("More conflicts remain")


@given(questions(), st.integers(1, 30))
def test_what_a_limit_leaves_open_is_claimed_neither_way(
    question: tuple[dict[str, int], list[Clause]], answers: int
) -> None:
    truth, problem = Clauses(question[1]), pinned(question[0])
    found = conflicts_of(problem, Clauses(question[1], answers), Search(time_limit_s=600))
    for step in found.steps:
        alone = {way.row.field.removeprefix("fix."): problem.fixed.get(way.row.field[4:]) for way in step.ways}
        assert not truth.has_plan(pinned({key: value for key, value in alone.items() if value is not None}))
        for way in step.ways:
            assert way.is_enough is None or way.is_enough is truth.has_plan(way.of(problem))
            assert way.row.is_enough == (way.is_enough is True)
        if (way_on := next((way for way in step.ways if way.is_enough is False), None)) is not None:
            problem = way_on.of(problem)
    text = "\n".join(diagnosis_lines(found))
    is_open = not all(step.is_minimal and all(way.row.is_exact for way in step.ways) for step in found.steps)
    assert not is_open or "not found within the time limit" in text or "not proven minimal within the time" in text


def text_of(pins: Mapping[str, int], clauses: list[Clause]) -> str:
    """What is printed of a made-up question."""
    return "\n".join(diagnosis_lines(conflicts_of(pinned(pins), Clauses(clauses), Search(time_limit_s=600))))


def test_where_two_conflicts_share_a_member_only_that_one_settles_all() -> None:
    text = text_of(
        {"num_devices": 3, "num_machines": 2, "num_replicas": 2},
        [{"num_devices": 2, "num_machines": 1}, {"num_devices": 2, "num_replicas": 1}],
    )
    assert text.split("\n")[1:] == [
        "This settles it:",
        "  fix.num_devices: 3 -> 2",
        "This alone is not enough:",
        "  fix.num_replicas: 2 -> 1 (then fix.num_devices: 3 and fix.num_machines: 2 still conflict)",
        "With fix.num_replicas: 1, still no plan fits: these 2 constraints conflict, and no fewer of them: "
        "fix.num_devices: 3; fix.num_machines: 2.",
        "With that, any one of these settles it:",
        "  fix.num_devices: 3 -> 2",
        "  fix.num_machines: 2 -> 1",
    ]


def test_where_two_conflicts_have_nothing_in_common_the_second_stands_behind_a_way_out_of_the_first() -> None:
    text = text_of({"num_devices": 3, "num_machines": 2}, [{"num_devices": 2}, {"num_machines": 0}])
    assert text.split("\n") == [
        "No plan fits: one constraint leaves none: fix.num_devices: 3.",
        "This settles this conflict, but another one remains:",
        "  fix.num_devices: 3 -> 2 (then fix.num_machines: 2 still leaves none)",
        "With fix.num_devices: 2, still no plan fits: one constraint leaves none: fix.num_machines: 2.",
        "With that, this settles it:",
        "  fix.num_machines: 2 (no other value does; leave it out)",
    ]


def test_more_conflicts_than_are_listed_are_owned_up_to() -> None:
    text = text_of(dict.fromkeys(KEYS, 2), [{key: 1} for key in KEYS])
    assert text.endswith("More conflicts remain; 4 are listed at most.")
    assert text.count("one constraint leaves none") == 4


def test_each_question_is_a_part_of_the_search_and_none_is_asked_when_it_is_over() -> None:
    problem = pinned({"num_devices": 6, "num_machines": 2})
    oracle = Clauses([{"num_devices": 0}])
    conflicts_of(problem, oracle, Search(time_limit_s=8))
    assert oracle.times_s and max(oracle.times_s) <= 2
    search = Search(time_limit_s=600)
    questions_asked: list[Problem] = []

    def stopped(asked: Problem, part: Search) -> Plan:
        questions_asked.append(asked)
        search.interrupt()
        assert part.is_over
        return oracle(asked, part)

    found = conflicts_of(problem, stopped, search)
    assert found.steps == () and found.end == "Which constraints conflict was not found within the time limit."
    assert len(questions_asked) == 1


def test_without_any_time_the_family_speaks_alone_and_the_rest_is_said_to_be_open() -> None:
    oracle, error = Clauses([{"num_devices": 0}]), InfeasibleError("No plan fits: so says the family.")
    told = diagnosed(pinned({"num_devices": 2}), error, oracle, Search(time_limit_s=0))
    assert str(told) == f"{error}\nWhich constraints conflict was not found within the time limit."
    assert told.conflicts == () and not oracle.times_s


def test_a_search_that_answers_nothing_in_time_is_said_to_have_found_nothing() -> None:
    error = InfeasibleError("No plan fits: so says the family.")
    told = diagnosed(pinned({"num_devices": 2}), error, Clauses([], answers=0), Search(time_limit_s=600))
    assert str(told).endswith("Which constraints conflict was not found within the time limit.")


@pytest.mark.parametrize("value", [0, 2])
def test_staleness_is_relaxed_where_it_is_set(value: int) -> None:
    problem = replace(FREE, limits=replace(FREE.limits, max_staleness=value))

    def solve(asked: Problem, search: Search) -> Plan:
        if (asked.limits.max_staleness or 0) >= 5:
            return SOME
        raise InfeasibleError("No plan fits.")

    (step,) = conflicts_of(problem, solve, Search(time_limit_s=600)).steps
    (way,) = step.ways
    assert (way.row.field, way.row.given, way.row.values) == ("constraints.max_staleness", str(value), ("5",))
    assert way.is_enough and way.row.is_exact
    for free in (None, float("inf")):
        unset = replace(FREE, limits=replace(FREE.limits, max_staleness=free))
        assert "constraints.max_staleness" not in {member.field for member in relaxables(unset)}


def test_a_value_is_given_in_the_users_own_words() -> None:
    problem = planner.load(
        {
            "dnn": {"zoo": "alexnet", "global_batch": 32},
            "cluster": {"machines": [{"count": 2, "device": "rtx-2080-ti", "network": "10 Gbit/s"}]},
            "constraints": {"memory_per_device": "3000 MiB", "deadline": "0.5 h"},
        }
    )
    given = {member.field: member.given for member in relaxables(problem)}
    assert given["constraints.memory_per_device"] == "3000 MiB"
    assert given["constraints.deadline"] == "0.5 h"
    other = replace(problem, limits=replace(problem.limits, memory_per_device_bytes=2.0**30))
    assert {member.field: member.given for member in relaxables(other)}["constraints.memory_per_device"] == "1 GiB"
