"""Configurations of Hugging Face: sizes, heads, lengths, what is refused, and every way in which a file can be wrong."""

import copy
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import zoo
from planner.errors import SpecError
from planner.importers.huggingface import HuggingFaceNetwork, read_huggingface
from planner.importers.huggingface.architectures import READERS
from planner.models.operators import parts
from planner.zoo import transformers

TABLE: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "huggingface.json").read_text(encoding="utf-8"))
MOE = [name for name, row in TABLE.items() if row["parameters"] != row["active_parameters"]]


def is_row(name: str) -> bool:
    try:
        return bool(zoo.find_name(name))
    except SpecError:
        return False


def config(name: str, **changed: Any) -> dict[str, Any]:
    """A checkpoint's configuration with some keys changed, or left out where they are ``...``."""
    whole = {**TABLE[name]["config"], **changed}
    return {key: value for key, value in whole.items() if value is not ...}


def read(folder: Path, values: Any, **options: Any) -> HuggingFaceNetwork:
    path = folder / "config.json"
    path.write_text(json.dumps(values, indent=1), encoding="utf-8")
    return read_huggingface(path, **options)


def error_of(folder: Path, values: Any, **options: Any) -> SpecError:
    with pytest.raises(SpecError) as error:
        read(folder, values, **options)
    return error.value


def wrong(folder: Path, values: Any, **options: Any) -> list[tuple[str, str]]:
    """Field and message of every fault of a configuration."""
    return [(one.field, f"{one.problem} {one.mend}") for one in error_of(folder, values, **options).faults]


# -- published checkpoints --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLE)
def test_parameters_are_those_that_transformers_counts(name: str, tmp_path: Path) -> None:
    found = read(tmp_path, TABLE[name]["config"]).transformer
    assert found.num_parameters == TABLE[name]["parameters"]
    assert found.num_active_parameters == TABLE[name]["active_parameters"]


def test_groups_of_experts_that_tokens_are_limited_to_are_read(tmp_path: Path) -> None:
    limited = read(tmp_path, config("DeepSeek-V3", n_group=8, topk_group=4)).transformer.experts
    free = read(tmp_path, config("DeepSeek-V3", n_group=..., topk_group=...)).transformer.experts
    assert limited is not None
    assert free is not None
    assert (limited.groups, limited.top_groups) == (8, 4)
    assert (free.groups, free.top_groups) == (1, 1)


