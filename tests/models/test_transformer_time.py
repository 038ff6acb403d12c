from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformer_rates_drawn import CONSTANTS, GPT, MIXTURE, RATES, SOFTWARE, TIERS, figures_of

from planner.cost import Floats
from planner.data.fits import transformer_rates
from planner.models.compute import Software
from planner.models.layouts import EvenCut, Layouts, Recompute, Schedule, dealt_layers
from planner.models.schedule import PipelineTimes, simulate
from planner.models.tiers import Tier, groups_of
from planner.models.transformer_communication import replica_communication, replica_times
from planner.models.transformer_interval import interval_times, kind_times
from planner.models.transformer_schedule import order_name
from planner.models.transformer_time import PARTS, iteration_times, stage_times
from planner.transformer import Transformer

_FREE_HANDING = replace(CONSTANTS, send_s=0.0)

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
    sequence_parallel=st.booleans(),
    overlap_data=st.booleans(),
    overlap_tensor=st.booleans(),
)


def seconds_of(transformer: Transformer, layouts: Layouts, tiers: tuple[Tier, ...] = TIERS) -> dict[str, Floats]:
    return dict(iteration_times(figures_of(transformer, tiers=tiers), layouts))


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
    for name in ("tensor", "expert", "context", "bubble", "pipeline", "data"):
        assert found[name][0] == pytest.approx(0, abs=1e-12), name


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
        for more in ({}, {"interleave": 2}, {"schedule": int(Schedule.ZB_H1)})
    )
    assert chunked < plain
    assert put_off < plain


