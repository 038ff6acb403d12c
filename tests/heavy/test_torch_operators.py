"""What a module of torch computes and moves for one sample, operator by operator."""

from typing import Any

import pytest

from planner.dnn import Operator, Product
from planner.importers.torch_module import from_torch

torch: Any = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
nn: Any = torch.nn
functional: Any = torch.nn.functional
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*`torch.nn.utils.weight_norm`.*:FutureWarning",
    "ignore::DeprecationWarning:torch",
)


class Does(nn.Module):  # type: ignore[misc]
    """A function of the input, with some parameters."""

    def __init__(self, function: Any, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.zeros(shape)))
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(self, *given)


def operators(module: Any, example: Any) -> list[Operator]:
    return [one for layer in from_torch(module, example).dnn.layers for one in layer.operators]


def product(rows: float, inner: int, columns: int, count: int = 1) -> Product:
    return Product(rows=rows, inner=inner, columns=columns, count=count)


# Kind, multiply-adds, elements read and written of a sample, weights, and the product.
Row = tuple[str, int, int, int, int, Product | None]
IMAGE = (8, 6, 6)
ONE: dict[str, tuple[Any, tuple[int, ...], Row]] = {
    "convolution": (
        lambda: nn.Conv2d(8, 16, 3, padding=1),
        IMAGE,
        ("convolution", 36 * 72 * 16, 288, 576, 16 * 72 + 16, product(36, 72, 16)),
    ),
    "strided, without bias": (
        lambda: nn.Conv2d(8, 16, 3, stride=2, bias=False),
        IMAGE,
        ("convolution", 4 * 72 * 16, 288, 64, 16 * 72, product(4, 72, 16)),
    ),
    "grouped": (
        lambda: nn.Conv2d(8, 16, 3, padding=1, groups=4, bias=False),
        IMAGE,
        ("convolution", 36 * 18 * 16, 288, 576, 16 * 18, product(36, 18, 4, 4)),
    ),
    "depth-wise": (
        lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
        IMAGE,
        ("convolution", 36 * 9 * 8, 288, 288, 72, product(36, 9, 1, 8)),
    ),
    "transposed": (
        lambda: nn.ConvTranspose2d(8, 16, 2, stride=2, groups=2, bias=False),
        IMAGE,
        ("convolution", 36 * 4 * 32 * 2, 288, 16 * 144, 8 * 8 * 4, product(36, 4, 32, 2)),
    ),
    "of one dimension": (
        lambda: nn.Conv1d(3, 5, 4, bias=False),
        (3, 9),
        ("convolution", 6 * 12 * 5, 27, 30, 60, product(6, 12, 5)),
    ),
    "linear": (lambda: nn.Linear(6, 7), (6,), ("matmul", 42, 6, 7, 49, product(1, 6, 7))),
    "of tokens": (lambda: nn.Linear(6, 7), (5, 6), ("matmul", 210, 30, 35, 49, product(5, 6, 7))),
    "stacked weights": (
        lambda: Does(lambda self, x: torch.einsum("btd,tdf->btf", x, self.w), w=(5, 6, 7)),
        (5, 6),
        ("matmul", 5 * 42, 30, 35, 210, product(1, 6, 7, 5)),
    ),
    "weights first": (
        lambda: Does(lambda self, x: self.w @ x.T, w=(7, 6)),
        (6,),
        ("matmul", 42, 6, 7, 42, product(1, 6, 7)),
    ),
    "batch norm": (lambda: nn.BatchNorm2d(8), IMAGE, ("batch_norm", 0, 288, 288, 32, None)),
    "layer norm": (lambda: nn.LayerNorm(6), (5, 6), ("norm", 0, 30, 30, 12, None)),
    "group norm": (lambda: nn.GroupNorm(2, 8), IMAGE, ("group_norm", 0, 288, 288, 16, None)),
    "instance norm": (lambda: nn.InstanceNorm2d(8), IMAGE, ("norm", 0, 288, 288, 0, None)),
    "softmax": (lambda: nn.Softmax(-1), (5, 6), ("softmax", 0, 30, 30, 0, None)),
    "max pool": (lambda: nn.MaxPool2d(2), IMAGE, ("pooling", 0, 288, 72, 0, None)),
    "adaptive pool": (lambda: nn.AdaptiveAvgPool2d(2), IMAGE, ("pooling", 0, 288, 32, 0, None)),
    "mean": (lambda: Does(lambda _, x: x.mean((2, 3))), IMAGE, ("reduction", 0, 288, 8, 0, None)),
    "relu": (lambda: nn.ReLU(), (6,), ("element_wise", 0, 6, 6, 0, None)),  # noqa: PLW0108
    "relu in place": (lambda: nn.ReLU(inplace=True), (6,), ("element_wise", 0, 6, 6, 0, None)),
    "dropout": (lambda: nn.Dropout(0.5), (6,), ("element_wise", 0, 6, 6, 0, None)),
    "a square": (lambda: Does(lambda _, x: x * x), (6,), ("element_wise", 0, 6, 6, 0, None)),
    "halves": (lambda: Does(lambda _, x: x[:, :3] * x[:, 3:]), (6,), ("multiplication", 0, 6, 3, 0, None)),
    "twice as much": (lambda: Does(lambda _, x: 2 * x), (6,), ("scaling", 0, 6, 6, 0, None)),
    "and one": (lambda: Does(lambda _, x: x + 1), (6,), ("addition", 0, 6, 6, 0, None)),
    "a bias": (lambda: Does(lambda self, x: x + self.b, b=(6,)), (5, 6), ("element_wise", 0, 30, 30, 6, None)),
    "concatenation": (lambda: Does(lambda _, x: torch.cat([x, x[:, :2]], 1)), (6,), ("copy", 0, 8, 8, 0, None)),
    "padding": (lambda: nn.ZeroPad2d(1), IMAGE, ("copy", 0, 288, 512, 0, None)),
    "upsampling": (lambda: nn.Upsample(scale_factor=2), IMAGE, ("copy", 0, 288, 1152, 0, None)),
    "gru": (
        lambda: nn.GRU(4, 5, batch_first=True),
        (6, 4),
        ("recurrent", 6 * 9 * 15, 24, 30, 9 * 15 + 30, product(1, 9, 15, 6)),
    ),
    "lstm both ways": (
        lambda: nn.LSTM(4, 5, batch_first=True, bidirectional=True),
        (6, 4),
        ("recurrent", 12 * 9 * 20, 24, 60, 2 * (9 * 20 + 40), product(1, 9, 20, 12)),
    ),
}


