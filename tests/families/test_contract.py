"""Every registered family on the same questions: what it answers passes the checker, and limits are kept.

A new family is picked up by its registration.
"""

from functools import cache
from typing import Any

import pytest

import planner
from planner import data
from planner.answer.documents import dump
from planner.checks import report_text
from planner.errors import InfeasibleError, NoAnswerError, SpecError
from planner.families import FAMILIES
from planner.families.answer import TOO_SHORT
from planner.families.searches import SEARCHES
from planner.plan import Plan
from planner.problem import Problem
from planner.ranking import best_plan
from planner.search import Search
from planner.solution import Status
from tests.referee.second_physics import check

LAYERS: list[dict[str, Any]] = [
    {"name": "data", "kind": "input", "output": "12 kB"},
    {
        "name": "one",
        "kind": "fully_connected",
        "inputs": ["data"],
        "multiply_adds": 2e8,
        "parameters": "2 MB",
        "output": "400 kB",
    },
    {
        "name": "two",
        "kind": "fully_connected",
        "inputs": ["one"],
        "multiply_adds": 3e8,
        "parameters": "4 MB",
        "output": "200 kB",
    },
    {
        "name": "three",
        "kind": "fully_connected",
        "inputs": ["two"],
        "multiply_adds": 1e8,
        "parameters": "500 kB",
        "output": "4 kB",
    },
]
DNN: dict[str, Any] = {"layers": LAYERS, "global_batch": 24, "dataset_samples": 5_000}
TOY: dict[str, Any] = {"name": "toy", "fp32": "1 TFLOP/s", "bf16": "1 TFLOP/s", "memory": "64 MiB"}
FAST: dict[str, Any] = {"name": "fast", "fp32": "3 TFLOP/s", "bf16": "3 TFLOP/s", "memory": "128 MiB"}
EQUAL: dict[str, Any] = {"machines": [{"count": 3, "device": TOY, "network": "10 Gbit/s", "latency": "20 us"}]}
INSIDE: dict[str, Any] = {
    "machines": [{"count": 2, "devices": 2, "device": TOY, "inside": "pcie-3-x16", "network": "10 Gbit/s"}]
}
MIXED: dict[str, Any] = {
    "machines": [
        {"name": "slow", "count": 2, "device": TOY, "network": "1 Gbit/s", "latency": "20 us"},
        {"name": "quick", "count": 1, "device": FAST, "network": "10 Gbit/s", "latency": "20 us"},
    ]
}
QUESTIONS: dict[str, dict[str, Any]] = {
    "equal machines": {"dnn": DNN, "cluster": EQUAL},
    "machines of two devices": {"dnn": DNN, "cluster": INSIDE},
    "mixed machines": {"dnn": DNN, "cluster": MIXED},
    "a batch that may vary": {"dnn": {"layers": LAYERS, "max_global_batch": 16, "dataset_samples": 5_000}, "cluster": EQUAL},
    "a batch per device": {"dnn": {"layers": LAYERS, "batch_per_device": 5}, "cluster": EQUAL},
    "an iteration": {"dnn": DNN, "cluster": EQUAL, "objective": "iteration_time"},
    "a training": {"dnn": {**DNN, "epochs": 7}, "cluster": EQUAL, "objective": "training_time"},
    "little memory": {"dnn": DNN, "cluster": INSIDE, "constraints": {"memory_per_device": "24 MiB"}},
    "at most two machines": {"dnn": DNN, "cluster": EQUAL, "constraints": {"machines": {"at_most": 2}}},
    "exactly three machines": {"dnn": DNN, "cluster": EQUAL, "constraints": {"machines": 3}},
    "a deadline": {"dnn": DNN, "cluster": EQUAL, "constraints": {"deadline": "15 min"}},
    "stale gradients": {"dnn": DNN, "cluster": EQUAL, "constraints": {"max_staleness": 2}},
    "a pinned device": {"dnn": DNN, "cluster": MIXED, "fix": {"device": "toy"}},
    "slow storage": {
        "dnn": {**DNN, "sample_bytes": "1 MB"},
        "cluster": {"machines": [{**EQUAL["machines"][0], "storage": {"bandwidth": "100 MB/s", "shared": True}, "host_link": "1 GB/s"}]},
    },
    "measured seconds": {
        "dnn": {
            "layers": [{**layer, "multiply_adds": 0, "forward": "2 ms", "backward": "5 ms"} for layer in LAYERS],
            "profile_batch": 4, "global_batch": 12, "dataset_samples": 1_000,
        },
        "cluster": EQUAL,
        "calibration": {"negotiate": "1 ms", "wait": "exact", "timeout": "4 ms", "strategy": "mxnet"},
    },
    **{f"preset {name}": {"dnn": {"zoo": "adam-mnist"}, "cluster": {"preset": name}} for name in data.preset_names()},
}  # fmt: skip
# The machines of most presets have no rate of the numbers that transformers are trained in.
NAMES = {family: [name for name in QUESTIONS if family != "hybrid" or "preset" not in name] for family in SEARCHES}
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
    """Search anew."""
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
    assert 0 <= found.bound <= found.objective
    assert (found.status is Status.OPTIMAL) == (found.bound == found.objective)
    costs = FAMILIES[family].predict(problem_of(family, name), found.configuration)
    assert found.objective == costs.value_of(found.goal)


