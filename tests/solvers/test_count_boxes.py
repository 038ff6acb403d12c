"""Branch and bound over counts with a monotone oracle, against trying every point."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil, inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost import Floats
from planner.errors import ModelError
from planner.search import Search
from planner.solution import Status
from planner.solvers.counts import Candidate, best_counts, best_trade_offs
from planner.solvers.readings import Bools, Counts, Ints, Profile, Question, Reading
from tests.referee import exhaustive


@dataclass
class Case:
    """Tables of a monotone ``t`` by root, of which an oracle may know only a bound; criteria time and money."""

    tables: list[dict[Counts, float]]
    price: list[list[float]]
    granule: float  # time is billed in whole ones
    limits: tuple[float, float, float]
    least_total: int
    gap: float = 0.0
    floor_share: float | None = None
    swaps: bool = False  # money first
    uses: bool = True  # the oracle says which counts suffice
    stops: bool = False  # the oracle stops at what is enough
    asked: list[tuple[int, Counts]] = field(default_factory=list)

    @property
    def most(self) -> list[Counts]:
        return [max(table) for table in self.tables]

    @property
    def width(self) -> int:
        return max(map(len, self.most))

    def one(self, root: int, counts: Sequence[int], t: float) -> list[float]:
        """Time, money and machines of one point, in plain Python."""
        billed = t if self.granule == 0 or t == inf else self.granule * ceil(t / self.granule)
        usd = sum(price * count for price, count in zip(self.price[root], counts, strict=False)) * billed
        return [usd, t, float(sum(counts))] if self.swaps else [t, usd, float(sum(counts))]

    def truth(self, root: int, counts: Counts) -> list[float] | None:
        found = self.one(root, counts, self.tables[root][counts])
        is_allowed = all(a <= b for a, b in zip(found, self.limits, strict=True)) and max(found) < inf
        return found if is_allowed and sum(counts) >= self.least_total else None

    def oracle(self, root: int, counts: Counts, enough: float) -> Reading:
        self.asked.append((root, counts))
        table, t = self.tables[root], self.tables[root][counts]
        if t < inf and self.stops and t >= enough:
            return Reading(value=inf, bound=enough)
        same = [one for one in table if all(a <= b for a, b in zip(one, counts, strict=True)) and table[one] == t]
        used = min(same, key=lambda one: (sum(one), one)) if self.uses else None
        return Reading(value=t, bound=t if t == inf else t * (1 - self.gap), used=used, payload=(root, counts))

    def criteria(self, roots: Ints, counts: Ints, t: Floats) -> Floats:
        rows = zip(roots.tolist(), counts.tolist(), t.tolist(), strict=True)
        return np.array([self.one(root, row, seconds) for root, row, seconds in rows]).reshape(-1, 3)

    def floor(self, roots: Ints, least: Ints, most: Ints) -> Floats:
        share = self.floor_share or 0.0
        found = []
        for root, low, high in zip(roots.tolist(), least.tolist(), most.tolist(), strict=True):
            length = len(self.most[root])
            t = self.tables[root][tuple(high[:length])]
            found.append([share * value for value in self.one(root, low, t if t < inf else 0.0)])
        return np.array(found).reshape(-1, 3)

    def can_hold(self, roots: Ints, least: Ints, most: Ints) -> Bools:
        return np.asarray(most.sum(axis=1) >= self.least_total)

    def holds(self, roots: Ints, counts: Ints) -> Bools:
        return np.asarray(counts.sum(axis=1) >= self.least_total)

    def question(self) -> Question:
        most = np.zeros((len(self.tables), self.width), dtype=np.int64)
        for root, largest in enumerate(self.most):
            most[root, : len(largest)] = largest
        return Question(
            most=most,
            oracle=self.oracle,
            criteria=self.criteria,
            limits=self.limits,
            floor=None if self.floor_share is None else self.floor,
            can_hold=self.can_hold if self.least_total else None,
            holds=self.holds if self.least_total else None,
        )


def monotone(most: Counts, drops: Sequence[float], start: float) -> dict[Counts, float]:
    """A table that never grows: the least of what a point's own number and its lower neighbours say."""
    table: dict[Counts, float] = {}
    points = list(product(*(range(1, high + 1) for high in most)))
    for point, drop in zip(points, drops, strict=False):
        below = [
            table[(*point[:side], point[side] - 1, *point[side + 1 :])] for side in range(len(point)) if point[side] > 1
        ]
        # Where nothing is possible below, it may be possible from here on.
        before = min(below, default=inf)
        table[point] = (inf if drop < 0 else start) if before == inf else before * abs(drop)
    return table


