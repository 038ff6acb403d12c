"""Seconds of passes: what is true of them for any numbers of samples, and the profiles that are made of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost import Floats, Passes, Profile
from planner.models.data_parallel import Kinds
from planner.substitution import profile_after
from planner.zoo import build

TOGETHER = (1.0, 2.0, 4.0, 8.0)
seconds = st.lists(st.integers(0, 9000).map(lambda number: number / 1000), min_size=4, max_size=4)
tables = st.lists(st.tuples(seconds, seconds), min_size=1, max_size=3)


def profile_of(rows: list[tuple[list[float], list[float]]]) -> Profile:
    forward_s, backward_s = (np.array([row[way] for row in rows]).T for way in (0, 1))
    return Profile.of_passes(TOGETHER, forward_s, backward_s, update_s=0.5)


@given(tables)
def test_more_samples_take_as_long_or_longer_and_each_as_long_or_shorter(
    rows: list[tuple[list[float], list[float]]],
) -> None:
    whole = profile_of(rows).forward
    took_s = whole(np.arange(1, 40))
    assert (np.diff(took_s, axis=0) >= -1e-12).all()
    assert (np.diff(took_s / np.arange(1, 40)[:, None], axis=0) <= 1e-12).all()
    assert whole(0).tolist() == [0.0] * len(rows)


@given(seconds)
def test_a_profile_is_what_was_stated_where_that_never_falls_nor_rises_each(given_s: list[float]) -> None:
    rates = np.sort(given_s)[::-1]
    stated = np.maximum.accumulate(rates * TOGETHER)
    profile = Profile.of_passes(TOGETHER, stated[:, None], stated[:, None])
    assert profile.forward(np.array(TOGETHER))[:, 0] == pytest.approx(stated)


def test_between_and_beyond_what_was_stated_seconds_lie_on_straight_lines() -> None:
    profile = Profile.of_passes((1, 4), np.array([[3.0], [6.0]]), np.array([[1.0], [4.0]]))
    assert profile.forward(np.array([1, 2, 4, 8]))[:, 0].tolist() == [3.0, 4.0, 6.0, 12.0]
    assert profile.whole[1](np.array([0.5, 2.5])).tolist() == [0.5, 2.5]
    assert profile.sample_s(4) == profile.sample_s(400) == 6 / 4 + 1
    assert profile.sample_s(1) == 4.0


@given(tables, st.integers(1, 20), st.integers(1, 20))
def test_no_pass_of_fewer_samples_is_below_the_least(
    rows: list[tuple[list[float], list[float]]], most: int, number: int
) -> None:
    profile = profile_of(rows)
    each_s = (profile.forward(number) + profile.backward(number)) / number
    assert (each_s >= profile.least_s(max(most, number)) * (1 - 1e-9)).all()
    assert (profile.forward(most) + profile.backward(most)) / most == pytest.approx(
        profile.least_s(most)
    )  # and that is reached


@given(tables, st.floats(0.0, 60.0))
def test_the_most_samples_of_some_seconds_are_the_last_that_take_no_longer(
    rows: list[tuple[list[float], list[float]]], limit_s: float
) -> None:
    whole = profile_of(rows).whole[0]
    (most,) = whole.most_samples(np.array([limit_s])).tolist()
    numbers = np.arange(0, 200)
    in_time = numbers[whole(numbers) <= limit_s + 1e-9].max()
    assert in_time <= most + 1e-6
    assert most == np.inf or in_time == 199 or float(whole(most)) <= limit_s + 1e-6


def test_many_profiles_are_asked_together_as_each_alone() -> None:
    rng = np.random.default_rng(3)
    linear = Passes.linear(rng.random(5))
    other = Profile.of_passes(TOGETHER, rng.random((4, 5)).cumsum(0), rng.random((4, 5))).forward
    both, samples = Passes.stack([linear, other]), np.array([[3, 5], [1, 30]])
    for row, (one, two) in zip(both.of_each(samples), samples.tolist(), strict=True):
        assert row == pytest.approx(np.array([linear(one), other(two)]))
    assert both.least_s(np.array([2, 4])) == pytest.approx(np.array([linear.least_s(2), other.least_s(4)]))


def test_pieces_and_exchanged_layers_keep_their_passes() -> None:
    rng = np.random.default_rng(4)
    dnn = build("alexnet")
    number = len(dnn.layers)
    profile = Profile.of_passes(TOGETHER, rng.random((4, number)).cumsum(0), rng.random((4, number)).cumsum(0))
    pieces = profile.of_pieces(np.array([0, 3, 7]))
    expected = [profile.forward(3)[first:last].sum() for first, last in ((0, 3), (3, 7), (7, number))]
    assert pieces.forward(3) == pytest.approx(np.array(expected), rel=1e-6)
    block = Profile(forward_s=np.ones(number), backward_s=np.ones(number))
    changed = profile_after(dnn, dnn, profile, [(dnn, block)])
    assert changed.forward(3) == pytest.approx(np.full(number, 3.0))
    assert profile_after(dnn, dnn, block, []).forward(3) == pytest.approx(np.full(number, 3.0))
    other = Profile.of_passes((1, 16), rng.random((2, number)).cumsum(0), rng.random((2, number)).cumsum(0))
    mixed = profile_after(dnn, dnn, profile, [(dnn, other)])
    for samples in (1, 3, 12, 50):
        assert mixed.forward(samples) == pytest.approx(other.forward(samples))
    assert profile.slower(2.0).backward(5) == pytest.approx(2 * profile.backward(5))


@given(tables, st.sampled_from([1, 2, 3, 99]), st.floats(0.0, 80.0), st.floats(0.0, 3.0))
def test_no_share_beyond_the_bound_ends_in_time(
    rows: list[tuple[list[float], list[float]]], at_a_time: int, limit_s: float, tail_s: float
) -> None:
    """Whatever the micro-batches; and where all samples pass at once, the bound is the largest share itself."""
    profile = profile_of(rows)
    forward, backward = (Passes.stack([one]) for one in profile.whole)

    def since(parts: Floats) -> Floats:
        return np.cumsum(parts[:, ::-1], axis=1)

    ready = Passes.stack([profile.backward.map(since)])
    kinds = Kinds(
        forward=forward, backward=backward, ready=ready, update_s=np.array([0.5]), most_at_a_time=np.array([at_a_time])
    )
    shares = np.arange(1, 99)[:, None]
    ready_s = kinds.ready_s(shares)
    assert (np.diff(ready_s, axis=0) >= -1e-9).all()
    tails_s = np.full((1, ready_s.shape[1]), tail_s)
    ended_s = np.maximum((ready_s + tails_s).max(axis=1), kinds.computed_s(shares)[:, 0]) + 0.5
    most = float(kinds.most_shares_within(np.array([limit_s]), tails_s, 0.5)[0, 0])
    in_time = int(shares[ended_s <= limit_s, 0].max(initial=0))
    assert max(most, 0) >= in_time
    if at_a_time == 99 and in_time < 98:
        assert max(most, 0) == int(shares[ended_s <= limit_s + 1e-6, 0].max(initial=0))
