"""Configurations of Hugging Face: our counts against those of ``transformers`` itself, built on the meta device."""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.errors import SpecError
from planner.importers.huggingface import read_huggingface
from planner.importers.huggingface.architectures import READERS
from planner.models.operators import flop_per_sample

torch = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
library = pytest.importorskip("transformers", reason="transformers is not installed; run make test-heavy")

pytestmark = [
    pytest.mark.skipif(not hasattr(library, "CONFIG_MAPPING"), reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

TABLE: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "importers" / "data" / "huggingface.json").read_text(encoding="utf-8")
)
SMALL: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "intermediate_size": 80,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
OLD: dict[str, Any] = {"n_layer": 3, "n_embd": 48, "n_head": 4, "n_positions": 32, "vocab_size": 100}
EXPERTS: dict[str, Any] = {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN: dict[str, Any] = {
    **{key: value for key, value in EXPERTS.items() if key != "num_local_experts"},
    "num_experts": 4,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 36,
}
DEEPSEEK: dict[str, Any] = {
    **{key: value for key, value in SMALL.items() if key not in ("num_key_value_heads", "head_dim")},
    **{"kv_lora_rank": 10, "q_lora_rank": 14, "qk_nope_head_dim": 8, "qk_rope_head_dim": 6, "v_head_dim": 9},
    **{"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 20},
    **{"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "num_key_value_heads": 4},
}
FALCON: dict[str, Any] = {key: value for key, value in SMALL.items() if key not in ("num_key_value_heads", "head_dim")}
BERT: dict[str, Any] = {**SMALL, "type_vocab_size": 2}
VIT: dict[str, Any] = {
    **{"num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 80},
    **{"image_size": 32, "patch_size": 8, "num_channels": 3, "pooler_output_size": 48},
}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
BIASED, WIDE = {"attention_bias": True}, {"head_dim": 20}

LINEAR: dict[str, Any] = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 10},
    "linear_conv_kernel_dim": 3,
}
MAMBA: dict[str, Any] = {
    **{key: value for key, value in SMALL.items() if key != "num_hidden_layers"},
    **{"mamba_num_heads": 6, "mamba_head_dim": 10, "ssm_state_size": 7, "n_groups": 2, "conv_kernel": 4},
    **{"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 20},
    **{"moe_shared_expert_intermediate_size": 36, "hybrid_override_pattern": "M-M*ME"},
}
HYBRID: dict[str, Any] = {
    **{"mamba_n_heads": 8, "mamba_d_state": 7, "mamba_n_groups": 2, "shared_intermediate_size": 36},
}
LAYERS = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
ERNIE: dict[str, Any] = {
    **{key: value for key, value in SMALL.items() if key != "head_dim"},
    **{"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 2, "moe_intermediate_size": 20},
}
# What the library holds as parameters, and is not trained, or is two numbers a layer, which a note tells.
UNCOUNTED = re.compile(r"e_score_correction_bias|\.act_fn\.")
BAILING: dict[str, Any] = {
    **{key: value for key, value in DEEPSEEK.items() if not key.startswith("n_") and "_rank" not in key},
    **{"num_experts": 8, "num_shared_experts": 2, "num_key_value_heads": 2, "head_dim": 16, "use_bias": False},
}
SHARED: dict[str, Any] = {**QWEN, "num_shared_experts": 2, "first_k_dense_replace": 1}
HUNYUAN: dict[str, Any] = {**SMALL, "num_experts": 4, "moe_topk": 2}
# Architectures that the library reads as another one, or lacks: then with the parts of one that it has.
SAME = {"kimi_k2": "deepseek_v3", "bailing_moe": "glm4_moe", "bailing_moe_v2": "glm4_moe"}
RENAMED = {
    **{"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts", "use_qkv_bias": "attention_bias"},
    **{"BailingMoeForCausalLM": "Glm4MoeForCausalLM", "BailingMoeV2ForCausalLM": "Glm4MoeForCausalLM"},
}
# Architecture, class, sizes: every flag that changes a count, both ways.
INDEX = {"index_n_heads": 4, "index_head_dim": 16, "index_topk": 8}
VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "LlamaForCausalLM", {**SMALL, **TIED, **BIASED}),
    ("llama", "LlamaForCausalLM", {**SMALL, "mlp_bias": True, **WIDE}),
    ("llama", "LlamaModel", {**SMALL, **UNTIED}),
    ("granite", "GraniteForCausalLM", {**SMALL, **BIASED, "mlp_bias": True}),
    ("smollm3", "SmolLM3ForCausalLM", {**SMALL, **BIASED}),
    ("arcee", "ArceeForCausalLM", {**SMALL, **BIASED, "mlp_bias": True}),
    ("mistral", "MistralForCausalLM", {**SMALL, **WIDE}),
    ("ministral", "MinistralForCausalLM", {**SMALL, **TIED}),
    ("phi3", "Phi3ForCausalLM", {**SMALL, **TIED}),
    ("qwen2", "Qwen2ForCausalLM", {**SMALL, **TIED}),
    ("qwen3", "Qwen3ForCausalLM", {**SMALL, **WIDE, **BIASED}),
    ("qwen3", "Qwen3Model", SMALL),
    ("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", {**SMALL, **BIASED}),
    ("exaone4", "Exaone4ForCausalLM", SMALL),
    ("ernie4_5", "Ernie4_5ForCausalLM", {**SMALL, "use_bias": True}),
    ("seed_oss", "SeedOssForCausalLM", {**SMALL, "mlp_bias": True}),
    ("seed_oss", "SeedOssForCausalLM", {**SMALL, "attention_bias": False, "attention_out_bias": True}),
    ("glm", "GlmForCausalLM", {**SMALL, **UNTIED}),
    ("glm4", "Glm4ForCausalLM", {**SMALL, "attention_bias": False}),
    ("gemma", "GemmaForCausalLM", {**SMALL, **WIDE, **BIASED}),
    ("gemma", "GemmaForCausalLM", {**SMALL, **UNTIED}),
    ("gemma2", "Gemma2ForCausalLM", {**SMALL, **BIASED}),
    ("gemma3_text", "Gemma3ForCausalLM", {**SMALL, **WIDE, **BIASED}),
    ("olmo", "OlmoForCausalLM", {**SMALL, **BIASED, **TIED}),
    ("olmo2", "Olmo2ForCausalLM", {**SMALL, **BIASED}),
    ("olmo3", "Olmo3ForCausalLM", SMALL),
    ("cohere", "CohereForCausalLM", {**SMALL, "use_qk_norm": True}),
    ("cohere", "CohereForCausalLM", {**SMALL, **BIASED, **UNTIED}),
    ("cohere2", "Cohere2ForCausalLM", {**SMALL, "sliding_window": 16, "sliding_window_pattern": 2}),
    ("cohere2", "Cohere2ForCausalLM", {**SMALL, **BIASED, **UNTIED}),
    ("nemotron", "NemotronForCausalLM", {**SMALL, **BIASED, "mlp_bias": True}),
    ("nemotron", "NemotronForCausalLM", {**SMALL, **TIED}),
    ("starcoder2", "Starcoder2ForCausalLM", {**SMALL, "use_bias": False}),
    ("stablelm", "StableLmForCausalLM", {**SMALL, "use_parallel_residual": True, "use_qkv_bias": True}),
    ("phi", "PhiForCausalLM", {**SMALL, "qk_layernorm": True}),
    ("phi", "PhiForCausalLM", {**SMALL, **TIED}),
    ("phi", "PhiModel", SMALL),
    ("mixtral", "MixtralForCausalLM", {**EXPERTS, **TIED}),
    ("granitemoe", "GraniteMoeForCausalLM", {**EXPERTS, **BIASED}),
    ("phimoe", "PhimoeForCausalLM", {**EXPERTS, **BIASED, "lm_head_bias": True}),
    ("olmoe", "OlmoeForCausalLM", {**EXPERTS, **BIASED}),
    ("qwen2_moe", "Qwen2MoeForCausalLM", {**QWEN, "decoder_sparse_step": 2}),
    ("qwen2_moe", "Qwen2MoeForCausalLM", {**QWEN, "qkv_bias": False, "mlp_only_layers": [0, 1]}),
    ("qwen2_moe", "Qwen2MoeForCausalLM", {**QWEN, "mlp_only_layers": [0, 1, 2, 3]}),
    ("qwen3_moe", "Qwen3MoeForCausalLM", {**QWEN, **WIDE, **BIASED}),
    ("qwen3_moe", "Qwen3MoeForCausalLM", {**QWEN, "decoder_sparse_step": 2, "mlp_only_layers": [1]}),
    ("glm4_moe", "Glm4MoeForCausalLM", {**DEEPSEEK, "num_key_value_heads": 2, "head_dim": 16, "use_qk_norm": True}),
    ("glm4_moe", "Glm4MoeForCausalLM", {**DEEPSEEK, "num_key_value_heads": 2, "head_dim": 16, **BIASED}),
    ("llama4_text", "Llama4ForCausalLM", {**EXPERTS, "intermediate_size_mlp": 90, "interleave_moe_layer_step": 2}),
    ("llama4_text", "Llama4ForCausalLM", {**EXPERTS, "intermediate_size_mlp": 90, "interleave_moe_layer_step": 1}),
    ("deepseek_v2", "DeepseekV2ForCausalLM", DEEPSEEK),
    ("deepseek_v2", "DeepseekV2ForCausalLM", {**DEEPSEEK, "q_lora_rank": None, "first_k_dense_replace": 0}),
    ("dots1", "Dots1ForCausalLM", {**DEEPSEEK, "num_key_value_heads": 2, "head_dim": 16, **BIASED}),
    ("minimax_m2", "MiniMaxM2ForCausalLM", {**EXPERTS, **WIDE}),
    ("bailing_moe", "BailingMoeForCausalLM", {**BAILING, "use_qkv_bias": True}),
    ("bailing_moe", "BailingMoeV2ForCausalLM", {**BAILING, "use_qk_norm": True, **TIED}),
    ("bailing_moe_v2", "BailingMoeV2ForCausalLM", {**BAILING, "use_qk_norm": True, "n_group": 4, "topk_group": 2}),
    ("exaone_moe", "ExaoneMoeForCausalLM", {**SHARED, "sliding_window": 16, "sliding_window_pattern": 4}),
    ("exaone_moe", "ExaoneMoeForCausalLM", {**SHARED, "mlp_layer_types": ["dense", "dense", "sparse", "sparse"]}),
    ("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", {**HUNYUAN, **WIDE, **BIASED}),
    ("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", {**HUNYUAN, "moe_topk": [2, 2, 2, 2], **TIED}),
    ("hy_v3", "HYV3ForCausalLM", {**SHARED, **BIASED}),
    ("hy_v3", "HYV3ForCausalLM", {**SHARED, "mlp_layer_types": ["sparse"] * 4, **TIED}),
    ("ministral3", "Ministral3ForCausalLM", {**SMALL, **WIDE, **TIED}),
    ("mistral4", "Mistral4ForCausalLM", {**DEEPSEEK, "n_shared_experts": 1, "first_k_dense_replace": 2}),
    ("solar_open", "SolarOpenForCausalLM", {**DEEPSEEK, "num_key_value_heads": 2, "head_dim": 16, **BIASED}),
    ("glm4_moe_lite", "Glm4MoeLiteForCausalLM", {**DEEPSEEK, "n_shared_experts": 1}),
    (
        "glm4_moe_lite",
        "Glm4MoeLiteForCausalLM",
        {**DEEPSEEK, "mlp_layer_types": ["dense", "dense", "sparse", "sparse"]},
    ),
    ("deepseek_v3", "DeepseekV3ForCausalLM", {**DEEPSEEK, "n_shared_experts": 1, **TIED}),
    ("deepseek_v3", "DeepseekV3Model", {**DEEPSEEK, "first_k_dense_replace": 4}),
    ("qwen2_5_vl_text", "Qwen2_5_VLTextModel", SMALL),
    ("qwen3_vl_text", "Qwen3VLTextModel", {**SMALL, **WIDE}),
    ("qwen3_vl_moe_text", "Qwen3VLMoeTextModel", {**QWEN, **WIDE}),
    ("qwen2_5_omni_text", "Qwen2_5OmniThinkerTextModel", SMALL),
    ("qwen3_omni_moe_text", "Qwen3OmniMoeThinkerTextModel", {**QWEN, **WIDE}),
    ("gpt_oss", "GptOssForCausalLM", {**EXPERTS, **WIDE, "sliding_window": 16}),
    ("gpt_oss", "GptOssForCausalLM", {**EXPERTS, "attention_bias": False, **TIED}),
    ("qwen3_next", "Qwen3NextForCausalLM", {**QWEN, **LINEAR}),
    ("qwen3_next", "Qwen3NextForCausalLM", {**QWEN, **LINEAR, **WIDE, **BIASED, "full_attention_interval": 2}),
    ("nemotron_h", "NemotronHForCausalLM", MAMBA),
    (
        "nemotron_h",
        "NemotronHForCausalLM",
        {**MAMBA, "hybrid_override_pattern": "M-*-", "use_conv_bias": False},
    ),
    ("nemotron_h", "NemotronHForCausalLM", {**MAMBA, "moe_latent_size": 12, "n_shared_experts": 1}),
    ("apertus", "ApertusForCausalLM", {**SMALL, **BIASED, **TIED}),
    ("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", ERNIE),
    ("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", {**ERNIE, "moe_layer_start_index": 2, **UNTIED}),
    ("bamba", "BambaForCausalLM", {**SMALL, **HYBRID, "attn_layer_indices": [1], **BIASED}),
    ("granitemoehybrid", "GraniteMoeHybridForCausalLM", {**EXPERTS, **HYBRID, "layer_types": LAYERS}),
    ("granitemoehybrid", "GraniteMoeHybridForCausalLM", {**EXPERTS, **HYBRID, "num_local_experts": 0, **TIED}),
    ("minimax", "MiniMaxForCausalLM", {**EXPERTS, **WIDE}),
    ("minimax", "MiniMaxForCausalLM", {**EXPERTS, "layer_types": LAYERS}),
    ("qwen3_5_text", "Qwen3_5ForCausalLM", {**SMALL, **LINEAR, **WIDE}),
    ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", {**QWEN, **LINEAR, **TIED}),
    ("glm_moe_dsa", "GlmMoeDsaForCausalLM", {**DEEPSEEK, "n_shared_experts": 1, **INDEX}),
    ("kimi_k2", "DeepseekV3ForCausalLM", {**DEEPSEEK, "n_shared_experts": 1}),
    ("deepseek_v32", "DeepseekV32ForCausalLM", {**DEEPSEEK, "n_shared_experts": 1, **INDEX}),
    ("gpt2", "GPT2LMHeadModel", {**OLD, "n_inner": 70}),
    ("gpt2", "GPT2LMHeadModel", {**OLD, **UNTIED}),
    ("gpt2", "GPT2Model", OLD),
    ("gpt_bigcode", "GPTBigCodeForCausalLM", {**OLD, "multi_query": True}),
    ("gpt_bigcode", "GPTBigCodeForCausalLM", {**OLD, "multi_query": False}),
    (
        "gpt_neo",
        "GPTNeoForCausalLM",
        {"num_layers": 2, "hidden_size": 48, "num_heads": 4, "intermediate_size": 70, "vocab_size": 100}
        | {"max_position_embeddings": 32, "attention_types": [[["global", "local"], 1]]},
    ),
    ("gpt_neox", "GPTNeoXForCausalLM", {**SMALL, "attention_bias": False, **TIED}),
    ("gpt_neox", "GPTNeoXForCausalLM", {**SMALL, "use_parallel_residual": False}),
    ("gptj", "GPTJForCausalLM", {**OLD, "n_inner": 70, "rotary_dim": 4}),
    ("codegen", "CodeGenForCausalLM", {**OLD, "rotary_dim": 4}),
    ("opt", "OPTForCausalLM", {**SMALL, "ffn_dim": 70, "word_embed_proj_dim": 48, "enable_bias": False}),
    ("opt", "OPTForCausalLM", {**SMALL, "ffn_dim": 70, "word_embed_proj_dim": 48, "do_layer_norm_before": False}),
    (
        "opt",
        "OPTForCausalLM",
        {**SMALL, "ffn_dim": 70, "word_embed_proj_dim": 48, "layer_norm_elementwise_affine": False, **UNTIED},
    ),
    ("opt", "OPTModel", {**SMALL, "ffn_dim": 70, "word_embed_proj_dim": 48, "_remove_final_layer_norm": True}),
    ("bloom", "BloomForCausalLM", {"n_layer": 3, "hidden_size": 48, "n_head": 4, "vocab_size": 100, **UNTIED}),
    ("falcon", "FalconForCausalLM", {**FALCON, "num_kv_heads": 2, "new_decoder_architecture": True, "bias": True}),
    ("falcon", "FalconForCausalLM", {**FALCON, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}),
    ("falcon", "FalconForCausalLM", {**FALCON, "multi_query": False, "parallel_attn": False, "alibi": True}),
    ("falcon", "FalconForCausalLM", {**FALCON, "ffn_hidden_size": 70, **UNTIED}),
    ("mpt", "MptForCausalLM", {"n_layers": 2, "d_model": 48, "n_heads": 4, "vocab_size": 100, "max_seq_len": 32}),
    ("bert", "BertForMaskedLM", BERT),
    ("bert", "BertForPreTraining", BERT),
    ("bert", "BertLMHeadModel", {**BERT, "is_decoder": True}),
    ("bert", "BertModel", BERT),
    ("roberta", "RobertaModel", {**BERT, "type_vocab_size": 1}),
    ("roberta", "RobertaForCausalLM", {**BERT, "is_decoder": True}),
    ("xlm-roberta", "XLMRobertaForMaskedLM", BERT),
    ("camembert", "CamembertForMaskedLM", BERT),
    (
        "distilbert",
        "DistilBertModel",
        {"n_layers": 2, "dim": 48, "n_heads": 4, "hidden_dim": 70, "vocab_size": 100, "max_position_embeddings": 32},
    ),
    ("vit", "ViTForImageClassification", {**VIT, "num_labels": 7, "qkv_bias": False}),
    ("vit", "ViTForImageClassification", VIT),
    ("vit", "ViTModel", VIT),
]


def counts_of(values: dict[str, Any]) -> tuple[int, int]:
    """Parameters of the network that the library builds of a configuration: all, and those that one token meets."""
    given = {key: value for key, value in values.items() if key not in ("model_type", "architectures")}
    if SAME.get(values["model_type"]) == "glm4_moe":
        given = {RENAMED.get(key, key): value for key, value in given.items()}
        values = {**values, "architectures": [RENAMED[name] for name in values["architectures"]]}
    if values["model_type"] == "hunyuan_v1_moe":  # whose angles the library takes under another key alone
        given = {key: value for key, value in given.items() if key != "rope_scaling"}
    if isinstance(kinds := given.pop("is_moe_layer", None), list):
        given["mlp_layer_types"] = ["sparse" if one else "dense" for one in kinds]
    given |= dict.fromkeys(given.keys() & {"num_nextn_predict_layers"}, 0)  # which it does not build for training
    config = library.CONFIG_MAPPING[SAME.get(values["model_type"], values["model_type"])](**given)
    with torch.device("meta"):
        network = getattr(library, values["architectures"][0])(config)
        network.tie_weights()
    named = [(name, one) for name, one in network.named_parameters() if not UNCOUNTED.search(name)]
    routed = sum(one.numel() for name, one in named if ".experts." in name)
    everything = sum(one.numel() for _, one in named)
    if not routed:
        return everything, everything
    names = ("n_routed_experts", "num_local_experts", "num_experts")
    number = next(getattr(config, name) for name in names if getattr(config, name, None))
    top_k = config.num_experts_per_tok
    top_k = top_k[0] if isinstance(top_k, list) else top_k  # Hunyuan names it once for each layer
    return everything, everything - routed // number * (number - top_k)


def ours_of(values: dict[str, Any], folder: Path) -> tuple[int, int]:
    (folder / "config.json").write_text(json.dumps(values))
    found = read_huggingface(folder).transformer
    return found.num_parameters, found.num_active_parameters


@pytest.mark.parametrize("name", TABLE)
def test_published_checkpoints_have_the_parameters_of_the_library(name: str, tmp_path: Path) -> None:
    row = TABLE[name]
    theirs = counts_of(row["config"])
    assert theirs == (row["parameters"], row["active_parameters"])
    assert ours_of(row["config"], tmp_path) == theirs


@pytest.mark.parametrize(("architecture", "name", "values"), VARIANTS)
def test_every_flag_counts_as_in_the_library(
    architecture: str, name: str, values: dict[str, Any], tmp_path: Path
) -> None:
    whole = {**values, "model_type": architecture, "architectures": [name]}
    assert ours_of(whole, tmp_path) == counts_of(whole)


def test_the_bias_that_the_library_holds_twice_counts_once(tmp_path: Path) -> None:
    whole = {**BERT, **UNTIED, "model_type": "bert", "architectures": ["BertForMaskedLM"]}
    (everything, _), (theirs, _) = ours_of(whole, tmp_path), counts_of(whole)
    assert theirs - everything == SMALL["vocab_size"]  # cls.predictions.bias, which nothing reads where it is not tied
    assert any("bias of the logits twice" in note for note in read_huggingface(tmp_path).notes)


def test_every_architecture_is_compared() -> None:
    compared = {architecture for architecture, _, _ in VARIANTS}
    assert compared | {row["config"]["model_type"] for row in TABLE.values()} == set(READERS)
    assert len(TABLE) >= 20


@pytest.mark.parametrize("architecture", sorted(READERS.keys() - {"bailing_moe", "bailing_moe_v2"}))  # not in it
def test_a_configuration_as_the_library_saves_it_is_read(architecture: str, tmp_path: Path) -> None:
    _, name, values = next(row for row in VARIANTS if row[0] == architecture)
    config = library.CONFIG_MAPPING[SAME.get(architecture, architecture)](**values)
    config.architectures = [name]
    config.save_pretrained(tmp_path)
    found = read_huggingface(tmp_path).transformer
    assert found.num_parameters == counts_of({**values, "model_type": architecture, "architectures": [name]})[0]


# -- an encoder of images in front of a decoder ------------------------------------------------------------------------

SEEING: dict[str, dict[str, Any]] = {
    "llava": {
        "text_config": {**SMALL, "model_type": "llama"},
        "vision_config": {**VIT, "model_type": "clip_vision_model", "projection_dim": 8},
        **UNTIED,
    },
    "gemma3": {
        "text_config": {**SMALL, **WIDE, "model_type": "gemma3_text"},
        "vision_config": {**VIT, "model_type": "siglip_vision_model", "vision_use_head": False},
        "mm_tokens_per_image": 4,
    },
    "qwen2_5_vl": {
        "text_config": {**SMALL, **UNTIED},
        "vision_config": {
            **{"depth": 3, "hidden_size": 32, "intermediate_size": 50, "num_heads": 4, "out_hidden_size": 48},
            **{"patch_size": 14, "window_size": 112, "fullatt_block_indexes": [1]},
        },
    },
    "qwen2_vl": {
        "text_config": {**SMALL, **UNTIED},
        "vision_config": {"depth": 3, "embed_dim": 32, "hidden_size": 48, "mlp_ratio": 3, "num_heads": 4},
    },
}


@pytest.mark.parametrize("architecture", SEEING)
def test_vision_language_models_have_the_parameters_of_the_library(architecture: str, tmp_path: Path) -> None:
    config = library.CONFIG_MAPPING[architecture](**SEEING[architecture])
    with torch.device("meta"):
        network = library.AutoModelForImageTextToText.from_config(config)
        network.tie_weights()
    theirs = sum(one.numel() for one in network.parameters())
    config.save_pretrained(tmp_path)
    assert read_huggingface(tmp_path, sequence_length=1500).transformer.num_parameters == theirs
    given = {**SEEING[architecture], "model_type": architecture}
    (tmp_path / "config.json").write_text(json.dumps(given))
    assert read_huggingface(tmp_path, sequence_length=1500).transformer.num_parameters == theirs


@pytest.mark.parametrize("architecture", SEEING)
def test_an_encoder_and_its_projector_multiply_as_in_the_library(architecture: str, tmp_path: Path) -> None:
    config = library.CONFIG_MAPPING[architecture](**SEEING[architecture])
    network = library.AutoModelForImageTextToText.from_config(config, attn_implementation="eager")
    config.save_pretrained(tmp_path)
    encoder = read_huggingface(tmp_path, sequence_length=1500).transformer.encoder
    assert encoder is not None
    image = encoder.image
    assert image is not None
    side = image.image_size // image.patch_size
    given: dict[str, Any] = {"pixel_values": torch.zeros(1, 3, image.image_size, image.image_size)}
    if architecture.startswith("qwen"):  # which reads patches
        given = {"pixel_values": torch.zeros(side * side, image.patch_elements)}
        given["image_grid_thw"] = torch.tensor([[1, side, side]])
    counter = importlib.import_module("torch.utils.flop_counter").FlopCounterMode(display=False)
    with counter, torch.no_grad():
        network.get_image_features(**given)
    assert counter.get_total_flops() == flop_per_sample(encoder).forward_flop


# -- what only the library knows -------------------------------------------------------------------------------------


def other(architecture: str, folder: Path, **values: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**SMALL, "model_type": architecture, **values}))
    return folder