@pytest.mark.parametrize("batch", [2, 3])
@pytest.mark.parametrize("name", ONE)
def test_one_operator_is_what_its_definition_says(name: str, batch: int) -> None:
    make, shape, (kind, multiply_adds, read, written, weights, wanted) = ONE[name]
    (found,) = operators(make(), torch.zeros(batch, *shape))
    assert found == Operator(
        kind=kind,
        num_multiply_adds=multiply_adds,
        read_elements=read,
        written_elements=written,
        weight_elements=weights,
        product=wanted,
        num_kernels=wanted.count if wanted is not None and kind == "recurrent" else 1,
    )


def test_a_product_of_activations_has_a_count_of_heads() -> None:
    module = Does(lambda _, q, k: q @ k.transpose(-1, -2))
    (found,) = operators(module, (torch.zeros(2, 3, 5, 4), torch.zeros(2, 3, 7, 4)))
    assert (found.kind, found.product) == ("batched_matmul", product(5, 4, 7, 3))
    assert (found.read_elements, found.written_elements, found.weight_elements) == (3 * 12 * 4, 3 * 35, 0)


def test_fused_attention_is_one_operator() -> None:
    module = Does(lambda _, q, k, v: functional.scaled_dot_product_attention(q, value=v, key=k))
    shapes = ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6))
    (found,) = operators(module, tuple(torch.zeros(shape) for shape in shapes))
    assert found == Operator(
        kind="attention",
        num_multiply_adds=3 * 5 * 7 * (4 + 6),
        read_elements=3 * (20 + 28 + 42),
        written_elements=3 * 30,
        product=product(5, 4, 7, 3),
    )


def test_an_embedding_reads_the_rows_that_it_puts_out() -> None:
    (found,) = operators(nn.Embedding(100, 8), torch.zeros(2, 5, dtype=torch.long))
    assert found == Operator(kind="embedding", read_elements=40, written_elements=40)


