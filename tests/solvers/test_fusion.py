"""The optimum of gradient fusion against its referee, the heuristics, and the published equations."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import LogLinear, Tensors, affine_costs, log_linear_costs, tensors, timeouts_s

from planner.channel import FusionSchedule, schedule
from planner.cost import Affine, CheapestOf, Floats, TransferCost, Wait
from planner.solution import Solution, Status
from planner.solvers.fusion import AdaFusion, ada_fusion, constant_buffer, mg_wfbp, one_group, optimal_groups, unfused
from tests.referee.exhaustive import all_groupings, all_set_partitions, best_groups, best_partition_of_any_kind

every_wait = pytest.mark.parametrize("wait", Wait)
all_costs = affine_costs | log_linear_costs
SPEC_COST = LogLinear(a1=1, b1=1, a2=0.1, b2=0.6, threshold_bytes=64)
SPEC_TENSORS = Tensors(ready_s=np.array([1, 1.5, 15.3, 17.7]), size_bytes=np.array([60.0, 200, 16, 8]))


def general(cost: TransferCost) -> TransferCost:
    """Hide an affine cost's type, so that the search for any cost runs."""

    def hidden(size_bytes: Floats, /) -> Floats:
        return cost(size_bytes)

    return hidden


def run(ends: tuple[int, ...], given: Tensors, cost: TransferCost, wait: Wait, timeout_s: float) -> FusionSchedule:
    return schedule(ends, given.ready_s, given.size_bytes, cost, wait=wait, timeout_s=timeout_s)


def heuristics(given: Tensors, cost: TransferCost, timeout_s: float) -> dict[str, tuple[int, ...]]:
    ready, sizes = given.ready_s, given.size_bytes
    return {
        "unfused": unfused(len(sizes)),
        "one group": one_group(len(sizes)),
        "buffer of 25": constant_buffer(sizes, 25, ready, timeout_s),
        "mg-wfbp": mg_wfbp(ready, sizes, cost, 4.0),
        "adaFusion": ada_fusion(ready, sizes, cost),
        "adaFusion, idle": ada_fusion(ready, sizes, cost, AdaFusion.IDLE),
    }


@every_wait
@pytest.mark.parametrize(
    "costs",
    [affine_costs, log_linear_costs, st.tuples(affine_costs, log_linear_costs).map(CheapestOf)],
    ids=["affine", "log-linear", "cheapest of both"],
)
def test_optimum_agrees_with_every_grouping_tried(wait: Wait, costs: st.SearchStrategy[TransferCost]) -> None:
    @settings(deadline=None, max_examples=60)
    @given(tensors(max_size=12), costs, timeouts_s)
    def agrees(drawn: Tensors, cost: TransferCost, timeout_s: float) -> None:
        found, truth = (
            search(drawn.ready_s, drawn.size_bytes, cost, wait=wait, timeout_s=timeout_s)
            for search in (optimal_groups, best_groups)
        )
        assert found.status is truth.status is Status.OPTIMAL
        assert found.objective == pytest.approx(truth.objective)
        assert found.value is not None
        assert run(found.value, drawn, cost, wait, timeout_s).finish_s == found.objective == found.bound

    agrees()


@every_wait
@pytest.mark.parametrize("cost", [Affine(startup_s=2, per_byte_s=0.2), SPEC_COST], ids=["affine", "log-linear"])
def test_optimum_agrees_with_every_grouping_of_twelve_tensors(wait: Wait, cost: TransferCost) -> None:
    rng = np.random.default_rng(12)
    for _ in range(3):
        ready, sizes = np.cumsum(rng.exponential(3, 12)), rng.integers(0, 30, 12) * rng.integers(0, 2, 12)
        found, truth = (search(ready, sizes, cost, wait=wait, timeout_s=4) for search in (optimal_groups, best_groups))
        assert found.objective == pytest.approx(truth.objective)


@every_wait
@settings(deadline=None, max_examples=200)
@given(
    drawn=tensors(max_size=60),
    costs=st.lists(affine_costs, min_size=1, max_size=4),
    timeout_s=timeouts_s,
    unit_s=st.sampled_from([1.0, 0.1, 1e-7]),
)
def test_affine_search_agrees_with_the_search_for_any_cost(
    wait: Wait, drawn: Tensors, costs: list[Affine], timeout_s: float, unit_s: float
) -> None:
    parts = tuple(Affine(startup_s=one.startup_s * unit_s, per_byte_s=one.per_byte_s * unit_s) for one in costs)
    scaled = CheapestOf(parts) if len(parts) > 1 else parts[0]
    fast, slow = (
        optimal_groups(drawn.ready_s * unit_s, drawn.size_bytes, any_cost, wait=wait, timeout_s=timeout_s * unit_s)
        for any_cost in (scaled, general(scaled))
    )
    assert fast.objective == pytest.approx(slow.objective)


