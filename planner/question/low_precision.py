"""``dnn.dtype: fp8 | mxfp8 | nvfp4``: products in eight or four bits, which a spec allows and nothing else does.

Refused, with what would be allowed: a type that a device lacks, a network that is no transformer, a recipe of another
type, a program that has none, and families that do not count it.
"""

from collections.abc import Collection, Sequence

from planner.cluster import Cluster, Device
from planner.dnn import Dnn
from planner.models.low_precision import LOW_TYPES, NUMBER_TYPES, recipe_of, supports
from planner.models.programs import PROGRAMS
from planner.names import OF_TRANSFORMERS
from planner.problem import LowPrecision
from planner.question.blocks import CalibrationSpec
from planner.question.spec import Reading

_DTYPE, _RECIPE, _LAYERS = (("dnn", key) for key in ("dtype", "fp8_recipe", "bf16_layers"))
_WIDE = "bf16"  # what all else stays in
_NAMES = {"fp8": "eight bits", "mxfp8": "eight bits, scaled by 32", "nvfp4": "four bits, scaled by 16"}
_PAPER_SHARE = 0.15  # of the layers that stay in bf16: NVIDIA, arXiv 2509.25149


def low_precision_of(reading: Reading, dnn: Dnn, cluster: Cluster) -> LowPrecision | None:
    """Return the products that a spec asks for in eight or four bits; None where it asks for none, or not rightly."""
    spec, notes = reading.spec.dnn, reading.notes
    name = spec.dtype
    if name not in LOW_TYPES:
        for path, value in ((_RECIPE, spec.fp8_recipe), (_LAYERS, spec.bf16_layers)):
            if value is not None:
                what = f"it goes with products of eight or four bits, and dnn.dtype is {name or 'not given'}."
                notes.fault(path, what, f"Leave it out, or write dtype: {' or '.join(LOW_TYPES)}.", value)
        return None
    assert name is not None, "one of LOW_TYPES"
    if spec.fp8_recipe is not None and name != "fp8":
        notes.fault(_RECIPE, f"{name} has one recipe, its own.", "Leave it out, or write dtype: fp8.", spec.fp8_recipe)
    if dnn.transformer is None:
        what = f"products in {_NAMES[name]} are those of a transformer's blocks, and {dnn.name} is not known as one."
        notes.fault(_DTYPE, what, f"Write {_WIDE}.", name)
        return None
    for device in {one.device.name: one.device for one in cluster.machine_groups}.values():
        if not supports(device.peak_flop_per_s, device.name, name):
            allowed = [one for one in LOW_TYPES if supports(device.peak_flop_per_s, device.name, one)]
            allowed += [one for one in (_WIDE, "fp16", "tf32", "fp32") if one in device.peak_flop_per_s]
            what = f"{device.name} multiplies no numbers of {_NAMES[name]}."
            notes.fault(_DTYPE, what, f"Write one of {', '.join(allowed)}, or take other devices.", name)
            return None
        if _WIDE not in device.peak_flop_per_s:
            notes.fault(_DTYPE, f"what stays in {_WIDE} needs it, and {device.name} has none.", "Write fp16.", name)
            return None
    layers = dnn.transformer.num_layers
    if (wide := spec.bf16_layers or 0) >= layers:
        notes.fault(_LAYERS, f"the network has {layers} layers.", f"Write {layers - 1} or less.", wide)
        return None
    return LowPrecision(name=name, recipe=recipe_of(name, spec.fp8_recipe), wide_layers=wide)


def families_of_low(reading: Reading, low: LowPrecision | None, families: Sequence[str]) -> tuple[str, ...]:
    """Return the families that count products of eight or four bits; refuse a question that leaves none of them."""
    if low is None:
        return tuple(families)
    configured = reading.spec.configuration
    others = [one for one in (configured.family,) if one != OF_TRANSFORMERS] if configured is not None else []
    if others or OF_TRANSFORMERS not in families:
        what = f"{OF_TRANSFORMERS} alone counts products in {_NAMES[low.name]}, and {', '.join(others or families)} "
        what += "is asked." if len(others or families) == 1 else "are asked."
        reading.notes.fault(_DTYPE, what, f"Write {_WIDE}, or ask {OF_TRANSFORMERS}.", low.name)
    return (OF_TRANSFORMERS,)


