"""Frozen parts: nothing of them is trained, summed or kept, and a second count agrees."""

from typing import Any

import pytest
from hybrid_questions import MOE, TINY
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import planner
from planner.checks import report_text
from planner.errors import InfeasibleError, SpecError
from planner.exporters.export import Job, export
from planner.families.hybrid import family as hybrid
from planner.families.hybrid.configuration import HybridConfiguration
from planner.models.layouts import Layouts
from planner.models.operators import flop_per_sample
from planner.models.parameters import trained_elements, trained_ends, trained_stage_parameters
from planner.plan import Prediction
from planner.question.spec import HybridSpec
from tests.referee.second_physics import check
from tests.referee.second_physics.hybrid import facts_of

pytestmark = pytest.mark.usefixtures("wordless")

GATED = {**TINY, "gated": True, "kv_heads": 4, "norm": "rms_norm", "biases": False, "tied_embeddings": False}
CLUSTER = {"machines": [{"count": 1, "device": "a100-sxm4-80gb", "devices": 4, "inside": "nvlink-3"}]}
ONE_DEVICE = {"machines": [{"count": 1, "device": "a100-sxm4-80gb", "devices": 1}]}
LAYOUTS = st.fixed_dictionaries(
    {
        **{name: st.sampled_from([1, 2]) for name in ("tensor", "context", "pipeline", "data")},
        "zero": st.sampled_from([0, 1, 2, 3]),
        "recompute": st.sampled_from(["none", "full"]),
    }
)
FROZEN: list[object] = [
    *(1, 2, ["embedding"], ["layers"], ["embedding", "layers"], ["attention"], ["feed_forward"]),
    *(["experts"], ["router"], {"layers": 1, "parts": ["head"]}, {"layers": 2, "parts": ["experts"]}),
]


def question(dnn: dict[str, Any], frozen: object = None, **more: Any) -> Any:
    """A network on four A100s, with frozen parts or without."""
    asked = {"global_batch": 8, "dtype": "bf16", **dnn, **({} if frozen is None else {"frozen": frozen})}
    return planner.load({"dnn": asked, "cluster": CLUSTER, "families": ["hybrid"], **more})


def predicted(
    dnn: dict[str, Any], frozen: object, layout: dict[str, Any], **more: Any
) -> tuple[Any, dict[str, Any], Prediction]:
    """The question, the block of a layout, and what the family says of it."""
    problem = question(dnn, frozen, **more)
    chosen = hybrid.configuration_of(problem, HybridSpec.model_validate(layout).model_dump())
    return problem, chosen.to_document(), hybrid.predict(problem, chosen)


@pytest.mark.parametrize("transformer", [GATED, MOE])
def test_an_optimiser_of_whole_matrices_keeps_none_of_frozen_layers(transformer: dict[str, Any]) -> None:
    """The largest was looked for among trained layers' arrays and frozen ones' 0: no plan was found of such a network."""
    asked = {"transformer": transformer, "optimizer": "muon"}
    held = [
        planner.plan(question(asked, frozen, fix={"num_devices": 2, "data_parallel_size": 2, "zero_stage": 1}))
        for frozen in (None, 1, transformer["layers"] - 1)
    ]
    whole, most, fewest = (one.prediction.memory_bytes["optimizer"] for one in held)
    assert 0 < fewest < most < whole


def test_the_largest_matrix_that_is_trained_stands_on_one_rank_whatever_is_frozen() -> None:
    asked = {"transformer": GATED, "optimizer": "muon", "global_batch": 64}
    cluster = {"machines": [{"count": 8, "device": "a100-sxm4-80gb", "devices": 8}]}
    pins = {"num_devices": 64, "data_parallel_size": 64, "zero_stage": 1}
    whole, part = (
        planner.plan(question(asked, frozen, fix=pins, cluster=cluster)).prediction.memory_bytes["optimizer"]
        for frozen in (None, 1)
    )
    assert part == whole > 0


