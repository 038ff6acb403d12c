from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformer_rates_drawn import CONSTANTS, GPT, MIXTURE, RATES, SOFTWARE

from planner.cluster import Device
from planner.data.devices import device as known_device
from planner.data.fits import transformer_rates
from planner.models.compute import (
    SCORE_BACKWARD,
    LayerSeconds,
    Speeds,
    device_shares,
    embedding_s,
    head_s,
    layer_seconds,
)
from planner.models.layouts import Layouts, Recompute
from planner.models.low_precision import LowProducts
from planner.models.operators import (
    ROUTED,
    TransformerOperator,
    block_operators,
    embedding_operators,
    head_operators,
    operator_kind,
)
from planner.models.roofline import MOVED
from planner.transformer import LayerKind, Transformer

KINDS: list[tuple[Transformer, LayerKind]] = [(GPT, "dense"), (MIXTURE, "dense"), (MIXTURE, "moe")]

SPEEDS = Speeds(RATES, SOFTWARE, CONSTANTS)


def seconds_of(
    transformer: Transformer, kind: LayerKind, is_flash: bool = True, **decisions: int | bool
) -> LayerSeconds:
    software = replace(SOFTWARE, has_flash_attention=is_flash)
    return layer_seconds(transformer, kind, Layouts.one(**decisions), Speeds(RATES, software, CONSTANTS))


@pytest.mark.parametrize(("transformer", "kind"), KINDS)
@given(tensor=st.sampled_from([1, 2, 4]), microbatch=st.integers(1, 8), context=st.sampled_from([1, 2]))
def test_a_layer_takes_at_least_its_products_at_the_fitted_rates(
    transformer: Transformer, kind: LayerKind, tensor: int, microbatch: int, context: int
) -> None:
    found = seconds_of(transformer, kind, tensor=tensor, microbatch=microbatch, context=context)
    flop = sum(one.forward_flop for one in block_operators(transformer, kind)) * microbatch / (tensor * context)
    fastest = max(RATES.multiplied_flop_per_s, RATES.peak_flop_per_s * RATES.attention_efficiency)
    assert found.forward_s >= flop / fastest
    assert found.backward_s >= 1.9 * flop / fastest


@pytest.mark.parametrize(("transformer", "kind"), KINDS)
def test_a_part_of_a_layer_takes_less_time_but_not_less_in_all(transformer: Transformer, kind: LayerKind) -> None:
    whole, quarter = (seconds_of(transformer, kind, tensor=tensor, microbatch=4) for tensor in (1, 4))
    assert quarter.forward_s < whole.forward_s
    assert 4 * quarter.forward_s > whole.forward_s


def test_sequence_parallelism_splits_what_lies_between_the_products() -> None:
    plain, split = (seconds_of(GPT, "dense", tensor=4, sequence_parallel=flag) for flag in (False, True))
    assert split.forward_s < plain.forward_s
    assert split.attention_s == pytest.approx(plain.attention_s)


def test_unfused_attention_computes_masked_scores_too_and_moves_each_by_hand() -> None:
    found = seconds_of(GPT, "dense", False, tensor=2, microbatch=4)
    scores = 2 * GPT.num_heads * GPT.sequence_length**2  # of four samples, on one of two devices
    products_s = 2 * 2 * scores * GPT.head_size / RATES.multiplied_flop_per_s
    moved_s = scores * CONSTANTS.score_bytes / RATES.moved_bytes_per_s
    assert found.attention_s == pytest.approx(products_s + moved_s)
    software, twice = replace(SOFTWARE, has_flash_attention=False), replace(CONSTANTS, score_bytes=22.0)
    layout = Layouts.one(tensor=2, microbatch=4)
    wider = layer_seconds(GPT, "dense", layout, Speeds(RATES, software, twice))
    assert wider.backward_s - found.backward_s == pytest.approx(SCORE_BACKWARD * moved_s)


