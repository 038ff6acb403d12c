"""ONNX files that are wrong, too large or hostile: one message with a mend, in bounded time and memory."""

import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

from onnx import TensorProto, helper  # noqa: E402
from onnx_graphs import light, model_of, node, saved, weight  # noqa: E402

from planner.errors import SpecError  # noqa: E402
from planner.importers.onnx_model import file as onnx_file  # noqa: E402
from planner.importers.onnx_model import read_onnx  # noqa: E402

FUZZ = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def small() -> Any:
    return model_of([node("MatMul", "x w")], {"x": ["batch", 6]}, {"w": [6, 5]})


def sparse_file(path: Path, size: int) -> Any:
    with path.open("wb") as file:
        file.truncate(size)
    return path


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_model_is_refused(tmp_path: Path, share: float) -> None:
    data = light("resnet50").read_bytes()
    path = tmp_path / "model.onnx"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(
        SpecError, match=r"model\.onnx: this is no ONNX model, or only a part of one\. Export or copy it again"
    ):
        read_onnx(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"ir_version: 8", "no ONNX model"),
        (b"\x08\x08", "there is no operator in it"),
        (b'{"graph": {}}', "no ONNX model"),
    ],
)
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(SpecError, match=message):
        read_onnx(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no such file"):
        read_onnx(tmp_path / "none.onnx")
    with pytest.raises(SpecError, match=r"this is a folder.*Name the \.onnx file in it"):
        read_onnx(tmp_path)


def test_a_file_of_3_gigabytes_is_refused_without_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sparse_file(tmp_path / "model.onnx", 3 * 2**30)
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda self: pytest.fail("it was read"))
    with pytest.raises(
        SpecError, match=r"3221225472 bytes; .*more than 2 GiB cannot be parsed\. .*save_as_external_data=True"
    ):
        read_onnx(path)


def test_a_model_above_2_gigabytes_is_read_by_its_graph_alone(tmp_path: Path) -> None:
    # 3 layers of 16384 x 16384: 3.2 GB of weights in a file beside the graph.
    width, stored, nodes, last = 16384, [], [], "x"
    for index in range(3):
        tensor = weight(f"w{index}", [width, width])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": "weights.bin", "offset": index * 4 * width**2, "length": 4 * width**2}.items():
            tensor.external_data.add(key=key, value=str(value))
        stored.append(tensor)
        nodes.append(node("MatMul", f"{last} w{index}", f"y{index}"))
        last = f"y{index}"
    path = saved(model_of(nodes, {"x": ["batch", width]}, stored, outputs=last), tmp_path)
    sparse_file(tmp_path / "weights.bin", 3 * 4 * width**2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = read_onnx(path)
    assert found.dnn.num_trainable == found.dnn.num_multiply_adds == 3 * width**2
    assert 4 * found.dnn.num_trainable > 2**31
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB
    (tmp_path / "weights.bin").unlink()
    assert read_onnx(path).dnn.num_trainable == 3 * width**2


@pytest.mark.parametrize(
    "location",
    ["../weights.bin", "/etc/passwd", "a/../../b", "..\\weights.bin", "C:\\weights.bin", "\\\\host\\share", ""],
)
def test_data_outside_of_the_models_folder_is_refused_by_the_tensors_name(tmp_path: Path, location: str) -> None:
    model = small()
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    model.graph.initializer[0].external_data.add(key="location", value=location)
    with pytest.raises(
        SpecError, match=r"external_data\.location: tensor 'w' .*(outside of the model's folder|not in which)"
    ):
        read_onnx(saved(model, tmp_path))


def test_data_outside_is_found_in_constants_and_bodies_as_well(tmp_path: Path) -> None:
    far = weight("far", [6, 5])
    far.data_location = TensorProto.EXTERNAL
    far.external_data.add(key="location", value="../x")
    inner = helper.make_graph([helper.make_node("Constant", [], ["r"], value=far)], "b", [], [])
    nodes = [helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)]
    with pytest.raises(SpecError, match=r"tensor 'far' keeps its data in '\.\./x'"):
        read_onnx(saved(model_of(nodes, {"x": [1]}), tmp_path))


