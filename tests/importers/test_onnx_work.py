"""Multiply-adds of ONNX operators against slow referees: loops over every output by the operators' definitions."""

from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

from onnx import TensorProto  # noqa: E402
from onnx_graphs import integers, model_of, node, saved, weight  # noqa: E402

from planner.dnn import Product  # noqa: E402
from planner.importers.onnx_model import read_onnx  # noqa: E402

SIZES = st.integers(1, 4)
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def layer_of(folder: Path, *args: Any, **more: Any) -> Any:
    """The last layer of a model that is read without a warning."""
    found = read_onnx(saved(model_of(*args, **more), folder))
    assert found.warnings == ()
    return found.dnn.layers[-1]


def counted(folder: Path, *args: Any, **more: Any) -> Any:
    return layer_of(folder, *args, **more).num_multiply_adds


def pairs_of_convolution(weight_shape: list[int], result: list[int]) -> Any:
    """Visit every output and every weight that it is multiplied by."""
    num_filters, channels, *kernel = weight_shape
    places = product(*map(range, result))
    return sum(
        1 for _ in places for _ in range(num_filters) for _ in range(channels) for _ in product(*map(range, kernel))
    )


@QUICK
@given(data=st.data())
def test_convolutions_of_any_rank_groups_strides_and_dilations(tmp_path: Path, data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    groups, per_group, filters = data.draw(SIZES), data.draw(SIZES), data.draw(SIZES)
    kernel = data.draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank))
    image = data.draw(st.lists(st.integers(4, 6), min_size=rank, max_size=rank))
    strides = data.draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank))
    dilations = data.draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank))
    pads = data.draw(st.lists(st.integers(0, 1), min_size=2 * rank, max_size=2 * rank))
    shape = [groups * filters, per_group, *kernel]
    layer = layer_of(
        tmp_path,
        [node("Conv", "x w", group=groups, strides=strides, dilations=dilations, pads=pads)],
        {"x": ["batch", groups * per_group, *image]},
        {"w": shape},
    )
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    rows = zip(image, pads[:rank], pads[rank:], spans, strides, strict=True)
    result = [len(range(0, size + before + after - span + 1, stride)) for size, before, after, span, stride in rows]
    assert layer.num_output_elements == shape[0] * prod(result)
    assert layer.num_multiply_adds == pairs_of_convolution(shape, result)
    assert layer.num_weights == prod(shape)


@QUICK
@given(SIZES, SIZES, SIZES, st.integers(1, 3), st.integers(2, 4))
def test_transposed_convolutions_multiply_every_input_by_every_weight_of_its_filter(
    tmp_path: Path, groups: int, before: int, after: int, kernel: int, size: int
) -> None:
    count = counted(
        tmp_path,
        [node("ConvTranspose", "x w", group=groups)],
        {"x": ["batch", groups * before, size, size]},
        {"w": [groups * before, after, kernel, kernel]},
    )
    places = product(range(groups * before), range(size), range(size))
    assert count == sum(1 for _ in places for _ in product(range(after), range(kernel), range(kernel)))


@QUICK
@given(SIZES, SIZES, SIZES, st.booleans(), st.booleans())
def test_gemm_either_way_round(
    tmp_path: Path, rows: int, inner: int, columns: int, turns_a: bool, turns_b: bool
) -> None:
    a = [inner, rows] if turns_a else [rows, inner]
    b = [columns, inner] if turns_b else [inner, columns]
    found = read_onnx(
        saved(
            model_of(
                [node("Gemm", "x w c", transA=int(turns_a), transB=int(turns_b))], {"x": a}, {"w": b, "c": [columns]}
            ),
            tmp_path,
        )
    )
    # The leading dimension is a number: figures are divided by it.
    assert found.dnn.num_multiply_adds * a[0] == pytest.approx(rows * inner * columns, abs=a[0] / 2)
    assert found.dnn.num_trainable == (inner + 1) * columns


