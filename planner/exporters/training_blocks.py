"""What a launch file says of a training beside its network and its layout: numbers, optimiser, adapters, batch.

Each program's own words are read by its exporter; here is what they have in common, and Megatron-LM's options, which
Megatron-Bridge and Primus read, too (:func:`planner.families.hybrid.launch.low_precision_options` writes them).
"""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.exporters.export import TrainingBlocks
from planner.exporters.scripts import Parsed
from planner.families.hybrid.launch import FP8_RECIPES
from planner.trained import SYNONYMS

_MOMENTS = {"bf16": "adam_bf16", "fp8": "adam_fp8"}  # type of both moments -> optimiser
_WIDE_START, _WIDE_END = "num-layers-at-start-in-bf16", "num-layers-at-end-in-bf16"


def training_of_options(file: Parsed, program: str) -> TrainingBlocks:
    """Return what Megatron-LM's options say: AdamW is read as ``adam``, which counts the same.

    Parameters
    ----------
    program
        Of the cost model, that trains with these options.

    Raises
    ------
    SpecError
        If a name is none that the exporter writes.
    """
    flags, warnings = file.flags, []
    dnn: dict[str, Any] = {"global_batch": file.count("global-batch-size")}
    low = _short_numbers(file)
    dnn |= low or {"dtype": next((name for name in ("bf16", "fp16") if name in flags), "fp32")}
    if low and file.value(_WIDE_START, "0") != "0":
        warnings.append(f"layers in bf16 at the start are not read ({_WIDE_START}): a spec has those at the end")
    dnn["optimizer"] = _optimizer(file)
    calibration: dict[str, Any] = {"program": program}
    if "grad-reduce-in-bf16" in flags:
        calibration["gradients"] = "bf16"
    if (has_graphs := "cuda-graph-impl" in flags) != bool(low):  # which capture them where nothing is said
        calibration["cuda_graphs"] = has_graphs
    return TrainingBlocks(dnn=dnn, calibration=calibration, warnings=tuple(warnings))


def _short_numbers(file: Parsed) -> dict[str, Any]:
    """Return the keys of products in eight or four bits; nothing where there are none."""
    flags = file.flags
    if "fp4-format" in flags:
        found: dict[str, Any] = {"dtype": "nvfp4"}
    elif "fp8-format" in flags:
        recipe = str(file.value("fp8-recipe", "delayed"))
        named = {option: name for name, option in FP8_RECIPES.items()}
        if recipe != "mxfp8" and recipe not in named:
            hint = f"Write one of mxfp8, {', '.join(named)}."
            raise file.fault(f"{recipe[:60]!r} is none.", f"{file.mark}fp8-recipe", hint)
        found = {"dtype": "mxfp8"} if recipe == "mxfp8" else {"dtype": "fp8", "fp8_recipe": named[recipe]}
    else:
        return {}
    if "first-last-layers-bf16" in flags:  # the program's own number is 1
        found["bf16_layers"] = file.count(_WIDE_END, 1, least=0)
    return found


def _optimizer(file: Parsed) -> str:
    """Return the optimiser by its name in a spec."""
    name = str(file.value("optimizer", "adam"))
    if name in ("muon", "dist_muon"):
        return "muon"
    if name == "sgd":
        return "sgd" if file.value("sgd-momentum") in ("0", "0.0") else "momentum"
    if name != "adam":
        raise file.fault(f"{name[:60]!r} is none.", f"{file.mark}optimizer", "Write adam, sgd or muon.")
    moments = {str(file.value(f"exp-avg{square}-dtype", "fp32")) for square in ("", "-sq")}
    return _MOMENTS.get(moments.pop(), "adam") if len(moments) == 1 else "adam"


def adapters_of(
    file: Parsed, table: object, *, rank: str, alpha: str, targets: str, method: str = "lora"
) -> dict[str, object]:
    """Return the block ``fine_tuning`` of a table of adapters, whose keys are given.

    Raises
    ------
    SpecError
        If it is no such table.
    """
    if not isinstance(table, Mapping):
        raise file.fault("it is no mapping.", "adapters")
    parsed = Parsed(file.path, table)
    named = table.get(targets)
    if not isinstance(named, list) or not named or not all(isinstance(one, str) for one in named):
        raise file.fault(f"{str(named)[:60]!r} are no names of matrices.", targets, "Write a list of names.")
    weight = table.get(alpha)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise file.fault(f"{str(weight)[:60]!r} is no number.", alpha, "Write e.g. 32.")
    listed = [SYNONYMS.get(one, one) for one in named]
    return {"method": method, "rank": parsed.count(rank), "alpha": weight, "targets": listed}


def constants_of(path: Path, text: str) -> dict[str, Any]:
    """Return the literals that a Python file names, which is not run; raise SpecError where it is no Python."""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Parsed(path, {}).fault(f"it is no Python: {type(error).__name__}.") from None
    found = {}
    for one in module.body:
        if isinstance(one, ast.Assign) and len(one.targets) == 1 and isinstance(one.targets[0], ast.Name):
            try:
                found[one.targets[0].id] = ast.literal_eval(one.value)
            except (ValueError, TypeError, RecursionError, MemoryError):
                continue
    return found
