"""Memory of a transformer's training: published closed forms, limits, and a referee that looks at every stage."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers_drawn import transformers

from planner import zoo
from planner.cost import Floats
from planner.models import memory
from planner.models.layer_memory import KERNELS, Kernels, layer_bytes
from planner.models.layouts import (
    SCHEDULE_NAMES,
    Layouts,
    Recompute,
    Schedule,
    dealt_layers,
    every_stage,
    fullest_stages,
)
from planner.models.memory import PRECISIONS, TERMS, memory_bytes, stage_memory_bytes
from planner.models.operators import block_operators
from planner.models.orders import peak_weight
from planner.models.parameters import block_parameters, head_parameters
from planner.transformer import Transformer
from planner.transformer_parts import Experts, LatentAttention
from planner.zoo.transformers import row, row_names
from tests.referee.second_physics.hybrid_layer import layer_of

GIB = 2**30
OLD = KERNELS["megatron-2021"]
MIXED = PRECISIONS["mixed"]


def gpt(**fields: Any) -> Transformer:
    return Transformer(**{"vocabulary_size": 51200, "sequence_length": 2048, **fields})


GPT_175B = gpt(num_layers=96, hidden_size=12288, num_heads=96)
GPT_530B = gpt(num_layers=105, hidden_size=20480, num_heads=128)


def kept(transformer: Transformer, kernels: Kernels = OLD, **decisions: int | bool) -> float:
    """Bytes that one dense layer keeps, in half precision."""
    layout = Layouts.one(**decisions)
    return float(layer_bytes(transformer, "dense", layout, activation_bytes=2, kernels=kernels).kept[0])


# -- published figures


@given(
    heads=st.integers(1, 8),
    size=st.integers(1, 16),
    tokens=st.integers(1, 64),
    samples=st.integers(1, 4),
    tensor=st.sampled_from([1, 2, 4, 8]),
)
def test_a_gpt_layer_keeps_what_korthikanti_et_al_count(
    heads: int, size: int, tokens: int, samples: int, tensor: int
) -> None:
    assume(heads % tensor == 0)
    h = heads * size
    dnn = gpt(num_layers=1, hidden_size=h, num_heads=heads, sequence_length=tokens)
    sbh, scores = tokens * samples * h, 5 * heads * tokens / h
    ways: dict[str, Any] = {"tensor": tensor, "microbatch": samples}
    assert kept(dnn, **ways) == pytest.approx(sbh * (10 + 24 / tensor + scores / tensor))
    assert kept(dnn, **ways, sequence_parallel=True) == pytest.approx(sbh / tensor * (34 + scores))
    selective = {**ways, "recompute": int(Recompute.SELECTIVE)}
    assert kept(dnn, **selective) == pytest.approx(sbh * (10 + 24 / tensor))
    assert kept(dnn, **selective, sequence_parallel=True) == pytest.approx(sbh / tensor * 34)
    full = {**ways, "recompute": int(Recompute.FULL)}
    assert kept(dnn, **full) == pytest.approx(2 * sbh)
    assert kept(dnn, **full, sequence_parallel=True) == pytest.approx(2 * sbh / tensor)


@pytest.mark.parametrize(
    ("dnn", "pipeline", "plain_gib", "lean_gib"), [(GPT_175B, 8, 66.844, 12.352), (GPT_530B, 35, 114.023, 23.076)]
)
def test_the_first_stage_holds_what_korthikanti_et_al_print(
    dnn: Transformer, pipeline: int, plain_gib: float, lean_gib: float
) -> None:
    """Their figures leave out the embedding's dropout: here its masks are taken off."""
    ways: dict[str, Any] = {"tensor": 8, "pipeline": pipeline, "interleave": 3, "num_microbatches": 10 * pipeline}
    lean = {**ways, "recompute": int(Recompute.SELECTIVE), "sequence_parallel": True}
    mask = (2 * pipeline - 1) * dnn.sequence_length * dnn.hidden_size
    for decisions, gib, split in ((ways, plain_gib, 1), (lean, lean_gib, 8)):
        stages = stage_memory_bytes(dnn, Layouts.one(**decisions), precision=MIXED, kernels=OLD)
        assert (stages["activations"][0] - mask / split) / GIB == pytest.approx(gib, abs=6e-4)


