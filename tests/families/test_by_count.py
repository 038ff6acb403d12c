"""What no plan on so many equal machines takes less than: true for every number, and met by the plan that it names."""

from functools import cache, partial
from itertools import count
from math import inf

import numpy as np
import pytest
from hybrid_questions import TINY, question

import planner
from planner.cost import Floats
from planner.families import least_by_count_of
from planner.families.answer import CountBounds
from planner.families.hybrid.cut_bounds import CutBounds
from planner.families.hybrid.search import plan
from planner.problem import Problem
from planner.ranking import best_plan
from planner.search import Search
from planner.solvers.grid import Columns

NETWORKS = {
    "hybrid": {"zoo": "llama3.2-1b", "global_batch": 48, "dataset_samples": 48_000, "epochs": 1},
    "all_reduce": {"zoo": "resnet50", "global_batch": 512, "dataset_samples": 51_200, "epochs": 1},
}
MOST = 6
NEAR = 2e-4  # layouts that take little more than the best share are looked at, too, so that bounds are a little higher


def asked(family: str, number: int) -> Problem:
    machines = {"count": number, "device": "a100-sxm4-80gb", "devices": 4, "network": "25 Gbit/s"}
    block = {"dnn": NETWORKS[family], "cluster": {"machines": [machines]}, "objective": "training_time"}
    return planner.load({**block, "families": [family]})


def least(family: str, limit_s: Floats, weight_s: Floats | None = None) -> CountBounds:
    search_all = least_by_count_of(family)
    assert search_all is not None
    found = search_all(asked(family, MOST), limit_s if weight_s is None else weight_s, limit_s, Search())
    assert found is not None
    return found


def at_most(found: CountBounds) -> Floats:
    """What is proven of so many machines or fewer, as a plan need not use all."""
    return np.minimum.accumulate(found.bounds_s)


@cache
def best_s(family: str) -> list[float]:
    return [best_plan(asked(family, count), Search()).objective for count in range(1, MOST + 1)]


@pytest.mark.parametrize("family", NETWORKS)
def test_bounds_hold_for_every_number_and_the_named_one_is_furthest_below_its_limit(family: str) -> None:
    taken_s = np.array(best_s(family))
    for limit_s in (taken_s[0] * 2 / np.arange(1, MOST + 1), np.full(MOST, taken_s[2] * 1.01), taken_s * 1.5):
        found = least(family, limit_s)
        assert (at_most(found) <= taken_s * (1 + 1e-9)).all()
        shares = taken_s / np.minimum.accumulate(limit_s)
        assert found.num_machines is not None
        assert shares[found.num_machines - 1] == pytest.approx(shares.min(), rel=1e-6)
        assert (found.bounds_s >= shares.min() * limit_s * (1 - NEAR)).all()  # of some numbers more is known
        assert found.bounds_s[found.num_machines - 1] == pytest.approx(taken_s[found.num_machines - 1], rel=1e-6)


@pytest.mark.parametrize("family", NETWORKS)
def test_the_least_share_of_a_weight_is_of_the_plans_below_the_limit_alone(family: str) -> None:
    taken_s = np.array(best_s(family))
    weight_s, limit_s = taken_s[0] * 3 / np.arange(1, MOST + 1), np.full(MOST, taken_s[2] * 1.01)
    found = least(family, limit_s, weight_s)
    shares = np.where(taken_s < limit_s, taken_s / weight_s, inf)
    named = int(shares.argmin()) + 1
    assert found.num_machines == named > 1  # one machine has the least share of all, and takes too long
    assert (at_most(found) <= taken_s * (1 + 1e-9)).all()
    assert (found.bounds_s >= np.minimum(shares.min() * weight_s, limit_s) * (1 - NEAR)).all()
    if found.plan is not None:
        assert found.plan.objective == pytest.approx(taken_s[named - 1])


@pytest.mark.parametrize("family", NETWORKS)
def test_limits_that_no_plan_is_below_are_proven_at_once(family: str) -> None:
    limit_s = np.array(best_s(family)) * (1 - 1e-6)
    found = least(family, limit_s)
    assert found.num_machines is None
    assert (found.bounds_s >= limit_s * (1 - 1e-9)).all()