def test_scores_that_are_written_to_memory_cost_more_than_fused_ones() -> None:
    fused, unfused = (seconds_of(GPT, "dense", is_flash, microbatch=4) for is_flash in (True, False))
    assert unfused.attention_s > fused.attention_s


def test_a_head_of_odd_size_makes_unfused_attention_slow_and_fused_attention_not() -> None:
    # The same products otherwise: heads of 108 and of 112 numbers, of which one is a multiple of 8.
    aligned = replace(GPT, num_heads=1, num_kv_heads=1, head_size=112)
    odd = replace(aligned, head_size=108)
    assert seconds_of(odd, "dense", False).attention_s > 2 * seconds_of(aligned, "dense", False).attention_s
    assert seconds_of(odd, "dense").attention_s <= seconds_of(aligned, "dense").attention_s


def test_what_is_computed_again_is_nothing_or_attention_or_a_whole_forward_pass() -> None:
    found = seconds_of(GPT, "dense", False)
    ways = [np.array([int(way)]) for way in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)]
    again = [found.again_s(way, SOFTWARE) for way in ways]
    assert again[0] == 0
    assert again[1] == pytest.approx(found.attention_s)
    assert again[2] == pytest.approx(found.forward_s)


def test_experts_that_are_spread_wider_see_the_tokens_of_all_that_share_them() -> None:
    # As many tokens meet a quarter of the experts: the same multiplications, by fewer and larger products.
    alone, spread = (seconds_of(MIXTURE, "moe", expert=expert, data=8) for expert in (1, 4))
    assert spread.forward_s == pytest.approx(alone.forward_s, rel=0.3)


@given(st.sampled_from([1, 2, 4]), st.integers(1, 8))
def test_the_head_grows_with_the_vocabulary_and_shrinks_with_the_tensor_degree(tensor: int, microbatch: int) -> None:
    layout = Layouts.one(tensor=tensor, microbatch=microbatch)
    narrow, wide = (head_s(replace(GPT, vocabulary_size=words), layout, SPEEDS) for words in (25600, 51200))
    assert 1.2 * narrow < wide < 2.5 * narrow
    alone = head_s(GPT, Layouts.one(microbatch=microbatch), SPEEDS)
    assert wide <= alone * (1 + 1e-9)


def test_an_embedding_costs_little_beside_a_layer() -> None:
    found = embedding_s(GPT, Layouts.one(microbatch=4), SPEEDS)
    assert 0 < found < 0.5 * seconds_of(GPT, "dense", microbatch=4).forward_s


@given(imbalance=st.floats(1.0, 4.0), expert=st.sampled_from([1, 2, 8]))
def test_more_tokens_on_the_fullest_rank_lengthen_experts_and_nothing_else(imbalance: float, expert: int) -> None:
    layout = Layouts.one(expert=expert, microbatch=4)
    for kind in ("dense", "moe"):
        even = layer_seconds(MIXTURE, kind, layout, SPEEDS)
        uneven = layer_seconds(MIXTURE, kind, layout, SPEEDS, expert_imbalance=imbalance)
        grown = uneven.forward_s / even.forward_s
        assert grown == pytest.approx(1.0) if kind == "dense" else 1.0 <= grown <= imbalance * 1.2
        assert uneven.attention_s == pytest.approx(even.attention_s)


def test_grouped_products_are_slower_than_one_and_no_other_is() -> None:
    layout, slow = Layouts.one(microbatch=4), replace(CONSTANTS, routed_share=0.5)
    for kind in ("dense", "moe"):
        one, other = (
            layer_seconds(MIXTURE, kind, layout, Speeds(RATES, SOFTWARE, constants))
            for constants in (replace(CONSTANTS, routed_share=1.0), slow)
        )
        routed = [one for one in block_operators(MIXTURE, kind) if one.product and one.name.startswith(ROUTED)]
        flop = sum(one.forward_flop for one in routed) * 4
        assert other.forward_s - one.forward_s >= 0.999 * flop / RATES.multiplied_flop_per_s
        assert (other.forward_s == one.forward_s) == (kind == "dense")


