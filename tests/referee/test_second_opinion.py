"""What is replayed in plain loops agrees with the cost model, and with what a hand counts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from checked import given_plan, put, question, rebuilt
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pytest import MonkeyPatch

import planner
from planner import channel
from planner.checks import limits_kept
from planner.constraints import needed_s
from planner.cost import Affine, Wait
from planner.models.servers import Links, push_end_s
from tests.referee.second_physics import FACTS, all_reduce, check, parameter_server, pipeline


def test_a_cost_model_that_forgets_the_queue_is_found(monkeypatch: MonkeyPatch) -> None:
    asked = question(configuration={"all_reduce": {"num_devices": 8, "fusion_groups": "none"}})
    honest = channel.schedule

    def without_queue(ends: Any, ready_s: Any, sizes: Any, cost: Any, **options: Any) -> Any:
        found = honest(ends, ready_s, sizes, cost, **options)
        seconds = found.end_s - found.start_s
        return replace(found, start_s=found.ready_s, end_s=found.ready_s + seconds)

    problem = planner.load(asked)
    assert check(problem, given_plan(problem)).is_ok
    monkeypatch.setattr(channel, "schedule", without_queue)
    report = check(problem, given_plan(problem))
    assert [one.name for one in report.faults] == ["second opinion"]


@settings(max_examples=30)
@given(st.tuples(st.floats(0.1, 5), st.floats(0.1, 5)), st.tuples(st.floats(1, 900), st.floats(1, 900)))
@example((5, 0.1), (1, 900))
def test_no_plan_is_refused_where_one_kind_of_device_computes_longest_and_another_updates_longest(
    tflop_per_s: tuple[float, float], gbyte_per_s: tuple[float, float]
) -> None:
    layers = [
        {"name": "work", "multiply_adds": 1e9, "output": "4 B"},
        {"name": "weights", "inputs": ["work"], "multiply_adds": 1e7, "parameters": "400 MB", "output": "4 B"},
    ]
    machines = [
        {"name": name, "device": {"name": name, "fp32": f"{compute} TFLOP/s", "memory_bandwidth": f"{memory} GB/s"}}
        for name, compute, memory in zip(("a", "b"), tflop_per_s, gbyte_per_s, strict=True)
    ]
    problem = planner.load(
        {
            "dnn": {"layers": layers, "global_batch": 5},
            "cluster": {"machines": [{**one, "network": "100 Gbit/s", "latency": "0 s"} for one in machines]},
            "constraints": {"devices": 2},
            "families": ["all_reduce"],
            "objective": "iteration_time",
            "calibration": {"utilisation": 0.03},
        }
    )
    report = check(problem, planner.plan(problem))
    assert report.is_ok, report.faults


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=6),
    st.sampled_from(list(Wait)),
    st.sampled_from([float("inf"), 0.0, 2.5]),
    st.data(),
)
def test_the_channel_replayed_agrees_with_the_schedule(
    tensors: list[tuple[int, int]], wait: Wait, timeout_s: float, data: st.DataObject
) -> None:
    ready_s = np.cumsum([float(gap) for gap, _ in tensors])
    sizes = np.array([float(size) for _, size in tensors])
    ends = sorted({*data.draw(st.sets(st.integers(0, len(tensors) - 1))), len(tensors) - 1})
    cost = Affine(startup_s=1.0, per_byte_s=0.5)
    found = channel.schedule(tuple(ends), ready_s, sizes, cost, wait=wait, timeout_s=timeout_s)
    problem = rebuilt("all_reduce")[0]
    fitted = replace(problem, calibration=replace(problem.calibration, wait=wait, timeout_s=timeout_s))
    counts = np.diff([-1, *ends]).tolist()
    replayed_s = all_reduce.replay_s(fitted, counts, ready_s.tolist(), (found.end_s - found.start_s).tolist())
    assert replayed_s == pytest.approx(found.finish_s)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0, 5), st.sampled_from([0.0, 1.0, 2.5]), st.floats(0.5, 5)), min_size=1, max_size=6),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_the_queue_at_a_link_agrees_with_its_closed_form(
    arrivals: list[tuple[float, float, float]], bytes_per_s: float
) -> None:
    rows = [(start_s, start_s + seconds, size) for start_s, seconds, size in arrivals]

    def after(moment: float) -> float:
        left = 0.0
        for start_s, end_s, size in rows:
            share = (
                1.0
                if moment <= start_s
                else 0.0
                if moment > end_s or end_s == start_s
                else (end_s - moment) / (end_s - start_s)
            )
            left += size * share
        return left

    moments = [moment for row in rows for moment in row[:2]]
    expected_s = max(moment + after(moment) / bytes_per_s for moment in moments)
    assert parameter_server.queue_end_s(rows, bytes_per_s) == pytest.approx(expected_s)


def test_pushes_replayed_agree_with_the_model_of_the_links() -> None:
    links = Links(server_bytes_per_s=(2.0,), worker_bytes_per_s=(1.0, 4.0))
    ready = np.array([[0.0, 1.0], [0.5, 3.0]])
    ends_s = push_end_s(ready, np.array([[2.0], [4.0]]), links)
    rows = [(0.0, 2.0, 2.0), (2.0, 6.0, 4.0), (0.5, 1.0, 2.0), (3.0, 4.0, 4.0)]
    assert parameter_server.queue_end_s(rows, 2.0) == pytest.approx(float(ends_s[0]))


@pytest.mark.parametrize(
    ("forward_s", "backward_s", "schedule", "expected_s"),
    [
        ((2.0, 1.0), (2.0, 1.0), "1f1b", 8.0),
        ((2.0, 1.0), (2.0, 1.0), "gpipe", 10.0),
        ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), "gpipe", 8.0),
        ((1.0,), (3.0,), "1f1b", 8.0),
    ],
)
def test_the_replayed_pipeline_ends_when_counted_by_hand(
    forward_s: tuple[float, ...], backward_s: tuple[float, ...], schedule: str, expected_s: float
) -> None:
    number = len(forward_s)
    orders = pipeline.orders_of(schedule, number, 2, 1)
    free = [0.0] * number
    assert pipeline.makespan_s(orders, forward_s, backward_s, free, free) == expected_s


# The configuration is also refused where it is rebuilt; these look at what the checker itself makes of the block.
@pytest.mark.parametrize(
    ("family", "change", "name"),
    [
        ("all_reduce", put("fusion_groups", 0, "tensors", value=["one"]), "gradients"),
        ("all_reduce", put("fusion_groups", 0, "size_bytes", value=1.0), "fusion_groups.0"),
        ("all_reduce", put("num_machines", value=5), "machines toy"),
        ("all_reduce", put("devices_per_machine", value=3), "devices toy"),
        ("all_reduce", put("num_devices", value=7), "devices in all"),
        ("all_reduce", put("global_batch_size", value=7), "shares"),
        ("parameter_server", put("workers", "toy", value=5), "machines toy"),
        ("parameter_server", put("batch_shares", "toy", value=3), "shares"),
        ("parameter_server", put("placement", value={"one": 0, "two": 1}), "placement"),
        ("parameter_server", put("placement", value={"one": 0, "two": 1, "three": 2}), "placement"),
        ("parameter_server", put("co_located", value=False), "machines toy"),
        ("parameter_server", put("synchronisation", value="asp"), "constraints.max_staleness"),
        ("pipeline", put("stages", 1, "first", value="three"), "layers"),
        ("pipeline", put("stages", 0, "last", value="two"), "layers"),
        ("pipeline", put("stages", 0, "replicas", value=8), "machines toy"),
        ("pipeline", put("num_microbatches", value=33), "schedule"),
        ("pipeline", put("chunks_per_device", value=2), "schedule"),
        ("pipeline", put("global_batch_size", value=31), "batch"),
        ("model_replicas", put("num_replicas", value=2), "constraints.max_staleness"),
        ("model_replicas", put("num_workers_per_replica", value=4), "machines toy"),
        ("model_replicas", put("layers", 0, "threads", value=2), "layers.0"),
        ("model_replicas", put("layers", 0, "workers", value=[[0, 0]]), "layers.0"),
    ],
)
def test_a_broken_configuration_is_told_by_the_checkers_own_code(
    family: str, change: Callable[[dict[str, Any]], None], name: str
) -> None:
    problem, block, found = rebuilt(family)
    change(block)
    facts = FACTS[family](problem, block, found)
    usage = replace(facts, needed_s=needed_s(found))
    faults = {one.name for one in (*facts.findings, *limits_kept(problem, usage)) if not one.is_ok}
    assert name in faults
