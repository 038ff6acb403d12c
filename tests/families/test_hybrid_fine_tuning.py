"""LoRA and QLoRA: adapters are counted as published, and never take more than training the whole network."""

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
from planner.models.layouts import Layouts
from planner.models.operators import block_operators, flop_per_sample
from planner.models.parameters import trained_stage_parameters
from planner.plan import Prediction
from planner.question.spec import HybridSpec
from tests.referee.second_physics import check
from tests.referee.second_physics.hybrid import facts_of

pytestmark = pytest.mark.usefixtures("wordless")

GATED = {**TINY, "gated": True, "kv_heads": 4, "norm": "rms_norm", "biases": False, "tied_embeddings": False}
CLUSTER = {"machines": [{"count": 1, "device": "a100-sxm4-80gb", "devices": 4, "inside": "nvlink-3"}]}


def question(dnn: dict[str, Any], tuning: object = None, **more: Any) -> Any:
    """A network on four A100s, with adapters or without."""
    asked = {"global_batch": 8, "dtype": "bf16", **dnn, **({} if tuning is None else {"fine_tuning": tuning})}
    return planner.load({"dnn": asked, "cluster": CLUSTER, "families": ["hybrid"], **more})


@pytest.mark.parametrize(
    ("zoo", "rank", "targets", "number"),
    [
        ("llama2-7b", 8, ["q_proj", "v_proj"], 4_194_304),  # PEFT's default for Llama: 0.0622 % of 6,742,609,920
        ("gpt3-175b", 4, ["query", "value"], 37_748_736 // 2),  # arXiv 2106.09685, section 5.5: half of r 8, 37.7 M
        ("llama2-70b", 16, ["qkv", "output"], 44_564_480),  # MLPerf's llama2_70b_lora: attention alone
    ],
)
def test_adapters_have_as_many_parameters_as_published(zoo: str, rank: int, targets: list[str], number: int) -> None:
    network = question({"zoo": zoo}, {"method": "lora", "rank": rank, "targets": targets}).dnn.transformer
    held = sum(one.adapter_elements for one in block_operators(network, "dense"))
    assert held * network.num_layers == number
    found = trained_stage_parameters(network, Layouts.one(tensor=4, pipeline=2))
    assert 4 * 2 * float(found.dense.sum()) == pytest.approx(number)
    assert not found.ends.any()


def predicted(dnn: dict[str, Any], tuning: object, layout: dict[str, Any]) -> tuple[Any, dict[str, Any], Prediction]:
    """The question, the block of a layout, and what the family says of it."""
    problem = question(dnn, tuning)
    chosen = hybrid.configuration_of(problem, HybridSpec.model_validate(layout).model_dump())
    return problem, chosen.to_document(), hybrid.predict(problem, chosen)


@settings(max_examples=15, deadline=None)
@given(
    transformer=st.sampled_from([TINY, GATED, MOE]),
    method=st.sampled_from(["lora", "qlora"]),
    targets=st.sampled_from([["query", "value"], ["qkv", "output"], ["output"], ["output", "down"], None]),
    layout=st.fixed_dictionaries(
        {
            **{name: st.sampled_from([1, 2]) for name in ("tensor", "context", "pipeline", "data")},
            "zero": st.sampled_from([0, 1, 2, 3]),
            "recompute": st.sampled_from(["none", "full"]),
        }
    ),
)
def test_adapters_never_take_more_than_the_whole_network_and_a_second_count_agrees(
    transformer: dict[str, Any], method: str, targets: list[str] | None, layout: dict[str, Any]
) -> None:
    tuning = {"method": method, "rank": 8, **({} if targets is None else {"targets": targets})}
    try:
        problem, block, found = predicted({"transformer": transformer}, tuning, layout)
        *_, whole = predicted({"transformer": transformer}, None, layout)
    except SpecError:  # more devices than there are, a rule broken, or no such matrix
        assume(False)
        raise
    assert found.memory_bytes["total"] <= whole.memory_bytes["total"]
    assert found.breakdown_s["optimizer"] < whole.breakdown_s["optimizer"]
    if method == "lora":
        assert found.iteration_time_s <= whole.iteration_time_s
    facts = facts_of(problem, block, found)
    assert [f"{one.name}: {one.text}" for one in facts.findings if not one.is_ok] == []


def test_frozen_matrices_have_one_product_backward_and_adapters_two() -> None:
    whole, tuned = (question({"transformer": TINY}, one).dnn.transformer for one in (None, "lora"))
    for one, plain in zip(block_operators(tuned, "dense"), block_operators(whole, "dense"), strict=True):
        is_matrix = one.kind == "matmul"
        assert one.backward_flop == (1 + (not is_matrix)) * plain.forward_flop + 2 * one.adapter_flop
    assert flop_per_sample(tuned).total_flop < 0.75 * flop_per_sample(whole).total_flop


def test_four_bits_make_room_and_take_time() -> None:
    dnn = {"zoo": "llama2-7b", "sequence_length": 1024}
    (*_, short), (*_, whole) = (predicted(dnn, one, {"data": 4}) for one in ("qlora", "lora"))
    assert short.memory_bytes["weights"] < 0.32 * whole.memory_bytes["weights"]
    assert short.iteration_time_s > whole.iteration_time_s


def test_a_plan_of_a_network_with_adapters_is_proven_checked_and_told() -> None:
    problem = question({"transformer": GATED}, "lora", families=["hybrid", "all_reduce"])
    plan = planner.plan(problem)
    report = check(problem, plan)
    assert report.is_ok, report_text(report)
    assert any("all_reduce does not count training by adapters" in one for one in plan.explanation)
    assert any("LoRA of rank 16 beside qkv, output, gate_up and down" in one for one in plan.explanation)
    again = planner.plan(planner.load(dict(problem.resolved)))
    assert again.objective == plan.objective


@pytest.mark.parametrize(
    ("dnn", "tuning", "words"),
    [
        ({"zoo": "vgg16"}, "lora", "vgg16 cannot be trained by adapters: it is not known as a transformer"),
        ({"zoo": "llama2-7b"}, {"method": "lora", "targets": ["qproj"]}, "Did you mean 'q_proj'"),
        (
            {"zoo": "mixtral-8x7b"},
            {"method": "lora", "targets": ["down"]},
            "no layer of this network has a matrix 'down'",
        ),
        ({"zoo": "llama2-7b"}, {"method": "lora", "targets": ["qkv", "q"]}, "qkv holds query, and each has an adapter"),
        ({"zoo": "llama2-7b", "optimizer": "muon"}, "lora", "adapters are stepped by none that needs whole matrices"),
        ({"zoo": "llama2-7b"}, "dora", "it must be 'lora' or 'qlora'"),
    ],
)
def test_what_cannot_be_is_said(dnn: dict[str, Any], tuning: object, words: str) -> None:
    with pytest.raises(SpecError, match=words.replace("(", r"\(")):
        question({"optimizer": "adam", **dnn}, tuning, families=["hybrid", "all_reduce"])


@pytest.mark.parametrize(
    ("length", "batch", "targets", "layout", "measured_s"),
    [
        # NeMo 24.07, docs/source/performance/performance_summary.md: 8 H100, LoRA of Llama 2 70B in fp8.
        (4096, 32, ["qkv"], {"tensor": 2, "pipeline": 4}, 6.251),
        # MLPerf Training 4.0, llama2_70b_lora, Supermicro on 8 H100 (its layout is not stated: NVIDIA's).
        (8192, 8, ["qkv", "output"], {"tensor": 4, "context": 2}, 4.1173),
    ],
)
def test_published_steps_of_lora_are_near(
    length: int, batch: int, targets: list[str], layout: dict[str, Any], measured_s: float
) -> None:
    dnn = {"zoo": "llama2-70b", "sequence_length": length, "global_batch": batch, "dtype": "fp8"}
    machines = {"count": 1, "device": "h100-sxm", "devices": 8}
    asked = {"dnn": {**dnn, "fine_tuning": {"method": "lora", "targets": targets}}, "cluster": {"machines": [machines]}}
    block = {"hybrid": {**layout, "global_batch_size": batch}}
    found = planner.predict(planner.load({**asked, "families": ["hybrid"], "configuration": block}))
    assert found.iteration_time_s == pytest.approx(measured_s, rel=0.15)


def test_inference_and_roll_outs_are_refused_in_one_sentence() -> None:
    for more in ({"inference": {"tokens": 128}}, {"task": "inference"}, {"rollouts": 8}, {"mode": "RLHF"}):
        with pytest.raises(SpecError, match="planner plans neither inference nor the roll-outs of reinforcement"):
            question({"zoo": "llama2-7b"}, **more)
    with pytest.raises(SpecError, match="planner plans neither inference nor"):
        question({"zoo": "llama2-7b", "kv_cache": "8 GiB"})


def test_launch_files_train_the_adapters_or_are_refused() -> None:
    tuning = {"method": "lora", "rank": 8, "targets": ["qkv", "output"]}
    problem = question({"transformer": GATED}, tuning, fix={"data_parallel_size": 4, "zero_stage": 1})
    job = Job(problem=problem, plan=planner.plan(problem))
    recipe = export("megatron-bridge", job)
    table = """ADAPTERS = {
    "target_modules": ["linear_qkv", "linear_proj"],
    "dim": 8,
    "alpha": 32.0,
}
"""
    assert table in recipe.files["recipe.py"]
    compile(recipe.files["recipe.py"], "recipe.py", "exec")
    words = "LoraConfig(r=8, lora_alpha=32, target_modules=['q_proj', 'k_proj', 'v_proj', 'o_proj'])"
    assert any(words in note for note in export("deepspeed", job).notes)
    with pytest.raises(InfeasibleError, match="its adapters are written beside dense networks of Llama 3's"):
        export("torchtitan", job)  # whose parts these are not
    for target in ("megatron", "primus"):
        with pytest.raises(InfeasibleError, match="trains every parameter, and the plan trains LoRA of rank 8"):
            export(target, job)


def test_hints_of_refused_exports_name_targets_that_take_the_same_plan() -> None:
    asked = {"transformer": {**GATED, "positions": "rotary"}, "dtype": "mxfp8"}
    machines = {"machines": [{"count": 1, "device": "gb200", "devices": 4}]}
    problem = question(asked, "lora", cluster=machines, fix={"data_parallel_size": 4, "zero_stage": 1})
    job = Job(problem=problem, plan=planner.plan(problem))
    for target in ("deepspeed", "megatron", "primus"):
        with pytest.raises(InfeasibleError, match=r"xport to megatron-bridge, torchtitan\."):
            export(target, job)
    assert all(export(target, job).files for target in ("megatron-bridge", "torchtitan"))
