from collections.abc import Sequence
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost import Affine
from planner.errors import ModelError
from planner.models.ddp import LARGEST_SEGMENT_BYTES, Collectives, Exchange, exchange, num_rounds

Collective = tuple[float, float, float, int]  # ready, alone, wire, rounds
seconds = st.floats(0, 10)
collectives = st.lists(
    st.tuples(seconds, st.floats(0.01, 5), st.floats(0, 1), st.integers(1, 6)).map(
        lambda row: (row[0], row[1], row[1] * row[2], row[3])
    ),
    min_size=1,
    max_size=8,
)


def exchanged(rows: Sequence[Collective], num_concurrent: int) -> Exchange:
    ready_s, alone_s, wire_s, rounds = zip(*rows, strict=True)
    given = Collectives(
        size_bytes=alone_s, alone_s=alone_s, wire_s=wire_s, rounds=rounds, num_concurrent=num_concurrent
    )
    return exchange(ready_s, given)


def simulated(rows: Sequence[Collective], num_concurrent: int) -> list[float]:
    return [float(end) for end in exchanged(rows, num_concurrent).end_s]


def referee(rows: Sequence[Collective], num_concurrent: int) -> list[float]:
    """Return the ends, by scanning all running collectives for the next one that hands a round to the link."""
    waiting = list(enumerate(rows))
    running: list[list[float]] = []  # when it asks for the link next, index, rounds left
    ends, latest_s, link_s = [0.0] * len(rows), 0.0, 0.0

    def start(free_s: float) -> None:
        nonlocal latest_s
        if waiting:
            index, row = waiting.pop(0)
            latest_s = max(latest_s, row[0])
            running.append([max(free_s, latest_s), index, row[3]])

    for _ in range(num_concurrent):
        start(0.0)
    while running:
        one = min(running, key=lambda state: state[0])
        running.remove(one)
        now_s, index, left = one[0], int(one[1]), one[2]
        _, alone_s, wire_s, rounds = rows[index]
        if not left:
            ends[index] = now_s
            start(now_s)
            continue
        link_s = max(link_s, now_s) + wire_s / rounds
        running.append([link_s + (alone_s - wire_s) / rounds, index, left - 1])
    return ends


@given(collectives, st.integers(1, 4))
def test_an_exchange_agrees_with_a_scan_over_what_runs(rows: list[Collective], num_concurrent: int) -> None:
    assert simulated(rows, num_concurrent) == pytest.approx(referee(rows, num_concurrent))


@given(st.lists(collectives.map(lambda rows: rows[0]), min_size=1, max_size=1))
def test_one_collective_takes_its_seconds_alone(rows: list[Collective]) -> None:
    assert simulated(rows, 3) == pytest.approx([rows[0][0] + rows[0][1]])


@given(collectives)
def test_one_at_a_time_is_the_textbooks_recursion(rows: list[Collective]) -> None:
    end_s, ready_s, ends = 0.0, 0.0, []
    for row in rows:
        ready_s = max(ready_s, row[0])
        end_s = max(end_s, ready_s) + row[1]
        ends.append(end_s)
    assert simulated(rows, 1) == pytest.approx(ends)


@given(collectives, st.integers(1, 4))
def test_no_exchange_beats_a_link_that_is_shared_without_loss(rows: list[Collective], num_concurrent: int) -> None:
    ready_s = np.maximum.accumulate([row[0] for row in rows])
    wire_s = np.array([row[2] for row in rows])
    bound_s = max(float(ready_s[k] + wire_s[k:].sum()) for k in range(len(rows)))
    slowest_s = max(row[1] + ready for row, ready in zip(rows, ready_s, strict=True))
    assert max(simulated(rows, num_concurrent)) >= max(bound_s, slowest_s) - 1e-9


@given(collectives, st.integers(1, 4))
def test_an_exchange_ends_no_later_than_one_after_another_from_the_last_start(
    rows: list[Collective], num_concurrent: int
) -> None:
    latest_s = max(row[0] for row in rows) + sum(row[1] for row in rows)
    assert max(simulated(rows, num_concurrent)) <= latest_s + 1e-9


@given(collectives, st.integers(0, 7), st.floats(0, 3), st.floats(1, 2))
def test_later_gradients_and_more_bytes_never_end_one_at_a_time_sooner(
    rows: list[Collective], place: int, later_s: float, more: float
) -> None:
    index = place % len(rows)
    ready_s, alone_s, wire_s, rounds = rows[index]
    worse = [*rows[:index], (ready_s + later_s, alone_s * more, wire_s * more, rounds), *rows[index + 1 :]]
    before, after = simulated(rows, 1), simulated(worse, 1)
    assert all(new >= old - 1e-9 for old, new in zip(before, after, strict=True))


