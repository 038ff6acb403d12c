"""AMD's Primus, its Megatron-LM back end: ``primus.yaml``, and what starts it on every machine.

A key of its ``overrides`` is an option of Megatron-LM with underscores, and says the same
(:mod:`planner.exporters.megatron`); a table holds those that differ. Keys: ``primus/configs/models/megatron/
language_model.yaml``, ``primus/configs/modules/megatron/{trainer_base,primus_turbo,zero_bubble}.yaml`` of
github.com/AMD-AGI/Primus, release v26.4; how a file is made up: ``examples/megatron/configs/MI355X``; the command: "CLI
reference", rocm.docs.amd.com/projects/primus. Primus is in no package registry: nothing here was read by its own code.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from planner.exporters.export import Export, Job, job_name
from planner.exporters.kubernetes import documents_of, yaml_text
from planner.exporters.layouts import Layout, shared_pins, transformer_layout
from planner.exporters.machines import device_of
from planner.exporters.megatron import layout_of_options, options_exporter, with_missing_options, words_of
from planner.exporters.megatron_network import file_of_values, values_of, with_lists, with_points
from planner.exporters.scripts import PORT, Parsed, comment_lines, how_to_run, is_headed, torchrun_script
from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.hybrid.launch_network import without_yarn
from planner.models.low_precision import LOW_TYPES

TARGET, VERSION, CONFIG = "primus", "Primus v26.4", "primus.yaml"
_HEAD = "planner.export/1 primus"
_COUNT = re.compile(rf"^# {re.escape(_HEAD)}: (\d{{1,9}}) devices", re.MULTILINE)
# Option -> key, where the key is not the option with underscores; switches whose key says the opposite.
_KEYS = {"fp8-format": "fp8", "fp4-format": "fp4"}
_OPPOSITES = {
    "disable-bias-linear": "add_bias_linear",
    "no-gradient-accumulation-fusion": "gradient_accumulation_fusion",
}
# What its base configurations turn on or say otherwise, so that what is not written here is as Megatron-LM has it.
_BASE: Mapping[str, object] = {
    "add_bias_linear": True,
    "add_qkv_bias": False,
    "group_query_attention": False,
    "qk_layernorm": False,
    "swiglu": False,
    "untie_embeddings_and_output_weights": False,
    "sequence_parallel": False,
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
    "use_distributed_optimizer": False,
    "bf16": False,
    "moe_layer_freq": 1,
}
# Schedule -> keys beside those of Megatron-LM; pending backward passes as many as stages, or twice as many.
_SCHEDULES: Mapping[str, Mapping[str, object]] = {
    "zb_h1": {"enable_zero_bubble": True},
    "zb_h2": {"enable_zero_bubble": True},
    "zb_v": {"zero_bubble_v_schedule": True, "zero_bubble_v_schedule_mem_setup": "zb"},
    "v_half": {"zero_bubble_v_schedule": True, "zero_bubble_v_schedule_mem_setup": "half"},
    "v_min": {"zero_bubble_v_schedule": True, "zero_bubble_v_schedule_mem_setup": "min"},
}
_V, _CHUNK = "zero_bubble_v_schedule", "num_layers_per_virtual_pipeline_stage"
_PENDING = "zero_bubble_max_pending_backward"
_OWN = {"model_type", "patch_zero_bubble", _PENDING, "enable_primus_turbo", "use_turbo_deepep"}
_OWN |= {key for keys in _SCHEDULES.values() for key in keys}


def export(job: Job) -> Export:
    """Return the configuration, and a script that every machine runs.

    Raises
    ------
    InfeasibleError
        For what Megatron-LM cannot train.
    """
    layout, network = transformer_layout(TARGET, job, low=LOW_TYPES)
    layout = with_missing_options(layout, network, "Megatron-LM", has_yarn=False)
    if layout.chosen.schedule in _SCHEDULES and layout.chosen.stages:
        why = "its zero-bubble schedules have equal stages, so that it runs 1F1B"
        layout = layout.instead(why, schedule="1f1b", interleave=1)
    layout, environment, groups = words_of(layout, without_yarn(network), schedules=tuple(_SCHEDULES))
    if others := sorted({row.device for row in layout.rows if not device_of(job, row).is_amd}):
        layout = layout.noted(f"Primus is for AMD's devices, and the plan is for {', '.join(others)}")
    if job.settings.script is not None:
        layout = layout.noted("--script: not used, since Primus brings its own program")
    values = with_lists(values_of(" ".join(groups)), network.num_main_layers)
    overrides = _overrides(values, layout, has_own_kernels=not others)
    head = [f"{_HEAD}: {layout.chosen.num_devices} devices, for {VERSION}", layout.chosen.headline, *layout.notes]
    trainer = {
        "framework": "megatron",
        "config": "pre_trainer.yaml",
        "model": "language_model.yaml",
        "overrides": overrides,
    }
    where = {"work_group": "amd", "user_name": "root", "exp_name": job_name(job), "workspace": "./output"}
    document = {**where, "modules": {"pre_trainer": trainer}}
    return Export(
        target=TARGET,
        version=VERSION,
        files={CONFIG: with_points(yaml_text([document], head)), "launch.sh": _script(layout, environment)},
        notes=layout.notes,
        how_to_run=tuple(f"PRIMUS=/workspace/Primus {one}" for one in how_to_run(layout.rows)),
    )


def _overrides(values: Mapping[str, Any], layout: Layout, *, has_own_kernels: bool) -> dict[str, Any]:
    """Return the keys that say what options say, and those of Primus alone; its kernels are for AMD's devices."""
    chosen, found = layout.chosen, dict(_BASE)
    for option, value in values.items():
        if option in _OPPOSITES:
            found[_OPPOSITES[option]] = False
        else:
            found[_KEYS.get(option, option.replace("-", "_"))] = value
    if "hybrid-override-pattern" in values:
        found["model_type"] = "mamba"
    if "moe-flex-dispatcher-backend" in values and has_own_kernels:  # in the place of the back end that is named
        found |= {"enable_primus_turbo": True, "use_turbo_deepep": True}
    if chosen.pipeline > 1 and chosen.schedule in _SCHEDULES:
        found |= {"patch_zero_bubble": True, **_SCHEDULES[chosen.schedule]}
        if "enable_zero_bubble" in found:
            found[_PENDING] = chosen.pipeline * (1 + (chosen.schedule == "zb_h2"))
        if _V in found:  # two chunks of a device, there and back, which it cuts by itself
            found.pop(_CHUNK, None)
    return found