@pytest.mark.parametrize("name", ["minimax_text_01", "minimax_m1"])
def test_a_file_by_the_publishers_own_name_is_read_as_that_of_transformers(name: str, tmp_path: Path) -> None:
    kinds = {"attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10, "layer_types": ..., "shared_intermediate_size": [0]}
    own = config("MiniMax-Text-01", model_type=name, postnorm=True, shared_moe_mode="sigmoid", **kinds)
    assert read(tmp_path, own).transformer == read(tmp_path, TABLE["MiniMax-Text-01"]["config"]).transformer


@pytest.mark.parametrize("name", TABLE)
def test_operators_hold_the_parameters_of_the_closed_form(name: str, tmp_path: Path) -> None:
    found = read(tmp_path, TABLE[name]["config"]).transformer
    counted = sum(part.count * sum(one.weight_elements for one in part.operators) for part in parts(found))
    assert counted == found.num_parameters


def test_the_table_names_a_source_for_every_configuration() -> None:
    assert len(TABLE) >= 30
    assert len(MOE) >= 8
    assert all(row["source"] for row in TABLE.values())


def test_the_manual_has_every_architecture() -> None:
    manual = (Path(__file__).parent.parent.parent / "docs" / "huggingface.md").read_text(encoding="utf-8")
    assert [name for name in READERS if f"`{name}`" not in manual] == []
    assert f"{len(TABLE)} published checkpoints" in " ".join(manual.split())


# Configurations that say all that a row of the zoo does.
ROWS = {name: zoo.find_name(name) for name in TABLE if is_row(name) and "initializer_range" in TABLE[name]["config"]}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_zoo_is_what_its_configuration_gives(name: str, tmp_path: Path) -> None:
    published = transformers.row(ROWS[name]).transformer
    found = read(tmp_path, TABLE[name]["config"], sequence_length=published.sequence_length).transformer
    if found.experts is not None and published.experts is not None:  # biases that choose experts: no parameters there
        has_bias = published.experts.has_router_bias
        found = replace(found, experts=replace(found.experts, has_router_bias=has_bias))
    assert found == published


def test_every_family_of_the_zoo_is_compared_with_a_configuration() -> None:
    assert len(ROWS) >= 30


# -- sizes ------------------------------------------------------------------------------------------------------------


def test_what_the_configuration_says_becomes_the_sizes(tmp_path: Path) -> None:
    found = read(tmp_path, config("Qwen3-30B-A3B")).transformer
    assert (found.num_layers, found.hidden_size, found.num_heads, found.num_kv_heads, found.head_size) == (
        *(48, 2048, 32, 4),
        128,
    )
    assert found.has_query_key_norms
    assert not found.has_qkv_biases
    assert found.experts is not None
    assert (found.experts.num_experts, found.experts.top_k, found.experts.expert_size) == (128, 8, 768)


@pytest.mark.parametrize(
    ("name", "is_tied"), [("Llama-2-7b-hf", False), ("gemma-2b", True), ("gpt2", True), ("c4ai-command-r-v01", True)]
)
def test_a_missing_key_means_what_it_means_to_the_architecture(name: str, is_tied: bool, tmp_path: Path) -> None:
    found = read(tmp_path, config(name, tie_word_embeddings=...)).transformer
    assert found.has_tied_embeddings is is_tied


def test_experts_of_some_layers_only_are_where_the_configuration_has_them(tmp_path: Path) -> None:
    values = config("Qwen1.5-MoE-A2.7B", decoder_sparse_step=2, mlp_only_layers=[1])
    kinds = read(tmp_path, values).transformer.layer_kinds
    assert kinds[:6] == ("dense", "dense", "dense", "moe", "dense", "moe")


def test_a_list_of_dense_layers_in_the_middle_is_refused(tmp_path: Path) -> None:
    ((field, words),) = wrong(tmp_path, config("Qwen3-30B-A3B", mlp_only_layers=[20]))
    assert field == "mlp_only_layers"
    assert "do not come at a fixed step" in words


def test_all_layers_may_be_dense(tmp_path: Path) -> None:
    assert read(tmp_path, config("Qwen3-30B-A3B", mlp_only_layers=list(range(48)))).transformer.experts is None


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"moe_topk": [8] * 31 + [4]}, "moe_topk"),
        ({"num_shared_expert": [1] * 31 + [2]}, "num_shared_expert"),
        ({"moe_intermediate_size": 2048}, "moe_intermediate_size"),
        ({"moe_layer_num_skipped": 1}, "moe_layer_num_skipped"),
        ({"model_type": "hunyuan", "use_cla": True, "cla_share_factor": 2}, "use_cla"),
        ({"use_mla": True}, "use_mla"),
        ({"use_mixed_mlp_moe": False}, "use_mixed_mlp_moe"),
    ],
)
def test_what_hunyuan_could_be_and_is_not_counted_is_refused(
    changed: dict[str, Any], name: str, tmp_path: Path
) -> None:
    (found,) = wrong(tmp_path, config("Hunyuan-A13B-Instruct", **changed))
    assert found[0] == name
    assert "not counted here" in found[1]


def test_hunyuans_angles_have_the_base_that_its_alpha_gives(tmp_path: Path) -> None:
    rotary = read(tmp_path, config("Hunyuan-A13B-Instruct")).transformer.rotary
    assert rotary is not None
    assert rotary.base == 11_158_840.0  # which Hy3 has by itself
    assert rotary.scaling is None
    (found,) = wrong(tmp_path, config("Hunyuan-A13B-Instruct", rope_theta=1e9))
    assert found == ("rope_theta", "alpha makes a base of 1.11588e+12 of it. Check both: bases are 1 to 1e12.")


@pytest.mark.parametrize("pattern", [4, "LLLG"])
def test_layers_of_exaone_that_see_all_have_no_positions_where_there_are_windows(
    pattern: str | int, tmp_path: Path
) -> None:
    told = {"sliding_window_pattern": pattern, "layer_types": ...}
    found = read(tmp_path, config("K-EXAONE-236B-A23B", **told)).transformer
    assert found == read(tmp_path, config("K-EXAONE-236B-A23B")).transformer
    assert found.rotary is not None
    assert (found.rotary.without_every, found.mixers) == (4, ("window", "window", "window", "attention"))
    full = read(tmp_path, config("K-EXAONE-236B-A23B", sliding_window=None, layer_types=...)).transformer
    assert full.rotary is not None
    assert full.rotary.without_every == 0


