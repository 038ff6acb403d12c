"""Nothing of a PyTorch module is lost: totals are those of torch's own counter, and what autograd keeps."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_nets import QUIET, Residual, counted_flop

from planner.dnn import Dnn
from planner.importers.torch_module import from_torch

torch: Any = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
nn: Any = torch.nn
pytestmark = QUIET
SMALL: dict[str, tuple[Any, Any]] = {
    "residual": (Residual, lambda: torch.randn(4, 3, 8, 8)),
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 2)), lambda: torch.randn(3, 6)),
    "grouped convolution": (lambda: nn.Conv2d(8, 8, 3, groups=4, dilation=2), lambda: torch.randn(2, 8, 9, 9)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(3, 5, 4, stride=2), lambda: torch.randn(2, 3, 6, 6)),
    "1-D convolution": (lambda: nn.Conv1d(3, 5, 4), lambda: torch.randn(2, 3, 9)),
    "lstm": (lambda: nn.LSTM(4, 5, 2, batch_first=True), lambda: torch.randn(3, 6, 4)),
    "gru": (lambda: nn.GRU(4, 5, batch_first=True, bidirectional=True), lambda: torch.randn(3, 6, 4)),
    "bilinear": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)), lambda: torch.randn(3, 4)),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_totals_are_those_of_torchs_counter(name: str) -> None:
    make, example = SMALL[name]
    module, given = make(), example()
    found = from_torch(module, given)
    once = counted_flop(module, given)
    batch = found.facts["counted_batch"]
    assert batch == given.shape[0]
    assert 2 * (batch * found.dnn.num_multiply_adds + found.facts["fixed_multiply_adds"]) == once
    assert found.facts["forward_flop"] == once / batch
    assert found.dnn.num_trainable == sum(one.numel() for one in module.parameters())
    assert_operators_add_up(found.dnn)


def assert_operators_add_up(dnn: Dnn) -> None:
    for layer in dnn.layers:
        assert sum(one.num_multiply_adds for one in layer.operators) == layer.num_multiply_adds
        assert bool(layer.operators) is (layer.kind != "input")
        for one in (one for one in layer.operators if one.num_multiply_adds):
            assert one.product is not None
            once = one.product.rows * one.product.inner * one.product.columns * one.product.count
            if one.kind != "recurrent":  # whose layers have several widths
                assert one.num_multiply_adds == once * (2 if one.kind == "attention" else 1)


PARTS: dict[str, Any] = {
    "linear": lambda: nn.Linear(6, 6),
    "combined": lambda: Combined(),  # noqa: PLW0108  # defined below
    "norm": lambda: nn.LayerNorm(6),
    "relu": lambda: nn.ReLU(inplace=True),
    "gelu": nn.GELU,
    "dropout": lambda: nn.Dropout(0.5),
    "attention": lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True),
    "convolution": lambda: nn.Sequential(nn.Conv1d(5, 5, 3, padding=1, groups=5), nn.BatchNorm1d(5)),
    "gru": lambda: Recurrent(),  # noqa: PLW0108  # as above
}


class Combined(nn.Module):  # type: ignore[misc]
    """Branches, a module used twice, and products of activations."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)

    def forward(self, x: Any) -> Any:
        scores = torch.softmax(self.one(x) @ self.two(x).transpose(1, 2), -1)
        return x + torch.chunk(torch.cat([scores @ self.one(x), x.sin()], -1), 2, -1)[0]


class Recurrent(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(6, 6, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


@settings(max_examples=25)
@given(names=st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=5), batch=st.integers(1, 3))
def test_nothing_of_any_chain_of_parts_is_lost(names: list[str], batch: int) -> None:
    module = nn.Sequential(nn.Linear(6, 6), *(PARTS[name]() for name in names))
    found = from_torch(module, torch.randn(batch, 5, 6))
    counted = int(found.facts["counted_batch"])
    once = counted_flop(module.to("meta"), torch.empty(counted, 5, 6, device="meta"))
    assert 2 * (counted * found.dnn.num_multiply_adds + found.facts["fixed_multiply_adds"]) == once
    assert found.dnn.num_trainable == sum(one.numel() for one in module.parameters())
    ends = [one.name for one in found.dnn.layers if not found.dnn.graph.out_degree(one.name)]
    assert ends == [found.dnn.layers[-1].name]
    assert all(found.dnn.inputs_of(one.name) for one in found.dnn.layers if one.kind != "input")
    assert not found.warnings
    assert_operators_add_up(found.dnn)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_figures_of_one_sample_do_not_depend_on_the_examples_batch(batch: int) -> None:
    found = from_torch(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), torch.zeros(batch, 7, 16))
    tokens, width, inner = 7, 16, 32
    products = 4 * tokens * width * width + 2 * tokens * tokens * width + 2 * tokens * width * inner
    assert found.dnn.num_multiply_adds == products
    assert not found.warnings


def test_what_autograd_keeps_is_what_it_keeps_with_real_numbers() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4)
    )
    image = torch.randn(4, 3, 8, 8)
    held = {one.untyped_storage().data_ptr() for one in (*module.parameters(), *module.buffers())}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            kept[storage.data_ptr()] = storage  # kept alive, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(image)
    found = from_torch(module, image)
    real = sum(storage.nbytes() for storage in kept.values())
    assert 4 * found.facts["saved_bytes"] + found.facts["fixed_saved_bytes"] == real
    assert found.facts["fixed_saved_bytes"] == 2 * 8 * 4  # mean and deviation of every channel


@pytest.mark.parametrize("name", ["mlp", "1-D convolution", "lstm", "gru", "bilinear"])
def test_backward_flop_are_those_of_torchs_counter(name: str) -> None:
    counter_mode: Any = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode
    module, given = SMALL[name][0]().to("meta"), SMALL[name][1]().to("meta")
    with counter_mode(display=False) as counter:
        ends = torch.utils._pytree.tree_leaves(module(given))
        torch.autograd.backward(ends, [torch.empty_like(one) for one in ends])
    found = from_torch(module, given)
    total = found.facts["counted_batch"] * (found.facts["forward_flop"] + found.facts["backward_flop"])
    assert total == counter.get_total_flops()


def test_a_ratio_of_backward_to_forward_is_counted() -> None:
    found = from_torch(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.zeros(2, 8))
    # The first layer's input needs no gradient.
    assert found.facts["backward_flop"] / found.facts["forward_flop"] == 1.5


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_both_gradients_of_a_convolution_take_as_much_as_its_forward_pass(groups: int, is_transposed: bool) -> None:
    make = nn.ConvTranspose2d if is_transposed else nn.Conv2d
    module = nn.Sequential(nn.Conv2d(3, 8, 1), make(8, 16, 3, stride=2, groups=groups))
    found = from_torch(module, torch.zeros(2, 3, 9, 9))
    first, second = (one.num_multiply_adds for one in found.dnn.layers[1:])
    assert found.facts["backward_flop"] == 2 * first + 4 * second  # the image itself needs no gradient
