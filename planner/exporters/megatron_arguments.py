"""Options of Megatron-LM's ``pretrain_gpt.py`` that its exporter may write, so that a misspelt one is found here.

Source: ``megatron/training/arguments.py`` of github.com/NVIDIA/Megatron-LM at commit
000c4ac24f61159c138b0975def722c65245983c (between core 0.14 and 0.16); those of a layout were read again for this list
in ``_add_distributed_args``, ``_add_mixed_precision_args`` and ``_add_network_size_args``. The names that are fields of
``TransformerConfig`` too are held against the installed megatron-core by a test.
"""

__all__ = ["KNOWN"]

_KNOWN = """
    accumulate-allreduce-grads-in-fp32 account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split
    add-qkv-bias attention-backend attention-dropout bf16 ckpt-format context-parallel-size
    cross-entropy-loss-fusion data-parallel-sharding-strategy ddp-bucket-size disable-bias-linear eval-iters
    expert-model-parallel-size expert-tensor-parallel-size ffn-hidden-size fp16 global-batch-size
    group-query-attention hidden-dropout hidden-size kv-channels kv-lora-rank log-interval lr
    max-position-embeddings micro-batch-size mock-data moe-aux-loss-coeff moe-ffn-hidden-size moe-grouped-gemm
    moe-layer-freq moe-router-enable-expert-bias moe-router-load-balancing-type moe-router-score-function
    moe-router-topk moe-shared-expert-intermediate-size moe-token-dispatcher-type
    multi-latent-attention no-gradient-accumulation-fusion normalization num-attention-heads num-experts num-layers
    num-layers-per-virtual-pipeline-stage num-query-groups optimizer optimizer-cpu-offload overlap-grad-reduce
    overlap-param-gather pipeline-model-parallel-layout pipeline-model-parallel-size position-embedding-type
    q-lora-rank qk-head-dim qk-layernorm qk-pos-emb-head-dim recompute-granularity recompute-method
    recompute-num-layers seq-length sequence-parallel split swiglu tensor-model-parallel-size tokenizer-type
    tp-comm-overlap train-iters untie-embeddings-and-output-weights use-distributed-optimizer use-megatron-fsdp
    use-precision-aware-optimizer use-tp-pp-dp-mapping v-head-dim vocab-size
"""
KNOWN = frozenset(_KNOWN.split())