@settings(max_examples=40, deadline=None)
@given(transformer=st.sampled_from([TINY, GATED, MOE]), frozen=st.sampled_from(FROZEN), layout=LAYOUTS)
def test_frozen_parts_never_take_more_than_the_whole_network_and_a_second_count_agrees(
    transformer: dict[str, Any], frozen: object, layout: dict[str, Any]
) -> None:
    try:
        problem, block, found = predicted({"transformer": transformer}, frozen, layout)
        *_, whole = predicted({"transformer": transformer}, None, layout)
    except SpecError:  # more devices than there are, a rule broken, or no such part
        assume(False)
        raise
    assert found.memory_bytes["total"] <= whole.memory_bytes["total"]
    assert found.iteration_time_s <= whole.iteration_time_s
    facts = facts_of(problem, block, found)
    assert [f"{one.name}: {one.text}" for one in facts.findings if not one.is_ok] == []


def needs_experts(frozen: object) -> bool:
    """Whether frozen parts are of experts, which a dense network has not."""
    parts = frozen.get("parts", ()) if isinstance(frozen, dict) else frozen if isinstance(frozen, list) else ()
    return not {"experts", "router"}.isdisjoint(parts)


@pytest.mark.parametrize(
    ("transformer", "frozen"),
    [(one, frozen) for one in (TINY, GATED, MOE) for frozen in FROZEN if one is MOE or not needs_experts(frozen)],
)
def test_trained_parameters_are_the_same_in_closed_form_and_by_operators(
    transformer: dict[str, Any], frozen: object
) -> None:
    network = question({"transformer": transformer}, frozen).dnn.transformer
    layers = sum(count * sum(trained_elements(network, kind)) for kind, count in network.kind_counts.items())
    assert layers + sum(trained_ends(network)) == network.num_trained_parameters
    held = trained_stage_parameters(network, Layouts.one())
    padded = float(held.dense.sum() + held.experts.sum() + held.first[0])  # one stage holds both ends; 32,000 words
    assert padded == network.num_trained_parameters


def test_the_memory_of_a_half_frozen_network_is_what_is_counted_by_hand() -> None:
    layout = {"data": 1, "recompute": "none"}
    *_, half = predicted({"transformer": GATED}, 2, layout, cluster=ONE_DEVICE)
    *_, whole = predicted({"transformer": GATED}, None, layout, cluster=ONE_DEVICE)
    hidden, words, inner, keys = 1024, 32_000, 4096, 4 * 128
    block = hidden * (hidden + 2 * keys) + hidden * hidden + 3 * hidden * inner + 2 * hidden
    embedding, head, tokens = (words + 1024) * hidden, words * hidden + hidden, 1024  # and learned positions
    trained, frozen = 2 * block + head, 2 * block + embedding
    assert half.memory_bytes["weights"] == 2 * (trained + frozen)  # bf16
    assert half.memory_bytes["gradients"] == 4 * trained  # summed in fp32
    assert half.memory_bytes["optimizer"] == 12 * trained  # a copy in fp32, and both moments of Adam
    # Of each trained layer: inputs of two norms and what they give, queries, keys, values, what attention gives, both
    # halves of the wide activation and its product, two bytes each; and four bytes a token and head of flash attention.
    numbers = 4 * hidden + (hidden + 2 * keys) + hidden + 3 * inner
    layer_bytes = tokens * (2 * numbers + 4 * 8)
    assert whole.memory_bytes["activations"] - half.memory_bytes["activations"] == pytest.approx(2 * layer_bytes)


def test_frozen_first_layers_compute_forward_alone_and_others_two_thirds() -> None:
    whole, first, all_layers = (question({"transformer": GATED}, one).dnn.transformer for one in (None, 4, ["layers"]))
    plain, ahead, passed = map(flop_per_sample, (whole, first, all_layers))
    logits = 2 * 1024 * 32_000 * 1024
    assert plain.backward_flop == 2 * plain.forward_flop
    assert ahead.backward_flop == 2 * logits  # nothing but the head is trained
    scores = 4 * 4 * 1024 * 1024 * 1024 / 2  # of four layers, causal: both factors of a product have gradients
    layers = plain.forward_flop - logits - scores
    assert passed.backward_flop == layers + 2 * scores + 2 * logits


