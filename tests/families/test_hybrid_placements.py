"""Layouts over several kinds of machines and with unlike stages: bounds, search, rules, and the way to a plan and back."""

from dataclasses import replace
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hybrid_questions import MOE, RATES, TINY, every_point
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from shuffled_pool import ShuffledPool

import planner
from planner.cost import Floats
from planner.data.fits import transformer_rates
from planner.decisions import LAYOUT
from planner.errors import InfeasibleError, SpecError
from planner.families.hybrid import family as hybrid
from planner.families.hybrid import grid_search, layer_table
from planner.families.hybrid import search as hybrid_search
from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.hybrid.cost import HybridCost, Placement, costs_of
from planner.families.hybrid.cut_bounds import CutBounds
from planner.families.hybrid.found import Found, configuration_of_point, nothing, with_rows
from planner.families.hybrid.grid_search import _Count, bounds_of, cuts_searched, placements_of, searched
from planner.families.hybrid.purchases import Replicas, Stages, parts_on
from planner.families.hybrid.search import plan
from planner.families.hybrid.space import Space
from planner.plan import Alternative, Plan
from planner.problem import Problem, Range
from planner.search import Search
from planner.solution import Status
from planner.solvers.grid import Wanted, solve
from tests.referee import second_physics
from tests.referee.second_physics.hybrid import facts_of

NO_PINS: dict[str, Any] = {}
KINDS = (
    ("old", "v100-sxm2-16g", "nvlink-2"),
    ("new", "a100-sxm4-80gb", "nvlink-3"),
    ("third", "h100-sxm", "nvlink-4"),
)


def question(
    transformer: dict[str, Any] = TINY,
    *,
    kinds: tuple[tuple[str, str, str], ...] = KINDS,
    counts: tuple[int, ...] = (1, 1),
    devices: tuple[int, ...] = (2, 2),
    batch: int = 6,
    network: str = "100 Gbit/s",
    memory: str | None = None,
    fix: dict[str, Any] = NO_PINS,
) -> Problem:
    """A transformer on machines of up to three kinds."""
    machines = [
        {"name": name, "count": count, "device": device, "devices": number, "inside": inside, "network": network,
         "latency": "5 us"}
        for (name, device, inside), count, number in zip(kinds, counts, devices, strict=False)
    ]  # fmt: skip
    asked: dict[str, Any] = {
        "dnn": {"transformer": dict(transformer), "global_batch": batch, "dtype": "fp16", "optimizer": "adam"},
        "cluster": {"machines": machines},
        "objective": "iteration_time",
        "families": ["hybrid"],
        "fix": dict(fix),
        "calibration": {"memory_reserve": "0 B"},
    }
    if memory is not None:
        asked["constraints"] = {"memory_per_device": memory}
    return replace(planner.load(asked), transformer_rates=RATES)


@pytest.mark.parametrize("device", ["a100-sxm4-80gb", "tpu-v4"])
def test_tpus_train_with_no_other_kind_of_machine(device: str) -> None:
    """MaxText compiles one program for devices of one kind."""
    machines = [
        {"name": name, "count": 1, "device": name, "devices": 2, "network": "100 Gbit/s", "latency": "5 us"}
        for name in ("tpu-v5p", device)
    ]
    asked: dict[str, Any] = {
        "dnn": {"transformer": {**TINY, "vocabulary": 1000}, "global_batch": 8, "dtype": "bf16"},
        "cluster": {"machines": machines},
        "families": ["hybrid"],
        "objective": "iteration_time",
    }
    chosen = plan(planner.load(asked), Search()).configuration
    assert isinstance(chosen, HybridConfiguration) and chosen.num_devices == 2
    with pytest.raises(InfeasibleError, match="MaxText trains on TPUs of one kind alone"):
        plan(planner.load({**asked, "fix": {"num_devices": 4}}), Search())


QUESTIONS = st.builds(
    question,
    st.sampled_from(
        [
            TINY,
            {**TINY, "layers": 5, "tied_embeddings": False},
            {**MOE, "layers": 3},
            {**MOE, "layers": 5, "experts": {**MOE["experts"], "dense_first": 2}},
        ]
    ),
    counts=st.sampled_from([(1,), (1, 1), (2, 1)]),
    devices=st.sampled_from([(2, 2), (2, 3)]),
    batch=st.sampled_from([4, 6]),
    network=st.sampled_from(["1 Gbit/s", "400 Gbit/s"]),
    memory=st.sampled_from([None, "2 GB"]),
    fix=st.sampled_from([NO_PINS, {"recompute": "none"}, {"data_parallel_size": 2}, {"num_stages": 2}]),
)


DENSE = {**MOE, "experts": {**MOE["experts"], "size": 8192, "dense_first": 3}}


@given(QUESTIONS, st.integers(0, 99), st.booleans())
@example(question(devices=(1, 1), batch=24, fix={"num_stages": 1}), 2, False)  # replicas of one stage
@example(question(DENSE, devices=(1, 1), batch=24, fix={"microbatch_size": 1}), 3, False)  # of layers of two kinds
@settings(max_examples=25, deadline=None)
def test_no_layout_is_quicker_than_a_bound_above_it(problem: Problem, which: int, are_three: bool) -> None:
    if are_three:
        problem = question({**TINY, "layers": 7}, counts=(1, 1, 1), devices=(2, 3, 2), fix=dict(problem.fixed))
    teams = list(placements_of(costs_of(problem)))
    bounds = CutBounds(teams[which % len(teams)])
    grid = bounds.space.grid()
    points: dict[str, Any] = {}
    for level in range(len(grid.levels)):
        points = grid.expand(points, level)
    if not len(points["tensor"]):
        return
    kept = np.random.default_rng(0).permutation(len(points["tensor"]))[:1500]
    points = {name: column[kept] for name, column in points.items()}
    seconds = bounds.seconds(points)
    known: list[str] = []
    for names, bound in zip(bounds.space.levels, bounds.all, strict=False):
        known += names
        assert bound is not None
        least = bound({name: points[name] for name in known})
        assert np.all((least <= seconds * (1 + 1e-9)) | np.isinf(seconds)), names


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_least_that_all_stages_and_the_slowest_one_take_is_that_of_a_linear_programme(number: int) -> None:
    """``X + c T``: layers ``l_k`` that take ``z_k`` each, no more than ``T q_k`` of a group, T no less than some."""
    bounds = CutBounds(HybridCost(tuple(costs_of(question())), Placement.STAGES))
    rng, layers = np.random.default_rng(number), bounds.cost.transformer.num_layers
    each, pace = rng.uniform(1, 3, (number, 20)), rng.uniform(0.2, 2, (number, 20))
    low, rounds = rng.choice([0.5, 2, 8], 20), rng.choice([0.0, 0.5, 3.0], 20)
    order = np.argsort(each, axis=0)
    found = bounds._passed_s((order, np.take_along_axis(each, order, axis=0)), pace, low, rounds)
    for at in range(20):
        truth = linprog(
            [*each[:, at], rounds[at]],
            A_ub=np.column_stack([np.eye(number), -pace[:, at]]),
            b_ub=np.zeros(number),
            A_eq=[[1.0] * number + [0.0]],
            b_eq=[layers],
            bounds=[(0, None)] * number + [(low[at], None)],
        )
        assert found[at] == pytest.approx(truth.fun)