@QUICK
@given(st.data())
def test_matmul_with_broadcasting_counts_what_numpy_would_multiply(tmp_path: Path, data: st.DataObject) -> None:
    shared = data.draw(st.lists(SIZES, max_size=2))
    one, two = ([data.draw(st.sampled_from([1, size])) for size in shared] for _ in range(2))
    rows, inner, columns = (data.draw(SIZES) for _ in range(3))
    a, b = [*one, rows, inner], [*two[data.draw(st.integers(0, len(two))) :], inner, columns]
    count = counted(tmp_path, [node("MatMul", "x w")], {"x": [1, *a]}, {"w": b})
    result = np.matmul(np.zeros([1, *a]), np.zeros(b))
    assert count == result.size * inner


EQUATIONS = [
    "ij,jk->ik",
    "bij,bjk->bik",
    "bhqd,bhkd->bhqk",
    "i,i->",
    "ij,j",
    "...ij,...jk->...ik",
    "bij,kj->bik",
    "ii,ij->j",
]


@QUICK
@given(st.sampled_from(EQUATIONS), st.data())
def test_einsum_counts_one_for_every_combination_of_indices(tmp_path: Path, equation: str, data: st.DataObject) -> None:
    sizes = {label: data.draw(SIZES) for label in "bhijkqd"}
    hidden = [data.draw(SIZES)]
    shapes = [
        [*(hidden if "..." in term else []), *(sizes[label] for label in term.replace("...", ""))]
        for term in equation.split("->", maxsplit=1)[0].split(",")
    ]
    found = read_onnx(
        saved(
            model_of(
                [
                    node("Unsqueeze", "x zero", "x1"),
                    node("Squeeze", "x1 zero", "x2"),
                    node("Einsum", "x2 z", equation=equation),
                ],
                {"x": [1, *shapes[0]][1:], "z": shapes[1]},
                [integers("zero", [0])],
            ),
            tmp_path,
        )
    )
    labels = set(equation.split("->", maxsplit=1)[0]) - set(",.")
    expected = prod(sizes[label] for label in labels) * (hidden[0] if "..." in equation else 1)
    batch = shapes[0][0] if shapes[0][0] == shapes[1][0] else 1
    assert found.dnn.num_multiply_adds == pytest.approx(expected / batch, abs=0.5)


def test_einsum_of_three_operands_is_taken_from_left_to_right(tmp_path: Path) -> None:
    count = counted(
        tmp_path, [node("Einsum", "x w v", equation="bi,ij,jk->bk")], {"x": [1, 3]}, {"w": [3, 5], "v": [5, 7]}
    )
    assert count == 3 * 5 + 5 * 7


def test_einsum_without_a_sum_is_no_product_of_matrices(tmp_path: Path) -> None:
    found = read_onnx(
        saved(model_of([node("Einsum", "x w", equation="bi,i->bi")], {"x": [1, 3]}, {"w": [3]}), tmp_path)
    )
    assert (found.dnn.num_multiply_adds, found.facts["element_flop"]) == (0, 3)


def pairs_of_attention(queries: int, keys: int, causal: bool) -> Any:
    """Visit every query and every key that it may look at."""
    return sum(1 for query in range(queries) for key in range(keys) if not causal or key <= query + keys - queries)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("past", [0, 3])
def test_attention_of_onnx_with_grouped_heads_and_past(tmp_path: Path, causal: bool, past: int) -> None:
    inputs = {"q": ["batch", 4, 6 * 8], "k": ["batch", 4, 2 * 8], "v": ["batch", 4, 2 * 5]}
    names = "q k v"
    if past:
        names += " - pk pv"
        inputs |= {"pk": ["batch", 2, past, 8], "pv": ["batch", 2, past, 5]}
    nodes = [node("Attention", names, "y ok ov" if past else "y", q_num_heads=6, kv_num_heads=2, is_causal=int(causal))]
    count = counted(tmp_path, nodes, inputs, opset=23)
    assert count == 6 * pairs_of_attention(4, 4 + past, causal) * (8 + 5)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_onnxruntime_multiplies_by_its_own_matrix_first(tmp_path: Path, causal: bool) -> None:
    nodes = [node("Attention", "x w b", num_heads=2, unidirectional=int(causal), domain="com.microsoft")]
    layer = layer_of(tmp_path, nodes, {"x": ["batch", 5, 12]}, {"w": [12, 24], "b": [24]})
    assert layer.num_multiply_adds == 5 * 12 * 24 + 2 * pairs_of_attention(5, 5, causal) * (4 + 4)
    assert (layer.num_trainable, layer.output_shape) == (12 * 24 + 24, (8, 5, 1))


