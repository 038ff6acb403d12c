"""Modules of torch against torch's own counters, published sizes and the zoo."""

from typing import Any

import pytest
from torch_nets import QUIET, Residual, counted_flop

from planner.dnn import Dnn
from planner.errors import SpecError
from planner.importers.imported import Imported
from planner.importers.torch_module import from_torch

torch: Any = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
nn: Any = torch.nn
functional: Any = torch.nn.functional

pytestmark = QUIET


def layer(found: Imported | Dnn, name: str) -> Any:
    dnn = found.dnn if isinstance(found, Imported) else found
    return next(one for one in dnn.layers if one.name == name)


# -- layers and edges --------------------------------------------------------------------------------------------------


def test_branches_and_operators_between_modules_are_layers_with_their_edges() -> None:
    found = from_torch(Residual(), torch.zeros(2, 3, 8, 8))
    dnn = found.dnn
    assert dnn.inputs_of("second") == ("relu",)
    assert dnn.inputs_of("add") == ("second", "shortcut")
    assert dnn.inputs_of("shortcut") == ("input",)
    assert layer(dnn, "add").kind == "add"
    assert layer(dnn, "cat").kind == "concatenate"
    assert layer(dnn, "first").output_shape == (8, 8, 8)
    assert dnn.num_moving == 16  # mean and variance of the batch norm
    assert {tensor.role for tensor in layer(dnn, "norm").tensors} == {"scale", "shift", "moving"}


def test_operators_whose_results_are_not_kept_melt_into_their_reader() -> None:
    class Scaled(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.two(((self.one(x) + 1) * 2 - 3).transpose(1, 2).contiguous().transpose(1, 2))

    found = from_torch(Scaled(), torch.zeros(2, 3, 4))
    assert [one.kind for one in found.dnn.layers] == ["input", "matmul", "add", "matmul"]


def test_a_module_used_twice_has_its_parameters_once() -> None:
    class Twice(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.shared(torch.relu(self.shared(x)))

    found = from_torch(Twice(), torch.zeros(2, 4))
    assert [one.name for one in found.dnn.layers] == ["input", "shared", "relu", "shared_2"]
    assert found.dnn.num_trainable == 20
    assert found.dnn.num_multiply_adds == 32
    assert any("used several times, with the same parameters: shared" in note for note in found.notes)


def test_tied_parameters_count_once() -> None:
    class Tied(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.logits = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
            self.logits.weight = self.words.weight

        def forward(self, ids: Any) -> Any:
            return self.logits(self.words(ids))

    found = from_torch(Tied(), torch.zeros(2, 3, dtype=torch.long))
    assert found.dnn.num_trainable == 40
    assert layer(found, "logits").tensors == ()
    assert layer(found, "words").kind == "embedding"
    assert not found.warnings


def test_frozen_and_unread_parameters_are_told() -> None:
    class Odd(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.frozen.requires_grad_(False)

        def forward(self, x: Any) -> Any:
            return self.used(self.frozen(x))

    found = from_torch(Odd(), torch.zeros(2, 4))
    assert (found.dnn.num_trainable, found.dnn.num_moving) == (20, 20)
    assert any("20 parameters have no gradient" in note for note in found.notes)
    assert any("2 parameters are not read and left out: unused.weight, unused.bias" in one for one in found.warnings)


@pytest.mark.parametrize("is_training", [True, False])
def test_the_mode_of_the_module_is_kept(is_training: bool) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)).train(is_training)
    found = from_torch(module, torch.zeros(2, 4))
    assert any("evaluation mode" in note for note in found.notes) is not is_training
    assert any(one.kind == "dropout" for one in found.dnn.layers) is is_training


def test_a_compiled_module_is_read_like_the_module_within() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    plain, compiled = (from_torch(one, torch.zeros(2, 4)).dnn for one in (module, torch.compile(module)))
    assert [one.kind for one in plain.layers] == [one.kind for one in compiled.layers]
    assert plain.num_multiply_adds == compiled.num_multiply_adds == 18


def test_a_scripted_module_is_refused() -> None:
    with pytest.warns(DeprecationWarning):
        scripted = torch.jit.script(nn.Linear(4, 3))
    with pytest.raises(SpecError, match="compiled by TorchScript, which hides its modules"):
        from_torch(nn.Sequential(scripted), torch.zeros(2, 4))


def test_mixed_precision_by_autocast_loses_nothing() -> None:
    class Short(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.two(self.one(x))

    found = from_torch(Short(), torch.zeros(2, 4))
    assert (found.dnn.num_trainable, found.dnn.num_multiply_adds) == (40, 32)
    assert [one.name for one in found.dnn.layers if one.num_multiply_adds] == ["one", "two"]


def test_lazy_modules_get_their_shapes() -> None:
    module = nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(4))
    found = from_torch(module, torch.zeros(2, 3, 6, 6))
    assert found.dnn.num_trainable == 8 * 3 * 9 + 8 + 16 + 8 * 16 * 4 + 4
    assert isinstance(module[0].weight, nn.parameter.UninitializedParameter)


@pytest.mark.parametrize("example", ["tuple", "dict", "both", "list"])
def test_arguments_come_as_a_tuple_or_by_name(example: str) -> None:
    class Pair(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 3), nn.Linear(5, 3)

        def forward(self, left: Any, right: Any, scale: float = 1.0) -> Any:
            return self.one(left) + scale * self.two(right)

    left, right = torch.zeros(2, 4), torch.zeros(2, 5)
    given: Any = {
        "tuple": (left, right),
        "list": [left, right, 2.0],
        "dict": {"left": left, "right": right, "scale": 2.0},
        "both": ((left,), {"right": right}),
    }[example]
    found = from_torch(Pair(), given, name="pair")
    assert found.dnn.name == "pair"
    assert [one.name for one in found.dnn.layers if one.kind == "input"] == ["left", "right"]
    assert found.dnn.num_multiply_adds == 27


def test_work_on_parameters_alone_is_told_apart() -> None:
    class Merged(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(8, 2)), nn.Parameter(torch.randn(2, 8))

        def forward(self, x: Any) -> Any:
            return x @ (self.a @ self.b)

    module, given = Merged(), torch.zeros(3, 8)
    found = from_torch(module, given)
    assert found.facts["fixed_multiply_adds"] == 8 * 2 * 8
    assert found.dnn.num_multiply_adds == 64
    assert found.dnn.num_trainable == 32
    assert counted_flop(module, given) == 2 * (3 * 64 + 128)


def test_parametrized_weights_belong_to_the_layer_that_reads_them() -> None:
    module = nn.utils.parametrizations.weight_norm(nn.Linear(4, 6))
    found = from_torch(module, torch.zeros(2, 4))
    assert found.dnn.num_trainable == 24 + 6 + 6
    assert found.dnn.num_multiply_adds == 24