def test_weights_and_optimizer_of_the_first_figure_of_korthikanti_et_al() -> None:
    """Their 45.5625 GiB are 18 bytes for the 12 h^2 weights of each matrix: no biases, norms or embedding."""
    layout = Layouts.one(tensor=8, pipeline=8, interleave=3, num_microbatches=64)
    stages = stage_memory_bytes(GPT_175B, layout, precision=PRECISIONS["megatron"])
    middle = sum(float(stages[name][3]) for name in ("weights", "gradients", "optimizer"))
    h = 12288
    small = 12 * (7 * h / 8 + 6 * h)  # biases by columns; biases by rows and two norms
    assert 18 * 12 * 12 * h**2 / 8 / GIB == 45.5625
    assert middle - 18 * small == pytest.approx(45.5625 * GIB, rel=1e-12)


@pytest.mark.parametrize(("zero", "fixed", "spread"), [(0, 16, 0), (1, 4, 12), (2, 2, 14), (3, 0, 16)], ids=str)
@pytest.mark.parametrize("data", [1, 4, 64])
def test_bytes_a_parameter_with_zero(zero: int, fixed: int, spread: int, data: int) -> None:
    """S. Rajbhandari et al., SC20, figure 1."""
    found = memory_bytes(GPT_175B, Layouts.one(data=data, zero=zero), precision=MIXED)
    states = float(found["weights"][0] + found["gradients"][0] + found["optimizer"][0])
    assert states == pytest.approx(GPT_175B.num_parameters * (fixed + spread / data))


@pytest.mark.parametrize(
    "name", ["gpt3-175b", "llama3-8b", "llama3.1-405b", "mixtral-8x7b", "deepseek-v3", "bert-large"]
)
def test_one_device_holds_the_published_parameters(name: str) -> None:
    dnn = zoo.build(name).transformer
    assert dnn is not None
    padding = -dnn.vocabulary_size % 128
    matrices = 1 if dnn.has_tied_embeddings else 2
    biases = padding if dnn.head == "masked_language" else 0
    found = memory_bytes(dnn, Layouts.one(), precision=MIXED)["weights"][0]
    assert found == 2 * (dnn.num_parameters + matrices * padding * dnn.hidden_size + biases)


def test_stages_tensor_ranks_and_experts_hold_all_parameters_together() -> None:
    """Of Mixtral: only norms and routers are copied, and the vocabulary divides."""
    dnn = zoo.build("mixtral-8x7b").transformer
    assert dnn is not None
    layout = Layouts.one(tensor=2, pipeline=8, data=8, expert=8)
    stages = stage_memory_bytes(dnn, layout, precision=MIXED)["weights"] / 2
    h, experts = dnn.hidden_size, 32 * 8 * dnn.expert_parameters
    whole = 32 * (2 * h + 8 * h) + h
    split = dnn.num_parameters - whole - experts
    assert float(stages.sum()) == pytest.approx(whole + split / 2 + experts / 16)


# -- what other makes of layers keep


def test_flash_attention_keeps_no_scores_but_a_number_a_row() -> None:
    dnn = gpt(num_layers=1, hidden_size=512, num_heads=8)
    sbh, rows = 2048 * 512, 8 * 2048
    assert kept(dnn, Kernels()) == 32 * sbh + 4 * rows
    assert kept(dnn, Kernels(is_flash=False)) == 32 * sbh + 2 * rows * 2048
    assert kept(dnn, Kernels(is_flash=False, has_dropout=True)) == 34 * sbh + 5 * rows * 2048


def test_a_gated_layer_with_grouped_queries_by_hand() -> None:
    """Two norms' inputs and outputs, q, k, v, the context, and three times the inner width."""
    dnn = gpt(num_layers=1, hidden_size=64, num_heads=8, num_kv_heads=2, feed_forward_size=96, is_gated=True)
    numbers = 4 * 64 + (64 + 2 * 16) + 64 + 3 * 96
    assert kept(dnn, Kernels()) == 2048 * (2 * numbers + 4 * 8)
    # Over four devices two heads of keys are each held twice.
    spread = 4 * 64 + 64 / 4 + 2 * 16 / 2 + 64 / 4 + 3 * 96 / 4
    assert kept(dnn, Kernels(), tensor=4) == 2048 * (2 * spread + 4 * 2)


