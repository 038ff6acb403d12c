"""PyTorch modules, exported by torch itself: work and parameters against torch's own counter."""

from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
pytest.importorskip("onnx", reason="onnx is not installed; run make test-heavy")

import planner  # noqa: E402
from planner.importers.onnx_model import read_onnx  # noqa: E402

nn: Any = torch.nn
FlopCounterMode: Any = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode
# The exporter by tracing needs no onnxscript; torch calls it old, and warns of what it does to the graph.
pytestmark = [
    pytest.mark.filterwarnings("ignore:You are using the legacy TorchScript-based ONNX export:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Setting .training. to something other than default:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The feature will be removed:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:Exporting a model to ONNX with a batch_size other than 1:UserWarning"),
    pytest.mark.filterwarnings("ignore:ONNX Preprocess - Removing mutation:UserWarning"),
]


class Images(nn.Module):  # type: ignore[misc,unused-ignore]
    """Grouped and plain convolutions, batch norm, a shortcut, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.head = nn.Linear(6, 10)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        x = self.up(x + self.body(x))
        return self.head(x.mean((2, 3)))


class Words(nn.Module):  # type: ignore[misc,unused-ignore]
    """A tied table of words around an encoder of three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 3)

    def forward(self, ids: Any) -> Any:
        return self.encoder(self.table(ids)) @ self.table.weight.T


class Steps(nn.Module):  # type: ignore[misc,unused-ignore]
    """Two layers of a bidirectional LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 20, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(40, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0])


def imported(module: Any, example: Any, path: Path, *, is_training: bool, folds: bool = False, axes: Any = None) -> Any:
    """Export a module and read the file."""
    mode = torch.onnx.TrainingMode.TRAINING if is_training else torch.onnx.TrainingMode.EVAL
    torch.onnx.export(
        module.train(is_training),
        (example,),
        str(path),
        dynamo=False,
        training=mode,
        do_constant_folding=folds,
        input_names=["x"],
        dynamic_axes={"x": axes or {0: "batch"}},
    )
    return read_onnx(path, sizes={name: example.shape[axis] for axis, name in (axes or {}).items() if axis})


def multiply_adds(module: Any, example: Any) -> Any:
    """Return torch's own count of one sample's forward pass."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module.train()(example)
    return counter.get_total_flops() // 2


def num_parameters(module: Any) -> Any:
    return sum(one.numel() for one in module.parameters())


@pytest.mark.parametrize("axes", [None, {0: "batch", 2: "height", 3: "width"}])
def test_convolutions_count_as_torch_counts_them(tmp_path: Path, axes: Any) -> None:
    module, example = Images(), torch.zeros(1, 3, 16, 16)
    found = imported(module, example, tmp_path / "m.onnx", is_training=True, axes=axes)
    assert found.warnings == ()
    assert found.dnn.num_multiply_adds == multiply_adds(module, example)
    assert found.dnn.num_trainable == num_parameters(module)
    assert found.dnn.num_moving == 2 * 8
    roles = {tensor.role for layer in found.dnn.layers for tensor in layer.tensors}
    assert roles == {"weight", "bias", "scale", "shift", "moving"}


def test_an_export_for_inference_folds_the_norm_and_says_so(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    found = imported(module, torch.zeros(1, 3, 8, 8), tmp_path / "m.onnx", is_training=False, folds=True)
    assert found.dnn.num_trainable == 3 * 8 * 9 + 8
    assert any("folded" in note for note in found.notes)


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("length", [7, 12])
def test_a_transformer_counts_as_torch_counts_it_at_any_length(tmp_path: Path, is_training: bool, length: int) -> None:
    module, example = Words(), torch.zeros(1, length, dtype=torch.int64)
    axes = {0: "batch", 1: "length"}
    found = imported(module, example, tmp_path / "m.onnx", is_training=is_training, axes=axes)
    # The layers of the encoder start as copies of one, which an export for inference stores once.
    assert len(found.warnings) == (not is_training)
    assert all("matrices are stored once with another of equal numbers" in one for one in found.warnings)
    assert found.dnn.num_trainable == num_parameters(module)
    # The counter looks into the attention only where it is not fused.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = multiply_adds(module, example)
    assert found.dnn.num_multiply_adds == expected
    assert max(one.count for one in found.dnn.repeats) == 3


def test_folded_constants_hide_that_a_matrix_is_tied(tmp_path: Path) -> None:
    # The exporter stores the transposed table a second time: nothing in the file tells that it is the same.
    module, axes = Words(), {0: "batch", 1: "length"}
    found = imported(
        module, torch.zeros(1, 7, dtype=torch.int64), tmp_path / "m.onnx", is_training=False, folds=True, axes=axes
    )
    assert found.dnn.num_trainable == num_parameters(module) + 50 * 32


def test_an_lstm_counts_as_its_matrices(tmp_path: Path) -> None:
    module, example = Steps(), torch.zeros(1, 7, 12)
    found = imported(module, example, tmp_path / "m.onnx", is_training=True)
    assert found.warnings == ()
    assert found.dnn.num_trainable == num_parameters(module)
    weights = sum(one.numel() for name, one in module.named_parameters() if "bias" not in name)
    assert found.dnn.num_multiply_adds == 7 * weights


def test_a_fixed_batch_gives_the_figures_of_one_sample(tmp_path: Path) -> None:
    module = Images().train()
    torch.onnx.export(module, (torch.zeros(4, 3, 16, 16),), str(tmp_path / "m.onnx"), dynamo=False,
                      training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)  # fmt: skip
    found = read_onnx(tmp_path / "m.onnx")
    assert found.dnn.num_multiply_adds == multiply_adds(module, torch.zeros(1, 3, 16, 16).repeat(2, 1, 1, 1)) // 2
    assert any("4 samples" in note for note in found.notes)


def test_a_step_takes_about_as_long_by_either_way_of_reading_a_network(tmp_path: Path) -> None:
    block = nn.TransformerEncoderLayer(192, 3, 768, batch_first=True, norm_first=True, activation="gelu")
    module, example = nn.TransformerEncoder(block, 4, enable_nested_tensor=False), torch.zeros(4, 197, 192)
    exported = imported(module, example, tmp_path / "model.onnx", is_training=False)
    traced = planner.from_torch(module.train(), example)
    machines = [{"count": 1, "devices": 1, "device": "rtx-4090"}]
    seconds = [
        planner.plan(
            {
                "dnn": {"network": one, "batch_per_device": 96},
                "cluster": {"machines": machines},
                "families": ["all_reduce"],
                "objective": "iteration_time",
            }
        ).objective
        for one in (exported, traced)
    ]
    # A graph has scores and dropout apart, which torch fuses; products of heads and views are the same.
    assert seconds[0] == pytest.approx(seconds[1], rel=0.25)
