"""Routes of fat trees, and how they grow: levels, a ring and two trees over all machines, every time anew.

The least of the calls of ``python -m pytest benchmarks/test_routes.py`` on two cores with two other programs on them:
0.18 s for 128 machines, 0.37 s for 512, 3.3 s for 2,048.
"""

import pytest

import planner
from planner.cluster import Cluster
from planner.models.tiers import tiers_of
from planner.routes import Routes, routes_of


def fat_tree(count: int) -> Cluster:
    machine = {"machine": "dgx-h100", "count": count, "latency": "2 us"}
    topology = {"kind": "fat-tree", "leaf": 4, "pod": 16, "pod_oversubscription": 2}
    question = {"dnn": {"zoo": "llama-2-7b", "global_batch": 4096}, "families": ["hybrid"]}
    return planner.load({**question, "cluster": {"machines": [machine], "topology": topology}}).cluster


@pytest.mark.parametrize("count", [128, 512, 2048])
def test_routes_of_a_fat_tree(benchmark: object, count: int) -> None:
    cluster = fat_tree(count)

    def routed() -> float:
        routes_of.cache_clear()
        tiers = tiers_of(cluster)
        routes: Routes = routes_of(cluster)
        return len(tiers) + routes.ring(count).bandwidth_bytes_per_s + routes.tree_bytes_per_s(count)

    assert benchmark(routed) > 0  # type: ignore[operator]
