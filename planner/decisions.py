"""The decisions of all families: one row each, which specs, pins, exclusions, plans, conflicts and exporters read.

A *decision* is what a plan chooses: a degree, a schedule, how many machines. Its row says what it is called in ``fix``
and ``constraints.exclude``, what it is called in the configuration block of a family, which values it takes, and which
families decide it. To add one, write its row here, its cost in :mod:`planner.models`, its axis in the family's search,
and its options in the table :data:`FLAGS`. The decisions of one layout of ``hybrid`` are the fields of
:class:`LayoutDecisions`, so that code reads them by name and type; their rows stand in the fields' metadata.

What has a form of its own (fusion groups, the placement of tensors) is no row: the block of its family says it
(:mod:`planner.question.spec`). The layers of stages have one in blocks, and are a list in a pin.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, replace
from itertools import combinations
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.frozen import frozen
from planner.names import FAMILY_NAMES, OFFLOAD_MODULES, RECOMPUTE_MODULES
from planner.problem import Algorithm, Problem, as_meant
from planner.schedules import OF_PROGRAMS

Value = int | str | bool | Sequence[str] | Sequence[int]

Synchronisation = Literal["bsp", "ssp", "asp", "local_sgd"]
ServerOverlap = Literal["none", "push", "push_pull", "push_pull_forward"]
PipelineSchedule = Literal["gpipe", "1f1b", "interleaved"]
# Of a layout; 1f1b with several chunks on a device is interleaved. See planner.models.orders.
LayoutSchedule = Literal["gpipe", "1f1b", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min", "dualpipe", "dualpipe_v"]
_SCHEDULES = (*get_args(LayoutSchedule)[:2], "interleaved", *get_args(LayoutSchedule)[2:])
TURNED = ("zb_v", "v_half", "v_min", "dualpipe_v")  # with two chunks on a device, there and back
Recompute = Literal["none", "selective", "full"]
ZeroStage = Literal[0, 1, 2, 3]
ContextMethod = Literal["ring", "all_gather", "ulysses", "hierarchical"]
# Degrees from the innermost tier of the network outwards: the orders of planner.models.tiers.
RankOrder = Literal[
    "tensor-context-data-pipeline",
    "tensor-context-pipeline-data",
    "tensor-pipeline-context-data",
    "context-data-tensor-pipeline",
    "pipeline-tensor-context-data",
]
FLAG = (False, True)


@frozen
class Decision:
    """One decision."""

    key: str  # its key in ``fix``, and in ``constraints.exclude`` where it may be excluded: the field's words
    words: str  # what it is, as a phrase
    families: tuple[str, ...]  # those that decide it: a pin of it leaves every other family out
    # all that it may be, where these are names, flags or a few numbers; else empty
    values: tuple[int | str | bool, ...] = ()
    # of a count: the greatest number that means anything in a question. None: it is no count
    maximum_of: Callable[[Problem], int] | None = None
    # of a name that the question gives (a device, a group of machines): those there are
    names_of: Callable[[Problem], Sequence[Value]] | None = None
    # of names of which a pin may say more than a search would take in a question: those that it would
    offered_in: Callable[[Problem], Sequence[Value]] | None = None
    # by family: its key in the family's configuration block, where it has one by itself
    block: Mapping[str, str] = field(default_factory=dict)
    # what the block's key says, where a pin says less: ``zero_bubble`` pins whether ``schedule`` is ``zb_h1``
    block_values: tuple[str, ...] = ()
    excluded_by: tuple[str, ...] = ()  # families whose search leaves out the values of ``constraints.exclude``
    is_size: bool = False  # whether it is a number of bytes
    # of a layout: what a block that leaves it out means; None: on where the program has it and it means something
    default: int | str | bool | None = None
    is_shown_always: bool = True  # of a layout: whether a block and a headline say it at its default, too
    takes_memory: bool = False  # whether a value that is pinned may be what leaves no room on a device
    # of a set of names: all that it may hold; a value is some of them, in this order, with a space between
    parts: tuple[str, ...] = ()
    least: int = 1  # of a count: its smallest number
    # of a layout: another decision and the value of it without which this one has no meaning
    goes_with: tuple[str, str] | None = None
    plugins: str = ""  # of names: the group of entry points that give more of them

    @property
    def is_count(self) -> bool:
        """Whether it takes any whole number from :attr:`least` on."""
        return self.maximum_of is not None

    @property
    def is_flag(self) -> bool:
        """Whether its key in a block is on or off."""
        return self.values == FLAG and not self.block_values

    @property
    def names(self) -> tuple[str, ...]:
        """What its key in a block says, where these are names; a search counts by their index."""
        values = self.block_values or self.values
        return tuple(str(one) for one in values) if values and isinstance(values[0], str) else ()

    def maximum(self, problem: Problem) -> int:
        """Return the greatest number that a pin could mean in a question."""
        if self.maximum_of is None:
            return max(int(one) for one in self.values)
        return self.maximum_of(problem)

    def choices(self, problem: Problem) -> Sequence[Value]:
        """Return all that is offered in a question where a pin of a name or a flag gives way."""
        listed = self.offered_in or self.names_of
        return self.values if listed is None else listed(problem)

    def code(self, value: int | str | bool) -> int:
        """Return a value of a block as the number by which a search counts it."""
        names = self.names
        return names.index(str(value)) if names else int(value)

    def decoded(self, code: int) -> int | str | bool:
        """Return the value of a block that a number stands for."""
        if self.names:
            return self.names[code]
        return bool(code) if self.is_flag else int(code)


def written(value: object) -> str:
    """Return a value as a spec writes it.

    >>> written(True), written(["head", "stem"]), written(8)
    ('true', '[head, stem]', '8')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list | tuple) else str(value)


