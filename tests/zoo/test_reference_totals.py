"""Totals of the reference networks against published ones: exact, since they follow from shapes alone."""

from typing import NamedTuple

import pytest

from planner import zoo


class Totals(NamedTuple):
    """A row; ``num_trainable_tensors`` counts all trained tensors, so a layer's bias and batch norm, too."""

    name: str
    num_trainable: int
    num_weights: int
    gmac: str  # as printed, to its last digit
    num_weight_layers: int
    num_trainable_tensors: int


REFERENCE = (
    Totals("alexnet", 61_838_248, 61_827_776, "0.8388", 8, 16),
    Totals("overfeat", 145_920_872, 145_909_792, "2.8014", 8, 16),
    Totals("vgg11", 132_863_336, 132_851_392, "7.609", 11, 22),
    Totals("vgg13", 133_047_848, 133_035_712, "11.308", 13, 26),
    Totals("vgg16c", 133_638_952, 133_625_536, "11.771", 16, 32),
    Totals("vgg16", 138_357_544, 138_344_128, "15.470", 16, 32),
    Totals("vgg19", 143_667_240, 143_652_544, "19.632", 19, 38),
    Totals("vgg16-replaced-head", 15_490_344, 15_484_608, "15.385", 15, 30),
    Totals("resnet18", 11_689_512, 11_678_912, "1.814", 21, 62),
    Totals("resnet34", 21_797_672, 21_779_648, "3.664", 37, 110),
    Totals("resnet50", 25_557_032, 25_502_912, "3.858", 54, 161),
    Totals("resnet101", 44_549_160, 44_442_816, "7.570", 105, 314),
    Totals("resnet152", 60_192_808, 60_040_384, "11.282", 156, 467),
)


@pytest.mark.parametrize("row", REFERENCE, ids=lambda row: row.name)
def test_totals_of_a_reference_network_are_met_exactly(row: Totals) -> None:
    dnn = zoo.build(row.name)
    num_digits = len(row.gmac.partition(".")[2])
    assert row == Totals(
        row.name,
        dnn.num_trainable,
        dnn.num_weights,
        f"{dnn.num_multiply_adds / 1e9:.{num_digits}f}",
        dnn.num_weight_layers,
        dnn.num_trainable_tensors,
    )


# Sizes of T. Liu et al., WWW 2022, Table 2, as 32-bit numbers in 2**20 bytes. ResNets are stored with their moving
# statistics. VGG19 is printed as 549 and computes to 548.05, so it is held to one unit. Its column "# Tensors"
# (176, 346, 516, 22, 24) counts something else than tensors with a gradient and is not checked.
@pytest.mark.parametrize(
    ("name", "size_mib"), [("resnet50", 98), ("resnet101", 170), ("resnet152", 230), ("vgg16", 528), ("vgg19", 549)]
)
def test_stored_size_is_the_one_published(name: str, size_mib: int) -> None:
    dnn = zoo.build(name)
    assert (dnn.num_trainable + dnn.num_moving) * 4 / 2**20 == pytest.approx(
        size_mib, abs=1 if name == "vgg19" else 0.5
    )


# Table 3 of the same paper: weights only, of single layers.
@pytest.mark.parametrize(
    ("name", "layer", "size_mib"),
    [
        ("vgg16", "fc6", 392),
        ("vgg16", "fc7", 64),
        ("vgg16", "fc8", 15.6),
        ("vgg16-replaced-head", "conv6", 1),
        ("vgg16-replaced-head", "conv7", 1.95),
    ],
)
def test_size_of_a_layer_of_the_head_is_the_one_published(name: str, layer: str, size_mib: float) -> None:
    (found,) = (candidate for candidate in zoo.build(name).layers if candidate.name == layer)
    assert found.num_weights * 4 / 2**20 == pytest.approx(size_mib, abs=0.03)


@pytest.mark.parametrize(
    ("name", "num_trainable", "num_weight_layers"), [("googlenet", 6_998_552, 58), ("googlenet-aux", 13_378_280, 64)]
)
def test_googlenet_has_the_known_number_of_parameters_without_and_with_auxiliary_classifiers(
    name: str, num_trainable: int, num_weight_layers: int
) -> None:
    dnn = zoo.build(name)
    # Three convolutions in the stem, six in each of nine modules, the classifier; three more in each auxiliary one.
    assert (dnn.num_trainable, dnn.num_weight_layers) == (num_trainable, num_weight_layers)


def test_googlenet_keeps_to_about_the_published_budget_of_multiply_adds() -> None:
    # "1.5 billion multiply-adds", section 1 of the paper: one digit after the point.
    assert zoo.build("googlenet").num_multiply_adds == pytest.approx(1.5e9, rel=0.06)


@pytest.mark.parametrize(
    ("name", "num_connections", "num_stored_weights", "num_weight_layers"),
    [("adam-mnist", 2_501_400, 759_400, 5), ("adam-imagenet22k", 2_021_858_400, 148_311_648, 8)],
)
def test_adam_networks_have_the_reconstructed_connections_and_weights(
    name: str, num_connections: int, num_stored_weights: int, num_weight_layers: int
) -> None:
    dnn = zoo.build(name)
    assert dnn.num_multiply_adds == num_connections
    assert dnn.num_weights == dnn.num_trainable == num_stored_weights
    assert dnn.num_weight_layers == num_weight_layers
