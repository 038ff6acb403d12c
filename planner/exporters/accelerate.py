"""The configuration of Hugging Face Accelerate 1.15: a YAML file, the script that starts it, and DeepSpeed's file.

Keys: ``accelerate/commands/config/config_args.py`` (ClusterConfig; unknown keys are refused there) and, of the blocks,
the options of ``accelerate/commands/launch.py`` whose names they have. Which engine trains is chosen here:

- a copy on every device: MULTI_GPU (``NO`` on one);
- ZeRO 2 and 3: FSDP, version 2, with ``parallelism_config`` for a tensor or context degree;
- ZeRO 1, an optimiser on the host, spread experts: DEEPSPEED, with :mod:`planner.exporters.deepspeed`'s file;
- a pipeline, and tensor or context degrees without sharding: MEGATRON_LM.

The batch is no part of Accelerate's file: the program's data loader has it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError
from planner.exporters.accelerate_run import Engine, engine_of, run_with
from planner.exporters.deepspeed import CONFIG, with_files
from planner.exporters.deepspeed import VERSION as DEEPSPEED
from planner.exporters.export import Export, Job
from planner.exporters.kubernetes import documents_of, yaml_text
from planner.exporters.layouts import Layout, how_to_run, layout_of, pins_of, read_layout, shared_pins, stage_layers
from planner.exporters.machines import device_of, is_one_shape, machine_words, require_kinds
from planner.exporters.torchrun import PORT, comment_lines, script_words

__all__ = ["FILE", "VERSION", "degrees", "export", "recognises"]

TARGET, VERSION, FILE = "accelerate", "Accelerate 1.15", "accelerate.yaml"
_PRECISION = {"bf16": "bf16", "fp16": "fp16", "fp32": "no", "tf32": "no"}
_STEPS = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
_MEGATRON, _FSDP = "megatron_lm_", "fsdp_"


def export(job: Job) -> Export:
    """Return the configuration and the script that starts it.

    Raises
    ------
    InfeasibleError
        Where machines have unlike numbers of devices, several CPUs train, or no engine of Accelerate's runs the plan.
    """
    layout = layout_of(TARGET, job)
    if not is_one_shape(layout.rows):
        rows = machine_words(layout.rows)
        mend = "Export to ddp, megatron or torchtitan; or pin fix.num_devices to whole machines of one kind."
        raise layout.refused(f"it starts as many processes on every machine, and the plan takes {rows}", mend)
    if layout.chosen.num_devices > 1:  # on CPUs it starts one process, or those of MPI (launch.py, simple_launcher)
        require_kinds(TARGET, job, layout.rows, "gpu")
    engine = engine_of(layout)
    inner: Mapping[str, str] = {}
    if engine is Engine.DEEPSPEED:
        layout, inner = with_files(layout.noted(f"{CONFIG} is written for {DEEPSPEED}"))
    else:
        layout = run_with(layout, engine)
    head = [f"{VERSION}: {job.problem.dnn.name}, {layout.chosen.headline}", *layout.notes]
    return Export(
        target=TARGET,
        version=VERSION,
        files={
            FILE: yaml_text([_document(layout, engine)], head),
            "launch.sh": _script(layout, engine, comment_lines(head)),
            **inner,
        },
        notes=layout.notes,
        how_to_run=how_to_run(layout),
    )


# -- the configuration -------------------------------------------------------------------------------------------------


def _document(layout: Layout, engine: Engine) -> dict[str, Any]:
    """Return the whole file; texts that YAML 1.1 reads as truth values are quoted."""
    from ruamel.yaml.scalarstring import SingleQuotedScalarString  # noqa: PLC0415  # late, as all of ruamel

    machines = sum(row.num_machines for row in layout.rows)
    found: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": SingleQuotedScalarString(engine.value),
        "num_machines": machines,
        "num_processes": layout.chosen.num_devices,
        "machine_rank": 0,
    }
    if device_of(layout.job, layout.rows[0]).kind == "cpu":
        found["use_cpu"] = True
    if machines > 1:
        found |= {"main_process_ip": "FIRST", "main_process_port": PORT, "rdzv_backend": "static", "same_network": True}
    if engine is Engine.DEEPSPEED:  # whose own file has the numbers' type, and refuses a second one
        launcher = {"deepspeed_multinode_launcher": "standard"} if machines > 1 else {}
        zero3 = {"zero3_init_flag": layout.chosen.zero == 3}  # the stage that shards weights
        found["deepspeed_config"] = {"deepspeed_config_file": CONFIG, **zero3, **launcher}
        return found
    found["mixed_precision"] = SingleQuotedScalarString(_PRECISION[layout.dtype])
    blocks: Mapping[Engine, Callable[[Layout], dict[str, Any]]] = {Engine.FSDP: _fsdp, Engine.MEGATRON_LM: _megatron}
    return found | (blocks[engine](layout) if engine in blocks else {})


def _fsdp(layout: Layout) -> dict[str, Any]:
    """Return the blocks of FSDP 2."""
    chosen = layout.chosen
    block = {
        "version": 2,
        "reshard_after_forward": chosen.zero == 3,  # ZeRO 3 frees weights after the forward pass
        "activation_checkpointing": chosen.recompute == "full",
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "offload_params": False,
        "state_dict_type": "SHARDED_STATE_DICT",
    }
    found: dict[str, Any] = {"fsdp_config": {f"{_FSDP}{name}": value for name, value in block.items()}}
    if chosen.tensor > 1 or chosen.context > 1:
        sizes = {"dp_replicate": 1, "dp_shard": chosen.data, "tp": chosen.tensor, "cp": chosen.context}
        block = {f"parallelism_config_{name}_size": size for name, size in sizes.items()}
        found["parallelism_config"] = block | {
            "parallelism_config_cp_backend": "torch",
            "parallelism_config_cp_comm_strategy": "allgather",
            "parallelism_config_sp_size": 1,
            "parallelism_config_sp_backend": "deepspeed",
        }
    return found


def _megatron(layout: Layout) -> dict[str, Any]:
    """Return the block of Megatron-LM."""
    chosen, network = layout.chosen, layout.network
    block: dict[str, Any] = {
        "tp_degree": chosen.tensor,
        "pp_degree": chosen.pipeline,
        "num_micro_batches": chosen.num_microbatches,
        "sequence_parallelism": chosen.sequence_parallel,
        "use_distributed_optimizer": chosen.zero > 0 or chosen.offload_optimizer,
        "context_parallel_size": chosen.context,
        "expert_model_parallel_size": chosen.expert,
        "gradient_clipping": 1.0,
    }
    if network is not None and network.experts is not None:
        block["expert_tensor_parallel_size"] = chosen.tensor
    if chosen.recompute != "none":  # recompute_activations would mean selective, whatever else is said
        block["recompute_granularity"] = chosen.recompute
    if chosen.recompute == "full":
        block |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    if chosen.offload_optimizer:
        block |= {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}
    if network is not None and chosen.pipeline > 1:
        layers = stage_layers(network.num_layers, chosen)
        block |= {"decoder_last_pipeline_num_layers": layers[-1]} if layers[-1] != layers[0] else {}
    return {"megatron_lm_config": {f"{_MEGATRON}{name}": value for name, value in block.items()}}


def _script(layout: Layout, engine: Engine, head: list[str]) -> str:
    """Return ``launch.sh``: every machine runs it with its own number."""
    machines = sum(row.num_machines for row in layout.rows)
    program = script_words(layout.job.settings.script, "train.py")
    lines = ["#!/usr/bin/env bash", *head, "set -euo pipefail"]
    where = ""
    if machines > 1:
        lines.append(f': "${{NODE_RANK:?0 to {machines - 1}, another on every machine}}"')
        lines.append(': "${MASTER_ADDR:?the name or address of the machine with NODE_RANK 0}"')
        where = '--machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" '
    if engine in {Engine.MULTI_GPU, Engine.NO, Engine.FSDP}:
        lines.append(f"export {_STEPS}={layout.chosen.num_microbatches}")
    lines.append(f"exec accelerate launch --config_file {FILE} {where}{program}")
    return "\n".join(lines) + "\n"


# -- back again --------------------------------------------------------------------------------------------------------


def recognises(path: Path, text: str) -> bool:
    """Whether this is a configuration of Accelerate's."""
    return path.suffix in {".yaml", ".yml"} and "distributed_type:" in text and "num_processes:" in text


