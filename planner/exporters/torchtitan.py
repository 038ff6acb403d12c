"""Overrides of torchtitan 0.3.0: one command line on top of one of its own configurations.

Names and meaning of options: ``torchtitan/config/configs.py`` (training, parallelism, compile),
``torchtitan/config/manager.py`` (``--module``, ``--config``, lists) and ``torchtitan/distributed/
activation_checkpoint.py`` (the subcommands) of torchtitan 0.3.0. Conditions between them: ``torchtitan/trainer.py`` (no
CUDA graphs with a pipeline or with experts over ranks; batches), ``torchtitan/distributed/parallel_dims.py`` (products)
and ``torchtitan/distributed/pipeline_parallel.py`` (a pipeline's micro-batches are cut from the local batch).

A network that is none of its own flavours, by sizes and by figures, is written beside the command, a module for
``--module`` and ``--config`` (:mod:`planner.exporters.torchtitan_network`); so is one whose products are of eight or
four bits.

Every stage is written by the names of its modules (``module_fqns_per_model_part``), even ones, too: torchtitan's own
cut counts embedding and head as a layer each.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from planner.decisions import FLAGS
from planner.errors import SpecError
from planner.exporters.export import Export, Exporter, Job, TrainingBlocks
from planner.exporters.layouts import (
    Layout,
    layout_export,
    pinned_by,
    pins_of,
    read_layout,
    transformer_layout,
    with_layers,
)
from planner.exporters.scripts import Parsed, argument_words, comment_lines, launched, script_words, wrapped
from planner.exporters.torchtitan_network import (
    CONFIG,
    MODULE,
    adapters_of_module,
    balance_note,
    bias_note,
    cannot_tune,
    family_of,
    module_text,
    network_of_module,
    short_numbers_of,
)
from planner.models.low_precision import LOW_TYPES
from planner.numerics import Numerics, RotaryScaling
from planner.schedules import NAMED
from planner.transformer import Transformer

TARGET, VERSION = "torchtitan", "torchtitan 0.3.0"
_FLAGS = FLAGS["torchtitan"]
_PARALLEL = "parallelism."
_NUMBERS = {"bf16": "bfloat16", "fp32": "float32", "tf32": "float32"}
_MARK = "planner.export/1 torchtitan"
_OWN = ("torchtitan", "torchtitan-eager")  # programs of the cost model
_SHARDS_GRADIENTS, _SHARDS_WEIGHTS = 2, 3  # stages of ZeRO


def export(job: Job) -> Export:
    """Return the command, with its environment left to the user.

    Raises
    ------
    InfeasibleError
        For networks that are no transformers, numbers that it does not train in, and an optimiser on the host.
    """
    layout, network = transformer_layout(TARGET, job, low=LOW_TYPES)
    if why := cannot_tune(network):
        raise layout.refused(why, "Write dnn.fine_tuning: lora, with targets: [qkv, output]; or export to deepspeed.")
    if flavour_of(network) is None and family_of(network) is None:
        why = f"none of its models has all parts of {job.problem.dnn.name}"
        raise layout.refused(why, "Give it a model of your own, with the plan's degrees.")
    layout = as_run(layout, network)
    if (name := job.problem.training.optimizer) not in ("adam", "adamw"):
        layout = layout.noted(f"its configurations train with AdamW: write one with {name}, for which the plan counts")
    # The subcommand comes last, as tyro wants it.
    options = [*argument_words(_flags(layout, network)), f"{_FLAGS['recompute']}:{layout.chosen.recompute}"]
    program = wrapped([script_words(job.settings.script, "-m torchtitan.train"), *options])
    files: dict[str, str] = {}
    if _is_written(layout, network):
        head = comment_lines([f"{_MARK}, for {VERSION}: {job.problem.dnn.name}, {layout.chosen.headline}"])
        is_compiled = job.problem.calibration.program != "torchtitan-eager"
        text = module_text(network, job.problem.training.low, head="\n".join(head), is_compiled=is_compiled)
        files[f"{MODULE}.py"] = text
    return layout_export(layout, VERSION, program, files=files)


def _is_written(layout: Layout, network: Transformer) -> bool:
    """Whether the network is written as a module: it is no flavour, or one with products in other numbers."""
    flavour, low = flavour_of(network), layout.job.problem.training.low
    is_other = flavour is None or flavour.is_float8 or low is not None or network.fine_tuning is not None
    return is_other and family_of(network) is not None


_SCHEDULES = tuple(name for name, one in NAMED.items() if TARGET in one.runs_in)


def as_run(layout: Layout, network: Transformer) -> Layout:
    """Return the layout as torchtitan runs it, every change with its note."""
    if layout.dtype not in _NUMBERS:
        why = f"it trains in bfloat16 or float32, not in {layout.dtype}"
        raise layout.refused(why, "Write dnn.dtype: bf16.")
    if layout.chosen.offload_optimizer:
        hint = "Pin fix.offload_optimizer: false; or export to deepspeed or megatron."
        raise layout.refused("it moves weights and gradients to the host with the optimiser, or nothing", hint)
    layout = _with_schedule(layout)
    if network.num_mtp_layers and layout.chosen.pipeline * layout.chosen.context > 1:
        hint = "Pin fix.num_stages: 1, fix.context_parallel_size: 1; or export to megatron, megatron-bridge or primus."
        raise layout.refused("it predicts several tokens on one stage and one context rank alone", hint)
    layout = layout.with_plain_recomputation()
    chosen = layout.chosen
    if chosen.zero == 1:
        why = "it shards gradients wherever it shards the optimiser's state (FSDP2), so that ZeRO 1 becomes ZeRO 2"
        # With a pipeline the cost model has no ZeRO 2: sharded gradients are held whole until the last micro-batch.
        layout = layout.noted(why) if chosen.pipeline > 1 else layout.instead(why, zero=_SHARDS_GRADIENTS)
    if chosen.zero == 0 and (chosen.context > 1 or (network.experts is not None and chosen.expert > 1)):
        why = "it shards weights and gradients, too, where a sequence is split or experts are spread; the plan does not"
        layout = layout.instead(why, zero=_SHARDS_GRADIENTS if chosen.pipeline == 1 else 1)
    notes, program = [], layout.job.problem.calibration.program
    if chosen.recompute == "selective" and program not in _OWN:
        notes.append(
            "its selective checkpointing keeps products and exchanges and computes all else again; the plan's computes "
            "attention's scores again"
        )
    if chosen.overlap_tensor:
        notes.append(
            "overlapping the tensor-parallel exchange (async TP) needs the compiled model, which is turned on with it"
        )
    if chosen.num_devices > 1 and not chosen.overlap_data:
        notes.append("FSDP always overlaps gathering and reducing with computation; the plan does not count on it")
    layout = layout.noted(*notes).with_usual_order().with_ring("it passes keys and values round a ring")
    if network.experts is not None and chosen.expert_tensor > 1:
        layout = layout.instead("its experts are spread over ranks and never cut by a tensor degree", expert_tensor=1)
    if program not in _OWN and layout.is_hybrid:
        layout = layout.noted(f"seconds and memory were predicted for {program}; calibration.program: torchtitan")
    layout = _with_short_numbers(layout, network)
    return _with_source(layout, network)


def _with_schedule(layout: Layout) -> Layout:
    """Return the layout in a schedule that there is, and that takes as few micro-batches as it has."""
    chosen, few = layout.chosen, "its 1F1B needs a micro-batch for each stage"
    is_few = chosen.num_microbatches < chosen.pipeline
    if chosen.schedule not in _SCHEDULES:
        why = f"torch.distributed.pipelining has no schedule {chosen.schedule}"
        if is_few:
            why = f"{why}, and {few} (Schedule1F1B of PyTorch); GPipe here"
            return layout.instead(why, schedule="gpipe", interleave=1)
        return layout.instead(f"{why}; 1F1B here", schedule="1f1b", interleave=1)
    if is_few and chosen.schedule == "1f1b" and chosen.interleave == 1:
        why = f"{few}, and GPipe takes fewer (Schedule1F1B of PyTorch)"
        return layout.instead(why, schedule="gpipe")
    return layout


def _with_source(layout: Layout, network: Transformer) -> Layout:
    """Return the layout with a note of where the network stands, and of what is left to give."""
    flavour = flavour_of(network)
    if flavour is None or _is_written(layout, network):
        layout = layout.noted(
            f"the network stands in {MODULE}.py, which is read from the folder that the command is run in; give your "
            f"tokenizer's folder by --hf_assets_path, and your data by --dataloader.dataset"
        )
        if network.fine_tuning is not None:
            layout = layout.noted(
                "adapters are trained beside a network that there is: give its folder by "
                "--checkpoint.initial_load_path, with --checkpoint.initial_load_in_hf where it is Hugging Face's"
            )
            if "gate_up" in network.fine_tuning.targets:
                layout = layout.noted("gate and up are two matrices there, each with adapters: a few more than planned")
        return layout.noted(*(note for note in (balance_note(network), bias_note(network)) if note is not None))
    return layout.noted(
        f"its configuration {flavour.config} reads a tokenizer from hf_assets_path, and the data set that it names"
    )


def _with_short_numbers(layout: Layout, network: Transformer) -> Layout:
    """Return the layout with what is to be said of products in eight or four bits.

    Raises
    ------
    InfeasibleError
        For networks that are not written, and for routed experts in four bits.
    """
    low = layout.job.problem.training.low
    if low is None:
        return layout
    elsewhere = "Write dnn.dtype: bf16; or export to megatron, megatron-bridge or primus."
    if family_of(network) is None:
        raise layout.refused(f"none of its models has all parts of {layout.job.problem.dnn.name}", elsewhere)
    if network.num_mtp_layers:
        raise layout.refused("what is written for it has no short numbers beside multi-token prediction", elsewhere)
    if low.name == "nvfp4" and network.experts is not None:
        raise layout.refused("it computes products of routed experts in fp8 and mxfp8, not in nvfp4", elsewhere)
    layout = layout.noted("its products in short numbers are torchao's, installed beside it; the model is compiled")
    if low.name == "fp8":
        layout = layout.noted(f"its float8 has a scale for each row, of the row itself; the plan counts {low.recipe}")
    if low.wide_layers and network.experts is not None:
        layout = layout.noted(f"products of routed experts are short in the last {low.wide_layers} layers, too")
    return layout


def _flags(layout: Layout, network: Transformer) -> dict[str, Any]:
    chosen, flavour = layout.chosen, flavour_of(network)
    is_own = flavour is not None and not _is_written(layout, network)
    module, config = (flavour.module, flavour.config) if flavour is not None and is_own else (MODULE, CONFIG)
    is_pipeline, copies = chosen.pipeline > 1, chosen.zero == 0
    shards = 1 if copies else chosen.shard or chosen.data
    flags: dict[str, Any] = {
        "module": module,
        "config": config,
        "training.seq_len": network.sequence_length,
        "training.global_batch_size": chosen.global_batch_size,
        _FLAGS["microbatch"]: chosen.microbatch * (chosen.num_microbatches if is_pipeline else 1),
        "training.mixed_precision_param": _NUMBERS[layout.dtype],
        "training.disable_cuda_graphs": True if is_pipeline or chosen.expert > 1 else None,
        # Data ranks share weights, gradients and state, or copy them.
        f"{_PARALLEL}data_parallel_replicate_degree": chosen.data // shards,
        f"{_PARALLEL}data_parallel_shard_degree": shards,
        _FLAGS["zero"]: None if copies else "always" if chosen.zero == _SHARDS_WEIGHTS else "never",
        _FLAGS["tensor"]: chosen.tensor,
        _FLAGS["sequence_parallel"]: chosen.sequence_parallel if chosen.tensor > 1 else None,
        _FLAGS["context"]: chosen.context,
        _FLAGS["expert"]: chosen.expert,
        _FLAGS["pipeline"]: chosen.pipeline,
    }
    if is_pipeline:
        is_plain = chosen.schedule == "1f1b" and chosen.interleave > 1
        name = NAMED["interleaved" if is_plain else chosen.schedule].runs_in[TARGET]
        parts = module_names(chosen.chunk_layers(network.num_layers))
        flags[f"{_PARALLEL}pipeline_parallel_schedule"] = name
        flags[f"{_PARALLEL}pipeline_parallel_microbatch_size"] = chosen.microbatch
        flags[_FLAGS["interleave"]] = " ".join(",".join(part) for part in parts)
    # Some of its configurations compile the loss alone: what was planned for the compiled model is told so.
    is_compiled = layout.job.problem.calibration.program == "torchtitan" and not _is_written(layout, network)
    if chosen.overlap_tensor or is_compiled:
        flags |= {"compile.enable": True, "compile.components": "model,loss"}
    return flags | {_FLAGS["overlap_tensor"]: chosen.overlap_tensor}


def module_names(layers: Sequence[int]) -> list[list[str]]:
    """Return the names of the modules of every chunk, by how many layers it has.

    >>> module_names((1, 2))
    [['tok_embeddings', 'layers.0'], ['layers.1', 'layers.2', 'norm', 'lm_head']]
    """
    ends = [sum(layers[: index + 1]) for index in range(len(layers))]
    parts = [[f"layers.{index}" for index in range(end - count, end)] for end, count in zip(ends, layers, strict=True)]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts


# -- back again --------------------------------------------------------------------------------------------------------


def recognises(path: Path, text: str) -> bool:
    """Whether this is a script for torchtitan, or a file of options as it read them before 0.3."""
    is_file = path.suffix == ".toml" and "[parallelism]" in text and "tensor_parallel_degree" in text
    return is_file or (path.suffix == ".sh" and f"--{_FLAGS['tensor']} " in text)


def _launched(path: Path, text: str) -> tuple[list[str], int]:
    """Return the words of the command of a script, or of a file of options, and how many devices run it.

    A file (``torchtitan/config/manager.py``, 0.2) has the options of a command by table and key; of devices it says
    nothing but the degrees.
    """
    if path.suffix != ".toml":
        return launched(path, text, f"--{_FLAGS['tensor']}")
    document = Parsed(path, {})
    try:
        document = Parsed(path, tomllib.loads(text))
        leaves = list(_leaves(document.flags))
    except ValueError as error:
        raise document.fault(f"it is no TOML: {error}.", hint="Correct it.") from None
    except RecursionError:  # of what reads TOML, or of tables that dotted names lead into
        raise document.fault("it is nested too deeply, as no file of options is.", hint="Correct it.") from None
    words = [word for name, value in leaves for word in _words_of(name, value)]
    mode = document.value("activation_checkpoint.mode")
    words += [f"{_FLAGS['recompute']}:{mode}"] if mode in ("none", "full") else []
    shards = f"{_PARALLEL}data_parallel_shard_degree"
    if document.value(shards, -1) == -1:
        hint = "Write the devices over the other degrees: the file does not say how many there are."
        raise document.fault("it is -1, or left out.", shards, hint)
    names = (f"{_PARALLEL}data_parallel_replicate_degree", *(_FLAGS[one] for one in ("tensor", "context", "pipeline")))
    return words, prod([document.count(shards), *(document.count(name, 1) for name in names)])


def _leaves(tables: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables by the names of options."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


def _words_of(name: str, value: Any) -> list[str]:
    """Return an option of a command; none where a flag is not set, or the model is not compiled."""
    if value is False:
        return []
    listed = [] if value is True else value if isinstance(value, list) else [value]
    return [f"--{name}", *(",".join(map(str, one)) if isinstance(one, list) else str(one) for one in listed)]


def degrees(path: Path, text: str) -> Mapping[str, object]:
    """Return the layout of a script as a ``fix`` block pins it."""
    command, num_devices = _launched(path, text)
    file = Parsed.of_options(path, command)
    copies, shards, batch = _data_of(file, num_devices)
    stages, subcommand = file.count(_FLAGS["pipeline"], 1), f"{_FLAGS['recompute']}:"
    local = file.count(_FLAGS["microbatch"])
    micro = file.count(f"{_PARALLEL}pipeline_parallel_microbatch_size", 1) if stages > 1 else local
    parts = [part for part in file.flags.get(_FLAGS["interleave"], []) if not part.startswith(subcommand)]
    # Weights kept over a pipeline are planned as ZeRO 1, the most it has there.
    kept = _SHARDS_GRADIENTS if stages == 1 else 1
    freed = file.value(_FLAGS["zero"], "default" if shards > 1 else None)
    if freed == "default":
        freed = "always" if stages == 1 else "never"
    recompute = [word.removeprefix(subcommand) for word in command if word.startswith(subcommand)]
    chosen = read_layout(
        file,
        TARGET,
        global_batch_size=batch,
        required=("tensor",),
        data=copies * shards,
        shard=shards if freed and copies > 1 else 0,
        interleave=max(1, len(parts) // stages),
        microbatch=micro,
        zero=0 if not freed else _SHARDS_WEIGHTS if freed == "always" else kept,
        recompute=recompute[0] if recompute else "selective",
    )
    layers = [sum(name.strip().startswith("layers.") for name in part.split(",")) for part in parts]
    pins = pins_of(with_layers(file, chosen, layers, f"--{_FLAGS['interleave']}"), *pinned_by(TARGET))
    said = file.value(f"{_PARALLEL}pipeline_parallel_schedule", "") if stages > 1 else ""
    named = {NAMED[name].runs_in[TARGET]: name for name in _SCHEDULES}
    return pins | ({"schedule": named[str(said)]} if said in named else {})


def _data_of(file: Parsed, num_devices: int) -> tuple[int, int, int]:
    """Return copies, shards and the global batch; left out or -1: one copy, shards of what is left, batches of all.

    Source of what it takes for options that are left out: ``torchtitan/config/configs.py``.
    """

    def given(name: str, default: int) -> int:
        return default if file.value(name, "-1") == "-1" else file.count(name)

    copies = given(f"{_PARALLEL}data_parallel_replicate_degree", 1)
    others = copies
    for name in ("tensor", "context", "pipeline"):
        others *= file.count(_FLAGS[name], 1)
    name = f"{_PARALLEL}data_parallel_shard_degree"
    if file.value(name, "-1") == "-1" and num_devices % others:
        raise file.fault(f"{num_devices} devices do not divide by {others}, the other degrees.", f"--{name}")
    shards = given(name, num_devices // others)
    local = file.value(_FLAGS["microbatch"], "1")  # asked for where degrees are read
    return copies, shards, given("training.global_batch_size", int(local) * copies * shards if local.isdigit() else 1)


def network(path: Path, text: str) -> Transformer | None:
    """Return the network of a script: that of the module beside it, of which nothing is run.

    None of its own configurations, whose name in the zoo :func:`training` says.
    """
    found = _module_beside(path, Parsed.of_options(path, _launched(path, text)[0]))
    return None if found is None else network_of_module(*found)


def training(path: Path, text: str) -> TrainingBlocks:
    """Return the numbers, optimiser and batch of a script, and of the module beside it, of which nothing is run."""
    command, num_devices = _launched(path, text)
    file = Parsed.of_options(path, command)
    dnn: dict[str, Any] = {"global_batch": _data_of(file, num_devices)[2]}
    written, number = str(file.value("training.mixed_precision_param", "bfloat16")), list(_NUMBERS.values())
    if written not in number:
        hint = "Write bfloat16 or float32."
        raise file.fault(f"{written[:60]!r} is none.", "--training.mixed_precision_param", hint)
    dnn["dtype"] = list(_NUMBERS)[number.index(written)]
    words = [one for part in file.flags.get("compile.components", []) for one in part.split(",")]
    if path.suffix == ".toml" and "compile.enable" not in file.flags:
        words = []
    warnings: tuple[str, ...] = ()
    if (found := _module_beside(path, file)) is not None:
        low, components = short_numbers_of(*found)
        dnn |= low
        if (adapters := adapters_of_module(*found)) is not None:
            dnn["fine_tuning"] = adapters
        words += components
    elif file.value("module") == MODULE:
        warnings = (f"{MODULE}.py is not beside it, so that its network and its numbers are not read",)
    elif (flavour := _own_of(file)) is not None and flavour.module in _ZOO:
        dnn = {"zoo": f"{_ZOO[flavour.module]}-{flavour.size.lower()}"} | dnn
        dnn |= {"dtype": "fp8", "fp8_recipe": "current"} if flavour.is_float8 else {}
        if file.value("training.seq_len") is not None:
            dnn["sequence_length"] = file.count("training.seq_len")
    else:
        warnings = ("its network is none that is known here: add it to the block dnn",)
    own = _own_of(file)
    if own is not None and own.num_experts and _FLAGS["expert"] not in file.flags:  # which some configurations set
        warnings += (f"--{_FLAGS['expert']} is left out, and taken as 1: what {own.config} says of it is not read",)
    if short := [one for one in file.flags.get("model.converters", []) if "float8" in one or "mx" in one]:
        warnings += (f"model.converters has {short[0]}, of which nothing is read: add dnn.dtype",)
    dnn["optimizer"] = "adam"  # AdamW, as all its configurations have it
    program = "torchtitan" if "model" in words else "torchtitan-eager"
    return TrainingBlocks(dnn=dnn, calibration={"program": program}, warnings=warnings)


def _own_of(file: Parsed) -> "Flavour | None":
    """Return torchtitan's own configuration that a script names, as it does now or did before 0.3; None if unknown."""
    now = file.value("module"), file.value("config")
    before = file.value("model.name"), file.value("model.flavor")
    return next((one for one in FLAVOURS if (one.module, one.config) == now or (one.module, one.size) == before), None)