@pytest.mark.parametrize(("name", "is_normed"), [("BailingMoeV2ForCausalLM", True), ("BailingMoeForCausalLM", False)])
def test_ling_has_norms_of_queries_from_its_second_version_on(name: str, is_normed: bool, tmp_path: Path) -> None:
    values = config("Ling-mini-2.0", architectures=[name], use_qk_norm=...)
    assert read(tmp_path, values).transformer.has_query_key_norms is is_normed
    experts = read(tmp_path, config("Ling-mini-2.0")).transformer.experts
    assert experts is not None
    assert (experts.groups, experts.top_groups) == (8, 4)
    assert (experts.routing.score, experts.routing.scale, experts.routing.bias_update_rate) == ("sigmoid", 2.5, 1e-3)


def test_latent_attention_without_a_rank_of_queries_says_so_by_null(tmp_path: Path) -> None:
    latent = read(tmp_path, config("DeepSeek-V2-Lite")).transformer.latent
    assert latent is not None
    assert latent.query_rank is None
    assert [field for field, _ in wrong(tmp_path, config("DeepSeek-V2-Lite", q_lora_rank=...))] == ["q_lora_rank"]


def test_names_and_types_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    found = read(tmp_path, config("Llama-2-7b-hf", _name_or_path="meta-llama/Llama-2-7b-hf"))
    assert (found.name, found.dtype) == ("Llama-2-7b-hf", "bf16")
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config("gpt2", dtype="torch.float32")))
    found = read_huggingface(folder)
    assert (found.name, found.dtype) == ("my-model", "fp32")
    assert "float8_e4m3fn" in str(read(tmp_path, config("gpt2", dtype="float8_e4m3fn")).notes)


# -- heads ------------------------------------------------------------------------------------------------------------


def test_the_class_of_the_checkpoint_decides_the_head(tmp_path: Path) -> None:
    def head(name: str, *classes: str) -> tuple[str, bool]:
        found = read(tmp_path, config(name, architectures=list(classes))).transformer
        return found.head, found.has_pooler

    assert head("Llama-2-7b-hf", "LlamaModel") == ("none", False)
    assert head("bert-base-uncased", "BertForPreTraining") == ("masked_language", True)
    assert head("bert-base-uncased", "BertModel") == ("none", True)
    assert head("distilbert-base-uncased", "DistilBertModel") == ("none", False)
    assert head("vit-base-patch16-224", "ViTModel") == ("none", True)
    assert head("vit-base-patch16-224") == ("classes", False)


@pytest.mark.parametrize("name", ["Llama-2-7b-hf", "bert-base-uncased", "vit-base-patch16-224"])
def test_a_missing_class_is_noted_and_an_unknown_head_warned_of(name: str, tmp_path: Path) -> None:
    assert any("architectures is missing" in note for note in read(tmp_path, config(name, architectures=...)).notes)
    found = read(tmp_path, config(name, architectures=["SomethingForTokenClassification", "Other"]))
    assert "the head of SomethingForTokenClassification is not counted" in found.warnings[0]
    assert any("architectures names 2 classes" in note for note in found.notes)


# -- lengths ----------------------------------------------------------------------------------------------------------


def test_the_length_is_the_longest_named_but_at_most_4096(tmp_path: Path) -> None:
    assert read(tmp_path, config("gpt2")).transformer.sequence_length == 1024
    found = read(tmp_path, config("Llama-3.1-405B"))
    assert found.transformer.sequence_length == 4096
    assert "sequence_length: 4,096, of up to 131,072 allowed" in found.notes
    assert read(tmp_path, config("bloom", seq_length=...)).transformer.sequence_length == 2048


def test_a_length_that_is_asked_for_is_taken(tmp_path: Path) -> None:
    found = read(tmp_path, config("Llama-2-7b-hf"), sequence_length=8192)
    assert found.transformer.sequence_length == 8192
    assert any("longer than the 4,096" in note for note in found.notes)
    found = read(tmp_path, config("gpt2"), sequence_length=512)
    assert (found.transformer.sequence_length, found.transformer.num_positions) == (512, 1024)


