from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import ModelError
from planner.models.ddp import Collectives, DdpIteration, DdpWorker, expected_largest, iterate

WORKER = DdpWorker(before_s=1.0, bucket_offset_s=(1.0, 2.0), backward_s=2.5)
sizes = st.lists(st.floats(1, 100), min_size=1, max_size=5)


def one(workers: list[DdpWorker], size_bytes: list[float], **changes: Any) -> DdpIteration:
    """Return an iteration in which a byte takes a second of the link, one all-reduce at a time."""
    size = tuple(size_bytes)
    buckets = Collectives(size_bytes=size, alone_s=size, wire_s=size, rounds=(1,) * len(size))
    return iterate(workers, buckets, **({"update_s": 0.0, "copy_s_per_byte": 0.0} | changes))


def worker(offsets_s: list[float], **changes: Any) -> DdpWorker:
    """Return a worker whose buckets are ready at these times."""
    figures: dict[str, Any] = {"before_s": 1.0, "bucket_offset_s": tuple(offsets_s), "backward_s": max(offsets_s)}
    return DdpWorker(**(figures | changes))


@given(st.floats(0, 5), st.floats(0, 5), st.floats(0, 5), st.floats(0.1, 5), st.floats(0, 1))
def test_one_bucket_is_the_closed_form(
    before_s: float, offset_s: float, tail_s: float, size_bytes: float, update_s: float
) -> None:
    alone = DdpWorker(before_s=before_s, bucket_offset_s=(offset_s,), backward_s=offset_s + tail_s)
    found = one([alone], [size_bytes], update_s=update_s)
    assert found.iteration_time_s == pytest.approx(before_s + offset_s + max(size_bytes, tail_s) + update_s)


def test_a_bucket_waits_for_the_slowest_worker_and_for_those_before_it() -> None:
    found = one([worker([1.0, 4.0]), worker([3.0, 2.0], before_s=0.5)], [1.0, 1.0])
    assert found.ready_s == pytest.approx((3.5, 5.0))
    assert found.iteration_time_s == pytest.approx(6.0)


def test_a_worker_stands_for_itself_alone_unless_it_is_said_to_stand_for_more() -> None:
    varying = replace(WORKER, deviation=0.3)
    assert varying.slowest_of_equal == 1.0
    assert replace(varying, num_equal=5).slowest_of_equal == pytest.approx(1 + 0.3 * expected_largest(5))


@given(sizes, st.floats(0, 3))
def test_a_faster_worker_changes_nothing_and_a_slower_one_never_helps(size_bytes: list[float], later_s: float) -> None:
    offsets_s = [float(index) for index in range(1, len(size_bytes) + 1)]
    base = worker(offsets_s)
    alone = one([base], size_bytes).iteration_time_s
    faster = replace(base, before_s=0.5)
    slower = replace(base, before_s=1 + later_s)
    assert one([base, faster], size_bytes).iteration_time_s == pytest.approx(alone)
    assert one([base, slower], size_bytes).iteration_time_s >= alone - 1e-9


@given(sizes, st.floats(0, 0.9), st.floats(0, 0.09))
def test_a_disturbed_backward_pass_is_later_by_its_share_of_the_links_busy_time(
    size_bytes: list[float], share: float, more: float
) -> None:
    offsets_s = [float(index) for index in range(1, len(size_bytes) + 1)]
    found = one([worker(offsets_s, lost_share=share)], size_bytes)
    busy_s = found.exchange.busy_before_s(np.array(found.ready_s))
    assert found.ready_s == pytest.approx(1 + np.array(offsets_s) + share * busy_s)
    worse = one([worker(offsets_s, lost_share=share + more)], size_bytes)
    assert worse.iteration_time_s >= found.iteration_time_s - 1e-6


def test_copies_delay_the_backward_pass_and_what_comes_after_the_last_all_reduce() -> None:
    found = one([WORKER], [1.0, 2.0], copy_s_per_byte=0.1)
    # In: 0.1 s before the first bucket, 0.3 s before the second; out: 0.1 s hidden, 0.2 s after the last.
    assert found.ready_s == pytest.approx((2.1, 3.3))
    assert found.computed_s == pytest.approx(3.8)
    assert found.iteration_time_s == pytest.approx(3.3 + 2.0 + 0.2)


def test_of_equal_workers_that_vary_the_slowest_counts() -> None:
    steady, varied = worker([1.0]), worker([1.0], deviation=0.1, num_equal=4)
    late = one([varied], [1.0]).ready_s[0] / one([steady], [1.0]).ready_s[0]
    assert late == pytest.approx(1 + 0.1 * expected_largest(4))
    assert one([replace(varied, num_equal=1)], [1.0]).ready_s == pytest.approx(one([steady], [1.0]).ready_s)


@pytest.mark.parametrize("number", [2, 3, 4, 8, 16])
def test_the_expected_largest_is_near_the_mean_of_drawn_ones(number: int) -> None:
    drawn = np.random.default_rng(0).standard_normal((20_000, number)).max(axis=1).mean()
    assert expected_largest(number) == pytest.approx(drawn, abs=0.04)


def test_an_iteration_refuses_workers_that_do_not_fit() -> None:
    with pytest.raises(ModelError, match="one offset for each bucket"):
        one([worker([1.0])], [1.0, 2.0])
    with pytest.raises(ModelError, match="needs workers"):
        one([], [1.0])
