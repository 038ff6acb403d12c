import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Tensors, affine_costs, chain, tensors, timeouts_s

from planner import zoo
from planner.channel import schedule
from planner.cost import Affine, Passes, Profile, Wait
from planner.dnn import Layer, Tensor
from planner.models.data_parallel import Kinds, exposed_s, gradients_of
from tests.referee.exhaustive import all_groupings


def layer(name: str, kind: str = "fully_connected", **elements: int) -> Layer:
    """Return a layer with a tensor for every role that is given."""
    stored = tuple(Tensor(name=f"{name}.{role}", num_elements=count, role=role) for role, count in elements.items())
    return Layer(name=name, kind=kind, output_shape=(1,), tensors=stored)


def profile(backward_s: list[float], update_s: float = 0.0) -> Profile:
    return Profile(forward_s=np.array(backward_s) / 2, backward_s=np.array(backward_s), update_s=update_s)


BLOCK = chain(
    layer("image", "input"),
    layer("conv", "convolution", weight=9, bias=1),
    layer("norm", "batch_norm", scale=2, shift=2, moving=4),
    layer("relu", "activation"),
    layer("head", weight=20, bias=5),
)
BLOCK_PROFILE = profile([0, 8, 4, 2, 1])


def test_gradients_come_in_the_reverse_of_the_forward_order_and_batch_norm_goes_with_its_layer() -> None:
    found = gradients_of(BLOCK, BLOCK_PROFILE, gradient_bytes=4)
    assert found.names == ("head", "conv")
    assert found.size_bytes.tolist() == [100, 56]
    assert found.ready(1) == pytest.approx(np.array([1, 15]))
    assert found.total_bytes == 156


def test_gradients_of_tensors_are_ready_with_their_layer() -> None:
    found = gradients_of(BLOCK, BLOCK_PROFILE, gradient_bytes=2, unit="tensor")
    assert found.names == ("head.bias", "head.weight", "norm.shift", "norm.scale", "conv.bias", "conv.weight")
    assert found.size_bytes.tolist() == [10, 40, 4, 4, 2, 18]
    assert found.ready(1) == pytest.approx(np.array([1, 1, 7, 7, 15, 15]))


def test_batch_norm_with_no_layer_before_it_stands_alone() -> None:
    dnn = chain(layer("norm", "batch_norm", scale=2, shift=2), layer("head", weight=3))
    assert gradients_of(dnn, profile([1, 1]), gradient_bytes=4).names == ("head", "norm")


@pytest.mark.parametrize("unit", ["layer", "tensor"])
@pytest.mark.parametrize(
    ("name", "num_layers", "num_tensors"), [("vgg16", 16, 32), ("resnet50", 54, 161), ("alexnet", 8, 16)]
)
def test_every_byte_of_a_network_is_exchanged_in_ready_order(
    name: str, num_layers: int, num_tensors: int, unit: str
) -> None:
    dnn = zoo.build(name)
    found = gradients_of(dnn, profile([1.0] * len(dnn.layers)), gradient_bytes=4, unit=unit)
    assert found.total_bytes == 4 * dnn.num_trainable
    assert len(found.names) == len(set(found.names)) == (num_layers if unit == "layer" else num_tensors)
    assert (np.diff(found.ready(1)) >= 0).all()
    assert found.ready(1)[-1] <= len(dnn.layers)


kinds = st.sampled_from(["convolution", "batch_norm", "activation", "fully_connected"])