def _module_beside(path: Path, file: Parsed) -> tuple[Path, str] | None:
    """Return the module beside a script, and its text; None where the script names another, or it is not there."""
    if file.value("module") != MODULE:
        return None
    beside = path.with_name(f"{MODULE}.py")
    try:
        return beside, beside.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError.one(f"It cannot be read: {error}.", "Export again.", file=beside) from None


EXPORTERS = {TARGET: Exporter(export, recognises, degrees, network, training)}


# -- its own configurations --------------------------------------------------------------------------------------------


class Flavour(NamedTuple):
    """One of torchtitan's own configurations, and the sizes of its network.

    ``module`` and ``config`` are what ``--module`` and ``--config`` take, ``size`` its name in the module's table of
    models; ``feed_forward_size`` is 0 without dense layers, ``num_experts`` and ``expert_size`` without experts;
    ``is_float8``: whether it trains its products in eight bits.
    """

    module: str
    config: str
    size: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    feed_forward_size: int
    vocabulary_size: int
    has_tied_embeddings: bool = False
    num_experts: int = 0
    expert_size: int = 0
    is_float8: bool = False


# Source: ``torchtitan/models/{llama3,qwen3,deepseek_v3}/{__init__,config_registry}.py`` of torchtitan 0.3.0; a test
# with that version installed holds every size here against its models.
FLAVOURS = (
    Flavour("llama3", "llama3_8b", "8B", 32, 4096, 32, 8, 14336, 128256),
    Flavour("llama3", "llama3_70b", "70B", 80, 8192, 64, 8, 28672, 128256),
    Flavour("llama3", "llama3_405b", "405B", 126, 16384, 128, 8, 53248, 128256, is_float8=True),
    Flavour("qwen3", "qwen3_0_6b", "0.6B", 28, 1024, 16, 8, 3072, 151936, has_tied_embeddings=True),
    Flavour("qwen3", "qwen3_1_7b", "1.7B", 28, 2048, 16, 8, 6144, 151936, has_tied_embeddings=True),
    Flavour("qwen3", "qwen3_14b", "14B", 40, 5120, 40, 8, 17408, 151936),
    Flavour("qwen3", "qwen3_32b", "32B", 64, 5120, 64, 8, 25600, 151936),
    Flavour("qwen3", "qwen3_30b_a3b", "30B-A3B", 48, 2048, 32, 4, 0, 151936, num_experts=128, expert_size=768),
    Flavour("deepseek_v3", "deepseek_v3_16b", "16B", 27, 2048, 16, 16, 10944, 102400, num_experts=64, expert_size=1408),
    Flavour(
        "deepseek_v3", "deepseek_v3_671b", "671B", 61, 7168, 128, 128, 18432, 129280, num_experts=256, expert_size=2048
    ),
)
_ZOO = {"llama3": "llama3.1", "qwen3": "qwen3"}  # networks of the zoo that have these sizes; it prunes DeepSeek's
_SIZES = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "vocabulary_size", "has_tied_embeddings")


