"""Search. A solver sees indices and a cost function and returns a `Solution`; physics lives in `planner.models`.

Import the solver that is meant, e.g. ``from planner.solvers import fusion``: back ends load only with their adapter.
"""

from importlib import import_module
from types import ModuleType

__all__ = [
    "assignment",
    "boxes",
    "count_boxes",
    "cp_sat",
    "exhaustive",
    "fusion",
    "fusion_heuristics",
    "grid",
    "layer_chain",
    "pareto",
    "pipeline",
    "pipeline_cp_sat",
    "pipeline_cuts",
    "pipeline_fit",
    "pipeline_least",
    "placement",
    "placement_rows",
    "scalar",
    "shares",
]


def __getattr__(name: str) -> ModuleType:
    """Import a module of this room when it is first asked for."""
    if name in __all__:
        return import_module(f"planner.solvers.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
