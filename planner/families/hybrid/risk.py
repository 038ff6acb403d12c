"""What of a layout no measured step has: of the device, or of the program that trains; and how far predictions are off.

What was measured are the rows that the figures are fitted to (docs/accuracy_transformers.md); a test compares the table
with them.
"""

from collections.abc import Iterator
from typing import get_args

from planner.decisions import LAYOUT, LayoutSchedule
from planner.families.hybrid import prediction as predictions
from planner.families.hybrid.configuration import AWAY, HybridConfiguration
from planner.families.hybrid.cost import HybridCost
from planner.families.hybrid.prediction import LOW_MEASURED, unseen_band
from planner.plan import Prediction, Unmeasured
from planner.problem import Problem

WITH_DEGREES, IDLE = "time against memory with these degrees", "stay idle"
OF_LAYOUT = (WITH_DEGREES, IDLE)
_SHARDS_MORE = (2, 3)  # stages of ZeRO that share gradients and weights, too
# On which devices and with which programs steps were measured that have a feature.
MEASURED: dict[str, frozenset[str]] = {
    "an optimiser on the host": frozenset(),
    "the schedule GPipe": frozenset(),
    "a schedule that puts gradients of weights off": frozenset(),
    "ZeRO 2 or 3 in a pipeline": frozenset(),
    "modules that are computed again by themselves": frozenset(),
    "some layers of a stage computed again": frozenset(),
    "activations that wait on the host": frozenset(),
    "states sharded over a part of the data ranks": frozenset(),
    "ZeRO 2": frozenset({"h100-sxm", "composer-fsdp"}),
    "ZeRO 3": frozenset({"a100-sxm4-80gb", "h100-sxm", "composer-fsdp", "torchtitan", "torchtitan-eager"}),
    "virtual stages": frozenset(
        {"a100-sxm4-80gb", "h100-sxm", "b200-sxm", "gb200", "megatron-lm", "megatron-lm-fused", "megatron-core"}
    ),
    "context parallelism": frozenset({"h100-sxm", "b200-sxm", "gb200", "megatron-core"}),
    "expert parallelism": frozenset({"h100-sxm", "b200-sxm", "megatron-core"}),
}


def unmeasured(problem: Problem, configuration: HybridConfiguration) -> tuple[Unmeasured, ...]:
    """Return the features that no step has which was measured on a device of a layout, or with the program."""
    groups = HybridCost.of(problem, configuration).groups
    program, devices = problem.calibration.program, dict.fromkeys(one.group.device.name for one in groups)
    found = []
    low = problem.training.low
    if low is not None and not set(devices) <= LOW_MEASURED.get(low.name, frozenset()):
        found.append(Unmeasured(words=f"products in {low.name}", is_taken=True))  # only where they are asked for
    for one in _features(configuration):
        known = MEASURED[one.words]
        if program not in known and not known >= set(devices):
            found.append(one)
    return tuple(found)


def _features(chosen: HybridConfiguration) -> Iterator[Unmeasured]:
    """Yield every feature of :data:`MEASURED`, and whether a layout has it."""
    has_stages = chosen.pipeline > 1
    yield Unmeasured(
        words="an optimiser on the host", is_taken=chosen.offload_optimizer, pins={"offload_optimizer": False}
    )
    yield Unmeasured(
        words="the schedule GPipe",
        is_taken=has_stages and chosen.schedule == "gpipe",
        excluded={"schedule": ("gpipe",)},
    )
    yield Unmeasured(
        words="a schedule that puts gradients of weights off",
        is_taken=has_stages and chosen.schedule not in ("gpipe", "1f1b"),
        excluded={"schedule": get_args(LayoutSchedule)[2:]},
    )
    yield Unmeasured(
        words="activations that wait on the host",
        is_taken=bool(chosen.offload_layers) or chosen.has_modules_away,
        pins={row.key: row.default for row in (LAYOUT[name] for name in AWAY) if row.default is not None},
    )
    for words, name in (
        ("modules that are computed again by themselves", "recompute_modules"),
        ("some layers of a stage computed again", "recompute_layers"),
        ("states sharded over a part of the data ranks", "shard"),
    ):
        row = LAYOUT[name]
        assert row.default is not None
        yield Unmeasured(words=words, is_taken=getattr(chosen, name) != row.default, pins={row.key: row.default})
    yield Unmeasured(
        words="ZeRO 2 or 3 in a pipeline",
        is_taken=has_stages and chosen.zero in _SHARDS_MORE,
        excluded={"zero_stage": _SHARDS_MORE} if has_stages else {},
    )
    for stage in _SHARDS_MORE:
        yield Unmeasured(words=f"ZeRO {stage}", is_taken=chosen.zero == stage, excluded={"zero_stage": (stage,)})
    for words, value, key in (
        ("virtual stages", chosen.interleave, "chunks_per_device"),
        ("context parallelism", chosen.context, "context_parallel_size"),
        ("expert parallelism", chosen.expert, "expert_parallel_size"),
    ):
        yield Unmeasured(words=words, is_taken=value > 1, pins={key: 1})


def known_error(problem: Problem, configuration: HybridConfiguration, prediction: Prediction) -> float:
    """Return by how much a measured step may take longer than predicted: of the nearest band, else of the devices'.

    0 where no errors were measured at all.
    """
    if prediction.relative_error is not None:
        return max(float(prediction.relative_error["high"]), 0.0)
    bands = [unseen_band(one)[1] for one in HybridCost.of(problem, configuration).groups]
    return max(0.0, *(float(band.get("high", 0.0)) for band in bands))


def warnings(problem: Problem, configuration: HybridConfiguration) -> list[str]:
    """Return what makes the figures of a layout doubtful."""
    return predictions.warnings(HybridCost.of(problem, configuration), configuration)
