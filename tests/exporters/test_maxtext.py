"""MaxText's file has keys that it knows, and what its own code makes of them is the planned network."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hybrid_questions import layout
from hypothesis import given
from hypothesis import strategies as st
from layout_jobs import even_job, job_of
from modern_blocks import DEEPSEEK, LLAMA, QWEN

import planner
from planner.errors import InfeasibleError, SpecError
from planner.exporters import degrees_of, export, network_of
from planner.exporters.export import Job
from planner.exporters.kubernetes import documents_of
from planner.exporters.maxtext import EXPORTERS, KNOWN
from planner.families.hybrid import space
from planner.families.hybrid.configuration import HybridConfiguration, broken_rule, maxtext_rules
from planner.families.hybrid.cost import costs_of
from planner.planning import configuration_of
from planner.solvers.grid import Grid, Level
from planner.zoo.transformers import block_of, row

pytestmark = pytest.mark.usefixtures("wordless")

CONFIG = Path("maxtext.yml")


def keys_of(job: Job) -> dict[str, Any]:
    return dict(documents_of(export("maxtext", job).files["maxtext.yml"])[0])


def named(name: str, **decisions: Any) -> Job:
    usual: dict[str, Any] = {"data": 64, "expert": 16, "zero": 3, "recompute": "full"}
    return even_job(block_of(row(name).transformer), **{**usual, **decisions})


def on_tpus(transformer: Mapping[str, Any], device: str = "tpu-v7", **more: Any) -> Job:
    machines = [{"count": 1, "device": device, "devices": 4}]
    dnn = {"transformer": transformer, "global_batch": 16, "dtype": "fp8", **more}
    problem = planner.load({"dnn": dnn, "cluster": {"machines": machines}})
    return job_of(problem, "hybrid", HybridConfiguration(global_batch_size=16, data=4, zero=3))


def with_optimizer(job: Job, name: str) -> Job:
    return replace(job, problem=replace(job.problem, training=replace(job.problem.training, optimizer=name)))


@pytest.mark.parametrize("block", [LLAMA, QWEN, DEEPSEEK], ids=["llama", "qwen", "deepseek"])
def test_every_key_is_one_of_its_own_and_others_are_refused(block: dict[str, Any]) -> None:
    text = export("maxtext", even_job(block, data=4, zero=1, context=2)).files["maxtext.yml"]
    assert documents_of(text)[0].keys() <= KNOWN
    with pytest.raises(SpecError, match=r"base_emb_dimension: MaxText's base\.yml has no such key"):
        network_of(CONFIG, text.replace("base_emb_dim:", "base_emb_dimension:"))


def test_deepseek_is_routed_as_it_is_where_its_model_is_named_and_sizes_are_repeated() -> None:
    found = export("maxtext", named("deepseek-v3"))
    keys = documents_of(found.files["maxtext.yml"])[0]
    assert (keys["model_name"], keys["override_model_config"]) == ("deepseek3-671b", True)
    # It adds sigmoids up to one before it scales them by 2.5; adding them up again would undo that.
    assert (keys["norm_topk_prob"], keys["routed_scaling_factor"]) == (False, 2.5)
    words = re.findall(r"(\w+)=(\S+)", found.files["launch.sh"])
    said = {key: value for key, value in words if key in keys}
    assert said["n_routing_groups"] == "8"
    assert said["routed_bias"] == "true"
    sizes = ("base_emb_dim", "num_experts", "q_lora_rank", "normalization_layer_epsilon", "vocab_size")
    assert {key: said[key] for key in sizes} == {key: str(keys[key]) for key in sizes}


def test_a_softmax_is_left_to_the_block_that_has_it_and_experts_alone_have_one_width() -> None:
    keys = keys_of(named("qwen3-30b-a3b"))
    assert keys["routed_score_func"] == ""  # else the chosen scores would pass two
    assert keys["norm_topk_prob"] is True
    assert keys["base_mlp_dim"] == keys["base_moe_mlp_dim"] == 768
    assert "model_name" not in keys


def test_gpt_oss_is_read_back() -> None:
    network = row("gpt-oss-20b").transformer
    job = named("gpt-oss-20b", expert=8)
    text = export("maxtext", job).files["maxtext.yml"]
    keys = documents_of(text)[0]
    assert (keys["decoder_block"], keys["attention_sink"], keys["sliding_window_size"]) == ("gpt_oss", True, 128)
    assert (keys["mlp_activations"], keys["mlp_activations_limit"]) == (["sigmoid", "linear"], 7.0)
    assert (keys["rope_attention_scaling"], keys["rope_truncate"]) == (True, False)
    found = network_of(CONFIG, text)
    assert found is not None
    assert (found.num_parameters, found.layer_kinds) == (network.num_parameters, network.layer_kinds)
    assert (found.rotary, found.numerics) == (network.rotary, network.numerics)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (lambda: named("deepseek-v3", pipeline=2, expert=8, zero=1), "layers with experts alone, without the first 3"),
        (lambda: with_optimizer(even_job(QWEN, data=2), "muon"), "its Muon has no matrices of the block qwen3_moe"),
        (
            lambda: even_job({**QWEN, "experts": {**QWEN["experts"], "routing": {"normalised": False}}}, data=2),
            "softmax scores, not made to add up to one",
        ),
        (
            lambda: even_job({**DEEPSEEK, "experts": {**DEEPSEEK["experts"], "routing": {"score": "softmax"}}}, data=2),
            "softmax scores, made to add up to one",
        ),
    ],
)
def test_what_its_code_would_train_otherwise_is_refused(job: Any, why: str) -> None:
    with pytest.raises(InfeasibleError, match=why):
        export("maxtext", job())


def test_products_in_eight_bits_are_those_of_qwix_on_tpus_and_are_read_back() -> None:
    found = export("maxtext", on_tpus({**DEEPSEEK, "mtp_layers": 1}))
    text = found.files["maxtext.yml"]
    keys = documents_of(text)[0]
    assert (keys["quantization"], keys["use_qwix_quantization"], keys["quantize_mtp"]) == ("fp8_full", True, True)
    assert keys["quantize_router_proj"] is False  # which the plan leaves in bf16
    assert "the plan counts current" in str(found.notes)
    assert EXPORTERS["maxtext"].training(CONFIG, text).dnn["dtype"] == "fp8"
    with pytest.raises(SpecError, match=r"quantization: 'int8' is not read\. Write fp8_full"):
        EXPORTERS["maxtext"].training(CONFIG, text.replace("quantization: fp8_full", "quantization: int8"))


@pytest.mark.parametrize(
    ("device", "more", "why"), [("h100-sxm", {}, "but on TPUs"), ("tpu-v7", {"bf16_layers": 1}, "all layers")]
)
def test_products_in_eight_bits_that_it_has_not_are_refused(device: str, more: dict[str, Any], why: str) -> None:
    with pytest.raises(InfeasibleError, match=why):
        export("maxtext", on_tpus(LLAMA, device, **more))


def test_context_ranks_pass_keys_and_values_as_planned_or_as_noted() -> None:
    for method in ("ring", "all_gather"):
        job = even_job(LLAMA, context=2, data=2, context_method=method)
        text = export("maxtext", job).files["maxtext.yml"]
        assert f"context_parallel_strategy: {method}" in text
        found = degrees_of(CONFIG, text)
        assert found is not None
        assert found[1]["context_parallel_method"] == method
    noted = export("maxtext", even_job(LLAMA, context=2, data=2, context_method="ulysses"))
    assert any("gather keys and values" in note for note in noted.notes)


@given(data=st.integers(1, 48), microbatch=st.integers(1, 7), tensor=st.sampled_from([1, 4]))
def test_its_own_count_of_the_batch_is_the_planned_one(data: int, microbatch: int, tensor: int) -> None:
    try:
        keys = keys_of(even_job(LLAMA, data=data, microbatch=microbatch, tensor=tensor, zero=3 * (data > 1)))
    except InfeasibleError as error:
        assert "its mesh lays" in str(error)
        return
    assert int(data * tensor * keys["per_device_batch_size"]) == data * microbatch


SMALL = {"layers": 4, "hidden": 256, "heads": 4, "feed_forward": 512, "gated": True, "positions": "rotary"} | {
    "norm": "rms_norm",
    "biases": False,
    "vocabulary": 1024,
    "sequence_length": 64,
    "tied_embeddings": False,
}
EXPERTS = {"experts": {"count": 4, "top_k": 2, "size": 512}}


@pytest.mark.parametrize("more", [{}, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize(("slices", "chips"), [(1, 4), (2, 2), (2, 3)])
def test_layouts_searched_on_tpus_are_those_that_it_runs_unchanged(
    more: dict[str, Any], slices: int, chips: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = [{"count": slices, "device": "tpu-v5p", "devices": chips, "network": "100 Gbit/s", "latency": "10 us"}]
    dnn = {"transformer": {**SMALL, **more}, "global_batch": 12, "dtype": "bf16"}
    asked = {"dnn": dnn, "cluster": {"machines": machines}, "families": ["hybrid"], "objective": "iteration_time"}
    problem = planner.load(asked)
    (cost,) = costs_of(problem)
    rules = [*maxtext_rules(cost.transformer, 12, chips)]
    monkeypatch.setattr(space, "maxtext_rules", lambda *_: ())
    every = space.Space.of(cost.even)
    grid = Grid(levels=(Level(axes=(*every.axes.values(),)),), rules=every.rules)
    columns, kinds = grid.expand({}, 0), set()
    number = len(columns["data"])
    for at in range(0, number, max(1, number // 48)):
        codes = {name: int(column[at]) for name, column in columns.items()}
        chosen = HybridConfiguration.of(codes, batch=12)
        try:
            notes = export("maxtext", job_of(problem, "hybrid", chosen)).notes
        except InfeasibleError:
            runs = False
        else:
            runs = not any("an iteration then takes" in note for note in notes)
        assert runs == (broken_rule(rules, codes) is None), chosen
        kinds.add(runs)
    assert kinds == {True, False}


def test_stages_on_tpus_are_found_and_stay_alike_where_other_cuts_would_be_quicker() -> None:
    machines = [{"count": 1, "device": "tpu-v5p", "devices": 6, "network": "100 Gbit/s", "latency": "10 us"}]
    transformer = {**SMALL, "layers": 24, "vocabulary": 50000, "sequence_length": 256}
    dnn = {"transformer": transformer, "global_batch": 48, "dtype": "bf16"}
    asked = {"dnn": dnn, "cluster": {"machines": machines}, "families": ["hybrid"], "objective": "iteration_time"}
    chosen = layout(planner.load({**asked, "fix": {"pipeline_parallel_size": 6}}))
    assert (chosen.pipeline, chosen.schedule, chosen.stages) == (6, "gpipe", ())


def _on_v5e(**more: Any) -> dict[str, Any]:
    """Seven layers that no tensor or context rank shares, on four TPUs."""
    link = {"bandwidth": "45 GB/s", "latency": "1 us"}
    machine = {"count": 1, "devices": 4, "device": "tpu-v5e", "inside": link}
    sizes = {"layers": 7, "hidden": 6144, "heads": 1, "vocabulary": 32_000, "sequence_length": 2047}
    return {
        "dnn": {"transformer": sizes, "global_batch": 4},
        "cluster": {"machines": [machine]},
        "families": ["hybrid"],
        **more,
    }


def test_a_question_that_unequal_stages_alone_answer_is_refused_with_how_to_have_them() -> None:
    with pytest.raises(InfeasibleError, match=r"Pin fix\.num_stages: 2 \(MaxText runs equal stages of layers") as none:
        planner.plan(_on_v5e())
    assert "nothing launches these" in str(none.value)
    pinned = planner.load(_on_v5e(fix={"num_stages": 2}))
    found = planner.plan(pinned)
    assert found.configuration.pipeline == 2  # type: ignore[attr-defined]
    with pytest.raises(InfeasibleError):
        export("maxtext", Job(problem=pinned, plan=found))
    # Where it is no matter of memory, too; a batch of one leaves no replicas.
    exactly = _on_v5e(constraints={"devices": {"at_least": 4}}, objective="iteration_time")
    exactly["dnn"] = {**exactly["dnn"], "global_batch": 1}
    with pytest.raises(InfeasibleError, match=r"on TPUs MaxText runs equal stages .* \(fix\.num_stages allows others"):
        planner.plan(exactly)


def test_experts_are_exchanged_beside_no_other_micro_batch_on_tpus() -> None:
    link = {"bandwidth": "45 GB/s", "latency": "1 us"}
    machine = {"count": 2, "devices": 2, "inside": link, "network": "100 Gbit/s", "latency": "5 us"}
    question = {"dnn": {"transformer": QWEN, "global_batch": 16}, "families": ["hybrid"]}

    def asked(device: str, **more: Any) -> dict[str, Any]:
        return {**question, "cluster": {"machines": [{**machine, "device": device}]}, **more}

    block: dict[str, Any] = {"data": 4, "expert": 4}
    for device, is_beside in (("h100-sxm", True), ("tpu-v5p", False)):
        _, chosen = configuration_of(planner.load(asked(device, configuration={"hybrid": block})))
        assert chosen.overlap_expert is is_beside  # type: ignore[attr-defined]
    with pytest.raises(SpecError, match="MaxText, which trains on TPUs, runs the experts' exchange beside no other"):
        planner.predict(planner.load(asked("tpu-v5p", configuration={"hybrid": {**block, "overlap_expert": True}})))
    pins = {"expert_parallel_size": 4}
    found = planner.plan(asked("tpu-v5p", fix=pins))
    assert not found.configuration.overlap_expert  # type: ignore[attr-defined]
    assert any("layouts that MaxText runs" in line for line in found.domain)
    with pytest.raises(InfeasibleError, match="beside no other micro-batch"):
        planner.plan(asked("tpu-v5p", fix={**pins, "overlap_expert": True}))
    assert not any("MaxText" in line for line in planner.plan(asked("h100-sxm", fix=pins)).domain)
