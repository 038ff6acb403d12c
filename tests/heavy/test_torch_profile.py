"""Traces that torch's own profiler writes here, read and compared with what the profiler itself sums up."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.errors import SpecError
from planner.importers.chrome_trace import read_chrome_trace
from planner.importers.imported import MeasuredNetwork
from planner.importers.kinds import kind_of
from planner.importers.torch_module import from_torch

torch: Any = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
nn: Any = torch.nn

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*Profiler clears events at the end of each cycle.*:UserWarning", "ignore::DeprecationWarning:torch"
)
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "make_traces.py"
BATCH_SIZE = 4


def convolutional() -> tuple[Any, Any]:
    parts = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 7 * 7, 5)]
    return nn.Sequential(*parts), torch.randn(BATCH_SIZE, 3, 16, 16)


def transformer() -> tuple[Any, Any]:
    block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    return nn.Sequential(nn.Linear(6, 16), block, nn.Linear(16, 3)), torch.randn(BATCH_SIZE, 10, 6)


def checkpointed() -> tuple[Any, Any]:
    class Checkpointed(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.start, self.body = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 6))

        def forward(self, x: Any) -> Any:
            return torch.utils.checkpoint.checkpoint(self.body, self.start(x), use_reentrant=False)

    return Checkpointed(), torch.randn(BATCH_SIZE, 6)


def profiled(path: Path, module: Any, example: Any, *, num_steps: int = 3, times: int = 1, **options: Any) -> list[Any]:
    """Train for some steps under the profiler, write the trace, and return the profiler's own events."""
    events: list[Any] = []

    def done(profiler: Any) -> None:
        profiler.export_chrome_trace(str(path))
        events.extend(profiler.events())

    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def train() -> None:
        optimizer.zero_grad()
        for _ in range(times):
            module(example).square().mean().backward()
        optimizer.step()

    train()
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=num_steps, repeat=1)
    given = {"with_stack": True, "record_shapes": True, "schedule": schedule, **options}
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        on_trace_ready=done,
        **given,
    ) as profiler:
        for _ in range(num_steps + 1):
            train()
            profiler.step()
    return events


def sums(found: MeasuredNetwork) -> tuple[float, float]:
    """Seconds of a batch, forward and backward."""
    return BATCH_SIZE * float(found.profile.forward_s.sum()), BATCH_SIZE * float(found.profile.backward_s.sum())


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_the_modules_of_a_real_trace_are_those_of_the_network(tmp_path: Path, ending: str) -> None:
    module, example = convolutional()
    path = tmp_path / f"trace.{ending}"
    profiled(path, module, example)
    assert kind_of(path) == "chrome_trace"
    measured = read_chrome_trace(path, batch_size=BATCH_SIZE)
    counted = from_torch(module, example).dnn
    expected = [layer for layer in counted.layers if layer.kind != "input"]
    own = [layer for layer in measured.dnn.layers if layer.kind != "flatten"]
    assert [layer.kind for layer in own] == [layer.kind for layer in expected]
    assert [layer.num_trainable for layer in own] == [layer.num_trainable for layer in expected]
    assert [layer.num_output_elements for layer in own] == [layer.num_output_elements for layer in expected]
    assert (measured.profile.backward_s > 0).all()


@pytest.mark.parametrize("make", [convolutional, transformer, checkpointed])
def test_one_steps_seconds_sum_to_what_the_profiler_sums(tmp_path: Path, make: Any) -> None:
    module, example = make()
    path = tmp_path / "trace.json"
    events = profiled(path, module, example, num_steps=1)
    forward_s, backward_s = sums(read_chrome_trace(path, batch_size=BATCH_SIZE))
    back = [one for one in events if one.name.startswith("autograd::engine::evaluate_function")]
    back = [one for one in back if one.cpu_parent is None or not one.cpu_parent.name.startswith("autograd::engine")]
    total_back_s = 1e-6 * sum(one.time_range.elapsed_us() for one in back)
    assert 0 < backward_s <= total_back_s * 1.001
    # All but the loss's own nodes (mean, square and the multiplication within).
    loss = [one for one in back if any(word in one.name for word in ("Mean", "Pow"))]
    loss_s = 1e-6 * sum(one.time_range.elapsed_us() for one in loss)
    assert backward_s == pytest.approx(total_back_s - loss_s, rel=0.02)
    assert forward_s > 0


def test_what_a_checkpoint_runs_again_is_backward(tmp_path: Path) -> None:
    module, example = checkpointed()
    path = tmp_path / "trace.json"
    profiled(path, module, example)
    found = read_chrome_trace(path, batch_size=BATCH_SIZE)
    names = [layer.name for layer in found.dnn.layers]
    assert [name for name in names if name.startswith(("Linear", "Tanh"))] == [
        "Linear_0",
        "Linear_1",
        "Tanh_0",
        "Linear_2",
    ]
    for name in ("Linear_0", "Linear_1", "Linear_2"):
        assert found.profile.backward_s[names.index(name)] > 0


def test_several_forward_passes_of_a_step_are_summed(tmp_path: Path) -> None:
    module, example = convolutional()
    profiled(tmp_path / "one.json", module, example)
    profiled(tmp_path / "two.json", module, example, times=2)
    one, two = (read_chrome_trace(tmp_path / f"{name}.json", batch_size=BATCH_SIZE) for name in ("one", "two"))
    assert [layer.kind for layer in one.dnn.layers] == [layer.kind for layer in two.dnn.layers]
    assert one.dnn.num_trainable == two.dnn.num_trainable


def test_operators_of_a_module_with_modules_within_keep_their_place(tmp_path: Path) -> None:
    module, example = transformer()
    path = tmp_path / "trace.json"
    profiled(path, module, example)
    found = read_chrome_trace(path, batch_size=BATCH_SIZE)
    names = [layer.name for layer in found.dnn.layers]
    order = [name.split(".")[0] for name in names]
    assert order.index("MultiheadAttention_0") < order.index("LayerNorm_0") < order.index("Linear_1")
    attention = found.dnn.layers[order.index("MultiheadAttention_0")]
    assert attention.num_trainable > 0 or attention.kind in ("fully_connected", "attention", "matmul")
    assert any(name.startswith("TransformerEncoderLayer_0.add") for name in names)


def test_a_trace_without_stacks_is_refused_with_the_options_to_use(tmp_path: Path) -> None:
    module, example = convolutional()
    path = tmp_path / "trace.json"
    profiled(path, module, example, with_stack=False)
    with pytest.raises(SpecError, match=r"there are no modules .* torch.profiler.profile\(with_stack=True"):
        read_chrome_trace(path, batch_size=BATCH_SIZE)


def test_the_script_makes_traces_like_those_that_are_kept(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(SCRIPT), "--folder", str(tmp_path)], capture_output=True, check=True)
    kept = Path(__file__).parents[1] / "importers" / "data"
    for name in ("cnn", "cnn_ranges"):
        old, new = (
            read_chrome_trace(folder / f"{name}.pt.trace.json.gz", batch_size=16) for folder in (kept, tmp_path)
        )
        assert [(layer.name, layer.output_shape) for layer in old.dnn.layers] == [
            (layer.name, layer.output_shape) for layer in new.dnn.layers
        ]
        assert (tmp_path / f"{name}.pt.trace.json.gz").stat().st_size < 100_000
        assert [layer.tensors for layer in old.dnn.layers] == [layer.tensors for layer in new.dnn.layers]
