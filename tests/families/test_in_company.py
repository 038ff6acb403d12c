"""What a kind of machines takes at least of a training beside another kind: no fleet of both is faster."""

from functools import cache
from math import inf
from typing import Any

import numpy as np
import pytest

import planner
from planner.cost import Floats
from planner.families import least_beside_of, least_parts_of
from planner.families.hybrid.cost import HybridCost, Placement, costs_of
from planner.families.hybrid.cut_bounds import CutBounds, _last_stages
from planner.families.hybrid.purchases import parts_on
from planner.problem import Problem
from planner.search import Search

NETWORKS = {
    "hybrid": {"zoo": "llama3.2-1b", "global_batch": 8, "dataset_samples": 8, "epochs": 1},
    "all_reduce": {"zoo": "resnet50", "global_batch": 256, "dataset_samples": 256, "epochs": 1},
}
DEVICES = ["a100-sxm4-80gb", "h100-sxm", "v100-sxm2-32gb", "l4", "l40s"]  # by NVLink and by PCIe
MANY = 1e30


def asked(family: str, machines: list[dict[str, Any]], **more: Any) -> Problem:
    block = {"dnn": NETWORKS[family], "cluster": {"machines": machines}, "objective": "training_time"}
    return planner.load({**block, **more, "families": [family]})


def drawn(rng: np.random.Generator) -> list[dict[str, Any]]:
    found = []
    for name, device in zip("ab", rng.choice(DEVICES, 2, replace=False), strict=True):
        network, each = f"{rng.choice([1, 3, 10, 25, 100])} Gbit/s", int(rng.choice([1, 2, 4]))
        group = {"name": name, "count": int(rng.integers(1, 4)), "device": str(device), "devices": each}
        cards = {"network": network, "latency": f"{rng.choice([5, 50])} us", "nics": int(rng.choice([1, 1, 4]))}
        found.append({**group, **cards})
    return found


def least(
    family: str,
    group: list[dict[str, Any]],
    enough_s: float,
    within_s: float,
    fastest_s: float = 0.0,
    *,
    machines: int = 2,
) -> Floats:
    bound = least_parts_of(family)
    assert bound is not None
    times = {"enough_s": enough_s, "within_s": within_s, "fastest_s": fastest_s}
    found = bound(asked(family, group), **times, machines=[machines])
    assert found is not None
    return found


@pytest.mark.parametrize("transport", ["tcp", "rdma", None])
@pytest.mark.parametrize(
    ("device", "network", "beside"),
    [("l40s", "400 Gbit/s", "h100-sxm"), ("t4", "100 Gbit/s", "h100-sxm"), ("a100-sxm4-80gb", "25 Gbit/s", "h100-sxm")],
)
def test_links_of_others_may_have_parts_take_less_than_alone(
    device: str, network: str, beside: str, transport: str | None
) -> None:
    """Beside NVLink PCIe bounds no network, and beside wide cards narrow ones send by RDMA."""
    own = {"count": 4, "device": device, "devices": 4, "network": network, "nics": 1}
    other = {"count": 4, "device": beside, "devices": 8, "network": "100 Gbit/s", "nics": 8}
    dnn = {"zoo": "bert-large", "global_batch": 64, "dataset_samples": 64, "epochs": 1}
    more = {"dnn": dnn, "calibration": {} if transport is None else {"transport": transport}}
    company = parts_on(costs_of(asked("hybrid", [own, other], **more))[0], MANY, 1e9, 1.0)
    bound = least_parts_of("hybrid")
    assert bound is not None
    alone = bound(asked("hybrid", [own], **more), enough_s=MANY, within_s=1e9, fastest_s=1.0, machines=[1])
    assert alone is not None
    assert company is not None
    assert np.all(alone[0] <= company * (1 + 1e-12))


def test_what_pcie_lets_machines_send_alone_rules_out_no_fleet_with_nvlink() -> None:
    kinds = [
        {"count": 1, "device": device, "devices": 4, "network": "100 Gbit/s", "nics": 4}
        for device in ("l40s", "a100-sxm4-80gb")
    ]
    dnn = {"zoo": "vgg16", "global_batch": 64, "dataset_samples": 64, "epochs": 1}
    both = {"machines": {"at_least": 2}}
    within_s = planner.plan(asked("all_reduce", kinds, dnn=dnn, constraints=both)).objective * (1 + 1e-9)
    bound = least_parts_of("all_reduce")
    assert bound is not None
    done = 0.0
    for one in kinds:
        alone = asked("all_reduce", [{**one, "count": 9}], dnn=dnn)
        parts_s = bound(alone, enough_s=MANY, within_s=within_s, fastest_s=0.0, machines=[2])
        assert parts_s is not None
        done += 4 * within_s / float(parts_s.sum())
    assert done >= 1


