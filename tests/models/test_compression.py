import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cases.forms.gst import ServerNetwork, Workload, evaluate
from planner.errors import ModelError
from planner.models.compression import Compression, optimal_compression, optimal_scale_s
from tests.referee.equations import compressed_time_s

scales = st.floats(1e-4, 1e2)
transfers = st.floats(1e-2, 1e3)
SHARES = np.linspace(0, 0.999, 4000)


def test_the_best_share_is_six_tenths_where_k_is_0_032_of_the_transfer() -> None:
    assert optimal_compression(scale_s=0.32, transfer_s=10).removed == pytest.approx(0.6)
    assert optimal_scale_s(removed=0.6, transfer_s=10) == pytest.approx(0.32)


@given(st.floats(0.01, 0.99), transfers)
def test_a_share_is_the_best_for_exactly_one_k(removed: float, transfer_s: float) -> None:
    scale_s = optimal_scale_s(removed=removed, transfer_s=transfer_s)
    assert optimal_compression(scale_s=scale_s, transfer_s=transfer_s).removed == pytest.approx(removed)
    assert optimal_compression(scale_s=1.01 * scale_s, transfer_s=transfer_s).removed < removed


@given(scales, transfers)
def test_no_share_of_a_fine_grid_is_better_than_the_optimum_and_none_below_the_bound(
    scale_s: float, transfer_s: float
) -> None:
    best = optimal_compression(scale_s=scale_s, transfer_s=transfer_s)
    tried = compressed_time_s(Compression(removed=SHARES, scale_s=scale_s), transfer_s=transfer_s)
    assert best.time_s == pytest.approx(best.bound_s)
    assert best.bound_s <= tried.min() * (1 + 1e-12)
    own = compressed_time_s(Compression(removed=best.removed, scale_s=scale_s), transfer_s=transfer_s)
    assert float(own) == pytest.approx(best.time_s)


@given(scales, transfers)
def test_it_pays_where_the_best_beats_sending_everything_uncompressed(scale_s: float, transfer_s: float) -> None:
    best = optimal_compression(scale_s=scale_s, transfer_s=transfer_s)
    if best.time_s != pytest.approx(transfer_s):
        assert best.pays == (best.time_s < transfer_s)
    assert not best.pays or best.removed > 1 / 3 - 1e-9  # x* = 2/3 is where it just pays


def test_a_slow_compression_removes_nothing_and_does_not_pay() -> None:
    best = optimal_compression(scale_s=1, transfer_s=1)
    assert (best.removed, best.pays) == (0, False)
    assert best.time_s == best.bound_s == 2


def test_the_inverse_square_of_the_share_removed_has_no_interior_optimum() -> None:
    shares = np.linspace(0.01, 1, 1000)
    assert (np.diff(10 * (1 - shares) + 0.32 / shares**2) < 0).all()


def test_the_whole_model_has_its_optimum_there_if_all_of_the_exchange_scales() -> None:
    # One layer, nothing constant: eqs. 10, 15 and 18 are all proportional to the packets.
    work = Workload(size_bytes=np.array([1.5e6]), backward_s=np.array([0.1]), forward_s=0.1)
    net = ServerNetwork(num_workers=4, bandwidth_bytes_per_s=1.5e6, aggregation_s_per_packet=1e-5, delay_mix=0.0)
    plain = float(evaluate(work, net).exposed_s)
    found = evaluate(work, net, compression=Compression(removed=SHARES, scale_s=0.032 * plain))
    assert SHARES[int(np.argmin(found.iteration_time_s))] == pytest.approx(0.6, abs=3e-4)


def test_a_start_up_which_does_not_scale_leaves_less_worth_removing() -> None:
    # 5 s are exposed, of which a base delay of 1 s each way does not scale: A is 3 s.
    work = Workload(size_bytes=np.array([1.5e6]), backward_s=np.array([0.1]), forward_s=0.1)
    net = ServerNetwork(num_workers=4, bandwidth_bytes_per_s=1.5e6, delay_mix=0.0, base_delay_s=1.0)
    found = evaluate(work, net, compression=Compression(removed=SHARES, scale_s=0.032 * 5))
    best = optimal_compression(scale_s=0.032 * 5, transfer_s=3).removed
    assert SHARES[int(np.argmin(found.iteration_time_s))] == pytest.approx(best, abs=3e-4)
    assert best < 0.53


@pytest.mark.parametrize("removed", [-0.1, 1.0, np.nan])
def test_a_share_that_sends_nothing_or_more_than_all_is_refused(removed: float) -> None:
    with pytest.raises(ModelError, match="a share from 0 to below 1"):
        Compression(removed=removed, scale_s=1)


def test_times_without_an_optimum_are_refused() -> None:
    with pytest.raises(ModelError, match="scale_s is -1"):
        Compression(removed=0.5, scale_s=-1)
    for scale_s, transfer_s in ((0, 1), (1, 0)):
        with pytest.raises(ModelError, match="Both must be positive and finite"):
            optimal_compression(scale_s=scale_s, transfer_s=transfer_s)