def test_replicas_take_as_long_as_both_bounds_of_one_let_all_together_do_the_batch() -> None:
    """``X (p - 1) / 2 p + m X / p`` and ``X + (m - (p + 1) / 2) T``, each and what is behind, of m in fractions."""
    bounds = CutBounds(HybridCost(tuple(costs_of(question(batch=24))), Placement.REPLICAS))
    rng, size = np.random.default_rng(0), 20
    nodes = {"pipeline": rng.integers(1, 5, size), "microbatch": rng.choice([1, 2], size)}
    parts, whole, behind = rng.integers(1, 4, (2, size)), rng.uniform(1, 2, (2, size)), rng.uniform(0, 0.5, (2, size))
    slowest = whole / nodes["pipeline"] * rng.choice([1.0, 1.5], size)
    stages, total = nodes["pipeline"], 24 / nodes["microbatch"]

    def done(step_s: Floats) -> tuple[Floats, Floats]:
        """Micro-batches that all replicas do in a step, as either has it."""
        left_s = step_s - behind
        passed = (left_s - whole * (stages - 1) / (2 * stages)) / (whole / stages)
        dwelt = (left_s - whole) / slowest + (stages + 1) / 2
        return (parts * passed).sum(axis=0), (parts * dwelt).sum(axis=0)

    assert done(bounds._replicated_s(nodes, whole, parts, behind))[0] == pytest.approx(total)
    passed, dwelt = done(bounds._replicated_s(nodes, whole, parts, behind, slowest))
    assert np.minimum(passed, dwelt) == pytest.approx(total)
    assert 0 < (dwelt < passed * (1 - 1e-9)).sum() < size


def test_replicas_whose_tensor_ranks_overlap_nothing_are_not_ruled_out_where_that_is_quicker() -> None:
    """With overlaps each group gets other numbers of micro-batches, which are chosen without what replicas exchange."""
    asked = question({**MOE, "layers": 5}, counts=(2, 1), devices=(3, 2), batch=24, network="400 Gbit/s")
    bounds = CutBounds(HybridCost(tuple(costs_of(asked)), Placement.REPLICAS))
    point = dict.fromkeys(bounds.space.axes, 0) | dict.fromkeys(("pipeline", "context", "expert", "expert_tensor"), 1)
    point |= {"tensor": 2, "microbatch": 4, "data_0": 3, "data_1": 1, "sequence_parallel": 1, "overlap_data": 1}
    nodes = {name: np.array([value]) for name, value in point.items()}
    above = {name: column for name, column in nodes.items() if name not in ("overlap_data", "overlap_tensor")}
    assert bounds.best_path_s(above)[0] <= bounds.seconds(nodes)[0]
    assert bounds.seconds(nodes)[0] < bounds.seconds({**nodes, "overlap_tensor": np.array([1])})[0]


@given(QUESTIONS, st.booleans())
@settings(max_examples=6, deadline=None)
def test_stages_on_the_same_machines_in_another_order_are_counted_as_many(problem: Problem, are_three: bool) -> None:
    if are_three:
        problem = question(counts=(1, 2, 1), devices=(2, 3, 4), batch=4, fix=dict(problem.fixed))
    teams, empty = list(placements_of(costs_of(problem))), nothing(np.inf)
    count = _Count(Search(), teams[-1])
    for cost in teams:
        assert count.put_in(empty, cost).num_points == Space.of(cost).grid().count()


@pytest.mark.usefixtures("wordless")
@given(QUESTIONS, st.integers(0, 2))
@settings(max_examples=6, deadline=None)
def test_what_is_found_first_on_several_kinds_alters_no_answer(problem: Problem, number: int) -> None:
    def found() -> tuple[Any, ...]:
        try:
            one = plan(problem, Search(num_alternatives=number))
        except InfeasibleError as error:
            return (str(error),)
        return one.status, one.objective, one.bound, one.configuration, one.alternatives

    helped = found()
    empty = Found(cost=HybridCost((costs_of(problem)[0],), Placement.STAGES), answer=nothing(np.inf))
    with patch.object(grid_search, "_first_found", return_value=(empty, np.inf)):
        assert found() == helped


def test_layers_are_moved_though_the_search_of_a_placement_took_all_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """With workers all placements are searched at once, so that the first answer may come long after its share."""
    pins = {"tensor_parallel_size": 1, "context_parallel_size": 1, "num_stages": 4, "microbatch_size": 1}
    sizes = {**TINY, "layers": 28, "vocabulary": 96000, "tied_embeddings": False}
    problem = question(sizes, counts=(1, 1), devices=(4, 4), batch=8, fix={**pins, "recompute": "none"})
    now, first = [0.0], grid_search.searched

    def slow(cost: HybridCost, search: Search, **options: Any) -> Any:
        answer = first(cost, search, **options)
        now[0] += search.left_s
        return answer

    whole = cuts_searched(costs_of(problem), Search(), [])
    monkeypatch.setattr(grid_search, "searched", slow)
    found = cuts_searched(costs_of(problem), Search(time_limit_s=100.0, clock=lambda: now[0]), [])
    assert found[0].answer.solution == whole[0].answer.solution


