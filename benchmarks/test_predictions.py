"""Predictions of the GST model: one configuration, and a grid of bandwidth x compute speed at once.

Measured with ``python -m pytest benchmarks/test_predictions.py -p no:xdist`` on a shared server of two cores,
CPython 3.11; medians:

=====================  =========================  =========================
network                AlexNet (8 gradients)      ResNet50 (107 gradients)
=====================  =========================  =========================
one configuration      71 us (14,000 a second)    75 us (13,300 a second)
10,000 configurations  3.5 ms (2.8 million)       22 ms (450,000)
=====================  =========================  =========================

One configuration costs numpy's overhead, whatever the network. A grid costs memory traffic: beside other work on the
server it took up to 9 and 68 ms.
"""

from typing import Any

import numpy as np
import pytest

from planner import zoo
from planner.cases.forms.gst import ServerNetwork, Workload, evaluate
from tests.referee.equations import evaluate_grid

NETWORK = ServerNetwork(num_workers=3, bandwidth_bytes_per_s=1.25e9)


def workload(name: str) -> Workload:
    """A network's gradients, with backward seconds by multiply-adds, 0.1 s in all."""
    layers = [layer for layer in reversed(zoo.build(name).layers) if layer.num_trainable]
    share = np.array([layer.num_multiply_adds for layer in layers]) / sum(one.num_multiply_adds for one in layers)
    sizes = np.array([4.0 * layer.num_trainable for layer in layers])
    return Workload(size_bytes=sizes, backward_s=0.1 * share, forward_s=0.05)


@pytest.mark.parametrize("name", ["alexnet", "resnet50"])
def test_one_configuration(benchmark: Any, name: str) -> None:
    work = workload(name)
    evaluate(work, NETWORK, sigma_s=0.01)  # the expected maximum of N normals is integrated once
    benchmark(evaluate, work, NETWORK, sigma_s=0.01)


@pytest.mark.parametrize("name", ["alexnet", "resnet50"])
def test_ten_thousand_configurations(benchmark: Any, name: str) -> None:
    grid = {"bandwidth_bytes_per_s": np.geomspace(1e8, 1e11, 100), "compute_speed": np.geomspace(0.1, 10, 100)}
    found = benchmark(evaluate_grid, workload(name), NETWORK, **grid, sigma_s=0.01)
    assert found.iteration_time_s.shape == (100, 100)
