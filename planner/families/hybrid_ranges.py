"""What of a prediction lies outside of what was measured, by name."""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.families.hybrid_configuration import HybridConfiguration
from planner.families.hybrid_cost import HybridCost

__all__ = ["outside", "outside_words"]


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
    return [f"outside of what was measured on {cost.group.device.name} (in brackets): {'; '.join(found)}"]


def _strange(known: Mapping[str, Any], cost: HybridCost, chosen: HybridConfiguration) -> Iterator[str]:
    """Yield sizes outside of their range, parts that no row has, and the program where no row has it."""
    for name, value in _sizes(cost, chosen).items():
        least, most = known["sizes"][name]
        if not least <= value <= most:
            yield f"{name} {value:,} ({f'{least:,} to {most:,}' if least < most else f'all {most:,}'})"
    if chosen.offload_optimizer:
        yield "an optimiser on the host"
    if cost.transformer.latent is not None and not known["sizes"]["experts"][1]:
        yield "latent attention"
    if cost.program not in known["software"]:
        yield f"the program {cost.program} ({', '.join(known['software'])})"


def _sizes(cost: HybridCost, chosen: HybridConfiguration) -> dict[str, int]:
    """Return the sizes of a prediction by the names of the ranges."""
    network = cost.transformer
    return {
        "devices": chosen.num_devices,
        "hidden size": network.hidden_size,
        "layers": network.num_layers,
        "sequence length": network.sequence_length,
        "tensor degree": chosen.tensor,
        "stages": chosen.pipeline,
        "micro-batch": chosen.microbatch,
        "context degree": chosen.context,
        "experts": 0 if network.experts is None else network.experts.num_experts,
    }
