"""Totals of the later networks against published ones: parameters exactly, multiply-adds to the last printed digit."""

from typing import NamedTuple

import pytest

from planner import zoo


class Published(NamedTuple):
    """``num_trainable`` as programs name it, and billions of multiply-adds at the network's own input."""

    name: str
    num_trainable: int
    gmac: str
    source: str


# "GFLOPS" and "num_params" of https://docs.pytorch.org/vision/stable/models.html, a page for each network. That of
# EfficientNet-B2 reads 288 x 288 there, hence the paper's figure at 260 x 260.
TORCHVISION = "torchvision"
PUBLISHED = (
    Published("mobilenet-v2", 3_504_872, "0.30", TORCHVISION),
    Published("mobilenet-v3-large", 5_483_032, "0.22", TORCHVISION),
    Published("efficientnet-b0", 5_288_548, "0.39", TORCHVISION),
    Published("efficientnet-b1", 7_794_184, "0.69", TORCHVISION),
    Published("efficientnet-b2", 9_109_994, "1.0", "Table 2 of the paper"),
    Published("efficientnet-b3", 12_233_232, "1.83", TORCHVISION),
    Published("efficientnet-b4", 19_341_616, "4.39", TORCHVISION),
    Published("efficientnet-b5", 30_389_784, "10.27", TORCHVISION),
    Published("efficientnet-b6", 43_040_704, "19.07", TORCHVISION),
    Published("efficientnet-b7", 66_347_960, "37.75", TORCHVISION),
    Published("densenet121", 7_978_856, "2.83", TORCHVISION),
    Published("densenet169", 14_149_480, "3.36", TORCHVISION),
    Published("resnext50-32x4d", 25_028_904, "4.23", TORCHVISION),
    Published("inception-v3", 23_834_568, "5.71", "torchvision without AuxLogits; GFLOPS are those of inference"),
    Published("inception-v3-aux", 27_161_264, "5.72", "torchvision; multiply-adds summed here"),
    Published("convnext-tiny", 28_589_128, "4.46", TORCHVISION),
    Published("convnext-small", 50_223_688, "8.68", TORCHVISION),
    Published("convnext-base", 88_591_464, "15.355", "torchvision, with the digits of its weights' metadata"),
    Published("swin-t", 28_288_354, "4.49", TORCHVISION),
    Published("swin-s", 49_606_258, "8.74", TORCHVISION),
    Published("swin-b", 87_768_224, "15.43", TORCHVISION),
    Published("mixer-b16", 59_880_472, "12.6", "timm, mixer_b16_224: 59.88 million; 12.6 GMACs"),
    Published("unet", 31_030_658, "150.4", "Keras and tf_unet, of figure 1; multiply-adds summed here"),
    # Neither stands in the paper; S. Merity et al., arXiv 1708.02182, Table 1, have 20M and 66M.
    Published("lstm-lm-medium", 19_775_200, "0.464", "2 (4 h (2h + 1)) + 2 V h + V; multiply-adds summed here"),
    Published("lstm-lm", 66_022_000, "1.785", "likewise"),
)
# Millions of parameters and billions of multiply-adds that the papers print; None where they do not.
PAPERS: dict[str, tuple[float | None, float | None]] = {
    "mobilenet-v2": (3.4, 0.300),  # Table 4
    "mobilenet-v3-large": (5.4, 0.219),  # Table 3
    "efficientnet-b0": (5.3, 0.39),  # Table 2, and so on
    "efficientnet-b1": (7.8, 0.70),
    "efficientnet-b2": (9.2, 1.0),
    "efficientnet-b3": (12, 1.8),
    "efficientnet-b4": (19, 4.2),
    "efficientnet-b5": (30, 9.9),
    "efficientnet-b6": (43, 19),
    "efficientnet-b7": (66, 37),
    "resnext50-32x4d": (25.0, 4.2),  # Table 1
    "inception-v3": (25, 5),  # "5 billion multiply-adds [...] less than 25 million parameters", abstract
    "convnext-tiny": (29, 4.5),  # Table 1, and so on
    "convnext-small": (50, 8.7),
    "convnext-base": (89, 15.4),
    "swin-t": (29, 4.5),  # Table 1, and so on
    "swin-s": (50, 8.7),
    "swin-b": (88, 15.4),
    "mixer-b16": (59, None),  # Table 1
    "lstm-lm-medium": (20, None),
    "lstm-lm": (66, None),
}
# Where a paper's figure is further from the network of its own code than its digits and 1 %.
FURTHER = {
    ("mobilenet-v2", 0): 0.032,  # the authors' own list of models has 3.47
    ("mobilenet-v3-large", 0): 0.016,
    ("mobilenet-v3-large", 1): 0.012,
    ("efficientnet-b1", 1): 0.02,
    ("efficientnet-b4", 1): 0.05,
    ("efficientnet-b5", 1): 0.04,
    ("efficientnet-b7", 1): 0.021,
    ("inception-v3", 0): 0.05,
    ("inception-v3", 1): 0.15,
    ("swin-t", 0): 0.03,  # the authors' list of models has 28M
    ("mixer-b16", 0): 0.015,
}


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row.name)
def test_totals_of_a_later_network_are_the_published_ones(row: Published) -> None:
    dnn = zoo.build(row.name)
    num_digits = len(row.gmac.partition(".")[2])
    found = f"{dnn.num_multiply_adds / 1e9:.{num_digits}f}"
    assert (row.name, dnn.num_trainable, found, row.source) == row


@pytest.mark.parametrize("name", PAPERS)
def test_totals_are_the_papers_within_a_hundredth(name: str) -> None:
    dnn = zoo.build(name)
    found = (dnn.num_trainable / 1e6, dnn.num_multiply_adds / 1e9)
    for column, (ours, printed) in enumerate(zip(found, PAPERS[name], strict=True)):
        if printed is not None:
            digits = len(str(printed).partition(".")[2]) if isinstance(printed, float) else 0
            allowed = FURTHER.get((name, column), 0.01)
            assert abs(ours - printed) <= max(allowed * printed, 0.5 * 10**-digits)


def test_what_was_measured_of_batch_norm_is_stored_beside_the_parameters() -> None:
    # Keras' summaries name as many that are not trained (of EfficientNet-B0 7 more, which scale its input).
    assert zoo.build("mobilenet-v2").num_moving == 34_112
    assert zoo.build("efficientnet-b0").num_moving == 42_016
    assert zoo.build("densenet121").num_moving == 83_648
    assert zoo.build("convnext-tiny").num_moving == zoo.build("swin-t").num_moving == 0
