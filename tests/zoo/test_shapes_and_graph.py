"""Activation shapes against known ones, and properties of every graph; transformers have tests of their own."""

from math import prod

import pytest

from planner import zoo
from planner.dnn import OPERATOR_KINDS, Dnn, Layer

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
    ("resnext50-32x4d", "layer2.0.conv1", (256, 56, 56)),
    ("resnext50-32x4d", "layer2.0.conv2", (256, 28, 28)),  # the stride is on the 3x3 with groups
    ("densenet121", "denseblock1.denselayer6.concat", (256, 56, 56)),
    ("densenet121", "transition3.pool", (512, 7, 7)),
    ("densenet169", "relu5", (1664, 7, 7)),
    ("inception-v3", "maxpool2", (192, 35, 35)),  # Table 1 of its paper
    ("inception-v3", "Mixed_5d.concat", (288, 35, 35)),
    ("inception-v3", "Mixed_6e.concat", (768, 17, 17)),
    ("inception-v3", "Mixed_7a.concat", (1280, 8, 8)),
    ("inception-v3", "Mixed_7c.concat", (2048, 8, 8)),
    ("inception-v3-aux", "AuxLogits.conv1.relu", (768, 1, 1)),
    ("mobilenet-v2", "block6.2.add", (160, 7, 7)),
    ("mobilenet-v2", "conv2.relu6", (1280, 7, 7)),
    ("mobilenet-v3-large", "block12.se.reduce", (168, 1, 1)),
    ("mobilenet-v3-large", "block14.project", (160, 7, 7)),
    ("efficientnet-b0", "block5.0.depthwise", (480, 14, 14)),
    ("efficientnet-b0", "block2.0.se.reduce", (4, 1, 1)),
    ("efficientnet-b7", "conv1", (64, 300, 300)),
    ("efficientnet-b7", "conv2", (2560, 19, 19)),
    ("convnext-tiny", "stage1.0.up", (384, 56, 56)),
    ("convnext-base", "stage4.2.add", (1024, 7, 7)),
    ("swin-t", "stage1.0.attention.scores", (3 * 49, 56 * 56, 1)),
    ("swin-t", "merge4.patches", (1536, 7, 7)),
    ("swin-b", "norm", (1024, 7, 7)),
    ("mixer-b16", "block0.tokens.up", (384, 768, 1)),
    ("mixer-b16", "block11.add2", (768, 196, 1)),
    ("unet", "down5.relu2", (1024, 28, 28)),  # figure 1 of its paper
    ("unet", "up4.concat", (1024, 56, 56)),
    ("unet", "up1.concat", (128, 392, 392)),
    ("unet", "classes", (2, 388, 388)),
    ("lstm-lm", "lstm2.input", (6000, 35, 1)),
    ("lstm-lm", "logits", (10_000, 35, 1)),
    ("adam-mnist", "conv2", (60, 8, 8)),
    ("adam-mnist", "flatten", (960,)),
    ("adam-imagenet22k", "conv2", (256, 27, 27)),
    ("adam-imagenet22k", "flatten", (21600,)),
    *(("googlenet", f"inception_{module}/output", shape) for module, shape in INCEPTION_OUTPUTS.items()),
]
IN_PLACE_KINDS = {"activation", "add", "flatten", "softmax", "copy"}
STORED_ACTIVATIONS = ("silu", "gelu", "hard_swish")  # which need their input, and the next layer what they put out
DEPTHWISE = {"mobilenet-v2": 17, "mobilenet-v3-large": 15, "efficientnet-b0": 16, "convnext-tiny": 18}


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
    named = {"googlenet-aux": {"loss1/classifier", "loss2/classifier"}, "inception-v3-aux": {"AuxLogits.fc"}}
    auxiliary = named.get(dnn.name, set())
    assert {name for name, degree in dnn.graph.out_degree() if degree == 0} == {dnn.layers[-1].name} | auxiliary
    assert [name for name, degree in dnn.graph.in_degree() if degree == 0] == [dnn.layers[0].name] == ["input"]


def test_order_of_definition_is_already_topological(dnn: Dnn) -> None:
    assert [layer.name for layer in dnn.layers] == list(dnn.graph)


