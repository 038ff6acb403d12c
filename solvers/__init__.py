"""Search. A solver sees indices and a cost function and returns a `Solution`; physics lives in `planner.models`.

Import the solver that is meant, e.g. ``from planner.solvers import fusion``: back ends load only with their adapter.
"""

from importlib import import_module
from types import ModuleType

__all__ = [
    "branch_and_bound",
    "chain",
    "counts",
    "cp_sat",
    "divisors",
    "fusion",
    "grid",
    "matching",
    "pareto",
    "pipeline_tables",
    "pipelines",
    "placement",
    "readings",
    "scalar",
    "shares",
]


def __getattr__(name: str) -> ModuleType:
    """Import a module of this room when it is first asked for."""
    if name in __all__:
        return import_module(f"planner.solvers.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
