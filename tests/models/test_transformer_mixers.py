"""Layers of 2026: published parameters, windows counted one by one, and every mixer counted a second time."""

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformer_rates_drawn import CONSTANTS, RATES, SOFTWARE
from transformers_drawn import indexed, modulated, transformers

from planner.models.compute import LayerSeconds, Speeds, layer_seconds
from planner.models.layer_memory import KERNELS, layer_bytes
from planner.models.layouts import Layouts, Recompute, busiest_stages
from planner.models.operators import block_operators, flop_per_sample
from planner.models.parameters import block_parameters, head_parameters
from planner.models.transformer_communication import layer_communication
from planner.question.blocks import TransformerSpec
from planner.transformer import KINDS, MIXERS, Transformer
from planner.zoo.transformers import block_of, row, transformer_of, with_sequence_length
from tests.referee.second_physics.hybrid_layer import layer_of
from tests.referee.second_physics.hybrid_time import flop_per_token

ROTARY: dict[str, Any] = {"norm": "rms_norm", "positions": "rotary", "biases": False, "tied_embeddings": False}
GATED = {**ROTARY, "gated": True, "sequence_length": 8192}
# Sizes as the publishers' configurations state them (``config.json`` of nvidia/Nemotron-H-8B-Base-8K, openai/gpt-oss-*,
# google/gemma-3-27b-pt without its vision tower, Qwen/Qwen3-Next-80B-A3B-Instruct).
NEMOTRON_8B = {
    **ROTARY,
    "positions": "none",
    "layers": 52,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "head_size": 128,
    "feed_forward": 21504,
    "vocabulary": 131072,
    "sequence_length": 8192,
    "pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "mamba": {"heads": 128, "head_size": 64, "state": 128, "groups": 8},
}
GPT_OSS = {
    **GATED,
    "biases": True,
    "hidden": 2880,
    "heads": 64,
    "kv_heads": 8,
    "head_size": 64,
    "vocabulary": 201088,
    "mixers": ["window", "attention"],
    "window": 128,
    "sinks": True,
}
OSS_EXPERTS = {"top_k": 4, "size": 2880, "router_bias": True}
# config.json of nvidia/NVIDIA-Nemotron-3-Super-120B-A12B; its two depths of prediction, which share weights, are left out.
NEMOTRON_SUPER = {
    **NEMOTRON_8B,
    "layers": 88,
    "kv_heads": 2,
    "pattern": "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
    "experts": {"count": 512, "top_k": 22, "size": 2688, "shared": 1, "shared_size": 5376, "latent": 1024},
}
GEMMA3_27B = {
    **GATED,
    "tied_embeddings": True,
    "layers": 62,
    "hidden": 5376,
    "heads": 32,
    "kv_heads": 16,
    "head_size": 128,
    "feed_forward": 21504,
    "vocabulary": 262144,
    "norm_position": "both",
    "query_key_norms": True,
    "mixers": ["window"] * 5 + ["attention"],
    "window": 1024,
}
QWEN3_NEXT = {
    **GATED,
    "layers": 48,
    "hidden": 2048,
    "heads": 16,
    "kv_heads": 2,
    "head_size": 256,
    "vocabulary": 151936,
    "query_key_norms": True,
    "attention_gate": True,
    "mixers": ["delta", "delta", "delta", "attention"],
    "delta": {"key_heads": 16, "value_heads": 32, "key_size": 128, "value_size": 128},
    "experts": {"count": 512, "top_k": 10, "size": 512, "shared": 1, "shared_gate": True},
}
LINEAR = {
    **GATED,
    "layers": 8,
    "hidden": 512,
    "heads": 8,
    "vocabulary": 1000,
    "mixers": ["linear"] * 7 + ["attention"],
    "linear": {"heads": 8, "head_size": 64},
}
SPARSE = {  # DeepSeek-V3.2, made small
    **GATED,
    "layers": 4,
    "hidden": 512,
    "heads": 8,
    "vocabulary": 1000,
    "latent_attention": {"query_rank": 256, "key_value_rank": 128, "rope_size": 32, "nope_size": 64, "value_size": 64},
    "sparse_attention": {"heads": 4, "head_size": 32, "top_k": 512},
}
NETWORKS = {
    "nemotron-h-8b": NEMOTRON_8B,
    "gpt-oss-20b": {**GPT_OSS, "layers": 24, "experts": {"count": 32, **OSS_EXPERTS}},
    "gemma3-27b": GEMMA3_27B,
    "qwen3-next-80b-a3b": QWEN3_NEXT,
    "linear": LINEAR,
    "nemotron-3-super": NEMOTRON_SUPER,
    "sparse": SPARSE,
}