def test_stages_of_frozen_first_layers_hold_more_of_them() -> None:
    transformer = {**GATED, "layers": 12}
    plan = planner.plan(question({"transformer": transformer}, 6, fix={"pipeline_parallel_size": 4}))
    assert isinstance(plan.configuration, HybridConfiguration)
    layers = [one.layers for one in plan.configuration.stages]
    assert max(layers[:2]) > max(layers[2:])  # those of the first six, whichever of both stages has them
    even = {"pipeline": 4, "microbatch": plan.configuration.microbatch}
    *_, found = predicted({"transformer": transformer}, 6, even)
    assert plan.objective < 0.9 * found.iteration_time_s


def test_replicas_sum_no_gradients_of_frozen_layers() -> None:
    layout = {"data": 4, "zero": 1, "overlap_data": False}
    times = [predicted({"transformer": GATED}, one, layout)[2].breakdown_s["data"] for one in (None, 2, 4)]
    network = question({"transformer": GATED}, 4).dnn.transformer
    assert times[0] > times[1] > times[2]
    assert times[2] / times[0] == pytest.approx(network.num_trained_parameters / network.num_parameters, rel=0.1)


def test_a_plan_of_a_network_with_frozen_parts_is_proven_checked_and_told() -> None:
    problem = question({"transformer": GATED}, {"layers": 2, "parts": ["head"]}, families=["hybrid", "all_reduce"])
    plan = planner.plan(problem)
    report = check(problem, plan)
    assert report.is_ok, report_text(report)
    words = "frozen are the first 2 layers, the embedding before them and the head"
    assert any(words in one for one in plan.explanation)
    assert any("all_reduce does not count training with frozen parts" in one for one in plan.explanation)
    again = planner.plan(planner.load(dict(problem.resolved)))
    assert again.objective == plan.objective


@pytest.mark.parametrize(
    ("dnn", "frozen", "words"),
    [
        ({"zoo": "vgg16"}, 2, "vgg16 cannot have frozen parts: it is not known as a transformer"),
        ({"zoo": "llama2-7b"}, 33, "the first 33 layers are frozen, and the network has 32. Write 1 to 32."),
        ({"zoo": "llama2-7b"}, 0, "Write a whole number"),
        ({"zoo": "llama2-7b"}, {}, "it freezes nothing"),
        ({"zoo": "llama2-7b"}, ["embeding"], "Did you mean 'embedding'"),
        ({"zoo": "llama2-7b"}, ["experts"], "this network has no experts that could be frozen. Write some of emb"),
        ({"zoo": "llama2-7b"}, ["embedding", "layers", "head"], "every parameter is frozen"),
        ({"zoo": "llama2-7b"}, {"layers": 32, "parts": ["head"]}, "every parameter is frozen"),
        ({"zoo": "gpt3-13b"}, ["head"], "the head multiplies by the matrix of the embedding, which is trained"),
        ({"zoo": "llama2-7b", "fine_tuning": "lora"}, 2, "adapters freeze all of the network already"),
        ({"zoo": "deepseek-v3.2"}, 2, "frozen parts beside an indexer of sparse attention are not counted"),
    ],
)
def test_what_cannot_be_is_said(dnn: dict[str, Any], frozen: object, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        question({"optimizer": "adam", **dnn}, frozen)


def test_launch_files_say_what_to_freeze_or_are_refused() -> None:
    frozen = {"layers": 2, "parts": ["attention"]}
    problem = question({"transformer": GATED}, frozen, fix={"data_parallel_size": 4, "zero_stage": 1})
    job = Job(problem=problem, plan=planner.plan(problem))
    words = (
        "requires_grad_(False) of model.model.embed_tokens, model.model.layers[:2] and layer.self_attn of each layer"
    )
    assert any(words in note for note in export("deepspeed", job).notes)
    for target in ("megatron", "megatron-bridge", "torchtitan", "primus"):
        with pytest.raises(InfeasibleError, match="trains every parameter, and in the plan the first 2 layers"):
            export(target, job)


def test_more_depths_of_prediction_than_any_network_has_are_refused() -> None:
    with pytest.raises(SpecError, match=r"dnn.mtp_layers: mtp_layers is 1000. Write a whole number from 0 to 16"):
        question({"zoo": "deepseek-v3", "mtp_layers": 1000})