def test_grouped_query_attention_of_onnxruntime_is_causal_and_may_be_packed(tmp_path: Path) -> None:
    more: dict[str, Any] = {"num_heads": 6, "kv_num_heads": 2, "domain": "com.microsoft"}
    apart = {"q": ["batch", 4, 48], "k": ["batch", 4, 16], "v": ["batch", 4, 16]}
    lengths = [weight("s", [1], TensorProto.INT32), weight("t", [], TensorProto.INT32)]
    expected = 6 * pairs_of_attention(4, 4, True) * 16
    assert counted(tmp_path, [node("GroupQueryAttention", "q k v - - s t", **more)], apart, lengths) == expected
    tables = [*lengths, weight("cos", [9, 4]), weight("sin", [9, 4])]
    packed = layer_of(
        tmp_path, [node("GroupQueryAttention", "q - - - - s t cos sin", **more)], {"q": ["batch", 4, 80]}, tables
    )
    assert (packed.num_multiply_adds, packed.output_shape, packed.num_trainable) == (expected, (48, 4, 1), 0)


def test_multi_head_attention_of_onnxruntime_reads_another_sequence(tmp_path: Path) -> None:
    nodes = [node("MultiHeadAttention", "q k v", num_heads=3, domain="com.microsoft")]
    count = counted(tmp_path, nodes, {"q": ["batch", 4, 12], "k": ["batch", 7, 12], "v": ["batch", 7, 12]})
    assert count == 3 * 4 * 7 * (4 + 4)