def test_a_layer_of_experts_by_hand() -> None:
    """Two of four experts a token: what they read, widen and put out is kept for both, the router's scores once."""
    experts = Experts(num_experts=4, top_k=2, expert_size=24)
    dnn = gpt(num_layers=1, hidden_size=64, num_heads=8, experts=experts, has_biases=False)
    layout, alike = Layouts.one(expert=2, data=2), Kernels()
    routed = 2 * (64 + 24 + 24 + 64)
    numbers = 4 * 64 + 3 * 64 + 64 + 4 + 2 + routed
    found = layer_bytes(dnn, "moe", layout, activation_bytes=2, kernels=alike).kept[0]
    assert found == 2048 * (2 * numbers + 4 * 8)
    uneven = layer_bytes(dnn, "moe", layout, activation_bytes=2, kernels=alike, expert_imbalance=1.5).kept[0]
    assert uneven - found == 2048 * routed * 2 / 2


def test_all_ranks_that_share_experts_may_send_all_tokens_to_one_buffer() -> None:
    experts = Experts(num_experts=4, top_k=2, expert_size=24, num_dense_first=1)
    dnn = gpt(num_layers=4, hidden_size=64, num_heads=8, experts=experts)
    used, none = KERNELS["megatron-core"], replace(KERNELS["megatron-core"], dispatch_bytes=0.0)

    def buffers(**decisions: Any) -> list[float]:
        layout = Layouts.one(num_microbatches=8, **decisions)
        more, less = (stage_memory_bytes(dnn, layout, precision=MIXED, kernels=one) for one in (used, none))
        return [float(one) for one in more["temporary"] - less["temporary"]]

    tokens = dnn.sequence_length * 64 * 2
    assert buffers(data=2, expert=2, microbatch=3) == [3 * 2 * tokens]
    assert buffers(data=4, expert=4, tensor=2, sequence_parallel=True) == [4 * tokens / 2]
    assert buffers(data=2) == [0.0]
    assert buffers(data=2, expert=2, pipeline=4) == [0.0, *[2 * tokens] * 3]  # the first layer is dense


def test_weighted_activations_leave_what_experts_put_out_to_nobody() -> None:
    dnn = gpt(num_layers=1, hidden_size=64, num_heads=8, experts=Experts(num_experts=4, top_k=2, expert_size=24))
    (kind,) = dnn.kind_counts
    late, early = (
        layer_bytes(dnn, kind, Layouts.one(), activation_bytes=2, kernels=Kernels(weighs_activations=is_early))
        for is_early in (False, True)
    )
    put_out = 2 * dnn.sequence_length * 2 * 64  # numbers of two bytes, of two experts a token
    assert late.kept - early.kept == pytest.approx(put_out)


def test_latent_attention_by_hand() -> None:
    """Both narrow layers and their norms, and queries, keys and values of every head."""
    latent = LatentAttention(query_rank=24, key_value_rank=16, rope_size=4, nope_size=8, value_size=8)
    dnn = gpt(num_layers=1, hidden_size=64, num_heads=8, latent=latent, positions="rotary")
    numbers = 4 * 64 + 2 * 24 + (16 + 4) + 16 + 8 * (12 + 12 + 8) + 8 * 8 + 2 * 256
    assert kept(dnn, Kernels()) == 2048 * (2 * numbers + 4 * 8)


def test_the_context_is_spread_and_an_all_to_all_keeps_the_output_twice() -> None:
    dnn = gpt(num_layers=1, hidden_size=512, num_heads=8)
    plain = kept(dnn, Kernels())
    assert kept(dnn, Kernels(), context=4) == plain / 4
    copied = kept(dnn, Kernels(copies_context=True), context=4)
    assert copied == plain / 4 + 2 * 2048 * 512 / 4
    assert kept(dnn, Kernels(copies_context=True)) == plain


def test_products_keep_eight_bits_where_the_kernels_do() -> None:
    """Norms' outputs, and the activation's: the context is read by attention's own backward pass too."""
    dnn = gpt(num_layers=1, hidden_size=64, num_heads=8)
    saved = kept(dnn, Kernels()) - kept(dnn, Kernels(product_input_bytes=1.0))
    assert saved == 2048 * (64 + 64 + 4 * 64)


