"""Megatron-Bridge's own classes take every field of a recipe, and megatron-core's checks pass on its model.

Its package asks for libraries of CUDA when it is imported, of which a mock stands in: nothing of them is called.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from absent_modules import standing_in
from heavy_plans import LARGE, plan_of
from hybrid_questions import TINY
from layout_jobs import even_job, hybrid_of, job_of, uneven_job

torch = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
pytest.importorskip("megatron.core", reason="megatron-core is not installed; run make test-heavy")
pytest.importorskip("transformers", reason="transformers is not installed; run make test-heavy")

import planner  # noqa: E402  # behind the skips
from planner.exporters import export  # noqa: E402
from planner.exporters.export import Job  # noqa: E402
from planner.families.hybrid.configuration import HybridConfiguration  # noqa: E402
from planner.models.programs import token_backend  # noqa: E402
from planner.zoo.transformers import block_of, row  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # those of libraries that are imported
_ABSENT = (
    *("transformer_engine", "transformer_engine_torch", "omegaconf", "hydra", "nvidia_resiliency_ext", "wandb"),
    *("mamba_ssm", "modelopt", "qwen_vl_utils", "causal_conv1d", "fla", "open_clip", "mlflow", "nvtx"),
)
_MODERN: Mapping[str, Any] = {**TINY, "positions": "rotary", "norm": "rms_norm", "biases": False, "gated": True}
_YARN = {"kind": "yarn", "factor": 32, "original_length": 4096, "beta_fast": 1}
_RANKS = {"query_rank": 128, "key_value_rank": 128, "rope_size": 64, "nope_size": 64, "value_size": 64}
LATENT = {**_MODERN, "latent_attention": _RANKS, "rotary": {"scaling": {**_YARN, "scale": 1, "scale_all": 1}}}
LONG = {**_MODERN, "rotary": {"base": 150000, "scaling": _YARN}}

HYBRID = {
    **{**_MODERN, "gated": False, "positions": "none", "layers": 6, "pattern": "M-M*-M", "kv_heads": 4},
    "mamba": {"heads": 16, "head_size": 64, "state": 128, "groups": 8},
    "numerics": {"activation": "relu_squared"},
}
WINDOWS = {**_MODERN, "window": 256, "mixers": ["window", "attention"], "sinks": True}


@pytest.fixture(scope="module", autouse=True)
def _packages() -> Iterator[None]:
    with standing_in(_ABSENT, version="2.10.0"):
        pytest.importorskip("megatron.bridge", reason="megatron-bridge is not installed; run make test-heavy")
        yield


def configured(job: Job) -> Any:
    """The configuration that a recipe makes, with all that its parts fill in and check."""
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(export("megatron-bridge", job).files["recipe.py"], "recipe.py", "exec"), names)
    found = names["config"]()
    for part in (found.model, found.ddp, found.optimizer):
        part.finalize()
    return found


@pytest.mark.parametrize("name", [name for name in LARGE if name != "gpt3-175b"])
def test_its_classes_take_the_recipe_of_a_plan(name: str) -> None:
    job = plan_of(name)
    chosen, network = hybrid_of(job), job.problem.dnn.transformer
    assert network is not None
    found = configured(job)
    model, experts = found.model, network.experts
    assert (model.tensor_model_parallel_size, model.pipeline_model_parallel_size) == (chosen.tensor, chosen.pipeline)
    assert (model.context_parallel_size, model.expert_model_parallel_size) == (chosen.context, chosen.expert)
    assert (model.virtual_pipeline_model_parallel_size or 1) == chosen.interleave
    assert (model.num_layers, model.hidden_size, model.vocab_size) == (
        network.num_layers,
        network.hidden_size,
        network.vocabulary_size,
    )
    assert (model.num_moe_experts or 0) == (experts.num_experts if experts else 0)
    assert model.layernorm_epsilon == network.numerics.norm_epsilon
    assert model.gated_linear_unit == network.is_gated
    assert found.train.global_batch_size == chosen.global_batch_size
    assert found.train.micro_batch_size == chosen.microbatch
    assert found.mixed_precision.bf16


# As the publishers' config.json state them, by the fields of megatron-core.
PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "llama3.1-8b": {
        **{"rotary_base": 500000, "rope_scaling": True, "rope_scaling_factor": 8, "layernorm_epsilon": 1e-5},
        **{"num_query_groups": 8, "kv_channels": 128, "ffn_hidden_size": 14336, "vocab_size": 128256},
        **{"share_embeddings_and_output_weights": False, "add_bias_linear": False, "normalization": "RMSNorm"},
    },
    "qwen3-30b-a3b": {
        **{"rotary_base": 1000000, "rope_scaling": False, "layernorm_epsilon": 1e-6, "qk_layernorm": True},
        **{"num_query_groups": 4, "kv_channels": 128, "num_moe_experts": 128, "moe_router_topk": 8},
        **{"moe_ffn_hidden_size": 768, "moe_router_pre_softmax": False, "moe_router_score_function": "softmax"},
        **{"moe_aux_loss_coeff": 0.001, "vocab_size": 151936},
    },
    "deepseek-v3": {
        **{"rotary_base": 10000, "rope_type": "yarn", "rotary_scaling_factor": 40, "mscale": 1, "mscale_all_dim": 1},
        **{"original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1, "layernorm_epsilon": 1e-6},
        **{"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128},
        **{"num_moe_experts": 256, "moe_router_topk": 8, "moe_router_num_groups": 8, "moe_router_group_topk": 4},
        **{"moe_router_topk_scaling_factor": 2.5, "moe_router_score_function": "sigmoid"},
        **{"moe_router_enable_expert_bias": True, "moe_router_bias_update_rate": 0.001},
        **{"moe_layer_freq": [0] * 3 + [1] * 58, "moe_shared_expert_intermediate_size": 2048, "vocab_size": 129280},
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_megatron_core_has_every_figure_as_the_publisher_states_it(name: str) -> None:
    network = row(name).transformer
    degrees: dict[str, Any] = {"expert": 64} if network.experts is not None else {}
    model = configured(even_job(block_of(network), data=64, zero=1, **degrees)).model
    assert {field: getattr(model, field) for field in PUBLISHED[name]} == PUBLISHED[name]


@pytest.mark.parametrize(
    ("job", "field", "value"),
    [
        (lambda: even_job(LATENT, data=2, zero=1), "beta_fast", 1),
        (lambda: even_job(LATENT, data=2, zero=1), "rotary_scaling_factor", 32),
        (lambda: even_job(LONG, data=2, zero=3, recompute="full"), "yarn_beta_fast", 1),
        (lambda: even_job(LONG, data=2, zero=3, recompute="full"), "recompute_granularity", "full"),
        (lambda: even_job(HYBRID, data=2), "hybrid_override_pattern", "M-M*-M"),
        (lambda: even_job(HYBRID, data=2), "mamba_num_heads", 16),
        (lambda: even_job(WINDOWS, data=2), "window_size", (255, 0)),
        (lambda: even_job(WINDOWS, data=2), "window_attn_skip_freq", [1, 0, 1, 0]),
        (lambda: even_job(WINDOWS, data=2), "softmax_type", "learnable"),
        (lambda: uneven_job((1, 3, 2), data=2), "num_layers", 6),
    ],
)
def test_a_field_that_megatron_lm_has_no_option_for_reaches_the_model(job: Any, field: str, value: Any) -> None:
    assert getattr(configured(job()).model, field) == value


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (
            "gemma2-2b",
            {
                **{"window_size": (4095, 0), "attn_logit_softcapping": 50, "final_logit_softcapping": 30},
                **{"query_pre_attn_scalar": 256, "layernorm_zero_centered_gamma": True, "vocab_size": 256000},
            },
        ),
        (
            "gemma3-27b",
            {
                **{"window_size": 1023, "interleaved_attn_pattern": (5, 1), "rotary_base": (10000, 1000000)},
                **{"rope_scaling_factor": 8, "softmax_scale": 168**-0.5, "rope_scaling": False, "kv_channels": 128},
                **{"seq_len_interpolation_factor": None, "is_vision_language": False},
            },
        ),
        (
            "llama4-scout",
            {
                **{"attention_chunk_size": 8192, "nope_layer_interval": 4, "qk_l2_norm": True, "rope_scaling": True},
                **{"rope_scaling_factor": 16, "num_moe_experts": 16, "moe_router_topk": 1, "no_rope_freq": None},
                **{"moe_apply_probs_on_input": True, "moe_router_score_function": "sigmoid", "window_size": None},
            },
        ),
        ("llama4-maverick", {"moe_layer_freq": [0, 1] * 24, "qk_l2_norm": False, "rope_scaling": False}),
    ],
)
def test_models_of_its_own_have_every_figure(name: str, fields: Mapping[str, Any]) -> None:
    network = row(name).transformer
    degrees: dict[str, Any] = {"data": 32, "expert": 16} if network.experts is not None else {"tensor": 4, "data": 16}
    model = configured(even_job(block_of(network), zero=3, recompute="full", **degrees)).model
    assert {field: getattr(model, field) for field in fields} == fields
    assert (model.num_layers, model.hidden_size) == (network.num_layers, network.hidden_size)
    assert model.ffn_hidden_size == network.feed_forward_size


def validated(recipe: str, device: str, major: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The whole configuration of a recipe, as the program checks it on all of its devices."""
    config: Any = import_module("megatron.bridge.training.config")

    names: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(recipe, "recipe.py", "exec"), names)
    properties = SimpleNamespace(name=f"NVIDIA {device}", major=major)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
    monkeypatch.setattr(config, "get_world_size_safe", lambda: names["NUM_DEVICES"])
    found = names["config"]()
    found.validate()
    return found