@pytest.mark.parametrize(
    ("sizes", "printed", "digits"),
    [
        (NEMOTRON_8B, 8.1e9, 2),  # NVIDIA, arXiv 2504.03624
        # OpenAI, arXiv 2508.10925, table 1.
        (NETWORKS["gpt-oss-20b"], 20.91e9, 4),
        ({**GPT_OSS, "layers": 36, "experts": {"count": 128, **OSS_EXPERTS}}, 116.83e9, 5),
        (GEMMA3_27B, 25.6e9 + 1.416e9, 3),  # Gemma team, arXiv 2503.19786, table 1: without and of the embedding
        (QWEN3_NEXT, 80e9, 2),
        (NEMOTRON_SUPER, 120e9, 2),
    ],
)
def test_parameters_are_those_that_publishers_print(sizes: dict[str, Any], printed: float, digits: int) -> None:
    found = transformer_of(sizes).num_parameters
    assert float(f"{found:.{digits - 1}e}") == pytest.approx(printed, rel=10.0**-digits)


@pytest.mark.parametrize("sizes", NETWORKS.values(), ids=NETWORKS)
def test_a_block_describes_its_network(sizes: dict[str, Any]) -> None:
    network = transformer_of(sizes)
    assert transformer_of(block_of(network)) == network


def test_a_spec_takes_the_mixers_that_a_network_knows() -> None:
    taken = TransformerSpec.model_fields["mixers"].annotation
    while len(parts := get_args(taken)) and not isinstance(parts[0], str):
        taken = parts[0]
    assert parts == MIXERS


# -- windows


@given(tokens=st.integers(1, 40), window=st.integers(1, 40), is_causal=st.booleans(), is_chunked=st.booleans())
def test_a_window_counts_the_pairs_that_it_holds(tokens: int, window: int, is_causal: bool, is_chunked: bool) -> None:
    window = min(window, tokens)
    network = Transformer(
        num_layers=1, hidden_size=4, num_heads=2, vocabulary_size=8, sequence_length=tokens, window=window,
        is_causal=is_causal, has_chunked_windows=is_chunked,
    )  # fmt: skip
    pairs = 0.0
    for query in range(tokens):
        for key in range(tokens):
            if is_chunked:
                is_near = query // window == key // window
            else:
                is_near = abs(query - key) < window if is_causal else abs(query - key) <= window / 2
            pairs += is_near and (key <= query or not is_causal)
    # Half a diagonal is left out of causal attention, as everywhere; and on both sides a window of w holds w + 1.
    edge = tokens / 2 if is_chunked and is_causal else window / 2 if is_causal else 0 if is_chunked else tokens + window
    assert network.attended_pairs("window") == pytest.approx(pairs, abs=edge)
    assert network.attended_pairs("window") <= network.attended_pairs("attention")


def test_a_window_of_the_whole_sequence_is_attention() -> None:
    sizes: dict[str, Any] = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocabulary_size": 100}
    whole = Transformer(**sizes, sequence_length=96)
    windowed = Transformer(**sizes, sequence_length=96, window=96)
    assert flop_per_sample(windowed) == flop_per_sample(whole)
    assert windowed.num_parameters == whole.num_parameters
    assert with_sequence_length(replace(windowed, window=64), 32).window == 32


@pytest.mark.parametrize("is_flash", [True, False])
def test_the_wider_the_window_the_longer_a_layer_takes_and_never_longer_than_attention(is_flash: bool) -> None:
    software = replace(SOFTWARE, has_flash_attention=is_flash)

    def seconds(window: int | None) -> float:
        sizes = {**GATED, "layers": 2, "hidden": 1024, "heads": 8, "vocabulary": 1000, "window": window}
        network = transformer_of(sizes)
        found = layer_seconds(network, network.layer_kinds[0], Layouts.one(), Speeds(RATES, software, CONSTANTS))
        return float(found.forward_s[0] + found.backward_s[0])

    taken = [seconds(window) for window in (1, 128, 1024, 4096, 8192, None)]
    assert taken == sorted(taken)
    if is_flash:
        assert taken[0] < taken[-1]
    else:  # kernels that write scores write all of them
        assert taken[0] == taken[-1]


# -- every mixer, a second time

BLOCK: dict[str, Any] = {"context": 1, "data": 1, "expert": 1, "expert_tensor": 1, "microbatch": 2, "zero": 0}