# -- any transformer, any layout


VALUES: dict[str, tuple[int, ...]] = {
    **{"tensor": (1, 2, 4), "context": (1, 2), "pipeline": (1, 2, 3, 4), "data": (2, 4), "expert": (1, 2)},
    **{"interleave": (1, 2, 3), "microbatch": (1, 2), "num_microbatches": (1, 2, 3, 5), "order": (0, 1)},
    **{"zero": (0, 1, 2, 3), "recompute": (0, 1, 2), "schedule": (0, 1, 2)},
    **{
        "recompute_modules": (0, 1, 5, 40, 126),
        "recompute_layers": (0, 0, 1, 2),
        "shard": (0, 0, 2),
        "offload_layers": (0,),
        "offload_percent": (100, 40),
        "offload_modules": (0, 3, 127),
        "context_method": (0, 1, 2, 3),
    },
}
FLAGS = ("sequence_parallel", "overlap_data", "overlap_tensor", "overlap_expert", "offload_optimizer")


def layouts(size: int) -> st.SearchStrategy[Layouts]:
    """Layouts of any decisions, whether or not heads and layers divide; micro-batches in multiples of the stages."""
    return st.integers(0, 2**32 - 1).map(lambda seed: some_layouts(size, seed))


def some_layouts(size: int, seed: int) -> Layouts:
    random = np.random.default_rng(seed)
    found: dict[str, Any] = {name: random.choice(np.array(values), size) for name, values in VALUES.items()}
    found |= {name: random.choice([False, True], size) for name in FLAGS}
    found["num_microbatches"] *= found["pipeline"]
    has_no_chunks = (found["schedule"] == Schedule.ZB_H1) & (found["interleave"] > 1)  # which no layout has
    found["schedule"] = np.where(has_no_chunks, int(Schedule.ONE_F_ONE_B), found["schedule"])
    found["expert_tensor"] = np.where(random.choice([False, True], size), found["tensor"], 1)
    return Layouts(**found)


@pytest.mark.parametrize("zero", [1, 2])
def test_weights_that_stay_gathered_are_two_bytes_beside_a_shard_of_four(zero: int) -> None:
    """FSDP without resharding after the forward pass; ZeRO 2 also holds the whole gradient of the layer at work."""

    def held(zero: int, data: int = 8, **more: Any) -> dict[str, float]:
        layout = Layouts.one(data=data, zero=zero)
        return at(memory_bytes(GPT_175B, layout, precision=PRECISIONS["fsdp"], kernels=Kernels(**more)), 0)

    whole = held(0)["weights"] / 4
    assert held(zero)["weights"] == pytest.approx(whole * (2 + 4 / 8))
    assert held(zero, data=1)["weights"] == pytest.approx(4 * whole)
    assert held(3)["weights"] == pytest.approx(whole * 4 / 8)
    # A copy of one layer's gradients in fp32 is on its way while the layer before makes its own: of ZeRO 1 and more.
    layer = float(block_parameters(GPT_175B, GPT_175B.layer_kinds[0], Layouts.one()).all[0])
    more = held(zero, reduced_bytes=4.0)["temporary"] - held(zero)["temporary"]
    assert 0 < more <= 4 * max(layer, float(head_parameters(GPT_175B, Layouts.one())[0])) * (1 + 1e-9)
    assert held(0, reduced_bytes=4.0) == held(0)
    assert held(2)["temporary"] - held(1)["temporary"] == pytest.approx(2 * layer)


kernels = st.builds(
    Kernels,
    is_flash=st.booleans(),
    has_dropout=st.booleans(),
    is_loss_fused=st.booleans(),
    num_loss_copies=st.sampled_from([2, 3]),
    has_placeholders=st.booleans(),
    copies_context=st.booleans(),
    shard_buffers_bytes=st.sampled_from([0.0, 9e9]),
    reduced_bytes=st.sampled_from([0.0, 4.0]),
    keeps_second_products=st.booleans(),
    keeps_unread=st.booleans(),
    product_input_bytes=st.none() | st.just(1.0),
)
precisions = st.sampled_from([PRECISIONS[name] for name in sorted(PRECISIONS)])


