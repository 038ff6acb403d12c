"""What launches a layout: a whole command for Megatron-LM's ``pretrain_gpt.py``, to be copied line by line.

Source: Megatron-Core developer guide, "Parallelism Strategies Guide", and ``megatron/training/arguments.py`` at commit
000c4ac (between core 0.14 and 0.16), against which every name and the conditions between options were read. What that
program cannot do is said in words; for another program there is no command.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

import numpy as np

from planner.decisions import FLAGS, LAYOUT
from planner.families.hybrid.configuration import (
    ORDER_NAMES,
    HybridConfiguration,
    broken_rule,
    launch_rules,
)
from planner.families.hybrid.launch_network import (
    missing_options,
    network_lines,
    not_expressed,
    program_of,
    when,
    without_yarn,
)
from planner.frozen import frozen
from planner.models.programs import ALL_TO_ALL, DEEPEP, HYBRIDEP, MEGATRON_CORE, PRECISION_AWARE
from planner.models.transformer_communication import neighbours
from planner.problem import LowPrecision
from planner.schedules import runs_words
from planner.transformer import Transformer

VERSION = "Megatron-LM core_v0.15 or later"

_HALVES = {"bf16": ("--bf16",), "fp16": ("--fp16 --accumulate-allreduce-grads-in-fp32",)}
_SHARDS_WEIGHTS = 2  # from this stage of ZeRO on another part of the program is at work
_PORT = 6000
# A token is sent once to a machine, with its scores in fp32.
_DEEPEP = "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep --moe-router-dtype fp32"
_ALL_TO_ALL = "--moe-token-dispatcher-type alltoall"
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}


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
    flag = {name: f"--{option}" for name, option in FLAGS["megatron"].items()}

    def value(name: str, *, is_written: bool = True, more: str = "") -> tuple[str, ...]:
        """Return the option of a decision that has a value."""
        return when(is_written, f"{flag[name]} {getattr(chosen, name)}{more}")

    chunks, layers = chosen.pipeline * chosen.interleave, transformer.num_layers
    has_ends = layers % chunks != 0  # embedding and head are a layer each
    cut: tuple[str, ...] = (
        *when(
            chosen.interleave > 1 and not chosen.is_folded, f"{flag['interleave']} {(layers + 2 * has_ends) // chunks}"
        ),
        *when(has_ends, "--account-for-embedding-in-pipeline-split"),
        *when(has_ends, "--account-for-loss-in-pipeline-split"),
    )
    if transformer.pattern is not None:  # which says where it is cut
        cut = ()
    elif (layout := _layout_of(transformer, chosen)) is not None:
        cut = (f"--pipeline-model-parallel-layout '{layout}'",)
    sharding: tuple[str, ...] = ()
    if chosen.zero == 1 or chosen.offload_optimizer:  # which asks for both of these
        offload = when(chosen.offload_optimizer, "--use-precision-aware-optimizer")
        sharding = ("--use-distributed-optimizer", *offload)
    elif chosen.zero:
        sharding = (
            "--use-megatron-fsdp --use-distributed-optimizer --no-gradient-accumulation-fusion",
            f"{flag['zero']} {SHARDING[chosen.zero]}",
            "--ckpt-format fsdp_dtensor",
        )
    return (
        *value("tensor"),
        *value("pipeline"),
        *value("context", is_written=chosen.context > 1),
        *_context_options(transformer, chosen, flag["context_method"]),
        *value("expert", is_written=chosen.expert > 1, more=f" {_DEEPEP}"),
        *value("expert_tensor", is_written=transformer.experts is not None and chosen.tensor > 1),
        *cut,
        *value("microbatch"),
        f"--global-batch-size {chosen.global_batch_size}",
        *when(chosen.sequence_parallel, flag["sequence_parallel"]),
        *sharding,
        *when(chosen.shard > 0, f"{flag['shard']} {chosen.num_copies}"),
        *value("recompute", is_written=chosen.recompute != "none"),
        *value("recompute_modules", is_written=chosen.recompute_modules != LAYOUT["recompute_modules"].default),
        *when(chosen.recompute == "full", f"--recompute-method {'block' if chosen.recompute_layers else 'uniform'}"),
        *when(chosen.recompute == "full", f"{flag['recompute_layers']} {chosen.recompute_layers or 1}"),
        *when(chosen.overlap_data, flag["overlap_data"]),
        *when(chosen.overlap_data and chosen.zero > 0, "--overlap-param-gather"),
        *when(chosen.overlap_tensor, flag["overlap_tensor"]),
        *when(chosen.overlap_expert, flag["overlap_expert"]),
        *when(chosen.offload_optimizer, flag["offload_optimizer"]),
        *when(chosen.offload_percent < 100, f"{flag['offload_percent']} {chosen.offload_percent / 100:g}"),  # percent
        *when(chosen.offload_layers > 0, f"{flag['offload_layers']} {chosen.offload_layers}"),
        *when(chosen.has_modules_away, "--fine-grained-activation-offloading"),
        *value("offload_modules", is_written=chosen.has_modules_away),
        *when(
            chosen.order == ORDER_NAMES[1] and chosen.order in orders_of(transformer, chosen), "--use-tp-pp-dp-mapping"
        ),
    )


def _layout_of(transformer: Transformer, chosen: HybridConfiguration) -> str | None:
    """Return the layers of virtual stages as the program writes them, those of multi-token prediction as its ``m``.

    These, the last layers, stand together in the last chunk that has any: the head may stand alone behind it.
    """
    number, layers = transformer.num_mtp_layers, list(chosen.chunk_layers(transformer.num_layers))
    if not number or chosen.pipeline == 1:
        return chosen.pipeline_layout(transformer.num_layers)
    place = max(index for index, one in enumerate(layers) if one)
    for index in reversed(range(len(layers))):
        taken = min(layers[index], number)
        layers[index] -= taken
        number -= taken
    listed = [f"t*{one}" * (one > 0) for one in layers]
    listed[place] += "m" * transformer.num_mtp_layers
    return f"E{'|'.join(listed)}L"


# Of Transformer Engine's context parallelism, by our names.
CONTEXT_METHODS = {"ring": "p2p", "all_gather": "all_gather", "ulysses": "a2a", "hierarchical": "a2a+p2p"}


def _context_options(transformer: Transformer, chosen: HybridConfiguration, flag: str) -> tuple[str, ...]:
    """Return the options that say how keys and values reach all context ranks; none where it is the program's own."""
    if chosen.context == 1 or chosen.context_method == "ring":
        return ()
    inner = int(neighbours(transformer, np.array([chosen.context]), np.array([chosen.tensor]))[0])
    return (
        f"{flag} {CONTEXT_METHODS[chosen.context_method]}",
        *when(
            chosen.context_method == "hierarchical",
            f"--hierarchical-context-parallel-sizes {inner} {chosen.context // inner}",
        ),
    )


