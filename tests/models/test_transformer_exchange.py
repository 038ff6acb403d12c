from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost import Floats
from planner.models.layouts import ContextMethod, Layouts, Recompute
from planner.models.parameters import stage_parameters
from planner.models.tiers import Spread, Tier, groups_of
from planner.models.transformer_communication import (
    Communication,
    Reduction,
    communication_times,
    context_axes,
    first_stage_communication,
    has_heads,
    last_stage_communication,
    layer_communication,
    pipeline_communication,
    replica_communication,
    replica_times,
)
from planner.transformer import Transformer
from planner.transformer_parts import Experts

GPT3 = Transformer(num_layers=96, hidden_size=12288, num_heads=96, vocabulary_size=51200, sequence_length=2048)
UNTIED = Transformer(
    num_layers=80,
    hidden_size=8192,
    num_heads=64,
    num_kv_heads=8,
    vocabulary_size=128256,
    sequence_length=8192,
    feed_forward_size=28672,
    is_gated=True,
    has_tied_embeddings=False,
    positions="rotary",
    norm="rms_norm",
    has_biases=False,
)
MIXTRAL = Transformer(
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    vocabulary_size=32000,
    sequence_length=4096,
    is_gated=True,
    has_tied_embeddings=False,
    positions="rotary",
    norm="rms_norm",
    has_biases=False,
    experts=Experts(num_experts=8, top_k=2, expert_size=14336),
)
TIERS = (
    Tier(size=8, bandwidth_bytes_per_s=300e9, latency_s=3e-6),
    Tier(size=64, bandwidth_bytes_per_s=25e9, latency_s=1e-5, num_rails=8),
)
STREAM_BYTES = 2 * 2048 * 12288  # 2 s b h of GPT-3


def named(exchanges: tuple[Communication, ...], name: str, operation: str) -> Communication:
    (found,) = [one for one in exchanges if (one.name, one.operation) == (name, operation)]
    return found


def volume_bytes(layout: Layouts) -> Floats:
    """Bytes of replicas' gradients and weights in a step, an all-reduce counted twice: once there and once back."""
    dense = replica_communication(GPT3, layout)[0]
    return (2 * dense.all_reduces + dense.reduce_scatters) * dense.gradient_bytes + dense.gathers * dense.weight_bytes


def counts(one: Communication) -> tuple[float, float, float, float]:
    """Forward, backward, hidden and recomputed."""
    columns = (one.forward, one.backward, one.hidden_backward, one.recomputed)
    return tuple(float(column.ravel()[0]) for column in columns)  # type: ignore[return-value]  # four


# -- layers: check values of the literature ----------------------------------------------------------------------------


def test_tensor_parallel_layers_reduce_two_streams_each_way() -> None:
    found = layer_communication(GPT3, Layouts.one(tensor=8, microbatch=2), "dense")
    reduced = named(found, "tensor", "all_reduce")
    assert counts(reduced) == (2, 2, 0, 0)
    assert reduced.size_bytes == pytest.approx(2 * STREAM_BYTES)
    assert counts(named(found, "tensor", "gather")) == (0, 0, 0, 0)


def test_sequence_parallel_layers_gather_and_scatter_as_much_and_gather_again_beside_backward() -> None:
    found = layer_communication(GPT3, Layouts.one(tensor=8, sequence_parallel=True), "dense")
    gathered = named(found, "tensor", "gather")
    assert counts(gathered) == (4, 4, 2, 0)
    assert gathered.size_bytes == pytest.approx(STREAM_BYTES)
    assert counts(named(found, "tensor", "all_reduce")) == (0, 0, 0, 0)


@given(st.sampled_from([2, 4, 8, 16]))
def test_sequence_parallelism_moves_the_bytes_of_the_all_reduces_that_it_replaces(tensor: int) -> None:
    tiers = (Tier(size=16, bandwidth_bytes_per_s=300e9),)
    times = []
    for is_split in (False, True):
        layout = Layouts.one(tensor=tensor, sequence_parallel=is_split)
        times.append(
            communication_times(layer_communication(GPT3, layout, "dense"), groups_of(tiers, layout))["tensor"]
        )
    assert times[0].forward_s == pytest.approx(times[1].forward_s)
    assert times[0].backward_s == pytest.approx(times[1].backward_s)


def test_full_recomputation_repeats_a_layers_forward_exchange_and_selective_repeats_none() -> None:
    for recompute, repeated in ((Recompute.NONE, 0), (Recompute.SELECTIVE, 0), (Recompute.FULL, 1)):
        layout = Layouts.one(tensor=4, context=2, expert=2, recompute=int(recompute))
        for one in layer_communication(MIXTRAL, layout, "moe"):
            assert one.recomputed == pytest.approx(repeated * one.forward)
        ends = (*first_stage_communication(MIXTRAL, layout), *last_stage_communication(MIXTRAL, layout))
        assert all(not one.recomputed.any() for one in ends)