@settings(max_examples=150)
@given(
    network=transformers() | indexed() | modulated(),
    tensor=st.sampled_from([1, 2]),
    is_split=st.booleans(),
    recompute=st.sampled_from([*Recompute]),
    program=st.sampled_from(["megatron-core", "megatron-lm"]),
)
def test_layers_are_counted_alike_a_second_time(
    network: Transformer, tensor: int, is_split: bool, recompute: Recompute, program: str
) -> None:
    block = {**BLOCK, "tensor": tensor, "sequence_parallel": is_split and tensor > 1, "program": program}
    block["recompute"] = recompute.name.lower()
    layout = Layouts.one(
        tensor=tensor, expert_tensor=1, microbatch=2, sequence_parallel=is_split and tensor > 1,
        recompute=int(recompute),
    )  # fmt: skip
    kernels = KERNELS["megatron-core" if program == "megatron-core" else "megatron-2021"]
    for kind in network.kind_counts:
        again, held = layer_of(network, block, kind), block_parameters(network, kind, layout)
        assert float(held.shared[0]) == pytest.approx(again.shared)
        assert float(np.broadcast_to(held.routed, 1)[0]) == pytest.approx(again.routed)
        ours = layer_bytes(network, kind, layout, activation_bytes=2, kernels=kernels)
        assert float(ours.kept[0]) == pytest.approx(again.kept)
        assert float(ours.working[0]) == pytest.approx(again.working)


@pytest.mark.parametrize("sizes", NETWORKS.values(), ids=NETWORKS)
def test_flop_are_those_of_closed_forms(sizes: dict[str, Any]) -> None:
    network = transformer_of(sizes)
    once = flop_per_token(network) * network.sequence_length
    assert flop_per_sample(network).total_flop == pytest.approx(once)


# -- an indexer


def test_an_indexer_scores_all_pairs_forward_and_those_that_it_chose_backward() -> None:
    (scores,) = (one for one in block_operators(transformer_of(SPARSE), "dense") if one.kind == "index")
    assert scores.forward_flop == 2 * 4 * 32 * 8192**2 / 2
    assert scores.backward_flop == 4 * 4 * 32 * (512 * 8192 - 512**2 / 2)


def test_chosen_tokens_are_no_more_than_there_are() -> None:
    short = transformer_of({**SPARSE, "sequence_length": 256})
    assert short.attended_pairs("attention") == replace(short, sparse=None).attended_pairs("attention") == 256**2 / 2


def test_an_indexer_is_whole_on_every_tensor_rank() -> None:
    network = row("deepseek-v3.2").transformer
    plain = replace(network, sparse=None)
    for tensor in (1, 8):
        layout = Layouts.one(tensor=tensor, sequence_parallel=tensor > 1)
        held, without = (block_parameters(one, "dense", layout).shared[0] for one in (network, plain))
        # Queries from 1,536, a key from 7,168 with a layer norm, and a weight of each of 64 heads.
        assert held - without == pytest.approx(1536 * 8192 + 7168 * (128 + 64) + 2 * 128)


def test_long_samples_take_less_where_tokens_are_chosen() -> None:
    for length, is_less in ((4096, False), (131072, True)):
        network = with_sequence_length(row("deepseek-v3.2").transformer, length)
        both, full = (_seconds(one, "dense") for one in (network, replace(network, sparse=None)))
        assert (both.forward_s[0] + both.backward_s[0] < full.forward_s[0] + full.backward_s[0]) == is_less


def test_an_indexer_without_attention_is_refused() -> None:
    sizes = {**SPARSE, "latent_attention": None, "window": 64, "mixers": ["window"]}
    with pytest.raises(ValueError, match="no layer has the mixer 'attention'"):
        transformer_of({key: value for key, value in sizes.items() if value is not None})


# -- diffusion


@pytest.mark.parametrize(
    ("name", "millions", "giga"),
    [("dit-s-2", 33, 6.06), ("dit-b-2", 130, 23.01), ("dit-l-2", 458, 80.71), ("dit-xl-2", 675, 118.64)],
)
def test_networks_of_diffusion_have_published_parameters_and_multiply_adds(
    name: str, millions: int, giga: float
) -> None:
    # W. Peebles and S. Xie, arXiv 2212.09748, table 4 (their "Gflops" are multiply-adds).
    network = row(name).transformer
    assert round(network.num_parameters / 1e6) == millions
    assert flop_per_sample(network).forward_flop / 2e9 == pytest.approx(giga, rel=1e-3)
    assert transformer_of(block_of(network)) == network