@pytest.mark.parametrize(("placement", "most"), [(Placement.STAGES, 8), (Placement.REPLICAS, 24)])
def test_what_some_questions_find_does_not_depend_on_what_was_asked_before(placement: Placement, most: int) -> None:
    """Tables of layers are kept for all searches; whether time is over is asked as often with them as without."""
    problem = question(counts=(1, 2, 1), devices=(2, 3, 4), batch=8)

    def found() -> tuple[int | None, float, int]:
        search = Search(questions_left=most)
        bounds = bounds_of(HybridCost(tuple(costs_of(problem)), placement), search)
        answer = solve(bounds.grid(), bounds.seconds, search, Wanted(counts=False, dives=True))
        return search.questions_left, answer.solution.bound, answer.num_evaluated

    layer_table._table.cache_clear()
    assert found() == found()


@given(QUESTIONS, st.integers(0, 99), st.sampled_from([0.05, 0.5, 1.0]))
@settings(max_examples=12, deadline=None)
def test_in_no_company_is_a_device_quicker_than_the_least_that_parts_take_it(
    problem: Problem, which: int, share: float
) -> None:
    hold_parts_against_layouts(problem, which, share)


@pytest.mark.parametrize("replicas", [3, 8, 12, 16])
def test_replicas_that_fill_machines_are_no_quicker_than_parts_though_fewer_reduce_more_slowly(replicas: int) -> None:
    transformer = {**TINY, "layers": 6, "vocabulary": 256, "sequence_length": 8192, "tied_embeddings": False}
    fix = dict.fromkeys(("tensor_parallel_size", "context_parallel_size", "num_stages", "microbatch_size"), 1)
    for network, which in product(("10 Gbit/s", "30 Gbit/s"), (0, 1)):
        problem = question(
            transformer,
            kinds=KINDS[1:],
            counts=(2, 2),
            devices=(8, 8),
            batch=4 * replicas,
            network=network,
            fix={**fix, "data_parallel_size": replicas},
        )
        for share in (0.0, 0.5):
            hold_parts_against_layouts(problem, which, share)


@pytest.mark.parametrize("replicas", [2, 4])
def test_two_stages_of_one_machine_are_no_quicker_than_parts_though_three_send_over_the_network(replicas: int) -> None:
    transformer = {**TINY, "layers": 8, "vocabulary": 256, "sequence_length": 4096, "tied_embeddings": False}
    fix = dict.fromkeys(("tensor_parallel_size", "context_parallel_size", "microbatch_size"), 1)
    problem = question(
        transformer,
        kinds=KINDS[1:],
        counts=(2, 2),
        devices=(4, 4),
        batch=32 * replicas,
        network="20 Gbit/s",
        memory="2.8 GB",
        fix={**fix, "num_stages": 2, "data_parallel_size": replicas, "zero_stage": 0, "recompute": "none"},
    )
    for which in (0, 1):
        hold_parts_against_layouts(problem, which, 0.5)


def hold_parts_against_layouts(problem: Problem, which: int, share: float) -> None:
    """Layouts on several kinds, of which the quicker ones have so great a share, take no less than all parts do."""
    problem = replace(problem, limits=replace(problem.limits, machines=Range(least=2)))  # any part of each kind
    teams = [one for one in placements_of(costs_of(problem)) if len(one.groups) > 1]
    if not teams:
        return
    bounds = CutBounds(teams[which % len(teams)])
    points = every_point(bounds.space.grid())
    if not len(points["tensor"]):
        return
    kept = np.random.default_rng(0).permutation(len(points["tensor"]))[:1500]
    points = {name: column[kept] for name, column in points.items()}
    seconds = bounds.seconds(points)
    if not np.isfinite(seconds).any():
        return
    within_s = float(np.quantile(seconds[np.isfinite(seconds)], share))
    alone = [parts_on(one) for one in bounds.cost.groups]
    fastest_s = min(float(one.sum()) for one in alone if one is not None)
    parts = [parts_on(one, 100 * fastest_s, within_s * (1 + 1e-9), fastest_s) for one in bounds.cost.groups]
    known = np.array([one for one in parts if one is not None])
    assert len(known) == len(parts)
    whole_s = known.sum(axis=1)
    least = (known / whole_s[:, None]).min(axis=0).sum()  # of all parts, as the search of fleets has it
    devices = points["tensor"] * points["context"] * points[bounds.space.shared] * bounds.cost.parts_of(points)
    done = (devices / whole_s[:, None]).sum(axis=0) * seconds
    assert np.all((done >= least * (1 - 1e-9)) | (seconds > within_s))


