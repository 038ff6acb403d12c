"""Recomputation by module, and of some layers of a stage: what is kept, against published forms, and what it takes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.decisions import LAYOUT
from planner.models.layer_memory import Kernels, layer_bytes
from planner.models.layouts import Layouts, Recompute
from planner.models.memory import PRECISIONS, stage_memory_bytes
from planner.models.recomputation import MODULE_SETS, again_names, modules_of
from planner.transformer import LayerKind, Transformer
from planner.zoo.transformers import row

GPT = row("gpt3-13b").transformer
LLAMA = row("llama3.1-8b").transformer
DEEPSEEK = row("deepseek-v3").transformer
FULL, SELECTIVE = int(Recompute.FULL), int(Recompute.SELECTIVE)


def numbers(
    network: Transformer, kind: LayerKind, *modules: str, kernels: Kernels | None = None, **degrees: int
) -> float:
    """Numbers of two bytes a token that a layer keeps when modules are computed again; none are: with no name."""
    layout = Layouts.one(**degrees)
    if modules:
        layout = Layouts.one(recompute=SELECTIVE, recompute_modules=MODULE_SETS.index(modules), **degrees)
    kept = layer_bytes(network, kind, layout, activation_bytes=2, kernels=kernels or Kernels()).kept
    return float(kept[0]) / 2 / network.sequence_length


def test_the_first_set_is_the_attention_core_which_stays_the_default() -> None:
    assert MODULE_SETS[0] == ("core_attn",)
    assert LAYOUT["recompute_modules"].default == "core_attn"


def test_the_attention_core_saves_the_scores_alone_as_korthikanti_has_it() -> None:
    """arXiv 2205.05198, section 5: 34 s b h + 5 a s^2 b becomes 34 s b h."""
    kernels = Kernels(is_flash=False, has_dropout=True)
    h, a, s = GPT.hidden_size, GPT.num_heads, GPT.sequence_length
    assert 2 * numbers(GPT, "dense", kernels=kernels) == pytest.approx(34 * h + 5 * a * s)
    assert 2 * numbers(GPT, "dense", "core_attn", kernels=kernels) == pytest.approx(34 * h)
    assert numbers(GPT, "dense", "core_attn") == numbers(GPT, "dense")  # flash attention keeps none


def test_a_dense_part_that_is_computed_again_keeps_its_input_alone() -> None:
    """Of 34 s b h bytes a GPT's feed-forward part keeps 2 of its norm, 8 of both matrices' inputs each."""
    h = GPT.hidden_size
    assert numbers(GPT, "dense") - numbers(GPT, "dense", "mlp") == h + 8 * h / 2 * 2
    h, inner = LLAMA.hidden_size, LLAMA.feed_forward_size
    assert numbers(LLAMA, "dense") - numbers(LLAMA, "dense", "mlp") == h + 3 * inner


def test_deepseek_v3_drops_its_norms_and_wide_attention() -> None:
    """Section 3.2.3 of arXiv 2412.19437: all RMSNorms and the up-projections of latent attention; sizes of its 4.2."""
    whole = numbers(DEEPSEEK, "moe")
    norms = 2 * 7168
    assert whole - numbers(DEEPSEEK, "moe", "layernorm") == norms
    wide = 128 * (128 + 64) * 2 + 128 * 128 + 1536 + 512
    assert whole - numbers(DEEPSEEK, "moe", "mla_up_proj") == wide
    assert whole - numbers(DEEPSEEK, "moe", "layernorm", "mla_up_proj") == norms + wide
    assert whole - numbers(DEEPSEEK, "moe", "moe_act") == 8 * 2048
    assert whole - numbers(DEEPSEEK, "moe", "shared_experts") == 3 * 2048
    experts = 256 + 8 + 8 * (7168 + 3 * 2048 + 7168) + 3 * 2048
    assert whole - numbers(DEEPSEEK, "moe", "moe") == experts
    assert numbers(DEEPSEEK, "dense") == numbers(DEEPSEEK, "dense", "moe")


@given(
    one=st.integers(0, len(MODULE_SETS) - 1),
    other=st.integers(0, len(MODULE_SETS) - 1),
    network=st.sampled_from([GPT, LLAMA, DEEPSEEK]),
    tensor=st.sampled_from([1, 4]),
)
def test_more_modules_keep_no_more_and_compute_more_again(
    one: int, other: int, network: Transformer, tensor: int
) -> None:
    both = MODULE_SETS.index(
        tuple(name for name in MODULE_SETS[-1] if name in {*MODULE_SETS[one], *MODULE_SETS[other]})
    )
    for kind in dict.fromkeys(network.layer_kinds):
        kept = [numbers(network, kind, *MODULE_SETS[n], tensor=tensor) for n in (one, other, both)]
        assert kept[2] <= min(kept[:2]) + 1e-9
        assert again_names(network, kind, both) == again_names(network, kind, one) | again_names(network, kind, other)


def test_a_network_has_the_modules_of_its_layers() -> None:
    assert modules_of(GPT) == ("mlp",)
    assert modules_of(DEEPSEEK) == ("moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
    assert modules_of(row("mixtral-8x7b").transformer) == ("moe_act", "layernorm", "moe")


def test_layers_that_are_computed_again_count_one_by_one() -> None:
    """Four layers a stage: the bytes of the first lie on the line between none and all."""
    network = replace(GPT, num_layers=16)

    def kept(**block: int) -> float:
        layout = Layouts.one(pipeline=4, num_microbatches=8, **block)
        return float(stage_memory_bytes(network, layout, precision=PRECISIONS["megatron"])["activations"][0])

    held = [kept(recompute=FULL, recompute_layers=number) for number in (4, 3, 2, 1)]
    assert held[0] == kept(recompute=FULL)
    assert held == pytest.approx(np.linspace(held[0], kept(), 5)[:4])
