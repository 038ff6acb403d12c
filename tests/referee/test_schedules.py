"""Named schedules against rules written down once more, as a programme: valid, and never below the proven best."""

import pytest

from planner.models.orders import SCHEDULES
from planner.search import Search
from planner.solution import Status
from research.schedules import CASES, Case, picture
from research.task_orders import Line, shortest_step

BEST_OF_ALL = ("zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipe_v")  # where all three take the same


def small(schedule: str) -> Case:
    p, m = {"interleaved": (2, 4), "dualpipe": (4, 8), "dualpipe_v": (2, 5)}.get(schedule, (3, 4))
    return Case(schedule=schedule, num_devices=p, num_microbatches=m)


@pytest.mark.parametrize("case", [*CASES, *map(small, SCHEDULES)], ids=str)
def test_every_order_keeps_the_rules_in_its_own_memory(case: Case) -> None:
    found = case.best(is_fixed=True)
    assert found is not None
    assert found.ticks == round(case.run.makespan_s)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_named_schedule_is_below_the_best_order(schedule: str) -> None:
    case = small(schedule)
    best = case.best()
    assert best is not None
    assert best.status is Status.OPTIMAL
    step = round(case.run.makespan_s)
    assert best.bound == best.ticks <= step
    if schedule in BEST_OF_ALL:
        assert best.ticks == step


def test_with_less_memory_the_best_step_is_longer_and_with_too_little_there_is_none() -> None:
    def ticks(most_held: int) -> int | None:
        line = Line(device_of=(0, 1), ends=(1,), num_microbatches=3, ticks=(1, 1, 1), most_held=most_held)
        found = shortest_step(line, Search())
        return None if found is None else found.ticks

    # One micro-batch at a time: forward and backward of both stages, and its gradients of weights on the first.
    assert ticks(1) == 3 * 5
    assert ticks(2) == 3 * 3 + 1
    assert ticks(0) is None


def test_an_order_that_breaks_a_rule_has_no_solution() -> None:
    case = small("1f1b")
    line = Line(device_of=(0, 1, 2), ends=(2,), num_microbatches=4, ticks=(1, 1, 1), most_held=case.held - 1)
    assert shortest_step(line, Search(), start=case.starts, is_fixed=True) is None


def test_a_picture_has_a_box_for_every_task() -> None:
    for schedule in SCHEDULES:
        case = small(schedule)
        text = picture(case)
        assert text.count("</text>") >= len(case.run.tasks) + case.num_devices
        assert text.endswith("</svg>\n")