# Whatever devices wait for, and on whichever machines.
WAITS = [
    (strategy, prefetch) for strategy in ("naive", "cntk", "mxnet", "caffe_mpi") for prefetch in ("pipelined", "single")
]


@pytest.mark.parametrize(("strategy", "prefetch"), WAITS)
@pytest.mark.parametrize("family", SEARCHES)
def test_no_loser_is_costed_by_another_way_than_the_plan(family: str, strategy: str, prefetch: str) -> None:
    number = 0
    for machines in (EQUAL, INSIDE, MIXED):
        slow = {"storage": {"bandwidth": "20 MB/s"}, "host_link": "1 GB/s", "decode": "1000 samples/s"}
        question = {
            "dnn": {**DNN, "sample_bytes": "40 kB"},
            "cluster": {"machines": [{**one, **slow} for one in machines["machines"]]},
            "calibration": {"strategy": strategy, "prefetch": prefetch, "cores": 2},
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


@pytest.mark.parametrize("family", SEARCHES)
def test_a_family_answers_most_questions(family: str) -> None:
    plans = [name for name in NAMES[family] if isinstance(answer(family, name), Plan)]
    assert len(plans) > len(NAMES[family]) / 2, plans  # else the checks above see too little


@pytest.mark.parametrize(("family", "name"), CASES[:: max(1, len(CASES) // 16)])
def test_the_same_question_gives_the_same_bytes(family: str, name: str) -> None:
    first, second = answer(family, name), searched(family, name)
    texts = [one if isinstance(one, str) else dump(one.to_dict()) for one in (first, second)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("family", SEARCHES)
@pytest.mark.parametrize("name", ["equal machines", "mixed machines", "a batch that may vary"])
@pytest.mark.parametrize("limit_s", [0.0, 1e-3, 0.05])
def test_a_short_limit_gives_no_answer_or_a_plan_with_its_bound(family: str, name: str, limit_s: float) -> None:
    problem, best = problem_of(family, name), answer(family, name)
    try:
        found = SEARCHES[family](problem, Search(time_limit_s=limit_s))
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


@pytest.mark.parametrize("family", SEARCHES)
@pytest.mark.parametrize("name", ["equal machines", "mixed machines", "stale gradients"])
def test_an_answer_that_is_good_enough_ends_the_search_with_a_true_bound(family: str, name: str) -> None:
    problem, best = problem_of(family, name), answer(family, name)
    if isinstance(best, str):
        with pytest.raises((InfeasibleError, NoAnswerError)):
            best_plan(problem, Search(good_enough=float("inf")))
        return
    for wanted in (float("inf"), best.objective * 1.5, best.objective):
        found = SEARCHES[family](problem, Search(good_enough=wanted))
        assert found.objective <= max(wanted, best.objective) * (1 + 1e-9)
        assert found.bound <= best.objective * (1 + 1e-9)
        assert found.objective >= best.bound * (1 - 1e-9)


# With a share of the peak: kernels take the host's time to launch, however fast the machines are.
@pytest.mark.parametrize("family", [one for one in SEARCHES if one != "hybrid"])
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