def at(found: Mapping[str, Floats], index: int) -> dict[str, float]:
    return {name: float(array[index]) for name, array in found.items()}


@settings(max_examples=200)
@given(dnn=transformers(), many=layouts(4), used=kernels, precision=precisions, imbalance=st.sampled_from([1.0, 1.5]))
def test_the_fullest_stage_of_many_layouts_is_that_of_each(
    dnn: Transformer, many: Layouts, used: Kernels, precision: Any, imbalance: float
) -> None:
    options: dict[str, Any] = {"precision": precision, "kernels": used, "expert_imbalance": imbalance}
    found = memory_bytes(dnn, many, **options, reserve_bytes=7.0)
    assert set(found) == {*TERMS, "total"}
    for index in range(len(many)):
        stages = stage_memory_bytes(dnn, many.of(slice(index, index + 1)), **options, reserve_bytes=7.0)
        assert all(len(array) == many.pipeline[index] for array in stages.values())
        terms = at(found, index)
        assert min(terms.values()) >= 0
        assert terms["reserve"] == 7.0
        assert terms["total"] == pytest.approx(sum(terms[name] for name in TERMS))
        assert terms["total"] == pytest.approx(float(stages["total"].max()))
    # Of few moments of many stages the fullest is not looked for first, unless told so.
    with patch.object(memory, "_FEWER_STAGES", 0):
        first = memory_bytes(dnn, many, **options, reserve_bytes=7.0)
    assert all(np.array_equal(first[name], found[name]) for name in (*TERMS, "total"))


@settings(max_examples=200)
@given(dnn=transformers(), many=layouts(1), data=st.data())
def test_what_is_in_flight_agrees_with_the_order_of_the_schedule(
    dnn: Transformer, many: Layouts, data: st.DataObject
) -> None:
    """The referee walks through every device's tasks, and weighs what lies between forward and backward."""
    many = replace(many, overlap_expert=np.array([False]))
    pipeline, interleave = int(many.pipeline[0]), int(many.interleave[0])
    assume(interleave == 1 or many.schedule[0] != Schedule.ZB_H1)
    is_gpipe = bool(many.schedule[0] == Schedule.GPIPE)
    weights = {kind: data.draw(st.integers(0, 5)) for kind in dnn.kind_counts}
    _, stage = every_stage(dnn, many)
    moments = np.array([*weights.values()]) @ stage.in_flight
    found = [float(moments[stage.index == index].max()) for index in range(pipeline)]
    sizes = dealt_layers(dnn.num_layers, pipeline, interleave).ravel()
    kinds = np.array([weights[kind] for kind in dnn.layer_kinds])
    ends = np.cumsum(sizes)
    chunks = [float(kinds[end - size : end].sum()) for size, end in zip(sizes, ends, strict=True)]
    number = int(many.num_microbatches[0])
    if is_gpipe:
        assert found == [number * sum(chunks[index::pipeline]) for index in range(pipeline)]
        return
    schedule = "interleaved" if interleave > 1 else SCHEDULE_NAMES[int(many.schedule[0])]
    expected = peak_weight(chunks, schedule, pipeline, number, interleave)
    # With few micro-batches a device never reaches the moment that its chunks in turn would allow.
    is_exact = interleave == 1 or number >= 3 * pipeline or len(set(chunks)) == 1
    assert found == pytest.approx(list(expected)) if is_exact else bool((np.array(found) >= expected - 1e-9).all())


@pytest.mark.parametrize(
    ("layout", "chunks"), [({}, 1), ({"pipeline": 2, "interleave": 2}, 5), ({"pipeline": 4, "interleave": 1}, 4)]
)
def test_one_more_pass_waits_where_experts_exchange_beside_another(layout: dict[str, int], chunks: int) -> None:
    dnn = Transformer(num_layers=8, hidden_size=8, num_heads=1, vocabulary_size=8, sequence_length=8)
    held = [
        every_stage(dnn, Layouts.one(num_microbatches=16, overlap_expert=flag, **layout))[1] for flag in (False, True)
    ]
    layers = 8 // (layout.get("pipeline", 1) * layout.get("interleave", 1))
    assert [int(stage.in_flight[0, 0]) for stage in held] == [chunks * layers, (chunks + 1) * layers]