def test_whenever_a_search_is_cut_off_its_bounds_hold_and_are_of_no_less_than_nothing() -> None:
    family = "hybrid"
    taken_s = np.array(best_s(family))
    limit_s = taken_s[0] * 2 / np.arange(1, MOST + 1)
    search_all = least_by_count_of(family)
    assert search_all is not None
    problem, unbounded = asked(family, MOST), 0
    for moment in range(3, 66, 3):
        calls = count(1)
        search = Search(time_limit_s=60, clock=partial(lambda calls, most: 60.0 * (next(calls) > most), calls, moment))
        found = search_all(problem, limit_s, limit_s, search)
        assert found is not None
        assert (found.bounds_s >= 0).all()
        assert (at_most(found) <= taken_s * (1 + 1e-9)).all()
        assert found.plan is None or found.plan.bound >= 0
        unbounded += int((found.bounds_s == 0).any())
    assert unbounded  # some were cut off before anything was bounded


def test_trays_are_bounded_with_their_racks() -> None:
    """Racks are groups of machines of their own, all equal: two of 18 trays here."""
    machines = {"count": 36, "device": "gb200", "devices": 4, "network": "400 Gbit/s"}
    block = {"dnn": NETWORKS["hybrid"], "cluster": {"machines": [machines]}, "objective": "training_time"}
    problem = planner.load({**block, "families": ["hybrid"]})
    search_all = least_by_count_of("hybrid")
    assert search_all is not None
    found = search_all(problem, 1e6 / np.arange(1, 37), np.full(36, 1e6), Search())
    assert found is not None and found.plan is not None
    for number in (found.num_machines or 1, 36):
        taken_s = planner.plan({**block, "constraints": {"machines": {"at_most": number}}, "families": ["hybrid"]})
        assert at_most(found)[number - 1] <= taken_s.objective * (1 + 1e-9)


def test_layouts_with_activations_on_the_host_are_bounded_too() -> None:
    network = {**TINY, "layers": 8, "hidden": 2048, "sequence_length": 4096}
    problem = question(network, devices=2, host_link="25 GB/s", memory="5 GiB", fix={"num_stages": 1})
    search_all = least_by_count_of("hybrid")
    assert search_all is not None
    found = search_all(problem, np.full(2, 1e9), np.full(2, 1e9), Search())
    assert found is not None
    best = plan(problem, Search(is_brief=True))
    assert "core_attn on the host" in best.configuration.headline
    assert found.bounds_s[1] == pytest.approx(best.objective)


def test_stages_on_tpus_are_alike_here_too() -> None:
    transformer = {"layers": 24, "hidden": 256, "heads": 4, "vocabulary": 50000, "sequence_length": 256}
    dnn = {"transformer": transformer, "global_batch": 48, "dtype": "bf16"}
    machines = [{"count": 1, "device": "tpu-v5p", "devices": 6, "network": "100 Gbit/s"}]
    block = {"dnn": dnn, "cluster": {"machines": machines}, "objective": "iteration_time", "families": ["hybrid"]}
    problem = planner.load({**block, "fix": {"pipeline_parallel_size": 6}})
    search_all = least_by_count_of("hybrid")
    assert search_all is not None
    found = search_all(problem, np.ones(1), np.ones(1), Search())
    assert found is not None and found.plan is not None
    assert found.plan.objective == pytest.approx(plan(problem, Search()).objective)


def test_limits_are_not_asked_level_by_level_whether_stages_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """They rule most out: whether stages fit, asked of what they leave open, takes more than all the rest."""

    def never(bounds: CutBounds, nodes: Columns) -> Floats:
        raise AssertionError("asked of a purchase")

    monkeypatch.setattr(CutBounds, "placed_s", never)
    search_all = least_by_count_of("hybrid")
    assert search_all is not None
    found = search_all(asked("hybrid", 3), np.full(3, 1e9), np.full(3, 1e9), Search())
    assert found is not None and (found.bounds_s > 0).all()


def test_a_limit_of_nothing_asks_for_nothing() -> None:
    found = least("hybrid", np.zeros(MOST))
    assert found.num_machines is None
    assert (found.bounds_s < inf).all()
