import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Tensors, affine_costs, in_the_papers_order, log_linear_costs, tensors, timeouts_s

from planner.channel import schedule
from planner.cost import Affine, Floats, TransferCost, Wait
from planner.models.data_parallel import buffer_recursion_time_s
from planner.solvers.fusion import constant_buffer, one_group
from tests.referee.equations import unfused_update_time_s

buffers = st.integers(0, 60).map(float) | st.just(math.inf)
any_cost = affine_costs | log_linear_costs


class Ledger:
    """A cost of nothing that writes down what was sent."""

    def __init__(self) -> None:
        self.sent: list[float] = []

    def __call__(self, size_bytes: Floats, /) -> Floats:
        self.sent += [size for size in np.atleast_1d(size_bytes).tolist() if size]
        return np.zeros_like(size_bytes)


@given(tensors(max_size=9), any_cost, buffers, timeouts_s)
def test_the_papers_recursion_is_the_schedule_of_a_constant_buffer(
    drawn: Tensors, cost: TransferCost, buffer_bytes: float, timeout_s: float
) -> None:
    size_bytes, backward_s = in_the_papers_order(drawn)
    found = buffer_recursion_time_s(size_bytes, backward_s, cost, buffer_bytes=buffer_bytes, timeout_s=timeout_s)
    ends = constant_buffer(drawn.size_bytes, buffer_bytes, drawn.ready_s, timeout_s)
    plan = schedule(ends, drawn.ready_s, drawn.size_bytes, cost, wait=Wait.PAPER, timeout_s=timeout_s)
    assert found == pytest.approx(plan.finish_s - drawn.ready_s[0])


@given(tensors(max_size=9), any_cost)
def test_a_buffer_that_holds_everything_leaves_no_overlap(drawn: Tensors, cost: TransferCost) -> None:
    size_bytes, backward_s = in_the_papers_order(drawn)
    total = sum(size_bytes)
    expected = sum(backward_s[:-1]) + float(cost(np.array([total]))[0])
    assert buffer_recursion_time_s(size_bytes, backward_s, cost, buffer_bytes=total) == pytest.approx(expected)
    for wait in Wait:
        plan = schedule(one_group(len(size_bytes)), drawn.ready_s, drawn.size_bytes, cost, wait=wait)
        assert plan.finish_s - drawn.ready_s[0] == pytest.approx(expected)


@given(tensors(max_size=9, min_bytes=1), affine_costs)
def test_a_buffer_smaller_than_every_gradient_is_no_faster_than_no_fusion(drawn: Tensors, cost: TransferCost) -> None:
    size_bytes, backward_s = in_the_papers_order(drawn)
    waited = buffer_recursion_time_s(size_bytes, backward_s, cost, buffer_bytes=0)
    assert waited >= unfused_update_time_s(size_bytes, backward_s, cost) - 1e-9


@given(tensors(max_size=9), buffers, timeouts_s)
def test_every_gradient_is_sent_once(drawn: Tensors, buffer_bytes: float, timeout_s: float) -> None:
    size_bytes, backward_s = in_the_papers_order(drawn)
    ledger = Ledger()
    buffer_recursion_time_s(size_bytes, backward_s, ledger, buffer_bytes=buffer_bytes, timeout_s=timeout_s)
    assert sum(ledger.sent) == pytest.approx(sum(size_bytes))


@pytest.mark.parametrize(
    ("backward_s", "printed", "mended"),
    [
        ([5, 1, 1], [1], [6, 1]),  # layers 3 and 2 are lost
        ([1, 1, 5], [4, 7], [7]),  # layer 3 is sent twice
        ([1, 5, 1], [2, 3], [4, 3]),  # layer 3 is lost and layer 2 sent twice
    ],
)
def test_equation_13_as_printed_loses_gradients_or_sends_them_twice(
    backward_s: list[float], printed: list[float], mended: list[float]
) -> None:
    for is_printed, expected in ((True, printed), (False, mended)):
        ledger = Ledger()
        buffer_recursion_time_s([1, 2, 4], backward_s, ledger, buffer_bytes=99, timeout_s=3, is_printed=is_printed)
        assert ledger.sent == expected


def test_without_late_gradients_the_printed_equation_is_the_mended_one() -> None:
    cost = Affine(startup_s=1, per_byte_s=1)
    one, other = (
        buffer_recursion_time_s([1, 2, 4, 3], [1, 2, 1, 2], cost, buffer_bytes=5, timeout_s=3, is_printed=is_printed)
        for is_printed in (True, False)
    )
    assert one == pytest.approx(other)


def test_waits_by_hand() -> None:
    # Layer 3 (4 B, ready at 0) finds after 2 s that layer 2 does not fit: sent from 2 to 7. Layers 2 and 1 are ready
    # at 3 and sent from 7 to 11.
    cost = Affine(startup_s=1, per_byte_s=1)
    assert buffer_recursion_time_s([1, 2, 4], [1, 2, 9], cost, buffer_bytes=5) == pytest.approx(11)