@settings(max_examples=100)
@given(dnn=transformers(), one=layouts(1), used=kernels)
def test_what_saves_memory_saves_it_on_every_stage(dnn: Transformer, one: Layouts, used: Kernels) -> None:
    def terms(**changed: Any) -> Mapping[str, Floats]:
        fields = {name: np.array([value]) for name, value in changed.items()}
        return stage_memory_bytes(dnn, replace(one, **fields), precision=MIXED, kernels=used)

    states = [terms(zero=zero) for zero in range(4)]
    for less, more in zip(states[1:], states[:-1], strict=True):
        for name in ("weights", "gradients", "optimizer"):
            assert (less[name] <= more[name] + 1e-6).all()
    none, selective, full = (terms(recompute=int(way))["activations"] for way in Recompute)
    assert (selective <= none + 1e-6).all()
    if dnn.norm_position in ("before", "both"):  # where the stream is read by the layer's own backward pass, and kept
        assert (full <= selective + 1e-6).all()
    whole, spread = (terms(sequence_parallel=flag)["activations"] for flag in (False, True))
    assert (spread <= whole + 1e-6).all()
    assert (terms(microbatch=1)["activations"] <= terms(microbatch=2)["activations"]).all()
    assert (terms(offload_optimizer=True, offload_percent=100)["optimizer"] == 0).all()


@settings(max_examples=40)
@given(dnn=transformers(), tensor=st.sampled_from([1, 2, 4]))
def test_tensor_parallel_devices_hold_no_less_than_their_share(dnn: Transformer, tensor: int) -> None:
    for kind in dict.fromkeys(dnn.layer_kinds):
        found = block_parameters(dnn, kind, Layouts.one(tensor=tensor))
        whole = sum(one.weight_elements for one in block_operators(dnn, kind))
        assert whole == dnn.block_parameters(kind)
        assert whole / tensor - 1e-9 <= float(found.all[0]) <= whole


# -- stages


@pytest.mark.parametrize(
    ("decisions", "layers"),
    [
        ({"pipeline": 4, "num_microbatches": 2}, [4, 4, 4, 2]),  # no more than there are
        ({"pipeline": 4, "num_microbatches": 9}, [8, 6, 4, 2]),
        ({"pipeline": 4, "num_microbatches": 9, "schedule": int(Schedule.GPIPE)}, [18, 18, 18, 18]),
        ({"pipeline": 4, "num_microbatches": 9, "schedule": int(Schedule.ZB_H1)}, [8, 8, 8, 8]),
        ({"pipeline": 4, "num_microbatches": 9, "schedule": int(Schedule.ZB_H2)}, [14, 14, 14, 14]),
        ({"pipeline": 4, "num_microbatches": 9, "interleave": 2, "schedule": int(Schedule.ZB_V)}, [8, 8, 8, 8]),
        ({"pipeline": 4, "num_microbatches": 9, "interleave": 2, "schedule": int(Schedule.V_HALF)}, [6, 6, 6, 6]),
        ({"pipeline": 4, "num_microbatches": 9, "interleave": 2, "schedule": int(Schedule.DUALPIPE)}, [9, 9, 9, 9]),
        ({"pipeline": 2, "interleave": 2, "num_microbatches": 2}, [8, 6]),
        ({"pipeline": 2, "interleave": 2, "num_microbatches": 4}, [10, 6]),
    ],
)
def test_layers_in_flight_by_hand(decisions: dict[str, int], layers: list[int]) -> None:
    _, stage = every_stage(gpt(num_layers=8, hidden_size=8, num_heads=1), Layouts.one(**decisions))
    assert stage.in_flight.tolist() == [layers]


def test_the_last_stage_may_be_the_fullest() -> None:
    """A small network with a large vocabulary: the logits outweigh what is in flight."""
    dnn = gpt(num_layers=4, hidden_size=256, num_heads=4, vocabulary_size=250_000)
    stages = stage_memory_bytes(dnn, Layouts.one(pipeline=4, num_microbatches=8), precision=MIXED)
    assert int(stages["total"].argmax()) == 3


