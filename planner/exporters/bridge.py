"""A recipe for Megatron-Bridge: ``recipe.py``, whose ``config()`` is a ``ConfigContainer``, and what starts it.

The recipe says what Megatron-LM's options say (:mod:`planner.exporters.megatron`): a table leads from an option to the
part of the configuration and its field. Fields: ``megatron/bridge/models/gpt_provider.py``,
``mla_provider.py``, ``gpt_oss/gpt_oss_provider.py``, ``training/config.py``, ``training/mixed_precision.py`` and
``training/comm_overlap.py`` of Megatron-Bridge 0.3.1, and those of megatron-core 0.16.1 that they inherit. The values
stand in mappings of plain literals, so that a recipe is read back without being run. A test with that version installed
builds every part by its own classes.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.exporters.bridge_models import OwnModel, own_fields, own_model_of, with_own
from planner.exporters.export import Export, Job, TrainingBlocks
from planner.exporters.layouts import Layout, layout_export, transformer_layout
from planner.exporters.megatron import options_exporter, with_missing_options, words_of
from planner.exporters.megatron_network import file_of_values, transformer_of, values_of, with_lists
from planner.exporters.scripts import Parsed, comment_lines, literal, script_words, shipped_lines, shipped_program
from planner.exporters.training_blocks import adapters_of, constants_of
from planner.families.hybrid.launch_network import LLAMA3_SCALING, without_yarn
from planner.models.low_precision import LOW_TYPES
from planner.trained import EVERYTHING, MEGATRON_MODULES, FineTuning
from planner.transformer import Transformer
from planner.units import Dimension, format_human

TARGET, VERSION, RECIPE = "megatron-bridge", "Megatron-Bridge 0.3", "recipe.py"
_MARK = "planner.export/1 megatron-bridge"
_PARTS = (
    "MODEL",
    "TRAIN",
    "OPTIMIZER",
    "DDP",
    "DIST",
    "OVERLAP",
    "DATASET",
    "CHECKPOINT",
    "PRECISION",
    "RNG",
    "YARN",
    "RUN",
)
# Option -> part and field; other options are fields of the model of the same name. None: its reader has no use for it.
_FIELDS: Mapping[str, tuple[str, str] | None] = {
    option: None if place == "-" else (place.partition(".")[0], place.partition(".")[2])
    for option, place in map(str.split, shipped_lines("recipe_fields"))
}
# Switches whose field says the opposite.
_OPPOSITES: Mapping[str, tuple[str, str]] = {
    "disable-bias-linear": ("MODEL", "add_bias_linear"),
    "grad-reduce-in-bf16": ("PRECISION", "grad_reduce_in_fp32"),
    "no-gradient-accumulation-fusion": ("MODEL", "gradient_accumulation_fusion"),
    "untie-embeddings-and-output-weights": ("MODEL", "share_embeddings_and_output_weights"),
}
# Option -> the function of the feed-forward part, and whether it is gated.
_FUNCTIONS = {
    "": ("gelu", False),
    "swiglu": ("silu", True),
    "quick-geglu": ("quick_gelu", True),
    "squared-relu": ("squared_relu", False),
}
_OFFLOADS = "cpu_offloading"  # beside the number of layers
_CHUNKS, _CHUNK_LAYERS = "virtual_pipeline_model_parallel_size", "num-layers-per-virtual-pipeline-stage"


def export(job: Job) -> Export:
    """Return the recipe, and the script that every machine runs.

    Raises
    ------
    InfeasibleError
        For what Megatron-Core cannot train, and for a table of positions of more rows than a sample has tokens.
    """
    layout, network = transformer_layout(TARGET, job, low=LOW_TYPES)
    own = own_model_of(network)
    plain = network if own is None else own.plain
    layout = with_missing_options(layout, replace(plain, trained=EVERYTHING), "GPTModelProvider", has_latent_yarn=True)
    if network.positions == "learned" and network.num_positions != network.sequence_length:
        why = f"its table of positions has a row for each of the {network.sequence_length} tokens of a sample"
        raise layout.refused(why, f"Train samples of {network.num_positions} tokens; or export to megatron.")
    if own is not None:
        layout = _with_scores(layout.noted(*own.notes), network, own)
    layout, environment, groups = words_of(layout, without_yarn(plain))
    parts = _parts(with_lists(values_of(" ".join(groups)), network.num_main_layers), layout, plain)
    if own is not None:
        model = {key: value for key, value in parts["MODEL"].items() if key not in own.left_out}
        parts["MODEL"] = {**model, **own.fields}
    layout, adapters = _with_adapters(layout, network.fine_tuning)
    head = comment_lines([f"{_MARK}, for {VERSION}: {job.problem.dnn.name}, {layout.chosen.headline}", *layout.notes])
    if adapters:
        parts["CHECKPOINT"]["pretrained_checkpoint"] = _PRETRAINED
    texts = {f"{name}_TEXT": literal(name, parts[name]) for name in _PARTS}
    module, provider = _PROVIDERS[_provider(network)] if own is None else (own.module, own.provider)
    tuples = ("window_size",) if own is None else own.tuples
    recipe = shipped_program(
        "recipe",
        head="\n".join(head),
        provider=provider,
        module=module,
        tuples=repr(tuples).replace("'", '"'),
        devices=layout.chosen.num_devices,
        **texts,
    )
    if adapters:
        recipe = recipe.replace("training.pretrain import pretrain", "training.finetune import finetune")
        recipe = recipe.replace("    pretrain(config", "    finetune(config")
        recipe = recipe.replace(_BEFORE_FUNCTIONS, f"{adapters}\n{_BEFORE_FUNCTIONS}")
        recipe = recipe.replace(_WITHOUT_ADAPTERS, f"{_MAKES_ADAPTERS}{_WITHOUT_ADAPTERS}        peft=adapters,\n")
    program = script_words(job.settings.script, RECIPE)
    return layout_export(layout, VERSION, program, files={RECIPE: recipe}, environment=environment)


_PRETRAINED = "./pretrained"  # the network that adapters are trained beside
_ADAPTERS, _BEFORE_FUNCTIONS, _WITHOUT_ADAPTERS = "ADAPTERS", "FUNCTIONS = {", "    return ConfigContainer(\n"
_MAKES_ADAPTERS = "    from megatron.bridge.peft.lora import LoRA\n\n    adapters = LoRA(**ADAPTERS)\n"


def _with_adapters(layout: Layout, tuning: FineTuning | None) -> tuple[Layout, str]:
    """Return the table of adapters, and what is left to do; nothing without.

    Raises
    ------
    InfeasibleError
        For weights in four bits, and for parts of a matrix that is one there.
    """
    if tuning is None:
        return layout, ""
    if tuning.is_quantised:
        raise layout.refused("it keeps no weights in four bits", "Write dnn.fine_tuning: lora; or export to deepspeed.")
    if parts := [name for name in tuning.targets if name not in MEGATRON_MODULES]:
        hint = "Write targets: [linear_qkv]; or export to deepspeed."
        raise layout.refused(f"it has no adapter of {parts[0]} alone, which is part of a fused matrix", hint)
    modules = [MEGATRON_MODULES[name] for name in tuning.targets]
    table = literal(_ADAPTERS, {"target_modules": modules, "dim": tuning.rank, "alpha": tuning.alpha})
    layout = layout.noted(
        f"adapters are trained beside a network that there is: put it into {_PRETRAINED}, as AutoBridge.import_ckpt of "
        f"megatron.bridge writes it"
    )
    return layout, table


def _parts(values: Mapping[str, Any], layout: Layout, network: Transformer) -> dict[str, dict[str, Any]]:
    """Return the fields of every part of the configuration."""
    parts: dict[str, dict[str, Any]] = {name: {} for name in _PARTS}
    function = next((option for option in _FUNCTIONS if option in values), "")
    for option, value in values.items():
        if option in _FUNCTIONS or option == _CHUNK_LAYERS:
            continue
        if option in _OPPOSITES:
            part, field = _OPPOSITES[option]
            parts[part][field] = False
            continue
        where = _FIELDS.get(option, ("MODEL", option.replace("-", "_")))
        if where is not None:
            parts[where[0]][where[1]] = value
    model = parts["MODEL"]
    model["activation_func"], model["gated_linear_unit"] = _FUNCTIONS[function]
    model |= {name: model.get(name, True) for name in ("share_embeddings_and_output_weights", "add_bias_linear")}
    model["vocab_size"] = network.vocabulary_size
    if layout.chosen.offload_optimizer:  # by default none of it
        parts["OPTIMIZER"].setdefault("optimizer_offload_fraction", 1.0)
    if layout.chosen.offload_layers:
        model[_OFFLOADS] = True
    if layout.chosen.interleave > 1:
        model[_CHUNKS] = layout.chosen.interleave
    scaling = network.rotary.scaling if network.rotary is not None else None
    if scaling is not None and scaling.kind == "yarn":  # which options of Megatron-LM leave at its constants
        ends: dict[str, Any] = {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
        ends["original_max_position_embeddings"] = scaling.original_length
        if network.latent is not None:
            model |= ends
        else:
            model["position_embedding_type"] = "yarn"
            scales = {"mscale": scaling.scale, "mscale_all_dim": scaling.scale_all}
            figures = {"rotary_scaling_factor": scaling.factor, **ends, **scales}
            parts["YARN"] = {f"yarn_{name}": value for name, value in figures.items()}
            parts["YARN"]["yarn_correction_range_round_to_int"] = scaling.is_truncated
    parts["OPTIMIZER"].setdefault("optimizer", "adam")
    if network.pattern is not None:
        model["apply_rope_fusion"] = network.rotary is not None
    parts["OPTIMIZER"]["use_distributed_optimizer"] = parts["DDP"].setdefault("use_distributed_optimizer", False)
    parts["PRECISION"].setdefault("grad_reduce_in_fp32", True)
    return parts


# By what a network is made of, the module and the class that provide the model.
_PROVIDERS = {
    "mamba": ("megatron.bridge.models.mamba.mamba_provider", "MambaModelProvider"),
    "latent": ("megatron.bridge.models.mla_provider", "MLAModelProvider"),
    "gpt": ("megatron.bridge.models.gpt_provider", "GPTModelProvider"),
}


def _provider(network: Transformer) -> str:
    """Return which class provides the model."""
    if network.pattern is not None:
        return "mamba"
    return "latent" if network.latent is not None else "gpt"


def _with_scores(layout: Layout, network: Transformer, own: OwnModel) -> Layout:
    """Return the layout of a model whose attention keeps its scores, with what they take; as it is for others.

    Raises
    ------
    InfeasibleError
        If a device does not hold them, or a sample is split.
    """
    if not own.score_bytes:
        return layout
    chosen = layout.chosen
    if chosen.context > 1:
        raise layout.refused("its attention with caps takes whole samples", "Pin fix.context_parallel_size: 1.")
    is_again = chosen.recompute == "full" or (
        chosen.recompute == "selective" and "core_attn" in chosen.recompute_modules
    )
    kept = 1 if is_again else network.num_layers  # of a first stage all micro-batches that are on their way
    pairs = chosen.microbatch * network.num_heads / chosen.tensor * network.sequence_length**2
    bytes_ = pairs * own.score_bytes * kept
    words = format_human(bytes_, Dimension.DATA)
    if bytes_ > layout.free_bytes:
        why = f"its attention with caps has no fused kernel, and {words} of scores do not fit on a device"
        raise layout.refused(why, "Pin fix.recompute: full, or a smaller micro-batch; or export to deepspeed.")
    return layout.noted(
        f"its attention with caps has no fused kernel: scores take {words} of a device, and seconds that the plan does "
        f"not count"
    )


# -- back again --------------------------------------------------------------------------------------------------------


def recognises(path: Path, text: str) -> bool:
    """Whether this is a recipe of an export."""
    return path.suffix == ".py" and _MARK in text


def _network(path: Path, text: str) -> Transformer:
    """Return the network of a recipe; nothing of it is run."""
    file, _ = _read(path, text)
    fields = constants_of(path, text).get("MODEL", {})
    values = {str(name).replace("_", "-"): value for name, value in fields.items()}
    return with_own(file, own_fields(values), transformer_of(file))


def _training(path: Path, text: str) -> TrainingBlocks:
    """Return the numbers, optimiser, adapters and batch of a recipe; nothing of it is run."""
    found, constants = _READER.training(path, text), constants_of(path, text)
    model, table = constants["MODEL"], constants.get(_ADAPTERS)
    if "attention_chunk_size" in model and model.get("rope_scaling"):  # Llama 4, which is published with others
        said = ", ".join(f"{name} {value:g}" for name, value in LLAMA3_SCALING.items())
        why = f"of the scaling of rotary positions the program has its own constants, which are read: {said}"
        found = replace(found, warnings=(*found.warnings, why))
    if table is None:
        return found
    adapters = adapters_of(Parsed(path, {}), table, rank="dim", alpha="alpha", targets="target_modules")
    return replace(found, dnn={**found.dnn, "fine_tuning": adapters})


def _read(path: Path, text: str) -> tuple[Parsed, int]:
    """Return a recipe as Megatron-LM's options, and its number of devices."""
    recipe = Parsed(path, constants_of(path, text))
    values: dict[str, Any] = {}
    fields = {where: option for option, where in _FIELDS.items() if where is not None}
    opposites = {where: option for option, where in _OPPOSITES.items()}
    for part in _PARTS:
        found = recipe.value(part)
        if not isinstance(found, dict):
            raise recipe.fault("it is missing, or no mapping of literals.", part)
        for field, value in found.items():
            if (part, field) in opposites:
                values[opposites[part, field]] = value is False
            else:
                values[fields.get((part, field), str(field).replace("_", "-"))] = value
    values.pop(_OFFLOADS.replace("_", "-"), None)
    model = {name.replace("_", "-"): value for name, value in recipe.value("MODEL").items()}
    if own := own_fields(model):  # which are read by :func:`network`
        if values.get("activation-func") == "fast_gelu":
            values["activation-func"] = "silu"
        said = {fields.get(("MODEL", name.replace("-", "_")), name) for name in own}
        values = {option: value for option, value in values.items() if option not in said}
    function = (values.pop("activation-func", "gelu"), values.pop("gated-linear-unit", False))
    option = next((name for name, one in _FUNCTIONS.items() if one == function), None)
    if option is None:
        raise recipe.fault(f"{function[0]!r} is none.", "MODEL.activation_func", "Write as `planner export` does.")
    values |= {option: True} if option else {}
    if (number := values.pop(_CHUNKS.replace("_", "-"), None)) is not None:
        values |= _chunk_layers(recipe, values, number)
    if values.get("num-query-groups") is not None:
        values["group-query-attention"] = True
    return file_of_values(path, values), recipe.count("NUM_DEVICES")


def _chunk_layers(recipe: Parsed, values: Mapping[str, Any], number: object) -> dict[str, int]:
    """Return the layers of a virtual stage as the option has them; none where a layout lists them."""
    if "pipeline-model-parallel-layout" in values:
        return {}
    file = file_of_values(recipe.path, {**values, _CHUNKS: number})
    ends = sum(f"account-for-{name}-in-pipeline-split" in values for name in ("embedding", "loss"))
    stages = file.count("pipeline-model-parallel-size") * file.count(_CHUNKS)
    return {_CHUNK_LAYERS: max(1, (file.count("num-layers") + ends) // stages)}


_READER = options_exporter(export, recognises, _read, "megatron-core")
EXPORTERS = {TARGET: replace(_READER, network=_network, training=_training)}
