"""PyTorch modules of published networks have their published parameters and FLOP."""

from typing import Any

import pytest
from torch_nets import QUIET, on_meta

from planner import zoo
from planner.errors import SpecError
from planner.importers.torch_module import from_torch, recording

torch: Any = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
nn: Any = torch.nn
pytestmark = QUIET


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


@pytest.mark.parametrize(
    ("name", "prefix", "options"),
    [
        ("swin-t", "Swin", {"embed_dim": 96, "depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24]}),
        ("convnext-tiny", "ConvNext", {}),
        ("mobilenet-v2", "MobileNetV2", {}),
        (
            "efficientnet-b0",
            "EfficientNet",
            {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280, "depthwise_padding": []},
        ),
    ],
)
def test_networks_of_the_zoo_are_those_of_transformers(
    transformers: Any, name: str, prefix: str, options: dict[str, Any]
) -> None:
    config = getattr(transformers, f"{prefix}Config")(num_labels=1000, **options)
    make = getattr(transformers, f"{prefix}ForImageClassification")
    found, ours = from_torch(on_meta(lambda: make(config)), torch.zeros(2, 3, 224, 224)), zoo.build(name)
    for total in ("num_trainable", "num_moving", "num_multiply_adds"):
        assert getattr(found.dnn, total) == getattr(ours, total)
    # Not in place there: ReLU6. Fused there: the attention of Swin, whose scores are not kept.
    scores = sum(one.num_output_elements for one in ours.layers if one.name.endswith("scores"))
    clipped = sum(one.num_output_elements for one in ours.layers if one.name.endswith("relu6"))
    kept = found.facts["saved_bytes"] / 4
    assert kept == pytest.approx(ours.num_stored_elements - scores + clipped, rel=0.02)


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


def test_torchs_own_counter_misses_the_experts(transformers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the formulas are added: should torch have its own one day, this fails, and ours can go."""
    counter: Any = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode
    monkeypatch.setattr(recording, "_flop_counter", lambda torch: counter(display=False))
    config = transformers.MixtralConfig(num_hidden_layers=2)
    module = on_meta(lambda: transformers.MixtralForCausalLM._from_config(config, dtype=torch.bfloat16))
    found = from_torch(module, {"input_ids": torch.zeros(1, 512, dtype=torch.long), "use_cache": False})
    assert found.facts["forward_flop"] / 1e9 == pytest.approx(228.8, abs=0.05)


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