@every_wait
def test_affine_search_agrees_on_a_thousand_tensors(wait: Wait) -> None:
    rng = np.random.default_rng(1000)
    ready, sizes = np.cumsum(rng.exponential(1, 1000)), rng.integers(0, 30, 1000) * rng.integers(0, 2, 1000)
    for cost in (Affine(startup_s=startup_s, per_byte_s=k) for startup_s in (0, 3, 40) for k in (0, 0.05, 0.13, 0.4)):
        fast, slow = (optimal_groups(ready, sizes, c, wait=wait, timeout_s=2) for c in (cost, general(cost)))
        assert fast.objective == pytest.approx(slow.objective)


def test_the_best_end_may_fall_from_one_tensor_to_the_next_under_the_printed_wait() -> None:
    ready, sizes, cost = [0.0, 0, 5, 5], [1000.0, 10, 1, 1], Affine(startup_s=0, per_byte_s=0.1)
    split = schedule((0, 1, 3), ready, sizes, cost, wait=Wait.PAPER)
    assert split.end_s.tolist() == pytest.approx([100, 106, 106.2])
    found, truth = (search(ready, sizes, cost, wait=Wait.PAPER) for search in (optimal_groups, best_groups))
    assert found.objective == pytest.approx(truth.objective) == pytest.approx(101.2)


def test_under_the_printed_wait_an_empty_group_may_best_start_in_the_midst_of_empty_tensors() -> None:
    ready, sizes, cost = [0, 0, 10, 12, 13.5], [100, 1, 0, 0, 0], Affine(startup_s=1, per_byte_s=0.1)
    found, truth = (search(ready, sizes, cost, wait=Wait.PAPER) for search in (optimal_groups, best_groups))
    assert found.objective == pytest.approx(truth.objective) == pytest.approx(14.1)
    assert found.value == (0, 2, 4)


@every_wait
@settings(deadline=None)
@given(drawn=tensors(max_size=30), cost=all_costs, timeout_s=timeouts_s)
def test_optimum_never_loses_to_a_heuristic(wait: Wait, drawn: Tensors, cost: TransferCost, timeout_s: float) -> None:
    best = optimal_groups(drawn.ready_s, drawn.size_bytes, cost, wait=wait, timeout_s=timeout_s)
    for name, ends in heuristics(drawn, cost, timeout_s).items():
        assert best.objective <= run(ends, drawn, cost, wait, timeout_s).finish_s * (1 + 1e-12), name


@settings(deadline=None)
@given(tensors(max_size=20), all_costs, timeouts_s)
def test_paper_wait_is_no_shorter_than_exact_and_exact_no_shorter_than_none(
    drawn: Tensors, cost: TransferCost, timeout_s: float
) -> None:
    bests = [
        optimal_groups(drawn.ready_s, drawn.size_bytes, cost, wait=wait, timeout_s=timeout_s).objective
        for wait in (Wait.NONE, Wait.EXACT, Wait.PAPER)
    ]
    assert bests == pytest.approx(sorted(bests))
    for ends in heuristics(drawn, cost, timeout_s).values():
        finishes_s = [run(ends, drawn, cost, w, timeout_s).finish_s for w in (Wait.NONE, Wait.EXACT, Wait.PAPER)]
        assert finishes_s == pytest.approx(sorted(finishes_s))


@settings(deadline=None)
@given(tensors(max_size=20), all_costs, timeouts_s)
def test_schedules_conserve_bytes_and_use_one_channel_in_order(
    drawn: Tensors, cost: TransferCost, timeout_s: float
) -> None:
    for wait in Wait:
        for ends in heuristics(drawn, cost, timeout_s).values():
            plan = run(ends, drawn, cost, wait, timeout_s)
            assert plan.size_bytes.sum() == pytest.approx(drawn.size_bytes.sum())
            assert (plan.start_s >= plan.ready_s).all()
            assert (plan.start_s[1:] >= plan.end_s[:-1]).all()
            assert plan.end_s == pytest.approx(plan.start_s + cost(plan.size_bytes))
            assert plan.wait_s[-1] == 0
            assert (plan.wait_s <= timeout_s).all()