_LLAMA = RotaryScaling(kind="llama3", factor=8.0, original_length=8192)
_YARN = RotaryScaling(kind="yarn", factor=40.0, original_length=4096)
# Of a module: epsilon of norms, rotary base and scaling; of a configuration with experts: score, whether scores add up
# to one, scale, groups, and the scale of YaRN's scores.
_FIGURES: Mapping[str, tuple[float, float, RotaryScaling | None]] = {
    "llama3": (1e-5, 500_000.0, _LLAMA),
    "qwen3": (1e-6, 1_000_000.0, None),
    "deepseek_v3": (1e-5, 10_000.0, _YARN),
}
_ROUTES: Mapping[str, tuple[str, bool, float, int, int, float]] = {
    "qwen3_30b_a3b": ("softmax", True, 1.0, 1, 1, 0.0),
    "deepseek_v3_16b": ("softmax", False, 1.0, 1, 1, 0.7),
    "deepseek_v3_671b": ("sigmoid", True, 2.5, 8, 4, 1.0),
}


def _has_figures(flavour: Flavour, network: Transformer) -> bool:
    """Whether a configuration's network has the figures of another of its sizes, too."""
    experts, rotary, figures = network.experts, network.rotary, network.numerics
    if rotary is None or (rotary.fraction, rotary.without_every, rotary.local_base) != (1, 0, None):
        return False
    scaling, scale = rotary.scaling, 0.0
    if scaling is not None and scaling.kind == "yarn":
        scale = scaling.scale_all or 0.0
        if scaling.scale != scaling.scale_all:
            return False
        scaling = replace(scaling, scale=None, scale_all=None)
    plain = Numerics(norm_epsilon=figures.norm_epsilon, initial_deviation=figures.initial_deviation)
    is_plain = network.activation == "silu" and replace(figures, activation=None) == plain
    if not is_plain or (figures.norm_epsilon, rotary.base, scaling) != _FIGURES[flavour.module]:
        return False
    if experts is None:
        return True
    routing = experts.routing
    routed = (routing.score, routing.is_normalised, routing.scale, experts.groups, experts.top_groups, scale)
    return routed == _ROUTES[flavour.config]