def gradient_options(chosen: HybridConfiguration, gradients: str | None, optimizer: str) -> tuple[str, ...]:
    """Return the options by which gradients are kept and reduced in a type; none where that is the program's own.

    The distributed optimiser of Adam, be it of one rank, is told to read gradients in bf16 as they are, and then keeps
    of each master copy the two bytes that the weight has not; one on the host has the same option already, and that of
    ``--use-megatron-fsdp`` has none (Megatron-Bridge turns it off beside FSDP).
    """
    if gradients != "bf16":
        return ()
    is_alone = chosen.zero == 0 and chosen.data * chosen.context == 1
    is_told = (is_alone or chosen.zero == 1) and not chosen.offload_optimizer and optimizer in PRECISION_AWARE
    return (
        "--grad-reduce-in-bf16",
        *when(is_alone and is_told, "--use-distributed-optimizer"),
        *when(is_told, "--use-precision-aware-optimizer"),
    )


FP8_RECIPES = {"current": "tensorwise", "delayed": "delayed", "blockwise": "blockwise"}


_GATHERS = ("--fp8-param-gather", "--reuse-grad-buf-for-mxfp8-param-ag")


def _with_gathers(groups: Sequence[str], chosen: HybridConfiguration, optimizer: str) -> list[str]:
    """Return groups of options whose weights are kept in short numbers only where the distributed optimiser does it.

    That of one rank is turned on. Source: ``megatron/training/arguments.py``, the conditions of ``--fp8-param-gather``.
    """
    words = {word for group in groups for word in group.split()}
    if _GATHERS[0] not in words or "--use-distributed-optimizer" in words:
        return list(groups)
    if chosen.data * chosen.context == 1 and optimizer != "muon":
        return [*groups, "--use-distributed-optimizer"]
    kept = [" ".join(word for word in group.split(" ") if word not in _GATHERS) for group in groups]
    return [group for group in kept if group]