def test_a_context_group_passes_keys_and_values_round_a_ring() -> None:
    ring = named(layer_communication(UNTIED, Layouts.one(context=4), "dense"), "context", "send")
    assert counts(ring) == (3, 6, 0, 0)
    assert ring.size_bytes == pytest.approx(2 * 2 * 8192 * (8 * 128) / 4)
    # More devices than heads of keys: each holds a whole one.
    split = named(layer_communication(UNTIED, Layouts.one(context=4, tensor=16), "dense"), "context", "send")
    assert split.size_bytes == pytest.approx(2 * 2 * 8192 * 128 / 4)


@pytest.mark.parametrize("context", [2, 4, 8])
def test_every_context_method_moves_what_its_paper_says(context: int) -> None:
    tokens, keys, heads = 8192 / context, 2 * 8 * 128, 64 * 128  # of a rank; numbers of a token
    sent: dict[ContextMethod, float] = {}
    for method in (ContextMethod.ALL_GATHER, ContextMethod.ULYSSES):
        found = layer_communication(UNTIED, Layouts.one(context=context, context_method=int(method)), "dense")
        assert not named(found, "context", "send").forward.any()
        shown = [one for one in found if one.name == "context_exposed"]
        assert {one.operation for one in shown} == {"gather" if method == ContextMethod.ALL_GATHER else "all_to_all"}
        sent[method] = sum(float((one.size_bytes * one.forward).ravel()[0]) for one in shown)
    assert sent[ContextMethod.ALL_GATHER] == pytest.approx(2 * context * tokens * keys)
    assert sent[ContextMethod.ULYSSES] == pytest.approx(2 * tokens * (heads + keys + heads))


def test_the_hierarchical_method_shares_heads_among_neighbours_and_passes_the_rest_round_a_ring() -> None:
    layout = Layouts.one(context=16, context_method=int(ContextMethod.HIERARCHICAL))
    found = layer_communication(UNTIED, layout, "dense")
    (ring,) = [one for one in found if one.group == "context_outer"]
    assert counts(ring) == (1, 2, 0, 0)  # of two groups, in each of which 8 heads of keys are shared out
    assert ring.size_bytes == pytest.approx(2 * 2 * 8192 * (8 * 128) / 16)
    tiers = (Tier(size=8, bandwidth_bytes_per_s=300e9), Tier(size=4, bandwidth_bytes_per_s=25e9, num_rails=8))
    groups = groups_of(tiers, layout, context_axes(UNTIED, layout))
    assert groups["context_inner"].num_members == 8
    assert groups["context_inner"].units[1] == 1
    assert groups["context_outer"].units[1] == 2


def test_heads_say_which_context_methods_there_are() -> None:
    degrees, tensor = np.array([1, 2, 8, 16, 3]), np.ones(5, dtype=np.int64)
    found = {method: has_heads(UNTIED, degrees, tensor, np.full(5, method)).tolist() for method in ContextMethod}
    assert found[ContextMethod.RING] == found[ContextMethod.ALL_GATHER] == [True] * 5
    assert found[ContextMethod.ULYSSES] == [True, True, True, False, False]
    assert found[ContextMethod.HIERARCHICAL] == [True, False, False, True, False]


def test_tokens_go_to_their_experts_and_back_each_way_with_the_stated_imbalance() -> None:
    layout = Layouts.one(data=8, expert=8, microbatch=3)
    sent = named(layer_communication(MIXTRAL, layout, "moe", expert_imbalance=1.5), "experts", "all_to_all")
    assert counts(sent) == (2, 2, 0, 0)
    assert sent.size_bytes == pytest.approx(1.5 * 2 * 3 * 4096 * 2 * 4096)
    seconds = communication_times([sent], groups_of(TIERS, layout))["experts"].forward_s
    assert seconds == pytest.approx(2 * (7 * 3e-6 + sent.size_bytes * 7 / 8 / 300e9))


def test_a_program_that_sends_a_token_once_to_a_machine_needs_less_of_the_network() -> None:
    assert MIXTRAL.experts is not None, "as defined above"
    many = replace(MIXTRAL, experts=replace(MIXTRAL.experts, num_experts=64, top_k=8))
    for network, copies, members in ((MIXTRAL, 2, 8), (many, 8, 64)):
        layout = Layouts.one(data=members, expert=members)
        groups = groups_of(TIERS, layout)
        each, once = (
            communication_times(layer_communication(network, layout, "moe", spread=one), groups)["experts"]
            for one in (None, Spread(copies=copies))
        )
        assert 0.5 * each.total_s < once.total_s < 0.97 * each.total_s