# Few binary digits, so that products are exact and equal times are equal.
drops = st.sampled_from([-1.0, 1.0, 1.0, 0.875, 0.75, 0.5, 0.375])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    number = draw(st.integers(1, 3))
    tables, prices = [], []
    for _ in range(number):
        width = draw(st.integers(1, 3))
        most = tuple(draw(st.lists(st.integers(1, [6, 6, 4][width - 1]), min_size=width, max_size=width)))
        size = int(np.prod(most))
        tables.append(
            monotone(most, draw(st.lists(drops, min_size=size, max_size=size)), draw(st.sampled_from([8.0, 20.0, 0.5])))
        )
        prices.append(draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.5]), min_size=width, max_size=width)))
    return Case(
        tables=tables,
        price=prices,
        granule=draw(st.sampled_from([0.0, 0.0, 1.0, 6.0])),
        limits=draw(st.tuples(*[st.sampled_from([inf, inf, 6.0, 15.0, 40.0])] * 3)),
        least_total=draw(st.sampled_from([0, 0, 3, 8])),
        floor_share=draw(st.sampled_from([None, 0.5, 1.0])),
        swaps=draw(st.booleans()),
        uses=draw(st.booleans()),
        stops=draw(st.booleans()),
    )


@settings(max_examples=150)
@given(cases())
def test_the_best_counts_are_the_least_of_all_points(case: Case) -> None:
    found = best_counts(case.question(), Search()).solution
    truth = exhaustive.best_counts(case.most, case.truth)
    assert found.status is truth.status
    assert found.objective == pytest.approx(truth.objective)
    assert found.bound == pytest.approx(truth.bound)


@settings(max_examples=150)
@given(cases())
def test_an_answer_is_a_point_that_keeps_everything_and_says_what_it_costs(case: Case) -> None:
    found = best_counts(case.question(), Search())
    for best in filter(None, [found.solution.value, *(other.point for other in found.others)]):
        assert case.truth(best.root, best.counts) == pytest.approx(best.criteria)
        assert best.t == pytest.approx(case.tables[best.root][best.counts])
        root, counts = best.payload
        assert root == best.root
        assert all(a <= b for a, b in zip(counts, case.most[root], strict=True))
        assert case.tables[root][counts] == pytest.approx(best.t)


@settings(max_examples=150)
@given(cases(), st.integers(0, 12), st.sampled_from([0.0, 0.0, 0.3]))
def test_a_bound_is_true_whenever_the_search_stops(case: Case, most_calls: int, gap: float) -> None:
    case = replace(case, gap=gap)
    truth = exhaustive.best_counts(case.most, case.truth)
    found = best_counts(case.question(), Search(), most_calls=most_calls)
    assert len(case.asked) == found.num_calls <= most_calls
    assert found.solution.bound <= truth.objective * (1 + 1e-9)
    assert found.solution.objective >= truth.objective * (1 - 1e-9)
    if found.solution.status is Status.OPTIMAL:
        assert found.solution.objective == pytest.approx(truth.objective)
    if found.solution.status is Status.INFEASIBLE:
        assert truth.value is None