def test_what_is_done_to_weights_belongs_to_the_layer_that_reads_them() -> None:
    def standardised(self: Any, x: Any) -> Any:
        weight = functional.batch_norm(self.w.reshape(1, 16, -1), None, None, training=True).reshape_as(self.w)
        return functional.conv2d(x, weight)

    norm, convolution = operators(Does(standardised, w=(16, 8, 3, 3)), torch.zeros(2, *IMAGE))
    assert norm == Operator(kind="norm", weight_elements=2 * 16 * 72)
    assert convolution.product == product(16, 72, 16)
    assert convolution.weight_elements == 16 * 72


def test_rows_that_go_through_a_recurrence_together_are_rows_of_its_product() -> None:
    class Columns(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(4, 5, batch_first=True)

        def forward(self, image: Any) -> Any:
            return self.layer(image.reshape(-1, 6, 4))[0]

    (found,) = operators(Columns(), torch.zeros(2, 3, 6, 4))
    assert (found.product, found.num_kernels) == (product(3, 9, 20, 6), 6)
    assert found.read_elements == 3 * 6 * 4


def test_views_and_shapes_are_no_operators() -> None:
    module = Does(lambda _, x: torch.relu(x.view(-1, 2, 3).transpose(1, 2)[:, :2] + torch.zeros_like(x[:, :1, None])))
    found = operators(module, torch.zeros(2, 6))
    assert [one.kind for one in found] == ["element_wise"] * 3  # zeros, addition of what is no sample's, relu


def test_gradients_of_parts_are_put_together_or_written_into_zeros() -> None:
    cut = Does(lambda _, x: torch.mul(*torch.relu(x).chunk(2, 1)))
    sliced = Does(lambda _, x: torch.relu(torch.relu(x)[:, :4]))
    chunks = [one for one in operators(cut, torch.zeros(2, 6)) if one.kind == "slice"]
    assert chunks == [Operator(kind="slice", read_elements=6, written_elements=6)]
    (part,) = [one for one in operators(sliced, torch.zeros(2, 6)) if one.kind == "slice"]
    assert part == Operator(kind="slice", read_elements=4, written_elements=6 + 4, num_kernels=2)


def test_operators_that_nobody_knows_tell_their_share_of_what_is_moved() -> None:
    module = Does(lambda _, x: torch.fft.fft(torch.relu(x)).real)
    found = from_torch(module, torch.zeros(2, 6))
    assert found.warnings[0].endswith("aten._fft_r2c (1); 50 % of the elements that are read and written are theirs")
    assert {one.kind for layer in found.dnn.layers for one in layer.operators} == {"element_wise", "slice"}


def test_without_a_second_pass_what_is_of_the_sample_is_told_from_weights() -> None:
    module = Does(lambda self, x: (x @ self.w).view(3, 4), w=(5, 4))
    (found,) = operators(module, torch.zeros(3, 5))
    assert found == Operator(
        kind="matmul",
        num_multiply_adds=20,
        read_elements=5,
        written_elements=4,
        weight_elements=20,
        product=product(1, 5, 4),
    )


@pytest.mark.parametrize("needed", [2, 3])
def test_one_sample_that_is_refused_in_training_is_asked_again_with_more(needed: int) -> None:
    def forward(self: Any, x: Any) -> Any:
        if x.shape[0] < needed:
            raise ValueError("Expected more than 1 value per channel when training")
        return functional.linear(x, self.w)

    found = from_torch(Does(forward, w=(7, 6)), torch.zeros(1, 6))
    assert found.facts["counted_batch"] == (2 if needed == 2 else 4)
    assert found.dnn.num_multiply_adds == 42
    assert not found.warnings
    assert any(note.startswith("the module fails with a batch of one: counted at a batch of") for note in found.notes)


def test_a_batch_norm_of_one_value_a_channel_takes_an_example_of_one_sample() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(8), nn.Flatten())
    found = from_torch(module, torch.zeros(1, 3, 8, 8))
    assert found.facts["counted_batch"] == 2
    assert found.dnn.layers[1].operators[0].product == product(36, 27, 8)