@every_wait
@given(drawn=tensors(max_size=20), cost=all_costs)
def test_a_buffer_for_everything_sends_once_after_the_last_gradient(
    wait: Wait, drawn: Tensors, cost: TransferCost
) -> None:
    total = drawn.size_bytes.sum(keepdims=True)
    ends = constant_buffer(drawn.size_bytes, float(total[0]))
    assert ends == one_group(len(drawn.size_bytes))
    finish_s = run(ends, drawn, cost, wait, math.inf).finish_s
    assert finish_s == pytest.approx(drawn.ready_s[-1] + float(cost(total)[0]))


@given(tensors(max_size=20), all_costs)
def test_unfused_without_waits_is_equation_8(drawn: Tensors, cost: TransferCost) -> None:
    free = 0.0
    for ready_s, seconds in zip(drawn.ready_s, cost(drawn.size_bytes), strict=True):
        free = max(free, ready_s) + seconds
    assert run(unfused(len(drawn.ready_s)), drawn, cost, Wait.NONE, math.inf).finish_s == pytest.approx(free)


@pytest.mark.parametrize(
    ("wait", "starts_s", "ends_s"),
    [
        (Wait.NONE, [1, 11, 20], [11, 15, 22]),
        (Wait.EXACT, [3, 13, 20], [13, 17, 22]),
        (Wait.PAPER, [3, 16, 20], [13, 20, 22]),
    ],
)
def test_the_three_waits_on_an_instance_worked_by_hand(wait: Wait, starts_s: list[int], ends_s: list[int]) -> None:
    plan = schedule((0, 1, 3), [1, 3, 8, 20], [9, 3, 0, 1], lambda size: size + 1, wait=wait, timeout_s=3)
    assert plan.wait_s.tolist() == ([0, 0, 0] if wait is Wait.NONE else [2, 3, 0])
    assert (plan.start_s.tolist(), plan.end_s.tolist()) == (starts_s, ends_s)


@settings(deadline=None)
@given(tensors(max_size=20), all_costs, timeouts_s, st.integers(-50, 50))
def test_doubling_every_time_doubles_the_optimum_and_shifting_shifts_it(
    drawn: Tensors, cost: TransferCost, timeout_s: float, shift_s: int
) -> None:
    def twice(size_bytes: Floats) -> Floats:
        return 2 * cost(size_bytes)

    ready, sizes = drawn.ready_s, drawn.size_bytes
    for wait in Wait:
        best = optimal_groups(ready, sizes, cost, wait=wait, timeout_s=timeout_s)
        doubled = optimal_groups(2 * ready, sizes, twice, wait=wait, timeout_s=2 * timeout_s)
        shifted = optimal_groups(ready + shift_s, sizes, cost, wait=wait, timeout_s=timeout_s)
        assert doubled.objective == pytest.approx(2 * best.objective)
        assert shifted.objective == pytest.approx(best.objective + shift_s)


def test_with_a_cost_that_is_not_affine_contiguous_groups_can_lose() -> None:
    contiguous = optimal_groups(SPEC_TENSORS.ready_s, SPEC_TENSORS.size_bytes, SPEC_COST)
    anything = best_partition_of_any_kind(SPEC_TENSORS.ready_s, SPEC_TENSORS.size_bytes, SPEC_COST)
    assert contiguous.objective == pytest.approx(33.685, abs=5e-4)
    assert anything.objective == pytest.approx(31.100)
    assert anything.value == ((1,), (0, 2, 3))


@settings(deadline=None)
@given(tensors(max_size=5), affine_costs)
def test_with_an_affine_cost_contiguous_groups_lose_nothing(drawn: Tensors, cost: Affine) -> None:
    contiguous, anything = (
        search(drawn.ready_s, drawn.size_bytes, cost) for search in (optimal_groups, best_partition_of_any_kind)
    )
    assert contiguous.objective == pytest.approx(anything.objective)


@given(
    tensors(max_size=20, min_bytes=1),
    st.builds(Affine, startup_s=st.integers(0, 12).map(float), per_byte_s=st.sampled_from([0, 0.5, 2])),
)
def test_literal_ada_fusion_with_an_affine_cost_merges_iff_the_gap_is_below_the_startup(
    drawn: Tensors, cost: Affine
) -> None:
    gaps_s = np.diff(drawn.ready_s)
    expected = (*np.flatnonzero(gaps_s >= cost.startup_s).tolist(), len(drawn.ready_s) - 1)
    assert ada_fusion(drawn.ready_s, drawn.size_bytes, cost) == expected


def test_idle_ada_fusion_merges_while_the_channel_is_busy_anyway() -> None:
    ready, sizes, cost = [0, 3, 6, 30], [9, 1, 1, 1], Affine(startup_s=2, per_byte_s=1)
    assert ada_fusion(ready, sizes, cost, AdaFusion.LITERAL) == (0, 1, 2, 3)
    assert ada_fusion(ready, sizes, cost, AdaFusion.IDLE) == (0, 2, 3)


