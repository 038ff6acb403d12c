from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Tensors, tensors

from planner.cases.forms.dag_model import Schedule, Task, list_schedule
from planner.channel import schedule
from planner.cost import Affine
from planner.errors import ModelError


@st.composite
def task_lists(draw: st.DrawFn) -> list[Task]:
    """Any small graph: whole seconds, so that ties are common and sums exact."""
    tasks: list[Task] = []
    for index in range(draw(st.integers(0, 12))):
        after = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
        tasks.append(
            Task(
                duration_s=float(draw(st.integers(0, 6))),
                resource=draw(st.sampled_from("abc")),
                after=tuple(sorted(after)),
                priority=(draw(st.integers(0, 3)),),
                lag_s=float(draw(st.sampled_from([0, 0, 0, 2]))),
            )
        )
    return tasks


def longest_path_s(tasks: list[Task]) -> float:
    """Return the length of the longest path, lags included: no schedule is shorter, were resources unlimited."""
    end_s: list[float] = []
    for task in tasks:
        end_s.append(max((end_s[before] for before in task.after), default=0.0) + task.lag_s + task.duration_s)
    return max(end_s, default=0.0)


def on_resources(tasks: list[Task]) -> dict[str, list[int]]:
    found = defaultdict(list)
    for index, task in enumerate(tasks):
        found[task.resource].append(index)
    return found


def ready_s(tasks: list[Task], done: Schedule) -> list[float]:
    return [max((float(done.end_s[before]) for before in task.after), default=0.0) + task.lag_s for task in tasks]


@given(task_lists())
def test_every_task_runs_for_its_duration_after_its_predecessors(tasks: list[Task]) -> None:
    done = list_schedule(tasks)
    assert (done.end_s - done.start_s).tolist() == [task.duration_s for task in tasks]
    assert all(start >= ready for start, ready in zip(done.start_s, ready_s(tasks, done), strict=True))


@given(task_lists())
def test_no_resource_does_two_tasks_at_once(tasks: list[Task]) -> None:
    done = list_schedule(tasks)
    for indices in on_resources(tasks).values():
        ordered = sorted(indices, key=lambda index: (done.start_s[index], done.end_s[index]))
        assert all(done.end_s[one] <= done.start_s[other] for one, other in pairwise(ordered))


@given(task_lists())
def test_no_resource_idles_while_a_task_is_ready_for_it(tasks: list[Task]) -> None:
    done = list_schedule(tasks)
    for index, ready in enumerate(ready_s(tasks, done)):
        others = [other for other in on_resources(tasks)[tasks[index].resource] if other != index]
        clipped = [(max(done.start_s[one], ready), min(done.end_s[one], done.start_s[index])) for one in others]
        assert sum(max(0.0, end - start) for start, end in clipped) == pytest.approx(done.start_s[index] - ready)


@given(task_lists())
def test_a_schedule_lies_between_its_bounds(tasks: list[Task]) -> None:
    makespan_s = list_schedule(tasks).makespan_s
    assert longest_path_s(tasks) <= makespan_s
    work_s = [sum(tasks[index].duration_s for index in indices) for indices in on_resources(tasks).values()]
    assert max(work_s, default=0.0) <= makespan_s
    assert makespan_s <= sum(task.duration_s + task.lag_s for task in tasks)


@given(task_lists())
def test_with_a_resource_for_every_task_the_schedule_is_the_longest_path(tasks: list[Task]) -> None:
    alone = [
        Task(duration_s=task.duration_s, resource=str(index), after=task.after, lag_s=task.lag_s)
        for index, task in enumerate(tasks)
    ]
    assert list_schedule(alone).makespan_s == pytest.approx(longest_path_s(tasks))


@given(tensors(max_size=8))
def test_one_resource_by_ready_time_is_the_channel_of_the_fusion_model(drawn: Tensors) -> None:
    cost = Affine(startup_s=1, per_byte_s=0.5)
    seconds = cost(drawn.size_bytes).tolist()
    tasks = [
        Task(duration_s=duration, resource="network", priority=(index,), lag_s=ready)
        for index, (duration, ready) in enumerate(zip(seconds, drawn.ready_s.tolist(), strict=True))
    ]
    plan = schedule(tuple(range(len(tasks))), drawn.ready_s, drawn.size_bytes, cost)
    assert list_schedule(tasks).start_s == pytest.approx(plan.start_s)


@given(task_lists(), st.sampled_from([0.5, 2.0]))
def test_scaling_every_time_scales_the_schedule(tasks: list[Task], factor: float) -> None:
    scaled = [
        Task(
            duration_s=task.duration_s * factor,
            resource=task.resource,
            after=task.after,
            priority=task.priority,
            lag_s=task.lag_s * factor,
        )
        for task in tasks
    ]
    assert list_schedule(scaled).end_s == pytest.approx(list_schedule(tasks).end_s * factor)


def test_the_smaller_priority_goes_first_and_ties_go_by_index() -> None:
    tasks = [Task(duration_s=1, resource="a", priority=(priority,)) for priority in (2, 1, 1)]
    assert list_schedule(tasks).start_s.tolist() == [2, 0, 1]


def test_a_task_that_is_ready_does_not_wait_for_a_better_one() -> None:
    tasks = [
        Task(duration_s=1, resource="b"),
        Task(duration_s=5, resource="a", priority=(9,)),
        Task(duration_s=1, resource="a", after=(0,), priority=(0,)),
    ]
    assert list_schedule(tasks).start_s.tolist() == [0, 0, 5]


def test_a_list_schedule_need_not_be_the_best() -> None:
    # The second task first would end at 7.
    tasks = [
        Task(duration_s=1, resource="a"),
        Task(duration_s=3, resource="a"),
        Task(duration_s=4, resource="b", after=(1,)),
    ]
    assert list_schedule(tasks).makespan_s == 8
    assert longest_path_s(tasks) == 7


def test_no_task_takes_no_time() -> None:
    assert list_schedule([]).makespan_s == 0
    assert longest_path_s([]) == 0


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Task(duration_s=-1, resource="a"), r"task 1: duration_s must be finite and >= 0, not -1"),
        (Task(duration_s=np.nan, resource="a"), r"task 1: duration_s must be finite and >= 0, not nan"),
        (Task(duration_s=1, resource="a", lag_s=np.inf), r"task 1: lag_s must be finite and >= 0, not inf"),
        (Task(duration_s=1, resource="a", after=(1,)), r"task 1 of 2 comes after task 1.*topological order"),
        (Task(duration_s=1, resource="a", after=(-1,)), r"task 1 of 2 comes after task -1"),
    ],
)
def test_impossible_tasks_are_refused(bad: Task, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        list_schedule([Task(duration_s=1, resource="a"), bad])