@settings(max_examples=150)
@given(cases(), st.sampled_from([0.05, 0.3]))
def test_an_imprecise_oracle_leaves_a_gap_that_is_its_own(case: Case, gap: float) -> None:
    case = replace(case, gap=gap, granule=0.0, limits=(inf, inf, inf), stops=False)
    truth = exhaustive.best_counts(case.most, case.truth)
    found = best_counts(case.question(), Search()).solution
    assert found.bound <= truth.objective * (1 + 1e-9)
    if truth.value is not None:
        assert truth.objective * (1 - 1e-9) <= found.objective <= truth.objective / (1 - gap) * (1 + 1e-9)
        assert found.bound >= found.objective * (1 - gap) * (1 - 1e-9)


@settings(max_examples=150)
@given(cases())
def test_runners_up_are_of_other_roots_and_their_bounds_are_true(case: Case) -> None:
    found = best_counts(case.question(), Search())
    roots = [other.point.root for other in found.others]
    assert len(set(roots)) == len(roots)
    for other in found.others:
        assert found.solution.value is not None
        assert other.point.root != found.solution.value.root
        only = [table if root == other.point.root else {} for root, table in enumerate(case.tables)]
        least = min(
            (truth[0] for counts in only[other.point.root] if (truth := case.truth(other.point.root, counts))),
            default=inf,
        )
        assert other.bounds[0] <= least * (1 + 1e-9)
        assert other.point.criteria[0] >= least * (1 - 1e-9)


@settings(max_examples=150)
@given(cases())
def test_the_front_is_that_of_all_points(case: Case) -> None:
    found = best_trade_offs(case.question(), Search())
    truth = exhaustive.best_trade_offs(case.most, case.truth)
    assert [one.point.criteria[:2] for one in found.points] == [pytest.approx(pair) for pair in truth]
    assert found.status is (Status.OPTIMAL if truth else Status.INFEASIBLE)
    for one in found.points:
        assert case.truth(one.point.root, one.point.counts) == pytest.approx(one.point.criteria)
        assert one.bounds == pytest.approx(one.point.criteria)


@settings(max_examples=150)
@given(cases(), st.integers(0, 12), st.sampled_from([0.0, 0.3]))
def test_a_front_that_is_not_proven_says_by_how_much_it_may_be_beaten(case: Case, most_calls: int, gap: float) -> None:
    case = replace(case, gap=gap)
    found = best_trade_offs(case.question(), Search(), most_calls=most_calls)
    truth = exhaustive.best_trade_offs(case.most, case.truth)
    points = [one.point.criteria[:2] for one in found.points]
    assert (found.status is Status.INFEASIBLE) <= (not truth)
    if found.gap == inf:
        return
    factor = (1 + found.gap) * (1 + 1e-9)
    for pair in truth:
        assert any(a <= pair[0] * factor and b <= pair[1] * factor for a, b in points)
        is_known = any(a <= pair[0] * (1 + 1e-9) and b <= pair[1] * (1 + 1e-9) for a, b in points)
        assert is_known or any(a <= pair[0] * (1 + 1e-9) and b <= pair[1] * (1 + 1e-9) for a, b in found.left)


@settings(max_examples=50)
@given(cases())
def test_the_same_question_gets_the_same_answer_by_the_same_calls(case: Case) -> None:
    first, second = replace(case, asked=[]), replace(case, asked=[])
    assert best_counts(first.question(), Search()) == best_counts(second.question(), Search())
    assert first.asked == second.asked
    assert best_trade_offs(first.question(), Search()) == best_trade_offs(second.question(), Search())
    assert first.asked == second.asked


def amdahl(roots: int, most: int, *, limits: tuple[float, float, float] = (inf, inf, inf)) -> Case:
    """Roots of one count whose time has a part that more machines do not shorten."""
    tables: list[dict[Counts, float]] = [
        {(count,): 1000 / (root + 1) * (0.01 * (root % 5 + 1) + 1 / count) for count in range(1, most + 1)}
        for root in range(roots)
    ]
    prices = [[(root + 1) * (1 + 0.07 * (root * 7 % 11))] for root in range(roots)]
    return Case(tables=tables, price=prices, granule=0.0, limits=limits, least_total=0, swaps=True)