def test_multiply_adds_are_those_of_weights_at_every_position_and_of_attention(dnn: Dnn) -> None:
    for layer in dnn.layers:
        match layer.kind:
            case "attention":
                assert not layer.tensors
                assert layer.num_multiply_adds == layer.operators[0].num_multiply_adds > 0
            case "convolution" | "fully_connected" | "matmul" | "recurrent":
                read = layer_of(dnn, dnn.inputs_of(layer.name)[0]).output_shape
                positions = prod(layer.output_shape[1:])
                if layer.kind == "convolution" and layer.window is None and not layer.name.startswith("Mixed_"):
                    assert layer.name.startswith("up")  # of a U-Net: weights are used at the positions of the input
                    positions = prod(read[1:])
                assert layer.num_multiply_adds == layer.num_weights * positions > 0
            case "embedding":
                assert (layer.num_multiply_adds, layer.num_weights > 0) == (0, True)
            case _:
                assert layer.num_multiply_adds == 0
                assert not layer.num_weights or layer.name.endswith(".position_bias")


def test_the_shape_of_every_layer_follows_from_those_that_it_reads(dnn: Dnn) -> None:  # noqa: PLR0912  # a branch a kind
    for layer in dnn.layers[1:]:
        read = [layer_of(dnn, name).output_shape for name in dnn.inputs_of(layer.name)]
        shape, first = layer.output_shape, read[0]
        assert len(read) == 1 or layer.kind in ("add", "multiply", "concatenate", "attention")
        match layer.kind:
            case "activation" | "batch_norm" | "norm" | "dropout" | "softmax":
                assert shape == first
            case "add":
                assert set(read) == {shape}
            case "multiply":
                assert shape == first
                assert read[1:] in ([], [(shape[0], 1, 1)])
            case "concatenate":
                assert shape == (sum(one[0] for one in read), *first[1:])
                assert {one[1:] for one in read} == {first[1:]}
            case "flatten":
                assert prod(shape) == prod(first)
            case "copy":
                assert prod(shape) == prod(first) or (layer.name.endswith(".crop") and shape[0] == first[0])
            case "matmul" | "embedding" | "recurrent":
                assert shape[1:] == first[1:]
            case "pooling" | "convolution" if layer.window is not None:
                window = layer.window
                assert layer.kind == "convolution" or shape[0] == first[0]
                for size, entered in zip(shape[1:], first[1:], strict=True):
                    span = entered + 2 * window.padding - window.kernel
                    assert size in (span // window.stride + 1, -(-span // window.stride) + 1)  # Caffe's pools round up
            case "pooling":
                assert shape == (first[0], 1, 1)
            case "convolution" if layer.name.startswith("up"):
                assert shape[1:] == (2 * first[1], 2 * first[2])
            case "convolution":
                assert shape[1:] == first[1:]  # 1x7, 7x1, ...: padded
            case "fully_connected":
                assert (len(shape), len(first)) == (1, 1)
            case "attention":
                operator = layer.operators[0]
                assert prod(shape) == operator.written_elements
                assert operator.read_elements <= sum(map(prod, read))
            case _:
                pytest.fail(f"{layer.name} is a {layer.kind}")


def test_the_groups_of_a_convolution_follow_from_its_window_and_its_work(dnn: Dnn) -> None:
    depthwise = 0
    for layer in dnn.layers:
        if layer.kind == "convolution" and layer.window is not None:
            channels = layer_of(dnn, dnn.inputs_of(layer.name)[0]).output_shape[0]
            inner, rest = divmod(layer.num_multiply_adds, layer.num_output_elements)
            groups, broken = divmod(channels * layer.window.kernel**2, inner)
            assert (rest, broken, channels % groups, layer.output_shape[0] % groups) == (0, 0, 0, 0)
            assert groups in (1, 32, channels)
            depthwise += groups == channels > 3
    assert depthwise == DEPTHWISE.get(dnn.name, depthwise)


def test_operators_that_are_given_are_the_work_of_their_layer(dnn: Dnn) -> None:
    for layer in dnn.layers:
        if not layer.operators:
            continue
        assert sum(operator.num_multiply_adds for operator in layer.operators) == layer.num_multiply_adds
        for operator in layer.operators:
            product = operator.product
            assert operator.kind in OPERATOR_KINDS
            assert operator.weight_elements == layer.num_trainable
            assert operator.read_elements >= 0 < operator.written_elements
            if product is not None:
                count = product.rows * product.inner * product.columns * product.count
                assert count == operator.num_multiply_adds


def test_layers_that_overwrite_their_input_keep_its_size_and_store_nothing(dnn: Dnn) -> None:
    for layer in dnn.layers:
        is_stored = layer.kind == "activation" and layer.name.endswith((*STORED_ACTIVATIONS, "se.activation", "gate"))
        if not is_stored:  # inside of squeeze-and-excitation both kinds of activations stand
            assert layer.is_in_place == (layer.kind in IN_PLACE_KINDS)
        if layer.is_in_place:
            sizes = {layer_of(dnn, name).num_output_elements for name in dnn.inputs_of(layer.name)}
            assert sizes == {layer.num_output_elements} or layer.name.endswith(".crop")
            assert layer.num_stored_elements == 0


def test_tensor_names_are_unique_and_say_their_layer(dnn: Dnn) -> None:
    tensors = [(layer.name, tensor.name) for layer in dnn.layers for tensor in layer.tensors]
    assert len({tensor for _, tensor in tensors}) == len(tensors)
    assert all(tensor.startswith(f"{layer}.") for layer, tensor in tensors)


def test_every_network_names_its_source_its_data_set_and_itself(dnn: Dnn) -> None:
    others = {"adam-mnist": 60_000, "adam-imagenet22k": 15_000_000, "unet": 30}
    samples = {**others, "lstm-lm": 26_542, "lstm-lm-medium": 26_542}.get(dnn.name, 1_281_167)
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


def test_copies_of_a_block_differ_in_nothing_but_their_names_and_are_entered_at_one_place(dnn: Dnn) -> None:
    position = {layer.name: index for index, layer in enumerate(dnn.layers)}
    end = 0
    for repeat in dnn.repeats:
        assert end <= repeat.first
        copies = set()
        for copy in range(repeat.count):
            first, end = repeat.first + copy * repeat.num_layers, repeat.first + (copy + 1) * repeat.num_layers
            places = [[position[name] - first for name in dnn.inputs_of(one.name)] for one in dnn.layers[first:end]]
            assert (
                min(min(one) for one in places) == -1 or dnn.name == "inception-v3-aux"
            )  # whose classifier is between
            facts = [
                (one.kind, one.output_shape, one.num_multiply_adds, one.num_trainable) for one in dnn.layers[first:end]
            ]
            copies.add(str((facts, places)))
            for one in dnn.layers[first : end - 1]:  # what leaves is what its last layer puts out
                assert max(position[reader] for reader in dnn.graph.successors(one.name)) < end
        assert len(copies) == 1


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("efficientnet-b7", 55),
        ("mobilenet-v2", 17),
        ("convnext-tiny", 18),
        ("densenet121", 58),
        ("swin-t", 12),
        ("mixer-b16", 12),
    ],
)
def test_blocks_stay_whole(name: str, count: int) -> None:
    assert sum(repeat.count for repeat in zoo.build(name).repeats) == count