@given(
    st.lists(st.tuples(kinds, st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8), st.sampled_from([2, 4])
)
def test_bytes_and_order_hold_for_any_chain(rows: list[tuple[str, int, int]], gradient_bytes: int) -> None:
    dnn = chain(*(layer(f"l{at}", kind, weight=size, moving=1) for at, (kind, size, _) in enumerate(rows)))
    timed = profile([float(backward_s) for _, _, backward_s in rows])
    for unit in ("layer", "tensor"):
        found = gradients_of(dnn, timed, gradient_bytes=gradient_bytes, unit=unit)
        assert found.total_bytes == gradient_bytes * dnn.num_trainable
        assert (np.diff(found.ready(1)) >= 0).all()


# -- one step ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_microbatches", "last_samples"), [(1, 8), (2, 4), (3, 3), (8, 1), (5, 2)])
def test_only_the_last_micro_batch_one_of_the_larger_ones_hides_communication(
    num_microbatches: int, last_samples: int
) -> None:
    kinds = Kinds(
        forward=Passes.linear([1.0]),
        backward=Passes.linear([6.0]),
        update_s=np.array([0.5]),
        ready=Passes.linear([[2.0, 6.0]]),
        most_at_a_time=np.array([8]),
        num_microbatches=np.array([num_microbatches]),
    )
    shares = np.array([[8]])
    assert kinds.last_samples(shares).tolist() == [[last_samples]]
    computed_s = 8 * (1.0 + 6.0)
    assert kinds.computed_s(shares).tolist() == [[computed_s]]
    assert kinds.ready_s(shares).tolist() == [[computed_s - 4.0 * last_samples, computed_s]]


@given(
    st.integers(0, 5), st.integers(1, 5), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.sampled_from([1, 2, 99]),
    st.integers(0, 5), st.integers(0, 4), st.integers(0, 99),
)  # fmt: skip
def test_the_largest_share_within_a_limit_is_the_largest_that_ends_in_time(
    forward: int, backward: int, parts: list[int], at_a_time: int, tail: int, update: int, limit: int
) -> None:
    """Micro-batches of one, of two and of all samples: there the bound is the share itself, not only above it."""
    ready = backward * np.cumsum(parts) / sum(parts)
    kinds = Kinds(
        forward=Passes.linear([float(forward)]),
        backward=Passes.linear([float(backward)]),
        update_s=np.array([float(update)]),
        ready=Passes.linear(ready[None, :]),
        most_at_a_time=np.array([at_a_time]),
    )
    tail_s = np.array([float(tail * number) for number in range(len(parts), 0, -1)])
    shares = np.arange(1, 99)[:, None]
    sent_s = (kinds.ready_s(shares) + tail_s).max(axis=1) + 0.5
    ended_s = np.maximum(sent_s, kinds.computed_s(shares)[:, 0] + update)
    most = kinds.most_shares_within(np.array([float(limit)]), tail_s[None, :], 0.5)[0, 0]
    in_time = shares[ended_s <= limit + 1e-9, 0]
    assert max(most, 0) >= in_time.max(initial=0)
    # With one sample of two at a time, and with none, the lines of the bound are not reached.
    if at_a_time != 2 or most >= 2:
        assert max(min(most, 98), 0) == in_time.max(initial=0)


def test_a_gradient_of_two_kinds_is_ready_when_the_later_one_has_it() -> None:
    kinds = Kinds(
        forward=Passes.linear([2.0, 3.0]),
        backward=Passes.linear([4.0, 5.0]),
        update_s=np.array([0.5, 0.25]),
        ready=Passes.linear([[0.5, 4.0], [2.0, 4.5]]),
        most_at_a_time=np.array([2, 9]),
    )
    # Four samples in two passes of two take 16 s up to the last backward pass, three at once 9 s.
    assert kinds.ready_s(np.array([[4, 3]])).tolist() == [
        [max(16 + 2 * 0.5, 9 + 3 * 2.0), max(16 + 2 * 4.0, 9 + 3 * 4.5)]
    ]
    assert kinds.ready_s(np.array([[2, 3]])).tolist() == [
        [max(4 + 2 * 0.5, 9 + 3 * 2.0), max(4 + 2 * 4.0, 9 + 3 * 4.5)]
    ]


@given(st.integers(2, 10**6), st.floats(1e-6, 3.0), st.floats(1e-6, 3.0), st.floats(0, 0.7))
def test_rounding_takes_no_sample_from_a_share_that_ends_at_the_limit(
    share: int, forward_s: float, backward_s: float, update_s: float
) -> None:
    kinds = Kinds(
        forward=Passes.linear([forward_s]),
        backward=Passes.linear([backward_s]),
        update_s=np.array([update_s]),
        ready=Passes.linear([[backward_s]]),
        most_at_a_time=np.array([2 * share]),
    )
    limit_s = kinds.computed_s(np.array([[share]]))[0] + update_s
    assert kinds.most_shares_within(limit_s, np.array([[0.0]]), update_s)[0, 0] == share


# -- what is exposed ---------------------------------------------------------------------------------------------------

delays_s = st.sampled_from([0.0, 0.5, 2.0])


@given(
    drawn=tensors(max_size=6),
    cost=affine_costs,
    timeout_s=timeouts_s,
    wait=st.sampled_from(Wait),
    late_s=st.sampled_from([0.0, 1.0, 30.0]),
    negotiate_s=delays_s,
    data=st.data(),
)
def test_what_is_exposed_sums_to_what_comes_after_the_backward_pass(
    *,
    drawn: Tensors,
    cost: Affine,
    timeout_s: float,
    wait: Wait,
    late_s: float,
    negotiate_s: float,
    data: st.DataObject,
) -> None:
    ends = data.draw(st.sampled_from(list(all_groupings(len(drawn.ready_s)))))
    plan = schedule(ends, drawn.ready_s, drawn.size_bytes, cost, wait=wait, timeout_s=timeout_s)
    backward_end_s = float(drawn.ready_s[-1]) + late_s
    found = exposed_s(plan, backward_end_s=backward_end_s, negotiate_s=negotiate_s)
    assert all(seconds >= 0 for seconds in found.values())
    assert sum(found.values()) == pytest.approx(max(0, plan.finish_s - backward_end_s))
    busy_s = np.maximum(plan.end_s, backward_end_s) - np.maximum(plan.start_s, backward_end_s)
    assert found["all_reduce"] + found["negotiate"] == pytest.approx(busy_s.sum())
    coordinated_s = np.minimum(plan.end_s, plan.start_s + negotiate_s)
    exposed_coordination_s = np.maximum(coordinated_s, backward_end_s) - np.maximum(plan.start_s, backward_end_s)
    assert found["negotiate"] == pytest.approx(exposed_coordination_s.sum())


def test_exposed_parts_by_hand() -> None:
    cost = Affine(startup_s=1, per_byte_s=1)
    # Ready at 1 and 5. The first buffer waits from 1 to 5 and is sent from 5 to 9; the second from 9 to 12.
    plan = schedule((0, 1), [1, 5], [3, 2], cost, wait=Wait.PAPER)
    whole = exposed_s(plan, backward_end_s=0, negotiate_s=0.5)
    assert whole == pytest.approx({"misc": 1, "wait": 4, "negotiate": 1, "all_reduce": 6})
    after = exposed_s(plan, backward_end_s=5.25, negotiate_s=0.5)
    assert after == pytest.approx({"misc": 0, "wait": 0, "negotiate": 0.75, "all_reduce": 6})
    hidden = exposed_s(plan, backward_end_s=20, negotiate_s=0.5)
    assert sum(hidden.values()) == 0


def test_an_idle_channel_is_told_apart_from_a_waiting_buffer() -> None:
    plan = schedule((0, 1), [0, 9], [2, 2], Affine(startup_s=0, per_byte_s=1), wait=Wait.EXACT, timeout_s=1)
    # The buffer waits until 1 and is sent until 3; nothing is ready before 9.
    assert exposed_s(plan, backward_end_s=0, negotiate_s=0) == pytest.approx(
        {"wait": 1, "misc": 6, "negotiate": 0, "all_reduce": 4}
    )
