"""The list schedule of ResNet152 (516 layers, 311 all-reduces), its graph included, and how it grows.

Measured with ``make bench`` on a shared server of two cores, CPython 3.11; medians in ms:

=====================================================  =====
one iteration on 8 devices, one stands for all         14.8
the same, 128 devices                                  14.7
the same, 1,024 devices                                14.8
one iteration on 8 devices, each with its own tasks    122
the same, 32 devices                                   548
2 iterations, one device stands for all                31
the same, 8 iterations                                 151
any graph of 1,000 tasks, 3 predecessors each          2.3
the same, 10,000 tasks                                 24
the same, 100,000 tasks                                342
=====================================================  =====

Equal devices collapse: no growth from 8 devices to 1,024. With its tasks, or its iterations, time grows in proportion.
"""

from typing import Any

import numpy as np
import pytest

from planner import data, zoo
from planner.cases.forms.dag_model import Iteration, Run, Task, list_schedule, run, task_graph
from planner.models.communication import ring_all_reduces
from planner.models.compute import profile_from_flop
from planner.models.input import Strategy

BATCH = 32


def resnet152(num_devices: int) -> Iteration:
    """Batch 32 on equal devices, one all-reduce a layer over 25 Gbit/s."""
    dnn = zoo.build("resnet152")
    profile = profile_from_flop(dnn, data.device("rtx-2080-ti"), dtype="fp32", utilisation=0.4)
    cost = ring_all_reduces(num_devices=[num_devices], bandwidth_bytes_per_s=3.125e9, latency_s=1e-6).at(0)
    return Iteration.layer_wise(
        forward_s=(profile.forward_s * BATCH).tolist(),
        backward_s=(profile.backward_s * BATCH).tolist(),
        all_reduce_s=cost(np.array([4.0 * layer.num_trainable for layer in dnn.layers])).tolist(),
        read_s=0.01,
        copy_s=0.002,
        names=[layer.name for layer in dnn.layers],
    )


def schedule(iteration: Iteration, num_devices: int, num_iterations: int, is_expanded: bool) -> Run:
    graph = task_graph(
        iteration,
        Strategy.CAFFE_MPI,
        num_iterations=num_iterations,
        num_devices=num_devices,
        is_expanded=is_expanded,
    )
    return run(graph)


@pytest.mark.parametrize("num_devices", [8, 128, 1024])
def test_growth_with_equal_devices(benchmark: Any, num_devices: int) -> None:
    benchmark.pedantic(schedule, (resnet152(num_devices), num_devices, 1, False), rounds=20, warmup_rounds=2)


@pytest.mark.parametrize("num_devices", [8, 32])
def test_growth_with_devices_of_their_own_tasks(benchmark: Any, num_devices: int) -> None:
    benchmark.pedantic(schedule, (resnet152(num_devices), num_devices, 1, True), rounds=5, warmup_rounds=1)


@pytest.mark.parametrize("num_iterations", [2, 8])
def test_growth_with_iterations(benchmark: Any, num_iterations: int) -> None:
    benchmark.pedantic(schedule, (resnet152(8), 8, num_iterations, False), rounds=10, warmup_rounds=1)


@pytest.mark.parametrize("num_tasks", [1_000, 10_000, 100_000])
def test_growth_with_tasks(benchmark: Any, num_tasks: int) -> None:
    """Random precedence, three predecessors each, ten resources."""
    rng = np.random.default_rng(0)
    tasks = [
        Task(
            duration_s=float(rng.exponential()),
            resource=f"r{rng.integers(10)}",
            after=tuple(
                sorted({int(before) for before in rng.integers(max(0, index - 50), index, 3)} if index else ())
            ),
        )
        for index in range(num_tasks)
    ]
    benchmark.pedantic(list_schedule, (tasks,), rounds=3, warmup_rounds=1)
