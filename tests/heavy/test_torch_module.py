"""Modules of torch against torch's own counters, published sizes and the zoo."""

import copy
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import zoo
from planner.dnn import Dnn
from planner.errors import SpecError
from planner.importers.imported import Imported
from planner.importers.torch_module import from_torch, read_factory

torch: Any = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
nn: Any = torch.nn
functional: Any = torch.nn.functional

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*use_reentrant.*:UserWarning",
    "ignore:.*`torch.nn.utils.weight_norm`.*:FutureWarning",
    "ignore::DeprecationWarning:transformers",
    "ignore::DeprecationWarning:torch",
)


def layer(found: Imported | Dnn, name: str) -> Any:
    dnn = found.dnn if isinstance(found, Imported) else found
    return next(one for one in dnn.layers if one.name == name)


def counted_flop(module: Any, *args: Any, **kwargs: Any) -> int:
    """FLOP of a forward pass with real numbers, by a counter of its own."""
    counter_mode: Any = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode
    torch.backends.mkldnn.set_flags(False)  # the fused recurrent kernel of CPUs has no formula
    try:
        with counter_mode(display=False) as counter:
            module(*args, **kwargs)
    finally:
        torch.backends.mkldnn.set_flags(True)
    return int(counter.get_total_flops())


class Residual(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(3, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, image: Any) -> Any:
        branch = self.second(functional.relu(self.norm(self.first(image))))
        joined = functional.relu(branch + self.shortcut(image))
        return self.head(torch.cat([joined.mean((2, 3)) / 2, joined.amax((2, 3)) / 2]).view(2, -1, 8).sum(0))


# -- published sizes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="transformers is not installed; run make test-heavy")


def on_meta(make: Any) -> Any:
    with torch.device("meta"):
        return make()


def test_llama_2_has_its_published_parameters_and_flop(transformers: Any) -> None:
    module = on_meta(lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig()))
    found = from_torch(module, {"input_ids": torch.zeros(1, 512, dtype=torch.long), "use_cache": False})
    assert found.dnn.num_trainable == 6_738_415_616
    assert found.facts["forward_flop"] / 1e9 == pytest.approx(6903, abs=0.5)
    assert found.facts["backward_flop"] == 2 * found.facts["forward_flop"]
    assert 2 * found.dnn.num_multiply_adds == found.facts["forward_flop"]
    assert found.dtype == "fp32"
    (repeat,) = found.dnn.repeats
    assert repeat.count == 32
    assert not found.warnings


def test_resnet_50_of_transformers_has_its_published_parameters_and_flop(transformers: Any) -> None:
    config = transformers.ResNetConfig(num_labels=1000)
    found = from_torch(on_meta(lambda: transformers.ResNetForImageClassification(config)), torch.zeros(2, 3, 224, 224))
    ours = zoo.build("resnet50")
    assert found.dnn.num_trainable == ours.num_trainable == 25_557_032
    assert found.dnn.num_moving == ours.num_moving
    # The zoo has the stride of a bottleneck in its first convolution, as the paper does; transformers in its second.
    assert found.facts["forward_flop"] / 1e9 == pytest.approx(8.178, abs=0.001)
    assert 2 * found.dnn.num_multiply_adds == found.facts["forward_flop"]
    assert sum(one.kind == "convolution" for one in found.dnn.layers) == 53
    assert sum(one.kind == "add" for one in found.dnn.layers) == 16
    assert not found.warnings


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("implementation", ["grouped_mm", "batched_mm"])
def test_experts_count_in_full_whatever_multiplies_them(transformers: Any, implementation: str, dtype: str) -> None:
    config = transformers.MixtralConfig(num_hidden_layers=2)
    module = on_meta(
        lambda: transformers.MixtralForCausalLM._from_config(
            config, dtype=getattr(torch, dtype), experts_implementation=implementation
        )
    )
    found = from_torch(module, {"input_ids": torch.zeros(1, 512, dtype=torch.long), "use_cache": False})
    assert found.facts["forward_flop"] / 1e9 == pytest.approx(950.3, abs=0.05)
    # Closed form: attention, router and two experts a token, and the logits.
    hidden, tokens, inner = 4096, 512, 14336
    block = hidden * (hidden + 2 * 1024) + hidden * hidden + hidden * 8 + 2 * 3 * hidden * inner
    closed = 2 * tokens * (2 * (block + 2 * tokens * hidden) + hidden * config.vocab_size)
    assert found.facts["forward_flop"] == closed
    assert found.facts["backward_flop"] == 2 * found.facts["forward_flop"]
    assert found.dtype == {"bfloat16": "bf16", "float32": "fp32"}[dtype]
    assert not [warning for warning in found.warnings if "formula" in warning]


