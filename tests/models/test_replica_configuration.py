"""Configurations of the Adam model: C1 to C4, each broken once, with the numbers in the message."""

from dataclasses import replace

import pytest

from planner import zoo
from planner.errors import ModelError
from planner.models.replica_segments import (
    LayerChoice,
    Limits,
    ReplicaConfiguration,
    broken_constraints,
    chain_of,
    check,
)

STAGES = chain_of(zoo.build("adam-mnist"))
LIMITS = Limits(num_machines=20, num_cores=16)
BEST = ReplicaConfiguration(
    num_workers=2, num_replicas=9, num_servers=2, layers=(LayerChoice.spread(2, num_threads=16),) * len(STAGES)
)


def with_first(choice: LayerChoice) -> ReplicaConfiguration:
    return replace(BEST, layers=(choice, *BEST.layers[1:]))


def test_the_papers_best_configuration_breaks_nothing() -> None:
    assert broken_constraints(BEST, LIMITS, STAGES) == ()
    check(BEST, LIMITS, STAGES)


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        (replace(BEST, num_replicas=10), "C1: 2 servers + 10 replicas x 2 workers = 22 machines; there are 20."),
        (replace(BEST, num_servers=0), "C1: 0 servers, 9 replicas and 2 workers; each is at least 1."),
        (replace(BEST, layers=BEST.layers[:3]), "3 layers are configured; the network has 7."),
        (with_first(LayerChoice.spread(2, num_threads=17)), "C2: layer 'conv1': 17 threads on machines of 16 cores."),
        (
            with_first(LayerChoice(num_threads=1, workers=((0, 1), (1, 0)))),
            "C3: layer 'conv1': 2 partitions x 2 replicas = 4 workers; a replica has 2.",
        ),
        (
            with_first(LayerChoice(num_threads=1, workers=((0,), (0,)))),
            "C3: layer 'conv1': partition 0, replica 0 and partition 0, replica 1 are both on worker 0.",
        ),
        (
            with_first(LayerChoice(num_threads=1, workers=((0, 2),))),
            "C3: layer 'conv1': partition 1, replica 0 is on worker 2; there are 0 to 1.",
        ),
        (
            with_first(LayerChoice(num_threads=1, workers=((0, 1), (1,)))),
            "C4: layer 'conv1': its replicas have [2, 1] segments; each needs as many as the others, at least 1.",
        ),
    ],
)
def test_a_broken_constraint_is_named_with_its_numbers(configuration: ReplicaConfiguration, message: str) -> None:
    assert message in broken_constraints(configuration, LIMITS, STAGES)
    with pytest.raises(ModelError) as refusal:
        check(configuration, LIMITS, STAGES)
    assert message in str(refusal.value)


def test_all_broken_constraints_are_reported_at_once() -> None:
    wrong = replace(with_first(LayerChoice.spread(3, num_threads=20)), num_servers=5)
    assert [fault[:2] for fault in broken_constraints(wrong, LIMITS, STAGES)] == ["C1", "C2", "C3", "C3"]