@given(collectives, st.integers(1, 3), st.floats(0.1, 10))
def test_twice_the_seconds_are_twice_the_ends(rows: list[Collective], num_concurrent: int, factor: float) -> None:
    scaled = [(ready * factor, alone * factor, wire * factor, rounds) for ready, alone, wire, rounds in rows]
    ends = [end * factor for end in simulated(rows, num_concurrent)]
    assert max(simulated(scaled, num_concurrent)) == pytest.approx(max(ends), rel=0.05)  # ties may break otherwise


@given(collectives, st.integers(1, 4))
def test_the_link_is_busy_for_what_it_carries(rows: list[Collective], num_concurrent: int) -> None:
    ready_s, _, wire_s, _ = zip(*rows, strict=True)
    done = exchanged(rows, num_concurrent)
    busy_s = done.busy_before_s(np.array([0.0, 1e9]))
    assert busy_s.tolist() == pytest.approx([0.0, sum(wire_s)])
    assert (done.start_s >= np.maximum.accumulate(ready_s)).all()


def test_a_small_collective_waits_for_two_segments_of_a_large_one_at_every_round() -> None:
    # The large one takes the link for 1 s a round; the small one, ready at 0.1 s, has two rounds of 0.01 s.
    done = exchanged([(0, 4, 4, 4), (0.1, 0.02, 0.02, 2)], 2)
    assert done.end_s.tolist() == pytest.approx([4.02, 2.02])


@given(st.integers(1, 200_000_000), st.integers(2, 16))
def test_rounds_carry_the_rings_share_of_the_bytes(size_bytes: int, num_workers: int) -> None:
    rounds = num_rounds(size_bytes, num_workers=num_workers)
    share = (num_workers - 1) / num_workers
    assert rounds >= 2 * (num_workers - 1)
    assert rounds * LARGEST_SEGMENT_BYTES >= size_bytes * share
    assert rounds <= ceil(size_bytes / LARGEST_SEGMENT_BYTES) + 2 * num_workers


def test_one_worker_and_an_empty_buffer_need_no_round() -> None:
    assert num_rounds(1e6, num_workers=1) == 0
    assert num_rounds(0.0, num_workers=3) == 0


@given(collectives, st.integers(1, 3), st.floats(0, 0.95), st.lists(st.floats(0, 30), min_size=1, max_size=5))
def test_disturbed_work_loses_its_share_of_the_busy_time(
    rows: list[Collective], num_concurrent: int, share: float, undisturbed_s: list[float]
) -> None:
    done = exchanged(rows, num_concurrent)
    times_s = done.disturbed_s(np.array(undisturbed_s), share)
    progress_s = times_s - share * done.busy_before_s(times_s)
    assert progress_s.tolist() == pytest.approx(undisturbed_s)


def test_work_that_loses_all_waits_until_the_link_rests() -> None:
    done = exchanged([(1, 2, 2, 1), (6, 1, 1, 1)], 1)  # busy from 1 to 3 and from 6 to 7
    assert done.disturbed_s(np.array([0.5, 2.0, 5.0]), 1.0).tolist() == pytest.approx([0.5, 4.0, 8.0])


def test_rings_of_a_curve_split_their_seconds_into_wire_and_latency() -> None:
    found = Collectives.rings([1e6, 2e6], Affine(startup_s=0.5, per_byte_s=1e-6), per_byte_s=1e-6, num_workers=4)
    assert found.alone_s == pytest.approx((1.5, 2.5))
    assert found.wire_s == pytest.approx((1.0, 2.0))
    assert found.rounds == (6, 6)


def test_an_exchange_refuses_what_is_no_exchange() -> None:
    one = Collectives(size_bytes=(1,), alone_s=(1,), wire_s=(1,), rounds=(1,))
    with pytest.raises(ModelError, match="as many ready times"):
        exchange([0, 0], one)
    with pytest.raises(ModelError, match="ready times of at least 0"):
        exchange([-1], one)
    with pytest.raises(ModelError, match="as many seconds"):
        Collectives(size_bytes=(1,), alone_s=(1, 2), wire_s=(1,), rounds=(1,))
    with pytest.raises(ModelError, match="at least one at once"):
        Collectives(size_bytes=(1,), alone_s=(1,), wire_s=(1,), rounds=(1,), num_concurrent=0)
