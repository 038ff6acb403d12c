"""Keys that are written for Primus and MaxText, against the files in which these define them.

Primus is in no package registry, so that no test can ask its own reader. It takes what its configurations define, and
of the rest what Megatron-LM's parser has by the same name, in silence nothing else (``primus/backends/megatron/argument_builder.py``, ``MegatronArgBuilder.update``, at commit 6390927); MaxText refuses
what its ``base.yml`` has not.
"""

from collections.abc import Mapping
from typing import Any

import pytest
from hybrid_questions import MOE, TINY
from hypothesis import HealthCheck, given, settings
from layout_jobs import drawn_jobs, even_job
from modern_blocks import DEEPSEEK, LLAMA, QWEN

from planner.errors import InfeasibleError
from planner.exporters import export, maxtext, megatron, primus
from planner.exporters.export import Job
from planner.exporters.kubernetes import documents_of
from planner.zoo.transformers import block_of, row

# github.com/AMD-AGI/Primus, primus/configs: models/megatron/{language_model,mamba_base}.yaml at 0158a86 and 570bec0,
# modules/megatron/{trainer_base,primus_turbo,zero_bubble}.yaml at 05b350b, 0232423 and 4795c54.
_PRIMUS = """
    account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split accumulate_allreduce_grads_in_fp32
    add_bias_linear add_qkv_bias apply_layernorm_1p attention_backend attention_dropout bf16 ckpt_format
    context_parallel_size cp_comm_type cross_entropy_loss_fusion cuda_graph_scope data_parallel_sharding_strategy
    ddp_bucket_size decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers enable_primus_turbo
    enable_zero_bubble eval_iters exp_avg_dtype exp_avg_sq_dtype expert_model_parallel_size
    expert_tensor_parallel_size ffn_hidden_size first_last_layers_bf16 fp16 fp4 fp4_recipe fp8 fp8_param_gather
    fp8_recipe global_batch_size grad_reduce_in_bf16 gradient_accumulation_fusion group_query_attention
    hidden_dropout hidden_size hierarchical_context_parallel_sizes hybrid_override_pattern init_method_std
    is_hybrid_model kv_channels kv_lora_rank log_interval lr make_vocab_size_divisible_by max_position_embeddings
    micro_batch_size mock_data model_type moe_aux_loss_coeff moe_ffn_hidden_size moe_grouped_gemm moe_layer_freq
    moe_router_bias_update_rate moe_router_dtype moe_router_enable_expert_bias moe_router_group_topk
    moe_router_load_balancing_type moe_router_num_groups moe_router_pre_softmax moe_router_score_function
    moe_router_topk moe_router_topk_scaling_factor moe_shared_expert_intermediate_size moe_token_dispatcher_type
    moe_z_loss_coeff mscale mscale_all_dim mtp_loss_scaling_factor mtp_num_layers multi_latent_attention
    norm_epsilon normalization num_attention_heads num_distributed_optimizer_instances num_experts num_layers
    num_layers_at_end_in_bf16 num_layers_at_start_in_bf16 num_layers_per_virtual_pipeline_stage num_query_groups
    optimizer optimizer_cpu_offload optimizer_offload_fraction overlap_grad_reduce
    overlap_moe_expert_parallel_comm overlap_param_gather patch_zero_bubble pipeline_model_parallel_layout
    pipeline_model_parallel_size position_embedding_type q_lora_rank qk_head_dim qk_l2_norm qk_layernorm
    qk_pos_emb_head_dim quick_geglu recompute_granularity recompute_method recompute_num_layers
    rope_scaling_factor rope_type rotary_base rotary_interleaved rotary_percent rotary_scaling_factor
    rotary_seq_len_interpolation_factor seq_length sequence_parallel sgd_momentum spec split squared_relu swiglu
    te_rng_tracker tensor_model_parallel_size tokenizer_type tp_comm_overlap train_iters
    untie_embeddings_and_output_weights use_distributed_optimizer use_megatron_fsdp use_precision_aware_optimizer
    use_rope_scaling use_tp_pp_dp_mapping use_turbo_deepep v_head_dim vocab_size zero_bubble_max_pending_backward
    zero_bubble_v_schedule zero_bubble_v_schedule_mem_setup
"""
PRIMUS = frozenset(_PRIMUS.split())
# Of Megatron-LM's parser alone (megatron/training/arguments.py at 000c4ac), by the same name.
_OF_MEGATRON = """
    activation_func_clamp_value attention_output_gate cpu_offloading_num_layers cuda_graph_impl
    experimental_attention_variant fine_grained_activation_offloading glu_linear_offset linear_attention_freq
    linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim
    mamba_head_dim mamba_num_groups mamba_num_heads mamba_state_dim moe_apply_probs_on_input
    moe_flex_dispatcher_backend moe_latent_size moe_shared_expert_gate no_rope_freq offload_modules
    recompute_modules reuse_grad_buf_for_mxfp8_param_ag sharp_enabled_group softmax_type use_sharp
    window_attn_skip_freq window_size
"""
OF_MEGATRON = frozenset(_OF_MEGATRON.split())
# github.com/AI-Hypercomputer/maxtext, src/MaxText/configs/base.yml at 003b416; base_config names that file itself.
# Of the last line, what release 0.2.5 has for Qwix.
_AXES = ("data", "fsdp", "context", "tensor", "tensor_sequence", "pipeline", "expert")
_MAXTEXT = """
    base_config run_name model_name override_model_config normalization_layer_epsilon enable_checkpointing
    base_output_directory enable_tensorboard grad_dtype dtype quantization matmul_precision decoder_block
    weight_dtype global_parameter_scale base_emb_dim base_num_query_heads base_num_kv_heads base_mlp_dim
    base_num_decoder_layers head_dim mlp_activations mlp_activations_limit dropout_rate logits_via_embedding
    normalize_embedding_logits logits_dot_in_fp32 cast_logits_to_fp32 float32_qk_product float32_logits
    float32_weight_sum mtp_num_layers mtp_loss_scaling_factor num_experts num_experts_per_tok megablox
    sparse_matmul capacity_factor base_moe_mlp_dim load_balance_loss_weight norm_topk_prob
    first_num_dense_layers shared_experts routed_scaling_factor routed_score_func routed_bias
    routed_bias_update_rate mlp_bias n_routing_groups topk_routing_group inhomogeneous_layer_cycle_interval
    num_layers_per_pipeline_stage num_pipeline_repeats pipeline_parallel_layers num_pipeline_microbatches
    pipeline_delay_activation_forwarding pipeline_fsdp_ag_once scan_pipeline_iterations scan_layers_per_stage
    remat_policy optimizer_memory_host_offload parameter_memory_host_offload scan_layers attention
    attention_type attention_bias attention_sink sliding_window_size chunk_attn_window_size
    attn_logits_soft_cap final_logits_soft_cap use_post_attn_norm use_post_ffw_norm q_lora_rank kv_lora_rank
    qk_nope_head_dim qk_rope_head_dim v_head_dim fused_qkv fused_mlp hardware shard_optimizer_over_data
    num_slices vocab_size tokenizer_path tokenizer_type per_device_batch_size packing max_segments_per_seq
    dataset_type steps learning_rate lr_schedule_type warmup_steps_fraction max_target_length enable_dropout
    gradient_clipping_threshold gradient_accumulation_steps opt_type adam_b1 adam_b2 adam_eps
    adam_weight_decay mu_dtype muon_beta muon_weight_decay trainable_position_size rope_type
    rope_linear_scaling_factor rope_use_scale rope_min_timescale rope_max_timescale local_rope_max_timescale
    max_position_embeddings original_max_position_embeddings rope_factor beta_fast beta_slow mscale
    rope_interleave rope_truncate rope_attention_scaling context_parallel_load_balance
    context_parallel_strategy use_qk_norm nope_layer_interval interleave_moe_layer_step temperature_tuning
    partial_rotary_factor
    use_qwix_quantization quantize_router_proj quantize_mtp
"""
MAXTEXT = frozenset({*_MAXTEXT.split(), *(f"{where}_{axis}_parallelism" for where in ("ici", "dcn") for axis in _AXES)})
NETWORKS = ("llama3.1-8b", "qwen2.5-7b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-20b", "nemotron-h-8b", "mixtral-8x7b")
HIDDEN: Mapping[str, Any] = {"suppress_health_check": [HealthCheck.filter_too_much, HealthCheck.too_slow]}


