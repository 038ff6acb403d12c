"""The dynamic programme over layers against every choice of states, with bounds in place of most prices."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost import Floats
from planner.solution import Status
from planner.solvers.chain import cheapest_chain
from tests.referee.exhaustive import best_chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Costs of states and of pairs, and bounds on the latter."""

    nodes: list[Floats]
    pairs: list[Floats]
    bounds: list[Floats]

    def price(self, layer: int, before: int, after: int) -> float:
        return float(self.pairs[layer - 1][before, after])

    def cost(self, path: tuple[int, ...]) -> float:
        own = sum(float(self.nodes[layer][state]) for layer, state in enumerate(path))
        return own + sum(self.price(layer, path[layer - 1], path[layer]) for layer in range(1, len(path)))

    @property
    def num_states(self) -> list[int]:
        return [len(costs) for costs in self.nodes]


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """Up to five layers of up to four states, whole costs, bounds from nothing up to the price itself."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    whole = st.integers(0, 12).map(float)
    nodes = [np.array([draw(whole) for _ in range(size)]) for size in sizes]
    pairs = [np.array([[draw(whole) for _ in range(b)] for _ in range(a)]) for a, b in pairwise(sizes)]
    shares = [np.array([[draw(st.sampled_from([0.0, 0.5, 1.0])) for _ in row] for row in table]) for table in pairs]
    return Chain(nodes=nodes, pairs=pairs, bounds=[p * s for p, s in zip(pairs, shares, strict=True)])


@given(chains())
@settings(deadline=None, max_examples=150)
def test_the_programme_agrees_with_every_choice_tried(chain: Chain) -> None:
    found = cheapest_chain(chain.nodes, chain.bounds, chain.price)
    truth = best_chain(chain.cost, chain.num_states)
    assert found.status is truth.status is Status.OPTIMAL
    assert found.objective == found.bound == pytest.approx(truth.objective)
    assert found.value is not None
    assert chain.cost(found.value) == pytest.approx(truth.objective)


@given(chains(), st.integers(0, 60))
@settings(deadline=None, max_examples=50)
def test_a_bound_that_is_enough_ends_the_search_and_stays_true(chain: Chain, enough: int) -> None:
    truth = best_chain(chain.cost, chain.num_states)
    found = cheapest_chain(chain.nodes, chain.bounds, chain.price, enough=enough)
    assert found.bound <= truth.objective + 1e-9
    if truth.objective < enough:
        assert found.status is Status.OPTIMAL
        assert found.objective == pytest.approx(truth.objective)
    elif found.value is None:
        assert found.status is Status.UNKNOWN
        assert found.bound >= enough
    else:
        assert chain.cost(found.value) == pytest.approx(found.objective)


@given(chains())
@settings(deadline=None, max_examples=50)
def test_stopped_at_once_it_returns_a_chain_and_a_true_bound(chain: Chain) -> None:
    asked: list[tuple[int, int, int]] = []

    def price(layer: int, before: int, after: int) -> float:
        asked.append((layer, before, after))
        return chain.price(layer, before, after)

    found = cheapest_chain(chain.nodes, chain.bounds, price, is_over=lambda: True)
    assert len(asked) == len(chain.nodes) - 1
    truth = best_chain(chain.cost, chain.num_states)
    assert found.value is not None
    assert found.bound <= truth.objective + 1e-9 <= found.objective + 2e-9
    assert chain.cost(found.value) == pytest.approx(found.objective)


@given(chains())
@settings(deadline=None, max_examples=50)
def test_bounds_are_left_as_they_were_and_no_pair_is_priced_twice(chain: Chain) -> None:
    before = [table.copy() for table in chain.bounds]
    asked: list[tuple[int, int, int]] = []

    def price(layer: int, first: int, second: int) -> float:
        asked.append((layer, first, second))
        return chain.price(layer, first, second)

    cheapest_chain(chain.nodes, chain.bounds, price)
    assert len(set(asked)) == len(asked)
    assert all((one == other).all() for one, other in zip(before, chain.bounds, strict=True))


def test_a_state_of_infinite_cost_is_not_chosen_and_a_layer_without_any_is_infeasible() -> None:
    nodes = [np.array([0.0, 5]), np.array([np.inf, 1])]
    found = cheapest_chain(nodes, [np.zeros((2, 2))], lambda layer, before, after: 0.0)
    assert (found.value, found.objective) == ((0, 1), 1)
    none = cheapest_chain([np.array([np.inf])], [], lambda layer, before, after: 0.0)
    assert none.status is Status.INFEASIBLE
    assert none.value is None


def test_only_pairs_of_cheap_chains_are_priced() -> None:
    nodes = [np.array([0.0, 100, 100]) for _ in range(4)]
    asked: set[tuple[int, int, int]] = set()

    def price(layer: int, before: int, after: int) -> float:
        asked.add((layer, before, after))
        return 1.0

    assert cheapest_chain(nodes, [np.zeros((3, 3)) for _ in range(3)], price).objective == 3
    assert asked == {(1, 0, 0), (2, 0, 0), (3, 0, 0)}


def test_pairs_of_equal_layers_are_not_priced_once_for_each_of_them() -> None:
    asked: list[tuple[int, int, int]] = []

    def price(layer: int, before: int, after: int) -> float:
        asked.append((layer, before, after))
        return 1.0

    nodes = [np.array([0.0, 100, 100])] * 5_000
    assert cheapest_chain(nodes, [np.zeros((3, 3))] * 4_999, price).objective == 4_999
    assert asked == [(1, 0, 0)]


def test_no_more_than_a_thousand_layers_pass_between_two_questions_whether_it_is_over() -> None:
    asked = 0

    def is_over() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    nodes = [np.array([1.0, 0.0])] * 5_000
    found = cheapest_chain(nodes, [np.ones((2, 2))] * 4_999, lambda layer, before, after: 2.0, is_over=is_over)
    assert asked == 4
    assert found.status is Status.FEASIBLE
    assert (found.bound, found.objective) == (4_999, 9_998)