def test_older_libraries_are_slower_on_devices_with_fp8_alone() -> None:
    older, newer = replace(SOFTWARE, fp8_device_ratio=0.8), replace(RATES, has_fp8=True)
    assert RATES.under(older) == RATES
    assert newer.under(SOFTWARE) == newer
    assert newer.under(older).product_efficiency == pytest.approx(0.8 * RATES.product_efficiency)
    assert newer.under(older).attention_efficiency == RATES.attention_efficiency


def test_a_program_that_stops_early_leaves_the_last_products_of_a_layer_out_of_what_it_computes_again() -> None:
    found, full = seconds_of(GPT, "dense"), np.array([int(Recompute.FULL)])
    whole = found.again_s(full, SOFTWARE)
    less = found.again_s(full, replace(SOFTWARE, stops_early=True))
    assert less == pytest.approx(whole - found.last_s)
    # Of a block's products the last is a third, and of its memory-bound operators the last addition.
    assert 0.15 * whole < found.last_s < 0.4 * whole


def test_a_program_may_recompute_a_share_of_its_products_in_place_of_attention() -> None:
    found, selective = seconds_of(GPT, "dense"), np.array([int(Recompute.SELECTIVE)])
    again = found.again_s(selective, replace(SOFTWARE, selective_share=0.5))
    assert again == pytest.approx((found.forward_s - found.attention_s) / 2)


def test_a_slower_attention_kernel_and_more_passes_over_memory_take_longer_in_proportion() -> None:
    layout = Layouts.one()
    plain, slow, eager = (
        layer_seconds(GPT, "dense", layout, Speeds(RATES, software, CONSTANTS))
        for software in (SOFTWARE, replace(SOFTWARE, attention_ratio=0.5), replace(SOFTWARE, element_passes=3.0))
    )
    assert slow.attention_s == pytest.approx(2 * plain.attention_s)
    assert slow.forward_s - slow.attention_s == pytest.approx(plain.forward_s - plain.attention_s)
    assert eager.forward_s > plain.forward_s
    assert eager.attention_s == pytest.approx(plain.attention_s)


def test_a_vocabulary_that_is_not_filled_up_costs_by_the_width_of_each_ranks_part() -> None:
    words = replace(GPT, vocabulary_size=50257)
    software = replace(SOFTWARE, pads_vocabulary=False)
    padded, not_padded = (
        [float(head_s(words, Layouts.one(tensor=tensor), Speeds(RATES, one, CONSTANTS))[0]) for tensor in (1, 2, 4)]
        for one in (SOFTWARE, software)
    )
    assert not_padded[1] == pytest.approx(padded[1])  # 25,128 is a multiple of 8, 12,564 of 4 alone, 50,257 is odd
    assert not_padded[0] / padded[0] > not_padded[2] / padded[2] > 1


def moved_s(operators: tuple[TransformerOperator, ...], way: int, microbatch: int) -> float:
    """Seconds of all that only moves memory, forward (0) or backward (1), at two bytes a number."""
    bytes_moved = 0.0
    for one in operators:
        if one.product is not None or one.kind in ("attention", "softmax", "loss", "input"):
            continue
        # Of a sum each gradient is passed on, and added to that of whatever else reads the same.
        read, written = (1, 1) if one.kind == "residual" else MOVED[operator_kind(one.kind)][way]
        bytes_moved += 2.0 * (read * one.input_elements + written * one.output_elements)
    return bytes_moved * microbatch / RATES.moved_bytes_per_s


