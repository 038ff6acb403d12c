"""Questions for the family hybrid: small transformers on small clusters, with plain figures in place of fitted ones.

``CHAIN`` are the layers of a small network for the other families.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

import planner
from planner.families.hybrid import family as hybrid
from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.hybrid.cost import GroupCost
from planner.families.hybrid.search import plan
from planner.families.hybrid.space import Space
from planner.models.compute import Constants
from planner.plan import Prediction
from planner.problem import Problem
from planner.question.spec import HybridSpec
from planner.search import Search
from planner.solution import Status
from planner.solvers.grid import Grid

__all__ = ["CHAIN", "MOE", "RATES", "TINY", "layout", "predicted", "question", "whole_grid"]

_SHARES = {"wave_share": 0.5, "tensor_floor_ratio": 0.1, "contention": 0.2, "exchange_contention": 0.3}
_SHARES |= {"inside_efficiency": 0.8, "outside_efficiency": 0.7, "exchange_efficiency": 0.8}
_SIZES = {"startup_width": 30.0, "score_bytes": 11.0, "hop_s": 4e-6, "send_s": 2e-5, "exchange_bytes_per_s": 5e10}
# Plausible figures of no particular device or program, so that tests do not move with a fit; ratios are 1.
RATES: Mapping[str, Any] = {
    "constants": {one.name: {**_SHARES, **_SIZES}.get(one.name, 1.0) for one in fields(Constants)},
    "devices": {
        "a100-sxm4-80gb": {
            "product_efficiency": 0.75,
            "memory_efficiency": 0.8,
            "attention_efficiency": 0.55,
        }
    },
    "unmeasured": {
        "product_efficiency": 0.75,
        "flop_per_j": 0.78e12,
        "exponent": 0.4,
        "most_product_efficiency": 0.75,
        "memory_efficiency": 0.8,
        "attention_ratio": 0.7,
    },
    "software": {
        "megatron-core": {
            "launch_s": 2e-4,
            "has_flash_attention": True,
            "has_dropout": False,
            "has_fused_loss": True,
            "accumulation_bytes": 8.0,
            "gradient_bytes": 4.0,
        }
    },
    "bands": {},
}
TINY: dict[str, Any] = {
    "layers": 4,
    "hidden": 1024,
    "heads": 8,
    "vocabulary": 32000,
    "sequence_length": 1024,
}
CHAIN: list[dict[str, Any]] = [
    {"name": "data", "kind": "input", "output": "12 kB"},
    *(
        {
            "name": f"layer{index}",
            "kind": "fully_connected",
            "inputs": [f"layer{index - 1}" if index else "data"],
            "multiply_adds": 2e8,
            "parameters": f"{2 + index} MB",
            "output": "400 kB",
        }
        for index in range(4)
    ),
]
MOE: dict[str, Any] = {**TINY, "kv_heads": 4, "gated": True, "experts": {"count": 4, "top_k": 2, "size": 1024}}


def question(
    transformer: Mapping[str, Any] = TINY,
    *,
    machines: int = 2,
    devices: int = 4,
    batch: int = 8,
    network: str = "200 Gbit/s",
    cards: int = 2,
    memory: str | None = None,
    host_link: str | None = None,
    rates: Mapping[str, Any] = RATES,
    **more: Any,
) -> Problem:
    """A transformer on machines of some A100s each that keep no memory for themselves, a batch, and what else is said."""
    asked: dict[str, Any] = {
        "dnn": {"transformer": dict(transformer), "global_batch": batch, "dtype": "bf16", "optimizer": "adam"},
        "cluster": {
            "machines": [
                {
                    "count": machines,
                    "device": "a100-sxm4-80gb",
                    "devices": devices,
                    "inside": "nvlink-3",
                    "network": network,
                    "latency": "5 us",
                    "nics": cards,
                }
            ]
        },
        "objective": "iteration_time",
        "calibration": {"memory_reserve": "0 B"},
        **more,
    }
    if host_link is not None:
        asked["cluster"]["machines"][0]["host_link"] = host_link
    if memory is not None:
        asked["constraints"] = {**asked.get("constraints", {}), "memory_per_device": memory}
    return replace(planner.load(asked), transformer_rates=rates)


def every_point(grid: Grid) -> dict[str, Any]:
    """All that a grid has, rules kept, whatever its bounds."""
    points: dict[str, Any] = {}
    for level in range(len(grid.levels)):
        points = grid.expand(points, level)
    return points


def given_layout(problem: Problem, **block: Any) -> HybridConfiguration:
    return hybrid.configuration_of(problem, HybridSpec.model_validate(block).model_dump())


def layout(problem: Problem) -> HybridConfiguration:
    found = plan(problem, Search())
    assert found.status is Status.OPTIMAL, "no limit"
    assert isinstance(found.configuration, HybridConfiguration), "the family's own"
    return found.configuration


def predicted(problem: Problem, layout: dict[str, Any]) -> tuple[dict[str, Any], Prediction]:
    """The block of a layout, whole, and what the family says of it."""
    chosen = hybrid.configuration_of(problem, HybridSpec.model_validate(layout).model_dump())
    return chosen.to_document(), hybrid.predict(problem, chosen)


def whole_grid(cost: GroupCost) -> dict[str, Any]:
    """Every layout that the question allows: an array for each decision."""
    grid = Space.of(cost.even).grid()
    nodes: dict[str, Any] = {}
    for level in range(len(grid.levels)):
        nodes = grid.expand(nodes, level)
    return {name: np.asarray(column) for name, column in nodes.items()}