def test_a_stage_behind_the_dense_layers_may_be_the_fullest() -> None:
    dnn = zoo.build("deepseek-v3").transformer
    assert dnn is not None
    layout = Layouts.one(pipeline=16, data=8, num_microbatches=4, recompute=int(Recompute.FULL))
    totals = stage_memory_bytes(dnn, layout, precision=MIXED)["total"]
    assert 0 < int(totals.argmax()) < 15
    assert memory_bytes(dnn, layout, precision=MIXED)["total"][0] == totals.max()


def test_layers_of_stages_may_be_given() -> None:
    dnn = gpt(num_layers=6, hidden_size=64, num_heads=8)
    layout = Layouts.one(pipeline=3, num_microbatches=6)
    even, given_ = (fullest_stages(dnn, layout, layers) for layers in (None, (1, 3, 2)))
    assert (int(even.layers[0, 0, 0]), int(given_.layers[0, 0, 0])) == (2, 1)
    assert int(given_.in_flight[0, 0, 0]) == 3
    for wrong in ((1, 3), (1, 3, 3), (3, 3)):
        with pytest.raises(ValueError, match="pipeline_layers"):
            memory_bytes(dnn, layout, precision=MIXED, pipeline_layers=wrong)
    with pytest.raises(ValueError, match="2 are given"):
        stage_memory_bytes(dnn, layout.of(np.array([0, 0])), precision=MIXED)


def test_equal_layers_are_counted_once_whatever_their_number() -> None:
    """The same bytes, but for the layers: as many more as there are more of them."""
    totals = []
    for layers in (100, 200, 300):
        dnn = gpt(num_layers=layers, hidden_size=64, num_heads=8)
        totals.append(float(memory_bytes(dnn, Layouts.one(pipeline=2), precision=MIXED)["total"][0]))
    assert totals[2] - totals[1] == pytest.approx(totals[1] - totals[0])


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("is_split", [True, False])
def test_the_head_keeps_logits_and_needs_their_gradients_by_hand(is_fused: bool, is_split: bool) -> None:
    dnn, used = gpt(num_layers=2, hidden_size=64, num_heads=4, sequence_length=128), Kernels(is_loss_fused=is_fused)
    layout = Layouts.one(tensor=2, pipeline=2, microbatch=4, sequence_parallel=is_split)
    found = stage_memory_bytes(dnn, layout, precision=MIXED, kernels=used)
    rows, stream = 51200 / 2, 4 * 128 * 64
    logits = 4 * 128 * rows
    layer = layer_bytes(dnn, "dense", layout, activation_bytes=2, kernels=used).kept[0]
    # The last norm reads the stream, and the logits' product what the norm puts out, each in two bytes.
    kept_bytes = 2 * 2 * stream / (2 if is_split else 1) + (2 if is_fused else 4) * logits
    assert found["activations"][1] - layer == pytest.approx(kept_bytes)
    # The matrix's gradient, the stream's, gathered where it is split, and the logits' in two bytes beside their copy.
    working_bytes = 2 * rows * 64 + (2 if is_split else 1) * 2 * stream + (0 if is_fused else 2 + 4) * logits
    assert found["temporary"][1] == pytest.approx(working_bytes)


@pytest.mark.parametrize("overlaps", [True, False])
def test_zero_gathers_gradients_and_weights_of_the_layer_at_work_by_hand(overlaps: bool) -> None:
    dnn = gpt(num_layers=3, hidden_size=64, num_heads=4, vocabulary_size=128)
    plain, gradients, weights = (
        stage_memory_bytes(dnn, Layouts.one(data=4, zero=zero, overlap_data=overlaps), precision=MIXED)
        for zero in (1, 2, 3)
    )
    block = block_parameters(dnn, "dense", Layouts.one()).all[0]
    table = (128 + 2048) * 64  # of words and of positions: larger than a block
    assert table > block
    assert gradients["temporary"] - plain["temporary"] == pytest.approx(2 * block)
    ahead = block if overlaps else 0
    assert weights["temporary"] - gradients["temporary"] == pytest.approx(2 * (table + ahead))
    alone = stage_memory_bytes(dnn, Layouts.one(zero=3), precision=MIXED)
    assert alone["temporary"] == pytest.approx(plain["temporary"])


