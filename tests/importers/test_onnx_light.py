"""The nine networks that the onnx package brings, against published totals, the zoo, and sums over their papers' tables."""

from math import prod
from pathlib import Path
from typing import Any

import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

from onnx_graphs import light, saved  # noqa: E402

from planner import zoo  # noqa: E402
from planner.importers.onnx_model import read_onnx  # noqa: E402

NAMES = ["bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet"]
NAMES += ["vgg19", "zfnet512"]


def totals(name: str) -> Any:
    dnn = read_onnx(light(name)).dnn
    return dnn.num_trainable, dnn.num_moving, dnn.num_multiply_adds


@pytest.mark.parametrize("name", NAMES)
def test_every_network_imports_without_a_warning(name: str) -> None:
    found = read_onnx(light(name))
    assert found.warnings == ()
    assert found.dtype == "fp32"
    assert [layer.output_shape for layer in found.dnn.layers if layer.kind == "input"] == [(3, 224, 224)]
    assert found.dnn.layers[-1].num_output_elements == 1000
    assert found.facts["element_flop"] > 0
    with_tensors = [layer for layer in found.dnn.layers if layer.kind in ("convolution", "fully_connected")]
    assert all(layer.num_weights and layer.num_multiply_adds for layer in with_tensors)


def test_vgg19_equals_the_zoo_but_for_its_last_softmax() -> None:
    found, known = read_onnx(light("vgg19")).dnn, zoo.build("vgg19")
    assert found.num_trainable == known.num_trainable == 143_667_240
    assert found.num_multiply_adds == known.num_multiply_adds
    assert found.num_stored_elements == known.num_stored_elements + 1000
    plain = ("convolution", "fully_connected", "pooling", "activation", "dropout")
    ours, theirs = ([layer for layer in dnn.layers if layer.kind in plain] for dnn in (found, known))
    for one, two in zip(ours, theirs, strict=True):
        assert (one.kind, one.output_shape, one.window, one.is_in_place) == (
            two.kind,
            two.output_shape,
            two.window,
            two.is_in_place,
        )


