"""Plans of data parallelism on unlike machines: what they say of each group, equal bytes, limits of the search."""

from typing import Any

import pytest
from mixed_all_reduce import MIXED, planned

import planner
from planner.errors import NoAnswerError
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.solution import Status
from tests.referee import second_physics


def test_a_mixed_plan_gives_the_fast_devices_more_and_says_what_each_group_is_worth() -> None:
    found = planner.plan(planner.load(MIXED))
    assert found.status is Status.OPTIMAL
    assert isinstance(found.configuration, AllReduceConfiguration)
    fast, slow = found.configuration.groups
    assert fast.batch_per_device > slow.batch_per_device
    names = [one.name for one in found.alternatives]
    assert "without the 2 slow machines" in names
    assert "equal shares" in names
    assert any("leaving out the 2 slow machines would cost +" in line for line in found.explanation)
    again = planner.load({**found.problem, "configuration": {"all_reduce": found.configuration.to_document()}})
    assert planner.predict(again) == found.prediction
    assert found.prediction.relative_error is None


def test_a_slow_group_that_would_hurt_is_left_out() -> None:
    slow = {"name": "slow", "count": 2, "device": "k80", "devices": 1, "network": "0.1 Gbit/s", "latency": "1 ms"}
    fast = MIXED["cluster"]["machines"][0]
    found = planner.plan(planner.load({**MIXED, "cluster": {"machines": [fast, slow]}}))
    assert isinstance(found.configuration, AllReduceConfiguration)
    assert [one.name for one in found.configuration.groups] == ["fast"]
    assert any("slow stay idle" in line for line in found.explanation)


def test_the_same_mixed_question_gives_the_same_bytes() -> None:
    from planner.answer.documents import dump

    first, second = (dump(planner.plan(planner.load(MIXED)).to_dict()) for _ in range(2))
    assert first == second


NINE: dict[str, Any] = {
    "dnn": {"zoo": "resnet50", "global_batch": 288},
    "families": ["all_reduce"],
    "cluster": {
        "machines": [
            {"name": "fast", "count": 1, "device": "v100", "devices": 8, "inside": "nvlink-2", "network": "25 Gbit/s"},
            {"name": "slow", "count": 1, "device": "k80", "devices": 8, "inside": "nvlink-2", "network": "25 Gbit/s"},
        ]
    },
    "constraints": {"devices": 9},
    "calibration": {"utilisation": 0.4},
}


def test_each_group_uses_its_own_number_of_devices_of_a_machine() -> None:
    problem = planner.load(NINE)
    found = planned(problem)
    assert isinstance(found.configuration, AllReduceConfiguration)
    assert [one.devices_per_machine for one in found.configuration.groups] == [8, 1]
    assert found.status is Status.OPTIMAL
    assert second_physics.check(problem, planner.plan(problem)).is_ok
    for fast, slow in ((8, 1), (5, 4), (1, 8)):
        for share in range(1, 288 // slow, 5):
            rest = -(-(288 - slow * share) // fast)
            groups = {
                "fast": {"machines": 1, "devices_per_machine": fast, "batch_per_device": rest},
                "slow": {"machines": 1, "devices_per_machine": slow, "batch_per_device": share},
            }
            question = {**NINE, "configuration": {"all_reduce": {"groups": groups, "fusion_groups": "optimal"}}}
            if max(fast * (rest - 1) + 1, fast) + max(slow * (share - 1) + 1, slow) > 288:
                continue
            assert planner.predict(planner.load(question)).value_of(found.goal) >= found.bound * (1 - 1e-9)


def test_a_pinned_number_of_devices_is_that_of_every_machine() -> None:
    asked = {key: value for key, value in NINE.items() if key != "constraints"}
    problem = planner.load({**asked, "fix": {"devices_per_machine": 4}})
    found = planner.plan(problem)
    assert isinstance(found.configuration, AllReduceConfiguration)
    assert {one.devices_per_machine for one in found.configuration.groups} == {4}
    assert second_physics.check(problem, found).is_ok
    other = planner.load({**NINE, "fix": {"devices_per_machine": 8}})
    report = second_physics.check(other, planner.plan(planner.load(NINE)))
    (pin,) = [one for one in report.findings if one.name == "fix.devices_per_machine"]
    assert not pin.is_ok
    assert "[8, 1]" in pin.text


class Clock:
    """A clock by which so much time passes between two looks at it."""

    def __init__(self, tick_s: float) -> None:
        self.tick_s, self.looks = tick_s, 0

    def __call__(self) -> float:
        self.looks += 1
        return self.looks * self.tick_s


@pytest.mark.parametrize("compression", [{}, {"compression": {"time": "2 ms", "at_most": 0.9}}])
@pytest.mark.parametrize("asked", [MIXED, {**MIXED, "cluster": {"machines": MIXED["cluster"]["machines"][:1]}}])
def test_a_slow_clock_and_a_fast_one_give_the_same_bytes(
    asked: dict[str, Any], compression: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner.answer.documents import dump

    problem = planner.load({**asked, **compression})
    clock = Clock(0.0)
    monkeypatch.setattr("time.monotonic", clock)
    first = dump(planner.plan(problem, num_alternatives=2, time_limit_s=60).to_dict())
    fast = Clock(0.95 * 60 / clock.looks)  # the whole search ends just before the limit
    monkeypatch.setattr("time.monotonic", fast)
    second = dump(planner.plan(problem, num_alternatives=2, time_limit_s=60).to_dict())
    assert clock.looks <= fast.looks <= clock.looks + 1  # the launchable plan is noted at four fifths of the time
    assert second == first


def test_a_mixed_question_without_time_gives_no_answer() -> None:
    with pytest.raises(NoAnswerError, match="time limit"):
        planned(planner.load(MIXED), time_limit_s=0)


def test_a_mixed_search_may_end_with_the_first_plan_that_is_good_enough() -> None:
    problem = planner.load(MIXED)
    best = planned(problem)
    some = planned(problem, good_enough=float("inf"))
    assert some.objective >= best.objective * (1 - 1e-9)
    assert some.bound <= best.objective * (1 + 1e-9)
    assert some.provenance.num_candidates <= best.provenance.num_candidates


def test_more_unlike_groups_than_can_be_tried_leave_a_true_bound() -> None:
    names = ["v100", "p100", "k80", "t4", "a100"] * 2
    groups = [
        {"name": f"m{index}", "count": 1, "device": name, "network": "10 Gbit/s"} for index, name in enumerate(names)
    ]
    asked = {**MIXED, "cluster": {"machines": groups}, "constraints": {"machines": 2}}
    found = planned(planner.load(asked), time_limit_s=20)
    assert found.status is Status.FEASIBLE
    assert 0 < found.bound < found.objective
