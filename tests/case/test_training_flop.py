from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import zoo
from planner.cases.forms.bsp_server import (
    FLOP_PER_WEIGHT,
    Counting,
    backward_flop,
    counted_weights,
    flop_per_weight,
    forward_flop,
    iteration_flop,
    layer_forward_flop,
    num_biases,
    num_pushes,
)
from planner.errors import ModelError
from planner.zoo.builder import Builder

# The conventions of Table 1, which its text does not give.
PLAIN = Counting()
VGG = Counting(flop_per_output={f"pool{block}": 4 for block in range(1, 6)})
OVERFEAT = Counting(output_pixels={"conv2": 28 * 28})
NO_HEAD = Counting(ignored="downsample", flop_per_output={"maxpool": 9}, layer_flop={"fc": 0})
TYPED_HEAD = replace(NO_HEAD, layer_flop={"fc": 2_049_000})
THIN_INPUTS = {"fc": 512, "layer1.0.conv1": 3}
# Network, convention, forward, weights of the backward pass, pushes beside the variables and in all.
TABLE_1 = [
    ("alexnet", PLAIN, 1_677_577_600, 61_827_776, 3, 19),
    ("overfeat", OVERFEAT, 5_858_398_208, 145_909_792, 4, 20),
    ("vgg11", VGG, 15_224_301_568, 132_851_392, 2, 24),
    ("vgg13", VGG, 22_623_053_824, 133_035_712, 2, None),
    ("vgg16c", VGG, 23_547_897_856, 133_625_536, 2, 34),
    ("vgg16", VGG, 30_946_650_112, 138_344_128, 2, None),
    ("vgg19", VGG, 39_270_246_400, 143_652_544, 2, 40),
    ("resnet18", TYPED_HEAD, 3_592_442_856, 11_506_880, 2, None),
    ("resnet34", NO_HEAD, 7_289_769_984, 21_607_616, 2, None),
    ("resnet50", replace(NO_HEAD, input_channels=THIN_INPUTS), 6_994_333_696, 21_194_112, 2, 269),
    ("resnet101", replace(TYPED_HEAD, input_channels=THIN_INPUTS), 14_420_825_064, 40_134_016, 2, 524),
    ("resnet152", replace(TYPED_HEAD, input_channels=THIN_INPUTS), 21_845_267_432, 55_731_584, 2, 779),
]
counts = st.integers(0, 10**9)


@pytest.mark.parametrize(
    ("name", "counting", "forward", "weights", "_", "__"), TABLE_1, ids=[row[0] for row in TABLE_1]
)
def test_table_1_to_the_last_digit(
    name: str, counting: Counting, forward: int, weights: int, _: int, __: int | None
) -> None:
    dnn = zoo.build(name)
    found = counted_weights(dnn, counting)
    assert forward_flop(dnn, counting) == forward
    assert found == weights
    assert backward_flop(num_weights=found, num_biases=0, per_weight=flop_per_weight(19)) == 85 * weights


@pytest.mark.parametrize(("name", "unexplained", "pushes"), [(row[0], *row[4:]) for row in TABLE_1 if row[5]])
def test_pushes_of_table_1(name: str, unexplained: int, pushes: int) -> None:
    assert num_pushes(zoo.build(name), num_unexplained=unexplained) == pushes


def test_the_34_pushes_of_vgg16c_are_those_of_vgg16d() -> None:
    assert num_pushes(zoo.build("vgg16"), num_unexplained=2) == num_pushes(zoo.build("vgg16c"), num_unexplained=2) == 34


@pytest.mark.parametrize("name", zoo.names())
def test_forward_is_two_flop_a_multiply_add(name: str) -> None:
    dnn = zoo.build(name)
    assert forward_flop(dnn) == 2 * dnn.num_multiply_adds
    assert counted_weights(dnn) == dnn.num_weights
    assert num_biases(dnn) <= dnn.num_trainable - dnn.num_weights  # the rest is batch norm's


def test_the_papers_example_is_768_flop_and_not_576() -> None:
    # Section 4.1: 5 x 5 x 3 samples, two 2 x 2 x 3 kernels, 4 x 4 x 2 outputs of 24 FLOP each.
    net = Builder((3, 5, 5)).conv("conv", 2, kernel=2).build("example", source="section 4.1")
    assert layer_forward_flop(net.layers[1]) == 4 * 4 * 2 * 24 == 768


def test_print_lost_the_width_of_the_output_in_equation_20() -> None:
    layers = {layer.name: layer for layer in zoo.build("vgg16").layers}
    conv, head = layers["conv1_1"], layers["fc8"]
    assert layer_forward_flop(conv, variant="printed") * 224 == layer_forward_flop(conv)
    assert layer_forward_flop(head, variant="printed") == layer_forward_flop(head)
    assert layer_forward_flop(layers["pool1"]) == 0
    printed = forward_flop(zoo.build("alexnet"), Counting(variant="printed"))
    assert printed < 0.2 * 1_677_577_600  # Table 1 has the width


def test_85_is_one_term_of_the_series_less_than_the_texts_20() -> None:
    assert (flop_per_weight(20), flop_per_weight(19)) == (FLOP_PER_WEIGHT, 85) == (89, 85)


@given(counts, counts, st.integers(1, 4096))
def test_a_batch_multiplies_the_forward_pass_and_on_demand_the_backward_pass(
    forward: int, backward: int, batch: int
) -> None:
    once = iteration_flop(forward_flop=forward, backward_flop=backward, batch_size=batch)
    each = iteration_flop(forward_flop=forward, backward_flop=backward, batch_size=batch, backward="per_sample")
    assert each == batch * (forward + backward)
    assert each - once == (batch - 1) * backward


@given(counts, counts)
def test_a_bias_costs_two_flop(weights: int, biases: int) -> None:
    assert backward_flop(num_weights=weights, num_biases=biases) == 89 * weights + 2 * biases


@pytest.mark.parametrize("batch", [0, -1, float("inf"), float("nan")])
def test_an_empty_share_of_the_batch_is_refused(batch: float) -> None:
    with pytest.raises(ModelError, match=f"share of the batch must be finite and > 0, not {batch:g} samples"):
        iteration_flop(forward_flop=1, backward_flop=1, batch_size=batch)


def test_bad_counts_are_refused_with_their_numbers() -> None:
    with pytest.raises(ModelError, match=r"not -3 weights of 89 FLOP and 0 biases of 2"):
        backward_flop(num_weights=-3, num_biases=0)
    with pytest.raises(ModelError, match="at least 1 term, not 0"):
        flop_per_weight(0)
    with pytest.raises(ModelError, match="alexnet has no layer 'pool9'"):
        forward_flop(zoo.build("alexnet"), Counting(flop_per_output={"pool9": 4}))