@pytest.mark.parametrize("passes", [0.8, 1.7])
def test_what_moves_memory_moves_as_much_as_the_kernels_of_any_network(passes: float) -> None:
    layout, software = Layouts.one(microbatch=2), replace(SOFTWARE, element_passes=passes)
    layers = [layer_seconds(GPT, "dense", layout, Speeds(RATES, one, CONSTANTS)) for one in (SOFTWARE, software)]
    blocks, head = block_operators(GPT, "dense"), head_operators(GPT)
    more = passes - SOFTWARE.element_passes
    assert layers[1].forward_s - layers[0].forward_s == pytest.approx(more * moved_s(blocks, 0, 2))
    assert layers[1].backward_s - layers[0].backward_s == pytest.approx(more * moved_s(blocks, 1, 2))
    heads = [head_s(GPT, layout, Speeds(RATES, one, CONSTANTS)) for one in (SOFTWARE, software)]
    assert heads[1] - heads[0] == pytest.approx(more * (moved_s(head, 0, 2) + moved_s(head, 1, 2)))
    # A table is read and written as wide as the stream, however many of its rows there are.
    found = embedding_s(GPT, layout, Speeds(RATES, software, CONSTANTS))
    tables = embedding_operators(GPT)
    assert found == pytest.approx(moved_s(tables, 0, 2) + moved_s(tables, 1, 2))


@pytest.mark.parametrize("network", [GPT, replace(GPT, is_causal=False)])
def test_fused_attention_goes_over_all_keys_or_over_half_of_them(network: Transformer) -> None:
    """A long sequence's heads fill whole tiles: what is left is the start-up, by the inner width."""
    long = replace(network, sequence_length=8192, num_positions=8192)
    found = layer_seconds(long, "dense", Layouts.one(), Speeds(RATES, SOFTWARE, replace(CONSTANTS, wave_share=0.0)))
    flop = sum(one.forward_flop for one in block_operators(long, "dense") if one.kind == "attention")
    ideal_s = flop / (RATES.peak_flop_per_s * RATES.attention_efficiency)
    inner = 8192 * 2 / (1 + network.is_causal)
    width = CONSTANTS.startup_width * (RATES.peak_flop_per_s / RATES.num_multiprocessors) / (312e12 / 108)
    assert found.attention_s == pytest.approx(ideal_s * (1 + width / inner), rel=1e-6)


def rated(name: str, power_w: float | None = None, **more: float) -> dict[str, float]:
    """Return the shares of a device of 1,000 TFLOP/s, where one of 400 TFLOP/s at 400 W was fitted."""
    law = {
        "product_efficiency": 0.8,
        "flop_per_j": 1e12,
        "exponent": 0.5,
        "most_product_efficiency": 0.85,
        "memory_efficiency": 0.7,
        "attention_ratio": 0.5,
    }
    own = {"product_efficiency": 0.9, "memory_efficiency": 0.8, "attention_efficiency": 0.3}
    chip = Device(name="fitted", peak_flop_per_s={"bf16": 1e15}, num_multiprocessors=100, power_w=800.0)
    gpu = Device(name=name, peak_flop_per_s={"bf16": 1e15}, power_w=power_w, **more)  # type: ignore[arg-type]  # by name
    return device_shares(gpu, "bf16", {"devices": {"fitted": own}, "unmeasured": law, "chips": {"fitted": chip}})


def test_a_device_that_was_never_measured_uses_less_of_a_peak_that_it_has_less_power_for() -> None:
    assert rated("fitted") == {"product_efficiency": 0.9, "memory_efficiency": 0.8, "attention_efficiency": 0.3}
    known = {"product_efficiency": 0.8, "memory_efficiency": 0.7, "attention_efficiency": 0.4}
    assert rated("other") == rated("other", 1000.0) == pytest.approx(known)
    assert rated("other", 250.0)["product_efficiency"] == pytest.approx(0.4)
    assert rated("other", 4000.0)["product_efficiency"] == 0.85  # no more than any that was fitted
    assert rated("other", 1000.0, matmul_flop_per_s=6e14)["product_efficiency"] == 0.6  # nor than products alone


def test_a_device_with_the_chip_of_a_fitted_one_is_no_better_than_that_and_pays_for_a_lower_power() -> None:
    own = rated("fitted")
    assert rated("other", 800.0, num_multiprocessors=100) == rated("other", 1600.0, num_multiprocessors=100) == own
    weaker = rated("other", 200.0, num_multiprocessors=100)
    assert weaker == pytest.approx({**own, "product_efficiency": 0.45, "attention_efficiency": 0.15})
    assert rated("other", 800.0, num_multiprocessors=99) == rated("other", 800.0)


