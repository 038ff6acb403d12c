from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Tensors, affine_costs, tensors, timeouts_s

from planner.cases.forms.dag_model import (
    AllReduce,
    Iteration,
    Prefetch,
    all_reduce_spans_s,
    exposed_all_reduce_s,
    input_bound_s,
    naive_time_s,
    overlapped_time_s,
    prefetched_time_s,
    sgd_time_s,
    speed_up,
    steady_time_s,
    wait_free_time_s,
)
from planner.channel import schedule
from planner.cost import Affine, Wait
from planner.errors import ModelError
from planner.models.input import Strategy
from tests.referee.equations import unfused_update_time_s

seconds = st.integers(0, 9).map(float) | st.floats(0, 10)
prefetches = st.sampled_from(Prefetch)


@st.composite
def iterations(draw: st.DrawFn) -> Iteration:
    """Up to six layers, some without parameters; zeros and ties are common."""
    layers = draw(st.lists(st.tuples(seconds, seconds, st.just(0.0) | seconds), min_size=1, max_size=6))
    forward_s, backward_s, all_reduce_s = zip(*layers, strict=True)
    return Iteration.layer_wise(
        forward_s=forward_s,
        backward_s=backward_s,
        all_reduce_s=all_reduce_s,
        read_s=draw(seconds | st.just(30.0)),
        copy_s=draw(seconds),
        update_s=draw(seconds),
    )


# Layer 3 is sent from 1 to 5, layer 2 (ready at 2) from 5 to 7, layer 1 (ready at 10) from 10 to 13.
BY_HAND = Iteration.layer_wise(
    forward_s=[1, 2, 3], backward_s=[8, 1, 1], all_reduce_s=[3, 2, 4], read_s=5, copy_s=6, update_s=0.5
)


def test_the_recursion_by_hand() -> None:
    assert all_reduce_spans_s(BY_HAND) == [(1, 5), (5, 7), (10, 13)]
    assert exposed_all_reduce_s(BY_HAND) == 3


def test_the_equations_by_hand() -> None:
    assert sgd_time_s(BY_HAND) == 5 + 6 + 6 + 10 + 0.5
    assert naive_time_s(BY_HAND) == 27.5 + 9
    assert prefetched_time_s(BY_HAND) == 16.5 + 9
    assert overlapped_time_s(BY_HAND) == wait_free_time_s(BY_HAND) == 16.5 + 3
    assert overlapped_time_s(BY_HAND, Prefetch.PIPELINED, is_printed=True) == 6 + 1 + 0 + 3 + 0.5


def test_the_steady_iterations_by_hand() -> None:
    slow = replace(BY_HAND, read_s=30)
    assert [steady_time_s(slow, one, Prefetch.PIPELINED) for one in Strategy] == [61.5, 31.5, 30, 30]
    assert [steady_time_s(slow, one, Prefetch.SINGLE) for one in Strategy] == [61.5, 36, 36, 36]


def test_input_binds_as_a_sum_with_one_thread_and_as_a_maximum_with_two() -> None:
    assert input_bound_s(BY_HAND, Prefetch.SINGLE) == 11
    assert input_bound_s(BY_HAND, Prefetch.PIPELINED) == 6


@given(iterations(), prefetches)
def test_equation_4_as_corrected_is_equation_5(iteration: Iteration, prefetch: Prefetch) -> None:
    assert overlapped_time_s(iteration, prefetch) == pytest.approx(wait_free_time_s(iteration, prefetch))


@given(iterations())
def test_equation_4_as_printed_forgets_the_backward_pass(iteration: Iteration) -> None:
    assert overlapped_time_s(iteration, is_printed=True) <= overlapped_time_s(iteration) * (1 + 1e-12)


def test_equation_4_as_printed_can_be_less_than_computation_alone() -> None:
    assert overlapped_time_s(BY_HAND, Prefetch.PIPELINED, is_printed=True) < BY_HAND.computation_s


@given(iterations())
def test_what_is_exposed_is_at_most_the_communication_and_at_least_what_exceeds_the_backward(
    iteration: Iteration,
) -> None:
    exposed_s = exposed_all_reduce_s(iteration)
    assert 0 <= exposed_s <= iteration.all_reduce_s + 1e-9
    assert exposed_s >= iteration.all_reduce_s - sum(iteration.backward_s) - 1e-9


@given(iterations(), prefetches)
def test_each_overlap_helps(iteration: Iteration, prefetch: Prefetch) -> None:
    naive, cntk, mxnet, caffe_mpi = (steady_time_s(iteration, one, prefetch) for one in Strategy)
    slack = 1 + 1e-12
    assert caffe_mpi <= mxnet * slack <= cntk * slack**2 <= naive * slack**3
    assert naive == pytest.approx(naive_time_s(iteration))
    assert caffe_mpi == pytest.approx(wait_free_time_s(iteration, prefetch))


@given(iterations())
def test_one_thread_that_fetches_is_never_faster_than_two(iteration: Iteration) -> None:
    for strategy in Strategy:
        two_s = steady_time_s(iteration, strategy, Prefetch.PIPELINED)
        assert two_s <= steady_time_s(iteration, strategy, Prefetch.SINGLE) * (1 + 1e-12)


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=8))
def test_the_recursion_is_that_of_the_osf_model_from_the_start_of_the_last_layers_backward(
    layers: list[tuple[float, float]],
) -> None:
    backward_s, sizes = zip(*layers, strict=True)
    iteration = Iteration.layer_wise(forward_s=[0.0] * len(layers), backward_s=backward_s, all_reduce_s=sizes)
    update_s = unfused_update_time_s(sizes, backward_s, Affine(startup_s=0, per_byte_s=1))
    assert sum(backward_s) + exposed_all_reduce_s(iteration) == pytest.approx(backward_s[-1] + update_s)