def note_low_precision(reading: Reading, low: LowPrecision | None, program: str, num_layers: int) -> None:
    """Say what is multiplied in which type, and what was assumed of it; refuse a program that has no such products."""
    if low is None:
        return
    notes, key = reading.notes, (low.name, low.recipe)
    known = PROGRAMS[program].low_recipes if program in PROGRAMS else frozenset()
    if key not in known:
        able = [name for name, one in PROGRAMS.items() if key in one.low_recipes]
        own = [recipe if name == "fp8" else name for name, recipe in NUMBER_TYPES if (name, recipe) in known]
        has = f"it has {', '.join(own)}" if own else "it has none of the kind"
        what = f"products in {low.name}{f' ({low.recipe})' * (low.name == 'fp8')} are not known of {program}: {has}."
        notes.fault(("calibration", "program"), what, f"Write program: {' or '.join(able)}.", program)
        return
    kinds = "the matrices of attention and of feed-forward parts, experts' among them"
    notes.assumptions.append(
        f"products in {low.name}: {kinds}; in {_WIDE} stay attention's core, routers, embedding, logits, norms, and "
        f"all that is added up"
    )
    if low.name == "fp8" and reading.spec.dnn.fp8_recipe is None:
        reading.resolved["dnn"]["fp8_recipe"] = low.recipe
        text = f"scales of fp8: {low.recipe}, one for a tensor, found before it is turned"
        notes.assume_aloud(text, _RECIPE, other="delayed")
    if reading.spec.dnn.bf16_layers is None and low.name == "nvfp4":
        reading.resolved["dnn"]["bf16_layers"] = low.wide_layers
        text = "no layer is kept in bf16, as the program does by itself; NVIDIA keeps about the last 15 % so"
        notes.assume_aloud(text, _LAYERS, other=max(1, round(_PAPER_SHARE * num_layers)))


def note_cuda_graphs(
    reading: Reading,
    low: LowPrecision | None,
    calibration: CalibrationSpec,
    devices: Collection[Device],
    *,
    is_hybrid_asked: bool,
) -> None:
    """Say whether kernels are launched by CUDA graphs; refuse them of a program that captures none."""
    notes, path, asked = reading.notes, ("calibration", "cuda_graphs"), calibration.cuda_graphs
    if asked and calibration.program in PROGRAMS and not PROGRAMS[calibration.program].has_cuda_graphs:
        able = [name for name, one in PROGRAMS.items() if one.has_cuda_graphs]
        what = f"{calibration.program} is not known to capture a step's kernels in CUDA graphs."
        notes.fault(path, what, f"Leave it out, or write program: {' or '.join(able)}.", str(asked).lower())
    elif asked and not is_hybrid_asked:
        notes.warnings.append("calibration.cuda_graphs alters nothing: hybrid alone counts launching, and is not asked")
    elif asked is not None:
        words = "captured in CUDA graphs" if asked else "launched one by one"
        notes.assumptions.append(f"kernels are {words} (calibration.cuda_graphs)")
    elif low is not None and calibration.program in PROGRAMS and PROGRAMS[calibration.program].has_cuda_graphs:
        is_amd = any(device.is_amd for device in devices)
        text = f"kernels are captured in CUDA graphs, as NVIDIA's recipes of {low.name} have it"
        if is_amd:
            text = f"kernels are launched one by one, as AMD's recipes of {low.name} have it"
        elif all(device.kind != "gpu" for device in devices):
            text = "the kernels of a step are started at once, as it is compiled as a whole"
        notes.assume_aloud(text, path, other=is_amd)
