"""Megatron-Bridge's own classes take every field of a recipe, and megatron-core's checks pass on its model.

Its package asks for libraries of CUDA when it is imported, of which a mock stands in: nothing of them is called.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from absent_modules import standing_in
from heavy_plans import LARGE, plan_of
from hybrid_questions import TINY
from layout_jobs import even_job, hybrid_of, uneven_job

torch = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
pytest.importorskip("megatron.core", reason="megatron-core is not installed; run make test-heavy")
pytest.importorskip("transformers", reason="transformers is not installed; run make test-heavy")

from planner.exporters import export  # noqa: E402  # behind the skips
from planner.exporters.export import Job  # noqa: E402

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


def test_a_field_that_it_has_not_is_refused_by_its_classes() -> None:
    text = export("megatron-bridge", even_job(data=2)).files["recipe.py"]
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(text.replace('"hidden_size"', '"hiden_size"'), "recipe.py", "exec"), names)
    with pytest.raises(TypeError, match="hiden_size"):
        names["config"]()
