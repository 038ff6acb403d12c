"""Sizes of transformers: defaults, parameters against published formulas, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers_drawn import transformers

from planner.transformer import KINDS, Transformer
from planner.transformer_parts import Experts, Image, LatentAttention

SIZES: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_heads": 8,
    "vocabulary_size": 100,
    "sequence_length": 16,
}
LATENT = LatentAttention(query_rank=None, key_value_rank=8, rope_size=4, nope_size=8, value_size=8)
EXPERTS = Experts(num_experts=8, top_k=2, expert_size=32)


def test_what_is_left_out_follows_from_the_rest() -> None:
    found = Transformer(**SIZES)
    assert (found.num_kv_heads, found.head_size, found.feed_forward_size) == (8, 8, 256)
    assert (found.num_positions, found.has_qkv_biases, found.has_final_norm) == (16, True, True)
    assert found.head == "language"
    assert not Transformer(**SIZES, norm_position="after").has_final_norm
    assert Transformer(**SIZES, latent=LATENT).head_size == 12
    assert Experts(num_experts=8, top_k=2, expert_size=32, num_shared=1).shared_size == 32


@given(st.integers(1, 100), st.integers(1, 40), st.integers(1, 12), st.integers(1, 60_000), st.integers(1, 4096))
def test_a_gpt_has_the_parameters_of_the_sc21_formula(layers: int, width: int, heads: int, words: int, s: int) -> None:
    hidden = width * heads
    gpt = Transformer(num_layers=layers, hidden_size=hidden, num_heads=heads, vocabulary_size=words, sequence_length=s)
    # D. Narayanan et al., SC21, equation 2: 12 l h^2 (1 + 13 / 12h + (V + s) / 12lh); it leaves out the final norm.
    assert gpt.num_parameters == 12 * layers * hidden**2 + 13 * layers * hidden + (words + s) * hidden + 2 * hidden


@given(transformers())
def test_parameters_are_those_of_embedding_blocks_and_head(transformer: Transformer) -> None:
    blocks = sum(transformer.block_parameters(kind) for kind in transformer.layer_kinds)
    assert transformer.num_parameters == transformer.embedding_parameters + blocks + transformer.head_parameters
    assert transformer.num_moe_layers == sum(KINDS[kind].feed_forward == "moe" for kind in transformer.layer_kinds)


@given(transformers())
def test_a_token_that_goes_to_all_experts_meets_every_parameter(transformer: Transformer) -> None:
    assert transformer.num_active_parameters <= transformer.num_parameters
    if transformer.experts is not None:
        everywhere = replace(transformer.experts, top_k=transformer.experts.num_experts)
        transformer = replace(transformer, experts=everywhere)
    assert transformer.num_active_parameters == transformer.num_parameters


@given(transformers())
def test_one_more_layer_adds_one_block(transformer: Transformer) -> None:
    assume(not transformer.num_mtp_layers)
    pattern = transformer.pattern and transformer.pattern + transformer.pattern[0]
    longer = replace(transformer, num_layers=transformer.num_layers + 1, pattern=pattern)
    added = longer.block_parameters(longer.layer_kinds[-1])
    assert longer.layer_kinds[:-1] == transformer.layer_kinds
    assert longer.num_parameters == transformer.num_parameters + added


def test_layers_with_experts_are_those_behind_the_dense_ones_and_every_nth() -> None:
    experts = replace(EXPERTS, num_dense_first=1, every=2)
    kinds = Transformer(**{**SIZES, "num_layers": 6}, experts=experts).layer_kinds
    assert kinds == ("dense", "moe", "dense", "moe", "dense", "moe")


def test_a_pattern_says_what_the_one_part_of_each_layer_is() -> None:
    network = Transformer(**{**SIZES, "num_layers": 5}, pattern="*-*-E", experts=EXPERTS)
    assert network.layer_kinds == ("attention", "feed_forward", "attention", "feed_forward", "experts")
    assert network.kind_counts == {"attention": 2, "feed_forward": 2, "experts": 1}
    pairs = Transformer(**{**SIZES, "num_layers": 4}, pattern="*-*-")
    assert pairs.num_parameters == Transformer(**SIZES).num_parameters


def test_fewer_key_and_value_heads_save_their_columns() -> None:
    grouped = Transformer(**SIZES, num_kv_heads=2, has_biases=False)
    whole = Transformer(**SIZES, has_biases=False)
    assert whole.attention_parameters - grouped.attention_parameters == 2 * 6 * 8 * 64


def test_a_dense_network_has_no_block_with_experts() -> None:
    with pytest.raises(ValueError, match="the network has no experts"):
        Transformer(**SIZES).block_parameters("moe")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_layers": 0}, "num_layers is 0. Write a whole number from 1 to 4096"),
        ({"hidden_size": -1}, "hidden_size is -1"),
        ({"sequence_length": 10**12}, "sequence_length is 1000000000000. Write a whole number from 1 to 1048576"),
        ({"vocabulary_size": 0}, "vocabulary_size is 0"),
        ({"num_heads": 7}, "the hidden size 64 is no multiple of the 7 heads"),
        ({"num_kv_heads": 3}, "the 8 heads are no multiple of the 3 heads of keys and values"),
        ({"feed_forward_size": 0}, "feed_forward_size is 0"),
        ({"num_positions": 8}, "a sample of 16 tokens needs more than 8 learned positions"),
        ({"head": "classes"}, "the head 'classes' belongs to networks that read images"),
        ({"image": Image(image_size=32, patch_size=8), "sequence_length": 17, "head": "language"}, "has no head"),
        ({"has_norm_scales": False, "has_norm_biases": True}, "norms without scales have no biases"),
        ({"latent": LATENT, "num_kv_heads": 2}, "latent attention has a key for each query, of size .* = 12"),
        ({"latent": LATENT, "has_query_key_norms": True}, "latent attention has norms of its own"),
        ({"experts": replace(EXPERTS, num_dense_first=2)}, "none of the 2 layers has experts"),
        ({"pattern": "*X"}, r"the pattern has a letter 'X'. Write one letter a layer: M \(mamba\), \* \(attention\)"),
        ({"pattern": "*-*"}, "the pattern has 3 letters, and the network 2 layers"),
        ({"pattern": "*E"}, "the pattern has layers of experts. Add experts"),
        ({"pattern": "*-", "experts": EXPERTS}, "no letter of the pattern stands for experts"),
        ({"pattern": "*-", "mixers": ("attention",)}, "mixers and a pattern both say what the layers are"),
        ({"pattern": "*-", "norm_position": "shared"}, "layers of one part have nothing that runs beside it"),
        ({"window": 17}, "a window of 17 tokens is longer than the sequence of 16. Write 1 to 16, or leave out"),
        ({"mixers": ("window",)}, "layers have the mixer 'window', and nothing says its sizes. Add window"),
        ({"window": 4, "mixers": ("attention",)}, "window is given, and no layer has that mixer"),
        ({"has_chunked_windows": True}, "windows are chunks, and there is no window"),
        ({"pattern": "--", "has_sinks": True}, "no layer has attention, and sinks of attention is given"),
        ({"pattern": "*M"}, "layers have the mixer 'mamba', and nothing says its sizes"),
        ({"mixers": ("attention", "convolution")}, "nobody knows the mixer 'convolution'"),
        ({"image": Image(image_size=32, patch_size=8)}, "an image of 17 tokens gives the sequence its length, not 16"),
    ],
)
def test_sizes_that_cannot_be_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Transformer(**{**SIZES, **changed})


@pytest.mark.parametrize(
    ("part", "sizes", "words"),
    [
        (Experts, {"num_experts": 4, "top_k": 5, "expert_size": 8}, "top_k 5 is more than the 4 experts of a layer"),
        (Experts, {"num_experts": 4, "top_k": 0, "expert_size": 8}, "top_k is 0"),
        (Experts, {"num_experts": 4, "top_k": 1, "expert_size": 8, "has_shared_gate": True}, "no shared expert"),
        (Experts, {"num_experts": 4, "top_k": 1, "expert_size": 8, "every": 0}, "every is 0"),
        (Image, {"image_size": 224, "patch_size": 15}, "no whole number of patches of 15"),
        (
            LatentAttention,
            {"query_rank": 0, "key_value_rank": 1, "rope_size": 1, "nope_size": 1, "value_size": 1},
            "query_rank is 0",
        ),
    ],
)
def test_parts_that_cannot_be_are_refused(part: type, sizes: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        part(**sizes)
