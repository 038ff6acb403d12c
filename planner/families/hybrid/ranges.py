"""What of a prediction lies outside of what was measured, by name; and the error that was measured nearest to it.

A prediction has the band of a family of measurements where the family trained with the same program and the question
lies within all of the family's ranges; else that of all families of the device, with words for what lies outside; none
on a device without measurements.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.hybrid.cost import HybridCost

__all__ = ["error_band", "outside", "outside_words"]

_CONDITIONS = {  # of the families that have a band
    "bigscience-176b-sweep": "GPT of about 176 billion parameters on A100s, Megatron-DeepSpeed in bf16",
    "llm-foundry": "MPT of 1.3 to 13 billion parameters on 8 to 512 H100s, fully sharded data parallelism",
    "llm-foundry-a100": "MPT of 0.1 to 65 billion parameters on 8 to 64 A100s, fully sharded data parallelism",
    "simumax-b200": "the networks of SimuMax on B200s, Megatron-Core",
    "vtrain-single": "GPT of 0.2 to 1.3 billion parameters on 4 to 8 A100s, Megatron-DeepSpeed",
}
_FILLED_WORDS = 1024  # programs fill up a vocabulary, Megatron-LM to 128 words a rank: alike at a tensor degree of 8


def error_band(cost: HybridCost, chosen: HybridConfiguration) -> dict[str, Any] | None:
    """Return the error measured nearest to a prediction: an 80 % band of measured / predicted - 1.

    ``from`` names the family, or the device where no family that has a band holds the question; ``conditions`` say what
    was measured, and what of the question lies outside. None on a device without fitted shares or a band.
    """
    rates, device = cost.problem.transformer_rates, cost.group.device.name
    source, conditions = _family(cost, chosen), ""
    band: Mapping[str, Any] = rates.get("bands", {}).get(source, {})
    if band.get("coverage") is not None:
        conditions = _CONDITIONS.get(source, "")
    else:
        band, source = rates.get("device_bands", {}).get(device, {}), device
        conditions = f"all families measured on {device}, groups of their rows left out of the fit, not whole families"
        if found := outside(cost, chosen):
            conditions += f"; outside of it: {'; '.join(found)}"
    if band.get("coverage") is None or not cost.is_calibrated:
        return None
    return {**{key: band[key] for key in ("low", "high", "coverage")}, "from": source, "conditions": conditions}


def _family(cost: HybridCost, chosen: HybridConfiguration) -> str:
    """Return the family that holds the program and all sizes, of several that of the fewest devices; or nothing."""
    ranges: Mapping[str, Any] = cost.problem.transformer_rates.get("ranges", {})
    families: Mapping[str, Any] = ranges.get(cost.group.device.name, {}).get("families", {})
    listed = sorted(families, key=lambda name: (families[name]["sizes"]["devices"][1], name))
    return next((name for name in listed if not any(_strange(families[name], cost, chosen))), "")


def outside(cost: HybridCost, chosen: HybridConfiguration) -> list[str]:
    """Return what was not measured on the device; nothing where none was, which is told elsewhere."""
    ranges: Mapping[str, Any] = cost.problem.transformer_rates.get("ranges", {})
    known = ranges.get(cost.group.device.name)
    return [] if known is None else list(_strange(known, cost, chosen))


def outside_words(cost: HybridCost, chosen: HybridConfiguration) -> list[str]:
    """Return a line that names what was not measured; none where everything was."""
    found = outside(cost, chosen)
    if not found:
        return []
    where = f"outside of what was measured on {cost.group.device.name} (in brackets), where errors may be larger"
    return [f"{where}: {'; '.join(found)}"]


def _strange(known: Mapping[str, Any], cost: HybridCost, chosen: HybridConfiguration) -> Iterator[str]:
    """Yield sizes outside of their range, parts that no row has, and the program where no row has it."""
    for name, value in _sizes(cost, chosen).items():
        least, most = known["sizes"][name]
        if not _is_within(name, value, least, most):
            yield f"{name} {value:,} ({f'{least:,} to {most:,}' if least < most else f'all {most:,}'})"
    if chosen.offload_optimizer:
        yield "an optimiser on the host"
    if cost.transformer.latent is not None and not known["sizes"]["experts"][1]:
        yield "latent attention"
    if cost.program not in known["software"]:
        yield f"the program {cost.program} ({', '.join(known['software'])})"


def _is_within(name: str, value: int, least: int, most: int) -> bool:
    """Return whether a size lies in its range, a vocabulary as it is filled up."""
    unit = _FILLED_WORDS if name == "vocabulary" else 1
    return -(-least // unit) <= -(-value // unit) <= -(-most // unit)


def _sizes(cost: HybridCost, chosen: HybridConfiguration) -> dict[str, int]:
    """Return the sizes of a prediction by the names of the ranges."""
    network = cost.transformer
    return {
        "devices": chosen.num_devices,
        "hidden size": network.hidden_size,
        "layers": network.num_layers,
        "sequence length": network.sequence_length,
        "vocabulary": network.vocabulary_size,
        "tensor degree": chosen.tensor,
        "stages": chosen.pipeline,
        "micro-batch": chosen.microbatch,
        "context degree": chosen.context,
        "experts": 0 if network.experts is None else network.experts.num_experts,
    }