def test_shipped_devices_of_the_h100s_chip_have_its_shares() -> None:
    rates = transformer_rates()
    h100, h800, h200 = (device_shares(known_device(name), "bf16", rates) for name in ("h100", "h800", "h200"))
    assert h100 == h800 == h200
    assert device_shares(known_device("h20"), "bf16", rates) != h100


def test_products_of_a_device_that_steps_of_one_source_tell_reach_what_these_say() -> None:
    rates = transformer_rates()
    told, law = (device_shares(known_device("t4"), "fp16", one) for one in (rates, {**rates, "products": {}}))
    assert told["product_efficiency"] == rates["products"]["t4"] < 0.5 < law["product_efficiency"]
    assert told["memory_efficiency"] == law["memory_efficiency"]
    ratio = rates["unmeasured"]["attention_ratio"]
    assert told["attention_efficiency"] == pytest.approx(ratio * told["product_efficiency"])


@pytest.mark.parametrize(
    ("name", "chip", "measured"), [("b300-sxm", "b200-sxm", "b300-sxm"), ("gb300", "gb200", "gb200")]
)
def test_later_blackwell_has_its_chips_shares_but_for_products_which_steps_say_are_as_quick_as_alone(
    name: str, chip: str, measured: str
) -> None:
    rates, told_by = transformer_rates(), known_device(measured)
    told, first = (device_shares(known_device(one), "bf16", rates) for one in (name, chip))
    assert told_by.matmul_flop_per_s is not None
    alone = told_by.matmul_flop_per_s / told_by.peak_flop_per_s["bf16"]
    assert told == {**first, "product_efficiency": pytest.approx(alone, abs=5e-4)}
    assert alone > 1.1 * first["product_efficiency"]


def test_biases_of_experts_are_moved_unless_the_kernel_of_the_products_adds_them() -> None:
    """Behind the last product 68 bytes a number both ways; gates that are clipped move 23 for each of their inputs."""
    plain, one, experts = replace(MIXTURE, has_biases=False), Layouts.one(microbatch=2), MIXTURE.experts
    biased = replace(plain, has_biases=True)
    clipped = replace(biased, numerics=replace(biased.numerics, activation_limit=7.0))
    assert experts is not None

    def both_s(network: Transformer, layouts: Layouts = one, **of_low: float) -> float:
        low = LowProducts(name="mxfp8", recipe="mxfp8", peak_flop_per_s=1e15, product_efficiency=0.5, **of_low)
        rates = replace(RATES, low=low if of_low else None)
        found = layer_seconds(network, "moe", layouts, SPEEDS._replace(rates=rates))
        return float((found.forward_s + found.backward_s)[0])

    per_byte_s = 2 * plain.sequence_length * experts.top_k / RATES.moved_bytes_per_s
    apart_s = {biased: 68 * plain.hidden_size * per_byte_s}
    apart_s[clipped] = apart_s[biased] + 23 * experts.expert_size * (1 + plain.is_gated) * per_byte_s
    for network, seconds in apart_s.items():
        assert both_s(network) - both_s(plain) == pytest.approx(seconds)
        assert both_s(network, startup_ratio=0.5) - both_s(plain, startup_ratio=0.5) == pytest.approx(seconds)
        assert both_s(network, routed_moved_ratio=0.4) == both_s(plain, routed_moved_ratio=0.4)
    split = Layouts.one(microbatch=2, tensor=2, context=2, expert_tensor=2)
    shared = (apart_s[clipped] - apart_s[biased]) / 2  # inputs of gates are split among the group, the outputs are not
    assert both_s(clipped, split) - both_s(plain, split) == pytest.approx((apart_s[biased] + shared) / 2)
    spread = Layouts.one(microbatch=2, data=2, expert=2)
    assert both_s(clipped, spread) - both_s(plain, spread) == pytest.approx(apart_s[clipped])