# -- what programs differ in


TITAN, EAGER = KERNELS["torchtitan"], KERNELS["torchtitan-eager"]


@given(
    keys=st.sampled_from([2, 4, 8]),
    size=st.sampled_from([8, 64]),
    feed_forward=st.integers(16, 4096),
    tokens=st.integers(1, 64),
    samples=st.integers(1, 4),
)
def test_a_llama_layer_keeps_queries_values_attention_and_the_gate_with_torchtitans_selective_recomputation(
    keys: int, size: int, feed_forward: int, tokens: int, samples: int
) -> None:
    heads, h = 8, 8 * size
    dnn = gpt(
        num_layers=1,
        hidden_size=h,
        num_heads=heads,
        num_kv_heads=keys,
        feed_forward_size=feed_forward,
        sequence_length=tokens,
        is_gated=True,
        positions="rotary",
        norm="rms_norm",
        has_biases=False,
    )
    way: dict[str, Any] = {"recompute": int(Recompute.SELECTIVE), "microbatch": samples}
    entry, attended = 2 * h, 2 * h + 4 * heads
    numbers = entry + attended + 2 * (h + keys * size + feed_forward)
    assert kept(dnn, TITAN, **way) == samples * tokens * numbers
    assert kept(dnn, EAGER, **way) == samples * tokens * (numbers + 2 * h)


@settings(max_examples=200)
@given(
    dnn=transformers(), tensor=st.sampled_from([1, 2, 4]), is_split=st.booleans(), kernels=st.sampled_from([*KERNELS])
)
def test_the_more_is_computed_again_the_less_is_kept_and_the_more_is_made_anew(
    dnn: Transformer, tensor: int, is_split: bool, kernels: str
) -> None:
    layout = Layouts.one(tensor=tensor, sequence_parallel=is_split and tensor > 1)
    for kind in set(dnn.layer_kinds):
        none, selective, full = (
            layer_bytes(
                dnn, kind, replace(layout, recompute=np.array([way])), activation_bytes=2, kernels=KERNELS[kernels]
            )
            for way in Recompute
        )
        if dnn.norm_position in ("before", "both"):  # where the stream is read, and kept
            assert full.kept <= selective.kept * (1 + 1e-12)
        assert selective.kept <= none.kept * (1 + 1e-12)
        assert none.working <= selective.working * (1 + 1e-12)
        for one in (selective, full):  # together: all that the layer's backward pass reads
            assert one.kept + one.working == pytest.approx(none.kept + none.working)


@pytest.mark.parametrize("program", ["torchtitan", "torchtitan-eager"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_what_selective_recomputation_keeps_is_counted_alike_a_second_time(program: str, tensor: int) -> None:
    count = 0
    for name in row_names():
        dnn = row(name).transformer
        if dnn.head != "language" or dnn.image is not None:
            continue
        block: dict[str, Any] = {
            "tensor": tensor,
            "context": 1,
            "data": 1,
            "expert": 1,
            "expert_tensor": tensor,
            "microbatch": 2,
        }
        block |= {"sequence_parallel": tensor > 1, "recompute": "selective", "program": program, "zero": 0}
        layout = Layouts.one(
            tensor=tensor,
            expert_tensor=tensor,
            microbatch=2,
            sequence_parallel=tensor > 1,
            recompute=int(Recompute.SELECTIVE),
        )
        for kind in set(dnn.layer_kinds):
            ours = layer_bytes(dnn, kind, layout, activation_bytes=2, kernels=KERNELS[program])
            assert float(ours.kept[0]) == pytest.approx(layer_of(dnn, block, kind).kept), name
            count += 1
    assert count > 20


@given(zero=st.integers(0, 3), data=st.sampled_from([1, 2, 64]))
def test_deepspeed_holds_buffers_where_ranks_share_states_out(zero: int, data: int) -> None:
    layout = Layouts.one(tensor=8, data=data, zero=zero)
    held = [
        float(memory_bytes(GPT_175B, layout, precision=MIXED, kernels=kernels)["total"][0])
        for kernels in (KERNELS["megatron-deepspeed"], OLD)
    ]
    assert held[0] - held[1] == pytest.approx(9e9 if zero and data > 1 else 0.0)