def test_learned_positions_do_not_grow(tmp_path: Path) -> None:
    ((field, words),) = wrong(tmp_path, config("gpt2"), sequence_length=2048)
    assert field == "sequence_length"
    assert "needs more learned positions than the table has: 1,024" in words
    assert "513" not in str(read(tmp_path, config("roberta-base")).notes)
    assert read(tmp_path, config("roberta-base")).transformer.sequence_length == 512
    assert "at most 512" in wrong(tmp_path, config("roberta-base"), sequence_length=513)[0][1]
    assert read(tmp_path, config("opt-125m")).transformer.sequence_length == 2048
    assert "at most 2048" in wrong(tmp_path, config("opt-125m"), sequence_length=2049)[0][1]


def test_an_image_takes_no_length(tmp_path: Path) -> None:
    assert "follows from its patches" in str(wrong(tmp_path, config("vit-base-patch16-224"), sequence_length=197))


# -- what is counted otherwise ----------------------------------------------------------------------------------------


def windowed(network: HuggingFaceNetwork) -> tuple[int | None, int]:
    """The window, and in how many layers it is."""
    sizes = network.transformer
    return sizes.window, sum(count for kind, count in sizes.kind_counts.items() if kind.startswith("window"))


def test_windows_of_attention_are_counted_where_they_leave_something_out(tmp_path: Path) -> None:
    values = config("Mistral-7B-v0.1")
    short = read(tmp_path, values, sequence_length=2048)
    assert windowed(short) == (None, 0)
    assert "windows of 4,096 tokens hold whole samples: attention is full" in short.notes
    assert windowed(read(tmp_path, values, sequence_length=8192)) == (4096, 32)
    types = ["sliding_attention", "full_attention"] * 16
    mixed = read(tmp_path, {**values, "layer_types": types}, sequence_length=8192)
    assert windowed(mixed) == (4096, 16)
    assert mixed.transformer.mixers == ("window", "attention")
    qwen = config("Qwen2.5-7B", sliding_window=1024, max_window_layers=21)
    assert windowed(read(tmp_path, qwen, sequence_length=8192)) == (None, 0)
    found = read(tmp_path, {**qwen, "use_sliding_window": True}, sequence_length=8192)
    assert windowed(found) == (1024, 7)
    assert found.transformer.mixers == ("attention",) * 21 + ("window",) * 7


@pytest.mark.parametrize(
    ("name", "more", "number"),
    [
        ("gemma-2-9b", {}, 21),
        ("gemma-3-1b-it", {}, 22),
        ("gemma-3-1b-it", {"sliding_window_pattern": 2}, 13),
        ("gemma-3-1b-it", {"model_type": "exaone4", "sliding_window_pattern": "LLLG"}, 20),
        ("OLMo-2-1124-7B", {"model_type": "olmo3"}, 24),
        ("gpt-oss-20b", {}, 12),
    ],
)
def test_where_no_key_names_the_layers_with_windows_the_architecture_does(
    name: str, more: dict[str, object], number: int, tmp_path: Path
) -> None:
    values = {**config(name, sliding_window=512), **more}
    values.pop("layer_types", None)
    assert windowed(read(tmp_path, values, sequence_length=4096)) == (512, number)


def test_llama_4_attends_within_chunks_but_for_layers_without_positions(tmp_path: Path) -> None:
    found = read(tmp_path, config("Llama-4-Scout-17B-16E"), sequence_length=16384)
    assert windowed(found) == (8192, 36)
    assert found.transformer.has_chunked_windows
    assert found.transformer.mixers == ("window", "window", "window", "attention")
    short = read(tmp_path, config("Llama-4-Scout-17B-16E"), sequence_length=4096)
    assert windowed(short) == (None, 0)
    named = config("Llama-4-Scout-17B-16E", no_rope_layers=[1, 0] * 24)
    assert windowed(read(tmp_path, named, sequence_length=16384)) == (8192, 24)


# -- layers with other mixers -----------------------------------------------------------------------------------------


def test_gpt_oss_has_sinks_and_biases(tmp_path: Path) -> None:
    found = read(tmp_path, config("gpt-oss-120b")).transformer
    assert found.has_sinks
    assert found.has_biases
    assert found.has_qkv_biases
    assert found.experts is not None
    assert found.experts.has_router_bias
    assert found.experts.routing.bias == "linear"
    assert (found.numerics.activation, found.numerics.activation_limit) == ("quick_gelu", 7.0)