def keeps_short_weights(low: LowPrecision | None) -> bool:
    """Whether the program keeps weights in short numbers, which its distributed optimiser alone does."""
    return _GATHERS[0] in " ".join(low_precision_options(low)).split()


def low_precision_options(
    low: LowPrecision | None, *, has_cuda_graphs: bool = False, network: Transformer | None = None
) -> tuple[str, ...]:
    """Return the options of products in eight or four bits, with weights kept so where they may, and of CUDA graphs.

    Kernels of whole layers are captured; of a network with experts those up to the tokens' way to them, whose number
    is not known before.

    Source: ``megatron/core/fp8_utils.py``, ``fp4_utils.py`` and ``arguments.py`` of Megatron-LM; which recipes keep
    weights in their type: NVIDIA-NeMo/Megatron-Bridge, ``training/mixed_precision.py``.
    """
    scope = ""
    if network is not None and network.experts is not None:
        scope = f" --cuda-graph-scope{' mamba' * (network.mamba is not None)} attn moe_router moe_preprocess"
    graphs = when(has_cuda_graphs, f"--cuda-graph-impl transformer_engine{scope} --te-rng-tracker")
    if low is None:
        return graphs
    wide = f"--first-last-layers-bf16 --num-layers-at-start-in-bf16 0 --num-layers-at-end-in-bf16 {low.wide_layers}"
    if low.name == "nvfp4":
        kind: tuple[str, ...] = ("--fp4-format e2m1 --fp4-recipe nvfp4",)
    elif low.name == "mxfp8":
        kind = ("--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather --reuse-grad-buf-for-mxfp8-param-ag",)
    else:
        keeps = when(low.recipe != "blockwise", "--fp8-param-gather")
        kind = (f"--fp8-format hybrid --fp8-recipe {FP8_RECIPES[low.recipe]}", *keeps)
    return (*kind, *when(low.wide_layers > 0, wide), *graphs)


_AWARE = "--use-distributed-optimizer --use-precision-aware-optimizer"
# Optimiser -> its options; what is not here the program has not. Of Muon see :func:`with_optimizer`.
OPTIMIZERS = {
    **{"adam": "", "adamw": "", "sgd": "--optimizer sgd --sgd-momentum 0"},
    "momentum": "--optimizer sgd --sgd-momentum 0.9",
    "adam_bf16": f"{_AWARE} --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
    "adam_fp8": f"{_AWARE} --exp-avg-dtype fp8 --exp-avg-sq-dtype fp8",
    "muon": "--optimizer muon",
}
# What the layer-wise optimiser of Muon takes the place of: it hands out whole matrices.
_BESIDE_MUON = ("--use-distributed-optimizer", "--overlap-param-gather", "--use-precision-aware-optimizer")


def needs_distributed_optimizer(name: str) -> bool:
    """Whether the program keeps an optimiser's state in short numbers, which its distributed optimiser alone does."""
    return _AWARE in OPTIMIZERS.get(name, "")