@given(iterations())
def test_one_all_reduce_of_everything_hides_nothing(iteration: Iteration) -> None:
    every = tuple(range(len(iteration.forward_s)))
    fused = replace(iteration, all_reduces=(AllReduce(duration_s=iteration.all_reduce_s, layers=every),))
    assert exposed_all_reduce_s(fused) == pytest.approx(iteration.all_reduce_s)


def test_a_buffer_that_waits_starts_later() -> None:
    waiting = replace(BY_HAND, all_reduces=(AllReduce(duration_s=2, layers=(0, 1, 2), lag_s=0.25),))
    assert all_reduce_spans_s(waiting) == [(10.25, 12.25)]
    assert overlapped_time_s(waiting) == wait_free_time_s(waiting) == 16.5 + 2.25


@given(tensors(max_size=8, min_bytes=1), affine_costs, st.sampled_from(Wait), timeouts_s, st.data())
def test_fused_groups_are_sent_as_the_channel_of_the_fusion_model_sends_them(
    drawn: Tensors, cost: Affine, wait: Wait, timeout_s: float, data: st.DataObject
) -> None:
    num = len(drawn.ready_s)
    ends = (*sorted(data.draw(st.sets(st.integers(0, num - 2)))), num - 1) if num > 1 else (0,)
    plan = schedule(ends, drawn.ready_s, drawn.size_bytes, cost, wait=wait, timeout_s=timeout_s)
    # A wait that holds the channel is part of the transfer; one that does not comes before it.
    held_s, lag_s = (plan.wait_s, 0 * plan.wait_s) if wait is Wait.PAPER else (0 * plan.wait_s, plan.wait_s)
    iteration = Iteration(
        forward_s=(0.0,) * num,
        backward_s=tuple(np.diff(drawn.ready_s, prepend=0)[::-1].tolist()),
        all_reduces=tuple(
            AllReduce(
                duration_s=float(duration), layers=tuple(num - 1 - one for one in range(begin, end + 1)), lag_s=lag
            )
            for begin, end, duration, lag in zip(
                (0, *(end + 1 for end in ends)), ends, plan.end_s - plan.start_s + held_s, lag_s.tolist(), strict=False
            )
        ),
    )
    assert [end for _, end in all_reduce_spans_s(iteration)] == pytest.approx(plan.end_s.tolist())


def test_layers_without_parameters_send_nothing() -> None:
    silent = Iteration.layer_wise(forward_s=[1, 1], backward_s=[2, 3], all_reduce_s=[0, 0])
    assert silent.all_reduces == ()
    assert exposed_all_reduce_s(silent) == 0
    assert overlapped_time_s(silent) == wait_free_time_s(silent) == 7


def test_equation_6_is_linear_where_all_is_hidden_and_drops_with_what_devices_share() -> None:
    one = Iteration(forward_s=(2,), backward_s=(4,), read_s=3)
    assert speed_up(one, one, num_devices=4) == 4
    assert speed_up(one, replace(one, read_s=4 * 3), num_devices=4) == pytest.approx(4 * 6 / 12)  # one disk for all
    exposed = replace(one, all_reduces=(AllReduce(duration_s=2, layers=(0,)),))
    assert speed_up(one, exposed, num_devices=4) == pytest.approx(4 * 6 / 8)


@given(iterations(), st.integers(2, 64))
def test_equal_reading_never_speeds_up_beyond_the_number_of_devices(iteration: Iteration, num_devices: int) -> None:
    one = replace(iteration, all_reduces=())
    if wait_free_time_s(one):
        assert speed_up(one, iteration, num_devices=num_devices) <= num_devices * (1 + 1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"forward_s": ()}, "of one at least, not 0, 3 and 0"),
        ({"backward_s": (1.0,)}, "not 3, 1 and 0"),
        ({"names": ("a",)}, "not 3, 3 and 1"),
        ({"read_s": -1.0}, "read_s must be finite and >= 0, not -1"),
        ({"forward_s": (1.0, float("nan"), 1.0)}, "forward_s of layer 1 must be finite and >= 0, not nan"),
        ({"all_reduces": (AllReduce(duration_s=-2, layers=(0,), name="x"),)}, "duration_s of 'x'.*not -2"),
        ({"all_reduces": (AllReduce(duration_s=1, layers=(3,), name="x"),)}, r"'x' carries layers \(3,\).*0 to 2"),
        ({"all_reduces": (AllReduce(duration_s=1, layers=(), name="x"),)}, r"'x' carries layers \(\)"),
        (
            {
                "all_reduces": (
                    AllReduce(duration_s=1, layers=(0, 1), name="x"),
                    AllReduce(duration_s=1, layers=(2,), name="y"),
                )
            },
            "'x' waits for layer 0 and stands before 'y', which waits for layer 2.*ready order",
        ),
    ],
)
def test_impossible_iterations_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        replace(BY_HAND, **changes)  # type: ignore[arg-type]


def test_layer_wise_times_must_be_of_the_same_layers() -> None:
    with pytest.raises(ModelError, match="all_reduce_s has 1 layers, forward_s has 2"):
        Iteration.layer_wise(forward_s=[1, 2], backward_s=[1, 2], all_reduce_s=[1])
