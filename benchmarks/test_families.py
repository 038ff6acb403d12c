"""Predictions of every family and model: one configuration, and ten thousand at once.

Medians, measured with ``python -m pytest benchmarks/test_families.py -p no:xdist`` on a shared server of two cores,
CPython 3.11:

=====================================================  ========  ==========
what                                                   median    a second
=====================================================  ========  ==========
all_reduce, ResNet50, one configuration                0.58 ms   1,700
parameter_server, ResNet50, one configuration          0.90 ms   1,100
model_replicas, MNIST, one configuration               5.0 ms    200
Algorithm 1, 16 workers                                16 us     63,000
the same in 40 segments                                145 us    6,900
steady S-SGD iteration, 100 layers                     39 us     26,000
bounds of 10,000 all_reduce settings, ResNet50         48 ms     210,000
=====================================================  ========  ==========

The GST model has a file of its own, ``test_predictions.py``; list schedules stand in ``test_schedules.py``.

One configuration costs Python's overhead. The bounds of 10,000 all-reduce settings are arrays.
"""

from typing import Any

import numpy as np
import pytest

import planner
from planner.api import configuration_of
from planner.cases.forms.bsp_server import BspExchange, algorithm_1_time_s, segments_time_s
from planner.cases.forms.dag_model import Iteration, steady_time_s
from planner.families import FAMILIES
from planner.families.all_reduce.bounds import AllReduceBoxes
from planner.families.all_reduce.cost import AllReduceCost
from planner.families.all_reduce.team import Team
from planner.models.input import Strategy
from planner.search import Search

QUESTIONS: dict[str, dict[str, Any]] = {
    "all_reduce": {
        "dnn": {"zoo": "resnet50", "batch_per_device": 32},
        "cluster": {"preset": "osf-testbed"},
        "configuration": {"all_reduce": {"num_devices": 32, "fusion_groups": {"buffer": "25 MiB"}}},
    },
    "parameter_server": {
        "dnn": {"zoo": "resnet50", "batch_per_device": 32},
        "cluster": {"preset": "gst-1g"},
        "configuration": {"parameter_server": {"num_parameter_servers": 1}},
    },
    "model_replicas": {
        "dnn": {"zoo": "adam-mnist", "batch_per_device": 70},
        "cluster": {"preset": "adam-20"},
        "configuration": {
            "model_replicas": {"num_parameter_servers": 2, "num_replicas": 9, "num_workers_per_replica": 2}
        },
    },
}


@pytest.mark.parametrize("family", QUESTIONS)
def test_one_configuration_of_a_family(benchmark: Any, family: str) -> None:
    problem = planner.load(QUESTIONS[family])
    _, configuration = configuration_of(problem)
    benchmark(FAMILIES[family].predict, problem, configuration)


def test_bounds_of_ten_thousand_all_reduce_settings(benchmark: Any) -> None:
    machine = {"count": 1250, "devices": 8, "device": "h100", "inside": "nvlink-4", "network": "400 Gbit/s"}
    question = {"dnn": {"zoo": "resnet50", "global_batch": 100_000}, "cluster": {"machines": [machine]}}
    problem = planner.load(question)
    teams = [Team(cost=AllReduceCost.homogeneous(problem, devices_per_machine=devices)) for devices in range(1, 9)]
    boxes = AllReduceBoxes(problem, teams, Search())
    assert len(benchmark(boxes.bounds, boxes.roots, float("inf"))) == 10_000


def test_one_iteration_of_algorithm_1(benchmark: Any) -> None:
    benchmark(algorithm_1_time_s, np.linspace(1, 2, 16), BspExchange(push_s=0.1, pull_s=0.1))


def test_one_iteration_in_segments(benchmark: Any) -> None:
    workers = np.linspace(1, 2, 16)
    benchmark(segments_time_s, workers, 2 * workers, BspExchange(push_s=0.1, pull_s=0.1), num_pushes=40)


def test_one_steady_iteration_of_ssgd(benchmark: Any) -> None:
    seconds = [1e-3] * 100
    iteration = Iteration.layer_wise(forward_s=seconds, backward_s=seconds, all_reduce_s=seconds)
    benchmark(steady_time_s, iteration, Strategy.CAFFE_MPI)
