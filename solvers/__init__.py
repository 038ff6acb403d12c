"""Search. A solver sees indices and a cost function and returns a `Solution`; physics lives in `planner.models`.

Import the solver that is meant, e.g. ``from planner.solvers import fusion``: back ends load only with their adapter.
"""

__all__ = ["exhaustive", "fusion", "fusion_heuristics"]