@cache
def drawn_question(family: str, seed: int) -> tuple[list[dict[str, Any]], tuple[float, ...], float]:
    """Machines of two kinds, what one of each costs a second, and the seconds of the best plan on all of them."""
    rng = np.random.default_rng(seed)
    machines, usd = drawn(rng), tuple(rng.uniform(1, 9, 2).tolist())
    limits = {"machines": {"at_least": sum(one["count"] for one in machines)}}
    return machines, usd, planner.plan(asked(family, machines, constraints=limits)).objective


@pytest.mark.usefixtures("wordless")
@pytest.mark.parametrize("family", NETWORKS)
@pytest.mark.parametrize("seed", range(3))
def test_no_fleet_of_two_kinds_is_faster_than_its_kinds_at_their_least(family: str, seed: int) -> None:
    machines, _, objective = drawn_question(family, seed)
    alone, total = [[{**one, "count": 9}] for one in machines], sum(one["count"] for one in machines)
    paces = [least(family, one, 0.0, inf, machines=total) for one in alone]
    fastest_s = min(float(one.sum()) for one in paces)
    within_s = objective * (1 + 1e-9)
    closer = [least(family, one, MANY, within_s, fastest_s, machines=total) for one in alone]
    devices = [one["count"] * one["devices"] for one in machines]
    for each in (paces, closer):
        parts_s = np.concatenate(each)  # a row a kind
        whole_s = parts_s.sum(axis=1)
        share = (parts_s / whole_s[:, None]).min(axis=0).sum() if np.isfinite(whole_s).all() else inf
        assert objective * (np.array(devices) / whole_s).sum() >= share


@pytest.mark.usefixtures("wordless")
@pytest.mark.parametrize("more_usd", [0.0, 20.0])
@pytest.mark.parametrize("family", NETWORKS)
@pytest.mark.parametrize("seed", range(3))
def test_no_layout_on_two_kinds_costs_less_than_is_said_of_both(family: str, seed: int, more_usd: float) -> None:
    machines, each_usd, objective = drawn_question(family, seed)
    usd = dict(zip("ab", each_usd, strict=True))
    paid = objective * (sum(one["count"] * usd[one["name"]] for one in machines) + more_usd)
    more = [{**one, "count": one["count"] + 1} for one in machines]
    bound = least_beside_of(family)
    assert bound is not None
    usd_least = bound(asked(family, more), usd, more_usd, objective * (1 + 1e-9), paid * 2, Search())
    assert usd_least is not None
    assert 0 < usd_least <= paid


def test_links_make_many_machines_of_a_kind_slower_beside_others() -> None:
    """At 1 Gbit/s 102 MB take 0.8 s between two machines, twice as long between many: no step of 1 s has room."""
    group = {"name": "a", "count": 9, "device": "a100-sxm4-80gb", "network": "1 Gbit/s"}
    two, many = (least("all_reduce", [group], MANY, 1.0, machines=one)[0, 0] for one in (2, 64))
    assert 0.8 < two < inf == many


def test_shares_of_the_last_stages_add_up() -> None:
    """As in the module of bounds: ``1 / (m - (min(m, j) + 1) / 2)`` of the j-th stage from the end."""
    number, stages = np.array([2, 3, 5, 64, 7, 2_049, 524_289]), np.array([2, 3, 9, 40, 0, 5_000, 1])
    each = [
        sum(1 / (m - (min(m, place) + 1) / 2) for place in range(1, p + 1))
        for m, p in zip(number.tolist(), stages.tolist(), strict=True)
    ]
    assert _last_stages(number, stages).tolist() == pytest.approx(each, rel=1e-11)


@pytest.mark.parametrize("name", ["llama3.2-1b", "mixtral-8x7b"])
@pytest.mark.parametrize("seed", range(3))
def test_what_replicas_exchange_is_the_same_whatever_others_are_asked_about(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dnn = {"zoo": name, "global_batch": 64, "dataset_samples": 64, "epochs": 1}
    block = {"dnn": dnn, "cluster": {"machines": drawn(rng)}, "families": ["hybrid"]}
    bounds = CutBounds(HybridCost(tuple(costs_of(planner.load(block))), Placement.REPLICAS))
    few = {"tensor": (1, 2), "context": (1, 2), "expert": (1, 2), "expert_tensor": (1,), "pipeline": (1, 2)}
    few |= {"microbatch": (1, 2), "order": tuple(bounds.space.axes["order"].values), "sequence_parallel": (0, 1)}
    if bool(rng.integers(2)):
        few |= {"zero": (0, 1), "recompute": (0, 2), "recompute_modules": (0,), "context_method": (0, 2)}
    if name != "mixtral-8x7b":
        few["expert"] = (1,)
    nodes = {axis: rng.choice(values, 60) for axis, values in few.items()}
    parts, data = np.full((2, 60), 2), 2 * rng.integers(2, 9, 60)
    together = bounds.replicas_s(nodes, parts, data)
    for at in range(60):
        alone = bounds.replicas_s({axis: column[[at]] for axis, column in nodes.items()}, parts[:, [at]], data[[at]])
        for one, other in zip(together, alone, strict=True):
            assert one[:, [at]] == pytest.approx(other, rel=1e-12)