def unknown_keys(target: str, job: Job) -> set[str]:
    """The keys of a target's file that its own files do not define."""
    name = {"primus": "primus.yaml", "maxtext": "maxtext.yml"}[target]
    try:
        document = documents_of(export(target, job).files[name])[0]
    except InfeasibleError:  # of a layout that it has not
        return set()
    if target == "primus":
        return set(document["modules"]["pre_trainer"]["overrides"]) - PRIMUS - OF_MEGATRON
    return set(document) - MAXTEXT


@pytest.mark.parametrize("target", ["primus", "maxtext"])
@settings(max_examples=25, deadline=None, **HIDDEN)
@given(job=drawn_jobs((TINY, MOE, LLAMA, QWEN, DEEPSEEK)))
def test_every_key_of_a_drawn_layout_is_defined(target: str, job: Job) -> None:
    assert not unknown_keys(target, job)


@pytest.mark.parametrize("target", ["primus", "maxtext"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_key_of_a_published_network_is_defined(target: str, name: str) -> None:
    assert not unknown_keys(target, even_job(block_of(row(name).transformer), data=8, zero=1))


@pytest.mark.parametrize("schedule", primus._SCHEDULES)
def test_every_key_of_a_zero_bubble_schedule_is_defined(schedule: str) -> None:
    chunks = 1 if schedule in ("zb_h1", "zb_h2") else 2
    job = even_job(pipeline=2, data=2, interleave=chunks, schedule=schedule, num_microbatches=8)
    assert "patch_zero_bubble: true" in export("primus", job).files["primus.yaml"]
    assert not unknown_keys("primus", job)


def test_all_that_could_be_written_is_defined() -> None:
    words = {option.replace("-", "_") for option in megatron.KNOWN - {*primus._KEYS, *primus._OPPOSITES}}
    words -= {one for one in words if "yarn" in one} | {"hybrid_layer_pattern"}  # Megatron-LM's alone, and younger
    written = words | {*primus._KEYS.values(), *primus._OPPOSITES.values(), *primus._BASE, *primus._OWN}
    assert not written - PRIMUS - OF_MEGATRON
    assert not PRIMUS & OF_MEGATRON
    assert {"float32_gate_logits", "z_loss_multiplier", "trainable_parameters_mask"} == maxtext.KNOWN - MAXTEXT  # read
