"""What launches a layout: a whole command for Megatron-LM's ``pretrain_gpt.py``, to be copied line by line.

Source: Megatron-Core developer guide, "Parallelism Strategies Guide", and ``megatron/training/arguments.py`` at commit
000c4ac (between core 0.14 and 0.16), against which every name and the conditions between options were read. What that
program cannot do is said in words; for another program there is no command.
"""

from collections.abc import Iterator

from planner.families.hybrid.configuration import ORDER_NAMES, HybridConfiguration
from planner.families.hybrid.launch_network import network_lines, not_expressed
from planner.models.transformer_programs import MEGATRON_CORE
from planner.transformer import Transformer

__all__ = ["VERSION", "launch_lines", "launch_words", "options", "orders_of", "other_program"]

VERSION = "Megatron-LM core_v0.15 or later"

_RECOMPUTE = {
    "none": (),
    "selective": ("--recompute-granularity selective",),
    "full": ("--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"),
}
_HALVES = {"bf16": ("--bf16",), "fp16": ("--fp16 --accumulate-allreduce-grads-in-fp32",)}
_SHARDS_WEIGHTS = 2  # from this stage of ZeRO on another part of the program is at work
_PORT = 6000
_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}


def other_program(program: str) -> str | None:
    """Return that there is no command for a program, if it is another one."""
    if program == MEGATRON_CORE:
        return None
    return (
        f"no command is printed for {program}: those known here are Megatron-Core's; give it the decisions of the "
        f"configuration in its own words, and pin or exclude those that it does not have"
    )


def options(transformer: Transformer, chosen: HybridConfiguration, program: str = MEGATRON_CORE) -> tuple[str, ...]:
    """Return the options that carry the decisions; none for another program."""
    if other_program(program):
        return ()
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
        *_if(chosen.order == ORDER_NAMES[1] and chosen.order in orders_of(chosen), "--use-tp-pp-dp-mapping"),
    )


def orders_of(chosen: HybridConfiguration) -> tuple[str, ...]:
    """Return the orders of ranks in which the program makes a layout's groups.

    With data ranks outside of the pipeline Megatron-Core asserts that experts are copied as often as all else, where a
    sequence's ranks count as copies of experts (``megatron/core/parallel_state.py``, core 0.16.1); so, too, without
    experts.
    """
    return ORDER_NAMES[:2] if chosen.pipeline == 1 or chosen.expert == chosen.context else ORDER_NAMES[:1]


def _if(is_so: bool, option: str) -> tuple[str, ...]:
    """Return an option, or none."""
    return (option,) if is_so else ()


def _pipeline(transformer: Transformer, chosen: HybridConfiguration) -> Iterator[str]:
    """Yield how layers are dealt out to stages and chunks."""
    if chosen.pipeline_layout is not None:
        yield f"--pipeline-model-parallel-layout '{chosen.pipeline_layout}'"
        return
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
        yield "--use-megatron-fsdp --use-distributed-optimizer --no-gradient-accumulation-fusion"
        yield f"--data-parallel-sharding-strategy {_SHARDING[chosen.zero]}"
        yield "--ckpt-format fsdp_dtensor"


# -- the whole command -------------------------------------------------------------------------------------------------


def launch_lines(
    transformer: Transformer,
    chosen: HybridConfiguration,
    *,
    dtype: str,
    devices_per_machine: int,
    program: str = MEGATRON_CORE,
) -> tuple[str, ...]:
    """Return the lines of a shell that start a layout on one machine: environment, launcher, groups of options.

    Each machine is given its own ``NODE_RANK``, and the ``MASTER_ADDR`` of the first. For another program: none.
    """
    if other_program(program):
        return ()
    launcher = f"torchrun {_machines(chosen, devices_per_machine)} pretrain_gpt.py"
    groups = [launcher, *network_lines(transformer, dtype), *_grouped(options(transformer, chosen))]
    groups += [" ".join(last)] if (last := [*_HALVES.get(dtype, ()), *_dispatcher(transformer, chosen)]) else []
    return (*_environment(chosen), *(f"{line} \\" for line in groups[:-1]), groups[-1])


def _dispatcher(transformer: Transformer, chosen: HybridConfiguration) -> tuple[str, ...]:
    """Return how tokens reach experts that are not spread; where they are, a decision's option says it."""
    is_needed = transformer.experts is not None and chosen.expert == 1
    return _if(is_needed, "--moe-token-dispatcher-type alltoall")