def degrees(path: Path, text: str) -> Mapping[str, Any]:
    """Return the layout of a configuration as a ``fix`` block pins it.

    Of an engine that has a file of its own (DeepSpeed), and of a copy on every device, it is the number of devices
    alone; micro-batches are known for Megatron-LM only.

    Raises
    ------
    SpecError
        If the text is no such document, a number is none, or degrees do not divide the devices.
    """
    documents = documents_of(text)
    if not documents:
        raise _fault(path, "", "it is no YAML document of a usual size.")
    document = documents[0]
    number = _count(path, document, "num_processes")
    read: Mapping[str, Callable[[Path, Mapping[str, Any], int], Mapping[str, Any]]] = {
        Engine.FSDP.value: _fsdp_degrees,
        Engine.MEGATRON_LM.value: _megatron_degrees,
    }
    kind = str(document.get("distributed_type"))
    if kind in read:
        return read[kind](path, document, number)
    return {"num_devices": number}


def _fsdp_degrees(path: Path, document: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Return the degrees of FSDP."""
    block, sizes = _block(path, document, "fsdp_config"), _block(path, document, "parallelism_config")
    prefix = "parallelism_config_"
    tensor, context = (_count(path, sizes, f"{prefix}{name}_size", 1) for name in ("tp", "cp"))
    chosen = read_layout(
        path,
        global_batch_size=1,
        tensor=tensor,
        context=context,
        data=_left(path, number, tensor * context),
        zero=3 if block.get(f"{_FSDP}reshard_after_forward", True) else 2,
        recompute="full" if block.get(f"{_FSDP}activation_checkpointing", False) else "none",
    )
    names = ("tensor", "context", "pipeline", "data", "zero", "recompute", "num_devices")
    return pins_of(chosen, *names)


def _megatron_degrees(path: Path, document: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Return the degrees of Megatron-LM."""
    block = _block(path, document, "megatron_lm_config")

    def count(name: str, default: int | None = None) -> int:
        return _count(path, block, f"{_MEGATRON}{name}", default)

    tensor, stages, context = count("tp_degree"), count("pp_degree"), count("context_parallel_size", 1)
    chosen = read_layout(
        path,
        global_batch_size=1,
        tensor=tensor,
        context=context,
        pipeline=stages,
        data=_left(path, number, tensor * context * stages),
        expert=count("expert_model_parallel_size", 1),
        zero=int(bool(block.get(f"{_MEGATRON}use_distributed_optimizer"))),
        recompute=str(block.get(f"{_MEGATRON}recompute_granularity", "none")),
        sequence_parallel=bool(block.get(f"{_MEGATRON}sequence_parallelism")),
        offload_optimizer=bool(block.get(f"{_MEGATRON}optimizer_cpu_offload")),
    )
    names = ("tensor", "context", "pipeline", "data", "expert", "zero", "recompute", "sequence_parallel")
    microbatches = {"num_microbatches": count("num_micro_batches")}
    return {**shared_pins(chosen, *names, "offload_optimizer", "num_devices"), **microbatches}


def _left(path: Path, number: int, taken: int) -> int:
    """Return the data-parallel degree: what other degrees leave of the devices."""
    if number % taken:
        raise _fault(path, "num_processes", f"{number} devices do not divide by degrees of {taken} together.")
    return number // taken


def _block(path: Path, document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a block of the file; an empty one where it has none."""
    found = document.get(name, {})
    if not isinstance(found, Mapping):
        raise _fault(path, name, "it is no mapping.")
    return found


def _count(path: Path, block: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a whole number of 1 or more."""
    found = block.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise _fault(path, name, f"{found!r} is no whole number of 1 or more." if name in block else "it is missing.")
    return found


def _fault(path: Path, field: str, problem: str) -> SpecError:
    """Return the error of a file."""
    mend = "Give a configuration as `planner export` writes it."
    return SpecError.of([Fault(file=str(path), field=field, problem=problem, mend=mend)])