def test_a_missing_library_has_a_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(small(), tmp_path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(SpecError, match=r"needs the package onnx\. Install it: pip install 'training-planner\[onnx\]'"):
        read_onnx(path)


def test_the_library_is_loaded_only_when_a_model_is_read() -> None:
    code = "import sys, planner.importers.onnx_model; assert 'onnx' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- graphs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            model_of([node("Relu", "z")], {"x": ["batch", 6]}),
            "operator 'Relu' reads 'z', which nothing before it gives",
        ),
        (model_of([node("Relu", "x"), node("Tanh", "x")], {"x": ["batch", 6]}), "the value 'y' is given twice"),
        (model_of([node("Relu", "w")], {"x": ["batch", 6]}, {"w": [6]}), "no operator reads the inputs"),
        (
            model_of([node("MatMul", "x w")], {"x": ["batch", 6]}, {"w": [-6, 5]}),
            "tensor 'w' has the impossible dimensions",
        ),
        (model_of([node("MatMul", "x w")], {"x": ["batch", 6]}, {"w": [2**40, 2**40]}), "the impossible dimensions"),
        (model_of([node("Relu", "x")], {"x": [2**40, 2]}), "has a dimension of 1099511627776"),
        (
            model_of([node("MatMul", "x z")], {"x": [1, 2**30, 2**31], "z": [1, 2**31, 2**30]}),
            "impossible dimensions|operations",
        ),
    ],
)
def test_graphs_that_cannot_be_are_refused(tmp_path: Path, model: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_onnx(saved(model, tmp_path))


def test_a_function_that_calls_itself_is_refused(tmp_path: Path) -> None:
    function = helper.make_function(
        "mine", "F", ["a"], ["o"], [node("F", "a", "o", domain="mine")], [helper.make_opsetid("mine", 1)]
    )
    model = model_of([node("F", "x", domain="mine")], {"x": ["batch", 6]}, functions=[function])
    with pytest.raises(SpecError, match="function 'F' calls itself"):
        read_onnx(saved(model, tmp_path))


def test_functions_that_grow_without_bound_are_refused(tmp_path: Path) -> None:
    # Each calls the one before it ten times: ten to the power of twelve operators.
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    functions = [helper.make_function("mine", "F0", ["a"], ["o"], [node("Relu", "a", "o")], imports)]
    for level in range(1, 13):
        calls = [node(f"F{level - 1}", "a" if not at else f"t{at}", f"t{at + 1}", domain="mine") for at in range(10)]
        functions.append(helper.make_function("mine", f"F{level}", ["a"], ["t10"], calls, imports))
    model = model_of([node("F12", "x", domain="mine")], {"x": ["batch", 6]}, functions=functions)
    with pytest.raises(SpecError, match="more than 200000 operators"):
        read_onnx(saved(model, tmp_path))


def test_bodies_within_bodies_have_a_limit(tmp_path: Path) -> None:
    inner = helper.make_graph([node("Relu", "x", "r")], "b", [], [])
    for _ in range(12):
        inner = helper.make_graph(
            [helper.make_node("If", ["x"], ["r"], then_branch=inner, else_branch=inner)], "b", [], []
        )
    model = model_of(list(inner.node), {"x": [1]})
    with pytest.raises(SpecError, match=r"more than 8 deep|or only a part of one"):
        read_onnx(saved(model, tmp_path))


def test_small_numbers_that_would_be_large_together_are_not_computed(tmp_path: Path) -> None:
    # 1000 along each of four axes: 8 TB, were it computed.
    names, stored = [], []
    for axis in range(4):
        dims = [1000 if at == axis else 1 for at in range(4)]
        stored.append(helper.make_tensor(f"v{axis}", TensorProto.INT64, dims, [1] * 1000))
        names.append(f"v{axis}")
    nodes = [node("Max", " ".join(names), "many"), node("Reshape", "x many", "r"), node("Mystery", "r")]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = read_onnx(saved(model_of(nodes, {"x": ["batch", 6]}, stored), tmp_path))
    assert any(warning.endswith("keep no activations: Mystery (1), Reshape (1).") for warning in found.warnings)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_an_attribute_that_is_no_size_counts_no_work(tmp_path: Path) -> None:
    nodes = [node("MatMulNBits", "x w", K=-64, N=5, domain="com.microsoft")]
    found = read_onnx(saved(model_of(nodes, {"x": ["batch", 64]}, [weight("w", [5, 32], TensorProto.UINT8)]), tmp_path))
    assert found.dnn.num_multiply_adds == 0
    assert any("MatMulNBits (1)" in warning for warning in found.warnings)


def test_many_operators_of_one_name_get_names_of_their_own(tmp_path: Path) -> None:
    nodes = [node("Relu", "x" if not at else f"y{at}", f"y{at + 1}", name="same") for at in range(3000)]
    found = read_onnx(saved(model_of(nodes, {"x": ["batch", 2]}, outputs="y3000"), tmp_path))
    assert [layer.name for layer in found.dnn.layers][:4] == ["x", "same", "same_2", "same_3"]
    assert len(found.dnn.layers) == 3001


def test_too_many_operators_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "_MOST_NODES", 10)
    nodes = [node("Relu", "x" if not at else f"y{at}", f"y{at + 1}") for at in range(11)]
    with pytest.raises(SpecError, match="it has more than 10 operators"):
        read_onnx(saved(model_of(nodes, {"x": [1, 2]}), tmp_path))


# -- mutations: whatever comes, it is read or refused ------------------------------------------------------------------