_ROUTED = {**_MODERN, "experts": {"count": 8, "top_k": 2, "size": 512}, "layers": 8}


@pytest.mark.parametrize(
    ("block", "dnn", "device", "major", "decisions"),
    [
        (_ROUTED, {"dtype": "mxfp8"}, "gb300", 10, {"expert": 4, "data": 8, "zero": 1, "overlap_data": True}),
        (_ROUTED, {"dtype": "bf16"}, "h100-sxm", 9, {"expert": 4, "data": 8, "zero": 1}),
        (_ROUTED, {"dtype": "fp8"}, "h100-sxm", 9, {"expert": 4, "data": 4, "zero": 1, "pipeline": 2}),
        (_MODERN, {"dtype": "fp8"}, "h100-sxm", 9, {"data": 8, "zero": 0}),
        (_MODERN, {"dtype": "nvfp4"}, "gb300", 10, {"data": 8, "zero": 1}),
        (_MODERN, {"dtype": "bf16", "fine_tuning": "lora"}, "h100-sxm", 9, {"data": 4, "tensor": 2, "zero": 1}),
        (WINDOWS, {"dtype": "bf16"}, "h100-sxm", 9, {"data": 8, "zero": 1}),
    ],
    ids=["mxfp8-experts", "experts", "fp8-pipeline", "fp8-zero-0", "nvfp4", "lora", "sinks"],
)
def test_the_whole_configuration_passes_its_own_checks_on_the_planned_devices(
    block: Mapping[str, Any],
    dnn: Mapping[str, Any],
    device: str,
    major: int,
    decisions: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machines = [{"count": 2, "device": device, "devices": 4, "network": "400 Gbit/s", "latency": "5 us"}]
    asked = {"transformer": block, "global_batch": 16, "optimizer": "adam", **dnn}
    problem = planner.load({"dnn": asked, "cluster": {"machines": machines}, "families": ["hybrid"]})
    job = job_of(problem, "hybrid", HybridConfiguration(global_batch_size=16, **decisions))
    found = validated(
        export("megatron-bridge", job).files["recipe.py"], device.upper().split("-")[0], major, monkeypatch
    )
    assert found.data_parallel_size == decisions["data"]
    if "expert" in decisions:
        assert found.model.moe_flex_dispatcher_backend == token_backend(device)
    if "fine_tuning" in dnn:
        assert found.peft.dim == 16
    if block is WINDOWS:  # FlashAttention has no sinks
        assert getattr(found.model.attention_backend, "name", "auto") == "auto"


def test_a_field_that_it_has_not_is_refused_by_its_classes() -> None:
    text = export("megatron-bridge", even_job(data=2)).files["recipe.py"]
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(text.replace('"hidden_size"', '"hiden_size"'), "recipe.py", "exec"), names)
    with pytest.raises(TypeError, match="hiden_size"):
        names["config"]()
