"""What a kind of machines takes at least of a training beside another kind: no fleet of both is faster."""

from math import inf
from typing import Any

import numpy as np
import pytest

import planner
from planner.errors import InfeasibleError
from planner.families import least_parts_of
from planner.problem import Problem

NETWORKS = {
    "hybrid": {"zoo": "llama3.2-1b", "global_batch": 8, "dataset_samples": 8, "epochs": 1},
    "all_reduce": {"zoo": "resnet50", "global_batch": 256, "dataset_samples": 256, "epochs": 1},
}
DEVICES = ["a100-sxm4-80gb", "h100-sxm", "v100-sxm2-32gb", "l4"]
MANY = 1e30


def asked(family: str, machines: list[dict[str, Any]], **more: Any) -> Problem:
    block = {"dnn": NETWORKS[family], "cluster": {"machines": machines}, "objective": "training_time"}
    return planner.load({**block, **more, "families": [family]})


def drawn(rng: np.random.Generator) -> list[dict[str, Any]]:
    found = []
    for name, device in zip("ab", rng.choice(DEVICES, 2, replace=False), strict=True):
        network, each = f"{rng.choice([1, 3, 10, 100])} Gbit/s", int(rng.choice([1, 2, 4]))
        group = {"name": name, "count": int(rng.integers(1, 4)), "device": str(device), "devices": each}
        found.append({**group, "network": network, "latency": f"{rng.choice([5, 50])} us"})
    return found


@pytest.mark.parametrize("family", NETWORKS)
@pytest.mark.parametrize("seed", range(3))
def test_no_fleet_of_two_kinds_is_faster_than_its_kinds_at_their_least(family: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    machines = drawn(rng)
    counts = [one["count"] for one in machines]
    try:
        found = planner.plan(asked(family, machines, constraints={"machines": {"at_least": sum(counts)}}))
    except InfeasibleError:
        pytest.skip("too little memory")
    bound = least_parts_of(family)
    assert bound is not None
    alone = [asked(family, [{**one, "count": 9}]) for one in machines]
    paces = [bound(one, 0.0, inf, 0.0, [sum(counts)]) for one in alone]
    fastest_s = min(float(one.sum()) for one in paces if one is not None)
    within_s = found.objective * (1 + 1e-9)
    closer = [bound(one, MANY, within_s, fastest_s, [sum(counts)]) for one in alone]
    devices = [one["count"] * one["devices"] for one in machines]
    for each in (paces, closer):
        parts_s = np.concatenate([one for one in each if one is not None])  # a row a kind
        whole_s = parts_s.sum(axis=1)
        least = (parts_s / whole_s[:, None]).min(axis=0).sum() if np.isfinite(whole_s).all() else inf
        assert found.objective * (np.array(devices) / whole_s).sum() >= least


def test_links_make_many_machines_of_a_kind_slower_beside_others() -> None:
    """At 1 Gbit/s 102 MB take 0.8 s between two machines, twice as long between many: no step of 1 s has room."""
    bound = least_parts_of("all_reduce")
    assert bound is not None
    group = {"name": "a", "count": 9, "device": "a100-sxm4-80gb", "network": "1 Gbit/s"}
    found = bound(asked("all_reduce", [group]), MANY, 1.0, 0.0, [2, 64])
    assert found is not None
    assert 0.8 < found[0, 0] < inf == found[1, 0]
