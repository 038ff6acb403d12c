"""Every registered family on the same questions: what it answers passes the checker, and limits are kept.

A new family is picked up by its registration.
"""

from functools import cache
from typing import Any

import pytest

import planner
from planner.answer.documents import dump
from planner.checks import report_text
from planner.errors import InfeasibleError, NoAnswerError, SpecError
from planner.families import FAMILIES
from planner.families.answer import TOO_SHORT
from planner.plan import Plan
from planner.problem import Problem
from planner.ranking import best_plan
from planner.search import Search
from planner.solution import Status
from planner.testing import DNN, EQUAL, INSIDE, MIXED, QUESTIONS, TOY, check_plan
from tests.referee.second_physics import check

# The machines of most presets have no rate of the numbers that transformers are trained in.
NAMES = {family: [name for name in QUESTIONS if family != "hybrid" or "preset" not in name] for family in FAMILIES.own}
CASES = [(family, name) for family, names in NAMES.items() for name in names]
# For the family that splits transformers: in place of the layers.
TRANSFORMER: dict[str, Any] = {
    "transformer": {"layers": 4, "hidden": 64, "heads": 4, "vocabulary": 512, "sequence_length": 64},
    "dtype": "bf16",
    "optimizer": "adam",
    "dataset_samples": 5_000,
}
GENEROUS_S = 30.0  # far beyond what any of these needs, and a guard


@cache
def problem_of(family: str, name: str) -> Problem:
    """The question, put to one family alone."""
    return planner.load(asked(family, QUESTIONS[name]))


def asked(family: str, question: dict[str, Any]) -> dict[str, Any]:
    """The question for one family alone, with a network that it can split."""
    if family != "hybrid":
        return {**question, "families": [family]}
    kept = {key: value for key, value in question["dnn"].items() if key not in ("layers", "zoo", "profile_batch")}
    return {**question, "dnn": {**TRANSFORMER, **kept}, "families": [family]}


@cache
def answer(family: str, name: str) -> Plan | str:
    """The plan, or why there is none."""
    return searched(family, name)


def searched(family: str, name: str) -> Plan | str:
    try:
        return planner.plan(problem_of(family, name), time_limit_s=GENEROUS_S)
    except (InfeasibleError, NoAnswerError) as error:
        return str(error)


@pytest.mark.parametrize(("family", "name"), CASES)
def test_a_plan_passes_the_checker_and_a_refusal_has_a_reason(family: str, name: str) -> None:
    found = answer(family, name)
    if isinstance(found, str):
        assert found.strip()
        return
    report = check(problem_of(family, name), found)
    assert report.is_ok, report_text(report)
    assert found.family == family
    check_plan(problem_of(family, name), found)


# Whatever devices wait for, and on whichever machines: each meets each way of reading, and each other.
STRATEGIES = ("naive", "cntk", "mxnet", "caffe_mpi")
WAYS = ("pipelined", "single")


@pytest.mark.usefixtures("wordless")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("family", FAMILIES.own)
def test_no_loser_is_costed_by_another_way_than_the_plan(family: str, strategy: str) -> None:
    number = 0
    places = list(enumerate((EQUAL, INSIDE, MIXED), start=STRATEGIES.index(strategy)))
    if family == "hybrid":  # of the strategy it only asks whether copies run ahead: each meets one kind of machines
        places = places[STRATEGIES.index(strategy) % 3 :][:1]
    for place, machines in places:
        slow = {"storage": {"bandwidth": "20 MB/s"}, "host_link": "1 GB/s", "decode": "1000 samples/s"}
        question = {
            "dnn": {**DNN, "sample_bytes": "40 kB"},
            "cluster": {"machines": [{**one, **slow} for one in machines["machines"]]},
            "calibration": {"strategy": strategy, "prefetch": WAYS[place % 2], "cores": 2},
            "constraints": {"max_staleness": "unbounded"} if family == "model_replicas" else {},
        }
        if family == "hybrid":
            question["dnn"] = {key: value for key, value in question["dnn"].items() if key != "sample_bytes"}
        problem = planner.load(asked(family, question))
        try:
            found = planner.plan(problem, time_limit_s=GENEROUS_S, num_alternatives=4)
        except InfeasibleError:
            continue
        for other in found.alternatives:
            assert other.objective >= found.bound * (1 - 1e-9), other
            if other.configuration is not None and other.family == family:
                costs = FAMILIES[family].predict(problem, other.configuration)
                assert other.objective == pytest.approx(costs.value_of(found.goal), rel=1e-9), other
                number += 1
        report = check(problem, found)
        assert report.is_ok, report_text(report)
    assert number