def test_torchs_own_counter_misses_the_experts(transformers: Any) -> None:
    """Why the formulas are added: should torch have its own one day, this fails, and ours can go."""
    from planner.importers.torch_module.copy import copy_to_meta, sample_of
    from planner.importers.torch_module.record import record

    counter: Any = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode(display=False)
    config = transformers.MixtralConfig(num_hidden_layers=2)
    module = on_meta(lambda: transformers.MixtralForCausalLM._from_config(config, dtype=torch.bfloat16))
    sample, _ = sample_of(torch, {"input_ids": torch.zeros(1, 512, dtype=torch.long), "use_cache": False}, [])
    found = record(torch, copy_to_meta(torch, module), sample, counter, runs_backward=False)
    assert found.total_flop / 1e9 == pytest.approx(228.8, abs=0.05)


def test_experts_that_are_looped_over_are_refused_with_the_way_out(transformers: Any) -> None:
    config = transformers.MixtralConfig(num_hidden_layers=1, vocab_size=64, hidden_size=64, intermediate_size=64)
    module = on_meta(lambda: transformers.MixtralForCausalLM._from_config(config, experts_implementation="eager"))
    with pytest.raises(SpecError, match=r"meta device|depends on values"):
        from_torch(module, {"input_ids": torch.zeros(1, 8, dtype=torch.long), "use_cache": False})


@pytest.mark.parametrize(
    ("name", "config", "example", "millions"),
    [
        ("GPT2LMHeadModel", "GPT2Config", "tokens", 124.439808),
        ("BertModel", "BertConfig", "tokens", 109.48224),
        ("ViTModel", "ViTConfig", "image", 86.389248),
    ],
)
def test_published_transformers_have_all_their_parameters(
    transformers: Any, name: str, config: str, example: str, millions: float
) -> None:
    module = on_meta(lambda: getattr(transformers, name)(getattr(transformers, config)()))
    given = torch.zeros(2, 3, 224, 224) if example == "image" else torch.zeros(2, 64, dtype=torch.long)
    found = from_torch(module, given)
    assert found.dnn.num_trainable / 1e6 == millions == sum(one.numel() for one in module.parameters()) / 1e6
    assert not [warning for warning in found.warnings if "not read" in warning]
    assert max(repeat.count for repeat in found.dnn.repeats) >= 11


def vgg16() -> Any:
    """The paper's network, with the zoo's conventions: ReLU in place."""
    parts: list[Any] = []
    channels = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            parts += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        parts.append(nn.MaxPool2d(2, 2))
    parts.append(nn.Flatten())
    for first, second in ((25088, 4096), (4096, 4096)):
        parts += [nn.Linear(first, second), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*parts, nn.Linear(4096, 1000))


def test_vgg_is_the_zoos_layer_by_layer() -> None:
    found = from_torch(on_meta(vgg16), torch.zeros(2, 3, 224, 224)).dnn
    ours = zoo.build("vgg16")
    matching = [one for one in ours.layers if one.kind not in ("flatten", "loss")]
    assert [one.kind for one in found.layers] == [one.kind for one in matching]
    for one, other in zip(found.layers, matching, strict=True):
        assert (one.output_shape, one.num_multiply_adds, one.num_trainable, one.window) == (
            other.output_shape,
            other.num_multiply_adds,
            other.num_trainable,
            other.window,
        ), one.name
        assert [(tensor.num_elements, tensor.role) for tensor in one.tensors] == [
            (tensor.num_elements, tensor.role) for tensor in other.tensors
        ]
    assert found.num_stored_elements == ours.num_stored_elements


# -- nothing lost ------------------------------------------------------------------------------------------------------

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


# -- what makes figures doubtful ---------------------------------------------------------------------------------------


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


# -- the module stays as it is, and what cannot be read ----------------------------------------------------------------


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


# -- the documentation -------------------------------------------------------------------------------------------------


