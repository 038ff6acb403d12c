"""What DeepSpeed makes of a layout: refused where it cannot run it, changed with a note where it has no word for it."""

from planner.exporters.layouts import Layout
from planner.families.hybrid.configuration import ORDER_NAMES
from planner.transformer import Transformer

__all__ = ["as_run"]


def as_run(layout: Layout) -> Layout:
    """Return a layout as DeepSpeed 0.19.8 runs it.

    Raises
    ------
    InfeasibleError
        For degrees that it does not take together.
    """
    if layout.network is None:
        return _schedule(layout)
    _refuse_together(layout, layout.network)
    return _noted(_exchange(_schedule(layout)).with_whole_layers(), layout.network)


def _refuse_together(layout: Layout, network: Transformer) -> None:
    """Refuse degrees that do not go together."""
    chosen = layout.chosen
    has_experts = network.experts is not None
    if chosen.context > 1 and (chosen.tensor > 1 or chosen.pipeline > 1):
        mend = "Pin fix.context_parallel_size: 1; or export to megatron or torchtitan."
        raise layout.refused("it splits a sequence (Ulysses) beside data parallelism only", mend)
    if chosen.context > 1 and network.num_heads % chosen.context:
        mend = (
            f"Pin fix.context_parallel_size to a divisor of {network.num_heads}; or export to megatron or torchtitan."
        )
        raise layout.refused(f"{network.num_heads} heads do not divide by {chosen.context} ranks of a sequence", mend)
    if has_experts and chosen.tensor > 1 and chosen.expert == 1 and chosen.pipeline == 1:
        mend = "Pin fix.tensor_parallel_size: 1, or an fix.expert_parallel_size of 2 or more."
        raise layout.refused("it splits a network with experts over a tensor degree only if experts are spread", mend)
    if chosen.expert > 1 and chosen.tensor > 1 and chosen.offload_optimizer and chosen.pipeline == 1:
        mend = "Pin fix.tensor_parallel_size: 1; or export to megatron."
        raise layout.refused("it spreads experts over a tensor degree with the optimiser on devices only", mend)


def _schedule(layout: Layout) -> Layout:
    """Return the layout with the one schedule that a PipelineModule has."""
    chosen = layout.chosen
    if chosen.pipeline == 1:
        return layout
    if chosen.interleave > 1:
        layout = layout.instead("its pipeline has no chunks: one stage on a device", interleave=1)
    if chosen.schedule != "1f1b":
        layout = layout.instead(f"its pipeline runs 1F1B, not {chosen.schedule}", schedule="1f1b")
    return layout


def _exchange(layout: Layout) -> Layout:
    """Return the layout with the exchange that it has within and between replicas."""
    chosen = layout.chosen
    # The layers of a pipeline are the user's own, and may split the sequence as Megatron-DeepSpeed's do.
    if chosen.sequence_parallel and chosen.tensor > 1 and chosen.pipeline == 1:
        why = "its tensor parallelism does not split the sequence, and overlaps nothing by that"
        if layout.network is not None and layout.network.experts is not None:
            layout = layout.noted(f"{why}: norms are computed, and activations kept, on every rank of a tensor group")
        else:
            layout = layout.instead(why, sequence_parallel=False, overlap_tensor=False)
    if chosen.offload_optimizer and chosen.zero == 0:
        layout = layout.instead("it keeps an optimiser on the host from ZeRO 1 on", zero=1)
    if chosen.overlap_data and chosen.pipeline > 1:
        layout = layout.instead("its pipeline exchanges gradients behind the last micro-batch", overlap_data=False)
    elif chosen.overlap_data and layout.chosen.zero == 0 and layout.is_hybrid:
        layout = layout.instead("without ZeRO it exchanges gradients behind the backward pass", overlap_data=False)
    if chosen.order != ORDER_NAMES[0] and layout.is_hybrid:
        why = f"ranks are always numbered {ORDER_NAMES[0]}, from the inside outwards"
        layout = layout.instead(why, order=ORDER_NAMES[0])
    return layout


def _noted(layout: Layout, network: Transformer) -> Layout:
    """Return the layout with what is left to the program that trains."""
    chosen, notes = layout.chosen, []
    if chosen.pipeline > 1:
        notes.append("give the network as a list of layers to PlannedPipeline of planned_pipeline.py")
        if chosen.expert > 1:
            notes.append(f"give its blocks experts by deepspeed.moe.layer.MoE(..., ep_size={chosen.expert})")
        if chosen.tensor > 1:
            notes.append(
                "AutoTP does not go with a pipeline: layers must split their own matrices, by the tensor group of "
                "PlannedPipeline's topology (mpu), as those of Megatron-DeepSpeed do"
            )
    elif chosen.tensor > 1:
        notes.append(
            f"tensor parallelism is AutoTP's: a model of Hugging Face's, split by autotp_size {chosen.tensor} when "
            f"deepspeed.initialize is called"
        )
        if chosen.tensor > network.num_kv_heads:
            notes.append(
                f"AutoTP does not copy the {network.num_kv_heads} heads of keys and values: the ranks beyond them have "
                f"no attention to compute, so that attention is slower than planned"
            )
    if chosen.context > 1:
        notes.append(
            f"the sequence is split by Ulysses, which exchanges heads (all-to-all), where the plan counts the passing "
            f"of keys and values; call UlyssesSPAttentionHF.register_with_transformers(..., sequence_parallel_size="
            f"{chosen.context}) and give its mpu to deepspeed.initialize"
        )
    if chosen.expert > 1 and chosen.tensor > 1 and chosen.pipeline == 1:
        notes.append("experts are spread and never cut by the tensor degree, by which the plan cuts them")
    if chosen.recompute == "full" and chosen.pipeline == 1:
        notes.append("call model.gradient_checkpointing_enable(), or deepspeed.checkpointing.checkpoint on every block")
    if chosen.offload_optimizer:
        notes.append("give deepspeed.ops.adam.DeepSpeedCPUAdam as the optimiser")
    if (program := layout.job.problem.calibration.program) and layout.is_hybrid:
        notes.append(f"seconds and memory were predicted for {program}")
    return layout.noted(*notes)
