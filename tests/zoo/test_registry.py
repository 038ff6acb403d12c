"""Names, aliases and laziness of the zoo."""

import subprocess
import sys

import pytest

from planner import zoo
from planner.errors import SpecError
from planner.zoo.convolutional import densenet, resnet
from planner.zoo.depthwise import efficientnet


def test_names_are_sorted_and_each_builds_a_network_of_that_name() -> None:
    assert list(zoo.names()) == sorted(set(zoo.names()))
    assert [zoo.build(name).name for name in zoo.names()] == list(zoo.names())


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("vgg11a", "vgg11"),
        ("vgg13b", "vgg13"),
        ("vgg16d", "vgg16"),
        ("vgg19e", "vgg19"),
        ("VGG16D", "vgg16"),
        ("ResNet50", "resnet50"),
        ("Inception-v1", "googlenet"),
        ("MobileNetV2", "mobilenet-v2"),
        ("mobilenet_v3_large", "mobilenet-v3-large"),
        ("EfficientNet-B7", "efficientnet-b7"),
        ("inception_v3", "inception-v3"),
        ("resnext50_32x4d", "resnext50-32x4d"),
        ("resnext50", "resnext50-32x4d"),
        ("DenseNet-121", "densenet121"),
        ("convnext_tiny", "convnext-tiny"),
        ("swin_t", "swin-t"),
        ("Swin-Base", "swin-b"),
        ("Mixer_B16", "mixer-b16"),
        ("U-Net", "unet"),
        ("lstm-lm-large", "lstm-lm"),
    ],
)
def test_an_alias_in_any_case_means_its_network(alias: str, name: str) -> None:
    assert zoo.build(alias).name == name


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("resnet51", "resnet50"), ("vgg61x", "vgg16"), ("GoogleNet1", "googlenet")]
)
def test_an_unknown_name_is_refused_and_the_nearest_suggested(wrong: str, nearest: str) -> None:
    with pytest.raises(SpecError, match=f"'{wrong}' is not a known network of the zoo. Did you mean .*'{nearest}'"):
        zoo.build(wrong)


def test_a_name_like_no_other_is_told_what_lists_all_there_are() -> None:
    with pytest.raises(
        SpecError,
        match=r"known network of the zoo\. See `planner show dnn` for all 1\d\d, such as '.*'\. Others are read from files",
    ):
        zoo.build("??")


def test_a_resnet_of_another_depth_is_refused() -> None:
    with pytest.raises(ValueError, match="no ResNet of depth 42; choose one of 18, 34, 50, 101, 152"):
        resnet(42)


def test_a_densenet_or_an_efficientnet_that_was_never_published_is_refused() -> None:
    with pytest.raises(ValueError, match="no DenseNet of depth 122; choose one of 121, 169"):
        densenet(122)
    with pytest.raises(ValueError, match="no EfficientNet-B8; choose one of 0 to 7"):
        efficientnet(8)


def test_importing_the_zoo_builds_nothing_and_loads_no_heavy_library() -> None:
    code = """
import sys
from planner.dnn import Dnn
def refuse(*_args, **_kwargs):
    raise AssertionError("built on import")
Dnn.__init__ = refuse
before = set(sys.modules)
import planner.zoo
added = {name.partition(".")[0] for name in set(sys.modules) - before}
assert not added & {"numpy", "scipy", "networkx", "pydantic", "ortools"}, added
"""
    subprocess.run([sys.executable, "-c", code], check=True)