def python_blocks() -> list[str]:
    text = (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text(encoding="utf-8")
    return [block.split("```")[0] for block in text.split("```python\n")[1:]]


def test_the_first_example_of_the_documentation_runs(transformers: Any, capsys: pytest.CaptureFixture[str]) -> None:
    exec(python_blocks()[0], {})
    assert capsys.readouterr().out.startswith("6738415616 6903086186496.0 (Repeat(first=2, ")


def test_the_factory_of_the_documentation_is_read(tmp_path: Path) -> None:
    (tmp_path / "documented_nets.py").write_text(python_blocks()[1])
    found = read_factory("documented_nets:encoder", tmp_path)
    assert found.dnn.num_trainable == 51_714_304
    assert not found.warnings


# -- factories ---------------------------------------------------------------------------------------------------------


def write(folder: Path, text: str, name: str) -> str:
    (folder / f"{name}.py").write_text("import torch\n" + text)
    return name


def test_a_factory_returns_a_module_and_its_example(tmp_path: Path) -> None:
    text = "def make():\n    return torch.nn.Linear(4, 3), torch.zeros(2, 4)\n"
    text += "class Net(torch.nn.Linear):\n    example_input = torch.zeros(2, 4)\n"
    text += "    def __init__(self):\n        super().__init__(4, 3)\n"
    name = write(tmp_path, text, "factory_that_works")
    before = list(sys.path)
    assert read_factory(f"{name}:make", tmp_path).dnn.num_trainable == 15
    assert read_factory(f"{name}:Net", tmp_path).dnn.num_trainable == 15
    assert sys.path == before


@pytest.mark.parametrize(
    ("text", "named", "problem"),
    [
        ("", "nothing", "'nothing' is no name of a factory"),
        ("", "a b:c", "'a b:c' is no name of a factory"),
        ("", "no_such_package.models:make", "there is no module 'no_such_package'"),
        ("", "NAME:make", "has no 'make'"),
        ("make = 3", "NAME:make", "'make' is no function"),
        ("def make():\n    return 3", "NAME:make", "it returns a int, not a module with an example"),
        ("def make():\n    return torch.nn.Linear(1, 1)", "NAME:make", "it returns a Linear, not a module with"),
        ("def make():\n    return torch.nn.Linear(1, 1), None", "NAME:make", "a tuple of Linear, NoneType"),
        ("def make():\n    raise KeyError('colour')", "NAME:make", "NAME:make fails: KeyError: 'colour'"),
        ("def make():\n    raise SystemExit('bye')", "NAME:make", "NAME:make fails: SystemExit: bye"),
        ("1 / 0", "NAME:make", "NAME:make cannot be imported: ZeroDivisionError: division by zero"),
        ("import not_installed_here", "NAME:make", "cannot be imported: ModuleNotFoundError: No module named"),
        ("def make(:", "NAME:make", "cannot be imported: SyntaxError"),
    ],
)
def test_a_factory_that_does_not_work_is_told_by_its_last_line(
    tmp_path: Path, text: str, named: str, problem: str, request: pytest.FixtureRequest
) -> None:
    own = f"factory_{abs(hash(request.node.name)) % 10**9}"
    write(tmp_path, text, own)
    with pytest.raises(SpecError, match=problem.replace("NAME", own)) as caught:
        read_factory(named.replace("NAME", own), tmp_path)
    (fault,) = caught.value.faults
    assert fault.field == "dnn.torch"
    assert fault.mend
    assert math.isfinite(len(fault.value))


def test_what_a_factory_prints_stays_out_of_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "print('imported')\nclass Net(torch.nn.Linear):\n    def forward(self, x):\n        print('forward')\n"
    text += (
        "        return super().forward(x)\ndef make():\n    print('made')\n    return Net(4, 3), torch.zeros(2, 4)\n"
    )
    name = write(tmp_path, text, "factory_that_prints")
    assert read_factory(f"{name}:make", tmp_path).dnn.num_trainable == 15
    out, err = capsys.readouterr()
    assert out == ""
    assert {"imported", "made", "forward"} <= set(err.split())


def test_complex_numbers_are_outputs_with_gradients_and_are_warned_of() -> None:
    class Complex(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(8, 8, dtype=torch.cfloat))

        def forward(self, x: Any) -> Any:
            return x @ self.weight

    found = from_torch(Complex(), torch.zeros(2, 8, dtype=torch.cfloat))
    assert found.facts["backward_flop"] == found.facts["forward_flop"]
    assert any("complex parameters count as one number each" in one for one in found.warnings)
