"""The PyTorch module stays as it is; what cannot be read is refused with the way out."""

import copy
from typing import Any

import pytest
from torch_nets import QUIET, Residual, on_meta

from planner.errors import SpecError
from planner.importers.torch_module import from_torch

torch: Any = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
nn: Any = torch.nn
functional: Any = torch.nn.functional
pytestmark = QUIET


def test_the_module_is_not_changed() -> None:
    module = Residual()
    module.table = torch.arange(4.0)  # neither parameter nor buffer
    before = copy.deepcopy(module.state_dict())
    from_torch(module, torch.randn(4, 3, 8, 8))
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert {one.device.type for one in module.parameters()} == {"cpu"}
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in module.modules())
    assert all(one.grad is None for one in module.parameters())
    assert functional.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention


def test_the_same_module_gives_the_same_network() -> None:
    module = Residual()
    one, two = (from_torch(module, torch.zeros(2, 3, 8, 8)).dnn for _ in range(2))
    assert one.layers == two.layers
    assert [one.inputs_of(x.name) for x in one.layers] == [two.inputs_of(x.name) for x in two.layers]


def test_large_modules_on_meta_take_no_memory() -> None:
    module = on_meta(lambda: nn.Sequential(*[nn.Linear(2**17, 2**17, bias=False) for _ in range(4)]))
    found = from_torch(module, torch.zeros(1, 2**17, device="meta"))
    assert found.dnn.num_trainable == 4 * 2**34
    assert found.dnn.repeats


@pytest.mark.parametrize(
    ("module", "example", "problem"),
    [
        (object, lambda: torch.zeros(2, 4), "object is no torch.nn.Module"),
        (lambda: nn.Linear(4, 4), lambda: 3, "has no tensor"),
        (lambda: nn.Linear(4, 4), lambda: torch.tensor(1.0), "begins with a tensor of shape \\(\\)"),
        (lambda: nn.Linear(4, 4), lambda: torch.zeros(0, 4), "begins with a tensor of shape \\(0, 4\\)"),
        (lambda: nn.Linear(4, 4), lambda: torch.zeros(2, 5), "forward pass fails .* RuntimeError"),
    ],
)
def test_what_is_no_module_or_no_example_is_refused(module: Any, example: Any, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        from_torch(module(), example())


@pytest.mark.parametrize("how", ["item", "if", "tolist", "nonzero"])
def test_a_path_that_depends_on_values_is_refused_with_the_way_out(how: str) -> None:
    class Dependent(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            x = self.layer(x)
            if how == "item":
                return x * x.sum().item()
            if how == "tolist":
                return x * x.sum(1).tolist()[0]
            if how == "nonzero":
                return x[x.sum(1).nonzero()[:, 0]]
            return x if x.sum() > 0 else -x

    with pytest.raises(SpecError, match="depend") as caught:
        from_torch(Dependent(), torch.zeros(2, 4))
    assert caught.value.faults[0].mend


def test_questions_about_shapes_and_masks_are_answered() -> None:
    class Asking(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.layer = nn.Embedding(9, 4), nn.Linear(4, 4)

        def forward(self, ids: Any, mask: Any) -> Any:
            x = self.words(ids)
            positions = torch.arange(ids.shape[1], device=ids.device)
            square = torch.arange(6).view(2, 3)
            turned = square.view(2, 3).t_()
            square += 1
            if int(turned[2, 1]) != 6 or int(square[1, 2]) != 6 or square.view(2, 3).sum().item() != 21:
                raise AssertionError
            if not bool(mask.all()) or int(positions.max()) != ids.shape[1] - 1:
                raise AssertionError
            return self.layer(x)

    example = (torch.zeros(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.bool))
    assert from_torch(Asking(), example).dnn.num_multiply_adds == 5 * 16


def test_a_module_that_cannot_be_copied_is_refused() -> None:
    module = nn.Linear(4, 4)
    module.handle = (x for x in range(3))
    with pytest.raises(SpecError, match="Linear cannot be copied: TypeError"):
        from_torch(module, torch.zeros(2, 4))


def test_an_operator_without_shapes_is_refused_until_torch_knows_them() -> None:
    @torch.library.custom_op("planner_tests::twice", mutates_args=())  # type: ignore[untyped-decorator]
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    class Custom(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return twice(torch.relu(x))

    with pytest.raises(SpecError, match=r"Tell torch what shape that operator puts out: torch.library.register_fake"):
        from_torch(Custom(), torch.zeros(2, 4))
    twice.register_fake(torch.empty_like)
    found = from_torch(Custom(), torch.zeros(2, 4))
    assert "planner_tests.twice (1); 50 % of the elements that are read and written are theirs" in found.warnings[0]


def test_what_is_not_installed_is_told() -> None:
    class Needing(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            raise ImportError("Please install this")

    with pytest.raises(SpecError, match=r"Please install this. Install what it names"):
        from_torch(Needing(), torch.zeros(1, 4))
