"""Building a network, and a whole run of the command line.

Medians in ms, measured with ``make bench`` on a shared server of two cores, CPython 3.11:

=================================================  =====
building ResNet152                                 5.3
a whole process: ``planner --help``                82
a whole process: ``planner plan`` on VGG16         620
ResNet50, open number of devices, 16 machines      20
the same, 128 machines                             28
the same, 1,024 machines (8,192 candidates)        363
=================================================  =====

Most of a whole process is imports. With machines the time grows as the number of candidates whose bound must be looked
at.
"""

import subprocess
import sys
from typing import Any

import pytest

import planner
from planner import zoo

VGG16 = ("plan", "--dnn", "vgg16", "--machines", "4x8xrtx-2080-ti", "--network", "25 Gbit/s")


def test_building_resnet152(benchmark: Any) -> None:
    benchmark(zoo.build, "resnet152")


@pytest.mark.parametrize("arguments", [("--help",), VGG16], ids=["help", "plan"])
def test_a_whole_process(benchmark: Any, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "planner", *arguments]
    benchmark.pedantic(lambda: subprocess.run(command, check=True, capture_output=True), rounds=5, warmup_rounds=1)


@pytest.mark.parametrize("machines", [16, 128, 1024])
def test_growth_with_machines(benchmark: Any, machines: int) -> None:
    machine = {"count": machines, "devices": 8, "device": "h100", "inside": "nvlink-4", "network": "400 Gbit/s"}
    question = {"dnn": {"zoo": "resnet50", "global_batch": 8192}, "cluster": {"machines": [machine]}}
    benchmark.pedantic(lambda: planner.plan(planner.load(question)), rounds=3, warmup_rounds=1)
