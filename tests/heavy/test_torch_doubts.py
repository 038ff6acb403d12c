"""What makes the figures of a PyTorch module doubtful is told."""

from typing import Any

import pytest
from torch_nets import QUIET, counted_flop

from planner.importers.torch_module import from_torch

torch: Any = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
nn: Any = torch.nn
pytestmark = QUIET


def test_operators_without_a_formula_are_named_and_counted() -> None:
    class Spectral(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return torch.cdist(torch.fft.rfft(self.layer(x)).abs(), x[..., :5])

    found = from_torch(Spectral(), torch.zeros(2, 30, 8))
    (warning,) = [one for one in found.warnings if "without a formula" in one]
    assert "aten._fft_r2c (1)" in warning
    assert "aten._cdist_forward (1)" in warning or "aten._euclidean_dist (1)" in warning
    assert not any("elementwise" in one for one in found.warnings)


def test_common_networks_have_no_unknown_operators() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), nn.AvgPool2d(2), nn.Upsample(scale_factor=2), nn.Dropout2d(),
        nn.AdaptiveMaxPool2d(4), nn.PixelShuffle(2), nn.InstanceNorm2d(2), nn.PReLU(), nn.Flatten(), nn.LogSoftmax(1),
    )  # fmt: skip
    assert not from_torch(module, torch.zeros(2, 3, 16, 16)).warnings


class Doubled(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return 2 * grad


def test_custom_autograd_functions_are_told() -> None:
    class Custom(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return Doubled.apply(self.layer(x))

    found = from_torch(Custom(), torch.zeros(2, 4))
    assert any("custom autograd functions" in one and "Doubled" in one for one in found.warnings)


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_checkpoints_are_told_and_keep_their_input_alone(is_reentrant: bool) -> None:
    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, is_checkpointed: bool) -> None:
            super().__init__()
            self.start = nn.Linear(8, 8)
            self.body = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
            self.is_checkpointed = is_checkpointed

        def forward(self, x: Any) -> Any:
            x = self.start(x)
            if self.is_checkpointed:
                return torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=is_reentrant)
            return self.body(x)

    plain, saved = from_torch(Block(False), torch.zeros(2, 8)), from_torch(Block(True), torch.zeros(2, 8))
    assert saved.dnn.num_multiply_adds == plain.dnn.num_multiply_adds
    assert any("checkpointed" in note for note in saved.notes)
    assert not any("checkpointed" in note for note in plain.notes)
    assert saved.facts["saved_bytes"] == (8 + 8) * 4  # the input, and what the checkpoint reads
    assert plain.facts["saved_bytes"] == (8 + 8 + 64) * 4
    # Without reentrance the second pass ends where nothing more is needed: before the last product.
    again = 2 if is_reentrant else 1
    assert saved.facts["backward_flop"] == plain.facts["backward_flop"] + again * 2 * 8 * 64


def test_work_that_grows_faster_than_the_batch_is_told() -> None:
    class Contrast(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            features = self.layer(x)
            return features @ features.T

    given = torch.zeros(4, 4)
    module = Contrast()
    found = from_torch(module, given)
    assert any("grows faster than the batch" in one for one in found.warnings)
    assert 2 * (4 * found.dnn.num_multiply_adds + found.facts["fixed_multiply_adds"]) == counted_flop(module, given)


def test_a_module_bound_to_its_batch_is_taken_as_it_is() -> None:
    class Bound(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.layer(x).view(3, 4)

    found = from_torch(Bound(), torch.zeros(3, 4))
    assert any("with twice the batch the module does not run alike" in one for one in found.warnings)
    assert found.dnn.num_multiply_adds == 16
