"""The keys that DeepSpeed's configuration takes at its top level: an unknown one it passes over in silence.

Source: what ``deepspeed/runtime/config.py`` of DeepSpeed 0.19.8 and the readers that it calls ask for, less what it has
removed and refuses; a test with that version installed records them again. The batch, in three numbers, is checked here
as ``DeepSpeedConfig._batch_assertion`` does.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError

__all__ = ["KNOWN", "REMOVED", "check_keys"]

_KNOWN = """
    activation_checkpointing aio autotuning bf16 bfloat16 checkpoint comet comms_logger communication_data_type
    compile csv_monitor data_efficiency data_types dataloader_drop_last datastates_ckpt disable_allgather
    disable_python_gc dump_state expert_parallel flops_profiler fp16 gradient_accumulation_steps
    gradient_allreduce_op gradient_clipping gradient_predivide_factor hybrid_engine log_level
    managed_gradient_accumulation memory_breakdown optimizer pipeline prescale_gradients scheduler
    seq_parallel_communication_data_type sequence_parallel_size steps_per_print tensor_parallel tensorboard timers
    torch_autocast train_batch_size train_micro_batch_size_per_gpu use_data_before_expert_parallelism
    vocabulary_size wall_clock_breakdown wandb weight_quantization zero_allow_untested_optimizer
    zero_force_ds_cpu_optimizer zero_optimization
"""
KNOWN = frozenset(_KNOWN.split())
_REMOVED = """
    amp compression_training curriculum_learning eigenvalue elasticity graph_harvesting nebula
    progressive_layer_drop quantize_training sparse_attention sparse_gradients
"""
REMOVED = frozenset(_REMOVED.split())


def check_keys(path: Path, document: Mapping[str, Any]) -> None:
    """Refuse top-level keys that DeepSpeed does not know, all of them in one pass.

    Raises
    ------
    SpecError
        With the file and every such key.
    """
    if faults := list(_faults(path, document)):
        raise SpecError.of(faults)


def _faults(path: Path, keys: Iterable[str]) -> Iterable[Fault]:
    """Yield what is wrong with keys."""
    for key in keys:
        if key in REMOVED:
            yield Fault(file=str(path), field=key, problem="DeepSpeed has removed this key.", mend="Leave it out.")
        elif key not in KNOWN:
            problem = "DeepSpeed has no such key, and passes over it in silence."
            yield Fault(file=str(path), field=key, problem=problem, mend="Correct its name, or leave it out.")