def test_no_point_is_asked_twice() -> None:
    case = amdahl(12, 64, limits=(inf, 30.0, inf))
    best_counts(case.question(), Search())
    assert len(set(case.asked)) == len(case.asked)
    case.asked.clear()
    best_trade_offs(case.question(), Search())
    assert len(set(case.asked)) == len(case.asked)


def test_far_fewer_points_are_asked_than_there_are() -> None:
    case = amdahl(40, 64, limits=(inf, 30.0, inf))
    found = best_counts(replace(case, floor_share=0.8).question(), Search())
    assert found.solution.objective == pytest.approx(exhaustive.best_counts(case.most, case.truth).objective)
    assert found.num_calls < 40 * 64 / 10


def test_counts_that_lie_idle_are_not_counted() -> None:
    # More than 5 do not help; the oracle says so, and one call is all that it takes to know the fastest.
    table: dict[Counts, float] = {(count,): 60.0 / min(count, 5) for count in range(1, 101)}
    case = Case(tables=[table], price=[[1.0]], granule=0.0, limits=(inf, inf, inf), least_total=0)
    found = best_counts(case.question(), Search())
    assert found.solution.value is not None
    assert found.solution.value.counts == (5,)
    assert found.num_calls == 1


def test_a_search_that_is_over_before_it_began_has_a_bound_and_no_answer() -> None:
    found = best_counts(replace(amdahl(3, 8), floor_share=0.5).question(), Search(time_limit_s=0)).solution
    assert found.status is Status.UNKNOWN
    assert 0 < found.bound < inf


def test_an_interruption_ends_the_search_with_the_best_so_far() -> None:
    case, search = amdahl(5, 64), Search()
    said: list[int] = []

    def tell(bound: float, best: Candidate | None, calls: int) -> None:
        said.append(calls)
        if calls == 4:
            search.interrupt()

    found = best_counts(case.question(), search, on_progress=tell)
    assert said == [1, 2, 3, 4]
    assert found.solution.status is Status.FEASIBLE
    assert found.solution.bound <= exhaustive.best_counts(case.most, case.truth).objective <= found.solution.objective


@settings(max_examples=100)
@given(cases())
def test_every_bound_that_is_told_on_the_way_is_true(case: Case) -> None:
    truth = exhaustive.best_counts(case.most, case.truth).objective

    def tell(bound: float, best: Candidate | None, calls: int) -> None:
        assert bound <= truth * (1 + 1e-9)
        assert best is None or bound <= best.criteria[0]
        assert best is None or best.criteria[0] >= truth * (1 - 1e-9)

    best_counts(case.question(), Search(), on_progress=tell)


def test_a_good_enough_answer_ends_the_search_with_a_true_bound() -> None:
    case = amdahl(8, 64)
    truth = exhaustive.best_counts(case.most, case.truth).objective
    found = best_counts(case.question(), Search(good_enough=inf))
    assert found.solution.value is not None
    assert found.solution.bound <= truth
    assert found.num_calls < best_counts(case.question(), Search()).num_calls


def test_a_tolerance_saves_calls_and_is_kept() -> None:
    case = amdahl(12, 64, limits=(inf, 30.0, inf))
    truth = exhaustive.best_counts(case.most, case.truth).objective
    coarse, fine = (best_counts(case.question(), Search(), tolerance=gap) for gap in (0.05, 0.0))
    assert coarse.num_calls < fine.num_calls
    assert coarse.solution.status is Status.OPTIMAL
    assert coarse.solution.gap <= 0.05
    assert coarse.solution.objective <= truth / 0.95


