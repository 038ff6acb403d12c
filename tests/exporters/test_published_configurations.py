"""Llama 3.1, Qwen 3 and DeepSeek-V3 as their publishers state them, field by field, against the files of all programs.

The values stand here as in the publishers' ``config.json`` (huggingface.co/meta-llama/Llama-3.1-*, Qwen/Qwen3-*,
deepseek-ai/DeepSeek-V3), with ``router_aux_loss_coef`` and ``aux_loss_alpha`` as they are there; of DeepSeek-V3 the
balancing factor is that of its report (arXiv 2412.19437, section 4.2).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from layout_jobs import even_job
from modern_blocks import as_used

from planner.exporters import export, network_of
from planner.exporters.huggingface_config import config_text
from planner.exporters.kubernetes import documents_of
from planner.exporters.megatron_network import pattern_of, values_of
from planner.exporters.scripts import Parsed
from planner.exporters.torchtitan_network import module_text
from planner.exporters.training_blocks import constants_of
from planner.families.hybrid.launch_network import missing_options, network_lines, not_expressed
from planner.transformer import Transformer
from planner.zoo.transformers import block_of, row

LLAMA: dict[str, Any] = {
    **{"vocab_size": 128256, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 500000.0},
    **{"max_position_embeddings": 131072, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False},
    **{"hidden_act": "silu", "initializer_range": 0.02},
    "rope_scaling": {
        **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "original_max_position_embeddings": 8192,
    },
}
QWEN: dict[str, Any] = {
    **{"vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "head_dim": 128, "rope_scaling": None},
    **{"max_position_embeddings": 40960, "attention_bias": False, "hidden_act": "silu", "initializer_range": 0.02},
    "tie_word_embeddings": False,
}
QWEN_MOE: dict[str, Any] = {
    **{**QWEN, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True, "router_aux_loss_coef": 0.001},
    **{"decoder_sparse_step": 1, "mlp_only_layers": []},
}
CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    "llama3.1-8b": {
        **{**LLAMA, "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32},
        "intermediate_size": 14336,
    },
    "llama3.1-70b": {
        **{**LLAMA, "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64},
        "intermediate_size": 28672,
    },
    "llama3.1-405b": {
        **{**LLAMA, "num_hidden_layers": 126, "hidden_size": 16384, "num_attention_heads": 128},
        "intermediate_size": 53248,
    },
    "qwen3-8b": {
        **{**QWEN, "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8},
        "intermediate_size": 12288,
    },
    "qwen3-32b": {
        **{**QWEN, "num_hidden_layers": 64, "hidden_size": 5120, "num_attention_heads": 64, "num_key_value_heads": 8},
        "intermediate_size": 25600,
    },
    "qwen3-30b-a3b": {
        **{**QWEN_MOE, "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32},
        **{"num_key_value_heads": 4, "intermediate_size": 6144, "moe_intermediate_size": 768},
    },
    "qwen3-235b-a22b": {
        **{**QWEN_MOE, "num_hidden_layers": 94, "hidden_size": 4096, "num_attention_heads": 64},
        **{"num_key_value_heads": 4, "intermediate_size": 12288, "moe_intermediate_size": 1536},
    },
    "deepseek-v3": {
        **{"num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128},
        **{"intermediate_size": 18432, "vocab_size": 129280, "rms_norm_eps": 1e-6, "rope_theta": 10000},
        **{"max_position_embeddings": 163840, "tie_word_embeddings": False, "attention_bias": False},
        **{"hidden_act": "silu", "initializer_range": 0.02},
        **{"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
        **{"v_head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1},
        **{"moe_intermediate_size": 2048, "first_k_dense_replace": 3, "moe_layer_freq": 1, "n_group": 8},
        **{"topk_group": 4, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
        **{"norm_topk_prob": True, "aux_loss_alpha": 0.0001, "seq_aux": True, "bias_update_speed": 0.001},
        "rope_scaling": {
            **{"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
            "original_max_position_embeddings": 4096,
        },
    },
}
Options = Mapping[str, Any]


def _is(option: str, default: Any = None) -> Callable[[Options], Any]:
    return lambda options: options.get(option, default)


def _layers(options: Options) -> tuple[int, ...]:
    file = Parsed(Path("launch.sh"), {"moe-layer-freq": [str(options.get("moe-layer-freq", 1))]}, is_text=True)
    return pattern_of(file, "moe-layer-freq", options["num-layers"])


# Key of a configuration -> what the options say of it, in the configuration's terms.
SAID: Mapping[str, Callable[[Options], Any]] = {
    "num_hidden_layers": _is("num-layers"),
    "hidden_size": _is("hidden-size"),
    "intermediate_size": _is("ffn-hidden-size"),
    "num_attention_heads": _is("num-attention-heads"),
    "num_key_value_heads": lambda one: one.get("num-query-groups", one["num-attention-heads"]),
    "head_dim": lambda one: one.get("kv-channels", one["hidden-size"] // one["num-attention-heads"]),
    "vocab_size": lambda one: one["vocab-size"] + (one["tokenizer-type"] == "NullTokenizer"),
    "max_position_embeddings": _is("max-position-embeddings"),
    "rms_norm_eps": lambda one: one["norm-epsilon"] if one["normalization"] == "RMSNorm" else None,
    "rope_theta": lambda one: one["rotary-base"] if one["position-embedding-type"] == "rope" else None,
    "tie_word_embeddings": lambda one: "untie-embeddings-and-output-weights" not in one,
    "attention_bias": lambda one: "add-qkv-bias" in one or "disable-bias-linear" not in one,
    "mlp_bias": lambda one: "disable-bias-linear" not in one,
    "hidden_act": lambda one: "silu" if "swiglu" in one else "other",
    "initializer_range": _is("init-method-std", 0.02),
    "num_experts": _is("num-experts"),
    "n_routed_experts": _is("num-experts"),
    "num_experts_per_tok": _is("moe-router-topk"),
    "moe_intermediate_size": _is("moe-ffn-hidden-size"),
    "n_shared_experts": lambda one: one["moe-shared-expert-intermediate-size"] // one["moe-ffn-hidden-size"],
    "norm_topk_prob": lambda one: "moe-router-pre-softmax" not in one,
    "router_aux_loss_coef": _is("moe-aux-loss-coeff"),
    "aux_loss_alpha": _is("moe-aux-loss-coeff"),
    "seq_aux": lambda one: one["moe-router-load-balancing-type"] == "seq_aux_loss",
    "decoder_sparse_step": lambda one: 1 if set(_layers(one)) == {1} else None,
    "moe_layer_freq": lambda one: 1 if set(_layers(one)[_layers(one).index(1) :]) == {1} else None,
    "mlp_only_layers": lambda one: [index for index, kind in enumerate(_layers(one)) if not kind],
    "first_k_dense_replace": lambda one: _layers(one).index(1),
    "n_group": _is("moe-router-num-groups"),
    "topk_group": _is("moe-router-group-topk"),
    "routed_scaling_factor": _is("moe-router-topk-scaling-factor"),
    "scoring_func": _is("moe-router-score-function"),
    "topk_method": lambda one: "noaux_tc" if "moe-router-enable-expert-bias" in one else None,
    "bias_update_speed": _is("moe-router-bias-update-rate"),
    "q_lora_rank": _is("q-lora-rank"),
    "kv_lora_rank": _is("kv-lora-rank"),
    "qk_nope_head_dim": _is("qk-head-dim"),
    "qk_rope_head_dim": _is("qk-pos-emb-head-dim"),
    "v_head_dim": _is("v-head-dim"),
}


def scaling_said(options: Options) -> Mapping[str, Any] | None:
    """What options say of scaled rotary positions, with the program's constants, in a configuration's terms."""
    if "use-rope-scaling" in options:  # megatron-core, rotary_pos_embedding.py
        constants = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        return {"rope_type": "llama3", "factor": options["rope-scaling-factor"], **constants}
    if options.get("rope-type") == "yarn":  # megatron-core, MLATransformerConfig
        constants = {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}
        scales = {"mscale": options["mscale"], "mscale_all_dim": options["mscale-all-dim"]}
        return {"type": "yarn", "factor": options["rotary-scaling-factor"], **constants, **scales}
    return None


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_field_of_the_command_is_that_of_the_configuration(name: str) -> None:
    network, stated = row(name).transformer, CONFIGURATIONS[name]
    assert not not_expressed(network)
    assert not missing_options(network)
    options = values_of(" ".join(network_lines(network, "bf16")))
    said = {key: SAID[key](options) for key in stated if key != "rope_scaling"}
    assert said == {key: value for key, value in stated.items() if key != "rope_scaling"}
    assert scaling_said(options) == stated["rope_scaling"]
    assert ("qk-layernorm" in options) == name.startswith(("qwen3", "deepseek"))
    assert options["make-vocab-size-divisible-by"] == 1


# -- the files of other programs, each by its own names ----------------------------------------------------------------


def exported(name: str, target: str) -> Mapping[str, str]:
    """The files of a job of a network, by name."""
    network = row(name).transformer
    degrees: dict[str, Any] = {"tensor": 8, "data": 8, "sequence_parallel": True}
    degrees = degrees if network.experts is None else {"data": 64, "expert": 64}
    return export(target, even_job(block_of(network), **degrees, zero=3, recompute="full")).files


# Field of megatron-core's configuration, as a recipe of Megatron-Bridge has it -> option; others are the same name.
RENAMED = {"layernorm_epsilon": "norm-epsilon", "num_moe_experts": "num-experts"}


def recipe_options(text: str) -> Options:
    """What a recipe's fields say, as options: of the model, and how long positions may be."""
    found = constants_of(Path("recipe.py"), text)
    model = found["MODEL"]
    options = {RENAMED.get(key, key.replace("_", "-")): value for key, value in model.items()}
    options |= {"max-position-embeddings": found["RUN"]["longest"], "tokenizer-type": "its own"}
    options |= {"swiglu": True} if (model["activation_func"], model["gated_linear_unit"]) == ("silu", True) else {}
    options |= {} if model["share_embeddings_and_output_weights"] else {"untie-embeddings-and-output-weights": True}
    options |= {} if model["add_bias_linear"] else {"disable-bias-linear": True}
    options |= {"use-rope-scaling": True} if model.get("rope_scaling") else {}
    listed = model.get("moe_layer_freq")
    return options | ({"moe-layer-freq": str(listed).replace(" ", "")} if isinstance(listed, list) else {})