def test_resnet50_equals_the_zoo_but_for_the_stride_of_three_bottlenecks() -> None:
    found, known = read_onnx(light("resnet50")).dnn, zoo.build("resnet50")
    assert (found.num_trainable, found.num_moving) == (known.num_trainable, known.num_moving) == (25_557_032, 53_120)
    # The graph halves the image in the 3x3 convolution (version 1.5), the zoo in the 1x1 before it, as the paper does.
    moved = [
        layer for layer in found.layers if layer.kind == "convolution" and layer.window and layer.window.stride == 2
    ][1:]
    # Of every pair of equal stride one is the shortcut.
    wider = [(128, 56), (256, 28), (512, 14)]
    assert len(moved) == 2 * len(wider)
    extra_work = sum(channels * size * size * 2 * channels * 3 // 4 for channels, size in wider)
    assert found.num_multiply_adds == known.num_multiply_adds + extra_work == 4_089_184_256
    # Convolution and batch norm of that 1x1 keep four times as much; the softmax keeps 1000.
    extra_elements = sum(2 * channels * (size * size - (size // 2) ** 2) for channels, size in wider)
    assert found.num_stored_elements == known.num_stored_elements + extra_elements + 1000


def test_inception_v1_equals_the_zoo_where_its_pools_round_up() -> None:
    model = onnx.load(light("inception_v1"))
    assert totals("inception_v1")[0] == zoo.build("googlenet").num_trainable
    rounded_up(model)
    assert read_onnx(saved_here(model)).dnn.num_multiply_adds == zoo.build("googlenet").num_multiply_adds


def test_alexnet_equals_the_published_sums_at_its_own_image_size() -> None:
    # Two towers: A. Krizhevsky et al., NIPS 2012; 60,965,224 parameters, and 724,406,816 multiply-adds for 227 pixels.
    model = onnx.load(light("bvlc_alexnet"))
    assert totals("bvlc_alexnet")[0] == 60_965_224
    for axis in (2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = 227
    assert model.graph.input[0].name == "data_0"
    assert read_onnx(saved_here(model)).dnn.num_multiply_adds == 724_406_816


def test_squeezenet_is_version_1_1() -> None:
    # torchvision, SqueezeNet1_1_Weights: 1,235,496 parameters, 0.349 billion multiply-adds.
    parameters, moving, multiply_adds = totals("squeezenet")
    assert (parameters, moving) == (1_235_496, 0)
    assert round(multiply_adds / 1e9, 3) == 0.349


def test_densenet121_has_the_published_parameters_and_a_second_scale_for_every_norm() -> None:
    # torchvision, DenseNet121_Weights: 7,978,856 parameters, 2.834 billion multiply-adds.
    dnn = read_onnx(light("densenet121")).dnn
    second = sum(layer.num_trainable for layer in dnn.layers if layer.kind in ("mul", "add"))
    norms = sum(layer.num_trainable for layer in dnn.layers if layer.kind == "batch_norm")
    assert second == norms == dnn.num_moving == 83_648
    assert dnn.num_trainable - second == 7_978_856
    assert round(dnn.num_multiply_adds / 1e9, 3) == 2.834


# Convolutions of inception modules: 1x1; 3x3 behind 1x1; two 3x3 behind 1x1; 1x1 behind a pool. S. Ioffe and C. Szegedy,
# ICML 2015, arXiv:1502.03167, Figure 5, but for the last column of 4c and 4d, where the paper has 128.
INCEPTION_V2 = {
    "3a": (28, 64, (64, 64), (64, 96), 32),
    "3b": (28, 64, (64, 96), (64, 96), 64),
    "3c": (28, 0, (128, 160), (64, 96), 0),
    "4a": (14, 224, (64, 96), (96, 128), 128),
    "4b": (14, 192, (96, 128), (96, 128), 128),
    "4c": (14, 160, (128, 160), (128, 160), 96),
    "4d": (14, 96, (128, 192), (160, 192), 96),
    "4e": (14, 0, (128, 192), (192, 256), 0),
    "5a": (7, 352, (192, 320), (160, 224), 128),
    "5b": (7, 352, (192, 320), (192, 224), 128),
}


def test_inception_v2_equals_the_sum_over_the_table_of_its_paper() -> None:
    rows = [(3 * 64 * 49, 112), (64 * 64, 56), (64 * 192 * 9, 56)]  # weights, and the side of the output
    channels, norms = 192, 64 + 64 + 192
    for size, one, (reduce3, conv3), (reduce5, conv5), pool in INCEPTION_V2.values():
        end = size if one else size // 2  # the modules without 1x1 halve the image
        rows += [(channels * one, size), (channels * reduce3, size), (reduce3 * conv3 * 9, end)]
        rows += [(channels * reduce5, size), (reduce5 * conv5 * 9, size), (conv5 * conv5 * 9, end)]
        rows += [(channels * pool, size)]
        norms += one + reduce3 + conv3 + reduce5 + 2 * conv5 + pool
        channels = one + conv3 + conv5 + (pool or channels)
    parameters, moving, multiply_adds = totals("inception_v2")
    assert moving == 2 * norms
    weights = sum(weight for weight, _ in rows) + 1000 * channels
    assert parameters == weights + 1000 + 2 * 2 * norms  # each norm has a second scale and shift
    assert multiply_adds == sum(weight * size * size for weight, size in rows) + 1000 * channels


def test_zfnet512_equals_the_sum_over_its_layers() -> None:
    # Channels and kernels: M. Zeiler and R. Fergus, ECCV 2014, Figure 3 and Table 3 (512, 1024, 512 maps were tried; here
    # 512 each); fully connected ones of 4096 and 1024. Outputs of 109, 25 and 12 pixels: pools round down.
    rows = [(3, 96, 7, 109), (96, 256, 5, 25), (256, 512, 3, 12), (512, 512, 3, 12), (512, 512, 3, 12)]
    rows += [(512, 4096, 6, 1), (4096, 1024, 1, 1), (1024, 1000, 1, 1)]
    parameters, moving, multiply_adds = totals("zfnet512")
    assert (parameters, moving) == (sum((a * k * k + 1) * b for a, b, k, _ in rows), 0)
    assert multiply_adds == sum(a * k * k * b * size * size for a, b, k, size in rows)


def test_shufflenet_equals_the_sum_over_its_units() -> None:
    # X. Zhang et al., CVPR 2018, arXiv:1707.01083, Table 1, in 4 groups, 136, 272 and 544 channels; but the bottleneck has
    # the unit's own width, and the first convolution a bias.
    groups, before = 4, 24
    weights, multiply_adds, norms = 3 * 24 * 9, 3 * 24 * 9 * 112**2, 24
    for channels, units, size in ((136, 4, 28), (272, 8, 14), (544, 4, 7)):
        for unit in range(units):
            width = channels if unit else channels - before
            inner, entry = width, channels if unit else before
            first, depthwise, last = entry * inner // groups, 9 * inner, inner * width // groups
            weights += first + depthwise + last
            multiply_adds += first * (size if unit else 2 * size) ** 2 + (depthwise + last) * size * size
            norms += 2 * inner + width
        before = channels
    head = 544 * 1000
    found = totals("shufflenet")
    assert found == (weights + 24 + 2 * norms + head + 1000, 2 * norms, multiply_adds + head)


@pytest.mark.parametrize("name", NAMES)
def test_stored_elements_are_the_sum_over_what_operators_put_out(name: str) -> None:
    # A second way: from the library's own shapes, without our layers.
    model = onnx.shape_inference.infer_shapes(onnx.load(light(name)))
    shapes = {one.name: [d.dim_value for d in one.type.tensor_type.shape.dim] for one in model.graph.value_info}
    shapes |= {one.name: [d.dim_value for d in one.type.tensor_type.shape.dim] for one in model.graph.output}
    constants = {one.name for one in model.graph.initializer}
    stored = 3 * 224 * 224
    for node in model.graph.node:
        if all(given in constants for given in node.input):
            constants.update(node.output)
        elif node.op_type not in ("Relu", "Reshape", "Sum", "Add", "Flatten"):
            stored += prod(shapes[node.output[0]])
    assert read_onnx(light(name)).dnn.num_stored_elements == stored


def rounded_up(model: Any) -> None:
    for node in model.graph.node:
        strides = [list(one.ints) for one in node.attribute if one.name == "strides"]
        if node.op_type == "MaxPool" and strides == [[2, 2]]:
            node.attribute.append(onnx.helper.make_attribute("ceil_mode", 1))
    model.opset_import[0].version = 10  # the first with ceil_mode
    del model.graph.value_info[:]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def saved_here(model: Any) -> Any:
    return saved(model, Path())


def test_the_table_of_the_documentation_is_what_is_computed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "onnx.md").read_text(encoding="utf-8")
    rows = [[cell.strip(" `") for cell in line.split("|")[1:6]] for line in page.splitlines() if line.startswith("| `")]
    computed = []
    for name in NAMES:
        found = read_onnx(light(name))
        figures = (found.facts["num_operators"], *totals(name))
        computed.append([name, *(f"{figure:,}" for figure in figures)])
    assert rows == computed