def test_an_overlapped_exchange_hides_but_for_the_contention() -> None:
    plain, overlapped = (
        seconds_of(GPT, Layouts.one(data=16, microbatch=8, overlap_data=flag))["data"][0] for flag in (False, True)
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


_SPREAD = (replace(TIERS[0], size=1), TIERS[1])  # devices that meet over the network alone


def test_machines_of_one_device_have_no_links_that_a_network_could_be_as_fast_as() -> None:
    alone = replace(TIERS[0], size=1, bandwidth_bytes_per_s=1.0)
    assert figures_of(MIXTURE, tiers=(alone, TIERS[1])).num_inner_tiers == 1
    assert figures_of(MIXTURE, tiers=(replace(TIERS[0], bandwidth_bytes_per_s=1.0), TIERS[1])).num_inner_tiers == 2


def test_experts_reach_a_share_of_the_network_of_their_own() -> None:
    figures, layout = figures_of(MIXTURE, tiers=_SPREAD), Layouts.one(data=8, expert=8, microbatch=4)
    free = replace(CONSTANTS, hop_s=0.0, exchange_bytes_per_s=inf)
    found, slower = (
        iteration_times(replace(figures, constants=replace(free, exchange_efficiency=share)), layout)
        for share in (0.8, 0.4)
    )
    assert slower["expert"] == pytest.approx(2 * found["expert"], rel=1e-3)  # but for the links' own latency
    assert slower["data"] == pytest.approx(found["data"])


def test_what_a_device_hands_on_to_experts_on_other_machines_bounds_faster_cards() -> None:
    layout = Layouts.one(data=8, expert=8, microbatch=4)
    most = CONSTANTS.exchange_bytes_per_s / CONSTANTS.exchange_efficiency
    at_most, faster, slower = (
        seconds_of(MIXTURE, layout, (_SPREAD[0], replace(_SPREAD[1], bandwidth_bytes_per_s=ratio * most, num_rails=1)))
        for ratio in (1, 4, 0.5)
    )
    assert faster["expert"] == pytest.approx(at_most["expert"])
    assert faster["data"] < at_most["data"]
    assert slower["expert"] == pytest.approx(2 * at_most["expert"], rel=0.02)


def test_trays_that_nvlink_joins_are_one_machine_to_experts() -> None:
    tray = Tier(size=4, bandwidth_bytes_per_s=9e11)
    joined = replace(tray, size=2, num_rails=4)
    network = Tier(size=8, bandwidth_bytes_per_s=1e11, num_rails=8)
    figures = figures_of(MIXTURE, tiers=(tray, joined, network))
    assert figures.num_inner_tiers == 2
    assert figures.exchanging_tiers[:2] == figures.reached_tiers[:2]
    assert figures.exchanging_tiers[2].bandwidth_bytes_per_s == CONSTANTS.exchange_bytes_per_s
    assert replace(figures, tiers=(tray, joined)).num_inner_tiers == 2
    layouts = [Layouts.one(data=8, expert=8, microbatch=4, overlap_expert=flag) for flag in (False, True)]
    plain, overlapped = (iteration_times(figures, layout)["expert"] for layout in layouts)
    assert overlapped == pytest.approx(plain)  # as inside a machine, nothing is hidden


def test_what_multiprocessors_hand_on_bounds_an_exchange_between_machines_that_deepep_has_kernels_for() -> None:
    machine, network = replace(TIERS[0], size=4), replace(TIERS[1], bandwidth_bytes_per_s=50e9, num_rails=4)
    domain = (machine, replace(machine, size=3, num_rails=4))  # of 12 devices, for which HybridEP sends
    slow, free = (
        replace(SOFTWARE, sends_once=True, handed_bytes_per_s=rate) for rate in (SOFTWARE.handed_bytes_per_s / 100, inf)
    )

    def expert_s(software: Software, machine: tuple[Tier, ...], expert: int) -> float:
        figures = replace(figures_of(MIXTURE, tiers=(*machine, network)), software=software)
        return float(iteration_times(figures, Layouts.one(data=32, expert=expert, microbatch=4))["expert"][0])

    assert expert_s(slow, (machine,), 8) > 2 * expert_s(free, (machine,), 8)
    assert expert_s(slow, (machine,), 4) == expert_s(free, (machine,), 4)
    assert expert_s(slow, domain, 8) == expert_s(free, domain, 8)
    inside = replace(free, exchanged_bytes_per_s=TIERS[0].bandwidth_bytes_per_s / 10)
    assert expert_s(inside, (machine,), 4) > 5 * expert_s(free, (machine,), 4)
    assert expert_s(replace(inside, sends_once=False), (machine,), 4) < expert_s(inside, (machine,), 4)
    each = [replace(one, sends_once=False) for one in (slow, free)]
    assert expert_s(each[0], (machine,), 8) == expert_s(each[1], (machine,), 8)


def test_an_overlapped_exchange_of_experts_hides_between_machines_and_where_kernels_are_captured() -> None:
    layouts = [Layouts.one(data=8, expert=8, microbatch=4, overlap_expert=flag) for flag in (False, True)]
    captured = replace(SOFTWARE, launch_ratio=0.2)
    assert len({CONSTANTS.exchange_contention, CONSTANTS.contention, 1.0}) == 3
    once = replace(SOFTWARE, sends_once=True)
    for tiers, software, shown in (
        (_SPREAD, once, CONSTANTS.exchange_contention),
        (_SPREAD, replace(once, sends_once=False), CONSTANTS.contention),
        (TIERS, captured, CONSTANTS.contention),
        (TIERS, SOFTWARE, 1.0),
    ):
        figures = replace(figures_of(MIXTURE, tiers=tiers), software=software)
        plain, overlapped = (iteration_times(figures, layout) for layout in layouts)
        least = np.minimum(plain["expert"], plain["compute"])
        assert plain["expert"] - overlapped["expert"] == pytest.approx((1 - shown) * least)


def test_the_ends_exchange_over_the_tensor_group_and_their_forward_is_part_of_them() -> None:
    found = dict(interval_times(figures_of(GPT), Layouts.one(tensor=4, pipeline=2)))
    slower = tuple(replace(tier, bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s / 2) for tier in TIERS)
    again = interval_times(figures_of(GPT, tiers=slower), Layouts.one(tensor=4, pipeline=2))
    # One all-reduce of the stream at the embedding, forward; one behind the logits, backward.
    assert again["embedding"] - found["embedding"] == pytest.approx(
        again["embedding_forward"] - found["embedding_forward"]
    )
    assert again["head"] > found["head"]
    for name in ("embedding", "head"):
        assert 0 < found[f"{name}_forward"][0] < found[name][0]


def intervals(network: Transformer, layout: Layouts) -> Mapping[str, Floats]:
    """Seconds of one micro-batch."""
    return interval_times(figures_of(network), layout)


@given(st.sampled_from([int(way) for way in Recompute]), st.integers(1, 4))
def test_a_layer_less_is_a_layer_less_of_each_pass(recompute: int, microbatch: int) -> None:
    network = replace(GPT, num_layers=22)  # and both ends: 24 places on four stages
    layout = Layouts.one(pipeline=4, recompute=recompute, microbatch=microbatch)
    interval = interval_times(figures_of(network), layout)
    found = stage_times(network, layout, interval)
    ahead, both = found["middle"]
    for name, end in (("first", "embedding"), ("last", "head")):
        forward, more = found[name]
        assert interval[f"{end}_forward"] - forward == pytest.approx(ahead / 6)
        assert interval[end] - more == pytest.approx(both / 6)


@settings(max_examples=60, deadline=None)
@given(
    layers=st.integers(3, 20),
    pipeline=st.integers(2, 7),
    interleave=st.integers(1, 4),
    turns=st.integers(1, 9),
    schedule=st.sampled_from(list(Schedule)[:3]),
    data=st.sampled_from([1, 4]),
    experts=st.sampled_from([None, (2, 1), (0, 2)]),  # how many layers are without first, and which have some then
)
def test_where_layers_do_not_divide_the_schedule_is_played_stage_by_stage(
    layers: int, pipeline: int, interleave: int, turns: int, schedule: Schedule, data: int,
    experts: tuple[int, int] | None,
) -> None:  # fmt: skip
    chunks = min(interleave, (layers + 2) // pipeline) if schedule is Schedule.ONE_F_ONE_B else 1
    assume(pipeline <= layers)
    network = replace(GPT, num_layers=layers)
    if experts is not None and MIXTURE.experts is not None:
        first, every = experts
        network = replace(
            MIXTURE, num_layers=layers, experts=replace(MIXTURE.experts, num_dense_first=first, every=every)
        )
    number = turns * (pipeline if chunks > 1 else 1)
    layout = Layouts.one(
        pipeline=pipeline, interleave=chunks, num_microbatches=number, schedule=int(schedule), data=data
    )
    drawn = intervals(network, layout)
    interval = {name: float(one[0]) for name, one in drawn.items() if one.ndim == 1}
    layer: dict[str, tuple[float, ...]] = {}
    for index, (kind, count) in enumerate(network.kind_counts.items()):
        both, ahead = (float(one[index, 0]) for one in kind_times(network, drawn))
        apart = float((drawn["compute"] - drawn["forward"])[index, 0]) / 2 / count * (schedule is Schedule.ZB_H1)
        layer[kind] = (ahead, both - ahead - apart, apart)
    left, stages = list(network.layer_kinds), []
    for count in dealt_layers(layers, pipeline, chunks).ravel().tolist():
        own, left = left[:count], left[count:]
        stages.append([sum(layer[kind][way] for kind in own) for way in range(3)])
    for stage, name in ((stages[0], "embedding"), (stages[-1], "head")):
        stage[0] += interval[f"{name}_forward"]
        stage[1] += interval[name] - interval[f"{name}_forward"]
    forward_s, backward_s, weights_s = zip(*stages, strict=True)
    sent_s = [interval["transfer"]] * (len(stages) - 1)
    times = PipelineTimes(
        forward_s=forward_s, backward_s=backward_s, weights_s=weights_s, output_s=sent_s, error_s=sent_s
    )
    name = order_name(schedule, chunks)
    run = simulate(times, schedule=name, num_microbatches=number, chunks_per_device=chunks, is_blocking=True)
    exact, bound = (iteration_times(figures_of(network), layout, is_exact=is_exact) for is_exact in (True, False))
    found_s = float(exact["total"][0] - exact["data"][0] - exact["optimizer"][0])
    is_uneven = not EvenCut.of(layers, layout).is_alike[0] or (experts is not None and experts[0] > 0)
    if is_uneven or (schedule is Schedule.ZB_H1 and layers % pipeline):
        assert found_s == pytest.approx(run.makespan_s)
    assert run.makespan_s * 0.95 <= found_s <= run.makespan_s * (1 + 1e-9)
    assert bound["total"][0] <= exact["total"][0] * (1 + 1e-9)
    device = np.array(stages).sum(axis=1).reshape(chunks, pipeline).sum(axis=0)
    assert bound["total"][0] >= number * device.max()


def test_a_tied_embedding_is_reduced_alone_however_much_is_overlapped() -> None:
    layout = {"pipeline": 4, "num_microbatches": 8, "data": 2}
    tied, untied = (
        [seconds_of(network, Layouts.one(**layout, overlap_data=flag))["data"][0] for flag in (False, True)]
        for network in (GPT, replace(GPT, has_tied_embeddings=False))
    )
    assert tied[0] - untied[0] == pytest.approx(tied[1] - untied[1])
    assert tied[1] > untied[1]


@given(st.sampled_from([2, 4]), st.sampled_from([1, 2]))
def test_stages_at_the_ends_send_once_less(pipeline: int, interleave: int) -> None:
    network = replace(GPT, num_layers=32)
    layout = Layouts.one(pipeline=pipeline, interleave=interleave, num_microbatches=8, tensor=8, data=1)
    interval = interval_times(figures_of(network), layout)
    found = seconds_of(network, layout)
    sends = found["pipeline"][0] / 8 / interval["transfer"][0]
    assert sends == pytest.approx(2 * interleave - 1)  # the head makes the last stage the busiest
    if pipeline == 2 and interleave == 1:
        stages = stage_times(network, layout, interval)
        busy = 8 * (stages["middle"][1] + stages["last"][1] + interval["transfer"])
        whole = found["total"] - found["data"] - found["optimizer"] - found["bubble"]
        assert whole == pytest.approx(busy)


@given(st.floats(1.0, 3.0))
def test_unlike_numbers_of_tokens_lengthen_experts_and_their_exchange(imbalance: float) -> None:
    layout = Layouts.one(data=8, expert=8, microbatch=2)
    even, uneven = (
        iteration_times(figures_of(MIXTURE, constants=replace(CONSTANTS, hop_s=0.0), expert_imbalance=one), layout)
        for one in (1.0, imbalance)
    )
    assert uneven["total"] >= even["total"]
    assert uneven["expert"] == pytest.approx(imbalance * even["expert"])


def test_zero_1_that_reduces_by_an_all_reduce_exchanges_half_as_much_again() -> None:
    links = tuple(replace(tier, latency_s=0.0) for tier in TIERS)
    layout = Layouts.one(data=8, zero=1)
    shared: dict[str, Any] = {"tiers": links, "rates": RATES, "constants": replace(CONSTANTS, hop_s=0.0)}
    sharded, whole = (
        iteration_times(figures_of(GPT, software=replace(SOFTWARE, shards_gradients=flag), **shared), layout)["data"]
        for flag in (True, False)
    )
    assert whole == pytest.approx(1.5 * sharded)


def test_what_is_reduced_behind_a_pipeline_hides_nowhere() -> None:
    """Of ZeRO 1 in bf16 reductions and gathers are alike: half of what is exchanged shows, and of the rest a part."""
    layout = {"pipeline": 2, "data": 8, "zero": 1, "microbatch": 8, "num_microbatches": 2}
    network = replace(GPT, has_tied_embeddings=False)
    beside, behind = (
        figures_of(network, software=replace(SOFTWARE, reduces_behind_stages=flag)) for flag in (False, True)
    )
    shown = [
        iteration_times(one, Layouts.one(**layout, overlap_data=flag))["data"].item()
        for one, flag in ((beside, True), (behind, True), (behind, False))
    ]
    assert shown[0] < shown[2] / 2 < shown[1] < shown[2]
    one_stage = {**layout, "pipeline": 1, "overlap_data": True}
    seconds = [iteration_times(one, Layouts.one(**one_stage)) for one in (beside, behind)]
    assert seconds[0]["data"] == seconds[1]["data"]
    software = transformer_rates()["software"]
    told = {name: one["gradient_bytes"] for name, one in software.items() if one["reduces_behind_stages"]}
    assert told == {"torchtitan": 4, "torchtitan-eager": 4}


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_the_optimiser_moves_the_state_of_what_a_device_holds(zero: int) -> None:
    second_bytes = RATES.moved_bytes_per_s / SOFTWARE.optimizer_bytes
    ranks = 4 if zero else 1
    ends = GPT.embedding_parameters, GPT.head_parameters
    found = seconds_of(GPT, Layouts.one(pipeline=2, tensor=2, data=4, zero=zero, num_microbatches=2))["optimizer"]
    held = ((GPT.num_parameters - sum(ends)) / 2 + max(ends)) / 2 / ranks
    assert found == pytest.approx(held / second_bytes)
    experts = MIXTURE.experts
    assert experts is not None
    routed = experts.num_experts * MIXTURE.expert_parameters * MIXTURE.num_moe_layers
    found = seconds_of(MIXTURE, Layouts.one(expert=4, data=8, zero=zero))["optimizer"]
    ranks = 8 if zero else 1
    held = (MIXTURE.num_parameters - routed) / ranks + routed / (8 if zero else 4)
    assert found == pytest.approx(held / second_bytes)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_without_overlap_all_that_replicas_communicate_shows(zero: int) -> None:
    layout = Layouts.one(tensor=2, data=8, zero=zero, num_microbatches=3)
    shares = (CONSTANTS.inside_efficiency, CONSTANTS.outside_efficiency)
    reached = [
        replace(tier, bandwidth_bytes_per_s=share * tier.bandwidth_bytes_per_s, latency_s=CONSTANTS.hop_s)
        for tier, share in zip(TIERS, shares, strict=True)
    ]
    times = replica_times(replica_communication(GPT, layout), groups_of(reached, layout)).values()
    assert seconds_of(GPT, layout)["data"] == pytest.approx(sum(reduced + gathered for reduced, gathered in times))


def test_interleaved_transfers_beside_computing_take_what_the_kernel_of_schedules_says() -> None:
    """Equal stages, whose step is ``m x + (p - 1) x / v + 2 c (p v - 1)``; a program that waits for each sends m v."""
    layout = Layouts.one(pipeline=4, interleave=2, microbatch=1, num_microbatches=8)
    seen = {}
    for is_beside in (False, True):
        told = replace(SOFTWARE, overlaps_transfers=is_beside)
        asked: dict[str, Any] = {"tiers": TIERS, "rates": RATES, "software": told, "constants": _FREE_HANDING}
        interval = interval_times(figures_of(GPT, **asked), layout)
        seen[is_beside] = (iteration_times(figures_of(GPT, **asked), layout), interval)
    (waited, blocking), (beside, hiding) = seen[False], seen[True]
    assert hiding["transfer"] == 0
    assert hiding["transfer_hidden"] == pytest.approx(blocking["transfer"])
    assert blocking["transfer_hidden"] == 0
    layer_s, ahead_s = (one.sum() for one in kind_times(GPT, hiding))
    each = GPT.num_layers / 8
    sent = [float(hiding["transfer_hidden"][0])] * 7
    run = simulate(
        PipelineTimes(
            forward_s=[float(each * ahead_s)] * 8,
            backward_s=[float(each * (layer_s - ahead_s))] * 8,
            output_s=sent,
            error_s=sent,
        ),
        schedule="interleaved",
        num_microbatches=8,
        chunks_per_device=2,
    )
    ends_s = 8 * float((hiding["embedding"] + hiding["head"])[0])
    ours_s = float(beside["total"][0] - beside["data"][0] - beside["optimizer"][0])
    assert run.makespan_s <= ours_s <= run.makespan_s + ends_s
    assert beside["total"] < waited["total"]


def test_every_chunk_that_is_handed_on_takes_its_while_whatever_is_sent_beside_computing() -> None:
    """A device between the ends hands each of v chunks of m micro-batches on both ways, and one end once less."""
    free: dict[int, dict[str, float]] = {}
    paid: dict[int, dict[str, float]] = {}
    told = replace(SOFTWARE, overlaps_transfers=True)
    for chunks in (1, 2, 6):
        layout = Layouts.one(pipeline=4, interleave=chunks, microbatch=1, num_microbatches=8)
        asked: dict[str, Any] = {"tiers": TIERS, "rates": RATES, "software": told}
        for found, constants in ((free, _FREE_HANDING), (paid, CONSTANTS)):
            parts = iteration_times(figures_of(GPT, constants=constants, **asked), layout)
            found[chunks] = {name: float(seconds[0]) for name, seconds in parts.items()}
        sends = 8 * (2 * chunks - 1)
        assert paid[chunks]["pipeline"] - free[chunks]["pipeline"] == pytest.approx(sends * CONSTANTS.send_s)
        more_s = paid[chunks]["total"] - free[chunks]["total"]
        assert sends * CONSTANTS.send_s - 1e-9 <= more_s <= (sends + 2 * 4 * chunks) * CONSTANTS.send_s
    assert free[6]["total"] < free[2]["total"]
    alone = Layouts.one(microbatch=1, num_microbatches=8)
    seconds = [
        iteration_times(figures_of(GPT, constants=one, **asked), alone)["total"][0]
        for one in (_FREE_HANDING, CONSTANTS)
    ]
    assert seconds[0] == seconds[1]