@pytest.mark.parametrize(("op_type", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent_layers_multiply_input_and_state_at_every_step(
    tmp_path: Path, op_type: str, gates: int, directions: int
) -> None:
    steps, width, hidden = 5, 3, 4
    layer = layer_of(
        tmp_path,
        [node(op_type, "x w r b", hidden_size=hidden, direction=["forward", "bidirectional"][directions - 1])],
        {"x": [steps, "batch", width]},
        {
            "w": [directions, gates * hidden, width],
            "r": [directions, gates * hidden, hidden],
            "b": [directions, 2 * gates * hidden],
        },
    )
    per_step = sum(1 for _ in product(range(gates), range(hidden), range(width + hidden)))
    assert layer.num_multiply_adds == steps * directions * per_step
    assert layer.num_output_elements == steps * directions * hidden
    assert layer.num_trainable == directions * gates * hidden * (width + hidden + 2)
    (operator,) = layer.operators  # a product for each step: a step waits for the one before
    assert operator.product == Product(rows=1, inner=width + hidden, columns=gates * hidden, count=steps * directions)
    assert (operator.num_kernels, operator.weight_elements) == (steps * directions, layer.num_trainable)
    assert layer.kept_beside_bytes == 4 * steps * directions * hidden * (7 if gates > 1 else 1)


def test_steps_of_a_recurrent_layer_are_those_of_its_layout(tmp_path: Path) -> None:
    nodes = [node("LSTM", "x w r", hidden_size=4, layout=1)]
    layer = layer_of(tmp_path, nodes, {"x": ["batch", 5, 3]}, {"w": [1, 16, 3], "r": [1, 16, 4]})
    assert [one.num_kernels for one in layer.operators] == [5]


def test_a_transposed_convolution_multiplies_each_place_of_its_input_by_all_filters(tmp_path: Path) -> None:
    nodes = [node("ConvTranspose", "x w", strides=[2, 2], group=2)]
    layer = layer_of(tmp_path, nodes, {"x": ["batch", 6, 5, 4]}, {"w": [6, 2, 2, 2]})
    (operator,) = layer.operators
    assert operator.product == Product(rows=20, inner=3, columns=8, count=2)
    assert (operator.read_elements, operator.written_elements) == (6 * 20, 4 * 80)


def test_whole_number_products_count_like_others_and_their_weights_are_parameters(tmp_path: Path) -> None:
    kinds = {"x": TensorProto.UINT8, "y": TensorProto.INT32}
    stored = [weight("w", [6, 5], TensorProto.INT8)]
    layer = layer_of(tmp_path, [node("MatMulInteger", "x w")], {"x": ["batch", 3, 6]}, stored, types=kinds)
    assert (layer.num_multiply_adds, layer.num_trainable) == (3 * 6 * 5, 30)
    scales = [weight(name, []) for name in ("xs", "ws", "ys")]
    zeros = [weight(name, [], TensorProto.UINT8) for name in ("xz", "yz")] + [weight("wz", [], TensorProto.INT8)]
    stored = [*scales, *zeros, weight("w", [4, 2, 3, 3], TensorProto.INT8), weight("b", [4], TensorProto.INT32)]
    layer = layer_of(
        tmp_path,
        [node("QLinearConv", "x xs xz w ws wz ys yz b")],
        {"x": ["batch", 2, 5, 5]},
        stored,
        types={"x": TensorProto.UINT8, "y": TensorProto.UINT8},
    )
    assert (layer.num_multiply_adds, layer.num_trainable) == (4 * 9 * 2 * 9, 4 * 2 * 9 + 4)


def test_weights_of_few_bits_have_the_sizes_that_the_operator_says(tmp_path: Path) -> None:
    stored = [weight("w", [5, 2, 16], TensorProto.UINT8), weight("s", [10])]
    found = read_onnx(
        saved(
            model_of(
                [node("MatMulNBits", "x w s", K=64, N=5, bits=4, block_size=32, domain="com.microsoft")],
                {"x": ["batch", 3, 64]},
                stored,
            ),
            tmp_path,
        )
    )
    assert (found.dnn.num_multiply_adds, found.dnn.num_trainable) == (3 * 64 * 5, 320)
    assert found.dnn.layers[-1].output_shape == (5, 3, 1)
    assert any("quantised" in note for note in found.notes)


@pytest.mark.parametrize(
    ("nodes", "flop"),
    [
        ([node("Relu", "x")], 24),
        ([node("Add", "x x")], 24),
        ([node("Softmax", "x")], 5 * 24),
        ([node("LayerNormalization", "x s s")], 7 * 24),
        ([node("MaxPool", "x", kernel_shape=[2, 2])], 4 * 4 * 1 * 2),
        ([node("GlobalAveragePool", "x")], 24),
        ([node("ReduceMean", "x axes")], 24),
        ([node("Sum", "x x x")], 2 * 24),
        ([node("Transpose", "x")], 0),
        ([node("Resize", "x - scales", mode="nearest")], 0),
        ([node("Resize", "x - scales", mode="linear")], 2 * 4 * 96),
    ],
)
def test_elementwise_work_is_summed_apart(tmp_path: Path, nodes: list[Any], flop: int) -> None:
    scales = onnx.helper.make_tensor("scales", TensorProto.FLOAT, [4], [1, 1, 2, 2])
    found = read_onnx(
        saved(model_of(nodes, {"x": ["batch", 4, 2, 3]}, [weight("s", [3]), integers("axes", [2]), scales]), tmp_path)
    )
    assert (found.dnn.num_multiply_adds, found.warnings) == (0, ())
    assert found.facts["element_flop"] == flop


@pytest.mark.parametrize("dims", [["batch", 3, 6, 6], [4, 3, 6, 6]])
def test_figures_are_of_one_sample_whatever_the_batch(tmp_path: Path, dims: list[Any]) -> None:
    nodes = [
        node("Conv", "x w b", "c"),
        node("Relu", "c", "r"),
        node("Flatten", "r", "f"),
        node("Gemm", "f v", "y", transB=1),
    ]
    found = read_onnx(saved(model_of(nodes, {"x": dims}, {"w": [5, 3, 3, 3], "b": [5], "v": [7, 80]}), tmp_path))
    assert found.dnn.num_multiply_adds == 5 * 27 * 16 + 7 * 80
    assert [layer.output_shape for layer in found.dnn.layers] == [(3, 6, 6), (5, 4, 4), (5, 4, 4), (80,), (7,)]
    assert found.facts["element_flop"] == 2 * 80
    assert any("4 samples" in note for note in found.notes) == (dims[0] == 4)