def primus_options(text: str) -> Options:
    """What the keys of Primus say, as options; what is false is left out."""
    overrides = documents_of(text)[0]["modules"]["pre_trainer"]["overrides"]
    options = {key.replace("_", "-"): value for key, value in overrides.items() if value is not False}
    if overrides["add_bias_linear"] is False:
        options["disable-bias-linear"] = True
    listed = options.get("moe-layer-freq")
    return options | ({"moe-layer-freq": str(listed).replace(" ", "")} if isinstance(listed, list) else {})


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("target", ["megatron-bridge", "primus"])
def test_every_field_of_a_recipe_is_that_of_the_configuration(name: str, target: str) -> None:
    stated, files = CONFIGURATIONS[name], exported(name, target)
    is_recipe = target == "megatron-bridge"
    options = recipe_options(files["recipe.py"]) if is_recipe else primus_options(files["primus.yaml"])
    said = {key: SAID[key](options) for key in stated if key != "rope_scaling"}
    assert said == {key: value for key, value in stated.items() if key != "rope_scaling"}
    assert scaling_said(options) == stated["rope_scaling"]
    if is_recipe and name == "deepseek-v3":  # of which the program's options know nothing
        ends = {"beta-fast": 32, "beta-slow": 1, "original-max-position-embeddings": 4096}
        assert {key: options[key] for key in ends} == ends