def of_many_kinds() -> Any:
    """Return a model with a loop, attention, an LSTM, a norm, a branch and an unknown operator."""
    step = helper.make_graph(
        [node("MatMul", "h w", "next"), node("Identity", "go", "on")],
        "step",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h", TensorProto.FLOAT, [1, 4, 6]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [1, 4, 6]),
        ],
    )
    trips = helper.make_tensor("trips", TensorProto.INT64, [], [3])
    side = helper.make_graph([node("Einsum", "n w", "r", equation="bij,jk->bik")], "side", [], [])
    nodes = [
        helper.make_node("Loop", ["trips", "", "x"], ["a"], body=step),
        node("Attention", "a a a", "b", q_num_heads=2, kv_num_heads=2),
        node("LSTM", "b wi wr", "c", hidden_size=6, layout=1),
        node("Squeeze", "c two", "d"),
        node("LayerNormalization", "d s", "n"),
        helper.make_node("If", ["flag"], ["e"], then_branch=side, else_branch=side),
        node("Mystery", "e", "f"),
        node("Shape", "x", "shape"),
        node("Reshape", "f shape", "y"),
    ]
    flag = helper.make_tensor("flag", TensorProto.BOOL, [], [True])
    stored = [trips, flag, weight("w", [6, 6]), weight("wi", [1, 24, 6]), weight("wr", [1, 24, 6]), weight("s", [6])]
    two = helper.make_tensor("two", TensorProto.INT64, [1], [2])
    return model_of(nodes, {"x": ["batch", 4, 6]}, [*stored, two], opset=23)


SEEDS = [
    of_many_kinds().SerializeToString(),
    light("shufflenet").read_bytes(),
    light("bvlc_alexnet").read_bytes(),
    small().SerializeToString(),
]


def read_or_refused(path: Path) -> None:
    try:
        found = read_onnx(path)
    except SpecError as error:
        assert len(str(error)) < 20_000
        assert error.faults and all(fault.mend for fault in error.faults)
    else:
        assert found.dnn.layers


def test_the_model_of_many_kinds_is_read(tmp_path: Path) -> None:
    found = read_onnx(saved(of_many_kinds(), tmp_path))
    attention, recurrent = 2 * 4 * 4 * (3 + 3), 4 * (24 * 6 + 24 * 6)
    assert found.dnn.num_multiply_adds == 3 * 4 * 36 + attention + recurrent + 4 * 36
    assert found.warnings[0] == "1 operator of an unknown kind counts no work: Mystery (1)."


@FUZZ
@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8))
def test_changed_bytes_are_read_or_refused(tmp_path: Path, data: bytes, changes: list[tuple[int, int]]) -> None:
    changed = bytearray(data)
    for place, value in changes:
        changed[place % len(changed)] = value
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(changed))
    read_or_refused(path)


def mutate(model: Any, chooser: random.Random) -> None:
    """Change a few things of a parsed model: names, numbers, operators, attributes, order."""
    graph = model.graph
    for _ in range(chooser.randint(1, 6)):
        one, other = chooser.choice(graph.node), chooser.choice(graph.node)
        kind = chooser.randrange(9)
        if kind == 0 and one.input and other.output:
            one.input[chooser.randrange(len(one.input))] = other.output[0]
        elif kind == 1:
            one.op_type = chooser.choice(
                ["Gemm", "Loop", "If", "Scan", "Einsum", "LSTM", "Attention", "Split", "Resize", "Mystery", "Reshape"]
            )
        elif kind == 2 and one.attribute:
            attribute = chooser.choice(one.attribute)
            attribute.i = chooser.choice([-1, 0, 2**62, -(2**62)])
            del attribute.ints[:]
            attribute.ints.extend([chooser.choice([-1, 0, 1, 2**62])] * chooser.randint(0, 5))
        elif kind == 3 and graph.initializer:
            tensor = chooser.choice(graph.initializer)
            tensor.dims.append(chooser.choice([-1, 0, 7, 2**40]))
        elif kind == 4 and graph.initializer:
            chooser.choice(graph.initializer).data_type = chooser.choice([0, 1, 7, 8, 99])
        elif kind == 5 and one.input:
            del one.input[-1]
        elif kind == 6 and one.output:
            one.output.append("")
            one.output[0] = chooser.choice(["", "same"])
        elif kind == 7:
            one.domain = chooser.choice(["com.microsoft", "other", "ai.onnx.ml"])
        else:
            dims = chooser.choice(graph.input).type.tensor_type.shape.dim
            if dims:
                chooser.choice(dims).dim_value = chooser.choice([0, -5, 1, 2**31, 2**62])


@FUZZ
@given(st.sampled_from(SEEDS), st.integers(0, 2**32))
def test_changed_models_are_read_or_refused(tmp_path: Path, data: bytes, seed: int) -> None:
    model = onnx.ModelProto.FromString(data)
    mutate(model, random.Random(seed))
    read_or_refused(saved(model, tmp_path))