PLAIN = [("helium", "HeliumForCausalLM"), ("cwm", "CwmForCausalLM"), ("jais2", "Jais2ForCausalLM")]


@pytest.mark.parametrize(("architecture", "name"), PLAIN)
def test_a_plain_decoder_that_only_the_library_knows_is_read_with_a_warning(
    architecture: str, name: str, tmp_path: Path
) -> None:
    found = read_huggingface(other(architecture, tmp_path, architectures=[name]))
    assert "a plain decoder is ASSUMED" in found.warnings[0]
    theirs = counts_of({**SMALL, "model_type": architecture, "architectures": [name]})
    assert found.transformer.num_parameters == theirs[0]


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ("jetmoe", "is no part of a plain decoder"),
        ("clip_text_model", "no decoder of language"),
        ("diffllama", "its attention is the difference of two"),
        ("bert-generation", "and transformers builds 77,700"),
        ("biogpt", "and transformers builds 77,696"),
        ("llamma", "Nearest that is known without it: 'llama'. Nor does transformers know it"),
        ("t5", "it has an encoder and a decoder"),
    ],
)
def test_what_is_no_plain_decoder_is_refused(architecture: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=words):
        read_huggingface(other(architecture, tmp_path))


@pytest.mark.parametrize("has_torch", [True, False])
def test_no_decoder_that_only_the_library_knows_is_counted_wrong(
    has_torch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = importlib.import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    others = {key: name for key, name in names.items() if key not in READERS and isinstance(name, str)}
    right = []
    for architecture, name in others.items():
        with monkeypatch.context() as hidden:
            if not has_torch:
                hidden.setitem(sys.modules, "torch", None)
            try:
                found = read_huggingface(other(architecture, tmp_path, architectures=[name])).transformer
            except SpecError:
                continue
        theirs = counts_of({**SMALL, "model_type": architecture, "architectures": [name]})[0]
        assert (architecture, found.num_parameters) == (architecture, theirs)
        right.append(architecture)
    assert len(others) > 100
    assert {"helium", "cwm"} <= set(right)


def test_without_torch_only_what_looks_like_llama_is_assumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = read_huggingface(other("helium", tmp_path, architectures=["HeliumForCausalLM"]))
    assert "a plain decoder is ASSUMED" in found.warnings[0]
    with pytest.raises(SpecError, match=r"without rotary positions and RMS norms .* Install torch"):
        read_huggingface(other("biogpt", tmp_path))


def test_what_the_library_refuses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="transformers refuses it"):
        read_huggingface(other("helium", tmp_path, num_hidden_layers="many"))


def test_the_library_is_not_asked_about_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert read_huggingface(other("llama", tmp_path)).transformer.num_layers == 4
    with pytest.raises(SpecError, match=r"pip install 'training-planner\[hf\]'"):
        read_huggingface(other("helium", tmp_path))