def test_qwen3_next_has_a_gate_and_three_of_four_layers_of_the_delta_rule(tmp_path: Path) -> None:
    found = read(tmp_path, config("Qwen3-Next-80B-A3B")).transformer
    assert found.mixers == ("delta", "delta", "delta", "attention")
    assert found.has_attention_gate
    assert found.delta is not None
    assert (found.delta.num_key_heads, found.delta.num_value_heads, found.delta.value_size) == (16, 32, 128)
    types = ["linear_attention", "full_attention"] * 24
    assert read(tmp_path, config("Qwen3-Next-80B-A3B", layer_types=types)).transformer.mixers == ("delta", "attention")


def test_nemotron_h_has_layers_of_one_part_each(tmp_path: Path) -> None:
    found = read(tmp_path, config("NVIDIA-Nemotron-3-Nano-30B-A3B")).transformer
    assert found.kind_counts == {"attention": 6, "mamba": 23, "experts": 23}
    assert found.positions == "none"
    assert found.activation == "relu_squared"
    assert found.experts is not None
    assert (found.experts.num_shared, found.experts.shared_size) == (1, 3712)
    words = ["mamba", "moe", "attention", "mlp"]
    given = config(
        "NVIDIA-Nemotron-3-Nano-30B-A3B", hybrid_override_pattern=..., num_hidden_layers=..., layers_block_type=words
    )
    assert read(tmp_path, given).transformer.pattern == "ME*-"


@pytest.mark.parametrize(
    ("name", "changed", "field", "words"),
    [
        ("Nemotron-H-8B-Base-8K", {"hybrid_override_pattern": ...}, "hybrid_override_pattern", "it is missing"),
        ("Nemotron-H-8B-Base-8K", {"hybrid_override_pattern": "MX" * 26}, "hybrid_override_pattern", "a layer 'X'"),
        ("Nemotron-H-8B-Base-8K", {"num_hidden_layers": 51}, "num_hidden_layers", "the pattern has 52 letters"),
        ("Nemotron-H-8B-Base-8K", {"use_bias": True}, "use_bias", "biases of some of these matrices"),
        ("Nemotron-H-8B-Base-8K", {"n_groups": 7}, "n_groups", "no multiple of its 7 groups"),
        ("Nemotron-H-8B-Base-8K", {"mamba_num_heads": ...}, "mamba_num_heads", "it is missing"),
        ("NVIDIA-Nemotron-3-Super-120B-A12B", {"moe_latent_size": "1k"}, "moe_latent_size", "is text, not a number"),
        ("Qwen3-Next-80B-A3B", {"layer_types": ["mamba"] * 48}, "layer_types", "'mamba' are not counted"),
        ("Qwen3-Next-80B-A3B", {"linear_num_value_heads": 33}, "linear_num_value_heads", "no multiple of the 16"),
    ],
)
def test_layers_that_are_not_known_or_do_not_fit_are_refused(
    name: str, changed: dict[str, Any], field: str, words: str, tmp_path: Path
) -> None:
    ((found, text),) = wrong(tmp_path, config(name, **changed))
    assert found == field
    assert words in text


def test_command_a_sees_all_tokens_without_positions_in_every_fourth_layer(tmp_path: Path) -> None:
    found = read(tmp_path, config("c4ai-command-a-03-2025"), sequence_length=8192).transformer
    assert (found.mixers, found.window) == (("window",) * 3 + ("attention",), 4096)
    assert found.rotary is not None
    assert (found.rotary.without_every, found.rotary.is_interleaved, found.numerics.logit_scale) == (4, True, 0.25)


def test_what_is_left_out_is_noted(tmp_path: Path) -> None:
    notes = str(read(tmp_path, config("DeepSeek-V3")).notes)
    assert "the checkpoint is quantised (fp8)" in notes
    assert "the layer that predicts further tokens (num_nextn_predict_layers) is not counted" in notes
    assert "the router's correction of its scores is a buffer" in notes