def _script(layout: Layout, environment: Any) -> str:
    """Return the script that starts the launcher of Primus with the numbers of machines and devices."""
    rows = [row for row in layout.rows if row.role == "worker"]
    machines = sum(row.num_machines for row in rows)
    numbers = [f"export NNODES={machines} MASTER_PORT={PORT}", *environment]
    numbers.append('export NODE_RANK="${NODE_RANK:-0}" MASTER_ADDR="${MASTER_ADDR:-localhost}"')
    command = f'"${{PRIMUS:?the folder of Primus}}/runner/primus-cli" direct -- train pretrain --config "$PWD/{CONFIG}"'
    head = comment_lines([f"{VERSION}: {layout.job.problem.dnn.name}, {layout.chosen.headline}", *layout.notes])
    commands = [f"env GPUS_PER_NODE={row.devices_per_machine} {command}" for row in rows]
    return torchrun_script(rows, "", head=head, environment=numbers, commands=commands)


# -- back again --------------------------------------------------------------------------------------------------------


def _degrees(path: Path, text: str) -> Mapping[str, object]:
    """Return the layout of a configuration as a ``fix`` block pins it, with the schedule that its own keys turn on."""
    file, devices = _read(path, text)
    keys = _overrides_of(path, text)
    chosen = layout_of_options(file, devices)
    pins = shared_pins(chosen)
    return pins | ({"schedule": _schedule_of(keys, chosen)} if chosen.pipeline > 1 else {})


def _schedule_of(keys: Mapping[str, Any], chosen: HybridConfiguration) -> str:
    """Return the schedule that keys turn on; 1F1B where they turn on none."""
    if keys.get("enable_zero_bubble") is True:
        pending = keys.get(_PENDING, chosen.pipeline)
        return "zb_h2" if isinstance(pending, int) and pending > chosen.pipeline else "zb_h1"
    on = (name for name, own in _SCHEDULES.items() if all(keys.get(key) == value for key, value in own.items()))
    return next(on, "interleaved" if chosen.interleave > 1 else "1f1b")


def _overrides_of(path: Path, text: str) -> Mapping[str, Any]:
    whole = Parsed(path, next(iter(documents_of(text)), {}))
    overrides = whole.value("modules.pre_trainer.overrides")
    if not isinstance(overrides, Mapping):
        raise whole.fault("it is missing, or no mapping.", "modules.pre_trainer.overrides")
    return overrides


def _read(path: Path, text: str) -> tuple[Parsed, int]:
    """Return a configuration as Megatron-LM's options, and its number of devices."""
    overrides = _overrides_of(path, text)
    if (count := _COUNT.search(text)) is None:
        raise Parsed(path, {}).fault(f"its first line does not say how many devices it is for: # {_HEAD}: 8 devices.")
    options = {key: option for option, key in _KEYS.items()}
    opposites = {key: option for option, key in _OPPOSITES.items()}
    values: dict[str, Any] = {}
    for key, value in overrides.items():
        if key in opposites:
            values[opposites[key]] = value is False
        elif key not in _OWN:
            values[options.get(key, str(key).replace("_", "-"))] = value
    if overrides.get(_V) is True:
        sizes = file_of_values(path, values)
        chunks = 2 * sizes.count("pipeline-model-parallel-size")
        values[_CHUNK.replace("_", "-")] = max(1, sizes.count("num-layers") // chunks)
    return file_of_values(path, values), int(count[1])


_READER = options_exporter(export, partial(is_headed, head=_HEAD), _read, TARGET)
EXPORTERS = {TARGET: replace(_READER, degrees=_degrees)}
