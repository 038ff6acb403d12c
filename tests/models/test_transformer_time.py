from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformer_rates_drawn import CONSTANTS, GPT, MIXTURE, RATES, SOFTWARE, TIERS

from planner.cost import Floats
from planner.models.layouts import Layouts, Recompute, Schedule
from planner.models.tiers import Tier
from planner.models.transformer_time import PARTS, iteration_times
from planner.transformer import Transformer

Decisions = dict[str, int | bool]
layouts_drawn: st.SearchStrategy[Decisions] = st.builds(
    dict,
    tensor=st.sampled_from([1, 2, 4]),
    context=st.sampled_from([1, 2]),
    pipeline=st.sampled_from([1, 2, 4]),
    data=st.sampled_from([1, 2, 4, 8]),
    microbatch=st.integers(1, 4),
    num_microbatches=st.sampled_from([4, 8, 16]),
    zero=st.integers(0, 3),
    recompute=st.sampled_from([int(way) for way in Recompute]),
    is_sequence_parallel=st.booleans(),
    overlaps_data=st.booleans(),
    overlaps_tensor=st.booleans(),
)


def seconds_of(transformer: Transformer, layouts: Layouts, tiers: tuple[Tier, ...] = TIERS) -> dict[str, Floats]:
    return dict(iteration_times(transformer, layouts, tiers=tiers, rates=RATES, software=SOFTWARE, constants=CONSTANTS))


def total_s(transformer: Transformer, decisions: Decisions, tiers: tuple[Tier, ...] = TIERS) -> float:
    return float(seconds_of(transformer, Layouts.one(**decisions), tiers)["total"][0])


def joined(*each: Decisions) -> Layouts:
    arrays = [Layouts.one(**one).arrays() for one in each]
    return Layouts(**{name: np.concatenate([one[name] for one in arrays]) for name in arrays[0]})


@pytest.mark.parametrize("transformer", [GPT, MIXTURE], ids=["dense", "experts"])
@given(st.lists(layouts_drawn, min_size=1, max_size=4))
def test_the_parts_are_never_negative_and_sum_to_the_total(transformer: Transformer, drawn: list[Decisions]) -> None:
    found = seconds_of(transformer, joined(*drawn))
    assert all(found[name].shape == (len(drawn),) and (found[name] >= 0).all() for name in PARTS)
    assert found["total"] == pytest.approx(sum(found[name] for name in PARTS))


@given(st.lists(layouts_drawn, min_size=2, max_size=5))
def test_a_layout_takes_as_long_among_others_as_alone(drawn: list[Decisions]) -> None:
    together = seconds_of(MIXTURE, joined(*drawn))["total"]
    assert together == pytest.approx([total_s(MIXTURE, one) for one in drawn])


@given(layouts_drawn, st.sampled_from([2.0, 10.0, 1e6]))
def test_faster_links_never_make_a_step_longer(drawn: Decisions, ratio: float) -> None:
    faster = tuple(replace(tier, bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s * ratio) for tier in TIERS)
    assert total_s(GPT, drawn, faster) <= total_s(GPT, drawn) * (1 + 1e-9)


@given(layouts_drawn)
def test_recomputation_never_makes_a_step_shorter(drawn: Decisions) -> None:
    none, selective, full = (total_s(GPT, {**drawn, "recompute": int(way)}) for way in Recompute)
    assert none <= selective * (1 + 1e-9)
    assert selective <= full * (1 + 1e-9)


def test_equal_layers_cost_one_layer_times_their_number() -> None:
    short, middle, long = (total_s(replace(GPT, num_layers=count), {}) for count in (8, 16, 24))
    assert long - middle == pytest.approx(middle - short)


def test_one_device_waits_for_nothing_and_exchanges_nothing() -> None:
    found = seconds_of(GPT, Layouts.one(num_microbatches=4))
    assert all(found[name][0] == 0 for name in ("tensor", "expert", "context", "bubble", "pipeline", "data"))


def test_links_without_end_leave_only_what_starting_an_exchange_takes() -> None:
    ideal = tuple(replace(tier, bandwidth_bytes_per_s=1e30) for tier in TIERS)
    found = seconds_of(GPT, Layouts.one(tensor=4, data=2, num_microbatches=4), ideal)
    # Four all-reduces of a layer and micro-batch, by a ring of at most 6 steps; one of the gradients.
    assert 0 < found["tensor"][0] <= 4 * 24 * 4 * 6 * CONSTANTS.hop_s
    assert found["data"] == pytest.approx(2 * CONSTANTS.hop_s)


def test_more_microbatches_make_the_bubble_a_smaller_part() -> None:
    found = [seconds_of(GPT, Layouts.one(pipeline=4, num_microbatches=count)) for count in (4, 8, 32)]
    shares = [float(one["bubble"][0] / one["total"][0]) for one in found]
    assert shares[0] > shares[1] > shares[2] > 0


def test_chunks_and_put_off_weight_gradients_make_the_bubble_smaller() -> None:
    plain, chunked, put_off = (
        seconds_of(GPT, Layouts.one(pipeline=4, num_microbatches=16, **more))["bubble"][0]
        for more in ({}, {"interleave": 2}, {"schedule": int(Schedule.ZERO_BUBBLE)})
    )
    assert chunked < plain
    assert put_off < plain


def test_an_overlapped_exchange_hides_but_for_the_contention() -> None:
    plain, overlapped = (
        seconds_of(GPT, Layouts.one(data=16, microbatch=8, overlaps_data=flag))["data"][0] for flag in (False, True)
    )
    assert overlapped == pytest.approx(CONSTANTS.contention * plain)


def test_zero_3_exchanges_more_and_steps_the_optimiser_faster() -> None:
    whole, sharded = (seconds_of(GPT, Layouts.one(data=8, num_microbatches=2, zero=zero)) for zero in (0, 3))
    assert sharded["data"] > whole["data"]
    assert sharded["optimizer"] == pytest.approx(whole["optimizer"] / 8)


def test_a_small_layer_takes_the_time_of_launching_its_kernels() -> None:
    tiny = replace(GPT, hidden_size=128, num_heads=2, num_kv_heads=2, head_size=64, feed_forward_size=512)
    found = seconds_of(tiny, Layouts.one())
    assert found["launch"] > 0.5 * found["total"]
    assert np.isfinite(found["total"]).all()
    assert found["total"] < inf


def test_experts_spread_over_machines_wait_for_the_network() -> None:
    inside, outside = (
        seconds_of(MIXTURE, Layouts.one(data=8, expert=8, microbatch=4), tiers)["expert"][0]
        for tiers in (TIERS, (replace(TIERS[0], size=1), TIERS[1]))
    )
    assert outside > inside > 0
