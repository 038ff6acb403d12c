"""What launches a layout: the options of Megatron-LM's training script, in the words of its command line.

Source: Megatron-Core developer guide, "Parallelism Strategies Guide" and ``megatron/training/arguments.py`` (0.14 to
0.18). What that program cannot do is said in words.
"""

from collections.abc import Iterator

from planner.families.hybrid_configuration import ORDER_NAMES, HybridConfiguration
from planner.transformer import Transformer

__all__ = ["launch_words", "options"]

_RECOMPUTE = {
    "none": (),
    "selective": ("--recompute-granularity selective",),
    "full": ("--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"),
}
_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}


def options(transformer: Transformer, chosen: HybridConfiguration) -> tuple[str, ...]:
    """Return the options that carry the decisions."""
    return (
        f"--tensor-model-parallel-size {chosen.tensor}",
        f"--pipeline-model-parallel-size {chosen.pipeline}",
        *_if(chosen.context > 1, f"--context-parallel-size {chosen.context}"),
        *_if(chosen.expert > 1, f"--expert-model-parallel-size {chosen.expert} --moe-token-dispatcher-type alltoall"),
        # Experts are split by the tensor degree, too, as all that is counted here.
        *_if(transformer.experts is not None and chosen.tensor > 1, f"--expert-tensor-parallel-size {chosen.tensor}"),
        *_pipeline(transformer, chosen),
        f"--micro-batch-size {chosen.microbatch}",
        f"--global-batch-size {chosen.global_batch_size}",
        *_if(chosen.sequence_parallel, "--sequence-parallel"),
        *_sharding(chosen),
        *_RECOMPUTE[chosen.recompute],
        *_if(chosen.overlap_data, "--overlap-grad-reduce"),
        *_if(chosen.overlap_data and chosen.zero > 0, "--overlap-param-gather"),
        *_if(chosen.overlap_tensor, "--tp-comm-overlap"),
        *_if(chosen.offload_optimizer, "--optimizer-cpu-offload"),
        *_if(chosen.order == ORDER_NAMES[1], "--use-tp-pp-dp-mapping"),
    )


def _if(is_so: bool, option: str) -> tuple[str, ...]:
    """Return an option, or none."""
    return (option,) if is_so else ()


def _pipeline(transformer: Transformer, chosen: HybridConfiguration) -> Iterator[str]:
    """Yield how layers are dealt out to stages and chunks."""
    chunks, layers = chosen.pipeline * chosen.interleave, transformer.num_layers
    has_ends = layers % chunks != 0
    if chosen.interleave > 1:
        yield f"--num-layers-per-virtual-pipeline-stage {(layers + 2 * has_ends) // chunks}"
    if has_ends:
        yield "--account-for-embedding-in-pipeline-split"
        yield "--account-for-loss-in-pipeline-split"


def _sharding(chosen: HybridConfiguration) -> Iterator[str]:
    """Yield how state, gradients and weights are shared out."""
    if chosen.zero == 1 or chosen.offload_optimizer:  # which asks for both of these
        yield "--use-distributed-optimizer"
        yield from _if(chosen.offload_optimizer, "--use-precision-aware-optimizer")
    elif chosen.zero:
        yield "--use-megatron-fsdp"
        yield f"--data-parallel-sharding-strategy {_SHARDING[chosen.zero]}"
        yield "--ckpt-format fsdp_dtensor"


def launch_words(transformer: Transformer, chosen: HybridConfiguration) -> list[str]:
    """Return lines that say how to launch a layout, and what must be done by hand."""
    lines = [
        f"to launch on {chosen.num_devices} devices with Megatron-LM, beside the network's own options: "
        f"{' '.join(options(transformer, chosen))}"
    ]
    if chosen.schedule == "zero_bubble":
        lines.append("Megatron-LM has no zero-bubble schedule; torch.distributed.pipelining has one")
    if chosen.schedule == "gpipe" and chosen.pipeline > 1:
        lines.append("Megatron-LM has no GPipe schedule; torch.distributed.pipelining has one")
    if chosen.order not in ORDER_NAMES[:2]:
        lines.append(
            f"ranks are numbered {chosen.order}, from the inside outwards: give that order to "
            f"parallel_state.initialize_model_parallel"
        )
    return lines
