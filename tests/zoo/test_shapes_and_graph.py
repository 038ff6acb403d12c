"""Activation shapes against known ones, and properties of every graph; transformers have tests of their own."""

import pytest

from planner import zoo
from planner.dnn import Dnn, Layer

INCEPTION_OUTPUTS = {
    "3a": (256, 28, 28),
    "3b": (480, 28, 28),
    "4a": (512, 14, 14),
    "4b": (512, 14, 14),
    "4c": (512, 14, 14),
    "4d": (528, 14, 14),
    "4e": (832, 14, 14),
    "5a": (832, 7, 7),
    "5b": (1024, 7, 7),
}
SHAPES = [
    ("alexnet", "conv1", (64, 55, 55)),
    ("alexnet", "conv2", (192, 27, 27)),
    ("alexnet", "conv5", (256, 13, 13)),
    ("alexnet", "flatten", (9216,)),
    ("overfeat", "conv1", (96, 56, 56)),
    ("overfeat", "conv2", (256, 24, 24)),
    ("overfeat", "conv5", (1024, 12, 12)),
    ("overfeat", "pool5", (1024, 6, 6)),
    ("vgg16", "conv1_2", (64, 224, 224)),
    ("vgg16", "conv5_3", (512, 14, 14)),
    ("vgg16", "pool5", (512, 7, 7)),
    ("vgg16c", "conv3_3", (256, 56, 56)),
    ("vgg19", "conv5_4", (512, 14, 14)),
    ("vgg16-replaced-head", "conv7", (1000, 7, 7)),
    ("vgg16-replaced-head", "pool7", (1000, 1, 1)),
    ("resnet18", "maxpool", (64, 56, 56)),
    ("resnet34", "layer4.2.add", (512, 7, 7)),
    ("resnet50", "conv1", (64, 112, 112)),
    ("resnet50", "layer1.0.downsample.0", (256, 56, 56)),
    ("resnet50", "layer2.0.conv1", (128, 28, 28)),  # the stride is on the first 1x1
    ("resnet50", "layer4.2.relu", (2048, 7, 7)),
    ("resnet152", "layer3.35.relu", (1024, 14, 14)),
    ("resnet152", "avgpool", (2048, 1, 1)),
    ("googlenet", "pool2/3x3_s2", (192, 28, 28)),
    ("googlenet", "pool5/7x7_s1", (1024, 1, 1)),
    ("googlenet-aux", "loss1/ave_pool", (512, 4, 4)),
    ("googlenet-aux", "loss2/ave_pool", (528, 4, 4)),
    ("adam-mnist", "conv2", (60, 8, 8)),
    ("adam-mnist", "flatten", (960,)),
    ("adam-imagenet22k", "conv2", (256, 27, 27)),
    ("adam-imagenet22k", "flatten", (21600,)),
    *(("googlenet", f"inception_{module}/output", shape) for module, shape in INCEPTION_OUTPUTS.items()),
]
IN_PLACE_KINDS = {"activation", "add", "flatten"}


def layer_of(dnn: Dnn, name: str) -> Layer:
    return next(layer for layer in dnn.layers if layer.name == name)


@pytest.fixture(scope="module", params=zoo.layered_names())
def dnn(request: pytest.FixtureRequest) -> Dnn:
    return zoo.build(request.param)


@pytest.mark.parametrize(("name", "layer", "shape"), SHAPES)
def test_output_shape_of_a_layer_is_the_known_one(name: str, layer: str, shape: tuple[int, ...]) -> None:
    assert layer_of(zoo.build(name), layer).output_shape == shape


def test_every_edge_carries_what_its_source_puts_out(dnn: Dnn) -> None:
    carried = {layer.name: layer.num_output_elements for layer in dnn.layers}
    for (source, _), edge in dnn.graph.edges.items():
        assert edge["num_elements"] == carried[source]


def test_every_layer_but_the_classifiers_is_read_and_every_layer_but_the_input_reads(dnn: Dnn) -> None:
    auxiliary = {"loss1/classifier", "loss2/classifier"} if dnn.name == "googlenet-aux" else set()
    assert {name for name, degree in dnn.graph.out_degree() if degree == 0} == {dnn.layers[-1].name} | auxiliary
    assert [name for name, degree in dnn.graph.in_degree() if degree == 0] == [dnn.layers[0].name] == ["input"]


def test_order_of_definition_is_already_topological(dnn: Dnn) -> None:
    assert [layer.name for layer in dnn.layers] == list(dnn.graph)


def test_only_layers_with_weights_count_multiply_adds(dnn: Dnn) -> None:
    for layer in dnn.layers:
        positions = layer.output_shape[1] * layer.output_shape[2] if layer.kind == "convolution" else 1
        assert layer.num_multiply_adds == layer.num_weights * positions


def test_layers_that_overwrite_their_input_keep_its_size_and_store_nothing(dnn: Dnn) -> None:
    for layer in dnn.layers:
        assert layer.is_in_place == (layer.kind in IN_PLACE_KINDS)
        if layer.is_in_place:
            sizes = {layer_of(dnn, name).num_output_elements for name in dnn.inputs_of(layer.name)}
            assert sizes == {layer.num_output_elements}
            assert layer.num_stored_elements == 0


def test_tensor_names_are_unique_and_say_their_layer(dnn: Dnn) -> None:
    tensors = [(layer.name, tensor.name) for layer in dnn.layers for tensor in layer.tensors]
    assert len({tensor for _, tensor in tensors}) == len(tensors)
    assert all(tensor.startswith(f"{layer}.") for layer, tensor in tensors)


def test_every_network_names_its_source_its_data_set_and_itself(dnn: Dnn) -> None:
    samples = {"adam-mnist": 60_000, "adam-imagenet22k": 15_000_000}.get(dnn.name, 1_281_167)
    assert dnn.name in zoo.names()
    assert dnn.source
    assert dnn.dataset_samples == samples


def test_a_residual_block_joins_its_main_path_and_its_shortcut() -> None:
    dnn = zoo.build("resnet50")
    assert dnn.inputs_of("layer1.0.add") == ("layer1.0.bn3", "layer1.0.downsample.1")
    assert dnn.inputs_of("layer1.1.add") == ("layer1.1.bn3", "layer1.0.relu")


def test_an_inception_module_joins_four_branches_in_the_order_of_the_paper() -> None:
    branches = ("relu_1x1", "relu_3x3", "relu_5x5", "relu_pool_proj")
    assert zoo.build("googlenet").inputs_of("inception_4b/output") == tuple(
        f"inception_4b/{branch}" for branch in branches
    )