def test_mg_wfbp_waits_for_a_gradient_that_comes_before_the_startup_is_over() -> None:
    cost = Affine(startup_s=2, per_byte_s=1)
    assert mg_wfbp([0, 1.9, 4, 30], [5, 5, 5, 5], cost, 2) == (1, 2, 3)  # 4 is too late for 1.9 + 2
    assert mg_wfbp([0, 1, 30], [0, 5, 5], cost, 2) == (0, 1, 2)  # an empty transfer is over before 1


@given(tensors(max_size=20), st.integers(0, 60))
def test_constant_buffer_overflows_only_with_a_single_tensor_and_never_flushes_early(drawn: Tensors, q: int) -> None:
    ends = constant_buffer(drawn.size_bytes, q)
    firsts = (0, *(end + 1 for end in ends[:-1]))
    for first, end in zip(firsts, ends, strict=True):
        assert first == end or drawn.size_bytes[first : end + 1].sum() <= q
        assert end == ends[-1] or drawn.size_bytes[first : end + 2].sum() > q


def test_constant_buffer_flushes_on_a_gap_above_the_timeout_only() -> None:
    assert constant_buffer([1, 1, 1, 1], 9, ready_s=[0, 2, 5, 7], timeout_s=2) == (1, 3)


@pytest.mark.parametrize("search", [optimal_groups, best_groups])
@pytest.mark.parametrize(
    ("ready_s", "size_bytes", "message"),
    [
        ([], [], "not empty"),
        ([0, 1], [1], "equally long"),
        ([1, 0], [1, 1], "Sort tensors by ready time"),
        ([0, 1], [1, -2], "tensor 1 has -2"),
        ([0, math.nan], [1, 1], "finite"),
        ([0, 1], [1, math.nan], "finite"),
        ([0, math.inf], [1, 1], "finite"),
    ],
)
def test_input_that_is_no_list_of_tensors_is_refused(
    search: Callable[..., object], ready_s: list[float], size_bytes: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        search(ready_s, size_bytes, Affine(startup_s=1, per_byte_s=1))


def test_other_nonsense_is_refused() -> None:
    cost = Affine(startup_s=1, per_byte_s=1)
    for ends in [(), (0,), (1, 1), (1, 0), (-1, 1), (0, 1, 2)]:
        with pytest.raises(ValueError, match="the last tensor"):
            schedule(ends, [0, 1], [1, 1], cost)
    for timeout_s in (-1, math.nan):
        with pytest.raises(ValueError, match="timeout_s must be >= 0"):
            optimal_groups([0, 1], [1, 1], cost, wait=Wait.EXACT, timeout_s=timeout_s)
    with pytest.raises(ValueError, match="cost gives nan"):
        optimal_groups([0, 1], [1, 1], lambda size_bytes: size_bytes * math.nan)
    with pytest.raises(ValueError, match="must be finite and >= 0"):
        Affine(startup_s=-1, per_byte_s=0)
    with pytest.raises(ValueError, match="needs ready_s"):
        constant_buffer([1], 1, timeout_s=2)
    with pytest.raises(ValueError, match="must be >= 0"):
        constant_buffer([1], -1)
    with pytest.raises(ValueError, match="must be >= 1"):
        unfused(0)
    with pytest.raises(ValueError, match="8 at most"):
        best_partition_of_any_kind(range(9), range(9), cost)


def test_referees_try_everything_once() -> None:
    assert len(set(all_groupings(6))) == 2**5
    assert len(set(all_set_partitions(6))) == 203  # Bell's number


def test_the_gap_is_what_a_better_answer_could_still_save() -> None:
    def gap(objective: float, bound: float, value: int | None) -> float:
        return Solution(status=Status.FEASIBLE, objective=objective, bound=bound, value=value).gap

    assert (gap(4, 3, 1), gap(0, 0, 1), gap(math.inf, 3, None)) == (0.25, 0, math.inf)


def test_grouping_asks_between_a_few_hundred_gradients_whether_it_is_late() -> None:
    sums, most, asked = 0, 0, 0

    def cost(size_bytes: Floats) -> Floats:
        nonlocal sums
        sums += 1
        return np.log2(1 + size_bytes)

    def is_late() -> bool:
        nonlocal sums, most, asked
        sums, most, asked = 0, max(most, sums), asked + 1
        return asked == 5

    found = optimal_groups(np.arange(4096.0), np.ones(4096), cost, is_late=is_late)
    assert (found.status, found.value, asked) == (Status.UNKNOWN, None, 5)
    assert 0 < most <= 256