# Key of a configuration -> what MaxText's keys say of it, in the configuration's terms; what is not here it has no key
# for: the initial deviation, and over which tokens a loss takes its means.
MAXTEXT: Mapping[str, Callable[[Options], Any]] = {
    "num_hidden_layers": _is("base_num_decoder_layers"),
    "hidden_size": _is("base_emb_dim"),
    "intermediate_size": _is("base_mlp_dim"),
    "num_attention_heads": _is("base_num_query_heads"),
    "num_key_value_heads": _is("base_num_kv_heads"),
    "head_dim": _is("head_dim"),
    "vocab_size": _is("vocab_size"),
    "max_position_embeddings": _is("max_position_embeddings"),
    "rms_norm_eps": _is("normalization_layer_epsilon"),
    "rope_theta": _is("rope_max_timescale"),
    "tie_word_embeddings": _is("logits_via_embedding"),
    "attention_bias": _is("attention_bias"),
    "mlp_bias": _is("mlp_bias", False),
    "hidden_act": lambda one: one["mlp_activations"][0],
    "num_experts": _is("num_experts"),
    "n_routed_experts": _is("num_experts"),
    "num_experts_per_tok": _is("num_experts_per_tok"),
    "moe_intermediate_size": _is("base_moe_mlp_dim"),
    "n_shared_experts": _is("shared_experts"),
    # Sigmoids of DeepSeek's block add up to one whatever it says; another softmax would not be told by it.
    "norm_topk_prob": lambda one: one["routed_score_func"] == "sigmoid" or one["norm_topk_prob"],
    "router_aux_loss_coef": _is("load_balance_loss_weight"),
    "aux_loss_alpha": _is("load_balance_loss_weight"),
    "first_k_dense_replace": _is("first_num_dense_layers"),
    "n_group": _is("n_routing_groups"),
    "topk_group": _is("topk_routing_group"),
    "routed_scaling_factor": _is("routed_scaling_factor"),
    "scoring_func": _is("routed_score_func"),
    "topk_method": lambda one: "noaux_tc" if one["routed_bias"] and one["model_name"].startswith("deepseek3") else None,
    "bias_update_speed": _is("routed_bias_update_rate"),
    "q_lora_rank": _is("q_lora_rank"),
    "kv_lora_rank": _is("kv_lora_rank"),
    "qk_nope_head_dim": _is("qk_nope_head_dim"),
    "qk_rope_head_dim": _is("qk_rope_head_dim"),
    "v_head_dim": _is("v_head_dim"),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_key_of_maxtext_is_that_of_the_configuration(name: str) -> None:
    stated = dict(CONFIGURATIONS[name])
    keys = documents_of(exported(name, "maxtext")["maxtext.yml"])[0]
    if "num_experts" in stated:  # a width that no layer has, and which must be that of the experts there
        stated["intermediate_size"] = stated["moe_intermediate_size"]
    scaling = stated["rope_scaling"]
    wanted = {key: value for key, value in stated.items() if key in MAXTEXT}
    assert {key: MAXTEXT[key](keys) for key in wanted} == wanted
    if name.startswith("llama"):  # by constants of its own, which are the publisher's
        assert (keys["rope_type"], keys["rope_use_scale"]) == ("llama3.1", True)
    elif scaling is None:
        assert keys["rope_type"] == "default"
    else:
        said = {"factor": "rope_factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow", "mscale": "mscale"}
        said |= {"original_max_position_embeddings": "original_max_position_embeddings"}
        assert {key: keys[one] for key, one in said.items()} == {key: scaling[key] for key in said}
    assert keys["use_qk_norm"] == name.startswith("qwen3")


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_config_json_beside_deepspeed_is_that_of_the_publisher(name: str) -> None:
    stated = dict(CONFIGURATIONS[name])
    text = config_text(row(name).transformer, "bf16")
    assert text is not None
    found = json.loads(text)
    scaling = stated.pop("rope_scaling")
    # What the publisher's file says and the library has no use for, or has by itself.
    for key in ("moe_layer_freq", "bias_update_speed"):
        stated.pop(key, None)
    assert {key: found.get(key) for key in stated} == stated
    if scaling is None:
        assert "rope_scaling" not in found
        return
    kind = scaling.get("rope_type", scaling.get("type"))
    assert found["rope_scaling"] == {
        **{key: value for key, value in scaling.items() if key != "type"},
        "rope_type": kind,
    }


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_network_for_torchtitan_has_the_figures_of_the_configuration(name: str) -> None:
    stated, network = CONFIGURATIONS[name], row(name).transformer
    table = constants_of(Path("x.py"), module_text(network, None, head="#", is_compiled=True))["NETWORK"]
    names = {"num_hidden_layers": "n_layers", "hidden_size": "dim", "num_attention_heads": "n_heads"}
    names |= {"num_key_value_heads": "n_kv_heads", "head_dim": "head_dim", "intermediate_size": "hidden_dim"}
    names |= {"vocab_size": "vocab_size", "rms_norm_eps": "eps", "initializer_range": "std"}
    names |= {"tie_word_embeddings": "enable_weight_tying"}
    wanted = {key: stated[key] for key in names if key in stated}
    assert {key: table[names[key]] for key in wanted} == wanted
    rope, scaling = table["rope"], stated["rope_scaling"]
    assert (rope["theta"], rope["max_seq_len"]) == (stated["rope_theta"], stated["max_position_embeddings"])
    assert (
        rope["scaling"]
        == {"llama": "llama", "qwen3": "none", "deepseek": "yarn"}[
            next(one for one in ("llama", "qwen3", "deepseek") if name.startswith(one))
        ]
    )
    if rope["scaling"] == "llama":
        said = {
            "scaling_factor": "factor",
            "low_freq_factor": "low_freq_factor",
            "high_freq_factor": "high_freq_factor",
        }
        said |= {"original_max_position_embeddings": "original_max_position_embeddings"}
        assert {one: rope[one] for one in said} == {one: scaling[key] for one, key in said.items()}
    if "moe_intermediate_size" not in stated:
        return
    moe, is_third = table["moe"], name == "deepseek-v3"
    assert (moe["top_k"], moe["moe_hidden_dim"]) == (stated["num_experts_per_tok"], stated["moe_intermediate_size"])
    assert moe["route_norm"] == stated["norm_topk_prob"]
    if is_third:
        said = {
            "num_experts": "n_routed_experts",
            "num_shared_experts": "n_shared_experts",
            "route_scale": "routed_scaling_factor",
        }
        said |= {
            "n_dense_layers": "first_k_dense_replace",
            "score_func": "scoring_func",
            "num_expert_groups": "n_group",
        }
        said |= {"num_limited_groups": "topk_group", "load_balance_coeff": "bias_update_speed"}
        assert {one: moe[one] for one in said} == {one: stated[key] for one, key in said.items()}
        ranks = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        assert {key: table["mla"][key] for key in ranks} == {key: stated[key] for key in ranks}
        assert (rope["rope_factor"], rope["original_seq_len"]) == (40, 4096)
        assert table["mla"]["mscale"] == scaling["mscale_all_dim"]
    else:
        assert (moe["num_experts"], moe["score_func"]) == (stated["num_experts"], "softmax")


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("target", ["megatron-bridge", "primus", "maxtext"])
def test_the_files_of_other_programs_say_the_same_network(name: str, target: str) -> None:
    network = row(name).transformer
    degrees: dict[str, Any] = {"tensor": 8, "data": 8, "sequence_parallel": True}
    degrees = degrees if network.experts is None else {"data": 64, "expert": 64}
    job = even_job(block_of(network), **degrees, zero=3, recompute="full")
    planned: Transformer | None = job.problem.dnn.transformer
    files = export(target, job).files
    first = next(iter(files))
    found = network_of(Path(first), files[first])
    assert found is not None
    assert planned is not None
    if target == "maxtext" and planned.experts is not None and found.experts is not None:
        # It has one kind of loss, and one scale of YaRN.
        routing = replace(found.experts.routing, auxiliary_loss=planned.experts.routing.auxiliary_loss)
        found = replace(found, experts=replace(found.experts, routing=routing), rotary=planned.rotary)
    assert found == (as_used(planned) if target == "maxtext" else planned)