def test_a_dense_layer_of_a_network_with_experts_sends_nothing_to_them() -> None:
    names = {one.name for one in layer_communication(MIXTRAL, Layouts.one(data=8, expert=8), "dense")}
    assert names == {"tensor", "context"}


def test_routed_tokens_are_gathered_as_often_as_each_goes_to_an_expert() -> None:
    layout = Layouts.one(tensor=2, data=8, expert=8, sequence_parallel=True)
    found = layer_communication(MIXTRAL, layout, "moe")
    stream = 2 * 4096 * 4096
    assert counts(named(found, "tensor", "gather")) == (2, 2, 1, 0)
    routed = named(found, "expert_tensor", "gather")
    assert counts(routed) == (2, 2, 1, 0)
    assert routed.size_bytes == pytest.approx(2 * stream)
    assert named(found, "experts", "all_to_all").size_bytes == pytest.approx(2 * stream / 2)


# -- ends and boundaries of the pipeline -------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_split", "gathers"), [(False, 3), (True, 0)])
def test_a_scattered_boundary_passes_a_part_and_gathers_it_unless_the_sequence_is_split(
    is_split: bool, gathers: int
) -> None:
    layout = Layouts.one(tensor=8, pipeline=8, interleave=3, sequence_parallel=is_split)
    found = pipeline_communication(GPT3, layout)
    assert named(found, "pipeline", "send").size_bytes == pytest.approx(STREAM_BYTES / 8)
    assert counts(named(found, "pipeline", "gather")) == (gathers, gathers, 0, 0)


def test_one_stage_passes_nothing_on() -> None:
    times = communication_times(
        pipeline_communication(GPT3, Layouts.one(tensor=8)), groups_of(TIERS, Layouts.one(tensor=8))
    )
    assert times["pipeline"].forward_s == pytest.approx(0)


@given(st.booleans())
def test_the_ends_of_the_network_exchange_one_stream_each(is_split: bool) -> None:
    layout = Layouts.one(tensor=8, sequence_parallel=is_split)
    groups = groups_of((Tier(size=8, bandwidth_bytes_per_s=300e9),), layout)
    stream_s = 2 * 7 / 8 * STREAM_BYTES / 300e9
    first = communication_times(first_stage_communication(GPT3, layout), groups)["embedding"]
    last = communication_times(last_stage_communication(GPT3, layout), groups)["logits"]
    loss_s = 3 * 2 * 7 / 8 * 4 * 2048 / 300e9
    assert first.forward_s + first.backward_s == pytest.approx(stream_s)
    assert last.forward_s + last.backward_s == pytest.approx(stream_s + loss_s)
    assert last.hidden_backward_s == pytest.approx(is_split * stream_s / 2)


# -- replicas ----------------------------------------------------------------------------------------------------------

zeros = st.sampled_from([0, 1, 2, 3])


@given(zeros, st.sampled_from([1, 4]), st.sampled_from([1, 2, 8]))
def test_parameters_of_all_devices_are_those_of_the_network(zero: int, pipeline: int, tensor: int) -> None:
    transformer = replace(UNTIED, vocabulary_size=2**17)  # no padding for any tensor degree
    held = stage_parameters(transformer, Layouts.one(tensor=tensor, pipeline=pipeline, zero=zero))
    ends = held.first if pipeline == 1 else held.first + held.last
    # Norms are whole on every device of a tensor group.
    norms = 80 * 2 * 8192 * (tensor - 1)
    whole = pipeline * tensor * held.dense[0] + tensor * ends
    assert whole == pytest.approx(transformer.num_parameters + norms + 8192 * (tensor - 1), rel=1e-9)


def test_experts_are_copied_among_fewer_ranks_than_the_rest() -> None:
    layout = Layouts.one(data=16, expert=8, pipeline=4)
    held = stage_parameters(MIXTRAL, layout)
    assert held.experts[0] == pytest.approx(32 * 8 * 3 * 4096 * 14336 / 8 / 4)
    groups = groups_of(TIERS, layout)
    assert groups["replicas"].num_members == 16
    assert groups["expert_replicas"].num_members == 2


def test_the_table_of_zero_stages_in_volume() -> None:
    volumes = []
    for zero in range(4):
        layout = Layouts.one(data=8, zero=zero)
        volumes.append(volume_bytes(layout))
    parameters = stage_parameters(GPT3, Layouts.one(data=8))
    whole = 2 * 2 * (parameters.dense[0] + parameters.first)
    assert volumes[0] == pytest.approx(whole)
    assert volumes[1] == pytest.approx(whole)
    assert volumes[2] == pytest.approx(whole)
    assert volumes[3] == pytest.approx(1.5 * whole)