# --- What the numbers and names of a question allow


def _devices(problem: Problem) -> int:
    return problem.cluster.num_devices


def _machines(problem: Problem) -> int:
    return problem.cluster.num_machines


def _devices_of_a_machine(problem: Problem) -> int:
    return max(group.devices_per_machine for group in problem.cluster.machine_groups)


def _layers(problem: Problem) -> int:
    return len(problem.dnn.layers)


def _stages(problem: Problem) -> int:
    return min(len(problem.dnn.layers), problem.cluster.num_devices)


def _samples(problem: Problem) -> int:
    training = as_meant(problem).training
    return training.fixed_batch_size or training.max_global_batch_size or 1


def _largest_layer_bytes(problem: Problem) -> int:
    most = max((sum(tensor.num_elements for tensor in layer.tensors) for layer in problem.dnn.layers), default=0)
    return max(1, 4 * most)  # of fp32 at most


def _device_names(problem: Problem) -> list[str]:
    return list(dict.fromkeys(group.device.name for group in problem.cluster.machine_groups))


def _group_names(problem: Problem) -> list[str]:
    return [group.name for group in problem.cluster.machine_groups]


def _equal_cuts(problem: Problem) -> list[Value]:
    """Return the cuts of a transformer's layers into equal stages."""
    layers = 0 if problem.dnn.transformer is None else problem.dnn.transformer.num_layers
    stages = range(1, min(layers, problem.cluster.num_devices) + 1)
    return [[layers // number] * number for number in stages if layers % number == 0]


def _schedules_of_program(problem: Problem) -> list[Value]:
    """Return the schedules of CNNs' pipelines, which every program is taken to have, and the program's others."""
    has = {*get_args(PipelineSchedule), *OF_PROGRAMS.get(problem.calibration.program, ())}
    return [one for one in _SCHEDULES if one in has]


def _substitutions(problem: Problem) -> list[list[str]]:
    """Return every choice of substitutions that go together."""
    return [
        [one.name for one in chosen]
        for size in range(len(problem.substitutions) + 1)
        for chosen in combinations(problem.substitutions, size)
        if not any(one.overlaps(other) for one, other in combinations(chosen, 2))
    ]


# --- The decisions of one layout of ``hybrid``

_HYBRID = ("hybrid",)


def _sets_of(parts: Sequence[str]) -> tuple[str, ...]:
    """Return every set of some names but the empty one, as it is written; the first name alone comes first."""
    return tuple(" ".join(one) for size in range(1, len(parts) + 1) for one in combinations(parts, size))


_MODULE_SETS = _sets_of(RECOMPUTE_MODULES)
NO_MODULES = "none"  # of a set that may be empty
_OFFLOAD_SETS = (NO_MODULES, *_sets_of(OFFLOAD_MODULES))


def _layout(key: str, words: str, default: int | str | bool, *, is_open: bool = False, **more: Any) -> Any:
    """Return a field of a layout, with its row; ``is_open``: a block that leaves it out does not mean the default."""
    more = {"excluded_by": _HYBRID, **more}
    row = Decision(key=key, words=words, families=_HYBRID, default=None if is_open else default, **more)
    return field(default=default, metadata={"row": row})


@frozen
class LayoutDecisions:
    """The decisions of one layout of a transformer, by their keys in the block ``configuration.hybrid``."""

    tensor: int = _layout(
        "tensor_parallel_size", "devices that share every matrix multiplication", 1, maximum_of=_devices
    )
    context: int = _layout(
        "context_parallel_size", "devices that share the tokens of a sequence", 1, maximum_of=_devices
    )
    pipeline: int = _layout("pipeline_parallel_size", "stages that the layers are cut into", 1, maximum_of=_devices)
    data: int = _layout("data_parallel_size", "replicas that share the batch", 1, maximum_of=_devices)
    expert: int = _layout("expert_parallel_size", "devices that share the experts of a layer", 1, maximum_of=_devices)
    expert_tensor: int = _layout(
        "expert_tensor_parallel_size",
        "devices that share every matrix multiplication of an expert",
        1,
        maximum_of=_devices,
        is_open=True,
    )
    interleave: int = _layout(
        "chunks_per_device",
        "virtual pipeline stages of a device",
        1,
        maximum_of=_layers,
        block={"pipeline": "chunks_per_device"},
    )
    microbatch: int = _layout(
        "microbatch_size", "samples of a micro-batch on one replica", 1, maximum_of=_samples, takes_memory=True
    )
    zero: int = _layout(
        "zero_stage",
        "ZeRO stage: what data ranks share",
        0,
        values=get_args(ZeroStage),
        is_open=True,
        takes_memory=True,
    )
    recompute: str = _layout(
        "recompute",
        "activations that the backward pass computes again",
        "none",
        values=get_args(Recompute),
        takes_memory=True,
    )
    recompute_modules: str = _layout(
        "recompute_modules",
        "modules of a layer whose activations the backward pass computes again, with recompute: selective",
        _MODULE_SETS[0],
        values=_MODULE_SETS,
        parts=RECOMPUTE_MODULES,
        goes_with=("recompute", "selective"),
        excluded_by=(),
        is_shown_always=False,
        takes_memory=True,
    )
    recompute_layers: int = _layout(
        "recompute_layers",
        "layers of each virtual stage that are computed again, with recompute: full; 0 all",
        0,
        maximum_of=_layers,
        least=0,
        goes_with=("recompute", "full"),
        excluded_by=(),
        is_shown_always=False,
        takes_memory=True,
    )
    shard: int = _layout(
        "data_parallel_shard_size",
        "data ranks over which ZeRO shards states, with their context ranks, while the others hold copies; 0 all",
        0,
        maximum_of=_devices,
        least=0,
        is_shown_always=False,
        excluded_by=(),
        takes_memory=True,
    )
    schedule: str = _layout(
        "zero_bubble",
        "whether gradients of weights fill the waits of a pipeline",
        "1f1b",
        values=FLAG,
        block_values=get_args(LayoutSchedule),
        excluded_by=(),
    )
    sequence_parallel: bool = _layout(
        "sequence_parallel",
        "whether a tensor group shares the sequence between multiplications",
        False,
        values=FLAG,
        is_open=True,
        takes_memory=True,
    )
    overlap_data: bool = _layout(
        "overlap_data", "whether data-parallel communication runs beside computing", False, values=FLAG, is_open=True
    )
    overlap_tensor: bool = _layout(
        "overlap_tensor",
        "whether tensor-parallel communication runs beside computing",
        False,
        values=FLAG,
        is_open=True,
    )
    overlap_expert: bool = _layout(
        "overlap_expert",
        "whether tokens travel to experts and back beside another micro-batch's computing",
        False,
        values=FLAG,
        is_open=True,
        takes_memory=True,
    )
    offload_optimizer: bool = _layout(
        "offload_optimizer", "whether the optimiser's state lies in host memory", False, values=FLAG, takes_memory=True
    )
    order: str = _layout(
        "rank_order",
        "parallel dimension order: degrees from the innermost tier of the network outwards",
        get_args(RankOrder)[0],
        values=get_args(RankOrder),
    )
    context_method: str = _layout(
        "context_parallel_method",
        "how the devices that share a sequence see all its keys and values",
        "ring",
        values=get_args(ContextMethod),
        is_shown_always=False,
        takes_memory=True,
    )
    offload_layers: int = _layout(
        "activation_offload_layers",
        "layers of a stage whose activations wait in host memory between the passes",
        0,
        maximum_of=_layers,
        least=0,
        is_shown_always=False,
        excluded_by=(),
        takes_memory=True,
    )
    offload_percent: int = _layout(
        "optimizer_offload_percent",
        "percent of the optimiser's state that lies in host memory, with offload_optimizer",
        100,
        maximum_of=lambda _: 100,
        goes_with=("offload_optimizer", True),
        is_shown_always=False,
        excluded_by=(),
        takes_memory=True,
    )
    offload_modules: str = _layout(
        "activation_offload_modules",
        "modules of every layer whose inputs wait in host memory between the passes",
        NO_MODULES,
        values=_OFFLOAD_SETS,
        parts=OFFLOAD_MODULES,
        excluded_by=(),
        is_shown_always=False,
        takes_memory=True,
    )


# By the name of the field, which is the key in the block.
LAYOUT: Mapping[str, Decision] = {
    one.name: replace(row := one.metadata["row"], block={**row.block, "hybrid": one.name})
    for one in fields(LayoutDecisions)
}


def asked_by(pins: Mapping[str, object]) -> dict[str, int | str | bool]:
    """Return what pins ask for beside themselves, also where they say what is usual.

    >>> asked_by({"recompute_modules": "core_attn", "microbatch_size": 1})
    {'recompute': 'selective'}
    """
    rows = [row for row in LAYOUT.values() if row.goes_with is not None and pins.get(row.key)]
    return {LAYOUT[name].key: value for name, value in (row.goes_with for row in rows if row.goes_with is not None)}


# --- The table, in the order in which a spec lists them

_ALL, _SERVERS, _REPLICAS = FAMILY_NAMES, ("parameter_server",), ("model_replicas",)
_BOTH_SERVERS = (*_SERVERS, *_REPLICAS)
_STAGED = ("pipeline", "hybrid")


def _row(key: str, words: str, families: tuple[str, ...], *, blocks: Sequence[str] = (), **more: Any) -> Decision:
    """Return a row; ``blocks``: families whose block has a key of the same name."""
    return Decision(key=key, words=words, families=families, **{"block": dict.fromkeys(blocks, key), **more})


DECISIONS: tuple[Decision, ...] = (
    _row("num_devices", "devices that train", _ALL, blocks=["all_reduce"], maximum_of=_devices),
    _row("num_machines", "machines that train or serve", _ALL, blocks=["all_reduce"], maximum_of=_machines),
    _row(
        "devices_per_machine",
        "devices that train on each machine",
        ("all_reduce",),
        blocks=["all_reduce"],
        maximum_of=_devices_of_a_machine,
    ),
    _row(
        "gradient_accumulation_steps",
        "micro-batches of a device between two exchanges of gradients",
        ("all_reduce",),
        blocks=["all_reduce"],
        maximum_of=_samples,
    ),
    _row(
        "algorithm",
        "algorithm of every all-reduce",
        ("all_reduce",),
        values=get_args(Algorithm),
        plugins="planner.cost_models",
    ),
    _row("device", "the only device that trains", _ALL, names_of=_device_names),
    _row(
        "batch_shares",
        "whether all devices take the same share of the batch",
        ("all_reduce", "parameter_server"),
        values=("equal",),
    ),
    _row(
        "num_parameter_servers",
        "machines that serve parameters",
        _BOTH_SERVERS,
        blocks=_BOTH_SERVERS,
        maximum_of=_machines,
    ),
    _row("servers", "group of machines that serve parameters", _SERVERS, blocks=_SERVERS, names_of=_group_names),
    _row("co_located", "whether servers share machines with workers", _SERVERS, blocks=_SERVERS, values=FLAG),
    _row(
        "synchronisation",
        "when workers wait for each other",
        _SERVERS,
        blocks=_SERVERS,
        values=get_args(Synchronisation),
    ),
    _row(
        "overlap",
        "what goes to and from servers beside computing",
        _SERVERS,
        blocks=_SERVERS,
        values=get_args(ServerOverlap),
    ),
    _row("barrier", "whether all gradients arrive before any sum is sent back", _SERVERS, blocks=_SERVERS, values=FLAG),
    _row(
        "partition_bytes",
        "largest piece of a tensor that goes to and from servers on its own",
        _SERVERS,
        blocks=_SERVERS,
        maximum_of=_largest_layer_bytes,
        is_size=True,
    ),
    _row(
        "priority",
        "whether layers that run forward sooner go first to and from servers",
        _SERVERS,
        blocks=_SERVERS,
        values=FLAG,
    ),
    _row("num_replicas", "replicas of the network", _REPLICAS, blocks=_REPLICAS, maximum_of=_machines),
    _row(
        "num_workers_per_replica", "machines that share one replica", _REPLICAS, blocks=_REPLICAS, maximum_of=_machines
    ),
    _row(
        "num_stages", "stages that the layers are cut into", _STAGED, block={"hybrid": "pipeline"}, maximum_of=_stages
    ),
    _row("num_microbatches", "micro-batches of an iteration", _STAGED, blocks=["pipeline"], maximum_of=_samples),
    _row(
        "schedule",
        "order in which a stage does its micro-batches",
        _STAGED,
        blocks=["pipeline"],
        values=_SCHEDULES,
        offered_in=_schedules_of_program,
        excluded_by=_HYBRID,
        takes_memory=True,
    ),
    _row(
        "layers_per_stage",
        "layers of every stage, or where devices have several chunks of every chunk, in the order of the network",
        _HYBRID,
        names_of=_equal_cuts,
        takes_memory=True,
    ),
    *LAYOUT.values(),
    _row("substitutions", "layers that others replace", (), names_of=_substitutions),
)
_BY_KEY = {row.key: row for row in DECISIONS}


# By program that trains and key in a layout's block: the option or key that says a decision alone. Options of a command
# (``megatron``, ``torchtitan``) less their hyphens; keys of DeepSpeed's configuration, and of Accelerate's for FSDP and
# for its plugin of Megatron-LM, where a dot leads into a block.
_PLUGIN = "megatron_lm_config.megatron_lm_"
FLAGS: Mapping[str, Mapping[str, str]] = {
    "megatron": {
        "tensor": "tensor-model-parallel-size",
        "context": "context-parallel-size",
        "pipeline": "pipeline-model-parallel-size",
        "expert": "expert-model-parallel-size",
        "expert_tensor": "expert-tensor-parallel-size",
        "interleave": "num-layers-per-virtual-pipeline-stage",
        "microbatch": "micro-batch-size",
        "zero": "data-parallel-sharding-strategy",
        "recompute": "recompute-granularity",
        "recompute_modules": "recompute-modules",
        "recompute_layers": "recompute-num-layers",
        "shard": "num-distributed-optimizer-instances",
        "sequence_parallel": "sequence-parallel",
        "overlap_data": "overlap-grad-reduce",
        "overlap_tensor": "tp-comm-overlap",
        "overlap_expert": "overlap-moe-expert-parallel-comm",
        "offload_optimizer": "optimizer-cpu-offload",
        "context_method": "cp-comm-type",
        "offload_layers": "cpu-offloading-num-layers",
        "offload_percent": "optimizer-offload-fraction",
        "offload_modules": "offload-modules",
    },
    "torchtitan": {
        "tensor": "parallelism.tensor_parallel_degree",
        "context": "parallelism.context_parallel_degree",
        "pipeline": "parallelism.pipeline_parallel_degree",
        "expert": "parallelism.expert_parallel_degree",
        "interleave": "parallelism.module_fqns_per_model_part",
        "microbatch": "training.local_batch_size",
        "zero": "parallelism.fsdp_reshard_after_forward",
        "recompute": "activation-checkpoint",
        "shard": "parallelism.data_parallel_shard_degree",
        "sequence_parallel": "parallelism.enable_sequence_parallel",
        "overlap_tensor": "compile.enable_async_tensor_parallel",
    },
    "deepspeed": {
        "tensor": "tensor_parallel.autotp_size",
        "context": "sequence_parallel_size",
        "pipeline": "pipeline.stages",
        "expert": "expert_parallel.autoep_size",
        "microbatch": "train_micro_batch_size_per_gpu",
        "zero": "zero_optimization.stage",
        "recompute": "activation_checkpointing",
        "overlap_data": "zero_optimization.overlap_comm",
        "overlap_tensor": "tensor_parallel.tp_overlap_comm",
        "offload_optimizer": "zero_optimization.offload_optimizer",
    },
    "fsdp": {
        "tensor": "parallelism_config.parallelism_config_tp_size",
        "context": "parallelism_config.parallelism_config_cp_size",
        "data": "parallelism_config.parallelism_config_dp_replicate_size",
        "shard": "parallelism_config.parallelism_config_dp_shard_size",
        "zero": "fsdp_config.fsdp_reshard_after_forward",
        "recompute": "fsdp_config.fsdp_activation_checkpointing",
    },
    "plugin": {
        "tensor": f"{_PLUGIN}tp_degree",
        "context": f"{_PLUGIN}context_parallel_size",
        "pipeline": f"{_PLUGIN}pp_degree",
        "expert": f"{_PLUGIN}expert_model_parallel_size",
        "expert_tensor": f"{_PLUGIN}expert_tensor_parallel_size",
        "zero": f"{_PLUGIN}use_distributed_optimizer",
        "recompute": f"{_PLUGIN}recompute_granularity",
        "sequence_parallel": f"{_PLUGIN}sequence_parallelism",
        "offload_optimizer": f"{_PLUGIN}optimizer_cpu_offload",
    },
}


def row_of(key: str) -> Decision:
    """Return the decision of a key of ``fix``."""
    return _BY_KEY[key]


def pinnable_keys(family: str) -> frozenset[str]:
    """Return the keys of ``fix`` that a family decides; with any other pinned, it cannot answer."""
    return frozenset(row.key for row in DECISIONS if family in row.families)


def excludable_keys(family: str) -> frozenset[str]:
    """Return the keys of ``constraints.exclude`` that a family's search takes."""
    return frozenset(row.key for row in DECISIONS if family in row.excluded_by)


def decided_by(family: str, block: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration block says about the keys of ``fix``, but for its machines.

    A value that differs from part to part (the micro-batches of replicas) is a list of each that there is.

    >>> decided_by("pipeline", {"num_microbatches": 4, "schedule": "gpipe", "stages": [{}, {}], "chunks_per_device": 1})
    {'num_microbatches': 4, 'schedule': 'gpipe', 'num_stages': 2}
    """
    rows = [(row, row.block[family]) for row in DECISIONS if family in row.families and family in row.block]
    found = {row.key: block[key] for row, key in rows if key in block and not row.block_values}
    found |= {row.key: row.default for row, key in rows if key not in block and not row.is_shown_always}
    if family == "all_reduce":
        groups = list((block.get("groups") or {}).values())
        used = [one["algorithm"] for one in block["fusion_groups"] if one["algorithm"] != "measured"]
        if groups:
            found["devices_per_machine"] = _only([group["devices_per_machine"] for group in groups])
            steps = [group.get("gradient_accumulation_steps") or 1 for group in groups]
            found["gradient_accumulation_steps"] = max(steps)
        if used:  # one device sends nothing, and a measured curve knows no algorithm
            found["algorithm"] = _only(used)
        found["batch_shares"] = "equal" if len({group["batch_per_device"] for group in groups}) <= 1 else "unequal"
    elif family == "parameter_server":
        found.setdefault("synchronisation", "bsp")
        found["batch_shares"] = "equal" if len(set(block["batch_shares"].values())) == 1 else "unequal"
    elif family == "pipeline":
        found["num_stages"] = len(block["stages"]) // block["chunks_per_device"]
    elif family == "hybrid":  # one key of the block, and the chunks, are what two pins say
        is_plain = block["schedule"] == "1f1b" and block["interleave"] > 1
        found["schedule"] = "interleaved" if is_plain else block["schedule"]
        found["zero_bubble"] = block["schedule"] == "zb_h1"
        numbers = [one["num_microbatches"] for one in block.get("replicas") or ()]
        found["num_microbatches"] = _only(
            numbers or [block["global_batch_size"] // (block["data"] * block["microbatch"])]
        )
    return found


def cut_shape(layers: Sequence[int], fixed: Mapping[str, Any]) -> tuple[int, int]:
    """Return the stages and the chunks on a device of a pinned cut, by other pins: no chunks where none says more.

    >>> cut_shape([8, 9, 8, 7], {}), cut_shape([8, 9, 8, 7], {"num_stages": 2})
    ((4, 1), (2, 2))
    """
    stages = fixed.get("pipeline_parallel_size", fixed.get("num_stages"))
    chunks = fixed.get("chunks_per_device", 2 if fixed.get("schedule") in TURNED else None)
    if stages is None:
        return max(1, len(layers) // (chunks or 1)), chunks or 1
    return stages, max(1, len(layers) // stages) if chunks is None else chunks


def has_depths_together(
    depths: int, chunk_layers: ArrayLike, stages: ArrayLike, *, is_folded: ArrayLike
) -> NDArray[np.bool_]:
    """Return whether one chunk of a cut, shape (K,), or of many, (K, n), has all depths of multi-token prediction.

    These are the last layers. As Megatron-Core asks (``PipelineParallelLayerLayout.validate_layer_layout``): that of
    the head, or the one before where the head stands alone, but not on the first device.

    >>> has_depths_together(1, [[3, 3], [2, 3], [1, 0]], 2, is_folded=False)
    array([ True, False])
    """
    before, last = np.asarray(chunk_layers)[-2:]
    return np.asarray(
        (last >= depths) | ((last == 0) & (before >= depths) & (np.asarray(stages) > 2) & ~np.asarray(is_folded))
    )


def parted_depths(depths: int, chunk_layers: Sequence[int], stages: int, *, is_folded: bool) -> tuple[str, str] | None:
    """Return what is wrong with a cut that parts depths of multi-token prediction, and how to mend it; else None."""
    if len(chunk_layers) == 1 or has_depths_together(depths, chunk_layers, stages, is_folded=is_folded):
        return None
    what = "chunk" if len(chunk_layers) > stages else "stage"
    last = f"the last {what} holds {chunk_layers[-1]} layers"
    return (
        f"{last}, and the last {depths} of multi-token prediction run together.",
        f"Write {depths} or more in the last {what}.",
    )


def _only(values: Sequence[Any]) -> Any:
    """Return the value where there is only one, else each once."""
    each = list(dict.fromkeys(values))
    return each[0] if len(each) == 1 else each