def test_a_layer_of_a_densenet_reads_all_before_it_in_its_block() -> None:
    dnn = zoo.build("densenet121")
    name = "denseblock2.denselayer3"
    assert dnn.inputs_of(f"{name}.concat") == ("denseblock2.denselayer2.concat", f"{name}.conv2")
    assert layer_of(dnn, f"{name}.norm1").output_shape[0] == 128 + 2 * 32


def test_squeeze_and_excitation_scales_the_depthwise_convolutions_output() -> None:
    dnn = zoo.build("efficientnet-b0")
    assert dnn.inputs_of("block1.0.se.multiply") == ("block1.0.depthwise.silu", "block1.0.se.gate")
    assert dnn.inputs_of("block1.0.project") == ("block1.0.se.multiply",)


def test_every_second_block_of_a_swin_shifts_its_windows_but_where_one_window_is_all() -> None:
    shifted = [layer.name for layer in zoo.build("swin-t").layers if layer.name.endswith(".shift")]
    assert shifted == [
        f"stage{stage}.{block}.attention.shift" for stage, block in ((1, 1), (2, 1), (3, 1), (3, 3), (3, 5))
    ]
    scores = layer_of(zoo.build("swin-t"), "stage1.0.attention.scores").operators[0]
    assert str(scores.product) == "192 x (49 x 32 x 49)"  # three heads in each of 64 windows


def test_an_lstm_is_one_product_of_all_words_and_one_for_each() -> None:
    dnn = zoo.build("lstm-lm")
    assert dnn.inputs_of("lstm1") == ("lstm1.input",)
    (operator,) = layer_of(dnn, "lstm1").operators
    assert (operator.kind, str(operator.product)) == ("recurrent", "35 x (1 x 1500 x 6000)")
    assert layer_of(dnn, "lstm1.input").num_multiply_adds == operator.num_multiply_adds == 35 * 1500 * 6000