def flavour_of(network: Transformer) -> Flavour | None:
    """Return the configuration whose network has these sizes, parts and figures; None if torchtitan has none."""
    experts = network.experts
    is_plain = (
        network.is_causal
        and network.is_gated
        and network.norm == "rms_norm"
        and network.norm_position == "before"
        and network.positions == "rotary"
        and network.head == "language"
        and not (network.has_biases or network.has_qkv_biases or network.has_embedding_norm)
        and not (network.has_output_bias or network.has_head_bias)
        and network.has_norm_scales
        and network.query_key_norm_span == "head"
        and not (experts is not None and experts.has_shared_gate)
        and network.kind_counts.keys() <= {"dense", "moe"}
        and not (network.has_sinks or network.has_attention_gate or network.sparse or network.encoder)
    )
    if not is_plain:
        return None
    expert_sizes = (experts.num_experts, experts.expert_size) if experts else (0, 0)
    has_dense = network.num_moe_layers < network.num_layers
    for flavour in FLAVOURS:
        if flavour.module == "deepseek_v3":
            has_parts = network.latent is not None and experts is not None
        else:
            has_parts = network.latent is None and network.has_query_key_norms == (flavour.module == "qwen3")
        has_sizes = all(getattr(network, name) == getattr(flavour, name) for name in _SIZES)
        has_feed_forward = not has_dense or network.feed_forward_size == flavour.feed_forward_size
        if has_parts and has_sizes and has_feed_forward and expert_sizes == flavour[-3:-1]:
            return flavour if _has_figures(flavour, network) else None
    return None