@pytest.mark.parametrize(
    "changed",
    [{"modulation": False, "head": "patches"}, {"head": "classes"}, {"norm_position": "after"}, {"image": None}],
)
def test_modulation_of_other_networks_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="modulation"):
        transformer_of({**block_of(row("dit-s-2").transformer), "vocabulary": 10, "sequence_length": 8, **changed})


# -- multi-token prediction


def test_a_depth_of_prediction_has_the_parameters_that_deepseek_prints() -> None:
    main = row("deepseek-v3").transformer
    network = transformer_of({**block_of(main), "mtp_layers": 1})
    # README of DeepSeek-V3 weights: 11.5B parameters of the module that are no embedding and no head.
    assert network.num_parameters - main.num_parameters == pytest.approx(11.5e9, rel=0.01)
    assert network.layer_kinds == (*main.layer_kinds, "mtp+moe")
    assert transformer_of(block_of(network)) == network


def test_prediction_stands_on_the_last_stage_with_a_copy_of_the_embedding() -> None:
    sizes = {**GATED, "layers": 7, "hidden": 512, "heads": 8, "vocabulary": 32000}
    main, network = transformer_of(sizes), transformer_of({**sizes, "mtp_layers": 1})
    layout = Layouts.one(pipeline=4)
    held = busiest_stages(network, layout)
    assert held.layers[-1, :, 0].tolist() == [0] * (len(held.index) - 1) + [1]
    more = head_parameters(network, layout) - head_parameters(main, layout)
    assert more[0] == 32000 * 512
    alone = head_parameters(network, Layouts.one()) - head_parameters(main, Layouts.one())
    assert alone[0] == 0


# -- how they are split


def _seconds(network: Transformer, kind: str, **decisions: int) -> LayerSeconds:
    layout = Layouts.one(**decisions)
    return layer_seconds(network, kind, layout, Speeds(RATES, SOFTWARE, CONSTANTS))


@pytest.mark.parametrize("sizes", NETWORKS.values(), ids=NETWORKS)
def test_tensor_and_context_ranks_share_every_layer_out(sizes: dict[str, Any]) -> None:
    network = transformer_of(sizes)
    for kind in network.kind_counts:
        whole, split, spread = (_seconds(network, kind, **one) for one in ({}, {"tensor": 2}, {"context": 2}))
        for part in (split, spread):
            assert 0.4 * whole.forward_s[0] < part.forward_s[0] < 0.8 * whole.forward_s[0]


def test_scans_exchange_tokens_for_heads_where_attention_passes_keys_round_a_ring() -> None:
    network, layout = transformer_of(NEMOTRON_8B), Layouts.one(context=4, tensor=2)
    ways = {}
    for kind in network.kind_counts:
        sent = [one for one in layer_communication(network, layout, kind) if one.name.startswith("context")]
        ways[kind] = {one.operation for one in sent if one.forward.any()}
    assert ways == {"attention": {"send"}, "mamba": {"all_to_all"}, "feed_forward": set()}
    assert network.mamba is not None
    into, back = (one for one in layer_communication(network, layout, "mamba") if one.operation == "all_to_all")
    tokens = 8192 / 4
    assert into.size_bytes[0] == 2 * tokens * network.mamba.projected_size / 2  # 4 groups for 4 ranks: none is copied
    assert back.size_bytes[0] == 2 * tokens * network.mamba.inner_size / 2


def test_a_state_keeps_less_of_long_samples_than_scores_and_takes_a_time_in_proportion() -> None:
    taken = []
    for length in (8192, 65536):
        network = transformer_of({**NEMOTRON_8B, "sequence_length": length})
        mamba, attention = (_seconds(network, kind) for kind in ("mamba", "attention"))
        taken.append((float(mamba.forward_s[0]), float(attention.forward_s[0])))
    (short, attended), (long, attended_long) = taken
    assert long == pytest.approx(8 * short, rel=0.05)
    assert attended_long > 12 * attended


def test_multiply_adds_of_a_scan_grow_as_the_sample_does() -> None:
    for sizes, prefix in ((NEMOTRON_8B, "mamba"), (QWEN3_NEXT, "delta"), (LINEAR, "linear")):
        each = []
        for length in (4096, 8192):
            network = transformer_of({**sizes, "sequence_length": length})
            kind = next(kind for kind in network.kind_counts if KINDS[kind].mixer == prefix)
            scans = [one for one in block_operators(network, kind) if one.kind == "scan"]
            each.append(sum(one.num_multiply_adds for one in scans) / length)
        assert each[0] == each[1] > 0
