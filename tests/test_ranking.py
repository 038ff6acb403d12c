"""The ranking over networks and families: made-up families, so that bounds, limits and staleness can be chosen."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from answers import plan_text
from made_families import Found, only_searched

import planner
from planner.errors import Fault, InfeasibleError, NoAnswerError, SpecError
from planner.families import FAMILIES
from planner.networks import computation_bound
from planner.plan import Plan
from planner.problem import Problem
from planner.ranking import best_plan
from planner.search import Search
from planner.solution import Status
from planner.words import percent_words

QUESTION: dict[str, Any] = {
    "dnn": {"zoo": "vgg16", "batch_per_device": 32},
    "cluster": {"preset": "osf-testbed"},
    "constraints": {"max_staleness": "unbounded"},
}
SLOW = {"name": "slow", "layers": ["fc8"], "by": {"layers": [{"name": "x", "multiply_adds": 1e15, "output": "4000 B"}]}}
ASKED = ("all_reduce", "parameter_server", "pipeline")

BOUNDS: dict[str, Callable[[Problem], float]] = {}  # in place of a family's own


@pytest.fixture(scope="module")
def base() -> Plan:
    return planner.plan(planner.load({**QUESTION, "families": ["all_reduce"]}))


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    def ranked(searches: Mapping[str, Found], search: Search | None = None, **question: Any) -> Plan:
        only_searched(monkeypatch, searches, BOUNDS)
        return best_plan(planner.load({**QUESTION, **question}), search or Search())

    return ranked


def answer(base: Plan, seconds: float, *, bound: float | None = None, most: float | None = 0.0) -> Plan:
    """A plan that takes so long; ``most`` None is unbounded staleness."""
    details = {**base.prediction.details, "staleness": {"mean": 0.5, "most": most}}
    return replace(
        base,
        objective=seconds,
        bound=seconds if bound is None else bound,
        prediction=replace(
            base.prediction, details=details, breakdown_s={"forward": 0.6, "bubble": 0.4}, iteration_time_s=1.0
        ),
        alternatives=(),
        explanation=("why",),
        warnings=(),
    )


def always(plan: Plan) -> Found:
    return lambda problem, search: replace(plan, warnings=problem.warnings)


def fails(error: Exception) -> Found:
    def search(problem: Problem, search: Search) -> Plan:
        raise error

    return search


def test_the_best_of_all_families_wins_and_losers_say_what_they_spend_time_on(rank: Any, base: Plan) -> None:
    slow = replace(answer(base, 700), family="pipeline")
    found = rank({"all_reduce": always(answer(base, 600)), "pipeline": always(slow)})
    assert (found.family, found.objective, found.status) == ("all_reduce", 600, Status.OPTIMAL)
    (loser,) = found.alternatives
    assert loser.name.startswith("pipeline: ")
    assert loser.relative_loss == pytest.approx(1 / 6)
    assert loser.reason == "40% of its time is bubble"


def test_the_bound_is_the_least_of_all_that_may_answer(rank: Any, base: Plan) -> None:
    found = rank({"all_reduce": always(answer(base, 600)), "pipeline": always(answer(base, 700, bound=550))})
    assert (found.bound, found.status) == (550, Status.FEASIBLE)


def test_a_family_without_an_answer_in_time_leaves_only_the_computation_proven(rank: Any, base: Plan) -> None:
    found = rank({"all_reduce": always(answer(base, 600)), "pipeline": fails(NoAnswerError("too short"))})
    assert found.bound == pytest.approx(computation_bound(planner.load(QUESTION)))
    assert 0 < found.bound < 600
    assert found.status is Status.FEASIBLE
    assert "pipeline gives no plan: too short" in found.explanation


def test_a_family_that_came_too_late_counts_by_the_bound_it_has_without_a_search(
    rank: Any, base: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BOUNDS, "model_replicas", lambda problem: 345.0)
    found = rank({"all_reduce": always(answer(base, 600)), "model_replicas": fails(NoAnswerError("too short"))})
    assert found.bound == 345.0
    assert found.status is Status.FEASIBLE


def test_refusals_are_cut_to_a_line(rank: Any, base: Plan) -> None:
    long = "No plan fits: one thing is wrong. " + "And another one is, too. " * 20
    found = rank({"all_reduce": always(answer(base, 600)), "pipeline": fails(InfeasibleError(long))})
    (line,) = [line for line in found.explanation if "gives no plan" in line]
    assert len(line) < 200
    assert line.endswith(".")


def test_where_nothing_fits_every_family_says_why(rank: Any) -> None:
    families = {name: fails(InfeasibleError(f"{name} is too large.")) for name in ASKED}
    with pytest.raises(InfeasibleError) as caught:
        rank(families)
    assert str(caught.value).splitlines() == [f"{name}: {name} is too large." for name in ASKED]


def test_families_without_a_search_are_named_as_the_reason(rank: Any) -> None:
    with pytest.raises(InfeasibleError, match="none of the allowed families can be searched"):
        rank({}, families=["pipeline"])


def test_one_that_came_too_late_is_no_proof_that_nothing_fits(rank: Any) -> None:
    with pytest.raises(NoAnswerError):
        rank({"all_reduce": fails(InfeasibleError("no")), "pipeline": fails(NoAnswerError("late"))})


# -- networks --------------------------------------------------------------------------------------------------------


def test_where_a_limit_struck_what_is_known_of_each_family_is_told_apart(rank: Any) -> None:
    families = {"all_reduce": fails(InfeasibleError("it is too large.")), "pipeline": fails(NoAnswerError("too short"))}
    with pytest.raises(NoAnswerError) as caught:
        rank(families)
    lines = str(caught.value).splitlines()
    assert lines[2:] == ["  pipeline: too short", "Known to have no plan:", "  all_reduce: it is too large."]
    assert lines[:2] == ["No plan was found, nor is it proven that there is none.", "Not known:"]


def wrong(field: str) -> SpecError:
    return SpecError.of([Fault(field=field, problem="it is wrong.")])


def test_what_every_family_refuses_for_the_same_field_is_wrong_input(rank: Any) -> None:
    with pytest.raises(SpecError) as caught:
        rank({name: fails(wrong("cluster.links")) for name in ASKED})
    assert str(caught.value) == "cluster.links: it is wrong."
    assert [one.field for one in caught.value.faults] == ["cluster.links"]


@pytest.mark.parametrize("other", [wrong("dnn"), InfeasibleError("it is too large.")])
def test_what_families_refuse_for_different_reasons_leaves_no_plan(rank: Any, other: Exception) -> None:
    with pytest.raises(InfeasibleError):
        rank({"all_reduce": fails(wrong("cluster.links")), "pipeline": fails(other)})


def test_a_part_of_a_search_counts_its_questions_and_ends_with_the_whole() -> None:
    whole = Search()
    part = whole.part(10.0, questions_left=2)
    assert [part.is_over, part.is_over, part.is_counted_out, part.is_over] == [False, False, False, True]
    assert part.is_counted_out
    assert not whole.is_over
    other = whole.part(10.0, questions_left=2)
    whole.interrupt()
    assert other.is_over
    assert not other.is_counted_out


def test_a_part_may_count_the_questions_of_all_its_own_parts() -> None:
    whole = Search()
    part = whole.part(10.0, questions_left=3)
    inner = part.part(10.0, questions_left=5)
    assert [part.is_over, inner.is_over, inner.is_over, inner.is_counted_out] == [False, False, False, False]
    assert inner.is_over
    assert part.is_counted_out
    assert not part.is_out_of_time
    assert not whole.is_counted_out
    assert not whole.is_over


def test_a_network_that_not_even_computation_makes_faster_is_not_planned(rank: Any, base: Plan) -> None:
    asked: list[tuple[str, ...]] = []

    def search(problem: Problem, search: Search) -> Plan:
        asked.append(problem.taken)
        return answer(base, 600)

    dnn = {**QUESTION["dnn"], "substitutions": [SLOW]}
    found = rank({"all_reduce": search}, dnn=dnn)
    assert asked == [()]
    assert found.status is Status.OPTIMAL
    rank({"all_reduce": lambda problem, search: (asked.append(problem.taken), answer(base, 1e9))[1]}, dnn=dnn)  # type: ignore[func-returns-value]
    assert asked == [(), (), ("slow",)]


# -- limits ----------------------------------------------------------------------------------------------------------


def test_time_that_one_family_leaves_goes_to_the_next(rank: Any, base: Plan) -> None:
    left: list[float] = []

    def search(problem: Problem, search: Search) -> Plan:
        left.append(search.left_s)
        return answer(base, 600)

    rank(dict.fromkeys(ASKED, search), Search(time_limit_s=90))
    assert left[0] <= 30 < left[1] <= 45 < left[2] <= 90


def test_a_family_that_loses_is_searched_no_longer_than_to_prove_that(rank: Any, base: Plan) -> None:
    """Its bound creeps up to what it finds in the end."""
    asked: list[int] = []

    def creeping(problem: Problem, search: Search) -> Plan:
        steps = 0
        while not search.is_over and 500 + steps / 100 < min(search.cutoff, 900):
            steps += 1
        asked.append(steps)
        return replace(answer(base, 900, bound=500 + steps / 100), family="pipeline", status=Status.FEASIBLE)

    found = rank({"all_reduce": always(answer(base, 600)), "pipeline": creeping})
    assert (found.objective, found.status) == (600, Status.OPTIMAL)
    assert asked == [10_000]
    assert found.alternatives[0].reason.endswith("; none of its family is faster")


def test_an_interruption_gives_what_is_there_unproven(rank: Any, base: Plan) -> None:
    def search(problem: Problem, search: Search) -> Plan:
        search.interrupt()
        return answer(base, 600)

    def late(problem: Problem, search: Search) -> Plan:
        assert search.is_over
        raise NoAnswerError("too late")

    found = rank({"all_reduce": search, "pipeline": late})
    assert (found.objective, found.status) == (600, Status.FEASIBLE)
    assert 0 < found.bound < 600


def test_a_good_answer_ends_the_search_and_the_bound_still_holds(rank: Any, base: Plan) -> None:
    found = rank(
        {"all_reduce": always(answer(base, 600)), "pipeline": always(answer(base, 560))},
        Search(good_enough=float("inf")),
    )
    assert found.objective == 600
    assert found.status is Status.FEASIBLE
    assert found.bound <= 560


# -- staleness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [3.0, None])
def test_an_asynchronous_plan_never_stands_beside_others_without_its_break_even(
    rank: Any, base: Plan, most: float | None
) -> None:
    stale = replace(answer(base, 500, most=most), family="parameter_server")
    found = rank({"all_reduce": always(answer(base, 615)), "parameter_server": always(stale)})
    assert found.family == "parameter_server"
    (line,) = [line for line in found.explanation if "asynchronous" in line]
    assert "less than 1.23 times the epochs of the best synchronous plan (all_reduce" in line
    assert any("asynchronous" in warning for warning in found.warnings)
    assert found.alternatives[0].name.startswith("all_reduce (synchronous): ")


def test_an_asynchronous_loser_says_so_too(rank: Any, base: Plan) -> None:
    stale = replace(answer(base, 700, most=2.0), family="parameter_server")
    found = rank({"all_reduce": always(answer(base, 600)), "parameter_server": always(stale)})
    assert found.alternatives[0].name.startswith("parameter_server (asynchronous): ")
    assert any("no faster than the best synchronous plan" in line for line in found.explanation)


def test_the_best_synchronous_plan_of_the_same_family_is_sought_to_compare_with(rank: Any, base: Plan) -> None:
    def search(problem: Problem, search: Search) -> Plan:
        return answer(base, 500, most=3.0) if problem.limits.max_staleness else answer(base, 550)

    found = rank({"all_reduce": search})
    assert found.objective == 500
    assert any("less than 1.10 times" in line for line in found.explanation)


def test_without_a_synchronous_plan_the_explanation_says_that(rank: Any, base: Plan) -> None:
    found = rank({"all_reduce": always(answer(base, 500, most=3.0))}, constraints={"max_staleness": 3})
    assert "no synchronous plan was found to compare with" in found.explanation


def test_a_family_that_cannot_answer_takes_no_time_from_the_others(monkeypatch: pytest.MonkeyPatch, base: Plan) -> None:
    shares: list[float] = []

    def noted(problem: Problem, part: Search) -> Plan:
        shares.append(part.left_s)
        return answer(base, 1.0)

    only_searched(monkeypatch, {"all_reduce": noted, "hybrid": noted})
    question = {**QUESTION, "families": ["all_reduce", "hybrid"], "constraints": {}}
    best_plan(planner.load(question), Search(time_limit_s=1000))
    assert shares[0] == pytest.approx(500, rel=0.1)


# -- transformers ------------------------------------------------------------------------------------------------------

TRANSFORMER = {"layers": 2, "hidden": 512, "heads": 8, "vocabulary": 1000, "sequence_length": 128}


def test_a_transformer_is_asked_of_hybrid_first_and_others_may_stop_at_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machines = [{"count": 1, "device": "a100-sxm4-80gb", "devices": 2}]
    dnn = {"transformer": TRANSFORMER, "global_batch": 8}
    problem = planner.load({"dnn": dnn, "cluster": {"machines": machines}, "families": ["pipeline", "hybrid"]})
    asked: list[tuple[str, float]] = []

    def noted(name: str, search: Found) -> Found:
        def found(problem: Problem, part: Search) -> Plan:
            asked.append((name, part.cutoff))
            return search(problem, part)

        return found

    only_searched(monkeypatch, {name: noted(name, FAMILIES[name].search) for name in FAMILIES.own})
    plan = best_plan(problem, Search())
    assert [name for name, _ in asked][:2] == ["hybrid", "pipeline"]
    assert asked[0][1] == float("inf")
    assert asked[1][1] < float("inf")
    assert plan.bound <= plan.objective


def test_no_footnote_contradicts_the_headline() -> None:
    machines = [
        {"count": 8, "devices": 8, "device": "h100-sxm", "network": "400 Gbit/s", "nics": 1, "inside": "nvlink-4"}
    ]
    spec = {"dnn": {"zoo": "llama2-7b", "global_batch": 512}, "cluster": {"machines": machines}}
    problem = planner.load({**spec, "families": ["pipeline", "hybrid"]})
    plan = planner.plan(problem)
    assert plan.status is Status.OPTIMAL
    verdict, *rest = plan_text(plan, problem).splitlines()[1:]
    assert verdict.startswith('Proven optimal within the searched space (see "Search space"): iteration time')
    assert plan.beyond
    for what, bound in plan.beyond.items():
        beyond = rest.pop(0)
        assert bound < plan.objective
        assert beyond.startswith(what.capitalize())
        assert f"at most {percent_words(1 - bound / plan.objective)} faster" in beyond
    assert not any("may be faster" in line or "is faster" in line for line in rest)
    assert any("Its lead of" in line and "over hybrid may come from that alone." in line for line in rest)
