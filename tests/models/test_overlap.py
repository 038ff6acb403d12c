import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Tensors, affine_costs, in_the_papers_order, log_linear_costs, tensors

from planner import zoo
from planner.channel import schedule
from planner.cost import Affine, TransferCost, Wait
from planner.dnn import Dnn
from planner.models.data_parallel import csf, scaling_factor
from planner.solvers.fusion import unfused
from tests.referee.equations import osf, unfused_update_time_s

seconds = st.floats(0.01, 100)


@given(tensors(max_size=8), affine_costs | log_linear_costs)
def test_equation_8_is_a_channel_that_serves_gradients_as_they_get_ready(drawn: Tensors, cost: TransferCost) -> None:
    size_bytes, backward_s = in_the_papers_order(drawn)
    plan = schedule(unfused(len(size_bytes)), drawn.ready_s, drawn.size_bytes, cost, wait=Wait.NONE)
    found = unfused_update_time_s(size_bytes, backward_s, cost)
    assert found == pytest.approx(plan.finish_s - drawn.ready_s[0])


def test_equation_8_by_hand() -> None:
    # Layer 3 is sent from 0 to 4, layer 2 (ready at 1) from 4 to 6, layer 1 (ready at 9) from 9 to 12.
    cost = Affine(startup_s=1, per_byte_s=1)
    assert unfused_update_time_s([2, 1, 3], [8, 1, 7], cost) == pytest.approx(12)


def test_one_layer_is_sent_at_once() -> None:
    assert unfused_update_time_s([4], [9], Affine(startup_s=1, per_byte_s=2)) == pytest.approx(9)


def test_scaling_factor_of_the_papers_example() -> None:
    assert scaling_factor(one_worker_s=9 * 3600, many_workers_s=1.25 * 3600, num_workers=8) == pytest.approx(0.9)


@given(seconds, seconds)
def test_without_overlap_both_scaling_factors_agree(computation_s: float, communication_s: float) -> None:
    found = osf(computation_s=computation_s, update_s=communication_s, overlap_s=0)
    assert found == pytest.approx(csf(computation_s=computation_s, communication_s=communication_s))
    assert 0 < found < 1


@given(seconds, seconds)
def test_communication_that_is_hidden_scales_perfectly(computation_s: float, overlap_s: float) -> None:
    assert osf(computation_s=computation_s, update_s=overlap_s, overlap_s=overlap_s) == pytest.approx(1)


@given(seconds, seconds, seconds, st.integers(1, 99))
def test_scaling_factors_compare_one_workers_time_with_everyones(
    forward_s: float, overlap_s: float, exposed_s: float, num_workers: int
) -> None:
    computation_s = forward_s + overlap_s
    found = osf(computation_s=computation_s, update_s=overlap_s + exposed_s, overlap_s=overlap_s)
    job = scaling_factor(
        one_worker_s=num_workers * computation_s, many_workers_s=computation_s + exposed_s, num_workers=num_workers
    )
    assert found == pytest.approx(job)


def papers_layers(dnn: Dnn) -> tuple[list[float], list[float]]:
    """Return D in numbers and t_b in multiply-adds of a network's layers with weights (eqs. 4 to 6)."""
    layers = [layer for layer in dnn.layers if layer.num_weights]
    return [float(layer.num_trainable) for layer in layers], [2.0 * layer.num_multiply_adds for layer in layers]


def test_a_quarter_for_vgg16_implies_0_709_after_its_head_is_replaced() -> None:
    size, backward = papers_layers(zoo.build("vgg16"))
    computation, overlap = 1.5 * sum(backward), sum(backward[:-1])
    # 1/4 = comp / (comp + update - overlap), and the channel is never idle: update is the cost of all bytes.
    cost = Affine(startup_s=0, per_byte_s=(3 * computation + overlap) / sum(size))
    update = unfused_update_time_s(size, backward, cost)
    assert osf(computation_s=computation, update_s=update, overlap_s=overlap) == pytest.approx(0.25)
    size, backward = papers_layers(zoo.build("vgg16-replaced-head"))
    # Computation is taken as unchanged: the new head saves 0.6 % of it.
    in_one = csf(computation_s=computation, communication_s=cost.per_byte_s * sum(size))
    assert in_one == pytest.approx(0.709, abs=5e-4)
    unfused_update = unfused_update_time_s(size, backward, cost)
    apart = osf(computation_s=1.5 * sum(backward), update_s=unfused_update, overlap_s=sum(backward[:-1]))
    assert 0.97 <= apart <= 1