def with_optimizer(groups: Sequence[str], name: str, chosen: HybridConfiguration) -> list[str]:
    """Return groups of options with those of the optimiser, none given twice; as they are for one that it has not.

    Source: ``megatron/core/optimizer/optimizer_config.py`` and ``muon.py`` of megatron-core 0.16.1.
    """
    if name == "muon":
        kept = [" ".join(word for word in group.split(" ") if word not in _BESIDE_MUON) for group in groups]
        return [*(group for group in kept if group), f"--optimizer {'dist_' * (chosen.zero > 0)}muon"]
    given = {word for group in groups for word in group.split()}
    asked = [f"--{option}" for option in OPTIMIZERS.get(name, "").removeprefix("--").split(" --") if option]
    words = [option for option in asked if option.partition(" ")[0] not in given]
    return [*groups, " ".join(words)] if words else list(groups)


@frozen
class Launch:
    """What a launcher is told beside network and layout.

    ``gradients``: as ``calibration.gradients``. ``low``: of :func:`low_precision_options`. ``backend``: of
    :func:`planner.models.programs.token_backend`. ``domain_size``: devices that NVLink joins. ``added_up``: of
    :func:`planner.families.hybrid.prediction.added_up`.
    """

    dtype: str
    devices_per_machine: int
    program: str = MEGATRON_CORE
    gradients: str | None = None
    low: tuple[str, ...] = ()
    optimizer: str = "adam"
    backend: str = DEEPEP
    domain_size: int = 1
    added_up: str = ""

    def with_own(self, groups: Sequence[str], chosen: HybridConfiguration) -> list[str]:
        """Return groups of options with those of the back end and of the optimiser, and with gathers as they go."""
        is_own = self.backend == ALL_TO_ALL  # Megatron-Core's, by NCCL
        dispatcher = _ALL_TO_ALL if is_own else _DEEPEP.replace("-backend deepep", f"-backend {self.backend}")
        backed = [group.replace(_DEEPEP, dispatcher) for group in groups]
        if self.added_up:
            backed += [f"--use-sharp --sharp-enabled-group {self.added_up}"]
        return _with_gathers(with_optimizer(backed, self.optimizer, chosen), chosen, self.optimizer)

    def exchange_environment(self, chosen: HybridConfiguration) -> list[str]:
        """Return the environment that HybridEP reads; none for others, or without experts over ranks.

        Which devices NVLink joins it is told, as ``scripts/performance/perf_plugins.py`` of Megatron-Bridge does (pull
        request 1888): old versions read the size of a domain, younger ones how many ranks of a group lie in one, and
        whether it is larger than a machine. Ranks of a group follow one another, so that as many as divide both lie in
        one domain; all of them do where the whole layout does.
        """
        if self.backend != HYBRIDEP or chosen.expert == 1:
            return []
        group = chosen.expert * chosen.expert_tensor
        ranks = group if chosen.num_devices <= self.domain_size else gcd(group, self.domain_size)
        is_wide = self.domain_size > self.devices_per_machine
        return [
            f"export NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN={ranks} NVLINK_DOMAIN_SIZE={self.domain_size} "
            f"USE_MNNVL={int(is_wide)}"
        ]


def all_options(transformer: Transformer, chosen: HybridConfiguration, launch: Launch) -> list[str]:
    """Return the options of the decisions, of gradients, of short numbers and of the optimiser; none for others."""
    if other_program(launch.program):
        return []
    decided = [
        *options(transformer, chosen, launch.program),
        *gradient_options(chosen, launch.gradients, launch.optimizer),
        *launch.low,
    ]
    return launch.with_own(decided, chosen)


def orders_of(transformer: Transformer, chosen: HybridConfiguration) -> tuple[str, ...]:
    """Return the orders of ranks in which the program makes a layout's groups, of the two that it has an option for.

    Why: :func:`planner.families.hybrid.configuration.launch_rules`.
    """
    rules = launch_rules(MEGATRON_CORE, transformer)
    named = {order: {**chosen.codes(), "order": code} for code, order in enumerate(ORDER_NAMES[:2])}
    return tuple(order for order, codes in named.items() if broken_rule(rules, codes) is None)


# -- the whole command -------------------------------------------------------------------------------------------------