@given(QUESTIONS, st.integers(0, 99), st.sampled_from([0.0, 0.2, 1.0]), st.sampled_from([0.0, 3.0]))
@settings(max_examples=12, deadline=None)
def test_no_layout_on_two_kinds_costs_less_than_a_bound_above_it(
    problem: Problem, which: int, share: float, more_usd_per_s: float
) -> None:
    problem = replace(problem, limits=replace(problem.limits, machines=Range(least=2)))  # any part of each kind
    teams = [one for one in placements_of(costs_of(problem)) if len(one.groups) > 1]
    if not teams:
        return
    rng, bounds = np.random.default_rng(which), CutBounds(teams[which % len(teams)])
    space, points, usd = bounds.space, dict[str, Any](), rng.uniform(1, 9, 2)
    for level in range(len(space.levels)):
        points = space.grid().expand(points, level)
    kept = rng.permutation(len(points["tensor"]))[:1000]
    points = {name: column[kept] for name, column in points.items()}
    seconds = bounds.seconds(points)
    kept = np.flatnonzero(np.isfinite(seconds))
    if not len(kept):
        return
    points, seconds = {name: column[kept] for name, column in points.items()}, seconds[kept]
    parts, within_s = bounds.cost.parts_of(points), float(np.quantile(seconds, share))
    devices = points["tensor"] * points["context"] * points[space.shared] * parts
    each = np.array([number for _, number in space.machines])[:, None]
    paid = np.where(seconds <= within_s, seconds * (usd @ -(-devices // each) + more_usd_per_s), np.inf)
    points["data"] = parts.sum(axis=0) if bounds.cost.has_replicas else points["data"]
    beside = (Replicas if bounds.cost.has_replicas else Stages)(
        bounds=bounds, usd_per_s=usd.tolist(), more_usd_per_s=more_usd_per_s, within_s=within_s * (1 + 1e-9)
    )
    grid, cost = beside.grid()
    assert all(rule.holds({name: points[name] for name in rule.names}).all() for rule in grid.rules)
    known: list[str] = []
    for one in grid.levels:
        known += [axis.name for axis in one.axes]
        least = (one.bound or cost)({name: points[name] for name in known})
        assert np.all(least <= paid * (1 + 1e-9)), known


@pytest.mark.parametrize("number", [1, 2, 8])
def test_pipelines_on_two_kinds_cost_little_more_than_is_known_while_stages_are_open(number: int) -> None:
    """Of machines that are nearly alike, with one device each: of any number of micro-batches."""
    sizes = {"layers": 8, "hidden": 2048, "heads": 16, "vocabulary": 64, "sequence_length": 1024}
    machines = [
        {"name": name, "count": 1, "device": name, "network": "400 Gbit/s"}
        for name in ("a100-sxm4-40gb", "a100-sxm4-80gb")
    ]
    dnn = {"transformer": sizes, "global_batch": 8, "dtype": "bf16"}
    spec = {"dnn": dnn, "cluster": {"machines": machines}, "objective": "iteration_time"}
    teams = placements_of(costs_of(planner.load(spec)))
    team = next(one for one in teams if len(one.groups) > 1 and not one.has_replicas)
    bounds = CutBounds(team)
    points = every_point(bounds.space.grid())
    kept = np.flatnonzero(points["microbatch"] * points["data"] * number == 8)
    points = {name: column[kept] for name, column in points.items()}
    beside = Stages(bounds=bounds, usd_per_s=[1.0, 1.0], more_usd_per_s=0.0, within_s=np.inf)
    opened = {name: column for name, column in points.items() if name not in bounds.space.part_names}
    least = beside.usd(lambda nodes: np.zeros(len(kept)))(opened)
    assert 0.75 < (least / (2 * bounds.seconds(points))).max() <= 1


@pytest.mark.parametrize(
    ("layers", "known", "batch", "left_out"),
    [
        *((8, {}, 12, []), (8, {}, 4, []), (8, {"stages_1": 2}, 2, []), (8, {}, 60, [1])),
        *((3, {}, 12, []), (3, {"stages_0": 2}, 12, [])),
    ],
)
def test_open_stages_cost_what_the_cheapest_numbers_of_them_do(
    layers: int, known: dict[str, int], batch: int, left_out: list[int]
) -> None:
    """Of each kind as many as leave the other ones a layer; sizes of micro-batches may be no multiples."""
    asked = question({**TINY, "layers": layers}, kinds=KINDS[1:], devices=(3, 4), batch=batch)
    asked = replace(
        asked, limits=replace(asked.limits, machines=Range(least=2)), excluded={"microbatch_size": tuple(left_out)}
    )
    teams = placements_of(costs_of(asked))
    bounds = CutBounds(next(one for one in teams if len(one.groups) > 1 and not one.has_replicas))
    assert bounds.are_multiples is not bool(left_out)
    sizes = np.array(bounds.microbatches)
    nodes = {**{name: np.ones_like(sizes) for name in bounds.space.coarse}, "microbatch": sizes}
    nodes |= {name: np.full_like(sizes, value) for name, value in known.items()}
    beside = Stages(bounds=bounds, usd_per_s=[2.0, 7.0], more_usd_per_s=0.5, within_s=np.inf)
    least_usd = np.full(len(sizes), 50.0 if left_out else 5.0)  # of the machines, a second
    found = beside._open_usd(nodes, np.ones_like(sizes), least_usd)
    (first_s, second_s), number = bounds.least_layers_s(nodes), batch // sizes
    ways = [
        (one, other)
        for one, other in product(range(1, 4), range(1, 5))
        if known.get("stages_0", one) == one and known.get("stages_1", other) == other
        if one + known.get("stages_1", 1) <= layers and other + known.get("stages_0", 1) <= layers
    ]
    most = min(max(map(sum, ways)), layers)
    through_usd = layers * np.minimum(first_s, second_s) * least_usd
    # A machine has as many devices as it has stages: the quickest of T_1 for all of them.
    slowest_usd = np.min([
        layers / (one / first_s + other / second_s) * (2 * one / 3 + 7 * other / 4 + 0.5) for one, other in ways
    ], axis=0)  # fmt: skip
    once = through_usd + (number - (np.minimum(number, most) + 1) / 2) * slowest_usd
    twice = np.where((number > most) & (not left_out), 2 * through_usd + (number - 1 - most) * slowest_usd, 0.0)
    assert found == pytest.approx(np.max([once, twice, number * slowest_usd], axis=0))
    assert len({*np.argmax([once, twice, number * slowest_usd], axis=0)}) > 1 or batch != 12 or layers != 8


@pytest.mark.parametrize("network", ["100 Gbit/s", "5 Gbit/s"])
def test_no_pipeline_on_two_kinds_is_quicker_than_whole_layers_let_it_be(network: str) -> None:
    """And the bound is close: some layouts take little more."""
    sizes = {"layers": 12, "hidden": 1024, "heads": 16, "vocabulary": 1000, "sequence_length": 512}
    machines = [
        {"name": name, "count": 1, "device": name, "devices": 2, "network": network}
        for name in ("h100-sxm", "a100-sxm4-80gb")
    ]
    dnn = {"transformer": sizes, "global_batch": 16, "dtype": "bf16"}
    problem = planner.load({"dnn": dnn, "cluster": {"machines": machines}, "objective": "iteration_time"})
    ratios, num_over = [], 0
    for team in placements_of(costs_of(problem)):
        if len(team.groups) == 1 or team.has_replicas:
            continue
        bounds = CutBounds(team)
        points = every_point(bounds.space.grid())
        seconds = bounds.seconds(points)
        for index in np.random.default_rng(0).permutation(np.flatnonzero(np.isfinite(seconds)))[:40]:
            one, most_s = {name: column[[index]] for name, column in points.items()}, float(seconds[index]) * (1 + 1e-9)
            low_s = bounds.communication_s(one)
            found_s = float(bounds.whole_s(one, low_s, most_s)[0])
            ratios.append(found_s / most_s)
            if found_s > low_s[0]:
                num_over += 1
                assert bounds.whole_s(one, low_s, found_s)[0] == np.inf
    assert len(ratios) > 10 < num_over
    assert 0.99 < max(ratios) <= 1


@pytest.mark.parametrize(
    ("program", "memory"),
    [
        ("megatron-core", "100 GB"),
        ("megatron-core", "600 MB"),
        ("megatron-core", "350 MB"),
        ("megatron-deepspeed", "1 GB"),
    ],
)
def test_whole_layers_within_a_cutoff_rule_out_no_layout_that_is(program: str, memory: str) -> None:
    """Whatever is decided by then; and they rule out nodes that no other bound does."""
    sizes = {"layers": 7, "hidden": 1024, "heads": 4, "vocabulary": 1000, "sequence_length": 128}
    machines = [
        {"name": name, "count": 1, "device": name, "devices": 4, "network": "100 Gbit/s"}
        for name in ("h100-sxm", "a100-sxm4-80gb")
    ]
    asked = {
        "dnn": {"transformer": sizes, "global_batch": 6, "dtype": "bf16"},
        "cluster": {"machines": machines},
        "objective": "iteration_time",
        "calibration": {"program": program, "memory_reserve": "0 B"},
        "constraints": {"memory_per_device": memory},
    }
    num_over = 0
    for team in placements_of(costs_of(planner.load(asked))):
        if len(team.groups) == 1 or team.has_replicas:
            continue
        points = every_point(CutBounds(team).space.grid())
        seconds = CutBounds(team).seconds(points)
        for cutoff in np.random.default_rng(0).permutation(seconds[np.isfinite(seconds)])[:4].tolist():
            bounds, known = CutBounds(team, Search(cutoff=cutoff)), list[str]()
            for names, bound in zip(bounds.space.levels, [*bounds.all, None], strict=True):
                known += names
                if bound == bounds.near_s:
                    nodes = {name: points[name] for name in known}
                    found = bounds.near_s(nodes)
                    assert np.all(found[seconds <= cutoff] <= cutoff)
                    num_over += int(((found > cutoff) & (bounds.communication_s(nodes) <= cutoff)).sum())
    assert num_over > 100


@pytest.mark.parametrize("num_alternatives", [0, 2])
def test_kinds_whose_peak_is_slower_than_all_answers_are_passed_over(num_alternatives: int) -> None:
    dnn = {"zoo": "llama3-8b", "global_batch": 64, "dtype": "bf16"}
    machines = [
        {"name": name, "count": count, "device": name, "devices": 8, "inside": "nvlink-3", "network": "200 Gbit/s"}
        for name, count in (("h100-sxm", 4), ("a100-sxm4-80gb", 1))
    ]
    spec = {"dnn": dnn, "cluster": {"machines": machines}, "families": ["hybrid"], "objective": "iteration_time"}
    problem, search, looked_at = planner.load(spec), Search(num_alternatives=num_alternatives), list[str | None]()
    given = grid_search.searched

    def noted(cost: HybridCost, *rest: Any, **options: Any) -> Any:
        looked_at.append(cost.first.machines)
        return given(cost, *rest, **options)

    with patch.object(hybrid_search, "searched", noted):
        found = plan(problem, search)
    assert looked_at == ["h100-sxm"]
    with patch.object(hybrid_search, "peak_step_s", lambda costs: 0.0):
        whole = plan(problem, search)
    assert found.objective == whole.objective
    assert found.configuration == whole.configuration
    assert found.alternatives == whole.alternatives
    assert (found.status, found.bound) == (whole.status, whole.bound)
    number = f"layouts in the grid: {found.provenance.num_candidates:,}"
    assert found.provenance.num_candidates == whole.provenance.num_candidates
    assert any(line.startswith(number) for line in found.explanation)


def test_kinds_are_passed_over_for_as_many_answers_as_are_asked_for() -> None:
    (cost,) = costs_of(question(counts=(1,)))
    answer = with_rows(nothing(np.inf), [(1.0, {"tensor": 1}), (3.0, {"tensor": 2})], 0)
    found = [Found(cost=cost.even, answer=answer)]
    with patch.object(hybrid_search, "peak_step_s", lambda costs: 2.0):
        passed = [hybrid_search._is_passed_over(cost, found, Search(num_alternatives=number)) for number in range(3)]
    assert passed == [True, False, False]  # the runner-up is slower, and there is no third


@pytest.mark.parametrize("least", [5, 8, 10])
def test_layouts_of_so_many_devices_are_those_of_all_layouts_that_use_as_many(least: int) -> None:
    """And no more of one kind is looked at than goes with all devices of the others."""
    problem = question({**TINY, "layers": 8}, counts=(2, 2), devices=(2, 3), batch=12)
    for devices in (Range(least=2), Range(least=least)):
        problem = replace(problem, limits=replace(problem.limits, devices=devices))
        spaces = [Space.of(team) for team in placements_of(costs_of(problem)) if len(team.groups) > 1]
        points = [every_point(one.grid()) for one in spaces]
        used = [
            one["tensor"] * one["context"] * one[space.shared] * sum(one[name] for name in space.part_names)
            for space, one in zip(spaces, points, strict=True)
        ]
        if devices.least == 2:
            known = [
                {name: column[all_of >= least] for name, column in one.items()}
                for one, all_of in zip(points, used, strict=True)
            ]
    for space, one, expected in zip(spaces, points, known, strict=True):
        assert all(np.array_equal(one[name], expected[name]) for name in expected)
        nodes = space.grid().expand({}, 0)
        for level in range(1, [*space.levels].index((space.part_names[0],)) + 1):
            nodes = space.grid().expand(nodes, level)
        first = nodes["tensor"] * nodes["context"] * nodes[space.shared] * nodes[space.part_names[0]]
        assert np.all(first >= least - space.devices[1])


def test_one_micro_batch_with_little_room_is_bounded_by_whole_layers_too() -> None:
    problem = question({**TINY, "layers": 4}, counts=(2, 2), devices=(2, 3), batch=10, memory="2 GB")
    problem = replace(problem, limits=replace(problem.limits, machines=Range(least=2)))  # any part of each kind
    for team in placements_of(costs_of(problem)):
        if len(team.groups) == 1 or team.has_replicas:
            continue
        bounds = CutBounds(team)
        points = every_point(bounds.space.grid())
        seconds = bounds.seconds(points)
        assert np.isfinite(seconds).any()
        for most_s in (float(seconds[np.isfinite(seconds)].max()) * (1 + 1e-9), np.inf):
            assert np.all(bounds.whole_s(points, bounds.communication_s(points), most_s) <= seconds * (1 + 1e-9))


def test_ranks_whose_experts_lie_in_a_tensor_group_are_no_farther_apart_than_they_must_be() -> None:
    dnn = {"zoo": "deepseek-v2", "global_batch": 512, "dtype": "bf16", "optimizer": "adam"}
    machines = [{"count": 16, "devices": 8, "device": "h100-sxm", "inside": "nvlink-4", "network": "400 Gbit/s"}]
    spec = {"dnn": dnn, "cluster": {"machines": machines}, "families": ["hybrid"], "objective": "iteration_time"}
    bounds = CutBounds(HybridCost((costs_of(planner.load(spec))[0],), Placement.STAGES))
    point = {"tensor": 8, "context": 2, "data": 1, "expert": 16, "expert_tensor": 1, "microbatch": 8, "stages_0": 8,
             "sequence_parallel": 1, "order": 3, "recompute": 0, "zero": 0, "context_method": 0, "overlap_data": 0,
             "overlap_tensor": 1}  # fmt: skip
    columns = {name: np.array([value]) for name, value in point.items()}
    assert bounds.layers_s(columns)[0] <= bounds.path_s(columns)[0] < np.inf


@given(QUESTIONS, st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_the_search_finds_what_trying_every_layout_through_predict_finds(problem: Problem, which: int) -> None:
    teams = list(placements_of(costs_of(problem)))
    bounds = CutBounds(teams[which % len(teams)])
    quick = searched(bounds.cost, Search())
    slow = searched(bounds.cost, Search(), uses_bounds=False)
    assert quick.solution.objective == slow.solution.objective
    assert quick.solution.status is slow.solution.status
    if quick.solution.value is None:
        return
    configuration = configuration_of_point(bounds.cost, quick.solution.value)
    assert hybrid.predict(problem, configuration).iteration_time_s == pytest.approx(quick.solution.objective)
    grid = bounds.space.grid()
    points: dict[str, Any] = {}
    for level in range(len(grid.levels)):
        points = grid.expand(points, level)
    chosen = np.random.default_rng(1).permutation(len(points["tensor"]))[:40]
    seconds = bounds.seconds({name: column[chosen] for name, column in points.items()})
    for index, found_s in zip(chosen, seconds, strict=True):
        if np.isfinite(found_s):
            other = configuration_of_point(bounds.cost, {name: int(column[index]) for name, column in points.items()})
            prediction = hybrid.predict(problem, other)
            assert prediction.iteration_time_s == pytest.approx(found_s)
            assert prediction.iteration_time_s >= quick.solution.objective * (1 - 1e-9)
            assert prediction.memory_bytes["total"] <= prediction.memory_bytes["limit"] * (1 + 1e-9)


def is_best_on_three_kinds(
    transformer: dict[str, Any],
    devices: tuple[int, ...],
    batch: int,
    network: str,
    memory: str | None,
    fix: dict[str, Any],
    machines: Range,
    seed: int | None,
) -> None:
    """Whoever helps; cuts are few, so that none is left out but those with layers moved between chunks."""
    fix = {"context_parallel_size": 1, **fix}
    problem = question(
        transformer, counts=(1, 1, 1), devices=devices, batch=batch, network=network, memory=memory, fix=fix
    )
    problem = replace(problem, limits=replace(problem.limits, machines=machines))
    costs, best_s = costs_of(problem), np.inf
    for cost in [*(one.even for one in costs), *placements_of(costs)]:
        bounds = bounds_of(cost)
        points = every_point(bounds.space.grid()) if bounds.space.is_open else {}
        if points and len(points["tensor"]):
            least_s = float(bounds.seconds(points).min())
            assert searched(cost, Search()).solution.objective == pytest.approx(least_s)  # of each, the best or not
            best_s = min(best_s, least_s)
    try:
        found = plan(problem, Search(pool=None if seed is None else ShuffledPool(seed=seed, num_workers=3)))
    except InfeasibleError:
        assert best_s == np.inf
        return
    assert found.status is Status.OPTIMAL
    assert found.objective <= best_s * (1 + 1e-9)
    assert found.objective == pytest.approx(best_s) or chosen_of(found).interleave > 1  # chunks with layers moved


def test_the_plan_on_three_kinds_is_the_best_of_all_layouts_of_all_placements() -> None:
    network = {**MOE, "layers": 3}
    is_best_on_three_kinds(network, (1, 2, 2), 6, "400 Gbit/s", "1.2 GB", NO_PINS, Range(least=2), seed=7)


@pytest.mark.long
@given(
    transformer=st.sampled_from([{**TINY, "layers": 3}, {**TINY, "tied_embeddings": False}, {**MOE, "layers": 3}]),
    devices=st.tuples(*[st.integers(1, 2)] * 3),
    batch=st.sampled_from([4, 6]),
    network=st.sampled_from(["1 Gbit/s", "400 Gbit/s"]),
    memory=st.sampled_from([None, "2.5 GB", "1.2 GB"]),
    fix=st.sampled_from([NO_PINS, {"recompute": "none"}, {"zero_stage": 1}, {"num_stages": 3}]),
    machines=st.sampled_from([Range(), Range(least=2), Range(most=2)]),
    seed=st.none() | st.integers(0, 99),
)
@settings(max_examples=6, deadline=None)
def test_plans_on_any_three_kinds_are_the_best_of_all_layouts_of_all_placements(**asked: Any) -> None:
    is_best_on_three_kinds(**asked)


def test_layouts_that_fit_only_without_the_buffers_of_sharded_states_are_found() -> None:
    """Megatron-DeepSpeed gathers in buffers of 9 GB, whatever the network."""
    asked = question({**TINY, "tied_embeddings": False}, memory="2 GB", fix={"microbatch_size": 1, "num_stages": 2})
    rates = {**RATES, "software": transformer_rates()["software"]}
    calibration = replace(asked.calibration, program="megatron-deepspeed")
    for cost in placements_of(costs_of(replace(asked, transformer_rates=rates, calibration=calibration))):
        found, slow = (searched(cost, Search(), uses_bounds=uses).solution for uses in (True, False))
        assert found.objective == slow.objective
        assert slow.value is not None or len(cost.groups) == 1


@pytest.mark.parametrize("cutoff", [1e-9, 0.02])
def test_layouts_slower_than_a_better_plan_elsewhere_are_not_said_not_to_fit(cutoff: float) -> None:
    for cost in placements_of(costs_of(question())):
        found = searched(cost, Search(cutoff=cutoff)).solution
        assert found.status is not Status.INFEASIBLE
        assert found.bound <= searched(cost, Search()).solution.objective


def planned(problem: Problem) -> Plan:
    return plan(problem, Search(num_alternatives=6))


def chosen_of(found: Plan | Alternative) -> HybridConfiguration:
    assert isinstance(found.configuration, HybridConfiguration), "the family's own"
    return found.configuration


def test_a_plan_over_two_kinds_beats_each_kind_alone_and_is_checked_and_read_back() -> None:
    problem = question(batch=24, network="400 Gbit/s")
    found = planned(problem)
    assert not chosen_of(found).is_even
    assert found.status is Status.OPTIMAL
    assert set(chosen_of(found).groups) == {"old", "new"}
    names = " ".join(one.name for one in found.alternatives)
    assert "replicas on" in names and "stages on" in names
    for name in ("old", "new"):
        alone = plan(replace(problem, cluster=problem.cluster.of_groups({name})), Search())
        assert found.objective < alone.objective
    wrong = [one for one in second_physics.check(problem, found).findings if not one.is_ok]
    assert [one.name for one in wrong] == ["question"]  # a plan made by hand has no digest of its question
    block = found.configuration.to_document()
    given_block = {"hybrid": {**block}}
    again = planner.load({**problem.resolved, "configuration": given_block})
    assert hybrid.configuration_of(again, again.configuration[1] if again.configuration else {}) == found.configuration


@pytest.mark.parametrize("which", range(6))
def test_every_way_to_mix_is_checked(which: int) -> None:
    problem = question(MOE if which % 2 else TINY, batch=24, counts=(1, 1, 1), devices=(2, 2, 2), network="400 Gbit/s")
    teams = [one for one in placements_of(costs_of(problem)) if len(one.groups) > 1]
    bounds = CutBounds(teams[which * 2])
    answer = searched(bounds.cost, Search())
    assert answer.solution.value is not None
    configuration = configuration_of_point(bounds.cost, answer.solution.value)
    prediction = hybrid.predict(problem, configuration)
    facts = facts_of(problem, configuration.to_document(), prediction)
    assert all(one.is_ok for one in facts.findings), [one.text for one in facts.findings if not one.is_ok]
    wrong = replace(
        prediction, breakdown_s={**prediction.breakdown_s, "bubble": prediction.breakdown_s["bubble"] * 2 + 1}
    )
    assert not all(one.is_ok for one in facts_of(problem, configuration.to_document(), wrong).findings)


def test_stages_of_unlike_layers_are_used_where_they_are_faster() -> None:
    sizes = {**TINY, "layers": 8, "vocabulary": 64000}  # whose head is longer than a layer
    problem = question(
        sizes,
        counts=(1,),
        devices=(4,),
        batch=64,
        fix={"tensor_parallel_size": 1, "context_parallel_size": 1, "num_stages": 2, "chunks_per_device": 1},
    )
    found = planned(problem)
    assert not chosen_of(found).is_even
    assert [one.layers for one in chosen_of(found).stages] == [6, 2]
    assert chosen_of(found).machines is None
    assert any("--pipeline-model-parallel-layout 'Et*6|t*2L'" in line for line in found.explanation)


def test_an_even_cut_on_one_kind_is_an_even_layout_and_none_of_unlike_stages() -> None:
    dnn = {"zoo": "mixtral-8x7b", "global_batch": 512}
    machines = [{"count": 8, "devices": 8, "device": "h100-sxm", "network": "400 Gbit/s"}]
    fixed = {"data_parallel_size": 8, "pipeline_parallel_size": 8, "microbatch_size": 1, "recompute": "none"}
    asked = {"dnn": dnn, "cluster": {"machines": machines}, "families": ["hybrid"], "fix": fixed}
    found = planned(planner.load(asked))
    for one in [chosen_of(found), *map(chosen_of, found.alternatives)]:
        assert one.is_even or len({stage.layers for stage in one.stages}) > 1
    assert chosen_of(found).is_even


@pytest.mark.parametrize(("share", "is_mixed"), [(1 - 1e-12, False), (1 - 1e-6, True), (1 + 1e-6, False)])
def test_unlike_stages_win_by_more_than_rounding(share: float, is_mixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = question(counts=(1,), devices=(2,), batch=4)
    (cost,) = costs_of(problem)
    even_s = planned(problem).objective
    bounds = CutBounds(next(placements_of([cost])))
    answer = searched(bounds.cost, Search())
    seconds = share * even_s
    other = replace(answer, solution=replace(answer.solution, objective=seconds, bound=min(seconds, even_s)))
    monkeypatch.setattr(
        hybrid_search, "cuts_searched", lambda *_: [Found(cost=bounds.cost, answer=replace(other, others=()))]
    )
    assert chosen_of(planned(problem)).is_even is not is_mixed


RANGES = {"sizes": {"devices": [64, 512], "hidden size": [1, 9999], "layers": [1, 99], "sequence length": [1, 9999],
                    "vocabulary": [1, 99999],
                    "tensor degree": [1, 8], "stages": [1, 9], "micro-batch": [1, 99], "context degree": [1, 9],
                    "experts": [0, 0]}, "software": ["megatron-core"]}  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (
            question({**TINY, "layers": 8, "vocabulary": 64000}, counts=(1,), devices=(5,), batch=64,
                     fix={"tensor_parallel_size": 1, "context_parallel_size": 1, "num_stages": 2, "chunks_per_device": 1}),
            "1 of 5 devices stay idle: no such layout of all",
        ),
        (
            question(batch=24, devices=(5, 4), network="400 Gbit/s", fix={"tensor_parallel_size": 2, "num_stages": 1}),
            "1 of 5 devices of old stay idle: no such layout of all",
        ),
    ],
)  # fmt: skip
def test_unlike_layouts_say_what_even_ones_say(problem: Problem, words: str) -> None:
    names = ("v100-sxm2-16g", "a100-sxm4-80gb")
    found = planned(replace(problem, transformer_rates={**RATES, "ranges": dict.fromkeys(names, RANGES)}))
    assert not chosen_of(found).is_even
    for line in (f"outside of what was measured on {names[0]}", "binds", words):
        assert any(line in one for one in found.explanation), line
    for line in ("outside of what was measured", "calibration.memory_reserve is 0"):
        assert any(line in one for one in found.warnings), line


def test_pins_are_kept() -> None:
    found = planned(question(batch=24, fix={"num_devices": 3, "recompute": "full"}))
    assert found.configuration.to_document()["recompute"] == "full"
    assert found.prediction.details["num_devices"] == 3
    alone = planned(question(batch=24, fix={"device": "a100-sxm4-80gb"}))
    assert chosen_of(alone).is_even or chosen_of(alone).groups != ("old",)
    assert alone.prediction.details["num_devices"] <= 2


def test_micro_batches_of_replicas_follow_their_devices() -> None:
    problem = question(
        batch=240, network="400 Gbit/s", fix={"num_stages": 1, "tensor_parallel_size": 1, "microbatch_size": 1}
    )
    found = planned(problem)
    assert not chosen_of(found).is_even
    numbers = {one.machines: one.num_microbatches for one in chosen_of(found).replicas}
    assert numbers["new"] > numbers["old"]
    assert any("cannot launch" in line for line in found.explanation)


BASE: dict[str, Any] = {"pipeline": 2, "data": 2, "microbatch": 1}
STAGES = [{"machines": "old", "layers": 1}, {"machines": "new", "layers": 3}]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"stages": STAGES[:1]}, "2 pipeline stages, and 1 are listed"),
        ({"stages": [STAGES[0], {"machines": "new", "layers": 2}]}, "hold 3 layers, and the network has 4"),
        ({"stages": [STAGES[0], {"layers": 3}]}, "some stages name machines"),
        ({"stages": [STAGES[0], {"machines": "none", "layers": 3}]}, "there are none"),
        ({"stages": STAGES, "schedule": "gpipe"}, "go with it only"),
        ({"stages": STAGES, "zero": 2}, "ZeRO 0 and 1"),
        ({"stages": STAGES, "tensor": 3}, "do not divide by a tensor degree of 3"),
        ({"stages": STAGES, "data": 6}, "takes 6 devices of old; there are 2"),
        ({"stages": [{"layers": 2}, {"layers": 2}]}, "the machines differ"),
        ({"pipeline": 3, "stages": [STAGES[0], {"machines": "new", "layers": 2}, STAGES[0]]}, "follow each other"),
        (
            {"pipeline": 1, "replicas": [{"machines": "old", "data": 1, "num_microbatches": 2},
                                         {"machines": "new", "data": 1, "num_microbatches": 3}]},
            "do 5 samples of a batch of 6",
        ),
        (
            {"pipeline": 1, "replicas": [{"machines": "old", "data": 1, "num_microbatches": 3},
                                         {"machines": "new", "data": 2, "num_microbatches": 2}]},
            "add up to 3",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_rule(more: dict[str, Any], words: str) -> None:
    problem = question()
    block = {**planner.load({**problem.resolved, "configuration": {"hybrid": {**BASE, **more}}}).configuration[1]}  # type: ignore[index]
    with pytest.raises(SpecError, match=words):
        hybrid.configuration_of(problem, block)


def test_no_order_of_ranks_brings_replicas_on_two_kinds_of_machines_nearer_to_each_other() -> None:
    """Machines of one kind, whose ranks are numbered machine by machine, exchange gradients in as long."""
    sizes = {"layers": 2, "hidden": 1024, "heads": 16, "vocabulary": 32_000, "sequence_length": 1024}
    each = {"devices": 2, "inside": "nvlink-4", "network": "100 Gbit/s", "latency": "5 us"}
    dnn = {"transformer": sizes, "global_batch": 64, "dtype": "bf16"}
    layout = {"tensor": 2, "data": 2, "microbatch": 32, "zero": 1}

    def exchanged_s(kinds: dict[str, int], **block: Any) -> float:
        machines = [{"name": name, "count": count, "device": name, **each} for name, count in kinds.items()]
        asked = {"dnn": dnn, "cluster": {"machines": machines}, "objective": "iteration_time"}
        found = planner.predict({**asked, "configuration": {"hybrid": {**layout, **block}}})
        return found.breakdown_s["data"]

    apart_s = exchanged_s({"h100-sxm": 2})
    kinds = {"h100-sxm": 1, "h200-sxm": 1}
    replicas = [{"machines": name, "data": 1, "num_microbatches": 1} for name in kinds]
    for order in LAYOUT["order"].names:
        found_s = exchanged_s(kinds, replicas=replicas, stages=[{"layers": 2}], order=order)
        assert found_s == pytest.approx(apart_s, rel=0.05)
