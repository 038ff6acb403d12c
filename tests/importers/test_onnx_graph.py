"""Layers, parameters, sizes and notes of an ONNX graph."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_graphs import integers, light, model_of, node, saved, weight  # noqa: E402

import planner  # noqa: E402
from planner.dnn import Dnn, Product, Window  # noqa: E402
from planner.errors import SpecError  # noqa: E402
from planner.importers.onnx_model import read_onnx  # noqa: E402
from planner.models.operators import operators_of  # noqa: E402


def read(folder: Path, *args: Any, sizes: Any = None, **more: Any) -> Any:
    return read_onnx(saved(model_of(*args, **more), folder), sizes=sizes)


def tensors(layer: Any) -> Any:
    return [(tensor.name, tensor.num_elements, tensor.role) for tensor in layer.tensors]


def named(dnn: Dnn) -> Any:
    return {layer.name: layer for layer in dnn.layers}


# -- layers ------------------------------------------------------------------------------------------------------------


def test_branches_are_kept_and_names_are_unique(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1], name="conv"),
        node("Relu", "a", "b", name="conv"),
        node("Conv", "b v", "c", pads=[1, 1, 1, 1]),
        node("Add", "c b", "d"),
        node("Concat", "d a", "y", axis=1),
    ]
    found = read(tmp_path, nodes, {"x": ["batch", 3, 8, 8]}, {"w": [4, 3, 3, 3], "v": [4, 4, 3, 3]})
    names = [layer.name for layer in found.dnn.layers]
    assert names == ["x", "conv", "conv_2", "Conv_2", "Add_3", "Concat_4"]
    assert found.dnn.inputs_of("Add_3") == ("Conv_2", "conv_2")
    assert found.dnn.inputs_of("Concat_4") == ("Add_3", "conv")
    kinds = [layer.kind for layer in found.dnn.layers]
    assert kinds == ["input", "convolution", "activation", "convolution", "add", "concatenate"]
    assert [layer.is_in_place for layer in found.dnn.layers] == [False, False, True, False, True, False]
    assert found.dnn.layers[1].window == Window(kernel=3, padding=1)


@pytest.mark.parametrize(
    ("attributes", "window"),
    [
        ({"strides": [2, 2], "pads": [1, 1, 1, 1]}, Window(kernel=3, stride=2, padding=1)),
        ({"auto_pad": "SAME_UPPER"}, Window(kernel=3, stride=1, padding=1)),
        ({"auto_pad": "VALID"}, Window(kernel=3)),
        ({"dilations": [2, 2]}, Window(kernel=5)),
        ({"pads": [0, 0, 1, 1]}, Window(kernel=3)),
        ({"strides": [1, 2]}, None),
        ({"pads": [1, 0, 1, 0]}, None),
    ],
)
def test_windows_are_given_where_they_are_square(
    tmp_path: Path, attributes: dict[str, Any], window: Window | None
) -> None:
    found = read(tmp_path, [node("Conv", "x w", **attributes)], {"x": ["batch", 2, 9, 9]}, {"w": [2, 2, 3, 3]})
    assert found.dnn.layers[-1].window == window


def test_shapes_computed_in_the_graph_are_no_layers(tmp_path: Path) -> None:
    # As exporters flatten: the first dimension is looked up and joined with -1; and a shape through Equal and Where.
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n zeros", "n1"),
        node("Concat", "n1 rest", "wanted", axis=0),
        node("Equal", "wanted rest1", "is"),
        node("Where", "is rest1 wanted", "chosen"),
        node("Reshape", "x chosen", "f"),
        node("MatMul", "f w", "y"),
    ]
    zero = numpy_helper.from_array(np.array(0, dtype=np.int64), "zero")
    stored = [zero, integers("zeros", [0]), integers("rest", [-1]), integers("rest1", [-1, -1]), weight("w", [12, 5])]
    found = read(tmp_path, nodes, {"x": ["N", 3, 4]}, stored)
    assert [layer.kind for layer in found.dnn.layers] == ["input", "reshape", "fully_connected"]
    assert found.dnn.num_multiply_adds == 60
    assert found.warnings == ()


def test_a_sequence_has_its_features_first(tmp_path: Path) -> None:
    found = read(tmp_path, [node("MatMul", "x w")], {"x": ["batch", 7, 12]}, {"w": [12, 5]})
    (first, last) = found.dnn.layers
    assert (first.output_shape, last.output_shape, last.kind) == ((12, 7, 1), (5, 7, 1), "matmul")


def test_a_product_of_heads_has_the_shape_of_each_and_views_move_nothing(tmp_path: Path) -> None:
    nodes = [
        node("Reshape", "x parts", "a"),  # 20 tokens of 3 heads of 8, each with query, key and value
        node("Transpose", "a", "b", perm=[3, 0, 2, 1, 4]),
        *(node("Gather", f"b {one}", f"g{one}", axis=0) for one in ("0", "1", "2")),
        node("Transpose", "g1", "k", perm=[0, 1, 3, 2]),
        node("MatMul", "g0 k", "s"),
        node("Softmax", "s", "p"),
        node("MatMul", "p g2", "y"),
    ]
    stored = [helper.make_tensor(one, TensorProto.INT64, [], [int(one)]) for one in "012"]
    stored.append(integers("parts", [-1, 20, 3, 3, 8]))
    found = read(tmp_path, nodes, {"x": ["batch", 20, 72]}, stored)
    layers = named(found.dnn)
    kinds = {name: one.kind for name, one in layers.items() if name != "x"}
    assert list(kinds.values()) == [
        *["reshape", "transpose"],
        *["slice"] * 3,
        "transpose",
        "attention",
        "softmax",
        "attention",
    ]
    scores, context = (one.operators[0].product for one in layers.values() if one.kind == "attention")
    assert (scores, context) == (
        Product(rows=20, inner=8, columns=20, count=3),
        Product(rows=20, inner=20, columns=8, count=3),
    )
    assert operators_of(layers["Reshape_0"], [layers["x"]]) == ()
    in_place = {name for name, one in layers.items() if one.is_in_place}
    assert in_place == {"Reshape_0", "Gather_2", "Gather_3", "Gather_4"}
    assert [one.kind for one in operators_of(layers["Gather_2"], [layers["Transpose_1"]])] == ["slice"]


def test_one_known_part_is_read_where_it_lies_and_several_are_copied(tmp_path: Path) -> None:
    nodes = [node("Gather", "x order", "a", axis=1), node("Gather", "a first", "b", axis=1)]
    stored = [integers("order", [2, 0, 1]), helper.make_tensor("first", TensorProto.INT64, [], [0])]
    layers = read(tmp_path, nodes, {"x": ["batch", 3, 8]}, stored).dnn.layers
    assert [(one.kind, one.is_in_place) for one in layers[1:]] == [("gather", False), ("slice", True)]


def test_what_repeats_numbers_is_a_view_until_another_shape_copies_it(tmp_path: Path) -> None:
    nodes = [node("Unsqueeze", "x at", "a"), node("Expand", "a wide", "b"), node("Reshape", "b flat", "c")]
    stored = [integers("at", [2]), integers("wide", [1, 2, 4, 8]), integers("flat", [-1, 8, 8])]
    layers = read(tmp_path, nodes, {"x": ["batch", 2, 8]}, stored).dnn.layers
    assert [one.is_in_place for one in layers] == [False, True, True, False]


def test_a_product_of_two_activations_is_attention(tmp_path: Path) -> None:
    nodes = [node("Transpose", "x", "t", perm=[0, 2, 1]), node("MatMul", "x t", "s"), node("Softmax", "s", "y")]
    found = read(tmp_path, nodes, {"x": ["batch", 7, 12]})
    assert [layer.kind for layer in found.dnn.layers] == ["input", "transpose", "attention", "softmax"]
    assert found.dnn.num_multiply_adds == 7 * 7 * 12


def test_repeated_blocks_are_found(tmp_path: Path) -> None:
    nodes, stored, last = [], {}, "x"
    for index in range(6):
        nodes += [node("MatMul", f"{last} w{index}", f"m{index}"), node("Relu", f"m{index}", f"r{index}")]
        stored[f"w{index}"] = [8, 8]
        last = f"r{index}"
    found = read(tmp_path, nodes, {"x": ["batch", 8]}, stored, outputs=last)
    (repeat,) = found.dnn.repeats
    assert (repeat.first, repeat.num_layers, repeat.count) == (1, 2, 6)


def test_microsoft_operators_between_others_keep_the_shapes_known(tmp_path: Path) -> None:
    nodes = [
        node("EmbedLayerNormalization", "ids - table positions - g b", "e -", domain="com.microsoft"),
        node("SkipLayerNormalization", "e e g b", "n", domain="com.microsoft"),
        node("MatMul", "n w", "m"),
        node("FastGelu", "m c", "a", domain="com.microsoft"),
        node("FusedMatMul", "a v", "y", domain="com.microsoft", transB=1),
    ]
    stored = {"table": [50, 8], "positions": [16, 8], "g": [8], "b": [8], "w": [8, 32], "c": [32], "v": [8, 32]}
    found = read(tmp_path, nodes, {"ids": ["batch", 5]}, stored, types={"ids": TensorProto.INT32})
    assert found.warnings == ()
    assert found.dnn.num_multiply_adds == 2 * 5 * 8 * 32
    assert found.dnn.num_trainable == 50 * 8 + 16 * 8 + 16 + 8 * 32 + 32 + 8 * 32
    assert any("g is shared by" in note for note in found.notes)


def test_a_norm_of_onnxruntime_under_the_domain_of_onnx_keeps_the_shapes_known(tmp_path: Path) -> None:
    nodes = [node("SimplifiedLayerNormalization", "x g", "n"), node("MatMul", "n w", "y")]
    found = read(tmp_path, nodes, {"x": ["batch", 5, 8]}, {"g": [8], "w": [8, 4]})
    assert (found.dnn.num_multiply_adds, found.dnn.num_trainable, found.warnings) == (5 * 32, 8 + 32, ())
    assert found.dnn.layers[1].kind == "norm"


# -- parameters --------------------------------------------------------------------------------------------------------


def test_roles_of_convolution_and_batch_norm(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w b", "c"), node("BatchNormalization", "c g h m v", "y")]
    stored = {"w": [4, 3, 1, 1], "b": [4], "g": [4], "h": [4], "m": [4], "v": [4]}
    found = read(tmp_path, nodes, {"x": ["batch", 3, 2, 2]}, stored)
    _, convolution, norm = found.dnn.layers
    assert tensors(convolution) == [("w", 12, "weight"), ("b", 4, "bias")]
    assert [(name, role) for name, _, role in tensors(norm)] == [
        ("g", "scale"), ("h", "shift"), ("m", "moving"), ("v", "moving"),
    ]  # fmt: skip
    assert (found.dnn.num_trainable, found.dnn.num_moving, norm.kind) == (24, 8, "batch_norm")


@pytest.mark.parametrize("way", ["initializer", "constant", "filled", "transposed", "cast", "dequantised", "reshaped"])
def test_a_weight_is_found_by_its_ancestry(tmp_path: Path, way: str) -> None:
    stored, before = {
        "initializer": ([weight("w", [6, 5])], []),
        "constant": ([], [helper.make_node("Constant", [], ["w"], value=weight("", [6, 5]))]),
        "filled": ([integers("dims", [6, 5])], [node("ConstantOfShape", "dims", "w")]),
        "transposed": ([weight("o", [5, 6])], [node("Transpose", "o", "w", perm=[1, 0])]),
        "cast": ([weight("o", [6, 5], TensorProto.FLOAT16)], [node("Cast", "o", "w", to=TensorProto.FLOAT)]),
        "dequantised": ([weight("o", [6, 5], TensorProto.INT8), weight("s", [])], [node("DequantizeLinear", "o s", "w")]),
        "reshaped": ([weight("o", [30]), integers("dims", [6, 5])], [node("Reshape", "o dims", "w")]),
    }[way]  # fmt: skip
    found = read(tmp_path, [*before, node("MatMul", "x w")], {"x": ["batch", 6]}, stored)
    assert [layer.kind for layer in found.dnn.layers] == ["input", "fully_connected"]
    assert (found.dnn.num_trainable, found.dnn.num_multiply_adds) == (30, 30)
    assert found.dtype == {"cast": "fp16", "dequantised": None}.get(way, "fp32")


def test_a_tied_matrix_counts_once_and_is_named(tmp_path: Path) -> None:
    nodes = [node("Gather", "table ids", "e"), node("Transpose", "table", "t", perm=[1, 0]), node("MatMul", "e t", "y")]
    found = read(tmp_path, nodes, {"ids": ["batch", 4]}, {"table": [50, 8]}, types={"ids": TensorProto.INT64})
    embedding, logits = found.dnn.layers[1:]
    assert (embedding.kind, embedding.num_trainable, logits.num_trainable) == ("embedding", 400, 0)
    assert logits.num_multiply_adds == 4 * 8 * 50
    assert "table is shared by Gather_0, MatMul_2; it is counted once." in found.notes


def test_factors_whole_numbers_and_what_nobody_reads_are_no_parameters(tmp_path: Path) -> None:
    half = helper.make_node("Constant", [], ["half"], value=helper.make_tensor("", TensorProto.FLOAT, [], [0.5]))
    mask = helper.make_node("Constant", [], ["mask"], value=weight("", [6]))
    nodes = [
        half,
        mask,
        node("Mul", "x half", "a"),
        node("Add", "a mask", "b"),
        node("Clip", "b low", "c"),
        node("MatMul", "c w", "y"),
    ]
    stored = [weight("w", [6, 5]), weight("low", []), weight("spare", [100])]
    found = read(tmp_path, nodes, {"x": ["batch", 6]}, stored)
    assert found.dnn.num_trainable == 30
    assert any("1 constants inside of operators" in note for note in found.notes)
    assert "No operator reads the stored tensors spare; they are not counted." in found.notes


def test_a_class_token_that_is_expanded_counts(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s", start=0, end=1),
        node("Concat", "s one one", "d", axis=0),
        node("Expand", "token d", "t"),
        node("Concat", "t x", "y", axis=1),
    ]
    found = read(tmp_path, nodes, {"x": ["batch", 4, 8]}, [weight("token", [1, 1, 8]), integers("one", [1])])
    assert [(layer.kind, layer.output_shape) for layer in found.dnn.layers] == [
        ("input", (8, 4, 1)),
        ("concatenate", (8, 5, 1)),
    ]
    assert found.dnn.num_trainable == 8


def test_biases_of_all_convolutions_without_a_norm_are_noted(tmp_path: Path) -> None:
    found = read(tmp_path, [node("Conv", "x w b")], {"x": ["batch", 3, 2, 2]}, {"w": [4, 3, 1, 1], "b": [4]})
    assert any("folded" in note for note in found.notes)
    found = read(tmp_path, [node("Conv", "x w")], {"x": ["batch", 3, 2, 2]}, {"w": [4, 3, 1, 1]})
    assert found.notes == ()


# -- operators that cannot be counted, bodies, functions ---------------------------------------------------------------


def test_unknown_operators_are_warned_of_by_name_and_number(tmp_path: Path) -> None:
    nodes = [
        node("MyOp", "x w", "a"),
        node("MyOp", "a", "b", domain="shop"),
        node("MyOp", "b", "c", domain="shop"),
        node("Relu", "c", "y"),
    ]
    found = read(tmp_path, nodes, {"x": ["batch", 4]}, {"w": [7]})
    assert found.warnings[0] == "3 operators of unknown kinds count no work: shop.MyOp (2), MyOp (1)."
    assert "1 operator whose shapes are not known counts no work: Relu (1)." in found.warnings
    assert found.warnings[-1].startswith("4 operators whose outputs' sizes are not known keep no activations: ")
    assert found.dnn.num_trainable == 7


def body(nodes: list[Any], inputs: Any, outputs: Any, stored: Any = ()) -> Any:
    infos = [helper.make_tensor_value_info(name, kind, dims) for name, kind, dims in inputs]
    results = [helper.make_tensor_value_info(name, kind, dims) for name, kind, dims in outputs]
    return helper.make_graph(nodes, "body", infos, results, list(stored))


def loop_of(trips: int) -> Any:
    inner = body(
        [node("MatMul", "h w", "next"), node("Identity", "go", "on")],
        [("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("h", TensorProto.FLOAT, [1, 6])],
        [("on", TensorProto.BOOL, []), ("next", TensorProto.FLOAT, [1, 6])],
    )
    count = numpy_helper.from_array(np.array(trips, dtype=np.int64), "count")
    return (
        [helper.make_node("Loop", ["count", "", "x"], ["y"], body=inner)],
        {"x": ["batch", 6]},
        [count, weight("w", [6, 6])],
    )


def test_the_body_of_a_loop_counts_as_often_as_it_runs(tmp_path: Path) -> None:
    found = read(tmp_path, *loop_of(5))
    assert (found.dnn.num_multiply_adds, found.dnn.num_trainable) == (5 * 36, 36)
    assert found.warnings == ("The body of the loop 'Loop' is counted 5 times.",)


def test_the_body_of_a_loop_without_an_end_counts_once(tmp_path: Path) -> None:
    found = read(tmp_path, *loop_of(2**63 - 1))
    assert found.dnn.num_multiply_adds == 36
    assert found.warnings == ("It is not known how often the loop 'Loop' runs: its body is counted once.",)


def test_a_scan_counts_its_body_for_every_step(tmp_path: Path) -> None:
    inner = body(
        [node("MatMul", "row w", "out"), node("Identity", "s", "s2")],
        [("s", TensorProto.FLOAT, [1]), ("row", TensorProto.FLOAT, [1, 6])],
        [("s2", TensorProto.FLOAT, [1]), ("out", TensorProto.FLOAT, [1, 5])],
    )
    nodes = [helper.make_node("Scan", ["zero", "x"], ["last", "y"], body=inner, num_scan_inputs=1)]
    found = read(tmp_path, nodes, {"x": [9, "batch", 6]}, {"zero": [1], "w": [6, 5]})
    assert found.dnn.num_multiply_adds == 9 * 30


def test_of_a_branch_the_dearer_side_counts(tmp_path: Path) -> None:
    out = [("r", TensorProto.FLOAT, [1, 6])]
    sides = {
        "then_branch": body([node("MatMul", "x w", "r")], [], out),
        "else_branch": body([node("MatMul", "x w", "t"), node("MatMul", "t v", "r")], [], out),
    }
    nodes = [
        node("ReduceSum", "x", "sum", keepdims=0),
        node("Cast", "sum", "flag", to=TensorProto.BOOL),
        helper.make_node("If", ["flag"], ["y"], name="choice", **sides),
    ]
    found = read(tmp_path, nodes, {"x": ["batch", 6]}, {"w": [6, 6], "v": [6, 6]})
    assert (found.dnn.num_multiply_adds, found.dnn.num_trainable) == (72, 72)
    assert found.dnn.inputs_of("choice") == ("Cast_1", "x")
    assert found.warnings == ("Of the branch 'choice' the side with more work is counted.",)


def test_functions_of_the_model_are_put_in_their_places(tmp_path: Path) -> None:
    function = helper.make_function(
        "mine",
        "Linear",
        ["a", "m"],
        ["o"],
        [node("MatMul", "a m", "p"), node("Relu", "p", "o")],
        [helper.make_opsetid("", 21)],
    )
    nodes = [node("Linear", "x w", "h", domain="mine"), node("Linear", "h v", "y", domain="mine")]
    model = model_of(nodes, {"x": ["batch", 6]}, {"w": [6, 5], "v": [5, 4]}, functions=[function])
    model.opset_import.append(helper.make_opsetid("mine", 1))
    found = read_onnx(saved(model, tmp_path))
    assert (found.dnn.num_multiply_adds, found.dnn.num_trainable, found.warnings) == (50, 50, ())
    assert [layer.kind for layer in found.dnn.layers] == ["input"] + ["fully_connected", "activation"] * 2


# -- sizes -------------------------------------------------------------------------------------------------------------


def encoder() -> Any:
    nodes = [node("Gather", "table ids", "e"), node("MatMul", "e w", "y")]
    return nodes, {"ids": ["batch", "sequence"]}, {"table": [50, 8], "w": [8, 4]}


def test_symbolic_sizes_come_from_the_caller(tmp_path: Path) -> None:
    found = read(tmp_path, *encoder(), sizes={"sequence": 16}, types={"ids": TensorProto.INT64})
    assert found.dnn.num_multiply_adds == 16 * 32
    assert found.dnn.layers[0].output_shape == (16,)


def test_a_missing_size_is_asked_for_by_name(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"the dimension sequence has no size\. .*dimensions: \{sequence: 128\}"):
        read(tmp_path, *encoder(), types={"ids": TensorProto.INT64})


def test_sizes_of_no_dimension_and_impossible_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError,
        match=r"dimensions\.length: the model has no dimension 'length' without a size\. It has batch, sequence",
    ):
        read(tmp_path, *encoder(), sizes={"length": 3}, types={"ids": TensorProto.INT64})
    with pytest.raises(SpecError, match=r"dimensions\.sequence: 0 is no size"):
        read(tmp_path, *encoder(), sizes={"sequence": 0}, types={"ids": TensorProto.INT64})


def test_dimensions_without_names_are_called_by_input_and_axis(tmp_path: Path) -> None:
    found = read(tmp_path, [node("MatMul", "x w")], {"x": [None, None, 6]}, {"w": [6, 5]}, sizes={"x.1": 4})
    assert found.dnn.num_multiply_adds == 4 * 30
    assert "The dimension x.0 is taken as the batch, because it leads the first input." in found.notes


def test_a_batch_that_is_not_the_leading_dimension_is_known_by_its_name(tmp_path: Path) -> None:
    found = read(tmp_path, [node("MatMul", "x w")], {"x": ["time", "batch", 6]}, {"w": [6, 5]}, sizes={"time": 4})
    assert found.dnn.num_multiply_adds == 4 * 30
    assert found.dnn.layers[-1].output_shape == (5, 4, 1)


def test_inputs_with_different_leading_numbers_are_one_sample(tmp_path: Path) -> None:
    found = read(tmp_path, [node("MatMul", "x z")], {"x": [4, 6], "z": [6, 5]})
    assert found.dnn.num_multiply_adds == 4 * 30
    assert found.warnings[0].startswith("The inputs have different leading dimensions")


def test_a_batch_that_is_given_divides_the_figures(tmp_path: Path) -> None:
    found = read(tmp_path, [node("MatMul", "x w")], {"x": ["batch", 6]}, {"w": [6, 5]}, sizes={"batch": 8})
    assert found.dnn.num_multiply_adds == 30
    assert found.notes == ("The graph computes 8 samples at a time (batch); figures are divided by that.",)


def test_the_same_file_gives_the_same_network(tmp_path: Path) -> None:
    one, two = (read_onnx(light("shufflenet")) for _ in range(2))
    assert one.dnn.layers == two.dnn.layers
    assert [one.dnn.inputs_of(layer.name) for layer in one.dnn.layers] == [
        two.dnn.inputs_of(layer.name) for layer in two.dnn.layers
    ]


# -- names and graphs as nobody means them -----------------------------------------------------------------------------


def test_names_are_one_printable_line_of_bounded_length(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x w", "a", name="\x1b[31mred\nline"),
        node("Weird\x1b Op: " + "z" * 500, "a", "y", domain="shop"),
    ]
    nodes[0].input[1] = "\x1bw" * 300
    model = model_of(nodes, {"x": ["batch", 8]}, {})
    model.graph.initializer.append(weight("\x1bw" * 300, [8, 8]))
    found = read_onnx(saved(model, tmp_path))
    told = [layer.name for layer in found.dnn.layers] + [layer.kind for layer in found.dnn.layers]
    told += [one.name for layer in found.dnn.layers for one in layer.tensors]
    told += [*found.notes, *found.warnings]
    assert all(text.isprintable() and len(text) <= 250 for text in told)
    assert found.dnn.num_trainable == 64


@pytest.mark.parametrize(
    ("one", "inputs", "weights"),
    [
        (node("MatMul", "x w"), ["batch", 9], [8, 5]),
        (node("Gemm", "x w", transB=1), ["batch", 9], [5, 8]),
        (node("Conv", "x w"), ["batch", 3, 8, 8], [8, 4, 3, 3]),
        (node("Conv", "x w", group=2), ["batch", 4, 8, 8], [8, 4, 3, 3]),
    ],
)
def test_a_product_whose_sides_do_not_fit_is_refused(one: Any, inputs: Any, weights: list[int], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"the graph cannot be: .* multiplies rows of \d numbers by columns of \d"):
        read(tmp_path, [one], {"x": inputs}, {"w": weights})


def test_a_network_without_multiply_adds_cannot_be_planned(tmp_path: Path) -> None:
    path = saved(model_of([node("Relu", "x")], {"x": ["batch", 8]}, {}), tmp_path)
    machines = {"count": 2, "devices": 1, "device": "v100-sxm2", "network": "10 Gbit/s"}
    dnn = {"onnx": str(path), "batch_per_device": 8}
    with pytest.raises(SpecError, match="the network has no multiply-adds"):
        planner.load({"dnn": dnn, "cluster": {"machines": [machines]}, "objective": "iteration_time"})