def launch_lines(transformer: Transformer, chosen: HybridConfiguration, launch: Launch) -> tuple[str, ...]:
    """Return the lines of a shell that start a layout on one machine: environment, launcher, groups of options.

    Each machine is given its own ``NODE_RANK``, and the ``MASTER_ADDR`` of the first. For another program: none.
    """
    if other_program(launch.program):
        return ()
    number = -(-chosen.num_devices // launch.devices_per_machine)  # machines are filled one after the other
    where = f"--standalone --nproc-per-node {chosen.num_devices}"
    if number > 1:
        where = (
            f"--nnodes {number} --nproc-per-node {launch.devices_per_machine} --node-rank $NODE_RANK "
            f"--master-addr $MASTER_ADDR --master-port {_PORT}"
        )
    chunks = chosen.chunk_layers(transformer.num_layers) if chosen.pipeline > 1 else ()
    # Decisions stand in two lines: up to the batch, and how memory and communication are treated.
    decided = options(transformer, chosen)
    after = next(index for index, one in enumerate(decided) if one.startswith("--global-batch-size")) + 1
    decisions = [" ".join(part) for part in (decided[:after], decided[after:]) if part]
    groups = [
        f"torchrun {where} {program_of(transformer)}",
        *network_lines(transformer, launch.dtype, chunks),
        *decisions,
    ]
    # Tokens reach experts that are not spread, too; where they are, a decision's option says how.
    is_alone = transformer.experts is not None and chosen.expert == 1
    last = [
        *_HALVES.get(launch.dtype, ()),
        *gradient_options(chosen, launch.gradients, launch.optimizer),
        *launch.low,
        *when(is_alone, _ALL_TO_ALL),
    ]
    groups += [" ".join(last)] if last else []
    groups = launch.with_own(groups, chosen)
    environment: list[str] = []  # that the program checks
    if chosen.zero >= _SHARDS_WEIGHTS and not chosen.offload_optimizer:
        environment = ["unset CUDA_DEVICE_MAX_CONNECTIONS"]
    elif chosen.overlap_expert:  # else the streams of two micro-batches wait for each other
        environment = ["export CUDA_DEVICE_MAX_CONNECTIONS=32"]
    elif chosen.tensor > 1 or chosen.context > 1:
        environment = ["export CUDA_DEVICE_MAX_CONNECTIONS=1"]
    if chosen.has_modules_away:  # Transformer Engine from 2.10 on would take the weights, too
        environment.append("export NVTE_CPU_OFFLOAD_V1=1")
    environment += launch.exchange_environment(chosen)
    return (*environment, *(f"{line} \\" for line in groups[:-1]), groups[-1])


def launch_words(transformer: Transformer, chosen: HybridConfiguration, launch: Launch) -> list[str]:
    """Return lines that say how to launch a layout, and what must be done by hand; or that nothing is known of it."""
    if other := other_program(launch.program):
        return [other]
    number = -(-chosen.num_devices // launch.devices_per_machine)
    where = f"; on each of {number} machines, NODE_RANK 0 to {number - 1}, MASTER_ADDR the first one's" * (number > 1)
    start = f"to launch on {chosen.num_devices} device{'s' * (chosen.num_devices > 1)} with {VERSION}"
    if strange := not_expressed(transformer):
        decided = all_options(transformer, chosen, replace(launch, program=MEGATRON_CORE))
        lines = [
            f"{start}: its {program_of(transformer)} has no {', no '.join(strange)}; give its decisions to a script of "
            f"your own: "
            f"{' '.join(decided)}"
        ]
    else:
        lines = [f"{start}, on made-up data{where}:"]
        lines += launch_lines(transformer, chosen, launch)
    by_hand = _by_hand(transformer, chosen, launch)
    return [*lines, *by_hand, *_optimizer_by_hand(launch.optimizer, chosen)]


def _optimizer_by_hand(name: str, chosen: HybridConfiguration) -> list[str]:
    """Return what the program lacks of an optimiser."""
    if name not in OPTIMIZERS:
        return [f"Megatron-LM has no optimiser {name}; by the command it is Adam"]
    if name == "muon" and (chosen.zero > 1 or chosen.offload_optimizer):
        return ["Megatron-LM's Muon takes whole matrices, on devices: fix.zero_stage: 1, or 0"]
    return []


def has_copies_of_experts(chosen: HybridConfiguration) -> bool:
    """Whether fully sharded experts are spread, and copied: Megatron-Core 0.16 gives them the groups of all else.

    ``_init_dist_index`` of ``megatron/core/distributed/fsdp/mcore_fsdp_adapter.py``; its distributed optimiser (ZeRO 1)
    has groups for them.
    """
    return chosen.zero >= _SHARDS_WEIGHTS and chosen.num_copies > 1 and chosen.expert > 1


def younger_options(transformer: Transformer, chosen: HybridConfiguration) -> list[str]:
    """Return which options of a command younger versions alone read, in words."""
    found = []
    if transformer.pattern is not None and chosen.pipeline > 1:
        found.append("a pattern of layers is cut into stages by Megatron-LM from core_v0.17 on")
    if transformer.pattern is not None and chosen.has_modules_away:  # ``preprocess_for_fine_grained_offloading``
        found.append("inputs of modules of a pattern of layers wait on the host in Megatron-LM after core_v0.16 alone")
    if has_copies_of_experts(chosen):
        found.append("copies of what FSDP shards go with spread experts in Megatron-LM after core_v0.16 alone")
    if without_yarn(transformer) is not transformer:
        found.append("YaRN beside this attention is read by Megatron-LM from core_v0.19 on")
    return found


def _by_hand(transformer: Transformer, chosen: HybridConfiguration, launch: Launch) -> list[str]:
    """Return what the options do not say."""
    lines, devices_per_machine = [], launch.devices_per_machine
    left = chosen.num_devices % devices_per_machine
    if chosen.num_devices > devices_per_machine and left:
        lines.append(f"the last machine has {left} devices to start: write --nproc-per-node {left} there")
    if chosen.tensor > transformer.num_kv_heads and transformer.latent is None:
        lines.append(
            f"a tensor degree of {chosen.tensor} copies the {transformer.num_kv_heads} heads of keys and values, which "
            f"Megatron-Core does from 0.16 on; before, fix.tensor_parallel_size: {transformer.num_kv_heads}"
        )
    lines += younger_options(transformer, chosen)
    if chosen.expert > 1 and launch.backend != ALL_TO_ALL:
        backend = {DEEPEP: "DeepEP", HYBRIDEP: "HybridEP (of DeepEP's branch hybrid-ep)"}[launch.backend]
        lines.append(f"tokens go to their experts by {backend}, which is installed apart from Megatron-Core")
    if transformer.experts is not None and chosen.expert > 1 and launch.dtype != "bf16":
        lines.append("Megatron-LM spreads experts in bf16 only: write dtype: bf16")
    if figures := missing_options(transformer):
        lines.append(f"Megatron-LM has no option for {'; for '.join(figures)}: set them in its code")
    if chosen.schedule not in ("gpipe", "1f1b"):
        lines.append(f"Megatron-LM has no schedule {chosen.schedule}; it runs in {runs_words(chosen.schedule)}")
    if chosen.schedule == "gpipe" and chosen.pipeline > 1:
        lines.append("Megatron-LM has no GPipe schedule; torch.distributed.pipelining has one")
    if chosen.order not in ORDER_NAMES[:2]:
        lines.append(
            f"ranks are numbered {chosen.order}, from the inside outwards: give that order to "
            f"parallel_state.initialize_model_parallel"
        )
    elif chosen.order not in orders_of(transformer, chosen):
        lines.append(
            f"ranks are numbered {chosen.order}, from the inside outwards, for which Megatron-Core makes no groups "
            f"here; by the command they are numbered {ORDER_NAMES[0]}: fix.rank_order gives that order's best layout"
        )
    return lines