@given(st.integers(1, 64), st.booleans())
def test_weights_that_are_freed_are_gathered_for_every_micro_batch(passes: int, frees: bool) -> None:
    layout = Layouts.one(data=8, zero=3, num_microbatches=passes)
    dense = replica_communication(GPT3, layout, Reduction(frees_weights=frees, reduces_every_microbatch=frees))[0]
    assert dense.gathers == (2 * passes if frees else 1)
    assert dense.reduce_scatters == (passes if frees else 1)


@given(zeros)
def test_seconds_of_gradients_over_one_tier_are_those_of_a_ring(zero: int) -> None:
    layout = Layouts.one(data=8, zero=zero)
    tiers = (Tier(size=8, bandwidth_bytes_per_s=100e9),)
    reduced_s, gathered_s = replica_times(replica_communication(GPT3, layout), groups_of(tiers, layout))["dense"]
    volume = volume_bytes(layout)
    assert reduced_s + gathered_s == pytest.approx(7 / 8 * volume / 100e9)


def test_buckets_cost_their_latency_and_no_more_bytes() -> None:
    layout = Layouts.one(data=8)
    tiers = (Tier(size=8, bandwidth_bytes_per_s=100e9, latency_s=1e-6),)
    groups = groups_of(tiers, layout)
    whole, cut = (
        replica_times(replica_communication(GPT3, layout, Reduction(bucket_bytes=size)), groups)["dense"][0]
        for size in (1e15, 1e8)
    )
    pieces = replica_communication(GPT3, layout, Reduction(bucket_bytes=1e8))[0].num_pieces
    assert cut - whole == pytest.approx((pieces - 1) * 14e-6)


def test_a_tied_embedding_is_summed_over_both_ends_where_they_are_two() -> None:
    for pipeline, tied_bytes in ((1, 0), (4, 2 * 51200 * 12288 / 8)):
        layout = Layouts.one(pipeline=pipeline, tensor=8)
        tied = replica_communication(GPT3, layout)[2]
        assert tied.gradient_bytes == pytest.approx(tied_bytes)
        seconds = replica_times([tied], groups_of(TIERS, layout))["tied"][0]
        # Two machines: half of the buffer each way over each device's rail.
        assert seconds == pytest.approx((2e-5 + tied_bytes / 25e9) if tied_bytes else 0)
        short, whole = (
            replica_communication(GPT3, layout, Reduction(gradient_bytes=4.0, tied_gradient_bytes=own))[2]
            for own in (2.0, 0.0)
        )
        assert (short.gradient_bytes.item(), whole.gradient_bytes.item()) == pytest.approx((tied_bytes, 2 * tied_bytes))
    assert not replica_communication(UNTIED, Layouts.one(pipeline=4))[2].gradient_bytes.any()


# -- many at once ------------------------------------------------------------------------------------------------------


def test_many_layouts_at_once_are_each_by_itself() -> None:
    rng = np.random.default_rng(2)
    plain = {name: np.broadcast_to(array, 30) for name, array in Layouts.one().arrays().items()}
    drawn: dict[str, np.ndarray] = {
        name: 2 ** rng.integers(0, 3, size=30) for name in ("tensor", "context", "data", "pipeline", "microbatch")
    }
    drawn["expert"] = drawn["data"]
    drawn |= {"zero": rng.integers(0, 4, size=30), "recompute": rng.integers(0, 3, size=30)}
    drawn["sequence_parallel"] = rng.integers(0, 2, size=30).astype(bool)
    many = Layouts(**{**plain, **drawn})

    def seconds(layouts: Layouts) -> np.ndarray:
        groups = groups_of(TIERS, layouts)
        exchanges = (
            *layer_communication(MIXTRAL, layouts, "moe"),
            *first_stage_communication(MIXTRAL, layouts),
            *last_stage_communication(MIXTRAL, layouts),
            *pipeline_communication(MIXTRAL, layouts),
        )
        total = np.zeros(len(layouts))
        for times in communication_times(exchanges, groups).values():
            total = total + times.forward_s + times.backward_s + times.hidden_backward_s + times.recomputed_s
        for reduced_s, gathered_s in replica_times(replica_communication(MIXTRAL, layouts), groups).values():
            total = total + reduced_s + gathered_s
        return total

    together = seconds(many)
    for index in range(30):
        assert together[index] == pytest.approx(seconds(many.of(np.array([index])))[0])