@pytest.mark.parametrize(
    ("name", "changed", "field"),
    [
        ("Llama-2-7b-hf", {"layer_types": ["linear_attention"] * 32}, "layer_types"),
        ("Llama-2-7b-hf", {"layer_types": ["full_attention"] * 31}, "layer_types"),
        ("Llama-2-7b-hf", {"pruned_heads": {"1": [0]}}, "pruned_heads"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("bert-base-uncased", {"add_cross_attention": True}, "add_cross_attention"),
        ("bert-base-uncased", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert-base-uncased", {"embedding_size": 128}, "embedding_size"),
        ("opt-125m", {"word_embed_proj_dim": 512}, "word_embed_proj_dim"),
        ("stablelm-3b-4e1t", {"qk_layernorm": True}, "qk_layernorm"),
        ("DeepSeek-V2", {"attention_bias": True}, "attention_bias"),
        ("vit-base-patch16-224", {"pooler_output_size": 100}, "pooler_output_size"),
        ("MiniMax-M2", {"num_local_experts": ...}, "num_local_experts"),  # and nothing of groups of one expert
    ],
)
def test_what_would_be_counted_wrong_is_refused(name: str, changed: dict[str, Any], field: str, tmp_path: Path) -> None:
    assert [one for one, _ in wrong(tmp_path, config(name, **changed))] == [field]


# -- architectures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model_type": "t5", "d_model": 512}, "'t5' is not counted: it has an encoder and a decoder"),
        ({"model_type": "new", "is_encoder_decoder": True}, "'new' is not counted: it has an encoder and a decoder"),
        ({"model_type": "mamba"}, "some of its layers are recurrent"),
        ({"model_type": "granite_swa"}, "learned sinks"),
        ({"model_type": "swin"}, "its layers differ in width"),
        ({"model_type": "lfm2_moe"}, "short convolutions"),
        ({"model_type": "falcon_h1"}, "attention and Mamba side by side"),
        ({"model_type": "bailing_moe_linear"}, "recurrent or linear in the length"),
        ({"model_type": "longcat_flash"}, "two attentions"),
        ({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text"}}, "heads of two widths"),
        (
            {"model_type": "llava_next", "text_config": {"model_type": "llama"}, "vision_config": {}},
            r"text_config beside vision_config; .* its text part \(model_type 'llama'\) alone .* --text-only",
        ),
        (
            {"model_type": "gemma3n", "text_config": {"model_type": "gemma3n_text"}},
            r"its text part \(model_type 'gemma3n_text'\) is not, either: its layers have parts",
        ),
        ({"model_type": "clip", "vision_config": {}}, "it has several parts: vision_config"),
    ],
)
def test_what_is_no_single_stack_of_blocks_is_refused_with_the_reason(
    values: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert re.search(words, str(error_of(tmp_path, values)))


def test_the_text_of_several_parts_is_taken_when_that_is_asked_for(tmp_path: Path) -> None:
    inner = config("gemma-3-1b-it", architectures=...)
    values = {
        "model_type": "gemma3",
        "text_config": inner,
        "vision_config": {"hidden_size": 8},
        "torch_dtype": "float16",
    }
    assert "image_size" in str(error_of(tmp_path, values))  # of the other part, which is not all there
    found = read(tmp_path, values, is_text_only=True)
    assert found.transformer.num_parameters == TABLE["gemma-3-1b-it"]["parameters"]
    plain = read(tmp_path, config("gpt2"), is_text_only=True)
    assert plain.transformer.num_parameters == TABLE["gpt2"]["parameters"]


def test_the_text_of_an_omni_network_is_that_of_its_thinker(tmp_path: Path) -> None:
    text = config("Qwen3-30B-A3B", model_type="qwen3_omni_moe_text", architectures=...)
    thinker = {"model_type": "qwen3_omni_moe_thinker", "text_config": text, "audio_config": {}, "vision_config": {}}
    values = {"model_type": "qwen3_omni_moe", "thinker_config": thinker, "talker_config": {"model_type": "x"}}
    told = r"text_config beside vision_config and audio_config; .* \(model_type 'qwen3_omni_moe_text'\) alone"
    assert re.search(told, str(error_of(tmp_path, values)))
    found = read(tmp_path, values, is_text_only=True).transformer
    assert found.num_parameters == TABLE["Qwen3-30B-A3B"]["parameters"]


def test_a_text_part_may_leave_out_what_its_publisher_leaves_to_the_library(tmp_path: Path) -> None:
    inner = {
        **{"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34},
        **{"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
    }
    found = read(tmp_path, {"model_type": "gemma3", "text_config": inner, "vision_config": {}}, is_text_only=True)
    assert found.transformer.num_parameters == TABLE["gemma-3-4b"]["parameters"]
    assert "vocab_size: 262,208, as transformers has it where it is left out" in found.notes
    assert "num_attention_heads" in str(wrong(tmp_path, {**inner, "architectures": ["Gemma3ForCausalLM"]}))


def test_an_unknown_architecture_names_the_nearest_and_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    (fault,) = error_of(tmp_path, {"architectures": ["X"], "model_type": "lama"}).faults
    assert (fault.field, fault.value, fault.line) == ("model_type", "lama", 5)
    known = f"'lama' is none of the {len(READERS)} architectures that are known here."
    assert f"{known} Nearest that is known without it: 'llama'" in str(fault)
    assert "pip install 'training-planner[hf]'" in fault.mend
    unknown = str(error_of(tmp_path, {"model_type": "x1"}))
    assert "docs/huggingface.md lists them" in unknown
    assert len(unknown.removeprefix(str(tmp_path))) < 240  # no list of 80 names
    # What the library would only refuse once it is installed is told to be described otherwise.
    with_experts = str(error_of(tmp_path, {"model_type": "x1", "num_experts": 8}))
    assert "has no num_experts" in with_experts
    assert "pip install" not in with_experts


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"architectures": ["MistralForCausalLM"], "hidden_size": 8}, '"model_type": "mistral"'),
        ({"hidden_size": 8}, '"model_type": "llama"'),
        ({"model_type": 7}, "7 is no name of an architecture"),
        ({"model_type": ""}, "'' is no name of an architecture"),
        ({"model_type": "\ud800\x1b[31m"}, r"'\ud800\x1b[31m' is no name of an architecture"),
    ],
)
def test_a_missing_architecture_is_said(values: dict[str, Any], words: str, tmp_path: Path) -> None:
    ((field, text),) = wrong(tmp_path, values)
    assert field == "model_type"
    assert words in text


# -- bad files --------------------------------------------------------------------------------------------------------


def test_every_missing_key_is_named_in_one_pass(tmp_path: Path) -> None:
    found = wrong(tmp_path, {"model_type": "mistral", "architectures": ["MistralForCausalLM"]})
    assert [field for field, _ in found] == [
        *("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "num_key_value_heads"),
        "intermediate_size",
    ]
    assert all("mistral needs it" in words for _, words in found)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("4096", "'4096' is text, not a number"),
        (-1, "-1 is out of range"),
        (0, "0 is out of range"),
        (4096.0, "4096.0 is no whole number"),
        (True, "True is no whole number"),
        ([1], r"[1] is no whole number"),
        (10**30, "is out of range"),
        (10**400, "this number is out of range"),
        (math.nan, "nan is no whole number"),
    ],
)
def test_sizes_that_are_none_are_refused_with_line_and_value(value: Any, words: str, tmp_path: Path) -> None:
    (fault,) = error_of(tmp_path, config("Llama-2-7b-hf", hidden_size=value)).faults
    assert (fault.field, fault.line) == ("hidden_size", 7)
    assert words in fault.problem
    assert fault.mend == "Write a whole number from 1 to 131072."


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hidden_size": 100}, "llama: the hidden size 100 is no multiple of the 32 heads"),
        ({"num_key_value_heads": 5}, "llama: the 32 heads are no multiple of the 5 heads of keys and values"),
        ({"tie_word_embeddings": "no"}, "'no' is neither true nor false"),
        ({"torch_dtype": 16}, "16 is no text"),
        ({"architectures": "LlamaForCausalLM"}, "is no list of words"),
        ({"architectures": ["\ud800\x1b[31m"]}, r"'\ud800\x1b[31m' is no name of a class"),
        ({"layer_types": [1]}, "is no list of words"),
    ],
)
def test_values_that_do_not_go_together_are_refused(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert words in str(error_of(tmp_path, config("Llama-2-7b-hf", **changed)))


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("Qwen3-30B-A3B", {"num_experts_per_tok": 129}, "129 is more than the 128 experts"),
        ("DeepSeek-V3", {"n_group": 7, "topk_group": 4}, "7 groups of 256 experts"),
        ("DeepSeek-V3", {"n_group": 8, "topk_group": 9}, "8 from 9, cannot be"),
        ("DeepSeek-V3", {"n_group": 128, "topk_group": 3}, "8 from 3, cannot be"),
        ("Qwen3-30B-A3B", {"mlp_only_layers": [-1]}, "is no list of whole numbers"),
        ("vit-base-patch16-224", {"patch_size": 15}, "no whole number of these"),
        ("vit-base-patch16-224", {"image_size": [224, 224]}, "[224, 224] is no whole number"),
        ("vit-base-patch16-224", {"id2label": ["cat"]}, "is no table of names"),
        ("roberta-base", {"max_position_embeddings": 2}, "the first 2 of 2 positions are never used"),
        ("falcon-7b", {"num_ln_in_parallel_attn": 3}, "3 is out of range"),
    ],
)
def test_values_of_some_architectures_are_refused(
    name: str, changed: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert words in str(error_of(tmp_path, config(name, **changed)))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-2-7b-hf"},
            "the configuration of an adapter, not of a network. Give the config.json of the network that it adapts, "
            "'meta-llama/Llama-2-7b-hf'",
        ),
        ({"tokenizer_class": "LlamaTokenizer"}, "the configuration of a tokenizer"),
        ({"version": "1.0", "added_tokens": [], "model": {}}, "this is a tokenizer"),
        ({"_from_model_config": True, "eos_token_id": 2}, "the configuration of text generation"),
        ({"eos_token_id": 2, "transformers_version": "4.40.0"}, "the configuration of text generation"),
        ({"metadata": {}, "weight_map": {}}, "the index of a checkpoint's weights"),
        ({"image_processor_type": "ViTImageProcessor"}, "the configuration of an image processor"),
        ({"dim": 4096, "n_layers": 32, "n_heads": 32}, "this is params.json"),
        ({"zero_optimization": {}}, "the configuration of DeepSpeed"),
    ],
)
def test_other_files_of_a_checkpoint_are_told_by_what_they_are(
    values: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert words in str(error_of(tmp_path, values))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("{", "config.json:1:2: this is no JSON, or not all of it"),
        ("[]", "this is JSON, but a list, not an object"),
        ("7", "this is JSON, but a single value"),
        ("{}", "this object of JSON has no keys"),
        ("model_type: llama", "this is no JSON"),
        ('{"model_type": "llama",\n "vocab_size": 1,\n "vocab_size": 2}', ":2: vocab_size: this key stands twice"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"model_type": ' + "9" * 5000 + "}", "a number of thousands of digits"),
        (json.dumps({f"k{index}": 1 for index in range(10_001)}), "has 10001 keys, more than 10000"),
    ],
)
def test_files_that_are_no_object_of_json_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as error:
        read_huggingface(path)
    assert words in str(error.value)


