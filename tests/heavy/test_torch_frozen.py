"""Frozen parts: FLOP both ways and what has a gradient, against PyTorch's own on a small Llama."""

from dataclasses import replace
from typing import Any

import pytest

from planner.models.operators import flop_per_sample
from planner.trained import Trained
from planner.transformer import Transformer

torch = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
library = pytest.importorskip("transformers", reason="transformers is not installed; run make test-heavy")
counting = pytest.importorskip("torch.utils.flop_counter", reason="this torch counts no FLOP")

TOKENS = 16
NETWORK = Transformer(
    num_layers=4,
    hidden_size=48,
    num_heads=4,
    num_kv_heads=4,  # repeated keys are copies, which torch multiplies by nothing
    feed_forward_size=80,
    vocabulary_size=100,
    sequence_length=TOKENS,
    is_gated=True,
    positions="rotary",
    norm="rms_norm",
    has_biases=False,
    has_tied_embeddings=False,
)


def a_llama() -> Any:
    """The same network, with scores that no kernel fuses."""
    config = library.LlamaConfig(
        num_hidden_layers=4,
        hidden_size=48,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=80,
        vocab_size=100,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    return library.LlamaForCausalLM(config)


def modules_of(model: Any, trained: Trained) -> list[Any]:
    layers = model.model.layers
    found = [model.model.embed_tokens, *layers[: trained.frozen_layers]] if trained.frozen_layers else []
    parts = {
        "embedding": [model.model.embed_tokens],
        "layers": list(layers),
        "head": [model.model.norm, model.lm_head],
        "attention": [layer.self_attn for layer in layers],
        "feed_forward": [layer.mlp for layer in layers],
    }
    return found + [module for part in trained.frozen_parts for module in parts[part]]


@pytest.mark.parametrize(
    "trained",
    [
        Trained(),
        Trained(frozen_layers=2),
        Trained(frozen_layers=1, frozen_parts=("attention",)),
        Trained(frozen_parts=("layers",)),
        Trained(frozen_parts=("embedding", "layers")),
        Trained(frozen_parts=("head",)),
        Trained(frozen_parts=("feed_forward",)),
    ],
)
def test_frozen_parts_multiply_as_often_as_torch_does(trained: Trained) -> None:
    model, network = a_llama(), replace(NETWORK, trained=trained)
    for module in modules_of(model, trained):
        module.requires_grad_(False)
    tokens = torch.randint(0, 100, (1, TOKENS))
    with counting.FlopCounterMode(display=False) as ahead:
        logits = model(tokens).logits
    with counting.FlopCounterMode(display=False) as back:
        logits.float().square().mean().backward()
    counted = flop_per_sample(network, has_full_attention=True)
    # Rotary positions are a product of two small matrices there, and positions have no gradient.
    assert ahead.get_total_flops() == pytest.approx(counted.forward_flop, rel=0.01)
    assert back.get_total_flops() == pytest.approx(counted.backward_flop, rel=0.01)
    with_gradient = sum(one.numel() for one in model.parameters() if one.grad is not None)
    assert with_gradient == network.num_trained_parameters


def test_frozen_first_layers_keep_nothing_in_torch() -> None:
    kept = []
    for trained in (Trained(), Trained(frozen_layers=2)):
        model = a_llama()
        for module in modules_of(model, trained):
            module.requires_grad_(False)
        weights = {one.data_ptr() for one in model.parameters()}
        seen: dict[int, int] = {}

        def pack(tensor: Any, seen: dict[int, int] = seen, weights: set[int] = weights) -> Any:
            if tensor.data_ptr() not in weights and tensor.dim() > 1:
                seen[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
            model(torch.randint(0, 100, (1, TOKENS))).logits.sum()
        kept.append(sum(seen.values()))
    # Of four layers two, and what the head keeps of the stream.
    assert kept[1] == pytest.approx(kept[0] / 2, rel=0.08)