def _machines(chosen: HybridConfiguration, devices_per_machine: int) -> str:
    """Return the launcher's options; machines are filled one after the other."""
    number = -(-chosen.num_devices // devices_per_machine)
    if number == 1:
        return f"--standalone --nproc-per-node {chosen.num_devices}"
    return (
        f"--nnodes {number} --nproc-per-node {devices_per_machine} --node-rank $NODE_RANK --master-addr $MASTER_ADDR "
        f"--master-port {_PORT}"
    )


def _environment(chosen: HybridConfiguration) -> Iterator[str]:
    """Yield what the program checks of its environment."""
    if chosen.zero >= _SHARDS_WEIGHTS and not chosen.offload_optimizer:
        yield "unset CUDA_DEVICE_MAX_CONNECTIONS"
    elif chosen.tensor > 1 or chosen.context > 1:
        yield "export CUDA_DEVICE_MAX_CONNECTIONS=1"


def _grouped(found: tuple[str, ...]) -> list[str]:
    """Return the decisions in two lines: up to the batch, and how memory and exchange are treated."""
    after = next(index for index, one in enumerate(found) if one.startswith("--global-batch-size")) + 1
    return [" ".join(part) for part in (found[:after], found[after:]) if part]


def launch_words(
    transformer: Transformer,
    chosen: HybridConfiguration,
    *,
    dtype: str,
    devices_per_machine: int,
    program: str = MEGATRON_CORE,
) -> list[str]:
    """Return lines that say how to launch a layout, and what must be done by hand; or that nothing is known of it."""
    if other := other_program(program):
        return [other]
    number = -(-chosen.num_devices // devices_per_machine)
    where = f"; on each of {number} machines, NODE_RANK 0 to {number - 1}, MASTER_ADDR the first one's" * (number > 1)
    start = f"to launch on {chosen.num_devices} device{'s' * (chosen.num_devices > 1)} with {VERSION}"
    if strange := not_expressed(transformer):
        lines = [
            f"{start}: its pretrain_gpt.py has no {', no '.join(strange)}; give its decisions to a script of your own: "
            f"{' '.join(options(transformer, chosen))}"
        ]
    else:
        lines = [f"{start}, on made-up data{where}:"]
        lines += launch_lines(transformer, chosen, dtype=dtype, devices_per_machine=devices_per_machine)
    return [*lines, *_by_hand(transformer, chosen, dtype, devices_per_machine)]


def _by_hand(transformer: Transformer, chosen: HybridConfiguration, dtype: str, devices_per_machine: int) -> list[str]:
    """Return what the options do not say."""
    lines = []
    left = chosen.num_devices % devices_per_machine
    if chosen.num_devices > devices_per_machine and left:
        lines.append(f"the last machine has {left} devices to start: write --nproc-per-node {left} there")
    if chosen.tensor > transformer.num_kv_heads and transformer.latent is None:
        lines.append(
            f"a tensor degree of {chosen.tensor} copies the {transformer.num_kv_heads} heads of keys and values, which "
            f"Megatron-Core does from 0.16 on; before, fix.tensor_parallel_size: {transformer.num_kv_heads}"
        )
    if transformer.experts is not None and chosen.expert > 1 and dtype != "bf16":
        lines.append("Megatron-LM spreads experts in bf16 only: write dtype: bf16")
    if chosen.schedule == "zero_bubble":
        lines.append("Megatron-LM has no zero-bubble schedule; torch.distributed.pipelining has one")
    if chosen.schedule == "gpipe" and chosen.pipeline > 1:
        lines.append("Megatron-LM has no GPipe schedule; torch.distributed.pipelining has one")
    if chosen.order not in ORDER_NAMES[:2]:
        lines.append(
            f"ranks are numbered {chosen.order}, from the inside outwards: give that order to "
            f"parallel_state.initialize_model_parallel"
        )
    elif chosen.order not in orders_of(chosen):
        lines.append(
            f"ranks are numbered {chosen.order}, from the inside outwards, for which Megatron-Core makes no groups "
            f"here; by the command they are numbered {ORDER_NAMES[0]}: fix.rank_order gives that order's best layout"
        )
    return lines