def test_a_tolerance_of_the_front_is_its_gap() -> None:
    case = amdahl(6, 64)
    coarse, fine = (best_trade_offs(case.question(), Search(), tolerance=gap) for gap in (0.1, 0.0))
    assert coarse.num_calls < fine.num_calls
    assert coarse.status is Status.OPTIMAL
    assert 0 < coarse.gap <= 0.1
    points = [one.point.criteria for one in coarse.points]
    for one in fine.points:
        assert any(
            all(a <= b * (1 + coarse.gap) for a, b in zip(pair[:2], one.point.criteria, strict=False))
            for pair in points
        )


def test_an_oracle_that_grows_with_a_count_is_refused() -> None:
    table: dict[Counts, float] = {(count,): float(count) for count in range(1, 9)}
    case = Case(tables=[table], price=[[1.0]], granule=0.0, limits=(inf, inf, inf), least_total=0, uses=False)
    case.swaps = True
    with pytest.raises(ModelError, match="contradicts itself"):
        best_counts(case.question(), Search())


@pytest.mark.parametrize(
    "reading", [Reading(value=1.0, bound=2.0), Reading(value=1.0, bound=1.0, used=(9,)), Reading(value=1.0, bound=-1.0)]
)
def test_a_reading_that_is_none_is_refused(reading: Reading) -> None:
    question = replace(amdahl(1, 8).question(), oracle=lambda root, counts, enough: reading)
    with pytest.raises(ModelError, match="answer for"):
        best_counts(question, Search())


@settings(max_examples=60, deadline=None)
@given(case=cases(), number=st.integers(1, 5), lots=st.randoms(use_true_random=False), has_front=st.booleans())
def test_looking_ahead_changes_no_call_and_no_answer(case: Case, number: int, lots: Any, has_front: bool) -> None:
    alone, helped = replace(case, asked=[]), replace(case, asked=[])
    search: Callable[..., Any] = best_trade_offs if has_front else best_counts
    known: dict[tuple[int, Counts, float], Reading] = {}

    def foreseen(calls: Callable[[int], list[tuple[int, Counts, float]]]) -> None:
        """Make some of the calls that are foreseen; others stay at work for ever."""
        found = calls(number)
        assert len(set(found)) == len(found)
        for call in found:
            if lots.random() < 0.7:
                known[call] = replace(case, asked=[]).oracle(*call)

    question = replace(helped.question(), known=lambda *call: known.get(call), foreseen=foreseen)
    first, second = search(alone.question(), Search()), search(question, Search())
    assert helped.asked == alone.asked
    assert repr(second) == repr(first)


def test_most_calls_are_foreseen_where_what_they_prove_is_that_nothing_is_better() -> None:
    size = 8
    tables = [monotone((6, 6), [0.875] * 36, 8.0 + root) for root in range(size)]
    case = Case(tables, [[1.0, 2.0]] * size, granule=0.0, limits=(inf, inf, inf), least_total=0, stops=True)
    ahead: list[tuple[int, Counts, float]] = []
    made: list[tuple[int, Counts, float]] = []

    def oracle(*call: Any) -> Reading:
        made.append(call)
        return case.oracle(*call)

    question = replace(
        case.question(), oracle=oracle, known=lambda *call: None, foreseen=lambda calls: ahead.extend(calls(2))
    )
    best_counts(question, Search())
    assert len(made) >= size
    assert len(set(ahead) & set(made)) > len(made) / 3


@pytest.mark.parametrize("t", [number / 7 for number in range(1, 40)])
def test_what_is_cut_at_the_tolerance_itself_is_proven_however_that_is_rounded(t: float) -> None:
    known = Reading(value=t, bound=t)
    question = Question(
        most=np.array([[3], [3]]),
        oracle=lambda root, counts, enough: known,
        criteria=lambda roots, counts, t: t[:, None],
        limits=[inf],
        profile=lambda root, weight, enough: Profile(bounds=np.minimum(weight, enough)),
        first_profile=lambda root: np.full(3, t * (1 - 1e-9)),
        begun=lambda root: [((3,), known)] if root == 0 else [],
    )
    assert best_counts(question, Search()).solution.status is Status.OPTIMAL