@pytest.mark.parametrize("family", FAMILIES.own)
def test_a_family_answers_most_questions(family: str) -> None:
    plans = [name for name in NAMES[family] if isinstance(answer(family, name), Plan)]
    assert len(plans) > len(NAMES[family]) / 2, plans  # else the checks above see too little


@pytest.mark.parametrize(("family", "name"), CASES[:: max(1, len(CASES) // 16)])
def test_the_same_question_gives_the_same_bytes(family: str, name: str) -> None:
    first, second = answer(family, name), searched(family, name)
    texts = [one if isinstance(one, str) else dump(one.to_dict()) for one in (first, second)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("family", FAMILIES.own)
@pytest.mark.parametrize("name", ["equal machines", "mixed machines", "a batch that may vary"])
@pytest.mark.parametrize("limit_s", [0.0, 1e-3, 0.05])
def test_a_short_limit_gives_no_answer_or_a_plan_with_its_bound(family: str, name: str, limit_s: float) -> None:
    problem, best = problem_of(family, name), answer(family, name)
    try:
        found = FAMILIES[family].search(problem, Search(time_limit_s=limit_s))
    except NoAnswerError as error:
        assert str(error) == TOO_SHORT
        return
    except (InfeasibleError, SpecError):
        assert isinstance(best, str)
        return
    assert isinstance(best, Plan)
    assert found.bound <= best.objective * (1 + 1e-9)
    assert found.objective >= best.bound * (1 - 1e-9)
    assert (found.status is Status.OPTIMAL) == (found.bound == found.objective)


@pytest.mark.parametrize("family", FAMILIES.own)
@pytest.mark.parametrize("name", ["equal machines", "mixed machines", "stale gradients"])
def test_an_answer_that_is_good_enough_ends_the_search_with_a_true_bound(family: str, name: str) -> None:
    problem, best = problem_of(family, name), answer(family, name)
    if isinstance(best, str):
        with pytest.raises((InfeasibleError, NoAnswerError)):
            best_plan(problem, Search(good_enough=float("inf")))
        return
    for wanted in (float("inf"), best.objective * 1.5, best.objective):
        found = FAMILIES[family].search(problem, Search(good_enough=wanted))
        assert found.objective <= max(wanted, best.objective) * (1 + 1e-9)
        assert found.bound <= best.objective * (1 + 1e-9)
        assert found.objective >= best.bound * (1 - 1e-9)


# With a share of the peak: kernels take the host's time to launch, however fast the machines are.
@pytest.mark.parametrize("family", [one for one in FAMILIES.own if one != "hybrid"])
def test_twice_as_fast_machines_and_links_halve_the_time(family: str) -> None:
    seconds = []
    for factor in (1, 2):
        device = {**TOY, "fp32": f"{factor} TFLOP/s"}
        machine = {"count": 3, "device": device, "network": f"{10 * factor} Gbit/s", "latency": f"{20 / factor} us"}
        question = {"dnn": DNN, "cluster": {"machines": [machine]}, "families": [family]}
        calibration = {"utilisation": 0.5, "bandwidth_efficiency": 1}
        found = planner.plan(planner.load({**question, "calibration": calibration}))
        seconds.append(found.objective)
    assert seconds[1] == pytest.approx(seconds[0] / 2, rel=1e-6)
