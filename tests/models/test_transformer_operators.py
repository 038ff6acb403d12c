"""Operators of transformers: against the closed form of the parameters, published FLOP, and one another."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers_drawn import indexed, modulated, transformers

from planner.models.operators import INPUT, Part, TransformerOperator, block_operators, flop_per_sample, parts
from planner.transformer import KINDS, Transformer
from planner.transformer_parts import Experts, Image

GPT3 = Transformer(num_layers=96, hidden_size=12288, num_heads=96, vocabulary_size=51200, sequence_length=2048)
BATCH = 1536


def named(operators: tuple[TransformerOperator, ...], name: str) -> TransformerOperator:
    return next(operator for operator in operators if operator.name == name)


@pytest.mark.parametrize(("recomputes", "peta_flop"), [(False, 3386.2), (True, 4511.0)])
def test_flop_of_a_step_of_gpt3_are_the_published_ones(recomputes: bool, peta_flop: float) -> None:
    # SPEC section 7, row 1: D. Narayanan et al., SC21. Full attention, logits, and with recomputation all of each block.
    found = flop_per_sample(GPT3, has_full_attention=True, recomputes_blocks=recomputes)
    assert BATCH * found.total_flop / 1e15 == pytest.approx(peta_flop, abs=0.05)


@given(st.integers(1, 50), st.integers(1, 30), st.integers(1, 8), st.integers(1, 5000), st.integers(1, 200))
def test_flop_of_any_gpt_are_those_of_the_sc21_formula(layers: int, width: int, heads: int, words: int, s: int) -> None:
    h = 2 * width * heads
    gpt = Transformer(num_layers=layers, hidden_size=h, num_heads=heads, vocabulary_size=words, sequence_length=s)
    found = flop_per_sample(gpt, has_full_attention=True)
    assert found.total_flop == 72 * s * layers * h**2 + 12 * s**2 * layers * h + 6 * s * h * words
    again = flop_per_sample(gpt, has_full_attention=True, recomputes_blocks=True)
    assert again.total_flop == 96 * s * layers * h**2 + 16 * s**2 * layers * h + 6 * s * h * words


@given(transformers())
def test_operators_hold_the_parameters_that_the_closed_form_counts(transformer: Transformer) -> None:
    embedding, *others = parts(transformer)
    assert sum(one.weight_elements for one in embedding.operators) == transformer.embedding_parameters
    for part in others:
        held = sum(one.weight_elements for one in part.operators)
        expected = transformer.head_parameters if part.kind is None else transformer.block_parameters(part.kind)
        assert held == expected
    held = sum(part.count * one.weight_elements for part in parts(transformer) for one in part.operators)
    assert held == transformer.num_parameters


@given(transformers())
def test_an_operator_reads_what_stands_before_it_and_is_read_by_another_or_is_the_last(
    transformer: Transformer,
) -> None:
    for part in parts(transformer):
        seen = {INPUT}
        for operator in part.operators:
            assert seen.issuperset(operator.inputs)
            seen.add(operator.name)
        assert len(seen) == len(part.operators) + (part.name != "embedding"), "a name stands twice"
        unread = seen - {name for operator in part.operators for name in operator.inputs}
        # A pooler whose output no classifier reads is an end of the head beside the loss.
        pooled = {"pooler_activation"} if part.name == "head" and transformer.has_pooler else set()
        assert unread - pooled == {part.operators[-1].name} - pooled


@given(transformers() | indexed() | modulated())
def test_a_product_counts_its_shape_and_attention_half_where_it_is_causal(transformer: Transformer) -> None:
    for part in parts(transformer):
        for operator in part.operators:
            if operator.product is None:
                assert operator.num_multiply_adds == 0 or operator.kind == "conv1d"
                continue
            shape = operator.product
            whole = shape.rows * shape.inner * shape.columns * shape.count
            if operator.kind == "scan":  # of whole chunks, a half of some of them
                assert whole / 4 - shape.count * shape.inner <= operator.num_multiply_adds <= whole
                continue
            share = 0.5 if operator.kind == "attention" and transformer.is_causal else 1
            if operator.kind == "attention" and part.kind is not None:
                share = transformer.attended_pairs(KINDS[part.kind].mixer) / transformer.sequence_length**2
            if operator.kind == "index":
                share = 0.5 if transformer.is_causal else 1
            # Half of an odd number of scores is rounded down before it is multiplied.
            assert operator.num_multiply_adds == pytest.approx(share * whole, abs=max(shape.inner, shape.columns))


@given(transformers())
def test_attention_alone_differs_between_causal_and_full(transformer: Transformer) -> None:
    causal = replace(transformer, is_causal=True, sequence_length=transformer.sequence_length)
    pairs = zip(parts(causal), parts(replace(causal, is_causal=False)), strict=True)
    for one, other in ((x, y) for a, b in pairs for x, y in zip(a.operators, b.operators, strict=True)):
        if one.kind == "attention":  # windows reach as far to both sides together as to one
            assert one.num_multiply_adds <= other.num_multiply_adds / (2 if causal.window is None else 1)
        else:
            assert one == other
    assert flop_per_sample(causal, has_full_attention=True) == flop_per_sample(replace(causal, is_causal=False))


@given(transformers(), st.randoms(use_true_random=False))
def test_totals_do_not_depend_on_the_order_of_the_operators(transformer: Transformer, order: random.Random) -> None:
    def flop(found: list[Part]) -> int:
        return sum(part.count * operator.forward_flop for part in found for operator in part.operators)

    found = list(parts(transformer))
    shuffled = [replace(part, operators=tuple(order.sample(part.operators, len(part.operators)))) for part in found]
    order.shuffle(shuffled)
    assert flop(shuffled) == flop(found) == flop_per_sample(transformer).forward_flop


@given(transformers())
def test_backward_is_twice_forward_and_the_logits_are_what_their_product_costs(transformer: Transformer) -> None:
    whole, blocks = flop_per_sample(transformer), flop_per_sample(transformer, has_logits=False)
    assert whole.backward_flop == 2 * whole.forward_flop
    logits = 2 * transformer.sequence_length * transformer.hidden_size * transformer.vocabulary_size
    has_logits = transformer.head in ("language", "masked_language")
    assert whole.forward_flop - blocks.forward_flop == (logits * (1 + transformer.num_mtp_layers) if has_logits else 0)


def test_a_block_keeps_what_korthikanti_counts_less_the_dropout_masks() -> None:
    # V. Korthikanti et al., arXiv 2205.05198, equation 1: 34 s b h bytes beside the scores, 2 of them masks of dropout.
    kept = sum(one.output_elements for one in block_operators(GPT3, "dense") if not one.is_in_place)
    assert 2 * kept == 32 * GPT3.sequence_length * GPT3.hidden_size


def test_two_experts_of_eight_compute_a_quarter_of_what_all_hold() -> None:
    experts = Experts(num_experts=8, top_k=2, expert_size=256)
    mixture = Transformer(
        num_layers=1,
        hidden_size=64,
        num_heads=4,
        vocabulary_size=10,
        sequence_length=32,
        experts=experts,
        is_gated=True,
    )
    operators = block_operators(mixture, "moe")
    up, down = (named(operators, f"feed_forward.experts.{name}") for name in ("up", "down"))
    assert (up.num_multiply_adds, down.num_multiply_adds) == (32 * 2 * 64 * 512, 32 * 2 * 256 * 64)
    assert up.product is not None
    assert (up.product.rows, up.product.count) == (8, 8)
    assert str(up.product) == "8 x (8 x 64 x 512)"
    assert named(operators, "feed_forward.combine").output_shape == (64, 32, 1)


def test_queries_outnumber_keys_in_what_the_scores_read() -> None:
    grouped = Transformer(
        num_layers=1, hidden_size=64, num_heads=8, num_kv_heads=2, vocabulary_size=10, sequence_length=16
    )
    operators = block_operators(grouped, "dense")
    assert named(operators, "attention.qkv").output_shape == (12 * 8, 16, 1)
    assert named(operators, "attention.scores").input_elements == 10 * 8 * 16
    assert named(operators, "attention.context").input_elements == 8 * 16 * 16 + 2 * 8 * 16


def test_residual_additions_join_the_stream_and_each_half() -> None:
    operators = block_operators(GPT3, "dense")
    assert named(operators, "attention.add").inputs == ("attention.output", INPUT)
    assert named(operators, "feed_forward.add").inputs == ("feed_forward.down", "attention.add")
    beside = block_operators(replace(GPT3, norm_position="shared"), "dense")
    assert named(beside, "add").inputs == ("attention.output", "feed_forward.down", INPUT)
    assert named(beside, "attention.qkv").inputs == named(beside, "feed_forward.up").inputs == ("norm",)
    behind = block_operators(replace(GPT3, norm_position="after"), "dense")
    assert named(behind, "feed_forward.up").inputs == ("attention.norm",)
    assert behind[-1].name == "feed_forward.norm"


def test_patches_are_one_product_for_each_token_but_that_of_the_class() -> None:
    image = Image(image_size=224, patch_size=16)
    vit = Transformer(
        num_layers=12,
        hidden_size=768,
        num_heads=12,
        vocabulary_size=0,
        sequence_length=197,
        image=image,
        is_causal=False,
    )
    patches = named(parts(vit)[0].operators, "patches")
    assert patches.num_multiply_adds == 196 * 768 * 768
    assert named(parts(vit)[-1].operators, "classes").num_multiply_adds == 768 * 1000


def test_a_dense_network_has_no_operators_of_experts() -> None:
    with pytest.raises(ValueError, match="the network has no experts"):
        block_operators(GPT3, "moe")
