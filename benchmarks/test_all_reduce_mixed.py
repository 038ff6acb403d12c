"""The family all_reduce on devices of several types: time to the plan, and what is left unproven.

Times of one run, measured with ``python -m pytest benchmarks/test_all_reduce_mixed.py -p no:xdist -s`` on a shared
server of two cores, other work beside it, CPython 3.11; with a limit of 60 s, alternatives included:

===========================================================  =======  ========
question                                                     seconds  gap
===========================================================  =======  ========
20 machines of 2 types, ResNet50                             0.5      proven
20 machines of 2 types, VGG16                                0.4      proven
20 machines of 2 types, VGG16, compressed                    1.0      0.0066 %
20 machines of 2 types, VGG16, batch up to 4,096             4.1      proven
1,000 machines of 4 types, ResNet152                         6.3      proven
1,000 machines of 4 types, VGG16                             4.7      proven
1,000 machines of 4 types, 300 allowed, ResNet101            6.4      proven
1,000 machines of 4 types, rings alone, ResNet101            61       1.45 %
1,000 machines of 4 types, rings alone, batch up to 65,536   60       2.2 %
===========================================================  =======  ========

With rings alone, start-ups grow with the devices, so that of each type some machines take part and some do not: the
hardest questions. Their best counts lie close together, and the gap left after a minute depends on the load.
"""

from typing import Any

import pytest

import planner

GROUPS = {
    "v": {"device": "v100", "devices": 4, "nics": 1, "network": "25 Gbit/s"},
    "p": {"device": "p100", "devices": 4, "nics": 1, "network": "25 Gbit/s"},
}
MANY = {
    "v": {"device": "v100", "devices": 8, "nics": 1, "network": "100 Gbit/s"},
    "p": {"device": "p100", "devices": 8, "nics": 1, "network": "100 Gbit/s"},
    "t": {"device": "t4", "devices": 4, "nics": 1, "network": "50 Gbit/s"},
    "a": {"device": "a100", "devices": 8, "nics": 1, "network": "100 Gbit/s"},
}
RINGS = {"calibration": {"utilisation": 0.4, "overhead": "0.1 ms", "algorithms": ["ring"]}}


def question(groups: dict[str, dict[str, Any]], count: int, **blocks: Any) -> dict[str, Any]:
    rest = {"count": count, "inside": "pcie-3-x16", "latency": "20 us"}
    machines = [{"name": name, **group, **rest} for name, group in groups.items()]
    calibration = {"utilisation": 0.4, "overhead": "0.1 ms"}
    return {"families": ["all_reduce"], "cluster": {"machines": machines}, "calibration": calibration, **blocks}


def net(zoo: str, **batch: int) -> dict[str, Any]:
    return {"zoo": zoo, **batch}


QUESTIONS = {
    "2 types, ResNet50": question(GROUPS, 10, dnn=net("resnet50", global_batch=2048)),
    "2 types, VGG16": question(GROUPS, 10, dnn=net("vgg16", global_batch=2048)),
    "2 types, compressed": question(
        GROUPS, 10, dnn=net("vgg16", global_batch=2048), compression={"time": "2 ms", "at_most": 0.9}
    ),
    "2 types, open batch": question(GROUPS, 10, dnn=net("vgg16", max_global_batch=4096)),
    "4 types, ResNet152": question(MANY, 250, dnn=net("resnet152", global_batch=65536)),
    "4 types, VGG16": question(MANY, 250, dnn=net("vgg16", global_batch=65536)),
    "4 types, 300 machines": question(
        MANY, 250, dnn=net("resnet101", global_batch=65536), constraints={"machines": {"at_most": 300}}
    ),
    "4 types, rings": question(MANY, 250, dnn=net("resnet101", global_batch=65536), **RINGS),
    "4 types, rings, open batch": question(MANY, 250, dnn=net("resnet50", max_global_batch=65536), **RINGS),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_planning_on_several_types(benchmark: Any, name: str) -> None:
    problem = planner.load(QUESTIONS[name])
    found = benchmark.pedantic(lambda: planner.plan(problem, time_limit_s=60), rounds=1)
    print(f"{name}: {found.status.value}, gap {found.gap:.4%}, {found.configuration.headline}")