def test_a_missing_file_and_one_beyond_all_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"config\.json: there is no such file"):
        read_huggingface(tmp_path)
    (tmp_path / "config.json").write_bytes(b" " * (16 * 2**20 + 1))
    with pytest.raises(SpecError, match="more than 16777216"):
        read_huggingface(tmp_path)


def test_a_byte_order_mark_and_line_ends_of_windows_are_read(tmp_path: Path) -> None:
    text = json.dumps(config("gpt2"), indent=1).replace("\n", "\r\n")
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read_huggingface(tmp_path).transformer.num_parameters == TABLE["gpt2"]["parameters"]


# -- whatever comes ---------------------------------------------------------------------------------------------------

_odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 70_000),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-1, 50), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@settings(max_examples=300)
@given(st.sampled_from(sorted(TABLE)), st.data())
def test_whatever_is_changed_gives_a_network_or_a_reason(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    values = copy.deepcopy(TABLE[name]["config"])
    values.pop("id2label", None)
    keys = data.draw(st.lists(st.sampled_from(sorted(values)), max_size=3, unique=True))
    for key in keys:
        if data.draw(st.booleans()):
            values[key] = data.draw(_odd)
        elif key != "model_type":
            del values[key]
    folder = tmp_path_factory.getbasetemp() / "fuzz"
    folder.mkdir(exist_ok=True)
    try:
        found = read(folder, values, sequence_length=data.draw(st.none() | st.integers(1, 10_000)))
    except SpecError as error:
        assert str(error).replace("\n", "").isprintable()
        assert all(fault.problem for fault in error.faults)
    else:
        assert all(text.isprintable() for text in (*found.notes, *found.warnings))
        assert 0 < found.transformer.num_active_parameters <= found.transformer.num_parameters


@settings(max_examples=200)
@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_whatever_stands_in_the_file_gives_a_reason(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(content)
    with pytest.raises(SpecError):
        read_huggingface(path)
