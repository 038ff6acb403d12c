"""The transformers of the zoo, their graphs, and the way from a spec to them and to a plan."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from transformers_drawn import transformers

import planner
from planner import zoo
from planner.cli.run import run
from planner.cluster import Device
from planner.dnn import Dnn, Layer
from planner.errors import InfeasibleError, SpecError
from planner.models.compute import profile_from_flop
from planner.models.operators import flop_per_sample
from planner.question.blocks import TransformerSpec
from planner.transformer import Transformer
from planner.zoo.transformers import _row, aliases, block_of, dnn_of, row, row_names, transformer_of

SIZES_OF_MEGATRON = ("1.7b", "3.6b", "7.5b", "18b", "39b", "76b", "145b", "310b", "530b", "1t", "22b")
WANTED = {
    *("gpt3-13b", "gpt3-175b", "mt-nlg-530b", "llama2-7b", "llama2-13b", "llama2-70b", "llama3-8b", "llama3-70b"),
    *("llama3.1-8b", "llama3.1-70b", "llama3.1-405b", "mixtral-8x7b", "mixtral-8x22b", "deepseek-v2", "deepseek-v3"),
    *("bert-base", "bert-large", "vit-b-16", "vit-l-16", "vit-h-14"),
    *(f"megatron-{size}" for size in SIZES_OF_MEGATRON),
}
CLUSTER = {"machines": [{"count": 2, "device": "v100-sxm2-16g", "devices": 2, "network": "25 Gbit/s"}]}
SMALL = {"layers": 3, "hidden": 64, "heads": 8, "vocabulary": 100, "sequence_length": 32}
GPU = Device(name="gpu", peak_flop_per_s={"fp32": 1e13}, memory_bandwidth_bytes_per_s=1e12, memory_bytes=2**34)


def question(dnn: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"dnn": dnn, "cluster": CLUSTER, **more}


def faults(dnn: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(SpecError) as error:
        planner.load(question(dnn))
    return [(fault.field, f"{fault.problem} {fault.mend}") for fault in error.value.faults]


# -- the table -------------------------------------------------------------------------------------------------------


def test_every_network_that_was_asked_for_is_there() -> None:
    assert set(zoo.names()) >= WANTED


@pytest.mark.parametrize("name", row_names())
def test_parameters_are_the_published_ones(name: str) -> None:
    found, published = row(name).transformer.num_parameters, row(name).published
    if rounded := re.fullmatch(r"(\d+)(?:\.(\d+))?B", published):
        digits = len(rounded[2] or "")
        assert f"{found / 1e9:.{digits}f}B" == published
    else:
        assert f"{found}" == published
    assert row(name).source


@pytest.mark.parametrize(
    ("name", "billions"),
    [("mixtral-8x7b", 12.9), ("mixtral-8x22b", 39.2), ("deepseek-v2", 21.4), ("deepseek-v3", 37.6)],
)
def test_active_parameters_are_those_of_the_papers(name: str, billions: float) -> None:
    # Papers: 12.9B, 39B, 21B and 37B; those of DeepSeek leave out parts of the embedding.
    assert row(name).transformer.num_active_parameters / 1e9 == pytest.approx(billions, abs=0.05)


@pytest.mark.parametrize("name", row_names())
def test_a_row_can_be_copied_into_a_spec(name: str) -> None:
    block = _row(name)["transformer"]
    assert TransformerSpec.model_validate(block).build() == row(name).transformer


def test_other_names_are_those_of_the_rows() -> None:
    assert aliases() == {alias: name for name in row_names() for alias in _row(name).get("aliases", ())}


@pytest.mark.parametrize(
    ("name", "proper"),
    [
        ("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"),
        ("qwen3_235b_a22b", "qwen3-235b-a22b"),
        ("meta-llama/Llama-3.1-405B", "llama3.1-405b"),
        ("llama-4-scout", "llama4-scout"),
        ("Kimi K2", "kimi-k2"),
        ("glm4.5-air", "glm-4.5-air"),
        ("mistral-nemo", "mistral-nemo-12b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("google/gemma-3-27b-it", "gemma3-27b"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16", "nemotron-3-nano-30b-a3b"),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2"),
        ("deepseek-r1", "deepseek-v3"),
    ],
)
def test_names_are_found_as_people_and_publishers_write_them(name: str, proper: str) -> None:
    assert zoo.find_name(name) == proper


def test_a_name_that_is_near_one_is_answered_by_it() -> None:
    with pytest.raises(SpecError, match=r"Did you mean 'qwen3-235b-a22b'"):
        zoo.find_name("qwen3-235b-a23b")
    with pytest.raises(SpecError, match=r"'Qwen3-236B' is not a known .* Did you mean '.*qwen3-235b-a22b'"):
        zoo.find_name("Qwen/Qwen3-236B-Instruct")


# -- multi-token prediction --------------------------------------------------------------------------------------------


def test_depths_of_multi_token_prediction_are_added_where_they_are_asked_for() -> None:
    plain = planner.load(question({"zoo": "deepseek-v3", "dtype": "fp16"})).dnn.transformer
    found = planner.load(question({"zoo": "deepseek-v3", "dtype": "fp16", "mtp_layers": 1})).dnn.transformer
    assert plain is not None
    assert found is not None
    assert (found.num_mtp_layers, found.num_main_layers) == (1, plain.num_layers)
    assert (
        11e9 < found.num_parameters - plain.num_parameters < 14.1e9
    )  # 14B with an embedding and logits of their own, says its README
    block = {**SMALL, "mtp_layers": 2}
    given = planner.load(question({"transformer": block, "dtype": "fp16", "mtp_layers": 1})).dnn.transformer
    assert given is not None
    assert (given.num_layers, given.num_mtp_layers) == (4, 1)


@pytest.mark.parametrize(
    ("dnn", "words"),
    [
        ({"zoo": "resnet50", "mtp_layers": 1}, "resnet50 predicts no tokens"),
        ({"zoo": "bert-base", "mtp_layers": 1}, "multi-token prediction"),
        ({"zoo": "llama3-8b", "mtp_layers": 0}, "too small"),
        ({"onnx": "a.onnx", "mtp_layers": 1}, "mtp_layers belong to a transformer"),
    ],
)
def test_depths_that_cannot_be_are_refused(dnn: dict[str, Any], words: str) -> None:
    assert words in str(faults(dnn))


# -- the graph -------------------------------------------------------------------------------------------------------


def check_graph(dnn: Dnn) -> None:
    transformer = dnn.transformer
    assert transformer is not None
    assert [layer.name for layer in dnn.layers] == list(dnn.graph), "the order of definition is not topological"
    assert [layer.name for layer in dnn.layers if not dnn.inputs_of(layer.name)] == ["input"]
    assert dnn.num_trainable == transformer.num_parameters
    assert 2 * dnn.num_multiply_adds == flop_per_sample(transformer).forward_flop
    names = [tensor.name for layer in dnn.layers for tensor in layer.tensors]
    assert len(set(names)) == len(names)
    assert sum(repeat.count for repeat in dnn.repeats) == transformer.num_layers


@settings(max_examples=50)
@given(transformers())
def test_the_graph_of_any_transformer_has_its_parameters_and_flop(transformer: Transformer) -> None:
    check_graph(dnn_of(transformer, "any"))


@pytest.mark.parametrize("name", ["gpt3-175b", "deepseek-v3", "bert-large-pretraining", "vit-h-14"])
def test_the_graph_of_a_published_transformer_has_one_input_and_one_end(name: str) -> None:
    dnn = zoo.build(name)
    check_graph(dnn)
    assert [layer for layer, degree in dnn.graph.out_degree() if degree == 0] == [dnn.layers[-1].name]


def test_copies_of_a_block_differ_in_nothing_but_their_names() -> None:
    dnn = zoo.build("deepseek-v3")
    assert [(repeat.kind, repeat.count) for repeat in dnn.repeats] == [("dense", 3), ("moe", 58)]
    for repeat in dnn.repeats:
        copies = [
            dnn.layers[repeat.first + copy * repeat.num_layers :][: repeat.num_layers] for copy in range(repeat.count)
        ]
        assert len({tuple(map(facts, copy)) for copy in copies}) == 1
        assert copies[-1][-1].name.startswith("block2" if repeat.kind == "dense" else "block60")


def facts(layer: Layer) -> tuple[object, ...]:
    """What a layer is, less its name."""
    sizes = tuple(tensor.num_elements for tensor in layer.tensors)
    return layer.name.partition(".")[2], layer.kind, layer.output_shape, layer.num_multiply_adds, sizes


def test_layers_are_called_by_their_block_and_residual_edges_are_there() -> None:
    dnn = zoo.build("gpt3-175b")
    assert dnn.inputs_of("block12.attention.qkv") == ("block12.attention.norm",)
    assert dnn.inputs_of("block12.attention.add") == ("block12.attention.output", "block11.feed_forward.add")
    assert zoo.build("vgg16").transformer is None


# -- seconds ---------------------------------------------------------------------------------------------------------


def test_the_products_of_attention_are_in_the_seconds_of_their_layers() -> None:
    dnn = zoo.build("bert-large")
    assert dnn.transformer is not None
    profile = profile_from_flop(dnn, GPU, dtype="fp32", utilisation=0.5)
    seconds = dict(zip((layer.name for layer in dnn.layers), profile.forward_s.tolist(), strict=True))
    assert seconds["block3.attention.scores"] == pytest.approx(2 * 512**2 * 1024 / 5e12)
    assert profile.forward_s.sum() == pytest.approx(flop_per_sample(dnn.transformer).forward_flop / 5e12)
    assert np.all(profile.backward_s == 2 * profile.forward_s)


@pytest.mark.parametrize("family", ["all_reduce", "parameter_server", "pipeline"])
def test_the_families_plan_a_transformer(family: str) -> None:
    problem = planner.load(question({"transformer": SMALL, "global_batch": 8}, families=[family]))
    plan = planner.plan(problem)
    assert plan.family == family
    assert plan.bound <= plan.objective
    transformer = problem.dnn.transformer
    assert transformer is not None
    peak = (
        4 * 0.5 * problem.cluster.machine_groups[0].device.peak_flop_per_s[problem.training.dtype]
    )  # of all devices, as assumed
    assert plan.objective >= 8 * flop_per_sample(transformer).total_flop / peak * (1 - 1e-9)


def test_model_replicas_refuses_a_transformer_and_names_the_layer() -> None:
    cluster = {"machines": [{"count": 4, "device": "v100-sxm2-16g", "devices": 1, "network": "25 Gbit/s"}]}
    asked = {"dnn": {"transformer": SMALL}, "cluster": cluster, "families": ["model_replicas"]}
    with pytest.raises(InfeasibleError, match=r"layer 'embedding\.tokens' is a 'embedding'"):
        planner.plan(planner.load(asked))


# -- specs -----------------------------------------------------------------------------------------------------------


def test_a_spec_describes_a_transformer_by_its_sizes() -> None:
    experts = {"count": 8, "top_k": 2, "size": 32, "shared": 1, "dense_first": 1}
    block = {**SMALL, "kv_heads": 2, "gated": True, "tied_embeddings": False, "biases": False, "experts": experts}
    dnn = planner.load(question({"transformer": block, "name": "mine", "dtype": "fp16"})).dnn
    assert dnn.name == "mine"
    assert dnn.transformer == transformer_of(block)
    assert dnn.transformer.layer_kinds == ("dense", "moe", "moe")


def test_a_transformer_of_the_zoo_takes_another_sequence_length() -> None:
    problem = planner.load(question({"zoo": "llama3-70b", "sequence_length": 4096}))
    assert problem.dnn.transformer is not None
    assert (problem.dnn.transformer.sequence_length, problem.dnn.num_trainable) == (4096, 70_553_706_496)
    shorter = planner.load(question({"zoo": "bert-large", "sequence_length": 128})).dnn
    assert shorter.num_trainable == 335_141_888


def test_a_table_of_learned_positions_grows_and_the_plan_says_so() -> None:
    problem = planner.load(question({"zoo": "gpt3-13b", "sequence_length": 4096}))
    assert problem.dnn.num_trainable == zoo.build("gpt3-13b").num_trainable + 2048 * 5120
    assert any("learned positions grows from 2,048 to 4,096" in text for text in problem.assumptions)


@pytest.mark.parametrize(
    ("dnn", "field", "words"),
    [
        ({"zoo": "vgg16", "sequence_length": 512}, "dnn.sequence_length", "vgg16 reads no sequence of tokens"),
        ({"zoo": "vit-b-16", "sequence_length": 512}, "dnn.sequence_length", "follows from its patches"),
        ({"zoo": "llama3-70x"}, "dnn.zoo", "Did you mean 'llama3-70b'"),
        ({"transformer": SMALL, "sequence_length": 512}, "dnn", "sequence_length stands in the transformer"),
        ({"transformer": SMALL, "zoo": "vgg16"}, "dnn", "zoo and transformer are given"),
        ({"transformer": SMALL, "profile_batch": 8}, "dnn", "profile_batch belongs to a measured profile"),
        ({"transformer": {**SMALL, "kv_heads": 3}}, "dnn.transformer", "the 8 heads are no multiple of the 3 heads"),
        ({"transformer": {**SMALL, "hidden": 0}}, "dnn.transformer.hidden", "0 is too small"),
        ({"transformer": {**SMALL, "layers": 10**9}}, "dnn.transformer.layers", "of at most 4096"),
        ({"transformer": {**SMALL, "layers": 10**30}}, "dnn.transformer.layers", "too large"),
        ({"transformer": {**SMALL, "heads": True}}, "dnn.transformer.heads", "not a whole number"),
        ({"transformer": {**SMALL, "kv_head": 2}}, "dnn.transformer.kv_head", "Did you mean 'kv_heads'"),
        (
            {"transformer": {**SMALL, "experts": {"count": 4, "top_k": 5, "size": 8}}},
            "dnn.transformer",
            "top_k at most 4",
        ),
        ({"transformer": {**SMALL, "experts": {"count": 4, "top_k": 5}}}, "dnn.transformer.experts.size", "missing"),
        (
            {"transformer": {**SMALL, "image": {"size": 8, "patch": 4}}},
            "dnn.transformer",
            "belongs to a network that reads text",
        ),
        ({"transformer": {"layers": 2, "hidden": 8, "heads": 2}}, "dnn.transformer", "vocabulary is missing"),
    ],
)
def test_wrong_sizes_are_refused_with_their_path(dnn: dict[str, Any], field: str, words: str) -> None:
    assert [(path, words in text) for path, text in faults(dnn)] == [(field, True)]


def test_the_largest_transformer_that_is_allowed_stays_within_64_bits() -> None:
    wide = {"layers": 4096, "hidden": 2**17, "heads": 2**12, "vocabulary": 2**24, "sequence_length": 2**20}
    experts = {"count": 2**12, "top_k": 2**12, "size": 2**17, "shared": 1}
    found = TransformerSpec.model_validate({**wide, "experts": experts}).build()
    assert found.num_parameters < 2**62


# -- the command -----------------------------------------------------------------------------------------------------


def test_show_prints_a_block_of_each_kind_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "dnn", "llama3-70b"]) == 0
    out, _ = capsys.readouterr()
    assert len(out.splitlines()) < 40
    assert out.count("80 x block (dense)") == out.count("\n80 x block (dense)") == 13
    assert "trainable: 70,553,706,496" in out
    assert "attention: causal: half of each product counts" in out
    assert run(["show", "dnn", "deepseek-v3"]) == 0
    assert "58 x block (moe)" in capsys.readouterr().out


def test_a_base_of_rotary_positions_as_large_as_published_ones_is_read_back() -> None:
    positions = {"positions": "rotary", "rotary": {"base": 1e11, "local_base": 1e9}}
    network = TransformerSpec.model_validate({**SMALL, **positions}).build()
    assert network.rotary is not None
    assert (network.rotary.base, network.rotary.local_base) == (1e11, 1e9)
    assert TransformerSpec.model_validate(block_of(network)).build() == network


def test_show_reads_a_network_of_its_own_file_and_of_what_an_import_wrote(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1000, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    block = str(tmp_path / "dnn.yaml")
    assert run(["import", str(tmp_path / "config.json"), "-o", block]) == 0
    capsys.readouterr()
    shown = []
    for file in (str(tmp_path / "config.json"), str(tmp_path), block):
        assert run(["show", "dnn", file]) == 0
        shown.append(capsys.readouterr().out.partition("source:")[0])
    assert "3 x block (dense)" in shown[0]
    assert shown[0] == shown[1] == shown[2]


def test_show_reads_a_transformer_from_a_spec(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    machines = "cluster: {machines: [{count: 1, device: v100-sxm2-16g, devices: 1}]}"
    sizes = ", ".join(f"{key}: {value}" for key, value in SMALL.items())
    (tmp_path / "spec.yaml").write_text(f"dnn: {{transformer: {{{sizes}}}}}\n{machines}\n")
    assert run(["show", "dnn", str(tmp_path / "spec.yaml")]) == 0
    assert "3 x block (dense)" in capsys.readouterr().out
